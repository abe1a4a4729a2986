"""Clocks, power, temperature and throttling of GPU work, from the telemetry of its GPU."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from issue_counts import counts
from read_once import read_once
from telemetry import points_of

import chopper_interop as ci
from chopper_interop.annotate.stages import annotate
from chopper_interop.annotate.telemetry import sampled_series
from chopper_interop.arrays import arrow
from chopper_interop.build import TraceBuilder, concat
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Device, DeviceMatch, Rank

GAP = 6


def trace_of(
    work: list[tuple[int, ...]],
    series: list[tuple],
    *,
    device: int = 0,
    **meta: object,
) -> ci.Trace:
    """Kernels (start, duration, rank = 0, device) and series (name, unit, samples, and more)."""
    builder = TraceBuilder()
    for start, dur, *location in work:
        rank, number = [*location, *(0, device)[len(location) :]]
        lane = builder.lane(rank, LaneKind.STREAM, 0, "s", number)
        builder.nodes(
            kind=int(Kind.KERNEL), name=f"k{start}", rank=rank, lane=lane,
            ts=np.array([start]), dur=np.array([dur]),
        )  # fmt: skip
    for name, unit, samples, *more in series:
        options = {"rank": 0, "device": device, "source": "x", "uncertainty_ns": 0}
        options |= more[0] if more else {}
        row = builder.series(options.pop("rank"), name, unit, options.pop("source"), **options)
        ts = np.array([t for t, _ in samples], np.int64)
        builder.samples(row, ts, np.array([float(v) for _, v in samples]))
    trace = builder.finish()
    return annotate(replace(trace, meta=replace(trace.meta, **meta)))


def column_values(trace: ci.Trace, column: str) -> list[float | None]:
    return [None if pd.isna(v) else v for v in trace.values(column)]


SAMPLES = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 50)), min_size=1, max_size=12).map(
    lambda steps: list(zip(np.cumsum([s for s, _ in steps]), [v for _, v in steps], strict=True))
)
WORK = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 60)), min_size=1, max_size=8)


def at_each_nanosecond(samples, *, linear: bool) -> dict[int, tuple[float, float]]:
    """Value at the beginning and the end of every nanosecond that samples cover."""
    steps = [b - a for (a, _), (b, _) in pairwise(samples)]
    usual = sorted(steps)[(len(steps) - 1) // 2] if steps else 0
    values = {}
    for (t, v), (t2, v2) in pairwise(samples):
        if t2 - t <= GAP * usual:
            slope = (v2 - v) / (t2 - t) if linear else 0
            for m in range(t, t2):
                values[m] = (v + slope * (m - t), v + slope * (m + 1 - t))
    return values


@pytest.mark.parametrize(
    ("stem", "name", "unit", "linear"),
    [("power{}_w", "socket power", "W", True), ("gfxclk{}_mhz", "gfx clock", "MHz", False)],
)
@given(samples=SAMPLES, work=WORK)
def test_against_every_single_nanosecond(stem, name, unit, linear, samples, work) -> None:
    if name == "socket power":
        samples = [(t, v + 1) for t, v in samples]  # no GPU that runs draws nothing at all
    trace = trace_of(work, [(name, unit, samples)])
    known, at_samples = at_each_nanosecond(samples, linear=linear), dict(samples)
    columns = zip(
        trace.array("ts") + trace.meta.origin_ns,
        trace.array("dur"),
        *(column_values(trace, stem.format(s)) for s in ("", "_min", "_max")),
        column_values(trace, "telemetry_ns"),
        strict=True,
    )
    for t, d, mean, low, high, step in columns:
        inside = [known.get(m) for m in range(t, t + max(d, 1))]
        if not d and t in at_samples:
            inside = [(at_samples[t], at_samples[t])]
        if None in inside:
            assert mean is low is high is step is None
            continue
        if not d:
            inside = [(inside[0][0], inside[0][0])]
        assert mean == pytest.approx(np.mean(inside))
        assert low == pytest.approx(np.min(inside))
        assert high == pytest.approx(np.max(inside))
        assert low <= mean <= high
        assert step > 0


def test_many_samples_in_one_node() -> None:
    """Beyond 64 samples, extremes are looked up by blocks and sums by their difference."""
    random = np.random.default_rng(3)
    ts = np.cumsum(random.integers(900, 1100, 5000))
    value = random.normal(1500, 200, 5000)
    start = np.sort(random.integers(ts[0], ts[-1], 300))
    end = np.minimum(start + random.integers(1, 2_000_000, 300), ts[-1])
    trace = trace_of(
        list(zip(start, end - start, strict=True)),
        [("gfx clock", "MHz", list(zip(ts, value, strict=True)))],
    )
    for t, d, mean, low, high in zip(
        trace.array("ts") + trace.meta.origin_ns,
        trace.array("dur"),
        *(column_values(trace, f"gfxclk{s}_mhz") for s in ("", "_min", "_max")),
        strict=True,
    ):
        first, last = np.searchsorted(ts, t, "right") - 1, np.searchsorted(ts, t + d, "left")
        edges = np.clip(np.append(ts[first:last], t + d), t, t + d)
        assert mean == pytest.approx(np.sum(value[first:last] * np.diff(edges)) / d, rel=1e-9)
        assert (low, high) == (value[first:last].min(), value[first:last].max())


def test_work_shorter_than_the_period_has_the_values_around_it() -> None:
    samples = [(t * 1000, 100 * t) for t in range(1, 6)]
    fine = {"uncertainty_ns": 30}
    trace = trace_of([(2500, 10)], [("gfx clock", "MHz", samples, fine)])
    assert column_values(trace, "gfxclk_mhz") == [200]
    assert column_values(trace, "telemetry_ns") == [1060]
    assert counts(trace)["telemetry-coarse"] == 1


def test_gaps_between_samples_are_unknown() -> None:
    samples = [(t, 5) for t in (*range(0, 100, 10), *range(200, 300, 10))]
    work = [(95, 3), (80, 5), (85, 20), (150, 1), (195, 10), (205, 5)]
    trace = trace_of(work, [("gfx clock", "MHz", samples)])
    assert column_values(trace, "gfxclk_mhz") == [
        5,
        None,
        None,
        None,
        None,
        5,
    ]  # in the order of starts
    assert counts(trace)["telemetry-missing"] == 4


def test_one_of_two_steps_may_be_a_gap() -> None:
    trace = trace_of([(5, 3), (500, 3)], [("gfx clock", "MHz", [(0, 5), (10, 5), (1000, 5)])])
    assert column_values(trace, "gfxclk_mhz") == [5, None]


def test_few_samples_are_as_far_apart_as_those_of_other_gpus() -> None:
    """An excerpt of a log, as of InferenceX: the loop went on, but its rows are not there."""
    work = [(5, 3, 0, 0), (500, 3, 0, 0), (500, 3, 1, 1), (1002, 2, 1, 1)]
    series = [
        ("gfx clock", "MHz", [(t, 5) for t in (0, 10, 20, 1000, 1010)]),
        ("gfx clock", "MHz", [(t, 7) for t in (0, 1000, 1010)], {"rank": 1, "device": 1}),
    ]
    assert column_values(trace_of(work, series), "gfxclk_mhz") == [5, None, None, 7]


def test_telemetry_that_covers_no_work_is_counted_once() -> None:
    trace = trace_of([(50, 3)], [("gfx clock", "MHz", [(0, 5), (10, 5)])])
    assert "gfxclk_mhz" not in trace.nodes.column_names
    assert counts(trace)["telemetry-missing"] == 1
    assert counts(annotate(trace))["telemetry-missing"] == 1


def test_dies_one_by_one_and_together() -> None:
    series = [
        (f"gfx clock XCD {die}", "MHz", [(0, 1000 + die), (100, 2000 + die), (200, 0)])
        for die in range(8)
    ]
    trace = trace_of([(50, 100)], series)
    assert column_values(trace, "gfxclk_xcd3_mhz") == [1503]
    assert column_values(trace, "gfxclk_xcd3_max_mhz") == [2003]
    assert column_values(trace, "gfxclk_mhz") == [1503.5]
    assert column_values(trace, "gfxclk_min_mhz") == [1000]
    assert column_values(trace, "gfxclk_max_mhz") == [2007]
    one = trace_of([(50, 100)], series[:1])
    assert "gfxclk_xcd0_mhz" not in one.nodes.column_names
    assert column_values(one, "gfxclk_mhz") == [1500]


@pytest.mark.parametrize(
    ("column", "name", "unit", "value", "expected"),
    [
        ("gfxclk_mhz", "gfx clock", "MHz", 1500, 1500),
        ("gfxclk_mhz", "gfx clock average", "MHz", 1500, 1500),
        ("gfxclk_mhz", "sclk", "MHz", 1500, 1500),
        ("gfxclk_mhz", "gfx clock max", "MHz", 1500, None),
        ("gfxclk_mhz", "graphics clock max", "MHz", 1500, None),
        ("gfxclk_mhz", "gfx clock XCP 1", "MHz", 1500, None),
        ("memclk_mhz", "memory clock", "MHz", 1300, 1300),
        ("memclk_mhz", "memory clock AID 1", "MHz", 1300, 1300),
        ("power_w", "socket power", "W", 500, 500),
        ("power_w", "socket power average", "W", 500, 500),
        ("power_w", "GPU [2] Current Power (S)", "watts", 500, 500),
        ("power_w", "GPU Power [2] (S)", "watts", 500, 500),
        ("power_w", "[GPU 2] Power", "watts", 500, 500),
        ("power_w", "socket power", "", 500, None),
        ("power_w", "power limit", "W", 500, None),
        ("power_w", "memory power", "W", 500, None),
        ("power_w", "mean power of epoch", "W", 500, None),
        ("temperature_c", "temperature hotspot", "°C", 70, 70),
        ("temperature_c", "temperature GPU", "°C", 70, 70),
        ("temperature_c", "temperature edge", "°C", 70, None),
        ("temperature_c", "GPU Temperature [2] (S)", "deg C", 70, None),
        ("temperature_c", "temperature memory", "°C", 70, None),
        ("throttle_share", "throttle share PPT", "%", 25, 0.25),
        ("throttle_share", "throttle activity power", "%", 25, 0.25),
        ("throttle_share", "throttle status SW power cap", "", 1, 1),
        ("throttle_share", "throttle status", "", 1, 1),
        ("throttle_share", "throttle status", "", 16, 1),
        ("throttle_share", "throttle status", "", 0, 0),
        ("throttle_share", "throttle status", "", -1, None),
        ("throttle_share", "throttle share low utilization", "%", 25, None),
        ("throttle_share", "throttle status GPU idle", "", 1, None),
        ("throttle_share", "throttle residency PPT", "", 25, None),
        ("throttle_share", "throttle share PPT XCP 0 XCD 1", "%", 25, 0.25),
        ("throttle_share", "throttle share PPT", "%", 125, None),
        ("throttle_share", "throttle time power", "ns", 0, 0),
    ],
)
def test_names_of_series_and_their_columns(column, name, unit, value, expected) -> None:
    trace = trace_of([(2, 3)], [(name, unit, [(t, value) for t in (0, 5, 10)])])
    assert column_values(trace, column) == [expected]


def test_a_profilers_own_numbers_of_gpus_are_counted_as_an_assumption() -> None:
    power = ("GPU [0] Current Power (S)", "watts", [(0, 500), (10, 500), (20, 500)])
    assert counts(trace_of([(2, 3)], [power]))["telemetry-by-number"] == 1


def test_the_highest_share_of_several_causes_counts_at_every_time() -> None:
    series = [
        ("throttle share PPT", "%", [(0, 10), (10, 30), (20, 0)]),
        ("throttle share HBM thermal", "%", [(0, 0), (10, 80), (20, 0)]),
    ]
    assert column_values(trace_of([(5, 10)], series), "throttle_share") == [0.45]  # 0.1, then 0.8


def test_the_finest_source_is_taken() -> None:
    coarse = [(t, 1000) for t in (0, 1000, 2000)]
    fine = [(t, 2000) for t in range(0, 2000, 10)]
    series = [
        ("gfx clock", "MHz", coarse, {"source": "amd-smi", "uncertainty_ns": 500}),
        ("gfx clock", "MHz", fine, {"source": "recorder"}),
        ("memory clock", "MHz", coarse, {"source": "amd-smi", "uncertainty_ns": 500}),
    ]
    trace = trace_of([(500, 100)], series)
    assert column_values(trace, "gfxclk_mhz") == [2000]
    assert column_values(trace, "telemetry_ns") == [2000]  # the memory clock is known no better
    assert counts(trace)["telemetry-finest"] == 1


def test_the_next_source_counts_where_the_finest_has_no_samples() -> None:
    """A minute of a coarse log, of which a fine one has two seconds."""
    coarse = [(t * 1000, 100) for t in range(61)]
    fine = [(t, 300) for t in range(30_000, 32_001, 20)]
    names = {"gfx clock": "MHz", "socket power": "W"}
    series = [(n, u, coarse, {"source": "amd-smi"}) for n, u in names.items()]
    series += [(n, u, fine, {"source": "recorder"}) for n, u in names.items()]
    work = [(500, 100), (29_900, 200), (30_500, 100), (32_500, 100), (61_000, 5)]
    trace = trace_of(work, series)
    assert column_values(trace, "gfxclk_mhz") == [100, 100, 300, 100, None]
    assert column_values(trace, "power_w") == [100, 100, 300, 100, None]
    assert column_values(trace, "telemetry_ns") == [1000, 1000, 20, 1000, None]
    joules = [1e-5, 4e-5, 3e-5, 1e-5]
    assert column_values(trace, "energy_j") == [*(pytest.approx(j) for j in joules), None]
    (row,) = ci.analyze(trace, "energy").rows.to_pylist()
    assert row["covered_ns"] == 59_500
    assert row["energy_j"] == pytest.approx((57_500 * 100 + 2000 * 300) * 1e-9)
    assert (row["source"], row["telemetry_ns"]) == ("recorder, amd-smi", 1000)


def test_energy_of_work_that_two_sources_cover_together() -> None:
    first = ("socket power", "W", [(t, 300) for t in range(0, 101, 10)], {"source": "recorder"})
    then = ("socket power", "W", [(t, 100) for t in range(50, 251, 50)], {"source": "amd-smi"})
    trace = trace_of([(40, 100)], [first, then])
    assert "power_w" not in trace.nodes.column_names
    assert column_values(trace, "energy_j") == [pytest.approx((60 * 300 + 40 * 100) * 1e-9)]
    assert column_values(trace, "telemetry_ns") == [50]
    assert "telemetry-missing" not in counts(trace)


def test_thousands_of_short_series_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count, read = 200, []
    usual_step = sampled_series.usual_step
    monkeypatch.setattr(sampled_series, "usual_step", lambda ts: read.append(1) or usual_step(ts))
    work = [(5, 2, rank, 0) for rank in range(count)]
    samples = [(0, 100), (10, 100)]
    series = [("gfx clock", "MHz", samples, {"rank": rank}) for rank in range(count)]
    assert column_values(trace_of(work, series), "gfxclk_mhz") == [100] * count
    assert len(read) == count


@pytest.mark.parametrize(
    ("whole", "die", "unit", "column"),
    [
        ("gfx clock", "gfx clock XCD", "MHz", "gfxclk_mhz"),
        ("memory clock", "memory clock AID", "MHz", "memclk_mhz"),
    ],
)
def test_a_whole_gpu_is_not_one_more_die(whole, die, unit, column) -> None:
    """The tool's own mean, or its first die again, would count in addition to all dies."""
    values = {whole: 500, f"{die} 0": 1000, f"{die} 1": 2000}
    series = [(name, unit, [(t, v) for t in (0, 5, 10)]) for name, v in values.items()]
    assert column_values(trace_of([(2, 3)], series), column) == [1500]


