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

Messages of which the other end is not recorded are sent as well, to the NPU of the other rank, where nothing waits
for them, so that they take the time that the network takes. Where all streams of a rank share its slots, receives
keep their measured time instead, and so do messages without their other end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra.comms import MIN_BYTES, during_collectives, tags
from chopper_interop.schemas.chakra import NodeType
from chopper_interop.schemas.kinds import GPU_WORK, Collective, EdgeKind, Kind
from chopper_interop.timing import unrecorded
from chopper_interop.timing.model import timing_of

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.converters.chakra.comms import Comms
    from chopper_interop.timing.model import Timing
    from chopper_interop.trace import Trace

NOTIFIES_RANK, NOTIFIES_STREAM, TRANSFERS = 0, 1, 2
"""Uses of messages."""


class Relays(NamedTuple):
    """Messages in addition to those that were recorded with both ends, and communication that waited for an answer.

    Rows are those of a job, or of one rank (`of_rank`), where -1 is a row of another rank.

    Parameters
    ----------
    use
        NOTIFIES_RANK or NOTIFIES_STREAM, of messages that notify the NPU of a rank or of a stream that another message
        has ended; or TRANSFERS, of those that move the data of one whose other end is not recorded.
    src, dst
        Row that has ended, and row that is notified of it. Of TRANSFERS row whose data are moved, and some row of the
        other rank.
    sender, receiver, tag, size
        NPUs that each message is between, its number among those, and its bytes.
    ended_ns
        When `src` ended, from the job's start.
    answer
        Rows that waited for an answer.
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
    answer: Array
    as_time: int
    own_ns: Array

    def of_rank(self, rows: slice) -> Relays:
        """Take those of one rank, of which the rows are counted from its first one on."""
        src, dst, answer = (
            np.where((listed >= rows.start) & (listed < rows.stop), listed - rows.start, -1)
            for listed in (self.src, self.dst, self.answer)
        )
        taken, waited = (src >= 0) | (dst >= 0), answer >= 0
        return Relays(
            self.use[taken], src[taken], dst[taken], self.sender[taken], self.receiver[taken], self.tag[taken],
            self.size[taken], self.ended_ns[taken], answer[waited], self.as_time, self.own_ns[waited],
        )  # fmt: skip


def no_relays() -> Relays:
    """Relays of jobs whose ranks began to record at once."""
    none = np.empty(0, np.int64)
    return Relays(none, none, none, none, none, none, none, none, none, 0, none)


def find_relays(trace: Trace, comms: Comms, numbering: dict[int, int], origin_ns: int) -> Relays:
    """Find the dependencies through ranks that do not record yet.

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
    if not unrecorded.are_links(trace):
        return no_relays()
    timing = timing_of(trace)
    src, dst = _edges(timing)
    waited = dst % 2 == 1
    answers = np.unique(dst[waited] // 2)
    has_npu = comms.npu[answers] >= 0
    answer, as_time = answers[has_npu], int(np.count_nonzero(~has_npu))
    is_sent = (src % 2 == 1) & (~waited | (comms.npu[dst // 2] >= 0))
    # a collective holds the slot of what is to be sent, and might wait for the rank that is to be notified
    is_sent &= ~during_collectives(trace, comms, trace.array("rank")[src // 2], timing.at_ns[src])
    src, dst, waited = src[is_sent] // 2, dst[is_sent] // 2, waited[is_sent]
    moved, other = _transfers(trace, comms)
    use = np.repeat([NOTIFIES_RANK, TRANSFERS], [len(src), len(moved)])
    use[: len(src)][waited] = NOTIFIES_STREAM
    src, dst = np.append(src, moved), np.append(dst, other)
    numbers = np.array([numbering[rank] for rank in trace.ranks], np.int64)
    of_node = numbers[np.searchsorted(trace.ranks, trace.array("rank"))]
    sender = np.where(use == TRANSFERS, comms.npu[src], of_node[src])
    receiver = np.where(use == NOTIFIES_STREAM, comms.npu[dst], of_node[dst])
    # numbered behind all other messages of the same ends
    tag = tags(sender, receiver) + 1 + max(comms.tag.max(), comms.control_tag.max())
    size = np.where(
        use == TRANSFERS, np.maximum(trace.integers("bytes", src), MIN_BYTES), MIN_BYTES
    )
    return Relays(
        use, src, dst, sender, receiver, tag, size, timing.at_ns[2 * src + 1] - origin_ns, answer, as_time,
        _own_times(timing)[answer],
    )  # fmt: skip


def _transfers(trace: Trace, comms: Comms) -> tuple[Array, Array]:
    """Messages without their other end that transfer data while they last, and some row of the other rank.

    Of those on NPUs of streams these are sends, and receives if others of their size wait for their sends: else these transferred the data.
    """
    row = np.flatnonzero((trace.array("kind") == Kind.COMM) & (comms.npu >= 0))
    sends, receives = (
        trace.is_text("collective", (kind,), row) for kind in (Collective.SEND, Collective.RECV)
    )
    together = np.flatnonzero(
        (comms.node_type == NodeType.COMM_RECV) & (comms.npu < 0) & (comms.control_tag >= 0)
    )
    size = trace.integers("bytes", row)
    peer = trace.integers("peer", row)
    moves = (
        (sends | (receives & np.isin(size, comms.size[together])))
        & (size > 0)
        & np.isin(peer, trace.ranks)
    )
    row, peer = row[moves], peer[moves]
    work = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    first = np.searchsorted(trace.array("rank")[work], peer)
    there = first < len(work)
    there[there] = trace.array("rank")[work[first[there]]] == peer[there]
    return row[there], work[first[there]]


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
