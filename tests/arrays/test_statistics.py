"""Robust statistics agree with their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_interop.analyses.methods import distributions
from chopper_interop.arrays import gather, statistics
from chopper_interop.edges.wait_pairs import quantile

REALS = st.one_of(st.floats(-1e9, 1e9), st.just(np.nan))
INTEGERS = st.integers(-(10**15), 10**15)


@given(st.lists(st.tuples(st.integers(0, 4), REALS), max_size=30))
def test_group_medians_are_those_of_the_known_values_of_each_group(rows: list) -> None:
    group = np.array([g for g, _ in rows], np.int64)
    values = np.array([v for _, v in rows], float)
    medians = statistics.group_medians(values, group, 6)
    for g in range(6):
        np.testing.assert_equal(medians[g], statistics.finite_median(values[group == g]))
    less = statistics.less_group_median(values, [f"group {g}" for g in group])
    np.testing.assert_equal(less, values - medians[group])


@given(st.lists(st.tuples(st.integers(0, 4), INTEGERS), min_size=1, max_size=30))
def test_medians_of_distributions_are_values_that_occur(rows: list) -> None:
    group, values = np.array(rows, np.int64).T.copy()
    actual = distributions.group_distributions(group, values, 6)
    for g in range(6):
        members = values[group == g]
        if not members.size:
            assert (actual.count[g], actual.median[g], actual.mad[g]) == (0, -1, -1)
            continue
        median = np.quantile(members, 0.5, method="inverted_cdf")
        assert actual.median[g] == median
        deviations = np.abs(members - median)
        assert actual.mad[g] == np.quantile(deviations, 0.5, method="inverted_cdf")
        assert actual.total[g] == members.sum()


def test_mad_sigma_is_the_standard_deviation_of_normal_values() -> None:
    values = np.random.default_rng(1).normal(0, 3, 100_000)
    assert statistics.mad_sigma(values) == pytest.approx(3, rel=0.02)
    values[:10_000] = 1e9
    assert statistics.mad_sigma(values) == pytest.approx(3, rel=0.2)


def test_median_slope_ignores_outliers() -> None:
    x = np.arange(100.0)
    y = 2 * x + 1
    y[::7] += 1e6
    assert statistics.median_slope(x, y, (1, 50)) == pytest.approx(2)
    assert statistics.median_slope(np.zeros(3), np.arange(3.0), (1,)) == 0.0


@pytest.mark.parametrize("count", [2, 3, 8, 9])
def test_medians_of_others_are_those_without_each_value(count: int) -> None:
    rng = np.random.default_rng(count)
    for values in (rng.normal(size=count), rng.integers(0, 3, count) * 1.0):
        values[rng.integers(count)] = rng.choice([np.nan, np.inf, 0.1])
        expected = [statistics.finite_median(np.delete(values, i)) for i in range(count)]
        np.testing.assert_array_equal(statistics.medians_of_others(values), expected)


def test_medians_of_others_leave_each_value_out() -> None:
    actual = statistics.medians_of_others(np.array([1.0, 2.0, 9.0, np.nan]))
    assert actual.tolist() == [5.5, 5.0, 1.5, 2.0]
    assert np.isnan(statistics.medians_of_others(np.array([1.0]))).all()


@given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]))
def test_quantiles_are_those_of_numpy(values: list[float], share: float) -> None:
    assert quantile(np.array(values), share) == np.quantile(values, share)


@given(st.lists(st.integers(-9, 9)), st.lists(st.integers(-9, 9)))
def test_distinct_values_and_members_are_those_of_numpy(some: list[int], others: list[int]) -> None:
    values, members = np.array(some, np.int64), np.array(others, np.int64)
    assert gather.unique(values).tolist() == np.unique(values).tolist()
    assert gather.among(values, members).tolist() == np.isin(values, members).tolist()
