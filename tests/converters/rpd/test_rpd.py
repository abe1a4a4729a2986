"""rpd databases: every row against sqlite3, nesting, launches, clocks."""

import gzip
import shutil
import sqlite3
from collections import Counter
from contextlib import closing

import numpy as np
import pytest
import rpd
from issue_counts import counts, uncounted_events
from shared_data import SHARED, each, real

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.converters.rocm import node_arguments
from chopper_interop.converters.rpd import sniff
from chopper_interop.converters.rpd.reader import read
from chopper_interop.errors import UsageError
from chopper_interop.io.inputs import head
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.testing import check_converter

REAL = sorted((SHARED / "rocprof/rpd_schema2_mi300x").glob("*.rpd*"))


@pytest.fixture(params=[2, 3])
def small(tmp_path, request):
    return rpd.small(tmp_path / "x.rpd", request.param)


def test_everything_is_there_by_kind(small):
    trace = read([small])
    assert trace.to_pandas()[["kind", "name"]].to_numpy().tolist() == [
        ["annotation", "step 1"],
        ["cpu_op", "aten::mm"],
        ["instant", "here"],
        ["runtime", "hipLaunchKernel"],
        ["kernel", "gemm"],
        ["runtime", "hipMemcpyAsync"],
        ["memcpy", "CopyDeviceToHost"],
        ["memset", "FillBuffer"],
    ]
    assert trace.array("parent").tolist() == [-1, 0, 1, 1, -1, 0, -1, -1]
    assert not uncounted_events(trace)
    assert sniff(head(small))
    check_converter(registry.converters()["rpd"], small)


def test_launches_shapes_and_sizes(small):
    trace = read([small])
    edges = trace.to_pandas("edges")[["src", "dst", "kind"]].to_numpy().tolist()
    assert edges == [[3, 4, "launch"], [5, 6, "launch"], [4, 6, "dependency"]]
    args = trace.args(4)
    assert (args["grid"], args["workgroup"], args["stream"]) == ([4, 4, 4], [8, 8, 8], "0x1")
    assert trace.to_pandas()["bytes"][6] == 4096
    assert trace.args(1)["text"] == "seq = 3, op_id = 12, sizes = [[2, 2]]"
    assert trace.to_pandas("lanes")[["device", "kind", "number"]].to_numpy().tolist() == [
        [-1, "thread", 9],
        [2, "queue", 1],
    ]


def test_clocks_are_series_in_mhz_of_the_gpu(small):
    trace = read([small])
    series = trace.to_pandas("series").iloc[0]
    assert (series["name"], series["unit"], series["device"]) == ("sclk", "MHz", 2)
    samples = trace.to_pandas("samples")
    assert samples["ts"].tolist() == [5, 100, 300]
    assert samples["value"].tolist() == [1700, 800, 800]


def test_times_with_a_fraction_are_rounded_and_counted(small):
    """As scripts that compute microseconds write them: columns take reals whatever they are declared as."""
    whole = read([small])
    with closing(sqlite3.connect(small)) as base, base:
        for table in ("rocpd_api", "rocpd_op", "rocpd_monitor"):
            base.execute(f'UPDATE {table} SET "start" = "start" + 0.5, "end" = "end" + 0.5')  # noqa: S608 # constants
    trace = read([small])
    assert trace.meta.origin_ns == whole.meta.origin_ns + 1  # halves are rounded up
    for table, column in (("nodes", "ts"), ("nodes", "dur"), ("samples", "ts")):
        assert trace.array(column, table).tolist() == whole.array(column, table).tolist()
    codes = counts(trace)
    assert codes.pop("time-with-fraction") == 2 * (5 + 3 + 2)
    assert codes == counts(whole)


MONITORED = {
    "in any order": (
        [(100, 300, "800"), (5, 100, "1700")],
        [(5, 1700), (100, 800), (300, 800)],
        {},
    ),
    "with a gap": (
        [(5, 100, "1700"), (200, 300, "800")],
        [(5, 1700), (100, 1700), (200, 800), (300, 800)],
        {},
    ),
    "without an end": ([(5, -rpd.START, "1700")], [(5, 1700)], {}),
    "without a time": (
        [(-rpd.START, 100, "1700"), (5, 6, "800")],
        [(5, 800), (6, 800)],
        {"monitor-without-number": 1},
    ),
    "beyond all numbers": ([(5, 100, "1e999")], [], {"monitor-without-number": 1}),
}


@pytest.mark.parametrize(("rows", "samples", "issues"), MONITORED.values(), ids=MONITORED)
def test_a_monitored_value_holds_from_its_start_to_its_end(tmp_path, rows, samples, issues):
    base = rpd.Base(tmp_path / "x.rpd")
    base.operation("KernelExecution", 0, 10, "k")
    for start, end, value in rows:
        base.monitor(0, start, end, value)
    base.close()
    trace = read([tmp_path / "x.rpd"])
    at = trace.samples["ts"].to_numpy() + trace.meta.origin_ns - rpd.START
    assert list(zip(at.tolist(), trace.samples["value"].to_pylist(), strict=True)) == samples
    codes = counts(trace)
    assert {code: n for code, n in codes.items() if code.startswith("monitor")} == issues
    assert not uncounted_events(trace)


