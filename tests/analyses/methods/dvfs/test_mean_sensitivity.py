"""Mean sensitivities by products of readings and speeds, of made clocks and kernels."""

import numpy as np
import pytest

from chopper_interop.analyses.methods.dvfs.clock_sensor import Assumption, Readings, Work, _quantum
from chopper_interop.analyses.methods.dvfs.mean_sensitivity import mean_sensitivity
from chopper_interop.analyses.methods.dvfs.sensitivity_combination import Mean, Ratio, with_mean

MS = 1e6
STEPS, PLACES, LENGTH_NS = 40, 20, 5 * MS
AT_ONCE = Assumption(0.0, 0.0)


def made(betas: np.ndarray, period_ms: float, window_ms: float, seed: int) -> tuple[Readings, Work]:
    """A job whose clock changes within 60 ms, and readings of means over a window."""
    random = np.random.default_rng(seed)
    fine = np.zeros(int(STEPS * PLACES * LENGTH_NS / MS * 1.6))  # each ms
    for i in range(1, len(fine)):
        fine[i] = fine[i - 1] * (1 - 1 / 60) + 0.05 * np.sqrt(2 / 60) * random.standard_normal()
    share = np.clip(0.8 + fine, 0.4, 1.0)
    until = np.append([0.0], np.cumsum(share))
    n = STEPS * PLACES
    key = np.arange(n) % PLACES % len(betas)
    start, now = np.zeros(n), 0.0
    dur = np.zeros(n)
    for i in range(n):
        start[i] = now
        pace = np.interp(now / MS + 5, np.arange(len(until)), until)
        pace = (pace - np.interp(now / MS, np.arange(len(until)), until)) / 5
        beta = betas[key[i]]
        dur[i] = LENGTH_NS * (1 - beta + beta / pace) * np.exp(0.01 * random.standard_normal())
        now += dur[i] + 1e4
    time = np.arange(window_ms + period_ms, now / MS, period_ms)
    low, high = (np.interp(t, np.arange(len(until)), until) for t in (time - window_ms, time))
    mean = (high - low) / window_ms if window_ms else share[time.astype(int)]
    readings = Readings(
        np.arange(n), start, start + dur, time * MS, np.rint(2000 * mean), period_ms * MS, 0.0, 1.0
    )
    place, phase = np.arange(n) % PLACES, (np.arange(n) % PLACES) / PLACES
    highest = np.full(n, 2000.0)
    return readings, Work(key, dur, np.ones(n, bool), highest, place, phase)


@pytest.mark.parametrize(("period_ms", "window_ms"), [(1, 0), (40, 0), (20, 100)])
@pytest.mark.parametrize("seed", range(3))
def test_kernels_that_follow_the_clock_wholly_do(
    period_ms: float, window_ms: float, seed: int
) -> None:
    """Instants are not the means of kernels: slopes over them alone were up to a fifth too flat."""
    readings, work = made(np.array([1.0, 1.0]), period_ms, window_ms, seed)
    value, error = mean_sensitivity([readings], work, Assumption(window_ms * MS, 0.0))
    assert abs(value - 1) < 2.5 * error
    assert error < 0.15


def test_kernels_count_by_their_time() -> None:
    """A kernel that follows the clock next to one that does not: neither is the mean."""
    betas = np.array([0.9, 0.3])
    readings, work = made(betas, 1, 0, 0)
    pace = np.average(readings.mhz) / 2000
    local = betas / pace / (1 - betas + betas / pace)
    time = np.bincount(work.key, work.dur)
    value, error = mean_sensitivity([readings], work, AT_ONCE)
    assert value == pytest.approx(time @ local / time.sum(), abs=max(2.5 * error, 0.05))


def test_a_clock_that_stays_shows_nothing() -> None:
    readings, work = made(np.array([1.0]), 10, 0, 0)
    still = Readings(
        readings.kernel, readings.start, readings.end, readings.time, 0 * readings.time + 1500,
        readings.period_ns, 0.0, 0.0,
    )  # fmt: skip
    assert not np.isfinite(mean_sensitivity([still], work, AT_ONCE)[1])


def test_two_clocks_show_no_step_of_values() -> None:
    """Their difference was taken for rounding: 300 MHz, more than all that the clock changes."""
    assert _quantum(np.array([1200.0, 1500.0, 1200.0])) <= 15
    assert _quantum(np.array([1995.0, 1965.0, 1980.0])) == 15
    assert _quantum(np.array([1500.0])) == 0


@pytest.mark.parametrize(("error_ns", "mean_ns"), [(1.0, 180.0), (1e6, 190.0)])
def test_a_known_sum_counts_by_how_much_better_it_is_known(error_ns: float, mean_ns: float) -> None:
    log, none = np.log([0.9, 1.0]), np.zeros(2)
    ratio = Ratio(log, np.array([0.1, 0.1]), none, none)
    known = with_mean(ratio, Mean(np.array([100.0, 100.0]), 180.0, error_ns, none, none))
    assert 100 * np.exp(known.log).sum() == pytest.approx(mean_ns, abs=1)
    assert known.settled is not None
    own = 100 * np.exp(log) * known.statistical
    left = own - (own @ known.settled) * known.settled
    assert np.sum(left**2) ** 0.5 == pytest.approx(min(error_ns, 13.5), abs=2)
