"""Times of rows that carry whole seconds alone, spread within their seconds by the tool's period.

A tick is one output of a tool that samples in a loop. ``amd-smi -w N`` stamps each row with
``int(time.time())`` while it reads that GPU, prints all GPUs, sleeps N whole seconds and begins
again. So a stamp s alone says that the row was taken in [s, s + 1). The loop says more: its period
is N seconds and the time of the command, which is nearly the same every time (8 MI355X: 1.049 s;
1.85 s with violations, which cost 100 ms a GPU). Where two stamps are one second further apart than
usual, the row before was late in its second and the row after early in its own, which also bounds
the rows between them.

`spread` assumes that no period differs from the mean by more than half of what the mean
has beyond whole seconds, nor by more than `JITTER_NS`, and derives for every row the interval
that all stamps together leave: a system of differences, solved exactly by running maxima and
minima. A row is put in the middle of its interval, so its error is at most half of it. The
assumption is dropped unless the stamps fit even half of that jitter; then rows stand in the
middle of their second. Either way every row stays within its second and ticks keep their order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.converters.sampling.timestamps import SECOND

JITTER_NS = 100_000_000
"""Largest assumed deviation of one period from the mean. Chosen: what reading one more GPU with
violations costs; larger bounds would say little within a second."""
_MIN_STEPS = 3
"""With fewer steps the period is known to no better than a third of a second."""
_UNBOUNDED = 1 << 62
"""Beyond all times."""


def ticks_of(place: Array) -> Array:
    """Number the tick of each row: a new one begins where a GPU and part, of which these are numbers, comes again.

    The order decides and never the stamp, for ticks may share a second.
    """
    tick = np.empty(len(place), np.int64)
    _ticks(place, np.full(int(place.max(initial=-1)) + 1, -1, np.int64), tick)
    return tick


@jit_in_place
def _ticks(code: Array, seen: Array, tick: Array) -> None:
    """Set the ticks of rows by the number of their GPU and part; `seen` is the last tick of each, -1 at first."""
    number = 0
    for row in range(len(code)):
        number += seen[code[row]] == number
        seen[code[row]] = tick[row] = number


def spread(stamp: Array, tick: Array, position: Array) -> tuple[Array, int]:
    """Derive when each row was taken.

    Parameters
    ----------
    stamp
        Epoch seconds.
    tick
        Tick of each row, ascending from 0.
    position
        Position of the row's GPU within a tick, from 0.

    Returns
    -------
    time
        Epoch nanoseconds, each within [stamp, stamp + 1 s).
    half
        Half of the longest interval, nanoseconds: no error is larger.
    """
    if not stamp.size:
        return np.zeros(0, np.int64), 0
    grid = np.full((int(tick.max()) + 1, int(position.max()) + 1), -1, np.int64)
    grid[tick, position] = stamp
    lower = np.where(grid >= 0, grid * SECOND, -_UNBOUNDED)
    upper = np.where(grid >= 0, (grid + 1) * SECOND, _UNBOUNDED)
    runs = _runs(grid)
    period = _period(grid, runs)
    if period is not None and _regular(lower, upper, runs, period):
        low, high = _narrowed(lower, upper, runs, period.within(1))
        time = low + (high - low) // 2
        half = np.where(grid >= 0, (high - low + 1) // 2, 0).max()
        return time[tick, position], int(half)
    part, count = _share_of_second(grid)
    time = grid * SECOND + SECOND * (2 * part + 1) // (2 * count)
    off = np.maximum(time - lower, upper - time)[grid >= 0]
    return time[tick, position], int(off.max())


def _runs(grid: Array) -> list[slice]:
    """Slices of ticks without a gap or a step of the clock between them."""
    first = np.where(grid >= 0, grid, np.iinfo(np.int64).max).min(axis=1)
    step = np.diff(first)
    if not step.size:
        return [slice(0, len(grid))]
    median = int(np.median(step))
    cuts = np.flatnonzero((step < 0) | (np.abs(step - median) > 1)) + 1
    edges = [0, *cuts.tolist(), len(grid)]
    return [slice(a, b) for a, b in pairwise(edges)]


class _Period(NamedTuple):
    """Bounds of a loop's mean period, and the largest deviation of one from it, nanoseconds."""

    shortest: int
    longest: int
    jitter: int

    def within(self, share: float) -> tuple[int, int]:
        """Shortest and longest single period, if all keep within this share of the jitter."""
        jitter = int(self.jitter * share)
        return max(self.shortest - jitter, 0), self.longest + jitter


