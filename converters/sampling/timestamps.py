"""Times as tools and the scripts around them write them: one set of formats for every converter.

Understood are ISO 8601 dates (also ``2024/05/01 12:34:56.789``, ``20240501 12:34:56`` and ``20240501-123456``), what
``date`` and ``ctime`` print (``Wed May  1 12:34:56 UTC 2024``, with AM or PM, day before month),
and seconds, milli-, micro- or nanoseconds since 1970; dates that end in the year where their file shows
which number is the month (`with_year_first`). An offset from UTC is resolved; the name of
any zone but UTC is not, for such names (``CST``) are shared by several zones.

This module must stay free of heavy imports: converters use it to recognise files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation
from functools import cache, lru_cache
from typing import NamedTuple

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
"""Nanoseconds."""
LATEST_S = 4_000_000_000
"""Seconds since 1970 beyond which times are rejected (2096): sums of nanoseconds then still fit
into 64 bits."""
EARLIEST_S = 1_000_000_000
"""Numbers of seconds from here on are counted since 1970 (2001), smaller ones since some start: no
machine runs for as long."""
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
UTC_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)?")
UTC_NAMES = ("Z", "UTC", "GMT")

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"(?P<month_name>{'|'.join(_MONTHS)})"
_WEEKDAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,?"
_YEAR, _DAY = r"(?P<year>\d{4})", r"(?P<day>\d\d?)"
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?"
_HALF = r"(?P<half> [AP]M)?"
_ZONE = r"(?P<zone>Z|[+-]\d\d(?::?\d\d)?|[A-Z]{3,5})"
_FORMATS = (
    rf"{_YEAR}(?P<mark>[-/]?)(?P<month>\d\d)(?P=mark)(?P<day>\d\d)[T ,_-]+{_CLOCK}\s*{_ZONE}?",
    rf"{_YEAR}(?P<month>\d\d)(?P<day>\d\d)[T_-](?P<hour>\d\d)(?P<minute>\d\d)(?P<second>\d\d){_ZONE}?",
    rf"{_WEEKDAY} +{_MONTH} +{_DAY} +{_CLOCK}{_HALF}(?: +{_ZONE})? +{_YEAR}",
    rf"{_WEEKDAY} +{_DAY} +{_MONTH} +{_YEAR} +{_CLOCK}{_HALF}(?: +{_ZONE})?",
    r"(?P<epoch>\d{10}|\d{13}|\d{16}|\d{19})(?:\.(?P<decimals>\d*))?",
)
_NO_SIGN = r"(?<!^-)(?<![^\w-]-)"
"""Not behind a minus that is a sign: not one of several, nor one between a label and the time."""
_LABELLED = tuple(
    rf"\W*(?:(?:time|date|timestamp)\w*\s*[:=]?\s*)?\W*{_NO_SIGN}{form}\W*" for form in _FORMATS
)
_EPOCH_UNITS = {10: (SECOND, 0), 13: (MILLISECOND, 3), 16: (1_000, 6), 19: (1, 9)}
"""Digits of a present-day time before its decimal point → its unit in nanoseconds, and the decimals
of a second that the digits hold."""
_NUMERIC_DATE = re.compile(r"\s*(\d\d?)([-/.])(\d\d?)\2(\d{4})(?=[T ,_-])")
"""Day and month, or month and day, before the year."""
_TIME_OF_DAY = re.compile(
    r'(?:[^\n"{}|,]{0,40},)?[^\n"{}|,]{0,40}\b\d\d?:\d\d:\d\d\b[^\n"{}|,]{0,40}'
)
"""At most one comma, as between date and time; rows of values have more, or these signs."""
_LONGEST_LINE = 80
"""Longer lines are not searched for a time; the longest format takes about 40 characters."""
# Second that only a minute with a leap second has, and hour at which pm begins.
_LEAP_SECOND = 60
_NOON = 12


class Timestamp(NamedTuple):
    """A time as it was written.

    Parameters
    ----------
    second
        Seconds since 1970; without a known zone, as if the wall clock showed UTC.
    nanosecond
        Nanoseconds within the second.
    digits
        Decimals of the second that were written.
    has_zone
        Whether the zone is known.
    """

    second: int
    nanosecond: int
    digits: int
    has_zone: bool

    @property
    def ns(self) -> int:
        """Nanoseconds since 1970."""
        return self.second * SECOND + self.nanosecond


def parse_timestamp(text: str) -> Timestamp | None:
    """Parse a cell that holds a time and nothing else; None if it does not."""
    return _parse(text.strip(), _FORMATS)


def with_year_first(texts: Sequence[str]) -> Sequence[str]:
    """Write dates that end in the year with the year first, where all of a file show which number is the month.

    It is the order in which all are dates; if both are other days, the one in which these follow each other.
    """
    matches = [_NUMERIC_DATE.match(text) for text in texts]
    written = {(int(m[1]), int(m[3]), int(m[4])) for m in matches if m}
    days = {
        is_month_first: _days(written, is_month_first=is_month_first)
        for is_month_first in (False, True)
    }
    orders = [order for order in days if days[order]]
    if len(orders) > 1 and days[False] != days[True]:
        in_a_row = [order for order in orders if max(days[order]) - min(days[order]) < len(written)]
        orders = in_a_row if len(written) > 1 else []
    if not orders:
        return texts
    month, day = (1, 3) if orders[0] else (3, 1)
    return [
        f"{m[4]}-{int(m[month]):02}-{int(m[day]):02}{text[m.end() :]}" if m else text
        for m, text in zip(matches, texts, strict=True)
    ]


def _days(written: set[tuple[int, int, int]], *, is_month_first: bool) -> list[int]:
    """Return the numbers of days of dates in an order of their parts; empty if not all are dates."""
    try:
        return [
            (date(year, a, b) if is_month_first else date(year, b, a)).toordinal()
            for a, b, year in written
        ]
    except ValueError:
        return []


@lru_cache(maxsize=4096)
def parse_labelled_timestamp(text: str) -> Timestamp | None:
    """Parse a line or cell with a time, a label and punctuation (``== Time: … ==``), else None."""
    text = text.strip()
    if not text or len(text) > _LONGEST_LINE or not any(c.isdigit() for c in text):
        return None
    return _parse(text, _LABELLED)


def has_time_of_day(line: str) -> bool:
    """True for a line that shows a time of day and has no cells: a time, perhaps in a form that is not known."""
    return _TIME_OF_DAY.fullmatch(line) is not None


def split_leading_timestamp(line: str) -> tuple[str, str]:
    """Split a line into the timestamp that a script put in front, or "", and the rest.

    A timestamp is one word or two (date and time), perhaps in brackets.
    """
    words = line.split(None, 2)
    for count in (1, 2):
        if len(words) <= count:
            break
        if count == 1 and re.fullmatch(r"\d{8}", words[0]):
            continue  # a date, whose time is the next word
        stamp = " ".join(words[:count]).strip("[](),")
        if re.match(r"\d{4}-|\d{4}/|\d{10,}", stamp) and parse_timestamp(stamp) is not None:
            return stamp, line.split(None, count)[count].strip()
    return "", line


def nanoseconds(text: str, unit_ns: int = SECOND) -> int | None:
    """Convert a decimal number of a unit to whole nanoseconds, exactly; None if it is no number.

    Digits beyond the nanosecond are rounded to the nearest.
    """
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return None
    if not value.is_finite() or value.copy_abs() > LATEST_S * SECOND or "_" in text:
        return None
    ns = int((value * unit_ns).to_integral_value())
    return ns if abs(ns) <= LATEST_S * SECOND else None


@cache
def _pattern(form: str) -> re.Pattern[str]:
    """Compile a format when a time is looked for: it takes 5 ms for all, and each command imports this module."""
    return re.compile(form, re.IGNORECASE)


def _parse(text: str, formats: tuple[str, ...]) -> Timestamp | None:
    match = next((m for form in formats if (m := _pattern(form).fullmatch(text))), None)
    if match is None:
        return None
    parts = {name: value for name, value in match.groupdict().items() if value}
    return _from_epoch(parts) if "epoch" in parts else _from_calendar(parts)


def _from_epoch(parts: dict[str, str]) -> Timestamp | None:
    number, decimals = parts["epoch"], parts.get("decimals", "")
    unit_ns, digits = _EPOCH_UNITS[len(number)]
    ns = nanoseconds(f"{number}.{decimals}", unit_ns)
    if ns is None:
        return None
    return Timestamp(ns // SECOND, ns % SECOND, digits + len(decimals), has_zone=True)


def _from_calendar(parts: dict[str, str]) -> Timestamp | None:
    name = parts.get("month_name", "").lower()
    month = _MONTHS.index(name) + 1 if name else int(parts["month"])
    year, day, hour, minute, second = (
        int(parts[unit]) for unit in ("year", "day", "hour", "minute", "second")
    )
    if "half" in parts:
        hour = hour % _NOON + _NOON * (parts["half"].strip().upper() == "PM")
    leap = second == _LEAP_SECOND  # which datetime does not know
    try:
        time = datetime(year, month, day, hour, minute, second - leap, tzinfo=timezone.utc)
    except ValueError:
        return None
    zone = parts.get("zone", "").upper()
    offset = UTC_OFFSET.fullmatch(zone)
    epoch_s = (time - EPOCH) // timedelta(seconds=1) + leap - (offset_s(offset) if offset else 0)
    if not 0 <= epoch_s <= LATEST_S:
        return None
    fraction = parts.get("fraction", "")
    nanosecond = int(fraction[:9].ljust(9, "0"))
    return Timestamp(epoch_s, nanosecond, len(fraction), has_zone=bool(offset) or zone in UTC_NAMES)


def offset_s(offset: re.Match[str]) -> int:
    """Seconds that a match of `UTC_OFFSET` is ahead of UTC."""
    seconds = (int(offset[2]) * 60 + int(offset[3] or 0)) * 60
    return -seconds if offset[1] == "-" else seconds
