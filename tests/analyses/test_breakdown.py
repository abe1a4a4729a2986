"""Overheads of operations: against plain loops, the sample job's truth, and Chopper's formulas."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_once import read_once
from shared_data import real

import chopper_interop as ci
from chopper_interop.analyses.breakdown import breakdown
from chopper_interop.analyses.methods.dvfs import breakdown_terms
from chopper_interop.analyses.methods.peers import chopper as peers_chopper
from chopper_interop.annotate.counters import counter_metrics
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Device, Meta, Rank
from chopper_interop.testing import check_analysis
from chopper_interop.testing.strategies import traces

if TYPE_CHECKING:
    from pathlib import Path

TERMS = ("o_inst_ratio", "o_util_ratio", "o_ovl_ratio", "o_freq_ratio", "o_rest_ratio")
MI300X = Device("", 0, "AMD Instinct MI300X", "t", arch="gfx942", xccs=8, cus=304, simds_per_cu=4,
                max_mhz=2100)  # fmt: skip
PEAK = 2048 * 304 * 2.1e9 / 1e9  # FLOP/ns of bf16


def product(row: dict[str, Any]) -> float:
    return row["t_thr_ns"] * math.prod(1.0 if row[n] is None else row[n] for n in TERMS)


@dataclass(frozen=True)
class Dispatch:
    """A kernel: durations such that cycles of the profiler do not matter."""

    name: str
    dur: int
    flops: int | None
    mops: int | None
    busy: int
    mhz: int
    clock: float | None


DISPATCHES = st.lists(
    st.builds(
        Dispatch,
        name=st.sampled_from("ab"),
        dur=st.integers(1_000_000, 3_000_000),
        flops=st.sampled_from([None, 10**12, 2 * 10**12]),
        mops=st.one_of(st.none(), st.integers(10**9, 4 * 10**9)),
        busy=st.integers(10**9, 2 * 10**9),
        mhz=st.integers(1000, 2100),
        clock=st.one_of(st.none(), st.floats(900, 2100)),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


def job(work: list[Dispatch], shift: int = 0, rank: int = 0) -> ci.Trace:
    builder = TraceBuilder(meta=Meta(devices=(MI300X,), ranks=(Rank(rank),)))
    lane = builder.lane(rank, LaneKind.STREAM, 0, "s", 0)
    now = shift
    for one in work:
        node = builder.nodes(
            kind=int(Kind.KERNEL), name=one.name, rank=rank, lane=lane, ts=np.array([now]),
            dur=one.dur,
        )  # fmt: skip
        now += one.dur + 10
        if one.mops is not None:
            cycles = 8 * one.mhz * one.dur / 1000
            for name, value in (
                ("SQ_INSTS_VALU_MFMA_MOPS_BF16", one.mops),
                ("SQ_VALU_MFMA_BUSY_CYCLES", one.busy),
                ("GRBM_GUI_ACTIVE", cycles),
            ):
                builder.counters(np.array([node]), name, np.array([value], float))
    trace = builder.finish()
    return trace.with_columns(
        flops=[one.flops for one in work],
        gfxclk_mhz=[one.clock for one in work],
        operation=[f"op_{one.name}" for one in work],
    )


def util(one: Dispatch) -> float | None:
    """Cycles over busy cycles; None where more were counted than the matrix cores can be busy."""
    ratio = one.dur * one.mhz / 1e3 * 1216 / one.busy
    return ratio if ratio * 1.01 >= 1 else None


def expected(work: list[Dispatch], name: str) -> dict[str, Any]:
    """The figures of an operation by plain loops."""
    dispatches = [one for one in work if one.name == name]
    known = []
    for one in dispatches:
        like = [o for o in dispatches if o.flops == one.flops and o.mops is not None]
        counters = [one] if one.mops is not None else like
        utils = [u for o in counters if (u := util(o))] or [u for o in like if (u := util(o))]
        known.append(
            {
                "dur": one.dur,
                "thr": one.flops / PEAK if one.flops and counters else None,
                "inst": mean(512 * o.mops for o in counters) / PEAK if counters else None,
                "util": mean(utils) if utils else None,
                "freq": 2100 / one.clock if one.clock and counters else None,
            }
        )
    known = [one for one in known if one["thr"] is not None]
    for term in ("inst", "util", "freq"):
        have = [one for one in known if one[term] is not None]
        known = have or known
    figures = {
        "kernels": len(dispatches),
        "known_kernels": len(known),
        "known_ns": sum(o["dur"] for o in known),
    }
    if not known:
        return figures | dict.fromkeys(("t_thr_ns", *TERMS))
    chain = [one["thr"] for one in known]
    figures["t_thr_ns"] = sum(chain)
    for term, column in (
        ("inst", TERMS[0]),
        ("util", TERMS[1]),
        (None, TERMS[2]),
        ("freq", TERMS[3]),
    ):
        before = sum(chain)
        if term is None:
            figures[column] = 1.0
        elif known[0][term] is None:
            figures[column] = None
        elif term == "inst":
            chain = [one["inst"] for one in known]
            figures[column] = sum(chain) / before
        else:
            chain = [c * one[term] for c, one in zip(chain, known, strict=True)]
            figures[column] = sum(chain) / before
    return figures | {"o_rest_ratio": figures["known_ns"] / sum(chain)}


@given(DISPATCHES)
def test_against_plain_loops(work: list[Dispatch]) -> None:
    rows = {r["operation"]: r for r in breakdown(job(work), by="operation").rows.to_pylist()}
    assert set(rows) == {f"op_{one.name}" for one in work}
    for operation, row in rows.items():
        for name, value in expected(work, operation[-1]).items():
            assert row[name] == (value if value is None else pytest.approx(value)), name
        if row["known_kernels"]:
            assert product(row) == pytest.approx(row["known_ns"], rel=1e-12)


def test_matrix_cores_cannot_be_busy_for_more_cycles_than_there_are() -> None:
    one = Dispatch(name="a", dur=10**6, flops=10**12, mops=10**9, busy=0, mhz=1000, clock=None)
    for busy, util in ((1_216_000_000, 1.0), (1_228_159_000, 1 / 1.01), (1_228_161_000, None)):
        (row,) = breakdown(job([replace(one, busy=busy)]), by="operation").rows.to_pylist()
        assert row["o_util_ratio"] == (util and pytest.approx(util, rel=1e-5))


@pytest.mark.slow
@given(DISPATCHES, st.integers(0, 10**17))
def test_when_it_ran_and_as_which_rank_do_not_matter(work: list[Dispatch], shift: int) -> None:
    plain = breakdown(job(work), by="operation")
    moved = breakdown(job(work, shift, rank=5), by="operation")
    assert moved.rows.equals(plain.rows)
    assert moved.summary == plain.summary


def test_one_kernel_by_hand() -> None:
    """2e12 FLOP of shapes, 2.1e12 counted, cores busy for 80 %, at 1500 of 2100 MHz."""
    mops, dur, mhz = 4_101_562_500, 3_000_000, 1500
    lanes = dur * mhz / 1000 * 1216
    one = Dispatch("a", dur, 2 * 10**12, mops, round(0.8 * lanes), mhz, 1500.0)
    (row,) = breakdown(job([one]), by="operation").rows.to_pylist()
    assert row["t_thr_ns"] == pytest.approx(2e12 / PEAK)
    assert row["o_inst_ratio"] == pytest.approx(512 * mops / 2e12) == pytest.approx(1.05)
    assert row["o_util_ratio"] == pytest.approx(1.25)
    assert row["o_freq_ratio"] == pytest.approx(1.4)
    assert row["o_ovl_ratio"] == 1
    assert row["closure_ratio"] == pytest.approx(mops / (0.8 * lanes))
    assert product(row) == pytest.approx(dur)


def test_a_users_gpu_has_another_peak(tmp_path: Path) -> None:
    path = tmp_path / "gpus.toml"
    path.write_text('[[gpu]]\nname = "MI300X"\nflop_per_cycle = {bf16 = 1024}\n')
    trace = job([Dispatch("a", 10**6, 10**12, 10**9, 10**9, 2000, None)])
    (plain,), (own,) = (breakdown(trace, gpus=g).rows.to_pylist() for g in ("", str(path)))
    assert own["t_thr_ns"] == pytest.approx(2 * plain["t_thr_ns"])
    assert own["o_freq_ratio"] is own["phase"] is None


@pytest.fixture(
    scope="module", params=[(2, 2, 0, 0.9), pytest.param((1, 1, 7, 1.0), marks=pytest.mark.slow)]
)
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    ranks, layers, seed, scale = request.param
    return make_demo(
        tmp_path_factory.mktemp("breakdown") / "job", ranks=ranks, layers=layers, steps=3,
        seed=seed, peak_scale=scale, counter_steps=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trace(demo: Path) -> ci.Trace:
    return read_once(demo)


@pytest.fixture(scope="module")
def truth(demo: Path, trace: ci.Trace) -> pd.DataFrame:
    """Truth of each kernel that computes, by its row in the trace."""
    table = pd.DataFrame(json.loads((demo / "truth.json").read_text())["kernels"])
    rows = np.flatnonzero(trace.array("kind") == Kind.KERNEL)
    nodes = pd.DataFrame(
        {
            "node": rows,
            "rank": trace.array("rank")[rows],
            "correlation": trace.array("correlation")[rows],
        }
    )
    return nodes.merge(table, on=["rank", "correlation"]).set_index("node")


def test_the_sample_job(trace: ci.Trace, truth: pd.DataFrame) -> None:
    """The demo's counters are exact: MOPS are the FLOPs of shapes, and busy cycles."""
    result = breakdown(trace)
    rows = {(r["phase"], r["operation"]): r for r in result.rows.to_pylist()}
    for row in rows.values():
        if row["known_kernels"]:
            assert product(row) == pytest.approx(row["known_ns"], rel=1e-12)
        assert (row["t_thr_ns"] is None) == (row["known_kernels"] == 0)
    for phase in ("forward", "backward"):
        row = rows[phase, "aten::linear"]
        assert row["o_inst_ratio"] == pytest.approx(1, abs=1e-4)
        assert row["closure_ratio"] == pytest.approx(1, abs=1e-9)
        assert row["o_ovl_ratio"] == pytest.approx(1, abs=0.02)
        assert row["o_rest_ratio"] == pytest.approx(1, abs=0.03)  # the sensor is not given
    terms = breakdown_terms.time_terms(trace, truth.index.to_numpy())
    has_util = ~np.isnan(terms.util)
    ideal = (terms.inst_ns * terms.util)[has_util] / truth["ideal_dur_ns"].to_numpy()[has_util]
    assert np.median(ideal) == pytest.approx(1, abs=0.02)


