"""Reading Perfetto traces: track events of any producer, those of ROCm's tools and our own best.

Other data (ftrace, process statistics, …) is counted by its kind. rocprofv3 moves kernels that
overlap on a queue apart; where a slice carries `begin_ns` and `end_ns` these are its times.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chopper_interop import progress, sanity_checks
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.perfetto.chopper_metadata import DERIVED_CATEGORY
from chopper_interop.converters.perfetto.read import kinds
from chopper_interop.converters.perfetto.read.annotations_text import (
    CHOPPER_ENTRIES,
    NO_ENTRIES,
    REAL_ENTRIES,
)
from chopper_interop.converters.perfetto.read.arguments import TASK, SliceArguments, read_arguments
from chopper_interop.converters.perfetto.read.counters import CounterReader
from chopper_interop.converters.perfetto.read.events_decode import OTHER
from chopper_interop.converters.perfetto.read.lanes import track_lanes
from chopper_interop.converters.perfetto.read.nodes import Labels, NodeKinds, NodeMaker
from chopper_interop.converters.perfetto.read.recording import DecodedPackets
from chopper_interop.converters.perfetto.read.slices import Slices, match_slices
from chopper_interop.io import inputs
from chopper_interop.issues import RANK_ASSUMED, Fault, IssueLog
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.schemas.meta import ASSUMED, Meta, Rank, Source
from chopper_interop.trace import Trace

PROCESSES_AS_RANKS = Fault.info(
    "processes-as-ranks",
    "Processes without a rank in their names or labels were numbered by their process ids.",
)
_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d{1,7})", re.IGNORECASE)

OTHER_EVENT = Fault.loss_of_events(
    "event-type-unknown", "Events of a type not known here were left out."
)
DERIVED_SLICES = Fault.info_of_events(
    "slices-derived",
    "Slices of iterations and phases, which our writer draws of annotations, are no nodes.",
)
FURTHER_CATEGORIES = Fault.loss(
    "further-categories",
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
    recording = DecodedPackets(path, issues)
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


def _slices(recording: DecodedPackets, ts: Array, has_time: Array) -> tuple[Slices, Labels]:
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


def _arguments(
    recording: DecodedPackets, tool: str, slices: Slices, builder: TraceBuilder
) -> SliceArguments:
    """Read the arguments of slices, with our writer's columns or rocprofv3's counters."""
    entry_source = REAL_ENTRIES if tool == kinds.ROCPROF else NO_ENTRIES
    return read_arguments(
        recording.packets.buffer, recording.events, recording.texts, slices.begin, slices.end,
        entry_source=CHOPPER_ENTRIES if recording.from_chopper else entry_source,
        builder=builder, issues=recording.issues,
    )  # fmt: skip


@dataclass(frozen=True)
class Ranks:
    """Ranks of processes.

    Parameters
    ----------
    by_pid
        Process id → rank.
    known_by
        Source of the ranks, as in `meta.Rank`.
    """

    by_pid: dict[int, int]
    known_by: str


def assign_ranks(recording: DecodedPackets, used: list[int], user_rank: int | None) -> Ranks:
    """Assign ranks to the processes that have slices: by the user, labels, file name, or order.

    Parameters
    ----------
    recording
        The trace.
    used
        Ids of these processes in ascending order.
    user_rank
        Rank that the user chose, if any.
    """
    tracks, issues = recording.tracks, recording.issues
    with_counters = {tracks.process_of(u) for u, t in tracks.by_uuid.items() if t.is_counter}
    labels = {pid: tracks.rank_of(pid) for pid in [*used, *sorted(with_counters)]}
    if user_rank is not None and len(used) <= 1:
        return Ranks(dict.fromkeys(used, user_rank), "user")
    labelled = {pid: rank for pid, rank in labels.items() if rank is not None}
    if used and all(pid in labelled for pid in used) and _are_distinct(labelled, used):
        return Ranks(labelled, "labels")
    in_name = _IN_NAME.search(recording.path.name)
    if len(used) == 1 and in_name:
        return Ranks({used[0]: int(in_name.group(1))}, "name")
    issues.add(PROCESSES_AS_RANKS, len(used) if len(used) > 1 else 0)
    issues.add(RANK_ASSUMED, int(len(used) == 1))
    return Ranks({pid: number for number, pid in enumerate(used)}, ASSUMED)


def _are_distinct(labelled: dict[int, int], used: list[int]) -> bool:
    return len({labelled[pid] for pid in used}) == len(used)


def build_meta(
    recording: DecodedPackets, builder: TraceBuilder, tool: str, ranks: Ranks, nodes: NodeKinds
) -> Meta:
    """Build the metadata of the trace, when all else of it is in the builder."""
    lanes = builder.lanes()
    work = is_any(nodes.kind, GPU_WORK)
    used = {lanes[i] for i in np.unique(nodes.lane[work]).tolist()}
    devices = sorted({d for _, d, _, _ in used if d >= 0})
    by_rank = {r: [d for rr, d, _, _ in used if rr == r and d >= 0] for r in ranks.by_pid.values()}
    with_lanes = {lane[0] for lane in lanes}
    meta_ranks = tuple(
        Rank(
            r,
            pid=pid if pid > 0 else -1,
            device=min(by_rank.get(r) or [-1]),
            known_by=ranks.known_by,
        )
        for pid, r in sorted(ranks.by_pid.items(), key=lambda item: item[1])
        if r >= 0 and r in with_lanes
    )
    has_agents = tool == kinds.ROCPROF
    gpus = tuple(
        replace(recording.metadata.model(d), source=tool, agent=d if has_agents else -1)
        for d in devices
    )
    source = Source(
        str(recording.path),
        "perfetto",
        tool,
        inputs.sha256(recording.path),
        recording.path.stat().st_size,
        int(recording.event_count),
        len(nodes.kind),
    )
    return Meta(
        job=inputs.plain_name(recording.path),
        clock=recording.metadata.clock(recording.clocks.name),
        offsets=recording.clocks.offsets,
        clocks=tuple(dict.fromkeys(recording.metadata.fits)),
        ranks=meta_ranks,
        devices=gpus,
        sources=(source,),
        issues=tuple(recording.issues),
    )
