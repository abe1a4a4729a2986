"""Written Kineto files: other tools can load them, and everything in them is as it was."""

import gzip
import json
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chopper_interop as ci
from chopper_interop import arguments as argument_values
from chopper_interop import job_reading, progress
from chopper_interop.annotate import stages
from chopper_interop.arrays import spill
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.kineto import KINETO, reader, writer
from chopper_interop.errors import WriteError
from chopper_interop.io import background, json_events
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import Collective, EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import Device, Meta, Rank
from chopper_interop.sharing import texts as shared_texts
from chopper_interop.testing import check_converter, check_trace
from chopper_interop.testing.samples import tiny_trace
from chopper_interop.testing.strategies import arguments, traces

NO_CATEGORY = (Kind.API, Kind.ALLOCATION, Kind.HOST_GAP, Kind.OTHER)
ON_DEVICE = {
    Kind.KERNEL: LaneKind.STREAM,
    Kind.COMM: LaneKind.STREAM,
    Kind.MEMCPY: LaneKind.STREAM,
    Kind.MEMSET: LaneKind.STREAM,
    Kind.GPU_ANNOTATION: LaneKind.GPU_ANNOTATION,
    Kind.GPU_SYNC: LaneKind.GPU_SYNC,
}
HARD_KEYS = (
    *("correlation", "correlation_raw", "device", "stream", "rank", "pid_raw", "bytes"),
    *("chopper", "counters", "correlation (source)", "kind", "ph"),
)
"""Keys that have a meaning for readers of Kineto."""


