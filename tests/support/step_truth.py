"""Truth of sample jobs by steps as analyses define them: from the end of the step before."""

from __future__ import annotations

from typing import Any


def following(steps: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Steps of truth.json with the microseconds before their ProfilerStep, in which GPUs are idle."""
    duration, idle = list(steps["duration_ns"]), list(steps["idle_ns"])
    for i, rank in enumerate(steps["rank"][1:], 1):
        if rank == steps["rank"][i - 1]:
            between = steps["start_ns"][i] - steps["end_ns"][i - 1]
            duration[i] += between
            idle[i] += between
    return steps | {"duration_ns": duration, "idle_ns": idle}
