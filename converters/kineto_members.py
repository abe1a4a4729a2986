"""What the arguments of written events gain: what the hub knows and their source did not say.

Under Kineto's own names stand ids (``correlation``, ``device``, ``stream``), sizes of copies and
what is known of communication; the other annotation columns stand in a dictionary "chopper",
hardware counters in one called "counters".
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.columns import arrow
from chopper_interop.converters import kineto_encode as encode
from chopper_interop.converters.kineto_tables import (
    CATEGORIES,
    CATEGORY_OF,
)
from chopper_interop.files import jsonscan
from chopper_interop.schemas import hub
from chopper_interop.schemas.dtypes import element_bytes
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, Collective, Kind
from chopper_interop.schemas.names import COMM_KERNEL

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.kineto_places import Places
    from chopper_interop.trace import Trace

COLLECTIVE_NAMES: dict[str, str] = {
    Collective.ALL_REDUCE: "allreduce",
    Collective.REDUCE: "reduce",
    Collective.ALL_GATHER: "allgather",
    Collective.GATHER: "gather",
    Collective.SCATTER: "scatter",
    Collective.BROADCAST: "broadcast",
    Collective.ALL_TO_ALL: "all_to_all",
    Collective.REDUCE_SCATTER: "reduce_scatter",
    Collective.BARRIER: "barrier",
    Collective.SEND: "send",
    Collective.RECV: "recv",
    Collective.SEND_RECV: "sendrecv",
}
"""Canonical name → PyTorch's, as ``Collective name`` has it."""

TIED = (*CALLS, *GPU_WORK, Kind.GPU_SYNC)
"""Kinds whose correlation ids Kineto tells."""
_COPIES = (Kind.MEMCPY, Kind.MEMSET)
_OWN = ("collective", "group", "seq", "peer", "dtype", "bytes", "out_bytes")
"""Annotation columns that have names of Kineto's."""
_CORE = {column.name for column in hub.NODES}
_NOT_JSON = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_NONE = np.empty(0, np.int64)


