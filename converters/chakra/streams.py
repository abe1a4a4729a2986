"""Streams as NPUs: GPU work that runs at the same time, where a simulator has one slot for it.

A simulator has one slot for compute and one for communication on each of its NPUs. So with this option the
busiest compute stream of a rank stays on the rank's NPU, as do sends and receives between ranks, and every
other stream gets an NPU of its own: of n ranks, the c-th stream of rank r is NPU ``n * c + r``. On the rank's
NPU its work is a receive, which holds no slot::

    NPU of the rank      launch ──> ready ─┐        ┌─> receive ──> what waits for the work
    NPU of the stream                      └> work ─┘

Streams that meet in collectives have the same c on all ranks, so that collectives join NPUs ``n * c + r``. Where
ranks use different streams for the same collectives, several streams of a rank share an NPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra import encode
from chopper_interop.converters.chakra.comms import MIN_BYTES, Comms, copied
from chopper_interop.converters.chakra.relays import NOTIFIES_STREAM, TRANSFERS, Relays, no_relays
from chopper_interop.converters.chakra.roofline import roofline
from chopper_interop.schemas.chakra import CAUSE_NAMES, Cause, NodeType
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.timing.populations import populations
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.chakra.planning.plan import Plan

_P2P = (NodeType.COMM_SEND, NodeType.COMM_RECV)
_IDLE_BYTES = 1 << 16
"""Bytes of a node of no time: more than any memory moves in the nanosecond below which ASTRA-sim aborts."""
_KIND_NAMES = {int(k): k.name.lower() for k in Kind}


@dataclass(frozen=True)
class Streams:
    """NPUs of a job's streams.

    Parameters
    ----------
    npu
        For each node of the trace the NPU of its stream; -1 for what the NPU of its rank does.
    place
        Number of each such node among those of its NPU.
    per_rank
        NPUs of each rank, its own counted.
    on_ranks, on_streams
        Communication on the NPUs of ranks, where the work of streams is a message, and on those of streams.
    relays
        Dependencies through ranks that do not record yet.
    """

    npu: Array
    place: Array
    per_rank: int
    on_ranks: Comms
    on_streams: Comms
    relays: Relays


def assigned(trace: Trace, comms: Comms, numbering: dict[int, int]) -> Streams:
    """Give streams NPUs, and their collectives groups of these."""
    ranks = len(numbering)
    kind, lane = trace.array("kind"), trace.array("lane")
    on_gpu = is_any(kind, GPU_WORK) & ~is_any(comms.node_type, _P2P)
    stays = on_gpu & (kind != Kind.COMM) & _busiest(trace)[lane]
    rows = np.flatnonzero(on_gpu & ~stays)
    number = np.searchsorted(trace.ranks, trace.array("rank")[rows])
    label = _meeting(lane[rows], comms.turn[rows], trace.lanes.num_rows)[lane[rows]]
    level = _levels(label, number, ranks)
    npu, place = np.full((2, len(kind)), -1, np.int64)
    npu[rows] = ranks * level + number
    # all members of a collective have come when the last one has, so that all ranks keep one order
    came = trace.array("ts")[rows].astype(np.int64)
    joined = comms.turn[rows] >= 0
    last = np.full(int(comms.turn.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, comms.turn[rows[joined]], came[joined])
    came[joined] = last[comms.turn[rows[joined]]]
    order = np.lexsort((comms.turn[rows], came, npu[rows]))
    begins = np.searchsorted(npu[rows[order]], npu[rows[order]])
    place[rows[order]] = np.arange(len(rows)) - begins
    moved = _moved(comms, rows, ranks * level, sorted(numbering.values()))
    messages = replace(
        _messages(comms, rows, npu[rows], number, place[rows], ranks), groups=moved.groups
    )
    return Streams(npu, place, int(level.max(initial=0)) + 1, messages, moved, no_relays())


def _busiest(trace: Trace) -> Array:
    """Mask of the lanes that compute most of those of their rank."""
    kind, lane = trace.array("kind"), trace.array("lane")
    rows = np.flatnonzero(is_any(kind, GPU_WORK) & (kind != Kind.COMM))
    spent = gather.group_sums(lane[rows], trace.array("dur")[rows], trace.lanes.num_rows)
    rank = np.full(trace.lanes.num_rows, -1, np.int64)
    rank[lane[rows]] = trace.array("rank")[rows]
    mask = np.zeros(trace.lanes.num_rows, bool)
    by_work = np.lexsort((-spent, rank))
    by_work = by_work[rank[by_work] >= 0]
    mask[by_work[np.diff(rank[by_work], prepend=-1) != 0]] = True
    return mask


def _meeting(lane: Array, turn: Array, lanes: int) -> Array:
    """Label of each lane, the same for those that meet in collectives, directly or through others."""
    label = np.arange(lanes)
    lane, turn = lane[turn >= 0], turn[turn >= 0]
    while True:
        low = np.full(int(turn.max(initial=-1)) + 1, lanes)
        np.minimum.at(low, turn, label[lane])
        lower = label.copy()
        np.minimum.at(lower, lane, low[turn])
        if (lower == label).all():
            return label
        label = lower


def _levels(label: Array, number: Array, ranks: int) -> Array:
    """For each node, which of its rank's NPUs its stream has, from 1 on: the same for all of a label."""
    used = np.zeros(ranks, np.int64)
    first, code = gather.distinct(label)
    level = np.zeros(len(first), np.int64)
    one_of, _ = gather.distinct(code, number)
    offsets, rows = gather.group_rows(code[one_of], len(first))
    for k in np.argsort(label[first]).tolist():
        of_label = number[one_of[rows[offsets[k] : offsets[k + 1]]]]
        level[k] = used[of_label].max() + 1
        used[of_label] = level[k]
    return level[code]


