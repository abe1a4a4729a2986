"""The timing model without what never changes: for many times of it under other lags.

A vertex with one edge into it comes a fixed time after the source of that edge. So it needs no
vertex of its own unless the lag of its edge varies, and most endpoints of hosts are left out::

    o --2--> a --3--> b --?--> c            "?" varies; a and b have one edge into them each
    o --------5 + ?----------> c            a = o + 2, b = o + 5
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit


class Ordered(Protocol):
    """A graph: `order` is topological, edges from vertex v lead to ``after[first[v]:first[v + 1]]``."""

    @property
    def order(self) -> Array:
        """Vertices in topological order."""

    @property
    def first(self) -> Array:
        """Position of each vertex' first edge."""

    @property
    def after(self) -> Array:
        """Target of each edge."""


class ReducedTiming:
    """A model of which few lags vary.

    Parameters
    ----------
    graph
        The complete graph.
    lag_ns, delay_ns
        Of its edges and vertices.
    release_ns
        Time of vertices to which no edge leads.
    varying
        Edges whose lag varies.
    vertices
        Of the complete graph: those whose times are asked for.
    """

    def __init__(  # a model
        self,
        graph: Ordered,
        lag_ns: Array,
        delay_ns: Array,
        release_ns: Array,
        varying: Array,
        vertices: Array,
    ) -> None:
        varies = np.zeros(len(graph.after), bool)
        varies[varying] = True
        vertex, offset, first, src, lag, edge_of, complete = _reduced(
            graph.order, graph.first, graph.after, lag_ns, delay_ns, varies
        )
        self._vertex, self._offset = vertex[vertices], offset[vertices]
        self._first, self._src, self._lag = first, src, lag
        self._edge = edge_of[varying]
        self._fixed = lag[self._edge] - lag_ns[varying]
        self._delay, self._release = delay_ns[complete], release_ns[complete]

    def retimed(self, lag_ns: Array) -> Array:
        """Time of the vertices, nanoseconds.

        Parameters
        ----------
        lag_ns
            Least time along the varying edges, in their order.
        """
        lag = self._lag.copy()
        lag[self._edge] = self._fixed + lag_ns
        at = _earliest(self._first, self._src, lag, self._delay, self._release)
        return at[self._vertex] + self._offset


@jit
def _reduced(
    order: Array, first: Array, after: Array, lag: Array, delay: Array, varies: Array
) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    """Merge each vertex with a single, fixed edge into it with the source of that edge.

    Compiled: whether a vertex stays, and how far it is from the one that it merges with, follows
    from its source, which the same loop has just been at.

    Returns
    -------
    vertex, offset
        For each vertex of the complete model, the one that stands for it and the time from there.
    starts, src, reduced_lag
        Reduced edges by target: those into vertex k are at ``starts[k]:starts[k + 1]``.
    edge_of
        For each edge of the complete model the reduced one; -1 of those that went.
    complete
        For each reduced vertex the one of the complete model.
    """
    n = len(delay)
    entering = np.zeros(n, np.int32)
    varying = np.zeros(n, np.bool_)
    for e in range(len(after)):
        entering[after[e]] += 1
        varying[after[e]] |= varies[e]
    vertex = np.full(n, -1, np.int32)
    offset = np.zeros(n, np.int64)
    complete = np.empty(n, np.int32)
    number = 0
    edges = 0
    for v in order:
        if entering[v] != 1 or varying[v]:
            vertex[v] = number
            complete[number] = v
            number += 1
            edges += entering[v]
        for e in range(first[v], first[v + 1]):
            w = after[e]
            if entering[w] == 1 and not varying[w]:
                vertex[w] = vertex[v]
                offset[w] = offset[v] + lag[e] + delay[w]
    starts = np.zeros(number + 1, np.int64)
    for k in range(number):
        starts[k + 1] = starts[k] + entering[complete[k]]
    free = starts[:-1].copy()
    src = np.empty(edges, np.int32)
    reduced_lag = np.empty(edges, np.int64)
    edge_of = np.full(len(after), -1, np.int64)
    for v in range(n):
        for e in range(first[v], first[v + 1]):
            w = after[e]
            if entering[w] != 1 or varying[w]:
                k = free[vertex[w]]
                free[vertex[w]] += 1
                src[k] = vertex[v]
                reduced_lag[k] = offset[v] + lag[e]
                edge_of[e] = k
    return vertex, offset, starts, src, reduced_lag, edge_of, complete[:number].copy()


@jit
def _earliest(first: Array, src: Array, lag: Array, delay: Array, release: Array) -> Array:
    """Time of each reduced vertex: as `loops.earliest_times`, from edges by target in order.

    Compiled: vertices stand in topological order, and each depends on those before it.
    """
    at = release.copy()
    for v in range(len(delay)):
        if first[v] < first[v + 1]:
            latest = at[src[first[v]]] + lag[first[v]]
            for e in range(first[v] + 1, first[v + 1]):
                latest = max(latest, at[src[e]] + lag[e])
            at[v] = latest + delay[v]
    return at
