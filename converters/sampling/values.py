"""Cells as numbers in the units of their lanes; absent values, words and unknown units."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.sampling import faults, units
from chopper_interop.converters.sampling.cells import DECIMAL_FORM, CellColumn, Item, Slot
from chopper_interop.converters.sampling.lane_names import Kind, Name, SeriesRule
from chopper_interop.issues import Fault, IssueLog


@dataclass(frozen=True)
class LaneValues:
    """Values of one lane of all GPUs.

    Parameters
    ----------
    key
        Column that they come from.
    name
        Lane of the column.
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


def readings(column: CellColumn, name: Name, rows: int, issues: IssueLog) -> list[LaneValues]:
    """Return the readings of a column: one, or one for each element of its lists.

    Lanes without any value are left out.

    Parameters
    ----------
    column
        The column.
    name
        Lane of its key.
    rows
        Rows of the table.
    issues
        Where cells are counted that hold no number of that lane.
    """
    of_slots = _values_of_slots(column, name.lane)
    if of_slots is None:
        column, of_slots = column.without_slots(), {}
    uses = column.uses()
    listed = any(c.listed and len(c.items) > 0 for c in column.distinct)
    numbers: dict[tuple[int, str], list[tuple[int, float | Array]]] = defaultdict(list)
    of_numbers = not of_slots and _is_numeric(column, name.lane)
    fault_counts: Counter[Fault] = Counter()
    examples: dict[Fault, str] = {}
    for code, cell in enumerate(column.distinct):
        for index, item in enumerate(cell.items):
            of_slot = of_slots.get((code, index))
            value = number(item, name.lane) if of_slot is None else of_slot
            if value is faults.TEXT and _is_garbled(item, of_numbers=of_numbers):
                value = faults.GARBLED
            if isinstance(value, Fault):
                fault_counts[value] += int(uses[code])
                # words may name hosts, users and processes
                quoted = "" if value is faults.TEXT else f": {item.value} {item.unit}".rstrip()
                examples.setdefault(value, f"{column.key}{quoted}")
            elif value is not None and uses[code]:
                unit = name.lane.unit if name.lane.unit is not None else _shown(item.unit)
                numbers[index, unit].append((code, value))
    for fault, count in fault_counts.items():
        issues.add(fault, count, examples[fault][:80])
    return [
        LaneValues(
            column.key, name, _full(name, index, listed=listed), unit, _dense(column, values, rows)
        )
        for (index, unit), values in sorted(numbers.items())
    ]


def _values_of_slots(column: CellColumn, lane: SeriesRule) -> dict[tuple[int, int], Array] | None:
    """Numbers of slots in the lane's unit, by code of the cell and index of the item.

    None if their unit is none of the lane, one means "not available" or words stand among them: then
    each number must be looked at as a cell of its own.
    """
    values: dict[tuple[int, int], Array] = {}
    for code, cell in enumerate(column.distinct if column.numbers is not None else ()):
        for index, item in enumerate(cell.items):
            slot = item.value
            if isinstance(slot, Slot):
                scaled = _scaled(column, code, slot, item.unit, lane)
                if scaled is None:
                    return None
                values[code, index] = scaled
            elif number(item, lane) is faults.TEXT:
                return None
    return values


def extremes(column: CellColumn, lane: SeriesRule) -> list[float]:
    """Numbers of a column in the lane's unit that may be the largest: of slots the largest alone."""
    column = column.whole[0] if column.whole else column
    of_slots = _values_of_slots(column, lane)
    if of_slots is None:
        column, of_slots = column.without_slots(), {}
    items = [item for cell in column.distinct for item in cell.items]
    values = [number(item, lane) for item in items]
    largest = [float(value.max()) for value in of_slots.values() if value.size]
    return [*(value for value in values if isinstance(value, float)), *largest]


