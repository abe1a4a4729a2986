"""Work that is done once for a job is not done again for each rank; `tests/benchmarks/growth.py` has the seconds."""

import json

import chopper_interop as ci
from chopper_interop.analyses.methods.fleet import places
from chopper_interop.clocks import relations

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
    monkeypatch.setattr(module, name, lambda *args: calls.append(args) or function(*args))
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
