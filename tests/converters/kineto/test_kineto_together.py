"""Small files that are read in one pass give what each gives alone."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from kineto_files import BASE, call, flow, kernel, span, write
from shared_data import real

from chopper_interop import registry
from chopper_interop.combined import Combined, SourceIssues
from chopper_interop.converters.kineto import trace_file
from chopper_interop.converters.kineto.reader import read, read_together
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.issues import IssueLog
from chopper_interop.reading import workers
from chopper_interop.reading.workers import SourceTask
from chopper_interop.schemas import hub

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

YEAR_NS = 31_557_600 * 10**9
RANKS = {
    "Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float",
    "Group size": 2, "Process Group Name": "3", "Process Group Ranks": "[0, 1]",
}  # fmt: skip


def memory(ts: float, **args: int) -> dict[str, Any]:
    """An instant of the allocator."""
    args = {"Device Type": 1, "Device Id": 0, "Bytes": 512, **args}
    return {"ph": "i", "name": "[memory]", "pid": 100, "tid": 100, "ts": ts, "args": args}


def operator(name: str, ts: float, dur: float, number: int, thread: int) -> dict[str, Any]:
    """An operator with autograd's numbers; `thread` is above 0 in the backward pass."""
    args = {"Sequence number": number, "Fwd thread id": thread}
    return span("cpu_op", name, ts, dur, args=args, tid=101 if thread else 100)


