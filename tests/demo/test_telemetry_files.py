"""Telemetry: columns as the tools write them, values as the simulation had them."""

from __future__ import annotations

import csv
import io
import itertools

import pytest

from chopper_interop.demo import folder
from chopper_interop.demo.parameters import DemoParameters


@pytest.fixture(scope="module")
def job(demo):
    return folder.simulate_job(DemoParameters(**demo.truth["parameters"]))


@pytest.fixture(scope="module")
def recorder(demo):
    with (demo.path / "telemetry/recorder.csv").open(newline="") as file:
        return [{k: int(v) for k, v in row.items()} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def watch(demo):
    text = (demo.path / "telemetry/amd-smi-watch.csv").read_bytes().decode()
    preamble, *ticks = text.removesuffix("\n").replace("\r\n", "\r").split("\n")
    assert preamble == "'CTRL' + 'C' to stop watching output:"
    return [
        list(csv.DictReader(io.StringIO(tick.replace("\r", "\r\n"), newline=""))) for tick in ticks
    ]


def test_recorder_covers_the_window_at_its_rate(demo, recorder):
    start, end = (demo.truth["clocks"][f"window_{side}_ns"] for side in ("start", "end"))
    for gpu in range(8):
        times = [row["realtime_ns"] for row in recorder if row["gpu"] == gpu]
        assert times[0] < start - 198_000_000
        assert times[-1] > end + 198_000_000
        assert all(abs(b - a - 1_000_000) < 1_000 for a, b in itertools.pairwise(times))


def test_recorder_shows_the_clock_of_the_instant(job, recorder):
    offset = job.parameters.boottime_offset_ns
    for row in recorder:
        gpu, at = row["gpu"], row["system_clock_counter"] + offset
        if gpu >= job.parameters.ranks:
            assert row["current_gfxclk"] < 200
            continue
        tick = (at - int(job.clock.origin_ns[gpu])) // 1_000_000
        assert row["current_gfxclk"] == job.clock.mhz[gpu, tick]


def test_clocks_of_a_row_belong_together(demo, recorder):
    offset = demo.truth["clocks"]["realtime_minus_boottime_ns"]
    for row in recorder:
        assert 0 < row["boottime_ns"] + offset - row["realtime_ns"] < 1_000
        assert 0 < row["boottime_ns"] - row["monotonic_ns"] < 1_000
        assert abs(row["system_clock_counter"] - row["boottime_ns"]) < 10_000
        assert row["accumulation_counter"] == row["system_clock_counter"] // 1_000_000


def test_counters_of_the_recorder_only_rise(recorder):
    for gpu in range(8):
        rows = [row for row in recorder if row["gpu"] == gpu]
        for key in ("energy_accumulator", "ppt_residency_acc", "firmware_timestamp"):
            values = [row[key] for row in rows]
            assert values == sorted(values)


def test_energy_is_the_integral_of_power(job, recorder):
    for gpu in range(job.parameters.ranks):
        rows = [row for row in recorder if row["gpu"] == gpu]
        joule = (rows[-1]["energy_accumulator"] - rows[0]["energy_accumulator"]) / 2**16
        seconds = (rows[-1]["realtime_ns"] - rows[0]["realtime_ns"]) / 1e9
        watts = [row["current_socket_power"] for row in rows]
        assert joule / seconds == pytest.approx(sum(watts) / len(watts), rel=0.02)


def test_mean_clock_of_kernels_agrees_with_the_recorder(demo, recorder):
    compared = 0
    for row in demo.rows("kernels"):
        if row["dur_ns"] < 1_200_000:
            continue
        inside = [
            sample["current_gfxclk"]
            for sample in recorder
            if sample["gpu"] == row["rank"]
            and row["ts_ns"] <= sample["realtime_ns"] < row["ts_ns"] + row["dur_ns"]
        ]
        assert min(inside) - 80 <= row["mean_clock_mhz"] <= max(inside) + 80
        compared += 1
    assert compared


def test_watch_repeats_header_and_covers_the_window(demo, watch):
    text = (demo.path / "telemetry/amd-smi-watch.csv").read_bytes()
    assert text.count(b"timestamp,gpu,") == len(watch)
    assert [[row["gpu"] for row in tick] for tick in watch] == [[str(i) for i in range(8)]] * len(
        watch
    )
    clocks = demo.truth["clocks"]
    first, last = int(watch[0][0]["timestamp"]), int(watch[-1][-1]["timestamp"])
    assert clocks["window_start_ns"] / 1e9 - 4 < first < clocks["window_start_ns"] / 1e9 - 2
    assert clocks["window_end_ns"] / 1e9 + 1 < last < clocks["window_end_ns"] / 1e9 + 4


def test_watch_and_recorder_agree(watch, recorder):
    """The command line multiplies the energy counts by 15.3 uJ, not by 2^-16 J."""
    for gpu in range(8):
        sample = next(row for row in recorder if row["gpu"] == gpu)
        stamps = [tick[gpu] for tick in watch]
        joule = [float(row["total_energy_consumption"]) for row in stamps]
        assert joule == sorted(joule)
        assert joule[0] < sample["energy_accumulator"] * 15.3e-6 < joule[-1]
    for tick in watch:
        assert {int(row["gfx_0_clk"]) for row in tick[3:]} == {132}
        assert all(int(row["gfx_0_clk"]) > 1300 for row in tick[:3])


def test_watch_header_is_that_of_a_real_file(watch, shared):
    folder = shared / "telemetry/amd_smi_7.1_real_tool_simulated_gpus"
    header = (folder / "watch-metric-20s.stdout.csv").read_text().splitlines()[1].split(",")
    expected = header[: header.index("total_energy_consumption") + 1]
    assert list(watch[0][0]) == expected


def test_recorder_header_extends_that_of_a_real_file(demo, shared):
    real = shared / "telemetry/amd_smi_7.1_real_tool_simulated_gpus/sampler-50Hz-8gpu-10s.csv"
    header = real.read_text().splitlines()[0]
    actual = (demo.path / "telemetry/recorder.csv").read_bytes().split(b"\r\n")[0].decode()
    assert actual == header + ",current_uclk,temperature_mem"
