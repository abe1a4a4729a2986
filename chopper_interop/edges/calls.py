"""Calls of the host that order GPU work: what each does, and the handles that it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import nest
from chopper_interop.columns.compiled import jit
from chopper_interop.columns.members import is_any
from chopper_interop.schemas.kinds import Kind
from chopper_interop.schemas.names import ROLES, Role

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

_0, _9, _A, _Z, _a, _z, _LOW_LINE, _X, _x, _POINT = b"09AZaz_Xx."
_BETWEEN = (32, 34, 40, 58, 61, 92)
"""What may stand between a name and its number: blank, quote, parenthesis, colon, equals sign, a
backslash before a quote."""
NONE = -1
"""In place of a handle: none is named. Handles are 64 bits without a sign, kept as signed numbers."""
_NONE = np.uint64(2**64 - 1)
_HOSTS = (Kind.RUNTIME, Kind.DRIVER, Kind.API)
_STREAM_WORDS = (b"stream", b"hStream")
_EVENT_WORDS = (b"event", b"hEvent")
_NAMES_STREAM = (Role.STREAM_SYNC, Role.RECORD, Role.STREAM_WAIT)
_NAMES_EVENT = (Role.EVENT_SYNC, Role.RECORD, Role.STREAM_WAIT)


@dataclass(frozen=True)
class Calls:
    """Calls that order GPU work, in the order of the nodes.

    Parameters
    ----------
    node
        Row of `nodes`.
    role
        A number of `Role`.
    stream, event
        Handles that it names, -1 for none.
    """

    node: Array
    role: Array
    stream: Array
    event: Array

    def of(self, *roles: Role) -> Array:
        """Which of the calls have one of these roles."""
        return is_any(self.role, roles)


def role_of(name: str) -> Role:
    """What a call of this name does."""
    return next((role for pattern, role in ROLES if pattern.match(name)), Role.NONE)


def roles(trace: Trace) -> Array:
    """Role of each node; only of the outermost if one such call makes another."""
    of_name = np.array([int(role_of(name)) for name in trace.names()] or [0], np.int8)
    on_host = is_any(trace.array("kind"), _HOSTS)
    role = np.where(on_host, of_name[trace.array("name")], 0).astype(np.int8)
    parent = trace.array("parent")
    role[nest.within(role > 0, parent)] = Role.NONE
    return role


def calls(trace: Trace, role: Array) -> Calls:
    """The calls of a trace that order GPU work, by the role of each node."""
    node = np.flatnonzero(role)
    role = role[node]
    stream, event = np.full(len(node), -1, np.int64), np.full(len(node), -1, np.int64)
    wanted: tuple[Role, ...]
    for wanted, words, handles in (
        (_NAMES_STREAM, _STREAM_WORDS, stream),
        (_NAMES_EVENT, _EVENT_WORDS, event),
    ):
        which = np.flatnonzero(is_any(role, wanted))
        handles[which] = _handles(trace, node[which], words)
    return Calls(node, role, stream, event)


def launch_handles(trace: Trace) -> Array:
    """Handle of the stream that each call that launched something names; -1 if it names none."""
    handle = np.full(trace.nodes.num_rows, -1, np.int64)
    launching = np.unique(trace.launch)
    launching = launching[launching >= 0]
    handle[launching] = _handles(trace, launching, _STREAM_WORDS)
    return handle


def _handles(trace: Trace, node: Array, words: tuple[bytes, ...]) -> Array:
    """The number behind one of these words in the arguments of nodes; -1 if there is none."""
    at, length = trace.array("args_at")[node], trace.array("args_len")[node]
    buffer, at = trace.text.block(at, length)
    found = np.full(len(node), -1, np.int64)
    for word in words:
        key = np.frombuffer(word, np.uint8).copy()
        numbers = _numbers(buffer, at, length.astype(np.int64), key).view(np.int64)
        found = np.where(found != NONE, found, numbers)
    return found


@jit
def _is_word(byte: int) -> bool:
    """Whether a byte is part of a name."""
    return _0 <= byte <= _9 or _A <= byte <= _Z or _a <= byte <= _z or byte == _LOW_LINE


@jit
def _numbers(buffer: Array, at: Array, length: Array, key: Array) -> Array:
    """First number that follows a word: ``"stream": "0x1f"``, ``stream(2)``, ``stream = 0x0``."""
    found = np.full(len(at), _NONE, np.uint64)
    for row in range(len(at)):
        i, stop = at[row], at[row] + length[row]
        while i + len(key) < stop and found[row] == _NONE:
            same = i == at[row] or not _is_word(buffer[i - 1])
            for k in range(len(key)):
                same = same and buffer[i + k] == key[k]
                if not same:
                    break
            i += 1
            if same and not _is_word(buffer[i + len(key) - 1]):
                found[row] = _number(buffer, i + len(key) - 1, stop)
    return found


@jit
def _number(buffer: Array, i: int, stop: int) -> int:
    """Number that stands behind nothing but blanks, quotes and signs; the greatest if none does."""
    while i < stop and buffer[i] in _BETWEEN:
        i += 1
    base = 10
    if i + 2 < stop and buffer[i] == _0 and buffer[i + 1] in (_X, _x):
        base = 16
        i += 2
    value, digits = np.uint64(0), 0
    while i < stop and _is_word(buffer[i]):
        byte = int(buffer[i])
        digit = byte - _0 if byte <= _9 else (byte | 32) - _a + 10
        if digit >= base or value > (_NONE - np.uint64(digit)) // np.uint64(base):
            return _NONE
        value = value * np.uint64(base) + np.uint64(digit)
        digits += 1
        i += 1
    if not digits or (i < stop and buffer[i] == _POINT):  # a fraction is no handle
        return _NONE
    return value