class _Columns:
    """Collects the members of one chunk of events."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.numbers: list[tuple[int, Array, Array, bool]] = []
        self.rendered: list[tuple[int, Array]] = []
        self.parts: list[bytes] = []

    def number(self, key: int, value: Array, known: Array, *, binding: bool = False) -> None:
        """Add whole numbers; those that no event has are left out."""
        if known.any():
            value = np.ascontiguousarray(value, np.int64)
            self.numbers.append((key, value, np.ascontiguousarray(known), binding))

    def text(self, key: int, code: Array, texts: list[bytes]) -> None:
        """Add rendered values: numbers of `texts`, -1 for none."""
        if (code >= 0).any():
            self.rendered.append((key, np.where(code >= 0, code + len(self.parts), -1)))
            self.parts += texts

    def finish(self) -> tuple[encode.Numbers, encode.Rendered]:
        """What the encoder takes."""
        numbers = encode.Numbers(
            key=np.array([key for key, *_ in self.numbers], np.int64),
            value=_stacked([value for _, value, _, _ in self.numbers], self.n, np.int64),
            known=_stacked([known for _, _, known, _ in self.numbers], self.n, np.bool_),
            binding=np.array([binding for *_, binding in self.numbers], np.bool_),
        )
        rendered = encode.Rendered(
            key=np.array([key for key, _ in self.rendered], np.int64),
            code=_stacked([code for _, code in self.rendered], self.n, np.int64),
            texts=encode.texts(self.parts),
        )
        return numbers, rendered


class Added:
    """Makes the members that chunks of a trace's nodes gain.

    Parameters
    ----------
    trace
        The trace.
    places
        Where its nodes stand.
    correlation
        The correlation id that each node shall have, -1 for none.
    stated
        Whether a reader of the file will tell ranks by the events' arguments.
    """

    def __init__(self, trace: Trace, places: Places, correlation: Array, *, stated: bool) -> None:
        self.trace = trace
        self.places = places
        self.correlation = correlation
        self.stated = stated
        self._keys: dict[str, int] = {"chopper": encode.GROUP, "counters": encode.COUNTERS}
        self.tied = _kinds(TIED)
        self.copies = _kinds(_COPIES)
        self.others = without_names(trace)
        self.plain = _without_category(trace)
        self.groups = trace.groups.to_pylist()
        counted = (
            trace.counters["name"].combine_chunks().dictionary if trace.counters.num_rows else ()
        )
        self.counter_keys = np.array([self._key(str(name)) for name in counted], np.int64)

    def _key(self, name: str) -> int:
        return self._keys.setdefault(name, len(self._keys))

    def chunk(
        self, start: int, stop: int, arguments: encode.Arguments, moments: Array
    ) -> encode.Members:
        """Members of the nodes from `start` to `stop`, `moments` being those without duration."""
        own, group = _Columns(stop - start), _Columns(stop - start)
        kind = self.trace.array("kind")[start:stop]
        self._identity(own, start, stop, arguments, moments)
        self._correlation(own, kind, start, stop, arguments)
        told = self._communication(own, start, stop)
        size, known = self._integers("bytes", start, stop)
        copies = self.copies[kind]
        own.number(self._key("bytes"), size, known & copies, binding=True)
        self._rest(group, kind, start, stop)
        for name, written in (("bytes", told[0] | copies), ("out_bytes", told[1])):
            value, known = self._integers(name, start, stop)
            group.number(self._key(name), value, known & ~written)
        numbers, rendered = own.finish()
        group_numbers, group_rendered = group.finish()
        counters = self._counters(start, stop)
        keys = encode.texts(_rendered(key)[1:-1] for key in self._keys)
        return encode.Members(keys, numbers, rendered, group_numbers, group_rendered, counters)

    def _identity(
        self, own: _Columns, start: int, stop: int, arguments: encode.Arguments, moments: Array
    ) -> None:
        """Rank, process, device and stream.

        Events of a device that are no work of it get neither device nor stream where `pid` and
        `tid` tell them: tools take what has a ``stream`` for work of the GPU.
        """
        place = self.places.of_node[start:stop]
        works, raw_pid = self.places.works[place], self.places.raw_pid[place]
        idle = self.places.on_device[place] & ~works
        untold = self.places.stands_aside[place] & idle
        if self.stated:
            every, rank = np.ones(stop - start, bool), self.trace.array("rank")[start:stop]
            own.number(self._key("rank"), rank, every, binding=True)
            own.number(self._key("pid_raw"), raw_pid, ~idle & ~moments)
            own.number(self._key("pid_raw"), raw_pid, idle, binding=True)
            untold &= raw_pid < 0
        device, stream = works | untold, works.copy()
        ask = np.flatnonzero(idle & (arguments.length > 0))
        _, found = _asked(arguments, ask, ("device", "stream"))
        device[ask] |= found[0]
        stream[ask] |= found[1]
        own.number(self._key("device"), self.places.device[place], device, binding=True)
        numbered = stream & self.places.numbered[place]
        own.number(self._key("stream"), self.places.stream[place], numbered, binding=True)

    def _correlation(
        self, own: _Columns, kind: Array, start: int, stop: int, arguments: encode.Arguments
    ) -> None:
        """Correlation ids, under the name under which a reader will look for them."""
        wanted, tied = self.correlation[start:stop], self.tied[kind]
        keys = ("correlation", "correlation_raw")
        values, found = np.zeros((2, len(kind)), np.int64), np.zeros((2, len(kind)), bool)
        ask = np.flatnonzero(tied & (arguments.length > 0) & ((wanted == -1) | self.stated))
        values[:, ask], found[:, ask] = _asked(arguments, ask, keys)
        aside = found[1] & self.stated
        known = tied & ~aside & ((wanted != -1) | found[0])
        own.number(self._key(keys[0]), wanted, known, binding=True)
        own.number(self._key(keys[1]), wanted, aside & (values[1] != wanted), binding=True)

    def _communication(self, own: _Columns, start: int, stop: int) -> tuple[Array, Array]:
        """What is known of collectives; for which events the bytes in and out are told so."""
        collective, names = self._texts("collective", start, stop)
        codes = np.array([name in COLLECTIVE_NAMES for name in names] or [False])
        known = (collective >= 0) & codes[collective]
        nothing = np.zeros(stop - start, bool)
        if not known.any():
            return nothing, nothing
        written = [_rendered(COLLECTIVE_NAMES.get(name, name)) for name in names]
        own.text(self._key("Collective name"), np.where(known, collective, -1), written)
        dtype, dtypes = self._texts("dtype", start, stop)
        own.text(
            self._key("dtype"), np.where(known, dtype, -1), [_rendered(name) for name in dtypes]
        )
        self._group(own, known, start, stop)
        value, there = self._integers("seq", start, stop)
        own.number(self._key("Seq"), value, there & known)
        value, there = self._integers("peer", start, stop)
        for kind, key in ((Collective.SEND, "Dst Rank"), (Collective.RECV, "Src Rank")):
            of_kind = known & np.array([name == kind for name in names])[collective]
            own.number(self._key(key), value, there & of_kind)
        sizes = np.array([element_bytes(name) or 0 for name in dtypes] or [0], np.int64)
        size = np.where(known & (dtype >= 0), sizes[dtype], 0)
        told = [
            self._elements(own, column, key, size, start, stop)
            for column, key in (("bytes", "In msg nelems"), ("out_bytes", "Out msg nelems"))
        ]
        return told[0], told[1]

    def _elements(
        self, own: _Columns, column: str, key: str, size: Array, start: int, stop: int
    ) -> Array:
        """Bytes as a number of elements, where they are one."""
        value, known = self._integers(column, start, stop)
        whole = known & (size > 0) & (value % np.maximum(size, 1) == 0)
        own.number(self._key(key), value // np.maximum(size, 1), whole)
        return whole

    def _group(self, own: _Columns, known: Array, start: int, stop: int) -> None:
        value, there = self._integers("group", start, stop)
        code = np.where(known & there, value, -1)
        for key, of_group in (
            ("Process Group Name", lambda g: g["name"]),
            ("Process Group Description", lambda g: g["description"]),
            ("Process Group Ranks", lambda g: str(g["ranks"])),
        ):
            own.text(self._key(key), code, [_rendered(of_group(g)) for g in self.groups])
        sizes = np.array([len(g["ranks"]) for g in self.groups] or [0], np.int64)
        own.number(self._key("Group size"), sizes[code], code >= 0)

    def _rest(self, group: _Columns, kind: Array, start: int, stop: int) -> None:
        """What Kineto has no name for."""
        if self.plain is not None:
            code = np.where(self.plain[start:stop], kind.astype(np.int64), -1)
            names = {int(k): _rendered(k.name.lower()) for k in Kind}
            group.text(self._key("kind"), code, [names.get(k, b"") for k in range(256)])
        tied = self.tied[kind]
        loose = self.trace.array("correlation")[start:stop]
        group.number(self._key("correlation"), loose, ~tied & (loose != -1))
        for name in self.others:
            self._column(group, name, start, stop)

    def _column(self, group: _Columns, name: str, start: int, stop: int) -> None:
        column = self.trace.nodes[name].slice(start, stop - start)
        if pa.types.is_integer(column.type):
            value, known = self._integers(name, start, stop)
            group.number(self._key(name), value, known)
        elif pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            code, texts = self._texts(name, start, stop)
            group.text(self._key(name), code, [_rendered(text) for text in texts])
        else:
            data = arrow.flat(column)
            known = arrow.known(data)
            code = np.where(known, np.cumsum(known) - 1, -1)
            group.text(self._key(name), code, _values(data.drop_null()))

    def _integers(self, name: str, start: int, stop: int) -> tuple[Array, Array]:
        """An integer column's values, and where it has some."""
        if name not in self.trace.nodes.column_names:
            return np.zeros(stop - start, np.int64), np.zeros(stop - start, bool)
        data = arrow.flat(self.trace.nodes[name].slice(start, stop - start))
        return arrow.numbers(data).astype(np.int64), arrow.known(data)

    def _texts(self, name: str, start: int, stop: int) -> tuple[Array, list[str]]:
        """A text column as numbers of the texts that occur, -1 for none."""
        if name not in self.trace.nodes.column_names:
            return np.full(stop - start, -1, np.int64), []
        data = arrow.flat(self.trace.nodes[name].slice(start, stop - start)).dictionary_encode()
        code = arrow.numbers(data, -1).astype(np.int64)
        used = np.unique(code)
        used = used[used >= 0]
        texts = arrow.take(data.dictionary, used).to_pylist()
        return np.where(code >= 0, np.searchsorted(used, code), -1), texts

    def _counters(self, start: int, stop: int) -> encode.Lists:
        """Hardware counters of the nodes from `start` to `stop`."""
        owner = self.trace.array("node", "counters")
        bounds = np.searchsorted(owner, np.arange(start, stop + 1))
        first, last = int(bounds[0]), int(bounds[-1])
        key, values = _NONE, encode.texts([])
        if last > first:
            key = self.counter_keys[self.trace.array("name", "counters")[first:last]]
            values = numbers(self.trace.array("value", "counters")[first:last])
        return encode.Lists(bounds - first, key, values)


