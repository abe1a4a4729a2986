"""Debug annotations as JSON objects: numba loops from the wire to text.

No function calls itself: nested values are walked with a stack. Field numbers are those of
``debug_annotation.proto`` (Perfetto v58); ``nested_value`` is how Chrome nested until 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.arrays.interning import TextTable, intern_text
from chopper_interop.converters.perfetto.read import json_text
from chopper_interop.converters.perfetto.read.interned_decode import (
    InternedTexts,
    find_range,
    find_text,
)
from chopper_interop.io.json_text import CLOSE, CLOSE_LIST, COLON, COMMA, OPEN, OPEN_LIST
from chopper_interop.io.wire import (
    FIXED64,
    LENGTH,
    VARINT,
    copy_bytes,
    double_from_bits,
    next_message,
    read_field,
    read_varint,
)
from chopper_interop.schemas.perfetto import (
    ANNOTATION_ARRAY_VALUES,
    ANNOTATION_BOOL_VALUE,
    ANNOTATION_DICT_ENTRIES,
    ANNOTATION_DOUBLE_VALUE,
    ANNOTATION_INT_VALUE,
    ANNOTATION_LEGACY_JSON_VALUE,
    ANNOTATION_NAME,
    ANNOTATION_NAME_IID,
    ANNOTATION_NESTED_VALUE,
    ANNOTATION_POINTER_VALUE,
    ANNOTATION_PROTO_VALUE,
    ANNOTATION_STRING_VALUE,
    ANNOTATION_STRING_VALUE_IID,
    ANNOTATION_UINT_VALUE,
    EVENT_CORRELATION_ID,
    EVENT_CORRELATION_ID_STR,
    EVENT_DEBUG_ANNOTATIONS,
    INTERNED_DEBUG_ANNOTATION_NAMES,
    INTERNED_DEBUG_ANNOTATION_STRING_VALUES,
    NESTED_ARRAY,
    NESTED_BOOL_VALUE,
    NESTED_DICT,
    NESTED_DOUBLE_VALUE,
    NESTED_INT_VALUE,
    NESTED_NESTED_TYPE,
    NESTED_STRING_VALUE,
)

UNKNOWN = np.iinfo(np.int64).min
"""Value of a key that a slice does not have."""
KEYS = (
    b"begin_ns", b"end_ns", b"corr_id", b"correlation", b"queue", b"stream", b"stream_id",
    b"stream_ID", b"device", b"agent", b"agent_id", b"dst_agent", b"dst_agent_id", b"src_agent",
    b"src_agent_id", b"kernel_id", b"copy_bytes", b"bytes", b"allocation_size", b"Agent ID",
)  # fmt: skip
"""Arguments of which the values become columns."""
_AGENTS = np.array([k in (b"agent", b"dst_agent", b"src_agent") for k in KEYS])
GROUPS = (b"chopper", b"counters")
"""Dictionaries that our own writer makes of annotation columns and hardware counters."""
INTEGER, REAL, TEXT = 1, 2, 3
"""Types of values of `ColumnEntries`."""
NO_ENTRIES, CHOPPER_ENTRIES, REAL_ENTRIES = range(3)
"""Annotations that `ColumnEntries` are made of: none, those in `GROUPS`, all decimal numbers."""
KERNEL_COUNTERS = 2
"""Group of entries that are in none of `GROUPS`: decimal numbers, as rocprofv3 gives counters."""
REALS, UNREADABLE, ENTRIES, TYPED = range(4)
"""Counts: decimal numbers, annotations that cannot be read, entries, and fields of events that are
arguments of Chrome's own types (or the time that threads ran)."""
# Field numbers of TrackEvent in track_event.proto.
_FIELDS_READ = (1, 3, 4, 6, 9, 10, 11, 12, 16, 22, 23, 30, 31, 36, 42, 44, 45, 46, 47, 48, 52, 53)
_IS_READ = np.isin(np.arange(64), _FIELDS_READ)
"""Fields of track events that are read."""
REAL_ROOM = 26
"""Characters left free for a decimal number, to be filled in afterwards.

A double takes 24 at most (``-2.2250738585072014e-308``), and ``.0`` where it looks like an integer.
"""
CPU = -2
"""Number of an agent that is a processor."""
_NUMBERS = (
    ANNOTATION_BOOL_VALUE, ANNOTATION_UINT_VALUE, ANNOTATION_INT_VALUE, ANNOTATION_POINTER_VALUE,
    ANNOTATION_STRING_VALUE_IID,
)  # fmt: skip
_INTEGERS = _NUMBERS[:4]
_TEXTS = (
    ANNOTATION_STRING_VALUE, ANNOTATION_NESTED_VALUE, ANNOTATION_LEGACY_JSON_VALUE, ANNOTATION_PROTO_VALUE,
)  # fmt: skip
_CONTAINERS = (ANNOTATION_DICT_ENTRIES, ANNOTATION_ARRAY_VALUES)
"""Fields of values by what they hold: a varint, an integer, bytes, other annotations."""
_NESTED = (ANNOTATION_NESTED_VALUE,)
_CORRELATION = np.frombuffer(b'"correlation_id":', np.uint8)
MAX_DEPTH = 64
"""Levels of nesting that are read. Chosen: far more than producers write; deeper values are null."""
_NONE, _OLD_DICT, _OLD_LIST = 0, 40, 41
"""Kinds of annotations that none of their fields states; others are the number of the field."""
_KIND_OF_NESTED = np.full(NESTED_STRING_VALUE + 1, _NONE)
_KIND_OF_NESTED[[NESTED_INT_VALUE, NESTED_DOUBLE_VALUE, NESTED_BOOL_VALUE, NESTED_STRING_VALUE]] = (
    ANNOTATION_INT_VALUE, ANNOTATION_DOUBLE_VALUE, ANNOTATION_BOOL_VALUE, ANNOTATION_STRING_VALUE,
)  # fmt: skip
"""Kinds of the fields of ``nested_value``."""
_DICTS = (ANNOTATION_DICT_ENTRIES, _OLD_DICT)
_LISTS = (ANNOTATION_ARRAY_VALUES, _OLD_LIST)
_OLD_KEYS, _OLD_MEMBERS, _OLD_ITEMS = 2, 3, 4
"""Fields of ``nested_value``: keys and values of a dictionary, values of a list."""


