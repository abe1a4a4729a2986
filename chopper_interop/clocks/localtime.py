"""The zone of a wall clock that does not tell it."""

from __future__ import annotations

MINUTE = 60_000_000_000
"""Nanoseconds."""
_HALVES = (-570, -210, -150, 210, 270, 330, 345, 390, 525, 570, 630, 765, 825)
"""Offsets of zones from UTC that are no whole hours, in minutes, daylight saving included."""
ZONES = tuple(sorted([*range(-12 * 60, 15 * 60, 60), *_HALVES]))
"""All offsets from UTC that zones have, in minutes."""


def zones(local: tuple[int, int], real: tuple[int, int]) -> list[int]:
    """Offsets from UTC, in minutes, at which a window of local times holds most of a real one.

    Parameters
    ----------
    local
        First and last time of a recording, as if its zone were UTC; nanoseconds.
    real
        First and last time of what it was recorded beside, since 1970 in UTC; nanoseconds.

    Returns
    -------
    list of int
        One if the zone is sure; none if no zone brings the two together.
    """
    shared = {zone: _overlap(local, real, zone) for zone in ZONES}
    most = max(shared.values())
    return [zone for zone, overlap in shared.items() if overlap >= 0 and overlap == most]


def text(zone: int) -> str:
    """An offset as people write it: ``UTC+05:30``."""
    hours, minutes = divmod(abs(zone), 60)
    return f"UTC{'-' if zone < 0 else '+'}{hours:02}:{minutes:02}"


def _overlap(local: tuple[int, int], real: tuple[int, int], zone: int) -> int:
    """Nanoseconds that both have in common, negative if they are apart."""
    shift = zone * MINUTE
    return min(local[1] - shift, real[1]) - max(local[0] - shift, real[0])
