"""Host calls that order GPU work: the role of each, and the stream and event handles it names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from chopper_interop.arrays import Array, nest
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import HOST_CALLS
from chopper_interop.schemas.names import ROLES, Role
from chopper_interop.trace import Trace

_0, _9, _A, _Z, _a, _z, _LOW_LINE, _X, _x, _POINT = b"09AZaz_Xx."
_SEPARATORS = (32, 34, 40, 58, 61, 92)
"""Bytes that may stand between a name and its number: blank, quote, parenthesis, colon, equals
sign, and a backslash before a quote."""
NO_HANDLE = -1
"""The handle of a call that names none. Handles are unsigned 64-bit numbers, stored as signed."""
_NO_HANDLE_UNSIGNED = np.uint64(2**64 - 1)
_NAMES = 1 << 12
"""Names whose roles are kept. Chosen: more than a rank has, which other ranks have too."""
_STREAM_KEYS = (b"stream", b"hStream")
_EVENT_KEYS = (b"event", b"hEvent")
_TAKES_STREAM = (Role.STREAM_SYNC, Role.RECORD, Role.STREAM_WAIT)
_TAKES_EVENT = (Role.EVENT_SYNC, Role.RECORD, Role.STREAM_WAIT)


@dataclass(frozen=True)
class OrderingCalls:
    """Host calls that order GPU work, in the order of the nodes.

    Parameters
    ----------
    node
        Row of `nodes`.
    role
        A number of `Role`.
    stream, event
        Handles that the call names, `NO_HANDLE` for none.
    """

    node: Array
    role: Array
    stream: Array
    event: Array

    def has_role(self, *roles: Role) -> Array:
        """Mark the calls with one of these roles."""
        return is_any(self.role, roles)


@lru_cache(maxsize=_NAMES)
def _role_of_name(name: str) -> Role:
    return next((role for pattern, role in ROLES if pattern.match(name)), Role.NONE)


def makes_calls(trace: Trace, role: Role) -> bool:
    """Return True if a name of the trace is that of calls with a role."""
    return any(_role_of_name(name) == role for name in trace.names())


def node_roles(trace: Trace) -> Array:
    """Role of each node (int8); if one such call makes another, only the outermost has a role."""
    of_name = np.array([int(_role_of_name(name)) for name in trace.names()] or [0], np.int8)
    on_host = is_any(trace.array("kind"), HOST_CALLS)
    role = np.where(on_host, of_name[trace.array("name")], np.int8(0))
    parent = trace.array("parent")
    role[nest.around(parent, role > 0) >= 0] = Role.NONE
    return role


def read_ordering_calls(trace: Trace, role: Array) -> OrderingCalls:
    """Read the handles of all calls that order GPU work.

    Parameters
    ----------
    trace
        Its nodes' arguments are searched for handles.
    role
        Role of each node, see `node_roles`.
    """
    node = np.flatnonzero(~is_any(role, (Role.NONE, Role.UPKEEP)))
    role = role[node]
    stream = np.full(len(node), NO_HANDLE, np.int64)
    event = np.full(len(node), NO_HANDLE, np.int64)
    roles: tuple[Role, ...]
    for roles, keys, handles in (
        (_TAKES_STREAM, _STREAM_KEYS, stream),
        (_TAKES_EVENT, _EVENT_KEYS, event),
    ):
        rows = np.flatnonzero(is_any(role, roles))
        handles[rows] = _read_handles(trace, node[rows], keys)
    return OrderingCalls(node, role, stream, event)


def launch_handles(trace: Trace) -> Array:
    """For each node, the stream handle that it names as a launching call; else `NO_HANDLE`."""
    handle = np.full(trace.nodes.num_rows, NO_HANDLE, np.int64)
    launching = np.unique(trace.launch)
    launching = launching[launching >= 0]
    handle[launching] = _read_handles(trace, launching, _STREAM_KEYS)
    return handle


def _read_handles(trace: Trace, node: Array, keys: tuple[bytes, ...]) -> Array:
    """Number that follows one of these keys in the arguments of each node, else `NO_HANDLE`."""
    at, length = trace.array("args_at")[node], trace.array("args_len")[node]
    buffer, at = trace.text.block(at, length)
    handles = np.full(len(node), NO_HANDLE, np.int64)
    for key in keys:
        key_bytes = np.frombuffer(key, np.uint8).copy()
        numbers = _numbers_after(buffer, at, length.astype(np.int64), key_bytes).view(np.int64)
        handles = np.where(handles != NO_HANDLE, handles, numbers)
    return handles


@jit
def _is_word(byte: int) -> bool:
    """Return true if a byte can be part of an identifier."""
    return _0 <= byte <= _9 or _A <= byte <= _Z or _a <= byte <= _z or byte == _LOW_LINE


# Compiled: arguments are not only JSON (rocprof writes "( stream(0x1f) event(0x2))"), so that their
# bytes are searched instead of parsed, millions of them.
@jit
def _numbers_after(buffer: Array, at: Array, length: Array, key: Array) -> Array:
    """First number that follows a key: ``"stream": "0x1f"``, ``stream(2)``, ``stream = 0x0``."""
    numbers = np.full(len(at), _NO_HANDLE_UNSIGNED, np.uint64)
    for row in range(len(at)):
        i, stop = at[row], at[row] + length[row]
        while i + len(key) < stop and numbers[row] == _NO_HANDLE_UNSIGNED:
            same = i == at[row] or not _is_word(buffer[i - 1])
            for k in range(len(key)):
                same = same and buffer[i + k] == key[k]
                if not same:
                    break
            i += 1
            if same and not _is_word(buffer[i + len(key) - 1]):
                numbers[row] = _parse_number(buffer, i + len(key) - 1, stop)
    return numbers


@jit
def _parse_number(buffer: Array, i: int, stop: int) -> int:
    """Decimal or hexadecimal number after separators only; the largest uint64 if there is none."""
    while i < stop and buffer[i] in _SEPARATORS:
        i += 1
    base = 10
    if i + 2 < stop and buffer[i] == _0 and buffer[i + 1] in (_X, _x):
        base = 16
        i += 2
    value, digits = np.uint64(0), 0
    while i < stop and _is_word(buffer[i]):
        byte = int(buffer[i])
        digit = byte - _0 if byte <= _9 else (byte | 32) - _a + 10
        if digit >= base or value > (_NO_HANDLE_UNSIGNED - np.uint64(digit)) // np.uint64(base):
            return _NO_HANDLE_UNSIGNED
        value = value * np.uint64(base) + np.uint64(digit)
        digits += 1
        i += 1
    if not digits or (i < stop and buffer[i] == _POINT):  # a fraction is no handle
        return _NO_HANDLE_UNSIGNED
    return value
