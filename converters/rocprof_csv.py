"""rocprofv3's CSV files, ROCm 6.2 to 7.13, and those of ``rocpd convert``.

Every row of a table is an event of the source, but for those of ``agent_info``. A row of
``counter_collection`` is a node only if it is the first of a dispatch that no kernel trace of the
same run holds; all others of that table are counted by the fault ``counter-row``.

Formats: rocprofiler-sdk's ``lib/output/generateCSV.cpp`` and ``lib/python/rocpd/csv.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.converters import rocprof_devices, rocprof_owners
from chopper_interop.converters.rocprof_agents import (
    ID_COLUMNS,
    agents_of,
    is_garbled,
    number_in,
)
from chopper_interop.converters.rocprof_counters import counts_of
from chopper_interop.converters.rocprof_files import group, run_name, told_by
from chopper_interop.converters.rocprof_lines import header_of
from chopper_interop.converters.rocprof_parse import rows_of
from chopper_interop.converters.rocprof_reach import OUT_OF_REACH
from chopper_interop.converters.rocprof_shape import split
from chopper_interop.converters.rocprof_tables import (
    AGENTS,
    COPIES,
    COUNTERS,
    KERNELS,
    columns_of,
    format_of,
    is_samples,
    is_statistics,
)
from chopper_interop.converters.rocprof_trace import TOOL, Recording, trace_of
from chopper_interop.errors import ReadError
from chopper_interop.files import inputs
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.converters.rocprof_agents import Agent
    from chopper_interop.converters.rocprof_rows import Rows
    from chopper_interop.trace import Trace

NO_LAUNCH = Fault(
    "launch-unknown",
    Severity.INFO,
    "Tables without Correlation_Id: which call launched their kernels and copies is not known.",
)
NO_STREAM = Fault(
    "stream-unknown",
    Severity.INFO,
    "Tables without Stream_Id (before ROCm 7.0, and those of counters): the lanes of their kernels "
    "are hardware queues.",
)
NO_DISPATCH = Fault(
    "dispatch-id-unknown",
    Severity.INFO,
    "Kernel traces without Dispatch_Id (ROCm 6.2): counters find their kernels by correlation id.",
)
NO_AGENT = Fault(
    "agent-unreadable", Severity.LOSS, "Lines that should tell an agent and do not were left out."
)
COSTS = (
    (KERNELS, "correlation", NO_LAUNCH),
    (COPIES, "correlation", NO_LAUNCH),
    (KERNELS, "stream", NO_STREAM),
    (KERNELS, "dispatch", NO_DISPATCH),
)
"""Tables, columns that some versions of the tool do not write, and what that costs."""


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is a table of rocprofv3's that is read."""
    form = format_of(header_of(head))
    return form is not None and form.tool == TOOL


def sniff_statistics(head: bytes) -> bool:
    """Whether a file that begins so holds rocprofv3's statistics."""
    return is_statistics({name.strip().lower() for name in header_of(head)})


def sniff_samples(head: bytes) -> bool:
    """Whether a file that begins so holds samples of program counters or counters."""
    return is_samples({name.strip().lower() for name in header_of(head)})


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read the CSV files of one process and run, or of several processes that share files.

    Parameters
    ----------
    paths
        The files; what each is, its header tells.
    rank
        Rank to give the process, over what the names of its files say.

    Returns
    -------
    Trace
        On the clock of the node's boot.

    Raises
    ------
    ReadError
        A file cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    issues = IssueLog(str(paths[0]))
    told = told_by(paths[0])
    tables: list[Rows] = []
    agents: list[Agent] = []
    for path in paths:
        if format_of(header_of(inputs.head(path))) is AGENTS:
            agents += _agents(path, told.host, issues)
        else:
            tables += _tables(path, issues)
    events = sum(rows.count for rows in tables) + issues.events()
    _note_costs(tables, issues)
    numbering = rocprof_devices.numbering(tables, agents)
    devices = rocprof_devices.devices(tables, numbering)
    pids = rocprof_owners.pids_of(tables, devices, told.pid, issues)
    owners = rocprof_owners.owners(tables, pids, devices, told, rank, issues)
    owned = list(zip(tables, owners.process, devices, strict=True))
    counted = [t for t in owned if t[0].form is COUNTERS]
    known = {int(pid) for column in pids for pid in np.unique(column)}
    recording = Recording(
        paths=paths,
        format=ROCPROFV3_CSV.name,
        events=events,
        owners=owners,
        numbering=numbering,
        tables=[t for t in owned if t[0].form is not COUNTERS],
        counts=[counts_of(*t) for t in counted],
        run=run_name(told, known) if counted else told.run,
    )
    return trace_of(recording, issues)


def _note_costs(tables: list[Rows], issues: IssueLog) -> None:
    """Say what is not known for want of a column."""
    for form, column, fault in COSTS:
        for rows in tables:
            if rows.form is form and column not in rows.numbers:
                issues.add(fault, rows.count, rows.where)


def _tables(path: Path, issues: IssueLog) -> list[Rows]:
    data = inputs.read(path, issues)
    if not header_of(data[: inputs.HEAD].tobytes()):
        raise ReadError("it is empty", path=path)
    if not sniff(data[: inputs.HEAD].tobytes()):
        raise ReadError(
            "its first line is no header of a table of rocprofv3",
            path=path,
            hint="was its header lost, or is it of another tool?",
        )
    try:
        found = rows_of(data, path.name, issues)
        return [rows for rows in found if rows.count and rows.form is not AGENTS]
    except pa.ArrowInvalid as error:
        raise ReadError(f"it is no proper CSV: {str(error).splitlines()[0]}", path=path) from error


def _agents(path: Path, host: str, issues: IssueLog) -> list[Agent]:
    """Agents by the lines of ``agent_info.csv``, of which there are few."""
    text = inputs.read(path, issues).tobytes().decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip("\ufeff\0 ")]
    rows = [split(line.strip("\ufeff")) or [] for line in lines]
    names = columns_of(rows[0])
    proper = [row for row in rows[1:] if len(row) == len(names) and row != rows[0]]
    issues.add(NO_AGENT, sum(len(row) != len(names) for row in rows), path.name)
    found = [dict(zip(names, row, strict=True)) for row in proper]
    garbled = [row[c] for row in found for c in ID_COLUMNS if is_garbled(number_in(row.get(c, "")))]
    example = f"{path.name}: {garbled[0]:.60}" if garbled else ""
    issues.add(OUT_OF_REACH, len(garbled), example)
    return agents_of(found, host)


ROCPROFV3_CSV = Converter(
    name="rocprofv3-csv",
    description="rocprofv3 CSV files, also those of rocpd convert",
    versions="ROCm 6.2 to 7.13",
    sniff=sniff,
    group=group,
    read=read,
    carries="kernels, HIP, HSA, RCCL, rocDecode and rocJPEG calls, roctx markers, copies, "
    "allocations, scratch, waits for HIP events, hardware counters of dispatches, launches, agents",
)

ROCPROFV3_STATS = Converter(
    name="rocprofv3-stats",
    description="rocprofv3 statistics",
    sniff=sniff_statistics,
    not_read_because="statistics without a timeline are not read",
)

ROCPROFV3_PC_SAMPLING = Converter(
    name="rocprofv3-pc-sampling",
    description="rocprofv3 samples of program counters or streamed counters",
    sniff=sniff_samples,
    not_read_because="samples without a timeline are not read",
)
