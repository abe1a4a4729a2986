"""Hosts and GPU of a rank are planned on one clock where the GPU's is surely ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kineto_files import BASE, call, kernel, write

import chopper_interop as ci
from chopper_interop.converters.chakra.planning.clocks import on_one_clock

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("early_us", "room_us", "from_first_work", "moved_us"),
    [
        ([5, 4, 5], 20, False, (0, -5)),
        ([5, 4, 5], 20, True, (5, 0)),
        ([5, 4, 5], 3, False, (0, -3)),
        ([5, -4, -5], 20, False, (0, 0)),
        ([5, 4, -5, -5], 20, False, (0, 0)),
    ],
)
def test_the_clock_that_is_ahead_is_moved(
    tmp_path: Path,
    early_us: list[int],
    room_us: int,
    *,
    from_first_work: bool,
    moved_us: tuple[int, int],
) -> None:
    """Waits return so much before the end of the work, which begins so much behind its launch."""
    events = []
    for k, early in enumerate(early_us):
        at = 1000 * k
        events += [
            call("cudaLaunchKernel", at, 2, 2 * k + 1),
            kernel("gemm", at + room_us, 100, 2 * k + 1),
            call("cudaDeviceSynchronize", at + 10, room_us + 90 - early, 2 * k + 2),
        ]
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    gpu = trace.array("device", "lanes")[trace.array("lane")] >= 0
    first = int(trace.array("ts")[gpu].min())
    moved = on_one_clock(trace, first if from_first_work else first - 10**6)
    by_us = (moved.array("ts") - trace.array("ts")) / 1000
    assert {*zip(gpu.tolist(), by_us.tolist(), strict=True)} == {
        (False, moved_us[0]),
        (True, moved_us[1]),
    }
