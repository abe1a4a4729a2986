"""Ranks that a process may be, by the durations of its kernels in a row: looked up, not compared rank by rank.

Two tools that record one process take the durations of its kernels from the same two times of the GPU, so that pairs of
neighbours with the same names and durations are the same in both records; in other processes of the job kernels have
the same names, and other durations. The pairs of all ranks are one sorted table, in which those of a process
are looked up: the cost grows with the number of ranks and of processes, not with their product.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather, sequences

if TYPE_CHECKING:
    from chopper_interop.clocks.line import ProcessWork

_QUANTA_NS = (1, 100, 1000)
"""Durations are compared in these units, the finest first. Tools copy nanoseconds, convert clocks that differ by parts
per million (tens of nanoseconds of a kernel of some milliseconds), or write microseconds."""
_NAME_UNIT = np.int64(1) << np.int64(40)
"""Weight of the code of a name in the number of a kernel; chosen: more than the nanoseconds of any kernel (18 minutes)."""
_MAX_PAIRS = 4096
"""Pairs of a record that are looked up, drawn by their hashes so that each record draws the same ones; chosen: a share
of them is known to 2 %."""
_MAX_OWNERS = 8
"""Pairs that more ranks have are left out, as they distinguish none and make the cost grow with the product; chosen: more
than the ranks among which a pair is shared by chance."""
_MIN_PAIRS = 32
"""With fewer pairs a record says nothing; chosen: a share of a half is one of 0.3 or more then."""
_MIN_SHARE = 0.5
"""Share of the pairs of the shorter record that a rank has if it is the process; chosen: the majority."""
_SHARE_OF_BEST = 0.25
"""Ranks with less of the share of the best one are none that the process may be; chosen: as their kernels mostly have
other durations, they are further by far more than what is taken for chance."""
FOREIGN_SHARE = 0.1
"""A process with no larger share of any rank, while others of its tool are recognised, is none of these; chosen: far
below the share by which one is recognised."""


class Likely(NamedTuple):
    """Ranks by the durations of a process's kernels.

    Parameters
    ----------
    ranks
        Positions of the ranks that it may be; None if that cannot be said.
    shares
        For each unit of durations the largest share of its pairs that a rank has; 1 where a record has too few.
    unit
        Index of the unit by which `ranks` were determined, -1 if they were not.
    is_distinct
        True if it is one of several ranks.
    """

    ranks: Array | None
    shares: tuple[float, ...]
    unit: int = -1
    is_distinct: bool = False


class _Table(NamedTuple):
    """Pairs of all ranks by one unit of durations.

    Parameters
    ----------
    pairs
        Hashes of the pairs that at most `_MAX_OWNERS` ranks have, ascending, once for each rank.
    owner
        Position of the rank of each.
    common
        Hashes of those that more ranks have, ascending.
    of_rank
        Number of `pairs` of each rank.
    """

    pairs: Array
    owner: Array
    common: Array
    of_rank: Array


class Fingerprints:
    """Pairs of neighbouring kernels of all ranks.

    Parameters
    ----------
    works
        Work of each rank, in the order of starts.
    longest
        Number of kernels of the longest record of all, of ranks and processes.
    """

    def __init__(self, works: Iterable[ProcessWork], longest: int) -> None:
        self._bits = max(-(-longest // _MAX_PAIRS) - 1, 0).bit_length()
        of_ranks = [self._pairs(work) for work in works]
        self._tables = [_table([pairs[k] for pairs in of_ranks]) for k in range(len(_QUANTA_NS))]

    def likely(self, work: ProcessWork) -> Likely:
        """Say which ranks a process may be."""
        best = []
        for unit, (table, pairs) in enumerate(zip(self._tables, self._pairs(work), strict=True)):
            own = np.setdiff1d(pairs, table.common, assume_unique=True)
            shares, is_known = _shares(table, own)
            best.append(float(shares.max(initial=0)) if is_known.all() else 1.0)
            highest = shares[is_known].max(initial=0)
            if highest >= _MIN_SHARE:
                ranks = np.flatnonzero((shares >= _SHARE_OF_BEST * highest) | ~is_known)
                return Likely(ranks, tuple(best), unit, is_distinct=len(ranks) == 1 < len(shares))
        return Likely(None, tuple(best))

    def _pairs(self, work: ProcessWork) -> list[Array]:
        """Hashes of the pairs that are looked up, ascending, by each unit of durations."""
        of_units = []
        for quantum in _QUANTA_NS:
            hashes = sequences.run_hashes(work.name * _NAME_UNIT + work.dur // quantum, 2)
            if self._bits:
                hashes = hashes[hashes >> np.uint64(64 - self._bits) == 0]
            of_units.append(np.unique(hashes))
        return of_units


def _table(of_ranks: list[Array]) -> _Table:
    owner = np.repeat(np.arange(len(of_ranks)), [len(pairs) for pairs in of_ranks])
    pairs = np.concatenate([*of_ranks, np.zeros(0, np.uint64)])
    order = np.argsort(pairs, kind="stable")
    pairs, owner = pairs[order], owner[order]
    values, number, owners = np.unique(pairs, return_inverse=True, return_counts=True)
    is_rare = owners <= _MAX_OWNERS
    kept = is_rare[number]
    of_rank = np.bincount(owner[kept], minlength=len(of_ranks))
    return _Table(pairs[kept], owner[kept], values[~is_rare], of_rank)


def _shares(table: _Table, own: Array) -> tuple[Array, Array]:
    """Share of the pairs that each rank has, of the shorter record, and whether that has enough of them."""
    low, high = (np.searchsorted(table.pairs, own, side) for side in ("left", "right"))
    hits = table.owner[gather.consecutive(low, high - low)]
    shorter = np.minimum(table.of_rank, len(own))
    shares = np.bincount(hits, minlength=len(shorter)) / np.maximum(shorter, 1)
    return shares, shorter >= _MIN_PAIRS
