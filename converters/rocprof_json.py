"""rocprofv3's JSON, ROCm 6.2 to 7.13: one file for a process, or several processes in one.

Every record is an event of the source. Those of ``counter_collection`` are nodes where the file
holds no kernel trace; where it does, the fault ``counter-row`` counts them. A counter's value is
the sum over its instances, as in the CSV files.

Format: rocprofiler-sdk's ``lib/output/generateJSON.cpp``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from chopper_interop.converters import rocprof_devices, rocprof_owners
from chopper_interop.converters.rocprof_agents import Agent, id_of, is_garbled, with_ordinals
from chopper_interop.converters.rocprof_counters import Counts
from chopper_interop.converters.rocprof_files import Told, run_name, told_by
from chopper_interop.converters.rocprof_json_rows import SAMPLES, Tables
from chopper_interop.converters.rocprof_reach import OUT_OF_REACH, within
from chopper_interop.converters.rocprof_records import (
    KEY,
    Process,
    processes_of,
    rank_in,
)
from chopper_interop.converters.rocprof_tables import AGENT_FACTS
from chopper_interop.converters.rocprof_trace import Recording, trace_of
from chopper_interop.errors import ReadError
from chopper_interop.files import inputs
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.converters.rocprof_rows import Rows
    from chopper_interop.trace import Trace

SAMPLED = Fault(
    "sample-not-read",
    Severity.LOSS,
    "Samples of program counters and streamed counters were left out.",
    events=True,
)

_BEGIN = re.compile(rb'\s*\{\s*"' + KEY.encode() + rb'"\s*:')
_GPU = 2
_COUNTERS = "counter_collection"


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is rocprofv3's JSON."""
    return _BEGIN.match(head) is not None


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
        found = processes_of(inputs.read(path, issues), issues)
        parts = [_Part(process, path.name, issues) for process in found]
    except msgspec.ValidationError as error:
        raise ReadError(f"it is not what rocprofv3 writes: {error}", path=path) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReadError(
            f"it is no whole JSON: {error}", path=path, hint="was the profiler stopped as it wrote?"
        ) from error
    except RecursionError as error:
        raise ReadError("its values are nested too deeply", path=path) from error
    return trace_of(_recording(path, found, parts, rank, issues), issues)


class _Part:
    """The tables of one process."""

    def __init__(self, process: Process, where: str, issues: IssueLog) -> None:
        made = Tables(process, where)
        self.pid = process.metadata.process
        _note_ids(process, where, issues)
        self.events = 0
        self.tables: list[Rows] = []
        self.counted: list[Any] = []
        for name, raw in {**process.buffer_records, **process.callback_records}.items():
            if name.startswith(SAMPLES):
                samples = len(msgspec.json.decode(raw, type=list[msgspec.Raw]))
                issues.add(SAMPLED, samples, name)
                self.events += samples
            elif name == _COUNTERS:
                counted = made.counted(raw)
                self.counted.append((within(counted[0], issues), *counted[1:]))
                self.events += self.counted[-1][0].count
            else:
                rows = within(made.rows(name, raw), issues)
                self.events += rows.count
                self.tables += [rows] if rows.count else []


def _note_ids(process: Process, where: str, issues: IssueLog) -> None:
    """Count the ids of the process and of its agents that cannot be."""
    ids = [process.metadata.pid]
    for agent in process.agents:
        ids += [agent.node_id, agent.logical_node_id, agent.logical_node_type_id]
    garbled = [number for number in ids if is_garbled(number)]
    issues.add(OUT_OF_REACH, len(garbled), f"{where}: {garbled[0]}"[:80] if garbled else "")


def _recording(
    path: Path, found: list[Process], parts: list[_Part], rank: int | None, issues: IssueLog
) -> Recording:
    tables = [rows for part in parts for rows in part.tables]
    counted = [c for part in parts for c in part.counted if c[0].count]
    every = [*tables, *(c[0] for c in counted)]
    pids = [np.full(t.count, p.pid, np.int64) for p in parts for t in p.tables]
    pids += [np.full(c[0].count, p.pid, np.int64) for p in parts for c in p.counted if c[0].count]
    numbering = rocprof_devices.numbering(every, [a for p in found for a in _agents(p)])
    devices = rocprof_devices.devices(every, numbering)
    told = _told(path, found)
    owners = rocprof_owners.owners(every, pids, devices, told, rank, issues)
    host = {p.metadata.process: p.metadata.node.hostname for p in found}
    ranks = tuple(replace(r, host=host.get(r.pid, r.host)) for r in owners.ranks)
    split = len(tables)
    counts = [
        Counts(rows, process, device, np.ones(rows.count, np.int64), dispatch, name, value)
        for (rows, dispatch, name, value), process, device in zip(
            counted, owners.process[split:], devices[split:], strict=True
        )
    ]
    return Recording(
        paths=[path],
        format=ROCPROFV3_JSON.name,
        events=sum(part.events for part in parts),
        owners=replace(owners, ranks=ranks),
        numbering=numbering,
        tables=list(zip(tables, owners.process[:split], devices[:split], strict=True)),
        counts=counts,
        run=run_name(told, set(host)) if counts else told.run,
    )


def _told(path: Path, found: list[Process]) -> Told:
    """What the file's name tells, or what the tool put into it."""
    told = told_by(path)
    stated = rank_in(found[0].metadata.config) if len(found) == 1 else -1
    return replace(told, rank=stated) if stated >= 0 else told


def _agents(process: Process) -> list[Agent]:
    return with_ordinals(
        [
            Agent(
                node=a.node,
                logical=a.logical,
                is_gpu=a.type == _GPU,
                name=a.product_name or a.name,
                ordinal=id_of(a.logical_node_type_id) if a.type == _GPU else -1,
                host=process.metadata.node.hostname,
                facts=tuple((fact, str(v)) for c, fact in AGENT_FACTS if (v := getattr(a, c))),
            )
            for a in process.agents
        ]
    )


ROCPROFV3_JSON = Converter(
    name="rocprofv3-json",
    description="rocprofv3 JSON",
    versions="ROCm 6.2 to 7.13",
    sniff=sniff,
    read=read,
    carries="kernels, HIP, HSA, RCCL, rocDecode and rocJPEG calls, roctx markers, copies and "
    "allocations with their sizes, scratch, hardware counters of dispatches, launches, agents",
)
