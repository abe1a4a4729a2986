"""Traces of the tables of ROCm's profilers, whatever files they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import sanity_checks
from chopper_interop.arrays import Array
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.rocm import devices as rocm_devices
from chopper_interop.converters.rocm import processes
from chopper_interop.converters.rocm.dispatch_counters import DispatchCounters, add_counters
from chopper_interop.converters.rocm.lanes import LaneAdder
from chopper_interop.converters.rocm.nodes import NodeAdder, link_launches
from chopper_interop.converters.rocm.tables import COPIES, KERNELS
from chopper_interop.converters.rocm.unlaunched_work import count_unlaunched_work
from chopper_interop.io import memory
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.meta import BOOTTIME, Meta, Source
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.agents import Agent, DeviceNumbering
    from chopper_interop.converters.rocm.file_names import PathInfo
    from chopper_interop.converters.rocm.processes import RowOwners
    from chopper_interop.converters.rocm.rows import TableRows

TOOL = "rocprofv3"


@dataclass(frozen=True)
class SampledCounters:
    """Counters that were sampled in time.

    Parameters
    ----------
    series
        Process, device, name and unit of each series.
    series_of_sample
        Series of each sample.
    ts, value
        Time (ns) and value of each sample.
    """

    series: list[tuple[int, int, str, str]]
    series_of_sample: Array
    ts: Array
    value: Array


@dataclass(frozen=True)
class AttributedTables:
    """Tables whose rows have a process and a device.

    Parameters
    ----------
    tables
        Rows, process and device of each table, in the order in which the tables were given.
    owners
        Processes and ranks.
    numbering
        How devices are numbered.
    pids
        All process ids.
    """

    tables: list[tuple[TableRows, Array, Array]]
    owners: RowOwners
    numbering: DeviceNumbering
    pids: set[int]


@dataclass(frozen=True)
class RocmRecording:
    """Recording of one run of one or several processes.

    Parameters
    ----------
    paths
        Its files.
    format
        Name of the format.
    events
        Number of events in the files.
    owners
        Processes and ranks of the rows.
    numbering
        How devices are numbered.
    tables
        Its tables but those of counters, each with the process and device of its rows.
    counts
        Counters of dispatches.
    run
        Name of the run if it is one of counters.
    tool
        The tool that wrote the files.
    samples
        Counters that were sampled in time.
    """

    paths: Sequence[Path]
    format: str
    events: int
    owners: RowOwners
    numbering: DeviceNumbering
    tables: list[tuple[TableRows, Array, Array]]
    counts: list[DispatchCounters] = field(default_factory=list)
    run: str = ""
    tool: str = TOOL
    samples: list[SampledCounters] = field(default_factory=list)


def attribute(
    tables: Sequence[TableRows],
    agents: Sequence[Agent],
    info: PathInfo,
    rank: int | None,
    issues: IssueLog,
    *,
    pids: list[Array] | None = None,
) -> AttributedTables:
    """Determine the process and the device of each row.

    Parameters
    ----------
    tables
        All tables of a source.
    agents
        The known agents; may be empty.
    info
        Facts by the files' names.
    rank
        Rank by the user.
    issues
        Log of what had to be assumed.
    pids
        Process id of each row of each table, where the source states them all.
    """
    numbering = rocm_devices.device_numbering(tables, agents)
    devices = rocm_devices.row_devices(tables, numbering)
    if pids is None:
        pids = processes.row_pids(tables, devices, info.pid, issues)
    owners = processes.assign_ranks(tables, pids, devices, info, rank, issues)
    return AttributedTables(
        tables=list(zip(tables, owners.process, devices, strict=True)),
        owners=owners,
        numbering=numbering,
        pids={int(pid) for column in pids for pid in np.unique(column)},
    )


def build_trace(recording: RocmRecording, issues: IssueLog) -> Trace:
    """Build the trace: counters after the kernels that they are added to, and edges at the end.

    The recording has no tables any more afterwards: all of them take as much memory as the trace.
    """
    builder = TraceBuilder(_meta(recording))
    size = sum(path.stat().st_size for path in recording.paths)
    rank = recording.owners.rank
    lanes = LaneAdder(builder, _work(recording))
    nodes = NodeAdder(builder, lanes, rank, issues)
    while recording.tables:
        nodes.add(*recording.tables.pop(0))
        memory.give_back(size)
    for counters in recording.counts:
        add_counters(nodes, counters)
    link_launches(nodes)
    nodes.added.clear()
    memory.give_back(size)
    for sampled in recording.samples:
        series = [
            builder.series(int(rank[process]), name, unit, recording.format, device=device)
            for process, device, name, unit in sampled.series
        ]
        builder.samples(
            np.array(series, np.int32)[sampled.series_of_sample], sampled.ts, sampled.value
        )
    trace = builder.finish(keep=False)
    sanity_checks.check(trace, issues)
    count_unlaunched_work(trace, issues)
    source = replace(trace.meta.sources[0], nodes=trace.nodes.num_rows)
    return trace.with_meta(issues=tuple(issues), sources=(source,))


def _work(recording: RocmRecording) -> list[tuple[Array, Array, TableRows]]:
    """Rank, device and rows of each table of kernels and copies."""
    work = [t for t in recording.tables if t[0].form in (KERNELS, COPIES)]
    work += [(c.dispatches, c.process, c.device) for c in recording.counts]
    rank = recording.owners.rank
    return [(rank[process].astype(np.int64), device, rows) for rows, process, device in work]


def _meta(recording: RocmRecording) -> Meta:
    paths = recording.paths
    size = sum(path.stat().st_size for path in paths)
    source = Source(
        str(paths[0]), recording.format, recording.tool, size=size, events=recording.events
    )
    return Meta(
        job=paths[0].parent.name or recording.tool,
        clock=BOOTTIME,
        run=recording.run,
        ranks=recording.owners.ranks,
        devices=tuple(replace(d, source=recording.tool) for d in recording.numbering.devices()),
        sources=(source,),
        facts=recording.numbering.facts(),
    )
