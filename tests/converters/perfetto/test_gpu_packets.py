"""Typed GPU packets: what tables of the trace processor hold, against the trace."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
from read_once import read_once
from trace_processor import TraceProcessor

import chopper_interop as ci
from chopper_interop.arrays.gather import is_any
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.perfetto.write import gpu_packets
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import BOOTTIME, Meta, Rank, Source

EPOCH = 5_000_000_000
COUNTERS = (
    "select t.name, c.ts, c.value from counter c join gpu_counter_track t on c.track_id = t.id"
)


def written(trace: ci.Trace, path: Path) -> TraceProcessor:
    ci.write(trace, path, gpu_packets=True)
    perfetto = TraceProcessor(path)
    # processors before v55 count calls that name their GPU work, a field that they do not know
    assert perfetto.losses().keys() <= {"unknown_extension_fields"}
    return perfetto


def packets(path: Path, field: str) -> list:
    trace = proto.Trace.FromString(path.read_bytes())
    return [getattr(p, field) for p in trace.packet if p.HasField(field)]


def two_hosts() -> ci.Trace:
    """Two ranks with the same device number on two hosts, each with a copy over its kernels, and telemetry."""
    ranks = (Rank(0, host="a", pid=7), Rank(1, host="b", pid=8))
    source = Source("x.json", "rocprofv3-json")
    builder = TraceBuilder(Meta(clock=BOOTTIME, ranks=ranks, sources=(source,)))
    for rank in (0, 1):
        kernel = builder.lane(rank, LaneKind.STREAM, 7, "stream 7", 4)
        copy = builder.lane(rank, LaneKind.COPY, 1, "copies", 4)
        ts = EPOCH + 1000 * np.arange(5)
        builder.nodes(
            kind=int(Kind.KERNEL), name="k", rank=rank, lane=kernel, ts=ts, dur=ts * 0 + 800
        )
        builder.nodes(
            kind=int(Kind.MEMCPY), name="c", rank=rank, lane=copy, ts=ts, dur=ts * 0 + 2500
        )
        row = builder.series(rank, "power", "W", "tool", device=4)
        builder.samples(row, EPOCH + 900 * np.arange(6), 10.0 * rank + np.arange(1.0, 7.0))
    return builder.finish()


def test_work_is_in_the_table_of_gpu_slices(demo: Path, tmp_path: Path) -> None:
    trace = read_once(demo / "kineto")
    perfetto = written(trace, tmp_path / "job.pftrace")
    work = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    names = trace.names()
    expected = Counter(
        (int(ts) + trace.meta.origin_ns, int(dur), names[name])
        for ts, dur, name in zip(
            *(trace.array(c)[work] for c in ("ts", "dur", "name")), strict=True
        )
    )
    assert Counter(perfetto.query("select ts, dur, name from gpu_slice")) == expected
    pids = "select distinct p.pid from gpu_slice s join process p using (upid)"
    assert {pid for (pid,) in perfetto.query(pids)} == {r.pid for r in trace.meta.ranks}
    assert trace.launch[work].max() >= 0


def test_work_names_the_work_of_other_queues_that_it_waits_for(demo: Path, tmp_path: Path) -> None:
    trace, path = read_once(demo / "kineto"), tmp_path / "job.pftrace"
    assert written(trace, path)
    origin, kind = trace.meta.origin_ns, trace.array("kind", "edges")
    times = [trace.array("ts") + origin, trace.array("dur")]
    ends = [trace.array(end, "edges")[kind == EdgeKind.EVENT] for end in ("src", "dst")]
    expected = Counter(zip(*(t[end].tolist() for end in ends for t in times), strict=True))
    stages = [p for p in proto.Trace.FromString(path.read_bytes()).packet
              if p.HasField("gpu_render_stage_event")]  # fmt: skip
    at = {
        p.gpu_render_stage_event.event_id: (p.timestamp, p.gpu_render_stage_event.duration)
        for p in stages
    }
    waits = Counter(
        (*at[waited], *at[p.gpu_render_stage_event.event_id])
        for p in stages
        for waited in p.gpu_render_stage_event.event_wait_ids
    )
    assert expected
    assert waits == expected


def correlated(event: proto.TrackEvent) -> list[tuple[int, int]]:
    """Members of the extension gpu_correlation, which the package's descriptors lack: field and number of an event."""
    messages = [field.data for field in UnknownFieldSet(event) if field.field_number == 3000]
    return [
        (member.field_number, member.data)
        for message in messages
        for member in UnknownFieldSet(Empty.FromString(message))
    ]


