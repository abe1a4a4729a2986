"""Arguments of operators as the profiler records them: shape, strides, type, value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Argument:
    """One argument of an operator.

    Parameters
    ----------
    type
        As in "Input type".
    dims, strides
        Lists of integers, or lists of those for a list of tensors; empty for what is no tensor.
    value
        As in "Concrete Inputs", empty for tensors.
    """

    type: str
    dims: Any = ()
    strides: Any = ()
    value: str = ""


NONE = Argument("")
LIST = Argument("TensorList")
"""A list of tensors whose shapes are not recorded."""


def contiguous(dims: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense row-major tensor."""
    strides = [1] * len(dims)
    for i in range(len(dims) - 2, -1, -1):
        strides[i] = strides[i + 1] * dims[i + 1]
    return tuple(strides)


def bf16(*dims: int) -> Argument:
    """Dense BF16 tensor."""
    return Argument("c10::BFloat16", dims, contiguous(dims))


def swapped(tensor: Argument) -> Argument:
    """View of a tensor with its second and third dimensions exchanged."""
    dims, strides = ((a[0], a[2], a[1], *a[3:]) for a in (tensor.dims, tensor.strides))
    return replace(tensor, dims=dims, strides=strides)


def f32(*dims: int) -> Argument:
    """Dense float32 tensor."""
    return Argument("float", dims, contiguous(dims))


def i64(*dims: int) -> Argument:
    """Dense tensor of 64-bit integers."""
    return Argument("long int", dims, contiguous(dims))


def transposed(rows: int, columns: int) -> Argument:
    """Transpose, rows x columns, of a dense BF16 matrix."""
    return Argument("c10::BFloat16", (rows, columns), (1, rows))


def many(*tensors: Argument) -> Argument:
    """List of tensors whose shapes are recorded."""
    return Argument("TensorList", [t.dims for t in tensors], [t.strides for t in tensors])


def scalar(value: object) -> Argument:
    """Single number or truth value."""
    return Argument("Scalar", value=str(value))


def numbers(*values: int) -> Argument:
    """List of numbers."""
    return Argument("ScalarList", value=str(list(values)))


def inputs_json(arguments: Sequence[Argument]) -> str:
    """Format the four fields that record_shapes adds to an operator, without braces."""
    columns = {
        "Concrete Inputs": [a.value for a in arguments],
        "Input type": [a.type for a in arguments],
        "Input Strides": [a.strides for a in arguments],
        "Input Dims": [a.dims for a in arguments],
    }
    return json.dumps(columns)[1:-1]