def again(trace, path):
    """Write and read a trace; Python's own parser must accept the file, too."""
    KINETO.writer(trace, path)
    opened = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        json.load(file, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return KINETO.reader([path])


def assert_same_events(before, after):
    """Nodes, names, times, kinds, lanes, launches, forward to backward, collectives."""
    check_trace(after)
    assert after.nodes.num_rows == before.nodes.num_rows
    for column in ("rank", "dur"):
        assert after.array(column).tolist() == before.array(column).tolist()
    for trace, other in ((before, after), (after, before)):
        assert all(name in other.names() for name in set(_names(trace)))
    assert _names(after) == _names(before)
    assert _absolute(after) == _absolute(before)
    assert after.array("kind").tolist() == _kinds_as_read(before)
    assert after.launch.tolist() == before.launch.tolist()
    assert _pairs(after) == _pairs(before)
    _assert_same_lanes(before, after)
    _assert_same_communication(before, after)


def _names(trace):
    names = trace.names()
    return [names[code] for code in trace.array("name")]


def _absolute(trace):
    return (trace.array("ts") + trace.meta.origin_ns).tolist()


def _kinds_as_read(trace):
    """Kinds as Kineto can express them."""
    kinds = dict.fromkeys(NO_CATEGORY, int(Kind.ANNOTATION))
    comm = ("nccl", "rccl", "msccl")
    return [
        int(Kind.COMM)
        if kind == Kind.KERNEL and name.lower().removeprefix("void ").startswith(comm)
        else int(Kind.ANNOTATION)
        if kind == Kind.CPU_OP and name.startswith("ProfilerStep#")
        else kinds.get(kind, kind)
        for kind, name in zip(trace.array("kind").tolist(), _names(trace), strict=True)
    ]


def _pairs(trace):
    """Pairs of forward and backward operators; steps are read as annotations, and count as unbound."""
    kinds = np.array(_kinds_as_read(trace))
    src, dst = (trace.array(column, "edges") for column in ("src", "dst"))
    chosen = trace.array("kind", "edges") == EdgeKind.FWDBWD
    chosen &= (kinds[src] == Kind.CPU_OP) & (kinds[dst] == Kind.CPU_OP)
    return Counter(zip(src[chosen].tolist(), dst[chosen].tolist(), strict=True))


def _assert_same_lanes(before, after):
    """Nodes share a lane if and only if they did before; all that Kineto can express is the same."""
    old, new = before.lanes.to_pylist(), after.lanes.to_pylist()
    partner = {}
    kinds = before.array("kind").tolist()
    for a, b, kind in zip(before.array("lane"), after.array("lane"), kinds, strict=True):
        read_as = ON_DEVICE.get(kind, LaneKind.THREAD)
        if kind in (Kind.SPAN, Kind.OVERHEAD) or (
            read_as is LaneKind.THREAD and old[a]["kind"] == LaneKind.PROFILER
        ):
            read_as = LaneKind.PROFILER
        assert partner.setdefault((a, read_as), b) == b
        assert new[b]["kind"] == read_as
        assert new[b]["rank"] == old[a]["rank"]
        assert new[b]["device"] == (old[a]["device"] if kind in ON_DEVICE else -1)
        if old[a]["kind"] == read_as:  # lanes that Kineto has: number, and names of host threads
            assert new[b]["number"] == old[a]["number"] or old[a]["number"] < -(2**60)
            if read_as in (LaneKind.THREAD, LaneKind.PROFILER):
                assert new[b]["name"] == old[a]["name"]
    assert len(set(partner.values())) == len(partner)


def _assert_same_communication(before, after):
    def groups(trace):
        rows = trace.groups.to_pylist()
        return [None if v is None else rows[v] for v in _plain(trace, "group")]

    known = [kind is not None for kind in before.values("collective").tolist()]
    for column in ("collective", "seq", "peer", "root", "dtype", "bytes", "out_bytes"):
        old, new = (_plain(t, column) for t in (before, after))
        assert [v for v, k in zip(new, known, strict=True) if k] == [
            v for v, k in zip(old, known, strict=True) if k
        ]
    assert groups(after) == groups(before)


def _plain(trace, column):
    if column not in trace.nodes.column_names:
        return [None] * trace.nodes.num_rows
    return trace.nodes[column].to_pylist()


ANY = traces(node_args=arguments(st.sampled_from(HARD_KEYS) | st.text(max_size=4)))


@settings(suppress_health_check=list(HealthCheck))
@given(trace=ANY)
def test_any_trace_in_one_file_comes_back(tmp_path_factory, trace):
    assert_same_events(trace, again(trace, tmp_path_factory.mktemp("one") / "job.json"))


@settings(suppress_health_check=list(HealthCheck))
@given(trace=ANY)
def test_any_trace_in_a_file_a_rank_comes_back(tmp_path_factory, trace):
    folder = tmp_path_factory.mktemp("many") / "out"
    KINETO.writer(trace, folder)
    for rank in trace.ranks:
        assert_same_events(trace.rank(rank), KINETO.reader([folder / f"rank{rank}.json.gz"]))


@settings(suppress_health_check=list(HealthCheck))
@given(trace=ANY)
def test_writing_again_changes_nothing_more(tmp_path_factory, trace):
    folder = tmp_path_factory.mktemp("twice")
    once = again(trace, folder / "once.json")
    twice = again(once, folder / "twice.json")
    assert_same_events(once, twice)
    for row in range(once.nodes.num_rows):
        assert once.args(row) == twice.args(row)


def tiny(**changes):
    """A launch of two kernels, a collective, an instant, a copy; times since 2024."""
    start = 1_712_195_495_502_094_513
    meta = Meta(
        job="tiny",
        ranks=(Rank(3, "node7", 4242, 2, "header"),),
        devices=(Device("node7", 2, "MI300X", "kineto"), Device("node8", 9, "other", "kineto")),
        facts={"hip_runtime_version": "60443483", "trace_id": "0012", "traceName": "x"},
    )
    builder = TraceBuilder(meta)
    main = builder.lane(3, LaneKind.THREAD, 4242, "python3")
    stream = builder.lane(3, LaneKind.STREAM, 7, "stream 7", 2)
    world = builder.group("0", range(4), "default_pg", "nccl")
    raw = b'{"External id": 5, "Ev Idx": 2}'
    text = builder.text(np.frombuffer(bytearray(raw), np.uint8))
    rows = [  # kind, name, lane, ts, dur, correlation
        (Kind.CPU_OP, "aten::mm", main, 0, 9_001, -1),
        (Kind.RUNTIME, "hipGraphLaunch", main, 1_000, 2_000, 12),
        (Kind.INSTANT, "mark", main, 2_000, 0, -1),
        (Kind.KERNEL, 'gemm "a\\b"', stream, 3_500, 1_000_000_000, 12),
        (Kind.COMM, "ncclDevKernel_Generic_1", stream, 3_600, 7, 12),
        (Kind.MEMCPY, "CopyDeviceToDevice", stream, 3_700, 8, -1),
        (Kind.CPU_OP, "MmBackward0", main, 9_500, 500, -1),
    ]
    columns = [np.array(column) for column in zip(*[(*r[:1], *r[2:]) for r in rows], strict=True)]
    n = len(rows)

    def only(at, value):
        return pa.array([value if row == at else None for row in range(n)])

    builder.nodes(
        kind=pa.array(columns[0], pa.uint8()),
        name=pa.array([row[1] for row in rows]),
        rank=3,
        lane=columns[1],
        ts=columns[2] + start,
        dur=columns[3],
        correlation=columns[4],
        args=(np.full(n, text), np.where(np.arange(n) == 0, len(raw), 0)),
        collective=only(4, Collective.ALL_REDUCE),
        group=only(4, world),
        dtype=only(4, "BFloat16"),
        bytes=pa.array([None, None, None, None, 2048, 77, None]),
        seq=only(4, 41),
        phase=only(3, "forward"),
        gfxclk_mhz=only(3, 1850.5),
        **changes,
    )
    launched = np.array([3, 4])
    builder.edges(np.array([1, 1]), launched, int(EdgeKind.LAUNCH))
    builder.edges(np.array([0]), np.array([6]), int(EdgeKind.FWDBWD))
    builder.counters(np.array([3, 3]), pa.array(["SQ_WAVES", 'odd "name"']), np.array([64.0, 0.1]))
    power = builder.series(3, "power", "W", "amd-smi", device=2)
    builder.samples(power, np.array([10, 20]) + start, np.array([250.25, np.nan]))
    node = builder.series(-1, "temperature", "C", "amd-smi")
    builder.samples(node, np.array([15]) + start, np.array([1e300]))
    return builder.finish()


@pytest.fixture
def written(tmp_path):
    KINETO.writer(tiny(), tmp_path / "tiny.json")
    return json.loads((tmp_path / "tiny.json").read_text("utf-8"), parse_float=Decimal)


def _events(file, phase, **fields):
    return [
        e
        for e in file["traceEvents"]
        if e["ph"] == phase and all(e.get(k) == v for k, v in fields.items())
    ]


def test_header_is_that_of_pytorch(written):
    events = list(written)
    assert events[0] == "schemaVersion"
    assert events[-2:] == ["traceEvents", "traceName"]
    assert written["baseTimeNanoseconds"] == 1_711_964_646 * 10**9
    assert written["displayTimeUnit"] == "ms"
    assert written["deviceProperties"] == [{"id": 2, "name": "MI300X"}]
    assert written["hip_runtime_version"] == 60443483
    assert written["trace_id"] == "0012"
    assert written["traceName"] == "tiny.json"
    assert written["distributedInfo"] == {
        "backend": "nccl",
        "rank": 3,
        "world_size": 4,
        "pg_count": 1,
        "pg_config": [
            {
                "pg_name": "0",
                "pg_desc": "default_pg",
                "backend_config": "nccl",
                "pg_size": 4,
                "ranks": [0, 1, 2, 3],
            }
        ],
    }


def test_times_are_exact_to_the_nanosecond(written, tmp_path):
    (mm,) = _events(written, "X", name="aten::mm")
    assert (mm["ts"], mm["dur"]) == (Decimal("230849502094.513"), Decimal("9.001"))
    (gemm,) = _events(written, "X", cat="kernel", name='gemm "a\\b"')
    assert (gemm["ts"], gemm["dur"]) == (Decimal("230849502098.013"), Decimal("1000000.000"))
    assert '"ts":230849502098.013,"dur":1000000.000,' in (tmp_path / "tiny.json").read_text()


def test_arguments_are_those_of_the_source_and_of_the_columns(written):
    (mm,) = _events(written, "X", name="aten::mm")
    assert mm["args"] == {"External id": 5, "Ev Idx": 2}
    assert (mm["cat"], mm["pid"], mm["tid"]) == ("cpu_op", 4242, 4242)
    (gemm,) = _events(written, "X", name='gemm "a\\b"')
    assert (gemm["cat"], gemm["pid"], gemm["tid"]) == ("kernel", 2, 7)
    assert gemm["args"] == {
        "device": 2,
        "stream": 7,
        "correlation": 12,
        "chopper": {"phase": "forward", "gfxclk_mhz": Decimal("1850.5")},
        "counters": {"SQ_WAVES": 64, 'odd "name"': Decimal("0.1")},
    }
    (nccl,) = _events(written, "X", name="ncclDevKernel_Generic_1")
    assert nccl["cat"] == "kernel"
    assert nccl["args"] == {
        "device": 2,
        "stream": 7,
        "correlation": 12,
        "Collective name": "allreduce",
        "dtype": "BFloat16",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1, 2, 3]",
        "Group size": 4,
        "Seq": 41,
        "In msg nelems": 1024,
    }
    (copy,) = _events(written, "X", cat="gpu_memcpy")
    assert copy["args"] == {"device": 2, "stream": 7, "bytes": 77}
    (mark,) = _events(written, "i")
    assert (mark["cat"], mark["s"], mark["name"]) == ("cpu_instant_event", "t", "mark")
    assert "dur" not in mark


