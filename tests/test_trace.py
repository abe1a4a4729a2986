"""Use of a `Trace`: take a rank of it, add to it, hand it to other libraries."""

from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from read_once import read_once

import chopper_interop as ci
from chopper_interop.build import TraceBuilder, concat
from chopper_interop.errors import SchemaError, UsageError
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.testing import assert_trace_equal, check_trace
from chopper_interop.testing.samples import tiny_trace
from chopper_interop.testing.strategies import traces


@pytest.fixture(scope="module")
def job(demo: Path) -> ci.Trace:
    return read_once(demo)


@pytest.mark.parametrize("searched", [0, 1 << 40])
def test_ranks_are_the_same_whether_searched_for_or_found_by_a_pass(
    job: ci.Trace, monkeypatch: pytest.MonkeyPatch, searched: int
) -> None:
    monkeypatch.setattr("chopper_interop.tables._SEARCHED", searched)
    rows = replace(job).rank_rows  # a copy, for which nothing is kept yet
    number = job.array("rank")
    assert len(rows) > 1
    assert list(rows) == np.unique(number).tolist()
    for rank, of_rank in rows.items():
        assert np.flatnonzero(number == rank).tolist() == list(range(of_rank.start, of_rank.stop))


def test_a_rank_is_what_it_was_within_the_job(job: ci.Trace) -> None:
    frame, counters = job.to_pandas(), job.to_pandas("counters")
    for number in job.ranks:
        rank = job.rank(number)
        check_trace(rank)
        selected = frame[frame["rank"] == number]
        seen = rank.to_pandas()
        for column in ("name", "ts", "dur", "kind", "correlation", "gfxclk_mhz"):
            assert seen[column].equals(selected[column].reset_index(drop=True)), column
        held = counters["node"].isin(selected.index)
        assert rank.counters.num_rows == held.sum() > 0
        assert rank.to_pandas("counters")["value"].sum() == counters["value"][held].sum()
        series = job.to_pandas("series")
        owned = set(np.flatnonzero(series["rank"] == number))
        samples = job.to_pandas("samples")
        assert rank.samples.num_rows == samples["series"].isin(owned).sum() > 0
        assert rank.args(0) == job.args(int(selected.index[0]))
    with pytest.raises(UsageError, match="no rank 7"):
        job.rank(7)


def test_columns_are_chosen_and_null_where_nothing_is_known(job: ci.Trace) -> None:
    bare = replace(job, nodes=job.nodes.drop_columns(["power_w", "phase"]))
    frame = bare.to_pandas(columns=["dur", "phase", "kind", "power_w"])
    assert list(frame) == ["dur", "phase", "kind", "power_w"]
    assert frame[["dur", "kind"]].equals(job.to_pandas()[["dur", "kind"]])
    assert frame[["phase", "power_w"]].isna().all(axis=None)
    assert list(job.to_pandas("series", ["unit"])) == ["unit"]
    with pytest.raises(UsageError, match=r"no column 'powr_w' \(near it are power_w"):
        bare.to_pandas(columns=["powr_w"])


@settings(suppress_health_check=list(HealthCheck))
@given(traces())
def test_ranks_put_together_again_are_the_job(trace: ci.Trace) -> None:
    ranks = [trace.rank(r) for r in trace.ranks]
    for rank in ranks:
        check_trace(rank)
    if ranks:
        again = concat(ranks, trace.meta)
        check_trace(again)
        for column in ("ts", "dur", "kind", "rank"):
            assert (again.array(column) == trace.array(column)).all()
        same = trace.array("rank")
        src, dst = trace.array("src", "edges"), trace.array("dst", "edges")
        assert again.edges.num_rows == np.count_nonzero(same[src] == same[dst])


def test_networkx_has_every_node_and_dependency(job: ci.Trace) -> None:
    graph = job.to_networkx(rank=1)
    rank = job.rank(1)
    assert graph.number_of_nodes() == rank.nodes.num_rows
    pairs = set(zip(*(rank.array(c, "edges").tolist() for c in ("src", "dst")), strict=True))
    stored = {
        pair for pair, e in graph.edges.items() if e["kind"] not in ("call", "order", "stream")
    }
    assert stored <= set(graph.edges)
    launch = rank.array("kind", "edges").tolist().index(EdgeKind.LAUNCH)
    src, dst = (int(rank.array(c, "edges")[launch]) for c in ("src", "dst"))
    assert (src, dst) in pairs
    assert graph.edges[src, dst]["kind"] == "launch"
    assert graph.edges[src, dst]["gap_ns"] == rank.array("ts")[dst] - rank.array("ts")[src]
    assert nx.is_directed_acyclic_graph(graph)
    assert graph.nodes[dst]["kind"] in ("kernel", "comm", "memcpy", "memset")
    parent = rank.array("parent")
    child = int(np.flatnonzero(parent >= 0)[0])
    assert "call" in graph.edges[int(parent[child]), child]["kind"].split("+")
    with pytest.raises(UsageError, match="max_nodes=10"):
        job.to_networkx(max_nodes=10)


