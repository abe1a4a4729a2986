"""Checks of samples that are counted and not mended: clocks that step back, impossible values.

Tools that print the wall clock repeat an hour when summer time ends, and go back where the clock
is set. Such rows keep their time, for nothing shows by how much the clock was off. Limits of
values are far beyond what any GPU reaches, so that only a garbled value, a wrong unit or a counter
that was reset lies outside.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.converters.sampling.timestamps import SECOND
from chopper_interop.issues import Fault, IssueLog

TOLERANCE_NS = SECOND
"""Smaller steps back come from the order in which rows were written, or from whole seconds."""

_NEVER = -(1 << 62)
"""In front of all times."""

STEPPED_BACK = Fault.error(
    "clock-stepped-back",
    "Rows have times more than 1 s before that of an earlier row of the same "
    "GPU: the clock was set back (summer time ended, or it was corrected), or files were put "
    "together out of order. They keep the times that were written. For a wall clock, -O tz=<zone> "
    "may resolve the repeated hour where the format has that option.",
)
IMPOSSIBLE = Fault.error(
    "value-impossible",
    "Samples that no machine can reach (negative power, clocks over 100 GHz, "
    "power over 100 kW, 200 % and more) were taken as they are: check the tool that wrote them.",
)

LIMITS: dict[str, tuple[float, float]] = {
    "W": (0.0, 1e5), "MHz": (0.0, 1e5), "%": (0.0, math.nextafter(200.0, 0.0)),
    "°C": (-273.15, 1e4), "J": (0.0, math.inf), "B": (0.0, math.inf), "s": (0.0, math.inf),
}  # fmt: skip
"""Unit of a lane → smallest and largest possible value. Chosen: two orders of magnitude beyond
today's GPUs (about 1 kW and 3 GHz), so that no real value is reported."""

LIMITS_BY_NAME: tuple[tuple[str, tuple[float, float]], ...] = (
    (r"GFX busy accumulated.*", (0.0, math.inf)),
    (r".*overdrive.*", (-100.0, math.inf)),
    (r".*fan .*", (0.0, math.inf)),
    (r"duration of .*", (math.nextafter(0.0, 1.0), math.inf)),
)
"""Lanes with other limits than their unit's: sums, settings, fans beyond their rated speed, and
durations, which are never 0."""


def note_clock_steps(time: Array, owner: Array, issues: IssueLog, where: str = "") -> None:
    """Count rows that are earlier than a row above them of the same GPU.

    Parameters
    ----------
    time
        Nanoseconds, rows in the order of the file.
    owner
        Number of the GPU, or of the part of one, that each row is of, from 0.
    issues
        Where they are counted.
    where
        Text in front of the example.
    """
    if not len(time):
        return
    latest = np.full(int(owner.max()) + 1, _NEVER, np.int64)
    count, row, behind = _count_steps(time, owner, latest)
    if count:
        example = f"row {row + 1} of those with a time is {behind / SECOND:.3f} s back"
        issues.add(STEPPED_BACK, count, f"{where}: {example}" if where else example)


@jit_in_place
def _count_steps(time: Array, owner: Array, latest: Array) -> tuple[int, int, int]:
    """Count rows that are behind an earlier one of their owner; return the first, and how far it is, too.

    Compiled: numpy sorts by owner and makes five arrays of all rows.
    """
    count, first, first_behind = 0, 0, np.int64(0)
    for row in range(len(time)):
        behind = latest[owner[row]] - time[row]
        if behind > TOLERANCE_NS:
            if not count:
                first, first_behind = row, behind
            count += 1
        latest[owner[row]] = max(latest[owner[row]], time[row])
    return count, first, first_behind


def note_impossible_values(name: str, unit: str, value: Array, issues: IssueLog) -> None:
    """Count samples of a lane that lie outside its limits.

    Parameters
    ----------
    name, unit
        Name and unit of the lane.
    value
        Its samples.
    issues
        Where they are counted.
    """
    if unit not in LIMITS:
        return
    low, high = _limits(name, unit)
    outside = (value < low) | (value > high)
    if outside.any():
        example = f"{name}: {value[outside][0]:g} {unit}"
        issues.add(IMPOSSIBLE, np.count_nonzero(outside), example)


@lru_cache(maxsize=1024)  # each GPU of each file has lanes of the same names
def _limits(name: str, unit: str) -> tuple[float, float]:
    by_name = (limits for pattern, limits in LIMITS_BY_NAME if re.fullmatch(pattern, name))
    return next(by_name, LIMITS[unit])
