"""Bubbles of pipelines: against what the sample job was built with, and by hand."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_once import read_once
from slow import slow_from

import chopper_interop as ci
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.testing import check_analysis

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {"telemetry": False, "counter_steps": 0, "truth_kernels": False}
SAME = (
    "rank", "stage", "span_ns", "compute_ns", "p2p_ns", "bubble_ns", "warmup_ns", "steady_ns",
    "cooldown_ns", "recv_ns", "recv_wait_ns",
)  # fmt: skip


def parameters(seed: int) -> dict:
    draw = random.Random(seed)  # noqa: S311 # no secret
    stages = draw.choice([2, 3, 4])
    return {
        "pipeline": stages,
        "ranks": stages * draw.choice([1, 1, 2]),
        "layers": stages + draw.choice([0, 1, 2]),
        "microbatches": draw.choice([2, 3, 4, 6, 8]),
        "steps": draw.choice([1, 2]),
        "seed": draw.randrange(2**31),
        "sequence": draw.choice([256, 512, 1024]),
        "straggler": draw.choice([-1, 0, 1]),
        "straggler_slowdown": 1.15,
        "event_records": draw.random() < 0.5,
    }


@pytest.mark.parametrize("seed", slow_from(range(50), 1))
def test_bubbles_are_those_that_the_sample_job_was_built_with(tmp_path: Path, seed: int) -> None:
    chosen = parameters(seed)
    make_demo(tmp_path / "job", **SMALL, **chosen)
    truth = json.loads((tmp_path / "job" / "truth.json").read_text())["pipeline"]
    trace = ci.read(tmp_path / "job" / "kineto")
    result = ci.analyze(trace, "bubbles")
    rows = result.rows.to_pylist()
    columns = truth["steps"]
    built = [dict(zip(columns, of, strict=True)) for of in zip(*columns.values(), strict=True)]
    assert [{n: row[n] for n in SAME} for row in rows] == [{n: t[n] for n in SAME} for t in built]
    for row, of in zip(rows, built, strict=True):
        assert row["iteration"] == of["step"]
        assert row["start_ns"] + trace.meta.origin_ns == of["start_ns"]
        assert row["end_ns"] + trace.meta.origin_ns == of["end_ns"]
        assert (row["stages"], row["microbatches"]) == (truth["stages"], truth["microbatches"])
        assert row["ideal_bubble_share"] == truth["ideal_bubble_share"]
    assert result.summary["pipelines"] == chosen["ranks"] // chosen["pipeline"]
    assert result.summary["ideal_bubble_share"] == truth["ideal_bubble_share"]


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("line") / "job"
    return make_demo(folder, ranks=3, layers=3, steps=2, sequence=256, pipeline=3, **SMALL)


@pytest.mark.parametrize("ranks", slow_from(["0-1", "0", "1-2"], 1))
def test_a_part_of_a_pipeline_has_no_bubbles(line: Path, ranks: str) -> None:
    """Neither its windows nor its stages are known; the ranks that others name are not in the trace."""
    part = ci.read(line / "kineto", ranks=ranks)
    result = ci.analyze(part, "bubbles")
    assert (result.rows.num_rows, result.summary["pipelines"]) == (0, 0)
    assert "stages that are all in the trace" in result.notes["pipelines"]
    with pytest.raises(UsageError, match="all in the trace"):
        ci.analyze(part, "what_if", change="microbatches=8")
    stage = {r["rank"]: r["stage"] for r in ci.analyze(part, "stragglers").rows.to_pylist()}
    assert sorted(stage, key=stage.get) == sorted(stage)


def test_the_contract_of_analyses(line: Path) -> None:
    from chopper_interop.analyses.bubbles import bubbles

    check_analysis(bubbles, ci.read(line))


@pytest.mark.parametrize("by", slow_from(["iteration", "", "rank", "job"], 2))
def test_sums(line: Path, by: str) -> None:
    trace = ci.read(line)
    every = ci.analyze(trace, "bubbles").to_pandas()
    actual = ci.analyze(trace, "bubbles", by=by).to_pandas()
    keys = [by] if by in ("rank", "iteration") else []
    assert len(actual) == (every[keys[0]].nunique() if keys else 1)
    for name in ("span_ns", "bubble_ns", "recv_wait_ns"):
        expected = every.groupby(keys)[name].sum().tolist() if keys else [every[name].sum()]
        assert actual[name].tolist() == expected
    assert actual["bubble_share"].tolist() == pytest.approx(
        (actual["bubble_ns"] / actual["span_ns"]).tolist()
    )


def test_steps_and_ranks(line: Path) -> None:
    trace = ci.read(line)
    every = ci.analyze(trace, "bubbles").rows.to_pylist()
    assert ci.analyze(trace, "bubbles", steps="each").rows.to_pylist() == every
    some = ci.analyze(trace, "bubbles", steps="11", ranks="0-1").rows.to_pylist()
    assert some == [r for r in every if r["iteration"] == 11 and r["rank"] < 2]
    for wrong in ({"steps": "9"}, {"ranks": "7"}, {"by": "layer"}):
        with pytest.raises(UsageError):
            ci.analyze(trace, "bubbles", **wrong)


@pytest.mark.parametrize("name", slow_from(["et/", "job.parquet", "job.pftrace"], 1))
def test_bubbles_are_the_same_after_writing_and_reading(
    tmp_path: Path, line: Path, name: str
) -> None:
    trace = ci.read(line / "kineto")
    ci.write(trace, tmp_path / name if name != "et/" else f"{tmp_path}/et/")
    times = ["start_ns", "end_ns"]
    rows = ci.analyze(ci.read(tmp_path / name), "bubbles").rows.drop_columns(times)
    assert rows.equals(ci.analyze(trace, "bubbles").rows.drop_columns(times))


def test_a_job_without_pipeline(demo: Path) -> None:
    result = ci.analyze(read_once(demo / "kineto"), "bubbles")
    assert result.rows.num_rows == 0
    assert result.summary["bubble_ns"] == 0
    assert result.summary["bubble_share"] is None
    assert result.notes["pipelines"].startswith("none: ranks send each other nothing")


def test_pipelines_by_ranges_alone(line: Path) -> None:
    """Ranges name stages and microbatches where peers are not known; waits are unknown then."""
    trace = ci.read(line)
    expected = ci.analyze(trace, "bubbles").rows.to_pylist()
    nodes = trace.nodes.drop_columns(["peer", "instance"])
    actual = ci.analyze(
        type(trace)(**(vars_of(trace) | {"nodes": nodes})), "bubbles"
    ).rows.to_pylist()
    assert actual == [row | {"recv_wait_ns": None} for row in expected]


def vars_of(trace: ci.Trace) -> dict:
    from dataclasses import fields

    return {f.name: getattr(trace, f.name) for f in fields(trace) if f.init}


def gpu(work: list, shift: int = 0) -> ci.Trace:
    """Work as (rank, what, start, duration): compute "k", other "c", "s"/"r" and a peer's rank."""
    builder = TraceBuilder()
    ranks = sorted({w[0] for w in work})
    lanes = {r: builder.lane(r, LaneKind.STREAM, 0, "s", 0) for r in ranks}
    work = sorted(work, key=lambda w: w[0])
    builder.nodes(
        kind=np.array([Kind.KERNEL if w[1] == "k" else Kind.COMM for w in work], np.uint8),
        name=[str(i) for i in range(len(work))],
        rank=np.array([w[0] for w in work], np.int32),
        lane=np.array([lanes[w[0]] for w in work], np.int32),
        ts=np.array([w[2] + shift for w in work], np.int64),
        dur=np.array([w[3] for w in work], np.int64),
    )
    trace = builder.finish()
    kinds = {"c": "all_reduce", "s": "send", "r": "recv"}
    names = trace.names()
    work = [work[int(names[n])] for n in trace.array("name")]  # in the trace's order
    collectives = [kinds.get(w[1][0]) for w in work]
    peer = [int(w[1][1:]) if w[1][0] in "sr" else None for w in work]
    return trace.with_columns(
        collective=pa.array(collectives, pa.string()).dictionary_encode(),
        peer=pa.array(peer, pa.int32()),
    )


