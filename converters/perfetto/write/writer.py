"""Writing Perfetto traces, packet by packet.

A packet is written once and never looked at again, so a trace of any size takes the memory of
one chunk. Rules of the format that shape this writer (Perfetto v58, ``track_event.proto`` and the
trace processor's slice tracker): an END closes the topmost open slice of its track, so slices
that overlap without nesting need tracks of their own; packets of one track must come in nesting
order; an arrow is a flow id that two slices share, and needs a fresh one.
"""

from __future__ import annotations

import hashlib
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from chopper_interop import progress
from chopper_interop.arrays.interning import TextTable, empty_text_table
from chopper_interop.arrays.members import is_any
from chopper_interop.converters.perfetto.chopper_metadata import DERIVED_CATEGORY, metadata_packet
from chopper_interop.converters.perfetto.write import derived_tracks as derived_slices
from chopper_interop.converters.perfetto.write import events_encode as encode
from chopper_interop.converters.perfetto.write import slice_data as slice_columns
from chopper_interop.converters.perfetto.write.tracks import (
    CounterLane,
    TrackAllocator,
    dispatch_lanes,
    sampled_lanes,
)
from chopper_interop.io import outputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.categories import PERFETTO_CATEGORY
from chopper_interop.schemas.kinds import EdgeKind, LaneKind
from chopper_interop.schemas.meta import REALTIME

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chopper_interop.arrays.types import Array
    from chopper_interop.converters.perfetto.write.derived_tracks import CriticalPath, DerivedTrack
    from chopper_interop.trace import Trace

    _SliceData = tuple[encode.Arguments, encode.Columns, encode.Lists, TextTable, TextTable]

_DERIVED_IID = 255

OUTSIDE_WINDOW = Fault.info(
    "samples-outside-window",
    "Telemetry from long before or after the profiled time is not drawn; -O all_samples=yes does.",
)

ARROW_KINDS = (
    EdgeKind.LAUNCH,
    EdgeKind.FWDBWD,
    EdgeKind.EVENT,
    EdgeKind.SYNC,
    EdgeKind.COMM,
    EdgeKind.DATA,
    EdgeKind.HANDOVER,
)
"""Edges that are drawn; calls and orders can be seen without."""

WITHOUT_ARROW = Fault.info(
    "edges-without-arrow",
    "Dependencies between slices of one track have no arrow, and are not in the picture.",
)

_CHUNK = 8 << 20
"""Bytes written at once. Chosen: few calls for a trace of GB, little memory."""
_SCRATCH = 4 << 20
"""Bytes for one event and one annotation, half each; a larger slice enlarges it."""
_NAMES_PER_PACKET = 1000
"""Interned texts per packet. Chosen: packets stay small where texts are a thousand bytes long."""
_MAX_DEPTH = 500
"""The trace processor drops what is nested deeper than 512 (``slice_tracker.h``)."""
_CLOCKS = {REALTIME: proto.BUILTIN_CLOCK_REALTIME}
_TASK = "writing Perfetto"


def write(
    trace: Trace,
    path: Path,
    *,
    args: bool = True,
    derived: bool = True,
    all_samples: bool = False,
) -> IssueLog:
    """Write a trace for Perfetto's UI and trace processor.

    Parameters
    ----------
    trace
        Any trace.
    path
        ``….pftrace``, or ``….pftrace.gz`` to have it gzipped.
    args
        Give slices what else their source recorded of them, as arguments.
    derived
        Add tracks of the critical path, where an analysis found it, and of iterations,
        phases and layers. Their slices have the category "derived".
    all_samples
        Draw telemetry from long before and after the nodes' time too.

    Returns
    -------
    IssueLog
        How many samples lay outside the nodes' time and were left out, and how many edges have
        no arrow.
    """
    issues = IssueLog("Perfetto")
    progress.start(_TASK, trace.nodes.num_rows, "events")
    with outputs.file(path) as stream:
        writer = PerfettoWriter(trace, stream, args=args)
        left_out = writer.write(derived=derived, all_samples=all_samples)
    issues.add(OUTSIDE_WINDOW, left_out)
    dependency = trace.array("kind", "edges") == EdgeKind.DEPENDENCY
    issues.add(WITHOUT_ARROW, np.count_nonzero(dependency & ~has_arrow(trace)))
    return issues


