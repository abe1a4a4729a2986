"""Groups of nodes at any granularity: by kernel, operation, layer, phase, iteration, rank, …"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from chopper_interop.annotate.work import kernel_categories
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.errors import OptionError, similar
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

COMPUTE, COMM, COPY = "compute", "comm", "copy"
CLASSES = {Kind.KERNEL: COMPUTE, Kind.MEMSET: COMPUTE, Kind.COMM: COMM, Kind.MEMCPY: COPY}
"""Classes of GPU work; fills count as compute."""

ANNOTATED = (
    "iteration", "phase", "step_part", "layer", "module", "operation", "collective", "group",
)  # fmt: skip
"""Grains that not every trace has values of."""
GRAINS = ("job", "rank", "stream", *ANNOTATED, "class", "category", "kernel")
"""Keys by which nodes can be grouped: `kernel` is their name, `stream` their lane, the rest as named."""


@dataclass(frozen=True)
class Groups:
    """Groups of nodes.

    Parameters
    ----------
    code
        Number of the group of each of the nodes.
    keys
        One row a group: what its nodes have in common, null where that is not known.
    """

    code: Array
    keys: pa.Table

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def columns(self) -> dict[str, Any]:
        """Return the keys by name, the first columns of a table of the groups."""
        return dict(zip(self.keys.column_names, self.keys.columns, strict=True))

    def sums(self, values: Array) -> Array:
        """Sums of the nodes' values over each group; integers stay exact."""
        if values.dtype.kind == "f":
            return np.bincount(self.code, values, len(self))
        total = np.zeros(len(self), np.int64)
        np.add.at(total, self.code, values)
        return total


def parse_grains(by: str, also: Iterable[str] = ()) -> tuple[str, ...]:
    """The names in a text like ``"rank,phase"``, each once.

    Parameters
    ----------
    also
        Names that are known in addition to `GRAINS`, for the hint.

    Raises
    ------
    OptionError
        One of them is not known.
    """
    names = tuple(name.strip() for name in by.split(",") if name.strip())
    known = dict.fromkeys((*also, *GRAINS))
    for name in names:
        if name not in known:
            raise OptionError(f"by={by}: there is no {name!r}", hint=similar(name, known))
    return tuple(name for name in dict.fromkeys(names) if name != "job")


def with_iteration(grains: Sequence[str]) -> tuple[str, ...]:
    """The names of grains with that of the step, behind the rank if that is one of them."""
    if "iteration" in grains:
        return tuple(grains)
    at = grains.index("rank") + 1 if "rank" in grains else 0
    return (*grains[:at], "iteration", *grains[at:])


def group_nodes(trace: Trace, rows: Array, by: str) -> Groups:
    """Groups of some nodes.

    Parameters
    ----------
    rows
        Rows of the trace's nodes.
    by
        Names out of `GRAINS`, separated by commas: ``"rank,phase"``. ``"job"`` puts all in one.

    Returns
    -------
    Groups
        In ascending order of their keys, as far as these are numbers, else of occurrence.
    """
    names = parse_grains(by)
    columns = [_coded(trace, name, rows) for name in names]
    if "stream" in names and "rank" not in names:
        at = names.index("stream")
        columns[at] = columns[at][0], lambda used: _streams_apart(trace, used)
    if not columns:
        groups = min(len(rows), 1)
        return Groups(np.zeros(len(rows), np.int64), pa.table({"job": [trace.meta.job] * groups}))
    first, code = gather.distinct(*(codes for codes, _ in columns))
    # number groups in ascending order of their codes, the first key counting most
    order = np.lexsort(tuple(codes[first] for codes, _ in reversed(columns)))
    number = np.empty(len(first), np.int64)
    number[order] = np.arange(len(first))
    keys = {
        name: values(codes[first][order])
        for name, (codes, values) in zip(names, columns, strict=True)
    }
    return Groups(number[code], pa.table(keys))


def work_classes(trace: Trace, rows: Array) -> Array:
    """Class of each of these nodes as a code into ``(compute, comm, copy)``; -1 for other nodes."""
    table = np.full(256, -1, np.int8)
    names = (COMPUTE, COMM, COPY)
    for kind, name in CLASSES.items():
        table[int(kind)] = names.index(name)
    return table[trace.array("kind")[rows]]


def _coded(trace: Trace, name: str, rows: Array) -> tuple[Array, Any]:
    """Code of each row, and a function from codes to the values of a column."""
    if name == "rank":
        return trace.array("rank")[rows].astype(np.int64), lambda used: arrow.array(
            used, pa.int32()
        )
    if name in _NAMED:
        codes, texts = _NAMED[name](trace, rows)
        return codes.astype(np.int64), lambda used: arrow.texts_of(texts, used)
    return _annotated(trace, name, rows)