class TextSet(NamedTuple):
    """Texts to be recognised: text k is ``text[first[k]:first[k + 1]]``."""

    text: Bytes
    first: Array


class ColumnEntries(NamedTuple):
    """Values that become columns and counters: slice, group (see `GROUPS`), name, type, value.

    Names and texts are interned numbers, decimal values the bits of a double.
    """

    slice: Array
    group: Array
    name: Array
    type: Array
    value: Array


class Reals(NamedTuple):
    """Decimal numbers to be filled in: offset in the text, and value."""

    at: Array
    value: Array


def text_set(texts: tuple[bytes, ...]) -> TextSet:
    """Return these texts as a set."""
    first = np.cumsum([0, *(len(t) for t in texts)]).astype(np.int64)
    return TextSet(np.frombuffer(bytearray(b"".join(texts)), np.uint8), first)


def agent_keys() -> Array:
    """Mark those of `KEYS` that have agents as values, which may be texts such as ``GPU-0``."""
    return _AGENTS.copy()


@jit_in_place
def index_of_text(buffer: Bytes, at: int, length: int, texts: TextSet) -> int:
    """Return the index of buffer[at:at + length] among the texts; -1 if it is none of them."""
    for k in range(len(texts.first) - 1):
        first = texts.first[k]
        if texts.first[k + 1] - first != length:
            continue
        j = 0
        while j < length and buffer[at + j] == texts.text[first + j]:
            j += 1
        if j == length:
            return k
    return -1


# Leaves blanks for a decimal number, which Python writes afterwards: shortest digits are no loop's work.
@jit_in_place
def _write_real(out: Bytes, i: int, value: float, reals: Reals, count: Array) -> int:
    k = count[REALS]
    if k < len(reals.at):
        reals.at[k], reals.value[k] = i, value
    count[REALS] = k + 1
    for _ in range(REAL_ROOM):
        i = json_text.put(out, i, 32)
    return i


