"""Small Kineto files, written as the profiler writes them."""

import gzip
import json
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

Event = TypeVar("Event")

BASE = 1_767_189_312_000_000_000


def span(cat: str, name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    """An ``X`` event; GPU work goes to device 2 and stream 0, all else to thread 100."""
    on_device = cat in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")
    where = {"pid": 2, "tid": 0} if on_device else {"pid": 100, "tid": 100}
    args = {"device": 2, "stream": 0} if on_device else {}
    args |= more.pop("args", {})
    event = {"ph": "X", "cat": cat, "name": name, **where, "ts": ts, "dur": dur, "args": args}
    return event | more


def call(name: str, ts: float, dur: float, correlation: int, **more: Any) -> dict[str, Any]:
    """A runtime call."""
    return span("cuda_runtime", name, ts, dur, args={"correlation": correlation}, **more)


def kernel(name: str, ts: float, dur: float, correlation: int, **args: Any) -> dict[str, Any]:
    """A kernel."""
    return span("kernel", name, ts, dur, args={"correlation": correlation, **args})


def flow(ph: str, cat: str, number: int, ts: float, tid: int = 100) -> dict[str, Any]:
    """One end of an arrow."""
    event = {"ph": ph, "id": number, "pid": 100, "tid": tid, "ts": ts, "cat": cat, "name": cat}
    return event | ({"bp": "e"} if ph == "f" else {})


def write(path: Path, events: list[dict[str, Any]], **header: Any) -> Path:
    """An object with these events; gzipped if its name says so."""
    document = {"schemaVersion": 1, **header, "traceEvents": events}
    raw = json.dumps(document).encode()
    path.write_bytes(gzip.compress(raw) if path.name.endswith(".gz") else raw)
    return path


class _Document(msgspec.Struct, Generic[Event]):
    events: list[Event] | None = msgspec.field(name="traceEvents")


def events_of(path: Path, event: type[Event]) -> list[Event]:
    """Events of a file, with those fields alone that the class of an event has: a tenth of the time of all of them."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    return msgspec.json.decode(text, type=_Document[event]).events or []


def blocking_copies(folder: Path) -> Path:
    """A file of ten steps of kernels of 10 ms each, launched in 40 µs, and a copy in which the host waits."""
    events, at, gpu_end, number = [], 0.0, 0.0, 1
    for _ in range(10):
        for _ in range(4):
            events.append(call("hipLaunchKernel", at, 10, number))
            start = max(gpu_end, at + 5)
            events.append(kernel("gemm", start, 2500, number))
            gpu_end, at, number = start + 2500, at + 110, number + 1
        start = max(gpu_end + 1, at + 8)
        events.append(
            {**kernel("Memcpy DtoH (Device -> Host)", start, 5, number), "cat": "gpu_memcpy"}
        )
        gpu_end = start + 5
        events.append(call("hipMemcpyWithStream", at, gpu_end + 12 - at, number))
        at, number = gpu_end + 12 + 300, number + 1
    folder.mkdir(exist_ok=True)
    return write(folder / "rank0.json", events, baseTimeNanoseconds=BASE)


def uploads(
    how: str, call_us: int, bytes_: int = 1 << 20, outlasts_us: int = 40
) -> list[dict[str, Any]]:
    """Six kernels of 1 ms, each with a copy of 300 µs to the GPU behind it, that ends behind the call that waits for it."""
    events, at = [], 0
    for k in range(1, 12, 2):
        copied = at + 10 + 1000 + 3 + 300
        copy = kernel(f"Memcpy HtoD ({how} -> Device)", copied - 300, 300, k + 1, bytes=bytes_)
        waited = copied - outlasts_us - at - 6
        name = "cudaMemcpyAsync" if how == "Pageable" else "hipMemcpyWithStream"
        events += [
            call("cudaLaunchKernel", at, 4, k), kernel("gemm", at + 10, 1000, k),
            call(name, at + 6, call_us or waited, k + 1), copy | {"cat": "gpu_memcpy"},
        ]  # fmt: skip
        at = copied + 7
    return [*events, span("cpu_op", "aten::add", at, 5)]


def copies_on_a_free_stream(name: str, call_us: int, before_us: int = 5) -> list[dict[str, Any]]:
    """Six copies of 300 µs of memory that is not pinned, as clocks have it so much before or behind the begin of their call."""
    events = []
    for k in range(6):
        at = 600 * k + 50
        copy = kernel("Memcpy HtoD (Pageable -> Device)", at + before_us, 300, k + 1, bytes=1 << 20)
        events += [
            call(name, at, call_us, k + 1), copy | {"cat": "gpu_memcpy"},
            span("cpu_op", "aten::add", at + 290, 5),
        ]  # fmt: skip
    return events
