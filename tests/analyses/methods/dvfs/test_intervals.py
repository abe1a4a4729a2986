"""Errors of estimates."""

import numpy as np
import pytest

from chopper_interop.analyses.methods.dvfs import intervals
from chopper_interop.analyses.methods.dvfs.clocks import followed_share


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = np.random.default_rng(1).normal(size=50)
    without = (values.sum() - values) / 49
    assert intervals.jackknife(without) == pytest.approx(values.std(ddof=1) / 50**0.5)


@pytest.mark.parametrize("rest", [0.0, 1e-320, 1e-200])
def test_of_one_block_alone_the_error_is_infinite_and_no_warning(rest: float) -> None:
    """Sums without the only block are what rounding leaves, and their ratio overflowed."""
    whole, part = np.array([1.0, rest, 0.0]), np.array([1.0, 0.5, 0.0])
    assert followed_share.ratio_error(part, whole) == np.inf


@pytest.mark.parametrize(
    ("ns", "low", "is_open"),
    [(100, 74, True), (100, 80, False), (90, 74, False), (90, 71, True), (74, 73, True)],
)
def test_at_the_end_of_nearly_all_that_is_possible_is_no_estimate(
    ns: float, low: float, *, is_open: bool
) -> None:
    """A step of which 70 to 100 is possible was said to last 100 as measured, from 74 to 100."""
    times = [np.array([float(value)]) for value in (ns, low, 100, 70, 100)]
    assert intervals.is_open(*times).tolist() == [is_open]
