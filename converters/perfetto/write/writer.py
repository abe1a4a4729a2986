"""Writing Perfetto traces, packet by packet.

A packet is written once and never looked at again, so a trace of any size takes the memory of
one chunk. Rules of the format that shape this writer (Perfetto v58, ``track_event.proto`` and the
trace processor's slice tracker): an END closes the topmost open slice of its track, so slices
that overlap without nesting need tracks of their own; packets of one track must come in nesting
order; an arrow is a flow id that two slices share, and needs a fresh one.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from chopper_interop import progress, rank_batches
from chopper_interop.arrays import Array, Bytes, arrow, compiled, gather, spill
from chopper_interop.arrays.interning import TextTable, empty_text_table
from chopper_interop.converters.perfetto.chopper_metadata import (
    DERIVED_CATEGORY,
    DrawnTracks,
    Opening,
    metadata_packet,
    opening_packet,
)
from chopper_interop.converters.perfetto.write import critical_path, gpu_packets, parts
from chopper_interop.converters.perfetto.write import events_encode as encode
from chopper_interop.converters.perfetto.write import slice_data as slice_columns
from chopper_interop.converters.perfetto.write.counter_lanes import (
    Samples,
    dispatch_lanes,
    end_of_picture,
    rate_lanes,
    sampled_lanes,
)
from chopper_interop.converters.perfetto.write.derived_tracks import (
    GpuTracks,
    NamedSlices,
    derived_tracks,
    mark_lanes,
    ranks_of,
)
from chopper_interop.converters.perfetto.write.gpu_packets import GpuPackets
from chopper_interop.converters.perfetto.write.slice_data import Flows, has_arrow
from chopper_interop.converters.perfetto.write.tracks import CRITICAL_PATH, FINDINGS, TrackAllocator
from chopper_interop.errors import OptionError, UsageError
from chopper_interop.io import outputs
from chopper_interop.io.background import WriterBehind, ahead, writer_behind
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.categories import PERFETTO_CATEGORY
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import REALTIME
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.perfetto.write.critical_path import CriticalPath

    _LaneRows = tuple[int, tuple[int, int]]
    """A lane, and where its rows begin and end in an order by lanes."""
    _SliceData = tuple[encode.Arguments, encode.Columns, encode.Lists, TextTable, TextTable]
    _Encoder = Callable[..., tuple[int, int]]

_WITHOUT_NESTING = (LaneKind.STREAM, LaneKind.QUEUE, LaneKind.COPY)
_DERIVED_IID = 255
"""Number of the category of derived slices: beyond those of all kinds."""

OUTSIDE_WINDOW = Fault.info(
    "samples-outside-window",
    "Telemetry from long before or after the profiled time is not drawn; -O all_samples=yes does.",
)
MARKS_OUTSIDE = Fault.info(
    "marks-outside-window",
    "Marks that the profiler set long before or after the profiled time are not drawn; "
    "-O all_samples=yes does.",
)

WITHOUT_ARROW = Fault.info(
    "edges-without-arrow",
    "Dependencies between slices of one track have no arrow, and are not in the picture.",
)

BETWEEN_FILES = Fault.info(
    "edges-between-files",
    "Dependencies between ranks, or between steps, have no arrow where each has a file of its own.",
)
BEYOND_FILE = Fault.info(
    "events-beyond-file",
    "Events that last longer than the training steps of a file are in the file in which they begin.",
)
LARGE_FILE = Fault.info(
    "file-large-for-browser",
    "Files may be too large for a browser; -O split=auto writes a folder of smaller ones.",
)

_SPLITS = {
    "no": "no", "false": "no", "0": "no", "yes": "yes", "true": "yes", "1": "yes", "auto": "auto",
}  # fmt: skip
_BLOCK = 1 << 13
"""Slices of lanes whose data is gathered at once. Chosen: calls take little of their time, columns are in the
processor's cache."""
_CHUNK = 8 << 20
"""Bytes written at once. Chosen: few calls for a trace of GB, little memory."""
_SCRATCH = 4 << 20
"""Bytes for one event and for arguments that are kept, a half each; a larger slice enlarges it."""
_NAMES_PER_PACKET = 1000
"""Interned texts per packet. Chosen: packets stay small where texts are a thousand bytes long."""
_JOINED = 1 << 16
"""Bytes of messages that are written at once. Chosen: calls take little of their time."""
_MAX_DEPTH = 500
"""The trace processor drops what is nested deeper than 512 (``slice_tracker.h``)."""
_FIRST_DATE_NS = 946_684_800 * 10**9
"""2000-01-01 UTC: what is called real time before it counts from an origin that was not recorded."""
_TASK = "writing Perfetto"
_ID_BITS = 31
"""Bits of a file's numbers of GPU work below those that differ between files: more than nodes can be."""
_MARGIN = 20
"""Share of the time of the work that is drawn before and after it: one twentieth."""


