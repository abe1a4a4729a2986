"""Perfetto's trace processor sees all that the trace holds, to the nanosecond."""

import gzip
import json
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from read_once import read_once
from trace_processor import TraceProcessor

import chopper_interop as ci
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.perfetto import chopper_metadata
from chopper_interop.converters.perfetto.write import (
    critical_path,
    events_encode,
    slice_data,
    writer,
)
from chopper_interop.io import background
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import BOOTTIME, Device, Meta
from chopper_interop.testing.strategies import traces

EPOCH = 1_767_189_312_000_000_000
INSIDE = "where category != 'derived'"


def written(trace: ci.Trace, folder: Path, **options) -> TraceProcessor:
    path = folder / "job.pftrace"
    ci.write(trace, path, **options)
    return TraceProcessor(path)


def one_lane(
    spans: list[tuple[int, int]], kind: Kind = Kind.CPU_OP, lane: LaneKind = LaneKind.THREAD
) -> ci.Trace:
    """A trace of spans (start, duration) on one lane, named by their numbers."""
    builder = TraceBuilder()
    device = 0 if lane is LaneKind.STREAM else -1
    row = builder.lane(0, lane, 7, "lane", device)
    names = [f"n{i}" for i in range(len(spans))]
    ts = np.array([s for s, _ in spans], np.int64) + EPOCH
    dur = np.array([d for _, d in spans], np.int64)
    builder.nodes(kind=int(kind), name=names, rank=0, lane=row, ts=ts, dur=dur)
    return builder.finish()


SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8)), min_size=1, max_size=14)


@given(SPANS, st.sampled_from([(Kind.CPU_OP, LaneKind.THREAD), (Kind.KERNEL, LaneKind.STREAM)]))
def test_overlaps_change_no_duration(tmp_path_factory, spans, kinds) -> None:
    perfetto = written(one_lane(spans, *kinds), tmp_path_factory.mktemp("x"))
    seen = {name: (ts, dur) for name, ts, dur in perfetto.query("select name, ts, dur from slice")}
    assert seen == {f"n{i}": (EPOCH + s, d) for i, (s, d) in enumerate(spans)}
    assert perfetto.losses() == {}
    tracks = perfetto.query("select distinct t.name from slice s join track t on s.track_id = t.id")
    assert {name for (name,) in tracks} <= {None, "lane"} | {"lane (compute)"}


@pytest.mark.parametrize("kinds", [(Kind.CPU_OP, LaneKind.THREAD), (Kind.KERNEL, LaneKind.STREAM)])
def test_slices_of_one_lane_may_all_overlap(tmp_path: Path, kinds: tuple[Kind, LaneKind]) -> None:
    """More than are searched for room; some have no duration, and some rows come to be free again."""
    count = 900
    spans = [(i, count + 2 * i) for i in range(count)]
    spans += [(2 * count, 0)] * 3 + [(count + 3 * i, 5 * count) for i in range(count)]
    perfetto = written(one_lane(spans, *kinds), tmp_path)
    seen = {name: (ts, dur) for name, ts, dur in perfetto.query("select name, ts, dur from slice")}
    assert seen == {f"n{i}": (EPOCH + s, d) for i, (s, d) in enumerate(spans)}
    assert perfetto.losses() == {}


def test_no_slices_of_a_row_cut_each_other() -> None:
    """Whatever overlaps, in as many rows as overlap at a time at most, beyond those that are searched."""
    random = np.random.default_rng(1)
    for depth in (1, 3):
        ts, dur = (
            random.integers(0, 3000, 6000),
            random.integers(0, 900, 6000) * (random.random(6000) < 0.9),
        )
        order = np.lexsort((-dur, ts))
        ts, dur = ts[order], dur[order]
        row = events_encode.rows_without_overlap(ts, dur, depth)
        assert row.max() > events_encode._SEARCHED
        for part in (np.flatnonzero(row == r) for r in range(row.max() + 1)):
            opened: list[int] = []
            for start, end in zip(ts[part], ts[part] + dur[part], strict=True):
                while opened and opened[-1] <= start:
                    opened.pop()
                assert not opened or (end <= opened[-1] and len(opened) < depth)
                opened.append(end)
            assert part.size


