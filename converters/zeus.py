"""Zeus' telemetry: the log of its measurement windows, and its record of power.

A row of the log is a window: when it began, its name, how long it was and the joules of each
device. Windows become lanes and not nodes: they are of a machine and not of a rank, and a job
takes them beside profiles as it does all telemetry. A sample stands at the window's beginning;
the power of a GPU over the time of all windows is a lane as well, and what tells its energy.

``start_time`` was ``time.monotonic()`` in early releases and is ``time.time()`` in later ones: it
is on the real clock only if it can be, else on one that no other source has.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.build import TraceBuilder
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters.telemetry_clock import note_steps
from chopper_interop.converters.telemetry_limits import note_impossible
from chopper_interop.converters.telemetry_numbers import SECOND, nanoseconds
from chopper_interop.converters.telemetry_text import lines_of
from chopper_interop.converters.zeus_lanes import powers, windows
from chopper_interop.converters.zeus_rows import Row, rows_of
from chopper_interop.files import inputs
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter
from chopper_interop.schemas.meta import REALTIME, Device, Meta, Source

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

SOURCE = "zeus"
MONOTONIC = "monotonic"
"""`Meta.clock` of times since some moment that the file does not tell."""
EARLIEST_S = 1_000_000_000
"""A number of seconds from here on is one since 1970 (2001); no machine is up for as long."""
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
SAMPLED = Fault(
    "row-as-samples",
    Severity.INFO,
    "Rows (windows of Zeus, or moments) became samples of counter lanes.",
    events=True,
)

_WINDOWS = ("start_time", "window_name", "elapsed_time")
_POWER_HEADER = re.compile(
    r"\s*(?:time|timestamp)\s*,\s*(?:power(?:_w)?|(?:gpu_?\d+|power_?\d+)(?:_?power)?(?:_w)?"
    r"(?:\s*,\s*(?:gpu_?\d+|power_?\d+)(?:_?power)?(?:_w)?)*)\s*(?:\n|$)",
    re.IGNORECASE,
)
_SUMMARY = re.compile(r"dataset,network,batch_size,optimizer,power_limit,")


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
        and mean power (W), at the window's beginning; and of each GPU its power over the time of
        all windows (`telemetry.names.WITHIN_WINDOWS`). Of a record of power: power of each GPU.

    Raises
    ------
    ReadError
        It cannot be opened.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    text = lines_of(inputs.read(path, issues))
    names, rows, events = rows_of(text, issues)
    clock = _clock(rows)
    kept = [row for row in rows if _clock([row]) == clock]
    issues.add(MIXED_CLOCKS, len(rows) - len(kept))
    issues.add(UNKNOWN_CLOCK, len(kept) if clock == MONOTONIC else 0)
    issues.add(SAMPLED, len(kept))
    issues.add(faults.EMPTY, int(not events))
    found: dict[tuple[int, str, str], list[tuple[int, float]]] = defaultdict(list)
    if "window_name" in names:
        windows(names, kept, found, issues)
    else:
        powers(path, names, kept, found, issues)
        times = np.array([row.time for row in kept], np.int64)
        note_steps(times, np.zeros(len(times), np.int64), issues)
    builder = TraceBuilder(_meta(path, names, clock, events))
    for (device, name, unit), points in found.items():
        series = builder.series(-1, name, unit, SOURCE, device=device, uncertainty_ns=READING_NS)
        time = np.array([t for t, _ in points], np.int64)
        value = np.array([v for _, v in points])
        note_impossible(name, unit, value, issues)
        builder.samples(series, time, value)
    return builder.finish().with_meta(issues=tuple(issues))


def _clock(rows: list[Row]) -> str:
    if not rows or rows[0].time >= EARLIEST_S * SECOND:
        return REALTIME
    return MONOTONIC


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
    carries="duration, energy and mean power of every window by name and GPU; power of each GPU over "
    "time",
)

ZEUS_SUMMARY = Converter(
    name="zeus-summary",
    description="tables of results made with Zeus",
    sniff=lambda head: _SUMMARY.match(_first_line(head)) is not None,
    not_read_because="its rows are means over runs and have no times; give the logs of windows",
)
