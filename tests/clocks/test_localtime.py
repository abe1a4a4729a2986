"""Zones of wall clocks that do not tell them."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest

from chopper_interop.clocks import localtime

SECOND = 10**9
START = 1_700_000_000 * SECOND


@pytest.mark.parametrize("zone", localtime.ZONES)
def test_a_zone_is_found(zone: int) -> None:
    local = START + zone * localtime.MINUTE
    real = (START, START + 10 * SECOND)
    assert localtime.zones((local - SECOND, local + 20 * SECOND), real) == [zone]


def test_no_zone_or_several() -> None:
    assert localtime.zones((START, START), (START + 500 * SECOND,) * 2) == []
    day = (START - 3600 * SECOND, START + 3600 * SECOND)
    assert len(localtime.zones(day, (START, START + SECOND))) > 1


def test_all_zones_of_today_are_known() -> None:
    names = available_timezones()
    if not names:
        pytest.skip("this machine knows no time zones")
    year = [datetime(2026, month, 15) for month in range(1, 13)]  # noqa: DTZ001 # local on purpose
    offsets = {ZoneInfo(name).utcoffset(day) or timedelta(0) for name in names for day in year}
    assert {o // timedelta(minutes=1) for o in offsets} <= set(localtime.ZONES)


def test_text() -> None:
    assert [localtime.text(z) for z in (0, 120, -570)] == ["UTC+00:00", "UTC+02:00", "UTC-09:30"]
