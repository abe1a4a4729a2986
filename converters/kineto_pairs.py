"""Begins and ends (``B``, ``E``) made into spans: not PyTorch's way, but of other tools' traces.

Format: Chrome's trace events. An end belongs to the last begin of its thread that has none yet;
in time order, and where times are equal in that of the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.files.jsonscan import HAS_DUR, HAS_TS
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

ENDS = Fault(
    "event-end", Severity.INFO, "Ends of spans gave the durations of their begins.", events=True
)
NO_BEGIN = Fault(
    "end-without-begin",
    Severity.LOSS,
    "Ends of spans of which no begin is in the file were left out.",
    events=True,
)
NO_END = Fault(
    "begin-without-end",
    Severity.LOSS,
    "Begins of spans of which no end is in the file: their durations were taken as 0.",
)
END_ARGUMENTS = Fault(
    "end-arguments",
    Severity.LOSS,
    "Arguments at ends of spans were left out; those of begins stay.",
)

_SPAN, _BEGIN, _END = (ord(letter) for letter in "XBE")
_EMPTY = len("{}")


def close(rows: Array, issues: IssueLog) -> None:
    """Make spans of begins, in place; ends stay, and are counted here."""
    phase = rows["ph"]
    begin = np.flatnonzero(phase == _BEGIN)
    end = np.flatnonzero(phase == _END)
    if not begin.size and not end.size:
        return
    both = np.flatnonzero(((phase == _BEGIN) | (phase == _END)) & (rows["has"] & HAS_TS != 0))
    both = both[np.lexsort((both, *(rows[c][both] for c in ("ts", "tid", "pid"))))]
    pid, tid = rows["pid"][both], rows["tid"][both]
    fresh = np.ones(len(both), bool)
    fresh[1:] = (pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1])
    partner = _paired(phase[both] == _BEGIN, fresh)
    first = both[partner >= 0]
    last = both[partner[partner >= 0]]
    rows["ph"][begin] = _SPAN
    timed = begin[rows["has"][begin] & HAS_TS != 0]
    rows["dur"][timed] = 0
    rows["has"][timed] |= HAS_DUR
    rows["dur"][first] = rows["ts"][last] - rows["ts"][first]
    issues.add(ENDS, len(last))
    issues.add(NO_BEGIN, len(end) - len(last))
    issues.add(NO_END, len(timed) - len(first))
    issues.add(END_ARGUMENTS, np.count_nonzero(rows["args_len"][last] > _EMPTY))


@jit
def _paired(begins: Array, fresh: Array) -> Array:
    """For each begin the row of its end, -1 if there is none, and for ends."""
    partner = np.full(len(begins), -1, np.int64)
    opened = np.empty(len(begins), np.int64)
    depth = 0
    for row in range(len(begins)):
        if fresh[row]:
            depth = 0
        if begins[row]:
            opened[depth] = row
            depth += 1
        elif depth:
            depth -= 1
            partner[opened[depth]] = row
    return partner
