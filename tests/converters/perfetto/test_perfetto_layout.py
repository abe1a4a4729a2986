"""Appearance of a trace when it is opened: order, names, and ends of lanes."""

import json
from pathlib import Path

import numpy as np
import pytest
from issue_counts import counts
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
from trace_processor import TraceProcessor

import chopper_interop as ci
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.perfetto.write import parts
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import BOOTTIME, REALTIME, Device, Meta, Rank

EPOCH = 1_767_189_312_000_000_000
SAMPLES = (
    "select c.ts, c.value from counter c join track t on c.track_id = t.id where t.name = '{}'"
)


def written(trace: ci.Trace, folder: Path, **options) -> TraceProcessor:
    ci.write(trace, folder / "job.pftrace", **options)
    return TraceProcessor(folder / "job.pftrace")


def kernels(builder: TraceBuilder, rank: int, count: int, lane: int | None = None) -> None:
    """Kernels of 800 ns, one each microsecond, on a stream of GPU 0."""
    lane = builder.lane(rank, LaneKind.STREAM, 7, "stream 7", 0) if lane is None else lane
    ts = EPOCH + 1000 * np.arange(count)
    builder.nodes(kind=int(Kind.KERNEL), name="k", rank=rank, lane=lane, ts=ts, dur=ts * 0 + 800)