def test_processes_and_threads_are_named(written):
    named = {
        (e["name"], e["pid"], e["tid"]): next(iter(e["args"].values()))
        for e in _events(written, "M")
    }
    assert named["process_name", 4242, 0] == "rank 3"
    assert named["process_labels", 4242, 0] == "CPU"
    assert named["process_name", 2, 0] == "rank 3 GPU 2"
    assert named["process_labels", 2, 0] == "GPU 2"
    assert named["thread_name", 4242, 4242] == "thread 4242 (python3)"
    assert named["thread_name", 2, 7] == "stream 7"


def test_arrows_begin_and_end_where_their_events_start(written):
    (call,) = _events(written, "X", name="hipGraphLaunch")
    (start,) = _events(written, "s", cat="ac2g")
    ends = _events(written, "f", cat="ac2g")
    assert [start[k] for k in ("pid", "tid", "ts")] == [call[k] for k in ("pid", "tid", "ts")]
    kernels = _events(written, "X", cat="kernel")
    assert sorted((e["pid"], e["tid"], e["ts"]) for e in ends) == sorted(
        (e["pid"], e["tid"], e["ts"]) for e in kernels
    )
    assert {e["id"] for e in ends} == {start["id"]}
    assert {e["bp"] for e in ends} == {"e"}
    (forward,), (backward,) = (
        _events(written, "s", cat="fwdbwd"),
        _events(written, "f", cat="fwdbwd"),
    )
    assert forward["ts"] == _events(written, "X", name="aten::mm")[0]["ts"]
    assert backward["ts"] == _events(written, "X", name="MmBackward0")[0]["ts"]
    assert forward["id"] == backward["id"]


