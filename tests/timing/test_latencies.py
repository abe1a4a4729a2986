"""Least latencies: what took long for another reason is none."""

from pathlib import Path

import pytest
from kineto_files import BASE, call, kernel, write

import chopper_interop as ci


def gain_us(tmp_path: Path, events: list[dict], change: str) -> float:
    """Time that a job of one rank gains by a change, in microseconds."""
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    (row,) = ci.analyze(trace, "what_if", change=change).summary["changes"]
    return row["gain_ns"] / 1000


def test_work_from_before_the_recording_is_no_latency_of_a_launch(tmp_path: Path) -> None:
    """The GPU is busy with what was launched before; the last launch has waited as long as the first."""
    events = []
    for k in range(8):
        events += [
            call("hipLaunchKernel", 900 * k, 10, k + 1),
            kernel("gemm", 8000 + 1000 * k, 1000, k + 1),
        ]
    gain = gain_us(tmp_path, events, "scale=0.1 where kind == 'kernel'")
    assert gain == pytest.approx(0.9 * 8000, abs=20)


def test_a_call_long_after_the_work_that_it_waits_for_has_a_short_return(tmp_path: Path) -> None:
    events = [
        call("hipLaunchKernel", 0, 10, 1), kernel("gemm", 15, 800, 1),
        call("hipDeviceSynchronize", 910, 20, 2),
    ]  # fmt: skip
    assert gain_us(tmp_path, events, "scale=1.1 where kind == 'kernel'") == 0
    assert gain_us(tmp_path, events, "scale=2 where kind == 'kernel'") == pytest.approx(-705, abs=1)
