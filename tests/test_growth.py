"""Work that is done once for a job is not done again for each rank; `tests/benchmarks/growth.py` has the seconds."""

import json
import sys
from dataclasses import replace

import pytest

import chopper_interop as ci
from chopper_interop import training_steps
from chopper_interop.analyses.methods.communication import summary
from chopper_interop.analyses.methods.fleet import places
from chopper_interop.arrays import intervals
from chopper_interop.clocks import relations
from chopper_interop.converters.chakra import writer
from chopper_interop.converters.chakra.planning import batches
from chopper_interop.converters.perfetto.write import tracks

RANKS = 12


def _job(folder):
    """A folder of a kernel and an all-reduce on each rank, each a host of its own."""
    folder.mkdir()
    for rank in range(RANKS):
        place = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7}
        stated = {"Collective name": "allreduce", "Group size": RANKS, "Process Group Name": "0"}
        on_gpu = {"device": 0, "stream": 7}
        events = [
            place | {"name": "gemm", "ts": 1, "dur": 5 + rank, "args": on_gpu},
            place | {"name": "ncclDevKernel_x", "ts": 30, "dur": 20, "args": on_gpu | stated},
        ]
        world = {"backend": "nccl", "rank": rank, "world_size": RANKS}
        document = {
            "schemaVersion": 1, "distributedInfo": world, "hostname": f"host{rank}",
            "deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"}], "traceEvents": events,
        }  # fmt: skip
        (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps(document))
    return folder


def _counted(monkeypatch, module, name):
    calls = []
    function = getattr(module, name)

    def counted(*args, **named):
        calls.append(args)
        return function(*args, **named)

    monkeypatch.setattr(module, name, counted)
    return calls


def test_ets_look_at_each_clock_once_and_not_once_for_each_rank(tmp_path, monkeypatch):
    trace = ci.read(_job(tmp_path / "job"))
    assert len(trace.meta.clocks) >= RANKS - 1
    calls = _counted(monkeypatch, relations, "rank_of")
    ci.write(trace, tmp_path / "a.et", mode="gpu")
    assert len(calls) <= 3 * RANKS


def test_hosts_of_a_job_are_counted_once_and_not_once_for_each_gpu(tmp_path, monkeypatch):
    trace = ci.read(_job(tmp_path / "job"))
    calls = _counted(monkeypatch, places, "only_host")
    assert len(places.find_places(trace, ())) == RANKS
    assert len(calls) == 1


