"""Excursions of power: against exact fractions and plain sums, on the sample job and real logs."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_once import read_once
from shared_data import real

import chopper_interop as ci
from chopper_interop.analyses.excursions import excursions
from chopper_interop.annotate.stages import annotate
from chopper_interop.annotate.telemetry.samples import GAP
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Device, Rank
from chopper_interop.testing import check_analysis
from chopper_interop.testing.strategies import traces

if TYPE_CHECKING:
    from pathlib import Path

SECOND, MILLI = 10**9, 10**6
POWER = "socket power"
Points = list[tuple[int, float]]


def job(
    series: list[tuple[int, int, str, Points]],
    work: list[tuple[str, int, int, int]] = [],  # noqa: B006 - never changed
    **meta: object,
) -> ci.Trace:
    """Series (rank, device, name, points) and kernels (name, rank, start, duration) on device 0."""
    builder = TraceBuilder()
    for name, rank, start, dur in work:
        lane = builder.lane(rank, LaneKind.STREAM, 1, "s", 0)
        builder.nodes(
            kind=int(Kind.KERNEL), name=name, rank=rank, lane=lane,
            ts=np.array([start]), dur=np.array([dur]),
        )  # fmt: skip
    for rank, device, name, points in series:
        name, _, tool = name.partition(" by ")  # noqa: PLW2901
        row = builder.series(rank, name, "W", tool or "smi", device=device)
        ts, value = np.array([t for t, _ in points]), np.array([v for _, v in points], float)
        builder.samples(row, ts, value)
    trace = builder.finish()
    return annotate(trace.with_meta(**meta) if meta else trace)


def exact(points: Points, limit: float) -> list[tuple[Fraction, Fraction, float]]:
    """Begin, end and peak of each interval above the limit, by fractions; gaps divide them."""
    steps = sorted(b[0] - a[0] for a, b in itertools.pairwise(points))
    usual = steps[(len(steps) - 1) // 2]
    result: list[tuple[Fraction, Fraction, float]] = []
    for (t0, v0), (t1, v1) in itertools.pairwise(points):
        if max(v0, v1) <= limit or t1 - t0 > GAP * usual:
            continue
        begin, end = Fraction(t0), Fraction(t1)
        crossing = Fraction(t1 - t0) * Fraction(limit - v0) / Fraction(v1 - v0) if v0 != v1 else 0
        if v0 <= limit:
            begin += crossing
        if v1 <= limit:
            end = t0 + crossing
        if result and result[-1][1] == begin and v0 > limit:
            begin, _, before = result.pop()
            result.append((begin, end, max(before, v0, v1)))
        else:
            result.append((begin, end, max(v0, v1)))
    return result


def energy_above(points: Points, limit: float, parts: int = 4000) -> float:
    """Joules above a limit by many small parts of each line between samples."""
    steps = sorted(b[0] - a[0] for a, b in itertools.pairwise(points))
    usual, total = steps[(len(steps) - 1) // 2], 0.0
    middles = (np.arange(parts) + 0.5) / parts
    for (t0, v0), (t1, v1) in itertools.pairwise(points):
        if t1 - t0 <= GAP * usual:
            high = np.maximum(v0 + (v1 - v0) * middles - limit, 0)
            total += high.sum() / parts * (t1 - t0) * 1e-9
    return total


STEPS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(300, 900)), min_size=2, max_size=30
)  # milliseconds, watts


@given(STEPS, st.integers(300, 900))
def test_against_fractions_and_small_parts(steps, limit) -> None:
    times = np.cumsum([0, *(s for s, _ in steps[1:])]) * MILLI  # ts count from the first
    points = [(int(t), v) for t, (_, v) in zip(times, steps, strict=True)]
    trace = job([(-1, 0, POWER, points)])
    result = excursions(trace, limit_w=float(limit))
    rows, expected = result.rows.to_pylist(), exact(points, limit)
    assert len(rows) == len(expected)
    for row, (begin, end, peak) in zip(rows, expected, strict=True):
        assert abs(row["start_ns"] - begin) <= Fraction(1, 2)
        assert abs(row["start_ns"] + row["duration_ns"] - end) <= Fraction(1, 2)
        assert row["peak_w"] == pytest.approx(peak)
        assert row["limit_w"] == limit
        inside = [t for t, v in points if v > limit and begin <= t <= end]
        assert row["samples"] == len(inside)
        assert dict(points)[row["peak_start_ns"]] == peak
    actual = sum(row["above_j"] for row in rows)
    assert actual == pytest.approx(energy_above(points, limit), rel=1e-5, abs=1e-6)
    (rank_row,) = excursions(trace, limit_w=float(limit), by="rank").rows.to_pylist()
    assert rank_row["excursions"] == len(rows)
    assert rank_row["above_ns"] == sum(row["duration_ns"] for row in rows)
    assert rank_row["above_j"] == pytest.approx(actual)


CLOSE = st.lists(st.tuples(st.integers(1, 5), st.integers(300, 900)), min_size=2, max_size=12)


@given(CLOSE, CLOSE, st.integers(700, 1500))
def test_a_node_is_the_sum_of_its_gpus(one, other, limit) -> None:
    """Every part of a millisecond in which both are known."""
    points = [
        [
            (int(t), v)
            for t, (_, v) in zip(np.cumsum([0, *(s for s, _ in of[1:])]) * MILLI, of, strict=True)
        ]
        for of in (one, other)
    ]
    trace = job([(-1, i, POWER, of) for i, of in enumerate(points)])
    (row,) = excursions(trace, by="node", limit_w=limit / 2).rows.to_pylist()
    sums, known = 0.0, 0
    for m in range(max(p[0][0] for p in points), min(p[-1][0] for p in points), MILLI):
        at = [drawn(of, m) for of in points]
        known += None not in at
        if None not in at:
            (a, b), (c, d) = at
            middles = (np.arange(400) + 0.5) / 400
            sums += np.maximum(a + c + (b - a + d - c) * middles - limit, 0).mean() * 1e-3
    if known:
        assert row["covered_ns"] == known * MILLI
        assert row["above_j"] == pytest.approx(sums, rel=1e-4, abs=1e-4)
        assert 0 < row["coincidence_share"] <= 1 + 1e-12
    else:
        assert row["covered_ns"] is None


def drawn(points: Points, moment: int) -> tuple[float, float] | None:
    """Power at the begin and the end of a millisecond; None where it is not known."""
    for (t0, v0), (t1, v1) in itertools.pairwise(points):
        if t0 <= moment < t1:
            slope = (v1 - v0) / (t1 - t0)
            return v0 + slope * (moment - t0), v0 + slope * (moment + MILLI - t0)
    return None


RISE = [(t * MILLI, 500.0 if t not in {4, 5} else 700.0) for t in range(10)]


def test_work_during_an_excursion() -> None:
    work = [("a", 0, 0, 2 * MILLI), ("b", 0, 3 * MILLI, 2 * MILLI), ("c", 0, 5 * MILLI, 4 * MILLI)]
    trace = job([(0, 0, POWER, RISE)], work)
    check_analysis(excursions, trace)
    (row,) = excursions(trace, limit_w=600).rows.to_pylist()
    assert (row["rank"], row["device"], row["gpu_index"]) == (0, 0, 0)
    assert (row["start_ns"], row["duration_ns"]) == (3_500_000, 2_000_000)
    assert (row["peak_above_w"], row["mean_above_w"]) == (100, pytest.approx(75))
    assert (row["above_j"], row["samples"], row["pieces"]) == (pytest.approx(0.15), 2, 2)
    assert (row["kernel"], row["kernel_ns"], row["class"]) == ("b", 1_500_000, "compute")
    actual = excursions(trace, limit_w=600, by="kernel").to_pandas().set_index("kernel")
    assert actual["above_ns"].to_dict() == {"b": 1_500_000, "c": 500_000, "a": 0}
    assert actual["above_share"].to_dict() == {"b": 0.75, "c": 0.125, "a": 0}
    assert actual["lift_ratio"]["b"] == pytest.approx(0.75 / (2 / 9))


def test_the_limit_is_the_best_that_is_known() -> None:
    """The user's limit, then that of telemetry over time, the cap, or the board power."""
    cap = (0, 0, "power limit", [(0, 650.0), (5 * MILLI, 800.0)])
    work = [("a", 0, 0, 9 * MILLI)]
    device = Device("", 0, name="AMD Instinct MI300X")

    def limits(series, **options) -> tuple[list[float], str]:
        trace = job(series, work, **options.pop("meta", {}))
        result = excursions(trace, **options)
        return result.rows["limit_w"].to_pylist(), result.notes["limit"]

    power = (0, 0, POWER, RISE)
    known = {"devices": (device,), "facts": {"power_cap_w": "690"}}
    assert limits([power, cap], meta=known, limit_w=640.0)[0] == [640]
    rows, reported = limits([power, cap], meta=known)
    assert rows == [650]
    assert "telemetry" in reported
    assert limits([power], meta=known) == ([690], "power cap as the source states it of 1 GPUs")
    rows, reported = limits([power], meta={"devices": (device,)}, above=0.9)
    assert (rows, reported) == ([675], "0.9 times board power (product MI300X) of 1 GPUs")
    assert limits([power]) == ([], "none is known")
    result = excursions(job([power], work, devices=(device,)))
    assert result.rows.num_rows == 0
    assert "no GPU was ever above its limit" in result.notes["no rows"]


