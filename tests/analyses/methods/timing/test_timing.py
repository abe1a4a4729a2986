"""The timing model: longest paths, slack and drag against networkx and brute force."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_once import read_once
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.methods.activity.windows import Window
from chopper_interop.analyses.methods.timing import paths
from chopper_interop.analyses.methods.timing.reduced import ReducedTiming
from chopper_interop.analyses.methods.timing.steps import isolated_steps
from chopper_interop.build import TraceBuilder
from chopper_interop.plots import style
from chopper_interop.schemas import results
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.timing import latencies, loops
from chopper_interop.timing.model import timing_of

if TYPE_CHECKING:
    from pathlib import Path


def test_every_class_of_a_path_is_in_one_group_and_has_a_colour_and_columns():
    grouped = [name for names in paths.CLASS_GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(paths.CLASSES)
    assert set(paths.CLASSES) <= style.COLOURS.keys()
    assert {f"path_{name}_ns" for name in paths.CLASSES} <= results.columns("what_if").keys()


@st.composite
def dags(draw):
    """Vertices in order, edges (from, to) with lags, delays; arrays as the model has them."""
    n = draw(st.integers(2, 12))
    pairs = st.tuples(st.integers(0, n - 2), st.integers(1, n - 1), st.integers(0, 9))
    edges = draw(st.lists(pairs.filter(lambda e: e[0] < e[1]), min_size=1, max_size=25))
    edges = sorted({(a, b): lag for a, b, lag in edges}.items())
    src = np.array([a for (a, _), _ in edges], np.int32)
    after = np.array([b for (_, b), _ in edges], np.int32)
    lag = np.array([lag for _, lag in edges], np.int64)
    entered = np.isin(np.arange(n), after)
    delay = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.int64)
    delay[~entered] = 0
    release = np.array(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)), np.int64)
    first = np.searchsorted(src, np.arange(n + 1)).astype(np.int32)
    return src, after, lag, delay, release, first, np.arange(n, dtype=np.int32)


def longest(src, after, lag, delay, release):
    """Time of each vertex by networkx: longest path from a root that stands for all releases."""
    n = len(delay)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    for a, b, weight in zip(src.tolist(), after.tolist(), lag.tolist(), strict=True):
        graph.add_edge(a, b, weight=weight + int(delay[b]))
    for v in range(n):
        if not graph.in_degree(v):
            graph.add_edge("root", v, weight=int(release[v]))
    at = {"root": 0}
    for v in nx.topological_sort(graph):
        if v != "root":
            at[v] = max(at[u] + graph.edges[u, v]["weight"] for u in graph.predecessors(v))
    return np.array([at[v] for v in range(n)], np.int64), graph


@given(dags())
def test_longest_path_and_slack_are_those_of_networkx(dag) -> None:
    src, after, lag, delay, release, first, order = dag
    at = loops.earliest_times(order, first, after, lag, delay, release)
    expected, graph = longest(src, after, lag, delay, release)
    assert at.tolist() == expected.tolist()
    assert int(at.max()) == nx.dag_longest_path_length(graph)
    end = int(at.max())
    late = np.full(len(at), end)
    loops.latest_times(order, first, after, lag, delay, late)
    for v in range(len(at)):  # the longest path through each vertex
        tail = 0
        for path in paths_from(graph, v):
            tail = max(tail, sum(graph.edges[a, b]["weight"] for a, b in itertools.pairwise(path)))
        assert late[v] == end - tail


def paths_from(graph, v):
    stack = [[v]]
    while stack:
        path = stack.pop()
        yield path
        stack += [[*path, w] for w in graph.successors(path[-1])]


@given(dags())
def test_drag_and_slack_are_those_of_brute_force(dag) -> None:
    src, after, lag, delay, release, first, order = dag
    at = loops.earliest_times(order, first, after, lag, delay, release)
    last = int(np.argmax(at))
    end = int(at[last])
    late = np.full(len(at), end)
    loops.latest_times(order, first, after, lag, delay, late)
    rank = np.zeros(len(lag), np.uint8)
    binding, delayed = loops.find_binding(at, first, after, lag, rank)
    assert (delayed[binding >= 0] == delay[binding >= 0]).all()
    path = loops.binding_path(binding, first, at, last, -1)
    no_barrier = len(at)
    position = np.zeros(len(at), np.int32)
    parallel_slack = loops.min_parallel_slack(
        order,
        first,
        after,
        lag,
        delay,
        at,
        late,
        np.ones(len(at), bool),
        int(at.min()),
        end,
        path,
        src[path],
        no_barrier,
        position,
    )
    assert not position.any()
    for k, edge in enumerate(path.tolist()):
        shorter = lag.copy()
        shorter[edge] = 0
        gained = end - loops.earliest_times(order, first, after, shorter, delay, release).max()
        assert gained == min(lag[edge], parallel_slack[k])
    for edge in range(len(lag)):  # longer by its slack changes nothing, by more it does
        slack = late[after[edge]] - delay[after[edge]] - lag[edge] - at[src[edge]]
        for more, moved in ((slack, 0), (slack + 1, 1)):
            longer = lag.copy()
            longer[edge] += more
            actual = loops.earliest_times(order, first, after, longer, delay, release).max()
            assert actual == end + moved


@given(dags(), st.data())
def test_the_reduced_model_gives_the_times_of_the_complete_one(dag, data) -> None:
    _src, after, lag, delay, release, first, order = dag
    graph = SimpleNamespace(order=order, first=first, after=after)
    chosen = data.draw(st.lists(st.booleans(), min_size=len(lag), max_size=len(lag)))
    varying = np.flatnonzero(chosen)
    other = lag.copy()
    other[varying] = data.draw(
        st.lists(st.integers(0, 20), min_size=len(varying), max_size=len(varying))
    )
    expected = loops.earliest_times(order, first, after, other, delay, release)
    reduced = ReducedTiming(graph, lag, delay, release, varying, np.arange(len(delay)))
    actual = reduced.retimed(other[varying])
    assert actual.tolist() == expected.tolist()


@given(dags(), st.integers(1, 12), st.integers(0, 20))
def test_windows_hold_what_lies_in_them(dag, size: int, shift: int) -> None:
    _src, after, lag, delay, release, first, order = dag
    at = loops.earliest_times(order, first, after, lag, delay, release)
    start = np.array([0, shift], np.int64)
    end = start + size
    begins, chosen = loops.vertices_by_window(order, at, start, end)
    for k in range(2):
        inside = [v for v in order.tolist() if start[k] <= at[v] <= end[k]]
        assert chosen[begins[k] : begins[k + 1]].tolist() == inside


REAL = (
    "pytorch/torchrec_4rank_v100",
    "pytorch/dlrm_8rank_v100/kineto",
    "pytorch/mi300x",
    "pytorch/hip_graph_mi300x/vllm_graph_execution.json.gz",
    "pytorch/cuda_sync_a100/simple_add.json.gz",
    "rocprof/v3_json_mi350x",
)


@pytest.mark.parametrize("name", slow_from(REAL, -1))
def test_with_measured_lags_and_delays_the_model_gives_the_measured_times(name: str) -> None:
    path = real(name)
    for one in sorted(path.glob("*.json.gz"))[:2] if name == "pytorch/mi300x" else [path]:
        timing = timing_of(read_once(one))
        assert (timing.retimed() == timing.at_ns).all()
        assert (timing.lag_ns <= timing.graph.gap_ns).all()
        assert (timing.delay_ns >= 0).all()


def test_latencies_of_the_sample_job_are_those_that_it_was_built_with(demo: Path) -> None:
    timing = timing_of(read_once(demo / "kineto"))
    kind, lag = timing.graph.kind, timing.lag_ns
    for edge, minimum in ((EdgeKind.EVENT, 1_200), (EdgeKind.SYNC, 3_000), (EdgeKind.STREAM, 0)):
        assert np.unique(lag[kind == edge]).tolist() == [minimum]
    assert np.unique(lag[kind == EdgeKind.LAUNCH]).tolist() == [2_500]
    assert not timing.delay_ns.any()


def gpu_work(rows: list[tuple[int, int, int, int]]) -> ci.Trace:
    """Kernels of one rank: start, duration, stream and training step of each."""
    builder = TraceBuilder()
    for start, dur, stream, step in rows:
        lane = builder.lane(0, LaneKind.STREAM, stream, f"stream {stream}", 0)
        builder.nodes(
            kind=int(Kind.KERNEL), name="k", rank=0, lane=lane, ts=np.array([start]), dur=dur,
            iteration=step,
        )  # fmt: skip
    return builder.finish()


@pytest.mark.parametrize("overlap", [500, 900_000])
def test_work_that_seems_to_overlap_what_it_follows_keeps_its_place(overlap: int) -> None:
    """The second kernel begins just before the first has ended: half as long, both end sooner."""
    trace = gpu_work([(0, 100_000_000, 7, 0), (100_000_000 - overlap, 50_000_000, 7, 0)])
    result = ci.analyze(trace, "what_if", change="scale=0.5")
    assert result.summary["changes"][0]["gain_ns"] == 75_000_000


def test_work_without_predecessor_moves_with_its_step() -> None:
    """The second step's kernel of stream 8 follows nothing: it comes as long after its step's start."""
    trace = gpu_work([(0, 1000, 7, 0), (1000, 1000, 7, 1), (1300, 500, 8, 1)])
    timing = timing_of(trace)
    lag = timing.lag_ns.copy()
    lag[timing.graph.src == 0] = 400  # duration of the first kernel
    assert timing.retimed(lag)[2::2].tolist() == [400, 700]
    none = np.zeros_like(timing.delay_ns)
    assert timing.retimed(lag, none)[2::2].tolist() == [400, 400]


def test_a_step_without_nodes_begins_when_its_window_does() -> None:
    trace = gpu_work([(100, 1000, 7, 0), (2000, 1000, 7, 2)])
    steps = [Window(0, k, 1000 * k + 100, 1000 * k + 1100) for k in range(3)]
    assert isolated_steps(trace, steps).at_ns[-3:].tolist() == [100, 1100, 2100]


@pytest.mark.parametrize(
    ("kinds", "size", "delay_ns"),
    [(("send", "recv"), 64, 900), (("send", "recv"), None, 0), (("barrier", "barrier"), None, 900)],
)
def test_communication_whose_other_member_is_unknown_lasts_as_long_as_others(
    kinds: tuple[str, str], size: int | None, delay_ns: int
) -> None:
    """A send and its receive take 100 ns; a receive of the same size waited 900 ns longer.

    If sizes are unknown, it may be larger: nothing is known of what it waited for. Barriers have no size.
    """
    builder = TraceBuilder()
    lanes = [builder.lane(rank, LaneKind.STREAM, 7, "stream 7", 0) for rank in (0, 1)]
    for rank, ts, dur, instance in ((0, 0, 100, 0), (1, 0, 100, 0), (1, 200, 1000, None)):
        builder.nodes(
            kind=int(Kind.COMM), name="n", rank=rank, lane=lanes[rank], ts=np.array([ts]), dur=dur,
            collective=kinds[rank], bytes=pa.array([size], pa.int64()),
            instance=pa.array([instance], pa.int32()),
        )  # fmt: skip
    trace = builder.finish()
    send, receive, alone = (
        int(np.flatnonzero((trace.array("rank") == rank) & (trace.array("dur") == dur))[0])
        for rank, dur in ((0, 100), (1, 100), (1, 1000))
    )
    trace = trace.with_edges(np.array([send]), np.array([receive]), EdgeKind.COMM)
    timing = timing_of(trace)
    assert timing.delay_ns[2 * alone + 1] == delay_ns
    result = ci.analyze(trace, "what_if", change="scale=2 where kind == 'comm'")
    assert ("1 pieces of communication waited for" in result.notes.get("unmatched", "")) == (
        delay_ns > 0
    )


def test_blocking_copies_that_return_steadily_end_with_their_wait() -> None:
    """Copies of 20 to 42 us, each of which returns 5 or 6 us behind what it waits for."""
    waited = 1_000 * np.arange(15, 37)
    gap = np.where(np.arange(22) % 2, 5_000, 6_000)
    name = np.zeros(22, np.int64)
    assert latencies._returns_steadily(name, gap, waited + gap, waited).all()
    own = 1_000 * np.arange(22)  # of calls that take 40 us whatever they wait for
    assert not latencies._returns_steadily(name, own, np.full(22, 40_000), 40_000 - own).any()