def test_the_clock_of_the_sample_job(demo: Path, trace: ci.Trace, truth: pd.DataFrame) -> None:
    peak = json.loads((demo / "truth.json").read_text())["constants"]["peak_mhz"]
    terms = breakdown_terms.time_terms(trace, truth.index.to_numpy())
    known = ~np.isnan(terms.freq)
    assert known.sum() > 50
    maximum = peak / truth["mean_clock_mhz"].to_numpy()[known]
    assert (terms.freq[known] <= 1.05 * maximum).all()
    assert (terms.freq[known] >= 0.95).all()  # an instance's own clock may have been another
    ratio = terms.freq[known] * (truth["ideal_dur_ns"] / truth["dur_ns"]).to_numpy()[known]
    assert np.median(ratio) == pytest.approx(1, abs=0.02)


def test_launch_columns_are_those_of_the_launch_analysis(
    trace: ci.Trace, truth: pd.DataFrame
) -> None:
    """The host's share is that of the launch analysis."""
    launch_rows = ci.analyze(trace, "launch", by="phase,operation").rows.to_pylist()
    by_key = {(r["phase"], r["operation"]): r for r in launch_rows}
    for row in breakdown(trace).rows.to_pylist():
        for name in ("prep_ns", "call_ns", "launch_ns"):
            assert row[name] == by_key[row["phase"], row["operation"]][name]
    assert breakdown(trace).summary["kernels"] == len(truth)


