"""Which rank each event of a Kineto file belongs to, and what its threads are called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.members import is_any
from chopper_interop.converters.kineto_numbers import MOST_RANKS, in_reach, whole
from chopper_interop.converters.kineto_tables import ON_DEVICE
from chopper_interop.issues import RANK_ASSUMED, Fault, IssueLog, Severity
from chopper_interop.schemas.meta import ASSUMED, Rank

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.kineto_events import TraceFile

FUSED = Fault(
    "ranks-split",
    Severity.INFO,
    "Another tool had fused several ranks into the file; they were told apart again.",
)

_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
_IN_LABEL = re.compile(r"\brank\s*[:#-]?\s*(\d+)", re.IGNORECASE)
_THREAD = re.compile(r"thread -?\d+ \((.+)\)$")
_SHARE_THAT_TELLS = 0.9
"""A fused file is one in which at least this share of all events says its rank."""


@dataclass(frozen=True)
class Owners:
    """Who owns the events of a file.

    Parameters
    ----------
    rank
        Rank of each event.
    raw_pid
        Process id of each event as before ranks were fused.
    ranks
        The ranks with their process and device.
    fused
        Whether another tool put several ranks into the file.
    """

    rank: Array
    raw_pid: Array
    ranks: tuple[Rank, ...]
    fused: bool


def owners(file: TraceFile, given: int | None, issues: IssueLog) -> Owners:
    """Find out who owns what, from the header, the events, or the file's name."""
    rows = file.rows
    raw_pid = rows["pid"].copy()
    fused = _stated(file) if given is None else None
    if fused is None and given is None:
        fused = _labelled(file)
    if fused is not None:
        rank, pid = fused
        raw_pid = np.where(pid >= 0, pid, raw_pid)
        issues.add(FUSED, len(np.unique(rank)), f"ranks {sorted(set(rank.tolist()))}")
        return Owners(rank, raw_pid, _ranks(file, rank, raw_pid, "labels"), fused=True)
    number, known_by = _single(file.path, file.header, given)
    if known_by == ASSUMED:
        issues.add(RANK_ASSUMED)
    rank = np.full(len(rows), number, np.int32)
    return Owners(rank, raw_pid, _ranks(file, rank, raw_pid, known_by), fused=False)


def thread_names(file: TraceFile) -> dict[tuple[int, int], str]:
    """(pid, tid) → the name that the file gives a thread."""
    names = {}
    for row in np.flatnonzero(file.phase("M")).tolist():
        if file.name(row) == "thread_name":
            event = file.rows[row]
            text = str(file.args(row).get("name", "")).strip()
            inner = _THREAD.match(text)  # "thread 123 (python3)": the number shows anyway
            names[int(event["pid"]), int(event["tid"])] = inner.group(1) if inner else text
    return names


def _single(path: Path, header: dict[str, Any], given: int | None) -> tuple[int, str]:
    if given is not None:
        return given, "user"
    info = header.get("distributedInfo")
    stated = whole(info.get("rank"), most=MOST_RANKS) if isinstance(info, dict) else None
    if stated is not None:
        return stated, "header"
    in_name = _IN_NAME.search(path.name)
    named = whole(in_name.group(1), most=MOST_RANKS) if in_name else None
    return (0, ASSUMED) if named is None else (named, "name")


def _stated(file: TraceFile) -> tuple[Array, Array] | None:
    """Rank and original pid of each event, where the fusing tool noted both with each event."""
    spans = np.flatnonzero(file.phase("X"))
    probe = spans[:: max(1, len(spans) // 1000)]
    _, found = _told(file, probe)
    if not probe.size or found.all(axis=0).mean() < _SHARE_THAT_TELLS:
        return None
    first, code = gather.distinct(file.rows["pid"])
    shared = np.isin(code, np.flatnonzero(file.rows["pid"][first] < 0))  # named, not numbered
    probe = np.concatenate([_told_first(file, code, len(first)), np.flatnonzero(shared)])
    values, found = _told(file, probe)
    of_pid = np.full((2, len(first)), -1, np.int64)
    _note(of_pid, code[probe], values, found)
    silent = np.flatnonzero((of_pid[0] < 0)[code])  # the first event of these did not say it
    _note(of_pid, code[silent], *_told(file, silent))
    rank, pid = of_pid[0][code], of_pid[1][code]
    rank[probe], pid[probe] = np.where(found, values, [rank[probe], pid[probe]])
    known = rank >= 0
    return np.where(known, rank, rank[known].min()).astype(np.int32), pid


def _told(file: TraceFile, rows: Array) -> tuple[Array, Array]:
    """Rank and original pid that events say; see `jsonscan.extract`."""
    values, found = file.numbers(rows, "rank", "pid_raw")
    found &= [in_reach(values[0], MOST_RANKS) & (values[0] >= 0), in_reach(values[1])]
    return values, found


def _note(of_pid: Array, pid: Array, values: Array, found: Array) -> None:
    """Take over what events say of their processes."""
    for told, value, present in zip(of_pid, values, found, strict=True):
        told[pid[present]] = value[present]


def _told_first(file: TraceFile, code: Array, processes: int) -> Array:
    """For each process id, the first of its events that has arguments."""
    told = np.flatnonzero(file.rows["args_len"] > 0)[::-1]
    first = np.full(processes, -1, np.int64)
    first[code[told]] = told
    return first[first >= 0]


def _labelled(file: TraceFile) -> tuple[Array, Array] | None:
    """Rank of each event, where processes are named "rank 0", "rank 1", …"""
    of_pid = {}
    for row in np.flatnonzero(file.phase("M")).tolist():
        if file.name(row) in ("process_name", "process_labels"):
            args = file.args(row)
            label = _IN_LABEL.search(str(args.get("name", args.get("labels", ""))))
            if label:
                number = whole(label.group(1), most=MOST_RANKS)
                if number is not None:
                    of_pid[int(file.rows[row]["pid"])] = number
    if len(set(of_pid.values())) < 2:  # noqa: PLR2004 # one rank is no fused file
        return None
    first, code = gather.distinct(file.rows["pid"])
    pids = file.rows["pid"][first].tolist()
    fallback = min(of_pid.values())
    rank = np.array([of_pid.get(pid, fallback) for pid in pids], np.int32)[code]
    return rank, np.full(len(rank), -1, np.int64)


def _ranks(file: TraceFile, rank: Array, raw_pid: Array, known_by: str) -> tuple[Rank, ...]:
    """Each rank with the process that most host events are of, and the device that it uses."""
    on_device = is_any(file.kind, ON_DEVICE)
    found = []
    for number in np.unique(rank).tolist():
        mine = rank == number
        host = mine & ~on_device & file.phase("X") & (raw_pid >= 0)
        device = mine & on_device
        pid = _mode(raw_pid[host & in_reach(raw_pid)])
        found.append(Rank(number, pid=pid, device=_device(file, device), known_by=known_by))
    return tuple(found)


def _device(file: TraceFile, which: Array) -> int:
    values, found = file.numbers(np.flatnonzero(which), "device")
    devices = values[0][found[0]] if found.any() else file.rows["pid"][which]
    return _mode(devices[in_reach(devices)])


def _mode(values: Array) -> int:
    if not values.size:
        return -1
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[counts.argmax()])
