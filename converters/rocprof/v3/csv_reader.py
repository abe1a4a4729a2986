"""CSV files of rocprofv3, ROCm 6.2 to 7.13, and those of ``rocpd convert``.

Every row of a table is an event of the source, but for those of ``agent_info``. A row of
``counter_collection`` is a node only if it is the first of a dispatch that no kernel trace of the
same run holds; all others of that table are counted by the fault ``counter-row``.

Formats: rocprofiler-sdk's ``lib/output/generateCSV.cpp`` and ``lib/python/rocpd/csv.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from chopper_interop.converters.rocm.agents import (
    ID_COLUMNS,
    Agent,
    agents_from_rows,
    is_garbled,
    number_in,
)
from chopper_interop.converters.rocm.csv_columns import parse_tables
from chopper_interop.converters.rocm.csv_headers import (
    column_names,
    header_names,
    split_csv_line,
    table_format,
)
from chopper_interop.converters.rocm.dispatch_counters import counters_of_rows
from chopper_interop.converters.rocm.file_names import RANK_OF_PROCESS, path_info, run_name
from chopper_interop.converters.rocm.number_limits import OUT_OF_RANGE
from chopper_interop.converters.rocm.recording import RocmRecording, attribute, build_trace
from chopper_interop.converters.rocm.sniff import is_v3_csv
from chopper_interop.converters.rocm.tables import AGENTS, COPIES, COUNTERS, KERNELS
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.registry import with_option_texts
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.rows import TableRows

NO_LAUNCH = Fault.info(
    "launch-unknown",
    "Tables without Correlation_Id: which call launched their kernels and copies is not known.",
)
NO_STREAM = Fault.info(
    "stream-unknown",
    "Tables without Stream_Id (before ROCm 7.0, and those of counters): the lanes "
    "of their kernels are hardware queues.",
)
NO_DISPATCH = Fault.info(
    "dispatch-id-unknown",
    "Kernel traces without Dispatch_Id (ROCm 6.2): counters find their kernels by correlation id.",
)
NO_AGENT = Fault.loss(
    "agent-unreadable", "Lines of agent_info that describe no agent were left out."
)
MISSING_COLUMNS = (
    (KERNELS, "correlation", NO_LAUNCH),
    (COPIES, "correlation", NO_LAUNCH),
    (KERNELS, "stream", NO_STREAM),
    (KERNELS, "dispatch", NO_DISPATCH),
)
"""Tables, columns that some versions of the tool do not write, and the fault of their absence."""


@with_option_texts(RANK_OF_PROCESS)
def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read the CSV files of one process and run, or of several processes that share files.

    Parameters
    ----------
    paths
        The files, whose headers say what each holds.

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
    info = path_info(paths[0])
    tables: list[TableRows] = []
    agents: list[Agent] = []
    for path in paths:
        if table_format(header_names(inputs.head(path))) is AGENTS:
            agents += _read_agents(path, info.host, issues)
        else:
            tables += _read_tables(path, issues)
    events = sum(rows.count for rows in tables) + issues.events()
    _note_missing_columns(tables, issues)
    attributed = attribute(tables, agents, info, rank, issues)
    counted = [t for t in attributed.tables if t[0].form is COUNTERS]
    recording = RocmRecording(
        paths=paths,
        format="rocprofv3-csv",
        events=events,
        owners=attributed.owners,
        numbering=attributed.numbering,
        tables=[t for t in attributed.tables if t[0].form is not COUNTERS],
        counts=[counters_of_rows(*t) for t in counted],
        run=run_name(info, attributed.pids) if counted else info.run,
    )
    return build_trace(recording, issues)


def _note_missing_columns(tables: list[TableRows], issues: IssueLog) -> None:
    for form, column, fault in MISSING_COLUMNS:
        for rows in tables:
            if rows.form is form and column not in rows.numbers:
                issues.add(fault, rows.count, rows.where)


def _read_tables(path: Path, issues: IssueLog) -> list[TableRows]:
    data = inputs.read(path, issues)
    head = data[: inputs.HEAD_BYTES].tobytes()
    if not header_names(head):
        raise ReadError("it is empty", path=path)
    if not is_v3_csv(head):
        raise ReadError(
            "its first line is no header of a table of rocprofv3",
            path=path,
            hint="was its header lost, or is it of another tool?",
        )
    try:
        tables = parse_tables(
            data, path.name, issues, is_own=lambda form: form.tool == KERNELS.tool
        )
    except pa.ArrowInvalid as error:
        raise ReadError(f"it is no proper CSV: {str(error).splitlines()[0]}", path=path) from error
    return [rows for rows in tables if rows.count and rows.form is not AGENTS]


def _read_agents(path: Path, host: str, issues: IssueLog) -> list[Agent]:
    """Read the agents of ``agent_info.csv``, line by line: there are few."""
    text = inputs.read(path, issues).tobytes().decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip("\ufeff\0 ")]
    rows = [split_csv_line(line.strip("\ufeff")) or [] for line in lines]
    names = column_names(rows[0])
    proper = [row for row in rows[1:] if len(row) == len(names) and row != rows[0]]
    issues.add(NO_AGENT, sum(len(row) != len(names) for row in rows), path.name)
    named = [dict(zip(names, row, strict=True)) for row in proper]
    garbled = [row[c] for row in named for c in ID_COLUMNS if is_garbled(number_in(row.get(c, "")))]
    example = f"{path.name}: {garbled[0]:.60}" if garbled else ""
    issues.add(OUT_OF_RANGE, len(garbled), example)
    return agents_from_rows(named, host)
