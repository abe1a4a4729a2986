"""rocprofv3's CSV and JSON files."""

import json

import rocprof
from rocprof import CALLS, COPIES, COUNTERS, KERNELS, T0, row

from chopper_interop.errors import ReadError, UnknownFormatError
from seeds import Odd, Refused, Seed, reads, rocprof_old

HEADER = ",".join(f'"{name}"' for name in KERNELS)


def _at(number: int, **more: object) -> dict[str, object]:
    start = T0 + 20_000 * number
    return {
        "Correlation_Id": number + 1,
        "Dispatch_Id": number + 1,
        "Start_Timestamp": start,
        "End_Timestamp": start + 12_800,
        **more,
    }


def _csv(header: list[str], rows: list[str]) -> bytes:
    quoted = ",".join(f'"{name}"' for name in header)
    return "".join(f"{line}\n" for line in (quoted, *rows)).encode()


def _seed(name: str, header: list[str], rows: list[str]) -> Seed:
    return Seed("rocprofv3-csv", name, _csv(header, rows), frozenset(r.encode() for r in rows))


NAMES = ("gemm(float*, float const*)", "void add<int, 4>(int*)", "ncclDevKernel_Generic_1(Args)")
KERNEL_ROWS = [row(KERNELS, **_at(i, Kernel_Name=NAMES[i % 3])) for i in range(12)]
CALL_ROWS = [row(CALLS, **_at(i, Function=f"hipCall{i}")) for i in range(8)]
COPY_ROWS = [row(COPIES, **_at(i)) for i in range(8)]
COUNTER_ROWS = [
    row(COUNTERS, **_at(i, Counter_Name=name, Counter_Value=float(i)))
    for i in range(5)
    for name in ("SQ_WAVES", "GRBM_COUNT")
]


def _record(kind: int, operation: int, number: int, **more: object) -> dict[str, object]:
    return {
        "size": 48,
        "kind": kind,
        "operation": operation,
        "correlation_id": {"internal": number + 1, "external": 0},
        "start_timestamp": T0 + 100 * number,
        "end_timestamp": T0 + 100 * number + 50,
        "thread_id": 77,
        **more,
    }


def _dispatch(number: int) -> dict[str, object]:
    return {
        "dispatch_info": {
            "agent_id": {"handle": 9},
            "queue_id": {"handle": 3},
            "kernel_id": 1,
            "dispatch_id": number + 1,
            "workgroup_size": {"x": 64, "y": 1, "z": 1},
            "grid_size": {"x": 1024, "y": 8, "z": 1},
        },
        "stream_id": {"handle": 2},
    }


JSON_KERNELS = [json.dumps(_record(2, 1, i, **_dispatch(i))) for i in range(8)]
JSON_CALLS = [json.dumps(_record(1, 0, i)) for i in range(8)]


def _lines(records: list[str]) -> str:
    return "[\n" + ",\n".join(records) + "\n]"


def _document() -> bytes:
    kinds = [
        {"kind": "NONE", "operations": []},
        {"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel"]},
        {"kind": "KERNEL_DISPATCH", "operations": ["NONE", "COMPLETE"]},
    ]
    agent = {"id": {"handle": 9}, "type": 2, "node_id": 4, "logical_node_type_id": 0}
    symbol = {"kernel_id": 1, "formatted_kernel_name": "gemm(float*)"}
    head = {
        "metadata": {"pid": 4711, "node": {"hostname": "node"}},
        "agents": [agent],
        "strings": {"buffer_records": kinds},
        "kernel_symbols": [symbol],
    }
    buffers = f'"kernel_dispatch": {_lines(JSON_KERNELS)}, "hip_api": {_lines(JSON_CALLS)}'
    process = json.dumps(head)[:-1] + f', "buffer_records": {{{buffers}}}}}'
    return f'{{"rocprofiler-sdk-tool": [{process}]}}'.encode()


DOCUMENT = _document()