def test_rows_of_several_lanes_are_those_of_each() -> None:
    """Whatever the lanes before left on the stacks, and however many rows these had."""
    random = np.random.default_rng(2)
    lanes, depths = [], np.array([500, 1, 3, 1, 500, 2])
    for count, length in ((40, 9), (6000, 900), (1, 0), (300, 60), (90, 500), (50, 40)):
        ts, dur = random.integers(0, 3000, count), random.integers(0, length + 1, count)
        order = np.lexsort((-dur, ts))
        lanes.append((ts[order], dur[order]))
    first = np.cumsum([0, *(len(ts) for ts, _ in lanes)])
    ts, dur = (np.concatenate(column) for column in zip(*lanes, strict=True))
    row = events_encode.rows_of_lanes(ts, dur, first, depths)
    alone = [
        events_encode.rows_without_overlap(*lane, int(depth))
        for lane, depth in zip(lanes, depths, strict=True)
    ]
    assert row.max() > events_encode._SEARCHED
    np.testing.assert_array_equal(row, np.concatenate(alone))


def test_arguments_of_lanes_may_be_arrays_of_any_layout(tmp_path: Path) -> None:
    """A plug-in may give a view backwards: code for arrays in one piece would read memory around it."""
    builder = TraceBuilder()
    for number, step in enumerate((1, -1)):
        shown = f'{{"shown": "{number}"}}'.encode()
        text = np.frombuffer(bytearray(shown[::step]), np.uint8)[::step]
        at = np.array([builder.text(text)])
        row = builder.lane(0, LaneKind.THREAD, number, "lane")
        builder.nodes(
            kind=int(Kind.CPU_OP), name=["n"], rank=0, lane=row, ts=np.array([EPOCH]), dur=1,
            args=(at, np.array([len(shown)])),
        )  # fmt: skip
    found = written(builder.finish(), tmp_path).query(
        "select display_value from args where key = 'debug.shown'"
    )
    assert found == [("0",), ("1",)]


def test_kernels_are_not_inside_each_other(tmp_path: Path) -> None:
    """Even where their times are: on streams of GPUs nothing nests, on threads it does."""
    for kind, lane, depths in (
        (Kind.KERNEL, LaneKind.STREAM, [(0,), (0,)]),
        (Kind.CPU_OP, LaneKind.THREAD, [(0,), (1,)]),
    ):
        processor = written(one_lane([(0, 10), (2, 3)], kind, lane), tmp_path)
        found = processor.query(f"select depth from slice {INSIDE} order by depth")  # noqa: S608
        assert found == depths