def test_work_on_two_gpus_has_telemetry_of_each() -> None:
    work = [(5, 2, 0, 0), (6, 2, 0, 1), (6, 2, 1, 0)]
    series = [
        ("gfx clock", "MHz", [(0, 100), (20, 100)], {"device": 0}),
        ("gfx clock", "MHz", [(0, 200), (20, 200)], {"device": 1}),
        ("gfx clock", "MHz", [(0, 300), (20, 300)], {"rank": -1, "device": 2}),
    ]
    assert column_values(trace_of(work, series), "gfxclk_mhz") == [100, 200, None]


def test_telemetry_of_the_node_is_unassigned_unless_it_numbers_gpus_as_lanes_do() -> None:
    samples = [(0, 1000), (8, 1500), (16, 1500)]
    work = [(5, 2, 0, 3), (6, 2, 1, 3)]
    of_node = {"rank": -1, "device": 3}
    assert (
        column_values(trace_of(work, [("gfx clock", "MHz", samples, of_node)]), "gfxclk_mhz")
        == [None] * 2
    )
    rpd = trace_of(work, [("sclk", "MHz", samples, of_node | {"source": "rpd"})])
    assert column_values(rpd, "gfxclk_mhz") == [1000, 1000]
    match = DeviceMatch("smi.csv", 0, 3, -1, "user")
    matched = trace_of(work, [("gfx clock", "MHz", samples, of_node)], device_matches=(match,))
    assert column_values(matched, "gfxclk_mhz") == [1000, 1000]
    hosts = (Rank(0, host="a", device=3), Rank(1, host="b", device=3))
    two_hosts = trace_of(work, [("sclk", "MHz", samples, of_node | {"source": "rpd"})], ranks=hosts)
    assert column_values(two_hosts, "gfxclk_mhz") == [None, None]


