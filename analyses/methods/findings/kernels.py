"""Kernels that take longer than they need to, or that need not run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import grouping
from chopper_interop.analyses.methods.dvfs import breakdown_terms
from chopper_interop.analyses.methods.findings import host_calls
from chopper_interop.analyses.methods.findings.finding import LIKELY, MODELLED, Finding
from chopper_interop.arrays import Array, name_stems
from chopper_interop.graph.chains import stream_orders
from chopper_interop.schemas.kinds import GPU_LANES, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.findings.job import ExaminedJob

_FAR_BELOW, _REACHABLE = 0.25, 0.5
"""Share of its roofline below which a kernel is far below it, and the share that is taken to be reachable.
Chosen: libraries reach half and more for large operands, and below a quarter something is wrong."""
_MIN_NS = 20_000
"""Mean duration from which on a kernel is compared with its roofline. Chosen: shorter ones are bound by
the time to start and to drain a GPU."""
_MAX_NAME = 40
"""Characters of a kernel's name in a sentence. Chosen: the rest is in `where`."""
_SMALLEST_SHOWN = 0.01
"""Share that is written as a whole percentage. Fixed by the text: 0% would be wrong."""
_MAX_KERNELS = 4
"""Kernels that are re-timed each. Chosen: those with most time beyond what is reachable."""
_FUSED_SHARE = 2 / 3
"""Share of the shorter of two kernels that fusing them saves: of two kernels that read two operands and
write one, a write and a read of six accesses."""
_SIMILAR = 2.0
"""By how many times sizes of kernels may differ that could work on the same elements."""
_ELEMENTWISE = ("elementwise_kernel", "OpTensor")
_ALREADY_FUSED = ("multi_tensor", "foreach", "triton")


def below_roofline(job: ExaminedJob) -> Iterator[Finding]:
    """Find kernels that take many times what their operations and bytes need."""
    trace = job.trace
    if not (trace.has("flops") or trace.has("mem_bytes")):
        return
    row = np.flatnonzero((trace.array("kind") == Kind.KERNEL) & job.inside)
    if not row.size:
        return
    terms = breakdown_terms.time_terms(trace, row)
    roof = np.fmax(terms.thr_ns, terms.mem_ns)
    known = roof > 0
    row, roof = row[known], roof[known]
    groups = grouping.group_nodes(trace, row, "kernel,operation")
    total = groups.sums(trace.array("dur")[row])
    need, count = np.bincount(groups.code, roof, len(groups)), np.bincount(groups.code)
    beyond = np.where(
        (need < _FAR_BELOW * total) & (total > _MIN_NS * count), total - need / _REACHABLE, 0
    )
    names, operations = (groups.keys[name].to_pylist() for name in ("kernel", "operation"))
    for k in np.argsort(-beyond, kind="stable")[:_MAX_KERNELS].tolist():
        if beyond[k] > 0:
            share = need[k] / total[k]
            yield _below(job, row[groups.code == k], share, (names[k], operations[k]))


def _below(job: ExaminedJob, row: Array, share: float, names: tuple[str, str | None]) -> Finding:
    kernels = job.mask(row)
    saved = job.saved(job.times().take_no_time(kernels, factor=share / _REACHABLE))
    place = job.place(kernels)
    where = f"{names[0]}, {names[1]}" if names[1] else names[0]
    stem = name_stems.kernel_stems(pa.array([names[0]]))[0].as_py()
    half = _MAX_NAME // 2  # names of generated kernels differ at both ends
    stem = stem if len(stem) <= _MAX_NAME else f"{stem[:half]}…{stem[-half:]}"
    return Finding.from_saving(
        "below-roofline",
        saved,
        place,
        where,
        LIKELY,
        f"{stem} reaches {_share_text(share)} of its roofline by shapes; the saving is that of "
        f"{_REACHABLE:.0%}.",
        job.command("kernels --by kernel,operation"),
    )


def _share_text(share: float) -> str:
    return f"{share:.0%}" if share >= _SMALLEST_SHOWN else f"less than {_SMALLEST_SHOWN:.0%}"


