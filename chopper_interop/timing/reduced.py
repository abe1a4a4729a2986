"""The timing model without what never changes: for timing it anew many times under other lags.

A moment with one edge into it comes when that one's source has come, and a fixed time later. So it
needs no vertex of its own, unless the lag of its edge varies: most moments of hosts go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.timing.model import Timing


class Reduced:
    """A model of which few lags vary.

    Parameters
    ----------
    timing
        The whole model.
    varying
        Edges whose lag varies.
    """

    def __init__(self, timing: Timing, varying: Array) -> None:
        graph = timing.graph
        varies = np.zeros(len(graph.after), bool)
        varies[varying] = True
        self._place, self._offset, first, src, lag, at_edge, kept = _reduced(
            graph.order, graph.first, graph.after, timing.lag_ns, timing.delay_ns, varies
        )
        self._first, self._src, self._lag = first, src, lag
        self._at_edge = at_edge[varying]
        self._fixed = lag[self._at_edge] - timing.lag_ns[varying]
        self._delay, self._release = timing.delay_ns[kept], timing.at_ns[kept]

    def retimed(self, lag_ns: Array, moments: Array) -> Array:
        """When these moments would be.

        Parameters
        ----------
        lag_ns
            Least time along the varying edges, in their order.
        moments
            Vertices of the whole model.
        """
        lag = self._lag.copy()
        lag[self._at_edge] = self._fixed + lag_ns
        at = _earliest(self._first, self._src, lag, self._delay, self._release)
        return at[self._place[moments]] + self._offset[moments]


@jit
def _reduced(
    order: Array, first: Array, after: Array, lag: Array, delay: Array, varies: Array
) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    n = len(delay)
    entering = np.zeros(n, np.int32)
    varying = np.zeros(n, np.bool_)
    for e in range(len(after)):
        entering[after[e]] += 1
        varying[after[e]] |= varies[e]
    place = np.full(n, -1, np.int32)
    offset = np.zeros(n, np.int64)
    kept = np.empty(n, np.int32)
    number = 0
    edges = 0
    for v in order:
        if entering[v] != 1 or varying[v]:
            place[v] = number
            kept[number] = v
            number += 1
            edges += entering[v]
        for e in range(first[v], first[v + 1]):
            w = after[e]
            if entering[w] == 1 and not varying[w]:
                place[w] = place[v]
                offset[w] = offset[v] + lag[e] + delay[w]
    starts = np.zeros(number + 1, np.int64)
    for k in range(number):
        starts[k + 1] = starts[k] + entering[kept[k]]
    free = starts[:-1].copy()
    src = np.empty(edges, np.int32)
    least = np.empty(edges, np.int64)
    at_edge = np.full(len(after), -1, np.int64)
    for v in range(n):
        for e in range(first[v], first[v + 1]):
            w = after[e]
            if entering[w] != 1 or varying[w]:
                k = free[place[w]]
                free[place[w]] += 1
                src[k] = place[v]
                least[k] = offset[v] + lag[e]
                at_edge[e] = k
    return place, offset, starts, src, least, at_edge, kept[:number].copy()


@jit
def _earliest(first: Array, src: Array, lag: Array, delay: Array, release: Array) -> Array:
    at = release.copy()
    for v in range(len(delay)):
        if first[v] < first[v + 1]:
            latest = at[src[first[v]]] + lag[first[v]]
            for e in range(first[v] + 1, first[v + 1]):
                latest = max(latest, at[src[e]] + lag[e])
            at[v] = latest + delay[v]
    return at
