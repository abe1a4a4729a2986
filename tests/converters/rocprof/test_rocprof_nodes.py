"""Nodes of rows of rocprofv3's tables: kinds, lanes, launches, arguments, counters."""

from pathlib import Path
from typing import Any

import pytest
from issue_counts import counts
from rocprof import (
    AGENTS,
    CALLS,
    COPIES,
    COUNTERS,
    KERNELS,
    T0,
    assert_whole,
    columns,
    counters,
    edges,
    example,
    nodes,
    row,
    write,
)

import chopper_interop as ci
from chopper_interop.converters.rocprof.v3.csv_reader import read as read_v3_csv

ALLOCATIONS = columns(
    "Kind,Operation,Agent_Id,Allocation_Size,Address,Correlation_Id,Start_Timestamp,End_Timestamp"
)
SCRATCH = columns(
    "Kind,Operation,Agent_Id,Queue_Id,Thread_Id,Alloc_Flags,Start_Timestamp,End_Timestamp,"
    "Allocation_Size"
)
EVENTS = columns(
    "Guid,Kind,Operation,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Event_Handle,Source_Queue_Id,"
    "Correlation_Id,Start_Timestamp,End_Timestamp,Duration"
)
GRAPHS = columns(
    "Guid,Kind,Agent_Id,Queue_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp,Duration,"
    "Graph_Exec_Id,Kernel_Dispatch_Count"
)


def one(folder: Path, name: str, header: list[str], **changes: Any) -> dict[str, Any]:
    trace = read_v3_csv([write(folder / name, header, row(header, **changes))])
    assert_whole(trace, 1)
    return nodes(trace)[0]


DOMAINS = {
    "HIP_RUNTIME_API": "RUNTIME",
    "HIP_RUNTIME_API_EXT": "RUNTIME",
    "HIP_COMPILER_API_EXT": "RUNTIME",
    "HSA_CORE_API": "DRIVER",
    "HSA_AMD_EXT_API": "DRIVER",
    "HSA_IMAGE_EXT_API": "DRIVER",
    "HSA_FINALIZE_EXT_API": "DRIVER",
    "MARKER_CORE_API": "ANNOTATION",
    "MARKER_CORE_RANGE_API": "ANNOTATION",
    "MARKER_CONTROL_API": "ANNOTATION",
    "MARKER_NAME_API": "ANNOTATION",
    "RCCL_API": "API",
    "ROCDECODE_API_EXT": "API",
    "ROCJPEG_API": "API",
    "HIPFILE_API_EXT": "API",
    "ROCSHMEM_API_EXT": "API",
    "SOMETHING_API": "API",
}


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_domain_determines_the_kind(tmp_path: Path, domain: str) -> None:
    path = write(tmp_path / "7_x_api_trace.csv", CALLS, row(CALLS, Domain=domain, Thread_Id=9))
    trace = read_v3_csv([path])
    (node,) = nodes(trace)
    assert (node["kind"], node["lane"], node["device"]) == (DOMAINS[domain], ("THREAD", 9), -1)
    assert node["args"] == {"domain": domain}
    assert node["correlation"] == (-1 if "MARKER" in domain else 1)
    assert ("domain-unknown" in counts(trace)) == (domain == "SOMETHING_API")


def test_marks_are_instants_and_process_ranges_have_a_lane(tmp_path: Path) -> None:
    rows = [
        row(CALLS, Domain="MARKER_CORE_API", Function="mark", End_Timestamp=T0),
        row(CALLS, Domain="MARKER_CORE_API", Function="range", Thread_Id=0),
        row(CALLS, Function="hipFree", End_Timestamp=T0),
    ]
    trace = read_v3_csv([write(tmp_path / "7_marker_api_trace.csv", CALLS, *rows)])
    kinds = {n["name"]: (n["kind"], n["lane"]) for n in nodes(trace)}
    assert kinds == {
        "mark": ("INSTANT", ("THREAD", 700)),
        "range": ("ANNOTATION", ("THREAD", 0)),
        "hipFree": ("RUNTIME", ("THREAD", 700)),
    }


