"""rocprof (v1), which came with ROCm until 7.x: tables, Chrome JSON, databases, statistics.

``rocprof -o NAME.csv`` writes the same events into NAME.csv, NAME.json and NAME.db: they are one
source, of which each event is taken once.

Formats: ``bin/tblextr.py``, ``bin/sqlitedb.py`` and ``bin/dform.py`` of ROCm/rocprofiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chopper_interop.converters import rocprof_v1_db, rocprof_v1_json
from chopper_interop.converters.rocprof_compute import is_raw, names_in
from chopper_interop.converters.rocprof_files import told_by
from chopper_interop.converters.rocprof_lines import header_of
from chopper_interop.converters.rocprof_tables import DISPATCHES, format_of
from chopper_interop.converters.rocprof_v1_agents import described
from chopper_interop.converters.rocprof_v1_dispatches import dispatches_of
from chopper_interop.converters.rocprof_v1_recording import Found, trace_of_found
from chopper_interop.converters.rocprof_v1_recording import tables_of as csv_tables
from chopper_interop.converters.rocprof_v1_sections import apart, once, sized, tied
from chopper_interop.errors import ReadError
from chopper_interop.files import inputs
from chopper_interop.files.sqlite_files import MAGIC
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.converters.rocprof_rows import Rows
    from chopper_interop.trace import Trace

TOOL = "rocprof"
SAME = Fault(
    "same-events-in-another-file",
    Severity.INFO,
    "Files of one name hold the same events: each was taken once, and these were left out.",
)
LEFT_OUT = Fault(
    "file-left-out",
    Severity.LOSS,
    "A file that lies beside others of its name cannot be read and was left out.",
)
_STATISTICS = frozenset({"name", "calls", "totaldurationns", "averagens", "percentage"})


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is a table, a trace or a database of rocprof v1."""
    return _is_table(head) or rocprof_v1_db.sniff(head) or rocprof_v1_json.sniff(head)


def confirms(path: Path, head: bytes) -> bool:
    """Whether it is one of them, by all of a database's definitions."""
    return _is_table(head) or rocprof_v1_json.sniff(head) or rocprof_v1_db.confirms(path, head)


def _is_table(head: bytes) -> bool:
    if format_of(header_of(head)) is not DISPATCHES:
        return False
    names = names_in(head)
    return "gpu-id" in names and is_raw(names)


def sniff_statistics(head: bytes) -> bool:
    """Whether a file that begins so holds statistics of rocprof v1."""
    return names_in(head) == _STATISTICS


def group(paths: list[Path]) -> list[list[Path]]:
    """Put NAME.db, NAME.json and NAME.csv together, which one run wrote."""
    groups: dict[tuple[str, str], list[Path]] = {}
    for path in paths:
        groups.setdefault((str(path.parent), inputs.plain_name(path)), []).append(path)
    return list(groups.values())


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read the files of one name.

    Parameters
    ----------
    paths
        NAME.db, NAME.json and NAME.csv, or some of them.
    rank
        Rank to give the process, over what the names of its files say.

    Returns
    -------
    Trace
        On the clock of the node's boot; of counters without times, in the order of dispatches.

    Raises
    ------
    ReadError
        No file can be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    issues = IssueLog(str(paths[0]))
    held = _chosen(_read_all(paths, issues), issues)
    for log in held.logs:
        issues.extend(log)
    dispatches = [dispatches_of(rows, issues) for rows in held.dispatches]
    events = sum(log.events() for log in held.logs)
    events += sum(int(d.weight.sum()) for d in dispatches)
    events += sum(rows.count for rows in held.tables.values())
    tables, dispatches = once(sized(tied(apart(held.tables))), dispatches, issues)
    found = Found(
        paths=paths,
        format=ROCPROF_V1.name,
        tool=TOOL,
        told=told_by(held.path),
        events=events,
        tables=list(tables.values()),
        dispatches=dispatches,
    )
    return described(trace_of_found(found, rank, issues), paths)


@dataclass
class _Held:
    """What a file holds, and what was lost of it."""

    path: Path
    tables: dict[str, Rows]
    dispatches: list[Rows]
    logs: list[IssueLog]

    @property
    def dispatched(self) -> int:
        """Rows of dispatches."""
        return sum(rows.count for rows in self.dispatches)


def _read_all(paths: list[Path], issues: IssueLog) -> list[_Held]:
    """Each file by itself, that which holds most first; those that cannot be read are left out."""
    found: list[_Held] = []
    failed: list[ReadError] = []
    for path in sorted(paths, key=lambda p: _rank(inputs.head(p))):
        log = IssueLog(issues.source)
        try:
            found.append(_Held(path, *_tables_in(path, log), [log]))
        except ReadError as error:
            failed.append(error)
    if not found:
        raise failed[0]
    for lost in failed:
        issues.add(LEFT_OUT, 1, str(lost)[:160])
    return found


def _rank(head: bytes) -> int:
    return 0 if head.startswith(MAGIC) else 1 if rocprof_v1_json.sniff(head) else 2


def _tables_in(path: Path, issues: IssueLog) -> tuple[dict[str, Rows], list[Rows]]:
    head = inputs.head(path)
    if head.startswith(MAGIC):
        return rocprof_v1_db.tables_of(path, issues)
    if rocprof_v1_json.sniff(head):
        return rocprof_v1_json.tables_of(path, issues)
    return {}, csv_tables(path, TOOL, issues)


def _chosen(files: list[_Held], issues: IssueLog) -> _Held:
    """What the files hold together, each event once.

    Calls and operations come from the first file that has any, dispatches from that with most.
    """
    calls = next((f for f in files if f.tables), files[0])
    most = max(files, key=lambda f: f.dispatched)
    for file in files:
        if file not in (calls, most if most.dispatched else calls):
            issues.add(SAME, 1, str(file.path))
    logs = calls.logs if calls is most else calls.logs + most.logs
    return _Held(files[0].path, calls.tables, most.dispatches, logs)


ROCPROF_V1 = Converter(
    name="rocprof-v1",
    description="rocprof (v1) tables, JSON and databases",
    versions="ROCm 2 to 7",
    sniff=sniff,
    confirms=confirms,
    group=group,
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
