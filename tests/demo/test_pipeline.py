"""A pipeline: its truth against what the files say, by brute force."""

from __future__ import annotations

import collections
import itertools
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow import slow_from

from chopper_interop.demo import make_demo
from chopper_interop.demo.folder import simulate_job
from chopper_interop.demo.parameters import DemoParameters
from chopper_interop.demo.pipeline_step import one_forward_one_backward
from chopper_interop.demo.truth import truth
from chopper_interop.errors import UsageError

BASE = {"steps": 2, "sequence": 256, "telemetry": False, "counter_steps": 0}
JOBS = {
    "three stages": {"ranks": 3, "layers": 4, "pipeline": 3, "microbatches": 4, "straggler": 1},
    "replicas": {"ranks": 4, "layers": 2, "pipeline": 2, "microbatches": 3, "straggler": -1},
    "few microbatches": {
        "ranks": 4, "layers": 4, "pipeline": 4, "microbatches": 2, "event_records": False,
    },
}  # fmt: skip
PASS = re.compile(r"PP:(\d+)([FB])(\d+)")


@pytest.fixture(scope="module", params=slow_from([*JOBS], 1))
def job(request, tmp_path_factory, read_demo):
    path = tmp_path_factory.mktemp("pipeline") / "job"
    return read_demo(make_demo(path, **BASE, **JOBS[request.param]))


def awaited(around, action, last, came, *, waits):
    """Purpose of a wait of a stream: communication waits for what is computed, or the reverse."""
    if not waits:
        return last.get(0)
    if action:
        return came.pop(action[-len("F0") :])
    return last[4 if any(e["name"].endswith("wait_tensor") for e in around) else 5]


class Work:
    """GPU operations of a rank by correlation, and what each waits for, by the calls' places."""

    def __init__(self, rank):
        self.rank = rank
        gpu = {e["args"]["correlation"]: e for e in rank.of("kernel", "gpu_memcpy", "gpu_memset")}
        self.gpu = {}
        self.call, self.before, self.event, self.described, self.action = {}, {}, {}, {}, {}
        last, pending, came = {}, {}, {}
        ranges = [e for e in rank.host if e["name"].startswith("PP:")]
        for event in rank.host:
            if event["cat"] != "cuda_runtime":
                continue
            around = rank.around[id(event)]
            described = [e["args"] for e in around if e["name"] == "record_param_comms"]
            while ranges and ranges[0]["end"] < event["start"]:  # on whatever thread
                ranges.pop(0)
            within = ranges and ranges[0]["start"] <= event["start"]
            action = ranges[0]["name"] if within else ""
            correlation = event["args"]["correlation"]
            if event["name"] == "hipStreamWaitEvent":
                waits = described[-1]["Collective name"] == "wait"
                pending[0 if waits else "comm"] = awaited(around, action, last, came, waits=waits)
            if correlation not in gpu:
                continue
            kernel = gpu[correlation]
            stream = kernel["args"]["stream"]
            self.gpu[correlation], self.call[correlation] = kernel, event
            self.before[correlation] = last.get(stream)
            self.event[correlation] = pending.pop("comm" if stream else 0, None)
            self.described[correlation] = described[-1] if described and stream else None
            self.action[correlation] = action
            last[stream] = correlation
            if "RECV" in action:
                came[action[-len("F0") :]] = correlation

    def cause(self, correlation, constants):
        """Start by what it waits for, and which it was: stream, event or launch."""
        copies = self.gpu[correlation]["cat"] == "gpu_memcpy"
        call = self.call[correlation]["start" if copies else "end"]
        options = [("launch", correlation, call + constants["launch_latency_ns"])]
        if (op := self.event[correlation]) is not None:
            options.append(("event", op, self.gpu[op]["end"] + constants["event_latency_ns"]))
        if (op := self.before[correlation]) is not None:
            options.append(("stream", op, self.gpu[op]["end"]))
        return max(options, key=lambda o: (o[2], options.index(o)))


@pytest.fixture(scope="module")
def works(job):
    return [Work(rank) for rank in job.ranks]


def length(intervals):
    total, reach = 0, None
    for start, end in sorted(intervals):
        if reach is None or start > reach:
            total, reach = total + max(0, end - start), end
        elif end > reach:
            total, reach = total + end - reach, end
    return total


def test_everything_starts_when_what_it_waits_for_is_done(job, works):
    for work in works:
        for correlation, event in work.gpu.items():
            assert work.cause(correlation, job.truth["constants"])[2] == event["start"]


def test_stages_run_one_forward_one_backward(job, works):
    p = job.truth["parameters"]
    copies = p["ranks"] // p["pipeline"]
    for rank, work in enumerate(works):
        order = list(dict.fromkeys(a for a in work.action.values() if PASS.fullmatch(a)))
        stage = rank // copies
        actual = [(m[2], int(m[3])) for m in map(PASS.fullmatch, order)]
        assert actual == list(one_forward_one_backward(stage, p["pipeline"], p["microbatches"]))
        assert {PASS.fullmatch(a)[1] for a in order} == {str(stage)}


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_order_of_passes(ahead):
    passes = list(one_forward_one_backward(3 - ahead, 4, 6))
    assert sorted(passes) == [(part, i) for part in "BF" for i in range(6)]
    assert [part for part, _ in passes] == ["F"] * ahead + ["F", "B"] * (6 - ahead) + ["B"] * ahead


