"""The three taxes: every single nanosecond, and the sample job."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import step_truth
from hypothesis import given
from hypothesis import strategies as st
from read_once import read_once
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.critical_path import critical_path
from chopper_interop.analyses.methods.activity import round_trips
from chopper_interop.analyses.taxes import taxes
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.schemas.kinds import GPU_WORK, Collective, EdgeKind, Kind, LaneKind
from chopper_interop.testing import check_analysis

if TYPE_CHECKING:
    from pathlib import Path

WORK = st.lists(
    st.tuples(st.sampled_from(GPU_WORK), st.integers(0, 1), st.integers(0, 30), st.integers(0, 12)),
    max_size=10,
)
WAITS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 35), st.integers(0, 9)), max_size=4)


def job(work: list, waits: list) -> ci.Trace:
    """GPU work (kind, rank, start, duration), and calls that wait for some (rank, start, duration).

    The k-th collectives of both ranks are one. Kernels are launched when they start.
    """
    builder, count = TraceBuilder(), Counter()
    launched = [(rank, ts) for kind, rank, ts, _ in work if kind is Kind.KERNEL]
    for kind, rank, ts, dur in sorted(work, key=lambda w: w[2]):
        lane = builder.lane(rank, LaneKind.STREAM, 7, "stream 7", 0)
        attributes: dict[str, Any] = {}
        if kind is Kind.COMM:
            attributes = {"instance": count[rank], "collective": Collective.ALL_REDUCE}
            count[rank] += 1
        builder.nodes(kind=int(kind), name="k", rank=rank, lane=lane,
                      ts=np.array([ts], np.int64), dur=dur, **attributes)  # fmt: skip
    for rank, ts, dur in waits:
        lane = builder.lane(rank, LaneKind.THREAD, 1, "thread 1", -1)
        builder.nodes(kind=int(Kind.RUNTIME), name="hipDeviceSynchronize", rank=rank, lane=lane,
                      ts=np.array([ts], np.int64), dur=dur)  # fmt: skip
    for rank, ts in launched:
        lane = builder.lane(rank, LaneKind.THREAD, 2, "thread 2", -1)
        builder.nodes(kind=int(Kind.RUNTIME), name="hipLaunchKernel", rank=rank, lane=lane,
                      ts=np.array([ts], np.int64), dur=0)  # fmt: skip
    trace = builder.finish()
    names = np.array([*trace.names(), ""])[trace.array("name")]
    call = np.flatnonzero(names == "hipDeviceSynchronize")
    trace = trace.with_edges(call, call, EdgeKind.SYNC) if len(call) else trace
    launch = np.flatnonzero(names == "hipLaunchKernel")
    kernel = np.flatnonzero(trace.array("kind") == Kind.KERNEL)
    return trace.with_edges(launch, kernel, EdgeKind.LAUNCH) if len(launch) else trace


def cells(spans: list[tuple[int, int]]) -> set[int]:
    return {t for start, dur in spans for t in range(start, start + dur)}


@given(WORK, WAITS)
def test_against_every_single_nanosecond(work: list, waits: list) -> None:
    rows = {r["rank"]: r for r in taxes(job(work, waits)).rows.to_pylist()}
    assert set(rows) == {rank for _, rank, _, _ in work}
    by_rank = {rank: sorted([w for w in work if w[1] == rank], key=lambda w: w[2]) for rank in rows}
    comm = {rank: [w for w in of_rank if w[0] is Kind.COMM] for rank, of_rank in by_rank.items()}
    for rank, row in rows.items():
        of_rank, of_peer = by_rank[rank], comm.get(1 - rank, [])
        start = min(ts for _, _, ts, _ in of_rank)
        end = max(ts + dur for _, _, ts, dur in of_rank)
        ran = {k: cells([(ts, dur) for kind, _, ts, dur in of_rank if kind is k]) for k in GPU_WORK}
        busy = set().union(*ran.values())
        waited = set()
        for (_, _, ts, dur), (_, _, peer_start, _) in zip(comm[rank], of_peer, strict=False):
            waited |= {t for t in range(ts, ts + dur) if t < peer_start}
        calls = [(t, d) for r, t, d in waits if r == rank]
        sync = (cells(calls) & set(range(start, end))) - busy
        kernels = ran[Kind.KERNEL]
        between = set(range(min(kernels), max(kernels) + 1)) if kernels else set()
        is_known = not comm[rank] or bool(of_peer)
        exposed = waited - kernels - ran[Kind.MEMSET]
        idle = between - busy
        launched = any(kind is Kind.KERNEL for kind, *_ in of_rank)
        called = launched or bool(calls)
        taxed = is_known and launched
        expected = {
            "window_ns": end - start,
            "wait_ns": len(waited) if is_known else None,
            "exposed_wait_ns": len(exposed) if is_known else None,
            "sync_ns": len(sync) if called else None,
            "bulk_sync_ns": len(waited | sync) if is_known and called else None,
            "gap_ns": len(between - kernels),
            "launch_ns": len(idle) if launched else None,
            "overlap_ns": len(idle & sync) if launched else None,
            "taxed_ns": len(waited | sync | idle) if taxed else None,
        }
        assert {name: row[name] for name in expected} == expected


SETS = [
    {"ranks": 3, "layers": 2, "steps": 2, "seed": 4},
    {"ranks": 2, "layers": 1, "steps": 3, "seed": 8, "straggler": 1, "straggler_slowdown": 1.15},
    {"ranks": 4, "layers": 4, "steps": 1, "seed": 2, "pipeline": 2, "microbatches": 3},
]


@pytest.mark.parametrize("parameters", slow_from(SETS, 1))
def test_equals_the_truth_of_sample_jobs(parameters: dict[str, Any], tmp_path: Path) -> None:
    folder = make_demo(
        tmp_path / "job", sequence=512, telemetry=False, counter_steps=0, **parameters
    )
    truth = json.loads((folder / "truth.json").read_text())
    trace = ci.read(folder / "kineto")
    result = taxes(trace, steps="each")
    rows = {(r["rank"], r["iteration"]): r for r in result.rows.to_pylist()}
    launch, wait = Counter(), Counter()
    kernels = truth["kernels"]
    for rank, step, ns in zip(kernels["rank"], kernels["step"], kernels["launch_ns"], strict=True):
        launch[rank, step] += max(ns, 0)
    collectives = truth["collectives"]
    ranks = collectives.get("ranks", [list(range(parameters["ranks"]))] * len(collectives["step"]))
    for step, of, waits in zip(collectives["step"], ranks, collectives["waits_ns"], strict=True):
        wait.update({(rank, step): ns for rank, ns in zip(of, waits, strict=True)})
    assert {key: row["gap_ns"] for key, row in rows.items()} == launch
    assert {key: row["wait_ns"] for key, row in rows.items()} == {k: wait[k] for k in rows}
    path = critical_path(trace, steps="each", by="class,rank").rows.to_pylist()
    expected = {(p["rank"], p["iteration"]): p["dur_ns"] for p in path if p["class"] == "launch"}
    critical = {key: row["critical_launch_ns"] for key, row in rows.items()}
    assert {key: ns for key, ns in critical.items() if ns} == expected
    all_steps = [row["critical_launch_ns"] for row in taxes(trace).rows.to_pylist()]
    assert sum(all_steps) == critical_path(trace).summary["launch_ns"]
    steps = step_truth.following(truth["steps"])
    for rank, step, ns in zip(steps["rank"], steps["step"], steps["duration_ns"], strict=True):
        assert rows[rank, step]["window_ns"] == ns


def test_launches_that_nothing_waits_for_are_not_critical() -> None:
    trace = job([(Kind.KERNEL, 0, 4, 1), (Kind.KERNEL, 1, 4, 9)], [(0, 1, 2)])
    trace = replace(trace, edges=trace.edges.slice(0, 0))
    kernel = np.flatnonzero((trace.array("kind") == Kind.KERNEL) & (trace.array("rank") == 0))
    names = np.array(trace.names())[trace.array("name")]
    call = np.flatnonzero(names == "hipDeviceSynchronize")
    launched = trace.with_edges(call, kernel, EdgeKind.LAUNCH)
    assert taxes(launched).rows["critical_launch_ns"].to_pylist() == [0, 0]
    assert taxes(trace).rows["critical_launch_ns"].to_pylist() == [None, None]


def test_analysis_contract(demo: Path) -> None:
    check_analysis(taxes, read_once(demo / "kineto"))


def test_round_trips_through_memory_need_counters(demo: Path) -> None:
    trace = read_once(demo)
    trips = round_trips.find_round_trips(trace)
    rows = taxes(trace).rows.to_pylist()
    assert sum(r["locality_ns"] for r in rows) == trips.ns[trips.timed].sum() > 0
    assert {r["locality_ns"] for r in taxes(read_once(demo / "kineto")).rows.to_pylist()} == {None}


def test_without_gpu_work_there_are_no_rows() -> None:
    result = taxes(job([], [(0, 3, 4)]))
    assert result.rows.num_rows == 0
    assert "nothing ran" in result.notes["no rows"]


def test_parts_add_up_on_real_jobs(shared: Path) -> None:
    for name in ("dlrm_8rank_v100/kineto", "torchrec_4rank_v100"):
        trace = read_once(shared / "pytorch" / name)
        for steps in ("", "each"):
            for row in taxes(trace, steps=steps).rows.to_pylist():
                assert row["taxed_ns"] == row["bulk_sync_ns"] + row["launch_ns"] - row["overlap_ns"]
                assert row["taxed_ns"] <= row["window_ns"]
                assert row["exposed_wait_ns"] <= row["wait_ns"]
                assert row["launch_ns"] <= row["gap_ns"]