FILES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "plain": (
        [call("cudaLaunchKernel", 1, 2, 1), kernel("a", 10, 5, 1), call("b", 20, 1, 7)],
        {"baseTimeNanoseconds": BASE, "deviceProperties": [{"id": 2, "name": "NVIDIA H100"}]},
    ),
    "names_in_another_order": (
        [call("b", 1, 2, 1), kernel("cudaLaunchKernel", 10, 5, 1), kernel("new", 20, 1, 9)],
        {"baseTimeNanoseconds": BASE - 3 * YEAR_NS, "distributedInfo": {"rank": 1}},
    ),
    "communication": (
        [
            span("cpu_op", "c10d::allreduce_", 0, 30),
            call("cudaLaunchKernel", 1, 2, 5),
            kernel("ncclDevKernel_AllReduce_Sum_f32", 10, 5, 5, **RANKS),
            kernel("ncclDevKernel_Generic", 20, 5, 6),
        ],
        {"distributedInfo": {"rank": 1, "world_size": 4, "backend": "nccl", "pg_config": [
            {"pg_name": "0", "pg_desc": "default", "ranks": []}]}},
    ),
    "other_communication": (
        [
            call("cudaLaunchKernel", 1, 2, 5),
            kernel("ncclKernel_SendRecv", 10, 5, 5, **RANKS | {"Collective name": "send", "Seq": 4,
                                                             "dtype": "Half", "Dst Rank": 1}),
            kernel("ncclDevKernel_Broadcast", 20, 5, 6),
        ],
        {"distributedInfo": {"rank": 0, "world_size": 2}},
    ),
    "arrows": (
        [
            operator("aten::mm", 1, 5, 3, 0), operator("MmBackward0", 20, 5, 3, 1),
            flow("s", "fwdbwd", 1, 1), flow("f", "fwdbwd", 1, 20, tid=101),
            flow("s", "fwdbwd", 2, 1), flow("f", "fwdbwd", 2, 77, tid=101),
        ],
        {"baseTimeNanoseconds": BASE},
    ),
    "numbers": (
        [operator("aten::mm", 1, 5, 3, 0), operator("MmBackward0", 20, 5, 3, 1)],
        {"baseTimeNanoseconds": 5},
    ),
    "launch_arrows": (
        [
            span("cuda_runtime", "launch", 1, 5), flow("s", "async_gpu", 4, 2),
            kernel("k", 30, 4, 0), flow("f", "async_gpu", 4, 30, tid=0) | {"pid": 2},
            flow("f", "async_gpu", 9, 31, tid=0) | {"pid": 2}, flow("s", "strange", 4, 2),
        ],
        {"baseTimeNanoseconds": BASE},
    ),
    "texts_for_numbers": (
        [
            {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans",
             "tid": "PyTorch Profiler", "ts": 0, "dur": 90},
            span("cpu_op", "aten::mm", 2, 3, tid="stream 7"),
            {"ph": "M", "name": "thread_name", "pid": 100, "tid": 101, "args": {"name": "thread 101 (x)"}},
            span("cpu_op", "a\\u0062", 8, 3, tid=101), span("cpu_op", "b\u00e4", 12, 3, tid=101),
        ],
        {"host_name": "n1", "roctracer_version": 4},
    ),
    "other_texts": (
        [span("cpu_op", "aten::mm", 2, 3, tid="PyTorch Profiler", pid="Traces"), span("cpu_op", "", 9, 1)],
        {},
    ),
    "declared_arrows": ([span("new", "a", 1, 2) | {"bind_id": 4}, call("b", 4, 1, 1) | {"bind_id": 4}], {}),
    "declared_arrows_of_known_kinds": ([call("b", 4, 1, 1) | {"bind_id": 4}], {}),
    "samples": (
        [
            span("cpu_op", "aten::empty", 1, 9), memory(2, **{"Total Allocated": 5, "Total Reserved": 9}),
            memory(1), memory(3, **{"Total Allocated": 9}), kernel("k", 3, 1, 0),
            {"ph": "C", "name": "GPU 1 power", "pid": 3, "tid": 0, "ts": 4, "args": {"W": 30, "x": "y"}},
            {"ph": "C", "name": "GPU 1 power", "pid": 4, "tid": 0, "ts": 5, "args": {"W": 31}},
        ],
        {"baseTimeNanoseconds": BASE},
    ),
    "changes_of_memory": ([memory(2), memory(5, Bytes=-512), {"ph": "C", "name": "n"}], {}),
    "no_spans": ([{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}], {}),
    "odd_events": (
        [
            span("cpu_op", "a", 1, -3), span("cpu_op", "b", 2, 0) | {"dur": "x"}, span("new", "c", 3, 1),
            {}, {"ph": "N", "name": "object"}, 7, {"ph": "X", "cat": "cpu_op", "name": "untimed"},
            {"ph": "B", "cat": "cpu_op", "name": "d", "pid": 1, "tid": 2, "ts": 4},
            {"ph": "E", "pid": 1, "tid": 2, "ts": 9}, {"ph": "X", "name": "aten::e", "ts": 5, "dur": 1},
        ],
        {"distributedInfo": {"rank": "x"}},
    ),
    "agents": (
        [call("hipLaunchKernel", 1, 2, 1), kernel("a", 10, 5, 1) | {"args": {"device": 4, "stream": 1}},
         kernel("a", 17, 5, 0) | {"args": {"device": 5, "stream": 1}}],
        {"roctracer_version": 4, "deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"},
                                                      {"id": 1, "name": "AMD Instinct MI250X"},
                                                      {"id": 2, "name": "AMD Instinct MI300X"}]},
    ),
    "impossible_times": (
        [
            call("hipLaunchKernel", 100, 2, 1), kernel("early", 10, 5, 1), kernel("k", 200, 90, 3),
            kernel("k", 200, 90, 3), kernel("k2", 210, 5, 4), kernel("long", 300, 4e9, 5),
            span("cpu_op", "far", 8e9, 5),
        ],
        {"baseTimeNanoseconds": BASE},
    ),
    "a_time_of_1970": ([span("cpu_op", "zero", 0, 1), span("cpu_op", "today", 1.7e15, 5)], {}),
    "between_its_times": ([span("cpu_op", "x", 4e9, 5)], {"baseTimeNanoseconds": BASE}),
    "swapped": (
        [call("hipFree", 1, 2, 1) | {"args": {"correlation": 1, "grid": [1, 1, 1]}},
         kernel("k", 10, 5, 1, grid=[64, 1, 1], block=[4096, 1, 1])],
        {"rocprofiler-sdk_version": "7.0"},
    ),
    "rccl_without_ids": (
        [call("hipExtLaunchKernel", 1, 2, 0), kernel("ncclDevKernel_Generic_1", 10, 5, 0)],
        {"roctracer_version": 4},
    ),
}  # fmt: skip


def made(folder: Path) -> list[Path]:
    """Files of all kinds."""
    return [write(folder / f"{name}.json", *[e], **h) for name, (e, h) in FILES.items()]


