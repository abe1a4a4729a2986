"""Cells: a kind of job, a rate of telemetry, a sensor behind the clock, with or without counters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from sensor_jobs import files
from sensor_jobs.programs import KINDS, program
from sensor_jobs.sensors import POWER, SENSORS
from sensor_jobs.simulation import Run, simulate

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_MS = 1_000_000
RATES = {
    "1kHz": ("recorder", 1 * _MS),
    "100Hz": ("recorder", 10 * _MS),
    "10Hz": ("nvidia-smi", 100 * _MS),
    "1Hz": ("amd-smi", 1000 * _MS),
}


KNOWN = {"nvml": "NVIDIA H200"}
"""Sensors that tools are known to have → GPUs with them, whose cells have no counters."""


@dataclass(frozen=True, order=True)
class Cell:
    """A combination; its name is ``kind/rate/sensor``, with ``/counters`` where counters were recorded too."""

    kind: str
    rate: str
    sensor: str
    counters: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.rate}/{self.sensor}" + "/counters" * self.counters

    @property
    def tool(self) -> str:
        """The tool that samples at this rate; counters are only of AMD's GPUs."""
        tool, _ = RATES[self.rate]
        if self.sensor in KNOWN:
            return "recorder of NVML" if tool == "recorder" else "nvidia-smi"
        return "recorder" if self.counters and tool == "nvidia-smi" else tool

    @property
    def vendor(self) -> str:
        return "nvidia" if self.tool in ("nvidia-smi", "recorder of NVML") else "amd"

    def telemetry(self, power: str = "mean20") -> files.Telemetry:
        """Return how telemetry is recorded."""
        return files.Telemetry(self.tool, RATES[self.rate][1], SENSORS[self.sensor], POWER[power])


def all_cells() -> list[Cell]:
    """Return every combination."""
    return [
        Cell(kind, rate, sensor, counters)
        for counters in (False, True)
        for kind in KINDS
        for rate in RATES
        for sensor in SENSORS
        if not (counters and sensor in KNOWN)
    ]


def matching(patterns: Iterable[str]) -> list[Cell]:
    """Return the cells whose names match any of the patterns, part by part (``few/*/mean*``).

    Cells with counters match patterns of four parts only (``few/1kHz/*/counters``).

    Raises:
        ValueError: A pattern matches no cell.
    """
    cells = all_cells()
    chosen: list[Cell] = []
    for pattern in patterns:
        matches = [c for c in cells if _matches(c.name, pattern)]
        if not matches:
            raise ValueError(
                f"no cell is called {pattern}; the first ones are {cells[0].name}, {cells[1].name}"
            )
        chosen += [c for c in matches if c not in chosen]
    return chosen


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


@dataclass(frozen=True)
class Truth:
    """A run of a program, and the mean length of its recorded steps at the highest clock."""

    run: Run
    measured_ns: float
    ideal_ns: float


def truth_of(kind: str, vendor: str, seed: int, **changes: float) -> Truth:
    """Simulate a random program, with these changes of it, as it ran and at the highest clock."""
    made = replace(program(kind, vendor, seed), **changes)
    run, fast = simulate(made), simulate(made.at_highest_clock())
    return Truth(run, float(run.step_ns.mean()), float(fast.step_ns.mean()))


def write_job(run: Run, cell: Cell, folder: Path, power: str = "mean20") -> None:
    """Write all files of a run under a cell into a folder."""
    run = replace(run, program=replace(run.program, model=KNOWN.get(cell.sensor, "")))
    folder.mkdir(parents=True, exist_ok=True)
    files.write_kineto(run, folder)
    files.write_telemetry(run, cell.telemetry(power), folder)
    if cell.counters:
        files.write_counters(run, folder / "counters")
