"""The window over which a sensor averages power, seen by short idle times."""

from pathlib import Path

import pytest
from sensor_jobs.cells import Cell, truth_of, write_job

import chopper_interop as ci


@pytest.mark.slow
def test_a_window_that_is_longer_than_idle_times_is_found(tmp_path: Path) -> None:
    """A filter of 14 ms was taken for it, by which idle power was 338 ± 3 W instead of 130."""
    cell = Cell("constant", "1kHz", "instant")
    truth = truth_of(cell.kind, cell.vendor, 31009, bubble_ns=15_000_000, idle_watts=130.0)
    write_job(truth.run, cell, tmp_path, "mean100")
    rows = ci.analyze(ci.read(tmp_path), "power").rows.to_pylist()
    assert rows
    for row in rows:
        assert row["sensor"] == "mean of a window"
        assert row["sensor_ns"] == pytest.approx(100_000_000, rel=0.01)
        assert row["idle_w"] is None  # idle times of 15 ms are a part of it


@pytest.mark.slow
def test_the_kind_of_a_sensor_is_found_by_all_kernels(tmp_path: Path) -> None:
    """Power by classes alone left more unexplained than a filter of 29 ms did, by which idle power was 217 ± 8 W."""
    cell = Cell("groups", "1kHz", "instant")
    truth = truth_of(cell.kind, cell.vendor, 71002, bubble_ns=15_000_000, idle_watts=130.0)
    write_job(truth.run, cell, tmp_path, "mean100")
    rows = ci.analyze(ci.read(tmp_path), "power").rows.to_pylist()
    assert {row["sensor"] for row in rows} == {"mean of a window"}
