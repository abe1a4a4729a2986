"""Likeness of two runs, next to what chance and other programs explain.

Programs that use the same library share many kernels, and a long sequence contains most short ones
if enough of it may be left out. So a match of two runs counts only where both have nearly the same
steps: in the stretch that fits best, and before and after it as far as both go on. A step matched in
a row with the one before says the more the rarer its kernel is, but only once: repetitions of the
same two steps add nothing.

The bounds were chosen on pairs of 50 recorded runs, and judged on others: see
`tests/benchmarks/run_pairs.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array

_GAP_COST = 0.5
"""Chosen: a stretch ends where more than four steps are missing for each that matches."""


_MIN_CONTAINED = 0.9
"""Share of the shorter run's steps that must match. Other programs that share most kernels reach
0.86 (one model with two kernels of attention), passes of one program 0.97 and more."""
_MIN_SHARE = 0.4
"""Share of the steps of both runs that must match where both recorded. Passes of a few repetitions
reach 0.56, as steps between them are missing."""
_MAX_CHANCE = 1e-3
"""Expected number of equally good matches of unrelated sequences; chosen: below what the other two
bounds leave to be excluded."""


class Likeness(NamedTuple):
    """Likeness of two runs where both recorded."""

    matched: int = 0
    """Steps that match in order, or, by counts, that occur equally often."""
    pairs: int = 0
    """Steps that match in the stretch that fits best."""
    steps: int = 0
    """Steps of both runs in it, and before and after it as many as both have."""
    bits: float = 0.0
    """Information in the matched steps: 2 to the minus bits is the chance of an equal sequence."""
    places: int = 1
    """Number of places at which one run can be put along the other."""
    sizes: tuple[int, int] = (1, 1)
    """Steps of each run, also of kernels that the other does not have."""

    @property
    def is_sure(self) -> bool:
        """True if the two are runs of one program: equal as a whole, or more so than by chance."""
        return 0 < self.matched == self.sizes[0] == self.sizes[1] or (
            self.contained >= _MIN_CONTAINED
            and self.share >= _MIN_SHARE
            and self.chance <= _MAX_CHANCE
        )

    @property
    def contained(self) -> float:
        """Share of the shorter run's steps that match."""
        return self.matched / max(min(self.sizes), 1)

    @property
    def share(self) -> float:
        """Share of the steps of both runs that match."""
        return 2 * self.pairs / max(self.steps, 1)

    @property
    def chance(self) -> float:
        """Expected number of matches as informative as this one between unrelated sequences."""
        return float(self.places * 2.0 ** -min(self.bits, 1000.0))

    def text(self) -> str:
        """Reasons for and against one program, in one line."""
        return (
            f"{self.contained:.0%} of the shorter run's dispatches match ({_MIN_CONTAINED:.0%} are "
            f"needed), {self.share:.0%} where both recorded ({_MIN_SHARE:.0%}), by chance "
            f"{self.chance:.1g} times ({_MAX_CHANCE:g})"
        )


def in_order(a: Array, b: Array, position: Array, sizes: tuple[int, int]) -> Likeness:
    """Likeness of two sequences of numbers that were matched in order.

    Parameters
    ----------
    a, b
        The sequences, of the steps that both runs can have in common.
    position
        For each element of `a` its index in `b`, ascending; -1 for none.
    sizes
        Steps of each run, also those that the other cannot have.
    """
    i = np.flatnonzero(position >= 0)
    matched = len(i)
    if not matched:
        return Likeness(steps=len(a) + len(b), sizes=sizes)
    j = position[i]
    missing = np.diff(i) + np.diff(j) - 2
    first, last = _best_run(missing)
    i, j, missing = i[first : last + 1], j[first : last + 1], missing[first:last]
    inner = int(i[-1] - i[0] + j[-1] - j[0]) + 2
    before = min(int(i[0]), int(j[0]))
    after = min(len(a) - 1 - int(i[-1]), len(b) - 1 - int(j[-1]))
    steps = inner + 2 * (before + after)
    bits = _information(a, b, i, missing)
    return Likeness(matched, len(i), steps, bits, len(a) + len(b), sizes)


def _best_run(missing: Array) -> tuple[int, int]:
    """First and last pair of the run of pairs that is best: of many pairs, and few missing steps between.

    Each pair adds 1, and each step missing before it subtracts `_GAP_COST`; the best run has the largest
    difference of two running totals: that at its end, and the lowest one before.
    """
    cost = np.concatenate([[0.0], _GAP_COST * missing])
    total = np.cumsum(1.0 - cost)
    before = total - 1.0  # of a run that begins at this pair
    lowest_before = np.minimum.accumulate(before)
    last = int(np.argmax(total - lowest_before))
    return int(np.argmin(before[: last + 1])), last


def _information(a: Array, b: Array, i: Array, missing: Array) -> float:
    """Information of the distinct pairs of steps in a row that match, and of the first step."""
    size = int(max(a.max(), b.max())) + 1
    count = np.bincount(a, minlength=size) + np.bincount(b, minlength=size)
    bits = -np.log2(np.maximum(count, 1) / (len(a) + len(b)))
    step = a[i]
    in_row = missing == 0
    transitions = np.unique(step[:-1][in_row] * size + step[1:][in_row])
    return float(bits[transitions % size].sum() + bits[step[0]])


def by_counts(a: Array, b: Array, pairs: int, sizes: tuple[int, int]) -> Likeness:
    """Likeness of two sequences by how often each number occurs, whatever their order.

    Parameters
    ----------
    a, b
        The sequences, of the steps that both runs can have in common.
    pairs
        Number of those that occur equally often in both.
    sizes
        As of `in_order`.
    """
    size = int(max(a.max(initial=0), b.max(initial=0))) + 1
    count, count_2 = (np.bincount(x, minlength=size) for x in (a, b))
    equal = count[(count == count_2) & (count > 0)]
    return Likeness(pairs, pairs, len(a) + len(b), float(np.log2(1 + equal).sum()), sizes=sizes)


def combined(parts: list[Likeness]) -> Likeness:
    """Likeness of two runs, of that of their streams."""
    return Likeness(
        sum(p.matched for p in parts),
        sum(p.pairs for p in parts),
        sum(p.steps for p in parts),
        sum(p.bits for p in parts),
        max((p.places for p in parts), default=1),
        (sum(p.sizes[0] for p in parts), sum(p.sizes[1] for p in parts)),
    )
