"""Kinds and lanes of simulated nodes, from the types and names in the log alone.

The log does not distinguish host operations from kernels (both are of type COMP), but their names
do, as they are those of PyTorch's profiler. With the simulated ETs none of this is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.edges.communication import communicates
from chopper_interop.schemas.chakra import CAUSE_NAMES, NodeType
from chopper_interop.schemas.kinds import Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.chakra.astra_sim_log import SimulatedRun

_BY_TYPE = {
    NodeType.MEM_LOAD: Kind.MEMCPY,
    NodeType.MEM_STORE: Kind.MEMCPY,
    NodeType.COMM_SEND: Kind.COMM,
    NodeType.COMM_RECV: Kind.COMM,
    NodeType.COMM_COLL: Kind.COMM,
    NodeType.INVALID: Kind.OTHER,
    NodeType.METADATA: Kind.OTHER,
}
_BY_NAME: tuple[tuple[str, Kind], ...] = (
    (r"^COMM_(COLL|SEND|RECV)", Kind.COMM),
    (r"^MEM_(LOAD|STORE)", Kind.MEMCPY),
    (rf"^({'|'.join(CAUSE_NAMES.values())})$", Kind.HOST_GAP),
    (r"^(hip|cuda)[A-Z]", Kind.RUNTIME),
    (r"^(hsa_|cu[A-Z][a-z])", Kind.DRIVER),
    (r"^(ProfilerStep#|Optimizer\.|enumerate\(DataLoader|## )", Kind.ANNOTATION),
    (r"\.py\(\d+\): |^nn\.Module: |^<built-in ", Kind.PYTHON),
    (r"^(aten|prims?|_?c10d(_functional)?|autograd|torch|torchvision|fbgemm)::", Kind.CPU_OP),
    (r"^(nccl|gloo|mpi|ucc):\w|^record_param_comms$|^\w+Backward\d*$", Kind.CPU_OP),
    (r"^Memcpy ", Kind.MEMCPY),
    (r"^Memset ", Kind.MEMSET),
)
"""Patterns of names; the first that fits counts, and a name that fits none is a kernel's."""

_LANES: dict[Kind, tuple[LaneKind, int, str]] = {
    Kind.KERNEL: (LaneKind.STREAM, 0, "compute"),
    Kind.MEMSET: (LaneKind.STREAM, 0, "compute"),
    Kind.COMM: (LaneKind.STREAM, 1, "communication"),
    Kind.MEMCPY: (LaneKind.STREAM, 2, "memory"),
}
_HOST = (LaneKind.THREAD, 0, "host")
"""Lane of all other kinds. ASTRA-sim has a slot for each of these lanes on every rank."""


def kinds(run: SimulatedRun) -> Array:
    """Kind of each node."""
    texts = run.name.dictionary
    by_name = np.full(len(texts), int(Kind.KERNEL), np.uint8)
    for pattern, kind in reversed(_BY_NAME):
        fits = arrow.to_numpy(pc.match_substring_regex(texts, pattern)).astype(bool)
        by_name[fits] = int(kind)
    others = np.flatnonzero(by_name == Kind.KERNEL)
    is_comm = [communicates(texts[i].as_py()) for i in others.tolist()]
    by_name[others[np.array(is_comm, np.bool_)]] = int(Kind.COMM)
    node_kind: Array = by_name[arrow.to_numpy(run.name)]
    for node_type, kind in _BY_TYPE.items():
        node_kind[run.type == int(node_type)] = int(kind)
    return node_kind


def lanes(builder: TraceBuilder, run: SimulatedRun, kind: Array) -> Array:
    """Add a thread, and streams for computation, communication and copies; return nodes' lanes."""
    first, code = gather.distinct(run.rank, kind.astype(np.int64))
    rows = []
    for i in first.tolist():
        lane, number, name = _LANES.get(Kind(int(kind[i])), _HOST)
        device = -1 if lane is LaneKind.THREAD else 0
        rows.append(builder.lane(int(run.rank[i]), lane, number, name, device))
    return np.array(rows, np.int32)[code]
