"""Counters in amd-smi's descriptions: traffic of xGMI, memory and time of processes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chopper_interop.converters.sampling.cells import ColumnBuilder, Rows, cell_of, rows_from_keys
from chopper_interop.converters.sampling.facts import amount
from chopper_interop.converters.sampling.lane_names import LaneTable, SeriesRule

if TYPE_CHECKING:
    from chopper_interop.converters.amd_smi.descriptions_text import Entry

LANES = LaneTable(
    SeriesRule(r"xgmi_read_(?P<what>\d+)", "XGMI read GPU {what}", "B", bare="KB"),
    SeriesRule(r"xgmi_write_(?P<what>\d+)", "XGMI written GPU {what}", "B", bare="KB"),
    SeriesRule(r"process_(?P<what>\d+)_vram_mem", "process {what} VRAM", "B"),
    SeriesRule(r"process_(?P<what>\d+)_gtt_mem", "process {what} GTT", "B"),
    SeriesRule(r"process_(?P<what>\d+)_cpu_mem", "process {what} host memory", "B"),
    SeriesRule(r"process_(?P<what>\d+)_mem_usage", "process {what} memory", "B"),
    SeriesRule(r"process_(?P<what>\d+)_gfx", "process {what} GFX time", "ns"),
    SeriesRule(r"process_(?P<what>\d+)_enc", "process {what} encoder time", "ns"),
    SeriesRule(r"process_(?P<what>\d+)_cu_occupancy", "process {what} CU occupancy", None),
    SeriesRule(r"process_(?P<what>\d+)_sdma_usage", "process {what} SDMA time", None),
    SeriesRule(r"process_(?P<what>\d+)_evicted_time", "process {what} evicted time", None),
)
"""Traffic is accumulated KB; lanes of a process hold its number."""
_LINK = re.compile(r"(?:link_metrics\.)?links\.(\d+)\.(gpu|read|write)")
_PROCESS = re.compile(
    r"(.*?)(pid|name|(?<!\w)\w+_mem|mem_usage|gfx|enc|cu_occupancy|sdma_usage|evicted_time)"
)
_MEMORY = re.compile(r"(?:memory_usage\.|usage\.)$")

Key = tuple[int, int]


def values_of(entry: Entry) -> dict[str, Any]:
    """Return the counters of an entry by keys of `LANES`, without those that are no number."""
    values = _links(entry.leaves) | _processes(entry.leaves)
    return {key: value for key, value in values.items() if amount(value, None) is not None}


def rows_of(entries: Sequence[tuple[Entry, dict[str, Any]]]) -> tuple[Rows, int]:
    """Make rows of entries with counters, and count the entries that joined the row before.

    Entries of one GPU and one time with different counters form one row: processes come one by
    one.
    """
    columns: dict[str, ColumnBuilder] = {}
    keys: list[Key] = []
    used: set[str] = set()
    for entry, values in entries:
        if not keys or keys[-1] != (entry.stamp, entry.gpu) or used & set(values):
            keys.append((entry.stamp, entry.gpu))
            used = set()
        used |= set(values)
        for key, value in values.items():
            columns.setdefault(key, ColumnBuilder(key)).add(len(keys) - 1, cell_of(value))
    row_keys = [(stamp, gpu, -1) for stamp, gpu in keys]
    rows = rows_from_keys(row_keys, [c.finish() for c in columns.values()], len(entries))
    return rows, len(entries) - len(keys)


def _links(leaves: dict[str, Any]) -> dict[str, Any]:
    links: dict[str, dict[str, Any]] = {}
    for path, value in leaves.items():
        match = _LINK.fullmatch(path)
        if match:
            links.setdefault(match[1], {})[match[2]] = value
    return {
        f"xgmi_{way}_{link['gpu']}": link[way]
        for link in links.values()
        for way in ("read", "write")
        if way in link and str(link.get("gpu", "")).isdigit()
    }


def _processes(leaves: dict[str, Any]) -> dict[str, Any]:
    """Return the values of each process by its number.

    Values whose paths begin alike belong to one process.
    """
    by_path: dict[str, dict[str, Any]] = {}
    for path, value in leaves.items():
        match = _PROCESS.fullmatch(path)
        if match:
            by_path.setdefault(_MEMORY.sub("", match[1]), {})[match[2]] = value
    return {
        f"process_{values['pid']}_{name}": value
        for values in by_path.values()
        if str(values.get("pid", "")).isdigit()
        for name, value in values.items()
        if name not in ("pid", "name")
    }