def test_arguments_of_a_lane_may_be_of_several_texts(tmp_path: Path) -> None:
    """They are copied then; those of the other lane are not."""
    builder = TraceBuilder()
    lanes = [builder.lane(0, LaneKind.THREAD, number, "lane") for number in range(2)]
    for number in range(3):
        shown = f'  {{"shown": "{number}"}}'.encode()
        at = np.array([builder.text(np.frombuffer(bytearray(shown), np.uint8)) + 2])
        builder.nodes(
            kind=int(Kind.CPU_OP), name=["n"], rank=0, lane=lanes[number // 2],
            ts=np.array([EPOCH + number]), dur=1, args=(at, np.array([len(shown) - 2])),
        )  # fmt: skip
    found = written(builder.finish(), tmp_path).query(
        "select display_value from args where key = 'debug.shown'"
    )
    assert sorted(found) == [("0",), ("1",), ("2",)]


def test_ends_are_written_in_as_many_parts_as_there_is_room_for() -> None:
    """They were written beyond the buffer where very many slices end last."""
    rows = 1000
    opened = events_encode.OpenSlices.of_rows(rows, 500)
    opened.ends[opened.first], opened.depth[:] = 1 << 60, 1
    out, sizes = np.zeros(1000, np.uint8), []
    while size := events_encode.close_slices(out, opened, np.full(rows, 1 << 40)):
        sizes.append(size)
    assert max(sizes) <= len(out)
    assert not opened.depth.any()


@pytest.mark.parametrize(("start", "drawn"), [(-90, 1), (0, 4), (50, 0)])
def test_samples_outside_of_the_window_are_counted(tmp_path: Path, start: int, drawn: int) -> None:
    """The window is 20 ns with a twentieth at each end; a value before it holds at its beginning."""
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 7, "lane", 0)
    ts = np.array([EPOCH], np.int64)
    builder.nodes(kind=int(Kind.KERNEL), name=["k"], rank=0, lane=lane, ts=ts, dur=ts * 0 + 20)
    row = builder.series(rank=0, device=0, source="tool", name="power", unit="W")
    builder.samples(row, EPOCH + start + np.arange(4) * 5, np.arange(4.0))
    issues = ci.write(builder.finish(), tmp_path / "job.pftrace")
    values = TraceProcessor(tmp_path / "job.pftrace").query("select count(*) from counter")
    assert values == [(drawn,)]
    assert sum(i.count for i in issues if i.code == "samples-outside-window") == 4 - drawn


def test_deep_nesting_is_kept(tmp_path: Path) -> None:
    deep = [(i, 4000 - 2 * i) for i in range(1200)]
    perfetto = written(one_lane(deep), tmp_path)
    ((count, total),) = perfetto.query("select count(*), sum(dur) from slice")
    assert (count, total) == (1200, sum(d for _, d in deep))
    assert perfetto.losses() == {}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_any_trace_arrives_complete(tmp_path_factory, trace: ci.Trace) -> None:
    perfetto = written(trace, tmp_path_factory.mktemp("x"), all_samples=True)
    assert perfetto.losses() == {}
    names, code = trace.names(), trace.array("name")
    origin = trace.meta.origin_ns
    expected = Counter(
        (names[c], int(t) + origin, int(d))
        for c, t, d in zip(code, trace.array("ts"), trace.array("dur"), strict=True)
    )
    seen = Counter(
        (name or "", ts, dur)
        for name, ts, dur in perfetto.query(f"select name, ts, dur from slice {INSIDE}")  # noqa: S608
    )
    plain = Counter((n.split("\0")[0], t, d) for n, t, d in expected.elements())
    assert seen in (expected, plain)  # a text may end at NUL
    kinds, src, dst = (trace.array(c, "edges") for c in ("kind", "src", "dst"))
    lane = trace.array("lane")
    drawn = (kinds == EdgeKind.DEPENDENCY) & (lane[src] != lane[dst])
    drawn |= np.isin(kinds, [int(k) for k in slice_data.ARROW_KINDS])
    ((arrows,),) = perfetto.query("select count(*) from flow")
    assert arrows == np.count_nonzero(drawn)
    points = Counter(
        perfetto.query(
            "select c.ts, value from counter c join track t on t.id = c.track_id "
            "join track p on p.id = t.parent_id where p.name != 'hardware counters'"
        )
    )
    ts = trace.array("ts", "samples") + origin
    values = trace.array("value", "samples")
    shown = Counter({point: n for point, n in points.items() if point[1] is not None})
    numbers = ~np.isnan(values)  # what is none is null, and so are the ends of lanes
    assert sum(points.values()) - sum(shown.values()) >= np.count_nonzero(~numbers)
    assert shown == Counter(zip(ts[numbers].tolist(), values[numbers].tolist(), strict=True))


