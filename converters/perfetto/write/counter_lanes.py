"""Counter lanes: telemetry as it was sampled, hardware counters as long as their kernels ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.converters.perfetto.chopper_metadata import DISPATCH_SOURCE
from chopper_interop.converters.perfetto.write.tracks import CounterLane

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace


def sampled_lanes(
    trace: Trace, window: tuple[int, int] | None
) -> Iterator[tuple[CounterLane, Array, Array, int]]:
    """Yield the lanes of the trace's series.

    Parameters
    ----------
    trace
        Any trace.
    window
        First and last `ts` to draw, ns; all if None.

    Yields
    ------
    lane, ts, value, outside
        A lane, its samples, and how many were left out as outside of the window. The value with
        which the window begins is drawn at its beginning.
    """
    bounds = np.searchsorted(trace.array("series", "samples"), np.arange(len(trace.series) + 1))
    all_ts, all_values = trace.array("ts", "samples"), trace.array("value", "samples")
    for row, series in enumerate(trace.series.to_pylist()):
        ts, value = (a[bounds[row] : bounds[row + 1]] for a in (all_ts, all_values))
        total = len(ts)
        if window is not None and total:
            first = max(int(np.searchsorted(ts, window[0], "right")) - 1, 0)
            stop = int(np.searchsorted(ts, window[1], "right"))
            ts, value = np.maximum(ts[first:stop], window[0]), value[first:stop]
        lane = CounterLane(
            series["rank"],
            series["device"],
            series["source"],
            series["name"],
            series["unit"],
            series["uncertainty_ns"],
            steady=len(value) > 0 and bool((value == value[0]).all()),
        )
        if len(ts):
            yield lane, ts, value, total - len(ts)


def dispatch_lanes(trace: Trace) -> Iterator[tuple[CounterLane, Array, Array]]:
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
        yield lane, ts, steps


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
