"""JSON objects put together: the members of one, and those of another that it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.files.jsontext import (
    CLOSE,
    COLON,
    COMMA,
    OPEN,
    QUOTE,
    blank,
    skip_string,
    skip_value,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.columns.types import Array

    Bytes = npt.NDArray[np.uint8]


def merged(
    first: Bytes, at: Array, length: Array, second: Bytes, at_2: Array, length_2: Array
) -> tuple[Bytes, Array, Array]:
    """Objects with the members of both; where both have a key, that of the first stays.

    Parameters
    ----------
    first, at, length
        Objects, as ranges of a text; length 0 for none.
    second, at_2, length_2
        As many others.

    Returns
    -------
    text, starts, lengths
    """
    out = np.empty(int(length.sum() + length_2.sum()) + 3 * len(at), np.uint8)
    starts, lengths = np.zeros(len(at), np.int64), np.zeros(len(at), np.int32)
    used = _merged(
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


@jit
def _merged(
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
    o = 0
    for k in range(len(at)):
        starts[k] = o
        stop = at[k] + length[k]
        empty = length[k] < 2
        if not empty:
            empty = a[blank(a, at[k] + 1, stop)] == CLOSE
        if empty:
            out[o] = OPEN
            o += 1
        else:
            for i in range(at[k], stop - 1):
                out[o] = a[i]
                o += 1
        n = at_2[k] + length_2[k]
        i = blank(b, at_2[k] + 1, n) if length_2[k] else n
        while 0 <= i < n and b[i] == QUOTE:
            key_end = skip_string(b, i, n)
            if key_end < 0:
                break
            value = blank(b, key_end, n)
            end = skip_value(b, value + 1, n) if value < n and b[value] == COLON else -2
            if end < 0:
                break
            if empty or not _has(a, at[k], stop, b, i, key_end):
                if out[o - 1] != OPEN or o - 1 > starts[k]:
                    out[o] = COMMA
                    o += 1
                for j in range(i, end):
                    out[o] = b[j]
                    o += 1
            i = blank(b, end, n)
            i = blank(b, i + 1, n) if i < n and b[i] == COMMA else n
        out[o] = CLOSE
        o += 1
        lengths[k] = o - starts[k]
    return o


@jit
def _has(a: Bytes, i: int, n: int, b: Bytes, key: int, key_end: int) -> bool:
    """Whether the object at `i` of `a` has the key that stands in `b`, quotes and all."""
    i = blank(a, i + 1, n)
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
        colon = blank(a, stop, n)
        if colon >= n or a[colon] != COLON:
            return False
        i = blank(a, colon + 1, n)
        if i >= n:
            return False
        i = skip_value(a, i, n)
        if i < 0:
            return False
        i = blank(a, i, n)
        i = blank(a, i + 1, n) if i < n and a[i] == COMMA else n
    return False
