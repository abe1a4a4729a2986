"""Rank and lane of each event of Kineto files: streams of devices, threads of the host, rows of the profiler."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.combined import NotTogetherError, SourceIssues
from chopper_interop.converters.kineto.categories import ON_DEVICE
from chopper_interop.converters.kineto.stated_rank import rank_in_path
from chopper_interop.converters.kineto.trace_file import TraceFile, is_id, whole_number
from chopper_interop.issues import RANK_ASSUMED, Fault
from chopper_interop.schemas.hub import MAX_RANK
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import ASSUMED, Rank
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder

FUSED = Fault.info(
    "ranks-split", "Another tool had fused several ranks into the file; they were separated again."
)
IMPOSSIBLE = Fault.info(
    "rank-impossible",
    "Files whose header states a rank or a number of ranks that cannot be: below 0, above 1,048,576, no whole number, "
    "or a rank that is not below the number.",
)

_IN_LABEL = re.compile(r"\brank\s*[:#-]?\s*(\d+)", re.IGNORECASE)
_THREAD = re.compile(r"thread -?\d+ \((.+)\)$")
_BLOCK = 1 << 18
"""Events of which processes are counted at a time (chosen: some megabytes)."""
_PROBES = 1000
"""Spans that are probed first; chosen: 1,000 give the share to a few percent and cost nothing."""
_MIN_STATED_SHARE = 0.9
"""A fused file is one in which at least this share of the probed spans states its rank; chosen:
fusing tools write it into every event, others into none, so anything in between would do."""
_DEVICE_LANES = {
    int(Kind.GPU_ANNOTATION): LaneKind.GPU_ANNOTATION,
    int(Kind.GPU_SYNC): LaneKind.GPU_SYNC,
}
_RAW_PID = "raw_pid"
_PROFILER_KINDS = (Kind.SPAN, Kind.OVERHEAD)
_TEXT_ID = -(1 << 61)
"""Below this, a pid or tid stands for a text of the file: half of `json_events.TEXT_ID`."""


@dataclass(frozen=True)
class Owners:
    """Rank of each event.

    Parameters
    ----------
    rank
        Rank of each event; of several files the number of its file.
    ranks
        The ranks of each file with their process and device.
    fused
        True if another tool put several ranks into the file.
    """

    rank: Array
    ranks: tuple[tuple[Rank, ...], ...]
    fused: bool

    def select(self, mask: Array) -> Owners:
        """Return those of some events."""
        return replace(self, rank=self.rank[mask])

    def device_of(self, rank: int) -> int:
        """Device of the rank of events."""
        if len(self.ranks) > 1:
            return self.ranks[rank][0].device
        return next(r.device for r in self.ranks[0] if r.rank == rank)


def assign_ranks(file: TraceFile, requested: int | None, issues: SourceIssues) -> Owners:
    """Assign a rank to each event, from the header, the events, or the file's name.

    A file of fused ranks gets a column of the process ids as they were before (`raw_pid`).

    Parameters
    ----------
    file
        The file, or several.
    requested
        Rank of all events, if the user set it.
    issues
        Receives whether ranks were separated, or one was assumed.

    Raises
    ------
    NotTogetherError
        Some of several files have events of several ranks.
    """
    fused_members = _may_be_fused(file) if requested is None else ()
    if len(fused_members):
        if len(file.members) > 1:
            raise NotTogetherError([file.members[n].path for n in fused_members])
        fused = _ranks_by_arguments(file) or _ranks_by_labels(file)
        if fused is not None:
            rank, pid = fused
            file.columns[_RAW_PID] = np.where(pid >= 0, pid, file.columns["pid"])
            text = f"ranks {sorted(set(rank.tolist()))}"
            issues.logs[0].add(FUSED, len(np.unique(rank)), text)
            several = _describe_ranks(file, rank, np.unique(rank).tolist())
            of_labels = tuple(replace(r, known_by="labels") for r in several)
            return Owners(rank, (of_labels,), fused=True)
    single = [_single_rank(member.path, member.header, requested) for member in file.members]
    for log, member, (_, known_by) in zip(issues.logs, file.members, single, strict=True):
        if known_by == ASSUMED:
            log.add(RANK_ASSUMED)
        stated = _impossible(member.header)
        log.add(IMPOSSIBLE, bool(stated), stated)
    described = _describe_ranks(file, file.member, list(range(len(single))))
    of_files = tuple(
        (replace(rank, rank=number, known_by=known_by),)
        for rank, (number, known_by) in zip(described, single, strict=True)
    )
    if len(single) > 1:
        return Owners(file.member, of_files, fused=False)
    rank = np.broadcast_to(np.int32(single[0][0]), len(file.kind))
    return Owners(rank, of_files, fused=False)


def raw_pid(file: TraceFile) -> Array:
    """Return the process id of each event as it was before ranks were fused."""
    return file.columns.get(_RAW_PID, file.columns["pid"])


def thread_names(file: TraceFile) -> dict[tuple[int, int, int], str]:
    """Names of threads by file, pid and tid, from the metadata events."""
    names = {}
    for row in file.rows_named("M", "thread_name").tolist():
        text = str(file.args(row).get("name", "")).strip()
        inner = _THREAD.match(text)  # "thread 123 (python3)": the lane has the number already
        names[file.thread_of(row)] = inner.group(1) if inner else text
    return names


def _single_rank(path: Path, header: dict[str, Any], requested: int | None) -> tuple[int, str]:
    """Return the rank of a file that holds one, and how it is known (`Rank.known_by`)."""
    if requested is not None:
        return requested, "user"
    info = header.get("distributedInfo")
    stated = whole_number(info.get("rank"), maximum=MAX_RANK) if isinstance(info, dict) else None
    if stated is not None:
        return stated, "header"
    in_path = rank_in_path(path)
    named = whole_number(in_path, maximum=MAX_RANK) if in_path else None
    return (0, ASSUMED) if named is None else (named, "name")


def _impossible(header: dict[str, Any]) -> str:
    """Return what a header states of the rank and the number of ranks, if it cannot be; else nothing."""
    info = header.get("distributedInfo")
    stated = {
        name: info[name]
        for name in ("rank", "world_size")
        if isinstance(info, dict) and info.get(name) is not None
    }
    rank, world = (whole_number(stated.get(n), maximum=MAX_RANK) for n in ("rank", "world_size"))
    known = {"rank": rank, "world_size": world or None}  # a job has a rank at least
    is_possible = all(known[name] is not None for name in stated)
    if is_possible and (rank is None or world is None or rank < world):
        return ""
    return ", ".join(f"{name} {value!r:.30}" for name, value in stated.items())


def _may_be_fused(file: TraceFile) -> Sequence[int]:
    """Numbers of the files, of several, that may have events of several ranks; a single one always may."""
    if len(file.members) == 1:
        return (0,)
    spans = np.flatnonzero(file.phase("X"))
    _, present = _stated_rank_and_pid(file, spans)
    of_file = np.bincount(file.member[spans], minlength=len(file.members))
    stated = np.bincount(file.member[spans[present.all(axis=0)]], minlength=len(file.members))
    by_arguments = np.flatnonzero((stated > 0) & (stated >= _MIN_STATED_SHARE * of_file))
    ranks_of = {(member, rank) for (member, _), rank in _ranks_of_labels(file).items()}
    labelled = Counter(member for member, _ in ranks_of)
    by_labels = [member for member, ranks in labelled.items() if ranks > 1]
    return sorted({*by_arguments.tolist(), *by_labels})


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
    rank_of_pid = {pid: rank for (_, pid), rank in _ranks_of_labels(file).items()}
    if len(set(rank_of_pid.values())) < 2:  # noqa: PLR2004 # one rank is no fused file
        return None
    first, code = gather.distinct(file.columns["pid"])
    pids = file.columns["pid"][first].tolist()
    fallback = min(rank_of_pid.values())
    rank = np.array([rank_of_pid.get(pid, fallback) for pid in pids], np.int32)[code]
    return rank, np.full(len(rank), -1, np.int64)


def _ranks_of_labels(file: TraceFile) -> dict[tuple[int, int], int]:
    """File and pid → rank, where processes are named or labelled by it."""
    rank_of_pid = {}
    for row in file.rows_named("M", "process_name", "process_labels").tolist():
        args = file.args(row)
        label = _IN_LABEL.search(str(args.get("name", args.get("labels", ""))))
        number = whole_number(label.group(1), maximum=MAX_RANK) if label else None
        if number is not None:
            member, pid, _ = file.thread_of(row)
            rank_of_pid[member, pid] = number
    return rank_of_pid


def _describe_ranks(file: TraceFile, owner: Array, numbers: list[int]) -> list[Rank]:
    """Describe each rank: the process of most of its host events, the device of most GPU events."""
    pids, phase = raw_pid(file), file.columns["ph"]
    on_device = is_any(file.kind, ON_DEVICE)
    of_host: Counter[tuple[int, int]] = Counter()
    for at in range(0, len(pids), _BLOCK):
        some = slice(at, at + _BLOCK)
        host = ~on_device[some] & (phase[some] == ord("X")) & (pids[some] >= 0) & is_id(pids[some])
        of_host.update(_counts(owner[some][host], pids[some][host]))
    pid_of = _modes(of_host)
    work = np.flatnonzero(on_device)
    values, present = file.numbers(work, "device")
    states = np.isin(owner[work], owner[work[present[0]]])  # else processes stand for devices
    work_device = np.where(states, values[0], file.columns["pid"][work])
    used = (present[0] | ~states) & is_id(work_device)
    devices = _modes(_counts(owner[work[used]], work_device[used]))
    return [
        Rank(number, pid=pid_of.get(number, -1), device=devices.get(number, -1))
        for number in numbers
    ]


def _counts(owner: Array, values: Array) -> dict[tuple[int, int], int]:
    """Return how often each owner has each value."""
    first, code = gather.distinct(owner, values)
    pairs = zip(owner[first].tolist(), values[first].tolist(), strict=True)
    return dict(zip(pairs, np.bincount(code).tolist(), strict=True))


def _modes(counts: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """The most frequent value of each owner that has one; of several the least."""
    order = sorted(counts, key=lambda pair: (counts[pair], -pair[1]))
    return dict(order)  # of an owner the last is assigned last, and stays


def lane_of_events(
    builder: TraceBuilder,
    file: TraceFile,
    owners: Owners,
    rows: slice,
    kind: Array,
    names: dict[tuple[int, int, int], str],
) -> Array:
    """Add the lanes and return that of each node: by device and stream, or by thread id.

    A stream's device and number are those of the arguments, or else `pid` and `tid`.

    Parameters
    ----------
    builder
        Receives the lanes.
    file, owners, rows
        The nodes.
    kind
        Their kinds.
    names
        Names of threads, as of `thread_names`.
    """
    on_device = is_any(kind, ON_DEVICE)
    pid = file.columns["pid"][rows]
    device = np.where(on_device, raw_pid(file)[rows], -1)
    number = file.columns["tid"][rows].copy()
    values, present = file.numbers(np.flatnonzero(on_device) + rows.start, "device", "stream")
    device[on_device] = np.where(present[0], values[0], device[on_device])
    device[~is_id(device)] = -1  # a text, or no device
    number[on_device] = np.where(present[1], values[1], number[on_device])
    rank = owners.rank[rows].astype(np.int64)
    lane_kind = np.full(len(kind), int(LaneKind.THREAD), np.int64)
    profiler = is_any(kind, _PROFILER_KINDS) | (pid <= _TEXT_ID)
    lane_kind[profiler & ~on_device] = LaneKind.PROFILER
    lane_kind[on_device] = LaneKind.STREAM
    for node_kind, of_device in _DEVICE_LANES.items():
        lane_kind[kind == node_kind] = of_device
    first, code = gather.distinct(rank, device, lane_kind, number)
    lanes = [
        builder.lane(
            int(rank[i]),
            LaneKind(int(lane_kind[i])),
            int(number[i]),
            _lane_name(LaneKind(int(lane_kind[i])), int(number[i]), names, file, rows.start + i),
            int(device[i]),
        )
        for i in first.tolist()
    ]
    return np.array(lanes, np.int32)[code]


def _lane_name(
    kind: LaneKind, number: int, names: dict[tuple[int, int, int], str], file: TraceFile, row: int
) -> str:
    thread = file.thread_of(row)
    label = file.label(thread[0], number)
    if kind is LaneKind.STREAM:
        return f"stream {label if label is not None else number}"
    if kind is LaneKind.GPU_ANNOTATION:
        return f"annotations of stream {number}"
    if kind is LaneKind.GPU_SYNC:
        return f"waits of stream {number}" if number >= 0 else "waits of the device"
    return label or names.get(thread) or ("profiler" if label == "" else f"thread {number}")


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
