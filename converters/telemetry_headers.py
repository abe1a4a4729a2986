"""Whose CSV is it: headers of scripts around NVIDIA's tools that begin as those of amd-smi do.

amd-smi's CSV begins with ``timestamp,gpu`` or ``gpu``, and scripts write the same in front of names
that they took from nvidia-smi or NVML. Three names mean the same in both (``power_usage``,
``power_limit``, ``mem_clock``); without any other such a header is amd-smi's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

AMD_SMI = re.compile(r"(?:timestamp,)?gpu(?:,|\s*$)")
"""How the headers of amd-smi begin."""
_NVIDIA = re.compile(
    r".*[.\[].*"
    r"|power(?:_draw\w*|_w|_watts?|_usage_w\w*)?|gpu_(?:power|temp|util|mem)\w*"
    r"|temp(?:erature)?(?:_c|_celsius|_gpu\w*|_mem\w*)?|util\w*"
    r"|mem(?:ory)?_(?:util|used|free|total|clock_)\w*|sm_clock\w*|clocks_\w+"
    r"|clock_(?:sm|graphics|mem)\w*"
    r"|graphics_clock\w*|pstate|performance_state|fan_speed|pcie_link_\w+|enforced_\w+",
    re.IGNORECASE,
)
"""Names that nvidia-smi has, or scripts make of them, and amd-smi has not."""


def is_of_nvidia(names: Sequence[str]) -> bool:
    """Whether columns below a header that begins like amd-smi's are NVIDIA's.

    Parameters
    ----------
    names
        All names of the header.
    """
    return any(_NVIDIA.fullmatch(name.strip()) for name in names)
