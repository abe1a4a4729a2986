"""Measurements of Zeus, as points of lanes by device, name and unit."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.annotate.telemetry.quantity_series import WITHIN_WINDOWS
from chopper_interop.arrays import Array
from chopper_interop.converters.sampling.checks import IMPOSSIBLE
from chopper_interop.converters.sampling.timestamps import SECOND
from chopper_interop.converters.zeus.rows import numbers_of_cells
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.cells import CellColumn
    from chopper_interop.converters.zeus.rows import Row, Table

    Lane = tuple[int, str, str]
    """Device, name and unit."""

CROSSING = Fault.info(
    "windows-crossing",
    "Windows that began within another and ended after it: their joules count in "
    "lanes of their own alone, not in those over time, where they would count twice.",
)
CONTRADICTED = Fault.info(
    "windows-contradicted",
    "Windows whose joules do not fit into those of the window around them, "
    "as the counters of GPUs are renewed too rarely for them: over time that of the window around "
    "them counts.",
)
_MAX_W = 1e5
"""Watts that no GPU draws: 50 times the largest of today."""
_RENEWED_NS = 100_000_000
"""Counters of GPUs are renewed so often at least: joules of shorter times are not known."""
_TOUCHING_NS = 2_000
"""Windows that overlap by less are adjacent: times are written to a few hundred nanoseconds."""

MAX_NAMES = 64
"""With more names of windows than this, those that differ in numbers alone share lanes. Chosen: about as
many rows as a timeline shows; steps of a training are more."""
_MAX_WINDOW_S = 1e8
"""Longest window, s (chosen: three years; the longest trainings take months)."""
NO_VALUE = Fault.loss("value-not-a-number", "Cells that are no number were left out.")
NUMBERED = Fault.info(
    "windows-numbered",
    "Windows whose names differ in numbers alone share a lane, with # for the number.",
)
GPU_UNKNOWN = Fault.info(
    "gpu-unknown",
    "Neither the column nor the file's name says of which GPU the power is: it stands by itself.",
)

_GPU_OF_FILE = re.compile(r"gpu_?(\d{1,5})(?!\d)", re.IGNORECASE)
_ENERGY = re.compile(r"(gpu|cpu|dram|soc)(\d*)_?(\w*?)_?energy", re.IGNORECASE)


class Points(NamedTuple):
    """Times and values of a lane."""

    time: Array
    value: Array


def windows(names: list[str], rows: list[Row], issues: IssueLog) -> dict[Lane, Points]:
    """Duration (s) of windows, energy (J) and mean power (W) of each device in them.

    And the power of each GPU over the time of all windows.
    """
    samples: dict[Lane, list[tuple[int, float]]] = defaultdict(list)
    drawn: dict[int, list[EnergyWindow]] = defaultdict(list)
    name_at, elapsed_at = names.index("window_name"), _column_index(names, "elapsed_time")
    called = _called({row.cells[name_at] for row in rows}, issues)
    for row in rows:
        name = called[row.cells[name_at]]
        elapsed = _length_s(row.cells[elapsed_at], name, issues) if elapsed_at >= 0 else None
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
                drawn[device].append(
                    EnergyWindow(row.time, row.time + round(elapsed * SECOND), value)
                )
    for device, of_gpu in drawn.items():
        if points := placed(of_gpu, issues):
            samples[device, WITHIN_WINDOWS, "W"] = points
    return {
        lane: Points(np.array([t for t, _ in points], np.int64), np.array([v for _, v in points]))
        for lane, points in samples.items()
    }


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


def powers(path: Path, table: Table, kept: Array, issues: IssueLog) -> dict[Lane, Points]:
    """Power (W) of each GPU, which its column or else the name of the file identifies.

    Parameters
    ----------
    path
        The file.
    table
        Its rows.
    kept
        Mask of those that count.
    issues
        Where cells are counted that hold no number.
    """
    of_gpu: dict[int, list[Points]] = {}
    for at, name in enumerate(table.names[1:], 1):
        gpu = re.search(r"(?:gpu|power)_?(\d{1,5})(?!\d)", name) or _GPU_OF_FILE.search(path.name)
        issues.add(GPU_UNKNOWN, int(not gpu), name)
        parts = of_gpu.setdefault(int(gpu[1]) if gpu else -1, [])
        if at in table.columns:
            column = table.columns[at]
            if not kept.all():
                column = column.select(kept[column.row]).in_order()
            parts.append(_known(column, table.time, issues))
    return {
        (gpu, "socket power", "W"): Points(*map(np.concatenate, zip(*parts, strict=True)))
        if parts
        else Points(np.zeros(0, np.int64), np.zeros(0))
        for gpu, parts in of_gpu.items()
    }


def _known(column: CellColumn, time: Array, issues: IssueLog) -> Points:
    """Return times and values of the cells of a column that hold a number."""

    def number(text: str, count: int) -> float:
        known = _number(text, issues, count)
        return np.nan if known is None else known

    value = numbers_of_cells(column, number)
    known = ~np.isnan(value)
    return Points(time[column.row[known]], value[known])


def _length_s(cell: str, name: str, issues: IssueLog) -> float | None:
    """Length of a window, s; None if it is not known or cannot be true, which is counted."""
    value = _number(cell, issues)
    if cell.lower() == "nan" or (value is not None and abs(value) > _MAX_WINDOW_S):
        issues.add(IMPOSSIBLE, 1, f"duration of {name}: {cell[:40]} s")
        return None
    return value


def _number(cell: str, issues: IssueLog, count: int = 1) -> float | None:
    """A cell as a number; None if it is empty or holds none, which is counted."""
    if not cell or cell.lower() in ("none", "nan", "n/a"):
        return None
    try:
        value = float(cell)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        issues.add(NO_VALUE, count, cell[:80])
        return None
    return value


def _column_index(names: list[str], name: str) -> int:
    """Index of a column; -1 if there is none."""
    return names.index(name) if name in names else -1


@dataclass
class EnergyWindow:
    """Start and end of a window, nanoseconds, and the joules of one GPU in it."""

    start: int
    end: int
    joules: float
    inner: list[EnergyWindow] = field(default_factory=list)
    """Windows within it that have been closed, and what is left between those within them: none overlap."""

    @property
    def is_sound(self) -> bool:
        """True if a GPU can have drawn that much in it."""
        return self.end > self.start and 0 <= self.watts <= _MAX_W

    @property
    def watts(self) -> float:
        """Mean power."""
        return self.joules / ((self.end - self.start) * 1e-9)


def placed(windows: Iterable[EnergyWindow], issues: IssueLog) -> list[tuple[int, float]]:
    """Mean power over the time of all windows, as `annotate.telemetry.quantity_series.SeriesPattern` has it of windows.

    At any time the innermost window counts; the further joules of the window around it belong
    to the rest of its time. So each outermost window has just the joules that were measured in it::

        outer  |----------- 90 J -----------|
        inner        |--- 60 J ---|              mean power over time: of 60 J in the middle, and of
        points 15 J  |    60 J    |  15 J        the other 30 J by time before and after
    """
    outermost = EnergyWindow(-(1 << 62), 1 << 62, 0.0)
    around = [outermost]
    sound = (window for window in windows if window.is_sound)
    for window in sorted(sound, key=lambda one: (one.start, -one.end)):
        while around[-1].end <= window.start + _TOUCHING_NS:
            _close(around, issues)
        window.start = max([window.start, *(one.end for one in around[-1].inner[-1:])])
        if window.end > around[-1].end + _TOUCHING_NS:
            issues.add(CROSSING)
            continue
        window.end = min(window.end, around[-1].end)
        if window.is_sound:
            around.append(window)
    while len(around) > 1:
        _close(around, issues)
    return _points(outermost.inner)


def _close(around: list[EnergyWindow], issues: IssueLog) -> None:
    """Cut the last window into those within it and what is left of it, for the one around it."""
    last = around.pop()
    around[-1].inner += _cut(last, issues)


def _cut(window: EnergyWindow, issues: IssueLog) -> list[EnergyWindow]:
    inner = window.inner
    if not inner:
        return [window]
    rest = window.joules - sum(one.joules for one in inner)
    time = window.end - window.start - sum(one.end - one.start for one in inner)
    if time < _RENEWED_NS or not 0 <= rest <= _MAX_W * time * 1e-9:
        issues.add(CONTRADICTED, len(inner))
        return [EnergyWindow(window.start, window.end, window.joules)]
    edges = [window.start, *(t for one in inner for t in (one.start, one.end)), window.end]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    left = [EnergyWindow(a, b, rest * (b - a) / time) for a, b in gaps if b > a]
    return sorted([*inner, *left], key=lambda one: one.start)


def _points(windows: list[EnergyWindow]) -> list[tuple[int, float]]:
    """A sample where each begins, and one where it ends unless the next begins there."""
    points: list[tuple[int, float]] = []
    end, watts = None, 0.0
    for window in windows:
        if end is not None and window.start > end:
            points.append((end, watts))
        if window.start != end or window.watts != watts:
            points.append((window.start, window.watts))
        end, watts = window.end, window.watts
    return points if end is None else [*points, (end, watts)]
