"""Clocks as sensors give them: averaged, held and late; estimated, given, or too coarse to tell."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sensed_jobs import INSTANT, ClockSensor, Job, sensed
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.methods.dvfs import intervals
from chopper_interop.analyses.methods.dvfs.clocks import (
    clock_sensor,
    kernel_clocks,
    sensor_fit,
)
from chopper_interop.analyses.methods.dvfs.clocks.kernel_clocks import SensedClocks
from chopper_interop.analyses.methods.dvfs.sources import combination as combined
from chopper_interop.build import TraceBuilder
from chopper_interop.errors import UsageError
from chopper_interop.schemas.clock_sensors import CLOCK_FIELDS, MEAN, UNKNOWN, field_of
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Device, Rank

MS = 1_000_000
FAST, SLOW = ClockSensor(20, 20, 5), ClockSensor(100, 50, 30)
COVERED = 0.9
PAGE = Path(__file__).parents[4] / "docs/accuracy/dvfs.md"


def analysed(job: Job, sensor: str = "") -> tuple[dict, float, float]:
    """Summary of a generated job, its true length at the highest clock, and its measured length."""
    generated = sensed(job)
    result = ci.analyze(generated.trace, "dvfs", by="job", sensor=sensor)
    return result.summary, generated.true_ns, generated.measured_ns


def holds(summary: dict, true_ns: float) -> bool:
    return summary["ideal_step_low_ns"] <= true_ns <= summary["ideal_step_high_ns"]


def width(summary: dict) -> float:
    return summary["ideal_step_high_ns"] - summary["ideal_step_low_ns"]


@pytest.mark.parametrize("sensor", [SLOW, pytest.param(FAST, marks=pytest.mark.slow)])
def test_window_hold_and_lag_are_found_by_the_times_of_kernels(sensor: ClockSensor) -> None:
    """Clocks taken at the times of their samples gave 10 to 20 % too much, with errors of 2 %."""
    summary, true, _ = analysed(Job(betas="1", sensor=sensor, seed=3))
    assert summary["sensor_origin"] == "estimated"
    assert summary["sensor_window_low_ns"] <= 1.4 * sensor.window_ms * MS
    assert summary["sensor_window_high_ns"] >= sensor.window_ms * MS / 1.4
    assert abs(summary["sensor_lag_ns"] - sensor.lag_ms * MS) <= 10 * MS
    assert summary["sensor_hold_ns"] == pytest.approx(sensor.hold_ms * MS, rel=0.05)
    assert holds(summary, true)
    assert summary["ideal_step_ns"] == pytest.approx(true, rel=0.025)
    assert width(summary) < 0.1 * true


@pytest.mark.slow
def test_a_given_sensor_is_taken() -> None:
    summary, true, _ = analysed(
        Job(betas="mixed", sensor=SLOW, seed=4), "mean:100ms, hold:50ms, lag:30ms"
    )
    assert summary["sensor_origin"] == "given"
    assert (summary["sensor_window_ns"], summary["sensor_lag_ns"]) == (100 * MS, 30 * MS)
    assert holds(summary, true)
    estimated, _, _ = analysed(Job(betas="mixed", sensor=SLOW, seed=4))
    assert width(estimated) < 2 * width(summary)


@pytest.mark.slow
def test_nothing_is_lost_where_no_kernel_follows_the_clock() -> None:
    """Though nothing shows the sensor."""
    summary, true, measured = analysed(Job(betas="0", sensor=SLOW, ranks=1, seed=5))
    assert summary["sensor_origin"] == "unknown"
    assert summary["sensor_window_ns"] is None
    assert holds(summary, true)
    assert width(summary) < 0.02 * measured


@pytest.mark.parametrize(
    ("betas", "options"),
    slow_from([("0", {"hz": 1, "seconds": 2.0}), ("1", {"hz": 1, "seconds": 6.0})], 1),
)
def test_clocks_too_coarse_for_a_sensitivity_leave_the_range(betas: str, options: dict) -> None:
    """No class of kernels narrows it: it reaches from none to all of the time following the clock."""
    summary, true, measured = analysed(Job(betas=betas, sensor=SLOW, ranks=1, seed=6, **options))
    assert holds(summary, true)
    assert summary["ideal_step_high_ns"] == pytest.approx(measured, rel=0.01)
    assert summary["ideal_step_low_ns"] < 0.85 * measured


@pytest.mark.slow
def test_assumptions_that_cannot_be_distinguished_are_all_covered() -> None:
    """Under a delay of 200 ms laws end 4 % above the truth, without delay below it; rough estimates are alike."""
    job = Job(betas="1", sensor=ClockSensor(1000), response=0.1, seconds=3.4, seed=9)
    summary, true, _ = analysed(job)
    assert summary["sensor_origin"] == "unknown"
    assert holds(summary, true)


@pytest.mark.slow
def test_errors_stay_within_what_is_possible() -> None:
    """Laws of noise over hardly any change of the clock had errors by factors of e to the thousands."""
    job = Job(
        spread=0.0045, response=0, between=0, noise=0.3, betas="0", hz=100, seconds=1.5,
        kernels=60, ranks=1, seed=2,
    )  # fmt: skip
    summary, true, _ = analysed(job)
    assert holds(summary, true)


@pytest.mark.slow
def test_a_constant_clock_leaves_the_range() -> None:
    for betas in ("0", "1"):
        job = Job(
            betas=betas, spread=0.0, response=0.0, between=0.0, ranks=1, seconds=2.0, seed=7
        )  # fmt: skip
        summary, true, _ = analysed(job)
        assert holds(summary, true)


CELLS = {
    **{
        f"{betas}, {hz} Hz, {sensor.window_ms:g} ms": {"betas": betas, "hz": hz, "sensor": sensor}
        for betas in ("0", "1", "mixed", "groups")
        for hz in (1000, 100, 10)
        for sensor in (INSTANT, FAST, SLOW)
    },
    "1 Hz, all": {"betas": "1", "hz": 1, "sensor": SLOW, "seconds": 10.0},
    "1 Hz, none": {"betas": "0", "hz": 1, "sensor": SLOW, "seconds": 10.0},
    "few repeats": {"kernels": 200, "seconds": 2.0, "sensor": SLOW},
    "throttled": {"spread": 0.02, "throttled": 0.12, "ranks": 4, "sensor": SLOW},
    "slow changes": {"correlation_ms": 300.0, "sensor": SLOW},
    "fast changes": {"correlation_ms": 8.0, "sensor": SLOW},
}


@pytest.mark.parametrize(("hz", "seed"), slow_from([(100, 105), (100, 106), (1000, 110)], 1))
def test_kernels_that_follow_the_clock_next_to_others_that_do_not(hz: float, seed: int) -> None:
    """Their neighbours hardly showed the clock, so that none seemed to follow it: 9.3 +- 0.1 % too long."""
    summary, true, _ = analysed(Job(betas="groups", hz=hz, seed=seed))
    assert holds(summary, true)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_intervals_hold_in_each_cell(cell: str) -> None:
    inside = []
    for seed in range(100, 120):
        summary, true, _ = analysed(Job(seed=seed, **CELLS[cell]))
        inside.append(holds(summary, true))
    assert np.mean(inside) >= COVERED


@pytest.mark.parametrize("given", slow_from(["lag:5ms", "mean:20ms", "hold:900ms"], 1))
def test_what_is_given_shows(given: str) -> None:
    """Though no kernel shows the rest."""
    job = Job(betas="0", sensor=FAST, ranks=1, seconds=1.5, seed=5)
    summary, true, _ = analysed(job, given)
    name, value = given.split(":")
    column = {"mean": "sensor_window_ns", "lag": "sensor_lag_ns", "hold": "sensor_hold_ns"}[name]
    assert summary[column] == int(value.removesuffix("ms")) * MS
    assert summary["sensor_origin"] == ("given" if name == "mean" else "unknown")
    assert holds(summary, true)


@pytest.mark.slow
def test_delays_of_holds_that_no_sample_shows() -> None:
    """Half of the hold, or of the sampling period; they ended at 200 ms."""
    job = Job(betas="0", hz=1, sensor=SLOW, seconds=4.0, ranks=1, seed=5)
    assert analysed(job, "mean:100ms,lag:30ms")[0]["sensor_lag_high_ns"] == 530 * MS
    assert analysed(job, "mean:100ms,hold:900ms,lag:30ms")[0]["sensor_lag_high_ns"] == 480 * MS
    assert analysed(job)[0]["sensor_lag_high_ns"] >= 500 * MS


@pytest.mark.parametrize("seed", range(4))
def test_values_that_repeat_by_chance_are_no_hold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    trace = one_kernel_and_samples(1500 + 5 * np.cumsum(rng.random(1000) < 0.25), 20_000 * MS)
    (sensed_gpus,) = clock_sensor.sensed_gpus(trace, np.array([0]), None)
    assert sensed_gpus.gpus[0].hold_ns == 0


def test_kernels_outside_the_samples_keep_their_clocks() -> None:
    """A source that ended was extrapolated."""
    mhz = np.linspace(1500, 1600, 100)
    trace = one_kernel_and_samples(mhz, 1000 * MS, 5000 * MS)
    (sensed_gpus,) = clock_sensor.sensed_gpus(trace, np.array([0, 1]), None)
    assert sensed_gpus.gpus[0].kernel.tolist() == [0]


def test_products_of_hosts_are_not_mixed_up() -> None:
    """The name was that of any host's device with the same number."""
    trace = one_kernel_and_samples(np.linspace(1500, 1600, 100), 1000 * MS)
    devices = tuple(
        Device(host, 0, name)
        for host, name in (("other", "AMD Instinct MI300X"), ("own", "AMD Radeon RX 7900 XTX"))
    )
    meta = dataclasses.replace(trace.meta, ranks=(Rank(0, host="own", device=0),), devices=devices)
    trace = dataclasses.replace(trace, meta=meta)
    (sensed_gpus,) = clock_sensor.sensed_gpus(trace, np.array([0]), None)
    assert sensed_gpus.field.shows == MEAN


