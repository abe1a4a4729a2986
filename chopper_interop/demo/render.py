"""Text that differs between steps and ranks in nothing but numbers, written fast.

A `Template` is fixed text with slots; each slot says which entry of a *pool* of whole numbers goes
there and how. The pool is filled again for every step and rank, the text is made once.

Compiled, as a demo has millions of numbers; `str` of each would take most of the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit

PLAIN: Final = 0
THOUSANDTHS: Final = 3
"""The pool holds thousandths; three decimals are written."""
MILLIONTHS: Final = 6
"""The pool holds millionths; six decimals are written."""

_LONGEST = 24
"""Characters that a 64-bit number with a point takes at most, rounded up."""
_ZERO = np.uint8(ord("0"))
_MINUS = np.uint8(ord("-"))
_POINT = np.uint8(ord("."))


@dataclass
class Template:
    """Fixed text with slots, put together piece by piece."""

    _pieces: list[str] = field(default_factory=list)
    _slots: list[tuple[int, int, int]] = field(default_factory=list)
    """Entry and decimals of each slot, and the number of pieces before it."""

    def text(self, *pieces: str) -> Template:
        """Add fixed text."""
        self._pieces.extend(pieces)
        return self

    def slot(self, entry: int, decimals: int = PLAIN) -> Template:
        """Add the place of a number: an entry of the pool, with so many decimals."""
        self._slots.append((entry, decimals, len(self._pieces)))
        return self

    def compile(self) -> Compiled:
        """Arrays for `Compiled.render`; the template is finished by this."""
        text = "".join(self._pieces)
        # a text of ASCII has a byte for each character
        pieces = self._pieces if text.isascii() else [piece.encode() for piece in self._pieces]
        end_of_piece = np.cumsum([0, *map(len, pieces)])
        slots = np.array(self._slots, dtype=np.int64).reshape(-1, 3)
        ends = end_of_piece[np.append(slots[:, 2], len(pieces))]
        return Compiled(np.frombuffer(text.encode(), dtype=np.uint8), ends, slots[:, :2].copy())


@dataclass(frozen=True)
class Compiled:
    """A finished template: all text, where its pieces end, and (entry, decimals) of each slot."""

    text: Array
    ends: Array
    slots: Array

    def render(self, pool: Array) -> memoryview:
        """Return the text with the numbers of a pool (int64) in it."""
        out = np.empty(len(self.text) + _LONGEST * len(self.slots), dtype=np.uint8)
        size = _render(self.text, self.ends, self.slots, pool, out)
        return out[:size].data


@jit
def _number(value: int, decimals: int, out: Array, at: int) -> int:
    """Write a number at a place; the place after it."""
    if value < 0:
        out[at] = _MINUS
        at += 1
        value = -value
    digits, rest = 1, value // 10
    while rest > 0:
        digits += 1
        rest //= 10
    digits = max(digits, decimals + 1)
    end = at + digits + (decimals > 0)
    place = end - 1
    for i in range(digits):
        if decimals > 0 and i == decimals:
            out[place] = _POINT
            place -= 1
        out[place] = _ZERO + value % 10
        value //= 10
        place -= 1
    return end


# Copies the text up to each slot and writes its number, as the length of one moves all behind it.
@jit
def _render(text: Array, ends: Array, slots: Array, pool: Array, out: Array) -> int:
    at, begin = 0, 0
    for i in range(len(ends)):
        for place in range(begin, ends[i]):
            out[at] = text[place]
            at += 1
        begin = ends[i]
        if i < len(slots):
            at = _number(pool[slots[i, 0]], slots[i, 1], out, at)
    return at