@jit_in_place
def _decode_annotation(
    buffer: Bytes,
    i: int,
    stop: int,
    old: bool,  # noqa: FBT001 # compiled functions take no keywords
) -> tuple[int, np.uint64, int, int, np.uint64, int, int]:
    """Decode an annotation: kind, value, its byte range, and its name (number, byte range).

    Parameters
    ----------
    buffer, i, stop
        The annotation, buffer[i:stop].
    old
        True for the nested values that Chrome wrote until 2021.
    """
    kind, bits, at, end = _NONE, np.uint64(0), 0, 0
    iid, name_at, name_end = np.uint64(0), 0, -1
    while i < stop:
        number, inner, value, begin, i = read_field(buffer, i, stop)
        if i < 0:
            return -1, bits, at, end, iid, name_at, name_end
        if old:
            if number == NESTED_NESTED_TYPE and inner == VARINT:
                kind = (
                    _OLD_DICT
                    if value == NESTED_DICT
                    else _OLD_LIST
                    if value == NESTED_ARRAY
                    else kind
                )
            number = _KIND_OF_NESTED[number] if number < len(_KIND_OF_NESTED) else _NONE
        if number == ANNOTATION_NAME_IID and inner == VARINT:
            iid = value
        elif number == ANNOTATION_NAME and inner == LENGTH:
            name_at, name_end = begin, i
        elif number in _NUMBERS and inner == VARINT:
            kind, bits = number, value
        elif number == ANNOTATION_DOUBLE_VALUE and inner == FIXED64:
            kind, bits = ANNOTATION_DOUBLE_VALUE, value
        elif number in _TEXTS + _CONTAINERS and inner == LENGTH:
            kind, at, end = number, begin, i
    return kind, bits, at, end, iid, name_at, name_end


@jit_in_place
def _plain_integer(buffer: Bytes, i: int, stop: int) -> tuple[int, np.uint64, np.uint64]:
    """Return kind, value and name's number of an integer with a name below 128; else `_NONE`.

    These are most arguments of rocprofv3's, and need no loop over fields.
    """
    zero = np.uint64(0)
    if i + 4 > stop or buffer[i] != 8 or buffer[i + 1] >= 128:
        return _NONE, zero, zero
    kind = np.int64(buffer[i + 2])
    if kind not in (8 * ANNOTATION_UINT_VALUE, 8 * ANNOTATION_INT_VALUE):
        return _NONE, zero, zero
    value, end = read_varint(buffer, i + 3, stop)
    if end != stop:
        return _NONE, zero, zero
    return kind >> 3, value, np.uint64(buffer[i + 1])


@jit_in_place
def _write_value(
    buffer: Bytes, start: int, stop: int, state: int, texts: InternedTexts, out: Bytes, i: int,
    reals: Reals, count: Array, stack: Array,
) -> int:  # fmt: skip
    """Write the value of an annotation as JSON, with all that is in it.

    Dictionaries and lists that are open are on the stack: offset of the next member, end, kind,
    offset of the next key (old dictionaries have keys and values in lists of their own), and 1
    after the first member.
    """
    depth, at, end, old = 0, start, stop, False
    while True:
        kind, bits, first, last, _, _, _ = _decode_annotation(buffer, at, end, old)
        may_open = depth + 1 < MAX_DEPTH
        if kind == ANNOTATION_NESTED_VALUE and may_open:
            at, end, old = first, last, True
            continue
        if kind in _DICTS + _LISTS and may_open:
            i = json_text.put(out, i, OPEN if kind in _DICTS else OPEN_LIST)
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = at, end, kind
            stack[depth, 3], stack[depth, 4] = at, 0
            depth += 1
        else:
            i = _write_scalar(buffer, kind, bits, first, last, state, texts, out, i, reals, count)
        at = -1
        while depth and at < 0:
            old = stack[depth - 1, 2] in (_OLD_DICT, _OLD_LIST)
            i, at, end = _open_member(buffer, stack[depth - 1], state, texts, out, i)
            if at < 0:
                depth -= 1
        if at < 0:
            return i


