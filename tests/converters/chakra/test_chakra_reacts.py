"""ETs react to changes: what waited gets faster, and nothing else."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import predictions
import pytest
import scaled_ets
from et_runs import end_ns
from issue_counts import counts
from kineto_files import (
    BASE,
    blocking_copies,
    call,
    copies_on_a_free_stream,
    kernel,
    span,
    uploads,
    write,
)
from mixed_jobs import mixed_job
from programs import families
from programs.program import Change
from programs.simulation import simulate
from read_once import read_once
from schedule import attributes, messages, replay_us
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.converters.chakra import CHAKRA, check, comms
from chopper_interop.converters.chakra import run as simulator
from chopper_interop.converters.chakra.checks.findings import Findings
from chopper_interop.converters.chakra.checks.jobs import job_of
from chopper_interop.converters.chakra.decode import decode
from chopper_interop.converters.chakra.planning.clocks import on_one_clock
from chopper_interop.converters.chakra.reaction import DEVIATIONS
from chopper_interop.io.inputs import read
from chopper_interop.schemas.chakra import CommType, NodeType
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.timing.model import timing_of

pytest.importorskip("chakra", reason="MLCommons' package (mlc-chakra) is not installed")

COMPUTE = ("kernel", "memcpy", "memset")
KERNEL_TRACE = (
    "Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,"
    "Start_Timestamp,End_Timestamp"
)


def scaled_replay_us(path: Path, factor: float, kinds: tuple[str, ...] = COMPUTE) -> int:
    """Length of one rank's ET with the durations of these kinds of nodes changed."""
    _, nodes = messages(path)
    for node in nodes:
        if attributes(node)["kind"] in kinds:
            node.duration_micros = round(node.duration_micros * factor)
    return replay_us(nodes)


@pytest.mark.parametrize("mode", ["gpu", "full"])
def test_a_host_that_waits_in_a_copy_goes_on_sooner_if_kernels_are_faster(
    tmp_path: Path, mode: str
) -> None:
    trace = ci.read(blocking_copies(tmp_path))
    ci.write(trace, tmp_path / "job.et", mode=mode)
    measured = replay_us(messages(tmp_path / "job.0.et")[1])
    faster = scaled_replay_us(tmp_path / "job.0.et", 0.1, ("kernel",))
    change = "scale=0.1 where kind == 'kernel'"
    predicted = ci.analyze(trace, "what_if", change=change).summary
    saved_us = predicted["changes"][0]["gain_ns"] / 1000
    assert measured - faster == pytest.approx(saved_us, abs=0.02 * faster)
    # by hand: a step is 10 kernels' worth of 1000 µs, the copy, its return, and the host's 300 µs
    assert faster == pytest.approx(10 * (1000 + 5 + 5 + 12 + 300), rel=0.03)


@pytest.mark.parametrize("mode", ["gpu", "full"])
def test_what_a_host_does_while_its_copy_still_runs_takes_no_time(
    tmp_path: Path, mode: str
) -> None:
    """It was 40 µs late behind each copy, and from the second on waited for none, in whatever time."""
    trace = ci.read(
        write(tmp_path / "rank0.json", uploads("Pageable", 0), baseTimeNanoseconds=BASE)
    )
    ci.write(trace, tmp_path / "job.et", mode=mode)
    work = np.isin(trace.array("kind"), GPU_WORK)
    ts = trace.array("ts")[work]
    first, last = (ts.min(), (ts + trace.array("dur")[work]).max())
    measured = replay_us(messages(tmp_path / "job.0.et")[1])
    assert measured == pytest.approx((last - first) / 1000, abs=25)
    faster = scaled_replay_us(tmp_path / "job.0.et", 0.1, ("kernel",))
    assert measured - faster == pytest.approx(6 * 900, abs=25)


@pytest.mark.parametrize("mode", ["gpu", "full"])
def test_a_call_that_copies_first_issues_the_copy(tmp_path: Path, mode: str) -> None:
    """That is work of the host, no unexplained delay of the copy; with the copy's end the call has returned."""
    events = copies_on_a_free_stream("cudaMemcpyAsync", 265)
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et", mode=mode)
    nodes = messages(tmp_path / "job.0.et")[1]
    assert not {"unexplained delay", "return of a wait"} & {node.name for node in nodes}
    assert replay_us(nodes) == pytest.approx(3300, abs=10)


@pytest.mark.parametrize("mode", ["gpu", "full"])
def test_what_a_host_does_while_the_longer_of_two_copies_runs_takes_no_time(
    tmp_path: Path, mode: str
) -> None:
    """The shorter one begins and ends while the longer one runs; what the host does then was 130 µs of its own."""
    name, is_copy = "Memcpy HtoD (Host -> Device)", {"cat": "gpu_memcpy"}
    events = []
    for at in range(0, 4200, 420):
        events += [
            call("hipMemcpyWithStream", at, 30, at + 1),
            kernel(name, at + 8, 292, at + 1, stream=1) | is_copy,
            call("hipMemcpyWithStream", at + 35, 30, at + 2),
            kernel(name, at + 40, 30, at + 2, stream=2) | is_copy,
            span("cpu_op", "aten::mm", at + 70, 150), call("hipLaunchKernel", at + 200, 5, at + 3),
            kernel("gemm", at + 305, 100, at + 3, stream=0),
        ]  # fmt: skip
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et", mode=mode)
    assert replay_us(messages(tmp_path / "job.0.et")[1]) == pytest.approx(9 * 420 + 405 - 8, abs=10)


@pytest.mark.parametrize("mode", slow_from(["full", "gpu"], 1))
def test_ets_written_again_react_as_they_did(tmp_path: Path, mode: str) -> None:
    """Hosts are planned again: a copy that a host waited for was its own time then, 94 ms where the job has 13."""
    trace = ci.read(blocking_copies(tmp_path))
    reactions, gains = [], []
    for trip in range(3):
        path = tmp_path / str(trip) / "job.et"
        path.parent.mkdir()
        ci.write(trace, path, mode=mode)
        gains.append(gain_ns(trace, "scale=0.1 where kind == 'kernel'"))
        trace = ci.read(path.with_name("job.0.et"))
        reactions.append(
            [scaled_replay_us(path.with_name("job.0.et"), by, ("kernel",)) for by in (1, 0.1, 2)]
        )
    for again in reactions[1:]:
        assert again == pytest.approx(reactions[0], rel=0.001)
    assert gains == pytest.approx([90_000_000] * 3, rel=0.001)
    assert reactions[0][1] < 0.2 * reactions[0][0]


@pytest.mark.parametrize("mode", slow_from(["gpu", "full"], 1))
@pytest.mark.parametrize(
    ("family", "seed"),
    slow_from([("copies", 10710), ("threads", 10720), ("backlog", 10712), ("fsdp", 10713), ("full_queue", 10714),
               ("streams", 10715), ("forks", 10716), ("ddp", 10717), ("host_bound", 10718), ("gpu_bound", 10719)], 1),
)  # fmt: skip
def test_programs_written_again_react_as_they_did(
    tmp_path: Path, family: str, seed: int, mode: str
) -> None:
    """Of mode gpu up to 60 % of the step otherwise while waits became the host's own time."""
    trace = predictions.read(simulate(families.FAMILIES[family](seed)), tmp_path / "in")
    ends = []
    for trip in range(2):
        path = tmp_path / str(trip) / "job"
        ci.write(trace, path.with_suffix(".et"), mode=mode)
        ends.append([end_ns(path)])
        for factor in (0.1, 2):
            changed = tmp_path / f"{trip} x {factor}" / "job"
            scaled_ets.write(path, changed, Change("compute", factor), replay=True)
            ends[-1].append(end_ns(changed))
        trace = ci.read(path.parent)
    assert ends[1] == pytest.approx(ends[0], abs=0.01 * ends[0][0])


