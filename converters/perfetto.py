"""Perfetto traces: native protobuf with every slice at its exact time, counters, arrows.

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
from chopper_interop.columns.interning import Interned, interned
from chopper_interop.columns.members import is_any
from chopper_interop.converters import perfetto_about, perfetto_critical
from chopper_interop.converters import perfetto_columns as columns_of
from chopper_interop.converters import perfetto_encode as encode
from chopper_interop.converters.perfetto_counters import dispatch_lanes, sampled_lanes
from chopper_interop.converters.perfetto_derived import derived_slices
from chopper_interop.converters.perfetto_read import read
from chopper_interop.converters.perfetto_read_sniff import sniff
from chopper_interop.converters.perfetto_tracks import CounterLane, Tracks
from chopper_interop.files import outputs
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import REALTIME

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

    _About = tuple[encode.Arguments, encode.Columns, encode.Lists, Interned, Interned]

DERIVED = "derived"
"""Category of slices that stand for no event of the input."""

CATEGORIES: dict[int, str] = {int(k): k.name.lower() for k in Kind} | {
    int(Kind.ANNOTATION): "user_annotation",
    int(Kind.PYTHON): "python_function",
    int(Kind.COMM): "communication",
    int(Kind.MEMCPY): "gpu_memcpy",
    int(Kind.MEMSET): "gpu_memset",
    int(Kind.GPU_ANNOTATION): "gpu_user_annotation",
}
"""Kind → category of its slices: the names that PyTorch uses where it has one."""
_DERIVED_IID = 255

OUTSIDE = Fault(
    "samples-outside-window",
    Severity.INFO,
    "Telemetry from long before or after the profiled time is not drawn; -O all_samples=yes does.",
)

ARROWS = (
    EdgeKind.LAUNCH,
    EdgeKind.FWDBWD,
    EdgeKind.EVENT,
    EdgeKind.SYNC,
    EdgeKind.COMM,
    EdgeKind.DATA,
    EdgeKind.HANDOVER,
)
"""Edges that are drawn; calls and orders can be seen without."""

UNDRAWN = Fault(
    "edges-without-arrow",
    Severity.INFO,
    "Dependencies between slices of one track have no arrow, and are not in the picture.",
)

_CHUNK = 8 << 20
_SCRATCH = 4 << 20
_NAMES_PER_PACKET = 1000
_DEEPEST = 500
"""The trace processor drops what is nested deeper than 512."""
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
        Whether slices carry what else their source said of them.
    derived
        Whether to add tracks of the critical path, where an analysis found it, and of iterations,
        phases and layers. Their slices have the category "derived".
    all_samples
        Whether to draw telemetry from long before and after the nodes' time too.

    Returns
    -------
    IssueLog
        How many samples lay outside the nodes' time and were left out, and how many edges have
        no arrow.
    """
    issues = IssueLog("Perfetto")
    progress.start(_TASK, trace.nodes.num_rows, "events")
    with outputs.file(path) as stream:
        left_out = _Writer(trace, stream, args=args).write(derived=derived, all_samples=all_samples)
    issues.add(OUTSIDE, left_out)
    dependency = trace.array("kind", "edges") == EdgeKind.DEPENDENCY
    issues.add(UNDRAWN, np.count_nonzero(dependency & ~drawn(trace)))
    return issues


