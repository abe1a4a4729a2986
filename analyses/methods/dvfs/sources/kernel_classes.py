"""Classes of kernels by their names and sizes, and the sensitivity that is expected of each."""

from __future__ import annotations

import numpy as np

from chopper_interop.annotate.work import kernels as work_kernels
from chopper_interop.arrays import Array
from chopper_interop.trace import Trace

PRIORS = {
    "matrix": 0.80,
    "matrix-memory": 0.50,
    "attention": 0.80,
    "vector": 0.15,
}
"""Expected sensitivity by class: large products and attention 0.85 to 1, small
ones 0.4 to 0.7, kernels that only move data 0 to 0.3 (maximum achievable FLOPS of MI300X, AMD 2025;
decode of LLMs, arXiv 2501.08219). Our own reading of these: single kernels may have any from 0 to 1."""
CLASSES = tuple(PRIORS)
_MATRIX, _MEMORY, _ATTENTION, _VECTOR = range(len(CLASSES))
_ATTENTION_NAMES = ("attn", "attention", "fmha", "flash", "_mha")
_RIDGE = 150.0
"""FLOP a byte below which memory may bound a product. Of MI300X, 1307 TFLOP/s at 5.3 TB/s meet at 247;
somewhat more than half of that, as products do not reach the peak rate."""


def classes(trace: Trace, node: Array) -> Array:
    """Class of each kernel, an index of `CLASSES`, by its name and, where known, its sizes."""
    names = trace.names()
    code = trace.array("name")[node]
    role = work_kernels.roles(names, code)
    number = np.where(role == work_kernels.WORKER, _MATRIX, _VECTOR)
    lower = [name.lower() for name in names]
    attends = np.array([any(w in name for w in _ATTENTION_NAMES) for name in lower] + [False])
    number[attends[code] & (role == work_kernels.WORKER)] = _ATTENTION
    flops, moved = (trace.reals(name, node) for name in ("flops", "mem_bytes"))
    low = (flops > 0) & (moved > 0) & (flops < _RIDGE * moved)
    number[low & (number == _MATRIX)] = _MEMORY
    return number
