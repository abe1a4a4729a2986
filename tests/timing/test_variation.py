"""Delays that go with their variation when a job is re-timed."""

from pathlib import Path

import numpy as np
from hypothesis import given
from predictions import errors_percent
from programs import program as p

from chopper_interop.testing import strategies
from chopper_interop.timing import variation
from chopper_interop.timing.model import timing_of


@given(strategies.traces())
def test_without_a_change_all_is_as_measured(trace) -> None:
    timing = timing_of(trace)
    lag, delay = variation.on_edges(timing, timing.lag_ns, timing.delay_ns)
    assert (delay <= timing.delay_ns).all()
    assert np.array_equal(timing.retimed(lag, delay), timing.at_ns)


def test_a_long_launch_no_longer_counts_where_the_gpu_binds(tmp_path: Path) -> None:
    listed: list[p.Instruction] = []
    for step in range(2):
        listed.append(p.Begin(f"ProfilerStep#{step}", "user_annotation", step))
        for k in range(60):  # the host takes 14 us for a kernel of 10 us; launches 4 to 8 us
            listed += [p.Begin("aten::mm"), p.Work(11_000)]
            listed += [p.Launch(0, "gemm", 10_000, 3_000, 4_000 + 1_237 * k % 4_001, 500), p.End()]
        listed += [p.Sync(-1, 2_000, 8_000), p.End(), p.Work(3_000)]
    program = p.Program("launches", "cuda", [[listed]], [])
    errors = errors_percent(program, tmp_path)
    assert abs(errors["compute x 1.25"]) < 0.5  # 10 % if such a delay is one of the kernel
    assert abs(errors["host x 0.5"]) < 6  # 17 %; no launch shows the least gap between kernels