def _asked(arguments: encode.Arguments, rows: Array, keys: tuple[str, str]) -> tuple[Array, Array]:
    """What the source's arguments of some events say; see `jsonscan.extract`."""
    return jsonscan.extract(arguments.buffer, arguments.at[rows], arguments.length[rows], keys)


def numbers(values: Array) -> encode.Texts:
    """Decimals as JSON: the shortest text that is the same number; in quotes what is none."""
    texts = arrow.array(values, pa.float64()).cast(pa.string())
    if not np.isfinite(values).all():
        return encode.texts(_NOT_JSON.get(text, text).encode() for text in texts.to_pylist())
    _, offsets, data = texts.buffers()
    if not len(texts):
        return encode.texts([])
    first = np.frombuffer(offsets, np.int32)[: len(texts) + 1].astype(np.int64)
    return encode.Texts(np.array(np.frombuffer(data, np.uint8)), first)


def without_names(trace: Trace) -> list[str]:
    """Annotation columns for which Kineto has no names, and in which something is known."""
    nodes = trace.nodes
    others = (name for name in nodes.column_names if name not in _CORE and name not in _OWN)
    return [name for name in others if nodes[name].null_count < nodes.num_rows]


def comm_named(trace: Trace) -> Array:
    """For each node, whether a reader takes a kernel of its name for communication."""
    names = [COMM_KERNEL.match(name) is not None for name in trace.names()]
    return np.array([*names, False])[trace.array("name")]


