"""Times of rows in nanoseconds since 1970, from timestamps that may lack a zone.

Where a wall clock is set back at the end of summer time, one hour comes twice. The order of the
rows then shows in which of the two each was written.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.sampling import timestamps
from chopper_interop.errors import UsageError
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.stamps import RowTexts

ZONE_UNKNOWN = Fault.info(
    "times-of-wall-clock",
    "Times are those of a wall clock in an unknown zone. Name the zone with "
    "-O tz=<Europe/Berlin or +02:00>, or add sources whose times have one.",
)
MIXED = Fault.loss_of_events(
    "time-without-zone",
    "Rows whose time lacks the zone that other rows of the file have were left out.",
)
AMBIGUOUS = Fault.error(
    "hour-comes-twice",
    "Rows lie in the hour that comes twice when summer time ends, and no row "
    "before or after shows in which of the two: they were put into the first.",
)
RESOLVED = Fault.info(
    "hour-comes-twice-resolved",
    "Rows lie in the hour that comes twice when summer time ends; their order shows in which.",
)
SKIPPED_HOUR = Fault.error(
    "hour-never-was",
    "Rows have times that the given zone skips when summer time begins: the zone is another.",
)
UNKNOWN = -1
"""Time of a row that has none."""
_NEAR_S = 1800
"""Rows closer than half of the repeated hour count as written without a break; chosen: a longer gap
could hide the step of the clock, a shorter one leaves more rows ambiguous."""


@dataclass(frozen=True)
class RowTimes:
    """Times of rows.

    Parameters
    ----------
    ns
        Nanoseconds since 1970; `UNKNOWN` where a row has none.
    resolution_ns
        Value of the last written digit.
    local
        Whether they are a wall clock's in an unknown zone.
    """

    ns: Array
    resolution_ns: int
    local: bool


def parse_zone(tz: str | None) -> tzinfo | None:
    """Return the zone of a name (``Europe/Berlin``, ``UTC``) or of an offset from UTC (``+02:00``).

    Raises
    ------
    UsageError
        There is no such zone.
    """
    if tz is None:
        return None
    name = tz.strip()
    if name.upper() in timestamps.UTC_NAMES:
        return timezone.utc
    offset = timestamps.UTC_OFFSET.fullmatch(name)
    if offset:
        away = timedelta(seconds=timestamps.offset_s(offset))
        if abs(away) < timedelta(days=1):
            return timezone(away)
    else:
        from zoneinfo import ZoneInfo

        try:
            return ZoneInfo(name)
        except (ValueError, OSError, KeyError):
            pass
    raise UsageError(f"-O tz={tz}: there is no such zone; say it as Europe/Berlin or +02:00")


def times_of_rows(texts: RowTexts, tz: str | None, issues: IssueLog) -> RowTimes:
    """Parse the timestamps of rows.

    Parameters
    ----------
    texts
        Timestamps in the order of the file; empty where a row has none.
    tz
        Zone of timestamps without one.
    issues
        Where rows of unknown or ambiguous zone are counted.
    """
    zone = parse_zone(tz)
    distinct = timestamps.with_year_first(texts.distinct)
    stamps = [timestamps.parse_timestamp(text) for text in distinct]
    code = texts.code
    known = np.array([s is not None for s in stamps], bool)[code]
    second = np.array([s.second if s else UNKNOWN for s in stamps], np.int64)[code]
    nanosecond = np.array([s.nanosecond if s else 0 for s in stamps], np.int64)[code]
    second += np.where(known, texts.offset_ns // timestamps.SECOND, 0)
    nanosecond += texts.offset_ns % timestamps.SECOND
    has_zone = np.array([bool(s and s.has_zone) for s in stamps], bool)[code]
    naive = (second >= 0) & ~has_zone
    if zone is not None:
        second[naive] = seconds_in_zone(second[naive], zone, issues)
    elif has_zone.any() and naive.any():
        issues.add(MIXED, np.count_nonzero(naive))
        second[naive] = UNKNOWN
    elif naive.any():
        issues.add(ZONE_UNKNOWN, np.count_nonzero(naive))
    known = (second >= 0) & (second <= timestamps.LATEST_S)
    local = zone is None and bool(naive.any()) and not has_zone.any()
    ns = np.where(known, second * timestamps.SECOND + nanosecond, UNKNOWN)
    digits = max((s.digits for s in stamps if s), default=0)
    return RowTimes(ns, 10 ** (9 - min(digits, 9)), local)


def seconds_in_zone(naive: Array, tz: tzinfo, issues: IssueLog) -> Array:
    """Convert what a wall clock showed to seconds since 1970.

    Parameters
    ----------
    naive
        Seconds since 1970 as if the clock showed UTC, rows in the order of the file.
    tz
        Zone of the clock.
    issues
        Where rows in hours that come twice or never are counted.
    """
    distinct, code = np.unique(naive, return_inverse=True)
    first, second = (np.empty(len(distinct), np.int64) for _ in range(2))
    exists = np.empty(len(distinct), bool)
    for i, value in enumerate(distinct.tolist()):
        wall = datetime.fromtimestamp(value, timezone.utc).replace(tzinfo=None)
        first[i], second[i] = (
            (wall.replace(tzinfo=tz, fold=fold) - timestamps.EPOCH) // timedelta(seconds=1)
            for fold in (0, 1)
        )
        exists[i] = datetime.fromtimestamp(int(first[i]), tz).replace(tzinfo=None) == wall
    issues.add(SKIPPED_HOUR, np.count_nonzero(~exists[code]))
    is_second = _in_second_hour(naive, (second > first)[code], issues)
    return np.where(is_second, second[code], first[code])


def _in_second_hour(naive: Array, ambiguous: Array, issues: IssueLog) -> Array:
    """Mask of rows that lie in the second of two equal hours.

    Ambiguous rows are taken run by run. A run ends where the clock steps back by more than a
    quarter of an hour, or where the repeated hour ends.
    """
    in_second = np.zeros(len(naive), bool)
    if not ambiguous.any():
        return in_second
    back = np.concatenate([[False], np.diff(naive) < -_NEAR_S // 2])
    begins = ambiguous & (back | ~np.concatenate([[False], ambiguous[:-1]]))
    for start in np.flatnonzero(begins).tolist():
        ends = np.flatnonzero(~ambiguous[start:] | begins[start:])
        ends = ends[ends > 0]
        stop = start + int(ends[0]) if ends.size else len(naive)
        resolved = _is_second_hour(naive, back, start, stop)
        issues.add(AMBIGUOUS if resolved is None else RESOLVED, stop - start)
        in_second[start:stop] = bool(resolved)
    return in_second


def _is_second_hour(naive: Array, back: Array, start: int, stop: int) -> bool | None:
    """True if rows [start, stop) lie in the second hour; None if no neighbouring row shows it."""
    if back[start]:
        return True
    if stop < len(naive) and back[stop]:
        return False
    if start and naive[start] - naive[start - 1] <= _NEAR_S:
        return False
    if stop < len(naive) and naive[stop] - naive[stop - 1] <= _NEAR_S:
        return True
    return None
