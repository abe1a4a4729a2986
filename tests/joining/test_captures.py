"""Several files of telemetry of the same GPUs: each GPU is one, and each time counts once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from read_once import read_once
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop import pipeline
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.errors import AmbiguousRunError
from chopper_interop.issues import IssueLog, Severity
from chopper_interop.joining import telemetry_files

if TYPE_CHECKING:
    from pathlib import Path

BASE = 1_760_000_000
REAL = {
    "amd_smi_real_8xmi355x": 8,
    "nvidia_smi_real/8gpu_iso8601_0.24s.csv": 8,
    "amd_smi_7.1_real_tool_simulated_gpus": 8,
    "amd_smi_by_version/v7.1.0": 2,
    "rocm_smi_real/sampled_loop_8xmi300x": 8,
}
"""Recording and its GPUs; the last is large, and `test_efficiency` counts its GPUs too."""


def watched(path: Path, seconds: range, watts: float = 100.0, gpus: int = 1) -> Path:
    """A file as amd-smi writes it while it samples."""
    rows = [f"{BASE + second},{gpu},{watts}" for second in seconds for gpu in range(gpus)]
    path.write_text("\n".join(["timestamp,gpu,socket_power", *rows, ""]))
    return path


def check_agreement(trace: ci.Trace, gpus: int) -> None:
    """All analyses count the same GPUs, and the same joules of the same time."""
    rows = ci.analyze(trace, "energy").rows
    assert rows.num_rows == gpus
    summaries = {
        name: ci.analyze(trace, name).summary
        for name in ("efficiency", "imbalance", "excursions", "telemetry")
    }
    (swept,) = ci.analyze(trace, "sweep").rows.to_pylist()
    counted = {name: summary["gpus"] for name, summary in summaries.items()}
    assert counted | {"sweep": swept["gpus"]} == dict.fromkeys((*counted, "sweep"), gpus)
    joules = summaries["efficiency"]["energy_j"]  # of the time that is known of all GPUs
    if joules is not None:
        assert joules == pytest.approx(ci.analyze(trace, "energy").summary["energy_j"], rel=2e-3)
        assert joules == pytest.approx(swept["energy_j"])


@pytest.mark.parametrize("name", slow_from([*REAL], 2))
def test_all_analyses_agree(name: str) -> None:
    path = real(f"telemetry/{name}")
    check_agreement(read_once(path), REAL[name])


@pytest.mark.slow
def test_all_analyses_agree_on_the_sample_job_and_a_copy_changes_nothing(tmp_path: Path) -> None:
    make_demo(tmp_path / "job", ranks=2, layers=1, steps=2, counter_steps=0)
    folder = tmp_path / "job/telemetry"
    before = ci.read(folder)
    check_agreement(before, 8)
    (folder / "copy.csv").write_bytes((folder / "recorder.csv").read_bytes())
    after = ci.read(folder)
    assert after.samples.equals(before.samples)
    assert after.series.equals(before.series)
    counts = {issue.code: issue.count for issue in after.meta.issues}
    assert counts["telemetry-recorded-twice"] > 0


@pytest.mark.parametrize(
    ("one", "other", "seconds"),
    [
        (range(60), range(30, 121), 120),  # one reaches beyond the other
        (range(121), range(30, 60), 120),  # one is within the other
        (range(0, 301, 10), range(100, 121), 300),  # which samples more often
        (range(60), range(300, 361), 119),  # with time between them
        (range(60), range(120, 121), 59),  # a single sample
    ],
)
def test_energy_covers_the_time_of_all_files(tmp_path: Path, one, other, seconds) -> None:
    for name, times in (("a.csv", one), ("b.csv", other)):
        watched(tmp_path / name, times, gpus=2)
    trace = ci.read(tmp_path)
    rows = ci.analyze(trace, "energy").rows.to_pylist()
    assert [row["energy_j"] for row in rows] == pytest.approx([100.0 * seconds] * 2)
    assert ci.analyze(trace, "telemetry").summary["gpus"] == 2


def node(folder: Path, name: str, change: dict[str, Any]) -> None:
    """The recorder's file of another node: the same columns with other values."""
    table = pd.read_csv(folder / "recorder.csv", comment="#")
    for column, made in change.items():
        result = [c for c in table.columns if column in c]
        assert result, column
        table[result] = table[result].apply(made)
    table.to_csv(folder / name, index=False)


