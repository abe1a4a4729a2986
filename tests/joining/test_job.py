"""Many sources become one job, or are refused with the candidates named."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import random_ets
from kineto_files import BASE, call, kernel, span, write
from read_once import read_once

import chopper_interop as ci
from chopper_interop.errors import (
    AmbiguousRunError,
    ReadError,
    UnknownFormatError,
    WriteError,
)


def rank_file(folder: Path, name: str, rank: int | None, start: float = 1, n: int = 3) -> Path:
    """A rank's trace of n kernels from `start` (microseconds) on."""
    events = []
    for i in range(n):
        events.append(call("hipLaunchKernel", start + 10 * i, 1, i + 1))
        events.append(kernel(f"k{i}", start + 10 * i + 3, 5, i + 1, device=2 + (rank or 0)))
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    return write(folder / name, events, baseTimeNanoseconds=BASE, **info)


def codes(trace: ci.Trace) -> set[str]:
    return {issue.code for issue in trace.meta.issues}


def test_ranks_are_joined_on_one_clock(tmp_path: Path) -> None:
    rank_file(tmp_path, "a.json", 1, start=5)
    rank_file(tmp_path, "b.json", 0, start=1)
    trace = ci.read(tmp_path)
    assert trace.ranks == [0, 1]
    assert trace.meta.origin_ns == BASE + 1000
    assert trace.rank(1).array("ts").min() == 4000
    assert trace.meta.job == tmp_path.name


def test_different_bases_are_one_clock(tmp_path: Path) -> None:
    rank_file(tmp_path, "a.json", 0)
    events = [kernel("late", 2, 1, 0)]
    base = BASE - 7889238 * 10**9
    shifted = [events[0] | {"ts": 7889238 * 10**6 + 2}]
    write(tmp_path / "b.json", shifted, baseTimeNanoseconds=base, distributedInfo={"rank": 1})
    trace = ci.read(tmp_path)
    assert trace.rank(1).array("ts").tolist() == [1000]


def test_two_runs_are_refused_with_both_named(tmp_path: Path, run) -> None:
    rank_file(tmp_path, "monday.json", 0)
    rank_file(tmp_path, "tuesday.json", 0, start=900)
    with pytest.raises(AmbiguousRunError):
        ci.read(tmp_path)
    status, _, output = run("convert", tmp_path, "-o", tmp_path / "x.pftrace")
    assert status == 5
    assert "monday.json" in output
    assert "tuesday.json" in output
    assert not (tmp_path / "x.pftrace").exists()


def test_the_same_events_twice_are_one_run(tmp_path: Path) -> None:
    rank_file(tmp_path, "a.json", 0)
    rank_file(tmp_path, "copy.json", 0)
    trace = ci.read(tmp_path)
    assert trace.nodes.num_rows == 6
    assert "same-events-twice" in codes(trace)


@pytest.mark.parametrize(
    ("longer_us", "shorter_us", "copied"), [(0, 0, 1), (0.001, 0, 0), (0.001, 0.001, 0)]
)
def test_a_file_under_the_names_of_two_ranks_is_reported(
    tmp_path: Path, longer_us: float, shorter_us: float, copied: int
) -> None:
    """It was two ranks in silence; real ranks differ in their times by a nanosecond somewhere."""
    events = [kernel(f"k{i}", 10 * i + 1, 5, i + 1) for i in range(100)]
    write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE)
    events[50]["dur"] += longer_us
    events[51]["dur"] -= shorter_us
    write(tmp_path / "rank1.json", events, baseTimeNanoseconds=BASE)
    trace = ci.read(tmp_path)
    assert trace.ranks == [0, 1]
    issues = [i for i in trace.meta.issues if i.code == "ranks-copied"]
    assert sum(i.count for i in issues) == copied
    assert all("rank1.json" in i.example for i in issues)


def test_ranks_of_one_program_without_measured_times_are_no_copies(tmp_path: Path) -> None:
    """ETs that a generator makes for data parallelism are equal but for their ranks; it was an error of each job."""
    random_ets.write(tmp_path / "job", [[random_ets.Node("kernel", 10)] * 100] * 2)
    trace = ci.read(tmp_path)
    assert trace.ranks == [0, 1]
    assert "ranks-copied" not in codes(trace)


