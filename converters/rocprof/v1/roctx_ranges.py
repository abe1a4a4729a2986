"""roctx ranges of raw records: pairs of begins and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.converters.rocm.rows import TableRows

ENDED = Fault(
    "range-ended", Severity.INFO, "Records that end a roctx range became its end.", events=True
)
LONE_END = Fault(
    "range-end-alone",
    Severity.LOSS,
    "Records that end a roctx range without a begin were left out.",
    events=True,
)
OPEN = Fault("range-not-ended", Severity.LOSS, "roctx ranges without an end became instants.")

_PUSH, _POP, _START, _STOP = 1, 2, 3, 4


def pair_ranges(rows: TableRows, cid: Array, rid: Array, issues: IssueLog) -> TableRows:
    """Turn records of marks, begins and ends into marks and ranges.

    Parameters
    ----------
    rows
        A row for each record, in the order of their file.
    cid
        Type of each record: 0 is a mark, 1 and 2 begin and end a range of a thread, 3 and 4 one
        with a number.
    rid
        Number of each range.
    issues
        Log of ends.
    """
    start = rows.number("start", 0)
    end = start.copy()
    closed = np.zeros(rows.count, bool)
    for begin, stop in (_nested_pairs(rows, cid), _numbered_pairs(rows, cid, rid)):
        end[begin] = np.maximum(start[stop], start[begin])
        closed[begin] = closed[stop] = True
    ends = np.isin(cid, (_POP, _STOP))
    issues.add(ENDED, np.count_nonzero(ends & closed), rows.where)
    issues.add(LONE_END, np.count_nonzero(ends & ~closed), rows.where)
    opened = np.isin(cid, (_PUSH, _START)) & ~closed
    issues.add(OPEN, np.count_nonzero(opened), rows.where)
    thread = np.where(np.isin(cid, (_START, _STOP)), 0, rows.number("thread", 0))
    return rows.with_numbers(end=end, thread=thread).select(~ends)


def _nested_pairs(rows: TableRows, cid: Array) -> tuple[Array, Array]:
    """Pair begins and ends of a thread, which alternate on each level of nesting.

    The depth of nesting is the running sum of +1 for a begin and -1 for an end, less the depth at
    the thread's first record; an end is on the level of the begin that it closes.
    """
    selected = np.flatnonzero(np.isin(cid, (_PUSH, _POP)))
    keys = [rows.number(name)[selected] for name in ("thread", "process")]
    order = selected[np.lexsort((rows.number("start", 0)[selected], *keys))]
    thread = np.stack([rows.number(name)[order] for name in ("thread", "process")])
    is_first = np.any(np.diff(thread, axis=1, prepend=-2) != 0, axis=0)
    group = np.cumsum(is_first)
    step = np.where(cid[order] == _PUSH, 1, -1)
    depth = np.cumsum(step)
    before = np.where(is_first, depth - step, 0)
    first = (
        np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0)) if len(order) else order
    )
    depth = depth - before[first]
    level = np.where(step > 0, depth, depth + 1)
    return _adjacent_pairs(order, (group, level), cid[order] == _PUSH)


def _numbered_pairs(rows: TableRows, cid: Array, rid: Array) -> tuple[Array, Array]:
    """Pair begins and ends with the same number in the same process."""
    selected = np.flatnonzero(np.isin(cid, (_START, _STOP)))
    order = selected[np.argsort(rows.number("start", 0)[selected], kind="stable")]
    process = rows.number("process")[order]
    return _adjacent_pairs(order, (process, rid[order]), cid[order] == _START)


def _adjacent_pairs(order: Array, keys: tuple[Array, Array], begins: Array) -> tuple[Array, Array]:
    """Pair each begin with the next record of the same keys, if that is an end."""
    by_key = np.lexsort((np.arange(len(order)), *keys))
    same = np.ones(max(len(order) - 1, 0), bool)
    for key in keys:
        same &= key[by_key][1:] == key[by_key][:-1]
    pair = np.flatnonzero(same & begins[by_key][:-1] & ~begins[by_key][1:])
    return order[by_key[pair]], order[by_key[pair + 1]]