def write(  # noqa: PLR0913 # options of the format
    trace: Trace,
    path: Path,
    *,
    args: bool = True,
    derived: bool = True,
    all_samples: bool = False,
    split: str = "no",
    split_steps: int = 0,
    gpu_packets: bool = False,
) -> IssueLog:
    """Write a trace for Perfetto's UI and trace processor.

    Parameters
    ----------
    path
        ``….pftrace``, or ``….pftrace.gz`` to have it gzipped.
    args
        Give slices what else their source recorded of them, as arguments.
    derived
        Add tracks of the critical path, where an analysis found it, of iterations, phases, layers,
        exposed communication and idle time, and rates of kernels. Slices on them have the category
        "derived".
    all_samples
        Draw telemetry and the profiler's marks from long before and after the work too.
    split
        ``yes`` writes a folder with a file for each rank, for jobs that are too large for a browser,
        and a manifest by which Perfetto merges those that are put in one archive; ``auto`` a folder with
        one file, or one for each rank, or for some training steps of each, so that none is too large.
    split_steps
        A folder as split=yes, with a file for each rank and so many training steps; by 0 steps are not
        split. Each event is in the file in which it begins; what lies before the first step, or behind
        the last, in that of these.
    gpu_packets
        Write GPU work and counters of GPUs as Perfetto's typed GPU packets too, for tools that
        read the tables ``gpu_slice`` and ``gpu_counter_track``.

    Returns
    -------
    IssueLog
        How many samples and marks lay outside the time of the work and were left out, and how
        many edges have no arrow.
    """
    issues = IssueLog("Perfetto")
    progress.start(_TASK, trace.nodes.num_rows, "events")
    options: dict[str, Any] = {
        "args": args, "derived": derived, "all_samples": all_samples, "gpu_packets": gpu_packets,
    }  # fmt: skip
    if split_steps < 0:
        raise UsageError(f"split_steps is {split_steps}: it is a number of training steps")
    way = _SPLITS.get(split.lower())
    if way is None:
        raise OptionError(f"split={split}: say yes, no or auto")
    if way == "no" and not split_steps:
        _write_file(trace, path, issues, options)
        return issues
    chosen: int | None = split_steps
    if way == "auto" and not split_steps:
        chosen = parts.choose(trace, lambda part: _size(part, options))
    whole = [(parts.WHOLE, "", trace)]
    hosts = {}
    with outputs.folder(path, owns=parts.is_part) as folder:
        for name, host, part in whole if chosen is None else parts.parts(trace, chosen):
            options["part"] = name if chosen else ""
            _write_file(part, folder / name, issues, options)
            hosts[name] = host
        with outputs.file(folder / parts.MANIFEST) as stream:
            stream.write(parts.manifest(hosts).encode())
    if chosen is not None:
        apart, beyond = parts.across_files(trace, chosen)
        issues.add(BETWEEN_FILES, apart)
        issues.add(BEYOND_FILE, beyond)
    return issues


def _size(trace: Trace, options: dict[str, Any]) -> int:
    """Return the bytes of a file of a trace, which is not kept."""
    with Path(os.devnull).open("wb") as stream:
        writer = PerfettoWriter(trace, stream, **options)
        writer.write()
    return writer.size


def _write_file(trace: Trace, path: Path, issues: IssueLog, options: dict[str, Any]) -> None:
    with outputs.file(path) as stream:
        writer = PerfettoWriter(trace, stream, **options)
        writer.write()
        issues.add(LARGE_FILE, writer.size > parts.LARGE_BYTES)
    issues.add(OUTSIDE_WINDOW, writer.samples_outside)
    issues.add(MARKS_OUTSIDE, trace.nodes.num_rows - np.count_nonzero(writer.is_drawn))
    dependency = trace.array("kind", "edges") == EdgeKind.DEPENDENCY
    issues.add(WITHOUT_ARROW, np.count_nonzero(dependency & ~has_arrow(trace)))


