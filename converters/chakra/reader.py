"""Read ETs of any writer; those of this project come back with their exact times.

Forms: protobuf messages of all schemas (`old` has the earlier ones), packed or not, and
both JSON forms (`json`). Where no node has a start time, `times` computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from chopper_interop.arrays import Array, arrow
from chopper_interop.build import TraceBuilder
from chopper_interop.clocks import relations
from chopper_interop.converters.chakra import extents, files, json, old, recorded, times
from chopper_interop.converters.chakra.arguments import arguments
from chopper_interop.converters.chakra.columns import (
    annotation_columns,
    causes,
    dictionary,
    kinds,
    lanes,
)
from chopper_interop.converters.chakra.decode import REAL_FIELDS, TEXT_FIELDS, EtFile, decode
from chopper_interop.converters.chakra.edges import (
    DANGLING,
    Edges,
    ReadNodes,
    edges,
    edges_of_nodes,
)
from chopper_interop.converters.chakra.values import INTEGER_FIELDS, in_columns, integers
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs, outputs
from chopper_interop.issues import RANK_ASSUMED, Fault, IssueLog
from chopper_interop.schemas import hub
from chopper_interop.schemas.chakra import Cause, NodeType, message_class
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import ASSUMED, COMPUTED, REALTIME, Meta, Rank, Source
from chopper_interop.trace import Trace

BROKEN = Fault.loss("et-cut-short", "The file breaks off; all nodes before that are read.")
METADATA_NODE = Fault.info_of_events(
    "et-metadata-node", "Nodes that hold facts about the trace are no operations."
)
UNREADABLE = Fault.loss(
    "et-attribute-unreadable",
    "Attributes that are cut short, have no name, or have one beyond the first 4,096 names of a file, were left out.",
)
EMPTY_NODE = Fault.info_of_events(
    "et-node-empty", "Empty messages, at which MLCommons' readers stop, were left out."
)
NO_METADATA = Fault.info(
    "et-without-metadata",
    "The file begins with a node, not with a GlobalMetadata; feeders lose that node.",
)
PIECES = Fault.info_of_events(
    "et-pieces",
    "Pieces and returns of host operations, delays and messages of a few bytes that were made for simulators are "
    "no nodes here: their time is in that of the operations and the work that were recorded.",
)

_NUMBERS = (
    "is_cpu_op", "start_ns", "duration_ns", "comm_type", "comm_size", "comm_src", "comm_dst",
    "comm_tag", "stream", "tid", "device", "correlation", "npu",
)  # fmt: skip
_TEXTS = ("pg_name", "kind", "collective")


def _value_fields(declared: pa.DataType) -> tuple[int, ...]:
    """Fields of attribute values that fit a column of this type."""
    if pa.types.is_dictionary(declared) or pa.types.is_string(declared):
        return TEXT_FIELDS
    return REAL_FIELDS + INTEGER_FIELDS if pa.types.is_floating(declared) else INTEGER_FIELDS


_COLUMNS = (
    {name: _value_fields(declared) for name, declared in hub.ANNOTATION_TYPES.items()}
    | dict.fromkeys(_NUMBERS, INTEGER_FIELDS)
    | dict.fromkeys(_TEXTS, TEXT_FIELDS)
    | dict.fromkeys(recorded.ATTRIBUTES, recorded.FIELDS)
)
"""Attributes that become columns, and the fields of their values; others become arguments."""


Times = Callable[["Array", "Array"], tuple["Array", "Array", "Array"]]
"""Function of the ids of operations and the ids of all nodes: starts and durations of the
operations, and a mask of those that ran."""
Lanes = Callable[["Array", "Array"], "Array"]
"""Function of rows of a file and their kinds: lane of each."""


def read(paths: list[Path]) -> Trace:
    """Read one rank's ET.

    Parameters
    ----------
    paths
        The file, and those of process groups if there are any.
    """
    return read_at(paths, None)


def read_at(paths: list[Path], simulated: Times | None) -> Trace:
    """Read one rank's ET at its nodes' simulated times.

    Parameters
    ----------
    paths
        The file, and those of process groups if there are any.
    simulated
        The times; nodes that did not run are left out. None for the ET's own times.
    """
    groups = [p for p in paths[1:] if files.is_groups(p)]
    path = paths[0]
    if path in groups or (not groups and files.is_groups(path)):
        raise ReadError("process groups alone are no trace", path=path)
    if files.stream_of(path) is not None:
        raise ReadError(
            "it holds the work of one stream, for a simulator",
            path=path,
            hint="the ET of the rank has that too: give the folder",
        )
    issues = IssueLog(str(path))
    et, lost = _file(path, issues)
    listed = files.process_groups(groups, issues)
    job, rank = files.job_and_rank(path)
    if rank is None:
        issues.add(RANK_ASSUMED)
    meta = _meta(et, path, job, Rank(rank or 0, known_by=ASSUMED if rank is None else "name"))
    builder = TraceBuilder(meta)
    keep = _operations(et, issues)
    if not len(keep):
        raise ReadError("it holds no nodes", path=path)
    if simulated is not None:
        ts, dur, ran = simulated(et.id[keep], et.id)
        keep, ts, dur = keep[ran], ts[ran], dur[ran]
        meta = replace(meta, clock=COMPUTED, origin_ns=0, clocks=())
    lanes_of = partial(lanes, builder, et, rank=rank or 0, is_simulated=simulated is not None)
    dependencies = edges(et, keep, issues)
    of_job = None
    if simulated is not None:
        read = _simulated(et, keep, lanes_of, (ts, dur), dependencies, issues)
    elif times.measured(et):
        of_job = recorded.decoded(et, issues)
        read = _measured(et, keep, lanes_of, dependencies, of_job, issues)
    else:
        read = _scheduled(et, path, keep, lanes_of, dependencies, issues)
    keep, nodes = read.keep, read.nodes
    numbers = {name: builder.group(name, ranks) for name, ranks in listed.items()}
    all_ranks = numbers.get(files.all_ranks_group(path, listed), -1)
    builder.nodes(
        kind=nodes.kind,
        name=dictionary(*_names(et, keep)),
        rank=rank or 0,
        lane=nodes.lane,
        ts=nodes.ts + meta.origin_ns,
        dur=nodes.dur,
        correlation=nodes.correlation,
        args=arguments(builder, et, keep, in_columns(et, _COLUMNS, issues)),
        **annotation_columns(et, keep, numbers, all_ranks),
    )
    for ends in read.edges:
        builder.edges(*ends)
    added = _add_recorded(builder, of_job, keep, len(et.id), meta, issues) if of_job else 0
    trace = builder.finish()
    events, size = len(et.id) + lost, path.stat().st_size
    source = Source(str(path), "chakra", size=size, events=events, nodes=len(keep) + added)
    return trace.with_meta(issues=tuple(issues), sources=(source,))


def _add_recorded(
    builder: TraceBuilder,
    of_job: recorded.Recorded,
    keep: Array,
    nodes: int,
    meta: Meta,
    issues: IssueLog,
) -> int:
    """Add operations and edges of the recorded job; return the number of operations.

    Parameters
    ----------
    keep
        Rows of the file that are the first nodes of the trace.
    nodes
        Number of all rows, which are ids too.
    """
    rank, operations = meta.ranks[0].rank, len(of_job.kind)
    tids, thread = np.unique(of_job.tid, return_inverse=True)
    rows = [builder.lane(rank, LaneKind.THREAD, tid, f"thread {tid}") for tid in tids.tolist()]
    builder.nodes(
        kind=of_job.kind.astype(np.uint8),
        name=dictionary(of_job.name, of_job.names),
        rank=rank,
        lane=np.array(rows, np.int32)[thread] if operations else -1,
        ts=of_job.start_ns + meta.origin_ns,
        dur=of_job.duration_ns,
        correlation=of_job.correlation,
        iteration=arrow.negative_to_null(of_job.iteration),
    )
    row = np.full(nodes + operations, -1, np.int64)
    row[keep] = np.arange(len(keep))
    row[nodes:] = len(keep) + np.arange(operations)
    src, dst = row[of_job.src], row[of_job.dst]
    inside = (src >= 0) & (dst >= 0)
    issues.add(DANGLING, np.count_nonzero(~inside))
    for kind in np.unique(of_job.edge).tolist():
        those = inside & (of_job.edge == kind)
        builder.edges(src[those], dst[those], kind)
    return operations


class _Read(NamedTuple):
    """Rows of a file that become nodes, their columns, and edges by kind."""

    keep: Array
    nodes: ReadNodes
    edges: list[Edges]


def _measured(
    et: EtFile, keep: Array, lanes_of: Lanes, dependencies: tuple[Array, Array],
    of_job: recorded.Recorded | None, issues: IssueLog,
) -> _Read:  # fmt: skip
    """Nodes at their measured times; without what the writer made for simulators where the file has the job itself."""
    if of_job is not None:
        work = (causes(et) == Cause.WORK)[keep]
        issues.add(PIECES, np.count_nonzero(~work))
        keep = keep[work]
    ts, dur = times.times(et, keep, issues)
    if of_job is not None:
        began_ns = np.zeros(len(et.id), np.int64)
        began_ns[keep] = ts
        began_ns[of_job.node] = of_job.began_ns
        ts = began_ns[keep]
    kind = kinds(et)[keep]
    nodes = ReadNodes(kind, lanes_of(keep, kind), ts, dur, _correlations(et, keep))
    return _Read(keep, nodes, [] if of_job else edges_of_nodes(nodes, dependencies))


def _scheduled(
    et: EtFile, path: Path, keep: Array, lanes_of: Lanes, dependencies: tuple[Array, Array],
    issues: IssueLog,
) -> _Read:  # fmt: skip
    """Nodes at times that follow from durations and dependencies."""
    _, dur = times.times(et, keep, issues)
    kind = kinds(et)[keep]
    lane = lanes_of(keep, kind)
    ts = times.scheduled(path, et.id[keep], lane, dur, dependencies)
    issues.add(times.SCHEDULED, len(keep))
    nodes = ReadNodes(kind, lane, ts, dur, _correlations(et, keep))
    return _Read(keep, nodes, edges_of_nodes(nodes, dependencies))


def _simulated(
    et: EtFile, keep: Array, lanes_of: Lanes, at: tuple[Array, Array],
    dependencies: tuple[Array, Array], issues: IssueLog,
) -> _Read:  # fmt: skip
    """Nodes at their simulated times; operations of ETs with measured times last as long as their pieces."""
    ts, dur = at
    kind = kinds(et)[keep]
    lane, operation_of = lanes_of(keep, kind), np.full(len(keep), -1)
    if times.measured(et):
        piece = kind == Kind.HOST_GAP
        operation = (integers(et, "is_cpu_op", 0) != 0)[keep] & ~piece
        name = _names(et, keep)[0].astype(np.int64)
        recorded = extents.Recorded(*times.times(et, keep, issues), lane, name, operation, piece)
        end, operation_of = extents.simulated_ends(ts + dur, recorded)
        dur = end - ts
    pieces = np.flatnonzero(operation_of >= 0)
    nodes = ReadNodes(kind, lane, ts, dur, _correlations(et, keep))
    ended = (pieces, operation_of[pieces], EdgeKind.SYNC)
    return _Read(keep, nodes, [ended, *edges_of_nodes(nodes, dependencies)])


def _names(et: EtFile, keep: Array) -> tuple[Array, list[str]]:
    """Numbers of the nodes' names, and the names."""
    return et.coded(et.name_at[keep], et.name_len[keep])


