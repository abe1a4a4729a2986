"""Cost of the joined graph without reading, and how both grow with the number of events.

One rank of the sample job with as many training steps as make about one and five million events,
read twice in one process, of which the second time counts. Usage:
``python tests/benchmarks/graph.py [MILLIONS…]``.
"""

import resource
import time
from pathlib import Path

from stages import each_size, timed

_STAGES = ("read", "join", "dependencies", "annotations", "node graph", "endpoint graph")


def stages(path: Path) -> dict[str, float]:
    """Seconds of each stage."""
    from chopper_interop import pipeline
    from chopper_interop.annotate import stages as annotate_stages
    from chopper_interop.edges import inference
    from chopper_interop.joining import job

    spent = dict.fromkeys(_STAGES, 0.0)

    timed(spent, "join", job, "assemble")
    timed(spent, "dependencies", inference, "complete")
    timed(spent, "annotations", annotate_stages, "annotate")
    start = time.perf_counter()
    trace = pipeline.read(path)
    total = time.perf_counter() - start
    spent["read"] = total - sum(spent.values())
    start = time.perf_counter()
    graph = trace.graph()
    spent["node graph"] = time.perf_counter() - start
    start = time.perf_counter()
    endpoints = trace.endpoints()
    spent["endpoint graph"] = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    events = sum(s.events for s in trace.meta.sources)
    return spent | {"events": events, "edges": len(graph.after) + len(endpoints.after), "MiB": peak}


def one(path: Path) -> None:
    """Print the stages of one file, compiled and in the file cache."""
    from chopper_interop import pipeline

    pipeline.read(path).graph()
    pipeline.read(path).endpoints()
    result = stages(path)
    events, edges, peak = (result.pop(name) for name in ("events", "edges", "MiB"))
    print(f"{events:,.0f} events, {edges:,.0f} edges, {peak:,.0f} MiB at most")
    built = sum(result.values()) - result["read"]
    for stage, spent in result.items():
        print(f"  {stage:18} {spent:6.2f} s  {1e6 * spent / events:6.2f} s a million")
    print(f"  all but reading / reading: {built / result['read']:.2f}")


if __name__ == "__main__":
    each_size(__file__, one)
