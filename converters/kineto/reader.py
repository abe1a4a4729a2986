"""Reading Kineto traces: their events become nodes, edges, lanes, samples and process groups.

Small files are read together, one behind the other, as a call takes more time than the rows of a small file.
Files are read in passes over columns. First their texts become a table of events, then these become
nodes on lanes. Later passes add the edges (launches, forward to backward), what communication
kernels communicate, and the samples of counters; the last ones note what cannot be true.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import chosen_steps, sanity_checks
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.build import TraceBuilder
from chopper_interop.combined import NAME_ORDER, Combined, SourceIssues
from chopper_interop.converters.kineto import (
    communication,
    edges,
    launch_checks,
    samples,
    step_events,
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
    OPERATOR_FLOWS,
    fill_kinds,
    refine_kinds,
)
from chopper_interop.converters.kineto.ranks import lane_of_events
from chopper_interop.edges.communication import communicates, recognise
from chopper_interop.io import inputs, memory
from chopper_interop.io.json_events import BAD_ARGS, BAD_TIME, HAS_DUR, HAS_TS
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.categories import MIXED_CATEGORIES
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, Kind
from chopper_interop.schemas.meta import (
    BOOTTIME,
    SINCE_1970,
    TIME_BASE,
    WORLD_SIZE,
    Meta,
    Rank,
    Source,
)
from chopper_interop.schemas.names import STEP_RANGE
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.converters.kineto.trace_file import TraceFile

NO_TIME = Fault.loss_of_events(
    "event-without-time",
    "Events without a start, or with one that is no number or beyond 64 bits of nanoseconds, were left out.",
)
BAD_DURATION = Fault.loss(
    "duration-not-a-number",
    "Durations that are absent, no numbers or beyond 64 bits of nanoseconds were taken as 0.",
)
OTHER_ARGUMENTS = Fault.loss(
    "arguments-not-an-object",
    "Arguments (`args`) that are no JSON object, such as lists, were left out, and with them streams and "
    "correlation ids.",
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

READ_TWICE = 1 << 24
"""Bytes from which on a file is read twice where some steps are asked for (chosen: of others, all that is read takes some
megabytes)."""
_BLOCK = 1 << 18
"""Nodes of which arguments are looked into at a time (chosen: some megabytes)."""
_KNOWN_PHASES = "XiIRMstfCE"
_NOT_OF_ARROWS = ("dur", "args_at", "args_len", "name", "at")
"""Columns that nothing asks for of events which are arrows."""
_TOOL_KEYS = {
    "roctracer_version": "roctracer",
    "rocprofiler-sdk_version": "rocprofiler-sdk",
    "cupti_version": "CUPTI",
}
_BASE = "baseTimeNanoseconds"
_NOT_FACTS = (
    "traceName", "displayTimeUnit", _BASE, "schemaVersion", "username",
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
    return read_together(paths, rank=rank).split()[0]


def read_together(paths: list[Path], *, rank: int | None = None) -> Combined:
    """Read several Kineto files in one pass; parameters as of `read`.

    Raises
    ------
    ReadError
        The only one cannot be read at all.
    NotTogetherError
        Some of several cannot be read, or have events of several ranks.
    """
    issues = SourceIssues([IssueLog(str(path)) for path in paths])
    choice = _choice(paths[0])
    file = trace_file.load(paths, issues, choice)
    for member, log in zip(file.members, issues.logs, strict=True):
        log.add(chosen_steps.OUTSIDE, member.left_out)
    unknown = np.flatnonzero((file.kind == 0) & (file.columns["cat"] < 0) & file.phase("X"))
    if unknown.size:
        fill_kinds(file, unknown)
    trace_file.note_bind_ids(file, issues)
    owners = kineto_ranks.assign_ranks(file, rank, issues)
    is_node = _is_node(file, issues)
    builder = TraceBuilder()
    of_nodes, owners = owners.select(is_node), owners.select(~is_node)
    nodes, file = file.parted(is_node)
    _add_nodes(builder, nodes, of_nodes, kineto_ranks.thread_names(file), issues)
    del nodes, of_nodes, is_node
    memory.give_back(len(file.text))
    samples.add_samples(builder, file, owners, issues)
    for name in _NOT_OF_ARROWS:
        del file.columns[name]
    first_ts = None if choice is None else choice.first_ts
    trace = builder.finish(keep=False, since=None if first_ts is None else first_ts + file.base_ns)
    memory.give_back(len(file.text))
    trace = edges.add_edges(trace, file, owners, issues)
    trace, groups = communication.add_communication(recognise(trace), file, issues)
    metas = tuple(_meta(*of_file) for of_file in zip(file.members, owners.ranks, strict=True))
    of_all = Combined(trace, metas, groups, file.text_at)
    _check(of_all, file, issues)
    return replace(of_all, metas=_with_findings(of_all, file, issues))


def _choice(path: Path) -> step_events.Choice | None:
    """Return what chooses the events of the steps that are asked for; None for a small file, or if all are."""
    steps = chosen_steps.CHOSEN.get()
    if steps is None or inputs.expected_bytes(path) < READ_TWICE:
        return None
    return step_events.Choice(steps)


def _check(of_all: Combined, file: TraceFile, issues: SourceIssues) -> None:
    """Note what cannot be true; of several files each is checked if there is something in any."""
    headers = [member.header for member in file.members]
    if len(headers) > 1:
        of_any = IssueLog()
        sanity_checks.check_ranks(of_all.trace, of_any)
        launch_checks.check_all(of_all.trace, of_any)
        if not any(of_any):
            return
    for part, header, log in zip(of_all.split(), headers, issues.logs, strict=True):
        sanity_checks.check(part, log)
        launch_checks.check_launches(part, header, log)


def _with_findings(of_all: Combined, file: TraceFile, issues: SourceIssues) -> tuple[Meta, ...]:
    """Metadata of each file with its devices, its issues, and the number of its nodes."""
    trace, member = of_all.trace, edges.member_of_nodes(of_all.trace, file)
    work = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    device = trace.array("device", "lanes")[trace.array("lane")[work]]
    first, _ = gather.distinct(member[work], device)
    used: list[list[int]] = [[] for _ in file.members]
    pairs = zip(device[first].tolist(), member[work][first].tolist(), strict=True)
    for number, used_by in sorted(pairs):
        used[used_by].append(number)
    nodes = np.bincount(member, minlength=len(file.members)).tolist()
    return tuple(
        _with_results(*of_file)
        for of_file in zip(of_all.metas, file.members, used, nodes, issues.logs, strict=True)
    )


def _with_results(
    meta: Meta, member: trace_file.Member, used: list[int], nodes: int, issues: IssueLog
) -> Meta:
    devices = kineto_header.devices_of_events(meta.devices, used, member.header, issues)
    source = replace(meta.sources[0], events=member.event_count, nodes=nodes)
    clock = kineto_header.clock(member.header)
    clock = clock or (BOOTTIME if member.since_boot else meta.clock)
    return replace(meta, clock=clock, issues=tuple(issues), sources=(source,), devices=devices)


def read_chrome_trace(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read a Chrome trace of another program than PyTorch; parameters as of `read`."""
    trace = read(paths, rank=rank)
    return trace.with_meta(
        sources=tuple(replace(source, format="chrome-trace") for source in trace.meta.sources)
    )