def _regular(lower: Array, upper: Array, runs: list[slice], period: _Period) -> bool:
    """True if the stamps fit a loop that keeps within half of the allowed jitter.

    A loop that fits half of it hardly exceeds all of it unseen.
    """
    low, high = _narrowed(lower, upper, runs, period.within(0.5))
    return bool((low < high).all())


def _period(grid: Array, runs: list[slice]) -> _Period | None:
    """Bound the period of the loop; None for too few ticks.

    The first and last stamp alone bound the mean over K steps to 1/K of a second.
    """
    steps = seconds = used = 0
    for run in runs:
        known = np.flatnonzero((grid[run] >= 0).any(axis=0))
        column = grid[run][:, known[0]]
        ticks = np.flatnonzero(column >= 0)
        if len(ticks) > 1:
            steps += int(ticks[-1] - ticks[0])
            seconds += int(column[ticks[-1]] - column[ticks[0]])
            used += 1
    if steps < _MIN_STEPS:
        return None
    shortest = max((seconds - used) * SECOND // steps, 0)
    longest = -(-(seconds + used) * SECOND // steps)
    beyond = longest - shortest // SECOND * SECOND
    return _Period(shortest, longest, min(beyond // 2, JITTER_NS))


def _narrowed(
    lower: Array, upper: Array, runs: list[slice], periods: tuple[int, int]
) -> tuple[Array, Array]:
    """Narrow the intervals by the periods within each run, and by the order of GPUs.

    Each step drops only what is impossible, so the true time stays inside.
    """
    low, high = lower.copy(), upper.copy()
    for run in runs:
        for _ in range(2):  # a bound passes to another GPU and back
            _narrow(low[run], high[run], *periods)
    return low, high


@jit_in_place
def _narrow(low: Array, high: Array, shortest: int, longest: int) -> None:
    """Narrow the intervals of a chain whose steps lie between the periods, and then by the order of GPUs.

    A bound of tick j gives one of tick k > j, k - j steps of at least the shortest and at most the
    longest period later; a later tick bounds an earlier one likewise. The best bound from all earlier
    ticks is that of the tick before and one step, or the tick's own: one walk forth and one back solve
    all pairs of ticks at once. Compiled: as running maxima of numpy it was a tenth of reading.
    """
    ticks, gpus = low.shape
    for k in range(1, ticks):
        for gpu in range(gpus):
            low[k, gpu] = max(low[k, gpu], low[k - 1, gpu] + shortest)
            high[k, gpu] = min(high[k, gpu], high[k - 1, gpu] + longest)
    for k in range(ticks - 2, -1, -1):
        for gpu in range(gpus):
            low[k, gpu] = max(low[k, gpu], low[k + 1, gpu] - longest)
            high[k, gpu] = min(high[k, gpu], high[k + 1, gpu] - shortest)
    for k in range(ticks):
        for gpu in range(1, gpus):
            low[k, gpu] = max(low[k, gpu], low[k, gpu - 1])
        for gpu in range(gpus - 2, -1, -1):
            high[k, gpu] = min(high[k, gpu], high[k, gpu + 1])


def _share_of_second(grid: Array) -> tuple[Array, Array]:
    """Number rows of one GPU within one second, and count them.

    Column by column: a group is a run of equal seconds; a row's number is its distance from the
    first row of its group.
    """
    part = np.zeros(grid.shape, np.int64)
    count = np.ones(grid.shape, np.int64)
    for column in range(grid.shape[1]):
        known = np.flatnonzero(grid[:, column] >= 0)
        values = grid[known, column]
        begins = np.concatenate([[True], np.diff(values) != 0])
        group = np.cumsum(begins) - 1
        part[known, column] = np.arange(len(known)) - np.flatnonzero(begins)[group]
        count[known, column] = np.bincount(group)[group]
    return part, count
