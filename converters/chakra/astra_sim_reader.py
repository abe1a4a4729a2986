"""Simulations as traces: logs of ASTRA-sim, and the ETs that it ran.

A rank is a system of the simulator, a tick a nanosecond. With the ETs next to the log (or one folder
above it, or named by an option), nodes are those of the ETs with all attributes, at simulated times.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from chopper_interop import build
from chopper_interop.arrays import Array, gather
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.chakra import files as chakra_files
from chopper_interop.converters.chakra import reader
from chopper_interop.converters.chakra.astra_sim import ERRORS, find_ets, groups_of, is_groups
from chopper_interop.converters.chakra.astra_sim_log import SimulatedRun, last_run
from chopper_interop.converters.chakra.astra_sim_nodes import kinds, lanes
from chopper_interop.converters.chakra.decode import decode
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.chakra import NodeType
from chopper_interop.schemas.meta import COMPUTED, Meta, Rank, Source
from chopper_interop.trace import Trace

BY_NAME = Fault.info(
    "sim-kinds-by-name",
    "The log alone does not distinguish host operations from kernels, so they were classified by "
    "name. Put the simulated ETs next to it, or give -O ets=PREFIX, for their own kinds.",
)
OTHER_ETS = Fault.info(
    "sim-other-ets",
    "The ETs next to the log lack nodes or ranks that are in the log, so they are not those that "
    "were simulated, and were not read.",
)
NPUS_MISSING = Fault.loss(
    "sim-npus-missing",
    "ETs for NPUs that are not in the log: the simulated network had fewer (npus_count), so that their work did not run, "
    "and what waited for it did not wait. chopper-check says how many NPUs ETs are for.",
)
NO_OPERATION = Fault.info_of_events(
    "sim-node-no-operation",
    "Nodes of the ETs that hold facts about the trace, or nothing, are no operations; nor are those of streams "
    "with NPUs of their own, whose work the ETs of ranks have too.",
)


_LABELS = "labels"


def read(paths: list[Path], *, ets: str = "") -> Trace:
    """Read the last run of a log.

    Parameters
    ----------
    paths
        Files of the log, oldest first, and ETs.
    ets
        The ETs that were simulated: their folder, or their path without ``.RANK.et``; by default
        those next to the log or one folder above it.
    """
    et_files = [path for path in paths if path.suffix == ".et" or is_groups(path)]
    logs = [path for path in paths if path not in et_files and path.name != ERRORS]
    if not logs:  # a log may be called anything
        logs, et_files = paths[:1], et_files[1:]
    issues = IssueLog(str(logs[0]))
    run = last_run([inputs.read(path, issues) for path in logs], issues)
    if not len(run.rank):
        raise ReadError(
            "it has no node with both issue and callback",
            path=logs[-1],
            hint='simulate with "trace-enabled": 1 in the system configuration',
        )
    if ets:
        et_files = _named_ets(ets)
    trace = _trace_of_ets(run, et_files, issues) if et_files else None
    if trace is None:
        issues.add(BY_NAME, len(run.rank))
        trace = _trace_of_log(run)
    issues.add(NO_OPERATION, len(run.rank) - trace.nodes.num_rows)
    size = sum(path.stat().st_size for path in paths)
    nodes = trace.nodes.num_rows
    source = Source(str(logs[0]), "astra-sim", "ASTRA-sim", "", size, run.events, nodes)
    known = {rank.rank: rank for rank in trace.meta.ranks}
    simulated = trace.ranks or np.unique(run.rank).tolist()
    ranks = [known.get(r) or Rank(r, known_by=_LABELS) for r in simulated]
    facts = {"simulator": "ASTRA-sim"} | {
        f"sys[{rank}] finished": f"{ticks} cycles" for rank, ticks in sorted(run.finished.items())
    }
    return trace.with_meta(
        ranks=tuple(replace(rank, known_by=_LABELS) for rank in ranks),
        sources=(source,),
        issues=tuple(issues),
        facts=trace.meta.facts | facts,
    )


def _named_ets(text: str) -> list[Path]:
    """ETs of a folder or with a path that begins so, and their process groups."""
    path = Path(text)
    ets = find_ets(path, "") if path.is_dir() else find_ets(path.parent, path.name)
    if not ets:
        raise ReadError("there are no ETs named PREFIX.RANK.et", path=path)
    return ets + groups_of(ets)


def _trace_of_log(run: SimulatedRun) -> Trace:
    """Build a trace from the log alone."""
    builder = TraceBuilder(Meta(clock=COMPUTED))
    kind = kinds(run)
    builder.nodes(
        kind=kind,
        name=run.name,
        rank=run.rank,
        lane=lanes(builder, run, kind),
        ts=run.start,
        dur=run.end - run.start,
    )
    return builder.finish()


def _trace_of_ets(run: SimulatedRun, paths: list[Path], issues: IssueLog) -> Trace | None:
    """Build a trace of the ETs at simulated times; None if these are not the ETs of this run."""
    ets = {chakra_files.job_and_rank(path)[1]: path for path in paths if not is_groups(path)}
    groups = [path for path in paths if is_groups(path)]
    # what NPUs of streams did, the ETs of ranks have too
    streams = {rank for rank, path in ets.items() if chakra_files.stream_of(path) is not None}
    simulated = np.unique(run.rank).tolist()
    ranks = [rank for rank in simulated if rank not in streams]
    traces, missing = [], [rank for rank in ranks if rank not in ets]
    for rank in [] if missing else ranks:
        times = _SimulatedTimes(run, rank)
        traces.append(reader.read_at([ets[rank], *groups], times))
        if not times.covers_run():
            missing.append(rank)
            break
    if missing:
        issues.add(OTHER_ETS, len(ets), f"rank {missing[0]}")
        return None
    absent = [path for rank, path in ets.items() if rank not in simulated and _has_nodes(path)]
    issues.add(NPUS_MISSING, len(absent), ", ".join(path.name for path in absent[:2]))
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


def _has_nodes(path: Path) -> bool:
    """True if something runs on the NPU of an ET: not so where a rank has no work of a further stream."""
    for contents in (inputs.head, inputs.read):  # nodes that run mostly are among the first
        et = decode(np.frombuffer(bytearray(contents(path)), np.uint8))
        if (et.type != NodeType.METADATA).any():
            return True
    return False


class _SimulatedTimes:
    """Times of the nodes of one rank's ET."""

    def __init__(self, run: SimulatedRun, rank: int) -> None:
        rows = np.flatnonzero(run.rank == rank)
        rows = rows[np.argsort(run.id[rows], kind="stable")]
        self.id, self.start, self.end = run.id[rows], run.start[rows], run.end[rows]
        self.ids = np.empty(0, np.int64)

    def __call__(self, ids: Array, all_ids: Array) -> tuple[Array, Array, Array]:
        """Start and duration of nodes by their ids, and a mask of those that ran."""
        self.ids = all_ids
        at = gather.find(self.id, ids)
        _, first = np.unique(ids, return_index=True)  # an id that occurs twice ran once
        once = np.zeros(len(ids), bool)
        once[first] = True
        return self.start[at], (self.end - self.start)[at], (at >= 0) & once

    def covers_run(self) -> bool:
        """True if all nodes that ran are in the ET."""
        return bool(np.isin(self.id, self.ids).all())
