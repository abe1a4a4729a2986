"""Time zones that a wall clock without a zone may be of."""

from __future__ import annotations

MINUTE_NS = 60_000_000_000
_HALVES = (-570, -210, -150, 210, 270, 330, 345, 390, 525, 570, 630, 765, 825)
"""Offsets of zones from UTC that are no whole hours, in minutes, daylight saving included; those of
the IANA database (a test compares them with the installed one)."""
ZONES = tuple(sorted([*range(-12 * 60, 15 * 60, 60), *_HALVES]))
"""All offsets from UTC that zones have, in minutes."""


def candidate_zones(local: tuple[int, int], real: tuple[int, int]) -> list[int]:
    """Offsets from UTC, in minutes, at which local times overlap real ones the longest.

    Parameters
    ----------
    local
        First and last time of a recording, as if its zone were UTC; nanoseconds.
    real
        First and last time of the recording next to it, since 1970 in UTC; nanoseconds.

    Returns
    -------
    list of int
        One if the zone is certain; none if they overlap in no zone.
    """
    shared = {zone: _overlap_ns(local, real, zone) for zone in ZONES}
    longest = max(shared.values())
    return [zone for zone, overlap in shared.items() if overlap >= 0 and overlap == longest]


def zone_text(zone: int) -> str:
    """Offset from UTC in minutes as text: ``UTC+05:30``."""
    hours, minutes = divmod(abs(zone), 60)
    return f"UTC{'-' if zone < 0 else '+'}{hours:02}:{minutes:02}"


def _overlap_ns(local: tuple[int, int], real: tuple[int, int], zone: int) -> int:
    """Nanoseconds that both have in common, negative if they are apart."""
    shift = zone * MINUTE_NS
    return min(local[1] - shift, real[1]) - max(local[0] - shift, real[0])
