"""JSON that was cut short, closed again behind its last whole element."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.files import jsontext

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.columns.types import Array

    Bytes = npt.NDArray[np.uint8]

_CLOSER = {jsontext.OPEN: b"}", jsontext.OPEN_LIST: b"]"}


def closed(text: Bytes, depth: int) -> bytes | None:
    """A text that breaks off, as a whole one without what was begun last.

    Parameters
    ----------
    text
        JSON of which the end is missing.
    depth
        How many brackets deep elements are kept one by one; of what lies deeper, all of an
        element or nothing is. In ``{"a":[{"b":[1,2`` the element ``{"b":…}`` is gone with a depth
        of 2, and kept with a 1 in it with a depth of 4.

    Returns
    -------
    bytes or None
        None if it does not break off: it is whole, or wrong in another way.
    """
    opened = np.zeros(depth, np.uint8)
    behind = np.zeros(depth, np.int64)
    held = _walk(text, opened, behind)
    if held <= 0:
        return None
    closers = b"".join(_CLOSER[int(bracket)] for bracket in opened[:held][::-1])
    return text[: behind[held - 1]].tobytes() + closers


@jit
def _walk(text: Bytes, opened: Array, behind: Array) -> int:
    """How many of the outer brackets are open at the end; -1 if something else is wrong.

    `opened` gets these brackets, `behind` the offset behind the last whole element in each.
    """
    n, held = len(text), 0
    i = jsontext.blank(text, 0, n)
    if i == n or text[i] not in (jsontext.OPEN, jsontext.OPEN_LIST):
        return -1
    while i < n:
        if text[i] in (jsontext.CLOSE, jsontext.CLOSE_LIST):
            if held == 0 or opened[held - 1] != text[i] - _TO_CLOSER:
                return -1
            held -= 1
            behind[max(held - 1, 0)] = i + 1
            i += 1
        elif text[i] == jsontext.COMMA:
            i += 1
        else:
            i = _value(text, i, n, held > 0 and opened[held - 1] == jsontext.OPEN)
            if i >= 0 and held < len(opened) and text[i] in (jsontext.OPEN, jsontext.OPEN_LIST):
                opened[held], behind[held] = text[i], i + 1
                held += 1
                i += 1
            else:
                i = jsontext.skip_value(text, i, n) if i >= 0 else i
                if i < 0:
                    return held if i == -1 else -1
                behind[held - 1] = i
        i = jsontext.blank(text, i, n)
        if held == 0:
            return 0 if i == n else -1
    return held


_TO_CLOSER = 2
"""Behind an opening bracket in ASCII, its closing one comes so many places later."""


@jit
def _value(text: Bytes, i: int, n: int, of_member: bool) -> int:  # noqa: FBT001 # compiled
    """Offset of an element's value: behind the key of a member; negative as in `jsontext`."""
    if not of_member:
        return i
    i = jsontext.skip_string(text, i, n) if text[i] == jsontext.QUOTE else -2
    if i < 0:
        return i
    i = jsontext.blank(text, i, n)
    if i < n and text[i] != jsontext.COLON:
        return -2
    i = jsontext.blank(text, i + 1, n) if i < n else n
    return i if i < n else -1
