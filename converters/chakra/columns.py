"""Columns of a trace's nodes from an ET: kinds, lanes and communication.

Attributes that this project's writer adds go before the types of nodes, which say less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra.values import has_integer, integers, reals
from chopper_interop.schemas import hub
from chopper_interop.schemas.chakra import Cause, CommType, NodeType
from chopper_interop.schemas.kinds import Collective, Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.chakra.decode import EtFile

_COLLECTIVES = {
    CommType.ALL_REDUCE: Collective.ALL_REDUCE,
    CommType.REDUCE: Collective.REDUCE,
    CommType.ALL_GATHER: Collective.ALL_GATHER,
    CommType.GATHER: Collective.GATHER,
    CommType.SCATTER: Collective.SCATTER,
    CommType.BROADCAST: Collective.BROADCAST,
    CommType.ALL_TO_ALL: Collective.ALL_TO_ALL,
    CommType.REDUCE_SCATTER: Collective.REDUCE_SCATTER,
    CommType.REDUCE_SCATTER_BLOCK: Collective.REDUCE_SCATTER,
    CommType.BARRIER: Collective.BARRIER,
}
_KINDS = {k.name.lower(): int(k) for k in Kind}


def kinds(et: EtFile) -> Array:
    """Kind of each node: that of its attribute `kind`, else by its type and side."""
    on_host = integers(et, "is_cpu_op", 0) != 0
    kind = np.where(on_host, int(Kind.CPU_OP), int(Kind.KERNEL))
    comm = (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)
    kind[is_any(et.type, comm) & ~on_host] = Kind.COMM
    kind[is_any(et.type, (NodeType.MEM_LOAD, NodeType.MEM_STORE))] = Kind.MEMCPY
    kind[et.type == NodeType.INVALID] = Kind.OTHER
    codes, texts = et.texts("kind")
    # the appended 0 is what code -1, no text, reaches
    by_attribute = np.array([_KINDS.get(text, 0) for text in texts] + [0])[codes]
    return np.where(by_attribute > 0, by_attribute, kind).astype(np.uint8)


def causes(et: EtFile) -> Array:
    """Cause of each node; that of nodes that state none is work."""
    codes, texts = et.texts("cause")
    by_name = {cause.name.lower(): int(cause) for cause in Cause}
    return np.array([by_name.get(text, 0) for text in texts] + [0])[codes]


def dictionary(codes: Array, texts: list[str]) -> pa.DictionaryArray:
    """Texts by their numbers, where -1 is null."""
    return arrow.dictionary(codes, texts)


def lanes(
    builder: TraceBuilder, et: EtFile, keep: Array, kind: Array, rank: int, *, is_simulated: bool
) -> Array:
    """Add threads of host operations and streams of GPU work; return the lane of each kept node.

    Where the ET does not record them, there is one thread and a stream each for computation and
    communication. In a simulation the pieces of all threads take turns, so that they have one thread too.
    """
    has_tid = (kind != Kind.HOST_GAP) | (not is_simulated)
    on_host = (integers(et, "is_cpu_op", 0) != 0)[keep]
    stream = np.where(kind == Kind.COMM, 1, 0)
    number = np.where(
        on_host,
        np.where(has_tid, integers(et, "tid", 0)[keep], 0),
        np.where(has_integer(et, "stream")[keep], integers(et, "stream", 0)[keep], stream),
    )
    device = np.where(on_host, -1, np.maximum(integers(et, "device", 0)[keep], 0))
    first, code = gather.distinct(on_host.astype(np.int64), device, number)
    lanes = []
    for i in first.tolist():
        lane, label = (LaneKind.THREAD, "thread") if on_host[i] else (LaneKind.STREAM, "stream")
        name = f"{label} {number[i]}"
        lanes.append(builder.lane(rank, lane, int(number[i]), name, int(device[i])))
    return np.array(lanes, np.int32)[code]


def annotation_columns(
    et: EtFile, keep: Array, groups: dict[str, int], all_ranks: int
) -> dict[str, pa.Array]:
    """Annotation columns: those of communication, and attributes that the hub declares.

    Parameters
    ----------
    et
        The file.
    keep
        Its rows that become nodes.
    groups
        Rows of the trace's process groups, by name.
    all_ranks
        Row of the group of all ranks; -1 if none is known.
    """
    is_gap = kinds(et) == Kind.HOST_GAP  # a delay of communication is none itself
    columns = {
        "collective": _collectives(et, keep, is_gap),
        "group": _process_groups(et, keep, groups, all_ranks),
    }
    size, peer = integers(et, "comm_size", -1), _peers(et, is_gap)[keep]
    size = np.where(is_gap | has_integer(et, "npu"), -1, size)[keep]
    columns["bytes"] = arrow.negative_to_null(size)
    columns["peer"] = arrow.negative_to_null(np.where(peer < 1 << 31, peer, -1), pa.int32())
    for name in et.attr_names:
        declared = hub.ANNOTATION_TYPES.get(name)
        if declared is None or name in ("group", "peer", "collective"):
            continue
        if pa.types.is_dictionary(declared):
            codes, texts = et.texts(name)
            columns[name] = dictionary(codes[keep], texts)
        elif pa.types.is_floating(declared):
            values = reals(et, name)[keep]
            columns[name] = arrow.array(values, declared, mask=np.isnan(values))
        else:
            values, known = integers(et, name, 0)[keep], has_integer(et, name)[keep]
            if pa.types.is_int32(declared):
                known &= (values >= -(1 << 31)) & (values < 1 << 31)
            if name == "bytes":  # goes before comm_size, which only communication has
                values, known = np.where(known, values, size), known | (size >= 0)
            columns[name] = arrow.array(np.where(known, values, 0), mask=~known)
    return columns


_ALL_RANKS = ("", "0")
"""Names of the group of all ranks, which the file of groups need not list."""


def _collectives(et: EtFile, keep: Array, is_gap: Array) -> pa.DictionaryArray:
    """Collective of each node: its attribute `collective`, else by its type."""
    names = [*_COLLECTIVES.values(), Collective.SEND, Collective.RECV]
    codes = np.full(len(et.id), -1, np.int64)
    comm_type = integers(et, "comm_type", -1)
    for code, kind in enumerate(_COLLECTIVES):
        codes[(et.type == NodeType.COMM_COLL) & (comm_type == kind)] = code
    codes[et.type == NodeType.COMM_SEND] = len(_COLLECTIVES)
    codes[et.type == NodeType.COMM_RECV] = len(_COLLECTIVES) + 1
    codes[has_integer(et, "npu")] = -1  # work of a stream, of which a message states the end only
    by_attribute, texts = et.texts("collective")
    codes = np.where(by_attribute >= 0, by_attribute + len(names), codes)
    codes[is_gap] = -1
    return dictionary(codes[keep], names + texts).cast(pa.string()).dictionary_encode()


def _process_groups(et: EtFile, keep: Array, groups: dict[str, int], all_ranks: int) -> pa.Array:
    """Group of each node by name; a collective that ranks join and that names none has all ranks.

    A broadcast without a name gets none: it may stand for any communication of any group that is
    only timed.
    """
    codes, texts = et.texts("pg_name")
    rows = np.array([groups.get(text, -1) for text in texts] + [-1])[codes]
    unnamed = np.array([text in _ALL_RANKS for text in texts] + [True])[codes]
    unnamed &= (rows < 0) & (et.type == NodeType.COMM_COLL)
    joined = integers(et, "comm_type", -1) != CommType.BROADCAST
    rows = np.where(unnamed, groups.get("", np.where(joined, all_ranks, -1)), rows)
    return arrow.array(rows[keep], pa.int32(), mask=rows[keep] < 0)


def _peers(et: EtFile, is_gap: Array) -> Array:
    """Other rank of sends and receives; -1 for any other node."""
    sent, received = integers(et, "comm_dst", -1), integers(et, "comm_src", -1)
    peer = np.where(et.type == NodeType.COMM_SEND, sent, received)
    message = is_any(et.type, (NodeType.COMM_SEND, NodeType.COMM_RECV)) & ~is_gap
    # messages that a stream's NPU sends or receives are receives from that NPU here
    peer = np.where(has_integer(et, "npu"), integers(et, "peer", -1), peer)
    return np.where(message, peer, -1)
