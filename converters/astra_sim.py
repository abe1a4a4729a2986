"""What a simulation did: logs of ASTRA-sim, and the ETs that it ran, as a trace.

A rank is a system of the simulator, a tick a nanosecond. With the ETs beside the log (or one folder
above it, or named by an option), nodes are theirs with all that they say, at simulated times.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import build
from chopper_interop.build import TraceBuilder
from chopper_interop.converters import chakra_files, chakra_read
from chopper_interop.converters.astra_sim_log import Run, run, sniff
from chopper_interop.converters.astra_sim_nodes import kinds, lanes
from chopper_interop.errors import ReadError
from chopper_interop.files import inputs
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter
from chopper_interop.schemas.meta import COMPUTED, Meta, Rank, Source

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

BY_NAME = Fault(
    "sim-kinds-by-name",
    Severity.INFO,
    "The log alone does not tell host operations from kernels: names do here. With the ETs that "
    "were simulated beside it, or -O ets=PREFIX, they say so.",
)
OTHER_ETS = Fault(
    "sim-other-ets",
    Severity.INFO,
    "The ETs beside the log lack nodes or ranks that it tells of, so they are not those that were "
    "simulated, and were not read.",
)
NO_OPERATION = Fault(
    "sim-node-no-operation",
    Severity.INFO,
    "Nodes of the ETs that hold facts about the trace, or nothing, are no operations.",
    events=True,
)

_LOG = re.compile(r"log(?:\.(?P<age>\d+))?\.log(?:\.\w+)?")
_LABELS = "labels"
_ERRORS = "err.log"
_GROUPS = ".comm_groups.json"


def group(paths: list[Path]) -> list[list[Path]]:
    """Files of one log, oldest first, with the ETs beside or above them; others stand alone."""
    logs: dict[Path, list[Path]] = {}
    for path in paths:
        one = path.parent if _LOG.fullmatch(path.name) else path
        logs.setdefault(one, []).append(path)
    return [
        [*sorted(files, key=_age), *_errors(files[0]), *_ets_near(files[0])]
        for files in logs.values()
    ]


def _errors(log: Path) -> list[Path]:
    """The log of errors beside, most often empty, of which all is in the log."""
    return [path for path in [log.parent / _ERRORS] if _LOG.fullmatch(log.name) and path.is_file()]


def _age(path: Path) -> int:
    found = _LOG.fullmatch(path.name)
    return -int(found["age"] or 0) if found else 0


def _ets_near(log: Path) -> list[Path]:
    """ETs of the one job of which there are any, in the log's folder or else the one above."""
    for folder in (log.parent, log.parent.parent):
        found = _ets(folder, "")
        if found and len({chakra_files.named(path)[0] for path in found}) == 1:
            return found + _groups(found)
    return []


def _ets(folder: Path, job: str) -> list[Path]:
    if not folder.is_dir():
        return []
    named = ((path, chakra_files.named(path)) for path in sorted(folder.glob("*.et")))
    return [path for path, (of, rank) in named if rank is not None and job in ("", of)]


def _groups(ets: list[Path]) -> list[Path]:
    """The file of process groups of some ETs: that of their job, or the one of their folder."""
    folder, job = ets[0].parent, chakra_files.named(ets[0])[0]
    own = folder / f"{job}{_GROUPS}"
    if own.is_file():
        return [own]
    others = [path for path in sorted(folder.glob("*.json")) if not path.name.endswith(_GROUPS)]
    found = [path for path in others if _is_groups(path)]
    return found if len(found) == 1 else []


