"""Files as rocprofv3 writes them, and what tests ask of traces of them."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from issue_counts import uncounted_events

import chopper_interop as ci
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind


def columns(text: str) -> list[str]:
    """Names between commas."""
    return text.split(",")


KERNELS = columns(
    "Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,"
    "Start_Timestamp,End_Timestamp,LDS_Block_Size,Scratch_Size,VGPR_Count,Accum_VGPR_Count,"
    "SGPR_Count,Workgroup_Size_X,Workgroup_Size_Y,Workgroup_Size_Z,Grid_Size_X,Grid_Size_Y,"
    "Grid_Size_Z"
)
CALLS = columns("Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp")
COPIES = columns(
    "Kind,Direction,Stream_Id,Source_Agent_Id,Destination_Agent_Id,Correlation_Id,"
    "Start_Timestamp,End_Timestamp"
)
COUNTERS = columns(
    "Correlation_Id,Dispatch_Id,Agent_Id,Queue_Id,Process_Id,Thread_Id,Grid_Size,Kernel_Id,"
    "Kernel_Name,Workgroup_Size,LDS_Block_Size,Scratch_Size,VGPR_Count,Accum_VGPR_Count,SGPR_Count,"
    "Counter_Name,Counter_Value,Start_Timestamp,End_Timestamp"
)
AGENTS = columns(
    "Node_Id,Logical_Node_Id,Agent_Type,Simd_Count,Num_Xcc,Cu_Count,Max_Engine_Clk_Fcompute,Name,"
    "Vendor_Name,Product_Name"
)

T0 = 1_550_151_853_029_637
"""A time since boot, as in the tool's documentation."""

_DEFAULTS: dict[str, Any] = {
    "Kind": "KERNEL_DISPATCH",
    "Agent_Id": "Agent 4",
    "Queue_Id": 1,
    "Stream_Id": 0,
    "Thread_Id": 700,
    "Dispatch_Id": 1,
    "Kernel_Id": 10,
    "Kernel_Name": "gemm(float*, float const*)",
    "Correlation_Id": 1,
    "Start_Timestamp": T0,
    "End_Timestamp": T0 + 12_800,
    "Domain": "HIP_RUNTIME_API_EXT",
    "Function": "hipLaunchKernel",
    "Process_Id": 700,
    "Direction": "MEMORY_COPY_HOST_TO_DEVICE",
    "Source_Agent_Id": "Agent 0",
    "Destination_Agent_Id": "Agent 4",
    "Counter_Name": "SQ_WAVES",
    "Counter_Value": 16384.0,
    "Guid": "0000ddb5-8903-7903-b269-cd8d3745bb8a",
    "Agent_Type": "GPU",
    "Workgroup_Size_X": 64,
    "Workgroup_Size_Y": 1,
    "Workgroup_Size_Z": 1,
    "Grid_Size_X": 1024,
    "Grid_Size_Y": 1024,
    "Grid_Size_Z": 1,
}


def row(header: Iterable[str], **changes: Any) -> str:
    """A line of a table: defaults, but for some columns; texts in quotes, nothing escaped."""
    cells = {name.lower(): value for name, value in {**_DEFAULTS, **changes}.items()}
    return ",".join(_cell(cells.get(name.lower(), 0)) for name in header)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def write(path: Path, header: Sequence[str], *rows: str, end: str = "\n") -> Path:
    """A CSV file of some lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    quoted = ",".join(f'"{name}"' for name in header)
    path.write_bytes("".join(f"{line}{end}" for line in (quoted, *rows)).encode())
    return path


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a file by the csv library."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def nodes(trace: ci.Trace) -> list[dict[str, Any]]:
    """Nodes with absolute times, kinds by name, lanes spelled out, and their arguments."""
    lanes = trace.lanes.to_pylist()
    result = []
    for i, node in enumerate(trace.nodes.to_pylist()):
        lane = lanes[node["lane"]]
        result.append(
            {
                **node,
                "ts": node["ts"] + trace.meta.origin_ns,
                "kind": Kind(node["kind"]).name,
                "device": lane["device"],
                "lane": (LaneKind(lane["kind"]).name, lane["number"]),
                "args": trace.args(i),
            }
        )
    return result


def edges(trace: ci.Trace) -> list[tuple[str, str]]:
    """Names of calls and of the work that they launched, in the order of the work."""
    names = [node["name"] for node in trace.nodes.to_pylist()]
    rows = [edge for edge in trace.edges.to_pylist() if edge["kind"] == EdgeKind.LAUNCH]
    return [(names[e["src"]], names[e["dst"]]) for e in sorted(rows, key=lambda e: e["dst"])]


def counters(trace: ci.Trace) -> dict[tuple[int, str], float]:
    """(Start of the dispatch, counter) → value."""
    ts = (trace.array("ts") + trace.meta.origin_ns).tolist()
    return {(ts[node], name): value for (node, name), value in counters_by_node(trace).items()}


def counters_by_node(trace: ci.Trace) -> dict[tuple[int, str], float]:
    """(Node, counter) → value."""
    result = {(r["node"], r["name"]): r["value"] for r in trace.counters.to_pylist()}
    assert len(result) == trace.counters.num_rows
    return result


def example(trace: ci.Trace, code: str) -> str:
    """The example of a fault."""
    return next(issue.example for issue in trace.meta.issues if issue.code == code)


def assert_whole(trace: ci.Trace, events: int) -> None:
    """There were so many events, and each is a node or counted."""
    (source,) = trace.meta.sources
    assert source.events == events
    assert source.nodes == trace.nodes.num_rows
    assert not uncounted_events(trace)
