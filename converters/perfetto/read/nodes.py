"""Nodes and edges, made of the slices of a Perfetto trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, arrow
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.perfetto.read import argument_columns, edges, kinds
from chopper_interop.converters.perfetto.read.annotations_text import UNKNOWN
from chopper_interop.converters.perfetto.read.lanes import (
    TrackLane,
    copy_directions,
    slice_kinds,
    slice_lanes,
)
from chopper_interop.converters.perfetto.read.tracks import NO_PROCESS
from chopper_interop.issues import Fault
from chopper_interop.schemas.kinds import GPU_LANES, GPU_WORK

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.perfetto.read.arguments import SliceArguments
    from chopper_interop.converters.perfetto.read.recording import DecodedPackets
    from chopper_interop.converters.perfetto.read.slices import Slices

TIMES_MOVED = Fault.info(
    "kernel-times-moved",
    "Slices were drawn at other times than their begin_ns and end_ns, which were taken.",
)
KERNELS_TOUCH = Fault.info(
    "kernel-times-touch",
    "Kernels of a queue that touch exactly: rocprofv3 moves kernels that "
    "overlap so, and some versions write the moved times only.",
)
NEGATIVE = Fault.loss("duration-negative", "Ends before their starts were taken as the starts.")
_MAX_DISTANCE_NS = 10_000_000
"""Distance up to which times in arguments are taken for those of the slice.

