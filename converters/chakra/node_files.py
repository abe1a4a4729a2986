"""Nodes of ETs in files: those of a large rank a part at a time, those of many small ranks at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.chakra import encode
from chopper_interop.io import background
from chopper_interop.tables import merged_rows

if TYPE_CHECKING:
    from chopper_interop.converters.chakra.streams import StreamNodes

_CHUNK = 4 << 20
"""Bytes encoded at a time. Chosen: thousands of nodes a call, yet small next to a trace."""
_NODE = 1 << 11
"""Bytes of a node, for which files of few nodes get room. Chosen: some times what one with all attributes takes; to touch
4 MB for the first time takes a millisecond."""
_PART = 1 << 15
"""Nodes of which attributes are in memory. Chosen: some ten megabytes, and hundreds of calls a million nodes."""


class Part(NamedTuple):
    """Columns of a part of the nodes of a file, or of whole ranks, and the id of each."""

    rows: slice
    nodes: encode.Nodes
    numbers: encode.Numbers
    words: encode.Words
    ids: Array


def parts_of(of_npu: StreamNodes) -> Callable[[slice], Part]:
    """Give a part of the nodes at a time: of tables copies, as another layout would have the loop compiled again."""
    nodes, numbers, words = of_npu.nodes, of_npu.numbers, of_npu.words
    return lambda part: Part(
        part,
        nodes._replace(
            type=nodes.type[part],
            name=nodes.name[part],
            start_us=nodes.start_us[part],
            slot_us=nodes.slot_us[part],
        ),
        numbers._replace(
            values=numbers.values[:, part].copy(), known=numbers.known[:, part].copy()
        ),
        words._replace(values=words.values[:, part].copy()),
        np.arange(part.start, part.stop),
    )


def write_parts(
    stream: IO[bytes],
    count: int,
    table: encode.Texts,
    columns: Callable[[slice], Part],
    of_last: bytes = b"",
) -> None:
    """Write so many nodes, of which columns are given a part at a time, and further attributes of the last.

    Of a file of several parts a thread makes the columns of the next one while one is encoded, and another writes.
    """
    last = count - 1
    rows = [slice(begin, min(begin + _PART, count)) for begin in range(0, count, _PART)]
    parts = map(columns, rows)
    made = background.ahead(parts) if len(rows) > 1 else parts
    with background.writer_behind(stream) as writer:
        for first, nodes in _encoded(made, table, last):
            writer.write(encode.extended(nodes.tobytes(), of_last) if first == last else nodes)


def _encoded(parts: Iterable[Part], table: encode.Texts, last: int) -> Iterator[tuple[int, Array]]:
    """Encoded nodes and the first of them, the last one alone, in arrays of which each is overwritten when the next but one is made."""
    encoder, other = _Encoder(table, last + 1), None
    for part in parts:
        done, rows = part.rows.start, part.rows
        while done < rows.stop:
            stop = last if done < last < rows.stop else rows.stop
            encoded, reached, _ = encoder.encode(part, done, stop)
            yield done, encoded
            encoder.out, other, done = other, encoder.out, reached


def encoded_ranks(
    first: Array, table: encode.Texts, columns: Callable[[slice], Part]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the encoded nodes of each rank without its last one, and that one.

    Parameters
    ----------
    first
        Nodes of rank k are those from ``first[k]`` on and before ``first[k + 1]``.
    table, columns
        All texts, and columns of some nodes.
    """
    encoder = _Encoder(table, int(first[-1]))
    ranks = [slice(*bounds) for bounds in zip(first[:-1].tolist(), first[1:].tolist(), strict=True)]
    for span in merged_rows(ranks, _PART):
        part, pieces, done, size = columns(span), [], span.start, 0
        ends = np.zeros(span.stop - span.start + 1, np.int64)
        while done < span.stop:
            encoded, reached, of_nodes = encoder.encode(part, done, span.stop)
            ends[done - span.start + 1 : reached - span.start + 1] = size + of_nodes
            pieces.append(encoded.tobytes())
            size, done = size + len(encoded), reached
        data = b"".join(pieces)
        at = np.searchsorted(first, [span.start, span.stop]).tolist()
        begins, stops = (first[at[0] + k : at[1] + k] - span.start for k in (0, 1))
        bounds = (ends[begins], ends[stops - 1], ends[stops])
        for begin, last, end in zip(*(of.tolist() for of in bounds), strict=True):
            yield data[begin:last], data[last:end]


class _Encoder:
    """Room for encoded nodes, of which there are so many in all."""

    def __init__(self, table: encode.Texts, count: int) -> None:
        self._table = table
        self._room = min(_CHUNK, _NODE * count)
        self.out: Array | None = None
        self._scratch = np.empty(self._room, np.uint8)

    def encode(self, part: Part, begin: int, stop: int) -> tuple[Array, int, Array]:
        """Encode nodes of a part as far as there is room; return them, the first that is left, and where each ends."""
        rows, nodes, numbers, words, ids = part
        ends = np.empty(rows.stop - rows.start, np.int64)
        while True:
            if self.out is None:
                self.out = np.empty(self._room, np.uint8)
            size, reached = encode.write_nodes(
                self.out, begin, (rows.start, stop), nodes, self._table, numbers, words,
                self._scratch, ids, ends,
            )  # fmt: skip
            if reached > begin:
                return self.out[:size], reached, ends[begin - rows.start : reached - rows.start]
            # a name of megabytes
            room = encode.room_for(begin, rows.start, nodes, self._table, numbers, words)
            self._room = 2 * room
            self.out, self._scratch = None, np.empty(2 * room + 2, np.uint8)
