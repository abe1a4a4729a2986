"""Nodes and their links, made of the slices of a Perfetto trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow
from chopper_interop.columns.members import is_any
from chopper_interop.converters import perfetto_read_facts as facts
from chopper_interop.converters import perfetto_read_kinds as kinds
from chopper_interop.converters import perfetto_read_links as links
from chopper_interop.converters.perfetto_read_annotations_text import UNKNOWN
from chopper_interop.converters.perfetto_read_places import Place, kinds_of, lanes, ways
from chopper_interop.converters.perfetto_read_tracks import NOBODY
from chopper_interop.issues import Fault, Severity
from chopper_interop.schemas.kinds import GPU_LANES, GPU_WORK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chopper_interop.build import TraceBuilder
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.perfetto_read_arguments import Arguments
    from chopper_interop.converters.perfetto_read_recording import Recording
    from chopper_interop.converters.perfetto_read_slices import Slices

TIMES_MOVED = Fault(
    "kernel-times-moved",
    Severity.INFO,
    "Slices were drawn at other times than their begin_ns and end_ns, which were taken.",
)
KERNELS_TOUCH = Fault(
    "kernel-times-touch",
    Severity.INFO,
    "Kernels of a queue that touch exactly: rocprofv3 moves kernels that overlap so, and some "
    "versions write the moved times only.",
)
NEGATIVE = Fault(
    "duration-negative", Severity.LOSS, "Ends before their starts were taken as the starts."
)
_MOST_APART = 10_000_000
"""Nanoseconds that times in arguments may be away from the slice without touching it."""


@dataclass(frozen=True)
class Labels:
    """Where events are, and what they and their categories are called.

    Parameters
    ----------
    track, places
        Of each event its place among `places`.
    name, names
        Of each event its name among `names`, -1 if it has none.
    category, categories
        Of each event its category among `categories`, -1 if it has none.
    """

    track: Array
    places: list[Place]
    name: Array
    names: list[str]
    category: Array
    categories: list[str]


@dataclass(frozen=True)
class Nodes:
    """Kinds and lanes of the nodes that were made."""

    kind: Array
    lane: Array


@dataclass(frozen=True)
class NodeMaker:
    """Makes nodes of slices.

    Parameters
    ----------
    recording
        The trace.
    tool
        Who wrote it.
    found
        Its slices.
    labels
        Places and names of its events.
    args
        Arguments of the slices.
    builder
        Where the nodes go.
    """

    recording: Recording
    tool: str
    found: Slices
    labels: Labels
    args: Arguments
    builder: TraceBuilder

    def made(self, ranks: Mapping[int, int]) -> Nodes:
        """Make them, with their counters and links; `ranks` are those of processes."""
        begin, args, issues = self.found.begin, self.args, self.recording.issues
        kind, owner = self._kind(), self._owner(ranks)
        ts, dur = self._exact()
        columns, correlation = facts.columns(
            self.builder, args, kind, self.recording.about.groups, issues
        )
        if self.tool == kinds.ROCPROF_V2:
            correlation = self._by_flows(correlation)
        names, name = self.labels.names, self.labels.name[begin]
        lane = lanes(
            self.builder, owner, self.labels.track[begin], self.labels.places, kind, args.values,
            ways(names, name), ours=self.recording.ours,
        )  # fmt: skip
        if len(begin):
            self.builder.nodes(
                kind=kind,
                name=arrow.dictionary(np.where(name < 0, len(names), name), [*names, ""]),
                rank=owner,
                lane=lane,
                ts=ts,
                dur=dur,
                correlation=correlation,
                args=(args.at, args.length),
                **columns,
            )
        facts.counters(self.builder, args)
        facts.counters_of_kernels(self.builder, args, kind, issues)
        self._links(kind, owner, ts, correlation)
        if self.tool == kinds.ROCPROF:
            self._note_touching(kind, lane, ts, dur)
        return Nodes(kind, lane)

    def _kind(self) -> Array:
        begin, labels = self.found.begin, self.labels
        on_gpu = np.array([*(p.kind in GPU_LANES for p in labels.places), False])
        return kinds_of(
            self.recording.events.type[begin], labels.category[begin], labels.categories,
            labels.name[begin], labels.names, on_gpu[labels.track[begin]], self.args.values,
        )  # fmt: skip

    def _owner(self, ranks: Mapping[int, int]) -> Array:
        """Rank of each slice."""
        of_place = [max(ranks.get(p.pid, 0), 0) for p in self.labels.places]
        return np.array([*of_place, 0], np.int64)[self.labels.track[self.found.begin]]

    def _exact(self) -> tuple[Array, Array]:
        """Times as arguments tell them, where they are of the same clock."""
        found = self.found
        begin, end = (self.args.values.get(k) for k in ("begin_ns", "end_ns"))
        ts, dur = found.ts, found.dur
        if begin is not None and end is not None and not self.recording.ours:
            told = (begin != UNKNOWN) & (end != UNKNOWN) & (begin >= 0) & (end >= 0)
            near = (begin <= ts + dur + _MOST_APART) & (end >= ts - _MOST_APART)
            told &= near & (end >= begin)
            moved = told & ((begin != ts) | (end - begin != dur))
            self.recording.issues.add(TIMES_MOVED, np.count_nonzero(moved))
            ts, dur = np.where(told, begin, ts), np.where(told, end - begin, dur)
        self.recording.issues.add(NEGATIVE, np.count_nonzero(dur < 0))
        return ts, np.maximum(dur, 0)

    def _slice_of(self) -> Array:
        """Of each event the slice that it begins or ends, -1 without one."""
        found = self.found
        slice_of = np.full(len(self.recording.events.ts) + 1, -1, np.int64)
        ended = found.end >= 0
        slice_of[found.end[ended]] = np.flatnonzero(ended)
        slice_of[found.begin] = np.arange(len(found.begin))
        return slice_of

    def _by_flows(self, correlation: Array) -> Array:
        """Correlation ids of rocprofv2, which are in its flows: XOR the uuid of the process."""
        own = [u for u, t in self.recording.tracks.by_uuid.items() if t.pid != NOBODY and t.tid < 0]
        node = self._slice_of()[self.recording.lists.flow_event]
        if len(own) != 1:
            return correlation
        told = (self.recording.lists.flow ^ np.uint64(own[0])).view(np.int64)
        good = (node >= 0) & (told >= 0)
        correlation = correlation.copy()
        correlation[node[good]] = told[good]
        return correlation

    def _links(self, kind: Array, rank: Array, ts: Array, correlation: Array) -> None:
        node = self._slice_of()[self.recording.lists.flow_event]
        flow, node = self.recording.lists.flow.view(np.int64)[node >= 0], node[node >= 0]
        if self.recording.ours:
            waits = links.waiting(self.labels.name[self.found.begin], self.labels.names)
            links.ours(
                self.builder, flow, node, kind, rank, ts, waits, correlation,
                self.recording.about.flows,
            )  # fmt: skip
        else:
            links.launches(self.builder, flow, node, kind, rank, ts, correlation)

    def _note_touching(self, kind: Array, lane: Array, ts: Array, dur: Array) -> None:
        work = np.flatnonzero(is_any(kind, GPU_WORK))
        work = work[np.lexsort((ts[work], lane[work]))]
        touch = (ts[work[1:]] == (ts + dur)[work[:-1]]) & (lane[work[1:]] == lane[work[:-1]])
        self.recording.issues.add(KERNELS_TOUCH, np.count_nonzero(touch))