def test_samples_are_counter_events(written):
    samples = [(e["name"], e["pid"], e["ts"], e["args"]) for e in _events(written, "C")]
    assert samples == [
        ("GPU 2 power (W)", 4242, Decimal("230849502094.523"), {"": Decimal("250.25")}),
        ("GPU 2 power (W)", 4242, Decimal("230849502094.533"), {"": "NaN"}),
        ("node temperature (C)", "node", Decimal("230849502094.528"), {"": Decimal("1e+300")}),
    ]


def test_telemetry_comes_back_as_series_of_the_rank(tmp_path):
    back = again(tiny(), tmp_path / "tiny.json")
    assert [(s["rank"], s["name"]) for s in back.series.to_pylist()] == [
        (3, "GPU 2 power (W)"),
        (3, "node temperature (C)"),
    ]
    assert back.samples["value"].to_pylist() == [250.25, 1e300]


def test_series_of_one_name_stay_apart(tmp_path):
    builder = TraceBuilder()
    for k, source in enumerate(("a", "b", "b")):
        row = builder.series(0, "power", "W", source, uncertainty_ns=k)
        builder.samples(row, np.array([k]), np.array([float(k)]))
    back = again(builder.finish(), tmp_path / "power.json")
    assert back.series["name"].to_pylist() == [
        "power (W)",
        "power (W) by b",
        "power (W) by b #2",
    ]


def _job(ranks=(0, 2), pids=(100, 100)):
    """The same work on several ranks, whose machines gave their processes one pid."""
    builder = TraceBuilder(
        Meta(ranks=tuple(Rank(r, f"node{r}", pid, 2) for r, pid in zip(ranks, pids, strict=True)))
    )
    for rank in ranks:
        thread = builder.lane(rank, LaneKind.THREAD, 1, "main")
        stream = builder.lane(rank, LaneKind.STREAM, 0, "stream 0", 2)
        builder.nodes(
            kind=pa.array([int(Kind.RUNTIME), int(Kind.KERNEL)], pa.uint8()),
            name=pa.array(["hipLaunchKernel", f"gemm {rank}"]),
            rank=rank,
            lane=np.array([thread, stream]),
            ts=np.array([5, 9]) + rank,
            dur=3,
            correlation=7,
        )
    first = 2 * np.arange(len(ranks))
    builder.edges(first, first + 1, int(EdgeKind.LAUNCH))
    return builder.finish()


def test_fused_file_keeps_ranks_apart(tmp_path):
    job = _job()
    back = again(job, tmp_path / "job.json")
    assert_same_events(job, back)
    assert {r.rank: r.pid for r in back.meta.ranks} == {0: 100, 2: -1}
    file = json.loads((tmp_path / "job.json").read_text())
    spans = _events(file, "X")
    assert len({(e["pid"], e["args"]["rank"]) for e in spans}) == 4
    assert len({e["pid"] for e in spans}) == 4
    names = {e["args"]["name"] for e in _events(file, "M", name="process_name")}
    assert names == {"rank 0", "rank 2", "rank 0 GPU 2", "rank 2 GPU 2"}
    assert "rank" not in file["distributedInfo"]


