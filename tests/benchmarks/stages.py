"""Shared by benchmarks: seconds of stages of a program, and sample jobs of several sizes."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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


def sample(folder: Path, millions: float) -> Path:
    """Kineto's file of a job of one rank."""
    from chopper_interop.demo import make_demo

    steps = round(_STEPS_OF_A_MILLION * millions)
    made = make_demo(
        folder / f"job{millions:g}", ranks=1, layers=16, steps=steps, telemetry=False,
        counter_steps=0, truth_kernels=False,
    )  # fmt: skip
    return made / "kineto"


def each_size(script: str, one: Callable[[Path], None]) -> None:
    """Each size in a process of its own, so that its memory is its own.

    Called by a script as its whole program: sizes in millions of events are its arguments, and with
    ``--file`` it is the process of one.
    """
    if sys.argv[1:2] == ["--file"]:
        one(Path(sys.argv[2]))
        return
    sizes = [float(text) for text in sys.argv[1:]] or [1.0, 5.0]
    with tempfile.TemporaryDirectory() as name:
        for millions in sizes:
            path = sample(Path(name), millions)
            subprocess.run([sys.executable, script, "--file", str(path)], check=True)
