"""Several ranks that are planned at once, each for itself: numpy's calls take as long for few nodes as for a thousand.

What orders nodes or looks them up by time does so among those of their rank; all else follows from lanes and edges, of
which no two ranks share any.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chopper_interop.arrays import Array, gather


@dataclass(frozen=True)
class NodeRanks:
    """Ranks of nodes.

    Parameters
    ----------
    count
        How many ranks there are.
    of_node
        Number of each node's rank.
    """

    count: int
    of_node: Array

    def by_time(self, at_ns: Array, rows: Array) -> Array:
        """Sort these rows by their times, rank after rank."""
        return rows[self._order(at_ns, self.of_node[rows])]

    def in_order(self, at_ns: Array) -> Array:
        """All nodes by their times, rank after rank."""
        return self._order(at_ns, self.of_node)

    def _order(self, at_ns: Array, rank: Array) -> Array:
        return np.argsort(at_ns, kind="stable") if self.count == 1 else np.lexsort((at_ns, rank))

    def last_until(self, rows: Array, start_ns: Array, rank: Array, at_ns: Array) -> Array:
        """Of these rows, which start then, the last of each rank that starts no later than a time; -1 if none does."""
        if self.count > 1:
            place = gather.preceding_rows(self.of_node[rows], start_ns, rank, at_ns)
            return np.append(rows, -1)[place]
        rows, start_ns = (
            column[np.argsort(start_ns, kind="stable")] for column in (rows, start_ns)
        )
        return np.append(rows, -1)[np.searchsorted(start_ns, at_ns, "right") - 1]

    def pairs(self, rows: Array) -> tuple[Array, Array]:
        """Rows and the next of each of them of the same rank."""
        together = self.of_node[rows[1:]] == self.of_node[rows[:-1]]
        return rows[:-1][together], rows[1:][together]

    def have(self, rows: Array) -> Array:
        """Mask of the ranks that have any of these rows."""
        mask = np.zeros(self.count, bool)
        mask[self.of_node[rows]] = True
        return mask

    def counts(self, rows: Array) -> Array:
        """Number of these rows that each rank has."""
        return np.bincount(self.of_node[rows], minlength=self.count)

    def largest(self, values: Array, rows: Array) -> Array:
        """Largest of the values of these rows of each rank, 0 if none is larger."""
        largest = np.zeros(self.count, np.int64)
        if self.count == 1:
            largest[0] = values[rows].max(initial=0)
        else:
            np.maximum.at(largest, self.of_node[rows], values[rows])
        return largest
