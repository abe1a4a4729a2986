"""Slow-downs of pipelined jobs against those of jobs that are simulated with other durations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from made_pipeline import Pipeline, measured_and_ideal, table
from slow import slow_from
from straggler_jobs import trace_of

import chopper_interop as ci
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.arrays import arrow
from chopper_interop.build import TraceBuilder, concat
from chopper_interop.clocks import ranks as rank_clocks
from chopper_interop.edges import inference
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.kinds import Kind, LaneKind

if TYPE_CHECKING:
    import pandas as pd

_JOBS = {
    "sequences of different length": (Pipeline(), 1e-6),
    "ends that scatter": (Pipeline(end_scatter_s=3e-4), 1e-6),
    "late launches and a long last stage": (
        Pipeline(end_scatter_s=3e-4, delay_s=0.002, last_stage=1.3),
        1e-3,
    ),
}


def _joined(operations: pd.DataFrame) -> ci.Trace:
    """The trace with ranks on one clock and all edges, as reading it gives it."""
    log = IssueLog("job")
    trace = rank_clocks.align_ranks(trace_of(operations), log)
    return inference.infer_edges(trace, log).with_meta(issues=tuple(log))


@pytest.mark.parametrize("name", slow_from([*_JOBS], 1))
def test_the_slowdown_is_that_of_simulations_with_other_durations(name: str) -> None:
    job, error = _JOBS[name]
    measured, plain, ideal = measured_and_ideal(job)
    trace = _joined(table(measured))
    assert not trace.meta.issues
    result = ci.analyze(trace, "stragglers", by="iteration")
    steps = [(plain.step_s(k), ideal.step_s(k)) for k in range(job.steps)]
    for row, (before, even) in zip(result.rows.to_pylist(), steps, strict=True):
        assert row["job_slowdown_factor"] == pytest.approx(before / even, rel=error)
    truth = sum(before for before, _ in steps) / sum(even for _, even in steps)
    assert result.summary["job_slowdown_factor"] == pytest.approx(truth, rel=error)
    if job.last_stage > 1:
        assert result.summary["slow_stage"] == job.stages - 1


@pytest.mark.slow
def test_what_if_gives_the_same_slowdown_step_by_step() -> None:
    job, error = _JOBS["late launches and a long last stage"]
    measured, plain, ideal = measured_and_ideal(job)
    rows = ci.analyze(
        _joined(table(measured)), "what_if", change="delays=0; ideal", steps="each"
    ).rows.to_pylist()
    after = {
        (row["change"], row["iteration"]): row["after_ns"] for row in rows
    }  # each step begins when it did, so that their lengths do not depend on each other
    for k in range(job.steps):
        factor = after["delays=0", k] / after["all together", k]
        assert factor == pytest.approx(plain.step_s(k) / ideal.step_s(k), rel=error)


@pytest.mark.slow
def test_clocks_that_differ_change_nothing() -> None:
    """Clocks that differ by 200 sigma are aligned, those that differ by one are left."""
    measured, plain, ideal = measured_and_ideal(Pipeline(end_scatter_s=3e-4))
    truth = sum(map(plain.step_s, range(6))) / sum(map(ideal.step_s, range(6)))
    for offset_s, moved in ((0.06, 15), (3e-4, 0)):
        operations = table(measured)
        operations["start_ts"] += offset_s * np.minimum(operations["rank"], 1)
        trace = _joined(operations)
        assert sum(fit.applied for fit in trace.meta.clocks) == moved
        assert "collectives-contradicted" not in {i.code for i in trace.meta.issues}
        factor = ci.analyze(trace, "stragglers").summary["job_slowdown_factor"]
        assert factor == pytest.approx(truth, rel=5e-4)


@pytest.mark.parametrize("left_out", slow_from(["group", "peer", "edges within lanes"], 1))
def test_what_a_reader_may_leave_out(left_out: str) -> None:
    measured, _, _ = measured_and_ideal(Pipeline(last_stage=1.3))
    trace = trace_of(table(measured))
    expected = _figures(trace)
    if left_out == "edges within lanes":
        lane, src, dst = trace.array("lane"), *(trace.array(c, "edges") for c in ("src", "dst"))
        trace = replace(trace, edges=arrow.take(trace.edges, lane[src] != lane[dst]))
    else:
        trace = replace(trace, nodes=trace.nodes.drop_columns([left_out]))
    assert _figures(trace) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_names_may_have_numbers() -> None:
    measured, _, _ = measured_and_ideal(Pipeline(last_stage=1.3))
    operations = table(measured)
    trace = trace_of(operations)
    names = np.array(trace.names())[trace.array("name")].tolist()
    stage = trace.array("rank") // 4
    numbered = [f"{name}_{k % 8}_{s}" for k, (name, s) in enumerate(zip(names, stage, strict=True))]
    renamed = replace(trace, nodes=arrow.replace_column(trace.nodes, "name", numbered))
    assert _figures(renamed) == pytest.approx(_figures(trace), rel=1e-9)


def _figures(trace: ci.Trace) -> list[float]:
    summary = ci.analyze(inference.infer_edges(trace, IssueLog("job")), "stragglers").summary
    names = ("job_slowdown_factor", "slowest_workers_share", "last_stage_share", "slow_stage")
    return [summary[name] for name in names]


def test_steps_may_be_marked_by_ranges() -> None:
    """Ranges on a host thread say nothing of what launched the work."""
    measured, _, _ = measured_and_ideal(Pipeline())
    trace = trace_of(table(measured))
    marked = TraceBuilder()
    for rank in trace.ranks:
        lane = marked.lane(rank, LaneKind.THREAD, 1, "main")
        for window in windows.step_windows(trace):
            if window.rank == rank:
                marked.nodes(
                    kind=int(Kind.ANNOTATION), name=f"step#{window.iteration}", rank=rank, lane=lane,
                    ts=np.array([window.start_ns]) + trace.meta.origin_ns, dur=window.span_ns,
                    iteration=window.iteration,
                )  # fmt: skip
    both = concat([trace, marked.finish()], trace.meta)
    assert _figures(both)[:3] == pytest.approx(_figures(trace)[:3], rel=1e-9)
