"""Findings: each on a job that is made to have it, and on the same job without it; and the summary."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import gpu_work
import kineto_files
import numpy as np
import pyarrow as pa
import pytest
from clocked_job import job as clocked_job
from gpu_work import Work
from gpu_work import trace as gpu_trace
from made_pipeline import Pipeline, measured_and_ideal, table
from made_stragglers import MadeJob, length_ns
from made_stragglers import trace_of as straggling_trace
from programs import kineto, simulation
from programs.defects import (
    DEFECTS,
    EXACT,
    computing_operator,
    data_loader_with_stacks,
    launching,
    slow_allocations,
    slow_launches,
)
from read_once import read_once
from shared_data import real
from slow import slow_from
from straggler_jobs import trace_of as pipeline_trace

import chopper_interop as ci
from chopper_interop.analyses.findings import findings
from chopper_interop.analyses.methods.findings import catalogue, finding, job, missing, ranks
from chopper_interop.analyses.methods.fleet.compared_job import GAIN_COLUMNS
from chopper_interop.analyses.methods.fleet.comparison import Comparison, gain_of_cause
from chopper_interop.analyses.methods.runs import parallelism
from chopper_interop.analyses.methods.timing.job_replay import JobReplay
from chopper_interop.analyses.summary import summary
from chopper_interop.arrays import arrow
from chopper_interop.build import TraceBuilder
from chopper_interop.commands import console_results
from chopper_interop.issues import Issue, Severity
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import Device
from chopper_interop.testing import check_analysis

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from programs.families import _Thread

_US, _MI300X = 1_000, ("AMD Instinct MI300X",)
_RANKS = {
    "late-rank-host": ({"host": {1: 6.0}}, "1"),
    "late-rank-gpu": ({"gpu": {2: 1.2}}, "2"),
    "late-rank-link": ({"link": {1: 20.0}}, "1-2"),
    "late-rank-unknown": ({"host": {1: 6.0}, "hosts": False}, "1"),
}
"""Defects of a rank, and the ranks that are named."""

_BY_WHAT_IF = {
    "exposed-collective", "allocator", "data-loader", "compilation", "host-work", "unrecorded-wait",
    "item", "blocking-copy", "host-sync", "full-queue", "exposed-copy",
}  # fmt: skip
"""Defects whose findings name a what_if; host-work only where no operator lies below, as in its program."""


def findings_by_code(trace: ci.Trace, **options: str) -> dict[str, dict[str, Any]]:
    """Rows by code; of several of one code the largest."""
    rows = ci.analyze(trace, "findings", **options).rows.to_pylist()
    return {row["code"]: row for row in reversed(rows)}


def program_of(folder: Path, code: str, seed: int, *, has: bool) -> tuple[ci.Trace, float]:
    """The trace of a program with or without a defect, and its step as simulated."""
    run = simulation.simulate(DEFECTS[code](seed, has=has))
    kineto.write(run, folder / f"{code}-{seed}-{has}")
    return ci.read(folder / f"{code}-{seed}-{has}"), simulation.period_ns(run)


def check_command(trace: ci.Trace, row: dict[str, Any]) -> bool:
    """A what_if that a finding names gains in all steps what the finding saves in each; True if it names one."""
    words = shlex.split(row["command"])
    if "what_if" in words:
        change = words[words.index("-O") + 1].removeprefix("change=")
        steps = words[words.index("--steps") + 1] if "--steps" in words else ""
        rows = ci.analyze(trace, "what_if", change=change, steps=steps).rows.to_pylist()
        gain_ns = sum(each["gain_ns"] for each in rows if each["change"] != "as measured")
        count = max(findings(trace).summary["steps"], 1)
        # waits: a what_if moves delays along with what they belong to, and has what is behind the last step
        assert row["saves_ns"] == pytest.approx(gain_ns / count, rel=3e-3)
    return "what_if" in words


def check_defect(folder: Path, code: str, seed: int) -> None:
    """A finding is there with what it saves, and only where the job has it."""
    trace, step_ns = program_of(folder, code, seed, has=True)
    row = findings_by_code(trace)[code]
    plain, plain_ns = program_of(folder, code, seed, has=False)
    assert code not in findings_by_code(plain)
    assert check_command(trace, row) == (code in _BY_WHAT_IF)
    if code in EXACT:
        assert row["saves_ns"] == pytest.approx(step_ns - plain_ns, rel=0.3)
    ends = trace.array("ts") + trace.array("dur")
    assert trace.array("ts").min() <= row["at_ns"] < row["until_ns"] <= ends.max()


@pytest.mark.parametrize("code", DEFECTS)
def test_a_defect_is_found_where_it_is(tmp_path: Path, code: str) -> None:
    check_defect(tmp_path, code, seed=1)


@pytest.mark.parametrize("way", ["HtoD (Host -> Device)", "DtoD (Device -> Device)"])
def test_a_copy_that_its_own_call_waits_for_is_one_finding(tmp_path: Path, way: str) -> None:
    events = []
    for k in range(4):
        at = 10_000 * k
        events += [
            kineto_files.span("user_annotation", f"ProfilerStep#{k}", at, 10_000),
            kineto_files.call("cudaMemcpy", at + 100, 2_100, 2 * k),
            kineto_files.kernel(f"Memcpy {way}", at + 150, 2_000, 2 * k) | {"cat": "gpu_memcpy"},
            kineto_files.call("cudaLaunchKernel", at + 2_300, 10, 2 * k + 1),
            kineto_files.kernel("gemm", at + 2_320, 7_000, 2 * k + 1),
        ]
    trace = ci.read(kineto_files.write(tmp_path / "job.json", events))
    rows = findings_by_code(trace)
    assert "blocking-copy" in rows
    assert "exposed-copy" not in rows


def test_a_copy_that_a_call_waits_for_is_one_finding(tmp_path: Path) -> None:
    rows = findings_by_code(program_of(tmp_path, "blocking-copy", 1, has=True)[0])
    assert "blocking-copy" in rows
    assert "exposed-copy" not in rows


@pytest.mark.parametrize(("how", "outlasts_us"), [("Pageable", 40), ("Host", 3)])
def test_a_copy_that_ends_behind_the_call_that_waits_for_it_is_one_finding(
    tmp_path: Path, how: str, outlasts_us: int
) -> None:
    events = kineto_files.uploads(how, 0, outlasts_us=outlasts_us)
    trace = ci.read(kineto_files.write(tmp_path / "job.json", events))
    rows = findings_by_code(trace)
    assert "blocking-copy" in rows
    assert "exposed-copy" not in rows


def test_each_kind_of_exposed_copies_is_a_finding(tmp_path: Path) -> None:
    """The host is far ahead of the GPU, and waits for the last kernel of a step."""
    ways, events = ("Memcpy DtoD (Device -> Device)", "Memcpy HtoD (Pinned -> Device)"), []
    for k in range(4):
        at, number = 10_000 * k, 10 * k + 1
        names = ("gemm", ways[0], "relu", ways[1], "add")
        events += [
            kineto_files.span("user_annotation", f"ProfilerStep#{k}", at, 10_000),
            *(kineto_files.call("cudaLaunchKernel", at + 10 + 10 * i, 5, number + i) for i in range(5)),
            *(
                kineto_files.kernel(name, at + 20 + 1_900 * i, 1_900, number + i)
                | ({"cat": "gpu_memcpy"} if name in ways else {})
                for i, name in enumerate(names)
            ),
            kineto_files.call("cudaDeviceSynchronize", at + 100, 9_430, number + 9),
        ]  # fmt: skip
    trace = ci.read(kineto_files.write(tmp_path / "job.json", events))
    rows = ci.analyze(trace, "findings").rows.to_pylist()
    saved = {row["where"]: row["saves_ns"] for row in rows if row["code"] == "exposed-copy"}
    assert saved == {way: pytest.approx(1_900_000, rel=0.01) for way in ways}  # of a step


def test_nested_ranges_of_compilation_are_one_finding(tmp_path: Path) -> None:
    rows = findings_by_code(program_of(tmp_path, "compilation", 1, has=True)[0])
    assert rows["compilation"]["finding"] == "torch.compile compiles code 4 times."
    assert "host-work" not in rows


def test_what_is_captured_is_no_finding_of_its_own(tmp_path: Path) -> None:
    rows = findings_by_code(program_of(tmp_path, "graph-capture", 1, has=True)[0])
    assert rows["graph-capture"]["finding"] == "Work is captured as a graph 4 times."
    assert rows["graph-capture"]["where"].endswith("StreamBeginCapture")
    assert not {"host-work", "small-launches"} & rows.keys()


BEGIN, END = "cudaStreamBeginCapture", "cudaStreamEndCapture"
LONG, MAKE = (1, "cudaEventRecord", 400, 500), (1, "cudaGraphInstantiate", 1100, 300)
CAPTURE = [(1, BEGIN, 300, 10), (2, END, 350, 70), LONG, (1, END, 1000, 40), MAKE]
"""Thread, call, time in the step and duration, µs."""


@pytest.mark.parametrize(
    ("calls", "saved_us"),
    [(CAPTURE, 850), ([(1, BEGIN, 300, 10), LONG, (2, END, 1000, 10)], 0), ([LONG, (1, END, 1000, 10)], 0),
     ([(1, BEGIN, 300, 10), LONG, MAKE], 0), ([(1, BEGIN, 300, 10), (1, END, 320, 10), LONG, (1, END, 1000, 10)], 20)],
    ids=["captured", "of two threads", "begun before", "goes on", "ends twice"],
)  # fmt: skip
def test_a_capture_is_what_its_thread_does_until_it_ends(
    tmp_path: Path, calls: list[tuple[int, str, float, float]], saved_us: float
) -> None:
    events = []
    for step in range(4):
        at, first, last = 2000 * step, step + 1, step + 50
        events += [
            kineto_files.span("user_annotation", f"ProfilerStep#{step}", at, 2000),
            kineto_files.call("cudaLaunchKernel", at + 10, 5, first),
            kineto_files.kernel("gemm", at + 20, 100, first),
            kineto_files.call("cudaLaunchKernel", at + 1690, 5, last),
            kineto_files.kernel("tail", at + 1700, 200, last),
            kineto_files.call("cudaDeviceSynchronize", at + 1850, 100, step + 100),
        ]
        for thread, name, us, dur in calls:
            events.append(kineto_files.call(name, at + us, dur, 0) | {"tid": 99 + thread})
    header = {"baseTimeNanoseconds": kineto_files.BASE}
    rows = findings_by_code(ci.read(kineto_files.write(tmp_path / "rank0.json", events, **header)))
    saved_ns = rows["graph-capture"]["saves_ns"] if "graph-capture" in rows else 0
    assert saved_ns == 1000 * saved_us


def test_frames_around_a_data_loader_are_no_finding_of_their_own(tmp_path: Path) -> None:
    kineto.write(simulation.simulate(data_loader_with_stacks(1)), tmp_path)
    rows = findings_by_code(ci.read(tmp_path))
    assert "data-loader" in rows
    assert "host-work" not in rows


def test_slow_allocations_are_found_once(tmp_path: Path) -> None:
    """They set up no library where steps came before, and are no work of the operator around them."""
    kineto.write(simulation.simulate(slow_allocations(1)), tmp_path)
    rows = findings_by_code(ci.read(tmp_path))
    assert rows["allocator"]["saves_ns"] == pytest.approx(60_000 * _US, rel=0.1)
    assert not rows.keys() & {"code-loading", "host-work"}


@pytest.mark.parametrize(
    ("step", "first", "code"),
    [
        ("step ", 1, "code-loading"),  # a program that numbers its steps from 1
        ("step ", 0, "code-loading"),
        ("ProfilerStep#", 1, "allocator"),  # PyTorch's profiler numbers from 0: one came before
        ("step ", 7, "allocator"),
    ],
)
def test_an_allocation_of_the_first_step_of_a_program_sets_up(
    step: str, first: int, code: str
) -> None:
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.THREAD, 1, "main")
    for k in range(4):
        ts, number = 100_000 * _US * k, first + k
        name = "hipMalloc" if k == 0 else "hipGetDevice"
        for kind, label, dur in (
            (Kind.ANNOTATION, f"{step}{number}", 99_000),
            (Kind.RUNTIME, name, 90_000),
        ):
            builder.nodes(
                kind=int(kind), name=label, rank=0, lane=lane, ts=np.array([ts]),
                dur=np.array([dur * _US]), iteration=number,
            )  # fmt: skip
    rows = findings_by_code(builder.finish())
    assert rows.keys() & {"allocator", "code-loading"} == {code}


@pytest.mark.parametrize(
    ("calls_us", "code"),
    [
        ((245_000, 246_000, 277_000), "allocator"),  # memory of a GiB, at the end of a program
        ((245_000, 10, 20), "code-loading"),
    ],
)
def test_calls_that_all_take_long_free_memory(calls_us: tuple[int, ...], code: str) -> None:
    builder = TraceBuilder()
    thread = builder.lane(0, LaneKind.THREAD, 1, "main")
    stream = builder.lane(0, LaneKind.STREAM, 1, "stream", device=0)
    start = 1_000_000 * _US * np.arange(1 + len(calls_us))
    builder.nodes(
        kind=int(Kind.KERNEL), name="add", rank=0, device=0, lane=stream, ts=start[:1],
        dur=np.array([3_000 * _US]),
    )  # fmt: skip
    builder.nodes(
        kind=int(Kind.RUNTIME), name="hipFree", rank=0, lane=thread, ts=start[1:],
        dur=np.array(calls_us) * _US,
    )  # fmt: skip
    rows = findings_by_code(builder.finish())
    assert code in rows
    assert ("code-loading" in rows) == (code == "code-loading")


@pytest.mark.parametrize(
    ("wait", "waits", "is_found"), [(3_000, 4, True), (10, 4, False), (3_000, 0, False)]
)
def test_work_that_waits_for_what_was_not_recorded(
    wait: int, waits: int, *, is_found: bool
) -> None:
    """A decoder's kernel began 463 ms after its launch, behind an event of a stream without recorded work.

    The first copy of a program began 338 ms after its call, which set up the GPU.
    """
    builder = TraceBuilder()
    host, queue = (
        builder.lane(0, LaneKind.THREAD, 1, "main"),
        builder.lane(0, LaneKind.STREAM, 7, "stream 7", 0),
    )
    calls = np.arange(8) * 200 * _US
    starts = calls + 20 * _US + np.where(np.arange(8) == waits, wait, 0) * _US
    starts = np.maximum.accumulate(starts + np.arange(8))
    common = {"rank": 0, "dur": np.full(8, 5 * _US)}
    call = builder.nodes(
        kind=int(Kind.RUNTIME), name="hipLaunchKernel", lane=host, ts=calls, **common
    )
    node = builder.nodes(
        kind=int(Kind.KERNEL), name="k", lane=queue, rank=0, dur=np.full(8, 30 * _US),
        ts=starts + 40 * _US * np.maximum(np.arange(8) - waits, 0) * (wait > 100),
    )  # fmt: skip
    builder.nodes(
        kind=int(Kind.RUNTIME), name="hipStreamWaitEvent", rank=0, lane=host,
        ts=[int(calls[waits]) - 10 * _US], dur=2 * _US,
    )  # fmt: skip
    builder.edges(call + np.arange(8), node + np.arange(8), int(EdgeKind.LAUNCH))
    trace = builder.finish()
    rows = findings_by_code(trace)
    row = rows.get("unrecorded-wait")
    assert bool(row) == is_found
    # the first work waits behind its call, which has returned long ago, and other launches
    assert ("busy-at-start" in rows) == (waits == 0)
    if waits == 0:
        # then the last launch, 1.4 ms after the first, holds up the end
        assert rows["busy-at-start"]["saves_ns"] == pytest.approx((wait - 7 * 160) * _US, rel=0.02)
    if row:
        assert row["finding"].endswith(
            "perhaps for the event of hipStreamWaitEvent right before its launch."
        )
        assert abs(row["saves_ns"] - wait * _US) < 0.3 * wait * _US
        assert row["until_ns"] - row["at_ns"] >= 0.9 * wait * _US
        assert check_command(trace, row)


def test_work_of_before_the_recording_is_no_wait_of_the_first_step() -> None:
    """Its step begins when that is done: 36 of 146 ms were named that the step did not have."""
    builder = TraceBuilder()
    host, queue = (
        builder.lane(0, LaneKind.THREAD, 1, "main"),
        builder.lane(0, LaneKind.STREAM, 7, "stream 7", 0),
    )
    at = np.arange(3)
    for kind, name, lane, ts, dur in (
        (Kind.ANNOTATION, "ProfilerStep#", host, at * 10_000, 10_000),
        (Kind.RUNTIME, "hipLaunchKernel", host, at * 10_000 + 100, 5),
        (Kind.KERNEL, "k", queue, 7_000 + at * 9_000, 9_000),
    ):
        builder.nodes(
            kind=int(kind), name=name, rank=0, lane=lane, ts=ts * _US, dur=np.full(3, dur * _US),
            iteration=at.astype(np.int32),
        )  # fmt: skip
    builder.edges(at + 3, at + 6, int(EdgeKind.LAUNCH))
    assert "unrecorded-wait" not in findings_by_code(builder.finish())


@pytest.mark.parametrize(("prepares_us", "is_found"), [(5_000, True), (20, False)])
def test_code_of_the_host_before_the_first_work_of_a_step(
    prepares_us: int, *, is_found: bool
) -> None:
    """A video was decoded and scaled for 217 ms before the GPU had anything to do in a step of 382 ms."""
    builder = TraceBuilder()
    add_preparing_rank(builder, 0, prepares_us)
    rows = findings_of_preparation(builder.finish())
    assert bool(rows) == is_found
    if rows:
        assert rows[0]["saves_ns"] == pytest.approx(prepares_us * _US, rel=0.1)


def test_only_ranks_whose_host_is_late_are_named() -> None:
    """One of four ranks slept for a second in each step: "ranks 0-3, 200.61 ms"."""
    builder = TraceBuilder()
    for rank, prepares_us in enumerate((150, 5_000, 150)):
        add_preparing_rank(builder, rank, prepares_us)
    (row,) = findings_of_preparation(builder.finish())
    assert row["ranks"] == "1"
    assert float(
        re.search(r"in gaps that average ([\d.]+) ms", row["finding"])[1]
    ) == pytest.approx(5, 0.1)


def findings_of_preparation(trace: ci.Trace) -> list[dict[str, Any]]:
    return [row for row in ci.analyze(trace, "findings").rows.to_pylist()
            if row["code"] == "host-work" and row["where"] == "preprocess"]  # fmt: skip


def add_preparing_rank(builder: TraceBuilder, rank: int, prepares_us: int) -> None:
    """Add three steps, in each of which code of the host runs for so long before its only kernel is launched."""
    host, queue = (
        builder.lane(rank, LaneKind.THREAD, 1, "main"),
        builder.lane(rank, LaneKind.STREAM, 7, "stream 7", 0),
    )
    other = builder.lane(rank, LaneKind.THREAD, 2, "monitor")
    for step in range(3):
        at = 20_000 * step
        nodes = []
        for kind, name, lane, start, dur in (
            (Kind.ANNOTATION, f"ProfilerStep#{step}", host, at, prepares_us + 3_000),
            (Kind.PYTHON, "monitor", other, at + 5, prepares_us + 2_900),
            (Kind.PYTHON, "preprocess", host, at + 10, prepares_us),
            (Kind.CPU_OP, "aten::mm", host, at + prepares_us + 20, 200),
            (Kind.RUNTIME, "hipLaunchKernel", host, at + prepares_us + 30, 10),
            (Kind.KERNEL, "Cijk_gemm", queue, at + prepares_us + 50, 2_500),
            (Kind.RUNTIME, "hipDeviceSynchronize", host, at + prepares_us + 240, 2_320),
        ):
            nodes.append(builder.nodes(
                kind=int(kind), name=name, rank=rank, lane=lane, ts=np.array([start * _US]),
                dur=np.array([dur * _US]), iteration=step,
            ))  # fmt: skip
        builder.edges(np.array([nodes[4]]), np.array([nodes[5]]), int(EdgeKind.LAUNCH))


@pytest.mark.parametrize("category", ["cpu_op", "user_annotation"])
def test_an_operator_that_computes_before_its_launch_is_work_of_the_host(
    tmp_path: Path, category: str
) -> None:
    """It was said that operators take 128 µs for each kernel, as recording slows them down."""
    trace, step_ns = {}, {}
    for has in (True, False):
        run = simulation.simulate(computing_operator(seed=9_100, category=category, has=has))
        kineto.write(run, tmp_path / str(has))
        trace[has], step_ns[has] = ci.read(tmp_path / str(has)), simulation.period_ns(run)
    rows = findings_by_code(trace[True])
    assert rows["host-work"]["where"] == "prepare"
    truth = step_ns[True] - step_ns[False]
    assert rows["host-work"]["saves_ns"] == pytest.approx(truth, rel=0.2)
    assert "slow-operators" not in rows
    assert "host-work" not in findings_by_code(trace[False])


@pytest.mark.parametrize(("kernel_us", "saved_us"), [(100, 8_900), (5_000, 0), (9_100, 0)])
def test_code_that_no_range_names_is_found_without_steps(
    tmp_path: Path, kernel_us: int, saved_us: int
) -> None:
    """18.8 of 19.9 ms between two operators had no finding; while a GPU works, a wait for it may be missing."""
    rows = _findings_of_file(tmp_path, [
        _event("cpu_op", "aten::mm", 20_000, 100),  # behind 9 ms, before which nothing was launched
        *(
            event
            for number, ts, dur in ((1, 20_050, 10), (2, 20_200, kernel_us), (3, 29_200, 10))
            for event in (
                _event("cpu_op", "aten::mm", ts - 10, 100),
                _event("cuda_runtime", "cudaLaunchKernel", ts, 10, number),
                _event("kernel", "gemm", ts + 15, dur, number),
            )
        ),
        _event("cpu_op", "aten::view", 11_000, 10),
        _event("cpu_op", "aten::view", 40_000, 10),
    ])  # fmt: skip
    saved = [row["saves_ns"] for row in rows if row["code"] == "host-work"]
    assert saved == ([pytest.approx(saved_us * _US, rel=0.01)] if saved_us else [])


def test_a_graph_replaces_the_code_between_launches(tmp_path: Path) -> None:
    """Of 93 % of a step, for which the GPU waited for Python's functions and operators, 35 % were to be saved."""
    events = []
    for step in range(1, 4):
        at = 12_000 * step
        events += [
            _event("user_annotation", f"ProfilerStep#{step}", at, 11_990),
            _event("python_function", "model.py(1): forward", at + 5, 11_900),
        ]
        for k, ts in enumerate([*range(at + 10, at + 5_000, 100), at + 11_000]):
            number = 1000 * step + k
            events += [
                _event("cpu_op", "aten::mm", ts, 40),
                _event("cuda_runtime", "cudaLaunchKernel", ts + 20, 10, number),
                _event("kernel", "gemm", ts + 35, 10, number),
            ]
    rows = {row["code"]: row["saves_ns"] for row in _findings_of_file(tmp_path, events)}
    assert rows["small-launches"] == pytest.approx(5_000 * _US, rel=0.03), "but 6 ms in one piece"
    assert rows["host-work"] > 6_000 * _US


