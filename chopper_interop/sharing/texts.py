"""Every text of a trace, wherever it stands: tables, arguments and metadata.

Each text has a place: ``nodes.name``, ``lanes.name``, ``args`` and ``args.key`` in arguments, and in the
metadata class and field (``Rank.host``), keys and values of mappings as ``Meta.facts.key`` and
``Meta.facts``. Columns and fields are recognised by their type, so that none that is added later is missed.

In arguments texts are recognised and replaced without parsing every object. A compiled loop lists the
strings; each distinct one is decoded, changed and encoded once, and the objects in which something
changed are put together from pieces of the old and the new text::

    {"file": "/home/a/x.py", "n": 3}
    ^piece   ^edit         ^piece
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from itertools import chain, product
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from chopper_interop import arguments, rank_batches
from chopper_interop.arguments import ArgumentRanges
from chopper_interop.arrays import Array, Bytes, arrow, gather, spill
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.io import json_text
from chopper_interop.io.background import each
from chopper_interop.schemas import hub
from chopper_interop.trace import Text, Trace

KEY, VALUE, LEFT_OUT = range(3)
"""Kind of a range: a key, a string, or the value of a key that is left out."""
_MARK, _BEGINS = 1, 2
"""Of a letter: it is a mark; a word begins with it."""
_JOINS = tuple(b"_- ")
"""Between the words of a key."""
_BLOCK = 1 << 16
"""Objects that are looked into at a time (chosen: two megabytes, and as many for what is listed)."""
_NO_QUOTE = json_text.byte_table(b'"', but=True)
_EMPTY = b'""'
_TO_LOWER = ord("a") - ord("A")


class Change(Protocol):
    """Makes the new text of a text at a place."""

    def __call__(self, place: str, text: str, /) -> str:
        """Return the new text, or the same one."""


def change_tables(trace: Trace, change: Change) -> tuple[Trace, int]:
    """Change the texts of all tables, each distinct one once; with the number of rows changed."""
    tables, count = {}, 0
    for name in hub.TABLES:
        table = getattr(trace, name)
        for k, field in enumerate(table.schema):
            if not (_is_text(field.type) or pa.types.is_dictionary(field.type)):
                continue
            column, changed = _column(arrow.single_chunk(table[field.name]), name, field, change)
            if changed:
                table = table.set_column(k, field, column)
                count += changed
        tables[name] = table
    return (replace(trace, **tables), count) if count else (trace, 0)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _column(array: pa.Array, table: str, field: pa.Field, change: Change) -> tuple[pa.Array, int]:
    """Return a column with changed texts, and the number of its rows that were changed."""
    coded = array if pa.types.is_dictionary(array.type) else arrow.encoded(array)
    old = coded.dictionary.to_pylist()
    new = [change(f"{table}.{field.name}", text or "") for text in old]
    changed = np.array([*(a != b for a, b in zip(old, new, strict=True)), False])
    if not changed.any():
        return array, 0
    codes = arrow.to_numpy(coded, -1)
    column = arrow.dictionary(codes, new)  # of equal aliases one stays
    return column.cast(field.type), int(changed[codes].sum())


def change_meta(value: Any, change: Change, place: str = "Meta") -> Any:
    """Return metadata with all texts changed: of dataclasses, of tuples and of mappings."""
    if type(value) is str:
        return change(place, value)
    if isinstance(value, tuple):
        return tuple(change_meta(item, change, place) for item in value)
    if isinstance(value, dict):
        return {change(f"{place}.key", k): change_meta(v, change, place) for k, v in value.items()}
    new = {}
    kind: Any = type(value)
    for name, inner in _fields_of(kind):
        old = getattr(value, name)
        if old is None or old == () or isinstance(old, int | float):
            continue
        item = change(inner, old) if type(old) is str else change_meta(old, change, inner)
        if item != old:
            new[name] = item
    return replace(value, **new) if new else value


@cache
def _fields_of(kind: Any) -> tuple[tuple[str, str], ...]:
    """Name and place of each field of a dataclass; none of another type."""
    of_kind = fields(kind) if is_dataclass(kind) else ()
    return tuple((field.name, f"{kind.__name__}.{field.name}") for field in of_kind)


@dataclass(frozen=True)
class Changes:
    """Changes to the strings of arguments.

    Parameters
    ----------
    value
        Makes the new text of a string.
    key
        Makes the new text of a key; None leaves keys as they are.
    left_out
        Keys whose values are replaced by an empty text, in lower case, their words joined.
    marks, words
        Strings and keys that have none of these letters and words are not decoded, as they do not change; all are if
        there are no marks.
    """

    value: Callable[[str], str]
    key: Callable[[str], str] | None = None
    left_out: tuple[str, ...] = ()
    marks: str = ""
    words: tuple[str, ...] = ()


class _Objects(NamedTuple):
    """The arguments of all nodes: offset and length of each object, and the object of each node."""

    at: Array
    length: Array
    of_node: Array | slice


class _TextRanges(NamedTuple):
    """Ranges in the text that may change: object, offset, length and what each is."""

    row: Array
    at: Array
    length: Array
    kind: Array


class _Wanted(NamedTuple):
    """Kinds of ranges that are looked into, and the letters and words of which they must have one.

    `of_letter` has `_MARK` or `_BEGINS` of each letter, `text` has the words and `ends` where each ends. A string of
    `plain` letters alone, as most are, has none: that shows while its end is sought.
    """

    kinds: Array
    every: bool
    of_letter: Array
    plain: Array
    text: Bytes
    ends: Array

    @classmethod
    def from_changes(cls, changes: Changes) -> _Wanted:
        """Return the table of some changes."""
        words = [word.encode("utf-8", "surrogatepass") for word in changes.words]
        of_letter = np.zeros(256, np.uint8)
        of_letter[[word[0] for word in words]] = _BEGINS
        of_letter[list(changes.marks.encode())] = _MARK
        kinds = np.array([changes.key is not None, True])
        text = np.frombuffer(b"".join(words), np.uint8).copy()
        ends = np.cumsum([*map(len, words)], dtype=np.int64)
        every = not changes.marks
        plain = json_text.IN_STRING & (of_letter == 0) & (not every)
        return cls(kinds, every, of_letter, plain, text, ends)


class _LeftOut(NamedTuple):
    """Keys whose values are left out: their letters, where each ends, and their outer letters.

    `outer` says of each pair of a first and a last letter, of any case, if a key has them.
    """

    text: Bytes
    ends: Array
    outer: Array

    @classmethod
    def from_keys(cls, keys: tuple[str, ...]) -> _LeftOut:
        """Return the table of some keys."""
        text = np.frombuffer("".join(keys).encode(), np.uint8).copy()
        outer = np.zeros((256, 256), np.bool_)
        for key in keys:
            for first, last in product((key[0], key[0].upper()), (key[-1], key[-1].upper())):
                outer[ord(first), ord(last)] = True
        return cls(text, np.cumsum([len(key) for key in keys], dtype=np.int64), outer)


def change_arguments(trace: Trace, changes: Changes) -> tuple[Trace, int]:
    """Change the texts of all arguments.

    Objects that are no JSON are left out as a whole, as nobody can say what is in them.

    Returns
    -------
    trace, count
        The trace, and how many keys, values and objects were changed.
    """
    buffers, count = trace.text.buffers, 0

    def derive(part: Trace) -> dict[str, pa.Array]:
        nonlocal buffers, count
        part = replace(part, text=Text(buffers))
        objects = _objects(part)
        places, damaged = _find(part.text, objects, changes)
        edits, code, new = _edits(part.text, places, changes)
        changed = len(edits.row) + int(damaged.sum())
        if not changed:
            return {}
        out, at, length = _rebuilt(part.text, objects, edits, code, new)
        length[damaged] = 0
        buffers, count = (*buffers, spill.kept(out)), count + changed
        return {
            "args_at": arrow.array(at[objects.of_node]),
            "args_len": arrow.array(length.astype(np.int32)[objects.of_node]),
        }

    changed_trace = rank_batches.with_columns(trace, derive)
    return (replace(changed_trace, text=Text(buffers)), count) if count else (trace, 0)


def _objects(trace: Trace) -> _Objects:
    """List each object once: many nodes of a database may share a text."""
    at, length = trace.array("args_at"), trace.array("args_len")
    if int(length.sum(dtype=np.int64)) <= int(trace.text.starts[-1]):  # not worth the sorting
        return _Objects(at, length, slice(None))
    first, code = gather.distinct(at, length)
    return _Objects(at[first], length[first], code)


def _find(text: Text, objects: _Objects, changes: Changes) -> tuple[_TextRanges, Array]:
    """List what may change, by object and offset, and mark objects that are no JSON."""
    keys = _LeftOut.from_keys(changes.left_out)
    wanted = _Wanted.from_changes(changes)
    damaged = np.zeros(len(objects.at), np.bool_)
    none = _TextRanges(*(np.empty(0, np.int64) for _ in _TextRanges._fields))

    def find_in_block(first: int) -> list[_TextRanges]:
        parts = []
        start = objects.at[first : first + _BLOCK]
        size = objects.length[first : first + _BLOCK].astype(np.int64)
        for rows, buffer, begin in arguments.rows_by_buffer(text, start, size):
            at, length = start[rows] - begin, size[rows]
            out = np.empty((4, len(rows)), np.int64)
            count, damaged[first + rows] = _list_texts(buffer, at, length, keys, wanted, out)
            if count > len(rows):  # there was no room for all
                out = np.empty((4, count), np.int64)
                _list_texts(buffer, at, length, keys, wanted, out)
            row, start_of, size_of, kind = out[:, :count].copy()  # of far more room
            parts.append(_TextRanges(first + rows[row], start_of + begin, size_of, kind))
        return parts

    parts = chain([none], *each(find_in_block, range(0, len(damaged), _BLOCK)))
    places = _TextRanges(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    order = np.argsort(places.row, kind="stable")
    return _TextRanges(*(column[order] for column in places)), damaged


@jit
def _list_texts(
    buffer: Bytes, start: Array, size: Array, keys: _LeftOut, wanted: _Wanted, out: Array
) -> tuple[int, Array]:
    """Count what may change and, as far as `out` has room, list it; mark objects that are no JSON, of which nothing counts.

    Compiled, as it visits every byte of the arguments. Rows of `out`: index of the object, offset, length, what it is.
    """
    count = 0
    damaged = np.zeros(len(start), np.bool_)
    for row in range(len(start)):
        i, n, before = start[row], start[row] + size[row], count
        while True:
            i = json_text.skip_bytes(buffer, i, n, _NO_QUOTE)
            if i >= n:
                break
            begin, end = i, json_text.skip_bytes(buffer, i + 1, n, wanted.plain)
            is_plain = end < n and buffer[end] == json_text.QUOTE
            end = end + 1 if is_plain else json_text.skip_string(buffer, i, n)
            if end < 0:
                damaged[row] = True
                break
            after, kind = json_text.skip_blank(buffer, end, n), VALUE
            if after < n and buffer[after] == json_text.COLON:
                kind = KEY
                if not is_plain and _is_wanted(buffer, begin, end, KEY, wanted):
                    count = _note(out, count, row, begin, end, KEY)
                if _is_left_out(buffer, begin + 1, end - 1, keys):
                    begin, end = _value_behind(buffer, after, n)
                    kind = LEFT_OUT
                    if end < 0:
                        damaged[row] = True
                        break
            if kind == LEFT_OUT or (
                kind == VALUE and not is_plain and _is_wanted(buffer, begin, end, VALUE, wanted)
            ):
                count = _note(out, count, row, begin, end, kind)
            i = end
        count = before if damaged[row] else count
    return count, damaged


@jit_in_place
def _note(out: Array, count: int, row: int, begin: int, end: int, kind: int) -> int:
    """Add a range to the list, if there is room; nothing is done about empty strings."""
    if end - begin == len(_EMPTY):
        return count
    if count < out.shape[1]:
        out[0, count], out[1, count], out[2, count], out[3, count] = row, begin, end - begin, kind
    return count + 1


@jit_in_place
def _value_behind(buffer: Bytes, colon: int, n: int) -> tuple[int, int]:
    """Begin and end of the value behind a colon; an end below 0 if there is none."""
    begin = json_text.skip_blank(buffer, colon + 1, n)
    return begin, json_text.skip_value(buffer, begin, n) if begin < n else -1


@jit_in_place
def _is_wanted(buffer: Bytes, begin: int, end: int, kind: int, wanted: _Wanted) -> bool:
    """True if a key or string is to be listed: whatever it is, or if it has one of the letters or words."""
    if wanted.every or not wanted.kinds[kind]:
        return bool(wanted.kinds[kind])
    for i in range(begin, end):
        letter = wanted.of_letter[buffer[i]]
        if letter == _MARK or (letter == _BEGINS and _has_word(buffer, i, end, wanted)):
            return True
    return False


@jit_in_place
def _has_word(buffer: Bytes, begin: int, end: int, wanted: _Wanted) -> bool:
    """True if one of the words stands at a place."""
    first = 0
    for k in range(len(wanted.ends)):
        size = wanted.ends[k] - first
        i = 0
        while i < size and begin + i < end and buffer[begin + i] == wanted.text[first + i]:
            i += 1
        if i == size:
            return True
        first = wanted.ends[k]
    return False


@jit_in_place
def _is_left_out(buffer: Bytes, begin: int, end: int, keys: _LeftOut) -> bool:
    """True if a key is one of those, whatever its case and what joins its words."""
    if end <= begin or not keys.outer[buffer[begin], buffer[end - 1]]:
        return False
    first = 0
    for k in range(len(keys.ends)):
        i, j = begin, first
        while i < end:
            c = buffer[i]
            if c not in _JOINS:
                if j == keys.ends[k] or (c != keys.text[j] and c + _TO_LOWER != keys.text[j]):
                    break
                j += 1
            i += 1
        if i == end and j == keys.ends[k]:
            return True
        first = keys.ends[k]
    return False


def _edits(
    text: Text, places: _TextRanges, changes: Changes
) -> tuple[_TextRanges, Array, list[bytes]]:
    """Keep what really changes; with the index of each one's new text, and the new texts."""
    new: list[bytes] = [_EMPTY]
    code = np.where(places.kind == LEFT_OUT, 0, -1)
    for kind, change in ((KEY, changes.key), (VALUE, changes.value)):
        chosen = np.flatnonzero(places.kind == kind)
        if change is None or not chosen.size:
            continue
        ranges = ArgumentRanges(places.at[chosen], places.length[chosen])
        of_range, texts = arguments.values_at(text, ranges)
        changed = [_changed(old, change) for old in texts]
        number = np.array([*(-1 if t is None else k for k, t in enumerate(changed)), -1])
        number = np.where(number >= 0, number + len(new), -1)
        code[chosen] = np.where(of_range >= 0, number[of_range], 0)  # no valid text: left out
        new += [text or b"" for text in changed]
    keep = code >= 0
    return _TextRanges(*(column[keep] for column in places)), code[keep], new


