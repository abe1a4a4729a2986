"""Print how long the job would take if host work took no time: ``python longest.py RUN/``.

This is the longest chain of dependent GPU work, by streams, events and collectives.
"""

import sys

import numba
import numpy as np

import chopper_interop as ci


@numba.njit
def earliest_times(order, first, after, edge_ns):
    """Return the earliest time of each vertex if edge e takes ``edge_ns[e]``.

    Compiled, as it visits every edge; `order` is topological, so one pass is enough.
    """
    at = np.zeros(len(order), np.int64)
    for v in order:
        for e in range(first[v], first[v + 1]):
            at[after[e]] = max(at[after[e]], at[v] + edge_ns[e])
    return at


def longest_ns(trace: ci.Trace) -> int:
    """Return the length of the longest chain, in nanoseconds."""
    graph = trace.endpoints(["stream", "event", "comm"])
    kinds = trace.to_pandas(columns=["kind"])["kind"]
    on_gpu = np.isin(kinds, ["kernel", "comm", "memcpy", "memset"])
    part = graph.subgraph(on_gpu[graph.node])
    is_duration = part.node[part.src] == part.node[part.after]  # from start to end of a node
    edge_ns = np.where(is_duration, part.gap_ns, 0)
    at = earliest_times(part.order, part.first, part.after, edge_ns)
    return int(at.max(initial=0))


if __name__ == "__main__":
    print(f"{longest_ns(ci.read(*sys.argv[1:])) / 1e6:,.3f} ms")
