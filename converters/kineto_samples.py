"""Counter lanes of a Kineto file: memory as the allocator saw it, hardware counters."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.converters.kineto_numbers import in_reach
from chopper_interop.files.jsonscan import HAS_TS
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.kineto_events import TraceFile
    from chopper_interop.converters.kineto_ranks import Owners

SAMPLED = Fault(
    "event-as-sample",
    Severity.INFO,
    "Memory instants and counter events became samples of counter lanes.",
    events=True,
)
NO_SAMPLE = Fault(
    "counter-event-without-number",
    Severity.LOSS,
    "Counter events and memory instants without a time or a number were left out.",
    events=True,
)
NO_NUMBER = Fault(
    "counter-value-no-number",
    Severity.LOSS,
    "Values of counter events that are no numbers were left out.",
)

SOURCE = "PyTorch"
_MEMORY = "[memory]"
_LANES = (("Total Allocated", "memory allocated"), ("Total Reserved", "memory reserved"))
_CPU = 0
_GPU_COUNTERS = re.compile(r"GPU (\d{1,9}) Counters\Z")
"""Process of hardware counters since 2026."""


def is_memory(file: TraceFile) -> Array:
    """Which events tell of an allocation or release."""
    number = file.texts.index(_MEMORY) if _MEMORY in file.texts else -2
    return (file.rows["name"] == number) & file.phase("i", "I", "R")


def add(builder: TraceBuilder, file: TraceFile, owners: Owners, issues: IssueLog) -> None:
    """Add the samples of memory instants and counter events."""
    memory = np.flatnonzero(is_memory(file))
    timed = (file.rows["has"][memory] & HAS_TS) != 0
    taken = _add_memory(builder, file, owners, memory[timed])
    counters = np.flatnonzero(file.phase("C"))
    taken += _add_counters(builder, file, owners, counters, issues)
    issues.add(SAMPLED, taken)
    issues.add(NO_SAMPLE, len(memory) + len(counters) - taken)


def _add_memory(builder: TraceBuilder, file: TraceFile, owners: Owners, rows: Array) -> int:
    """Add what the allocator held; before 2022 only changes were told, which are summed."""
    keys = ("Device Type", "Device Id", "Bytes", *(key for key, _ in _LANES))
    values, found = file.numbers(rows, *keys)
    ts = file.rows["ts"][rows] + file.base_ns
    computes_on = {r.rank: r.device for r in owners.ranks}
    own = np.array([computes_on[r] for r in owners.rank[rows].tolist()], np.int64)
    stated = np.where(in_reach(values[1]), values[1], -1)
    device = np.where(values[0] == _CPU, -1, np.where(own >= 0, own, stated))
    first, code = gather.distinct(owners.rank[rows], device)
    for group, row in enumerate(first.tolist()):
        mine = code == group
        where = (int(owners.rank[rows][row]), int(device[row]))
        totals = [mine & f for f in found[3:]]
        if any(t.any() for t in totals):
            for (_, name), which, value in zip(_LANES, totals, values[3:], strict=True):
                _series(builder, where, name, ts[which], value[which])
        else:
            mine &= found[2]
            name = "memory allocated since the start"
            _series(builder, where, name, ts[mine], np.cumsum(values[2][mine], dtype=np.float64))
    return int(found[2:].any(axis=0).sum())


def _series(
    builder: TraceBuilder, where: tuple[int, int], name: str, ts: Array, value: Array
) -> None:
    if ts.size:
        rank, device = where
        series = builder.series(rank, name, "B", SOURCE, device=device)
        builder.samples(series, ts, value.astype(np.float64))


def _add_counters(
    builder: TraceBuilder, file: TraceFile, owners: Owners, rows: Array, issues: IssueLog
) -> int:
    """Add counter events: one sample of each of their values that is a number."""
    found: dict[int, tuple[list[int], list[float]]] = {}
    shared = _names_of_several(file, owners, rows)
    taken = others = 0
    for row in rows.tolist():
        event = file.rows[row]
        args = file.args(row)
        numbers = {
            key: float(value)
            for key, value in args.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        if not numbers or not event["has"] & HAS_TS:
            continue
        taken += 1
        others += len(args) - len(numbers)
        rank = int(owners.rank[row])
        device, place = _place(file, int(event["pid"]))
        for key, value in numbers.items():
            parts = [file.name(row), key]
            if (rank, int(event["name"])) in shared and device < 0:
                parts.append(f"of {place}")
            if event["id"]:
                parts.append(f"#{file.labels.get(int(event['id']), int(event['id']))}")
            name = " ".join(part for part in parts if part)
            series = builder.series(rank, name, "", SOURCE, device=device)
            times, values = found.setdefault(series, ([], []))
            times.append(int(event["ts"]) + file.base_ns)
            values.append(value)
    for series, (times, values) in found.items():
        builder.samples(series, np.array(times, np.int64), np.array(values))
    issues.add(NO_NUMBER, others)
    return taken


def _names_of_several(file: TraceFile, owners: Owners, rows: Array) -> set[tuple[int, int]]:
    """Ranks and names of counters that several of a rank's processes have."""
    name, pid, rank = file.rows["name"][rows], file.rows["pid"][rows], owners.rank[rows]
    first, _ = gather.distinct(rank, name, pid)
    told = Counter(zip(rank[first].tolist(), name[first].tolist(), strict=True))
    return {key for key, processes in told.items() if processes > 1}


def _place(file: TraceFile, pid: int) -> tuple[int, str]:
    """Device of which a counter event's process tells, -1 for none; and what it is called."""
    label = file.labels.get(pid, str(pid))
    of_gpu = _GPU_COUNTERS.match(label)
    return (int(of_gpu.group(1)), label) if of_gpu else (-1, label)
