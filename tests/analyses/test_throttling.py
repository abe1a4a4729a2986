"""Time in which clocks were held down, by every method of tools."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.throttling import throttling
from chopper_interop.annotate.stages import annotate
from chopper_interop.annotate.telemetry import throttle_causes
from chopper_interop.annotate.telemetry.samples import periodic_samples
from chopper_interop.arrays import arrow
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.schemas.kinds import GPU_WORK, Kind, LaneKind
from chopper_interop.testing import check_analysis

SECOND = 10**9


def job(series: list[tuple], work: list[tuple[int, int, int]]) -> ci.Trace:
    """Series (rank, name, unit, source, values every second), work (rank, start, duration)."""
    builder = TraceBuilder()
    for rank, start, dur in work:
        lane = builder.lane(rank, LaneKind.STREAM, 0, "s", 0)
        builder.nodes(kind=int(Kind.KERNEL), name="k", rank=rank, lane=lane,
                      ts=np.array([start]), dur=np.array([dur]))  # fmt: skip
    for rank, name, unit, source, values in series:
        row = builder.series(rank, name, unit, source, device=0)
        builder.samples(row, np.arange(len(values)) * SECOND, np.array(values, float))
    return builder.finish()


ONE_STEP = [(0, 0, 4 * SECOND)]


def by_cause(trace: ci.Trace, **options: str) -> dict[str, dict]:
    return {r["cause"]: r for r in ci.analyze(trace, "throttling", **options).rows.to_pylist()}


def test_each_cause_uses_the_best_method() -> None:
    trace = job(
        [
            (0, "accumulation counter", "", "amd-smi", [0, 1000, 2000, 3000, 4000]),
            (0, "throttle share PPT", "%", "amd-smi", [100, 50, 0, 10]),
            (0, "throttle activity PPT", "%", "amd-smi", [1, 1, 1, 1, 1]),
            (0, "throttle status PPT", "", "amd-smi", [0, 0, 0, 0, 0]),
            (0, "throttle activity HBM thermal", "%", "amd-smi", [0, 80, 0, 0, 0]),
            (0, "throttle status low utilization", "", "amd-smi", [1, 1, 1, 1, 1]),
            (0, "gfx clock", "MHz", "amd-smi", [1000, 2000, 1000, 2000, 1000]),
        ],
        ONE_STEP,
    )
    rows = by_cause(trace)
    assert (rows["PPT"]["throttled_share"], rows["PPT"]["method"]) == (
        pytest.approx(0.4),
        "residency",
    )
    assert rows["PPT"]["throttled_ns"] == 1.6 * SECOND
    assert rows["PPT"]["covered_ns"] == 4 * SECOND  # to the end of the last interval
    assert rows["PPT"]["samples"] == 4
    assert rows["HBM thermal"]["throttled_share"] == pytest.approx(0.2)
    assert rows["any"]["throttled_share"] == pytest.approx((1 + 0.8 + 0 + 0.1) / 4)
    assert rows["low utilization"]["cause_class"] == "idle"
    assert {r["clock_mhz"] for r in rows.values()} == {1500}
    result = ci.analyze(trace, "throttling")
    assert result.summary["power_share"] == pytest.approx(0.4)
    assert result.summary["thermal_share"] == pytest.approx(0.2)
    assert "2 series of causes" in result.notes["left out"]
    check_analysis(throttling, trace)


def test_masks_of_nvml_bit_by_bit() -> None:
    """Lanes of a mask stand where it changes; the last one holds until sampling ends."""
    trace = job(
        [
            (0, "throttle reasons active", "", "nvidia-smi", [0x1, 0x4, 0x44]),
            (0, "SM clock", "MHz", "nvidia-smi", [1980] * 5),
        ],
        ONE_STEP,
    )
    rows = by_cause(trace)
    assert {c: r["throttled_share"] for c, r in rows.items()} == {
        "any": 0.75, "GPU idle": 0.25, "SW power cap": 0.75, "HW thermal slowdown": 0.5,
    }  # fmt: skip
    assert {c: r["cause_class"] for c, r in rows.items()} == {
        "any": "any", "GPU idle": "idle", "SW power cap": "power", "HW thermal slowdown": "thermal",
    }  # fmt: skip


def test_counters_of_time() -> None:
    ms = 10**6
    trace = job(
        [
            (0, "throttle time power", "ns", "dcgmi", [0, 500 * ms, 500 * ms, 100 * ms, 1100 * ms]),
            (0, "clocks_event_reasons_counters_sw_thermal_slowdown", "us", "nvidia-smi",
             [7, 7, 7 + 250_000, 7 + 250_000, 7 + 250_000]),
        ],
        ONE_STEP,
    )  # fmt: skip
    rows = by_cause(trace)
    power, heat = rows["power"], rows["SW thermal slowdown"]
    assert (power["throttled_share"], power["covered_ns"]) == (pytest.approx(0.5), 3 * SECOND)
    assert (heat["throttled_share"], heat["method"]) == (pytest.approx(1 / 16), "time")
    assert "1 samples of counters that fell" in ci.analyze(trace, "throttling").notes["left out"]


@pytest.mark.parametrize(
    ("second", "share", "covered"),
    [(1.0, 1.0, 4), (1.9, 1.0, 4), (2.1, 1.0, 3), (-0.5, 1.0, 3), (0.5, 7 / 8, 4)],
)
def test_a_counter_of_time_runs_no_faster_than_time(second, share, covered) -> None:
    """A sample may have been read a period late; beyond that the counter was set to another value."""
    counts = np.cumsum([3, 1, second, 1, 1]) * 1e9
    rows = by_cause(job([(0, "throttle time power", "ns", "dcgmi", counts)], ONE_STEP))
    power = rows["power"]
    figures = (power["throttled_share"], power["covered_ns"], power["peak_share"])
    assert figures == (pytest.approx(share), covered * SECOND, 1)


def test_a_status_without_cause_and_dies() -> None:
    trace = job(
        [
            (0, "throttle status", "", "amd-smi", [0, 1, 1, 0, 0]),
            (0, "throttle activity gfx clock below host limit by power XCP 0 XCD 0", "%", "amd-smi",
             [100] * 5),
            (0, "throttle activity gfx clock below host limit by power XCP 0 XCD 1", "%", "amd-smi",
             [0] * 5),
        ],
        ONE_STEP,
    )  # fmt: skip
    rows = by_cause(trace)
    assert rows["unspecified"]["throttled_share"] == 0.5
    below = rows["gfx clock below host limit by power"]
    assert (below["throttled_share"], below["cause_class"], below["covered_ns"]) == (
        0.5,
        "power",
        4 * SECOND,
    )
    assert rows["any"]["throttled_share"] == pytest.approx((0.5 + 1 + 1 + 0.5) / 4)


@pytest.mark.parametrize("counts", [(5, 4), (4, 5)])
def test_samples_of_dies_that_end_apart_are_counted_each(counts: tuple[int, int]) -> None:
    """A share holds until the next reading of the firmware's counter, which is no sample of it."""
    series = [(0, "accumulation counter", "", "amd-smi", range(5))]
    series += [(0, f"throttle share PPT XCD {x}", "%", "amd-smi", [100] * n)
               for x, n in enumerate(counts)]  # fmt: skip
    (row,) = [r for c, r in by_cause(job(series, ONE_STEP)).items() if c != "any"]
    assert (row["samples"], row["throttled_share"]) == (9, 1)


