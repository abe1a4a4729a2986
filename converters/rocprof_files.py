"""What the names of rocprofv3's files and folders tell: which belong together, whose they are.

The tool writes ``[DIR/][pmc_N/|pass_N/]HOST/PID_kernel_trace.csv`` unless told otherwise by ``-d``
and ``-o``, whose keys (``%rank%``, ``%hostname%``, …) may stand anywhere. What a file holds is
told by its header, never by its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chopper_interop.converters.rocprof_agents import id_of, number_in

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_DOMAINS = (
    r"(?:hsa|hip|marker|rccl|rocdecode|rocjpeg|rocshmem|hipfile|ompt|kfd)"
    r"(?:_(?:core|runtime|compiler?|amd|amd_ext|image|image_ext|finalizer?|ext|control|name))*"
    r"(?:_api)?(?:_ext)?_trace"
)
_TABLES = (
    r"(?:kernel|memory_copy|memory_allocation|scratch_memory|graph_launch|hip_event|regions?)_trace"
)
_KNOWN = re.compile(
    rf"(?P<prefix>.*?)[._-]?(?P<table>{_DOMAINS}|{_TABLES}|counter_collection|agent_info)"
    r"(?P<suffix>[^.]*)(?:\..*)?",
    re.IGNORECASE,
)
_PASS = re.compile(r"(?:pmc|pass)_\d+", re.IGNORECASE)
_RANK = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d+)", re.IGNORECASE)
_HOST_PID_RANK = re.compile(r"(?P<host>.+)\.(?P<pid>\d+)\.(?P<rank>\d+)")
_HOST = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", re.IGNORECASE)
_NUMBER_AT_END = re.compile(r"(?:^|[._-])(\d+)$")
_AGENTS = "agent_info"
COUNTER_RUN = "counters"
"""What a run of counters is called whose files have no name but the process id."""


@dataclass(frozen=True)
class Told:
    """What the path of a file tells of the process that wrote it.

    Parameters
    ----------
    prefix
        What stands before the table's name.
    host
        Node, where files lie in ``HOST/PID_…``.
    pid
        Process id, -1 if it is not told.
    rank
        Rank, -1 if it is not told.
    run
        Folder of a pass, empty if there is none.
    """

    prefix: str
    host: str = ""
    pid: int = -1
    rank: int = -1
    run: str = ""


def group(paths: list[Path]) -> list[list[Path]]:
    """Put the CSV files of one process and run together: same folder, same prefix.

    An ``agent_info`` file serves all processes of its folder that have none.
    """
    groups: dict[tuple[str, ...], list[Path]] = {}
    for path in paths:
        groups.setdefault(_key(path), []).append(path)
    for key, files in list(groups.items()):
        if any(_is_agents(path) for path in files):
            continue
        lent = next((p for p in paths if _is_agents(p) and str(p.parent) == key[0]), None)
        if lent is not None:
            files.append(lent)
    served = {path for files in groups.values() if not _only_agents(files) for path in files}
    return [f for f in groups.values() if not (_only_agents(f) and served.issuperset(f))]


def _key(path: Path) -> tuple[str, ...]:
    known = _KNOWN.fullmatch(path.name)
    if known is None:
        return (str(path.parent), path.name, "alone")
    return (str(path.parent), known["prefix"], known["suffix"])


def _is_agents(path: Path) -> bool:
    known = _KNOWN.fullmatch(path.name)
    return known is not None and known["table"].lower() == _AGENTS


def _only_agents(paths: Iterable[Path]) -> bool:
    return all(_is_agents(path) for path in paths)


def told_by(path: Path) -> Told:
    """What the path of a CSV file, or of ``…_results.json``, tells."""
    known = _KNOWN.fullmatch(path.name)
    if known:
        prefix = known["prefix"] + known["suffix"]
    else:
        prefix = re.sub(r"[._-]?results$", "", path.name.split(".")[0], flags=re.IGNORECASE)
    folders = [part for part in path.parts[:-1] if not _PASS.fullmatch(part)]
    run = next((part for part in reversed(path.parts[:-1]) if _PASS.fullmatch(part)), "")
    pid = id_of(number_in(prefix)) if prefix.isdecimal() else -1
    host, rank = _place(path.parent.name, folders, prefix, pid)
    return Told(prefix, host, pid, rank, run)


def _place(folder: str, folders: list[str], prefix: str, pid: int) -> tuple[str, int]:
    """Host and rank, by the prefix or by the nearest folder that tells."""
    named = next((f for f in map(_RANK.search, [prefix, *reversed(folders)]) if f), None)
    rank = id_of(number_in(named[1])) if named else -1
    for part in reversed(folders):
        found = _HOST_PID_RANK.fullmatch(part)
        if found and number_in(found["pid"]) == pid:
            return found["host"], rank if rank >= 0 else id_of(number_in(found["rank"]))
    is_host = prefix.isdecimal() and _HOST.fullmatch(folder) and not _RANK.search(folder)
    return (folder if is_host and not _PASS.fullmatch(folder) else ""), rank


def run_name(told: Told, pids: set[int]) -> str:
    """What to call a run of counters: the pass, or what the user called it.

    Rank and process id are no part of that: the processes of one run must have one name for it.
    """
    name = _RANK.sub("", told.prefix)
    number = _NUMBER_AT_END.search(name)
    if number and (name.isdecimal() or number_in(number[1]) in {*pids, told.pid}):
        name = name[: number.start()]
    return told.run or name.strip("._-") or COUNTER_RUN
