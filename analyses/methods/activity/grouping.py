"""Groups of nodes at any granularity: by kernel, operation, layer, phase, iteration, rank, …"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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


@dataclass(frozen=True)
class Keys:
    """Keys of groups as numbers, which mean the same in all batches of a trace; texts are made of them at the end.

    Parameters
    ----------
    names
        Names of the keys, by which groups are in ascending order, the first counting most.
    codes
        For each name the code of each group, -1 where that is not known.
    count
        Number of groups.
    """

    names: tuple[str, ...]
    codes: tuple[Array, ...]
    count: int

    def __len__(self) -> int:
        return self.count

    def at(self, groups: Array) -> Keys:
        """Keys of some groups."""
        return Keys(self.names, tuple(codes[groups] for codes in self.codes), len(groups))

    def table(
        self,
        trace: Trace,
        shown: Sequence[str] = (),
        *,
        apart: bool | None = None,
        further: Mapping[str, Sequence[str] | None] | None = None,
    ) -> pa.Table:
        """Keys as columns; the name of the job where there are none.

        Parameters
        ----------
        shown
            The names in another order.
        apart
            True if names of streams tell ranks apart; by default where the rank is no key.
        further
            Keys that are no grains: texts that their codes stand for, None for numbers.
        """
        if not self.names:
            return pa.table({"job": arrow.texts([trace.meta.job] * self.count)})
        codes = dict(zip(self.names, self.codes, strict=True))
        apart = "rank" not in self.names if apart is None else apart
        columns = {}
        for name in shown or self.names:
            if further and name in further:
                texts, used = further[name], codes[name]
                columns[name] = (
                    arrow.negative_to_null(used.astype(np.int32))
                    if texts is None
                    else arrow.texts_of(texts, used)
                )
            else:
                columns[name] = _values(trace, name, codes[name], apart=apart)
        return pa.table(columns)


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
    code, keys = code_nodes(trace, rows, by)
    return Groups(code, keys.table(trace))


def code_nodes(trace: Trace, rows: Array, by: str) -> tuple[Array, Keys]:
    """Number of the group of each of some nodes, and the groups' keys, as of `group_nodes`."""
    names = parse_grains(by)
    return keys_of(names, codes_of(trace, rows, names), len(rows))


def keys_of(names: Sequence[str], codes: Sequence[Array], count: int) -> tuple[Array, Keys]:
    """As `ordered_keys`; without names all of so many items are one group."""
    if not names:
        return np.zeros(count, np.int64), Keys((), (), min(count, 1))
    return ordered_keys(names, codes)


def ordered_keys(names: Sequence[str], codes: Sequence[Array]) -> tuple[Array, Keys]:
    """Number of the group of each of some items by their codes, and the groups' keys, ascending."""
    first, code = gather.distinct(*codes)
    order = np.lexsort(tuple(column[first] for column in reversed(codes)))
    number = np.empty(len(first), np.int64)
    number[order] = np.arange(len(first))
    found = tuple(np.asarray(column[first][order], np.int64) for column in codes)
    return number[code], Keys(tuple(names), found, len(first))


def work_classes(trace: Trace, rows: Array) -> Array:
    """Class of each of these nodes as a code into ``(compute, comm, copy)``; -1 for other nodes."""
    table = np.full(256, -1, np.int8)
    names = (COMPUTE, COMM, COPY)
    for kind, name in CLASSES.items():
        table[int(kind)] = names.index(name)
    return table[trace.array("kind")[rows]]


def codes_of(trace: Trace, rows: Array, names: Sequence[str]) -> list[Array]:
    """Codes of some nodes in each of some grains; -1 where it is not known."""
    return [
        _CODES[name](trace, rows).astype(np.int64) if name in _CODES else trace.integers(name, rows)
        for name in names
    ]


def _values(trace: Trace, name: str, codes: Array, *, apart: bool) -> pa.Array:
    """Values of a grain by their codes; `apart` as of `Keys.table`."""
    if name == "rank":
        return arrow.array(codes, pa.int32())
    if name == "stream" and apart:
        return _streams_apart(trace, codes)
    if name in _TEXTS:
        return arrow.texts_of(_TEXTS[name](trace), codes)
    declared = hub.ANNOTATION_TYPES[name]
    is_coded = pa.types.is_dictionary(declared)
    if not trace.has(name):
        return pa.nulls(len(codes), declared.value_type if is_coded else declared)
    column = arrow.single_chunk(trace.nodes[name])
    if name != "group" and not pa.types.is_dictionary(column.type):
        return arrow.negative_to_null(codes.astype(np.int32))
    texts = trace.groups["name"] if name == "group" else column.dictionary
    return arrow.texts_of(texts.to_pylist(), codes)


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


_CODES: dict[str, Callable[[Trace, Array], Array]] = {
    "rank": lambda trace, rows: trace.array("rank")[rows],
    "stream": lambda trace, rows: trace.array("lane")[rows],
    "kernel": lambda trace, rows: trace.array("name")[rows],
    "class": work_classes,
    "category": kernel_categories.node_categories,
}
"""By grain that is no annotation: codes of nodes."""
_TEXTS: dict[str, Callable[[Trace], Sequence[str]]] = {
    "stream": _lane_names,
    "kernel": lambda trace: trace.names(),
    "class": lambda _: (COMPUTE, COMM, COPY),
    "category": lambda _: kernel_categories.CATEGORIES,
}
"""By grain: texts of these codes."""