def test_nodes_and_jobs() -> None:
    trace = job(
        [
            (0, "throttle status PPT", "", "x", [1, 1, 1, 1, 1]),
            (1, "throttle status PPT", "", "x", [0, 0, 0, 0, 0]),
        ],
        [(0, 0, 4 * SECOND), (1, 0, 2 * SECOND)],
    )
    (any_, ppt) = ci.analyze(trace, "throttling", by="job").rows.to_pylist()
    assert any_["throttled_share"] == ppt["throttled_share"] == pytest.approx(4 / 6)
    assert (ppt["gpus"], ppt["window_ns"]) == (2, 6 * SECOND)


SHARES = st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=8), min_size=1, max_size=3)


@given(SHARES, st.integers(0, 7))
def test_any_is_the_largest_share_at_every_time(causes, late) -> None:
    by = {
        str(i): [periodic_samples(np.arange(len(v)) * 3 + i * late, np.array(v) / 4, 0)]
        for i, v in enumerate(causes)
    }
    combined = throttle_causes.combine_causes(by)
    for time in range(60):
        values = []
        for (samples,) in by.values():
            at = int(np.searchsorted(samples.ts, time, "right")) - 1
            if at >= 0 and not samples.unknown[at]:
                values.append(samples.value[at])
        at = int(np.searchsorted(combined.ts, time, "right")) - 1
        known = at >= 0 and not combined.unknown[at]
        assert known == bool(values)
        assert not known or combined.value[at] == max(values)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", slow_from([{"seed": 2}, {"seed": 7, "layers": 2, "steps": 3}], 1)
)
def test_demo(tmp_path: Path, options: dict) -> None:
    """Residencies of the recorder's file by plain sums; what rounding at the edges leaves is small."""
    folder = make_demo(
        tmp_path / "job", **{"ranks": 8, "layers": 1, "steps": 2} | options, counter_steps=0
    )
    trace = ci.read(folder)
    rows = [r for r in ci.analyze(trace, "throttling").rows.to_pylist() if r["cause"] == "PPT"]
    assert [r["rank"] for r in rows] == list(range(8))
    file = (folder / "telemetry/recorder.csv").read_text()
    work = np.isin(trace.array("kind"), [int(k) for k in GPU_WORK])
    for row in rows:
        of_rank = [r for r in csv.DictReader(io.StringIO(file)) if int(r["gpu"]) == row["rank"]]
        ts = np.array([int(r["realtime_ns"]) for r in of_rank]) - trace.meta.origin_ns
        work_of_rank = work & (trace.array("rank") == row["rank"])
        start = trace.array("ts")[work_of_rank].min()
        end = (trace.array("ts")[work_of_rank] + trace.array("dur")[work_of_rank]).max()
        inside = np.flatnonzero((ts >= start) & (ts <= end))
        first, last = of_rank[inside[0] - 1], of_rank[min(inside[-1] + 1, len(of_rank) - 1)]
        held = int(last["ppt_residency_acc"]) - int(first["ppt_residency_acc"])
        every = int(last["accumulation_counter"]) - int(first["accumulation_counter"])
        assert row["throttled_share"] == pytest.approx(held / every, abs=3 / every + 0.01)
        assert row["covered_ns"] == row["window_ns"] == end - start
    phases = ci.analyze(trace, "throttling", by="rank,phase").rows.to_pylist()
    assert {r["phase"] for r in phases} >= {"forward", "backward", "optimizer"}


