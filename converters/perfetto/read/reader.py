"""Reading Perfetto traces: track events of any producer, those of ROCm's tools and our own best.

Other data (ftrace, process statistics, …) is counted by its kind. rocprofv3 moves kernels that
overlap on a queue apart; where a slice carries `begin_ns` and `end_ns` these are its times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import progress, sanity_checks
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.perfetto.chopper_metadata import DERIVED_CATEGORY
from chopper_interop.converters.perfetto.read import kinds
from chopper_interop.converters.perfetto.read.annotations_text import (
    CHOPPER_ENTRIES,
    NO_ENTRIES,
    REAL_ENTRIES,
)
from chopper_interop.converters.perfetto.read.arguments import TASK, Arguments, read_arguments
from chopper_interop.converters.perfetto.read.counters import CounterReader
from chopper_interop.converters.perfetto.read.events_decode import OTHER
from chopper_interop.converters.perfetto.read.lanes import track_lanes
from chopper_interop.converters.perfetto.read.nodes import Labels, NodeMaker
from chopper_interop.converters.perfetto.read.ranks import assign_ranks, build_meta
from chopper_interop.converters.perfetto.read.recording import Recording
from chopper_interop.converters.perfetto.read.slices import Slices, match_slices
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

OTHER_EVENT = Fault(
    "event-type-unknown",
    Severity.LOSS,
    "Events of a type not known here were left out.",
    events=True,
)
DERIVED_SLICES = Fault(
    "slices-derived",
    Severity.INFO,
    "Slices of iterations and phases, which our writer draws of annotations, are no nodes.",
    events=True,
)
FURTHER_CATEGORIES = Fault(
    "further-categories",
    Severity.LOSS,
    "Slices with several categories: the first was taken, the others were left out.",
)


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one Perfetto trace.

    Parameters
    ----------
    paths
        The file, alone in a list.
    rank
        Rank to give it, whatever its labels are. Not for files that hold several processes.

    Returns
    -------
    Trace
        Has one rank for each process that has slices.

    Raises
    ------
    ReadError
        It cannot be read at all. Smaller losses are counted in ``meta.issues``.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    recording = Recording(path, issues)
    progress.start(TASK, len(recording.events.ts), "events")
    builder = TraceBuilder()
    ts, has_time = recording.event_times()
    slices, labels = _slices(recording, ts, has_time)
    tool = recording.tool(labels.categories)
    args = _arguments(recording, tool, slices, builder)
    recording.release_texts()
    used = sorted({labels.lanes[t].pid for t in np.unique(labels.track[slices.begin]).tolist()})
    ranks = assign_ranks(recording, used, rank)
    nodes = NodeMaker(recording, tool, slices, labels, args, builder).add_nodes(ranks.by_pid)
    CounterReader(recording, tool, ranks.by_pid, builder).add_series(ts, has_time)
    builder.meta = build_meta(recording, builder, tool, ranks, nodes)
    trace = builder.finish()
    sanity_checks.check(trace, issues)
    return trace.with_meta(issues=tuple(issues))


def _slices(recording: Recording, ts: Array, has_time: Array) -> tuple[Slices, Labels]:
    """Return the slices, and the labels of all events; events that are no slices are counted."""
    events, issues = recording.events, recording.issues
    from_chopper = recording.from_chopper
    issues.add(OTHER_EVENT, np.count_nonzero(has_time & (events.type == OTHER)))
    track, lanes = track_lanes(
        events, recording.tracks, recording.metadata, from_chopper=from_chopper
    )
    names, name = recording.distinct_texts(events.name_at, events.name_len)
    type_ = np.where(has_time, events.type, OTHER)
    slices = match_slices(type_, ts, track, name, events.dur, issues)
    extra_values = np.count_nonzero(has_time[recording.lists.counter_event])
    recording.event_count += len(ts) - np.count_nonzero(slices.end >= 0) + extra_values
    length = np.where(events.category_len > 0, events.category_len, -1)
    categories, category = recording.distinct_texts(events.category_at, length)
    if from_chopper:
        slices = _without_derived(slices, category, categories, issues)
    further = np.maximum(events.categories[slices.begin] - 1, 0)
    issues.add(FURTHER_CATEGORIES, np.count_nonzero(further))
    return slices, Labels(track, lanes, name, names, category, categories)


def _without_derived(
    slices: Slices, category: Array, categories: list[str], issues: IssueLog
) -> Slices:
    if DERIVED_CATEGORY not in categories:
        return slices
    keep = category[slices.begin] != categories.index(DERIVED_CATEGORY)
    issues.add(DERIVED_SLICES, np.count_nonzero(~keep))
    return Slices(slices.begin[keep], slices.end[keep], slices.ts[keep], slices.dur[keep])


def _arguments(recording: Recording, tool: str, slices: Slices, builder: TraceBuilder) -> Arguments:
    """Read the arguments of slices, with our writer's columns or rocprofv3's counters."""
    entry_source = REAL_ENTRIES if tool == kinds.ROCPROF else NO_ENTRIES
    return read_arguments(
        recording.packets.buffer, recording.events, recording.texts, slices.begin, slices.end,
        entry_source=CHOPPER_ENTRIES if recording.from_chopper else entry_source,
        builder=builder, issues=recording.issues,
    )  # fmt: skip