@pytest.mark.parametrize("mode", ["gpu", "full"])
def test_of_outputs_of_one_job_the_richest_is_read(tmp_path: Path, mode: str) -> None:
    """An ET of GPU work alone was read in place of files that have everything."""
    trace = read_once(rank_file(tmp_path, "rank0.json", 0))
    folder = tmp_path / "outputs"
    folder.mkdir()
    ci.write(trace, folder / "a.et", mode=mode)
    ci.write(trace, folder / "b.pftrace")
    together = ci.read(folder)
    assert together.nodes.num_rows == trace.nodes.num_rows
    assert np.array_equal(together.launch, trace.launch)


def test_unnumbered_ranks_that_overlap_are_numbered_by_device(tmp_path: Path) -> None:
    for name, device in (("x.json", 5), ("y.json", 3)):
        write(tmp_path / name, [kernel("k", 1, 9, 0, device=device)], baseTimeNanoseconds=BASE)
    trace = ci.read(tmp_path)
    assert [(r.rank, r.device) for r in trace.meta.ranks] == [(0, 3), (1, 5)]
    assert "ranks-by-order" in codes(trace)


def test_unnumbered_ranks_that_do_not_overlap_are_two_runs(tmp_path: Path) -> None:
    rank_file(tmp_path, "first.json", None)
    rank_file(tmp_path, "second.json", None, start=500)
    with pytest.raises(AmbiguousRunError, match=r"first\.json; 2: .*second\.json"):
        ci.read(tmp_path)


def test_files_that_are_no_profiles_are_skipped_with_the_reason(tmp_path: Path, run) -> None:
    rank_file(tmp_path, "a.json", 0)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty.json").touch()
    (tmp_path / ".hidden.json").write_text("{}")
    schema = {"schema": "1.1.0", "pid": 1, "time": "", "start_ts": 1, "nodes": [{}]}
    (tmp_path / "et.json").write_text(json.dumps(schema))
    out = tmp_path / "x.pftrace"
    status, _, output = run("convert", tmp_path, "-o", out)
    assert status == 0
    lines = {line.split()[0]: line for line in output.splitlines() if "skipped" in line}
    assert "no format that is known here" in lines["notes.txt"]
    assert "it is empty" in lines["empty.json"]
    assert "et.json" not in lines  # it is read, but holds nothing
    assert "et-empty" in output
    assert "hidden" not in output


def test_outputs_of_an_earlier_run_are_no_sources(tmp_path: Path, run) -> None:
    rank_file(tmp_path, "a.json", 0)
    for _ in range(2):
        status, _, output = run("convert", tmp_path, "-o", f"{tmp_path}/et/", "--job", "j")
        assert status == 0
    assert "made from profiles" in output
    assert ci.read(tmp_path / "et").ranks == [0]


def test_an_output_named_as_input_is_read_together_with_profiles(tmp_path: Path) -> None:
    rank_file(tmp_path, "a.json", 0)
    rank_file(tmp_path, "b.json", 1)
    ci.write(ci.read(tmp_path / "a.json"), tmp_path / "a.parquet")
    assert ci.read(tmp_path / "a.parquet", tmp_path / "b.json").ranks == [0, 1]
    assert "outputs-left-out" in codes(ci.read(tmp_path))


def test_a_file_by_name_must_be_known(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(UnknownFormatError, match="no format that is known"):
        ci.read(path)
    with pytest.raises(ReadError, match="no such file"):
        ci.read(tmp_path / "absent")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UnknownFormatError, match="nothing to read here"):
        ci.read(empty)


def test_files_given_twice_are_read_once(tmp_path: Path) -> None:
    path = rank_file(tmp_path, "a.json", 0)
    assert ci.read(path, tmp_path, tmp_path / ".." / tmp_path.name).nodes.num_rows == 6


def test_the_sample_job_is_one_job(demo: Path) -> None:
    trace = read_once(demo)
    truth = json.loads((demo / "truth.json").read_text())
    assert trace.ranks == [0, 1]
    counters = trace.to_pandas("counters")
    expected = {"GRBM_GUI_ACTIVE", "SQ_WAVES", "FETCH_SIZE", "WRITE_SIZE"}
    assert expected <= set(counters["name"])
    assert "clock-unrelated" not in codes(trace)
    lanes = trace.to_pandas("series")
    power = lanes[(lanes["name"] == "socket power") & (lanes["source"] == "recorder")]
    assert set(power["rank"]) == {-1, 0, 1}
    assert truth["parameters"]["ranks"] == 2