@given(st.integers(-(10**15), 10**15), st.permutations([0, 1, 2]))
def test_neither_time_nor_rank_nor_order_matters(shift, ranks) -> None:
    series = [(r, "throttle activity PPT", "%", "x", [10 * (r + 1)] * 5) for r in ranks]
    trace = job(series, [(r, 0, 4 * SECOND) for r in ranks])
    later = replace(
        trace,
        nodes=arrow.replace_column(trace.nodes, "ts", trace.array("ts") + shift),
        samples=arrow.replace_column(trace.samples, "ts", trace.array("ts", "samples") + shift),
    )
    rows = ci.analyze(later, "throttling").rows.to_pylist()
    shares = {r["rank"]: r["throttled_share"] for r in rows if r["cause"] == "PPT"}
    assert shares == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3})


def test_no_telemetry_of_causes() -> None:
    result = ci.analyze(job([(0, "gfx clock", "MHz", "x", [1, 2])], ONE_STEP), "throttling")
    assert result.rows.num_rows == 0
    assert "no telemetry" in result.notes["no rows"]
    assert result.summary["throttled_share"] is None


def test_other_analyses_have_the_same_share() -> None:
    """Shares of intervals hold to the end of the last one, so that residency is known throughout."""
    builder = TraceBuilder()
    ts = np.arange(5) * 10**9
    for name, unit, value, count in (
        ("accumulation counter", "", [0, 1000, 2000, 3000, 4000], 5),
        ("throttle share PPT", "%", [10, 20, 30, 40], 4),
        ("throttle activity PPT", "%", [50] * 5, 5),
    ):
        series = builder.series(-1, name, unit, "amd-smi", device=0)
        builder.samples(series, ts[:count], np.array(value, np.float64))
    trace = builder.finish()
    assert shares_of_all_analyses(trace) == pytest.approx([0.25] * 3)


def shares_of_all_analyses(trace: ci.Trace) -> list[float | None]:
    """Share of time by `throttling`, and by the analyses that have it among other figures."""
    shares = [throttling(trace).rows.to_pylist()[0]["throttled_share"]]
    return shares + [
        ci.analyze(trace, name).rows.to_pylist()[0].get("throttle_share")
        for name in ("imbalance", "sweep")
    ]


COUNTS = np.arange(9)
HELD_ALIKE = {
    "one of eight dies": (
        [(f"throttle share PPT XCD {x}", "%", [100 * (x == 0)] * 9) for x in range(8)], 1 / 8,
    ),
    "the driver's counter": (
        [("clocks_event_reasons_counters_sw_power_cap", "us", COUNTS * 5e5)], 1 / 2,
    ),
    "DCGM's counter": ([("throttle time thermal", "ns", COUNTS * 25e7)], 1 / 4),
    "two causes in turn": (
        [
            ("throttle share PPT", "%", np.resize([100, 0], 9)),
            ("throttle share HBM thermal", "%", np.resize([0, 100], 9)),
        ],
        1,
    ),
    "the better method": (
        [("throttle share PPT", "%", [30] * 9), ("throttle status PPT", "", [1] * 9)], 0.3,
    ),
    "another cause by a worse method": (
        [("throttle share PPT", "%", [30] * 9), ("throttle status PROCHOT", "", [1] * 9)], 1,
    ),
    "a setting": ([("throttle status applications clocks setting", "", [1] * 9)], None),
}  # fmt: skip


@pytest.mark.parametrize("case", HELD_ALIKE)
def test_all_analyses_have_one_share(case: str) -> None:
    series, expected = HELD_ALIKE[case]
    lanes = [(0, name, unit, "smi", values) for name, unit, values in series]
    power = (0, "socket power", "W", "smi", [500] * 9)
    for work in ([], [(0, 0, 8 * SECOND)]):
        trace = annotate(job([*lanes, power], work))
        shares = shares_of_all_analyses(trace)
        if expected is None:
            assert shares[1:] == [None, None]
            continue
        assert shares == pytest.approx([expected] * 3)
        if work:
            assert trace.nodes["throttle_share"].to_pylist() == pytest.approx([expected])


@pytest.mark.parametrize("name", ["throttling", "traffic", "telemetry"])
def test_the_window_where_there_is_no_gpu_work(name: str) -> None:
    window = ci.analyze(TraceBuilder().finish(), name).notes["window"]
    assert window == "all of the telemetry, as there is no GPU work in the trace"