def one_kernel_and_samples(mhz: np.ndarray, *ends: int) -> ci.Trace:
    """Kernels that follow each other to these times, and a sample every 10 ms from 0 on."""
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 7, "s", 0)
    ts = np.array([0, *ends[:-1]])
    builder.nodes(
        kind=int(Kind.KERNEL), name="k", rank=0, lane=lane, ts=ts + MS * 500 * (ts > 0),
        dur=np.array(ends) - ts - MS * 500 * (ts > 0),
    )  # fmt: skip
    series = builder.series(0, "gfx clock", "MHz", "recorder", device=0)
    builder.samples(series, np.arange(len(mhz)) * 10 * MS, mhz.astype(float))
    return builder.finish()


def test_a_source_without_a_finite_error_does_not_count() -> None:
    """All sources became unknown with it."""
    one, zero, none = np.array([-0.1]), np.zeros(1), np.full(1, np.nan)
    endless = combined.Ratio(one, np.full(1, np.inf), zero, zero)
    known, unknown = combined.Ratio(one, zero + 0.01, zero, zero), combined.Ratio(*[none] * 4)
    together, _ = combined.combine_ratios([endless, known, unknown, unknown, unknown])
    assert together.log == pytest.approx(-0.1)
    assert together.statistical == pytest.approx(0.01, rel=0.01)


