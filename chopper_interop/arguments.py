"""Values of the arguments of many nodes, read from the JSON text that a reader left unparsed.

The arguments of a node are a JSON object in `Trace.text`, which nothing parses until a value is
needed. Here compiled loops scan the objects of any number of nodes for some keys, and only the
values of these keys are decoded, each distinct text once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, Bytes, interning, spill
from chopper_interop.arrays.compiled import jit, jit_in_place
from chopper_interop.io import json_members, json_text
from chopper_interop.io.background import each
from chopper_interop.trace import Text, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.arrays.interning import TextTable

_CAPACITY = 4096
"""First size of the table of distinct texts. Chosen: it fits a core's cache and doubles as needed."""
_BLOCK = 1 << 16
"""Nodes whose arguments are looked into at a time (chosen: a megabyte for each key)."""
_INVALID = object()
"""Stands for a text that is no JSON."""


class ArgumentRanges(NamedTuple):
    """Byte ranges in `Trace.text` of the values of one key, one for each node."""

    at: Array
    """Offset of the first byte."""
    length: Array
    """Number of bytes, quotes and brackets included; 0 where the node has no such argument."""


class Integers(NamedTuple):
    """Integer arguments of one key, one for each node.

    A number in quotes counts, a fraction is rounded; one outside the range of int64 does not count.
    """

    value: Array
    """int64; 0 where the node has none."""
    known: Array
    """Mask of the nodes that have one."""


def find(trace: Trace, nodes: Array, *keys: str) -> tuple[ArgumentRanges, ...]:
    """Find the values of some keys, in one pass over the arguments.

    Parameters
    ----------
    trace
        Any trace.
    nodes
        Rows of its nodes.
    *keys
        Keys of the outermost object, as they are written there; of equal ones the first counts.

    Returns
    -------
    tuple of ArgumentRanges
        One for each key, each as long as `nodes`.
    """
    return find_with_integers(trace, nodes, keys, ())[0]


def find_with_integers(
    trace: Trace, nodes: Array, keys: Sequence[str], integer_keys: Sequence[str]
) -> tuple[tuple[ArgumentRanges, ...], tuple[Integers, ...]]:
    """Find the values of some keys, and read the integers of others, in one pass over the arguments; see `find`.

    An integer and its mask take 9 bytes a node, the range of its text 16.
    """
    all_keys = (*keys, *integer_keys)
    key_bytes = np.frombuffer("".join(all_keys).encode(), np.uint8).copy()
    key_ends = np.cumsum([len(key.encode()) for key in all_keys])
    zeros = partial(spill.full, len(nodes), 0)
    ranges = [ArgumentRanges(zeros(np.int64), zeros(np.int64)) for _ in keys]
    numbers = [Integers(zeros(np.int64), zeros(np.bool_)) for _ in integer_keys]

    def find_in_block(first: int) -> None:
        some = nodes[first : first + _BLOCK]
        start = trace.array("args_at")[some]
        size = trace.array("args_len")[some].astype(np.int64)
        for rows, buffer, begin in rows_by_buffer(trace.text, start, size):
            offsets, lengths = _scan_objects(
                buffer, start[rows] - begin, size[rows], key_bytes, key_ends
            )
            for k in np.flatnonzero(lengths.any(axis=1)).tolist():  # of others no page is touched
                if k < len(keys):
                    ranges[k].at[first + rows] = offsets[k] + begin
                    ranges[k].length[first + rows] = lengths[k]
                else:
                    value, known = _parse_integers(buffer, offsets[k], lengths[k])
                    numbers[k - len(keys)].value[first + rows] = value
                    numbers[k - len(keys)].known[first + rows] = known

    each(find_in_block, range(0, len(nodes), _BLOCK))
    return tuple(ranges), tuple(numbers)


def integers(trace: Trace, nodes: Array, key: str) -> Integers:
    """Integer argument of each node."""
    return find_with_integers(trace, nodes, (), (key,))[1][0]


def values(trace: Trace, nodes: Array, key: str) -> tuple[Array, list[Any]]:
    """Argument of each node as an index into a list of distinct values; see `values_at`."""
    return values_at(trace.text, find(trace, nodes, key)[0])


def values_at(text: Text, ranges: ArgumentRanges) -> tuple[Array, list[Any]]:
    """Decode the values in these byte ranges, equal texts once.

    Returns
    -------
    code
        Index into `values` for each range; -1 if it is empty or no JSON.
    values
        Result of ``json.loads`` for each distinct text.
    """
    buffer, at = text.block(ranges.at, ranges.length)
    code, table = _distinct_texts(buffer, np.ascontiguousarray(at, np.int64), ranges.length)
    decoded = [_decode(raw) for raw in table.texts(buffer)]
    return _keep_values(code, decoded, [value is not _INVALID for value in decoded])


def codes_of_launches(trace: Trace, work: Array, *keys: str) -> list[Array]:
    """Arguments of GPU work, or else of the calls that launched it, as codes of equal values.

    Parameters
    ----------
    trace
        Any trace.
    work
        Rows of GPU work.
    *keys
        As of `find`.

    Returns
    -------
    list of array
        For each key an index of each node's distinct value, -1 where neither has the argument.
    """
    call = trace.launch[work]
    codes = []
    for location in find(trace, np.concatenate([work, np.maximum(call, 0)]), *keys):
        code, _ = values_at(trace.text, location)
        of_work, of_call = code[: len(work)], np.where(call >= 0, code[len(work) :], -1)
        codes.append(np.where(of_work >= 0, of_work, of_call))
    return codes


