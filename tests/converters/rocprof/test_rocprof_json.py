"""rocprofv3's JSON: every kind of record, old files, several processes, broken files."""

import copy
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from issue_counts import counts
from rocprof import T0, assert_whole, counters, edges, nodes
from slow import slow_from

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.converters.rocprof import ROCPROFV3_JSON
from chopper_interop.converters.rocprof.v3.json_reader import read as read_v3_json
from chopper_interop.errors import ReadError
from chopper_interop.testing import check_converter

KINDS = {
    "NONE": [],
    "HIP_RUNTIME_API_EXT": ["hipMalloc", "hipLaunchKernel", "hipMemcpyAsync"],
    "KERNEL_DISPATCH": ["NONE", "ENQUEUE", "COMPLETE"],
    "MEMORY_COPY": ["NONE", "MEMORY_COPY_HOST_TO_HOST", "MEMORY_COPY_HOST_TO_DEVICE"],
    "MARKER_CORE_API": ["roctxMarkA", "roctxRangePushA"],
    "HSA_CORE_API": ["hsa_init"],
    "RCCL_API": ["ncclAllReduce"],
    "MEMORY_ALLOCATION": ["NONE", "MEMORY_ALLOCATION_ALLOCATE", "MEMORY_ALLOCATION_FREE"],
    "SCRATCH_MEMORY": ["NONE", "SCRATCH_MEMORY_ALLOC"],
    "KFD_PAGE_FAULT": ["PAGE_FAULT"],
}


def handle(number: int) -> dict[str, int]:
    return {"handle": number}


def record(kind: str, operation: int, at: int, correlation: int, **more: Any) -> dict[str, Any]:
    return {
        "size": 48,
        "kind": list(KINDS).index(kind),
        "operation": operation,
        "correlation_id": {"internal": correlation, "external": 0},
        "start_timestamp": T0 + at,
        "end_timestamp": T0 + at + 10,
        "thread_id": 77,
        **more,
    }


def dispatch(kernel: int, number: int, queue: int = 3) -> dict[str, Any]:
    return {
        "size": 72,
        "agent_id": handle(9002),
        "queue_id": handle(queue),
        "kernel_id": kernel,
        "dispatch_id": number,
        "private_segment_size": 16,
        "group_segment_size": 100,
        "workgroup_size": {"x": 64, "y": 2, "z": 1},
        "grid_size": {"x": 1024, "y": 8, "z": 1},
    }


def kernel(number: int, at: int, correlation: int, kernel_id: int = 1) -> dict[str, Any]:
    info = {"dispatch_info": dispatch(kernel_id, number)}
    return record("KERNEL_DISPATCH", 2, at, correlation, **info, stream_id=handle(2))


def counted(number: int, at: int | None, values: list[tuple[int, Any]]) -> dict[str, Any]:
    data = {"size": 1, "correlation_id": {"internal": 1, "external": 0}}
    if at is not None:
        data |= {"start_timestamp": T0 + at, "end_timestamp": T0 + at + 10}
    return {
        "thread_id": 77,
        "dispatch_data": {**data, "dispatch_info": dispatch(1, number)},
        "records": [{"counter_id": handle(c), "value": v} for c, v in values],
        "stream_id": handle(2),
    }


