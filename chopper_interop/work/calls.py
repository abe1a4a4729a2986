"""One call of an operator as its arguments tell it: shapes, types and values of what goes in.

PyTorch's profiler writes them with ``record_shapes=True``: ``Input Dims`` (``Input dims`` in early
2021), ``Input type``, since 2.0 ``Concrete Inputs`` (values of scalars and lists, as text) and
since 2.2 ``Input Strides``. Host execution traces give ``Input Values`` and outputs as well.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from chopper_interop.schemas import dtypes

if TYPE_CHECKING:
    from collections.abc import Mapping

Shape: TypeAlias = tuple[int, ...]

_IN_TENSOR = re.compile(r"Tensor\((.*)\)$")
_IN_LIST = re.compile(r"GenericList\[(.*)\]$")
_LISTS = ("TensorList", "GenericList")
"""Lists that tensors are in, as far as is told."""
_SCALAR_TYPES = frozenset({"Scalar", "Int", "Double", "Float", "Bool", "SymInt", "Complex"})
_MOST_VALUE = 10_000
"""Characters of a value's text; no stride or mask is as long."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a call.

    Parameters
    ----------
    shape
        Elements along each dimension.
    dtype
        Its element type as PyTorch writes it.
    stored
        Elements that lie in memory: a dimension of stride 0 repeats what is there once.
    """

    shape: Shape
    dtype: str
    stored: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def item(self) -> int | None:
        """Bytes of an element, None if the type is not known."""
        return dtypes.element_bytes(self.dtype)

    @property
    def bytes(self) -> int | None:
        """Bytes that reading it takes."""
        return None if self.item is None else self.stored * self.item

    @property
    def category(self) -> int:
        """What numbers it holds, of `chopper_interop.schemas.dtypes`."""
        return dtypes.category(self.dtype)


def dense(shape: Shape, dtype: str) -> Tensor:
    """A tensor all of whose elements lie in memory."""
    return Tensor(shape, dtype, math.prod(shape))


@dataclass(frozen=True)
class Call:
    """What goes into a call, and what comes out if that is told.

    Parameters
    ----------
    inputs
        For each argument a tensor, a list of tensors, empty if its shapes are not told, or None.
    values
        For each argument its value if that is told and no tensor, else None.
    outputs
        Tensors that came out; empty if that is not told.
    """

    inputs: tuple[Tensor | tuple[Tensor, ...] | None, ...]
    values: tuple[Any, ...]
    outputs: tuple[Tensor, ...] = ()

    def tensor(self, at: int) -> Tensor | None:
        """The tensor that is argument `at`, None if it is none."""
        found = self.inputs[at] if at < len(self.inputs) else None
        return found if isinstance(found, Tensor) else None

    def tensors(self, at: int) -> tuple[Tensor, ...]:
        """The list of tensors that is argument `at`, empty if that is not told."""
        found = self.inputs[at] if at < len(self.inputs) else None
        return found if isinstance(found, tuple) else ()

    def value(self, at: int) -> Any:
        """The value that argument `at` has, None if that is not told."""
        return self.values[at] if at < len(self.values) else None

    def whole(self, at: int, rank: int) -> Shape | None:
        """The list of `rank` numbers that argument `at` is; one number stands for all."""
        value = self.value(at)
        if isinstance(value, int) and not isinstance(value, bool):
            value = [value]
        proper = isinstance(value, list) and all(type(v) is int for v in value)
        if not proper or len(value) not in (1, rank):
            return None
        return tuple(value) * (rank if len(value) == 1 else 1)


def call(told: Mapping[str, Any]) -> Call | None:
    """The call that these arguments of a node tell, by their keys; None if they tell no shapes."""
    dims, types, strides = (told.get(f"Input {what}") for what in ("Dims", "type", "Strides"))
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    strides = strides if isinstance(strides, list) else []
    inputs = tuple(map(_input, dims, types, strides + [None] * (len(dims) - len(strides))))
    concrete, values = told.get("Concrete Inputs"), told.get("Input Values")
    if isinstance(concrete, list):
        read = tuple(_value(text) if isinstance(text, str) else None for text in concrete)
    else:
        plain = values if isinstance(values, list) else []
        read = tuple(v if i is None else None for i, v in zip(inputs, plain, strict=False))
    return Call(inputs, read, _outputs(told.get("Output Dims"), told.get("Output type")))


def _outputs(dims: Any, types: Any) -> tuple[Tensor, ...]:
    if not isinstance(dims, list) or not isinstance(types, list):
        return ()
    made = [_input(each, dtype, None) for each, dtype in zip(dims, types, strict=False)]
    tensors = tuple(t for t in made if isinstance(t, Tensor))
    return tensors if len(tensors) == len(made) else ()


def _input(dims: Any, dtype: Any, strides: Any) -> Tensor | tuple[Tensor, ...] | None:
    if not isinstance(dtype, str) or not isinstance(dims, list):
        return None
    inner = _IN_TENSOR.match(dtype)
    if inner is not None:  # what is optional and was not given is a null pointer
        absent = inner.group(1).startswith("nullptr")
        return None if absent else _tensor(dims, inner.group(1), strides)
    if dtype in _LISTS or (dtype.startswith("GenericList[") and "Tensor" in dtype):
        return _list(dims, dtype, strides) if dims and isinstance(dims[0], list) else ()
    known = dtype not in _SCALAR_TYPES and dtypes.element_bytes(dtype) is not None
    return _tensor(dims, dtype, strides) if known else None


def _list(dims: list[Any], dtype: str, strides: Any) -> tuple[Tensor, ...] | None:
    inner = _IN_LIST.match(dtype)
    each = _split(inner.group(1)) if inner else [dtype] * len(dims)
    if len(each) != len(dims):
        return None
    strides = strides if isinstance(strides, list) and len(strides) == len(dims) else []
    strides = strides or [None] * len(dims)
    named = [_IN_TENSOR.match(t) for t in each]
    names = [m.group(1) if m else t for m, t in zip(named, each, strict=True)]
    made = tuple(map(_tensor, dims, names, strides))
    return tuple(t for t in made if t is not None) if None not in made else None


def _split(types: str) -> list[str]:
    """The members of a list of types, none of which contains a comma outside of ``<>``."""
    return re.findall(r"[^,<]+(?:<[^>]*>)?[^,]*", types)


def _tensor(shape: Any, dtype: str, strides: Any) -> Tensor | None:
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        return None
    stored = math.prod(shape)
    if stored and isinstance(strides, list) and len(strides) == len(shape):
        stored = math.prod(n for n, step in zip(shape, strides, strict=True) if step != 0)
    return Tensor(tuple(shape), dtype, stored)


def _value(text: str) -> Any:
    """A value as ``Concrete Inputs`` writes it: ``False``, ``[1, 1]``, ``0.5``, ``1.``."""
    if not text or len(text) > _MOST_VALUE:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None
