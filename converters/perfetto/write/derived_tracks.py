"""Tracks of a GPU that stand for no event: iterations, phases, layers, exposed and idle time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import arrow, intervals
from chopper_interop.arrays.members import is_any
from chopper_interop.converters.perfetto.write.named_slices import NamedSlices
from chopper_interop.converters.perfetto.write.tracks import EXPOSED, IDLE, SPAN_COLUMNS
from chopper_interop.schemas.kinds import GPU_WORK, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

_COMPUTE = (Kind.KERNEL, Kind.MEMSET)
"""Kinds of work that hide communication, as the analysis `overlap` counts them."""


def derived_tracks(trace: Trace) -> Iterator[tuple[int, int, str, NamedSlices]]:
    """Yield the tracks of a trace's GPUs: rank, device, name of the track, and its slices.

    Of a column consecutive kernels with the same value are one slice, from the first start to the
    last end, or to where the next slice begins, known or not.
    """
    coded = {track: _coded(trace, c) for track, c in SPAN_COLUMNS.items() if trace.has(c)}
    collective, idle_ns = trace.texts("collective"), trace.integers("idle_ns", unknown=0)
    cause = trace.texts("idle_cause")
    for rank, device, nodes in gpu_work(trace):
        kind = trace.array("kind")[nodes]
        kernels = nodes[kind == Kind.KERNEL]
        for track, (code, texts) in coded.items():
            if (code[kernels] >= 0).any():
                yield rank, device, track, _slices(trace, kernels, code[kernels], texts)
        if (kind == Kind.COMM).any():
            yield rank, device, EXPOSED, _exposed(trace, nodes, kind, collective)
        idle = nodes[(idle_ns[nodes] > 0) & (cause[0][nodes] >= 0)]
        if len(idle):
            texts = [text.replace("_", " ") for text in cause[1]]
            ts = trace.array("ts")[idle] - idle_ns[idle]
            yield rank, device, IDLE, NamedSlices(ts, idle_ns[idle], cause[0][idle], texts)


def gpu_work(trace: Trace) -> Iterator[tuple[int, int, Array]]:
    """Yield rank, device, and the rows of its work by start, of each GPU that works."""
    lane_device = trace.array("device", "lanes")
    work = is_any(trace.array("kind"), GPU_WORK)
    for rank, rows in trace.rank_rows.items():
        nodes = np.flatnonzero(work[rows]) + rows.start
        device = lane_device[trace.array("lane")[nodes]]
        for d in np.unique(device).tolist():
            yield rank, d, nodes[device == d]


def _exposed(
    trace: Trace, nodes: Array, kind: Array, collective: tuple[Array, tuple[str, ...]]
) -> NamedSlices:
    """Time in which communication runs and nothing computes, named by the collective."""
    ts = trace.array("ts")[nodes]
    end = ts + trace.array("dur")[nodes]
    comm, compute = kind == Kind.COMM, is_any(kind, _COMPUTE)
    hidden = intervals.union(ts[compute], end[compute])
    start, stop = intervals.difference(intervals.union(ts[comm], end[comm]), hidden)
    last = np.searchsorted(ts[comm], start, "right") - 1  # of those that run the last to start
    name, texts = collective[0][nodes[comm]], collective[1]
    code = np.where(name < 0, len(texts), name)[last]
    return NamedSlices(start, stop - start, code, [*texts, "communication"])


def _coded(trace: Trace, column: str) -> tuple[Array, list[str]]:
    """Codes of an annotation column, -1 where unknown, and the names that they stand for."""
    data = arrow.single_chunk(trace.nodes[column]).dictionary_encode()
    label = "{}" if column == "phase" else f"{column} {{}}"
    texts = [label.format(value) for value in data.dictionary.to_pylist()]
    return arrow.to_numpy(data, -1), texts


def _slices(trace: Trace, nodes: Array, code: Array, texts: list[str]) -> NamedSlices:
    """Return each run of nodes, in order of start, that have the same code."""
    ts = trace.array("ts")[nodes]
    end = ts + trace.array("dur")[nodes]
    first = np.flatnonzero(np.diff(code, prepend=code[0] - 1))
    stop = np.maximum.reduceat(end, first)  # the last end of each run
    start = ts[first]
    stop[:-1] = np.minimum(stop[:-1], start[1:])
    known = code[first] >= 0
    return NamedSlices(start[known], (stop - start)[known], code[first[known]], texts)
