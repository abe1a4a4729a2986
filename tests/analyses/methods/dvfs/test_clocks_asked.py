"""Times at requested clocks where clocks of kernels, or of their GPUs, are known or not."""

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from clocked_job import MS, job
from hypothesis import given
from hypothesis import strategies as st
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.methods.dvfs.sensitivity import kernel_sensitivities
from chopper_interop.annotate.stages import annotate
from chopper_interop.arrays import arrow
from chopper_interop.build import TraceBuilder
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Device, Rank

MI300X = "AMD Instinct MI300X"
AT_ALL = 0.8
"""Prior sensitivity of a large product."""


def rows_of(trace: ci.Trace, by: str, ceiling: str, **options: object) -> list[dict]:
    rows = ci.analyze(trace, "dvfs", by=by, **options).rows.to_pylist()
    return [row for row in rows if row["ceiling"] == ceiling]


@pytest.mark.parametrize("mhz", [1500.0, 1200.0])
def test_kernels_stay_on_gpus_whose_highest_clock_is_not_known(mhz: float) -> None:
    """The clocks of these say nothing of kernels on the others."""
    clocks = np.where(np.arange(16) % 2, 1500.0, mhz)
    trace = job(clocks, np.full(16, MS), ranks=2, gpus=("", MI300X))
    unknown, known = rows_of(trace, "rank", "peak")
    assert unknown["ideal_ns"] == unknown["ideal_low_ns"] == unknown["ideal_high_ns"] == 8 * MS
    shorter = 1 - AT_ALL * (1 - 1500 / 2100)
    assert known["ideal_ns"] == pytest.approx(8 * MS * shorter, rel=0.005)
    result = ci.analyze(trace, "dvfs")
    assert result.summary["kernels_unknown"] == 8
    assert "of 8 of 16 kernels" in result.notes["unknown: peak"]
    done = result.annotate(trace).nodes["ideal_ns"].is_valid().to_numpy()
    assert done.tolist() == (trace.array("rank") == 1).tolist()


def test_intervals_are_the_same_by_repeats_and_by_kernel() -> None:
    """For names that are one kernel each; also for a kernel that runs only on a rank without changes."""
    rng = np.random.default_rng(2)
    mhz = rng.uniform(1500, 1900, 200)
    t_ns = MS * 1900 / mhz * rng.normal(1, 0.01, 200)
    trace = job(mhz, t_ns, ranks=2, names=["a", "b"] * 100, gpus=(MI300X, MI300X))
    for options in ({"clock": "1000", "on_ranks": "0"}, {"clock": "0.9x"}):
        rows = {
            by: {
                row["kernel"]: [row[f"ideal_{end}ns"] for end in ("", "low_", "high_")]
                for row in rows_of(trace, by, "asked", **options)
            }
            for by in ("kernel", "repeats")
        }
        assert rows["kernel"] == rows["repeats"]
        of_other = rows["repeats"]["b"]
        assert (len(set(of_other)) == 1) == ("on_ranks" in options)


def streaming(mhz: np.ndarray, *, names: list[str] | None = None) -> ci.Trace:
    """Kernels of 1 ms, of which the memory takes 0.9 ms at its peak bandwidth."""
    n = len(mhz)
    trace = job(mhz, np.full(n, MS), names=names or ["copy"] * n, gpus=(MI300X,))
    moved, clock = arrow.array(np.full(n, int(0.9e-3 * 5300e9))), arrow.array(np.full(n, 1300.0))
    return trace.with_columns(mem_bytes=moved, memclk_mhz=clock)


@pytest.mark.parametrize("factor", slow_from([0.5, 2.0, 0.25, 0.8, 3.0], 2))
def test_all_clocks_together_take_as_much_longer_as_they_are_slower(factor: float) -> None:
    trace, asked = streaming(np.full(100, 1000.0)), f"{factor}x"

    def longer(**options: str) -> float:
        (row,) = rows_of(trace, "kernel", "asked", **options)
        return row["ideal_ns"] / row["measured_ns"]

    assert longer(clock=asked, memory_clock=asked) == pytest.approx(1 / factor, rel=1e-6)
    memory = longer(memory_clock=asked)
    assert memory == pytest.approx(1 + 0.9 * (1 / factor - 1), rel=1e-6)
    assert longer(memory_clock=asked, clock="1x") == memory
    core = longer(clock=asked)
    assert longer(clock=asked, memory_clock="1x") == core
    both = longer(clock=asked, memory_clock="0.99x")  # a sum, as long as it is no more than all
    assert both == pytest.approx(core + 0.9 * (1 / 0.99 - 1), rel=1e-6)


