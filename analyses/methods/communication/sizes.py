"""Sizes of collectives as nccl-tests counts them, and factors of bus bandwidth."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.schemas.collectives import BUS_FACTORS
from chopper_interop.schemas.kinds import Collective
from chopper_interop.trace import Trace


class Sizes(NamedTuple):
    """Bytes of members, -1 where unknown: as nccl-tests counts them, put in, and got out."""

    size: Array
    put: Array
    got: Array


def member_sizes(trace: Trace, row: Array, to_all: Array) -> Sizes:
    """Sizes of communication kernels.

    Parameters
    ----------
    row
        Rows of the trace's nodes.
    to_all
        Mask of those of an all-to-all: their size is what they put in, which may differ from what
        they get.
    """
    put, got, size = (trace.integers(column, row) for column in ("bytes", "out_bytes", "mem_bytes"))
    size = np.where(size >= 0, size, np.maximum(put, got))
    return Sizes(np.where(to_all & (put >= 0), put, size), put, got)


def instance_sizes(
    sizes: Sizes, order: Array, at: Array, kind: Array, kinds: tuple[str, ...]
) -> tuple[Array, Array, Array]:
    """Sizes of instances: the largest of a member, of an all-to-all the mean.

    The size of a gather or scatter is unknown if all members state only their part: the root alone
    states all of it, and may not be in the trace.

    Parameters
    ----------
    order, at
        Members by instance, and the position at which each instance begins among them.
    kind
        Kinds of the instances, numbers among `kinds`.
    """
    size, put, got = (np.maximum.reduceat(values[order], at) for values in sizes)
    known = sizes.size[order] >= 0
    total = np.add.reduceat(np.where(known, sizes.size[order], 0), at)
    known_members = np.add.reduceat(known.astype(np.int64), at)
    to_all = np.isin(kind, _codes(kinds, Collective.ALL_TO_ALL)) & (known_members > 0)
    size = np.where(to_all, total // np.maximum(known_members, 1), size)
    by_root = np.isin(kind, _codes(kinds, Collective.GATHER, Collective.SCATTER))
    one_sided = (np.minimum(put, got) <= 0) & (np.maximum(put, got) > 0)
    return np.where(by_root & one_sided, -1, size), put, got


def bandwidth_factors(kind: Array, kinds: tuple[str, ...], n: Array) -> Array:
    """Bus bandwidth divided by algorithmic bandwidth; NaN of an unknown kind, 0 if nothing is moved."""
    factor = np.full(len(kind), np.nan)
    factor[np.isin(kind, _codes(kinds, Collective.BARRIER))] = 0
    for name, (times, shared) in BUS_FACTORS.items():
        rows = np.isin(kind, _codes(kinds, name))
        factor[rows] = times * (n[rows] - 1) / n[rows] if shared else times
    return factor


def ring_steps(kind: Array, kinds: tuple[str, ...], n: Array) -> Array:
    """Steps that n ranks in a ring take one after the other: (n - 1) times the factor; 1 if not shared."""
    steps = np.zeros(len(kind))
    for name, (times, shared) in BUS_FACTORS.items():
        rows = np.isin(kind, _codes(kinds, name))
        steps[rows] = times * (n[rows] - 1) if shared else times
    return steps


def _codes(kinds: tuple[str, ...], *names: str) -> list[int]:
    """Numbers of the kinds that occur."""
    return [kinds.index(name) for name in names if name in kinds]
