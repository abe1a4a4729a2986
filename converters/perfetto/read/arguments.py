"""Arguments of slices, chunk by chunk: their text, and the values that become columns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import progress
from chopper_interop.arrays import Array, arrow
from chopper_interop.arrays.interning import empty_text_table
from chopper_interop.converters.perfetto.read import annotations_text as text
from chopper_interop.converters.perfetto.read.annotations_text import ColumnEntries
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.perfetto.read.events_decode import TrackEvents
    from chopper_interop.converters.perfetto.read.interned_decode import InternedTexts

UNREADABLE = Fault.loss(
    "annotation-unreadable",
    "Arguments without a name or a value that can be read are null, or left out.",
)

TYPED = Fault.loss(
    "typed-arguments-left-out",
    "Arguments of Chrome's own types, and times that threads ran, were left out.",
)

_CHUNK_SLICES = 1 << 16
"""Slices read at once. Chosen: progress is seen, and a chunk takes tens of MB."""
_FIRST_SLICES = 1 << 10
"""Slices of the first chunk, whose text gives an estimate of the length of the others."""
_FIRST_ROOM = 1 << 18
"""Bytes for the text of the first chunk: 256 a slice; twice the work if it is too small."""
_MAX_KEYS = 1 << 14
"""Distinct names of columns and counters; beyond all that tools offer."""
TASK = "reading Perfetto"


@dataclass(frozen=True)
class SliceArguments:
    """Arguments of all slices.

    Parameters
    ----------
    at, length
        Their JSON objects in the trace's text.
    values
        Name → values as integers, `annotations_text.UNKNOWN` where there is none; only names that occur.
    entries
        Values that become annotation columns and counters.
    names, words
        Texts behind `entries.name`, and behind the values of entries that are texts.
    """

    at: Array
    length: Array
    values: dict[str, Array]
    entries: ColumnEntries
    names: list[str]
    words: list[str]


def read_arguments(  # noqa: PLR0913 # columns of one table
    buffer: Array,
    events: TrackEvents,
    texts: InternedTexts,
    begin: Array,
    end: Array,
    *,
    entry_source: int,
    builder: TraceBuilder,
    issues: IssueLog,
) -> SliceArguments:
    """Read the arguments of all slices, and put their text into the builder.

    Parameters
    ----------
    buffer
        The trace.
    events, texts
        Its events and interned texts.
    begin, end
        For each slice the event that begins it, and that which ends it or -1.
    entry_source
        Annotations that entries are made of, see `annotations_text.write_objects`.
    builder
        Builder of the trace.
    issues
        Log in which arguments that cannot be read are counted.
    """
    n = len(begin)
    keys, words = empty_text_table(_MAX_KEYS), empty_text_table(int(texts.known[0]) + _MAX_KEYS)
    at, length = np.zeros(n, np.int64), np.zeros(n, np.int32)
    values: dict[str, list[tuple[int, Array]]] = {}
    entries: list[ColumnEntries] = []
    room = [_FIRST_ROOM, 1 << 12, 1 << 12]
    counts = np.zeros(4, np.int64)
    bounds = [0, *range(min(_FIRST_SLICES, n), n, _CHUNK_SLICES), n] if n else []
    for first, behind in pairwise(bounds):
        rows = slice(first, behind)
        chunk = _chunk(
            buffer, events, texts, begin[rows], end[rows], first, entry_source, room, keys, words
        )
        counts += chunk.counts
        at[rows] = builder.text(chunk.text) + chunk.at
        length[rows] = chunk.length
        entries.append(chunk.entries)
        for k, name in enumerate(text.KEYS):
            if (chunk.values[k] != text.UNKNOWN).any():
                values.setdefault(name.decode(), []).append((first, chunk.values[k].copy()))
        progress.advance(TASK, chunk.at.size)
    issues.add(UNREADABLE, counts[text.UNREADABLE])
    issues.add(TYPED, counts[text.TYPED])
    return SliceArguments(
        at,
        length,
        {name: _joined(n, parts) for name, parts in values.items()},
        ColumnEntries(*(np.concatenate(c) for c in zip(*entries, strict=True)))
        if entries
        else ColumnEntries(*(np.zeros(0, np.int64) for _ in range(5))),
        [t.decode("utf-8", "replace") for t in keys.texts(buffer)],
        [t.decode("utf-8", "replace") for t in words.texts(buffer)],
    )


def _joined(n: int, parts: list[tuple[int, Array]]) -> Array:
    """Join the values of chunks, each with its first slice; `UNKNOWN` in chunks without any."""
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
    entries: ColumnEntries
    counts: Array


def _chunk(  # noqa: PLR0913, PLR0917 # columns of one table
    buffer: Array,
    events: TrackEvents,
    texts: InternedTexts,
    begin: Array,
    end: Array,
    first: int,
    entry_source: int,
    room: list[int],
    keys: Any,
    words: Any,
) -> _Chunk:
    """Read the arguments of some slices.

    Outputs have `room` for so many bytes, decimal numbers and entries. If that is too little, it is
    enlarged and all is written again; the next chunk starts with what this one needed and a quarter.
    """
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
        entries = ColumnEntries(*(np.empty(room[2], np.int64) for _ in range(5)))
        count = np.zeros(4, np.int64)
        size = text.write_objects(
            buffer, body_at, body_len, state, first, texts, text.text_set(text.GROUPS), entry_source,
            text.text_set(text.KEYS), text.agent_keys(), values, at, length, out, reals, entries, count,
            keys, words, np.zeros((text.MAX_DEPTH, 5), np.int64),
            np.zeros((int(texts.known[0]), 3), np.int64),
        )  # fmt: skip
        used = (int(size), int(count[text.REALS]), int(count[text.ENTRIES]))
        if all(u <= r for u, r in zip(used, room, strict=True)):
            break
        room[:] = [max(u + u // 4, r) for u, r in zip(used, room, strict=True)]
    _fill_reals(out, reals.at[: used[1]], reals.value[: used[1]])
    more = _CHUNK_SLICES // _FIRST_SLICES if n <= _FIRST_SLICES else 1
    room[:] = [max(more * (u + u // 4), r) for u, r in zip(used, room, strict=True)]
    return _Chunk(
        out[: used[0]],  # memory behind was never touched, and is none to the system
        at,
        length,
        values,
        ColumnEntries(*(c[: used[2]].copy() for c in entries)),
        count,
    )


def _fill_reals(out: Array, at: Array, value: Array) -> None:
    """Fill in decimal numbers; Arrow writes the shortest texts that read back as the same doubles."""
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
    text.fill_reals(out, at.copy(), chars, first)
