"""Merging of JSON objects: the members of one, and those of another that it lacks."""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.io.json_text import (
    CLOSE,
    COLON,
    COMMA,
    OPEN,
    QUOTE,
    skip_blank,
    skip_string,
    skip_value,
)


def merge_objects(
    first: Bytes, at: Array, length: Array, second: Bytes, at_2: Array, length_2: Array
) -> tuple[Bytes, Array, Array]:
    """Return objects with the members of both; where both have a key, the first one's value counts.

    Parameters
    ----------
    first, at, length
        Objects, as ranges of a text; length 0 for none.
    second, at_2, length_2
        As many other objects.

    Returns
    -------
    text, starts, lengths
        The merged objects, as ranges of a text.
    """
    out = np.empty(int(length.sum() + length_2.sum()) + 3 * len(at), np.uint8)
    starts, lengths = np.zeros(len(at), np.int64), np.zeros(len(at), np.int32)
    used = _write_merged(
        first,
        np.ascontiguousarray(at, np.int64),
        np.ascontiguousarray(length, np.int64),
        second,
        np.ascontiguousarray(at_2, np.int64),
        np.ascontiguousarray(length_2, np.int64),
        out,
        starts,
        lengths,
    )
    return out[:used].copy(), starts, lengths


@jit_in_place
def _write_merged(
    a: Bytes,
    at: Array,
    length: Array,
    b: Bytes,
    at_2: Array,
    length_2: Array,
    out: Bytes,
    starts: Array,
    lengths: Array,
) -> int:
    """Write the merged objects to `out`, their ranges to `starts` and `lengths`; return the size.

    Compiled: texts are copied, not parsed, as there are as many objects as events, and most of their bytes are
    values that nobody looks at.
    """
    o = 0
    for k in range(len(at)):
        starts[k] = o
        stop = at[k] + length[k]
        empty = length[k] < 2
        if not empty:
            empty = a[skip_blank(a, at[k] + 1, stop)] == CLOSE
        if empty:
            out[o] = OPEN
            o += 1
        else:
            for i in range(at[k], stop - 1):
                out[o] = a[i]
                o += 1
        own = (0, 0) if empty else (at[k], stop)
        o = _write_others(a, own, b, (at_2[k], at_2[k] + length_2[k]), out, o, starts[k])
        out[o] = CLOSE
        o += 1
        lengths[k] = o - starts[k]
    return o


@jit_in_place
def _write_others(
    a: Bytes, own: tuple[int, int], b: Bytes, other: tuple[int, int], out: Bytes, o: int, start: int
) -> int:
    """Write the members of the object `other` of `b` whose keys the object `own` of `a` does not have.

    The merged object begins at `start`; returned is its end so far.
    """
    i, n = other
    i = skip_blank(b, i + 1, n) if n > i else n
    while 0 <= i < n and b[i] == QUOTE:
        key_end = skip_string(b, i, n)
        if key_end < 0:
            break
        colon = skip_blank(b, key_end, n)
        value = skip_blank(b, colon + 1, n) if colon < n and b[colon] == COLON else n
        end = skip_value(b, value, n) if value < n else -2
        if end < 0:
            break
        if own[1] == 0 or not _has_key(a, own[0], own[1], b, i, key_end):
            if out[o - 1] != OPEN or o - 1 > start:
                out[o] = COMMA
                o += 1
            for j in range(i, end):
                out[o] = b[j]
                o += 1
        i = skip_blank(b, end, n)
        i = skip_blank(b, i + 1, n) if i < n and b[i] == COMMA else n
    return o


@jit_in_place
def _has_key(a: Bytes, i: int, n: int, b: Bytes, key: int, key_end: int) -> bool:
    """True if the object at `i` of `a` has the key b[key:key_end], which includes its quotes."""
    i = skip_blank(a, i + 1, n)
    while 0 <= i < n and a[i] == QUOTE:
        stop = skip_string(a, i, n)
        if stop < 0:
            return False
        if stop - i == key_end - key:
            same = True
            for k in range(stop - i):
                if a[i + k] != b[key + k]:
                    same = False
                    break
            if same:
                return True
        colon = skip_blank(a, stop, n)
        if colon >= n or a[colon] != COLON:
            return False
        i = skip_blank(a, colon + 1, n)
        if i >= n:
            return False
        i = skip_value(a, i, n)
        if i < 0:
            return False
        i = skip_blank(a, i, n)
        i = skip_blank(a, i + 1, n) if i < n and a[i] == COMMA else n
    return False