def test_an_ambiguous_limit_is_ignored() -> None:
    """Equal limits are not ambiguous; the enforced limit precedes the set one."""
    default = (0, 0, "power limit", [(0, 600.0), (5 * MILLI, 600.0)])
    work = [("a", 0, 0, 9 * MILLI)]
    for caps, limit in (((550.0, 550.0), 550), ((550.0, 650.0), 600), ((), 600)):
        reported = [
            (0, 0, f"power limit enforced by tool {n}", [(0, watts), (5 * MILLI, watts)])
            for n, watts in enumerate(caps)
        ]
        trace = job([(0, 0, POWER, RISE), default, *reported], work)
        (row,) = excursions(trace, by="rank").rows.to_pylist()
        assert (row["limit_w"], row["limit_by"]) == (limit, "power limit by telemetry")


def test_a_changing_limit_is_reported_as_its_mean_while_power_is_known() -> None:
    power = [(t * MILLI, 500.0) for t in (*range(9), *range(21, 31))]
    cap = (0, 0, "power limit", [(0, 750.0), (10 * MILLI, 450.0)])
    work = [("a", 0, 0, 8 * MILLI), ("a", 0, 21 * MILLI, 9 * MILLI)]
    trace = job([(0, 0, POWER, power), cap], work).with_columns(iteration=[0, 1])
    each = excursions(trace, by="rank", steps="each").rows.to_pylist()
    assert [(row["limit_w"], row["above_share"]) for row in each] == [(750, 0), (450, 1)]
    (node, _) = excursions(trace, by="node", steps="each").rows.to_pylist()
    assert node["limit_w"] == 750
    (rank_row,) = excursions(trace, by="rank").rows.to_pylist()
    assert rank_row["limit_w"] == pytest.approx((8 * 750 + 9 * 450) / 17)


