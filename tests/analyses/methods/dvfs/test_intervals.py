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
