"""Which kernels of two records may be the same: by ids, by order, or as most of them vote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.clocks import line as clock_line
from chopper_interop.clocks.line import Line, Work

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

_US = 1000
_SPREADS_A_SPAN = 2_000
"""Pairs that were sought must span so many times what they are apart, and what times are cut to:
short kernels in a row look alike everywhere."""
_SHARE = 0.9
"""Of the kernels in the time that both recorded so many must be pairs."""
_BIN_NS, _FINE_NS = 200_000, 5_000
_MOST_VOTES = 1 << 20
_STRETCH = 16_384
"""Kernels of which the offset is sought, before all are looked at."""
_NEAR_NS = (200_000, 50_000, 50_000)
"""How far apart pairs may be, in one step of refining after the other."""
_SHIFTS_NS = (1_700_003, -1_700_003, 13_100_011, -13_100_011)
"""Offsets that are wrong, for comparison."""


def by_correlation(ours: Work, theirs: Work) -> tuple[Array, Array]:
    """Pairs with one id that occurs once in each; none if names contradict the ids."""
    once, once_2 = _once(ours.correlation), _once(theirs.correlation)
    _, at, at_2 = np.intersect1d(
        ours.correlation[once], theirs.correlation[once_2], True, return_indices=True
    )
    i, j = once[at], once_2[at_2]
    same = ours.name[i] == theirs.name[j]
    return (i[same], j[same]) if same.sum() >= _SHARE * same.size else (i[:0], j[:0])


def _once(ids: Array) -> Array:
    _, first, counts = np.unique(ids, return_index=True, return_counts=True)
    found: Array = first[counts == 1]
    return found[ids[found] > 0]


def in_order(ours: Work, theirs: Work) -> tuple[Array, Array]:
    """The k-th of ours and of theirs, if they are as many of the same names."""
    every = np.arange(len(ours.name) if np.array_equal(ours.name, theirs.name) else 0)
    return every, every


def sought(ours: Work, theirs: Work) -> tuple[Array, Array]:
    """Pairs at the offset for which a stretch of what is shorter votes, then more and more of it."""
    swapped = len(theirs.start) < len(ours.start)
    short, long = (theirs, ours) if swapped else (ours, theirs)
    some, _ = _middle(short, _STRETCH)
    none = np.zeros(0, np.int64)
    for keys in _keys(some, long):
        guess = _voted(some, long, *keys)
        i, j = _refined(some, long, guess) if guess is not None else (none, none)
        if _is_distinct(some, long, i, j):
            i, j = _grown(short, long, clock_line.fit(some.start[i], long.start[j]))
            return (j, i) if swapped else (i, j)
    return none, none


def _middle(work: Work, count: int) -> tuple[Work, int]:
    """So many in the middle of it, and how many are before them."""
    first = max((len(work.start) - count) // 2, 0)
    return work.part(slice(first, first + count)), first


def _grown(short: Work, long: Work, line: Line) -> tuple[Array, Array]:
    """Pairs of all by a line that is known of a stretch: it is fitted again as that grows."""
    count = _STRETCH
    while True:
        some, first = _middle(short, count)
        i, j = clock_line.nearest(some, long, line, _NEAR_NS[-1])
        if count >= len(short.start) or not len(i):
            return i + first, j
        line = clock_line.fit(some.start[i], long.start[j])
        count *= 4


def _keys(ours: Work, theirs: Work) -> list[tuple[Array, Array]]:
    """What kernels are told by: name and duration, the finest first; name alone."""
    made = []
    for grain in (1, _US):
        least = min(int(ours.dur.min()), int(theirs.dur.min())) // grain
        both = [w.dur // grain - least for w in (ours, theirs)]
        size = max(int(b.max()) for b in both) + 1
        if size < 1 << 40:
            made.append((ours.name * size + both[0], theirs.name * size + both[1]))
    return [*made, (ours.name, theirs.name)]


def _voted(ours: Work, theirs: Work, key: Array, key_2: Array) -> Line | None:
    """The offset for which most pairs of equal rare keys vote."""
    keys, a = np.unique(key, return_inverse=True)
    b = np.searchsorted(keys, key_2)
    known = np.flatnonzero(keys[np.minimum(b, len(keys) - 1)] == key_2)
    b = b[known]
    count, count_2 = (np.bincount(c, minlength=len(keys)) for c in (a, b))
    pairs = count * count_2
    rare = np.argsort(pairs, kind="stable")
    rare = rare[pairs[rare] > 0]
    rare = rare[np.cumsum(pairs[rare]) <= _MOST_VOTES]
    if not rare.size:
        return None
    i, j = _all_pairs(a, b, np.sort(rare), count, count_2)
    j = known[j]
    difference = ours.start[i] - theirs.start[j]
    base = int(difference.min())
    near = difference[_fullest((difference - base) // _BIN_NS, 1)]
    near = near[_fullest((near - base) // _FINE_NS, 1)]
    start = int(near.min())
    return Line(start + clock_line.median(near - start))


def _all_pairs(
    a: Array, b: Array, keys: Array, count: Array, count_2: Array
) -> tuple[Array, Array]:
    """Places of all pairs of equal keys."""
    order, order_2 = (np.argsort(c, kind="stable") for c in (a, b))
    first = np.cumsum(count) - count
    first_2 = np.cumsum(count_2) - count_2
    n = (count * count_2)[keys]
    which = np.repeat(np.arange(len(keys)), n)
    within = np.arange(int(n.sum())) - np.repeat(np.cumsum(n) - n, n)
    width = count_2[keys][which]
    i = order[first[keys][which] + within // width]
    j = order_2[first_2[keys][which] + within % width]
    return i, j


def _fullest(bins: Array, beside: int) -> Array:
    """Which are in the fullest bin, or beside it."""
    values, counts = np.unique(bins, return_counts=True)
    best = int(values[counts.argmax()])
    found: Array = np.abs(bins - best) <= beside
    return found


def _refined(ours: Work, theirs: Work, line: Line) -> tuple[Array, Array]:
    """Pairs near a guess, which is corrected by them."""
    pairs = clock_line.nearest(ours, theirs, line, _NEAR_NS[0])
    for within in _NEAR_NS[1:]:
        if not len(pairs[0]):
            break
        pairs = clock_line.nearest(
            ours, theirs, clock_line.fit(ours.start[pairs[0]], theirs.start[pairs[1]]), within
        )
    return pairs


def _is_distinct(ours: Work, theirs: Work, i: Array, j: Array) -> bool:
    """Whether wrong offsets explain starts much worse."""
    if not len(i):
        return False
    line = clock_line.fit(ours.start[i], theirs.start[j])
    grain = max(clock_line.grain(ours.start), clock_line.grain(theirs.start))
    if np.ptp(ours.start[i]) < _SPREADS_A_SPAN * max(line.spread_ns, grain):
        return False
    for shift in _SHIFTS_NS:
        wrong = Line(line.offset_ns + shift, line.drift_ppb, line.pivot_ns)
        at, at_2 = clock_line.nearest(ours, theirs, wrong, _NEAR_NS[-1])
        if len(at) * 2 < len(i):
            continue
        off = np.abs(ours.start[at] - wrong.applied(theirs.start[at_2]))
        if clock_line.median(off) < 3 * max(line.spread_ns, 1):
            return False
    return True
