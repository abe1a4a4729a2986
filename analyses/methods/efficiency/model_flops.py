"""FLOPs of training steps by shapes: what the model asks for, and what is computed again."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import arguments
from chopper_interop.annotate.work import kernel_categories
from chopper_interop.arrays import Array, arrow
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.gpus.ratings import GpuRating

_TYPES = (
    (re.compile(r"bfloat16", re.IGNORECASE), "bf16"),
    (re.compile(r"half|float16", re.IGNORECASE), "f16"),
    (re.compile(r"float8", re.IGNORECASE), "f8"),
    (re.compile(r"float4", re.IGNORECASE), "f4"),
    (re.compile(r"double|float64", re.IGNORECASE), "f64"),
    (re.compile(r"float", re.IGNORECASE), "f32"),
    (re.compile(r"signed char|char|int8", re.IGNORECASE), "i8"),
)
"""Element types as PyTorch names them → as `schemas.gpus` does; the first that is in a name."""


@dataclass(frozen=True)
class Flops:
    """FLOPs of kernels of some ranks.

    Parameters
    ----------
    model, recomputed
        By step (-1: outside of steps): of the model, and of what is recomputed.
    dtype
        Type of elements that most of them are of, as in `schemas.gpus`; empty if not known.
    unknown, unknown_share
        Kernels whose FLOPs are not known, and their share of the time of all kernels.
    matrix_known_share
        Share of the time of matrix products, convolutions and attention whose FLOPs are known; 1
        where there are none.
    """

    model: dict[int, float]
    recomputed: dict[int, float]
    dtype: str
    unknown: int
    unknown_share: float
    matrix_known_share: float = 1.0

    def total(self, steps: Collection[int] | None) -> tuple[float | None, float | None]:
        """FLOPs of the model, and all, of some steps or of the whole trace; None if none are known."""
        keys = self.model if steps is None else [step for step in steps if step in self.model]
        model = sum(self.model[key] for key in keys)
        recomputed = sum(self.recomputed[key] for key in keys)
        return (model, model + recomputed) if model + recomputed else (None, None)


def flops_by_step(trace: Trace, chosen: Collection[int]) -> Flops:
    """FLOPs of the kernels of these ranks, by step."""
    kernels = np.flatnonzero(
        (trace.array("kind") == Kind.KERNEL) & np.isin(trace.array("rank"), list(chosen))
    )
    dur = trace.array("dur")[kernels]
    if not trace.has("flops"):
        return Flops({}, {}, "", len(kernels), 1.0 if len(kernels) else 0.0)
    flops = trace.integers("flops", kernels)
    known = flops >= 0
    unknown = float(dur[~known].sum()) / max(float(dur.sum()), 1.0)
    step = trace.integers("iteration", kernels)
    steps, code = np.unique(step, return_inverse=True)
    is_recomputed = trace.is_text("phase", ("recompute",), kernels)
    sums = [
        np.bincount(code, np.where(known & selected, flops, 0).astype(np.float64), len(steps))
        for selected in (~is_recomputed, is_recomputed)
    ]
    by_step = [dict(zip(steps.tolist(), column.tolist(), strict=True)) for column in sums]
    return Flops(
        by_step[0], by_step[1], _dtype(trace, chosen), int(np.count_nonzero(~known)), unknown,
        _known_of_matrix(trace, kernels, known, dur),
    )  # fmt: skip


def _known_of_matrix(trace: Trace, kernels: Array, known: Array, dur: Array) -> float:
    """Share of the time of kernels that matrix cores are for in which FLOPs are known."""
    names = (kernel_categories.MATMUL, kernel_categories.CONVOLUTION, kernel_categories.ATTENTION)
    codes = [kernel_categories.CATEGORIES.index(name) for name in names]
    matrix = np.isin(kernel_categories.node_categories(trace, kernels), codes)
    total = float(dur[matrix].sum())
    return float(dur[matrix & known].sum()) / total if total else 1.0


def peak(rated: GpuRating, dtype: str) -> float | None:
    """Peak rate of a GPU, dense FLOP/s, at the clock for which its maker publishes rates.

    Of matrix cores; where no rate of them is known for this type, of vector units.
    """
    rate = rated.flop_per_cycle(dtype) or rated.flop_per_cycle(dtype, vector=True)
    mhz = rated.peak_mhz or rated.boost_mhz
    if not rate or not rated.cus or not mhz:
        return None
    return rate * rated.cus * mhz * 1e6


def _dtype(trace: Trace, chosen: Collection[int]) -> str:
    """Type of the first input of the operators that ask for most FLOPs."""
    flops = arrow.to_numpy(trace.nodes["flops"], -1)
    asks = (trace.array("kind") == Kind.CPU_OP) & (flops > 0)
    rows = np.flatnonzero(asks & np.isin(trace.array("rank"), list(chosen)))
    if not rows.size:
        return ""
    code, values = arguments.values(trace, rows, "Input type")
    kinds = [_kind(value) for value in values]
    total: dict[str, float] = {}
    sums = np.bincount(code[code >= 0], flops[rows][code >= 0].astype(np.float64), len(values))
    for kind, number in zip(kinds, sums.tolist(), strict=True):
        total[kind] = total.get(kind, 0.0) + number
    total.pop("", None)
    return max(total, key=lambda kind: (total[kind], kind), default="")


def _kind(types: Any) -> str:
    """Type of the first tensor among a call's inputs."""
    for name in types if isinstance(types, list) else ():
        for pattern, kind in _TYPES:
            if isinstance(name, str) and pattern.search(name):
                return kind
    return ""
