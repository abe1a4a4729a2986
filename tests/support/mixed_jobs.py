"""Random jobs of three threads and four streams, whose GPU's clock is off."""

from __future__ import annotations

import random
from typing import Any

from kineto_files import call, kernel, span

STREAMS = 4
"""Streams; the last one has communication."""
THREADS = (100, 101, 102)


def mixed_job(seed: int, operations: int = 300) -> list[dict[str, Any]]:
    """Events of a job: what the thread that is behind the others does next is drawn at random."""
    rng = random.Random(seed)  # noqa: S311 # no secret
    clock_us = round(rng.uniform(-500, 500), 3)
    at = {tid: rng.uniform(0, 50) for tid in THREADS}
    free = [0.0] * STREAMS
    events: list[dict[str, Any]] = []
    host_us, kernel_us = rng.choice([10, 40, 150]), rng.choice([2, 30, 200])

    def host(tid: int, name: str, us: float, number: int = 0) -> None:
        event = call(name, at[tid], us, number) if number else span("cpu_op", name, at[tid], us)
        events.append(event | {"tid": tid})
        at[tid] += us

    def launch(tid: int, number: int) -> int:
        stream = rng.randrange(STREAMS)
        start = max(free[stream] + rng.uniform(0.5, 2), at[tid] + rng.uniform(4, 8))
        name = "ncclDevKernel_Generic" if stream == STREAMS - 1 else rng.choice(["gemm", "add"])
        us = max(rng.expovariate(1 / kernel_us), 0.2)
        events.append(kernel(name, start + clock_us, us, number, stream=stream))
        events[-1]["tid"] = stream
        free[stream] = start + us
        return stream

    for number in range(1, operations):
        tid = min(at, key=lambda t: at[t])
        drawn = rng.random()
        if drawn < 0.55:
            launch(tid, number)
            host(tid, "hipLaunchKernel", rng.uniform(3, 7), number)
        elif drawn < 0.62:
            end = max(free)
            host(tid, "hipDeviceSynchronize", max(end + rng.uniform(2, 4) - at[tid], 1.5), number)
        elif drawn < 0.68:
            stream = launch(tid, number)
            host(tid, "hipMemcpyWithStream", free[stream] + rng.uniform(3, 5) - at[tid], number)
        elif drawn < 0.7:
            host(tid, "aten::sort", rng.uniform(500, 3000))
        else:
            host(tid, "aten::add", rng.expovariate(1 / host_us) + 0.5)
        at[tid] += rng.choice([0.2, 1, 5])
    return [e | {"ts": round(e["ts"] + 1000, 3), "dur": round(e["dur"], 3)} for e in events]
