"""Programs without times joined to the job that ran them: PyTorch's host execution traces.

Each operator of a program is matched with a node of the rank's profile: by the id of its call,
where both recorded the same calls, else thread by thread by the order of names (`sequences`).
Matched nodes get the arguments that they lack, and the flow of data between operators becomes
edges between them. A thread that does not agree well enough is refused, and said so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import arrow, jsonscan, merged_text, sequences
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import ASSUMED, ORDER
from chopper_interop.trace import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

NO_TIMES = Fault(
    "no-times",
    Severity.ERROR,
    "No times: ts counts the nodes in order. Give the profiler's trace of the same ranks as well.",
)
BY_ID = Fault(
    "host-et-joined-by-id",
    Severity.INFO,
    "Operators of the execution trace were matched with the profile's by the id of their call.",
    events=True,
)
BY_ORDER = Fault(
    "host-et-joined-by-order",
    Severity.INFO,
    "Operators of the execution trace were matched with the profile's by the order of names on "
    "each thread: they may be of another iteration.",
    events=True,
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

_ID, _OWN_ID = "Record function id", "ET rf_id"
"""What the profile and the program call the id of a call."""
_SAME_NAMES = 0.95
"""Ids are of the same calls if at least this share of those that agree has the same name."""
_LEAST_RATIO, _LEAST_PART = 0.8, 0.5
"""A thread is linked if this share of the names that both have is matched in order, and this part
of the shorter side at all."""
_FEW = 4
"""A thread with fewer operators than this is linked only if all of them are matched."""


def apart(fragments: list[Any], issues: IssueLog) -> tuple[list[Any], list[Any]]:
    """Fragments with times, and programs beside them; programs alone are all there is.

    Counter passes without times are no programs.
    """
    programs = [f for f in fragments if f.trace.meta.clock == ORDER and not f.counts]
    if len(programs) < len(fragments):
        return [f for f in fragments if f not in programs], programs
    issues.add(NO_TIMES, len(programs))
    return fragments, []


@dataclass
class _Side:
    """Operators and annotations of one rank, on one of both sides.

    Parameters
    ----------
    rows
        Their nodes.
    name, lane, id
        Of each: a number for its name that both sides share, its lane, the id of its call or 0.
    """

    rows: Array
    name: Array
    lane: Array
    id: Array


@dataclass
class _Links:
    """What was matched of one program: its rows, and for each a node of the trace or -1."""

    node: Array
    method: Fault = BY_ORDER
    possible: int = 0
    refused: int = 0
    alone: int = 0
    where: str = ""


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
            links = _matched(program, trace, rank, free)
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


def _matched(program: Trace, trace: Trace, rank: int, free: Array) -> _Links:
    mine, theirs = _sides(program, trace, rank, free)
    links = _Links(np.full(program.nodes.num_rows, -1, np.int64))
    links.possible = sequences.common(mine.name, theirs.name)
    if _by_id(mine, theirs, links):
        return links
    _by_order(trace, mine, theirs, links)
    return links


def _sides(program: Trace, trace: Trace, rank: int, free: Array) -> tuple[_Side, _Side]:
    numbers: dict[str, int] = {}
    span = trace.rank_rows[rank]
    threads = trace.array("kind", "lanes") == LaneKind.THREAD
    which = np.isin(trace.array("kind")[span], [int(Kind.CPU_OP), int(Kind.ANNOTATION)])
    which &= threads[trace.array("lane")[span]] & free[span]
    rows = span.start + np.flatnonzero(which)
    every = np.arange(program.nodes.num_rows)
    return _side(program, every, numbers, _OWN_ID), _side(trace, rows, numbers, _ID)


def _side(trace: Trace, rows: Array, numbers: dict[str, int], key: str) -> _Side:
    texts = [_as_written(text) for text in trace.names()]
    code = np.array([numbers.setdefault(t, len(numbers)) for t in texts] or [0], np.int64)
    length = trace.array("args_len")[rows]
    block, at = trace.text.block(trace.array("args_at")[rows], length)
    values, found = jsonscan.extract(block, at, length, [key])
    return _Side(
        rows,
        code[trace.array("name")[rows]],
        trace.array("lane")[rows],
        np.where(found[0], values[0], 0),
    )


def _as_written(name: str) -> str:
    """A name as Kineto writes it: no line breaks, no backslashes, nothing that can't be shown."""
    name = name.replace("\\", "/").replace("\n", "")
    return name if name.isprintable() else "unknown"


def _by_id(mine: _Side, theirs: _Side, links: _Links) -> bool:
    """Match by the ids of calls; False if there are none, or they are of other calls."""
    own, at = np.unique(mine.id, return_index=True)
    other, at_2, counts = np.unique(theirs.id, return_index=True, return_counts=True)
    real = (other != 0) & (counts == 1)
    _, i, j = np.intersect1d(own[own != 0], other[real], assume_unique=True, return_indices=True)
    i, j = at[own != 0][i], at_2[real][j]
    same = mine.name[i] == theirs.name[j]
    if not same.any() or same.mean() < _SAME_NAMES:
        return False
    links.node[mine.rows[i[same]]] = theirs.rows[j[same]]
    links.method = BY_ID
    return True


