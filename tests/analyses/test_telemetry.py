"""Means, medians and extremes of every series, in any window."""

import csv
import io
import json
import statistics
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_once import read_once
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.methods.series import figures as series_figures
from chopper_interop.analyses.methods.series.averaging import AveragingWindows
from chopper_interop.analyses.methods.series.rules import How, rule
from chopper_interop.analyses.telemetry import telemetry
from chopper_interop.annotate.telemetry.samples import periodic_samples
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.demo.folder import simulate_job
from chopper_interop.demo.parameters import DemoParameters
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import GPU_WORK, Kind, LaneKind
from chopper_interop.testing import check_analysis

SECOND = 10**9
STEPS = st.lists(st.tuples(st.integers(1, 25), st.integers(0, 9)), min_size=1, max_size=10)
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20), st.integers(0, 2)), max_size=5)


def known(samples, time: float) -> float | None:
    """Value at a time between whole nanoseconds by the samples; None where unknown."""
    at = int(np.searchsorted(samples.ts, time, "right")) - 1
    if at < 0 or at + 1 >= len(samples.ts) or samples.unknown[at]:
        return None
    if not samples.is_linear:
        return float(samples.value[at])
    return float(np.interp(time, samples.ts, samples.value))


@given(STEPS, SPANS, st.booleans())
def test_against_every_single_nanosecond(steps, spans, straight) -> None:
    ts, value = np.cumsum([s for s, _ in steps]), np.array([float(v) for _, v in steps])
    samples = periodic_samples(ts, value, 0, is_linear=straight)
    disjoint = []  # spans of a cell do not overlap
    for start, length, cell in sorted(spans):
        if all(start > b or c != cell for _, b, c in disjoint):
            disjoint.append((start, start + length, cell))
    columns = [np.array(column, np.int64) for column in zip(*disjoint, strict=True)]
    start, end, cell = columns or [np.zeros(0, np.int64)] * 3
    spans_of_cells = AveragingWindows(cell, start, end)
    figures = series_figures.figures([series_figures.pieces(samples, spans_of_cells)], 3)
    for number in range(3):
        of_cell = [(a, b) for a, b, c in disjoint if c == number]
        values = [known(samples, m + 0.5) for a, b in of_cell for m in range(a, b)]
        known_values = [v for v in values if v is not None]
        assert figures.covered[number] == len(known_values)
        inside = [v for a, b in of_cell for t, v in zip(ts, value, strict=True) if a <= t <= b]
        assert figures.samples[number] == len(inside)
        if known_values:
            assert figures.mean[number] == pytest.approx(sum(known_values) / len(known_values))
            assert figures.area[number] == pytest.approx(sum(known_values))
            low, high = figures.minimum[number], figures.maximum[number]
            assert value.min() <= low <= figures.mean[number] <= high <= value.max()
            assert low <= min(known_values + inside) <= max(known_values + inside) <= high
            fine = [known(samples, m + (k + 0.5) / 16) for a, b in of_cell for m in range(a, b)
                    for k in range(16)]  # fmt: skip
            fine = [v for v in fine if v is not None]
            middle = figures.median[number]
            room = 1e-6 if not straight else 25 / 16
            assert sum(v <= middle + room for v in fine) >= len(fine) / 2
            assert sum(v >= middle - room for v in fine) >= len(fine) / 2
        elif inside:
            assert np.isnan(figures.mean[number])
            assert figures.median[number] == statistics.median(inside)
        else:
            assert np.isnan(
                [figures.mean[number], figures.median[number], figures.minimum[number]]
            ).all()


def test_a_median_of_straight_lines_is_exact() -> None:
    samples = periodic_samples(
        np.array([0, 10, 20]), np.array([0.0, 10.0, 40.0]), 0, is_linear=True
    )
    one = AveragingWindows(*(np.array([n]) for n in (0, 0, 20)))
    figures = series_figures.figures([series_figures.pieces(samples, one)], 1)
    assert figures.median[0] == 10
    assert figures.mean[0] == pytest.approx(15)
    part = AveragingWindows(*(np.array([n]) for n in (0, 5, 15)))
    figures = series_figures.figures([series_figures.pieces(samples, part)], 1)
    assert (figures.minimum[0], figures.maximum[0], figures.median[0]) == (5, 25, 10)


