"""Perfetto traces as ROCm's tools and Chrome write them, and the expected outcome for the odd ones."""

import gzip
import zlib
from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from chopper_interop.errors import ReadError, UnknownFormatError
from seeds import Odd, Refused, Seed, reads

T0 = 1_550_151_853_029_637
"""A time since boot."""
EPOCH = 1_767_189_312_000_000_000
BOOT, REAL, OWN = 6, 1, 64
PROCESS, MAIN = 1000, 1001
PID = 4242
EVENT = proto.TrackEvent
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


def trace(*packets: proto.TracePacket) -> bytes:
    """A trace of these packets."""
    return b"".join(proto.Trace(packet=[p]).SerializeToString() for p in packets)


_VALUE_FIELDS = {bool: "bool_value", float: "double_value", str: "string_value"}


def annotate(event: Any, name: str | int, value: Any) -> None:
    """Add an annotation, of the kind that the value has in Python; a number is an interned name."""
    annotation = (
        event if isinstance(event, proto.DebugAnnotation) else event.debug_annotations.add()
    )
    if isinstance(name, int):
        annotation.name_iid = name
    elif name:
        annotation.name = name
    if isinstance(value, dict):
        for key, inner in value.items():
            annotate(annotation.dict_entries.add(), key, inner)
    elif isinstance(value, list):
        for inner in value:
            annotate(annotation.array_values.add(), "", inner)
    else:
        integer = "int_value" if type(value) is int and value < 0 else "uint_value"
        setattr(annotation, _VALUE_FIELDS.get(type(value), integer), value)


@dataclass
class Sdk:
    """Writes packets as Perfetto's SDK does: interned texts, a sequence's own running clock."""

    sequence: int = 2
    packets: list[Any] = field(default_factory=list)
    last: int = T0
    texts: dict[tuple[str, str], int] = field(default_factory=dict)

    def start(self) -> None:
        """First packets of a sequence."""
        clocks = proto.TracePacket(trusted_packet_sequence_id=self.sequence, sequence_flags=1)
        clocks.trace_packet_defaults.timestamp_clock_id = OWN
        clocks.trace_packet_defaults.track_event_defaults.track_uuid = MAIN
        snapshot = proto.TracePacket(trusted_packet_sequence_id=self.sequence)
        snapshot.clock_snapshot.clocks.add(clock_id=BOOT, timestamp=self.last)
        snapshot.clock_snapshot.clocks.add(clock_id=REAL, timestamp=self.last + EPOCH)
        snapshot.clock_snapshot.clocks.add(clock_id=OWN, timestamp=self.last, is_incremental=True)
        self.packets += [snapshot, clocks]

    def track(self, uuid: int, name: str = "", parent: int = PROCESS) -> Any:
        """Describe a track."""
        packet = proto.TracePacket(trusted_packet_sequence_id=self.sequence)
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.parent_uuid = parent
        if name:
            packet.track_descriptor.name = name
        self.packets.append(packet)
        return packet.track_descriptor

    def event(self, kind: int, ts: int, track: int | None = None) -> tuple[Any, Any]:
        """A packet with an event: by how much time went on, else absolutely."""
        packet = proto.TracePacket(trusted_packet_sequence_id=self.sequence, sequence_flags=2)
        if ts >= self.last:
            packet.timestamp, self.last = ts - self.last, ts
        else:
            packet.timestamp, packet.timestamp_clock_id = ts, BOOT
        packet.track_event.type = kind
        if track is not None:
            packet.track_event.track_uuid = track
        self.packets.append(packet)
        return packet, packet.track_event

    def iid(self, packet: Any, table: str, text: str) -> int:
        """Number of a text, which is interned in the packet if it is new."""
        known = self.texts.get((table, text))
        if known is None:
            known = self.texts[table, text] = len(self.texts) + 1
            getattr(packet.interned_data, table).add(iid=known, name=text)
        return known

    def slice(
        self, track: int, name: str, category: str, ts: int, end: int, flow: int = 0, **args: Any
    ) -> None:
        """A slice with arguments."""
        packet, event = self.event(BEGIN, ts, track)
        event.name_iid = self.iid(packet, "event_names", name)
        event.category_iids.append(self.iid(packet, "event_categories", category))
        if flow:
            event.flow_ids.append(flow ^ PROCESS)
        for key, value in args.items():
            annotate(event, self.iid(packet, "debug_annotation_names", key), value)
        self.event(END, end, track)

    def count(self, track: int, ts: int, value: float) -> None:
        """A value of a counter."""
        _, event = self.event(COUNTER, ts, track)
        if isinstance(value, int):
            event.counter_value = value
        else:
            event.double_counter_value = value

    def process(self, name: str = "python3", pid: int = PID) -> None:
        """Describe the process and its main thread."""
        self.track(PROCESS, parent=0).process.pid = pid
        self.packets[-1].track_descriptor.process.process_name = name
        thread = self.track(MAIN).thread
        thread.pid, thread.tid, thread.thread_name = pid, pid, name


