"""Matching of collectives without sequence numbers: the same collective on two ranks, by order.

All ranks of a group run the same collectives in the same order, but their windows may begin and end
at different ones. Training repeats itself, so that the order alone fits at several offsets. The ends
decide which offset is right: all members of a collective end together, so that there the differences
between the two ranks' ends are all alike, whatever the offset of their clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from chopper_interop.arrays import Array, sequences, statistics

UNMATCHED = np.iinfo(np.int64).min
"""The position of a collective that was not matched."""

MAX_END_SCATTER_NS = 1_000_000
"""Ends of rightly matched collectives scatter by microseconds (measured: 3-5 on one node, 10 with
CUPTI of 2023), those of wrongly matched ones by the time between collectives, which is milliseconds."""
_TOLERANCES_NS = (100_000, MAX_END_SCATTER_NS)
"""Differences of ends that agree within this belong together: the first is 10x the measured scatter,
the second allows for a few outliers, and for clocks that drift."""
_TRY_ALL_SHIFTS = 512
"""Chosen: all shifts are tried for sequences up to this length: at most 1,023 comparisons."""
_MAX_EXTRA_SHIFT, _MAX_MISSING = 64, 8
"""Chosen, for longer sequences: collectives by which windows differ at either side, and collectives
missing in between around a shift that is known."""
_BLOCK = 256
"""Chosen: so many collectives take seconds, in which clocks drift by no more than ends scatter."""
_MAX_SAMPLES = 4096
"""Chosen: so many differences of ends are enough for their median deviation."""
_MIN_SAMPLES = 3
"""Fewer differences than this agree or differ by chance."""
_MESSAGE_SCATTER_NS, _MIN_MESSAGES = 10_000, 5
"""Ends of messages scatter by as much, where sends wait for their receives (measured, see above); and
chosen: so many agree by chance only where steps repeat themselves as closely."""
_SAME_SCATTER_FACTOR, _RESOLUTION_NS = 3, 2_000
"""Scatters within this factor of each other, or below twice the resolution of 1 µs that old profilers
have, do not distinguish two shifts."""
_HALF = 0.5
_MAX_DRIFT = 1e-3
"""Chosen: clocks drift by less than this. Quartz oscillators are off by up to 1e-4; this is 10x."""


@dataclass(frozen=True)
class RankSequence:
    """The collectives of one rank in one group, in their order.

    Parameters
    ----------
    code
        Equal numbers for what can be the same collective.
    end
        When they ended, nanoseconds on any clock.
    together
        True if all members of the collective end together.
    """

    code: Array
    end: Array
    together: Array


def match_by_order(ranks: Sequence[RankSequence]) -> list[Array]:
    """Position of each collective in an order that all ranks share; `UNMATCHED` if it has none.

    Parameters
    ----------
    ranks
        Collectives of each rank. The longest sequence is the reference that the others are matched
        with; positions are its indices, and may lie outside of it.
    """
    reference = max(ranks, key=lambda r: len(r.code))
    fitting: dict[bytes, list[int]] = {}  # of equal sequences, as those of most ranks are

    def positions(sequence: RankSequence) -> Array:
        if sequence is reference:
            return np.arange(len(sequence.code))
        key = sequence.code.tobytes()
        if key not in fitting:
            fitting[key] = _fitting_shifts(reference, sequence)
        return _positions(reference, sequence, fitting[key])

    return [positions(sequence) for sequence in ranks]


def match_messages(sent: RankSequence, received: RankSequence, send_start: Array) -> list[Array]:
    """Position of each send and of each receive of two ranks in an order that both share.

    Where sends end with their receives, the ends decide. The end of a send that is buffered means
    nothing: if ends agree at no shift, that one is taken at which the fewest receives end before
    their send begins, and of several the one at which messages take the least time.

    Parameters
    ----------
    sent, received
        Messages from one rank to another, as each end has them.
    send_start
        When the sends began, nanoseconds on the clock of their ends.
    """
    shifts = _fitting_shifts(sent, received)
    if not shifts:
        return match_by_order([sent, received])
    rows = np.arange(len(received.code))
    agreeing = [s for s in shifts if _all_ends_agree(sent, received, rows + s)]
    best = (
        _best_shift(sent, received, agreeing)
        if agreeing
        else min(shifts, key=lambda s: _early_and_delay(send_start, received.end, s))
    )
    return [np.arange(len(sent.code)), rows + best]


def _early_and_delay(start: Array, end: Array, shift: int) -> tuple[int, float]:
    """Number of receives that end before their send starts, and the median time from its start to their end."""
    low, high = max(0, shift), min(len(start), len(end) + shift)
    delay = end[low - shift : high - shift] - start[low:high]
    return int(np.count_nonzero(delay < 0)), float(np.median(delay))


def _all_ends_agree(reference: RankSequence, sequence: RankSequence, position: Array) -> bool:
    """Return true if so many ends agree, and so well, that it is hardly by chance."""
    compared = len(_end_differences(reference, sequence, position)[0])
    agreeing = _count_agreeing(reference, sequence, position, _MESSAGE_SCATTER_NS)
    return compared >= _MIN_MESSAGES and agreeing == compared


def _positions(reference: RankSequence, sequence: RankSequence, fitting: list[int]) -> Array:
    """Position in the reference of each collective of a sequence, of which some shifts fit throughout.

    A shift that fits throughout is taken if all ends agree. Otherwise blocks of the sequence vote
    for differences of ends, and the candidate with which most ends agree is taken. Where too few
    collectives end together for that, only the order is left.
    """
    few = min(np.count_nonzero(r.together) for r in (reference, sequence)) < _MIN_SAMPLES
    shift = _best_shift(reference, sequence, fitting) if fitting else None
    shifted, known_shift = np.full(len(sequence.code), UNMATCHED), None
    if shift is not None:
        all_shifted = np.arange(len(shifted)) + shift
        if few:  # no ends that could contradict
            return all_shifted
        if _ends_agree(reference, sequence, all_shifted):
            matches = len(_end_differences(reference, sequence, all_shifted)[0])
            if _count_agreeing(reference, sequence, all_shifted) == matches:
                return all_shifted
            shifted, known_shift = all_shifted, shift
    if not few:
        shifts = _candidate_shifts(len(reference.code), len(sequence.code), known_shift)
        pairs = _equal_pairs(reference, sequence, shifts)
        candidates = [
            shifted,
            *(_vote_by_block(reference, sequence, pairs, width) for width in _TOLERANCES_NS),
        ]
        return max(candidates, key=lambda c: _count_agreeing(reference, sequence, c))
    position = sequences.align(sequence.code, reference.code)
    matched = position >= 0
    enough = np.count_nonzero(matched) >= _HALF * min(len(position), len(reference.code))
    return np.where(matched & enough, position, UNMATCHED)


def _count_agreeing(
    reference: RankSequence,
    sequence: RankSequence,
    position: Array,
    tolerance_ns: int = _TOLERANCES_NS[0],
) -> int:
    """Count the ends that differ as the median one does, but for a drift of clocks."""
    rows, difference = _end_differences(reference, sequence, position)
    if not len(rows):
        return 0
    median = int(np.median(difference))
    residual = (difference - median).astype(np.float64)
    end = sequence.end[rows]
    residual -= _drift(end, residual) * (end - end[0])
    return int(np.count_nonzero(np.abs(residual - np.median(residual)) <= tolerance_ns))


def _vote_by_block(
    reference: RankSequence,
    sequence: RankSequence,
    pairs: tuple[Array, Array, Array],
    width_ns: int,
) -> Array:
    """Positions at which ends differ by what most pairs of equal collectives differ by.

    So a collective that one rank lacks in between does not matter. Each block has a vote of its own,
    because clocks drift.
    """
    position = np.full(len(sequence.code), UNMATCHED)
    blocks = [*range(0, max(len(position) - _BLOCK // 2, 1), _BLOCK), len(position)]
    for start, stop in pairwise(blocks):
        low, high = np.searchsorted(pairs[0], [start, stop])
        row, to, difference = (column[low:high] for column in pairs)
        max_votes = int(np.count_nonzero(sequence.together[start:stop]))
        min_votes = _HALF * min(max_votes, len(reference.code))
        distance = _distance_to_mode(difference, width_ns, min_votes)
        order = np.argsort(-distance, kind="stable")
        order = order[distance[order] <= width_ns]
        position[row[order]] = to[order]  # of several the nearest is written last
    rows = np.flatnonzero(position != UNMATCHED)
    if rows.size:
        rows = rows[sequences.longest_ascending(position[rows])]
    return _fill_between(reference, sequence, rows, position[rows]) if rows.size else position


def _distance_to_mode(difference: Array, width_ns: int, min_votes: float) -> Array:
    """Distance of each difference from the most frequent one; more than the width if none is.

    The mode is searched in pairs of neighbouring bins, so that a cluster on the border of two bins
    is not divided.
    """
    bins, counts = np.unique(difference // width_ns, return_counts=True)
    next_bin = np.searchsorted(bins, bins + 1)
    has_next = np.append(bins, bins[-1:] + 2)[next_bin] == bins + 1
    pair_counts = counts + np.where(has_next, np.append(counts, 0)[next_bin], 0)
    if pair_counts.max(initial=0) < max(min_votes, 1):
        return np.full(len(difference), width_ns + 1)
    mode = bins[pair_counts.argmax()]
    in_mode = (difference // width_ns == mode) | (difference // width_ns == mode + 1)
    return np.abs(difference - int(np.median(difference[in_mode])))


def _equal_pairs(
    reference: RankSequence, sequence: RankSequence, shifts: list[int]
) -> tuple[Array, Array, Array]:
    """Pairs of equal collectives that end together, ordered by row of `sequence`.

    Returns
    -------
    row, to, difference
        Indices in `sequence` and in the reference, and differences of ends.
    """
    n, m = len(reference.code), len(sequence.code)
    parts = []
    for shift in shifts:
        low, high = max(0, shift), min(n, m + shift)
        equal = reference.code[low:high] == sequence.code[low - shift : high - shift]
        to = np.flatnonzero(equal & reference.together[low:high]) + low
        parts.append((to - shift, to))
    row, to = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(row, kind="stable")
    row, to = row[order], to[order]
    return row, to, reference.end[to] - sequence.end[row]


def _fill_between(reference: RankSequence, sequence: RankSequence, rows: Array, to: Array) -> Array:
    """Positions of matched rows, and of all equal rows between two of them with the same shift."""
    position = np.full(len(sequence.code), UNMATCHED)
    every = np.arange(len(position))
    next_match = np.searchsorted(rows, every)
    inside = (next_match > 0) & (next_match < len(rows))
    after = np.clip(next_match, 0, len(rows) - 1)
    shift = (to - rows)[after]
    same = inside & (shift == (to - rows)[after - 1])
    same[same] &= sequence.code[same] == reference.code[(every + shift)[same]]
    position[same] = (every + shift)[same]
    position[rows] = to
    return position


def _fitting_shifts(reference: RankSequence, sequence: RankSequence) -> list[int]:
    """Shifts that fit throughout and overlap by half of the longest overlap, the longest first."""
    shifts = _candidate_shifts(len(reference.code), len(sequence.code))
    fitting = [s for s in shifts if _fits(reference, sequence, s)]
    longest = _overlap_length(reference, sequence, fitting[0]) if fitting else 0
    return [s for s in fitting if _overlap_length(reference, sequence, s) >= _HALF * longest]


def _best_shift(reference: RankSequence, sequence: RankSequence, fitting: list[int]) -> int:
    """The one of the shifts that fit at which ends agree best."""
    if len(fitting) == 1:
        return fitting[0]
    measured = [_median_and_scatter(*_sampled_differences(reference, sequence, s)) for s in fitting]
    min_scatter = min(scatter for _, scatter in measured)
    if not np.isfinite(min_scatter):
        return fitting[0]
    same_scatter = max(_SAME_SCATTER_FACTOR * min_scatter, _RESOLUTION_NS)
    equally_good = [
        (abs(median), s)
        for (median, scatter), s in zip(measured, fitting, strict=True)
        if scatter <= same_scatter
    ]
    # if several shifts fit equally well (steps of equal length), the one at which clocks agree is right
    closest = min(equally_good)
    return closest[1] if closest[0] <= MAX_END_SCATTER_NS else equally_good[0][1]


def _candidate_shifts(n: int, m: int, known_shift: int | None = None) -> list[int]:
    """Shifts of m against n collectives that are tried, those with the longest overlap first."""
    if max(n, m) <= _TRY_ALL_SHIFTS:
        shifts = range(-m + 1, n)
    elif known_shift is not None:
        shifts = range(
            max(known_shift - _MAX_MISSING, -m + 1), min(known_shift + _MAX_MISSING, n - 1) + 1
        )
    else:
        low, high = min(0, n - m), max(0, n - m)
        shifts = range(max(low - _MAX_EXTRA_SHIFT, -m + 1), min(high + _MAX_EXTRA_SHIFT, n - 1) + 1)
    # of equally long ones the common ending is preferred: windows begin at different times
    return sorted(shifts, key=lambda s: (-(min(n, m + s) - max(0, s)), abs(s - (n - m))))


def _overlap_length(reference: RankSequence, sequence: RankSequence, shift: int) -> int:
    return min(len(reference.code), len(sequence.code) + shift) - max(0, shift)


def _fits(reference: RankSequence, sequence: RankSequence, shift: int) -> bool:
    """Return true if all that overlaps is equal, and it is half of the shorter one at least."""
    n, m = len(reference.code), len(sequence.code)
    low, high = max(0, shift), min(n, m + shift)
    if high - low < max(1, _HALF * min(n, m)):
        return False
    first_part = min(high, low + _MAX_EXTRA_SHIFT)  # compared first: most shifts differ there
    return np.array_equal(
        reference.code[low:first_part], sequence.code[low - shift : first_part - shift]
    ) and np.array_equal(reference.code[low:high], sequence.code[low - shift : high - shift])


def _sampled_differences(
    reference: RankSequence, sequence: RankSequence, shift: int
) -> tuple[Array, Array]:
    """Ends in the sequence, and differences to those in the reference, of a sample of a shift."""
    low, high = max(0, shift), min(len(reference.code), len(sequence.code) + shift)
    sample = np.flatnonzero(reference.together[low:high])
    sample = sample[:: max(1, len(sample) // _MAX_SAMPLES)] + low
    end = sequence.end[sample - shift]
    return end, reference.end[sample] - end


def _median_and_scatter(at: Array, difference: Array) -> tuple[int, float]:
    """Median of differences, and their median deviation from a line; infinite if too few."""
    if len(difference) < _MIN_SAMPLES:
        return 0, np.inf
    median = int(np.median(difference))
    residual = (difference - median).astype(np.float64)
    residual -= _drift(at, residual) * (at - at[0])
    return median, float(np.median(np.abs(residual - np.median(residual))))


def _drift(at: Array, residual: Array) -> float:
    """Slope of differences over time: the median slope of pairs half of all apart, clipped."""
    slope = statistics.median_slope(at, residual, [max(1, len(at) // 2)])
    return float(np.clip(slope, -_MAX_DRIFT, _MAX_DRIFT))


def _end_differences(
    reference: RankSequence, sequence: RankSequence, position: Array
) -> tuple[Array, Array]:
    """Rows of the sequence whose counterpart ends together with them, and differences of ends."""
    inside = (position >= 0) & (position < len(reference.code))
    rows = np.flatnonzero(inside)
    rows = rows[reference.together[position[rows]]]
    return rows, reference.end[position[rows]] - sequence.end[rows]


def _ends_agree(reference: RankSequence, sequence: RankSequence, position: Array) -> bool:
    """Return true unless ends contradict the match; too few of them do not."""
    rows, difference = _end_differences(reference, sequence, position)
    _, scatter = _median_and_scatter(sequence.end[rows], difference)
    return not np.isfinite(scatter) or scatter <= MAX_END_SCATTER_NS
