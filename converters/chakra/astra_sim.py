"""Logs of ASTRA-sim: the format, and which files belong to a log."""

from __future__ import annotations

import re
from pathlib import Path

from chopper_interop.converters.chakra import files as chakra_files
from chopper_interop.grouping import by_key
from chopper_interop.registry import Converter

LINE = re.compile(rb"(issue|callback),sys->id=\d+, ?tick=\d+, ?node->id=\d+")
# Lines of spdlog, or as printed by versions of 2022 to 2023 and by runs without trace-enabled
_BEGINNING = re.compile(
    rb"\s*(?:\[[-\d]+[ T][-+:.\d]+\] \[system::topology::\w+\] \[\w+\] "
    rb"|ring of node \d+, id: \d+ dimension: |sys\[\d+\] finished, \d+ cycles)"
)
_LOG = re.compile(r"log(?:\.(?P<age>\d+))?\.log(?:\.\w+)?")
ERRORS = "err.log"
_GROUPS = ".comm_groups.json"


def sniff(head: bytes) -> bool:
    """True if a file that begins with `head` is such a log."""
    return LINE.search(head) is not None or _BEGINNING.match(head) is not None


def group(paths: list[Path]) -> list[list[Path]]:
    """Put files of one log together, oldest first, with the ETs next to or above them."""
    logs = by_key(paths, lambda path: path.parent if _LOG.fullmatch(path.name) else path)
    return [
        [*sorted(files, key=_age), *_errors(files[0]), *_ets_near(files[0])]
        for files in logs.values()
    ]


def _errors(log: Path) -> list[Path]:
    """Log of errors next to a log, which repeats a part of that and is mostly empty."""
    return [path for path in [log.parent / ERRORS] if _LOG.fullmatch(log.name) and path.is_file()]


def _age(path: Path) -> int:
    """Sort key of a rotated log, oldest first."""
    match = _LOG.fullmatch(path.name)
    return -int(match["age"] or 0) if match else 0


def _ets_near(log: Path) -> list[Path]:
    """ETs in the log's folder or else the one above, if they are of one job only."""
    for folder in (log.parent, log.parent.parent):
        ets = find_ets(folder, "")
        if ets and len({chakra_files.job_and_rank(path)[0] for path in ets}) == 1:
            return ets + groups_of(ets)
    return []


def find_ets(folder: Path, job: str) -> list[Path]:
    """ETs of a job in a folder; of any job if `job` is empty."""
    if not folder.is_dir():
        return []
    named = ((path, *chakra_files.job_and_rank(path)) for path in sorted(folder.glob("*.et")))
    return [path for path, other_job, rank in named if rank is not None and job in ("", other_job)]


def groups_of(ets: list[Path]) -> list[Path]:
    """File of process groups of some ETs: that of their job, or the only one of their folder."""
    folder, job = ets[0].parent, chakra_files.job_and_rank(ets[0])[0]
    of_job = folder / f"{job}{_GROUPS}"
    if of_job.is_file():
        return [of_job]
    others = [path for path in sorted(folder.glob("*.json")) if not path.name.endswith(_GROUPS)]
    candidates = [path for path in others if is_groups(path)]
    return candidates if len(candidates) == 1 else []


def is_groups(path: Path) -> bool:
    """True if a file holds process groups of ETs."""
    return path.suffix == ".json" and chakra_files.is_groups(path)


ASTRA_SIM = Converter(
    name="astra-sim",
    description="ASTRA-sim's log of a simulation",
    versions="logs of ASTRA-sim 2 with trace-enabled (spdlog, since 2024), and the output of "
    "versions of 2022 to 2023; rotated files as one",
    sniff=sniff,
    json=False,
    group=group,
    read="chopper_interop.converters.chakra.astra_sim_reader:read",
    derived=True,
    carries="all nodes from issue to callback at simulated times; with the ETs next to the log (or "
    "-O ets=PREFIX) their kinds, lanes, dependencies, groups and annotations",
)
