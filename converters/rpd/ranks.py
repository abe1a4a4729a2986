"""Ranks of an rpd database: whose its calls and its operations are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.converters.rocm.agents import LARGEST_ID, valid_id
from chopper_interop.converters.rocm.processes import RANK_ASSUMED
from chopper_interop.errors import UsageError
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.meta import ASSUMED, Rank

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.database_parts import Columns
    from chopper_interop.converters.rocm.file_names import PathInfo
    from chopper_interop.converters.rpd.joined_tables import Launches


@dataclass(frozen=True)
class Ranks:
    """Owners of calls and operations.

    Parameters
    ----------
    calls
        Rank of each row of each table of calls.
    operations, device
        Rank and GPU of each operation; the GPU is -1 where it is unknown.
    ranks
        The ranks.
    """

    calls: list[Array]
    operations: Array
    device: Array
    ranks: tuple[Rank, ...]


def ranks_of(
    calls: Sequence[Columns],
    operations: Columns,
    launches: Launches,
    path_info: PathInfo,
    given: int | None,
    issues: IssueLog,
) -> Ranks:
    """Number processes by their GPUs, then by their numbers.

    Parameters
    ----------
    calls, operations, launches
        Tables of the database.
    path_info
        Rank and host by the file's name.
    given
        Rank by the user.
    issues
        Log in which it is noted if no source states a rank.
    """
    pids = [np.where(c.known("pid"), c.number("pid"), -1) for c in calls]
    device = operations.number("gpuId")
    device = np.where((device >= 0) & (device <= LARGEST_ID), device, -1)
    owner = _owners(pids, device, launches)
    every = np.unique(np.concatenate([*pids, owner, np.empty(0, np.int64)]))
    uses = _majority(owner[device >= 0], device[device >= 0])
    order = sorted(every.tolist(), key=lambda pid: (pid not in uses, uses.get(pid, -1), pid))
    number, known_by = _numbers(order, path_info, given, issues)
    place = np.array([number[pid] for pid in every.tolist()], np.int64)
    ranks = [Rank(number[pid], "", valid_id(pid), uses.get(pid, -1), known_by) for pid in order]
    return Ranks(
        calls=[place[np.searchsorted(every, pid)] for pid in pids],
        operations=place[np.searchsorted(every, owner)] if len(every) else owner,
        device=device,
        ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
    )


def _owners(pids: Sequence[Array], device: Array, launches: Launches) -> Array:
    """Process of each operation: that of its call, else the one that uses its GPU most."""
    first = int(min((p.min() for p in pids if len(p)), default=-1))
    if not pids or not len(pids[0]):
        return np.full(len(device), first, np.int64)
    launcher = pids[0][launches.call]
    by_device = _majority(device[launches.operation], launcher)
    distinct, code = np.unique(device, return_inverse=True)
    owner = np.array([by_device.get(d, first) for d in distinct.tolist()], np.int64)[code]
    owner[launches.operation] = launcher
    return owner


def _numbers(
    order: Sequence[int], path_info: PathInfo, given: int | None, issues: IssueLog
) -> tuple[dict[int, int], str]:
    if given is not None and len(order) > 1:
        raise UsageError(
            f"rank={given} was given for a database of {len(order)} processes",
            hint="give each process a database of its own",
        )
    stated = path_info.rank if given is None else given
    if stated >= 0 and len(order) == 1:
        return {order[0]: stated}, "name" if given is None else "user"
    issues.add(RANK_ASSUMED, len(order))
    return {pid: place for place, pid in enumerate(order)}, ASSUMED


def _majority(keys: Array, values: Array) -> dict[int, int]:
    """Key → the value that it has most often."""
    first, code = gather.distinct(keys, values)
    uses = np.bincount(code, minlength=len(first))
    return {int(keys[first[i]]): int(values[first[i]]) for i in np.argsort(uses, kind="stable")}
