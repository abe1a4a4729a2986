"""Two runs of one program matched by order: the same step in both runs.

A step here is one element of a sequence, such as a dispatch. A longest common subsequence keeps the
order and loses no step that both runs have. Where several are equally long, steps stay together: the
longest segments that agree grow at the cost of shorter ones. A step that fits elsewhere equally well
is uncertain and left out, such as each of three equal steps in a row where the other run has two. If
one run repeats what the other did once, the last repetition is taken.

The longest common subsequence is that of E. W. Myers, "An O(ND) difference algorithm", 1986.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.annotate.counters import likeness
from chopper_interop.annotate.counters.likeness import Likeness
from chopper_interop.arrays import Array, nest, sequences
from chopper_interop.arrays.compiled import jit

_MAX_EDITS = 6000
"""Chosen: time and memory of Myers' algorithm grow with its square, here to 18 million numbers. Beyond
it, sequences are matched piece by piece."""
_MARGIN = 1024
"""Chosen: steps around the segment that fits best that may belong to it, as steps are missing."""
_RUN_LENGTHS = (32, 16, 8, 4, 2, 1)
"""Lengths of runs of steps that vote for an offset: the longest of which both sequences share some."""
_MAX_VOTES, _NEARLY_ALL = 1 << 20, 0.98
"""Chosen: votes that are counted, those of the rarest runs first, which bounds time; and the share of
the best offset's votes at which a later offset is taken for equally good."""
_PIECE, _KEPT_OF_PIECE = 16384, 12288
"""Chosen: steps of a piece, and those whose matches are kept: the last quarter may end at a difference
and is matched again with the next piece."""
_SHORT_GAP = 64
"""Chosen: in gaps up to this long, steps equal to a neighbour make that neighbour uncertain."""
_MIN_SEGMENT, _GAP_FACTOR = 3, 2
"""Chosen: shorter segments between gaps, or gaps so many times as long as the segment, are taken for
chance."""


class OrderMatch(NamedTuple):
    """The matched steps of two runs."""

    position: Array
    """For each step of the first run, its index in the second; -1 if missing or uncertain."""
    pairs: int
    """Steps that both have in the same order, also uncertain ones."""
    repeated: bool
    """True if the match fits equally well one or several repetitions earlier or later."""
    likeness: Likeness


def match_order(a: Array, b: Array) -> OrderMatch:
    """Match two sequences of numbers; equal steps have equal numbers."""
    position = np.full(len(a), -1, np.int64)
    rows_a, rows_b = np.flatnonzero(np.isin(a, b)), np.flatnonzero(np.isin(b, a))
    sizes = len(a), len(b)
    if not rows_a.size:
        return OrderMatch(position, 0, repeated=False, likeness=Likeness(sizes=sizes))
    x, y = (np.ascontiguousarray(s, np.int64) for s in (a[rows_a], b[rows_b]))
    common = _common_subsequence(x, y)
    _extend_segments(x, y, common, *_segments(common))
    pairs = int(np.count_nonzero(common >= 0))
    alike = likeness.in_order(x, y, common, sizes)
    certain, repeated = _find_certain(x, y, common)
    certain &= ~_matched_by_chance(x, y, common)
    position[rows_a[certain]] = rows_b[common[certain]]
    return OrderMatch(position, pairs, bool(repeated), alike)


def _common_subsequence(a: Array, b: Array) -> Array:
    """For each element of `a` its index in `b` by a longest common subsequence; -1 for none.

    If one is much longer, only the segment of it that fits is searched; and all of it if that does
    not contain all of the shorter one, as steps may be missing in many places.
    """
    complete = (0, len(a)), (0, len(b))
    segments = _fitting_segments(a, b)
    position = _common_within(a, b, *segments)
    pairs = np.count_nonzero(position >= 0)
    if segments == complete or pairs == min(len(a), len(b)):
        return position
    of_all = _common_within(a, b, *complete)
    return of_all if np.count_nonzero(of_all >= 0) > pairs else position


def _common_within(
    a: Array, b: Array, segment_a: tuple[int, int], segment_b: tuple[int, int]
) -> Array:
    position = np.full(len(a), -1, np.int64)
    (low, high), (first, stop) = segment_a, segment_b
    # backwards, so that of equal ones the last is matched
    part_a, part_b = a[low:high][::-1].copy(), b[first:stop][::-1].copy()
    matched = _edits(part_a, part_b, _MAX_EDITS)
    if matched.size != part_a.size:
        matched = _match_in_pieces(part_a, part_b)
    matched = matched[::-1]
    position[low:high] = np.where(matched >= 0, stop - 1 - matched, -1)
    return position


