"""Headers of CSV that could be amd-smi's or those of scripts around NVIDIA's tools.

amd-smi's CSV begins with ``timestamp,gpu`` or ``gpu``, and scripts write the same in front of names
from nvidia-smi or NVML. Three names occur in both (``power_usage``, ``power_limit``,
``mem_clock``); a header with no other name is taken to be amd-smi's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

AMD_SMI = re.compile(r"(?:[Tt]imestamp,)?gpu(?:,|\s*$)")
"""Start of amd-smi's headers."""
CODECARBON = re.compile(r"timestamp,project_name,(?:\w{1,99},){1,9}emissions,")
"""Start of the headers of codecarbon, whose rows sum up runs; it has names that nvidia-smi has."""
XPU_SMI = re.compile(r"Timestamp, ?DeviceId,[^\n(]{1,80} \(")
"""Start of the headers of Intel's xpu-smi, with units in brackets, whose times have no date; it has names that scripts write of NVIDIA's GPUs."""
_NVIDIA = re.compile(
    r".*[.\[].*"
    r"|power(?:_draw\w*|_w|_watts?|_usage_w\w*)?|gpu_(?:power|temp|util|mem)\w*"
    r"|temp(?:erature)?(?:_c|_celsius|_gpu\w*|_mem\w*)?|util\w*"
    r"|mem(?:ory)?_(?:util|used|free|total|clock_)\w*|sm_clock\w*|clocks_\w+"
    r"|clock_(?:sm|graphics|mem)\w*"
    r"|graphics_clock\w*|pstate|performance_state|fan_speed|pcie_link_\w+|enforced_\w+",
    re.IGNORECASE,
)
"""Names of nvidia-smi, also as scripts write them, that amd-smi does not have."""


def is_of_nvidia(names: Sequence[str]) -> bool:
    """True if columns below a header that begins like amd-smi's are NVIDIA's.

    Parameters
    ----------
    names
        All names of the header.
    """
    return any(_NVIDIA.fullmatch(name.strip()) for name in names)
