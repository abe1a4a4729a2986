"""ETs that are read are the job that was recorded, in every mode that holds hosts."""

import sys
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import predictions
import pytest
from gpu_work import Work
from gpu_work import trace as trace_of
from issue_counts import counts
from kineto_files import BASE, blocking_copies, call, kernel, span, write
from mixed_jobs import mixed_job
from programs import families
from programs.simulation import simulate
from scaled_ets import write_nodes
from schedule import attributes, messages
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.methods.timing.paths import CLASSES
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind, Kind

pytest.importorskip("chakra", reason="MLCommons' package (mlc-chakra) is not installed")

MODES = ("gpu", "full")
COLUMNS = [f"{name}_ns" for name in ("path", *CLASSES)]


def mixed(folder: Path, seed: int) -> ci.Trace:
    folder.mkdir()
    return ci.read(write(folder / "rank0.json", mixed_job(seed), baseTimeNanoseconds=BASE))


def path_of(trace: ci.Trace) -> dict[str, int]:
    """Time on the critical path by class."""
    summary = ci.analyze(trace, "critical_path").summary
    return {name: summary.get(name, 0) for name in COLUMNS}


def gains_ns(trace: ci.Trace) -> list[int]:
    """What kernels and hosts of other speed are predicted to gain."""
    changes = [f"scale={by} where kind == 'kernel'" for by in (0.1, 2)]
    predicted = [ci.analyze(trace, "what_if", change=text).summary["changes"] for text in changes]
    return [change["gain_ns"] for (change,) in predicted]


@pytest.mark.parametrize("mode", slow_from([*MODES], 1))
@pytest.mark.parametrize("seed", slow_from([30200, 30201, 30202, 30203, 30204, 30205], 1))
def test_paths_and_reactions_of_threads_are_those_of_the_job(
    tmp_path: Path, seed: int, mode: str
) -> None:
    """Threads that worked while another held the slot had no time in ETs: of mode gpu 82 % of the path was of other classes."""
    job = mixed(tmp_path / "in", seed)
    trace = job
    for trip in range(2):
        ci.write(trace, tmp_path / str(trip) / "job.et", mode=mode)
        trace = ci.read(tmp_path / str(trip))
        assert path_of(trace) == path_of(job)
        assert gains_ns(trace) == gains_ns(job)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "family", slow_from(["copies", "pipeline", "threads", "fsdp", "ddp", "host_bound"], 1)
)
def test_paths_of_programs_are_those_of_the_job(tmp_path: Path, family: str, mode: str) -> None:
    """Messages of streams' NPUs lost the rank that they are for, and paths of pipelines 8 % of their time."""
    job = predictions.read(simulate(families.FAMILIES[family](30210)), tmp_path / "in")
    ci.write(job, tmp_path / "et" / "job.et", mode=mode)
    again = ci.read(tmp_path / "et")
    assert path_of(again) == path_of(job)
    assert [i.code for i in again.meta.issues if i.severity != "info"] == []


