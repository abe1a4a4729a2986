"""What is asked of kernels whose clocks, or whose GPU's, are known or not."""

import numpy as np
import pytest
from clocked_job import MS, job

import chopper_interop as ci

MI300X = "AMD Instinct MI300X"
AT_ALL = 0.8
"""Sensitivity of a large product before anything tells it."""


def rows_of(trace: ci.Trace, by: str, ceiling: str, **options: object) -> list[dict]:
    rows = ci.analyze(trace, "dvfs", by=by, **options).rows.to_pylist()
    return [row for row in rows if row["ceiling"] == ceiling]


@pytest.mark.parametrize("mhz", [1500.0, 1200.0])
def test_kernels_stay_on_gpus_whose_highest_clock_is_not_known(mhz: float) -> None:
    """What these ran at says nothing of kernels on the others."""
    clocks = np.where(np.arange(16) % 2, 1500.0, mhz)
    trace = job(clocks, np.full(16, MS), ranks=2, gpus=("", MI300X))
    unknown, known = rows_of(trace, "rank", "peak")
    assert unknown["ideal_ns"] == unknown["ideal_low_ns"] == unknown["ideal_high_ns"] == 8 * MS
    shorter = 1 - AT_ALL * (1 - 1500 / 2100)
    assert known["ideal_ns"] == pytest.approx(8 * MS * shorter, rel=0.005)
    result = ci.analyze(trace, "dvfs")
    assert result.summary["kernels_unknown"] == 8
    assert "of 8 of 16 kernels" in result.conventions["unknown: peak"]
    done = result.annotate(trace).nodes["ideal_ns"].is_valid().to_numpy()
    assert done.tolist() == (trace.array("rank") == 1).tolist()