def test_folder_gets_a_file_a_rank_with_one_base(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("of the user")
    KINETO.writer(_job((0, 1, 2), (1, 2, 3)), tmp_path / "out")
    KINETO.writer(_job(), tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["notes.txt", "rank0.json.gz", "rank2.json.gz"]
    files = [
        json.loads(gzip.decompress((tmp_path / "out" / f"rank{r}.json.gz").read_bytes()))
        for r in (0, 2)
    ]
    assert {file["baseTimeNanoseconds"] for file in files} == {0}
    assert [file["distributedInfo"]["rank"] for file in files] == [0, 2]
    assert [len(_events(file, "X")) for file in files] == [2, 2]
    assert "rank" not in _events(files[0], "X")[0].get("args", {})


def test_hta_finds_the_rank_of_each_file(tmp_path):
    ci.write(_job((0, 1, 2), (1, 2, 3)), tmp_path / "out", to_format="kineto")
    pattern = re.compile(r'"rank":\s+(\d+)')  # of hta/common/trace_file.py, for each line
    for rank in (0, 2):
        lines = gzip.decompress((tmp_path / "out" / f"rank{rank}.json.gz").read_bytes()).decode()
        matches = [match for line in lines.splitlines() if (match := pattern.search(line))]
        assert [match[1] for match in matches] == [str(rank)]


def test_folder_is_read_as_the_job_that_it_was(tmp_path):
    job = _job((0, 1, 2), (1, 2, 3))
    ci.write(job, tmp_path / "out", to_format="kineto")
    assert_same_events(job, ci.read(tmp_path / "out"))


def test_folder_of_telemetry_alone(tmp_path):
    builder = TraceBuilder()
    builder.samples(builder.series(-1, "power", "W", "x"), np.array([5]), np.array([1.0]))
    KINETO.writer(builder.finish(), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["node.json.gz"]
    assert KINETO.reader([tmp_path / "out" / "node.json.gz"]).samples.num_rows == 1


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"bandwidth": NaN, "k": -Infinity}', {"bandwidth": "NaN", "k": "-Infinity"}),
        (b'{"file": "C:\\windows"}', {"malformed args": '{"file": "C:\\windows"}'}),
        (b'{"a": "tab\there"}', {"a": "tab\there"}),
        (b'{"a": "\xff\xfe"}', {"a": "\ufffd\ufffd"}),
        (b'{"a": 01}', {"malformed args": '{"a": 01}'}),
        (b'{"a" 1}', {"malformed args": '{"a" 1}'}),
        (b'{"a": 1, }', {"malformed args": '{"a": 1, }'}),
        (b"[1, 2]", {"malformed args": "[1, 2]"}),
        (b"{}", None),
        (b'{ "a" :\n[ 1 , {"b":\t2} ] }', {"a": [1, {"b": 2}]}),
    ],
)
def test_arguments_that_are_no_json_do_not_spoil_the_file(tmp_path, raw, expected):
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.THREAD, 1, "main")
    at = builder.text(np.frombuffer(bytearray(raw), np.uint8))
    builder.nodes(
        kind=int(Kind.CPU_OP), name="op", rank=0, lane=lane, ts=np.arange(3), dur=1,
        args=(np.full(3, at), np.array([0, len(raw), 0])),
    )  # fmt: skip
    trace = builder.finish()
    assert_same_events(trace, again(trace, tmp_path / "odd.json"))
    file = json.loads((tmp_path / "odd.json").read_text("utf-8"))
    assert [e.get("args") for e in _events(file, "X")] == [None, expected, None]


def test_value_that_would_mislead_readers_gets_another_key(tmp_path):
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 5, "stream 5", 1)
    raw = b'{"stream": "blue", "device": 1, "correlation": 0, "counters": 2, "chopper": {"x": 1}}'
    at = builder.text(np.frombuffer(bytearray(raw), np.uint8))
    builder.nodes(
        kind=int(Kind.KERNEL), name="k", rank=0, lane=lane, ts=np.arange(1), dur=1, correlation=8,
        args=(np.array([at]), np.array([len(raw)])), iteration=np.array([4]),
    )  # fmt: skip
    builder.counters(np.array([0]), "SQ_WAVES", np.array([1.5]))
    trace = builder.finish()
    assert_same_events(trace, again(trace, tmp_path / "odd.json"))
    file = json.loads((tmp_path / "odd.json").read_text())
    assert _events(file, "X")[0]["args"] == {
        "stream (source)": "blue",
        "device": 1,
        "correlation (source)": 0,
        "counters (source)": 2,
        "stream": 5,
        "correlation": 8,
        "chopper": {"iteration": 4},
        "counters": {"SQ_WAVES": 1.5},
    }


