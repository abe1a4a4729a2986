"""Shares of a step are of its length over all ranks: what a rank is without work within it is idle."""

from dataclasses import replace

import pytest
from gpu_work import Work, instants
from gpu_work import trace as gpu_trace
from read_once import read_once
from shared_data import real

import chopper_interop as ci
from chopper_interop.issues import Issue, Severity
from chopper_interop.schemas.kinds import GPU_WORK, Kind

# step 0 from 0 to 100, step 1 from 110 to 210; rank 1 is done sooner, and begins step 1 later
WORKS = [
    Work(Kind.KERNEL, 0, 60, iteration=0),
    Work(Kind.COMM, 50, 50, iteration=0, stream=1),
    Work(Kind.KERNEL, 110, 40, iteration=1),
    Work(Kind.MEMCPY, 200, 10, iteration=1),
    Work(Kind.KERNEL, 0, 20, rank=1, iteration=0),
    Work(Kind.COMM, 150, 30, rank=1, iteration=1, stream=1),
    Work(Kind.KERNEL, 170, 20, rank=1, iteration=1),
]
STEP_NS, STEPS, RANKS = 100, 2, 2


def ran(*kinds: Kind) -> set[tuple[int, int, int]]:
    return instants([work for work in WORKS if work.kind in kinds])


def test_shares_times_step_and_ranks_are_the_sums_of_the_work() -> None:
    trace = gpu_trace(WORKS)
    whole = STEP_NS * STEPS * RANKS
    busy, exposed = len(ran(*GPU_WORK)), len(ran(Kind.COMM) - ran(Kind.KERNEL))
    summary = ci.analyze(trace, "summary").summary
    assert summary["step_ns"] == STEP_NS
    times = {name: summary[f"{name}_share"] * whole for name in ("compute", "exposed_comm", "idle")}
    assert times == pytest.approx(
        {"compute": len(ran(Kind.KERNEL)), "exposed_comm": exposed, "idle": whole - busy}
    )
    (row,) = ci.analyze(trace, "sweep").rows.to_pylist()
    assert row["busy_share"] * whole == pytest.approx(busy)
    assert row["busy_ns"] + row["idle_ns"] == row["step_ns"] == STEP_NS
    compared = ci.analyze(trace, "compare", against=trace).summary
    assert compared["busy_ns"] + compared["idle_ns"] == compared["step_ns"] == STEP_NS


def test_shares_without_steps_are_of_the_time_of_the_job() -> None:
    """From 0 to 210, of which rank 1 works from 0 to 190."""
    trace = gpu_trace([replace(work, iteration=-1) for work in WORKS])
    busy, whole = len(ran(*GPU_WORK)), 210 * RANKS
    summary = ci.analyze(trace, "summary").summary
    (run,) = ci.analyze(trace, "sweep").rows.to_pylist()
    (rated,) = ci.analyze(trace, "efficiency").rows.to_pylist()
    compared = ci.analyze(trace, "compare", against=trace).summary
    assert summary["step_ns"] == run["window_ns"] == rated["time_ns"] == 210
    assert 1 - summary["idle_share"] == pytest.approx(busy / whole)
    assert run["busy_share"] == pytest.approx(busy / whole)
    assert compared["busy_ns"] + compared["idle_ns"] == run["busy_ns"] + run["idle_ns"] == 210


def test_ranks_of_different_times_keep_their_own() -> None:
    works = [replace(work, iteration=-1) for work in WORKS[:4]]
    apart = [replace(work, rank=1, start=work.start + 10**9) for work in works]
    trace = gpu_trace(works + apart)
    trace = trace.with_meta(issues=(Issue("ranks-apart", Severity.ERROR, "", 1),))
    (run,) = ci.analyze(trace, "sweep").rows.to_pylist()
    assert run["busy_ns"] + run["idle_ns"] == 210


def test_shares_of_ranks_whose_steps_differ_in_length() -> None:
    """Sums of the raw durations of the eight files, 8 times 20.823 ms: 5.3, 28.1 and 66.4 %."""
    summary = ci.analyze(read_once(real("pytorch/dlrm_8rank_v100/kineto")), "summary").summary
    shares = [summary[f"{name}_share"] for name in ("compute", "exposed_comm", "idle")]
    assert shares == pytest.approx([0.053, 0.281, 0.664], abs=0.0006)
