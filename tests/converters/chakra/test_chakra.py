"""ETs that simulators run to the end in the measured time."""

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from issue_counts import counts
from kineto_files import BASE, call, kernel, write
from read_once import read_once
from schedule import attributes, messages, replay_us
from slow import slow_from

import chopper_interop as ci
from chopper_interop.converters.chakra import check
from chopper_interop.converters.chakra.checks.findings import Findings
from chopper_interop.errors import ReadError
from chopper_interop.issues import Severity
from chopper_interop.schemas.chakra import CommType, NodeType
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind, Kind

chakra = pytest.importorskip("chakra", reason="MLCommons' package (mlc-chakra) is not installed")

JOBS = {
    "dlrm": "pytorch/dlrm_8rank_v100",
    "ddp": "pytorch/ddp_resnet_4rank_amd",
    "torchrec": "pytorch/torchrec_4rank_v100",
}


def measured_ns(trace: ci.Trace, mode: str) -> int:
    """From the first start to the last end of the nodes that the mode writes."""
    kinds = [*GPU_WORK]
    if mode == "full":
        kinds += [Kind.CPU_OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.DRIVER]
    written = np.isin(trace.array("kind"), [int(k) for k in kinds])
    ts, dur = trace.array("ts")[written], trace.array("dur")[written]
    return int((ts + dur).max() - ts.min())


@pytest.mark.parametrize(
    ("job", "mode"),
    slow_from(
        [
            ("torchrec", "gpu"),
            ("dlrm", "full"),
            ("torchrec", "full"),
            ("dlrm", "gpu"),
            ("ddp", "gpu"),
            ("ddp", "full"),
        ],
        1,
    ),
)
def test_real_jobs_run_to_the_end_in_the_measured_time(
    shared: Path, tmp_path: Path, job: str, mode: str, run
) -> None:
    trace = read_once(shared / JOBS[job])
    ci.write(trace, tmp_path / f"{job}.et", mode=mode)
    status, output, _ = run("check", tmp_path / job)
    assert status == 0, output
    assert "\\n" not in output
    longest = 0
    for number, rank in enumerate(trace.ranks):
        metadata, nodes = messages(tmp_path / f"{job}.{number}.et")
        assert metadata.version
        longest = max(longest, replay_us(nodes))
        work = trace.rank(rank)
        on_gpu = np.isin(work.array("kind"), [int(k) for k in GPU_WORK])
        gpu = [n for n in nodes if attributes(n)["kind"] in ("kernel", "comm", "memcpy", "memset")]
        assert len(gpu) == np.count_nonzero(on_gpu)
        total = sum(attributes(n)["duration_ns"] for n in gpu)
        assert total == int(work.array("dur")[on_gpu].sum())
    assert longest * 1000 == pytest.approx(measured_ns(trace, mode), rel=0.005)


def test_nodes_have_what_both_feeders_need(shared: Path, tmp_path: Path) -> None:
    trace = read_once(shared / JOBS["ddp"])
    ci.write(trace, tmp_path / "job.et")
    groups = json.loads((tmp_path / "job.comm_groups.json").read_text())
    assert groups == {"1": [0, 1, 2, 3]}
    joined_by_rank = []
    for rank in range(4):
        _, nodes = messages(tmp_path / f"job.{rank}.et")
        assert [n.id for n in nodes] == list(range(len(nodes)))
        assert not any(n.ctrl_deps for n in nodes)
        assert all(parent < n.id for n in nodes for parent in n.data_deps)
        starts = []
        for node in nodes if rank == 0 else ():
            kinds = {a.name: a.WhichOneof("value") for a in node.attr}
            starts += [a.int64_val for a in node.attr if a.name == "start_ns"]
            assert kinds["is_cpu_op"] == "bool_val"
            assert kinds["start_ns"] == kinds["duration_ns"] == "int64_val"
            if node.type == NodeType.COMM_COLL:
                assert kinds["comm_type"] == kinds["comm_size"] == "int64_val"
                assert kinds["pg_name"] == "string_val"
        collectives = [attributes(n) for n in nodes if n.type == NodeType.COMM_COLL]
        assert starts == sorted(starts)
        joined = [c for c in collectives if c["comm_type"] == CommType.ALL_REDUCE]
        joined_by_rank.append([(c["comm_type"], c["comm_size"], c["seq"]) for c in joined])
        named = {c["collective"] for c in collectives if c["kind"] == "comm"}  # others are delays
        assert named == {"all_reduce", "broadcast"}
    assert len(joined_by_rank[0]) == 15
    assert joined_by_rank == [joined_by_rank[0]] * 4