class PerfettoWriter:
    """Writes one trace to a stream.

    Parameters
    ----------
    stream
        An open file.
    args
        True if slices carry their nodes' arguments.
    derived
        True if tracks are added that stand for no event of the input.
    all_samples
        True if nothing is left out for its time.
    gpu_packets
        True if typed GPU packets are added.
    part
        Name of the file if a trace has several of one rank.
    """

    def __init__(  # noqa: PLR0913 # options of the format
        self,
        trace: Trace,
        stream: IO[bytes],
        *,
        args: bool,
        derived: bool,
        all_samples: bool,
        gpu_packets: bool = False,
        part: str = "",
    ) -> None:
        self.trace = trace
        self.stream = stream
        self.output: WriterBehind
        self.size = 0
        """Bytes so far, before they are compressed."""
        self.derived = derived
        self.tracks = TrackAllocator(trace, _first_uuid(trace, part))
        self.columns = slice_columns.NodeColumns(trace, with_args=args)
        with_path = derived and trace.has(critical_path.START)
        self.paths = list(critical_path.critical_paths(trace)) if with_path else []
        with spill.when(spill.in_use()):
            self.flows = Flows(trace, self.tracks.first_uuid, [path.nodes for path in self.paths])
        self.gpus = (
            GpuPackets(trace, self.tracks, self.tracks.first_uuid << _ID_BITS)
            if gpu_packets
            else None
        )
        self.gpu_events = self.gpus.of_calls() if self.gpus else None
        self.window = None if all_samples else window_of_work(trace)
        with spill.when(spill.in_use()):
            self.is_drawn = drawn_nodes(trace, self.window)
        self.samples_outside = 0
        self.ended_lanes: Counter[int] = Counter()
        self.out, self.spare = np.empty(_CHUNK, np.uint8), np.empty(_CHUNK, np.uint8)
        # one is filled while the other is written
        self.scratch = np.empty(_SCRATCH, np.uint8)
        self.waiting = bytearray()
        """Messages that are written with what follows."""
        self.opened_row = encode.OpenSlices.of_rows(1, _MAX_DEPTH)

    def write(self) -> None:
        """Write preamble, slices lane by lane, and counters."""
        with writer_behind(self.stream) as self.output:
            self._write_all()

    def _write_all(self) -> None:
        self._write_preamble()
        for rows in _blocks(self.trace):
            self._write_ranks(rows)
            spill.release()
        if self.derived:
            for path, ids in zip(self.paths, self.flows.of_paths, strict=True):
                self._write_critical_path(path, ids)
            for rank, name, row, slices in mark_lanes(self.trace):
                self._write_named(self.tracks.marks(rank, name, row), slices)
            for of_gpus in derived_tracks(self.trace):
                self._write_gpu_tracks(of_gpus)
                spill.release()
        if self.gpus:
            self._write_gpu_packets(self.gpus)
        self._write_counter_lanes()
        drawn = DrawnTracks(
            self.tracks.drawn_lanes(),
            self.tracks.drawn_counters(),
            self.ended_lanes,
            self.flows.runs,
        )
        metadata = metadata_packet(self.trace, drawn)
        metadata.trusted_packet_sequence_id = encode.SEQUENCE
        self._write_messages([metadata])
        self._write_waiting()

    def _write_preamble(self) -> None:
        first = proto.TracePacket()
        first.trusted_packet_sequence_id = encode.SEQUENCE
        first.sequence_flags = 1  # SEQ_INCREMENTAL_STATE_CLEARED
        system = proto.TracePacket()
        system.system_info.tracing_service_version = outputs.MARK
        opening = self._opening_packets()
        self._write_messages([system, *opening, *self._clock_packets(first), first])
        self.tracks.descriptors.append(self.tracks.root())
        categories = [
            *((int(kind), text) for kind, text in PERFETTO_CATEGORY.items()),
            (_DERIVED_IID, DERIVED_CATEGORY),
        ]
        self._write_interned("event_names", self.columns.names)
        self._write_interned("event_categories", categories)
        self._write_interned("debug_annotation_names", self.columns.fixed_names)
        self._write_interned("debug_annotation_string_values", self.columns.fixed_texts)

    def _opening_packets(self) -> list[proto.TracePacket]:
        """Return the packet that says what is in view when the trace is opened."""
        trace = self.trace
        shown = training_steps(trace) or sampled_time(trace)
        if shown is None:
            return []
        ranks = [self.tracks.process_name(rank) for rank in trace.rank_rows]
        top = [CRITICAL_PATH] if trace.has(critical_path.START) else []
        of_marks = [ranks_of(mark, trace.ranks) for mark in trace.meta.marks]
        top += [FINDINGS] if not all(of_marks) else []
        groups = (*top, *ranks, self.tracks.host_name())
        marked = sorted(of_mark[0] for of_mark in of_marks if of_mark)[:1]
        unfolded = (*top, *dict.fromkeys([*ranks[:1], *map(self.tracks.process_name, marked)]))
        if not trace.nodes.num_rows:  # then telemetry is all that there is
            sources = trace.series.column("source").unique().to_pylist()
            unfolded = (self.tracks.host_name(), *sources)
        start, end = (time + trace.meta.origin_ns for time in shown)
        opening = Opening(start, end, groups, unfolded)
        packet = opening_packet(opening)
        packet.trusted_packet_sequence_id = encode.SEQUENCE
        return [packet]

    def _clock_packets(self, first: proto.TracePacket) -> list[proto.TracePacket]:
        """Name the clock of the times in the first packet, and return the snapshot that it needs.

        Without a snapshot times are on the trace processor's own clock, the time since boot.
        """
        meta = self.trace.meta
        is_dated = meta.clock == REALTIME and meta.origin_ns >= _FIRST_DATE_NS
        clock = proto.BUILTIN_CLOCK_REALTIME if is_dated else proto.BUILTIN_CLOCK_BOOTTIME
        first.trace_packet_defaults.timestamp_clock_id = clock
        if not is_dated:
            return []
        snapshot = proto.TracePacket()
        snapshot.trusted_packet_sequence_id = encode.SEQUENCE
        snapshot.clock_snapshot.primary_trace_clock = clock
        snapshot.clock_snapshot.clocks.add(clock_id=clock, timestamp=meta.origin_ns)
        return [snapshot]

    def _write_ranks(self, rows: slice) -> None:
        """Write all slices of some ranks, rank by rank and lane after lane."""
        nodes = _in_order_of_lanes(self.trace, rows)
        nodes = nodes[self.is_drawn[nodes]]
        lane = self.trace.array("lane")[nodes]
        begins = np.flatnonzero(lane[1:] != lane[:-1]) + 1
        bounds = np.array([0, *begins.tolist(), len(lane)]) if len(lane) else begins
        lanes = list(zip(lane[bounds[:-1]].tolist(), pairwise(bounds.tolist()), strict=True))
        del lane
        for of_block in _lane_blocks(lanes):
            first, last = of_block[0][1][0], of_block[-1][1][1]
            self._write_lanes(of_block, nodes[first:last], first)

    def _write_lanes(self, lanes: list[_LaneRows], nodes: Array, first: int) -> None:
        """Write the slices of lanes that follow each other; their rows count from `first`.

        Values of small lanes are gathered at once, those of a large one a part of it at a time.
        """
        spans = [slice(start - first, stop - first) for _, (start, stop) in lanes]
        used = self.columns.used_by(nodes)
        of_lanes = self.columns.arguments_of_parts(nodes, spans)
        row = self._rows_of_lanes(lanes, nodes, first)
        counts = np.maximum.reduceat(row, [span.start for span in spans]) + 1
        uuids_of = (
            np.array([self.tracks.lane(lane, part) for part in range(count)], np.int64)
            for (lane, _), count in zip(lanes, counts.tolist(), strict=True)
        )
        if len(lanes) > 1:
            self._write_small_lanes(spans, self._gathered(nodes, used), of_lanes, row, uuids_of)
        else:
            (arguments,), (uuids,) = of_lanes, uuids_of
            tables = self.columns.interned(arguments.buffer)
            parts = (
                (
                    values.on_tracks(uuids[row[some]], row[some]),
                    (arguments.part(some), values.columns, values.lists, *tables),
                )
                for some in slice_columns.parts_of(len(row))
                for values in [self._gathered(nodes[some], used)]
            )
            self._write_slices(ahead(parts) if len(row) > slice_columns.PART else parts, uuids)
        progress.advance(_TASK, len(nodes))

    def _write_small_lanes(
        self,
        spans: list[slice],
        values: slice_columns.NodeValues,
        of_lanes: list[encode.Arguments],
        row: Array,
        uuids_of: Iterator[Array],
    ) -> None:
        """Write lanes whose values were gathered at once; tracks are made when a lane's turn comes."""
        slices = values.on_tracks(np.empty(len(row), np.int64), row)
        # by what may differ between lanes: texts of several sources, or a copy
        encoders: dict[tuple[Any, int], _Encoder] = {}
        for span, arguments, uuids in zip(spans, of_lanes, uuids_of, strict=True):
            slices.uuid[span] = uuids[row[span]]
            tables = self.columns.interned(arguments.buffer)
            data = arguments, values.columns, values.lists, *tables
            layout = arguments.buffer.dtype, arguments.buffer.flags.num
            if layout not in encoders:
                encoders[layout] = compiled.entry(
                    encode.encode_slices, self.out, 0, 0, 0, slices, *data, self.opened_row,
                    self.scratch,
                )  # fmt: skip
            self._write_slices([(slices, data)], uuids, span, encoders[layout])

    def _rows_of_lanes(self, lanes: list[_LaneRows], nodes: Array, first: int) -> Array:
        """Place nodes of lanes in rows in which they overlap at most by nesting."""
        kinds = [self.tracks.lanes[lane]["kind"] for lane, _ in lanes]
        # kernels are not inside each other, even where their times are: no nesting on GPU lanes
        max_depth = np.where(np.isin(kinds, _WITHOUT_NESTING), 1, _MAX_DEPTH)
        starts = np.array([*(start for _, (start, _) in lanes), lanes[-1][1][1]]) - first
        ts, dur = self.trace.array("ts")[nodes], self.trace.array("dur")[nodes]
        return encode.rows_of_lanes(ts, dur, starts, max_depth)

    def _gathered(
        self, nodes: Array, used: Sequence[slice_columns.AnnotationColumn]
    ) -> slice_columns.NodeValues:
        """Gather what the encoder takes of some nodes."""
        return slice_columns.NodeValues(
            ts=self.trace.array("ts")[nodes] + self.trace.meta.origin_ns,
            dur=self.trace.array("dur")[nodes],
            name=self.trace.array("name")[nodes].astype(np.int64) + 1,
            category=self.trace.array("kind")[nodes].astype(np.int64),
            columns=self.columns.columns(nodes, used),
            lists=self.columns.lists(nodes, self.flows.of_nodes, self.gpu_events),
        )

    def _write_slices(
        self,
        parts: Iterable[tuple[encode.Slices, _SliceData]],
        uuids: Array,
        span: slice | None = None,
        encoder: _Encoder = encode.encode_slices,
    ) -> None:
        """Write slices of some tracks with their data, of which each part has some; `uuids` are the tracks by row.

        Of a part they are those of the span, if one is given; `encoder` is the encoder's code for such data.
        """
        self._write_descriptors()
        opened = self._opened_rows(len(uuids))
        size = 0  # bytes that wait to be written
        for slices, data in parts:
            arguments, columns, lists, keys, texts = data
            done, stop = (span.start, span.stop) if span else (0, len(slices.ts))
            while done < stop:
                if not size:
                    known = int(keys.used[0]), int(texts.used[0])
                size, done = encoder(
                    self.out, size, done, stop, slices, arguments, columns, lists, keys, texts,
                    opened, self.scratch,
                )  # fmt: skip
                if done == stop:
                    break
                if size:
                    self._emit_slices(size, data, known)
                    size = 0
                else:
                    self._enlarge(encode.room_for(done, arguments, columns, lists))
        if size:
            self._emit_slices(size, data, known)
        while opened.depth.any() and (size := encode.close_slices(self.out, opened, uuids)):
            self._emit(self.out[:size])

    def _emit_slices(self, size: int, data: _SliceData, known: tuple[int, int]) -> None:
        """Write slices that are encoded, behind the texts that occur in them for the first time."""
        arguments, _, _, keys, texts = data
        self._write_new_texts("debug_annotation_names", keys, arguments.buffer, known[0])
        self._write_new_texts("debug_annotation_string_values", texts, arguments.buffer, known[1])
        self._emit(self.out[:size])

    def _opened_rows(self, count: int) -> encode.OpenSlices:
        """Room for the open slices of so many rows; of one row the same each time, as all were closed."""
        if count > 1:
            return encode.OpenSlices.of_rows(count, _MAX_DEPTH)
        return self.opened_row

    def _enlarge(self, room: int) -> None:
        """Make room for a slice with very long arguments."""
        self.scratch = np.empty(2 * room + 1024, np.uint8)
        self._make_room(room + _CHUNK)

    def _make_room(self, room: int) -> None:
        """Have room for so many bytes at once."""
        if len(self.out) < room:
            self.out, self.spare = np.empty(room, np.uint8), np.empty(room, np.uint8)

    def _write_named(
        self, track: int, slices: NamedSlices, flows: tuple[Array, Array] | None = None
    ) -> None:
        """Write slices that stand for no event; their names are interned as they come."""
        iids, new = self.columns.further_names(slices.names)
        self._write_interned("event_names", new)
        n = len(slices.ts)
        uuid = np.array([track], np.int64)
        encoded = encode.Slices(
            ts=slices.ts + self.trace.meta.origin_ns,
            dur=slices.dur,
            uuid=np.full(n, track),
            row=np.zeros(n, np.int32),
            name=iids[slices.code],
            category=np.full(n, _DERIVED_IID, np.int64),
        )
        _, columns, lists = slice_columns.no_slice_data(n, flows)
        arguments = slices.encoded_arguments()
        tables = self.columns.interned(arguments.buffer)
        self._write_slices([(encoded, (arguments, columns, lists, *tables))], uuid)

    def _write_gpu_tracks(self, drawn: GpuTracks) -> None:
        """Write tracks of GPUs, each behind its descriptor and the names that occur for the first time."""
        uuids, heads, iids = [], [], np.zeros(len(drawn.names), np.int64)
        for rank, device, name, codes in drawn.tracks:
            uuids.append(self.tracks.derived(rank, device, name))
            new: list[tuple[int, str]] = []
            if not iids[codes].any():
                iids[codes], new = self.columns.further_names(drawn.names[codes])
            packets = (*_interned_packets("event_names", new), *self._descriptor_packets())
            heads.append(b"".join(map(_encoded, packets)))
        count = len(drawn.ts)
        slices = encode.Slices(
            ts=drawn.ts + self.trace.meta.origin_ns,
            dur=drawn.dur,
            uuid=np.repeat(np.array(uuids, np.int64), np.diff(drawn.first)),
            row=np.zeros(count, np.int32),
            name=iids[drawn.code],
            category=np.full(count, _DERIVED_IID, np.int64),
        )
        tracks = encode.Tracks.of_heads(heads, drawn.first)
        self._make_room(encode.TRACK_ROOM + max(map(len, heads), default=0))
        track = k = 0
        while track < len(heads):
            size, track, k = encode.encode_tracks(self.out, track, k, tracks, slices, self.scratch)
            self._emit(self.out[:size])

    def _write_critical_path(self, path: CriticalPath, ids: Array) -> None:
        """Write the tracks of a critical path: merged spans, classes of work, and the nodes.

        An arrow leads from each span to the next, and from each node to its slice on the path.
        """
        segments = critical_path.segments(self.trace, path)
        with_rank = path.rank < 0 and len(self.trace.rank_rows) > 1
        position = 1 + 3 * (path.rank + 1) * _MAX_DEPTH
        spans = critical_path.span_slices(self.trace, segments, with_rank=with_rank)
        classes = critical_path.class_slices(segments, with_rank=with_rank)
        track = self.tracks.critical(path.rank, critical_path.SPAN_TRACK, position)
        self._write_named(track, spans, self.flows.chain(len(spans.ts)))
        track = self.tracks.critical(path.rank, critical_path.CLASS_TRACK, position + 1)
        self._write_named(track, classes)
        self._write_path_nodes(path, position + 2, ids)

    def _write_path_nodes(self, path: CriticalPath, position: int, ids: Array) -> None:
        n, ts = len(path.ts), path.ts + self.trace.meta.origin_ns
        row = encode.rows_without_overlap(ts, path.dur, _MAX_DEPTH)
        name = critical_path.NODE_TRACK
        rows = range(row.max() + 1)
        uuids = np.array([self.tracks.critical(path.rank, name, position + k) for k in rows])
        slices = encode.Slices(
            ts=ts,
            dur=path.dur,
            uuid=uuids[row],
            row=row,
            name=self.trace.array("name")[path.nodes].astype(np.int64) + 1,
            category=np.full(n, _DERIVED_IID, np.int64),
        )
        arguments, _, lists = slice_columns.no_slice_data(n, (np.arange(n + 1), ids))
        columns = self.columns.path_columns(path)
        tables = empty_text_table(1), empty_text_table(1)
        self._write_slices([(slices, (arguments, columns, lists, *tables))], uuids)

    def _write_counter_lanes(self) -> None:
        for samples in sampled_lanes(self.trace, self.window):
            self.samples_outside += samples.outside
            if len(samples.ts):  # a lane without samples would be an empty track
                self._write_samples(samples)
        rates = rate_lanes(self.trace) if self.derived else ()
        for samples in (*dispatch_lanes(self.trace), *rates):
            self._write_samples(samples)

    def _write_gpu_packets(self, gpus: GpuPackets) -> None:
        self._write_messages(gpus.descriptions())
        stages, done = gpus.stages(), 0
        self._make_room(stages.room)
        while done < len(stages.ts):
            size, done = gpu_packets.encode_stages(self.out, done, stages)
            self._emit(self.out[:size])

    def _write_gpu_counter(self, gpus: GpuPackets, samples: Samples) -> None:
        described = gpus.counter(samples, end_of_picture(self.trace))
        if described is None:
            return
        packet, ts, value = described
        self._write_messages([packet])
        step = len(self.out) // gpu_packets.PACKET_MAX
        for at in range(0, len(ts), step):
            chunk = slice(at, at + step)
            numbers = gpus.counter_number(samples.lane)
            size = gpu_packets.encode_values(self.out, ts[chunk], value[chunk], *numbers)
            self._emit(self.out[:size])

    def _write_samples(self, samples: Samples) -> None:
        uuid = self.tracks.counter(samples.lane)
        self.ended_lanes[uuid] += samples.ends
        self._write_descriptors()
        ts, value = samples.ts + self.trace.meta.origin_ns, samples.value
        step = len(self.out) // encode.SAMPLE_MAX
        for at in range(0, len(ts), step):
            size = encode.encode_samples(self.out, ts[at : at + step], value[at : at + step], uuid)
            self._emit(self.out[:size])
        if self.gpus:
            self._write_gpu_counter(self.gpus, samples)

    def _write_descriptors(self) -> None:
        """Describe the tracks that were allocated since the last call."""
        self._write_messages(self._descriptor_packets())

    def _descriptor_packets(self) -> Iterator[proto.TracePacket]:
        for track in self.tracks.new_descriptors():
            yield proto.TracePacket(
                trusted_packet_sequence_id=encode.SEQUENCE, track_descriptor=track
            )

    def _write_interned(self, table: str, entries: Sequence[tuple[int, str | bytes]]) -> None:
        """Write the texts behind interned numbers, in a table of ``InternedData``."""
        self._write_messages(_interned_packets(table, entries))

    def _write_new_texts(self, table: str, interned: TextTable, buffer: Array, known: int) -> None:
        """Write the texts that occurred in the last chunk for the first time."""
        if interned.used[0] == known:
            return
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

    def _emit(self, data: Bytes) -> None:
        """Write bytes; behind a part of `out`, there is another `out` to be filled meanwhile."""
        self._write_waiting()
        self.size += len(data)
        self.output.write(data)
        if data.base is self.out:
            self.out, self.spare = self.spare, self.out

    def _write_messages(self, packets: Iterable[proto.TracePacket]) -> None:
        """Write messages, together with those before and after them."""
        for packet in packets:
            self.waiting += _encoded(packet)
            if len(self.waiting) >= _JOINED:
                self._write_waiting()

    def _write_waiting(self) -> None:
        if self.waiting:
            self.size += len(self.waiting)
            self.output.write(bytes(self.waiting))
            self.waiting.clear()


