"""Every generation of rocprofv3's headers, in any order and case, and what is not its own."""

import random
from pathlib import Path

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
    counters,
    nodes,
    row,
    write,
)

from chopper_interop import registry
from chopper_interop.converters.rocm.sniff import is_v3_csv
from chopper_interop.converters.rocprof import ROCPROFV3_CSV
from chopper_interop.converters.rocprof.v3.csv_reader import read as read_v3_csv
from chopper_interop.io import inputs

_SIZES = KERNELS[-6:]
_62 = "Kind,Agent_Id,Queue_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp"
_SEGMENTS = ["Private_Segment_Size", "Group_Segment_Size"]
_63 = (
    "Kind,Agent_Id,Queue_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,"
    "Start_Timestamp,End_Timestamp"
)
_ROCPD = (
    "Guid,Kind,Agent_Id,Queue_Id,Stream_Id,Graph_Exec_Id,Graph_Node_Id,Thread_Id,Dispatch_Id,"
    "Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp,Duration,Lds_Block_Size,"
    "Scratch_Size,Vgpr_Count,Accum_Vgpr_Count,Sgpr_Count"
)
KERNEL_HEADERS = {
    "6.2, 16 columns": [*_62.split(","), *_SEGMENTS, *_SIZES],
    "6.3, 18 columns": [*_63.split(","), *_SEGMENTS, *_SIZES],
    "March 2025, 19 columns": [
        *_63.replace("Thread_Id", "Stream_Id,Thread_Id").split(","),
        *_SEGMENTS,
        *_SIZES,
    ],
    "7.0, 22 columns": KERNELS,
    "rocpd convert 7.0": ["Guid", *KERNELS],
    "rocpd convert 7.13": [*_ROCPD.split(","), *_SIZES],
}
COUNTER_HEADERS = {
    "6.2, 15 columns": [c for c in COUNTERS[:-2] if c not in ("Kernel_Id", "Accum_VGPR_Count")],
    "October 2024, 16 columns": [c for c in COUNTERS[:-2] if c != "Accum_VGPR_Count"],
    "6.3, 18 columns": [c for c in COUNTERS if c != "Accum_VGPR_Count"],
    "6.4, 19 columns": COUNTERS,
    "rocpd convert, guid under Pid": ["Pid", *COUNTERS],
    "rocpd convert, replays": ["Guid", *COUNTERS[:2], "Replay_Pass", *COUNTERS[2:]],
}


@pytest.mark.parametrize("header", KERNEL_HEADERS.values(), ids=KERNEL_HEADERS)
def test_kernels_of_every_generation(tmp_path: Path, header: list[str]) -> None:
    agent = "Agent 4" if "Stream_Id" in header else 4
    rows = [
        row(header, Agent_Id=agent, Dispatch_Id=2, Correlation_Id=9, Start_Timestamp=T0 + 50,
            End_Timestamp=T0 + 70, Kernel_Name="ncclDevKernel_Generic(args)"),
        row(header, Agent_Id=agent, Group_Segment_Size=100, Stream_Id=3),
    ]  # fmt: skip
    trace = read_v3_csv([write(tmp_path / "700_kernel_trace.csv", header, *rows)])
    assert_whole(trace, 2)
    gemm, rccl = nodes(trace)
    assert (gemm["name"], gemm["kind"], gemm["ts"], gemm["dur"], gemm["correlation"]) == (
        "gemm(float*, float const*)", "KERNEL", T0, 12_800, 1,
    )  # fmt: skip
    assert (rccl["kind"], rccl["ts"], rccl["dur"], rccl["correlation"]) == ("COMM", T0 + 50, 20, 9)
    assert gemm["device"] == rccl["device"] == 4
    by_stream = "Stream_Id" in header
    assert gemm["lane"] == (("STREAM", 3) if by_stream else ("QUEUE", 1))
    assert ("stream-unknown" in counts(trace)) == (not by_stream)
    assert ("dispatch-id-unknown" in counts(trace)) == ("Dispatch_Id" not in header)
    args = gemm["args"]
    assert (args["grid"], args["workgroup"]) == ([1024, 1024, 1], [64, 1, 1])
    assert args["agent"] == agent
    assert args["queue"] == 1
    assert args.get("group_segment_bytes") == (100 if "Group_Segment_Size" in header else None)
    assert ("vgpr" in args) == ("vgpr_count" in map(str.lower, header))
    assert trace.meta.clock == "boottime"
    assert trace.meta.ranks[0].pid == 700
    assert trace.meta.sources[0].tool == "rocprofv3"


