"""What the joined graph costs beside reading, and how both grow with the number of events.

One rank of the sample job with as many training steps as make about one and five million events,
read twice in one process, of which the second time counts. Usage:
``python tests/benchmarks/graph.py [MILLIONS…]``.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stages import timed

_STEPS_OF_A_MILLION = 76
_STAGES = ("read", "join", "dependencies", "annotations", "graph of nodes", "graph of moments")


def sample(folder: Path, millions: float) -> Path:
    """Kineto's file of a job of one rank."""
    from chopper_interop.demo import make_demo

    steps = round(_STEPS_OF_A_MILLION * millions)
    made = make_demo(
        folder / f"job{millions:g}", ranks=1, layers=16, steps=steps, telemetry=False,
        counter_steps=0, truth_kernels=False,
    )  # fmt: skip
    return made / "kineto"


def stages(path: Path) -> dict[str, float]:
    """Seconds of each stage."""
    from chopper_interop import annotate, dependencies, job, pipeline

    spent = dict.fromkeys(_STAGES, 0.0)

    timed(spent, "join", job, "assemble")
    timed(spent, "dependencies", dependencies, "complete")
    timed(spent, "annotations", annotate, "annotate")
    start = time.perf_counter()
    trace = pipeline.read(path)
    whole = time.perf_counter() - start
    spent["read"] = whole - sum(spent.values())
    start = time.perf_counter()
    graph = trace.graph()
    spent["graph of nodes"] = time.perf_counter() - start
    start = time.perf_counter()
    moments = trace.moments()
    spent["graph of moments"] = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    events = sum(s.events for s in trace.meta.sources)
    return spent | {"events": events, "edges": len(graph.after) + len(moments.after), "MiB": peak}


def one(path: Path) -> None:
    """Print the stages of one file, compiled and in the file cache."""
    from chopper_interop import pipeline

    pipeline.read(path).graph()
    pipeline.read(path).moments()
    found = stages(path)
    events, edges, peak = (found.pop(name) for name in ("events", "edges", "MiB"))
    print(f"{events:,.0f} events, {edges:,.0f} edges, {peak:,.0f} MiB at most")
    built = sum(found.values()) - found["read"]
    for stage, spent in found.items():
        print(f"  {stage:18} {spent:6.2f} s  {1e6 * spent / events:6.2f} s a million")
    print(f"  all but reading / reading: {built / found['read']:.2f}")


def main() -> None:
    """Each size in a process of its own, so that its memory is its own."""
    sizes = [float(text) for text in sys.argv[1:]] or [1.0, 5.0]
    with tempfile.TemporaryDirectory() as name:
        for millions in sizes:
            path = sample(Path(name), millions)
            subprocess.run([sys.executable, __file__, "--file", str(path)], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--file"]:
        one(Path(sys.argv[2]))
    else:
        main()
