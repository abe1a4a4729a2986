"""The job as it was recorded, as attributes of an ET's last node, where simulators know no names for it.

Dependencies of an ET are those of slots and pieces, and in mode gpu hosts are pieces too, without time where another
thread holds the slot. From these a job cannot be found again: launches become delays, and waits work of hosts. So the last
node carries, as lists, the edges between what was recorded and, for modes without operations, the operations between
which threads are only busy or idle: those at edges, and the outermost ones::

    ET, mode gpu    host ──> kernel ──> return of a wait ──> host ──> kernel
    recorded        [hipLaunchKernel]──> kernel ──> [hipDeviceSynchronize]  [aten::add  [hipLaunchKernel]──> kernel ]

Simulators look attributes up by name and skip these; MLCommons' tools show them. They are of the nodes as they were
written: where a tool removed, renumbered or rewired nodes, what the file itself says is read instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

from chopper_interop.arrays import Array, nest
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra import host_chain
from chopper_interop.converters.chakra.columns import causes
from chopper_interop.converters.chakra.planning.plan import Mode
from chopper_interop.converters.chakra.times import MAX_NS
from chopper_interop.converters.chakra.values import integers
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.chakra import Cause, message_class
from chopper_interop.schemas.kinds import DERIVED, EdgeKind, Kind
from chopper_interop.timing.populations import populations
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.converters.chakra.decode import EtFile
    from chopper_interop.converters.chakra.planning.plan import Plan

UNREADABLE = Fault.loss(
    "et-recorded-unreadable",
    "What the last node of an ET of this project says of the recorded job is missing, or does not fit its nodes: "
    "pieces of hosts and dependencies for simulators are read instead, in which what a thread does while another "
    "has their one slot takes no time.",
)

DURATIONS_CHANGED = Fault.loss(
    "et-durations-changed",
    "Since an ET of this project was written, duration_micros of its nodes was changed, which simulators use, and "
    "duration_ns was not: durations here are those of duration_ns. Change both.",
)

_OPERATION = ("kind", "name", "tid", "start_ns", "duration_ns", "iteration", "correlation")
_EDGE = ("src", "dst", "edge")
_EARLIER = ("node", "began_ns")
_NUMBERS = tuple(f"recorded_{name}" for name in (*_OPERATION, *_EDGE, *_EARLIER, "of"))
_OF = 4
"""Numbers that tell the nodes of an ET from others."""
_NAMES = "recorded_names"
ATTRIBUTES = (*_NUMBERS, _NAMES)
"""Attributes of the last node."""
FIELDS = (_INTEGERS, _TEXTS) = (10, 30)
"""Fields of et_def.proto's AttributeProto of their values: int64_list and string_list."""
_OF_SIMULATORS = [int(cause) for cause in Cause if cause is not Cause.WORK]
_NOT_LISTED = (*DERIVED, EdgeKind.DURATION, EdgeKind.COMM, EdgeKind.DATA)
"""Kinds of edges that follow from lanes and, when ranks are joined, from who meets whom; of tensors' producers threads'
orders say as much."""
_EDGE_KINDS = [int(kind) for kind in EdgeKind if kind not in _NOT_LISTED]


class Recorded(NamedTuple):
    """Operations that are no nodes of an ET, edges, and starts.

    Parameters
    ----------
    kind, name, tid, start_ns, duration_ns, iteration, correlation
        Of operations: names by their number in `names`, starts from the job's, training steps and numbers of calls,
        -1 of none.
    src, dst, edge
        Ends and kind of each edge: ids of nodes and, from the number of nodes on, operations.
    node, began_ns
        Nodes that began when other threads had their slot, as nodes stand in the order in which they have it, and their
        starts from the job's.
    of
        Number of nodes of the ET, a checksum of their dependencies, and the sums of their durations for simulators in
        microseconds and of those that were recorded in nanoseconds.
    names
        Distinct names.
    """

    kind: Array
    name: Array
    tid: Array
    start_ns: Array
    duration_ns: Array
    iteration: Array
    correlation: Array
    src: Array
    dst: Array
    edge: Array
    node: Array
    began_ns: Array
    of: Array
    names: list[str]


