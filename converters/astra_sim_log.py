"""Lines of ASTRA-sim's logs as columns: which node began and ended when, on which rank.

With ``trace-enabled`` in the system's configuration, each node leaves a line as it is issued and
one as it is called back. Forms: that of spdlog since 2024 (``[time] [workload] [debug] issue,…``)
and plain ones of before, without spaces behind the commas and partly without types.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chopper_interop.columns import arrow, gather
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

BROKEN = Fault(
    "sim-line-broken",
    Severity.LOSS,
    "Lines of the log of which numbers are missing or out of range were left out.",
)
NOT_ENDED = Fault(
    "sim-node-not-ended",
    Severity.LOSS,
    "Nodes that were issued and never called back: the simulation stood still, or the log breaks "
    "off.",
    events=True,
)
NOT_BEGUN = Fault(
    "sim-node-not-begun",
    Severity.LOSS,
    "Nodes that were called back and of which no issue is in the log: ASTRA-sim keeps the last "
    "ten files of 10 MB.",
    events=True,
)
BACKWARDS = Fault(
    "sim-node-ends-first",
    Severity.LOSS,
    "Nodes that were called back before they were issued were left out.",
    events=True,
)
EARLIER_RUNS = Fault(
    "sim-earlier-runs",
    Severity.LOSS,
    "ASTRA-sim appends to the log that is there: nodes of earlier runs were left out.",
    events=True,
)

NOT_FINISHED = Fault(
    "sim-rank-not-finished",
    Severity.LOSS,
    "Ranks of which the log does not say that they finished: the simulation stood still, or the "
    "log breaks off.",
)

LINE = re.compile(rb"(issue|callback),sys->id=\d+, ?tick=\d+, ?node->id=\d+")
_BEGINNING = re.compile(rb"\s*\[[-\d]+[ T][-+:.\d]+\] \[system::topology::\w+\] \[\w+\] ")
_FIELDS = (
    r"(?P<event>issue|callback),sys->id=(?P<rank>\d{1,6}), ?tick=(?P<tick>\d{1,18}), ?"
    r"node->id=(?P<id>\d{1,18})(?:, ?node->name=(?P<name>.*?))?"
    r"(?:, ?node->(?:node_)?type=(?P<type>\d{1,3}))?\s*$"
)
_FINISHED = r"sys\[(?P<rank>\d{1,6})\] finished, (?P<cycles>\d{1,18}) cycles"


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is such a log."""
    return LINE.search(head) is not None or _BEGINNING.match(head) is not None


@dataclass(frozen=True)
class Run:
    """What nodes did in a run, one row each.

    Parameters
    ----------
    rank, id, type
        Rank, number of the node in its ET, and its `NodeType`; -1 where the log does not say.
    name
        A dictionary array.
    start, end
        Ticks, which are nanoseconds.
    finished
        Ticks that each rank took, where the log tells.
    events
        How many nodes the log tells of, those that were left out among them.
    """

    rank: Array
    id: Array
    type: Array
    name: pa.DictionaryArray
    start: Array
    end: Array
    finished: dict[int, int]
    events: int


