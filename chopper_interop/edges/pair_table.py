"""Numbers of pairs of queues, of which only those that occur take memory.

A table for compiled loops: a hash table finds the entry of a pair, and the entries of each first
queue are a list::

    head[w]              entry of w that was added last; -1 if there is none
    following[entry]     the one that was added before it for the same queue
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, nest
from chopper_interop.arrays.compiled import jit, jit_in_place

_FIRST_SIZE = 64
"""Entries that fit at first (chosen: a few streams; a table that is full doubles)."""
_PLACES = 4
"""Places of the hash table for each entry that fits. Chosen: a place is mostly free or right at once."""
_SPREAD = 0x9E3779B1
"""Knuth's multiplicative hashing: 2^32 over the golden ratio, odd."""


class PairTable(NamedTuple):
    """Entries of pairs.

    Parameters
    ----------
    keys, entries
        Pair in each place of the hash table, -1 for a free one, and its entry.
    head, following
        Lists of the entries of each first queue.
    other, slot, time_ns
        For each entry the second queue of its pair, and what is known of the pair.
    used
        How many entries there are, as the only element.
    """

    keys: Array
    entries: Array
    head: Array
    following: Array
    other: Array
    slot: Array
    time_ns: Array
    used: Array


# Compiled, as all below: called by compiled loops for each pair.
@jit
def empty_table(queues: int) -> PairTable:
    """Make a table for pairs of so many queues."""
    places = _FIRST_SIZE * _PLACES
    return PairTable(
        np.full(places, -1, np.int64), np.zeros(places, np.int64), np.full(queues, -1, np.int64),
        np.zeros(_FIRST_SIZE, np.int64), np.zeros(_FIRST_SIZE, np.int64),
        np.zeros(_FIRST_SIZE, np.int64), np.zeros(_FIRST_SIZE, np.int64), np.zeros(1, np.int64),
    )  # fmt: skip


@jit_in_place
def place_of(keys: Array, key: int) -> int:
    """Place of a key, or the free one in which it would be; there are a power of two of them."""
    # digits above the lowest 31 are folded in, so that the product fits; its middle digits are mixed best
    at = ((((key ^ (key >> 29)) & 0x7FFFFFFF) * _SPREAD) >> 15) & (len(keys) - 1)
    while keys[at] >= 0 and keys[at] != key:
        at = (at + 1) & (len(keys) - 1)
    return at


@jit
def enlarged_places(keys: Array, entries: Array) -> tuple[Array, Array]:
    """Twice as many places, with the same keys."""
    new_keys = np.full(2 * len(keys), -1, np.int64)
    new_entries = np.zeros(2 * len(keys), np.int64)
    for i in range(len(keys)):
        if keys[i] >= 0:
            at = place_of(new_keys, keys[i])
            new_keys[at], new_entries[at] = keys[i], entries[i]
    return new_keys, new_entries


@jit_in_place
def entry_of(table: PairTable, queue: int, other: int) -> int:
    """Entry of a pair; -1 if it has none."""
    key = queue * len(table.head) + other
    at = place_of(table.keys, key)
    return table.entries[at] if table.keys[at] == key else -1


@jit
def with_pair(table: PairTable, queue: int, other: int, slot: int, time_ns: int) -> PairTable:
    """Set a pair's slot, unless it has a later one, and its time. Returns the table, enlarged if it was full."""
    entry = entry_of(table, queue, other)
    if entry >= 0:
        table.slot[entry] = max(table.slot[entry], slot)
        table.time_ns[entry] = time_ns
        return table
    entry = table.used[0]
    if entry == len(table.other):
        keys, entries = enlarged_places(table.keys, table.entries)
        table = PairTable(
            keys, entries, table.head, nest.enlarged(table.following, 2 * entry),
            nest.enlarged(table.other, 2 * entry), nest.enlarged(table.slot, 2 * entry),
            nest.enlarged(table.time_ns, 2 * entry), table.used,
        )  # fmt: skip
    key = queue * len(table.head) + other
    at = place_of(table.keys, key)
    table.keys[at], table.entries[at] = key, entry
    table.following[entry], table.head[queue] = table.head[queue], entry
    table.other[entry], table.slot[entry], table.time_ns[entry] = other, slot, time_ns
    table.used[0] += 1
    return table