def test_grains_add_up(trace: ci.Trace) -> None:
    summary = breakdown(trace).summary
    for by in ("rank", "kernel", "layer,phase", "job"):
        rows = breakdown(trace, by=by).rows.to_pylist()
        for name in ("kernels", "total_ns", "prep_ns"):
            assert sum(r[name] or 0 for r in rows) == summary[name], by
    one = breakdown(trace, steps="each", ranks="0").summary
    assert 0 < one["kernels"] <= summary["kernels"]


def test_the_contract_of_analyses(trace: ci.Trace) -> None:
    check_analysis(breakdown, trace)


def plain_chopper(frame: pd.DataFrame, flops: float) -> dict[str, float]:
    """Chopper's formulas written down again for one operation: one row an instance."""
    duration = np.median(frame["duration"]) * 1e-6  # ms
    busy = 100 * frame["busy"] / (304 * frame["gui"] / 8 * 4)
    cycle = np.median(frame["gui"] / 8 / 2100) * 1e-3
    ordered = sorted(zip(frame["ratio"], frame["start"], frame["elapsed"], strict=True))
    cdf = [100 * (i + 1) / len(ordered) for i in range(len(ordered))]
    middle = ordered[min(range(len(cdf)), key=lambda i: abs(cdf[i] - 50))]
    overlap = max(middle[2] / ordered[0][2], 1) if middle[0] != 0 else 1
    return {
        "t_thr_ns": flops / (2 * 16 * 16 * 16 * 4 * 304 / 16 * 2100e6) * 1e9,
        "o_inst_ratio": np.median(512 * frame["mops"]) / flops,
        "o_util_ratio": 1 / (np.median(busy) / 100),
        "o_ovl_ratio": overlap,
        "o_freq_ratio": duration / cycle / overlap,
        "duration_ns": duration * 1e6,
        "cycle_ns": cycle * 1e6,
    }


