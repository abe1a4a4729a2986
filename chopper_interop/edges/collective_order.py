"""Collectives without sequence numbers: which of one rank is which of another, by their order.

All ranks of a group run the same collectives in the same order, but their windows may begin and
end at different ones, and training repeats itself: the order alone fits at several places. Of
these the right one is told by the ends, for all members of a collective end together: there the
differences of the two ranks' ends are all alike, whatever the offset of their clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import sequences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array

NOWHERE = np.iinfo(np.int64).min
"""The place of a collective that was not matched."""

SCATTER_NS = 1_000_000
"""Ends of what is matched rightly scatter by microseconds (3-5 on one node, 10 with CUPTI of 2023),
those of what is matched wrongly by the time between collectives, which is milliseconds."""
_WIDTHS_NS = (100_000, SCATTER_NS)
"""Ends that belong together differ by this at most, but for few, and where clocks drift."""
_EVERY_SHIFT = 512
"""For sequences up to this long all shifts are tried."""
_NEAR_EDGES, _FEW = 64, 8
_BLOCK = 256
"""So many collectives take seconds, in which clocks drift by no more than ends scatter."""
_LOOKED_AT = 4096
"""Differences of so many ends tell how they scatter."""
_ENOUGH = 3
"""Fewer differences than this scatter by chance."""
_ALIKE, _RESOLUTION_NS = 3, 2_000
"""Scatters within this factor of each other, or below the resolution, tell nothing apart."""
_HALF = 0.5
_STEEPEST = 1e-3
"""Clocks drift by less than this."""


@dataclass(frozen=True)
class Run:
    """The collectives of one rank in one group, in their order.

    Parameters
    ----------
    code
        Equal numbers for what can be the same collective.
    end
        When they ended, nanoseconds on any clock.
    together
        Whether all members of it end together.
    """

    code: Array
    end: Array
    together: Array


def places(ranks: Sequence[Run]) -> list[Array]:
    """Place of each collective on a line that all ranks share; `NOWHERE` of what has no match.

    Parameters
    ----------
    ranks
        What each rank ran. The longest is the one that the others are matched with.
    """
    longest = max(range(len(ranks)), key=lambda r: len(ranks[r].code))
    return [_place(ranks[longest], mine) for mine in ranks]


def _place(reference: Run, mine: Run) -> Array:
    if mine is reference:
        return np.arange(len(mine.code))
    shift = _shift(reference, mine)
    shifted, known = np.full(len(mine.code), NOWHERE), None
    if shift is not None and _agrees(reference, mine, every := np.arange(len(shifted)) + shift):
        if _near(reference, mine, every) == len(_matched(reference, mine, every)[0]):
            return every
        shifted, known = every, shift
    if min(np.count_nonzero(r.together) for r in (reference, mine)) >= _ENOUGH:
        shifts = _shifts(len(reference.code), len(mine.code), known)
        equals = _equals(reference, mine, shifts)
        found = [shifted, *(_voted(reference, mine, equals, width) for width in _WIDTHS_NS)]
        return max(found, key=lambda place: _near(reference, mine, place))
    if shift is not None:
        return shifted
    place = sequences.align(mine.code, reference.code)
    enough = np.count_nonzero(place >= 0) >= _HALF * min(len(place), len(reference.code))
    return np.where((place >= 0) & enough, place, NOWHERE)


def _near(reference: Run, mine: Run, place: Array) -> int:
    """How many ends differ by what the median one does, as closely as ends do."""
    rows, difference = _matched(reference, mine, place)
    if not len(rows):
        return 0
    middle = int(np.median(difference))
    steady = (difference - middle).astype(np.float64)
    steady -= _slope(mine.end[rows], steady) * (mine.end[rows] - mine.end[rows[0]])
    return int(np.count_nonzero(np.abs(steady - np.median(steady)) <= _WIDTHS_NS[0]))


def _voted(reference: Run, mine: Run, equals: tuple[Array, Array, Array], width_ns: int) -> Array:
    """Places where ends differ by what most pairs of equal collectives differ by.

    So one that a rank lacks in between does not matter. Each block has a vote of its own, for
    clocks drift.
    """
    place = np.full(len(mine.code), NOWHERE)
    blocks = [*range(0, max(len(place) - _BLOCK // 2, 1), _BLOCK), len(place)]
    for start, stop in pairwise(blocks):
        low, high = np.searchsorted(equals[0], [start, stop])
        at, to, difference = (column[low:high] for column in equals)
        most = int(np.count_nonzero(mine.together[start:stop]))
        away = _away(difference, width_ns, _HALF * min(most, len(reference.code)))
        order = np.argsort(-away, kind="stable")
        order = order[away[order] <= width_ns]
        place[at[order]] = to[order]  # of several the nearest is written last
    rows = np.flatnonzero(place != NOWHERE)
    if rows.size:
        rows = rows[sequences.chain(place[rows])]
    return _between(reference, mine, rows, place[rows]) if rows.size else place


def _away(difference: Array, width_ns: int, fewest: float) -> Array:
    """How far each is from what most of them are near to; far if there is no such thing."""
    bins, counts = np.unique(difference // width_ns, return_counts=True)
    beside = np.searchsorted(bins, bins + 1)
    follows = np.append(bins, bins[-1:] + 2)[beside] == bins + 1
    both = counts + np.where(follows, np.append(counts, 0)[beside], 0)
    if both.max(initial=0) < max(fewest, 1):
        return np.full(len(difference), width_ns + 1)
    best = bins[both.argmax()]
    voted = (difference // width_ns == best) | (difference // width_ns == best + 1)
    return np.abs(difference - int(np.median(difference[voted])))


def _equals(reference: Run, mine: Run, shifts: list[int]) -> tuple[Array, Array, Array]:
    """Pairs of equal collectives that end together, in order of `mine`.

    Returns
    -------
    at, to, difference
        Places in `mine` and in the reference, and differences of ends.
    """
    n, m = len(reference.code), len(mine.code)
    found = []
    for shift in shifts:
        low, high = max(0, shift), min(n, m + shift)
        equal = reference.code[low:high] == mine.code[low - shift : high - shift]
        to = np.flatnonzero(equal & reference.together[low:high]) + low
        found.append((to - shift, to))
    at, to = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(at, kind="stable")
    at, to = at[order], to[order]
    return at, to, reference.end[to] - mine.end[at]


def _between(reference: Run, mine: Run, rows: Array, to: Array) -> Array:
    """Places of what is known, and of all that lies between two of them at the same distance."""
    place = np.full(len(mine.code), NOWHERE)
    every = np.arange(len(place))
    behind = np.searchsorted(rows, every)
    inside = (behind > 0) & (behind < len(rows))
    after = np.clip(behind, 0, len(rows) - 1)
    shift = (to - rows)[after]
    same = inside & (shift == (to - rows)[after - 1])
    same[same] &= mine.code[same] == reference.code[(every + shift)[same]]
    place[same] = (every + shift)[same]
    place[rows] = to
    return place


def _shift(reference: Run, mine: Run) -> int | None:
    """By how many collectives the reference began earlier; None if no shift fits throughout."""
    fitting = [s for s in _shifts(len(reference.code), len(mine.code)) if _fits(reference, mine, s)]
    if not fitting:
        return None
    longest = _overlap(reference, mine, fitting[0])
    fitting = [s for s in fitting if _overlap(reference, mine, s) >= _HALF * longest]
    told = [spread(*_differences(reference, mine, s)) for s in fitting]
    least = min(scatter for _, scatter in told)
    if not np.isfinite(least):
        return fitting[0]
    alike = max(_ALIKE * least, _RESOLUTION_NS)
    near = [(abs(m), s) for (m, scatter), s in zip(told, fitting, strict=True) if scatter <= alike]
    # of shifts that fit alike, as of steps of equal length, one at which clocks agree is right
    return min(near)[1] if min(near)[0] <= SCATTER_NS else near[0][1]


def _shifts(n: int, m: int, known: int | None = None) -> list[int]:
    """Shifts of m against n that are worth a look, those with the longest overlap first."""
    if max(n, m) <= _EVERY_SHIFT:
        every = range(-m + 1, n)
    elif known is not None:  # but for a few that are missing
        every = range(max(known - _FEW, -m + 1), min(known + _FEW, n - 1) + 1)
    else:
        low, high = min(0, n - m), max(0, n - m)
        every = range(max(low - _NEAR_EDGES, -m + 1), min(high + _NEAR_EDGES, n - 1) + 1)
    # of equally long ones the common ending is preferred: windows begin at different moments
    return sorted(every, key=lambda s: (-(min(n, m + s) - max(0, s)), abs(s - (n - m))))


def _overlap(reference: Run, mine: Run, shift: int) -> int:
    return min(len(reference.code), len(mine.code) + shift) - max(0, shift)


def _fits(reference: Run, mine: Run, shift: int) -> bool:
    """Whether all that overlaps is equal, and it is half of the shorter one at least."""
    n, m = len(reference.code), len(mine.code)
    low, high = max(0, shift), min(n, m + shift)
    if high - low < max(1, _HALF * min(n, m)):
        return False
    some = min(high, low + _NEAR_EDGES)
    return np.array_equal(
        reference.code[low:some], mine.code[low - shift : some - shift]
    ) and np.array_equal(reference.code[low:high], mine.code[low - shift : high - shift])


def _differences(reference: Run, mine: Run, shift: int) -> tuple[Array, Array]:
    low, high = max(0, shift), min(len(reference.code), len(mine.code) + shift)
    used = np.flatnonzero(reference.together[low:high])
    used = used[:: max(1, len(used) // _LOOKED_AT)] + low
    end = mine.end[used - shift]
    return end, reference.end[used] - end


def spread(at: Array, difference: Array) -> tuple[int, float]:
    """Median of differences, and their median deviation from a line; infinite of too few."""
    if len(difference) < _ENOUGH:
        return 0, np.inf
    middle = int(np.median(difference))
    left = (difference - middle).astype(np.float64)
    left -= _slope(at, left) * (at - at[0])
    return middle, float(np.median(np.abs(left - np.median(left))))


def _slope(at: Array, left: Array) -> float:
    """Drift of differences: the median slope of pairs half of all apart, as far as clocks drift."""
    half = len(at) // 2
    run, rise = at[half:] - at[: len(at) - half], left[half:] - left[: len(at) - half]
    if not (run > 0).any():
        return 0.0
    return float(np.clip(np.median(rise[run > 0] / run[run > 0]), -_STEEPEST, _STEEPEST))


def _matched(reference: Run, mine: Run, place: Array) -> tuple[Array, Array]:
    """Which of `mine` have a counterpart that ends together with them, and differences of ends."""
    there = (place >= 0) & (place < len(reference.code))
    rows = np.flatnonzero(there)
    rows = rows[reference.together[place[rows]]]
    return rows, reference.end[place[rows]] - mine.end[rows]


def _agrees(reference: Run, mine: Run, place: Array) -> bool:
    """Whether ends do not deny the match; too few of them do not."""
    rows, difference = _matched(reference, mine, place)
    _, scatter = spread(mine.end[rows], difference)
    return not np.isfinite(scatter) or scatter <= SCATTER_NS
