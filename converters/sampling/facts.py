"""Values as facts of GPUs: amounts, words, addresses, levels of clocks.

A fact on which all GPUs agree is stored under its name alone; else each GPU's under
``<name>[<index>]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from chopper_interop.converters.sampling.cells import Item, cell_of
from chopper_interop.converters.sampling.lane_names import Kind, SeriesRule
from chopper_interop.converters.sampling.text import LARGEST_INDEX, whole_number
from chopper_interop.converters.sampling.units import ABSENT
from chopper_interop.converters.sampling.values import number
from chopper_interop.schemas.meta import Device

MAX_CLOCKS = {"gfx": "max_engine_clk_mhz", "memory": "max_memory_clk_mhz"}
"""Clock → fact that holds its highest level."""
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-9a-f])")
_NONE = ("", "none", "null")


def join_facts(entries: Iterable[tuple[int, str, str]]) -> dict[str, str]:
    """Join facts of GPUs (index, name, value) into one dictionary; the first of each counts."""
    of_gpu: dict[str, dict[int, str]] = {}
    for gpu, name, value in entries:
        of_gpu.setdefault(name, {}).setdefault(gpu, value)
    facts: dict[str, str] = {}
    for name, values in of_gpu.items():
        if len(set(values.values())) == 1:
            facts[name] = next(iter(values.values()))
        else:
            facts |= {f"{name}[{gpu}]": value for gpu, value in sorted(values.items())}
    return facts


def devices_by_names(names_of_gpu: dict[int, dict[str, str]], tool: str) -> tuple[Device, ...]:
    """Return GPUs by their index in a tool, of texts by field of `Device`."""
    devices = []
    for gpu, known in sorted(names_of_gpu.items()):
        ordinal, agent, max_mhz = (
            whole_number(known.get(field, ""), LARGEST_INDEX)
            for field in ("ordinal", "agent", "max_mhz")
        )
        devices.append(
            Device(
                "",
                gpu,
                known.get("name", ""),
                tool,
                index=gpu,
                ordinal=ordinal,
                agent=agent,
                max_mhz=max_mhz,
                pci=pci_of(known.get("pci", "")),
                uuid=known.get("uuid", ""),
            )
        )
    return tuple(devices)


def levels_as_facts(clock: str, levels: list[float]) -> Iterable[tuple[str, str]]:
    """Return facts of a clock's levels in MHz: all of them, and the highest."""
    yield f"{clock}_clock_levels_mhz", " ".join(format_number(level) for level in levels)
    if clock in MAX_CLOCKS:
        yield MAX_CLOCKS[clock], format_number(max(levels))


def amount(value: Any, unit: str | None, bare: str = "") -> float | None:
    """Convert a value to a number in a unit; None if it is no number."""
    cell = cell_of(value)
    item = cell.items[0] if len(cell.items) == 1 else Item(None)
    result = number(item, SeriesRule("", "", unit, Kind.STEADY, bare=bare))
    return result if isinstance(result, float) else None


def text_or_empty(value: Any) -> str:
    """Return a value as text; empty if it means "not available"."""
    text = "" if isinstance(value, dict | list) else str(value).strip()
    absent = ABSENT.fullmatch(text) or text.lower() in _NONE
    return "" if absent else text


def format_number(value: float) -> str:
    """Format a number, without decimals if they are 0."""
    return str(int(value)) if value == int(value) else str(value)


def pci_of(text: str) -> str:
    """Normalise a PCI address to ``0000:c1:00.0``; empty if it is none."""
    match = _PCI.fullmatch(text.strip().lower())
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function}"