def test_calls_lie_within_calls(tmp_path: Path) -> None:
    rows = [
        row(CALLS, Domain="HSA_CORE_API", Function="inner", Start_Timestamp=T0 + 5,
            End_Timestamp=T0 + 9),
        row(CALLS, Function="outer", End_Timestamp=T0 + 20),
        row(CALLS, Function="elsewhere", Thread_Id=2, Start_Timestamp=T0 + 6,
            End_Timestamp=T0 + 7),
    ]  # fmt: skip
    actual = nodes(read_v3_csv([write(tmp_path / "7_hip_api_trace.csv", CALLS, *rows)]))
    parents = {n["name"]: actual[n["parent"]]["name"] for n in actual if n["parent"] >= 0}
    assert parents == {"inner": "outer"}


COPIES_OF = {
    "MEMORY_COPY_HOST_TO_DEVICE": (4, 0),
    "MEMORY_COPY_DEVICE_TO_HOST": (0, 1),
    "MEMORY_COPY_DEVICE_TO_DEVICE": (0, 2),
    "MEMORY_COPY_HOST_TO_HOST": (-1, 3),
    "MEMORY_COPY_NONE": (4, 4),
}


@pytest.mark.parametrize("direction", COPIES_OF)
def test_copies_lie_on_the_gpu_by_direction(tmp_path: Path, direction: str) -> None:
    header = [c for c in COPIES if c != "Stream_Id"]
    node = one(tmp_path, "7_memory_copy_trace.csv", header, Direction=direction)
    device, lane = COPIES_OF[direction]
    assert (node["kind"], node["device"], node["lane"]) == ("MEMCPY", device, ("COPY", lane))
    assert node["args"] == {"source_agent": "Agent 0", "destination_agent": "Agent 4"}


def test_copies_lie_on_the_streams_of_kernels(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "7_kernel_trace.csv", KERNELS, row(KERNELS, Stream_Id=2)),
        write(tmp_path / "7_memory_copy_trace.csv", COPIES, row(COPIES, Stream_Id=2)),
    ]
    trace = read_v3_csv(paths)
    assert_whole(trace, 2)
    assert {n["lane"] for n in nodes(trace)} == {("STREAM", 2)}
    assert trace.lanes.num_rows == 1


@pytest.mark.parametrize(("streams", "kind"), [(64, "STREAM"), (65, "QUEUE")])
def test_hundreds_of_streams_are_not_lanes(tmp_path: Path, streams: int, kind: str) -> None:
    rows = [row(KERNELS, Stream_Id=i, Dispatch_Id=i, Queue_Id=i % 3) for i in range(streams)]
    rows.append(row(KERNELS, Stream_Id=1, Dispatch_Id=999, Agent_Id="Agent 5"))
    path = write(tmp_path / "7_kernel_trace.csv", KERNELS, *rows)
    copies = write(tmp_path / "7_memory_copy_trace.csv", COPIES, row(COPIES, Stream_Id=1))
    trace = read_v3_csv([path, copies])
    assert_whole(trace, streams + 2)
    actual = nodes(trace)
    assert {n["lane"][0] for n in actual if n["device"] == 4 and n["kind"] == "KERNEL"} == {kind}
    assert {n["lane"] for n in actual if n["device"] == 5} == {("STREAM", 1)}
    (copy,) = (n for n in actual if n["kind"] == "MEMCPY")
    assert copy["lane"] == (("STREAM", 1) if kind == "STREAM" else ("COPY", 0))
    assert sorted(n["args"]["stream"] for n in actual if n["kind"] == "KERNEL") == sorted(
        [*range(streams), 1]
    )


def test_queues_are_lanes_where_one_stream_stands_for_several(tmp_path: Path) -> None:
    rows = [row(KERNELS, Queue_Id=q, Dispatch_Id=q) for q in (1, 2)]
    trace = read_v3_csv([write(tmp_path / "7_kernel_trace.csv", KERNELS, *rows)])
    assert {n["lane"] for n in nodes(trace)} == {("QUEUE", 1), ("QUEUE", 2)}


