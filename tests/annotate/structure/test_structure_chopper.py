"""Programs annotated for Chopper: operations, layers and iterations have the names that it gives.

The result of its merge of a trace is listed here for each kernel, as it was in a run
(UnaryLab/chopper 7957a6e, ``chopper/profile/merge.py``) on this very file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from kineto_files import call, flow, kernel, span, write

import chopper_interop as ci

if TYPE_CHECKING:
    from pathlib import Path

MAIN, AUTOGRAD = 100, 200
LAYERS, ITERATIONS = 2, 2


class Program:
    """Writes events one after the other, each a microsecond from the last."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.now = 0.0
        self.gpu = 5000.0
        self.launches = 0
        self.ids = 0
        self.flows = 0
        self.number = 10
        self.kernels: list[tuple[str, str | None, int | None, int | None]] = []

    def open(self, cat: str, name: str, tid: int, **args: Any) -> dict[str, Any]:
        self.now += 1
        self.ids += 1
        args = {"External id": self.ids, **args}
        event = span(cat, name, self.now, 0, tid=tid, args=args)
        self.events.append(event)
        return event

    def close(self, event: dict[str, Any]) -> None:
        self.now += 1
        event["dur"] = self.now - event["ts"]

    def within(self, *ranges: tuple[str, str], tid: int = MAIN) -> Ranges:
        return Ranges(self, ranges, tid)

    def launch(self, tid: int = MAIN, operator: int = 0) -> str:
        """A kernel of the innermost operator; its name."""
        self.launches += 1
        self.now += 1
        made = call("hipLaunchKernel", self.now, 0.5, self.launches, tid=tid)
        made["args"]["External id"] = operator or self.ids
        self.now += 1
        self.gpu += 10
        self.events += [made, kernel(f"k{self.launches}", self.gpu, 5, self.launches)]
        return f"k{self.launches}"


class Ranges:
    def __init__(self, program: Program, ranges: Any, tid: int) -> None:
        self.program, self.ranges, self.tid = program, ranges, tid

    def __enter__(self) -> list[dict[str, Any]]:
        self.opened = [
            self.program.open(cat, name, self.tid, **(more[0] if more else {}))
            for cat, name, *more in self.ranges
        ]
        return self.opened

    def __exit__(self, *_: object) -> None:
        for event in reversed(self.opened):
            self.program.close(event)


def note(name: str) -> tuple[str, str]:
    return ("user_annotation", name)


def op(name: str, sequence: int | None = None, thread: int = 0) -> tuple[str, str, dict[str, int]]:
    numbers = {} if sequence is None else {"Sequence number": sequence, "Fwd thread id": thread}
    return ("cpu_op", name, numbers)


def forward(p: Program, label: str, outer: str, inner: str, aten: str) -> tuple[int, str, float]:
    """A composite operator in a range; the number of its function, and where its arrow begins."""
    number = p.number
    with p.within(note(label), op(outer, number), op(inner, number), op(aten)) as opened:
        start = opened[2]["ts"]
        name = p.launch()
    p.number += 1
    return number, name, start


def backward(p: Program, function: str, number: int, start: float) -> str:
    engine = f"autograd::engine::evaluate_function: {function}"
    calls = (op(engine, number, 1), op(function, number, 1), op("aten::mm"))
    with p.within(*calls, tid=AUTOGRAD) as opened:
        p.flows += 1
        p.events.append(flow("s", "fwdbwd", p.flows, start))
        p.events.append(flow("f", "fwdbwd", p.flows, opened[1]["ts"], tid=AUTOGRAD))
        return p.launch(AUTOGRAD)


def step(p: Program, iteration: int, truth: dict[str, tuple[Any, Any, int]]) -> None:
    made = []
    with p.within(note(f"Iteration{iteration}")):
        for layer in range(LAYERS):
            with p.within(note(f"Layer{layer}")):
                with p.within(note("FSDP::all_gather"), op("c10d::_allgather_base_")):
                    truth[p.launch()] = ("FSDP::all_gather", layer, iteration)
                for label, *names in (
                    ("attn_n", "aten::rms_norm", "aten::_fused_rms_norm", "aten::native_norm"),
                    ("mlp_gp", "aten::linear", "aten::addmm", "aten::gemm"),
                ):
                    number, name, start = forward(p, label, *names)
                    truth[name] = (f"f_{label}", layer, iteration)
                    made.append((label, layer, number, start))
        with p.within(note("backward_pass")):
            for label, layer, number, start in reversed(made):
                name = backward(p, f"{label.title()}Backward0", number, start)
                truth[name] = (f"b_{label}", layer, iteration)
                engine = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
                with p.within(op(engine), op("aten::add_"), tid=AUTOGRAD):
                    truth[p.launch(AUTOGRAD)] = ("backward_pass", None, iteration)
        with p.within(note("Optimizer.step#AdamW.step"), op("aten::_fused_adamw_")):
            truth[p.launch()] = ("Optimizer.step#AdamW.step", None, iteration)
    with p.within(op("aten::item")):
        truth[p.launch()] = (None, None, None)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[Any, Any, Any]]]:
    program, truth = Program(), {}
    for iteration in range(ITERATIONS):
        step(program, iteration, truth)
    path = tmp_path_factory.mktemp("chopper") / "rank0.json"
    return write(path, program.events), truth


def kernels_by_name(path: Path) -> pd.DataFrame:
    frame = ci.read(path).to_pandas()
    return frame[frame["kind"].isin(["kernel", "comm"])].set_index("name")


def test_names_layers_and_iterations_are_choppers(job) -> None:
    path, truth = job
    frame = kernels_by_name(path)
    assert sorted(frame.index) == sorted(truth)
    for name, (operation, layer, iteration) in truth.items():
        row = frame.loc[name]
        assert (None if pd.isna(row["operation"]) else row["operation"]) == operation, name
        assert (None if pd.isna(row["iteration"]) else row["iteration"]) == iteration, name
        if layer is not None:  # we also place the adding up of a gradient, behind its function
            assert row["layer"] == layer, name


def test_phases_of_an_annotated_program(job) -> None:
    path, truth = job
    frame = kernels_by_name(path)
    expected = {"f_": "forward", "b_": "backward", "ba": "backward", "Op": "optimizer"}
    for name, (operation, _, _) in truth.items():
        if operation is not None:
            phase = expected.get(operation[:2], "communication")
            assert frame.loc[name, "phase"] == phase, (name, operation)


def test_a_kernel_of_an_outer_forward_operator_is_of_the_forward_pass(tmp_path: Path) -> None:
    """Chopper gives it ``b_mlp_gp``: it looks labels up by sequence number, whoever bears it."""
    program = Program()
    with program.within(note("Iteration0"), note("mlp_gp"), op("aten::linear", 10)) as outer:
        with program.within(op("aten::addmm", 10)) as opened:
            start = opened[0]["ts"]
        name = program.launch(operator=outer[-1]["args"]["External id"])
    backward(program, "AddmmBackward0", 10, start)
    assert (
        kernels_by_name(write(tmp_path / "t.json", program.events)).loc[name, "operation"]
        == "f_mlp_gp"
    )
