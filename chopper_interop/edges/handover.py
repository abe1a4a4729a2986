"""Edges from the last operation of one host thread to the next of another that was idle until then.

Profilers do not record that a thread waits for another: autograd's thread for the operator that asked
for gradients, the main thread for the end of the backward pass. The times show it: one thread stops
and stays idle, and soon afterwards another that had been idle goes on. Where several training steps are
recorded, they tell which of these waited (`handover_steps`). A thread that waits for one that goes on itself is known by
its turns (`handover_turns`).
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, nest
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.arrays.gather import distinct, is_any, preceding_rows, unique
from chopper_interop.edges.handover_steps import (
    MIN_RESTS,
    NEVER,
    WAITED_SHARE,
    HostWork,
    sources_by_steps,
)
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import HOST_CALLS, Kind, LaneKind
from chopper_interop.schemas.names import LOADER_RANGE, PINS_MEMORY, STEP_RANGE, Role
from chopper_interop.trace import Trace

BY_TIME = Fault.info(
    "handover-by-time",
    "Host threads went on within a millisecond after the last operation of another thread ended, or began within ten: "
    "that they waited for it is inferred from the times alone. So it is of a thread that goes on in turn with another, always "
    "as soon, however long it rested.",
)

IDLE_NS = 20_000
"""A thread without work for longer is idle: between two operators Python takes 5 to 20 µs."""
_NEVER = int(NEVER)
WAKE_NS = 1_000_000
"""An idle thread goes on so soon after the operation that it waited for: it wakes within tens of µs,
and then Python runs until its first operator begins (measured: 0.03 to 0.3 ms)."""

_BEGIN_NS = 10_000_000
"""A new thread of autograd goes on so soon after the operation that started it. Chosen: the first backward pass of a
process began 2.3 ms after the forward pass; it makes the thread, and Python enters the engine."""
_WAKES_NS = 100_000
"""A thread of which nothing was recorded before begins a range so soon: no Python runs before the range. Chosen: it wakes
within tens of µs; within a millisecond, of nine threads of a server (an MTIA's) all would follow others by chance."""
_PASSED_ON = "autograd::engine::evaluate_function"
"""Operations that a thread finds in its queue: if it was idle, another has put them there, even one that
goes on with its own work at once (PyTorch, torch/csrc/autograd/engine.cpp)."""

_OPERATIONS = (Kind.CPU_OP, *HOST_CALLS)
_NO_OPERATIONS = (Role.POLL, Role.UPKEEP)
_WAITS = (
    Role.DEVICE_SYNC,
    Role.STREAM_SYNC,
    Role.EVENT_SYNC,
    Role.SIGNAL_WAIT,
    Role.POLL,
)


def handover_edges(
    trace: Trace, chosen: Array, role: Array, issues: IssueLog
) -> tuple[Array, Array]:
    """Find edges from an operation of one thread to the next of another, as rows of `nodes`.

    Parameters
    ----------
    trace
        The trace.
    chosen
        Mask of the nodes that are considered.
    role
        For each node a number of `Role`.
    issues
        Log in which the edges are counted.
    """
    operation, range_start = _outermost(trace, role)
    node = np.flatnonzero(chosen & (operation | range_start))
    lane, ts = trace.array("lane")[node], trace.array("ts")[node]
    range_start = range_start[node]
    begins = range_start & ~_is_work(trace, node, range_start)
    end = ts + np.where(begins, 0, trace.array("dur")[node])
    # threads are numbered by rank, so that those of one rank are the numbers from `first` to `stop`,
    # and the loop goes through these alone
    lane_rank = trace.array("rank", "lanes")
    threads = unique(lane)
    threads = threads[np.argsort(lane_rank[threads], kind="stable")]
    number = np.full(len(lane_rank), -1, np.int64)
    number[threads] = np.arange(len(threads))
    first = np.searchsorted(lane_rank[threads], lane_rank[threads], "left").astype(np.int64)
    stop = np.searchsorted(lane_rank[threads], lane_rank[threads], "right").astype(np.int64)
    waits = is_any(role[node], _WAITS)
    passed_on = _starts_with(trace, node, _PASSED_ON)
    source, since = _find_sources(number[lane], ts, end, waits, range_start, passed_on, first)
    source[(since == _NEVER) & ~_operates(number[lane], range_start)] = -1
    pins = _pins_memory(trace, node, number[lane])
    source[pins] = -1
    work = HostWork(
        number[lane], trace.array("name")[node], ts, end, _steps(trace, node), ~begins, since, first, stop
    )  # fmt: skip
    possible = ~waits & (ts - since > IDLE_NS)
    by_steps = sources_by_steps(work, source, possible, WAKE_NS)
    source = np.where(passed_on & (by_steps < 0), source, by_steps)
    if _rest_often(work, possible):
        from chopper_interop.edges import handover_turns

        by_turns = handover_turns.sources_by_turns(work, possible, WAKE_NS)
        source = np.where(source >= 0, source, by_turns)
    if pins.any():
        by_batch = _sources_of_batches(trace, node, work, pins)
        source = np.where(by_batch >= 0, by_batch, source)
    target = np.flatnonzero(source >= 0)
    src, dst = node[source[target]], node[target]
    if target.size:
        names, name = trace.names(), trace.array("name")
        ends = " → ".join(f"{names[name[n]][:40]} ({issues.node(n)})" for n in (src[0], dst[0]))
        issues.add(BY_TIME, target.size, ends)
    return src.astype(np.int32), dst.astype(np.int32)


def _rest_often(work: HostWork, possible: Array) -> bool:
    """True if a thread rested before operations of one name as often as turns need."""
    of_row, row = distinct(work.thread[possible], work.name[possible])
    return bool(of_row.size) and int(np.bincount(row).max()) >= MIN_RESTS


def _outermost(trace: Trace, role: Array) -> tuple[Array, Array]:
    """Mark outermost operations of host threads, and ranges that start outside of any.

    Polls and upkeep are no operations: NCCL's watchdog does both whenever it wakes. A range may be the first thing that a thread does when it goes on.
    """
    on_thread = (trace.array("kind", "lanes") == LaneKind.THREAD)[trace.array("lane")]
    kind = trace.array("kind")
    operation = on_thread & is_any(kind, _OPERATIONS) & ~is_any(role, _NO_OPERATIONS)
    within = nest.around(trace.array("parent"), operation) >= 0
    return operation & ~within, on_thread & (kind == Kind.ANNOTATION) & ~within


#   thread 1   [ backward                ]        nothing is recorded within the range: a wait, as
#   thread 2       [ MmBackward ][ Mm… ]          it ends right behind work of another thread
def _is_work(trace: Trace, node: Array, range_start: Array) -> Array:
    """Mask of ranges that are work of their thread, not time in which it rests: nothing else is within them.

    Ranges that end right behind other threads' work, as most of the same name do on a rank, are waits for it. So are those of
    data loaders, as often as not.
    """
    parent = trace.array("parent")
    leaf = np.ones(len(parent), bool)
    leaf[parent[parent >= 0]] = False
    loads = np.array([name.startswith(LOADER_RANGE) for name in trace.names()] or [False])
    name = trace.array("name")
    quiet = (range_start & (leaf & ~loads[name])[node]).nonzero()[0]
    ts, dur = trace.array("ts")[node], trace.array("dur")[node]
    end, rank = ts + dur, trace.array("rank")[node]
    operation = np.flatnonzero(~range_start)
    ended = np.append(end[operation], np.iinfo(np.int64).min // 2)  # the last one stands for none
    # the rank's last operation to end before the range: its own thread has none within it
    row = preceding_rows(rank[operation], end[operation], rank[quiet], end[quiet])
    rest = end[quiet] - ended[row]
    returns = (rest < dur[quiet]) & (rest <= np.clip(WAITED_SHARE * dur[quiet], IDLE_NS, WAKE_NS))
    _, number = distinct(rank[quiet], name[node[quiet]])
    waits = 2 * np.bincount(number, returns) > np.bincount(number)
    work = np.zeros(len(node), bool)
    work[quiet] = ~waits[number]
    return work


def _steps(trace: Trace, node: Array) -> Array:
    """Number of the training step of its rank in which each node starts, counted from 0; -1 before the first, and without any."""
    marks = (trace.array("kind", "lanes") == LaneKind.THREAD)[trace.array("lane")]
    row = np.flatnonzero(marks & _starts_with(trace, slice(None), STEP_RANGE))
    rank, ts = trace.array("rank"), trace.array("ts")
    step = preceding_rows(rank[row], ts[row], rank[node], ts[node])
    return np.where(step >= 0, step - np.searchsorted(rank[row], rank[node]), -1)


def _operates(thread: Array, range_start: Array) -> Array:
    """Mask of rows of threads that do more than ranges: ROCm's profilers put all markers on lanes of their own."""
    return (np.bincount(thread, ~range_start) > 0)[thread]


def _pins_memory(trace: Trace, node: Array, thread: Array) -> Array:
    """Mask of operations of threads that do nothing but pin memory: they wait for data of a loader's other processes."""
    operates = trace.array("kind")[node] == Kind.CPU_OP
    others = operates & ~_starts_with(trace, node, PINS_MEMORY)
    count = np.bincount(thread[operates], minlength=int(thread.max(initial=-1)) + 1)
    pins = (count > 0) & (np.bincount(thread[others], minlength=len(count)) == 0)
    return pins[thread] & operates


#   trainer   [ enumerate(DataLoader)#…      ][ step         the range ends as soon as the batch is there, whatever the
#   loader          [ pin_memory 1        ][ pin_memory 2    loader's thread does next
def _sources_of_batches(trace: Trace, node: Array, work: HostWork, pins: Array) -> Array:
    """Rows that pinned the batch for which a loader's range before a row waited; -1 for none."""
    result = np.full(len(node), -1, np.int64)
    begun, dur = work.ts, trace.array("dur")[node]
    by_thread = np.argsort(work.thread, kind="stable")
    is_range = _starts_with(trace, node, LOADER_RANGE) & (dur > _WAKES_NS)
    follows = is_range[by_thread[:-1]] & (np.diff(work.thread[by_thread]) == 0)
    row, behind = by_thread[:-1][follows], by_thread[1:][follows]
    pinned, ended = np.flatnonzero(pins), begun[row] + dur[row]
    rank = work.first[work.thread]
    last = preceding_rows(rank[pinned], work.end[pinned], rank[row], ended)
    last = np.append(pinned, -1)[last]
    rest = ended - work.end[last]
    waits = (last >= 0) & (rest <= np.clip(WAITED_SHARE * dur[row], IDLE_NS, WAKE_NS))
    result[behind[waits]] = last[waits]
    return result


def _starts_with(trace: Trace, node: Array | slice, prefix: str) -> Array:
    """Mask of these nodes of which the name starts with `prefix`."""
    of_name = np.array([name.startswith(prefix) for name in trace.names()] or [False])
    return of_name[trace.array("name")[node]]


# Compiled: a sweep over the operations of all threads by time, which carries the state of each thread
# along: its last operation and until when it was active.
#
#   thread 1   [=== k ===]                    idle
#   thread 2        idle         [=== i ===]        edge k → i if i starts within WAKE_NS after k ends
@jit
def _find_sources(  # noqa: C901, PLR0913, PLR0917 # one loop over columns
    thread: Array,
    ts: Array,
    end: Array,
    waits: Array,
    range_start: Array,
    passed_on: Array,
    first: Array,
) -> tuple[Array, Array]:
    """For each operation the one of another thread that it followed, or -1; until when its own thread was active.

    Operations are ordered by rank and start; ``first[t]`` is the first thread of thread t's rank. Ranges
    (`range_start`) count only as something that follows, by their start. What was passed on (`passed_on`) also
    follows a thread that does not rest. Of operations that ended last at the same time, that of the first thread
    is followed. Threads are looked at as long as they may be followed, so that thousands that each do little
    cost little.
    """
    source = np.full(len(ts), -1, np.int64)
    next_start = np.full(len(ts), np.iinfo(np.int64).max, np.int64)
    last = np.full(len(first), -1, np.int64)  # the operation that ended last on each thread
    for i in range(len(ts) - 1, -1, -1):  # backwards, to know when its thread goes on after each
        if last[thread[i]] >= 0:
            next_start[i] = ts[last[thread[i]]]
        if not range_start[i] and not waits[i]:
            last[thread[i]] = i
    last[:] = -1
    before = np.full(len(first), -1, np.int64)  # the one before it
    active = np.full(len(first), _NEVER, np.int64)  # active until this time
    idle_since = np.empty(len(ts), np.int64)
    recent = np.empty(len(first), np.int64)  # threads whose last operation may be followed
    is_recent = np.zeros(len(first), np.bool_)
    count = 0
    for i in range(len(ts)):
        t = thread[i]
        since = idle_since[i] = active[t]
        fresh = since == _NEVER
        if not waits[i] and (fresh or ts[i] - since > IDLE_NS):
            count = _without_old(recent, count, is_recent, last, first[t], end, ts[i] - _BEGIN_NS)
            for other in recent[:count]:
                k = _last_but_waiting(last[other], before[other], waits, end, ts[i])
                if other == t or k < 0 or end[k] > ts[i] or end[k] <= since:
                    continue
                at_rest = next_start[k] > ts[i]
                rests = passed_on[i] or (at_rest and next_start[k] - end[k] > IDLE_NS)
                limit_ns = _limit_ns(fresh, passed_on[i], range_start[i], at_rest)
                if rests and ts[i] - end[k] <= limit_ns:
                    source[i] = _later(k, source[i], end, thread)
        active[t] = max(since, end[i])
        if not range_start[i] and (last[t] < 0 or end[i] >= end[last[t]]):
            before[t], last[t] = last[t], i
            if not is_recent[t]:
                recent[count], is_recent[t] = t, True
                count += 1
    return source, idle_since


# Compiled: called by the loop above.
@jit_in_place
def _later(row: int, known: int, end: Array, thread: Array) -> int:
    """Of two operations, the second perhaps -1, the one that ended later, or together on the first thread."""
    if known < 0 or end[row] > end[known]:
        return row
    return row if end[row] == end[known] and thread[row] < thread[known] else known


# Compiled: called by the loop above.
@jit_in_place
def _without_old(  # noqa: PLR0913, PLR0917 # columns
    recent: Array,
    count: int,
    is_recent: Array,
    last: Array,
    first: int,
    end: Array,
    earliest: int,
) -> int:
    """Leave threads out whose last operation ended before a time, or that are of a rank before `first`; how many are left."""
    kept = 0
    for thread in recent[:count]:
        is_recent[thread] = thread >= first and end[last[thread]] >= earliest
        if is_recent[thread]:
            recent[kept] = thread
            kept += 1
    return kept


# Compiled: called by the loop above.
@jit_in_place
def _limit_ns(fresh: bool, passed_on: bool, range_start: bool, at_rest: bool) -> int:  # noqa: FBT001 # columns
    """Longest time behind another thread's operation after which one follows it, a thread's first one if `fresh`."""
    if fresh and passed_on and at_rest:
        return _BEGIN_NS
    return _WAKES_NS if fresh and range_start and not passed_on else WAKE_NS


# Compiled: called by the loop above.
@jit_in_place
def _last_but_waiting(last: int, before: int, waits: Array, end: Array, now: int) -> int:
    """The last operation of a thread, or the one before if it went on only to wait."""
    return before if last >= 0 and waits[last] and end[last] > now else last
