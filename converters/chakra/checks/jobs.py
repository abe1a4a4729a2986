"""ETs of all ranks as a job that `run` runs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra import run
from chopper_interop.converters.chakra.checks.values import (
    JOINED,
    P2P,
    group_names,
    integers,
    p2p_ends,
)
from chopper_interop.converters.chakra.edges import dependencies
from chopper_interop.schemas.chakra import NodeType

if TYPE_CHECKING:
    from chopper_interop.converters.chakra.decode import EtFile


def job_of(ets: list[EtFile], groups: dict[str, list[int]]) -> run.JobNodes:
    """Nodes of all ranks for a run; those of rank r have the numbers from ``bounds[r]`` on."""
    numbers = {name: k for k, name in enumerate(groups)}
    bounds = np.cumsum([0, *(len(et.id) for et in ets)])
    columns = {name: np.empty(int(bounds[-1]), kind) for name, kind in run.TYPES.items()}
    first, after = np.zeros(int(bounds[-1]) + 1, np.int64), []
    for rank, et in enumerate(ets):
        of_rank = slice(int(bounds[rank]), int(bounds[rank + 1]))
        columns["waits"][of_rank], first_of_rank, after_of_rank = _dependants(et)
        first[of_rank.start + 1 : of_rank.stop + 1] = first[of_rank.start] + first_of_rank[1:]
        after_of_rank += of_rank.start
        after.append(after_of_rank)
        columns["rank"][of_rank] = rank
        columns["order"][of_rank][np.argsort(et.id, kind="stable")] = np.arange(len(et.id))
        columns["duration"][of_rank] = np.maximum(et.duration_us * 1000, 1)
        for name, column in _behaviour(et, numbers).items():
            columns[name][of_rank] = column
    columns["partner"] = _with_senders(ets, bounds, columns["partner"])
    return run.JobNodes(
        **columns,
        members=np.array([len(m) for m in groups.values()]),
        first=first,
        after=after[0] if len(after) == 1 else np.concatenate(after),
    )


def _dependants(et: EtFile) -> tuple[Array, Array, Array]:
    """Number of nodes that each node depends on, and the rows of those that depend on it, as first of each and list."""
    src, dst = dependencies(et)
    return np.bincount(dst, minlength=len(et.id)), *gather.group_values(src, dst, len(et.id))


def _behaviour(et: EtFile, numbers: dict[str, int]) -> dict[str, Array]:
    """Slot, role, group, kind of collective and size of each node."""
    on_host = integers(et, "is_cpu_op", 0) != 0
    comm = np.isin(et.type, (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.MEM_LOAD,
                             NodeType.MEM_STORE))  # fmt: skip
    slot = np.where(on_host, run.HOST, np.where(comm, run.COMM, run.COMPUTE))
    slot[et.type == NodeType.COMM_RECV] = run.NO_SLOT
    kind = integers(et, "comm_type", -1)
    joined = (et.type == NodeType.COMM_COLL) & is_any(kind, JOINED)
    role = np.where(joined, run.JOINED, run.PLAIN)
    role[et.type == NodeType.COMM_SEND] = run.SEND
    role[et.type == NodeType.COMM_RECV] = run.RECEIVE
    partner = np.full(len(et.id), -1, np.int64)
    rows = np.flatnonzero(joined)
    partner[rows] = [numbers[name] for name in group_names(et, rows)]
    size = integers(et, "comm_size", -1)
    return {"slot": slot, "role": role, "partner": partner, "kind": kind, "size": size}


def _with_senders(ets: list[EtFile], bounds: Array, partner: Array) -> Array:
    """Return partners with those of receives: the first free send of the same ends, tag and size."""
    senders: dict[Any, deque[int]] = {}
    for kind in P2P:
        for rank, et in enumerate(ets):
            columns = (*p2p_ends(et, rank), integers(et, "comm_size", -1))
            rows = np.flatnonzero(et.type == kind)
            for row in rows[np.argsort(et.id[rows])].tolist():
                key = tuple(int(c[row]) for c in columns)
                if kind is NodeType.COMM_SEND:
                    senders.setdefault(key, deque()).append(row + int(bounds[rank]))
                elif senders.get(key):
                    partner[row + int(bounds[rank])] = senders[key].popleft()
    return partner