def test_allocations_and_releases(tmp_path: Path) -> None:
    def allocation(operation: str, at: int, **changes: Any) -> str:
        return row(
            ALLOCATIONS, Operation=f"MEMORY_ALLOCATION_{operation}", Start_Timestamp=T0 + at,
            End_Timestamp=T0 + at + 1, **changes,
        )  # fmt: skip

    rows = [
        allocation("FREE", 50, Address="0xb", Agent_Id=""),
        allocation("ALLOCATE", 10, Address="0xa", Allocation_Size=1024),
        allocation("ALLOCATE", 20, Address="0xb", Allocation_Size=2048, Agent_Id="Agent 5"),
        allocation("FREE", 30, Address="0xa", Agent_Id='""'),
        allocation("ALLOCATE", 40, Address="0xa", Allocation_Size=4096, Agent_Id="Agent 0"),
        allocation("FREE", 60, Address="0xa", Agent_Id=""),
        allocation("FREE", 70, Address="0xc", Agent_Id=""),
    ]
    trace = read_v3_csv([write(tmp_path / "7_memory_allocation_trace.csv", ALLOCATIONS, *rows)])
    assert_whole(trace, 7)
    actual = nodes(trace)
    assert {n["kind"] for n in actual} == {"ALLOCATION"}
    assert {n["lane"][0] for n in actual} == {"MEMORY"}
    assert [n["device"] for n in actual] == [4, 5, 4, -1, 5, -1, -1]
    assert [n["bytes"] for n in actual] == [1024, 2048, None, 4096, None, None, None]
    assert [n["args"]["address"] for n in actual] == [
        "0xa",
        "0xb",
        "0xa",
        "0xa",
        "0xb",
        "0xa",
        "0xc",
    ]


def test_scratch_waits_and_graphs(tmp_path: Path) -> None:
    scratch = one(
        tmp_path, "7_scratch_memory_trace.csv", SCRATCH, Operation="SCRATCH_MEMORY_ALLOC",
        Alloc_Flags=3, Allocation_Size=77,
    )  # fmt: skip
    assert (scratch["kind"], scratch["lane"][0], scratch["device"], scratch["bytes"]) == (
        "ALLOCATION", "MEMORY", 4, 77,
    )  # fmt: skip
    assert scratch["args"] == {"agent": "Agent 4", "queue": 1, "thread": 700, "flags": 3}
    older = [c.replace("Flags", "flags") for c in SCRATCH[:-1]]
    assert one(tmp_path, "7_scratch_memory_trace.csv", older, Operation="A").get("bytes") is None
    wait = one(tmp_path, "7_hip_event_trace.csv", EVENTS, Operation="RECORD", Event_Handle="0x7f")
    assert (wait["kind"], wait["lane"], wait["device"]) == ("GPU_SYNC", ("GPU_SYNC", 1), 4)
    assert wait["args"]["event_handle"] == "0x7f"
    graph = one(tmp_path, "7_graph_launch_trace.csv", GRAPHS, Kind="Graph Launch", Graph_Exec_Id=8)
    assert (graph["kind"], graph["lane"]) == ("GPU_ANNOTATION", ("GPU_ANNOTATION", 1))
    assert (graph["name"], graph["args"]["graph_exec_id"]) == ("graph launch", 8)


def test_one_call_launches_many_kernels(tmp_path: Path) -> None:
    calls = [
        row(CALLS, Function="hipGraphLaunch", Correlation_Id=5),
        row(CALLS, Domain="HSA_CORE_API", Function="hsa_signal_create", Correlation_Id=6),
        row(CALLS, Domain="MARKER_CORE_API", Function="hipLaunchKernel", Correlation_Id=7),
        row(CALLS, Function="hipFree", Correlation_Id=0),
        row(CALLS, Domain="RCCL_API", Function="ncclAllReduce", Correlation_Id=8),
    ]
    kernels = [
        row(KERNELS, Kernel_Name=f"k{i}", Correlation_Id=c, Dispatch_Id=i, Start_Timestamp=T0 + i)
        for i, c in enumerate([5, 5, 5, 0, 7, 9, 8, 6])
    ]
    copy = row(COPIES, Correlation_Id=5, Start_Timestamp=T0 + 99)
    trace = read_v3_csv(
        [
            write(tmp_path / "7_kernel_trace.csv", KERNELS, *kernels),
            write(tmp_path / "7_memory_copy_trace.csv", COPIES, copy),
            write(tmp_path / "7_hip_api_trace.csv", CALLS, *calls),
        ]
    )
    assert_whole(trace, 14)
    assert edges(trace) == [
        ("hipGraphLaunch", "k0"),
        ("hipGraphLaunch", "k1"),
        ("hipGraphLaunch", "k2"),
        ("ncclAllReduce", "k6"),
        ("hsa_signal_create", "k7"),
        ("hipGraphLaunch", "MEMORY_COPY_HOST_TO_DEVICE"),
    ]


