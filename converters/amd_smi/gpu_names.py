"""Names and facts of GPUs from amd-smi's descriptions.

A fact on which all GPUs agree is stored under its name alone; else each GPU's under
``<name>[<index>]``. Facts are the inputs of a model of ideal time: limits of power, levels of clocks,
compute units, memory, architecture, versions, partitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from chopper_interop.converters.amd_smi.descriptions_text import NO_GPU, Entry
from chopper_interop.converters.amd_smi.layout import LARGEST
from chopper_interop.converters.sampling import facts
from chopper_interop.converters.sampling.text import whole_number

if TYPE_CHECKING:
    from chopper_interop.schemas.meta import Device

NAMES = {
    "name": r"(?:asic\.)?market_name|(?:board\.)?product_name",
    "pci": r"(?:bus\.)?(?:gpu_)?bdf",
    "uuid": r"(?:gpu_)?uuid",
    "agent": r"(?:kfd\.)?node_id",
    "ordinal": r"(?:enumeration\.)?hip_id",
}
"""Field of `Device` → paths that hold it."""


class Fact(NamedTuple):
    """A fact: its name, the paths that hold it, its unit (None for words), and that of bare numbers."""

    name: str
    path: str
    unit: str | None = None
    bare: str = ""


FACTS = (
    Fact("max_power_w", r"(?:limit\.)?(?:ppt0[._])?max_power(?:_limit)?", "W"),
    Fact("power_cap_w", r"(?:limit\.)?(?:ppt0[._])?(?:socket_power(?:_limit)?|power_cap)", "W"),
    Fact("cu_count", r"(?:asic\.)?num_compute_units", ""),
    Fact("gfx", r"(?:asic\.)?target_graphics_version"),
    Fact("vram_bytes", r"vram\.(?:vram_)?size(?:_mb)?|vram_size(?:_mb)?|size", "B", "MB"),
    Fact("vram_type", r"vram\.(?:vram_)?type|vram_type"),
    Fact("vram_bandwidth_gb_per_s", r"vram\.max_bandwidth", "GB/s"),
    Fact("driver_version", r"driver\.(?:driver_)?version|driver_version"),
    Fact("amd_smi_version", r"tool\.version"),
    Fact("rocm_version", r"rocm_version"),
    Fact(
        "compute_partition",
        r"(?:partition\.)?(?:compute|accelerator)_partition|current_compute_partition"
        r"|accelerator_type",
    ),
    Fact(
        "memory_partition",
        r"(?:partition\.)?(?:current_)?memory(?:_partition)?"
        r"|memory_partition\.current",
    ),
    Fact("xgmi_bit_rate_gbit_per_s", r"link_metrics\.bit_rate", "Gb/s"),
    Fact("xgmi_max_bandwidth_gbit_per_s", r"link_metrics\.max_bandwidth", "Gb/s"),
)
_PROFILES = ("partition_profiles", "accelerator_partition_profiles", "partition_resources")
"""Lists of possible settings, which are not the present ones."""

_LEVEL = re.compile(r"(?:clock\.)?(\w+?)[._]frequency_levels\.level[ _]?(\d+)")
CLOCKS = {"sys": "gfx", "mem": "memory", "df": "fabric", "soc": "soc"}
"""Clocks whose levels are facts: name in ``static`` → name of the fact."""


def devices_of(entries: Iterable[Entry], tool: str) -> tuple[Device, ...]:
    """Return each GPU once, by its index."""
    names_of_gpu: dict[int, dict[str, str]] = {}
    for entry in entries:
        if entry.gpu != NO_GPU:
            known = names_of_gpu.setdefault(entry.gpu, {})
            highest = dict(_facts(entry)).get(facts.MAX_CLOCKS["gfx"])
            known |= {} if highest is None else {"max_mhz": highest}
            for name, path in NAMES.items():
                for key, value in entry.leaves.items():
                    text = facts.text_or_empty(value)
                    if text and name not in known and re.fullmatch(path, key):
                        known[name] = text
    return facts.devices_by_names(names_of_gpu, tool)


def facts_of(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the facts of all GPUs."""
    gpu_facts = ((e.gpu, name, value) for e in entries for name, value in _facts(e))
    return facts.join_facts(gpu_facts)


def _facts(entry: Entry) -> Iterable[tuple[str, str]]:
    if entry.kind in _PROFILES:
        return
    levels: dict[str, dict[int, float]] = {}
    for path, value in entry.leaves.items():
        level = _LEVEL.fullmatch(path)
        if level and level[1] in CLOCKS:
            clock = facts.amount(value, "MHz")
            if clock is not None:
                levels.setdefault(CLOCKS[level[1]], {})[_whole(level[2])] = clock
        for fact in FACTS:
            text = _text_of(value, fact) if re.fullmatch(fact.path, path) else ""
            if text:
                yield fact.name, text
    for clock_name, by_level in levels.items():
        yield from facts.levels_as_facts(clock_name, [by_level[n] for n in sorted(by_level)])


def _text_of(value: Any, fact: Fact) -> str:
    if fact.unit is None:
        return facts.text_or_empty(value)
    number = facts.amount(value, fact.unit, fact.bare)
    # a limit, size or count of 0 means that it is unknown
    return facts.format_number(number) if number else ""


def _whole(text: str) -> int:
    return whole_number(text, LARGEST["gpu"])
