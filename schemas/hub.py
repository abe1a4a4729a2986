"""The hub's tables: every column with its type, unit and meaning.

Row number = id. Times are int64 nanoseconds; `ts` counts from `Meta.origin_ns`. References to
rows of other tables are int32 with -1 for none, so that core columns hold no nulls and reach
numpy without a copy. Annotation columns are nullable and present only where something is known.

Arguments that a source recorded of a node and no column holds stay as text: `args_at` and `args_len` are a
byte range of `Trace.text`, usually of the bytes that were read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pyarrow as pa

NAME = pa.dictionary(pa.int32(), pa.string())
"""Interned text."""
MAX_RANK = 1 << 20
"""Highest rank, and number of ranks. Chosen: ten times the largest training job known, and small enough to list all
ranks; beyond it a number is garbled or mistyped."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Parameters
    ----------
    name
        Name of the column.
    type
        Arrow type.
    meaning
        One human-readable sentence.
    unit
        Unit of its values, "" for counts, names and references.
    """

    name: str
    type: pa.DataType
    meaning: str
    unit: str = ""


def _over_time(prefix: str, unit: str, meaning: str, symbol: str) -> tuple[Column, ...]:
    """Columns of the mean, minimum and maximum by telemetry of a quantity while a node ran."""
    return tuple(
        Column(f"{prefix}_{short}{unit}", pa.float64(), f"{text} {meaning} while it ran.", symbol)
        for short, text in (("", "Mean"), ("min_", "Minimum"), ("max_", "Maximum"))
    )


NODES = (
    Column("kind", pa.uint8(), "Kind, a number of schemas.kinds.Kind."),
    Column("name", NAME, "Name as the source wrote it."),
    Column("rank", pa.int32(), "Global rank of the process."),
    Column("lane", pa.int32(), "Row of `lanes`: the thread, stream or queue it ran on."),
    Column("ts", pa.int64(), "Start, since the trace's origin.", "ns"),
    Column("dur", pa.int64(), "Duration.", "ns"),
    Column("parent", pa.int32(), "Row of `nodes`: innermost node of its thread around it."),
    Column("correlation", pa.int64(), "Id shared by GPU work and its launch; -1 if none."),
    Column("args_at", pa.int64(), "Offset in the text of further arguments, a JSON object."),
    Column("args_len", pa.int32(), "Length of that object; 0 if there is none.", "B"),
)

_CLOCKS_OF_DIES = tuple(
    column
    for die in range(8)
    for column in _over_time(f"gfxclk_xcd{die}", "mhz", f"core clock of die {die}", "MHz")
)
ANNOTATIONS = (
    Column("iteration", pa.int32(),
           "Training step by the program's own number, or counted from 0 where it has none."),
    Column("phase", NAME, "forward, recompute, backward, optimizer or communication."),
    Column("step_part", NAME,
           "Pass that it serves: forward, backward or optimizer. Of backward is what it recomputes; "
           "communication is of the pass that asks for it."),
    Column("layer", pa.int32(), "Number of the repeated block of the model."),
    Column("module", NAME, "Innermost module of the model, as the framework names it."),
    Column("operation", NAME, "Operation it is part of: an operator as its user calls it."),
    Column("collective", NAME, "Kind of communication, a name of schemas.kinds.Collective."),
    Column("group", pa.int32(), "Row of `groups`: the process group that communicates."),
    Column("seq", pa.int64(), "Sequence number of the collective within its group."),
    Column("instance", pa.int32(),
           "Number of the communication that it is a member of: one collective on all its ranks, "
           "or a send and its receive."),
    Column("peer", pa.int32(), "Global rank at the other end of a send or receive."),
    Column("root", pa.int32(),
           "Global rank of the root of a broadcast, reduce, gather or scatter."),
    Column("dtype", NAME, "Element type of what is communicated."),
    Column("bytes", pa.int64(), "Bytes copied, set or allocated; of a collective, put in.", "B"),
    Column("out_bytes", pa.int64(), "Bytes that a collective gives this rank.", "B"),
    Column("flops", pa.int64(), "Floating-point operations by its shapes.", "FLOP"),
    Column("mem_bytes", pa.int64(),
           "Bytes that it must read and write at least, by shapes; of a collective, its size as "
           "nccl-tests counts it.", "B"),
    Column("flops_counted", pa.float64(), "Floating-point operations by counters.", "FLOP"),
    Column("mem_bytes_counted", pa.float64(), "Bytes between L2 and memory by counters.", "B"),
    Column("intensity", pa.float64(), "Arithmetic intensity by counters.", "FLOP/B"),
    Column("mfma_util", pa.float64(), "Share of cycles in which matrix cores were busy.", "%"),
    Column("occupancy", pa.float64(), "Waves that were resident, of those that fit.", "%"),
    Column("gfxclk_counted_mhz", pa.float64(),
           "Mean core clock by cycle counters in the pass that counted them, not in the timing run.", "MHz"),
    *_over_time("gfxclk", "mhz", "core clock, of all dies", "MHz"),
    *_CLOCKS_OF_DIES,
    *_over_time("memclk", "mhz", "memory clock", "MHz"),
    *_over_time("power", "w", "power of the GPU", "W"),
    *_over_time("temperature", "c", "hotspot temperature", "°C"),
    *_over_time("throttle", "share", "share of time in which the clock was held down", ""),
    Column("energy_j", pa.float64(), "Its share of the GPU's energy while it ran.", "J"),
    Column("telemetry_ns", pa.int64(),
           "Time between the telemetry samples that its values come from.", "ns"),
    Column("critical_ns", pa.int64(), "Its own time on the critical path.", "ns"),
    Column("critical_start_ns", pa.int64(),
           "Start of its first segment on the critical path, as ts.", "ns"),
    Column("critical_end_ns", pa.int64(),
           "End of its last segment on the critical path, as ts.", "ns"),
    Column("critical_delay_ns", pa.int64(),
           "Time of its waits on the critical path beyond the least that such waits take.", "ns"),
    Column("slack_ns", pa.int64(),
           "Delay of its end that would not delay the end of the window.", "ns"),
    Column("drag_ns", pa.int64(),
           "Time by which the window would end sooner if it took no time.", "ns"),
    Column("prep_ns", pa.int64(), "Time its stream was free before the host issued it.", "ns"),
    Column("call_ns", pa.int64(),
           "From the call for it, or the end before it, to its start.", "ns"),
    Column("launch_ns", pa.int64(), "From the end of all work before it to its start.", "ns"),
    Column("queue_depth", pa.int32(),
           "Work issued and not ended on its GPU at the time it was issued."),
    Column("wait_ns", pa.int64(), "Of communication: until the last member had started.", "ns"),
    Column("transfer_ns", pa.int64(), "Of communication: from the last member's start on.", "ns"),
    Column("exposed_ns", pa.int64(),
           "Time in which nothing of the other class ran on its GPU: of communication no compute, "
           "of compute no communication.", "ns"),
    Column("overlap_share", pa.float64(), "Share of its time that overlapped the other class."),
    Column("idle_ns", pa.int64(), "Time before it in which its GPU was idle.", "ns"),
    Column("idle_cause", NAME, "Cause of that idle time."),
    Column("ideal_ns", pa.int64(), "Duration at its GPU's highest clock.", "ns"),
    Column("ideal_low_ns", pa.int64(), "Lower end of the 95 % interval of ideal_ns.", "ns"),
    Column("ideal_high_ns", pa.int64(), "Upper end of the 95 % interval of ideal_ns.", "ns"),
    Column("beta", pa.float64(),
           "Sensitivity of its time to the core clock, -d ln t / d ln f, at beta_ref_mhz."),
    Column("beta_error", pa.float64(), "Standard deviation of the error of beta."),
    Column("beta_ref_mhz", pa.float64(), "Mean core clock of its repeats.", "MHz"),
    Column("beta_source", NAME, "Source with the most weight in beta."),
    Column("ideal_source", NAME, "Source with the most weight in ideal_ns."),
)  # fmt: skip

EDGES = (
    Column("src", pa.int32(), "Row of `nodes`: what comes first."),
    Column("dst", pa.int32(), "Row of `nodes`: what depends on it."),
    Column("kind", pa.uint8(), "Kind, a number of schemas.kinds.EdgeKind."),
)

LANES = (
    Column("rank", pa.int32(), "Global rank of the process."),
    Column("device", pa.int32(), "Device as the source numbers it; -1 on the host."),
    Column("kind", pa.uint8(), "Kind, a number of schemas.kinds.LaneKind."),
    Column("number", pa.int64(), "Thread id, stream id or handle, queue id."),
    Column("name", pa.string(), "Human-readable name."),
)

SERIES = (
    Column("rank", pa.int32(), "Global rank it belongs to; -1 if it is the node's."),
    Column("device", pa.int32(), "Device as the source numbers it; -1 on the host."),
    Column("name", pa.string(), "Quantity that is measured."),
    Column("unit", pa.string(), "Unit of its samples."),
    Column("source", pa.string(), "Tool that measured it; groups the lanes of a picture."),
    Column("uncertainty_ns", pa.int64(), "A sample's time is known to plus or minus this.", "ns"),
)

SAMPLES = (
    Column("series", pa.int32(), "Row of `series`."),
    Column("ts", pa.int64(), "Time, since the trace's origin.", "ns"),
    Column("value", pa.float64(), "Value, in the series' unit."),
)

COUNTERS = (
    Column("node", pa.int32(), "Row of `nodes`: the dispatch that was counted."),
    Column("name", NAME, "Hardware counter, as the tool names it."),
    Column("value", pa.float64(), "Sum over all instances."),
)

GROUPS = (
    Column("name", pa.string(), "Name of the process group as the framework gives it."),
    Column("description", pa.string(), "Its description (default_pg), or empty."),
    Column("backend", pa.string(), "Library that communicates, or empty."),
    Column("ranks", pa.list_(pa.int32()), "Global ranks of its members, in group order."),
)

REFERENCES = (
    ("nodes", "lane", "lanes", 0),
    ("nodes", "parent", "nodes", -1),
    ("edges", "src", "nodes", 0),
    ("edges", "dst", "nodes", 0),
    ("samples", "series", "series", 0),
    ("counters", "node", "nodes", 0),
)
"""Table, column, the table that it refers to, and the smallest value allowed."""

TABLES: dict[str, tuple[Column, ...]] = {
    "nodes": NODES, "edges": EDGES, "lanes": LANES, "series": SERIES, "samples": SAMPLES,
    "counters": COUNTERS, "groups": GROUPS,
}  # fmt: skip

ANNOTATION_TYPES = {column.name: column.type for column in ANNOTATIONS}


@cache
def schema(table: str) -> pa.Schema:
    """Arrow schema of the core columns of `table`."""
    return pa.schema([pa.field(c.name, c.type, nullable=False) for c in TABLES[table]])