def test_monitored_values_of_one_gpu_do_not_end_with_those_of_the_next(tmp_path):
    base = rpd.Base(tmp_path / "x.rpd")
    for gpu in range(2):
        base.operation("KernelExecution", 0, 10, "k", 0, gpu)
        base.monitor(gpu, 5 + 95 * gpu, 100 + 95 * gpu, "1700")
    base.close()
    samples = read([tmp_path / "x.rpd"]).to_pandas("samples")
    assert samples["ts"].tolist() == [5, 100, 100, 195]


@pytest.mark.parametrize("gpus", [1, 5])
def test_gpus_of_monitors_that_nobody_can_tell_belong_to_the_node(tmp_path, gpus):
    base = rpd.Base(tmp_path / "x.rpd")
    for gpu in range(gpus):
        base.operation("KernelExecution", 1, 2, "k", 0, gpu)
    for device in range(4):
        base.monitor(device, 1, 2, "1")
        base.monitor(device, 2, 3, "2")
    base.monitor(0, 3, 4, "fast")
    base.close()
    trace = read([tmp_path / "x.rpd"])
    assert set(trace.to_pandas("series")["device"]) == {-1}
    assert counts(trace)["monitor-device-unknown"] == 4
    assert counts(trace)["monitor-without-number"] == 1
    assert not uncounted_events(trace)


def test_counters_of_schema_3(tmp_path):
    trace = read([rpd.small(tmp_path / "x.rpd", 3)])
    assert trace.to_pandas("counters")[["name", "value"]].to_numpy().tolist() == [["SQ_WAVES", 4.0]]
    assert counts(trace)["counter-row"] == 2


def test_processes_are_ranks_in_order_of_their_gpus(tmp_path):
    base = rpd.Base(tmp_path / "x.rpd")
    for pid, gpu in ((70, 3), (50, 4), (60, 2)):
        call = base.call("hipLaunchKernel", 1, 2, pid=pid, tid=pid)
        base.operation("KernelExecution", 3, 4, "k", call, gpu)
    base.call("hipInit", 1, 2, pid=40)
    base.operation("KernelExecution", 5, 6, "k", 0, 4)
    base.close()
    trace = read([tmp_path / "x.rpd"])
    actual = [(r.rank, r.pid, r.device) for r in trace.meta.ranks]
    assert actual == [(0, 60, 2), (1, 70, 3), (2, 50, 4), (3, 40, -1)]
    assert Counter(trace.array("rank").tolist()) == {0: 2, 1: 2, 2: 3, 3: 1}


def test_rows_that_point_nowhere_are_counted(tmp_path):
    base = rpd.Base(tmp_path / "x.rpd")
    base.add("rocpd_api_ops", api_id=5, op_id=6)
    base.call("hipInit", 1, 2)
    base.add("rocpd_api", pid=9, tid=9, start=0, end=0, apiName_id=99, args_id=99)
    base.close()
    trace = read([tmp_path / "x.rpd"])
    assert counts(trace)["launch-without-ends"] == 1
    assert counts(trace)["event-without-time"] == 1
    assert not uncounted_events(trace)


def test_a_workgroup_that_no_gpu_runs_is_reported(tmp_path):
    path = rpd.small(tmp_path / "x.rpd")
    with closing(sqlite3.connect(path)) as base:
        base.execute("UPDATE rocpd_kernelapi SET workgroupX = 65536, gridX = 256")
        base.commit()
    assert counts(read([path]))["workgroup-impossible"] == 1


def test_monitored_values_that_end_before_they_start_are_counted(tmp_path):
    base = rpd.Base(tmp_path / "x.rpd")
    base.operation("KernelExecution", 0, 10, "k")
    base.monitor(0, 5, 100, "1700")
    base.monitor(0, 200, 150, "800")
    base.close()
    trace = read([tmp_path / "x.rpd"])
    assert not uncounted_events(trace)
    assert counts(trace)["monitor-ends-before-start"] == 1
    assert trace.samples.num_rows == 3


def test_times_since_1970_are_told_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(rpd, "START", 1_760_000_000_000_000_000)
    assert read([rpd.small(tmp_path / "x.rpd")]).meta.clock == "realtime"


