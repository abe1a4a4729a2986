# ruff: noqa: S608
"""Counters of no dispatch: GPU metrics of rocprofiler-systems, and events of the driver."""

import sqlite3
from contextlib import closing

import pytest
import rocpd
from issue_counts import counts, uncounted_events

from chopper_interop.converters.rocpd.reader import read


def test_metrics_of_one_event_are_series_of_their_gpus(tmp_path):
    path = rocpd.systems(tmp_path / "rocpd.db")
    trace = read([path])
    series, samples = trace.to_pandas("series"), trace.to_pandas("samples")
    expected = rocpd.rows(
        path,
        "SELECT DISTINCT a.absolute_index, p.name, p.units, s.timestamp, e.value FROM rocpd_pmc_event e "
        "JOIN rocpd_info_pmc p ON p.id = e.pmc_id JOIN rocpd_info_agent a ON a.id = p.agent_id "
        "JOIN rocpd_sample s ON s.event_id = e.event_id",
    )
    joined = samples.join(series, on="series")
    ordinal = {4: 0, 5: 1}
    devices = {d.agent: d.device for d in trace.meta.devices}
    assert {d.agent: d.ordinal for d in trace.meta.devices} == ordinal
    actual = zip(
        joined["device"],
        joined["name"],
        joined["unit"],
        joined["ts"] + trace.meta.origin_ns,
        joined["value"],
        strict=True,
    )
    assert sorted(actual) == sorted((devices[a], n, u, t, v) for a, n, u, t, v in expected)
    assert len(expected) == 18


def test_no_moment_of_a_metric_is_a_node(tmp_path):
    trace = read([rocpd.systems(tmp_path / "rocpd.db")])
    assert sorted(trace.to_pandas()["name"]) == [
        "gemm_kernel",
        "hipLaunchKernel",
        "main",
        "thread 0",
    ]
    assert counts(trace)["counter-sampled"] == 36
    assert trace.meta.ranks[0].known_by == "assumed"
    assert trace.edges.num_rows == 1
    assert not uncounted_events(trace)


@pytest.mark.parametrize("table", ["gpu_pc_sample", "pc_sampling"])
def test_samples_of_program_counters_are_counted(tmp_path, table):
    path = rocpd.systems(tmp_path / "rocpd.db")
    with closing(sqlite3.connect(path)) as base:
        suffix = "_" + rocpd.GUID.replace("-", "_")
        base.execute(f"CREATE TABLE rocpd_{table}{suffix} (id INTEGER, timestamp BIGINT)")
        base.execute(f"INSERT INTO rocpd_{table}{suffix} VALUES (1, 2), (2, 3)")
        base.commit()
    trace = read([path])
    assert counts(trace)["sample-not-read"] == 2
    assert not uncounted_events(trace)


def test_what_the_driver_counts_during_a_call_is_a_series(tmp_path):
    path = tmp_path / "kfd.db"
    base = rocpd.Base(path, "3.0.3")
    base.agents()
    base.thread(base.pid)
    name = "KFD_PAGE_MIGRATE"
    pmc = base.add("info_pmc", id=0x7000000000000000, name=name, symbol=name, block="KFD")
    for i in range(3):
        start = rocpd.BOOT + 100 * i
        event = base.call(
            name, "KFD_PAGE_MIGRATE_PREFETCH", 0, start, start + 50, extdata='{"kfd":{"pages":3}}'
        )
        base.add("pmc_event", event_id=event, pmc_id=pmc, value=4096.0 * i)
    base.close()
    trace = read([path])
    assert trace.nodes.num_rows == 3
    assert trace.to_pandas("series")["name"].tolist() == [name]
    assert trace.array("value", "samples").tolist() == [0, 4096, 8192]
    assert trace.array("ts", "samples").tolist() == [0, 100, 200]
    assert not uncounted_events(trace)


@pytest.mark.parametrize("number", [-3, 99, 2**63 - 1, -(2**63)])
def test_a_counter_that_is_not_described_is_called_by_its_id(tmp_path, number):
    path = rocpd.small(tmp_path / "x.db")
    with closing(sqlite3.connect(path)) as base:
        suffix = "_" + rocpd.GUID.replace("-", "_")
        base.execute(f"UPDATE rocpd_pmc_event{suffix} SET pmc_id = {number} WHERE pmc_id = 11")
        base.commit()
    trace = read([path])
    assert set(trace.to_pandas("counters")["name"]) == {f"counter {number}", "GRBM_COUNT"}
    assert not uncounted_events(trace)
