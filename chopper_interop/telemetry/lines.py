"""A quantity of a GPU over time as straight pieces: its means in windows, and where it is above 0."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.telemetry.samples import Samples


@dataclass(frozen=True)
class Lines:
    """Pieces of time in which a quantity is known, ascending and without overlap.

    Parameters
    ----------
    start, end
        When each begins and ends, nanoseconds; none is empty.
    first, last
        Values there; in between it goes straight.
    resolution
        Width of the time that a value within the piece may be of, nanoseconds.
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
        """How long the quantity is known."""
        return int((self.end - self.start).sum())

    @cached_property
    def _upto(self) -> tuple[Array, Array]:
        """Integral of value and of time before each piece."""
        width = self.end - self.start
        area = np.append([0.0], np.cumsum((self.first + self.last) / 2 * width))
        return area, np.append([0], np.cumsum(width))

    def where(self, which: Array | slice) -> Lines:
        """Some of the pieces."""
        return Lines(
            self.start[which], self.end[which], self.first[which], self.last[which],
            self.resolution[which],
        )  # fmt: skip

    def within(self, low: int, high: int) -> Lines:
        """The parts of the pieces in a window; none in one without length."""
        first = int(np.searchsorted(self.end, low, "right"))
        last = int(np.searchsorted(self.start, high, "left"))
        piece = np.arange(first, max(first, last) if high > low else first)
        start, end = np.maximum(self.start[piece], low), np.minimum(self.end[piece], high)
        values = self._values(piece, start), self._values(piece, end)
        return Lines(start, end, *values, self.resolution[piece])

    def times(self, factor: float) -> Lines:
        """The quantity multiplied."""
        first, last = self.first * factor, self.last * factor
        return Lines(self.start, self.end, first, last, self.resolution)

    def means(self, start: Array, end: Array) -> tuple[Array, Array]:
        """Mean over the known time of windows (NaN where there is none), and how long that is."""
        area, time = self.integrals(start, end)
        return area / np.where(time > 0, time, np.nan), time

    def integrals(self, start: Array, end: Array) -> tuple[Array, Array]:
        """Integral over the known time of windows, in units of value times nanoseconds, and that time."""
        area, time = (np.subtract(*(self._until(t, k) for t in (end, start))) for k in (0, 1))
        return area, time

    def at(self, moment: Array) -> Array:
        """Values at moments; NaN where it is not known."""
        if not len(self):
            return np.full(len(moment), np.nan)
        piece = np.maximum(np.searchsorted(self.start, moment, "right") - 1, 0)
        inside = (moment >= self.start[piece]) & (moment <= self.end[piece])
        return np.where(inside, self._values(piece, moment), np.nan)

    def points(self) -> tuple[Array, Array]:
        """Where pieces begin, and end without the next beginning there; values there."""
        ends = np.append(self.end[:-1] != self.start[1:], [True])[: len(self)]
        moment = np.concatenate([self.start, self.end[ends]])
        value = np.concatenate([self.first, self.last[ends]])
        return moment, value

    def _until(self, moment: Array, which: int) -> Array:
        """Integral up to each moment, of the value (0) or of the time (1)."""
        if not len(self):
            return np.zeros(len(moment), (np.float64, np.int64)[which])
        piece = np.maximum(np.searchsorted(self.start, moment, "right") - 1, 0)
        reached = np.clip(moment, self.start[piece], self.end[piece])
        part = reached - self.start[piece]
        if which == 0:
            return (
                self._upto[0][piece] + (self.first[piece] + self._values(piece, reached)) / 2 * part
            )
        return self._upto[1][piece] + part

    def _values(self, piece: Array, moment: Array) -> Array:
        share = (moment - self.start[piece]) / (self.end[piece] - self.start[piece])
        return self.first[piece] + (self.last[piece] - self.first[piece]) * share


def none() -> Lines:
    """Nothing known."""
    whole, real = np.zeros(0, np.int64), np.zeros(0)
    return Lines(whole, whole, real, real, whole)


def constant(value: float, start: int, end: int) -> Lines:
    """One value all the time."""
    edges = np.array([start]), np.array([max(end, start + 1)])
    return Lines(*edges, np.array([value]), np.array([value]), np.zeros(1, np.int64))


def held(ts: Array, value: Array, start: int, end: int) -> Lines:
    """Values that hold from their moments on, the first one before as well.

    Parameters
    ----------
    ts, value
        One at least; moments ascend.
    start, end
        From when to when.
    """
    inside = (ts > start) & (ts < end)
    begin = np.concatenate([[start], ts[inside]])
    at = np.maximum(np.searchsorted(ts, begin, "right") - 1, 0)
    stop = np.append(begin[1:], [max(end, start + 1)])
    return Lines(begin, stop, value[at], value[at], np.zeros(len(at), np.int64))


