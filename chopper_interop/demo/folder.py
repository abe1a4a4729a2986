"""The demo's folder: simulate, write next to the goal, and put everything in place at the end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from chopper_interop.demo import schedule
from chopper_interop.demo.fsdp_step import FsdpStep
from chopper_interop.demo.groups import world
from chopper_interop.demo.job import DemoJob
from chopper_interop.demo.kineto_files import write_kineto
from chopper_interop.demo.pipeline_step import StageStep
from chopper_interop.demo.rocprof_files import write_rocprof
from chopper_interop.demo.tables import make_tables
from chopper_interop.demo.telemetry_files import write_telemetry
from chopper_interop.demo.truth import FORMAT, truth
from chopper_interop.errors import UsageError
from chopper_interop.io import outputs

if TYPE_CHECKING:
    from chopper_interop.demo.parameters import DemoParameters
    from chopper_interop.demo.program import Program

_MAX_WORKERS = 8
"""Chosen: as many as the node has GPUs; a rank is written by one."""
_TRUTH = "truth.json"

_README = """\
A synthetic training job: {layers} Llama layers {how} on {ranks} MI300X GPUs, {steps} steps,
as PyTorch (kineto/){tools} would have recorded it. No GPU was involved.

    chopper-convert DIR -o job.pftrace -o et/

reads everything in this folder DIR as one job and writes it for Perfetto and for simulators.
truth.json says what is true of the job; `python -m pydoc chopper_interop.demo` explains it.
"""


def simulate_job(parameters: DemoParameters) -> DemoJob:
    """Run the job, and once more at the highest clock."""
    programs = training_step(parameters)
    tables = make_tables(programs)
    timeline, clock = schedule.simulate(parameters, tables)
    ideal = schedule.simulate_ideal(parameters, tables, clock)
    return DemoJob(parameters, programs, tables, timeline, ideal, clock)


def write_folder(parameters: DemoParameters, directory: str | os.PathLike[str]) -> Path:
    """Simulate a job and write its folder; an earlier demo there is replaced at the very end."""
    goal = Path(directory)
    earlier = _earlier(goal)
    with outputs.folder(goal, owns=lambda there: there.name in earlier) as partial:
        _write(simulate_job(parameters), partial)
    return goal


def _earlier(goal: Path) -> set[str]:
    """Names that an earlier demo put into the folder; an error if anything else would be lost."""
    if not goal.exists() or (goal.is_dir() and not any(goal.iterdir())):
        return set()
    try:
        contents = msgspec.json.decode((goal / _TRUTH).read_bytes(), type=_Contents)
    except (OSError, msgspec.MsgspecError):
        contents = _Contents()
    if contents.format != FORMAT:
        raise UsageError(f"{goal} exists and is neither empty nor an earlier demo")
    tops = {Path(name).parts[0] for name in contents.files}
    for file in [f for top in tops for f in (goal / top).rglob("*") if f.is_file()]:
        if file.relative_to(goal).as_posix() not in contents.files:
            raise UsageError(
                f"{file} is not of the demo whose folder would be replaced",
                hint="move it, or make the demo elsewhere",
            )
    return {*tops, _TRUTH}


class _Contents(msgspec.Struct):
    """Entries of `_TRUTH` on its own format and on the files next to it."""

    format: str = ""
    files: set[str] = set()


def _write(job: DemoJob, folder: Path) -> None:
    p, workers = job.parameters, min(_MAX_WORKERS, os.cpu_count() or 1)
    write_kineto(job, folder / "kineto", workers=workers)
    if p.counter_steps:
        write_rocprof(job, folder / "rocprof", workers=workers)
    if p.telemetry:
        write_telemetry(job, folder / "telemetry")
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
        how=f"in a pipeline of {p.pipeline} stages" if p.pipeline else "under FSDP2",
        ranks=p.ranks,
        steps=p.steps,
        tools="".join(f", {name}" for name in tools),
    )
    (folder / "README.txt").write_text(text, encoding="utf-8")
    files = sorted(f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file())
    (folder / _TRUTH).write_bytes(_encode(truth(job) | {"files": files}))


def _encode(content: dict[str, Any]) -> bytes:
    """JSON with one line for each entry of the top."""
    lines = (
        msgspec.json.encode(key) + b":" + msgspec.json.encode(value)
        for key, value in content.items()
    )
    return b"{" + b",\n".join(lines) + b"}\n"


def training_step(parameters: DemoParameters) -> tuple[Program, ...]:
    """Programs of one step by rank; ranks that do the same share one."""
    if not parameters.pipeline:
        return (FsdpStep(parameters, world(parameters.ranks)).write(),) * parameters.ranks
    return tuple(StageStep(parameters, rank).write() for rank in range(parameters.ranks))
