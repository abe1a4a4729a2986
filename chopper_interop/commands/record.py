"""``chopper-record``: telemetry of every GPU while a program runs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from chopper_interop.commands import common, interrupts
from chopper_interop.errors import ChopperError, UsageError, one_line

if TYPE_CHECKING:
    import argparse

    from chopper_interop.recording.session import Recording

_OWN_FORMATS = {"recorder", "recording"}
_DESCRIPTION = """Run a program and record every GPU of this node meanwhile.

Start it once a node, in front of torchrun or the like. The folder is one that chopper-convert and
chopper-analyze read, together with the profiles that the program writes."""
_EXAMPLES = """examples:
  chopper-record -o RUN/ -- python train.py
  chopper-record -o RUN/ --rate 500 --torch -- torchrun --nproc-per-node 8 train.py
  chopper-record -o RUN/ --rocprof traces -- python train.py
"""


def run(args: argparse.Namespace) -> int:
    """Run ``chopper-record`` and return the exit status of the program."""
    from chopper_interop.io import outputs
    from chopper_interop.recording import host, preparation, program, session

    command = args.command
    if not command:
        raise UsageError("name the program to run", hint="chopper-record -o RUN/ -- prog args")
    program.require(command[0])
    folder = Path(args.output)
    outputs.require_folder(folder)
    outputs.require_writable(folder, is_folder=True)
    environment = preparation.torch_environment(args.torch, folder) if args.torch else {}
    if args.rocprof:
        command = preparation.rocprof_command(args.rocprof, folder, command)
    local_rank = next((os.environ[n] for n in host.LOCAL_RANK if os.environ.get(n)), "0")
    if local_rank != "0":  # another process of this node records it
        program.become(command, os.environ | environment)
    recording = session.record(command, environment, folder, args.rate, wake=args.wake, warn=_say)
    if not args.quiet:
        _show(recording, folder)
    for problem in recording.problems:
        _say(problem)
    return recording.status


_STATED_S = 1.0
"""Length of a recording from which its share of a processor is stated. Chosen: setting up takes 10 ms, 100 % of a shorter one."""


def _say(text: str) -> None:
    """Print a line; that nobody can read it changes neither the program nor its status."""
    with suppress(OSError):
        print(f"chopper-record: {one_line(text)}", file=sys.stderr)


def _show(recording: Recording, folder: Path) -> None:
    for sampled in recording.description["samplers"]:
        period = sampled["period_ns"]
        rate = sampled["achieved_hz"]
        reached = "too few to state a rate"
        if rate:
            reached = (
                f"{rate:g} of {sampled['rate_hz']:g} Hz reached, "
                f"95 % of periods up to {period['p95'] / 1e6:.1f} ms{_less_often(sampled)}"
            )
        sampled_from = f"{sampled['vendor']} GPUs" if recording.has_gpus else "the host"
        _say(f"{sampled['rows']} rows of {sampled_from}, {reached}")
    if recording.elapsed_s >= _STATED_S:
        _say(f"took {100 * recording.cpu_s / recording.elapsed_s:.1f} % of a processor")
    _say(_what_is_next(folder))


def _what_is_next(folder: Path) -> str:
    """Name the command that the folder is enough for, and the analyses that it supports."""
    place = shlex.quote(str(folder))
    try:
        from chopper_interop.commands import recorded_contents

        formats, analyses = recorded_contents.look_at(folder)
    except KeyboardInterrupt:
        interrupts.end()
        return f"next: chopper-analyze {place}; what it supports is not known: interrupted"
    except Exception as error:  # noqa: BLE001 # none changes the program's status
        reason = str(error) if isinstance(error, ChopperError | OSError) else type(error).__name__
        return f"next: chopper-analyze {place}; what it supports is not known: {reason}"
    if not formats:
        return f"nothing in {place} is of a format that is known"
    profiles = [name for name in formats if name not in _OWN_FORMATS]
    if profiles:
        supported = ", ".join(analyses) or "the summary alone"
        return f"next: chopper-analyze {place}; it holds {', '.join(profiles)} too, and supports {supported}"
    return f"next: {' '.join(['chopper-analyze', place, *analyses])}; more with profiles of the program in it"


def _less_often(sampled: dict[str, Any]) -> str:
    """Rates of what was not read at each tick, and what a reading takes."""
    shown = [
        f"{name} {call['achieved_hz']:.3g} Hz ({call['call_ns'] / 1e6:.2g} ms a reading)"
        for name, call in sampled["calls"].items()
        if call["less_often"]
    ]
    return f"; less often: {', '.join(shown)}" if shown else ""


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of ``chopper-record``."""
    from chopper_interop.recording.preparation import ROCPROF, TORCH

    parser = common.base_parser("chopper-record", _DESCRIPTION, _EXAMPLES)
    parser.usage = "chopper-record [-o DIR] [--rate HZ] [--torch [host]] [--rocprof WHAT] [--wake] -- PROG ARGS"
    parser.add_argument(
        "-o", "--output", default="recording", metavar="DIR", help="folder to write"
    )
    parser.add_argument(
        "--rate", type=float, default=100.0, metavar="HZ", help="samples a second (default: 100)"
    )
    parser.add_argument(
        "--torch",
        nargs="?",
        const="shapes",
        choices=TORCH,
        help="have PyTorch's profiler record shapes, wherever the program uses it; with `host` also write host "
        "execution traces into DIR, which can make steps several times as long",
    )
    parser.add_argument(
        "--rocprof",
        choices=ROCPROF,
        help="run the program under rocprofv3: traces of kernels, copies, HIP, RCCL and markers; or "
        "hardware counters, which takes several runs of the program",
    )
    parser.add_argument(
        "--wake", action="store_true", help="also read GPUs that are powered down, which wakes them"
    )
    parser.set_defaults(command=[])
    parser.error = partial(_refuse, parser.error)  # type: ignore[method-assign]
    return parser


def _refuse(refuse: Callable[[str], NoReturn], message: str) -> NoReturn:
    """End with a usage error, which says how the program is named if its name was taken for an option."""
    how = "; write -- in front of the program" if message.startswith("unrecognized") else ""
    refuse(message + how)


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split arguments at the first ``--`` into those of the recorder and the program with its own."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]