def test_launches_that_ids_do_not_identify_get_fresh_ids(tmp_path):
    builder = TraceBuilder()
    thread = builder.lane(0, LaneKind.THREAD, 1, "main")
    stream = builder.lane(0, LaneKind.STREAM, 5, "stream 5", 1)
    call, work = int(Kind.RUNTIME), int(Kind.COMM)
    builder.nodes(
        kind=pa.array([call, call, work, work, work], pa.uint8()),
        name=pa.array(["hipExtLaunchKernel"] * 2 + ["ncclDevKernel_Generic"] * 3),
        rank=0,
        lane=np.array([thread, thread, stream, stream, stream]),
        ts=np.arange(5),
        dur=1,
        correlation=np.array([4, 4, 0, 0, 4]),
    )
    builder.edges(np.array([1, 0]), np.array([2, 3]), int(EdgeKind.LAUNCH))
    trace = builder.finish()
    back = again(trace, tmp_path / "job.json")
    assert_same_events(trace, back)
    assert back.launch.tolist() == [-1, -1, 1, 0, -1]


def test_kinds_that_kineto_lacks_stand_in_the_arguments(tmp_path):
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.THREAD, 1, "main")
    kinds = [Kind.API, Kind.ALLOCATION, Kind.HOST_GAP, Kind.OTHER, Kind.CPU_OP]
    builder.nodes(
        kind=pa.array([int(k) for k in kinds], pa.uint8()), name="n", rank=0, lane=lane,
        ts=np.arange(5), dur=0, correlation=np.array([9, -1, -1, -1, -1]),
    )  # fmt: skip
    KINETO.writer(builder.finish(), tmp_path / "kinds.json")
    file = json.loads((tmp_path / "kinds.json").read_text())
    assert [(e["cat"], e.get("args")) for e in _events(file, "X")] == [
        ("user_annotation", {"chopper": {"correlation": 9, "kind": "api"}}),
        ("user_annotation", {"chopper": {"kind": "allocation"}}),
        ("user_annotation", {"chopper": {"kind": "host_gap"}}),
        ("user_annotation", {"chopper": {"kind": "other"}}),
        ("cpu_op", None),
    ]


def test_columns_of_any_type_stand_in_the_arguments(tmp_path):
    n = tiny().nodes.num_rows
    trace = tiny(
        critical=pa.array([True] + [None] * (n - 1)),
        slack=pa.array([0.1] + [None] * (n - 1)),
        note=pa.array(['a "b"'] + [None] * (n - 1)),
        shape=pa.array([[1, 2]] + [None] * (n - 1)),
        beta=pa.array([float("inf")] + [None] * (n - 1)),
    )
    KINETO.writer(trace, tmp_path / "more.json")
    file = json.loads((tmp_path / "more.json").read_text())
    assert _events(file, "X", name="aten::mm")[0]["args"]["chopper"] == {
        "critical": True,
        "slack": 0.1,
        "note": 'a "b"',
        "shape": [1, 2],
        "beta": "Infinity",
    }


def test_sizes_that_are_no_number_of_elements_stand_as_bytes(tmp_path):
    trace = tiny()
    odd = trace.with_columns(bytes=pa.array([None, None, None, None, 2049, 77, None]))
    KINETO.writer(odd, tmp_path / "odd.json")
    file = json.loads((tmp_path / "odd.json").read_text())
    args = _events(file, "X", name="ncclDevKernel_Generic_1")[0]["args"]
    assert "In msg nelems" not in args
    assert args["chopper"] == {"bytes": 2049}


def test_instant_named_memory_stays_an_instant(tmp_path):
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.THREAD, 1, "main")
    builder.nodes(
        kind=int(Kind.INSTANT),
        name="[memory]",
        rank=0,
        lane=lane,
        ts=np.arange(2),
        dur=np.array([0, 4]),
    )
    trace = builder.finish()
    assert_same_events(trace, again(trace, tmp_path / "memory.json"))


def test_event_larger_than_the_buffer_is_written_completely(tmp_path):
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.THREAD, 1, "main")
    raw = json.dumps({"a": "x" * (9 << 20)}).encode()
    at = builder.text(np.frombuffer(bytearray(raw), np.uint8))
    builder.nodes(
        kind=int(Kind.CPU_OP), name="op", rank=0, lane=lane, ts=np.arange(2), dur=1,
        args=(np.array([at, at]), np.array([len(raw), len(raw)])),
    )  # fmt: skip
    back = again(builder.finish(), tmp_path / "large.json")
    assert [len(back.args(row)["a"]) for row in range(2)] == [9 << 20] * 2


