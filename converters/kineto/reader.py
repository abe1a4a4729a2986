"""Reading a Kineto trace: its events become nodes, edges, lanes, samples and process groups.

A file is read in passes over columns. First its text becomes a table of events, then these become
nodes on lanes. Later passes add the edges (launches, forward to backward), what communication
kernels communicate, and the samples of counters; the last ones note what cannot be true.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import sanity_checks
from chopper_interop.arrays import arrow, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.kineto import (
    communication,
    edges,
    launch_checks,
    samples,
    trace_file,
)
from chopper_interop.converters.kineto import (
    header as kineto_header,
)
from chopper_interop.converters.kineto import (
    ranks as kineto_ranks,
)
from chopper_interop.converters.kineto.categories import (
    FLOWS,
    LAUNCH_FLOWS,
    ON_DEVICE,
    OPERATOR_FLOWS,
    fill_kinds,
)
from chopper_interop.converters.kineto.ranks import lane_of_events
from chopper_interop.edges.communication import communicates, recognise
from chopper_interop.io import inputs
from chopper_interop.io.json_events import BAD_TIME, HAS_DUR, HAS_TS
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, Kind
from chopper_interop.schemas.meta import BOOTTIME, WORLD_SIZE, Meta, Source
from chopper_interop.schemas.names import STEP_RANGE

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from chopper_interop.arrays.types import Array
    from chopper_interop.converters.kineto.trace_file import TraceFile
    from chopper_interop.schemas.meta import Rank
    from chopper_interop.trace import Trace

NO_TIME = Fault.loss_of_events("event-without-time", "Events without a start were left out.")
BAD_DURATION = Fault.loss(
    "duration-not-a-number", "Durations that are not numbers were taken as 0."
)
NEGATIVE_DURATION = Fault.loss("duration-negative", "Negative durations were taken as 0.")
OTHER_PHASE = Fault.loss_of_events(
    "event-phase-unknown",
    "Events of a phase (`ph`) that a trace cannot hold were left out: asynchronous events, "
    "objects, clock marks.",
)
EMPTY = Fault.info_of_events("event-empty", "Empty objects are not events.")
OTHER_CATEGORY = Fault.info(
    "category-unknown", "Events of an unknown category are kept as `other`."
)
METADATA = Fault.info_of_events("metadata-event", "Names of processes and threads became lanes.")
FLOW = Fault.info_of_events(
    "flow-event", "Arrows became edges, or are implied by correlation ids or by other arrows."
)
OTHER_FLOW = Fault.loss_of_events(
    "flow-unknown", "Ends of arrows of a category that PyTorch does not write were left out."
)

_KNOWN_PHASES = "XiIRMstfCE"
_EXAMPLE_LENGTH = 60
"""Characters of a name in a message. Chosen: a line holds them."""
_TOOL_KEYS = {
    "roctracer_version": "roctracer",
    "rocprofiler-sdk_version": "rocprofiler-sdk",
    "cupti_version": "CUPTI",
}
_NOT_FACTS = (
    "traceName", "displayTimeUnit", "baseTimeNanoseconds", "schemaVersion", "username",
    "written_by", kineto_header.CLOCK, kineto_header.FITS,
)  # fmt: skip
"""Members of the header that are held elsewhere, or are private, as the name of the user is."""
_WORKER = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]*)_(?P<pid>\d+)(\.\d+)?\.pt\.trace\.json")
"""File name as PyTorch's ``tensorboard_trace_handler`` makes it: host, process, time."""


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one Kineto file.

    Parameters
    ----------
    paths
        The file, alone in a list.
    rank
        Rank of the file, in place of the one that it states. Not for files of several ranks.

    Returns
    -------
    Trace
        Of one rank, or of several if another tool fused several ranks into the file.

    Raises
    ------
    ReadError
        The file cannot be read at all. All other losses are counted in ``meta.issues``.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    file = trace_file.load(path, issues)
    unknown = np.flatnonzero((file.kind == 0) & (file.columns["cat"] < 0) & file.phase("X"))
    if unknown.size:
        fill_kinds(file, unknown)
    trace_file.note_bind_ids(file, issues)
    owners = kineto_ranks.assign_ranks(file, rank, issues)
    rows = _node_rows(file, issues)
    builder = TraceBuilder(_meta(file, owners))
    _add_nodes(builder, file, owners, rows, issues)
    samples.add_samples(builder, file, owners, issues)
    trace = edges.add_edges(builder.finish(), file, owners, issues)
    trace = communication.add_communication(recognise(trace), file, issues)
    sanity_checks.check(trace, issues)
    launch_checks.check_launches(trace, file.header, issues)
    devices = kineto_header.devices_of_events(trace, file.header, issues)
    source = replace(trace.meta.sources[0], events=file.event_count, nodes=trace.nodes.num_rows)
    clock = kineto_header.clock(file.header)
    clock = clock or (BOOTTIME if file.since_boot else trace.meta.clock)
    return trace.with_meta(clock=clock, issues=tuple(issues), sources=(source,), devices=devices)


