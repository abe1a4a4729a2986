"""Laws of kernel times over the clock, their errors, and their sources."""

from pathlib import Path

import numpy as np
import pytest
from clocked_job import MS, job
from hypothesis import given
from hypothesis import strategies as st
from read_once import read_once
from sensed_jobs import filtered
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.methods.dvfs import (
    repeats,
    sensitivity,
    target_clocks,
)
from chopper_interop.analyses.methods.dvfs.clocks import kernel_clocks
from chopper_interop.analyses.methods.dvfs.sources import combination, laws
from chopper_interop.analyses.methods.dvfs.sources import law_fit as fit
from chopper_interop.arrays import arrow
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Device, Rank


def fitted(x: np.ndarray, t: np.ndarray, cluster: np.ndarray | None = None) -> fit.Laws:
    """Fit the law of one kernel."""
    own = np.arange(len(x)) if cluster is None else cluster
    return fit.fit_laws(x, t, np.zeros(len(x), np.int64), fit.Groups(own, own * 0), 1)


def at(laws: fit.Laws, *x: float) -> np.ndarray:
    return laws.times(np.zeros(len(x), np.int64), np.array(x))


@given(st.floats(0, 1), st.floats(1e3, 1e7))
def test_an_exact_line_is_found(beta: float, ns: float) -> None:
    x = np.linspace(0.5, 0.7, 40)
    t = ns * (beta * x / 0.5 + 1 - beta)
    laws = fitted(x, t)
    assert at(laws, 0.45, 0.6, 0.8) == pytest.approx(
        ns * (beta * np.array([0.45, 0.6, 0.8]) / 0.5 + 1 - beta), rel=1e-6
    )
    assert laws.spread[0] == pytest.approx(0, abs=1e-9)


def test_a_bend_is_found() -> None:
    x = np.linspace(0.5, 0.7, 200)
    t = np.maximum(100 * x + 50, 180 * x + 2)  # bends at 0.6
    laws = fitted(x, t)
    assert at(laws, 0.52, 0.6, 0.68) == pytest.approx([102, 110, 124.4], rel=0.01)
    slopes = laws.slopes(np.zeros(2, np.int64), np.array([0.52, 0.68]))
    mixed = np.sum(laws.weight[[0, 0]] * slopes, axis=1)
    assert mixed == pytest.approx([100, 180], rel=0.05)


def test_laws_bend_up_and_weigh_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        laws = fitted(rng.uniform(0.5, 0.8, 60), rng.uniform(90, 110, 60))
        assert (laws.bend >= 0).all()
        assert laws.weight.sum() == pytest.approx(1)


@pytest.mark.parametrize("exponent", [-1.0, -0.3, 1.6, 3.0])
def test_no_kernel_is_slower_at_faster_clocks_nor_gains_more_than_its_cycles(exponent) -> None:
    """Whatever its repeats say."""
    mhz = np.random.default_rng(13).uniform(1500, 1900, 200)
    trace = job(mhz, 1e6 * (1900 / mhz) ** exponent, period_ns=1000, ranks=8)
    for clock in (1200, 2100):
        rows = ci.analyze(trace, "dvfs", by="repeats", clock=str(clock)).rows.to_pylist()
        (row,) = [r for r in rows if r["ceiling"] == "asked"]
        core = np.sum(1e6 * (1900 / mhz) ** exponent * mhz / clock)
        ends = sorted([core, row["measured_ns"]])
        assert ends[0] * 0.999 <= row["ideal_ns"] <= ends[1] * 1.001
        assert 0 <= row["beta_low"] <= row["beta"] <= row["beta_high"] <= 1


@pytest.mark.parametrize("power", slow_from([1.0, 2.0, 4.0], 1))
@pytest.mark.parametrize("core", slow_from([0.2, 0.9, 0.5, 1.0], 1))
def test_smooth_laws_are_within_the_interval(power: float, core: float) -> None:
    """Kernels that no law is made for: core and memory time overlap to some degree."""
    rng = np.random.default_rng(6)
    inside = []
    for _ in range(20):
        mhz = rng.uniform(1500, 1900, 200)
        parts = (core * 1900 / mhz) ** power + (1 - core) ** power
        t = 1e6 * parts ** (1 / power)
        trace = job(mhz, t * rng.normal(1, 0.01, 200), period_ns=1000, ranks=8)
        together, *_ = sensitivity.kernel_sensitivities(trace).ratio(np.full(200, 2100.0))
        there = 1e6 * ((core * 1900 / 2100) ** power + (1 - core) ** power) ** (1 / power)
        true = np.log(there / np.average(t, weights=t))
        inside.append(abs(together.log[0] - true) < 1.96 * together.variance[0] ** 0.5)
    assert np.mean(inside) >= 0.9


