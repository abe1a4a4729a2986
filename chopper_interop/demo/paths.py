"""The critical path: what the end of a window waited for, back to the window's start.

Each instant is the maximum of its constraints; the path follows the one that was reached last.
Of equal ones the operation before on the stream goes first, then the event, then the launch.

Compiled: a walk backwards, whose next step each piece determines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit
from chopper_interop.demo.program import COLLECTIVE, SYNC, Program, distinct
from chopper_interop.demo.schedule import EVENT_LATENCY_NS, SYNC_LATENCY_NS, Timeline

if TYPE_CHECKING:
    from chopper_interop.demo.tables import ProgramTables

KINDS: Final = (
    "kernel", "collective", "memcpy", "memset", "host", "runtime", "handover", "launch_latency",
    "event_latency", "sync_latency",
)  # fmt: skip
# Classes by their index in the list above.
_HOST: Final = 4
_RUNTIME: Final = 5
_HANDOVER: Final = 6
_LAUNCH_LATENCY: Final = 7
_EVENT_LATENCY: Final = 8
_SYNC_LATENCY: Final = 9

# Where the walk is: at a mark, at the end of an operation, or at the start of one that waited.
_ON_HOST: Final = 0
_ON_GPU: Final = 1
_AFTER_EVENT: Final = 2
_AFTER_LAUNCH: Final = 3


@dataclass(frozen=True)
class CriticalPath:
    """Pieces in the order of time, which tile the window without gap or overlap.

    Parameters
    ----------
    kind
        Index into `KINDS`.
    rank, step
        Rank and step that the piece belongs to; steps count from 0.
    item
        GPU operation of the program for kernels, copies and latencies before them; event for host
        pieces and for the latency after a wait, -1 for time outside of any event.
    ts_ns, dur_ns
        Unix time and duration.
    """

    kind: Array
    rank: Array
    step: Array
    item: Array
    ts_ns: Array
    dur_ns: Array


@dataclass(frozen=True)
class HostSpans:
    """For each mark the innermost event of the time before it, and the kind of that time.

    Arrays (program, mark) as those of `tables.Tables`.
    """

    event: Array
    kind: Array


def host_spans(programs: Sequence[Program], tables: ProgramTables) -> HostSpans:
    """Find what the host does before each mark."""
    event, kind = np.zeros((2, *tables.action.shape), dtype=np.int64)
    for row, program in enumerate(distinct(programs)):
        seen = {e.begin for e in program.events if e.category in ("cpu_op", "cuda_runtime")}
        handed = False
        for i, mark in enumerate(program.marks):
            handed |= mark.handover  # until the other thread does something
            runtime = mark.span >= 0 and program.events[mark.span].category == "cuda_runtime"
            kind[row, i] = _HANDOVER if handed else _RUNTIME if runtime else _HOST
            event[row, i] = -1 if handed else mark.span
            handed &= i not in seen
    return HostSpans(event, kind)


def critical_path(
    tables: ProgramTables, timeline: Timeline, spans: HostSpans, steps: range
) -> CriticalPath:
    """Path over all ranks from the begin to the last end of some consecutive steps; they begin as `begin_ns` says.

    Parameters
    ----------
    steps
        Steps of the window, counted from 0.
    """
    begin = begin_ns(timeline, steps.start)
    rank = int(timeline.mark_ns[:, steps.stop - 1, -1].argmax())
    marks, ops = int(tables.marks.sum()), int(tables.ops.sum())
    out = np.zeros((len(steps) * (marks + 2 * ops) * 2, 5), dtype=np.int64)
    end = (rank, steps.stop - 1, begin)
    count = _walk(tables, timeline, spans.event, spans.kind, end, out)
    if count < 0:
        raise AssertionError("the critical path does not reach the start of its window")
    kind, where, step, item, ts = out[:count][::-1].T
    end_ns = int(timeline.mark_ns[rank, steps.stop - 1, -1])
    return _merged(CriticalPath(kind, where, step, item, ts, np.diff(ts, append=end_ns)))


def begin_ns(timeline: Timeline, step: int) -> int:
    """Begin of a step of the job: the last end of the one before, the first start of the first."""
    return int(timeline.mark_ns[:, step - 1, -1].max() if step else timeline.mark_ns[:, 0, 0].min())


def _merged(path: CriticalPath) -> CriticalPath:
    """Join neighbours that are the same thing, and drop what takes no time."""
    lasting = path.dur_ns > 0
    rows = np.stack([path.kind, path.rank, path.step, path.item], axis=1)[lasting]
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    ts = path.ts_ns[lasting][new]
    end_ns = path.ts_ns[-1] + path.dur_ns[-1]
    kind, rank, step, item = rows[new].T
    return CriticalPath(kind, rank, step, item, ts, np.diff(ts, append=end_ns))


@jit
def _mark_before_ns(timeline: Timeline, rank: int, step: int, mark: int, begin_ns: int) -> int:
    """Time of the mark before; the window's begin if there is none."""
    if mark:
        begin_ns = timeline.mark_ns[rank, step, mark - 1]
    elif step:
        begin_ns = timeline.mark_ns[rank, step - 1, -1]
    return begin_ns


