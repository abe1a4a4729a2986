"""rocpd, the database that rocprofv3 writes since ROCm 7.0, and rocprofiler-systems on demand.

Every row of a table of events is an event of the source, and so is every row of counters: these
become counters of the dispatches, or series. The whole is read by columns, table by table in the
order of the file, and joined here: the databases have no indexes.

Format: rocprofiler-sdk's ``lib/output/generateRocpd.cpp`` and its tables, schemas 3 to 3.0.5.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from chopper_interop.converters.rocm import devices as rocm_devices
from chopper_interop.converters.rocm.agents import Agent, pci_address, valid_id, with_ordinals
from chopper_interop.converters.rocm.database_parts import (
    NOT_READ,
    PC_SAMPLES,
    DatabasePart,
    parts_of,
)
from chopper_interop.converters.rocm.dispatch_counters import SAMPLES_NOT_READ
from chopper_interop.converters.rocm.file_names import path_info, run_name
from chopper_interop.converters.rocm.number_limits import without_impossible_numbers
from chopper_interop.converters.rocm.recording import RocmRecording, build_trace
from chopper_interop.converters.rocm.tables import AGENT_FACTS
from chopper_interop.converters.rocpd import processes
from chopper_interop.converters.rocpd.calls import Calls
from chopper_interop.converters.rocpd.columns import READ
from chopper_interop.converters.rocpd.counters import counted, counts_of, sampled_of
from chopper_interop.converters.rocpd.event_tables import EventTable, EventTableBuilder
from chopper_interop.converters.rocpd.events import document
from chopper_interop.converters.rocpd.rows import PartTables
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs, memory
from chopper_interop.io.sqlite import INTEGER, TEXT, Database
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.meta import REALTIME
from chopper_interop.trace import Trace

# Numbers of a UUID that are read, and values that a byte has.
_UUID_BYTES, _BYTE = 8, 256

_UNIX_NS = 10**18
"""Times from here on are no times since boot."""


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one database.

    Parameters
    ----------
    paths
        The file, alone in a list.
    rank
        Rank to give it, over what it says itself. Not for databases of several processes.

    Returns
    -------
    Trace
        On the clock of the node's boot.

    Raises
    ------
    ReadError
        It cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    size = inputs.size(path)
    with Database(path, issues) as base:
        parts = parts_of(base, path.name)
        if not parts:
            raise ReadError("it has none of the tables of a rocpd database", path=path)
        for part in parts[:1]:  # of many parts none is large
            part.ahead(READ)
        # what is read of all tables is dropped before nodes are made of the columns that are needed
        contents = [_Contents(part, place, issues) for place, part in enumerate(parts)]
        recording = _recording(path, contents, rank, issues)
        del contents
        memory.give_back(size)
        trace = build_trace(recording, issues)
    if trace.nodes.num_rows and trace.meta.origin_ns >= _UNIX_NS:
        return trace.with_meta(clock=REALTIME)
    return trace


@dataclass
class _Contents:
    """Data of one part of the database.

    Parameters
    ----------
    part, place
        The part and its number.
    issues
        Log in which omitted rows are counted.
    """

    part: DatabasePart
    place: int
    issues: IssueLog
    events: int = 0
    tables: list[EventTable] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.processes = processes.PartProcesses(self.part, self.place)
        self.agents = agents(self.part)
        self.builder = EventTableBuilder(self.part, self.issues)
        for table, column in (("info_agent", "extdata"), ("info_process", "environment")):
            self.builder.note_unreadable(self.part.read(table, {column: TEXT}).texts(column))
        gpu = PartTables(self.builder, renamed=processes.renamed(self.part))
        host = Calls(self.builder)
        self.kernels = self._without_impossible_numbers(gpu.kernels())
        self.instants = self._without_impossible_numbers(host.instants())
        self.calls = self._without_impossible_numbers(host.calls())
        self.counted = counted(self.builder, self.kernels, self.instants, self.calls, self.issues)
        others = [gpu.copies(), *gpu.allocations(), gpu.graphs(), *gpu.syncs()]
        self.tables = [
            self.kernels,
            self.instants,
            self.calls,
            *map(self._without_impossible_numbers, others),
        ]
        self.events = self.counted.events + sum(table.rows.count for table in self.tables)
        self._count_others()

    def _without_impossible_numbers(self, table: EventTable) -> EventTable:
        return replace(table, rows=without_impossible_numbers(table.rows, self.issues))

    def _count_others(self) -> None:
        """Count what is not read: samples of program counters, and tables that are not known."""
        for table in PC_SAMPLES:
            samples = self.part.count(table)
            self.issues.add(SAMPLES_NOT_READ, samples, self.part.where)
            self.events += samples
        for name in self.part.unknown():
            rows = self.part.base.read(name, {"id": INTEGER}).num_rows
            self.issues.add(NOT_READ, rows, name)
            self.events += rows


def _recording(
    path: Path, contents: list[_Contents], rank: int | None, issues: IssueLog
) -> RocmRecording:
    rows_of_tables = [table.rows for part in contents for table in part.tables]
    numbering = rocm_devices.device_numbering(
        rows_of_tables, [a for part in contents for a in part.agents]
    )
    devices = rocm_devices.row_devices(rows_of_tables, numbering)
    info = path_info(path)
    processes_of_tables = [(table, part.processes) for part in contents for table in part.tables]
    owners = processes.owners(processes_of_tables, devices, info, rank, issues)
    gpus = {device.device for device in numbering.devices()}
    tables, counts, samples = [], [], []
    at = 0
    for part in contents:
        process = owners.process[at : at + len(part.tables)]
        device = devices[at : at + len(part.tables)]
        counts.append(counts_of(part.counted, part.kernels, process[0], device[0]))
        timed = [part.instants, part.calls]
        samples.append(sampled_of(part.counted, part.builder, timed, process[1:3], gpus))
        for table, *place in zip(part.tables, process, device, strict=True):
            all_rows = np.arange(table.rows.count)
            kept = np.flatnonzero(~part.counted.instants) if table is part.instants else all_rows
            tables.append((table.rows.take(kept), place[0][kept], place[1][kept]))
        at += len(part.tables)
    has_counts = any(c is not None for c in counts)
    return RocmRecording(
        paths=[path],
        format="rocpd",
        events=sum(part.events for part in contents),
        owners=owners,
        numbering=numbering,
        tables=[table for table in tables if table[0].count],
        counts=[c for c in counts if c is not None],
        run=run_name(info, {r.pid for r in owners.ranks}) if has_counts else info.run,
        samples=[s for s in samples if s is not None],
    )


def agents(part: DatabasePart) -> list[Agent]:
    """The processors of a part's nodes."""
    numbers = ("id", "nid", "absolute_index", "type_index")
    texts = ("type", "name", "product_name", "extdata")
    table = part.read("info_agent", dict.fromkeys(numbers, INTEGER) | dict.fromkeys(texts, TEXT))
    nodes = part.read("info_node", {"id": INTEGER, "hostname": TEXT})
    hosts = dict(zip(nodes.number("id").tolist(), nodes.texts("hostname"), strict=True))
    columns = [table.number(c).tolist() for c in numbers] + [table.texts(c) for c in texts]
    result = []
    for row, node, absolute, ordinal, kind, name, product, more in zip(*columns, strict=True):
        number = valid_id(absolute if absolute >= 0 else row)
        details = document(more)
        is_gpu = kind.upper() == "GPU"
        result.append(
            Agent(
                node=number,
                logical=number,
                is_gpu=is_gpu,
                name=product or name,
                ordinal=valid_id(ordinal) if is_gpu else -1,
                host=hosts.get(node, ""),
                facts=tuple(
                    (f, str(v)) for c, f in AGENT_FACTS if (v := _fact({"name": name} | details, c))
                ),
                pci=pci_address(_whole(details, "location_id"), _whole(details, "domain"))
                if is_gpu
                else "",
                uuid=_uuid(details) if is_gpu else "",
            )
        )
    return with_ordinals(result)


def _whole(details: dict[str, Any], name: str) -> int:
    value = details.get(name)
    return value if isinstance(value, int) else -1


def _fact(details: dict[str, Any], name: str) -> str:
    value = details.get(name)
    return str(value) if isinstance(value, int | str) and value else ""


def _uuid(details: dict[str, Any]) -> str:
    """The unique id of a GPU as ``rocminfo`` writes it; the tool gives its bytes."""
    inner = details.get("uuid")
    octets = inner.get("bytes") if isinstance(inner, dict) else None
    values = list(octets.values()) if isinstance(octets, dict) else octets
    if not isinstance(values, list):
        return ""
    low = values[:_UUID_BYTES]
    if len(low) < _UUID_BYTES or not all(isinstance(v, int) and 0 <= v < _BYTE for v in low):
        return ""
    number = int.from_bytes(bytes(low), "little")
    return f"GPU-{number:016x}" if number else ""
