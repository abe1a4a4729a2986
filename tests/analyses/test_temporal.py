"""Busy, compute, communication, overlap and idle, to the nanosecond."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chopper_interop as ci
from chopper_interop import intervals
from chopper_interop.build import TraceBuilder
from chopper_interop.schemas.kinds import GPU_WORK, Kind, LaneKind
from chopper_interop.testing import check_analysis

WORK = st.lists(
    st.tuples(st.sampled_from(GPU_WORK), st.integers(0, 40), st.integers(0, 15)), max_size=12
)


def gpu(work: list[tuple[Kind, int, int]]) -> ci.Trace:
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 0, "s", 0)
    builder.nodes(
        kind=np.array([int(k) for k, _, _ in work], np.uint8),
        name="k",
        rank=0,
        lane=lane,
        ts=np.array([t for _, t, _ in work], np.int64),
        dur=np.array([d for _, _, d in work], np.int64),
    )
    return builder.finish()


@given(WORK)
def test_against_every_single_nanosecond(work: list) -> None:
    result = ci.analyze(gpu(work), "temporal")
    if not work:
        assert result.rows.num_rows == 0
        return
    (row,) = result.rows.to_pylist()
    ran = {k: {t + i for kind, t, d in work if kind is k for i in range(d)} for k in GPU_WORK}
    compute = ran[Kind.KERNEL] | ran[Kind.MEMSET]
    busy = set().union(*ran.values())
    span = max(t + d for _, t, d in work) - min(t for _, t, _ in work)
    assert row == {
        "rank": 0,
        "span_ns": span,
        "busy_ns": len(busy),
        "compute_ns": len(compute),
        "comm_ns": len(ran[Kind.COMM]),
        "memcpy_ns": len(ran[Kind.MEMCPY]),
        "overlap_ns": len(compute & ran[Kind.COMM]),
        "exposed_comm_ns": len(ran[Kind.COMM] - compute),
        "idle_ns": span - len(busy),
    }


@given(st.lists(st.tuples(st.integers(-30, 30), st.integers(0, 9)), max_size=9))
def test_unions(spans: list) -> None:
    start = np.array([s for s, _ in spans], np.int64)
    end = start + np.array([d for _, d in spans], np.int64)
    covered = intervals.union(start, end)
    points = {p for s, d in spans for p in range(s, s + d)}
    assert intervals.length(covered) == len(points)
    assert (covered[1] > covered[0]).all()
    assert (covered[0][1:] > covered[1][:-1]).all()


PEERS = {
    "param_dlrm_8rank": "pytorch/dlrm_8rank_v100/kineto",
    "tl_mi300_resnet_ckpt": "pytorch/mi300x/resnet_act_checkpoint.json.gz",
    "tl_mi300_qwen": "pytorch/mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "tl_h100_qwen": "pytorch/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "tl_h100_bert": "pytorch/h100/gaunernst_bert-small-uncased__1016001.json.gz",
    "tl_mi210_gpuonly": "pytorch/mi210/gpu_only_trace.json.gz",
    "hta_nccl_data": "pytorch/misc/nccl_data.json.gz",
    "hta_simple_add": "pytorch/cuda_sync_a100/simple_add.json.gz",
    "hta_ns_resolution": "pytorch/misc/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "hta_amd_mi250": "pytorch/mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "tl_vllm_decode": "pytorch/hip_graph_mi300x/vllm_graph_execution.json.gz",
    "param_linear": "pytorch/rtx2080ti_pairs/linear_kineto.json.gz",
}


@pytest.mark.parametrize("name", PEERS)
def test_agrees_with_independent_figures(shared: Path, name: str) -> None:
    document = json.loads((shared / "peer_figures" / f"{name}.json").read_text())
    rows = ci.analyze(ci.read(shared / PEERS[name]), "temporal").rows.to_pylist()
    told = document["independent_exact_ns"]
    assert len(rows) == len(told)
    for row, figures in zip(rows, told, strict=True):
        assert {ours: row[ours] for ours in SAME} == {o: figures[t] for o, t in SAME.items()}


SAME = {
    "span_ns": "span",
    "busy_ns": "busy",
    "compute_ns": "compute_union",
    "comm_ns": "comm_union",
    "memcpy_ns": "memcpy_union",
    "overlap_ns": "comm_comp_overlap",
    "idle_ns": "idle",
    "exposed_comm_ns": "exposed_comm",
}


def test_the_contract_of_analyses(demo: Path) -> None:
    from chopper_interop.analyses.temporal import temporal

    check_analysis(temporal, ci.read(demo))


def test_the_sample_job_has_the_exposed_communication_that_it_was_built_with(demo: Path) -> None:
    truth = json.loads((demo / "truth.json").read_text())["steps"]
    trace = ci.read(demo / "kineto")
    kind, ts, dur = (trace.array(c) for c in ("kind", "ts", "dur"))
    ts = ts + trace.meta.origin_ns
    rank = trace.array("rank")
    for r, start, end, exposed, overlap in zip(
        *(truth[k] for k in ("rank", "start_ns", "end_ns", "exposed_communication_ns",
                             "overlap_ns")), strict=True,
    ):  # fmt: skip
        inside = (rank == r) & (ts >= start) & (ts < end)
        compute = inside & np.isin(kind, [int(Kind.KERNEL), int(Kind.MEMSET)])
        comm = inside & (kind == Kind.COMM)
        unions = [intervals.union(ts[w], (ts + dur)[w]) for w in (compute, comm)]
        assert intervals.common(*unions) == overlap
        assert intervals.length(unions[1]) - intervals.common(*unions) == exposed