def test_without_a_limit_nothing_is_an_excursion() -> None:
    """A quantile of power is exceeded by any power: that would be noise."""
    work = [("a", 0, 0, 9 * MILLI)]
    for trace in (job([(0, 0, POWER, RISE)], work), job([(-1, 0, POWER, RISE)])):
        result = excursions(trace)
        assert (result.rows.num_rows, result.summary["gpus_without_limit"]) == (0, 1)
        assert next(iter(result.notes)) == "no limit is known"
        for reported in ("no limit is known", "no rows"):
            assert "-O limit_w=" in result.notes[reported]
        assert result.notes["limit"] == "none is known"
        assert excursions(trace, by="rank").rows["excursions"].to_pylist() == [None]
        reported = excursions(trace, limit_w=500)
        assert (reported.rows.num_rows, reported.summary["gpus_without_limit"]) == (1, 0)
        assert "no limit is known" not in reported.notes


def test_a_file_of_other_gpus_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gpus.toml").write_text('[[gpu]]\nname = "Own 6"\n')
    device = Device("", 0, name="An Own 5")
    trace = job([(0, 0, POWER, RISE)], [("a", 0, 0, 9 * MILLI)], devices=(device,))
    with pytest.raises(UsageError, match="An Own 5"):
        excursions(trace, gpus=str(tmp_path / "gpus.toml"))


