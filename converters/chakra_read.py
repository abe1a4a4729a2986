"""Reading ETs of any writer: our own come back with their exact times, others as well as they say.

MLCommons' converter gives no start times at all. What it does say, durations and dependencies,
gives the earliest schedule, which is noted as an assumption.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import arrow, gather, inputs
from chopper_interop.build import TraceBuilder
from chopper_interop.compiled import jit
from chopper_interop.converters.chakra_decode import REAL_FIELDS, TEXT_FIELDS, EtFile, decode
from chopper_interop.errors import ReadError
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas import hub
from chopper_interop.schemas.chakra import CommType, NodeType, message
from chopper_interop.schemas.kinds import Collective, EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import ASSUMED, Meta, Rank, Source

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
SCHEDULED = Fault(
    "et-times-scheduled",
    Severity.INFO,
    "The ET has no start times: each node is put at the earliest time that its dependencies allow.",
)

_SUFFIX = re.compile(r"^(?P<job>.*)\.(?P<rank>\d+)\.et$")
_GROUPS = ".comm_groups.json"
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
_TAKEN = (
    "is_cpu_op", "start_ns", "duration_ns", "comm_type", "comm_size", "comm_src", "comm_dst",
    "comm_tag", "pg_name", "stream", "tid", "device", "correlation", "kind", "collective",
)  # fmt: skip
"""Attributes that become columns; the others stay with the node as its arguments."""
_GROUPS_JSON = re.compile(rb'\s*\{\s*"\d+"\s*:\s*\[[\s\d,]*[\],]')


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is an ET, or the file of process groups beside one."""
    if _GROUPS_JSON.match(head):
        return True
    size, at = _varint(head)
    if at < 0 or size > len(head) - at:
        return False
    second, behind = _varint(head[at + size :])
    node = head[at + size + behind :][:second]
    try:
        meta = message("GlobalMetadata").FromString(head[at : at + size])
        whole = len(node) == second and message("Node").FromString(node)
    except Exception:  # noqa: BLE001 - protobuf's own error class differs between its versions
        return False
    known = meta.version or meta.attr
    return bool(known or size == 0) and bool(behind > 0 and (whole and whole.type))


def group(paths: list[Path]) -> list[list[Path]]:
    """Each rank's file is a source; the file of groups goes with the first of them."""
    sources = [[path] for path in paths if not path.name.endswith(_GROUPS)]
    for path in paths:
        if path.name.endswith(_GROUPS):
            job = path.name.removesuffix(_GROUPS)
            mine = [s for s in sources if s[0].name.startswith(f"{job}.")]
            for source in mine or [[]]:
                source.append(path)
    return [source for source in sources if source]


def read(paths: list[Path]) -> Trace:
    """Read one rank's ET.

    Parameters
    ----------
    paths
        The file, and if there is one the file of process groups.
    """
    files = [p for p in paths if not p.name.endswith(_GROUPS)]
    if not files:
        raise ReadError("process groups alone are no trace", path=paths[0])
    path = files[0]
    issues = IssueLog(str(path))
    et = decode(np.ascontiguousarray(inputs.read(path, issues)))
    if et.broken_at >= 0:
        issues.add(BROKEN, 1, f"byte {et.broken_at}")
    issues.add(UNREADABLE, np.count_nonzero(et.attr_name < 0))
    named = _SUFFIX.match(path.name)
    rank = int(named.group("rank")) if named else 0
    meta = _facts(et, path, rank, known_by="name" if named else ASSUMED)
    builder = TraceBuilder(meta)
    keep = np.flatnonzero(et.type != NodeType.METADATA)
    issues.add(METADATA_NODE, len(et.id) - len(keep))
    src, dst = _edges(et, keep, issues)
    ts, dur = _times(et, keep, src, dst, issues)
    kind = _kinds(et)[keep]
    groups = _group_rows(builder, [p for p in paths if p.name.endswith(_GROUPS)])
    builder.nodes(
        kind=kind,
        name=_dictionary(*et.coded(et.name_at[keep], et.name_len[keep])),
        rank=rank,
        lane=_lanes(builder, et, keep, kind, rank),
        ts=ts + meta.origin_ns,
        dur=dur,
        correlation=_integers(et, "correlation", -1)[keep],
        args=_arguments(builder, et, keep),
        **_annotations(et, keep, groups),
    )
    builder.edges(src, dst, EdgeKind.DEPENDENCY)
    trace = builder.finish()
    events = len(et.id)
    source = Source(str(path), "chakra", size=path.stat().st_size, events=events, nodes=len(keep))
    return trace.with_meta(issues=tuple(issues), sources=(source,))


def _varint(raw: bytes) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(raw[:10]):
        value |= (byte & 127) << (7 * i)
        if byte < 128:  # noqa: PLR2004
            return value, i + 1
    return 0, -1


def _facts(et: EtFile, path: Path, rank: int, known_by: str) -> Meta:
    """What the first message says."""
    facts: dict[str, str] = {}
    try:
        parsed = message("GlobalMetadata").FromString(et.metadata)
    except Exception as error:
        raise ReadError(f"its first message is broken: {error}", path=path, at="byte 0") from error
    for attribute in parsed.attr:
        which = attribute.WhichOneof("value")
        facts[attribute.name] = str(getattr(attribute, which)) if which else ""
    if parsed.version:
        facts["et_version"] = parsed.version
    origin = facts.pop("origin_ns", "0")
    return Meta(
        job=facts.get("job", path.name.split(".")[0]),
        origin_ns=int(origin) if origin.lstrip("-").isdigit() else 0,
        ranks=(Rank(rank, known_by=known_by),),
        facts=facts,
    )


