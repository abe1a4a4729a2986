"""ETs of other writers, against MLCommons' reader, generator and jsonizer."""

import json
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from issue_counts import counts
from protobuf_wire import framed
from read_once import read_once
from schedule import attributes, messages
from seeds.chakra import FIRST, GPU, HOST, REDUCE, SECOND, VERSION, node
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.converters.chakra.json import messages as json_messages
from chopper_interop.converters.chakra.old import to_present_schema
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.chakra import NodeType
from chopper_interop.schemas.kinds import EdgeKind, Kind
from chopper_interop.schemas.meta import COMPUTED, REALTIME

pytest.importorskip("chakra", reason="MLCommons' package (mlc-chakra) is not installed")

REAL = "chakra/feeder_tests_chakra.0.et"


def run_tool(module: str, monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> None:
    main = __import__(f"chakra.src.{module}", fromlist=["main"]).main
    monkeypatch.setattr(sys, "argv", ["tool", *map(str, arguments)])
    main()


def generated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(folder)
    run_tool("generator.generator", monkeypatch, "--num_npus", 2)
    return sorted(folder.glob("*.et"))


def test_all_that_the_generator_writes_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = generated(tmp_path, monkeypatch)
    assert len(paths) > 20
    for path in paths:
        _, nodes = messages(path)
        work = [n for n in nodes if n.type != NodeType.METADATA]
        if not work:
            with pytest.raises(ci.ChopperError, match="no nodes"):
                ci.read(path)
            continue
        trace = ci.read(path)
        (source,) = trace.meta.sources
        assert (source.events, source.nodes) == (len(nodes), len(work))
        assert trace.ranks == [int(path.name.split(".")[1])]
        assert trace.meta.clock == COMPUTED
        assert "rank-assumed" not in counts(trace)
        assert trace.array("dur").sum() == sum(n.duration_micros for n in work) * 1000


def test_attributes_of_every_type_keep_value_and_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path, *_) = [
        p for p in generated(tmp_path, monkeypatch) if p.name.startswith("one_metadata_node_all")
    ]
    (all_types,) = messages(path)[1]
    all_types.type = NodeType.COMP
    all_types.attr.add(name="big", uint64_val=2**64 - 1)
    all_types.attr.add(name="nan", double_val=float("nan"))
    (tmp_path / "a.0.et").write_bytes(framed(VERSION, all_types.SerializeToString()))
    read = ci.read(tmp_path / "a.0.et").args(0)
    for name, value in attributes(all_types).items():
        plain = list(value.values) if hasattr(value, "values") else value
        texts = [v.decode() if isinstance(v, bytes) else v for v in np.atleast_1d(plain).tolist()]
        expected = texts if isinstance(plain, list) else texts[0]
        if name == "nan":
            assert read[name] == "nan"
        else:
            assert read[name] == (pytest.approx(expected) if "float" in name else expected), name
            assert type(read[name]) is type(expected), name


def dependencies(nodes: list[Any]) -> nx.DiGraph:
    """Dependencies among the nodes that exist, by their positions in the file."""
    position = {n.id: k for k, n in enumerate(nodes)}
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(nodes)))
    for k, n in enumerate(nodes):
        graph.add_edges_from(
            (position[p], k) for p in [*n.data_deps, *n.ctrl_deps] if p in position
        )
    return graph


def test_only_dependencies_in_circles_are_left_out() -> None:
    trace = read_once(real(REAL))
    graph = dependencies(messages(real(REAL))[1])
    cycle = {k: c for c, part in enumerate(nx.strongly_connected_components(graph)) for k in part}
    backward = sum(a >= b and cycle[a] == cycle[b] for a, b in graph.edges)
    assert counts(trace)["et-dependency-circular"] == backward
    src, dst = trace.array("src", "edges"), trace.array("dst", "edges")
    assert len(src) == graph.number_of_edges() - backward
    ordered = nx.DiGraph(zip(src.tolist(), dst.tolist(), strict=True))
    assert nx.is_directed_acyclic_graph(ordered)


