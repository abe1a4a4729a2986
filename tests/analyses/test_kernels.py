"""Statistics of groups of GPU work against plain loops, the sample job and another tool."""

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peer_files import FILES
from read_once import read_once
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.kernels import kernels
from chopper_interop.analyses.methods import distributions
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import GPU_WORK, Kind, LaneKind
from chopper_interop.testing import check_analysis

WORK = st.lists(
    st.tuples(
        st.sampled_from(GPU_WORK),
        st.sampled_from("abc"),
        st.integers(0, 2),  # rank
        st.integers(0, 1),  # device
        st.integers(0, 40),
        st.integers(0, 9) | st.integers(5_000, 90_000),
    ),
    max_size=15,
)
PERCENTS = {"min": 0, "p5": 5, "p25": 25, "median": 50, "p75": 75, "p95": 95, "p99": 99, "max": 100}


def job(work: list[tuple], shift: int = 0) -> ci.Trace:
    builder = TraceBuilder()
    for part in {w[1:4]: 0 for w in work}:
        group = [w for w in work if w[1:4] == part]
        name, rank, device = part
        builder.nodes(
            kind=np.array([int(w[0]) for w in group], np.uint8),
            name=name,
            rank=rank,
            lane=builder.lane(rank, LaneKind.STREAM, device, "s", device),
            ts=np.array([w[4] + shift for w in group]),
            dur=np.array([w[5] for w in group]),
        )
    return builder.finish()


def smallest(values: list[int], percent: int) -> int:
    """The smallest value that so many percent do not exceed."""
    ordered = sorted(values)
    return next(v for v in ordered if 100 * sum(u <= v for u in values) >= percent * len(values))


@given(WORK, st.sampled_from([0.0, 1.0, 5.0]))
def test_against_plain_loops(work: list, mads: float) -> None:
    result = kernels(job(work), by="kernel", outlier_mads=mads)
    rows = {row["kernel"]: row for row in result.rows.to_pylist()}
    names = sorted({w[1] for w in work})
    assert sorted(rows) == names
    everything = sum(w[5] for w in work)
    busy = {(w[2], w[3], m) for w in work for m in range(w[4], w[4] + w[5])}
    for name in names:
        group = [w for w in work if w[1] == name]
        dur = [w[5] for w in group]
        row = rows[name]
        assert (row["count"], row["total_ns"]) == (len(dur), sum(dur))
        assert row["share"] == (sum(dur) / everything if everything else None)
        covered = {(w[2], w[3], m) for w in group for m in range(w[4], w[4] + w[5])}
        assert row["covered_ns"] == len(covered)
        assert row["busy_share"] == (len(covered) / len(busy) if busy else None)
        assert {p: row[f"{p}_ns"] for p in PERCENTS} == {
            p: smallest(dur, percent) for p, percent in PERCENTS.items()
        }
        assert row["mean_ns"] == pytest.approx(statistics.fmean(dur))
        assert row["std_ns"] == pytest.approx(statistics.pstdev(dur))
        middle = smallest(dur, 50)
        mad = smallest([abs(d - middle) for d in dur], 50)
        bound = middle + max(mads * 1.4826 * mad, 0.05 * middle, 1000)
        assert row["outliers"] == sum(d > bound for d in dur)
        assert row["outlier_excess_ns"] == sum(d - middle for d in dur if d > bound)
        medians = {
            r: smallest([w[5] for w in group if w[2] == r], 50) for r in {w[2] for w in group}
        }
        of_ranks = smallest(list(medians.values()), 50)
        if len(medians) == 1:
            assert (row["rank_spread_ratio"], row["slowest_rank"]) == (None, None)
        else:
            assert medians[row["slowest_rank"]] == max(medians.values())
            expected = max(medians.values()) / of_ranks if of_ranks else None
            assert row["rank_spread_ratio"] == expected
    assert result.summary["total_ns"] == everything
    assert result.summary["busy_ns"] == len(busy)
    totals = result.rows["total_ns"].to_pylist()
    assert totals == sorted(totals, reverse=True)


