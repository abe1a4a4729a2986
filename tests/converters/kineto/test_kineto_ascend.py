"""Traces of torch_npu: arrows from CANN's calls and from operators are launches.

Format: torch_npu's ``_trace_event_manager.py`` and ``_cann_file_parser.py``, and CANN's
``HostToDevice`` connections: an arrow begins with the call, on its thread, and ends with the task.
"""

from pathlib import Path
from typing import Any

import pytest
from kineto_files import write

import chopper_interop as ci

PYTHON, CANN, NPU = 1_024_001, 1_024_032, 1_024_064
MAIN, ACL = 2_287_318, 2_290_334


def meta(pid: int, name: str, tid: int = 0, about: str = "process_name") -> dict[str, Any]:
    return {"ph": "M", "name": about, "pid": pid, "tid": tid, "args": {"name": name}}


def x(pid: int, tid: int, name: str, ts: float, dur: float, cat: str = "") -> dict[str, Any]:
    event = {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": f"{ts:.3f}", "dur": dur}
    return event | {"args": {}} | ({"cat": cat} if cat else {})


def arrow(cat: str, number: Any, *ends: tuple[int, int, float]) -> list[dict[str, Any]]:
    common = {"cat": cat, "name": cat, "id": number, "bp": "e"}
    return [
        common | {"ph": ph, "pid": pid, "tid": tid, "ts": f"{ts:.3f}"}
        for ph, (pid, tid, ts) in zip("sf", ends, strict=True)
    ]


def job(*, queue: bool, operators: bool = True) -> list[dict[str, Any]]:
    """Operators that launch kernels themselves, or (`queue`) by a thread that only launches."""
    events = [meta(PYTHON, "Python"), meta(CANN, "CANN"), meta(NPU, "Ascend Hardware")]
    events.append(meta(NPU, "Stream 2", 2, "thread_name"))
    for k in range(20):
        at = 1_000_000 + 100.0 * k
        thread, called = (ACL, at + 30) if queue else (MAIN, at + 5)
        if operators:
            events.append(x(PYTHON, MAIN, f"aten::op{k}", at, 20, "cpu_op"))
            events += arrow("async_npu", k, (PYTHON, MAIN, at), (NPU, 2, at + 60))
        if queue:
            events.append(x(PYTHON, MAIN, f"Enqueue@{k}", at + 2, 2, "enqueue"))
            events.append(x(PYTHON, ACL, f"Dequeue@{k}", at + 29, 10, "dequeue"))
            events += arrow("async_task_queue", k, (PYTHON, MAIN, at + 2), (PYTHON, ACL, at + 29))
        events.append(x(CANN, thread, "Node@launch", called, 4))
        events.append(x(NPU, 2, f"MatMul{k}", at + 60, 30))
        events += arrow(
            "HostToDevice", str(81604378623 + k), (CANN, thread, called), (NPU, 2, at + 60)
        )
    return events


@pytest.mark.parametrize(
    ("queue", "operators", "launched_by"),
    [(False, True, "Node@launch"), (True, True, "aten::op"), (True, False, "Node@launch")],
)
def test_arrows_are_launches(
    tmp_path: Path, *, queue: bool, operators: bool, launched_by: str
) -> None:
    trace = ci.read(write(tmp_path / "trace_view.json", job(queue=queue, operators=operators)))
    names, name = trace.names(), trace.array("name")
    kernels = [i for i, code in enumerate(name) if names[code].startswith("MatMul")]
    launches = [names[name[i]] for i in trace.launch[kernels] if i >= 0]
    assert len(launches) == len(kernels) == 20
    assert all(text.startswith(launched_by) for text in launches)
    codes = {issue.code for issue in trace.meta.issues}
    assert not codes & {"flow-unknown", "launch-arrow-unbound", "launch-not-recorded"}


def test_the_operator_around_a_launch_is_known_with_a_queue_too(tmp_path: Path) -> None:
    for queue in (False, True):
        trace = ci.read(write(tmp_path / "trace_view.json", job(queue=queue)))
        frame = trace.to_pandas()
        kernels = frame[frame["name"].str.startswith("MatMul")]
        assert list(kernels["operation"]) == [f"aten::op{k}" for k in range(20)]


def test_an_arrow_behind_a_nested_call_is_of_the_call_around_it(tmp_path: Path) -> None:
    """CANN compiles operators within the call that executes them: a third of a real profile's launches were unknown."""
    events = [meta(PYTHON, "Python"), meta(CANN, "CANN"), meta(NPU, "Ascend Hardware")]
    events.append(meta(NPU, "Stream 2", 2, "thread_name"))
    for k, (began, within) in enumerate(((1000, 1020), (1100, 1104), (1200, 1230))):
        events.append(x(CANN, ACL, f"AscendCL@aclopCompileAndExecute{k}", began, 25))
        events.append(x(CANN, ACL, f"AscendCL@opCompile{k}", began + 2, 8))
        events.append(x(NPU, 2, f"MatMul{k}", began + 60, 30))
        events += arrow("HostToDevice", str(k), (CANN, ACL, within), (NPU, 2, began + 60))
    trace = ci.read(write(tmp_path / "trace_view.json", events))
    frame = trace.to_pandas()
    launched = {
        frame["name"][k]: trace.launch[k] for k in frame.index if frame["kind"][k] == "kernel"
    }
    by = {name: frame["name"][call] if call >= 0 else None for name, call in launched.items()}
    assert by == {
        "MatMul0": "AscendCL@aclopCompileAndExecute0",
        "MatMul1": "AscendCL@opCompile1",
        "MatMul2": None,  # it begins where no call runs
    }
    assert {i.code: i.count for i in trace.meta.issues}["launch-arrow-unbound"] == 1
