"""How large a collective is, as nccl-tests counts it, and what its bus bandwidth is by that."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.edges import collectives
from chopper_interop.schemas.kinds import Collective

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

FACTORS: dict[str, tuple[int, bool]] = {
    Collective.ALL_REDUCE: (2, True),
    Collective.ALL_GATHER: (1, True),
    Collective.REDUCE_SCATTER: (1, True),
    Collective.ALL_TO_ALL: (1, True),
    Collective.GATHER: (1, True),
    Collective.SCATTER: (1, True),
    Collective.BROADCAST: (1, False),
    Collective.REDUCE: (1, False),
    Collective.SEND_RECV: (1, False),
    Collective.SEND: (1, False),
    Collective.RECV: (1, False),
}
"""Bus bandwidth by algorithmic bandwidth, and whether times (n - 1) / n, n the ranks of the group.

nccl-tests, doc/PERFORMANCE.md and ``*GetBw`` of src/ (2.13). A barrier moves nothing."""


class Sizes(NamedTuple):
    """Bytes of members, -1 where unknown: as nccl-tests counts them, put in, and given."""

    size: Array
    put: Array
    got: Array


def of_members(trace: Trace, row: Array, to_all: Array) -> Sizes:
    """Sizes of what communicates.

    Parameters
    ----------
    row
        Rows of the trace's nodes.
    to_all
        Which are of an all-to-all: their size is what they put in, which need not be what they get.
    """
    put, got, size = (
        collectives.numbers(trace, column, row) for column in ("bytes", "out_bytes", "mem_bytes")
    )
    size = np.where(size >= 0, size, np.maximum(put, got))
    return Sizes(np.where(to_all & (put >= 0), put, size), put, got)


def of_instances(
    sizes: Sizes, order: Array, at: Array, kind: Array, kinds: tuple[str, ...]
) -> tuple[Array, Array, Array]:
    """Sizes of whole collectives: the largest of a member, of an all-to-all the mean.

    Of a gather or scatter of which only parts are told, as the root alone has all of it and is not
    in the trace, it is unknown.

    Parameters
    ----------
    order, at
        Members by instance, and where each instance begins among them.
    kind
        Kinds of the instances, numbers among `kinds`.
    """
    if not len(at):
        return at, at, at
    size, put, got = (np.maximum.reduceat(values[order], at) for values in sizes)
    stated = sizes.size[order] >= 0
    total = np.add.reduceat(np.where(stated, sizes.size[order], 0), at)
    told = np.add.reduceat(stated.astype(np.int64), at)
    to_all = np.isin(kind, _codes(kinds, Collective.ALL_TO_ALL)) & (told > 0)
    size = np.where(to_all, total // np.maximum(told, 1), size)
    by_root = np.isin(kind, _codes(kinds, Collective.GATHER, Collective.SCATTER))
    one_sided = (np.minimum(put, got) <= 0) & (np.maximum(put, got) > 0)
    return np.where(by_root & one_sided, -1, size), put, got


def factors(kind: Array, kinds: tuple[str, ...], n: Array) -> Array:
    """Bus bandwidth by algorithmic bandwidth; NaN for an unknown kind, 0 if nothing is moved."""
    factor = np.full(len(kind), np.nan)
    factor[np.isin(kind, _codes(kinds, Collective.BARRIER))] = 0
    for name, (times, shared) in FACTORS.items():
        mine = np.isin(kind, _codes(kinds, name))
        factor[mine] = times * (n[mine] - 1) / n[mine] if shared else times
    return factor


def _codes(kinds: tuple[str, ...], *names: str) -> list[int]:
    return [kinds.index(name) for name in names if name in kinds]