def test_an_operator_that_only_allocates_is_no_work_of_the_host(tmp_path: Path) -> None:
    """It was said of the first `aten::empty` of a program, 2.2 ms, that it is to move off the launching thread."""
    events = []
    for step, allocates_us in ((1, 40), (2, 2_200), (3, 40)):
        at = 12_000 * step
        events += [
            _event("user_annotation", f"ProfilerStep#{step}", at, 11_900),
            _event("cpu_op", "aten::empty", at + 10, allocates_us),
            _event("cpu_op", "aten::mm", at + allocates_us + 20, 100),
            _event("cuda_runtime", "cudaLaunchKernel", at + allocates_us + 30, 30, step),
            _event("kernel", "gemm", at + allocates_us + 70, 9_500, step),
        ]
    (row,) = (row for row in _findings_of_file(tmp_path, events) if row["where"] == "aten::empty")
    assert (row["code"], row["certainty"]) == ("allocator", "likely")
    assert "it does nothing but allocate memory" in row["finding"]


def test_one_operation_is_named_before_all_launches_that_save_hardly_more() -> None:
    """A data loader that saved 33.2 % stood behind launches that saved 35.2 %, as either way the GPU was the limit."""
    place = "0", "x", 0, 1, "modelled", "text", "command"
    names = ("small-launches", 100), ("data-loader", 80), ("host-work", 70), ("exposed-copy", 101)
    found = [finding.Finding(code, saves_ns, *place) for code, saves_ns in names]
    codes = finding.to_table(found, 1000)["code"].to_pylist()
    assert codes == ["exposed-copy", "data-loader", "small-launches", "host-work"]


