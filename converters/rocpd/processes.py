"""Processes, ranks and agents of a rocpd database.

The database keeps the whole environment of each process, in which there may be passwords and
keys. Only numbers of ranks are taken out of it, nothing else of it or of the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.rocm.agents import number_in, valid_id
from chopper_interop.converters.rocm.processes import RANK_ASSUMED, RowOwners
from chopper_interop.converters.rocm.tables import COPIES, KERNELS
from chopper_interop.converters.rocpd.events import document
from chopper_interop.errors import UsageError
from chopper_interop.io.sqlite import INTEGER, TEXT
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.meta import ASSUMED, Rank

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.database_parts import DatabasePart
    from chopper_interop.converters.rocm.file_names import PathInfo
    from chopper_interop.converters.rocpd.event_tables import EventTable

RANKS: tuple[tuple[str, str], ...] = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Variables by which launchers pass a process its rank, and those with the number of ranks. All
processes that one rank starts have the same, which is why one of a single rank says nothing."""


class _Environment(msgspec.Struct):
    """Variables that are read of a process' environment."""

    RANK: str = ""
    WORLD_SIZE: str = ""
    OMPI_COMM_WORLD_RANK: str = ""
    OMPI_COMM_WORLD_SIZE: str = ""
    PMI_RANK: str = ""
    PMI_SIZE: str = ""
    SLURM_PROCID: str = ""
    SLURM_NTASKS: str = ""


@dataclass(frozen=True)
class Process:
    """A process.

    Parameters
    ----------
    part
        Number of the part of the database that it is in.
    pid
        Its number; -1 if unknown.
    host
        Node.
    rank
        Its rank by its launcher; -1 if unknown.
    parent
        The process that started it; -1 if unknown.
    """

    part: int
    pid: int
    host: str = ""
    rank: int = -1
    parent: int = -1


class PartProcesses:
    """Processes of one part, by the ids that rows name them by.

    Parameters
    ----------
    part
        The part.
    place
        Its number.
    """

    def __init__(self, part: DatabasePart, place: int) -> None:
        nodes = part.read("info_node", {"id": INTEGER, "hostname": TEXT, "system_name": TEXT})
        hosts = dict(zip(nodes.number("id").tolist(), nodes.texts("hostname"), strict=True))
        columns = {"id": INTEGER, "nid": INTEGER, "pid": INTEGER, "ppid": INTEGER}
        columns["environment"] = TEXT
        table = part.read("info_process", columns)
        rows = zip(
            table.number("id").tolist(),
            table.number("nid").tolist(),
            table.number("pid").tolist(),
            table.number("ppid").tolist(),
            table.texts("environment"),
            strict=True,
        )
        one_host = next(iter(hosts.values()), "")
        self.known = {
            row: Process(
                place,
                valid_id(pid),
                hosts.get(node, one_host),
                _rank_in(environment),
                valid_id(parent),
            )
            for row, node, pid, parent, environment in rows
        }
        self.place = place
        self.host = one_host

    def process_of(self, row: int) -> Process:
        """The process that rows name by this id."""
        alone = next(iter(self.known.values())) if len(self.known) == 1 else None
        if row < 0 and alone is not None:
            return alone
        return self.known.get(row) or Process(self.place, valid_id(row), self.host)


def renamed(part: DatabasePart) -> bool:
    """True if the user asked for kernels to be named by the ranges that they are in."""
    texts = part.read("info_process", {"extdata": TEXT}).texts("extdata")
    return any(_flag(document(text), "kernel_rename") for text in texts)


