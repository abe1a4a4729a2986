"""Match of the kernels that two tools recorded, and the difference of their clocks.

Two profilers of one process see the same kernels start at the same times, but for the offset of
their clocks; in two runs of a program gaps and durations differ. So pairs of kernels are proposed,
by correlation ids, by order, or by the offset for which most rare kernels vote. They are accepted
if one offset (and a drift that clocks can have) explains the starts of nearly all kernels that both
tools recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.clocks import line as clock_line
from chopper_interop.clocks import pairs as clock_pairs
from chopper_interop.clocks import relations
from chopper_interop.clocks.line import Line, ProcessWork

_MAX_SPREAD_NS, _MIN_SPREAD_NS = 5_000, 500
"""Bounds of the tolerated median distance of starts; chosen: within what two tools' conversions of
one GPU clock differ by, and far below the gaps between kernels, which differ between runs."""
_SPREAD_OF_SPAN = 1e-4
"""Starts of one run agree to this share of its length, the drift of clocks (100 ppm); those of two
runs never do."""
_DURATION_TOLERANCE = 0.005
"""Durations of one kernel by two tools differ by less, as a share; chosen: below the scatter of a
kernel's durations between runs."""
_MIN_SHARE = 0.9
"""Share of the kernels in the time that both recorded that have to be pairs; chosen: tools drop
some kernels, and two runs pair few."""
_MIN_SHARE_OF_ALL = 0.5
"""Share of all kernels of the shorter record that have to be pairs; chosen: the majority."""
_NEARLY_ALL, _TIMES_MEDIAN = 0.8, 3
"""This share of pairs is at most so many times as far off as half of them may be; chosen: of normal
deviations, 80 % lie within twice the median deviation."""
_USER_TOLERANCE_NS = 50_000
"""Distance of kernels at the offset that the user states; chosen: that of `pairs`' last refinement,
as users know offsets to less than what tools record."""
_MIN_PAIRS, _MIN_VOTING_KERNELS = 3, 24
"""Fewer pairs by ids or order, and fewer kernels to vote, prove nothing unless the process is known
to be the same; chosen: two pairs always lie on a line, and few short kernels fit at many offsets."""


@dataclass(frozen=True)
class Match:
    """Work of one run that two tools recorded.

    Parameters
    ----------
    reference_rows, other_rows
        Rows of the same work in both records.
    line
        Brings times of the other record to those of the reference.
    method
        Name of the method in `relations` by which the offset was determined.
    pairs
        Number of pairs from which it is estimated.
    """

    reference_rows: Array
    other_rows: Array
    line: Line
    method: str
    pairs: int


def match_work(
    reference: ProcessWork, other: ProcessWork, *, same_process: bool = False
) -> Match | None:
    """Match two records of GPU work; None if they are not of one run.

    Parameters
    ----------
    reference, other
        What two tools recorded.
    same_process
        True if both state that they are of one process.
    """
    if not reference.start.size or not other.start.size:
        return None
    (a, order), (b, order_2) = in_order(reference), in_order(other)
    for method, propose in (
        (relations.CORRELATION_IDS, clock_pairs.pairs_by_correlation),
        (relations.MATCHED_KERNELS, clock_pairs.pairs_by_order),
        (relations.MATCHED_KERNELS, clock_pairs.pairs_by_votes),
    ):
        few = min(len(order), len(order_2)) < _MIN_VOTING_KERNELS
        if propose is clock_pairs.pairs_by_votes and few and not same_process:
            return None
        match = _verified_match(a, b, *propose(a, b), method, same_process=same_process)
        if match is not None:
            return replace(
                match,
                reference_rows=order[match.reference_rows],
                other_rows=order_2[match.other_rows],
            )
    return None