@pytest.mark.parametrize("size", [1, 2, 3])
def test_chunks_of_any_size_give_the_same_file(tmp_path, monkeypatch, size):
    KINETO.writer(tiny(), tmp_path / "job.json")
    expected = (tmp_path / "job.json").read_bytes()
    monkeypatch.setattr(writer, "_CHUNK_EVENTS", size)
    monkeypatch.setattr(writer, "_BUFFER_BYTES", 700)
    KINETO.writer(tiny(), tmp_path / "job.json")
    assert (tmp_path / "job.json").read_bytes() == expected


def test_empty_trace_is_a_proper_file(tmp_path):
    back = again(TraceBuilder().finish(), tmp_path / "empty.json")
    assert back.nodes.num_rows == 0


def test_nothing_half_written_is_left(tmp_path, monkeypatch):
    (tmp_path / "job.json").write_text("before")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer.encode, "write_arrows", fail)
    with pytest.raises(WriteError, match="No space left"):
        KINETO.writer(tiny(), tmp_path / "job.json")
    with pytest.raises(WriteError, match="No space left"):
        KINETO.writer(tiny(), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]
    assert (tmp_path / "job.json").read_text() == "before"


def test_progress_adds_up(tmp_path):
    class Sum:
        total = done = 0

        def start(self, _task, total, _unit):
            self.total = total

        def advance(self, _task, amount):
            self.done += amount

    seen = Sum()
    with progress.reporting(seen):
        KINETO.writer(_job(), tmp_path / "out")
    assert seen.done == seen.total == 4


def test_contract_of_converters(shared):
    check_converter(KINETO, shared / "pytorch/cuda_sync_a100/event_sync_multi_stream.json.gz")


REAL = (
    "dlrm_8rank_v100/kineto/worker3_step_12.1694128201557.pt.trace.json",
    "hip_graph_mi300x/sglang_Qwen3-8B_decode.json.gz",
    "misc/mtia_inference_rank_0.json.gz",
    "odd/duplicate_kernels.json",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "ddp_resnet_4rank_amd/rank0.json.gz",
            "ddp_resnet_4rank_amd/merged_all_events.json.gz",
            "mi300x/resnet_act_checkpoint.json.gz",
            "odd/rccl_corr0_roctracer100.json.gz",
        )
    ),
)


def _spans(path):
    """Name, start (epoch ns) and duration (ns) of each event with its arguments, by plain JSON."""
    raw = path.read_bytes()
    file = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw, parse_float=Decimal)
    base = int(file.get("baseTimeNanoseconds") or 0)
    spans = {}
    for e in file["traceEvents"]:
        if e["ph"] == "X":
            times = [int(Decimal(str(e[key])) * 1000) for key in ("ts", "dur")]
            spans.setdefault((e["name"], times[0] + base, times[1]), []).append(e.get("args", {}))
    return spans


@pytest.mark.parametrize("name", REAL)
def test_real_file_rewritten_has_the_same_events_and_arguments(shared, tmp_path, name):
    original = KINETO.reader([shared / "pytorch" / name])
    KINETO.writer(original, tmp_path / "again.json")
    before, after = _spans(shared / "pytorch" / name), _spans(tmp_path / "again.json")
    assert {k: len(v) for k, v in after.items()} == {k: len(v) for k, v in before.items()}
    for key, all_args in before.items():
        for args in all_args:
            assert any(all(new.get(k) == v for k, v in args.items()) for new in after[key])
    assert_same_events(original, KINETO.reader([tmp_path / "again.json"]))


def test_dependencies_without_an_arrow_are_counted(tmp_path):
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 7, "", 0)
    ts = np.array([5, 10])
    builder.nodes(kind=int(Kind.KERNEL), name=["a", "b"], rank=0, lane=lane, ts=ts, dur=[4, 4])
    builder.edges(np.array([0]), np.array([1]), EdgeKind.DEPENDENCY)
    log = KINETO.writer(builder.finish(), tmp_path / "a.json")
    assert [(i.code, i.count) for i in log] == [("edges-without-arrow", 1)]


