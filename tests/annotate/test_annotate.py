"""Iterations and phases of nodes."""

from pathlib import Path

import numpy as np
import pandas as pd
from kineto_files import call, kernel, span, write
from read_once import read_once

import chopper_interop as ci
from chopper_interop.annotate.stages import annotate
from chopper_interop.build import TraceBuilder
from chopper_interop.schemas.kinds import Kind, LaneKind


def step(number: int, ts: float, dur: float) -> dict:
    return span("user_annotation", f"ProfilerStep#{number}", ts, dur)


def launched(number: int, ts: float, gpu: float, tid: int = 100) -> list[dict]:
    events = [call("hipLaunchKernel", ts, 1, number), kernel(f"k{number}", gpu, 4, number)]
    events[0]["tid"] = tid
    return events


def by_name(trace: ci.Trace, column: str) -> dict[str, object]:
    names = [trace.names()[c] for c in trace.array("name")]
    values = [None if pd.isna(v) else v for v in trace.values(column)]
    return dict(zip(names, values, strict=True))


def test_gpu_work_belongs_to_the_iteration_that_launched_it(tmp_path: Path) -> None:
    events = [step(7, 0, 50), step(8, 50, 50), *launched(1, 10, 60), *launched(2, 60, 120)]
    trace = ci.read(write(tmp_path / "t.json", [*events, kernel("lost", 70, 1, 99)]))
    actual = by_name(trace, "iteration")
    assert (actual["k1"], actual["k2"], actual["lost"]) == (7, 8, None)


def test_phases_by_names_threads_and_order(tmp_path: Path) -> None:
    engine = "autograd::engine::evaluate_function: AddmmBackward0"
    events = [
        step(7, 0, 100),
        span("cpu_op", "aten::linear", 5, 10), *launched(1, 8, 20),
        span("cpu_op", engine, 30, 10, tid=200), *launched(2, 33, 45, tid=200),
        *launched(3, 38, 60, tid=200),  # within it by time, on its thread
        span("cpu_op", "hook", 42, 1, tid=200), *launched(6, 42, 65, tid=200),
        span("cpu_op", engine, 50, 5, tid=200),
        span("cpu_op", "aten::norm", 70, 5), *launched(4, 71, 80),  # clipping
        span("user_annotation", "Optimizer.step#Adam.step", 80, 10), *launched(5, 85, 95),
    ]  # fmt: skip
    actual = by_name(ci.read(write(tmp_path / "t.json", events)), "phase")
    assert [actual[f"k{i}"] for i in (1, 2, 3, 6, 4, 5)] == [
        "forward", "backward", "backward", "backward", "optimizer", "optimizer",
    ]  # fmt: skip


def test_without_training_there_are_no_phases(tmp_path: Path) -> None:
    events = [step(7, 0, 100), span("cpu_op", "aten::linear", 5, 10), *launched(1, 8, 20)]
    trace = ci.read(write(tmp_path / "t.json", events))
    assert "phase" not in trace.nodes.column_names


def test_phases_of_real_training(shared: Path) -> None:
    trace = read_once(shared / "pytorch" / "ddp_resnet_4rank_amd" / "rank0.json.gz")
    frame = trace.to_pandas()
    work = frame[frame["kind"].isin(["kernel", "comm"])]
    assert work["phase"].notna().mean() > 0.97
    counts = work["phase"].value_counts()
    assert counts["backward"] > counts["forward"] > counts["optimizer"] > 0


def two_ranks(folder: Path) -> list[Path]:
    for rank in (0, 1):
        own = {"distributedInfo": {"rank": rank, "world_size": 2}}
        events = [step(7, 0, 50), span("cpu_op", "aten::linear", 5, 20), *launched(1, 10, 30)]
        write(folder / f"rank{rank}.json", events, **own)
    return [folder / "rank0.json", folder / "rank1.json"]


def test_ranks_without_annotations_get_them_next_to_one_that_has_them(tmp_path: Path) -> None:
    first, second = two_ranks(tmp_path)
    ci.write(ci.read(first), tmp_path / "one.parquet")
    both, half = ci.read(first, second), ci.read(tmp_path / "one.parquet", second)
    assert half.ranks == [0, 1]
    for name in ("iteration", "operation"):
        assert both.nodes[name].null_count < both.nodes.num_rows
        assert half.nodes[name].to_pylist() == both.nodes[name].to_pylist()


def test_what_a_rank_has_stays(tmp_path: Path) -> None:
    trace = ci.read(*two_ranks(tmp_path))
    stated = [99, *[None] * (trace.nodes.num_rows - 1)]
    again = annotate(trace.with_columns(iteration=stated))
    first = trace.rank_rows[1].start
    assert again.nodes["iteration"].to_pylist()[:first] == stated[:first]
    actual = trace.nodes["iteration"].to_pylist()[first:]
    assert again.nodes["iteration"].to_pylist()[first:] == actual
    assert any(value is not None for value in actual)


def test_ranks_that_number_the_same_steps_differently_are_noted() -> None:
    """Work of one step may communicate with that of the next: of one collective in three it is no news. None counts twice."""
    for numbers, count in (([0, 1, 2], 0), ([0, 1, 3], 0), ([1, 2, 3], 3)):
        builder = TraceBuilder()
        for rank, iteration in enumerate(([0, 1, 2], numbers)):
            stream = builder.lane(rank, LaneKind.STREAM, 7, "s", rank)
            builder.nodes(
                kind=int(Kind.COMM), name="all_reduce", rank=rank, lane=stream, ts=np.arange(3) * 1000,
                dur=500, instance=np.arange(3, dtype=np.int32), iteration=np.array(iteration, np.int32),
            )  # fmt: skip
        issues = annotate(annotate(builder.finish())).meta.issues
        assert sum(i.count for i in issues if i.code == "step-numbers-apart") == count
