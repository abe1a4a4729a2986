"""Distinct texts among byte ranges of a buffer, numbered in order of first occurrence.

Compiled: a trace has millions of texts, few of them distinct, and no Python string is made of one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit_in_place, jit_inlined

_HASHED_WORDS = 64
"""Words of eight bytes of a text that its hash is made of, about (chosen: all of most names; in between there are few bytes
of those of a thousand. Of 8 words, 20,000 texts of 150 bytes with a number between two of them had one hash each: 1.5 s)."""
_BLOCK = np.uint64(64)
"""Bytes that are compared at once (chosen: a line of the processor's cache)."""
_SLOTS_PER_TEXT = 4
"""Slots of the hash table for each text that it can hold (chosen: a quarter full at most, so that
few texts meet an occupied slot)."""


class TextTable(NamedTuple):
    """An open hash table of texts; text k is ``buffer[start[k]:start[k] + length[k]]``.

    The number of entry k is `base` + k, and `used` [0] is how many entries there are.
    """

    slots: Array
    hash: Array
    start: Array
    length: Array
    used: Array
    base: int

    @property
    def capacity(self) -> int:
        """Number of texts that it can hold."""
        return len(self.start)

    def texts(self, buffer: Bytes, first: int = 0) -> list[bytes]:
        """Return the texts from entry `first` on."""
        view = buffer.data
        stop = int(self.used[0])
        ranges = zip(self.start[first:stop].tolist(), self.length[first:stop].tolist(), strict=True)
        return [bytes(view[start : start + length]) for start, length in ranges]


def empty_text_table(capacity: int, base: int = 0) -> TextTable:
    """Return a table without texts, for as many as `capacity`."""
    return TextTable(
        slots=np.full(_SLOTS_PER_TEXT * capacity, -1, np.int32),
        hash=np.zeros(capacity, np.uint64),
        start=np.zeros(capacity, np.int64),
        length=np.zeros(capacity, np.int32),
        used=np.zeros(1, np.int64),
        base=base,
    )


def enlarged_text_table(table: TextTable) -> TextTable:
    """Return a table of twice the capacity with the same entries."""
    larger = empty_text_table(2 * table.capacity, table.base)
    for old, new in zip(table[1:4], larger[1:4], strict=True):
        new[: len(old)] = old
    larger.used[0] = table.used[0]
    _fill_slots(larger)
    return larger


@jit_in_place
def _fill_slots(table: TextTable) -> None:
    """Enter the texts that a table has into its slots; a full slot sends to the next one."""
    slots = np.uint64(len(table.slots))
    for i in range(table.used[0]):
        slot = _first_slot(table.hash[i], slots)
        while table.slots[slot] >= 0:
            slot = _next_slot(slot, slots)
        table.slots[slot] = i


@jit_in_place
def _first_slot(value: np.uint64, slots: np.uint64) -> np.uint64:
    """Slot of a hash value: its upper half as a fraction, as a remainder takes longer than all else."""
    return ((value >> np.uint64(32)) * slots) >> np.uint64(32)


@jit_in_place
def _next_slot(slot: np.uint64, slots: np.uint64) -> np.uint64:
    following = slot + np.uint64(1)
    return np.uint64(0) if following == slots else following


@jit_in_place
def word_at(buffer: Bytes, at: np.uint64) -> np.uint64:
    """Eight bytes as one number, the lowest first; the compiler reads them by one instruction."""
    word = np.uint64(0)
    for k in range(np.uint64(8)):
        word |= np.uint64(buffer[at + k]) << (np.uint64(8) * k)
    return word


@jit_in_place
def _hash(buffer: Bytes, start: int, stop: int) -> np.uint64:
    """Hash of a text's words, each multiplied by FNV's prime; of a long one, of words at even steps and the last one."""
    eight, length = np.uint64(8), np.uint64(stop - start)
    at, prime = np.uint64(start), np.uint64(1099511628211)
    value = np.uint64(14695981039346656037) ^ length
    if length < eight:
        word = np.uint64(0)
        for k in range(length):
            word = word << eight | np.uint64(buffer[at + k])
        value = (value ^ word) * prime
    else:
        last = np.uint64(stop) - eight
        step = max(eight, length // np.uint64(_HASHED_WORDS))
        while at < last:
            value = (value ^ word_at(buffer, at)) * prime
            value ^= value >> np.uint64(32)  # as a product's lower half knows only lower bytes
            at += step
        value = (value ^ word_at(buffer, last)) * prime
    return value ^ (value >> np.uint64(29))


@jit_in_place
def _equal_bytes(buffer: Bytes, a: int, other: Bytes, b: int, length: int) -> bool:
    """True if ranges of two buffers are equal.

    Without a jump within a block, the compiler compares all of it in a few vector instructions.
    """
    at, end = np.uint64(a), np.uint64(a + length)
    distance = np.uint64(b) - at  # modulo 2**64
    while at < end:
        stop = min(end, at + _BLOCK)
        differs = np.uint8(0)
        for k in range(at, stop):
            differs |= buffer[k] ^ other[k + distance]
        if differs:
            return False
        at = stop
    return True


@jit_inlined
def intern_text(buffer: Bytes, start: int, stop: int, table: TextTable) -> int:
    """Return the number of the text buffer[start:stop], and enter it if it is a new one.

    Returns
    -------
    int
        -1 if it is new and the table is full.
    """
    return intern_hashed(buffer, start, stop, _hash(buffer, start, stop), table)


@jit_inlined
def intern_hashed(buffer: Bytes, start: int, stop: int, value: np.uint64, table: TextTable) -> int:
    """Do the same as `intern_text` for a text whose hash is known; all texts of a table need one hash."""
    length = stop - start
    slots = np.uint64(len(table.slots))
    slot = _first_slot(value, slots)
    while table.slots[slot] >= 0:
        i = table.slots[slot]
        is_likely = table.hash[i] == value and table.length[i] == length
        if is_likely and _equal_bytes(buffer, table.start[i], buffer, start, length):
            return table.base + i
        slot = _next_slot(slot, slots)
    i = table.used[0]
    if i == len(table.start):
        return -1
    table.hash[i], table.start[i], table.length[i] = value, start, length
    table.slots[slot] = i
    table.used[0] = i + 1
    return table.base + i


@jit_in_place
def merge_texts(
    buffer: Bytes, other: TextTable, kept: Bytes, size: int, table: TextTable, number: Array
) -> int:
    """Enter the texts of another table, of `buffer`; their numbers go to `number`.

    The table has texts of `kept`, to the end of which at `size` those that are new are copied. Both must have room.

    Returns
    -------
    int
        Bytes of `kept` that are used then.
    """
    slots = np.uint64(len(table.slots))
    for k in range(other.used[0]):
        value, start, length = other.hash[k], other.start[k], other.length[k]
        slot = _first_slot(value, slots)
        i = table.slots[slot]
        while i >= 0:
            is_likely = table.hash[i] == value and table.length[i] == length
            if is_likely and _equal_bytes(kept, table.start[i], buffer, start, length):
                break
            slot = _next_slot(slot, slots)
            i = table.slots[slot]
        if i < 0:
            i = np.int32(table.used[0])
            table.hash[i], table.start[i], table.length[i] = value, size, length
            table.slots[slot] = i
            table.used[0] = i + 1
            for b in range(length):
                kept[size + b] = buffer[start + b]
            size += length
        number[k] = table.base + i
    return size