Chosen: far more than rocprofv3 moves a kernel, far less than between clocks that are not related.
"""


@dataclass(frozen=True)
class Labels:
    """Tracks, names and categories of all events.

    Parameters
    ----------
    track, lanes
        Index of each event's track, and the lane of each track.
    name, names
        Index of each event's name, -1 if it has none, and the names.
    category, categories
        Index of each event's category, -1 if it has none, and the categories.
    """

    track: Array
    lanes: list[TrackLane]
    name: Array
    names: list[str]
    category: Array
    categories: list[str]


@dataclass(frozen=True)
class NodeKinds:
    """Kinds and lanes of the nodes that were made."""

    kind: Array
    lane: Array


@dataclass(frozen=True)
class NodeMaker:
    """Makes nodes of slices, with their counters and edges.

    Parameters
    ----------
    recording
        The trace.
    tool
        Tool that wrote it.
    slices
        Its slices.
    labels
        Tracks and names of its events.
    args
        Arguments of the slices.
    builder
        Builder of the trace that is read.
    """

    recording: DecodedPackets
    tool: str
    slices: Slices
    labels: Labels
    args: SliceArguments
    builder: TraceBuilder

    def add_nodes(self, ranks: Mapping[int, int]) -> NodeKinds:
        """Add nodes, counters and edges to the builder; `ranks` are by process id."""
        begin, args, issues = self.slices.begin, self.args, self.recording.issues
        kind, rank = self._kind(), self._rank(ranks)
        ts, dur = self._times()
        columns, correlation = argument_columns.annotation_columns(
            self.builder, args, kind, self.recording.metadata.groups, issues
        )
        if self.tool == kinds.ROCPROF_V2:
            correlation = self._correlation_by_flows(correlation)
        names, name = self.labels.names, self.labels.name[begin]
        lane = slice_lanes(
            self.builder, rank, self.labels.track[begin], self.labels.lanes, kind, args.values,
            copy_directions(names, name), from_chopper=self.recording.from_chopper,
        )  # fmt: skip
        if len(begin):
            self.builder.nodes(
                kind=kind,
                name=arrow.dictionary(np.where(name < 0, len(names), name), [*names, ""]),
                rank=rank,
                lane=lane,
                ts=ts,
                dur=dur,
                correlation=correlation,
                args=(args.at, args.length),
                **columns,
            )
        argument_columns.add_counters(self.builder, args)
        argument_columns.add_kernel_counters(self.builder, args, kind, issues)
        self._add_edges(kind, rank, ts, correlation)
        if self.tool == kinds.ROCPROF:
            self._count_touching(kind, lane, ts, dur)
        return NodeKinds(kind, lane)

    def _kind(self) -> Array:
        begin, labels = self.slices.begin, self.labels
        on_gpu = np.array([*(lane.kind in GPU_LANES for lane in labels.lanes), False])
        return slice_kinds(
            self.recording.events.type[begin], labels.category[begin], labels.categories,
            labels.name[begin], labels.names, on_gpu[labels.track[begin]], self.args.values,
        )  # fmt: skip

    def _rank(self, ranks: Mapping[int, int]) -> Array:
        """Rank of each slice; 0 for slices of processes without one."""
        by_track = [max(ranks.get(lane.pid, 0), 0) for lane in self.labels.lanes]
        return np.array([*by_track, 0], np.int64)[self.labels.track[self.slices.begin]]

    def _times(self) -> tuple[Array, Array]:
        """Starts and durations, ns: those in arguments where they are on the same clock."""
        begin, end = (self.args.values.get(k) for k in ("begin_ns", "end_ns"))
        ts, dur = self.slices.ts, self.slices.dur
        if begin is not None and end is not None and not self.recording.from_chopper:
            known = (begin != UNKNOWN) & (end != UNKNOWN) & (begin >= 0) & (end >= 0)
            near = (begin <= ts + dur + _MAX_DISTANCE_NS) & (end >= ts - _MAX_DISTANCE_NS)
            known &= near & (end >= begin)
            moved = known & ((begin != ts) | (end - begin != dur))
            self.recording.issues.add(TIMES_MOVED, np.count_nonzero(moved))
            ts, dur = np.where(known, begin, ts), np.where(known, end - begin, dur)
        self.recording.issues.add(NEGATIVE, np.count_nonzero(dur < 0))
        return ts, np.maximum(dur, 0)

    def _slice_of(self) -> Array:
        """Return for each event the slice that it begins or ends, -1 without one."""
        slices = self.slices
        slice_of = np.full(len(self.recording.events.ts) + 1, -1, np.int64)
        ended = slices.end >= 0
        slice_of[slices.end[ended]] = np.flatnonzero(ended)
        slice_of[slices.begin] = np.arange(len(slices.begin))
        return slice_of

    def _correlation_by_flows(self, correlation: Array) -> Array:
        """Return correlation ids of rocprofv2, which are in its flows, XOR the process' uuid."""
        tracks = self.recording.tracks.by_uuid.items()
        processes = [uuid for uuid, t in tracks if t.pid != NO_PROCESS and t.tid < 0]
        node = self._slice_of()[self.recording.lists.flow_event]
        if len(processes) != 1:
            return correlation
        ids = (self.recording.lists.flow ^ np.uint64(processes[0])).view(np.int64)
        good = (node >= 0) & (ids >= 0)
        correlation = correlation.copy()
        correlation[node[good]] = ids[good]
        return correlation

    def _add_edges(self, kind: Array, rank: Array, ts: Array, correlation: Array) -> None:
        node = self._slice_of()[self.recording.lists.flow_event]
        flow, node = self.recording.lists.flow.view(np.int64)[node >= 0], node[node >= 0]
        if self.recording.from_chopper:
            waits = edges.is_waiting_call(self.labels.name[self.slices.begin], self.labels.names)
            edges.add_chopper_edges(
                self.builder, flow, node, kind, rank, ts, waits, correlation,
                self.recording.metadata.flows,
            )  # fmt: skip
        else:
            edges.add_launches(self.builder, flow, node, kind, rank, ts, correlation)

    def _count_touching(self, kind: Array, lane: Array, ts: Array, dur: Array) -> None:
        """Count GPU work that begins exactly where the one before it on its lane ends."""
        work = np.flatnonzero(is_any(kind, GPU_WORK))
        work = work[np.lexsort((ts[work], lane[work]))]
        touch = (ts[work[1:]] == (ts + dur)[work[:-1]]) & (lane[work[1:]] == lane[work[:-1]])
        self.recording.issues.add(KERNELS_TOUCH, np.count_nonzero(touch))