def test_a_memory_clock_can_be_asked_about_whether_the_cores_is_known_or_not() -> None:
    """Kernels "b" have no clock of the core, "c" none of the memory."""
    mhz = np.where(np.arange(90) < 30, 2000.0, np.nan)
    trace = streaming(mhz, names=["a"] * 30 + ["b"] * 30 + ["c"] * 30)
    memory = np.where(np.arange(90) < 60, 1300.0, np.nan)
    trace = trace.with_columns(memclk_mhz=arrow.array(memory, mask=np.isnan(memory)))
    for options, longer in (
        ({"memory_clock": "0.5x"}, {"a": 1.9, "b": 1.9, "c": 1.0}),
        ({"clock": "0.5x"}, {"a": 1.15, "b": 1.0, "c": 1.0}),
        ({"clock": "0.5x", "memory_clock": "0.5x"}, {"a": 2.0, "b": 1.0, "c": 1.0}),
    ):
        result = ci.analyze(trace, "dvfs", by="kernel", **options)
        rows = [row for row in result.rows.to_pylist() if row["ceiling"] == "asked"]
        ratios = {row["kernel"]: row["ideal_ns"] / row["measured_ns"] for row in rows}
        assert ratios == pytest.approx(longer)
        stay = 30 * sum(value == 1.0 for value in longer.values())
        assert result.summary["asked"]["kernels_unknown"] == stay
        assert f"of {stay} of 90 kernels" in result.notes["unknown: asked"]


def test_a_memory_clock_can_be_asked_about_without_any_clock_of_the_core() -> None:
    result = ci.analyze(streaming(np.full(30, np.nan)), "dvfs", memory_clock="0.5x")
    asked = result.summary["asked"]
    assert asked["sum_of_kernels_ideal_ns"] == pytest.approx(1.9 * 30 * MS)
    assert asked["kernels_unknown"] == 0
    assert "no rows" not in result.notes


def test_notes_name_the_clock_that_is_missing() -> None:
    clocks = np.full(30, 1500.0)
    result = ci.analyze(job(clocks, np.full(30, MS)), "dvfs")
    assert "are known, but no target is" in result.notes["no rows"]
    with pytest.raises(UsageError, match="memory_clock=fast is no clock"):
        ci.analyze(job(clocks, np.full(30, MS)), "dvfs", memory_clock="fast")


def test_a_note_counts_clocks_above_the_highest() -> None:
    def loss_and_note(mhz: float, **options: str) -> tuple[float, str]:
        trace = job(np.full(30, mhz), np.full(30, MS), gpus=(MI300X,))
        result = ci.analyze(trace, "dvfs", **options)
        low = result.summary["measured_step_ns"] - result.summary["ideal_step_high_ns"]
        return low / result.summary["measured_step_ns"], result.notes.get(
            "above the highest clock", ""
        )

    loss, line = loss_and_note(2300.0)
    assert loss < 0
    assert "30 of 30 kernels ran faster, by up to 9.5%" in line
    assert loss_and_note(2100.0) == (pytest.approx(0, abs=1e-3), "")


def test_the_users_file_can_raise_the_highest_clock(tmp_path: Path) -> None:
    own = tmp_path / "gpus.toml"
    own.write_text('[[gpu]]\nname = "MI300X"\nmax_mhz = 2300\n')
    trace = job(np.full(30, 2300.0), np.full(30, MS), gpus=(MI300X,))
    result = ci.analyze(trace, "dvfs", gpus=str(own))
    assert result.summary["loss_share"] == pytest.approx(0)
    assert "above the highest clock" not in result.notes