@pytest.mark.parametrize("header", COUNTER_HEADERS.values(), ids=COUNTER_HEADERS)
def test_counters_of_every_generation(tmp_path: Path, header: list[str]) -> None:
    guid = {"Pid": "0000ddb5-8903-7903-b269-cd8d3745bb8a"}
    rows = [
        row(header, **guid),
        row(header, **guid, Counter_Name="GRBM_GUI_ACTIVE", Counter_Value=0.0434259),
        row(header, **guid, Dispatch_Id=2, Correlation_Id=2, Start_Timestamp=T0 + 99_000,
            End_Timestamp=T0 + 99_500),
    ]  # fmt: skip
    trace = read_v3_csv([write(tmp_path / "out_counter_collection.csv", header, *rows)])
    assert_whole(trace, 3)
    assert trace.meta.ranks[0].pid == 700
    assert trace.meta.run == "out"
    if "Start_Timestamp" not in header:
        assert trace.nodes.num_rows == trace.counters.num_rows == 0
        assert counts(trace)["dispatch-without-time"] == 3
        return
    first, second = nodes(trace)
    assert (first["ts"], first["dur"], second["ts"], second["dur"]) == (
        T0, 12_800, T0 + 99_000, 500,
    )  # fmt: skip
    assert counts(trace)["counter-row"] == 1
    assert counters(trace) == {
        (T0, "SQ_WAVES"): 16384.0,
        (T0, "GRBM_GUI_ACTIVE"): 0.043426,
        (T0 + 99_000, "SQ_WAVES"): 16384.0,
    }
    assert first["lane"] == ("QUEUE", 1)
    assert first["args"]["dispatch_id"] == 1


