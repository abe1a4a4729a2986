"""Layout of amd-smi's output: headers, keys and addresses by which it is recognised and read.

This module must stay free of heavy imports: converters use it to recognise files.
"""

from __future__ import annotations

import re

from chopper_interop.converters.sampling.text import LARGEST_INDEX, csv_cells
from chopper_interop.converters.sampling.timestamps import LATEST_S

ROW_KEYS = ("timestamp", "gpu", "xcp")
"""Columns that say which row it is: seconds since 1970, GPU, partition."""
LARGEST = dict(zip(ROW_KEYS, (LATEST_S, LARGEST_INDEX, LARGEST_INDEX), strict=True))
"""The largest numbers of `ROW_KEYS`."""

CSV_HEADER = re.compile(r"^(?:(?:[Tt]imestamp,)?gpu(?:,|\s*$)|error,code\s*$)", re.MULTILINE)
"""Start of a header of CSV; scripts around amd-smi write ``Timestamp`` in front of it."""
JSON_BEGIN = re.compile(r"^[^\S\n]*[\[{]", re.MULTILINE)
"""Start of a document of JSON."""
JSON_NEXT = re.compile(r"\n(?=[\[{])")
"""End of the line before the next document of JSON."""
GPU_DATA = "gpu_data"
"""Key around the rows of GPUs in 7.x."""
PROCESS_LIST = "process_list"
"""Key of the values of processes in ``monitor -q`` and ``process``."""
OTHER_PARTS = ("cpu_data", "core_data", "nic_data", "switch_data")
DOCUMENT_PARTS = (GPU_DATA, *OTHER_PARTS)
"""Keys around the lists of a document in 7.x."""
PCI_ADDRESS = r"[0-9a-fA-F]{4,}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]"

_METRIC = {"edge", "hotspot"}
_MONITOR = {
    "power_usage", "hotspot_temperature", "memory_temperature", "gfx", "gfx_clk", "gfx_clock",
    "mem_clock", "encoder", "decoder", "vram_used", "pviol", "pcie_bw", "single_bit_ecc",
}  # fmt: skip


def names_of(header: str) -> tuple[str, ...]:
    """Names of the columns of a header of CSV."""
    first, *others = (name.strip() for name in csv_cells(header))
    return (first.lower(), *others)


def keys_of(names: tuple[str, ...]) -> list[str]:
    """Return the keys of the columns below a header; ambiguous names depend on the other names.

    `mem` is a temperature in ``metric`` and a utilisation in ``monitor``. In a full ``metric``
    the fan's `speed` overwrote that of PCIe, although it has PCIe's position.
    """
    names_set = set(names)
    keys: dict[str, str] = {}
    if names_set & _METRIC:
        keys["mem"] = "temperature.mem"
    elif names_set & _MONITOR:
        keys["mem"] = "monitor.mem"
    if "gfx_usage" in names_set:
        keys["mem_usage"] = "usage.mem_usage"
    if "rpm" in names_set:
        keys |= {name: f"fan.{name}" for name in ("speed", "max", "usage")}
    elif "width" in names_set:
        keys["speed"] = "pcie.speed"
    return [keys.get(name, name) for name in names]