@given(WORK, st.randoms(use_true_random=False), st.integers(0, 10**12))
def test_order_time_and_numbers_of_ranks_do_not_matter(work: list, random, shift: int) -> None:
    other = [(k, n, 7 - r, d, t, dur) for k, n, r, d, t, dur in work]
    random.shuffle(other)
    same = (
        "count",
        "total_ns",
        "covered_ns",
        "std_ns",
        "median_ns",
        "mean_ns",
        "outliers",
        "rank_spread_ratio",
    )
    results = [
        sorted(
            (row["class"], row["kernel"], *(row[c] if row[c] is not None else -1 for c in same))
            for row in kernels(job(w, s)).rows.to_pylist()
        )
        for w, s in ((work, 0), (other, shift))
    ]
    assert results[0] == results[1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-(2**62), 2**62)), max_size=20))
def test_values_of_any_size(pairs: list) -> None:
    code = np.array([c for c, _ in pairs], np.int64)
    values = np.array([v for _, v in pairs], np.int64)
    distribution = distributions.group_distributions(code, values, 4)
    for g in range(4):
        group = [v for c, v in pairs if c == g]
        assert distribution.values[
            distribution.offsets[g] : distribution.offsets[g + 1]
        ].tolist() == sorted(group)
        if group:
            assert distribution.median[g] == smallest(group, 50)
            assert distribution.percentile(99)[g] == np.percentile(group, 99, method="inverted_cdf")


def test_the_worst_instance_is_named() -> None:
    trace = job([(Kind.KERNEL, "a", r, 0, 10 * i, 5 + i * r) for r in (0, 3) for i in range(4)])
    (row,) = kernels(trace).rows.to_pylist()
    node = row["worst_node"]
    assert (trace.array("rank")[node], trace.array("dur")[node]) == (3, 14)
    assert (row["worst_rank"], row["worst_start_ns"]) == (3, trace.array("ts")[node])


def test_unknown_options_are_refused(demo: Path) -> None:
    trace = read_once(demo)
    for options in ({"by": "color"}, {"steps": "99"}, {"ranks": "77"}, {"outlier_mads": math.nan},
                    {"compat": "tracelens"}, {"compat": "hta", "by": "rank"}):  # fmt: skip
        with pytest.raises(UsageError):
            kernels(trace, **options)


def test_analysis_contract(demo: Path) -> None:
    check_analysis(kernels, read_once(demo))


@pytest.mark.parametrize("seed", slow_from(range(4), 1))
def test_kernels_of_the_sample_job(tmp_path: Path, seed: int) -> None:
    folder = make_demo(
        tmp_path / "job", ranks=1 + seed, layers=1 + seed % 2, steps=2, seed=seed, sequence=256,
        telemetry=False, counter_steps=0,
    )  # fmt: skip
    truth = json.loads((folder / "truth.json").read_text())
    trace = ci.read(folder)
    of_truth = truth["kernels"]
    rank = np.array(of_truth["rank"])
    dur = np.array(of_truth["dur_ns"])
    kinds = np.array(of_truth["class"])
    result = kernels(trace, by="rank,class")
    rows = {(row["rank"], row["class"]): row for row in result.rows.to_pylist()}
    for r in range(1 + seed):
        expected = dur[(rank == r) & (kinds == "collective")]
        if not expected.size:
            continue
        row = rows[r, "comm"]
        assert (row["count"], row["total_ns"]) == (expected.size, expected.sum())
        assert row["median_ns"] == smallest(expected.tolist(), 50)
        busy = sum(
            b for b, owner in zip(truth["steps"]["communication_ns"], truth["steps"]["rank"], strict=True)
            if owner == r
        )  # fmt: skip
        assert row["covered_ns"] == busy
    compute = kernels(trace, by="job,kernel,class").rows.to_pylist()
    total = sum(row["total_ns"] for row in compute if not row["kernel"].startswith("Mem"))
    assert total == dur.sum()
    slow = truth["straggler"]["rank"]
    if slow >= 0:
        gemms = [
            row
            for row in kernels(trace, by="kernel").rows.to_pylist()
            if row["kernel"].startswith("Cijk")
        ]
        assert {row["slowest_rank"] for row in gemms} == {slow}


