"""PyTorch's host execution traces: programs without times, joined to the job that ran them.

Nodes that match operators of a program (`host_match`) get the arguments that they lack, and the
flow of data between operators becomes edges between them. What is refused is noted as an issue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow
from chopper_interop.io import json_merge
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.joining.host_match import BY_ID, ProgramMatches, match_operators
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.schemas.meta import ASSUMED, ORDER
from chopper_interop.trace import Text, Trace

if TYPE_CHECKING:
    from chopper_interop.joining.fragment import Fragment

NO_TIMES = Fault.error(
    "no-times",
    "No times: ts counts the nodes in order. Give the profiler's trace of the same ranks as well.",
)
UNMATCHED = Fault.info_of_events(
    "host-et-unmatched",
    "Operators of the execution trace that the matching part of the profile does not have.",
)
REFUSED = Fault.error_of_events(
    "host-et-refused",
    "Operators of threads on which execution trace and profile are too different to be of the "
    "same program were not linked.",
)
NO_PROFILE = Fault.loss_of_events(
    "host-et-without-profile",
    "The operators of execution traces of ranks, or threads, that have no profile are left out.",
)
DATA = Fault.info(
    "host-et-data-edges",
    "The flow of data between operators, as the execution trace records it, became edges.",
)
AGAINST_TIME = Fault.loss(
    "host-et-edge-against-time",
    "Data that would have been read before the profile shows that it was written: these edges were "
    "left out.",
)


def split_programs(
    fragments: list[Fragment], issues: IssueLog
) -> tuple[list[Fragment], list[Fragment]]:
    """Split fragments into those with times and programs; programs alone are not split off.

    Counter passes without times are no programs.
    """
    programs = [f for f in fragments if f.trace.meta.clock == ORDER and not f.has_counters]
    if len(programs) < len(fragments):
        return [f for f in fragments if f not in programs], programs
    # a stored trace has counted it already
    is_counted = [NO_TIMES.code in {issue.code for issue in f.trace.meta.issues} for f in programs]
    issues.add(NO_TIMES, is_counted.count(False))
    return fragments, []


def join_programs(trace: Trace, programs: Sequence[Trace], issues: IssueLog) -> Trace:
    """Add what programs record of the trace's nodes, and the flow of data as edges.

    Parameters
    ----------
    trace
        The job.
    programs
        Traces of one rank each, on the clock `ORDER`.
    """
    free = np.ones(trace.nodes.num_rows, np.bool_)
    for program in programs:
        log = IssueLog(program.meta.sources[0].path if program.meta.sources else "")
        rank = _rank_of(program, trace, alone=len(programs) == 1)
        if rank is None:
            stated = f"rank {program.meta.ranks[0].rank}" if program.meta.ranks else ""
            log.add(NO_PROFILE, program.nodes.num_rows, stated)
        else:
            links = match_operators(program, trace, rank, free)
            free[links.node[links.node >= 0]] = False
            trace = _with_links(trace, program, links, log)
            trace = _with_groups(trace, program)
            trace = _with_notes(trace, rank, links, log)
        issues.extend(log)
    return trace


def _rank_of(program: Trace, trace: Trace, *, alone: bool) -> int | None:
    """Rank of the job that ran a program: by what it states, by process, by its name."""
    (stated,) = program.meta.ranks[:1] or (None,)
    if stated is None:
        return None
    if stated.known_by in ("header", "user") and stated.rank in trace.rank_rows:
        return stated.rank
    of_process = [r.rank for r in trace.meta.ranks if r.pid == stated.pid >= 0]
    if len(of_process) == 1 and of_process[0] in trace.rank_rows:
        return of_process[0]
    if stated.known_by != ASSUMED and stated.rank in trace.rank_rows:
        return stated.rank
    unknown = stated.known_by == ASSUMED or all(r.known_by == ASSUMED for r in trace.meta.ranks)
    return trace.ranks[0] if alone and unknown and len(trace.ranks) == 1 else None


def _with_links(trace: Trace, program: Trace, links: ProgramMatches, log: IssueLog) -> Trace:
    """The trace with the arguments of matched nodes and the edges between them."""
    data = program.array("kind", "edges") == EdgeKind.DATA
    src, dst = (links.node[program.array(c, "edges")[data]] for c in ("src", "dst"))
    known = (src >= 0) & (dst >= 0)
    forward = known & (src < dst)
    log.add(AGAINST_TIME, np.count_nonzero(known & ~forward))
    log.add(DATA, np.count_nonzero(forward), f"{len(src):,} in the execution trace")
    trace = trace.with_edges(src[forward], dst[forward], EdgeKind.DATA)
    linked = np.flatnonzero(links.node >= 0)
    return with_arguments(trace, links.node[linked], program, linked)


def with_arguments(trace: Trace, nodes: Array, other: Trace, other_nodes: Array) -> Trace:
    """Add to some nodes the arguments that they lack and that nodes of another trace have.

    Parameters
    ----------
    nodes
        Rows of its nodes.
    other
        The other trace.
    other_nodes
        Rows of its nodes, as many as `nodes`.
    """
    if not other_nodes.size:
        return trace
    at, length = trace.array("args_at").copy(), trace.array("args_len").copy()
    other_at, other_length = (other.array(c)[other_nodes] for c in ("args_at", "args_len"))
    first, first_at = trace.text.block(at[nodes], length[nodes])
    second, second_at = other.text.block(other_at, other_length)
    text, starts, lengths = json_merge.merge_objects(
        first, first_at, length[nodes], second, second_at, other_length
    )
    at[nodes], length[nodes] = starts + int(trace.text.starts[-1]), lengths
    table = arrow.replace_column(
        arrow.replace_column(trace.nodes, "args_at", at), "args_len", length
    )
    return replace(trace, nodes=table, text=Text((*trace.text.buffers, text)))


def _with_groups(trace: Trace, program: Trace) -> Trace:
    """The trace with those process groups of the program whose names it does not have."""
    known = trace.groups["name"].to_pylist()
    is_new = [name not in known for name in program.groups["name"].to_pylist()]
    more = arrow.take(program.groups, np.array(is_new, np.bool_))
    return replace(trace, groups=pa.concat_tables([trace.groups, more]).combine_chunks())


def _with_notes(trace: Trace, rank: int, links: ProgramMatches, log: IssueLog) -> Trace:
    """Note issues of a program's matching, and add its figures to the facts of the trace."""
    n_matched = int(np.count_nonzero(links.node >= 0))
    operators = len(links.node)
    example = f"rank {rank}: {n_matched:,} of {links.possible:,} operators that both have"
    example = f"{example}, of {operators:,}" + (f"; {links.part}" if links.part else "")
    log.add(links.method, n_matched, example)
    log.add(REFUSED, links.refused, f"rank {rank}")
    log.add(NO_PROFILE, links.without_thread, f"threads of rank {rank}")
    log.add(UNMATCHED, operators - n_matched - links.refused - links.without_thread, f"rank {rank}")
    method = "id" if links.method is BY_ID else "order"
    share = n_matched / max(links.possible, 1)
    fact = f"{n_matched}/{links.possible} ({share:.4f}) by {method}"
    return trace.with_meta(facts=trace.meta.facts | {f"host_et_matched_rank{rank}": fact})