def test_time_of_an_operator_is_not_found_again_for_what_it_calls(tmp_path: Path) -> None:
    """`randn` and the `aten::normal_` that it called saved 32.2 % each, of 33.6 % that the GPU was idle."""
    events = []
    for step in range(1, 4):
        at = 12_000 * step
        events += [
            _event("user_annotation", f"ProfilerStep#{step}", at, 11_900),
            _event("cpu_op", "aten::randn", at + 10, 9_800),
            _event("cpu_op", "aten::normal_", at + 20, 9_780),
            _event("cpu_op", "aten::mm", at + 9_900, 100),
            _event("cuda_runtime", "cudaLaunchKernel", at + 9_920, 30, step),
            _event("kernel", "gemm", at + 9_960, 7_000, step),
        ]
    rows = _findings_of_file(tmp_path, events)
    assert [row["where"] for row in rows if row["code"] == "host-work"] == ["aten::randn"]


def test_the_only_launch_of_a_program_loads_code(tmp_path: Path) -> None:
    """Of a launch of 9.4 ms, the only one, it was said that recording slows operators down."""
    rows = _findings_of_file(tmp_path, [
        _event("cuda_runtime", "cudaMemcpyAsync", 0, 100, 1),
        _event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 50, 40, 1),
        _event("cuda_runtime", "cudaLaunchKernel", 110, 9_400, 2),
        _event("kernel", "gemm", 9_515, 200, 2),
    ])  # fmt: skip
    assert {row["code"]: row["where"] for row in rows} == {"code-loading": "cudaLaunchKernel"}


