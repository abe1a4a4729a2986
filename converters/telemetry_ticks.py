"""When amd-smi's rows were taken: whole seconds spread over a run of ticks.

A watch stamps each row with ``int(time.time())`` beside reading that GPU, prints all GPUs, sleeps
N whole seconds and begins again. So the stamp s of a row says for sure only that it was taken in
[s, s + 1). More follows from the loop: its period is N seconds and what the command takes, most
of which is the same every time (8 MI355X: 1.049 s; 1.85 s with violations, which cost 100 ms a
GPU). Where two stamps are one second further apart than usual, the row before was late in its
second and the row behind early in its own, and the rows between can be told from there.

`placed` takes as known that no period differs from the mean by more than half of what the mean
has beyond whole seconds, nor by more than `JITTER_NS`, and derives for every row the interval
that all stamps together leave: a system of differences, solved exactly by running maxima and
minima. A row is put in the middle of its interval, so its error is at most half of it. The
assumption is dropped unless the stamps fit even half of that jitter; then rows stand in the
middle of their second. Either way every row stays within its second and ticks keep their order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

SECOND = 1_000_000_000
JITTER_NS = 100_000_000
"""No tick of a run comes earlier or later than this against the mean period."""
_FEW = 3
"""Fewer steps than this tell nothing of the period."""
_FAR = 1 << 62
"""Beyond all times."""


def ticks_of(gpu: Array, xcp: Array) -> Array:
    """Tick of each row: a new one begins where a GPU and partition comes again.

    Told by order and never by the stamp, for ticks may share a second.
    """
    tick = np.empty(len(gpu), np.int64)
    seen: set[tuple[int, int]] = set()
    number = 0
    for row, key in enumerate(zip(gpu.tolist(), xcp.tolist(), strict=True)):
        if key in seen:
            seen.clear()
            number += 1
        seen.add(key)
        tick[row] = number
    return tick


def placed(stamp: Array, tick: Array, place: Array) -> tuple[Array, int]:
    """When each row was taken.

    Parameters
    ----------
    stamp
        Epoch seconds.
    tick
        Tick of each row, ascending from 0.
    place
        Place of the row's GPU within a tick, from 0.

    Returns
    -------
    time
        Epoch nanoseconds, each within [stamp, stamp + 1 s).
    half
        Largest half of an interval: no row is further off, nanoseconds.
    """
    if not stamp.size:
        return np.zeros(0, np.int64), 0
    grid = np.full((int(tick.max()) + 1, int(place.max()) + 1), -1, np.int64)
    grid[tick, place] = stamp
    lower = np.where(grid >= 0, grid * SECOND, -_FAR)
    upper = np.where(grid >= 0, (grid + 1) * SECOND, _FAR)
    runs = _runs(grid)
    period = _period(grid, runs)
    if period is not None and _regular(lower, upper, runs, period):
        low, high = _narrowed(lower, upper, runs, period.within(1))
        time = low + (high - low) // 2
        half = np.where(grid >= 0, (high - low + 1) // 2, 0).max()
        return time[tick, place], int(half)
    part, count = _share_of_second(grid)
    time = grid * SECOND + SECOND * (2 * part + 1) // (2 * count)
    off = np.maximum(time - lower, upper - time)[grid >= 0]
    return time[tick, place], int(off.max())


def _runs(grid: Array) -> list[slice]:
    """Runs of ticks without a gap or a step of the clock between them."""
    first = np.where(grid >= 0, grid, np.iinfo(np.int64).max).min(axis=1)
    step = np.diff(first)
    if not step.size:
        return [slice(0, len(grid))]
    usual = int(np.median(step))
    cuts = np.flatnonzero((step < 0) | (np.abs(step - usual) > 1)) + 1
    edges = [0, *cuts.tolist(), len(grid)]
    return [slice(a, b) for a, b in pairwise(edges)]


class _Period(NamedTuple):
    """Bounds of a loop's mean period, and how far a single one may be from it, nanoseconds."""

    least: int
    most: int
    jitter: int

    def within(self, share: float) -> tuple[int, int]:
        """Shortest and longest period, if all keep within this share of the jitter."""
        jitter = int(self.jitter * share)
        return max(self.least - jitter, 0), self.most + jitter


def _regular(lower: Array, upper: Array, runs: list[slice], period: _Period) -> bool:
    """Whether the stamps fit a loop that keeps within half of what is allowed to it.

    Half, so that a loop that is allowed all of it would have to hide how irregular it is.
    """
    low, high = _narrowed(lower, upper, runs, period.within(0.5))
    return bool((low < high).all())


def _period(grid: Array, runs: list[slice]) -> _Period | None:
    """Period of the loop; None if there are too few ticks to tell.

    The mean over K steps is known to 1/K of a second by the first and last stamp alone.
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
    if steps < _FEW:
        return None
    least = max((seconds - used) * SECOND // steps, 0)
    most = -(-(seconds + used) * SECOND // steps)
    beyond = most - least // SECOND * SECOND
    return _Period(least, most, min(beyond // 2, JITTER_NS))


def _narrowed(
    lower: Array, upper: Array, runs: list[slice], periods: tuple[int, int]
) -> tuple[Array, Array]:
    """Intervals that follow from the periods within each run, and from the order of GPUs.

    Every step only uses what must hold, so the truth stays inside at each.
    """
    low, high = lower.copy(), upper.copy()
    for run in runs:
        for _ in range(2):  # what one GPU tells of another comes back once
            low[run], high[run] = _along(low[run], high[run], periods)
            low[run] = np.maximum.accumulate(low[run], axis=1)
            high[run] = np.minimum.accumulate(high[run][:, ::-1], axis=1)[:, ::-1]
    return low, high


def _along(low: Array, high: Array, periods: tuple[int, int]) -> tuple[Array, Array]:
    """Tightest intervals of a chain whose steps lie between the periods.

    A bound reaches tick k from tick j < k over k - j steps of at least the shortest and at most
    the longest period, and the other way round from a later one.
    """
    number = np.arange(len(low), dtype=np.int64)[:, None]
    short, long = number * periods[0], number * periods[1]
    ahead, behind = np.maximum.accumulate, np.minimum.accumulate
    narrow_low = np.maximum(
        ahead(low - short, axis=0) + short,
        ahead((low - long)[::-1], axis=0)[::-1] + long,
    )
    narrow_high = np.minimum(
        behind(high - long, axis=0) + long,
        behind((high - short)[::-1], axis=0)[::-1] + short,
    )
    return narrow_low, narrow_high


def _share_of_second(grid: Array) -> tuple[Array, Array]:
    """For each row, the how manieth of its GPU it is in its second, and of how many."""
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