@pytest.mark.slow
def test_threads_that_wait_for_each_other_are_read_back(shared: Path, tmp_path: Path) -> None:
    """A range that waited within for another thread closed a cycle, so that launches were lost: 104 ms unexplained."""
    trace = read_once(shared / "pytorch/torchrec_4rank_v100")
    ci.write(trace, tmp_path / "job.et")
    again = ci.read(tmp_path)
    assert timing_of(again).graph.left_out == 0
    paths = [ci.analyze(one, "critical_path").summary for one in (trace, again)]
    for column in ("host_ns", "runtime_ns", "compute_ns", "comm_ns"):
        assert abs(paths[1][column] - paths[0][column]) < 0.01 * paths[0]["path_ns"]


@pytest.mark.parametrize("mode", ["gpu", "full"])
def test_steps_of_ets_are_as_long_as_in_the_job(tmp_path: Path, mode: str) -> None:
    """Few launches are known in mode gpu: waits of the first step were taken for those of work before it, and it had 0 ms."""
    trace = predictions.read(simulate(families.FAMILIES["full_queue"](10731)), tmp_path / "in")
    ci.write(trace, tmp_path / "et" / "job.et", mode=mode)
    steps = [step_lengths_ns(one) for one in (trace, ci.read(tmp_path / "et"))]
    assert steps[1] == pytest.approx(steps[0], rel=0.1)


def step_lengths_ns(trace: ci.Trace) -> list[int]:
    return [window.span_ns for window in windows.job_windows(trace, "each")]


def gain_ns(trace: ci.Trace, change: str) -> int:
    """What a change is predicted to gain."""
    return ci.analyze(trace, "what_if", change=change).summary["changes"][0]["gain_ns"]


@pytest.mark.parametrize("mode", ["gpu", "full"])
def test_a_stream_that_no_longer_waits_for_its_host_keeps_its_least_times(
    tmp_path: Path, mode: str
) -> None:
    """Two microseconds between kernels, which the first ones show, bind where kernels become longer."""
    at, events = 0, []
    for i in range(410):
        lasts = 60 if i < 10 else 10
        events += [call("hipLaunchKernel", 15 * i, 5, i + 1), kernel("gemm", 10 + at, lasts, i + 1)]
        at = max(at + lasts + 2, 15 * (i + 1))
    events.append(call("hipDeviceSynchronize", 15 * 410, 40, 1000))
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et", mode=mode)
    measured = replay_us(messages(tmp_path / "job.0.et")[1])
    slower = scaled_replay_us(tmp_path / "job.0.et", 2)
    (predicted,) = ci.analyze(trace, "what_if", change="scale=2 where kind == 'kernel'").summary[
        "changes"
    ]
    assert slower - measured == pytest.approx(-predicted["gain_ns"] / 1000, abs=10)
    # by hand: ten kernels of 120 and 400 of 20, each 2 behind the one before, and the return of the host's wait
    assert slower == pytest.approx(10 * 122 + 400 * 22, abs=50)


CHANGES = {"x0.1": 0.1, "x0.5": 0.5, "x2": 2.0}
JOBS = {
    "ddp": "pytorch/ddp_resnet_4rank_amd",
    "dlrm": "pytorch/dlrm_8rank_v100",
    "generation": "pytorch/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
}


@pytest.fixture(scope="module")
def jobs(shared: Path) -> dict[str, ci.Trace]:
    return {name: read_once(shared / path) for name, path in JOBS.items()}


# of the largest job one change, and slowly all
@pytest.mark.parametrize(
    ("job", "change"),
    slow_from(sorted(product(JOBS, CHANGES), key=lambda case: case[0] != "generation"), 3),
)
def test_real_jobs_react_as_the_model_does(
    jobs: dict[str, ci.Trace], tmp_path: Path, job: str, change: str
) -> None:
    trace, factor = jobs[job], CHANGES[change]
    ci.write(trace, tmp_path / "job.et", mode="gpu")
    text = f"scale={factor} where kind in {list(COMPUTE)}"
    (predicted,) = ci.analyze(trace, "what_if", change=text).summary["changes"]
    gain_us = predicted["gain_ns"] / 1000
    before = joined_us(tmp_path, 1.0)
    after = joined_us(tmp_path, factor)
    assert before - after == pytest.approx(gain_us, abs=0.02 * after)


def joined_us(folder: Path, factor: float) -> int:
    """Length of the ETs of all ranks, whose collectives wait for each other, with compute changed."""
    ets = [decode(read(path).copy()) for path in sorted(folder.glob("job.*.et"))]
    job = job_of(ets, check.read_groups(folder / "job", len(ets), Findings()))
    texts = [(codes.tolist(), names) for codes, names in (et.texts("kind") for et in ets)]
    changes = [names[c] in COMPUTE if c >= 0 else False for codes, names in texts for c in codes]
    scaled = np.rint(job.duration * factor).astype(np.int64)
    duration = np.maximum(np.where(changes, scaled, job.duration), 1)
    return simulator.run(job._replace(duration=duration), len(ets)).makespan_us


@pytest.mark.parametrize("mode", slow_from(["gpu", "full"], 1))
def test_a_job_whose_hosts_wait_for_seconds_ends_when_measured(
    shared: Path, tmp_path: Path, mode: str
) -> None:
    """A delay that a simulator starts too early would hold the host's slot for as long."""
    paths = sorted((shared / "pytorch/torchrec_two_runs_v100").glob("*internal_240*"))
    ci.write(ci.read(*paths), tmp_path / "job.et", mode=mode)
    findings = check.check(tmp_path / "job", 0.005)
    assert findings.passes, [str(entry) for entry in findings.entries]


@pytest.mark.parametrize(
    ("job", "mode"), slow_from([*product(reversed(JOBS), ["gpu"]), *product(reversed(JOBS), ["full"])], 1)
)  # fmt: skip
def test_each_rank_ends_when_measured(
    jobs: dict[str, ci.Trace], tmp_path: Path, job: str, mode: str, run
) -> None:
    ci.write(jobs[job], tmp_path / "job.et", mode=mode)
    status, output, _ = run("check", tmp_path / "job", "--tolerance", "0.05")
    assert status == 0, output
    assert "measured" in output


def test_a_wrong_duration_fails_the_check(tmp_path: Path, run) -> None:
    ci.write(ci.read(blocking_copies(tmp_path)), tmp_path / "job.et", mode="gpu")
    assert run("check", tmp_path / "job")[0] == 0
    metadata, nodes = messages(tmp_path / "job.0.et")
    work = next(n for n in nodes if attributes(n)["kind"] == "kernel")
    work.duration_micros += 3000
    scaled_ets.write_nodes(tmp_path / "job.0.et", metadata, nodes)
    status, output, _ = run("check", tmp_path / "job")
    assert status == 1
    assert "\ntime: rank 0: it ends after" in output
    assert "was measured to take" in output
    assert "they run to the end, but not in the measured time" in output
    assert run("check", tmp_path / "job", "--tolerance", "5")[0] == 0


def pipeline_job(tmp_path: Path) -> Path:
    """Two ranks: the first sends what the second receives, and that is the last they do."""
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "dtype": "Float"}
    for rank, name in enumerate(("send", "recv")):
        args = {**group, "Collective name": name, "In msg nelems": 1000, "Out msg nelems": 1000,
                "Group size": 2, "Rank": rank, "Src Rank": 0, "Dst Rank": 1}  # fmt: skip
        events = [
            call("hipLaunchKernel", 0, 5, 1), kernel("gemm", 10, 100, 1),
            {**call("record_param_comms", 20, 10, 7), "cat": "cpu_op", "args": args},
            call("hipLaunchKernel", 22, 5, 2), kernel("ncclDevKernel_SendRecv", 120, 50, 2, stream=9),
        ]  # fmt: skip
        events[-1]["args"] |= args
        write(
            tmp_path / f"rank{rank}.json",
            events,
            baseTimeNanoseconds=BASE,
            distributedInfo={"rank": rank, "world_size": 2},
        )
    return tmp_path