def _correlations(et: EtFile, keep: Array) -> Array:
    """Number that calls and what they launched have in common; -1 of others."""
    return integers(et, "correlation", -1)[keep]


def _file(path: Path, issues: IssueLog) -> tuple[EtFile, int]:
    """Decode a file of any form; also count its nodes that could not be decoded."""
    raw, lost = inputs.read(path, issues), 0
    if files.is_json(bytes(raw[: inputs.HEAD_BYTES])):
        raw, lost = json.messages(raw, issues)
    et = decode(np.ascontiguousarray(old.to_present_schema(raw)))
    if et.broken_at >= 0:
        issues.add(BROKEN, 1, f"byte {et.broken_at}")
    issues.add(UNREADABLE, np.count_nonzero(et.attr_name < 0))
    if not et.has_metadata:
        issues.add(NO_METADATA)
    return et, lost


def _operations(et: EtFile, issues: IssueLog) -> Array:
    """Rows of the nodes that are operations."""
    metadata = et.type == NodeType.METADATA
    empty = (et.id == 0) & (et.type == 0) & (et.name_len == 0)
    empty &= (et.start_us == 0) & (et.duration_us == 0)
    empty &= (np.diff(et.data_first) == 0) & (np.diff(et.ctrl_first) == 0)
    empty[et.attr_node] = False
    issues.add(METADATA_NODE, np.count_nonzero(metadata))
    issues.add(EMPTY_NODE, np.count_nonzero(empty))
    return np.flatnonzero(~metadata & ~empty)


