"""Samples of one quantity of one GPU, and their statistics over the time of each node."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit

GAP = 6.0
"""Samples further apart than this many median periods are of a sampler that was held up or missed
rows: what was between them is unknown. Loops of nominally 0.2 s were seen to take up to 1.1 s."""
_BLOCK = 64
"""Samples per block of the tables of extremes. Chosen: a node scans at most two partial blocks one
sample at a time, and a table needs only 1/64 of the memory of the samples per level."""


@dataclass(frozen=True)
class Samples:
    """Samples in the order of time; at least one.

    Parameters
    ----------
    ts
        Times of the samples, nanoseconds; ascending.
    value
        Their values.
    unknown
        True where nothing is known between a sample and the next one; True for the last.
    is_linear
        True if values change linearly from one sample to the next; otherwise they hold.
    uncertainty_ns
        A sample's time is known to plus or minus this.
    period_ns
        Usual time between samples; 0 if there is only one.
    is_logged
        True if samples exist only where the value changed, so that long times between them are
        as good as short ones.
    """

    ts: Array
    value: Array
    unknown: Array
    is_linear: bool
    uncertainty_ns: int
    period_ns: int
    is_logged: bool = False

    @property
    def resolution_ns(self) -> int:
        """Width of the time span that a value at any one time may belong to."""
        return self.period_ns + 2 * self.uncertainty_ns

    def as_steps(self, value: Array, unknown: Array) -> Samples:
        """Return other values at the same times, each of which holds until the next one."""
        return replace(self, value=value, unknown=unknown, is_linear=False)


def periodic_samples(
    ts: Array,
    value: Array,
    uncertainty_ns: int,
    *,
    is_linear: bool = False,
    period_ns: int | None = None,
) -> Samples:
    """Samples that were taken periodically; of several at one time the last counts.

    Parameters
    ----------
    ts, value, uncertainty_ns, is_linear
        See `Samples`.
    period_ns
        Usual time between samples, where it is known from elsewhere.
    """
    ts, value = _last_at_each_time(ts, value)
    step = np.diff(ts)
    period = _quantile_step(step, 0.5) if period_ns is None else period_ns
    unknown = np.append(step > GAP * period, [True])
    return Samples(ts, value, unknown, is_linear, int(uncertainty_ns), period)


def change_log_samples(ts: Array, value: Array, uncertainty_ns: int) -> Samples:
    """Samples where the value changed; one that repeats the value marks the end of logging."""
    ts, value = _last_at_each_time(ts, value)
    step = np.diff(ts)
    # changes are rarer than the logger's readings: its period is near the shortest steps
    period = _quantile_step(step, 0.1)
    ended = np.append([False], value[1:] == value[:-1])
    ended[-1] = True
    return Samples(ts, value, ended, False, int(uncertainty_ns), period, is_logged=True)


def window_samples(ts: Array, value: Array, uncertainty_ns: int) -> Samples:
    """Means of windows: a sample at each begin, and at each end unless the next begins there.

    Between windows nothing is known; no window is so long that it counts as a gap.
    """
    ts, value = _last_at_each_time(ts, value)
    # of a run of equal values every second sample ends a window: A A B B A -> begin end begin …
    index = np.arange(len(ts))
    new = np.append([True], value[1:] != value[:-1])
    ended = (index - np.maximum.accumulate(np.where(new, index, 0))) % 2 == 1
    ended[-1] = True
    period = _quantile_step(np.diff(ts)[~ended[:-1]], 0.5)
    return Samples(ts, value, ended, False, int(uncertainty_ns), period)


def usual_step(ts: Array) -> int:
    """Median time between samples in the order of time; 0 if there is only one."""
    step = np.diff(ts)
    return _quantile_step(step[step > 0], 0.5)


def _quantile_step(step: Array, share: float) -> int:
    """Step at a quantile; of few, the shorter one, as one of two may be a gap."""
    if not step.size:
        return 0
    index = int((len(step) - 1) * share)
    return int(np.partition(step, index)[index])


def _last_at_each_time(ts: Array, value: Array) -> tuple[Array, Array]:
    ts, value = np.array(ts, np.int64), np.array(value, np.float64)
    last = np.append(ts[1:] != ts[:-1], [True])
    return (ts, value) if last.all() else (ts[last], value[last])


@dataclass(frozen=True)
class SampleStatistics:
    """Statistics of samples over each node; NaN (0 in `step_ns`) unless known all of its time.

    Parameters
    ----------
    mean, min, max
        Over each node's time.
    step_ns
        Longest time between the samples that these are computed from, plus their uncertainty.
    """

    mean: Array
    min: Array
    max: Array
    step_ns: Array


def sample_statistics(samples: Samples, start: Array, end: Array) -> SampleStatistics:
    """Compute mean, minimum and maximum of samples over the time of each node.

    Parameters
    ----------
    samples
        Samples of the nodes' GPU.
    start, end
        Times of the nodes, nanoseconds; fastest in ascending order of starts.
    """
    s = samples
    value, width = s.value, np.append(np.diff(s.ts), [0]).astype(np.float64)
    # integral of the value and number of gaps before each sample: a node's are differences
    halfway = np.diff(value) / 2 if s.is_linear else 0.0
    area = np.append([0.0], np.cumsum((value[:-1] + halfway) * width[:-1]))
    gaps = np.append([0], np.cumsum(s.unknown))
    tables = _maximum_tables(value, -value, width)
    out = np.full((4, len(start)), np.nan)
    start, end = np.array(start, np.int64), np.array(end, np.int64)
    first, last = _sample_ranges(s.ts, start, end)
    _fill_statistics(
        s.ts, value, width, area, gaps, tables, s.is_linear, first, last, start, end, out
    )
    known = ~np.isnan(out[3])
    step = np.zeros(len(start), np.int64)
    step[known] = s.period_ns if s.is_logged else out[3][known]
    step[known] = np.maximum(step[known], 1) + 2 * s.uncertainty_ns
    return SampleStatistics(out[0], out[1], out[2], step)


@jit  # nodes mostly ascend, so that each search continues at the one before: O(nodes + samples)
def _sample_ranges(ts: Array, start: Array, end: Array) -> tuple[Array, Array]:
    """Last sample at or before each start; last sample before each end, but not before that."""
    n, count = len(start), len(ts)
    first, last = np.empty(n, np.int64), np.empty(n, np.int64)
    index, before = -1, np.int64(-(1 << 62))
    for i in range(n):
        if start[i] < before:
            index = np.searchsorted(ts, start[i], "right") - 1
        before = start[i]
        while index + 1 < count and ts[index + 1] <= before:
            index += 1
        first[i] = index
        stop, stride = index, 1
        while stop + stride < count and ts[stop + stride] < end[i]:  # ever longer strides,
            stop += stride
            stride *= 2
        while stride:  # and shorter again
            if stop + stride < count and ts[stop + stride] < end[i]:
                stop += stride
            stride //= 2
        last[i] = stop
    return first, last


def _maximum_tables(*columns: Array) -> Array:
    """Sparse tables: ``[column, k, i]`` is the maximum of the 2^k whole blocks from block i on."""
    blocks = max(len(columns[0]) // _BLOCK, 1)
    levels = int(blocks).bit_length()
    tables = np.full((len(columns), levels, blocks), -np.inf)
    for table, column in zip(tables, columns, strict=True):
        whole = column[: len(column) // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
        if len(whole):
            table[0] = whole.max(axis=1)
        for level in range(1, levels):
            half = 1 << (level - 1)
            table[level] = table[level - 1]
            table[level, :-half] = np.maximum(table[level - 1, :-half], table[level - 1, half:])
    return tables


@jit  # the two ends one by one; blocks between by two overlapping entries of the table
def _maximum(column: Array, sign: float, table: Array, first: int, last: int) -> float:
    """Maximum of ``sign * column[first:last + 1]``."""
    maximum = -np.inf
    start = (first + _BLOCK - 1) // _BLOCK
    stop = (last + 1) // _BLOCK
    if stop <= start:
        for i in range(first, last + 1):
            maximum = max(maximum, sign * column[i])
        return maximum
    for i in range(first, start * _BLOCK):
        maximum = max(maximum, sign * column[i])
    for i in range(stop * _BLOCK, last + 1):
        maximum = max(maximum, sign * column[i])
    level, length = 0, stop - start
    while length >> (level + 1):
        level += 1
    return max(maximum, table[level, start], table[level, stop - (1 << level)])


@jit  # called by the loop over nodes
def _value_at(ts: Array, value: Array, i: int, time: int, linear: bool) -> float:  # noqa: FBT001
    """Value at a time from sample i on."""
    if not linear or time == ts[i]:
        return value[i]
    return value[i] + (value[i + 1] - value[i]) * ((time - ts[i]) / (ts[i + 1] - ts[i]))


@jit  # nodes cover different numbers of samples, which no single array operation can express
def _fill_statistics(  # noqa: PLR0913, PLR0917 # one loop over nodes, with all that it looks up
    ts: Array,
    value: Array,
    width: Array,
    area: Array,
    gaps: Array,
    tables: Array,
    linear: bool,  # noqa: FBT001
    first: Array,
    last: Array,
    start: Array,
    end: Array,
    out: Array,
) -> None:
    """Fill mean, minimum, maximum and longest step of each node that samples cover completely.

    ::

        samples   a       a+1  …  b
                  |--+-----|------|---+--|     mean = (partial area at both ends
        node         start ========== end              + area[b] - area[a + 1]) / duration
    """
    for i in range(len(start)):
        a, b = first[i], last[i]
        if a < 0 or (gaps[b + 1] > gaps[a] and not (ts[a] == start[i] == end[i])):
            continue
        begin = _value_at(ts, value, a, start[i], linear)
        if end[i] <= start[i]:
            out[:3, i] = begin
            out[3, i] = width[a] if gaps[a + 1] == gaps[a] else 0.0
            continue
        stop = _value_at(ts, value, b, end[i], linear)
        low, high = min(begin, stop), max(begin, stop)
        if a == b:
            mean = (begin + stop) / 2
        else:
            low = min(low, -_maximum(value, -1.0, tables[1], a + 1, b))
            high = max(high, _maximum(value, 1.0, tables[0], a + 1, b))
            next_, before = value[a + 1] if linear else begin, value[b] if linear else stop
            mean = (begin + next_) / 2 * (ts[a + 1] - start[i])
            mean += (before + stop) / 2 * (end[i] - ts[b])
            mean += area[b] - area[a + 1]
            mean /= end[i] - start[i]
        out[0, i] = min(max(mean, low), high)
        out[1, i], out[2, i] = low, high
        out[3, i] = _maximum(width, 1.0, tables[2], a, b)