def test_quantiles_for_few_readings() -> None:
    """Against tables of Student's distribution."""
    for degrees, quantile in ((3, 3.182), (9, 2.262), (30, 2.042)):
        assert intervals.student(degrees) == pytest.approx(quantile, rel=0.01)


@pytest.mark.parametrize(
    ("seen_ms", "hold_ms", "window_ms", "origin", "delays_ms", "is_timed"),
    [
        (0, 100, 20, "estimated", (30, 70), True),
        (0, 100, 20, "estimated", (30, 80), False),  # anywhere in half of the hold
        (0, 100, 20, "unknown", (30, 30), False),
        (0, 100, 100, "unknown", (0, 200), True),  # the window reaches over the hold
        (0, None, 20, "unknown", (0, 200), True),
        (100, 100, 20, "unknown", (0, 200), True),  # samples show when values change
    ],
)
def test_readings_held_for_longer_than_their_window_are_timed_by_durations_alone(
    seen_ms, hold_ms, window_ms, origin, delays_ms, is_timed
) -> None:
    hold = None if hold_ms is None else hold_ms * MS
    accepted = SimpleNamespace(
        fixed=clock_sensor.Sensor(window_ms * MS, hold, None), origin=origin,
        spread=np.array([(window_ms * MS, delay * MS) for delay in delays_ms]),
    )  # fmt: skip
    clocks = SensedClocks(field_of("", "", ""), [SimpleNamespace(hold_ns=seen_ms * MS)], accepted)
    assert clocks.is_timed(clock_sensor.Assumption(window_ms * MS, 0)) == is_timed


@pytest.mark.parametrize(
    ("kept_ms", "is_shown", "age_ms"),
    [
        ([(40, 30), (100, 0)], True, 50),  # windows and delays of one middle
        ([(40, 30), (40, 90)], True, None),
        ([(40, 30)], False, None),
    ],
)
def test_readings_are_as_old_as_the_middle_of_their_window(kept_ms, is_shown, age_ms) -> None:
    fit = object.__new__(sensor_fit._Fit)
    fit.compare = lambda _: (np.array(kept_ms) * float(MS), None, is_shown)
    age = fit.age(np.empty((0, 2)), 100.0 * MS)
    assert np.isnan(age) if age_ms is None else age == age_ms * MS


