"""Names of files and folders: which files belong together, and the process that wrote them.

rocprofv3 writes ``[DIR/][pmc_N/|pass_N/]HOST/PID_kernel_trace.csv`` unless ``-d`` and ``-o`` say
otherwise, whose keys (``%rank%``, ``%hostname%``, …) may stand anywhere. The contents of a file
are determined by its header, never by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path

from chopper_interop.converters.rocm.agents import number_in, valid_id
from chopper_interop.grouping import by_key
from chopper_interop.io import inputs

_DOMAINS = (
    r"(?:hsa|hip|marker|rccl|rocdecode|rocjpeg|rocshmem|hipfile|ompt|kfd)"
    r"(?:_(?:core|runtime|compiler?|amd|amd_ext|image|image_ext|finalizer?|ext|control|name))*"
    r"(?:_api)?(?:_ext)?_trace"
)
_TABLES = (
    r"(?:kernel|memory_copy|memory_allocation|scratch_memory|graph_launch|hip_event|regions?)_trace"
)
_V3_FILE = re.compile(
    rf"(?P<prefix>.*?)[._-]?(?P<table>{_DOMAINS}|{_TABLES}|counter_collection|agent_info)"
    r"(?P<suffix>[^.]*)(?:\..*)?",
    re.IGNORECASE,
)
RANK_OF_PROCESS = {"rank": "Rank to give the process, over what the names of its files say."}
"""Text of the option of readers whose files have a process in their names."""
_PASS = re.compile(r"(?:pmc|pass)_\d+", re.IGNORECASE)
_RANK = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d+)", re.IGNORECASE)
_HOST_PID_RANK = re.compile(r"(?P<host>.+)\.(?P<pid>\d+)\.(?P<rank>\d+)")
_HOST = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", re.IGNORECASE)
_NUMBER_AT_END = re.compile(r"(?:^|[._-])(\d+)$")
_AGENTS = "agent_info"
COUNTER_RUN = "counters"
"""Name of a run of counters whose files have no name but the process id."""
_V2_FILE = re.compile(
    r"(?P<kind>results|hip_api_trace|hsa_api_trace|roctx_trace|hcc_ops_trace|async_copy_trace"
    r"|pcs_trace)_(?P<name>[^.]*)(?:\..*)?"
)


@dataclass(frozen=True)
class PathInfo:
    """Facts of the process that wrote a file, by the file's path.

    Parameters
    ----------
    prefix
        Text in front of the table's name.
    host
        Node, where files lie in ``HOST/PID_…``.
    pid
        Process id, -1 if unknown.
    rank
        Rank, -1 if unknown.
    run
        Folder of a pass, empty if there is none.
    """

    prefix: str
    host: str = ""
    pid: int = -1
    rank: int = -1
    run: str = ""


def group_by(paths: list[Path], key: Callable[[Path], Hashable]) -> list[list[Path]]:
    """Put the files with the same key together, in order of the first of each group."""
    return list(by_key(paths, key).values())


def group_by_process(paths: list[Path]) -> list[list[Path]]:
    """Put rocprofv3's CSV files of one process and run together: same folder, same prefix.

    An ``agent_info`` file serves all processes of its folder that have none.
    """
    groups = group_by(paths, _key)
    for files in groups:
        if any(_is_agents(path) for path in files):
            continue
        folder = files[0].parent
        shared = next((p for p in paths if _is_agents(p) and p.parent == folder), None)
        if shared is not None:
            files.append(shared)
    served = {path for files in groups if not _only_agents(files) for path in files}
    return [f for f in groups if not (_only_agents(f) and served.issuperset(f))]


def group_by_name(paths: list[Path]) -> list[list[Path]]:
    """Put NAME.db, NAME.json and NAME.csv together, which one run of rocprof v1 wrote."""
    return group_by(paths, lambda path: (path.parent, inputs.plain_name(path)))


def group_by_folder(paths: list[Path]) -> list[list[Path]]:
    """Put the files of each folder together."""
    return group_by(paths, lambda path: path.parent)


def group_by_v2_name(paths: list[Path]) -> list[list[Path]]:
    """Put rocprofv2's files of one process together: same folder, same name after the table's."""

    def key(path: Path) -> Hashable:
        name = v2_name(path)
        return (path.parent, name is not None, path.name if name is None else name)

    return group_by(paths, key)


def v2_name(path: Path) -> str | None:
    """Return what follows the table's name in the name of a file of rocprofv2; None if not so."""
    match = _V2_FILE.fullmatch(path.name)
    return match["name"] if match else None


def _key(path: Path) -> tuple[str, ...]:
    known = _V3_FILE.fullmatch(path.name)
    if known is None:
        return (str(path.parent), path.name, "alone")
    return (str(path.parent), known["prefix"], known["suffix"])


def _is_agents(path: Path) -> bool:
    known = _V3_FILE.fullmatch(path.name)
    return known is not None and known["table"].lower() == _AGENTS


def _only_agents(paths: Iterable[Path]) -> bool:
    return all(_is_agents(path) for path in paths)


def path_info(path: Path) -> PathInfo:
    """Return what the path of a CSV file, or of ``…_results.json``, says of the process."""
    known = _V3_FILE.fullmatch(path.name)
    if known:
        prefix = known["prefix"] + known["suffix"]
    else:
        prefix = re.sub(r"[._-]?results$", "", path.name.split(".")[0], flags=re.IGNORECASE)
    folders = [part for part in path.parts[:-1] if not _PASS.fullmatch(part)]
    run = next((part for part in reversed(path.parts[:-1]) if _PASS.fullmatch(part)), "")
    pid = valid_id(number_in(prefix)) if prefix.isdecimal() else -1
    host, rank = _host_and_rank(path.parent.name, folders, prefix, pid)
    return PathInfo(prefix, host, pid, rank, run)


def _host_and_rank(folder: str, folders: list[str], prefix: str, pid: int) -> tuple[str, int]:
    """Return host and rank by the prefix, or by the nearest folder that names them."""
    named = next((f for f in map(_RANK.search, [prefix, *reversed(folders)]) if f), None)
    rank = valid_id(number_in(named[1])) if named else -1
    for part in reversed(folders):
        match = _HOST_PID_RANK.fullmatch(part)
        if match and number_in(match["pid"]) == pid:
            return match["host"], rank if rank >= 0 else valid_id(number_in(match["rank"]))
    is_host = prefix.isdecimal() and _HOST.fullmatch(folder) and not _RANK.search(folder)
    return (folder if is_host and not _PASS.fullmatch(folder) else ""), rank


def run_name(info: PathInfo, pids: set[int]) -> str:
    """Return the name of a run of counters: the pass, or the name that the user gave it.

    Rank and process id are no part of that: the processes of one run must have one name for it.
    """
    name = _RANK.sub("", info.prefix)
    number = _NUMBER_AT_END.search(name)
    if number and (name.isdecimal() or number_in(number[1]) in {*pids, info.pid}):
        name = name[: number.start()]
    return info.run or name.strip("._-") or COUNTER_RUN