def test_calls_name_the_work_that_they_launch_and_wait_for(demo: Path, tmp_path: Path) -> None:
    trace, path = read_once(demo / "kineto"), tmp_path / "job.pftrace"
    assert written(trace, path)
    edges = {column: trace.array(column, "edges") for column in ("kind", "src", "dst")}
    ts = trace.array("ts") + trace.meta.origin_ns
    is_work = is_any(trace.array("kind"), GPU_WORK)
    expected: Counter[tuple[int, int, int]] = Counter()
    for field, kind, call, work in (
        (1, EdgeKind.LAUNCH, "src", "dst"), (2, EdgeKind.SYNC, "dst", "src"),
    ):  # fmt: skip
        rows = (edges["kind"] == kind) & is_work[edges[work]]
        assert rows.any()
        times = (ts[edges[end][rows]].tolist() for end in (call, work))
        expected += Counter((field, *pair) for pair in zip(*times, strict=True))
    file = proto.Trace.FromString(path.read_bytes()).packet
    at = {p.gpu_render_stage_event.event_id: p.timestamp for p in file
          if p.HasField("gpu_render_stage_event")}  # fmt: skip
    calls = [p for p in file if p.HasField("track_event")]
    written_pairs = Counter(
        (field, p.timestamp, at[number])
        for p in calls
        for field, number in correlated(p.track_event)
    )
    assert written_pairs == expected
    ci.write(trace, tmp_path / "plain.pftrace")
    typed, plain = ci.read(path), ci.read(tmp_path / "plain.pftrace")
    assert typed.nodes.equals(plain.nodes)
    assert typed.edges.equals(plain.edges)


def test_work_that_waits_for_more_than_a_chunk_holds_names_all_of_it() -> None:
    n, waits = 3, 1000
    stages = gpu_packets.Stages(
        *(np.arange(1, n + 1) for _ in range(7)),
        np.zeros((n, 6), np.int64),
        np.array([0, 0, waits, waits]),
        np.full(waits, 2**63 - 1),
    )
    out, done, events = np.empty(stages.room, np.uint8), 0, []
    while done < n:
        size, done = gpu_packets.encode_stages(out, done, stages)
        events += proto.Trace.FromString(out[:size].tobytes()).packet
    assert [len(p.gpu_render_stage_event.event_wait_ids) for p in events] == [0, waits, 0]


def test_one_gpu_has_one_number(tmp_path: Path) -> None:
    trace, path = two_hosts(), tmp_path / "job.pftrace"
    perfetto = written(trace, path)
    events = packets(path, "gpu_render_stage_event")
    assert len({e.event_id for e in events}) == len(events) == 20
    assert Counter((e.gpu_id, e.context) for e in events) == {(0, 1): 10, (1, 2): 10}
    (info,) = packets(path, "gpu_info")
    assert [gpu.name for gpu in info.gpus] == ["GPU 4 on a", "GPU 4 on b"]
    interned = packets(path, "interned_data")
    contexts = [context for data in interned for context in data.graphics_contexts]
    assert [(c.pid, proto.InternedGraphicsContext.Api.Name(c.api)) for c in contexts] == [
        (7, "HIP"), (8, "HIP"),
    ]  # fmt: skip
    # copies that overlap, on rows of their own
    assert perfetto.query("select count(*), sum(dur) from gpu_slice where name = 'c'") == [
        (10, 25_000)
    ]


def test_a_value_counts_from_its_sample_on(tmp_path: Path) -> None:
    perfetto = written(two_hosts(), tmp_path / "job.pftrace")
    shown: dict[str, dict[int, float]] = {}
    for name, ts, value in perfetto.query(COUNTERS):
        shown.setdefault(name, {})[ts - EPOCH] = value
    assert len(shown) == 2
    for rank, values in enumerate(shown.values()):
        # six samples, and then 0 where the work ends, at 6.5 µs
        held = dict(zip(range(0, 5400, 900), 10.0 * rank + np.arange(1.0, 7.0), strict=True))
        assert {ts: values[ts] for ts in held} == held
        assert values[max(values)] == 0
        assert max(values) <= 6500


def test_what_is_read_again_is_the_same(tmp_path: Path) -> None:
    trace = two_hosts()
    again = []
    for name, typed in (("plain", False), ("typed", True)):
        ci.write(trace, tmp_path / f"{name}.pftrace", gpu_packets=typed)
        again.append(ci.read(tmp_path / f"{name}.pftrace"))
    assert again[0].nodes.equals(again[1].nodes)
    assert again[0].samples.equals(again[1].samples)
    plain, typed_issues = ({issue.code for issue in one.meta.issues} for one in again)
    assert typed_issues - plain == {"perfetto-other-data"}  # the typed packets, which are counted


