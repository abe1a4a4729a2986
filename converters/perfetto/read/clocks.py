"""Clocks of a Perfetto trace: conversion of all times to the trace's clock.

Snapshots have what several clocks showed at one moment; a time is converted from clock to clock
by the last snapshot of both before it, else the first. Events on a clock that no snapshot relates
to the trace's have no time there, unless the trace has no snapshots at all.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.perfetto.read.state_decode import DEFAULT_CLOCK
from chopper_interop.schemas.meta import BOOTTIME, REALTIME, Offset

if TYPE_CHECKING:
    from chopper_interop.converters.perfetto.read.snapshots_decode import Snapshots

    Pairs = dict[tuple[int, int], list[tuple[int, int]]]

REALTIME_ID, BOOTTIME_ID = 1, 6
"""Clock ids of ``builtin_clock.proto``."""
_FIRST_OWN = 64
"""Clock ids from here on are defined by a sequence or a writer."""
_REALTIMES = (REALTIME_ID, 2)
"""CLOCK_REALTIME, and its coarse relative."""


class TraceClocks:
    """The clocks of a trace, and how they are related.

    Parameters
    ----------
    snapshots
        All snapshots of the trace.
    primary
        Id of the trace's clock as its first snapshot has it; 0 if it has none.
    used
        Ids of the clocks of events.
    """

    def __init__(self, snapshots: Snapshots, primary: int, used: list[int]) -> None:
        self.pairs = _pairs(snapshots)
        named = [clock for clock in used if clock != DEFAULT_CLOCK]
        self.trace_clock = primary or BOOTTIME_ID
        related = [c for c in named if self._path(c)]
        if named and not related and not primary and DEFAULT_CLOCK not in used:
            self.trace_clock = named[0]  # events are on clocks that nothing relates to another

    @property
    def is_private(self) -> bool:
        """True if the trace is on a clock that its writer defined and related to no other."""
        return self.trace_clock >= _FIRST_OWN

    @property
    def name(self) -> str:
        """Name of the trace's clock, as in `Meta.clock`."""
        return REALTIME if self.trace_clock in _REALTIMES else BOOTTIME

    @property
    def offsets(self) -> tuple[Offset, ...]:
        """Offset to the second clock, real time or time since boot, if snapshots have both."""
        second = BOOTTIME_ID if self.name == REALTIME else REALTIME_ID
        pairs = self.pairs.get((second, self.trace_clock))
        if not pairs or second == self.trace_clock:
            return ()
        differences = [b - a for a, b in pairs]
        label = BOOTTIME if second == BOOTTIME_ID else REALTIME
        uncertainty = (max(differences) - min(differences) + 1) // 2
        return (Offset(label, differences[-1], uncertainty),)

    def convert(self, ts: Array, clock: Array) -> tuple[Array, Array]:
        """Convert times to the trace's clock, ns; return them, and the mask of those known there."""
        out, known = ts.copy(), np.ones(len(ts), np.bool_)
        for clock_id in np.unique(clock).tolist():
            if clock_id in (DEFAULT_CLOCK, self.trace_clock):
                continue
            rows = np.flatnonzero(clock == clock_id)
            path = self._path(clock_id)
            if path is None:
                known[rows] = False
                continue
            values = ts[rows]
            for source, target in pairwise(path):
                values = _shift(values, self.pairs[source, target])
            out[rows] = values
        return out, known

    def _path(self, start: int) -> list[int] | None:
        """Return the shortest path of clocks to the trace's, neighbours sharing a snapshot."""
        if start in (DEFAULT_CLOCK, self.trace_clock):
            return [start]
        before = {start: start}
        waiting = deque([start])
        while waiting:
            clock = waiting.popleft()
            if clock == self.trace_clock:
                path = [clock]
                while path[-1] != start:
                    path.append(before[path[-1]])
                return path[::-1]
            for source, target in self.pairs:
                if source == clock and target not in before:
                    before[target] = clock
                    waiting.append(target)
        return None


def _pairs(snapshots: Snapshots) -> Pairs:
    """Return for each two clocks that share snapshots what both showed, ordered by the first."""
    by_clocks: Pairs = {}
    bounds = np.flatnonzero(np.diff(snapshots.snapshot, prepend=-1, append=-1)).tolist()
    clocks, times = snapshots.clock.tolist(), snapshots.time.tolist()
    for first, stop in pairwise(bounds):
        for a in range(first, stop):
            for b in range(first, stop):
                if clocks[a] != clocks[b]:
                    by_clocks.setdefault((clocks[a], clocks[b]), []).append((times[a], times[b]))
    for pairs in by_clocks.values():
        pairs.sort()
    return by_clocks


def _shift(values: Array, pairs: list[tuple[int, int]]) -> Array:
    """Add to each value the difference of the last pair before it, else of the first."""
    source, target = np.array(pairs, np.int64).T
    pair = np.maximum(np.searchsorted(source, values, "right") - 1, 0)
    return values + (target - source)[pair]
