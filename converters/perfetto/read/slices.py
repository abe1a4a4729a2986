"""Matching of BEGIN and END events to slices, by the rules of Perfetto's slice tracker.

Events of a track count in order of time, equal times in the order of the file. An END closes the
innermost open slice, or if it has a name the innermost of that name; what is open within that one
ends there too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chopper_interop.arrays import Array, nest
from chopper_interop.arrays.compiled import jit
from chopper_interop.converters.perfetto.read.events_decode import BEGIN, COMPLETE, END, INSTANT
from chopper_interop.issues import Fault, IssueLog

UNFINISHED = Fault.loss(
    "slice-unfinished",
    "Slices of which the end is not in the trace last until its last event, as they are drawn.",
)
END_UNMATCHED = Fault.loss_of_events(
    "slice-end-unmatched",
    "Ends of slices of which the beginning is not in the trace were left out.",
)
MISPLACED = Fault.loss(
    "slice-end-misplaced",
    "Slices that were open when the one around them ended were ended with it.",
)


@dataclass(frozen=True)
class Slices:
    """Slices, instants among them.

    Parameters
    ----------
    begin
        Row of the event that begins each.
    end
        Row of the event that ends it, -1 if there is none.
    ts, dur
        Start and duration, ns.
    """

    begin: Array
    end: Array
    ts: Array
    dur: Array


def match_slices(
    type_: Array, ts: Array, track: Array, name: Array, dur: Array, issues: IssueLog
) -> Slices:
    """Match begins and ends.

    Parameters
    ----------
    type_, ts, track, name, dur
        Columns of all events; `name` is -1 where there is none, `dur` that of complete events.
    issues
        Log in which events without a match are counted.
    """
    rows = np.flatnonzero(np.isin(type_, (BEGIN, END, INSTANT, COMPLETE)))
    rows = rows[np.lexsort((ts[rows], track[rows]))]
    last = int((ts[rows] + np.maximum(dur[rows], 0)).max()) if len(rows) else 0
    end = np.full(len(type_), -1, np.int64)
    stop = np.where(type_ == COMPLETE, ts + np.maximum(dur, 0), ts)
    counts = np.zeros(3, np.int64)
    _match(rows, type_, ts, track, name, end, stop, last, counts)
    for fault, count in zip((UNFINISHED, END_UNMATCHED, MISPLACED), counts.tolist(), strict=True):
        issues.add(fault, count)
    begin = np.flatnonzero(np.isin(type_, (BEGIN, INSTANT, COMPLETE)))
    return Slices(begin, end[begin], ts[begin], stop[begin] - ts[begin])


@jit
def _match(  # noqa: C901, PLR0913, PLR0917 # columns of one table
    rows: Array, type_: Array, ts: Array, track: Array, name: Array, end: Array, stop: Array,
    last: int, counts: Array,
) -> None:  # fmt: skip
    """Write the END that closes each BEGIN into `end`, and its time into `stop`.

    `rows` are ordered by track and time; one pass keeps the open slices of the track on a stack.
    `counts` are those of slices without an end, ends without a slice, and slices that were open
    when the one around them ended.
    """
    open_, depth, current = np.zeros(64, np.int64), 0, -1
    for k in range(len(rows) + 1):
        row = rows[k] if k < len(rows) else -1
        if row < 0 or track[row] != current:
            counts[0] += depth
            for d in range(depth):
                stop[open_[d]] = max(last, ts[open_[d]])
            depth = 0
            if row < 0:
                return
            current = track[row]
        if type_[row] == BEGIN:
            if depth == len(open_):
                open_ = nest.enlarged(open_, 2 * depth)
            open_[depth] = row
            depth += 1
        elif type_[row] == END:
            at = depth - 1
            while at >= 0 and name[row] >= 0 and name[open_[at]] != name[row]:
                at -= 1
            if at < 0:
                counts[1] += 1
                continue
            counts[2] += depth - 1 - at
            for d in range(at, depth):
                stop[open_[d]] = ts[row]
            end[open_[at]] = row
            depth = at