def test_sends_meet_their_receives(job, works):
    rows = job.rows("collectives")
    met = collections.Counter()
    for row in rows:
        members = [works[r].gpu[c] for r, c in zip(row["ranks"], row["correlations"], strict=True)]
        described = [
            works[r].described[c] for r, c in zip(row["ranks"], row["correlations"], strict=True)
        ]
        starts = [m["start"] for m in members]
        assert row["starts_ns"] == starts
        assert row["waits_ns"] == [max(starts) - s for s in starts]
        assert {m["end"] for m in members} == {row["end_ns"]}
        assert row["max_start_ns"] + row["transfer_ns"] == row["end_ns"]
        names = [t["Collective name"] for t in described]
        if row["name"] == "send":
            sender, receiver = row["ranks"]
            assert names == ["send", "recv"]
            assert (described[0]["Dst Rank"], described[1]["Src Rank"]) == (receiver, sender)
            assert described[0]["In msg nelems"] * 2 == row["bytes"]
            actions = [
                works[r].action[c] for r, c in zip(row["ranks"], row["correlations"], strict=True)
            ]
            assert actions[0].split("SEND")[1] == actions[1].split("RECV")[1]
        else:
            assert names == ["allreduce"] * len(members)
            group = json.loads(described[0]["Process Group Ranks"])
            assert group == row["ranks"]
        met.update(zip(row["ranks"], row["correlations"], strict=True))
    every = {
        (r, c) for r, w in enumerate(works) for c, described in w.described.items() if described
    }
    assert set(met) == every
    assert set(met.values()) == {1}


def within(intervals, start, end):
    """Time that intervals cover between two instants."""
    return length([(max(s, start), min(e, end)) for s, e in intervals if s < end and e > start])


def intervals_of(job, rank, work):
    """Intervals in which a rank computes, works at all, exchanges, receives and waits to receive."""
    result = collections.defaultdict(list)
    for correlation, event in work.gpu.items():
        interval = (event["start"], event["end"])
        described = work.described[correlation]
        name = described["Collective name"] if described else ""
        if name in ("send", "recv"):
            result["p2p"].append(interval)
            result[name].append(interval)
        elif event["cat"] != "gpu_memcpy":
            result["work"].append(interval)
            result["collective" if name else "compute"].append(interval)
    result["wait"] = [
        (row["starts_ns"][1], row["max_start_ns"])
        for row in job.rows("collectives")
        if row["name"] == "send" and row["ranks"][1] == rank
    ]
    return result


def passes(job, work, step):
    """First start and last end of the passes of a step."""
    result = [
        event
        for correlation, event in work.gpu.items()
        if PASS.fullmatch(work.action[correlation])
        and job.ranks[work.rank.rank].step_of(work.call[correlation]) == step
    ]
    return min(e["start"] for e in result), max(e["end"] for e in result)


def test_bubbles(job, works):
    p, columns = job.truth["parameters"], job.truth["pipeline"]["steps"]
    copies = p["ranks"] // p["pipeline"]
    rows = [dict(zip(columns, r, strict=True)) for r in zip(*columns.values(), strict=True)]
    assert len(rows) == p["ranks"] * p["steps"]
    for row in rows:
        rank = row["rank"]
        along = range(rank % copies, p["ranks"], copies)
        extents = {r: passes(job, works[r], row["step"]) for r in along}
        start, end = min(e[0] for e in extents.values()), max(e[1] for e in extents.values())
        first, last = extents[rank]
        actual = intervals_of(job, rank, works[rank])
        work = actual["work"]
        busy = within(work, start, end)
        assert row == {
            "rank": rank,
            "step": row["step"],
            "stage": rank // copies,
            "start_ns": start,
            "end_ns": end,
            "span_ns": end - start,
            "compute_ns": within(actual["compute"], start, end),
            "p2p_ns": within(actual["p2p"], start, end),
            "bubble_ns": end - start - busy,
            "warmup_ns": first - start - within(work, start, first),
            "steady_ns": last - first - within(work, first, last),
            "cooldown_ns": end - last - within(work, last, end),
            "recv_ns": within([*work, *actual["recv"]], start, end) - busy,
            "recv_wait_ns": within([*work, *actual["wait"]], start, end) - busy,
        }


