"""Distinct texts among byte ranges of a buffer, numbered as they are met."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.columns.types import Array

    Bytes = npt.NDArray[np.uint8]

_HASHED = 48
"""Bytes of a text that its hash is made of; names of kernels have a thousand."""
_BLOCK = np.uint64(64)
_SPARSE = 4
"""Slots of the hash table for each text that it can hold."""


class Interned(NamedTuple):
    """An open hash table of texts; text k is ``buffer[at[k]:at[k] + length[k]]``.

    The number of entry k is `base` + k, and `known` [0] says how many there are.
    """

    slots: Array
    hash: Array
    at: Array
    length: Array
    known: Array
    base: int

    @property
    def capacity(self) -> int:
        """How many texts it can hold."""
        return len(self.at)

    def texts(self, buffer: Bytes, first: int = 0) -> list[bytes]:
        """The texts from entry `first` on."""
        view = buffer.data
        stop = int(self.known[0])
        ranges = zip(self.at[first:stop].tolist(), self.length[first:stop].tolist(), strict=True)
        return [bytes(view[at : at + length]) for at, length in ranges]


def interned(capacity: int, base: int = 0) -> Interned:
    """An empty table."""
    return Interned(
        slots=np.full(_SPARSE * capacity, -1, np.int32),
        hash=np.zeros(capacity, np.uint64),
        at=np.zeros(capacity, np.int64),
        length=np.zeros(capacity, np.int32),
        known=np.zeros(1, np.int64),
        base=base,
    )


def enlarged(table: Interned) -> Interned:
    """The same entries in a table of twice the capacity."""
    larger = interned(2 * table.capacity, table.base)
    for old, new in zip(table[1:4], larger[1:4], strict=True):
        new[: len(old)] = old
    larger.known[0] = table.known[0]
    _fill(larger)
    return larger


@jit
def _fill(table: Interned) -> None:
    slots = np.uint64(len(table.slots))
    for i in range(table.known[0]):
        slot = table.hash[i] % slots
        while table.slots[slot] >= 0:
            slot = (slot + np.uint64(1)) % slots
        table.slots[slot] = i


@jit
def _hash(buffer: Bytes, at: int, stop: int) -> np.uint64:
    """FNV-1a of a text; of a long one, of bytes at even steps and its length."""
    value = np.uint64(14695981039346656037) ^ np.uint64(stop - at)
    step = max(1, (stop - at) // _HASHED)
    for k in range(at, stop, step):
        value = (value ^ np.uint64(buffer[k])) * np.uint64(1099511628211)
    return value ^ (value >> np.uint64(29))


@jit
def _same(buffer: Bytes, a: int, b: int, length: int) -> bool:
    """Whether two ranges are equal; all of a block at once, which the processor does in one go."""
    one, end = np.uint64(a), np.uint64(a + length)
    other = np.uint64(b) - one  # modulo 2**64
    while one < end:
        stop = min(end, one + _BLOCK)
        differs = np.uint8(0)
        for k in range(one, stop):
            differs |= buffer[k] ^ buffer[k + other]
        if differs:
            return False
        one = stop
    return True


@jit
def number_of(buffer: Bytes, at: int, stop: int, table: Interned) -> int:
    """Number of buffer[at:stop], a new one if it was not met before; -1 if the table is full."""
    value, length = _hash(buffer, at, stop), stop - at
    slots = np.uint64(len(table.slots))
    slot = value % slots
    while table.slots[slot] >= 0:
        i = table.slots[slot]
        equal = table.hash[i] == value and table.length[i] == length
        if equal and _same(buffer, table.at[i], at, length):
            return table.base + i
        slot = (slot + np.uint64(1)) % slots
    i = table.known[0]
    if i == len(table.at):
        return -1
    table.hash[i], table.at[i], table.length[i] = value, at, length
    table.slots[slot] = i
    table.known[0] = i + 1
    return table.base + i
