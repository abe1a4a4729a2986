"""Products of tall arrays are what numpy's are."""

import numpy as np
import pytest

from chopper_interop.analyses.methods.power import products


@pytest.mark.parametrize("samples", [0, 1, 3000])
def test_normal_equations(samples) -> None:
    draw = np.random.default_rng(samples)
    rows, weight, target = (draw.normal(size=(samples, *n)) for n in ((30,), (), ()))
    matrix, right = products.normal_equations(rows, weight, target)
    scaled = rows.T * weight
    np.testing.assert_allclose(matrix, scaled @ rows, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(right, scaled @ target, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(
        products.combined(right, rows.T), rows @ right, rtol=1e-12, atol=1e-10 * samples
    )