def edges_of(trace: ci.Trace) -> Counter[tuple[Any, ...]]:
    """Edges, by name, start and lane of both ends."""
    names = np.array(trace.names(), object)[trace.array("name")]
    number = trace.array("number", "lanes")[trace.array("lane")]
    key = list(
        zip(names, trace.array("ts").tolist(), trace.array("dur").tolist(), number, strict=True)
    )
    src, dst, kind = (trace.array(column, "edges").tolist() for column in ("src", "dst", "kind"))
    return Counter((key[a], key[b], k) for a, b, k in zip(src, dst, kind, strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_each_launch_and_wait_is_that_of_the_job(tmp_path: Path, mode: str) -> None:
    job = mixed(tmp_path / "in", 30220)
    ci.write(job, tmp_path / "et" / "job.et", mode=mode)
    again = ci.read(tmp_path / "et")
    assert edges_of(again) == edges_of(job)
    kinds = set(again.array("kind", "edges").tolist())
    assert {EdgeKind.LAUNCH, EdgeKind.SYNC} <= kinds
    assert Kind.HOST_GAP not in again.array("kind")
    if mode == "full":
        assert again.nodes.num_rows == job.nodes.num_rows


def test_host_operations_of_mode_gpu_are_those_between_which_threads_idle(tmp_path: Path) -> None:
    """Of nested operations the outermost, and calls that launch or wait."""
    job = ci.read(blocking_copies(tmp_path))
    ci.write(job, tmp_path / "et" / "job.et", mode="gpu")
    again = ci.read(tmp_path / "et")
    at_edges = np.union1d(job.array("src", "edges"), job.array("dst", "edges"))
    outermost = np.flatnonzero(job.array("parent") < 0)
    work = np.flatnonzero(np.isin(job.array("kind"), [int(kind) for kind in GPU_WORK]))
    expected = np.union1d(np.union1d(at_edges, outermost), work)
    for column in ("ts", "dur", "kind"):
        found = again.array(column).tolist()
        assert sorted(found) == sorted(job.array(column)[expected].tolist())


def test_in_mode_gpu_operations_within_ranges_count_as_outermost(tmp_path: Path) -> None:
    """A thread may be idle within a range, so that it says nothing of what the thread does."""
    events = [
        span("user_annotation", "train", 0, 100),
        span("cpu_op", "aten::mul", 10, 10),
        span("cpu_op", "aten::inner", 12, 2),
        call("cudaLaunchKernel", 30, 4, 1),
        kernel("gemm", 40, 20, 1),
    ]
    ci.write(ci.read(write(tmp_path / "p.json", events)), tmp_path / "et" / "job.et", mode="gpu")
    again = ci.read(tmp_path / "et")
    names = np.array(again.names(), object)[again.array("name")]
    assert sorted(names) == ["aten::mul", "cudaLaunchKernel", "gemm", "train"]
    assert sorted(names[again.array("correlation") == 1]) == ["cudaLaunchKernel", "gemm"]
    assert [source.nodes for source in again.meta.sources] == [len(names)]


@cache
def et_files(mode: str) -> dict[str, bytes]:
    """Files of a job that is written once, by name."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "et"
        ci.write(mixed(Path(folder) / "in", 30221), out / "job.et", mode=mode)
        return {path.name: path.read_bytes() for path in out.iterdir()}


def one_et(folder: Path, mode: str = "gpu") -> tuple[Path, Any, list[Any]]:
    """One ET, of mode gpu by default: its path, metadata and nodes."""
    (folder / "et").mkdir()
    for name, data in et_files(mode).items():
        (folder / "et" / name).write_bytes(data)
    path = folder / "et" / "job.0.et"
    return path, *messages(path)


def numbers(node: Any, name: str) -> Any:
    """Values of a list of the recorded job."""
    return next(a for a in node.attr if a.name == f"recorded_{name}").int64_list.values


BROKEN = {
    "kind": 200, "kind is a kernel": int(Kind.KERNEL), "name": 10**6, "start_ns": 2**62, "duration_ns": -1,
    "iteration": 2**40, "src": 10**9, "dst": -1, "edge": 77, "edge is derived": int(EdgeKind.CALL), "edge is of ranks": int(EdgeKind.COMM),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_recorded_job_that_does_not_fit_is_named(tmp_path: Path, what: str) -> None:
    path, metadata, nodes = one_et(tmp_path)
    assert "et-recorded-unreadable" not in counts(ci.read(path))
    numbers(nodes[-1], what.split(maxsplit=1)[0])[0] = BROKEN[what]
    write_nodes(path, metadata, nodes)
    again = ci.read(path)
    assert counts(again)["et-recorded-unreadable"] == 1
    assert Kind.HOST_GAP in again.array("kind")  # pieces of hosts are what is left


@pytest.mark.parametrize(
    "of", ["operations", "edges", "an edge to itself", "the attribute", "the node", "a node"]
)
def test_what_is_missing_of_a_recorded_job_is_named(tmp_path: Path, of: str) -> None:
    path, metadata, nodes = one_et(tmp_path)
    last = nodes[-1]
    if of == "operations":
        del numbers(last, "tid")[-1]
    elif of == "edges":
        del numbers(last, "edge")[-1]
    elif of == "an edge to itself":
        numbers(last, "src")[0] = numbers(last, "dst")[0]
    elif of == "the attribute":
        last.attr.remove(next(a for a in last.attr if a.name == "recorded_names"))
    else:
        del nodes[-1 if of == "the node" else len(nodes) // 2]
    write_nodes(path, metadata, nodes)
    assert counts(ci.read(path))["et-recorded-unreadable"] == 1


def test_a_recorded_edge_at_what_is_read_as_no_node_is_named(tmp_path: Path) -> None:
    """It is at a piece that is there for simulators alone."""
    path, metadata, nodes = one_et(tmp_path)
    sound = ci.read(path)
    piece = next(k for k, node in enumerate(nodes) if attributes(node).get("cause") == "host")
    numbers(nodes[-1], "src")[0] = piece
    write_nodes(path, metadata, nodes)
    damaged = ci.read(path)
    assert counts(damaged)["et-dependency-dangling"] == 1
    assert not edges_of(damaged) - edges_of(sound)
    assert (edges_of(sound) - edges_of(damaged)).total() == 1


def renumber_without(nodes: list[Any], gone: int) -> None:
    """Remove a node as a tool would that numbers the others again."""
    del nodes[gone]
    for number, node in enumerate(nodes):
        kept = [d - (d > gone) for d in node.data_deps if d != gone]
        node.id = number
        node.data_deps[:] = kept


@pytest.mark.parametrize("mode", slow_from(MODES, 1))
@pytest.mark.parametrize("changed", ["a node more", "a node less", "a dependency less", "another"])
def test_a_recorded_job_is_that_of_the_nodes_it_was_written_with(
    tmp_path: Path, changed: str, mode: str
) -> None:
    """With a node more, operations were taken for their neighbours, and 2 x kernels gained the double."""
    path, metadata, nodes = one_et(tmp_path, mode)
    if changed == "a node more":
        added = type(nodes[0])()
        added.CopyFrom(nodes[3])
        added.id = len(nodes)
        nodes.append(added)
    elif changed == "a node less":
        renumber_without(nodes, 5)
    elif changed == "a dependency less":
        del nodes[-1].data_deps[:]
    else:
        nodes[-1].ctrl_deps.append(0)
    write_nodes(path, metadata, nodes)
    assert counts(ci.read(path))["et-recorded-unreadable"] == 1


@pytest.mark.parametrize(("both", "named"), [(False, 1), (True, 0)])
def test_durations_that_only_simulators_use_are_named(
    tmp_path: Path, *, both: bool, named: int
) -> None:
    path, metadata, nodes = one_et(tmp_path, "gpu")
    measured_ns = ci.read(path).array("dur").sum()
    for node in nodes:
        node.duration_micros *= 2
        if both:
            duration = next(a for a in node.attr if a.name == "duration_ns")
            duration.int64_val *= 2
    write_nodes(path, metadata, nodes)
    again = ci.read(path)
    assert counts(again).get("et-durations-changed", 0) == named
    assert "et-recorded-unreadable" not in counts(again)
    assert (again.array("dur").sum() > measured_ns) == both


def test_a_last_node_of_megabytes_is_written(tmp_path: Path) -> None:
    """Its attributes were appended to nothing, before there was room for the node."""
    names = ["gemm", "k" * (5 << 20)]
    work = [Work(Kind.KERNEL, 10 * at, 5, name=name) for at, name in enumerate(names)]
    ci.write(trace_of(work), tmp_path / "et" / "job.et", mode="kernels")
    assert ci.read(tmp_path / "et").names() == names


def test_json_of_an_et_is_the_job_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLCommons' jsonizer keeps the lists of the last node."""
    path, *_ = one_et(tmp_path)
    jsonizer = __import__("chakra.src.jsonizer.jsonizer", fromlist=["main"])
    out = tmp_path / "job.0.json"
    monkeypatch.setattr(
        sys, "argv", ["jsonizer", "--input_filename", str(path), "--output_filename", str(out)]
    )
    jsonizer.main()
    assert path_of(ci.read(out)) == path_of(ci.read(path))