def _meta(et: EtFile, path: Path, job: str, rank: Rank) -> Meta:
    """Read the metadata in the first message."""
    facts: dict[str, str] = {}
    try:
        parsed = message_class("GlobalMetadata").FromString(_with_version(et.metadata))
    except Exception as error:
        raise ReadError(f"its first message is broken: {error}", path=path, at="byte 0") from error
    for attribute in parsed.attr:
        field = attribute.WhichOneof("value")
        value = getattr(attribute, field) if field else ""
        facts[attribute.name] = str(list(value.values) if hasattr(value, "values") else value)
    if parsed.version:
        facts["et_version"] = parsed.version
    origin = facts.pop("origin_ns", "0")
    is_number = origin.lstrip("-").isdigit() and len(origin) < _MAX_DIGITS
    origin_ns = int(origin) if is_number else 0
    measured = times.measured(et)
    marked = facts.get("written_by") == outputs.MARK
    clock = (marked and facts.pop("clock", "")) or REALTIME
    fits = relations.from_text(facts.pop(CLOCKS, "")) if marked else ()
    return Meta(
        job=facts.get("job", job),
        origin_ns=origin_ns if measured else 0,
        clock=clock if measured else COMPUTED,
        clocks=fits,
        ranks=(rank,),
        facts=facts,
    )


_MAX_DIGITS = 20
"""Digits that a number of 64 bits can have."""
CLOCKS = "clocks"
"""Attribute of metadata by this project: JSON of the relations between clocks."""


def _with_version(metadata: bytes) -> bytes:
    """GlobalMetadata in the present form; until the end of 2023 its attributes were in field 1."""
    try:
        parsed = files.fields(metadata)
    except DecodeError:
        return metadata
    first = [value for number, _, value in parsed if number == 1]
    if not all(isinstance(value, bytes) and value[:1] == b"\n" for value in first):
        return metadata
    converted = message_class("GlobalMetadata")()
    for value in first:
        converted.attr.add().MergeFromString(value)
    for number, _, value in parsed:
        if number == 2 and isinstance(value, bytes):  # noqa: PLR2004
            converted.attr.add().MergeFromString(value)
    return bytes(converted.SerializeToString())
