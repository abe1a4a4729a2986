"""Tables of ROCm's profilers and their columns, over all tools and versions.

The CSV files of rocprofv3 since ROCm 6.2 and those of ``rocpd convert`` name the same things;
columns came, went and were renamed. They are looked up by name, in any case and order, never by
position.
"""

from __future__ import annotations

from dataclasses import dataclass

from chopper_interop.schemas.kinds import Kind

OLD_COLUMNS: dict[str, str] = {
    "accum_vgpr": "accum_vgpr", "arch_vgpr": "vgpr", "beginns": "start", "completens": "completed",
    "dispatchns": "dispatched", "durationns": "duration", "endns": "end", "fbar": "fbar",
    "gpu-id": "gpu", "gpu_id": "gpu", "grd": "grid", "index": "dispatch", "kernelname": "name",
    "lds": "lds", "lds_per_workgroup": "lds", "message": "name", "obj": "object",
    "queue-id": "queue", "queue-index": "queue_index", "roctx_id": "range_id", "scr": "scratch",
    "scratch_per_workitem": "scratch", "sgpr": "sgpr", "sig": "signal", "stop_timestamp": "end",
    "tid": "thread", "timestamp": "start", "vgpr": "vgpr", "wave_size": "wave_size",
    "wgr": "workgroup", "xcc_index": "xcc",
}  # fmt: skip
"""Names that only rocprof-compute and the tools before rocprofv3 write."""
COLUMNS: dict[str, str] = {
    "accum_vgpr_count": "accum_vgpr", "address": "address", "agent_id": "agent",
    "agent_type": "agent_type", "alloc_flags": "flags", "allocation_size": "size",
    "arch_vgpr_count": "vgpr", "correlation_id": "correlation", "counter_name": "counter",
    "counter_value": "value", "destination_agent_id": "destination_agent", "direction": "name",
    "dispatch_id": "dispatch", "domain": "domain", "duration": "duration", "end_timestamp": "end",
    "event_handle": "event_handle", "function": "name", "graph_exec_id": "graph_exec_id",
    "graph_node_id": "graph_node_id", "grid_size": "grid", "grid_size_x": "grid_x",
    "grid_size_y": "grid_y", "grid_size_z": "grid_z", "group_segment_size": "group_segment",
    "guid": "guid", "kernel_dispatch_count": "dispatches", "kernel_id": "kernel_id",
    "kernel_name": "name", "kind": "kind", "lds_block_size": "lds", "operation": "name",
    "pid": "pid", "private_segment_size": "scratch", "process_id": "process", "queue_id": "queue",
    "replay_pass": "replay_pass", "scratch_size": "scratch", "sgpr_count": "sgpr",
    "source_agent_id": "source_agent", "source_queue_id": "source_queue",
    "start_timestamp": "start", "starting_address": "address", "stream_id": "stream",
    "thread_id": "thread", "vgpr_count": "vgpr", "workgroup_size": "workgroup",
    "workgroup_size_x": "workgroup_x", "workgroup_size_y": "workgroup_y",
    "workgroup_size_z": "workgroup_z",
    **OLD_COLUMNS,
}  # fmt: skip
"""Name in a header, in lower case → name of the column in `TableRows`. Until June 2025 `lds` was
``group_segment_size``, which is not rounded, and `scratch` ``private_segment_size``; in November 2024
`address` was ``starting_address``. One build of ``rocpd convert`` writes the guid as ``pid``."""

TEXTS = frozenset({
    "address", "agent", "counter", "destination_agent", "domain", "event_handle", "gpu", "guid",
    "kind", "name", "object", "pid", "source_agent",
})  # fmt: skip
"""Columns of text."""
VALUE = "value"
"""The column of decimal numbers."""
IGNORED = frozenset({"kind", "signal"})
"""Columns that repeat what other columns say."""
INTEGERS = frozenset(COLUMNS.values()) - TEXTS - IGNORED - {VALUE}
"""Columns of integers."""