def run(buffers: list[Array], issues: IssueLog) -> Run:
    """The last run that logs tell of.

    Parameters
    ----------
    buffers
        Bytes of the files, oldest first.
    issues
        Where to note what was left out.
    """
    lines = pa.concat_arrays([_lines(buffer) for buffer in buffers])
    at = np.flatnonzero(arrow.numbers(pc.match_substring(lines, "sys->id=")))
    read = pc.extract_regex(lines.take(arrow.array(at)), _FIELDS)
    issues.add(BROKEN, read.null_count)
    at, read = at[arrow.numbers(read.is_valid()).astype(bool)], read.drop_null()
    begins = arrow.numbers(pc.equal(read.field("event"), "issue")).astype(bool)
    rank, tick, number = (np.array(_whole(read.field(c)), np.int64) for c in ("rank", "tick", "id"))
    first = _last_run(begins, rank, tick, number)
    finished = _finished(lines[int(at[first]) :] if len(at) else lines)
    issues.add(EARLIER_RUNS, np.count_nonzero(begins[:first]))
    earlier = int(np.count_nonzero(begins[:first]))
    begin, end = _pairs(begins[first:], rank[first:], number[first:])
    begin, end = begin + first, end + first
    matched = (begin >= first) & (end >= first)
    issues.add(NOT_ENDED, np.count_nonzero(begin[~matched] >= first))
    issues.add(NOT_BEGUN, np.count_nonzero(begin[~matched] < first))
    backwards = matched & (tick[end] < tick[begin])
    issues.add(BACKWARDS, np.count_nonzero(backwards))
    left = sorted({*rank[first:].tolist()} - finished.keys())
    issues.add(NOT_FINISHED, len(left), f"ranks {left[:8]}")
    rows = np.sort(begin[matched & ~backwards])
    partner = np.full(len(tick), -1, np.int64)
    partner[begin[matched]] = end[matched]
    kind = read.field("type").take(arrow.array(rows))
    kind = pc.if_else(pc.equal(kind, ""), "-1", kind)
    return Run(
        rank=rank[rows],
        id=number[rows],
        type=np.array(_whole(kind), np.int64),
        name=read.field("name").take(arrow.array(rows)).dictionary_encode(),
        start=tick[rows],
        end=tick[partner[rows]],
        finished=finished,
        events=len(begin) + earlier,
    )


def _finished(lines: pa.StringArray) -> dict[int, int]:
    """Ticks that ranks took, by lines from the first event of the run on: others are of others."""
    told = pc.extract_regex(lines, _FINISHED).drop_null()
    return dict(zip(_whole(told.field("rank")), _whole(told.field("cycles")), strict=True))


def _lines(buffer: Array) -> pa.StringArray:
    """Lines of a file; what is no UTF-8 is spelled out."""
    raw = bytes(buffer)
    try:
        raw.decode()
    except UnicodeDecodeError:
        raw = raw.decode("utf-8", "backslashreplace").encode()
    data = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    offsets = np.concatenate([[0], ends + 1, [len(data)]]).astype(np.int64)
    made = pa.LargeStringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(raw)
    )
    return pc.cast(made, pa.string())


def _whole(texts: Any) -> list[int]:
    return list(pc.cast(texts, pa.int64()).to_pylist())


def _last_run(begins: Array, rank: Array, tick: Array, number: Array) -> int:
    """The row where the last run begins: where the time is 0 again and nodes are issued again."""
    rows = np.flatnonzero(begins)
    first, _ = gather.distinct(rank[rows], number[rows])
    if len(first) == len(rows):
        return 0
    again = np.flatnonzero((tick[1:] == 0) & (tick[:-1] > 0)) + 1
    return int(again[-1]) if len(again) else 0


def _pairs(begins: Array, rank: Array, number: Array) -> tuple[Array, Array]:
    """Rows of issue and callback of each node; -1 where one is missing."""
    if not len(begins):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    _, node = gather.distinct(rank, number)
    order = np.lexsort((np.arange(len(node)), begins, node))
    same = np.zeros(len(node), bool)
    same[1:] = (node[order][1:] == node[order][:-1]) & (begins[order][1:] == begins[order][:-1])
    place = np.arange(len(node))
    start = np.maximum.accumulate(np.where(same, 0, place))
    nth = np.empty(len(node), np.int64)
    nth[order] = place - start  # the how manyth issue, or callback, of that node
    first, pair = gather.distinct(node.astype(np.int64), nth)
    begin, end = np.full(len(first), -1, np.int64), np.full(len(first), -1, np.int64)
    begin[pair[begins]] = np.flatnonzero(begins)
    end[pair[~begins]] = np.flatnonzero(~begins)
    return begin, end