def rocprofv3(*, moved: int = 0, by_queue: bool = True, agents_as_text: bool = False) -> bytes:
    """A trace as rocprofv3 writes it: two threads, kernels, copies both ways, counters.

    Parameters
    ----------
    moved
        By how much the drawn time of two kernels differs from the times in their arguments.
    by_queue
        Whether kernels are on tracks of queues, else of streams.
    agents_as_text
        Whether arguments name agents as newer versions do.
    """
    sdk = Sdk()
    sdk.start()
    sdk.process()
    sdk.track(10, "THREAD 1 (4250)")
    sdk.track(
        11,
        "COMPUTE AGENT [4] QUEUE [0] (GPU)" if by_queue else "COMPUTE AGENT [4] STREAM [3] (GPU)",
    )
    sdk.track(12, "COPY to AGENT [4] THREAD [0] (GPU)" if by_queue else "STREAM [3]")
    sdk.track(13, "COPY to AGENT [0] THREAD [0] (CPU)" if by_queue else "STREAM [4]")
    bytes_to = sdk.track(14, "COPY BYTES to AGENT [4] (GPU)")
    bytes_to.counter.unit, bytes_to.counter.unit_multiplier = 3, 1024
    sdk.track(15, "AGENT [4] PMC SQ_WAVES").counter.SetInParent()
    gpu, cpu = ("GPU-4", "CPU-0") if agents_as_text else (4, 0)
    call = 1_000
    for i in range(4):
        ts = T0 + 20_000 * i
        args = {"begin_ns": ts, "end_ns": ts + call, "delta_ns": call, "tid": PID, "kind": 3}
        sdk.slice(MAIN, "hipLaunchKernel", "hip_api", ts, ts + call, i + 1, **args, corr_id=i + 1)
    mark = T0 + 70_000
    args = {"begin_ns": mark, "end_ns": mark + 500, "corr_id": 9}
    sdk.slice(10, "step 1", "marker_api", mark, mark + 500, 9, **args)
    for i in range(4):
        ts, end = T0 + 20_000 * i + 5_000, T0 + 20_000 * i + 18_000
        drawn = (ts + moved, end) if i == 1 else (ts, end - moved) if i == 2 else (ts, end)
        sdk.slice(
            11,
            "ncclDevKernel_Generic" if i == 3 else "gemm(float*)",
            "kernel_dispatch",
            *drawn,
            i + 1,
            begin_ns=ts,
            end_ns=end,
            delta_ns=end - ts,
            kind=11,
            agent=gpu,
            corr_id=i + 1,
            queue=1,
            tid=PID,
            kernel_id=7,
            workgroup_size=256,
            grid_size=65536,
        )
    for track, (src, dst), corr in ((12, (cpu, gpu), 20), (13, (gpu, cpu), 21)):
        ts = T0 + 90_000 + 1_000 * corr
        sdk.slice(
            track,
            "MEMORY_COPY",
            "memory_copy",
            ts,
            ts + 700,
            corr,
            begin_ns=ts,
            end_ns=ts + 700,
            src_agent=src,
            dst_agent=dst,
            copy_bytes=4096,
            corr_id=corr,
        )
    for i, value in enumerate((0, 4, 0)):
        sdk.count(14, T0 + 110_000 + i, value)
        sdk.count(15, T0 + 110_000 + i, value)
    return trace(*sdk.packets)


ROCPROF = rocprofv3()
SLICES, SAMPLES = 11, 6
"""Of `ROCPROF`."""


def simple(*events: tuple[int, int, str], **fields: Any) -> bytes:
    """A trace of one track without anything interned: type, time and name of each event."""
    about = proto.TracePacket(trusted_packet_sequence_id=1, sequence_flags=1)
    about.track_descriptor.uuid = 5
    about.track_descriptor.name = "work"
    packets = [about]
    for kind, ts, name in events:
        packet = proto.TracePacket(timestamp=ts, trusted_packet_sequence_id=1, **fields)
        packet.track_event.type, packet.track_event.track_uuid = kind, 5
        if name:
            packet.track_event.name = name
        packets.append(packet)
    return trace(*packets)


PAIR = simple((BEGIN, T0, "a"), (END, T0 + 10, ""))


def _compressed(packed: bytes) -> bytes:
    return trace(proto.TracePacket(compressed_packets=packed))