@given(st.lists(
    st.tuples(
        st.integers(1, 10**7), st.integers(1, 10**9), st.integers(1, 10**9),
        st.integers(10**3, 10**9), st.sampled_from([0.0, 0.0, 12.5, 100.0]), st.integers(0, 50),
    ), min_size=1, max_size=9,
))  # fmt: skip
def test_the_same_inputs_give_choppers_numbers(rows: list[tuple]) -> None:
    names = ["duration", "mops", "busy", "gui", "ratio", "start"]
    frame = pd.DataFrame(rows, columns=names).drop_duplicates(["ratio", "start"], ignore_index=True)
    frame = frame.assign(elapsed=lambda f: f["duration"] + 3.0)
    renamed = frame.rename(
        columns={"duration": "duration_ns", "gui": "cycles", "ratio": "overlap",
                 "start": "start_ns", "elapsed": "elapsed_ns"}
    ).assign(operation=4, flops=1e9)  # fmt: skip
    terms = peers_chopper.terms(renamed).loc[4]
    for name, value in plain_chopper(frame, 1e9).items():
        assert terms[name] == pytest.approx(value), name
    assert terms["closure_ratio"] == pytest.approx(
        terms["t_thr_ns"] * terms["o_inst_ratio"] * terms["o_util_ratio"] / terms["cycle_ns"]
    )
    if len(frame) == 1:  # t_thr * o_inst * o_util is the cycles' time by MOPS over busy cycles
        assert terms["closure_ratio"] == pytest.approx(frame["mops"][0] / frame["busy"][0])


