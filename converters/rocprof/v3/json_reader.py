"""JSON files of rocprofv3, ROCm 6.2 to 7.13: one file for each process, or one for several.

Every record is an event of the source. Those of ``counter_collection`` are nodes where the file
holds no kernel trace; where it does, the fault ``counter-row`` counts them. A counter's value is
the sum over its instances, as in the CSV files.

Format: rocprofiler-sdk's ``lib/output/generateJSON.cpp``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from chopper_interop.converters.rocm.agents import Agent, is_garbled, valid_id, with_ordinals
from chopper_interop.converters.rocm.dispatch_counters import SAMPLES_NOT_READ, DispatchCounters
from chopper_interop.converters.rocm.file_names import PathInfo, path_info, run_name
from chopper_interop.converters.rocm.number_limits import OUT_OF_RANGE, without_impossible_numbers
from chopper_interop.converters.rocm.recording import RocmRecording, attribute, build_trace
from chopper_interop.converters.rocm.tables import AGENT_FACTS
from chopper_interop.converters.rocprof.v3.json_records import Process, processes_of, rank_in
from chopper_interop.converters.rocprof.v3.json_tables import SAMPLES, RecordTables
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.issues import IssueLog
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.rows import TableRows

_GPU = 2
"""Type of an agent that is a GPU, ``ROCPROFILER_AGENT_TYPE_GPU``."""
_COUNTERS = "counter_collection"


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one JSON file.

    Parameters
    ----------
    paths
        The file, alone in a list.
    rank
        Rank to give it, over what it says itself. Not for files of several processes.

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
    try:
        processes = processes_of(inputs.read(path, issues), issues)
        parts = [_ProcessTables(process, path.name, issues) for process in processes]
    except msgspec.ValidationError as error:
        raise ReadError(f"it is not what rocprofv3 writes: {error}", path=path) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReadError(
            f"it is no complete JSON: {error}",
            path=path,
            hint="was the profiler stopped as it wrote?",
        ) from error
    except RecursionError as error:
        raise ReadError("its values are nested too deeply", path=path) from error
    return build_trace(_recording(path, processes, parts, rank, issues), issues)


class _ProcessTables:
    """The tables of one process, and its counters as `RecordTables.counted` returns them."""

    def __init__(self, process: Process, where: str, issues: IssueLog) -> None:
        records = RecordTables(process, where, issues)
        self.pid = process.metadata.process
        _note_ids(process, where, issues)
        self.events = 0
        self.tables: list[TableRows] = []
        self.counted: list[Any] = []
        for name, raw in {**process.buffer_records, **process.callback_records}.items():
            if name.startswith(SAMPLES):
                samples = len(msgspec.json.decode(raw, type=list[msgspec.Raw]))
                issues.add(SAMPLES_NOT_READ, samples, name)
                self.events += samples
            elif name == _COUNTERS:
                dispatches, *values = records.counted(raw)
                dispatches = without_impossible_numbers(dispatches, issues)
                self.events += dispatches.count
                self.counted += [(dispatches, *values)] if dispatches.count else []
            else:
                rows = without_impossible_numbers(records.rows(name, raw), issues)
                self.events += rows.count
                self.tables += [rows] if rows.count else []


def _note_ids(process: Process, where: str, issues: IssueLog) -> None:
    """Count impossible ids of the process and of its agents."""
    ids = [process.metadata.pid]
    for agent in process.agents:
        ids += [agent.node_id, agent.logical_node_id, agent.logical_node_type_id]
    garbled = [number for number in ids if is_garbled(number)]
    issues.add(OUT_OF_RANGE, len(garbled), f"{where}: {garbled[0]}"[:80] if garbled else "")


def _recording(
    path: Path,
    processes: list[Process],
    parts: list[_ProcessTables],
    rank: int | None,
    issues: IssueLog,
) -> RocmRecording:
    info = _file_info(path, processes)
    tables = [(rows, part.pid) for part in parts for rows in part.tables]
    counted = [(values, part.pid) for part in parts for values in part.counted]
    owned = [*tables, *((values[0], pid) for values, pid in counted)]
    attributed = attribute(
        [rows for rows, _ in owned],
        [agent for process in processes for agent in _agents(process)],
        info,
        rank,
        issues,
        pids=[np.full(rows.count, pid, np.int64) for rows, pid in owned],
    )
    host = {p.metadata.process: p.metadata.node.hostname for p in processes}
    owners = attributed.owners
    ranks = tuple(replace(r, host=host.get(r.pid, r.host)) for r in owners.ranks)
    counters = [
        DispatchCounters(rows, process, device, np.ones(rows.count, np.int64), *values)
        for ((_, *values), _), (rows, process, device) in zip(
            counted, attributed.tables[len(tables) :], strict=True
        )
    ]
    return RocmRecording(
        paths=[path],
        format="rocprofv3-json",
        events=sum(part.events for part in parts),
        owners=replace(owners, ranks=ranks),
        numbering=attributed.numbering,
        tables=attributed.tables[: len(tables)],
        counts=counters,
        run=run_name(info, set(host)) if counters else info.run,
    )


def _file_info(path: Path, processes: list[Process]) -> PathInfo:
    """Return the facts of the file's name, with the rank that the tool wrote into the file."""
    info = path_info(path)
    rank = rank_in(processes[0].metadata.config) if len(processes) == 1 else -1
    return replace(info, rank=rank) if rank >= 0 else info


def _agents(process: Process) -> list[Agent]:
    return with_ordinals(
        [
            Agent(
                node=a.node,
                logical=a.logical,
                is_gpu=a.type == _GPU,
                name=a.product_name or a.name,
                ordinal=valid_id(a.logical_node_type_id) if a.type == _GPU else -1,
                host=process.metadata.node.hostname,
                facts=tuple((fact, str(v)) for c, fact in AGENT_FACTS if (v := getattr(a, c))),
            )
            for a in process.agents
        ]
    )
