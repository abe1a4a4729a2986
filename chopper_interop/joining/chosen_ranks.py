"""A job's trace with some of its ranks alone, as if no others had been profiled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import number_ranges
from chopper_interop.arrays import Array, arrow
from chopper_interop.errors import UsageError
from chopper_interop.issues import Fault
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa


RANKS_LEFT_OUT = Fault.info(
    "ranks-left-out",
    "Ranks that were not asked for were left out; collectives meet those that remain alone.",
)


def select(trace: Trace, ranks: list[int]) -> Trace:
    """Select the nodes, lanes, series and samples of some ranks, and those of no rank.

    Parameters
    ----------
    trace
        A trace of a job.
    ranks
        Ranks that stay, ascending.

    Raises
    ------
    UsageError
        The trace lacks one of them.
    """
    if missing := [rank for rank in ranks if rank not in trace.ranks]:
        hint = f"it has {number_ranges.describe(trace.ranks)}"
        raise UsageError(f"the job has no rank {missing[0]}", hint=hint)
    if trace.ranks == ranks:
        return trace
    trace = trace.select_ranks(ranks)
    lanes, new_lane = _without_others(trace.lanes, ranks)
    series, new_series = _without_others(trace.series, ranks)
    samples = arrow.take(trace.samples, new_series[trace.array("series", "samples")] >= 0)
    return replace(
        trace,
        nodes=_renumbered(trace.nodes, "lane", new_lane),
        lanes=lanes,
        series=series,
        samples=_renumbered(samples, "series", new_series),
    ).with_meta(ranks=tuple(rank for rank in trace.meta.ranks if rank.rank in ranks))


def _without_others(table: pa.Table, ranks: list[int]) -> tuple[pa.Table, Array]:
    """Rows of these ranks and of none, and the new number of each row; -1 of those that are dropped."""
    rank = arrow.to_numpy(table["rank"])
    keep = np.isin(rank, ranks) | (rank < 0)
    number = np.where(keep, np.cumsum(keep, dtype=np.int32) - 1, -1).astype(np.int32)
    return arrow.take(table, keep), number


def _renumbered(table: pa.Table, column: str, new: Array) -> pa.Table:
    return arrow.replace_column(table, column, new[arrow.to_numpy(table[column])])
