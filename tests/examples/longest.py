"""How long the job would take if its hosts cost nothing: ``python longest.py RUN/``.

The longest chain of GPU work behind other GPU work, by streams, events and collectives.
"""

import sys

import numba
import numpy as np

import chopper_interop as ci


@numba.njit
def latest(order, first, after, lasts):
    """When each vertex is reached at the earliest, if edge e takes ``lasts[e]``."""
    at = np.zeros(len(order), np.int64)
    for v in order:
        for e in range(first[v], first[v + 1]):
            at[after[e]] = max(at[after[e]], at[v] + lasts[e])
    return at


def longest_ns(trace: ci.Trace) -> int:
    """Length of the longest chain, in nanoseconds."""
    graph = trace.moments(["stream", "event", "comm"])
    kinds = trace.to_pandas(columns=["kind"])["kind"]
    on_gpu = np.isin(kinds, ["kernel", "comm", "memcpy", "memset"])
    within = graph.subgraph(on_gpu[graph.node])
    own = within.node[within.src] == within.node[within.after]  # from start to end
    at = latest(within.order, within.first, within.after, np.where(own, within.gap_ns, 0))
    return int(at.max(initial=0))


if __name__ == "__main__":
    print(f"{longest_ns(ci.read(*sys.argv[1:])) / 1e6:,.3f} ms")
