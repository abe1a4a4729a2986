"""The demo's folder: simulate, write beside the goal, and put everything in place at the end."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from chopper_interop.demo import schedule
from chopper_interop.demo.kineto_files import write_kineto
from chopper_interop.demo.rocprof_files import write_rocprof
from chopper_interop.demo.telemetry_files import write_telemetry
from chopper_interop.demo.truth import Job, truth
from chopper_interop.demo.workload import training_step
from chopper_interop.errors import UsageError, WriteError

if TYPE_CHECKING:
    from chopper_interop.demo.parameters import DemoParameters

_MOST_WORKERS = 8
_FORMAT = b'"format":"chopper-interop demo"'

_README = """\
A synthetic training job: {layers} Llama layers under FSDP2 on {ranks} MI300X GPUs, {steps} steps,
as PyTorch (kineto/){tools} would have recorded it. No GPU was involved.

    chopper-convert DIR -o job.pftrace -o et/

reads everything in this folder DIR as one job and writes it for Perfetto and for simulators.
truth.json says what is true of the job; `python -m pydoc chopper_interop.demo` explains it.
"""


def simulate_job(parameters: DemoParameters) -> Job:
    """Run the job, and once more at the highest clock."""
    program = training_step(parameters)
    tables = schedule.make_tables(program)
    timeline, clock = schedule.simulate(parameters, tables)
    ideal = schedule.simulate_ideal(parameters, tables, clock)
    return Job(parameters, program, tables, timeline, ideal, clock)


def write_folder(parameters: DemoParameters, directory: str | os.PathLike[str]) -> Path:
    """Simulate a job and write its folder; an earlier demo there is replaced at the very end."""
    goal = Path(directory)
    _refuse_foreign(goal)
    partial = goal.parent / f".{goal.name}.{os.getpid()}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write(simulate_job(parameters), partial)
        _replace(goal, partial)
    except OSError as error:
        raise WriteError(str(error), path=goal) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return goal


def _refuse_foreign(goal: Path) -> None:
    """Refuse to write over anything but an empty folder or an earlier demo."""
    if not goal.exists() or (goal.is_dir() and not any(goal.iterdir())):
        return
    try:
        with (goal / "truth.json").open("rb") as file:
            earlier = _FORMAT in file.read(200)
    except OSError:
        earlier = False
    if not earlier:
        raise UsageError(f"{goal} exists and is neither empty nor an earlier demo")


def _replace(goal: Path, partial: Path) -> None:
    """Put the finished folder in place of what is there."""
    old = partial.with_suffix(".old")
    if goal.exists():
        goal.rename(old)
    partial.rename(goal)
    shutil.rmtree(old, ignore_errors=True)


def _write(job: Job, folder: Path) -> None:
    p, workers = job.parameters, min(_MOST_WORKERS, os.cpu_count() or 1)
    write_kineto(job, folder / "kineto", workers=workers)
    if p.counter_steps:
        write_rocprof(job, folder / "rocprof", workers=workers)
    if p.telemetry:
        write_telemetry(job, folder / "telemetry")
    (folder / "truth.json").write_bytes(_encode(truth(job)))
    tools = [
        name
        for name, there in (
            ("rocprofv3 (rocprof/)", p.counter_steps),
            ("amd-smi (telemetry/)", p.telemetry),
        )
        if there
    ]
    text = _README.format(
        layers=p.layers,
        ranks=p.ranks,
        steps=p.steps,
        tools="".join(f", {name}" for name in tools),
    )
    (folder / "README.txt").write_text(text, encoding="utf-8")


def _encode(content: dict[str, Any]) -> bytes:
    """JSON with one line for each entry of the top."""
    lines = (
        msgspec.json.encode(key) + b":" + msgspec.json.encode(value)
        for key, value in content.items()
    )
    return b"{" + b",\n".join(lines) + b"}\n"
