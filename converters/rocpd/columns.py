"""Columns that are read of rocpd's large tables; those that a version lacks are unknown.

Format: rocprofiler-sdk's ``share/rocprofiler-sdk-rocpd/rocpd_tables.sql``, schemas 3 to 3.0.5.
"""

from __future__ import annotations

from chopper_interop.converters.rocm.database_parts import whole_numbers
from chopper_interop.io.sqlite import REAL, TEXT

WHO = ("pid", "tid", "start", "end", "event_id")
"""Columns that every table with times has."""
GRAPH = ("graph_exec_id", "graph_node_id")
"""Columns that schema 3.0.2 brought; 0 stands for none."""

_AXES = tuple(f"{shape}_size_{axis}" for shape in ("grid", "workgroup") for axis in "xyz")

TAKEN: dict[str, tuple[str, ...]] = {
    "kernel_dispatch": (
        *("kernel_id", "dispatch_id", "queue_id", "stream_id", *_AXES),
        *("private_segment_size", "group_segment_size", *GRAPH),
    ),
    "memory_copy": ("size", "queue_id", "stream_id", *GRAPH),
    "memory_allocate": ("size", "queue_id", "stream_id"),
    "graph_launch": ("queue_id", "graph_exec_id", "kernel_dispatch_count"),
}
"""Table → columns of whole numbers that are taken over as they are."""

_JOINED: dict[str, tuple[str, ...]] = {
    "kernel_dispatch": ("id", *WHO, "agent_id", "region_name_id"),
    "memory_copy": ("id", *WHO, "name_id", "dst_agent_id", "src_agent_id"),
    "memory_allocate": ("id", *WHO, "agent_id", "address"),
    "graph_launch": ("id", *WHO, "agent_id"),
    "region": ("id", *WHO, "name_id"),
    "sample": ("id", "track_id", "timestamp", "event_id"),
    "event": ("id", "stack_id", "category_id"),
    "pmc_event": ("event_id", "pmc_id", "sample_id"),
}
_TEXTS = {"memory_allocate": ("type", "level", "extdata")}
_REALS = {"pmc_event": ("value",)}

READ: dict[str, dict[str, str]] = {
    table: whole_numbers((*joined, *TAKEN.get(table, ())))
    | dict.fromkeys(_TEXTS.get(table, ()), TEXT)
    | dict.fromkeys(_REALS.get(table, ()), REAL)
    for table, joined in _JOINED.items()
}
"""Table → all columns that are read of it, and their types."""
