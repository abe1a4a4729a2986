"""Samples of one quantity of one GPU, and what each node sees of them: numba loops over columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

GAP = 6.0
"""Samples further apart than this many median periods are of a sampler that was held up or missed
rows: what was between them is not known. Loops of nominally 0.2 s were seen to take up to 1.1 s."""
_SCANNED = 64
"""So many samples are looked at one by one; of more, blocks of as many are looked up."""


@dataclass(frozen=True)
class Samples:
    """Samples in the order of time, one at least.

    Parameters
    ----------
    ts
        When they were taken, nanoseconds; ascending.
    value
        Their values.
    unknown
        For each, whether nothing is known from it to the next one; True for the last.
    is_straight
        Whether values go straight from one sample to the next; they hold otherwise.
    uncertainty_ns
        A sample's time is known to plus or minus this.
    period_ns
        Usual time between samples; 0 where there is but one.
    is_logged
        Whether samples stand only where the value changed, so that long times between them are
        as good as short ones.
    """

    ts: Array
    value: Array
    unknown: Array
    is_straight: bool
    uncertainty_ns: int
    period_ns: int
    is_logged: bool = False

    @property
    def resolution_ns(self) -> int:
        """Width of the time that a value at any moment may be of."""
        return self.period_ns + 2 * self.uncertainty_ns

    def held(self, value: Array, unknown: Array) -> Samples:
        """Other values at the same moments, each until the next one."""
        return replace(self, value=value, unknown=unknown, is_straight=False)


def sampled(
    ts: Array,
    value: Array,
    uncertainty_ns: int,
    *,
    is_straight: bool = False,
    period_ns: int | None = None,
) -> Samples:
    """Samples that were taken again and again; of several at one time the last counts.

    Parameters
    ----------
    ts, value, uncertainty_ns, is_straight
        See `Samples`.
    period_ns
        Usual time between samples, where it is known from elsewhere.
    """
    ts, value = _once(ts, value)
    step = np.diff(ts)
    period = _usual(step, 0.5) if period_ns is None else period_ns
    unknown = np.append(step > GAP * period, [True])
    return Samples(ts, value, unknown, is_straight, int(uncertainty_ns), period)


def logged(ts: Array, value: Array, uncertainty_ns: int) -> Samples:
    """Samples where the value changed; one that repeats the value says that logging ended there."""
    ts, value = _once(ts, value)
    step = np.diff(ts)
    period = _usual(step, 0.1)
    ended = np.append([False], value[1:] == value[:-1])
    ended[-1] = True
    return Samples(ts, value, ended, False, int(uncertainty_ns), period, is_logged=True)


def windowed(ts: Array, value: Array, uncertainty_ns: int) -> Samples:
    """Means of windows: one where each begins and again where it ends, unless the next begins there.

    Between windows nothing is known; windows are never too long to be known.
    """
    ts, value = _once(ts, value)
    at = np.arange(len(ts))
    new = np.append([True], value[1:] != value[:-1])
    ended = (at - np.maximum.accumulate(np.where(new, at, 0))) % 2 == 1
    ended[-1] = True
    period = _usual(np.diff(ts)[~ended[:-1]], 0.5)
    return Samples(ts, value, ended, False, int(uncertainty_ns), period)


def usual_step(ts: Array) -> int:
    """Usual time between samples in the order of time; 0 where there is but one."""
    step = np.diff(ts)
    return _usual(step[step > 0], 0.5)


def _usual(step: Array, share: float) -> int:
    """A step that so many are no longer than; of few, the shorter: one of two may be a gap."""
    if not step.size:
        return 0
    place = int((len(step) - 1) * share)
    return int(np.partition(step, place)[place])


def _once(ts: Array, value: Array) -> tuple[Array, Array]:
    ts, value = np.array(ts, np.int64), np.array(value, np.float64)
    last = np.append(ts[1:] != ts[:-1], [True])
    return (ts, value) if last.all() else (ts[last], value[last])


@dataclass(frozen=True)
class Seen:
    """What nodes see of samples; NaN (0 in `step_ns`) where they are not known all the time.

    Parameters
    ----------
    mean, least, most
        Over each node's time.
    step_ns
        Longest time between the samples that this is made of, and their own uncertainty.
    """

    mean: Array
    least: Array
    most: Array
    step_ns: Array


def seen(samples: Samples, start: Array, end: Array) -> Seen:
    """What nodes see of samples.

    Parameters
    ----------
    samples
        Samples of their GPU.
    start, end
        When they ran, nanoseconds; most often in ascending order of starts.
    """
    s = samples
    value, width = s.value, np.append(np.diff(s.ts), [0]).astype(np.float64)
    halfway = np.diff(value) / 2 if s.is_straight else 0.0
    area = np.append([0.0], np.cumsum((value[:-1] + halfway) * width[:-1]))
    gaps = np.append([0], np.cumsum(s.unknown))
    tables = _tables(value, -value, width)
    out = np.full((4, len(start)), np.nan)
    start, end = np.array(start, np.int64), np.array(end, np.int64)
    rows = _rows(s.ts, start, end)
    _see(s.ts, value, width, area, gaps, tables, s.is_straight, *rows, start, end, out)
    known = ~np.isnan(out[3])
    step = np.zeros(len(start), np.int64)
    step[known] = s.period_ns if s.is_logged else out[3][known]
    step[known] = np.maximum(step[known], 1) + 2 * s.uncertainty_ns
    return Seen(out[0], out[1], out[2], step)


@jit
def _rows(ts: Array, start: Array, end: Array) -> tuple[Array, Array]:
    """Last sample at or before each start; last sample before each end, but not before that."""
    n, count = len(start), len(ts)
    first, last = np.empty(n, np.int64), np.empty(n, np.int64)
    at, before = -1, np.int64(-(1 << 62))
    for i in range(n):
        if start[i] < before:
            at = np.searchsorted(ts, start[i], "right") - 1
        before = start[i]
        while at + 1 < count and ts[at + 1] <= before:
            at += 1
        first[i] = at
        stop, far = at, 1
        while stop + far < count and ts[stop + far] < end[i]:  # ever longer strides,
            stop += far
            far *= 2
        while far:  # and shorter again
            if stop + far < count and ts[stop + far] < end[i]:
                stop += far
            far //= 2
        last[i] = stop
    return first, last


def _tables(*columns: Array) -> Array:
    """For each column and power of two, the most of so many whole blocks from each on."""
    blocks = max(len(columns[0]) // _SCANNED, 1)
    levels = int(blocks).bit_length()
    tables = np.full((len(columns), levels, blocks), -np.inf)
    for table, column in zip(tables, columns, strict=True):
        whole = column[: len(column) // _SCANNED * _SCANNED].reshape(-1, _SCANNED)
        if len(whole):
            table[0] = whole.max(axis=1)
        for level in range(1, levels):
            half = 1 << (level - 1)
            table[level] = table[level - 1]
            table[level, :-half] = np.maximum(table[level - 1, :-half], table[level - 1, half:])
    return tables


@jit
def _most(column: Array, sign: float, table: Array, first: int, last: int) -> float:
    """Most of ``sign * column[first:last + 1]``."""
    most = -np.inf
    start = (first + _SCANNED - 1) // _SCANNED
    stop = (last + 1) // _SCANNED
    if stop <= start:
        for i in range(first, last + 1):
            most = max(most, sign * column[i])
        return most
    for i in range(first, start * _SCANNED):
        most = max(most, sign * column[i])
    for i in range(stop * _SCANNED, last + 1):
        most = max(most, sign * column[i])
    level, length = 0, stop - start
    while length >> (level + 1):
        level += 1
    return max(most, table[level, start], table[level, stop - (1 << level)])


@jit
def _at(ts: Array, value: Array, i: int, moment: int, straight: bool) -> float:  # noqa: FBT001
    """Value at a moment from sample i on."""
    if not straight or moment == ts[i]:
        return value[i]
    return value[i] + (value[i + 1] - value[i]) * ((moment - ts[i]) / (ts[i + 1] - ts[i]))


@jit
def _see(  # noqa: PLR0913, PLR0917 # one loop over nodes, with all that it looks up
    ts: Array,
    value: Array,
    width: Array,
    area: Array,
    gaps: Array,
    tables: Array,
    straight: bool,  # noqa: FBT001
    first: Array,
    last: Array,
    start: Array,
    end: Array,
    out: Array,
) -> None:
    """Fill mean, least, most and longest step of each node that is covered all the time."""
    for i in range(len(start)):
        a, b = first[i], last[i]
        if a < 0 or (gaps[b + 1] > gaps[a] and not (ts[a] == start[i] == end[i])):
            continue
        begin = _at(ts, value, a, start[i], straight)
        if end[i] <= start[i]:
            out[:3, i] = begin
            out[3, i] = width[a] if gaps[a + 1] == gaps[a] else 0.0
            continue
        stop = _at(ts, value, b, end[i], straight)
        low, high = min(begin, stop), max(begin, stop)
        if a == b:
            mean = (begin + stop) / 2
        else:
            low = min(low, -_most(value, -1.0, tables[1], a + 1, b))
            high = max(high, _most(value, 1.0, tables[0], a + 1, b))
            next_, before = value[a + 1] if straight else begin, value[b] if straight else stop
            mean = (begin + next_) / 2 * (ts[a + 1] - start[i])
            mean += (before + stop) / 2 * (end[i] - ts[b])
            mean += area[b] - area[a + 1]
            mean /= end[i] - start[i]
        out[0, i] = min(max(mean, low), high)
        out[1, i], out[2, i] = low, high
        out[3, i] = _most(width, 1.0, tables[2], a, b)