def _encoded(packet: proto.TracePacket) -> bytes:
    """Return a packet as a trace that has no other."""
    body: bytes = packet.SerializeToString()
    size, length = len(body), bytearray(encode.PACKET)
    while size > 127:  # noqa: PLR2004 # seven bits a byte
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return bytes(length) + body


def _interned_packets(
    table: str, entries: Sequence[tuple[int, str | bytes]]
) -> Iterator[proto.TracePacket]:
    """Yield the packets of texts behind interned numbers, of a table of ``InternedData``."""
    for at in range(0, len(entries), _NAMES_PER_PACKET):
        packet = proto.TracePacket(trusted_packet_sequence_id=encode.SEQUENCE)
        rows = getattr(packet.interned_data, table)
        for iid, text in entries[at : at + _NAMES_PER_PACKET]:
            if table == "debug_annotation_string_values":
                rows.add(iid=iid, str=text.encode() if isinstance(text, str) else text)
            else:
                rows.add(iid=iid, name=text)
        yield packet


def _in_order_of_lanes(trace: Trace, rows: slice) -> Array:
    """Return nodes of some ranks, rank by rank, lane by lane, and of a lane in order of start, longest first."""
    rank, lane = trace.array("rank")[rows], trace.array("lane")[rows]
    first = int(lane.min())
    _, order = gather.group_rows(lane - first, int(lane.max()) - first + 1)
    order = order.astype(np.int32)
    if rank[0] != rank[-1]:
        order = order[np.argsort(rank[order], kind="stable")]
    order += np.int32(rows.start)
    return order


