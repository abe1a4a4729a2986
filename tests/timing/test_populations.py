"""Statistics of several populations at once: those of each alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chopper_interop.arrays import gather
from chopper_interop.timing import latencies
from chopper_interop.timing.populations import linear_quantiles, quantiles

COUNT = 4
VALUES = st.lists(
    st.tuples(
        st.integers(0, COUNT - 1), st.one_of(st.integers(-9, 9), st.integers(-(10**14), 10**14))
    ),
    max_size=40,
)
SHARES = st.sampled_from([0.01, 0.05, 0.25, 0.5, 0.75])


def columns(pairs):
    return np.array([p for p, _ in pairs], np.int32), np.array([v for _, v in pairs], np.int64)


@given(VALUES, SHARES)
def test_linear_quantiles_are_those_of_numpy(pairs, share):
    of, values = columns(pairs)
    expected = [np.quantile(values[of == k], share) if (of == k).any() else 0 for k in range(COUNT)]
    assert linear_quantiles(of, values, share, COUNT).tolist() == expected
    if pairs:
        (alone,) = linear_quantiles(of * 0, values, share, 1)
        assert alone == np.quantile(values, share)


@given(VALUES, SHARES, st.booleans())
def test_quantiles_are_values_of_their_population(pairs, share, floor):
    of, values = columns(pairs)
    expected = []
    for k in range(COUNT):
        chosen = sorted(v for p, v in pairs if p == k and (v >= 0 or not floor))
        expected.append(chosen[int(share * (len(chosen) - 1))] if chosen else 0)
    assert quantiles(of, values, share, COUNT, floor=floor).tolist() == expected
    one = [quantiles(of[of == k] * 0, values[of == k], share, 1, floor=floor) for k in range(COUNT)]
    assert np.concatenate(one).tolist() == expected


@given(VALUES)
def test_the_largest_so_far_is_that_of_its_run(pairs):
    of, values = columns(sorted(pairs, key=lambda pair: pair[0]))
    expected = []
    for k in range(COUNT):
        expected += np.maximum.accumulate(values[of == k]).tolist()
    assert gather.running_max(of, values).tolist() == expected


@given(VALUES, st.data())
def test_hosts_that_poll_go_on_as_those_of_their_population_do(pairs, data):
    of, gap_ns = columns(pairs)
    rested_ns = gap_ns * np.array(
        data.draw(st.lists(st.integers(-1, 99), min_size=len(of), max_size=len(of))), np.int64
    )
    at_once = latencies.poll_returns(gap_ns, rested_ns, of, COUNT)
    for k in range(COUNT):
        own = of == k
        alone = latencies.poll_returns(gap_ns[own], rested_ns[own], of[own] * 0, 1)
        assert [column[own].tolist() for column in at_once] == [c.tolist() for c in alone]
