"""Reading ETs of any writer: our own come back with their exact times, others as well as they say.

Forms: protobuf messages of all schemas (`chakra_old` has those before today's), packed or not, and
both JSON forms (`chakra_json`). Where no node says when it started, `chakra_times` computes it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import arrow, gather, inputs
from chopper_interop.build import TraceBuilder
from chopper_interop.converters import chakra_files, chakra_json, chakra_old, chakra_times
from chopper_interop.converters.chakra_decode import REAL_FIELDS, TEXT_FIELDS, EtFile, decode
from chopper_interop.converters.chakra_values import WHOLE_FIELDS, reals, taken, value
from chopper_interop.converters.chakra_values import has as _has
from chopper_interop.converters.chakra_values import integers as _integers
from chopper_interop.errors import ReadError
from chopper_interop.issues import RANK_ASSUMED, Fault, IssueLog, Severity
from chopper_interop.schemas import hub
from chopper_interop.schemas.chakra import CommType, NodeType, message
from chopper_interop.schemas.kinds import Collective, EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import ASSUMED, COMPUTED, REALTIME, Meta, Rank, Source

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

BROKEN = Fault(
    "et-cut-short",
    Severity.LOSS,
    "The file breaks off; what comes before is kept.",
)
METADATA_NODE = Fault(
    "et-metadata-node",
    Severity.INFO,
    "Nodes that hold facts about the trace are no operations.",
    events=True,
)
UNREADABLE = Fault(
    "et-attribute-unreadable",
    Severity.LOSS,
    "Attributes that are cut short, or have no name, were left out.",
)
DANGLING = Fault(
    "et-dependency-dangling",
    Severity.LOSS,
    "Dependencies on nodes that are not in the file were left out.",
)
CIRCULAR = Fault(
    "et-dependency-circular",
    Severity.LOSS,
    "Dependencies that go in circles were left out.",
)
ID_TWICE = Fault(
    "et-id-twice",
    Severity.ERROR,
    "Nodes with an id that an earlier node has: who depends on it depends on the first here, and "
    "on the last in simulators.",
)
EMPTY_NODE = Fault(
    "et-node-empty",
    Severity.INFO,
    "Messages without anything in them, at which MLCommons' readers stop, were left out.",
    events=True,
)
NO_METADATA = Fault(
    "et-without-metadata",
    Severity.INFO,
    "The file begins with a node, not with a GlobalMetadata; feeders lose that node.",
)

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
_NUMBERS = (
    "is_cpu_op", "start_ns", "duration_ns", "comm_type", "comm_size", "comm_src", "comm_dst",
    "comm_tag", "stream", "tid", "device", "correlation",
)  # fmt: skip
_TEXTS = ("pg_name", "kind", "collective")


def _fitting(declared: pa.DataType) -> tuple[int, ...]:
    if pa.types.is_dictionary(declared) or pa.types.is_string(declared):
        return TEXT_FIELDS
    return REAL_FIELDS + WHOLE_FIELDS if pa.types.is_floating(declared) else WHOLE_FIELDS


_COLUMNS = (
    {name: _fitting(declared) for name, declared in hub.ANNOTATION_TYPES.items()}
    | dict.fromkeys(_NUMBERS, WHOLE_FIELDS)
    | dict.fromkeys(_TEXTS, TEXT_FIELDS)
)
"""Attributes that become columns, and fields of their values; others stay as arguments."""


def read(paths: list[Path]) -> Trace:
    """Read one rank's ET.

    Parameters
    ----------
    paths
        The file, and those of process groups if there are any.
    """
    groups = [p for p in paths[1:] if chakra_files.is_groups(p)]
    path = paths[0]
    if path in groups or (not groups and chakra_files.is_groups(path)):
        raise ReadError("process groups alone are no trace", path=path)
    issues = IssueLog(str(path))
    et, lost = _file(path, issues)
    told = chakra_files.groups_of(groups, issues)
    job, rank = chakra_files.named(path)
    if rank is None:
        issues.add(RANK_ASSUMED)
    meta = _facts(et, path, job, Rank(rank or 0, known_by=ASSUMED if rank is None else "name"))
    builder = TraceBuilder(meta)
    keep = _kept(et, issues)
    if not len(keep):
        raise ReadError("it holds no nodes", path=path)
    src, dst = _edges(et, keep, issues)
    kind = _kinds(et)[keep]
    lane = _lanes(builder, et, keep, kind, rank or 0)
    ts, dur = chakra_times.times(et, keep, issues)
    if not chakra_times.measured(et):
        ts = chakra_times.scheduled(path, et.id[keep], lane, dur, (src, dst))
        issues.add(chakra_times.SCHEDULED, len(keep))
    builder.nodes(
        kind=kind,
        name=_dictionary(*et.coded(et.name_at[keep], et.name_len[keep])),
        rank=rank or 0,
        lane=lane,
        ts=ts + meta.origin_ns,
        dur=dur,
        correlation=_integers(et, "correlation", -1)[keep],
        args=_arguments(builder, et, keep, taken(et, _COLUMNS, issues)),
        **_annotations(et, keep, {n: builder.group(n, ranks) for n, ranks in told.items()}),
    )
    builder.edges(src, dst, EdgeKind.DEPENDENCY)
    trace = builder.finish()
    events, size = len(et.id) + lost, path.stat().st_size
    source = Source(str(path), "chakra", size=size, events=events, nodes=len(keep))
    return trace.with_meta(issues=tuple(issues), sources=(source,))


def _file(path: Path, issues: IssueLog) -> tuple[EtFile, int]:
    """Columns of a file of any form, and how many of its nodes are not in them."""
    raw, lost = inputs.read(path, issues), 0
    if chakra_json.is_json(bytes(raw[: inputs.HEAD])):
        raw, lost = chakra_json.messages(raw, issues)
    et = decode(np.ascontiguousarray(chakra_old.modern(raw)))
    if et.broken_at >= 0:
        issues.add(BROKEN, 1, f"byte {et.broken_at}")
    issues.add(UNREADABLE, np.count_nonzero(et.attr_name < 0))
    if not et.has_metadata:
        issues.add(NO_METADATA)
    return et, lost


def _kept(et: EtFile, issues: IssueLog) -> Array:
    """Rows of the nodes that are operations."""
    metadata = et.type == NodeType.METADATA
    empty = (et.id == 0) & (et.type == 0) & (et.name_len == 0)
    empty &= (et.start_us == 0) & (et.duration_us == 0)
    empty &= (np.diff(et.data_first) == 0) & (np.diff(et.ctrl_first) == 0)
    empty[et.attr_node] = False
    issues.add(METADATA_NODE, np.count_nonzero(metadata))
    issues.add(EMPTY_NODE, np.count_nonzero(empty))
    return np.flatnonzero(~metadata & ~empty)


def _facts(et: EtFile, path: Path, job: str, rank: Rank) -> Meta:
    """What the first message says."""
    facts: dict[str, str] = {}
    try:
        parsed = message("GlobalMetadata").FromString(_with_version(et.metadata))
    except Exception as error:
        raise ReadError(f"its first message is broken: {error}", path=path, at="byte 0") from error
    for attribute in parsed.attr:
        which = attribute.WhichOneof("value")
        found = getattr(attribute, which) if which else ""
        facts[attribute.name] = str(list(found.values) if hasattr(found, "values") else found)
    if parsed.version:
        facts["et_version"] = parsed.version
    origin = facts.pop("origin_ns", "0")
    stated = int(origin) if origin.lstrip("-").isdigit() and len(origin) < _MOST_DIGITS else 0
    measured = chakra_times.measured(et)
    return Meta(
        job=facts.get("job", job),
        origin_ns=stated if measured else 0,
        clock=REALTIME if measured else COMPUTED,
        ranks=(rank,),
        facts=facts,
    )


_MOST_DIGITS = 20


def _with_version(metadata: bytes) -> bytes:
    """GlobalMetadata as today; until the end of 2023 its attributes were in field 1."""
    try:
        told = chakra_old.fields(metadata)
    except ValueError:
        return metadata
    first = [found for number, _, found in told if number == 1]
    if not all(isinstance(found, bytes) and found[:1] == b"\n" for found in first):
        return metadata
    made = message("GlobalMetadata")()
    for found in first:
        made.attr.add().MergeFromString(found)
    for number, _, found in told:
        if number == 2 and isinstance(found, bytes):  # noqa: PLR2004
            made.attr.add().MergeFromString(found)
    return bytes(made.SerializeToString())


def _edges(et: EtFile, keep: Array, issues: IssueLog) -> tuple[Array, Array]:
    """Dependencies among the kept nodes, by their places there; no circles."""
    ids = np.concatenate([et.data, et.ctrl])
    rows = np.arange(len(et.id))
    dst = np.concatenate(
        [np.repeat(rows, np.diff(et.data_first)), np.repeat(rows, np.diff(et.ctrl_first))]
    )
    order = np.argsort(et.id, kind="stable")
    issues.add(ID_TWICE, _again(et, keep))
    at = np.minimum(np.searchsorted(et.id[order], ids), max(len(order) - 1, 0))
    exists = et.id[order][at] == ids if len(order) else np.zeros(0, bool)
    place = np.full(len(et.id), -1, np.int64)
    place[keep] = np.arange(len(keep))
    src, dst = place[order[at][exists]], place[dst[exists]]
    issues.add(DANGLING, np.count_nonzero(~exists))
    inside = (src >= 0) & (dst >= 0)
    src, dst = src[inside], dst[inside]
    pairs = np.unique(src * max(len(keep), 1) + dst)
    src, dst = pairs // max(len(keep), 1), pairs % max(len(keep), 1)
    stuck = _stuck(src, dst, len(keep)) & _stuck(dst, src, len(keep))
    circular = (src >= dst) & (stuck[src] & stuck[dst])  # what is left points forward
    issues.add(CIRCULAR, np.count_nonzero(circular))
    return src[~circular], dst[~circular]


def _stuck(src: Array, dst: Array, n: int) -> Array:
    """Nodes on circles, and those behind."""
    return gather.unreached(np.bincount(dst, minlength=n), *gather.lists(src, dst, n))


def _again(et: EtFile, keep: Array) -> int:
    """How many nodes have the id of another before them."""
    return len(keep) - len(np.unique(et.id[keep]))


def _kinds(et: EtFile) -> Array:
    """Kind of each node: as we wrote it, else by type and side."""
    on_host = _integers(et, "is_cpu_op", 0) != 0
    kind = np.where(on_host, int(Kind.CPU_OP), int(Kind.KERNEL))
    comm = (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)
    kind[np.isin(et.type, [int(t) for t in comm]) & ~on_host] = Kind.COMM
    kind[np.isin(et.type, (NodeType.MEM_LOAD, NodeType.MEM_STORE))] = Kind.MEMCPY
    kind[et.type == NodeType.INVALID] = Kind.OTHER
    codes, texts = et.texts("kind")
    stated = np.array([_KINDS.get(text, 0) for text in texts] + [0])[codes]
    return np.where(stated > 0, stated, kind).astype(np.uint8)


def _dictionary(codes: Array, texts: list[str]) -> pa.DictionaryArray:
    return arrow.dictionary(codes, texts, mask=codes < 0)


def _lanes(builder: TraceBuilder, et: EtFile, keep: Array, kind: Array, rank: int) -> Array:
    """Threads of host operations, streams of GPU work; one of each where the ET does not say."""
    on_host = (_integers(et, "is_cpu_op", 0) != 0)[keep]
    stream = np.where(kind == Kind.COMM, 1, 0)
    number = np.where(
        on_host,
        _integers(et, "tid", 0)[keep],
        np.where(_has(et, "stream")[keep], _integers(et, "stream", 0)[keep], stream),
    )
    device = np.where(on_host, -1, np.maximum(_integers(et, "device", 0)[keep], 0))
    first, code = gather.distinct(on_host.astype(np.int64), device, number)
    lanes = []
    for i in first.tolist():
        what, label = (LaneKind.THREAD, "thread") if on_host[i] else (LaneKind.STREAM, "stream")
        name = f"{label} {number[i]}"
        lanes.append(builder.lane(rank, what, int(number[i]), name, int(device[i])))
    return np.array(lanes, np.int32)[code]


def _annotations(et: EtFile, keep: Array, groups: dict[str, int]) -> dict[str, pa.Array]:
    """Annotation columns: what nodes communicate, and whatever else is one of the hub's."""
    columns = {"collective": _collectives(et, keep), "group": _groups_of(et, keep, groups)}
    size, peer = _integers(et, "comm_size", -1)[keep], _peers(et)[keep]
    columns["bytes"] = arrow.array(size, mask=size < 0)
    columns["peer"] = arrow.array(peer, pa.int32(), mask=peer < 0)
    for name in et.attr_names:
        declared = hub.ANNOTATION_TYPES.get(name)
        if declared is None or name in ("group", "peer", "collective"):
            continue
        if pa.types.is_dictionary(declared):
            codes, texts = et.texts(name)
            columns[name] = _dictionary(codes[keep], texts)
        elif pa.types.is_floating(declared):
            found = reals(et, name)[keep]
            columns[name] = arrow.array(found, declared, mask=np.isnan(found))
        else:
            found, known = _integers(et, name, 0)[keep], _has(et, name)[keep]
            if pa.types.is_int32(declared):
                known &= (found >= -(1 << 31)) & (found < 1 << 31)
            if name == "bytes":  # what we wrote beside comm_size, which is of communication only
                found, known = np.where(known, found, size), known | (size >= 0)
            columns[name] = arrow.array(np.where(known, found, 0), mask=~known)
    return columns