@jit
def _last_to_start(
    t: ProgramTables, timeline: Timeline, rank: int, step: int, op: int
) -> tuple[int, int]:
    """Find the member of a collective that started last, the lowest rank of equals."""
    barrier = t.barrier[rank, op]
    for i in range(t.first[barrier], t.first[barrier + 1]):
        other, its = t.member[i]
        later = timeline.start_ns[other, step, its] - timeline.start_ns[rank, step, op]
        if later > 0 or (later == 0 and other < rank):
            rank, op = other, its
    return rank, op


@jit
def _cause(
    t: ProgramTables, timeline: Timeline, rank: int, step: int, op: int
) -> tuple[int, int, int]:
    """Find what an operation waited for: the state that follows, step and operation."""
    p = t.program[rank]
    start, end = timeline.start_ns[rank, step, op], timeline.end_ns[rank]
    previous, event = t.previous[p, op], t.waits_for[p, op]
    if previous >= 0 and end[step, previous] == start:
        return _ON_GPU, step, previous
    if previous < 0 and step:
        tail = t.tail[p, t.stream[p, op]]
        if end[step - 1, tail] == start:
            return _ON_GPU, step - 1, tail
    if event >= 0 and end[step, event] + EVENT_LATENCY_NS == start:
        return _AFTER_EVENT, step, event
    return _AFTER_LAUNCH, step, op


@jit
def _walk(
    t: ProgramTables,
    timeline: Timeline,
    event: Array,
    kind: Array,
    end: tuple[int, int, int],
    out: Array,
) -> int:
    """Write the pieces last to first as rows (kind, rank, step, item, begin); their number."""
    rank, step, begin = end
    p = t.program[rank]
    mark, op, waiting, count, state = t.marks[p] - 1, -1, -1, 0, _ON_HOST
    now = timeline.mark_ns[rank, step, mark]
    while now > begin and count < len(out):
        out[count, 1], out[count, 2] = rank, step
        if state == _ON_HOST:
            piece, item = kind[p, mark], event[p, mark]
            op = t.operand[p, mark] if t.action[p, mark] == SYNC else -1
            if op >= 0 and timeline.end_ns[rank, step, op] + SYNC_LATENCY_NS == now:
                piece, state, now = _SYNC_LATENCY, _ON_GPU, now - SYNC_LATENCY_NS
            else:
                now = _mark_before_ns(timeline, rank, step, mark, begin)
                step, mark = (step, mark - 1) if mark else (step - 1, t.marks[p] - 1)
        elif state == _ON_GPU:
            if t.kind[p, op] == COLLECTIVE:
                rank, op = _last_to_start(t, timeline, rank, step, op)
                p = t.program[rank]
                out[count, 1] = rank
            piece, item, now = t.kind[p, op], op, timeline.start_ns[rank, step, op]
            state, step, cause = _cause(t, timeline, rank, step, op)
            waiting, op = op, cause
        elif state == _AFTER_EVENT:
            piece, item, state, now = _EVENT_LATENCY, waiting, _ON_GPU, now - EVENT_LATENCY_NS
        else:
            piece, item, state, mark = _LAUNCH_LATENCY, op, _ON_HOST, t.mark[p, op]
            now = timeline.mark_ns[rank, step, mark]
        out[count, 0], out[count, 3], out[count, 4] = piece, item, max(now, begin)
        count += 1
    return count if now <= begin else -1
