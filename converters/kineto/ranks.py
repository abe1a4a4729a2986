"""Rank and lane of each event of a Kineto file: streams of devices, threads of the host, rows of the profiler."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.kineto import ranks
from chopper_interop.converters.kineto.categories import ON_DEVICE
from chopper_interop.converters.kineto.stated_rank import IN_NAME
from chopper_interop.converters.kineto.trace_file import MAX_RANK, is_id, whole_number
from chopper_interop.issues import RANK_ASSUMED, Fault, IssueLog
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import ASSUMED, Rank

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.arrays.types import Array
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.kineto.trace_file import TraceFile
    from chopper_interop.trace import Trace

FUSED = Fault.info(
    "ranks-split", "Another tool had fused several ranks into the file; they were separated again."
)

_IN_LABEL = re.compile(r"\brank\s*[:#-]?\s*(\d+)", re.IGNORECASE)
_THREAD = re.compile(r"thread -?\d+ \((.+)\)$")
_PROBES = 1000
"""Spans that are probed first; chosen: 1,000 give the share to a few percent and cost nothing."""
_MIN_STATED_SHARE = 0.9
"""A fused file is one in which at least this share of the probed spans states its rank; chosen:
fusing tools write it into every event, others into none, so anything in between would do."""
_DEVICE_LANES = {
    int(Kind.GPU_ANNOTATION): LaneKind.GPU_ANNOTATION,
    int(Kind.GPU_SYNC): LaneKind.GPU_SYNC,
}
_PROFILER_KINDS = (Kind.SPAN, Kind.OVERHEAD)
_TEXT_ID = -(1 << 61)
"""Below this, a pid or tid stands for a text of the file: half of `json_events.TEXT_ID`."""


@dataclass(frozen=True)
class Owners:
    """Rank and process of each event of a file.

    Parameters
    ----------
    rank
        Rank of each event.
    raw_pid
        Process id of each event as before ranks were fused.
    ranks
        The ranks with their process and device.
    fused
        True if another tool put several ranks into the file.
    """

    rank: Array
    raw_pid: Array
    ranks: tuple[Rank, ...]
    fused: bool


def assign_ranks(file: TraceFile, requested: int | None, issues: IssueLog) -> Owners:
    """Assign a rank to each event, from the header, the events, or the file's name.

    Parameters
    ----------
    file
        The file.
    requested
        Rank of all events, if the user set it.
    issues
        Receives whether ranks were separated, or one was assumed.
    """
    raw_pid = file.columns["pid"].copy()
    fused = None
    if requested is None:
        fused = _ranks_by_arguments(file) or _ranks_by_labels(file)
    if fused is not None:
        rank, pid = fused
        raw_pid = np.where(pid >= 0, pid, raw_pid)
        issues.add(FUSED, len(np.unique(rank)), f"ranks {sorted(set(rank.tolist()))}")
        return Owners(rank, raw_pid, _describe_ranks(file, rank, raw_pid, "labels"), fused=True)
    number, known_by = _single_rank(file.path, file.header, requested)
    if known_by == ASSUMED:
        issues.add(RANK_ASSUMED)
    rank = np.full(len(raw_pid), number, np.int32)
    return Owners(rank, raw_pid, _describe_ranks(file, rank, raw_pid, known_by), fused=False)


def thread_names(file: TraceFile) -> dict[tuple[int, int], str]:
    """Names of threads by pid and tid, from the metadata events."""
    names = {}
    for row in np.flatnonzero(file.phase("M")).tolist():
        if file.name(row) == "thread_name":
            text = str(file.args(row).get("name", "")).strip()
            inner = _THREAD.match(text)  # "thread 123 (python3)": the lane has the number already
            pid, tid = int(file.columns["pid"][row]), int(file.columns["tid"][row])
            names[pid, tid] = inner.group(1) if inner else text
    return names


def _single_rank(path: Path, header: dict[str, Any], requested: int | None) -> tuple[int, str]:
    """Return the rank of a file that holds one, and how it is known (`Rank.known_by`)."""
    if requested is not None:
        return requested, "user"
    info = header.get("distributedInfo")
    stated = whole_number(info.get("rank"), maximum=MAX_RANK) if isinstance(info, dict) else None
    if stated is not None:
        return stated, "header"
    in_name = IN_NAME.search(path.name)
    named = whole_number(in_name.group(1), maximum=MAX_RANK) if in_name else None
    return (0, ASSUMED) if named is None else (named, "name")


def _ranks_by_arguments(file: TraceFile) -> tuple[Array, Array] | None:
    """Rank and original pid of each event, where the fusing tool wrote both into their arguments.

    Looking into the arguments of all events would cost as much as the scan, so one event stands for
    all of its process. Exceptions are pids that are texts ("Spans"), which ranks may share: there
    each event counts for itself.

    Returns
    -------
    rank, pid
        Of each event; None if the file is not of such a tool.
    """
    spans = np.flatnonzero(file.phase("X"))
    probe = spans[:: max(1, len(spans) // _PROBES)]
    _, present = _stated_rank_and_pid(file, probe)
    if not probe.size or present.all(axis=0).mean() < _MIN_STATED_SHARE:
        return None
    first, process = gather.distinct(file.columns["pid"])
    shared = np.isin(process, np.flatnonzero(file.columns["pid"][first] < 0))
    probe = np.concatenate(
        [_first_with_arguments(file, process, len(first)), np.flatnonzero(shared)]
    )
    values, present = _stated_rank_and_pid(file, probe)
    by_process = np.full((2, len(first)), -1, np.int64)
    _set_present(by_process, process[probe], values, present)
    silent = np.flatnonzero((by_process[0] < 0)[process])  # the first event did not state it
    _set_present(by_process, process[silent], *_stated_rank_and_pid(file, silent))
    rank, pid = by_process[0][process], by_process[1][process]
    rank[probe], pid[probe] = np.where(present, values, [rank[probe], pid[probe]])
    known = rank >= 0
    return np.where(known, rank, rank[known].min()).astype(np.int32), pid


def _stated_rank_and_pid(file: TraceFile, rows: Array) -> tuple[Array, Array]:
    """Rank and original pid in the arguments of events; see `json_events.extract_integers`."""
    values, present = file.numbers(rows, "rank", "pid_raw")
    present &= [is_id(values[0], MAX_RANK) & (values[0] >= 0), is_id(values[1])]
    return values, present


def _set_present(by_process: Array, process: Array, values: Array, present: Array) -> None:
    """Set rank and original pid of processes to what their events state, in place."""
    for of_process, value, is_there in zip(by_process, values, present, strict=True):
        of_process[process[is_there]] = value[is_there]


def _first_with_arguments(file: TraceFile, process: Array, processes: int) -> Array:
    """Row of the first event with arguments of each process that has one."""
    rows = np.flatnonzero(file.columns["args_len"] > 0)[::-1]
    first = np.full(processes, -1, np.int64)
    first[process[rows]] = rows  # in reverse order, so that the first is assigned last and stays
    return first[first >= 0]


def _ranks_by_labels(file: TraceFile) -> tuple[Array, Array] | None:
    """Rank of each event, where processes are named "rank 0", "rank 1", …; no original pids."""
    rank_of_pid = {}
    for row in np.flatnonzero(file.phase("M")).tolist():
        if file.name(row) in ("process_name", "process_labels"):
            args = file.args(row)
            label = _IN_LABEL.search(str(args.get("name", args.get("labels", ""))))
            number = whole_number(label.group(1), maximum=MAX_RANK) if label else None
            if number is not None:
                rank_of_pid[int(file.columns["pid"][row])] = number
    if len(set(rank_of_pid.values())) < 2:  # noqa: PLR2004 # one rank is no fused file
        return None
    first, code = gather.distinct(file.columns["pid"])
    pids = file.columns["pid"][first].tolist()
    fallback = min(rank_of_pid.values())
    rank = np.array([rank_of_pid.get(pid, fallback) for pid in pids], np.int32)[code]
    return rank, np.full(len(rank), -1, np.int64)


def _describe_ranks(
    file: TraceFile, rank: Array, raw_pid: Array, known_by: str
) -> tuple[Rank, ...]:
    """Describe each rank: the process of most of its host events, the device of most GPU events."""
    on_device = is_any(file.kind, ON_DEVICE)
    ranks = []
    for number in np.unique(rank).tolist():
        of_rank = rank == number
        host = of_rank & ~on_device & file.phase("X") & (raw_pid >= 0)
        pid = _mode(raw_pid[host & is_id(raw_pid)])
        device = _most_used_device(file, of_rank & on_device)
        ranks.append(Rank(number, pid=pid, device=device, known_by=known_by))
    return tuple(ranks)


def _most_used_device(file: TraceFile, mask: Array) -> int:
    values, present = file.numbers(np.flatnonzero(mask), "device")
    devices = values[0][present[0]] if present.any() else file.columns["pid"][mask]
    return _mode(devices[is_id(devices)])


def _mode(values: Array) -> int:
    """Return the most frequent value, -1 of none."""
    if not values.size:
        return -1
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[counts.argmax()])


def lane_of_events(
    builder: TraceBuilder,
    file: TraceFile,
    owners: ranks.Owners,
    rows: Array,
    kind: Array,
    on_device: Array,
) -> Array:
    """Add the lanes and return that of each node: by device and stream, or by thread id.

    A stream's device and number are those of the arguments, or else `pid` and `tid`.
    """
    device = np.where(on_device, owners.raw_pid[rows], -1)
    number = file.columns["tid"][rows]
    values, present = file.numbers(rows[on_device], "device", "stream")
    device[on_device] = np.where(present[0], values[0], device[on_device])
    device[~is_id(device)] = -1  # a text, or no device
    number[on_device] = np.where(present[1], values[1], number[on_device])
    rank = owners.rank[rows].astype(np.int64)
    lane_kind = np.full(len(rows), int(LaneKind.THREAD), np.int64)
    profiler = is_any(kind, _PROFILER_KINDS) | (file.columns["pid"][rows] <= _TEXT_ID)
    lane_kind[profiler & ~on_device] = LaneKind.PROFILER
    lane_kind[on_device] = LaneKind.STREAM
    for node_kind, of_device in _DEVICE_LANES.items():
        lane_kind[kind == node_kind] = of_device
    first, code = gather.distinct(rank, device, lane_kind, number)
    names = ranks.thread_names(file)
    lanes = [
        builder.lane(
            int(rank[i]),
            LaneKind(int(lane_kind[i])),
            int(number[i]),
            _lane_name(LaneKind(int(lane_kind[i])), int(number[i]), names, file, int(rows[i])),
            int(device[i]),
        )
        for i in first.tolist()
    ]
    return np.array(lanes, np.int32)[code]


def _lane_name(
    kind: LaneKind, number: int, names: dict[tuple[int, int], str], file: TraceFile, row: int
) -> str:
    label = file.labels.get(number)
    if kind is LaneKind.STREAM:
        return f"stream {label if label is not None else number}"
    if kind is LaneKind.GPU_ANNOTATION:
        return f"annotations of stream {number}"
    if kind is LaneKind.GPU_SYNC:
        return f"waits of stream {number}" if number >= 0 else "waits of the device"
    name_in_file = names.get((int(file.columns["pid"][row]), int(file.columns["tid"][row])))
    return label or name_in_file or ("profiler" if label == "" else f"thread {number}")


def find_lanes(trace: Trace, kind: LaneKind, **columns: Array) -> Array:
    """Row of the lane of a kind at which each row of these columns lies; -1 if there is none.

    Parameters
    ----------
    trace
        The trace.
    kind
        Kind of lane.
    **columns
        Columns of `lanes`, as whole numbers: ``rank=…, number=…``.
    """
    rows = {
        tuple(lane[name] for name in columns): row
        for row, lane in enumerate(trace.lanes.to_pylist())
        if lane["kind"] == kind
    }
    first, code = gather.distinct(*(column.astype(np.int64) for column in columns.values()))
    keys = zip(*(column[first].tolist() for column in columns.values()), strict=True)
    return np.array([*(rows.get(key, -1) for key in keys), -1], np.int64)[code]