def test_without_correlation_ids_nothing_is_tied(tmp_path: Path) -> None:
    header = [c for c in KERNELS if c != "Correlation_Id"]
    paths = [
        write(tmp_path / "7_kernel_trace.csv", header, row(header)),
        write(tmp_path / "7_hip_api_trace.csv", CALLS, row(CALLS)),
    ]
    trace = read_v3_csv(paths)
    assert trace.edges.num_rows == 0
    assert counts(trace)["launch-unknown"] == 1


def test_overlapping_kernels_keep_their_times(tmp_path: Path) -> None:
    times = [(0, 100), (60, 200), (60, 61), (200, 300), (150, 160)]
    rows = [
        row(KERNELS, Dispatch_Id=i, Start_Timestamp=T0 + a, End_Timestamp=T0 + b)
        for i, (a, b) in enumerate(times)
    ]
    path = write(tmp_path / "7_kernel_trace.csv", KERNELS, *rows)
    trace = read_v3_csv([path])
    actual = {
        n["args"]["dispatch_id"]: (n["ts"] - T0, n["ts"] - T0 + n["dur"]) for n in nodes(trace)
    }
    assert actual == dict(enumerate(times))
    assert (trace.array("parent") == -1).all()


@pytest.mark.parametrize(
    ("text", "expected"), [("é \\ \t", "é \\ \t"), ("12", 12), (-1.5, -1.5), ("007", "007")]
)
def test_names_and_columns_not_known_here_are_kept(
    tmp_path: Path, text: object, expected: object
) -> None:
    name = 'void k<"a\\b">(é\t)'
    header = [*KERNELS, "Note"]
    node = one(tmp_path, "7_kernel_trace.csv", header, Kernel_Name=name, Note=text)
    assert node["name"] == name
    assert node["args"]["note"] == expected


def test_counters_go_to_the_kernels_of_the_same_process(tmp_path: Path) -> None:
    kernels = [
        row(KERNELS, Dispatch_Id=i, Start_Timestamp=T0 + i, End_Timestamp=T0 + i + 9, Thread_Id=700)
        for i in (3, 1, 2)
    ]
    values = [
        row(COUNTERS, Dispatch_Id=i, Counter_Name=name, Counter_Value=i * factor,
            Start_Timestamp=T0 + i + 1, End_Timestamp=T0 + i + 8)
        for i in (1, 2, 4)
        for name, factor in (("SQ_WAVES", 10.0), ("MfmaUtil", 0.125))
    ]  # fmt: skip
    other = row(COUNTERS, Dispatch_Id=3, Kernel_Name="another")
    trace = read_v3_csv(
        [
            write(tmp_path / "7_counter_collection.csv", COUNTERS, *values, other),
            write(tmp_path / "7_kernel_trace.csv", KERNELS, *kernels),
        ]
    )
    assert_whole(trace, 10)
    assert counters(trace) == {
        (T0 + 1, "SQ_WAVES"): 10.0,
        (T0 + 1, "MfmaUtil"): 0.125,
        (T0 + 2, "SQ_WAVES"): 20.0,
        (T0 + 2, "MfmaUtil"): 0.25,
        (T0 + 5, "SQ_WAVES"): 40.0,  # dispatch 4 is not in the kernel trace: it became a node
        (T0 + 5, "MfmaUtil"): 0.5,
        (T0, "SQ_WAVES"): 16384.0,  # dispatch 3 is another kernel there
    }
    assert counts(trace)["counter-row"] == 5
    assert sorted(n["dur"] for n in nodes(trace)) == [7, 9, 9, 9, 12_800]


def test_counters_without_times_find_their_kernels(tmp_path: Path) -> None:
    header = COUNTERS[:-2]
    rows = [
        row(header, Dispatch_Id=i, Correlation_Id=i, Counter_Name=name, Counter_Value=float(i))
        for i in (1, 2)
        for name in ("A", "B")
    ]
    kernel_62 = [c for c in KERNELS if c not in ("Dispatch_Id", "Stream_Id", "Thread_Id")]
    for kernel_header in (KERNELS, kernel_62):
        kernels = row(kernel_header, Dispatch_Id=2, Correlation_Id=2)
        trace = read_v3_csv(
            [
                write(tmp_path / "7_counter_collection.csv", header, *rows),
                write(tmp_path / "7_kernel_trace.csv", kernel_header, kernels),
            ]
        )
        assert_whole(trace, 5)
        assert counters(trace) == {(T0, "A"): 2.0, (T0, "B"): 2.0}
        assert counts(trace)["dispatch-without-time"] == 2
        assert "dispatch 1" in example(trace, "dispatch-without-time")


