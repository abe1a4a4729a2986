"""FLOPs of training steps by shapes: what the model asks for, and what is computed again."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import arguments, rank_batches
from chopper_interop.analyses.methods.activity.grouping import Keys
from chopper_interop.analyses.methods.activity.totals import Totals
from chopper_interop.annotate.work import kernel_categories
from chopper_interop.arrays import Array, arrow, gather
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
_KINDS = [kind for _, kind in _TYPES]


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
    """FLOPs of the kernels of these ranks, by step: of some ranks at a time."""
    by_step, of_kinds, kernels = Totals(), Totals(), _KernelTime()
    for _, part in rank_batches.batches(trace):
        is_chosen = np.isin(part.array("rank"), list(chosen))
        rows = np.flatnonzero((part.array("kind") == Kind.KERNEL) & is_chosen)
        flops = part.integers("flops", rows)
        kernels.add(part, rows, flops >= 0)
        if part.has("flops"):
            _add_steps(by_step, part, rows, np.maximum(flops, 0))
            _add_types(of_kinds, part, is_chosen)
    if not trace.has("flops"):
        return Flops({}, {}, "", kernels.unknown, 1.0 if kernels.unknown else 0.0)
    keys, sums = by_step.ordered()
    steps = keys.codes[0].tolist()
    model, recomputed = (
        dict(zip(steps, sums[name].tolist(), strict=True)) for name in ("model", "recomputed")
    )
    return Flops(
        model, recomputed, _most(of_kinds), kernels.unknown, kernels.unknown_share,
        kernels.matrix_known_share,
    )  # fmt: skip


class _KernelTime:
    """Time of the kernels of all batches so far, and of those whose FLOPs are known."""

    def __init__(self) -> None:
        self.unknown = 0
        self._ns = self._unknown_ns = self._matrix_ns = self._matrix_known_ns = 0

    def add(self, trace: Trace, rows: Array, known: Array) -> None:
        """Add those of a batch."""
        dur = trace.array("dur")[rows]
        names = (
            kernel_categories.MATMUL, kernel_categories.CONVOLUTION, kernel_categories.ATTENTION
        )  # fmt: skip
        codes = [kernel_categories.CATEGORIES.index(name) for name in names]
        matrix = np.isin(kernel_categories.node_categories(trace, rows), codes)
        self.unknown += int(np.count_nonzero(~known))
        self._ns += int(dur.sum())
        self._unknown_ns += int(dur[~known].sum())
        self._matrix_ns += int(dur[matrix].sum())
        self._matrix_known_ns += int(dur[matrix & known].sum())

    @property
    def unknown_share(self) -> float:
        """Share of the time of kernels in which FLOPs are not known."""
        return float(self._unknown_ns) / max(float(self._ns), 1.0)

    @property
    def matrix_known_share(self) -> float:
        """Share of the time of kernels that matrix cores are for in which FLOPs are known."""
        return float(self._matrix_known_ns) / self._matrix_ns if self._matrix_ns else 1.0


def _add_steps(by_step: Totals, trace: Trace, rows: Array, flops: Array) -> None:
    """Add FLOPs of kernels to those of their steps."""
    first, code = gather.distinct(step := trace.integers("iteration", rows))
    numbers = by_step.numbers(Keys(("step",), (step[first],), len(first)))
    is_recomputed = trace.is_text("phase", ("recompute",), rows)
    for name, selected in (("model", ~is_recomputed), ("recomputed", is_recomputed)):
        by_step.add_each(numbers, code, **{name: np.where(selected, flops, 0).astype(np.float64)})


def _add_types(of_kinds: Totals, trace: Trace, is_chosen: Array) -> None:
    """Add FLOPs that operators ask for to those of the type of their first input."""
    flops = arrow.to_numpy(trace.nodes["flops"], -1)
    rows = np.flatnonzero((trace.array("kind") == Kind.CPU_OP) & (flops > 0) & is_chosen)
    if not rows.size:
        return
    code, values = arguments.values(trace, rows, "Input type")
    kinds = np.array([*(_kind(value) for value in values), -1])[code]
    first, code = gather.distinct(kinds)
    numbers = of_kinds.numbers(Keys(("type",), (kinds[first],), len(first)))
    of_kinds.add_each(numbers, code, flops=flops[rows].astype(np.float64))


def _most(of_kinds: Totals) -> str:
    """Type with most FLOPs; empty if none is known."""
    if not of_kinds.keys.names:
        return ""
    kinds = [_KINDS[kind] if kind >= 0 else "" for kind in of_kinds.keys.codes[0].tolist()]
    total = dict(zip(kinds, of_kinds.figures()["flops"].tolist(), strict=True))
    total.pop("", None)
    return max(total, key=lambda kind: (total[kind], kind), default="")


def peak(rated: GpuRating, dtype: str) -> float | None:
    """Peak rate of a GPU, dense FLOP/s, at the clock for which its maker publishes rates.

    Of matrix cores; where no rate of them is known for this type, of vector units.
    """
    rate = rated.flop_per_cycle(dtype) or rated.flop_per_cycle(dtype, vector=True)
    mhz = rated.peak_mhz or rated.boost_mhz
    if not rate or not rated.cus or not mhz:
        return None
    return rate * rated.cus * mhz * 1e6


def _kind(types: Any) -> int:
    """Type of the first tensor among a call's inputs, as its place in `_KINDS`; -1 if none is known."""
    for name in types if isinstance(types, list) else ():
        for pattern, kind in _TYPES:
            if isinstance(name, str) and pattern.search(name):
                return _KINDS.index(kind)
    return -1
