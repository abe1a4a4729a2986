"""Windows of averaging that readings rule out by themselves."""

import numpy as np
import pytest
from slow import slow_from

from chopper_interop.analyses.methods.dvfs.clocks.clock_sensor import Readings
from chopper_interop.analyses.methods.dvfs.clocks.sensor_fit import WINDOWS_NS
from chopper_interop.analyses.methods.dvfs.clocks.series_windows import has_clock, possible_windows

MS = 1_000_000
HIGHEST, UNKNOWN = np.array([2000.0]), np.array([np.nan])


def readings(window_ms: int, quantum: float = 1.0, period_ms: int = 1) -> Readings:
    """6 s of a clock that wanders within 20 ms, of which a sensor shows means."""
    random = np.random.default_rng(window_ms)
    count, kept = 12_000, np.exp(-0.5 / 20)
    noise = 60 * np.sqrt(1 - kept**2) * random.standard_normal(count)
    clock = np.zeros(count)
    for i in range(1, count):
        clock[i] = kept * clock[i - 1] + noise[i]
    total = np.append([0.0], np.cumsum(1800 + clock))
    until = np.arange(2 * max(window_ms, 1), count, 2 * period_ms)
    width = max(2 * window_ms, 1)
    mhz = np.round((total[until] - total[until - width]) / width / quantum) * quantum
    time = until * 0.5 * MS
    some = np.array([0]), np.array([time[0]]), np.array([time[-1]])
    return Readings(*some, time, mhz, period_ms * MS, 0.0, quantum)


@pytest.mark.parametrize("window_ms", slow_from([6, 20, 65, 250, 12, 33, 100], 2))
@pytest.mark.parametrize("quantum", [1.0, 15.0])
def test_the_window_of_a_mean_stays_possible(window_ms: int, quantum: float) -> None:
    """Also one that is none of those tried: it is nearest to one of them."""
    possible = possible_windows([readings(window_ms, quantum)], WINDOWS_NS, HIGHEST)
    nearest = np.argmin(np.abs(np.log(np.maximum(WINDOWS_NS, 1) / (window_ms * MS))))
    assert possible[nearest]
    assert possible[0]  # that clocks are smooth shows no mean


def test_readings_of_instants_are_no_means_over_long_windows() -> None:
    """They were taken for all windows of up to 180 ms where no duration showed the sensor.

    Twenty of a window and more must be in the readings.
    """
    possible = possible_windows([readings(0)], WINDOWS_NS, UNKNOWN)
    assert possible[0]
    assert not possible[(WINDOWS_NS >= 10 * MS) & (WINDOWS_NS <= 250 * MS)].any()


def test_readings_too_far_apart_or_uneven_rule_out_nothing() -> None:
    assert possible_windows([readings(0, period_ms=100)], WINDOWS_NS, UNKNOWN).all()
    uneven = readings(0)
    late = np.random.default_rng(0).uniform(0, 3 * MS, len(uneven.time))
    uneven.time[:] = np.sort(uneven.time + late)
    assert possible_windows([uneven], WINDOWS_NS, UNKNOWN).all()


def test_one_window_alone_is_taken_as_it_is() -> None:
    """A sensor that is given, and wrong."""
    assert possible_windows([readings(0)], WINDOWS_NS[5:6], UNKNOWN).all()


@pytest.mark.filterwarnings("error")
def test_one_window_next_to_an_instant() -> None:
    """The grid of a clock that steps within 3 to 5 ms; `dvfs` had ended with an internal error."""
    assert possible_windows([readings(0)], np.array([0.0, 3 * MS]), UNKNOWN)[0]
    assert possible_windows([readings(3)], np.array([0.0, 3 * MS]), UNKNOWN).all()


@pytest.mark.filterwarnings("error")
def test_readings_of_one_time_rule_out_nothing() -> None:
    one = readings(0)
    one.time[:] = one.time[0]
    assert possible_windows([one], WINDOWS_NS, HIGHEST).all()


@pytest.mark.parametrize("window_ms", [250, 400, 1000])
def test_a_window_stays_possible_by_what_enters_and_leaves_it(window_ms: int) -> None:
    assert has_clock(readings(window_ms, 15.0, 50), HIGHEST[0], window_ms * MS)


def test_no_clock_has_means_over_a_second_that_change_like_instants() -> None:
    """Of 10 readings a second they were taken for all windows up to one second; `dvfs` gave no estimate.

    A clock that rises above the highest in one window must have been lower in the one before; where the highest is not
    known, nothing says so.
    """
    instants = readings(0, 15.0, 100)
    assert not has_clock(instants, HIGHEST[0], 1000 * MS)
    assert has_clock(instants, UNKNOWN[0], 1000 * MS)
    assert has_clock(instants, 1e5, 1000 * MS)
    possible = possible_windows([instants], WINDOWS_NS, HIGHEST)
    assert possible[WINDOWS_NS <= 100 * MS].all()
    assert not possible[-1]
