"""Cells of NVIDIA's tools as items: numbers in units that the lanes know, or the word for none."""

from __future__ import annotations

import re

from chopper_interop.converters import telemetry_nvml as nvml
from chopper_interop.converters.telemetry_cells import Item

_ABSENT = frozenset({"", "-", "n/a", "[n/a]", "not supported", "[not supported]", "not available"})
_NUMBER = re.compile(r"([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([^\d\s.,:;/][^\s,:;]*)?", re.ASCII)
_HEX = re.compile(r"0[xX]([0-9a-fA-F]{1,16})")
_LETTER = re.compile(r"(?:[xXP](\d+)|(\d+)x)", re.ASCII)
"""Performance state ``P8``, width ``x16`` or ``16x``."""


def is_error(text: str) -> bool:
    """Whether a cell holds an error in place of a value: ``[GPU is lost]``."""
    text = text.strip()
    return text.startswith("[") and text.endswith("]") and text.lower() not in _ABSENT


def item_of(text: str, unit: str = "") -> Item:
    """What a cell says, in a unit that the tables know.

    Parameters
    ----------
    text
        The cell.
    unit
        Unit of its column, for a cell without one.
    """
    text = text.strip()
    if text.lower() in _ABSENT or is_error(text):
        return Item("N/A")
    if found := _HEX.fullmatch(text):
        return Item(int(found[1], 16))
    if found := _LETTER.fullmatch(text):
        return Item(found[1] or found[2])
    found = _NUMBER.fullmatch(text)
    if not found:
        return Item(text)
    number, own = found[1], found[2] or unit
    if own in nvml.UNITS:
        own, factor = nvml.UNITS[own]
        return Item(float(number) * factor, own)
    return Item(number, own)
