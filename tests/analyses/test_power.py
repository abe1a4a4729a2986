"""The analysis of power: rows by GPU and by class of work, and clocks under caps."""

import json
from pathlib import Path

import numpy as np
import power_jobs
import pytest
from read_once import read_once
from sensor_jobs.cells import Cell, truth_of, write_job
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.methods.power.bins import Bins
from chopper_interop.analyses.methods.power.decays import Decay, idle_decay
from chopper_interop.analyses.methods.power.response import Observed
from chopper_interop.analyses.power import _Idle, _idle_note, power
from chopper_interop.annotate.stages import annotate
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.demo.clock import POWER_EXPONENT
from chopper_interop.errors import ChopperError, UsageError
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.testing import check_analysis


@pytest.fixture(scope="module")
def job() -> ci.Trace:
    return power_jobs.trace(power_jobs.job(ranks=2, steps=4, seed=0), 1000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("power") / "job"
    return make_demo(where, ranks=2, layers=2, steps=4, counter_steps=1, power_w=550)


def test_by_rank(job) -> None:
    check_analysis(power, job)
    result = power(job)
    assert "first start to the last end" in result.notes["window"]
    assert result.rows["rank"].to_pylist() == [0, 1]
    for row in result.rows.to_pylist():
        assert row["exponent_ratio"] == pytest.approx(
            POWER_EXPONENT, abs=2.5 * row["exponent_error_ratio"]
        )
        assert row["idle_w"] is None, "2 ms of idle at most, behind a filter of 5 ms"
        assert row["explained_share"] > 0.999
        assert row["cross_share"] < 0.01
        assert row["sensor"] == "exponential filter"
        assert row["source"] == "smi"
    assert result.summary["gpus"] == 2
    assert result.summary["worst_cross_share"] < 0.01
    assert "without a model" not in result.notes


def test_by_class_adds_up(job) -> None:
    mean_power = {row["rank"]: row["mean_power_w"] for row in power(job).rows.to_pylist()}
    rows = power(job, by="class").rows.to_pylist()
    for rank, mean in mean_power.items():
        of_rank = [row for row in rows if row["rank"] == rank]
        assert sum(row["mean_power_w"] for row in of_rank) == pytest.approx(mean)
        assert sum(row["energy_share"] for row in of_rank) == pytest.approx(1)
        drawn = {row["class"]: row["dynamic_w"] for row in of_rank}
        assert drawn["matrix"] > drawn["attention"] > drawn["vector"] > drawn["comm"]
        assert of_rank[-1]["class"] == "idle"


def test_caps_make_rows(job) -> None:
    rows = power(job, caps="500, 600", held=600.0, ranks="0").rows.to_pylist()
    assert [(row["rank"], row["cap_w"]) for row in rows] == [(0, 500), (0, 600)]
    for row in rows:
        assert row["capped_low_mhz"] <= row["capped_mhz"] <= row["capped_high_mhz"]
    # Held where it was, the clock is what it was.
    assert rows[1]["capped_mhz"] == pytest.approx(rows[1]["f_ref_mhz"], rel=0.005)
    assert rows[0]["capped_mhz"] < rows[1]["capped_mhz"]


def test_a_note_names_caps_that_no_clock_is_held_at(job) -> None:
    result = power(job, caps="50,500")
    low, held = (
        [r["capped_mhz"] for r in result.rows.to_pylist() if r["cap_w"] == cap] for cap in (50, 500)
    )
    assert set(low) == {None}
    assert None not in held
    assert result.notes["caps that no clock is held at"].startswith("50 W of 2 GPUs")


def test_invalid_options_are_refused(job) -> None:
    for options in (
        {"by": "layer"},
        {"caps": "many"},
        {"caps": "-5"},
        {"caps": "nan"},
        {"caps": "500", "by": "class"},
        {"ranks": "7"},
        {"held": -1.0},
        {"held": float("nan")},
    ):
        with pytest.raises(UsageError):
            power(job, **options)


def test_without_power_the_notes_say_why() -> None:
    none = power_jobs.trace(power_jobs.job(ranks=2, steps=4, seed=0), 100, power=False)
    result = power(none)
    check_analysis(power, none)
    assert result.rows.num_rows == 0
    assert "no power was sampled" in result.notes["without a model"]
    empty = power(TraceBuilder().finish())
    assert empty.rows.num_rows == 0
    assert empty.notes["no rows"]
    assert empty.summary["idle_w"] is None


@pytest.mark.slow
def test_a_job_from_its_files(folder) -> None:
    trace = ci.read(folder)
    check_analysis(power, trace)
    truth = json.loads((folder / "truth.json").read_bytes())
    assert truth["parameters"]["power_w"] == 550
    for row in power(trace).rows.to_pylist():
        assert row["exponent_ratio"] == pytest.approx(POWER_EXPONENT, abs=0.15)
        assert row["cross_share"] < 0.01
        assert row["clock_from"] == "followed by samples"
        assert row["mean_power_w"] == pytest.approx(500, abs=60)


def with_work(telemetry: ci.Trace) -> ci.Trace:
    """Samples of a rank's first GPU that has power, and kernels while they were taken."""
    builder = TraceBuilder()
    names = telemetry.series["name"].to_pylist()
    owner = telemetry.array("series", "samples")
    powers = [i for i, name in enumerate(names) if name.startswith("socket power")]
    if not powers:
        return builder.finish()
    device = telemetry.series["device"][powers[0]].as_py()
    span = telemetry.array("ts", "samples")[owner == powers[0]]
    lane = builder.lane(0, LaneKind.STREAM, 1, "s", 0)
    step = max(int(span.max() - span.min()) // 200, 1)
    ts = span.min() + np.arange(200) * step
    for offset, name in enumerate(("Cijk_gemm", "add_kernel")):
        starts = ts[offset::3]
        builder.nodes(
            kind=int(Kind.KERNEL), name=name, rank=0, lane=lane,
            ts=starts, dur=np.full(len(starts), step),
        )  # fmt: skip
    for row, series in enumerate(telemetry.series.to_pylist()):
        if series["device"] == device:
            made = builder.series(
                0, series["name"], series["unit"], series["source"], device=0,
                uncertainty_ns=series["uncertainty_ns"],
            )  # fmt: skip
            columns = (telemetry.array(name, "samples")[owner == row] for name in ("ts", "value"))
            builder.samples(made, *columns)
    return builder.finish()


@pytest.mark.parametrize("step", slow_from([4, 1], 1))
def test_real_telemetry_with_made_up_work(step: int) -> None:
    """No public input has both kernels and power, so kernels are made up here."""
    fitted = 0
    for path in sorted(p for p in real("telemetry").rglob("*") if p.is_file())[::step]:
        try:
            trace = with_work(read_once(path))
        except ChopperError:
            continue
        if not trace.nodes.num_rows:
            continue
        result = power(trace, caps="300,500")
        fitted += result.summary["gpus"]
        for row in result.rows.to_pylist():
            numbers = [v for v in row.values() if isinstance(v, float)]
            assert np.isfinite(numbers).all(), path
            assert row["idle_w"] is None or 0 <= row["idle_w"] <= 1.05 * row["mean_power_w"] + 1, (
                path
            )
        assert result.rows.num_rows or "power" in result.notes["without a model"]
    assert fitted


def test_idle_that_no_sample_can_show_is_not_known() -> None:
    """Gaps of 5 ms between kernels, and power as running means of 100 ms."""
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 7, "s", 0)
    start = np.arange(400) * 25_000_000
    builder.nodes(
        kind=int(Kind.KERNEL), name="Cijk_gemm", rank=0, lane=lane, ts=start, dur=20_000_000
    )
    series = builder.series(0, "socket power", "W", "amd-smi", device=0)
    ts = np.arange(0, 10_000_000_000, 50_000_000)
    builder.samples(series, ts, 600.0 + np.random.default_rng(0).normal(0, 5, len(ts)))
    result = ci.analyze(annotate(builder.finish()), "power")
    (row,) = result.rows.to_pylist()
    assert row["idle_w"] is None
    assert row["idle_error_w"] is None
    assert result.summary["idle_w"] is None
    assert "idle was never seen" in result.notes


def test_a_window_of_a_step_and_a_little_shows_no_idle(tmp_path: Path) -> None:
    """A mean over 100 ms of steps of 91 ms looks like one over 9 ms, and idle power like 341 W instead of 130."""
    truth = truth_of("constant", "amd", 61201, bubble_ns=15_000_000)
    write_job(truth.run, Cell("constant", "1kHz", "instant"), tmp_path, "mean100")
    result = ci.analyze(ci.read(tmp_path), "power")
    assert [row["idle_w"] for row in result.rows.to_pylist()] == [None, None]
    assert "idle was never seen" in result.notes


MS = 1_000_000


def _overshooting_job(idle_ms: int, hold_ms: int = 1) -> dict[str, float]:
    """Fit steps of 100 ms and idle times, 130 W, after which power is a third too high for some time.

    The sensor is a filter of 30 ms, read each ms, that shows a new value each `hold_ms`.
    """
    step = 100 + idle_ms
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 7, "s", 0)
    start = np.arange(20) * step * 1_000_000
    builder.nodes(
        kind=int(Kind.KERNEL), name="Cijk_gemm", rank=0, lane=lane, ts=start, dur=100_000_000
    )
    ms = np.arange(20 * step)
    level = np.random.default_rng(0).normal(600, 10, 20)[
        ms // step
    ]  # else all steps are rounded alike
    drawn = np.where(ms % step < 100, level + 200 * np.exp(-(ms % step) / 10), 130.0)
    shown = [600.0]
    for watts in drawn.tolist():
        shown.append(watts + (shown[-1] - watts) * np.exp(-1 / 30))
    series = builder.series(0, "socket power", "W", "amd-smi", device=0)
    builder.samples(series, ms * 1_000_000, np.round(np.array(shown)[ms // hold_ms * hold_ms]))
    (row,) = ci.analyze(annotate(builder.finish()), "power").rows.to_pylist()
    return row


@pytest.mark.parametrize("idle_ms", [8, 15, 40])
def test_idle_behind_a_filter_is_what_power_falls_towards(idle_ms: int) -> None:
    """Power that returns sooner than the work says looks like that of a shorter filter and a higher idle power."""
    row = _overshooting_job(idle_ms)
    assert row["sensor"] == "exponential filter"
    assert row["sensor_ns"] == pytest.approx(30e6, rel=0.15)
    assert row["idle_w"] == pytest.approx(130, abs=2 * row["idle_error_w"])
    assert row["idle_error_w"] < 20


def test_an_even_fall_is_no_decay() -> None:
    """A mean over a window, whatever a decay that is like it would end at."""
    bins = Bins(0, 1_000_000, 1000, 1000)
    ts = np.arange(0, 1_000_000_000, 10_000_000) + 5_000_000
    since = ts % 100_000_000  # each idle time lasts 40 ms
    random = np.random.default_rng(0)
    watts = 130 + random.normal(400, 20, 10)[ts // 100_000_000] * np.maximum(1 - since / 20e6, 0)
    is_idle = np.arange(1000) % 100 < 40
    decays = 130 + 400 * np.exp(-since / 20e6)
    for value, is_decay in ((decays, True), (watts, False)):
        seen = Observed(
            ts, ts, np.round(value), is_rate=False, period_ns=10_000_000, uncertainty_ns=0
        )
        assert (idle_decay(bins, is_idle, seen, 0.0) is not None) == is_decay


def _decay(
    since_ms: np.ndarray,
    *,
    idle_w: float = 130.0,
    width_ms: float = 20.0,
    blur_ms: int = 0,
    **of: int,
) -> Decay | None:
    """Fit samples each ms of steps of 100 ms, of which 40 are idle, that show power this long after the idle time began.

    Before that they show that of work.
    """
    ms = np.arange(1000)
    height = np.random.default_rng(0).normal(400, 20, 10)[ms // of.get("period_ms", 100) % 10]
    falls = (since_ms >= 0) & (since_ms < 40)
    watts = idle_w + height * np.where(falls, np.exp(-since_ms / width_ms), 1.0)
    ts = ms * MS
    seen = Observed(
        ts, ts, np.round(watts), is_rate=False, period_ns=MS, uncertainty_ns=blur_ms * MS
    )
    bins = Bins(0, MS, 1000, of.get("block", 1000))
    return idle_decay(bins, ms % 100 < 40, seen, of.get("delay_ms", 0) * MS)


@pytest.mark.parametrize(
    ("shift_ms", "known"),
    [(0, {}), (6, {"delay_ms": 6}), (6, {"blur_ms": 6}), (-6, {"blur_ms": 6})],
)
def test_a_decay_is_of_samples_that_are_surely_within_the_idle_time(
    shift_ms: int, known: dict[str, int]
) -> None:
    """Power shows later, or times of samples are uncertain: those next to work may show it."""
    decay = _decay(np.arange(1000) % 100 - shift_ms, **known)
    assert decay is not None
    assert decay.idle_w == pytest.approx(130, abs=2)
    assert np.exp(decay.log_width) == pytest.approx(20e6, rel=0.02)


def _noisy_decay(
    noise_w: float, seed: int = 0, *, idle_w: float = 130.0, step_ms: float = 1.0, count: int = 40
) -> Decay | None:
    """Fit this many samples in each of 20 idle times."""
    number, nth = np.divmod(np.arange(20 * count), count)
    since_ms = 1 + number % 5 / 2 + step_ms * nth
    ts = np.rint((number * 100 + since_ms) * MS).astype(np.int64)
    watts = idle_w + 400 * np.exp(-since_ms / 10)
    watts += noise_w * np.random.default_rng(seed).standard_normal(len(ts))
    seen = Observed(ts, ts, np.round(watts), is_rate=False, period_ns=MS, uncertainty_ns=0)
    return idle_decay(Bins(0, MS, 2000, 2000), np.arange(2000) % 100 < 60, seen, 0.0)


@pytest.mark.parametrize("idle_w", np.arange(128.0, 130.0, 0.17).tolist())
def test_samples_that_repeat_are_rounded_alike(idle_w: float) -> None:
    """Idle times that are equal to the bit say no more than one of them: 129.49 +- 0.01 W were found for 130."""
    decay = _noisy_decay(0.0, idle_w=idle_w)
    assert decay is not None
    by_width = decay.idle_rise_w * decay.log_width_error
    assert abs(decay.idle_w - idle_w) < 2 * np.hypot(decay.idle_error_w, by_width)
    assert decay.idle_error_w < 1


@pytest.mark.parametrize(("count", "is_known"), [(2, False), (3, True)])
def test_three_samples_of_each_idle_time_show_a_decay(count: int, *, is_known: bool) -> None:
    assert (_noisy_decay(0.5, step_ms=12, count=count) is not None) == is_known


def test_errors_are_of_samples_that_count_twice() -> None:
    """The fit of all samples that follows has those of idle times as well."""
    decays = [_noisy_decay(10.0, seed) for seed in range(40)]
    scatter = np.std([decay.log_width for decay in decays if decay], ddof=1)
    error = np.mean([decay.log_width_error for decay in decays if decay])
    assert error / scatter == pytest.approx(2**0.5, rel=0.2)


def test_a_time_constant_is_known_to_a_third() -> None:
    """Beyond that, idle power is no straight line over it."""
    decays = [_noisy_decay(noise_w, count=20) for noise_w in np.arange(1.0, 200.0, 3.0)]
    errors = [decay.log_width_error for decay in decays if decay]
    assert 0.25 < max(errors) < 0.35
    assert None in decays


def test_idle_times_of_two_excerpts_are_two() -> None:
    """The second begins where the first ends, with a height of its own."""
    decay = _decay(np.arange(1000) % 20, block=20, period_ms=20)
    assert decay is not None
    assert decay.idle_w == pytest.approx(130, abs=5)


@pytest.mark.parametrize("law", [{"idle_w": -60.0}, {"width_ms": 800.0}])
def test_a_decay_without_idle_power_is_none(law: dict[str, float]) -> None:
    """It ends below 0, or so late that samples do not show where."""
    assert _decay(np.arange(1000) % 100, **law) is None


def test_a_fall_that_samples_do_not_determine_shows_no_idle() -> None:
    """Two values within each idle time lie on any decay."""
    assert _overshooting_job(15, hold_ms=10)["idle_w"] is None


def test_the_note_of_unseen_idle_is_of_one_gpu() -> None:
    """Nothing ran for longer than samples of the other GPU show: numbers of two GPUs would contradict."""
    idles = [_Idle(50e6, 80e6, 500.0), _Idle(5e6, 10e6, 400.0)]
    note = _idle_note(idles)["idle was never seen"]
    assert "50 ms at the most where samples show 80 ms" in note