def test_counters_that_are_not_read_back_are_counted(tmp_path):
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 7, "", 0)
    builder.nodes(kind=int(Kind.KERNEL), name=["a"], rank=0, lane=lane, ts=np.array([5]), dur=[4])
    builder.counters(np.array([0, 0]), pa.array(["A", "B"]), np.array([1.5, 2.0]))
    log = KINETO.writer(builder.finish(), tmp_path / "a.json")
    assert [(i.code, i.count) for i in log] == [("counters-as-arguments", 2)]
    assert KINETO.reader([tmp_path / "a.json"]).args(0)["counters"] == {"A": 1.5, "B": 2.0}


def test_annotations_and_series_that_are_not_read_back_are_counted(tmp_path):
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 7, "", 0)
    builder.nodes(kind=int(Kind.KERNEL), name=["a"], rank=0, lane=lane, ts=np.array([5]), dur=[4])
    builder.samples(builder.series(0, "power", "W", "amd-smi", device=0), [5], [300.0])
    trace = builder.finish().with_columns(layer=[3], flops=pa.nulls(1, pa.int64()))
    issues = {i.code: (i.count, i.example) for i in KINETO.writer(trace, tmp_path / "a.json")}
    assert issues == {"annotations-as-arguments": (1, "layer"), "series-by-name": (1, "power")}


def test_gpus_of_unknown_machines_are_written(tmp_path):
    builder = TraceBuilder(
        Meta(devices=(Device("node1", 0, "MI300X", "amd-smi"),), ranks=(Rank(0),))
    )
    lane = builder.lane(0, LaneKind.STREAM, 7, "", 0)
    builder.nodes(kind=int(Kind.KERNEL), name=["a"], rank=0, lane=lane, ts=np.array([5]), dur=[4])
    KINETO.writer(builder.finish(), tmp_path / "a.json")
    assert [d.name for d in KINETO.reader([tmp_path / "a.json"]).meta.devices] == ["MI300X"]


def test_of_the_text_only_arguments_stay(demo: Path, tmp_path: Path) -> None:
    path = min((demo / "kineto").iterdir())
    path = path if path.suffix == ".json" else unpacked(path, tmp_path)
    trace = ci.read(path)
    (kept,) = trace.text.buffers
    assert trace.array("args_len").sum() <= len(kept) < path.stat().st_size / 2


def unpacked(path: Path, folder: Path) -> Path:
    """The same file, not compressed."""
    (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    return folder / path.stem


def test_nodes_and_arguments_that_are_looked_into_in_blocks_are_the_same(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ci.read(demo)
    for module in (reader, argument_values, shared_texts):
        monkeypatch.setattr(module, "_BLOCK", 7)
    monkeypatch.setattr(json_events, "_OBJECTS", 7)
    require_equal(ci.read(demo), whole)


def require_equal(trace: ci.Trace, other: ci.Trace) -> None:
    for name in ("nodes", "edges", "lanes", "samples"):
        assert getattr(trace, name).equals(getattr(other, name)), name
    assert trace.meta == other.meta


def test_edges_and_annotations_that_are_made_at_the_same_time_are_the_same(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a large trace are."""
    one_behind_the_other = ci.read(demo)
    monkeypatch.setattr(job_reading, "_MANY_NODES", 0)
    require_equal(ci.read(demo), one_behind_the_other)


def test_edges_and_annotations_take_turns_where_memory_is_short(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_reading, "_MANY_NODES", 0)
    monkeypatch.setattr(background, "both", None)
    with spill.when(True):
        in_files = ci.read(demo)
    monkeypatch.undo()
    require_equal(in_files, ci.read(demo))


@pytest.mark.parametrize("least", [0, 1000])
def test_issues_of_edges_and_of_annotations_are_those_of_the_trace(
    monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    """In the order of their stages; of a fault that both have, the greater count."""
    before, edges, annotations = (Fault.info(f"of-{k}", "Made.") for k in range(3))

    def infer(trace: ci.Trace, log: IssueLog) -> ci.Trace:
        log.add(edges, 2)
        return trace

    def annotate(trace: ci.Trace, _: object) -> ci.Trace:
        log = IssueLog("job")
        for fault, count in ((annotations, 3), (edges, 1), (before, 7)):
            log.add(fault, count)
        return trace.with_meta(issues=stages.merged(trace.meta.issues, log))

    monkeypatch.setattr(job_reading, "_MANY_NODES", least)
    monkeypatch.setattr(job_reading.inference, "infer_edges", infer)
    monkeypatch.setattr(stages, "annotate", annotate)
    log = IssueLog("job")
    log.add(before, 5)
    trace = tiny_trace().with_meta(issues=tuple(log))
    made = job_reading._with_edges_and_annotations(trace, log, ())
    counts = [(issue.code, issue.count) for issue in made.meta.issues]
    assert counts == [("of-0", 7), ("of-1", 2), ("of-2", 3)]
