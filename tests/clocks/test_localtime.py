"""Zones of wall clocks without a zone are determined by overlap in time."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest

from chopper_interop.clocks import time_zones

SECOND = 10**9
START = 1_700_000_000 * SECOND


@pytest.mark.parametrize("zone", time_zones.ZONES)
def test_the_only_overlapping_zone_is_a_candidate(zone: int) -> None:
    local = START + zone * time_zones.MINUTE_NS
    real = (START, START + 10 * SECOND)
    assert time_zones.candidate_zones((local - SECOND, local + 20 * SECOND), real) == [zone]


def test_no_candidate_zone_or_several() -> None:
    assert time_zones.candidate_zones((START, START), (START + 500 * SECOND,) * 2) == []
    day = (START - 3600 * SECOND, START + 3600 * SECOND)
    assert len(time_zones.candidate_zones(day, (START, START + SECOND))) > 1


def test_all_zones_of_the_installed_database_are_listed() -> None:
    names = available_timezones()
    if not names:
        pytest.skip("this machine knows no time zones")
    year = [datetime(2026, month, 15) for month in range(1, 13)]  # noqa: DTZ001 # local on purpose
    offsets = {ZoneInfo(name).utcoffset(day) or timedelta(0) for name in names for day in year}
    assert {o // timedelta(minutes=1) for o in offsets} <= set(time_zones.ZONES)


def test_zone_text() -> None:
    assert [time_zones.zone_text(z) for z in (0, 120, -570)] == [
        "UTC+00:00",
        "UTC+02:00",
        "UTC-09:30",
    ]
