"""Samples of Zeus: the log of its measurement windows, and its record of power.

A row of the log is a window: when it began, its name, how long it was and the joules of each
device. Windows become lanes and not nodes: they are of a machine and not of a rank, and a job
combines them with profiles as it does all telemetry. A sample stands at the window's beginning;
the power of a GPU over the time of all windows is a lane as well, and the source of its energy.

``start_time`` was ``time.monotonic()`` in early releases and is ``time.time()`` in later ones: it
is on the real clock only if it can be, else on one that no other source has.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from chopper_interop.build import TraceBuilder
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.checks import note_clock_steps, note_impossible_values
from chopper_interop.converters.sampling.rows import source_of_file
from chopper_interop.converters.sampling.text import decode_lines
from chopper_interop.converters.sampling.timestamps import EARLIEST_S, SECOND
from chopper_interop.converters.zeus.lanes import powers, windows
from chopper_interop.converters.zeus.rows import WINDOW_NAME, rows_of
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.meta import REALTIME, Device, Meta
from chopper_interop.trace import Trace

SOURCE = "zeus"
MONOTONIC = "monotonic"
"""`Meta.clock` of times since some instant that the file does not state."""
READING_NS = 10_000_000
"""Uncertainty of a sample: a call of the management library takes milliseconds. Chosen: the upper end."""

UNKNOWN_CLOCK = Fault.info(
    "clock-unknown",
    "The times are seconds since some instant that the file does not state "
    "(time.monotonic of the machine): they cannot be joined to other sources.",
)
MIXED_CLOCKS = Fault.loss_of_events(
    "row-on-other-clock",
    "Rows whose time is on another clock than that of the first row were left out.",
)
SAMPLED = Fault.info_of_events(
    "row-as-samples", "Rows (windows of Zeus, or instants) became samples of counter lanes."
)


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
        all windows (`telemetry.quantity_series.WITHIN_WINDOWS`). Of a record of power: power of each GPU.

    Raises
    ------
    ReadError
        It cannot be opened.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    text = decode_lines(inputs.read(path, issues))
    table = rows_of(text, issues)
    is_real = table.time >= EARLIEST_S * SECOND
    clock = REALTIME if is_real.all() or is_real[0] else MONOTONIC
    kept = is_real == (clock == REALTIME)
    time = table.time[kept]
    issues.add(MIXED_CLOCKS, len(table.time) - len(time))
    issues.add(UNKNOWN_CLOCK, len(time) if clock == MONOTONIC else 0)
    issues.add(SAMPLED, len(time))
    issues.add(faults.EMPTY, int(not table.events))
    if WINDOW_NAME in table.names:
        rows = [row for row, is_kept in zip(table.windows, kept.tolist(), strict=True) if is_kept]
        lanes = windows(table.names, rows, issues)
    else:
        lanes = powers(path, table, kept, issues)
        note_clock_steps(time, np.zeros(len(time), np.int64), issues)
    builder = TraceBuilder(_meta(path, table.names, clock, table.events))
    for (device, name, unit), points in lanes.items():
        series = builder.series(-1, name, unit, SOURCE, device=device, uncertainty_ns=READING_NS)
        note_impossible_values(name, unit, points.value, issues)
        builder.samples(series, points.time, points.value)
    return builder.finish().with_meta(issues=tuple(issues))


def _meta(path: Path, names: list[str], clock: str, events: int) -> Meta:
    numbers = [re.search(r"gpu_?(\d{1,5})", name) for name in names]
    gpus = sorted({int(match[1]) for match in numbers if match})
    return Meta(
        job=inputs.plain_name(path),
        clock=clock,
        devices=tuple(Device("", gpu, "", SOURCE, ordinal=gpu) for gpu in gpus),
        sources=(source_of_file(path, "zeus", SOURCE, events),),
    )
