"""Arguments of written events: members that are added to those of the source.

Ids (``correlation``, ``device``, ``stream``), sizes of copies and the facts of communication have
Kineto's own names; the other annotation columns stand in a dictionary "chopper", hardware counters
in one called "counters".
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow
from chopper_interop.converters.kineto import events_encode as encode
from chopper_interop.converters.kineto.strict_json_text import json_bytes
from chopper_interop.edges.communication import communicates
from chopper_interop.io import json_events
from chopper_interop.schemas import hub
from chopper_interop.schemas.categories import PYTORCH, PYTORCH_CATEGORY
from chopper_interop.schemas.dtypes import element_bytes
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, Collective, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.kineto.tracks import Tracks

COLLECTIVE_NAMES: dict[str, str] = {
    Collective.ALL_REDUCE: "allreduce", Collective.REDUCE: "reduce",
    Collective.ALL_GATHER: "allgather", Collective.GATHER: "gather", Collective.SCATTER: "scatter",
    Collective.BROADCAST: "broadcast", Collective.ALL_TO_ALL: "all_to_all",
    Collective.REDUCE_SCATTER: "reduce_scatter", Collective.BARRIER: "barrier",
    Collective.SEND: "send", Collective.RECV: "recv", Collective.SEND_RECV: "sendrecv",
}  # fmt: skip
"""Canonical name → PyTorch's, as ``Collective name`` has it."""

CORRELATED = (*CALLS, *GPU_WORK, Kind.GPU_SYNC)
"""Kinds of which Kineto has correlation ids."""
_COPIES = (Kind.MEMCPY, Kind.MEMSET)
_WITH_KINETO_NAME = ("collective", "group", "seq", "peer", "dtype", "bytes", "out_bytes")
"""Annotation columns for which Kineto has names."""
_CORE_COLUMNS = {column.name for column in hub.NODES}
_NOT_JSON = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_EMPTY = np.empty(0, np.int64)


class _MemberColumns:
    """Members of one chunk of events, column by column."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.numbers: list[tuple[int, Array, Array, bool]] = []
        self.rendered: list[tuple[int, Array]] = []
        self.parts: list[bytes] = []

    def number(self, key: int, value: Array, known: Array, *, overriding: bool = False) -> None:
        """Add a member that is a whole number, unless no event has it."""
        if known.any():
            value = np.ascontiguousarray(value, np.int64)
            self.numbers.append((key, value, np.ascontiguousarray(known), overriding))

    def text(self, key: int, code: Array, texts: list[bytes]) -> None:
        """Add a member whose values are rendered: indices of `texts`, -1 for none."""
        if (code >= 0).any():
            self.rendered.append((key, np.where(code >= 0, code + len(self.parts), -1)))
            self.parts += texts

    def finish(self) -> tuple[encode.Numbers, encode.Rendered]:
        """Return the columns as the encoder takes them."""
        numbers = encode.Numbers(
            key=np.array([key for key, *_ in self.numbers], np.int64),
            value=_stack([value for _, value, _, _ in self.numbers], self.n, np.int64),
            known=_stack([known for _, _, known, _ in self.numbers], self.n, np.bool_),
            overriding=np.array([overriding for *_, overriding in self.numbers], np.bool_),
        )
        rendered = encode.Rendered(
            key=np.array([key for key, _ in self.rendered], np.int64),
            code=_stack([code for _, code in self.rendered], self.n, np.int64),
            texts=encode.join_texts(self.parts),
        )
        return numbers, rendered


class _Chunk:
    """Nodes of a trace from row `start` to `stop`, with their columns."""

    def __init__(self, trace: Trace, start: int, stop: int) -> None:
        self.trace = trace
        self.rows = slice(start, stop)
        self.count = stop - start

    def array(self, name: str) -> Array:
        """Return a core column."""
        return self.trace.array(name)[self.rows]

    def column(self, name: str) -> pa.Array:
        """Return a column as one Arrow array."""
        return arrow.single_chunk(self.trace.nodes[name].slice(self.rows.start, self.count))

    def integers(self, name: str) -> tuple[Array, Array]:
        """Return an integer column's values, and where they are known."""
        if not self.trace.has(name):
            return np.zeros(self.count, np.int64), np.zeros(self.count, bool)
        data = self.column(name)
        return arrow.to_numpy(data).astype(np.int64), arrow.is_valid(data)

    def texts(self, name: str) -> tuple[Array, list[str]]:
        """Return a text column as indices of the texts that occur (-1: none), and these."""
        if not self.trace.has(name):
            return np.full(self.count, -1, np.int64), []
        data = self.column(name).dictionary_encode()
        code = arrow.to_numpy(data, -1).astype(np.int64)
        used = np.unique(code)
        used = used[used >= 0]
        texts = arrow.take(data.dictionary, used).to_pylist()
        return np.where(code >= 0, np.searchsorted(used, code), -1), texts


