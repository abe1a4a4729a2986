"""Devices that run one kernel at a time: what is ready on another stream waits until the one before has ended.

MTIA's cores are such: of 97 kernels of a recording on 12 streams no two overlap, and each that was ready while
another ran began 5 to 45 µs behind its end. GPUs are not: kernels that take turns may run at once when they are slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.edges.queues import Queues

_AT_ONCE_NS = 50_000
"""Latest start right behind another kernel. Measured on that recording: 6, 33 or, of four kernels, 45 µs."""
_MIN_HELD = 16
"""Kernels that must have waited for one of another stream. Chosen: independent streams do not meet so often without any
overlap."""
_AT_ONCE_SHARE = 0.9
"""Share of those that must have begun right behind it. Chosen: one of ten may wait for what was not recorded."""


#   stream a   [ kernel ]             [ ready |      ]       ready: launched, and the work before it on its stream
#   stream b              [ kernel            ] < at once     and all that it waits for has ended
def slots_of_exclusive_devices(
    trace: Trace, queues: Queues, ranks: Array, source: Array, target: Array
) -> tuple[Array, Array]:
    """Slots of kernels of devices that run one at a time, and of the next on the device if it is of another stream.

    Of some ranks; `source` and `target` are slots of known waits.
    """
    is_kernel = is_any(trace.array("kind")[queues.node], (Kind.KERNEL, Kind.COMM))
    slot = np.flatnonzero(is_kernel & np.isin(queues.rank, ranks)[queues.queue])
    _, device = gather.distinct(queues.rank[queues.queue], queues.device[queues.queue])
    slot = slot[np.lexsort((queues.start[slot], device[slot]))]
    before, after = slot[:-1], slot[1:]
    same = device[before] == device[after]
    before, after = before[same], after[same]
    lane = queues.lane[queues.queue]
    start, end = queues.start, queues.end
    ready = np.where(queues.call >= 0, queues.submit, np.iinfo(np.int64).min)
    np.maximum.at(ready, target, end[source])
    follows = np.flatnonzero(np.diff(lane, prepend=-1) == 0)  # slots of a queue go by its order
    ready[follows] = np.maximum(ready[follows], end[follows - 1])
    elsewhere = lane[before] != lane[after]
    held = elsewhere & (ready[after] < end[before])
    at_once = held & (start[after] - end[before] <= _AT_ONCE_NS)
    overlaps = end[before] > start[after]
    count = [np.bincount(device[after], of) for of in (overlaps, held, at_once)]
    exclusive = (count[0] == 0) & (count[1] >= _MIN_HELD) & (count[2] >= _AT_ONCE_SHARE * count[1])
    chosen = elsewhere & exclusive[device[after]]
    return before[chosen], after[chosen]