@jit_in_place
def _write_scalar(
    buffer: Bytes, kind: int, bits: np.uint64, first: int, last: int, state: int, texts: InternedTexts,
    out: Bytes, i: int, reals: Reals, count: Array,
) -> int:  # fmt: skip
    """Write a value that holds no others; null for what cannot be read."""
    if kind == ANNOTATION_STRING_VALUE_IID:
        first, last = find_range(texts, state, INTERNED_DEBUG_ANNOTATION_STRING_VALUES, bits)
        kind = ANNOTATION_STRING_VALUE if last >= 0 else _NONE
    if kind == ANNOTATION_BOOL_VALUE:
        return json_text.truth(out, i, bits != np.uint64(0))
    if kind in (ANNOTATION_INT_VALUE, ANNOTATION_UINT_VALUE):
        return json_text.decimal(out, i, bits, kind == ANNOTATION_INT_VALUE and np.int64(bits) < 0)
    if kind == ANNOTATION_DOUBLE_VALUE:
        return _write_real(out, i, double_from_bits(bits), reals, count)
    if kind == ANNOTATION_POINTER_VALUE:
        return json_text.pointer(out, i, bits)
    if kind == ANNOTATION_STRING_VALUE:
        return json_text.string(out, i, buffer, first, last)
    if kind == ANNOTATION_LEGACY_JSON_VALUE:
        return json_text.json_or_string(out, i, buffer, first, last)
    count[UNREADABLE] += 1
    return json_text.null(out, i)


@jit_in_place
def _open_member(
    buffer: Bytes, opened: Array, state: int, texts: InternedTexts, out: Bytes, i: int
) -> tuple[int, int, int]:
    """Write the key of the next member of what is open, or its closing bracket; return the member's range too.

    The range begins at -1 if there is no further member.
    """
    kind = opened[2]
    field = _OLD_MEMBERS if kind == _OLD_DICT else _OLD_ITEMS if kind == _OLD_LIST else kind
    begin, end, opened[0] = next_message(buffer, opened[0], opened[1], field)
    has_member, key_at, key_end = opened[0] >= 0, 0, 0
    if has_member and kind == _OLD_DICT:
        key_at, key_end, opened[3] = next_message(buffer, opened[3], opened[1], _OLD_KEYS)
        has_member = opened[3] >= 0
    if not has_member:
        return json_text.put(out, i, CLOSE if kind in _DICTS else CLOSE_LIST), -1, -1
    if opened[4]:
        i = json_text.put(out, i, COMMA)
    opened[4] = 1
    if kind == ANNOTATION_DICT_ENTRIES:
        _, _, _, _, iid, key_at, key_end = _decode_annotation(buffer, begin, end, False)
        if key_end < 0:
            key_at, key_end = find_range(texts, state, INTERNED_DEBUG_ANNOTATION_NAMES, iid)
    if kind in _DICTS:
        i = json_text.string(out, i, buffer, key_at, max(key_at, key_end))
        i = json_text.put(out, i, COLON)
    return i, begin, end


@jit_in_place
def _agent_number(buffer: Bytes, at: int, stop: int) -> int:
    """Return the number at the end of a text such as ``GPU-0``; `CPU` if it begins with a C."""
    if at < stop and buffer[at] == 67:
        return CPU
    value, digits = 0, 0
    for k in range(at, stop):
        if 48 <= buffer[k] <= 57:
            value = (value if digits else 0) * 10 + np.int64(buffer[k]) - 48
            digits = min(digits + 1, 9)
        else:
            digits = 0
    return value if digits else UNKNOWN


@jit_in_place
def _add_entry(
    buffer: Bytes, row: int, group: int, key_at: int, key_end: int, type_: int, value: int,
    entries: ColumnEntries, count: Array, keys: TextTable,
) -> None:  # fmt: skip
    f = count[ENTRIES]
    if f < len(entries.slice):
        entries.slice[f], entries.group[f], entries.type[f] = row, group, type_
        entries.name[f] = intern_text(buffer, key_at, key_end, keys)
        entries.value[f] = value
    count[ENTRIES] = f + 1


@jit_in_place
def _add_member_entries(
    buffer: Bytes, i: int, stop: int, state: int, texts: InternedTexts, row: int, group: int,
    entries: ColumnEntries, count: Array, keys: TextTable, words: TextTable,
) -> None:  # fmt: skip
    """Add the members of a dictionary that our writer wrote to the entries."""
    while True:
        begin, end, i = next_message(buffer, i, stop, ANNOTATION_DICT_ENTRIES)
        if i < 0:
            return
        kind, bits, at, last, iid, key_at, key_end = _decode_annotation(buffer, begin, end, False)
        if key_end < 0:
            key_at, key_end = find_range(texts, state, INTERNED_DEBUG_ANNOTATION_NAMES, iid)
        if kind == ANNOTATION_STRING_VALUE_IID:
            at, last = find_range(texts, state, INTERNED_DEBUG_ANNOTATION_STRING_VALUES, bits)
        if key_end < 0 or last < 0:
            continue
        value, type_ = np.int64(bits), INTEGER
        if kind in (ANNOTATION_STRING_VALUE, ANNOTATION_STRING_VALUE_IID):
            value, type_ = intern_text(buffer, at, last, words), TEXT
        elif kind == ANNOTATION_DOUBLE_VALUE:
            type_ = REAL
        elif kind not in (ANNOTATION_BOOL_VALUE, ANNOTATION_INT_VALUE, ANNOTATION_UINT_VALUE):
            continue
        _add_entry(buffer, row, group, key_at, key_end, type_, value, entries, count, keys)


