"""rocprof (v1), which came with ROCm until 7.x: tables, Chrome JSON, databases.

``rocprof -o NAME.csv`` writes the same events into NAME.csv, NAME.json and NAME.db: they are one
source, of which each event is taken once.

Formats: ``bin/tblextr.py``, ``bin/sqlitedb.py`` and ``bin/dform.py`` of ROCm/rocprofiler.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop.converters.rocm.agents import hardware_fields, number_in, pci_address, valid_id
from chopper_interop.converters.rocm.dispatch_recording import (
    SourceTables,
    build_source_trace,
    read_csv_tables,
)
from chopper_interop.converters.rocm.dispatch_tables import dispatch_table
from chopper_interop.converters.rocm.file_names import RANK_OF_PROCESS, path_info
from chopper_interop.converters.rocm.sniff import is_v1_json
from chopper_interop.converters.rocm.tables import DISPATCHES
from chopper_interop.converters.rocprof.v1 import chrome_trace, database
from chopper_interop.converters.rocprof.v1.sections import (
    merge_kernels,
    split_operations,
    with_copy_sizes,
    with_distinct_correlation,
)
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.io.sqlite_files import MAGIC
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.registry import with_option_texts
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.rows import TableRows
    from chopper_interop.schemas.meta import Device

_BEGIN = b'"otherData"'
_ENTRY = re.compile(r'"Agent(?P<agent>\d{1,4})\.(?P<key>[^"\n]{1,80})"\s*:\s*"(?P<value>[^"\n]*)"')
_FACTS = {
    "Name": "gfx",
    "ComputeUnit": "cu_count",
    "SIMDsperCU": "simd_per_cu",
    "MaxClockFreq.(MHz)": "max_engine_clk_mhz",
}
"""Keys of rocminfo, without blanks → names of facts, as of rocprofv3's agents."""

TOOL = "rocprof"
SAME = Fault.info(
    "same-events-in-another-file",
    "Files of one name hold the same events: each was taken once, and these were left out.",
)
LEFT_OUT = Fault.loss(
    "file-left-out", "A file cannot be read and was left out; other files of its name were read."
)


@with_option_texts(RANK_OF_PROCESS)
def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read the files of one name.

    Parameters
    ----------
    paths
        NAME.db, NAME.json and NAME.csv, or some of them.

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
    combined = _combine(_read_all(paths, issues), issues)
    for log in combined.logs:
        issues.extend(log)
    dispatches = [dispatch_table(rows, issues) for rows in combined.dispatches]
    events = sum(log.events() for log in combined.logs)
    events += sum(int(d.weight.sum()) for d in dispatches)
    events += sum(rows.count for rows in combined.tables.values())
    tables = with_copy_sizes(with_distinct_correlation(split_operations(combined.tables)))
    tables, dispatches = merge_kernels(tables, dispatches, issues)
    source = SourceTables(
        paths=paths,
        format="rocprof-v1",
        tool=TOOL,
        info=path_info(combined.path),
        events=events,
        tables=list(tables.values()),
        dispatches=dispatches,
    )
    return with_gpu_facts(build_source_trace(source, rank, issues), paths)


@dataclass
class _FileTables:
    """Tables of a file, and logs of what was lost of it."""

    path: Path
    tables: dict[str, TableRows]
    dispatches: list[TableRows]
    logs: list[IssueLog]

    @property
    def dispatch_count(self) -> int:
        """Number of rows of dispatches."""
        return sum(rows.count for rows in self.dispatches)


def _read_all(paths: list[Path], issues: IssueLog) -> list[_FileTables]:
    """Read each file, in order of preference; those that cannot be read are left out."""
    files: list[_FileTables] = []
    failed: list[ReadError] = []
    for path in sorted(paths, key=lambda p: _preference(inputs.head(p))):
        log = IssueLog(issues.source)
        try:
            files.append(_FileTables(path, *_read_file(path, log), [log]))
        except ReadError as error:
            failed.append(error)
    if not files:
        raise failed[0]
    for failure in failed:
        issues.add(LEFT_OUT, 1, str(failure)[:160])
    return files


def _preference(head: bytes) -> int:
    """Order files by how much they hold: databases, then JSON, then tables."""
    return 0 if head.startswith(MAGIC) else 1 if is_v1_json(head) else 2


def _read_file(path: Path, issues: IssueLog) -> tuple[dict[str, TableRows], list[TableRows]]:
    head = inputs.head(path)
    if head.startswith(MAGIC):
        return database.read_database(path, issues)
    if is_v1_json(head):
        return chrome_trace.read_trace(path, issues)
    return {}, read_csv_tables(path, TOOL, issues, only=(DISPATCHES,))


def _combine(files: list[_FileTables], issues: IssueLog) -> _FileTables:
    """Combine the files, so that each event is taken once.

    Calls and operations come from the first file that has any, dispatches from the file with the
    largest number of them.
    """
    calls = next((f for f in files if f.tables), files[0])
    largest = max(files, key=lambda f: f.dispatch_count)
    for file in files:
        if file not in (calls, largest if largest.dispatch_count else calls):
            issues.add(SAME, 1, str(file.path))
    logs = calls.logs if calls is largest else calls.logs + largest.logs
    return _FileTables(files[0].path, calls.tables, largest.dispatches, logs)


def with_gpu_facts(trace: Trace, paths: list[Path]) -> Trace:
    """Add the files' facts of GPUs to the devices, which are numbered as agents or from 0."""
    by_file = [_gpu_entries(path) for path in paths if is_v1_json(inputs.head(path))]
    if not any(by_file):
        return trace
    by_agent = {node: entries for gpus in by_file for node, entries in gpus.items()}
    by_ordinal = dict(enumerate(by_agent[node] for node in sorted(by_agent)))
    devices = (
        _with_facts(d, by_agent.get(d.agent) if d.agent >= 0 else by_ordinal.get(d.ordinal))
        for d in trace.meta.devices
    )
    return trace.with_meta(devices=tuple(devices))


def _gpu_entries(path: Path) -> dict[int, dict[str, str]]:
    """Return the entries of each GPU, by the number of its node."""
    data = inputs.read(path).tobytes()
    begin = data.rfind(_BEGIN)
    text = data[begin:].decode("utf-8", "replace") if begin >= 0 else ""
    agents: dict[str, dict[str, str]] = {}
    for entry in _ENTRY.finditer(text):
        agents.setdefault(entry["agent"], {}).setdefault(entry["key"], entry["value"])
    return {
        node: entries
        for entries in agents.values()
        if entries.get("DeviceType") == "GPU"
        and (node := valid_id(number_in(entries.get("Node", "")))) >= 0
    }


def _with_facts(device: Device, entries: dict[str, str] | None) -> Device:
    if entries is None:
        return device
    facts = {fact: entries[key] for key, fact in _FACTS.items() if key in entries}
    uuid = entries.get("Uuid", "")
    return replace(
        device,
        name=device.name or entries.get("MarketingName", ""),
        uuid=device.uuid or (uuid if uuid.startswith("GPU-") and len(uuid) > len("GPU-XX") else ""),
        pci=device.pci or pci_address(number_in(entries.get("BDFID", "")), 0),
        **hardware_fields(facts),
    )
