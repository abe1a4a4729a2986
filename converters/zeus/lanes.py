"""Measurements of Zeus, as points of lanes by device, name and unit."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.telemetry.quantity_series import WITHIN_WINDOWS
from chopper_interop.converters.sampling.checks import IMPOSSIBLE
from chopper_interop.converters.sampling.timestamps import SECOND
from chopper_interop.converters.zeus.window_power import Window, placed
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.converters.zeus.rows import Row

    Points = dict[tuple[int, str, str], list[tuple[int, float]]]

MAX_NAMES = 64
"""With more names of windows than this, those that differ in numbers alone share lanes. Chosen: about as
many rows as a timeline shows; steps of a training are more."""
NO_VALUE = Fault("value-not-a-number", Severity.LOSS, "Cells that are no number were left out.")
NUMBERED = Fault(
    "windows-numbered",
    Severity.INFO,
    "Windows whose names differ in numbers alone share a lane, with # for the number.",
)
GPU_UNKNOWN = Fault(
    "gpu-unknown",
    Severity.INFO,
    "Neither the column nor the file's name says of which GPU the power is: it stands by itself.",
)

_GPU_OF_FILE = re.compile(r"gpu_?(\d{1,5})(?!\d)", re.IGNORECASE)
_ENERGY = re.compile(r"(gpu|cpu|dram|soc)(\d*)_?(\w*?)_?energy", re.IGNORECASE)


def windows(
    names: list[str],
    rows: list[Row],
    samples: Points,
    issues: IssueLog,
) -> None:
    """Duration (s) of windows, energy (J) and mean power (W) of each device in them.

    And the power of each GPU over the time of all windows.
    """
    drawn: dict[int, list[Window]] = defaultdict(list)
    name_at, elapsed_at = names.index("window_name"), _at(names, "elapsed_time")
    called = _called({row.cells[name_at] for row in rows}, issues)
    for row in rows:
        name = called[row.cells[name_at]]
        elapsed = _number(row.cells[elapsed_at], issues) if elapsed_at >= 0 else None
        if elapsed_at >= 0 and row.cells[elapsed_at].lower() == "nan":
            issues.add(IMPOSSIBLE, 1, f"duration of {name}: nan s")
        if elapsed is not None:
            samples[-1, f"duration of {name}", "s"].append((row.time, elapsed))
        for at, column in enumerate(names):
            energy = _ENERGY.fullmatch(column)
            value = _number(row.cells[at], issues) if energy else None
            if not energy or value is None:
                continue
            device, part = _part(energy[1], energy[2], energy[3])
            samples[device, f"{part}energy of {name}", "J"].append((row.time, value))
            if elapsed:
                power = value / elapsed
                samples[device, f"{part}mean power of {name}", "W"].append((row.time, power))
            if elapsed and device >= 0:
                drawn[device].append(Window(row.time, row.time + round(elapsed * SECOND), value))
    for device, of_gpu in drawn.items():
        if points := placed(of_gpu, issues):
            samples[device, WITHIN_WINDOWS, "W"] = points


def _part(kind: str, number: str, rest: str) -> tuple[int, str]:
    """Device of a column, and what to put in front of its lanes if it is no GPU."""
    if kind.lower() == "gpu":
        return (int(number) if number and len(number) < 6 else 0), ""  # noqa: PLR2004
    return -1, f"{kind}{number} {rest} ".replace("  ", " ").lower()


def _called(names: set[str], issues: IssueLog) -> dict[str, str]:
    """Name of a window → what it is called in the names of lanes."""
    if len(names) <= MAX_NAMES:
        return {name: name for name in names}
    issues.add(NUMBERED, len(names))
    return {name: re.sub(r"\d+", "#", name) for name in names}


def powers(
    path: Path,
    names: list[str],
    rows: list[Row],
    samples: Points,
    issues: IssueLog,
) -> None:
    """Power (W) of each GPU, which its column or else the name of the file identifies."""
    for at, column in enumerate(names[1:], 1):
        gpu = re.search(r"(?:gpu|power)_?(\d{1,5})(?!\d)", column) or _GPU_OF_FILE.search(path.name)
        issues.add(GPU_UNKNOWN, int(not gpu), column)
        points = samples[int(gpu[1]) if gpu else -1, "socket power", "W"]
        for row in rows:
            value = _number(row.cells[at], issues)
            if value is not None:
                points.append((row.time, value))


def _number(cell: str, issues: IssueLog) -> float | None:
    """A cell as a number; None if it is empty or holds none, which is counted."""
    if not cell or cell.lower() in ("none", "nan", "n/a"):
        return None
    try:
        value = float(cell)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        issues.add(NO_VALUE, 1, cell[:80])
        return None
    return value


def _at(names: list[str], name: str) -> int:
    return names.index(name) if name in names else -1
