"""A Chrome trace that PyTorch did not write is read as such, and not called a profiler trace."""

import json
from pathlib import Path
from typing import Any

import pytest
from kineto_files import kernel, span, write

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.io.inputs import head


def x(name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **more}


def meta(about: str, name: str, pid: int = 1, tid: int = 1) -> dict[str, Any]:
    return {"ph": "M", "name": about, "pid": pid, "tid": tid, "args": {"name": name}}


VIZTRACER = {
    "traceEvents": [
        meta("process_name", "MainProcess"),
        meta("thread_name", "MainThread"),
        x("main (a.py:3)", 10, 50, cat="FEE"),
        x("print (b.py:1)", 20, 5, cat="FEE", args={"func_args": {}}),
    ],
    "viztracer_metadata": {"version": "1.1.1", "overflow": False},
    "displayTimeUnit": "us",
}
CHROME = [
    meta("process_name", "Browser"),
    x("RunTask", 5, 3, cat="toplevel"),
    {"ph": "B", "name": "Paint", "cat": "cc", "pid": 1, "tid": 1, "ts": 20},
    {"ph": "E", "name": "Paint", "cat": "cc", "pid": 1, "tid": 1, "ts": 30},
    {"ph": "b", "id": 1, "name": "load", "cat": "nav", "pid": 1, "tid": 1, "ts": 40},
]
PERFETTO = {
    "traceEvents": [
        {"args": {"sort_index": 0}, "name": "process_sort_index", "ph": "M", "pid": 1, "tid": 0},
        x("binder transaction", 100, 7, cat="", args={"slice_id": 3}),
        {"ph": "C", "name": "cpufreq", "pid": 0, "ts": 100, "args": {"value": 3}},
    ],
    "metadata": {"clock-domain": "LINUX_CLOCK_MONOTONIC"},
}
PY_SPY = [
    {"args": {"line": 5}, "cat": "py-spy", "name": "f", "ph": "B", "pid": 1, "tid": 1, "ts": 5},
    {"args": {"line": 5}, "cat": "py-spy", "name": "f", "ph": "E", "pid": 1, "tid": 1, "ts": 9},
]
UNITRACE = {  # of Intel, with a category of PyTorch's
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 5, "ts": 1, "args": {"name": "HOST<x> python"}},
        {
            "ph": "X",
            "tid": 7,
            "pid": 5,
            "name": "zeMemAllocDevice",
            "cat": "cpu_op",
            "ts": 1,
            "dur": 3,
            "id": 1,
        },
        {
            "ph": "X",
            "tid": 2,
            "pid": 50,
            "name": "gemm[SIMD16]",
            "cat": "gpu_op",
            "ts": 11,
            "dur": 20,
        },
    ]
}
OTHERS = {
    "unitrace": (UNITRACE, 2),
    "py-spy": (PY_SPY, 1),
    "viztracer": (VIZTRACER, 2),
    "chrome": (CHROME, 2),
    "perfetto": (PERFETTO, 1),
}


@pytest.mark.parametrize("program", OTHERS)
def test_others_are_named_as_they_are(tmp_path: Path, program: str) -> None:
    document, nodes = OTHERS[program]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    (converter,) = registry.sniffed(head(path), path)
    assert converter.name == "chrome-trace"
    assert "PyTorch did not write" in converter.description
    trace = ci.read(path)
    assert trace.nodes.num_rows == nodes
    assert [source.format for source in trace.meta.sources] == ["chrome-trace"]


def test_arguments_of_an_end_are_those_of_a_begin_without(tmp_path: Path) -> None:
    """Tools that know a call's result, or its thread, when it ends write arguments there alone: they were left out."""
    begin, end = ({"name": "f", "ph": ph, "pid": 1, "tid": 1} for ph in "BE")
    events = [
        begin | {"ts": 1}, begin | {"ts": 2, "args": {}}, end | {"ts": 3, "args": {"comm": "tee"}},
        end | {"ts": 4, "args": {"comm": "sh"}},
        begin | {"ts": 5, "args": {"line": 5}}, end | {"ts": 6, "args": {"comm": "cat"}},
        begin | {"ts": 7, "args": {"n": 1}}, end | {"ts": 8, "args": {"n": 2}},
        begin | {"ts": 9, "args": {"n": 3}}, end | {"ts": 10, "args": {"n": 3}},
    ]  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    trace = ci.read(path)
    assert [trace.args(k) for k in range(3)] == [{"comm": "sh"}, {"comm": "tee"}, {"line": 5}]
    assert {i.code: i.count for i in trace.meta.issues}["end-arguments"] == 2


def test_the_same_arguments_at_both_ends_are_no_loss(tmp_path: Path) -> None:
    """Of each span of py-spy's one was counted as lost."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(PY_SPY))
    trace = ci.read(path)
    assert trace.args(0) == {"line": 5}
    assert "end-arguments" not in {issue.code for issue in trace.meta.issues}


def test_arrows_of_data_are_no_launches(tmp_path: Path) -> None:
    """TensorFlow 1 calls its arrows as rocprof does: each was a launch that is unknown."""
    process = {
        "ph": "M",
        "name": "process_name",
        "pid": 1,
        "args": {"name": "/job:localhost/cpu:0 Compute"},
    }
    operators = [
        x(name, ts, 5, cat="Op", pid=1, tid=0) for name, ts in (("Conv2D", 10), ("Relu", 20))
    ]
    ends = [
        {"cat": "DataFlow", "name": "t", "id": 3, "pid": 1, "tid": 0, "ph": ph, "ts": ts}
        for ph, ts in (("s", 15), ("t", 20))
    ]
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps({"traceEvents": [process, *operators, *ends]}))
    counted = {issue.code: issue.count for issue in ci.read(path).meta.issues}
    assert counted["arrow-of-others"] == 1
    assert "launch-arrow-unbound" not in counted


def test_what_pytorch_writes(tmp_path: Path) -> None:
    events = [span("cpu_op", "aten::mm", 1, 5), kernel("gemm", 10, 5, 1)]
    old = [{"name": "aten::mm", "ph": "X", "ts": 1, "dur": 2, "tid": 3, "pid": "CPU functions"}]
    like_unitrace = [{"name": "zeRO3", "cat": "cpu_op", "ph": "X", "ts": 1, "dur": 2}]
    files = {
        "header": {"schemaVersion": 1, "traceEvents": []},
        "header, keys in another order": {"schemaVersion": 1, "traceEvents": like_unitrace},
        "bare": events,
        "by another tool": {"traceEvents": events},
        "2020": old,
    }
    for name, document in files.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(document))
        assert [c.name for c in registry.sniffed(head(path), path)] == ["kineto"], name
    ci.write(ci.read(write(tmp_path / "a.json", events)), tmp_path / "b.json")
    assert [c.name for c in registry.sniffed(head(tmp_path / "b.json"))] == ["kineto"]


def test_every_real_trace_of_pytorch_is_one(shared: Path) -> None:
    paths = [p for p in (shared / "pytorch").rglob("*.json*") if p.is_file()]
    converters = {p: [c.name for c in registry.sniffed(head(p))] for p in paths}
    assert sum(names == ["kineto"] for names in converters.values()) > 40
    assert [p.name for p, names in converters.items() if "chrome-trace" in names] == []
