"""Match of the operators of a program without times with the nodes of its rank's profile.

Operators are matched by the id of their call where both recorded the same calls, else thread by
thread by the order of names (`sequences`). A thread that does not agree well enough is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chopper_interop.arrays import Array, sequences
from chopper_interop.arrays.gather import is_any
from chopper_interop.io import json_events
from chopper_interop.issues import Fault
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.trace import Trace

BY_ID = Fault.info_of_events(
    "host-et-joined-by-id",
    "Operators of the execution trace were matched with the profile's by the id of their call.",
)
BY_ORDER = Fault.info_of_events(
    "host-et-joined-by-order",
    "Operators of the execution trace were matched with the profile's by the order of names on "
    "each thread: they may be of another iteration.",
)

_PROFILE_ID, _PROGRAM_ID = "Record function id", "ET rf_id"
"""Names of the argument with the id of a call, in the profile and in the program."""
_MIN_SAME_NAMES = 0.95
"""Ids are of the same calls if at least this share of equal ones has the same name; chosen: ids of
two runs agree in names by chance only."""
_MIN_SHARE_OF_COMMON, _MIN_SHARE_OF_SHORTER = 0.8, 0.5
"""A thread is linked if this share of the names that both have is matched in order, and this share
of the shorter side. Threads of one program match by 0.9975 to 0.9995 (PyTorch's DLRM)."""
_FEW = 4
"""A thread with fewer operators is linked only if all of them are matched: shares of so few say
little."""


@dataclass
class _Side:
    """Operators and annotations of one rank, in the program or in the profile.

    Parameters
    ----------
    rows
        Rows of the nodes.
    name
        Codes of their names, the same for both sides.
    lane
        Lanes of the nodes.
    id
        Ids of their calls, 0 where there is none.
    """

    rows: Array
    name: Array
    lane: Array
    id: Array


@dataclass
class ProgramMatches:
    """Matches of one program.

    Parameters
    ----------
    node
        For each row of the program a node of the trace, -1 where there is none.
    method
        Issue that names the method.
    possible
        Number of operators that both sides have, by name.
    refused
        Number of operators on threads that differ too much.
    without_thread
        Number of operators on threads that the profile does not have.
    part
        Description of the part of the profile that was matched; may be empty.
    """

    node: Array
    method: Fault = BY_ORDER
    possible: int = 0
    refused: int = 0
    without_thread: int = 0
    part: str = ""


def match_operators(program: Trace, trace: Trace, rank: int, free: Array) -> ProgramMatches:
    """Match the operators of a program with nodes of the trace.

    Parameters
    ----------
    program
        Trace of one rank, without times.
    trace
        The job.
    rank
        The rank of the job that ran the program.
    free
        Mask of nodes of the job that no other program is matched with.
    """
    program_side, profile_side = _sides(program, trace, rank, free)
    links = ProgramMatches(np.full(program.nodes.num_rows, -1, np.int64))
    links.possible = sequences.common_elements(program_side.name, profile_side.name)
    if _match_by_id(program_side, profile_side, links):
        return links
    _match_by_order(trace, program_side, profile_side, links)
    return links


def _sides(program: Trace, trace: Trace, rank: int, free: Array) -> tuple[_Side, _Side]:
    numbers: dict[str, int] = {}
    span = trace.rank_rows[rank]
    threads = trace.array("kind", "lanes") == LaneKind.THREAD
    mask = is_any(trace.array("kind")[span], (Kind.CPU_OP, Kind.ANNOTATION))
    mask &= threads[trace.array("lane")[span]] & free[span]
    rows = span.start + np.flatnonzero(mask)
    all_rows = np.arange(program.nodes.num_rows)
    return (
        _side(program, all_rows, numbers, _PROGRAM_ID),
        _side(trace, rows, numbers, _PROFILE_ID),
    )


def _side(trace: Trace, rows: Array, numbers: dict[str, int], key: str) -> _Side:
    texts = [_as_written(text) for text in trace.names()]
    code = np.array([numbers.setdefault(t, len(numbers)) for t in texts] or [0], np.int64)
    length = trace.array("args_len")[rows]
    block, at = trace.text.block(trace.array("args_at")[rows], length)
    values, present = json_events.extract_integers(block, at, length, [key])
    return _Side(
        rows,
        code[trace.array("name")[rows]],
        trace.array("lane")[rows],
        np.where(present[0], values[0], 0),
    )


def _as_written(name: str) -> str:
    """A name as Kineto writes it: no line breaks, no backslashes, nothing that cannot be printed."""
    name = name.replace("\\", "/").replace("\n", "")
    return name if name.isprintable() else "unknown"


def _match_by_id(program: _Side, profile: _Side, links: ProgramMatches) -> bool:
    """Match by the ids of calls; False if there are none, or they are of other calls."""
    ids, at = np.unique(program.id, return_index=True)
    ids_2, at_2, counts = np.unique(profile.id, return_index=True, return_counts=True)
    usable, usable_2 = ids != 0, (ids_2 != 0) & (counts == 1)
    _, i, j = np.intersect1d(ids[usable], ids_2[usable_2], assume_unique=True, return_indices=True)
    i, j = at[usable][i], at_2[usable_2][j]  # rows of the ids that both have
    same = program.name[i] == profile.name[j]
    if not same.any() or same.mean() < _MIN_SAME_NAMES:
        return False
    links.node[program.rows[i[same]]] = profile.rows[j[same]]
    links.method = BY_ID
    return True


def _match_by_order(trace: Trace, program: _Side, profile: _Side, links: ProgramMatches) -> None:
    """Match thread by thread, beginning with the one that the program begins on.

    If that matches a part of the profile only, such as one iteration of many, the others are
    searched for in the time of that part.
    """
    ts = trace.array("ts")
    stop = ts + trace.array("dur")
    window: tuple[int, int] | None = None
    links.possible = 0
    for lane, profile_lane in _paired_threads(program, profile):
        operators = np.flatnonzero(program.lane == lane)
        if profile_lane < 0:
            links.without_thread += len(operators)
            continue
        rows = np.flatnonzero(profile.lane == profile_lane)
        if window is not None:
            started = ts[profile.rows[rows]]
            rows = rows[(started >= window[0]) & (started <= window[1])]
        position = sequences.align(program.name[operators], profile.name[rows])
        matched = np.flatnonzero(position >= 0)
        possible = sequences.common_elements(program.name[operators], profile.name[rows])
        links.possible += possible
        if not _is_enough(len(matched), possible, len(operators), len(rows)):
            links.refused += len(operators)
            continue
        nodes = profile.rows[rows[position[matched]]]
        links.node[program.rows[operators[matched]]] = nodes
        if not links.part:
            links.part = _part_text(trace, nodes, len(rows))
            if len(rows) > sequences.MAX_LENGTH_RATIO * len(operators):
                window = (int(ts[nodes[0]]), int(stop[nodes].max()))


def _is_enough(matched: int, possible: int, operators: int, nodes: int) -> bool:
    """True if so many of a thread's operators are matched that it is of the same program."""
    if operators < _FEW:
        return matched == operators
    shorter = min(operators, nodes)
    return matched >= max(_MIN_SHARE_OF_COMMON * possible, _MIN_SHARE_OF_SHORTER * shorter, 1)


def _paired_threads(program: _Side, profile: _Side) -> list[tuple[int, int]]:
    """Pairs of the most similar lanes, each once; -1 where the profile has none left."""
    lanes, others = (list(dict.fromkeys(side.lane.tolist())) for side in (program, profile))
    ranked = []
    for k, lane in enumerate(lanes):
        names = program.name[program.lane == lane]
        for m, other in enumerate(others):
            names_2 = profile.name[profile.lane == other]
            likeness, common = (
                f(names, names_2) for f in (sequences.common_pairs, sequences.common_elements)
            )
            ranked.append((-likeness, -common, k, m))
    paired: dict[int, int] = {}
    for _, common, k, m in sorted(ranked):
        if common and k not in paired and m not in paired.values():
            paired[k] = m
    return [(lane, others[paired[k]] if k in paired else -1) for k, lane in enumerate(lanes)]


def _part_text(trace: Trace, nodes: Array, total: int) -> str:
    """Describe the matched part of a thread: its iteration, start, and number of operators."""
    names, code, parent = trace.names(), trace.array("name"), trace.array("parent")
    node, step = int(nodes[0]), ""
    while node >= 0 and not step:
        name = names[code[node]]
        step = name if name.startswith("ProfilerStep") else ""
        node = int(parent[node])
    started = int(trace.array("ts")[nodes[0]])
    part = f"from {started / 1e6:,.3f} ms on, {len(nodes):,} of the thread's {total:,} operators"
    return f"{step} {part}".strip()