def _blocks(trace: Trace) -> list[slice]:
    """Rows of ranks that are written together: small ones that follow each other."""
    return trace.rank_spans(_BLOCK)


def _lane_blocks(lanes: list[_LaneRows]) -> list[list[_LaneRows]]:
    """Lanes whose data is gathered at once: small ones that follow each other."""
    blocks: list[list[_LaneRows]] = []
    for lane in lanes:
        if blocks and lane[1][1] - blocks[-1][0][1][0] <= _BLOCK:
            blocks[-1].append(lane)
        else:
            blocks.append([lane])
    return blocks


def _first_uuid(trace: Trace, part: str) -> int:
    """Return the first track and flow id: it differs between traces, so that two can be joined."""
    meta = trace.meta
    identity = [meta.job, str(meta.origin_ns), *(s.path + s.sha256 for s in meta.sources)]
    identity += map(str, trace.ranks)  # of which a part of a trace has one
    identity += [part] if part else []  # parts of one rank
    digest = hashlib.sha256("\0".join(identity).encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1 | 1 << 20


def window_of_work(trace: Trace) -> tuple[int, int] | None:
    """Return the time of all nodes but the profiler's marks, and a margin at each end.

    Returns
    -------
    tuple of int or None
        First and last `ts`, ns; None without nodes. Telemetry often lasts longer, and PyTorch's
        profiler marks the end of its recording when it has collected all events.
    """
    work = _span(trace, _is_work)
    if work is None:
        return None
    start, end = work
    margin = (end - start) // _MARGIN
    return start - margin, end + margin


def training_steps(trace: Trace) -> tuple[int, int] | None:
    """Return the time from the first start to the last end of all training steps, as `ts`.

    Without steps it is the time of the work; None without nodes.
    """
    choices = (_is_in_step, _is_work) if trace.has("iteration") else (_is_work,)
    return _span(trace, *choices)


def sampled_time(trace: Trace) -> tuple[int, int] | None:
    """Return the time from the first sample to the last, as `ts`; None without samples."""
    ts = trace.array("ts", "samples")
    return (int(ts.min()), int(ts.max())) if len(ts) else None


def drawn_nodes(trace: Trace, window: tuple[int, int] | None) -> Array:
    """Return the mask of the nodes that are drawn: all but the profiler's marks outside a window."""
    is_drawn, ts = spill.full(trace.nodes.num_rows, value=True, dtype=np.bool_), trace.array("ts")
    if window is None:
        return is_drawn
    for rows in rank_batches.blocks(trace):
        is_drawn[rows] = _is_work(trace, rows) | ((ts[rows] >= window[0]) & (ts[rows] <= window[1]))
    return is_drawn


def _span(trace: Trace, *choices: Callable[[Trace, slice], Array]) -> tuple[int, int] | None:
    """Return the first start and the last end of the nodes of the first choice that has any, or of all nodes.

    A choice returns the mask of its nodes among those of a block of rows.
    """
    for choice in (*choices, _is_any):
        start, end = [], []
        for block in rank_batches.blocks(trace):
            chosen = choice(trace, block)
            if chosen.any():
                ts = trace.array("ts")[block][chosen]
                start.append(int(ts.min()))
                end.append(int((ts + trace.array("dur")[block][chosen]).max()))
        if start:
            return min(start), max(end)
    return None


def _is_any(_: Trace, block: slice) -> Array:
    """Mark all nodes."""
    return np.ones(block.stop - block.start, np.bool_)


def _is_in_step(trace: Trace, block: slice) -> Array:
    """Mark the nodes that are in a training step."""
    column = arrow.single_chunk(trace.nodes["iteration"])
    return arrow.is_valid(column.slice(block.start, block.stop - block.start))


def _is_work(trace: Trace, block: slice) -> Array:
    """Mark the nodes that are work: no instants on the profiler's own lanes."""
    on_profiler = trace.array("kind", "lanes") == LaneKind.PROFILER
    kind = trace.array("kind")[block]
    if not on_profiler.any():
        return np.ones(len(kind), np.bool_)
    return (kind != Kind.INSTANT) | ~on_profiler[trace.array("lane")[block]]