def unfused_elementwise(job: ExaminedJob) -> Iterator[Finding]:
    """Find chains of elementwise kernels on one stream that could be one kernel."""
    trace = job.trace
    plain = _is_elementwise(trace.names())[trace.array("name")] if len(trace.names()) else None
    if plain is None or not (plain & job.inside).any():
        return
    plain &= (trace.array("kind") == Kind.KERNEL) & job.inside
    copies = np.array(["copy_kernel" in name for name in trace.names()], bool)[trace.array("name")]
    ts, dur = trace.array("ts"), trace.array("dur")
    is_gpu = np.isin(trace.array("kind", "lanes"), GPU_LANES)
    before = stream_orders(ts, dur, trace.array("lane"), is_gpu)
    follows = plain & (before >= 0) & plain[before] & _similar(job, before)
    follows &= ~(copies & copies[before])  # a copy of a copy is one of another tensor
    follows &= ~_sums_gradients(trace, follows)
    follows &= ~np.append(host_calls.loading_calls(job), False)[
        trace.launch
    ]  # a finding of its own
    if not follows.any():
        return
    # optimizers work on one tensor after the other: what is fused of these is launched once
    optimizer = job.mask(np.flatnonzero(trace.is_text("phase", ("optimizer",))))
    shorter = np.minimum(dur, dur[before]) * _FUSED_SHARE
    by = np.where(follows & ~optimizer, shorter, 0).astype(np.int64)
    saved = job.saved(job.times().follow_at_once(follows).shorten(follows, by))
    place, count = job.place(follows), int(np.count_nonzero(follows))
    operations = grouping.group_nodes(trace, np.flatnonzero(follows), "operation")
    largest_group = int(np.argmax(np.bincount(operations.code, minlength=len(operations))))
    where = operations.keys["operation"][largest_group].as_py() or "elementwise kernels"
    each = count / (job.steps * max(len(job.ranks), 1))
    yield Finding.from_saving(
        "unfused-elementwise",
        saved,
        place,
        where,
        LIKELY,
        f"{each:,.0f} elementwise kernels {job.each} follow one of the same size and could be part of "
        "it.",
        job.command("kernels --by category,operation"),
    )


def _is_elementwise(names: list[str]) -> Array:
    """Mark names of kernels that compute one operation element by element."""
    return np.array(
        [
            any(word in name for word in _ELEMENTWISE)
            and not any(word in name for word in _ALREADY_FUSED)
            for name in names
        ],
        bool,
    )


def _sums_gradients(trace: Trace, kernels: Array) -> Array:
    """Mark those of the kernels that add up gradients: of one tensor each when it is known, which nothing fuses."""
    row = np.flatnonzero(kernels)
    code, names = trace.texts("operation", row)
    sums = kernels.copy()
    sums[row] = np.array([*("AccumulateGrad" in name for name in names), False])[code]
    return sums


def _similar(job: ExaminedJob, before: Array) -> Array:
    """Mark work of about the size of that before it: by bytes, else by duration."""
    trace = job.trace
    size = trace.integers("mem_bytes")
    dur = np.maximum(trace.array("dur"), 1)
    known = (size > 0) & (size[before] > 0)
    of_size, of_time = size / np.maximum(size[before], 1), dur / dur[before]
    ratio = np.where(known, of_size, of_time)
    return (ratio <= _SIMILAR) & (ratio >= 1 / _SIMILAR)


def recompute(job: ExaminedJob) -> Iterator[Finding]:
    """Find work that computes again what the forward pass computed."""
    trace = job.trace
    again = job.mask(np.flatnonzero(trace.is_text("phase", ("recompute",)))) & job.inside
    work = again & job.on_gpu
    if not work.any():
        return
    calls = job.mask(np.unique(trace.launch[work & (trace.launch >= 0)]))
    saved = job.saved(job.times().follow_at_once(work).take_no_time(work | calls))
    place = job.place(work)
    share = trace.array("dur")[work].sum() / max(
        trace.array("dur")[job.on_gpu & job.inside].sum(), 1
    )
    yield Finding.from_saving(
        "recompute",
        saved,
        place,
        "recomputed activations",
        MODELLED,
        f"The backward pass computes activations again, in {share:.1%} of the GPU's work, which saves "
        "memory.",
        job.what_if("scale=0 where phase == 'recompute'"),
    )
