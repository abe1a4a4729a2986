"""Dependencies through ranks that do not record yet, as messages of a few bytes in ETs.

The timing model lets messages and work wait for messages of before which another rank has recorded
(`timing.unrecorded`). In ETs a message of a few bytes notifies whatever waits for the end of such a message::

    rank      [ send ] ──> message has ended ─┐
    the other (not recorded)                  └─> [ kernel ]

A receive that waited for an answer has only the time of its transfer of its own; what the unrecorded rank took
for that is a node of the NPU of the receive's stream, which can hold no slot that others need (`streams`)::

    rank      [ send ] ──> message has ended ─┐
    stream        ready ──────────────────────┼───────────────────────> [ receive ] ──> done
                                              └─> unrecorded work ──────┘

Where all streams of a rank share its slots, the other rank, whose slots are free until it records, does that work
itself::

    rank      [ send ] ──> message has ended ─┐                               ┌─> [ receive ]
    the other (not recorded)                  └─> unrecorded work ──> message ┘

Messages of which the other end is not recorded are sent as well, to the NPU of the other rank, where nothing waits
for them, so that they take the time that the network takes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra.comms import (
    MIN_BYTES,
    Comms,
    copied,
    during_collectives,
    tags,
)
from chopper_interop.schemas.chakra import NodeType
from chopper_interop.schemas.kinds import GPU_WORK, POINT_TO_POINT, Collective, EdgeKind, Kind
from chopper_interop.timing import unrecorded
from chopper_interop.timing.model import Timing, timing_of
from chopper_interop.trace import Trace

NOTIFIES_RANK, NOTIFIES_STREAM, TRANSFERS, NOTIFIES_ANSWER = 0, 1, 2, 3
"""Uses of messages."""


class Relays(NamedTuple):
    """Messages in addition to those that were recorded with both ends, and communication that waited for an answer.

    Rows are those of a job, or of one rank (`of_rank`), where -1 is a row of another rank.

    Parameters
    ----------
    use
        NOTIFIES_RANK or NOTIFIES_STREAM, of messages that notify the NPU of a rank or of a stream that another message
        has ended; TRANSFERS, of those that move the data of one whose other end is not recorded; or NOTIFIES_ANSWER, of
        those that notify a rank of what its unrecorded work follows.
    src, dst
        Row that has ended, and row that is notified of it. Of TRANSFERS row whose data are moved, and some row of the
        other rank, which stands for unrecorded work too.
    sender, receiver, tag, size
        NPUs that each message is between, its number among those, and its bytes.
    ended_ns, came_ns
        When `src` ended, from the job's start, and when the message came, which is later if it moves data.
    of_answer
        Of notifications of and by unrecorded work of ranks its number; -1 of others.
    answer
        Rows that waited for an answer, on NPUs of streams.
    as_time
        How many others did, and keep their measured time.
    own_ns
        How long each of these lasts without waiting.
    """

    use: Array
    src: Array
    dst: Array
    sender: Array
    receiver: Array
    tag: Array
    size: Array
    ended_ns: Array
    came_ns: Array
    of_answer: Array
    answer: Array
    as_time: int
    own_ns: Array

    def of_rank(self, rows: slice) -> Relays:
        """Take those of a rank, or of some that follow each other, of which the rows are counted from the first one on."""
        src, dst, answer = (
            np.where((listed >= rows.start) & (listed < rows.stop), listed - rows.start, -1)
            for listed in (self.src, self.dst, self.answer)
        )
        taken, waited = (src >= 0) | (dst >= 0), answer >= 0
        return Relays(
            self.use[taken], src[taken], dst[taken], self.sender[taken], self.receiver[taken], self.tag[taken],
            self.size[taken], self.ended_ns[taken], self.came_ns[taken], self.of_answer[taken],
            answer[waited], self.as_time, self.own_ns[waited],
        )  # fmt: skip


def no_relays() -> Relays:
    """Relays of jobs whose ranks began to record at once."""
    none = np.empty(0, np.int64)
    return Relays(none, none, none, none, none, none, none, none, none, none, none, 0, none)


def find_relays(
    trace: Trace, comms: Comms, numbering: dict[int, int], origin_ns: int
) -> tuple[Relays, Comms]:
    """Find the dependencies through ranks that do not record yet; and communication in which their data is sent.

    Parameters
    ----------
    trace
        All ranks of a job.
    comms
        Communication on the NPUs of ranks.
    numbering
        Rank → its number in the ETs.
    origin_ns
        When the job starts, on the trace's `ts` axis.
    """
    if not unrecorded.unpaired_rows(trace).size:
        return no_relays(), comms
    timing = timing_of(trace)
    src, dst = _edges(timing)
    waiting = np.unique(dst[dst % 2 == 1] // 2)
    by_stream = waiting[comms.npu[waiting] >= 0]
    by_rank = _answered_by_ranks(trace, comms, timing, waiting)
    notes = _notifications(trace, comms, timing, (src, dst), by_rank)
    moved, other = _transfers(trace, comms)
    # notifications, answers of ranks, transfers
    counts = (len(notes.use), len(by_rank.row), len(moved))
    use = np.concatenate([notes.use, np.repeat([NOTIFIES_RANK, TRANSFERS], counts[1:])])
    src = np.concatenate([notes.src, by_rank.place, moved])
    dst = np.concatenate([notes.dst, by_rank.row, other])
    by_ranks = slice(counts[0], counts[0] + counts[1])
    ended_ns = timing.at_ns[2 * src + 1] - origin_ns
    ended_ns[by_ranks] = by_rank.until_ns - origin_ns
    answers = np.full(len(use), -1, np.int64)
    answers[: by_ranks.stop] = np.append(notes.of_answer, np.arange(counts[1]))
    numbers = np.array([numbering[rank] for rank in trace.ranks], np.int64)
    of_node = numbers[np.searchsorted(trace.ranks, trace.array("rank"))]
    sender = np.where((use == TRANSFERS) & (comms.npu[src] >= 0), comms.npu[src], of_node[src])
    receiver = np.where(use == NOTIFIES_STREAM, comms.npu[dst], of_node[dst])
    # numbered behind all other messages of the same ends
    tag = tags(sender, receiver) + 1 + max(comms.tag.max(), comms.control_tag.max())
    size = np.full(len(use), MIN_BYTES)
    size[use == TRANSFERS] = np.maximum(trace.integers("bytes", moved), MIN_BYTES)
    size[by_ranks] = np.maximum(
        np.where(by_rank.moves_ns > 0, trace.integers("bytes", by_rank.row), 0), MIN_BYTES
    )
    came_ns = ended_ns.copy()
    came_ns[by_ranks] += by_rank.moves_ns
    of_ranks = np.flatnonzero((use == TRANSFERS) & (comms.npu[src] < 0))
    sending = copied(comms, "node_type", "src", "dst", "tag", "size")
    sending.node_type[src[of_ranks]] = NodeType.COMM_SEND
    for column, values in (
        (sending.src, sender), (sending.dst, receiver), (sending.tag, tag), (sending.size, size),
    ):  # fmt: skip
        column[src[of_ranks]] = values[of_ranks]
    as_time = len(waiting) - len(by_stream) - len(by_rank.row)
    relays = Relays(
        use, src, dst, sender, receiver, tag, size, ended_ns, came_ns, answers, by_stream, as_time,
        _own_times(timing)[by_stream],
    )  # fmt: skip
    return relays, sending


class _Answered(NamedTuple):
    """Communication of ranks' NPUs that waited for unrecorded work of another rank, whose slots are free then.

    Parameters
    ----------
    row, place
        Its row, and some row of the other rank.
    until_ns, moves_ns
        When the other rank had answered, and how long the data then took that came with the answer.
    """

    row: Array
    place: Array
    until_ns: Array
    moves_ns: Array


def _answered_by_ranks(trace: Trace, comms: Comms, timing: Timing, waiting: Array) -> _Answered:
    """Choose what waited for ranks of the job that have answered before they record what holds that slot."""
    timed = (comms.npu[waiting] < 0) & (comms.node_type[waiting] == NodeType.COMM_COLL)
    row = waiting[timed & (comms.turn[waiting] < 0)]
    place, there = _some_rows(trace, trace.integers("peer", row))
    row = row[there]
    own_ns = _own_times(timing)[row]
    until_ns = timing.at_ns[2 * row + 1] - own_ns
    moves_ns = np.where(np.isin(row, _moving(trace, comms, row)), own_ns, 0)
    holds = (trace.array("kind") == Kind.COMM) & (comms.node_type != NodeType.COMM_RECV)
    communicates = np.flatnonzero(holds)
    begins_ns = np.full(len(trace.ranks), np.iinfo(np.int64).max)
    number = np.searchsorted(trace.ranks, trace.array("rank")[communicates])
    np.minimum.at(begins_ns, number, trace.array("ts")[communicates])
    before = until_ns <= begins_ns[np.searchsorted(trace.ranks, trace.array("rank")[place])]
    return _Answered(row[before], place[before], until_ns[before], moves_ns[before])


class _Notifications(NamedTuple):
    """Messages that notify of ends of others: columns of `Relays`."""

    use: Array
    src: Array
    dst: Array
    of_answer: Array


def _notifications(
    trace: Trace,
    comms: Comms,
    timing: Timing,
    edges: tuple[Array, Array],
    by_rank: _Answered,
) -> _Notifications:
    """Messages for edges between endpoints, which notify what waits, or the rank that it waits for."""
    src, dst = edges
    answer = np.full(trace.nodes.num_rows, -1, np.int64)
    answer[by_rank.row] = np.arange(len(by_rank.row))
    waited = dst % 2 == 1
    of_answer = np.where(waited, answer[dst // 2], -1)
    use = np.where(waited, NOTIFIES_STREAM, NOTIFIES_RANK)
    use[of_answer >= 0] = NOTIFIES_ANSWER
    is_sent = (src % 2 == 1) & ((use != NOTIFIES_STREAM) | (comms.npu[dst // 2] >= 0))
    # a collective holds the slot of what is to be sent, and might wait for the rank that is to be notified
    is_sent &= ~during_collectives(trace, comms, trace.array("rank")[src // 2], timing.at_ns[src])
    use, of_answer = use[is_sent], of_answer[is_sent]
    notified = dst[is_sent] // 2
    notified[of_answer >= 0] = by_rank.place[of_answer[of_answer >= 0]]
    return _Notifications(use, src[is_sent] // 2, notified, of_answer)


def _transfers(trace: Trace, comms: Comms) -> tuple[Array, Array]:
    """Messages without their other end that transfer data while they last, and some row of the other rank.

    Not receives that hold the slot of their rank, which then could not send at the same time.
    """
    timed = (comms.node_type == NodeType.COMM_COLL) & (comms.turn < 0)
    timed &= trace.is_text("collective", (Collective.SEND,))
    row = np.flatnonzero((trace.array("kind") == Kind.COMM) & ((comms.npu >= 0) | timed))
    row = _moving(trace, comms, row)
    other, there = _some_rows(trace, trace.integers("peer", row))
    return row[there], other


def _moving(trace: Trace, comms: Comms, row: Array) -> Array:
    """Those of these messages that move data while they last.

    These are sends, and receives if others of their size wait for their sends: else these moved the data.
    """
    sends, receives = (trace.is_text("collective", (kind,), row) for kind in POINT_TO_POINT)
    together = np.flatnonzero(
        (comms.node_type == NodeType.COMM_RECV) & (comms.npu < 0) & (comms.control_tag >= 0)
    )
    size = trace.integers("bytes", row)
    moves = (sends | (receives & np.isin(size, comms.size[together]))) & (size > 0)
    return row[moves & np.isin(trace.integers("peer", row), trace.ranks)]


def _some_rows(trace: Trace, ranks: Array) -> tuple[Array, Array]:
    """First row of GPU work of each rank that has any, and a mask of these."""
    work = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    first = np.searchsorted(trace.array("rank")[work], ranks)
    there = (ranks >= 0) & (first < len(work))
    there[there] = trace.array("rank")[work[first[there]]] == ranks[there]
    return work[first[there]], there


def _edges(timing: Timing) -> tuple[Array, Array]:
    """Endpoints of edges through ranks that do not record yet: from ends of messages, or from where a rank begins."""
    trace, edges = timing.trace, timing.graph
    edge = np.flatnonzero(edges.kind == EdgeKind.DEPENDENCY)
    src, dst = edges.src[edge].astype(np.int64), edges.after[edge].astype(np.int64)
    kind, rank = trace.array("kind"), trace.array("rank")
    to_end = (dst % 2 == 1) & (kind[dst // 2] == Kind.COMM)
    across = (rank[src // 2] != rank[dst // 2]) & (src % 2 == 1) & (kind[src // 2] == Kind.COMM)
    return src[to_end | across], dst[to_end | across]


def _own_times(timing: Timing) -> Array:
    """Time of each node without waiting."""
    edges = timing.graph
    lasting = np.flatnonzero(edges.kind == EdgeKind.DURATION)
    own = np.zeros(timing.trace.nodes.num_rows, np.int64)
    own[edges.src[lasting] // 2] = timing.lag_ns[lasting]
    return own
