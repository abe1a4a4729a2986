"""Values of arguments of many nodes, straight from the text that a reader kept.

Arguments are a JSON object a node, parsed by nobody until it is asked for. Here the objects of
any number of nodes are gone through for some keys at the speed of memory, and only the values
that were asked for are decoded: equal ones once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.columns import interning
from chopper_interop.columns.compiled import jit
from chopper_interop.files.jsontext import (
    COLON,
    COMMA,
    QUOTE,
    blank,
    integer_within,
    skip_string,
    skip_value,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.columns.interning import Interned
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Text, Trace

    Bytes = npt.NDArray[np.uint8]

_CAPACITY = 4096
_NOTHING = object()


class Found(NamedTuple):
    """Where the value of a key stands in `Trace.text`, for each node that was asked about."""

    at: Array
    """Offset of its first byte."""
    length: Array
    """Its bytes, quotes and brackets included; 0 where the node has no such argument."""


def find(trace: Trace, nodes: Array, *keys: str) -> tuple[Found, ...]:
    """Where the values of some keys are, in one go through the arguments.

    Parameters
    ----------
    trace
        Any trace.
    nodes
        Rows of its nodes.
    *keys
        Keys of the outermost object, as they are written there; of equal ones the first counts.
    """
    start = trace.array("args_at")[nodes]
    size = trace.array("args_len")[nodes].astype(np.int64)
    wanted = np.frombuffer("".join(keys).encode(), np.uint8).copy()
    ends = np.cumsum([len(key.encode()) for key in keys])
    at = np.zeros((len(keys), len(nodes)), np.int64)
    length = np.zeros((len(keys), len(nodes)), np.int64)
    for rows, buffer, begin in _pieces(trace.text, start, size):
        place, long = _find(buffer, start[rows] - begin, size[rows], wanted, ends)
        at[:, rows] = place + begin
        length[:, rows] = long
    return tuple(Found(at[k], length[k]) for k in range(len(keys)))


def numbers(trace: Trace, nodes: Array, key: str) -> tuple[Array, Array]:
    """Integer argument of each node, and whether it has one (int64, bool).

    A number in quotes counts, a fraction is rounded; one that int64 cannot hold is none.
    """
    return numbers_at(trace.text, find(trace, nodes, key)[0])


def numbers_at(text: Text, found: Found) -> tuple[Array, Array]:
    """Integers that stand at these places, and whether they do."""
    buffer, at = text.block(found.at, found.length)
    return _integers(buffer, np.ascontiguousarray(at, np.int64), found.length)


def values(trace: Trace, nodes: Array, key: str) -> tuple[Array, list[Any]]:
    """Argument of each node as a number of a list of distinct values (see `values_at`)."""
    return values_at(trace.text, find(trace, nodes, key)[0])


def values_at(text: Text, found: Found) -> tuple[Array, list[Any]]:
    """What stands at these places, decoded: equal texts once.

    Returns
    -------
    code
        For each place, which of the values stands there; -1 for none, or what is no JSON.
    values
        What ``json.loads`` gives for each distinct text.
    """
    buffer, at = text.block(found.at, found.length)
    code, table = _coded(buffer, np.ascontiguousarray(at, np.int64), found.length)
    decoded = [_decoded(raw) for raw in table.texts(buffer)]
    proper = np.array([value is not _NOTHING for value in decoded], np.bool_)
    number = np.where(proper, np.cumsum(proper) - 1, -1)
    kept = [value for value in decoded if value is not _NOTHING]
    return np.array([*number, -1], np.int32)[code], kept


def _decoded(raw: bytes) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _NOTHING


def texts(trace: Trace, nodes: Array, key: str) -> tuple[Array, list[str]]:
    """Textual argument of each node as a number of a list of distinct texts; -1 for none."""
    return texts_at(trace.text, find(trace, nodes, key)[0])


def texts_at(text: Text, found: Found) -> tuple[Array, list[str]]:
    """Texts that stand at these places, as `values_at`; what else stands there is none."""
    code, decoded = values_at(text, found)
    is_text = [isinstance(value, str) for value in decoded]
    number = np.where(is_text, np.cumsum(is_text) - 1, -1)
    kept = [value for value in decoded if isinstance(value, str)]
    return np.array([*number, -1], np.int32)[code], kept


def _pieces(text: Text, at: Array, length: Array) -> list[tuple[Array, Bytes, int]]:
    """Rows whose ranges lie in the same buffer, with it, and where it begins in the text."""
    rows = np.flatnonzero(length > 0)
    which = np.searchsorted(text.starts, at[rows], "right") - 1
    order = np.argsort(which, kind="stable")
    rows, which = rows[order], which[order]
    cuts = np.flatnonzero(np.diff(which)) + 1
    return [
        (part, text.buffers[which[cut]], int(text.starts[which[cut]]))
        for part, cut in zip(np.split(rows, cuts), [0, *cuts.tolist()], strict=True)
        if part.size
    ]


def _coded(buffer: Bytes, at: Array, length: Array) -> tuple[Array, Interned]:
    """Number of each distinct range, -1 of an empty one."""
    table = interning.interned(_CAPACITY)
    code = np.full(len(at), -1, np.int32)
    done = 0
    while True:
        done = _code(buffer, at, length, done, table, code)
        if done == len(at):
            return code, table
        table = interning.enlarged(table)


@jit
def _code(buffer: Bytes, at: Array, length: Array, done: int, table: Interned, code: Array) -> int:
    """Number ranges until the table is full; how many are done."""
    for row in range(done, len(at)):
        if length[row] > 0:
            code[row] = interning.number_of(buffer, at[row], at[row] + length[row], table)
            if code[row] < 0:
                return row
    return len(at)


@jit
def _integers(buffer: Bytes, at: Array, length: Array) -> tuple[Array, Array]:
    found = np.zeros(len(at), np.int64)
    known = np.zeros(len(at), np.bool_)
    for row in range(len(at)):
        if length[row] > 0:
            stop = at[row] + length[row]
            found[row], known[row] = integer_within(buffer, at[row], stop, 0)
    return found, known


@jit
def _find(
    buffer: Bytes, start: Array, size: Array, wanted: Bytes, ends: Array
) -> tuple[Array, Array]:
    """Offset and length of the values of keys in each object; `ends` cuts `wanted` into keys."""
    count = len(ends)
    at = np.zeros((count, len(start)), np.int64)
    length = np.zeros((count, len(start)), np.int64)
    for row in range(len(start)):
        n = start[row] + size[row]
        i = blank(buffer, start[row] + 1, n)
        missing = count
        while missing and i < n and buffer[i] == QUOTE:
            key = i + 1
            i = skip_string(buffer, i, n)
            if i < 0:
                break
            which = _which(buffer, key, i - 1 - key, wanted, ends)
            i = blank(buffer, i, n)
            if i >= n or buffer[i] != COLON:
                break
            value = blank(buffer, i + 1, n)
            i = skip_value(buffer, value, n) if value < n else -1
            if i < 0:
                break
            if which >= 0 and length[which, row] == 0:
                at[which, row], length[which, row] = value, i - value
                missing -= 1
            i = blank(buffer, i, n)
            i = blank(buffer, i + 1, n) if i < n and buffer[i] == COMMA else n
    return at, length


@jit
def _which(buffer: Bytes, at: int, length: int, wanted: Bytes, ends: Array) -> int:
    """Which of the keys this is; -1 if none."""
    begin = 0
    for k in range(len(ends)):
        if ends[k] - begin == length:
            i = 0
            while i < length and buffer[at + i] == wanted[begin + i]:
                i += 1
            if i == length:
                return k
        begin = ends[k]
    return -1
