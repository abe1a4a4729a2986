"""Names of rocpd databases that differ from those in rocprofv3's other files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.arrow import dictionary

if TYPE_CHECKING:
    import pyarrow as pa


OPERATIONS: dict[tuple[str, str], str] = {
    ("REAL", "ALLOC"): "MEMORY_ALLOCATION_ALLOCATE",
    ("REAL", "FREE"): "MEMORY_ALLOCATION_FREE",
    ("VIRTUAL", "ALLOC"): "MEMORY_ALLOCATION_VMEM_ALLOCATE",
    ("VIRTUAL", "FREE"): "MEMORY_ALLOCATION_VMEM_FREE",
    ("SCRATCH", "ALLOC"): "SCRATCH_MEMORY_ALLOC",
    ("SCRATCH", "FREE"): "SCRATCH_MEMORY_FREE",
    ("SCRATCH", "RECLAIM"): "SCRATCH_MEMORY_ASYNC_RECLAIM",
}
"""Level and type of an allocation → what the other files call the operation."""

DOMAINS: tuple[tuple[str, str], ...] = (
    ("ROCM_", ""),
    ("USER", "MARKER_USER"),
    ("TIMER_SAMPLING", "SAMPLING"),
)
"""Prefix of a category of rocprofiler-systems → prefix of that domain here."""

_ALL = (1 << 64) - 1


def operations(level: pa.DictionaryArray, kind: pa.DictionaryArray) -> pa.DictionaryArray:
    """Operations of allocations by their level and type."""
    levels, kinds = ([*c.dictionary.to_pylist(), ""] for c in (level, kind))
    codes = [arrow.to_numpy(c, -1).astype(np.int64) for c in (level, kind)]
    first, code = gather.distinct(*codes)
    pairs = [(levels[codes[0][i]], kinds[codes[1][i]]) for i in first.tolist()]
    return dictionary(
        code, [OPERATIONS.get(pair) or "_".join(filter(None, pair)) for pair in pairs]
    )


def handles_of(value: Array, known: Array) -> pa.DictionaryArray:
    """Addresses and other handles as texts; null where unknown."""
    first, code = gather.distinct(value)
    texts = [f"0x{number & _ALL:016x}" for number in value[first].tolist()]
    return dictionary(np.where(known, code, -1), texts)


def domain_of(category: str) -> str:
    """A category as a domain: rocprofiler-systems has names of its own for them."""
    plain = category.upper()
    for begin, instead in DOMAINS:
        if plain.startswith(begin):
            return instead + plain[len(begin) :]
    return plain