@dataclass(frozen=True)
class TableFormat:
    """A table of rocprofv3, or of the tools before it.

    Parameters
    ----------
    name
        Name of the table.
    required
        Columns (names of `COLUMNS`) that the table always has.
    excluded
        Columns that only other tables have.
    free_text
        Column of free text, in which commas, quotes and line ends may stand unescaped.
    args
        Arguments of the table's nodes: key → the column, or three for a list.
    tool
        The tool that writes it.
    wide
        Whether each column of an unknown name holds the values of a counter.
    """

    name: str
    required: frozenset[str]
    excluded: frozenset[str] = frozenset()
    free_text: str = ""
    args: tuple[tuple[str, tuple[str, ...]], ...] = ()
    tool: str = "rocprofv3"
    wide: bool = False


def _args(*columns: str, **renamed: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return arguments with the names of their columns, then those with other names."""
    return tuple((c, (c,)) for c in columns) + tuple((k, (c,)) for k, c in renamed.items())


_RESOURCES = _args(
    "vgpr",
    "accum_vgpr",
    "sgpr",
    "graph_exec_id",
    "graph_node_id",
    "replay_pass",
    "queue_index",
    "wave_size",
    "fbar",
    lds_bytes="lds",
    group_segment_bytes="group_segment",
    scratch_bytes="scratch",
    kernel_object="object",
    dispatch_ns="dispatched",
    complete_ns="completed",
)
_DISPATCH = _args("agent", "queue", "stream", "thread", dispatch_id="dispatch") + _args("kernel_id")
_SHAPE = (
    ("grid", ("grid_x", "grid_y", "grid_z")),
    ("workgroup", ("workgroup_x", "workgroup_y", "workgroup_z")),
)
_TIMES = frozenset({"start", "end"})

KERNELS = TableFormat(
    "kernel_trace",
    frozenset({"name", "agent"}) | _TIMES,
    frozenset({"counter", "domain", "source_agent", "event_handle", "flags", "address", "size"}),
    free_text="name",
    args=(*_DISPATCH, *_args(grid_size="grid", workgroup_size="workgroup"), *_SHAPE, *_RESOURCES),
)
COUNTERS = TableFormat(
    "counter_collection",
    frozenset({"dispatch", "name", "counter", VALUE}),
    free_text="name",
    args=(*_DISPATCH, *_args(grid_size="grid", workgroup_size="workgroup"), *_SHAPE, *_RESOURCES),
)
CALLS = TableFormat(
    "api_trace",
    frozenset({"domain", "name", "thread"}) | _TIMES,
    free_text="name",
    args=_args("domain", "range_id"),
)
COPIES = TableFormat(
    "memory_copy_trace",
    frozenset({"name", "source_agent", "destination_agent"}) | _TIMES,
    args=_args(
        "source_agent", "destination_agent", "stream", "thread", "graph_exec_id", "graph_node_id"
    ),
)
ALLOCATIONS = TableFormat(
    "memory_allocation_trace",
    frozenset({"name", "agent", "address"}) | _TIMES,
    args=_args("agent", "address", "thread"),
)
SCRATCH = TableFormat(
    "scratch_memory_trace",
    frozenset({"name", "agent", "flags"}) | _TIMES,
    args=_args("agent", "queue", "thread", "flags"),
)
EVENTS = TableFormat(
    "hip_event_trace",
    frozenset({"name", "agent", "event_handle"}) | _TIMES,
    args=_args("agent", "queue", "stream", "thread", "event_handle", "source_queue"),
)
GRAPHS = TableFormat(
    "graph_launch_trace",
    frozenset({"agent", "graph_exec_id", "dispatches"}) | _TIMES,
    args=_args("agent", "queue", "thread", "graph_exec_id", "dispatches"),
)
AGENTS = TableFormat(
    "agent_info", frozenset({"node_id", "agent_type", "simd_count", "logical_node_id"})
)
OTHERS = TableFormat("other", frozenset({"name"}), args=_args("domain"))
"""Records of an unknown kind; only JSON files hold such."""

DISPATCHES = TableFormat(
    "dispatches",
    frozenset({"name", "gpu", "grid"}),
    frozenset({"counter", "domain"}),
    free_text="name",
    tool="rocprof",
    wide=True,
)
"""One row per dispatch, one column per counter: rocprof v1 and v2, rocprof-compute."""
PASSES = TableFormat(
    "passes",
    frozenset({"dispatch", "name", "gpu", "counter", VALUE}),
    free_text="name",
    tool="rocprof",
)
"""One row per counter of a dispatch, of all passes: rocprof-compute, where it reads rocpd databases."""
RECORDS = TableFormat(
    "records",
    frozenset({"domain", "name", "correlation"}) | _TIMES,
    frozenset({"thread", "process", "agent", "gpu", "guid"}),
    free_text="name",
    tool="rocprof",
)
"""Calls, copies and kernels of rocprofv2."""
MARKS = TableFormat(
    "marks", frozenset({"domain", "range_id", "name", "start"}), free_text="name", tool="rocprof"
)
"""roctx messages of rocprofv2."""

TABLE_FORMATS = (
    *(AGENTS, PASSES, COUNTERS, EVENTS, SCRATCH, GRAPHS, COPIES, ALLOCATIONS, CALLS, KERNELS),
    *(DISPATCHES, RECORDS, MARKS),
)
"""Tables that are read; the first one that a header fits is taken."""

MERGED = frozenset({"correlation_id", "dispatch_id", "kernel_id", "kernel_name", "queue_id"})
"""Columns of rocprof-compute's passes of which a merge may leave copies, such as ``queue_id_1``."""

STATISTICS = frozenset({"name", "calls", "totaldurationns", "minns", "maxns", "stddev"})
"""Header of ``*_stats.csv`` and ``domain_stats.csv``. rocprof v1 had neither MinNs nor StdDev."""
PC_SAMPLES = frozenset({"sample_timestamp", "exec_mask", "instruction"})
"""Header of ``pc_sampling_*.csv``."""
SPM_SAMPLES = (
    frozenset({"dispatch_id", "kernel_name", "counter_name", "counter_value", "timestamp"}),
    frozenset({"dispatch_id", "counter_name", "counter_value"}),
)
"""Headers of streaming performance monitors: the first may have further columns, the second not."""

DOMAINS: tuple[tuple[str, Kind], ...] = (
    ("HIP", Kind.RUNTIME),
    ("HSA", Kind.DRIVER),
    ("MARKER", Kind.ANNOTATION),
    ("RCCL", Kind.API),
    ("ROCDECODE", Kind.API),
    ("ROCJPEG", Kind.API),
    ("ROCSHMEM", Kind.API),
    ("OMPT", Kind.API),
)
"""Beginning of a domain (the kind of an API record) → kind of node. ``HIP_RUNTIME_API_EXT`` and
``HIPFILE_API_EXT`` differ after these letters, see `kind_of_domain`."""

DIRECTIONS: tuple[tuple[str, str], ...] = (
    ("HOST_TO_DEVICE", "host to device"),
    ("DEVICE_TO_HOST", "device to host"),
    ("DEVICE_TO_DEVICE", "device to device"),
    ("HOST_TO_HOST", "host to host"),
)
"""End of a copy's direction → human-readable direction."""

AGENT_FACTS: tuple[tuple[str, str], ...] = (
    ("name", "gfx"),
    ("num_xcc", "num_xcc"),
    ("cu_count", "cu_count"),
    ("simd_count", "simd_count"),
    ("max_engine_clk_fcompute", "max_engine_clk_mhz"),
)
"""Columns of agent_info that analyses need of the GPUs → names of the facts."""


def kind_of_domain(domain: str) -> Kind | None:
    """Return the kind of node of an API domain; None if the domain is unknown."""
    head = domain.upper().split("_", 1)[0]
    if head == "HIPFILE":
        return Kind.API
    return next((kind for begin, kind in DOMAINS if head == begin), None)