class _Writer:
    def __init__(self, trace: Trace, stream: IO[bytes], *, args: bool) -> None:
        self.trace = trace
        self.stream = stream
        self.tracks = Tracks(trace, _first_uuid(trace))
        self.columns = columns_of.NodeColumns(trace, with_args=args)
        self.flows, self.about_flows = _flows(trace, self.tracks.first_uuid)
        self.out = np.empty(_CHUNK, np.uint8)
        self.scratch = np.empty(_SCRATCH, np.uint8)
        self.categories = np.arange(256, dtype=np.int64)

    def write(self, *, derived: bool, all_samples: bool) -> int:
        """Write everything: preamble, slices lane by lane, counters; samples left out."""
        self._preamble()
        for rows in self.trace.rank_rows.values():
            self._rank(rows)
        if derived:
            for path in perfetto_critical.paths(self.trace):
                self._critical(path)
            for track in derived_slices(self.trace):
                self._derived(track)
        left_out = self._counter_lanes(all_samples=all_samples)
        about = perfetto_about.packet(self.trace, *self.tracks.told(), self.about_flows)
        about.trusted_packet_sequence_id = encode.SEQUENCE
        self._messages([about])
        return left_out

    def _preamble(self) -> None:
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
        about = proto.TracePacket()
        about.system_info.tracing_service_version = outputs.MARK
        self._messages([about, snapshot, first])
        for iid, name in [*CATEGORIES.items(), (_DERIVED_IID, DERIVED)]:
            first.interned_data.event_categories.add(iid=iid, name=name)
        self._intern("event_names", self.columns.names)
        self._intern("event_categories", [*CATEGORIES.items(), (_DERIVED_IID, DERIVED)])
        self._intern("debug_annotation_names", self.columns.fixed_names)
        self._intern("debug_annotation_string_values", self.columns.fixed_texts)

    def _rank(self, rows: slice) -> None:
        """All slices of one rank, lane after lane."""
        lane = self.trace.array("lane")[rows]
        order = np.argsort(lane, kind="stable")
        ordered, order = lane[order], order + rows.start
        firsts = np.flatnonzero(np.diff(ordered, prepend=-1))
        for first, last in zip(firsts, [*firsts[1:], len(order)], strict=True):
            self._lane(int(ordered[first]), order[first:last])

    def _lane(self, lane: int, nodes: Array) -> None:
        kind = LaneKind(self.tracks.lanes[lane]["kind"])
        deepest = _DEEPEST if kind not in (LaneKind.STREAM, LaneKind.QUEUE, LaneKind.COPY) else 1
        ts = self.trace.array("ts")[nodes] + self.trace.meta.origin_ns
        dur = self.trace.array("dur")[nodes]
        row = encode.rows_without_overlap(ts, dur, deepest)
        parts = [self.tracks.lane(lane, part) for part in range(int(row.max()) + 1)]
        uuids = np.array(parts, np.int64)
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
        names = self.columns.interned(arguments.buffer)
        self._slices(slices, uuids, (arguments, columns, lists, *names))
        progress.advance(_TASK, len(nodes))

    def _slices(self, slices: encode.Slices, uuids: Array, about: _About) -> None:
        """Slices of some tracks, with what is told of them."""
        self._describe()
        arguments, columns, lists, keys, texts = about
        ends = np.zeros((len(uuids), _DEEPEST), np.int64)
        depth = np.zeros(len(uuids), np.int64)
        done = 0
        while done < len(slices.ts):
            known = int(keys.known[0]), int(texts.known[0])
            size, reached = encode.slices(
                self.out, done, slices, arguments, columns, lists, keys, texts, ends, depth,
                self.scratch,
            )  # fmt: skip
            if reached == done:
                self._enlarge(encode.room_for(done, arguments, columns, lists))
                continue
            self._new_texts("debug_annotation_names", keys, arguments.buffer, known[0])
            self._new_texts("debug_annotation_string_values", texts, arguments.buffer, known[1])
            self.stream.write(self.out[:size].data)
            done = reached
        self.stream.write(self.out[: encode.close(self.out, ends, depth, uuids)].data)

    def _enlarge(self, room: int) -> None:
        """Make room for a slice with very long arguments."""
        self.scratch = np.empty(2 * room + 1024, np.uint8)
        self.out = np.empty(room + _CHUNK, np.uint8)

    def _derived(self, track: Any) -> None:
        """Slices that stand for no node; their names are interned as they come."""
        rank, device, name, ts, dur, texts = track
        self._bare(self.tracks.derived(rank, device, name), ts, dur, texts)

    def _bare(self, track: int, ts: Array, dur: Array, texts: list[str]) -> None:
        """Slices of nothing but names, which do not overlap."""
        uuid = np.array([track], np.int64)
        iids = self.columns.further_names(texts)
        self._intern("event_names", list(zip(iids, texts, strict=True)))
        n = len(ts)
        slices = encode.Slices(
            ts=ts + self.trace.meta.origin_ns,
            dur=dur,
            uuid=np.full(n, uuid[0]),
            row=np.zeros(n, np.int32),
            name=np.array(iids, np.int64),
            category=np.full(n, _DERIVED_IID, np.int64),
        )
        self._slices(slices, uuid, (*columns_of.nothing(n), *2 * (interned(1),)))

    def _critical(self, path: perfetto_critical.Path) -> None:
        """The critical path: what sort of thing it runs over, and below it which nodes."""
        ts, dur, texts = perfetto_critical.stretches(self.trace, path)
        place = 1 + 2 * (path.rank + 1) * _DEEPEST
        self._bare(self.tracks.critical(path.rank, "what it runs over", place), ts, dur, texts)
        ts = path.ts + self.trace.meta.origin_ns
        row = encode.rows_without_overlap(ts, path.dur, _DEEPEST)
        parts = [
            self.tracks.critical(path.rank, "nodes", place + 1 + k) for k in range(row.max() + 1)
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
        arguments, _, lists = columns_of.nothing(len(ts))
        columns = self.columns.columns(path.nodes)
        self._slices(slices, uuids, (arguments, columns, lists, *2 * (interned(1),)))

    def _counter_lanes(self, *, all_samples: bool) -> int:
        """Write counter lanes; how many samples lay outside the window and were left out."""
        window = None if all_samples else self._window()
        left_out = 0
        for lane, ts, value, outside in sampled_lanes(self.trace, window):
            left_out += outside
            self._samples(lane, ts, value)
        for lane, ts, value in dispatch_lanes(self.trace):
            self._samples(lane, ts, value)
        return left_out

    def _window(self) -> tuple[int, int] | None:
        """The nodes' time and a little around it; telemetry often lasts far longer."""
        if not self.trace.nodes.num_rows:
            return None
        start = int(self.trace.array("ts").min())
        margin = self.trace.span_ns // 20
        return start - margin, start + self.trace.span_ns + margin

    def _samples(self, lane: CounterLane, ts: Array, value: Array) -> None:
        uuid = self.tracks.counter(lane)
        self._describe()
        ts = ts + self.trace.meta.origin_ns
        step = len(self.out) // encode.SAMPLE_MAX
        for at in range(0, len(ts), step):
            size = encode.counter(self.out, ts[at : at + step], value[at : at + step], uuid)
            self.stream.write(self.out[:size].data)

    def _describe(self) -> None:
        self._messages(
            proto.TracePacket(trusted_packet_sequence_id=encode.SEQUENCE, track_descriptor=d)
            for d in self.tracks.new()
        )

    def _intern(self, what: str, entries: Any) -> None:
        """Tell the texts behind interned numbers."""
        entries = list(entries)
        for at in range(0, len(entries), _NAMES_PER_PACKET):
            packet = proto.TracePacket(trusted_packet_sequence_id=encode.SEQUENCE)
            table = getattr(packet.interned_data, what)
            for iid, text in entries[at : at + _NAMES_PER_PACKET]:
                if what == "debug_annotation_string_values":
                    table.add(iid=iid, str=text.encode() if isinstance(text, str) else text)
                else:
                    table.add(iid=iid, name=text)
            self._messages([packet])

    def _new_texts(self, what: str, table: Interned, buffer: Array, known: int) -> None:
        """Tell the texts that the last chunk met for the first time."""
        raws = table.texts(buffer, known)
        entries = [
            (
                table.base + known + k,
                raw if what.endswith("values") else raw.decode(errors="replace"),
            )
            for k, raw in enumerate(raws)
        ]
        self._intern(what, entries)

    def _messages(self, packets: Any) -> None:
        for packet in packets:
            self.stream.write(proto.Trace(packet=[packet]).SerializeToString())


def _first_uuid(trace: Trace) -> int:
    """Where track and flow ids begin: differs between traces, so that two can be put together."""
    meta = trace.meta
    told = [meta.job, str(meta.origin_ns), *(s.path + s.sha256 for s in meta.sources)]
    digest = hashlib.sha256("\0".join(told).encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1 | 1 << 20


def drawn(trace: Trace) -> Array:
    """Which edges have arrows: dependencies of no kind do between tracks only."""
    kind, src, dst = (trace.array(c, "edges") for c in ("kind", "src", "dst"))
    lane = trace.array("lane")
    between = (kind == EdgeKind.DEPENDENCY) & (lane[src] != lane[dst])
    return np.asarray(is_any(kind, ARROWS) | between)


def _flows(trace: Trace, base: int) -> tuple[tuple[Array, Array], list[tuple[int, int, int, int]]]:
    """For each node, where its flow ids begin, and the ids: a fresh one for each edge drawn.

    Ids of one kind and direction follow each other; which these are is told besides.
    """
    chosen = np.flatnonzero(drawn(trace))
    kind, src, dst = (trace.array(c, "edges")[chosen] for c in ("kind", "src", "dst"))
    told = kind.astype(np.int64) * 2 + _turned(trace, src, dst)
    order = np.argsort(told, kind="stable")
    told, src, dst = told[order], src[order], dst[order]
    ids = np.arange(1, len(told) + 1, dtype=np.int64) + (base << 31)
    runs, at, count = np.unique(told, return_index=True, return_counts=True)
    about = [
        (int(ids[a]), n, run // 2, run % 2)
        for run, a, n in zip(runs.tolist(), at.tolist(), count.tolist(), strict=True)
    ]
    node = np.concatenate([src, dst])
    order = np.argsort(node, kind="stable")
    first = np.searchsorted(node[order], np.arange(trace.nodes.num_rows + 1))
    return (first, np.tile(ids, 2)[order]), about


def _turned(trace: Trace, src: Array, dst: Array) -> Array:
    """Which edges come from a slice that is met after the other: by time, then place in the file."""
    later, equal = np.zeros(len(src), np.bool_), np.ones(len(src), np.bool_)
    for column in ("ts", "rank", "lane"):
        a, b = (trace.array(column)[node] for node in (src, dst))
        later |= equal & (a > b)
        equal &= a == b
    return later | (equal & (src > dst))


PERFETTO = Converter(
    name="perfetto",
    description="Perfetto trace (protobuf track events)",
    versions="track events of any producer up to v58: rocprofv3 of ROCm 6.2 to 7.1, rocpd's "
    "conversion, rocprofv2's plugin, rocprofiler-systems, Omnitrace, this package; "
    "written as v58 defines it, for trace processors since v40",
    suffixes=(".pftrace", ".pftrace.gz", ".perfetto-trace", ".perfetto-trace.gz"),
    sniff=sniff,
    read=read,
    write=write,
    carries="read: slices with their arguments, kinds by category, threads, streams, queues, "
    "counters of kernels, counter tracks as series, flows as launches, all clocks that snapshots tie together; "
    "written: every node as a slice with its arguments, series as counter lanes, launches, "
    "forward to backward and other recorded edges as arrows (dependencies of no kind between tracks "
    "only; the others are counted), iterations, phases and layers as tracks",
)