SEEDS = (
    _seed("1_kernel_trace.csv", KERNELS, KERNEL_ROWS),
    _seed("1_hip_api_trace.csv", CALLS, CALL_ROWS),
    _seed("1_memory_copy_trace.csv", COPIES, COPY_ROWS),
    _seed("1_counter_collection.csv", COUNTERS, COUNTER_ROWS),
    Seed(
        "rocprofv3-json",
        "1_results.json",
        DOCUMENT,
        frozenset(r.encode() for r in (*JSON_KERNELS, *JSON_CALLS)),
    ),
)


def _kernels(*rows: str, header: list[str] = KERNELS) -> dict[str, bytes]:
    return {"1_kernel_trace.csv": _csv(header, list(rows))}


ROWS = KERNEL_ROWS
OLD = rocprof.columns(
    "Kind,Agent_Id,Queue_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp,"
    "Private_Segment_Size,Group_Segment_Size,Workgroup_Size_X,Workgroup_Size_Y,Workgroup_Size_Z,"
    "Grid_Size_X,Grid_Size_Y,Grid_Size_Z"
)
ODD = (
    Odd("rocprofv3: cut within a row", {"1_kernel_trace.csv": _csv(KERNELS, ROWS)[:-40]},
        reads(11, row_cut_short=1)),
    Odd("rocprofv3: no header", {"1_kernel_trace.csv": "\n".join(ROWS).encode()},
        Refused(UnknownFormatError, "no format that is known here")),
    Odd("rocprofv3: header alone", _kernels(), Refused(ReadError, "no events")),
    Odd("rocprofv3: header again between rows", _kernels(*ROWS[:3], HEADER, *ROWS[3:5]), reads(5)),
    Odd("rocprofv3: a table of rocprofv2 behind one of kernels",
        {"k.csv": _csv(KERNELS, ROWS) + rocprof_old.V2.encode()}, reads(12, table_of_other_tool=6)),
    Odd("rocprofv3: UTF-16", {"k.csv": _csv(KERNELS, ROWS).decode().encode("utf-16")}, reads(12)),
    Odd("rocprofv3: ROCm 6.2's header and node ids", _kernels(row(OLD, Agent_Id=4), header=OLD),
        reads(1, stream_unknown=1, dispatch_id_unknown=1)),
    Odd("rocprofv3: an end before its start", _kernels(row(KERNELS, End_Timestamp=T0 - 5)),
        reads(1, duration_negative=1)),
    Odd("rocprofv3: no start", _kernels(ROWS[0], row(KERNELS, **_at(1, Start_Timestamp=""))),
        reads(1, event_without_time=1)),
    Odd("rocprofv3: no end", _kernels(ROWS[0], row(KERNELS, **_at(1, End_Timestamp=""))),
        reads(2, event_without_end=1)),
    Odd("rocprofv3: a start that was not read",
        _kernels(*ROWS[:3], row(KERNELS, **_at(3, Start_Timestamp=0))),
        reads(4, start_far_off=1, duration_implausible=1, kernel_overflows_next=1)),
    Odd("rocprofv3: an end out of all time",
        _kernels(ROWS[0], row(KERNELS, **_at(1, End_Timestamp=2**63 - 1))),
        reads(2, duration_implausible=1)),
    Odd("rocprofv3: no name", _kernels(ROWS[0], row(KERNELS, **_at(1, Kernel_Name=""))),
        reads(2, name_unknown=1)),
    Odd("rocprofv3: counters without values",
        {"1_counter_collection.csv": _csv(COUNTERS, [
            *COUNTER_ROWS[:2],
            *(row(COUNTERS, **_at(i, Counter_Value=value)) for i, value in ((2, "nan"), (3, ""))),
        ])},
        reads(3, counter_without_value=2)),
    Odd("rocprofv3: a quote in a name",
        _kernels(ROWS[0], row(KERNELS, **_at(1, Kernel_Name='say "a, b"'))), reads(2)),
    Odd("rocprofv3: JSON that breaks off",
        {"1_results.json": DOCUMENT[: DOCUMENT.index(JSON_KERNELS[5].encode()) + 30]},
        reads(5, json_cut_short=1)),
    Odd("rocprofv3: JSON with a stray bracket", {"1_results.json": DOCUMENT + b"]"},
        Refused(ReadError, "it is no complete JSON")),
)  # fmt: skip
