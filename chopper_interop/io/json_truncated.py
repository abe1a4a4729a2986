"""Repair of JSON that was cut short: it is closed behind its last complete element."""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit
from chopper_interop.io import json_text

_CLOSER = {json_text.OPEN: b"}", json_text.OPEN_LIST: b"]"}


def close_truncated(text: Bytes, depth: int) -> bytes | None:
    """Return a text that breaks off as complete JSON, without the element that was begun last.

    Parameters
    ----------
    text
        JSON of which the end is missing.
    depth
        Levels of brackets within which single elements are kept; of what lies deeper, an element
        is kept as a whole or not at all. Of ``{"a":[{"b":[1,2`` a depth of 2 keeps
        ``{"a":[]}``, and a depth of 4 ``{"a":[{"b":[1]}]}``.

    Returns
    -------
    bytes or None
        None if it does not break off: it is complete, or no JSON.
    """
    opened = np.zeros(depth, np.uint8)
    behind = np.zeros(depth, np.int64)
    open_levels = _find_open(text, opened, behind)
    if open_levels <= 0:
        return None
    closers = b"".join(_CLOSER[int(bracket)] for bracket in opened[:open_levels][::-1])
    return text[: behind[open_levels - 1]].tobytes() + closers


@jit
def _find_open(text: Bytes, opened: Array, behind: Array) -> int:
    """Number of the outer brackets that are open at the end; -1 if something else is wrong.

    Writes these brackets to `opened`, and to `behind` the offset behind the last complete element
    in each. One pass over the text.
    """
    n, level = len(text), 0
    i = json_text.skip_blank(text, 0, n)
    if i == n or text[i] not in (json_text.OPEN, json_text.OPEN_LIST):
        return -1
    while i < n:
        if text[i] in (json_text.CLOSE, json_text.CLOSE_LIST):
            if level == 0 or opened[level - 1] != text[i] - _TO_CLOSER:
                return -1
            level -= 1
            behind[max(level - 1, 0)] = i + 1
            i += 1
        elif text[i] == json_text.COMMA:
            i += 1
        else:
            i = _value_offset(text, i, n, level > 0 and opened[level - 1] == json_text.OPEN)
            if i >= 0 and level < len(opened) and text[i] in (json_text.OPEN, json_text.OPEN_LIST):
                opened[level], behind[level] = text[i], i + 1
                level += 1
                i += 1
            else:
                i = json_text.skip_value(text, i, n) if i >= 0 else i
                if i < 0:
                    return level if i == -1 else -1
                behind[level - 1] = i
        i = json_text.skip_blank(text, i, n)
        if level == 0:
            return 0 if i == n else -1
    return level


_TO_CLOSER = 2
"""Code of a closing bracket less that of its opening one, in ASCII."""


@jit
def _value_offset(text: Bytes, i: int, n: int, of_member: bool) -> int:  # noqa: FBT001 # compiled
    """Offset of an element's value, behind its key if it is a member; negative as in `json_text`."""
    if not of_member:
        return i
    i = json_text.skip_string(text, i, n) if text[i] == json_text.QUOTE else -2
    if i < 0:
        return i
    i = json_text.skip_blank(text, i, n)
    if i < n and text[i] != json_text.COLON:
        return -2
    i = json_text.skip_blank(text, i + 1, n) if i < n else n
    return i if i < n else -1
