"""Whether two tools recorded the same kernels, and by how much their clocks differ.

Two profilers of one process see the same kernels start at the same times, but for the offset of
their clocks; in two runs of a program gaps and durations differ. So pairs of kernels are sought,
by correlation ids, by order, or by the offset for which most rare kernels vote, and believed if
one offset (and a drift that clocks have) explains the starts of nearly all that both recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.clocks import line as clock_line
from chopper_interop.clocks import pairs as clock_pairs
from chopper_interop.clocks import relations
from chopper_interop.clocks.line import Line

if TYPE_CHECKING:
    from chopper_interop.clocks.line import Work
    from chopper_interop.columns.types import Array

_MOST_SPREAD_NS, _LEAST_SPREAD_NS = 5_000, 500
_SPREAD_OF_SPAN = 1e-4
"""Starts of one run agree to this share of its length; those of two runs never do."""
_ALIKE = 0.005
"""Durations of one kernel by two tools differ by less, as a share."""
_SHARE = 0.9
"""Of the kernels in the time that both recorded so many must be pairs."""
_SHARE_OF_ALL = 0.5
"""Of all kernels of who recorded fewer."""
_NEARLY_ALL, _TIMES = 0.8, 3
"""This share of pairs is at most so many times as far off as half of them may be."""
_TOLD_NEAR_NS = 50_000
"""So near must kernels be of which the user says how clocks relate."""
_FEWEST, _FEWEST_SOUGHT = 3, 24
"""So few pairs prove nothing, unless the process is known to be the same: such that ids or order
give, and such that were sought."""


@dataclass(frozen=True)
class Match:
    """That two tools recorded one run.

    Parameters
    ----------
    ours, theirs
        Places in both of what is the same.
    line
        What brings their times to ours.
    method
        How the offset was found, a name of `clocks`.
    pairs
        How many pairs it is estimated from.
    """

    ours: Array
    theirs: Array
    line: Line
    method: str
    pairs: int


def match(ours: Work, theirs: Work, *, same_process: bool = False) -> Match | None:
    """How two records of kernels fit together; None if they are not of one run.

    Parameters
    ----------
    ours, theirs
        What two tools recorded.
    same_process
        Whether both say that they are of one process.
    """
    if not ours.start.size or not theirs.start.size:
        return None
    order, order_2 = (np.argsort(w.start, kind="stable") for w in (ours, theirs))
    a, b = ours.part(order), theirs.part(order_2)
    for method, pairs in (
        (relations.CORRELATION_IDS, clock_pairs.by_correlation),
        (relations.MATCHED_KERNELS, clock_pairs.in_order),
        (relations.MATCHED_KERNELS, clock_pairs.sought),
    ):
        few = min(len(order), len(order_2)) < _FEWEST_SOUGHT
        if pairs is clock_pairs.sought and few and not same_process:
            return None
        found = _whole(a, b, *pairs(a, b), method, same_process=same_process)
        if found is not None:
            return replace(found, ours=order[found.ours], theirs=order_2[found.theirs])
    return None


def as_told(ours: Work, theirs: Work) -> Match | None:
    """How two records fit on the clock on which they are; None if they do not.

    Parameters
    ----------
    ours, theirs
        What two tools recorded, brought to one clock by what somebody says of it.
    """
    order, order_2 = (np.argsort(w.start, kind="stable") for w in (ours, theirs))
    a, b = ours.part(order), theirs.part(order_2)
    if not a.start.size or not b.start.size:
        return None
    i, j = clock_line.nearest(a, b, Line(0), _TOLD_NEAR_NS)
    if not i.size or i.size < max(_SHARE * _shared(a, b, Line(0)), _SHARE_OF_ALL * _fewer(a, b)):
        return None
    line = clock_line.fit(a.start[i], b.start[j])
    return Match(order[i], order_2[j], line, relations.USER, len(i))


def _fewer(ours: Work, theirs: Work) -> int:
    return min(len(ours.start), len(theirs.start))


def _whole(
    ours: Work, theirs: Work, i: Array, j: Array, method: str, *, same_process: bool
) -> Match | None:
    """The match that pairs lead to, if they are of one run."""
    fewest = 1 if same_process else _FEWEST
    if len(i) < fewest or not _alike(ours, theirs, i, j):
        return None
    line = clock_line.fit(ours.start[i], theirs.start[j])
    span = int(np.ptp(ours.start[i]))
    grain = max(clock_line.grain(ours.start), clock_line.grain(theirs.start))
    most = max(grain // 2, _LEAST_SPREAD_NS, int(span * _SPREAD_OF_SPAN))
    most = min(most, _MOST_SPREAD_NS)
    off = np.abs(ours.start[i] - line.applied(theirs.start[j]))
    if line.spread_ns > most or np.quantile(off, _NEARLY_ALL) > _TIMES * most:
        return None
    both = clock_line.nearest(
        ours, theirs, line, max(10 * line.spread_ns, 2 * _LEAST_SPREAD_NS, 2 * grain)
    )
    least = max(_SHARE * _shared(ours, theirs, line), _SHARE_OF_ALL * _fewer(ours, theirs))
    if len(both[0]) < least:
        return None
    return Match(*both, line, method, len(i))


def _alike(ours: Work, theirs: Work, i: Array, j: Array) -> bool:
    """Whether durations agree, as those of two runs do not."""
    a, b = ours.dur[i], theirs.dur[j]
    grain = max(clock_line.grain(ours.dur), clock_line.grain(theirs.dur))
    allowed = np.maximum(max(2 * grain, _LEAST_SPREAD_NS), _ALIKE * np.maximum(a, b))
    off = np.abs(a - b) / allowed
    return bool(np.median(off) <= 1 and np.quantile(off, _NEARLY_ALL) <= _TIMES)


def _shared(ours: Work, theirs: Work, line: Line) -> int:
    """How many kernels there are in the time that both recorded, by who recorded fewer."""
    moved = line.applied(theirs.start)
    low, high = max(ours.start.min(), moved.min()), min(ours.start.max(), moved.max())
    slack = 4 * _MOST_SPREAD_NS
    inside = [
        int(np.count_nonzero((t >= low - slack) & (t <= high + slack))) for t in (ours.start, moved)
    ]
    return min(inside)