@pytest.mark.parametrize(
    ("outside_mhz", "after_mhz", "least", "most"),
    # as within; an idle GPU's; as far above before as below after
    [(1500.0, 1500.0, 0.0, 0.015), (1800.0, 1800.0, 0.08, 0.15), (1800.0, 1200.0, 0.08, 0.15)],
)
def test_readings_show_what_they_mix_with_kernels_that_were_not_recorded(
    outside_mhz: float, after_mhz: float, least: float, most: float
) -> None:
    """Time before the recording counted as idle, at a clock 10 % higher or less, whatever was read then."""
    start = np.arange(2000, 4000, 10) * float(MS)
    time = np.arange(0, 6000, 100) * float(MS)
    assumed = clock_sensor.Assumption(1000.0 * MS, 0.0)
    gpu = clock_sensor.Readings(
        np.arange(len(start)), start, start + 10 * MS, time, np.full(len(time), 1500.0), 100.0 * MS, 0.0, 1.0,
    )  # fmt: skip
    share = gpu.unrecorded(assumed)
    outside = np.where(time < 3500 * MS, outside_mhz, after_mhz)
    mhz = share * outside + (1 - share) * 1500
    rng = np.random.default_rng(0)
    gpu = dataclasses.replace(gpu, mhz=np.rint(mhz + rng.normal(0, 1, len(mhz))))
    error = kernel_clocks._common_error(gpu, assumed, np.full(len(start), 0.5), 0.0)
    first = error[:10].mean()  # of kernels in windows half of which are before
    assert least < first < most
    assert error[95:105].mean() < 0.01


def test_blocks_are_no_shorter_than_windows() -> None:
    """The scatter of 24 blocks was the error of four windows in them."""
    fit = object.__new__(sensor_fit._Fit)
    fit.gpus = [SimpleNamespace(start=np.array([0.0, 1200 * MS]))] * 2
    losses = np.repeat([1.0, 3.0, np.nan, 5.0], 6)
    assert fit._of_windows(losses, 0.0) == pytest.approx(losses[np.newaxis], nan_ok=True)
    merged = fit._of_windows(losses, 1200.0 * MS)
    assert merged == pytest.approx(np.array([[2.0, 5.0]]))
    assert fit._of_windows(losses, 600.0 * MS)[0] == pytest.approx([1, 3, np.nan, 5], nan_ok=True)


def test_descriptions_of_sensors() -> None:
    parse, sensor = clock_sensor.parse_sensor, clock_sensor.Sensor
    assert parse("") is None
    assert parse("instant") == sensor(0.0, None, None)
    assert parse("mean:0.1s,lag:5ms") == sensor(1e8, None, 5e6)
    assert parse("mean: 100ms, hold:50ms, lag:30ms") == sensor(1e8, 5e7, 3e7)
    for text in ("fast", "mean:100", "mean:1ms,mean:2ms", "mean:1ms,", "instant,mean:5ms"):
        with pytest.raises(UsageError, match="describes no sensor"):
            parse(text)


def test_known_fields() -> None:
    for series, gpu, shows in (
        ("gfx clock average", "AMD Instinct MI300X", UNKNOWN),  # one field for both
        ("gfx clock average", "AMD Instinct MI250X", MEAN),
        ("gfx clock", "AMD Instinct MI210", UNKNOWN),
        ("gfx clock", "AMD Radeon Graphics", UNKNOWN),  # an MI300X without a list of names
        ("gfx clock", "AMD Radeon RX 7900 XTX", MEAN),
        ("gfx clock", "AMD Radeon PRO W6800", UNKNOWN),
    ):
        assert field_of("recorder", series, gpu).shows == shows
    assert field_of("rocm-smi", "gfx clock", "AMD Radeon RX 7600").shows == MEAN
    for tool, series in (("recorder", "gfx clock"), ("nvidia-smi", "SM clock|graphics clock")):
        field = field_of(tool, series, "NVIDIA H100 80GB HBM3")
        assert (field.window_ns, field.hold_ns, field.at_highest) == (
            20 * MS,
            100 * MS,
            (0.83, 1.01),
        )
        assert field_of(tool, series, "NVIDIA GH200 480GB").window_ns is None
    assert field_of("unheard-of", "gfx clock", "").source.startswith("no source")
    assert all(field.source for field in CLOCK_FIELDS)


def test_the_table_of_fields_is_documented() -> None:
    """The page of its accuracy has a row for each."""
    text = PAGE.read_text(encoding="utf-8")
    for field in CLOCK_FIELDS:
        assert field.row() in text