@pytest.mark.parametrize("mode", ["gpu", "full"])
def test_no_rank_ends_with_a_send_or_receive(tmp_path: Path, mode: str, run) -> None:
    (tmp_path / "in").mkdir()
    trace = ci.read(pipeline_job(tmp_path / "in"))
    ci.write(trace, tmp_path / "job.et", mode=mode)
    for rank in range(2):
        _, nodes = messages(tmp_path / f"job.{rank}.et")
        sends = {n.id for n in nodes if n.type in (NodeType.COMM_SEND, NodeType.COMM_RECV)}
        assert len(sends) == 2  # the message, and that its receiver is there
        assert sends <= {d for n in nodes for d in n.data_deps}
    assert run("check", tmp_path / "job")[0] == 0
    for rank in range(2):
        metadata, nodes = messages(tmp_path / f"job.{rank}.et")
        scaled_ets.write_nodes(
            tmp_path / f"job.{rank}.et",
            metadata,
            [n for n in nodes if attributes(n).get("cause") != "end"],
        )
    status, output, _ = run("check", tmp_path / "job")
    assert status == 1
    assert "ASTRA-sim aborts" in output


def rendezvous(folder: Path) -> ci.Trace:
    """A send that begins 90 µs before its receive, and ends with it; both ranks compute after it."""
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "dtype": "Float"}
    for rank, (name, began) in enumerate((("send", 110), ("recv", 200))):
        args = {**group, "Collective name": name, "In msg nelems": 1000, "Out msg nelems": 1000,
                "Group size": 2, "Rank": rank, "Src Rank": 0, "Dst Rank": 1}  # fmt: skip
        events = [call("hipLaunchKernel", 2 * k, 1, k) for k in (1, 2, 3)]
        events += [kernel("gemm", 10, began - 10, 1), kernel("gemm", 250, 100, 3)]
        events += [kernel("ncclDevKernel_SendRecv", began, 250 - began, 2, **args)]
        header = {"distributedInfo": {"rank": rank, "world_size": 2}}
        write(folder / f"rank{rank}.json", events, baseTimeNanoseconds=BASE, **header)
    return ci.read(folder)


@pytest.mark.parametrize("mode", slow_from(["gpu", "full"], 1))
@pytest.mark.parametrize(("rank", "factor"), [(1, 0.1), (1, 1.5), (0, 0.1), (0, 1.5)])
def test_a_send_waits_for_its_receiver(
    tmp_path: Path, run, mode: str, rank: int, factor: float
) -> None:
    trace = rendezvous(tmp_path)
    ci.write(trace, tmp_path / "et/job.et", mode=mode)
    assert run("check", tmp_path / "et/job")[0] == 0
    change = Change("rank", factor, rank=rank)
    scaled_ets.write(tmp_path / "et/job", tmp_path / "changed/job", change, replay=False)
    text = f"scale={factor} where rank == {rank} and kind == 'kernel'"
    before, after = ci.analyze(trace, "what_if", change=text).rows["after_ns"].to_pylist()
    for folder, expected in (("et", before), ("changed", after)):
        job = job_at(tmp_path / folder)
        ran = simulator.run(job, len(set(job.rank.tolist())))
        assert ran.makespan_us == pytest.approx(expected / 1000, abs=9)  # latencies of launches


def job_at(folder: Path) -> simulator.JobNodes:
    """The job of a folder of ETs, as a simulator sees it."""
    ets = [decode(read(path).copy()) for path in sorted(folder.glob("job.*.et"))]
    return job_of(ets, check.read_groups(folder / "job", len(ets), Findings()))


@pytest.mark.parametrize("mode", ["gpu", "full"])
@pytest.mark.parametrize(("family", "seed"), [("full_queue", 8104), ("copies", 8301)])
def test_a_host_that_need_not_wait_any_more_takes_no_latency(
    tmp_path: Path, family: str, seed: int, mode: str
) -> None:
    """Latencies of work, and of returns from waits, are time of the GPU, which hosts have only while they wait."""
    ran = simulate(families.FAMILIES[family](seed))
    trace = predictions.read(ran, tmp_path / "in")
    cases = predictions.cases_of(ran, predictions.SETS["wide"])
    (case,) = (c for c in cases if c.change == Change("compute", 0.1))
    (gain_ns,) = predictions.gains_ns(trace, [case])
    ci.write(trace, tmp_path / "et/job.et", mode=mode)
    scaled_ets.write(tmp_path / "et/job", tmp_path / "scaled/job", case.change, replay=True)
    before, after = (
        1000 * replay_us(messages(tmp_path / name / "job.0.et")[1]) for name in ("et", "scaled")
    )
    assert abs(before - after - gain_ns) < 0.02 * case.before_ns


def test_a_slower_host_takes_no_longer_to_wake_up(tmp_path: Path) -> None:
    """Threads that hand over to each other: a return of 40 µs is none of the host's work (10.7 % too late with it)."""
    ran = simulate(families.threads(9709))
    trace = predictions.read(ran, tmp_path / "in")
    cases = predictions.cases_of(ran, predictions.SETS["wide"])
    (case,) = (c for c in cases if c.change == Change("host", 2.0))
    (gain_ns,) = predictions.gains_ns(trace, [case])
    ci.write(trace, tmp_path / "et/job.et", streams="npus")
    scaled_ets.write(tmp_path / "et/job", tmp_path / "scaled/job", case.change, replay=True)
    before, after = (end_ns(tmp_path / name / "job") for name in ("et", "scaled"))
    assert abs(before - after - gain_ns) < 0.02 * case.before_ns


@pytest.mark.parametrize("inner", [[], [{**call("aten::add_", 4, 10, 0), "cat": "cpu_op"}]])
def test_a_thread_that_waits_within_a_range_does_not_hold_up_another(
    tmp_path: Path, inner: list[dict]
) -> None:
    """A main thread does nothing while autograd's launches, but the range around its step goes on.

    Also where an operation that it called before ended in the same nanosecond as its caller.
    """
    events = [
        {**call("## backward ##", 0, 4000, 0), "cat": "user_annotation"},
        {**call("aten::add", 2, 12, 0), "cat": "cpu_op"}, *inner,
        call("cudaLaunchKernel", 5, 5, 1), kernel("gemm", 15, 10, 1),
        call("cudaLaunchKernel", 3900, 5, 2), kernel("gemm", 3910, 10, 2),
    ]  # fmt: skip
    for k in range(10):  # autograd's launches
        events += [
            call("cudaLaunchKernel", 1500 + 100 * k, 5, 10 + k, tid=200),
            kernel("gemm", 1510 + 100 * k, 50, 10 + k),
        ]
    ci.write(
        ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE)),
        tmp_path / "job.et",
        mode="gpu",
    )
    _, nodes = messages(tmp_path / "job.0.et")
    facts = {n.id: attributes(n) for n in nodes}
    work = [n for n in nodes if facts[n.id]["kind"] == "kernel"]
    launches = [{d for d in n.data_deps if facts[d]["is_cpu_op"]} for n in work[2:11]]
    assert all(launches)
    assert len(set.union(*launches)) == len(launches)


def late_host(folder: Path) -> ci.Trace:
    """Two ranks that reduce at once, and whose recorded hosts begin when the GPU has long been at work."""
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "dtype": "Float", "Group size": 2,
             "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000}  # fmt: skip
    for rank in range(2):
        work = [
            kernel("nccl_allreduce", 10, 100, 1, stream=8, **group),
            kernel("gemm", 10, 4000, 2),
        ]
        events = [*work, call("cudaLaunchKernel", 5000, 10, 3), kernel("gemm", 5020, 50, 3)]
        header = {"distributedInfo": {"rank": rank, "world_size": 2}}
        write(folder / f"rank{rank}.json", events, baseTimeNanoseconds=BASE, **header)
    return ci.read(folder)