def _foreign() -> bytes:
    packet = proto.TracePacket(timestamp=T0)
    packet.ftrace_events.cpu = 1
    return trace(packet)


def _stateless() -> bytes:
    sdk = Sdk()
    packet, event = sdk.event(BEGIN, T0 + 5, 5)
    packet.timestamp_clock_id, packet.timestamp = BOOT, T0
    event.name_iid = 3
    return trace(*sdk.packets)


def _unrelated() -> bytes:
    snapshot = proto.TracePacket()
    snapshot.clock_snapshot.clocks.add(clock_id=BOOT, timestamp=T0)
    return trace(snapshot) + PAIR + simple((INSTANT, EPOCH, "late"), timestamp_clock_id=REAL)


SEEDS = [Seed("perfetto", "results.pftrace", ROCPROF), Seed("perfetto", "simple.pftrace", PAIR)]

ODD = [
    Odd("a sound trace", {"a.pftrace": ROCPROF}, reads(SLICES, SAMPLES)),
    Odd("a trace in gzip", {"a.pftrace": gzip.compress(ROCPROF)}, reads(SLICES, SAMPLES)),
    Odd("a trace cut in its last packet", {"a.pftrace": PAIR + PAIR[:-3]},
        reads(2, perfetto_cut_short=1, slice_unfinished=1)),
    Odd("rubbish behind a trace", {"a.pftrace": PAIR + b"\xff" * 40},
        reads(1, perfetto_cut_short=1)),
    Odd("two traces one behind the other", {"a.pftrace": PAIR + PAIR}, reads(2)),
    Odd("GPU work that is there twice", {"a.pftrace": ROCPROF + ROCPROF},
        reads(2 * SLICES, 2 * SAMPLES, kernel_recorded_twice=6)),
    Odd("a slice without its end", {"a.pftrace": simple((BEGIN, T0, "a"), (INSTANT, T0 + 9, "b"))},
        reads(2, slice_unfinished=1)),
    Odd("an end without its slice", {"a.pftrace": simple((END, T0, ""), (INSTANT, T0 + 9, "b"))},
        reads(1, slice_end_unmatched=1)),
    Odd("an end of the outer slice before that of the inner",
        {"a.pftrace": simple((BEGIN, T0, "a"), (BEGIN, T0 + 1, "b"), (END, T0 + 5, "a"))},
        reads(2, slice_end_misplaced=1)),
    Odd("an event of a type from the future",
        {"a.pftrace": PAIR + simple((INSTANT, T0, "a")).replace(b"\x48\x03", b"\x48\x4d")},
        reads(1, event_type_unknown=1)),
    Odd("a packet that is no message", {"a.pftrace": PAIR + b"\x0a\x03\x5a\x7f\x01"},
        reads(1, perfetto_packet_broken=1)),
    Odd("packets of ftrace", {"a.pftrace": PAIR + _foreign()}, reads(1)),
    Odd("texts of packets that were dropped", {"a.pftrace": PAIR + _stateless()},
        reads(1, event_state_lost=1)),
    Odd("a clock that nothing relates to the trace's", {"a.pftrace": _unrelated()},
        reads(1, event_clock_unknown=1)),
    Odd("times on the wall clock alone",
        {"a.pftrace": simple((INSTANT, EPOCH, "a"), timestamp_clock_id=REAL)}, reads(1)),
    Odd("a time out of reach", {"a.pftrace": PAIR + simple((INSTANT, 2**63 + 5, "a"))},
        reads(1, time_out_of_range=1)),
    Odd("compressed packets", {"a.pftrace": _compressed(zlib.compress(PAIR))}, reads(1)),
    Odd("compressed packets that are damaged",
        {"a.pftrace": PAIR + _compressed(b"\x78\x9c no zlib")},
        reads(1, perfetto_compressed_damaged=1)),
    Odd("an empty packet", {"a.pftrace": PAIR + b"\x0a\x00"}, reads(1)),
    Odd("a trace without events",
        {"a.pftrace": trace(*Sdk().packets) + PAIR[: PAIR.index(b"work") + 4]},
        Refused(ReadError, "no events")),
    Odd("a field number beyond protobuf's, which is 11 in 32 bits",
        {"a.pftrace": PAIR + b"\x0a\x06" + b"\xda\x80\x80\x80\x80\x02"},
        reads(1, perfetto_packet_broken=1)),
    Odd("NUL bytes", {"a.pftrace": b"\0" * 100}, Refused(UnknownFormatError, "no format")),
    Odd("a trace as UTF-8 text", {"a.pftrace": PAIR.decode("latin-1").encode()},
        Refused(UnknownFormatError, "no format")),
]  # fmt: skip
