"""Cells as numbers in the units of their lanes: what is absent, a word, or in a unit unknown."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters import telemetry_units as units
from chopper_interop.converters.telemetry_names import Kind, Lane, Name
from chopper_interop.issues import Fault

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.telemetry_cells import Column, Item
    from chopper_interop.issues import IssueLog


@dataclass(frozen=True)
class Reading:
    """Values of one lane of all GPUs.

    Parameters
    ----------
    key
        Column that they come from.
    name
        What it means.
    full
        Name of the lane, with instance and element.
    unit
        Its unit.
    value
        One a row, NaN where unknown.
    """

    key: str
    name: Name
    full: str
    unit: str
    value: Array


def readings(column: Column, name: Name, rows: int, issues: IssueLog) -> list[Reading]:
    """Lanes of a column: one, or one for each element of its lists; those without any are left out.

    Parameters
    ----------
    column
        The column.
    name
        What its key means.
    rows
        Rows of the table.
    issues
        Where cells that are no number of that lane are counted.
    """
    uses = np.bincount(column.code, minlength=len(column.distinct))
    listed = any(c.listed and len(c.items) > 0 for c in column.distinct)
    numbers: dict[tuple[int, str], list[tuple[int, float]]] = defaultdict(list)
    of_numbers = _is_of_numbers(column, name.lane)
    amiss: Counter[Fault] = Counter()
    examples: dict[Fault, str] = {}
    for code, cell in enumerate(column.distinct):
        for place, item in enumerate(cell.items):
            value = number(item, name.lane)
            if value is faults.TEXT and _is_garbled(item, of_numbers=of_numbers):
                value = faults.GARBLED
            if isinstance(value, Fault):
                amiss[value] += int(uses[code])
                examples.setdefault(value, f"{column.key}: {item.value} {item.unit}".strip())
            elif value is not None and uses[code]:
                unit = name.lane.unit if name.lane.unit is not None else _shown(item.unit)
                numbers[place, unit].append((code, value))
    for fault, count in amiss.items():
        issues.add(fault, count, examples[fault][:80])
    return [
        Reading(
            column.key, name, _full(name, place, listed=listed), unit, _dense(column, found, rows)
        )
        for (place, unit), found in sorted(numbers.items())
    ]


def number(item: Item, lane: Lane) -> float | Fault | None:
    """The number that an item stands for, in the lane's unit; None if it says that there is none.

    A word, a stand-in for "not available" or a unit of something else gives the fault of it.
    """
    value = _plain(item, lane)
    if value is None or isinstance(value, Fault):
        return value
    if value in sentinels(lane):
        return faults.SENTINEL
    if lane.unit is None:
        return value
    decimal = lane.decimal if isinstance(item.value, str) and "." in item.value else ""
    scale = units.factor(item.unit or decimal or lane.bare or lane.unit, lane.unit)
    if scale is None:
        return faults.UNIT
    return value * scale if math.isfinite(value * scale) else faults.GARBLED


def _is_of_numbers(column: Column, lane: Lane) -> bool:
    """Whether a column should hold nothing but numbers: its lane has a unit, or most cells do.

    Most, for a column of identifiers may hold some of digits alone.
    """
    if lane.kind is Kind.STATE:
        return False
    if lane.unit:
        return True
    found = [number(item, lane) for cell in column.distinct for item in cell.items]
    words = sum(value is faults.TEXT for value in found)
    return sum(isinstance(value, float) for value in found) > words


def _is_garbled(item: Item, *, of_numbers: bool) -> bool:
    """Whether a text that is no number was meant for one."""
    text = str(item.value).strip()
    if of_numbers:
        return not units.KNOWN_WORDS.fullmatch(text)
    return units.NUMBER_LIKE.fullmatch(text) is not None


def sentinels(lane: Lane) -> frozenset[float]:
    """Numbers that mean "not available" in a lane."""
    wide = lane.kind in units.COUNTING or lane.unit in ("J", "B")
    return units.WIDE_SENTINELS if wide else units.SENTINELS


def _plain(item: Item, lane: Lane) -> float | Fault | None:
    value = item.value
    if value is None:
        return None
    if isinstance(value, str):
        text = value.strip()
        if units.ABSENT.fullmatch(text):
            return None
        if lane.kind is Kind.STATE and text.upper() in units.STATES:
            return units.STATES[text.upper()]
        value = "nan" if units.NAN.fullmatch(text) else text
    try:
        found = float(value)
    except ValueError:
        return faults.TEXT
    if math.isfinite(found):
        return found
    return faults.SENTINEL if math.isnan(found) else faults.GARBLED


def _shown(unit: str) -> str:
    """A unit that is taken as it stands, but for the ways to write a degree."""
    return "°C" if unit == "C" else unit


def _full(name: Name, place: int, *, listed: bool) -> str:
    if not listed:
        return name.full
    return " ".join(part for part in (name.full, name.lane.each, str(place)) if part)


def _dense(column: Column, found: list[tuple[int, float]], rows: int) -> Array:
    of_code = np.full(len(column.distinct), np.nan)
    codes, values = zip(*found, strict=True)
    of_code[list(codes)] = values
    dense = np.full(rows, np.nan)
    dense[column.row] = of_code[column.code]
    return dense
