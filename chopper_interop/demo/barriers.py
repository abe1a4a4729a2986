"""Matching of operations of ranks that are one collective, or a send and its receive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.demo.program import COLLECTIVE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.arrays.types import Array
    from chopper_interop.demo.program import Program


def arrays(programs: Sequence[Program]) -> tuple[Array, Array, Array]:
    """Return `barrier`, `first` and `member` as of `tables.Tables`.

    Collectives of the same ranks are matched by their order; sends and receives by their order
    among those from the one rank to the other.
    """
    met: dict[tuple[bool, tuple[int, ...], int], list[tuple[int, int]]] = {}
    for rank, program in enumerate(programs):
        count: dict[tuple[bool, tuple[int, ...]], int] = {}
        for row, op in enumerate(program.gpu):
            if op.kind == COLLECTIVE:
                key = op.exchange, op.members
                met.setdefault((*key, count.get(key, 0)), []).append((rank, row))
                count[key] = count.get(key, 0) + 1
    barrier = np.full((len(programs), max(len(p.gpu) for p in programs)), -1, dtype=np.int64)
    for number, ((exchange, members, _), matched) in enumerate(met.items()):
        if {rank for rank, _ in matched} != set(members):
            raise AssertionError(f"{members} do not all come to what they communicate")
        if exchange:  # the sender is named first
            matched.sort(key=lambda one: members.index(one[0]))
        for rank, row in matched:
            barrier[rank, row] = number
    first = np.cumsum([0, *(len(matched) for matched in met.values())])
    every = [one for matched in met.values() for one in matched]
    return barrier, first, np.array(every, dtype=np.int64).reshape(-1, 2)