def job(series: list[tuple], work: list[tuple]) -> ci.Trace:
    """Series (rank, device, name, unit, points) and work (rank, start, duration, phase)."""
    builder = TraceBuilder()
    for rank, start, dur, *_ in work:
        lane = builder.lane(rank, LaneKind.STREAM, 0, "s", 0)
        builder.nodes(kind=int(Kind.KERNEL), name="k", rank=rank, lane=lane,
                      ts=np.array([start]), dur=np.array([dur]))  # fmt: skip
    for rank, device, name, unit, points in series:
        row = builder.series(rank, name, unit, "smi", device=device)
        ts, value = np.array(points, float).T
        builder.samples(row, ts.astype(np.int64), value)
    trace = builder.finish()
    phases = [phase for *_, phase in sorted(work, key=lambda w: (w[0], w[1]))]
    return trace.with_columns(phase=phases) if work else trace


CLOCK = [(t * SECOND, mhz) for t, mhz in enumerate((1000, 2000, 1000, 500, 500, 500))]
WORK = [(0, 1 * SECOND, SECOND, "forward"), (0, 3 * SECOND, SECOND, "backward")]


def test_clocks_hold_and_power_is_interpolated() -> None:
    trace = job(
        [(0, 0, "gfx clock", "MHz", CLOCK), (0, 0, "socket power", "W", CLOCK)],
        [(0, SECOND // 2, 2 * SECOND, "forward")],
    )
    power, clock = ci.analyze(trace, "telemetry").rows.to_pylist()
    assert (clock["mean"], clock["median"]) == (1500, 1000)  # half of it at 1000
    assert (clock["min"], clock["max"], clock["samples"]) == (1000, 2000, 2)
    assert power["mean"] == pytest.approx((1750 * 0.5 + 1500 * 1 + 875 * 0.5) / 2)
    assert (power["min"], power["max"]) == (750, 2000)
    assert clock["window_ns"] == clock["covered_ns"] == 2 * SECOND
    check_analysis(telemetry, trace)


def test_by_phase_counts_only_the_time_of_its_work() -> None:
    trace = job([(0, 0, "gfx clock", "MHz", CLOCK)], WORK)
    rows = ci.analyze(trace, "telemetry", by="rank,phase").rows.to_pylist()
    assert [(r["phase"], r["mean"], r["window_ns"]) for r in rows] == [
        ("forward", 2000, SECOND),
        ("backward", 500, SECOND),
    ]
    complete = ci.analyze(trace, "telemetry", window="all").rows.to_pylist()
    assert complete[0]["mean"] == 1000
    assert complete[0]["window_ns"] == 5 * SECOND


def test_nodes_and_jobs_are_of_all_gpus() -> None:
    steady = [(t * SECOND, 300) for t in range(6)]
    trace = job(
        [(0, 0, "gfx clock", "MHz", CLOCK), (1, 0, "gfx clock", "MHz", steady)],
        [(0, 0, 4 * SECOND, "forward"), (1, 0, 4 * SECOND, "forward")],
    )
    (row,) = ci.analyze(trace, "telemetry", by="job").rows.to_pylist()
    assert row["mean"] == pytest.approx((4500 / 4 + 300) / 2)
    assert (row["min"], row["max"], row["median"], row["series"]) == (300, 2000, 300, 2)
    assert row["window_ns"] == 8 * SECOND
    only = ci.analyze(trace, "telemetry", ranks="1").rows.to_pylist()
    assert [(r["rank"], r["mean"]) for r in only] == [(1, 300)]


def test_gaps_are_not_covered_and_values_of_no_gpu_do_not_count() -> None:
    points = [(t * SECOND, 100) for t in (0, 1, 2, 3, 30, 31)] + [(32 * SECOND, 65535e3)]
    trace = job([(0, 0, "socket power", "W", points)], [(0, 0, 40 * SECOND, "forward")])
    result = ci.analyze(trace, "telemetry")
    (row,) = result.rows.to_pylist()
    assert (row["covered_ns"], row["mean"], row["max"]) == (4 * SECOND, 100, 100)
    assert result.summary["left_out"] == 1


def test_values_recorded_at_changes_hold_until_sampling_ends() -> None:
    trace = job(
        [(0, 0, "gfx clock", "MHz", CLOCK), (0, 0, "power limit", "W", [(0, 750)])],
        [(0, SECOND, 2 * SECOND, "forward")],
    )
    limit = ci.analyze(trace, "telemetry", names="power limit").rows.to_pylist()
    assert [(r["mean"], r["covered_ns"]) for r in limit] == [(750, 2 * SECOND)]


def test_rows_without_samples_are_marked() -> None:
    """A window of 0.1 s between whole seconds: the tool of many samples is the one to take."""
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 0, "s", 0)
    builder.nodes(kind=int(Kind.KERNEL), name="k", rank=0, lane=lane,
                  ts=np.array([12 * SECOND // 10]), dur=np.array([SECOND // 10]))  # fmt: skip
    fine = np.arange(0, 5 * SECOND, SECOND // 1000)
    for tool, ts, late in (("coarse", np.arange(5) * SECOND, SECOND // 2), ("fine", fine, 0)):
        row = builder.series(0, "socket power", "W", tool, device=0, uncertainty_ns=late)
        builder.samples(row, ts, 600.0 + np.arange(len(ts)) % 2)
    best, coarse = ci.analyze(builder.finish(), "telemetry").rows.to_pylist()
    assert (coarse["known_by"], coarse["samples"], coarse["covered_ns"]) == (
        "between samples",
        0,
        0,
    )
    assert coarse["mean"] is not None
    assert coarse["mean_uncertainty"] is None
    assert (best["known_by"], best["covered_ns"]) == ("samples", SECOND // 10)
    assert best["mean_uncertainty"] == pytest.approx(0.5 / 101**0.5, rel=0.02)
    assert [coarse["is_best"], best["is_best"]] == [False, True]


def test_a_stamp_in_the_window_may_be_of_another_time() -> None:
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 0, "s", 0)
    builder.nodes(kind=int(Kind.KERNEL), name="k", rank=0, lane=lane,
                  ts=np.array([9 * SECOND // 10]), dur=np.array([SECOND // 5]))  # fmt: skip
    row = builder.series(0, "socket power", "W", "x", device=0, uncertainty_ns=SECOND // 2)
    builder.samples(row, np.arange(5) * SECOND, np.arange(5) + 600.0)
    trace = builder.finish()
    (of_work,) = ci.analyze(trace, "telemetry").rows.to_pylist()
    assert (of_work["known_by"], of_work["samples"], of_work["covered_ns"]) == (
        "uncertain stamps",
        1,
        0,
    )
    (complete,) = ci.analyze(trace, "telemetry", window="all").rows.to_pylist()
    assert (complete["known_by"], complete["covered_ns"], complete["is_best"]) == (
        "samples",
        4 * SECOND,
        True,
    )


def test_the_rise_of_a_counter() -> None:
    points = [(t * SECOND, v) for t, v in enumerate((100, 300, 500, 10, 30))]
    trace = job([(0, 0, "energy", "J", points)], [(0, 0, 4 * SECOND, "forward")])
    result = ci.analyze(trace, "telemetry")
    assert result.rows["rise"].to_pylist() == [420]
    assert result.summary["counters_reset"] == 1


@pytest.mark.parametrize(
    ("name", "unit", "how"),
    [
        ("gfx clock XCD 3", "MHz", How.HELD),
        ("memory clock", "MHz", How.HELD),
        ("gfx clock max", "MHz", How.STEADY),
        ("socket power", "W", How.STRAIGHT),
        ("memory power", "W", How.STRAIGHT),
        ("power limit", "W", How.STEADY),
        ("temperature memory", "°C", How.STRAIGHT),
        ("temperature GPU below limit", "°C", How.STRAIGHT),
        ("CPU package 0 temperature", "°C", How.STRAIGHT),
        ("throttle share PPT", "%", How.HELD),
        ("throttle activity gfx clock below host limit", "%", How.HELD),
        ("throttle reasons active", "", How.STEADY),
        ("energy", "J", How.COUNTER),
        ("NVLink bytes sent", "B", How.COUNTER),
        ("XGMI read link 0", "B", How.COUNTER),
        ("PCIe NAK received count", "", How.STEADY),
        ("CPU cpu busy time", "s", How.COUNTER),
        ("VRAM total", "B", How.STEADY),
        ("VRAM used", "B", How.HELD),
        ("sclk", "MHz", How.LOGGED),
        ("gpu 4 sclk", "MHz", How.LOGGED),
        ("whatever", "furlong", How.HELD),
    ],
)
def test_interpolation_between_samples(name: str, unit: str, how: How) -> None:
    assert rule(name, unit).how is how


def test_empty_traces_and_invalid_options() -> None:
    empty = ci.analyze(job([], [(0, 0, 5, "forward")]), "telemetry")
    assert empty.rows.num_rows == 0
    assert "no samples" in empty.notes["no rows"]
    alone = ci.analyze(job([(-1, 3, "socket power", "W", CLOCK)], []), "telemetry")
    assert alone.rows["rank"].to_pylist() == [None]
    assert "no GPU work" in alone.notes["window"]
    trace = job([(0, 0, "gfx clock", "MHz", CLOCK)], WORK)
    for wrong in ({"by": "rank,node"}, {"by": "moon"}, {"window": "half"}, {"compat": "hta"},
                  {"compat": "charllm", "by": "node"}, {"steps": "each"}, {"ranks": "9"},
                  {"window": "all", "by": "rank,phase"}):  # fmt: skip
        with pytest.raises(UsageError):
            ci.analyze(trace, "telemetry", **wrong)


@given(st.integers(-(10**15), 10**15), st.permutations([0, 1, 2]))
def test_neither_time_nor_rank_nor_order_matters(shift, ranks) -> None:
    series, work = [], []
    for k in range(3):
        rank = ranks[k]
        points = [(shift + t, v * (rank + 1)) for t, v in CLOCK]
        series.append((rank, 0, "gfx clock", "MHz", points))
        work.append((rank, shift + SECOND // 3, 2 * SECOND, "forward"))
    rows = ci.analyze(job(series, work), "telemetry").rows.to_pylist()
    means = {row["rank"]: row["mean"] for row in rows}
    assert means == pytest.approx({r: means[0] * (r + 1) for r in range(3)})


def test_charllm_by_its_own_definition(tmp_path: Path) -> None:
    """The same from the raw files, by plain loops; its units are 1024**2 KB/s and GHz."""
    random = np.random.default_rng(4)
    raw = {"gpu_power_0": 1.0, "sm_clock_0": 1e-3, "pcie_rx_throughput_0": 1 / 1024**2}
    names = {"gpu_power_0": "socket power", "sm_clock_0": "gfx clock",
             "pcie_rx_throughput_0": "PCIe bandwidth received"}  # fmt: skip
    expected = {}
    for name, factor in raw.items():
        times = 1_700_000_000 + np.cumsum(random.uniform(0.04, 0.9, 60))
        values = random.integers(100, 1000, 60)
        rows = [f"{t:.7f},{v}" for t, v in zip(times, values, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(rows) + "\n")
        table = [[float(c) for c in row.split(",")] for row in rows]
        area = sum(a[1] * (b[0] - a[0]) for a, b in pairwise(table))
        expected[names[name]] = (area / (table[-1][0] - table[0][0]) * factor, max(values) * factor)
    rows = ci.analyze(ci.read(str(tmp_path)), "telemetry", compat="charllm").rows.to_pylist()
    assert len(rows) == 3
    for row in rows:
        assert (row["mean"], row["max"]) == pytest.approx(expected[row["name"]], rel=1e-6)
    assert {row["unit"] for row in rows} == {"W", "GHz", "GB/s"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", slow_from([{"ranks": 8, "layers": 1}, {"ranks": 8, "layers": 2, "seed": 5}], 1)
)
def test_demo(tmp_path: Path, options: dict) -> None:
    """Held and straight values of the recorder's rows, by plain loops over its file."""
    folder = make_demo(tmp_path / "job", steps=2, counter_steps=0, **options)
    trace = ci.read(folder)
    rows = ci.analyze(trace, "telemetry").rows.to_pylist()
    actual = {(r["rank"], r["name"]): r for r in rows if r["source"] == "recorder"}
    file = (folder / "telemetry/recorder.csv").read_text()
    for rank in range(0, 8, 3):
        of_rank = [r for r in csv.DictReader(io.StringIO(file)) if int(r["gpu"]) == rank]
        ts = np.array([int(r["realtime_ns"]) for r in of_rank]) - trace.meta.origin_ns
        for column, name, straight in (("current_gfxclk", "gfx clock", False),
                                       ("current_socket_power", "socket power", True)):  # fmt: skip
            values = np.array([float(r[column]) for r in of_rank])
            row = actual[rank, name]
            assert row["covered_ns"] == row["window_ns"]
            at = np.flatnonzero(trace.array("rank") == rank)
            at = at[
                np.isin(
                    trace.array("kind")[at],
                    [int(k) for k in (Kind.KERNEL, Kind.COMM, Kind.MEMCPY, Kind.MEMSET)],
                )
            ]
            start = trace.array("ts")[at].min()
            end = (trace.array("ts")[at] + trace.array("dur")[at]).max()
            grid = np.linspace(start, end, 100_001)
            inside = np.interp(grid, ts, values) if straight else values[np.searchsorted(ts, grid, "right") - 1]  # fmt: skip
            assert row["mean"] == pytest.approx(inside.mean(), rel=2e-3)
            assert row["median"] == pytest.approx(np.median(inside), rel=5e-3)
    steps = ci.analyze(trace, "telemetry", steps="each", names="gfx clock").rows
    assert steps.num_rows >= 16


def test_equals_the_truth_of_the_sample_job(tmp_path: Path) -> None:
    """Against the history of the clock in the simulation, a tick of 1 ms after another."""
    folder = make_demo(tmp_path / "job", ranks=8, layers=2, steps=3, seed=9, counter_steps=0)
    parameters = json.loads((folder / "truth.json").read_text())["parameters"]
    known = {f.name for f in fields(DemoParameters)}
    truth = simulate_job(DemoParameters(**{k: v for k, v in parameters.items() if k in known}))
    trace = ci.read(folder)
    options = {"names": "gfx clock,socket power"}
    for row in ci.analyze(trace, "telemetry", **options).rows.to_pylist():
        if row["source"] != "recorder":
            continue
        of_rank = np.isin(trace.array("kind"), [int(k) for k in GPU_WORK])
        of_rank &= trace.array("rank") == row["rank"]
        start = int(trace.array("ts")[of_rank].min()) + trace.meta.origin_ns
        times = start + np.arange(0, row["window_ns"], 10_000)
        ticks = (times - truth.clock.origin_ns[row["rank"]]) // 1_000_000
        is_clock = row["name"] == "gfx clock"
        history = truth.clock.mhz if is_clock else truth.clock.socket_w
        late = 0 if is_clock else 1  # power is shown as it was after the last whole tick
        exact = history[row["rank"], ticks - late].mean()
        assert row["mean"] == pytest.approx(exact, rel=3e-3 if is_clock else 6e-3), row


def _real() -> list[Path]:
    files = sorted(p for p in real("telemetry").rglob("*") if p.is_file())
    # the output of a tool that ran once has no times
    return [p for p in files if "by_version" not in str(p) or "watch" in p.name]


@pytest.mark.parametrize("step", slow_from([20, 1], 1))
def test_every_real_file(step: int) -> None:
    read = 0
    for path in _real()[::step]:
        try:
            trace = read_once(path)
        except ci.ChopperError:
            continue  # without times, or no telemetry at all
        if not trace.samples.num_rows:
            continue
        read += 1
        for options in ({}, {"by": "node"}, {"by": "job"}, {"compat": "charllm"}):
            result = ci.analyze(trace, "telemetry", **options)
            assert result.rows.num_rows, path
            for row in result.rows.to_pylist():
                values = [
                    row[c] for c in ("min", "median", "mean", "max") if row.get(c) is not None
                ]
                assert np.isfinite(values).all()
                if not options:
                    assert values == sorted(values) or row["median"] > row["mean"], (path, row)
                    assert (min(values), max(values)) == (values[0], values[-1]), (path, row)
                    assert 0 <= row["covered_ns"] <= row["window_ns"]
        _within_samples(trace)
        for name in ("traffic", "throttling"):
            other_result = ci.analyze(trace, name)
            json.dumps(other_result.to_dict(), allow_nan=False)
            for row in other_result.rows.to_pylist():
                assert 0 <= row["covered_ns"] <= row["window_ns"]
                assert 0 <= (row.get("throttled_share") or 0) <= (row.get("peak_share") or 0) <= 1
                assert (row.get("bytes") or 0) >= 0
    assert read >= 40 // step


def _within_samples(trace: ci.Trace) -> None:
    """Figures lie within the samples of their series, and a mean times its time is the integral."""
    owner, ts, value = (trace.array(c, "samples") for c in ("series", "ts", "value"))
    rows = ci.analyze(trace, "telemetry").rows.to_pylist()
    series = trace.series.to_pylist()
    by_key: dict[tuple, list[int]] = {}
    for number, one in enumerate(series):
        by_key.setdefault(tuple(one[c] for c in ("device", "name", "unit", "source")), []).append(
            number
        )
    for row in rows:
        device = -1 if row["device"] is None else row["device"]
        of_series = np.isin(owner, by_key[device, row["name"], row["unit"], row["source"]])
        assert value[of_series].min() <= row["min"] <= row["max"] <= value[of_series].max()
    for row in rows:
        device = -1 if row["device"] is None else row["device"]
        (number, *more) = by_key[device, row["name"], row["unit"], row["source"]]
        if more or row["mean"] is None or row["unit"] not in {"W", "°C"}:
            continue
        if row["covered_ns"] == row["window_ns"] and "limit" not in row["name"]:
            t, v = ts[owner == number], value[owner == number]
            area = float(np.sum((v[1:] + v[:-1]) / 2 * np.diff(t)))
            assert row["mean"] * row["covered_ns"] == pytest.approx(area)


@pytest.mark.slow
def test_order_of_rows(tmp_path: Path) -> None:
    """Power, clock, temperature; rows without samples last, and of two tools the best first."""
    folder = make_demo(tmp_path / "job", ranks=2, layers=1, steps=2, counter_steps=0)
    rows = ci.analyze(ci.read(folder), "telemetry").rows.to_pylist()
    names = list(dict.fromkeys(row["name"] for row in rows if row["covered_ns"]))
    assert names[:4] == ["socket power", "gfx clock", "temperature hotspot", "temperature memory"]
    covered = [row["covered_ns"] > 0 for row in rows]
    assert covered == sorted(covered, reverse=True)
    for best in (True, False):
        of_dies = ["XCD" in row["name"] for row in rows if (row["covered_ns"] > 0) is best]
        assert of_dies == sorted(of_dies)
    sort_keys = [(row["covered_ns"] == 0, row["name"], not row["is_best"]) for row in rows]
    for name in names:
        of_name = [sort_key for sort_key in sort_keys if sort_key[1] == name]
        assert of_name == sorted(of_name)


@pytest.mark.parametrize("by", ["rank", "stream", "kernel", "iteration"])
def test_telemetry_alone_has_no_groups_of_work(tmp_path: Path, by: str) -> None:
    lines = [f"2024/01/01 00:00:{second:02d}.000, 0, 100.00 W" for second in range(5)]
    file = tmp_path / "smi.csv"
    file.write_text("\n".join(["timestamp, index, power.draw [W]", *lines, ""]))
    rows = ci.analyze(ci.read(file, tz="UTC"), "telemetry", by=by).rows
    assert rows.num_rows == (by == "rank")
