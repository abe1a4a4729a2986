"""When each row of a table was taken, and which GPU it is of where it does not say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.converters import amd_smi_time
from chopper_interop.converters import nvidia_smi_faults as faults
from chopper_interop.converters.nvidia_smi_rows import Identity, Owners, Table, Timed
from chopper_interop.converters.nvidia_smi_time import (
    LATEST_S,
    MIXED,
    SECOND,
    Times,
    stamp_of,
    times_of,
)
from chopper_interop.errors import UsageError
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.meta import LOCALTIME, REALTIME

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Given = tuple[int | None, float | None, str | None]

READING_NS = 10_000_000
"""A row's values are read this long around its stamp."""
ONCE_NS = 1_000_000_000
"""How far a time may be off that was given from outside."""
MTIME = "mtime"
_MOST_GPUS = 64
"""Rows that come together are of at most so many GPUs."""
_MOST_PERIOD_MS = 86_400_000.0


def clock_of(times: Times) -> str:
    """Name of the clock that the times are on."""
    return LOCALTIME if times.local else REALTIME


def with_gpus(table: Table, tz: str | None) -> tuple[Table, Array]:
    """The table with GPUs told by order where rows do not say theirs, and which are not told."""
    silent = np.array([not gpu.told for gpu in table.gpu], bool)
    if not silent.any():
        return table, silent
    if not silent.all():
        return table, silent
    time = times_of(table.stamp, tz, IssueLog()).ns
    count = _together(time) if (time >= 0).all() else None
    if count is None:
        return table, silent
    fault = faults.BY_ORDER if count > 1 else faults.ONE_GPU
    table.issues.add(fault, len(table.gpu), f"{count} GPUs" if count > 1 else "")
    gpu = [Identity(number=str(row % count), name=old.name) for row, old in enumerate(table.gpu)]
    return replace(table, gpu=gpu), np.zeros(len(gpu), bool)


def _together(time: Array) -> int | None:
    """How many rows come together each time; None if that is not the same throughout."""
    if len(time) < 2:  # noqa: PLR2004 - a gap needs two
        return 1
    gap = np.diff(time)
    place = np.arange(len(gap))
    for count in range(2, min(_MOST_GPUS, len(time) // 2) + 1):
        between = place % count == count - 1
        if gap[between].min() > 4 * gap[~between].max() and (gap[~between] >= 0).all():
            return count
    usual = float(np.median(gap))
    return 1 if usual > 0 and gap.min() * 4 > usual else None


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
        Time of the last rows, period and ``"mtime"``, from options.
    path
        The file.
    """
    issues = table.issues
    at_ns, period_ms, at = _checked(given)
    times = times_of(table.stamp, tz, issues)
    issues.add(faults.NO_GPU, np.count_nonzero(unknown))
    told = (times.ns >= 0) & ~unknown
    row = np.flatnonzero(told)
    if len(row) or not len(table.stamp) or (at_ns is None and at is None):
        untimed = ~told & ~unknown & ~_mixed(table, times)
        issues.add(faults.NO_TIME, np.count_nonzero(untimed), f"{len(told)} rows of {path.name}")
        return _as_written(row, times, owners, issues), times
    if at_ns is None:
        at_ns = path.stat().st_mtime_ns
        issues.add(faults.ASSUMED_MTIME, 1, f"{at_ns}")
    else:
        issues.add(faults.ASSUMED_TIME, 1, f"{at_ns}")
    row = np.flatnonzero(~unknown)
    tick = amd_smi_time.ticks_of(*_device_and_part(owners, row)) if len(row) else row
    back = tick.max() - tick if len(row) else tick
    if period_ms is None:
        issues.add(faults.EARLIER_TICK, np.count_nonzero(back))
        row, back = row[back == 0], back[back == 0]
    time = at_ns - back * int((period_ms or 0) * 1e6)
    good = time >= 0
    issues.add(faults.NO_TIME, np.count_nonzero(~good))
    return Timed(row[good], time[good], ONCE_NS), Times(time, 1, local=False)


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
    if times.resolution_ns < SECOND or not len(row):
        return Timed(row, time, times.resolution_ns + READING_NS)
    device, part = _device_and_part(owners, row)
    places: dict[tuple[int, int], int] = {}
    keys = zip(device.tolist(), part.tolist(), strict=True)
    place = np.array([places.setdefault(key, len(places)) for key in keys], np.int64)
    time, half = amd_smi_time.placed(time // SECOND, amd_smi_time.ticks_of(device, part), place)
    issues.add(faults.SPREAD, len(time), f"± {half / 1e9:.3f} s")
    return Timed(row, time, half + READING_NS)


def _device_and_part(owners: Owners, row: Array) -> tuple[Array, Array]:
    """Device of rows, and a number for the part of it that they are of."""
    numbers: dict[str, int] = {}
    part = [numbers.setdefault(owners.suffix[r], len(numbers)) for r in row.tolist()]
    return owners.device[row], np.array(part, np.int64)


def _checked(given: Given) -> Given:
    at_ns, period_ms, at = given
    if at not in (None, MTIME) or (at and at_ns is not None):
        raise UsageError(f"-O at={at}: say at={MTIME}, or at_ns=<epoch nanoseconds> instead")
    if at_ns is not None and not 0 <= at_ns <= LATEST_S * SECOND:
        raise UsageError(f"-O at_ns={at_ns}: that is no time in nanoseconds since 1970")
    if period_ms is not None and not 0 < period_ms <= _MOST_PERIOD_MS:
        raise UsageError(f"-O period_ms={period_ms}: that is no period in milliseconds")
    return given