def _by_order(trace: Trace, mine: _Side, theirs: _Side, links: _Links) -> None:
    """Match thread by thread, the one that the program begins on first.

    If that is found in a part of the profile only, such as one iteration of many, the others are
    looked for in the time of that part.
    """
    ts = trace.array("ts")
    stop = ts + trace.array("dur")
    window: tuple[int, int] | None = None
    links.possible = 0
    for lane, other in _threads(mine, theirs):
        own = np.flatnonzero(mine.lane == lane)
        if other < 0:
            links.alone += len(own)
            continue
        rows = np.flatnonzero(theirs.lane == other)
        if window is not None:
            started = ts[theirs.rows[rows]]
            rows = rows[(started >= window[0]) & (started <= window[1])]
        place = sequences.align(mine.name[own], theirs.name[rows])
        found = np.flatnonzero(place >= 0)
        possible = sequences.common(mine.name[own], theirs.name[rows])
        links.possible += possible
        if not _is_enough(len(found), possible, len(own), len(rows)):
            links.refused += len(own)
            continue
        nodes = theirs.rows[rows[place[found]]]
        links.node[mine.rows[own[found]]] = nodes
        if not links.where:
            links.where = _window_name(trace, nodes, len(rows))
            if len(rows) > sequences.LONGER * len(own):
                window = (int(ts[nodes[0]]), int(stop[nodes].max()))


def _is_enough(matched: int, possible: int, own: int, other: int) -> bool:
    if own < _FEW:
        return matched == own
    return matched >= max(_LEAST_RATIO * possible, _LEAST_PART * min(own, other), 1)


def _threads(mine: _Side, theirs: _Side) -> list[tuple[int, int]]:
    """Pairs of lanes that are most alike, each once; -1 where none is left."""
    lanes, others = (list(dict.fromkeys(side.lane.tolist())) for side in (mine, theirs))
    alike = sorted(
        (
            -sequences.likeness(mine.name[mine.lane == a], theirs.name[theirs.lane == b]),
            -sequences.common(mine.name[mine.lane == a], theirs.name[theirs.lane == b]),
            lanes.index(a),
            others.index(b),
        )
        for a in lanes
        for b in others
    )
    chosen: dict[int, int] = {}
    for _, names, a, b in alike:
        if names and a not in chosen and b not in chosen.values():
            chosen[a] = b
    return [(a, others[chosen[k]] if k in chosen else -1) for k, a in enumerate(lanes)]


def _window_name(trace: Trace, nodes: Array, of: int) -> str:
    """Which part of a thread was taken: its iteration, and how much of all it is."""
    names, code, parent = trace.names(), trace.array("name"), trace.array("parent")
    node, step = int(nodes[0]), ""
    while node >= 0 and not step:
        name = names[code[node]]
        step = name if name.startswith("ProfilerStep") else ""
        node = int(parent[node])
    started = int(trace.array("ts")[nodes[0]])
    part = f"from {started / 1e6:,.3f} ms on, {len(nodes):,} of the thread's {of:,} operators"
    return f"{step} {part}".strip()


def _with_links(trace: Trace, program: Trace, links: _Links, log: IssueLog) -> Trace:
    """The trace with the arguments of matched nodes and the edges between them."""
    data = program.array("kind", "edges") == EdgeKind.DATA
    src, dst = (links.node[program.array(c, "edges")[data]] for c in ("src", "dst"))
    known = (src >= 0) & (dst >= 0)
    forward = known & (src < dst)
    log.add(AGAINST_TIME, np.count_nonzero(known & ~forward))
    log.add(DATA, np.count_nonzero(forward), f"{len(src):,} in the execution trace")
    trace = trace.with_edges(src[forward], dst[forward], EdgeKind.DATA)
    return _with_arguments(trace, program, links)


def _with_arguments(trace: Trace, program: Trace, links: _Links) -> Trace:
    mine = np.flatnonzero(links.node >= 0)
    if not mine.size:
        return trace
    nodes = links.node[mine]
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


def _told(trace: Trace, rank: int, links: _Links, log: IssueLog) -> Trace:
    """Issues and facts of a program's matching."""
    matched = int(np.count_nonzero(links.node >= 0))
    operators = len(links.node)
    how = f"rank {rank}: {matched:,} of {links.possible:,} operators that both have"
    how = f"{how}, of {operators:,}" + (f"; {links.where}" if links.where else "")
    log.add(links.method, matched, how)
    log.add(REFUSED, links.refused, f"rank {rank}")
    log.add(NO_PROFILE, links.alone, f"threads of rank {rank}")
    log.add(UNMATCHED, operators - matched - links.refused - links.alone, f"rank {rank}")
    method = "id" if links.method is BY_ID else "order"
    share = matched / max(links.possible, 1)
    fact = f"{matched}/{links.possible} ({share:.4f}) by {method}"
    return trace.with_meta(facts=trace.meta.facts | {f"host_et_matched_rank{rank}": fact})
