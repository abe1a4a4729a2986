"""Imbalance: the sample job's straggler, and small jobs that are worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_once import read_once
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.imbalance import imbalance
from chopper_interop.analyses.methods.fleet import means as gpu_means
from chopper_interop.analyses.methods.fleet import slowest
from chopper_interop.annotate.stages import annotate
from chopper_interop.arrays import statistics
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Device, Rank
from chopper_interop.testing import check_analysis
from chopper_interop.testing.strategies import traces

if TYPE_CHECKING:
    from pathlib import Path

MILLI = 10**6
SERIES = {
    "gfx clock": "MHz", "temperature hotspot": "°C", "temperature memory": "°C",
    "temperature edge": "°C", "socket power": "W",
}  # fmt: skip


def job(
    work: list[tuple[str, int, int, int]],
    telemetry: dict[tuple[int, int], dict[str, float]],
    iteration: int | None = None,
    **meta: object,
) -> ci.Trace:
    """Kernels (name, rank, start, duration), and by rank and device what is sampled throughout."""
    builder = TraceBuilder()
    for name, rank, start, dur in work:
        lane = builder.lane(rank, LaneKind.STREAM, 1, "s", 0)
        builder.nodes(
            kind=int(Kind.KERNEL), name=name, rank=rank, lane=lane,
            ts=np.array([start]), dur=np.array([dur]),
        )  # fmt: skip
    for (rank, device), values in telemetry.items():
        for name, value in values.items():
            row = builder.series(rank, name, SERIES[name], "smi", device=device)
            builder.samples(row, np.arange(0, 20 * MILLI, MILLI), np.full(20, value))
    trace = builder.finish()
    trace = annotate(trace.with_meta(**meta) if meta else trace)
    if iteration is not None:
        trace = trace.with_columns(iteration=[iteration] * trace.nodes.num_rows)
    return trace


@pytest.mark.parametrize(
    ("seed", "straggler", "slowdown", "steps"),
    slow_from([(2, -1, 1.0, 2), (1, 0, 1.1, 2), (3, 5, 1.06, 3)], 1),
)
def test_the_sample_jobs_straggler(
    tmp_path: Path, seed: int, straggler: int, slowdown: float, steps: int
) -> None:
    make_demo(
        tmp_path / "job", ranks=8, layers=2, steps=steps, seed=seed, straggler=straggler,
        straggler_slowdown=slowdown, counter_steps=0,
    )  # fmt: skip
    truth = json.loads((tmp_path / "job" / "truth.json").read_text())
    kernels = truth["kernels"]
    trace = ci.read(tmp_path / "job")
    result = imbalance(trace)
    rows = result.to_pandas().set_index("rank")
    assert rows["kernel_time_ns"].tolist() == truth["straggler"]["kernel_time_ns"]
    own = (
        np.array(kernels["rank"]),
        np.array(kernels["dur_ns"]),
        np.array(kernels["mean_clock_mhz"]),
    )
    for rank in rows.index:
        selected = (own[0] == rank) & (np.array(kernels["class"]) != "collective")
        clock = np.average(own[2][selected], weights=own[1][selected])
        assert rows["gfxclk_mhz"][rank] == pytest.approx(clock, rel=0.05)  # with idle time
    last = [
        starts.index(max(starts))
        for starts in truth["collectives"]["starts_ns"]
        if starts.count(max(starts)) == 1
    ]
    count = len(truth["collectives"]["starts_ns"])
    shares = [last.count(rank) / count for rank in range(8)]
    assert rows["late_share"].to_numpy() == pytest.approx(shares)
    if straggler < 0:
        assert rows["slowdown_factor"].max() < 1.02
        return
    slow = rows.loc[straggler]
    assert slow["slowdown_factor"] == truth["straggler"]["slowdown"]
    assert slow["gfxclk_ratio"] < 0.97
    assert slow["temperature_difference_c"] > 1  # 9 more at equal power, of which it draws less
    assert slow["memory_temperature_difference_c"] < 0  # the demo's memory heats by power alone
    assert rows["lead_sum_ns"].idxmin() == rows["last_kernels"].idxmax() == straggler
    assert rows["late_share"].idxmax() == straggler
    for name in ("slowest", "most_often_last"):
        assert result.summary[name]["rank"] == straggler
    pairs = {(c["quantity"], c["with_quantity"]): c for c in result.summary["correlations"]}
    assert pairs["gfxclk_mhz", "kernel_time_ns"]["pearson_ratio"] < -0.9
    (node,) = imbalance(trace, by="node").rows.to_pylist()
    assert node["gfxclk_lowest"] == node["kernel_time_highest"] == f"rank {straggler}"
    stepped = imbalance(trace, steps="each").to_pandas()
    times = stepped.groupby("rank")["kernel_time_ns"].sum()
    assert times.tolist() == truth["straggler"]["kernel_time_ns"]
    assert stepped.groupby("rank")["lead_sum_ns"].sum().tolist() == rows["lead_sum_ns"].tolist()
    assert stepped.groupby("rank")["collectives"].sum().tolist() == rows["collectives"].tolist()


def test_stages_of_a_pipeline_are_compared_within(tmp_path: Path) -> None:
    make_demo(
        tmp_path / "job", ranks=4, layers=4, steps=2, seed=6, pipeline=2, microbatches=2, straggler=3,
        telemetry=False, counter_steps=0,
    )  # fmt: skip
    truth = json.loads((tmp_path / "job" / "truth.json").read_text())
    times = truth["straggler"]["kernel_time_ns"]
    rows = imbalance(ci.read(tmp_path / "job")).rows.to_pylist()
    assert [row["kernel_time_ns"] for row in rows] == times
    stage = dict(
        zip(truth["pipeline"]["steps"]["rank"], truth["pipeline"]["steps"]["stage"], strict=True)
    )
    for row in rows:
        (peer,) = (r for r in range(4) if stage[r] == stage[row["rank"]] and r != row["rank"])
        assert row["slowdown_factor"] == pytest.approx(times[row["rank"]] / times[peer])
        assert row["lead_kernels"] > 0
    assert rows[3]["last_kernels"] > rows[2]["last_kernels"]


KERNELS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 30)), max_size=25
)


@given(KERNELS)
def test_leads_are_those_of_plain_loops(kernels) -> None:
    work = [(name, rank, start * 1000, 500) for name, rank, start in kernels]
    result = imbalance(job(work, {}, iteration=4 if kernels else None))
    ranks = sorted({rank for _, rank, *_ in work})
    starts = {
        (rank, name): sorted(s for n, r, s, _ in work if (n, r) == (name, rank))
        for rank in ranks for name in "ab"
    }  # fmt: skip
    leads: dict[int, list[int]] = {rank: [] for rank in ranks}
    for name in "ab":
        lists = [starts[rank, name] for rank in ranks]
        if len({len(of) for of in lists}) == 1:
            for same in zip(*lists, strict=True):
                for rank, start in zip(ranks, same, strict=True):
                    leads[rank].append(max(same) - start)
    for row in result.rows.to_pylist():
        own = sorted(leads[row["rank"]])
        if len(ranks) < 2 or not own:
            assert row["lead_sum_ns"] is None
            continue
        assert row["lead_sum_ns"] == sum(own)
        assert row["lead_median_ns"] == own[(len(own) - 1) // 2]
        assert row["lead_kernels"] == len(own)


WORK = [("k", rank, 0, 10 * MILLI + rank * MILLI) for rank in range(4)]
HEAT = {
    (rank, 0): {"gfx clock": 2000 - 100 * rank, "temperature hotspot": 60 + 10 * rank,
                "temperature memory": 50.0 + (rank == 3), "socket power": 700}
    for rank in range(4)
}  # fmt: skip
HOSTS = tuple(Rank(r, host=f"n{r // 2}", device=0) for r in range(4))


def test_differences_by_gpu_node_job_and_position() -> None:
    devices = tuple(Device(f"n{h}", 0, index=-1) for h in range(2))
    trace = job(WORK, HEAT, ranks=HOSTS, devices=devices)
    check_analysis(imbalance, trace)
    rows = imbalance(trace).rows.to_pylist()
    assert [row["gfxclk_mhz"] for row in rows] == [2000, 1900, 1800, 1700]
    assert [row["gfxclk_difference_mhz"] for row in rows] == [150, 50, -50, -150]
    assert [row["gfxclk_ratio"] for row in rows] == pytest.approx(
        [2000 / 1850, 1900 / 1850, 1800 / 1850, 1700 / 1850]
    )
    assert [row["temperature_difference_c"] for row in rows] == [-15, -5, 5, 15]
    assert [row["memory_temperature_difference_c"] for row in rows] == [0, 0, 0, 1]
    assert [row["slowdown_factor"] for row in rows] == pytest.approx(
        [10 / 12, 11 / 12, 12 / 11, 13 / 11]
    )
    nodes = imbalance(trace, by="node").rows.to_pylist()
    assert [node["host"] for node in nodes] == ["n0", "n1"]
    assert [node["temperature_spread_c"] for node in nodes] == [10, 10]
    assert [node["temperature_ratio"] for node in nodes] == pytest.approx([70 / 60, 90 / 80])
    assert [node["temperature_highest"] for node in nodes] == ["rank 1", "rank 3"]
    (job_row,) = imbalance(trace, by="job").rows.to_pylist()
    assert (job_row["gpus"], job_row["gfxclk_spread_mhz"], job_row["power_ratio"]) == (4, 300, 1)
    assert job_row["kernel_time_ns"] == 11.5 * MILLI
    summary = imbalance(trace).summary
    assert summary["temperature_highest_to_lowest_ratio"] == job_row["temperature_ratio"]
    assert summary["temperature_spread_c"] == job_row["temperature_spread_c"]
    asked = imbalance(trace, ranks="1-2").rows.to_pylist()
    assert [row["gfxclk_difference_mhz"] for row in asked] == [50, -50]


def test_front_and_rear() -> None:
    ranks = tuple(Rank(r, host=f"n{r // 2}", device=r % 2) for r in range(4))
    devices = tuple(Device(f"n{r // 2}", r, index=r % 2) for r in range(4))
    heat = {(r, r): {"temperature hotspot": 60.0 + 20 * (r % 2) + r // 2} for r in range(4)}
    builder = TraceBuilder()
    for rank in range(4):
        lane = builder.lane(rank, LaneKind.STREAM, 1, "s", rank)
        builder.nodes(
            kind=int(Kind.KERNEL), name="k", rank=rank, lane=lane,
            ts=np.array([0]), dur=np.array([10 * MILLI]),
        )  # fmt: skip
    for (rank, device), values in heat.items():
        for name, value in values.items():
            row = builder.series(rank, name, SERIES[name], "smi", device=device)
            builder.samples(row, np.arange(0, 20 * MILLI, MILLI), np.full(20, value))
    trace = annotate(builder.finish().with_meta(ranks=ranks, devices=devices))
    rows = imbalance(trace, by="position").rows.to_pylist()
    assert [(r["gpu_index"], r["gpus"], r["temperature_c"]) for r in rows] == [
        (0, 2, 60.5),
        (1, 2, 80.5),
    ]
    assert [row["temperature_difference_c"] for row in rows] == [-10, 10]


def test_correlations_are_those_of_numpy() -> None:
    random = np.random.default_rng(3)
    for size in (3, 8, 50):
        a, b = random.normal(size=size), random.integers(0, 5, size).astype(float)
        assert statistics.pearson(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1])
        order = [np.array([np.mean(np.flatnonzero(np.sort(x) == v)) for v in x]) for x in (a, b)]
        assert statistics.spearman(a, b) == pytest.approx(np.corrcoef(*order)[0, 1])
        assert statistics.pearson(a + 1e12, b) == pytest.approx(statistics.pearson(a, b), rel=1e-3)
    assert np.isnan(statistics.pearson(np.ones(5), np.arange(5.0)))
    assert np.isnan(statistics.pearson(np.arange(2.0), np.arange(2.0)))
    assert np.isnan(statistics.spearman(np.array([1.0, np.nan, 2]), np.arange(3.0)))


def test_each_pair_of_known_quantities() -> None:
    trace = job(WORK, HEAT, ranks=HOSTS)
    actual = imbalance(trace, by="correlation").to_pandas().set_index(["quantity", "with_quantity"])
    assert actual["pearson_ratio"]["gfxclk_mhz", "kernel_time_ns"] == pytest.approx(-1)
    assert actual["spearman_ratio"]["gfxclk_mhz", "temperature_c"] == pytest.approx(-1)
    assert np.isnan(actual["pearson_ratio"]["power_w", "kernel_time_ns"])  # all draw the same
    names = ("gfxclk_mhz", "temperature_c", "memory_temperature_c", "power_w", "kernel_time_ns")
    assert set(combinations(names, 2)) <= set(actual.index)


def test_edge_temperature_is_used_where_no_other_is_known() -> None:
    edge = {(r, 0): {"temperature edge": 50.0 + r} for r in range(2)}
    result = imbalance(job(WORK[:2], edge))
    assert result.rows["temperature_c"].to_pylist() == [50, 51]
    assert "edge" in result.notes["temperature of"]
    edge[0, 0]["temperature hotspot"] = 70.0
    result = imbalance(job(WORK[:2], edge))
    assert result.rows["temperature_c"].to_pylist() == [70, None]


@pytest.mark.parametrize("by", ["rank", "node", "job", "position", "correlation"])
def test_without_telemetry_without_work_and_of_one_gpu(by) -> None:
    for trace in (
        job([], {}), job(WORK, {}), job(WORK[:1], {}), job(WORK[:1], {(0, 0): HEAT[0, 0]}),
        job([], HEAT), job([], {(-1, d): {"socket power": 100.0 + d} for d in range(3)}),
    ):  # fmt: skip
        result = imbalance(trace, by=by)
        json.dumps(result.to_dict(), allow_nan=False)
    assert "no rows" in imbalance(job([], {}), by=by).notes


def test_telemetry_alone() -> None:
    rows = imbalance(job([], {(-1, d): {"socket power": 50.0 * (d + 1)} for d in range(3)})).rows
    assert rows["rank"].to_pylist() == [None] * 3
    assert rows["gpu_index"].to_pylist() == [0, 1, 2]
    assert rows["power_difference_w"].to_pylist() == [-50, 0, 50]
    assert rows["kernel_time_ns"].to_pylist() == [None] * 3


@pytest.mark.slow
@given(traces())
def test_any_trace(trace) -> None:
    for by in ("rank", "node", "position"):
        result = imbalance(trace, by=by)
        json.dumps(result.to_dict(), allow_nan=False)
        for column in result.rows.column_names:
            known = result.rows[column].drop_null().to_pylist()
            if column in ("late_share", "throttle_share"):
                assert all(0 <= share <= 1 for share in known)
            if "_spread_" in column:
                assert all(spread >= 0 for spread in known)


def test_a_single_look_at_each_gpu() -> None:
    builder = TraceBuilder()
    for device, watts in enumerate((300.0, 400.0, 500.0)):
        row = builder.series(-1, "socket power", "W", "smi", device=device)
        builder.samples(row, np.array([5]), np.array([watts]))
    rows = imbalance(builder.finish()).rows
    assert rows["power_w"].to_pylist() == [300, 400, 500]
    assert rows["power_difference_w"].to_pylist() == [-100, 0, 100]


def test_invalid_options_are_refused() -> None:
    trace = job(WORK, HEAT)
    for options in ({"by": "kernel"}, {"window": "x"}, {"steps": "each"}, {"ranks": "9"}):
        with pytest.raises(UsageError):
            imbalance(trace, **options)


def test_another_time_and_other_numbers_change_nothing() -> None:
    here = imbalance(job(WORK, HEAT))
    moved = job(
        [(n, r + 3, s, d) for n, r, s, d in WORK], {(r + 3, d): v for (r, d), v in HEAT.items()}
    )
    there = imbalance(moved)
    assert there.rows["rank"].to_pylist() == [3, 4, 5, 6]
    assert there.rows.drop_columns(["rank"]) == here.rows.drop_columns(["rank"])
    late = job(WORK, HEAT)
    place = late.nodes.column_names.index("ts")
    nodes = late.nodes.set_column(
        place, late.nodes.schema.field(place), [late.array("ts") + 3 * MILLI]
    )
    assert imbalance(replace(late, nodes=nodes)).rows == here.rows


def test_a_real_log() -> None:
    trace = read_once(real("telemetry/nvidia_smi_real/8gpu_iso8601_0.24s.csv"))
    rows = imbalance(trace).rows.to_pylist()
    assert len(rows) == 8
    for row in rows:
        for name, column in (("socket power", "power_w"), ("temperature GPU", "temperature_c")):
            (at,) = (
                i for i, s in enumerate(trace.series.to_pylist())
                if (s["name"], s["device"]) == (name, row["device"])
            )  # fmt: skip
            selected = trace.array("series", "samples") == at
            ts = trace.array("ts", "samples")[selected]
            value = trace.array("value", "samples")[selected]
            area = np.sum((value[1:] + value[:-1]) / 2 * np.diff(ts))
            assert row[column] == pytest.approx(area / (ts[-1] - ts[0]), rel=1e-3)
    assert set(gpu_means.QUANTITIES) <= set(rows[0])


TRACES = [
    "pytorch/dlrm_8rank_v100/kineto", "pytorch/torchrec_4rank_v100", "rocprof/rpd_schema2_mi300x/matmul_result.rpd",
    "rocprof/v3_json_mi350x",
]  # fmt: skip


@pytest.mark.parametrize("path", slow_from(TRACES, -1))
def test_real_traces(path: str) -> None:
    trace = read_once(real(path))
    result = imbalance(trace)
    json.dumps(result.to_dict(), allow_nan=False)
    kernel = trace.array("kind") == Kind.KERNEL
    times = np.bincount(trace.array("rank")[kernel], trace.array("dur")[kernel])
    actual = result.to_pandas().groupby("rank")["kernel_time_ns"].sum()
    assert actual.to_dict() == {r: t for r, t in enumerate(times.astype(int)) if r in actual.index}


def test_causes_of_the_slowest_gpu() -> None:
    """The lowest clock, and the highest temperature, or neither."""

    def rows(clock: list[float | None], heat: list[float]) -> list[dict]:
        factors = (1.0, 1.1, 0.99)
        return [
            {"rank": n, "name": f"rank {n}", "iteration": None, "slowdown_factor": factors[n],
             "gfxclk_mhz": clock[n], "temperature_c": heat[n]}
            for n in range(3)
        ]  # fmt: skip

    both = slowest.summary(rows([2000, 1800, 2000], [60, 66, 62]))
    assert (both["slowest_rank"], both["slowest_factor"]) == (1, 1.1)
    assert (both["clock_vs_others_share"], both["temperature_vs_others_c"]) == (0.9, 5)
    assert (both["clock_is_lowest"], both["is_hottest"]) == (True, True)
    assert "it also has a lower clock and more heat" in both["in_words"]
    neither = slowest.summary(rows([1700, 1800, 2000], [67, 66, 62]))
    assert (neither["clock_is_lowest"], neither["is_hottest"]) == (False, False)
    assert "no lower clock and no more heat" in neither["in_words"]
    unknown = slowest.summary(rows([2000, None, 2000], [60, 66, 62]))
    assert (unknown["clock_vs_others_share"], unknown["clock_is_lowest"]) == (None, None)
    assert slowest.summary([])["slowest_rank"] is None


def test_positions_where_hosts_are_unknown() -> None:
    """Telemetry of 16 ranks without nodes, as CharLLM-PPT's."""
    builder = TraceBuilder()
    at = np.arange(20) * 50_000_000
    for rank in range(16):
        series = builder.series(rank, "temperature GPU", "°C", "zeus", device=rank)
        builder.samples(series, at, np.full(20, 50.0 + rank % 8 + 10 * (rank // 8)))
    trace = builder.finish()
    assert ci.analyze(trace, "imbalance", by="position").rows.num_rows == 16
    result = ci.analyze(trace, "imbalance", by="position", gpus_per_node=8)
    assert result.rows["gpu_index"].to_pylist() == list(range(8))
    assert result.rows["temperature_c"].to_pylist() == [55.0 + k for k in range(8)]
    assert result.rows["temperature_difference_c"].to_pylist() == [k - 3.5 for k in range(8)]
    assert "gpus_per_node=8" in result.notes["nodes"]
    with pytest.raises(UsageError, match="gpus_per_node"):
        ci.analyze(trace, "imbalance", gpus_per_node=-1)
    result = ci.analyze(trace, "telemetry", ranks="0,9").rows
    assert result["rank"].to_pylist() == [0, 9]
    with pytest.raises(UsageError, match="no rank 16"):
        ci.analyze(trace, "telemetry", ranks="16")
