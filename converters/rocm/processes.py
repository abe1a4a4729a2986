"""Processes and ranks of the rows of tables.

API and counter tables say the process of each row; kernels say their thread, copies and
allocations only their device. With ``-o NAME`` all processes write the same files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.converters.rocm.tables import COUNTERS, KERNELS
from chopper_interop.errors import UsageError
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.meta import ASSUMED, Rank

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.file_names import PathInfo
    from chopper_interop.converters.rocm.rows import TableRows

RANK_ASSUMED = Fault.info(
    "rank-assumed",
    "Neither the files nor their names say the rank, so processes were numbered from 0.",
)
PROCESS_UNKNOWN = Fault.info(
    "process-unknown",
    "Rows without a process, of files that several processes share, were put into "
    "a rank of their own.",
)

BY_DEVICE = Fault.info(
    "processes-by-device",
    "Dispatch ids occur several times, so several processes wrote the file; "
    "each device was taken for a process.",
)
MIXED = Fault.error(
    "processes-mixed",
    "Dispatch ids occur several times: the file is of several processes or runs "
    "that cannot be distinguished, and they were taken for one. Record each into files of its own "
    "(-o %pid%).",
)

_NO_PROCESS = -1
_EMPTY = np.empty(0, np.int64)


@dataclass(frozen=True)
class RowOwners:
    """Processes and ranks of the rows of a source.

    Parameters
    ----------
    process
        Process of each row of each table: a number from 0.
    rank
        Rank of each process.
    ranks
        The ranks.
    """

    process: list[Array]
    rank: Array
    ranks: tuple[Rank, ...]


def row_pids(
    tables: Sequence[TableRows], devices: Sequence[Array], hint: int, issues: IssueLog
) -> list[Array]:
    """Return the process id of each row of each table.

    Negative ids distinguish processes whose ids are unknown.

    Parameters
    ----------
    tables
        Tables of one group of files.
    devices
        Device of each row of each table.
    hint
        Process id by the files' names, -1 if they have none.
    issues
        Log of how processes were distinguished.
    """
    stated = [rows.number("process") for rows in tables]
    known = np.unique(np.concatenate([*stated, _EMPTY]))
    known = known[known >= 0]
    pids = _by_guid(tables, stated)
    if pids is None and len(known) > 1:
        pids = _by_thread_and_device(tables, devices, stated)
    if pids is None:
        only = int(known[0]) if len(known) else hint
        pids = [np.full(rows.count, only, np.int64) for rows in tables]
    repeated, where = _repeated(tables, pids)
    shared = _shared_pids(tables, stated, at_once=not repeated)
    by_guid = _by_guid(tables, stated, shared) if shared else None
    if by_guid is not None and not _repeated(tables, by_guid)[0]:
        return by_guid  # containers number their processes from 1 on, each
    if not repeated:
        return pids
    by_device = [np.where(device >= 0, -2 - device, _NO_PROCESS) for device in devices]
    if not len(known) and not _repeated(tables, by_device)[0]:
        issues.add(BY_DEVICE, len(np.unique(np.concatenate(by_device))), where)
        return by_device
    issues.add(MIXED, repeated, where)
    return pids


def _by_thread_and_device(
    tables: Sequence[TableRows], devices: Sequence[Array], stated: list[Array]
) -> list[Array]:
    """Return process ids by thread, then by device, as the tables with process ids assign them."""
    thread = [rows.number("thread") for rows in tables]
    owner = _agreed(thread, stated)
    pids = [
        np.where(pid >= 0, pid, _look_up(tid, owner))
        for pid, tid in zip(stated, thread, strict=True)
    ]
    used = [
        device if rows.form in (KERNELS, COUNTERS) else np.full(rows.count, _NO_PROCESS)
        for rows, device in zip(tables, devices, strict=True)
    ]
    owner = _agreed(used, pids)
    return [
        np.where(pid >= 0, pid, _look_up(device, owner))
        for pid, device in zip(pids, devices, strict=True)
    ]


def _repeated(tables: Sequence[TableRows], pids: list[Array]) -> tuple[int, str]:
    """Count kernels with a dispatch id that their process has used before; an example's file."""
    if any("replay_pass" in rows.numbers for rows in tables):
        return 0, ""  # kernels were run again for each group of counters
    kernels = [
        (rows, pid, rows.is_known("dispatch"))
        for rows, pid in zip(tables, pids, strict=True)
        if rows.form is KERNELS
    ]
    owner = np.concatenate([*(pid[known] for _, pid, known in kernels), _EMPTY])
    dispatch = [rows.number("dispatch")[known] for rows, _, known in kernels]
    first, _ = gather.distinct(owner, np.concatenate([*dispatch, _EMPTY]))
    return len(owner) - len(first), kernels[0][0].where if kernels else ""


def _by_guid(
    tables: Sequence[TableRows], stated: list[Array], shared: Container[int] = ()
) -> list[Array] | None:
    """Return process ids by the guid of ``rocpd convert``; None unless there are several guids.

    Guids of one process id are one process, but for ids that several processes share: theirs are unknown.
    """
    pid_of = _pids_of_guids(tables, stated)
    if pid_of is None:
        return None
    pid_of = {text: pid for text, pid in pid_of.items() if pid not in shared}
    for rows in tables:
        for text in rows.codes("guid")[1]:
            pid_of.setdefault(text, -2 - len(pid_of))
    return [rows.per_text("guid", pid_of.__getitem__, _NO_PROCESS) for rows in tables]


