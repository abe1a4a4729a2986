"""ETs of all ranks as a job that `run` runs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.arrays import gather
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
    from chopper_interop.arrays.types import Array
    from chopper_interop.converters.chakra.decode import EtFile


def job_of(ets: list[EtFile], groups: dict[str, list[int]]) -> run.Job:
    """Nodes of all ranks for a run; those of rank r have the numbers from ``bounds[r]`` on."""
    numbers = {name: k for k, name in enumerate(groups)}
    bounds = np.cumsum([0, *(len(et.id) for et in ets)])
    names = ("rank", "order", "slot", "role", "partner", "kind", "size")
    columns: dict[str, list[Array]] = {n: [] for n in names}
    sources, targets = [], []
    for rank, et in enumerate(ets):
        src, dst = dependencies(et)
        sources.append(src + bounds[rank])
        targets.append(dst + bounds[rank])
        order = np.empty(len(et.id), np.int64)
        order[np.argsort(et.id, kind="stable")] = np.arange(len(et.id))
        of_rank = (np.full(len(et.id), rank), order, *_behaviour(et, numbers))
        for name, column in zip(columns, of_rank, strict=True):
            columns[name].append(column)
    job_columns = {name: np.concatenate(columns.pop(name)) for name in names}
    job_columns["partner"] = _with_senders(ets, bounds, job_columns["partner"])
    src, dst = np.concatenate(sources), np.concatenate(targets)
    first, after = gather.group_values(src, dst, int(bounds[-1]))
    return run.Job(
        **job_columns,
        members=np.array([len(m) for m in groups.values()]),
        duration=np.maximum(np.concatenate([et.duration_us for et in ets]) * 1000, 1),
        first=first,
        after=after,
        waits=np.bincount(dst, minlength=int(bounds[-1])),
    )


def _behaviour(et: EtFile, numbers: dict[str, int]) -> tuple[Array, ...]:
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
    return slot, role, partner, kind, integers(et, "comm_size", -1)


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
