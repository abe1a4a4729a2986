"""ETs in which each stream of a GPU is an NPU of its own."""

import json
from pathlib import Path

import predictions
import pytest
import scaled_ets
from et_runs import end_ns
from kineto_files import BASE, call, kernel, write
from mixed_jobs import mixed_job
from programs import families
from programs.program import Change
from programs.simulation import simulate
from schedule import attributes, messages
from slow import slow_from

import chopper_interop as ci
from chopper_interop.converters.chakra import CHAKRA
from chopper_interop.errors import ReadError, UsageError
from chopper_interop.schemas.chakra import NodeType

pytest.importorskip("chakra", reason="MLCommons' package (mlc-chakra) is not installed")

SEND, RECV, COLL, COMP = NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL, NodeType.COMP


def two_streams(folder: Path) -> ci.Trace:
    """Two ranks with an all-reduce and an all-gather at the same time, and one with a second compute stream."""
    folder = folder / "in"
    folder.mkdir()
    group = {
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "dtype": "Float",
        "Group size": 2,
    }
    kinds = (("allreduce", 8, 1000, 1000), ("_allgather_base", 9, 500, 1000))
    for rank in range(2):
        events = [call("cudaLaunchKernel", 2 * k, 1, k) for k in range(1, 5 + rank)]
        events += [kernel("gemm", 10, 40, 1, stream=7), kernel("gemm", 160, 50, 2, stream=7)]
        for k, (name, stream, given, got) in enumerate(kinds):
            about = {
                **group,
                "Collective name": name,
                "In msg nelems": given,
                "Out msg nelems": got,
            }
            events.append(kernel(f"nccl_{name}", 60, 90, 3 + k, stream=stream, **about))
        if rank:
            events.append(kernel("other", 12, 30, 5, stream=20))
        header = {"distributedInfo": {"rank": rank, "world_size": 2}}
        write(folder / f"rank{rank}.json", events, baseTimeNanoseconds=BASE, **header)
    return ci.read(folder)


@pytest.mark.parametrize(
    ("family", "mode"),
    slow_from([("streams", "full"), ("streams", "gpu"), ("fsdp", "full"), ("fsdp", "gpu")], 1),
)
def test_streams_react_as_the_model_does(tmp_path: Path, family: str, mode: str) -> None:
    """With one slot for several streams they are 3 to 7 % off."""
    ran = simulate(families.FAMILIES[family](8103))
    trace = predictions.read(ran, tmp_path / "in")
    cases = predictions.cases_of(ran, predictions.SETS["wide"])
    cases = [case for case in cases if case.change.of != "host"]
    ci.write(trace, tmp_path / "et/job.et", mode=mode, streams="npus")
    before = end_ns(tmp_path / "et/job")
    for case, gain in zip(cases, predictions.gains_ns(trace, cases), strict=True):
        scaled_ets.write(tmp_path / "et/job", tmp_path / "scaled/job", case.change, replay=True)
        off = before - end_ns(tmp_path / "scaled/job") - gain
        assert abs(off) < 0.02 * case.before_ns, case.name


@pytest.mark.parametrize("mode", ["gpu", "full"])
def test_each_stream_has_an_npu(tmp_path: Path, mode: str, run) -> None:
    ci.write(two_streams(tmp_path), tmp_path / "job.et", mode=mode, streams="npus")
    ets = {int(path.suffixes[-2][1:]): messages(path)[1] for path in tmp_path.glob("job.*.et")}
    # ranks 0 and 1; the same stream of both; the other; one that rank 1 alone has
    assert sorted(ets) == list(range(8))
    groups = json.loads((tmp_path / "job.comm_groups.json").read_text())
    for k, name in ((2, "nccl_allreduce"), (4, "nccl__allgather_base")):
        for rank in range(2):
            (node,) = (n for n in ets[k + rank] if n.type == COLL)
            assert node.name == name
            assert groups[attributes(node)["pg_name"]] == [k, k + 1]
    assert [n.name for n in ets[7] if n.type == COMP and attributes(n)["kind"] == "kernel"] == [
        "other"
    ]
    assert [n.name for n in ets[6]] == ["begin"]
    for rank in range(2):
        assert not [n for n in ets[rank] if n.type == COLL]
        work = {n.name for n in ets[rank] if "npu" in attributes(n)}
        assert work == {"nccl_allreduce", "nccl__allgather_base"} | ({"other"} if rank else set())
    status, output, _ = run("check", tmp_path / "job")
    assert status == 0, output
    assert "2 ranks and 6 streams, for 8 NPUs" in output


