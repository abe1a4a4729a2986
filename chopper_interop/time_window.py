"""Restriction of a trace to a window of time."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Real
from typing import TypeVar

import numpy as np

from chopper_interop.arrays import Array, arrow, nest
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import UsageError
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import NESTING
from chopper_interop.tables import TraceTables, counters_by_node, renumbered

Tables = TypeVar("Tables", bound=TraceTables)

_FAR_NS = 2**62
"""Beyond all times of traces, and within 64 bits."""
OUTSIDE = Fault.info(
    "outside-window", "Nodes outside of the window of time that was chosen were left out."
)
CUT = Fault.info(
    "cut-to-window",
    "Nodes that reach beyond the window that was chosen were cut to it: their durations are less "
    "than measured; bytes, FLOPs and energy are of all of them.",
)


def between(trace: Tables, start_ns: int, end_ns: int, *, cut: bool = False) -> Tables:
    """Restrict a trace to a window; see `Trace.between`."""
    start, end = _whole_ns(start_ns), _whole_ns(end_ns)
    if start >= end:
        raise UsageError(
            f"from {start} to {end} ns is no window: its end must be later than its start"
        )
    ts, dur = trace.array("ts"), trace.array("dur")
    keep = (ts >= start) & (ts < end)
    if cut:
        keep |= (ts < start) & (ts + dur > start)
    rows = np.flatnonzero(keep)
    begin, stop = ts[rows], ts[rows] + dur[rows]
    log = IssueLog("job")
    log.add(OUTSIDE, len(ts) - len(rows), f"the window is {start} to {end} ns")
    if cut:
        log.add(CUT, np.count_nonzero((begin < start) | (stop > end)))
        begin, stop = np.maximum(begin, start), np.minimum(stop, end)
    sampled = trace.array("ts", "samples")
    part = replace(
        with_nodes(trace, rows, begin, stop - begin),
        samples=arrow.take(trace.samples, (sampled >= start) & (sampled < end)),
    )
    return part.with_meta(issues=(*trace.meta.issues, *log))


def with_nodes(trace: Tables, rows: Array, ts: Array, dur: Array) -> Tables:
    """Return the trace with only some nodes, at these times, and the edges and counters of these."""
    order = nest.time_order(trace.array("rank")[rows], ts, dur)
    new_row = np.full(trace.nodes.num_rows, -1, np.int32)
    new_row[rows[order]] = np.arange(len(rows), dtype=np.int32)
    nodes = arrow.take(trace.nodes, rows[order])
    nests = is_any(trace.array("kind", "lanes"), NESTING)
    lane = arrow.to_numpy(nodes["lane"])
    changed = {"ts": ts[order], "dur": dur[order]}
    changed["parent"] = nest.parents(lane, ts[order], dur[order], nests)
    for name, values in changed.items():
        nodes = arrow.replace_column(nodes, name, values)
    return replace(
        trace,
        nodes=nodes,
        edges=renumbered(trace.edges, ("src", "dst"), new_row),
        counters=counters_by_node(renumbered(trace.counters, ("node",), new_row)),
    )


def _whole_ns(time: float) -> int:
    """A time as a whole number of nanoseconds."""
    if not isinstance(time, Real) or not math.isfinite(time) or time != int(time):
        raise UsageError(f"{time!r} is no time: times are whole numbers of nanoseconds")
    return min(max(int(time), -_FAR_NS), _FAR_NS)