def test_outliers_do_not_move_it() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(0.5, 0.7, 300)
    t = (50 + 100 * x) * rng.normal(1, 0.01, 300)
    clean = at(fitted(x, t), 0.5)
    t[:20] *= 3
    assert at(fitted(x, t), 0.5) == pytest.approx(clean, rel=0.01)


def test_errors_of_a_line_are_those_of_least_squares() -> None:
    """The jackknife's variance of a slope, against repeated draws of the same noise."""
    rng = np.random.default_rng(2)
    x = np.linspace(0.5, 0.7, 80)
    slopes, claimed = [], []
    for _ in range(300):
        t = (50 + 100 * x) * rng.normal(1, 0.02, len(x))
        laws = fitted(x, t)
        if laws.best[0] == 0:
            slopes.append(laws.slope[0, 0])
            claimed.append(laws.covariance[0, 1, 1] ** 0.5)
    assert np.mean(claimed) == pytest.approx(np.std(slopes), rel=0.15)


@pytest.mark.parametrize("beta", [0.0, 0.02, 0.98, 1.0])
def test_errors_are_the_same_at_the_ends(beta: float) -> None:
    """For kernels that follow the clock not at all or in full: as by least squares, and no bias."""
    rng = np.random.default_rng(11)
    x = 1 + rng.normal(0, 0.03, 48)
    every = np.arange(48) % 8
    slopes, claimed = [], []
    for _ in range(200):
        t = 1e6 * (1 - beta + beta * x) * rng.normal(1, 0.05, 48)
        laws = fitted(x, t, every)
        if laws.best[0] == 0:
            slopes.append(laws.slope[0, 0] / 1e6)
            claimed.append(laws.covariance[0, 1, 1] ** 0.5 / 1e6)
    assert min(claimed) > 0.05
    assert np.mean(claimed) == pytest.approx(np.std(slopes), rel=0.3)
    assert np.mean(slopes) == pytest.approx(beta, abs=0.06)


def test_errors_that_repeats_share_are_not_averaged_away() -> None:
    rng = np.random.default_rng(3)
    gpu = np.repeat(np.arange(8), 50)
    x = 0.5 + 0.02 * gpu + rng.uniform(0, 0.002, len(gpu))
    t = (50 + 100 * x) * rng.normal(1, 0.001, len(gpu)) * rng.normal(1, 0.02, 8)[gpu]
    alone = fitted(x, t).covariance[0, 1, 1] ** 0.5
    assert fitted(x, t, gpu).covariance[0, 1, 1] ** 0.5 > 3 * alone


def drifting(rng: np.random.Generator, ranks: int, times: int, memory: float) -> np.ndarray:
    """Clocks of ranks over time: 1700 MHz and 6 % around it, exponentially correlated."""
    keep = np.exp(-1 / memory)
    drawn = rng.normal(size=(times + 1, ranks))
    drawn[1:] *= np.sqrt(1 - keep**2)
    result = np.stack([filtered(drawn[:-1, i].copy(), keep) for i in range(ranks)], axis=1)
    return 1700 * np.exp(kernel_clocks.PRIOR_SHARE * result)


