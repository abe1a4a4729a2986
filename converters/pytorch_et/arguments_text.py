"""Arguments of the nodes of a host execution trace, under the names that Kineto has for them.

Shapes, types, strides and communication have the keys that the profiler's own trace has for the
same; what only the execution trace records keeps its name, and ids, which hold within the execution
trace only, have names that say so.

Compiled: all of the text is copied byte by byte, as some of it is no proper JSON.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.converters.pytorch_et.nodes_decode import attribute, member, next_member
from chopper_interop.io.json_text import (
    CLOSE,
    CLOSE_LIST,
    COLON,
    COMMA,
    OPEN,
    OPEN_LIST,
    QUOTE,
    skip_blank,
    skip_value,
)

ARGUMENT_NAMES = {
    "id": "ET id", "parent": "ET parent", "ctrl_deps": "ET parent", "rf_id": "ET rf_id",
    "seq_id": "ET seq_id", "fw_parent": "ET fw_parent", "scope": "ET scope",
    "fw_tid": "Fwd thread id", "input_shapes": "Input Dims", "input_types": "Input type",
    "output_shapes": "Output Dims", "output_types": "Output type", "inputs": "Input Values",
    "outputs": "Output Values", "collective_name": "Collective name",
    "in_msg_nelems": "In msg nelems", "out_msg_nelems": "Out msg nelems",
    "in_split_size": "In split size", "out_split_size": "Out split size",
    "global_rank_start": "Global rank start", "global_rank_stride": "Global rank stride",
    "pg_name": "Process Group Name", "pg_desc": "Process Group Description",
    "pg_size": "Group size", "is_asynchronized_op": "Is asynchronized op", "name": "", "tid": "",
}  # fmt: skip
"""Member of a node, or name of an attribute → key of an argument; empty for what is a column."""
_IN_LISTS = {"values": "Values", "shapes": "Dims", "types": "type", "strides": "Strides"}
"""Lists of ``inputs`` and ``outputs`` since 1.0.2 → the second word of their keys."""
_GROWTH, _SPARE = 9, 256
"""A node's arguments take at most this many times its own text, and this many bytes more."""


def _joined(texts: list[str]) -> tuple[Bytes, Array]:
    return (
        np.frombuffer("".join(texts).encode(), np.uint8),
        np.cumsum([0, *(len(text) for text in texts)]),
    )


_KEYS = [*ARGUMENT_NAMES, *(f"inputs.{k}" for k in _IN_LISTS), *(f"outputs.{k}" for k in _IN_LISTS)]
_LABELS = [
    *ARGUMENT_NAMES.values(),
    *(f"Input {word}" for word in _IN_LISTS.values()),
    *(f"Output {word}" for word in _IN_LISTS.values()),
]
_KEY_TEXT, _KEY_BOUNDS = _joined(_KEYS)
_LABEL_TEXT, _LABEL_BOUNDS = _joined([f'"{label}":' if label else "" for label in _LABELS])
_PLAIN_KEYS, _LIST_KEYS = len(ARGUMENT_NAMES), len(_IN_LISTS)
_PREFIX = len("inputs."), len("outputs.")
_LITERALS = ("true", "false", "null")
_LITERAL_TEXT, _LITERAL_BOUNDS = _joined(list(_LITERALS))


def arguments(buffer: Bytes, at: Array, end: Array) -> tuple[Bytes, Array, Array]:
    """Write the arguments of nodes as one text of JSON objects.

    Parameters
    ----------
    buffer
        Text of the file.
    at, end
        Where each node's object begins and ends in it.

    Returns
    -------
    text, starts, lengths
        The text, and where in it the arguments of each node lie.
    """
    largest = int((end - at).max()) if len(at) else 0
    out = np.empty(int((end - at).sum()) + _GROWTH * largest + _SPARE, np.uint8)
    starts, stops = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
    done, used = 0, 0
    while True:
        done, used = _write_arguments(buffer, at, end, done, used, out, starts, stops)
        if done == len(at):
            return out[:used].copy(), starts, (stops - starts).astype(np.int32)
        larger = np.empty(2 * len(out), np.uint8)
        larger[:used] = out[:used]
        out = larger


@jit_in_place
def _write_arguments(
    buffer: Bytes,
    at: Array,
    end: Array,
    done: int,
    used: int,
    out: Bytes,
    starts: Array,
    stops: Array,
) -> tuple[int, int]:
    """Write the arguments of nodes from `done` on, until `out` is full.

    Loops over bytes, as decoding and encoding some hundred thousand nodes takes many times longer.

    Returns
    -------
    done, used
        The next node, and the bytes of `out` in use.
    """
    for k in range(done, len(at)):
        if used + _GROWTH * (end[k] - at[k]) + _SPARE > len(out):
            return k, used
        starts[k] = used
        out[used] = OPEN
        used = _write_members(buffer, at[k], end[k], out, used + 1)
        out[used] = CLOSE
        used += 1
        stops[k] = used
    return len(at), used


