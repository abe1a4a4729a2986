"""Bytes that kernels read again right after they were written, against plain loops."""

from pathlib import Path

import numpy as np
import pytest
from read_once import read_once

from chopper_interop.analyses.methods.activity import round_trips
from chopper_interop.schemas.kinds import GPU_WORK, Kind

MI300X_BYTES_PER_NS = 5300.0


def test_round_trips_of_the_sample_job(demo: Path) -> None:
    trace = read_once(demo)
    counted: dict[int, dict[str, float]] = {}
    for row in trace.counters.to_pylist():
        counted.setdefault(row["node"], {})[row["name"]] = row["value"]
    nodes = trace.nodes.select(["kind", "lane", "dur"]).to_pylist()
    expected, before = {}, {}
    for i, node in enumerate(nodes):
        if node["kind"] not in GPU_WORK:
            continue
        last = before.get(node["lane"])
        before[node["lane"]] = i
        pair = [counted.get(n, {}) for n in (last, i)]
        if last is None or {nodes[n]["kind"] for n in (last, i)} != {Kind.KERNEL}:
            continue
        if "WRITE_SIZE" in pair[0] and "FETCH_SIZE" in pair[1]:
            expected[i] = 1024 * min(pair[0]["WRITE_SIZE"], pair[1]["FETCH_SIZE"])
    trips = round_trips.find_round_trips(trace)
    assert len(expected) > 100
    assert np.flatnonzero(trips.known).tolist() == sorted(expected)
    assert (trips.timed == trips.known).all()
    for i, size in expected.items():
        assert trips.bytes[i] == pytest.approx(size, abs=1)
        read_ns = min(size / MI300X_BYTES_PER_NS, nodes[i]["dur"])
        assert trips.ns[i] == pytest.approx(read_ns, abs=1)
    assert not trips.bytes[~trips.known].any()


def test_without_a_known_gpu_there_are_bytes_and_no_time(demo: Path) -> None:
    trace = read_once(demo)
    nobody = round_trips.find_round_trips(trace.with_meta(devices=()))
    assert nobody.known.any()
    assert not nobody.timed.any()
    assert not nobody.ns.any()


def test_without_counters_nothing_is_known(demo: Path) -> None:
    trace = read_once(demo / "kineto")
    assert not round_trips.find_round_trips(trace).known.any()


def test_round_trips_of_real_counters(shared: Path) -> None:
    trips = round_trips.find_round_trips(
        read_once(shared / "rocprof/rocprof_compute_pmc/omp_MI300A")
    )
    assert np.count_nonzero(trips.timed) == 5