def test_the_host_of_the_only_node_is_that_of_all() -> None:
    device = Device("n0", 0, name="A")
    trace = job([(0, 0, POWER, RISE)], [("a", 0, 0, 9 * MILLI)], devices=(device,))
    assert excursions(trace, limit_w=600).rows["host"].to_pylist() == ["n0"]


def test_a_gpu_described_by_the_user(tmp_path: Path) -> None:
    path = tmp_path / "gpus.toml"
    path.write_text('[[gpu]]\nname = "Own 5"\npower_w = 640\n')
    trace = job(
        [(0, 0, POWER, RISE)], [("a", 0, 0, 9 * MILLI)], devices=(Device("", 0, name="An Own 5"),)
    )
    result = excursions(trace, gpus=str(path))
    assert result.rows["limit_w"].to_pylist() == [640]
    assert str(path) in result.notes["limit"]


def test_gaps_are_no_excursions() -> None:
    points = [(t * MILLI, 700.0) for t in (*range(10), *range(30, 40))]
    rows = excursions(job([(-1, 0, POWER, points)]), limit_w=600).rows.to_pylist()
    assert [row["duration_ns"] for row in rows] == [9 * MILLI] * 2
    (rank_row,) = excursions(job([(-1, 0, POWER, points)]), limit_w=600, by="rank").rows.to_pylist()
    assert (rank_row["covered_ns"], rank_row["above_share"]) == (18 * MILLI, 1)


def test_nodes_are_distinguished_by_hosts() -> None:
    work = [("a", rank, 0, 9 * MILLI) for rank in range(4)]
    hosts = tuple(Rank(r, host=f"n{r // 2}", device=0) for r in range(4))
    low = [(t, 400.0) for t, _ in RISE]
    series = [(r, 0, POWER, RISE if r < 3 else low) for r in range(4)]
    result = excursions(job(series, work, ranks=hosts), by="node", limit_w=600)
    rows = result.rows.to_pylist()
    assert [(r["host"], r["gpus"], r["max_concurrent"]) for r in rows] == [
        ("n0", 2, 2),
        ("n1", 2, 1),
    ]
    assert [r["together_ns"] for r in rows] == [2 * MILLI, 0]
    assert [r["peak_power_w"] for r in rows] == [1400, 1100]
    assert [r["excursions"] for r in rows] == [1, 0]
    assert result.summary["max_concurrent"] == 2


@pytest.mark.parametrize("by", ["excursion", "rank", "node", "kernel", "job", "rank,class"])
@pytest.mark.parametrize("series", [[], [(0, 0, "gfx clock", RISE)], [(0, 0, POWER, RISE[:1])]])
def test_without_power_there_are_no_rows(by, series) -> None:
    for work in ([], [("a", 0, 0, 9 * MILLI)]):
        result = excursions(job(series, work), by=by)
        assert result.summary["excursions"] == 0
        assert result.summary["above_share"] is None
        assert "no power" in result.notes["no rows"]
        if by == "rank" and work:
            assert result.rows["excursions"].to_pylist() == [None]


@pytest.mark.slow
@given(traces())
def test_any_trace(trace) -> None:
    for by in ("excursion", "rank", "node", "kernel"):
        result = excursions(trace, by=by, limit_w=1.0)
        json.dumps(result.to_dict(), allow_nan=False)
        for column in {"above_share", "coincidence_share"} & set(result.rows.column_names):
            assert all(0 <= share <= 1 for share in result.rows[column].drop_null().to_pylist())


def test_a_window_without_length_has_none() -> None:
    """A rank whose only work takes no time."""
    trace = job([(0, 0, POWER, RISE)], [("a", 0, 4 * MILLI, 0)])
    result = excursions(trace, limit_w=600)
    assert (result.rows.num_rows, result.summary["gpus_known"]) == (0, 0)
    assert excursions(trace, limit_w=600, window="all").rows.num_rows == 1