def test_correlation_ids_of_graphs_match_no_counters(tmp_path: Path) -> None:
    kernels = [
        row(KERNELS, Dispatch_Id=i, Correlation_Id=5, Start_Timestamp=T0 + i) for i in (1, 2)
    ]
    count = row(COUNTERS, Dispatch_Id=9, Correlation_Id=5, Start_Timestamp=T0 + 77)
    trace = read_v3_csv(
        [
            write(tmp_path / "7_counter_collection.csv", COUNTERS, count),
            write(tmp_path / "7_kernel_trace.csv", KERNELS, *kernels),
        ]
    )
    assert counters(trace) == {(T0 + 77, "SQ_WAVES"): 16384.0}


def test_replays_of_a_dispatch_count_as_one(tmp_path: Path) -> None:
    header = ["Guid", *COUNTERS[:2], "Replay_Pass", *COUNTERS[2:]]
    rows = [
        row(header, Replay_Pass=p, Counter_Name=name, Counter_Value=value,
            Start_Timestamp=T0 + p * 100_000)
        for p, name, value in ((0, "A", 1.0), (1, "B", 2.0), (1, "A", 3.0))
    ]  # fmt: skip
    trace = read_v3_csv([write(tmp_path / "7_counter_collection.csv", header, *rows)])
    assert_whole(trace, 3)
    assert trace.nodes.num_rows == 1
    assert counters(trace) == {(T0, "A"): 1.0, (T0, "B"): 2.0}
    assert counts(trace)["counter-repeated"] == 1


@pytest.mark.parametrize("form", [KERNELS, COUNTERS])
def test_work_that_no_recorded_call_launched_is_counted(tmp_path: Path, form: list[str]) -> None:
    which = "kernel_trace" if form is KERNELS else "counter_collection"
    work = [
        row(form, Correlation_Id=c, Dispatch_Id=c, Start_Timestamp=T0 + c, End_Timestamp=T0 + c + 1)
        for c in (4, 5, 6)
    ]
    paths = [write(tmp_path / f"7_{which}.csv", form, *work)]
    assert "launch-not-recorded" not in counts(read_v3_csv(paths))
    paths.append(write(tmp_path / "7_hip_api_trace.csv", CALLS, row(CALLS, Correlation_Id=5)))
    assert counts(read_v3_csv(paths))["launch-not-recorded"] == 2


def test_counter_dispatches_are_launched_too(tmp_path: Path) -> None:
    rows = [row(COUNTERS, Correlation_Id=4), row(CALLS, Correlation_Id=4)]
    trace = read_v3_csv(
        [
            write(tmp_path / "7_counter_collection.csv", COUNTERS, rows[0]),
            write(tmp_path / "7_hip_api_trace.csv", CALLS, rows[1]),
        ]
    )
    assert edges(trace) == [("hipLaunchKernel", "gemm(float*, float const*)")]


def test_agents_distinguish_cpus_from_gpus(tmp_path: Path) -> None:
    agents = [
        row(
            AGENTS,
            Node_Id=n,
            Logical_Node_Id=n,
            Agent_Type=kind,
            Product_Name="AMD Instinct MI300A",
        )
        for n, kind in enumerate(["CPU", "CPU", "GPU"])
    ]
    copies = [row(COPIES, Direction="MEMORY_COPY_NONE", Source_Agent_Id="Agent 1",
                  Destination_Agent_Id="Agent 2")]  # fmt: skip
    trace = read_v3_csv(
        [
            write(tmp_path / "7_agent_info.csv", AGENTS, *agents),
            write(tmp_path / "7_memory_copy_trace.csv", COPIES, *copies),
        ]
    )
    assert nodes(trace)[0]["device"] == 2
    assert [(d.device, d.ordinal) for d in trace.meta.devices] == [(2, 0)]


def test_demo_passes_are_read_completely(demo: Path) -> None:
    folder = demo / "rocprof"
    trace = ci.read(folder)
    for source in trace.meta.sources:
        own = [i for i in trace.meta.issues if i.source == source.path and i.events]
        assert source.events == source.nodes + sum(i.count for i in own), source
    assert trace.counters.num_rows > 0