def test_columns_of_ones_own(job: ci.Trace) -> None:
    n = job.nodes.num_rows
    more = job.with_columns(own_column=np.arange(n), phase=["forward"] * n)
    assert more.values("own_column").tolist() == list(range(n))
    assert set(more.values("phase")) == {"forward"}
    assert more.nodes["phase"].type == job.nodes["phase"].type  # as the hub declares it
    assert "own_column" not in job.nodes.column_names
    assert job.values("own_column").tolist() == [None] * n


def test_edges_of_ones_own(job: ci.Trace) -> None:
    more = job.with_edges(np.array([0, 1]), np.array([2, 3]), EdgeKind.DATA)
    check_trace(more)
    assert more.edges.num_rows == job.edges.num_rows + 2
    assert more.to_pandas("edges").tail(2)["kind"].tolist() == ["data", "data"]


def test_tables_that_are_not_as_declared_are_refused(job: ci.Trace) -> None:
    parts = {name: getattr(job, name) for name in (*ci_tables(), "meta", "text")}
    with pytest.raises(SchemaError, match="edges has no column 'dst'"):
        ci.Trace(**parts | {"edges": job.edges.drop_columns(["dst"])})
    wide = job.edges.set_column(0, "src", pa.array(np.zeros(job.edges.num_rows, np.int64)))
    with pytest.raises(SchemaError, match=r"edges\.src is int64, not int32"):
        ci.Trace(**parts | {"edges": wide})
    assert_trace_equal(ci.Trace(**parts), job)


def ci_tables() -> tuple[str, ...]:
    from chopper_interop.schemas import hub

    return tuple(hub.TABLES)


def test_the_text_of_a_trace_counts_edges_as_the_graph_and_says_which(job: ci.Trace) -> None:
    counts = job.graph().counts()
    apart = sum(counts[kind] for kind in ("call", "order", "stream"))
    stored = sum(counts.values()) - apart
    assert f"edges {stored:,} (without call, order, stream)" in repr(job)


def test_steps_are_those_of_their_marks(job: ci.Trace) -> None:
    steps = job.steps()
    assert list(steps) == ["rank", "iteration", "start_ns", "end_ns"]
    frame = job.to_pandas()
    marks = frame[frame["name"].str.startswith("ProfilerStep#") & (frame["kind"] == "annotation")]
    marks = marks[marks["lane"].isin(np.flatnonzero(job.array("kind", "lanes") == 1))]
    assert steps["start_ns"].tolist() == marks["ts"].tolist()
    assert (steps["end_ns"] - steps["start_ns"]).tolist() == marks["dur"].tolist()
    assert len(job.rank(0).with_columns(iteration=[None] * job.rank(0).nodes.num_rows).steps()) == 0


def test_a_window_has_what_starts_in_it(job: ci.Trace) -> None:
    counted = job.array("node", "counters")[0]
    steps = job.steps().set_index("iteration")
    first = steps.loc[job.integers("iteration")[counted]].iloc[0]
    part = job.between(first["start_ns"], first["end_ns"])
    check_trace(part)
    frame = job.to_pandas()
    inside = frame[(frame["ts"] >= first["start_ns"]) & (frame["ts"] < first["end_ns"])]
    columns = ["name", "rank", "ts", "dur", "correlation", "layer"]
    assert part.to_pandas(columns=columns).equals(inside[columns].reset_index(drop=True))
    edges, kept = job.to_pandas("edges"), set(inside.index)
    assert part.edges.num_rows == sum(
        s in kept and d in kept for s, d in edges[["src", "dst"]].values
    )
    counted = job.to_pandas("counters")["node"].isin(kept).sum()
    assert part.counters.num_rows == counted > 0
    left = next(i for i in part.meta.issues if i.code == "outside-window")
    assert left.count == len(frame) - len(inside)
    assert part.args(0) == job.args(int(inside.index[0]))


