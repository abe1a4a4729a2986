"""Products of tall arrays with few columns.

A BLAS splits even these between threads, which then spin while they wait for the next: that takes
longer than the product, on every core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array


def combined(factors: Array, signals: Array) -> Array:
    """Sum of signals, each multiplied by its factor.

    Parameters
    ----------
    factors
        ``[signal]``.
    signals
        ``[signal, moment]``.
    """
    found: Array = np.einsum("s,sm->m", factors, signals)
    return found


@jit
def normal(rows: Array, weight: Array, target: Array) -> tuple[Array, Array]:
    """Both sides of the normal equations of weighted least squares.

    Parameters
    ----------
    rows
        ``[sample, parameter]``.
    weight, target
        Of each sample.
    """
    n, parameters = rows.shape
    matrix, right = np.zeros((parameters, parameters)), np.zeros(parameters)
    for i in range(n):
        for a in range(parameters):
            scaled = rows[i, a] * weight[i]
            right[a] += scaled * target[i]
            for b in range(a + 1):
                matrix[a, b] += scaled * rows[i, b]
    for a in range(parameters):
        for b in range(a):
            matrix[b, a] = matrix[a, b]
    return matrix, right
