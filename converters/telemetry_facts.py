"""Values as facts of GPUs: amounts, words, addresses, levels of clocks.

A fact on which all GPUs agree stands under its name alone; else each GPU's under
``<name>[<index>]``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from chopper_interop.converters.telemetry_cells import Item, of_json, of_text
from chopper_interop.converters.telemetry_names import Kind, Lane
from chopper_interop.converters.telemetry_units import ABSENT
from chopper_interop.converters.telemetry_values import number

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_CLOCKS = {"gfx": "max_engine_clk_mhz", "memory": "max_memory_clk_mhz"}
"""Clock → the fact that is its highest level."""
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-9a-f])")
_NONE = ("", "none", "null")


def joined(of_gpu: dict[str, dict[int, str]]) -> dict[str, str]:
    """Facts by name and GPU as one dictionary."""
    facts: dict[str, str] = {}
    for name, values in of_gpu.items():
        if len(set(values.values())) == 1:
            facts[name] = next(iter(values.values()))
        else:
            facts |= {f"{name}[{gpu}]": value for gpu, value in sorted(values.items())}
    return facts


def levels_as_facts(clock: str, levels: list[float]) -> Iterable[tuple[str, str]]:
    """Facts of a clock's levels in MHz: all of them, and the highest."""
    yield f"{clock}_clock_levels_mhz", " ".join(shown(level) for level in levels)
    if clock in MAX_CLOCKS:
        yield MAX_CLOCKS[clock], shown(max(levels))


def amount(value: Any, unit: str | None, bare: str = "") -> float | None:
    """A number in a unit; None if it is none."""
    cell = of_text(value) if isinstance(value, str) else of_json(value)
    item = cell.items[0] if len(cell.items) == 1 else Item(None)
    found = number(item, Lane("", "", unit, Kind.STEADY, bare=bare))
    return found if isinstance(found, float) else None


def words(value: Any) -> str:
    """A value as text; empty if it says that there is none."""
    text = "" if isinstance(value, dict | list) else str(value).strip()
    absent = ABSENT.fullmatch(text) or text.lower() in _NONE
    return "" if absent else text


def shown(value: float) -> str:
    """A number without decimals that say nothing."""
    return str(int(value)) if value == int(value) else str(value)


def pci_of(text: str) -> str:
    """A PCI address as ``0000:c1:00.0``; empty if it is none."""
    found = _PCI.fullmatch(text.strip().lower())
    if found is None:
        return ""
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function}"
