"""The reader sees what Perfetto's own trace processor sees, and all that our writer wrote."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from issue_counts import counts, uncounted_events
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
from read_once import read_once
from rocprof import KERNELS, row
from rocprof import write as write_csv
from seeds import perfetto as seeds
from seeds.perfetto import BEGIN, COUNTER, END, EPOCH, INSTANT, MAIN, T0, Sdk
from shared_data import SHARED, each, real
from slow import slow_from
from trace_processor import TraceProcessor

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.perfetto.read import reader
from chopper_interop.converters.perfetto.write import writer
from chopper_interop.io import inputs
from chopper_interop.schemas import categories
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import BOOTTIME, REALTIME
from chopper_interop.testing.strategies import traces

KINETO = sorted((SHARED / "pytorch").rglob("*.json.gz"))


def saved(folder: Path, *packets: proto.TracePacket, name: str = "a.pftrace") -> Path:
    path = folder / name
    path.write_bytes(seeds.trace(*packets))
    return path


def test_a_trace_of_other_data_alone_is_refused_by_what_it_holds(tmp_path: Path) -> None:
    """Of a recording of Android it said no more than that there are no events."""
    packets = [proto.TracePacket(ftrace_events=proto.FtraceEventBundle(cpu=k)) for k in range(3)]
    with pytest.raises(
        ci.errors.ReadError, match=r"other than track events were not read: 3 ftrace"
    ):
        ci.read(saved(tmp_path, *packets))


def sdk() -> Sdk:
    made = Sdk()
    made.start()
    made.process()
    return made


def shape(trace: ci.Trace) -> Counter:
    names, origin = trace.names(), trace.meta.origin_ns
    columns = [trace.array(c).tolist() for c in ("kind", "rank", "dur", "correlation")]
    lane = trace.array("kind", "lanes")[trace.array("lane")].tolist()
    name = [names[c] for c in trace.array("name")]
    return Counter(zip(name, (trace.array("ts") + origin).tolist(), lane, *columns, strict=True))


def arrows(trace: ci.Trace) -> Counter:
    drawn = (EdgeKind.LAUNCH, EdgeKind.FWDBWD, EdgeKind.EVENT, EdgeKind.SYNC, EdgeKind.COMM)
    return Counter(k for k in trace.array("kind", "edges").tolist() if k in drawn)


def test_what_our_writer_wrote_is_read_back(demo: Path, tmp_path: Path) -> None:
    trace = read_once(demo)
    ci.write(trace, tmp_path / "a.pftrace", all_samples=True)
    again = ci.read(tmp_path / "a.pftrace")
    assert shape(again) == shape(trace)
    assert arrows(again) == arrows(trace)
    assert again.samples.num_rows == trace.samples.num_rows
    assert again.counters.num_rows == trace.counters.num_rows
    assert [r.rank for r in again.meta.ranks] == [r.rank for r in trace.meta.ranks]
    used = np.unique(trace.array("lane")).tolist()
    lanes = [tuple(row.values()) for row in trace.lanes.to_pylist()]
    assert {tuple(row.values()) for row in again.lanes.to_pylist()} == {lanes[i] for i in used}
    assert again.groups.to_pylist() == trace.groups.to_pylist()
    series = [set(map(tuple, (r.values() for r in t.series.to_pylist()))) for t in (trace, again)]
    assert series[0] == series[1]
    for column in ("iteration", "bytes", "phase", "collective", "group"):
        written, again_read = (t.values(column).tolist() for t in (trace, again))
        assert Counter(map(str, written)) == Counter(map(str, again_read))
    assert not uncounted_events(again)


@pytest.mark.parametrize(
    "path",
    each(slow_from(sorted(KINETO[::6], key=lambda p: p.stat().st_size), 3)),
    ids=lambda p: p.name,
)
def test_kineto_files_through_perfetto(path: Path, tmp_path: Path) -> None:
    try:
        trace = ci.read(path)
    except ci.ChopperError:
        pytest.skip("it is read by no converter")
    made = tmp_path / "a.pftrace"
    ci.write(trace, made, all_samples=True)
    again = ci.read(made)
    assert shape(again) == shape(trace)
    assert arrows(again) == arrows(trace)
    query = "select count(*), coalesce(sum(dur), 0) from slice where category != 'derived'"
    assert TraceProcessor(made).query(query) == [
        (again.nodes.num_rows, int(again.array("dur").sum()))
    ]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_any_trace_keeps_names_and_times(tmp_path_factory, trace: ci.Trace) -> None:
    if not trace.nodes.num_rows:
        return
    path = tmp_path_factory.mktemp("x") / "a.pftrace"
    ci.write(trace, path, all_samples=True)

    again = reader.read([path])
    names, origin = again.names(), again.meta.origin_ns
    result = Counter(
        zip(
            again.array("kind").tolist(),
            [names[c] for c in again.array("name")],
            (again.array("ts") + origin).tolist(),
            again.array("dur").tolist(),
            strict=True,
        )
    )
    names, origin = trace.names(), trace.meta.origin_ns
    expected = Counter(
        zip(
            trace.array("kind").tolist(),
            [names[c] for c in trace.array("name")],
            (trace.array("ts") + origin).tolist(),
            trace.array("dur").tolist(),
            strict=True,
        )
    )
    assert result == expected
    assert edges(again, np.ones(again.edges.num_rows, bool)) == edges(
        trace, writer.has_arrow(trace)
    )


def edges(trace: ci.Trace, mask: np.ndarray) -> Counter:
    names, origin = trace.names(), trace.meta.origin_ns
    name = [names[c] for c in trace.array("name")]
    columns = [(trace.array("ts") + origin).tolist(), trace.array("dur").tolist()]
    node = list(zip(name, trace.array("rank").tolist(), *columns, strict=True))
    ends = (trace.array(c, "edges")[mask].tolist() for c in ("src", "dst", "kind"))
    return Counter((node[a], node[b], kind) for a, b, kind in zip(*ends, strict=True))


def test_dependencies_between_tracks_have_arrows_and_others_are_counted(tmp_path: Path) -> None:
    builder = TraceBuilder()
    lanes = [builder.lane(0, LaneKind.STREAM, number, "", 0) for number in (1, 2)]
    builder.nodes(
        kind=int(Kind.KERNEL), name=["a", "b", "c"], rank=0, lane=[lanes[0], lanes[0], lanes[1]],
        ts=np.array([5, 20, 10]), dur=[4, 4, 4],
    )  # fmt: skip
    builder.edges(np.array([0, 0]), np.array([1, 2]), EdgeKind.DEPENDENCY)
    trace = builder.finish()
    log = ci.write(trace, tmp_path / "a.pftrace")
    assert [(i.code, i.count) for i in log] == [("edges-without-arrow", 1)]
    assert TraceProcessor(tmp_path / "a.pftrace").query("select count(*) from flow") == [(1,)]
    again = ci.read(tmp_path / "a.pftrace")
    assert edges(again, np.ones(1, bool)) == edges(trace, writer.has_arrow(trace))
    assert not uncounted_events(again)


@pytest.mark.parametrize("options", [{}, {"by_queue": False}, {"agents_as_text": True}])
def test_rocprofv3(tmp_path: Path, options: dict) -> None:
    path = tmp_path / "results.pftrace"
    path.write_bytes(seeds.rocprofv3(**options))
    trace = ci.read(path)
    frame = trace.to_pandas()
    assert Counter(frame["kind"]) == {
        "runtime": 4, "kernel": 3, "comm": 1, "annotation": 1, "memcpy": 2,
    }  # fmt: skip
    assert trace.array("kind", "edges").tolist() == [int(EdgeKind.LAUNCH)] * 4
    lane = trace.lanes.to_pandas().iloc[trace.array("lane")].reset_index(drop=True)
    work = lane[frame["kind"].isin(["kernel", "comm", "memcpy"])]
    assert set(work["device"]) == {4}
    kind = LaneKind.STREAM if options.get("by_queue") is False else LaneKind.QUEUE
    assert set(lane[frame["kind"] == "kernel"]["kind"]) == {int(kind)}
    assert set(frame["correlation"][frame["kind"] == "runtime"]) == {1, 2, 3, 4}
    assert set(frame["bytes"].dropna()) == {4096}
    assert trace.meta.clock == BOOTTIME
    (rank,) = trace.meta.ranks
    assert (rank.pid, rank.device) == (seeds.PID, 4)
    values = dict(
        zip(trace.series["name"].to_pylist(), trace.series["unit"].to_pylist(), strict=True)
    )
    assert values["COPY BYTES to AGENT [4] (GPU)"] == "B"
    assert max(trace.samples["value"].to_pylist()) == 4096
    assert counts(trace)["counter-values-truncated"] == 1
    assert not uncounted_events(trace)
    ((count, total),) = TraceProcessor(path).query("select count(*), sum(dur) from slice")
    assert (count, total) == (trace.nodes.num_rows, trace.array("dur").sum())


def test_times_are_those_of_the_arguments(tmp_path: Path) -> None:
    path = tmp_path / "results.pftrace"
    path.write_bytes(seeds.rocprofv3(moved=100))
    trace = ci.read(path)
    assert counts(trace)["kernel-times-moved"] == 2
    kernels = trace.array("kind") == Kind.KERNEL
    assert set(trace.array("dur")[kernels].tolist()) == {13_000}


def test_the_same_run_as_csv_and_as_perfetto_is_read_once(tmp_path: Path) -> None:
    rows = [
        row(
            KERNELS, Kernel_Name="gemm(float*)", Correlation_Id=i + 1, Dispatch_Id=i + 1,
            Start_Timestamp=T0 + 20_000 * i + 5_000, End_Timestamp=T0 + 20_000 * i + 18_000,
        )
        for i in range(4)
    ]  # fmt: skip
    write_csv(tmp_path / f"{seeds.PID}_kernel_trace.csv", KERNELS, *rows)
    (tmp_path / f"{seeds.PID}_results.pftrace").write_bytes(seeds.ROCPROF)
    trace = ci.read(tmp_path)
    assert counts(trace)["same-events-twice"] == 1
    assert trace.ranks == [0]
    assert trace.nodes.num_rows == seeds.SLICES


def test_our_own_trace_next_to_its_inputs_is_left_out(demo: Path, tmp_path: Path) -> None:
    trace = read_once(demo / "kineto")
    job = tmp_path / "job"
    job.mkdir()
    for path in (demo / "kineto").iterdir():
        (job / path.name).write_bytes(path.read_bytes())
    ci.write(trace, job / "a.pftrace", all_samples=True)
    ci.write(trace, job / "b.pftrace.gz")
    assert ci.read(job).nodes.num_rows == trace.nodes.num_rows
    assert ci.read(job / "a.pftrace").nodes.num_rows == trace.nodes.num_rows


def test_arguments_of_every_kind(tmp_path: Path) -> None:
    made = sdk()
    args = {
        "b": True, "u": 2**64 - 1, "i": -5, "d": 1.0, "e": 0.1, "s": 'q"\\\n\x01é',
        "dict": {"x": 1, "y": {"z": [1, [2.5, "t"], 3]}}, "many": list(range(300)),
    }  # fmt: skip
    made.slice(MAIN, "a", "c", T0, T0 + 9, **args)
    event = made.packets[-2].track_event
    event.debug_annotations.add(name="json").legacy_json_value = '{"k": [1, 2]}'
    event.debug_annotations.add(name="text").legacy_json_value = "no json"
    event.debug_annotations.add(name="p").pointer_value = 0xDEAD
    old = event.debug_annotations.add(name="old").nested_value
    old.nested_type = 1
    old.dict_keys.extend(["m", "n"])
    old.dict_values.add().int_value = 4
    old.dict_values.add(nested_type=2).array_values.add().string_value = "v"
    nan = event.debug_annotations.add(name="nan")
    nan.double_value = float("nan")
    seeds.annotate(made.packets[-1].track_event, "at_end", 7)
    trace = ci.read(saved(tmp_path, *made.packets))
    assert trace.args(0) == args | {
        "json": {"k": [1, 2]}, "text": "no json", "p": "0xdead", "old": {"m": 4, "n": ["v"]},
        "nan": "NaN", "at_end": 7,
    }  # fmt: skip
    assert isinstance(trace.args(0)["d"], float)
    raw = trace.text.buffers[0].tobytes().decode()
    assert json.loads(raw)["b"] is True


def test_values_nested_too_deep_are_null(tmp_path: Path) -> None:
    made = sdk()
    deep: object = 1
    for _ in range(90):
        deep = [deep]
    made.slice(MAIN, "a", "c", T0, T0 + 9, deep=deep, flat=2)
    trace = ci.read(saved(tmp_path, *made.packets))
    assert trace.args(0)["flat"] == 2
    assert counts(trace)["annotation-unreadable"] == 1


def test_clocks_of_snapshots(tmp_path: Path) -> None:
    made = sdk()
    made.slice(MAIN, "own clock", "c", T0 + 5, T0 + 9)
    wall = proto.TracePacket(
        timestamp=T0 + EPOCH + 20, timestamp_clock_id=1, trusted_packet_sequence_id=9
    )
    wall.track_event.type, wall.track_event.name, wall.track_event.track_uuid = INSTANT, "wall", 10
    trace = reader.read([saved(tmp_path, *made.packets, wall)])
    names = [trace.names()[c] for c in trace.array("name")]
    ts = (trace.array("ts") + trace.meta.origin_ns - T0).tolist()
    assert dict(zip(names, ts, strict=True)) == {"own clock": 5, "wall": 20}
    assert trace.meta.clock == BOOTTIME
    (offset,) = trace.meta.offsets
    assert (offset.clock, offset.offset_ns) == (REALTIME, -EPOCH)


def test_old_phases(tmp_path: Path) -> None:
    thread = proto.TracePacket(trusted_packet_sequence_id=3, sequence_flags=1)
    thread.thread_descriptor.pid, thread.thread_descriptor.tid = 7, 8
    thread.thread_descriptor.thread_name = "old"
    packets = [thread]
    for at, phase, identity in (
        (10, "X", 0),
        (20, "B", 0),
        (25, "b", 5),
        (30, "E", 0),
        (40, "e", 5),
    ):
        packet = proto.TracePacket(timestamp=at * 1000, trusted_packet_sequence_id=3)
        packet.track_event.name = "async" if identity else phase if phase == "X" else "BE"
        packet.track_event.legacy_event.phase = ord(phase)
        if phase == "X":
            packet.track_event.legacy_event.duration_us = 3
        if identity:
            packet.track_event.legacy_event.unscoped_id = identity
        packets.append(packet)
    path = saved(tmp_path, *packets)
    trace = ci.read(path)
    frame = trace.to_pandas().set_index("name")
    assert frame["dur"].to_dict() == {"X": 3000, "BE": 10_000, "async": 15_000}
    query = "select name, dur from slice"
    assert dict(TraceProcessor(path).query(query)) == frame["dur"].to_dict()


def test_counters_of_every_kind(tmp_path: Path) -> None:
    made = sdk()
    grows = made.track(20, "grows").counter
    grows.is_incremental, grows.unit_multiplier, grows.unit_name = True, 10, "MB"
    made.track(21, "plain").counter.unit = 1
    for i in range(3):
        made.count(20, T0 + i, 2)
        made.count(21, T0 + i, 0.5 * i)
    _, event = made.event(BEGIN, T0 + 50)
    event.name = "with counters"
    event.extra_counter_track_uuids.append(22)
    event.extra_counter_values.append(9)
    made.event(END, T0 + 60)
    made.track(22, "further").counter.SetInParent()
    trace = ci.read(saved(tmp_path, *made.packets))
    names, unit = trace.series["name"].to_pylist(), trace.series["unit"].to_pylist()
    result: dict[str, list[float]] = {}
    for sample in trace.samples.to_pylist():
        result.setdefault(names[sample["series"]], []).append(sample["value"])
    assert result == {"grows": [20, 40, 60], "plain": [0, 0.5, 1], "further": [9]}
    assert dict(zip(names, unit, strict=True)) == {"grows": "MB", "plain": "ns", "further": ""}
    assert not uncounted_events(trace)


def test_ranks_of_processes(tmp_path: Path) -> None:
    packets = []
    for rank in (1, 0):
        made = Sdk(sequence=2 + rank)
        made.start()
        made.track(100 + rank, parent=0).process.pid = 50 - rank
        made.packets[-1].track_descriptor.process.process_labels.append(f"rank {rank}")
        made.track(200 + rank, "stream 0", 100 + rank)
        made.slice(200 + rank, f"k{rank}", "kernel", T0 + rank, T0 + rank + 5)
        packets += made.packets
    trace = ci.read(saved(tmp_path, *packets))
    assert {(r.rank, r.pid, r.known_by) for r in trace.meta.ranks} == {
        (0, 50, "labels"), (1, 49, "labels"),
    }  # fmt: skip
    assert [trace.names()[c] for c in trace.array("name")] == ["k0", "k1"]


def test_rocprofiler_systems(tmp_path: Path) -> None:
    made = sdk()
    made.track(30, "GPU Kernel Dispatch [0] Queue 5")
    made.track(31, "HIP Activity Device 1, Queue 2")
    made.slice(MAIN, "hipLaunchKernel", "rocm_hip_api", T0, T0 + 5, 3, corr_id=3)
    made.slice(MAIN, "main", "host", T0 + 6, T0 + 7)
    made.slice(30, "gemm", "rocm_kernel_dispatch", T0 + 10, T0 + 20, 3, corr_id=3, queue=5)
    made.slice(31, "CopyHostToDevice", "device_hip", T0 + 30, T0 + 40)
    trace = ci.read(saved(tmp_path, *made.packets))
    frame = trace.to_pandas()
    assert frame["kind"].tolist() == ["runtime", "cpu_op", "kernel", "memcpy"]
    lanes = trace.lanes.to_pandas().iloc[trace.array("lane")]
    assert lanes["device"].tolist() == [-1, -1, 0, 1]
    assert lanes["number"].tolist()[2:] == [5, 2]
    assert trace.edges.num_rows == 1
    assert trace.meta.sources[0].tool == "rocprofiler-systems"


def test_no_file_is_two_formats() -> None:
    for path in sorted(p for p in real().rglob("*") if p.is_file()):
        try:
            actual = [c.name for c in registry.sniffed(inputs.head(path))]
        except ci.ChopperError:
            continue
        assert len(actual) <= 1, path
        assert "perfetto" not in actual, path


def test_ets_and_traces_are_distinguished(demo: Path, tmp_path: Path) -> None:
    trace = read_once(demo / "kineto")
    ci.write(trace, tmp_path / "et" / "job.et", mode="gpu")
    ci.write(trace, tmp_path / "job.pftrace")
    for path in (tmp_path / "et").glob("*.et"):
        assert [c.name for c in registry.sniffed(inputs.head(path))] == ["chakra"]
    for data in (inputs.head(tmp_path / "job.pftrace"), seeds.ROCPROF, seeds.PAIR):
        for size in (len(data), 60, 40):
            assert [c.name for c in registry.sniffed(data[:size])] == ["perfetto"]


def test_events_of_a_type_counter_without_a_track(tmp_path: Path) -> None:
    made = sdk()
    made.slice(MAIN, "a", "c", T0, T0 + 9)
    made.event(COUNTER, T0 + 10)[1].counter_value = 3
    trace = ci.read(saved(tmp_path, *made.packets))
    assert trace.samples.num_rows == 1
    assert np.array_equal(trace.samples["value"].to_numpy(), [3.0])
    assert not uncounted_events(trace)


def test_a_damaged_compressed_packet_is_an_event(tmp_path: Path) -> None:
    made = sdk()
    made.slice(MAIN, "a", "c", T0, T0 + 9)
    packed = proto.TracePacket(compressed_packets=b"no zlib")
    trace = ci.read(saved(tmp_path, *made.packets, packed))
    assert counts(trace)["perfetto-compressed-damaged"] == 1
    assert not uncounted_events(trace)


def test_a_full_buffer_is_reported(tmp_path: Path) -> None:
    made = sdk()
    made.slice(MAIN, "a", "c", T0, T0 + 9)
    stats = proto.TracePacket(trusted_packet_sequence_id=1)
    stats.trace_stats.buffer_stats.add(chunks_discarded=3, chunks_overwritten=1)
    trace = ci.read(saved(tmp_path, *made.packets, stats))
    assert counts(trace)["perfetto-buffer-full"] == 4


def test_categories_that_are_written_are_read_as_their_kind() -> None:
    assert {categories.PERFETTO[text]: text for text in categories.PERFETTO_CATEGORY.values()} == (
        categories.PERFETTO_CATEGORY
    )