class AddedMembers:
    """Members that the arguments of a trace's nodes gain, made chunk by chunk.

    Parameters
    ----------
    trace
        The trace.
    tracks
        Tracks of its nodes.
    correlation
        Correlation id to write for each node, -1 for none.
    rank_in_args
        Whether the events' arguments state their rank.
    """

    def __init__(
        self, trace: Trace, tracks: Tracks, correlation: Array, *, rank_in_args: bool
    ) -> None:
        self.trace = trace
        self.tracks = tracks
        self.correlation = correlation
        self.rank_in_args = rank_in_args
        self._keys: dict[str, int] = {"chopper": encode.CHOPPER, "counters": encode.COUNTERS}
        self.is_correlated = _kind_mask(CORRELATED)
        self.is_copy = _kind_mask(_COPIES)
        self.unnamed_columns = columns_without_name(trace)
        self.kind_needed = _kind_needed(trace)
        self.groups = trace.groups.to_pylist()
        counter_names = (
            trace.counters["name"].combine_chunks().dictionary if trace.counters.num_rows else ()
        )
        self.counter_keys = np.array([self._key(str(name)) for name in counter_names], np.int64)

    def _key(self, name: str) -> int:
        return self._keys.setdefault(name, len(self._keys))

    def of_chunk(
        self, start: int, stop: int, arguments: encode.Arguments, instants: Array
    ) -> encode.Members:
        """Return the members of the nodes from `start` to `stop`.

        Parameters
        ----------
        start, stop
            Rows of the nodes.
        arguments
            Arguments of these nodes in the source.
        instants
            Mask of these nodes that are written without a duration.
        """
        chunk = _Chunk(self.trace, start, stop)
        top, inner = _MemberColumns(chunk.count), _MemberColumns(chunk.count)
        kind = chunk.array("kind")
        self._identity(top, chunk, arguments, instants)
        self._correlation(top, kind, chunk, arguments)
        bytes_written, out_bytes_written = self._communication(top, chunk)
        size, known = chunk.integers("bytes")
        copies = self.is_copy[kind]
        top.number(self._key("bytes"), size, known & copies, overriding=True)
        self._unnamed(inner, kind, chunk)
        for name, written in (("bytes", bytes_written | copies), ("out_bytes", out_bytes_written)):
            value, known = chunk.integers(name)
            inner.number(self._key(name), value, known & ~written)
        numbers, rendered = top.finish()
        inner_numbers, inner_rendered = inner.finish()
        counters = self._counters(chunk)
        keys = encode.join_texts(json_bytes(key)[1:-1] for key in self._keys)
        return encode.Members(keys, numbers, rendered, inner_numbers, inner_rendered, counters)

    def _identity(
        self,
        top: _MemberColumns,
        chunk: _Chunk,
        arguments: encode.Arguments,
        instants: Array,
    ) -> None:
        """Add rank, process, device and stream.

        Events of a device that are not its work get neither device nor stream where `pid` and
        `tid` state them: tools take events with a ``stream`` for work of the GPU.
        """
        track = self.tracks.of_node[chunk.rows]
        is_work, raw_pid = self.tracks.is_work[track], self.tracks.raw_pid[track]
        idle = self.tracks.on_device[track] & ~is_work
        device_unclear = self.tracks.has_other_pid[track] & idle
        if self.rank_in_args:
            all_events, rank = np.ones(chunk.count, bool), chunk.array("rank")
            top.number(self._key("rank"), rank, all_events, overriding=True)
            top.number(self._key("pid_raw"), raw_pid, ~idle & ~instants)
            top.number(self._key("pid_raw"), raw_pid, idle, overriding=True)
            device_unclear &= raw_pid < 0
        device, stream = is_work | device_unclear, is_work.copy()
        probed = np.flatnonzero(idle & (arguments.length > 0))
        _, present = _source_numbers(arguments, probed, ("device", "stream"))
        device[probed] |= present[0]
        stream[probed] |= present[1]
        top.number(self._key("device"), self.tracks.device[track], device, overriding=True)
        known = stream & self.tracks.has_number[track]
        top.number(self._key("stream"), self.tracks.stream[track], known, overriding=True)

    def _correlation(
        self, top: _MemberColumns, kind: Array, chunk: _Chunk, arguments: encode.Arguments
    ) -> None:
        """Add correlation ids, under the name under which a reader will look for them.

        In files that state ranks that is ``correlation_raw``, if the source has it.
        """
        ids, correlated = self.correlation[chunk.rows], self.is_correlated[kind]
        keys = ("correlation", "correlation_raw")
        values, present = np.zeros((2, len(kind)), np.int64), np.zeros((2, len(kind)), bool)
        needed = (ids == -1) | self.rank_in_args
        probed = np.flatnonzero(correlated & (arguments.length > 0) & needed)
        values[:, probed], present[:, probed] = _source_numbers(arguments, probed, keys)
        raw = present[1] & self.rank_in_args
        known = correlated & ~raw & ((ids != -1) | present[0])
        top.number(self._key(keys[0]), ids, known, overriding=True)
        top.number(self._key(keys[1]), ids, raw & (values[1] != ids), overriding=True)

    def _communication(self, top: _MemberColumns, chunk: _Chunk) -> tuple[Array, Array]:
        """Add the facts of collectives; return masks of events with the bytes in, and out."""
        collective, names = chunk.texts("collective")
        is_known_name = np.array([name in COLLECTIVE_NAMES for name in names] or [False])
        known = (collective >= 0) & is_known_name[collective]
        if not known.any():
            no_event = np.zeros(chunk.count, bool)
            return no_event, no_event
        written = [json_bytes(COLLECTIVE_NAMES.get(name, name)) for name in names]
        top.text(self._key("Collective name"), np.where(known, collective, -1), written)
        dtype, dtypes = chunk.texts("dtype")
        top.text(
            self._key("dtype"), np.where(known, dtype, -1), [json_bytes(name) for name in dtypes]
        )
        self._group(top, known, chunk)
        value, has_value = chunk.integers("seq")
        top.number(self._key("Seq"), value, has_value & known)
        value, has_value = chunk.integers("peer")
        for kind, key in ((Collective.SEND, "Dst Rank"), (Collective.RECV, "Src Rank")):
            of_kind = known & np.array([name == kind for name in names])[collective]
            top.number(self._key(key), value, has_value & of_kind)
        sizes = np.array([element_bytes(name) or 0 for name in dtypes] or [0], np.int64)
        size = np.where(known & (dtype >= 0), sizes[dtype], 0)
        return (
            self._elements(top, "bytes", "In msg nelems", size, chunk),
            self._elements(top, "out_bytes", "Out msg nelems", size, chunk),
        )

    def _elements(
        self, top: _MemberColumns, column: str, key: str, size: Array, chunk: _Chunk
    ) -> Array:
        """Add bytes as a number of elements, and return where they are a whole number of them."""
        value, known = chunk.integers(column)
        is_whole = known & (size > 0) & (value % np.maximum(size, 1) == 0)
        top.number(self._key(key), value // np.maximum(size, 1), is_whole)
        return is_whole

    def _group(self, top: _MemberColumns, known: Array, chunk: _Chunk) -> None:
        value, has_value = chunk.integers("group")
        code = np.where(known & has_value, value, -1)
        for key, of_group in (
            ("Process Group Name", lambda g: g["name"]),
            ("Process Group Description", lambda g: g["description"]),
            ("Process Group Ranks", lambda g: str(g["ranks"])),
        ):
            top.text(self._key(key), code, [json_bytes(of_group(g)) for g in self.groups])
        sizes = np.array([len(g["ranks"]) for g in self.groups] or [0], np.int64)
        top.number(self._key("Group size"), sizes[code], code >= 0)

    def _unnamed(self, inner: _MemberColumns, kind: Array, chunk: _Chunk) -> None:
        """Add everything for which Kineto has no name."""
        if self.kind_needed is not None:
            code = np.where(self.kind_needed[chunk.rows], kind.astype(np.int64), -1)
            names = {int(k): json_bytes(k.name.lower()) for k in Kind}
            inner.text(self._key("kind"), code, [names.get(k, b"") for k in range(256)])
        correlated = self.is_correlated[kind]
        correlation = chunk.array("correlation")
        inner.number(self._key("correlation"), correlation, ~correlated & (correlation != -1))
        for name in self.unnamed_columns:
            self._column(inner, name, chunk)

    def _column(self, inner: _MemberColumns, name: str, chunk: _Chunk) -> None:
        data = chunk.column(name)
        if pa.types.is_integer(data.type):
            value, known = chunk.integers(name)
            inner.number(self._key(name), value, known)
        elif pa.types.is_dictionary(data.type) or pa.types.is_string(data.type):
            code, texts = chunk.texts(name)
            inner.text(self._key(name), code, [json_bytes(text) for text in texts])
        else:
            known = arrow.is_valid(data)
            code = np.where(known, np.cumsum(known) - 1, -1)
            inner.text(self._key(name), code, _json_values(data.drop_null()))

    def _counters(self, chunk: _Chunk) -> encode.Lists:
        """Hardware counters of the nodes."""
        owner = self.trace.array("node", "counters")
        bounds = np.searchsorted(owner, np.arange(chunk.rows.start, chunk.rows.stop + 1))
        first, last = int(bounds[0]), int(bounds[-1])
        key, values = _EMPTY, encode.join_texts([])
        if last > first:
            key = self.counter_keys[self.trace.array("name", "counters")[first:last]]
            values = render_reals(self.trace.array("value", "counters")[first:last])
        return encode.Lists(bounds - first, key, values)


def _source_numbers(
    arguments: encode.Arguments, rows: Array, keys: tuple[str, str]
) -> tuple[Array, Array]:
    """Extract numbers from the source's arguments of some events; see `json_events.extract_integers`."""
    return json_events.extract_integers(
        arguments.buffer, arguments.at[rows], arguments.length[rows], keys
    )


def render_reals(values: Array) -> encode.OutTexts:
    """Render reals as JSON: the shortest text of the same number; NaN and infinities as strings."""
    texts = arrow.array(values, pa.float64()).cast(pa.string())
    if not np.isfinite(values).all():
        return encode.join_texts(_NOT_JSON.get(text, text).encode() for text in texts.to_pylist())
    _, offsets, data = texts.buffers()
    if not len(texts):
        return encode.join_texts([])
    first = np.frombuffer(offsets, np.int32)[: len(texts) + 1].astype(np.int64)
    return encode.OutTexts(np.array(np.frombuffer(data, np.uint8)), first)


def columns_without_name(trace: Trace) -> list[str]:
    """Annotation columns for which Kineto has no names, and in which something is known."""
    nodes = trace.nodes
    others = (
        name
        for name in nodes.column_names
        if name not in _CORE_COLUMNS and name not in _WITH_KINETO_NAME
    )
    return [name for name in others if nodes[name].null_count < nodes.num_rows]


def is_comm_name(trace: Trace) -> Array:
    """Mask of nodes with a name by which a reader takes a kernel for communication."""
    names = [communicates(name) for name in trace.names()]
    return np.array([*names, False])[trace.array("name")]


def _kind_needed(trace: Trace) -> Array | None:
    """Mask of nodes of a kind that their category does not determine; None if there is none."""
    determined = np.zeros(256, bool)
    for kind, category in PYTORCH_CATEGORY.items():
        determined[int(kind)] = PYTORCH.get(category.lower()) == kind or kind == Kind.COMM
    kinds = trace.array("kind")
    needed = ~determined[kinds] | ((kinds == Kind.KERNEL) & is_comm_name(trace))
    return needed if needed.any() else None


def _kind_mask(kinds: tuple[Kind, ...]) -> Array:
    """Table of truth values by kind."""
    mask = np.zeros(256, bool)
    mask[[int(kind) for kind in kinds]] = True
    return mask


def _json_values(data: pa.Array) -> list[bytes]:
    """Render the values of a column that is neither of whole numbers nor of texts as JSON."""
    if pa.types.is_floating(data.type):
        rendered = render_reals(arrow.to_numpy(data.cast(pa.float64())))
        data_bytes, first = rendered.data.tobytes(), rendered.first.tolist()
        return [data_bytes[a:b] for a, b in pairwise(first)]
    return [
        json.dumps(value, ensure_ascii=False, default=str).encode() for value in data.to_pylist()
    ]


def _stack(columns: list[Array], n: int, dtype: Any) -> Array:
    return np.stack(columns).astype(dtype) if columns else np.empty((0, n), dtype)
