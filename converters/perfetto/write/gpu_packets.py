"""GPU work and telemetry as Perfetto's typed GPU packets, next to the slices that stand for them.

Tools made for GPU traces read these: tables ``gpu_slice``, ``gpu_track`` and ``gpu_counter_track``, and the
UI's group of hardware queues.

Trace processors before v55 know neither names of single events nor the direction of counters. So a
kernel's name is that of its stage, which all of them show, and a value stands at the time of the next sample:
without a direction a value counts for the time before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.arrays.gather import group_rows, is_any
from chopper_interop.converters.perfetto.write import events_encode as encode
from chopper_interop.converters.perfetto.write.launch_shapes import launch_shapes
from chopper_interop.io import wire
from chopper_interop.io.wire import FIXED64, LENGTH, VARINT, tag
from chopper_interop.schemas import perfetto as fields
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.perfetto.write.counter_lanes import CounterLane, Samples
    from chopper_interop.converters.perfetto.write.tracks import TrackAllocator

_COUNTER_EVENT = tag(fields.PACKET_GPU_COUNTER_EVENT, LENGTH)
_STAGE_EVENT = tag(fields.PACKET_GPU_RENDER_STAGE_EVENT, LENGTH)
_EVENT_ID = tag(fields.STAGE_EVENT_ID, VARINT)
_DURATION = tag(fields.STAGE_DURATION, VARINT)
_CONTEXT = tag(fields.STAGE_CONTEXT, VARINT)
_GPU = tag(fields.STAGE_GPU_ID, VARINT)
_QUEUE = tag(fields.STAGE_HW_QUEUE_IID, VARINT)
_STAGE = tag(fields.STAGE_STAGE_IID, VARINT)
_WAITED = tag(fields.STAGE_EVENT_WAIT_IDS, VARINT)
_LAUNCH = tag(fields.STAGE_LAUNCH, LENGTH)
_GRID = tag(fields.LAUNCH_GRID_SIZE, LENGTH)
_WORKGROUP = tag(fields.LAUNCH_WORKGROUP_SIZE, LENGTH)
_X = tag(fields.EXTENT_X, VARINT)
_Y = tag(fields.EXTENT_Y, VARINT)
_Z = tag(fields.EXTENT_Z, VARINT)
_COUNTER = tag(fields.COUNTERS_COUNTERS, LENGTH)
_COUNTER_GPU = tag(fields.COUNTERS_GPU_ID, VARINT)
_COUNTER_ID = tag(fields.COUNTER_COUNTER_ID, VARINT)
_VALUE = tag(fields.COUNTER_DOUBLE_VALUE, FIXED64)
_AXES = 3
_VALUE_SIZE = 9
"""Bytes of a decimal with its tag."""
PACKET_MAX = 192
"""Bytes of one packet, at most: tags, lengths, eight varints of 64 bits and six of 32."""
_WAIT_MAX = 12
"""Bytes of the number of an event that is waited for, with its tag of two bytes, at most."""
_COMPUTE = proto.InternedGpuRenderStageSpecification.COMPUTE
_OTHER = proto.InternedGpuRenderStageSpecification.OTHER
_APIS = {"hip": proto.InternedGraphicsContext.HIP, "cuda": proto.InternedGraphicsContext.CUDA}
"""Beginnings of the names of calls, and the programming interface that they belong to."""
_AMD = ("roc", "rpd")
"""Beginnings of the names of formats of ROCm's profilers."""
_UNITS = {
    "MHz": "MEGAHERTZ", "W": "WATT", "mW": "MILLIWATT", "J": "JOULE", "%": "PERCENT", "°C": "CELSIUS",
    "V": "VOLT", "A": "AMPERE", "B": "BYTE", "MB": "MEGABYTE", "GB": "GIGABYTE", "ns": "NANOSECOND",
}  # fmt: skip


