"""Whose rows are whose: processes and ranks.

API and counter tables say the process of each row; kernels say their thread, copies and
allocations only their device. With ``-o NAME`` all processes write the same files.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.converters.rocprof_tables import COUNTERS, KERNELS
from chopper_interop.errors import UsageError
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.meta import ASSUMED, Rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocprof_files import Told
    from chopper_interop.converters.rocprof_rows import Rows

RANK_ASSUMED = Fault(
    "rank-assumed",
    Severity.INFO,
    "Neither the files nor their names say the rank, so processes were numbered from 0.",
)
PROCESS_UNKNOWN = Fault(
    "process-unknown",
    Severity.INFO,
    "Rows of files that several processes share and that do not tell whose they are were put "
    "into a rank of their own.",
)

BY_DEVICE = Fault(
    "processes-by-device",
    Severity.INFO,
    "Dispatch ids come several times, so several processes wrote the file; each device was taken "
    "for a process.",
)
MIXED = Fault(
    "processes-mixed",
    Severity.ERROR,
    "Dispatch ids come several times: the file is of several processes or runs that cannot be "
    "told apart, and they were taken for one. Record each into files of its own (-o %pid%).",
)

_NOBODY = -1
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Owners:
    """Who owns the rows of a source.

    Parameters
    ----------
    process
        For each table, the process of each of its rows: a number from 0.
    rank
        Rank of each process.
    ranks
        The ranks.
    """

    process: list[Array]
    rank: Array
    ranks: tuple[Rank, ...]


def pids_of(
    tables: Sequence[Rows], devices: Sequence[Array], hint: int, issues: IssueLog
) -> list[Array]:
    """Process id of each row of each table; negative where only its like are known.

    Parameters
    ----------
    tables
        Tables of one group of files.
    devices
        Device of each of their rows.
    hint
        Process id that the files' names tell, -1 if none.
    issues
        Where it is said how processes were told apart.
    """
    stated = [rows.number("process") for rows in tables]
    told = np.unique(np.concatenate([*stated, _NONE]))
    told = told[told >= 0]
    found = _by_guid(tables, stated)
    if found is None and len(told) > 1:
        found = _by_thread_and_device(tables, devices, stated)
    if found is None:
        only = int(told[0]) if len(told) else hint
        found = [np.full(rows.count, only, np.int64) for rows in tables]
    repeated, where = _repeated(tables, found)
    if not repeated:
        return found
    split = [np.where(device >= 0, -2 - device, _NOBODY) for device in devices]
    if not len(told) and not _repeated(tables, split)[0]:
        issues.add(BY_DEVICE, len(np.unique(np.concatenate(split))), where)
        return split
    issues.add(MIXED, repeated, where)
    return found


def _by_thread_and_device(
    tables: Sequence[Rows], devices: Sequence[Array], stated: list[Array]
) -> list[Array]:
    """Process ids by what tables that state them say of threads, then of devices."""
    thread = [rows.number("thread") for rows in tables]
    owner = _agreed(thread, stated)
    pids = [
        np.where(pid >= 0, pid, _looked_up(tid, owner))
        for pid, tid in zip(stated, thread, strict=True)
    ]
    used = [
        device if rows.form in (KERNELS, COUNTERS) else np.full(rows.count, _NOBODY)
        for rows, device in zip(tables, devices, strict=True)
    ]
    owner = _agreed(used, pids)
    return [
        np.where(pid >= 0, pid, _looked_up(device, owner))
        for pid, device in zip(pids, devices, strict=True)
    ]


def _repeated(tables: Sequence[Rows], pids: list[Array]) -> tuple[int, str]:
    """How many kernels have a dispatch id that their process has given before, and where."""
    if any("replay_pass" in rows.numbers for rows in tables):
        return 0, ""  # kernels were run again for each group of counters
    kernels = [
        (rows, pid, rows.is_known("dispatch"))
        for rows, pid in zip(tables, pids, strict=True)
        if rows.form is KERNELS
    ]
    owner = np.concatenate([*(pid[known] for _, pid, known in kernels), _NONE])
    dispatch = [rows.number("dispatch")[known] for rows, _, known in kernels]
    first, _ = gather.distinct(owner, np.concatenate([*dispatch, _NONE]))
    return len(owner) - len(first), kernels[0][0].where if kernels else ""


def _by_guid(tables: Sequence[Rows], stated: list[Array]) -> list[Array] | None:
    """Process ids by the guid that ``rocpd convert`` writes; None unless it tells them apart."""
    if not tables or not all("guid" in rows.texts for rows in tables):
        return None
    of: dict[str, int] = {}
    coded = [rows.codes("guid") for rows in tables]
    if len({text for _, texts in coded for text in texts}) == 1:
        return None
    for (codes, texts), pid in zip(coded, stated, strict=True):
        first, _ = gather.distinct(codes, pid)
        for row in first.tolist():
            if pid[row] >= 0 and codes[row] >= 0:
                of.setdefault(texts[codes[row]], int(pid[row]))
    for _, texts in coded:
        for text in texts:
            of.setdefault(text, -2 - len(of))
    return [np.array([*(of[t] for t in texts), _NOBODY], np.int64)[codes] for codes, texts in coded]


def _agreed(keys: list[Array], values: list[Array]) -> dict[int, int]:
    """Key → value where all rows that know both agree; negative ones are unknown."""
    key, value = np.concatenate(keys), np.concatenate(values)
    both = (key >= 0) & (value >= 0)
    first, _ = gather.distinct(key[both], value[both])
    pairs = list(zip(key[both][first].tolist(), value[both][first].tolist(), strict=True))
    seen = Counter(k for k, _ in pairs)
    return {k: v for k, v in pairs if seen[k] == 1}


def _looked_up(keys: Array, table: dict[int, int]) -> Array:
    first, code = gather.distinct(keys)
    return np.array([*(table.get(int(k), _NOBODY) for k in keys[first]), _NOBODY], np.int64)[code]


def owners(
    tables: Sequence[Rows],
    pids: list[Array],
    devices: Sequence[Array],
    told: Told,
    given: int | None,
    issues: IssueLog,
) -> Owners:
    """Number the ranks of the processes that own the rows.

    Parameters
    ----------
    tables
        Tables of the source.
    pids, devices
        Process id and device of each of their rows.
    told
        What the files' names tell.
    given
        Rank by the user.
    issues
        Where it is said if nothing told a rank.
    """
    every = np.unique(np.concatenate([*pids, _NONE]))
    if len(every) > 1:
        issues.add(PROCESS_UNKNOWN, sum(np.count_nonzero(pid == _NOBODY) for pid in pids))
    device = {int(pid): _device(int(pid), tables, pids, devices) for pid in every}
    order = sorted(device, key=lambda pid: (device[pid] < 0, device[pid], pid == _NOBODY, pid))
    if given is not None and len(order) > 1:
        raise UsageError(
            f"rank={given} was given for files of {len(order)} processes",
            hint="give each process files of its own (rocprofv3 -o %pid%)",
        )
    number, known_by = (given, "user") if given is not None else (told.rank, "name")
    if number < 0:
        known_by = ASSUMED
        if order:
            issues.add(RANK_ASSUMED, len(order))
    rank = {pid: place if number < 0 else number for place, pid in enumerate(order)}
    ranks = {
        rank[pid]: Rank(rank[pid], told.host, max(pid, -1), device[pid], known_by)
        for pid in reversed(order)
    }
    place = np.array(sorted(order), np.int64)
    return Owners(
        process=[np.searchsorted(place, pid) for pid in pids],
        rank=np.array([rank[int(pid)] for pid in place], np.int32),
        ranks=tuple(ranks[number] for number in sorted(ranks)),
    )


def _device(pid: int, tables: Sequence[Rows], pids: list[Array], devices: Sequence[Array]) -> int:
    """The device on which most of a process' kernels run; -1 if it has none."""
    used = [
        device[(mine == pid) & (device >= 0)]
        for rows, mine, device in zip(tables, pids, devices, strict=True)
        if rows.form in (KERNELS, COUNTERS)
    ]
    found = np.concatenate([*used, _NONE]).astype(np.int64)
    device, uses = np.unique(found, return_counts=True)
    return int(device[uses.argmax()]) if found.size else -1
