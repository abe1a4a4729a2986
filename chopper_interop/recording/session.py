"""A recording: samplers run while the program does, and a file states what was recorded and how well."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from chopper_interop.errors import UsageError, WriteError
from chopper_interop.recording import program
from chopper_interop.recording.amd import AmdGpus
from chopper_interop.recording.gpus import SLOW_S, Gpus, NoAnswerError, answer, quiet_stdout
from chopper_interop.recording.host import Host, HostAlone, name
from chopper_interop.recording.nvidia import NvidiaGpus
from chopper_interop.recording.sampler import Sampler, clock_offsets, without_waiting

VENDORS: dict[str, tuple[Callable[[], Gpus], str]] = {
    "amd": (AmdGpus, "pip install 'chopper-interop[amdsmi]', or use that of ROCm"),
    "nvidia": (NvidiaGpus, "pip install 'chopper-interop[nvml]'"),
}
"""Vendor → its GPUs, and how to get its library."""
MIN_HZ, MAX_HZ = 0.01, 1000.0
"""Rates that can be asked for. Drivers of AMD keep a reading for a millisecond."""
FORMAT = "chopper_recording"
"""Key of the version of the file that describes a recording."""


@dataclass
class Recording:
    """Summary of what was recorded, for the user and for the file that describes it."""

    status: int = 0
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    """Processor time of the recorder itself."""
    description: dict[str, Any] = field(default_factory=dict)
    announced: list[str] = field(default_factory=list)
    """Missing parts that were known before the program started."""

    @property
    def has_gpus(self) -> bool:
        """True if a GPU was recorded, not the host alone."""
        return bool(self.description["gpus"])

    @property
    def problems(self) -> list[str]:
        """Missing parts of the recording that were not known before the program started, one line each."""
        return [p for p in self.description["problems"] if p not in self.announced]


def open_gpus(unavailable: dict[str, BaseException]) -> list[Gpus]:
    """Load the libraries of all vendors that are there; `unavailable` gets the reasons of the others."""
    opened = []
    for vendor, (load, _) in VENDORS.items():
        try:
            opened.append(_open(load))
        except (Exception, SystemExit) as error:  # noqa: BLE001, PERF203 # libraries raise anything
            unavailable[vendor] = error
    return opened


def _open(load: Callable[[], Gpus]) -> Gpus:
    """Load a library; `LookupError` if it lists no GPU, else what it raises itself."""
    gpus = answer(load)
    if not answer(partial(gpus.facts, 0)):
        answer(gpus.close)
        raise LookupError("the library lists none")
    return gpus


def _reason(error: BaseException) -> str:
    """Reason why a library cannot be used, in one line; amdsmi raises a KeyError of ROCm's library that it lacks."""
    if type(error) in (LookupError, NoAnswerError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed"
    missing = str(error.args[0]) if isinstance(error, KeyError) and error.args else ""
    if missing.endswith(".so"):
        return f"{missing} is not there, which comes with ROCm"
    return f"{type(error).__name__}: {error}".splitlines()[0]


def record(
    command: Sequence[str],
    environment: dict[str, str],
    folder: Path,
    rate_hz: float = 100.0,
    *,
    wake: bool = False,
    warn: Callable[[str], None] = lambda _: None,
) -> Recording:
    """Run a program and sample every GPU of the node meanwhile; where none can be read, the host alone.

    Parameters
    ----------
    command, environment
        The program and its arguments; variables in addition to those of this process.
    folder
        Folder to write to: ``telemetry-HOST-VENDOR.csv``, and ``recording-HOST.json``.
    rate_hz
        Rows a second and GPU.
    wake
        Also read GPUs that are powered down.
    warn
        Called before the program starts with what will not be recorded.

    Returns
    -------
    Recording
        With the exit status of the program.

    Raises
    ------
    UsageError
        The rate is out of range, or the program cannot be started.
    WriteError
        The folder cannot be written. The program was not started.
    """
    if not MIN_HZ <= rate_hz <= MAX_HZ:
        raise UsageError(f"--rate {rate_hz:g}: give {MIN_HZ:g} to {MAX_HZ:g} samples a second")
    with quiet_stdout() as stdout:
        unavailable: dict[str, BaseException] = {}
        host = Host()
        samplers = _samplers(open_gpus(unavailable), unavailable, folder, rate_hz, host, wake=wake)
        result = Recording(announced=_missing(unavailable, any_gpu=bool(samplers), warn=warn))
        if not samplers:
            slow_hz = min(rate_hz, 1 / SLOW_S)
            samplers = _samplers([HostAlone(host)], unavailable, folder, slow_hz, host)
        if _described_in(folder).exists():
            warn(f"{folder} has a recording of this host, which is replaced")
        begin = clock_offsets()
        started_ns, cpu_s = time.time_ns(), time.process_time()
        with program.Program() as running:
            try:
                for sampler in samplers:
                    sampler.start()
                result.status = running.run(command, os.environ | environment, host.follow, stdout)
            finally:
                for sampler in samplers:
                    sampler.stop()
            result.elapsed_s = (time.time_ns() - started_ns) / 1e9
            result.cpu_s = time.process_time() - cpu_s
            result.description = _description(result, samplers, host, begin, started_ns)
            result.description["problems"] += result.announced
            _write(folder, result.description)
    return result


def _missing(
    unavailable: dict[str, BaseException], *, any_gpu: bool, warn: Callable[[str], None]
) -> list[str]:
    """Say which GPUs are not recorded: all, or those of libraries that are there but do not answer."""
    if not any_gpu:
        reasons = "; ".join(f"{vendor}: {_reason(why)}" for vendor, why in unavailable.items())
        ways = "; ".join(
            f"for {vendor} {VENDORS[vendor][1]}"
            for vendor, why in unavailable.items()
            if isinstance(why, ModuleNotFoundError)
        )
        missing = f"no GPU is recorded, only the host: {reasons}"
        warn(f"{missing} ({ways})" if ways else missing)
        return [missing]
    silent = [
        f"no GPU of {vendor} is recorded: {why}"
        for vendor, why in unavailable.items()
        if isinstance(why, NoAnswerError)
    ]
    for missing in silent:
        warn(missing)
    return silent


def _samplers(
    opened: list[Gpus],
    unavailable: dict[str, BaseException],
    folder: Path,
    rate_hz: float,
    host: Host,
    *,
    wake: bool = False,
) -> list[Sampler]:
    """Start the files of all vendors whose libraries answer; `unavailable` gets the others."""
    samplers: list[Sampler] = []
    first = 0
    try:
        folder.mkdir(exist_ok=True)
        for gpus in opened:
            path = folder / f"telemetry-{name()}-{gpus.vendor}.csv"
            is_with_gpu = not samplers and gpus.vendor != HostAlone.vendor
            extra = host.read if is_with_gpu else dict  # the host's values stand with the first GPU
            try:
                facts = answer(partial(gpus.facts, first))
                samplers.append(Sampler(gpus, facts, path, rate_hz, wake, extra))
            except NoAnswerError as error:
                unavailable[gpus.vendor] = error
                continue
            first += len(facts)
    except OSError as error:
        for sampler in samplers:
            sampler.discard()
        raise WriteError(str(error.strerror), path=error.filename or folder) from error
    return samplers


def _description(
    result: Recording, samplers: list[Sampler], host: Host, begin: dict[str, int], started_ns: int
) -> dict[str, Any]:
    end = clock_offsets()
    sampled = [sampler.summary() for sampler in samplers]
    moved = {clock: end[clock] - begin[clock] for clock in begin}
    return {
        FORMAT: 1,
        "tool": _tool(),
        "host": name(),
        "started_ns": started_ns,
        "ended_ns": time.time_ns(),
        "program_exit_status": result.status,
        "recorder_cpu_s": round(result.cpu_s, 3),
        "realtime_minus_clock_ns": {"start": begin, "end": end, "moved": moved},
        "gpus": [
            facts.as_dict() for sampler in samplers for facts in sampler.facts if facts.gpu >= 0
        ],
        "samplers": sampled,
        "processes": host.processes(),
        "problems": [problem for sampler in samplers for problem in sampler.problems],
    }


def _tool() -> str:
    """Return the recorder with its version, which a checkout that is not installed does not have."""
    with suppress(metadata.PackageNotFoundError):
        return f"chopper-record {metadata.version('chopper-interop')}"
    return "chopper-record"


def _described_in(folder: Path) -> Path:
    return folder / f"recording-{name()}.json"


def _write(folder: Path, description: dict[str, Any]) -> None:
    """Write the description, whole or not; that a disk takes none is no problem of the program."""
    path = _described_in(folder)
    try:
        text = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
        with open(path, "wb", opener=without_waiting) as file:
            file.write(text.encode("utf-8", "replace"))  # names of processes may hold any bytes
    except OSError as error:
        description["problems"].append(f"{path}: {error.strerror}")
        if path.is_file():  # not a pipe or a device that the user put there
            path.unlink()
