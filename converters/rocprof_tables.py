"""Differences between rocprofv3's tables and their generations, as tables.

The tool's CSV files since ROCm 6.2 and those of ``rocpd convert`` name the same things; columns
came, went and were renamed. They are found by name, in any case and order, never by position.
"""

from __future__ import annotations

from dataclasses import dataclass

from chopper_interop.schemas.kinds import Kind

_OLD_COLUMNS: dict[str, str] = {
    "accum_vgpr": "accum_vgpr",
    "arch_vgpr": "vgpr",
    "beginns": "start",
    "completens": "completed",
    "dispatchns": "dispatched",
    "durationns": "duration",
    "endns": "end",
    "fbar": "fbar",
    "gpu-id": "gpu",
    "gpu_id": "gpu",
    "grd": "grid",
    "index": "dispatch",
    "kernelname": "name",
    "lds": "lds",
    "lds_per_workgroup": "lds",
    "message": "name",
    "obj": "object",
    "queue-id": "queue",
    "queue-index": "queue_index",
    "roctx_id": "range_id",
    "scr": "scratch",
    "scratch_per_workitem": "scratch",
    "sgpr": "sgpr",
    "sig": "signal",
    "stop_timestamp": "end",
    "tid": "thread",
    "timestamp": "start",
    "vgpr": "vgpr",
    "wave_size": "wave_size",
    "wgr": "workgroup",
    "xcc_index": "xcc",
}
"""Names that only the tools before rocprofv3 wrote, and rocprof-compute does."""
COLUMNS: dict[str, str] = {
    "accum_vgpr_count": "accum_vgpr",
    "address": "address",
    "agent_id": "agent",
    "agent_type": "agent_type",
    "alloc_flags": "flags",
    "allocation_size": "size",
    "arch_vgpr_count": "vgpr",
    "correlation_id": "correlation",
    "counter_name": "counter",
    "counter_value": "value",
    "destination_agent_id": "destination_agent",
    "direction": "name",
    "dispatch_id": "dispatch",
    "domain": "domain",
    "duration": "duration",
    "end_timestamp": "end",
    "event_handle": "event_handle",
    "function": "name",
    "graph_exec_id": "graph_exec_id",
    "graph_node_id": "graph_node_id",
    "grid_size": "grid",
    "grid_size_x": "grid_x",
    "grid_size_y": "grid_y",
    "grid_size_z": "grid_z",
    "group_segment_size": "group_segment",  # until June 2025; not rounded as LDS_Block_Size is
    "guid": "guid",
    "kernel_dispatch_count": "dispatches",
    "kernel_id": "kernel_id",
    "kernel_name": "name",
    "kind": "kind",
    "lds_block_size": "lds",
    "operation": "name",
    "pid": "pid",  # one build of `rocpd convert` writes the guid under this name
    "private_segment_size": "scratch",  # until June 2025
    "process_id": "process",
    "queue_id": "queue",
    "replay_pass": "replay_pass",
    "scratch_size": "scratch",
    "sgpr_count": "sgpr",
    "source_agent_id": "source_agent",
    "source_queue_id": "source_queue",
    "start_timestamp": "start",
    "starting_address": "address",  # November 2024
    "stream_id": "stream",
    "thread_id": "thread",
    "vgpr_count": "vgpr",
    "workgroup_size": "workgroup",
    "workgroup_size_x": "workgroup_x",
    "workgroup_size_y": "workgroup_y",
    "workgroup_size_z": "workgroup_z",
    **_OLD_COLUMNS,
}
"""Name in a header, in lower case → name here."""

TEXTS = frozenset(
    {
        "address",
        "agent",
        "counter",
        "destination_agent",
        "domain",
        "event_handle",
        "gpu",
        "guid",
        "kind",
        "name",
        "object",
        "pid",
        "source_agent",
    }
)
"""Columns of text."""
VALUE = "value"
"""The column of decimal numbers."""
NOT_KEPT = frozenset({"kind", "signal"})
"""Columns that say nothing that others do not."""
INTEGERS = frozenset(COLUMNS.values()) - TEXTS - NOT_KEPT - {VALUE}
"""Columns of whole numbers."""


