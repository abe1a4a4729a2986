"""Memory that reading sources takes, estimated before anything is read.

What is read is held at once, with the columns that are made of it: a multiple of the unpacked files. The
multiple is `Converter.memory_ratio`. It was measured as the peak of ``chopper-convert`` less the 270 MB of
a process that reads next to nothing, over the bytes of the unpacked files:

===================================================  =======  =============
input, and what was written                          MB       ratio
===================================================  =======  =============
Kineto, misc/rank0 8 times: Perfetto; Parquet;       208      2.2; 2.4; 2.0
four analyses
Kineto, mi300x/resnet_act_checkpoint 12 times:       203      2.5
Perfetto
Kineto, both, 1.04 GB each: Perfetto                 1,040    2.0 to 2.2
Kineto, ddp_resnet_4rank_amd, fused; in four files   140; 46  1.3; 2.9
rocprofv3 JSON, v3_json_mi350x: Perfetto             38       1.1
Perfetto, made of the first: Parquet                 90       7.7
===================================================  =======  =============
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from chopper_interop.errors import TooLittleMemoryError
from chopper_interop.io import inputs, memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.sources import SourceFiles

_FEWER = "chopper-convert --ranks 0-3 and read(ranks=...) read some ranks alone; "


def needed_bytes(source: SourceFiles) -> float:
    """Estimate the memory that a source takes to be read and joined."""
    return source.converter.memory_ratio * sum(map(inputs.expected_bytes, source.paths))


def require_memory(sources: Sequence[SourceFiles]) -> None:
    """Raise `TooLittleMemoryError` if the sources need more memory than is available."""
    needed = sum(map(needed_bytes, sources))
    available = memory.available_bytes()
    if needed <= available:
        return
    several = len(sources) > 1
    files = f"these {len(sources)} sources" if several else "it"
    tenths = math.ceil(needed / 1e8) / 10
    raise TooLittleMemoryError(
        f"reading {files} takes about {tenths:,.1f} GB of memory, and {available / 1e9:,.1f} GB are there",
        path=None if several else sources[0].paths[0],
        hint=f"{_FEWER if several else ''}--max-memory {tenths} tries it all the same",
    )