@pytest.mark.parametrize("column", ["energy", "hotspot"])
def test_hosts_with_equal_power_are_distinguished_by_counters_and_temperatures(
    tmp_path: Path, column: str
) -> None:
    """Healthy hosts draw the same power, but have other counters and temperatures."""
    make_demo(tmp_path / "job", ranks=2, layers=1, steps=2, counter_steps=0)
    folder = tmp_path / "job/telemetry"
    (folder / "amd-smi-watch.csv").unlink()
    alone = ci.analyze(ci.read(folder), "energy")
    change = {"energy": lambda c: c * 0.9 + 1e9, "hotspot": lambda c: c - 9}
    node(folder, "other.csv", {column: change[column]})
    trace = ci.read(folder)
    both = ci.analyze(trace, "energy")
    assert both.rows.num_rows == 2 * alone.rows.num_rows
    assert both.summary["energy_j"] > 1.8 * alone.summary["energy_j"]
    assert not pipeline.loss_summary(trace.meta.issues)


def test_indistinguishable_files_are_reported_as_a_loss(tmp_path: Path) -> None:
    for name, watts in (("a.csv", 100.0), ("b.csv", 104.0)):
        watched(tmp_path / name, range(60), watts, gpus=2)
    trace = ci.read(tmp_path)
    counts = {issue.code: (issue.severity, issue.count) for issue in trace.meta.issues}
    assert counts["telemetry-assumed-same-gpu"] == (Severity.LOSS, 120)
    assert ci.analyze(trace, "telemetry").summary["gpus"] == 2


def test_different_values_at_one_time_are_of_two_machines(tmp_path: Path) -> None:
    watched(tmp_path / "a.csv", range(60), 100.0, gpus=2)
    for name in ("b.csv", "c.csv"):
        watched(tmp_path / name, range(60), 200.0, gpus=2)
    trace = ci.read(tmp_path)
    rows = ci.analyze(trace, "energy").rows.to_pylist()
    assert [row["energy_j"] for row in rows] == [5900.0] * 2 + [11800.0] * 2
    assert "telemetry-of-several-machines" in {issue.code for issue in trace.meta.issues}
    check_agreement(trace, 4)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("nvidia_smi_real",), "Tesla T4"),
        (("amd_smi_real_8xmi355x", "amd_smi_real_mi210"), "drawing 813 W"),
    ],
)
def test_several_machines_are_refused(names: tuple[str, ...], message: str, run) -> None:
    paths = [real(f"telemetry/{name}") for name in names]
    status, _, stderr = run("analyze", *paths, "energy")
    assert status == AmbiguousRunError.exit_status
    assert message in stderr
    assert "several machines" in stderr


def test_consecutive_files_are_of_one_machine() -> None:
    """As from a sampler that begins a new file every minute."""

    def minute(number: int) -> ci.Trace:
        builder = TraceBuilder()
        ts = (np.arange(60) + 60 * number) * 10**9
        for gpu in range(8):
            row = builder.series(-1, "socket power", "W", "amd-smi", device=gpu)
            builder.samples(row, ts, np.full(60, 300.0))
        return builder.finish()

    parts = [minute(number) for number in range(40)]
    assert telemetry_files.number_machines_apart(parts, [set()] * len(parts), IssueLog()) == parts


def test_a_file_that_contradicts_itself_is_of_one_machine() -> None:
    """As own tables of telemetry of several rates: their GPUs got other numbers, or reading ended with an internal error."""
    builder = TraceBuilder()
    for watts in (100.0, 300.0):
        row = builder.series(-1, "socket power", "W", "amd-smi", device=0)
        builder.samples(row, np.arange(60) * 10**9, np.full(60, watts))
    parts = [builder.finish()]
    assert telemetry_files.number_machines_apart(parts, [set()], IssueLog()) == parts
