"""PyTorch profiler traces: Kineto's JSON, in all versions since 2020, of any vendor's GPUs.

Format: reference is libkineto's ``output_json.cpp``; what differs between versions and vendors
stands in `kineto_tables`. A file is read in passes over columns: `kineto_events` makes columns of
the text, here they become nodes, `kineto_links` ties GPU work to its launch and backward to
forward operators, `kineto_comms` says what communicates, `kineto_samples` makes counter lanes,
`kineto_devices` says what GPUs they ran on, `plausible` and `kineto_launch` tell what cannot be true.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import plausible
from chopper_interop.build import TraceBuilder
from chopper_interop.columns import arrow
from chopper_interop.columns.members import is_any
from chopper_interop.converters import (
    kineto_comms,
    kineto_devices,
    kineto_events,
    kineto_header,
    kineto_launch,
    kineto_links,
    kineto_ranks,
    kineto_samples,
)
from chopper_interop.converters.kineto_json import write
from chopper_interop.converters.kineto_lanes import lanes
from chopper_interop.converters.kineto_tables import FLOWS, LAUNCH_FLOWS, ON_DEVICE
from chopper_interop.files import inputs
from chopper_interop.files.jsonscan import BAD_TIME, HAS_DUR, HAS_TS
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, Kind
from chopper_interop.schemas.meta import BOOTTIME, Meta, Source
from chopper_interop.schemas.names import COMM_KERNEL

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.kineto_events import TraceFile
    from chopper_interop.schemas.meta import Rank
    from chopper_interop.trace import Trace

NO_TIME = Fault(
    "event-without-time", Severity.LOSS, "Events without a start were left out.", events=True
)
BAD_DURATION = Fault(
    "duration-not-a-number", Severity.LOSS, "Durations that are no number were taken as 0."
)
NEGATIVE_DURATION = Fault("duration-negative", Severity.LOSS, "Negative durations were taken as 0.")
OTHER_PHASE = Fault(
    "event-phase-unknown",
    Severity.LOSS,
    "Events of a phase (`ph`) for which a trace has no place were left out: asynchronous ones, "
    "objects, clock marks.",
    events=True,
)
EMPTY = Fault("event-empty", Severity.INFO, "Empty objects are no events.", events=True)
OTHER_CATEGORY = Fault(
    "category-unknown", Severity.INFO, "Events of a category not known here are kept as `other`."
)
METADATA = Fault(
    "metadata-event", Severity.INFO, "Names of processes and threads became lanes.", events=True
)
FLOW = Fault(
    "flow-event",
    Severity.INFO,
    "Arrows were made into edges, or found again from correlation ids.",
    events=True,
)
OTHER_FLOW = Fault(
    "flow-unknown",
    Severity.LOSS,
    "Ends of arrows of a category that PyTorch does not write were left out.",
    events=True,
)

_KNOWN_PHASES = "XiIRMstfCE"
_TOOL_KEYS = {
    "roctracer_version": "roctracer",
    "rocprofiler-sdk_version": "rocprofiler-sdk",
    "cupti_version": "CUPTI",
}


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is a Kineto trace."""
    return kineto_events.header_of(head)


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one Kineto file.

    Parameters
    ----------
    paths
        The file, alone in a list.
    rank
        Rank to give it, over what it says itself. Not for files that hold several ranks.

    Returns
    -------
    Trace
        Of one rank, or of several if another tool fused several ranks into the file.

    Raises
    ------
    ReadError
        It cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    file = kineto_events.load(path, issues)
    owners = kineto_ranks.owners(file, rank, issues)
    chosen = _nodes_among(file, issues)
    builder = TraceBuilder(_meta(file, owners))
    _add_nodes(builder, file, owners, chosen, issues)
    kineto_samples.add(builder, file, owners, issues)
    trace = kineto_links.link(builder.finish(), file, owners, issues)
    trace = kineto_comms.annotate(trace, file, issues)
    plausible.check(trace, issues)
    kineto_launch.check(trace, file.header, issues)
    devices = kineto_devices.numbered(trace, file.header, issues)
    source = replace(trace.meta.sources[0], events=_events_in(file), nodes=trace.nodes.num_rows)
    clock = kineto_header.clock(file.header)
    clock = clock or (BOOTTIME if file.since_boot else trace.meta.clock)
    return trace.with_meta(clock=clock, issues=tuple(issues), sources=(source,), devices=devices)


