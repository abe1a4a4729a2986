"""Many sources become one job, or are refused with the candidates named."""

import json
from pathlib import Path

import numpy as np
import pytest
from kineto_files import BASE, call, kernel, write

import chopper_interop as ci
from chopper_interop.errors import AmbiguousRunError, ReadError, UnknownFormatError


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
    status, _, told = run("convert", tmp_path, "-o", tmp_path / "x.pftrace")
    assert status == 5
    assert "monday.json" in told
    assert "tuesday.json" in told
    assert not (tmp_path / "x.pftrace").exists()


def test_the_same_events_twice_are_one_run(tmp_path: Path) -> None:
    rank_file(tmp_path, "a.json", 0)
    rank_file(tmp_path, "copy.json", 0)
    trace = ci.read(tmp_path)
    assert trace.nodes.num_rows == 6
    assert "same-events-twice" in codes(trace)


def test_silent_ranks_that_overlap_are_numbered_by_device(tmp_path: Path) -> None:
    for name, device in (("x.json", 5), ("y.json", 3)):
        write(tmp_path / name, [kernel("k", 1, 9, 0, device=device)], baseTimeNanoseconds=BASE)
    trace = ci.read(tmp_path)
    assert [(r.rank, r.device) for r in trace.meta.ranks] == [(0, 3), (1, 5)]
    assert "ranks-by-order" in codes(trace)


def test_silent_ranks_that_do_not_overlap_are_two_runs(tmp_path: Path) -> None:
    rank_file(tmp_path, "first.json", None)
    rank_file(tmp_path, "second.json", None, start=500)
    with pytest.raises(AmbiguousRunError, match=r"first\.json and .*second\.json do not overlap"):
        ci.read(tmp_path)


def test_what_is_no_profile_is_skipped_with_the_reason(tmp_path: Path, run) -> None:
    rank_file(tmp_path, "a.json", 0)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty.json").touch()
    (tmp_path / ".hidden.json").write_text("{}")
    schema = {"schema": "1.1.0", "pid": 1, "time": "", "start_ts": 1, "nodes": [{}]}
    (tmp_path / "et.json").write_text(json.dumps(schema))
    out = tmp_path / "x.pftrace"
    status, _, told = run("convert", tmp_path, "-o", out)
    assert status == 0
    lines = {line.split()[0]: line for line in told.splitlines() if "skipped" in line}
    assert "no format that is known here" in lines["notes.txt"]
    assert "it is empty" in lines["empty.json"]
    assert "PyTorch host execution trace: it has no times" in lines["et.json"]
    assert "hidden" not in told


def test_outputs_of_an_earlier_run_are_no_sources(tmp_path: Path, run) -> None:
    rank_file(tmp_path, "a.json", 0)
    for _ in range(2):
        status, _, told = run("convert", tmp_path, "-o", f"{tmp_path}/et/", "--job", "j")
        assert status == 0
    assert "made from profiles" in told
    assert ci.read(tmp_path / "et").ranks == [0]


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
    trace = ci.read(demo)
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
    trace = ci.read(demo)
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
    frame = ci.read(demo).to_pandas()
    work = frame[frame["kind"].isin(["kernel", "comm"])]
    assert work["gfxclk_mhz"].notna().all()
    off = [
        abs(row.gfxclk_mhz - clock[row.rank, row.correlation]) / clock[row.rank, row.correlation]
        for row in work.itertuples()
        if (row.rank, row.correlation) in clock
    ]
    assert len(off) == len(work)
    assert np.median(off) < 0.03  # samples every 5 ms of a clock that moves every 1 ms