def of_samples(parts: Iterable[Samples]) -> Lines:
    """What samples tell of stretches of time that do not overlap; gaps are not known."""
    found = [_of_samples(part) for part in parts]
    found = [lines for lines in found if len(lines)]
    if not found:
        return none()
    if len(found) == 1:
        return found[0]
    order = np.argsort(np.concatenate([lines.start for lines in found]), kind="stable")
    return together(found).where(order)


def together(parts: Sequence[Lines]) -> Lines:
    """Pieces of several, one after the other, as one."""
    if not parts:
        return none()
    return Lines(
        start=np.concatenate([lines.start for lines in parts]),
        end=np.concatenate([lines.end for lines in parts]),
        first=np.concatenate([lines.first for lines in parts]),
        last=np.concatenate([lines.last for lines in parts]),
        resolution=np.concatenate([lines.resolution for lines in parts]),
    )


def _of_samples(samples: Samples) -> Lines:
    known = np.flatnonzero(~samples.unknown)
    last = known + 1 if samples.is_straight else known
    return Lines(
        samples.ts[known], samples.ts[known + 1], samples.value[known], samples.value[last],
        np.full(len(known), samples.resolution_ns),
    )  # fmt: skip


def summed(parts: Sequence[Lines], weights: Sequence[float] | None = None) -> Lines:
    """Weighted sum of quantities, of the time in which all are known; resolution of the coarsest."""
    weights = [1.0] * len(parts) if weights is None else weights
    if not parts or not all(len(lines) for lines in parts):
        return none()
    edges = np.unique(np.concatenate([t for lines in parts for t in (lines.start, lines.end)]))
    start, end = edges[:-1], edges[1:]
    every = np.ones(len(start), np.bool_)
    first, last, coarsest = np.zeros(len(start)), np.zeros(len(start)), np.zeros(len(start), int)
    for lines, weight in zip(parts, weights, strict=True):
        piece = np.maximum(np.searchsorted(lines.start, start, "right") - 1, 0)
        every &= (start >= lines.start[piece]) & (end <= lines.end[piece])
        first += weight * lines._values(piece, start)  # noqa: SLF001
        last += weight * lines._values(piece, end)  # noqa: SLF001
        coarsest = np.maximum(coarsest, lines.resolution[piece])
    return Lines(start, end, first, last, coarsest.astype(np.int64)).where(every)


@dataclass(frozen=True)
class Above:
    """Stretches of time in which a quantity is above 0, ascending and without overlap.

    Parameters
    ----------
    start, end
        Nanoseconds, rounded to whole ones where it crosses 0 between samples.
    time
        How long exactly, nanoseconds.
    peak, peak_at
        Its highest value, and when it first has it.
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


def above(height: Lines) -> Above:
    """Where a quantity is above 0.

    Crossings are where straight lines cross 0. Stretches that meet where it is above 0 are one; a
    gap, and a moment at which it is 0, part them.
    """
    some = height.where((height.first > 0) | (height.last > 0))
    if not len(some):
        whole, real = np.zeros(0, np.int64), np.zeros(0)
        return Above(whole, whole, real, real, whole, real, whole)
    first, last, width = some.first, some.last, some.end - some.start
    rise = np.where(first <= 0, -first / np.where(first <= 0, last - first, 1), 0.0)
    fall = np.where(last <= 0, first / np.where(last <= 0, first - last, 1), 1.0)
    begin, stop = rise * width, fall * width
    area = (np.maximum(first, 0) + np.maximum(last, 0)) / 2 * (stop - begin)
    meets = (some.start[1:] == some.end[:-1]) & (first[1:] > 0) & (last[:-1] > 0)
    at = np.flatnonzero(np.append([True], ~meets))
    until = np.append(at[1:], len(some)) - 1
    top = np.maximum(first, last)
    peak = np.maximum.reduceat(top, at)
    highest = np.flatnonzero(top == np.repeat(peak, until - at + 1))
    highest = highest[np.searchsorted(highest, at)]
    when = np.where(first >= last, some.start, some.end)
    return Above(
        start=(some.start + np.rint(begin).astype(np.int64))[at],
        end=(some.start + np.rint(stop).astype(np.int64))[until],
        time=np.add.reduceat(stop - begin, at),
        peak=peak,
        peak_at=when[highest],
        area=np.add.reduceat(area, at) * 1e-9,
        resolution=np.maximum.reduceat(some.resolution, at),
    )
