"""Host execution traces alone: every node, its position in the program, and the flow of data."""

import json
from collections import Counter
from pathlib import Path

import pytest
from host_et_oracle import count_of, flow, nodes_of
from issue_counts import uncounted_events
from read_once import read_once
from seeds import pytorch_et as seed
from shared_data import SHARED, each
from slow import slow_from

import chopper_interop as ci
from chopper_interop.errors import WriteError
from chopper_interop.schemas.kinds import EdgeKind, Kind
from chopper_interop.schemas.meta import ORDER
from chopper_interop.testing import check_trace

REAL = sorted(
    {
        str(p.relative_to(SHARED))
        for pattern in ("pytorch/**/host_et/*.json*", "pytorch/*/*_et.json*")
        for p in SHARED.glob(pattern)
    }
)


def unpacked_size(name: str) -> int:
    """Bytes of a file, those of one in gzip by its last four."""
    data = (SHARED / name).read_bytes()
    return int.from_bytes(data[-4:], "little") if name.endswith(".gz") else len(data)


BY_SIZE = sorted(REAL, key=unpacked_size)


def read(tmp_path: Path, data: bytes, name: str = "x.json", **options) -> ci.Trace:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return ci.read(path, **options)


def edges(trace: ci.Trace) -> set[tuple[int, int]]:
    """Edges by the ids of the execution trace."""
    pairs = zip(*(trace.array(c, "edges").tolist() for c in ("src", "dst")), strict=True)
    return {(trace.args(a)["ET id"], trace.args(b)["ET id"]) for a, b in pairs}


def names(trace: ci.Trace) -> list[str]:
    texts = trace.names()
    return [texts[code] for code in trace.array("name").tolist()]


@pytest.mark.parametrize("name", each(slow_from(BY_SIZE, 3)))
def test_real_files_come_out_node_by_node(shared: Path, name: str) -> None:
    path = shared / name
    trace = ci.read(path)
    check_trace(trace)
    expected = nodes_of(path)
    assert trace.meta.clock == ORDER
    assert names(trace) == [n["name"] for n in expected]
    args = [trace.args(i) for i in range(trace.nodes.num_rows)]
    assert [t["ET id"] for t in args] == [n["id"] for n in expected]
    assert [t["ET rf_id"] for t in args] == [n["rf_id"] for n in expected]
    assert [t.get("op_schema", "") for t in args] == [n["op_schema"] for n in expected]
    for side, key in (("inputs", "Input"), ("outputs", "Output")):
        values = [[v for v, _ in n[side]] for n in expected]
        assert [t.get(f"{key} Values", []) for t in args] == values
        kinds = [[kind for _, kind in n[side]] for n in expected]
        assert [t.get(f"{key} type", []) for t in args] == kinds
    ids = [n["id"] for n in expected]
    known = set(ids)
    parents = [ids[p] if p >= 0 else None for p in trace.array("parent").tolist()]
    assert parents == [n["parent"] if n["parent"] in known else None for n in expected]
    kinds = Counter(trace.array("kind").tolist())
    assert kinds[Kind.ANNOTATION] == sum(n["scope"] == 7 for n in expected)
    assert trace.meta.sources[0].events == count_of(path)
    assert not uncounted_events(trace)


@pytest.mark.parametrize("name", each(slow_from([n for n in BY_SIZE if "resnet" not in n], 3)))
def test_the_flow_of_data_is_that_of_the_slow_oracle(shared: Path, name: str) -> None:
    pairs = edges(read_once(shared / name))
    assert pairs == flow(nodes_of(shared / name))
    assert pairs


@pytest.mark.slow
@pytest.mark.parametrize("name", each(n for n in REAL if "resnet" in n))
def test_the_flow_of_data_of_large_files(shared: Path, name: str) -> None:
    assert edges(read_once(shared / name)) == flow(nodes_of(shared / name))


@pytest.mark.parametrize("schema", seed.SCHEMAS)
def test_every_schema_says_the_same(tmp_path: Path, schema: str) -> None:
    trace = read(tmp_path, seed.document(seed.program(), schema))
    assert names(trace)[:2] == ["## forward ##", "aten::linear"]
    assert trace.array("dur").tolist() == [6, 4, 1, 2, 1, 1, 1]
    # who takes the view depends on it; the memory of addmm's result is no data
    assert edges(trace) == {(7, 8), (8, 20), (20, 25)}
    args = trace.args(3)
    assert args["Input type"] == ["Tensor(float)", "Tensor(float)"]
    assert args["Input Dims"] == [[4], [4]]
    assert ("Input Strides" in args) == (schema == seed.STRIDED)


def program(*nodes: seed.Node) -> bytes:
    return seed.document([seed.node(2, seed.THREAD, 1, scope=7), *nodes])


def test_bytes_come_from_their_last_writer(tmp_path: Path) -> None:
    complete, front, back = (seed.tensor(50 + k, 60, *part) for k, part in enumerate(PARTS))
    in_place = "aten::add_(Tensor(a!) self, Scalar o) -> Tensor(a!)"
    quiet = "aten::_foreach_add_(Tensor(a!)[] self, Scalar o) -> ()"
    data = program(
        seed.node(3, "aten::mm", 2, (), (complete,)),
        seed.node(4, "aten::add_", 2, (front, 1), (front,), op_schema=in_place),
        seed.node(5, "aten::_foreach_add_", 2, ([back],), (), op_schema=quiet),
        seed.node(6, "aten::sum", 2, (complete,), (seed.tensor(70, 71),)),
        seed.node(7, "aten::sum", 2, (seed.tensor(58, 60, 3, 2),), (seed.tensor(72, 73),)),
    )
    assert edges(read(tmp_path, data)) == {(3, 4), (3, 5), (4, 6), (3, 6), (5, 6), (3, 7)}


