"""A trace of rocprofv3's tables, whatever files they came from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import plausible
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.rocprof_counters import Counts, attach
from chopper_interop.converters.rocprof_lanes import Lanes
from chopper_interop.converters.rocprof_launches import count_missing
from chopper_interop.converters.rocprof_nodes import Nodes, link
from chopper_interop.converters.rocprof_tables import COPIES, KERNELS
from chopper_interop.schemas.meta import BOOTTIME, Meta, Source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocprof_agents import Numbering
    from chopper_interop.converters.rocprof_owners import Owners
    from chopper_interop.converters.rocprof_rows import Rows
    from chopper_interop.issues import IssueLog
    from chopper_interop.trace import Trace

TOOL = "rocprofv3"


@dataclass(frozen=True)
class Sampled:
    """Counters that were sampled in time.

    Parameters
    ----------
    series
        Process, device, name and unit of each series.
    which
        Series of each sample.
    ts, value
        Time (ns) and value of each sample.
    """

    series: list[tuple[int, int, str, str]]
    which: Array
    ts: Array
    value: Array


@dataclass(frozen=True)
class Recording:
    """What one run of one or several processes left.

    Parameters
    ----------
    paths
        Its files.
    format
        Name of the format.
    events
        How many events the files hold.
    owners
        Whose the rows are.
    numbering
        How devices are numbered.
    tables
        Its tables but those of counters, each with the process and device of its rows.
    counts
        Counters of dispatches.
    run
        Name of the run if it is one of counters.
    tool
        Who wrote the files.
    samples
        Counters that were sampled in time.
    """

    paths: Sequence[Path]
    format: str
    events: int
    owners: Owners
    numbering: Numbering
    tables: list[tuple[Rows, Array, Array]]
    counts: list[Counts] = field(default_factory=list)
    run: str = ""
    tool: str = TOOL
    samples: list[Sampled] = field(default_factory=list)


def trace_of(recording: Recording, issues: IssueLog) -> Trace:
    """Make the trace: counters after kernels, to which they go, and edges at the end."""
    builder = TraceBuilder(_meta(recording))
    rank = recording.owners.rank
    work = [t for t in recording.tables if t[0].form in (KERNELS, COPIES)]
    work += [(c.dispatches, c.process, c.device) for c in recording.counts]
    lanes = Lanes(builder, [(rank[p].astype(np.int64), d, rows) for rows, p, d in work])
    nodes = Nodes(builder, lanes, rank, issues)
    for rows, process, device in recording.tables:
        nodes.add(rows, process, device)
    for counts in recording.counts:
        attach(nodes, counts)
    link(nodes)
    for sampled in recording.samples:
        series = [
            builder.series(int(rank[process]), name, unit, recording.format, device=device)
            for process, device, name, unit in sampled.series
        ]
        builder.samples(np.array(series, np.int32)[sampled.which], sampled.ts, sampled.value)
    trace = builder.finish()
    plausible.check(trace, issues)
    count_missing(trace, issues)
    source = replace(trace.meta.sources[0], nodes=trace.nodes.num_rows)
    return trace.with_meta(issues=tuple(issues), sources=(source,))


def _meta(recording: Recording) -> Meta:
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
