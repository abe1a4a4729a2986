"""Timestamps of all tools: one set of formats, exact to the nanosecond."""

import subprocess
import sys

import pytest

from chopper_interop.converters.sampling.timestamps import (
    nanoseconds,
    parse_labelled_timestamp,
    parse_timestamp,
    split_leading_timestamp,
    with_year_first,
)

START_NS = 1_714_566_896_789_000_000
T = 1_754_585_903
MS = 1_000_000
SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2024/05/01 12:34:56.789", START_NS),
        ("2024-05-01T12:34:56.789Z", START_NS),
        ("2024-05-01 14:34:56,789+0200", START_NS),
        ("1714566896.789", START_NS),
        ("1714566896789", START_NS),
        ("1714566896789000", START_NS),
        ("1714566896789000000", START_NS),
        ("Wed May  1 12:34:56 2024", START_NS - 789 * MS),
        ("Wed May  1 12:34:56 UTC 2024", START_NS - 789 * MS),
        ("20240501 12:34:56", START_NS - 789 * MS),
        ("1758685713.4934567891", 1_758_685_713_493_456_789),
    ],
)
def test_stamps_are_exact(text: str, ns: int) -> None:
    stamp = parse_timestamp(text)
    assert stamp is not None
    assert stamp.second * 10**9 + stamp.nanosecond == ns


@pytest.mark.parametrize("text", ["", "soon", "2024/13/01 00:00:00", "1e400", "-1", "nan", "1_000"])
def test_no_stamps(text: str) -> None:
    assert parse_timestamp(text) is None


@pytest.mark.parametrize(
    ("dates", "iso"),
    [
        (["03-11-2026", "03-12-2026"], ["2026-03-11", "2026-03-12"]),  # else 30 days apart
        (["30/4/2024", "1/5/2024"], ["2024-04-30", "2024-05-01"]),
        (["12.31.2024", "01.01.2025"], ["2024-12-31", "2025-01-01"]),
        (["25/12/2024"], ["2024-12-25"]),
        (["05/01/2024"], ["05/01/2024"]),
        (["05/05/2024"], ["2024-05-05"]),
        (["02/29/2024"], ["2024-02-29"]),
        (["2/1/2024", "1/1/2024", "1/2/2024"], ["2/1/2024", "1/1/2024", "1/2/2024"]),
        (["05/01/2024", "07/03/2024"], ["05/01/2024", "07/03/2024"]),
        (["13/01/2024", "01/13/2024"], ["13/01/2024", "01/13/2024"]),
    ],
)
def test_dates_that_end_in_the_year_are_read_where_their_file_shows_the_month(
    dates: list[str], iso: list[str]
) -> None:
    texts = [f"{date} 12:34:56.5" for date in dates]
    assert with_year_first([*texts, ""]) == [*(f"{d} 12:34:56.5" for d in iso), ""]


def test_decimal_seconds() -> None:
    assert nanoseconds("1714566896.123456789") == 1_714_566_896_123_456_789
    assert nanoseconds("13585625.187147852") == 13_585_625_187_147_852
    assert nanoseconds("inf") is None


@pytest.mark.parametrize(
    ("text", "ns", "whole", "local"),
    [
        ("1754585903", T * SECOND, True, False),
        ("1754585903.5", T * SECOND + SECOND // 2, False, False),
        ("1754585903500", T * SECOND + SECOND // 2, False, False),
        ("=== Time: 2025-08-07 16:58:23 UTC ===", T * SECOND, True, False),
        ("2025-08-07T16:58:23.123456789Z", T * SECOND + 123_456_789, False, False),
        ("2025-08-07 16:58:23,25", T * SECOND + SECOND // 4, False, True),
        ("Thu Aug 7 04:58:23 PM UTC 2025", T * SECOND, True, False),
        ("Thu 07 Aug 2025 04:58:23 PM UTC", T * SECOND, True, False),
        ("--- 1754585903 ---", T * SECOND, True, False),
        ("---1754585903---", T * SECOND, True, False),
        ("time-1754585903", T * SECOND, True, False),
        ("-1754585903", None, None, None),  # it was 1754585903
        ("Time: -1754585903.5", None, None, None),
        ("Do 7. Aug 16:58:23 CEST 2025", None, None, None),
        ("card0,35.0", None, None, None),
        ("2025-13-45 16:58:23", None, None, None),
        ("9999999999", None, None, None),
    ],
)
def test_times_with_a_label_around_them(
    text: str, ns: int | None, whole: object, local: object
) -> None:
    stamp = parse_labelled_timestamp(text)
    parsed = (stamp.ns, stamp.digits == 0, not stamp.has_zone) if stamp else (None, None, None)
    assert parsed == (ns, whole, local)


@pytest.mark.parametrize(
    ("line", "stamp", "rest"),
    [
        ("2024-05-01 12:34:56 GPU 0", "2024-05-01 12:34:56", "GPU 0"),
        ("[1714566896.5] GPU 0", "1714566896.5", "GPU 0"),
        ("20240501 12:34:56 0 300", "", "20240501 12:34:56 0 300"),
        ("GPU 0 300", "", "GPU 0 300"),
    ],
)
def test_timestamps_in_front_of_lines(line: str, stamp: str, rest: str) -> None:
    assert split_leading_timestamp(line) == (stamp, rest)


@pytest.mark.parametrize(
    "text",
    [
        "2024-05-01 25:00:00",
        "2024-02-30 00:00:00",
        "2024-05-01 12:00:61",
        "171456689678",
        "20240501",
    ],
)
def test_impossible_times_are_rejected_with_and_without_a_label(text: str) -> None:
    assert parse_timestamp(text) is None
    assert parse_labelled_timestamp(f"== Time: {text} ==") is None


FORMATS = (
    "chopper_interop.converters.amd_smi",
    "chopper_interop.converters.nvidia_smi",
    "chopper_interop.converters.zeus",
)
HEAVY = (
    "numpy",
    "pyarrow",
    "chopper_interop.converters.amd_smi.csv",
    "chopper_interop.converters.amd_smi.rocm_smi_csv",
    "chopper_interop.converters.nvidia_smi.csv",
    "chopper_interop.converters.zeus.rows",
)


def test_formats_load_no_readers() -> None:
    """Recognising a file is quick: neither NumPy nor Arrow nor any reader is loaded for it."""
    code = f"import sys, {', '.join(FORMATS)}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