def _pids_of_guids(tables: Sequence[TableRows], stated: list[Array]) -> dict[str, int] | None:
    """Process id that the rows of each guid state; None unless there are several guids."""
    if not tables or not all("guid" in rows.texts for rows in tables):
        return None
    pid_of: dict[str, int] = {}
    coded = [rows.codes("guid") for rows in tables]
    if len({text for _, texts in coded for text in texts}) == 1:
        return None
    for (codes, texts), pid in zip(coded, stated, strict=True):
        first, _ = gather.distinct(codes, pid)
        for row in first.tolist():
            if pid[row] >= 0 and codes[row] >= 0:
                pid_of.setdefault(texts[codes[row]], int(pid[row]))
    return pid_of


def _shared_pids(tables: Sequence[TableRows], stated: list[Array], *, at_once: bool) -> set[int]:
    """Process ids of several guids; `at_once`, only those whose guids were recorded at one time.

    A profiler that was attached to a process several times gives it several guids, one after the other.
    """
    pid_of = _pids_of_guids(tables, stated) or {}
    uses = Counter(pid_of.values())
    shared = {pid for pid, guids in uses.items() if guids > 1}
    if not shared or not at_once:
        return shared
    spans: dict[int, list[tuple[int, int]]] = {pid: [] for pid in shared}
    for guid, (start, end) in _spans_of_guids(tables).items():
        if pid_of.get(guid) in shared:
            spans[pid_of[guid]].append((start, end))
    return {pid for pid, of_guids in spans.items() if _overlap(sorted(of_guids))}


def _spans_of_guids(tables: Sequence[TableRows]) -> dict[str, tuple[int, int]]:
    """First start and last end of the rows of each guid."""
    spans: dict[str, tuple[int, int]] = {}
    for rows in tables:
        codes, texts = rows.codes("guid")
        start, end = rows.number("start"), rows.number("end")
        timed = (codes >= 0) & (start >= 0) & (end >= start)
        low = np.full(len(texts), np.iinfo(np.int64).max)
        high = np.full(len(texts), -1)
        np.minimum.at(low, codes[timed], start[timed])
        np.maximum.at(high, codes[timed], end[timed])
        for code in np.flatnonzero(high >= 0).tolist():
            begin, stop = spans.get(texts[code], (int(low[code]), int(high[code])))
            spans[texts[code]] = min(begin, int(low[code])), max(stop, int(high[code]))
    return spans


def _overlap(spans: list[tuple[int, int]]) -> bool:
    """True if of spans in order of their starts one begins before another ends."""
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))


def _agreed(keys: list[Array], values: list[Array]) -> dict[int, int]:
    """Map keys to the one value that all rows of the key have; negative ones are unknown."""
    key, value = np.concatenate(keys), np.concatenate(values)
    both = (key >= 0) & (value >= 0)
    first, _ = gather.distinct(key[both], value[both])
    pairs = list(zip(key[both][first].tolist(), value[both][first].tolist(), strict=True))
    seen = Counter(k for k, _ in pairs)
    return {k: v for k, v in pairs if seen[k] == 1}


def _look_up(keys: Array, table: dict[int, int]) -> Array:
    first, code = gather.distinct(keys)
    return np.array(
        [*(table.get(int(k), _NO_PROCESS) for k in keys[first]), _NO_PROCESS], np.int64
    )[code]


def assign_ranks(
    tables: Sequence[TableRows],
    pids: list[Array],
    devices: Sequence[Array],
    info: PathInfo,
    user_rank: int | None,
    issues: IssueLog,
) -> RowOwners:
    """Assign ranks to the processes of the rows.

    Parameters
    ----------
    tables
        Tables of the source.
    pids, devices
        Process id and device of each row of each table.
    info
        Facts by the files' names.
    user_rank
        Rank by the user.
    issues
        Log of assumed ranks.
    """
    distinct = np.unique(np.concatenate([*pids, _EMPTY]))
    if len(distinct) > 1:
        issues.add(PROCESS_UNKNOWN, sum(np.count_nonzero(pid == _NO_PROCESS) for pid in pids))
    device = {int(pid): _main_device(int(pid), tables, pids, devices) for pid in distinct}
    order = sorted(device, key=lambda pid: (device[pid] < 0, device[pid], pid == _NO_PROCESS, pid))
    if user_rank is not None and len(order) > 1:
        raise UsageError(
            f"rank={user_rank} was given for files of {len(order)} processes",
            hint="give each process files of its own (rocprofv3 -o %pid%)",
        )
    number, known_by = (user_rank, "user") if user_rank is not None else (info.rank, "name")
    if number < 0:
        known_by = ASSUMED
        if order:
            issues.add(RANK_ASSUMED, len(order))
    rank = {pid: i if number < 0 else number for i, pid in enumerate(order)}
    ranks = {
        rank[pid]: Rank(rank[pid], info.host, max(pid, -1), device[pid], known_by)
        for pid in reversed(order)
    }
    process = np.array(sorted(order), np.int64)  # all ids occur in it, so each is found exactly
    return RowOwners(
        process=[np.searchsorted(process, pid) for pid in pids],
        rank=np.array([rank[int(pid)] for pid in process], np.int32),
        ranks=tuple(ranks[number] for number in sorted(ranks)),
    )


def _main_device(
    pid: int, tables: Sequence[TableRows], pids: list[Array], devices: Sequence[Array]
) -> int:
    """Return the device with most of a process' kernels; -1 if it has none."""
    used = [
        device[(row_pid == pid) & (device >= 0)]
        for rows, row_pid, device in zip(tables, pids, devices, strict=True)
        if rows.form in (KERNELS, COUNTERS)
    ]
    device, uses = np.unique(np.concatenate([*used, _EMPTY]).astype(np.int64), return_counts=True)
    return int(device[uses.argmax()]) if device.size else -1
