"""Reading ETs of any writer: our own come back with their exact times, others as well as they say.

Forms: protobuf messages of all schemas (`chakra_old` has those before today's), packed or not, and
both JSON forms (`chakra_json`). Where no node says when it started, `chakra_times` computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.build import TraceBuilder
from chopper_interop.clocks import relations
from chopper_interop.converters import chakra_files, chakra_json, chakra_old, chakra_times
from chopper_interop.converters.chakra_columns import (
    annotated,
    arguments,
    dictionary,
    kinds,
    lanes,
)
from chopper_interop.converters.chakra_decode import REAL_FIELDS, TEXT_FIELDS, EtFile, decode
from chopper_interop.converters.chakra_edges import edges
from chopper_interop.converters.chakra_values import WHOLE_FIELDS, integers, taken
from chopper_interop.errors import ReadError
from chopper_interop.files import inputs, outputs
from chopper_interop.issues import RANK_ASSUMED, Fault, IssueLog, Severity
from chopper_interop.schemas import hub
from chopper_interop.schemas.chakra import NodeType, message
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.schemas.meta import ASSUMED, COMPUTED, REALTIME, Meta, Rank, Source

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

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


Times = Callable[["Array", "Array"], tuple["Array", "Array", "Array"]]
"""Of ids of operations, and of all nodes: starts, durations, and which of the operations ran."""


def read(paths: list[Path]) -> Trace:
    """Read one rank's ET.

    Parameters
    ----------
    paths
        The file, and those of process groups if there are any.
    """
    return read_at(paths, None)


def read_at(paths: list[Path], at: Times | None) -> Trace:
    """Read one rank's ET, with the times that a simulation gave its nodes instead of its own.

    Parameters
    ----------
    paths
        The file, and those of process groups if there are any.
    at
        Gives the times; nodes that did not run are left out. None for the ET's own.
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
    if at is not None:
        ts, dur, ran = at(et.id[keep], et.id)
        keep, ts, dur = keep[ran], ts[ran], dur[ran]
        meta = replace(meta, clock=COMPUTED, origin_ns=0, clocks=())
    src, dst = edges(et, keep, issues)
    numbers = {name: builder.group(name, ranks) for name, ranks in told.items()}
    everyone = numbers.get(chakra_files.of_everyone(path, told), -1)
    kind = kinds(et)[keep]
    lane = lanes(builder, et, keep, kind, rank or 0)
    if at is None:
        ts, dur = chakra_times.times(et, keep, issues)
    if at is None and not chakra_times.measured(et):
        ts = chakra_times.scheduled(path, et.id[keep], lane, dur, (src, dst))
        issues.add(chakra_times.SCHEDULED, len(keep))
    builder.nodes(
        kind=kind,
        name=dictionary(*et.coded(et.name_at[keep], et.name_len[keep])),
        rank=rank or 0,
        lane=lane,
        ts=ts + meta.origin_ns,
        dur=dur,
        correlation=integers(et, "correlation", -1)[keep],
        args=arguments(builder, et, keep, taken(et, _COLUMNS, issues)),
        **annotated(et, keep, numbers, everyone),
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
    ours = facts.get("written_by") == outputs.MARK
    clock = (ours and facts.pop("clock", "")) or REALTIME
    fits = relations.from_text(facts.pop(CLOCKS, "")) if ours else ()
    return Meta(
        job=facts.get("job", job),
        origin_ns=stated if measured else 0,
        clock=clock if measured else COMPUTED,
        clocks=fits,
        ranks=(rank,),
        facts=facts,
    )


_MOST_DIGITS = 20
CLOCKS = "clocks"
"""Attribute of our metadata: JSON of how clocks were brought together."""


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
