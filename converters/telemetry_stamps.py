"""Times as nvidia-smi and the scripts around it write them, as integer nanoseconds.

nvidia-smi writes what the wall clock shows, without a zone: ``2024/05/01 12:34:56.789`` in CSV,
``Wed May  1 12:34:56 2024`` in ``-q`` and ``20240501 12:34:56`` in ``dmon -o DT``. Scripts put
ISO 8601 stamps, with a zone or without, or seconds since 1970 in front.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns import arrow
from chopper_interop.converters.telemetry_numbers import LATEST_S, NOT_TOLD, SECOND, nanoseconds
from chopper_interop.converters.telemetry_zone import EPOCH, OFFSET, in_zone, zone
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array

ZONE_UNKNOWN = Fault(
    "times-of-wall-clock",
    Severity.INFO,
    "Times are those of a wall clock that does not tell its zone: -O tz=<Europe/Berlin or +02:00> "
    "does, or sources with times beside it.",
)
MIXED = Fault(
    "time-without-zone",
    Severity.LOSS,
    "Rows whose time lacks the zone that other rows of the file have were left out.",
    events=True,
)

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DATE = re.compile(
    r"(\d{4})([-/]?)(\d\d)\2(\d\d)[T ,]+(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?"
    r"\s*(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?",
    re.IGNORECASE,
)
_CTIME = re.compile(
    r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d\d?) (\d\d):(\d\d):(\d\d) (?:([A-Z]{1,5}) )?(\d{4})"
)
_NUMBER = re.compile(r"\d{9,19}(?:\.\d*)?")
_EPOCH_UNITS = ((10, SECOND), (13, 1_000_000), (16, 1_000), (19, 1))
"""Digits in front of the point of a time of our days → nanoseconds in its unit."""


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
        second[naive] = in_zone(second[naive], known, issues)
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
        day, hour, minute, second, year = (int(ctime[n]) for n in (2, 3, 4, 5, 7))
        month = _MONTHS.index(ctime[1].lower()) + 1
        utc = ctime[6] if ctime[6] in ("UTC", "GMT", "Z") else None  # no other name is of one zone
        return _of_parts([year, month, day, hour, minute, second], "", utc)
    return _of_number(text) if _NUMBER.fullmatch(text) else None


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
    second = (moment - EPOCH) // timedelta(seconds=1) + leap
    nanosecond = int(fraction[:9].ljust(9, "0")) if fraction else 0
    if offset:
        told = OFFSET.fullmatch(offset)
        if told:
            away = (int(told[2]) * 60 + int(told[3] or 0)) * 60
            second -= -away if told[1] == "-" else away
    if not 0 <= second <= LATEST_S:
        return None
    return Stamp(second, nanosecond, len(fraction), zoned=bool(offset))