def test_computed_times_keep_to_dependencies_and_lanes() -> None:
    trace = read_once(real(REAL))
    assert trace.meta.clock == COMPUTED
    (issue,) = [i for i in trace.meta.issues if i.code == "et-times-scheduled"]
    assert "computed, not measured" in issue.meaning
    ts, dur, lane = (trace.array(c) for c in ("ts", "dur", "lane"))
    src, dst = trace.array("src", "edges"), trace.array("dst", "edges")
    assert (ts[dst] >= (ts + dur)[src]).all()
    for one in np.unique(lane):
        rows = np.flatnonzero(lane == one)
        rows = rows[np.lexsort((dur[rows], ts[rows]))]
        assert (ts[rows][1:] >= (ts + dur)[rows][:-1]).all()
    assert (trace.array("parent") == -1).all()


def test_recorded_starts_are_not_computed(tmp_path: Path) -> None:
    timed = [node(k, start=100 + 10 * k, **GPU) for k in range(2)]
    (tmp_path / "a.0.et").write_bytes(framed(VERSION, *timed))
    trace = ci.read(tmp_path / "a.0.et")
    assert trace.meta.clock == REALTIME
    assert (trace.array("ts") + trace.meta.origin_ns).tolist() == [100_000, 110_000]
    assert "et-times-scheduled" not in counts(trace)