def test_a_log_of_changes_holds_until_it_ends() -> None:
    """rpd writes a clock where it changed, and once more where logging ended."""
    log = [(0, 800), (10, 1700), (20, 800), (30, 1700), (5000, 900), (5010, 900), (9000, 1700)]
    work = [(2000, 100), (5005, 2), (6000, 10), (9000, 5)]
    trace = trace_of(work, [("sclk", "MHz", [*log, (9010, 1700)], {"source": "rpd"})])
    assert column_values(trace, "gfxclk_mhz") == [1700, 900, None, 1700]
    assert column_values(trace, "telemetry_ns") == [10, 10, None, 10]


def test_values_that_no_gpu_has_are_not_used() -> None:
    samples = [(0, 1000), (10, -5), (20, 1000), (30, 4e9), (40, 1000), (50, float("nan"))]
    trace = trace_of([(5, 30)], [("gfx clock", "MHz", samples)])
    assert (
        column_values(trace, "gfxclk_min_mhz") == column_values(trace, "gfxclk_max_mhz") == [1000]
    )
    assert counts(trace)["telemetry-impossible"] == 2


@pytest.mark.parametrize("power", [[], [("socket power", "W", [(0, 0), (10, 0), (20, 0)])]])
def test_a_gpu_without_power_has_no_energy(power) -> None:
    clock = ("gfx clock", "MHz", [(0, 1700), (10, 1700), (20, 1700)])
    trace = trace_of([(5, 3)], [clock, *power])
    assert column_values(trace, "gfxclk_mhz") == [1700]
    assert not {"power_w", "energy_j"} & set(trace.nodes.column_names)
    assert counts(trace)["power-unknown"] == 1


