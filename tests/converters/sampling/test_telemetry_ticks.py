"""Whole seconds spread over a run: inside their second, in order, and as near as is said."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_interop.arrays import gather
from chopper_interop.converters.sampling import ticks as sampling_ticks

SECOND = sampling_ticks.SECOND
START = 1_786_553_852 * SECOND


def loop(steps_ns: list[int], gpus: int = 1, first_ns: int = START) -> tuple[np.ndarray, ...]:
    """Times at which a loop stamps rows that waits one second and takes so long in addition."""
    time, tick, place, now = [], [], [], first_ns
    for number, step in enumerate(steps_ns):
        for gpu in range(gpus):
            now += step // gpus
            time.append(now)
            tick.append(number)
            place.append(gpu)
        now += SECOND
    return np.array(time), np.array(tick), np.array(place)


def check(time: np.ndarray, tick: np.ndarray, place: np.ndarray) -> int:
    """Assert all that must hold of a run, whatever the loop was; the half interval."""
    stamp = time // SECOND
    placed, half = sampling_ticks.spread(stamp, tick, place)
    assert placed.dtype == np.int64
    assert (placed // SECOND == stamp).all(), "a row left its second"
    for gpu in np.unique(place):
        assert (np.diff(placed[place == gpu]) > 0).all(), "ticks changed their order"
    for _, rows in itertools.groupby(range(len(tick)), key=lambda row: tick[row]):
        assert (np.diff(placed[list(rows)]) >= 0).all(), "GPUs of a tick changed their order"
    assert np.abs(placed - time).max() <= half
    return half


@given(
    period_ms=st.integers(3, 80),
    jitter=st.floats(0, 0.45),
    ticks=st.integers(1, 150),
    gpus=st.integers(1, 8),
    phase=st.integers(0, SECOND - 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_regular_loops_are_within_what_is_said(
    period_ms: int, jitter: float, ticks: int, gpus: int, phase: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    steps = period_ms * 1e6 * (1 + jitter * random.uniform(-1, 1, ticks))
    assert check(*loop([int(s) for s in steps], gpus, START + phase)) <= SECOND // 2


@given(
    steps=st.lists(st.integers(0, 3 * SECOND), min_size=1, max_size=40),
    gpus=st.integers(1, 4),
    phase=st.integers(0, SECOND - 1),
)
def test_rows_of_any_loop_stay_in_their_second_and_in_order(
    steps: list[int], gpus: int, phase: int
) -> None:
    time, tick, place = loop(steps, gpus, START + phase)
    stamp = time // SECOND
    placed, _ = sampling_ticks.spread(stamp, tick, place)
    assert (placed // SECOND == stamp).all()
    for gpu in np.unique(place):
        assert (np.diff(placed[place == gpu]) > 0).all()


def test_a_long_run_is_known_to_less_than_half_a_second() -> None:
    """1.049 s, as eight MI355X take: every 20 ticks a second is skipped, which says where."""
    random = np.random.default_rng(3)
    steps = [int(49e6 * (1 + 0.2 * x)) for x in random.uniform(-1, 1, 1200)]
    time, tick, place = loop(steps, 8)
    half = check(time, tick, place)
    assert half < 400_000_000
    placed, _ = sampling_ticks.spread(time // SECOND, tick, place)
    assert np.abs(placed - time).mean() < 100_000_000


def test_periods_come_out_even() -> None:
    """A lane at 1, 1, 1, 2 s would look as if amd-smi stuttered; it ran at 1.05 s."""
    time, tick, place = loop([50_000_000] * 200)
    placed, _ = sampling_ticks.spread(time // SECOND, tick, place)
    period = np.diff(placed)
    assert set(np.diff(time // SECOND)) == {1, 2}
    assert period.max() < 1_200_000_000
    assert period.min() > SECOND


def test_few_ticks_tell_nothing_and_stand_in_the_middle() -> None:
    placed, half = sampling_ticks.spread(
        np.array([10, 10, 11, 11]), np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    )
    assert placed.tolist() == [int(s * SECOND) for s in (10.5, 10.5, 11.5, 11.5)]
    assert half == SECOND // 2


def test_ticks_that_share_a_second_divide_it() -> None:
    placed, half = sampling_ticks.spread(np.array([10, 10, 11]), np.arange(3), np.zeros(3, int))
    assert placed.tolist() == [10_250_000_000, 10_750_000_000, 11_500_000_000]
    assert half == 750_000_000


def test_a_gap_and_a_clock_set_back_do_not_reach_beyond_themselves() -> None:
    steps = [50_000_000] * 120
    first, second = loop(steps), loop(steps, first_ns=START + 5_000 * SECOND)
    back = loop(steps, first_ns=START - 900 * SECOND)
    time = np.concatenate([first[0], second[0], back[0]])
    tick = np.concatenate([first[1], second[1] + 120, back[1] + 240])
    stamp = time // SECOND
    placed, half = sampling_ticks.spread(stamp, tick, np.zeros(len(tick), int))
    assert (placed // SECOND == stamp).all()
    assert np.abs(placed - time).max() <= half < SECOND // 2


def test_a_loop_that_is_not_regular_claims_no_more_than_the_seconds_say() -> None:
    random = np.random.default_rng(5)
    steps = [int(s) for s in random.choice([10_000_000, 700_000_000], 300)]
    assert check(*loop(steps, 4)) == SECOND // 2


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ([0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 1]),
        ([0, 1, 2, 0, 1, 0, 1, 2], [0, 0, 0, 1, 1, 2, 2, 2]),  # a tick that was cut
        ([3, 1, 3, 1], [0, 0, 1, 1]),  # amd-smi metric -g 3 1
        ([0, 0, 0], [0, 1, 2]),
        ([], []),
    ],
)
def test_ticks_are_distinguished_by_their_order(gpu: list[int], expected: list[int]) -> None:
    gpus = np.array(gpu, np.int64)
    assert sampling_ticks.ticks_of(gather.distinct(gpus)[1]).tolist() == expected


def test_partitions_of_a_gpu_are_rows_of_one_tick() -> None:
    gpu, xcp = np.array([0, 0, 1, 0, 0, 1]), np.array([0, 1, 0, 0, 1, 0])
    assert sampling_ticks.ticks_of(gather.distinct(gpu, xcp)[1]).tolist() == [0, 0, 0, 1, 1, 1]