def _events_in(file: TraceFile) -> int:
    return len(file.rows) + file.events.malformed + file.left_out


def _nodes_among(file: TraceFile, issues: IssueLog) -> Array:
    """Rows of the events that become nodes; the rest is counted."""
    timed = (file.rows["has"] & HAS_TS) != 0
    instant = file.phase("i", "I", "R") & ~kineto_samples.is_memory(file)
    candidates = file.phase("X") | instant
    issues.add(METADATA, np.count_nonzero(file.phase("M")))
    flow = file.phase("s", "t", "f")
    known = FLOWS | LAUNCH_FLOWS
    ours = np.isin(file.rows["cat"], [i for i, t in enumerate(file.texts) if t in known])
    issues.add(FLOW, np.count_nonzero(flow & ours))
    issues.add(OTHER_FLOW, np.count_nonzero(flow & ~ours), _example(file, flow & ~ours))
    other = ~file.phase(*_KNOWN_PHASES)
    empty = other & file.is_empty
    issues.add(EMPTY, np.count_nonzero(empty))
    other &= ~empty
    issues.add(OTHER_PHASE, np.count_nonzero(other), _example(file, other))
    lost = candidates & ~timed
    issues.add(NO_TIME, np.count_nonzero(lost), _example(file, lost))
    return np.flatnonzero(candidates & timed)


def _example(file: TraceFile, which: Array) -> str:
    """Where and what the first of the chosen events is."""
    rows = np.flatnonzero(which)
    if not rows.size:
        return ""
    return f"{file.name(rows[0])[:60]!r} at byte {file.rows[rows[0]]['at']}"


def _add_nodes(
    builder: TraceBuilder,
    file: TraceFile,
    owners: kineto_ranks.Owners,
    chosen: Array,
    issues: IssueLog,
) -> None:
    rows = file.rows[chosen]
    kind = _kinds(file, chosen, issues)
    correlation = _correlations(file, chosen, kind, fused=owners.fused)
    on_device = is_any(kind, ON_DEVICE)
    builder.nodes(
        kind=kind,
        name=_names(file, rows["name"]),
        rank=owners.rank[chosen],
        lane=lanes(builder, file, owners, chosen, kind, on_device),
        ts=rows["ts"] + file.base_ns,
        dur=_durations(file, chosen, issues),
        correlation=correlation,
        bytes=_payload(file, chosen, kind),
        args=(builder.text(file.events.buffer) + rows["args_at"], rows["args_len"]),
    )


def _kinds(file: TraceFile, chosen: Array, issues: IssueLog) -> Array:
    kind = file.kind[chosen].copy()
    names = file.rows["name"][chosen]
    comm = np.array([COMM_KERNEL.match(t) is not None for t in [*file.texts, ""]])
    kind[(kind == Kind.KERNEL) & comm[names]] = Kind.COMM
    instant = file.rows["ph"][chosen] != ord("X")
    kind[instant] = Kind.INSTANT
    unknown = kind == 0
    issues.add(OTHER_CATEGORY, np.count_nonzero(unknown), _example_of(file, chosen[unknown]))
    kind[unknown] = Kind.OTHER
    return kind


def _example_of(file: TraceFile, rows: Array) -> str:
    return f"{file.name(rows[0])[:60]!r} at byte {file.rows[rows[0]]['at']}" if rows.size else ""


def _names(file: TraceFile, numbers: Array) -> pa.DictionaryArray:
    """Names as a dictionary of those that nodes have, and no other text of the file."""
    used = np.unique(numbers)
    code = np.full(len(file.texts) + 1, -1, np.int32)
    code[used] = np.arange(len(used), dtype=np.int32)
    texts = [file.texts[i] if i >= 0 else "" for i in used.tolist()]
    return arrow.dictionary(code[numbers], texts)


