"""Times that stand beside rocm-smi's outputs: lines that a loop echoed, or cells that it added.

rocm-smi itself writes none. Understood are epoch times of any unit, ISO 8601, and what ``date``
prints; a zone other than UTC is understood only as an offset.
"""

from __future__ import annotations

import calendar
import re
from functools import lru_cache
from typing import NamedTuple

from chopper_interop.converters.telemetry_numbers import LATEST_S

SECOND = 1_000_000_000
_DIGITS = 9
_MONTHS = {name: n for n, name in enumerate(calendar.month_abbr) if name}
_MONTH = "|".join(_MONTHS)
_CLOCK = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<part>\d{1,9})\d*)?"
_ZONE = r"(?P<zone>Z|UTC|GMT|[+-]\d\d:?\d\d|[A-Z]{3,5})"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,?"
_FORMS = (
    rf"(?P<Y>\d{{4}})[-/](?P<M>\d\d)[-/](?P<D>\d\d)[T _-]{_CLOCK} ?{_ZONE}?",
    rf"{_DAY} +(?P<Mon>{_MONTH}) +(?P<D>\d\d?) +{_CLOCK}(?P<half> [AP]M)?(?: +{_ZONE})? +(?P<Y>\d{{4}})",
    rf"{_DAY} +(?P<D>\d\d?) +(?P<Mon>{_MONTH}) +(?P<Y>\d{{4}}) +{_CLOCK}(?P<half> [AP]M)?(?: +{_ZONE})?",
    r"(?P<epoch>\d{10})(?:\.(?P<part>\d{1,9})\d*)?",
    r"(?P<epoch>\d{10})(?P<part>\d{3}|\d{6}|\d{9})",
)
_PATTERNS = [
    re.compile(rf"\W*(?:(?:time|date|timestamp)\w*\s*[:=]?\s*)?\W*{form}\W*", re.IGNORECASE)
    for form in _FORMS
]
_LONGEST = 80
_NOON = 12


class Moment(NamedTuple):
    """A time that was told: nanoseconds, whether in whole seconds, whether without its zone."""

    ns: int
    whole: bool
    local: bool


@lru_cache(maxsize=4096)
def moment(text: str) -> Moment | None:
    """The time that a line or cell tells; None if it is something else."""
    text = text.strip()
    if not text or len(text) > _LONGEST or not any(c.isdigit() for c in text):
        return None
    found = next((m for p in _PATTERNS if (m := p.fullmatch(text))), None)
    if found is None:
        return None
    told = {name: value for name, value in found.groupdict().items() if value}
    part = told.get("part", "")
    fraction = int(part.ljust(_DIGITS, "0")) if part else 0
    seconds = int(told["epoch"]) if "epoch" in told else _seconds(told)
    if seconds is None or not 0 <= seconds <= LATEST_S:
        return None
    zone = told.get("zone", "").upper()
    local = "epoch" not in told and not (zone in ("Z", "UTC", "GMT") or zone[:1] in ("+", "-"))
    return Moment(seconds * SECOND + fraction, not part, local)


def _seconds(told: dict[str, str]) -> int | None:
    """Epoch seconds of a calendar time; of one without a zone, as if it were UTC."""
    month = int(told["M"]) if "M" in told else _MONTHS[told["Mon"].capitalize()]
    year, day, minute, second = (int(told[k]) for k in ("Y", "D", "m", "s"))
    hour = int(told["h"])
    half = told.get("half", "").strip().upper()
    if half:
        hour = hour % _NOON + _NOON * (half == "PM")
    try:
        days = calendar.timegm((year, month, day, hour, minute, second))
        calendar.weekday(year, month, day)
    except (ValueError, OverflowError):
        return None
    zone = told.get("zone", "")
    if zone[:1] in ("+", "-") and zone:
        sign = -1 if zone[0] == "+" else 1
        hours, minutes = int(zone[1:3]), int(zone[-2:])
        days += sign * (hours * 3600 + minutes * 60)
    return days