SHAPES = {
    # arguments that a format states, and number of workgroups and threads of one
    "kineto": ({"grid": [4, 2, 1], "block": [256, 1, 1]}, (4, 2, 1, 256, 1, 1)),
    "rocprofv3-csv": ({"grid": [1000, 2, 1], "workgroup": [256, 1, 1]}, (4, 2, 1, 256, 1, 1)),
    "rpd": ({"grid": [4, 2, 1], "workgroup": [256, 1, 1]}, (4, 2, 1, 256, 1, 1)),
    "rocprof-v1": ({"grid_size": 2000, "workgroup_size": 256}, None),
    "chrome-trace": ({"grid": ["4", 2, -1], "block": [256, 1, 1]}, None),
    "pytorch-et": ({"grid": [2**32, 1, 1], "block": [256, 1]}, None),
}


def launched(
    form: str, kernels: list[dict], calls: list[dict] | None = None, call: str = "hipLaunchKernel"
) -> ci.Trace:
    """Kernels with these arguments, and calls that launch them."""
    builder = TraceBuilder(
        Meta(clock=BOOTTIME, ranks=(Rank(0, pid=7),), sources=(Source("x", form),))
    )
    count = len(kernels)
    thread = builder.lane(0, LaneKind.THREAD, 1, "thread 1")
    stream = builder.lane(0, LaneKind.STREAM, 7, "stream 7", 0)
    for kind, name, place, args in (
        (Kind.RUNTIME, call, thread, calls), (Kind.KERNEL, "k", stream, kernels),
    ):  # fmt: skip
        if args is None:
            continue
        texts = [json.dumps(one).encode() for one in args]
        size = np.array([*map(len, texts)])
        at = builder.text(np.frombuffer(b"".join(texts), np.uint8)) + np.cumsum(size) - size
        builder.nodes(
            kind=int(kind), name=name, rank=0, lane=place, ts=EPOCH + 1000 * np.arange(count),
            dur=np.full(count, 800), args=(at, size),
        )  # fmt: skip
    if calls is not None:
        builder.edges(np.arange(count), count + np.arange(count), EdgeKind.LAUNCH)
    return builder.finish()


def shapes(trace: ci.Trace, path: Path) -> list:
    """Shape of each event in order of time, None for none."""
    ci.write(trace, path, gpu_packets=True)
    shapes = []
    for event in packets(path, "gpu_render_stage_event"):
        sizes = (event.launch.grid_size, event.launch.workgroup_size)
        shape = tuple(getattr(size, axis) for size in sizes for axis in "xyz")
        shapes.append(shape if event.HasField("launch") else None)
    return shapes


@pytest.mark.parametrize("form", SHAPES)
def test_a_launch_is_workgroups_and_their_threads(form: str, tmp_path: Path) -> None:
    args, expected = SHAPES[form]
    trace = launched(form, [args, {}])
    assert shapes(trace, tmp_path / "x.pftrace") == [expected, None]


def test_swapped_shapes_of_a_rank_are_put_right(tmp_path: Path) -> None:
    # builds of PyTorch on rocprofiler-sdk; that of the second kernel alone could be true
    kernels = [
        {"grid": [256, 1, 1], "block": [2048, 2, 1]},
        {"grid": [64, 1, 1], "block": [64, 1, 1]},
    ]
    expected = [(8, 2, 1, 256, 1, 1), (1, 1, 1, 64, 1, 1)]
    assert shapes(launched("kineto", kernels), tmp_path / "x.pftrace") == expected


def test_the_shape_may_be_that_of_the_call(tmp_path: Path) -> None:
    trace = launched("rpd", [{}, {}], [{"grid": [3, 1, 1], "workgroup": [64, 2, 1]}, {}])
    assert shapes(trace, tmp_path / "x.pftrace") == [(3, 1, 1, 64, 2, 1), None]


@pytest.mark.parametrize("form", ["kineto", "rpd"])
def test_a_call_that_takes_threads_states_threads(form: str, tmp_path: Path) -> None:
    threads = "block" if form == "kineto" else "workgroup"
    args = [{"grid": [1024, 3, 1], threads: [256, 1, 1]}]
    trace = launched(form, args, [{}], "hipExtModuleLaunchKernel")
    assert shapes(trace, tmp_path / "x.pftrace") == [(4, 3, 1, 256, 1, 1)]


@pytest.mark.parametrize("extent", [1, 127, 128, 2**32 - 1])
def test_extents_of_any_size(extent: int, tmp_path: Path) -> None:
    trace = launched("kineto", [{"grid": [extent] * 3, "block": [1, 1, 1]}] * 2000)
    assert set(shapes(trace, tmp_path / "x.pftrace")) == {(extent,) * 3 + (1, 1, 1)}


def test_without_the_option_there_are_none(tmp_path: Path) -> None:
    path = tmp_path / "job.pftrace"
    ci.write(two_hosts(), path)
    for field in ("gpu_render_stage_event", "gpu_counter_event", "gpu_info"):
        assert packets(path, field) == []
