"""Slow-down of kernels that overlap with communication against the same kernels alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop import arguments
from chopper_interop.analyses.methods import distributions
from chopper_interop.arrays import Array, gather
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.pieces import WorkPieces

MOSTLY = 0.5
"""Share of its time from which on a kernel with communication counts as overlapped. Chosen: most of it,
so that a kernel which communication only touches does not count as slowed down."""
_SIZES = ("flops", "mem_bytes")
_GRIDS = ("grid", "grid_size")


class Slowdown(NamedTuple):
    """Slow-down of the kernels of each group: the sum `overlapped_ns` by the sum `alone_ns`; sums over ranks.

    Parameters
    ----------
    overlapped_ns, alone_ns
        Sums over its overlapped kernels that ran alone as well: of the medians of such kernels with
        communication, and of those alone.
    overlapped, compared, solo
        Number of overlapped kernels, of those of them that have the same kernel alone on their rank,
        and of such kernels that ran alone on the ranks of the group's kernels.
    """

    overlapped_ns: Array
    alone_ns: Array
    overlapped: Array
    compared: Array
    solo: Array


def measure_slowdown(
    trace: Trace, work: WorkPieces, covered: Array, group: Array, n: int
) -> Slowdown:
    """Slow-down of the kernels of each group.

    Parameters
    ----------
    work
        Pieces of GPU work; kernels that a window cuts do not count.
    covered
        Nanoseconds of each in which communication ran on its GPU.
    group
        Number of each piece's group, below `n`.
    n
        Number of groups.
    """
    row, length = work.row, work.end - work.start
    counts = (trace.array("kind")[row] == Kind.KERNEL) & (length > 0)
    counts &= length == trace.array("dur")[row]
    is_over = counts & (covered >= MOSTLY * length)
    used = np.flatnonzero(is_over | (counts & (covered == 0)))
    over = is_over[used]
    row, group, dur = row[used], group[used], length[used]
    overlapped = np.bincount(group[over], minlength=n)
    key, n_keys, comparable = _keys(trace, row, over)
    group, dur = group[comparable], dur[comparable]
    over, key = over[comparable], key[comparable]
    alone = distributions.group_distributions(key[~over], dur[~over], n_keys).median
    # overlapped kernels by group and key: each pair has one median, and one of the same key alone
    pair, pair_of = gather.distinct(group[over], key[over])
    overlapped_ns = distributions.group_distributions(pair_of, dur[over], len(pair)).median
    of_group, alone_ns = group[over][pair], alone[key[over][pair]]
    count = np.bincount(pair_of, minlength=len(pair)) * (alone_ns >= 0)  # -1 of none
    return Slowdown(
        gather.group_sums(of_group, count * overlapped_ns, n),
        gather.group_sums(of_group, count * alone_ns, n),
        overlapped,
        gather.group_sums(of_group, count, n),
        _solo_counts(group, key, over, n, n_keys),
    )


def _solo_counts(group: Array, key: Array, over: Array, n: int, n_keys: int) -> Array:
    """Number of kernels that ran alone and have the key of one of each group."""
    total = np.bincount(key[~over], minlength=n_keys)
    first, _ = gather.distinct(group, key)
    return gather.group_sums(group[first], total[key[first]], n)


def _keys(trace: Trace, row: Array, over: Array) -> tuple[Array, int, Array]:
    """Number of the same kernel on the same rank, count of these, and mask of comparable kernels.

    The same has the same name, and, if a name occurs both overlapped and alone, the same grid and
    sizes. Where these are known of some kernels of a name, those without are not comparable.
    """
    first, key = gather.distinct(trace.array("rank")[row], trace.array("name")[row])
    both = np.bincount(key[over], minlength=len(first)) > 0
    both &= np.bincount(key[~over], minlength=len(first)) > 0
    ask, comparable = np.flatnonzero(both[key]), np.ones(len(row), np.bool_)
    if not ask.size:
        return key, len(first), comparable
    columns = [trace.integers(name, row[ask]) for name in _SIZES]
    columns += arguments.codes_of_launches(trace, row[ask], *_GRIDS)
    known = np.any([values >= 0 for values in columns], axis=0)
    of_some = np.bincount(key[ask], known, len(first)) > 0
    comparable[ask] = known | ~of_some[key[ask]]
    details = np.full((len(columns), len(row)), -1, np.int64)
    details[:, ask] = columns
    first, key = gather.distinct(key, *details)
    return key, len(first), comparable
