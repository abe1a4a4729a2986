"""rocprofv3's files with numbers that nothing can have: unknown and counted, never a crash."""

import subprocess
import sys
from pathlib import Path

import pytest
from boundary import assert_held, garbled_csv, garbled_json
from issue_counts import counts
from rocprof import (
    AGENTS,
    CALLS,
    COPIES,
    COUNTERS,
    KERNELS,
    assert_whole,
    columns,
    example,
    nodes,
    row,
    write,
)
from slow import slow_from

import chopper_interop as ci
from chopper_interop.converters.rocm.file_names import path_info
from chopper_interop.converters.rocprof.v3 import csv_reader, json_reader

SCRATCH = columns(
    "Kind,Operation,Agent_Id,Queue_Id,Thread_Id,Alloc_Flags,Start_Timestamp,End_Timestamp"
)
ALLOCATIONS = columns(
    "Kind,Operation,Agent_Id,Allocation_Size,Address,Correlation_Id,Start_Timestamp,End_Timestamp"
)
TABLES = {
    "kernel_trace": KERNELS,
    "hip_api_trace": CALLS,
    "memory_copy_trace": COPIES,
    "counter_collection": COUNTERS,
    "scratch_memory_trace": SCRATCH,
    "memory_allocation_trace": ALLOCATIONS,
}
JSON = """{"rocprofiler-sdk-tool": [{
"metadata": {"pid": 700, "node": {"hostname": "a"}},
"agents": [
 {"id": {"handle": 90}, "type": 1, "node_id": 0, "logical_node_id": 0},
 {"id": {"handle": 91}, "type": 2, "node_id": 4, "logical_node_id": 1, "logical_node_type_id": 0}],
"counters": [{"agent_id": {"handle": 91}, "id": {"handle": 40}, "name": "SQ_WAVES"}],
"strings": {"buffer_records": [
 {"kind": "NONE"}, {"kind": "HIP_RUNTIME_API", "operations": ["hipMalloc", "hipLaunchKernel"]}]},
"kernel_symbols": [{"kernel_id": 1, "kernel_name": "gemm", "arch_vgpr_count": 12}],
"callback_records": {"counter_collection": [{"thread_id": 7, "dispatch_data": {
  "start_timestamp": 5000, "end_timestamp": 5010, "correlation_id": {"internal": 3},
  "dispatch_info": {"agent_id": {"handle": 91}, "kernel_id": 1, "dispatch_id": 9}},
  "records": [{"counter_id": {"handle": 40}, "value": 64.0}]}]},
"buffer_records": {
 "kernel_dispatch": [{"kind": 2, "operation": 2, "thread_id": 7, "stream_id": {"handle": 2},
  "correlation_id": {"internal": 2, "external": 0}, "start_timestamp": 100, "end_timestamp": 200,
  "dispatch_info": {"agent_id": {"handle": 91}, "queue_id": {"handle": 3}, "kernel_id": 1,
   "dispatch_id": 1, "private_segment_size": 16, "workgroup_size": {"x": 64, "y": 1, "z": 1},
   "grid_size": {"x": 1024, "y": 1, "z": 1}}}],
 "hip_api": [{"kind": 1, "operation": 1, "thread_id": 7, "correlation_id": {"internal": 2},
  "start_timestamp": 10, "end_timestamp": 20, "args": {"n": 1}}],
 "memory_copy": [{"kind": 3, "operation": 2, "thread_id": 7, "bytes": 4096,
  "correlation_id": {"internal": 3}, "start_timestamp": 30, "end_timestamp": 40,
  "src_agent_id": {"handle": 90}, "dst_agent_id": {"handle": 91}, "stream_id": {"handle": 2}}],
 "memory_allocation": [{"kind": 4, "operation": 1, "thread_id": 7, "allocation_size": 1024,
  "start_timestamp": 1, "end_timestamp": 2, "agent_id": {"handle": 91}, "address": 4096}]}}]}
"""


def kernels(folder: Path, *changes: dict[str, object]) -> ci.Trace:
    rows = [row(KERNELS, Dispatch_Id=i + 1, **change) for i, change in enumerate(changes)]
    trace = csv_reader.read([write(folder / "9_kernel_trace.csv", KERNELS, *rows)])
    assert_whole(trace, len(rows))
    return trace


