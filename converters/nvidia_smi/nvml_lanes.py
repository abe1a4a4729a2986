"""Names of lanes of NVML's values, shared by the tables of NVIDIA's tools."""

from __future__ import annotations

INSTANT, DRAW, AVERAGE = "socket power instant", "socket power draw", "socket power average"
SM, GRAPHICS = "SM clock", "graphics clock"

PREFERRED: dict[str, tuple[str, ...]] = {
    "socket power": (INSTANT, DRAW, AVERAGE),
    "gfx clock": (SM, GRAPHICS),
}
"""Lane → lanes that it is chosen from, the best first; the others keep their names.

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
"""Bit of ``clocks_event_reasons.active`` → name of its own column, and of its lane here.
Until driver 535 the group was named ``clocks_throttle_reasons``."""

ACTIVE = "throttle reasons active"
"""Lane of the mask."""
