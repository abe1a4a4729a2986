"""Bases of the times of a trace whose files state none.

PyTorch's times count from the start of three months, which ``baseTimeNanoseconds`` states: tools that
merge its files leave that out. Those of other tools count from the boot of the node. Next to telemetry
in real time, a trace can be at a few places only:

    real time    ──┬────────────────┬────────────────┬──────▶
                   └─ ▪ trace?      └─ ▪ trace?      └─ ▪ trace?
    telemetry                        ─────────
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from chopper_interop.schemas.meta import BOOTTIME, Offset
from chopper_interop.schemas.time_units import KINETO_BASE_NS

SINCE_1970_NS = 315_360_000 * 10**9
"""Ten years: no machine has been up for longer, and no profile dates from before 1980, so times
below it count from a boot or another base, times above it from 1970."""


class Base(NamedTuple):
    """A time that those of a trace may count from, in nanoseconds since 1970."""

    ns: int
    meaning: str


def is_unstated(trace: tuple[int, int], real: tuple[int, int]) -> bool:
    """True if times (first, last) of a trace are too small to count from 1970, as the others do."""
    return trace[1] < SINCE_1970_NS <= real[0]


def candidate_bases(
    trace: tuple[int, int], real: tuple[int, int], offsets: Iterable[Offset]
) -> list[Base]:
    """Return the bases with which a trace overlaps a recording in real time.

    Parameters
    ----------
    trace
        First and last time of the trace, nanoseconds since its base.
    real
        First and last time of the recording, nanoseconds since 1970.
    offsets
        Relations of other clocks of the node to real time, which the recording states.

    Returns
    -------
    list of Base
        One if the base is certain.
    """
    # the first and the last base with which one does not end before the other begins
    first = -(-(real[0] - trace[1]) // KINETO_BASE_NS)
    last = (real[1] - trace[0]) // KINETO_BASE_NS
    months = [
        Base(n * KINETO_BASE_NS, "a start of three months from which PyTorch counts")
        for n in range(first, last + 1)
    ]
    boots = [
        Base(offset.offset_ns, "the boot of the node")
        for offset in offsets
        if offset.clock == BOOTTIME and real[0] - trace[1] <= offset.offset_ns <= real[1] - trace[0]
    ]
    return months + boots