def test_a_host_without_a_predecessor_does_not_wait_for_the_gpu(tmp_path: Path) -> None:
    ci.write(late_host(tmp_path), tmp_path / "job.et")
    _, nodes = messages(tmp_path / "job.0.et")
    gap = next(n for n in nodes if n.name == "unexplained delay" and attributes(n)["is_cpu_op"])
    assert gap.duration_micros == 4990
    assert not gap.data_deps


@pytest.mark.filterwarnings("error")
def test_durations_that_no_simulator_counts_have_no_reaction(tmp_path: Path) -> None:
    rows = [
        f"KERNEL_DISPATCH,Agent 4,1,0,700,{k},1,gemm,{k},{k},4000000000000000000" for k in (1, 2)
    ]
    (tmp_path / "1_kernel_trace.csv").write_text("\n".join([KERNEL_TRACE, *rows]))
    ci.write(ci.read(tmp_path / "1_kernel_trace.csv"), tmp_path / "job.et")
    (metadata, _) = messages(tmp_path / "job.0.et")
    assert not {attribute.name for attribute in metadata.attr} & set(DEVIATIONS)


def test_what_begins_a_rank_does_not_wait_for_a_delay_of_its_host(tmp_path: Path) -> None:
    ci.write(late_host(tmp_path), tmp_path / "job.et")
    _, nodes = messages(tmp_path / "job.0.et")
    assert [n.id for n in nodes if n.name == "begin"] == [0]


def test_a_thread_that_only_asks_does_not_hold_the_job_up(tmp_path: Path) -> None:
    events = [call("hipLaunchKernel", 0, 10, 1), kernel("gemm", 15, 50_000, 1)]
    asks = ("hipEventQuery", "hipPointerGetAttribute")
    events += [{**call(asks[k % 2], 5_000 * k, 5, 100 + k), "tid": 77} for k in range(10)]
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et")
    assert replay_us(messages(tmp_path / "job.0.et")[1]) == pytest.approx(50_015, abs=5)
    assert scaled_replay_us(tmp_path / "job.0.et", 0.1) < 6_000


def test_work_of_two_streams_shares_a_slot(tmp_path: Path) -> None:
    kernels = [kernel("gemm", 20 + 100 * k, 100, 1 + k) for k in range(10)]
    copy = {**kernel("Memcpy HtoD", 30, 700, 50, stream=9), "cat": "gpu_memcpy"}
    calls = [call("hipLaunchKernel", k, 1, 1 + k) for k in range(10)]
    events = [*calls, *kernels, call("hipMemcpyAsync", 12, 2, 50), copy]
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    issues = counts(ci.write(trace, tmp_path / "job.et", streams="slots"))
    assert issues["et-work-overlapped"] == 1
    _, nodes = messages(tmp_path / "job.0.et")
    durations = [n.duration_micros for n in nodes if n.name == "gemm"]
    assert durations == [100] * 10
    assert replay_us(nodes) == pytest.approx(1020, abs=2)
    assert scaled_replay_us(tmp_path / "job.0.et", 2, ("kernel",)) == pytest.approx(2020, abs=40)


def test_kernels_mode_has_gpu_work_alone(tmp_path: Path, run) -> None:
    trace = ci.read(blocking_copies(tmp_path))
    ci.write(trace, tmp_path / "job.et", mode="kernels")
    _, nodes = messages(tmp_path / "job.0.et")
    work = np.isin(trace.array("kind"), [int(k) for k in GPU_WORK])
    assert len(nodes) == np.count_nonzero(work)
    assert not any(attributes(n)["is_cpu_op"] for n in nodes)
    assert replay_us(nodes) == pytest.approx(trace.array("dur")[work].sum() / 1000, abs=40)
    assert run("check", tmp_path / "job")[0] == 0


def test_a_roofline_model_finds_what_it_reads(jobs: dict[str, ci.Trace], tmp_path: Path) -> None:
    trace = jobs["ddp"]
    ci.write(trace, tmp_path / "job.et", mode="gpu")
    metadata, nodes = messages(tmp_path / "job.0.et")
    bandwidth = next(a.int64_val for a in metadata.attr if a.name == "roofline_gbs")
    computed = [n for n in nodes if n.type == NodeType.COMP and not attributes(n)["is_cpu_op"]]
    assert computed
    fields = [{a.name: a.WhichOneof("value") for a in n.attr} for n in computed]
    assert all(f["num_ops"] == "int64_val" and f["tensor_size"] == "uint64_val" for f in fields)
    values = [attributes(n) for n in computed]
    assert all(v["num_ops"] >= 1 and v["tensor_size"] >= 1 for v in values)
    kernels = [v for v in values if v["kind"] == "kernel"]
    known = [v for v in kernels if v.get("mem_bytes", 0) >= 2 * bandwidth]
    assert known
    assert all(v["tensor_size"] == v["mem_bytes"] and "bytes_from_time" not in v for v in known)


def test_work_of_few_bytes_takes_time_in_a_roofline_model(tmp_path: Path) -> None:
    events = [call("cudaMemsetAsync", 0, 5, 1), {**kernel("Memset (Device)", 10, 3, 1, bytes=4)}]
    events[1]["cat"] = "gpu_memset"
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et")
    metadata, nodes = messages(tmp_path / "job.0.et")
    bandwidth = next(a.int64_val for a in metadata.attr if a.name == "roofline_gbs")
    (fill,) = [v for v in map(attributes, nodes) if v["kind"] == "memset"]
    assert fill["bytes"] == 4
    assert fill["tensor_size"] / bandwidth == pytest.approx(3000)  # ASTRA-sim aborts below 1 ns


def test_matched_collectives_of_unknown_size_are_joined(shared: Path, tmp_path: Path, run) -> None:
    trace = read_once(shared / "pytorch/torchrec_4rank_v100")
    issues = {i.code: i for i in ci.write(trace, tmp_path / "job.et", mode="gpu")}
    assert issues["comm-size-from-time"].count == 120
    sizes, start_ns, end_ns = [], [], []
    for rank in range(4):
        _, nodes = messages(tmp_path / f"job.{rank}.et")
        comm = [attributes(n) for n in nodes if n.type == NodeType.COMM_COLL]
        comm = [c for c in comm if c["kind"] == "comm"]  # and no delays
        assert all(c["bytes_from_time"] for c in comm)
        sizes.append([(c["comm_type"], c["comm_size"]) for c in comm])
        start_ns.append([c["start_ns"] for c in comm])
        end_ns.append([c["start_ns"] + c["duration_ns"] for c in comm])
    assert sizes == [sizes[0]] * 4
    # bytes that a simulator's ring moves over each link at 50 GB/s, for each that a member puts in
    carried = {CommType.ALL_REDUCE: 1.5, CommType.REDUCE_SCATTER: 0.75, CommType.ALL_TO_ALL: 1.5}
    transfer_ns = np.max(end_ns, axis=0) - np.max(start_ns, axis=0)
    for (kind, size), ns in zip(sizes[0], transfer_ns, strict=True):
        assert size * carried[kind] == pytest.approx(50 * ns, rel=0.001)
    assert run("check", tmp_path / "job")[0] == 0