@pytest.mark.parametrize(
    ("beta", "period"),
    slow_from(
        [
            *((0.3, 1), (0.7, 100)),
            *((0.3, 150), (0.7, 50), (0.3, 50), (0.3, 100), (0.7, 1), (0.7, 150)),
        ],
        1,
    ),
)
def test_samples_that_are_old_do_not_bend_the_slope(beta: float, period: int) -> None:
    """Clocks sampled every `period` tenths of a millisecond and held; they are correlated over 20 ms."""
    result, n, ranks, every = [], 200, 8, 30
    for seed in range(6):
        rng = np.random.default_rng(seed)
        mhz = drifting(rng, ranks, (n + 1) * every + period, 200)
        at = period + every * np.arange(n)[:, None] + rng.integers(0, every, (n, ranks))
        held = at // period * period
        true, sampled = (np.take_along_axis(mhz, m, axis=0).ravel() for m in (at, held))
        t = 2e5 * (beta * 1700 / true + 1 - beta) * rng.normal(1, 0.01, n * ranks)
        trace = job(sampled, t, period_ns=period * MS // 10, ranks=ranks, gap_ns=28 * MS // 10)
        rows = ci.analyze(trace, "dvfs", by="repeats", clock="2100").rows.to_pylist()
        result.append(rows[0]["beta_regression"])
    assert np.mean(result) == pytest.approx(beta, rel=0.05)


def drawn(seed: int) -> dict[str, float]:
    """Draw a job at random; return the errors of its predictions against the truth."""
    rng = np.random.default_rng(seed)
    n, ranks, every, period = int(rng.choice([12, 25, 60])), 8, 30, (1, 50, 100)[seed % 3]
    spread, noise = rng.uniform(0.05, 0.07), rng.choice([0.005, 0.02, 0.05])
    name, betas = (("copy", [0, 0.02, 0.15, 0.3, 0.5]), ("Cijk_gemm", [0.5, 0.7, 0.85, 0.98, 1]))[
        rng.integers(2)
    ]
    beta = float(rng.choice(betas))
    mhz = drifting(rng, ranks, (n + 1) * every + period, 200)
    mhz = 1700 * (mhz / 1700) ** (spread / kernel_clocks.PRIOR_SHARE)
    at = period + every * np.arange(n)[:, None] + rng.integers(0, every, (n, ranks))
    true, sampled = (np.take_along_axis(mhz, m, 0).ravel() for m in (at, at // period * period))
    factor = rng.normal(1, noise, n * ranks)
    dur = 2e5 * (beta * 1700 / true + 1 - beta) * factor
    sizes = {"ranks": ranks, "gap_ns": 28 * MS // 10, "names": [name] * len(dur)}
    trace = job(sampled, dur, period_ns=period * MS // 10, **sizes)
    (row,) = ci.analyze(trace, "dvfs", by="repeats", clock="2100").rows.to_pylist()
    then = np.sum(2e5 * (beta * 1700 / 2100 + 1 - beta) * factor)
    share = np.average(beta * 1700 / true / (beta * 1700 / true + 1 - beta), weights=dur)
    half = (row["ideal_high_ns"] - row["ideal_low_ns"]) / 2
    slope = np.nan if row["beta_regression"] is None else row["beta_regression"] - share
    return {
        "error": row["ideal_ns"] / then - 1,
        "z": 1.96 * (row["ideal_ns"] - then) / half,
        "inside": row["ideal_low_ns"] <= then <= row["ideal_high_ns"],
        "beta inside": row["beta_low"] <= share <= row["beta_high"],
        "slope z": slope / (row["beta_regression_error"] or np.nan),
    }


@pytest.mark.slow
@pytest.mark.parametrize("seeds", slow_from([48, 120], 1))
def test_intervals_are_neither_too_narrow_nor_too_wide(seeds: int) -> None:
    """Over clocks, noises and sensitivities to either end, sampled every 0.1, 5 and 10 ms."""
    actual = [drawn(seed) for seed in range(seeds)]
    mean = {name: np.nanmean([each[name] for each in actual]) for name in actual[0]}
    assert mean["inside"] > 0.85
    assert mean["beta inside"] > 0.85
    assert abs(mean["error"]) < 0.01
    assert abs(mean["slope z"]) < 0.3
    assert abs(mean["z"]) < 0.5
    assert 0.6 < np.std([each["z"] for each in actual]) < 1.1  # wider ones would always be right


def test_noise_of_counted_clocks_bends_the_slope_twice_as_much() -> None:
    changed = np.array([0.1, 0.02])
    assert kernel_clocks.attenuation(changed) == pytest.approx(1 - changed / 2, rel=1e-3)
    assert kernel_clocks.attenuation(np.array([0.0, 1.0, 7.0])) == pytest.approx([1, 0, 0])


def test_a_known_law_gives_the_time_at_another_clock() -> None:
    rng = np.random.default_rng(4)
    mhz = rng.uniform(1500, 2000, 400)
    t = 1e6 * (0.8 * 2000 / mhz + 0.2)
    trace = job(mhz, t * rng.normal(1, 0.005, 400), period_ns=1000, ranks=8)
    known = sensitivity.kernel_sensitivities(trace)
    asked = np.full(400, 2000.0)
    together, each, weight = known.ratio(asked)
    true = np.log(1e6 / np.average(t, weights=t))
    assert together.log[0] == pytest.approx(np.log(1e6 * 400 / t.sum()), abs=0.01)
    assert abs(together.log[0] - true) < 0.02
    assert weight[0, 0] > 0.8  # the regression
    beta, *_ = known.beta(each, asked)
    local = np.average(0.8 * 2000 / mhz / (0.8 * 2000 / mhz + 0.2), weights=t)
    assert abs(beta.value[0] - local) < 1.96 * beta.error[0]


@pytest.mark.parametrize(
    ("count", "spread", "period_ns", "missing"),
    [
        (10, 100, 1000, "repeats"),
        (200, 1, 1000, "spread of the clock"),
        (200, 100, 100 * MS, "resolution of the clock"),
        (200, 100, 1000, ""),
    ],
)
def test_requirements_of_a_law(count: int, spread: float, period_ns: int, missing: str) -> None:
    rng = np.random.default_rng(5)
    mhz = 1800 + rng.uniform(-spread, spread, count)
    trace = job(mhz, 1e6 * 1800 / mhz, period_ns=period_ns, ranks=5)
    assert laws.MISSING[sensitivity.kernel_sensitivities(trace).regression.why_not[0]] == missing


def test_kernels_without_a_clock_count_like_the_others() -> None:
    rng = np.random.default_rng(7)
    mhz = rng.uniform(1500, 2000, 300)
    t = 1e6 * (0.7 * 2000 / mhz + 0.3)
    mhz[200:] = np.nan
    trace = job(mhz, t, period_ns=1000, ranks=6)
    result = ci.analyze(trace, "dvfs", clock="2000")
    assert result.summary["asked"]["ideal_step_ns"] is not None
    rows = ci.analyze(trace, "dvfs", by="job", clock="0.9x").rows.to_pylist()
    assert all(row["ideal_ns"] is not None for row in rows)
    total = sum(
        row["ideal_ns"]
        for row in ci.analyze(trace, "dvfs", by="repeats", clock="2000").rows.to_pylist()
        if row["ceiling"] == "asked"
    )
    assert total == pytest.approx(300e6, rel=0.02)
    assert "100 of 300" in result.notes["clocks that are not known"]


def test_one_gpu_and_one_step_are_enough_for_a_law() -> None:
    rng = np.random.default_rng(8)
    mhz = rng.uniform(1500, 2000, 100)
    trace = job(mhz, 1e6 * 2000 / mhz * rng.normal(1, 0.005, 100), period_ns=1000)
    _, _, weight = sensitivity.kernel_sensitivities(trace).ratio(np.full(100, 2000.0))
    assert weight[0, 0] > 0.5


def test_slow_down_by_communication_is_not_taken_for_a_clock() -> None:
    builder = TraceBuilder()
    lanes = [builder.lane(0, LaneKind.STREAM, n, "s", 0) for n in (7, 8)]
    rng = np.random.default_rng(9)
    mhz = rng.uniform(1600, 2000, 200)
    dur = 1e6 * 2000 / mhz
    dur[::2] *= 1.3
    start = np.cumsum(dur + 100) - dur
    for i in range(200):
        for lane, kind in ((0, Kind.KERNEL), (1, Kind.COMM)):
            if lane == 0 or i % 2 == 0:
                builder.nodes(
                    kind=int(kind), name="Cijk" if lane == 0 else "nccl", rank=0, lane=lanes[lane],
                    ts=np.array([int(start[i])]), dur=np.array([int(dur[i])]),
                )  # fmt: skip
    trace = builder.finish()
    kernels = trace.array("kind") == Kind.KERNEL
    column = np.full(len(kernels), np.nan)
    column[kernels] = mhz
    trace = trace.with_columns(
        gfxclk_mhz=arrow.array(column, mask=np.isnan(column)),
        telemetry_ns=arrow.array(np.full(len(kernels), 1000)),
    )
    together, *_ = sensitivity.kernel_sensitivities(trace).ratio(np.full(200, 2000.0))
    true = np.log(1e6 * (100 + 130) / dur.sum())
    assert together.log[0] == pytest.approx(true, abs=0.01)


def test_locked_clocks_fall_back_on_the_class_and_say_so() -> None:
    trace = job(np.full(50, 1400.0), np.full(50, 1e6))
    result = ci.analyze(trace, "dvfs", by="repeats", clock="2000")
    (row,) = [r for r in result.rows.to_pylist() if r["ceiling"] == "asked"]
    assert row["beta_source"] == "prior"
    assert row["no_regression"] == "spread of the clock"
    expected = 50e6 * (1 - 0.8 * (1 - 1400 / 2000))
    assert row["ideal_ns"] == pytest.approx(expected, rel=1e-3)
    assert row["ideal_low_ns"] < 0.95 * expected < 1.05 * expected < row["ideal_high_ns"]


def test_repeats_are_distinguished_by_shapes(tmp_path: Path) -> None:
    text = '{"traceEvents": [%s]}'
    events, ts = [], 0
    for size in (128, 256, 128):
        ts += 100
        args = f'"External id": {ts}, "Input Dims": [[{size}, 4]]'
        events.append(
            f'{{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": {ts}, '
            f'"dur": 50, "args": {{{args}}}}}'
        )
        events.append(
            f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, '
            f'"ts": {ts + 10}, "dur": 5, "args": {{"correlation": {ts}, "External id": {ts}}}}}'
        )
        events.append(
            f'{{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": {ts + 20}, '
            f'"dur": 30, "args": {{"correlation": {ts}, "grid": [1, 1, 1], "stream": 7, "device": 0}}}}'
        )
    path = tmp_path / "trace.json"
    path.write_text(text % ", ".join(events))
    _, key = repeats.same_kernels(ci.read(path))
    assert key.tolist() == [0, 1, 0]


def test_a_clock_that_stays_has_no_error_beyond_a_law_either() -> None:
    rng = np.random.default_rng(16)
    mhz = rng.uniform(1500, 1900, 200)
    law = sensitivity.kernel_sensitivities(
        job(mhz, 1e6 * 1900 / mhz, period_ns=1000, ranks=8)
    ).regression
    kernel, x = np.zeros(3, np.int64), 1000 / np.array([1300.0, 1700.0, 2100.0])
    here, there, way, _ = law.within(kernel, x, x)
    assert (here == there).all()
    assert (way == 0).all()
    assert law.within(kernel[:1], x[1:2], x[2:])[2][0] == pytest.approx(law.fast[0] - x[2])


def test_products_have_laws_of_their_own() -> None:
    """A product at low clocks that is slower for another reason does not show what clocks do."""
    rng = np.random.default_rng(13)
    rank = np.arange(320) % 8
    fast = rank >= 4
    mhz = np.where(fast, rng.uniform(1950, 2100, 320), rng.uniform(1550, 1700, 320))
    trace = job(mhz, np.where(fast, 8e5, 2e6), period_ns=1000, ranks=8)
    trace = trace.with_meta(
        ranks=tuple(Rank(r, host="ab"[r // 4], device=0) for r in range(8)),
        devices=(Device("a", 0, "AMD Instinct MI250X"), Device("b", 0, "AMD Instinct MI300X")),
    )
    rows = ci.analyze(trace, "dvfs", by="repeats", clock="1000").rows.to_pylist()
    asked = [row for row in rows if row["ceiling"] == "asked"]
    assert sorted(row["measured_ns"] for row in asked) == [128_000_000, 320_000_000]
    for row in asked:
        assert row["ideal_ns"] == pytest.approx(row["measured_ns"], rel=1e-3)


def test_clock_errors_grow_with_the_time_between_samples() -> None:
    errors = []
    for period in (MS // 10, MS, 10 * MS, 100 * MS, 1000 * MS):
        trace = job(np.full(4, 1800.0), np.full(4, 1e5), period_ns=period)
        errors.append(kernel_clocks.kernel_clocks(trace, np.arange(4)).error_share[0])
    assert errors == sorted(errors)
    assert errors[-1] == pytest.approx(kernel_clocks.PRIOR_SHARE, rel=0.01)


def test_a_clock_of_unknown_resolution_is_known_as_well_as_any() -> None:
    rng = np.random.default_rng(12)
    mhz = rng.uniform(1500, 1900, 60)
    trace = job(mhz, 1e6 * 1900 / mhz, period_ns=0)
    assert (
        kernel_clocks.kernel_clocks(trace, np.arange(60)).error_share == kernel_clocks.PRIOR_SHARE
    ).all()
    result = ci.analyze(trace, "dvfs", clock="1900")
    assert result.summary["asked"]["ideal_step_low_ns"] < result.summary["measured_step_ns"]
    assert "no rows" not in result.notes


def test_kernels_much_longer_than_a_sample_know_their_clock() -> None:
    trace = job(np.full(2, 1800.0), np.array([1e5, 1e8]), period_ns=MS)
    short, long_ = kernel_clocks.kernel_clocks(trace, np.arange(2)).error_share
    assert long_ == pytest.approx(short / 12, rel=0.05)


@pytest.mark.slow
def test_kernel_clocks_by_the_age_of_samples() -> None:
    """Changes of a clock over kernels that begin anywhere, as they are and as they are sampled."""
    rng = np.random.default_rng(10)
    period = 50
    clock = np.cumsum(rng.normal(size=(1000, 40 * period)), axis=1)
    held = np.repeat(clock[:, ::period], period, axis=1)
    until = np.cumsum(
        held - clock, axis=1
    )  # sums up to each time, of which kernels have differences
    step = np.square(np.diff(clock[:, ::period])).mean() / 2
    for periods in (0.02, 0.5, 1, 4, 20):
        length = int(periods * period)
        start = 1 + rng.integers(0, 19 * period, 100)
        wrong = np.square((until[:, start + length - 1] - until[:, start - 1]) / length)
        trace = job(np.full(2, 1800.0), np.array([1e3, periods * MS]))
        short, own = kernel_clocks.kernel_clocks(trace, np.arange(2)).error_share
        assert (own / short) ** 2 == pytest.approx(np.mean(wrong) / step, rel=0.15)


@pytest.mark.parametrize(
    ("text", "value", "change"),
    [
        ("1900", 1900, False),
        ("1900MHz", 1900, False),
        ("0.9x", 0.9, True),
        ("max 1700", 1700, True),
    ],
)
def test_clocks_are_parsed(text: str, value: float, change: bool) -> None:  # noqa: FBT001
    clock = target_clocks.parse_clock(text)
    assert (clock.value, clock.is_change) == (value, change)


@pytest.mark.parametrize("text", ["", "x", "-3", "1e400", "nan", "1900 GHz", "max0.9x", "0"])
def test_texts_that_are_no_clock_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 # any text
        target_clocks.parse_clock(text)


def test_counters_of_the_run_itself_show_its_clock(tmp_path: Path) -> None:
    demo = make_demo(tmp_path / "demo", ranks=1, layers=1, steps=1)
    trace = read_once(demo / "rocprof" / "pmc_1")
    clocks = kernel_clocks.kernel_clocks(trace, np.flatnonzero(trace.array("kind") == Kind.KERNEL))
    mhz = clocks.mhz[~np.isnan(clocks.mhz)]
    assert mhz.size > 10
    assert mhz.min() > 1700
    assert mhz.max() < 2150
    summary = ci.analyze(trace, "dvfs").summary
    assert 0.9 < summary["ideal_step_ns"] / summary["measured_step_ns"] <= 1


def test_real_counters_show_a_clock() -> None:
    path = real("rocprof/rocprof_compute_pmc/omp_MI300A")
    summary = ci.analyze(read_once(path), "dvfs").summary
    low, high = summary["ideal_step_low_ns"], summary["ideal_step_high_ns"]
    assert low < summary["measured_step_ns"] < high  # its kernels ran at the highest clock


def test_an_infinite_error_of_one_kernel_is_not_in_common() -> None:
    three = np.array([3.0, 3.0])
    of_its_own, alike = np.zeros((2, 1)), np.ones((2, 1))
    infinite = combination.Ratio(
        three, np.array([np.inf, 4.0]), three, three * 0, direction=of_its_own
    )
    assert infinite.common.tolist() == [3, 3]
    assert infinite._replace(direction=alike).common.tolist() == [np.inf, 5]