def _annotated(trace: Trace, name: str, rows: Array) -> tuple[Array, Any]:
    """Codes of an annotation column as of `_coded`; all unknown if the trace lacks it."""
    if not trace.has(name):
        declared = hub.ANNOTATION_TYPES[name]
        plain = declared.value_type if pa.types.is_dictionary(declared) else declared
        return np.full(len(rows), -1, np.int64), lambda used: pa.nulls(len(used), plain)
    column = arrow.single_chunk(trace.nodes[name])
    codes = trace.integers(name, rows)
    if name == "group":
        return codes, lambda used: arrow.texts_of(trace.groups["name"].to_pylist(), used)
    if pa.types.is_dictionary(column.type):
        return codes, lambda used: arrow.texts_of(column.dictionary.to_pylist(), used)
    return codes, lambda used: arrow.negative_to_null(used.astype(np.int32))


def _streams(trace: Trace, rows: Array) -> tuple[Array, list[str]]:
    return trace.array("lane")[rows], _lane_names(trace)


def _lane_names(trace: Trace) -> list[str]:
    """Names of lanes, with their GPU or number where lanes of a rank have the same, as threads of a process."""
    lanes = trace.lanes.select(["rank", "name", "device", "number"]).to_pylist()
    alike = Counter((lane["rank"], lane["name"]) for lane in lanes)
    apart = "{name} {number}", "GPU {device}, {name}"
    return [
        apart[lane["device"] >= 0].format(**lane)
        if alike[lane["rank"], lane["name"]] > 1
        else lane["name"]
        for lane in lanes
    ]


def _streams_apart(trace: Trace, lanes: Array) -> pa.Array:
    """Names of lanes, with their rank where lanes of several ranks have the same; -1 is none."""
    names, rank = trace.lanes["name"].to_pylist(), trace.array("rank", "lanes").tolist()
    ranks_of: dict[str, set[int]] = {}
    for lane in lanes[lanes >= 0].tolist():
        ranks_of.setdefault(names[lane], set()).add(rank[lane])
    texts = [
        shown if len(ranks_of.get(name, ())) < 2 else f"rank {of}, {shown}"  # noqa: PLR2004
        for name, shown, of in zip(names, _lane_names(trace), rank, strict=True)
    ]
    return arrow.texts_of(texts, lanes)


def _kernels(trace: Trace, rows: Array) -> tuple[Array, list[str]]:
    return trace.array("name")[rows], trace.names()


def _classes(trace: Trace, rows: Array) -> tuple[Array, list[str]]:
    return work_classes(trace, rows), [COMPUTE, COMM, COPY]


def _categories(trace: Trace, rows: Array) -> tuple[Array, list[str]]:
    return kernel_categories.node_categories(trace, rows), list(kernel_categories.CATEGORIES)


_NAMED = {"stream": _streams, "kernel": _kernels, "class": _classes, "category": _categories}


def group_nodes_with(
    trace: Trace, rows: Array, by: str, further: dict[str, Array | pa.Array]
) -> Groups:
    """Groups of nodes as `group_nodes`, distinguished by further columns too.

    Parameters
    ----------
    trace, rows, by
        As of `group_nodes`; what is named in `further` may stand in `by` and is taken from there.
    further
        A column for each: numbers, -1 for unknown, or an Arrow dictionary.
    """
    names = [name.strip() for name in by.split(",") if name.strip()]
    plain_by = ",".join(name for name in names if name not in further)
    plain = group_nodes(trace, rows, plain_by)
    if not further:
        return plain
    codes = [np.asarray(_codes(column), np.int64) for column in further.values()]
    # number distinct rows of codes in ascending order, the first column counting most
    first, code = gather.distinct(plain.code, *codes)
    order = np.lexsort((*(c[first] for c in reversed(codes)), plain.code[first]))
    number = np.empty(len(first), np.int64)
    number[order] = np.arange(len(first))
    keys = arrow.take(plain.keys, plain.code[first][order])
    if not parse_grains(plain_by):
        keys = keys.drop_columns(["job"])
    columns = {name: keys[name] for name in keys.column_names}
    columns |= {name: _values(column, first[order]) for name, column in further.items()}
    return Groups(number[code], pa.table(columns))


def _codes(column: Array | pa.Array) -> Array:
    """Numbers that distinguish the values of a column; -1 for unknown."""
    return arrow.to_numpy(column, -1) if isinstance(column, pa.Array) else column


def _values(column: Array | pa.Array, rows: Array) -> pa.Array:
    """Values of a column at these rows, null where unknown."""
    if isinstance(column, pa.Array):
        values = arrow.take(column, rows)
        return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    used = np.asarray(column, np.int64)[rows]
    return arrow.negative_to_null(used.astype(np.int32))
