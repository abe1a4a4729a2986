"""Clocks of a Perfetto trace: every time on the one that the trace is on.

Snapshots say what several clocks showed at one moment; a time is brought from clock to clock by
the last snapshot of both before it, else the first. What no snapshot ties to the trace's clock
has no time there, unless nothing at all is told of clocks.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters.perfetto_read_state_decode import DEFAULT_CLOCK
from chopper_interop.schemas.meta import BOOTTIME, REALTIME, Offset

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.perfetto_read_snapshots_decode import Snapshots

    Pairs = dict[tuple[int, int], list[tuple[int, int]]]

REALTIME_ID, MONOTONIC_ID, BOOTTIME_ID = 1, 3, 6
"""Clock ids of ``builtin_clock.proto``."""
_FIRST_OWN = 64
"""Clock ids from here on are a sequence's or a writer's own."""
_REALTIMES = (REALTIME_ID, 2)
"""CLOCK_REALTIME, and its coarse relative."""


class Clocks:
    """What a trace's snapshots tell.

    Parameters
    ----------
    snapshots
        All of them.
    primary
        The clock that the trace says it is on; 0 if it does not say.
    used
        Clocks that events are timed with.
    """

    def __init__(self, snapshots: Snapshots, primary: int, used: list[int]) -> None:
        self.pairs = _pairs(snapshots)
        named = [clock for clock in used if clock != DEFAULT_CLOCK]
        self.trace_clock = primary or BOOTTIME_ID
        tied = [c for c in named if self._path(c)]
        if named and not tied and not primary and DEFAULT_CLOCK not in used:
            self.trace_clock = named[0]  # nothing ties them to another: their own clock it is

    @property
    def is_own(self) -> bool:
        """Whether the trace is on a clock of which nobody but its writer knows what it shows."""
        return self.trace_clock >= _FIRST_OWN

    @property
    def name(self) -> str:
        """The trace's clock as `Meta.clock` has it."""
        return REALTIME if self.trace_clock in _REALTIMES else BOOTTIME

    @property
    def offsets(self) -> tuple[Offset, ...]:
        """What is known of the other clock, real time or time since boot."""
        other = BOOTTIME_ID if self.name == REALTIME else REALTIME_ID
        known = self.pairs.get((other, self.trace_clock))
        if not known or other == self.trace_clock:
            return ()
        theirs, ours = known[-1]
        spread = [b - a for a, b in known]
        label = BOOTTIME if other == BOOTTIME_ID else REALTIME
        return (Offset(label, ours - theirs, (max(spread) - min(spread) + 1) // 2),)

    def converted(self, ts: Array, clock: Array) -> tuple[Array, Array]:
        """Times on the trace's clock, and which of them are known there."""
        out, known = ts.copy(), np.ones(len(ts), np.bool_)
        for one in np.unique(clock).tolist():
            if one in (DEFAULT_CLOCK, self.trace_clock):
                continue
            mine = np.flatnonzero(clock == one)
            path = self._path(one)
            if path is None:
                known[mine] = False
                continue
            values = ts[mine]
            for source, target in pairwise(path):
                values = _moved(values, self.pairs[source, target])
            out[mine] = values
        return out, known

    def _path(self, start: int) -> list[int] | None:
        """Clocks from one to the trace's, neighbours being in a snapshot together."""
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
    """For each two clocks of one snapshot what both showed, in the order of the first."""
    found: Pairs = {}
    bounds = np.flatnonzero(np.diff(snapshots.snapshot, prepend=-1, append=-1)).tolist()
    clocks, times = snapshots.clock.tolist(), snapshots.time.tolist()
    for first, stop in pairwise(bounds):
        for a in range(first, stop):
            for b in range(first, stop):
                if clocks[a] != clocks[b]:
                    found.setdefault((clocks[a], clocks[b]), []).append((times[a], times[b]))
    for pairs in found.values():
        pairs.sort()
    return found


def _moved(values: Array, pairs: list[tuple[int, int]]) -> Array:
    theirs, ours = np.array(pairs, np.int64).T
    at = np.maximum(np.searchsorted(theirs, values, "right") - 1, 0)
    return values + (ours - theirs)[at]
