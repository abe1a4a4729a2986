"""Hardware counters of dispatches: to which kernel each belongs.

A row of ``counter_collection`` is a counter of a dispatch. Where the same run also traced its
kernels, the counters go to those; else the dispatch becomes a node, once for all its counters.
Values are sums over all instances (XCCs, shader engines, channels), clocks such as
GRBM_GUI_ACTIVE included, in CSV as in JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow, gather
from chopper_interop.converters.rocprof_nodes import has_time
from chopper_interop.converters.rocprof_tables import KERNELS
from chopper_interop.counters import align
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocprof_nodes import Added, Nodes
    from chopper_interop.converters.rocprof_rows import Rows

COUNTER_ROW = Fault(
    "counter-row",
    Severity.INFO,
    "Rows of counters became counters of dispatches that are nodes already.",
    events=True,
)
NO_PLACE = Fault(
    "dispatch-without-time",
    Severity.LOSS,
    "Rows of counters without times (ROCm 6.2) belong to dispatches that no kernel trace of the "
    "same run places: record it with --kernel-trace too, or with ROCm 6.3 or later.",
    events=True,
)
NO_VALUE = Fault(
    "counter-without-value",
    Severity.LOSS,
    "Cells of counters that are empty or no number: the counter is not known for that dispatch.",
)
REPEATED = Fault(
    "counter-repeated",
    Severity.LOSS,
    "A counter of a dispatch was given several times; its first value was taken.",
)


@dataclass(frozen=True)
class Counts:
    """Counters of dispatches.

    Parameters
    ----------
    dispatches
        A row for each dispatch.
    process, device
        Of each dispatch.
    weight
        Input events that each dispatch stands for.
    dispatch
        Of each value, the number of its dispatch.
    name, value
        Of each value, the counter and what it counted.
    """

    dispatches: Rows
    process: Array
    device: Array
    weight: Array
    dispatch: Array
    name: pa.DictionaryArray
    value: Array


def counts_of(rows: Rows, process: Array, device: Array) -> Counts:
    """Counters of a table that has a row for each counter of each dispatch."""
    number = np.where(
        rows.is_known("dispatch"),
        rows.number("dispatch"),
        -2 - np.maximum(rows.number("correlation"), -1),
    )
    keys = [process, number, rows.codes("name")[0]]
    if "replay_pass" not in rows.numbers:  # else a dispatch ran once for each group of counters
        keys.append(rows.number("start", 0))
    first, code = gather.distinct(*keys)
    return Counts(
        dispatches=rows.take(first),
        process=process[first],
        device=device[first],
        weight=np.bincount(code, minlength=len(first)),
        dispatch=code,
        name=rows.texts["counter"],
        value=rows.values,
    )


def attach(nodes: Nodes, counts: Counts) -> None:
    """Give counters to the kernels that were counted, or make nodes of the dispatches."""
    kernels = [a for a in nodes.added if a.rows.form is KERNELS]
    node = _kernel_of(counts, kernels)
    timed = has_time(counts.dispatches)
    new = np.flatnonzero((node < 0) & timed)
    if new.size:
        added = nodes.add(counts.dispatches.take(new), counts.process[new], counts.device[new])
        node[new] = added.node
    _note_events(counts, node, new.size, nodes.issues)
    _add_values(nodes, counts, node)


def _note_events(counts: Counts, node: Array, new: int, issues: IssueLog) -> None:
    lost = np.flatnonzero(node < 0)
    rows = counts.dispatches
    codes, names = rows.codes("name")
    example = ""
    if lost.size:
        number = rows.number("dispatch")[lost[0]]
        example = f"{rows.where}: dispatch {number}, {names[codes[lost[0]]][:60]!r}"
    without = int(counts.weight[lost].sum())
    issues.add(NO_PLACE, without, example)
    issues.add(COUNTER_ROW, int(counts.weight.sum()) - without - new, rows.where)


def _add_values(nodes: Nodes, counts: Counts, node: Array) -> None:
    owner = node[counts.dispatch]
    codes = arrow.numbers(counts.name, -1)
    nothing = np.isnan(counts.value)
    nodes.issues.add(NO_VALUE, np.count_nonzero(nothing), counts.dispatches.where)
    kept = np.flatnonzero((owner >= 0) & (codes >= 0) & ~nothing)
    first, _ = gather.distinct(owner[kept], codes[kept])
    nodes.issues.add(REPEATED, len(kept) - len(first), counts.dispatches.where)
    kept = kept[first]
    nodes.builder.counters(owner[kept], arrow.take(counts.name, kept), counts.value[kept])


def _kernel_of(counts: Counts, kernels: Sequence[Added]) -> Array:
    """The kernel of each dispatch, -1 if none: by dispatch id or, in ROCm 6.2, correlation id."""
    rows = counts.dispatches
    node = np.full(rows.count, -1, np.int64)
    if not kernels:
        return node
    names: dict[str, int] = {}
    theirs = [counts.process, _plain(rows, names)]
    process = np.concatenate([k.process for k in kernels])
    ours = [process, np.concatenate([_plain(k.rows, names) for k in kernels])]
    target = np.concatenate([k.node for k in kernels])
    numbered = np.concatenate([k.rows.is_known("dispatch") for k in kernels])
    for columns, known in _KEYS:
        which = np.flatnonzero(numbered == known)
        mine = [np.concatenate([k.rows.number(c) for k in kernels]) for c in columns]
        wanted = np.flatnonzero((node < 0) & (rows.number(columns[0]) >= 0))
        node[wanted] = _joined(
            [column[which] for column in (*ours, *mine)],
            [column[wanted] for column in (*theirs, *(rows.number(c) for c in columns))],
            target[which],
        )
    return node


_KEYS = ((("dispatch", "start"), True), (("dispatch",), True), (("correlation",), False))
"""What tells a dispatch beside process and name, and whether it is of kernels with dispatch ids:
the times of a kernel trace may differ from those of the counters, and ROCm 6.2.0 wrote no ids."""


def _joined(ours: list[Array], theirs: list[Array], target: Array) -> Array:
    """For each row of theirs, the target of our first row that is equal; -1 if none is."""
    count = len(target)
    keys = [np.concatenate(pair) for pair in zip(ours, theirs, strict=True)]
    first, code = gather.distinct(*keys)
    found = np.concatenate([target, np.full(len(theirs[0]), -1)])[first]
    return np.asarray(found[code[count:]])


def _plain(rows: Rows, names: dict[str, int]) -> Array:
    """Numbers of the kernels' names, which differ by tool in what stands behind them."""
    codes, texts = rows.codes("name")
    numbers = [names.setdefault(align.plain_name(text), len(names)) for text in texts]
    return np.array([*numbers, -1], np.int64)[codes]
