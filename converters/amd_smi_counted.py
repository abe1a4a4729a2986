"""What amd-smi's descriptions count until they are printed: xGMI's traffic, memory of processes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters.telemetry_cells import ColumnBuilder, Rows, of_json, of_text
from chopper_interop.converters.telemetry_facts import amount
from chopper_interop.converters.telemetry_names import Lane

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from chopper_interop.converters.amd_smi_describe_text import Entry

LANES = (
    Lane(r"xgmi_read_(?P<what>\d+)", "XGMI read GPU {what}", "B", bare="KB"),
    Lane(r"xgmi_write_(?P<what>\d+)", "XGMI written GPU {what}", "B", bare="KB"),
    Lane(r"process_(?P<what>\d+)_vram_mem", "process {what} VRAM", "B"),
    Lane(r"process_(?P<what>\d+)_gtt_mem", "process {what} GTT", "B"),
    Lane(r"process_(?P<what>\d+)_cpu_mem", "process {what} host memory", "B"),
    Lane(r"process_(?P<what>\d+)_mem_usage", "process {what} memory", "B"),
    Lane(r"process_(?P<what>\d+)_gfx", "process {what} GFX time", "ns"),
    Lane(r"process_(?P<what>\d+)_enc", "process {what} encoder time", "ns"),
    Lane(r"process_(?P<what>\d+)_cu_occupancy", "process {what} CU occupancy", None),
    Lane(r"process_(?P<what>\d+)_sdma_usage", "process {what} SDMA time", None),
    Lane(r"process_(?P<what>\d+)_evicted_time", "process {what} evicted time", None),
)
"""Traffic is accumulated KB; lanes of a process hold its number."""
_LINK = re.compile(r"(?:link_metrics\.)?links\.(\d+)\.(gpu|read|write)")
_PROCESS = re.compile(
    r"(.*?)(pid|name|\w+_mem|mem_usage|gfx|enc|cu_occupancy|sdma_usage|evicted_time)"
)
_MEMORY = re.compile(r"(?:memory_usage\.|usage\.)$")

Key = tuple[int, int]


def values_of(entry: Entry) -> dict[str, Any]:
    """What an entry counts, by keys of `LANES`; what is no number is left out."""
    found = _links(entry.leaves) | _processes(entry.leaves)
    return {key: value for key, value in found.items() if amount(value, None) is not None}


def rows_of(counting: Sequence[tuple[Entry, dict[str, Any]]]) -> tuple[Rows, int]:
    """Rows of entries that count, and how many entries were put to the row before them.

    Entries of one GPU and one time that count different things are one row: processes come one
    by one.
    """
    columns: dict[str, ColumnBuilder] = {}
    own: list[Key] = []
    there: set[str] = set()
    for entry, values in counting:
        if not own or own[-1] != (entry.stamp, entry.gpu) or there & set(values):
            own.append((entry.stamp, entry.gpu))
            there = set()
        there |= set(values)
        for key, value in values.items():
            cell = of_text(value) if isinstance(value, str) else of_json(value)
            columns.setdefault(key, ColumnBuilder(key)).add(len(own) - 1, cell)
    table = np.array(own, np.int64).reshape(-1, 2)
    none = np.full(len(own), -1, np.int64)
    made = [column.finish() for column in columns.values()]
    rows = Rows(table[:, 0], table[:, 1], none, made, len(counting))
    return rows, len(counting) - len(own)


def _links(leaves: dict[str, Any]) -> dict[str, Any]:
    links: dict[str, dict[str, Any]] = {}
    for path, value in leaves.items():
        found = _LINK.fullmatch(path)
        if found:
            links.setdefault(found[1], {})[found[2]] = value
    return {
        f"xgmi_{way}_{link['gpu']}": link[way]
        for link in links.values()
        for way in ("read", "write")
        if way in link and str(link.get("gpu", "")).isdigit()
    }


def _processes(leaves: dict[str, Any]) -> dict[str, Any]:
    """Values of each process by its number; what stands around them tells one from the other."""
    about: dict[str, dict[str, Any]] = {}
    for path, value in leaves.items():
        found = _PROCESS.fullmatch(path)
        if found:
            about.setdefault(_MEMORY.sub("", found[1]), {})[found[2]] = value
    return {
        f"process_{values['pid']}_{name}": value
        for values in about.values()
        if str(values.get("pid", "")).isdigit()
        for name, value in values.items()
        if name not in ("pid", "name")
    }
