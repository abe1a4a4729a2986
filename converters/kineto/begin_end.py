"""Spans from events of their begin and end (``B``, ``E``): not PyTorch's way, but other tools'.

In Chrome's trace events an end belongs to the last begin of its thread that has none yet, in time order, and where times
are equal in that of the file.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, Bytes, gather
from chopper_interop.arrays.compiled import jit
from chopper_interop.io.json_events import HAS_DUR, HAS_TS
from chopper_interop.issues import Fault, IssueLog

ENDS = Fault.info_of_events("event-end", "Ends of spans gave the durations of their begins.")
NO_BEGIN = Fault.loss_of_events(
    "end-without-begin", "Ends of spans of which no begin is in the file were left out."
)
NO_END = Fault.loss(
    "begin-without-end",
    "Begins of spans of which no end is in the file: their durations were taken as 0.",
)
END_ARGUMENTS = Fault.loss(
    "end-arguments",
    "Arguments at ends of spans were left out where their begins have others, which stay.",
)

_SPAN, _BEGIN, _END = (ord(letter) for letter in "XBE")
PHASES = (_BEGIN, _END)
_EMPTY = len("{}")


def close_spans(columns: dict[str, Array], text: Bytes, issues: IssueLog) -> None:
    """Turn begins into spans, in place; ends stay, and are counted here.

    Parameters
    ----------
    columns
        Columns of the events (`json_events.EVENT`).
    text
        Arguments of the events.
    issues
        Receives the counts of ends, and of begins and ends without a partner.
    """
    phase = columns["ph"]
    begin = np.flatnonzero(phase == _BEGIN)
    end = np.flatnonzero(phase == _END)
    both = np.flatnonzero(((phase == _BEGIN) | (phase == _END)) & (columns["has"] & HAS_TS != 0))
    both = both[np.lexsort((both, *(columns[c][both] for c in ("ts", "tid", "pid"))))]
    pid, tid = columns["pid"][both], columns["tid"][both]
    starts_thread = np.ones(len(both), bool)
    starts_thread[1:] = (pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1])
    partner = _match_ends(phase[both] == _BEGIN, starts_thread)
    opened = both[partner >= 0]
    closed = both[partner[partner >= 0]]
    columns["ph"][begin] = _SPAN
    timed = begin[columns["has"][begin] & HAS_TS != 0]
    columns["dur"][timed] = 0
    columns["has"][timed] |= HAS_DUR
    columns["dur"][opened] = columns["ts"][closed] - columns["ts"][opened]
    issues.add(ENDS, len(closed))
    issues.add(NO_BEGIN, len(end) - len(closed))
    issues.add(NO_END, len(timed) - len(opened))
    without = columns["args_len"][opened] <= _EMPTY
    for column in ("args_at", "args_len"):
        columns[column][opened[without]] = columns[column][closed[without]]
    both_have = ~without & (columns["args_len"][closed] > _EMPTY)
    issues.add(END_ARGUMENTS, _different(columns, text, opened[both_have], closed[both_have]))


def _different(columns: dict[str, Array], text: Bytes, opened: Array, closed: Array) -> int:
    """Number of spans whose end has other arguments than their begin; py-spy writes the same at both."""
    length = columns["args_len"].astype(np.int64)
    alike = length[opened] == length[closed]
    if not alike.any():
        return len(opened)
    first, last = (
        gather.concatenate_ranges(
            [text], np.zeros(1, np.int64), columns["args_at"][rows], length[rows]
        )
        for rows in (opened[alike], closed[alike])
    )
    begins = np.cumsum(length[opened[alike]]) - length[opened[alike]]
    differ = np.logical_or.reduceat(first != last, begins)
    return int(np.count_nonzero(differ) + np.count_nonzero(~alike))


@jit
def _match_ends(is_begin: Array, starts_thread: Array) -> Array:
    """Row of the end of each begin; -1 for begins without one, and for ends.

    A stack of the begins that are open: each end takes the topmost, each thread starts empty. Every
    step depends on the one before, so it is a loop.
    """
    partner = np.full(len(is_begin), -1, np.int64)
    stack = np.empty(len(is_begin), np.int64)
    depth = 0
    for row in range(len(is_begin)):
        if starts_thread[row]:
            depth = 0
        if is_begin[row]:
            stack[depth] = row
            depth += 1
        elif depth:
            depth -= 1
            partner[stack[depth]] = row
    return partner
