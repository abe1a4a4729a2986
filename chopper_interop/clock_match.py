"""Whether two tools recorded the same kernels, and by how much their clocks differ.

Two profilers of one process see the same kernels start at the same times, but for the offset of
their clocks; in two runs of a program gaps and durations differ. So pairs of kernels are sought,
by correlation ids, by order, or by the offset for which most rare kernels vote, and believed if
one offset (and a drift that clocks have) explains the starts of nearly all that both recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import clocks

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_US = 1000
_MOST_SPREAD_NS, _LEAST_SPREAD_NS = 5_000, 500
_SPREAD_OF_SPAN = 1e-4
"""Starts of one run agree to this share of its length; those of two runs never do."""
_SPREADS_A_SPAN = 2_000
"""Pairs that were sought must span so many times what they are apart, and what times are cut to:
short kernels in a row look alike everywhere."""
_ALIKE = 0.005
"""Durations of one kernel by two tools differ by less, as a share."""
_SHARE = 0.9
"""Of the kernels in the time that both recorded so many must be pairs."""
_SHARE_OF_ALL = 0.5
"""Of all kernels of who recorded fewer."""
_NEARLY_ALL, _TIMES = 0.8, 3
"""This share of pairs is at most so many times as far off as half of them may be."""
_FEWEST, _FEWEST_SOUGHT = 3, 24
"""So few pairs prove nothing, unless the process is known to be the same: such that ids or order
give, and such that were sought."""
_MOST_DRIFT_PPB, _DRIFT_FROM_NS, _DRIFT_PAIRS = 500_000, 100_000_000, 16
_BIN_NS, _FINE_NS = 200_000, 5_000
_MOST_VOTES = 1 << 20
_NEAR_NS = (200_000, 50_000, 50_000)
"""How far apart pairs may be, in one step of refining after the other."""
_SHIFTS_NS = (1_700_003, -1_700_003, 13_100_011, -13_100_011)
"""Offsets that are wrong, for comparison."""


@dataclass(frozen=True)
class Work:
    """What ran on the GPUs of a process.

    Parameters
    ----------
    name
        Numbers of names, the same of both tools.
    start, dur
        Nanoseconds.
    correlation
        -1 if there is none.
    """

    name: Array
    start: Array
    dur: Array
    correlation: Array


@dataclass(frozen=True)
class Line:
    """Offset of a clock as it drifts: ``offset + drift * (t - pivot)``."""

    offset_ns: int
    drift_ppb: int = 0
    pivot_ns: int = 0
    spread_ns: int = 0
    """Median distance of starts from it."""

    def applied(self, ts: Array) -> Array:
        """Times on the other clock."""
        moved: Array = ts + self.offset_ns
        if self.drift_ppb:
            moved += np.rint((ts - self.pivot_ns) * (self.drift_ppb / 1e9)).astype(np.int64)
        return moved


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
    for method, (i, j) in (
        (clocks.CORRELATION_IDS, _by_correlation(ours, theirs)),
        (clocks.MATCHED_KERNELS, _in_order(ours, theirs)),
    ):
        found = _whole(ours, theirs, i, j, method, same_process=same_process)
        if found is not None:
            return found
    if min(len(ours.start), len(theirs.start)) < _FEWEST_SOUGHT and not same_process:
        return None
    for keys in _keys(ours, theirs):
        guess = _voted(ours, theirs, *keys)
        if guess is None:
            continue
        i, j = _refined(ours, theirs, guess)
        if _is_distinct(ours, theirs, i, j):
            method = clocks.MATCHED_KERNELS
            found = _whole(ours, theirs, i, j, method, same_process=same_process)
            if found is not None:
                return found
    return None


def _by_correlation(ours: Work, theirs: Work) -> tuple[Array, Array]:
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


def _in_order(ours: Work, theirs: Work) -> tuple[Array, Array]:
    """The k-th of ours and of theirs, if they are as many of the same names."""
    i, j = (np.argsort(w.start, kind="stable") for w in (ours, theirs))
    same = len(i) == len(j) and np.array_equal(ours.name[i], theirs.name[j])
    return (i, j) if same else (i[:0], j[:0])


def _whole(
    ours: Work, theirs: Work, i: Array, j: Array, method: str, *, same_process: bool
) -> Match | None:
    """The match that pairs lead to, if they are of one run."""
    fewest = 1 if same_process else _FEWEST
    if len(i) < fewest or not _alike(ours, theirs, i, j):
        return None
    line = _fit(ours.start[i], theirs.start[j])
    span = int(np.ptp(ours.start[i]))
    grain = max(_grain(ours.start), _grain(theirs.start))
    most = max(grain // 2, _LEAST_SPREAD_NS, int(span * _SPREAD_OF_SPAN))
    most = min(most, _MOST_SPREAD_NS)
    off = np.abs(ours.start[i] - line.applied(theirs.start[j]))
    if line.spread_ns > most or np.quantile(off, _NEARLY_ALL) > _TIMES * most:
        return None
    both = _nearest(ours, theirs, line, max(10 * line.spread_ns, 2 * _LEAST_SPREAD_NS, 2 * grain))
    fewer = min(len(ours.start), len(theirs.start))
    if len(both[0]) < max(_SHARE * _shared(ours, theirs, line), _SHARE_OF_ALL * fewer):
        return None
    return Match(*both, line, method, len(i))


def _alike(ours: Work, theirs: Work, i: Array, j: Array) -> bool:
    """Whether durations agree, as those of two runs do not."""
    a, b = ours.dur[i], theirs.dur[j]
    grain = max(_grain(ours.dur), _grain(theirs.dur))
    allowed = np.maximum(max(2 * grain, _LEAST_SPREAD_NS), _ALIKE * np.maximum(a, b))
    off = np.abs(a - b) / allowed
    return bool(np.median(off) <= 1 and np.quantile(off, _NEARLY_ALL) <= _TIMES)


def _grain(times: Array) -> int:
    """Nanoseconds to which times are cut: some formats have whole microseconds."""
    return _US if times.size and not (times % _US).any() else 1


def _fit(ours: Array, theirs: Array) -> Line:
    """Median of the differences and, over a long span, the drift that halves their spread."""
    order = np.argsort(theirs, kind="stable")
    difference = (ours - theirs)[order]
    base = int(difference[0])
    rest = difference - base
    middle = _median(rest)
    spread = _median(np.abs(rest - middle))
    ts = theirs[order]
    pivot = int(ts[len(ts) // 2])
    since = ts - pivot
    if len(rest) >= _DRIFT_PAIRS and since[-1] - since[0] >= _DRIFT_FROM_NS:
        slope = _slope(since, rest)
        ppb = round(slope * 1e9)
        level = rest - np.rint(since * (ppb / 1e9)).astype(np.int64)
        flat = _median(level)
        narrow = _median(np.abs(level - flat))
        if 0 < abs(ppb) <= _MOST_DRIFT_PPB and 2 * narrow < spread:
            return Line(base + flat, ppb, pivot, narrow)
    return Line(base + middle, 0, pivot, spread)


def _slope(ts: Array, values: Array) -> float:
    """By medians of the first and the last third."""
    third = len(ts) // 3
    rise = _median(values[-third:]) - _median(values[:third])
    run = _median(ts[-third:]) - _median(ts[:third])
    return rise / run if run > 0 else 0.0


def _median(values: Array) -> int:
    return round(float(np.median(values)))


def _nearest(ours: Work, theirs: Work, line: Line, within_ns: int) -> tuple[Array, Array]:
    """Pairs of one name that are each other's nearest, at most so far apart."""
    moved = line.applied(theirs.start)
    low = min(int(ours.start.min()), int(moved.min()))
    high = max(int(ours.start.max()), int(moved.max()))
    names, code = np.unique(np.concatenate([ours.name, theirs.name]), return_inverse=True)
    width = high - low + 2 * within_ns + 2
    if width * len(names) >= 1 << 62:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    a = code[: len(ours.name)] * width + (ours.start - low)
    b = code[len(ours.name) :] * width + (moved - low)
    to_b, to_a = _closest(a, b), _closest(b, a)
    i = np.flatnonzero((to_a[to_b] == np.arange(len(a))) & (np.abs(a - b[to_b]) <= within_ns))
    return i, to_b[i]


