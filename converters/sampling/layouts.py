"""Layouts: where the values of a row are in the pieces of a template, learned from a probe.

A probe is a piece with numbers that occur nowhere else. Where these come out of a format's reader is where
the numbers of all pieces of that template go; what depends on a number's size is a `Guard`.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from chopper_interop.arrays import Array
from chopper_interop.converters.sampling.cells import Cell, Item, Slot
from chopper_interop.converters.sampling.pieces import GAP, NUMBER
from chopper_interop.converters.sampling.text import NO_NUMBER, whole_number
from chopper_interop.issues import Fault

_PROBE = 731_000_000
_PROBES = 1_000_000
"""First number of a probe, and how many there are (chosen: nine digits that fit an index, are no time, and that
no template has; ``rocm-smi -a`` writes twenty numbers of a GPU, all GPUs in one piece)."""
_PROBE_DIGITS = re.compile(rf"{_PROBE // _PROBES}\d{{6}}")


_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_GAPS = re.compile(r" {2,}")


def probe_of(template: bytes) -> str | None:
    """Return a piece of a template with numbers that occur nowhere else, ascending; None if it has such."""
    parts = template.decode().replace(chr(GAP), "  ").split(chr(NUMBER))
    if len(parts) > _PROBES or any(_PROBE_DIGITS.search(part) for part in parts):
        return None
    numbers = [str(_PROBE + number) for number in range(len(parts) - 1)]
    return "".join(text for pair in zip(parts, [*numbers, ""], strict=True) for text in pair)


def probe_number(slot: int) -> int:
    """Return the number that a probe has in place of a number of the piece."""
    return _PROBE + slot


def slots_in(text: str) -> list[int]:
    """Numbers of the piece that a text of its probe holds, in the text's order."""
    return [int(match[0]) - _PROBE for match in _PROBE_DIGITS.finditer(text)]


def literals_in(text: str) -> list[str]:
    """Texts before, between and behind the numbers of the piece that a text of its probe holds."""
    return _PROBE_DIGITS.split(text)


def numbers_of(probe: str, piece: str) -> list[str] | None:
    """Return the numbers of a piece of the template of a probe, as they are written."""
    # one match of all, with a group for each number, takes memory by the square of their count
    piece, at = _GAPS.sub("  ", piece), 0
    numbers = list[str]()
    for place, literal in enumerate(literals_in(_GAPS.sub("  ", probe))):
        number = _NUMBER.match(piece, at) if place else None
        if number:
            numbers.append(number[0])
            at = number.end()
        if bool(place) != bool(number) or not piece.startswith(literal, at):
            return None
        at += len(literal)
    return numbers if at == len(piece) else None


def with_numbers(probe: str, numbers: Mapping[int, str]) -> str:
    """Return a probe with some of its numbers replaced."""
    return _PROBE_DIGITS.sub(lambda match: numbers.get(int(match[0]) - _PROBE, match[0]), probe)


def are_within(texts: Iterable[str], probe: str) -> bool:
    """True if texts with numbers stand in a probe as they are, so that they are ranges of the piece."""
    ranges = [text for text in texts if slots_in(text)]
    return all(text in probe and "  " not in text for text in ranges)


def filled(text: str, numbers: Mapping[int, str]) -> str:
    """Return a text of a probe with the numbers of a piece."""
    return _PROBE_DIGITS.sub(lambda match: numbers[int(match[0]) - _PROBE], text)


def with_slots(cell: Cell) -> tuple[Cell, int] | None:
    """Return a cell of a probe with slots in place of the numbers of the probe, and the first of these.

    None if a number is a part of an item's text, so that the cell must be parsed in each row.
    """
    items, slots = [], []
    for item in cell.items:
        if slots_in(item.unit):
            return None
        is_written = isinstance(item.value, str)
        if slots_in(str(item.value)):
            if not _PROBE_DIGITS.fullmatch(str(item.value)):
                return None
            slots.append(int(str(item.value)) - _PROBE)
            items.append(Item(Slot(slots[-1], is_written=is_written), item.unit))
        else:
            items.append(item)
    first = min(slots, default=0)
    return moved(Cell(tuple(items), cell.listed), -first), first


def moved(cell: Cell, by: int) -> Cell:
    """Return a cell whose slots are so many numbers further on."""
    items = (
        i._replace(value=i.value._replace(number=i.value.number + by))
        if isinstance(i.value, Slot)
        else i
        for i in cell.items
    )
    return Cell(tuple(items), cell.listed)


def constant(value: Array | int) -> Any:
    """Return what stands for a number from -1 on where others are slots; this is its own inverse."""
    return -2 - value


ANY, WHOLE, EXACT = range(3)
"""Demands on a number: none; that it is of kind `INTEGER`; that it is not of kind `OTHER`."""


class Guard(NamedTuple):
    """Bounds of a number, and its kind, without which a layout does not hold."""

    number: int
    low: float
    high: float
    kind: int = WHOLE


@dataclass(frozen=True)
class Layout:
    """Positions of the values of a row in the pieces of a template.

    Parameters
    ----------
    wholes
        Whole numbers that say which row it is: each the slot of a number, or `constant` of its value.
    texts
        Texts of the probe that say which row it is.
    cells
        Cells by key: texts of the probe, or cells with its numbers.
    guards
        What the numbers must be.
    """

    wholes: tuple[int, ...]
    texts: tuple[str, ...]
    cells: tuple[tuple[Any, str | Cell], ...]
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True)
class PieceLayout:
    """Rows and faults of any piece of a template.

    Parameters
    ----------
    rows
        Its rows.
    noted
        Faults that each such piece has, and how often; the first is read alone, which gives the example.
    guards
        What the numbers must be.
    has_columns
        True if several spaces are not as good as two, although they are one template: where words stand
        says what they mean.
    """

    rows: tuple[Layout, ...] = ()
    noted: tuple[tuple[Fault, int], ...] = ()
    guards: tuple[Guard, ...] = ()
    has_columns: bool = False


def layout_of_row(
    wholes: Iterable[tuple[str, int]],
    cells: Iterable[tuple[Hashable, str | Cell]],
    *,
    needed: int,
) -> Layout | None:
    """Return the layout of a row of a probe; None if it must be read by itself.

    Parameters
    ----------
    wholes
        Cells of whole numbers that say which row it is, and the largest that each may be; cells of
        a layout that hold none are `NO_NUMBER`.
    cells
        See `Layout`.
    needed
        Index of the one of `wholes` that must be a number.
    """
    slots, guards = [], []
    for text, largest in wholes:
        if match := _PROBE_DIGITS.fullmatch(text.strip()):
            slots.append(int(match[0]) - _PROBE)
            guards.append(Guard(slots[-1], 0, largest))
        elif slots_in(text):
            return None
        else:
            slots.append(constant(whole_number(text, largest)))
    if slots[needed] == constant(NO_NUMBER):
        return None
    return Layout(tuple(slots), (), tuple(cells), tuple(guards))