def _durations(file: TraceFile, chosen: Array, issues: IssueLog) -> Array:
    rows = file.rows[chosen]
    dur = np.where(rows["has"] & HAS_DUR, rows["dur"], 0)
    span = rows["ph"] == ord("X")
    bad = span & (((rows["has"] & HAS_DUR) == 0) | ((rows["has"] & BAD_TIME) != 0))
    issues.add(BAD_DURATION, np.count_nonzero(bad), _example_of(file, chosen[bad]))
    negative = dur < 0
    issues.add(NEGATIVE_DURATION, np.count_nonzero(negative), _example_of(file, chosen[negative]))
    return np.maximum(dur, 0)


def _correlations(file: TraceFile, chosen: Array, kind: Array, *, fused: bool) -> Array:
    """Correlation ids of calls and GPU work; a fused file keeps the original ones aside."""
    tied = is_any(kind, (*CALLS, *GPU_WORK, Kind.GPU_SYNC))
    keys = ("correlation_raw", "correlation") if fused else ("correlation",)
    values, found = file.numbers(chosen[tied], *keys)
    best = np.full(values.shape[1], -1, np.int64)
    for value, present in zip(values[::-1], found[::-1], strict=True):
        best = np.where(present, value, best)
    correlation = np.full(len(chosen), -1, np.int64)
    correlation[tied] = best
    return correlation


def _payload(file: TraceFile, chosen: Array, kind: Array) -> pa.Array:
    """Bytes that copies and fills move."""
    moves = np.isin(kind, [int(Kind.MEMCPY), int(Kind.MEMSET)])
    values, found = file.numbers(chosen[moves], "bytes")
    payload = np.zeros(len(chosen), np.int64)
    unknown = np.ones(len(chosen), bool)
    payload[moves], unknown[moves] = values[0], ~found[0]
    return arrow.array(payload, mask=unknown)


_WORKER = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]*)_(?P<pid>\d+)(\.\d+)?\.pt\.trace\.json")


def _host_in_name(path: Path, ranks: tuple[Rank, ...]) -> str:
    """The host in a name as PyTorch's handler makes it, if its process is the file's own."""
    found = _WORKER.match(path.name)
    if found is None or [int(found["pid"])] != [r.pid for r in ranks]:
        return ""
    return found["host"]


def _meta(file: TraceFile, owners: kineto_ranks.Owners) -> Meta:
    header = file.header
    host = str(header.get("host_name", "")) or _host_in_name(file.path, owners.ranks)
    tools = [f"{tool} {header[key]}" for key, tool in _TOOL_KEYS.items() if key in header]
    facts = {k: str(v) for k, v in header.items() if isinstance(v, str | int | float)}
    return Meta(
        job=inputs.plain_name(file.path),
        ranks=tuple(replace(r, host=host) if host else r for r in owners.ranks),
        devices=kineto_devices.listed(header, host),
        sources=(Source(str(file.path), "kineto", " ".join(tools), size=file.path.stat().st_size),),
        clocks=kineto_header.fits(header),
        facts={k: v for k, v in facts.items() if k not in _NOT_FACTS},
    )


_NOT_FACTS = (
    "traceName",
    "displayTimeUnit",
    "baseTimeNanoseconds",
    "schemaVersion",
    "username",
    "written_by",
    kineto_header.CLOCK,
    kineto_header.FITS,
)

KINETO = Converter(
    name="kineto",
    description="PyTorch profiler trace (Kineto JSON)",
    versions="schema 1: 2020 legacy lists, torch 1.8.1 to 2.9, CUPTI, roctracer, rocprofiler-sdk; "
    "Chrome traces of JAX, TensorFlow, torch_npu",
    suffixes=(".json", ".json.gz"),
    sniff=sniff,
    read=read,
    write=write,
    carries="operators, annotations, Python stacks, runtime and driver calls, kernels, copies, "
    "fills, waits, memory and other counters, collectives with sizes and groups, launches, "
    "forward to backward; written: the same, counters of kernels as arguments, other edges counted",
)