def test_counters_reach_the_kernels_that_they_count(demo: Path) -> None:
    """MFMA operations of a GEMM are 2·m·n·k of its shapes, by whatever run they were counted."""
    trace = read_once(demo)
    frame = trace.to_pandas("counters")
    mops = frame[frame["name"] == "SQ_INSTS_VALU_MFMA_MOPS_BF16"]
    names, code = trace.names(), trace.array("name")
    gemms = {names[code[n]] for n in mops[mops["value"] > 0]["node"]}
    assert gemms
    assert all(not name.startswith("void at::native") for name in gemms)
    waves = frame[frame["name"] == "SQ_WAVES"]
    assert (waves["value"] > 0).all()
    per_rank = trace.array("rank")[waves["node"].to_numpy()]
    assert (np.bincount(per_rank) > 100).all()


def test_telemetry_reaches_the_work_of_its_gpu(demo: Path) -> None:
    truth = json.loads((demo / "truth.json").read_text())["kernels"]
    clock = {
        (r, c): mhz
        for r, c, mhz in zip(
            truth["rank"], truth["correlation"], truth["mean_clock_mhz"], strict=True
        )
    }
    frame = read_once(demo).to_pandas()
    work = frame[frame["kind"].isin(["kernel", "comm"])]
    assert work["gfxclk_mhz"].notna().all()
    off = [
        abs(row.gfxclk_mhz - clock[row.rank, row.correlation]) / clock[row.rank, row.correlation]
        for row in work.itertuples()
        if (row.rank, row.correlation) in clock
    ]
    assert len(off) == len(work)
    assert np.median(off) < 0.03  # samples every 5 ms of a clock that moves every 1 ms


def one_gpu_a_rank(folder: Path, hosts: tuple[str, str] = ("node", "node")) -> Path:
    """Two ranks that each see one GPU, number 0, and a second of telemetry of two GPUs."""
    for rank, host in enumerate(hosts):
        events = [
            event
            for i in range(4)
            for event in (
                call("hipLaunchKernel", 200_000 * i, 5, i + 1, pid=100 + rank),
                kernel("gemm", 200_000 * i + 10, 100_000, i + 1, device=0) | {"pid": 0},
            )
        ]
        info = {"distributedInfo": {"rank": rank, "world_size": 2}, "host_name": host}
        write(folder / f"rank{rank}.json", events, baseTimeNanoseconds=BASE, **info)
    rows = [
        f"{BASE // 10**9 + second},{gpu},{power},{clock}"
        for second in range(3)
        for gpu, power, clock in ((0, 500, 1000), (1, 300, 2000))
    ]
    (folder / "smi.csv").write_text("\n".join(["timestamp,gpu,socket_power,gfx_0_clk", *rows, ""]))
    return folder


def test_ranks_that_each_see_one_gpu_get_their_own_telemetry(tmp_path: Path) -> None:
    trace = ci.read(one_gpu_a_rank(tmp_path))
    frame = trace.to_pandas()
    clocks = frame[frame["kind"] == "kernel"].groupby("rank")["gfxclk_mhz"]
    assert clocks.unique().explode().to_dict() == {0: 1000.0, 1: 2000.0}
    assert "telemetry-by-rank" in {i.code for i in trace.meta.issues}


def test_telemetry_of_one_of_several_machines_is_of_no_rank(tmp_path: Path) -> None:
    trace = ci.read(one_gpu_a_rank(tmp_path, ("a", "b")))
    assert set(trace.array("rank", "series")) == {-1}
    assert pd.isna(trace.values("gfxclk_mhz")).all()
    assert "telemetry-of-unknown-device" in {i.code for i in trace.meta.issues}


@pytest.mark.parametrize("hosts", [("a", "b"), ("a", "a")])
def test_values_of_several_hosts_are_told_apart(tmp_path: Path, hosts: tuple[str, str]) -> None:
    """Processors of both hosts were two lanes of one name, in Perfetto "CPU" and "CPU (2)" of "hosts"."""
    one_gpu_a_rank(tmp_path, hosts)
    (tmp_path / "smi.csv").unlink()
    for rank in range(2):
        folder = tmp_path / f"{hosts[rank]}{rank}"
        folder.mkdir()
        (tmp_path / f"rank{rank}.json").rename(folder / f"rank{rank}.json")
        rows = [f"{BASE + 10**8 * i},,{i},-1,{50 + rank}" for i in range(9)]
        header = "realtime_ns,monotonic_ns,boottime_ns,gpu,host_cpu_percent"
        (folder / "recorder.csv").write_text("\n".join([header, *rows, ""]))
    sources = ci.read(tmp_path).series["source"].to_pylist()
    expected = {"recorder (rank 0)", "recorder (rank 1)"} if hosts[1] == "b" else {"recorder"}
    assert set(sources) - {"PyTorch"} == expected