class Stages(NamedTuple):
    """Work of GPUs, one value of each a node.

    Times (ns), numbers of what they belong to, and a row of `launch_shapes`; the events that node i waits
    for are those of `waited` from ``first_wait[i]`` to ``first_wait[i + 1]``.
    """

    ts: Array
    dur: Array
    event: Array
    queue: Array
    stage: Array
    gpu: Array
    context: Array
    shape: Array
    first_wait: Array
    waited: Array

    @property
    def room(self) -> int:
        """Bytes of one packet, at most."""
        return PACKET_MAX + _WAIT_MAX * int(np.diff(self.first_wait).max(initial=0))


class GpuPackets:
    """Typed GPU packets of a trace.

    Parameters
    ----------
    trace
        The trace that is drawn.
    tracks
        Its tracks, by whose names and process ids GPUs, queues and processes go.
    first_id
        Number before that of the first event; it differs between files that can be merged.
    """

    def __init__(self, trace: Trace, tracks: TrackAllocator, first_id: int) -> None:
        self.trace, self.tracks, self.first_id = trace, tracks, first_id
        self.work = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
        self._lane = trace.array("lane")[self.work].astype(np.int64)
        self._host = {rank.rank: rank.host for rank in trace.meta.ranks}
        lanes = [tracks.lanes[row] for row in np.unique(self._lane).tolist()]
        sampled = trace.series.select(["rank", "device"]).to_pylist()
        places = {self._place(one["rank"], one["device"]): one for one in reversed(sampled)}
        places |= {self._place(one["rank"], one["device"]): one for one in reversed(lanes)}
        known = sorted(place for place in places if place[1] >= 0 or place[2] >= 0)
        several = len({host for host, _, _ in known}) > 1
        self._labels = [
            tracks.gpu_name(places[p]["rank"], places[p]["device"]) + f" on {p[0]}" * several
            for p in known
        ]
        self._number = {place: number for number, place in enumerate(known)}
        self._counters: dict[CounterLane, int] = {}

    def _place(self, rank: int, device: int) -> tuple[str, int, int]:
        """Host and number of a GPU; its rank too where the source has no number."""
        return self._host.get(rank, ""), device, rank if device < 0 else -1

    def number(self, rank: int, device: int) -> int:
        """Number of a GPU in the file, by order of hosts and devices; -1 if none is known."""
        return self._number.get(self._place(rank, device), -1)

    def descriptions(self) -> Iterator[proto.TracePacket]:
        """Yield the packets that say what numbers stand for."""
        packet = _packet()
        for label in self._labels:
            packet.gpu_info.gpus.add(name=label)
        yield packet
        api = _api(self.trace)
        packet = _packet()
        for position, rank in enumerate(self.trace.rank_rows):
            packet.interned_data.graphics_contexts.add(
                iid=position + 1, pid=self.tracks.pid(rank), api=api
            )
        names, is_name = self.trace.names(), self.trace.array("name")[self.work]
        kernels = self.trace.array("kind")[self.work]
        computes = set(is_name[is_any(kernels, (Kind.KERNEL, Kind.COMM))].tolist())
        for code in np.unique(is_name).tolist():
            packet.interned_data.gpu_specifications.add(
                iid=code + 1, name=names[code], category=_COMPUTE if code in computes else _OTHER
            )
        for lane in np.unique(self._lane).tolist():
            packet.interned_data.gpu_specifications.add(
                iid=len(names) + 1 + lane, name=self.tracks.lane_label(lane), category=_COMPUTE
            )
        yield packet

    def stages(self) -> Stages:
        """Columns of all GPU work, in order of nodes."""
        trace, rows = self.trace, self.work
        gpu = np.full(len(self.tracks.lanes), -1, np.int64)
        for row in np.unique(self._lane).tolist():
            lane = self.tracks.lanes[row]
            gpu[row] = self.number(lane["rank"], lane["device"])
        ranks = np.array(list(trace.rank_rows), np.int64)
        first_wait, waited = self._waits()
        return Stages(
            ts=trace.array("ts")[rows] + trace.meta.origin_ns,
            dur=trace.array("dur")[rows],
            event=rows + 1 + self.first_id,
            queue=self._lane + len(trace.names()) + 1,
            stage=trace.array("name")[rows].astype(np.int64) + 1,
            gpu=gpu[self._lane],
            context=np.searchsorted(ranks, trace.array("rank")[rows]) + 1,
            shape=launch_shapes(trace, rows),
            first_wait=first_wait,
            waited=waited + 1 + self.first_id,
        )

    def _waits(self) -> tuple[Array, Array]:
        """For each piece of work, where the rows that it waits for on other queues begin; these rows."""
        trace = self.trace
        kept = trace.array("kind", "edges") == EdgeKind.EVENT
        src, dst = (trace.array(end, "edges")[kept].astype(np.int64) for end in ("src", "dst"))
        kept = np.isin(src, self.work) & np.isin(dst, self.work)
        src, at = src[kept], np.searchsorted(self.work, dst[kept])
        first, order = group_rows(at, len(self.work))
        return first, src[order]

    def of_calls(self) -> tuple[Array, Array]:
        """For each node, where its numbers begin in all that `encode.Lists` takes: of work it launches, or waits for."""
        trace = self.trace
        kind, src, dst = (trace.array(c, "edges") for c in ("kind", "src", "dst"))
        is_work = is_any(trace.array("kind"), GPU_WORK)
        launched = (kind == EdgeKind.LAUNCH) & is_work[dst]
        waited = (kind == EdgeKind.SYNC) & is_work[src]
        call = np.concatenate([src[launched], dst[waited]])
        event = np.concatenate([dst[launched], src[waited]]).astype(np.int64) + 1 + self.first_id
        event[np.count_nonzero(launched) :] *= -1
        first, order = group_rows(call, trace.nodes.num_rows)
        return first, event[order]

    def counter(
        self, samples: Samples, until: int
    ) -> tuple[proto.TracePacket, Array, Array] | None:
        """Packet that describes a lane of a GPU, and its values at the ends of their times.

        Parameters
        ----------
        samples
            Samples of a lane.
        until
            End of the picture, until which the last value counts unless its lane ends before.

        Returns
        -------
        tuple or None
            The packet with the first time and no value that counts; times (ns) and values that
            count from the time before. None if the lane is of no GPU.
        """
        lane, ts, value = samples.lane, samples.ts, samples.value
        gpu = self.number(lane.rank, lane.device) if lane.device >= 0 else -1
        if gpu < 0 or not len(ts):
            return None
        number = self._counters.setdefault(lane, len(self._counters) + 1)
        ends = ts[1:] if samples.ends else np.append(ts[1:], max(until, int(ts[-1]) + 1))
        packet = _packet(timestamp=int(ts[0]) + self.trace.meta.origin_ns)
        event = packet.gpu_counter_event
        event.gpu_id = gpu
        # trace processors before v55 put counters of one name together, whatever their GPU
        place = f"{self._labels[gpu]}, {lane.source}"
        spec = event.counter_descriptor.specs.add(
            counter_id=number, name=f"{lane.label} ({place})", description=place
        )
        unit = _UNITS.get(lane.unit)
        if unit:
            spec.numerator_units.append(proto.GpuCounterDescriptor.MeasureUnit.Value(unit))
        event.counters.add(counter_id=number, double_value=float(value[0]))
        return packet, ends + self.trace.meta.origin_ns, value[: len(ends)]

    def counter_number(self, lane: CounterLane) -> tuple[int, int]:
        """Number of a described counter, and that of its GPU."""
        return self._counters[lane], self.number(lane.rank, lane.device)


