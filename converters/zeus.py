"""Zeus' telemetry: the log of its measurement windows, and its record of power.

A row of the log is a window: when it began, its name, how long it was and the joules of each
device. Windows become lanes and not nodes: they are of a machine and not of a rank, and a job
takes them beside profiles as it does all telemetry. A sample stands at the window's beginning.

``start_time`` was ``time.monotonic()`` in early releases and is ``time.time()`` in later ones: it
is on the real clock only if it can be, else on one that no other source has.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import inputs
from chopper_interop.build import TraceBuilder
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters.telemetry_numbers import SECOND, nanoseconds
from chopper_interop.converters.telemetry_text import lines_of
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter
from chopper_interop.schemas.meta import REALTIME, Device, Meta, Source

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

SOURCE = "zeus"
MONOTONIC = "monotonic"
"""`Meta.clock` of times since some moment that the file does not tell."""
EARLIEST_S = 1_000_000_000
"""A number of seconds from here on is one since 1970 (2001); no machine is up for as long."""
MOST_NAMES = 64
"""With more names of windows than this, those that differ in numbers alone share lanes."""
READING_NS = 10_000_000

UNKNOWN_CLOCK = Fault(
    "clock-unknown",
    Severity.INFO,
    "The times are seconds since some moment that the file does not tell (time.monotonic of the "
    "machine): they cannot be put beside other sources.",
)
MIXED_CLOCKS = Fault(
    "row-on-other-clock",
    Severity.LOSS,
    "Rows whose time is on another clock than that of the first row were left out.",
    events=True,
)
NO_NUMBER = Fault(
    "row-without-time", Severity.LOSS, "Rows whose time is no number were left out.", events=True
)
NO_VALUE = Fault("value-not-a-number", Severity.LOSS, "Cells that are no number were left out.")
NUMBERED = Fault(
    "windows-numbered",
    Severity.INFO,
    "Windows whose names differ in numbers alone share a lane, with # for the number.",
)
SAMPLED = Fault(
    "row-as-samples",
    Severity.INFO,
    "Rows (windows of Zeus, or moments) became samples of counter lanes.",
    events=True,
)

GPU_UNTOLD = Fault(
    "gpu-untold",
    Severity.INFO,
    "Neither the column nor the file's name says of which GPU the power is: it stands by itself.",
)

_GPU_OF_FILE = re.compile(r"gpu_?(\d{1,5})(?!\d)", re.IGNORECASE)
_WINDOWS = ("start_time", "window_name", "elapsed_time")
_ENERGY = re.compile(r"(gpu|cpu|dram|soc)(\d*)_?(\w*?)_?energy", re.IGNORECASE)
_POWER_HEADER = re.compile(
    r"\s*(?:time|timestamp)\s*,\s*(?:power(?:_w)?|(?:gpu_?\d+|power_?\d+)(?:_?power)?(?:_w)?"
    r"(?:\s*,\s*(?:gpu_?\d+|power_?\d+)(?:_?power)?(?:_w)?)*)\s*(?:\n|$)",
    re.IGNORECASE,
)
_SUMMARY = re.compile(r"dataset,network,batch_size,optimizer,power_limit,")


@dataclass(frozen=True)
class _Row:
    time: int
    cells: list[str]


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is a log of windows or a record of power."""
    line = _first_line(head)
    return line.split(",")[:3] == list(_WINDOWS) or _is_power(head)


def _first_line(head: bytes) -> str:
    text = head.decode("utf-8", "replace").lstrip("\ufeff").lstrip()
    return text.partition("\n")[0].strip().replace(" ", "").lower()


def _is_power(head: bytes) -> bool:
    """``time,gpu0,gpu1`` or ``time,power``, and below it a time that is one."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff").lstrip().replace("\r\n", "\n")
    found = _POWER_HEADER.match(text)
    if not found:
        return False
    rest = text[found.end() :].lstrip().partition("\n")[0].split(",")
    time = nanoseconds(rest[0]) if rest[0] else None
    return not rest[0] or (time is not None and time >= EARLIEST_S * SECOND)


def read(paths: list[Path]) -> Trace:
    """Read one file of Zeus.

    Parameters
    ----------
    paths
        The file, alone in a list.

    Returns
    -------
    Trace
        Without nodes. Of windows: for each name the duration (s), and for each device energy (J)
        and mean power (W), at the window's beginning. Of a record of power: power of each GPU.

    Raises
    ------
    ReadError
        It cannot be opened.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    text = lines_of(inputs.read(path, issues))
    names, rows, events = _rows(text, issues)
    clock = _clock(rows)
    kept = [row for row in rows if _clock([row]) == clock]
    issues.add(MIXED_CLOCKS, len(rows) - len(kept))
    issues.add(UNKNOWN_CLOCK, len(kept) if clock == MONOTONIC else 0)
    issues.add(SAMPLED, len(kept))
    issues.add(faults.EMPTY, int(not events))
    found: dict[tuple[int, str, str], list[tuple[int, float]]] = defaultdict(list)
    if "window_name" in names:
        _windows(names, kept, found, issues)
    else:
        _powers(path, names, kept, found, issues)
    builder = TraceBuilder(_meta(path, names, clock, events))
    for (device, name, unit), points in found.items():
        series = builder.series(-1, name, unit, SOURCE, device=device, uncertainty_ns=READING_NS)
        time = np.array([t for t, _ in points], np.int64)
        builder.samples(series, time, np.array([v for _, v in points]))
    return builder.finish().with_meta(issues=tuple(issues))


