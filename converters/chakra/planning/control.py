"""Messages of a few bytes by which ranks say that they are ready, or that a collective has ended there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.chakra.relays import (
    NOTIFIES_RANK,
    NOTIFIES_STREAM,
    TRANSFERS,
    Relays,
)
from chopper_interop.converters.chakra.schedule import COMM, Nodes
from chopper_interop.schemas.chakra import Cause

if TYPE_CHECKING:
    from chopper_interop.converters.chakra.planning.plan import Communication
    from chopper_interop.converters.chakra.planning.ranks import NodeRanks


class Control(NamedTuple):
    """Messages of a few bytes that a rank sends or gets, in addition to those of the job.

    Parameters
    ----------
    owner
        Node that each is for.
    cause
        A `Cause`: READY, ENDED or RELAYED.
    is_sent
        Mask of those that the rank sends.
    relay
        Number among the rank's `Relays`; -1 of others.
    notifies
        Mask of those that notify a rank of the end of another message.
    ended_ns
        When the message that a relay is about ended, from the job's start; -1 of others.
    of_answer
        Number of the unrecorded work that a message notifies, or that it comes from; -1 of others.
    moves_us
        Of the latter how long it takes to move data; -1 of others.
    """

    owner: Array
    cause: Array
    is_sent: Array
    relay: Array
    notifies: Array
    ended_ns: Array
    of_answer: Array
    moves_us: Array


def control_messages(h: int, gpu: Array, used: Array, comm: Communication) -> Control:
    """Readiness of receives; ends of collectives: one sent and one got; ends of messages for others or of others."""
    waits = h + np.flatnonzero(comm.synchronous[gpu] & used[h:])
    ends = h + np.flatnonzero(comm.sends_end[gpu] & used[h:])
    sent = np.flatnonzero((comm.relays.src >= 0) & (comm.relays.use != TRANSFERS))
    received = np.flatnonzero((comm.relays.dst >= 0) & (comm.relays.use != NOTIFIES_STREAM))
    relay = np.concatenate([sent, received])
    rows = np.concatenate([comm.relays.src[sent], comm.relays.dst[received]])
    count = (len(waits), 2 * len(ends), len(rows))
    others = np.full(count[0] + count[1], -1, np.int64)
    return Control(
        owner=np.concatenate([waits, ends, ends, h + np.searchsorted(gpu, rows)]),
        cause=np.repeat([Cause.READY, Cause.ENDED, Cause.RELAYED], count),
        is_sent=np.concatenate([
            comm.receives[gpu][waits - h], np.ones(len(ends), bool), np.zeros(len(ends), bool),
            np.ones(len(sent), bool), np.zeros(len(received), bool),
        ]),
        relay=np.append(others, relay),
        notifies=np.append(others >= 0, comm.relays.use[relay] == NOTIFIES_RANK),
        ended_ns=np.concatenate([
            others, comm.relays.ended_ns[sent], comm.relays.came_ns[received],
        ]),
        of_answer=np.append(others, comm.relays.of_answer[relay]),
        moves_us=np.append(others, _moves_us(comm.relays, sent, received)),
    )  # fmt: skip


def _moves_us(relays: Relays, sent: Array, received: Array) -> Array:
    """Time that answers of the rank take to move data; -1 of other messages."""
    moves_us = (relays.came_ns[sent] - relays.ended_ns[sent] + 500) // 1000
    answers = (relays.use[sent] == NOTIFIES_RANK) & (relays.of_answer[sent] >= 0)
    return np.append(np.where(answers, moves_us, -1), np.full(len(received), -1, np.int64))


def with_readiness(
    control: Control, npu: Array, nodes: int, src: Array, dst: Array
) -> tuple[Array, Array]:
    """Dependencies with those of messages by which receivers say that they are there.

    Simulators' sends wait for no receive, so a send waits for such a message, which its receiver sends when
    the receive begins::

        receiver   ...work ──> ready to receive        ...work ──> receive
        sender     ...work ──> (receives that) ──> send

    It does not wait for work that the sender keeps in order by itself.

    Parameters
    ----------
    control
        Messages of a few bytes.
    npu
        NPU of the stream that does each node; -1 for the rank's. Gaps are numbered behind these nodes.
    nodes
        Number of both, behind which the messages are.
    src, dst
        Pairs of nodes of which the second depends on the first.
    """
    ready = np.flatnonzero(control.cause == Cause.READY)
    owner = control.owner[ready]
    message = np.full(nodes, -1, np.int64)
    message[owner] = nodes + ready
    likewise = np.flatnonzero((message[dst] >= 0) & (src < len(npu)))
    in_order = (npu[src[likewise]] >= 0) & (npu[src[likewise]] == npu[dst[likewise]])
    likewise = likewise[~in_order]
    received = ~control.is_sent[ready]
    src = np.concatenate([src, src[likewise], message[owner[received]]])
    return src, np.concatenate([dst, message[dst[likewise]], owner[received]])


def ready_before(
    control: Control,
    nodes: Nodes,
    numbers: int,
    joined: Array,
    sender_later_ns: Array,
    ranks: NodeRanks,
) -> tuple[Array, Array]:
    """Readiness of receives, and communication of its rank that begins just before and would hold its slot.

    Readiness takes no time, and the communication has most of its own before it: so it waits, and not the
    other rank::

        receive        ready──────────         becomes     ready──────────
        send         [       ]                                [       ]

    Not joined collectives, which other ranks wait for. And only where the other rank would wait: communication
    that is sooner in a changed job must not wait for a receive that is not, whose send comes long after both.

    Parameters
    ----------
    control, nodes, joined
        As for `with_ends`; `numbers` is that of GPU work, hosts and gaps.
    sender_later_ns
        For each node that is a receive by how much later its send began.
    ranks
        Of nodes.
    """
    ready = np.flatnonzero((control.cause == Cause.READY) & control.is_sent)
    holds = (nodes.slot == COMM) & (nodes.own_ns > 0)
    holds[joined] = False
    rows = np.flatnonzero(holds)
    start, later_ns = nodes.start_ns[control.owner[ready]], sender_later_ns[control.owner[ready]]
    of = ranks.of_node[control.owner[ready]]
    last = ranks.last_until(rows, nodes.start_ns[rows], of, start)
    is_behind = last >= 0  # of other communication
    ready, start, later_ns = ready[is_behind], start[is_behind], later_ns[is_behind]
    last = last[is_behind]
    left = nodes.start_ns[last] + nodes.own_ns[last] - start
    waits = (start - nodes.start_ns[last] < left) & (later_ns < left)
    return numbers + ready[waits], last[waits]


def with_relays(
    control: Control, nodes: Nodes, gapped: Array, joined: Array, src: Array, dst: Array
) -> tuple[Array, Array]:
    """Dependencies with those of messages that notify of the ends of others, as in `relays`.

    What is notified waits for them, and so do its gap and its readiness; nothing waits for data that are only moved.
    Collectives that come later do not hold the slot of what is to be sent before: they might wait for the
    rank that is to be notified.

    Parameters
    ----------
    control, nodes, joined, src, dst
        As for `ready_before` and `with_readiness`.
    gapped
        Nodes with a gap, which are numbered behind all.
    """
    n = len(nodes.slot)
    numbers = n + len(gapped)
    sent = np.flatnonzero((control.relay >= 0) & control.is_sent)
    received = np.flatnonzero(control.notifies & ~control.is_sent)
    if not (len(sent) or len(received)):
        return src, dst
    gap, ready = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    gap[gapped] = n + np.arange(len(gapped))
    is_ready = np.flatnonzero((control.cause == Cause.READY) & control.is_sent)
    ready[control.owner[is_ready]] = numbers + is_ready
    later = np.searchsorted(np.maximum.accumulate(nodes.start_ns[joined]), control.ended_ns[sent])
    followed = np.append(joined, -1)[later]
    to = control.owner[received]
    of_rows = sent[control.moves_us[sent] < 0]
    more_src = np.concatenate([
        control.owner[of_rows], numbers + sent, *(numbers + received,) * 3,
    ])  # fmt: skip
    more_dst = np.concatenate([numbers + of_rows, followed, to, gap[to], ready[to]])
    real = more_dst >= 0
    return np.append(src, more_src[real]), np.append(dst, more_dst[real])


def with_ends(
    control: Control, nodes: int, joined: Array, src: Array, dst: Array
) -> tuple[Array, Array]:
    """Dependencies in which what waits for a collective waits for its end on another rank too.

    In simulators a collective ends on a rank when the data of the others are there: for a rank that comes
    last at once, while its own data are still on their way. The rank that gets these last says so::

        last rank   ...work ──> collective ──> (receives that) ──> work
        another     collective             ──> collective has ended

    Parameters
    ----------
    control, nodes, src, dst
        As for `with_readiness`.
    joined
        Collectives in their order. The next one begins when a message says that the one before has ended.
    """
    sent = np.flatnonzero((control.cause == Cause.ENDED) & control.is_sent)
    received = np.flatnonzero((control.cause == Cause.ENDED) & ~control.is_sent)
    sending, receiving = np.full(nodes, -1, np.int64), np.full(nodes, -1, np.int64)
    sending[control.owner[sent]], receiving[control.owner[received]] = (
        nodes + sent,
        nodes + received,
    )
    is_joined = np.zeros(nodes + len(control.owner), bool)
    is_joined[joined] = True
    behind = np.flatnonzero((src < nodes) & (receiving[np.minimum(src, nodes - 1)] >= 0))
    in_turn = behind[is_joined[dst[behind]]]
    more_src = [
        receiving[src[behind]],
        sending[src[in_turn]],
        control.owner[sent],
        control.owner[received],
    ]
    more_dst = [dst[behind], dst[in_turn], nodes + sent, nodes + received]
    return np.concatenate([src, *more_src]), np.concatenate([dst, *more_dst])