def _moved(comms: Comms, rows: Array, offset: Array, numbers: list[int]) -> Comms:
    """Communication in which these rows are done by NPUs that are so far behind those of their ranks."""
    moved = copied(comms, "src", "dst", "group")
    joined = comms.turn[rows] >= 0
    rows, offset = rows[joined], offset[joined]
    moved.src[rows] += offset
    moved.dst[rows] += offset
    first, code = gather.distinct(comms.group[rows], offset)
    moved.group[rows] = len(comms.groups) + 1 + code
    pairs = zip(comms.group[rows[first]].tolist(), offset[first].tolist(), strict=True)
    of_npus = {
        k: [shift + number for number in (comms.groups[group] if group else numbers)]
        for k, (group, shift) in enumerate(pairs, len(comms.groups) + 1)
    }
    return replace(moved, groups=comms.groups | of_npus)


def _messages(
    comms: Comms, rows: Array, npu: Array, number: Array, place: Array, ranks: int
) -> Comms:
    """Communication in which these rows are messages from NPUs of streams to those of ranks."""
    # the group of all ranks has a number too, as a message names no group of its own
    of_all = next((k for k, members in comms.groups.items() if len(members) == ranks), 0)
    joined = rows[comms.turn[rows] >= 0]
    columns: dict[str, Any] = {
        "node_type": NodeType.COMM_RECV, "size": MIN_BYTES, "turn": -1, "from_time": 0,
        "src": npu, "dst": number, "tag": place, "control_tag": place, "npu": npu,
    }  # fmt: skip
    messages = copied(comms, "group", *columns)
    messages.group[joined] = np.where(comms.group[joined] > 0, comms.group[joined], of_all)
    for name, values in columns.items():
        getattr(messages, name)[rows] = values
    return messages