# Walks over the members of a node's text once, and writes those that become arguments.
@jit_in_place
def _write_members(buffer: Bytes, i: int, n: int, out: Bytes, used: int) -> int:
    i = skip_blank(buffer, i + 1, n)
    while 0 <= i < n and buffer[i] == QUOTE:
        key_end, value, end = member(buffer, i, n)
        if end < 0:
            return used
        c = buffer[value]
        side = _side_of(buffer, i + 1, key_end) if c == OPEN else -1
        if side >= 0:
            used = _write_lists(buffer, value, end, out, used, side)
        elif c == OPEN_LIST and _is_attributes(buffer, i + 1, key_end):
            used = _write_attributes(buffer, value, end, out, used)
        else:
            used = _write_pair(buffer, i + 1, key_end, value, end, out, used)
        i = next_member(buffer, end, n)
    return used


@jit_in_place
def _is_attributes(buffer: Bytes, at: int, end: int) -> bool:
    """True if the key is ``attrs``: length and ends distinguish it from all others of PyTorch."""
    return end - at == 5 and buffer[at] == 97 and buffer[at + 4] == 115


@jit_in_place
def _side_of(buffer: Bytes, at: int, end: int) -> int:
    """Return 0 for the key ``inputs``, 1 for ``outputs``, -1 for others."""
    length = end - at
    if length == 6 and buffer[at] == 105 and buffer[at + 5] == 115:
        return 0
    return 1 if length == 7 and buffer[at] == 111 and buffer[at + 6] == 115 else -1


# Walks over the list of attributes, objects with a name and a value of their own.
@jit_in_place
def _write_attributes(buffer: Bytes, i: int, n: int, out: Bytes, used: int) -> int:
    i = skip_blank(buffer, i + 1, n)
    while i < n and buffer[i] == OPEN:
        name, name_end, at, stop = attribute(buffer, i, n)
        if name >= 0 and at >= 0:
            used = _write_pair(buffer, name, name_end, at, stop, out, used)
        i = skip_value(buffer, i, n)
        if i < 0:
            return used
        i = skip_blank(buffer, i, n)
        if i < n and buffer[i] == COMMA:
            i = skip_blank(buffer, i + 1, n)
    return used


@jit_in_place
def _write_lists(buffer: Bytes, i: int, n: int, out: Bytes, used: int, side: int) -> int:
    """Write the lists of ``inputs`` (0) or ``outputs`` (1)."""
    i = skip_blank(buffer, i + 1, n)
    while 0 <= i < n and buffer[i] == QUOTE:
        key_end, value, end = member(buffer, i, n)
        if end < 0:
            return used
        first = _PLAIN_KEYS + side * _LIST_KEYS
        for k in range(first, first + _LIST_KEYS):
            at = _KEY_BOUNDS[k] + _PREFIX[side]
            if _equals(buffer, i + 1, key_end, _KEY_TEXT, at, _KEY_BOUNDS[k + 1]):
                used = _write_labelled(buffer, k, value, end, out, used)
        i = next_member(buffer, end, n)
    return used


@jit_in_place
def _equals(a: Bytes, at: int, end: int, b: Bytes, from_: int, to: int) -> bool:
    if end - at != to - from_:
        return False
    for k in range(end - at):  # noqa: SIM110 # numba has no all()
        if a[at + k] != b[from_ + k]:
            return False
    return True


# Compares the key with the few that have names of their own; others are written as they are.
@jit_in_place
def _write_pair(
    buffer: Bytes, key: int, key_end: int, value: int, end: int, out: Bytes, used: int
) -> int:
    for k in range(_PLAIN_KEYS):
        if _equals(buffer, key, key_end, _KEY_TEXT, _KEY_BOUNDS[k], _KEY_BOUNDS[k + 1]):
            return _write_labelled(buffer, k, value, end, out, used)
    if _is_void(buffer, value, end):
        return used
    used = _write_comma(out, used)
    out[used] = QUOTE
    used = _write_string(buffer, key, key_end, out, used + 1)
    out[used] = QUOTE
    out[used + 1] = COLON
    return _write_value(buffer, value, end, out, used + 2)