def _without_category(trace: Trace) -> Array | None:
    """Which nodes are of a kind that their category will not tell; None if none is."""
    told = np.zeros(256, bool)
    for of_kind, category in CATEGORY_OF.items():
        told[int(of_kind)] = CATEGORIES.get(category.lower()) == of_kind or of_kind == Kind.COMM
    kind = trace.array("kind")
    plain = ~told[kind] | ((kind == Kind.KERNEL) & comm_named(trace))
    return plain if plain.any() else None


def _kinds(kinds: tuple[Kind, ...]) -> Array:
    of_kind = np.zeros(256, bool)
    of_kind[[int(kind) for kind in kinds]] = True
    return of_kind


def _rendered(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()


def _values(data: pa.Array) -> list[bytes]:
    """Values of a column that is neither of whole numbers nor of texts, as JSON."""
    if pa.types.is_floating(data.type):
        rendered = numbers(arrow.numbers(data.cast(pa.float64())))
        raw, first = rendered.data.tobytes(), rendered.first.tolist()
        return [raw[a:b] for a, b in pairwise(first)]
    return [
        json.dumps(value, ensure_ascii=False, default=str).encode() for value in data.to_pylist()
    ]


def _stacked(columns: list[Array], n: int, dtype: Any) -> Array:
    return np.stack(columns).astype(dtype) if columns else np.empty((0, n), dtype)