class _Places(NamedTuple):
    """Numbers of nodes of streams: of each piece of work in turn, and of messages and delays around it.

    ::

        ready ──> (delay) ────────────> work ──> (announce that it ended here ─> receive that it ended elsewhere) ──> done
        (notifications ──────> answer) ─┘

    Parameters
    ----------
    ready, first, answer, work, announce, receive, done
        For each piece of work; `first` is the delay, or the work if there is none.
    notified
        For each notification of what an answer waits for.
    is_late, is_announced
        Masks of the work that has a delay, and of collectives of which members tell each other when they end.
    answers
        Answers of ranks that do not record yet.
    total
        Number of nodes.
    """

    ready: Array
    first: Array
    answer: Array
    work: Array
    announce: Array
    receive: Array
    done: Array
    notified: Array
    is_late: Array
    is_announced: Array
    answers: _Answers
    total: int

    def column(self, fill: int, **parts: Any) -> Array:
        """Values of the nodes: `fill`, or those of the work that nodes of these places are for."""
        values = np.full(self.total, fill, np.int64)
        masks = {
            "announce": self.is_announced, "receive": self.is_announced,
            "delay": self.is_late, "answer": self.answers.is_answer,
        }  # fmt: skip
        for name, of_work in parts.items():
            at = self.first if name == "delay" else getattr(self, name)
            chosen = masks.get(name, np.ones(len(at), bool))
            values[at[chosen]] = np.broadcast_to(of_work, len(at))[chosen]
        return values


def _places(is_late: Array, answers: _Answers, is_announced: Array) -> _Places:
    of_work = np.bincount(answers.work, minlength=len(is_late))
    count = 3 + is_late + of_work + answers.is_answer + 2 * is_announced
    ready = np.cumsum(count) - count
    notified = ready + 1 + is_late
    answer = notified + of_work
    work = answer + answers.is_answer
    done = ready + count - 1
    nth = np.arange(len(answers.work)) - np.searchsorted(answers.work, answers.work)
    return _Places(
        ready, np.where(is_late, ready + 1, work), answer, work, work + 1, work + 2, done, notified[answers.work] + nth,
        is_late, is_announced, answers, int(count.sum()),
    )  # fmt: skip


def _dependencies(at: _Places, follows: Array, npu: Array) -> tuple[Array, Array]:
    """Dependencies of nodes, in which work also follows the work before it on its NPU, if `follows`.

    So do answers, which come in their order, but not as late as the work.
    """
    late, announced = at.is_late, at.is_announced
    work, receive = at.work[announced], at.receive[announced]
    behind = np.flatnonzero(follows[1:])
    behind_ends = behind[announced[behind]]
    answers = np.flatnonzero(at.answers.is_answer)
    later = 1 + np.flatnonzero(np.diff(npu[answers]) == 0)
    pairs = [
        (at.ready, at.first), (at.first[late], at.work[late]), (at.work, at.done),
        (work, at.announce[announced]), (work, receive), (receive, at.done[announced]),
        (at.work[behind], at.first[behind + 1]), (at.receive[behind_ends], at.first[behind_ends + 1]),
        (at.notified, at.answer[at.answers.work]), (at.answer[answers], at.work[answers]),
        (at.answer[answers[later - 1]], at.answer[answers[later]]),
    ]  # fmt: skip
    src, dst = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return gather.group_values(dst, src, at.total)


class _Answers(NamedTuple):
    """Answers of ranks that do not record yet, for which communication of streams waits.

    Parameters
    ----------
    is_answer, until_us
        For each piece of work, whether it waits for one, and when that comes.
    lasts_us
        How long each takes from the last notification that it follows, or the answer before it came.
    work, notified_us, sender, tag
        Of the notifications: the work whose answer follows, when they come, and how they are sent.
    """

    is_answer: Array
    until_us: Array
    lasts_us: Array
    work: Array
    notified_us: Array
    sender: Array
    tag: Array