def texts(trace: Trace, nodes: Array, key: str) -> tuple[Array, list[str]]:
    """Text argument of each node as an index into a list of distinct texts; -1 for none."""
    return texts_at(trace.text, find(trace, nodes, key)[0])


def texts_at(text: Text, ranges: ArgumentRanges) -> tuple[Array, list[str]]:
    """Decode the texts in these byte ranges as `values_at` does; other values count as none."""
    code, decoded = values_at(text, ranges)
    return _keep_values(code, decoded, [isinstance(value, str) for value in decoded])


def _decode(raw: bytes) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _INVALID


def _keep_values(code: Array, decoded: list[Any], keep: list[bool]) -> tuple[Array, list[Any]]:
    """Drop values from the list and renumber the codes; those of dropped values become -1."""
    # new index of each value; a last -1, so that the code -1 stays -1
    new = np.append(np.where(keep, np.cumsum(keep) - 1, -1), -1).astype(np.int32)
    return new[code], [value for value, kept in zip(decoded, keep, strict=True) if kept]


def rows_by_buffer(text: Text, at: Array, length: Array) -> list[tuple[Array, Bytes, int]]:
    """Group the non-empty ranges by buffer: their rows, the buffer, and its offset in the text.

    Compiled loops take one contiguous buffer at a time; `text` has one for each source.
    """
    rows = np.flatnonzero(length > 0)
    if len(text.buffers) == 1:
        return [(rows, text.buffers[0], 0)] if rows.size else []
    number = np.searchsorted(text.starts, at[rows], "right") - 1  # of the buffer of each range
    order = np.argsort(number, kind="stable")
    rows, number = rows[order], number[order]
    cuts = np.flatnonzero(np.diff(number)) + 1
    return [
        (part, text.buffers[number[cut]], int(text.starts[number[cut]]))
        for part, cut in zip(np.split(rows, cuts), [0, *cuts.tolist()], strict=True)
        if part.size
    ]


def _distinct_texts(buffer: Bytes, at: Array, length: Array) -> tuple[Array, TextTable]:
    """Number the distinct texts of ranges, -1 for an empty range, and return the table of them."""
    table = interning.empty_text_table(_CAPACITY)
    code = np.full(len(at), -1, np.int32)
    done = 0
    while True:
        done = _number_texts(buffer, at, length, done, table, code)
        if done == len(at):
            return code, table
        table = interning.enlarged_text_table(table)


@jit_in_place
def _number_texts(
    buffer: Bytes, at: Array, length: Array, done: int, table: TextTable, code: Array
) -> int:
    """Number ranges from `done` on until the table is full; return how many are done.

    Compiled, as it hashes every byte; it returns to Python only for a larger table.
    """
    for row in range(done, len(at)):
        if length[row] > 0:
            code[row] = interning.intern_text(buffer, at[row], at[row] + length[row], table)
            if code[row] < 0:
                return row
    return len(at)


@jit
def _parse_integers(buffer: Bytes, at: Array, length: Array) -> tuple[Array, Array]:
    """Parse an integer in each range. Compiled: millions of nodes have one, and each is a text."""
    value = np.zeros(len(at), np.int64)
    known = np.zeros(len(at), np.bool_)
    for row in range(len(at)):
        if length[row] > 0:
            stop = at[row] + length[row]
            value[row], known[row] = json_text.parse_integer_within(buffer, at[row], stop, 0)
    return value, known


@jit
def _scan_objects(
    buffer: Bytes, start: Array, size: Array, key_bytes: Bytes, key_ends: Array
) -> tuple[Array, Array]:
    """Offset and length of the values of some keys in each object.

    Compiled, as it visits every byte of the arguments. It stops at an object's last requested key
    and at the first byte that is no JSON. `key_ends` cuts `key_bytes` into the keys::

        {"a": [1, 2], "b": 7}
              ^at, length 6
    """
    count = len(key_ends)
    at = np.zeros((count, len(start)), np.int64)
    length = np.zeros((count, len(start)), np.int64)
    for row in range(len(start)):
        n = start[row] + size[row]
        i = json_text.skip_blank(buffer, start[row] + 1, n)
        missing = count
        while missing and i < n and buffer[i] == json_text.QUOTE:
            key = i + 1
            i = json_text.skip_string(buffer, i, n)
            if i < 0:
                break
            index = json_members.key_index(buffer, key, i - 1 - key, key_bytes, key_ends)
            i = json_text.skip_blank(buffer, i, n)
            if i >= n or buffer[i] != json_text.COLON:
                break
            value = json_text.skip_blank(buffer, i + 1, n)
            i = json_text.skip_value(buffer, value, n) if value < n else -1
            if i < 0:
                break
            if index >= 0 and length[index, row] == 0:
                at[index, row], length[index, row] = value, i - value
                missing -= 1
            i = json_text.skip_blank(buffer, i, n)
            i = (
                json_text.skip_blank(buffer, i + 1, n)
                if i < n and buffer[i] == json_text.COMMA
                else n
            )
    return at, length