def _packet(timestamp: int = 0) -> proto.TracePacket:
    packet = proto.TracePacket(trusted_packet_sequence_id=encode.SEQUENCE)
    packet.sequence_flags = encode.NEEDS_STATE
    if timestamp:
        packet.timestamp = timestamp
    return packet


def _api(trace: Trace) -> int:
    """Return the programming interface of the job's GPUs: by the names of calls, else by the profiler."""
    for begin, api in _APIS.items():
        if any(name.startswith(begin) for name in trace.names()):
            return int(api)
    of_amd = any(source.format.startswith(_AMD) for source in trace.meta.sources)
    return int(_APIS["hip"] if of_amd else proto.InternedGraphicsContext.UNDEFINED)


@jit
def encode_stages(out: Bytes, first: int, stages: Stages) -> tuple[int, int]:
    """Write a packet for each piece of work from the first on, while there is room.

    Compiled, as a trace has millions of them.

    Returns
    -------
    bytes, next
        Number of bytes written, and the first that was not.
    """
    max_waits = 0
    for k in range(first, len(stages.ts)):
        max_waits = max(max_waits, stages.first_wait[k + 1] - stages.first_wait[k])
    event = np.empty(PACKET_MAX + _WAIT_MAX * max_waits, np.uint8)
    i, k, n = 0, first, len(stages.ts)
    while k < n and i + len(event) <= len(out):
        size = wire.write_number(event, 0, _EVENT_ID, stages.event[k])
        size = wire.write_number(event, size, _DURATION, stages.dur[k])
        size = wire.write_number(event, size, _CONTEXT, stages.context[k])
        if stages.gpu[k] >= 0:
            size = wire.write_number(event, size, _GPU, stages.gpu[k])
        size = wire.write_number(event, size, _QUEUE, stages.queue[k])
        size = wire.write_number(event, size, _STAGE, stages.stage[k])
        for j in range(stages.first_wait[k], stages.first_wait[k + 1]):
            size = wire.write_number(event, size, _WAITED, stages.waited[j])
        if stages.shape[k, 0] > 0:
            size = _write_launch(event, size, stages.shape[k])
        i = encode.encode_packet(out, i, stages.ts[k], _STAGE_EVENT, event, size)
        k += 1
    return i, k