@dataclass(frozen=True)
class Format:
    """One of the tables that rocprofv3 writes, or the tools before it.

    Parameters
    ----------
    name
        What it is called here.
    needs
        Columns (names of `COLUMNS`) without which it is not this table.
    lacks
        Columns that only other tables have.
    free
        Column of free text, in which commas, quotes and line ends may stand unescaped.
    args
        What becomes arguments of its nodes: key → the column, or three for a list.
    tool
        Who writes it.
    wide
        Whether each column of a name that is not known holds the values of a counter.
    """

    name: str
    needs: frozenset[str]
    lacks: frozenset[str] = frozenset()
    free: str = ""
    args: tuple[tuple[str, tuple[str, ...]], ...] = ()
    tool: str = "rocprofv3"
    wide: bool = False


def _args(*columns: str, **renamed: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Arguments called as their columns, then those called otherwise."""
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

KERNELS = Format(
    "kernel_trace",
    frozenset({"name", "agent"}) | _TIMES,
    frozenset({"counter", "domain", "source_agent", "event_handle", "flags", "address", "size"}),
    free="name",
    args=(
        *_DISPATCH,
        *_args(grid_size="grid", workgroup_size="workgroup"),
        *_SHAPE,
        *_RESOURCES,
    ),
)
COUNTERS = Format(
    "counter_collection",
    frozenset({"dispatch", "name", "counter", VALUE}),
    free="name",
    args=(
        *_DISPATCH,
        *_args(grid_size="grid", workgroup_size="workgroup"),
        *_SHAPE,
        *_RESOURCES,
    ),
)
CALLS = Format(
    "api_trace",
    frozenset({"domain", "name", "thread"}) | _TIMES,
    free="name",
    args=_args("domain", "range_id"),
)
COPIES = Format(
    "memory_copy_trace",
    frozenset({"name", "source_agent", "destination_agent"}) | _TIMES,
    args=_args(
        "source_agent", "destination_agent", "stream", "thread", "graph_exec_id", "graph_node_id"
    ),
)
ALLOCATIONS = Format(
    "memory_allocation_trace",
    frozenset({"name", "agent", "address"}) | _TIMES,
    args=_args("agent", "address", "thread"),
)
SCRATCH = Format(
    "scratch_memory_trace",
    frozenset({"name", "agent", "flags"}) | _TIMES,
    args=_args("agent", "queue", "thread", "flags"),
)
EVENTS = Format(
    "hip_event_trace",
    frozenset({"name", "agent", "event_handle"}) | _TIMES,
    args=_args("agent", "queue", "stream", "thread", "event_handle", "source_queue"),
)
GRAPHS = Format(
    "graph_launch_trace",
    frozenset({"agent", "graph_exec_id", "dispatches"}) | _TIMES,
    args=_args("agent", "queue", "thread", "graph_exec_id", "dispatches"),
)
AGENTS = Format("agent_info", frozenset({"node_id", "agent_type", "simd_count", "logical_node_id"}))
OTHERS = Format("other", frozenset({"name"}), args=_args("domain"))
"""Records of a kind that is not known here; only JSON files hold such."""

DISPATCHES = Format(
    "dispatches",
    frozenset({"name", "gpu", "grid"}),
    frozenset({"counter", "domain"}),
    free="name",
    tool="rocprof",
    wide=True,
)
"""A row for each dispatch, a column for each counter: rocprof v1 and v2, rocprof-compute."""
RECORDS = Format(
    "records",
    frozenset({"domain", "name", "correlation"}) | _TIMES,
    frozenset({"thread", "process", "agent", "gpu", "guid"}),
    free="name",
    tool="rocprof",
)
"""Calls, copies and kernels of rocprofv2."""
MARKS = Format(
    "marks", frozenset({"domain", "range_id", "name", "start"}), free="name", tool="rocprof"
)
"""roctx messages of rocprofv2."""

FORMATS = (
    *(AGENTS, COUNTERS, EVENTS, SCRATCH, GRAPHS, COPIES, ALLOCATIONS, CALLS, KERNELS),
    *(DISPATCHES, RECORDS, MARKS),
)
"""Tables that are read, the most particular first."""

_MERGED = frozenset({"correlation_id", "dispatch_id", "kernel_id", "kernel_name", "queue_id"})
"""Columns of rocprof-compute's passes of which a merge may leave copies."""

STATISTICS = frozenset({"name", "calls", "totaldurationns", "minns", "maxns", "stddev"})
"""Header of ``*_stats.csv`` and ``domain_stats.csv``. rocprof v1 had neither MinNs nor StdDev."""
PC_SAMPLES = frozenset({"sample_timestamp", "exec_mask", "instruction"})
"""Header of ``pc_sampling_*.csv``."""
SPM_SAMPLES = (
    frozenset({"dispatch_id", "kernel_name", "counter_name", "counter_value", "timestamp"}),
    frozenset({"dispatch_id", "counter_name", "counter_value"}),
)
"""Headers of streaming performance monitors: the first may have more columns, not the second."""

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
"""How a domain (the kind of an API record) begins → kind of node. ``HIP_RUNTIME_API_EXT`` and
``HIPFILE_API_EXT`` differ behind these letters, see `kind_of_domain`."""

DIRECTIONS: tuple[tuple[str, str], ...] = (
    ("HOST_TO_DEVICE", "host to device"),
    ("DEVICE_TO_HOST", "device to host"),
    ("DEVICE_TO_DEVICE", "device to device"),
    ("HOST_TO_HOST", "host to host"),
)
"""How a copy's direction ends → for people."""

AGENT_FACTS: tuple[tuple[str, str], ...] = (
    ("name", "gfx"),
    ("num_xcc", "num_xcc"),
    ("cu_count", "cu_count"),
    ("simd_count", "simd_count"),
    ("max_engine_clk_fcompute", "max_engine_clk_mhz"),
)
"""Columns of agent_info that analyses need of the GPUs → names of the facts."""


def kind_of_domain(domain: str) -> Kind | None:
    """Kind of node of an API domain; None if it is not known."""
    head = domain.upper().split("_", 1)[0]
    if head == "HIPFILE":
        return Kind.API
    return next((kind for begin, kind in DOMAINS if head == begin), None)


def columns_of(header: list[str]) -> list[str]:
    """What the columns of a header are called here; those not known keep their names.

    A name that comes twice counts once: the others are called ``#4`` by their place.
    """
    plain = [name.strip().strip('"').strip().lower().replace(" ", "_") for name in header]
    names = [COLUMNS.get(name, name) for name in plain]
    if "pid" in names:
        stands_for = "guid" if "process" in names else "process"
        names = [stands_for if name == "pid" else name for name in names]
    return [n if n not in names[:i] and n else f"#{i}" for i, n in enumerate(names)]


def measured(form: Format, columns: list[str]) -> frozenset[str]:
    """Columns of a wide table that hold the values of counters."""
    if not form.wide:
        return frozenset()
    known = set(COLUMNS.values())
    return frozenset(c for c in columns if c not in known and not is_left_out(c))


def is_left_out(column: str) -> bool:
    """Whether a column says nothing that others do not: such as ``wave_size_1`` behind a merge."""
    base, _, number = column.rpartition("_")
    repeats = number.isdecimal() and (base in _OLD_COLUMNS or base in _MERGED)
    return column in NOT_KEPT or column.startswith("#") or repeats


def format_of(header: list[str]) -> Format | None:
    """Which of the tables that are read has this header; None if none."""
    plain = {name.strip().strip('"').strip().lower() for name in header}
    if is_statistics(plain) or is_samples(plain):
        return None
    names = set(columns_of(header))
    return next((f for f in FORMATS if f.needs <= names and not f.lacks & names), None)


def is_statistics(plain: set[str]) -> bool:
    """Whether these column names, in lower case, are of a table of statistics."""
    return plain >= STATISTICS


def is_samples(plain: set[str]) -> bool:
    """Whether these column names, in lower case, are of a table of samples."""
    spm, bare = SPM_SAMPLES
    has_span = "start_timestamp" in plain
    return plain >= PC_SAMPLES or (plain >= spm and not has_span) or plain == bare
