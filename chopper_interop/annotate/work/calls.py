"""Call of an operator, parsed from its arguments: shapes, types and values of its inputs; its work.

PyTorch's profiler writes them with ``record_shapes=True``: ``Input Dims`` (``Input dims`` in early
2021), ``Input type``, since 2.0 ``Concrete Inputs`` (values of scalars and lists, as text) and
since 2.2 ``Input Strides``. Host execution traces give ``Input Values`` and outputs as well.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from chopper_interop.schemas import dtypes

Shape: TypeAlias = tuple[int, ...]

_IN_TENSOR = re.compile(r"Tensor\((.*)\)$")
_IN_LIST = re.compile(r"GenericList\[(.*)\]$")
_LISTS = ("TensorList", "GenericList")
"""Types of lists that may hold tensors and do not name their types."""
_SCALAR_TYPES = frozenset({"Scalar", "Int", "Double", "Float", "Bool", "SymInt", "Complex"})
_MAX_VALUE_CHARS = 10_000
"""Longest text of a value that is parsed. Chosen: strides and masks have at most some hundred
characters, and parsing takes time and memory in proportion."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a call.

    Parameters
    ----------
    shape
        Elements along each dimension.
    dtype
        Element type as PyTorch writes it.
    stored
        Elements in memory: a dimension of stride 0 repeats the same elements.
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
        """Bytes of an element; None if the type is unknown."""
        return dtypes.element_bytes(self.dtype)

    @property
    def bytes(self) -> int | None:
        """Bytes that reading it moves; None if the type is unknown."""
        return None if self.item is None else self.stored * self.item

    @property
    def category(self) -> int:
        """Category of its numbers, of `chopper_interop.schemas.dtypes`."""
        return dtypes.category(self.dtype)


def dense(shape: Shape, dtype: str) -> Tensor:
    """Return a tensor whose elements are all in memory."""
    return Tensor(shape, dtype, math.prod(shape))


@dataclass(frozen=True)
class Call:
    """Inputs of a call, and its outputs if they are recorded.

    Parameters
    ----------
    inputs
        For each argument a tensor, a list of tensors (empty if its shapes are unknown), or None.
    values
        For each argument its value if it is recorded and not a tensor, else None.
    outputs
        Tensors that it returned; empty if they are not recorded.
    """

    inputs: tuple[Tensor | tuple[Tensor, ...] | None, ...]
    values: tuple[Any, ...]
    outputs: tuple[Tensor, ...] = ()

    def tensor(self, index: int) -> Tensor | None:
        """Tensor at an argument index; None if that is not a tensor."""
        argument = self.inputs[index] if index < len(self.inputs) else None
        return argument if isinstance(argument, Tensor) else None

    def tensors(self, index: int) -> tuple[Tensor, ...]:
        """List of tensors at an argument index; empty if unknown."""
        argument = self.inputs[index] if index < len(self.inputs) else None
        return argument if isinstance(argument, tuple) else ()

    def value(self, index: int) -> Any:
        """Value at an argument index; None if unknown."""
        return self.values[index] if index < len(self.values) else None

    def integers(self, index: int, count: int) -> Shape | None:
        """List of `count` integers at an argument index; a single one stands for all."""
        value = self.value(index)
        if isinstance(value, int) and not isinstance(value, bool):
            value = [value]
        proper = isinstance(value, list) and all(type(v) is int for v in value)
        if not proper or len(value) not in (1, count):
            return None
        return tuple(value) * (count if len(value) == 1 else 1)


def parse_call(arguments: Mapping[str, Any]) -> Call | None:
    """Parse the call that a node's arguments describe; None if they have no shapes."""
    dims, types, strides = (arguments.get(f"Input {key}") for key in ("Dims", "type", "Strides"))
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    strides = strides if isinstance(strides, list) else []
    inputs = tuple(map(_input, dims, types, strides + [None] * (len(dims) - len(strides))))
    concrete, values = arguments.get("Concrete Inputs"), arguments.get("Input Values")
    if isinstance(concrete, list):
        values_ = tuple(_parse_value(text) if isinstance(text, str) else None for text in concrete)
    else:
        listed = values if isinstance(values, list) else []
        values_ = tuple(v if i is None else None for i, v in zip(inputs, listed, strict=False))
    return Call(
        inputs, values_, _outputs(arguments.get("Output Dims"), arguments.get("Output type"))
    )