def _answers(relays: Relays, rows: Array, npu: Array, end_ns: Array) -> _Answers:
    """Answers for which these rows of a rank wait, which end then."""
    is_answer = np.isin(rows, relays.answer)
    own_ns = np.zeros(int(rows.max()) + 1, np.int64)
    waiting = relays.answer < len(own_ns)
    own_ns[relays.answer[waiting]] = relays.own_ns[waiting]
    until_us = np.where(is_answer, (end_ns - own_ns[rows] + 500) // 1000, 0)
    of_row = np.full(len(own_ns), -1, np.int64)
    of_row[rows] = np.arange(len(rows))
    received = np.flatnonzero((relays.use == NOTIFIES_STREAM) & (relays.dst >= 0))
    received = received[np.argsort(of_row[relays.dst[received]], kind="stable")]
    work, notified_us = of_row[relays.dst[received]], (relays.ended_ns[received] + 500) // 1000
    since_us = np.zeros(len(rows), np.int64)
    np.maximum.at(since_us, work, notified_us)
    before = np.concatenate([[0], _latest(until_us, np.unique(npu, return_inverse=True)[1])[:-1]])
    before[np.diff(npu, prepend=-1) != 0] = 0
    lasts_us = np.maximum(until_us - np.maximum(since_us, before), 0)
    return _Answers(
        is_answer,
        until_us,
        lasts_us,
        work,
        notified_us,
        relays.sender[received],
        relays.tag[received],
    )


def _sent(relays: Relays, rows: Array) -> Array:
    """Number of the relay that moves the data of each of these rows; -1 if none does."""
    sent = np.full(int(rows.max()) + 1, -1, np.int64)
    moves = np.flatnonzero((relays.use == TRANSFERS) & (relays.src >= 0))
    sent[relays.src[moves]] = moves
    return sent[rows]


class StreamNodes(NamedTuple):
    """Nodes of the NPUs of a rank's streams, one NPU behind the other.

    Parameters
    ----------
    npu
        NPUs in their order.
    first
        The first node of each, and the number of all.
    nodes
        All nodes, of which dependencies are numbers among all.
    table
        Texts of all.
    numbers, words
        Attributes of all.
    """

    npu: Array
    first: Array
    nodes: encode.Nodes
    table: encode.Texts
    numbers: encode.Numbers
    words: encode.Words

    def of_npu(self, npu: int) -> StreamNodes:
        """Return the nodes of one NPU; a node of no time if it has none, as simulators run no empty files."""
        k = int(np.searchsorted(self.npu, npu))
        if k == len(self.npu) or self.npu[k] != npu:
            return _idle()
        part = slice(self.first[k], self.first[k + 1])
        dep_first = self.nodes.dep_first[part.start : part.stop + 1]
        return self._replace(
            npu=self.npu[k : k + 1],
            first=self.first[k : k + 2] - part.start,
            nodes=encode.Nodes(
                self.nodes.type[part], self.nodes.name[part], self.nodes.start_us[part], self.nodes.slot_us[part],
                dep_first - dep_first[0], self.nodes.dep[dep_first[0] : dep_first[-1]] - part.start,
            ),
            numbers=self.numbers._replace(
                values=self.numbers.values[:, part], known=self.numbers.known[:, part]
            ),
            words=self.words._replace(values=self.words.values[:, part]),
        )  # fmt: skip


def stream_nodes(  # noqa: PLR0913, PLR0917 # of one rank
    trace: Trace,
    plan: Plan,
    npus: Streams,
    of_ranks: slice,
    comms: dict[str, Array],
    number: Array,
    bandwidth_gbs: Array,
) -> StreamNodes:
    """Nodes of the NPUs of streams of ranks.

    Parameters
    ----------
    trace, plan, comms
        Nodes of the ranks, their plan, and communication on NPUs of streams.
    npus
        NPUs of the job's streams.
    of_ranks
        Rows of these ranks among those of the job.
    number
        NPU of each rank.
    bandwidth_gbs
        As of `roofline.bandwidths_gbs`.
    """
    npu, place = npus.npu[of_ranks], npus.place[of_ranks]
    rows = np.flatnonzero(npu >= 0)
    if not len(rows):
        return _idle()._replace(npu=rows)
    rows = rows[np.lexsort((place[rows], npu[rows]))]
    npu, rank = npu[rows], populations(trace, each_rank=True).at(rows)
    begins = np.diff(npu, prepend=-1) != 0
    stream = np.cumsum(begins) - 1
    in_plan = np.full(trace.nodes.num_rows, -1, np.int64)
    in_plan[plan.row[plan.row >= 0]] = np.flatnonzero(plan.row >= 0)
    start_ns, dur_ns, late_us, late_cause = (
        values[in_plan[rows]]
        for values in (plan.start_ns, plan.duration_ns, plan.late_us, plan.late_cause)
    )
    late_us = late_us.astype(np.int64)
    start_us, end_us = (start_ns + 500) // 1000, (start_ns + dur_ns + 500) // 1000
    # replayed, readiness comes when it was measured; streams that share an NPU follow each other there, which may
    # be later, and only the rest of the delay comes behind that
    ready_us = start_us - late_us
    free_us = np.where(begins, 0, np.roll(_latest(end_us, stream), 1))
    began_us = np.maximum(start_us, free_us)
    late_us = np.maximum(start_us - np.maximum(ready_us, free_us), 0)
    relays = npus.relays.of_rank(of_ranks)
    answers = _answers(relays, rows, npu, start_ns + dur_ns)
    began_us = np.maximum(began_us, answers.until_us)
    # what waits for an answer anyway needs no delay, which would wait for the slot that the answer holds
    late_us[answers.is_answer] = 0
    at = _places(late_us > 0, answers, comms["control_tag"][rows] >= 0)
    slot_us = at.column(
        0, ready=ready_us, delay=late_us, answer=answers.lasts_us, work=np.maximum(end_us - began_us, 0)
    )  # fmt: skip
    slot_us[at.notified] = answers.notified_us
    is_comm = comms["node_type"][rows] > 0
    sent = _sent(relays, rows)
    position = np.arange(len(rows)) - np.flatnonzero(begins)[stream]
    numbers = _numbers(rows, comms, number[rank], npu, position, at)
    _set_ends(numbers, at.work[sent >= 0], relays, sent[sent >= 0])
    numbers |= {
        "start_ns": (encode.INT64_VAL, at.column(-1, work=start_ns)),
        "duration_ns": (encode.INT64_VAL, at.column(-1, work=dur_ns)),
    }
    work = at.column(-1, work=np.where(is_comm, -1, rows))
    work_type = np.where(is_comm, NodeType.COMM_COLL, NodeType.COMP)
    work_type[sent >= 0] = NodeType.COMM_SEND
    types = at.column(
        NodeType.COMP, ready=NodeType.COMM_RECV, announce=NodeType.COMM_SEND, receive=NodeType.COMM_RECV,
        done=NodeType.COMM_SEND, notified=NodeType.COMM_RECV, work=work_type,
    )  # fmt: skip
    computed = types == NodeType.COMP
    of_work = np.arange(len(rows))
    for_work = at.column(0, delay=of_work, answer=of_work, work=of_work)
    gbs = bandwidth_gbs[rank[for_work]]
    figures = roofline(trace, gbs, work, computed, slot_us)
    numbers["num_ops"] = (encode.INT64_VAL, np.where(computed, figures.num_ops, -1))
    numbers["tensor_size"] = (encode.UINT64_VAL, np.where(computed, figures.tensor_size, -1))
    cause = at.column(
        Cause.WORK, ready=Cause.READY, delay=late_cause, announce=Cause.ENDED, receive=Cause.ENDED, done=Cause.DONE,
        notified=Cause.RELAYED, answer=Cause.UNRECORDED,
    )  # fmt: skip
    kind = at.column(Kind.HOST_GAP, work=trace.array("kind")[rows])
    group = np.where(comms["turn"][rows] >= 0, comms["group"][rows], 0)
    names = [*trace.names(), *(CAUSE_NAMES.get(c, "") for c in Cause)]
    words = {
        "kind": (kind, [_KIND_NAMES.get(k, "") for k in range(max(Kind) + 1)]),
        "cause": (np.where(cause == Cause.WORK, -1, cause), [c.name.lower() for c in Cause]),
        "pg_name": (
            at.column(-1, work=np.where(is_comm & (sent < 0), group, -1)),
            [str(g) if g else "" for g in range(int(group.max(initial=0)) + 1)],
        ),
    }
    name = np.where(cause == Cause.WORK, 0, len(trace.names()) + cause)
    name[at.work] = trace.array("name")[rows]
    nodes = encode.Nodes(
        types,
        name,
        at.column(0, work=start_us),
        slot_us,
        *_dependencies(at, ~begins, npu),
    )
    first = np.append(at.ready[begins], at.total)
    return StreamNodes(npu[begins], first, nodes, *_attributes(names, numbers, words))


def _latest(end: Array, stream: Array) -> Array:
    """Latest end so far of each stream, whose numbers ascend."""
    # streams one behind the other on one axis, so that one running maximum serves all
    base = stream * (int(end.max()) - int(end.min()) + 1)
    return np.maximum.accumulate(base + end) - base


def _idle() -> StreamNodes:
    """A node of no time, of an NPU without work."""
    one, none = np.zeros(1, np.int64), np.empty(0, np.int64)
    nodes = encode.Nodes(one + NodeType.COMP, one, one, one, np.zeros(2, np.int64), none)
    numbers = {
        "is_cpu_op": (encode.BOOL_VAL, np.zeros(1, np.int64)),
        "num_ops": (encode.INT64_VAL, one + 1),
        "tensor_size": (encode.UINT64_VAL, one + _IDLE_BYTES),
    }
    names = [CAUSE_NAMES[Cause.BEGIN]]
    attributes = _attributes(names, numbers, {"cause": (one, [Cause.BEGIN.name.lower()])})
    return StreamNodes(none, np.arange(2), nodes, *attributes)


def _numbers(
    rows: Array,
    comms: dict[str, Array],
    rank: Array,
    own: Array,
    place: Array,
    at: _Places,
) -> dict[str, tuple[int, Array]]:
    """Attributes of communication, and where nodes run: name → tag of their type, and values; -1 if unknown.

    Messages are between the NPU of the work's rank and its `own`, and have the place of the work there as their tag.
    """
    is_comm = comms["node_type"][rows] > 0
    of_work = {name: np.where(is_comm, comms[name][rows], -1) for name in ("comm_type", "size")}
    src, dst, tag, end_tag = (comms[n][rows] for n in ("src", "dst", "tag", "control_tag"))
    few = dict.fromkeys(("ready", "announce", "receive", "done", "notified"), MIN_BYTES)
    answers, npu_of_answer = at.answers, own[at.answers.work]
    return {
        "is_cpu_op": (encode.BOOL_VAL, at.column(0)),
        "comm_type": (encode.INT64_VAL, at.column(-1, work=of_work["comm_type"])),
        "comm_size": (encode.INT64_VAL, at.column(-1, work=of_work["size"], **few)),
        "comm_src": (
            encode.INT32_VAL,
            at.column(-1, ready=rank, announce=own, receive=src, done=own, notified=answers.sender),
        ),
        "comm_dst": (
            encode.INT32_VAL,
            at.column(-1, ready=own, announce=dst, receive=own, done=rank, notified=npu_of_answer),
        ),
        "comm_tag": (
            encode.INT32_VAL,
            at.column(-1, ready=place, announce=tag, receive=end_tag, done=place, notified=answers.tag),
        ),
    }  # fmt: skip


def _set_ends(
    numbers: dict[str, tuple[int, Array]], nodes: Array, relays: Relays, sent: Array
) -> None:
    """Give nodes that move data, each by a relay, the ends of a message."""
    ends = {
        "comm_src": relays.sender,
        "comm_dst": relays.receiver,
        "comm_tag": relays.tag,
        "comm_size": relays.size,
    }
    for name, of_relays in ends.items():
        numbers[name][1][nodes] = of_relays[sent]
    numbers["comm_type"][1][nodes] = -1


def _attributes(
    names: list[str],
    numbers: dict[str, tuple[int, Array]],
    words: dict[str, tuple[Array, list[str]]],
) -> tuple[encode.Texts, encode.Numbers, encode.Words]:
    """Columns of attributes, of which -1 is no value, and all texts, of which `names` are the first."""
    texts, codes = list(names), []
    for code, of_column in words.values():
        codes.append(np.where(code >= 0, len(texts) + code, -1))
        texts += of_column
    name = len(texts) + np.arange(len(numbers) + len(words))
    values = np.stack([values for _, values in numbers.values()])
    tags = np.array([tag for tag, _ in numbers.values()], np.int64)
    return (
        encode.text_table([*texts, *numbers, *words]),
        encode.Numbers(name[: len(numbers)], tags, values, values >= 0),
        encode.Words(name[len(numbers) :], np.stack(codes)),
    )
