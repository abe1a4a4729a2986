"""Lanes that stand for no event of the input: what they show is what the analyses say."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import gpu_work
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from read_once import read_once
from trace_processor import TraceProcessor

import chopper_interop as ci
from chopper_interop.arrays import intervals
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.perfetto.chopper_metadata import read_opening
from chopper_interop.converters.perfetto.write import critical_path, derived_tracks
from chopper_interop.converters.perfetto.write import events_encode as encode
from chopper_interop.io import inputs
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Meta

LANE = (
    "select s.ts, s.dur, s.name from slice s join track t on s.track_id = t.id "
    "where t.name = '{}' order by s.ts"
)
PATH = (
    "select s.ts, s.dur, s.name from slice s join track t on s.track_id = t.id join track p on "
    "t.parent_id = p.id where p.name = 'critical path' and t.name = '{}' order by s.ts"
)


@pytest.fixture(scope="module")
def analysed(demo: Path) -> ci.Trace:
    trace = read_once(demo)
    for analysis in ("critical_path", "idle", "overlap"):
        trace = ci.analyze(trace, analysis).annotate(trace)
    return trace


@pytest.fixture(scope="module")
def drawn(analysed: ci.Trace, tmp_path_factory: pytest.TempPathFactory) -> TraceProcessor:
    path = tmp_path_factory.mktemp("derived") / "job.pftrace"
    ci.write(analysed, path)
    return TraceProcessor(path)


def test_exposed_communication_is_that_of_the_analysis(
    analysed: ci.Trace, drawn: TraceProcessor
) -> None:
    total = ci.analyze(analysed, "overlap").summary["exposed_comm_ns"]
    rows = drawn.query(LANE.format("exposed communication"))
    assert sum(dur for _, dur, _ in rows) == total > 0
    assert {name for _, _, name in rows} <= {"all_gather", "all_reduce", "reduce_scatter"}


def test_idle_time_is_that_of_the_analysis(analysed: ci.Trace, drawn: TraceProcessor) -> None:
    summary = ci.analyze(analysed, "idle").summary
    rows = drawn.query(LANE.format("idle"))
    assert sum(dur for _, dur, _ in rows) == summary["idle_ns"] - summary["window_ns"] > 0
    causes = {name.replace(" ", "_") + "_ns" for _, _, name in rows}
    assert {"host_late_ns"} <= causes <= summary.keys()
    assert drawn.losses() == {}


def test_idle_time_and_work_do_not_overlap(drawn: TraceProcessor) -> None:
    """On each GPU: idle time ends where the work that it waits for begins."""
    counted = (
        "select count(distinct i.id) from slice i join track t on i.track_id = t.id join track g on "
        "t.parent_id = g.id join track k on k.parent_id = g.id join slice w on w.track_id = k.id "
        "where t.name = 'idle' and "
    )
    work = "w.category in ('kernel', 'comm') and w.ts < i.ts + i.dur and w.ts + w.dur > i.ts"
    assert drawn.query(counted + work) == [(0,)]
    ended = drawn.query(counted + "w.category != 'derived' and w.ts = i.ts + i.dur")
    assert ended == [(len(drawn.query(LANE.format("idle"))),)]


def test_rates_of_kernels(drawn: TraceProcessor, analysed: ci.Trace) -> None:
    rows = drawn.query(
        "select t.name, c.unit, max(value), min(value) from counter join track t "
        "on counter.track_id = t.id join counter_track c on c.id = t.id join track p "
        "on t.parent_id = p.id where p.name = 'rates of kernels' group by 1, 2"
    )
    frame = analysed.to_pandas()
    kernels = frame[(frame["kind"] == "kernel") & (frame["dur"] > 0)]
    largest = {name: (unit, top) for name, unit, top, _ in rows}
    assert all(low >= 0 for *_, low in rows)
    rate = (kernels["flops"] / kernels["dur"]).max() / 1000
    assert largest["FLOP rate (shapes)"] == ("TFLOP/s", pytest.approx(rate))
    assert largest["memory rate (counters)"][0] == "GB/s"
    assert largest["matrix cores busy"] == ("%", pytest.approx(kernels["mfma_util"].max()))
    energy = frame.groupby("rank")["energy_j"].sum().max()
    assert largest["energy of all work so far"] == ("J", pytest.approx(energy))


def test_spans_of_the_path_tile_it_and_say_of_what(
    analysed: ci.Trace, drawn: TraceProcessor
) -> None:
    spans, classes = (drawn.query(PATH.format(lane)) for lane in ("path", "class"))
    assert all(a[0] + a[1] == b[0] for a, b in pairwise(spans))
    assert (spans[0][0], spans[-1][0] + spans[-1][1]) == (
        classes[0][0], classes[-1][0] + classes[-1][1]
    )  # fmt: skip
    steps = len(set(analysed.integers("iteration")) - {-1})
    assert len(spans) <= 201 * steps
    rows = drawn.query(
        "select key, sum(real_value), sum(int_value) from args join slice using (arg_set_id) "
        "join track t on slice.track_id = t.id join track p on t.parent_id = p.id "
        "where p.name = 'critical path' and t.name = 'path' group by key"
    )
    sums = {key.removeprefix("debug."): (real, whole) for key, real, whole in rows}
    assert sums["share"][0] == pytest.approx(1)
    by_class = [sums[f"{c}_ns"][1] for c in ("compute", "communication", "host", "copy")]
    known = sum(by_class) + sums["runtime_call_ns"][1] + sums["wait_ns"][1]
    assert known == sum(dur for _, dur, _ in classes)
    assert sums["longest"] == (None, None)  # texts


def test_arrows_lead_along_the_path_and_to_its_nodes(drawn: TraceProcessor) -> None:
    ends = (
        "select o.name, i.name, ot.name, it.name, o.ts <= i.ts from flow join slice o on "
        "o.id = slice_out join slice i on i.id = slice_in join track ot on ot.id = o.track_id "
        "join track it on it.id = i.track_id where i.category = 'derived'"
    )
    rows = drawn.query(ends)
    along = [r for r in rows if r[3] == "path"]
    assert len(along) == len(drawn.query(PATH.format("path"))) - 1
    assert all(r[2] == "path" and r[4] for r in along)
    to_nodes = [r for r in rows if r[3] == "nodes"]
    assert len(to_nodes) == len(drawn.query(PATH.format("nodes")))
    assert all(r[0] == r[1] and r[4] for r in to_nodes)  # the node, and its slice on the path


def test_slices_of_the_path_have_what_the_analysis_says(
    analysed: ci.Trace, drawn: TraceProcessor
) -> None:
    rows = drawn.query(
        "select substr(key, 15) k, count(*), sum(int_value), sum(real_value) from args join slice "
        "using (arg_set_id) join track t on slice.track_id = t.id join track p on t.parent_id = "
        "p.id where p.name = 'critical path' and t.name = 'nodes' group by k"
    )
    values_by_key = {key: values for key, *values in rows}
    critical = analysed.integers("critical_ns", unknown=0)
    assert values_by_key["critical_ns"][1] == critical.sum()
    assert {"class", "slack_ns", "drag_ns", "critical_delay_ns", "share"} <= values_by_key.keys()
    path = ci.analyze(analysed, "critical_path").summary["path_ns"]
    assert values_by_key["share"][2] == pytest.approx(critical.sum() / path, rel=0.01)


def test_delays_of_nodes_are_those_of_the_path(analysed: ci.Trace) -> None:
    pieces = ci.analyze(analysed, "critical_path", by="piece")
    delays = pieces.to_pandas().dropna(subset="node").groupby("node")["delay_ns"].sum()
    column = analysed.integers("critical_delay_ns", unknown=0)
    known = analysed.known("critical_delay_ns")
    assert column.sum() == delays[delays.index.isin(np.flatnonzero(known))].sum()


def test_what_is_drawn_is_no_event_when_it_is_read(analysed: ci.Trace, tmp_path: Path) -> None:
    ci.write(analysed, tmp_path / "job.pftrace", all_samples=True)
    back = ci.read(tmp_path / "job.pftrace")
    assert back.nodes.num_rows == analysed.nodes.num_rows
    assert back.edges.num_rows == analysed.edges.num_rows
    assert set(back.series["source"].to_pylist()) == set(analysed.series["source"].to_pylist())
    source = back.meta.sources[0]
    assert source.events == source.nodes + sum(i.count for i in back.meta.issues if i.events)


def on_path(spans: list[tuple[Kind, int, int, int]]) -> ci.Trace:
    """A trace of nodes (kind, lane, start, end), all on the path."""
    builder = TraceBuilder(Meta(origin_ns=0))
    for kind, number, start, end in spans:
        host = kind in (Kind.CPU_OP, Kind.RUNTIME)
        lane_kind = LaneKind.THREAD if host else LaneKind.STREAM
        lane = builder.lane(0, lane_kind, number, f"lane {number}", -1 if host else 0)
        at, until = np.array([start]), np.array([end])
        builder.nodes(
            kind=int(kind), name=f"n{start}", rank=0, lane=lane, ts=at, dur=until - at,
            critical_start_ns=at, critical_end_ns=until, critical_ns=until - at,
        )  # fmt: skip
    return builder.finish()


def spans_of(trace: ci.Trace) -> tuple[list[tuple[int, int, str]], list[dict]]:
    (path,) = critical_path.critical_paths(trace)
    drawn = critical_path.span_slices(trace, critical_path.segments(trace, path), with_rank=False)
    rows = zip(drawn.ts.tolist(), drawn.dur.tolist(), drawn.code.tolist(), strict=True)
    return [(a, d, drawn.names[c]) for a, d, c in rows], list(map(json.loads, drawn.arguments))


def test_short_pieces_are_part_of_the_span_around_them() -> None:
    """Of 200,000 ns, 1,000 and less are not distinguished; the class with the most time names a span."""
    host = [(Kind.CPU_OP, 1, 1000 * k, 1000 * k + 900) for k in range(100)]
    calls = [(Kind.RUNTIME, 1, 1000 * k + 900, 1000 * k + 1000) for k in range(100)]
    work = [(Kind.KERNEL, 7, 100000, 150000), (Kind.CPU_OP, 2, 150000, 200000)]
    spans, arguments = spans_of(on_path([*host, *calls, *work]))
    assert spans == [
        (0, 100000, "host lane 1"), (100000, 50000, "compute"), (150000, 50000, "host lane 2")
    ]  # fmt: skip
    assert arguments[0]["host_ns"] == 90000
    assert arguments[0]["runtime_call_ns"] == 10000
    assert arguments[0]["pieces"] == 200
    assert [a["share"] for a in arguments] == [0.5, 0.25, 0.25]
    assert arguments[1]["longest"] == "n100000"


def test_spans_end_where_the_path_does() -> None:
    """Between the windows of steps there is no path."""
    spans, _ = spans_of(on_path([(Kind.KERNEL, 7, 0, 100), (Kind.KERNEL, 7, 900, 1000)]))
    assert spans == [(0, 100, "compute"), (900, 100, "compute")]


@given(
    st.lists(st.tuples(st.sampled_from([Kind.CPU_OP, Kind.KERNEL, Kind.COMM]), st.integers(1, 9)),
             min_size=1, max_size=30)
)  # fmt: skip
def test_spans_tile_any_path(pieces) -> None:
    ends = np.cumsum([dur for _, dur in pieces]).tolist()
    nodes = [(kind, 1, end - dur, end) for (kind, dur), end in zip(pieces, ends, strict=True)]
    spans, arguments = spans_of(on_path(nodes))
    assert [a for a, _, _ in spans] == [0, *np.cumsum([d for _, d, _ in spans])[:-1].tolist()]
    assert sum(d for _, d, _ in spans) == ends[-1]
    assert sum(a["pieces"] for a in arguments) == len(pieces)
    assert all(a[2] != b[2] for a, b in pairwise(spans))


SPANS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 9)), max_size=12
).map(sorted)
"""Group, start and duration, by group and start."""


@given(SPANS, SPANS)
def test_a_difference_is_what_one_covers_and_the_other_does_not(a, b) -> None:
    def unions(spans):
        group, start, dur = np.array(spans, np.int64).reshape(-1, 3).T
        return intervals.group_unions(group, start, start + dur, 3)

    group, start, end = intervals.group_differences(unions(a), unions(b), 3)
    rows = zip(group.tolist(), start.tolist(), end.tolist(), strict=True)
    covered = {(g, t) for g, s, e in rows for t in range(s, e)}
    within = [{(g, t) for g, s, d in spans for t in range(s, s + d)} for spans in (a, b)]
    assert covered == within[0] - within[1]
    assert ((group[1:] > group[:-1]) | (start[1:] > end[:-1])).all()


def test_tracks_of_gpus_are_in_turn_however_little_room_there_is() -> None:
    """Heads are written once, also of tracks without slices and where a call ends between slices."""
    ts = np.arange(4) * 10
    rows = np.zeros(4, np.int32)
    slices = encode.Slices(ts, ts * 0 + 5, ts + 1, rows, ts + 1, ts + 1)
    heads = [b"first", b"", b"no slices", b"last"]
    tracks = encode.Tracks.of_heads(heads, np.array([0, 3, 3, 3, 4]))
    scratch = np.empty(200, np.uint8)

    def written(room: int) -> bytes:
        out, data, track, k = np.empty(room, np.uint8), b"", 0, 0
        while track < len(heads):
            size, track, k = encode.encode_tracks(out, track, k, tracks, slices, scratch)
            assert size
            data += out[:size].tobytes()
        return data

    whole = written(10_000)
    assert written(encode.TRACK_ROOM + 9) == whole
    at = [whole.index(head) for head in heads if head]
    assert at == sorted(at)
    assert all(whole.count(head) == 1 for head in heads if head)


def test_findings_are_marks_on_the_places_they_speak_of(tmp_path: Path) -> None:
    """Each at one place: on its ranks, or in the group of the job, of which the rest speaks."""
    trace = gpu_work.trace([gpu_work.Work(Kind.KERNEL, 0, 90, rank) for rank in range(3)])
    texts = ["Rank 1 is late.", "All are late.", "Nothing hides it.", "It is nowhere.", "Two wait."]
    rows = {
        "code": ["late_rank", "late_rank", "exposed", "nowhere", "wait"],
        "saves_ns": [5, 4, 3, 2, 1],
        "ranks": ["1", "0-2", "", "0", "0,2"],
        "at_ns": [10, 20, 30, None, 60],
        "until_ns": [50, 40, 30, None, 70],
        "finding": texts,
    }
    marked = Result("findings", pa.table(rows)).annotate(trace)
    ci.write(marked, tmp_path / "job.pftrace")
    seen = TraceProcessor(tmp_path / "job.pftrace").query(
        "select s.ts, s.dur, s.name, t.name, coalesce(u.name, p.name), extract_arg(s.arg_set_id, 'debug.saves_ns') "
        "from slice s join track t on s.track_id = t.id left join track p on t.parent_id = p.id "
        "left join process_track o on o.id = t.id left join process u on o.upid = u.upid "
        "where s.name like '%.' order by s.ts, u.name"
    )
    assert seen == [
        (10, 40, "Rank 1 is late.", "finding", "rank 1", 5),
        (20, 20, "All are late.", "late rank", "findings", 4),
        (30, 0, "Nothing hides it.", "exposed", "findings", 3),
        (60, 10, "Two wait.", "finding", "rank 0", 1),
        (60, 10, "Two wait.", "finding", "rank 2", 1),
    ]
    shown = read_opening(inputs.head(tmp_path / "job.pftrace"))
    assert shown.unfolded == ("findings", "rank 0"), "the group, and the first rank that has a mark"
    ci.write(marked, tmp_path / "job.parquet")
    assert ci.read(tmp_path / "job.parquet").meta.marks == marked.meta.marks
    assert ci.read(tmp_path / "job.pftrace").nodes.num_rows == 3


def test_a_rank_without_any_of_it_has_no_such_lanes(tmp_path: Path) -> None:
    trace = on_path([(Kind.KERNEL, 7, 0, 5)]).with_columns(flops=pa.array([None], pa.int64()))
    ci.write(trace, tmp_path / "job.pftrace")
    names = TraceProcessor(tmp_path / "job.pftrace").query("select distinct name from track")
    absent = {"idle", "exposed communication", "rates of kernels", "iterations"}
    assert not absent & {name for (name,) in names}


def gpu_tracks(trace: ci.Trace) -> dict[tuple[int, int, str], list[tuple[int, int, str]]]:
    """Start, duration and name of the slices of each track of a GPU."""
    tracks = {}
    for drawn in derived_tracks.derived_tracks(trace):
        bounds = pairwise(drawn.first.tolist())
        for (rank, device, name, names), (low, high) in zip(drawn.tracks, bounds, strict=True):
            codes = drawn.code[low:high].tolist()
            assert all(names.start <= code < names.stop for code in codes)
            texts = [drawn.names[code] for code in codes]
            columns = (
                (drawn.ts + trace.meta.origin_ns)[low:high].tolist(),
                drawn.dur[low:high].tolist(),
                texts,
            )
            tracks[rank, device, name] = list(zip(*columns, strict=True))
    return tracks


SORTS = ("comm", "compute")
OF_FEW_GPUS = gpu_work.WORKS.map(lambda works: [replace(w, device=0) for w in works])


# so many that kernels of different steps overlap on one of the GPUs
@settings(max_examples=100)
@given(OF_FEW_GPUS)
def test_tracks_of_a_gpu_do_not_depend_on_other_gpus(works) -> None:
    """All are made at once: a run of kernels, and time without work, ended where another rank's began."""
    tracks = gpu_tracks(gpu_work.trace(works))
    of_gpus = [[w for w in works if w.gpu == gpu] for gpu in sorted({w.gpu for w in works})]
    alone: dict = {}
    for own in of_gpus:
        alone |= gpu_tracks(gpu_work.trace(own))
    assert list(tracks.items()) == list(alone.items())
    for slices in tracks.values():
        assert all(dur >= 0 for _, dur, _ in slices)
        assert all(a[0] + a[1] <= b[0] for a, b in pairwise(slices))
    for own in of_gpus:
        comm, compute = (gpu_work.instants([w for w in own if w.sort == s]) for s in SORTS)
        drawn = tracks.get((*own[0].gpu, derived_tracks.EXPOSED))
        assert (drawn is not None) == any(w.sort == "comm" for w in own)
        exposed = {t for ts, dur, _ in drawn or [] for t in range(ts, ts + dur)}
        assert exposed == {t for *_, t in comm - compute}