def plain(trace: Trace) -> dict[str, Any]:
    """All that a trace holds, with dictionaries in their order."""
    columns = {
        (name, column): (values.type, values.to_pylist())
        for name in hub.TABLES
        for column, values in zip(
            getattr(trace, name).column_names, getattr(trace, name).columns, strict=True
        )
    }
    dictionaries = {
        name: trace.nodes[name].combine_chunks().dictionary.to_pylist()
        for name in trace.nodes.column_names
        if pa.types.is_dictionary(trace.nodes[name].type) and trace.nodes.num_rows
    }
    args = [trace.args(node) for node in range(trace.nodes.num_rows)]
    return columns | dictionaries | {"meta": trace.meta, "args": args}


def outcomes(paths: list[Path]) -> list[Any]:
    """What reading these files as a batch gives: what a trace holds, or a message."""
    batch = tuple(SourceTask("kineto", (path,), size=inputs.expected_bytes(path)) for path in paths)
    flat: list[Any] = []
    for outcome in workers.read_batch(batch):
        parts = outcome.split() if isinstance(outcome, Combined) else [outcome]
        flat += [str(p) if isinstance(p, ReadError) else plain(p) for p in parts]
    return flat


def test_files_are_as_if_read_alone(tmp_path: Path) -> None:
    paths = made(tmp_path)
    parts = read_together(paths).split()
    for path, part in zip(paths, parts, strict=True):
        alone, together = plain(read([path])), plain(part)
        assert list(alone) == list(together), path.name
        for key, expected in alone.items():
            assert together[key] == expected, (path.name, key)


def test_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    paths = made(tmp_path)
    assert outcomes(paths[::-1]) == outcomes(paths)[::-1]


@pytest.mark.slow  # 2 s: each file that is damaged or of several ranks costs some further passes
def test_odd_files_and_parts_of_real_ones(tmp_path: Path) -> None:
    paths = [p for p in sorted(real("pytorch/odd").iterdir()) if p.stat().st_size < 1 << 18]
    paths = [
        p for p in paths if [c.name for c in registry.sniffed(inputs.head(p), p)] == ["kineto"]
    ]
    for path in sorted(real("pytorch").rglob("*.pt.trace.json.gz"))[:20]:
        document = json.loads(bytes(inputs.read(path)))
        if isinstance(document, dict) and len(document["traceEvents"]) > 400:
            more = {k: v for k, v in document.items() if k != "traceEvents"}
            events = document["traceEvents"][200:400]
            paths.append(write(tmp_path / f"{len(paths)}.json", events, **more))
    assert len(paths) > 30
    for path, outcome in zip(paths, outcomes(paths), strict=True):
        assert [outcome] == outcomes([path]), path


def test_files_that_fail_or_have_several_ranks_leave_the_others_as_they_are(tmp_path: Path) -> None:
    paths = made(tmp_path)
    bad = {
        2: b'{"schemaVersion": 1, "traceEvents": 7}',
        5: b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "ts": 1, "dur": 2}, {"ph": "X", "na',
        9: b"",
    }
    for at, raw in bad.items():
        paths[at].write_bytes(raw)
    fused = [
        span("cpu_op", f"op{n}", n, 1, args={"rank": n % 2, "pid_raw": 7 + n % 2}) for n in range(8)
    ]
    paths.insert(4, write(tmp_path / "fused.json", fused))
    paths.append(tmp_path / "gone.json")
    read_in_batch = outcomes(paths)
    assert sum(isinstance(outcome, str) for outcome in read_in_batch) == 3
    assert read_in_batch == [outcome for path in paths for outcome in outcomes([path])]


