"""Shared by benchmarks: seconds of stages of a program, and sample jobs of several sizes."""

import time
from pathlib import Path

_STEPS_OF_A_MILLION = 76


def timed(spent: dict[str, float], stage: str, owner: object, name: str) -> None:
    """Add the seconds of each call of a function to a stage, from now on."""
    function = getattr(owner, name)

    def measured(*args, **kwargs):
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[stage] += time.perf_counter() - start

    setattr(owner, name, measured)


def sample(folder: Path, millions: float, ranks: int = 1) -> Path:
    """Kineto's files of a job, of as many millions of events a rank."""
    from chopper_interop.demo import make_demo

    steps = round(_STEPS_OF_A_MILLION * millions)
    made = make_demo(
        folder / f"job{millions:g}-{ranks}", ranks=ranks, layers=16, steps=steps, telemetry=False,
        counter_steps=0, truth_kernels=False,
    )  # fmt: skip
    return made / "kineto"