@jit_in_place
def _write_labelled(buffer: Bytes, k: int, value: int, end: int, out: Bytes, used: int) -> int:
    """Write a member under its known label, unless that is empty or the value void."""
    first, last = _LABEL_BOUNDS[k], _LABEL_BOUNDS[k + 1]
    if first == last or _is_void(buffer, value, end):
        return used
    used = _write_comma(out, used)
    for j in range(first, last):
        out[used] = _LABEL_TEXT[j]
        used += 1
    return _write_value(buffer, value, end, out, used)


@jit_in_place
def _write_comma(out: Bytes, used: int) -> int:
    if out[used - 1] == OPEN:
        return used
    out[used] = COMMA
    return used + 1


@jit_in_place
def _is_void(buffer: Bytes, at: int, end: int) -> bool:
    """True if a value is an empty text or list, or -1."""
    if end - at != 2:
        return False
    a, b = buffer[at], buffer[at + 1]
    return (
        (a == QUOTE and b == QUOTE) or (a == OPEN_LIST and b == CLOSE_LIST) or (a == 45 and b == 49)
    )


@jit_in_place
def _write_value(buffer: Bytes, i: int, end: int, out: Bytes, used: int) -> int:
    """Copy a value without blanks, and as proper JSON: words such as ``nan`` become texts."""
    while i < end:
        c = buffer[i]
        if c == QUOTE:
            stop = skip_value(buffer, i, end)
            stop = end if stop < 0 else stop
            out[used] = QUOTE
            used = _write_string(buffer, i + 1, stop - 1, out, used + 1)
            out[used] = QUOTE
            used, i = used + 1, stop
        elif c <= 32:
            i += 1
        elif c in (COMMA, COLON, OPEN, CLOSE, OPEN_LIST, CLOSE_LIST):
            out[used] = c
            used, i = used + 1, i + 1
        else:
            stop = i
            while stop < end and buffer[stop] > 32 and not _is_delimiter(buffer[stop]):
                stop += 1
            is_json = _is_json_word(buffer, i, stop)
            if not is_json:
                out[used] = QUOTE
                used += 1
            used = _write_string(buffer, i, stop, out, used)
            if not is_json:
                out[used] = QUOTE
                used += 1
            i = stop
    return used


@jit_in_place
def _is_delimiter(c: int) -> bool:
    return c in (QUOTE, COMMA, COLON, OPEN, CLOSE, OPEN_LIST, CLOSE_LIST)


# A number is copied as text, so that no digit of it is lost.
@jit_in_place
def _digits_end(buffer: Bytes, i: int, end: int) -> int:
    while i < end and 48 <= buffer[i] <= 57:
        i += 1
    return i


@jit_in_place
def _is_json_word(buffer: Bytes, i: int, end: int) -> bool:
    """True if a word is a number as JSON has them, true, false or null."""
    for k in range(3):
        if _equals(buffer, i, end, _LITERAL_TEXT, _LITERAL_BOUNDS[k], _LITERAL_BOUNDS[k + 1]):
            return True
    if i < end and buffer[i] == 45:
        i += 1
    stop = _digits_end(buffer, i, end)
    if stop == i or (buffer[i] == 48 and stop > i + 1):
        return False
    i = stop
    if i < end and buffer[i] == 46:
        stop = _digits_end(buffer, i + 1, end)
        if stop == i + 1:
            return False
        i = stop
    if i < end and buffer[i] in (69, 101):
        i += 1
        if i < end and buffer[i] in (43, 45):
            i += 1
        stop = _digits_end(buffer, i, end)
        if stop == i:
            return False
        i = stop
    return i == end


@jit_in_place
def _write_string(buffer: Bytes, i: int, end: int, out: Bytes, used: int) -> int:
    """Copy the inside of a string; doubles bare backslashes, makes spaces of control characters."""
    while i < end:
        c = buffer[i]
        if c == 92:
            if i + 1 < end and _is_escape(buffer, i + 1, end):
                out[used], out[used + 1] = c, buffer[i + 1]
                used, i = used + 2, i + 2
                continue
            out[used], out[used + 1] = c, c
            used, i = used + 2, i + 1
            continue
        out[used] = max(c, 32)
        used, i = used + 1, i + 1
    return used


@jit_in_place
def _is_escape(buffer: Bytes, i: int, end: int) -> bool:
    """True if what follows a backslash makes an escape of JSON."""
    if buffer[i] != 117:
        return buffer[i] in (34, 92, 47, 98, 102, 110, 114, 116)
    if i + 4 >= end:
        return False
    for k in range(i + 1, i + 5):
        d = buffer[k]
        if not (48 <= d <= 57 or 97 <= (d | 32) <= 102):
            return False
    return True