EVENT = b'{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": 1, "dur": 2}'
UNUSUAL = {
    "a_name_of_the_list_before_it": b'{"a": "\\"traceEvents\\": [", "traceEvents": [%s]}' % EVENT,
    "a_list_of_that_name_within": b'{"a": {"traceEvents": [1]}, "\\u0074raceEvents": [%s]}' % EVENT,
    "its_name_escaped": b'{"\\u0074raceEvents": [%s]}' % EVENT,
    "its_name_once_escaped": b'{"\\u0074raceEvents": [%s], "traceEvents": [%s, %s]}' % (EVENT, EVENT, EVENT),
    "its_name_once_escaped_and_no_list": b'{"\\u0074raceEvents": 12, "traceEvents": [%s]}' % EVENT,
    "two_lists": b'{"traceEvents": [%s], "traceEvents": [%s, %s]}' % (EVENT, EVENT, EVENT),
    "a_header_twice": b'{"a": 1, "b": 2, "traceEvents": [%s], "a": "x"}' % EVENT,
    "a_header_broken_and_again": b'{"a": 1e400, "traceEvents": [%s], "a": 1}' % EVENT,
    "a_broken_header": b'{"a": tru, "traceEvents": [%s], "traceName": "x"}' % EVENT,
    "bytes_behind_it": b'{"traceEvents": [%s]} and more' % EVENT,
    "zeros_behind_it": b'{"traceEvents": [%s]}\0\0\0' % EVENT,
    "commas": b'{"traceEvents": [,%s,,%s,]}' % (EVENT, EVENT),
    "a_bare_list": b"[{}, %s]" % EVENT,
    "a_mark_of_utf8": b'\xef\xbb\xbf{"traceEvents": [%s]}' % EVENT,
    "bytes_of_no_text": b'{"traceEvents": [%s]}' % EVENT.replace(b'"a"', b'"a\xff"'),
    "more_strings_than_room": b'{"traceEvents": [%s]}'
    % b", ".join(EVENT.replace(b'"a"', b'"%d"' % n) for n in range(5000)),
    "more_events_than_room": b'{"traceEvents": [%s]}' % b",".join([b'{"ts":1}'] * 5000),
}  # fmt: skip


def test_files_that_only_a_pass_of_their_own_can_read(tmp_path: Path) -> None:
    """Each is read as it is alone, and so are the proper files around it."""
    paths = made(tmp_path)[:2]
    for name, raw in UNUSUAL.items():
        path = tmp_path / f"{name}.json"
        path.write_bytes(raw)
        paths.insert(1, path)
    assert outcomes(paths) == [outcome for path in paths for outcome in outcomes([path])]


def test_files_that_fail_cost_no_further_passes(tmp_path: Path, monkeypatch) -> None:
    """All that cannot be read are left out at once, and the others are read in one pass."""
    paths = made(tmp_path)
    for at in (1, 4, 8):
        paths[at].write_bytes(b'{"schemaVersion": 1, "traceEvents": 7}')
    opened: list[Path] = []
    read_head = trace_file.load
    monkeypatch.setattr(
        trace_file, "load", lambda files, *more: opened.extend(files) or read_head(files, *more)
    )
    assert sum(isinstance(outcome, str) for outcome in outcomes(paths)) == 3
    assert len(opened) == 2 * len(paths)


def test_a_job_is_the_same_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import chopper_interop as ci

    for rank in range(7):
        events = [call("cudaLaunchKernel", 1, 2, 1), kernel(f"k{rank % 3}", 10 + rank, 5, 1)]
        write(tmp_path / f"{rank}.json", events, distributedInfo={"rank": rank, "world_size": 7})
    (tmp_path / "4.json").write_bytes(b'{"schemaVersion": 1, "traceEvents": 7}')
    together = ci.read(tmp_path)
    monkeypatch.setattr(workers, "_BATCH_BYTES", 0)
    assert plain(ci.read(tmp_path)) == plain(together)


def test_calls_of_a_file_in_a_batch(tmp_path: Path) -> None:
    """A file read alone takes some 4,200 calls, most of which are paid once for a batch: 680 are not."""
    events, header = FILES["communication"]
    paths = [write(tmp_path / f"{n}.json", events, **header) for n in range(30)]

    def calls(files: int) -> int:
        count = 0

        def note(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            read_together(paths[:files]).split()
        finally:
            sys.setprofile(None)
        return count

    calls(2)  # imports and compiles
    assert (calls(30) - calls(10)) / 20 < 750


def test_the_digest_of_a_small_file_is_of_what_was_read(tmp_path: Path) -> None:
    """Its program may write it once more meanwhile."""
    paths = []
    for name in ("plain", "communication"):
        events, header = FILES[name]
        paths.append(write(tmp_path / f"{name}.json", events, **header))
    expected = [inputs.sha256(path) for path in paths]
    logs = SourceIssues([IssueLog() for _ in paths])
    with inputs.digesting():
        trace_file.load(paths, logs)
        for path in paths:
            path.write_text("{}")
        assert [inputs.sha256(path) for path in paths] == expected