@pytest.mark.parametrize(
    ("name", "kind", "carried"),
    [
        ("AllReduce_Sum_f32", CommType.ALL_REDUCE, 1.5),
        ("AllGather", CommType.ALL_GATHER, 3),
        ("ReduceScatter_Sum_f32", CommType.REDUCE_SCATTER, 0.75),
    ],
)
def test_assumed_bytes_are_those_that_one_of_four_members_puts_in(
    tmp_path: Path, name: str, kind: int, carried: float
) -> None:
    """From the start of the last one to the last end, 700 us, over links of 50 GB/s. Those that some rank did not record are only timed."""
    for rank in range(4):
        events = [
            kernel(f"ncclDevKernel_{name}_RING_LL", 3000 * k + 100 * rank, 1000 - 100 * rank, k + 1, device=rank, stream=7)
            for k in range({0: 3, 3: 5}.get(rank, 4))
        ]  # fmt: skip
        info = {"rank": rank, "world_size": 4, "backend": "nccl"}
        path = tmp_path / "in" / f"rank{rank}.json"
        path.parent.mkdir(exist_ok=True)
        write(path, events, baseTimeNanoseconds=BASE, distributedInfo=info)
    ci.write(ci.read(tmp_path / "in"), tmp_path / "job.et", mode="gpu")
    nodes = [attributes(n) | {"type": n.type} for n in messages(tmp_path / "job.3.et")[1]]
    comm = [n for n in nodes if n["type"] == NodeType.COMM_COLL and n["kind"] == "comm"]
    assert [n["comm_type"] for n in comm] == [kind] * 3 + [CommType.BROADCAST] * 2
    *sizes, of_three, of_one = [n["comm_size"] for n in comm]
    assert [size * carried for size in sizes] == [pytest.approx(50 * 700_000, rel=1e-6)] * 3
    assert of_three == of_one == comms.MIN_BYTES


def test_time_without_a_reason_is_named(tmp_path: Path) -> None:
    events = [call("hipLaunchKernel", 0, 10, 1), kernel("gemm", 8000, 100, 1)]
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    issues = {i.code: i for i in ci.write(trace, tmp_path / "job.et")}
    metadata, nodes = messages(tmp_path / "job.0.et")
    gaps = [n for n in nodes if attributes(n).get("cause") == "unexplained"]
    assert [n.name for n in gaps] == ["unexplained delay"]
    assert sum(n.duration_micros for n in gaps) == pytest.approx(7990, abs=5)
    assert "98" in issues["et-time-unexplained"].example
    facts = {a.name: a.int64_val for a in metadata.attr}
    assert facts["span_ns"] == 8_100_000
    assert facts["unexplained_ns"] == pytest.approx(7_990_000, abs=5000)


def test_gaps_do_not_float(jobs: dict[str, ci.Trace], tmp_path: Path) -> None:
    ci.write(jobs["dlrm"], tmp_path / "job.et", mode="gpu")
    for rank in range(8):
        _, nodes = messages(tmp_path / f"job.{rank}.et")
        free = [n for n in nodes if not n.data_deps]
        assert all(n.start_time_micros < 100 for n in free), [n.name for n in free]


@pytest.mark.parametrize("mode", ["gpu", "full"])
def test_a_delay_of_one_thread_does_not_come_before_the_wait_of_another(
    tmp_path: Path, mode: str
) -> None:
    other = {"tid": 77}
    events = [
        {**call("hipLaunchKernel", 0, 10, 1), **other}, kernel("first", 15, 20, 1),
        call("hipLaunchKernel", 20, 10, 2), kernel("long", 40, 50_000, 2),
        call("hipDeviceSynchronize", 40, 50_010, 3), call("hipLaunchKernel", 50_100, 10, 4),
        kernel("next", 50_120, 100, 4),
        {**call("hipLaunchKernel", 90_000, 10, 5), **other}, kernel("last", 90_020, 50, 5, stream=9),
    ]  # fmt: skip
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et", mode=mode)
    metadata, nodes = messages(tmp_path / "job.0.et")
    span_us = next(a.int64_val for a in metadata.attr if a.name == "span_ns") / 1000
    assert replay_us(nodes) == pytest.approx(span_us, abs=10)


def replays(tmp_path: Path, events: list[dict], mode: str) -> tuple[int, float]:
    """Length of an ET by its durations, and the measured span that it states, microseconds."""
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et", mode=mode)
    metadata, nodes = messages(tmp_path / "job.0.et")
    assert all(attributes(n)["start_ns"] >= 0 for n in nodes)
    span_ns = {a.name: a.int64_val for a in metadata.attr}.get("span_ns", 0)
    return replay_us(nodes), span_ns / 1000


def test_without_hosts_what_they_waited_for_stays_awaited(tmp_path: Path) -> None:
    events = []
    for k in range(20):
        at, number = 240 * k, 4 * k
        events += [
            call("hipLaunchKernel", at, 5, number + 1), kernel("gemm", at + 8, 100, number + 1),
            call("hipDeviceSynchronize", at + 10, 103, number + 2),
            call("hipLaunchKernel", at + 120, 5, number + 3),
            kernel("ncclDevKernel_Generic", at + 128, 100, number + 3, stream=9),
            call("hipDeviceSynchronize", at + 130, 103, number + 4),
        ]  # fmt: skip
    assert replays(tmp_path, events, "kernels") == (pytest.approx(4000, abs=5), 0)


@pytest.mark.parametrize("mode", ["gpu", "full"])
def test_a_long_operation_does_not_hold_up_the_launches_of_another_thread(
    tmp_path: Path, mode: str
) -> None:
    events = [{**call("aten::sort", 0, 100_000, 0), "cat": "cpu_op", "tid": 200}]
    for k in range(90):
        events += [
            call("hipLaunchKernel", 1000 * k, 10, k + 1), kernel("gemm", 1000 * k + 20, 900, k + 1)
        ]  # fmt: skip
    replay, span = replays(tmp_path, events, mode)
    assert replay == pytest.approx(span, rel=0.005)


def test_the_span_is_measured_where_threads_overlap(tmp_path: Path) -> None:
    events = [{**call("aten::sort", 0, 10_000, 0), "cat": "cpu_op", "tid": tid} for tid in (1, 2)]
    events += [call("hipLaunchKernel", 100, 10, 1), kernel("gemm", 200, 100, 1)]
    assert replays(tmp_path, events, "full")[1] == 10_000


def test_a_delay_of_the_gpu_follows_the_host_that_it_was_measured_from(tmp_path: Path) -> None:
    events = [
        call("hipMemcpyAsync", 0, 2, 1), {**kernel("Memcpy", 5, 95, 1), "cat": "gpu_memcpy"},
        call("hipLaunchKernel", 160, 300, 7), kernel("lone", 900, 100, 99, stream=5),
    ]  # fmt: skip
    replay, span = replays(tmp_path, events, "full")
    assert replay == pytest.approx(span, abs=10)


def test_work_follows_its_launch_where_the_clock_of_the_gpu_is_ahead(tmp_path: Path) -> None:
    events = []
    for k in range(100):
        at = 110 * k
        events += [
            {**call("aten::add", at, 98, 0), "cat": "cpu_op"},
            call("hipLaunchKernel", at + 100, 8, k + 1), kernel("gemm", at + 90, 2, k + 1),
        ]  # fmt: skip
    replays(tmp_path, events, "gpu")
    metadata, nodes = messages(tmp_path / "job.0.et")
    for node in nodes:
        if attributes(node)["is_cpu_op"] and attributes(node)["cause"] == "host":
            node.duration_micros //= 2
    assert replay_us(nodes) == pytest.approx(110 * 100 / 2, rel=0.1)
    facts = {a.name: a.int64_val for a in metadata.attr}
    assert facts["unexplained_ns"] < 0.05 * facts["span_ns"]


def full_queue(ahead_us: float, factor: float = 1) -> tuple[list[dict], float]:
    """Launches that return when there is room among eight places, and kernels by a clock that is ahead; when the last ends."""
    events, ends = [], [0.0]
    host = 100.0
    for i in range(120):
        returns = max(host + 4, ends[i - 7] + 1.5 + i % 3 / 5 if i >= 8 else 0)
        events.append(call("cudaLaunchKernel", host, returns - host, i + 1))
        begins = max(returns + 3, ends[-1] + 1)
        ends.append(begins + factor * (30 + 7 * (i % 4)))
        events.append(kernel("gemm", begins + ahead_us, ends[-1] - begins, i + 1))
        host = returns + 3
    return events, ends[-1]


