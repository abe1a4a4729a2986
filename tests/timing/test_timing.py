"""The timing model: longest paths, slack and drag against networkx and brute force."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_data import SHARED

import chopper_interop as ci
from chopper_interop.analyses.methods.timing import loops
from chopper_interop.analyses.methods.timing.model import timing_of
from chopper_interop.analyses.methods.timing.reduced import ReducedTiming
from chopper_interop.schemas.kinds import EdgeKind

if TYPE_CHECKING:
    from pathlib import Path


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
    first = np.searchsorted(src, np.arange(n + 1)).astype(np.int64)
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
    path = loops.binding_path(binding, src, at, last, -1)
    is_barrier = np.zeros(len(at), bool)
    position = np.zeros(len(at), np.int64)
    parallel_slack = loops.min_parallel_slack(
        order,
        first,
        after,
        lag,
        delay,
        at,
        late,
        np.ones(len(at), bool),
        end,
        path,
        src,
        is_barrier,
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
            found = loops.earliest_times(order, first, after, longer, delay, release).max()
            assert found == end + moved


@given(dags(), st.data())
def test_the_reduced_model_gives_the_times_of_the_complete_one(dag, data) -> None:
    _src, after, lag, delay, release, first, order = dag
    graph = SimpleNamespace(order=order, first=first, after=after)
    complete = SimpleNamespace(graph=graph, lag_ns=lag, delay_ns=delay, at_ns=release)
    chosen = data.draw(st.lists(st.booleans(), min_size=len(lag), max_size=len(lag)))
    varying = np.flatnonzero(chosen)
    other = lag.copy()
    other[varying] = data.draw(
        st.lists(st.integers(0, 20), min_size=len(varying), max_size=len(varying))
    )
    expected = loops.earliest_times(order, first, after, other, delay, release)
    found = ReducedTiming(complete, varying).retimed(other[varying], np.arange(len(delay)))
    assert found.tolist() == expected.tolist()


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


@pytest.mark.parametrize("name", REAL)
def test_with_measured_lags_and_delays_the_model_gives_the_measured_times(name: str) -> None:
    if not (path := SHARED / name).exists():
        pytest.skip(f"{name} is absent")
    for one in sorted(path.glob("*.json.gz"))[:2] if name == "pytorch/mi300x" else [path]:
        timing = timing_of(ci.read(one))
        assert (timing.retimed() == timing.at_ns).all()
        assert (timing.lag_ns <= timing.graph.gap_ns).all()
        assert (timing.delay_ns >= 0).all()


def test_latencies_of_the_sample_job_are_those_that_it_was_built_with(demo: Path) -> None:
    timing = timing_of(ci.read(demo / "kineto"))
    kind, lag = timing.graph.kind, timing.lag_ns
    for edge, least in ((EdgeKind.EVENT, 1_200), (EdgeKind.SYNC, 3_000), (EdgeKind.STREAM, 0)):
        assert np.unique(lag[kind == edge]).tolist() == [least]
    assert np.unique(lag[kind == EdgeKind.LAUNCH]).tolist() == [2_500]
    assert not timing.delay_ns.any()
