"""Lines of ASTRA-sim's logs as columns: start and end of each node, and its rank.

With ``trace-enabled`` in the system's configuration, each node leaves a line as it is issued and
one as it is called back. Forms: that of spdlog since 2024 (``[time] [workload] [debug] issue,…``)
and earlier plain ones, without spaces after the commas and partly without types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.issues import Fault, IssueLog

BROKEN = Fault.loss(
    "sim-line-broken",
    "Lines of the log with numbers that are missing or out of range were left out.",
)
NOT_ENDED = Fault.loss_of_events(
    "sim-node-not-ended",
    "Nodes that were issued and never called back: the simulation hung, or the log breaks off.",
)
NOT_BEGUN = Fault.loss_of_events(
    "sim-node-not-begun",
    "Nodes that were called back and whose issue is not in the log: ASTRA-sim keeps the last "
    "ten files of 10 MB.",
)
BACKWARDS = Fault.loss_of_events(
    "sim-node-ends-first", "Nodes that were called back before they were issued were left out."
)
EARLIER_RUNS = Fault.loss_of_events(
    "sim-earlier-runs", "ASTRA-sim appends to an existing log: nodes of earlier runs were left out."
)

NOT_FINISHED = Fault.loss(
    "sim-rank-not-finished",
    "Ranks that did not finish according to the log: the simulation hung, or the log breaks off.",
)

_FIELDS = (
    r"(?P<event>issue|callback),sys->id=(?P<rank>\d{1,6}), ?tick=(?P<tick>\d{1,18}), ?"
    r"node->id=(?P<id>\d{1,18})(?:, ?node->name=(?P<name>.*?))?"
    r"(?:, ?node->(?:node_)?type=(?P<type>\d{1,3}))?\s*$"
)
_FINISHED = r"sys\[(?P<rank>\d{1,6})\] finished, (?P<cycles>\d{1,18}) cycles"


@dataclass(frozen=True)
class SimulatedRun:
    """Nodes of a run, one row each.

    Parameters
    ----------
    rank, id, type
        Rank, number of the node in its ET, and its `NodeType`; -1 where the log lacks it.
    name
        A dictionary array.
    start, end
        Ticks, which are nanoseconds.
    finished
        Ticks that each rank took, of the ranks that finished.
    events
        Number of nodes in the log, including those that were left out.
    """

    rank: Array
    id: Array
    type: Array
    name: pa.DictionaryArray
    start: Array
    end: Array
    finished: dict[int, int]
    events: int


def last_run(buffers: list[Array], issues: IssueLog) -> SimulatedRun:
    """Read the last run in a log.

    Parameters
    ----------
    buffers
        Bytes of the files, oldest first.
    issues
        Log of what was left out.
    """
    lines = pa.concat_arrays([_text_lines(buffer) for buffer in buffers])
    at = np.flatnonzero(arrow.to_numpy(pc.match_substring(lines, "sys->id=")))
    events = pc.extract_regex(lines.take(arrow.array(at)), _FIELDS)
    issues.add(BROKEN, events.null_count)
    at, events = at[arrow.to_numpy(events.is_valid()).astype(bool)], events.drop_null()
    is_issue = arrow.to_numpy(pc.equal(events.field("event"), "issue")).astype(bool)
    columns = (_integers(events.field(c)) for c in ("rank", "tick", "id"))
    rank, tick, number = (np.array(column, np.int64) for column in columns)
    first = _start_of_last_run(is_issue, rank, tick, number)
    finished = _finished(lines[int(at[first]) :] if len(at) else lines)
    earlier = int(np.count_nonzero(is_issue[:first]))
    issues.add(EARLIER_RUNS, earlier)
    begin, end = _pairs(is_issue[first:], rank[first:], number[first:])
    begin, end = begin + first, end + first  # a missing one, -1, is now first - 1
    matched = (begin >= first) & (end >= first)
    issues.add(NOT_ENDED, np.count_nonzero(begin[~matched] >= first))
    issues.add(NOT_BEGUN, np.count_nonzero(begin[~matched] < first))
    backwards = matched & (tick[end] < tick[begin])
    issues.add(BACKWARDS, np.count_nonzero(backwards))
    unfinished = sorted({*rank[first:].tolist()} - finished.keys())
    issues.add(NOT_FINISHED, len(unfinished), f"ranks {unfinished[:8]}")
    rows = np.sort(begin[matched & ~backwards])
    callback = np.full(len(tick), -1, np.int64)
    callback[begin[matched]] = end[matched]
    node_type = events.field("type").take(arrow.array(rows))
    node_type = pc.if_else(pc.equal(node_type, ""), "-1", node_type)
    return SimulatedRun(
        rank=rank[rows],
        id=number[rows],
        type=np.array(_integers(node_type), np.int64),
        name=events.field("name").take(arrow.array(rows)).dictionary_encode(),
        start=tick[rows],
        end=tick[callback[rows]],
        finished=finished,
        events=len(begin) + earlier,
    )


def _finished(lines: pa.StringArray) -> dict[int, int]:
    """Ticks that ranks took, from lines that begin with the first event of the run."""
    reports = pc.extract_regex(lines, _FINISHED).drop_null()
    ranks, cycles = (_integers(reports.field(c)) for c in ("rank", "cycles"))
    return dict(zip(ranks, cycles, strict=True))


def _text_lines(buffer: Array) -> pa.StringArray:
    """Lines of a file; bytes that are no UTF-8 are replaced by escapes."""
    raw = bytes(buffer)
    try:
        raw.decode()
    except UnicodeDecodeError:
        raw = raw.decode("utf-8", "backslashreplace").encode()
    data = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    offsets = np.concatenate([[0], ends + 1, [len(data)]]).astype(np.int64)
    lines = pa.LargeStringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(raw)
    )
    return pc.cast(lines, pa.string())


def _integers(texts: Any) -> list[int]:
    """Parse texts of digits."""
    return list(pc.cast(texts, pa.int64()).to_pylist())


def _start_of_last_run(is_issue: Array, rank: Array, tick: Array, number: Array) -> int:
    """Row where the last run begins: the time is 0 again, and nodes are issued a second time."""
    rows = np.flatnonzero(is_issue)
    first, _ = gather.distinct(rank[rows], number[rows])
    if len(first) == len(rows):
        return 0
    restarts = np.flatnonzero((tick[1:] == 0) & (tick[:-1] > 0)) + 1
    return int(restarts[-1]) if len(restarts) else 0


def _pairs(is_issue: Array, rank: Array, number: Array) -> tuple[Array, Array]:
    """Rows of the issues and callbacks of nodes; -1 where one is missing."""
    # A node may run more than once: its n-th issue belongs to its n-th callback. Sorted by (node,
    # event, row), `nth` is the distance to the first row of the same node and event.
    if not len(is_issue):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    _, node = gather.distinct(rank, number)
    order = np.lexsort((np.arange(len(node)), is_issue, node))
    continues = np.zeros(len(node), bool)
    continues[1:] = np.diff(node[order]) == 0
    continues[1:] &= is_issue[order][1:] == is_issue[order][:-1]
    position = np.arange(len(node))
    start = np.maximum.accumulate(np.where(continues, 0, position))
    nth = np.empty(len(node), np.int64)
    nth[order] = position - start
    first, pair = gather.distinct(node.astype(np.int64), nth)
    begin, end = np.full(len(first), -1, np.int64), np.full(len(first), -1, np.int64)
    begin[pair[is_issue]] = np.flatnonzero(is_issue)
    end[pair[~is_issue]] = np.flatnonzero(~is_issue)
    return begin, end