def test_a_first_launch_is_compared_with_launches_of_unknown_kernels(tmp_path: Path) -> None:
    """Of a first launch of 3 ms and a graph "operators take 129 µs for each kernel", in a recording of 18 % of the kernels."""
    rows = _findings_of_file(tmp_path, [
        _event("cuda_runtime", "cudaLaunchKernel", 0, 3_000, 1),
        _event("kernel", "k", 3_005, 3, 1),
        *(_event("cuda_runtime", "cudaLaunchKernel", 3_100 + 10 * i, 2, 10 + i) for i in range(20)),
        _event("kernel", "other", 3_110, 3, 10),
        _event("cuda_runtime", "cudaGraphLaunch", 3_400, 320, 2),
        *(_event("kernel", "k", 3_725 + 5 * i, 3, 2) for i in range(4)),
    ])  # fmt: skip
    assert "slow-operators" not in [row["code"] for row in rows]


def test_operators_set_up_libraries_around_code_that_is_loaded(tmp_path: Path) -> None:
    """Of the first convolution of a program 29 ms of a launch were found, and 53 ms of the operator were not."""
    rows = _findings_of_file(tmp_path, [
        event
        for number, ts, sets_up, loads in ((1, 0, 10, 10), (2, 200, 53_000, 29_000), (3, 90_000, 10, 10))
        for event in (
            _event("cpu_op", "aten::cudnn_convolution", ts, sets_up + loads + 10),
            _event("cuda_runtime", "cudaLaunchKernel", ts + sets_up, loads, number),
            _event("kernel", f"conv_{number == 2}", ts + sets_up + loads + 5, 50, number),
        )
    ])  # fmt: skip
    row = next(row for row in rows if row["code"] == "code-loading")
    assert row["saves_ns"] == pytest.approx(82_000 * _US, rel=0.01)
    assert row["finding"].endswith("aten::cudnn_convolution around them took 53.0 ms to set up.")
    assert "aten::cudnn_convolution" not in [row["where"] for row in rows]


def test_loading_the_code_of_elementwise_kernels_is_not_saved_by_fusing_them(
    tmp_path: Path,
) -> None:
    """372 ms of it were, as the launch of the second one of a pair took them."""
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>"
    calls = [(0, 10), (20, 10), (40, 9_400), (9_460, 10), (9_480, 10)]
    rows = _findings_of_file(tmp_path, [
        event
        for number, (ts, dur) in enumerate(calls)
        for event in (
            _event("cuda_runtime", "cudaLaunchKernel", ts, dur, number + 1),
            _event("kernel", f"{name}{'_other' * (number == 2)}", max(ts + dur, 50 * number) + 5, 50, number + 1),
        )
    ])  # fmt: skip
    assert [row["code"] for row in rows] == ["code-loading"]


