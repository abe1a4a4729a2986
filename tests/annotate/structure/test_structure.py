"""Each node has its part of the training step: pass, layer, module, operation."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto_files import call, kernel, span, write
from read_once import read_once

import chopper_interop as ci
from chopper_interop import job_reading, sources
from chopper_interop.annotate.structure import annotations as structure
from chopper_interop.annotate.structure.annotations import COLUMNS
from chopper_interop.annotate.structure.autograd import link_autograd, read_arguments
from chopper_interop.annotate.structure.names import classify_names
from chopper_interop.arrays import gather
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind, Kind
from chopper_interop.testing.strategies import traces

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = "autograd::engine::evaluate_function: "
GPU = ["kernel", "comm", "memcpy", "memset"]


def op(name: str, ts: float, dur: float, number: int = -1, thread: int = 0, **more: Any) -> dict:
    args = {} if number < 0 else {"Sequence number": number, "Fwd thread id": thread}
    return span("cpu_op", name, ts, dur, args=args | more.pop("args", {}), **more)


def note(name: str, ts: float, dur: float, **more: Any) -> dict:
    return span("user_annotation", name, ts, dur, **more)


def module(name: str, ts: float, dur: float, **more: Any) -> dict:
    return span("python_function", f"nn.Module: {name}", ts, dur, **more)


def launch(number: int, ts: float, tid: int = 100) -> list[dict]:
    return [
        call("hipLaunchKernel", ts, 0.2, number, tid=tid),
        kernel(f"k{number}", 900 + 5 * number, 3, number),
    ]


def values_of(path: Path, *columns: str) -> dict[str, Any]:
    frame = ci.read(path).to_pandas()
    frame = frame[frame["name"].astype(str).str.fullmatch(r"k\d+")].set_index("name")
    for column in columns:
        if column not in frame:
            frame[column] = None
    rows = {
        n: tuple(None if pd.isna(v) else v for v in row)
        for n, row in zip(frame.index, frame[list(columns)].itertuples(index=False), strict=True)
    }
    return {n: r[0] if len(columns) == 1 else r for n, r in rows.items()}


NAMES = {
    "forward-compute": "forward", "Forward 3": "forward", "PP:0F1": "forward", "attn(F)": "forward",
    "DeepSpeedEngine.forward": "forward", "fwd": "forward", "## forward ##": "forward",
    "megatron.core.transformer.attention.Attention.forward.qkv": "forward",
    "backward-compute": "backward", "backward Model Chunk 1": "backward", "PP:1B3": "backward",
    "mlp(W)": "backward", "transformer_engine._Linear.backward.wgrad": "backward",
    "optimizer": "optimizer", "optimizer-inner-step": "optimizer", "opt_step": "optimizer",
    "## zero_grad ##": "optimizer", "Optimizer.step#AdamW.step": "optimizer",
    "forwarding table": None, "aten::convolution_backward": None, "step[DECODE bs=4]": None,
    "backwards": None, "Stage::preprocess::merge.forward": None,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_marks_of_passes(tmp_path: Path, name: str) -> None:
    events = [note(name, 0, 50), op("aten::mul", 5, 10), *launch(1, 8)]
    assert values_of(write(tmp_path / "t.json", events), "phase")["k1"] == NAMES[name]


@pytest.mark.parametrize(
    ("name", "part"),
    [("dispatch(F)", "forward"), ("backward-send-forward-recv", "backward"), ("all-grads-sync", "backward"),
     ("FSDP::all_gather (layers.3)", None), ("nccl:all_reduce", None), ("PP:0SEND_B1", "backward")],
)  # fmt: skip
def test_marks_of_communication(tmp_path: Path, name: str, part: str | None) -> None:
    events = [note(name, 0, 50), op("aten::mul", 5, 10), *launch(1, 8)]
    assert values_of(write(tmp_path / "t.json", events), "phase", "step_part")["k1"] == (
        "communication",
        part,
    )


def test_communication_serves_the_pass_that_asks_for_it(tmp_path: Path) -> None:
    events = [
        note("ProfilerStep#1", 0, 100),
        op("aten::mm", 2, 10, 5), op("c10d::allreduce_", 20, 8), *launch(1, 22),
        op(ENGINE + "MmBackward0", 40, 20, 5, 1, tid=200), op("c10d::allreduce_", 45, 8, tid=200),
        *launch(2, 46, tid=200),
        note("Optimizer.step#SGD.step", 70, 20), op("c10d::allreduce_", 75, 8), *launch(3, 76),
    ]  # fmt: skip
    parts = values_of(write(tmp_path / "t.json", events), "phase", "step_part", "operation")
    assert parts == {
        "k1": ("communication", "forward", "c10d::allreduce_"),
        "k2": ("communication", "backward", "c10d::allreduce_"),
        "k3": ("communication", "optimizer", "c10d::allreduce_"),
    }


def checkpointed(*, frames: bool, within: str = "ReluBackward0") -> list[dict]:
    """One operator, and its backward pass that computes it again first."""
    again = [
        op("aten::conv2d", 46, 8, 7, tid=200),
        op("aten::convolution", 47, 6, 7, tid=200),
        *launch(2, 48, 200),
    ]
    if frames:
        again.append(
            span("python_function", "torch/utils/checkpoint.py(1111): unpack_hook", 44, 12, tid=200)
        )
        again.append(module("Conv2d_0", 45, 10, tid=200))
    return [
        op("aten::relu", 1, 10, 5), *launch(1, 3),
        op(ENGINE + within, 40, 30, 5, 1, tid=200), op(within, 42, 27, 5, 1, tid=200), *again,
        op("aten::threshold_backward", 60, 5, tid=200), *launch(3, 61, 200),
        op(ENGINE + "ConvolutionBackward0", 80, 10, 7, 2, tid=200), *launch(4, 83, 200),
    ]  # fmt: skip


@pytest.mark.parametrize("frames", [True, False])
@pytest.mark.parametrize("within", ["ReluBackward0", "CheckpointFunctionBackward"])
def test_recomputation_in_the_backward_pass(tmp_path: Path, frames: bool, within: str) -> None:  # noqa: FBT001
    path = write(tmp_path / "t.json", checkpointed(frames=frames, within=within))
    actual = values_of(path, "phase", "step_part", "operation")
    assert actual["k1"] == ("forward", "forward", "aten::relu")
    assert actual["k2"] == ("recompute", "backward", "aten::conv2d")
    if within == "ReluBackward0":
        assert actual["k3"] == ("backward", "backward", "aten::relu")
    assert actual["k4"] == ("backward", "backward", "aten::conv2d")


def test_second_derivatives_are_no_recomputation(tmp_path: Path) -> None:
    events = [
        op("aten::mul", 1, 5, 3), *launch(1, 2),
        op(ENGINE + "MulBackward0", 40, 30, 3, 1, tid=200), op("MulBackward0", 42, 20, 3, 1, tid=200),
        op("aten::mul", 44, 8, 0, tid=200), *launch(2, 46, 200),
    ]  # fmt: skip
    assert values_of(write(tmp_path / "t.json", events), "phase") == {
        "k1": "forward",
        "k2": "backward",
    }


def test_a_forward_operator_in_a_range_called_backward(tmp_path: Path) -> None:
    events = [
        note("## backward ##", 0, 100), op("aten::sum", 2, 5, 3), *launch(1, 3),
        op(ENGINE + "SumBackward0", 20, 10, 3, 1, tid=200), *launch(2, 22, 200), *launch(3, 50),
    ]  # fmt: skip
    actual = values_of(write(tmp_path / "t.json", events), "phase")
    assert actual == {"k1": "forward", "k2": "backward", "k3": "backward"}


def test_data_loading_is_of_no_pass(tmp_path: Path) -> None:
    events = [
        note("ProfilerStep#1", 0, 100),
        note("enumerate(DataLoader)#_Loader.__next__", 1, 10), *launch(1, 3),
        op("aten::mm", 20, 5, 1), *launch(2, 21), op(ENGINE + "MmBackward0", 40, 9, 1, 1, tid=200),
    ]  # fmt: skip
    actual = values_of(write(tmp_path / "t.json", events), "phase", "iteration")
    assert actual == {"k1": (None, 1), "k2": ("forward", 1)}


def test_fsdp2_names_modules_by_ranges_around_their_forward_pass(tmp_path: Path) -> None:
    def forward(layer: int, at: float) -> list[dict]:
        return [
            note(f"FSDP::pre_forward (model.layers.{layer})", at, 4), *launch(10 * layer + 1, at + 1),
            op("aten::linear", at + 10, 5, layer), *launch(10 * layer + 2, at + 11),
            note(f"FSDP::post_forward (model.layers.{layer})", at + 20, 2),
            op("aten::add", at + 25, 3), *launch(10 * layer + 3, at + 26),
        ]  # fmt: skip

    events = [
        note("ProfilerStep#1", 0, 400), note("FSDP::pre_forward", 1, 2),
        *forward(3, 10), *forward(4, 50), note("FSDP::post_forward", 90, 2), *launch(99, 95),
        op(ENGINE + "AddmmBackward0", 200, 10, 4, 1, tid=200), *launch(77, 203, 200),
        op(ENGINE + "torch::autograd::AccumulateGrad", 212, 5, tid=200), *launch(78, 213, 200),
        note("FSDP::pre_backward (model.layers.3)", 220, 9, tid=200), *launch(79, 222, 200),
    ]  # fmt: skip
    actual = values_of(write(tmp_path / "t.json", events), "layer", "module")
    third, fourth = (3, "model.layers.3"), (4, "model.layers.4")
    assert {k: actual[k] for k in ("k31", "k32", "k79")} == dict.fromkeys(
        ("k31", "k32", "k79"), third
    )
    assert {k: actual[k] for k in ("k41", "k42", "k77", "k78")} == dict.fromkeys(
        ("k41", "k42", "k77", "k78"), fourth
    )
    assert [actual[k] for k in ("k33", "k43", "k99")] == [(None, None)] * 3


def test_an_open_range_of_fsdp2_ends_with_what_holds_it(tmp_path: Path) -> None:
    events = [
        note("ProfilerStep#1", 0, 50), note("FSDP::pre_forward (layers.0)", 10, 2), *launch(1, 20),
        note("ProfilerStep#2", 60, 50), *launch(2, 70),
    ]  # fmt: skip
    assert values_of(write(tmp_path / "t.json", events), "layer") == {"k1": 0, "k2": None}


def test_layers_are_the_outermost_repeated_blocks(tmp_path: Path) -> None:
    events = [module("Net_0", 0, 300)]
    for i in range(4):
        at = 10 + 50 * i
        events += [
            module(f"CheckpointWrapper_{i}", at, 45), module(f"Block_{i}", at + 1, 40),
            module(f"Linear_{2 * i}", at + 5, 10), *launch(10 * i + 1, at + 6),
            module(f"Linear_{2 * i + 1}", at + 20, 10), *launch(10 * i + 2, at + 21),
            *launch(10 * i + 3, at + 39),
        ]  # fmt: skip
    events += [module("Linear_8", 250, 20), *launch(99, 255)]
    actual = values_of(write(tmp_path / "t.json", events), "layer", "module", "phase")
    for i in range(4):
        assert actual[f"k{10 * i + 1}"] == (i, f"Linear_{2 * i}", "forward")
        assert actual[f"k{10 * i + 3}"] == (i, f"Block_{i}", "forward")
    assert actual["k99"] == (None, "Linear_8", "forward")


def test_two_lists_of_blocks_are_numbered_consecutively_and_logged(tmp_path: Path) -> None:
    events = []
    for i, where in enumerate(["encoder.block", "decoder.block"]):
        for k in range(3):
            at = 100 * i + 20 * k
            events += [
                note(f"FSDP::pre_backward ({where}.{k}.mlp)", at, 10),
                *launch(10 * i + k + 1, at + 2),
            ]
    path = write(tmp_path / "t.json", events)
    assert list(values_of(path, "layer").values()) == [0, 1, 2, 3, 4, 5]
    assert "layers-of-several-lists" in {i.code for i in ci.read(path).meta.issues}


def test_modules_of_scripts(tmp_path: Path) -> None:
    path = "TOP(Net)::forward.blocks(ModuleList)::forward.7(Block)::forward.SELF(Block)::run."
    events = [op("aten::mm", 1, 5, args={"Module Hierarchy": path}), *launch(1, 2)]
    assert values_of(write(tmp_path / "t.json", events), "layer", "module") == {
        "k1": (7, "blocks.7")
    }


def test_units_of_fsdp1_are_layers_where_nothing_else_is(tmp_path: Path) -> None:
    name = "FullyShardedDataParallel.forward"
    events = [note(name, 0, 100), *launch(9, 1)]
    for i in range(3):
        events += [note(name, 10 + 20 * i, 10), *launch(i + 1, 12 + 20 * i)]
    path = write(tmp_path / "t.json", events)
    assert values_of(path, "layer") == {"k1": 0, "k2": 1, "k3": 2, "k9": None}
    assert "layers-by-fsdp-units" in {i.code for i in ci.read(path).meta.issues}


def test_steps_that_nothing_numbers_are_counted(tmp_path: Path) -> None:
    events = []
    for i in range(3):
        at = 100 * i
        events += [
            op("aten::mm", at, 5, i), *launch(10 * i + 3, at + 1),
            op(ENGINE + "MmBackward0", at + 10, 5, i, 1, tid=200), *launch(10 * i + 1, at + 11, 200),
            note("Optimizer.step#A.step", at + 30, 5), note("Optimizer.step#B.step", at + 40, 5),
            *launch(10 * i + 2, at + 42),
        ]  # fmt: skip
    events += [op("aten::mm", 300, 5), *launch(99, 301)]  # of no step: no optimizer ends it
    path = write(tmp_path / "t.json", events)
    numbers: dict[str, int | None] = {f"k{10 * i + j}": i for i in range(3) for j in (1, 2, 3)}
    assert values_of(path, "iteration") == numbers | {"k99": None}
    trace = ci.read(path)
    assert {i.code: i.count for i in trace.meta.issues}["iterations-counted"] == 3
    reading = job_reading.Reading("t", only={"iteration"})
    alone = job_reading.read_inventory(sources.find([path]), reading)
    assert alone.integers("iteration").tolist() == trace.integers("iteration").tolist()
    assert not alone.has("phase")
    # from the first to the last that the host does in each: MmBackward0, whose name ends with a step's number, is none
    assert trace.steps()["start_ns"].to_list() == [0, 100_000, 200_000]
    assert trace.steps()["end_ns"].to_list() == [45_000, 145_000, 245_000]


def test_what_follows_the_backward_pass_of_a_rank_is_of_its_update(tmp_path: Path) -> None:
    """By the times of its own passes, whichever steps they are of: rank 1 ran both before rank 0 began."""
    paths = []
    for rank, start in enumerate((1000, 0)):
        events = []
        for step, at in ((2 - rank, start), (1 + rank, start + 100)):
            number = 10 * rank + step
            events += [
                note(f"ProfilerStep#{step}", at, 90),
                op("aten::mm", at, 5, number), *launch(100 * rank + 10 * step + 1, at + 1),
                op(ENGINE + "MmBackward0", at + 10, 5, number, 1, tid=200),
                *launch(100 * rank + 10 * step + 2, at + 11, 200),
                op("aten::norm", at + 30, 5), *launch(100 * rank + 10 * step + 3, at + 31),
            ]  # fmt: skip
        info = {"rank": rank, "world_size": 2}
        paths.append(write(tmp_path / f"rank{rank}.json", events, distributedInfo=info))
    frame = ci.read(*paths).to_pandas()
    frame = frame[frame["name"].astype(str).str.fullmatch(r"k\d+")]
    phases = {str(n)[-1]: set() for n in frame["name"]}
    for name, phase in zip(frame["name"], frame["phase"], strict=True):
        phases[str(name)[-1]].add(phase)
    assert phases == {"1": {"forward"}, "2": {"backward"}, "3": {"optimizer"}}


def test_steps_by_the_names_that_people_give(tmp_path: Path) -> None:
    events = [note("train_step 4", 0, 50), *launch(1, 5), note("step 5", 60, 50), *launch(2, 65)]
    assert values_of(write(tmp_path / "t.json", events), "iteration") == {"k1": 4, "k2": 5}
    events += [note("ProfilerStep#12", 0, 200)]
    assert values_of(write(tmp_path / "u.json", events), "iteration") == {"k1": 12, "k2": 12}


def test_a_range_that_launches_nothing_is_no_step_where_others_launch(tmp_path: Path) -> None:
    """The profiler begins a step at the last call of `step`, and ends it when it stops."""
    events = [note("ProfilerStep#1", 0, 50), *launch(1, 5), note("ProfilerStep#2", 60, 1)]
    trace = ci.read(write(tmp_path / "t.json", events))
    assert trace.steps()["iteration"].to_list() == [1]
    assert {i.code: i.count for i in trace.meta.issues}["steps-without-work"] == 1
    host_only = ci.read(write(tmp_path / "u.json", [events[0], events[-1]]))
    assert host_only.steps()["iteration"].to_list() == [1, 2]


@pytest.mark.parametrize(
    ("names", "numbers", "notes"),
    [
        (["ProfilerStep#5"] * 3, [5, 1005, 2005], {"steps-repeated": 2}),
        (["ProfilerStep#0", "ProfilerStep#999"] * 2, [0, 999, 10000, 10999], {"steps-repeated": 2}),
        (["step 1", "step 2"] * 2, [1, 2, 1001, 1002], {"steps-repeated": 2}),
        (["step 1", "optim_step 1", "step 2"], [1, 1, 2], {"steps-in-pieces": 1}),
        (["step 1", "step 1", "step 2", "step 1"], [1, 1, 2, 1001], {"steps-in-pieces": 1, "steps-repeated": 1}),
        (["train_step 1", "train_step 2", "test step 1"], [1, 2, None], {}),
        (["ProfilerStep#999999999"] * 2, [999999999] * 2, {"steps-in-pieces": 1}),
    ],
)  # fmt: skip
def test_steps_with_the_same_number_of_one_thread(
    tmp_path: Path, names: list[str], numbers: list[int | None], notes: dict[str, int]
) -> None:
    events = [e for i, name in enumerate(names) for e in (note(name, 60 * i, 50), *launch(i + 1, 60 * i + 5))]  # fmt: skip
    path = write(tmp_path / "t.json", events)
    assert values_of(path, "iteration") == {f"k{i}": n for i, n in enumerate(numbers, 1)}
    trace = ci.read(path)
    steps = trace.steps()
    assert steps["iteration"].to_list() == list(dict.fromkeys(n for n in numbers if n is not None))
    starts = {n: 60_000 * i for i, n in reversed([*enumerate(numbers)]) if n is not None}
    assert dict(zip(steps["iteration"], steps["start_ns"], strict=True)) == starts
    counts = {i.code: i.count for i in trace.meta.issues}
    assert {c: n for c, n in counts.items() if c in ("steps-repeated", "steps-in-pieces")} == notes


def test_ranks_have_the_steps_that_each_has_alone(tmp_path: Path) -> None:
    """Kinds of names, repetitions and ranges without work of one rank say nothing of another; equal starts count."""
    names = [["ProfilerStep#5"] * 3, ["other"], ["step 1", "step 1", "step 2"], ["ProfilerStep#1"]]
    paths = []
    for rank, of_rank in enumerate(names):
        events = [
            e for i, name in enumerate(of_rank)
            for e in (span("cpu_op", "outer", 60 * i, 55), note(name, 60 * i, 50),
                      *launch(10 * rank + i, 60 * i + 5), *launch(10 * rank + 5 + i, 60 * i + 52))
        ]  # fmt: skip
        events.append(note(f"ProfilerStep#{rank}", 60 * len(of_rank) + 5, 1))
        info = {"rank": rank, "world_size": len(names)}
        paths.append(write(tmp_path / f"rank{rank}.json", events, distributedInfo=info))
    codes = ("steps-without-work", "steps-repeated", "steps-in-pieces", "iterations-by-names")

    def found(*files: Path) -> tuple[list[tuple[int, str, object]], Counter[str]]:
        trace = ci.read(*files)
        frame = trace.to_pandas()[["rank", "name", "iteration"]]
        issues = {i.code: i.count for i in trace.meta.issues if i.code in codes}
        return frame.astype(str).to_numpy().tolist(), Counter(issues)

    alone = [found(path) for path in paths]
    assert found(*paths) == (
        [row for rows, _ in alone for row in rows],
        sum((c for _, c in alone), Counter()),
    )
    assert len(set().union(*(c for _, c in alone))) > 1


def test_a_step_that_a_profiler_began_when_it_stopped_does_not_count_where_it_begins_again(
    tmp_path: Path,
) -> None:
    events = [note("ProfilerStep#1", 0, 50), *launch(1, 5), note("ProfilerStep#2", 60, 1),
              note("ProfilerStep#2", 100, 50), *launch(2, 105)]  # fmt: skip
    trace = ci.read(write(tmp_path / "t.json", events))
    assert trace.steps()["iteration"].to_list() == [1, 2]
    codes = {i.code for i in trace.meta.issues}
    assert "steps-without-work" in codes
    assert "steps-repeated" not in codes


def test_ranges_around_or_beside_each_other_are_one_step(tmp_path: Path) -> None:
    events = [note("step 1", 0, 50), note("step 1", 5, 10), *launch(1, 6), *launch(2, 45),
              note("step 1", 60, 50, tid=200), *launch(3, 65, 200)]  # fmt: skip
    trace = ci.read(write(tmp_path / "t.json", events))
    assert trace.steps().to_numpy().tolist() == [[0, 1, 0, 110_000]]
    assert not {i.code for i in trace.meta.issues} & {"steps-repeated", "steps-in-pieces"}


def test_each_thread_counts_its_own_steps_again(tmp_path: Path) -> None:
    """The second thread is late, so that its first step begins when that of the first thread has ended."""
    marks = [(100, 0), (200, 55), (100, 120), (200, 175)]
    events = [e for i, (tid, ts) in enumerate(marks)
              for e in (note("ProfilerStep#1", ts, 50, tid=tid), *launch(i + 1, ts + 5, tid))]  # fmt: skip
    path = write(tmp_path / "t.json", events)
    assert values_of(path, "iteration") == {"k1": 1, "k2": 1, "k3": 1001, "k4": 1001}


def test_threads_that_count_steps_again_give_a_step_the_same_number(tmp_path: Path) -> None:
    """The second thread has fewer steps: 998 was 10998 of one and 1998 of the other."""
    marks = [(100, 998, 0), (100, 999, 60), (200, 998, 0), (100, 998, 120), (100, 999, 180), (200, 998, 120)]  # fmt: skip
    events = [e for i, (tid, n, ts) in enumerate(marks)
              for e in (note(f"ProfilerStep#{n}", ts, 50, tid=tid), *launch(i + 1, ts + 5, tid))]  # fmt: skip
    numbers = values_of(write(tmp_path / "t.json", events), "iteration")
    assert list(numbers.values()) == [998, 999, 998, 10998, 10999, 10998]


def test_images_of_ranges_on_the_gpu_are_of_their_range(tmp_path: Path) -> None:
    ranges = [
        note("ProfilerStep#3", 0, 50, args={"External id": 4}),
        note("ProfilerStep#4", 60, 50, args={"External id": 9}),
    ]
    image = span("gpu_user_annotation", "ProfilerStep#3", 70, 20, args={"External id": 4})
    other = span("gpu_user_annotation", "ProfilerStep#3", 95, 2, args={"External id": 77})
    frame = ci.read(write(tmp_path / "t.json", [*ranges, image, other])).to_pandas()
    images = frame[frame["kind"] == "gpu_annotation"]["iteration"]
    assert images.iloc[0] == 3
    assert pd.isna(images.iloc[1])


@settings(suppress_health_check=list(HealthCheck))
@given(traces())
def test_any_trace_has_passes_that_agree(trace: ci.Trace) -> None:
    bare = trace.nodes.drop_columns([c for c in COLUMNS if c in trace.nodes.column_names])
    trace = ci.Trace(**{f: getattr(trace, f) for f in trace.__dataclass_fields__} | {"nodes": bare})
    actual = trace.with_columns(**structure.columns(trace))
    phase, part = actual.values("phase"), actual.values("step_part")
    for value, part_value in zip(phase, part, strict=True):
        if value == "recompute":
            assert part_value == "backward"
        elif value != "communication":
            assert value == part_value
    work = np.isin(trace.array("kind"), [int(k) for k in GPU_WORK])
    lost = work & (trace.launch < 0)
    for column in ("iteration", "step_part", "layer", "operation"):
        values = pd.Series(actual.values(column), dtype=object)
        assert values[lost].isna().all()
        launched = work & ~lost
        pairs = zip(values[launched], values[trace.launch[launched]], strict=True)
        assert all((pd.isna(a) and pd.isna(b)) or a == b for a, b in pairs)


LINKED = [
    "ddp_resnet_4rank_amd/rank0.json.gz", "mi300x/resnet_act_checkpoint.json.gz",
    "misc/nccl_data.json.gz",
    "torchrec_4rank_v100/ip-172-31-16-248.us-east-2.compute.internal_44237.1698957662168769395.pt.trace.json",
]  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
def test_numbers_link_the_operators_that_recorded_edges_link(shared: Path, name: str) -> None:
    trace = read_once(shared / "pytorch" / name)
    recorded = trace.array("kind", "edges") == EdgeKind.FWDBWD
    src, dst = trace.array("src", "edges")[recorded], trace.array("dst", "edges")[recorded]
    bare = ci.Trace(
        **{f: getattr(trace, f) for f in trace.__dataclass_fields__}
        | {"edges": trace.edges.slice(0, 0)}
    )
    _, *numbers, _ = read_arguments(bare)
    actual = link_autograd(bare, classify_names(bare), *numbers).forward
    assert len(src) > 100
    assert (actual[dst] == src).all()


OPERATORS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=12)


def test_execution_traces_number_operators_by_another_argument(tmp_path: Path) -> None:
    """That of a profile counts where any operator has one."""
    in_et = [op("a", 0, 5, args={"ET seq_id": 3}), op("b", 10, 5, args={"ET seq_id": "4"})]
    profiled = op("c", 20, 5, 7)
    for events, expected in ((in_et, [3, 4]), ([*in_et, profiled], [-1, -1, 7])):
        trace = ci.read(write(tmp_path / "t.json", events))
        assert read_arguments(trace).sequence.tolist() == expected


@given(OPERATORS, OPERATORS)
def test_the_last_operator_of_a_number_made_its_function(made: Any, used: Any) -> None:
    both = made + used
    number, ts = (np.array([row[k] for row in both], np.int64) for k in (0, 1))
    n = len(made)
    actual = gather.preceding_rows(number[:n], ts[:n], number[n:], ts[n:])
    for function, match in zip(range(len(made), len(both)), actual, strict=True):
        fitting = [
            o for o in range(len(made)) if number[o] == number[function] and ts[o] <= ts[function]
        ]
        best = max(fitting, key=lambda o: (ts[o], o), default=-1)
        assert match == best


def test_activations_computed_again_in_a_real_file(shared: Path) -> None:
    frame = read_once(shared / "pytorch/mi300x/resnet_act_checkpoint.json.gz").to_pandas()
    convolutions = frame[frame["name"] == "aten::conv2d"]["phase"].value_counts()
    assert convolutions["recompute"] == 57
    assert convolutions["forward"] == 60
    kernels = frame[frame["kind"].isin(GPU)]
    assert set(kernels["layer"].dropna()) == set(range(8))  # BasicBlock_0 … BasicBlock_7
    placed = kernels[kernels["iteration"].notna()]
    assert placed["phase"].notna().all()


BLOCKS = [("Falconsai_nsfw_image_detection__1016002", 12), ("Qwen_Qwen1.5-0.5B-Chat__1016005", 24),
          ("gaunernst_bert-small-uncased__1016001", 4)]  # fmt: skip


@pytest.mark.parametrize("machine", ["mi300x", "h100"])
@pytest.mark.parametrize(("name", "count"), BLOCKS)
def test_layers_of_real_models(shared: Path, machine: str, name: str, count: int) -> None:
    frame = read_once(shared / "pytorch" / machine / f"{name}.json.gz").to_pandas()
    layers = frame[frame["kind"].isin(GPU)].groupby("layer").size()
    assert list(layers.index) == list(range(count))
    inner = layers.iloc[1:-1]
    assert (
        inner.max() - inner.min() <= 0.2 * inner.max()
    )  # equal blocks, but for choices of kernels


def test_steps_of_a_file_that_numbers_none(shared: Path) -> None:
    trace = read_once(shared / "pytorch/rtx2080ti_pairs/linear_kineto.json.gz")
    frame = trace.to_pandas()
    kernels = frame[frame["kind"].isin(GPU)]
    assert kernels[["iteration", "phase", "operation"]].notna().all(axis=None)
    sizes = kernels.groupby("iteration").size()
    assert set(sizes.iloc[1:]) == {261}  # the first has no gradients to clear or to add to
    assert kernels["iteration"].nunique() == 40


def test_the_sample_job_is_known_to_the_last_kernel(demo: Path) -> None:
    trace = read_once(demo)
    frame = trace.to_pandas()
    kernels = frame[frame["kind"].isin(["kernel", "comm"])]
    assert kernels[["phase", "step_part", "iteration", "operation"]].notna().all(axis=None)
    truth = json.loads((demo / "truth.json").read_text())
    made = pd.DataFrame(truth["kernels"]).set_index(["rank", "correlation"])["step"]
    seen = kernels.set_index(["rank", "correlation"])["iteration"]
    assert (seen.sort_index() == made.sort_index()).all()
    # every layer runs the same kernels in each pass of each step, and no others have one
    inner = kernels[kernels["layer"].notna()]
    for _, step in inner.groupby(["rank", "iteration", "step_part"], observed=True):
        counts = [Counter(rows["operation"].astype(str)) for _, rows in step.groupby("layer")]
        assert all(c == counts[0] for c in counts)
    outer = set(kernels[kernels["layer"].isna()]["operation"].astype(str))
    assert "aten::scaled_dot_product_attention" not in outer


def test_coverage_is_the_share_that_is_known(tmp_path: Path) -> None:
    events = [note("ProfilerStep#1", 0, 100), *launch(1, 5), kernel("lost", 500, 9, 99)]
    trace = ci.read(write(tmp_path / "t.json", events))
    assert structure.coverage(trace)["iteration"].tolist() == [0.25]
    assert "layer" not in structure.coverage(trace)
    codes = {i.code: i.count for i in trace.meta.issues}
    assert codes["gpu-work-without-launch"] == 1


def test_columns_that_are_read_back_are_not_derived_again(tmp_path: Path) -> None:
    events = [
        *checkpointed(frames=True),
        note("ProfilerStep#1", 0, 300),
        kernel("lost", 500, 9, 99),
    ]
    trace = ci.read(write(tmp_path / "t.json", events))
    ci.write(trace, tmp_path / "t.parquet")
    again = ci.read(tmp_path / "t.parquet")
    for column in COLUMNS:
        if column in trace.nodes.column_names:
            assert again.nodes[column].to_pylist() == trace.nodes[column].to_pylist()
        else:
            assert column not in again.nodes.column_names
    assert {i.code: i.count for i in again.meta.issues} == {
        i.code: i.count for i in trace.meta.issues
    }


def test_ranges_of_a_program_that_is_no_framework(tmp_path: Path) -> None:
    events = [
        note("step 2", 0, 90),
        note("backward", 5, 60),
        note("layer 3", 8, 50),
        note("gemm", 9, 30),
        *launch(1, 12),
    ]
    columns = ("iteration", "phase", "layer", "operation")
    assert values_of(write(tmp_path / "t.json", events), *columns) == {
        "k1": (2, "backward", 3, "gemm")
    }


def test_nodes_without_anything(tmp_path: Path) -> None:
    trace = ci.read(write(tmp_path / "t.json", [kernel("k1", 1, 2, 3)]))
    assert not set(COLUMNS) & set(trace.nodes.column_names)
    assert trace.array("kind").tolist() == [Kind.KERNEL]