def test_arrows_tie_what_depends_to_what_it_depends_on(demo: Path, tmp_path: Path) -> None:
    trace = read_once(demo)
    seen = written(trace, tmp_path).query(
        "select o.name, o.ts, i.name, i.ts from flow "
        "join slice o on o.id = slice_out join slice i on i.id = slice_in"
    )
    kinds = trace.array("kind", "edges")
    src, dst = (trace.array(c, "edges") for c in ("src", "dst"))
    names, code = trace.names(), trace.array("name")
    ts = trace.array("ts") + trace.meta.origin_ns
    expected = Counter(
        tuple(sorted((int(ts[n]), names[code[n]]) for n in ends))
        for ends in zip(src.tolist(), dst.tolist(), strict=True)
    )
    present = {EdgeKind(k).name for k in np.unique(kinds)}
    assert present >= {"LAUNCH", "EVENT", "SYNC", "COMM", "FWDBWD"}
    assert Counter(tuple(sorted(((s, a), (t, b)))) for a, s, b, t in seen) == expected


ARGUMENTS = {
    "External id": 7,
    "negative": -(2**40),
    "huge": 2**64 - 1,
    "beyond": 2**70,
    "real": 0.1,
    "tiny": 1.5e-12,
    "exact": 21.125,
    "yes": True,
    "nothing": None,
    "text": "short",
    "long": "Cijk_Ailk_Bljk_BBS_BH_MT64x64x64_MI16x16x16_1",
    "escaped": 'a "quoted" \\ text\n',
    "grid": [304, 1, 1],
    "nested": {"a": [1, {"b": "c"}]},
    "with.dot": 1,
    "": "no name",
}


def test_arguments_keep_their_types(tmp_path: Path) -> None:
    trace = with_arguments([json.dumps(ARGUMENTS).encode()] * 3)
    perfetto = written(trace, tmp_path)
    assert perfetto.losses() == {}
    rows = perfetto.query(
        "select key, int_value, string_value, real_value from args "
        "join slice using (arg_set_id) where slice.name = 'n2'"
    )
    seen = {
        key.removeprefix("debug."): next((v for v in values if v is not None), None)
        for key, *values in rows
    }
    assert seen["External id"] == 7
    assert seen["negative"] == -(2**40)
    assert seen["huge"] == -1  # the processor shows unsigned numbers as signed
    assert seen["real"] == 0.1
    assert seen["tiny"] == 1.5e-12
    assert seen["exact"] == 21.125
    assert seen["yes"] == 1
    assert seen["nothing"] == "null"
    assert seen["text"] == "short"
    assert seen["long"] == ARGUMENTS["long"]
    assert seen["escaped"] == ARGUMENTS["escaped"]
    assert [seen[f"grid[{k}]"] for k in range(3)] == [304, 1, 1]
    assert seen["nested.a[1].b"] == "c"
    assert seen["with_dot"] == 1
    assert float(seen["beyond"]) == pytest.approx(2**70)


def with_arguments(raws: list[bytes]) -> ci.Trace:
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.THREAD, 1, "main")
    start = builder.text(np.frombuffer(bytearray(b"".join(raws)), np.uint8))
    length = np.array([len(r) for r in raws], np.int32)
    at = start + np.cumsum(length) - length
    n = len(raws)
    builder.nodes(
        kind=int(Kind.CPU_OP), name=[f"n{i}" for i in range(n)], rank=0, lane=lane,
        ts=np.arange(n) * 10 + EPOCH, dur=np.full(n, 5), args=(at, length),
    )  # fmt: skip
    return builder.finish()


@given(
    st.integers(-(2**64), 2**65)
    | st.floats(1e-250, 1e250)
    | st.floats(allow_nan=False, allow_infinity=False)
)
def test_numbers_are_encoded_as_python_reads_them(value) -> None:
    text = json.dumps(value).encode()
    out = np.zeros(200, np.uint8)
    buffer = np.frombuffer(bytearray(b'{"k":' + text + b"}"), np.uint8)
    from chopper_interop.arrays.interning import empty_text_table

    keys, texts = empty_text_table(4, 1), empty_text_table(4, 1)
    size = events_encode._encode_arguments(out, 0, buffer, 0, len(buffer), keys, texts)
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    (annotation,) = proto.TrackEvent.FromString(out[:size].tobytes()).debug_annotations
    kind = annotation.WhichOneof("value")
    encoded = getattr(annotation, kind)
    if kind == "string_value":  # too large for a number of the format
        assert isinstance(value, int) or not 1e-260 < abs(value) < 1e260
        encoded = json.loads(encoded)
    assert encoded == value