@pytest.mark.parametrize("path", each(REAL), ids=lambda path: path.name)
def test_real_databases(path, tmp_path):
    trace = ci.read(path)
    plain = tmp_path / "x.rpd"
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as source:
        plain.write_bytes(source.read())
    base = sqlite3.connect(plain)
    spans = base.execute(
        "SELECT start, end - start FROM rocpd_api UNION ALL SELECT start, end - start FROM rocpd_op"
    )
    ts, dur = (trace.array("ts") + trace.meta.origin_ns).tolist(), trace.array("dur").tolist()
    assert sorted(zip(ts, dur, strict=True)) == sorted(spans)
    (launched,) = base.execute("SELECT count(*) FROM rocpd_api_ops").fetchone()
    assert np.count_nonzero(trace.array("kind", "edges") == EdgeKind.LAUNCH) == launched
    names = base.execute(
        "SELECT string, count(*) FROM rocpd_op JOIN rocpd_string s ON s.id = description_id "
        "WHERE string <> '' GROUP BY 1"
    )
    kernels = trace.to_pandas().query("kind == 'kernel' or kind == 'comm'")["name"]
    assert Counter(kernels) == dict(names)
    values = base.execute("SELECT CAST(value AS REAL) FROM rocpd_monitor")
    actual = trace.to_pandas("samples")["value"]
    assert not Counter(v for (v,) in values) - Counter(actual)
    base.close()
    assert not uncounted_events(trace)


def test_a_chrome_trace_that_was_made_of_one_is_not_taken(tmp_path):
    path = tmp_path / "matmul_result.json"
    exported = real("rocprof/rpd_schema2_mi300x/matmul_result.json")
    shutil.copyfile(exported, path)
    assert not sniff(head(path))


def test_each_real_input_is_taken_by_one_converter_at_most():
    paths = sorted(p for p in real("rocprof").rglob("*") if p.is_file())
    actual = {p.name: [c.name for c in registry.sniffed(head(p))] for p in paths}
    assert all(len(names) <= 1 for names in actual.values())
    assert np.all([actual[p.name] == ["rpd"] for p in REAL])


def test_the_user_can_tell_which_monitored_gpu_is_whose(tmp_path):
    path = tmp_path / "x.rpd"
    base = rpd.Base(path)
    base.operation("KernelExecution", 10, 20, "k")
    for device in range(4):
        base.monitor(device, 5, 30, str(1000 + device))
    base.close()
    assert "--map-device" in ci.analyze(ci.read(path), "dvfs").notes["no rows"]
    trace = ci.read(path, map_device=["rpd:1=rank0"])
    assert trace.values("gfxclk_mhz").tolist() == [1001.0]
    assert "clock=" in ci.analyze(trace, "dvfs").notes["no rows"]
    (match,) = trace.meta.device_matches
    assert (match.number, match.rank, match.known_by) == (1, 0, "the user")
    with pytest.raises(UsageError, match="has such a GPU"):
        ci.read(path, map_device=["rpd:9=rank0"])


def shares_a_text(path, calls, size):
    """A database of which most is one text, that all calls refer to; half of them say the same otherwise."""
    base = rpd.Base(path)
    for number in range(calls):
        call = base.call("hipMemcpyAsync", 10 * number, 10 * number + 5, "x" * size)
        if number % 2:
            base.add("rocpd_copyapi", api_ptr_id=call, stream="0x1", size=number, kind=2)
    base.close()
    return path


def test_a_text_that_calls_share_is_there_once(tmp_path):
    path = shares_a_text(tmp_path / "x.rpd", 40, 200_000)
    trace = read([path])
    assert trace.args(0) == {"text": "x" * 200_000}
    assert trace.args(2) == trace.args(0)
    assert trace.args(3) == {**trace.args(0), "stream": "0x1", "size": 3, "copy_kind": 2}
    assert "shared-text-shortened" not in counts(trace)
    assert trace.text.starts[-1] < 22 * 200_000  # the twenty that differ, and one for the others


def test_shared_texts_take_memory_and_time_in_proportion_to_the_file(tmp_path, monkeypatch):
    """Outputs go through the text of each call, though it is there once."""
    monkeypatch.setattr(node_arguments, "_ROOM", 0)
    path = shares_a_text(tmp_path / "x.rpd", 40, 200_000)
    trace = read([path])
    assert trace.array("args_len").sum() < 6 * path.stat().st_size
    assert trace.text.starts[-1] < 6 * path.stat().st_size
    assert trace.args(1)["text"] == "x" * 200_000
    assert trace.args(39) == {"text": "x" * 1000 + "…", "stream": "0x1", "size": 39, "copy_kind": 2}
    assert trace.args(38) == {"text": "x" * 1000 + "…"}
    assert counts(trace)["shared-text-shortened"] == 37
    assert not uncounted_events(trace)


def test_each_shared_text_is_whole_in_its_first_call(tmp_path, monkeypatch):
    """Also where the calls of another one come before, and take all room."""
    monkeypatch.setattr(node_arguments, "_ROOM", 0)
    base = rpd.Base(tmp_path / "x.rpd")
    for number in range(40):
        text = ("x", "y")[number >= 30] * 20_000
        base.call("hipMemcpyAsync", 10 * number, 10 * number + 5, text)
    base.close()
    trace = read([tmp_path / "x.rpd"])
    whole = [n for n in range(40) if len(trace.args(n)["text"]) == 20_000]
    assert whole == [*range(7), 30]
    assert counts(trace)["shared-text-shortened"] == 32
