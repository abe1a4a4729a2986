"""Data that was not recorded, the analyses that need it, and what to record."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from chopper_interop.annotate.telemetry import throttle_causes
from chopper_interop.arrays.gather import is_any
from chopper_interop.grouping import by_key, grouped
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, Kind
from chopper_interop.trace import Trace


class Need(NamedTuple):
    """Data that some analyses need.

    Parameters
    ----------
    name
        Its name.
    analyses
        The analyses that cannot answer without it.
    record
        How to record it.
    is_there
        ``(trace) -> bool``: True if the trace has it.
    """

    name: str
    analyses: tuple[str, ...]
    record: str
    is_there: Callable[[Trace], bool]


def _has_steps(trace: Trace) -> bool:
    return bool(trace.known("iteration").any())


def _has_causes(trace: Trace) -> bool:
    series = zip(trace.series["name"].to_pylist(), trace.series["unit"].to_pylist(), strict=True)
    return any(throttle_causes.is_cause(name, unit) for name, unit in series)


_METRIC = "telemetry (chopper-record)"
_GPU_WORK = Need(
    "GPU work",
    ("temporal", "idle", "kernels", "energy"),
    "GPU activity (ProfilerActivity.CUDA, --kernel-trace)",
    lambda trace: bool(is_any(trace.array("kind"), GPU_WORK).any()),
)
"""Without it nothing else is missed."""
_LAUNCHED_WORK = _GPU_WORK._replace(
    record="GPU activity, of which the launches alone were recorded (--kernel-trace; PyTorch: CUPTI that fits "
    "the driver, no other profiler)"
)
"""Of profiles that hold launches, so that the program did use a GPU and was not asked about the host alone."""
_REST_OF_FILE = _GPU_WORK._replace(record="files that do not break off")
"""PyTorch writes what GPUs did behind what hosts did, so that a file that breaks off has nothing of it."""
_BREAKS_OFF = "file-not-closed"
_KINDS_OF_EVENTS = _GPU_WORK._replace(
    record="categories of events that say which are GPU work (kernel, gpu_memcpy, gpu_memset)"
)
"""Of traces by programs of which no event has a kind that is known."""
_LAUNCHES = re.compile(r"^(cuda|hip|cu)\w*Launch")
_COUNTERS = Need(
    "hardware counters",
    ("breakdown", "memory_round_trips"),
    "rocprofv3 --pmc",
    lambda trace: bool(trace.counters.num_rows),
)
"""Read of tools for AMD's GPUs alone."""
NEEDS = (
    Need(
        "training steps",
        ("replay", "stragglers"),
        "prof.step()",
        _has_steps,
    ),
    Need(
        "launches",
        ("idle", "launch"),
        "CPU activity (ProfilerActivity.CPU, --hip-trace)",
        lambda trace: bool((trace.launch >= 0).any()),
    ),
    Need(
        "core clock",
        ("dvfs",),
        _METRIC,
        lambda trace: bool(
            trace.known("gfxclk_mhz").any() or trace.known("gfxclk_counted_mhz").any()
        ),
    ),
    Need(
        "power",
        ("energy", "excursions", "power"),
        _METRIC,
        lambda trace: bool(trace.known("power_w").any()),
    ),
    Need("throttle reasons", ("throttling",), _METRIC, _has_causes),
    Need(
        "shapes",
        ("breakdown", "efficiency"),
        "record_shapes=True",
        lambda trace: bool(trace.known("flops").any()),
    ),
    _COUNTERS,
)
"""Kinds of data that analyses need."""


def missing(trace: Trace) -> list[Need]:
    """Data that a trace lacks, and that could be recorded on its GPUs."""
    if not _GPU_WORK.is_there(trace):
        return [_lacking_gpu_work(trace)]
    lacks = [need for need in NEEDS if not need.is_there(trace)]
    return [need for need in lacks if need is not _COUNTERS or not _is_cuda(trace)]


def _lacking_gpu_work(trace: Trace) -> Need:
    """GPU work, and how to have it recorded where asking for it is not what is missing."""
    if any(issue.code == _BREAKS_OFF for issue in trace.meta.issues):
        return _REST_OF_FILE
    if trace.nodes.num_rows and (trace.array("kind") == Kind.OTHER).all():
        return _KINDS_OF_EVENTS
    return _LAUNCHED_WORK if _has_launches(trace) else _GPU_WORK


def _has_launches(trace: Trace) -> bool:
    launches = np.array([_LAUNCHES.match(name) is not None for name in trace.names()], bool)
    calls = is_any(trace.array("kind"), CALLS)
    return bool(launches[trace.array("name")[calls]].any())


def _is_cuda(trace: Trace) -> bool:
    """True if a GPU is one of CUDA, or calls are: profiles without properties of devices have only these."""
    return any(device.arch.startswith("sm_") for device in trace.meta.devices) or any(
        name.startswith("cuda") for name in trace.names()
    )


def by_analysis(trace: Trace) -> dict[str, str]:
    """Return what to record for each analysis that lacks data."""
    needs = [(name, need.record) for need in missing(trace) for name in need.analyses]
    return {name: ", ".join(same) for name, same in grouped(needs).items()}


def sentence(needs: list[Need]) -> str:
    """Advice on what to record for which analyses, in one line."""
    parts = []
    for record, same in by_key(needs, lambda need: need.record).items():
        names = dict.fromkeys(name for need in same for name in need.analyses)
        parts.append(f"{record} for {', '.join(names)}")
    return "; ".join(parts)
