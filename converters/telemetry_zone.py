"""What a wall clock in a zone showed, as seconds since 1970."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.errors import UsageError
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

AMBIGUOUS = Fault(
    "hour-comes-twice",
    Severity.ERROR,
    "Rows within the hour that comes twice when summer time ends, and nothing in front or behind "
    "tells which of the two: they were put into the first.",
)
FOLDED = Fault(
    "hour-comes-twice-told",
    Severity.INFO,
    "Rows within the hour that comes twice when summer time ends were told apart by their order.",
)
SKIPPED_HOUR = Fault(
    "hour-never-was",
    Severity.ERROR,
    "Rows have times that the given zone skips when summer time begins: the zone is another.",
)
OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)?")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_CLOSE_S = 1800
"""What is nearer than this was written in one go."""


def zone(tz: str | None) -> tzinfo | None:
    """The zone of that name, or of that distance from UTC.

    Raises
    ------
    UsageError
        There is none.
    """
    if tz is None:
        return None
    found = OFFSET.fullmatch(tz.strip())
    if tz.strip().upper() in ("Z", "UTC", "GMT"):
        return timezone.utc
    if found:
        minutes = int(found[2]) * 60 + int(found[3] or 0)
        if minutes < 24 * 60:
            return timezone(timedelta(minutes=-minutes if found[1] == "-" else minutes))
    else:
        from zoneinfo import ZoneInfo

        try:
            return ZoneInfo(tz.strip())
        except (ValueError, OSError, KeyError):
            pass
    raise UsageError(f"-O tz={tz}: there is no such zone; say it as Europe/Berlin or +02:00")


def in_zone(naive: Array, tz: tzinfo, issues: IssueLog) -> Array:
    """Seconds since 1970 of what a wall clock in a zone showed, rows in the order of the file."""
    distinct, code = np.unique(naive, return_inverse=True)
    first, second, valid = (np.empty(len(distinct), np.int64) for _ in range(3))
    for i, value in enumerate(distinct.tolist()):
        wall = datetime.fromtimestamp(value, timezone.utc).replace(tzinfo=None)
        both = [_seconds(wall.replace(tzinfo=tz, fold=fold)) for fold in (0, 1)]
        first[i], second[i] = both
        there = datetime.fromtimestamp(both[0], tz).replace(tzinfo=None)
        valid[i] = there == wall
    ambiguous = (second > first)[code]
    issues.add(SKIPPED_HOUR, np.count_nonzero(valid[code] == 0))
    late = _folds(naive, ambiguous, issues)
    return np.where(late, second[code], first[code])


def _seconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(seconds=1)


def _folds(naive: Array, ambiguous: Array, issues: IssueLog) -> Array:
    """Which of the rows in an hour that comes twice are in its second coming."""
    late = np.zeros(len(naive), bool)
    if not ambiguous.any():
        return late
    back = np.concatenate([[False], np.diff(naive) < -_CLOSE_S // 2])
    begins = ambiguous & (back | ~np.concatenate([[False], ambiguous[:-1]]))
    starts = np.flatnonzero(begins)
    for start in starts.tolist():
        ends = np.flatnonzero(~ambiguous[start:] | begins[start:])
        ends = ends[ends > 0]
        stop = start + int(ends[0]) if ends.size else len(naive)
        second = _is_second(naive, back, start, stop)
        if second is None:
            issues.add(AMBIGUOUS, stop - start)
        else:
            issues.add(FOLDED, stop - start)
            late[start:stop] = second
    return late


def _is_second(naive: Array, back: Array, start: int, stop: int) -> bool | None:
    """Whether rows [start, stop) are in the second coming; None if nothing beside them tells."""
    if back[start]:
        return True
    if stop < len(naive) and back[stop]:
        return False
    if start and naive[start] - naive[start - 1] <= _CLOSE_S:
        return False
    if stop < len(naive) and naive[stop] - naive[stop - 1] <= _CLOSE_S:
        return True
    return None