def test_streams_that_share_an_npu_wait_for_each_other_alone(tmp_path: Path, run) -> None:
    """Rank 0 has both collectives on one stream, so that both streams of rank 1 are one NPU."""
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "dtype": "Float", "Group size": 2,
             "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000}  # fmt: skip
    (tmp_path / "in").mkdir()
    for rank in range(2):
        # the second of rank 1 is launched early, and begins late for no reason
        work = [kernel("nccl_a", 60, 50, 1, stream=8, **group), kernel("gemm", 10, 5, 3, stream=7),
                kernel("nccl_b", 105 if rank else 110, 55 if rank else 50, 2, stream=8 + rank, **group)]  # fmt: skip
        events = [*work, *(call("cudaLaunchKernel", 2 * k, 1, k) for k in (1, 2, 3))]
        header = {"distributedInfo": {"rank": rank, "world_size": 2}}
        write(tmp_path / f"in/rank{rank}.json", events, baseTimeNanoseconds=BASE, **header)
    ci.write(ci.read(tmp_path / "in"), tmp_path / "job.et", mode="gpu", streams="npus")
    assert len(list(tmp_path.glob("job.*.et"))) == 4
    # from the first kernel's start at 10 µs
    assert end_ns(tmp_path / "job") == pytest.approx(150_000, abs=2000)
    assert run("check", tmp_path / "job")[0] == 0


@pytest.mark.parametrize(
    ("mode", "second", "streams"),
    [("gpu", 8, "npus"), ("full", 8, "npus"), ("gpu", 7, "slots"), ("kernels", 8, "slots")],
)
def test_streams_have_npus_where_one_slot_would_react_otherwise(
    tmp_path: Path, mode: str, second: int, streams: str
) -> None:
    """Kernels of two streams, or of one, that follow each other and would run at the same time if they were slower."""
    events = []
    for k in range(10):
        for n, stream in enumerate((7, second)):
            number, at = 2 * k + n + 1, 30 + 100 * k + 50 * n
            events += [call("cudaLaunchKernel", number, 1, number)]
            events += [kernel("gemm", at, 45, number, stream=stream)]
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    issues = {i.code for i in ci.write(trace, tmp_path / "et/job.et", mode=mode)}
    ets = sorted((tmp_path / "et").glob("job.*.et"))
    assert len(ets) == (2 if streams == "npus" else 1)
    facts = {a.name: a.string_val or a.int64_val for a in messages(ets[0])[0].attr}
    assert facts["streams"] == streams
    assert facts.get("npus") == (2 if streams == "npus" else None)
    usage = CHAKRA.usage_of(trace, tmp_path / "et/job.et")
    assert ("2 NPUs" in usage) == (streams == "npus")
    assert "et-reacts-otherwise" not in issues


@pytest.mark.parametrize("npus", [2, None])
def test_copies_that_faster_kernels_no_longer_hide_have_an_npu(
    tmp_path: Path, npus: int | None
) -> None:
    """In one slot they had no time of their own: kernels x 0.5 were 17 % too fast, kernels and copies x 0.5 right.

    Without copies kernels alone are all compute, which is tried already.
    """
    events = []
    for k in range(10):
        at, number = 200 * k, 10 * k
        events += [
            call("cudaLaunchKernel", at, 1, number + 1), kernel("gemm", at + 6, 80, number + 1, stream=7),
            call("cudaDeviceSynchronize", at + 2, 87, number + 2),
            call("cudaLaunchKernel", at + 90, 1, number + 3), kernel("relu", at + 96, 70, number + 3, stream=7),
            call("cudaDeviceSynchronize", at + 94, 75, number + 5),
        ]  # fmt: skip
        copy = kernel("Memcpy HtoD (Pinned -> Device)", at + 98, 66, number + 4, stream=8)
        if npus:
            events += [
                call("cudaMemcpyAsync", at + 92, 1, number + 4),
                copy | {"cat": "gpu_memcpy"},
            ]
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et", mode="gpu")
    facts = {a.name: a.int64_val for a in messages(tmp_path / "job.0.et")[0].attr}
    assert facts.get("npus") == npus
    assert ("half_kernels_deviation_ns" in facts) == bool(npus)
    change = Change("compute", 0.5)
    scaled_ets.write(tmp_path / "job", tmp_path / "scaled/job", change, replay=True)
    text = "scale=0.5 where kind == 'kernel'"
    (predicted,) = ci.analyze(trace, "what_if", change=text).summary["changes"]
    gain = end_ns(tmp_path / "job") - end_ns(tmp_path / "scaled/job")
    assert gain == pytest.approx(predicted["gain_ns"], abs=0.02 * facts["span_ns"])