def process(pid: int = 4711, host: str = "node-1") -> dict[str, Any]:
    agents = [
        {"id": handle(9000), "type": 1, "node_id": 0, "logical_node_id": 0, "name": "EPYC"},
        {"id": handle(9002), "type": 2, "node_id": 3, "logical_node_id": 1, "name": "gfx942",
         "logical_node_type_id": 0, "product_name": "MI300X", "num_xcc": 8, "cu_count": 304},
        {"id": handle(9003), "type": 2, "node_id": 4, "logical_node_id": 2, "name": "gfx942",
         "logical_node_type_id": 1, "product_name": "MI300X", "num_xcc": 8, "cu_count": 304},
    ]  # fmt: skip
    symbols = [
        {"kernel_id": 1, "kernel_name": "_Z4gemm.kd", "formatted_kernel_name": "gemm(float*)",
         "arch_vgpr_count": 12, "accum_vgpr_count": 4, "sgpr_count": 32},
        {"kernel_id": 5, "kernel_name": "ncclDevKernel_Generic.kd"},
    ]  # fmt: skip
    return {
        "metadata": {
            "node": {"id": 1, "hostname": host},
            "pid": pid,
            "command": ["train"],
            "config": {"output_file": "x", "raw_output_file": "x"},
        },
        "agents": agents,
        "counters": [
            {"agent_id": handle(9002), "id": handle(40), "name": "SQ_WAVES"},
            {"agent_id": handle(9003), "id": handle(40), "name": "GRBM_COUNT"},
            {"agent_id": handle(9002), "id": handle(41), "name": "GRBM_GUI_ACTIVE"},
        ],
        "strings": {
            "callback_records": [],
            "buffer_records": [{"kind": k, "operations": o} for k, o in KINDS.items()],
            "marker_api": [{"key": 8, "value": 'step "3"\n'}],
            "correlation_id": {"external": []},
        },
        "code_objects": [],
        "kernel_symbols": symbols,
        "host_functions": [],
        "summary": [],
        "callback_records": {"counter_collection": []},
        "buffer_records": {"kernel_dispatch": []},
    }


def write(path: Path, *processes: dict[str, Any], **options: Any) -> Path:
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(processes)}, **options))
    return path


def full() -> dict[str, Any]:
    made = process()
    made["buffer_records"] |= {
        "kernel_dispatch": [kernel(2, 60, 2, kernel_id=5), kernel(1, 50, 2)],
        "hip_api": [
            record("HIP_RUNTIME_API_EXT", 1, 10, 2, args={"stream": "0x0"}, retval=0),
            record("HIP_RUNTIME_API_EXT", 2, 20, 3),
        ],
        "hsa_api": [record("HSA_CORE_API", 0, 30, 4)],
        "rccl_api": [record("RCCL_API", 0, 31, 5)],
        "marker_api": [
            record("MARKER_CORE_API", 1, 5, 8),
            record("MARKER_CORE_API", 0, 6, 9) | {"end_timestamp": T0 + 6},
        ],
        "memory_copy": [
            record("MEMORY_COPY", 2, 70, 3, src_agent_id=handle(9000), dst_agent_id=handle(9002),
                   bytes=4096, stream_id=handle(2))
        ],
        "memory_allocation": [
            record("MEMORY_ALLOCATION", 1, 1, 6, agent_id=handle(9002), allocation_size=1 << 40,
                   address="0x00007ffb"),
            record("MEMORY_ALLOCATION", 2, 90, 7, agent_id=handle(0), allocation_size=0,
                   address="0x00007ffb"),
        ],
        "scratch_memory": [
            record("SCRATCH_MEMORY", 1, 2, 0, agent_id=handle(9002), queue_id=handle(3), flags=1)
        ],
        "kfd": [
            {"size": 1, "kind": 9, "operation": 0, "timestamp": T0 + 3, "pid": 4711,
             "address": "0xff"}
        ],
        "pc_sample_host_trap": [{"record": {}}, {"record": {}}],
        "rocdecode_api": [],
    }  # fmt: skip
    return made


