"""Division of a job among its ranks, by process groups and pipelines."""

from collections.abc import Iterable
from pathlib import Path

import kineto_files
import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chopper_interop as ci
from chopper_interop.analyses.methods.communication import job_layout
from chopper_interop.build import TraceBuilder
from chopper_interop.schemas.kinds import Kind, LaneKind


@given(
    st.integers(0, 12),
    st.lists(st.lists(st.integers(0, 15), max_size=4).map(tuple), max_size=8),
)
def test_connected_ranks_are_components_of_a_graph(count: int, groups: list) -> None:
    graph = nx.Graph()
    graph.add_nodes_from(range(count))
    for group in groups:  # of ranks that there are not, nothing is said
        nx.add_path(graph, [rank for rank in group if rank < count])
    components = [tuple(sorted(part)) for part in nx.connected_components(graph)]
    assert job_layout.connected_ranks(range(count), groups) == sorted(components)


def layout(folder: Path, groups: dict, ranks: Iterable[int]) -> job_layout.JobLayout:
    """Layout of these ranks of ten, where groups have these descriptions."""
    listed = [
        {"pg_name": str(n), "pg_desc": text, "ranks": ranks}
        for n, (text, ranks) in enumerate((t, r) for t, all_ranks in groups.items() for r in all_ranks)
    ]  # fmt: skip
    for rank in ranks:
        info = {"backend": "nccl", "rank": rank, "world_size": 10, "pg_config": listed}
        events = [kineto_files.kernel("k", 4, 5, 0)]
        kineto_files.write(folder / f"r{rank}.json", events, distributedInfo=info)
    return job_layout.job_layout(ci.read(folder))


def test_places_by_groups(tmp_path: Path) -> None:
    """Ranks of a group for tensors, sequences or a whole model are of one copy."""
    groups = {
        "TENSOR_MODEL_PARALLEL_GROUP": [[0, 1], [2, 3]],
        "TENSOR_AND_CONTEXT_PARALLEL_GROUP": [[0, 1, 2, 3]],
        "CONTEXT_PARALLEL_GROUP": [[6, 7]],
        "MODEL_PARALLEL_GROUP": [[4, 9], [5, 9]],
        "DATA_PARALLEL_GROUP": [[0, 4], [1, 5]],
    }
    places = layout(tmp_path, groups, range(8)).places(range(8))
    assert places.dp_rank.tolist() == [0, 0, 0, 0, 1, 1, 2, 2], (
        "4 and 5 share a rank that was not read"
    )
    assert places.stage.tolist() == [0] * 8


def test_ranks_that_were_not_read_join_a_copy(tmp_path: Path) -> None:
    """Rank 1 shares tensors with 0, 2 with 3, and sequences are split among 0 and 2, and among 1 and 3."""
    groups = {
        "TENSOR_MODEL_PARALLEL_GROUP": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "CONTEXT_PARALLEL_GROUP": [[0, 2], [1, 3], [4, 6], [5, 7]],
    }
    ranks = [1, 2, 7]
    assert layout(tmp_path, groups, ranks).places(ranks).dp_rank.tolist() == [0, 0, 1]


@pytest.mark.parametrize(("ranks", "is_stated"), [([[0], [1]], False), ([[0, 1]], True)])
def test_a_group_of_one_rank_is_no_evidence(
    tmp_path: Path, ranks: list, *, is_stated: bool
) -> None:
    assert layout(tmp_path, {"mesh_tp": ranks}, [0, 1]).is_stated == is_stated


def test_groups_whose_descriptions_say_nothing_count_by_their_names() -> None:
    builder = TraceBuilder()
    for rank in range(3):
        stream = builder.lane(rank, LaneKind.STREAM, 7, "stream 7", 0)
        builder.nodes(kind=int(Kind.KERNEL), name="k", rank=rank, lane=stream, ts=[5], dur=[4])
    builder.group("mesh_tp", [0, 1], "undefined")
    trace = builder.finish()
    assert job_layout.job_layout(trace).places(trace.ranks).dp_rank.tolist() == [0, 0, 1]
