"""Which operator of a program without times is which node of its rank's profile.

By the id of its call where both recorded the same calls, else thread by thread by the order of
names (`sequences`). A thread that does not agree well enough is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import sequences
from chopper_interop.files import jsonscan
from chopper_interop.issues import Fault, Severity
from chopper_interop.schemas.kinds import Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

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

_ID, _OWN_ID = "Record function id", "ET rf_id"
"""What the profile and the program call the id of a call."""
_SAME_NAMES = 0.95
"""Ids are of the same calls if at least this share of those that agree has the same name."""
_LEAST_RATIO, _LEAST_PART = 0.8, 0.5
"""A thread is linked if this share of the names that both have is matched in order, and this part
of the shorter side at all."""
_FEW = 4
"""A thread with fewer operators than this is linked only if all of them are matched."""


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
class Links:
    """What was matched of one program: its rows, and for each a node of the trace or -1."""

    node: Array
    method: Fault = BY_ORDER
    possible: int = 0
    refused: int = 0
    alone: int = 0
    where: str = ""


def matched(program: Trace, trace: Trace, rank: int, free: Array) -> Links:
    """Match a program's operators.

    Parameters
    ----------
    program
        What was recorded of one rank, without times.
    trace
        The job.
    rank
        The rank of the job that ran the program.
    free
        Which nodes of the job no other program has.
    """
    mine, theirs = _sides(program, trace, rank, free)
    links = Links(np.full(program.nodes.num_rows, -1, np.int64))
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


def _by_id(mine: _Side, theirs: _Side, links: Links) -> bool:
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


def _by_order(trace: Trace, mine: _Side, theirs: _Side, links: Links) -> None:
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