def test_every_kind_of_record(tmp_path: Path) -> None:
    trace = read_v3_json([write(tmp_path / "4711_results.json", full())])
    assert_whole(trace, 15)
    assert counts(trace)["sample-not-read"] == 2
    actual = [
        (n["ts"] - T0, n["dur"], n["kind"], n["name"], n["device"], n["lane"]) for n in nodes(trace)
    ]
    host = ("THREAD", 77)
    assert actual == [
        (1, 10, "ALLOCATION", "MEMORY_ALLOCATION_ALLOCATE", 1, ("MEMORY", 0)),
        (2, 10, "ALLOCATION", "SCRATCH_MEMORY_ALLOC", 1, ("MEMORY", 0)),
        (3, 0, "OTHER", "PAGE_FAULT", -1, ("PROFILER", 0)),
        (5, 10, "ANNOTATION", 'step "3"\n', -1, host),
        (6, 0, "INSTANT", "roctxMarkA", -1, host),
        (10, 10, "RUNTIME", "hipLaunchKernel", -1, host),
        (20, 10, "RUNTIME", "hipMemcpyAsync", -1, host),
        (30, 10, "DRIVER", "hsa_init", -1, host),
        (31, 10, "API", "ncclAllReduce", -1, host),
        (50, 10, "KERNEL", "gemm(float*)", 1, ("STREAM", 2)),
        (60, 10, "COMM", "ncclDevKernel_Generic.kd", 1, ("STREAM", 2)),
        (70, 10, "MEMCPY", "MEMORY_COPY_HOST_TO_DEVICE", 1, ("STREAM", 2)),
        (90, 10, "ALLOCATION", "MEMORY_ALLOCATION_FREE", 1, ("MEMORY", 0)),
    ]
    assert edges(trace) == [
        ("hipLaunchKernel", "gemm(float*)"),
        ("hipLaunchKernel", "ncclDevKernel_Generic.kd"),
        ("hipMemcpyAsync", "MEMORY_COPY_HOST_TO_DEVICE"),
    ]
    by_name = {n["name"]: n for n in nodes(trace)}
    assert by_name["MEMORY_COPY_HOST_TO_DEVICE"]["bytes"] == 4096
    assert by_name["MEMORY_ALLOCATION_ALLOCATE"]["bytes"] == 1 << 40
    assert by_name["MEMORY_ALLOCATION_FREE"]["bytes"] is None
    assert by_name["hipLaunchKernel"]["args"] == {
        "domain": "HIP_RUNTIME_API_EXT",
        "args": {"stream": "0x0"},
        "retval": 0,
    }
    assert by_name["PAGE_FAULT"]["args"]["record"]["address"] == "0xff"
    assert by_name["gemm(float*)"]["args"] == {
        "agent": "Agent 1",
        "queue": 3,
        "stream": 2,
        "thread": 77,
        "dispatch_id": 1,
        "kernel_id": 1,
        "grid": [1024, 8, 1],
        "workgroup": [64, 2, 1],
        "vgpr": 12,
        "accum_vgpr": 4,
        "sgpr": 32,
        "group_segment_bytes": 100,
        "scratch_bytes": 16,
    }
    (rank,) = trace.meta.ranks
    assert (rank.rank, rank.host, rank.pid, rank.device) == (0, "node-1", 4711, 1)
    assert [(d.host, d.device, d.name, d.ordinal) for d in trace.meta.devices] == [
        ("node-1", 1, "MI300X", 0),
        ("node-1", 2, "MI300X", 1),
    ]
    assert trace.meta.clock == "boottime"
    assert trace.meta.facts["num_xcc"] == "8"


def test_counters_are_sums_over_instances(tmp_path: Path) -> None:
    made = process()
    made["callback_records"]["counter_collection"] = [
        counted(1, 50, [(40, 1.0), (41, 10.0), (40, 2.0), (41, 10.5), (40, 4.0)]),
        counted(2, 80, [(40, 8.0), (99, 1.0)]),
    ]
    trace = read_v3_json([write(tmp_path / "fetch_results.json", made)])
    assert_whole(trace, 2)
    assert counters(trace) == {
        (T0 + 50, "SQ_WAVES"): 7.0,
        (T0 + 50, "GRBM_GUI_ACTIVE"): 20.5,
        (T0 + 80, "SQ_WAVES"): 8.0,
        (T0 + 80, "counter 99"): 1.0,
    }
    assert trace.meta.run == "fetch"
    assert {n["name"] for n in nodes(trace)} == {"gemm(float*)"}


@pytest.mark.parametrize("at", [50, None], ids=["with times", "6.2: without times"])
def test_counters_go_to_the_kernels_of_the_file(tmp_path: Path, at: int | None) -> None:
    made = process()
    made["buffer_records"]["kernel_dispatch"] = [kernel(2, 80, 2), kernel(1, 50, 1)]
    made["callback_records"]["counter_collection"] = [
        counted(1, at, [(40, 1.0), (40, 2.0)]),
        counted(7, None, [(40, 5.0)]),
    ]
    trace = read_v3_json([write(tmp_path / "results.json", made)])
    assert_whole(trace, 4)
    assert counters(trace) == {(T0 + 50, "SQ_WAVES"): 3.0}
    assert counts(trace)["counter-row"] == 1
    assert counts(trace)["dispatch-without-time"] == 1


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    made = process()
    nan, inf = float("nan"), float("inf")
    made["callback_records"]["counter_collection"] = [
        counted(1, 50, [(40, nan), (41, 2.0)]),
        counted(2, 80, [(41, inf)]),
    ]
    path = write(tmp_path / "results.json", made)
    assert "NaN" in path.read_text()
    trace = read_v3_json([path])
    assert_whole(trace, 2)
    assert counters(trace) == {(T0 + 50, "GRBM_GUI_ACTIVE"): 2.0}


