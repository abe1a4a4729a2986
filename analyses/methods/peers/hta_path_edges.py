"""Edges of Holistic Trace Analysis' critical path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chopper_interop import arguments
from chopper_interop.analyses.methods.peers import hta_path_loops as loops
from chopper_interop.analyses.methods.peers.hta_path_events import HtaEvents, named
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import consecutive, is_any
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

LAUNCHES = (
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx",
    "cudaMemcpyAsync", "cudaMemsetAsync", "runFunction - job_prep_and_submit_for_execution",
    "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipMemsetAsync", "hipMemcpyAsync",
    "hipMemcpyWithStream",
)  # fmt: skip
"""Calls that HTA counts as launches."""
_LOCKING = ("cudaHostAlloc", "cudaLaunchKernel", "cudaMemcpyAsync")
_BLOCKING = (
    "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventQuery", "cudaEventSynchronize",
    "cudaMemcpy", "cudaMemcpyAsync",
)  # fmt: skip
_WAITS = {
    "Stream Wait Event": loops.STREAM_WAIT,
    "Event Sync": loops.EVENT_SYNC,
    "Stream Sync": loops.STREAM_SYNC,
    "Context Sync": loops.CONTEXT_SYNC,
}
_UNKNOWN = -999


@dataclass(frozen=True)
class Graph:
    """Vertices in the order of time: starts and ends of events.

    Parameters
    ----------
    start, end
        Vertices of each event; -1 if it has none.
    event, at, begins
        Event, time (microseconds) and True for a start, for each vertex.
    """

    start: Array
    end: Array
    event: Array
    at: Array
    begins: Array

    @classmethod
    def of_events(cls, events: HtaEvents, selected: Array) -> Graph:
        """Build the vertices of some events."""
        at = np.concatenate([events.start[selected], events.end[selected]])
        event = np.concatenate([selected, selected])
        begins = np.repeat([True, False], len(selected))
        order = np.lexsort((event, at))
        at, event, begins = at[order], event[order], begins[order]
        vertices = np.full((2, len(events.node)), -1, np.int64)
        vertices[np.where(begins, 0, 1), event] = np.arange(len(event))
        return cls(vertices[0].copy(), vertices[1].copy(), event, at, begins)


def lock_edges(trace: Trace, events: HtaEvents, graph: Graph) -> Array:
    """Return edges between calls that hold the lock of the runtime."""
    lock_vertices = np.flatnonzero(events.named_in(named(trace, *_LOCKING))[graph.event])
    return loops.lock_edges(graph.event[lock_vertices], graph.begins[lock_vertices], lock_vertices)


def thread_edges(trace: Trace, events: HtaEvents, graph: Graph, selected: Array) -> Array:
    """Return edges along threads; a single backward thread is joined to a single forward thread."""
    thread = events.thread[selected].copy()
    forward, backward = (
        _thread_of(trace, events, selected, part) for part in ("forward", "autograd")
    )
    if forward and backward:
        thread[thread == backward] = forward
    enters = np.repeat([True, False], len(selected))
    event = np.concatenate([selected, selected])
    dur = events.end[event] - events.start[event]
    sign = np.where(enters, -1, 1)  # at equal times outer ranges enter first and leave last
    time = np.where(enters, events.start[event], events.end[event])
    threads = np.concatenate([thread, thread])
    order = np.lexsort((-sign * event, sign * dur, enters, time, threads))
    return loops.thread_edges(
        threads[order].astype(np.int64), event[order], enters[order], graph.start, graph.end,
        graph.begins, events.named_in(named(trace, *_LOCKING))[graph.event],
        events.named_in(named(trace, *_BLOCKING)).astype(np.int64),
    )  # fmt: skip


def _thread_of(trace: Trace, events: HtaEvents, selected: Array, part: str) -> int:
    """Return the only thread with this in names of operators or annotations; 0 if not exactly one."""
    is_part = np.array([*(part in text for text in trace.names()), False])
    matching = selected[events.named_in(is_part)[selected]]
    matching = matching[is_any(events.kind[matching], (Kind.CPU_OP, Kind.ANNOTATION))]
    threads = np.unique(events.thread[matching])
    return int(threads[0]) if len(threads) == 1 else 0


def _launches(trace: Trace, events: HtaEvents) -> Array:
    return np.flatnonzero(
        events.examined & events.named_in(named(trace, *LAUNCHES)) & (events.link >= 0)
    )


def queued_work(trace: Trace, events: HtaEvents) -> Array | None:
    """Return the work outstanding on its stream at each launch and start; None if the tool fails."""
    calls = _launches(trace, events)
    gpu = np.flatnonzero(events.examined & (events.stream != -1))
    gpu = gpu[np.isin(events.correlation[gpu], events.correlation[calls])]
    order = gpu[np.argsort(events.correlation[gpu], kind="stable")]
    first = np.searchsorted(events.correlation[order], events.correlation[calls], "left")
    stop = np.searchsorted(events.correlation[order], events.correlation[calls], "right")
    count = stop - first
    if int(np.maximum(count, 1).sum()) != len(gpu):
        return None
    call = np.repeat(calls, count)  # one entry for each pair of a call and its work
    launched = order[consecutive(first, count)]
    event = np.concatenate([call, gpu])
    stream = events.stream[np.concatenate([launched, gpu])]
    delta = np.repeat([1, -1], [len(call), len(gpu)])
    # running sum of launches less starts, by stream: subtract the sum at the begin of each stream
    by_stream = np.lexsort((events.start[event], stream))
    total = np.cumsum(delta[by_stream])
    stream_begins = (
        np.flatnonzero(np.concatenate([[True], np.diff(stream[by_stream]) != 0]))
        if len(by_stream)
        else by_stream
    )
    before = np.concatenate([[0], total])[stream_begins]
    total -= np.repeat(before, np.diff(np.append(stream_begins, len(by_stream))))
    queued_work = np.full(len(events.node), _UNKNOWN, np.int64)
    queued_work[event[by_stream]] = total
    return queued_work


def work_edges(
    trace: Trace, events: HtaEvents, graph: Graph, selected: Array, queued_work: Array
) -> tuple[Array, bool]:
    """Return edges into, through and out of GPU work, and False if the tool fails."""
    wait_types = np.array([*(_WAITS.get(text, -1) for text in trace.names()), -1], np.int64)
    is_wait = events.kind[selected] == Kind.GPU_SYNC
    event_type = np.where(is_wait, wait_types[events.name[selected]], loops.WORK)
    selected, event_type = selected[event_type >= 0], event_type[event_type >= 0]
    time = np.where(event_type != loops.WORK, events.end[selected], events.start[selected])
    order = np.argsort(time, kind="stable")
    selected, event_type = selected[order], event_type[order]
    names, stream = np.unique(events.stream[selected], return_inverse=True)
    source, target = _waits(trace, events, selected, event_type)
    call = events.link[selected]
    queued_at_call = np.where(call >= 0, queued_work[call], _UNKNOWN)
    edges, ok = loops.work_edges(
        selected, event_type, stream.astype(np.int64), call, queued_work[selected], queued_at_call,
        source, target,
        graph.start, graph.end, graph.at, events.start, len(names),
    )  # fmt: skip
    return edges, bool(ok)


def _waits(
    trace: Trace, events: HtaEvents, selected: Array, event_type: Array
) -> tuple[Array, Array]:
    """Return for each wait for an event the work before the record, and the work after the wait."""
    source, target = (np.full(len(selected), -1, np.int64) for _ in range(2))
    at = np.flatnonzero(np.isin(event_type, [loops.STREAM_WAIT, loops.EVENT_SYNC]))
    if not at.size:
        return source, target
    calls = _launches(trace, events)
    calls = calls[events.stream[events.link[calls]] != -1]
    work = events.link[calls]
    record, recorded = _records(trace, events)
    stream_of_work = np.stack([events.device[work], events.stream[work]], 1)
    nearest = _nearest(
        recorded, events.start[record], stream_of_work, events.start[calls], before=True
    )
    ends = np.where(nearest >= 0, work[nearest] if len(work) else -1, -1)
    record_id, known = arguments.integers(
        trace, events.node[selected[at]], "wait_on_cuda_event_record_corr_id"
    )
    work_of_record = dict(zip(events.correlation[record].tolist(), ends.tolist(), strict=True))
    source[at] = [
        work_of_record.get(c, -1) if k else -1
        for c, k in zip(record_id.tolist(), known.tolist(), strict=True)
    ]
    streams = at[event_type[at] == loops.STREAM_WAIT]
    wait_calls = events.link[selected[streams]]
    thread_of_work = np.stack([events.thread[calls], events.stream[work]], 1)
    thread_of_wait = np.stack([events.thread[wait_calls], events.stream[selected[streams]]], 1)
    nearest = _nearest(
        thread_of_wait, events.start[wait_calls], thread_of_work, events.start[calls], before=False
    )
    target[streams] = np.where(
        (nearest >= 0) & (wait_calls >= 0), work[nearest] if len(work) else -1, -1
    )
    return source, target


def _records(trace: Trace, events: HtaEvents) -> tuple[Array, Array]:
    """Return calls that record an awaited event, and the device and stream of each record."""
    waits = np.flatnonzero(events.examined & (events.kind == Kind.GPU_SYNC))
    record, has_record = arguments.integers(
        trace, events.node[waits], "wait_on_cuda_event_record_corr_id"
    )
    stream, has_stream = arguments.integers(trace, events.node[waits], "wait_on_stream")
    is_complete = has_record & has_stream & (stream > -1)
    stream_of_record = dict(
        zip(
            record[is_complete].tolist(),
            zip(
                events.device[waits[is_complete]].tolist(),
                stream[is_complete].tolist(),
                strict=True,
            ),
            strict=True,
        )
    )
    calls = np.flatnonzero(events.examined & events.named_in(named(trace, "cudaEventRecord")))
    calls = calls[np.isin(events.correlation[calls], record[is_complete])]
    streams = [stream_of_record[c] for c in events.correlation[calls].tolist()]
    return calls, np.array(streams, np.int64).reshape(-1, 2)


def _nearest(key: Array, time: Array, keys: Array, times: Array, *, before: bool) -> Array:
    """Find, among entries with the same key, the last one until each time or the first one after it.

    Returns indices into `keys`, -1 where there is none.
    """
    both = np.concatenate([key, keys])
    if not both.size:
        return np.full(len(key), -1, np.int64)
    code = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
    key_code, candidate_code = code[: len(key)], code[len(key) :]
    result = np.full(len(key), -1, np.int64)
    for value in np.unique(key_code).tolist():
        queries = np.flatnonzero(key_code == value)
        candidates = np.flatnonzero(candidate_code == value)
        candidates = candidates[np.argsort(times[candidates], kind="stable")]
        position = np.searchsorted(times[candidates], time[queries], "right") - before
        exists = (position >= 0) & (position < len(candidates))
        result[queries[exists]] = candidates[position[exists]]
    return result
