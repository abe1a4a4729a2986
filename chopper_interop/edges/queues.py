"""GPU work as it was queued: for each stream, in the order in which the host submitted it.

Launches that wait until a full queue takes more depend on work in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather, nest
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.arrays.gather import is_any
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import CALLS, GPU_LANES, GPU_WORK, Kind
from chopper_interop.trace import Trace

FULL_QUEUE = Fault.info(
    "queue-full",
    "Launches took long whenever a certain number of kernels was queued on their stream: each waits "
    "for the work that many places before it.",
)

_LONG_RATIO = 4
"""A launch waited if it took so many times the median. Chosen: launches that do not wait vary by less."""
_MIN_WAITS = 8
"""Launches of a stream that must have waited. Chosen: fewer can agree on a number by chance."""
_MIN_PLACES = 4
"""Least places of a queue. Chosen: where the host is slower than the GPU, the most that is ever queued
is one or two kernels, at every launch, long or not."""
_RETURNING = 2
"""Kernels that may start while a launch that waited returns, after the one that made room. Seen on an
A100: of 1,154 such launches 696 leave a full queue, 388 one with a free place, 51 with two."""
_AGREEING = 0.8
"""Share of long launches that leave a full queue. Chosen: a launch may take long for another reason."""

_MAX_HIDDEN, _STEADIER = 16, 4
"""How many kernels are looked for that began before a launch returned, but by the GPU's clock later, and how many times
steadier returns must be with them. Chosen: within `MAX_AHEAD_NS` sixteen begin that last 3 µs each; returns vary by less than
a microsecond, and kernels by more."""
MAX_AHEAD_NS = 50_000
"""By how much work may seem to end behind the wait for it. Chosen: 8 µs are known (MI300X)."""

NEVER_TOO_LATE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Queues:
    """GPU work, sorted by queue, then by submission.

    A queue holds the work that was submitted under one stream handle and ran on one lane. A "slot"
    is a position in this order: the index of a piece of work in `node`, `submit`, `start`, `end`,
    `call`, `communicates` and `queued_before`.

    Parameters
    ----------
    node, submit, start, end
        For each slot the row of `nodes`, the start of the launching call, and the work's own times,
        ns. For work without a launch, `submit` is a time by which it must have been queued.
    queued_before
        True for work that had been queued before the recording began.
    call
        The call that launched it; -1 if none is recorded.
    communicates
        True for communication.
    first
        Queue q has the slots ``first[q]:first[q + 1]``.
    lane, rank, device, handle
        Of each queue; the handle is -1 where launches do not name it.
    """

    node: Array
    submit: Array
    start: Array
    end: Array
    call: Array
    communicates: Array
    queued_before: Array
    first: Array
    lane: Array
    rank: Array
    device: Array
    handle: Array

    @property
    def queue(self) -> Array:
        """The queue of each slot."""
        return np.repeat(np.arange(len(self.lane)), np.diff(self.first))

    @property
    def rank_number(self) -> Array:
        """For each slot the number of its rank among those that have queues, from 0 on."""
        return np.repeat(gather.distinct(self.rank)[1], np.diff(self.first))

    def last_before(self, queue: Array, submitted: Array, ended: Array) -> tuple[Array, Array]:
        """Find the last work that was submitted to a queue, and had ended, by given times.

        Parameters
        ----------
        queue
            Queues, one for each question.
        submitted
            Work that was submitted later does not count.
        ended
            Work that ended later does not count.

        Returns
        -------
        slot
            The last to end of the work that counts; -1 if there is none.
        later
            True if work that was submitted in time ended too late.
        """
        at = self.last_submitted(queue, submitted)
        return _last_before(self.first, self.end, *self.jumps, queue, at, ended)

    @cached_property
    def jumps(self) -> tuple[Array, Array]:
        """For each slot where to look for work that ended sooner (see `_build_jumps`)."""
        return _build_jumps(self.first, self.end)

    def last_submitted(self, queue: Array, submitted: Array) -> Array:
        """Slot of the last work submitted to a queue up to a time; -1 if there is none."""
        return _last_submitted(self.first, self.submit, queue, submitted)

    def first_submitted_since(self, queue: Array, submitted: Array) -> Array:
        """Slot of the first work submitted to a queue from a time on; -1 if there is none."""
        return _first_since(self.first, self.submit, queue, submitted)

    def first_started_since(self, queue: Array, started: Array) -> Array:
        """Slot of the first work of a queue that started from a time on; -1 if there is none."""
        return _first_since(self.first, self.start, queue, started)


def group_pairs(row_group: Array, queue_group: Array) -> tuple[Array, Array]:
    """All pairs of a row and a queue of the same group: positions of rows, and of queues.

    Parameters
    ----------
    row_group, queue_group
        Group of each row and of each queue.
    """
    order = np.argsort(queue_group, kind="stable")
    low = np.searchsorted(queue_group[order], row_group, "left")
    count = np.searchsorted(queue_group[order], row_group, "right") - low
    # row i is repeated count[i] times; its offsets 0, 1, … run through the queues of its group
    rows = np.repeat(np.arange(len(row_group)), count)
    offset = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return rows, order[low[rows] + offset]


_MAX_PAIRS = 1 << 22
"""Chosen: 4 Mi pairs of rows and queues take 32 MiB in each column that is made of them."""


def in_batches(rows: Array, queues: Queues) -> list[Array]:
    """Rows in batches, of each of which the pairs with all queues fit into memory."""
    batch_size = max(1, _MAX_PAIRS // max(1, len(queues.lane)))
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]


def build_queues(trace: Trace, handle: Array | None = None) -> Queues:
    """Sort the GPU work of a trace into its queues.

    Parameters
    ----------
    trace
        The trace.
    handle
        For each node the stream handle that it names as a launch, -1 for none; if None, a queue is
        a lane.
    """
    kind, lane, ts = (trace.array(c) for c in ("kind", "lane", "ts"))
    on_gpu_lane = is_any(trace.array("kind", "lanes"), GPU_LANES)
    node = np.flatnonzero(is_any(kind, GPU_WORK) & on_gpu_lane[lane])
    call = trace.launch[node]
    work_handle = np.full(len(node), -1, np.int64)
    if handle is not None:
        work_handle = np.where(call >= 0, handle[call], -1)
    first, queue = gather.distinct(lane[node].astype(np.int64), work_handle)
    before, first_call = queued_before(trace, node, call)
    submit = np.where(call >= 0, ts[call], np.where(before, first_call - 1, ts[node]))
    submit = _bound_submission(lane[node].astype(np.int64), ts[node], submit, call)
    order = np.lexsort((ts[node], submit, queue))
    queue_lane = lane[node[first]]
    return Queues(
        node=node[order],
        submit=submit[order],
        start=ts[node[order]],
        end=ts[node[order]] + trace.array("dur")[node[order]],
        call=call[order],
        communicates=(kind == Kind.COMM)[node[order]],
        queued_before=before[order],
        first=np.searchsorted(queue[order], np.arange(len(first) + 1)),
        lane=queue_lane.astype(np.int64),
        rank=trace.array("rank", "lanes")[queue_lane].astype(np.int64),
        device=trace.array("device", "lanes")[queue_lane].astype(np.int64),
        handle=work_handle[first],
    )


def queued_before(trace: Trace, node: Array, call: Array) -> tuple[Array, Array]:
    """Mark work that was queued before the recording of its rank began; also its rank's first recorded call, ns.

    A process numbers its calls, and work has the number of its call: what has a smaller one than all
    recorded calls was queued before these.
    """
    correlation, rank = trace.array("correlation"), trace.array("rank")
    calls = np.flatnonzero(is_any(trace.array("kind"), CALLS) & (correlation > 0))
    first = np.flatnonzero(np.diff(rank[calls], prepend=-1))  # nodes are in order of rank
    place = gather.find(rank[calls[first]], rank[node])
    unlaunched = np.flatnonzero((call < 0) & (place >= 0))
    place, number = place[unlaunched], correlation[node[unlaunched]]
    before = np.zeros(len(node), bool)
    first_call = np.zeros(len(node), np.int64)
    if unlaunched.size:
        before[unlaunched] = (number > 0) & (
            number < np.minimum.reduceat(correlation[calls], first)[place]
        )
        first_call[unlaunched] = np.minimum.reduceat(trace.array("ts")[calls], first)[place]
    return before, first_call


def _bound_submission(lane: Array, ts: Array, submit: Array, call: Array) -> Array:
    """Submission times; work without a launch was queued before the work after it on its lane."""
    order = np.lexsort((ts, lane))
    ordered = np.ascontiguousarray(submit[order])
    _lower_to_next(np.ascontiguousarray(lane[order]), call[order] < 0, ordered)
    result = np.empty_like(submit)
    result[order] = ordered
    return result


# Compiled: each time depends on the one found for the next piece of work.
@jit
def _lower_to_next(lane: Array, unknown: Array, submit: Array) -> None:
    """Lower unknown times to just before that of the next work on the lane, in place."""
    for i in range(len(lane) - 2, -1, -1):
        if unknown[i] and lane[i + 1] == lane[i]:
            submit[i] = min(submit[i], submit[i + 1] - 1)


_LOOK_BACK = 8
"""Work before the last that may have ended after it: kernels on one hardware queue overlap their
direct neighbours (measured on rocprofv3 files: 1,218 of 38,761, by 100 to 570 ns). Chosen: several
times that neighbourhood."""


# Compiled, and with jumps: where thousands of pieces were queued but had not ended, stepping back one
# by one for each question would take quadratic time.
#
#   slot        0    1    2    3    4        ended_sooner[4] = 2: the last before 4 with a smaller end
#   end        10   30   20   50   40        jump[4]: a slot further back along that chain
@jit
def _build_jumps(first: Array, end: Array) -> tuple[Array, Array]:
    """For each slot, the last before it on its queue that ended sooner, and one farther back.

    Following both (a jump pointer, or "skew-binary" ancestor, for each slot) takes a number of
    steps that is logarithmic in the length of the way back; -1 where there is none.
    """
    ended_sooner = np.full(len(end), -1, np.int64)
    jump = np.full(len(end), -1, np.int64)
    depth = np.zeros(len(end), np.int64)
    for q in range(len(first) - 1):
        for i in range(first[q], first[q + 1]):
            p = i - 1 if i > first[q] else -1
            while p >= 0 and end[p] >= end[i]:
                p = ended_sooner[p]
            ended_sooner[i] = jump[i] = p
            if p >= 0:
                depth[i] = depth[p] + 1
                near = jump[p]
                far = jump[near] if near >= 0 else -1
                if far >= 0 and depth[p] - depth[near] == depth[near] - depth[far]:
                    jump[i] = far
    return ended_sooner, jump


# Compiled: a walk along jumps for each question.
@jit
def _last_before(  # noqa: PLR0913, PLR0917 # columns
    first: Array, end: Array, ended_sooner: Array, jump: Array, queue: Array, at: Array, ended: Array
) -> tuple[Array, Array]:  # fmt: skip
    slot = np.full(len(queue), -1, np.int64)
    later = np.zeros(len(queue), np.bool_)
    for i in range(len(queue)):
        later[i] = at[i] >= 0 and end[at[i]] > ended[i]
        slot[i] = last_ended(first[queue[i]], end, ended_sooner, jump, at[i], ended[i])
    return slot, later


# Compiled: called for each question, and for each pair of streams of a wait.
@jit_in_place
def last_ended(
    low: int, end: Array, ended_sooner: Array, jump: Array, at: int, ended: int
) -> int:  # fmt: skip
    """Last to end by a time of the work from slot `low`, where its queue begins, to `at`; -1 if there is none.

    Parameters
    ----------
    low, at
        Slots; `at` may be -1.
    end, ended_sooner, jump
        Of each slot; see `_build_jumps`.
    ended
        Work that ended later does not count.
    """
    while at >= low and end[at] > ended:
        far = jump[at]
        at = far if far >= low and end[far] > ended else ended_sooner[at]
    if at < low:
        return -1
    last_to_end = at
    for other in range(max(low, at - _LOOK_BACK), at):
        if end[other] > end[last_to_end] and end[other] <= ended:
            last_to_end = other
    return last_to_end


# Compiled: one binary search within the queue of each question.
@jit
def _last_submitted(first: Array, submit: Array, queue: Array, submitted: Array) -> Array:
    slot = np.full(len(queue), -1, np.int64)
    for i in range(len(queue)):
        low, high = first[queue[i]], first[queue[i] + 1]
        at = low + np.searchsorted(submit[low:high], submitted[i], "right") - 1
        if at >= low:
            slot[i] = at
    return slot


# Compiled: one binary search within the queue of each question.
@jit
def _first_since(first: Array, time: Array, queue: Array, since: Array) -> Array:
    slot = np.full(len(queue), -1, np.int64)
    for i in range(len(queue)):
        low, high = first[queue[i]], first[queue[i] + 1]
        at = low + np.searchsorted(time[low:high], since[i], "left")
        if at < high:
            slot[i] = at
    return slot


_KEPT = 8
"""Streams that ended last, of which a wait keeps the work whatever earlier waits imply. Chosen: more than jobs
wait for at a time, of which each wait then has all edges."""


def last_work_of_devices(
    queues: Queues, thread: Array, rank: Array, device: Array, start: Array, end: Array
) -> tuple[Array, Array, Array]:
    """Find the last work on each queue for which calls that wait for a whole device waited.

    A thread that waited for a piece of work once has waited for it at all its later waits, which need no edge
    from it: so there are as many edges as work and waits, and not as many as waits times streams::

        stream 1   [ a ]                                  a -> wait 1
        stream 2   [   b   ]   [ c ]                      b -> wait 1, c -> wait 2; a and b -> wait 2 is implied
        thread     [ wait 1 ]     [ wait 2 ]

    But those of `_KEPT` streams stay, as what if an earlier wait were none is asked as well.

    Parameters
    ----------
    queues
        GPU work in its queues.
    thread, rank, device, start, end
        Of each call; a device of -1 stands for all of its rank. Work that was submitted after the start does not
        count, nor does any that ended after the end.

    Returns
    -------
    slot, call
        Pairs of work and position of the call, without those that are implied.
    later
        Mask of calls of which work that was submitted in time ended too late.
    """
    order = np.lexsort((start, end, thread))
    of_rank = np.argsort(queues.rank, kind="stable")
    ranks = queues.rank[of_rank]
    slot, call, later = _last_work_of_devices(
        order, thread, device, start, end,
        np.searchsorted(ranks, rank), np.searchsorted(ranks, rank, "right"), of_rank,
        queues.device, queues.first, queues.submit, queues.end, *queues.jumps,
    )  # fmt: skip
    by_call = np.lexsort((slot, call))
    return slot[by_call], call[by_call], later


# Compiled: visits each pair of a wait and a queue. What nothing was submitted to since the thread's last wait costs two
# comparisons. Calls are in the order of their ends, and so are those ends in the graph, also of calls within others.
#
#   slot     of each queue: the last work that the thread has waited for; all that ended before it is implied
#   at, now  of each queue: the last work submitted before the last wait began, at `asked`, and the last of it to end in
#            time; `settled` if none of it ended too late
@jit
def _last_work_of_devices(  # noqa: PLR0913, PLR0917 # columns
    order: Array, thread: Array, device: Array, start: Array, end: Array,
    low: Array, high: Array, of_rank: Array, queue_device: Array, first: Array,
    submit: Array, work_end: Array, ended_sooner: Array, jump: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    n = len(queue_device)
    awaited, now = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    at, asked, settled = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.bool_)
    slot, call = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    later = np.zeros(len(order), np.bool_)
    latest = np.zeros(_KEPT, np.int64)
    size = 0
    for step in range(len(order)):
        row = order[step]
        is_first = step == 0 or thread[row] != thread[order[step - 1]]
        kept = 0
        for k in range(low[row], high[row]):
            q = of_rank[k]
            if is_first:
                awaited[q], settled[q] = -1, False
            if device[row] >= 0 and queue_device[q] != device[row]:
                continue
            behind = at[q] + 1
            is_same = settled[q] and start[row] >= asked[q]
            asked[q] = start[row]
            if not (is_same and (behind == first[q + 1] or submit[behind] > start[row])):
                until = np.searchsorted(submit[first[q] : first[q + 1]], start[row], "right")
                at[q] = first[q] + until - 1
                now[q] = -1
                settled[q] = True
                if until > 0:
                    low_slot = first[q]
                    now[q] = last_ended(low_slot, work_end, ended_sooner, jump, at[q], end[row])
                    whole = last_ended(
                        low_slot, work_end, ended_sooner, jump, at[q], NEVER_TOO_LATE
                    )
                    settled[q] = now[q] == whole
                    later[row] |= work_end[at[q]] > end[row]
            work = now[q]
            if work < 0:
                continue
            if awaited[q] < 0 or work_end[work] > work_end[awaited[q]]:
                awaited[q] = work
                slot, call, size = _with_pair(slot, call, size, work, row)
            else:
                kept = _with_latest(latest, kept, work, work_end)
        for k in range(kept):
            slot, call, size = _with_pair(slot, call, size, latest[k], row)
    return slot[:size], call[:size], later


# Compiled: called by the loop above, as below.
@jit
def _with_pair(
    slot: Array, call: Array, size: int, work: int, row: int
) -> tuple[Array, Array, int]:
    """Add a pair; returns the arrays, enlarged if they were full, and the number of pairs."""
    if size == len(slot):
        slot, call = nest.enlarged(slot, 2 * size), nest.enlarged(call, 2 * size)
    slot[size], call[size] = work, row
    return slot, call, size + 1


@jit_in_place
def _with_latest(latest: Array, kept: int, work: int, work_end: Array) -> int:
    """Insert work among those that ended last, the latest first; returns their number."""
    if kept == len(latest) and work_end[work] <= work_end[latest[kept - 1]]:
        return kept
    place = min(kept, len(latest) - 1)
    while place > 0 and work_end[latest[place - 1]] < work_end[work]:
        latest[place] = latest[place - 1]
        place -= 1
    latest[place] = work
    return min(kept + 1, len(latest))


def full_queue_edges(trace: Trace, queues: Queues, issues: IssueLog) -> tuple[Array, Array]:
    """Find edges from work to the launches for which its end made room, as rows of `nodes`.

    A queue has room again when its next kernel starts, and that is when the one before it has ended.
    How many places it has is learned from launches that took long: then all of its places were taken.

    Parameters
    ----------
    trace
        The trace.
    queues
        GPU work in its queues.
    issues
        Log in which the launches that waited are counted.
    """
    lane = queues.lane[queues.queue]
    slots = np.lexsort((queues.start, queues.submit, lane))
    ts, dur = trace.array("ts"), trace.array("dur")
    bounds = np.flatnonzero(np.diff(lane[slots], prepend=-1, append=-1))
    src, dst = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for first, stop in pairwise(bounds.tolist()):
        work = slots[first:stop]
        call = queues.call[work]
        launched = _last_of_each_call(call)
        places, waits, ahead_ns, *_ = _learned_queue(trace, queues, work, launched)
        if places:
            clock = f", clock {ahead_ns} ns ahead of the host's" if ahead_ns else ""
            issues.add(
                FULL_QUEUE, len(waits), f"{places} places{clock}; {issues.node(call[waits[0]])}"
            )
            waiting = launched[launched > places]
            slot, at = work[waiting - places - 1], call[waiting]
            in_time = queues.end[slot] <= ts[at] + dur[at] + ahead_ns
            src.append(queues.node[slot[in_time]])
            dst.append(at[in_time])
    return np.concatenate(src).astype(np.int32), np.concatenate(dst).astype(np.int32)


def _last_of_each_call(call: Array) -> Array:
    """Positions of work with a recorded launch, of work of one call the last."""
    known = np.flatnonzero(call >= 0)[::-1]
    _, last = np.unique(call[known], return_index=True)
    return np.sort(known[last])


class _FullQueue(NamedTuple):
    """A lane's queue, as launches into it show it.

    Parameters
    ----------
    places
        How many it has; 0 if it never was full.
    waits
        Positions of launches that waited.
    ahead_ns
        By how much the GPU's clock is ahead.
    spread_ns, is_steadier
        How the times vary at which launches returned; if much less than with as many places as it seemed to have.
    """

    places: int
    waits: Array
    ahead_ns: int = 0
    spread_ns: float = 0.0
    is_steadier: bool = False


def _learned_queue(trace: Trace, queues: Queues, work: Array, launched: Array) -> _FullQueue:
    """Learn a lane's queue from launches that took long."""
    never_full = _FullQueue(0, launched[:0])
    if len(launched) < _MIN_WAITS:
        return never_full
    call = queues.call[work[launched]]
    ts, dur = trace.array("ts")[call], trace.array("dur")[call]
    begun = np.sort(queues.start[work])
    begun_before, begun_by_then, begun_later = (
        np.searchsorted(begun, at, "right") for at in (ts, ts + dur, ts + dur + MAX_AHEAD_NS)
    )
    queued = launched + 1 - begun_by_then
    places = int(queued.max())
    if places < _MIN_PLACES:
        return never_full
    # by a clock that is ahead work may begin later than it did: then less is known to have had room
    had_room = queued < places, queued < int((launched + 1 - begun_later).max())
    for roomy, begun_until in zip(had_room, (begun_by_then, begun_later), strict=True):
        long = dur > _LONG_RATIO * np.median(dur[roomy]) if roomy.any() else dur > 0
        # what makes room is that work starts: none does while a stream waits, or if launches are long by nature
        full = long & (queued >= places - _RETURNING) & (begun_until > begun_before)
        if full.sum() >= max(_MIN_WAITS, _AGREEING * long.sum()):
            own_ns = float(np.median(dur[roomy])) if roomy.any() else 0.0
            learned = _by_steady_returns(trace, queues, work, launched[full], places, own_ns)
            is_steady = learned.spread_ns <= own_ns or learned.is_steadier
            if begun_until is begun_by_then or (learned.places < places and is_steady):
                return learned
    return never_full


