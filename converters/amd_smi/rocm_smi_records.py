"""rocm-smi's outputs as records: what one output says of one card, in whichever form."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from chopper_interop.converters.amd_smi.row_reader import LossCount
from chopper_interop.converters.sampling.text import LARGEST_INDEX, whole_number

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.timestamps import Timestamp

_CARD = re.compile(r"(?:card|GPU\[)(\d+)\]?", re.IGNORECASE)
_CLOCK_LEVEL = re.compile(r"(?!pcie)(\w+) clock level")
_LEVEL = re.compile(r"(\w+):? *\((\d[^)]*)\)")
_FAN_LEVEL = re.compile(r"(\d+) \((\d[\d.]*)%?\)%?")
"""Level of the fan with its share, ``79 (30%)`` or ``56 (21.96)%``, as ROC-smi writes it."""
_IN_BRACKETS = re.compile(r"\((\d[^()]*)\)")
SYSTEM = -1


@dataclass
class Record:
    """Values of one card in one output.

    Parameters
    ----------
    card
        Its number; `SYSTEM` for values of the whole system.
    output
        Number of the output in the file, from 0.
    moment
        The time that stands in the record itself, if one does.
    values
        Keys and values as they are written; levels of a clock became its speed.
    levels
        Levels in MHz of clocks, by the clock's name.
    written
        Keys as they are written. One output may have ``sclk clock speed:``, ``sclk clock level:`` and
        ``sclk clock level``, which all give the speed of one clock.
    """

    card: int
    output: int
    moment: Timestamp | None = None
    values: dict[str, str] = field(default_factory=dict)
    levels: dict[str, list[float]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)


@dataclass
class Records(LossCount):
    """Collects records; unless marked, an output begins where a card has the same key again."""

    marked: bool = False
    """True if a line marks the begin of each output, so that no other sign of it is needed."""
    entries: list[Record] = field(default_factory=list)
    output: int = 0
    before: dict[int, Timestamp] = field(default_factory=dict)
    """Times by the output that they stand in front of."""
    _open: dict[int, Record] = field(default_factory=dict)

    def begin(self) -> None:
        """An output begins."""
        if self._open:
            self.output += 1
            self._open = {}

    def moment(self, timestamp: Timestamp) -> None:
        """A time stands between outputs."""
        self.begin()
        self.before.setdefault(self.output, timestamp)

    def record(
        self, card: int, keys: tuple[str, ...] = (), timestamp: Timestamp | None = None
    ) -> Record:
        """The record of a card for these keys."""
        known = self._open.get(card)
        again = not self.marked and known and not known.written.isdisjoint(keys)
        if known and (known.moment != timestamp or again):
            self.begin()
            known = None
        if known is None:
            known = self._open[card] = Record(card, self.output, timestamp)
            self.entries.append(known)
        return known

    def add(self, card: int, key: str, value: str, timestamp: Timestamp | None = None) -> Record:
        """Add a value; the speed of a clock is taken out of its level."""
        record = self.record(card, (key,), timestamp)
        record.written.add(key)
        key, clock = _key_and_clock(key)
        value = value.strip()
        speed = _LEVEL.fullmatch(value) if clock else None
        if speed:
            key, value = f"{clock} clock speed", speed[2]
        fan = _FAN_LEVEL.fullmatch(value) if key == "Fan Level" else None
        if fan:
            value, record.values["Fan Level (%)"] = fan.groups()
        inner = _IN_BRACKETS.fullmatch(value) if value.startswith("(") else None
        record.values[key] = inner[1] if inner else value
        return record


@lru_cache(maxsize=1 << 14)  # the same keys come in every row
def _key_and_clock(text: str) -> tuple[str, str]:
    """A key as it is compared, and the clock of which it is the level; empty if of none."""
    key = " ".join(text.split()).rstrip(" :")
    level = _CLOCK_LEVEL.fullmatch(key)
    return key, level[1] if level else ""


@lru_cache(maxsize=1 << 12)  # the same cards come in every output
def card_of(text: str) -> int | None:
    """Number of a card by its name, ``card0`` or ``GPU[0]``; None if it is no card."""
    if text.strip().lower() == "system":
        return SYSTEM
    match = _CARD.fullmatch(text.strip())
    number = whole_number(match[1], LARGEST_INDEX) if match else -1
    return number if number >= 0 else None