@jit_in_place
def _find_name(texts: InternedTexts, state: int, iid: np.uint64, near: Array) -> int:
    """Find the entry of an annotation's name; -1 if there is none.

    `near` keeps those of the first names of a state, which it has at its end: -2 where unknown.
    """
    if near[-1] != state:
        near[:], near[-1] = -2, state
    if iid >= np.uint64(len(near) - 1):
        return find_text(texts, state, INTERNED_DEBUG_ANNOTATION_NAMES, iid)
    if near[iid] == -2:
        near[iid] = find_text(texts, state, INTERNED_DEBUG_ANNOTATION_NAMES, iid)
    return near[iid]


@jit_in_place
def _write_correlation(
    buffer: Bytes, number: int, bits: np.uint64, at: int, stop: int, out: Bytes, i: int
) -> int:
    """Write the field of an event that is its correlation id, a number or a text."""
    i = json_text.word(out, i, _CORRELATION)
    if number == EVENT_CORRELATION_ID:
        return json_text.decimal(out, i, bits, False)
    return json_text.string(out, i, buffer, at, stop)


@jit_in_place
def _set_value(
    buffer: Bytes, kind: int, value: np.uint64, at: int, stop: int, state: int, texts: InternedTexts,
    is_agent: bool, values: Array, row: int,  # noqa: FBT001 # compiled functions take no keywords
) -> None:  # fmt: skip
    """Set the value of an argument that becomes a column: an integer, or the number of an agent's text."""
    if kind in _INTEGERS:
        if np.int64(value) != UNKNOWN:
            values[row] = np.int64(value)
    elif is_agent and kind in (ANNOTATION_STRING_VALUE, ANNOTATION_STRING_VALUE_IID):
        if kind == ANNOTATION_STRING_VALUE_IID:
            at, stop = find_range(texts, state, INTERNED_DEBUG_ANNOTATION_STRING_VALUES, value)
        values[row] = _agent_number(buffer, at, stop)


