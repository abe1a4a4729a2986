"""Collectives without sequence numbers: which of one rank is which of another, by their order.

All ranks of a group run the same collectives in the same order, but their windows may begin and
end at different ones, and training repeats itself: the order alone fits at several places. Of
these the right one is told by the ends, for all members of a collective end together: there the
differences of the two ranks' ends are all alike, whatever the offset of their clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import sequences

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]

NOWHERE = np.iinfo(np.int64).min
"""The place of a collective that was not matched."""

SCATTER_NS = 1_000_000
"""Ends of what is matched rightly scatter by microseconds (3-5 on one node, 10 with CUPTI of 2023),
those of what is matched wrongly by the time between collectives, which is milliseconds."""
_EVERY_SHIFT = 512
"""For sequences up to this long all shifts are tried."""
_NEAR_EDGES = 64
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
    if shift is not None:
        place = np.arange(len(mine.code)) + shift
        if _agrees(reference, mine, place):
            return place
    if min(np.count_nonzero(r.together) for r in (reference, mine)) >= _ENOUGH:
        return _voted(reference, mine)
    place = sequences.align(mine.code, reference.code)
    enough = np.count_nonzero(place >= 0) >= _HALF * min(len(place), len(reference.code))
    return np.where((place >= 0) & enough, place, NOWHERE)


def _voted(reference: Run, mine: Run) -> Array:
    """Places where ends differ by what most pairs of equal collectives differ by.

    So one that a rank lacks in between does not matter.
    """
    place = np.full(len(mine.code), NOWHERE)
    at, to, difference = _equals(reference, mine)
    bins, counts = np.unique(difference // SCATTER_NS, return_counts=True)
    beside = np.searchsorted(bins, bins + 1)
    follows = np.append(bins, bins[-1:] + 2)[beside] == bins + 1
    both = counts + np.where(follows, np.append(counts, 0)[beside], 0)
    most = min(np.count_nonzero(r.together) for r in (reference, mine))
    if both.max(initial=0) < _HALF * most:
        return place
    best = bins[both.argmax()]
    voted = (difference // SCATTER_NS == best) | (difference // SCATTER_NS == best + 1)
    away = np.abs(difference - int(np.median(difference[voted])))
    order = np.argsort(-away, kind="stable")
    order = order[away[order] <= SCATTER_NS]
    place[at[order]] = to[order]  # of several the nearest is written last
    rows = np.flatnonzero(place != NOWHERE)
    rows = rows[sequences.chain(place[rows])]
    return _between(reference, mine, rows, place[rows])


def _equals(reference: Run, mine: Run) -> tuple[Array, Array, Array]:
    """Pairs of equal collectives that end together: places in both, and differences of ends."""
    n, m = len(reference.code), len(mine.code)
    found = []
    for shift in _shifts(n, m):
        low, high = max(0, shift), min(n, m + shift)
        equal = reference.code[low:high] == mine.code[low - shift : high - shift]
        to = np.flatnonzero(equal & reference.together[low:high]) + low
        found.append((to - shift, to))
    at, to = (np.concatenate(column) for column in zip(*found, strict=True))
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


def _shifts(n: int, m: int) -> list[int]:
    """Shifts of m against n that are worth a look, those with the longest overlap first."""
    if max(n, m) <= _EVERY_SHIFT:
        every = range(-m + 1, n)
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
    return np.array_equal(reference.code[low:high], mine.code[low - shift : high - shift])


def _differences(reference: Run, mine: Run, shift: int) -> tuple[Array, Array]:
    low, high = max(0, shift), min(len(reference.code), len(mine.code) + shift)
    used = reference.together[low:high]
    end = mine.end[low - shift : high - shift][used]
    return end, reference.end[low:high][used] - end


def spread(at: Array, difference: Array) -> tuple[int, float]:
    """Median of differences, and their median deviation from a line; infinite of too few."""
    if len(difference) < _ENOUGH:
        return 0, np.inf
    middle = int(np.median(difference))
    left = (difference - middle).astype(np.float64)
    time = (at - at[0]).astype(np.float64)
    half = len(time) // 2
    run = time[half:] - time[: len(time) - half]
    rise = left[half:] - left[: len(time) - half]
    steep = np.median(rise[run > 0] / run[run > 0]) if (run > 0).any() else 0.0
    left -= np.clip(steep, -_STEEPEST, _STEEPEST) * time
    return middle, float(np.median(np.abs(left - np.median(left))))


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
