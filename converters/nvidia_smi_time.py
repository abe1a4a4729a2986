"""Times as nvidia-smi and the scripts around it write them, as integer nanoseconds.

nvidia-smi writes what the wall clock shows, without a zone: ``2024/05/01 12:34:56.789`` in CSV,
``Wed May  1 12:34:56 2024`` in ``-q`` and ``20240501 12:34:56`` in ``dmon -o DT``. Scripts put
ISO 8601 stamps, with a zone or without, or seconds since 1970 in front.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop import arrow
from chopper_interop.errors import UsageError
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]

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
ZONE_UNKNOWN = Fault(
    "zone-unknown",
    Severity.INFO,
    "Times are those of a wall clock without its zone. Give -O tz=<Europe/Berlin or +02:00>.",
)
MIXED = Fault(
    "time-without-zone",
    Severity.LOSS,
    "Rows whose time lacks the zone that other rows of the file have were left out.",
    events=True,
)

SECOND = 1_000_000_000
LATEST_S = 4_000_000_000
"""Epoch seconds beyond which nanoseconds with room for sums leave 64 bits (2096)."""
NOT_TOLD = -1

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {
    m: n
    for n, m in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1
    )
}
_DATE = re.compile(
    r"(\d{4})([-/]?)(\d\d)\2(\d\d)[T ,]+(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?"
    r"\s*(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?",
    re.IGNORECASE,
)
_CTIME = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d\d?) (\d\d):(\d\d):(\d\d) (\d{4})")
_NUMBER = re.compile(r"\d{9,19}(?:\.\d*)?")
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)?")
_EPOCH_UNITS = ((10, SECOND), (13, 1_000_000), (16, 1_000), (19, 1))
"""Digits in front of the point of a time of our days → nanoseconds in its unit."""
_CLOSE_S = 1800
"""What is nearer than this was written in one go."""


class Stamp(NamedTuple):
    """A time as it was written.

    Parameters
    ----------
    second
        Seconds since 1970, as if the wall clock's zone were UTC if none is told.
    nanosecond
        The rest.
    digits
        Decimals of the second.
    zoned
        Whether it is UTC.
    """

    second: int
    nanosecond: int
    digits: int
    zoned: bool


@dataclass(frozen=True)
class Times:
    """Times of rows.

    Parameters
    ----------
    ns
        Nanoseconds since 1970; -1 where none is told.
    resolution_ns
        What the last digit stands for.
    local
        Whether they are a wall clock's, in a zone that is not known.
    """

    ns: Array
    resolution_ns: int
    local: bool


def zone(tz: str | None) -> tzinfo | None:
    """The zone of that name, or of that distance from UTC.

    Raises
    ------
    UsageError
        There is none.
    """
    if tz is None:
        return None
    found = _OFFSET.fullmatch(tz.strip())
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


def times_of(texts: Sequence[str], tz: str | None, issues: IssueLog) -> Times:
    """Times of rows in the order of the file.

    Parameters
    ----------
    texts
        What is written; empty where nothing is.
    tz
        Zone of those that have none.
    issues
        Where it is noted what the zone leaves open.
    """
    known = zone(tz)
    encoded = arrow.texts(list(texts)).dictionary_encode()
    stamps = [stamp_of(text) for text in encoded.dictionary.to_pylist()]
    code = arrow.numbers(encoded).astype(np.int64)
    second = np.array([s.second if s else NOT_TOLD for s in stamps], np.int64)[code]
    rest = np.array([s.nanosecond if s else 0 for s in stamps], np.int64)[code]
    zoned = np.array([bool(s and s.zoned) for s in stamps], bool)[code]
    told = second >= 0
    digits = max((s.digits for s in stamps if s), default=0)
    naive = told & ~zoned
    if known is not None:
        second[naive] = _in_zone(second[naive], known, issues)
    elif zoned.any() and naive.any():
        issues.add(MIXED, np.count_nonzero(naive))
        second[naive] = NOT_TOLD
    elif naive.any():
        issues.add(ZONE_UNKNOWN, np.count_nonzero(naive))
    good = (second >= 0) & (second <= LATEST_S)
    local = known is None and bool(naive.any()) and not zoned.any()
    ns = np.where(good, second * SECOND + rest, NOT_TOLD)
    return Times(ns, 10 ** (9 - min(digits, 9)), local)


def stamp_of(text: str) -> Stamp | None:
    """The time that a text is; None if it is none, or none that fits into 64 bits."""
    text = text.strip()
    found = _DATE.fullmatch(text)
    if found:
        year, _, month, day, *clock, fraction, offset = found.groups()
        parts = [year, month, day, *clock]
        return _of_parts([int(p) for p in parts], fraction or "", offset)
    ctime = _CTIME.fullmatch(text)
    if ctime and ctime[1].lower() in _MONTHS:
        day, hour, minute, second, year = (int(ctime[n]) for n in range(2, 7))
        month = _MONTHS[ctime[1].lower()]
        return _of_parts([year, month, day, hour, minute, second], "", None)
    return _of_number(text) if _NUMBER.fullmatch(text) else None


def nanoseconds(text: str, unit_ns: int = SECOND) -> int | None:
    """A decimal number of seconds in whole nanoseconds, exactly; None if it is none.

    Digits beyond the nanosecond are rounded to the nearest.
    """
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return None
    if not value.is_finite() or abs(value) > LATEST_S * SECOND or "_" in text:
        return None
    ns = int((value * unit_ns).to_integral_value())
    return ns if abs(ns) <= LATEST_S * SECOND else None


def _of_number(text: str) -> Stamp | None:
    whole, _, fraction = text.partition(".")
    unit = next((unit for digits, unit in _EPOCH_UNITS if len(whole) <= digits), 1)
    ns = nanoseconds(text, unit)
    if ns is None:
        return None
    digits = {SECOND: 0, 1_000_000: 3, 1_000: 6, 1: 9}[unit] + len(fraction)
    return Stamp(ns // SECOND, ns % SECOND, digits, zoned=True)


def _of_parts(parts: list[int], fraction: str, offset: str | None) -> Stamp | None:
    leap = parts[5] == 60  # noqa: PLR2004 - a leap second, which datetime does not know
    try:
        moment = datetime(*parts[:5], parts[5] - leap, tzinfo=timezone.utc)  # type: ignore[misc,arg-type]
    except ValueError:
        return None
    second = (moment - _EPOCH) // timedelta(seconds=1) + leap
    nanosecond = int(fraction[:9].ljust(9, "0")) if fraction else 0
    if offset:
        told = _OFFSET.fullmatch(offset)
        if told:
            away = (int(told[2]) * 60 + int(told[3] or 0)) * 60
            second -= -away if told[1] == "-" else away
    if not 0 <= second <= LATEST_S:
        return None
    return Stamp(second, nanosecond, len(fraction), zoned=bool(offset))


def _in_zone(naive: Array, tz: tzinfo, issues: IssueLog) -> Array:
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
    return (moment - _EPOCH) // timedelta(seconds=1)


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