@pytest.mark.parametrize("mode", ["gpu", "full"])
@pytest.mark.parametrize("ahead_us", [4, 20])
def test_a_full_queue_reacts_where_the_clock_of_the_gpu_is_ahead(
    tmp_path: Path, mode: str, ahead_us: float
) -> None:
    """Launches return before the end of the work that made room, which no dependency can say: it was 4 % off."""
    events, end_us = full_queue(ahead_us)
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et", mode=mode)
    measured = replay_us(messages(tmp_path / "job.0.et")[1])
    faster = scaled_replay_us(tmp_path / "job.0.et", 0.1, ("kernel",))
    saved_us = end_us - full_queue(0, 0.1)[1]
    assert measured - faster == pytest.approx(saved_us, abs=0.02 * measured)


@pytest.mark.parametrize(
    ("ahead_us", "origin_us", "gpu_us", "host_us"),
    [(0, 0, 0, 0), (20, 0, -18.5, 0), (20, 115, 0, 18.5)],
)
def test_hosts_and_gpu_are_on_one_clock(
    tmp_path: Path, ahead_us: float, origin_us: float, gpu_us: float, host_us: float
) -> None:
    """What is moved begins after the job does; the least that a launch returns behind its room is 1.5 µs."""
    events, _ = full_queue(ahead_us)
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    moved = on_one_clock(trace, round(1000 * origin_us))
    by_us = (moved.array("ts") - trace.array("ts")) / 1000
    on_gpu = np.isin(trace.array("kind"), GPU_WORK)
    assert by_us[on_gpu] == pytest.approx(gpu_us, abs=0.5)
    assert by_us[~on_gpu] == pytest.approx(host_us, abs=0.5)


def test_returns_of_calls_that_need_not_wait_take_no_time(tmp_path: Path) -> None:
    """A host that is limited by the GPU now, and by itself if the GPU is ten times as fast."""
    events, at, gpu_end = [], 0.0, 0.0
    for k in range(200):
        start = max(gpu_end, at + 5)
        gpu_end = start + 100
        events += [
            call("cudaLaunchKernel", at, 4, 2 * k + 1), kernel("gemm", start, 100, 2 * k + 1),
            call("cudaStreamSynchronize", at + 10, gpu_end + 6 - at - 10, 2 * k + 2),
            call("cudaLaunchKernel", gpu_end + 10, 4, 1000 + k), kernel("add", gpu_end + 15, 1, 1000 + k),
            call("cudaStreamSynchronize", gpu_end + 40, 6, 2000 + k),
        ]  # fmt: skip
        at, gpu_end = gpu_end + 50, gpu_end + 16
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et", mode="full")
    change = "scale=0.1 where kind == 'kernel'"
    (predicted,) = ci.analyze(trace, "what_if", change=change).summary["changes"]
    before = replay_us(messages(tmp_path / "job.0.et")[1])
    after = scaled_replay_us(tmp_path / "job.0.et", 0.1)
    assert before - after == pytest.approx(predicted["gain_ns"] / 1000, rel=0.005)


def test_a_delay_of_communication_does_not_wait_for_compute(tmp_path: Path) -> None:
    """Collectives in a row with 80 µs between them, hidden behind kernels."""
    events = []
    for k in range(100):
        events += [
            call("hipLaunchKernel", 2 * k, 1, k + 1),
            kernel("gemm", 210 + 100 * k, 90, k + 1),
        ]
    for k in range(9):
        events += [
            call("hipLaunchKernel", 1 + 2 * k, 1, 500 + k),
            kernel("ncclDevKernel_Generic", 215 + 1080 * k, 1000, 500 + k, stream=9),
        ]  # fmt: skip
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et", mode="gpu")
    _, nodes = messages(tmp_path / "job.0.et")
    gaps = [
        n for n in nodes if attributes(n).get("cause") == "unexplained" and n.type != NodeType.COMP
    ]
    assert len(gaps) == 8
    assert {n.type for n in gaps} == {NodeType.COMM_COLL}
    read_back = ci.read(tmp_path / "job.0.et").to_pandas()
    delays = read_back[read_back["name"] == "unexplained delay"]
    assert delays["collective"].isna().all()
    assert delays["bytes"].isna().all()
    assert replay_us(nodes) == pytest.approx(9_990, abs=5)
    assert scaled_replay_us(tmp_path / "job.0.et", 2, ("comm",)) == pytest.approx(
        2 * 9000 + 8 * 80 + 5, abs=100
    )


def test_durations_below_microseconds_add_up(tmp_path: Path) -> None:
    events = [call("hipGraphLaunch", 0, 5, 1)]
    events += [kernel("gemm", 10 + 1.4 * k, 1.4, 1) for k in range(2000)]
    replay, span = replays(tmp_path, events, "gpu")
    assert replay == pytest.approx(span, abs=5)
    _, nodes = messages(tmp_path / "job.0.et")
    assert not [n for n in nodes if attributes(n).get("cause") == "unexplained"]
    assert scaled_replay_us(tmp_path / "job.0.et", 2) == pytest.approx(2 * 2800, abs=10)


@pytest.mark.parametrize("mode", ["gpu", "kernels"])
def test_a_rank_without_gpu_work_has_a_node(tmp_path: Path, mode: str, run) -> None:
    files = [
        [call("hipLaunchKernel", 0, 10, 1), kernel("gemm", 20, 100, 1)],
        [{**call("aten::sort", 0, 100, 0), "cat": "cpu_op"}],
    ]
    (tmp_path / "in").mkdir()
    for rank, events in enumerate(files):
        write(
            tmp_path / "in" / f"rank{rank}.json",
            events,
            baseTimeNanoseconds=BASE,
            distributedInfo={"rank": rank, "world_size": 2},
        )
    ci.write(ci.read(tmp_path / "in"), tmp_path / "job.et", mode=mode)
    assert len(messages(tmp_path / "job.1.et")[1]) == 1
    assert run("check", tmp_path / "job")[0] == 0


@pytest.mark.parametrize(
    ("name", "kind", "attribute"),
    [
        ("gemm", "kernel", "double_compute_deviation_ns"),
        ("ncclDevKernel_AllReduce_Sum_f32", "comm", "double_communication_deviation_ns"),
    ],
)
def test_what_one_slot_cannot_express_is_stated(
    tmp_path: Path, run, name: str, kind: str, attribute: str
) -> None:
    """Two streams that are busy for 60 % each in turn; if kernels take twice as long, both are at once."""
    events = []
    for k in range(40):
        at = 1000 * k
        events += [
            {**call("hipLaunchKernel", at, 5, 2 * k + 1), "tid": 1 + k % 2},
            kernel(name, at + 10, 980, 2 * k + 1, stream=k % 2),
        ]
        events[-1]["tid"] = k % 2
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    issues = {i.code: i for i in ci.write(trace, tmp_path / "job.et", mode="gpu", streams="slots")}
    change = f"scale=2 where kind == '{kind}'"
    (predicted,) = ci.analyze(trace, "what_if", change=change).summary["changes"]
    assert predicted["gain_ns"] == pytest.approx(-980_000, abs=20_000)
    assert issues["et-reacts-otherwise"].count == 1
    metadata, nodes = messages(tmp_path / "job.0.et")
    facts = {a.name: a.int64_val for a in metadata.attr}
    later_us = scaled_replay_us(tmp_path / "job.0.et", 2, (kind,)) - replay_us(nodes) - 980
    assert facts[attribute] == pytest.approx(1000 * later_us, abs=40_000)
    assert later_us > 30_000
    status, output, _ = run("check", tmp_path / "job")
    assert status == 0
    assert "with 2 times the time" in output
    share = f"{facts[attribute] / facts['span_ns']:.0%} of the span"
    assert share in CHAKRA.usage_of(trace, tmp_path / "job.et")
    assert "-O streams=npus" in CHAKRA.usage_of(trace, tmp_path / "job.et")
    ci.write(trace, tmp_path / "npus.et", mode="gpu")
    usage = CHAKRA.usage_of(trace, tmp_path / "npus.et")
    assert " NPUs, so that streams run at the same time" in usage
    assert "of the span" not in usage