WORK = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["k", "k", "c", "x"]),
        st.integers(0, 60),
        st.integers(1, 15),
    ),
    max_size=12,
)
BASE = [(0, "k", 0, 5), (0, "s1", 5, 3), (1, "r0", 2, 6), (1, "k", 9, 5), (1, "s2", 14, 2),
        (2, "r1", 10, 6), (2, "k", 20, 3), (2, "s1", 23, 1), (1, "r2", 22, 2), (1, "k", 25, 4),
        (1, "s0", 29, 1), (0, "r1", 21, 9), (0, "k", 31, 2)]  # fmt: skip


@given(WORK, st.integers(-5, 1000))
def test_against_every_single_nanosecond(more: list, shift: int) -> None:
    exchange = {0: "s1", 1: "s2", 2: "r1"}
    work = BASE + [(r, exchange[r] if w == "x" else w, t, d) for r, w, t, d in more]
    trace = gpu(work, max(shift, 0))
    rows = ci.analyze(trace, "bubbles").rows.to_pylist()
    compute = {r: [(t, t + d) for q, w, t, d in work if q == r and w == "k"] for r in range(3)}
    start = min(s for of in compute.values() for s, _ in of)
    end = max(e for of in compute.values() for _, e in of)
    assert len(rows) == 3
    for row in rows:
        rank = row["rank"]

        def ns(kinds: str, rank: int = rank) -> set:
            return {
                at for q, w, t, d in work if q == rank and w[0] in kinds for at in range(t, t + d)
            } & set(range(start, end))

        bubble = set(range(start, end)) - ns("kc")
        first, last = min(s for s, _ in compute[rank]), max(e for _, e in compute[rank])
        assert row["span_ns"] == end - start
        assert row["compute_ns"] == len(ns("k"))
        assert row["p2p_ns"] == len(ns("sr"))
        assert row["bubble_ns"] == len(bubble)
        assert row["warmup_ns"] == sum(at < first for at in bubble)
        assert row["steady_ns"] == sum(first <= at < last for at in bubble)
        assert row["cooldown_ns"] == sum(at >= last for at in bubble)
        assert row["recv_ns"] == len(bubble & ns("r"))
        assert row["recv_wait_ns"] is None or not ns("r")
        assert row["iteration"] is None