def test_choppers_table_of_flops() -> None:
    b, s, d, hidden, kv, heads = 2, 4096, 4096, 14336, 8, 32
    table = peers_chopper.flops(b, s)
    assert len(table) == 16
    assert table["f_attn_fa"] == 2 * s**2 * 128 * heads * b
    assert table["b_attn_fa"] == 5 * s**2 * 128 * heads * b
    assert table["f_mlp_up"] == 2 * s * d * hidden * b
    assert table["b_k_ip"] == 4 * s * d * kv * 128 * b
    assert table["b_q_ip"] == table["b_attn_op"] == 4 * s * d * d * b


def test_chopper_on_the_sample_job(trace: ci.Trace) -> None:
    """By plain loops over its rows. Ours has a measured clock, own cycles, sums, and all GPUs instead."""
    nodes = trace.to_pandas()
    nodes["gui"] = counter_metrics.counter_values(trace, "GRBM_GUI_ACTIVE")
    nodes["mops"] = counter_metrics.counter_values(trace, "SQ_INSTS_VALU_MFMA_MOPS_BF16")
    nodes["busy"] = counter_metrics.counter_values(trace, "SQ_VALU_MFMA_BUSY_CYCLES")
    of_rank = nodes[nodes["rank"] == 0]
    steps = set(of_rank[of_rank["gui"].notna()]["iteration"])
    comm = of_rank[trace.array("kind")[of_rank.index] == Kind.COMM]
    kernels = of_rank[
        (trace.array("kind")[of_rank.index] == Kind.KERNEL) & of_rank["iteration"].isin(steps)
    ]
    result = breakdown(trace, compat="chopper", ranks="0")
    rows = {(r["phase"], r["operation"]): r for r in result.rows.to_pylist()}
    seen = 0
    for key, part in kernels.groupby(["phase", "operation"], observed=True):
        instances = []
        for _, one in part.groupby(["iteration", "layer"], dropna=False):
            start, last = one["ts"].iloc[0], one.iloc[-1]
            end = last["ts"] + last["dur"]
            over = (np.minimum(comm["ts"] + comm["dur"], end) - np.maximum(comm["ts"], start)).clip(
                0
            )
            instances.append(
                {"duration": one["dur"].sum(), "mops": one["mops"].sum(), "busy": one["busy"].sum(),
                 "gui": one["gui"].sum(), "start": start, "elapsed": end - start,
                 "flops": one["flops"].fillna(0).sum(),
                 "ratio": 100 * min(over.sum(), end - start) / (end - start)}
            )  # fmt: skip
        frame = pd.DataFrame(instances)
        frame = frame[frame["flops"] > 0]
        if not len(frame) or not frame["mops"].sum():
            continue
        figures = plain_chopper(frame, np.median(frame["flops"]))
        for name, value in figures.items():
            assert rows[key][name] == pytest.approx(value), (key, name)
        seen += 1
    assert seen >= 3


def test_choppers_own_flops(trace: ci.Trace) -> None:
    with pytest.raises(UsageError):
        breakdown(trace, compat="chopper", batch=2)
    with pytest.raises(UsageError):
        breakdown(trace, compat="chopper", by="rank")
    with pytest.raises(UsageError):
        breakdown(trace, compat="hta")
    work = [Dispatch("a", 10**6, 10**12, 10**9, 10**9, 2000, None)]
    named = job(work).with_columns(operation=["attn_op"], phase=["backward"], iteration=[3])
    (row,) = breakdown(named, compat="chopper", batch=2, sequence=4096).rows.to_pylist()
    assert row["t_thr_ns"] == pytest.approx(4 * 2 * 4096**3 / PEAK)
    (row,) = breakdown(named, compat="chopper").rows.to_pylist()
    assert row["t_thr_ns"] == pytest.approx(1e12 / PEAK)


def test_without_anything_there_are_no_rows_and_a_reason() -> None:
    empty = TraceBuilder().finish()
    for compat in ("", "chopper"):
        result = breakdown(empty, compat=compat)
        assert result.rows.num_rows == 0
        assert "no rows" in result.notes