def _rows(text: str, issues: IssueLog) -> tuple[list[str], list[_Row], int]:
    """Names of columns, rows that have a time, and how many rows there are."""
    names: list[str] = []
    rows: list[_Row] = []
    events = 0
    lines = text.lstrip("\ufeff").split("\n")
    for number, line in enumerate(lines):
        if not line.strip(" \0"):
            continue
        cells = _cells(line)
        if cells[0].lower() in ("start_time", "time", "timestamp"):
            header = [cell.lower() for cell in cells]
            if names and header != names:
                issues.add(faults.NOT_A_ROW, 1, f"another header: {line}"[:80])
            names = names or header
            continue
        events += 1
        row = _row(names, cells, f"line {number + 1}", issues)
        if row is not None and number == len(lines) - 1 and number > 1:
            row.cells[-1] = ""  # it may lack digits
            issues.add(faults.CELL_CUT)
        rows += [row] if row is not None else []
    return names, rows, events


def _row(names: list[str], cells: list[str], at: str, issues: IssueLog) -> _Row | None:
    if not names:
        issues.add(faults.NO_HEADER, 1, at)
        return None
    more = len(cells) - len(names)
    if more > 0 and names[1:2] == ["window_name"]:  # Zeus does not quote names with commas
        cells = [cells[0], ",".join(cells[1 : 2 + more]), *cells[2 + more :]]
    if len(cells) != len(names):
        issues.add(faults.CUT, 1, f"{at}: {len(cells)} cells for {len(names)} columns")
        return None
    time = nanoseconds(cells[0])
    if time is None or time < 0:
        issues.add(NO_NUMBER, 1, f"{at}: {cells[0]}"[:80])
        return None
    return _Row(time, cells)


def _cells(line: str) -> list[str]:
    try:
        cells = next(csv.reader([line]), [])
    except csv.Error:
        cells = line.split(",")
    return [cell.strip() for cell in cells] or [""]


def _clock(rows: list[_Row]) -> str:
    if not rows or rows[0].time >= EARLIEST_S * SECOND:
        return REALTIME
    return MONOTONIC


def _windows(
    names: list[str],
    rows: list[_Row],
    found: dict[tuple[int, str, str], list[tuple[int, float]]],
    issues: IssueLog,
) -> None:
    name_at, elapsed_at = names.index("window_name"), _at(names, "elapsed_time")
    called = _called({row.cells[name_at] for row in rows}, issues)
    for row in rows:
        name = called[row.cells[name_at]]
        elapsed = _number(row.cells[elapsed_at], issues) if elapsed_at >= 0 else None
        if elapsed is not None:
            found[-1, f"duration of {name}", "s"].append((row.time, elapsed))
        for at, column in enumerate(names):
            energy = _ENERGY.fullmatch(column)
            value = _number(row.cells[at], issues) if energy else None
            if not energy or value is None:
                continue
            device, part = _part(energy[1], energy[2], energy[3])
            found[device, f"{part}energy of {name}", "J"].append((row.time, value))
            if elapsed:
                power = value / elapsed
                found[device, f"{part}mean power of {name}", "W"].append((row.time, power))


def _part(kind: str, number: str, rest: str) -> tuple[int, str]:
    """Device of a column, and what to put in front of its lanes if it is no GPU."""
    if kind.lower() == "gpu":
        return (int(number) if number and len(number) < 6 else 0), ""  # noqa: PLR2004
    return -1, f"{kind}{number} {rest} ".replace("  ", " ").lower()


def _called(names: set[str], issues: IssueLog) -> dict[str, str]:
    """Name of a window → what it is called in the names of lanes."""
    if len(names) <= MOST_NAMES:
        return {name: name for name in names}
    issues.add(NUMBERED, len(names))
    return {name: re.sub(r"\d+", "#", name) for name in names}


def _powers(
    path: Path,
    names: list[str],
    rows: list[_Row],
    found: dict[tuple[int, str, str], list[tuple[int, float]]],
    issues: IssueLog,
) -> None:
    for at, column in enumerate(names[1:], 1):
        gpu = re.search(r"(?:gpu|power)_?(\d{1,5})(?!\d)", column) or _GPU_OF_FILE.search(path.name)
        issues.add(GPU_UNTOLD, int(not gpu), column)
        points = found[int(gpu[1]) if gpu else -1, "socket power", "W"]
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


def _meta(path: Path, names: list[str], clock: str, events: int) -> Meta:
    numbers = [re.search(r"gpu_?(\d{1,5})", name) for name in names]
    gpus = sorted({int(found[1]) for found in numbers if found})
    return Meta(
        job=inputs.plain_name(path),
        clock=clock,
        devices=tuple(Device("", gpu, "", SOURCE, ordinal=gpu) for gpu in gpus),
        sources=(Source(str(path), ZEUS.name, "zeus", size=path.stat().st_size, events=events),),
    )


ZEUS = Converter(
    name="zeus",
    description="telemetry of Zeus: logs of measurement windows, and records of power",
    versions="ZeusMonitor logs (0.5 and later); power CSV with epoch times, time,power or "
    "time,gpu0,…",
    suffixes=(".csv",),
    sniff=sniff,
    read=read,
    carries="duration, energy and mean power of every window by name and GPU; power of each GPU",
)

ZEUS_SUMMARY = Converter(
    name="zeus-summary",
    description="tables of results made with Zeus",
    sniff=lambda head: _SUMMARY.match(_first_line(head)) is not None,
    not_read_because="its rows are means over runs and have no times; give the logs of windows",
)
