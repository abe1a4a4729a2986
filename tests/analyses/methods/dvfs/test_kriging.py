"""Mean clocks between readings against integrals of the conditional mean of a Gaussian process."""

import numpy as np
import pytest

from chopper_interop.analyses.methods.dvfs.clocks.kriging import Kriged

CENTRES = np.array([0.0, 10e6, 20e6, 35e6])
VALUES = np.array([1.0, -1.0, 2.0, 0.5])
START = np.array([-9e6, 3e6, -2e6, 19e6, 37e6, 5e6, 41e6])
END = np.array([-4e6, 4e6, 44e6, 22e6, 40e6, 6.5e6, 80e6])


def _conditional_means(at: np.ndarray, time: float) -> np.ndarray:
    """Solve the equations of a process of covariance exp(-|t| / time), with all readings."""
    among = np.exp(-np.abs(CENTRES[:, None] - CENTRES) / time)
    to = np.exp(-np.abs(at[:, None] - CENTRES) / time)
    return to @ np.linalg.solve(among, VALUES)


@pytest.mark.parametrize("time_ms", [0.5, 5.0, 60.0, 1e6])
def test_means_are_those_of_the_process(time_ms: float) -> None:
    kriged = Kriged(CENTRES, 0.0, VALUES, time_ms * 1e6)

    means = kriged.means(START, END)

    for start, end, mean in zip(START, END, means, strict=True):
        parts = start + (np.arange(20_000) + 0.5) / 20_000 * (end - start)
        expected = _conditional_means(parts, time_ms * 1e6).mean()
        assert mean == pytest.approx(expected, abs=2e-4)


def test_the_clock_within_a_window_is_that_of_its_reading() -> None:
    kriged = Kriged(CENTRES, 4e6, VALUES, 1e6)

    assert kriged.means(CENTRES - 1e6, CENTRES + 2e6) == pytest.approx(VALUES)
    # Far from all windows, nothing is known.
    assert abs(kriged.means(np.array([27e6]), np.array([28e6]))[0]) < 0.02