def test_a_window_may_cut_what_reaches_beyond_it(job: ci.Trace) -> None:
    start, end = 1_000_000, 2_000_000
    part = job.between(start, end, cut=True)
    check_trace(part)
    ts, stop = part.array("ts"), part.array("ts") + part.array("dur")
    assert ts.min() == start
    assert stop.max() == end
    busy = ci.analyze(part, "temporal").summary["busy_ns"]
    frame = job.to_pandas()
    frame = frame[frame["kind"].isin(["kernel", "comm", "memcpy", "memset"])]
    covered = 0
    for _, of_rank in frame.groupby("rank"):
        mask = np.zeros(end - start, bool)
        for a, d in of_rank[["ts", "dur"]].values:
            mask[max(a - start, 0) : max(a + d - start, 0)] = True
        covered += mask.sum()
    assert busy == covered


@pytest.mark.parametrize(
    "window", [(5, 5), (9, 3), (0.5, 7), (0, float("nan")), (0, float("inf")), ("0", 9)]
)
def test_what_is_no_window_is_refused(window: tuple[float, float]) -> None:
    with pytest.raises(UsageError):
        tiny_trace().between(*window)


def test_a_window_beyond_all_times_is_the_trace() -> None:
    whole = tiny_trace().between(-(2**70), 2**70, cut=True)
    assert whole.array("dur").tolist() == tiny_trace().array("dur").tolist()


def test_own_times_of_a_thread_add_up_to_its_busy_time(job: ci.Trace) -> None:
    frame = job.to_pandas()
    assert list(frame)[5:7] == ["dur", "self_ns"]
    threads = frame["lane"].isin(np.flatnonzero(job.array("kind", "lanes") == 1))
    host = frame[threads]
    top = host[host["parent"] < 0]
    assert host["self_ns"].sum() == top["dur"].sum() < host["dur"].sum()
    assert (frame["self_ns"] >= 0).all()
    gpu = frame[frame["kind"] == "kernel"]
    assert gpu["self_ns"].equals(gpu["dur"].rename("self_ns"))
    assert "self_ns" not in job.to_networkx(rank=0).nodes[0]
    assert len(job.graph().subgraph("self_ns > 0 and rank == 0"))


def test_calls_that_overlap_are_taken_off_once() -> None:
    from chopper_interop.arrays import nest

    columns = ([0, 10, 20, 25], [100, 30, 40, 5], [-1, 0, 0, 2])
    own = nest.self_times(
        *(np.array(c, t) for c, t in zip(columns, ("i8", "i8", "i4"), strict=True))
    )
    assert own.tolist() == [50, 30, 35, 5]


@pytest.mark.parametrize("value", ["rank0.json", None, Path("folder")])
def test_what_is_no_trace_is_refused(value: object, tmp_path: Path) -> None:
    """A path was an internal error, to be reported."""
    for call in (
        lambda: ci.analyze(value, "kernels"),
        lambda: ci.write(value, tmp_path / "x.pftrace"),
    ):
        with pytest.raises(UsageError, match="a Trace is needed"):
            call()


def test_what_is_no_path_or_name_is_refused() -> None:
    """A list, as a glob gives it, was a TypeError of the library's inside."""
    with pytest.raises(UsageError, match=r"this is a list \(.*read\(\*paths\)"):
        ci.read(["rank0.json", "rank1.json"])
    with pytest.raises(UsageError, match="this is a bytes"):
        ci.read(b"rank0.json")
    with pytest.raises(UsageError, match="name of one analysis is needed, not a list"):
        ci.analyze(tiny_trace(), ["temporal", "idle"])


def sampled(ts: object) -> list[int]:
    """Times of samples that are given so, behind one of a series of its own."""
    builder = TraceBuilder()
    first, second = (builder.series(0, name, "W", "tool") for name in ("a", "b"))
    builder.samples(first, np.array([0]), np.array([5]))
    builder.samples(second, ts, np.zeros(len(ts)))  # type: ignore[arg-type]
    trace = builder.finish()
    return trace.samples["ts"].to_pylist()[1:]


@pytest.mark.parametrize(
    "ts", [[], [3, 2**60 + 1], np.array([3, 2**60 + 1], np.uint64), np.array([3.0])]
)
def test_times_of_samples_are_whole_numbers_of_any_type(ts: object) -> None:
    assert sampled(ts) == [int(t) for t in ts]  # type: ignore[attr-defined]


@pytest.mark.parametrize("ts", [np.array([1.5]), np.array([2**63], np.uint64)])
def test_times_of_samples_that_are_no_whole_nanoseconds_of_64_bits_are_refused(ts: object) -> None:
    with pytest.raises(pa.ArrowInvalid):
        sampled(ts)
