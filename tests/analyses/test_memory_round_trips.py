"""Bytes that are read right after they were written, by group."""

from pathlib import Path

import numpy as np
import pytest
from read_once import read_once

from chopper_interop.analyses.memory_round_trips import memory_round_trips
from chopper_interop.analyses.methods.activity import round_trips
from chopper_interop.schemas.kinds import Kind
from chopper_interop.testing import check_analysis


def test_analysis_contract(demo: Path) -> None:
    check_analysis(memory_round_trips, read_once(demo))


@pytest.mark.parametrize("by", ["kernel", "layer,phase", "rank", "job"])
def test_rows_add_up(demo: Path, by: str) -> None:
    trace = read_once(demo)
    trips = round_trips.find_round_trips(trace)
    result = memory_round_trips(trace, by=by)
    rows = result.rows.to_pylist()
    for column in ("count", "known_kernels", "total_ns", "read_again_bytes", "round_trip_ns"):
        assert sum(r[column] or 0 for r in rows) == result.summary[column]
    assert result.summary["read_again_bytes"] == trips.bytes.sum() > 0
    assert result.summary["round_trip_ns"] == trips.ns.sum()
    assert result.summary["count"] == np.count_nonzero(trace.array("kind") == Kind.KERNEL)
    for row in rows:
        if row["round_trip_ns"] is not None:
            assert row["round_trip_share"] == row["round_trip_ns"] / row["total_ns"] <= 1


def test_without_counters_nothing_is_known(demo: Path) -> None:
    result = memory_round_trips(read_once(demo / "kineto"))
    assert not result.rows.num_rows
    assert result.summary["read_again_bytes"] is None
    assert "no rows" in result.notes


def test_a_gpu_of_unknown_bandwidth_has_bytes_and_no_time(shared: Path) -> None:
    trace = read_once(shared / "rocprof/v1_two_pass_mi250x/laplacian_dp_kernel1")
    summary = memory_round_trips(trace).summary
    assert summary["known_kernels"] == 1003
    assert summary["read_again_bytes"] > 0
    assert summary["round_trip_ns"] is None