def read(paths: list[Path], *, ets: str = "") -> Trace:
    """Read the last run of a log.

    Parameters
    ----------
    paths
        Files of the log, oldest first, and ETs.
    ets
        The ETs that were simulated: their folder, or their path without ``.RANK.et``; by default
        those beside the log or one folder above it.
    """
    beside = [path for path in paths if path.suffix == ".et" or _is_groups(path)]
    logs = [path for path in paths if path not in beside and path.name != _ERRORS]
    issues = IssueLog(str(logs[0]))
    done = run([inputs.read(path, issues) for path in logs], issues)
    if not len(done.rank):
        raise ReadError(
            "it tells of no node from beginning to end",
            path=logs[-1],
            hint='simulate with "trace-enabled": 1 in the system configuration',
        )
    if ets:
        beside = _named_ets(ets)
    trace = _of_ets(done, beside, issues) if beside else None
    if trace is None:
        issues.add(BY_NAME, len(done.rank))
        trace = _of_log(done)
    issues.add(NO_OPERATION, len(done.rank) - trace.nodes.num_rows)
    size = sum(path.stat().st_size for path in paths)
    nodes = trace.nodes.num_rows
    source = Source(str(logs[0]), "astra-sim", "ASTRA-sim", "", size, done.events, nodes)
    known = {rank.rank: rank for rank in trace.meta.ranks}
    ranks = [known.get(r) or Rank(r, known_by=_LABELS) for r in np.unique(done.rank).tolist()]
    facts = {"simulator": "ASTRA-sim"} | {
        f"sys[{rank}] finished": f"{ticks} cycles" for rank, ticks in sorted(done.finished.items())
    }
    return trace.with_meta(
        ranks=tuple(replace(rank, known_by=_LABELS) for rank in ranks),
        sources=(source,),
        issues=tuple(issues),
        facts=trace.meta.facts | facts,
    )


def _is_groups(path: Path) -> bool:
    return path.suffix == ".json" and chakra_files.is_groups(path)


def _named_ets(text: str) -> list[Path]:
    path = Path(text)
    found = _ets(path, "") if path.is_dir() else _ets(path.parent, path.name)
    if not found:
        raise ReadError("there are no ETs named PREFIX.RANK.et", path=path)
    return found + _groups(found)


def _of_log(done: Run) -> Trace:
    """Nodes by what the log says of them."""
    builder = TraceBuilder(Meta(clock=COMPUTED))
    kind = kinds(done)
    builder.nodes(
        kind=kind,
        name=done.name,
        rank=done.rank,
        lane=lanes(builder, done, kind),
        ts=done.start,
        dur=done.end - done.start,
    )
    return builder.finish()


def _of_ets(done: Run, paths: list[Path], issues: IssueLog) -> Trace | None:
    """Nodes of the ETs at simulated times; None if these are not the ETs of this run."""
    ets = {chakra_files.named(path)[1]: path for path in paths if not _is_groups(path)}
    groups = [path for path in paths if _is_groups(path)]
    ranks = np.unique(done.rank).tolist()
    traces, missing = [], [rank for rank in ranks if rank not in ets]
    for rank in [] if missing else ranks:
        times = _Times(done, rank)
        traces.append(chakra_read.read_at([ets[rank], *groups], times))
        if not times.all_known():
            missing.append(rank)
            break
    if missing:
        issues.add(OTHER_ETS, len(ets), f"rank {missing[0]}")
        return None
    for trace in traces:
        issues.extend(replace(i, events=False) for i in trace.meta.issues)
    first = traces[0].meta
    meta = Meta(
        job=first.job,
        clock=COMPUTED,
        ranks=tuple(rank for trace in traces for rank in trace.meta.ranks),
        facts={n: v for n, v in first.facts.items() if n not in ("rank", "clock")},
    )
    return build.concat(traces, meta)


class _Times:
    """When the nodes of one rank's ET ran."""

    def __init__(self, done: Run, rank: int) -> None:
        rows = np.flatnonzero(done.rank == rank)
        rows = rows[np.argsort(done.id[rows], kind="stable")]
        self.id, self.start, self.end = done.id[rows], done.start[rows], done.end[rows]
        self.ids = np.empty(0, np.int64)

    def __call__(self, ids: Array, every: Array) -> tuple[Array, Array, Array]:
        """Start and duration of nodes by their ids, and whether they ran."""
        self.ids = every
        at = np.minimum(np.searchsorted(self.id, ids), len(self.id) - 1)
        known = self.id[at] == ids
        _, first = np.unique(ids, return_index=True)  # one that comes twice ran once
        once = np.zeros(len(ids), bool)
        once[first] = True
        return self.start[at], (self.end - self.start)[at], known & once

    def all_known(self) -> bool:
        """Whether all nodes that ran are in the ET."""
        return bool(np.isin(self.id, self.ids).all())


ASTRA_SIM = Converter(
    name="astra-sim",
    description="ASTRA-sim's log of a simulation",
    versions="logs of ASTRA-sim 2 with trace-enabled (spdlog, since 2024), and what versions of "
    "2022 to 2023 print; rotated files as one",
    sniff=sniff,
    group=group,
    read=read,
    derived=True,
    carries="all nodes from issue to callback at simulated times; with the ETs beside the log (or "
    "-O ets=PREFIX) kinds, lanes, dependencies, groups and annotations as these say",
)