def test_operations_are_named_by_the_table_of_the_file(tmp_path: Path) -> None:
    made = full()
    table = made["strings"]["buffer_records"]
    made["strings"]["buffer_records"] = [{"kind": "NEW", "operations": ["x"]}, *table]
    for records in made["buffer_records"].values():
        for each in records:
            each["kind"] = each.get("kind", 0) + 1
    first = read_v3_json([write(tmp_path / "a_results.json", full())])
    second = read_v3_json([write(tmp_path / "b_results.json", made)])
    assert [n["name"] for n in nodes(first)] == [n["name"] for n in nodes(second)]


def test_kernels_renamed_by_ranges(tmp_path: Path) -> None:
    made = process()
    renamed = kernel(1, 50, 2)
    renamed["correlation_id"]["external"] = 12
    made["buffer_records"]["kernel_dispatch"] = [renamed, kernel(2, 70, 3)]
    made["strings"]["correlation_id"]["external"] = [{"key": 12, "value": "attention"}]
    trace = read_v3_json([write(tmp_path / "results.json", made)])
    assert [n["name"] for n in nodes(trace)] == ["attention", "gemm(float*)"]


def test_several_processes_are_several_ranks(tmp_path: Path) -> None:
    other = process(pid=4712, host="node-2")
    other["buffer_records"]["kernel_dispatch"] = [kernel(1, 7, 2)]
    other["buffer_records"]["kernel_dispatch"][0]["dispatch_info"]["agent_id"] = handle(9003)
    trace = read_v3_json([write(tmp_path / "results.json", other, full())])
    assert_whole(trace, 16)
    assert [(r.rank, r.pid, r.host, r.device) for r in trace.meta.ranks] == [
        (0, 4711, "node-1", 1),
        (1, 4712, "node-2", 2),
    ]
    assert edges(trace)[0] == ("hipLaunchKernel", "gemm(float*)")
    assert trace.edges.num_rows == 3


def test_the_rank_that_the_tool_put_into_its_output(tmp_path: Path) -> None:
    made = full()
    made["metadata"]["config"] = {
        "output_file": "node-1/out.13",
        "raw_output_file": "%hostname%/out.%rank%",
    }
    trace = read_v3_json([write(tmp_path / "whatever.json", made)])
    assert [(r.rank, r.known_by) for r in trace.meta.ranks] == [(13, "name")]
    assert ci.read(tmp_path / "whatever.json", rank=2).ranks == [2]


def test_what_the_file_does_not_name_is_counted(tmp_path: Path) -> None:
    assert not {"name-unknown", "agent-unknown"} & {
        *counts(read_v3_json([write(tmp_path / "whole_results.json", full())]))
    }
    made = full()
    made["kernel_symbols"] = made["kernel_symbols"][:1]
    made["buffer_records"]["hip_api"][0]["operation"] = 55
    made["callback_records"]["counter_collection"] = [counted(9, 95, [(99, 2.0), (99, 3.0)])]
    made["buffer_records"]["memory_copy"][0]["src_agent_id"] = handle(17)
    trace = read_v3_json([write(tmp_path / "results.json", made)])
    assert counts(trace)["name-unknown"] == 3
    assert counts(trace)["agent-unknown"] == 1
    names = {node["name"] for node in nodes(trace)}
    assert {"kernel 5", "hip_api 55"} <= names
    assert counters(trace)[T0 + 95, "counter 99"] == 5