def _scaled(column: CellColumn, code: int, slot: Slot, unit: str, lane: SeriesRule) -> Array | None:
    """Numbers of one slot in the lane's unit, rows of `code`; None as `_values_of_slots`."""
    if column.numbers is None:
        return None
    value, form = column.numbers_of(slot.number, column.rows_of(code))
    absent = sentinels(lane)
    if slot.factor != 1.0:
        value = value * slot.factor
    # the others are no slots where they are written, so that these are looked for in limits alone
    if (slot.factor != 1.0 or 0.0 in absent) and np.isin(value, list(absent)).any():
        return None
    is_text = slot.is_written and slot.factor == 1.0
    ones = ("1", "1.0") if is_text else (1.0, 1.0)
    whole, decimal = (number(Item(one, unit), lane) for one in ones)
    if not isinstance(whole, float) or not isinstance(decimal, float):
        return None
    if whole != decimal:
        return value * np.where(form >= DECIMAL_FORM, decimal, whole)
    return value if whole == 1.0 else value * whole


def number(item: Item, lane: SeriesRule) -> float | Fault | None:
    """Convert an item to a number in the lane's unit; None if it is absent.

    A word, a number that means "not available" or a unit of another quantity gives its fault.
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


def _is_numeric(column: CellColumn, lane: SeriesRule) -> bool:
    """True if a column should hold numbers only: its lane has a unit, or most of its cells do.

    A column of identifiers may hold some of digits alone, so one number is not enough.
    """
    if lane.kind is Kind.STATE:
        return False
    if lane.unit:
        return True
    values = [number(item, lane) for cell in column.distinct for item in cell.items]
    words = sum(value is faults.TEXT for value in values)
    return sum(isinstance(value, float) for value in values) > words


def _is_garbled(item: Item, *, of_numbers: bool) -> bool:
    """True if a text that is no number should have been one."""
    text = str(item.value).strip()
    if of_numbers:
        return not units.KNOWN_WORDS.fullmatch(text)
    return units.NUMBER_LIKE.fullmatch(text) is not None


def sentinels(lane: SeriesRule) -> frozenset[float]:
    """Return the numbers that mean "not available" in a lane.

    A limit of 0 W is none: rocm-smi writes it for the second die of a GPU, which has none of its own.
    """
    wide = lane.kind in units.COUNTING or lane.unit in ("J", "B")
    absent = units.WIDE_SENTINELS if wide else units.SENTINELS
    return absent | {0.0} if lane.name.startswith("power limit") else absent


def _plain(item: Item, lane: SeriesRule) -> float | Fault | None:
    value = item.value
    if value is None or isinstance(value, Slot):
        return None
    if isinstance(value, str):
        text = value.strip()
        if units.ABSENT.fullmatch(text):
            return None
        if lane.kind is Kind.STATE and text.upper() in units.STATES:
            return units.STATES[text.upper()]
        value = "nan" if units.NAN.fullmatch(text) else text
    try:
        result = float(value)
    except ValueError:
        return faults.TEXT
    if math.isfinite(result):
        return result
    return faults.SENTINEL if math.isnan(result) else faults.GARBLED


def _shown(unit: str) -> str:
    """Return a unit as it is written, except that a degree gets its sign."""
    return "°C" if unit == "C" else unit


def _full(name: Name, index: int, *, listed: bool) -> str:
    if not listed:
        return name.full
    return " ".join(part for part in (name.full, name.lane.each, str(index)) if part)


def _dense(column: CellColumn, numbers: list[tuple[int, float | Array]], rows: int) -> Array:
    """Return one value a row, NaN where there is none, from numbers by code."""
    if (
        len(column.distinct) == 1
        and len(column.row) == rows
        and isinstance(numbers[0][1], np.ndarray)
    ):
        return numbers[0][1]
    of_code = np.full(len(column.distinct), np.nan)
    for code, value in numbers:
        if not isinstance(value, np.ndarray):
            of_code[code] = value
    of_row = of_code[column.code]
    for code, value in numbers:
        if isinstance(value, np.ndarray):
            of_row[column.rows_of(code)] = value
    if len(of_row) == rows:
        return of_row
    dense = np.full(rows, np.nan)
    dense[column.row] = of_row
    return dense
