"""Work of one call, and arithmetic on sizes of which some may not be known."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from chopper_interop.schemas import dtypes
from chopper_interop.work.calls import Tensor, dense

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.work.calls import Shape


class Work(NamedTuple):
    """What a call asks for; None where its arguments do not tell."""

    flops: int | None = None
    """Floating-point operations; a multiplication and an addition are two."""
    bytes: int | None = None
    """Bytes of all that it reads and of all that it writes, each once."""
    parts: int = 1
    """Equal parts that it consists of, each the work of a kernel of its own."""


UNKNOWN = Work()
_HALF = 2


def total(sizes: Iterable[int | None]) -> int | None:
    """The sum, None if one of them is not known."""
    result = 0
    for size in sizes:
        if size is None:
            return None
        result += size
    return result


def moved(read: Iterable[Tensor | None], written: Iterable[Tensor | None]) -> int | None:
    """Bytes of reading and writing these tensors; one that is None is not there."""
    return total(t.bytes for t in (*read, *written) if t is not None)


def broadcast(shapes: Iterable[Shape]) -> Shape | None:
    """The shape that these are brought to, None if they do not fit each other."""
    result: list[int] = []
    for shape in shapes:
        longer = max(len(result), len(shape))
        a = [1] * (longer - len(result)) + result
        b = [1] * (longer - len(shape)) + list(shape)
        if any(x != y and 1 not in (x, y) for x, y in zip(a, b, strict=True)):
            return None
        result = [y if x == 1 else x for x, y in zip(a, b, strict=True)]
    return tuple(result)


def promoted(tensors: Iterable[Tensor]) -> str | None:
    """Type of what is computed from these tensors, as PyTorch promotes.

    Tensors without dimensions count only where they are of a higher category than the others.
    """
    tensors = list(tensors)
    if any(t.item is None for t in tensors) or not tensors:
        return None
    most = max(t.category for t in tensors)
    of_most = [t for t in tensors if t.category == most]
    names = {t.dtype for t in of_most if t.shape} or {t.dtype for t in of_most}
    widest = max(dtypes.element_bytes(name) or 0 for name in names)
    candidates = [name for name in names if dtypes.element_bytes(name) == widest]
    if len(candidates) == 1:
        return candidates[0]
    return "float" if most == dtypes.REAL and widest == _HALF else None


def floating(tensor: Tensor) -> bool:
    """Whether arithmetic on it is of real floating-point numbers."""
    return tensor.item is not None and tensor.category == dtypes.REAL


def like(tensor: Tensor, dtype: str | None = None) -> Tensor:
    """A new tensor of the same shape."""
    return dense(tensor.shape, dtype or tensor.dtype)