class PerfettoWriter:
    """Writes one trace to a stream.

    Parameters
    ----------
    trace
        Any trace.
    stream
        An open file.
    args
        True if slices carry their nodes' arguments.
    """

    def __init__(self, trace: Trace, stream: IO[bytes], *, args: bool) -> None:
        self.trace = trace
        self.stream = stream
        self.tracks = TrackAllocator(trace, _first_uuid(trace))
        self.columns = slice_columns.NodeColumns(trace, with_args=args)
        self.flows, self.flow_runs = _flows(trace, self.tracks.first_uuid)
        self.out = np.empty(_CHUNK, np.uint8)
        self.scratch = np.empty(_SCRATCH, np.uint8)

    def write(self, *, derived: bool, all_samples: bool) -> int:
        """Write preamble, slices lane by lane, and counters; return how many samples it left out."""
        self._write_preamble()
        for rows in self.trace.rank_rows.values():
            self._write_rank(rows)
        if derived:
            for path in derived_slices.critical_paths(self.trace):
                self._write_critical_path(path)
            for track in derived_slices.derived_tracks(self.trace):
                self._write_derived(track)
        left_out = self._write_counter_lanes(all_samples=all_samples)
        lanes, uncertainty_ns = self.tracks.lanes_and_uncertainty()
        metadata = metadata_packet(self.trace, lanes, uncertainty_ns, self.flow_runs)
        metadata.trusted_packet_sequence_id = encode.SEQUENCE
        self._write_messages([metadata])
        return left_out

    def _write_preamble(self) -> None:
        meta = self.trace.meta
        first = proto.TracePacket()
        first.trusted_packet_sequence_id = encode.SEQUENCE
        first.sequence_flags = 1  # SEQ_INCREMENTAL_STATE_CLEARED
        clock = _CLOCKS.get(meta.clock, proto.BUILTIN_CLOCK_BOOTTIME)
        first.trace_packet_defaults.timestamp_clock_id = clock
        snapshot = proto.TracePacket()
        snapshot.trusted_packet_sequence_id = encode.SEQUENCE
        snapshot.clock_snapshot.primary_trace_clock = clock
        snapshot.clock_snapshot.clocks.add(clock_id=clock, timestamp=max(meta.origin_ns, 0))
        system = proto.TracePacket()
        system.system_info.tracing_service_version = outputs.MARK
        self._write_messages([system, snapshot, first])
        categories = [
            *((int(kind), text) for kind, text in PERFETTO_CATEGORY.items()),
            (_DERIVED_IID, DERIVED_CATEGORY),
        ]
        self._write_interned("event_names", self.columns.names)
        self._write_interned("event_categories", categories)
        self._write_interned("debug_annotation_names", self.columns.fixed_names)
        self._write_interned("debug_annotation_string_values", self.columns.fixed_texts)

    def _write_rank(self, rows: slice) -> None:
        """Write all slices of one rank, lane after lane."""
        lane = self.trace.array("lane")[rows]
        # a stable sort by lane keeps the nodes of a lane in order of start, longest first
        order = np.argsort(lane, kind="stable")
        ordered, order = lane[order], order + rows.start
        firsts = np.flatnonzero(np.diff(ordered, prepend=-1))
        for first, last in zip(firsts, [*firsts[1:], len(order)], strict=True):
            self._write_lane(int(ordered[first]), order[first:last])

    def _write_lane(self, lane: int, nodes: Array) -> None:
        kind = LaneKind(self.tracks.lanes[lane]["kind"])
        on_gpu = kind in (LaneKind.STREAM, LaneKind.QUEUE, LaneKind.COPY)
        ts = self.trace.array("ts")[nodes] + self.trace.meta.origin_ns
        dur = self.trace.array("dur")[nodes]
        # kernels are not inside each other, even where their times are: no nesting on GPU lanes
        row = encode.rows_without_overlap(ts, dur, 1 if on_gpu else _MAX_DEPTH)
        uuids = np.array([self.tracks.lane(lane, part) for part in range(row.max() + 1)], np.int64)
        slices = encode.Slices(
            ts=ts,
            dur=dur,
            uuid=uuids[row],
            row=row,
            name=self.trace.array("name")[nodes].astype(np.int64) + 1,
            category=self.trace.array("kind")[nodes].astype(np.int64),
        )
        arguments = self.columns.arguments(nodes)
        columns, lists = self.columns.columns(nodes), self.columns.lists(nodes, self.flows)
        tables = self.columns.interned(arguments.buffer)
        self._write_slices(slices, uuids, (arguments, columns, lists, *tables))
        progress.advance(_TASK, len(nodes))

    def _write_slices(self, slices: encode.Slices, uuids: Array, data: _SliceData) -> None:
        """Write slices of some tracks with their data; `uuids` are the tracks by row."""
        self._write_descriptors()
        arguments, columns, lists, keys, texts = data
        ends = np.zeros((len(uuids), _MAX_DEPTH), np.int64)
        depth = np.zeros(len(uuids), np.int64)
        done = 0
        while done < len(slices.ts):
            known = int(keys.used[0]), int(texts.used[0])
            size, reached = encode.encode_slices(
                self.out, done, slices, arguments, columns, lists, keys, texts, ends, depth,
                self.scratch,
            )  # fmt: skip
            if reached == done:
                self._enlarge(encode.room_for(done, arguments, columns, lists))
                continue
            self._write_new_texts("debug_annotation_names", keys, arguments.buffer, known[0])
            values = "debug_annotation_string_values"
            self._write_new_texts(values, texts, arguments.buffer, known[1])
            self.stream.write(self.out[:size].data)
            done = reached
        self.stream.write(self.out[: encode.close_slices(self.out, ends, depth, uuids)].data)

    def _enlarge(self, room: int) -> None:
        """Make room for a slice with very long arguments."""
        self.scratch = np.empty(2 * room + 1024, np.uint8)
        self.out = np.empty(room + _CHUNK, np.uint8)

    def _write_derived(self, track: DerivedTrack) -> None:
        rank, device, name, ts, dur, texts = track
        self._write_named(self.tracks.derived(rank, device, name), ts, dur, texts)

    def _write_named(self, track: int, ts: Array, dur: Array, texts: list[str]) -> None:
        """Write slices that have nothing but a name, and do not overlap.

        Their names are interned as they come, as no node has them.
        """
        uuid = np.array([track], np.int64)
        iids = self.columns.further_names(texts)
        self._write_interned("event_names", list(zip(iids, texts, strict=True)))
        n = len(ts)
        slices = encode.Slices(
            ts=ts + self.trace.meta.origin_ns,
            dur=dur,
            uuid=np.full(n, uuid[0]),
            row=np.zeros(n, np.int32),
            name=np.array(iids, np.int64),
            category=np.full(n, _DERIVED_IID, np.int64),
        )
        no_data = slice_columns.no_slice_data(n)
        self._write_slices(slices, uuid, (*no_data, *2 * (empty_text_table(1),)))

    def _write_critical_path(self, path: CriticalPath) -> None:
        """Write the critical path: the class of work that it runs over, below it the nodes."""
        ts, dur, texts = derived_slices.class_segments(self.trace, path)
        position = 1 + 2 * (path.rank + 1) * _MAX_DEPTH
        track = self.tracks.critical(path.rank, derived_slices.CLASS_TRACK, position)
        self._write_named(track, ts, dur, texts)
        ts = path.ts + self.trace.meta.origin_ns
        row = encode.rows_without_overlap(ts, path.dur, _MAX_DEPTH)
        parts = [
            self.tracks.critical(path.rank, "nodes", position + 1 + k) for k in range(row.max() + 1)
        ]
        uuids = np.array(parts, np.int64)
        slices = encode.Slices(
            ts=ts,
            dur=path.dur,
            uuid=uuids[row],
            row=row,
            name=self.trace.array("name")[path.nodes].astype(np.int64) + 1,
            category=np.full(len(ts), _DERIVED_IID, np.int64),
        )
        arguments, _, lists = slice_columns.no_slice_data(len(ts))
        columns = self.columns.columns(path.nodes)
        self._write_slices(slices, uuids, (arguments, columns, lists, *2 * (empty_text_table(1),)))

    def _write_counter_lanes(self, *, all_samples: bool) -> int:
        """Write counter lanes; return how many samples lay outside the window and were left out."""
        window = None if all_samples else self._window()
        left_out = 0
        for lane, ts, value, outside in sampled_lanes(self.trace, window):
            left_out += outside
            if len(ts):  # a lane without samples would be an empty track
                self._write_samples(lane, ts, value)
        for lane, ts, value in dispatch_lanes(self.trace):
            self._write_samples(lane, ts, value)
        return left_out

    def _window(self) -> tuple[int, int] | None:
        """Return the nodes' time and a twentieth more at each end; telemetry often lasts longer."""
        if not self.trace.nodes.num_rows:
            return None
        start = int(self.trace.array("ts").min())
        margin = self.trace.span_ns // 20
        return start - margin, start + self.trace.span_ns + margin

    def _write_samples(self, lane: CounterLane, ts: Array, value: Array) -> None:
        uuid = self.tracks.counter(lane)
        self._write_descriptors()
        ts = ts + self.trace.meta.origin_ns
        step = len(self.out) // encode.SAMPLE_MAX
        for at in range(0, len(ts), step):
            size = encode.encode_samples(self.out, ts[at : at + step], value[at : at + step], uuid)
            self.stream.write(self.out[:size].data)

    def _write_descriptors(self) -> None:
        """Describe the tracks that were allocated since the last call."""
        self._write_messages(
            proto.TracePacket(trusted_packet_sequence_id=encode.SEQUENCE, track_descriptor=d)
            for d in self.tracks.new_descriptors()
        )

    def _write_interned(self, table: str, entries: Sequence[tuple[int, str | bytes]]) -> None:
        """Write the texts behind interned numbers, in a table of ``InternedData``."""
        for at in range(0, len(entries), _NAMES_PER_PACKET):
            packet = proto.TracePacket(trusted_packet_sequence_id=encode.SEQUENCE)
            rows = getattr(packet.interned_data, table)
            for iid, text in entries[at : at + _NAMES_PER_PACKET]:
                if table == "debug_annotation_string_values":
                    rows.add(iid=iid, str=text.encode() if isinstance(text, str) else text)
                else:
                    rows.add(iid=iid, name=text)
            self._write_messages([packet])

    def _write_new_texts(self, table: str, interned: TextTable, buffer: Array, known: int) -> None:
        """Write the texts that occurred in the last chunk for the first time."""
        raws = interned.texts(buffer, known)
        is_value = table == "debug_annotation_string_values"
        first = interned.base + known
        self._write_interned(
            table,
            [
                (first + k, raw if is_value else raw.decode(errors="replace"))
                for k, raw in enumerate(raws)
            ],
        )

    def _write_messages(self, packets: Any) -> None:
        for packet in packets:
            self.stream.write(proto.Trace(packet=[packet]).SerializeToString())