def match_on_one_clock(reference: ProcessWork, other: ProcessWork) -> Match | None:
    """Match two records that the user's offset has brought to one clock; None if they do not fit."""
    (a, order), (b, order_2) = in_order(reference), in_order(other)
    if not a.start.size or not b.start.size:
        return None
    i, j = clock_line.nearest_pairs(a, b, Line(0), _USER_TOLERANCE_NS)
    if not i.size or i.size < _required_pairs(a, b, Line(0)):
        return None
    line = clock_line.fit_line(a.start[i], b.start[j])
    return Match(order[i], order_2[j], line, relations.USER, len(i))


def in_order(work: ProcessWork) -> tuple[ProcessWork, Array]:
    """Work in the order of starts, itself if it is so already, with the row of each; what was sorted of it once stays."""
    order = np.argsort(work.start, kind="stable")
    is_in_order = np.array_equal(order, np.arange(len(order)))
    return work if is_in_order else work.select(order), order


def mean_distances_ns(
    reference: ProcessWork, other: ProcessWork, match: Match
) -> tuple[float, float]:
    """Mean distances of the starts, and of the durations, of the same work by both records."""
    i, j = match.reference_rows, match.other_rows
    starts = np.abs(reference.start[i] - match.line.apply(other.start[j]))
    return float(starts.mean()), float(np.abs(reference.dur[i] - other.dur[j]).mean())


def _required_pairs(reference: ProcessWork, other: ProcessWork, line: Line) -> float:
    """Number of pairs that two records of one run have at least."""
    shorter = min(len(reference.start), len(other.start))
    return max(_MIN_SHARE * _count_shared(reference, other, line), _MIN_SHARE_OF_ALL * shorter)


def _verified_match(
    reference: ProcessWork,
    other: ProcessWork,
    i: Array,
    j: Array,
    method: str,
    *,
    same_process: bool,
) -> Match | None:
    """Return the match that proposed pairs lead to; None if they are not of one run."""
    min_pairs = 1 if same_process else _MIN_PAIRS
    if len(i) < min_pairs or not _durations_agree(reference, other, i, j):
        return None
    line = clock_line.fit_line(reference.start[i], other.start[j])
    span = int(np.ptp(reference.start[i]))
    resolution = max(map(clock_line.resolution_ns, (reference.start, other.start)))
    max_spread = max(resolution // 2, _MIN_SPREAD_NS, int(span * _SPREAD_OF_SPAN))
    max_spread = min(max_spread, _MAX_SPREAD_NS)
    away = np.abs(reference.start[i] - line.apply(other.start[j]))
    too_wide = np.quantile(away, _NEARLY_ALL) > _TIMES_MEDIAN * max_spread
    if line.spread_ns > max_spread or too_wide:
        return None
    within = max(10 * line.spread_ns, 2 * _MIN_SPREAD_NS, 2 * resolution)
    rows, other_rows = clock_line.nearest_pairs(reference, other, line, within)
    if len(rows) < _required_pairs(reference, other, line):
        return None
    return Match(rows, other_rows, line, method, len(i))


def _durations_agree(reference: ProcessWork, other: ProcessWork, i: Array, j: Array) -> bool:
    """True if durations of the pairs agree, as those of two runs do not."""
    a, b = reference.dur[i], other.dur[j]
    resolution = max(map(clock_line.resolution_ns, (reference.dur, other.dur)))
    tolerance = np.maximum(
        max(2 * resolution, _MIN_SPREAD_NS), _DURATION_TOLERANCE * np.maximum(a, b)
    )
    away = np.abs(a - b) / tolerance
    return bool(np.median(away) <= 1 and np.quantile(away, _NEARLY_ALL) <= _TIMES_MEDIAN)


def _count_shared(reference: ProcessWork, other: ProcessWork, line: Line) -> int:
    """Number of kernels in the time that both recorded, by the record with fewer."""
    starts = (reference.start, line.apply(other.start))
    low, high = max(t.min() for t in starts), min(t.max() for t in starts)
    margin = 4 * _MAX_SPREAD_NS
    return min(int(np.count_nonzero((t >= low - margin) & (t <= high + margin))) for t in starts)