def test_each_rank_of_an_et_has_lanes_of_its_own_and_looks_up_devices_of_the_job_once(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(batches, "_NODES", 0)  # as of large ranks
    trace = ci.read(_job(tmp_path / "job"))
    assert trace.lanes.num_rows == RANKS
    lookups = _counted(monkeypatch, writer, "DevicesOfRanks")
    plans = _counted(monkeypatch, writer, "build_plan")
    ci.write(trace, tmp_path / "a.et", mode="gpu")
    assert len(lookups) == 1
    assert [rank_trace.lanes.num_rows for rank_trace, *_ in plans] == [1] * RANKS


def _small_ranks(folder, ranks):
    """A folder of a launched kernel and an all-reduce on each rank, for the second of which its host waits."""
    folder.mkdir()
    for rank in range(ranks):
        host, gpu = (
            {"ph": "X", "pid": 1, "tid": 1},
            {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7},
        )
        call, on_gpu = host | {"cat": "cuda_runtime"}, {"device": 0, "stream": 7}
        stated = {"Collective name": "allreduce", "Group size": ranks, "Process Group Name": "0",
                  "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float"}  # fmt: skip
        events = [
            host | {"cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 30},
            call | {"name": "hipLaunchKernel", "ts": 2, "dur": 3, "args": {"correlation": 1}},
            gpu | {"name": "gemm", "ts": 9, "dur": 5 + rank % 3, "args": on_gpu | {"correlation": 1}},
            call | {"name": "hipLaunchKernel", "ts": 6, "dur": 3, "args": {"correlation": 2}},
            gpu | {"name": "ncclDevKernel_x", "ts": 20, "dur": 20, "args": on_gpu | {"correlation": 2} | stated},
            call | {"name": "hipDeviceSynchronize", "ts": 12, "dur": 31, "args": {"correlation": 3}},
        ]  # fmt: skip
        world = {"backend": "nccl", "rank": rank, "world_size": ranks}
        document = {"schemaVersion": 1, "distributedInfo": world, "traceEvents": events}
        (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps(document))
    return folder


def _calls(action):
    """Number of calls of Python and of built-in functions."""
    count = 0

    def counting(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("mode", ["full", "gpu", "kernels"])
def test_ets_of_small_ranks_are_planned_at_once_and_take_some_hundred_calls_each(
    tmp_path, monkeypatch, mode
):
    """Nine thousand where each is planned alone."""
    few, many = 8, 40
    traces = {n: ci.read(_small_ranks(tmp_path / str(n), n)) for n in (few, many)}
    for n, trace in traces.items():  # what is made once for each process is there
        ci.write(trace, tmp_path / f"{n} first.et", mode=mode)
    plans = _counted(monkeypatch, writer, "build_plan")
    calls = {
        n: _calls(lambda n=n, trace=trace: ci.write(trace, tmp_path / f"{n} to.et", mode=mode))
        for n, trace in traces.items()
    }
    assert len(plans) == len(traces)
    assert (calls[many] - calls[few]) / (many - few) < 1_000


def test_names_are_listed_once_and_not_once_for_each_step(tmp_path, monkeypatch):
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 1, "ts": 10 * n, "dur": 9}
        for n in range(50)
    ]  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    trace = ci.read(tmp_path / "a.json")
    trace = replace(trace)  # nothing of it is derived yet
    calls = _counted(monkeypatch, type(trace), "names")
    assert len(training_steps.marked(trace)) == 50
    assert len(calls) <= 3


def test_the_model_of_a_gpu_is_looked_up_once_for_a_host_and_not_once_for_each_gpu(
    tmp_path, monkeypatch
):
    devices = [{"id": n, "name": f"GPU of kind {n}"} for n in range(RANKS)]
    events = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": n, "tid": 7, "ts": 9 * n, "dur": 5,
         "args": {"device": n, "stream": 7}}
        for n in range(RANKS)
    ]  # fmt: skip
    document = {"schemaVersion": 1, "deviceProperties": devices, "traceEvents": events}
    (tmp_path / "a.json").write_text(json.dumps(document))
    calls = _counted(monkeypatch, tracks.TrackAllocator, "_models_of_host")
    ci.write(ci.read(tmp_path / "a.json"), tmp_path / "a.pftrace")
    assert len(calls) <= 2
    text = (tmp_path / "a.pftrace").read_bytes()
    assert all(f"GPU {n} (GPU of kind {n})".encode() in text for n in range(RANKS))


@pytest.mark.parametrize("analysis", ["overlap", "findings", "critical_path"])
def test_work_that_runs_meanwhile_is_looked_up_once_and_not_once_for_each_rank(
    tmp_path, monkeypatch, analysis
):
    trace = ci.read(_job(tmp_path / "job"))
    calls = _counted(monkeypatch, intervals, "_covered_until")
    ci.analyze(trace, analysis)
    assert len(calls) < RANKS


def test_late_ranks_are_counted_once_and_not_once_for_each_step(tmp_path, monkeypatch):
    folder, steps = tmp_path / "job", 40
    folder.mkdir()
    for rank in range(2):
        stated = {"Collective name": "allreduce", "Group size": 2, "Process Group Name": "0"}
        events = []
        for step in range(steps):
            at, key, host = 100 * step, {"correlation": step + 1}, {"ph": "X", "pid": 1, "tid": 1}
            args = {"device": 0, "stream": 7} | key | stated
            events += [
                host | {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 90},
                host | {"cat": "cuda_runtime", "name": "hipLaunchKernel", "ts": at + 5, "dur": 2, "args": key},
                {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_x", "pid": 0, "tid": 7,
                 "ts": at + 20 + rank, "dur": 30 - rank, "args": args},
            ]  # fmt: skip
        world = {"backend": "nccl", "rank": rank, "world_size": 2}
        document = {"schemaVersion": 1, "distributedInfo": world, "traceEvents": events}
        (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps(document))
    trace = ci.read(folder)
    calls = _counted(monkeypatch, summary, "summarize_ranks_by_step")
    result = ci.analyze(trace, "imbalance", steps="each")
    assert len(calls) == 1
    rows = result.to_pandas()
    assert len(rows) == 2 * steps
    assert rows[rows["rank"] == 1]["times_last_certain"].notna().all()