def _first_uuid(trace: Trace) -> int:
    """Return the first track and flow id: it differs between traces, so that two can be joined."""
    meta = trace.meta
    identity = [meta.job, str(meta.origin_ns), *(s.path + s.sha256 for s in meta.sources)]
    digest = hashlib.sha256("\0".join(identity).encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1 | 1 << 20


def has_arrow(trace: Trace) -> Array:
    """Mark the edges that have arrows: of dependencies of no kind, those between tracks only."""
    kind, src, dst = (trace.array(c, "edges") for c in ("kind", "src", "dst"))
    lane = trace.array("lane")
    between = (kind == EdgeKind.DEPENDENCY) & (lane[src] != lane[dst])
    return np.asarray(is_any(kind, ARROW_KINDS) | between)


def _flows(trace: Trace, base: int) -> tuple[tuple[Array, Array], list[tuple[int, int, int, int]]]:
    """Give each edge that is drawn a fresh flow id; those of one kind and direction are consecutive.

    Returns
    -------
    flows, runs
        For each node where its flow ids begin, and the ids; and first id, number, kind and
        direction of each run of ids, see `ChopperMetadata.flows`.
    """
    edges = np.flatnonzero(has_arrow(trace))
    kind, src, dst = (trace.array(c, "edges")[edges] for c in ("kind", "src", "dst"))
    key = kind.astype(np.int64) * 2 + _is_reversed(trace, src, dst)
    order = np.argsort(key, kind="stable")
    key, src, dst = key[order], src[order], dst[order]
    ids = np.arange(1, len(key) + 1, dtype=np.int64) + (base << 31)
    keys, at, count = np.unique(key, return_index=True, return_counts=True)
    runs = [
        (int(ids[a]), n, k // 2, k % 2)
        for k, a, n in zip(keys.tolist(), at.tolist(), count.tolist(), strict=True)
    ]
    # both ends of an edge carry its id: sorted by node, those of node i are first[i]:first[i + 1]
    node = np.concatenate([src, dst])
    order = np.argsort(node, kind="stable")
    first = np.searchsorted(node[order], np.arange(trace.nodes.num_rows + 1))
    return (first, np.tile(ids, 2)[order]), runs


def _is_reversed(trace: Trace, src: Array, dst: Array) -> Array:
    """Mark the edges whose source is read after their target: by time, then position in the file.

    Perfetto lets arrows point forward in this order, so the metadata notes those that do not.
    """
    later, equal = np.zeros(len(src), np.bool_), np.ones(len(src), np.bool_)
    for column in ("ts", "rank", "lane"):
        a, b = (trace.array(column)[node] for node in (src, dst))
        later |= equal & (a > b)
        equal &= a == b
    return later | (equal & (src > dst))
