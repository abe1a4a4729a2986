"""Programs without times joined to the job that ran them: PyTorch's host execution traces.

Nodes that are matched with operators of a program (`host_match`) get the arguments that they lack,
and the flow of data between operators becomes edges between them. What is refused is said so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.columns import arrow
from chopper_interop.files import merged_text
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.joining.host_match import BY_ID, Links, matched
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.schemas.meta import ASSUMED, ORDER
from chopper_interop.trace import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

NO_TIMES = Fault(
    "no-times",
    Severity.ERROR,
    "No times: ts counts the nodes in order. Give the profiler's trace of the same ranks as well.",
)
UNMATCHED = Fault(
    "host-et-unmatched",
    Severity.INFO,
    "Operators of the execution trace that the matching part of the profile does not have.",
    events=True,
)
REFUSED = Fault(
    "host-et-refused",
    Severity.ERROR,
    "Operators of threads on which execution trace and profile are too different to be of the "
    "same program were not linked.",
    events=True,
)
NO_PROFILE = Fault(
    "host-et-without-profile",
    Severity.LOSS,
    "The operators of execution traces of ranks, or threads, that have no profile are left out.",
    events=True,
)
DATA = Fault(
    "host-et-data-edges",
    Severity.INFO,
    "The flow of data between operators, as the execution trace tells it, became edges.",
)
AGAINST_TIME = Fault(
    "host-et-edge-against-time",
    Severity.LOSS,
    "Data that would have been read before the profile shows its making: these edges were left "
    "out.",
)


def apart(fragments: list[Any], issues: IssueLog) -> tuple[list[Any], list[Any]]:
    """Fragments with times, and programs beside them; programs alone are all there is.

    Counter passes without times are no programs.
    """
    programs = [f for f in fragments if f.trace.meta.clock == ORDER and not f.counts]
    if len(programs) < len(fragments):
        return [f for f in fragments if f not in programs], programs
    issues.add(NO_TIMES, len(programs))
    return fragments, []


def join(trace: Trace, programs: Sequence[Trace], issues: IssueLog) -> Trace:
    """The trace with what programs tell of its nodes, and the flow of data as edges.

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
            links = matched(program, trace, rank, free)
            free[links.node[links.node >= 0]] = False
            trace = _with_links(trace, program, links, log)
            trace = _with_groups(trace, program)
            trace = _told(trace, rank, links, log)
        issues.extend(log)
    return trace


def _rank_of(program: Trace, trace: Trace, *, alone: bool) -> int | None:
    """The rank of the job that ran a program: by what it says, by process, by its name."""
    (said,) = program.meta.ranks[:1] or (None,)
    if said is None:
        return None
    if said.known_by in ("header", "user") and said.rank in trace.rank_rows:
        return said.rank
    same = [r.rank for r in trace.meta.ranks if r.pid == said.pid >= 0]
    if len(same) == 1 and same[0] in trace.rank_rows:
        return same[0]
    if said.known_by != ASSUMED and said.rank in trace.rank_rows:
        return said.rank
    unknown = said.known_by == ASSUMED or all(r.known_by == ASSUMED for r in trace.meta.ranks)
    return trace.ranks[0] if alone and unknown and len(trace.ranks) == 1 else None


def _with_links(trace: Trace, program: Trace, links: Links, log: IssueLog) -> Trace:
    """The trace with the arguments of matched nodes and the edges between them."""
    data = program.array("kind", "edges") == EdgeKind.DATA
    src, dst = (links.node[program.array(c, "edges")[data]] for c in ("src", "dst"))
    known = (src >= 0) & (dst >= 0)
    forward = known & (src < dst)
    log.add(AGAINST_TIME, np.count_nonzero(known & ~forward))
    log.add(DATA, np.count_nonzero(forward), f"{len(src):,} in the execution trace")
    trace = trace.with_edges(src[forward], dst[forward], EdgeKind.DATA)
    mine = np.flatnonzero(links.node >= 0)
    return with_arguments(trace, links.node[mine], program, mine)


def with_arguments(trace: Trace, nodes: Array, program: Trace, mine: Array) -> Trace:
    """The trace with the arguments that some nodes lack and that nodes of another trace have.

    Parameters
    ----------
    trace
        The trace.
    nodes
        Rows of its nodes.
    program
        The other trace.
    mine
        As many rows of its nodes.
    """
    if not mine.size:
        return trace
    at, length = trace.array("args_at").copy(), trace.array("args_len").copy()
    own_at, own_length = (program.array(c)[mine] for c in ("args_at", "args_len"))
    first, first_at = trace.text.block(at[nodes], length[nodes])
    second, second_at = program.text.block(own_at, own_length)
    text, starts, lengths = merged_text.merged(
        first, first_at, length[nodes], second, second_at, own_length
    )
    at[nodes], length[nodes] = starts + int(trace.text.starts[-1]), lengths
    table = arrow.replaced(arrow.replaced(trace.nodes, "args_at", at), "args_len", length)
    return replace(trace, nodes=table, text=Text((*trace.text.buffers, text)))


def _with_groups(trace: Trace, program: Trace) -> Trace:
    """The trace with the program's process groups of which it knows none by that name."""
    known = trace.groups["name"].to_pylist()
    new = [name not in known for name in program.groups["name"].to_pylist()]
    more = arrow.take(program.groups, np.array(new, np.bool_))
    return replace(trace, groups=pa.concat_tables([trace.groups, more]).combine_chunks())


def _told(trace: Trace, rank: int, links: Links, log: IssueLog) -> Trace:
    """Issues and facts of a program's matching."""
    n_matched = int(np.count_nonzero(links.node >= 0))
    operators = len(links.node)
    how = f"rank {rank}: {n_matched:,} of {links.possible:,} operators that both have"
    how = f"{how}, of {operators:,}" + (f"; {links.where}" if links.where else "")
    log.add(links.method, n_matched, how)
    log.add(REFUSED, links.refused, f"rank {rank}")
    log.add(NO_PROFILE, links.alone, f"threads of rank {rank}")
    log.add(UNMATCHED, operators - n_matched - links.refused - links.alone, f"rank {rank}")
    method = "id" if links.method is BY_ID else "order"
    share = n_matched / max(links.possible, 1)
    fact = f"{n_matched}/{links.possible} ({share:.4f}) by {method}"
    return trace.with_meta(facts=trace.meta.facts | {f"host_et_matched_rank{rank}": fact})