@pytest.mark.parametrize("clock", slow_from(["300", "0.3x", "1000", "2100", "1.3x"], 2))
@pytest.mark.parametrize("gpu", ["", MI300X])
def test_no_end_of_an_interval_is_beyond_what_clocks_allow(clock: str, gpu: str) -> None:
    """For kernels of which little is known: slower clocks shorten nothing, and lengthen in proportion."""
    trace = job(np.full(16, 1500.0), np.full(16, MS), period_ns=100, gpus=(gpu,))
    ratio = 1 / float(clock[:-1]) if "x" in clock else 1500 / float(clock)
    minimum, maximum = sorted((1.0, ratio))
    for by in ("job", "repeats", "class"):
        (row,) = rows_of(trace, by, "asked", clock=clock)
        if by == "job":  # a range without an estimate
            assert row["ideal_ns"] is None
            row["ideal_ns"] = (row["ideal_low_ns"] + row["ideal_high_ns"]) / 2
        low, ideal, high = (
            row[f"ideal_{end}ns"] / row["measured_ns"] for end in ("low_", "", "high_")
        )
        assert 0.995 * minimum <= low < ideal < high <= 1.005 * maximum


@pytest.mark.slow
@given(st.integers(0, 1000), st.sampled_from(["max1900", "max1500", "0.9x", "1.2x"]))
def test_no_repeat_gets_shorter_at_a_lower_clock(seed: int, clock: str) -> None:
    """Nor longer at a higher one, by more than its clock allows, or otherwise where it stays."""
    rng, ranks = np.random.default_rng(seed), 40
    mhz = rng.uniform(1400, 2000, ranks)
    t_ns = MS * (0.5 + 0.5 * 2000 / mhz) * rng.normal(1, 0.02, ranks)
    trace = job(mhz, t_ns, ranks=ranks, names=["elementwise"] * ranks)
    changed = mhz / np.minimum(mhz, 1900.0 if clock == "max1900" else 1500.0)
    if clock.endswith("x"):
        changed = np.full(ranks, 1 / float(clock[:-1]))
    for row, ratio in zip(rows_of(trace, "rank", "asked", clock=clock), changed, strict=True):
        minimum, maximum = sorted((1.0, ratio))
        assert minimum - 1e-6 <= row["ideal_ns"] / row["measured_ns"] <= maximum + 1e-6


def test_wide_intervals_reach_further_up_than_down() -> None:
    trace = job(np.full(16, 1500.0), np.full(16, MS), names=["unheard_of"] * 16)
    (row,) = rows_of(trace, "class", "asked", clock="500")
    low, ideal, high = (row[f"ideal_{end}ns"] for end in ("low_", "", "high_"))
    assert 0.999 * row["measured_ns"] <= low
    assert ideal - low < high - ideal


def test_clocks_of_unknown_gpus_are_limited_by_those_seen() -> None:
    trace = job(np.full(16, 1000.0), np.full(16, MS))
    for clock in ("60", "2900"):
        assert rows_of(trace, "job", "asked", clock=clock)
    for clock in ("40", "3100"):
        with pytest.raises(UsageError, match="no GPU of the job"):
            ci.analyze(trace, "dvfs", clock=clock)


def test_a_clock_is_above_the_highest_only_on_the_gpus_asked_about() -> None:
    trace = job(np.full(16, 1600.0), np.full(16, MS), ranks=2, gpus=(MI300X, "AMD Instinct MI250X"))
    notes = [
        ci.analyze(trace, "dvfs", clock="1900", on_ranks=ranks).notes["clock: asked"]
        for ranks in ("0", "1")
    ]
    assert notes == ["1900, of ranks 0", "1900, above the highest clock, of ranks 1"]


@pytest.mark.parametrize(
    ("options", "end", "factor"),
    [
        ({"clock": "0.5x", "memory_clock": "0.5x"}, "ideal_high_ns", 2.0),
        ({"clock": "2000", "memory_clock": "2x"}, "ideal_low_ns", 0.5),
    ],
)
def test_both_clocks_change_no_more_than_the_one_that_changes_more(options, end, factor) -> None:
    (row,) = rows_of(streaming(np.linspace(1400, 2000, 60)), "job", "asked", **options)
    at_most = factor * row["measured_ns"]
    assert row[end] <= at_most * 1.001 if factor > 1 else row[end] >= at_most * 0.999


