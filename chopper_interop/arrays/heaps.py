"""Lists for heaps of compiled loops: empty, and of the type of an item.

A comprehension would do, but its bytecode differs between releases of one Python (3.13.0 and 3.13.5), so that machine
code that was compiled ahead by one of them would not be found by the other.
"""

from __future__ import annotations

from typing import Any

from chopper_interop.arrays.compiled import jit


@jit  # numba takes the type of a list from what is put in it
def empty_heap(item: Any) -> list[Any]:
    """List without items, for those of the type of this one."""
    heap = [item]
    heap.pop()
    return heap


@jit  # same
def empty_heaps(item: Any, count: int) -> list[list[Any]]:
    """So many lists without items."""
    heaps = [empty_heap(item)]
    heaps.pop()
    for _ in range(count):
        heaps.append(empty_heap(item))  # noqa: PERF401 # a comprehension is what this replaces
    return heaps