def _match_in_pieces(a: Array, b: Array) -> Array:
    """Matches as of `_edits`, piece by piece; the end of each piece is left to the next."""
    matched = np.full(len(a), -1, np.int64)
    i = j = 0
    while i < len(a) and j < len(b):
        # pieces are in proportion to what remains, as if steps were missing evenly
        remaining = len(a) - i, len(b) - j
        size_a, size_b = (max(_PIECE * x // max(remaining), 1) for x in remaining)
        part_a, part_b = a[i : i + size_a], b[j : j + size_b]
        position = _edits(part_a, part_b, _MAX_EDITS)
        if position.size != part_a.size:
            position = sequences.align(part_a, part_b)
        is_last = i + size_a >= len(a) or j + size_b >= len(b)
        kept = len(part_a) if is_last else max(size_a * _KEPT_OF_PIECE // _PIECE, 1)
        position = position[:kept]
        matched[i : i + kept] = np.where(position >= 0, position + j, -1)
        i, j = i + kept, j + int(position.max(initial=-1)) + 1
    return matched


def _fitting_segments(a: Array, b: Array) -> tuple[tuple[int, int], tuple[int, int]]:
    """Segment of each sequence within which the other lies."""
    n, m = len(a), len(b)
    if abs(n - m) <= _MARGIN:
        return (0, n), (0, m)
    if n < m:
        segment_b, segment_a = _fitting_segments(b, a)
        return segment_a, segment_b
    offset = _best_offset(a, b)
    low, high = max(offset - _MARGIN, 0), min(offset + m + _MARGIN, n)
    return (low, high), (max(-offset - _MARGIN, 0), m)


def _best_offset(a: Array, b: Array) -> int:
    """Offset in the longer `a` at which `b` fits best; the last of equally good ones.

    Runs of steps that are rare in both vote for offsets; as steps are missing, the votes for offsets
    near to each other are added.
    """
    for size in _RUN_LENGTHS:
        runs_a, runs_b = sequences.run_hashes(a, size), sequences.run_hashes(b, size)
        shared = np.intersect1d(runs_a, runs_b)
        if shared.size:
            break
    else:
        return 0
    # a run that occurs i times in a and j times in b has i * j votes, of which one is right
    counts = np.bincount(np.searchsorted(shared, runs_a[np.isin(runs_a, shared)]))
    counts *= np.bincount(np.searchsorted(shared, runs_b[np.isin(runs_b, shared)]))
    rarest = np.argsort(counts, kind="stable")
    used = max(int(np.searchsorted(np.cumsum(counts[rarest]), _MAX_VOTES)), 1)
    voted = -sequences.offset_votes(runs_a, runs_b, shared[rarest[:used]])
    offsets, votes = np.unique(voted, return_counts=True)
    inside = (offsets >= -_MARGIN) & (offsets <= len(a) - len(b) + _MARGIN)
    if inside.any():
        offsets, votes = offsets[inside], votes[inside]
    # differences of the running total are the votes within half a margin of each offset
    total = np.concatenate([[0], np.cumsum(votes)])
    low = np.searchsorted(offsets, offsets - _MARGIN // 2)
    high = np.searchsorted(offsets, offsets + _MARGIN // 2, "right")
    around = total[high] - total[low]
    last = int(np.flatnonzero(around >= _NEARLY_ALL * around.max())[-1])
    best = int(low[last] + np.argmax(votes[low[last] : high[last]]))
    return int(offsets[best])


# Compiled: Myers' algorithm, forwards and then back along what it reached. With x the index in a, y
# that in b, and k = x - y the diagonal, `reached[zero + k]` is the furthest x on diagonal k after d
# edits; `rows` keeps it for each d, so that the way can be followed back.
#
#        a →          an edit goes right (leaves out an element of a: k + 1)
#     b  \ . .        or down (leaves out an element of b: k - 1);
#     ↓  . \ .        equal elements are passed along the diagonal for free
@jit
def _edits(a: Array, b: Array, max_edits: int) -> Array:  # noqa: C901, PLR0912 # one loop
    """Indices in `b` by the fewest insertions and deletions; empty if more than `max_edits`."""
    n, m = len(a), len(b)
    reached = np.full(2 * max_edits + 3, -1, np.int64)
    rows = np.empty(1024, np.int32)
    zero = max_edits + 1
    last = -1
    for d in range(max_edits + 1):
        begin = d * (d + 1) // 2
        if begin + d + 1 > len(rows):
            rows = nest.enlarged(rows, 2 * (begin + d + 1))
        for k in range(-d, d + 1, 2):
            x = 0 if d == 0 else max(_ways(reached, zero, k, d, n, m))
            while 0 <= x < n and x - k < m and a[x] == b[x - k]:
                x += 1
            reached[zero + k] = x
            if x >= n and x - k >= m:
                last = d
        for c in range(d + 1):
            rows[begin + c] = reached[zero - d + 2 * c]
        if last >= 0:
            break
    if last < 0:
        return np.empty(0 if n else 1, np.int64)
    position = np.full(n, -1, np.int64)
    x, y = n, m
    for d in range(last, 0, -1):
        k = x - y
        before = np.int64(d - 1) * d // 2
        for c in range(d):
            reached[zero - (d - 1) + 2 * c] = rows[before + c]
        right, down = _ways(reached, zero, k, d, n, m)
        while x > max(right, down):
            x, y = x - 1, y - 1
            position[x] = y
        if right > down:
            x -= 1
        else:
            y -= 1
    while x > 0 and y > 0:
        x, y = x - 1, y - 1
        position[x] = y
    return position


@jit
def _ways(  # all numbers of one loop
    reached: Array, zero: int, k: int, d: int, n: int, m: int
) -> tuple[int, int]:
    """Indices at which a diagonal is entered with one more edit; -1 if it is out of reach.

    The first way leaves out an element of the first sequence, the second way one of the second.
    """
    right = reached[zero + k - 1] + 1 if k > -d and reached[zero + k - 1] >= 0 else -1
    down = reached[zero + k + 1] if k < d else -1
    return right if right <= n else -1, down if down - k <= m else -1


def _segments(position: Array) -> tuple[Array, Array]:
    """Return begin and end of the segments of pairs that follow each other, the longest first."""
    pairs = np.flatnonzero(position >= 0)
    follows = (np.diff(pairs) == 1) & (np.diff(position[pairs]) == 1)
    first = np.flatnonzero(np.concatenate([[True], ~follows])[: len(pairs)])
    begin, size = pairs[first], np.diff(np.append(first, len(pairs)))
    order = np.argsort(-size, kind="stable")
    return begin[order], (begin + size)[order]


# Compiled: segments grow step by step, the longest first, and what one takes the next cannot have.
@jit
def _extend_segments(  # noqa: C901 # one loop over columns
    a: Array, b: Array, position: Array, begin: Array, end: Array
) -> None:
    """Move pairs so that the longest segments that agree are as long as possible, in place."""
    n, m = len(a), len(b)
    back = np.full(m, -1, np.int64)
    for i in range(n):
        if position[i] >= 0:
            back[position[i]] = i
    used_a, used_b = np.zeros(n, np.bool_), np.zeros(m, np.bool_)
    target = position.copy()
    for r in range(len(begin)):
        first, stop = begin[r], end[r]
        while first < stop and (used_a[first] or position[first] != target[first]):
            first += 1
        while first < stop and (used_a[stop - 1] or position[stop - 1] != target[stop - 1]):
            stop -= 1
        if first == stop:
            continue
        shift = target[first] - first
        for i in range(first, stop):
            used_a[i], used_b[i + shift] = True, True
        for step in (-1, 1):
            i = first - 1 if step < 0 else stop
            while 0 <= i < n and 0 <= i + shift < m and a[i] == b[i + shift]:
                j = i + shift
                if used_a[i] or used_b[j]:
                    break
                if position[i] >= 0:
                    back[position[i]] = -1
                if back[j] >= 0:
                    position[back[j]] = -1
                position[i], back[j] = j, i
                used_a[i], used_b[j] = True, True
                i += step


# Compiled: around each gap, pairs are moved into it one by one as far as they fit.
#
#   a:  x  q  q  y        the pair q-q fits either of the two: next to the gap it is uncertain
#   b:  x  q     y
@jit
def _find_certain(  # noqa: C901, PLR0912 # one loop over gaps
    a: Array, b: Array, position: Array
) -> tuple[Array, bool]:
    """Mark pairs that fit nowhere else; and true if the last of several repetitions was taken.

    A repetition fits elsewhere, but only as a whole. That is accepted where it is the only difference,
    or where one run is longer by half; otherwise other missing steps may belong to the same gap.
    """
    n = len(a)
    certain = position >= 0
    matched_a, matched_b = np.empty(n + 2, np.int64), np.empty(n + 2, np.int64)
    matched_a[0], matched_b[0] = -1, -1
    count = 1
    for i in range(n):
        if position[i] >= 0:
            matched_a[count], matched_b[count] = i, position[i]
            count += 1
    matched_a[count], matched_b[count] = n, len(b)
    total = count - 1
    gaps = 0
    for k in range(count):
        gaps += (matched_a[k + 1] - matched_a[k] > 1) + (matched_b[k + 1] - matched_b[k] > 1)
    longer = max(n, len(b)) - total >= total // 2
    repeated = False
    for k in range(count):
        for side in range(2):
            x, at = (a, matched_a) if side == 0 else (b, matched_b)
            gap = at[k + 1] - at[k] - 1
            if gap == 0:
                continue
            at_end = k == 0 or k == count - 1
            equal = _all_equal(x, at[k] + 1, at[k + 1])
            before, after = _movable(x, at, k, count, gap)
            moved = before + after
            moves_all = max(before, after) == total and not equal
            repeats = moved >= gap and not equal
            exempt = (repeats and gaps == 1) or (longer and at_end and not equal)
            repeated = repeated or exempt or moves_all or _repeats(x, at, k, count, gap)
            if moves_all:  # steps directly at the gap may belong to its other side
                while before > 0 and at[k - before + 1] != at[k] - before + 1:
                    before -= 1
                while after > 0 and at[k + after] != at[k + 1] + after - 1:
                    after -= 1
            if moved and not exempt and (before + after < total):
                for c in range(k - before + 1, k + 1 + after):
                    certain[matched_a[c]] = False
            if not at_end and gap <= _SHORT_GAP and not exempt:
                for c in (k, k + 1):
                    if _occurs(x, at[k] + 1, at[k + 1], x[at[c]]):
                        certain[matched_a[c]] = False
    return certain, repeated


@jit
def _repeats(x: Array, at: Array, k: int, count: int, gap: int) -> bool:
    """Return true if pairs next to a gap could be moved into it, as many as they move by or more."""
    for by in range(_MIN_SEGMENT, gap + 1):
        before, after = _movable(x, at, k, count, by)
        if before >= by or after >= by:
            return True
    return False


@jit
def _movable(x: Array, at: Array, k: int, count: int, by: int) -> tuple[int, int]:
    """Number of pairs before a gap, and after it, that could be moved into it by a distance."""
    before, after = 0, 0
    while k - before > 0 and x[at[k - before]] == x[at[k - before] + by]:
        before += 1
    while k + 1 + after < count and x[at[k + 1 + after]] == x[at[k + 1 + after] - by]:
        after += 1
    return before, after


@jit
def _all_equal(x: Array, first: int, stop: int) -> bool:
    """Return true if all of a segment are equal."""
    for i in range(first + 1, stop):  # noqa: SIM110 # numba compiles no generator
        if x[i] != x[first]:
            return False
    return True


@jit
def _occurs(x: Array, first: int, stop: int, value: int) -> bool:
    """Return true if a value is in a segment."""
    for i in range(first, stop):  # noqa: SIM110 # same
        if x[i] == value:
            return True
    return False


def _matched_by_chance(a: Array, b: Array, position: Array) -> Array:
    """Mark short segments between gaps that are larger, which so many others fit as well.

    Segments are not marked if their steps are the only ones of their kind in one of the runs.
    """
    chance = np.zeros(len(a), np.bool_)
    rows = np.flatnonzero(position >= 0)
    if not rows.size:
        return chance
    gap = np.maximum(np.diff(rows), np.diff(position[rows])) - 1
    segment = np.concatenate([[0], np.cumsum(gap > 0)])
    size = np.bincount(segment)
    around = np.concatenate([[0], gap[gap > 0], [0]])  # where a run begins proves nothing
    smaller_gap = np.minimum(around[:-1], around[1:])
    isolated = (size < _MIN_SEGMENT) & (smaller_gap >= _MIN_SEGMENT)
    isolated |= smaller_gap >= _GAP_FACTOR * size
    unique = np.isin(a, _unique_values(a)) | np.isin(a, _unique_values(b))
    chance[rows] = isolated[segment] & (smaller_gap > 0)[segment] & ~unique[rows]
    return chance


def _unique_values(x: Array) -> Array:
    """Values that occur once."""
    values, counts = np.unique(x, return_counts=True)
    return values[counts == 1]
