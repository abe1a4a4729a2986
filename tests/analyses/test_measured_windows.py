"""Energy that was measured in windows: it counts as it is, where it is, and never twice."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from issue_counts import counts
from read_once import read_once
from shared_data import real

import chopper_interop as ci
from chopper_interop.analyses.efficiency import efficiency
from chopper_interop.analyses.energy import energy
from chopper_interop.analyses.telemetry import telemetry
from chopper_interop.annotate.telemetry.energy import energy_drawn
from chopper_interop.annotate.telemetry.samples import window_samples
from chopper_interop.converters.zeus.lanes import EnergyWindow, placed
from chopper_interop.issues import IssueLog

SECOND = 10**9
START = 1_714_566_896


def log(path: Path, *windows: tuple[float, float, float], start: int = START) -> Path:
    """A log of windows: begin, length in seconds, joules."""
    rows = [f"{start + begin},w{i},{length},{j}" for i, (begin, length, j) in enumerate(windows)]
    path.write_text("\n".join(["start_time,window_name,elapsed_time,gpu0_energy", *rows, ""]))
    return path


def row(trace: ci.Trace, **options: Any) -> dict[str, Any]:
    (rows,) = energy(trace, **options).rows.to_pylist()
    return rows


def test_real_windows_are_as_they_were_measured() -> None:
    path = real("telemetry/zeus_windows/A40+resnet18+gpu0,1,2,3.csv")
    logged = list(csv.DictReader(path.read_text().splitlines()))
    joules = [sum(float(line[f"gpu{gpu}_energy"]) for line in logged) for gpu in range(4)]
    seconds = sum(float(line["elapsed_time"]) for line in logged)
    trace = read_once(path)
    actual = energy(trace)
    assert actual.rows["energy_j"].to_pylist() == pytest.approx(joules, rel=1e-12)
    assert actual.rows["energy_by"].to_pylist() == ["windows"] * 4
    assert "between windows is not known" in actual.notes["windows"]
    (job_row,) = efficiency(trace, tokens=1000).rows.to_pylist()
    assert (job_row["gpus"], job_row["gpus_without_power"]) == (4, 0)
    assert job_row["energy_j"] == pytest.approx(sum(joules), rel=1e-12)
    assert job_row["time_ns"] == pytest.approx(seconds * SECOND, abs=9)
    assert job_row["j_per_token"] == pytest.approx(sum(joules) / 1000)
    series_rows = telemetry(trace, names="power within windows")
    assert series_rows.summary["gpus"] == 4
    means = [mean * seconds for mean in series_rows.rows["mean"].to_pylist()]
    assert means == pytest.approx(joules, rel=1e-9)


def test_windows_within_windows_count_once(tmp_path: Path) -> None:
    inner = ((0.5, 1.0, 100.0), (1.5, 1.0, 100.0), (3.0, 1.0, 300.0))
    trace = ci.read(log(tmp_path / "w.csv", *inner, (0.0, 5.0, 700.0), (6.0, 2.0, 200.0)))
    actual = row(trace)
    assert actual["energy_j"] == pytest.approx(900.0)
    assert actual["covered_ns"] == 7 * SECOND
    assert actual["peak_power_w"] == pytest.approx(300.0)


def test_what_counters_are_too_coarse_for_is_of_the_window_around(tmp_path: Path) -> None:
    trace = ci.read(log(tmp_path / "w.csv", (0.0, 1.0, 500.0), (0.0, 5.0, 400.0)))
    assert row(trace)["energy_j"] == pytest.approx(400.0)
    assert counts(trace)["windows-contradicted"] == 1


def test_windows_that_cross_do_not_count_twice(tmp_path: Path) -> None:
    trace = ci.read(log(tmp_path / "w.csv", (0.0, 2.0, 200.0), (1.0, 2.0, 200.0)))
    assert row(trace)["energy_j"] == pytest.approx(200.0)
    assert counts(trace)["windows-crossing"] == 1


WINDOWS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5), st.integers(0, 2)), max_size=12)


@given(WINDOWS)
def test_windows_apart_have_their_joules_whatever_follows_what(steps) -> None:
    now, made, total = 0, [], 0.0
    for gap, length, joules in steps:
        now += gap // 10 * SECOND
        made.append(EnergyWindow(now, now + length * SECOND, float(joules)))
        total += joules if length else 0
        now += length * SECOND
    points = placed(made, IssueLog())
    if not points:
        assert total == 0
        return
    power = window_samples([t for t, _ in points], [v for _, v in points], 0)
    (actual,), (known,) = energy_drawn([power], power.ts[:1], power.ts[-1:])
    assert actual == pytest.approx(total)
    assert known == sum(length for _, length, _ in steps) * SECOND


def profile(path: Path, *, base: int) -> Path:
    """A kernel of a second, from a second on."""
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1e6, "dur": 1e6}
    event["args"] = {"device": 0, "stream": 7, "correlation": 1}
    path.write_text(
        json.dumps(
            {
                "schemaVersion": 1,
                "baseTimeNanoseconds": base,
                "distributedInfo": {"rank": 0, "world_size": 1},
                "deviceProperties": [{"id": 0, "name": "NVIDIA A40"}],
                "traceEvents": [event],
            }
        )
    )
    return path


def test_windows_next_to_a_profile(tmp_path: Path) -> None:
    files = [profile(tmp_path / "p.json", base=START * SECOND)]
    files.append(log(tmp_path / "w.csv", (0.0, 5.0, 1000.0)))
    trace = ci.read(*files, map_device=["0=rank0"])
    actual = row(trace)
    assert actual["work_j"] == pytest.approx(200.0)
    assert actual["energy_by"] == "windows"
    (job_row,) = efficiency(trace).rows.to_pylist()
    assert job_row["energy_j"] == pytest.approx(200.0)


def test_joules_of_windows_that_cannot_be_placed_are_reported(tmp_path: Path) -> None:
    files = [profile(tmp_path / "p.json", base=START * SECOND)]
    files.append(log(tmp_path / "w.csv", (0.0, 5.0, 1000.0), (9.0, 1.0, 50.0), start=13_585_625))
    trace = ci.read(*files)
    (issue,) = (one for one in trace.meta.issues if one.code == "clock-unrelated")
    assert "1,050.0 J of GPU 0" in str(issue)