@pytest.mark.slow
@given(traces())
def test_any_trace(trace: ci.Trace) -> None:
    for options in ({}, {"by": "rank,kernel"}, {"compat": "chopper"}):
        result = breakdown(trace, **options)
        json.dumps(result.to_dict(), allow_nan=False)
        if "compat" not in options:
            rows = result.rows.to_pylist()
            assert sum(row["kernels"] for row in rows) == result.summary["kernels"]
            assert sum(row["total_ns"] for row in rows) == result.summary.get("total_ns", 0)
            assert all(row["known_kernels"] <= row["kernels"] for row in rows)
            assert all((row["known_ns"] or 0) <= row["total_ns"] for row in rows)


REAL = {
    "h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (731, 5.431e6),
    "mi300x/resnet_act_checkpoint.json.gz": (243, 3.221e5),
}


@pytest.mark.parametrize("name", REAL)
def test_real_traces_have_no_counters_and_so_a_rest(name: str) -> None:
    trace = read_once(real(f"pytorch/{name}"))
    summary = breakdown(trace).summary
    kernels, peak_ns = REAL[name]
    assert summary["known_kernels"] == kernels
    assert summary["t_thr_ns"] == pytest.approx(peak_ns, rel=1e-3)
    assert summary["o_inst_ratio"] is summary["o_util_ratio"] is summary["o_freq_ratio"] is None
    assert product(summary) == pytest.approx(summary["known_ns"])


@pytest.mark.parametrize(
    ("clocks", "over", "rest"),
    [(None, 1.5, None), ((2100.0, 2100.0), 1.5, 1.0), ((2100.0, 1400.0), 1.0, 1.0),
     ((2100.0, 1750.0), 1.25, 1.0)],
)  # fmt: skip
def test_overlap_with_communication_is_distinguished_from_the_clock(
    clocks: tuple[float, float] | None, over: float, rest: float | None
) -> None:
    """Kernels of 2 ms alone and of 3 ms overlapped by communication."""
    builder = TraceBuilder(meta=Meta(devices=(MI300X,), ranks=(Rank(0),)))
    lanes = [builder.lane(0, LaneKind.STREAM, n, f"s{n}", 0) for n in (0, 1)]
    alone, overlapped = 2_000_000, 3_000_000
    ts = {"a": [0, 3 * alone], "b": [9 * alone, 12 * alone]}
    nodes = []
    for (_, starts), dur in zip(ts.items(), (alone, overlapped), strict=True):
        nodes += [
            builder.nodes(kind=int(Kind.KERNEL), name="k", rank=0, lane=lanes[0],
                          ts=np.array([start]), dur=dur)
            for start in starts
        ]  # fmt: skip
    builder.nodes(
        kind=int(Kind.COMM), name="ncclDevKernel", rank=0, lane=lanes[1],
        ts=np.array([9 * alone]), dur=9 * alone,
    )  # fmt: skip
    flops = 8 * 10**11
    builder.counters(np.array(nodes), "SQ_INSTS_VALU_MFMA_MOPS_BF16", np.full(4, flops / 512))
    builder.counters(np.array(nodes), "MfmaUtil", np.full(4, 100 * flops / PEAK / alone))
    trace = builder.finish()
    is_kernel = trace.array("kind") == Kind.KERNEL
    trace = trace.with_columns(flops=[flops if k else None for k in is_kernel])
    if clocks:
        fast, slow = clocks
        mhz = [fast if d == alone else slow for d in trace.array("dur")]
        trace = trace.with_columns(gfxclk_mhz=mhz)
    (row,) = breakdown(trace, by="job").rows.to_pylist()
    total = 2 * alone + 2 * alone * over
    assert row["o_ovl_ratio"] == pytest.approx(total / (4 * alone))
    assert product(row) == pytest.approx(row["known_ns"]) == pytest.approx(2 * (alone + overlapped))
    if rest is not None:
        assert row["o_rest_ratio"] == pytest.approx(rest)
