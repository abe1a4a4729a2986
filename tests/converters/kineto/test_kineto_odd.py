"""Odd Kineto files against an independent count of their complete events."""

import bz2
import json
import lzma
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from issue_counts import counts
from kineto_files import BASE, call, kernel, span, write
from seeds import Refused
from seeds.kineto import REAL
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.issues import Severity
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind

pytestmark = pytest.mark.filterwarnings("error")


def unpacked(path: Path) -> str:
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        rest, raw = raw, b""
        while rest[:2] == b"\x1f\x8b":
            member = zlib.decompressobj(31)
            raw += member.decompress(rest)
            rest = member.unused_data
    for magic, module in ((b"BZh", bz2), (b"\xfd7zXZ", lzma)):
        if raw.startswith(magic):
            raw = module.decompress(raw)  # type: ignore[attr-defined]
    encoding = "utf-16" if raw[:2] == b"\xff\xfe" else "utf-8-sig"
    return raw.decode(encoding, "replace")


def complete_events(text: str) -> list[Any]:
    """Events of a list one by one; what does not parse is passed over up to the next event."""
    text = re.sub(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})', r"\\\\", text)
    parser = json.JSONDecoder(strict=False)
    start = re.search(r'(?:"traceEvents"\s*:\s*|\A\s*)\[', text)
    events, at = [], start.end() if start else len(text)
    while at < len(text):
        at = re.compile(r"[\s,]*").match(text, at).end()  # type: ignore[union-attr]
        if at < len(text) and text[at] == "]":
            break
        try:
            event, at = parser.raw_decode(text, at)
            events.append(event)
        except ValueError:
            following = re.compile(r'\{\s*"ph"').search(text, at + 1)
            at = following.start() if following else len(text)
    return events


def is_node(event: Any) -> bool:
    if not isinstance(event, dict) or event.get("ph") not in ("X", "i"):
        return False
    return "ts" in event and event.get("name") != "[memory]"


NODES = {name: outcome[0] for name, outcome in REAL.items() if not isinstance(outcome, Refused)}
"""Of the odd files that are read; the four of a whole ResNet are slow."""


@pytest.mark.parametrize("name", slow_from(sorted(NODES, key=NODES.__getitem__), -4))
def test_every_complete_event_is_there(name: str) -> None:
    path = real(f"pytorch/odd/{name}")
    events = complete_events(unpacked(path))
    trace = ci.read(path)
    issues = trace.meta.issues
    assert trace.nodes.num_rows == sum(map(is_node, events))
    (source,) = trace.meta.sources
    assert source.events == source.nodes + sum(i.count for i in issues if i.events)


def test_all_odd_files_are_in_the_table() -> None:
    assert {path.name for path in real("pytorch/odd").iterdir()} == REAL.keys()


def test_wrong_values_are_counted_as_errors_and_stay(tmp_path: Path) -> None:
    events = [
        call("hipLaunchKernel", 120, 2, 1),
        kernel("a", 100, 121, 1, grid=[256, 1, 1], block=[4096, 1, 1]),
        kernel("b", 200, 5, 2),
        kernel("b", 200, 5, 2),
    ]
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    errors = {i.code: i for i in trace.meta.issues if i.severity is Severity.ERROR}
    assert errors.keys() == {
        "kernel-overflows-next",
        "kernel-before-launch",
        "kernel-recorded-twice",
        "grid-block-swapped",
    }
    assert "by 21.000 us" in errors["kernel-overflows-next"].example
    assert "20.000 us before" in errors["kernel-before-launch"].example
    assert (
        "ran [4096, 1, 1] threads in blocks of [256, 1, 1]" in errors["grid-block-swapped"].example
    )
    assert sorted(trace.array("dur").tolist()) == [2_000, 5_000, 5_000, 121_000]
    first = int((trace.array("dur") == 121_000).argmax())
    assert trace.args(first)["block"] == [4096, 1, 1]


def test_real_clocks_that_differ_are_counted() -> None:
    folder = real("pytorch/torchrec_4rank_v100")
    for path in folder.glob("*.json"):
        events = complete_events(unpacked(path))
        launches = {
            e["args"]["correlation"]: e["ts"]
            for e in events
            if e.get("cat") == "cuda_runtime"
            and re.search("Launch|Memcpy|Memset", e["name"])
            and "correlation" in e["args"]
        }
        work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        early = sum(e["ts"] < launches.get(e["args"]["correlation"], 0) for e in work)
        by_code = counts(ci.read(path))
        assert by_code.get("kernel-before-launch", 0) == early


def test_begins_and_ends_are_spans(tmp_path: Path) -> None:
    events = [
        {"ph": ph, "name": name, "pid": 1, "tid": 1, "ts": ts, "cat": "cpu_op"}
        for ph, name, ts in (("B", "a", 1), ("B", "b", 2), ("E", "", 2.5), ("E", "", 7))
    ]
    trace = ci.read(write(tmp_path / "rank0.json", events))
    names, code = trace.names(), trace.array("name").tolist()
    durations = dict(zip((names[c] for c in code), trace.array("dur").tolist(), strict=True))
    assert durations == {"a": 6_000, "b": 500}
    assert trace.array("parent").tolist() == [-1, 0]