def descriptors(path: Path) -> list[proto.TrackDescriptor]:
    trace = proto.Trace.FromString(path.read_bytes())
    return [p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")]


def test_processes_and_threads_say_their_order(tmp_path: Path) -> None:
    """Perfetto orders them from v57 on, if the root says so; the busiest thread is no main thread."""
    builder = TraceBuilder(Meta(ranks=(Rank(0, pid=5), Rank(1, pid=9))))
    for rank, pid in ((1, 9), (0, 5)):
        kernels(builder, rank, 3)
        for tid, count in ((pid, 1), (100, 2), (50, 3)):
            lane = builder.lane(rank, LaneKind.THREAD, tid, f"thread {tid}")
            ts = EPOCH + 1000 * np.arange(count)
            builder.nodes(kind=int(Kind.CPU_OP), name="o", rank=rank, lane=lane, ts=ts, dur=10)
    perfetto = written(builder.finish(), tmp_path)
    tracks = descriptors(tmp_path / "job.pftrace")
    root = next(t for t in tracks if t.uuid == 0)
    assert root.process_ordering == root.PROCESS_ORDERING_EXPLICIT
    assert root.thread_ordering == root.THREAD_ORDERING_EXPLICIT
    processes = {t.process.process_name: t.sibling_order_rank for t in tracks if t.process.pid}
    assert processes == {"rank 0": 0, "rank 1": 1}
    threads = sorted((t.sibling_order_rank, t.thread.tid) for t in tracks if t.thread.pid == 5)
    assert [tid for _, tid in threads] == [5, 50, 100]
    assert perfetto.query("select count(*) from thread where name like 'thread %'") == [(0,)]
    assert perfetto.losses() == {}
    assert ci.read(tmp_path / "job.pftrace").lanes["name"].to_pylist().count("thread 50") == 2


def test_lanes_of_the_host_are_below_its_name(tmp_path: Path) -> None:
    builder = TraceBuilder(Meta(ranks=(Rank(0, "gpu-17"),), devices=(Device("gpu-17", 0),)))
    kernels(builder, 0, 3)
    row = builder.series(-1, "CPU", "%", "tool")
    builder.samples(row, EPOCH + 500 * np.arange(3), np.arange(3.0))
    perfetto = written(builder.finish(), tmp_path)
    rows = perfetto.query(
        "select h.name, h.parent_id from track t join track g on t.parent_id = g.id "
        "join track h on g.parent_id = h.id where t.name = 'CPU'"
    )
    assert rows == [("host gpu-17", None)]
    assert perfetto.query("select name from process where upid > 0") == [("rank 0",)]
    assert ci.read(tmp_path / "job.pftrace").series["rank"].to_pylist() == [-1]


@pytest.mark.parametrize("host", ["", "gpu-17"])
def test_a_gpu_has_its_model(tmp_path: Path, host: str) -> None:
    """Kineto names hosts of GPUs in some files and none of ranks: as the sample job's."""
    devices = tuple(Device("gpu-17", number, "MI300X") for number in range(2))
    builder = TraceBuilder(Meta(ranks=(Rank(0, host),), devices=devices))
    kernels(builder, 0, 3)
    perfetto = written(builder.finish(), tmp_path)
    assert perfetto.query("select count(*) from track where name = 'GPU 0 (MI300X)'") == [(1,)]


def test_a_lane_ends_with_its_samples(tmp_path: Path) -> None:
    builder = TraceBuilder()
    kernels(builder, 0, 30)
    row = builder.series(0, "power", "W", "tool", device=0)
    builder.samples(row, EPOCH + 2000 * np.arange(5), np.arange(5.0))
    limit = builder.series(0, "limit", "W", "tool", device=0)
    builder.samples(limit, EPOCH + np.arange(1), np.array([9.0]))
    perfetto = written(builder.finish(), tmp_path)
    samples = [(EPOCH + 2000 * i, float(i)) for i in range(5)]
    assert perfetto.query(SAMPLES.format("power")) == [*samples, (EPOCH + 10000, None)]
    assert perfetto.query(SAMPLES.format("limit")) == [(EPOCH, 9.0)]  # nothing says that it ended
    back = ci.read(tmp_path / "job.pftrace")
    assert back.array("value", "samples").tolist() == [0, 1, 2, 3, 4, 9]
    assert {i.code for i in back.meta.issues if i.severity.name != "INFO"} == set()
    events = sum(i.count for i in back.meta.issues if i.events)
    assert back.meta.sources[0].events == events + back.nodes.num_rows


def test_a_lane_that_lasts_to_the_end_has_no_mark(tmp_path: Path) -> None:
    builder = TraceBuilder()
    kernels(builder, 0, 10)
    row = builder.series(0, "power", "W", "tool", device=0)
    builder.samples(row, EPOCH + 2000 * np.arange(5), np.arange(5.0))
    assert len(written(builder.finish(), tmp_path).query(SAMPLES.format("power"))) == 5


def test_series_of_one_name_have_lanes_of_their_own_if_they_overlap(tmp_path: Path) -> None:
    """The trace processor would mix the samples of two tracks of one name."""
    builder = TraceBuilder()
    kernels(builder, 0, 30)
    for uncertainty, first in ((10, 0), (20, 1)):
        row = builder.series(0, "power", "W", "tool", device=0, uncertainty_ns=uncertainty)
        builder.samples(row, EPOCH + 100 * first + 6000 * np.arange(5), np.arange(5.0))
    perfetto = written(builder.finish(), tmp_path)
    assert len(perfetto.query(SAMPLES.format("power"))) == 5
    assert len(perfetto.query(SAMPLES.format("power (2)"))) == 5
    back = ci.read(tmp_path / "job.pftrace")
    assert back.series["name"].to_pylist() == ["power", "power"]


def test_captures_that_follow_each_other_share_a_lane(tmp_path: Path) -> None:
    from chopper_interop.build import concat

    parts = []
    for start in (0, 20000):
        builder = TraceBuilder()
        kernels(builder, 0, 40)
        row = builder.series(0, "power", "W", "tool", device=0)
        builder.samples(row, EPOCH + start + 1000 * np.arange(5), np.arange(5.0))
        parts.append(builder.finish())
    perfetto = written(concat(parts, parts[0].meta), tmp_path)
    seen = perfetto.query(SAMPLES.format("power"))
    assert [ts - EPOCH for ts, value in seen if value is None] == [5000, 25000]
    assert len(seen) == 12


def test_lanes_of_one_name_are_told_apart_by_their_numbers(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number in (3, 4):
        kernels(builder, 0, 3, builder.lane(0, LaneKind.STREAM, number, "stream", 0))
    perfetto = written(builder.finish(), tmp_path)
    names = perfetto.query("select distinct t.name from slice s join track t on s.track_id = t.id")
    assert sorted(names) == [("stream (compute) [stream 3]",), ("stream (compute) [stream 4]",)]
    assert ci.read(tmp_path / "job.pftrace").lanes["name"].to_pylist() == ["stream", "stream"]


@pytest.mark.parametrize(("after_us", "drawn"), [(31, 1), (40, 0)])
def test_marks_of_the_profiler_do_not_stretch_the_picture(
    tmp_path: Path, after_us: int, drawn: int
) -> None:
    """PyTorch marks the end of its recording when it has collected all events."""
    builder = TraceBuilder()
    kernels(builder, 0, 30)
    lane = builder.lane(0, LaneKind.PROFILER, 0, "profiler")
    ts = np.array([EPOCH + 1000 * after_us])
    builder.nodes(kind=int(Kind.INSTANT), name="end", rank=0, lane=lane, ts=ts, dur=0)
    trace = builder.finish()
    issues = ci.write(trace, tmp_path / "job.pftrace")
    names = TraceProcessor(tmp_path / "job.pftrace").query("select distinct name from slice")
    assert names.count(("end",)) == drawn
    assert sum(i.count for i in issues if i.code == "marks-outside-window") == 1 - drawn
    everything = written(trace, tmp_path, all_samples=True)
    assert ("end",) in everything.query("select distinct name from slice")


def test_a_rank_with_nothing_but_marks(tmp_path: Path) -> None:
    builder = TraceBuilder()
    kernels(builder, 0, 30)
    lane = builder.lane(1, LaneKind.PROFILER, 0, "profiler")
    ts = np.array([EPOCH + 10**6])
    builder.nodes(kind=int(Kind.INSTANT), name="end", rank=1, lane=lane, ts=ts, dur=0)
    perfetto = written(builder.finish(), tmp_path)
    assert perfetto.query("select count(*) from slice") == [(30,)]
    assert perfetto.losses() == {}


@pytest.mark.parametrize(
    ("clock", "origin_ns", "shown"),
    [(REALTIME, EPOCH, "REALTIME"), (REALTIME, 10**15, None), (BOOTTIME, 10**15, None)],
)
def test_only_times_with_a_date_are_real_time(
    tmp_path: Path, clock: str, origin_ns: int, shown: str | None
) -> None:
    """PyTorch's times without the base that they count from look like days after 1970."""
    builder = TraceBuilder()
    kernels(builder, 0, 3)
    trace = builder.finish().with_meta(clock=clock, origin_ns=origin_ns)
    perfetto = written(trace, tmp_path)
    assert perfetto.query("select clock_name from clock_snapshot") == ([(shown,)] if shown else [])
    assert perfetto.query("select min(ts) from slice") == [(origin_ns,)]
    assert perfetto.losses() == {}
    assert ci.read(tmp_path / "job.pftrace").meta.clock == clock


def test_a_file_for_each_rank(tmp_path: Path) -> None:
    """Together they have what the one file has, under other track ids; a second run replaces them."""
    builder = TraceBuilder(Meta(ranks=(Rank(0, "a", 5), Rank(1, "b", 5))))
    for rank in (0, 1):
        kernels(builder, rank, 3 + rank)
        row = builder.series(rank, "power", "W", "tool", device=0)
        builder.samples(row, EPOCH + 100 * np.arange(5), np.arange(5.0) + rank)
    row = builder.series(-1, "CPU", "%", "tool")
    builder.samples(row, EPOCH + 100 * np.arange(5), np.arange(5.0))
    builder.edges(np.array([0]), np.array([3]), int(EdgeKind.COMM))
    trace = builder.finish()
    folder = tmp_path / "parts"
    for _ in range(2):
        issues = ci.write(trace, folder, to_format="perfetto", split=True)
    assert counts(issues) == {"edges-between-files": 1}
    names = ["host.pftrace", "perfetto_manifest.json", "rank0.pftrace", "rank1.pftrace"]
    assert sorted(p.name for p in folder.iterdir()) == names
    uuids = []
    for rank in (0, 1):
        part = TraceProcessor(folder / f"rank{rank}.pftrace")
        assert part.losses() == {}
        assert part.query("select count(*) from slice") == [(3 + rank,)]
        assert part.query("select min(value), max(value) from counter") == [(rank, 4 + rank)]
        uuids.append({t.uuid for t in descriptors(folder / f"rank{rank}.pftrace")} - {0})
    assert not uuids[0] & uuids[1]
    assert TraceProcessor(folder / "host.pftrace").query("select max(value) from counter") == [(4,)]
    text = (folder / "perfetto_manifest.json").read_text()
    assert text.startswith('{"perfetto_manifest"')
    manifest = json.loads(text)["perfetto_manifest"]
    assert manifest["version"] == 1
    assert {f["path"]: f.get("machine") for f in manifest["files"]} == {
        "rank0.pftrace": {"name": "a"}, "rank1.pftrace": {"name": "b"}, "host.pftrace": None
    }  # fmt: skip


def test_a_file_for_some_steps_of_each_rank(tmp_path: Path) -> None:
    """Each slice and sample is in one file; arrows and slices that go beyond a file are counted."""
    builder = TraceBuilder(Meta(ranks=(Rank(0, "a", 5), Rank(1, "b", 5))))
    first = []
    for rank in (0, 1):
        at = EPOCH + 1000 * np.arange(12)  # four kernels in each of the steps 10 to 12
        place = {"rank": rank, "lane": builder.lane(rank, LaneKind.STREAM, 7, "stream 7", 0)}
        step = 10 + np.arange(12) // 4
        first.append(
            builder.nodes(kind=Kind.KERNEL, name="k", ts=at, dur=800, iteration=step, **place)
        )
        place["lane"] = builder.lane(rank, LaneKind.THREAD, 9, "thread 9")
        ts = EPOCH + np.array(
            [-500, 3_200, 7_100]
        )  # before all steps, in step 11, and into step 12
        builder.nodes(kind=Kind.CPU_OP, name="o", ts=ts, dur=np.array([300, 400, 1_500]), **place)
        row = builder.series(rank, "power", "W", "tool", device=0)
        builder.samples(row, EPOCH + 400 * np.arange(30), np.arange(30.0))
    src, dst = first[0] + np.array([1, 7, 9]), np.array([first[0] + 2, first[0] + 8, first[1] + 9])
    builder.edges(
        src, dst, int(EdgeKind.EVENT)
    )  # within a file, to the next steps, to another rank
    folder = tmp_path / "parts"
    options = {"to_format": "perfetto", "derived": False, "split_steps": 2}
    issues = ci.write(builder.finish(), folder, **options)
    assert counts(issues) == {"edges-between-files": 2, "events-beyond-file": 2}
    numbers = [
        "select count(*) from slice",
        "select count(*) from counter",
        "select count(*) from flow",
    ]
    made = {}  # numbers of slices; of samples, with one that ends a lane before the work; of arrows
    for path in folder.glob("*.pftrace"):
        part = TraceProcessor(path)
        assert part.losses() == {}
        made[path.name] = [part.query(query)[0][0] for query in numbers]
    assert made == {
        "rank0-steps10-11.pftrace": [11, 21, 1], "rank0-steps12-12.pftrace": [4, 10, 0],
        "rank1-steps10-11.pftrace": [11, 21, 0], "rank1-steps12-12.pftrace": [4, 10, 0],
    }  # fmt: skip
    manifest = json.loads((folder / "perfetto_manifest.json").read_text())["perfetto_manifest"]
    assert sorted(file["path"] for file in manifest["files"]) == sorted(made)
    uuids = [{t.uuid for t in descriptors(folder / name)} - {0} for name in made]
    assert len(set.union(*uuids)) == sum(map(len, uuids))
    ci.write(builder.finish(), folder, to_format="perfetto", split=True)  # replaces all of them
    assert sorted(p.name for p in folder.glob("*.pftrace")) == ["rank0.pftrace", "rank1.pftrace"]


@pytest.mark.parametrize(
    ("share", "files"),
    [
        (1.1, ["job"]),
        (0.6, ["rank0", "rank1"]),
        (0.3, ["rank0-steps0-1", "rank0-steps2-3", "rank1-steps0-1", "rank1-steps2-3"]),
    ],
)
def test_a_split_by_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, files: list[str]
) -> None:
    trace = two_ranks_with_steps()
    ci.write(trace, tmp_path / "job.pftrace")
    size = (tmp_path / "job.pftrace").stat().st_size
    monkeypatch.setattr(parts, "LARGE_BYTES", int(size * share))
    issues = ci.write(trace, tmp_path / "again.pftrace")
    assert ("file-large-for-browser" in {issue.code for issue in issues}) == (share < 1)
    folder = tmp_path / "parts"
    ci.write(trace, folder, to_format="perfetto", split="auto")
    assert sorted(path.stem for path in folder.glob("*.pftrace")) == files
    sizes = [path.stat().st_size for path in folder.glob("*.pftrace")]
    assert max(sizes) <= size * share * 1.1  # names that each file has
    manifest = json.loads((folder / "perfetto_manifest.json").read_text())["perfetto_manifest"]
    assert len(manifest["files"]) == len(files)


def two_ranks_with_steps() -> ci.Trace:
    builder = TraceBuilder(Meta(ranks=(Rank(0, pid=5), Rank(1, pid=9))))
    for rank in (0, 1):
        stream = builder.lane(rank, LaneKind.STREAM, 7, "stream 7", 0)
        for step in range(4):
            ts = EPOCH + 1_000_000 * step + 100 * np.arange(5000)
            builder.nodes(
                kind=int(Kind.KERNEL), name="k", rank=rank, lane=stream, ts=ts, dur=ts * 0 + 90,
                iteration=np.full(len(ts), step),
            )  # fmt: skip
    return builder.finish()


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="yes, no or auto"):
        ci.write(two_ranks_with_steps(), tmp_path / "x", to_format="perfetto", split="mabye")


def test_a_negative_number_of_steps_is_refused(tmp_path: Path) -> None:
    builder = TraceBuilder(Meta())
    kernels(builder, 0, 1)
    with pytest.raises(UsageError, match="split_steps"):
        ci.write(builder.finish(), tmp_path / "x", to_format="perfetto", split_steps=-1)