def _closest(points: Array, among: Array) -> Array:
    """For each point the place of the nearest among others, the first of equally near ones."""
    order = np.argsort(among, kind="stable")
    ordered = among[order]
    right = np.minimum(np.searchsorted(ordered, points), len(ordered) - 1)
    left = np.maximum(right - 1, 0)
    nearer = np.abs(points - ordered[left]) <= np.abs(ordered[right] - points)
    found: Array = order[np.where(nearer, left, right)]
    return found


def _shared(ours: Work, theirs: Work, line: Line) -> int:
    """How many kernels there are in the time that both recorded, by who recorded fewer."""
    moved = line.applied(theirs.start)
    low, high = max(ours.start.min(), moved.min()), min(ours.start.max(), moved.max())
    slack = 4 * _MOST_SPREAD_NS
    inside = [
        int(np.count_nonzero((t >= low - slack) & (t <= high + slack))) for t in (ours.start, moved)
    ]
    return min(inside)


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
    keys, code = np.unique(np.concatenate([key, key_2]), return_inverse=True)
    a, b = code[: len(key)], code[len(key) :]
    count, count_2 = (np.bincount(c, minlength=len(keys)) for c in (a, b))
    pairs = count * count_2
    rare = np.argsort(pairs, kind="stable")
    rare = rare[pairs[rare] > 0]
    rare = rare[np.cumsum(pairs[rare]) <= _MOST_VOTES]
    if not rare.size:
        return None
    i, j = _all_pairs(a, b, np.sort(rare), count, count_2)
    difference = ours.start[i] - theirs.start[j]
    base = int(difference.min())
    near = difference[_fullest((difference - base) // _BIN_NS, 1)]
    near = near[_fullest((near - base) // _FINE_NS, 1)]
    start = int(near.min())
    return Line(start + _median(near - start))


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
    pairs = _nearest(ours, theirs, line, _NEAR_NS[0])
    for within in _NEAR_NS[1:]:
        if not len(pairs[0]):
            break
        pairs = _nearest(ours, theirs, _fit(ours.start[pairs[0]], theirs.start[pairs[1]]), within)
    return pairs


def _is_distinct(ours: Work, theirs: Work, i: Array, j: Array) -> bool:
    """Whether wrong offsets explain starts much worse."""
    if not len(i):
        return False
    line = _fit(ours.start[i], theirs.start[j])
    grain = max(_grain(ours.start), _grain(theirs.start))
    if np.ptp(ours.start[i]) < _SPREADS_A_SPAN * max(line.spread_ns, grain):
        return False
    for shift in _SHIFTS_NS:
        wrong = Line(line.offset_ns + shift, line.drift_ppb, line.pivot_ns)
        at, at_2 = _nearest(ours, theirs, wrong, _NEAR_NS[-1])
        if len(at) * 2 < len(i):
            continue
        off = np.abs(ours.start[at] - wrong.applied(theirs.start[at_2]))
        if _median(off) < 3 * max(line.spread_ns, 1):
            return False
    return True
