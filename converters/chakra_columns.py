"""Columns of nodes out of an ET: kinds, lanes, what is communicated, and arguments.

What attributes say in our own words goes before what types tell.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.columns import arrow, gather
from chopper_interop.columns.members import is_any
from chopper_interop.converters.chakra_values import has, integers, reals, value
from chopper_interop.schemas import hub
from chopper_interop.schemas.chakra import CommType, NodeType
from chopper_interop.schemas.kinds import Collective, Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.chakra_decode import EtFile

_NAMES = {
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
    """Kind of each node: as we wrote it, else by type and side."""
    on_host = integers(et, "is_cpu_op", 0) != 0
    kind = np.where(on_host, int(Kind.CPU_OP), int(Kind.KERNEL))
    comm = (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)
    kind[is_any(et.type, comm) & ~on_host] = Kind.COMM
    kind[np.isin(et.type, (NodeType.MEM_LOAD, NodeType.MEM_STORE))] = Kind.MEMCPY
    kind[et.type == NodeType.INVALID] = Kind.OTHER
    codes, texts = et.texts("kind")
    stated = np.array([_KINDS.get(text, 0) for text in texts] + [0])[codes]
    return np.where(stated > 0, stated, kind).astype(np.uint8)


def dictionary(codes: Array, texts: list[str]) -> pa.DictionaryArray:
    """Texts by their numbers, -1 for none."""
    return arrow.dictionary(codes, texts, mask=codes < 0)


def lanes(builder: TraceBuilder, et: EtFile, keep: Array, kind: Array, rank: int) -> Array:
    """Threads of host operations, streams of GPU work; one of each where the ET does not say."""
    on_host = (integers(et, "is_cpu_op", 0) != 0)[keep]
    stream = np.where(kind == Kind.COMM, 1, 0)
    number = np.where(
        on_host,
        integers(et, "tid", 0)[keep],
        np.where(has(et, "stream")[keep], integers(et, "stream", 0)[keep], stream),
    )
    device = np.where(on_host, -1, np.maximum(integers(et, "device", 0)[keep], 0))
    first, code = gather.distinct(on_host.astype(np.int64), device, number)
    lanes = []
    for i in first.tolist():
        what, label = (LaneKind.THREAD, "thread") if on_host[i] else (LaneKind.STREAM, "stream")
        name = f"{label} {number[i]}"
        lanes.append(builder.lane(rank, what, int(number[i]), name, int(device[i])))
    return np.array(lanes, np.int32)[code]


def annotated(
    et: EtFile, keep: Array, groups: dict[str, int], everyone: int
) -> dict[str, pa.Array]:
    """Annotation columns: what nodes communicate, and whatever else is one of the hub's.

    Parameters
    ----------
    et
        The file.
    keep
        Its rows that become nodes.
    groups
        Process groups by name, rows of the trace's.
    everyone
        The one of all ranks; -1 if none is told.
    """
    found = _groups_of(et, keep, groups, everyone)
    columns = {"collective": _collectives(et, keep), "group": found}
    size, peer = integers(et, "comm_size", -1)[keep], _peers(et)[keep]
    columns["bytes"] = arrow.array(size, mask=size < 0)
    columns["peer"] = arrow.array(peer, pa.int32(), mask=peer < 0)
    for name in et.attr_names:
        declared = hub.ANNOTATION_TYPES.get(name)
        if declared is None or name in ("group", "peer", "collective"):
            continue
        if pa.types.is_dictionary(declared):
            codes, texts = et.texts(name)
            columns[name] = dictionary(codes[keep], texts)
        elif pa.types.is_floating(declared):
            found = reals(et, name)[keep]
            columns[name] = arrow.array(found, declared, mask=np.isnan(found))
        else:
            found, known = integers(et, name, 0)[keep], has(et, name)[keep]
            if pa.types.is_int32(declared):
                known &= (found >= -(1 << 31)) & (found < 1 << 31)
            if name == "bytes":  # what we wrote beside comm_size, which is of communication only
                found, known = np.where(known, found, size), known | (size >= 0)
            columns[name] = arrow.array(np.where(known, found, 0), mask=~known)
    return columns


_EVERYBODY = ("", "0")
"""Names of the group of all ranks, which the file of groups need not list."""


def _collectives(et: EtFile, keep: Array) -> pa.DictionaryArray:
    """What each node communicates: as we wrote it, else by its type."""
    names = [*_NAMES.values(), Collective.SEND, Collective.RECV]
    codes = np.full(len(et.id), -1, np.int64)
    comm_type = integers(et, "comm_type", -1)
    for code, kind in enumerate(_NAMES):
        codes[(et.type == NodeType.COMM_COLL) & (comm_type == kind)] = code
    codes[et.type == NodeType.COMM_SEND] = len(_NAMES)
    codes[et.type == NodeType.COMM_RECV] = len(_NAMES) + 1
    stated, texts = et.texts("collective")
    codes = np.where(stated >= 0, stated + len(names), codes)
    return dictionary(codes[keep], names + texts).cast(pa.string()).dictionary_encode()


def _groups_of(et: EtFile, keep: Array, groups: dict[str, int], everyone: int) -> pa.Array:
    """Groups by name; what is joined across ranks and names none is of all of them.

    A broadcast that names none may be anything that is only timed, of any group.
    """
    codes, texts = et.texts("pg_name")
    rows = np.array([groups.get(text, -1) for text in texts] + [-1])[codes]
    unnamed = np.array([text in _EVERYBODY for text in texts] + [True])[codes]
    unnamed &= (rows < 0) & (et.type == NodeType.COMM_COLL)
    joined = integers(et, "comm_type", -1) != CommType.BROADCAST
    rows = np.where(unnamed, groups.get("", np.where(joined, everyone, -1)), rows)
    return arrow.array(rows[keep], pa.int32(), mask=rows[keep] < 0)


def _peers(et: EtFile) -> Array:
    """The other end of sends and receives; -1 of anything else."""
    sent, received = integers(et, "comm_dst", -1), integers(et, "comm_src", -1)
    peer = np.where(et.type == NodeType.COMM_SEND, sent, received)
    return np.where(np.isin(et.type, (NodeType.COMM_SEND, NodeType.COMM_RECV)), peer, -1)


def arguments(
    builder: TraceBuilder, et: EtFile, keep: Array, columns: Array
) -> tuple[Array, Array]:
    """Attributes that have no column, as JSON objects."""
    rows = np.flatnonzero(~columns & (et.attr_name >= 0))
    found: dict[int, dict[str, Any]] = {}
    for row in rows.tolist():
        node, name = int(et.attr_node[row]), et.attr_names[int(et.attr_name[row])]
        found.setdefault(node, {})[name] = value(et, row)
    raws = {node: json.dumps(told).encode() for node, told in found.items()}
    buffer = b"".join(raws.values())
    start = builder.text(np.frombuffer(bytearray(buffer), np.uint8)) if buffer else 0
    at, length = np.zeros(len(et.id), np.int64), np.zeros(len(et.id), np.int32)
    rows = np.array(list(raws), np.int64)
    length[rows] = [len(r) for r in raws.values()]
    at[rows] = start + np.cumsum(length[rows]) - length[rows]
    return at[keep], length[keep]