@pytest.mark.parametrize("seed", range(5))
def test_columns_are_looked_up_by_name(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    header = chance.sample(KERNELS, len(KERNELS))
    shouted = [chance.choice([str.upper, str.lower, str])(name) for name in header]
    path = write(tmp_path / "kernel_trace.csv", shouted, row(header), row(header, Agent_Id="GPU 2"))
    text = path.read_text()
    unquoted = text.split("\n", 1)[0].replace('"', "")
    path.write_text("\ufeff\n" + unquoted + "\n" + text.split("\n", 1)[1])
    assert is_v3_csv(inputs.head(path))
    trace = read_v3_csv([path])
    assert_whole(trace, 2)
    assert {(n["name"], n["ts"], n["dur"]) for n in nodes(trace)} == {
        ("gemm(float*, float const*)", T0, 12_800)
    }
    assert sorted(n["device"] for n in nodes(trace)) == [2, 4]


def test_agents_are_numbered_as_the_trace_does(tmp_path: Path) -> None:
    agents = [
        row(AGENTS, Node_Id=0, Logical_Node_Id=0, Agent_Type="CPU", Product_Name="EPYC"),
        row(AGENTS, Node_Id=5, Logical_Node_Id=2, Name="gfx942", Product_Name="MI300X", Num_Xcc=8),
        row(AGENTS, Node_Id=4, Logical_Node_Id=1, Name="gfx942", Product_Name="MI300X", Num_Xcc=8),
    ]
    for text, expected in {
        "Agent 2": {1: 0, 2: 1},
        "5": {4: 0, 5: 1},
        "Agent 5": {4: 0, 5: 1},
        "GPU 1": {0: 0, 1: 1},
    }.items():
        paths = [
            write(tmp_path / "1_agent_info.csv", AGENTS, *agents),
            write(tmp_path / "1_kernel_trace.csv", KERNELS, row(KERNELS, Agent_Id=text)),
        ]
        trace = read_v3_csv(paths)
        assert_whole(trace, 1)
        assert {d.device: d.ordinal for d in trace.meta.devices} == expected
        assert {d.name for d in trace.meta.devices} == {"MI300X"}
        assert nodes(trace)[0]["device"] == int(text.split()[-1])
        assert trace.meta.facts["num_xcc"] == "8"
        assert trace.meta.facts["gfx"] == "gfx942"


OTHERS = {
    "rocprof v1": "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,"
    "accum_vgpr,sgpr,wave_size,sig,obj,DispatchNs,BeginNs,EndNs,CompleteNs,DurationNs",
    "rocprof v1 statistics": '"Name","Calls","TotalDurationNs","AverageNs","Percentage"',
    "rocprofv2 kernels": "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,"
    "LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,Wave_Size,Kernel_Name,"
    "Start_Timestamp,End_Timestamp,Correlation_ID,SQ_WAVES",
    "rocprofv2 calls": "Domain,Function,Start_Timestamp,End_Timestamp,Correlation_ID",
    "rocprofv2 copies": "Domain,Operation,Start_Timestamp,Stop_Timestamp,Correlation_ID",
    "rocprofv2 markers": "Domain,ROCTX_ID,Message,Timestamp",
    "rocprof-compute": "Dispatch_ID,GPU_ID,Grid_Size,Workgroup_Size,Kernel_Name,Start_Timestamp,"
    "End_Timestamp,SQ_WAVES,GRBM_GUI_ACTIVE",
    "amd-smi": "timestamp,gpu,gfx,gfx_clk,umc,hotspot_temperature,memory_temperature,power",
}


@pytest.mark.parametrize("header", OTHERS.values(), ids=OTHERS)
def test_tables_of_other_tools_are_not_claimed(header: str) -> None:
    names = [c.name for c in registry.sniffed(f"{header}\n1,2,3\n".encode())]
    assert not [name for name in names if name.startswith("rocprofv3")]


UNREAD = {
    '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"': (
        "rocprofv3-stats"
    ),
    '"Sample_Timestamp","Exec_Mask","Dispatch_Id","Instruction","Instruction_Comment",'
    '"Correlation_Id"': "rocprofv3-pc-sampling",
    "Guid,Correlation_Id,Dispatch_Id,Agent_Id,Kernel_Name,Counter_Name,Counter_Value,Timestamp": (
        "rocprofv3-pc-sampling"
    ),
    "Dispatch_Id,Counter_Name,Counter_Value": "rocprofv3-pc-sampling",
}


@pytest.mark.parametrize("header", UNREAD)
def test_files_without_a_timeline_are_recognised_and_not_read(header: str) -> None:
    (actual,) = registry.sniffed(f"{header}\n".encode())
    assert actual.name == UNREAD[header]
    assert actual.read is None
    assert "without a timeline" in actual.not_read_because


def test_real_files_are_each_one_thing(shared: Path) -> None:
    expected = {"stats": "rocprofv3-stats", "sampling": "rocprofv3-pc-sampling"}
    for path in sorted((shared / "rocprof").rglob("*.csv")):
        actual = [c.name for c in registry.sniffed(inputs.head(path)) if "rocprofv3" in c.name]
        if "v3_csv" not in str(path):
            assert not actual, path
            continue
        kind = next((name for part, name in expected.items() if part in path.name), None)
        assert actual == [kind or ROCPROFV3_CSV.name], path


@pytest.mark.parametrize("header", [KERNELS, CALLS, COPIES, COUNTERS], ids=lambda h: h[1])
def test_a_header_alone_is_an_empty_source(tmp_path: Path, header: list[str]) -> None:
    trace = read_v3_csv([write(tmp_path / "1_x.csv", header)])
    assert_whole(trace, 0)
    assert trace.nodes.num_rows == 0
