"""Edges of Holistic Trace Analysis' critical path (`peers.critical_path`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import arguments
from chopper_interop.peers import critical_path_loops as loops
from chopper_interop.peers.critical_path_events import named
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.peers.critical_path_events import Events
    from chopper_interop.trace import Trace

LAUNCHES = (
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx",
    "cudaMemcpyAsync", "cudaMemsetAsync", "runFunction - job_prep_and_submit_for_execution",
    "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipMemsetAsync", "hipMemcpyAsync",
    "hipMemcpyWithStream",
)  # fmt: skip
"""Calls that it counts as launches."""
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
    """Vertices by time: of each event its start and end; -1 if it has none."""

    start: Array
    end: Array
    event: Array
    at: Array
    begins: Array

    @classmethod
    def of(cls, events: Events, chosen: Array) -> Graph:
        """Vertices of these events."""
        at = np.concatenate([events.start[chosen], events.end[chosen]])
        event = np.concatenate([chosen, chosen])
        begins = np.repeat([True, False], len(chosen))
        order = np.lexsort((event, at))
        at, event, begins = at[order], event[order], begins[order]
        ends = np.full((2, len(events.node)), -1, np.int64)
        ends[np.where(begins, 0, 1), event] = np.arange(len(event))
        return cls(ends[0].copy(), ends[1].copy(), event, at, begins)


def lock_edges(trace: Trace, events: Events, graph: Graph) -> Array:
    """Edges between calls that hold the lock of the runtime."""
    held = np.flatnonzero(events.like(named(trace, *_LOCKING))[graph.event])
    return loops.of_locks(graph.event[held], graph.begins[held], held)


def thread_edges(trace: Trace, events: Events, graph: Graph, chosen: Array) -> Array:
    """Edges along threads; a single thread of the backward pass joins that of the forward pass."""
    thread = events.thread[chosen].copy()
    forward, backward = (
        _thread_of(trace, events, chosen, part) for part in ("forward", "autograd")
    )
    if forward and backward:
        thread[thread == backward] = forward
    enters = np.repeat([True, False], len(chosen))
    event = np.concatenate([chosen, chosen])
    dur = events.end[event] - events.start[event]
    sign = np.where(enters, -1, 1)  # outer ones enter first and leave last
    time = np.where(enters, events.start[event], events.end[event])
    threads = np.concatenate([thread, thread])
    order = np.lexsort((-sign * event, sign * dur, enters, time, threads))
    return loops.of_threads(
        threads[order].astype(np.int64), event[order], enters[order], graph.start, graph.end,
        graph.begins, events.like(named(trace, *_LOCKING))[graph.event],
        events.like(named(trace, *_BLOCKING)).astype(np.int64),
    )  # fmt: skip


def _thread_of(trace: Trace, events: Events, chosen: Array, part: str) -> int:
    """The one thread whose operators or annotations have this in their names; 0 if it is not one."""
    is_part = np.array([*(part in text for text in trace.names()), False])
    named = chosen[events.like(is_part)[chosen]]
    named = named[np.isin(events.kind[named], [int(Kind.CPU_OP), int(Kind.ANNOTATION)])]
    threads = np.unique(events.thread[named])
    return int(threads[0]) if len(threads) == 1 else 0


def _launches(trace: Trace, events: Events) -> Array:
    return np.flatnonzero(events.kept & events.like(named(trace, *LAUNCHES)) & (events.link >= 0))


def queued(trace: Trace, events: Events) -> Array | None:
    """Work outstanding on its stream at each launch and start; None where the tool fails."""
    calls = _launches(trace, events)
    gpu = np.flatnonzero(events.kept & (events.stream != -1))
    gpu = gpu[np.isin(events.correlation[gpu], events.correlation[calls])]
    order = gpu[np.argsort(events.correlation[gpu], kind="stable")]
    first = np.searchsorted(events.correlation[order], events.correlation[calls], "left")
    stop = np.searchsorted(events.correlation[order], events.correlation[calls], "right")
    count = stop - first
    if int(np.maximum(count, 1).sum()) != len(gpu):
        return None
    call = np.repeat(calls, count)
    one = order[np.repeat(first - np.cumsum(count) + count, count) + np.arange(len(call))]
    event = np.concatenate([call, gpu])
    stream = events.stream[np.concatenate([one, gpu])]
    change = np.repeat([1, -1], [len(call), len(gpu)])
    by = np.lexsort((events.start[event], stream))
    total = np.cumsum(change[by])
    new = np.flatnonzero(np.concatenate([[True], np.diff(stream[by]) != 0])) if len(by) else by
    before = np.concatenate([[0], total])[new]
    total -= np.repeat(before, np.diff(np.append(new, len(by))))
    queued = np.full(len(events.node), _UNKNOWN, np.int64)
    queued[event[by]] = total
    return queued


def work_edges(
    trace: Trace, events: Events, graph: Graph, chosen: Array, queued: Array
) -> tuple[Array, bool]:
    """Edges into, through and out of GPU work, and whether the tool gets through."""
    sort_of = np.array([*(_WAITS.get(text, -1) for text in trace.names()), -1], np.int64)
    wait = events.kind[chosen] == Kind.GPU_SYNC
    sort = np.where(wait, sort_of[events.name[chosen]], loops.WORK)
    chosen, sort = chosen[sort >= 0], sort[sort >= 0]
    time = np.where(sort != loops.WORK, events.end[chosen], events.start[chosen])
    order = np.argsort(time, kind="stable")
    chosen, sort = chosen[order], sort[order]
    names, stream = np.unique(events.stream[chosen], return_inverse=True)
    source, target = _waits(trace, events, chosen, sort)
    call = events.link[chosen]
    asked = np.where(call >= 0, queued[call], _UNKNOWN)
    found, ok = loops.of_work(
        chosen, sort, stream.astype(np.int64), call, queued[chosen], asked, source, target,
        graph.start, graph.end, graph.at, events.start, len(names),
    )  # fmt: skip
    return found, bool(ok)


def _waits(trace: Trace, events: Events, chosen: Array, sort: Array) -> tuple[Array, Array]:
    """Of waits for events: the work before the record, and the work behind the wait."""
    source, target = (np.full(len(chosen), -1, np.int64) for _ in range(2))
    at = np.flatnonzero(np.isin(sort, [loops.STREAM_WAIT, loops.EVENT_SYNC]))
    if not at.size:
        return source, target
    calls = _launches(trace, events)
    calls = calls[events.stream[events.link[calls]] != -1]
    work = events.link[calls]
    record, recorded = _records(trace, events)
    on = np.stack([events.device[work], events.stream[work]], 1)
    near = _nearest(recorded, events.start[record], on, events.start[calls], before=True)
    ends = np.where(near >= 0, work[near] if len(work) else -1, -1)
    told, known = arguments.numbers(
        trace, events.node[chosen[at]], "wait_on_cuda_event_record_corr_id"
    )
    of = dict(zip(events.correlation[record].tolist(), ends.tolist(), strict=True))
    source[at] = [
        of.get(c, -1) if k else -1 for c, k in zip(told.tolist(), known.tolist(), strict=True)
    ]
    streams = at[sort[at] == loops.STREAM_WAIT]
    asks = events.link[chosen[streams]]
    on = np.stack([events.thread[calls], events.stream[work]], 1)
    by = np.stack([events.thread[asks], events.stream[chosen[streams]]], 1)
    near = _nearest(by, events.start[asks], on, events.start[calls], before=False)
    target[streams] = np.where((near >= 0) & (asks >= 0), work[near] if len(work) else -1, -1)
    return source, target


def _records(trace: Trace, events: Events) -> tuple[Array, Array]:
    """Calls that record an event that is waited for, and the device and stream of the record."""
    waits = np.flatnonzero(events.kept & (events.kind == Kind.GPU_SYNC))
    record, known = arguments.numbers(
        trace, events.node[waits], "wait_on_cuda_event_record_corr_id"
    )
    stream, told = arguments.numbers(trace, events.node[waits], "wait_on_stream")
    of = known & told & (stream > -1)
    where = dict(
        zip(
            record[of].tolist(),
            zip(events.device[waits[of]].tolist(), stream[of].tolist(), strict=True),
            strict=True,
        )
    )
    calls = np.flatnonzero(events.kept & events.like(named(trace, "cudaEventRecord")))
    calls = calls[np.isin(events.correlation[calls], record[of])]
    on = [where[c] for c in events.correlation[calls].tolist()]
    return calls, np.array(on, np.int64).reshape(-1, 2)


def _nearest(key: Array, time: Array, keys: Array, times: Array, *, before: bool) -> Array:
    """Of those with the same key, the last one until each time, or the first one after it."""
    both = np.concatenate([key, keys])
    if not both.size:
        return np.full(len(key), -1, np.int64)
    code = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
    of, among = code[: len(key)], code[len(key) :]
    found = np.full(len(key), -1, np.int64)
    for one in np.unique(of).tolist():
        mine, theirs = np.flatnonzero(of == one), np.flatnonzero(among == one)
        theirs = theirs[np.argsort(times[theirs], kind="stable")]
        place = np.searchsorted(times[theirs], time[mine], "right") - before
        fits = (place >= 0) & (place < len(theirs))
        found[mine[fits]] = theirs[place[fits]]
    return found
