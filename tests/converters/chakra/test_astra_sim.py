"""ASTRA-sim's logs: against their lines, and with the simulated ETs."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from issue_counts import counts
from kineto_files import blocking_copies, write
from mixed_jobs import mixed_job
from protobuf_wire import framed
from schedule import attributes, messages
from seeds import astra_sim as seeds
from seeds.chakra import VERSION

import chopper_interop as ci
from chopper_interop.analyses.methods.timing.paths import CLASSES
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra import check, run
from chopper_interop.converters.chakra.checks.findings import Findings
from chopper_interop.converters.chakra.checks.jobs import job_of
from chopper_interop.demo import make_demo
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.io.inputs import HEAD_BYTES
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind, Kind
from chopper_interop.schemas.meta import COMPUTED


def simulated(ets: Path, folder: Path) -> Path:
    """Write a log of the nodes of ETs, which run one after the other, 7 ns each."""
    lines = []
    for path in sorted(ets.glob("job.*.et")):
        rank = int(path.suffixes[-2][1:])
        for place, node in enumerate(messages(path)[1]):
            at = 7 * place + rank
            lines += [
                seeds.line("issue", rank, at, node.id, node.name, 4),
                seeds.line("callback", rank, at + 7, node.id, node.name, 4),
            ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "log.log"
    path.write_text("".join(lines))
    return path


def replayed(prefix: Path, folder: Path) -> None:
    """Write a log of ETs as a simulator with the durations in them runs them."""
    findings = Findings()
    ets = [et for _, et in check.read_files(prefix, findings)]
    job = job_of(ets, check.read_groups(prefix, len(ets), findings))
    end = run.run(job, len(ets)).end_ns
    ids = np.concatenate([et.id for et in ets])
    columns = (job.rank, end - job.duration, end, ids)
    lines = []
    for rank, start, stop, node in zip(*(column.tolist() for column in columns), strict=True):
        lines += [
            seeds.line("issue", rank, start, node, "n", 4),
            seeds.line("callback", rank, stop, node, "n", 4),
        ]
    folder.mkdir()
    (folder / "log.log").write_text("".join(lines))


@pytest.fixture(scope="module")
def ets(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sim")
    job = make_demo(folder / "demo", ranks=2, layers=1, steps=1, telemetry=False)
    ci.write(ci.read(job / "kineto"), folder / "et" / "job.et", mode="gpu")
    return folder / "et"


def nodes(trace: ci.Trace) -> list[tuple]:
    names = ["rank", "ts", "dur", "name", "kind"]
    return list(trace.to_pandas(columns=names).itertuples(index=False, name=None))


def calls(trace: ci.Trace) -> Counter[tuple[str, str]]:
    """How often operations of one name call those of another."""
    name, parent = trace.nodes["name"].to_pylist(), trace.array("parent").tolist()
    return Counter((name[i], name[p]) for i, p in enumerate(parent) if p >= 0)


@pytest.mark.parametrize("text", [seeds.SOUND, seeds.PLAIN])
def test_nodes_last_from_issue_to_callback(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "log.log"
    path.write_bytes(text)
    trace = ci.read(path)
    kinds = {0: "cpu_op", 1: "runtime", 2: "kernel", 3: "comm"}
    expected = [
        (rank, 10 * node, 10, seeds.NAMES[node], kinds[node]) for rank in (0, 1) for node in kinds
    ]
    assert nodes(trace) == expected
    rows = trace.lanes.to_pylist()
    names = [rows[lane]["name"] for lane in trace.array("lane")[:4]]
    assert names == ["host", "host", "compute", "communication"]
    (source,) = trace.meta.sources
    assert (source.format, source.events, source.nodes) == ("astra-sim", 8, 8)
    assert trace.meta.facts.get("sys[0] finished") == "40 cycles"
    temporal = ci.analyze(trace, "temporal").rows.to_pylist()
    assert [(row["compute_ns"], row["comm_ns"]) for row in temporal] == [(10, 10), (10, 10)]


def test_a_run_that_hangs_has_no_result_of_the_run_before(tmp_path: Path) -> None:
    path = tmp_path / "log.log"
    hung = "".join([seeds.RING, *seeds.run()[:-2]]).encode()
    for text, finished in ((seeds.SOUND + hung, []), (hung + seeds.SOUND, [0, 1])):
        path.write_bytes(text)
        trace = ci.read(path)
        assert [r for r in (0, 1) if trace.meta.facts.get(f"sys[{r}] finished")] == finished
        codes = counts(trace)
        assert codes.get("sim-rank-not-finished", 0) == 2 - len(finished)


def test_the_ets_next_to_a_log_give_kinds_and_annotations(ets: Path, tmp_path: Path, run) -> None:
    measured = ci.read(ets)
    log = simulated(ets, ets / "log")
    trace = ci.read(log)
    in_files = [node for rank in (0, 1) for node in messages(ets / f"job.{rank}.et")[1]]
    assert trace.nodes.num_rows == len(in_files)
    for column in ("name", "kind", "rank", "collective", "operation"):
        values = []
        for one in (trace, measured):  # the times of pieces are those of the simulation
            work = np.flatnonzero(is_any(one.array("kind"), GPU_WORK))
            values.append(sorted(map(str, one.nodes[column].take(work).to_pylist())))
        assert values[0] == values[1], column
    src, dst, kind = (trace.array(column, "edges") for column in ("src", "dst", "kind"))
    work = is_any(trace.array("kind"), GPU_WORK)
    between = (kind == EdgeKind.DEPENDENCY) & work[src] & work[dst]
    kinds = {kind.name.lower() for kind in GPU_WORK}
    of_rank = [{n.id: n for n in messages(ets / f"job.{rank}.et")[1]} for rank in (0, 1)]
    works = [{i for i, n in of.items() if attributes(n)["kind"] in kinds} for of in of_rank]
    expected = sum(
        len(gpu.intersection(of[i].data_deps))
        for of, gpu in zip(of_rank, works, strict=True)
        for i in gpu
    )
    assert between.sum() == expected > 0
    assert trace.groups.to_pylist() == measured.groups.to_pylist()
    assert set(trace.array("dur").tolist()) == {7}
    assert "sim-kinds-by-name" not in {i.code for i in trace.meta.issues}
    folder = ci.read(ets)  # the folder with the log and the ETs is the simulation
    assert nodes(folder) == nodes(trace)
    alone = tmp_path / "elsewhere.log"
    alone.write_bytes(log.read_bytes())
    assert "sim-kinds-by-name" in {i.code for i in ci.read(alone).meta.issues}
    for prefix in (ets, ets / "job"):
        assert nodes(ci.read(alone, ets=str(prefix))) == nodes(trace)
    with pytest.raises(ReadError, match="no ETs"):
        ci.read(alone, ets=str(tmp_path / "none"))
    status, out, _ = run("analyze", "-q", log, "compare", "--against", ets / "job.0.et")
    assert (status, "compare" in out) == (0, True)
    log.unlink()
    (ets / "log").rmdir()


def test_steps_of_a_simulation_are_their_work(tmp_path: Path) -> None:
    """Ranges of steps are pieces of no length there, and so were steps: 0.002 ms of 2.363."""
    job = make_demo(tmp_path / "demo", ranks=1, layers=1, steps=2, telemetry=False)
    ci.write(ci.read(job / "kineto"), tmp_path / "et" / "job.et")
    log = simulated(tmp_path / "et", tmp_path / "et" / "log")
    trace = ci.read(log)
    worked = trace.to_pandas(columns=["iteration", "ts", "dur", "name"]).dropna()
    assert worked["name"].str.startswith("ProfilerStep#").sum() == 2
    worked = worked[~worked["name"].str.startswith("ProfilerStep#")]
    expected = worked.assign(end=worked["ts"] + worked["dur"]).groupby("iteration")
    steps = trace.steps()
    assert steps["start_ns"].tolist() == expected["ts"].min().tolist()
    assert steps["end_ns"].tolist() == expected["end"].max().tolist()
    assert (steps["end_ns"] - steps["start_ns"]).min() > 1000
    alone = tmp_path / "alone.log"
    alone.write_bytes(log.read_bytes())
    assert ci.read(alone).steps().empty


def test_host_operations_last_as_long_as_what_they_call(tmp_path: Path) -> None:
    """Each lasted for its first piece alone: a step of 13 ms was one of 0.1 ms, without any work of GPUs."""
    job = make_demo(tmp_path / "demo", ranks=1, layers=1, steps=2, telemetry=False)
    ci.write(ci.read(job / "kineto"), tmp_path / "et" / "job.et", mode="full")
    measured = ci.read(tmp_path / "et" / "job.0.et")
    trace = ci.read(simulated(tmp_path / "et", tmp_path / "et" / "log"))
    assert calls(trace) == calls(measured)
    assert calls(trace).total() > 1000
    steps = ci.analyze(trace, "temporal", steps="each").to_pandas()
    assert (steps["span_ns"] > 0.9 * trace.array("dur").max()).all()
    assert (steps["compute_ns"] > 0).all()


@pytest.mark.parametrize("name", ["sample job", "blocking copies"])
def test_what_binds_a_job_binds_its_ets_and_their_simulation(tmp_path: Path, name: str) -> None:
    """All of both was the host, or calls that wait: the sample job's path is 86 % compute, its ETs' was 94 % runtime."""
    if name == "sample job":
        job = make_demo(tmp_path / "demo", ranks=2, layers=1, steps=2, telemetry=False) / "kineto"
    else:
        job = blocking_copies(tmp_path / "demo")
    source = ci.read(job)
    ci.write(source, tmp_path / "et" / "job.et")
    jobs = {"source": source, "ets": ci.read(tmp_path / "et")}
    replayed(tmp_path / "et" / "job", tmp_path / "et" / "log")
    jobs["log"] = ci.read(tmp_path / "et")
    assert jobs["log"].meta.clock == COMPUTED
    paths = {reader: ci.analyze(one, "critical_path").summary for reader, one in jobs.items()}
    whole = paths["source"]["path_ns"]
    assert paths["source"]["bound_by"] in ("compute", "comm")
    for column in (f"{of_class}_ns" for of_class in CLASSES):
        for reader in ("ets", "log"):
            off = abs(paths[reader][column] - paths["source"][column])
            assert off < 0.01 * whole, (reader, column)


def test_npus_that_a_simulation_did_not_have_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network with too few NPUs leaves ETs out, and ASTRA-sim says nothing."""
    trace = ci.read(write(tmp_path / "rank0.json", mixed_job(25)))
    ci.write(trace, tmp_path / "et" / "job.et", streams="npus")
    replayed(tmp_path / "et" / "job", tmp_path / "et" / "log")
    assert "sim-npus-missing" not in {i.code for i in ci.read(tmp_path / "et").meta.issues}
    log = tmp_path / "et" / "log" / "log.log"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if "sys->id=0" in line or "sys->id=1" in line))
    missing = [i for i in ci.read(tmp_path / "et").meta.issues if i.code == "sim-npus-missing"]
    assert [(i.count, i.example) for i in missing] == [(2, "job.2.et, job.3.et")]
    # a rank without work of that stream
    (tmp_path / "et" / "job.2.et").write_bytes(framed(VERSION))
    missing = [i for i in ci.read(tmp_path / "et").meta.issues if i.code == "sim-npus-missing"]
    assert [(i.count, i.example) for i in missing] == [(1, "job.3.et")]
    # of those that are missing no more is read than says that they have work
    et = tmp_path / "et" / "job.3.et"
    et.write_bytes(et.read_bytes() + b"\0" * HEAD_BYTES)
    whole = []
    read = inputs.read
    monkeypatch.setattr(inputs, "read", lambda path, *rest: whole.append(path) or read(path, *rest))
    missing = [i for i in ci.read(tmp_path / "et").meta.issues if i.code == "sim-npus-missing"]
    assert [(i.count, i.example) for i in missing] == [(1, "job.3.et")]
    assert et not in whole


