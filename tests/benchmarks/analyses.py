"""Cost of all analyses without reading, and of the critical path of millions of nodes.

One rank of the sample job with as many training steps as make about one and five million events.
Everything runs twice in one process, of which the second time counts. Usage:
``python tests/benchmarks/analyses.py [MILLIONS…]``.
"""

import resource
import time
from pathlib import Path

from stages import each_size


def stages(path: Path) -> dict[str, float]:
    """Seconds of reading, of the model and of each analysis; the model is made once for all."""
    from chopper_interop import pipeline, registry
    from chopper_interop.timing import model as timing

    start = time.perf_counter()
    trace = pipeline.read(path)
    spent = {"read": time.perf_counter() - start}
    start = time.perf_counter()
    timing.timing_of(trace)
    spent["timing"] = time.perf_counter() - start
    for name, function in registry.working_analyses().items():
        start = time.perf_counter()
        function(trace)
        spent[name] = time.perf_counter() - start
    return spent | {"nodes": trace.nodes.num_rows}


def one(path: Path) -> None:
    """Print the stages of one file, compiled and in the file cache."""
    stages(path)
    result = stages(path)
    nodes = result.pop("nodes")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{nodes:,.0f} nodes, {peak:,.0f} MiB at most")
    for stage, spent in result.items():
        print(f"  {stage:18} {spent:6.2f} s")
    read = result.pop("read")
    print(f"  all analyses / reading: {sum(result.values()) / read:.2f}")


if __name__ == "__main__":
    each_size(__file__, one)
