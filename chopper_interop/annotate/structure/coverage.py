"""Share of a trace for which each of the columns of `structure` is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

_COLUMNS = ("iteration", "phase", "step_part", "layer", "module", "operation")


def coverage(trace: Trace) -> pa.Table:
    """Share of nodes and of GPU time for which each column is known, by rank.

    Returns
    -------
    pyarrow.Table
        A row for each rank and column: ``rank``, ``column``, ``node_share`` of all nodes,
        ``gpu_node_share`` of GPU work (kernels, communication, copies and fills), and
        ``gpu_time_share`` of the sum of its durations; null where a rank has none.
    """
    on_gpu = is_any(trace.array("kind"), GPU_WORK)
    dur = trace.array("dur")
    rows: list[dict[str, Any]] = []
    known_by_column = {column: trace.known(column) for column in _COLUMNS}
    for rank, rank_rows in trace.rank_rows.items():
        for column in _COLUMNS:
            known = known_by_column[column][rank_rows]
            gpu = on_gpu[rank_rows]
            rows.append(
                {
                    "rank": rank,
                    "column": column,
                    "node_share": _share(known, np.ones(len(known))),
                    "gpu_node_share": _share(known, gpu),
                    "gpu_time_share": _share(known, gpu * dur[rank_rows]),
                }
            )
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


_SCHEMA = pa.schema(
    [
        ("rank", pa.int32()),
        ("column", pa.string()),
        ("node_share", pa.float64()),
        ("gpu_node_share", pa.float64()),
        ("gpu_time_share", pa.float64()),
    ]
)


def _share(known: Array, weight: Array) -> float | None:
    total = float(np.sum(weight))
    return float(np.sum(weight[known])) / total if total else None