def test_arguments_longer_than_a_chunk(tmp_path: Path) -> None:
    raws = [b"{}", json.dumps({"stack": "x" * (6 << 20)}).encode(), b'{"a": 1}']
    perfetto = written(with_arguments(raws), tmp_path)
    ((length,),) = perfetto.query("select max(length(string_value)) from args")
    assert length == 6 << 20
    assert perfetto.query("select count(*) from slice") == [(3,)]


def test_slices_that_are_taken_in_parts_are_the_same_bytes(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = ci.read(demo)
    ci.write(trace, tmp_path / "a.pftrace")
    monkeypatch.setattr(slice_data, "PART", 3)
    ci.write(trace, tmp_path / "b.pftrace")
    assert (tmp_path / "a.pftrace").read_bytes() == (tmp_path / "b.pftrace").read_bytes()


def test_what_a_thread_writes_stays_as_it_is_meanwhile(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buffer that was filled again too soon has the bytes of a later one."""
    write = background.WriterBehind._write
    count = 0

    def write_late(behind: background.WriterBehind, data: memoryview) -> None:
        nonlocal count
        count += 1
        time.sleep(0.01)
        write(behind, data)

    trace = ci.read(demo)
    monkeypatch.setattr(writer, "_CHUNK", 1 << 16)
    monkeypatch.setattr(writer, "_SCRATCH", 1 << 14)
    ci.write(trace, tmp_path / "a.pftrace", gpu_packets=True)
    monkeypatch.setattr(background, "_WORTH_A_THREAD", 1 << 9)
    monkeypatch.setattr(background.WriterBehind, "_write", write_late)
    ci.write(trace, tmp_path / "b.pftrace", gpu_packets=True)
    assert count > 10
    assert (tmp_path / "a.pftrace").read_bytes() == (tmp_path / "b.pftrace").read_bytes()


@pytest.mark.slow
def test_more_texts_than_are_interned(tmp_path: Path) -> None:
    raws = [
        json.dumps({f"key {i}": f"a text that is interned once {i}"}).encode() for i in range(40000)
    ]
    perfetto = written(with_arguments(raws), tmp_path)
    assert perfetto.losses() == {}
    rows = perfetto.query(
        "select count(distinct key), count(distinct string_value) from args "
        "where key like 'debug.key %'"
    )
    assert rows == [(40000, 40000)]


def test_layout_and_counters_of_the_sample_job(demo: Path, tmp_path: Path) -> None:
    trace = read_once(demo)
    perfetto = written(trace, tmp_path)
    assert perfetto.losses() == {}
    processes = perfetto.query("select name, pid from process where name is not null order by pid")
    assert [name for name, _ in processes] == ["rank 0", "rank 1"]
    tracks = dict(
        perfetto.query(
            "select c.name, p.name from track c join track p on c.parent_id = p.id "
            "where p.name like 'GPU %'"
        )
    )
    assert {"iterations", "phases"} <= set(tracks)
    assert any(name.startswith("stream") and "(compute)" in name for name in tracks)
    assert any(name.startswith("stream") and "(communication)" in name for name in tracks)
    units = perfetto.query("select name, unit from counter_track where name = 'socket power'")
    assert set(units) == {("socket power", "W")}
    derived = perfetto.query("select name from slice where category = 'derived'")
    assert {"forward", "backward", "optimizer"} <= {name for (name,) in derived}


def test_clock_is_real_time_and_exact(demo: Path, tmp_path: Path) -> None:
    trace = read_once(demo / "kineto")
    perfetto = written(trace, tmp_path)
    assert perfetto.query("select min(ts) from slice") == [(trace.meta.origin_ns,)]
    assert perfetto.query("select clock_name from clock_snapshot limit 1") == [("REALTIME",)]


def test_time_since_boot_stays_time_since_boot(tmp_path: Path) -> None:
    trace = one_lane([(0, 5)]).with_meta(clock=BOOTTIME)
    perfetto = written(trace, tmp_path)
    assert perfetto.query("select ts, dur from slice") == [(EPOCH, 5)]
    assert perfetto.losses() == {}


def test_models_of_gpus_are_kept(tmp_path: Path) -> None:
    mi300x = Device("node1", 0, "MI300X", "amd-smi", 0, 4, 0, "0000:c1:00.0", "u", "gfx942", 8, 304)
    other = Device("node2", 1, "MI300X")
    devices = (mi300x, replace(mi300x, host="node2"), replace(mi300x, device=1), other)
    trace = one_lane([(0, 5)], Kind.KERNEL, LaneKind.STREAM).with_meta(devices=devices)
    ci.write(trace, tmp_path / "job.pftrace")
    (kept,) = ci.read(tmp_path / "job.pftrace").meta.devices
    assert (kept.name, kept.arch, kept.xccs, kept.cus) == ("MI300X", "gfx942", 8, 304)
    assert (kept.host, kept.pci, kept.uuid, kept.agent) == ("", "", "", -1)
    of_two = chopper_metadata.ChopperMetadata(models=[mi300x, replace(mi300x, name="MI325X")])
    assert of_two.model(0) == Device("", 0), "nodes differ in their GPU 0"


def test_gzipped_is_the_same(demo: Path, tmp_path: Path) -> None:
    trace = read_once(demo / "kineto")
    ci.write(trace, tmp_path / "a.pftrace")
    ci.write(trace, tmp_path / "b.pftrace.gz")
    plain = (tmp_path / "a.pftrace").read_bytes()
    assert gzip.decompress((tmp_path / "b.pftrace.gz").read_bytes()) == plain


def test_without_arguments_and_derived_tracks(demo: Path, tmp_path: Path) -> None:
    perfetto = written(read_once(demo / "kineto"), tmp_path, args=False, derived=False)
    assert perfetto.query("select count(*) from slice where category = 'derived'") == [(0,)]
    assert perfetto.query("select count(*) from args where key = 'debug.External id'") == [(0,)]


def test_two_ranks_with_one_process_id(tmp_path: Path) -> None:
    from dataclasses import replace

    from chopper_interop.build import concat
    from chopper_interop.schemas.meta import Rank

    first = one_lane([(0, 5)])
    one = pa.array([1], pa.int32())
    lanes = first.lanes.set_column(0, first.lanes.schema.field(0), one)
    nodes = first.nodes.set_column(2, first.nodes.schema.field(2), one)
    second = replace(first, lanes=lanes, nodes=nodes)
    ranks = (Rank(0, "host-a", 100), Rank(1, "host-b", 100))
    trace = concat([first, second], Meta(ranks=ranks))
    perfetto = written(trace, tmp_path)
    names = perfetto.query("select name from process where name like 'rank %' order by name")
    assert names == [("rank 0 on host-a",), ("rank 1 on host-b",)]
    assert perfetto.query("select count(*), sum(dur) from slice") == [(2, 10)]


def on_path(*spans: tuple[int, int, int, int, str]) -> ci.Trace:
    """A trace of nodes (rank, kind, critical start, critical end, name); each lasts 5 longer."""
    builder = TraceBuilder(Meta(clock=BOOTTIME, origin_ns=0))
    for rank, kind, start, end, name in spans:
        host = kind == Kind.CPU_OP
        lane_kind = LaneKind.THREAD if host else LaneKind.STREAM
        lane = builder.lane(rank, lane_kind, 7, "lane", -1 if host else 0)
        builder.nodes(
            kind=int(kind), name=name, rank=rank, lane=lane, ts=np.array([start]),
            dur=np.array([end - start + 5]),
            critical_start_ns=np.array([start]), critical_end_ns=np.array([end]),
            critical_ns=np.array([end - start]),
        )  # fmt: skip
    return builder.finish()


TRACK = (
    "select s.ts, s.dur, s.name from slice s join track t on s.track_id = t.id "
    "join track p on t.parent_id = p.id where p.name = 'critical path' and t.name like '%{}' "
    "order by t.name, s.ts, s.dur desc"
)


def test_the_critical_path_is_above_all_ranks(tmp_path: Path) -> None:
    spans = [
        (0, Kind.CPU_OP, 0, 10, "call"),
        (0, Kind.CPU_OP, 4, 6, "inner"),
        (0, Kind.KERNEL, 10, 30, "k"),
        (1, Kind.COMM, 30, 40, "c"),
        (1, Kind.KERNEL, 40, 40, "no time"),
    ]
    trace = on_path(*spans)
    path = trace.with_columns(critical_ns=pa.array([8, 2, 20, 10, 0]))
    tp = written(path, tmp_path)
    actual = [tuple(r) for r in tp.query(TRACK.format("nodes"))]
    assert actual == [(s, e - s, name) for _, _, s, e, name in spans if e > s]
    actual = [tuple(r) for r in tp.query(TRACK.format("class"))]
    assert actual == [
        (0, 10, "host, rank 0"), (10, 20, "compute, rank 0"), (30, 10, "communication, rank 1")
    ]  # fmt: skip
    critical_ns = tp.query("select int_value v from args where key = 'debug.chopper.critical_ns'")
    assert {v for (v,) in critical_ns} == {0, 2, 8, 10, 20}
    back = ci.read(tmp_path / "job.pftrace")
    assert back.nodes.num_rows == 5
    assert back.ranks == [0, 1]
    assert back.lanes.num_rows == trace.lanes.num_rows
    assert back.nodes["critical_end_ns"].to_pylist() == [10, 6, 30, 40, 40]


def test_critical_paths_of_several_ranks_have_tracks_of_their_own(tmp_path: Path) -> None:
    tp = written(on_path((0, Kind.KERNEL, 0, 10, "a"), (1, Kind.KERNEL, 0, 9, "b")), tmp_path)
    names = "select distinct t.name from track t join track p on t.parent_id = p.id "
    actual = {name for (name,) in tp.query(names + "where p.name = 'critical path'")}
    assert {"rank 0 nodes", "rank 1 nodes", "rank 0 class"} <= actual
    actual = [tuple(r) for r in tp.query(TRACK.format("class"))]
    assert actual == [(0, 10, "compute"), (0, 9, "compute")]


@given(spans=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), min_size=1, max_size=12))
def test_of_nodes_on_the_path_the_innermost_counts(spans) -> None:
    """As at each nanosecond: the node that began last and lasts, of equals the shorter."""
    spans = sorted({(s, s + d) for s, d in spans}, key=lambda x: (x[0], -x[1]))
    nodes = [(0, Kind.COMM if k % 2 else Kind.KERNEL, s, e, "n") for k, (s, e) in enumerate(spans)]
    trace = on_path(*nodes).with_columns(critical_ns=[0] * len(nodes))
    (path,) = critical_path.critical_paths(trace)
    drawn = critical_path.class_slices(critical_path.segments(trace, path), with_rank=False)
    rows = zip(drawn.ts.tolist(), drawn.dur.tolist(), drawn.code.tolist(), strict=True)
    shown = {t: drawn.names[code] for a, d, code in rows for t in range(a, a + d)}
    for t in range(50):
        there = [k for k, (s, e) in enumerate(spans) if s <= t < e]
        expected = ("communication" if there[-1] % 2 else "compute") if there else None
        nested = all(spans[a][1] >= spans[b][1] for a, b in pairwise(there))
        assert not nested or shown.get(t) == expected