def changed_json(folder: Path, old: str, new: str) -> ci.Trace:
    path = folder / "700_results.json"
    assert JSON.count(old) == 1
    path.write_text(JSON.replace(old, new))
    return json_reader.read([path])


def test_one_garbled_agent_does_not_corrupt_the_memory(tmp_path: Path) -> None:
    # numpy's bincount writes in front of its result: a process that did so aborts, if not at once
    rows = [row(KERNELS, Agent_Id=f"Agent {n}") for n in (2**63 - 1, 4, 4, 4)]
    path = write(tmp_path / "9_kernel_trace.csv", KERNELS, *rows)
    code = f"import chopper_interop as ci\nfor _ in range(50): ci.read({str(path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "number", ["2147483648", "99999999999", str(2**63 - 1), str(2**63), "9" * 5000]
)
def test_an_agent_that_cannot_be_is_unknown_and_counted(tmp_path: Path, number: str) -> None:
    trace = kernels(tmp_path, {"Agent_Id": f"Agent {number}"}, {}, {})
    assert [n["device"] for n in nodes(trace)].count(4) == 2
    assert counts(trace)["number-out-of-range"] == 1
    assert example(trace, "number-out-of-range").startswith("9_kernel_trace.csv: agent is Agent ")
    (rank,) = trace.meta.ranks
    assert rank.device == 4


@pytest.mark.parametrize("none", [2**32 - 1, 2**64 - 1])
def test_minus_one_without_a_sign_is_no_agent(tmp_path: Path, none: int) -> None:
    trace = kernels(tmp_path, {"Agent_Id": f"Agent {none}"}, {})
    assert "number-out-of-range" not in counts(trace)
    assert sorted(n["device"] for n in nodes(trace)) == [-1, 4]


@pytest.mark.parametrize("column", ["Queue_Id", "Stream_Id", "Thread_Id"])
@pytest.mark.parametrize("number", [-2, -(2**63)])
def test_ids_that_cannot_be_are_unknown_and_counted(
    tmp_path: Path, column: str, number: int
) -> None:
    trace = kernels(tmp_path, {column: number}, {})
    key = column.removesuffix("_Id").lower()
    assert counts(trace)["number-out-of-range"] == 1
    assert example(trace, "number-out-of-range") == f"9_kernel_trace.csv: {key} is {number}"
    assert [key in n["args"] for n in nodes(trace)].count(True) == 1


@pytest.mark.parametrize("number", [2**31, 2**63 - 1, -5])
def test_a_process_that_cannot_be_is_unknown_and_counted(tmp_path: Path, number: int) -> None:
    rows = [row(CALLS, Process_Id=number), row(CALLS, Process_Id=700)]
    trace = csv_reader.read([write(tmp_path / "x_hip_api_trace.csv", CALLS, *rows)])
    assert_whole(trace, 2)
    assert counts(trace)["number-out-of-range"] == 1
    assert {rank.pid for rank in trace.meta.ranks} <= {-1, 700}


@pytest.mark.parametrize("number", [-(10**30), 2**63, 10**30])
def test_cells_beyond_64_bits_are_counted(tmp_path: Path, number: int) -> None:
    assert counts(kernels(tmp_path, {"Queue_Id": number}))["number-unreadable"] == 1


def test_calls_without_any_time(tmp_path: Path) -> None:
    call = row(CALLS, Start_Timestamp="x")
    paths = [write(tmp_path / "9_hip_api_trace.csv", CALLS, call)]
    trace = csv_reader.read([*paths, write(tmp_path / "9_kernel_trace.csv", KERNELS, row(KERNELS))])
    assert_whole(trace, 2)
    assert [n["kind"] for n in nodes(trace)] == ["KERNEL"]


def test_counters_that_are_not_finite_have_no_value(tmp_path: Path) -> None:
    rows = [row(COUNTERS, Counter_Name=c, Counter_Value=v) for c, v in (("A", "inf"), ("B", 3.0))]
    path = write(tmp_path / "9_counter_collection.csv", COUNTERS, *rows)
    trace = csv_reader.read([path])
    assert trace.counters.column("value").to_pylist() == [3.0]
    assert counts(trace)["number-out-of-range"] == 1