def _by_steady_returns(  # columns
    trace: Trace, queues: Queues, work: Array, waits: Array, places: int, own_ns: float
) -> _FullQueue:  # fmt: skip
    """Correct the places of a lane's queue by when launches returned.

    By a clock that is ahead work seems to begin behind the launch for which it made room, so that the queue seems to have
    more places. Then launches return as steadily as ever with the end of work some places later::

        launch   [ waits   ]           at the end of b, which made room, less the difference of the clocks
        stream   [ a ] [ b  ] [ c ]    a, with one place more, ended sooner by as long as b lasts

    Of equal kernels any number of places fits as well; but none behind whose room launches would all have returned later
    than those with room take (`own_ns`, if it is known), many times over.
    """
    call = queues.call[work[waits]]
    returned = trace.array("ts")[call] + trace.array("dur")[call]
    begun = np.sort(queues.start[work])
    hidden = np.searchsorted(begun, returned + MAX_AHEAD_NS, "right")
    hidden -= np.searchsorted(begun, returned, "right")
    spread, least = {}, {}
    for fewer in range(min(int(hidden.max(initial=0)), _MAX_HIDDEN, places - _MIN_PLACES) + 1):
        behind = waits > places - fewer
        late = returned[behind] - queues.end[work[waits[behind] - (places - fewer) - 1]]
        if late.size:
            lower, upper = np.quantile(late, (0.25, 0.75))
            spread[fewer], least[fewer] = upper - lower, int(late.min())
    latest_ns = _LONG_RATIO * own_ns or np.inf
    plausible = [fewer for fewer in spread if -MAX_AHEAD_NS <= least[fewer] <= latest_ns]
    steadiest = min((spread[fewer] for fewer in plausible), default=0)
    for fewer in plausible:
        if spread[fewer] <= _STEADIER * steadiest:
            ahead_ns = max(0, -least[fewer]) if fewer else 0
            is_steadier = _STEADIER * spread[fewer] < spread[0]
            return _FullQueue(places - fewer, waits, ahead_ns, spread[fewer], is_steadier)
    return _FullQueue(places, waits)
