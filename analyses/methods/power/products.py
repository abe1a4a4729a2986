"""Products of tall arrays with few columns, without threads.

A BLAS splits even these between threads, which then spin while they wait for the next product. That
takes longer than the product, on every core: 3 to 4 CPU-s for 200,000 kernels instead of 0.6.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit


def combined(factors: Array, signals: Array) -> Array:
    """Sum signals, each multiplied by its factor.

    Parameters
    ----------
    factors
        ``[signal]``.
    signals
        ``[signal, time]``.
    """
    total: Array = np.einsum("s,sm->m", factors, signals)
    return total


@jit
def normal_equations(rows: Array, weight: Array, target: Array) -> tuple[Array, Array]:
    """Both sides of the normal equations of weighted least squares.

    Compiled as one pass that fills half of the symmetric matrix: no weighted copy of `rows` is made.

    Parameters
    ----------
    rows
        ``[sample, parameter]``.
    weight, target
        Weight and target value of each sample.
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
