"""Traces of what the tools before rocprofv3 wrote: tables of calls and dispatches in, a trace out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.converters import rocprof_devices, rocprof_owners
from chopper_interop.converters.rocprof_files import Told, run_name
from chopper_interop.converters.rocprof_lines import header_of
from chopper_interop.converters.rocprof_parse import rows_of
from chopper_interop.converters.rocprof_tables import COUNTERS, format_of
from chopper_interop.converters.rocprof_trace import Recording, trace_of
from chopper_interop.converters.rocprof_v1_dispatches import (
    Dispatches,
    counts_of,
    in_order,
)
from chopper_interop.errors import ReadError
from chopper_interop.files import inputs
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.meta import ORDER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chopper_interop.converters.rocprof_rows import Rows
    from chopper_interop.schemas.meta import Device
    from chopper_interop.trace import Trace


NO_ROWS = Fault(
    "table-without-rows",
    Severity.LOSS,
    "A table has a header and no rows, though its tool writes none without a row: they were lost.",
)
_NEWLINE = ord("\n")


@dataclass(frozen=True)
class Found:
    """What the files of one source hold.

    Parameters
    ----------
    paths
        The files.
    format, tool
        Names of the format and of what wrote it.
    told
        What the files' names tell.
    events
        How many events they hold.
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
    told: Told
    events: int
    tables: list[Rows] = field(default_factory=list)
    dispatches: list[Dispatches] = field(default_factory=list)
    counts_agents: bool = True


def trace_of_found(found: Found, rank: int | None, issues: IssueLog) -> Trace:
    """The trace; of dispatches without any time, one that only knows their order.

    Parameters
    ----------
    found
        What the files hold.
    rank
        Rank by the user.
    issues
        Where what is lost is counted.
    """
    counted = [d for d in found.dispatches if d.rows.form is COUNTERS]
    ordered = bool(counted) and not found.tables and not any(d.timed for d in found.dispatches)
    if ordered:
        counted = [replace(d, rows=in_order(d.rows)) for d in counted]
    plain = [d.rows for d in found.dispatches if d.rows.form is not COUNTERS]
    tables = [*found.tables, *plain, *(d.rows for d in counted)]
    numbering = rocprof_devices.numbering(tables, [])
    devices = rocprof_devices.devices(tables, numbering)
    pids = rocprof_owners.pids_of(tables, devices, found.told.pid, issues)
    owners = rocprof_owners.owners(tables, pids, devices, found.told, rank, issues)
    split = len(tables) - len(counted)
    known = {int(pid) for column in pids for pid in np.unique(column)}
    recording = Recording(
        paths=found.paths,
        format=found.format,
        events=found.events,
        owners=owners,
        numbering=numbering,
        tables=list(zip(tables[:split], owners.process[:split], devices[:split], strict=True)),
        counts=[
            counts_of(*each)
            for each in zip(counted, owners.process[split:], devices[split:], strict=True)
        ],
        run=run_name(found.told, known) if counted else found.told.run,
        tool=found.tool,
    )
    trace = trace_of(recording, issues)
    named = tuple(_named(d, numbering.used, found) for d in trace.meta.devices)
    trace = trace.with_meta(devices=named)
    return trace.with_meta(clock=ORDER) if ordered else trace


def _named(device: Device, used: list[int], found: Found) -> Device:
    """A device by what its number is: no GPU is agent 0, so that numbers from 0 count GPUs."""
    if 0 in used:
        return replace(device, ordinal=device.device, agent=-1)
    return replace(device, agent=device.device if found.counts_agents else -1)


def tables_of(path: Path, tool: str, issues: IssueLog) -> list[Rows]:
    """The tables of a CSV file.

    Raises
    ------
    ReadError
        It is none of that tool's.
    """
    data = inputs.read(path, issues)
    header = header_of(data[: inputs.HEAD].tobytes())
    if not header:
        raise ReadError("it is empty", path=path)
    form = format_of(header)
    if form is None or form.tool != "rocprof":
        raise ReadError(
            f"its first line is no header of a table of {tool}",
            path=path,
            hint="was its header lost, or is it of another tool?",
        )
    if not (data == _NEWLINE).any():
        raise ReadError("it ends within its header", path=path)
    try:
        found = [rows for rows in rows_of(data, path.name, issues) if rows.count]
    except pa.ArrowInvalid as error:
        raise ReadError(f"it is no proper CSV: {str(error).splitlines()[0]}", path=path) from error
    issues.add(NO_ROWS, not found, path.name)
    return found
