"""Extents of simulated host operations: in an ET their time is in pieces, around what they call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, nest


class Recorded(NamedTuple):
    """Nodes of an ET as they were recorded: with what they called; pieces of host operations have their names."""

    ts: Array
    dur: Array
    lane: Array
    name: Array
    is_operation: Array
    is_piece: Array


def simulated_ends(end: Array, recorded: Recorded) -> tuple[Array, Array]:
    """End of each node in a simulation, those of host operations with all that they call; and what each is a piece of.

    ::

        recorded   |--------- P ---------|        simulated   |- P -|· C ·|-piece of P-|
                         |-- C --|                            |----------- P ----------|

    Parameters
    ----------
    end
        When each node, which has its first piece alone, ended in the simulation.
    recorded
        The same nodes as recorded.

    Returns
    -------
    end, owner
        Of each node; the operation is -1 where it is none's piece, or not known.
    """
    owned_by = np.full(len(end), -1)
    rows = np.flatnonzero(recorded.is_operation)
    pieces = np.flatnonzero(recorded.is_piece)
    if not rows.size or not pieces.size:
        return end, owned_by
    rows = rows[nest.time_order(recorded.lane[rows], recorded.ts[rows], recorded.dur[rows])]
    lane, ts, dur = recorded.lane[rows], recorded.ts[rows], recorded.dur[rows]
    parent = nest.parents(lane, ts, dur, np.ones(lane.max() + 1, bool))
    owner = _owners(recorded, rows, pieces, parent)
    ends = end[rows]
    np.maximum.at(ends, owner[owner >= 0], end[pieces[owner >= 0]])
    called = np.flatnonzero(parent >= 0)
    while (ends[parent[called]] < ends[called]).any():  # once for each level of calls
        np.maximum.at(ends, parent[called], ends[called])
    result = end.copy()
    result[rows] = ends
    owned_by[pieces[owner >= 0]] = rows[owner[owner >= 0]]
    return result, owned_by


def _owners(recorded: Recorded, rows: Array, pieces: Array, parent: Array) -> Array:
    """Place in `rows` of the operation that each piece is of, -1 if none is known.

    That is the last of its name that began before it, or else the first around that which lasted until its end.
    """
    ends = recorded.ts[rows] + recorded.dur[rows]
    times = np.sort(recorded.ts[rows])
    scale = len(times) + 1  # a time is one of as many: keys of name and time stay small
    begun = np.searchsorted(times, recorded.ts[rows], "right") + recorded.name[rows] * scale
    order = np.argsort(begun, kind="stable")
    until = np.searchsorted(times, recorded.ts[pieces], "right") + recorded.name[pieces] * scale
    place = np.searchsorted(begun[order], until, "right") - 1
    owner = np.where(place >= 0, order[place], -1)
    owner[recorded.name[rows[owner]] != recorded.name[pieces]] = -1
    piece_ends = recorded.ts[pieces] + recorded.dur[pieces]
    # once for each level of calls
    while (early := (owner >= 0) & (ends[owner] < piece_ends)).any():
        owner[early] = parent[owner[early]]
    return owner
