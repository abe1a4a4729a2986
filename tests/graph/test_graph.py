"""The dependency graph: what it holds, that it has no cycles, and what people do with it."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from read_once import read_once
from shared_data import real

import chopper_interop as ci
from chopper_interop.build import TraceBuilder
from chopper_interop.clocks import relations
from chopper_interop.errors import UnknownFormatError, UsageError
from chopper_interop.graph import Graph
from chopper_interop.schemas.kinds import EDGE_ENDPOINTS, EdgeKind, Endpoint, Kind, LaneKind
from chopper_interop.testing.samples import tiny_trace
from chopper_interop.testing.strategies import traces
from chopper_interop.trace import empty

CYCLES = settings(suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def job(demo: Path) -> ci.Trace:
    return read_once(demo)


def as_networkx(graph: Graph) -> nx.MultiDiGraph:
    """Vertices and edges, as an oracle has them."""
    oracle: nx.MultiDiGraph = nx.MultiDiGraph()
    oracle.add_nodes_from(range(len(graph)))
    oracle.add_edges_from(
        (s, d, {"kind": k})
        for s, d, k in zip(
            graph.src.tolist(), graph.after.tolist(), graph.kind.tolist(), strict=True
        )
    )
    return oracle


def assert_sound(graph: Graph) -> None:
    """The order has every vertex once and no edge leads backwards in it."""
    place = np.empty(len(graph), np.int64)
    assert sorted(graph.order.tolist()) == list(range(len(graph)))
    place[graph.order] = np.arange(len(graph))
    assert (place[graph.src] < place[graph.after]).all()


@CYCLES
@given(traces())
def test_no_graph_has_circles_whatever_the_edges(trace: ci.Trace) -> None:
    for graph in (trace.graph(), trace.endpoints()):
        assert_sound(graph)
        assert nx.is_directed_acyclic_graph(as_networkx(graph))


@pytest.mark.slow
@CYCLES
@given(traces())
def test_edges_are_left_out_if_and_only_if_there_is_a_circle(trace: ci.Trace) -> None:
    endpoints = trace.endpoints()
    alone = replace(trace, edges=empty("edges")).endpoints()
    assert not alone.left_out
    everything = as_networkx(alone)
    for edge in trace.edges.to_pylist():
        a, b = EDGE_ENDPOINTS.get(EdgeKind(edge["kind"]), (Endpoint.END, Endpoint.START))
        everything.add_edge(2 * edge["src"] + a, 2 * edge["dst"] + b)
    assert (endpoints.left_out == 0) == nx.is_directed_acyclic_graph(everything)
    assert len(endpoints.after) + endpoints.left_out == everything.number_of_edges()


@CYCLES
@given(traces())
def test_all_that_came_before_on_a_thread_can_be_reached(trace: ci.Trace) -> None:
    threads = trace.array("kind", "lanes") == LaneKind.THREAD
    lane = trace.array("lane")
    graph = as_networkx(trace.graph(["call", "order"]))
    for where in np.flatnonzero(threads).tolist():
        rows = np.flatnonzero(lane == where).tolist()
        for i in range(1, len(rows)):
            assert rows[i - 1] in nx.ancestors(graph, rows[i])


@CYCLES
@given(traces())
def test_endpoints_of_a_thread_are_one_chain_in_time(trace: ci.Trace) -> None:
    graph = trace.endpoints(["call", "order"])
    threads = trace.array("kind", "lanes") == LaneKind.THREAD
    lane = trace.array("lane")[graph.node]
    for where in np.flatnonzero(threads).tolist():
        chain = as_networkx(graph).subgraph(np.flatnonzero(lane == where).tolist())
        if len(chain):
            ordered = list(nx.topological_sort(chain))
            assert all(chain.has_edge(a, b) for a, b in pairwise(ordered))
            assert (np.diff(graph.at_ns[ordered]) >= 0).all()


def two_ranks(*edges: tuple[int, int, EdgeKind]) -> ci.Trace:
    """On each of two ranks a call [0, 10), one behind it, and two kernels behind each other.

    Rows are 0: call, 1: next call, 2, 3: kernels; 4 to 7 likewise.
    """
    builder = TraceBuilder()
    for rank in (0, 1):
        host = builder.lane(rank, LaneKind.THREAD, 1, "main")
        stream = builder.lane(rank, LaneKind.STREAM, 0, "stream", device=rank)
        builder.nodes(
            kind=np.array([Kind.RUNTIME, Kind.RUNTIME, Kind.COMM, Kind.KERNEL]),
            name="x",
            rank=rank,
            lane=np.array([host, host, stream, stream]),
            ts=np.array([0, 12, 2, 9]),
            dur=np.array([10, 3, 6, 5]),
        )
    trace = builder.finish()
    assert trace.array("ts").tolist() == [0, 2, 9, 12] * 2
    row = [0, 3, 1, 2]  # in order of time
    for src, dst, kind in edges:
        a, b = (np.array([row[n % 4] + n // 4 * 4]) for n in (src, dst))
        trace = trace.with_edges(a, b, kind)
    return trace


def test_a_wait_ends_with_the_work_and_not_before() -> None:
    trace = two_ranks((0, 2, EdgeKind.LAUNCH), (2, 0, EdgeKind.SYNC))  # a copy that blocks
    endpoints = trace.endpoints()
    assert endpoints.left_out == 0
    call, kernel, after = 0, 1, 3
    assert 2 * kernel + 1 in endpoints.predecessors(2 * call + 1)
    assert 2 * call in endpoints.predecessors(2 * kernel)
    nodes = trace.graph()
    assert nodes.left_out == 0
    assert call in nodes.predecessors(kernel)
    assert kernel in nodes.predecessors(after)  # what follows the wait starts no sooner


def test_members_of_a_collective_end_when_the_last_has_come() -> None:
    trace = two_ranks((2, 6, EdgeKind.COMM))
    last, other, behind = 1, 5, 6
    endpoints, nodes = trace.endpoints(), trace.graph()
    assert 2 * last in endpoints.predecessors(2 * other + 1)
    assert last in nodes.predecessors(other)
    assert other in nodes.predecessors(behind)


def test_a_wait_depends_on_what_was_launched_before_it() -> None:
    trace = two_ranks((0, 2, EdgeKind.LAUNCH), (2, 1, EdgeKind.SYNC))
    assert trace.graph().predecessors(3).tolist() == [0, 1]  # the call before, and the work
    trace = two_ranks((1, 3, EdgeKind.LAUNCH), (3, 1, EdgeKind.SYNC))  # and nothing follows
    assert trace.graph().left_out == 1


def test_a_circle_is_opened_where_it_points_back_in_time() -> None:
    trace = two_ranks((2, 3, EdgeKind.EVENT), (3, 2, EdgeKind.EVENT))
    for graph in (trace.graph(), trace.endpoints()):
        assert_sound(graph)
        assert graph.left_out == 1
        assert graph.counts()["event"] == 1


def test_work_follows_what_had_ended_on_its_stream() -> None:
    builder = TraceBuilder()
    stream = builder.lane(0, LaneKind.STREAM, 0, "stream", device=0)
    ts, dur = np.array([0, 5_000, 12_000, 120_000]), np.array([10_000, 100_000, 1_000, 10])
    builder.nodes(kind=int(Kind.KERNEL), name="k", rank=0, lane=stream, ts=ts, dur=dur)
    graph = builder.finish().graph()
    pairs = zip(graph.src.tolist(), graph.after.tolist(), strict=True)
    assert sorted(pairs) == [(0, 2), (1, 3)]  # the second overlaps the first, and covers the third


def test_time_along_a_wait_is_until_it_ends() -> None:
    trace = two_ranks((2, 1, EdgeKind.SYNC), (3, 1, EdgeKind.SYNC))
    graph = trace.graph(["sync"])
    assert graph.gap_ns.tolist() == [4, 1]  # from 8 to the call at 12; from 14 to its end at 15


def test_gaps_are_the_time_along_edges(job: ci.Trace) -> None:
    ts, dur = job.array("ts"), job.array("dur")
    graph = job.graph(["launch", "stream"])
    ends = ts + np.where(np.isin(np.arange(len(ts)), []), 0, dur)
    launch = graph.kind == EdgeKind.LAUNCH
    assert (graph.gap_ns[launch] == (ts[graph.after] - ts[graph.src])[launch]).all()
    assert (graph.gap_ns[~launch] == (ts[graph.after] - ends[graph.src])[~launch]).all()
    assert graph.fixed.all()
    endpoints = job.endpoints()
    assert (
        endpoints.gap_ns == endpoints.at_ns[endpoints.after] - endpoints.at_ns[endpoints.src]
    ).all()
    assert int(endpoints.gap_ns.min()) >= 0


def test_predecessors_and_successors_are_those_of_networkx(job: ci.Trace) -> None:
    graph = job.graph()
    oracle = as_networkx(graph)
    for vertex in range(0, len(graph), 97):
        assert sorted(graph.successors(vertex)) == sorted(d for _, d in oracle.out_edges(vertex))
        assert sorted(graph.predecessors(vertex)) == sorted(s for s, _ in oracle.in_edges(vertex))


def test_a_part_by_query_is_that_of_pandas(job: ci.Trace) -> None:
    graph = job.graph()
    part = graph.subgraph("rank == 1 and kind == 'kernel' and dur > 50_000")
    frame = job.to_pandas()
    chosen = frame[(frame["rank"] == 1) & (frame["kind"] == "kernel") & (frame["dur"] > 50_000)]
    assert part.node.tolist() == chosen.index.tolist()
    assert_sound(part)
    expected = as_networkx(graph).subgraph(chosen.index.tolist())
    pairs = zip(part.node[part.src].tolist(), part.node[part.after].tolist(), strict=True)
    assert sorted(pairs) == sorted((s, d) for s, d in expected.edges())
    with pytest.raises(UsageError, match="3 truth values"):
        graph.subgraph(np.ones(3, bool))


def test_a_query_can_name_what_nothing_is_known_of(job: ci.Trace) -> None:
    nodes = job.nodes.drop_columns(["power_w", "phase"])
    graph = replace(job, nodes=nodes).graph()
    assert len(graph.subgraph("power_w > 5 or phase == 'forward'")) == 0
    kernels = job.to_pandas()["kind"] == "kernel"
    assert len(graph.subgraph("power_w.isna() and kind == 'kernel'")) == kernels.sum()
    for query in ("powr_w > 5", "dur >", "dur > 'x'", "dur + 1", "kind.what()", "True", ""):
        with pytest.raises(UsageError, match="the query"):
            graph.subgraph(query)


def test_kinds_are_chosen_by_name(job: ci.Trace) -> None:
    assert set(job.graph(["launch", EdgeKind.STREAM]).counts()) == {"launch", "stream"}
    assert set(job.to_networkx(rank=0, kinds="launch").edges) == set(
        zip(*(job.rank(0).array(c, "edges")[job.rank(0).array("kind", "edges") == EdgeKind.LAUNCH]
              .tolist() for c in ("src", "dst")), strict=True)
    )  # fmt: skip
    with pytest.raises(UsageError, match="no edges 'lunch'"):
        job.graph(["lunch"])


def test_graphml_is_what_networkx_has(job: ci.Trace, tmp_path: Path) -> None:
    issues = ci.write(job, tmp_path / "job.graphml", only_rank=1)
    read = nx.read_graphml(tmp_path / "job.graphml", node_type=int)
    graph = job.to_networkx(rank=1)
    assert dict(read.nodes(data=True)) == dict(graph.nodes(data=True))
    assert {(s, d): e for s, d, e in read.edges(data=True)} == {
        (s, d): e for s, d, e in graph.edges(data=True)
    }
    assert relations.from_json(json.loads(read.graph["clocks"])) == job.meta.clocks
    assert job.meta.clocks
    assert [i.code for i in issues] == ["graph-without-samples"]
    ci.write(job, tmp_path / "some.graphml.gz", edges="launch, stream", only_rank=0)
    some = nx.read_graphml(tmp_path / "some.graphml.gz", node_type=int)
    assert {e["kind"] for _, _, e in some.edges(data=True)} == {"launch", "stream"}
    with pytest.raises(UsageError, match="max_nodes"):
        ci.write(job, tmp_path / "never.graphml", max_nodes=10)
    assert not (tmp_path / "never.graphml").exists()
    for name in ("job.graphml", "some.graphml.gz"):  # such a file was of no known format
        with pytest.raises(UnknownFormatError, match=f"{name}: GraphML .*give the profiles"):
            ci.read(tmp_path / name)


def test_integers_of_some_nodes_stay_integers(tmp_path: Path) -> None:
    """Pandas has floating-point numbers for a column that not all nodes have: 2^53 + 1 is none of these."""
    trace = tiny_trace()
    rows, large = trace.nodes.num_rows, 2**53 + 1
    flops = pa.array([large] + [None] * (rows - 1), pa.int64())
    ci.write(trace.with_columns(flops=flops), tmp_path / "x.graphml")
    read = nx.read_graphml(tmp_path / "x.graphml", node_type=int)
    assert [(i, n["flops"]) for i, n in read.nodes(data=True) if "flops" in n] == [(0, large)]


def test_columns_of_others_may_hold_lists(tmp_path: Path) -> None:
    """As an own Parquet folder may have them after another program changed it."""
    trace = tiny_trace()
    rows = range(trace.nodes.num_rows)
    nodes = trace.nodes.append_column("lists", pa.array([[i, i + 1] for i in rows]))
    nodes = nodes.append_column("structs", pa.array([{"a": i} for i in rows]))
    ci.write(replace(trace, nodes=nodes), tmp_path / "x.graphml")
    read = nx.read_graphml(tmp_path / "x.graphml", node_type=int)
    assert (read.nodes[1]["lists"], read.nodes[1]["structs"]) == ("[1, 2]", "{'a': 1}")


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(traces())
def test_any_trace_is_graphml(tmp_path_factory: pytest.TempPathFactory, trace: ci.Trace) -> None:
    path = tmp_path_factory.mktemp("graphml") / "any.graphml"
    ci.write(trace, path)
    read = nx.read_graphml(path, node_type=int)
    assert len(read) == trace.nodes.num_rows
    assert set(read.edges()) == set(trace.to_networkx().edges())


REAL = (
    "pytorch/torchrec_4rank_v100",
    "pytorch/mi300x/resnet_act_checkpoint.json.gz",
    "pytorch/dlrm_8rank_v100/kineto",
    "pytorch/cuda_sync_a100/event_sync_multi_stream.json.gz",
    "pytorch/hip_graph_mi300x/vllm_graph_execution.json.gz",
    "rocprof/rpd_schema2_mi300x/matmul_result.rpd",
)


@pytest.mark.parametrize("path", REAL)
def test_real_jobs_have_graphs_without_circles(path: str) -> None:
    trace = read_once(real(path))
    for graph in (trace.graph(), trace.endpoints()):
        assert_sound(graph)
        assert graph.left_out == 0