@jit_in_place
def _write_launch(out: Bytes, i: int, shape: Array) -> int:
    """Write a launch: the first three of its shape as grid, the others as workgroup."""
    # an inner message is its tag, its length, which fits one byte, and its numbers
    grid, workgroup = _extent_size(shape, 0), _extent_size(shape, _AXES)
    i = wire.write_varint(out, wire.write_varint(out, i, _LAUNCH), 2 + grid + 2 + workgroup)
    i = wire.write_varint(out, wire.write_varint(out, i, _GRID), grid)
    i = _write_extent(out, i, shape, 0)
    i = wire.write_varint(out, wire.write_varint(out, i, _WORKGROUP), workgroup)
    return _write_extent(out, i, shape, _AXES)


@jit_in_place
def _extent_size(shape: Array, first: int) -> int:
    """Bytes that `_write_extent` writes: three tags and numbers."""
    size = _AXES
    for axis in range(first, first + _AXES):
        size += wire.varint_size(shape[axis])
    return size


@jit_in_place
def _write_extent(out: Bytes, i: int, shape: Array, first: int) -> int:
    i = wire.write_number(out, i, _X, shape[first])
    i = wire.write_number(out, i, _Y, shape[first + 1])
    return wire.write_number(out, i, _Z, shape[first + 2])


@jit
def encode_values(out: Bytes, ts: Array, value: Array, counter: int, gpu: int) -> int:
    """Write a packet for each value of a counter; `PACKET_MAX` bytes each are enough."""
    event = np.empty(PACKET_MAX, np.uint8)
    i = 0
    for k in range(len(ts)):
        inner = 1 + wire.varint_size(counter) + _VALUE_SIZE
        size = wire.write_varint(event, wire.write_varint(event, 0, _COUNTER), inner)
        size = wire.write_number(event, size, _COUNTER_ID, counter)
        size = wire.write_fixed64(
            event, wire.write_varint(event, size, _VALUE), encode.bits(value[k])
        )
        size = wire.write_number(event, size, _COUNTER_GPU, gpu)
        i = encode.encode_packet(out, i, ts[k], _COUNTER_EVENT, event, size)
    return i