def test_ets_of_another_simulation_are_not_read(ets: Path, tmp_path: Path) -> None:
    for path in ets.glob("job.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    log = tmp_path / "log.log"
    log.write_text(
        seeds.line("issue", 0, 0, 99_999, "k", 4) + seeds.line("callback", 0, 3, 99_999, "k", 4)
    )
    trace = ci.read(log)
    assert nodes(trace) == [(0, 0, 3, "k", "kernel")]
    assert {"sim-other-ets", "sim-kinds-by-name"} <= {i.code for i in trace.meta.issues}


def test_kinds_that_the_log_lacks_follow_from_names() -> None:
    from chopper_interop.converters.chakra import astra_sim_log, astra_sim_nodes
    from chopper_interop.issues import IssueLog

    expected = {
        "host": Kind.HOST_GAP,
        "return of a wait": Kind.HOST_GAP,
        "unexplained delay": Kind.HOST_GAP,
        "end": Kind.HOST_GAP,
        "aten::add_": Kind.CPU_OP,
        "MmBackward0": Kind.CPU_OP,
        "nccl:_all_gather_base": Kind.CPU_OP,
        "ncclDevKernel_AllGather": Kind.COMM,
        "hipMemcpyWithStream": Kind.RUNTIME,
        "hsa_signal_wait_scacquire": Kind.DRIVER,
        "ProfilerStep#3": Kind.ANNOTATION,
        "Memcpy DtoH (Device -> Pinned)": Kind.MEMCPY,
        "Memset (Device)": Kind.MEMSET,
        "torch/nn/modules/module.py(1): forward": Kind.PYTHON,
        "void at::native::elementwise_kernel<4>(int)": Kind.KERNEL,
        "aiter::fmha_bwd_hd128": Kind.KERNEL,
        "COMP_NODE_3": Kind.KERNEL,
    }
    text = "".join(
        seeds.line(event, 0, 1, node, name, 4)
        for node, name in enumerate(expected)
        for event in ("issue", "callback")
    )
    import numpy as np

    run = astra_sim_log.last_run([np.frombuffer(text.encode(), np.uint8)], IssueLog())
    kinds = dict(zip(run.name.to_pylist(), astra_sim_nodes.kinds(run).tolist(), strict=True))
    assert kinds == {name: int(kind) for name, kind in expected.items()}