def test_stages_are_in_order_whatever_the_ranks_are_called() -> None:
    names = {0: 4, 1: 0, 2: 2}
    work = [
        (names[r], w[0] + (str(names[int(w[1:])]) if w[1:] else ""), t, d) for r, w, t, d in BASE
    ]
    rows = ci.analyze(gpu(work), "bubbles").rows.to_pylist()
    plain = ci.analyze(gpu(BASE), "bubbles").rows.to_pylist()
    assert {r["rank"]: r["stage"] for r in rows} == {4: 0, 0: 1, 2: 2}
    for row in plain:
        (other,) = [r for r in rows if r["rank"] == names[row["rank"]]]
        assert other == row | {"rank": other["rank"]}


def test_rings_and_other_exchanges_are_no_pipeline() -> None:
    around = [(r, f"s{(r + 1) % 3}", 0, 2) for r in range(3)]
    around += [(r, f"r{(r - 1) % 3}", 1, 2) for r in range(3)]
    star = [(0, f"s{r}", r, 1) for r in (1, 2, 3)] + [(r, "r0", r, 1) for r in (1, 2, 3)]
    for work in (around, star):
        result = ci.analyze(gpu([*work, *((r, "k", 5, 2) for r in range(3))]), "bubbles")
        assert result.rows.num_rows == 0
        assert "along no line" in result.notes["pipelines"]


def test_a_circle_of_stages_that_hold_several_parts() -> None:
    links = [(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)]
    work = [(a, f"s{b}", 10 * i, 2) for i, (a, b) in enumerate(links)]
    work += [(b, f"r{a}", 10 * i, 2) for i, (a, b) in enumerate(links)]
    work += [(0, "k", 0, 1), (1, "k", 5, 1), (2, "k", 8, 1)]
    rows = ci.analyze(gpu(work), "bubbles").rows.to_pylist()
    assert [r["stage"] for r in rows] == [0, 1, 2]
    assert {r["ideal_bubble_share"] for r in rows} == {2 / 3}


def test_an_empty_trace() -> None:
    result = ci.analyze(gpu([(0, "k", 0, 1)]), "bubbles")
    assert result.rows.num_rows == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", slow_from([0, 7], 1))
def test_sends_and_receives_that_began_both_end_when_the_last_of_them_lets_them(
    tmp_path: Path, seed: int
) -> None:
    """The critical path goes to whom of sender and receiver came last, as the sample job says."""
    make_demo(
        tmp_path / "job", **SMALL, ranks=3, layers=4, steps=1, pipeline=3, microbatches=8,
        sequence=256, batch=2, seed=seed,
    )  # fmt: skip
    truth = json.loads((tmp_path / "job" / "truth.json").read_text())["critical_path"]["window"]
    trace = ci.read(tmp_path / "job" / "kineto")
    rows = ci.analyze(trace, "critical_path", by="piece").rows.to_pylist()
    correlation = trace.array("correlation")
    actual = [
        (r["rank"], int(correlation[r["node"]]), r["start_ns"] + trace.meta.origin_ns, r["dur_ns"])
        for r in rows
        if r["class"] in ("compute", "comm", "copy")
    ]
    names = ("kind", "rank", "correlation", "ts_ns", "dur_ns")
    true_rows = zip(*(truth[n] for n in names), strict=True)
    work = ("kernel", "collective", "memcpy", "memset")
    assert actual == [row[1:] for row in true_rows if row[0] in work]
