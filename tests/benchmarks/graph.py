"""What the joined graph costs beside reading, and how both grow with the number of events.

One rank of the sample job with as many training steps as make about one and five million events,
read twice in one process, of which the second time counts. Usage:
``python tests/benchmarks/graph.py [MILLIONS…]``.
"""

import resource
import time
from pathlib import Path

from stages import each_size, timed

_STAGES = ("read", "join", "dependencies", "annotations", "graph of nodes", "graph of moments")


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
    whole = time.perf_counter() - start
    spent["read"] = whole - sum(spent.values())
    start = time.perf_counter()
    graph = trace.graph()
    spent["graph of nodes"] = time.perf_counter() - start
    start = time.perf_counter()
    moments = trace.endpoints()
    spent["graph of moments"] = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    events = sum(s.events for s in trace.meta.sources)
    return spent | {"events": events, "edges": len(graph.after) + len(moments.after), "MiB": peak}


def one(path: Path) -> None:
    """Print the stages of one file, compiled and in the file cache."""
    from chopper_interop import pipeline

    pipeline.read(path).graph()
    pipeline.read(path).endpoints()
    found = stages(path)
    events, edges, peak = (found.pop(name) for name in ("events", "edges", "MiB"))
    print(f"{events:,.0f} events, {edges:,.0f} edges, {peak:,.0f} MiB at most")
    built = sum(found.values()) - found["read"]
    for stage, spent in found.items():
        print(f"  {stage:18} {spent:6.2f} s  {1e6 * spent / events:6.2f} s a million")
    print(f"  all but reading / reading: {built / found['read']:.2f}")


if __name__ == "__main__":
    each_size(__file__, one)
