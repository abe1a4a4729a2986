"""Samples of ``amd-smi metric`` and ``amd-smi monitor`` in all forms.

One row is one GPU at one tick. Rows become samples of one lane for each value (`amd_smi.lanes`);
their times are whole seconds, which `sampling.ticks` spreads. What amd-smi prints once describes
the GPUs (`amd_smi.static`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters.amd_smi import counters, csv, json, lanes, layout, loop_times
from chopper_interop.converters.amd_smi import faults as own_faults
from chopper_interop.converters.amd_smi import text as amd_smi_text
from chopper_interop.converters.amd_smi.row_reader import BEFORE_1970, UNREADABLE
from chopper_interop.converters.amd_smi.sniff import has_time_in_front
from chopper_interop.converters.sampling import faults, ticks
from chopper_interop.converters.sampling import rows as sampling_rows
from chopper_interop.converters.sampling.lane_names import LaneTable
from chopper_interop.converters.sampling.text import NO_NUMBER, decode
from chopper_interop.converters.sampling.time_options import OF_LAST_OUTPUT, TimeOptions
from chopper_interop.converters.sampling.timestamps import SECOND, Timestamp
from chopper_interop.converters.sampling.units import ABSENT
from chopper_interop.io import inputs
from chopper_interop.issues import IssueLog
from chopper_interop.registry import with_option_texts
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.arrays import Array
    from chopper_interop.converters.sampling.cells import CellColumn, Rows
    from chopper_interop.converters.sampling.rows import TimedRows

SOURCE = "amd-smi"
LANES = LaneTable(*lanes.LANES.rules, *counters.LANES.rules)
"""Meaning of the columns, including those of processes (``monitor -q``)."""
RULES = sampling_rows.LaneRules(sampling_rows.named_by(LANES), faults={"energy": faults.ENERGY})
READING_NS = 10_000_000
"""Time to read a row's values around its stamp: 6 ms a GPU on eight MI355X."""
READING_VIOLATIONS_NS = 110_000_000
"""Time to read a row's values with violations, for which the library waits 100 ms (103.6 to 105.9 ms measured)."""
VIOLATION_KEYS = re.compile(r".*_violation_(status|activity).*|.*_accumulated.*|.*viol")
"""Keys of values for which amd-smi waits 100 ms for each GPU."""
_NO_TIMES = {
    NO_NUMBER: own_faults.NO_TIME,
    UNREADABLE: faults.STAMP_UNKNOWN,
    BEFORE_1970: faults.BEFORE_1970,
}
"""Faults by what stands in place of a time."""
_BEGIN = re.compile(f"{layout.JSON_BEGIN.pattern}|{layout.CSV_HEADER.pattern}", re.MULTILINE)


@with_option_texts(OF_LAST_OUTPUT)
def read(
    paths: list[Path],
    *,
    at_ns: int | None = None,
    at: str | None = None,
    period_ms: float | None = None,
) -> Trace:
    """Read one file of telemetry.

    Parameters
    ----------
    paths
        The file, alone in a list.

    Returns
    -------
    Trace
        Without nodes: one series for each value of each GPU, and its samples. Rows without a
        time give no samples, and are counted, unless one of the options gives the time.

    Raises
    ------
    ReadError
        It cannot be opened or unpacked.
    UsageError
        `at` has another value, or options contradict each other.
    """
    return _read(paths, _rows_of_csv_or_json, "amd-smi", TimeOptions(at_ns, at, period_ms))


@with_option_texts(OF_LAST_OUTPUT)
def read_text(
    paths: list[Path],
    *,
    at_ns: int | None = None,
    at: str | None = None,
    period_ms: float | None = None,
) -> Trace:
    """Read one file of telemetry in human-readable form; options as those of ``amd-smi``.

    Parameters
    ----------
    paths
        The file, alone in a list.
    """
    return _read(paths, amd_smi_text.read, "amd-smi-text", TimeOptions(at_ns, at, period_ms))


def _read(
    paths: list[Path],
    read_rows: Callable[[str, IssueLog], Rows],
    converter: str,
    options: TimeOptions,
) -> Trace:
    (path,) = paths
    issues = IssueLog(str(path))
    stamps: list[Timestamp] = []
    text = decode(inputs.read(path, issues))
    if has_time_in_front(text[: inputs.HEAD_BYTES]):
        text, stamps = loop_times.taken_out(text, issues)
    rows = read_rows(text, issues)
    del text  # before samples take as much
    issues.add(faults.EMPTY, int(not rows.events))
    timed = timed_rows(rows, path, options, issues, stamps)
    source = sampling_rows.source_of_file(path, converter, SOURCE, rows.events)
    devices = sampling_rows.devices_by_index(rows.gpu, SOURCE)
    return sampling_rows.trace_of_rows(timed, source, devices, {}, RULES, issues)


def _rows_of_csv_or_json(text: str, issues: IssueLog) -> Rows:
    """Read the file in the form that begins first."""
    begin = _BEGIN.search(text)
    is_json = begin is not None and layout.JSON_BEGIN.match(text, begin.start()) is not None
    return (json if is_json else csv).read(text, issues)


def timed_rows(
    rows: Rows,
    path: Path,
    options: TimeOptions,
    issues: IssueLog,
    of_loop: Sequence[Timestamp] = (),
) -> TimedRows:
    """Return rows whose whole seconds are spread; without any, at the times of a loop, or that of the options."""
    stamped = rows.stamp >= 0
    tick = ticks.ticks_of(rows.place)
    if of_loop and (by_loop := loop_times.timed(rows, tick, of_loop, issues)) is not None:
        return by_loop
    if not stamped.any() and stamped.size and options:
        return sampling_rows.times_from_options(rows, tick, path, options, issues)
    example = f"{len(stamped)} rows of {path.name}"
    for number, fault in _NO_TIMES.items():
        issues.add(fault, np.count_nonzero(rows.stamp == number), example)
    kept = rows.select(stamped)
    if not stamped.all():
        tick = np.unique(tick[stamped], return_inverse=True)[1]
    time = kept.stamp if kept.is_exact else kept.stamp * SECOND
    sampling_rows.note_order(kept, time, tick, issues)
    if kept.is_exact:
        uncertainty_ns = _resolution_ns(time)
    else:
        time, uncertainty_ns = sampling_rows.spread_over_ticks(kept, kept.stamp, tick, issues)
    waits = any(_has_violations(column) for column in kept.columns)
    reading_ns = READING_VIOLATIONS_NS if waits else READING_NS
    return sampling_rows.TimedRows(kept, time, uncertainty_ns + reading_ns)


def _resolution_ns(time: Array) -> int:
    """Unit of the last digit with which times, nanoseconds, are written; zeros at the end may be left out."""
    unit = 1
    while unit < SECOND and not (time % (10 * unit)).any():
        unit *= 10
    return unit


def _has_violations(column: CellColumn) -> bool:
    """True if a column holds violations, which amd-smi takes 100 ms a GPU to measure."""
    if not VIOLATION_KEYS.fullmatch(column.key):
        return False
    return any(
        not (isinstance(item.value, str) and ABSENT.fullmatch(item.value))
        for cell in column.distinct
        for item in cell.items
    )
