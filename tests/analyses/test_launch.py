"""Prep, call and launch of each kernel, queues of GPUs, and launch-bound regions."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_once import read_once
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.launch import launch
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.testing import check_analysis

SPLIT = ("prep_ns", "call_ns", "launch_ns")


@pytest.mark.parametrize(
    "sizes",
    slow_from(
        [
            {"ranks": 1, "layers": 1, "steps": 1, "seed": 1, "sequence": 256},
            {"ranks": 2, "layers": 1, "steps": 2, "seed": 3, "sequence": 4096},
            {"ranks": 2, "layers": 2, "steps": 3, "seed": 2, "sequence": 512},
            {"ranks": 3, "layers": 3, "steps": 1, "seed": 4, "sequence": 1024},
        ],
        2,
    ),
)
def test_equals_the_truth_of_sample_jobs(tmp_path: Path, sizes: dict) -> None:
    make_demo(tmp_path / "job", **sizes, telemetry=False, counter_steps=0)
    truth = json.loads((tmp_path / "job" / "truth.json").read_text())["kernels"]
    trace = ci.read(tmp_path / "job" / "kineto")
    work = np.isin(trace.array("kind"), [int(Kind.KERNEL), int(Kind.COMM)])
    at = {
        (int(trace.array("rank")[i]), int(trace.array("correlation")[i])): i
        for i in np.flatnonzero(work)
    }
    annotations = {name: launch(trace).annotations[name].to_pylist() for name in SPLIT}
    compared = 0
    for rank, correlation, *split in zip(
        truth["rank"], truth["correlation"], *(truth[name] for name in SPLIT), strict=True
    ):
        split_of_kernel = [annotations[name][at[rank, correlation]] for name in SPLIT]
        assert split_of_kernel == ([None] * 3 if split[2] < 0 else split)
        compared += split[2] >= 0
    assert compared == launch(trace).summary["kernels"] > 0


JOBS = st.lists(
    # start, duration, time since the call (-1: unknown), stream, step, same call as the kernel before
    st.tuples(
        st.integers(0, 60),
        st.integers(0, 9),
        st.integers(-1, 20),
        st.integers(0, 1),
        st.integers(-1, 1),
        st.booleans(),
    ),
    max_size=12,
)


def job(work: list, shift: int = 0, rank: int = 0) -> ci.Trace:
    builder = TraceBuilder()
    thread = builder.lane(rank, LaneKind.THREAD, 1, "t", -1)
    lanes = [builder.lane(rank, LaneKind.STREAM, s, f"s{s}", 0) for s in (0, 1)]
    calls = []
    for _, (start, _, ahead, _, _, same) in enumerate(work):
        if ahead < 0 or (same and calls and calls[-1] is not None):
            calls.append(calls[-1] if same and calls else None)
            continue
        ts = np.array([start - ahead + shift], np.int64)
        calls.append(
            builder.nodes(kind=int(Kind.RUNTIME), name="hipLaunchKernel", rank=rank, lane=thread,
                          ts=ts, dur=1, iteration=np.array([-1], np.int32))
        )  # fmt: skip
    for (start, dur, _, stream, step, _), call in zip(work, calls, strict=True):
        node = builder.nodes(
            kind=int(Kind.KERNEL), name=f"k{stream}", rank=rank, lane=lanes[stream],
            ts=np.array([start + shift], np.int64), dur=dur, iteration=np.array([step], np.int32),
        )  # fmt: skip
        if call is not None:
            builder.edges(np.array([call]), np.array([node]), EdgeKind.LAUNCH)
    return builder.finish()


@given(JOBS)
def test_against_plain_loops(work: list) -> None:
    trace = job(work)
    annotations = {n: c.to_pylist() for n, c in launch(trace).annotations.items()}
    kernels = [i for i in range(trace.nodes.num_rows) if trace.array("kind")[i] == Kind.KERNEL]
    ts = trace.array("ts").tolist()
    end = (trace.array("ts") + trace.array("dur")).tolist()
    step = trace.nodes["iteration"].to_pylist() if work else []
    ask = {i: min(ts[c], ts[i]) if (c := trace.launch[i]) >= 0 else ts[i] for i in kernels}
    runs, before = defaultdict(int), None
    for k in kernels:
        if step[k] != before:
            runs[k], before = 1, step[k]
    for n, k in enumerate(kernels):
        if trace.launch[k] < 0:
            assert [annotations[name][k] for name in (*SPLIT, "queue_depth")] == [None] * 4
            continue
        if step[k] < 0:  # of no step: since the last kernel that is of one
            since = max(j for j in kernels[: n + 1] if runs[j])
            earlier = [j for j in kernels[:n] if j >= since]
        else:
            earlier = [j for j in kernels[:n] if step[j] == step[k]]
        if not earlier:
            expected = [0, ts[k] - ask[k], 0]
        else:
            reached = max(end[j] for j in earlier)
            gap = max(0, ts[k] - reached)
            expected = [max(0, ask[k] - reached), min(ts[k] - ask[k], gap), gap]
            assert gap == 0 or expected[0] + expected[1] == gap
        assert [annotations[name][k] for name in SPLIT] == expected
        depth = sum(ask[j] < ask[k] < end[j] for j in kernels)
        assert annotations["queue_depth"][k] == depth
    _check_queue(launch(trace).summary, [(ask[k], end[k]) for k in kernels], kernels, ts, end)


def _check_queue(summary: dict, lives: list, kernels: list, ts: list, end: list) -> None:
    if not kernels:
        assert summary["queues"] == []
        return
    first, last = min(ts[k] for k in kernels), max(end[k] for k in kernels)
    depth = [sum(a <= t < e for a, e in lives) for t in range(first, last)]
    (queue,) = summary["queues"]
    assert queue["span_ns"] == last - first
    assert queue["queued_ns"] == sum(depth)
    assert queue["max_queued"] == max(depth, default=0)
    assert queue["empty_ns"] == depth.count(0)


@given(JOBS, st.integers(0, 10**15))
def test_neither_the_origin_nor_the_number_of_a_rank_matters(work: list, shift: int) -> None:
    one, other = launch(job(work)), launch(job(work, shift, rank=5))
    assert one.annotations == other.annotations
    if work:
        assert one.rows.drop_columns("rank").equals(other.rows.drop_columns("rank"))


def test_a_median_is_one_of_the_values() -> None:
    (row,) = launch(job([(10, 5, 5, 0, 0, False), (20, 5, 8, 0, 0, False)])).rows.to_pylist()
    assert (row["call_median_ns"], row["launch_median_ns"]) == (5, 0)


def test_a_graph_is_one_launch_of_many_kernels() -> None:
    # a call at 10; its three kernels run at 20, 25 and 32
    work = [(20, 4, 10, 0, 0, False), (25, 5, 0, 0, 0, True), (32, 8, 0, 0, 0, True)]
    result = launch(job(work))
    (row,) = result.rows.to_pylist()
    assert (row["kernels"], row["calls"], row["unlinked"]) == (3, 1, 0)
    assert (row["prep_ns"], row["call_ns"], row["launch_ns"]) == (0, 10 + 1 + 2, 0 + 1 + 2)
    assert result.summary["launch_bound_kernels"] == 1  # the others do not wait for a launch


def test_regions_are_runs_of_kernels_requested_with_an_empty_queue() -> None:
    work = [
        (10, 10, 5, 0, 0, False),  # 10..20, asked for at 5
        (30, 10, 5, 0, 0, False),  # asked for at 25, when the one before had ended
        (40, 10, 8, 0, 0, False),  # asked for at 32, while the one before ran
        (60, 5, 4, 0, 0, False),
    ]
    regions = launch(job(work)).summary["regions"]
    keys = ("start_ns", "end_ns", "kernels", "idle_ns")
    # times count from the first call, at 5
    assert [tuple(r[k] for k in keys) for r in regions] == [(0, 35, 2, 10), (45, 60, 1, 10)]


def test_the_plot_of_chopper_can_be_made(demo: Path) -> None:
    trace = read_once(demo / "kineto")
    result = launch(trace, by="rank,iteration,operation", compat="chopper")
    frame = result.to_pandas()
    plot = frame.groupby("operation")[["prep_ns", "call_ns"]].median()
    single = launch(trace, by="kernel,operation,rank,iteration,layer").to_pandas()
    again = single.groupby(["rank", "iteration", "operation"])[["prep_ns", "call_ns"]].sum()
    assert len(plot) > 1
    assert again.groupby("operation").median().equals(plot)


def test_steps_and_ranks_are_selected(demo: Path) -> None:
    trace = read_once(demo / "kineto")
    complete = launch(trace).to_pandas()
    each = launch(trace, steps="each")
    assert each.rows.column_names[:2] == ["rank", "iteration"]
    summed = each.to_pandas().groupby("rank")[["kernels", *SPLIT]].sum().reset_index()
    assert summed.equals(complete[["rank", "kernels", *SPLIT]])
    assert launch(trace, ranks="1").rows.equals(launch(trace).rows.slice(1, 1))
    with pytest.raises(UsageError, match="work"):
        launch(trace, work="everything")
    with pytest.raises(UsageError, match="compat"):
        launch(trace, compat="hta")


def test_other_work_counts_if_requested(demo: Path) -> None:
    trace = read_once(demo / "kineto")
    kind = trace.array("kind")
    counted = {w: launch(trace, work=w).summary["kernels"] for w in ("kernels", "all")}
    assert counted["kernels"] == np.count_nonzero(kind == Kind.KERNEL)
    every = (Kind.KERNEL, Kind.COMM, Kind.MEMCPY, Kind.MEMSET)
    assert counted["all"] == np.isin(kind, [int(k) for k in every]).sum()


def test_graphs_of_a_real_file(shared: Path) -> None:
    trace = read_once(shared / "pytorch/hip_graph_mi300x/vllm_graph_execution.json.gz")
    (row,) = launch(trace).rows.to_pylist()
    assert row["kernels"] - row["unlinked"] > 50 * row["calls"] > 0


@pytest.mark.parametrize(
    "name",
    [
        "mi300x/resnet_act_checkpoint.json.gz",
        "mi210/gpu_only_trace.json.gz",
        "torchrec_4rank_v100",
        "dlrm_8rank_v100/kineto",
        "cuda_sync_a100/simple_add.json.gz",
    ],
)
def test_prep_and_call_make_launch_in_real_files(shared: Path, name: str) -> None:
    trace = read_once(shared / "pytorch" / name)
    result = launch(trace)
    prep, call, gap = (result.annotations[n].to_numpy(zero_copy_only=False) for n in SPLIT)
    some = gap > 0
    assert (prep + call == gap)[some].all()
    linked = np.count_nonzero(~np.isnan(np.asarray(gap, np.float64)))
    assert linked == result.summary["kernels"] - result.summary["unlinked"]
    if "gpu_only" in name:  # of one stream: nothing is queued as long as the host is late
        assert result.summary["queues"][0]["empty_ns"] == result.summary["prep_ns"]


def test_a_trace_without_gpu_work_has_no_rows() -> None:
    result = launch(job([]))
    assert result.rows.num_rows == 0
    assert result.summary["kernels"] == 0
    assert "no rows" in result.notes


def test_analysis_contract(demo: Path) -> None:
    check_analysis(launch, read_once(demo / "kineto"))