def _is_node(file: TraceFile, issues: SourceIssues) -> Array:
    """Mark the events that become nodes; all others but samples and ends are counted here."""
    timed = (file.columns["has"] & HAS_TS) != 0
    instant = file.phase("i", "I", "R") & ~samples.is_memory(file)
    candidates = file.phase("X") | instant
    issues.add_where(METADATA, file.phase("M"), file.member)
    flow = file.phase("s", "t", "f")
    known_codes = [
        i for i, t in enumerate(file.texts) if t in FLOWS | LAUNCH_FLOWS | OPERATOR_FLOWS
    ]
    known_flow = np.isin(file.columns["cat"], known_codes)
    issues.add_where(FLOW, flow & known_flow, file.member)
    issues.add_where(OTHER_FLOW, flow & ~known_flow, file.member, file.example)
    other = np.flatnonzero(~file.phase(*_KNOWN_PHASES))
    empty = file.is_empty(other)
    issues.add_rows(EMPTY, other[empty], file.member)
    issues.add_rows(OTHER_PHASE, other[~empty], file.member, file.example)
    issues.add_where(NO_TIME, candidates & ~timed, file.member, file.example)
    no_object = candidates & timed & (file.columns["has"] & BAD_ARGS != 0)
    issues.add_where(OTHER_ARGUMENTS, no_object, file.member, file.example)
    return candidates & timed


def _add_nodes(
    builder: TraceBuilder,
    file: TraceFile,
    owners: kineto_ranks.Owners,
    threads: dict[tuple[int, int, int], str],
    issues: SourceIssues,
) -> None:
    """Add all events of a file as nodes; its columns become columns of nodes, or are freed."""
    columns, kind = file.columns, _kinds(file, issues)
    dur = _durations(file, issues)
    del columns["id"], columns["at"]  # before others take as much
    lane, correlation = np.empty(len(kind), np.int32), np.full(len(kind), -1, np.int64)
    moved, unknown = np.zeros(len(kind), np.int64), np.ones(len(kind), np.bool_)
    for at in range(0, len(kind), _BLOCK):
        rows = slice(at, at + _BLOCK)
        lane[rows] = lane_of_events(builder, file, owners, rows, kind[rows], threads)
        _set_correlations(correlation, file, rows, kind[rows], fused=owners.fused)
        _set_moved_bytes(moved, unknown, file, rows, kind[rows])
    del columns["pid"], columns["tid"]
    ts, args_at = columns.pop("ts"), columns.pop("args_at")
    ts += file.base_ns
    args_at += builder.text(file.text)
    order = {NAME_ORDER: columns["name_number"]} if len(file.members) > 1 else {}
    builder.nodes(
        kind=kind,
        name=_names(file, columns["name"]),
        rank=owners.rank,
        lane=lane,
        ts=ts,
        dur=dur,
        correlation=correlation,
        bytes=arrow.array(moved, mask=unknown),
        args=(args_at, columns["args_len"]),
        **order,
    )