def test_rates_follow_from_work_and_time(demo: Path) -> None:
    trace = read_once(demo)
    frame = trace.to_pandas()
    for row in kernels(trace, by="kernel").rows.to_pylist():
        instances = frame[
            (frame.name == row["kernel"]) & frame.kind.isin(["kernel", "comm", "memcpy", "memset"])
        ]
        for column, work, unit in (
            ("tflop_per_s", "flops", 1e3),
            ("mem_gbps", "mem_bytes", 1),
            ("tflop_per_s_counted", "flops_counted", 1e3),
        ):
            known = instances[instances[work].notna()]
            if row[column] is None:
                assert known.empty
            else:
                expected = known[work].sum() / known.dur.sum() / unit
                assert row[column] == pytest.approx(expected, rel=1e-9)
        known = instances[instances.power_w.notna()]
        if len(known):
            assert row["power_w"] == pytest.approx(np.average(known.power_w, weights=known.dur))
        assert row["energy_known"] == instances.energy_j.notna().sum()


def test_steps_are_windows_that_do_not_cut_instances(demo: Path) -> None:
    trace = read_once(demo)
    every = kernels(trace, steps="each").summary
    one, two = (kernels(trace, steps=s).summary for s in ("10", "11"))
    assert every["count"] == one["count"] + two["count"]
    assert every["total_ns"] == one["total_ns"] + two["total_ns"]
    complete = kernels(trace).summary
    assert complete["count"] == every["count"] + every["left_out"]


HTA_KERNELS = {
    "param_dlrm_8rank": "pytorch/dlrm_8rank_v100/kineto",
    "hta_simple_add": "pytorch/cuda_sync_a100/simple_add.json.gz",
}
"""Traces of whole microseconds in fewer than two steps, in which HTA counts all GPU work without rounding."""


@pytest.mark.parametrize("name", HTA_KERNELS)
def test_kernels_agree_with_hta(shared: Path, name: str) -> None:
    document = json.loads((shared / "peer_figures" / f"{name}.json").read_text())
    _, reported = document["hta_0.6.1"]["kernel"]
    rows = kernels(read_once(shared / HTA_KERNELS[name]), by="rank,kernel").rows.to_pylist()
    computed = {(row["rank"], row["kernel"]): row for row in rows}
    summed = {(f["rank"], f["kernel_type"]) for f in reported if f["name"] == "others"}
    compared = 0
    for figures in reported:
        row = computed.get((figures["rank"], figures["name"]))
        if row is None:  # "others", and waits that HTA takes for kernels
            continue
        compared += 1
        assert row["total_ns"] == 1000 * figures["sum (us)"]
        if (figures["rank"], figures["kernel_type"]) in summed:
            continue  # HTA sums kernels by name before it computes statistics, which are then of one value
        extremes = 1000 * figures["min (us)"], 1000 * figures["max (us)"]
        assert (row["min_ns"], row["max_ns"]) == extremes
        assert row["mean_ns"] == pytest.approx(1000 * figures["mean (us)"], rel=1e-9)
        count = row["count"]
        sample = row["std_ns"] * (count / (count - 1)) ** 0.5 if count > 1 else 0  # by n - 1
        assert sample == pytest.approx(1000 * figures["stddev"], rel=1e-6)
    assert compared > len(reported) / 2


# HTA 0.6.1, the version of these figures, does not load that trace
@pytest.mark.parametrize("name", [name for name in FILES if name != "tl_mi300_resnet_ckpt"])
def test_types_of_kernels_agree_with_hta(shared: Path, name: str) -> None:
    document = json.loads((shared / "peer_figures" / f"{name}.json").read_text())
    reported, _ = document["hta_0.6.1"]["kernel"]
    result = kernels(read_once(shared / FILES[name]), compat="hta")
    computed = {r["kernel_type"]: (r["sum_us"], r["percent"]) for r in result.rows.to_pylist()}
    assert computed == {r["kernel_type"]: (r["sum"], r["percentage"]) for r in reported}
