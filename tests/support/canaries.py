# ruff: noqa: S608
"""Words of nobody's in place of the texts of an input: none of them may get out.

A place is a text of the input: a string or key of JSON, a word of a table, a column of texts of a database, a
text in a protobuf. `filled` puts words into several at a time; what is no input then is searched by halves.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from typing import TYPE_CHECKING, Any

import field_changes
from protobuf_wire import framed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from seeds import Seed

Place = Any
"""Range of a text; table and column; or the numbers of the fields around a text and of itself."""
WORD = "zeppelin"
FOUND = re.compile(WORD.encode() + rb"[a-z]*", re.IGNORECASE)
_TEXT = re.compile(r"[^\W\d_]{3,}")
"""Texts with fewer letters in a row are units and numbers."""


def word(number: int) -> str:
    """Return the word of a place."""
    return f"{WORD}{chr(97 + number // 676)}{chr(97 + number // 26 % 26)}{chr(97 + number % 26)}"


def path(number: int) -> str:
    """Return a path in which all but the name of the file says who and where."""
    return f"/home/{word(number)}/{word(number)}/kept.py"


def account(number: int) -> str:
    """Return a user and host, and a path as URLs have it."""
    return f"{word(number)}@{word(number)}-7.org:%2Fhome%2F{word(number)}%2Fkept.py"


def places(seed: Seed) -> list[Place]:
    """All texts of an input."""
    if seed.data.startswith(b"SQLite"):
        return list(_columns(seed.data))
    if seed.format == "perfetto":
        return [(0, *p) for p in _texts(field_changes.parsed(seed.data) or [])]
    if seed.name.endswith(".et"):
        messages = field_changes.messages(seed.data)
        return [
            (k, *p) for k, m in enumerate(messages) for p in _texts(field_changes.parsed(m) or [])
        ]
    text = seed.data.decode()
    tokens = field_changes.TOKEN.finditer(text)
    spans = [m.span() for m in tokens] if not seed.name.endswith(".json") else _strings(text)
    return [span for span in spans if _TEXT.search(text[slice(*span)])]


def _strings(text: str) -> list[tuple[int, int]]:
    return [m.span(1) for m in re.finditer(r'"((?:[^"\\]|\\.)+)"', text)]


def _columns(data: bytes) -> Iterator[Place]:
    with contextlib.closing(sqlite3.connect(":memory:")) as base:
        base.deserialize(data)
        for (table,) in base.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table'"
        ).fetchall():
            for _, column, *_ in base.execute(f'PRAGMA table_info("{table}")').fetchall():
                values = base.execute(f'SELECT "{column}" FROM "{table}"').fetchall()
                if any(isinstance(v, str) and _TEXT.search(v) for (v,) in values):
                    yield table, column


def _texts(
    fields: list[field_changes.Field], at: tuple[int, ...] = ()
) -> Iterator[tuple[int, ...]]:
    for k, (_, wire, value) in enumerate(fields):
        if isinstance(value, list):
            yield from _texts(value, (*at, k))
        elif wire == 2 and _TEXT.search(value.decode("latin-1")):
            yield (*at, k)


def filled(seed: Seed, chosen: Sequence[tuple[Place, str]]) -> bytes:
    """Return an input in which texts are others."""
    if seed.data.startswith(b"SQLite"):
        return _filled_base(seed.data, chosen)
    if seed.format == "perfetto" or seed.name.endswith(".et"):
        messages = [seed.data] if seed.format == "perfetto" else field_changes.messages(seed.data)
        parsed = [field_changes.parsed(m) or [] for m in messages]
        for (message, *at), new in chosen:
            fields = parsed[message]
            for k in at[:-1]:
                fields = fields[k][2]
            number, wire, _ = fields[at[-1]]
            fields[at[-1]] = number, wire, new.encode()
        made = [field_changes.encoded(m) for m in parsed]
        return made[0] if seed.format == "perfetto" else framed(*made)
    edits = [(begin, end, new) for (begin, end), new in chosen]
    return field_changes.replaced(seed.data.decode(), edits)


def _filled_base(data: bytes, chosen: Sequence[tuple[Place, str]]) -> bytes:
    with contextlib.closing(sqlite3.connect(":memory:")) as base:
        base.deserialize(data)
        for (table, column), new in chosen:
            with contextlib.suppress(sqlite3.Error):  # values that must differ
                base.execute(
                    f'UPDATE "{table}" SET "{column}" = ? WHERE typeof("{column}") = \'text\'',
                    (new,),
                )
        base.commit()
        return base.serialize()


def search(
    seed: Seed, form: Callable[[int], str], contents: Callable[[bytes], bytes | None]
) -> tuple[list[str], int]:
    """Words that get out, with what they replaced; and in how many places words were.

    Parameters
    ----------
    form
        Makes the text of a place from its number.
    contents
        All that is made of an input; None if it is none.
    """
    every = list(enumerate(places(seed)))
    waiting, leaks, tried = [every], [], 0
    while waiting:
        part = waiting.pop()
        made = contents(filled(seed, [(place, form(k)) for k, place in part])) if part else None
        if made is None and len(part) > 1:
            waiting += [part[: len(part) // 2], part[len(part) // 2 :]]
        elif made is not None:
            tried += len(part)
            words = {leaked.decode().lower() for leaked in FOUND.findall(made)}
            leaks += [f"{form(k)}: {_shown(seed, p)}" for k, p in part if word(k) in words]
            leaks += [leaked for leaked in words if leaked not in {word(k) for k, _ in part}]
    return leaks, tried


def _shown(seed: Seed, place: Place) -> str:
    is_text = not seed.data.startswith(b"SQLite") and isinstance(place, tuple) and len(place) == 2
    return (
        repr(seed.data[place[0] - 30 : place[1] + 10])
        if is_text and seed.format != "perfetto"
        else str(place)
    )