def owners(
    tables: Sequence[tuple[EventTable, PartProcesses]],
    devices: Sequence[Array],
    path_info: PathInfo,
    given: int | None,
    issues: IssueLog,
) -> RowOwners:
    """Number the ranks: as their launcher did, else in order of nodes, devices and processes.

    Parameters
    ----------
    tables
        Tables, and the processes of the part that each is of.
    devices
        Device of each of their rows.
    path_info
        Rank and host by the file's name.
    given
        Rank by the user.
    issues
        Log in which it is noted if no source states a rank.
    """
    number: dict[Process, int] = {}
    columns = []
    for table, known in tables:
        distinct, code = np.unique(table.pid, return_inverse=True)
        places = [
            number.setdefault(known.process_of(int(pid)), len(number)) for pid in distinct.tolist()
        ]
        columns.append(np.array(places, np.int64)[code])
    processes = list(number)
    used = [
        _devices(p, [table for table, _ in tables], columns, devices) for p in range(len(processes))
    ]
    rank, known_by = _ranks(processes, used, path_info, given, issues)
    ranks = {
        r: Rank(r, process.host or path_info.host, process.pid, device, by, process.parent)
        for r, by, process, (device, _) in zip(rank, known_by, processes, used, strict=True)
    }
    return RowOwners(columns, np.array(rank, np.int32), tuple(ranks[r] for r in sorted(ranks)))


def _ranks(
    processes: Sequence[Process],
    used: Sequence[tuple[int, bool]],
    path_info: PathInfo,
    given: int | None,
    issues: IssueLog,
) -> tuple[list[int], list[str]]:
    """The rank of each process, and its source."""
    if given is not None:
        if len(processes) > 1:
            raise UsageError(
                f"rank={given} was given for a database of {len(processes)} processes",
                hint="give each process a database of its own",
            )
        return [given] * len(processes), ["user"] * len(processes)
    if path_info.rank >= 0 and len(processes) == 1:
        return [path_info.rank], ["name"]
    order = sorted(
        range(len(processes)),
        key=lambda i: (not used[i][1], processes[i].host, used[i][0], processes[i].pid, i),
    )
    first = _first_of_ranks(processes, order) if any(works for _, works in used) else {}
    owners = set(first.values())
    rest = [i for i in order if i not in owners]
    issues.add(RANK_ASSUMED, len(rest))
    free = (n for n in count() if n not in first)
    number = {i: n for n, i in first.items()} | dict(zip(rest, free))  # noqa: B905 # free has no end
    return (
        [number[i] for i in range(len(processes))],
        ["header" if i in owners else ASSUMED for i in range(len(processes))],
    )


def _first_of_ranks(processes: Sequence[Process], order: Sequence[int]) -> dict[int, int]:
    """Rank → the process that has it; what that started has the same, and comes behind."""
    pids = {(p.host, p.pid): p.rank for p in processes}
    first: dict[int, int] = {}
    for i in sorted(order, key=lambda i: _is_child(processes[i], pids)):
        if processes[i].rank >= 0:
            first.setdefault(processes[i].rank, i)
    return first


def _is_child(process: Process, ranks: Mapping[tuple[str, int], int]) -> bool:
    return process.rank >= 0 and ranks.get((process.host, process.parent)) == process.rank


def _devices(
    process: int, tables: Sequence[EventTable], columns: Sequence[Array], devices: Sequence[Array]
) -> tuple[int, bool]:
    """The device on which most of a process' kernels run (-1 if none), and if it has work."""
    none = np.empty(0, np.int64)
    used = [
        (table.rows.form, device[column == process])
        for table, column, device in zip(tables, columns, devices, strict=True)
        if table.rows.form in (KERNELS, COPIES)
    ]
    kernels = np.concatenate([none, *(d[d >= 0] for form, d in used if form is KERNELS)])
    numbers, uses = np.unique(kernels, return_counts=True)
    return (int(numbers[uses.argmax()]) if numbers.size else -1), any(len(d) for _, d in used)


def _rank_in(environment: str) -> int:
    try:
        variables = msgspec.json.decode(environment, type=_Environment, strict=False)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return -1
    for variable, size in RANKS:
        rank, count = (number_in(getattr(variables, name)) for name in (variable, size))
        if 0 <= rank < count and count > 1:
            return valid_id(rank)
    return -1


def _flag(config: dict[str, Any], name: str) -> bool:
    """A switch of the tool's configuration, wherever in it that stands."""
    if name in config:
        return config[name] in (True, 1, "true", "1")
    return any(_flag(value, name) for value in config.values() if isinstance(value, dict))