def test_npus_that_were_tried_and_no_better_are_not_advised(tmp_path: Path, run) -> None:
    """Both react otherwise by 24 % of the span, and the last line and chopper-check advised what had been tried."""
    trace = ci.read(write(tmp_path / "rank0.json", mixed_job(25)))
    ci.write(trace, tmp_path / "auto.et")
    ci.write(trace, tmp_path / "npus.et", streams="npus")
    auto, npus = (
        {a.name: a.int64_val for a in messages(tmp_path / f"{name}.0.et")[0].attr}
        for name in ("auto", "npus")
    )
    off_ns = max(abs(npus.get(name, 0)) for name in DEVIATIONS)
    assert off_ns > 0.2 * npus["span_ns"]
    assert auto["npus_deviation_ns"] == off_ns
    assert "24% with -O streams=npus, which was tried" in CHAKRA.usage_of(
        trace, tmp_path / "auto.et"
    )
    _, output, _ = run("check", tmp_path / "auto")
    assert "(written with -O streams=npus, 24.1%)" in output


def launched_at_times(latency_us: float) -> list[dict]:
    """A host that launches a kernel of 150 µs each 500 µs, which begins so much behind its launch, and waits at last."""
    events = []
    for k in range(20):
        at = 500 * k
        events += [call("cudaLaunchKernel", at, 5, k + 1), span("cpu_op", "aten::add", at + 5, 490)]
        # the first shows that no time is needed between two
        events += [kernel("gemm", at + latency_us, 150 if k else 499, k + 1)]
    # while a launch is on its way, the host goes on
    events[-2]["dur"] = max(latency_us + 130, 1)
    called = 9505 + events[-2]["dur"]
    ended = max(9655 + latency_us, called + 5)
    return [*events, call("cudaDeviceSynchronize", called, ended - called, 21)]


def launched_beside_a_long_operation() -> list[dict]:
    """The same by a thread while another one is busy all the time."""
    return [*launched_at_times(10), span("cpu_op", "aten::sort", 0, 9600) | {"tid": 2}]


# by hand: kernels of more than 500 µs run one behind the other
@pytest.mark.parametrize(("factor", "later_us"), [(4, 4 * 3349 - 9650), (5, 5 * 3349 - 9650)])
@pytest.mark.parametrize("mode", ["gpu", "full"])
@pytest.mark.parametrize(
    "events",
    [launched_at_times(300), launched_at_times(-150), launched_beside_a_long_operation()],
    ids=["long launches", "a GPU's clock behind", "two threads"],
)
def test_launches_that_no_slot_has_time_for_delay_no_later_work(
    tmp_path: Path, events: list[dict], mode: str, factor: float, later_us: float
) -> None:
    """What was left of a launch stood in the slot of compute behind the work before: up to 10 % late."""
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et", mode=mode)
    before_ns = end_ns(tmp_path / "job")
    changed = tmp_path / "changed" / "job"
    scaled_ets.write(tmp_path / "job", changed, Change("compute", factor), replay=True)
    assert end_ns(changed) - before_ns == pytest.approx(1000 * later_us, abs=50_000)


def test_what_waits_for_a_long_operation_that_is_cut_waits_for_its_last_part(
    tmp_path: Path,
) -> None:
    """The other thread's launches cut it; it is one operation all the same."""
    own = [
        span("cpu_op", "aten::sort", 0, 9690), call("cudaLaunchKernel", 9690, 5, 30),
        kernel("last", 9710, 1000, 30, stream=7),
    ]  # fmt: skip
    events = [
        *launched_at_times(10),
        *(e | {"tid": 7 if "stream" in e["args"] else 2} for e in own),
    ]
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et", mode="full")
    assert end_ns(tmp_path / "job") == pytest.approx(10_710_000, abs=20_000)
    frame = ci.read(tmp_path / "job.0.et").to_pandas()
    assert frame["kind"][frame["name"] == "aten::sort"].tolist().count("cpu_op") == 1


def test_links_from_ends_of_operations_that_are_cut_keep_the_measured_end(tmp_path: Path) -> None:
    """Links from the first part of such operations were 7 % off."""
    trace = ci.read(write(tmp_path / "rank0.json", mixed_job(51004, 120)))
    ci.write(trace, tmp_path / "job.et", mode="full")
    ts, dur = trace.array("ts"), trace.array("dur")
    assert end_ns(tmp_path / "job") == pytest.approx((ts + dur).max() - ts.min(), abs=2_000)


def test_a_send_does_not_wait_for_its_ranks_next_receive(tmp_path: Path) -> None:
    """Of rank 0, whose host launches the receive late: with kernels x 0.1 the job was 66 µs longer.

    ::

        rank 0   [ gemm ][ send ]                          changed  [][ send ]
                     launch ─>[ receive              ]                       launch ─>[ receive ]
        rank 1           [ recv ][ gemm ][ send ]                     [ recv ][] [ send ]
    """
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "dtype": "Float", "Group size": 2,
             "In msg nelems": 1000, "Out msg nelems": 1000}  # fmt: skip

    def message(kind: str, src: int, ts: int, dur: int, number: int, stream: int) -> dict[str, Any]:
        about = {"Collective name": kind, "Src Rank": src, "Dst Rank": 1 - src, **group}
        return kernel("ncclDevKernel_SendRecv", ts, dur, number, stream=stream, **about)

    (tmp_path / "in").mkdir()
    work = (
        [kernel("gemm", 10, 90, 1, stream=7), message("send", 0, 101, 50, 2, 7), message("recv", 1, 106, 286, 3, 8)],
        [message("recv", 0, 8, 143, 1, 7), kernel("gemm", 152, 190, 2, stream=7), message("send", 1, 343, 50, 3, 7)],
    )  # fmt: skip
    for rank, launched in enumerate(((0, 3, 97), (0, 3, 6))):
        events = [call("cudaLaunchKernel", at, 2, k + 1) for k, at in enumerate(launched)]
        events += [*work[rank], span("cpu_op", "aten::add", 8, 87)]
        header = {"distributedInfo": {"rank": rank, "world_size": 2}}
        write(tmp_path / f"in/rank{rank}.json", events, baseTimeNanoseconds=BASE, **header)
    trace = ci.read(tmp_path / "in")
    ci.write(trace, tmp_path / "job.et", mode="gpu")
    scaled_ets.write(tmp_path / "job", tmp_path / "scaled/job", Change("compute", 0.1), replay=True)
    change = "scale=0.1 where kind == 'kernel'"
    (predicted,) = ci.analyze(trace, "what_if", change=change).summary["changes"]
    gain = end_ns(tmp_path / "job") - end_ns(tmp_path / "scaled/job")
    assert gain == pytest.approx(predicted["gain_ns"], abs=15_000)


def test_what_a_shorter_kernel_would_not_change_is_stated(tmp_path: Path) -> None:
    """Of a program that forks streams all kernels react rightly together, and one alone does not (5.7 % too early)."""
    trace = predictions.read(simulate(families.forks(9901)), tmp_path / "in")
    issues = {i.code: i for i in ci.write(trace, tmp_path / "job.et", mode="gpu", streams="slots")}
    assert "the kernel with the most time" in issues["et-reacts-otherwise"].example
    facts = {a.name: a.int64_val for a in messages(tmp_path / "job.0.et")[0].attr}
    assert facts["tenth_kernel_deviation_ns"] / facts["span_ns"] == pytest.approx(-0.057, abs=0.003)
    assert abs(facts["double_compute_deviation_ns"]) < 0.02 * facts["span_ns"]


def test_what_would_explain_more_is_named(tmp_path: Path, run) -> None:
    """Kernels of CUDA with pauses between them that no record gives a reason for."""
    events = [call("cudaLaunchKernel", 0, 5, 1), kernel("gemm", 10, 100, 1)]
    events += [call("cudaLaunchKernel", 20, 5, 2), kernel("gemm", 1000, 100, 2)]
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et")
    status, output, _ = run("check", tmp_path / "job")
    assert status == 0
    assert "81.4% of rank 0" in output
    assert "enable_cuda_sync_events=True" in output