def _collectives(et: EtFile, keep: Array) -> pa.DictionaryArray:
    """What each node communicates: as we wrote it, else by its type."""
    names = [*_NAMES.values(), Collective.SEND, Collective.RECV]
    codes = np.full(len(et.id), -1, np.int64)
    comm_type = _integers(et, "comm_type", -1)
    for code, kind in enumerate(_NAMES):
        codes[(et.type == NodeType.COMM_COLL) & (comm_type == kind)] = code
    codes[et.type == NodeType.COMM_SEND] = len(_NAMES)
    codes[et.type == NodeType.COMM_RECV] = len(_NAMES) + 1
    stated, texts = et.texts("collective")
    codes = np.where(stated >= 0, stated + len(names), codes)
    return _dictionary(codes[keep], names + texts).cast(pa.string()).dictionary_encode()


def _groups_of(et: EtFile, keep: Array, groups: dict[str, int]) -> pa.Array:
    codes, texts = et.texts("pg_name")
    rows = np.array([groups.get(text, -1) for text in texts] + [-1])[codes]
    rows = np.where((codes < 0) & (et.type == NodeType.COMM_COLL), groups.get("", -1), rows)
    return arrow.array(rows[keep], pa.int32(), mask=rows[keep] < 0)


def _peers(et: EtFile) -> Array:
    """The other end of sends and receives; -1 of anything else."""
    sent, received = _integers(et, "comm_dst", -1), _integers(et, "comm_src", -1)
    peer = np.where(et.type == NodeType.COMM_SEND, sent, received)
    return np.where(np.isin(et.type, (NodeType.COMM_SEND, NodeType.COMM_RECV)), peer, -1)


def _arguments(
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