def _outputs(dims: Any, types: Any) -> tuple[Tensor, ...]:
    if not isinstance(dims, list) or not isinstance(types, list):
        return ()
    outputs = [_input(each, dtype, None) for each, dtype in zip(dims, types, strict=False)]
    tensors = tuple(t for t in outputs if isinstance(t, Tensor))
    return tensors if len(tensors) == len(outputs) else ()


def _input(dims: Any, dtype: Any, strides: Any) -> Tensor | tuple[Tensor, ...] | None:
    if not isinstance(dtype, str) or not isinstance(dims, list):
        return None
    inner = _IN_TENSOR.match(dtype)
    if inner is not None:  # an optional argument that was not passed is a null pointer
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
    tensors = tuple(map(_tensor, dims, names, strides))
    return tuple(t for t in tensors if t is not None) if None not in tensors else None


def _split(types: str) -> list[str]:
    """Split a list of types, none of which contains a comma outside of ``<>``."""
    return re.findall(r"[^,<]+(?:<[^>]*>)?[^,]*", types)


def _tensor(shape: Any, dtype: str, strides: Any) -> Tensor | None:
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        return None
    stored = math.prod(shape)
    if stored and isinstance(strides, list) and len(strides) == len(shape):
        stored = math.prod(n for n, step in zip(shape, strides, strict=True) if step != 0)
    return Tensor(tuple(shape), dtype, stored)


@lru_cache(maxsize=1 << 14)
def _parse_value(text: str) -> Any:
    """Parse a value as ``Concrete Inputs`` writes it: ``False``, ``[1, 1]``, ``0.5``, ``1.``.

    Kept, as calls of all ranks and steps have the same few values; no one changes a list of them.
    """
    if not text or len(text) > _MAX_VALUE_CHARS:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


class CallWork(NamedTuple):
    """FLOPs and bytes of a call; None where its arguments do not determine them."""

    flops: int | None = None
    """Floating-point operations; a multiplication and an addition are two."""
    bytes: int | None = None
    """Bytes of all operands, read once, and of all results, written once."""
    parts: int = 1
    """Equal parts that it consists of, each done by a kernel of its own."""


UNKNOWN = CallWork()
MOVES, ELEMENTS, MATRIX = 1, 2, 3
"""Priorities: an operator has no work itself if one of the same or a higher priority is within it."""
_HALF = 2
"""Bytes of half precision; two different types of this width promote to single precision."""


def total(sizes: Iterable[int | None]) -> int | None:
    """Sum of sizes; None if one of them is unknown."""
    result = 0
    for size in sizes:
        if size is None:
            return None
        result += size
    return result


def moved_bytes(read: Iterable[Tensor | None], written: Iterable[Tensor | None]) -> int | None:
    """Bytes of reading and writing these tensors; None stands for an absent tensor."""
    return total(t.bytes for t in (*read, *written) if t is not None)


def broadcast_shape(shapes: Iterable[Shape]) -> Shape | None:
    """Shape that these are broadcast to; None if they do not match."""
    result: list[int] = []
    for shape in shapes:
        longer = max(len(result), len(shape))
        a = [1] * (longer - len(result)) + result
        b = [1] * (longer - len(shape)) + list(shape)
        if any(x != y and 1 not in (x, y) for x, y in zip(a, b, strict=True)):
            return None
        result = [y if x == 1 else x for x, y in zip(a, b, strict=True)]
    return tuple(result)


def promoted_dtype(tensors: Iterable[Tensor]) -> str | None:
    """Type of the result of arithmetic on these tensors, by PyTorch's rules of promotion.

    Tensors without dimensions count only if they are of a higher category than the others.
    """
    tensors = list(tensors)
    if any(t.item is None for t in tensors) or not tensors:
        return None
    highest = max(t.category for t in tensors)
    deciding = [t for t in tensors if t.category == highest]
    names = {t.dtype for t in deciding if t.shape} or {t.dtype for t in deciding}
    widest = max(dtypes.element_bytes(name) or 0 for name in names)
    candidates = [name for name in names if dtypes.element_bytes(name) == widest]
    if len(candidates) == 1:
        return candidates[0]
    return "float" if highest == dtypes.REAL and widest == _HALF else None


def is_floating(tensor: Tensor) -> bool:
    """True if arithmetic on a tensor is of real floating-point numbers."""
    return tensor.item is not None and tensor.category == dtypes.REAL


def like(tensor: Tensor, dtype: str | None = None) -> Tensor:
    """Return a dense tensor of the same shape."""
    return dense(tensor.shape, dtype or tensor.dtype)