def test_power_of_a_module_is_counted_as_that_of_both_dies() -> None:
    power = ("socket power", "W", [(0, 300), (10, 300), (20, 300)])
    devices = (Device("", 0, "AMD Instinct MI250X"),)
    assert counts(trace_of([(5, 3)], [power], devices=devices))["power-of-module"] == 1
    assert "power-of-module" not in counts(trace_of([(5, 3)], [power]))


def test_partitions_are_unassigned() -> None:
    series = [
        (f"gfx clock XCP {part}", "MHz", [(0, 1700), (10, 1700), (20, 1700)]) for part in range(2)
    ]
    trace = trace_of([(5, 3)], [*series, ("socket power", "W", [(0, 9), (10, 9), (20, 9)])])
    assert not {"gfxclk_mhz", "power_w"} & set(trace.nodes.column_names)
    assert counts(trace)["telemetry-of-partitions"] == 1


def test_power_by_the_energy_counter_where_no_power_is_sampled() -> None:
    counter = [(0, 1000.0), (10**9, 1300.0), (2 * 10**9, 1500.0), (3 * 10**9, 20.0)]
    work = [(5 * 10**8, 10**9), (2 * 10**9 + 5, 10)]
    trace = trace_of(work, [("energy", "J", counter)])
    assert column_values(trace, "power_w") == [pytest.approx(250), None]  # the counter was reset
    assert column_values(trace, "energy_j") == [pytest.approx(250), None]
    assert counts(trace)["power-from-counter"] == 1