@pytest.mark.parametrize("number", [2**64 - 1, 2**31, 10**30])
def test_a_logical_number_of_an_agent_that_cannot_be(tmp_path: Path, number: int) -> None:
    trace = changed_json(tmp_path, '"logical_node_id": 1', f'"logical_node_id": {number}')
    assert {d.device for d in trace.meta.devices} == {4}  # the other number that it has
    assert counts(trace).get("number-out-of-range", 0) == (number != 2**64 - 1)


@pytest.mark.parametrize("number", [2**64 - 1, 2**31, -2])
def test_a_process_id_of_json_that_cannot_be(tmp_path: Path, number: int) -> None:
    trace = changed_json(tmp_path, '"pid": 700', f'"pid": {number}')
    assert {rank.pid for rank in trace.meta.ranks} == {-1}
    assert counts(trace).get("number-out-of-range", 0) == (number != 2**64 - 1)


@pytest.mark.parametrize("queue", [-(10**30), 10**30, -7])
def test_a_queue_of_json_that_cannot_be(tmp_path: Path, queue: int) -> None:
    trace = changed_json(
        tmp_path, '"queue_id": {"handle": 3}', f'"queue_id": {{"handle": {queue}}}'
    )
    assert counts(trace)["number-out-of-range"] == 1


def test_agents_of_a_table_that_cannot_be(tmp_path: Path) -> None:
    gpu = row(AGENTS, Node_Id=4, Logical_Node_Id=2**31, Name="gfx942")
    agents = write(tmp_path / "9_agent_info.csv", AGENTS, gpu)
    path = write(tmp_path / "9_kernel_trace.csv", KERNELS, row(KERNELS))
    trace = csv_reader.read([path, agents])
    assert [d.device for d in trace.meta.devices] == [4]
    assert counts(trace)["number-out-of-range"] == 1


@pytest.mark.parametrize(
    "path", ["20260101123456_kernel_trace.csv", f"{'9' * 200}_kernel_trace.csv"]
)
def test_names_of_files_that_begin_with_other_numbers(tmp_path: Path, path: str) -> None:
    assert path_info(Path(path)).pid == -1
    trace = csv_reader.read([write(tmp_path / f"rank_{10**12}" / path, KERNELS, row(KERNELS))])
    assert [(rank.rank, rank.pid) for rank in trace.meta.ranks] == [(0, -1)]


@pytest.mark.parametrize("levels", [500, 100_000])
def test_values_nested_deeply_are_refused_in_one_line(tmp_path: Path, levels: int) -> None:
    text = JSON.replace('"address": 4096', f'"address": {"[" * levels}{"]" * levels}')
    assert (assert_held(tmp_path / "700_results.json", text) is None) == (levels == 100_000)


@pytest.mark.parametrize("cases", slow_from([6, 30], 1))
@pytest.mark.parametrize("table", TABLES)
def test_any_number_in_any_cell(tmp_path: Path, table: str, cases: int) -> None:
    header = TABLES[table]
    rows = [row(header, Correlation_Id=i, Dispatch_Id=i, Operation="ALLOC") for i in range(1, 5)]
    path = write(tmp_path / f"9_{table}.csv", header, *rows)
    read = [assert_held(path, text) for text in garbled_csv(path.read_text(), cases, seed=1)]
    assert sum(trace is not None for trace in read) > 5 / 6 * cases


@pytest.mark.slow
def test_any_number_for_any_agent(tmp_path: Path) -> None:
    write(tmp_path / "9_kernel_trace.csv", KERNELS, row(KERNELS))
    agents = [row(AGENTS, Node_Id=i, Logical_Node_Id=i, Name="gfx942") for i in (0, 4)]
    path = write(tmp_path / "9_agent_info.csv", AGENTS, *agents)
    for text in garbled_csv(path.read_text(), 30, seed=2):
        path.write_text(text)
        assert_held(tmp_path / "9_kernel_trace.csv", (tmp_path / "9_kernel_trace.csv").read_text())
        ci.read(tmp_path)


@pytest.mark.parametrize("cases", slow_from([20, 125], 1))
def test_any_number_in_json(tmp_path: Path, cases: int) -> None:
    path = tmp_path / "700_results.json"
    read = [assert_held(path, text) for text in garbled_json(JSON, cases, seed=3)]
    assert sum(trace is not None for trace in read) > cases / 5
