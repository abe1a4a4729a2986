"""Delays that belong to the edge that binds, and do not count where another one binds after a change.

The delay of an endpoint is what the edge that binds it does not explain. Most of it varies with what
the edge stands for: a launch takes a little longer than the shortest one to reach the GPU. If after
a change the work ahead on the stream ends later than the launch arrives, this no longer counts. Nor
does the time that a call took to return from a wait, if there is nothing to wait for any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind
from chopper_interop.timing.populations import linear_quantiles

if TYPE_CHECKING:
    from chopper_interop.timing.model import Timing

_VARYING = (EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.SYNC)
_FENCE = 1.5
"""Delays up to so many interquartile ranges above the upper quartile vary as usual (Tukey, Exploratory
Data Analysis, 1977); longer ones have a cause that was not recorded."""
_MAX_VARIATION_NS = 50_000
"""Longest delay that may be a variation. Chosen: the same as for least latencies of launches."""


def on_edges(timing: Timing, lag_ns: Array, delay_ns: Array) -> tuple[Array, Array]:
    """Lags and delays of a changed job, with usual delays that did not change as part of lags.

    Parameters
    ----------
    lag_ns, delay_ns
        Of each edge and each vertex, after the change.
    """
    lag, delay = lag_ns.copy(), delay_ns.copy()
    put_on_edges(timing, lag, delay)
    return lag, delay


def put_on_edges(timing: Timing, lag_ns: Array, delay_ns: Array) -> None:
    """Change lags and delays of a changed job as `on_edges`, in place."""
    varies = _variations(timing)
    varies = varies[delay_ns[varies] == timing.delay_ns[varies]]
    lag_ns[timing.binding[varies]] += delay_ns[varies]
    delay_ns[varies] = 0


def usual_gap_ns(timing: Timing) -> int:
    """Usual time between work of a stream and what follows behind it; 0 if no work waits for its stream alone."""
    binding = timing.binding[timing.binding >= 0]
    behind = binding[timing.graph.kind[binding] == EdgeKind.STREAM]
    if not behind.size:
        return 0
    return max(int(np.median(on_edges(timing, timing.lag_ns, timing.delay_ns)[0][behind])), 0)


def without_gaps(timing: Timing, work: Array, lag_ns: Array, delay_ns: Array) -> None:
    """Take the usual time behind the work before it from work of the mask, in lags and delays that are changed so."""
    graph = timing.graph
    start = np.zeros(len(graph), bool)
    start[2 * np.flatnonzero(work)] = True
    into = np.flatnonzero((graph.kind == EdgeKind.STREAM) & start[graph.after])
    lag_ns[into] = np.minimum(lag_ns[into], 0)
    varies = _variations(timing)
    delay_ns[varies[start[varies]]] = 0


def with_own_times(timing: Timing, lag_ns: Array) -> Array:
    """Changed lags of a model, with messages' changed own times in edges through unrecorded ranks to their ends.

    The time at which such a rank (`timing.unrecorded`) answers does not change; from then on a message takes its own
    time, the lag of its DURATION edge.
    """
    edges = timing.graph
    to_end = timing.cached("dependencies to ends", _dependencies_to_ends)
    if not to_end.size:
        return lag_ns
    lasting = np.flatnonzero(edges.kind == EdgeKind.DURATION)
    longer = np.zeros(timing.trace.nodes.num_rows, np.int64)
    longer[edges.src[lasting] // 2] = (lag_ns - timing.lag_ns)[lasting]
    lag = lag_ns.copy()
    lag[to_end] = np.maximum(lag[to_end] + longer[edges.after[to_end] // 2], 0)
    return lag


def _dependencies_to_ends(timing: Timing) -> Array:
    """Edges through unrecorded ranks to the ends of messages."""
    edges = timing.graph
    dependency = np.flatnonzero(edges.kind == EdgeKind.DEPENDENCY)
    after = edges.after[dependency]
    return dependency[(after % 2 == 1) & (after < timing.barriers.start)]


def _variations(timing: Timing) -> Array:
    """Vertices whose delay is a usual one; ETs ask for them for each of several changes."""
    return timing.cached("variations", _find_variations)


def _find_variations(timing: Timing) -> Array:
    """Vertices whose delay is a usual one behind an edge of the kind that binds them.

    Starts of GPU work, and ends of calls that waited.
    """
    trace = timing.trace
    starts = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    calls = np.unique(trace.array("dst", "edges")[trace.array("kind", "edges") == EdgeKind.SYNC])
    vertex = np.concatenate([2 * starts, 2 * calls[calls >= 0] + 1])
    vertex = vertex[timing.binding[vertex] >= 0]
    kind = timing.graph.kind[timing.binding[vertex]]
    delay = timing.delay_ns[vertex]
    population, count = timing.populations.at(vertex // 2), timing.populations.count
    chosen = np.zeros(len(vertex), bool)
    for edge_kind in _VARYING:
        of_kind = kind == edge_kind
        if of_kind.any():
            of, varying = population[of_kind], delay[of_kind]
            lower, upper = (linear_quantiles(of, varying, share, count) for share in (0.25, 0.75))
            limit = np.minimum(upper + _FENCE * (upper - lower), _MAX_VARIATION_NS)
            chosen |= of_kind & (delay > 0) & (delay <= limit[population])
    return vertex[chosen]