@jit
def write_objects(
    buffer: Bytes, bodies_at: Array, bodies_len: Array, state: Array, first_row: int, texts: InternedTexts,
    groups: TextSet, entry_source: int, columns: TextSet, agents: Array, values: Array,
    row_at: Array, row_len: Array, out: Bytes, reals: Reals, entries: ColumnEntries, count: Array,
    keys: TextTable, words: TextTable, stack: Array, seen: Array,
) -> int:  # fmt: skip
    """Write a JSON object for each slice, of the annotations of its events.

    Compiled, as every byte of every annotation passes here once. Keys recur with every slice, so
    their written form is cached (`seen`), as are the entries of names below 128 (`_find_name`).

    Parameters
    ----------
    buffer
        The trace.
    bodies_at, bodies_len, state
        Two columns each: the event that begins a slice and the one that ends it.
    first_row
        Number of the first slice, for `entries`.
    texts
        Interned texts.
    groups, entry_source
        Names of our writer's dictionaries, and the annotations that entries are made of:
        `NO_ENTRIES`, `CHOPPER_ENTRIES` or `REAL_ENTRIES`.
    columns, agents, values
        Names of arguments that become columns, the mask of those that are agents, and their values.
    row_at, row_len
        Offset and length of each object in `out`.
    out, reals, entries
        Output. If one is too small, `count` and the result give the size that it must have.
    count
        By `REALS`, `UNREADABLE`, `ENTRIES`, `TYPED`.
    keys, words
        Names and texts of entries.
    stack
        Room for the open dictionaries and lists of a value.
    seen
        For each interned text: its offset in `out` as a key, its length there, its index in
        `columns` plus one. All 0 at first.

    Returns
    -------
    size
        Bytes of the text.
    """
    i = 0
    near = np.full(129, -1, np.int64)
    for row in range(len(bodies_at)):
        start = i
        for part in range(2):
            j = bodies_at[row, part]
            stop = j + bodies_len[row, part]
            while j < stop:
                number, inner, bits, begin, j = read_field(buffer, j, stop)
                if j < 0:
                    break
                if number != EVENT_DEBUG_ANNOTATIONS or inner != LENGTH:
                    if number in (EVENT_CORRELATION_ID, EVENT_CORRELATION_ID_STR):
                        i = json_text.put(out, i, OPEN if i == start else COMMA)
                        i = _write_correlation(buffer, number, bits, begin, j, out, i)
                    elif number >= len(_IS_READ) or not _IS_READ[number]:
                        count[TYPED] += 1
                    continue
                kind, value, iid = _plain_integer(buffer, begin, j)
                at, last, key_at, key_end, k = 0, 0, 0, -1, -1
                if kind == _NONE:
                    kind, value, at, last, iid, key_at, key_end = _decode_annotation(
                        buffer, begin, j, False
                    )
                if key_end < 0:
                    k = _find_name(texts, state[row, part], iid, near)
                    if k >= 0:
                        key_at, key_end = texts.at[k], texts.at[k] + texts.length[k]
                if kind <= 0 or key_end < 0:
                    count[UNREADABLE] += 1
                    continue
                if entry_source == CHOPPER_ENTRIES and kind == ANNOTATION_DICT_ENTRIES:
                    group = index_of_text(buffer, key_at, key_end - key_at, groups)
                    if group >= 0:
                        _add_member_entries(buffer, begin, j, state[row, part], texts, first_row + row, group,
                                 entries, count, keys, words)  # fmt: skip
                        continue
                elif entry_source == REAL_ENTRIES and kind == ANNOTATION_DOUBLE_VALUE:
                    _add_entry(buffer, first_row + row, KERNEL_COUNTERS, key_at, key_end, REAL,
                          np.int64(value), entries, count, keys)  # fmt: skip
                known_key = k >= 0 and seen[k, 1] > 0
                column = seen[k, 2] - 1 if known_key else index_of_text(
                    buffer, key_at, key_end - key_at, columns
                )  # fmt: skip
                if column >= 0:
                    _set_value(buffer, kind, value, at, last, state[row, part], texts, agents[column],
                               values[column], row)  # fmt: skip
                i = json_text.put(out, i, OPEN if i == start else COMMA)
                if known_key and i + seen[k, 1] <= len(out):
                    i = copy_bytes(out, i, out, seen[k, 0], seen[k, 0] + seen[k, 1])
                else:
                    key = i
                    i = json_text.put(out, json_text.string(out, i, buffer, key_at, key_end), COLON)
                    if k >= 0 and i <= len(out):
                        seen[k, 0], seen[k, 1], seen[k, 2] = key, i - key, column + 1
                if kind in _DICTS + _LISTS + _NESTED:
                    i = _write_value(
                        buffer, begin, j, state[row, part], texts, out, i, reals, count, stack
                    )
                else:
                    i = _write_scalar(buffer, kind, value, at, last, state[row, part], texts, out, i,
                                      reals, count)  # fmt: skip
        if i > start:
            i = json_text.put(out, i, CLOSE)
        row_at[row], row_len[row] = start, i - start
    return i


@jit_in_place
def fill_reals(out: Bytes, at: Array, text: Bytes, first: Array) -> None:
    """Write decimal numbers into the room left for them, integers with ``.0``."""
    for k in range(len(at)):
        i, is_whole = at[k], True
        for j in range(first[k], first[k + 1]):
            c = text[j]
            is_whole = is_whole and (c == 45 or 48 <= c <= 57)
            out[i] = c
            i += 1
        if is_whole:
            out[i], out[i + 1] = 46, 48


@jit
def intern_ranges(buffer: Bytes, at: Array, length: Array, table: TextTable) -> Array:
    """Intern byte ranges; return their numbers, -1 for those that have a negative length."""
    codes = np.full(len(at), -1, np.int32)
    for i in range(len(at)):
        if length[i] >= 0:
            codes[i] = intern_text(buffer, at[i], at[i] + length[i], table)
    return codes