@cache
def read_at(mhz: float, gpu: str = "NVIDIA H200") -> ci.Trace:
    """Products of 10 ms for 2 s on a GPU of which one clock is read throughout."""
    builder = TraceBuilder()
    start = np.arange(200) * 10 * MS
    builder.nodes(
        kind=int(Kind.KERNEL), name="gemm", rank=0, lane=builder.lane(0, LaneKind.STREAM, 7, "s", 0),
        ts=start, dur=np.full(200, 10 * MS),
    )  # fmt: skip
    builder.samples(
        builder.series(0, "gfx clock", "MHz", "recorder", device=0), start, np.full(200, mhz)
    )
    trace = builder.finish()
    meta = dataclasses.replace(
        trace.meta, ranks=(Rank(0, host="h", device=0),), devices=(Device("h", 0, gpu),)
    )
    return annotate(dataclasses.replace(trace, meta=meta))


@pytest.mark.parametrize("mhz", slow_from([1200, 1517, 1850, 1980], 1))
@pytest.mark.parametrize("asked", ["{}", "max{}", "1x"])
def test_the_clock_that_was_read_is_that_of_the_run(mhz: int, asked: str) -> None:
    """A stated clock was not lifted as readings are: kernels read at 1517 MHz took 9 % longer at 1500 than they should."""
    trace, clock = read_at(mhz), asked.format(mhz)
    (row,) = rows_of(trace, "job", "asked", clock=clock)
    ends = [row["ideal_low_ns"], row["ideal_high_ns"]]
    assert ends == pytest.approx([row["measured_ns"]] * 2, rel=0.005)
    for change in (f"clock={clock}", f"clock={clock} beta=1"):
        after = ci.analyze(trace, "what_if", change=change).rows.to_pylist()[-1]["after_ns"]
        assert after == pytest.approx(row["measured_ns"], rel=1e-6)
    (repeats,) = rows_of(trace, "repeats", "asked", clock=clock)
    (of_class,) = rows_of(trace, "class", "asked", clock=clock)
    assert repeats["mean_mhz"] == pytest.approx(mhz)
    assert of_class["mean_mhz"] == pytest.approx(mhz)


@pytest.mark.parametrize("asked", ["{}", "max{}", "{}x"])
@pytest.mark.parametrize("mhz", slow_from([1980, 1400, 1850], 1))
def test_kernels_take_longer_at_lower_readings(mhz: int, asked: str) -> None:
    trace, ends = read_at(mhz), []
    for new in np.linspace(1000, mhz, 4).round():
        clock = asked.format(new / mhz if asked == "{}x" else new)
        (row,) = rows_of(trace, "job", "asked", clock=clock)
        after = ci.analyze(trace, "what_if", change=f"clock={clock}").rows.to_pylist()[-1]
        ends.append([row["ideal_low_ns"], after["after_ns"], row["ideal_high_ns"]])
        assert row["ideal_low_ns"] >= 0.995 * row["measured_ns"]
    assert (np.diff(ends, axis=0) <= 0).all()
    assert all(low <= after <= high for low, after, high in ends)


@pytest.mark.slow
def test_the_highest_clock_is_the_ideal() -> None:
    for mhz in (1200, 1500, 1850, 1980):
        peak, asked = (
            rows_of(read_at(mhz), "job", ceiling, clock="1980")[0] for ceiling in ("peak", "asked")
        )
        assert asked | {"ceiling": "peak"} == peak


def test_readings_of_other_gpus_are_clocks() -> None:
    known = kernel_sensitivities(read_at(1500, MI300X))
    asked = np.full(200, 1200.0)
    for is_change in (False, True):
        towards, mhz, error = known.at_readings(asked, is_change=is_change)
        assert towards is known
        assert mhz is asked
        assert not error.any()


def test_an_unknown_reading_is_no_clock() -> None:
    known = kernel_sensitivities(read_at(1500))
    for is_change in (False, True):
        _, mhz, error = known.at_readings(np.full(200, np.nan), is_change=is_change)
        assert np.isnan(mhz).all()
        assert not error.any()
