"""Counter lanes: samples of telemetry, hardware counters of kernels, and what a GPU achieves.

What it achieves are rates of its kernels, added where several run at once, and the energy that they
took, from annotation columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chopper_interop.arrays import Array, gather, spill
from chopper_interop.converters.perfetto.chopper_metadata import DISPATCH_SOURCE, RATES_SOURCE
from chopper_interop.converters.perfetto.write.derived_tracks import work_of_gpus
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class CounterLane:
    """Name of a counter lane and all that decides on its position.

    Parameters
    ----------
    rank, device
        Rank (-1: the node) and device (-1: the host) that it belongs to.
    source, name, unit
        Tool that measured it, its name, and the unit of its values.
    uncertainty_ns
        Uncertainty of the tool's times; groups of tools with smaller ones are placed nearer the GPU's work.
    steady
        True if it never changes: such lanes go last, into a group of their own.
    ordinal
        Number among lanes that differ in nothing else that is drawn, 0 for the first of them.
    """

    rank: int
    device: int
    source: str
    name: str
    unit: str
    uncertainty_ns: int = 0
    steady: bool = False
    ordinal: int = 0

    @property
    def label(self) -> str:
        """Name as it is drawn: the trace processor puts tracks of one name and parent together."""
        return f"{self.name} ({self.ordinal + 1})" if self.ordinal else self.name


@dataclass(frozen=True)
class Samples:
    """Samples of a series that are drawn on a counter lane.

    Parameters
    ----------
    lane
        The lane.
    ts, value
        Times since the trace's origin (ns) and values, possibly none.
    outside
        How many samples are not drawn, as they lie outside of the window.
    ends
        True if the last value is `NaN`, which ends the lane before the end of the trace.
    """

    lane: CounterLane
    ts: Array
    value: Array
    outside: int = 0
    ends: bool = False


def sampled_lanes(trace: Trace, window: tuple[int, int] | None) -> Iterator[Samples]:
    """Yield the samples of the trace's series, on lanes that end when their samples do.

    A value is drawn until the next one comes. The last is drawn for as long as samples are apart in
    the middle of their series, and then `NaN`: the UI draws nothing there, and SQL has null.

    Parameters
    ----------
    window
        First and last `ts` to draw, ns; all if None. The value with which the window begins is
        drawn at its beginning.
    """
    bounds = trace.sample_bounds
    all_ts, all_values = trace.array("ts", "samples"), trace.array("value", "samples")
    last = end_of_picture(trace)
    for row, (lane, next_ts) in enumerate(_series_lanes(trace, bounds, all_ts)):
        ts, value = (a[bounds[row] : bounds[row + 1]] for a in (all_ts, all_values))
        end = _end_of_samples(ts)
        total = len(ts)
        if window is not None and total:
            first = max(int(np.searchsorted(ts, window[0], "right")) - 1, 0)
            stop = int(np.searchsorted(ts, window[1], "right"))
            ts, value = np.maximum(ts[first:stop], window[0]), value[first:stop]
        outside = total - len(ts)
        steady = len(value) > 0 and bool((value == value[0]).all())
        ends = len(ts) > 0 and ts[-1] < end < min(last, next_ts)
        if ends:
            ts, value = np.append(ts, end), np.append(value, np.nan)
        yield Samples(replace(lane, steady=steady), ts, value, outside, ends)


def end_of_picture(trace: Trace) -> int:
    """Return the end of the nodes, or of samples without any, as `ts`."""
    if trace.nodes.num_rows:
        return int(trace.array("ts").min()) + trace.span_ns
    return int(trace.array("ts", "samples").max(initial=0))


def _end_of_samples(ts: Array) -> int:
    """Return how long the last sample is drawn; of a single one nothing says that it ever ended."""
    return int(ts[-1] + np.median(np.diff(ts))) if len(ts) > 1 else _NEVER


def _series_lanes(trace: Trace, bounds: Array, ts: Array) -> list[tuple[CounterLane, int]]:
    """Return each series' lane, and the first sample of the next series on it.

    Series of one name that were sampled one after the other share a lane, as captures of one tool;
    those sampled at once do not.
    """
    rows = trace.series.to_pylist()
    result = [(CounterLane(-1, -1, "", "", ""), _NEVER)] * len(rows)
    lanes: dict[tuple[Any, ...], list[tuple[CounterLane, int]]] = {}
    for row in sorted(range(len(rows)), key=lambda r: _first(ts[bounds[r] : bounds[r + 1]])):
        series, own = rows[row], ts[bounds[row] : bounds[row + 1]]
        same = lanes.setdefault(tuple(series[c] for c in ("rank", "device", "source", "name")), [])
        lane = CounterLane(**series, ordinal=len(same))
        begin = _first(own)
        for k, (other, before) in enumerate(same):
            end = _first(ts[bounds[before] : bounds[before + 1]][::-1])
            if end < begin and replace(other, ordinal=lane.ordinal) == lane:
                lane, same[k] = other, (other, row)
                result[before] = (other, begin)
                break
        else:
            same.append((lane, row))
        result[row] = (lane, _NEVER)
    return result


def _first(ts: Array) -> int:
    return int(ts[0]) if len(ts) else _NEVER


def dispatch_lanes(trace: Trace) -> Iterator[Samples]:
    """Yield the lanes of hardware counters: a dispatch's value while it runs, and then 0."""
    if not trace.counters.num_rows:
        return
    node, code, value = (trace.array(c, "counters") for c in ("node", "name", "value"))
    names = trace.counters["name"].chunk(0).dictionary.to_pylist()
    rank = trace.array("rank")[node]
    device = trace.array("device", "lanes")[trace.array("lane")[node]]
    first, group = gather.distinct(rank, device, code)
    bounds, rows = gather.group_values(group, np.arange(len(node)), len(first))
    for g, row in enumerate(first.tolist()):
        lane_rows = rows[bounds[g] : bounds[g + 1]]
        ts, steps = _steps(trace, node[lane_rows], value[lane_rows])
        name = names[code[row]]
        unit = "ns" if name.endswith("_ns") else ""
        lane = CounterLane(int(rank[row]), int(device[row]), DISPATCH_SOURCE, name, unit)
        yield Samples(lane, ts, steps)