def test_a_copy_of_a_file_without_a_rank_is_no_second_rank(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        events = [span("cpu_op", "a", 1, 2), call("hipLaunchKernel", 1, 2, 1), kernel("k", 4, 5, 1)]
        write(tmp_path / name, events, baseTimeNanoseconds=BASE)
    trace = ci.read(tmp_path)
    assert (trace.ranks, trace.nodes.num_rows) == ([0], 3)
    assert "same-events-twice" in {i.code for i in trace.meta.issues}


@pytest.mark.parametrize(("apart_us", "count"), [(100, 0), (3_600_000_000, 1)])
def test_ranks_that_do_not_overlap_are_noted(tmp_path: Path, apart_us: int, count: int) -> None:
    for rank in range(2):
        events = [span("cpu_op", "a", 10 + rank * apart_us, 200)]
        header = {"distributedInfo": {"rank": rank, "world_size": 2}}
        write(tmp_path / f"rank{rank}.json", events, baseTimeNanoseconds=BASE, **header)
    actual = [i for i in ci.read(tmp_path).meta.issues if i.code == "ranks-apart"]
    assert len(actual) == count
    assert all("3,599" in i.example or "3,600" in i.example for i in actual)


@pytest.mark.parametrize(("other", "examples"), [(2, []), (None, []), (16, ["2 and 16"])])
def test_ranks_of_jobs_of_other_sizes_are_noted(
    tmp_path: Path, other: int | None, examples: list[str]
) -> None:
    for rank, size in enumerate((2, other)):
        header = {"distributedInfo": {"rank": rank} | ({"world_size": size} if size else {})}
        write(
            tmp_path / f"rank{rank}.json",
            [span("cpu_op", "a", 1, 2)],
            baseTimeNanoseconds=BASE,
            **header,
        )
    issues = ci.read(tmp_path).meta.issues
    assert [i.example for i in issues if i.code == "world-sizes-differ"] == examples


def test_folders_behind_links_are_searched(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    write(tmp_path / "real" / "rank0.json", [span("cpu_op", "a", 1, 2)], baseTimeNanoseconds=BASE)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "loop").symlink_to(tmp_path / "job")
    assert ci.read(tmp_path / "job").nodes.num_rows == 1


def test_a_pipe_is_refused_at_once(tmp_path: Path, run) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    status, _, output = run("convert", tmp_path / "pipe.json", "-o", tmp_path / "a.pftrace")
    assert (status, "pipe" in output) == (ReadError.exit_status, True)


def test_a_part_of_a_job_together_with_the_job_is_refused_in_a_line(tmp_path: Path) -> None:
    rank_file(tmp_path, "a.json", 0)
    rank_file(tmp_path, "b.json", 1)
    trace = ci.read(tmp_path)
    parts = (tmp_path / "p" / "part.parquet", tmp_path / "p" / "whole.parquet")
    ci.write(trace.rank(0), parts[0])
    ci.write(trace, parts[1])
    with pytest.raises(AmbiguousRunError, match="2 runs or windows"):
        ci.read(*parts)


def test_names_of_files_that_are_no_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"rank\xff0.json")
    rank_file(tmp_path, name, 0)
    trace = ci.read(tmp_path / name)
    assert trace.meta.sources[0].path.endswith("rank\\udcff0.json")
    for ending in ("pftrace", "parquet", "json", "et"):
        ci.write(trace, tmp_path / f"out.{ending}")


def test_traces_and_ranks_of_instants_alone(tmp_path: Path) -> None:
    moment = {"ph": "i", "name": "mark", "pid": 1, "tid": 1, "ts": 1, "s": "t", "cat": "x"}
    header = {"baseTimeNanoseconds": BASE, "distributedInfo": {"rank": 1, "world_size": 2}}
    alone = write(tmp_path / "a.json", [moment], **header)
    with pytest.raises(WriteError, match="no operations"):
        ci.write(ci.read(alone), tmp_path / "et" / "a.et")
    rank_file(tmp_path, "b.json", 0)
    ci.write(ci.read(tmp_path / "a.json", tmp_path / "b.json"), tmp_path / "et" / "b.et")
    assert ci.read(tmp_path / "et" / "b.0.et").nodes.num_rows