PARTS = ((0, 8), (0, 3), (6, 2))


def test_memory_that_is_given_out_again_holds_no_old_data(tmp_path: Path) -> None:
    new = seed.tensor(51, 60)
    data = program(
        seed.node(3, "aten::mm", 2, (), (seed.tensor(50, 60),)),
        seed.node(4, "aten::empty", 2, ([4],), (new,)),
        seed.node(5, "aten::sum", 2, (new,), (seed.tensor(70, 71),)),
    )
    assert edges(read(tmp_path, data)) == set()


def test_tensors_without_a_storage_stand_for_themselves(tmp_path: Path) -> None:
    fake = [50, 0, 0, 0, 0, ""]
    data = program(
        seed.node(3, "x::make", 2, (), (fake,)), seed.node(4, "x::use", 2, ([fake],), ())
    )
    assert edges(read(tmp_path, data)) == {(3, 4)}


def test_lists_that_look_like_tensors_are_none(tmp_path: Path) -> None:
    data = program(
        seed.node(3, "x::make", 2, (), (seed.tensor(50, 60),)),
        seed.node(4, "x::use", 2, (seed.tensor(50, 60),), ()),
    ).replace(
        b'"types": ["Tensor(float)"]}, "outputs": {"values": []',
        b'"types": ["Tuple[Int]"]}, "outputs": {"values": []',
    )
    assert edges(read(tmp_path, data)) == set()


def test_process_groups_and_rank_from_the_nodes(tmp_path: Path) -> None:
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": [],
            "group_size": 2, "group_count": 2},
        {"pg_name": "1", "pg_desc": "tp", "ranks": [1, 3], "group_size": 2},
    ]  # fmt: skip
    comm = ([seed.tensor(50, 60)], 7, ["1", "tp"], 1, "allreduce", [], [], 1, 2, 2)
    data = program(
        seed.node(3, "## process_group:init ##", 2, (json.dumps(groups),), scope=7),
        seed.node(
            4,
            "record_param_comms",
            2,
            comm,
            (),
            collective_name="allreduce",
            global_rank_start=1,
            global_rank_stride=2,
            pg_name="1",
            dtype="Float",
        ),
    )
    trace = read(tmp_path, data, "rank_7.json")
    (rank,) = trace.meta.ranks
    assert (rank.rank, rank.pid, rank.known_by) == (3, 77, "header")
    groups_read = [(g["name"], g["ranks"], g["backend"]) for g in trace.groups.to_pylist()]
    assert groups_read == [("0", [0, 1], "cuda:nccl"), ("1", [1, 3], "")]
    assert trace.args(1)["Collective name"] == "allreduce"
    assert trace.args(1)["Process Group Name"] == "1"


@pytest.mark.parametrize(
    ("name", "rank"),
    [("rank-3.json", 3), ("dlrm_eg_12.json", 12), ("x_et_5.json.gz", 5), ("rank_10/host.json", 10)],
)
def test_rank_from_the_name(tmp_path: Path, name: str, rank: int) -> None:
    (stated,) = read(tmp_path, seed.SEEDS[0].data, name).meta.ranks
    assert (stated.rank, stated.known_by) == (rank, "name")


def test_the_users_rank_wins(tmp_path: Path) -> None:
    (stated,) = read(tmp_path, seed.SEEDS[0].data, "rank-3.json", rank=9).meta.ranks
    assert (stated.rank, stated.known_by) == (9, "user")


def test_without_times_nothing_is_written_that_would_take_order_for_time(tmp_path: Path) -> None:
    trace = read(tmp_path, seed.SEEDS[1].data)
    assert {i.code: i.severity.value for i in trace.meta.issues}["no-times"] == "error"
    for target in ("a.json", "a.et"):
        with pytest.raises(WriteError, match="has no times"):
            ci.write(trace, tmp_path / target)
    ci.write(trace, tmp_path / "a.parquet")
    again = ci.read(tmp_path / "a.parquet")
    assert again.meta.clock == ORDER
    assert [i.count for i in again.meta.issues if i.code == "no-times"] == [1]
    assert trace.to_networkx(kinds=["data"]).number_of_edges() == 3
    assert ci.analyze(trace, "temporal").summary["span_ns"] == 0
    assert {lane["name"] for lane in trace.lanes.to_pylist()} == {
        "thread 1 in order, no times",
        "thread 2 in order, no times",
    }


def test_arguments_are_proper_json_whatever_the_observer_wrote(tmp_path: Path) -> None:
    data = seed.SEEDS[1].data.replace(b"Infinity", b"[nan, -inf, 1.5e+3, 007]")
    trace = read(
        tmp_path,
        data.replace(
            b'"op_schema", "type": "string", "value": ""',
            b'"op_schema", "type": "string", "value": "a\\q\tb"',
        ),
    )
    (relu,) = (i for i, name in enumerate(names(trace)) if name == "aten::relu")
    assert trace.args(relu)["Input Values"][1] == ["nan", "-inf", 1500.0, "007"]
    assert trace.args(relu)["op_schema"] == "a\\q b"


def test_data_edges_are_of_their_kind(tmp_path: Path) -> None:
    trace = read(tmp_path, seed.SEEDS[0].data)
    assert set(trace.array("kind", "edges").tolist()) == {EdgeKind.DATA}