def _integers(et: EtFile, attribute: str, missing: int) -> Array:
    values = np.full(len(et.id), missing, np.int64)
    nodes, fields, found = et.attribute(attribute)
    whole = ~np.isin(fields, REAL_FIELDS + TEXT_FIELDS)
    values[nodes[whole]] = found[whole]
    return values


def _has(et: EtFile, attribute: str) -> Array:
    has = np.zeros(len(et.id), bool)
    has[et.attribute(attribute)[0]] = True
    return has


def _edges(et: EtFile, keep: Array, issues: IssueLog) -> tuple[Array, Array]:
    """Dependencies among the kept nodes, by their places there; no circles."""
    ids = np.concatenate([et.data, et.ctrl])
    rows = np.arange(len(et.id))
    dst = np.concatenate(
        [np.repeat(rows, np.diff(et.data_first)), np.repeat(rows, np.diff(et.ctrl_first))]
    )
    order = np.argsort(et.id, kind="stable")
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
    first, after = gather.lists(src, dst, len(keep))
    waits = np.bincount(dst, minlength=len(keep))
    stuck = gather.unreached(waits, first, after)
    circular = (src >= dst) & (stuck[src] & stuck[dst])  # what is left points forward
    issues.add(CIRCULAR, np.count_nonzero(circular))
    return src[~circular], dst[~circular]


def _times(
    et: EtFile, keep: Array, src: Array, dst: Array, issues: IssueLog
) -> tuple[Array, Array]:
    """Starts and durations in nanoseconds: as stated, else by the dependencies."""
    dur = np.where(_has(et, "duration_ns"), _integers(et, "duration_ns", 0), et.duration_us * 1000)
    start = np.where(_has(et, "start_ns"), _integers(et, "start_ns", 0), et.start_us * 1000)
    ts, dur = start[keep], np.maximum(dur[keep], 0)
    if len(keep) > 1 and not ts.any() and dur.any():
        issues.add(SCHEDULED, len(keep))
        first, after = gather.lists(src, dst, len(keep))
        ts = _earliest(dur, np.bincount(dst, minlength=len(keep)), first, after)
    return ts, dur


@jit
def _earliest(dur: Array, waits: Array, first: Array, after: Array) -> Array:
    """The earliest start of each node of a graph without circles."""
    n = len(dur)
    start = np.zeros(n, np.int64)
    left = waits.copy()
    stack = np.empty(n, np.int64)
    top = 0
    for i in range(n):
        if left[i] == 0:
            stack[top] = i
            top += 1
    while top:
        top -= 1
        i = stack[top]
        for e in range(first[i], first[i + 1]):
            d = after[e]
            start[d] = max(start[d], start[i] + dur[i])
            left[d] -= 1
            if left[d] == 0:
                stack[top] = d
                top += 1
    return start


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
        else:
            columns[name] = arrow.array(_integers(et, name, 0)[keep], mask=~_has(et, name)[keep])
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


def _group_rows(builder: TraceBuilder, paths: list[Path]) -> dict[str, int]:
    """Rows of the process groups by their names in the ET."""
    listed = {name: ranks for path in paths for name, ranks in _listed(path).items()}
    return {name: builder.group(name, ranks) for name, ranks in listed.items()}


def _listed(path: Path) -> dict[str, list[int]]:
    try:
        listed = json.loads(path.read_text())
        return {str(name): [int(rank) for rank in ranks] for name, ranks in listed.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ReadError(f"it is no object of lists of ranks: {error}", path=path) from error


def _arguments(builder: TraceBuilder, et: EtFile, keep: Array) -> tuple[Array, Array]:
    """Attributes that have no column, as JSON objects."""
    taken = {*_TAKEN, *hub.ANNOTATION_TYPES}
    others = [n for n, name in enumerate(et.attr_names) if name not in taken]
    rows = np.flatnonzero(np.isin(et.attr_name, others))
    found: dict[int, dict[str, Any]] = {}
    for row in rows.tolist():
        node, name = int(et.attr_node[row]), et.attr_names[int(et.attr_name[row])]
        found.setdefault(node, {})[name] = _value(et, row)
    raws = {node: json.dumps(told).encode() for node, told in found.items()}
    buffer = b"".join(raws.values())
    start = builder.text(np.frombuffer(bytearray(buffer), np.uint8)) if buffer else 0
    at, length = np.zeros(len(et.id), np.int64), np.zeros(len(et.id), np.int32)
    rows = np.array(list(raws), np.int64)
    length[rows] = [len(r) for r in raws.values()]
    at[rows] = start + np.cumsum(length[rows]) - length[rows]
    return at[keep], length[keep]


def _value(et: EtFile, row: int) -> Any:
    field, value = int(et.attr_field[row]), int(et.attr_value[row])
    if field in TEXT_FIELDS:
        return et.text(value, int(et.attr_len[row]))
    if field in REAL_FIELDS:
        return float(np.int64(value).view(np.float64))
    return bool(value) if field == 27 else value  # noqa: PLR2004