def test_the_verdict_is_short_lines_however_many_ranks() -> None:
    findings = Findings(
        nodes=10**6, ranks=64, makespan_us=10**6, span_ns=dict.fromkeys(range(64), 10**9)
    )
    findings.unexplained = {rank: rank / 1000 for rank in range(64)}
    assert max(map(len, findings.verdict.split("\n"))) < 100
    assert "6.3% of rank 63" in findings.verdict
    assert "less of 61 others" in findings.verdict
    findings.unexplained = dict.fromkeys(range(64), 0.0)
    assert "of every rank" in findings.verdict


def test_streams_are_chained(demo: Path, tmp_path: Path) -> None:
    ci.write(read_once(demo / "kineto"), tmp_path / "job.et", mode="gpu")
    _, nodes = messages(tmp_path / "job.0.et")
    last: dict[int, int] = {}
    for node in nodes:
        stream = attributes(node).get("stream")
        if stream is not None:
            assert stream not in last or last[stream] in node.data_deps
            last[stream] = node.id


@pytest.mark.parametrize("mode", ["gpu", "full"])
def test_nodes_that_a_mode_leaves_out_are_counted(demo: Path, tmp_path: Path, mode: str) -> None:
    trace = read_once(demo / "kineto")
    issues = {i.code: i for i in ci.write(trace, tmp_path / "job.et", mode=mode)}
    written = [n for rank in (0, 1) for n in messages(tmp_path / f"job.{rank}.et")[1]]
    not_gaps = sum(attributes(n)["kind"] != "host_gap" for n in written)
    left_out = issues["et-nodes-left-out"]
    assert left_out.severity is Severity.INFO
    assert not_gaps + left_out.count == trace.nodes.num_rows
    assert "gpu_annotation" in left_out.example
    assert ("cpu_op" in left_out.example) == (mode == "gpu")