def recorded(trace: Trace, plan: Plan, mode: Mode, origin_ns: int) -> Iterator[Recorded]:
    """Yield operations, edges and starts of each rank that its plan does not have.

    Parameters
    ----------
    trace, plan
        The ranks.
    mode
        Part of the host that the plan holds.
    origin_ns
        The job's start on the trace's `ts` axis.
    """
    of, ids, count = populations(trace, each_rank=True), plan.ids, len(plan.first) - 1
    src, dst, kind = (trace.array(name, "edges") for name in ("src", "dst", "kind"))
    within = is_any(kind, _EDGE_KINDS)
    node = np.full(trace.nodes.num_rows, -1, np.int64)
    planned = np.flatnonzero(plan.row >= 0)
    node[plan.row[planned]] = ids[planned]
    listed = np.empty(0, np.int64)
    if mode is Mode.GPU:
        listed = _operations(trace, np.append(src[within], dst[within]))
    of_listed = _bounds(of.at(listed), count)
    # behind the nodes of their rank
    place = np.arange(len(listed)) - of_listed[of.at(listed)]
    node[listed] = np.diff(plan.first)[of.at(listed)] + place
    within = np.flatnonzero(within & (node[src] >= 0) & (node[dst] >= 0))
    # sorted, so that a job gives the same bytes whatever its edges were found in
    keys = kind[within], node[src[within]], node[dst[within]]
    within = within[np.lexsort((*keys, of.at(dst[within])) if count > 1 else keys)]
    began_ns = trace.array("ts")[plan.row[planned]] - origin_ns
    moved = began_ns != plan.start_ns[planned]
    planned, began_ns = planned[moved], began_ns[moved]
    rows = {
        "kind": trace.array("kind")[listed], "name": trace.array("name")[listed],
        "tid": trace.array("number", "lanes")[trace.array("lane")[listed]],
        "start_ns": trace.array("ts")[listed] - origin_ns, "duration_ns": trace.array("dur")[listed],
        "iteration": trace.integers("iteration", listed), "correlation": trace.array("correlation")[listed],
    }  # fmt: skip
    edges = {"src": node[src[within]], "dst": node[dst[within]], "edge": kind[within]}
    starts = {"node": ids[planned], "began_ns": began_ns}
    tables = (
        (rows, of_listed),
        (edges, _bounds(of.at(dst[within]), count)),
        (starts, np.searchsorted(planned, plan.first)),
    )
    texts = trace.names() if len(listed) else []
    for rank in range(count):
        columns = {
            name: values[bounds[rank] : bounds[rank + 1]]
            for table, bounds in tables
            for name, values in table.items()
        }
        codes = columns["name"]
        if len(codes):
            codes, columns["name"] = np.unique(codes, return_inverse=True)
        names = [texts[code].encode("utf-8", "replace").decode() for code in codes.tolist()]
        yield Recorded(**columns, of=_sums(plan, rank), names=names)


def _bounds(rank: Array, count: int) -> Array:
    """First row of each of so many ranks, of rows in order of ranks, and their number."""
    return np.searchsorted(rank, np.arange(count + 1))


def _sums(plan: Plan, rank: int) -> Array:
    """Numbers that tell the nodes of a rank from others."""
    begin, end = plan.first[rank : rank + 2].tolist()
    first = plan.dep_first[begin : end + 1]
    dep = plan.dep[first[0] : first[-1]]
    times = (plan.slot_us[begin:end].sum(), plan.duration_ns[begin:end].sum())
    if begin:
        first, dep = first - first[0], dep - begin
    return np.append(_nodes_and_checksum(first, dep), times)


def _nodes_and_checksum(first: Array, dep: Array) -> Array:
    """Number of nodes and a checksum of their dependencies, by which nodes that a tool has changed are known.

    Parameters
    ----------
    first, dep
        Ids that node i depends on: ``dep[first[i]:first[i + 1]]``.
    """
    checksum = 0
    for values in (first, dep):
        checksum = crc32(np.ascontiguousarray(values, "<i8").data, checksum)
    return np.array([len(first) - 1, checksum])


