"""A plug-in for the traces of "Understanding Stragglers in Large Model Training" (OSDI 2025).

A row of such a trace is an operation of a worker: its type, start within the step and duration. The
dependencies are the paper's: program order on each of six streams, what a microbatch receives, computes
and sends, and what follows the last backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from chopper_interop.build import TraceBuilder
from chopper_interop.registry import Converter
from chopper_interop.schemas.kinds import Collective, EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import Meta, Rank

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

COLLECTIVES = {
    "params-all-gather": Collective.ALL_GATHER,
    "grads-reduce-scatter": Collective.REDUCE_SCATTER,
    "layernorm-grads-all-reduce": Collective.ALL_REDUCE,
    "embedding-grads-all-reduce": Collective.ALL_REDUCE,
    "separate-grads-all-reduce": Collective.ALL_REDUCE,
    "optimizer-clip-main-grad": Collective.ALL_REDUCE,
    "forward-send": Collective.SEND,
    "forward-recv": Collective.RECV,
    "backward-send": Collective.SEND,
    "backward-recv": Collective.RECV,
}
"""Types of operations that communicate; all others compute."""
_STREAMS = ("compute", "forward-send", "forward-recv", "backward-send", "backward-recv", "data")
_PASSES = ("forward", "backward")
_LAST = (
    "gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter",
    "optimizer-clip-main-grad", "optimizer",
)  # fmt: skip
"""Operations that follow the last backward pass of a step, in this order."""


def sniff(head: bytes) -> bool:
    """Return True for any Parquet file."""
    return head.startswith(b"PAR1")


def read(paths: list[Path]) -> Trace:
    """Read one trace; its steps follow one another, 100 ms apart."""
    (path,) = paths
    return trace_of(pq.read_table(path).to_pandas(), path.stem)


JOBS = Converter(name="straggler-jobs", description="operations of workers", sniff=sniff, read=read)


def trace_of(table: pd.DataFrame, name: str = "job") -> Trace:
    """Trace of operations, a row each as in the published traces."""
    ops = table.assign(optype=table["optype"].astype(str)).sort_values(
        ["step", "rank", "start_ts", "seq_id"], ignore_index=True
    )
    ops["ts"] = np.rint(ops["start_ts"].astype(float) * 1e9).astype(np.int64)
    ops["dur"] = np.rint(ops["duration"].astype(float) * 1e9).astype(np.int64)
    ends = (ops["ts"] + ops["dur"]).groupby(ops["step"]).max()
    begins = (ends + 100_000_000).cumsum().shift(fill_value=0)
    ops["ts"] += ops["step"].map(begins)
    ranks = ops.groupby("rank")[["dp_rank", "stage"]].first()
    builder = TraceBuilder(
        Meta(job=name, ranks=tuple(Rank(int(r), known_by="header") for r in ranks.index))
    )
    _add_nodes(builder, ops, ranks)
    for src, dst in _dependencies(ops):
        builder.edges(src.to_numpy(), dst.to_numpy(), EdgeKind.DEPENDENCY)
    return builder.finish()


def _add_nodes(builder: TraceBuilder, ops: pd.DataFrame, ranks: pd.DataFrame) -> None:
    """Add a node for each operation, in the order of the rows."""
    is_comm = ops["optype"].isin(COLLECTIVES)
    stream = ops["optype"].where(ops["optype"].isin(_STREAMS), "compute")
    stream = stream.mask(is_comm & ~ops["optype"].isin(_STREAMS), "data")
    lanes = {
        (rank, s): builder.lane(int(rank), LaneKind.STREAM, k, s, 0)
        for rank in ranks.index
        for k, s in enumerate(_STREAMS)
    }
    builder.nodes(
        kind=np.where(is_comm, Kind.COMM, Kind.KERNEL).astype(np.uint8),
        name=ops["optype"].to_numpy(),
        rank=ops["rank"].to_numpy(np.int32),
        lane=np.array([lanes[key] for key in zip(ops["rank"], stream, strict=True)], np.int32),
        ts=ops["ts"].to_numpy(),
        dur=ops["dur"].to_numpy(),
        iteration=ops["step"].to_numpy(np.int32),
        collective=pa.array(ops["optype"].map(COLLECTIVES), pa.string(), from_pandas=True),
        instance=pa.array(_instances(ops, ranks), pa.int32()),
        **_places(builder, ops, ranks),
    )


def _places(builder: TraceBuilder, ops: pd.DataFrame, ranks: pd.DataFrame) -> dict[str, Any]:
    """Process group and peer of each operation."""
    stages = int(ranks["stage"].max()) + 1
    group: dict[tuple[str, int], int] = {}
    for rank, (replica, stage) in ranks.iterrows():
        members = {
            "data": ranks.index[ranks["stage"] == stage],
            "embedding": ranks.index[
                (ranks["dp_rank"] == replica) & ranks["stage"].isin((0, stages - 1))
            ],
            "pipeline": ranks.index[ranks["dp_rank"] == replica],
            "all": ranks.index,
        }
        for axis, listed in members.items():
            name = f"{axis} {listed[0]}"
            group[axis, int(rank)] = builder.group(name, map(int, listed))
    axis = ops["optype"].map(
        {
            "params-all-gather": "data", "grads-reduce-scatter": "data",
            "separate-grads-all-reduce": "data", "embedding-grads-all-reduce": "embedding",
            "optimizer-clip-main-grad": "all",
            **{f"{p}-{way}": "pipeline" for p in _PASSES for way in ("send", "recv")},
        }
    )  # fmt: skip
    of = [group.get(key, -1) for key in zip(axis, ops["rank"], strict=True)]
    towards = ops["optype"].map(
        {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
    )
    by_place = {(d, s): r for r, (d, s) in ranks.iterrows()}
    other = ((ops["stage"] + towards) % stages).where(towards.notna())
    peer = [by_place.get(key, -1) for key in zip(ops["dp_rank"], other, strict=True)]
    return {
        name: pa.array(np.array(values, np.int32), mask=np.array(values) < 0)
        for name, values in (("group", of), ("peer", peer))
    }


def _instances(ops: pd.DataFrame, ranks: pd.DataFrame) -> pd.Series:
    """Number of the communication that each operation is a member of; null if of none."""
    stages = int(ranks["stage"].max()) + 1
    kind = ops["optype"]
    number = pd.Series(pd.NA, index=ops.index, dtype="Int64")
    first = 0
    for name, keys in {
        "params-all-gather": ["step", "stage", "seq_id"],
        "grads-reduce-scatter": ["step", "stage", "seq_id"],
        "separate-grads-all-reduce": ["step", "stage", "seq_id"],
        "embedding-grads-all-reduce": ["step", "dp_rank", "seq_id"],
        "optimizer-clip-main-grad": ["step", "seq_id"],
    }.items():
        codes = ops[kind == name].groupby(keys).ngroup()
        number[codes.index] = codes + first
        first += int(codes.max() + 1) if len(codes) else 0
    for one in _PASSES:
        step_to = 1 if one == "forward" else -1
        ends = ops[kind.isin((f"{one}-send", f"{one}-recv"))]
        sender = (ends["stage"] - step_to * ends["optype"].eq(f"{one}-recv")) % stages
        codes = ends.assign(sender=sender).groupby(["step", "dp_rank", "sender", "seq_id"]).ngroup()
        number[codes.index] = codes + first
        first += int(codes.max() + 1) if len(codes) else 0
    return number


def _dependencies(ops: pd.DataFrame) -> list[tuple[pd.Series, pd.Series]]:
    """Rows of what comes first, and of what depends on it."""
    worker = ["step", "rank"]
    row = ops.reset_index().rename(columns={"index": "row"})

    def of(*types: str) -> pd.DataFrame:
        return row[row["optype"].isin(types)]

    pairs = []

    def chain(part: pd.DataFrame, *order: str) -> None:
        part = part.sort_values([*worker, *order])
        before = part.groupby(worker)["row"].shift()
        has = before.notna()
        pairs.append((before[has].astype(np.int64), part["row"][has]))

    def join(a: pd.DataFrame, b: pd.DataFrame, *keys: str) -> None:
        both = a.merge(b, on=[*worker, *keys], suffixes=("", "_of_b"))
        pairs.append((both["row"], both["row_of_b"]))

    compute = [f"{one}-compute" for one in _PASSES]
    chain(of(*compute), "ts", "seq_id")
    chain(of("params-all-gather", "grads-reduce-scatter"), "ts", "seq_id")
    for one in _PASSES:
        passes, receives, sends = (of(f"{one}-{what}") for what in ("compute", "recv", "send"))
        chain(receives, "seq_id")
        chain(sends, "seq_id")
        join(receives, passes, "seq_id")
        join(passes, sends, "seq_id")
        join(passes.assign(seq_id=passes["seq_id"] + 1), receives, "seq_id")
    forward = of("forward-compute").sort_values("ts").groupby([*worker, "mc"]).head(1)
    join(
        of("params-all-gather").sort_values("seq_id").groupby([*worker, "mc"]).tail(1),
        forward,
        "mc",
    )
    last = of(*compute).sort_values("ts").groupby(worker).tail(1).assign(place=-1, seq_id=0)
    rest = of(*_LAST).assign(place=lambda part: part["optype"].map(_LAST.index))
    chain(pd.concat([last, rest]), "place", "seq_id")
    return pairs
