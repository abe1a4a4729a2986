"""Times in amd-smi's CSV as scripts around it write them: with a fraction of a second, or before 1970."""

import json
from pathlib import Path

import numpy as np
import pytest

import chopper_interop as ci
from chopper_interop.errors import ReadError

HEADER = "timestamp,gpu,gfx_activity,socket_power"
START = 1_700_000_000


def write(path: Path, stamps: list[str]) -> Path:
    rows = [
        f"{stamp},{gpu},{k % 100},{300 + gpu}" for k, stamp in enumerate(stamps) for gpu in (0, 1)
    ]
    path.write_text("\n".join([HEADER, *rows, ""]))
    return path


def times(trace: ci.Trace, device: int) -> list[int]:
    """Nanoseconds since 1970 of the activity of a GPU."""
    (row,) = (
        k
        for k, series in enumerate(trace.series.to_pylist())
        if (series["name"], series["device"]) == ("GFX activity", device)
    )
    of_series = trace.array("series", "samples") == row
    return [int(ts) + trace.meta.origin_ns for ts in trace.array("ts", "samples")[of_series]]


@pytest.mark.parametrize("digits", [1, 3, 6, 7, 9])
def test_fractions_are_exact_to_the_nanosecond(tmp_path: Path, digits: int) -> None:
    """As floating-point numbers, times of today have steps of 238 ns."""
    rng = np.random.default_rng(digits)
    unit = 10 ** (9 - digits)
    gaps = rng.integers(1, 3 * 10**9 // unit, 500) * unit
    expected = (START * 10**9 + np.cumsum(gaps)).tolist()
    stamps = [f"{ns // 10**9}.{ns % 10**9 // unit:0{digits}d}" for ns in expected]
    # as Python writes them, zeros at the end left out
    stamps = [f"{s.rstrip('0')}0" if s.endswith("00") and k else s for k, s in enumerate(stamps)]
    trace = ci.read(write(tmp_path / "a.csv", stamps))
    assert times(trace, 0) == times(trace, 1) == expected
    uncertainty = set(trace.series["uncertainty_ns"].to_pylist())
    assert uncertainty == {10_000_000 + unit}
    assert "time-spread" not in {issue.code for issue in trace.meta.issues}


def test_whole_seconds_among_fractions_are_exact_too(tmp_path: Path) -> None:
    stamps = [f"{START}.25", f"{START + 1}", f"{START + 2}.5"]
    trace = ci.read(write(tmp_path / "a.csv", stamps))
    assert times(trace, 1) == [START * 10**9 + ns for ns in (250_000_000, 10**9, 2_500_000_000)]


def test_fractions_are_read_wherever_they_begin(tmp_path: Path) -> None:
    """Behind 64 KB of whole seconds the rows were left out."""
    whole = [str(START + k) for k in range(4000)]
    path = write(tmp_path / "a.csv", [*whole, f"{START + 4000}.25"])
    assert path.stat().st_size > 1 << 17
    trace = ci.read(path)
    expected = [int(stamp) * 10**9 for stamp in whole]
    assert times(trace, 1) == [*expected, (START + 4000) * 10**9 + 250_000_000]
    assert not [issue.code for issue in trace.meta.issues if issue.severity == "loss"]


def test_times_before_1970_are_named(tmp_path: Path, run) -> None:
    """The line said that the file holds no rows."""
    path = write(tmp_path / "a.csv", ["-1700000000", "-1"])
    with pytest.raises(ReadError, match="time is negative, before 1970"):
        ci.read(path)
    status, _, stderr = run("convert", "-q", path, "-o", tmp_path / "a.parquet")
    assert (status, stderr.count("\n")) == (4, 1)
    trace = ci.read(write(path, ["-1.5", f"{START}.5", "soon 5", "7 days", f"{START + 1}.5"]))
    counts = {issue.code: issue.count for issue in trace.meta.issues}
    assert counts["time-before-1970"] == 2
    assert counts["stamp-not-understood"] == 2
    assert len(times(trace, 0)) == 2
    assert (
        sum(issue.count for issue in trace.meta.issues if issue.events)
        <= trace.meta.sources[0].events
    )


def test_times_before_1970_in_json_are_named(tmp_path: Path) -> None:
    stamps = (-5, -4, START, START + 1, "N/A")
    rows = [
        {"gpu": gpu, "timestamp": stamp, "usage": {"gfx_activity": {"value": 9, "unit": "%"}}}
        for stamp in stamps
        for gpu in (0, 1)
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows, indent=4))
    trace = ci.read(path)
    counts = {issue.code: issue.count for issue in trace.meta.issues}
    assert (counts["time-before-1970"], counts["row-as-samples"]) == (4, 4)
    assert len(times(trace, 0)) == 2
    path.write_text(json.dumps(rows[:4]))
    with pytest.raises(ReadError, match="time is negative, before 1970"):
        ci.read(path)


def test_the_options_give_rows_a_time_whose_own_is_unreadable(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", ["2024-05-01 12:00:00", "2024-05-01 12:00:01"])
    with pytest.raises(ReadError, match="written in a way that is not understood"):
        ci.read(path)
    assert times(ci.read(path, at_ns=START * 10**9, period_ms=1000), 0) == [
        (START - 1) * 10**9,
        START * 10**9,
    ]


def _table_of(stamps: range) -> str:
    rows = (f"{stamp}  {gpu}  600 W\n" for stamp in stamps for gpu in range(8))
    return "TIMESTAMP  GPU  POWER\n" + "".join(rows)


def _blocks_of(stamps: range) -> str:
    return "".join(
        f"GPU: {gpu}\n    TIMESTAMP: {stamp}\n    POWER:\n        SOCKET_POWER: 600 W\n\n"
        for stamp in stamps
        for gpu in range(8)
    )


def _rows_of(stamps: range) -> str:
    rows = (f"{stamp},{gpu},600\n" for stamp in stamps for gpu in range(8))
    return "timestamp,gpu,socket_power\n" + "".join(rows)


@pytest.mark.parametrize("text", [_table_of, _blocks_of, _rows_of])
def test_times_before_1970_of_many_gpus_are_named(text, tmp_path: Path) -> None:
    """Rows of one time, from three on, counted as without a time."""
    path = tmp_path / "a.csv"
    path.write_text(text(range(-START, 4 - START)))
    with pytest.raises(ReadError, match="time is negative, before 1970"):
        ci.read(path)
    path.write_text(text(range(-START, 4 - START)) + text(range(START, START + 3)))
    counts = {issue.code: issue.count for issue in ci.read(path).meta.issues}
    assert (counts["time-before-1970"], counts["row-as-samples"]) == (32, 24)
    assert "row-without-time" not in counts
