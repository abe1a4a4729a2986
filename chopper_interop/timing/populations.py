"""Populations of which the timing model takes statistics: all nodes of a job together, or those of each rank.

What a launch takes at least is a fact of a whole job where all of it is looked at, and of a rank where that is a job of
its own, as for its ET. Of many small ranks the models of all are built at once, and a statistic is one value for each::

    rank           0  0  0  1  1  2
    of_node        0  0  0  1  1  2       of a job: 0  0  0  0  0  0, in no memory
    a quantile     q0       q1    q2                q
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.sorted_groups import sorted_groups
from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Populations:
    """Population of each node.

    Parameters
    ----------
    count
        How many there are.
    of_node
        Number of each node's population.
    """

    count: int
    of_node: Array

    def at(self, rows: Array) -> Array:
        """Population of the nodes in these rows."""
        if self.count == 1:
            return np.broadcast_to(np.int32(0), len(rows))
        return self.of_node[rows]

    def keys(self, rows: Array, codes: Array, n: int) -> Array:
        """Numbers of population and code, of which there are n, of the nodes in these rows."""
        return codes if self.count == 1 else self.at(rows).astype(np.int64) * n + codes

    def of_rows(self, rows: slice) -> Populations:
        """Populations of a part of the nodes."""
        return Populations(self.count, self.of_node[rows])


def populations(trace: Trace, *, each_rank: bool) -> Populations:
    """Return the populations of a trace: its ranks, or all nodes together."""
    ranks = trace.rank_rows.values() if each_rank else ()
    if len(ranks) < 2:  # noqa: PLR2004
        return Populations(1, np.broadcast_to(np.int32(0), trace.nodes.num_rows))
    sizes = [rows.stop - rows.start for rows in ranks]
    return Populations(len(sizes), np.repeat(np.arange(len(sizes), dtype=np.int32), sizes))


def quantiles(
    population: Array, values: Array, share: float, count: int, *, floor: bool = True
) -> Array:
    """Quantile of each of so many populations that is one of its values, the lower of two; 0 of none.

    With `floor` only values from 0 on count.
    """
    if count > 1:
        return sorted_groups([(population, values)], count).quantile(share, floor=floor)
    chosen = values[values >= 0] if floor else values
    if not chosen.size:
        return np.zeros(1, np.int64)
    nth = int(share * (len(chosen) - 1))
    return np.partition(chosen, nth)[nth : nth + 1].astype(np.int64)


def linear_quantiles(population: Array, values: Array, share: float, count: int) -> Array:
    """Quantile of each of so many populations between its two values nearest to it, as `numpy.quantile`; 0 of none."""
    if count == 1:
        return np.full(1, np.quantile(values, share) if len(values) else 0.0)
    return sorted_groups([(population, values)], count).linear_quantile(share)
