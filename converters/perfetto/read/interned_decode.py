"""Interned texts of a Perfetto trace, by state of their sequence, field and number.

Field numbers are those of ``interned_data.proto`` (Perfetto v58).

Compiled, as part of the pass over all packets: a text may be used by the next one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.io.wire import LENGTH, VARINT, read_field
from chopper_interop.schemas.perfetto import (
    ENTRY_IID,
    ENTRY_NAME,
    INTERNED_DEBUG_ANNOTATION_NAMES,
    INTERNED_DEBUG_ANNOTATION_STRING_VALUES,
    INTERNED_EVENT_CATEGORIES,
    INTERNED_EVENT_NAMES,
)

_DECODED = (
    INTERNED_EVENT_CATEGORIES, INTERNED_EVENT_NAMES, INTERNED_DEBUG_ANNOTATION_NAMES,
    INTERNED_DEBUG_ANNOTATION_STRING_VALUES,
)  # fmt: skip


class InternedTexts(NamedTuple):
    """Interned texts: an open hash table by state, field and number.

    Entry k is ``buffer[at[k]:at[k] + length[k]]``; `known` [0] is the number of entries. A sequence
    that clears its incremental state gets a new state, so that numbers can mean other texts there.
    """

    slots: Array
    state: Array
    field: Array
    iid: Array
    at: Array
    length: Array
    known: Array


def empty_texts(capacity: int) -> InternedTexts:
    """Return an empty table; at most half of its slots will be used, so that searches are short."""
    size = 1 << max(4, (2 * capacity + 1).bit_length())
    return InternedTexts(
        slots=np.full(size, -1, np.int32),
        state=np.zeros(capacity, np.int64),
        field=np.zeros(capacity, np.int32),
        iid=np.zeros(capacity, np.uint64),
        at=np.zeros(capacity, np.int64),
        length=np.zeros(capacity, np.int32),
        known=np.zeros(1, np.int64),
    )


@jit_in_place
def _find_slot(texts: InternedTexts, state: int, field: int, iid: np.uint64) -> int:
    """Find the slot of an interned text, or the free one where it would go (linear probing).

    The hash is a multiplication by 2**64 / golden ratio and one round of SplitMix64's finalizer.
    """
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


@jit_in_place
def find_text(texts: InternedTexts, state: int, field: int, iid: np.uint64) -> int:
    """Find the entry of an interned text; -1 if there is none."""
    return texts.slots[_find_slot(texts, state, field, iid)]


@jit_in_place
def find_range(texts: InternedTexts, state: int, field: int, iid: np.uint64) -> tuple[int, int]:
    """Find the byte range of an interned text; it ends at -1 if there is none."""
    k = find_text(texts, state, field, iid)
    return (texts.at[k], texts.at[k] + texts.length[k]) if k >= 0 else (0, -1)


@jit_in_place
def intern_texts(buffer: Bytes, i: int, stop: int, state: int, texts: InternedTexts) -> None:
    """Add the texts of an InternedData message, buffer[i:stop], to the table."""
    while i < stop:
        field, wire, _, begin, i = read_field(buffer, i, stop)
        if i < 0:
            return
        if wire != LENGTH or field not in _DECODED:
            continue
        iid, at, end, j = np.uint64(0), 0, 0, begin
        while j < i:
            number, inner, value, start, j = read_field(buffer, j, i)
            if j < 0:
                break
            if number == ENTRY_IID and inner == VARINT:
                iid = value
            elif number == ENTRY_NAME and inner == LENGTH:
                at, end = start, j
        if j < 0 or iid == np.uint64(0):
            continue
        slot = _find_slot(texts, state, field, iid)
        k = texts.slots[slot]
        if k < 0:
            k = texts.known[0]
            texts.known[0] += 1
            texts.slots[slot] = k
        texts.state[k], texts.field[k], texts.iid[k] = state, field, iid
        texts.at[k], texts.length[k] = at, end - at
