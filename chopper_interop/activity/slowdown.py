"""How much slower kernels are beside communication than the same kernels alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop import arguments
from chopper_interop.columns import arrow, distributions, gather
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.activity.pieces import Pieces
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

MOSTLY = 0.5
"""A kernel is overlapped if communication runs beside it for so much of its time."""
_SIZES = ("flops", "mem_bytes")
_GRIDS = ("grid", "grid_size")


class Slowdown(NamedTuple):
    """Of the kernels of each group.

    Parameters
    ----------
    beside, alone
        Sums over its overlapped kernels that ran alone as well: of the medians of such kernels
        beside communication, and of those alone.
    overlapped, compared, solo
        How many are overlapped, how many of these have the same kernel alone on their rank, and how
        many such ran alone on the ranks of the group's kernels.
    """

    beside: Array
    alone: Array
    overlapped: Array
    compared: Array
    solo: Array


def of(trace: Trace, work: Pieces, covered: Array, group: Array, n: int) -> Slowdown:
    """Slow-down of kernels of groups.

    Parameters
    ----------
    trace
        The trace.
    work
        Pieces of GPU work; kernels that a window cuts do not count.
    covered
        Time of each in which communication ran on its GPU.
    group
        Number of each piece's group, below `n`.
    n
        How many groups there are.
    """
    row, length = work.row, work.end - work.start
    counts = (trace.array("kind")[row] == Kind.KERNEL) & (length > 0)
    counts &= length == trace.array("dur")[row]
    is_over = counts & (covered >= MOSTLY * length)
    used = np.flatnonzero(is_over | (counts & (covered == 0)))
    over = is_over[used]
    row, group, dur = row[used], group[used], length[used]
    overlapped = np.bincount(group[over], minlength=n)
    key, n_keys, sure = _keys(trace, row, over)
    group, dur, over, key = group[sure], dur[sure], over[sure], key[sure]
    alone = _medians(dur[~over], key[~over], n_keys)
    pair, pair_of = gather.distinct(group[over], key[over])
    beside = _medians(dur[over], pair_of, len(pair))
    of_group, like = group[over][pair], alone[key[over][pair]]
    count = np.bincount(pair_of, minlength=len(pair)) * ~np.isnan(like)
    return Slowdown(
        np.bincount(of_group, count * beside, n),
        np.bincount(of_group, count * np.nan_to_num(like), n),
        overlapped,
        gather.sums(of_group, count, n),
        _solo(group, key, over, n, n_keys),
    )


def _solo(group: Array, key: Array, over: Array, n: int, n_keys: int) -> Array:
    """How many kernels like those of each group ran alone."""
    total = np.bincount(key[~over], minlength=n_keys)
    first, _ = gather.distinct(group, key)
    return gather.sums(group[first], total[key[first]], n)


def _keys(trace: Trace, row: Array, over: Array) -> tuple[Array, int, Array]:
    """What is the same kernel on the same rank: by name, and where it matters grid and sizes.

    Where these are known of some kernels of a name, those of which they are not are not sure.
    """
    first, key = gather.distinct(trace.array("rank")[row], trace.array("name")[row])
    both = np.bincount(key[over], minlength=len(first)) > 0
    both &= np.bincount(key[~over], minlength=len(first)) > 0
    ask, sure = np.flatnonzero(both[key]), np.ones(len(row), np.bool_)
    if not ask.size:
        return key, len(first), sure
    columns = [*_sizes(trace, row[ask]), *_grids(trace, row[ask])]
    known = np.any([values >= 0 for values in columns], axis=0)
    of_some = np.bincount(key[ask], known, len(first)) > 0
    sure[ask] = known | ~of_some[key[ask]]
    told = np.full((len(columns), len(row)), -1, np.int64)
    told[:, ask] = columns
    first, key = gather.distinct(key, *told)
    return key, len(first), sure


def _sizes(trace: Trace, row: Array) -> list[Array]:
    there = trace.nodes.column_names
    return [
        arrow.numbers(trace.nodes[name], -1)[row] if name in there else np.full(len(row), -1)
        for name in _SIZES
    ]


def _grids(trace: Trace, row: Array) -> list[Array]:
    """Codes of grids, as kernels state them or else the calls that launched them."""
    call = trace.launch[row]
    asked = np.concatenate([row, np.maximum(call, 0)])
    found = []
    for place in arguments.find(trace, asked, *_GRIDS):
        code, _ = arguments.values_at(trace.text, place)
        own, of_call = code[: len(row)], np.where(call >= 0, code[len(row) :], -1)
        found.append(np.where(own >= 0, own, of_call))
    return found


def _medians(values: Array, code: Array, n: int) -> Array:
    """Median of the values of each code; NaN of none."""
    found = distributions.of(code, values, n)
    return np.where(found.count > 0, found.median, np.nan)