def _operations(trace: Trace, at_edges: Array) -> Array:
    """Rows of the operations at edges, and of the outermost ones: between these a thread is idle.

    Ranges count as none, as a thread may be idle within; the outermost ones, as of steps, are listed too.
    """
    operation = host_chain.is_operation(trace)
    works = operation & (trace.array("kind") != Kind.ANNOTATION)
    taken = np.zeros(len(operation), bool)
    for outer in (operation, works):
        taken |= outer & (nest.around(trace.array("parent"), outer) < 0)
    taken[at_edges] = True
    return np.flatnonzero(taken & operation)


def encoded(of_rank: Recorded) -> bytes:
    """Attributes of a node, as they stand in its message."""
    node = message_class("Node")()
    for attribute, values in zip(_NUMBERS, of_rank[:-1], strict=True):
        node.attr.add(name=attribute).int64_list.values.extend(values.tolist())
    node.attr.add(name=_NAMES).string_list.values.extend(of_rank.names)
    return bytes(node.SerializeToString())


def decoded(et: EtFile, issues: IssueLog) -> Recorded | None:
    """The recorded job by a file's last node; None if it has none, or one that does not fit the file."""
    raw = {name: _message(et, name) for name in ATTRIBUTES}
    of_rank = _parsed(raw) if None not in raw.values() else None
    if of_rank is not None and _fits(of_rank, et):
        *_, written_us, written_ns = of_rank.of.tolist()
        is_changed = et.duration_us.sum() != written_us
        issues.add(
            DURATIONS_CHANGED,
            bool(is_changed and integers(et, "duration_ns", 0).sum() == written_ns),
        )
        return of_rank
    issues.add(UNREADABLE, bool(is_any(causes(et), _OF_SIMULATORS).any()))
    return None


def _parsed(raw: dict[str, bytes | None]) -> Recorded | None:
    """Lists of messages; None if one of them is none."""
    try:
        numbers = [message_class("Int64List").FromString(raw[name]).values for name in _NUMBERS]
        names = message_class("StringList").FromString(raw[_NAMES]).values
    except Exception:  # noqa: BLE001 - protobuf's own error class differs between its versions
        return None
    return Recorded._make([*(np.array(column, np.int64) for column in numbers), list(names)])


def _message(et: EtFile, name: str) -> bytes | None:
    """Message of the one attribute of this name that is a list of its type; None if there is none."""
    if name not in et.attr_names:
        return None
    rows = np.flatnonzero(et.attr_name == et.attr_names.index(name))
    rows = rows[et.attr_field[rows] == (_TEXTS if name == _NAMES else _INTEGERS)]
    if len(rows) != 1:
        return None
    at, length = int(et.attr_value[rows[0]]), int(et.attr_len[rows[0]])
    return et.buffer[at : at + length].tobytes()


def _fits(of_rank: Recorded, et: EtFile) -> bool:
    """True if all columns go together, and with nodes that are numbered and depend on each other as when written."""
    nodes, ends = len(et.id), len(et.id) + len(of_rank.kind)
    for table in (_OPERATION, _EDGE, _EARLIER):
        if len({len(getattr(of_rank, column)) for column in table}) > 1:
            return False
    bounds = {
        "name": (0, len(of_rank.names)), "start_ns": (-MAX_NS, MAX_NS), "duration_ns": (0, MAX_NS),
        "iteration": (-1, 1 << 31), "src": (0, ends), "dst": (0, ends),
        "node": (0, nodes), "began_ns": (-MAX_NS, MAX_NS),
    }  # fmt: skip
    values = {name: getattr(of_rank, name) for name in bounds}
    return bool(
        np.array_equal(et.id, np.arange(nodes))
        and not len(et.ctrl)
        and len(of_rank.of) == _OF
        and np.array_equal(of_rank.of[:2], _nodes_and_checksum(et.data_first, et.data))
        and all(
            ((values[name] >= first) & (values[name] < behind)).all()
            for name, (first, behind) in bounds.items()
        )
        and np.isin(of_rank.kind, host_chain.OPERATIONS).all()
        and np.isin(of_rank.edge, _EDGE_KINDS).all()
        and (of_rank.src != of_rank.dst).all()
    )