def test_of_a_program_without_a_gpu_no_host_calls_are_missing(tmp_path: Path, run) -> None:
    """A recording of PyTorch on processors alone, by ProfilerActivity.CPU, was asked for with that very setting."""
    mm = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "dur": 100}
    for rank in range(2):  # nothing says why one starts later
        events = [mm | {"ts": 4000 * rank}, mm | {"ts": 5000}]
        of_rank = {"rank": rank, "world_size": 2}
        write(tmp_path / f"rank{rank}.json", events, distributedInfo=of_rank)
    trace = ci.read(tmp_path)
    ci.write(trace, tmp_path / "job.et")
    status, output, notes = run("check", tmp_path / "job")
    assert status == 0
    assert "78.4% of rank 1" in output
    assert "would explain more" not in output + notes


@pytest.mark.parametrize("mode", ["gpu", "full"])
def test_how_latencies_of_launches_vary_counts_only_where_launches_bind(
    tmp_path: Path, mode: str
) -> None:
    events = []
    for k in range(40):  # the GPU waits for each launch, but not if kernels take 5 times as long
        start = 40 * k + 6 + 7 * k % 20
        events += [call("hipLaunchKernel", 40 * k, 5, k + 1), kernel("gemm", start, 10, k + 1)]
    events.append(call("hipDeviceSynchronize", 1600, 5, 41))
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    ci.write(trace, tmp_path / "job.et", mode=mode)
    slower = scaled_replay_us(tmp_path / "job.0.et", 5, ("kernel",))
    predicted = ci.analyze(trace, "what_if", change="scale=5 where kind == 'kernel'").summary
    assert predicted["changes"][0]["gain_ns"] == pytest.approx(-410_000, abs=10_000)
    assert slower == pytest.approx(40 * 50 + 6, abs=15)


@pytest.mark.parametrize("mode", ["gpu", "full", "kernels"])
def test_ranks_run_collectives_of_two_streams_in_one_order(tmp_path: Path, mode: str, run) -> None:
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "dtype": "Float",
             "Group size": 2, "Out msg nelems": 1000}  # fmt: skip
    names = ("allreduce", "_allgather_base")
    (tmp_path / "in").mkdir()
    for rank in range(2):  # another stream has more work on each rank, and so would keep its time
        events = []
        for k, (name, start, dur) in enumerate([(names[0], 10, 110), (names[1], 12, 98)]):
            args = {**group, "Rank": rank, "Collective name": name, "In msg nelems": 1000 + k}
            at = start + 40 * rank
            launch = call("hipLaunchKernel", 4 * k + 1, 2, k + 1)
            work = kernel(f"nccl_{name}", at, dur - 40 * rank, k + 1, stream=8 + k)
            work["args"] |= args
            about = {**call("record_param_comms", 4 * k, 4, 20 + k), "cat": "cpu_op", "args": args}
            events += [about, launch, work]
        more = kernel("gemm", 130, 50, 9, stream=9 - rank)
        events += [call("hipLaunchKernel", 20, 2, 9), more]
        write(
            tmp_path / f"in/rank{rank}.json",
            events,
            baseTimeNanoseconds=BASE,
            distributedInfo={"rank": rank, "world_size": 2},
        )
    trace = ci.read(tmp_path / "in")
    issues = {i.code: i for i in ci.write(trace, tmp_path / "job.et", mode=mode, streams="slots")}
    for rank in range(2):
        metadata, nodes = messages(tmp_path / f"job.{rank}.et")
        # the last members come at 50 and 52 µs, and the first collective ends at 110 µs
        assert {a.name: a.int64_val for a in metadata.attr}["concurrent_collectives_ns"] == 58_000
        collectives = [n.name for n in nodes if attributes(n).get("collective")]
        assert collectives == [f"nccl_{name}" for name in names]
    status, output, _ = run("check", tmp_path / "job")
    assert status == 0, output
    has_span = mode != "kernels"  # without hosts a span has no meaning
    assert ("et-collectives-concurrent" in issues) == has_span
    assert ("its collectives run at the same time" in output) == has_span


def test_ets_of_several_streams_of_collectives_end(tmp_path: Path, run) -> None:
    ran = simulate(families.fsdp(702))
    ci.write(predictions.read(ran, tmp_path / "in"), tmp_path / "job.et")
    status, output, _ = run("check", tmp_path / "job")
    assert status == 0, output


def gathered(folder: Path) -> ci.Trace:
    """An all-gather of three ranks, of which the last comes 200 µs late, and work behind it."""
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1, 2]", "dtype": "Float",
             "Group size": 3, "Collective name": "_allgather_base", "In msg nelems": 10**6,
             "Out msg nelems": 3 * 10**6}  # fmt: skip
    for rank, began in enumerate((100, 110, 300)):
        events = [call("hipLaunchKernel", 2 * k, 1, k) for k in (1, 2, 3)]
        events += [kernel("gemm", 10, began - 10, 1), kernel("gemm", 400, 50 + rank, 3)]
        events += [kernel("ncclDevKernel_AllGather", began, 400 - began, 2, **group)]
        header = {"distributedInfo": {"rank": rank, "world_size": 3}}
        write(folder / f"rank{rank}.json", events, baseTimeNanoseconds=BASE, **header)
    return ci.read(folder)


@pytest.mark.parametrize("mode", ["gpu", "full", "kernels"])
def test_the_last_member_of_a_gather_waits_until_others_have_its_data(
    tmp_path: Path, mode: str, run
) -> None:
    """In simulators a gather ends on a rank as soon as the data of the others are there."""
    ci.write(gathered(tmp_path), tmp_path / "job.et", mode=mode)
    sent, heard = {}, {}
    for rank in range(3):
        _, nodes = messages(tmp_path / f"job.{rank}.et")
        gather = next(n for n in nodes if n.name == "ncclDevKernel_AllGather")
        announced = [n for n in nodes if attributes(n).get("cause") == "ended"]
        assert [n.type for n in announced] == [NodeType.COMM_SEND, NodeType.COMM_RECV]
        assert all(list(n.data_deps) == [gather.id] for n in announced)
        ends = ("comm_src", "comm_dst", "comm_tag", "comm_size")
        sent[rank], heard[rank] = (tuple(attributes(n)[name] for name in ends) for n in announced)
        behind = [n for n in nodes if n.name == "gemm" and gather.id in n.data_deps]
        assert behind
        assert all(announced[1].id in n.data_deps for n in behind)
    assert sent == {rank: (rank, (rank + 1) % 3, 0, 4) for rank in range(3)}
    assert heard == {(rank + 1) % 3: message for rank, message in sent.items()}
    status, output, _ = run("check", tmp_path / "job")
    assert status == 0, output


@pytest.mark.parametrize("mode", slow_from(["kernels", "gpu", "full"], 1))
@pytest.mark.parametrize("family", ["pipeline", "ddp"])
def test_no_rank_begins_with_a_message(tmp_path: Path, family: str, mode: str, run) -> None:
    """ASTRA-sim's networks abort at a message that takes no time at 0."""
    ran = simulate(families.FAMILIES[family](3004))
    ci.write(predictions.read(ran, tmp_path / "in"), tmp_path / "job.et", mode=mode)
    joined = [CommType.ALL_REDUCE, CommType.ALL_GATHER, CommType.REDUCE_SCATTER]
    for path in tmp_path.glob("job.*.et"):
        first = [n for n in messages(path)[1] if not n.data_deps]
        assert not [n.name for n in first if n.type == NodeType.COMM_SEND]
        assert not [n.name for n in first if attributes(n).get("comm_type") in joined]
    assert run("check", tmp_path / "job")[0] == 0
