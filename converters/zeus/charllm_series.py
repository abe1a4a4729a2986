"""Series of CharLLM-PPT's files: sums of parts, counters carried on, what does not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.sampling.checks import note_clock_steps, note_impossible_values
from chopper_interop.converters.zeus import charllm_metrics as tables
from chopper_interop.converters.zeus.charllm_metrics import How
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.zeus.charllm_file import File

SOURCE = "charllm"
READING_NS = 25_000_000
"""Half of the period: the time is taken once and all metrics are read behind it."""
_WRAP = 1 << 32

SAMPLED = Fault.info_of_events("row-as-samples", "Rows became samples of counter lanes.")
SUMMED = Fault.info_of_events(
    "row-summed",
    "Rows of one moment that are parts of one value (modes of a processor) were added up.",
)
PART_MISSING = Fault.loss_of_events(
    "sum-without-all-parts",
    "Rows of times that lack some of the parts which are to be added up were left out.",
)
REPEATED = Fault.info_of_events(
    "value-unchanged", "Rows that repeat a value which does not change were left out."
)
WRAPPED = Fault.info(
    "counter-wrapped",
    "Counters of 32 bits that began again at 0 were carried on; one that was reset looks alike.",
)
MEM_TOTAL = Fault.info(
    "memory-used-is-total",
    "system_memory_used holds MemTotal, the size of the memory, and was named so.",
)
AMD_FILES = Fault.info(
    "metrics-of-amd",
    "The metrics of NVIDIA alone are missing: memory utilization was taken as how "
    "full it is and the temperature as that of the edge, which is what CharLLM-PPT reads on AMD.",
)
SEVERAL_GPUS = Fault.info(
    "gpus-in-one-file",
    "Files with several rows for each moment, which are those of a rank's GPUs "
    "one after the other: their lanes end in the number.",
)


def add(builder: TraceBuilder, file: File, issues: IssueLog, *, amd: bool) -> None:
    """Make the series of a file, and say what became of its rows."""
    named, metric = file.named, file.named.metric
    if amd and named.gpu and named.key in tables.AMD:
        metric = tables.AMD[named.key]
        issues.add(AMD_FILES, 1, named.key)
    issues.add(MEM_TOTAL, int(named.key == "memory_used"))
    note_clock_steps(file.time, np.zeros(len(file.time), np.int64), issues, file.path.name)
    order = np.argsort(file.time, kind="stable")
    time, value = file.time[order], file.value[order]
    if metric.how is How.SUM:
        time, value = _summed(time, value, issues)
    places = _places(time) if named.gpu else np.zeros(len(time), np.int64)
    count = int(places.max(initial=0)) + 1
    issues.add(SEVERAL_GPUS, int(count > 1), f"{count} in {file.path.name}")
    for place in range(count):
        selected = places == place
        suffix = f" GPU {place}" if count > 1 else ""
        _series(builder, named, metric, suffix, (time[selected], value[selected]), issues)


def _summed(time: Array, value: Array, issues: IssueLog) -> tuple[Array, Array]:
    """Times and the sums of their parts; a time that lacks parts which others have is left out."""
    if not len(time):
        return time, value
    moment, first, count = np.unique(time, return_index=True, return_counts=True)
    has_all_parts = count == count.max()
    issues.add(PART_MISSING, count[~has_all_parts].sum())
    issues.add(SUMMED, (count[has_all_parts] - 1).sum())
    return moment[has_all_parts], np.add.reduceat(value, first)[has_all_parts]


def _places(time: Array) -> Array:
    """Index of each row among those of its time, if all times have as many; else all 0."""
    _, first, count = np.unique(time, return_index=True, return_counts=True)
    if not len(count) or count.min() != count.max():
        return np.zeros(len(time), np.int64)
    return np.arange(len(time)) - np.repeat(first, count)


def _series(
    builder: TraceBuilder,
    named: tables.Named,
    metric: tables.Metric,
    suffix: str,
    points: tuple[Array, Array],
    issues: IssueLog,
) -> None:
    time, value = points
    if not len(time):
        return
    if metric.how is How.WRAPPING:
        value, wraps = unwrapped(value)
        issues.add(WRAPPED, wraps, f"{named.key}_{named.rank}")
    if metric.how is How.STEADY:
        changes = np.concatenate([[True], value[1:] != value[:-1]])
        issues.add(REPEATED, np.count_nonzero(~changes))
        time, value = time[changes], value[changes]
    issues.add(SAMPLED, len(time))
    series = builder.series(
        named.rank,
        metric.lane.format(id=named.id) + suffix,
        metric.unit,
        SOURCE,
        device=named.rank if named.gpu else -1,
        uncertainty_ns=READING_NS,
    )
    value = value * metric.factor
    note_impossible_values(metric.lane.format(id=named.id) + suffix, metric.unit, value, issues)
    builder.samples(series, time, value)


def unwrapped(value: Array) -> tuple[Array, int]:
    """A counter of 32 bits carried on beyond its wraps, and how many there were.

    Between two values modulo 2**32 lies their difference modulo 2**32; exact up to 2**53. What
    does not fit into 32 bits is no such counter and stays as it is.
    """
    if not len(value) or value.max() >= _WRAP or value.min() < 0:
        return value, 0
    wraps = np.concatenate([[0], np.cumsum(np.diff(value) < 0)])
    return value + wraps * float(_WRAP), int(wraps[-1])
