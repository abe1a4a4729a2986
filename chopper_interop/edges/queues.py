"""GPU work as it was queued: of each stream in the order in which the host put it there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.compiled import jit
from chopper_interop.columns.members import is_any
from chopper_interop.schemas.kinds import GPU_LANES, GPU_WORK, Kind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Queues:
    """GPU work, sorted by queue, then by when the host asked for it.

    A queue is what was put under one handle of a stream and ran on one lane. Rows of the other
    arrays are places in that order.

    Parameters
    ----------
    node, submit, start, end
        Of each piece of work its row of `nodes`, the start of its launch, and its own times.
        Of work without a launch `submit` is a time by which it was queued for sure.
    call
        The call that launched it; -1 if none is recorded.
    first
        Queue q is ``first[q]:first[q + 1]``.
    lane, rank, device, handle
        Of each queue; the handle is -1 where launches do not tell it.
    communicates
        Of each piece of work.
    """

    node: Array
    submit: Array
    start: Array
    end: Array
    call: Array
    communicates: Array
    first: Array
    lane: Array
    rank: Array
    device: Array
    handle: Array

    @property
    def queue(self) -> Array:
        """The queue of each piece of work."""
        return np.repeat(np.arange(len(self.lane)), np.diff(self.first))

    def last_before(self, queue: Array, submitted: Array, ended: Array) -> tuple[Array, Array]:
        """What was put last on a queue by some moment.

        Parameters
        ----------
        queue
            Queues, one for each question.
        submitted
            The moment: what was asked for later does not count.
        ended
            By this time it had ended.

        Returns
        -------
        place
            The last to end of what had ended in time; -1 if there is none.
        later
            Whether something that was put there by the moment ended later.
        """
        return _last_before(self.first, self.submit, self.end, queue, submitted, ended)

    def first_behind(self, queue: Array, submitted: Array) -> Array:
        """What was put first on a queue from some moment on; -1 if nothing was."""
        return _first_behind(self.first, self.submit, queue, submitted)


def preceding(group: Array, time: Array, of_group: Array, at: Array) -> Array:
    """Of each question the last row of its group that is not later; -1 if there is none.

    Parameters
    ----------
    group, time
        Rows.
    of_group, at
        Questions. Times may be any numbers, so that no key is made of group and time.
    """
    n = len(group)
    order = np.lexsort(
        (np.arange(n + len(at)) >= n, np.append(time, at), np.append(group, of_group))
    )
    place = np.maximum.accumulate(np.where(order < n, np.arange(len(order)), -1))
    found = np.full(n + len(at), -1, np.int64)
    found[order] = np.where(place >= 0, order[np.maximum(place, 0)], -1)
    found = found[n:]
    if not n:
        return found
    return np.where((found >= 0) & (group[found] == of_group), found, -1)


def pairs(row: Array, queue: Array) -> tuple[Array, Array]:
    """Every row with every queue of the same group: positions of rows, and of queues.

    Parameters
    ----------
    row, queue
        Group of each row and of each queue.
    """
    order = np.argsort(queue, kind="stable")
    low = np.searchsorted(queue[order], row, "left")
    count = np.searchsorted(queue[order], row, "right") - low
    which = np.repeat(np.arange(len(row)), count)
    offset = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    return which, order[low[which] + offset]


_AT_ONCE = 1 << 22


def portions(rows: Array, queues: Queues) -> list[Array]:
    """Rows in so many parts that each has not too many pairs with queues."""
    most = max(1, _AT_ONCE // max(1, len(queues.lane)))
    return [rows[start : start + most] for start in range(0, len(rows), most)]


def queues(trace: Trace, handle: Array | None = None) -> Queues:
    """The GPU work of a trace in its queues.

    Parameters
    ----------
    trace
        The trace.
    handle
        For each node the handle of the stream that a launch names, -1 for none.
    """
    kind, lane, ts = (trace.array(c) for c in ("kind", "lane", "ts"))
    runs = is_any(trace.array("kind", "lanes"), GPU_LANES)
    node = np.flatnonzero(is_any(kind, GPU_WORK) & runs[lane])
    call = trace.launch[node]
    of_call = np.full(len(node), -1, np.int64)
    if handle is not None:
        of_call = np.where(call >= 0, handle[call], -1)
    first, code = gather.distinct(lane[node].astype(np.int64), of_call)
    submit = np.where(call >= 0, ts[call], ts[node])
    submit = _known_by(lane[node].astype(np.int64), ts[node], submit, call)
    order = np.lexsort((ts[node], submit, code))
    place = lane[node[first]]
    return Queues(
        node=node[order],
        submit=submit[order],
        start=ts[node[order]],
        end=(ts + trace.array("dur"))[node[order]],
        call=call[order],
        communicates=(kind == Kind.COMM)[node[order]],
        first=np.searchsorted(code[order], np.arange(len(first) + 1)),
        lane=place.astype(np.int64),
        rank=trace.array("rank", "lanes")[place].astype(np.int64),
        device=trace.array("device", "lanes")[place].astype(np.int64),
        handle=of_call[first],
    )


def _known_by(lane: Array, ts: Array, submit: Array, call: Array) -> Array:
    """When work was queued: without a launch, before what runs behind it on its lane was."""
    order = np.lexsort((ts, lane))
    ordered = np.ascontiguousarray(submit[order])
    _earliest_behind(np.ascontiguousarray(lane[order]), call[order] < 0, ordered)
    result = np.empty_like(submit)
    result[order] = ordered
    return result


@jit
def _earliest_behind(lane: Array, unknown: Array, submit: Array) -> None:
    """Lower what is unknown to before what follows on its lane, in place."""
    for i in range(len(lane) - 2, -1, -1):
        if unknown[i] and lane[i + 1] == lane[i]:
            submit[i] = min(submit[i], submit[i + 1] - 1)


_LOOKED_BACK = 8
"""Kernels on one hardware queue overlap their neighbours (rocprof.md: 1,218 of 38,761)."""


@jit
def _ended_sooner(first: Array, end: Array) -> tuple[Array, Array]:
    """Of each place the last before it on its queue that ended sooner, and one farther that way.

    The farther ones are chosen so that any way back takes steps in the logarithm of its length;
    -1 where there is none.
    """
    shorter = np.full(len(end), -1, np.int64)
    jump = np.full(len(end), -1, np.int64)
    depth = np.zeros(len(end), np.int64)
    for q in range(len(first) - 1):
        for i in range(first[q], first[q + 1]):
            p = i - 1 if i > first[q] else -1
            while p >= 0 and end[p] >= end[i]:
                p = shorter[p]
            shorter[i] = jump[i] = p
            if p >= 0:
                depth[i] = depth[p] + 1
                near = jump[p]
                far = jump[near] if near >= 0 else -1
                if far >= 0 and depth[p] - depth[near] == depth[near] - depth[far]:
                    jump[i] = far
    return shorter, jump


@jit
def _last_before(
    first: Array, submit: Array, end: Array, queue: Array, submitted: Array, ended: Array
) -> tuple[Array, Array]:
    place = np.full(len(queue), -1, np.int64)
    later = np.zeros(len(queue), np.bool_)
    shorter, jump = _ended_sooner(first, end)
    for i in range(len(queue)):
        low, high = first[queue[i]], first[queue[i] + 1]
        at = low + np.searchsorted(submit[low:high], submitted[i], "right") - 1
        later[i] = at >= low and end[at] > ended[i]
        while at >= low and end[at] > ended[i]:
            far = jump[at]
            at = far if far >= low and end[far] > ended[i] else shorter[at]
        if at < low:
            continue
        best = at
        for other in range(max(low, at - _LOOKED_BACK), at):
            if end[other] > end[best] and end[other] <= ended[i]:
                best = other
        place[i] = best
    return place, later


@jit
def _first_behind(first: Array, submit: Array, queue: Array, submitted: Array) -> Array:
    place = np.full(len(queue), -1, np.int64)
    for i in range(len(queue)):
        low, high = first[queue[i]], first[queue[i] + 1]
        at = low + np.searchsorted(submit[low:high], submitted[i], "left")
        if at < high:
            place[i] = at
    return place
