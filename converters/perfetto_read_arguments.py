"""Arguments of slices, chunk by chunk: their text, the values wanted of them, our own columns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import progress
from chopper_interop.columns import arrow
from chopper_interop.columns.interning import interned
from chopper_interop.converters import perfetto_read_annotations_text as text
from chopper_interop.converters.perfetto_read_annotations_text import Facts
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.perfetto_read_events_decode import Events
    from chopper_interop.converters.perfetto_read_interned_decode import Texts

UNREADABLE = Fault(
    "annotation-unreadable",
    Severity.LOSS,
    "Arguments without a name or a value that can be read are null, or left out.",
)

TYPED = Fault(
    "typed-arguments-left-out",
    Severity.LOSS,
    "Arguments of Chrome's own types, and times that threads ran, were left out.",
)

_AT_ONCE = 1 << 16
_AT_FIRST = 1 << 10
"""Slices of the first chunk, which tells how long the text of the others will be."""
_ROOM = 1 << 18
_MOST_KEYS = 1 << 14
TASK = "reading Perfetto"


@dataclass(frozen=True)
class Arguments:
    """What slices carry.

    Parameters
    ----------
    at, length
        Their objects in the trace's text.
    values
        Name → values as integers, `text.UNKNOWN` where there is none; only names that occur.
    facts
        Members of our own dictionaries.
    names, words
        What `facts.name` and texts among `facts.value` are.
    """

    at: Array
    length: Array
    values: dict[str, Array]
    facts: Facts
    names: list[str]
    words: list[str]


def arguments(  # noqa: PLR0913 # columns of one table
    buffer: Array,
    events: Events,
    texts: Texts,
    begin: Array,
    end: Array,
    *,
    facts_of: int,
    builder: TraceBuilder,
    issues: IssueLog,
) -> Arguments:
    """Make the arguments of all slices.

    Parameters
    ----------
    buffer
        The trace.
    events, texts
        What was decoded of it.
    begin, end
        Of each slice the event that begins it, and that which ends it or -1.
    facts_of
        Of which arguments facts are made, see `text.objects`.
    builder
        Where the text goes.
    issues
        Where what cannot be read is counted.
    """
    n = len(begin)
    keys, words = interned(_MOST_KEYS), interned(int(texts.known[0]) + _MOST_KEYS)
    at, length = np.zeros(n, np.int64), np.zeros(n, np.int32)
    found: dict[str, list[tuple[int, Array]]] = {}
    facts: list[Facts] = []
    room = [_ROOM, 1 << 12, 1 << 12]
    counts = np.zeros(4, np.int64)
    for first, behind in pairwise([0, *range(min(_AT_FIRST, n), n, _AT_ONCE), n] if n else []):
        rows = slice(first, behind)
        chunk = _chunk(
            buffer, events, texts, begin[rows], end[rows], first, facts_of, room, keys, words
        )
        counts += chunk.counts
        at[rows] = builder.text(chunk.text) + chunk.at
        length[rows] = chunk.length
        facts.append(chunk.facts)
        for k, name in enumerate(text.KEYS):
            if (chunk.values[k] != text.UNKNOWN).any():
                found.setdefault(name.decode(), []).append((first, chunk.values[k].copy()))
        progress.advance(TASK, chunk.at.size)
    issues.add(UNREADABLE, counts[text.UNREADABLE])
    issues.add(TYPED, counts[text.TYPED])
    return Arguments(
        at,
        length,
        {name: _whole(n, parts) for name, parts in found.items()},
        Facts(*(np.concatenate(c) for c in zip(*facts, strict=True)))
        if facts
        else Facts(*(np.zeros(0, np.int64) for _ in range(5))),
        [t.decode("utf-8", "replace") for t in keys.texts(buffer)],
        [t.decode("utf-8", "replace") for t in words.texts(buffer)],
    )


def _whole(n: int, parts: list[tuple[int, Array]]) -> Array:
    column = np.full(n, text.UNKNOWN, np.int64)
    for first, values in parts:
        column[first : first + len(values)] = values
    return column


@dataclass(frozen=True)
class _Chunk:
    text: Array
    at: Array
    length: Array
    values: Array
    facts: Facts
    counts: Array


def _chunk(  # noqa: PLR0913, PLR0917 # columns of one table
    buffer: Array,
    events: Events,
    texts: Texts,
    begin: Array,
    end: Array,
    first: int,
    facts_of: int,
    room: list[int],
    keys: Any,
    words: Any,
) -> _Chunk:
    """Objects of some slices; `room` is enlarged if it was too small."""
    n = len(begin)
    pair = np.stack([begin, np.maximum(end, 0)], axis=1)
    body_at, body_len, state = (
        np.ascontiguousarray(c[pair], np.int64)
        for c in (events.body_at, events.body_len, events.state)
    )
    body_len[end < 0, 1] = 0
    at, length = np.zeros(n, np.int64), np.zeros(n, np.int32)
    while True:
        values = np.full((len(text.KEYS), n), text.UNKNOWN, np.int64)
        out = np.empty(room[0], np.uint8)
        reals = text.Reals(np.empty(room[1], np.int64), np.empty(room[1], np.float64))
        facts = Facts(*(np.empty(room[2], np.int64) for _ in range(5)))
        count = np.zeros(4, np.int64)
        size = text.objects(
            buffer, body_at, body_len, state, first, texts, text.known(text.GROUPS), facts_of,
            text.known(text.KEYS), text.is_agent(), values, at, length, out, reals, facts, count,
            keys, words, np.zeros((64, 5), np.int64),
            np.zeros((int(texts.known[0]), 3), np.int64),
        )  # fmt: skip
        used = (int(size), int(count[text.REALS]), int(count[text.FACTS]))
        if all(u <= r for u, r in zip(used, room, strict=True)):
            break
        room[:] = [max(u + u // 4, r) for u, r in zip(used, room, strict=True)]
    _fill_reals(out, reals.at[: used[1]], reals.value[: used[1]])
    more = _AT_ONCE // _AT_FIRST if n <= _AT_FIRST else 1
    room[:] = [max(more * (u + u // 4), r) for u, r in zip(used, room, strict=True)]
    return _Chunk(
        out[: used[0]],  # what is behind was never touched, and takes no memory
        at,
        length,
        values,
        Facts(*(c[: used[2]].copy() for c in facts)),
        count,
    )


def _fill_reals(out: Array, at: Array, value: Array) -> None:
    if not len(at):
        return
    finite = np.isfinite(value)
    written = arrow.array(np.where(finite, value, 0.0)).cast(pa.string())
    if not finite.all():
        names = {True: '"Infinity"', False: '"-Infinity"'}
        texts = written.to_pylist()
        for k in np.flatnonzero(~finite).tolist():
            texts[k] = '"NaN"' if np.isnan(value[k]) else names[bool(value[k] > 0)]
        written = pa.array(texts)
    buffers = written.buffers()
    first = np.frombuffer(buffers[1], np.int32)[: len(at) + 1].astype(np.int64)
    chars = np.frombuffer(bytearray(buffers[2].to_pybytes()), np.uint8)
    text.fill(out, at.copy(), chars, first)
