"""Interpolation between two samples of a series: one table for all that tools sample.

Quantities of nodes (`telemetry.quantity_series`) are joined as there: power and temperatures go straight
from sample to sample, clocks and throttling hold until the next one. All other power and
temperature goes straight as well, and so do counters; whatever else is sampled holds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from chopper_interop.annotate.telemetry.quantity_series import QUANTITIES


class How(Enum):
    """Ways to join samples."""

    HELD = "a value holds until the next sample"
    STRAIGHT = "values go straight from sample to sample"
    COUNTER = "counts up, straight from sample to sample, or begins again"
    STEADY = "a sample where the value changed: it holds until the next, however late that is"
    WINDOW = "the mean of a window, from its beginning to its end"
    LOGGED = "as STEADY, and one more where logging ended"


@dataclass(frozen=True)
class Rule:
    """Interpretation of a series.

    Parameters
    ----------
    how
        The way to join its samples.
    minimum, maximum
        Bounds that it cannot be below or above, in its own unit.
    """

    how: How
    minimum: float = float("-inf")
    maximum: float = float("inf")


_COUNTERS = re.compile(
    r"energy|energy counter|.* bytes (?:sent|received)|CPU \S+ (?:busy|idle|I/O wait) time"
    r"|throttle (?:time|residency) .*|accumulation counter|\w+ activity counter"
    r"|GFX busy accumulated.*|XGMI (?:read|written) (?:GPU|link) \d+|.*XGMI (?:Read|Write) Data.*"
    r"|.*PCIe Bandwidth Acc.*|\w+_acc(?:_\d+)?(?: \d+)?|clocks_event_reasons_counters_\w+"
    r"|process \d+ (?:GFX|encoder|SDMA|evicted) time"
)
_STEADY = re.compile(
    r"(?!temperature GPU below).*\b(?:limit|min|max|minimum|maximum|total|count|counts)|power limit.*|ECC .*"
    r"|PCIe generation.*|PCIe width max|throttle reasons (?:active|supported)|performance state"
    r"|(?:memory )?overdrive|voltage curve .*|XID error|gpu_metrics .*|.* clock application"
    r"|.* clock in sleep|temperature GPU (?:slowdown|shutdown)|voltage curve.*"
)
_LOGGED = re.compile(r"gpu \d+ \w+clk")
"""Monitors of rpd whose GPU is not known; of others see `telemetry.quantity_series`."""
_STRAIGHT_UNITS = frozenset({"W", "watts", "mW", "°C", "C", "deg C"})
_ZERO = {"W": (0.0, 1e5), "°C": (-273.15, 1e4), "MHz": (0.0, 1e5)}
"""Bounds that no GPU's values exceed, by unit."""


def rule(name: str, unit: str) -> Rule:
    """Return the rule by which a series is interpreted.

    Parameters
    ----------
    name, unit
        Its name and unit.
    """
    for quantity in QUANTITIES:
        for pattern in quantity.patterns:
            if pattern.match(name) and unit in pattern.units and not pattern.is_counter:
                how = How.STRAIGHT if quantity.is_linear else How.HELD
                factor = pattern.units[unit]
                if pattern.is_status:
                    return Rule(how)
                how = How.LOGGED if pattern.is_logged else How.WINDOW if pattern.is_window else how
                return Rule(how, quantity.min_value / factor, quantity.max_value / factor)
    limits = _ZERO.get(unit, (float("-inf"), float("inf")))
    if _COUNTERS.fullmatch(name):
        return Rule(How.COUNTER)
    if _LOGGED.fullmatch(name):
        return Rule(How.LOGGED, *limits)
    if _STEADY.fullmatch(name):
        return Rule(How.STEADY, *limits)
    return Rule(How.STRAIGHT if unit in _STRAIGHT_UNITS else How.HELD, *limits)
