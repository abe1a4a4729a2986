"""What NVIDIA's tools have in common, for all of them read NVML: units, masks, the best lane."""

from __future__ import annotations

import re

from chopper_interop.converters.telemetry_names import STATUS, Kind, Lane, Name

INSTANT, DRAW, AVERAGE = "socket power instant", "socket power draw", "socket power average"
SM, GRAPHICS = "SM clock", "graphics clock"

PREFERRED: dict[str, tuple[str, ...]] = {
    "socket power": (INSTANT, DRAW, AVERAGE),
    "gfx clock": (SM, GRAPHICS),
}
"""Lane → what stands for it, the best first: the others keep their names.

The draw is the mean over a second from Ampere on, except on GA100, so the instant comes first.
"""

REASONS: dict[int, tuple[str, str]] = {
    0x1: ("gpu_idle", "GPU idle"),
    0x2: ("applications_clocks_setting", "applications clocks setting"),
    0x4: ("sw_power_cap", "SW power cap"),
    0x8: ("hw_slowdown", "HW slowdown"),
    0x10: ("sync_boost", "sync boost"),
    0x20: ("sw_thermal_slowdown", "SW thermal slowdown"),
    0x40: ("hw_thermal_slowdown", "HW thermal slowdown"),
    0x80: ("hw_power_brake_slowdown", "HW power brake slowdown"),
    0x100: ("display_clock_setting", "display clock setting"),
}
"""Bit of ``clocks_event_reasons.active`` → what it is called alone, and its name here.
Until driver 535 the group was named ``clocks_throttle_reasons``."""

ACTIVE = "throttle reasons active"
"""Lane of the mask."""

MOST = {"W": 1e4, "MHz": 1e5, "°C": 200.0, "%": 1e4}
"""Unit of a lane → the most that a GPU can have of it."""
UNIT_IN_KEY = re.compile(r".*_mi?b|dmon_.*")
"""Columns of memory that tell the unit by their name, or are always in the same."""

UNITS: dict[str, tuple[str, float]] = {
    "B/s": ("Mb/s", 8e-6),
    "KB/s": ("Mb/s", 8e-3),
    "MB/s": ("Mb/s", 8.0),
    "GB/s": ("Mb/s", 8e3),
    "ratio": ("%", 100.0),
    "bool": ("", 1.0),
    "errs": ("", 1.0),
}
"""Units beside those of `telemetry_units`: what they become, and the factor. NVML does not say
whether its kilobytes are of 1000 or 1024; 1000 is taken."""


def status_of(bit: int) -> Name:
    """The lane of one bit of the mask."""
    name = STATUS + REASONS[bit][1]
    return Name(Lane("", name, "", Kind.STATE), name, name)
