"""Checks of the nodes of one rank: ids, dependencies, types and attributes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.converters.chakra.checks.values import integers
from chopper_interop.converters.chakra.decode import REAL_FIELDS, TEXT_FIELDS, EtFile
from chopper_interop.converters.chakra.edges import dependencies
from chopper_interop.schemas.chakra import NodeType

if TYPE_CHECKING:
    from chopper_interop.converters.chakra.checks.findings import Findings


_LAST_TICK_NS = 2**63 - 1
FEEDER_TYPES: dict[str, int] = {
    "is_cpu_op": 27, "comm_type": 9, "comm_size": 9, "comm_priority": 7, "comm_src": 7,
    "comm_dst": 7, "comm_tag": 7, "pg_name": 29, "num_ops": 9, "tensor_size": 13,
}  # fmt: skip
"""Attribute → field number of the value that MLCommons' feeder reads; anything else reads as 0."""
_NUMBERS = tuple(name for name in FEEDER_TYPES if name != "pg_name")


def check_nodes(name: str, et: EtFile, findings: Findings) -> None:
    """Check the nodes of one rank."""
    fault = partial(findings.add_nodes, name, et)
    if et.broken_at >= 0:
        findings.add(name, f"it breaks off at byte {et.broken_at}")
    if not len(et.id):
        findings.add(name, "it holds no nodes")
        return
    if not et.has_metadata:
        findings.add(name, "it has no GlobalMetadata: feeders lose its first node")
    elif b"\n" not in et.metadata and b"\x12" not in et.metadata:
        text = "its first message is no GlobalMetadata with a version: a node may be lost"
        findings.add(name, text, stops=False)
    fault(_repeated(et.id), "ids occur twice: the last one wins")
    for deps, first, kind in (
        (et.data, et.data_first, "data"),
        (et.ctrl, et.ctrl_first, "control"),
    ):
        owner = np.repeat(np.arange(len(et.id)), np.diff(first))
        fault(owner[~np.isin(deps, et.id)], f"{kind} dependencies on nodes that do not exist")
        fault(owner[deps == et.id[owner]], f"{kind} dependencies of nodes on themselves")
    fault(_in_cycles(et), "dependencies form cycles: these nodes are never run")
    fault(np.flatnonzero(et.type == NodeType.METADATA), "METADATA nodes, at which ASTRA-sim aborts")
    fault(
        np.flatnonzero((et.type == NodeType.INVALID) | (et.type > max(NodeType))),
        "nodes without a valid type, whose children are not run",
    )
    memory = np.isin(et.type, (NodeType.MEM_LOAD, NodeType.MEM_STORE))
    fault(
        np.flatnonzero(memory),
        "MEM_LOAD or MEM_STORE nodes, at which ASTRA-sim exits unless it is given a remote memory",
    )
    sized = integers(et, "tensor_size", -1) >= 0
    fault(np.flatnonzero(memory & ~sized), "MEM_LOAD or MEM_STORE nodes without tensor_size")
    if et.duration_us.astype(np.uint64).sum(dtype=np.float64) * 1000 > _LAST_TICK_NS:
        longest = np.argsort(et.duration_us.astype(np.uint64))[-1:]
        fault(longest, "durations of more than 2^63 ns in all, which simulators cannot count")
    _check_attributes(name, et, findings)


def _check_attributes(name: str, et: EtFile, findings: Findings) -> None:
    """Check the types of one rank's attributes."""
    fault = partial(findings.add_nodes, name, et)
    for attribute, expected in FEEDER_TYPES.items():
        nodes, fields, _ = et.attribute(attribute)
        usable = np.isin(fields, TEXT_FIELDS)
        if attribute in _NUMBERS:
            usable = ~usable & ~np.isin(fields, REAL_FIELDS)
        refused = ~usable | (fields % 2 == 0)  # the even fields are lists
        if attribute == "pg_name":  # of other nodes it is not read
            refused &= et.type[nodes] == NodeType.COMM_COLL
        fault(nodes[refused], f"attribute {attribute} has a type that the feeder refuses")
        read_as_0 = nodes[(fields != expected) & usable]
        text = f"attribute {attribute} has a type that MLCommons' feeder reads as 0"
        fault(read_as_0, text, stops=False)
    has_side = np.zeros(len(et.id), bool)
    has_side[et.attribute("is_cpu_op")[0]] = True
    text = "nodes without is_cpu_op are taken as GPU work"
    fault(np.flatnonzero(~has_side), text, stops=False)


def _repeated(ids: Array) -> Array:
    """Rows with an id that an earlier row has."""
    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(np.diff(ids[order]) == 0) + 1
    return order[same]


def _in_cycles(et: EtFile) -> Array:
    """Rows of the nodes on cycles of dependencies or behind one."""
    src, dst = dependencies(et)
    return np.flatnonzero(gather.blocked_by_cycles(*gather.group_values(src, dst, len(et.id))))