def test_invalid_options_are_refused() -> None:
    trace = job([(0, 0, POWER, RISE)])
    for options in (
        {"by": "hour"}, {"above": 0.0}, {"above": float("nan")}, {"limit_w": -1.0},
        {"window": "some"}, {"steps": "each"}, {"ranks": "7"},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            excursions(trace, **options)


def test_another_time_and_other_ranks_change_nothing() -> None:
    work = [("a", 0, 0, 4 * MILLI), ("b", 0, 4 * MILLI, 5 * MILLI)]
    trace = job([(0, 0, POWER, RISE)], work)
    here = excursions(trace, limit_w=600).rows.to_pylist()
    late = 10**15
    moved = job(
        [(5, 0, POWER, [(t + late, v) for t, v in RISE])],
        [(name, 5, start + late, dur) for name, _, start, dur in work],
    )
    there = excursions(moved, limit_w=600).rows.to_pylist()
    for a, b in zip(here, there, strict=True):
        assert b.pop("rank") == 5
        assert a.pop("rank") == 0
        for name in ("start_ns", "peak_start_ns"):
            assert b.pop(name) + moved.meta.origin_ns == a.pop(name) + late
        assert a == b


def test_the_sample_job(tmp_path: Path) -> None:
    make_demo(tmp_path / "job", ranks=8, layers=1, steps=2, seed=4, counter_steps=0)
    trace = ci.read(tmp_path / "job")
    check_analysis(excursions, trace)
    result = excursions(trace, above=0.8)
    rows = result.to_pandas()
    assert result.notes["limit"] == "0.8 times board power (product MI300X) of 8 GPUs"
    assert set(rows["rank"]) <= set(range(8))
    assert set(rows["limit_w"]) == {600}
    assert (rows["peak_w"] > 600).all()
    of_gpus = excursions(trace, above=0.8, by="rank").to_pandas()
    assert of_gpus["above_ns"].sum() == rows["duration_ns"].sum() == result.summary["above_ns"]
    assert of_gpus["above_j"].sum() == pytest.approx(rows["above_j"].sum())
    stepped = excursions(trace, above=0.8, steps="each", by="rank").to_pandas()
    assert len(stepped) == 16
    kernels = excursions(trace, above=0.8, by="class").to_pandas().set_index("class")
    assert kernels["lift_ratio"]["compute"] > 1 > kernels["lift_ratio"]["comm"]


# of the excerpt's last GPU samples are isolated, with nothing known in between
LOGS = {
    "nvidia_smi_real/8gpu_iso8601_0.24s.csv": 8,
    "amd_smi_real_8xmi355x/gpu_metrics.excerpt.csv": 7,
    "amd_smi_7.1_real_tool_simulated_gpus/sampler-50Hz-8gpu-10s.csv": 8,
}


@pytest.mark.parametrize("log", LOGS)
def test_real_logs_without_any_work(log: str) -> None:
    path = real(f"telemetry/{log}")
    trace = read_once(path)
    assert excursions(trace).rows.num_rows == 0  # no log has a limit
    result = excursions(trace, by="rank", limit_w=400.0)
    assert result.summary["gpus_known"] == LOGS[log]
    power = {}
    for row, series in enumerate(trace.series.to_pylist()):
        if series["name"] == POWER:
            selected = trace.array("series", "samples") == row
            power[series["device"]] = trace.array("value", "samples")[selected]
    drew = [row for row in result.rows.to_pylist() if row["peak_power_w"] is not None]
    assert len(drew) == LOGS[log]
    for row in drew:
        assert row["peak_power_w"] <= power[row["device"]].max()
        assert row["excursions"] <= (power[row["device"]] > row["limit_w"]).sum()
        assert (row["excursions"] > 0) == (row["peak_power_w"] > row["limit_w"])
    each = excursions(trace, limit_w=400.0)
    assert each.summary["above_j"] == pytest.approx(sum(each.rows["above_j"].to_pylist()))


def test_watts_are_no_factor_of_the_limit() -> None:
    trace = TraceBuilder().finish()
    with pytest.raises(UsageError, match="factor of the limit") as refused:
        excursions(trace, above=400.0)
    assert "limit_w=400" in str(refused.value.hint)