def _kinds(file: TraceFile, issues: SourceIssues) -> Array:
    """Kind of each node, by category, and for communication kernels by name."""
    if not MIXED_CATEGORIES.isdisjoint(file.texts):
        refine_kinds(file)
    kind = file.kind
    names = file.columns["name"]
    of_kernels = gather.unique_codes(names[kind == Kind.KERNEL])
    is_comm_name = np.zeros(len(file.texts) + 1, np.bool_)
    is_comm_name[of_kernels] = [communicates(file.texts[i]) for i in of_kernels.tolist()]
    kind[(kind == Kind.KERNEL) & is_comm_name[names]] = Kind.COMM
    is_step = np.array([t.startswith(STEP_RANGE) for t in [*file.texts, ""]])
    kind[(kind == Kind.CPU_OP) & is_step[names]] = Kind.ANNOTATION  # an operator until mid-2022
    instant = file.columns["ph"] != ord("X")
    kind[instant] = Kind.INSTANT
    unknown = kind == 0
    issues.add_where(OTHER_CATEGORY, unknown, file.member, file.example)
    kind[unknown] = Kind.OTHER
    return kind


def _names(file: TraceFile, numbers: Array) -> pa.DictionaryArray:
    """Names as a dictionary of those that nodes have, and no other text of the file."""
    used = gather.unique_codes(numbers)
    used = np.append(-1, used) if len(numbers) and numbers.min() < 0 else used
    code = np.full(len(file.texts) + 1, -1, np.int32)
    code[used] = np.arange(len(used), dtype=np.int32)
    texts = [file.texts[i] if i >= 0 else "" for i in used.tolist()]
    return arrow.dictionary(code[numbers], texts)


def _durations(file: TraceFile, issues: SourceIssues) -> Array:
    """Durations, whose column they replace."""
    has, dur = file.columns["has"], file.columns.pop("dur")
    dur[has & HAS_DUR == 0] = 0
    span = file.columns["ph"] == ord("X")
    bad = span & (has & (HAS_DUR | BAD_TIME) != HAS_DUR)
    issues.add_where(BAD_DURATION, bad, file.member, file.example)
    negative = dur < 0
    issues.add_where(NEGATIVE_DURATION, negative, file.member, file.example)
    dur[negative] = 0
    return dur


def _set_correlations(
    correlation: Array, file: TraceFile, rows: slice, kind: Array, *, fused: bool
) -> None:
    """Set the correlation ids of calls and GPU work, whose nodes `kind` is of.

    Tools that fuse ranks make the ids unique and keep the original ones as ``correlation_raw``.
    """
    correlated = np.flatnonzero(is_any(kind, (*CALLS, *GPU_WORK, Kind.GPU_SYNC))) + rows.start
    keys = ("correlation_raw", "correlation") if fused else ("correlation",)
    values, present = file.numbers(correlated, *keys)
    for value, is_there in zip(values[::-1], present[::-1], strict=True):  # the preferred one last
        correlation[correlated[is_there]] = value[is_there]


def _set_moved_bytes(
    moved: Array, unknown: Array, file: TraceFile, rows: slice, kind: Array
) -> None:
    """Set the bytes that copies and fills move, whose nodes `kind` is of."""
    moves = np.flatnonzero(is_any(kind, (Kind.MEMCPY, Kind.MEMSET))) + rows.start
    values, present = file.numbers(moves, "bytes", "size")  # MTIA's is a size
    moved[moves], unknown[moves] = np.where(present[0], *values), ~present.any(axis=0)


def _host_in_name(path: Path, ranks: tuple[Rank, ...]) -> str:
    """Host in a file name of PyTorch's trace handler, if its process is that of the file."""
    match = _WORKER.match(path.name)
    if match is None or [int(match["pid"])] != [r.pid for r in ranks]:
        return ""
    return match["host"]


def _meta(member: trace_file.Member, ranks: tuple[Rank, ...]) -> Meta:
    header, path = member.header, member.path
    host = str(header.get("host_name", "")) or _host_in_name(path, ranks)
    tools = [f"{tool} {header[key]}" for key, tool in _TOOL_KEYS.items() if key in header]
    facts = {k: str(v) for k, v in header.items() if isinstance(v, str | int | float)}
    world = kineto_header.world_size(header)
    if world and not kineto_header.is_written_here(
        header
    ):  # there, what the ranks of the file show
        facts[WORLD_SIZE] = str(world)
    if _BASE not in header and not member.since_boot:
        facts[TIME_BASE] = SINCE_1970
    return Meta(
        job=inputs.plain_name(path),
        ranks=tuple(replace(r, host=host) if host else r for r in ranks),
        devices=kineto_header.listed_devices(header, host),
        sources=(Source(str(path), "kineto", " ".join(tools), size=path.stat().st_size),),
        clocks=kineto_header.fits(header),
        facts={k: v for k, v in facts.items() if k not in _NOT_FACTS},
    )
