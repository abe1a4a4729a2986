"""Energy and numbers of GPUs of one job: `energy`, `efficiency` and `sweep` say the same of it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chopper_interop as ci
from chopper_interop.analyses.efficiency import efficiency
from chopper_interop.analyses.energy import energy
from chopper_interop.analyses.sweep import sweep
from chopper_interop.annotate.stages import annotate
from chopper_interop.build import TraceBuilder
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Device

SECOND = 10**9
LONG = 100
"""Seconds that work and telemetry last, where nothing else is said."""
EVERY_SECOND = range(LONG + 1)


def job(
    work: list[tuple[int, int]],
    series: list[tuple[int, int, str, str, Any, Any]],
    product: str = "",
) -> ci.Trace:
    """Ranks that work on devices all of the time; series of rank, device, name, tool, s, values."""
    builder = TraceBuilder()
    for rank, device in work:
        lane = builder.lane(rank, LaneKind.STREAM, 1, "s", device)
        builder.nodes(
            kind=int(Kind.KERNEL), name="gemm", rank=rank, lane=lane,
            ts=np.array([0, LONG // 2]) * SECOND, dur=np.full(2, LONG // 2 * SECOND),
        )  # fmt: skip
    for rank, device, name, tool, seconds, values in series:
        ts = (np.array(seconds, float) * SECOND).astype(np.int64)
        row = builder.series(rank, name, UNITS[name], tool, device=device)
        builder.samples(row, ts, np.broadcast_to(np.array(values, float), ts.shape).copy())
    trace = builder.finish()
    numbers = {device for _, device in work} | {device for _, device, *_ in series}
    devices = tuple(Device("", number, name=product) for number in sorted(numbers))
    return trace.with_meta(devices=devices) if product else trace


UNITS = {"socket power": "W", "energy": "J", "gfx clock": "MHz", "GFX activity": "%"}


def power(rank: int, device: int, watts: Any = 500.0, seconds: Any = EVERY_SECOND) -> tuple:
    return (rank, device, "socket power", "amd-smi", seconds, watts)


def clock(rank: int, device: int) -> tuple:
    return (rank, device, "gfx clock", "amd-smi", EVERY_SECOND, 1500.0)


def counter(rank: int, device: int, watts: float = 450.0) -> tuple:
    return (rank, device, "energy", "smi", EVERY_SECOND, watts * np.arange(LONG + 1))


def figures(trace: ci.Trace) -> dict[str, list[Any]]:
    """Energies, numbers of GPUs and of those without known power by each analysis."""
    summary = efficiency(trace, tokens=1000).summary
    row = sweep(trace, tokens=1000).rows.to_pylist()[0]
    by_job = energy(trace, by="job").rows.to_pylist()
    job_row = by_job[0] if by_job else {"energy_j": None, "gpus": 0, "gpus_without_power": 0}
    return {
        "energy_j": [job_row["energy_j"], summary["energy_j"], row.get("energy_j")],
        "gpus": [job_row["gpus"] + job_row["gpus_without_power"], summary["gpus"], row.get("gpus")],
        "j_per_token": [summary["j_per_token"], row.get("j_per_token")],
        "unknown": [
            job_row["gpus_without_power"],
            summary["gpus_without_power"],
            (row.get("gpus") or 0) - (row.get("power_gpus") or 0),
        ],
    }


def spiked(value: float) -> Any:
    watts = np.full(LONG + 1, 500.0)
    watts[50] = value
    return watts


FINE = (-1, 0, "socket power", "recorder", np.arange(0, 10.01, 0.02), 500.0)
ALONE = {
    "power": ([power(-1, 0)], 50_000, 1),
    "a finer tool for 10 s of 100": ([power(-1, 0), FINE], 50_000, 1),
    "a value that means that there is none": ([power(-1, 0, spiked(2**32 - 1))], 50_000, 1),
    "an error": ([power(-1, 0, spiked(-1))], 50_000, 1),
    "an energy counter alone": ([counter(-1, 0)], 45_000, 1),
    "a counter and power": (
        [(-1, 0, "socket power", "smi", EVERY_SECOND, 500.0), counter(-1, 0)], 45_000, 1,
    ),
    "two GPUs": ([power(-1, 0), power(-1, 1, 300)], 80_000, 2),
}  # fmt: skip


@pytest.mark.parametrize("case", ALONE)
def test_telemetry_alone(case: str) -> None:
    series, joules, gpus = ALONE[case]
    actual = figures(job([], series))
    assert actual["energy_j"] == pytest.approx([joules] * 3)
    assert actual["j_per_token"] == pytest.approx([joules / 1000] * 2)
    assert actual["gpus"] == [gpus] * 3
    assert actual["unknown"] == [0] * 3


def test_tools_that_end_at_different_times() -> None:
    """Without up to a tenth of the time, it is that in which the power of all GPUs is known."""
    few = figures(job([], [power(-1, 0), power(-1, 1, 300, range(81))]))
    assert few["energy_j"] == [pytest.approx(74_000), None, None]
    for seconds in (range(96), range(5, 101)):
        maximum = figures(job([], [power(-1, 0), power(-1, 1, 300, seconds)]))
        assert maximum["energy_j"] == pytest.approx([78_500, 76_000, 76_000])
    finer = (-1, 0, "socket power", "recorder", np.arange(0, 92, 0.02), 500.0)
    assert figures(job([], [power(-1, 0), finer]))["energy_j"] == pytest.approx([50_000] * 3)


MODULE = "AMD Instinct MI250X"


@pytest.mark.parametrize("product", [MODULE, "AMD Instinct MI300X"])
@pytest.mark.parametrize("working", [False, True])
def test_power_of_every_module_is_needed(product: str, working: bool) -> None:  # noqa: FBT001
    """The first of eight GPUs reports power: that of a module of two, or of one GPU."""
    at = [rank if working else -1 for rank in range(8)]
    work = [(rank, rank) for rank in range(8)] if working else []
    series = [clock(rank, device) for device, rank in enumerate(at)]
    trace = job(work, [power(at[0], 0), *series], product)
    actual = figures(trace)
    dies = 2 if product == MODULE else 1
    assert actual["gpus"] == [8] * 3
    assert actual["unknown"] == [8 - dies] * 3
    assert actual["energy_j"] == [pytest.approx(50_000), None, None]
    assert actual["j_per_token"] == [None, None]
    row = sweep(trace, tokens=1000).rows.to_pylist()[0]
    assert row["power_known_share"] == 0.0
    assert f"power of {8 - dies} of 8 GPUs is not known" in row["reason"]


@pytest.mark.parametrize("working", [False, True])
@pytest.mark.parametrize("numbers", [(0, 1), (2, 3)])
def test_one_power_of_both_dies(working: bool, numbers: tuple[int, int]) -> None:  # noqa: FBT001
    work = [(0, numbers[0]), (1, numbers[1])] if working else []
    ranks = (0, 1) if working else (-1, -1)
    lanes = [clock(*place) for place in zip(ranks, numbers, strict=True)]
    actual = figures(job(work, [power(ranks[0], numbers[0]), *lanes], MODULE))
    assert actual == {
        "energy_j": pytest.approx([50_000] * 3),
        "gpus": [2] * 3,
        "j_per_token": pytest.approx([50.0] * 2),
        "unknown": [0] * 3,
    }


@pytest.mark.parametrize("second", [[], [clock(0, 1)], [power(0, 1, 0.0)]])
def test_energy_of_a_module_is_shared_among_the_work_of_both_dies(second: list[tuple]) -> None:
    series = [power(0, 0), clock(0, 0), *second]
    trace = annotate(job([(0, 0), (0, 1)], series, MODULE))
    rows = energy(trace).rows.to_pylist()
    assert [(row["device"], row["energy_j"]) for row in rows] == [
        (0, pytest.approx(25_000)), (1, pytest.approx(25_000)),
    ]  # fmt: skip
    assert trace.nodes["energy_j"].to_pylist() == pytest.approx([12_500] * 4)


def test_dies_of_two_modules_have_no_power_in_common() -> None:
    trace = job([(0, 1), (1, 2)], [power(1, 2), clock(0, 1)], MODULE)
    assert figures(trace)["unknown"] == [1] * 3


def test_two_ranks_on_one_gpu_are_one_gpu() -> None:
    trace = job([(0, 0), (1, 0)], [(-1, 0, "socket power", "rpd", EVERY_SECOND, 500.0)])
    actual = figures(trace)
    assert actual["gpus"] == [1] * 3
    assert actual["energy_j"] == pytest.approx([50_000] * 3)
    summary = efficiency(trace, tokens=1000, peak_tflops=100.0).summary
    assert summary["all_gpus_peak_tflop_per_s"] == pytest.approx(100)
    row = sweep(trace, tokens=1000).rows.to_pylist()[0]
    assert row["tokens_per_s_per_gpu"] == summary["tokens_per_s_per_gpu"] == pytest.approx(10)
    rows = sweep(trace, by="run,gpu").rows.to_pylist()
    assert [(one["gpu"], one["rank"]) for one in rows] == [(0, 0), (0, 1)]


def test_a_run_with_a_gap_is_not_better() -> None:
    """500 W with a gap of 9 s of 100, and 480 W all of the time."""
    held = [second for second in EVERY_SECOND if not 47 < second < 56]
    gap = job([(0, 0)], [power(0, 0, seconds=held)])
    rows = sweep(gap, against=job([(0, 0)], [power(0, 0, 480.0)]), tokens=1000).rows.to_pylist()
    assert [row["power_known_share"] for row in rows] == pytest.approx([0.91, 1.0])
    assert [row["energy_j"] for row in rows] == pytest.approx([45_500, 48_000])
    assert [row["power_w"] for row in rows] == pytest.approx([500, 480])
    assert [row["j_per_token"] for row in rows] == pytest.approx([50, 48])
    assert [row["tokens_per_s_per_w"] for row in rows] == pytest.approx([10 / 500, 10 / 480])
    assert ["energy" in (row["best"] or "") for row in rows] == [False, True]


def test_energy_is_null_where_little_power_is_known() -> None:
    row = sweep(job([(0, 0)], [power(0, 0, seconds=range(81))]), tokens=1000).rows.to_pylist()[0]
    assert (row.get("energy_j"), row.get("j_per_token")) == (None, None)
    assert row["power_known_share"] == pytest.approx(0.8)
    assert "power of all GPUs is known of 80.0% of the time alone" in row["reason"]


def test_one_run_is_not_the_best() -> None:
    result = sweep(job([(0, 0)], [power(0, 0)]), tokens=1000)
    assert result.rows["best"].to_pylist() == [None]
    assert result.notes["best"].startswith("unknown")


SOURCE = st.tuples(
    st.sampled_from(["amd-smi", "recorder"]),
    st.sampled_from(["socket power", "energy"]),
    st.sampled_from([0.5, 1.0, 5.0]),
    st.integers(0, 40),
    st.integers(60, 140),
    st.integers(50, 900),
    st.booleans(),
)
"""Tool, quantity, period, begin and end in seconds, watts, and True for a gap."""
GPUS = st.lists(st.lists(SOURCE, max_size=3, unique_by=lambda s: s[:2]), min_size=1, max_size=3)


def series_of(rank: int, device: int, sources: list[tuple]) -> list[tuple]:
    result = [clock(rank, device)]
    for tool, name, period, first, last, watts, has_gap in sources:
        ts = np.arange(first, last, period)
        ts = ts[(ts < 45) | (ts > 85)] if has_gap else ts
        values = watts * ts if name == "energy" else float(watts)
        result.append((rank, device, name, tool, ts, values))
    return result


@given(GPUS, st.sampled_from(["telemetry", "ranks", "one rank"]), st.sampled_from(["", MODULE]))
def test_analyses_agree_for_any_source_of_power(
    gpus: list[list[tuple]], who: str, product: str
) -> None:
    """Energies are equal, or null where power of some GPU or time is not known."""
    ranks = [{"telemetry": -1, "ranks": device, "one rank": 0}[who] for device in range(len(gpus))]
    work = [(rank, device) for device, rank in enumerate(ranks) if rank >= 0]
    series = [
        one
        for device, sources in enumerate(gpus)
        for one in series_of(ranks[device], device, sources)
    ]
    trace = job(work, series, product)
    rows, row = efficiency(trace).summary, sweep(trace).rows.to_pylist()[0]
    job_rows = energy(trace, by="job").rows.to_pylist()
    assert rows["gpus"] == row["gpus"] == len(gpus)
    assert [one["gpus"] + one["gpus_without_power"] for one in job_rows] == [len(gpus)] * len(
        job_rows
    )
    # single samples with nothing known between are power, but of no time
    assert rows["gpus_without_power"] <= len(gpus) - row["power_gpus"]
    assert row["window_ns"] == rows["time_ns"]
    if rows["energy_j"] is None:
        assert rows["gpus_without_power"] or rows["power_known_share"] < 1
    else:
        assert row["energy_j"] == pytest.approx(rows["energy_j"])
        assert row["power_w"] == pytest.approx(rows["power_w"])
    if row.get("energy_j") is None:
        assert not row["power_gpus"] or row["power_known_share"] < 0.9
        assert (
            not row["power_gpus"] or "is known of" in row["reason"] or "not known" in row["reason"]
        )
    elif work:
        assert job_rows[0]["energy_j"] == pytest.approx(row["energy_j"])
        assert job_rows[0]["gpus_without_power"] == 0


def test_peak_without_shown_power_in_the_window() -> None:
    """Power is shown only after the work; a counter has the energy of the work."""
    half = np.arange(0, 101, 0.5)
    fine = (0, 0, "energy", "amd-smi", half, 450 * half)
    (row,) = energy(job([(0, 0)], [power(0, 0, seconds=range(101, 150)), fine])).rows.to_pylist()
    assert row["energy_j"] > 0
    assert row["peak_power_w"] == pytest.approx(row["mean_power_w"], rel=0.01)
