"""Series of Kineto files: memory as the allocator counts it, and counter events."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.converters.kineto.trace_file import TraceFile, is_id
from chopper_interop.io.json_events import HAS_TS
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.combined import SourceIssues
    from chopper_interop.converters.kineto.ranks import Owners

SAMPLED = Fault.info_of_events(
    "event-as-sample", "Memory instants and counter events became samples of series."
)
NO_SAMPLE = Fault.loss_of_events(
    "counter-event-without-number",
    "Counter events and memory instants without a time or a number were left out.",
)
NO_NUMBER = Fault.loss(
    "counter-value-no-number", "Values of counter events that are not numbers were left out."
)

SOURCE = "PyTorch"
MEMORY = "[memory]"
"""Name of an instant at which PyTorch's allocator gave out or took back memory."""
_TOTALS = (("Total Allocated", "memory allocated"), ("Total Reserved", "memory reserved"))
_CPU = 0
"""``Device Type`` of the host in c10's numbering."""
_GPU_COUNTERS = re.compile(r"GPU (\d{1,9}) Counters\Z")
"""Process of hardware counters since 2026."""


def is_memory(file: TraceFile) -> Array:
    """Mask of instants that report an allocation or release."""
    number = file.texts.index(MEMORY) if MEMORY in file.texts else -2
    return (file.columns["name"] == number) & file.phase("i", "I", "R")


def add_samples(
    builder: TraceBuilder, file: TraceFile, owners: Owners, issues: SourceIssues
) -> None:
    """Add the samples of memory instants and counter events, of each file in turn."""
    memory = np.flatnonzero(is_memory(file))
    counters = np.flatnonzero(file.phase("C"))
    for member in gather.unique(file.member[np.concatenate([memory, counters])]).tolist():
        instants, events = (rows[file.member[rows] == member] for rows in (memory, counters))
        _add_of_file(builder, file, owners, instants, events, issues.logs[member])


def _add_of_file(  # what is read, and where it goes
    builder: TraceBuilder,
    file: TraceFile,
    owners: Owners,
    memory: Array,
    counters: Array,
    issues: IssueLog,
) -> None:
    timed = (file.columns["has"][memory] & HAS_TS) != 0
    sampled = _add_memory(builder, file, owners, memory[timed])
    sampled += _add_counters(builder, file, owners, counters, issues)
    issues.add(SAMPLED, sampled)
    issues.add(NO_SAMPLE, len(memory) + len(counters) - sampled)


def _add_memory(builder: TraceBuilder, file: TraceFile, owners: Owners, rows: Array) -> int:
    """Add the allocator's totals; before 2022 only changes were recorded, which are summed.

    Returns
    -------
    int
        How many instants gave a sample.
    """
    keys = ("Device Type", "Device Id", "Bytes", *(key for key, _ in _TOTALS))
    values, present = file.numbers(rows, *keys)
    ts = file.columns["ts"][rows] + file.base_ns
    ranks, code = np.unique(owners.rank[rows], return_inverse=True)
    used = np.array([owners.device_of(rank) for rank in ranks.tolist()], np.int64)[code]
    # `Device Id` is HIP's ordinal, but kernels may have HSA agents: a rank's own device wins
    stated = np.where(is_id(values[1]), values[1], -1)
    device = np.where(values[0] == _CPU, -1, np.where(used >= 0, used, stated))
    first, code = gather.distinct(owners.rank[rows], device)
    for group, row in enumerate(first.tolist()):
        selected = code == group
        rank_and_device = (int(owners.rank[rows][row]), int(device[row]))
        with_total = [selected & p for p in present[3:]]
        if any(t.any() for t in with_total):
            for (_, name), mask, total in zip(_TOTALS, with_total, values[3:], strict=True):
                _add_series(builder, rank_and_device, name, ts[mask], total[mask])
        else:
            selected &= present[2]
            name = "memory allocated since the start"
            total = np.cumsum(values[2][selected], dtype=np.float64)
            _add_series(builder, rank_and_device, name, ts[selected], total)
    return int(present[2:].any(axis=0).sum())


def _add_series(
    builder: TraceBuilder, rank_and_device: tuple[int, int], name: str, ts: Array, value: Array
) -> None:
    if ts.size:
        rank, device = rank_and_device
        series = builder.series(rank, name, "B", SOURCE, device=device)
        builder.samples(series, ts, value.astype(np.float64))


def _add_counters(
    builder: TraceBuilder, file: TraceFile, owners: Owners, rows: Array, issues: IssueLog
) -> int:
    """Add counter events, one sample for each of their numbers; return how many events had one."""
    samples: dict[int, tuple[list[int], list[float]]] = {}
    ambiguous = _names_of_several_processes(file, owners, rows)
    sampled = not_numbers = 0
    for row in rows.tolist():
        event = {name: column[row] for name, column in file.columns.items()}
        args = file.args(row)
        numbers = {
            key: float(value)
            for key, value in args.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        if not numbers or not event["has"] & HAS_TS:
            continue
        sampled += 1
        not_numbers += len(args) - len(numbers)
        rank = int(owners.rank[row])
        member = int(file.member[row])
        device, process = _device_and_process(file, member, int(event["pid"]))
        for key, value in numbers.items():
            parts = [file.name(row), key]
            if (rank, int(event["name"])) in ambiguous and device < 0:
                parts.append(f"of {process}")
            if event["id"]:
                parts.append(f"#{_text_of_id(file, member, int(event['id']))}")
            name = " ".join(part for part in parts if part)
            series = builder.series(rank, name, "", SOURCE, device=device)
            times, values = samples.setdefault(series, ([], []))
            times.append(int(event["ts"]) + file.base_ns)
            values.append(value)
    for series, (times, values) in samples.items():
        builder.samples(series, np.array(times, np.int64), np.array(values))
    issues.add(NO_NUMBER, not_numbers)
    return sampled


def _names_of_several_processes(
    file: TraceFile, owners: Owners, rows: Array
) -> set[tuple[int, int]]:
    """Ranks and names of counters that several of a rank's processes have."""
    name, pid, rank = file.columns["name"][rows], file.columns["pid"][rows], owners.rank[rows]
    first, _ = gather.distinct(rank, name, pid)
    processes = Counter(zip(rank[first].tolist(), name[first].tolist(), strict=True))
    return {key for key, count in processes.items() if count > 1}


def _text_of_id(file: TraceFile, member: int, number: int) -> str:
    """The text that an id of a file stands for, or its number."""
    label = file.label(member, number)
    return str(number) if label is None else label


def _device_and_process(file: TraceFile, member: int, pid: int) -> tuple[int, str]:
    """Return the device that a counter event's process is named after (-1: none), and that name."""
    label = _text_of_id(file, member, pid)
    of_gpu = _GPU_COUNTERS.match(label)
    return (int(of_gpu.group(1)), label) if of_gpu else (-1, label)
