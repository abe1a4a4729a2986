"""Quantities over time as linear pieces: their means in windows, and where they are above 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.samples import Samples


@dataclass(frozen=True)
class PiecewiseLinear:
    """Pieces of time in which a quantity is known, ascending and without overlap.

    Parameters
    ----------
    start, end
        Begin and end of each, nanoseconds; none is empty.
    first, last
        Values there; in between the value changes linearly.
    resolution
        Width of the time span that a value within the piece may belong to, nanoseconds.
    """

    start: Array
    end: Array
    first: Array
    last: Array
    resolution: Array

    def __len__(self) -> int:
        return len(self.start)

    @property
    def known_ns(self) -> int:
        """Time for which the quantity is known."""
        return int((self.end - self.start).sum())

    @cached_property
    def _upto(self) -> tuple[Array, Array]:
        """Integrals of the value and of the known time before each piece."""
        width = self.end - self.start
        area = np.append([0.0], np.cumsum((self.first + self.last) / 2 * width))
        return area, np.append([0], np.cumsum(width))

    def where(self, selected: Array | slice) -> PiecewiseLinear:
        """Select pieces by mask, index or slice."""
        return PiecewiseLinear(
            self.start[selected], self.end[selected], self.first[selected], self.last[selected],
            self.resolution[selected],
        )  # fmt: skip

    def within(self, low: int, high: int) -> PiecewiseLinear:
        """Cut the pieces to a window; there are none in a window without length."""
        first = int(np.searchsorted(self.end, low, "right"))
        last = int(np.searchsorted(self.start, high, "left"))
        piece = np.arange(first, max(first, last) if high > low else first)
        start, end = np.maximum(self.start[piece], low), np.minimum(self.end[piece], high)
        values = self._values(piece, start), self._values(piece, end)
        return PiecewiseLinear(start, end, *values, self.resolution[piece])

    def scaled(self, factor: float) -> PiecewiseLinear:
        """Multiply the quantity by a factor."""
        first, last = self.first * factor, self.last * factor
        return PiecewiseLinear(self.start, self.end, first, last, self.resolution)

    def means(self, start: Array, end: Array) -> tuple[Array, Array]:
        """Mean over the known time of each window (NaN where there is none), and that time."""
        area, time = self.integrals(start, end)
        return area / np.where(time > 0, time, np.nan), time

    def integrals(self, start: Array, end: Array) -> tuple[Array, Array]:
        """Integral over the known time of each window (value times nanoseconds), and that time."""
        area = self._area_before(end) - self._area_before(start)
        return area, self._time_before(end) - self._time_before(start)

    def at(self, time: Array) -> Array:
        """Values at given times; NaN where the quantity is unknown."""
        if not len(self):
            return np.full(len(time), np.nan)
        piece = self._piece_at(time)
        inside = (time >= self.start[piece]) & (time <= self.end[piece])
        return np.where(inside, self._values(piece, time), np.nan)

    def points(self) -> tuple[Array, Array]:
        """Times and values where pieces begin, and where they end and the next begins later."""
        ends = np.append(self.end[:-1] != self.start[1:], [True])[: len(self)]
        time = np.concatenate([self.start, self.end[ends]])
        value = np.concatenate([self.first, self.last[ends]])
        return time, value

    def _piece_at(self, time: Array) -> Array:
        """Index of the last piece that begins by each time; 0 before the first."""
        return np.maximum(np.searchsorted(self.start, time, "right") - 1, 0)

    def _area_before(self, time: Array) -> Array:
        """Integral of the value up to each time."""
        if not len(self):
            return np.zeros(len(time))
        piece = self._piece_at(time)
        reached = np.clip(time, self.start[piece], self.end[piece])
        mean = (self.first[piece] + self._values(piece, reached)) / 2
        return self._upto[0][piece] + mean * (reached - self.start[piece])

    def _time_before(self, time: Array) -> Array:
        """Known time up to each time."""
        if not len(self):
            return np.zeros(len(time), np.int64)
        piece = self._piece_at(time)
        reached = np.clip(time, self.start[piece], self.end[piece])
        return self._upto[1][piece] + (reached - self.start[piece])

    def _values(self, piece: Array, time: Array) -> Array:
        share = (time - self.start[piece]) / (self.end[piece] - self.start[piece])
        return self.first[piece] + (self.last[piece] - self.first[piece]) * share


def empty() -> PiecewiseLinear:
    """Quantity that is known at no time."""
    times, values = np.zeros(0, np.int64), np.zeros(0)
    return PiecewiseLinear(times, times, values, values, times)


def constant(value: float, start: int, end: int) -> PiecewiseLinear:
    """Quantity with one value all the time."""
    edges = np.array([start]), np.array([max(end, start + 1)])
    return PiecewiseLinear(*edges, np.array([value]), np.array([value]), np.zeros(1, np.int64))


def steps(ts: Array, value: Array, start: int, end: int) -> PiecewiseLinear:
    """Quantity whose values hold from their times on, the first one before as well.

    Parameters
    ----------
    ts, value
        At least one; times ascend.
    start, end
        Begin and end of the result.
    """
    inside = (ts > start) & (ts < end)
    begin = np.concatenate([[start], ts[inside]])
    index = np.maximum(np.searchsorted(ts, begin, "right") - 1, 0)
    stop = np.append(begin[1:], [max(end, start + 1)])
    resolution = np.zeros(len(index), np.int64)
    return PiecewiseLinear(begin, stop, value[index], value[index], resolution)


def from_samples(parts: Iterable[Samples]) -> PiecewiseLinear:
    """Quantity given by samples of intervals of time that do not overlap; unknown in gaps."""
    pieces = [_pieces_of(part) for part in parts]
    pieces = [one for one in pieces if len(one)]
    if not pieces:
        return empty()
    if len(pieces) == 1:
        return pieces[0]
    order = np.argsort(np.concatenate([one.start for one in pieces]), kind="stable")
    return concatenated(pieces).where(order)


def concatenated(parts: Sequence[PiecewiseLinear]) -> PiecewiseLinear:
    """Concatenate the pieces of several quantities."""
    if not parts:
        return empty()
    return PiecewiseLinear(
        start=np.concatenate([part.start for part in parts]),
        end=np.concatenate([part.end for part in parts]),
        first=np.concatenate([part.first for part in parts]),
        last=np.concatenate([part.last for part in parts]),
        resolution=np.concatenate([part.resolution for part in parts]),
    )


def _pieces_of(samples: Samples) -> PiecewiseLinear:
    known = np.flatnonzero(~samples.unknown)
    last = known + 1 if samples.is_linear else known
    return PiecewiseLinear(
        samples.ts[known], samples.ts[known + 1], samples.value[known], samples.value[last],
        np.full(len(known), samples.resolution_ns),
    )  # fmt: skip


def weighted_sum(
    parts: Sequence[PiecewiseLinear], weights: Sequence[float] | None = None
) -> PiecewiseLinear:
    """Sum of quantities over the time in which all are known; resolution of the coarsest."""
    weights = [1.0] * len(parts) if weights is None else weights
    if not parts or not all(len(part) for part in parts):
        return empty()
    # between two neighbouring edges of any part, no part begins or ends a piece
    edges = np.unique(np.concatenate([t for part in parts for t in (part.start, part.end)]))
    start, end = edges[:-1], edges[1:]
    all_known = np.ones(len(start), np.bool_)
    first, last, coarsest = np.zeros(len(start)), np.zeros(len(start)), np.zeros(len(start), int)
    for part, weight in zip(parts, weights, strict=True):
        piece = part._piece_at(start)  # noqa: SLF001
        all_known &= (start >= part.start[piece]) & (end <= part.end[piece])
        first += weight * part._values(piece, start)  # noqa: SLF001
        last += weight * part._values(piece, end)  # noqa: SLF001
        coarsest = np.maximum(coarsest, part.resolution[piece])
    return PiecewiseLinear(start, end, first, last, coarsest.astype(np.int64)).where(all_known)


@dataclass(frozen=True)
class PositiveIntervals:
    """Intervals of time in which a quantity is above 0, ascending and without overlap.

    Parameters
    ----------
    start, end
        Nanoseconds, rounded to whole ones where it crosses 0 between samples.
    time
        Exact durations, nanoseconds.
    peak, peak_at
        Its highest value, and the first time at which it has it.
    area
        Its integral, in units of value times seconds.
    resolution
        The coarsest of its pieces.
    """

    start: Array
    end: Array
    time: Array
    peak: Array
    peak_at: Array
    area: Array
    resolution: Array

    def __len__(self) -> int:
        return len(self.start)


def positive_intervals(height: PiecewiseLinear) -> PositiveIntervals:
    """Find the intervals in which a quantity is above 0.

    They begin and end where the linear pieces cross 0. Pieces that touch where the quantity is
    above 0 are one interval; a gap, or a single time at which it is 0, separates two.
    """
    pieces = height.where((height.first > 0) | (height.last > 0))
    if not len(pieces):
        times, values = np.zeros(0, np.int64), np.zeros(0)
        return PositiveIntervals(times, times, values, values, times, values, times)
    first, last, width = pieces.first, pieces.last, pieces.end - pieces.start
    # shares of each piece's width at which it rises above 0 and falls below it
    rise = np.where(first <= 0, -first / np.where(first <= 0, last - first, 1), 0.0)
    fall = np.where(last <= 0, first / np.where(last <= 0, first - last, 1), 1.0)
    begin, stop = rise * width, fall * width
    area = (np.maximum(first, 0) + np.maximum(last, 0)) / 2 * (stop - begin)
    # runs of pieces that continue each other: index of the first and the last piece of each
    continues = (pieces.start[1:] == pieces.end[:-1]) & (first[1:] > 0) & (last[:-1] > 0)
    from_ = np.flatnonzero(np.append([True], ~continues))
    until = np.append(from_[1:], len(pieces)) - 1
    top = np.maximum(first, last)
    peak = np.maximum.reduceat(top, from_)
    # the first piece of each run whose top is the run's peak
    highest = np.flatnonzero(top == np.repeat(peak, until - from_ + 1))
    highest = highest[np.searchsorted(highest, from_)]
    top_at = np.where(first >= last, pieces.start, pieces.end)
    return PositiveIntervals(
        start=(pieces.start + np.rint(begin).astype(np.int64))[from_],
        end=(pieces.start + np.rint(stop).astype(np.int64))[until],
        time=np.add.reduceat(stop - begin, from_),
        peak=peak,
        peak_at=top_at[highest],
        area=np.add.reduceat(area, from_) * 1e-9,
        resolution=np.maximum.reduceat(pieces.resolution, from_),
    )
