"""Windows of one process, recorded one after the other, joined to one profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.build import concat
from chopper_interop.schemas.meta import ASSUMED
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.joining.fragment import Fragment

_SAME_LANE = ("rank", "device", "kind", "number")
_SAME_SERIES = ("rank", "device")


def is_next(earlier: Fragment, later: Fragment) -> bool:
    """True if two profiles are windows of the same processes, by one clock, and do not overlap."""
    a, b = earlier.trace.meta, later.trace.meta
    processes = [
        sorted((r.rank if r.known_by != ASSUMED else -1, r.host, r.pid) for r in m.ranks)
        for m in (a, b)
    ]
    known = all(pid >= 0 for _, _, pid in processes[0])
    follow = earlier.window_ns[1] <= later.window_ns[0]
    return known and processes[0] == processes[1] and a.clock == b.clock and follow


def join(windows: Sequence[Fragment]) -> Fragment:
    """Join windows, in order of time, to one fragment with each thread and stream once."""
    first = windows[0]
    if len(windows) == 1:
        return first
    traces = with_ids_apart([f.trace for f in windows])
    issues = tuple(issue for t in traces for issue in t.meta.issues)
    sources = tuple(source for t in traces for source in t.meta.sources)
    devices = tuple(dict.fromkeys(d for t in traces for d in t.meta.devices))
    meta = replace(first.trace.meta, issues=issues, sources=sources, devices=devices)
    paths = tuple(path for f in windows for path in f.files.paths)
    trace = with_lanes_once(concat(traces, meta))
    return replace(first, files=replace(first.files, paths=paths), trace=trace)


def with_ids_apart(traces: Sequence[Trace]) -> list[Trace]:
    """Traces whose correlation ids are moved where those of an earlier one of a rank occur again."""
    used: dict[int, Array] = {}
    apart = []
    for trace in traces:
        ids = trace.array("correlation")
        earlier = np.concatenate(
            [np.zeros(1, np.int64), *(used.get(r, ids[:0]) for r in trace.ranks)]
        )
        if np.isin(ids[ids > 0], earlier).any():
            ids = np.where(ids > 0, ids + int(earlier.max()), ids)
            nodes = arrow.replace_column(trace.nodes, "correlation", ids)
            trace = replace(trace, nodes=nodes)  # noqa: PLW2901 # the same one, moved
        for rank, rows in trace.rank_rows.items():
            of_rank = ids[rows]
            used[rank] = np.union1d(used.get(rank, ids[:0]), of_rank[of_rank > 0])
        apart.append(trace)
    return apart


def with_lanes_once(trace: Trace) -> Trace:
    """The trace with equal lanes, series and samples as one."""
    lanes, of_lane = _distinct(trace.lanes, _SAME_LANE)
    text = [c for c in trace.series.column_names if c not in _SAME_SERIES]
    series, of_series = _distinct(trace.series, (*_SAME_SERIES, *text))
    samples = trace.samples
    if samples.num_rows:
        owner = of_series[trace.array("series", "samples")]
        samples = _samples_once(arrow.replace_column(samples, "series", owner))
    return replace(
        trace,
        lanes=lanes,
        series=series,
        nodes=arrow.replace_column(trace.nodes, "lane", of_lane[trace.array("lane")]),
        samples=samples,
    )


def _samples_once(samples: pa.Table) -> pa.Table:
    """Samples in order of series and time, equal ones once."""
    columns = [arrow.to_numpy(samples[c]) for c in ("series", "ts", "value")]
    order = np.lexsort(columns[::-1])
    differs = [column[order][1:] != column[order][:-1] for column in columns]
    return arrow.take(samples, order[np.append(True, np.logical_or.reduce(differs))])


def _distinct(table: pa.Table, columns: Sequence[str]) -> tuple[pa.Table, Array]:
    """Rows of a table that differ in some columns, and for each row the new number of its first."""
    if not table.num_rows:
        return table, np.zeros(0, np.int32)
    keys = [np.unique(table[c].to_pylist(), return_inverse=True)[1] for c in columns]
    first, code = gather.distinct(*keys)
    return arrow.take(table, first), code.astype(np.int32)
