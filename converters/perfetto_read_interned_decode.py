"""Interned texts of a Perfetto trace: what numbers stand for, by sequence and incremental state.

Field numbers are those of ``interned_data.proto`` (Perfetto v58).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.files.wire import field_at

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.columns.types import Array

    Bytes = npt.NDArray[np.uint8]

CATEGORIES, NAMES, ANNOTATION_NAMES, STRINGS = 1, 2, 3, 29
"""Fields of InternedData: what is interned."""


class Texts(NamedTuple):
    """Interned texts: an open hash table by state, field and number.

    Entry k is ``buffer[at[k]:at[k] + length[k]]``; `known` [0] says how many there are.
    """

    slots: Array
    state: Array
    field: Array
    iid: Array
    at: Array
    length: Array
    known: Array


def texts_of_at_most(most: int) -> Texts:
    """An empty table."""
    size = 1 << max(4, (2 * most + 1).bit_length())
    return Texts(
        np.full(size, -1, np.int32),
        np.zeros(most, np.int64),
        np.zeros(most, np.int32),
        np.zeros(most, np.uint64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int32),
        np.zeros(1, np.int64),
    )


@jit
def _slot(texts: Texts, state: int, field: int, iid: np.uint64) -> int:
    """The slot of an interned text, or the free one where it would go."""
    mask = np.uint64(len(texts.slots) - 1)
    value = iid * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(state * 64 + field)
    value = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    slot = (value ^ (value >> np.uint64(32))) & mask
    while texts.slots[slot] >= 0:
        k = texts.slots[slot]
        if texts.iid[k] == iid and texts.state[k] == state and texts.field[k] == field:
            break
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@jit
def text_of(texts: Texts, state: int, field: int, iid: np.uint64) -> int:
    """Entry of an interned text; -1 if it was not told."""
    return texts.slots[_slot(texts, state, field, iid)]


@jit
def intern(buffer: Bytes, i: int, stop: int, state: int, texts: Texts) -> None:
    """Take over the texts of an InternedData."""
    while i < stop:
        field, wire, _, begin, i = field_at(buffer, i, stop)
        if i < 0:
            return
        if wire != 2 or field not in (CATEGORIES, NAMES, ANNOTATION_NAMES, STRINGS):
            continue
        iid, at, end, j = np.uint64(0), 0, 0, begin
        while j < i:
            number, inner, value, start, j = field_at(buffer, j, i)
            if j < 0:
                break
            if number == 1 and inner == 0:
                iid = value
            elif number == 2 and inner == 2:
                at, end = start, j
        if j < 0 or iid == np.uint64(0):
            continue
        slot = _slot(texts, state, field, iid)
        k = texts.slots[slot]
        if k < 0:
            k = texts.known[0]
            texts.known[0] += 1
            texts.slots[slot] = k
        texts.state[k], texts.field[k], texts.iid[k] = state, field, iid
        texts.at[k], texts.length[k] = at, end - at
