"""rocprof (v1), which came with ROCm until 7.x: tables, Chrome JSON, databases, statistics.

``rocprof -o NAME.csv`` writes the same events into NAME.csv, NAME.json and NAME.db: they are one
source, of which each event is taken once.

Formats: ``bin/tblextr.py``, ``bin/sqlitedb.py`` and ``bin/dform.py`` of ROCm/rocprofiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.converters.rocprof_compute import is_raw, names_in
from chopper_interop.converters.rocprof_files import told_by
from chopper_interop.converters.rocprof_lines import header_of
from chopper_interop.converters.rocprof_tables import DISPATCHES, format_of
from chopper_interop.converters.rocprof_v1_dispatches import dispatches_of
from chopper_interop.converters.rocprof_v1_recording import Found, tables_of, trace_of_found
from chopper_interop.issues import IssueLog
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

TOOL = "rocprof"
_STATISTICS = frozenset({"name", "calls", "totaldurationns", "averagens", "percentage"})


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is a table, a trace or a database of rocprof v1."""
    if format_of(header_of(head)) is DISPATCHES:
        names = names_in(head)
        return "gpu-id" in names and is_raw(names)
    return False


def sniff_statistics(head: bytes) -> bool:
    """Whether a file that begins so holds statistics of rocprof v1."""
    return names_in(head) == _STATISTICS


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read the files of one name.

    Parameters
    ----------
    paths
        NAME.csv, NAME.json, NAME.db, or some of them.
    rank
        Rank to give the process, over what the names of its files say.

    Returns
    -------
    Trace
        On the clock of the node's boot; of counters without times, in the order of dispatches.

    Raises
    ------
    ReadError
        A file cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    issues = IssueLog(str(paths[0]))
    rows = [rows for path in paths for rows in tables_of(path, TOOL, issues)]
    events = issues.events()
    dispatches = [dispatches_of(r, issues) for r in rows]
    found = Found(
        paths=paths,
        format=ROCPROF_V1.name,
        tool=TOOL,
        told=told_by(paths[0]),
        events=events + sum(int(d.weight.sum()) for d in dispatches),
        dispatches=dispatches,
    )
    return trace_of_found(found, rank, issues)


ROCPROF_V1 = Converter(
    name="rocprof-v1",
    description="rocprof (v1) tables, JSON and databases",
    versions="ROCm 2 to 7",
    sniff=sniff,
    read=read,
    carries="kernels, HIP and HSA calls, roctx ranges, copies, hardware counters of dispatches, "
    "launches",
)

ROCPROF_V1_STATS = Converter(
    name="rocprof-v1-stats",
    description="rocprof (v1) statistics",
    sniff=sniff_statistics,
    not_read_because="statistics without a timeline are not read",
)