def _event(category: str, name: str, ts: int, dur: int, number: int = 0) -> dict[str, Any]:
    """An event of Kineto: of the only stream or thread, and of the call or its work with this number."""
    place = (0, 7) if category in {"kernel", "gpu_memcpy"} else (9, 9)
    args = {"correlation": number, "stream": 7, "device": 0} if number else {}
    event = {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": args}
    return event | dict(zip(("pid", "tid"), place, strict=True))


def _findings_of_file(folder: Path, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    path = folder / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return ci.analyze(ci.read(path), "findings").rows.to_pylist()


def _a_loop(thread: _Thread) -> None:
    """8 ms in all, 0.2 ms for each kernel."""
    with thread.range("update"):
        for _ in range(40):
            thread.work(200)
            thread.kernel(60, name="gemm")


def _short_operators(thread: _Thread) -> None:
    """Less than 1 ms each, though many times the usual."""
    for _ in range(4):
        with thread.range("prepare"):
            thread.work(600)
            thread.kernel(60, name="gemm")


def _slow_operators(thread: _Thread) -> None:
    """All take long, one of them five times as long as the others."""
    for number in range(60):
        with thread.range("outer"):
            thread.work(600 if number else 3000)
            with thread.range("inner"):
                thread.work(600)
                thread.kernel(60, name="gemm")


@pytest.mark.parametrize("write", [_a_loop, _short_operators, _slow_operators])
def test_operators_that_launch_slowly_are_no_work_of_the_host(
    tmp_path: Path, write: Callable[[_Thread], None]
) -> None:
    kineto.write(simulation.simulate(launching(9_102, write)), tmp_path)
    assert "host-work" not in findings_by_code(ci.read(tmp_path))


def test_launches_that_always_take_long_load_no_code(tmp_path: Path) -> None:
    kineto.write(simulation.simulate(slow_launches(1)), tmp_path)
    assert "code-loading" not in findings_by_code(ci.read(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 50))
@pytest.mark.parametrize("code", DEFECTS)
def test_defects_of_many_jobs_are_found(tmp_path: Path, code: str, seed: int) -> None:
    check_defect(tmp_path, code, seed)


@pytest.mark.parametrize("code", _RANKS)
def test_a_late_rank_is_found_with_its_cause(code: str) -> None:
    facts, ranks = _RANKS[code]
    job = MadeJob(**facts)  # type: ignore[arg-type] # one table of different facts
    row = findings_by_code(straggling_trace(job))[code]
    assert row["ranks"] == ranks
    if "hosts" not in facts:
        truth = (length_ns(job) - length_ns(MadeJob())) / job.steps
        assert row["saves_ns"] == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize(
    ("cause", "replicas", "end"),
    slow_from(
        [
            ("gpu", 2, " of other ranks of its stage."),
            ("host", 2, " of other ranks."),
            ("gpu", 1, None),
        ],
        2,
    ),
)
def test_kernels_of_a_late_rank_are_compared_within_its_stage(
    cause: str, replicas: int, end: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages have kernels of other lengths. Launches are compared with those of all ranks."""
    measured, *_ = measured_and_ideal(Pipeline(replicas=replicas, stages=2, steps=2))
    examined = job.ExaminedJob(pipeline_trace(table(measured)))
    compared = examined.compared
    assert compared is not None
    assert [row["stage"] for row in compared.by_gain] == [0] * replicas + [1] * replicas
    first, *rest = (row | {"cause": None} for row in compared.by_gain)
    first |= {"cause": cause, "slower_share": 1.0, "host_late_ns": 5_000_000}
    first |= dict.fromkeys(GAIN_COLUMNS.values(), 10**9)
    monkeypatch.setattr(compared, "by_gain", [first, *rest])
    for name in ("slow_stage", "slow_ranks", "slow_link"):
        monkeypatch.setattr(compared, name, None)
    found = [row.finding for row in ranks.late_ranks(examined)]
    assert [re.search(" of other.*", text)[0] for text in found] == [end] * (end is not None)


@pytest.mark.parametrize("code", _RANKS)
def test_causes_are_those_of_all_gains(code: str) -> None:
    """Findings leave out gains that decide no cause."""
    facts, _ = _RANKS[code]
    trace = straggling_trace(MadeJob(**facts))  # type: ignore[arg-type] # one table of different facts
    every, causes_alone = (Comparison(trace, causes_alone=alone).by_gain for alone in (False, True))
    names = ("rank", "stage", "cause", "kernel_time_ns", "slowdown_factor", "gain_ns")
    decided = [
        [(gain_of_cause(row), *(row[name] for name in names)) for row in rows]
        for rows in (every, causes_alone)
    ]
    assert decided[0] == decided[1]


def test_no_gain_is_computed_of_ranks_that_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took a replay of the whole graph, one or two of each rank."""
    replays = []
    of_all_gains = JobReplay.lengths_with

    def counted(*columns: Any, **options: Any) -> Any:
        replays.append(1)
        return of_all_gains(*columns, **options)

    monkeypatch.setattr(JobReplay, "lengths_with", counted)
    trace = straggling_trace(MadeJob(jitter=0.0))
    findings_by_code(trace)
    assert not replays
    assert Comparison(trace).ranks
    assert len(replays) >= len(trace.ranks)


@pytest.mark.parametrize("hosts", slow_from([False, True], 1))
def test_equal_ranks_are_not_late(*, hosts: bool) -> None:
    assert not findings_by_code(straggling_trace(MadeJob(hosts=hosts))).keys() & _RANKS.keys()


@pytest.mark.parametrize(("slower", "is_late"), [(0.68, False), (0.72, True)])
def test_a_rank_may_be_slower_by_chance(*, slower: float, is_late: bool) -> None:
    """Of 100 kernels 70 are slower than their counterparts at four standard deviations of a half."""
    works = [Work(Kind.KERNEL, 100 * _US * k, 50 * _US) for k in range(100)]
    row = {"cause": "gpu", "rank": 0, "slower_share": slower}
    assert ranks.is_sure(job.ExaminedJob(gpu_trace(works)), row) == is_late


def kernels_at(lowest_mhz: float, highest_mhz: float, **columns: float) -> ci.Trace:
    """Kernels of 100 µs at the highest of some clocks, which they follow in part."""
    count = 40
    clock = np.linspace(lowest_mhz, highest_mhz, count)
    took = 100 * _US * (0.8 * highest_mhz / clock + 0.2)
    trace = clocked_job(clock, np.round(took), gpus=_MI300X)
    return trace.with_columns(
        **{name: arrow.array(np.full(count, value)) for name, value in columns.items()}
    )


@pytest.mark.parametrize(("size", "is_far"), [(26_000_000, True), (400_000_000, False)])
def test_kernels_far_below_their_roofline(*, size: int, is_far: bool) -> None:
    """At 5.3 TB/s 26 MB take 4.9 of 100 µs; at half of the roofline kernels take 9.8."""
    row = findings_by_code(kernels_at(2100, 2100, mem_bytes=size)).get("below-roofline")
    assert (row is not None) == is_far
    if row:
        assert row["saves_ns"] == pytest.approx(40 * 90.2 * _US, rel=0.02)
        assert row["certainty"] == finding.LIKELY


@pytest.mark.parametrize(
    ("lowest", "highest", "is_held"), [(1200, 1400, True), (2098, 2100, False)]
)
def test_a_clock_below_the_highest(*, lowest: float, highest: float, is_held: bool) -> None:
    row = findings_by_code(kernels_at(lowest, highest)).get("throttled-gpu")
    assert (row is not None) == is_held
    if row:
        assert row["saves_low_ns"] <= row["saves_ns"] <= row["saves_high_ns"]


def test_only_ranks_whose_clock_was_low_are_named() -> None:
    """Rank 1 of two runs its kernels at 1800 to 2000 MHz, the other at the highest clock."""
    low = np.linspace(1800, 2000, 40)
    clock = np.ravel(np.column_stack([np.full(40, 2100.0), low]))
    took = np.round(100 * _US * (0.8 * 2100 / clock + 0.2))
    trace = clocked_job(clock, took, ranks=2, gpus=_MI300X * 2)
    row = findings_by_code(trace)["throttled-gpu"]
    assert row["ranks"] == "1"
    assert row["finding"].startswith("The GPU of rank 1 ran at 1,900 MHz instead of")


def test_the_sample_job_is_throttled_only_where_its_clock_is_known(demo: Path) -> None:
    assert findings_by_code(read_once(demo))["throttled-gpu"]["where"] == "power"
    assert "throttled-gpu" not in findings_by_code(read_once(demo / "kineto"))


def chain(name: str, phase: str = "forward", operation: str = "") -> ci.Trace:
    """Kernels of one name, 1 µs apart, each of 30 µs, and one of another."""
    works = [
        Work(Kind.KERNEL, 31 * _US * k, 30 * _US, name=name, operation=operation) for k in range(10)
    ]
    works.append(Work(Kind.KERNEL, 320 * _US, 30 * _US, name="Cijk_gemm"))
    return gpu_trace(works).with_columns(phase=[phase] * 10 + [None])


def test_work_of_unknown_launch_may_wait_for_transfers_before_it() -> None:
    """Of a rank that waits for transfers for 26 % of its time, of which no launches were recorded, 6 % were to be saved."""
    works = []
    for k in range(10):
        start = 1000 * _US * k
        works += [
            Work(Kind.KERNEL, start, 400 * _US, name="gemm"),
            Work(Kind.COMM, start + 410 * _US, 300 * _US, stream=1, name="nccl"),
        ]
    row = findings_by_code(gpu_trace(works))["exposed-collective"]
    assert row["saves_ns"] == pytest.approx(10 * 300 * _US, rel=0.01)
    assert row["finding"].endswith(" What waits for it was not recorded.")


def test_elementwise_kernels_behind_each_other() -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>"
    assert findings_by_code(chain(name))["unfused-elementwise"]["saves_ns"] == 9 * 21 * _US
    assert "unfused-elementwise" not in findings_by_code(chain("Cijk_gemm_1"))
    assert "unfused-elementwise" not in findings_by_code(chain(f"triton_{name}"))
    sums = chain(name, "backward", "torch::autograd::AccumulateGrad")
    assert "unfused-elementwise" not in findings_by_code(sums), "each is of another tensor"
    assert "unfused-elementwise" not in findings_by_code(chain("SubTensorOpWithScalar1d")), "MIOpen"
    of_tensors = "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>"
    assert "unfused-elementwise" not in findings_by_code(chain(of_tensors))
    of_optimizer = findings_by_code(chain(name, "optimizer"))["unfused-elementwise"]
    assert of_optimizer["saves_ns"] == 9 * _US  # of other tensors: no more than the gaps


def test_work_that_is_computed_again() -> None:
    assert findings_by_code(chain("Cijk_gemm_1", "recompute"))["recompute"]["saves_ns"] >= 300 * _US
    assert "recompute" not in findings_by_code(chain("Cijk_gemm_1", "backward"))


def test_every_code_has_a_test() -> None:
    tested = {*DEFECTS, *_RANKS, "below-roofline", "throttled-gpu", "unfused-elementwise"}
    lacks = (tested | {"recompute", "busy-at-start"}) ^ set(catalogue.CATALOGUE)
    assert not lacks, (
        "no program of support/programs/defects.py, and not named here as tested by a trace"
    )


def test_a_saving_below_half_a_percent_is_not_shown() -> None:
    def row(saves_ns: int) -> finding.Finding:
        return finding.Finding("item", saves_ns, "0", "x", 0, 1, finding.MODELLED, "x", "x")

    assert finding.to_table([row(4), row(5), row(9)], 1000)["saves_ns"].to_pylist() == [9, 5]


def test_findings_and_summary_keep_the_contract_of_analyses(demo: Path) -> None:
    trace = read_once(demo / "kineto")
    check_analysis(findings, trace)
    check_analysis(summary, trace)


def test_steps_and_ranks_can_be_chosen(demo: Path) -> None:
    trace = read_once(demo / "kineto")
    late = findings_by_code(trace)["late-rank-gpu"]
    assert late["ranks"] == "1"
    assert "late-rank-gpu" not in findings_by_code(trace, ranks="0")
    assert ci.analyze(trace, "findings", steps="11").summary["steps"] == 1


@pytest.mark.parametrize(("comm_ns", "is_said"), [(0, True), (5, False)])
def test_the_summary_says_that_communication_has_no_times(comm_ns: int, *, is_said: bool) -> None:
    """ETs that other tools wrote leave them to the simulator."""
    works = [gpu_work.Work(Kind.KERNEL, 0, 10), gpu_work.Work(Kind.COMM, 10, comm_ns)]
    text = ci.analyze(gpu_work.trace(works), "summary").rows["text"].to_pylist()
    assert any("communication has no durations" in line for line in text) == is_said


def test_shares_of_the_summary_add_up(demo: Path) -> None:
    result = ci.analyze(read_once(demo), "summary")
    assert result.rows.num_rows <= 15
    parts = [result.summary[f"{n}_share"] for n in ("compute", "exposed_comm", "copy", "idle")]
    assert sum(parts) == pytest.approx(1)
    causes = [v for n, v in result.summary.items() if n.startswith("idle_") and n != "idle_share"]
    assert sum(causes) == pytest.approx(result.summary["idle_share"])
    text = "\n".join(result.rows["text"].to_pylist())
    for part in ("2 ranks, 2 steps", "nothing was lost", "rank 1, its GPU", "critical path: "):
        assert part in text


def test_a_clock_that_nothing_relates_is_named(demo: Path) -> None:
    """What the other clocks agree within does not hold for it: it is taken as recorded."""
    trace = read_once(demo / "kineto")
    alone = replace(trace.meta.clocks[1], applied=False, pairs=0, reason="no collectives relate it")
    trace = trace.with_meta(clocks=(trace.meta.clocks[0], alone))
    text = "nothing relates the clock of rank 1 to the others"
    assert text in "\n".join(summary(trace).rows["text"].to_pylist())
    assert "nothing relates rank 1" in ci.analyze(trace, "collectives").notes["clocks"]


def test_the_summary_has_waits_and_bounds_of_other_analyses(demo: Path) -> None:
    trace = read_once(demo)
    result = summary(trace)
    waited_ns = ci.analyze(trace, "taxes", steps="each").summary["exposed_wait_ns"]
    whole_ns = math.prod(result.summary[name] for name in ("ranks", "steps", "step_ns"))
    assert result.summary["exposed_wait_share"] == pytest.approx(waited_ns / whole_ns, rel=1e-3)
    lines = dict(zip(*result.rows.to_pydict().values(), strict=True))
    loss, low, high = map(float, re.findall(r"([\d.]+) ms", lines["clock"]))
    assert low < loss < high


def test_shares_without_steps_are_of_the_time_of_the_summary() -> None:
    builder = TraceBuilder()
    thread = builder.lane(0, LaneKind.THREAD, 1, "main")
    stream = builder.lane(0, LaneKind.STREAM, 7, "stream 7", 0)
    for kind, lane, ts, dur in ((Kind.CPU_OP, thread, 0, 1000), (Kind.KERNEL, stream, 300, 250)):
        builder.nodes(
            kind=int(kind), name="x", rank=0, lane=lane, ts=np.array([ts]), dur=np.array([dur])
        )
    figures = ci.analyze(builder.finish(), "summary").summary
    assert (figures["step_ns"], figures["compute_share"]) == (1000, 0.25)
    assert figures["idle_share"] == figures["idle_window_share"] == 0.75


def test_gaps_without_launches_have_no_cause() -> None:
    work = [Work(Kind.KERNEL, 1000 * i, 100, name="k") for i in range(3)]
    lines = ci.analyze(gpu_trace(work), "summary").rows.to_pylist()
    (binds,) = (row["text"] for row in lines if row["topic"] == "binds")
    assert binds == "critical path: 85.7% gaps of unknown cause, 14.3% compute"


@pytest.mark.parametrize(
    ("first_ns", "gap_ns", "binds"),
    [
        (0, 120, "critical path: 100.0% compute"),
        (
            0,
            160,
            "critical path: 99.9% compute, 0.1% launches and waits (all for no recorded reason)",
        ),
        (
            0,
            90_000,
            "critical path: 75.0% compute, 25.0% launches and waits (all for no recorded reason)",
        ),
        (  # of vLLM, whose next step is launched while the one before runs: no finding can be made of that
            90_000,
            0,
            (
                "critical path: 75.0% compute, 25.0% launches and waits (all before the first GPU work, perhaps "
                "for what ran before the recording)"
            ),
        ),
    ],
)
def test_causes_of_a_line_begin_at_a_twentieth_of_a_percent(
    first_ns: int, gap_ns: int, binds: str
) -> None:
    """Of 270 µs."""
    builder = TraceBuilder()
    thread = builder.lane(0, LaneKind.THREAD, 1, "main")
    stream = builder.lane(0, LaneKind.STREAM, 7, "stream 7", 0)
    starts = [first_ns, first_ns + 90_000, first_ns + 180_000 + gap_ns]
    for kind, lane, ts, dur in (
        (Kind.RUNTIME, thread, [0, 1, 2], 1),
        (Kind.KERNEL, stream, starts, 90_000),
    ):
        builder.nodes(
            kind=int(kind), name="x", rank=0, lane=lane, ts=np.array(ts), dur=np.full(3, dur)
        )
    builder.edges(np.arange(3), np.arange(3, 6), EdgeKind.LAUNCH)
    lines = ci.analyze(builder.finish(), "summary").rows.to_pylist()
    assert binds in [row["text"] for row in lines if row["topic"] == "binds"]


def _with_a_kernel_meanwhile(
    calls: list[tuple[int, int]], kernel_ns: int, around: str = ""
) -> tuple[str, dict[str, Any]]:
    """Summarise 1 µs of a host with these calls, of which none is known to wait for a kernel that starts at 150 ns."""
    builder = TraceBuilder()
    thread = builder.lane(0, LaneKind.THREAD, 1, "main")
    stream = builder.lane(0, LaneKind.STREAM, 7, "stream 7", 0)
    for kind, lane, ts, dur in (
        *((Kind.RUNTIME, thread, *call) for call in calls),
        (Kind.KERNEL, stream, 150, kernel_ns),
        *([(Kind.ANNOTATION, thread, 0, 1000)] if around else []),
    ):
        builder.nodes(
            kind=int(kind), name=around if kind == Kind.ANNOTATION else "x", rank=0, lane=lane,
            ts=np.array([ts]), dur=np.array([dur]),
        )  # fmt: skip
    trace = builder.finish()
    lines = ci.analyze(trace, "summary").rows.to_pylist()
    (binds,) = (row["text"] for row in lines if row["topic"] == "binds")
    return binds, ci.analyze(trace, "critical_path").summary


@pytest.mark.parametrize(
    ("calls", "kernel_ns", "unclear_ns"),
    [([(0, 1000)], 600, 0), ([(0, 100), (900, 100)], 99, 99)],
)
def test_a_host_that_is_known_to_work_binds_alone(
    calls: list[tuple[int, int]], kernel_ns: int, unclear_ns: int
) -> None:
    binds, path = _with_a_kernel_meanwhile(calls, kernel_ns)
    assert binds == "critical path: 100.0% host"
    assert path["host_gap_busy_ns"] == unclear_ns


@pytest.mark.parametrize("around", ["", "dispatch(F)"])
def test_a_host_without_operations_may_wait_for_the_gpu_that_works_meanwhile(around: str) -> None:
    """DeepEP's dispatch reads what its kernel wrote until it is there, in a range of the program."""
    binds, path = _with_a_kernel_meanwhile([(0, 100), (900, 100)], 600, around)
    assert path["host_gap_busy_ns"] == 600
    assert binds.startswith(
        "critical path: 100.0% host (60.0% between its operations while the GPU works"
    )


def test_time_before_the_rank_that_begins_last_is_named() -> None:
    """DLRM's last rank was recorded 7.5 ms after the first, a third of the step, as if its host had worked."""
    builder = TraceBuilder()
    for rank, ts in enumerate([0, 400]):
        thread = builder.lane(rank, LaneKind.THREAD, 1, "main")
        stream = builder.lane(rank, LaneKind.STREAM, 7, "stream 7", 0)
        for kind, lane, at, dur in (
            (Kind.RUNTIME, thread, ts, 900 - ts + rank),
            (Kind.KERNEL, stream, 450, 10),
        ):
            builder.nodes(
                kind=int(kind), name="x", rank=rank, lane=lane, ts=np.array([at]), dur=dur
            )
    trace = builder.finish()
    lines = ci.analyze(trace, "summary").rows.to_pylist()
    (binds,) = (row["text"] for row in lines if row["topic"] == "binds")
    assert binds == "critical path: 100.0% host (44.4% before its first record)"
    assert ci.analyze(trace, "critical_path").summary["host_first_ns"] == 400
    alone = ci.analyze(trace, "critical_path", ranks="1").summary
    assert (alone["path_ns"], alone["host_first_ns"]) == (501, 0)


def test_a_path_of_the_host_alone_says_that_no_gpu_work_is_known() -> None:
    """A Chrome trace without categories had "100.0% host", as if that were what its GPUs wait for."""
    builder = TraceBuilder()
    thread = builder.lane(0, LaneKind.THREAD, 1, "main")
    builder.nodes(
        kind=int(Kind.CPU_OP), name="x", rank=0, lane=thread, ts=np.arange(9), dur=np.full(9, 1)
    )
    lines = ci.analyze(builder.finish(), "summary").rows.to_pylist()
    assert "critical path: 100.0% host, as no GPU work is known" in [row["text"] for row in lines]


def test_a_profile_without_durations_is_not_called_one_without_times() -> None:
    """The advice was to give a profile, which it was."""
    builder = TraceBuilder()
    stream = builder.lane(0, LaneKind.STREAM, 7, "stream 7", 0)
    builder.nodes(
        kind=int(Kind.KERNEL), name="x", rank=0, lane=stream, ts=np.full(2, 9), dur=np.zeros(2, int)
    )
    lines = ci.analyze(builder.finish(), "summary").rows.to_pylist()
    (text,) = (row["text"] for row in lines if row["topic"] == "step")
    assert text == "all operations were recorded without a duration and at one time"


def test_a_data_loader_waits_for_its_own_threads() -> None:
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    binds, path = _with_a_kernel_meanwhile([(0, 100), (900, 100)], 600, loader)
    assert path["host_gap_busy_ns"] == 0
    assert binds == "critical path: 100.0% host"


def test_a_rank_that_hardly_costs_time_is_not_named() -> None:
    result = ci.analyze(straggling_trace(MadeJob(gpu={1: 1.012})), "summary")
    assert result.summary["late_saves_ns"] < 0.005 * result.summary["step_ns"]
    assert ("late", "no rank and no link") in zip(*result.rows.to_pydict().values(), strict=True)


def test_a_job_of_one_rank_has_counts_of_steps_alone(tmp_path: Path) -> None:
    """It had "60 a step and rank"."""
    trace, _ = program_of(tmp_path, "small-launches", 9_101, has=True)
    row = findings_by_code(trace)["small-launches"]
    assert re.search(r": [\d,]+ a step, half of them", row["finding"])


def test_steps_of_one_length_have_no_range() -> None:
    """It had "1,135 ms to 1,135 ms"."""
    works = [Work(Kind.KERNEL, 1000 * k, 1000, iteration=k) for k in range(3)]
    lines = ci.analyze(gpu_trace(works), "summary").rows.to_pylist()
    assert "0.001 ms, mean of 3 steps, 0-2 (each 0.001 ms)" in [row["text"] for row in lines]


def test_many_sources_leave_room_for_findings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four files the command took four of the fifteen lines of a terminal."""
    rows = pa.table({"topic": ["more"], "text": ["chopper-analyze RUN/ findings: all of them"]})
    for columns, shown in (("", " ".join(["rank.json"] * 20)), ("80", "…")):
        monkeypatch.setenv("COLUMNS", columns)
        result, source = Result("summary", rows, {}, {}), " ".join(["rank.json"] * 20)
        console_results.show([result], max_rows=None, definitions=False, source=source)
        assert capsys.readouterr().out == f"more  chopper-analyze {shown} findings: all of them\n"


def test_tools_for_gpus_of_amd_are_not_advised_for_others() -> None:
    """Of jobs on V100s and H100s the summary said to record amd-smi and rocprofv3."""
    trace = gpu_trace([Work(Kind.KERNEL, 0, 1000)])
    needs = {arch: missing.missing(trace.with_meta(devices=(Device("", 0, arch=arch),)))
             for arch in ("gfx942", "sm_90")}  # fmt: skip
    assert {n.record for n in needs["gfx942"]} - {n.record for n in needs["sm_90"]} == {
        "rocprofv3 --pmc"
    }


def test_calls_of_cuda_are_enough_not_to_advise_tools_of_amd() -> None:
    """A recording filtered by HTA has no properties of its GPUs, and was advised rocprofv3."""
    advised = []
    for call in ("cudaLaunchKernel", "hipLaunchKernel"):
        trace = gpu_trace([Work(Kind.KERNEL, 0, 1000), Work(Kind.KERNEL, 1000, 1000, name=call)])
        advised.append("rocprofv3 --pmc" in {need.record for need in missing.missing(trace)})
    assert advised == [False, True]


@pytest.mark.parametrize(
    ("call", "is_launched"), [("cudaLaunchKernel", True), ("cudaDeviceSynchronize", False)]
)
def test_launches_without_work_are_not_for_want_of_asking(call: str, *, is_launched: bool) -> None:
    """CUPTI recorded the launches of a program and none of its kernels: the advice was ProfilerActivity.CUDA."""
    (need,) = missing.missing(gpu_trace([Work(Kind.RUNTIME, 0, 1000, name=call)]))
    assert need.name == "GPU work"
    assert ("launches" in need.record) == is_launched


def test_files_that_break_off_lack_gpu_work_that_was_recorded(tmp_path: Path) -> None:
    """The advice was ProfilerActivity.CUDA, whose events stood in the missing rest."""
    path = tmp_path / "rank0.json"
    events = [_event("cpu_op", "aten::mm", at, 10) for at in (0, 20)]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events})[:-30])
    (need,) = missing.missing(ci.read(path))
    assert need.record == "files that do not break off"


def test_events_of_no_known_kind_are_not_for_want_of_recording() -> None:
    """Of kernels that a tool wrote without a category the advice was to record what GPUs do."""
    (need,) = missing.missing(gpu_trace([Work(Kind.OTHER, 0, 1000)]))
    assert need.record.startswith("categories of events")


def test_a_late_rank_of_some_is_late_among_those_that_were_read() -> None:
    """Of two of four ranks one was said to cost 5.3 ms; of all four another cost 0.7 ms."""
    job = straggling_trace(MadeJob(gpu={3: 1.2}))
    some = job.select_ranks([1, 3]).with_meta(facts={parallelism.WORLD_SIZE: "6000"})
    (late,) = (
        r["text"] for r in ci.analyze(some, "summary").rows.to_pylist() if r["topic"] == "late"
    )
    assert re.fullmatch(r"rank 3, its GPU: .* a step \(of those that were read\)", late)
    row = findings_by_code(some)["late-rank-gpu"]
    assert row["finding"].endswith(" longer than those of other ranks that were read.")
    for analysis in ("stragglers", "what_if", "findings"):
        (unread,) = (
            text for name, text in ci.analyze(some, analysis).notes.items() if "not read" in name
        )
        assert unread.startswith("5,998 of the job's 6,000: ")
        assert not any("not read" in name for name in ci.analyze(job, analysis).notes)


def test_a_stage_that_is_late_is_no_late_gpu() -> None:
    """The summary called the only rank of a stage late, and findings the stage, with another saving."""
    job = straggling_trace(MadeJob(gpu={3: 1.2})).select_ranks([0, 3])
    row = findings_by_code(job)["straggling-stage"]
    (late,) = (
        r["text"] for r in ci.analyze(job, "summary").rows.to_pylist() if r["topic"] == "late"
    )
    saves = f"{row['saves_ns'] / 1e6:.3f} ms a step"
    assert late == f"{row['where']} of the pipeline (ranks {row['ranks']}): {saves}"


def test_the_cause_of_a_late_rank_is_its_own_where_a_link_costs_more() -> None:
    job = straggling_trace(MadeJob(gpu={3: 1.2}, link={1: 20.0}))
    result = ci.analyze(job, "summary")
    assert result.summary["late_link_saves_ns"] > result.summary["late_saves_ns"] > 0
    (late,) = (row["text"] for row in result.rows.to_pylist() if row["topic"] == "late")
    assert late.startswith("rank 3, its GPU: ")
    assert late.endswith("; likely the link between ranks 1,2"), "longer transfers may be larger"
    with_sizes = job.with_columns(bytes=np.full(job.nodes.num_rows, 1000))
    rows = ci.analyze(with_sizes, "summary").rows.to_pylist()
    assert [r["text"][-28:] for r in rows if r["topic"] == "late"] == [
        "; the link between ranks 1,2"
    ]


def test_kernels_of_a_damaged_duration_are_not_short(shared: Path) -> None:
    """Half of them were "shorter than 0.0 µs"."""
    job = ci.read(shared / "pytorch" / "odd" / "dur_nan_inf_negative_null_string.json")
    sentence = findings_by_code(job)["small-launches"]["finding"]
    dur = job.array("dur")[job.array("kind") == Kind.KERNEL]
    assert sentence.endswith(f"shorter than {np.median(dur[dur > 0]) / 1e3:.1f} µs.")
    assert not sentence.endswith(" 0.0 µs.")


def test_a_warm_up_is_less_than_the_whole_of_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    starts = (0, 100_000, 101_000, 102_000)
    work = [Work(Kind.KERNEL, start, 100_000 if not i else 1000, iteration=i)
            for i, start in enumerate(starts)]  # fmt: skip
    row = findings_by_code(gpu_trace(work))["warm-up-steps"]
    lines = ci.analyze(gpu_trace(work), "summary").rows.to_pylist()
    (length, *_) = (line["text"] for line in lines if line["topic"] == "step")
    assert length.endswith(", without step 0 (warm-up)")
    assert row["saves_ns"] == 24_750
    assert row["share"] == pytest.approx(24_750 / 25_750)
    assert "step 0 takes 100.0 times as long as the others, and is left out" in row["finding"]
    console_results.show([ci.analyze(gpu_trace(work), "findings")], max_rows=None, definitions=True)
    shown = capsys.readouterr().out
    assert "µs a step, 96.1% of the mean of all steps\n" in shown
    assert "order: the largest saving first; small-launches and" in shown


@pytest.mark.parametrize(("range_us", "is_lag"), [(1_000, True), (3_000, False)])
def test_a_first_step_that_lasts_no_longer_on_its_host_is_no_warm_up(
    range_us: int, *, is_lag: bool
) -> None:
    """Step 550 of a production job "was a warm-up": its work ended 156 ms after its range, as that of each step does."""
    builder = TraceBuilder()
    host = builder.lane(0, LaneKind.THREAD, 1, "main")
    queues = [builder.lane(0, LaneKind.STREAM, number, "stream", 0) for number in (7, 8)]
    for step, at in enumerate((0, *(range_us + 1_000 * later for later in range(3)))):
        length_us = 1_000 if step else range_us
        end = at + length_us
        nodes = [
            builder.nodes(
                kind=int(kind), name=name, rank=0, lane=lane, ts=np.array([start * _US]),
                dur=np.array([dur * _US]), iteration=step,
            )
            for kind, name, lane, start, dur in (
                (Kind.ANNOTATION, f"ProfilerStep#{step}", host, at, length_us),
                (Kind.RUNTIME, "hipLaunchKernel", host, at + 10, 5),
                (Kind.KERNEL, "fill", queues[1], at + 20, 5),
                (Kind.RUNTIME, "hipLaunchKernel", host, end - 20, 10),
                (Kind.KERNEL, "Cijk_gemm", queues[0], end + 300, 500),
            )
        ]  # fmt: skip
        builder.edges(np.array(nodes[1::2]), np.array(nodes[2::2]), int(EdgeKind.LAUNCH))
    trace = builder.finish()
    row = findings_by_code(trace)["warm-up-steps"]
    texts = ci.analyze(trace, "summary").rows["text"].to_pylist()
    begins = "with step 0, which counts from its own begin" if is_lag else "with a warm-up: step 0"
    assert row["finding"].startswith(f"The recording begins {begins}")
    why = "no step before it was recorded" if is_lag else "warm-up"
    assert any(text.endswith(f", without step 0 ({why})") for text in texts)


def test_a_warm_up_of_several_steps_is_as_long_as_their_mean() -> None:
    lengths = (9000, 3000, 1000, 1000)
    starts = np.cumsum((0, *lengths))
    work = [Work(Kind.KERNEL, int(starts[i]), dur, iteration=i) for i, dur in enumerate(lengths)]
    row = findings_by_code(gpu_trace(work))["warm-up-steps"]
    assert "steps 0-1 take 6.0 times as long as the others, and are left out" in row["finding"]
    lines = ci.analyze(gpu_trace(work), "summary").rows["text"].to_pylist()
    assert any("% of the mean of all steps): " in line for line in lines)


def test_the_summary_has_a_note_of_each_kind_of_fault() -> None:
    """Two files had it, and the first of them no example."""
    issues = [
        Issue("late", Severity.INFO, "It was late.", n, text) for n, text in ((3, ""), (1200, "b"))
    ]
    trace = gpu_trace([Work(Kind.KERNEL, 0, 1000)]).with_meta(issues=tuple(issues))
    notes = ci.analyze(trace, "summary").notes
    assert notes["input: late"] == "1,203: It was late. Example: b"


def test_what_was_not_recorded_is_named_with_how_to_record_it(demo: Path) -> None:
    lines = ci.analyze(read_once(demo / "kineto"), "summary").rows.to_pylist()
    (line,) = (row["text"] for row in lines if row["topic"] == "record")
    assert "telemetry (chopper-record) for dvfs" in line
    assert "rocprofv3 --pmc" in line
    assert "clock" not in {row["topic"] for row in lines}


def test_a_trace_of_nothing_has_a_summary() -> None:
    result = ci.analyze(gpu_trace([]), "summary")
    assert result.summary["findings"] == []
    assert "no operations were recorded" in result.rows["text"][-1].as_py()


def test_a_job_without_communication_lacks_no_times_of_it() -> None:
    lines = ci.analyze(gpu_trace([Work(Kind.KERNEL, 0, 1000)]), "summary").rows["text"].to_pylist()
    assert not any("communication has no durations" in line for line in lines)


def test_telemetry_alone_names_the_analyses_that_have_rows(tmp_path: Path) -> None:
    path = tmp_path / "smi.csv"
    rows = [f"2026/01/01 00:00:0{k}.000, 0, {40 + k}, {300 + k}.00 W" for k in range(8)]
    path.write_text("\n".join(["timestamp, index, temperature.gpu, power.draw [W]", *rows, ""]))
    trace = ci.read(path)
    line = ci.analyze(trace, "summary").rows.to_pylist()[-1]
    assert line["topic"] == "more"
    command, _, _ = line["text"].partition(":")
    named = command.removeprefix("chopper-analyze RUN/ ").split()
    assert named == ["efficiency", "energy", "imbalance", "telemetry"]
    assert all(ci.analyze(trace, name).rows.num_rows for name in named)


def test_without_steps_nothing_is_found_in_the_job() -> None:
    trace = gpu_trace([Work(Kind.KERNEL, 0, 1000)])
    texts = ci.analyze(trace, "summary").rows["text"].to_pylist()
    found = "nothing was found that would save 0.5% of the job or more"
    assert found in texts
    assert ci.analyze(trace, "findings").notes["no rows"] == found


def test_where_nothing_is_found_the_largest_kernels_are_named() -> None:
    """By function, the largest first, if GPUs compute for most of the time."""
    names = ["void at::gemm<float>(int)", "gemm", "softmax(float*)", "add", "mul"]
    durations = (500, 100, 250, 100, 50)
    starts = np.cumsum([0, *durations[:-1]])
    work = [
        Work(Kind.KERNEL, int(t), d, name=n)
        for t, d, n in zip(starts, durations, names, strict=True)
    ]
    lines = ci.analyze(gpu_trace(work), "summary").rows.to_pylist()
    (kernels,) = (line["text"] for line in lines if line["topic"] == "kernels")
    assert kernels == "60.0% gemm, 25.0% softmax, 10.0% add: chopper-analyze RUN/ kernels"
    idle = [Work(Kind.KERNEL, 0, 100), Work(Kind.KERNEL, 900, 100)]
    assert "kernels" not in {
        line["topic"] for line in ci.analyze(gpu_trace(idle), "summary").rows.to_pylist()
    }


def test_a_warm_up_stands_behind_what_shares_the_step_that_is_shown() -> None:
    own = {"command": "", "finding": "", "certainty": finding.MEASURED, "at_ns": 0, "until_ns": 1}
    of_steps = finding.Finding(code="idle", saves_ns=10, ranks="0", where="", **own)
    of_recording = finding.Finding(
        code="warm-up-steps", saves_ns=50, ranks="0", where="", step_ns=150, **own
    )
    rows = finding.to_table([of_recording, of_steps], 100).to_pylist()
    assert [(row["code"], row["share"]) for row in rows] == [
        ("idle", 0.1),
        ("warm-up-steps", pytest.approx(1 / 3)),
    ]


@pytest.mark.parametrize(
    ("path", "code", "ranks"),
    slow_from(
        [
            ("pytorch/mi300x/gaunernst_bert-small-uncased__1016001.json.gz", "item", ""),
            ("pytorch/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "host-sync", ""),
            ("pytorch/dlrm_8rank_v100/kineto", "blocking-copy", "0"),
        ],
        2,
    ),
)
def test_findings_of_waits_name_the_change_that_gains_their_saving(
    path: str, code: str, ranks: str
) -> None:
    """Also where usual delays belong to edges that bind no longer."""
    trace = read_once(real(path))
    rows = ci.analyze(trace, "findings", ranks=ranks).rows.to_pylist()
    (row,) = [r for r in rows if r["code"] == code]
    change = row["command"].partition("change=")[2].rstrip('"')
    assert change.startswith("nowait where ")
    gained = ci.analyze(trace, "what_if", change=change, ranks=ranks).rows["gain_ns"].to_pylist()[1]
    assert gained == row["saves_ns"]


def test_what_an_operator_sets_up_at_its_first_use_is_not_slow_recording() -> None:
    """A convolution that loads cuDNN takes 2.9 s of its own: 36.8 ms for each of the 79 kernels."""
    found = ci.analyze(read_once(real("pytorch/cuda_sync_a100/simple_add.json.gz")), "findings")
    assert found.rows["code"].to_pylist() == ["code-loading"]
    # all of the calls, 4.2 s of them in a launch whose kernel starts 8 µs before it returns, and these 2.9 s
    saved_ns = [12_638_700_000 + 2_879_200_000]
    assert found.rows["saves_ns"].to_pylist() == pytest.approx(saved_ns, rel=1e-3)


def test_a_copy_that_sets_up_the_gpu_is_no_finding() -> None:
    """The first copy of a program without steps takes 0.35 s, in which the runtime starts."""
    trace = read_once(real("rocprof/rpd_schema2_mi300x/matmul_result.rpd"))
    assert "blocking-copy" not in ci.analyze(trace, "findings").rows["code"].to_pylist()


def test_recordings_of_different_times_have_no_length() -> None:
    """They lie weeks apart, and their time together is that of no job."""
    trace = read_once(real("rocprof/rocprof_compute_pmc"))
    lines = dict(ci.analyze(trace, "summary").rows.to_pandas()[["topic", "text"]].to_numpy())
    assert lines["step"].startswith("unknown")
    assert "finding" not in lines


def test_of_ranks_without_gpu_work_nothing_else_is_missed() -> None:
    trace = read_once(real("pytorch/misc/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz"))
    lines = dict(ci.analyze(trace, "summary").rows.to_pandas()[["topic", "text"]].to_numpy())
    assert lines["record"].startswith("GPU activity")
    assert "amd-smi" not in lines["record"]
