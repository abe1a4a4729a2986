"""Values of changes: times, factors, sizes and speeds as text."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from chopper_interop.analyses.methods.activity import counterparts
from chopper_interop.arrays import Array
from chopper_interop.schemas.time_units import NS_PER_UNIT

_TIME_PATTERN = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(ns|us|ms|s)?")
_MAX_NS = 10**15
"""Longest time that a change may set, about 11 days. Chosen: longer than any profile, and few enough
nanoseconds that sums of many fit 64 bits."""
_MAX_FACTOR = 1e6
"""Largest factor and number; divisors go down to one by this. Chosen: far beyond any real change, and
small enough that one change cannot overflow a time (`paths.MAX_TOTAL_NS` guards several)."""
_MAX_COUNT = 1024
"""Largest number of microbatches or stages. Chosen: more than any job has, and quick to schedule."""
_SIZES = {"MiB": 2**20, "MB": 10**6, "GiB": 2**30, "GB": 10**9, "KiB": 2**10, "kB": 10**3}
_BANDWIDTHS = {"GiB/s": 2**30 / 1e9, "GB/s": 1.0}
"""Units of bandwidth in 10^9 bytes a second. ASTRA-sim's analytical networks count in the first."""


class Time(NamedTuple):
    """A time to set or, written with a sign, to add."""

    ns: int
    is_added: bool

    def applied_to(self, lag: Array) -> Array:
        """Return lags with this time; lags below 0, where clocks contradict each other, stay."""
        new = np.maximum(lag + self.ns, 0) if self.is_added else np.full_like(lag, self.ns)
        return np.where(lag < 0, lag, new)


class Speed(NamedTuple):
    """A bandwidth of links in gigabytes a second, or a factor to what transfers took."""

    value: float
    is_factor: bool


def number(text: str) -> float:
    """Parse a number of no more than `_MAX_FACTOR`."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text or 'nothing'} is no number") from None
    if not abs(value) <= _MAX_FACTOR:
        raise ValueError(f"{text} is out of range: numbers go up to {_MAX_FACTOR:,.0f}")
    return value


def factor(text: str) -> float:
    """Parse a number that is 0 or more."""
    value = number(text)
    if value < 0:
        raise ValueError(f"{text} is less than 0")
    return value


def fusion_factor(text: str) -> float:
    """Parse the factor to durations of fused work; 1 if the text is empty."""
    return factor(text) if text else 1.0


def positive(text: str) -> float:
    """Parse a divisor: a number above 0 that is not too small."""
    value = number(text)
    if value <= 0:
        raise ValueError(f"{text} is not more than 0")
    if value < 1 / _MAX_FACTOR:
        raise ValueError(f"{text} is less than {1 / _MAX_FACTOR:g}")
    return value


def time(text: str) -> Time:
    """Parse a time such as ``"5us"``, or ``"+5us"`` to add; only 0 needs no unit."""
    match = _TIME_PATTERN.fullmatch(text)
    if match is None or (unit := NS_PER_UNIT[match[3] or "ns"]) * float(match[2]) > _MAX_NS:
        raise ValueError(f"{text or 'nothing'} is no time")
    if match[3] is None and float(match[2]):
        raise ValueError(f"{text} has no unit (ns, us, ms, s)")
    ns = round(float(match[2]) * unit)
    return Time(-ns if match[1] == "-" else ns, bool(match[1]))


def latency(text: str) -> int:
    """Parse a time without a sign; 0 if the text is empty."""
    value = time(text or "0")
    if value.is_added:
        raise ValueError(f"{text} has a sign")
    return value.ns


def optional_latency(text: str) -> int | None:
    """Parse a time without a sign; None if the text is empty."""
    return latency(text) if text else None


def length(text: str) -> int:
    """Parse the time of an operation, without a sign."""
    if not text:
        raise ValueError("it takes a time")
    return latency(text)


def group_size(text: str) -> int:
    """Parse a number of ranks; 0, for each group's own, if the text is empty."""
    if not text:
        return 0
    if not text.isdecimal() or not 2 <= int(text) <= _MAX_FACTOR:  # noqa: PLR2004 # one rank alone sends nothing
        raise ValueError(f"{text} is no number of ranks from 2 to {_MAX_FACTOR:,.0f}")
    return int(text)


def other_group_size(text: str) -> int:
    """Parse a number of ranks."""
    if not text:
        raise ValueError("it takes a number of ranks")
    return group_size(text)


def beta(text: str) -> float | None:
    """Parse a sensitivity; None, for each kernel's own by the trace, if the text is empty."""
    if not text:
        return None
    value = factor(text)
    if value > 1:
        raise ValueError(f"{text} is more than 1")
    return value


def across(text: str) -> str:
    """Parse one of `counterparts.ACROSS`; "both" if the text is empty."""
    if (text or "both") not in counterparts.ACROSS:
        raise ValueError(f"{text} is none of {', '.join(counterparts.ACROSS)}")
    return text or "both"


def no_value(text: str) -> None:
    """Raise `ValueError` unless the text is empty."""
    if text:
        raise ValueError("it takes no value")


def speed(text: str) -> Speed:
    """Parse a factor, or a bandwidth such as ``"50GB/s"`` or ``"50GiB/s"``."""
    for unit, gigabytes in _BANDWIDTHS.items():
        if text.endswith(unit):
            return Speed(positive(text.removesuffix(unit)) * gigabytes, is_factor=False)
    return Speed(positive(text), is_factor=True)


def size(text: str) -> int:
    """Parse a number of bytes such as ``"25MB"`` or ``"25MiB"``."""
    for unit, of_bytes in _SIZES.items():
        if text.endswith(unit):
            return max(round(positive(text.removesuffix(unit)) * of_bytes), 1)
    raise ValueError(f"{text or 'nothing'} is no size with a unit such as MB or MiB")


def optional_size(text: str) -> int:
    """Parse a number of bytes; 0 if the text is empty."""
    return size(text) if text else 0


def count(text: str) -> int:
    """Parse a number from 1 to `_MAX_COUNT`."""
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_COUNT:
        raise ValueError(f"{text or 'nothing'} is no number from 1 to {_MAX_COUNT:,}")
    return int(text)


def optional_count(text: str) -> int:
    """Parse such a number; 0 if the text is empty."""
    return count(text) if text else 0