def read_chrome_trace(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read a Chrome trace of another program than PyTorch; parameters as of `read`."""
    trace = read(paths, rank=rank)
    return trace.with_meta(
        sources=tuple(replace(source, format="chrome-trace") for source in trace.meta.sources)
    )


def _node_rows(file: TraceFile, issues: IssueLog) -> Array:
    """Rows of the events that become nodes; all others but samples and ends are counted here."""
    timed = (file.columns["has"] & HAS_TS) != 0
    instant = file.phase("i", "I", "R") & ~samples.is_memory(file)
    candidates = file.phase("X") | instant
    issues.add(METADATA, np.count_nonzero(file.phase("M")))
    flow = file.phase("s", "t", "f")
    known_codes = [
        i for i, t in enumerate(file.texts) if t in FLOWS | LAUNCH_FLOWS | OPERATOR_FLOWS
    ]
    known_flow = np.isin(file.columns["cat"], known_codes)
    issues.add(FLOW, np.count_nonzero(flow & known_flow))
    issues.add(OTHER_FLOW, np.count_nonzero(flow & ~known_flow), _example(file, flow & ~known_flow))
    other = np.flatnonzero(~file.phase(*_KNOWN_PHASES))
    empty = file.is_empty(other)
    issues.add(EMPTY, np.count_nonzero(empty))
    other = other[~empty]
    issues.add(OTHER_PHASE, len(other), _example_of_rows(file, other))
    lost = candidates & ~timed
    issues.add(NO_TIME, np.count_nonzero(lost), _example(file, lost))
    return np.flatnonzero(candidates & timed)


def _example(file: TraceFile, mask: Array) -> str:
    """Name and position of the first of the marked events; empty if there is none."""
    return _example_of_rows(file, np.flatnonzero(mask))


def _example_of_rows(file: TraceFile, rows: Array) -> str:
    if not rows.size:
        return ""
    return f"{file.name(rows[0])[:_EXAMPLE_LENGTH]!r} at byte {file.columns['at'][rows[0]]}"


def _add_nodes(
    builder: TraceBuilder,
    file: TraceFile,
    owners: kineto_ranks.Owners,
    rows: Array,
    issues: IssueLog,
) -> None:
    columns = file.columns
    kind = _kinds(file, rows, issues)
    correlation = _correlations(file, rows, kind, fused=owners.fused)
    on_device = is_any(kind, ON_DEVICE)
    builder.nodes(
        kind=kind,
        name=_names(file, columns["name"][rows]),
        rank=owners.rank[rows],
        lane=lane_of_events(builder, file, owners, rows, kind, on_device),
        ts=columns["ts"][rows] + file.base_ns,
        dur=_durations(file, rows, issues),
        correlation=correlation,
        bytes=_moved_bytes(file, rows, kind),
        args=(
            columns["args_at"][rows] + builder.text(file.events.buffer),
            columns["args_len"][rows],
        ),
    )


def _kinds(file: TraceFile, rows: Array, issues: IssueLog) -> Array:
    """Kind of each node, by category, and for communication kernels by name."""
    kind = file.kind[rows].copy()
    names = file.columns["name"][rows]
    of_kernels = gather.unique_codes(names[kind == Kind.KERNEL])
    is_comm_name = np.zeros(len(file.texts) + 1, np.bool_)
    is_comm_name[of_kernels] = [communicates(file.texts[i]) for i in of_kernels.tolist()]
    kind[(kind == Kind.KERNEL) & is_comm_name[names]] = Kind.COMM
    is_step = np.array([t.startswith(STEP_RANGE) for t in [*file.texts, ""]])
    kind[(kind == Kind.CPU_OP) & is_step[names]] = Kind.ANNOTATION  # an operator until mid-2022
    instant = file.columns["ph"][rows] != ord("X")
    kind[instant] = Kind.INSTANT
    unknown = kind == 0
    issues.add(OTHER_CATEGORY, np.count_nonzero(unknown), _example_of_rows(file, rows[unknown]))
    kind[unknown] = Kind.OTHER
    return kind


def _names(file: TraceFile, numbers: Array) -> pa.DictionaryArray:
    """Names as a dictionary of those that nodes have, and no other text of the file."""
    used = np.unique(numbers)
    code = np.full(len(file.texts) + 1, -1, np.int32)
    code[used] = np.arange(len(used), dtype=np.int32)
    texts = [file.texts[i] if i >= 0 else "" for i in used.tolist()]
    return arrow.dictionary(code[numbers], texts)


def _durations(file: TraceFile, rows: Array, issues: IssueLog) -> Array:
    has = file.columns["has"][rows]
    dur = np.where(has & HAS_DUR, file.columns["dur"][rows], 0)
    span = file.columns["ph"][rows] == ord("X")
    bad = span & (has & (HAS_DUR | BAD_TIME) != HAS_DUR)
    issues.add(BAD_DURATION, np.count_nonzero(bad), _example_of_rows(file, rows[bad]))
    negative = dur < 0
    negative_example = _example_of_rows(file, rows[negative])
    issues.add(NEGATIVE_DURATION, np.count_nonzero(negative), negative_example)
    return np.maximum(dur, 0)


def _correlations(file: TraceFile, rows: Array, kind: Array, *, fused: bool) -> Array:
    """Correlation ids of calls and GPU work, -1 for none.

    Tools that fuse ranks make the ids unique and keep the original ones as ``correlation_raw``.
    """
    correlated = is_any(kind, (*CALLS, *GPU_WORK, Kind.GPU_SYNC))
    keys = ("correlation_raw", "correlation") if fused else ("correlation",)
    values, present = file.numbers(rows[correlated], *keys)
    preferred = np.full(values.shape[1], -1, np.int64)
    for value, is_there in zip(values[::-1], present[::-1], strict=True):
        preferred = np.where(is_there, value, preferred)
    correlation = np.full(len(rows), -1, np.int64)
    correlation[correlated] = preferred
    return correlation


def _moved_bytes(file: TraceFile, rows: Array, kind: Array) -> pa.Array:
    """Bytes that copies and fills move."""
    moves = is_any(kind, (Kind.MEMCPY, Kind.MEMSET))
    values, present = file.numbers(rows[moves], "bytes")
    size = np.zeros(len(rows), np.int64)
    unknown = np.ones(len(rows), bool)
    size[moves], unknown[moves] = values[0], ~present[0]
    return arrow.array(size, mask=unknown)


def _host_in_name(path: Path, ranks: tuple[Rank, ...]) -> str:
    """Host in a file name of PyTorch's trace handler, if its process is that of the file."""
    match = _WORKER.match(path.name)
    if match is None or [int(match["pid"])] != [r.pid for r in ranks]:
        return ""
    return match["host"]


def _meta(file: TraceFile, owners: kineto_ranks.Owners) -> Meta:
    header = file.header
    host = str(header.get("host_name", "")) or _host_in_name(file.path, owners.ranks)
    tools = [f"{tool} {header[key]}" for key, tool in _TOOL_KEYS.items() if key in header]
    facts = {k: str(v) for k, v in header.items() if isinstance(v, str | int | float)}
    world = kineto_header.world_size(header)
    if world and not kineto_header.is_written_here(
        header
    ):  # there, what the ranks of the file show
        facts[WORLD_SIZE] = str(world)
    return Meta(
        job=inputs.plain_name(file.path),
        ranks=tuple(replace(r, host=host) if host else r for r in owners.ranks),
        devices=kineto_header.listed_devices(header, host),
        sources=(Source(str(file.path), "kineto", " ".join(tools), size=file.path.stat().st_size),),
        clocks=kineto_header.fits(header),
        facts={k: v for k, v in facts.items() if k not in _NOT_FACTS},
    )