NCCL = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
CASES = {
    # in mode=gpu the copy waits for the host, and the collective begins while it runs
    "overlap": ("gpu", [
        kernel("gemm", 0, 100, 1), kernel("copy", 2000, 10.3, 2), kernel(NCCL, 2010, 500, 3, stream=9),
    ]),
    # the kernels of a graph run while its launch has not returned
    "graph": ("full", [
        call("hipGraphLaunch", 0, 5000, 1), *(kernel("gemm", 14 + 1000 * k, 1000, 1) for k in range(5)),
    ]),
    # the queue was busy with work that was launched before the window
    "queued": ("full", [call("hipLaunchKernel", 0, 10, 1), kernel("gemm", 8000, 100, 1)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_work_starts_at_its_measured_time(tmp_path: Path, name: str) -> None:
    mode, events = CASES[name]
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et", mode=mode)
    _, nodes = messages(tmp_path / "job.0.et")
    assert replay_us(nodes) * 1000 == pytest.approx(measured_ns(trace, mode), abs=20_000)


def test_own_files_read_back(demo: Path, tmp_path: Path) -> None:
    trace = read_once(demo / "kineto")
    ci.write(trace, tmp_path / "et" / "job.et")
    again = ci.read(tmp_path / "et")
    for rank in trace.ranks:
        a, b = trace.rank(rank), again.rank(rank)
        a_gpu, b_gpu = (np.isin(t.array("kind"), [int(k) for k in GPU_WORK]) for t in (a, b))
        first = [t.array("ts")[g].min() for t, g in ((a, a_gpu), (b, b_gpu))]
        for column in ("ts", "dur", "kind", "correlation"):
            shift = first if column == "ts" else (0, 0)
            left, right = a.array(column)[a_gpu] - shift[0], b.array(column)[b_gpu] - shift[1]
            assert np.array_equal(left, right), column
        names = [np.array(t.names())[t.array("name")[g]] for t, g in ((a, a_gpu), (b, b_gpu))]
        assert np.array_equal(*names)
        for column in ("collective", "bytes", "seq", "phase", "iteration"):
            assert list(a.values(column)[a_gpu].astype(str)) == list(
                b.values(column)[b_gpu].astype(str)
            ), column


def test_an_et_of_mlcommons_converter_is_read(shared: Path) -> None:
    path = shared / "chakra" / "feeder_tests_chakra.0.et"
    trace = ci.read(path)
    _, nodes = messages(path)
    ids = {n.id for n in nodes}
    dangling = sum(p not in ids for n in nodes for p in [*n.data_deps, *n.ctrl_deps])
    issues = counts(trace)
    assert trace.nodes.num_rows == len(nodes)
    assert issues["et-dependency-dangling"] == dangling
    assert int(trace.array("dur").sum()) == sum(n.duration_micros for n in nodes) * 1000
    assert trace.array("ts").max() > 0  # it has no starts, so they follow from dependencies
    assert issues["et-times-scheduled"] == len(nodes)


def make_et(folder: Path, ranks: list[list[dict]], groups: dict | None = None) -> Path:
    """ETs of a few nodes, written by MLCommons' writer."""
    from chakra.schema.protobuf.et_def_pb2 import GlobalMetadata, Node
    from chakra.src.third_party.utils.protolib import encodeMessage

    for rank, described in enumerate(ranks):
        with (folder / f"job.{rank}.et").open("wb") as file:
            encodeMessage(file, GlobalMetadata(version="0.0.4"))
            for number, about in enumerate(described):
                node = Node(id=about.pop("id", number), name=about.pop("name", f"n{number}"))
                node.duration_micros = about.pop("duration", 5)
                node.type = about.pop("type", NodeType.COMP)
                node.data_deps.extend(about.pop("deps", []))
                about.setdefault("is_cpu_op", ("bool_val", False))
                for name, (kind, value) in about.items():
                    node.attr.add(name=name, **{kind: value})
                encodeMessage(file, node)
    if groups is not None:
        (folder / "job.comm_groups.json").write_text(json.dumps(groups))
    return folder / "job"


def coll(size: int = 1024, kind: CommType = CommType.ALL_REDUCE, **more) -> dict:
    comm = {"comm_type": ("int64_val", int(kind)), "comm_size": ("int64_val", size)}
    return {"type": NodeType.COMM_COLL, **comm, **more}


def p2p(kind: NodeType, src: int, dst: int, tag: int = 0, size: int = 64, **more) -> dict:
    ends = {"comm_src": src, "comm_dst": dst, "comm_tag": tag}
    comm = {name: ("int32_val", value) for name, value in ends.items()}
    return {"type": kind, "comm_size": ("int64_val", size), **comm, **more}


def race(rank: int, size: int) -> list[dict]:
    """A collective after host work and one after compute; each rank is ready for another first."""
    host, compute = ((10, 50), (50, 10))[rank]
    return [
        {"is_cpu_op": ("bool_val", True), "duration": host},
        {"duration": compute},
        coll(8, deps=[0]),
        coll(size, deps=[1]),
    ]


def without(node: dict, name: str) -> dict:
    return {k: v for k, v in node.items() if k != name}


SEND, RECV = NodeType.COMM_SEND, NodeType.COMM_RECV
GROUP = {"pg_name": ("string_val", "1")}

FAULTS = {
    "fine": ([[{}, coll(deps=[0])], [{}, coll(deps=[0])]], None, None),
    "group": ([[coll(**GROUP)], [coll(**GROUP)], [{}]], {"1": [0, 1]}, None),
    "pair": ([[p2p(SEND, 0, 1)], [p2p(RECV, 0, 1)]], None, None),
    "broadcast on one rank": ([[coll(kind=CommType.BROADCAST)], [{}]], None, None),
    "absent": ([[coll()], [{}]], None, "1 collectives and rank 1 0"),
    "size": ([[coll(8)], [coll(16)]], None, "8 bytes on rank 0 and ALL_REDUCE of 16"),
    "kind": ([[coll()], [coll(kind=CommType.ALL_GATHER)]], None, "ALL_GATHER"),
    "order": ([[coll(8), coll(16, deps=[0])], [coll(16), coll(8, deps=[0])]], None, "collective 0"),
    "no such id": ([[{"deps": [7]}], [{}]], None, "do not exist"),
    "cycle": ([[{"deps": [1]}, {"deps": [0]}], [{}]], None, "form cycles"),
    "itself": ([[{"deps": [0]}], [{}]], None, "on themselves"),
    "twice": ([[{"id": 3}, {"id": 3}], [{}]], None, "ids occur twice"),
    "lone receive": ([[{}], [p2p(RECV, 0, 1)]], None, "receives without a send"),
    "other tag": ([[p2p(SEND, 0, 1)], [p2p(RECV, 0, 1, tag=2)]], None, "receives without a send"),
    "to itself": ([[p2p(SEND, 0, 0), p2p(RECV, 0, 0)], [{}]], None, "to itself"),
    "no such rank": ([[p2p(SEND, 0, 5)], [{}]], None, "ranks that are not there"),
    "race": ([race(0, 16), race(1, 16)], None, "16 bytes on rank 1"),
    "race of equals": ([race(0, 8), race(1, 8)], None, None),
    "order of ids alone": (
        [[coll(8), coll(16, deps=[0])], [coll(16, deps=[1]), coll(8)]],
        None,
        None,
    ),
    "same moment": (
        # host and compute end at once, and the one that was started first is seen first
        [
            [
                {"is_cpu_op": ("bool_val", True), "duration": 2},
                {"is_cpu_op": ("bool_val", True), "duration": 2, "deps": [0]},
                {"duration": 4},
                coll(8, deps=[1]),
                coll(16, deps=[2]),
            ],
            [{"duration": 4}, coll(16, deps=[0]), {}, coll(8, deps=[1])],
        ],
        None,
        None,
    ),
    "zero bytes": ([[coll(0)], [coll(0)]], None, None),
    "zero bytes gathered": ([[coll(0, CommType.ALL_GATHER)]] * 2, None, "0 bytes, which never"),
    "zero bytes sent": ([[p2p(SEND, 0, 1, size=0)], [p2p(RECV, 0, 1, size=0)]], None, "0 bytes"),
    "sender": ([[p2p(SEND, 1, 2)], [{}], [p2p(RECV, 1, 2)]], None, "from another rank"),
    "receiver": ([[p2p(SEND, 0, 2)], [p2p(RECV, 0, 2)], [{}]], None, "of another rank"),
    "own end unsaid": (
        [[without(p2p(SEND, 0, 1), "comm_src")], [without(p2p(RECV, 0, 1), "comm_dst")]],
        None,
        None,
    ),
    "group number": ([[coll(pg_name=("int64_val", 0))]] * 2, None, "pg_name has a type"),
    "load": (
        [[{"type": NodeType.MEM_LOAD, "tensor_size": ("uint64_val", 8)}], [{}]],
        None,
        "remote memory",
    ),
    "store of nothing": ([[{"type": NodeType.MEM_STORE}], [{}]], None, "without tensor_size"),
    "too long": ([[{"duration": 1 << 53}, {"duration": 1 << 53}], [{}]], None, "2^63 ns"),
    "tiny gather": ([[coll(2, CommType.ALL_GATHER)]] * 2, None, "less than 4 bytes"),
    "barrier": ([[coll(kind=CommType.BARRIER)]] * 2, None, "does not support"),
    "on host": ([[coll(is_cpu_op=("bool_val", True))]] * 2, None, "is_cpu_op"),
    "text": ([[coll(comm_size=("string_val", "8"))]] * 2, None, "type that the feeder refuses"),
    "group of one": ([[coll(**GROUP)], [{}]], {"1": [0]}, "group of one"),
    "no such group": (
        [[coll(**GROUP)], [coll(**GROUP)]],
        {"2": [0, 1]},
        "not in the file of groups\n",
    ),
    "no groups": (
        [[coll(**GROUP)], [coll(**GROUP)]],
        None,
        "PREFIX.comm_groups.json next to the ETs",
    ),
    "group as a float": ([[coll(pg_name=("string_val", "1.0"))]] * 2, {"1": [0, 1]}, None),
    "group 0 as a float": (
        [[coll(pg_name=("string_val", "0.0"))]] * 2,
        {"1": [0, 1]},
        "group 0: it is not in",
    ),
    "outsider": ([[coll(**GROUP)], [coll(**GROUP)], [{}]], {"1": [0, 2]}, "are not in it"),
    "group name": ([[coll(pg_name=("string_val", "default_pg"))]] * 2, None, "no decimal number"),
    "metadata": ([[{"type": NodeType.METADATA}], [{}]], None, "METADATA"),
    "no type": ([[{"type": NodeType.INVALID}], [{}]], None, "without a valid type"),
    "across": (
        [
            [coll(**GROUP), coll(pg_name=("string_val", "2"), deps=[0])],
            [coll(pg_name=("string_val", "2")), coll(**GROUP, deps=[0])],
        ],
        {"1": [0, 1], "2": [1, 0]},
        "wait for each other",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_check_finds_what_stops_a_simulator(tmp_path: Path, name: str, run) -> None:
    ranks, groups, expected = FAULTS[name]
    copies = [[dict(node) for node in rank] for rank in ranks]
    status, output, _ = run("check", make_et(tmp_path, copies, groups))
    assert status == (0 if expected is None else 1), output
    assert expected is None or expected in output


@pytest.mark.parametrize(
    ("rank", "noted"),
    [
        ([coll(10**8)], 1),
        ([{}, coll(10**8, deps=[0])], 0),
        ([coll(kind=CommType.BROADCAST)], 0),
    ],
)
def test_check_notes_collectives_that_nothing_comes_before(
    tmp_path: Path, rank: list[dict], noted: int, run
) -> None:
    ranks = [[dict(node) for node in rank] for _ in range(2)]
    status, output, _ = run("check", make_et(tmp_path, ranks))
    assert status == 0, output
    assert output.count("communication that nothing comes before") == noted
    assert (
        output.count("job.0.et and 1 other: ") == noted
    )  # a line for each of 4,096 ranks would hide all else


@pytest.mark.parametrize(("size", "noted"), [(4, 1), (999, 1), (1000, 0)])
def test_check_notes_short_messages_that_nothing_comes_before(
    tmp_path: Path, size: int, noted: int, run
) -> None:
    ranks = [[p2p(SEND, 0, 1, size=size)], [p2p(RECV, 0, 1, size=size)]]
    status, output, _ = run("check", make_et(tmp_path, ranks))
    assert status == 0, output
    assert output.count("communication that nothing comes before") == noted


def test_jobs_in_one_folder_are_checked_separately(tmp_path: Path, run) -> None:
    for name in ("run", "run.v2", "run[1]", "run1"):
        prefix = make_et(tmp_path, [[{}], [{}]])
        for rank in range(2 if name != "run1" else 1):
            prefix.with_name(f"job.{rank}.et").rename(tmp_path / f"{name}.{rank}.et")
    for name in ("run", "run.v2", "run[1]"):
        status, output, _ = run("check", tmp_path / name)
        assert (status, "hole" in output) == (0, False), output
    (tmp_path / "run[1].0.et").rename(tmp_path / "run[1].4.et")
    (tmp_path / "run[1].1.et").rename(tmp_path / "run[1].0.et")
    assert "there is no run[1].1.et" in run("check", tmp_path / "run[1]")[1]


def test_each_job_of_a_folder_is_checked(tmp_path: Path, run) -> None:
    for name, ranks in (("good", [[{}], [{}]]), ("bad", [[{"deps": [7]}], [{}]])):
        for path in make_et(tmp_path, ranks).parent.glob("job.*.et"):
            path.rename(tmp_path / path.name.replace("job", name))
    status, output, _ = run("check", f"{tmp_path}/")
    assert status == 1
    names = [line for line in output.splitlines() if line.endswith(":")]
    assert names == [f"{tmp_path / name}:" for name in ("bad", "good")]
    for path in tmp_path.glob("bad.*"):
        path.unlink()
    status, output, _ = run("check", tmp_path)
    assert (status, output) == run("check", tmp_path / "good")[:2]
    assert status == 0
    with pytest.raises(ReadError, match="it has no ETs"):
        check.jobs_at(str(tmp_path.parent))


@pytest.mark.parametrize(
    ("make", "reason"), [(os.mkfifo, "a pipe or a device"), (os.mkdir, "Is a directory")]
)
def test_a_rank_that_is_no_file_is_one_line(tmp_path: Path, run, make, reason: str) -> None:
    prefix = make_et(tmp_path, [[{}]])
    make(tmp_path / f"{prefix.name}.1.et")
    status, _, output = run("check", prefix)
    assert (status, reason in output) == (ReadError.exit_status, True), output


def test_one_rank_stands_for_its_job(tmp_path: Path, run) -> None:
    prefix = make_et(tmp_path, [[{}], [{"deps": [7]}]])
    whole = run("check", prefix)
    assert whole[0] == 1
    assert run("check", f"{prefix}.0.et") == whole
    assert run("check", f"{prefix}.1.et") == whole


@pytest.mark.parametrize("tolerance", ["nan", "-1", "inf"])
def test_a_tolerance_is_a_share(tmp_path: Path, run, tolerance: str) -> None:
    """Nothing is farther off than nan."""
    prefix = make_et(tmp_path, [[{}], [{}]])
    status, _, output = run("check", prefix, f"--tolerance={tolerance}")
    assert (status, output.count("\n")) == (2, 1)


def test_what_is_no_et_is_said_so(tmp_path: Path, run) -> None:
    """It was "job.pftrace.0.et: there is no such file"."""
    path = tmp_path / "job.pftrace"
    path.write_bytes(b"\n\x00")
    status, _, output = run("check", path)
    assert (status, output.count("\n")) == (4, 1)
    assert f"{path}: it is no ET (give the folder of ETs that chopper-convert wrote, or" in output


def test_a_prefix_that_is_a_folder_too(tmp_path: Path, run) -> None:
    prefix = make_et(tmp_path, [[{}], [{}]])
    prefix.mkdir()
    assert run("check", prefix)[0] == 0
    assert run("check", f"{prefix}/")[0] == 4


def test_the_job_of_several_files_is_their_folder(tmp_path: Path, run) -> None:
    for rank in range(2):
        (tmp_path / f"run 7/{rank}").mkdir(parents=True)
        info = {"rank": rank, "world_size": 2}
        path = tmp_path / f"run 7/{rank}/trace.json"
        write(path, [kernel("k", 4, 5, 0)], distributedInfo=info)
    sources = sorted(tmp_path.glob("run 7/*/*"))
    status, _, stderr = run("convert", *sources, "-o", f"{tmp_path}/et/")
    assert status == 0
    prefix = tmp_path / "et/run 7"
    assert f"simulators take the prefix {prefix}; chopper-check {tmp_path}/et/ checks it" in stderr
    assert sorted(path.name for path in prefix.parent.glob("*.et")) == ["run 7.0.et", "run 7.1.et"]
    assert run("check", prefix)[0] == 0


def test_names_are_shown_as_they_are(tmp_path: Path, run) -> None:
    names = ["foo(int*) [clone .kd]", "[/x]", "a:fire:b"]
    nodes = [{"name": name, "deps": [7]} for name in names]
    output = run("check", make_et(tmp_path, [nodes, [{}]]))[1]
    assert all(name in output for name in names)


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [("job", "there is no such file"), (".", "it has no ETs"), ("/", "it has no ETs")],
)
def test_check_of_missing_files_is_refused(
    tmp_path: Path, prefix: str, reason: str, run, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.0.json").write_text("{}")
    status, _, errors = run("check", prefix)
    assert status == 4
    assert reason in errors
    assert prefix != "." or "of ETs as JSON chopper-convert makes such" in errors


def test_check_of_a_file_that_is_no_et_finds_that(tmp_path: Path, run) -> None:
    (tmp_path / "job.0.et").write_bytes(b"\xff" * 40)
    status, output, _ = run("check", tmp_path / "job")
    assert status == 1
    assert "breaks off" in output


@pytest.mark.parametrize("groups", ['{"1": [Infinity]}', "[" * 100_000, "[[0, 1]]", "{"])
def test_check_of_malformed_groups_finds_that(tmp_path: Path, groups: str, run) -> None:
    prefix = make_et(tmp_path, [[{}], [{}]])
    (tmp_path / "job.comm_groups.json").write_text(groups)
    status, output, _ = run("check", prefix)
    assert (status, output.count("no object of lists of ranks")) == (1, 1)


def test_a_group_whose_rank_is_no_number_is_not_read(tmp_path: Path, run) -> None:
    make_et(tmp_path, [[{}]], {"1": [0], "2": [float("inf")]})
    status, _, errors = run("convert", tmp_path, "-o", tmp_path / "out.parquet")
    assert (status, errors.count("no object of lists of ranks")) == (4, 1), errors


@pytest.mark.parametrize("key", ["0", "tp", "-1", "4294967296", "9" * 5000, "", "+-1"])
def test_names_of_groups_that_abort_a_simulator(tmp_path: Path, key: str, run) -> None:
    status, output, _ = run("check", make_et(tmp_path, [[{}], [{}]], {key: [0, 1], "7": [0, 1]}))
    assert status == 1
    assert "numbers from 1 on" in output


def test_check_finds_a_file_that_is_cut_short(tmp_path: Path, run) -> None:
    prefix = make_et(tmp_path, [[{}, {}], [{}, {}]])
    path = prefix.with_name("job.1.et")
    path.write_bytes(path.read_bytes()[:-3])
    assert run("check", prefix)[0] == 1
    assert check.check(prefix).entries[0].where == "job.1.et"


@pytest.mark.parametrize(
    ("garbled", "nodes"),
    [
        (b"\x08\x03\x12\x7f", 2),  # a message whose text is longer than itself
        (b"\x08\x03\x29" + b"\xff" * 8, 3),  # dependencies of another type are unknown fields
        (b"\x08\x03\x2a\x02\xff\xff", 2),  # a list of dependencies that does not end
        (b"\x08\x03\x52\x03\x0a\x01n\x52\x02\x0a\x7f", 3),  # an attribute that does not end
    ],
)
def test_a_garbled_message_is_reported(tmp_path: Path, garbled: bytes, nodes: int) -> None:
    path = make_et(tmp_path, [[{}, {}]]).with_name("job.0.et")
    path.write_bytes(path.read_bytes() + bytes([len(garbled)]) + garbled)
    trace = ci.read(path)
    assert trace.nodes.num_rows == nodes
    codes = {i.code for i in trace.meta.issues} & {"et-cut-short", "et-attribute-unreadable"}
    assert codes == ({"et-cut-short"} if nodes == 2 else set()) | (
        {"et-attribute-unreadable"} if b"\x52" in garbled else set()
    )


def pipeline(folder: Path, *ends: list[tuple[str, int, int]]) -> ci.Trace:
    """Ranks that send and receive: for each its (send or recv, peer, elements) in order."""
    for rank, transfers in enumerate(ends):
        events = []
        for k, (kind, peer, elements) in enumerate(transfers):
            args = {
                "Collective name": kind, "In msg nelems": elements, "Out msg nelems": elements,
                "dtype": "Float", "Process Group Name": "3", "Process Group Ranks": "[0, 1]",
                "Dst Rank" if kind == "send" else "Src Rank": peer,
            }  # fmt: skip
            name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
            events += [call("cudaLaunchKernelExC", 100 * k, 5, k + 1)]
            events += [kernel(name, 100 * k + 10, 50, k + 1, **args)]
        header = {"distributedInfo": {"rank": rank, "world_size": len(ends)}}
        write(folder / f"rank{rank}.json", events, baseTimeNanoseconds=BASE, **header)
    return ci.read(folder)


def test_sends_are_paired_with_receives(tmp_path: Path, run) -> None:
    trace = pipeline(
        tmp_path,
        [("send", 1, 256), ("recv", 1, 64), ("send", 1, 512)],
        [("recv", 0, 256), ("send", 0, 64), ("recv", 0, 512)],
    )
    ci.write(trace, tmp_path / "et/job.et", mode="gpu")
    assert run("check", tmp_path / "et/job")[0] == 0
    ends = [
        [
            (n.type, *(attributes(n)[f"comm_{a}"] for a in ("src", "dst", "tag", "size")))
            for n in messages(tmp_path / f"et/job.{rank}.et")[1]
            if n.type in (NodeType.COMM_SEND, NodeType.COMM_RECV)
            and attributes(n).get("cause") != "ready"
        ]
        for rank in (0, 1)
    ]
    assert [kind for kind, *_ in ends[0]] == [SEND, RECV, SEND]
    assert [kind for kind, *_ in ends[1]] == [RECV, SEND, RECV]
    assert [pair for _, *pair in ends[0]] == [pair for _, *pair in ends[1]]
    assert [(s, d, size) for _, s, d, _, size in ends[0]] == [
        (0, 1, 1024), (1, 0, 256), (0, 1, 2048),
    ]  # fmt: skip
    again = ci.read(tmp_path / "et/job.0.et")
    assert again.values("collective").tolist().count("send") == 2


def test_sends_without_a_receive_keep_their_measured_time_only(tmp_path: Path, run) -> None:
    trace = pipeline(tmp_path, [("send", 1, 8), ("send", 1, 9), ("send", 5, 9)], [("recv", 0, 8)])
    issues = ci.write(trace, tmp_path / "et/job.et", mode="gpu")
    assert run("check", tmp_path / "et/job")[0] == 0
    (unmatched,) = [i for i in issues if i.code == "comm-timed-unmatched"]
    assert unmatched.count == 2
    kinds = [
        n.type for n in messages(tmp_path / "et/job.0.et")[1] if attributes(n)["kind"] == "comm"
    ]
    assert kinds == [NodeType.COMM_SEND, NodeType.COMM_COLL, NodeType.COMM_COLL]


@pytest.mark.parametrize("mode", slow_from(["gpu", "full"], 1))
def test_counters_and_telemetry_are_attributes_at_the_right_time(
    demo: Path, tmp_path: Path, mode: str
) -> None:
    trace = read_once(demo)
    ci.write(trace, tmp_path / "job.et", mode=mode)
    rank = trace.rank(0)
    clock = rank.values("gfxclk_mhz")
    start = rank.array("ts") + rank.meta.origin_ns
    rows = np.flatnonzero(rank.array("kind") == Kind.KERNEL)
    kernels = {(int(start[i]), int(rank.array("dur")[i])): int(i) for i in rows}
    counters = rank.to_pandas("counters")
    values = {(n, c): v for n, c, v in counters.itertuples(index=False)}
    assert values
    metadata, nodes = messages(tmp_path / "job.0.et")
    (origin,) = (a.int64_val for a in metadata.attr if a.name == "origin_ns")
    for node in nodes:
        attrs = attributes(node)
        if attrs["kind"] == "kernel":
            row = kernels.pop((attrs["start_ns"] + origin, attrs["duration_ns"]))
            assert attrs["gfxclk_mhz"] == pytest.approx(clock[row])
            for name in counters["name"].unique():
                assert attrs.get(name) == values.get((row, name)), name
    assert not kernels
    again = ci.read(tmp_path / "job.0.et")
    read_back = again.array("ts")[again.array("kind") == Kind.KERNEL] + again.meta.origin_ns
    assert sorted(read_back) == sorted(start[rows])


def test_ranks_with_a_hole_are_renumbered(demo: Path, tmp_path: Path, run) -> None:
    second_rank = read_once(demo / "kineto").rank(1)
    issues = ci.write(second_rank, tmp_path / "job.et", mode="gpu")
    assert "ranks-renumbered" in {i.code for i in issues}
    metadata, _ = messages(tmp_path / "job.0.et")
    assert {a.name: a.int64_val for a in metadata.attr if a.name == "rank"} == {"rank": 1}
    assert run("check", tmp_path / "job")[0] == 0


def test_an_earlier_run_leaves_no_ranks_behind(demo: Path, tmp_path: Path) -> None:
    trace = read_once(demo / "kineto")
    (tmp_path / "notes.txt").write_text("of the user")
    (tmp_path / "other.0.et").write_text("another job's")
    ci.write(trace, tmp_path / "job.et")
    ci.write(trace.rank(0), tmp_path / "job.et")
    remaining = sorted(p.name for p in tmp_path.iterdir())
    assert remaining == ["job.0.et", "job.comm_groups.json", "notes.txt", "other.0.et"]


WAITS = {
    # the host waits in a call for work that was launched before
    "synchronise": [
        call("hipLaunchKernel", 0, 10, 1), kernel("gemm", 10, 500, 1),
        call("hipDeviceSynchronize", 15, 505, 9), call("hipLaunchKernel", 540, 10, 2),
        kernel("gemm", 550, 100, 2),
    ],
    # a copy that blocks launches what it waits for
    "copy": [
        call("hipMemcpyWithStream", 0, 130, 1), kernel("copy", 20, 100, 1),
        call("hipLaunchKernel", 140, 10, 2), kernel("gemm", 150, 100, 2),
    ],
    # another thread launches while one waits
    "threads": [
        call("hipLaunchKernel", 0, 10, 1), kernel("gemm", 10, 500, 1),
        call("hipStreamSynchronize", 12, 508, 9), call("hipLaunchKernel", 100, 10, 2, tid=7),
        kernel("gemm", 510, 100, 2), call("hipFree", 550, 5, 11),
    ],
    "at the end": [
        call("hipLaunchKernel", 0, 10, 1), kernel("gemm", 10, 500, 1),
        call("hipDeviceSynchronize", 15, 515, 9),
    ],
}  # fmt: skip


def with_wait(trace: ci.Trace) -> ci.Trace:
    """Add a SYNC edge: the first waiting call waits for the first kernel."""
    name = np.array(trace.names())[trace.array("name")]
    kernels = np.flatnonzero(trace.array("kind") == Kind.KERNEL)
    waits = [i for i, n in enumerate(name) if n.startswith("hip") and n != "hipLaunchKernel"]
    return trace.with_edges(kernels[:1], np.array(waits[:1]), EdgeKind.SYNC)


@pytest.mark.parametrize("faster", [1, 5])
@pytest.mark.parametrize("name", WAITS)
def test_the_host_continues_when_the_work_has_ended(tmp_path: Path, name: str, faster: int) -> None:
    path = write(tmp_path / "rank0.json", WAITS[name], baseTimeNanoseconds=BASE)
    trace = ci.read(path)
    trace = trace if (trace.array("kind", "edges") == EdgeKind.SYNC).any() else with_wait(trace)
    ci.write(trace, tmp_path / "job.et")
    _, nodes = messages(tmp_path / "job.0.et")
    first = next(n for n in nodes if attributes(n)["kind"] == "kernel")
    saved = first.duration_micros - first.duration_micros // faster
    first.duration_micros -= saved
    assert replay_us(nodes) == pytest.approx(measured_ns(trace, "full") // 1000 - saved, abs=2)


def test_a_wait_for_work_that_began_before_its_launch_closes_no_circle(tmp_path: Path) -> None:
    events = [
        call("hipDeviceSynchronize", 6, 100, 9), call("hipLaunchKernel", 6, 0, 1),
        kernel("gemm", 4, 2, 1), call("hipFree", 120, 5, 11),
    ]  # fmt: skip
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    assert (trace.array("kind", "edges") == EdgeKind.SYNC).any()
    ci.write(trace, tmp_path / "job.et")
    _, nodes = messages(tmp_path / "job.0.et")
    assert len(nodes) >= 3
    assert replay_us(nodes) == pytest.approx(measured_ns(trace, "full") // 1000, abs=5)


def test_writing_takes_less_than_420_bytes_an_event(tmp_path: Path) -> None:
    """Not all columns of a plan twice at once, nor the timing model or attributes with them, nor what they were made of."""
    count = 150_000
    events = [call("hipLaunchKernel", 10 * i, 2, i) for i in range(count)]
    events += [kernel("gemm", 10 * i + 5, 8, i) for i in range(0, count, 10)]
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    tracemalloc.start()
    try:
        ci.write(trace, tmp_path / "job.et")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 420 * len(events)
