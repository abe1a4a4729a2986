"""roctx ranges of raw records: which end belongs to which begin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocprof_rows import Rows

ENDED = Fault(
    "range-ended", Severity.INFO, "Records that end a roctx range became its end.", events=True
)
LONE_END = Fault(
    "range-end-alone",
    Severity.LOSS,
    "Records that end a roctx range that was not begun were left out.",
    events=True,
)
OPEN = Fault(
    "range-not-ended", Severity.LOSS, "roctx ranges that were not ended are kept as moments."
)

_PUSH, _POP, _START, _STOP = 1, 2, 3, 4


def ranges(rows: Rows, cid: Array, rid: Array, issues: IssueLog) -> Rows:
    """Records of marks, begins and ends as marks and ranges.

    Parameters
    ----------
    rows
        A row for each record, in the order of their file.
    cid
        What each is: 0 a mark, 1 and 2 begin and end a range of a thread, 3 and 4 one by number.
    rid
        Number of ranges.
    issues
        Where ends are counted.
    """
    start = rows.number("start", 0)
    end = start.copy()
    closed = np.zeros(rows.count, bool)
    for pairs in (_nested(rows, cid), _numbered(rows, cid, rid)):
        end[pairs[0]] = np.maximum(start[pairs[1]], start[pairs[0]])
        closed[pairs[0]] = closed[pairs[1]] = True
    ends = np.isin(cid, (_POP, _STOP))
    issues.add(ENDED, np.count_nonzero(ends & closed), rows.where)
    issues.add(LONE_END, np.count_nonzero(ends & ~closed), rows.where)
    opened = np.isin(cid, (_PUSH, _START)) & ~closed
    issues.add(OPEN, np.count_nonzero(opened), rows.where)
    thread = np.where(np.isin(cid, (_START, _STOP)), 0, rows.number("thread", 0))
    numbers = {**rows.numbers, "end": end, "thread": thread}
    known = {k: v for k, v in rows.known.items() if k not in ("end", "thread")}
    return replace(rows, numbers=numbers, known=known).take(np.flatnonzero(~ends))


def _nested(rows: Rows, cid: Array) -> tuple[Array, Array]:
    """Begins and ends of a thread: on each level of nesting they take turns."""
    which = np.flatnonzero(np.isin(cid, (_PUSH, _POP)))
    keys = [rows.number(name)[which] for name in ("thread", "process")]
    order = which[np.lexsort((rows.number("start", 0)[which], *keys))]
    thread = np.stack([rows.number(name)[order] for name in ("thread", "process")])
    new = np.any(np.diff(thread, axis=1, prepend=-2) != 0, axis=0)
    group = np.cumsum(new)
    step = np.where(cid[order] == _PUSH, 1, -1)
    depth = np.cumsum(step)
    before = np.where(new, depth - step, 0)
    base = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0)) if len(order) else order
    depth = depth - before[base]
    level = np.where(step > 0, depth, depth + 1)
    return _neighbours(order, (group, level), cid[order] == _PUSH)


def _numbered(rows: Rows, cid: Array, rid: Array) -> tuple[Array, Array]:
    """Begins and ends with the same number in the same process."""
    which = np.flatnonzero(np.isin(cid, (_START, _STOP)))
    order = which[np.argsort(rows.number("start", 0)[which], kind="stable")]
    process = rows.number("process")[order]
    return _neighbours(order, (process, rid[order]), cid[order] == _START)


def _neighbours(order: Array, keys: tuple[Array, Array], begins: Array) -> tuple[Array, Array]:
    """Pairs of a begin and the record that follows it among those with the same keys."""
    place = np.lexsort((np.arange(len(order)), *keys))
    same = np.ones(max(len(order) - 1, 0), bool)
    for key in keys:
        same &= key[place][1:] == key[place][:-1]
    pair = np.flatnonzero(same & begins[place][:-1] & ~begins[place][1:])
    return order[place[pair]], order[place[pair + 1]]
