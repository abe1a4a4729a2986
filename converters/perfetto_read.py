"""Reading Perfetto traces: track events of any producer, those of ROCm's tools and our own best.

What is not a track event (ftrace, process statistics, …) is counted by its kind. rocprofv3 moves
kernels that overlap on a queue apart; where a slice carries `begin_ns` and `end_ns` these are its
times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import plausible, progress
from chopper_interop.build import TraceBuilder
from chopper_interop.converters import perfetto_read_kinds as kinds
from chopper_interop.converters.perfetto_read_annotations_text import (
    NO_FACTS,
    OUR_FACTS,
    REAL_FACTS,
)
from chopper_interop.converters.perfetto_read_arguments import TASK, Arguments, arguments
from chopper_interop.converters.perfetto_read_events_decode import OTHER
from chopper_interop.converters.perfetto_read_nodes import Labels, NodeMaker
from chopper_interop.converters.perfetto_read_places import places
from chopper_interop.converters.perfetto_read_ranks import meta, ranks
from chopper_interop.converters.perfetto_read_recording import Recording
from chopper_interop.converters.perfetto_read_samples import samples
from chopper_interop.converters.perfetto_read_slices import Slices, slices
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array
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
_DERIVED = "derived"


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one Perfetto trace.

    Parameters
    ----------
    paths
        The file, alone in a list.
    rank
        Rank to give it, over what it says itself. Not for files that hold several processes.

    Returns
    -------
    Trace
        Of a rank for each process that has slices.

    Raises
    ------
    ReadError
        It cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    return _trace(Recording(path, issues), rank)


def _trace(recording: Recording, given: int | None) -> Trace:
    """Everything."""
    progress.start(TASK, len(recording.events.ts), "events")
    issues, ours, builder = recording.issues, recording.ours, TraceBuilder()
    ts, keep = recording.times()
    found, labels = _slices(recording, ts, keep)
    tool = recording.tool(labels.categories)
    args = _arguments(recording, tool, found, builder)
    recording.without_texts()
    used = sorted({labels.places[t].pid for t in np.unique(labels.track[found.begin]).tolist()})
    known = ranks(recording, used, given)
    nodes = NodeMaker(recording, tool, found, labels, args, builder).made(known.by_pid)
    samples(
        builder, recording.events, recording.lists, ts, keep, recording.tracks, known.by_pid, tool,
        issues, recording.about, ours=ours,
    )  # fmt: skip
    builder.meta = meta(recording, builder, tool, known, nodes)
    trace = builder.finish()
    plausible.check(trace, issues)
    return trace.with_meta(issues=tuple(issues))


def _slices(recording: Recording, ts: Array, keep: Array) -> tuple[Slices, Labels]:
    """Slices among the events, and what all events are called; events that are none are counted."""
    events, issues = recording.events, recording.issues
    issues.add(OTHER_EVENT, np.count_nonzero(keep & (events.type == OTHER)))
    track, told = places(events, recording.tracks, recording.about, ours=recording.ours)
    names, name = recording.named(events.name_at, events.name_len)
    found = slices(np.where(keep, events.type, OTHER), ts, track, name, events.dur, issues)
    further = np.count_nonzero(keep[recording.lists.counter_event])
    recording.counted += len(ts) - np.count_nonzero(found.end >= 0) + further
    some = np.where(events.category_len > 0, events.category_len, -1)
    categories, category = recording.named(events.category_at, some)
    if recording.ours:
        found = _without_derived(found, category, categories, issues)
    several = np.maximum(events.categories[found.begin] - 1, 0)
    issues.add(FURTHER_CATEGORIES, np.count_nonzero(several))
    return found, Labels(track, told, name, names, category, categories)


def _without_derived(
    found: Slices, category: Array, categories: list[str], issues: IssueLog
) -> Slices:
    if _DERIVED not in categories:
        return found
    own = category[found.begin] != categories.index(_DERIVED)
    issues.add(DERIVED_SLICES, np.count_nonzero(~own))
    return Slices(found.begin[own], found.end[own], found.ts[own], found.dur[own])


def _arguments(recording: Recording, tool: str, found: Slices, builder: TraceBuilder) -> Arguments:
    """Arguments of slices, with facts of our columns or of rocprofv3's counters."""
    facts_of = REAL_FACTS if tool == kinds.ROCPROF else NO_FACTS
    return arguments(
        recording.packets.buffer, recording.events, recording.texts, found.begin, found.end,
        facts_of=OUR_FACTS if recording.ours else facts_of, builder=builder, issues=recording.issues,
    )  # fmt: skip