def _changed(old: Any, change: Callable[[str], str]) -> bytes | None:
    """Encode the new text of a string; None if it stays."""
    text = change(old)
    return None if text == old else msgspec.json.encode(text)


def _rebuilt(
    old: Text, objects: _Objects, edits: _TextRanges, code: Array, new: list[bytes]
) -> tuple[Array, Array, Array]:
    """Put the objects with edits together, in a buffer of their own.

    Returns
    -------
    out, at, length
        The buffer, to be put behind those of the text, and the offset and length of all objects in both.
    """
    start, size = objects.at.copy(), objects.length.astype(np.int64)
    base = int(old.starts[-1])
    sizes = np.array([len(text) for text in new], np.int64)
    places = base + np.cumsum(sizes) - sizes
    first = np.append(True, edits.row[1:] != edits.row[:-1])[: len(edits.row)]
    rows, number = edits.row[first], np.cumsum(first) - 1
    # of each edit the old text before it and the new one, and behind the last of an object the rest
    before = 2 * np.arange(len(edits.row)) + number
    at = np.empty(2 * len(edits.row) + len(rows), np.int64)
    length = np.empty_like(at)
    end = edits.at + edits.length
    at[before] = np.where(first, start[edits.row], np.append(0, end)[: len(end)])
    length[before] = edits.at - at[before]
    at[before + 1], length[before + 1] = places[code], sizes[code]
    last = np.append(first[1:], True)[: len(edits.row)]
    at[before[last] + 2] = end[last]
    length[before[last] + 2] = start[rows] + size[rows] - end[last]
    pieces = Text((*old.buffers, np.frombuffer(b"".join(new), np.uint8).copy()))
    out = gather.concatenate_ranges(pieces.buffers, pieces.starts, at, length)
    size[rows] += gather.group_sums(number, sizes[code] - edits.length, len(rows))
    start[rows] = base + np.cumsum(size[rows]) - size[rows]
    return out, start, size