def test_streams_share_slots_where_npus_react_no_better(tmp_path: Path) -> None:
    """What reacts otherwise there are the threads of the host."""
    events = mixed_job(25)
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    for streams in ("npus", "auto"):
        issues = {i.code for i in ci.write(trace, tmp_path / f"{streams}.et", streams=streams)}
        assert "et-reacts-otherwise" in issues
    assert len(list(tmp_path.glob("npus.*.et"))) > len(list(tmp_path.glob("auto.*.et"))) == 1


def test_collectives_at_the_same_time_have_npus(tmp_path: Path) -> None:
    ci.write(two_streams(tmp_path), tmp_path / "et/job.et")
    assert len(list((tmp_path / "et").glob("job.*.et"))) > 2


def test_npus_that_were_chosen_are_those_that_are_asked_for(tmp_path: Path) -> None:
    """Of ranks that begin to record at different times."""
    trace = predictions.read(simulate(families.pipeline(10402)), tmp_path / "in")
    for streams in ("auto", "npus"):
        ci.write(trace, tmp_path / streams / "job.et", mode="gpu", streams=streams)
    for path in (tmp_path / "npus").iterdir():
        assert path.read_bytes() == (tmp_path / "auto" / path.name).read_bytes()


def test_all_messages_have_both_ends(tmp_path: Path) -> None:
    ci.write(two_streams(tmp_path), tmp_path / "job.et", streams="npus")
    ends = ("comm_src", "comm_dst", "comm_tag", "comm_size")
    sent, got = [], []
    for path in tmp_path.glob("job.*.et"):
        for node in messages(path)[1]:
            if node.type in (SEND, RECV):
                listed = sent if node.type == SEND else got
                listed.append(tuple(attributes(node)[name] for name in ends))
    assert len(set(sent)) == len(sent) > 0
    assert sorted(sent) == sorted(got)


def test_a_roofline_model_finds_what_it_reads_of_streams(tmp_path: Path) -> None:
    ran = simulate(families.streams(8103))
    ci.write(predictions.read(ran, tmp_path / "in"), tmp_path / "job.et", streams="npus")
    for path in tmp_path.glob("job.*.et"):
        for node in messages(path)[1]:
            facts = attributes(node)
            if node.type == COMP and not facts["is_cpu_op"]:
                assert facts["num_ops"] > 0
                assert facts["tensor_size"] > 0


def test_what_streams_did_is_read_back(tmp_path: Path) -> None:
    trace = two_streams(tmp_path)
    ci.write(trace, tmp_path / "et/job.et", streams="npus")
    back = ci.read(tmp_path / "et")
    assert list(back.ranks) == [0, 1]
    for name in ("nccl_allreduce", "nccl__allgather_base", "other", "gemm"):
        for column in ("ts", "dur", "collective", "bytes", "group"):
            findings_of_ets, wanted = (
                t.nodes.filter(t.is_text("name", (name,)))[column].to_pylist()
                for t in (back, trace)
            )
            assert sorted(map(str, findings_of_ets)) == sorted(map(str, wanted)), (name, column)
    assert (
        "peer" not in back.nodes.column_names or not back.nodes["peer"].is_valid().to_numpy().any()
    )
    with pytest.raises(ReadError, match="one stream"):
        ci.read(tmp_path / "et/job.2.et")


def test_a_simulation_of_streams_is_read_as_its_ranks(tmp_path: Path) -> None:
    ci.write(two_streams(tmp_path), tmp_path / "et/job.et", streams="npus")
    lines = []
    for path in (tmp_path / "et").glob("job.*.et"):
        for node in messages(path)[1]:
            about = f"sys->id={path.suffixes[-2][1:]}, tick={{}}, node->id={node.id}, node->name={node.name}, node->type={node.type}"
            for event, tick in (("issue", 1000 * node.id), ("callback", 1000 * node.id + 7)):
                lines.append(
                    f"[2026-01-01 00:00:00.000] [workload] [debug] {event},{about.format(tick)}"
                )
    (tmp_path / "log.log").write_text("\n".join(lines) + "\n")
    trace = ci.read(tmp_path / "log.log", ets=str(tmp_path / "et/job"))
    assert list(trace.ranks) == [0, 1]
    assert trace.is_text("name", ("nccl_allreduce",)).sum() == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [({"streams": "all"}, "streams=all"), ({"streams": "npus", "mode": "kernels"}, "needs hosts")],
)
def test_other_ways_of_running_streams_are_refused(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        ci.write(two_streams(tmp_path), tmp_path / "job.et", **options)