def _steps(trace: Trace, nodes: Array, value: Array) -> tuple[Array, Array]:
    """Values from each node's start on, and 0 from its end unless the next has begun by then."""
    order = np.argsort(trace.array("ts")[nodes], kind="stable")
    start, value = trace.array("ts")[nodes][order], value[order]
    end = start + trace.array("dur")[nodes][order]
    falls = np.append(end[:-1] < start[1:], [True])
    ts = np.concatenate([start, end[falls]])
    steps = np.concatenate([value, np.zeros(np.count_nonzero(falls))])
    by_time = np.argsort(ts, kind="stable")
    return ts[by_time], steps[by_time]


@dataclass(frozen=True)
class _Rate:
    """A lane of one column: its name, its unit, and the factor from the column's unit."""

    column: str
    name: str
    unit: str
    factor: float
    per_time: bool = True


_RATES = (
    _Rate("flops_counted", "FLOP rate (counters)", "TFLOP/s", 1e-3),
    _Rate("flops", "FLOP rate (shapes)", "TFLOP/s", 1e-3),
    _Rate("mem_bytes_counted", "memory rate (counters)", "GB/s", 1.0),
    _Rate("mem_bytes", "memory rate, at least (shapes)", "GB/s", 1.0),
    _Rate("mfma_util", "matrix cores busy", "%", 1.0, per_time=False),
)
"""FLOP and bytes are divided by nanoseconds."""
_ENERGY = "energy_j"


def rate_lanes(trace: Trace) -> Iterator[Samples]:
    """Yield the lanes of each GPU of which anything is known."""
    rates = [rate for rate in _RATES if trace.has(rate.column)]
    columns = {rate.column for rate in rates} | ({_ENERGY} if trace.has(_ENERGY) else set())
    for nodes, gpus in work_of_gpus(trace) if columns else ():
        values = {column: trace.reals(column, nodes) for column in columns}
        is_kernel = (trace.array("kind")[nodes] == Kind.KERNEL) & (trace.array("dur")[nodes] > 0)
        for rank, device, rows in gpus:
            for rate in rates:
                own = values[rate.column][rows]
                known = is_kernel[rows] & np.isfinite(own)
                if known.any():
                    lane = CounterLane(rank, device, RATES_SOURCE, rate.name, rate.unit)
                    yield Samples(lane, *_rate(trace, rate, nodes[rows][known], own[known]))
            if _ENERGY in columns:
                own = values[_ENERGY][rows]
                known = np.isfinite(own)
                if known.any():
                    lane = CounterLane(rank, device, RATES_SOURCE, "energy of all work so far", "J")
                    yield Samples(lane, *_total(trace, nodes[rows][known], own[known]))
        spill.release()


def _rate(trace: Trace, rate: _Rate, nodes: Array, value: Array) -> tuple[Array, Array]:
    """Sum of the rates of what runs, from each start and end on."""
    ts, dur = (trace.array(column)[nodes] for column in ("ts", "dur"))
    step = value * rate.factor / dur if rate.per_time else value
    time = np.concatenate([ts, ts + dur])
    order = np.argsort(time, kind="stable")
    time = time[order]
    running = np.cumsum(np.repeat([1, -1], len(ts))[order])
    total = np.cumsum(np.concatenate([step, -step])[order])
    total = np.where(running > 0, np.maximum(total, 0), 0.0)  # without the rest of rounding
    last = np.flatnonzero(np.diff(time, append=time[-1] + 1))  # of several changes at one time
    return time[last], total[last]


def _total(trace: Trace, nodes: Array, energy: Array) -> tuple[Array, Array]:
    """Sum of the energy of all work that has ended: over a part of the time, a difference."""
    end = trace.array("ts")[nodes] + trace.array("dur")[nodes]
    order = np.argsort(end, kind="stable")
    total = np.cumsum(energy[order])
    last = np.flatnonzero(np.diff(end[order], append=end.max() + 1))
    return end[order][last], total[last]