def test_the_output_of_the_jsonizer_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "feeder_tests_chakra.0.json"
    run_tool(
        "jsonizer.jsonizer", monkeypatch, "--input_filename", real(REAL), "--output_filename", out
    )
    with pytest.raises(ValueError, match="Extra data"):
        json.loads(out.read_text())
    binary, as_json = read_once(real(REAL)), ci.read(out)
    assert counts(binary) == counts(as_json)
    for column in ("kind", "ts", "dur", "lane", "name"):
        assert np.array_equal(binary.array(column), as_json.array(column)), column
    assert binary.edges.equals(as_json.edges)
    assert [binary.args(k) for k in range(50)] == [as_json.args(k) for k in range(50)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", slow_from(["full", "gpu"], 1))
def test_written_ets_read_the_same_as_json(
    demo: Path, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = read_once(demo / "kineto")
    written = (
        trace.rank(0) if mode == "full" else trace
    )  # the jsonizer takes a second for each rank
    ci.write(written, tmp_path / "et" / "job.et", mode=mode)
    (tmp_path / "json").mkdir()
    for path in (tmp_path / "et").glob("*.et"):
        out = tmp_path / "json" / f"{path.stem}.json"
        run_tool(
            "jsonizer.jsonizer", monkeypatch, "--input_filename", path, "--output_filename", out
        )
    groups = tmp_path / "et" / "job.comm_groups.json"
    (tmp_path / "json" / groups.name).write_bytes(groups.read_bytes())
    binary, as_json = ci.read(tmp_path / "et"), ci.read(tmp_path / "json")
    assert binary.nodes.equals(as_json.nodes)
    assert binary.edges.equals(as_json.edges)
    assert binary.groups.equals(as_json.groups)


def test_annotations_that_are_floats_read_back(tmp_path: Path) -> None:
    nodes = [
        node(0, start=5, **GPU, gfxclk_mhz=("double_val", 1234.5)),
        node(1, start=9, **GPU),
    ]
    (tmp_path / "a.0.et").write_bytes(framed(VERSION, *nodes))
    trace = ci.read(tmp_path / "a.0.et")
    assert trace.nodes["gfxclk_mhz"].to_pylist() == [1234.5, None]


def test_groups_next_to_ets_belong_to_them(tmp_path: Path) -> None:
    et = framed(VERSION, node(0, **HOST), node(1, deps=[0], **REDUCE))
    for rank in (0, 1):
        (tmp_path / f"llama.tp2.{rank}.et").write_bytes(et)
    (tmp_path / "comm_group.json").write_text('{"0": [0, 1], "1": [1, 0]}')
    trace = ci.read(tmp_path)
    assert trace.ranks == [0, 1]
    assert [(g["name"], g["ranks"]) for g in trace.groups.to_pylist()] == [
        ("0", [0, 1]),
        ("1", [1, 0]),
    ]
    comm = trace.array("kind") == Kind.COMM
    groups = np.array(trace.nodes["group"].to_pylist(), object)
    assert groups[comm].tolist() == [1, 1]


def test_collectives_without_a_group_name_have_the_group_of_all_ranks(
    demo: Path, tmp_path: Path
) -> None:
    trace = read_once(demo / "kineto")
    ci.write(trace, tmp_path / "et" / "job.et")
    again = ci.read(tmp_path / "et")
    grouped = [sum(t.nodes["group"].is_valid().to_pylist()) for t in (trace, again)]
    assert grouped[0] == grouped[1] > 0
    rows = set(again.nodes["group"].drop_null().to_pylist())
    assert [again.groups["ranks"][row].as_py() for row in rows] == [again.ranks]


def test_a_group_of_some_ranks_is_not_that_of_all(tmp_path: Path) -> None:
    et = framed(
        VERSION,
        node(0, **HOST),
        node(1, deps=[0], **{k: v for k, v in REDUCE.items() if k != "pg_name"}),
    )
    for rank in (0, 1, 2):
        (tmp_path / f"job.{rank}.et").write_bytes(et)
    (tmp_path / "job.comm_groups.json").write_text('{"1": [0, 1]}')
    trace = ci.read(tmp_path)
    assert trace.nodes["group"].null_count == trace.nodes.num_rows


def test_kinds_and_edges_of_a_workload_graph(tmp_path: Path) -> None:
    graph = {
        "workload_name": "x",
        "workload_graph": [
            {"Id": 5, "Name": "a", "NodeType": 4, "is_cpu_op": True, "runtime": 7},
            {"Id": 9, "Name": "b", "NodeType": "COMM_COLL_NODE", "is_cpu_op": False,
             "data_deps": [5], "comm_type": 2, "comm_size": 64, "runtime": 3},
        ],
    }  # fmt: skip
    (tmp_path / "w.3.json").write_text(json.dumps(graph))
    trace = ci.read(tmp_path / "w.3.json")
    assert trace.ranks == [3]
    assert trace.array("kind").tolist() == [Kind.CPU_OP, Kind.COMM]
    assert trace.array("ts").tolist() == [0, 7_000]
    assert trace.array("kind", "edges").tolist() == [EdgeKind.DEPENDENCY]
    assert trace.nodes["collective"].to_pylist() == [None, "all_gather"]
    assert trace.nodes["bytes"].to_pylist() == [None, 64]


@pytest.mark.parametrize(
    ("content", "end"),
    [(FIRST, b""), (SECOND, b""), (SECOND, b"\xff" * 40)],
    ids=["first, cut", "second, cut", "second, overwritten"],
)
def test_damage_in_a_file_of_an_older_schema_is_counted(
    tmp_path: Path, content: bytes, end: bytes
) -> None:
    """All behind it had been left out without a word."""
    damaged = content[: content.rindex(b"coll")] + end
    (tmp_path / "old.0.et").write_bytes(damaged)
    trace = ci.read(tmp_path / "old.0.et")
    assert 0 < trace.nodes.num_rows < nodes_of(content, tmp_path)
    assert counts(trace)["et-cut-short"] == 1


def nodes_of(content: bytes, folder: Path) -> int:
    whole = folder / "whole.0.et"
    whole.write_bytes(content)
    return ci.read(whole).nodes.num_rows


def test_rewritten_bytes_are_writable_as_those_of_files_are() -> None:
    """Loops were compiled a second time, for arrays that are not: 4 of 153 seconds of all that is compiled ahead."""
    first = np.frombuffer(bytearray(FIRST), np.uint8)
    rewritten, _ = json_messages(np.frombuffer(b'{"workload_graph": []}', np.uint8), IssueLog())
    assert rewritten.flags.writeable
    assert to_present_schema(first) is not first
    assert to_present_schema(first).flags.writeable
