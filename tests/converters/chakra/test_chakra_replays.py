"""ETs of jobs with several threads and streams end when measured."""

from pathlib import Path

import predictions
import pytest
from kineto_files import BASE, call, kernel, span, write
from mixed_jobs import mixed_job
from programs import families
from programs.simulation import job_ns, simulate
from schedule import messages, replay_us
from slow import slow_from

import chopper_interop as ci
from chopper_interop.converters.chakra import check
from chopper_interop.converters.chakra import run as simulator
from chopper_interop.converters.chakra.checks.findings import Findings
from chopper_interop.converters.chakra.checks.jobs import job_of

pytest.importorskip("chakra", reason="MLCommons' package (mlc-chakra) is not installed")


def deviation(folder: Path, events: list[dict], mode: str) -> float:
    """Deviation of an ET's length by its durations from the measured span, as a share of that."""
    trace = ci.read(write(folder / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, folder / "job.et", mode=mode, streams="slots")
    metadata, nodes = messages(folder / "job.0.et")
    span_us = next(a.int64_val for a in metadata.attr if a.name == "span_ns") / 1000
    return replay_us(nodes) / span_us - 1


@pytest.mark.parametrize("mode", ["gpu", "full"])
@pytest.mark.parametrize("seed", slow_from([5, 25, 415], 1))
def test_a_job_of_three_threads_and_four_streams_ends_when_measured(
    tmp_path: Path, seed: int, mode: str
) -> None:
    assert deviation(tmp_path, mixed_job(seed), mode) == pytest.approx(0, abs=0.002)


@pytest.mark.slow
def test_most_jobs_of_three_threads_and_four_streams_end_when_measured(tmp_path: Path) -> None:
    off = [
        abs(deviation(tmp_path, mixed_job(seed), mode))
        for seed in range(1000, 1060)
        for mode in ("gpu", "full")
    ]
    assert sum(x > 0.005 for x in off) <= 0.05 * len(off)
    assert max(off) < 0.03


@pytest.mark.parametrize("mode", ["gpu", "full"])
def test_a_wait_is_over_while_another_thread_is_busy(tmp_path: Path, mode: str) -> None:
    """A simulator has one slot for both threads; the other holds it for long."""
    other = {"tid": 200}
    events = [
        call("hipLaunchKernel", 0, 5, 1), kernel("gemm", 10, 300, 1),
        {**span("cpu_op", "aten::sort", 50, 5000), **other},
        {**call("hipLaunchKernel", 5100, 5, 9), **other}, kernel("add", 5110, 100, 9),
        call("hipDeviceSynchronize", 20, 293, 2), call("hipLaunchKernel", 320, 5, 3),
        kernel("gemm", 330, 4700, 3),
    ]  # fmt: skip
    assert deviation(tmp_path, events, mode) == pytest.approx(0, abs=0.005)


def test_no_order_of_messages_makes_ranks_wait_for_each_other(tmp_path: Path) -> None:
    """A send that waited for a receive of its slot to end might be what the other rank's send waits for."""
    trace = predictions.read(simulate(families.pipeline(602)), tmp_path / "kineto")
    ci.write(trace, tmp_path / "job.et", mode="gpu")
    findings = check.check(tmp_path / "job")
    assert findings.passes, [str(entry) for entry in findings.entries]


@pytest.mark.parametrize("mode", slow_from(["gpu", "full"], 1))
def test_messages_do_not_wait_for_what_holds_their_slot_by_chance(
    tmp_path: Path, mode: str
) -> None:
    """Receivers get ready just after a send has begun, and next to messages whose other end was not recorded."""
    ran = simulate(families.pipeline(3004))
    ci.write(predictions.read(ran, tmp_path / "kineto"), tmp_path / "job.et", mode=mode)
    ets = [et for _, et in check.read_files(tmp_path / "job", Findings())]
    job = job_of(ets, check.read_groups(tmp_path / "job", len(ets), Findings()))
    together = simulator.run(job, len(ets))
    assert 1000 * together.makespan_us == pytest.approx(job_ns(ran, ran), rel=0.005)