def test_old_and_bare_files(tmp_path: Path) -> None:
    bare = {
        "metadata": {"pid": 5},
        "agents": [{"id": handle(9002), "type": 2, "node_id": 3}],
        "strings": {"buffer_records": []},
        "buffer_records": {
            "kernel_dispatch": [
                {"start_timestamp": T0, "end_timestamp": T0 + 5,
                 "dispatch_info": {"agent_id": handle(9002), "queue_id": handle(2**64 - 1),
                                   "kernel_id": 3, "dispatch_id": 1}}
            ],
            "hip_api": [record("HIP_RUNTIME_API_EXT", 1, 10, 2)],
        },
    }  # fmt: skip
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": bare}))
    trace = read_v3_json([path])
    assert_whole(trace, 2)
    assert [(n["name"], n["device"], n["lane"]) for n in nodes(trace)] == [
        ("kernel 3", 3, ("QUEUE", -1)),
        ("hip_api 1", -1, ("THREAD", 77)),
    ]


def test_json_is_recognised_by_its_first_bytes(tmp_path: Path) -> None:
    indented = write(tmp_path / "a.txt", full(), indent=4)
    assert registry.sniffed(
        b"\xef\xbb\xbf".lstrip(b"\xef\xbb\xbf") + indented.read_bytes()[:200]
    ) == [ROCPROFV3_JSON]
    for other in (b'{"traceEvents":[{"rocprofiler-sdk-tool":[]}]}', b'{"rocprofiler": 1}', b"{"):
        assert ROCPROFV3_JSON not in registry.sniffed(other)
    (tmp_path / "b.gz").write_bytes(gzip.compress(indented.read_bytes()))
    assert ci.read(tmp_path / "b.gz").nodes.num_rows == 13


BROKEN = {
    "no list": lambda _: '{"rocprofiler-sdk-tool": 3}',
    "a text for a time": lambda text: text.replace(f'"start_timestamp": {T0 + 50}', '"start_timestamp": "x"'),
    "no dispatch": lambda text: text.replace('"dispatch_info"', '"something"'),
    "rubbish behind": lambda text: text + "]]",
    "empty": lambda _: "",
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused_in_a_line(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "results.json", full())
    path.write_text(BROKEN[name](path.read_text()))
    with pytest.raises(ReadError) as refused:
        read_v3_json([path])
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("processes", "step"), slow_from([(list, 111), (list, 37), (dict, 37)], 1))
def test_a_file_that_breaks_off_keeps_every_complete_record(
    tmp_path: Path, processes: type, step: int
) -> None:
    process = full()
    text = json.dumps({"rocprofiler-sdk-tool": [process] if processes is list else process})
    records = [json.dumps(r) for each in process["buffer_records"].values() for r in each]
    begin = text.index('"buffer_records"')
    path = tmp_path / "4711_results.json"
    for cut in range(begin, len(text) - 1, step):
        path.write_text(text[:cut])
        trace = read_v3_json([path])
        counted = process["callback_records"].get("counter_collection", [])
        complete = sum(record in text[begin:cut] for record in records)
        assert_whole(trace, complete + len(counted))
        assert counts(trace)["json-cut-short"] == 1


def test_texts_that_are_no_utf8(tmp_path: Path) -> None:
    path = write(tmp_path / "results.json", full())
    path.write_bytes(path.read_bytes().replace(b"gemm(float*)", b"gemm(\xe9)"))
    assert "gemm(\ufffd)" in {n["name"] for n in nodes(read_v3_json([path]))}


def test_the_contract_of_converters(tmp_path: Path) -> None:
    made = full()
    chance = random.Random(1)  # noqa: S311
    made["buffer_records"]["kernel_dispatch"] = [
        kernel(i, chance.randrange(10_000), 2) for i in range(30)
    ]
    check_converter(ROCPROFV3_JSON, write(tmp_path / "4711_results.json", made))


def test_order_of_keys_means_nothing(tmp_path: Path) -> None:
    made = copy.deepcopy(full())
    turned = dict(reversed(made.items()))
    turned["buffer_records"] = {
        name: [dict(reversed(each.items())) for each in records]
        for name, records in made["buffer_records"].items()
    }
    one = read_v3_json([write(tmp_path / "a_results.json", made)])
    two = read_v3_json([write(tmp_path / "a_results.json", turned)])
    assert nodes(one) == nodes(two)
