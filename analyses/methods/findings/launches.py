"""Launches that GPUs wait for: of small kernels, and those that wait for their kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.findings.finding import LIKELY, MODELLED, Finding
from chopper_interop.analyses.methods.findings.host_calls import (
    LONG_NS,
    encloses,
    launching_nodes,
    loading_and_callers,
    serialised_calls,
)
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.findings.job import ExaminedJob

_SMALL_NS = 20_000
"""Median duration of kernels from which on they are not small, unless this host takes longer for each. Chosen: a
launch by a framework takes hosts about 5 to 20 µs, so that longer kernels keep a GPU busy while the next is launched."""
_USUAL_NS = 50_000
"""Time of operators for each kernel that they launch which is not long. Chosen: the highest of ordinary
recordings, which have 16 to 50 µs; hosts that record stacks and shapes take more."""
_AROUND = (Kind.PYTHON, Kind.ANNOTATION)
"""Code of the program that calls operators: a graph of what they launch replaces it too, but for what takes long."""


def small_launches(job: ExaminedJob) -> Iterator[Finding]:
    """Find hosts that cannot launch small kernels as fast as the GPU runs them."""
    trace = job.trace
    kernels = (trace.array("kind") == Kind.KERNEL) & job.inside & (trace.launch >= 0)
    known_ns = trace.array("dur")[kernels & (trace.array("dur") > 0)]  # 0 where it was damaged
    if not known_ns.size or serialised_calls(job).any():
        return
    median = float(np.median(known_ns))
    launching = launching_nodes(job) & job.inside & ~loading_and_callers(job)
    each_ns = job.own_ns(launching) / np.count_nonzero(kernels)
    if median >= max(_SMALL_NS, each_ns):
        return
    count = int(np.count_nonzero(kernels)) // (job.steps * max(len(job.ranks), 1))
    around = encloses(job, job.mask(trace.launch[kernels])) & is_any(trace.array("kind"), _AROUND)
    times, code, certainty = job.times().take_no_time(launching), "small-launches", MODELLED
    times.take_no_time(around & job.inside & ~loading_and_callers(job), below_ns=LONG_NS)
    text = (
        f"The host launches kernels more slowly than they run: {count:,} {job.each}, half of "
        f"them shorter than {median / 1e3:,.1f} µs."
    )
    if each_ns >= LONG_NS:
        times = job.times().take_no_time(launching, factor=_USUAL_NS / each_ns)
        code, certainty = "slow-operators", LIKELY
        has_operators = (launching & (trace.array("kind") == Kind.CPU_OP)).any()
        text = (
            f"{'Operators' if has_operators else 'Calls'} of the host take {each_ns / 1e3:,.0f} µs for each kernel that they launch, more "
            f"than {_USUAL_NS / 1e3:,.0f} µs: recording may slow them down."
        )
    yield Finding.from_saving(
        code,
        job.saved(times),
        job.idlest(kernels, ("host_late", "launch"), LONG_NS),
        f"{count:,} kernel{'s' * (count != 1)} {job.each}",
        certainty,
        text,
        job.command("launch --by operation"),
    )


def serialised_launches(job: ExaminedJob) -> Iterator[Finding]:
    """Find launches that return only when their kernel has ended."""
    calls = serialised_calls(job) & job.inside
    if not calls.any():
        return
    trace = job.trace
    work = np.flatnonzero((trace.launch >= 0) & job.on_gpu)
    took = np.zeros(trace.nodes.num_rows, np.int64)
    np.maximum.at(took, trace.launch[work], trace.array("dur")[work])
    times = job.times().return_without_waiting(calls).shorten(calls, took)
    saved, place = job.saved(times), job.place(calls)
    yield Finding.from_saving(
        "serialised-launches",
        saved,
        place,
        "launches of kernels",
        MODELLED,
        "Each launch waits until its kernel has ended, as with AMD_SERIALIZE_KERNEL, "
        "HIP_LAUNCH_BLOCKING or CUDA_LAUNCH_BLOCKING.",
        job.command("launch"),
    )