def test_values_stated_by_a_source_are_preserved() -> None:
    trace = trace_of([(5, 3)], [("gfx clock", "MHz", [(0, 1700), (10, 1700), (20, 1700)])])
    stated = annotate(trace.with_columns(gfxclk_mhz=[1.5]))
    assert column_values(stated, "gfxclk_mhz") == [1.5]
    assert stated.meta.issues == trace.meta.issues


def test_work_without_telemetry_and_telemetry_without_work() -> None:
    for work, series in (
        ([(5, 3)], []),
        ([], [("gfx clock", "MHz", [(0, 1700)])]),
        ([(5, 3)], [("gfx clock", "MHz", [(0, 1700)])]),
        ([(5, 3)], [("gfx clock", "MHz", [(0, float("nan"))])]),
    ):
        trace = trace_of(work, series)
        assert not {"gfxclk_mhz", "telemetry_ns"} & set(trace.nodes.column_names)


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job with a recorder of 1 kHz, which is how often its clocks change."""
    from chopper_interop.demo import make_demo

    folder = tmp_path_factory.mktemp("demo") / "job"
    return make_demo(folder, ranks=2, layers=1, steps=2, recorder_hz=1000, counter_steps=1)


def test_clocks_of_the_demo_are_its_truth(fast: Path) -> None:
    """Within the resolution: the truth lies between the samples before and after."""
    truth = json.loads((fast / "truth.json").read_text())["kernels"]
    keys = zip(truth["rank"], truth["correlation"], strict=True)
    clock = dict(zip(keys, truth["mean_clock_mhz"], strict=True))
    trace = ci.read(fast)
    work = trace.to_pandas()
    work = work[work["kind"].isin(["kernel", "comm"])]
    expected = np.array([clock[key] for key in zip(work["rank"], work["correlation"], strict=True)])
    off = np.abs(work["gfxclk_mhz"] - expected) / expected
    assert np.median(off) < 0.002
    assert off.max() < 0.1
    samples = points_of(trace)
    device = {r.rank: r.device for r in trace.meta.ranks}
    for row, mean in zip(work.itertuples(), expected, strict=True):
        start, end = (row.ts + trace.meta.origin_ns + t for t in (0, row.dur))
        near = [
            value
            for ts, value in samples[device[row.rank], "gfx clock"]
            if start - row.telemetry_ns <= ts <= end + row.telemetry_ns
        ]
        assert min(near) - 0.01 <= mean <= max(near) + 0.01
    assert (work["telemetry_ns"].between(0.9e6, 1.2e6)).all()
    assert (work["gfxclk_min_mhz"] <= work["gfxclk_mhz"]).all()
    assert (work["gfxclk_mhz"] <= work["gfxclk_max_mhz"]).all()


def test_a_watch_of_whole_seconds_is_coarse(fast: Path) -> None:
    trace = ci.read(fast / "kineto", fast / "rocprof", fast / "telemetry" / "amd-smi-watch.csv")
    work = trace.to_pandas()
    work = work[work["kind"] == "kernel"]
    assert work["telemetry_ns"].min() > 10**9
    assert work["gfxclk_xcd7_mhz"].notna().all()
    assert counts(trace)["telemetry-coarse"] >= len(work)


SAMPLER = "telemetry/amd_smi_7.1_real_tool_simulated_gpus/sampler-50Hz-8gpu-10s.csv"


@pytest.mark.slow
def test_a_real_recording_against_another_reader(shared: Path) -> None:
    """Every second row of eight GPUs: means as pandas and a plain sum have them."""
    rows = pd.read_csv(shared / SAMPLER)
    since = rows["realtime_ns"] - rows["boottime_ns"]
    rows["at"] = rows["system_clock_counter"] + since
    telemetry = read_once(shared / SAMPLER)
    begin, end = int(rows["at"].min()) + 10**8, int(rows["at"].max()) - 10**8
    random = np.random.default_rng(7)
    builder = TraceBuilder()
    for gpu in range(8):
        lane = builder.lane(gpu, LaneKind.STREAM, 0, "s", gpu)
        start = np.sort(random.integers(begin, end - 5 * 10**8, 50))
        dur = random.integers(1000, 5 * 10**8, 50)
        builder.nodes(
            kind=int(Kind.KERNEL), name="k", rank=gpu, lane=lane, ts=start, dur=dur
        )  # fmt: skip
    owned = arrow.replace_column(telemetry.series, "rank", telemetry.array("device", "series"))
    trace = concat([builder.finish(), replace(telemetry, series=owned)], telemetry.meta)
    work = annotate(trace).to_pandas()
    assert work["power_w"].notna().all()
    for row in work.itertuples():
        gpu_rows = rows[rows["gpu"] == row.rank].sort_values("at")
        start, stop = row.ts + trace.meta.origin_ns, row.ts + row.dur + trace.meta.origin_ns
        ts = gpu_rows["at"].to_numpy()
        inside = np.concatenate([[start], ts[(ts > start) & (ts < stop)], [stop]])
        watts = np.interp(inside - begin, ts - begin, gpu_rows["current_socket_power"])
        joules = np.sum((watts[1:] + watts[:-1]) / 2 * np.diff(inside)) * 1e-9
        assert row.power_w == pytest.approx(joules / (row.dur * 1e-9), rel=1e-3)
        held = gpu_rows["current_gfxclk"].to_numpy()[np.searchsorted(ts, inside[:-1], "right") - 1]
        assert row.gfxclk_mhz == pytest.approx(np.average(held, weights=np.diff(inside)), rel=1e-3)
        assert (row.gfxclk_min_mhz, row.gfxclk_max_mhz) == (held.min(), held.max())


@pytest.mark.slow
def test_written_and_read_back_nothing_changes(fast: Path, tmp_path: Path) -> None:
    trace = ci.read(fast)
    ci.write(trace, tmp_path / "a.parquet")
    back = ci.read(tmp_path / "a.parquet")
    for column in ("gfxclk_mhz", "power_max_w", "energy_j", "telemetry_ns", "throttle_share"):
        assert back.nodes[column].equals(trace.nodes[column])
    codes = counts(back)
    assert codes["telemetry-coarse"] == counts(trace)["telemetry-coarse"]
