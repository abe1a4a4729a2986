"""When each row of a table was taken, and which GPU it is of where it does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters import telemetry_ticks
from chopper_interop.converters.telemetry_clock import note_steps
from chopper_interop.converters.telemetry_emit import Timed
from chopper_interop.converters.telemetry_numbers import SECOND
from chopper_interop.converters.telemetry_stamps import MIXED, Times, stamp_of, times_of
from chopper_interop.schemas.meta import LOCALTIME, REALTIME

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.telemetry_given import Given
    from chopper_interop.converters.telemetry_owners import Owners
    from chopper_interop.converters.telemetry_table import Table
    from chopper_interop.issues import IssueLog

READING_NS = 10_000_000
"""A row's values are read this long around its stamp."""
ONCE_NS = 1_000_000_000
"""How far a time may be off that was given from outside."""


def clock_of(times: Times) -> str:
    """Name of the clock that the times are on."""
    return LOCALTIME if times.local else REALTIME


def placed(
    table: Table, unknown: Array, owners: Owners, tz: str | None, *, given: Given, path: Path
) -> tuple[Timed, Times]:
    """Rows that have a time and a GPU, and their times.

    Parameters
    ----------
    table
        All rows.
    unknown
        Rows of which it is not known which GPU they are of.
    owners
        Device of each row.
    tz
        Zone of times that have none.
    given
        What the user says of times that the file does not hold.
    path
        The file.
    """
    issues = table.issues
    at_ns, period_ms = given.at_ns, given.period_ms
    times = times_of(table.stamp, tz, issues)
    issues.add(faults.NO_GPU, np.count_nonzero(unknown))
    told = (times.ns >= 0) & ~unknown
    row = np.flatnonzero(told)
    if len(row) or not len(table.stamp) or not given:
        untimed = ~told & ~unknown & ~_mixed(table, times)
        _note_untimed(table, untimed, path)
        return _as_written(row, times, owners, issues), times
    if at_ns is None:
        at_ns = path.stat().st_mtime_ns
        issues.add(faults.ASSUMED_MTIME, 1, f"{at_ns}")
    else:
        issues.add(faults.ASSUMED_TIME, 1, f"{at_ns}")
    row = np.flatnonzero(~unknown)
    tick = telemetry_ticks.ticks_of(*_device_and_part(owners, row)) if len(row) else row
    back = tick.max() - tick if len(row) else tick
    if period_ms is None:
        issues.add(faults.EARLIER_TICK, np.count_nonzero(back))
        row, back = row[back == 0], back[back == 0]
    time = at_ns - back * int((period_ms or 0) * 1e6)
    good = time >= 0
    issues.add(faults.NO_TIME, np.count_nonzero(~good))
    return Timed(row[good], time[good], ONCE_NS), Times(time, 1, local=False)


def _note_untimed(table: Table, untimed: Array, path: Path) -> None:
    """Count rows without a time, and those that have one which is not understood."""
    odd = [row for row in np.flatnonzero(untimed).tolist() if _is_written(table.stamp[row])]
    example = table.stamp[odd[0]].strip()[:80] if odd else ""
    table.issues.add(faults.STAMP_UNKNOWN, len(odd), example)
    without = np.count_nonzero(untimed) - len(odd)
    table.issues.add(faults.NO_TIME, without, f"{len(untimed)} rows of {path.name}")


def _is_written(stamp: str) -> bool:
    """Whether a stamp says anything."""
    return any(c.isdigit() for c in stamp)


def _mixed(table: Table, times: Times) -> Array:
    """Rows that have been counted for another reason than having no time."""
    if not any(issue.code == MIXED.code for issue in table.issues):
        return np.zeros(len(times.ns), bool)
    stamps = {text: stamp_of(text) for text in set(table.stamp)}
    local = {text for text, stamp in stamps.items() if stamp and not stamp.zoned}
    return np.array([text in local for text in table.stamp], bool)


def _as_written(row: Array, times: Times, owners: Owners, issues: IssueLog) -> Timed:
    """Rows at their stamps; whole seconds are spread over runs of ticks."""
    time = times.ns[row]
    device, part = _device_and_part(owners, row)
    places: dict[tuple[int, int], int] = {}
    keys = zip(device.tolist(), part.tolist(), strict=True)
    place = np.array([places.setdefault(key, len(places)) for key in keys], np.int64)
    note_steps(time, place, issues)
    if times.resolution_ns < SECOND or not len(row):
        return Timed(row, time, times.resolution_ns + READING_NS)
    time, half = telemetry_ticks.placed(
        time // SECOND, telemetry_ticks.ticks_of(device, part), place
    )
    issues.add(faults.SPREAD, len(time), f"± {half / 1e9:.3f} s")
    return Timed(row, time, half + READING_NS)


def _device_and_part(owners: Owners, row: Array) -> tuple[Array, Array]:
    """Device of rows, and a number for the part of it that they are of."""
    numbers: dict[str, int] = {}
    part = [numbers.setdefault(owners.suffix[r], len(numbers)) for r in row.tolist()]
    return owners.device[row], np.array(part, np.int64)
