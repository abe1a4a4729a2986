"""Traces of the tables that tools before rocprofv3 and rocprof-compute wrote."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from chopper_interop.converters.rocm.csv_columns import parse_tables
from chopper_interop.converters.rocm.csv_headers import header_names, table_format
from chopper_interop.converters.rocm.dispatch_tables import (
    DispatchTable,
    counters_of_dispatches,
    with_order_as_time,
)
from chopper_interop.converters.rocm.file_names import PathInfo, run_name
from chopper_interop.converters.rocm.recording import RocmRecording, attribute, build_trace
from chopper_interop.converters.rocm.tables import COUNTERS, TableFormat
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.meta import ORDER, Device
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.rows import TableRows


NO_ROWS = Fault.loss(
    "table-without-rows",
    "A table has a header and no rows, though its tool writes none without a row: they were lost.",
)
_NEWLINE = ord("\n")


@dataclass(frozen=True)
class SourceTables:
    """Tables of the files of one source.

    Parameters
    ----------
    paths
        The files.
    format, tool
        Names of the format and of the tool that wrote it.
    info
        Facts by the files' names.
    events
        Number of events in the files.
    tables
        Tables of calls, copies and kernels without counters.
    dispatches
        Tables of dispatches.
    counts_agents
        Whether their devices are numbered as agents are, unless one of them is 0, which is a CPU.
    """

    paths: Sequence[Path]
    format: str
    tool: str
    info: PathInfo
    events: int
    tables: list[TableRows] = field(default_factory=list)
    dispatches: list[DispatchTable] = field(default_factory=list)
    counts_agents: bool = True


def build_source_trace(source: SourceTables, rank: int | None, issues: IssueLog) -> Trace:
    """Build the trace; of dispatches without any time, one in the order of dispatches.

    Parameters
    ----------
    source
        The tables.
    rank
        Rank by the user.
    issues
        Log of what is lost.
    """
    counted = [d for d in source.dispatches if d.rows.form is COUNTERS]
    ordered = bool(counted) and not source.tables and not any(d.timed for d in source.dispatches)
    if ordered:
        counted = [replace(d, rows=with_order_as_time(d.rows)) for d in counted]
    uncounted = [d.rows for d in source.dispatches if d.rows.form is not COUNTERS]
    tables = [*source.tables, *uncounted]
    attributed = attribute([*tables, *(d.rows for d in counted)], [], source.info, rank, issues)
    recording = RocmRecording(
        paths=source.paths,
        format=source.format,
        events=source.events,
        owners=attributed.owners,
        numbering=attributed.numbering,
        tables=attributed.tables[: len(tables)],
        counts=[
            counters_of_dispatches(dispatches, process, device)
            for dispatches, (_, process, device) in zip(
                counted, attributed.tables[len(tables) :], strict=True
            )
        ],
        run=run_name(source.info, attributed.pids) if counted else source.info.run,
        tool=source.tool,
    )
    trace = build_trace(recording, issues)
    used = attributed.numbering.used
    trace = trace.with_meta(
        devices=tuple(_with_number(d, used, source) for d in trace.meta.devices)
    )
    return trace.with_meta(clock=ORDER) if ordered else trace


def _with_number(device: Device, used: list[int], source: SourceTables) -> Device:
    """Set a device's ordinal or agent: numbers from 0 count GPUs, as no GPU is agent 0."""
    if 0 in used:
        return replace(device, ordinal=device.device, agent=-1)
    return replace(device, agent=device.device if source.counts_agents else -1)


def read_csv_tables(
    path: Path, tool: str, issues: IssueLog, *, only: Collection[TableFormat] = ()
) -> list[TableRows]:
    """Read the tables of a CSV file.

    Parameters
    ----------
    path
        The file.
    tool
        Name of the tool, for errors.
    issues
        Log of what is lost.
    only
        The kinds of table that the tool writes; none for all of rocprof before its third version.

    Raises
    ------
    ReadError
        It is none of that tool's.
    """
    data = inputs.read(path, issues)
    header = header_names(data[: inputs.HEAD_BYTES].tobytes())
    if not header:
        raise ReadError("it is empty", path=path)
    form = table_format(header)
    if form is None or form.tool != "rocprof":
        raise ReadError(
            f"its first line is no header of a table of {tool}",
            path=path,
            hint="was its header lost, or is it of another tool?",
        )
    if not (data == _NEWLINE).any():
        raise ReadError("it ends within its header", path=path)
    try:
        tables = parse_tables(
            data,
            path.name,
            issues,
            is_own=lambda other: other in only or (not only and other.tool == form.tool),
        )
    except pa.ArrowInvalid as error:
        raise ReadError(f"it is no proper CSV: {str(error).splitlines()[0]}", path=path) from error
    tables = [rows for rows in tables if rows.count]
    issues.add(NO_ROWS, not tables, path.name)
    return tables
