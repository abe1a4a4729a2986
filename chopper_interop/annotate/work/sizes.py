"""Work of one call, and arithmetic on sizes of which some may be unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from chopper_interop.annotate.work.calls import Tensor, dense
from chopper_interop.schemas import dtypes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.annotate.work.calls import Shape


class Work(NamedTuple):
    """FLOPs and bytes of a call; None where its arguments do not determine them."""

    flops: int | None = None
    """Floating-point operations; a multiplication and an addition are two."""
    bytes: int | None = None
    """Bytes of all operands, read once, and of all results, written once."""
    parts: int = 1
    """Equal parts that it consists of, each done by a kernel of its own."""


UNKNOWN = Work()
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
