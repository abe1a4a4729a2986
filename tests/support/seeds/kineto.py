"""Kineto traces: sound ones in small, and what goes wrong with them."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from typing import TYPE_CHECKING, Any

from kineto_files import BASE, call, flow, kernel, span

from chopper_interop.errors import ReadError, UnknownFormatError
from seeds import Odd, Reads, Refused, Seed, reads

if TYPE_CHECKING:
    from collections.abc import Mapping

_STEP: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {"name": "python3"}},
    {"ph": "M", "name": "thread_name", "pid": 100, "tid": 100, "args": {"name": "thread 100 (py)"}},
    span("user_annotation", "ProfilerStep#1", 1000, 900),
    span("cpu_op", "aten::mm", 1010.5, 80, args={"External id": 7, "Sequence number": 3}),
    call("hipLaunchKernel", 1020, 10, 41),
    kernel("gemm", 1060.125, 50.25, 41, grid=[256, 1, 1], block=[64, 1, 1]),
    span("cpu_op", "MmBackward0", 1200, 60, tid=101),
    flow("s", "fwdbwd", 1, 1010.5),
    flow("f", "fwdbwd", 1, 1200, tid=101),
    {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 100, "tid": 100,
     "ts": 1300, "args": {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Total Allocated": 512,
                          "Total Reserved": 2048}},
    {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "mark", "pid": 100, "tid": 100,
     "ts": 1310},
]  # fmt: skip
_NODES, _SAMPLES = 6, 2
_HEADER = {"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 4}}


def _lines(events: list[Any]) -> list[bytes]:
    return [json.dumps(event).encode() for event in events]


def _document(events: list[Any], header: Mapping[str, Any] = _HEADER) -> bytes:
    stated = {**header, "baseTimeNanoseconds": BASE}
    return (
        json.dumps(stated).encode()[:-1]
        + b',\n"traceEvents": [\n'
        + b",\n".join(_lines(events))
        + b'\n],\n"traceName": "a.json"}\n'
    )


_COMPLETE = _document(_STEP)
_OLD = b"[\n" + b",\n".join(_lines(_STEP[:8])) + b"\n]\n"

_VIZTRACER = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "MainProcess"}},
    {"ph": "X", "name": "main (a.py:3)", "pid": 1, "tid": 1, "ts": 10, "dur": 50, "cat": "FEE"},
    {"ph": "X", "name": "print (b.py:1)", "pid": 1, "tid": 1, "ts": 20, "dur": 5, "cat": "FEE"},
]
_CHROME = b'{"traceEvents": [\n' + b",\n".join(_lines(_VIZTRACER)) + b"\n]}\n"

SEEDS = [
    Seed("chrome-trace", "viztracer.json", _CHROME, frozenset(_lines(_VIZTRACER))),
    Seed("kineto", "rank3.json", _COMPLETE, frozenset(_lines(_STEP))),
    Seed("kineto", "worker3.json", _OLD, frozenset(_lines(_STEP[:8]))),
]

_DIR = "pytorch/odd/"
_ALL = 182


def _roc(kernels: int, calls: int) -> dict[str, int]:
    return {"grid-block-swapped": kernels, "api-name-wrong": calls}


_ROC = _roc(16, 2)
"""Faults of all files here that are made of the one of rocprofiler-sdk."""
_EMPTY = Refused(UnknownFormatError, "empty")
_NO_LIST = Refused(ReadError, "no list `traceEvents`")
_RESNET = 29_836

REAL: dict[str, tuple[int, dict[str, int]] | Refused] = {
    "cupti_head_ts_corrupt_pytorch192021.json": (_ALL, {"kernel-before-launch": 3, **_ROC}),
    "duplicate_kernels.json":
        (_ALL + 5, {"kernel-recorded-twice": 5, "api-name-wrong": 2, "grid-block-swapped": 19}),
    "dur_nan_inf_negative_null_string.json":
        (_ALL, {"duration-not-a-number": 12, "duration-negative": 4, **_ROC}),
    "empty.json": _EMPTY,
    "empty.json.gz": _EMPTY,
    "events_shuffled.json": (_ALL, _ROC),
    "external_id_int32_wrap.json": (_ALL, _ROC),
    "gz_but_named_json.json": (_ALL, _ROC),
    "gzip_trailing_garbage.json.gz": (_ALL, _ROC),
    "kernel_dur_overflow_tracelens669.json.gz": (_RESNET, {"kernel-overflows-next": 10}),
    "missing_closing.json": (_ALL, {"file-not-closed": 1, **_ROC}),
    "multi_member.json.gz": (_ALL, _ROC),
    "name_control_char_perfetto598.json": (_ALL, _ROC),
    "name_newline_and_quotes_pytorch113001.json": (_ALL - 1, {"event-malformed": 1, **_ROC}),
    "name_non_utf8_kineto80.json": (_ALL, {"name-not-utf8": 1, **_ROC}),
    "name_unescaped_quotes_pytorch146900.json": (_ALL - 1, {"event-malformed": 1, **_ROC}),
    "name_windows_backslash_pytorch98432.json": (_ALL, _ROC),
    "no_distributedInfo_rank0.json.gz": (_RESNET, {}),
    "no_gpu_events_rank0.json.gz": (25_711, {}),
    "non_dict_and_partial_events.json": (_ALL + 1, {
        "event-malformed": 3, "event-empty": 1, "event-without-time": 1, "duration-not-a-number": 1,
        "start-far-off": 1, "category-unknown": 1, **_ROC}),
    "not_json.json": Refused(UnknownFormatError, "no format that is known"),
    "object_without_traceEvents.json": _NO_LIST,
    "plain_but_named.json.gz": (_ALL, _ROC),
    "rccl_corr0_roctracer100.json.gz": (_RESNET, {"launch-by-order": 21}),
    "toplevel_list.json": (_ALL, _ROC),
    "trace.json.bz2": (_ALL, _ROC),
    "trace.json.xz": (_ALL, _ROC),
    "traceEvents_empty.json": Refused(ReadError, "no events"),
    "traceEvents_null.json": _NO_LIST,
    "truncated_after_comma.json": (118, {"file-not-closed": 1, **_roc(4, 1)}),
    "truncated_gzip.json.gz": (130, {
        "compressed-data-cut-short": 1, "event-malformed": 1, "file-not-closed": 1, **_roc(6, 1)}),
    "truncated_mid_event.json": (137, {"event-malformed": 1, "file-not-closed": 1, **_roc(8, 1)}),
    "ts_strings_torchnpu133.json": (_ALL, _ROC),
    "ts_zero_second_half_pytorch188481.json":
        (_ALL, {"start-far-off": 55, "kernel-before-launch": 2, **_ROC}),
    "utf16.json": (_ALL, _ROC),
    "utf8_bom.json": (_ALL, _ROC),
    "whitespace.json": _EMPTY,
}  # fmt: skip
"""Files with faults of known reports → nodes and issues, or the reason why there are none."""


def _read(
    name: str, data: bytes, *, nodes: int = _NODES, samples: int = _SAMPLES, **issues: int
) -> Odd:
    return Odd(f"kineto {name}", {"rank3.json": data}, reads(nodes, samples, **issues))


def _events(name: str, *events: Any, nodes: int, samples: int = 0, **issues: int) -> Odd:
    return _read(name, _document(list(events)), nodes=nodes, samples=samples, **issues)


def _begin(ph: str, name: str, ts: float, **more: Any) -> dict[str, Any]:
    return {"ph": ph, "name": name, "pid": 1, "tid": 1, "ts": ts, **more}


_A, _B = (kernel(name, ts, 50, corr) for name, ts, corr in (("a", 100, 1), ("b", 200, 2)))
_TF = [
    {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
    {"ph": "M", "pid": 1, "tid": 14, "name": "thread_name", "args": {"name": "Stream #14(Compute)"}},
    {"ph": "M", "pid": 701, "name": "process_name", "args": {"name": "/host:CPU"}},
    {"ph": "X", "pid": 1, "tid": 14, "ts": 10, "dur": 5, "name": "fusion"},
    {"ph": "X", "pid": 701, "tid": 9, "ts": 1, "dur": 3, "name": "cuLaunchKernel"},
    {},
]  # fmt: skip

ODD = [
    *(
        Odd(f"kineto {name}", {name: _DIR + name}, o if isinstance(o, Refused) else Reads(o[0], 0, o[1]))
        for name, o in REAL.items()
    ),
    _read("whole", _COMPLETE),
    _read("CRLF", _COMPLETE.replace(b"\n", b"\r\n")),
    _read("UTF-16", _COMPLETE.decode().encode("utf-16")),
    _read("BOM", b"\xef\xbb\xbf" + _COMPLETE),
    _read("gzip", gzip.compress(_COMPLETE)),
    _read("two members", gzip.compress(_COMPLETE[:700]) + gzip.compress(_COMPLETE[700:])),
    _read("xz", lzma.compress(_COMPLETE)),
    _read("bzip2", bz2.compress(_COMPLETE)),
    _read("tail of NUL bytes", _COMPLETE + bytes(512)),
    _read(
        "two documents",
        _COMPLETE + _COMPLETE,
        events_of_second_list=len(_STEP),
    ),
    _read("rubbish after the end", _COMPLETE + b"oops", bytes_after_end=4),
    _read(
        "list twice",
        _COMPLETE.replace(b'"traceName"', b'"traceEvents": [{"ph":"X"}, 5], "traceName"'),
        events_of_second_list=2,
    ),
    _read(
        "breaks off before the time base",
        b'{"schemaVersion": 1, "traceEvents": [' + b",".join(_lines(_STEP)) + b",",
        file_not_closed=1,
        time_base_missing=1,
    ),
    _read("end of the object lost", _COMPLETE[: _COMPLETE.rindex(b"]") + 1]),
    _read("name with a lone continuation byte", _COMPLETE.replace(b'"mark"', b'"ma\x80rk"'), name_not_utf8=1),
    _read("bracket of the list lost", _COMPLETE.replace(b"\n]", b"\n"), nodes=_NODES, file_not_closed=1, event_malformed=2),
    _events("kernel into the next", _A | {"dur": 121}, _B, nodes=2, kernel_overflows_next=1),
    _events("kernels that overlap as real ones do", _A | {"dur": 113}, _B, nodes=2),
    _events("kernel over all the others", _A | {"dur": 5e6}, _B, kernel("c", 300, 9, 3), nodes=3,
            kernel_overflows_next=1),
    _events("kernels of a graph side by side", _A | {"dur": 400}, kernel("b", 200, 9, 1), nodes=2),
    _events("kernel of a graph into the next launch", _A | {"dur": 400}, kernel("b", 200, 9, 1),
            kernel("c", 300, 9, 2), nodes=3, kernel_overflows_next=1),
    _events("kernel twice", _A, _B, _A, nodes=3, kernel_recorded_twice=1),
    _events("kernels alike without an id", *[kernel("a", 5, 1, 0)] * 2, nodes=2),
    _events("kernel before its launch", call("hipLaunchKernel", 101, 2, 1), _A, nodes=2,
            kernel_before_launch=1),
    _events("starts that were not read", _A, _B, span("cpu_op", "x", 4e9, 1), nodes=3, start_far_off=1),
    _events("grid and block swapped", kernel("a", 1, 1, 1, grid=[256, 1, 1], block=[4096, 1, 1]),
            nodes=1, grid_block_swapped=1),
    _events("grid without end", kernel("a", 1, 1, 1, grid=[1], block=[10**30, 1]), nodes=1),
    _events("begins and ends", _begin("B", "a", 1), _begin("B", "b", 2), _begin("E", "b", 3),
            _begin("E", "a", 4), nodes=2, event_end=2),
    _events("ends without begins", _begin("E", "a", 1), _begin("B", "a", 2), _begin("B", "b", 3, args={"y": 1}),
            _begin("E", "b", 4, args={"x": 1}), nodes=2, event_end=1, end_without_begin=1,
            begin_without_end=1, end_arguments=1),
    _events("begin and end without times", {"ph": "B", "name": "a"}, {"ph": "E"}, _A, nodes=1,
            event_without_time=1, end_without_begin=1),
    _events("asynchronous", _begin("b", "a", 1, id=1), _begin("e", "a", 2, id=1), _A, nodes=1,
            event_phase_unknown=2),
    _events("arrows of others", flow("s", "unknown", 1, 1), flow("f", "unknown", 1, 2), _A, nodes=1,
            flow_unknown=2),
    _events("arrows by bind_id", _begin("X", "a", 1, dur=1, bind_id="0x1", flow_out=True), nodes=1,
            flow_by_bind_id=1),
    _events("counter of several values", _begin("C", "m", 1, args={"a": 1, "b": 2, "c": "x"}), _A,
            nodes=1, samples=2, counter_value_no_number=1),
    _events("counter of nothing", _begin("C", "m", 1, args={"a": "x"}), _A, nodes=1,
            counter_event_without_number=1),
    _events("device without categories", *_TF, nodes=2, event_empty=1),
    _read(
        "a list that ends too early",
        b'{"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":1}],\n{"ph":"X"}]}',
        nodes=1,
        samples=0,
        bytes_after_end=14,
    ),
    _read("not Kineto's list", b'[{"a": 1}]', nodes=0, samples=0),
]  # fmt: skip
ODD[-1] = Odd(ODD[-1].name, ODD[-1].files, Refused(UnknownFormatError, "no format"))