def test_the_process_determines_kinds_of_events_without_category(tmp_path: Path) -> None:
    def name(about: str, pid: int, text: str, tid: int = 0) -> dict[str, Any]:
        return {"ph": "M", "name": about, "pid": pid, "tid": tid, "args": {"name": text}}

    def x(pid: int, tid: int, text: str) -> dict[str, Any]:
        return {"ph": "X", "pid": pid, "tid": tid, "ts": 5, "dur": 1, "name": text}

    events = [
        name("process_name", 1, "/device:GPU:0"),
        name("thread_name", 1, "Stream #14(Compute)", 14),
        name("thread_name", 1, "XLA Modules", 2),
        name("process_name", 2, "/host:CPU"),
        name("process_name", 3, "Ascend Hardware"),
        name("thread_name", 3, "Stream 5", 5),
        name("process_name", 4, "Overlap Analysis"),
        x(1, 14, "fusion_1"), x(1, 14, "MemcpyD2H"), x(1, 14, "ncclDevKernel_AllReduce_Sum"),
        x(1, 2, "jit_step"), x(2, 9, "$train.py:10 step"), x(2, 9, "hipLaunchKernel"),
        x(2, 9, "BufferFromHost"), x(3, 5, "MatMulV3"), x(4, 1, "Computing"), x(9, 9, "?"),
    ]  # fmt: skip
    trace = ci.read(write(tmp_path / "rank0.json", events))
    names = trace.names()
    kinds = {
        names[c]: Kind(int(k))
        for c, k in zip(trace.array("name").tolist(), trace.array("kind"), strict=True)
    }
    assert kinds == {
        "fusion_1": Kind.KERNEL,
        "MemcpyD2H": Kind.MEMCPY,
        "ncclDevKernel_AllReduce_Sum": Kind.COMM,
        "jit_step": Kind.GPU_ANNOTATION,
        "$train.py:10 step": Kind.PYTHON,
        "hipLaunchKernel": Kind.RUNTIME,
        "BufferFromHost": Kind.CPU_OP,
        "MatMulV3": Kind.KERNEL,
        "Computing": Kind.SPAN,
        "?": Kind.OTHER,
    }
    lanes = trace.lanes.to_pylist()
    assert {(r["kind"], r["number"]) for r in lanes} >= {
        (LaneKind.STREAM, 14),
        (LaneKind.STREAM, 5),
    }


def test_counters_of_several_gpus_stay_apart(tmp_path: Path) -> None:
    def count(pid: Any, name: str, value: float) -> dict[str, Any]:
        return {"ph": "C", "pid": pid, "tid": 0, "ts": 1, "name": name, "args": {"": value}}

    events = [
        span("cpu_op", "a", 1, 1),
        count("GPU 0 Counters", "SQ_WAVES", 1),
        count("GPU 1 Counters", "SQ_WAVES", 2),
        count(7, "free", 3),
        count(8, "free", 4),
    ]
    trace = ci.read(write(tmp_path / "rank0.json", events))
    series = [(s["device"], s["name"]) for s in trace.series.to_pylist()]
    value = dict(
        zip(trace.array("series", "samples"), trace.array("value", "samples"), strict=True)
    )
    assert {series[k]: v for k, v in value.items()} == {
        (0, "SQ_WAVES"): 1,
        (1, "SQ_WAVES"): 2,
        (-1, "free of 7"): 3,
        (-1, "free of 8"): 4,
    }


def test_not_all_of_many_documents_are_counted(tmp_path: Path) -> None:
    document = write(tmp_path / "one.json", [span("cpu_op", "a", 1, 1)]).read_bytes()
    (tmp_path / "rank0.json").write_bytes(document * 200)
    trace = ci.read(tmp_path / "rank0.json")
    assert counts(trace)["events-of-second-list"] == 64


@pytest.mark.parametrize("odd", [[{"correlation": 2}], ["correlation", 2], "correlation 2", 2.5, 2])
def test_arguments_that_are_no_object_are_counted(tmp_path: Path, odd: Any) -> None:
    """The correlation id in them was lost, and with it a launch, in silence."""
    events = [
        call("hipLaunchKernel", 0, 5, 1), kernel("gemm", 10, 5, 1),
        {**call("hipLaunchKernel", 20, 5, 2), "args": odd}, kernel("gemm", 30, 5, 2),
    ]  # fmt: skip
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    assert (trace.array("kind", "edges") == EdgeKind.LAUNCH).sum() == 1
    (issue,) = (i for i in trace.meta.issues if i.code == "arguments-not-an-object")
    assert (issue.severity, issue.count) == (Severity.LOSS, 1)
    assert "hipLaunchKernel" in issue.example


@pytest.mark.parametrize("empty", ["null", "[]", "[ \n]", '""', "{}"])
def test_arguments_that_hold_nothing_are_no_loss(tmp_path: Path, empty: str) -> None:
    events = [
        call("hipLaunchKernel", 0, 5, 1),
        {**span("cpu_op", "aten::add", 20, 5), "args": "NOTHING"},
    ]
    path = write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE)
    path.write_text(path.read_text().replace('"NOTHING"', empty))
    trace = ci.read(path)
    assert "arguments-not-an-object" not in counts(trace)
