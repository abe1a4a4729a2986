"""Values of NVML, which all of NVIDIA's tools print: cells, units, masks, the preferred lanes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from chopper_interop.converters.nvidia_smi.nvml_lanes import ACTIVE, REASONS
from chopper_interop.converters.sampling.cells import Cell, CellColumn, Item, Slot
from chopper_interop.converters.sampling.lane_names import (
    STATUS,
    Kind,
    Name,
    SeriesRule,
    name_by_key,
)
from chopper_interop.converters.sampling.values import extremes

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.rows import NameColumns

LARGEST = {"W": 4e3, "MHz": 1e5, "°C": 200.0, "%": 1e4}
"""Unit of a lane → the largest value of a GPU, beyond which values are in another unit, as NVML itself has milliwatts
and bytes. Chosen: ten times today's and more; of power what the largest package that is announced may draw (3.6 kW), as
a small one draws 5,000 mW."""
UNIT_IN_KEY = re.compile(r".*_mi?b|.*_(?:mw|milliwatts?)|dmon_.*")
"""Columns whose name says the unit of memory or power, or whose unit never changes."""

UNITS: dict[str, tuple[str, float]] = {
    "B/s": ("Mb/s", 8e-6), "KB/s": ("Mb/s", 8e-3), "MB/s": ("Mb/s", 8.0), "GB/s": ("Mb/s", 8e3),
    "MiB/s": ("Mb/s", 8.388608),
    "ratio": ("%", 100.0), "bool": ("", 1.0), "errs": ("", 1.0),
}  # fmt: skip
"""Units in addition to those of `sampling.units` → the lane's unit and the factor. NVML does not
say whether its kilobytes are of 1000 or 1024 bytes; 1000 is used."""

_ABSENT = frozenset({"", "-", "n/a", "[n/a]", "not supported", "[not supported]", "not available"})
_NUMBER = re.compile(r"([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([^\d\s.,:;/][^\s,:;]*)?", re.ASCII)
_HEX = re.compile(r"0[xX]([0-9a-fA-F]{1,16})")
_LETTER = re.compile(r"(?:[xXP](\d+)|(\d+)x)", re.ASCII)
"""Performance state ``P8``, width ``x16`` or ``16x``."""


def is_error(text: str) -> bool:
    """True if a cell holds an error in place of a value: ``[GPU is lost]``."""
    text = text.strip()
    return text.startswith("[") and text.endswith("]") and text.lower() not in _ABSENT


def item_of(text: str, unit: str = "") -> Item:
    """Parse a cell into a value and its unit.

    Parameters
    ----------
    text
        The cell.
    unit
        Unit of its column, for a cell without one.
    """
    if is_error(text):
        return Item("N/A", error=text)
    text = text.strip()
    if text.lower() in _ABSENT:
        return Item("N/A")
    if match := _HEX.fullmatch(text):
        return Item(int(match[1], 16))
    if match := _LETTER.fullmatch(text):
        return Item(match[1] or match[2])
    match = _NUMBER.fullmatch(text)
    return Item(match[1], match[2] or unit) if match else Item(text)


def in_lane_unit(item: Item) -> Item:
    """Return an item in a unit that the tables of lanes know."""
    if item.unit not in UNITS or item.value is None:
        return item
    unit, factor = UNITS[item.unit]
    if isinstance(item.value, Slot):
        return Item(item.value._replace(factor=factor), unit)
    return Item(float(item.value) * factor, unit)


def named_by(meaning: Callable[[str], Name | None]) -> NameColumns:
    """Return a function that names columns; masks of throttle reasons also give a column per bit.

    Columns that a tool's table does not know keep their key.
    """

    def named(columns: Sequence[CellColumn]) -> Iterator[tuple[CellColumn, Name]]:
        names = [meaning(column.key) for column in columns]
        has_bits = any(name and name.full.startswith(STATUS) for name in names)
        for column, name in zip(columns, names, strict=True):
            known = name is not None and _is_in_unit(column, name)
            yield column, name if name and known else name_by_key(column.key)
            if name and name.full == ACTIVE and not has_bits:
                yield from _columns_of_bits(column.without_slots())

    return named


def _is_in_unit(column: CellColumn, name: Name) -> bool:
    """True if values without a written unit can be in that of the lane.

    Scripts name their columns like nvidia-smi and fill them with NVML's milliwatts and bytes;
    such a column keeps its own name. nvidia-smi itself writes the unit of memory.
    """
    items = [cell.items[0] for cell in column.distinct]
    if any(item.unit for item in items):
        return True
    if name.lane.bare and not UNIT_IN_KEY.fullmatch(column.key):
        return False
    largest = LARGEST.get(name.lane.unit or "", float("inf"))
    return all(abs(value) <= largest for value in extremes(column, name.lane))


def _columns_of_bits(mask: CellColumn) -> Iterator[tuple[CellColumn, Name]]:
    """Return one column for each bit that is set anywhere in a mask."""
    values = [_mask_of(cell.items[0]) for cell in mask.distinct]
    for bit, (_, reason) in REASONS.items():
        if any(v is not None and v & bit for v in values):
            cells = [Cell((Item("N/A" if v is None else int(bool(v & bit))),)) for v in values]
            full = STATUS + reason
            name = Name(SeriesRule("", full, "", Kind.STATE), full, full)
            yield replace(mask, key=f"{mask.key}: {full}", distinct=cells), name


def _mask_of(item: Item) -> int | None:
    """Parse a mask, hexadecimal or not; None if a cell holds none."""
    if isinstance(item.value, str) and item.value.isdecimal() and item.value.isascii():
        return int(item.value[:20])
    return item.value if isinstance(item.value, int) else None