def test_path_is_what_a_walk_over_the_files_finds(job, works):
    constants = job.truth["constants"]
    path = job.truth["critical_path"]["window"]
    assert path["ts_ns"][1:] == [
        t + d for t, d in zip(path["ts_ns"][:-1], path["dur_ns"], strict=False)
    ]
    rows = zip(*(path[c] for c in ("kind", "rank", "correlation", "ts_ns", "dur_ns")), strict=True)
    kinds = ("kernel", "collective", "memcpy", "memset")
    assert [row[1:] for row in rows if row[0] in kinds] == list(walk(job, works, constants))[::-1]


def walk(job, works, constants):
    """GPU pieces of the path, last first."""
    met = {}
    for row in job.rows("collectives"):
        members = list(zip(row["starts_ns"], row["ranks"], row["correlations"], strict=True))
        last = max(members, key=lambda m: (m[0], -m[1]))
        met.update({(r, c): (last[1], last[2]) for _, r, c in members})
    ends = {
        (r, e["end"]): c
        for r, w in enumerate(works)
        for c, e in w.gpu.items()
        if e["args"]["stream"] == 0
    }
    rank = max(range(len(works)), key=lambda r: max(s["end"] for s in job.ranks[r].steps.values()))
    now = max(s["end"] for s in job.ranks[rank].steps.values())
    syncs = ("hipMemcpyWithStream", "hipStreamSynchronize")
    while True:
        waited = [
            e["end"]
            for e in job.ranks[rank].of("cuda_runtime")
            if e["name"] in syncs
            and e["end"] <= now
            and (rank, e["end"] - constants["sync_latency_ns"]) in ends
        ]
        if not waited:
            return
        correlation = ends[rank, max(waited) - constants["sync_latency_ns"]]
        while True:
            rank, correlation = met.get((rank, correlation), (rank, correlation))
            event = works[rank].gpu[correlation]
            yield rank, correlation, event["start"], event["end"] - event["start"]
            kind, source, now = works[rank].cause(correlation, constants)
            if kind == "launch":
                now -= constants["launch_latency_ns"]
                break
            correlation = source


def test_groups(job):
    p = job.truth["parameters"]
    copies = p["ranks"] // p["pipeline"]
    for rank in job.ranks:
        groups = rank.content["distributedInfo"]["pg_config"]
        described = {g["pg_desc"]: g["ranks"] for g in groups}
        assert described["default_pg"] == list(range(p["ranks"]))
        assert described["mesh_pp"] == list(range(rank.rank % copies, p["ranks"], copies))
        assert len(described.get("mesh_dp", [])) == (copies if copies > 1 else 0)


@pytest.mark.slow
@settings(max_examples=5, suppress_health_check=list(HealthCheck))
@given(
    stages=st.integers(2, 8),
    copies=st.integers(1, 4),
    microbatches=st.integers(1, 8),
    more=st.integers(0, 3),
    seed=st.integers(0, 2**31 - 1),
    sequence=st.sampled_from([256, 2048]),
)
def test_whatever_the_parameters(stages, copies, microbatches, more, seed, sequence):
    copies = max(1, min(copies, 8 // stages))
    chosen = {
        "ranks": stages * copies,
        "layers": stages + more,
        "pipeline": stages,
        "microbatches": microbatches,
        "seed": seed,
        "sequence": sequence,
    }
    actual = truth(simulate_job(DemoParameters(steps=2, **chosen)))
    for path in (actual["critical_path"]["window"], *actual["critical_path"]["steps"].values()):
        assert sum(path["dur_ns"]) == path["end_ns"] - path["start_ns"]
    sends = 2 * (stages - 1) * microbatches * copies
    assert actual["collectives"]["name"].count("send") == 2 * sends
    steps = actual["pipeline"]["steps"]
    parts = ("bubble", "warmup", "steady", "cooldown", "recv", "recv_wait", "span")
    for bubble, *split, recv, wait, span in zip(*(steps[f"{c}_ns"] for c in parts), strict=True):
        assert bubble == sum(split)
        assert 0 <= wait <= recv <= bubble < span


@pytest.mark.parametrize(
    "wrong",
    [{"pipeline": 1}, {"pipeline": 3}, {"pipeline": 4, "layers": 3}, {"microbatches": 0}],
)
def test_parameters_that_make_no_pipeline(tmp_path, wrong):
    with pytest.raises(UsageError, match=r"pipeline|microbatches"):
        make_demo(tmp_path / "job", **wrong)


def test_the_other_files_of_a_pipeline(tmp_path, read_demo):
    path = make_demo(
        tmp_path / "job", ranks=2, layers=2, steps=1, pipeline=2, microbatches=2, sequence=256,
        recorder_hz=100,
    )  # fmt: skip
    demo = read_demo(path)
    for rank in range(2):
        counted = [r["Kernel_Name"] for r in demo.counters(1, rank, "kernel_trace")]
        compute = [e["name"] for e in demo.ranks[rank].of("kernel") if "nccl" not in e["name"]]
        assert [n for n in counted if not n.startswith("__amd")] == compute
    assert "pipeline of 2 stages" in (path / "README.txt").read_text()
    names = collections.Counter(itertools.chain(*(r.steps for r in demo.ranks)))
    assert names == {10: 2}
