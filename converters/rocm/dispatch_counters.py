"""Hardware counters of dispatches, and the kernels to which they belong.

A row of ``counter_collection`` is a counter of a dispatch. Where the same run also traced its
kernels, the counters go to those; else the dispatch becomes a node, once for all its counters.
Values are sums over all instances (XCCs, shader engines, channels), clocks such as
GRBM_GUI_ACTIVE included, in CSV as in JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.counters import join_passes
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.converters.rocm.nodes import AddedNodes, NodeAdder, has_time
from chopper_interop.converters.rocm.rows import TableRows, first_match
from chopper_interop.converters.rocm.tables import KERNELS
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    import pyarrow as pa


COUNTER_ROW = Fault.info_of_events(
    "counter-row", "Rows of counters became counters of dispatches that are nodes already."
)
NO_KERNEL = Fault.loss_of_events(
    "dispatch-without-time",
    "Rows of counters without times (ROCm 6.2) belong to dispatches that "
    "are in no kernel trace of the same run: record it with --kernel-trace too, or with ROCm 6.3 "
    "or later.",
)
NO_VALUE = Fault.loss(
    "counter-without-value",
    "Cells of counters that are empty or no number: the counter is not known for that dispatch.",
)
REPEATED = Fault.loss(
    "counter-repeated",
    "A counter of a dispatch was given several times; its first value was taken.",
)
SAMPLES_NOT_READ = Fault.loss_of_events(
    "sample-not-read", "Samples of program counters and streamed counters were left out."
)


@dataclass(frozen=True)
class DispatchCounters:
    """Counters of dispatches.

    Parameters
    ----------
    dispatches
        A row for each dispatch.
    process, device
        Process and device of each dispatch.
    weight
        Number of input events for which each dispatch stands.
    dispatch
        Index of the dispatch of each value.
    name, value
        Counter of each value, and the value.
    """

    dispatches: TableRows
    process: Array
    device: Array
    weight: Array
    dispatch: Array
    name: pa.DictionaryArray
    value: Array


def counters_of_rows(rows: TableRows, process: Array, device: Array) -> DispatchCounters:
    """Return the counters of a table that has a row for each counter of each dispatch."""
    # rows without a dispatch id are distinguished by correlation id, from -2 downwards
    number = np.where(
        rows.is_known("dispatch"),
        rows.number("dispatch"),
        -2 - np.maximum(rows.number("correlation"), -1),
    )
    keys = [process, number, rows.codes("name")[0]]
    if "replay_pass" not in rows.numbers:  # else a dispatch ran once for each group of counters
        keys.append(rows.number("start", 0))
    first, code = gather.distinct(*keys)
    return DispatchCounters(
        dispatches=rows.take(first),
        process=process[first],
        device=device[first],
        weight=np.bincount(code, minlength=len(first)),
        dispatch=code,
        name=rows.texts["counter"],
        value=rows.values,
    )


def add_counters(nodes: NodeAdder, counters: DispatchCounters) -> None:
    """Add counters to the kernels that were counted, or to new nodes of the dispatches."""
    kernels = [a for a in nodes.added if a.rows.form is KERNELS]
    node = _kernel_nodes(counters, kernels)
    timed = has_time(counters.dispatches)
    new = np.flatnonzero((node < 0) & timed)
    if new.size:
        added = nodes.add(
            counters.dispatches.take(new), counters.process[new], counters.device[new]
        )
        node[new] = added.node
    _note_events(counters, node, new.size, nodes.issues)
    _add_values(nodes, counters, node)


def _note_events(counters: DispatchCounters, node: Array, new: int, issues: IssueLog) -> None:
    lost = np.flatnonzero(node < 0)
    rows = counters.dispatches
    codes, names = rows.codes("name")
    example = ""
    if lost.size:
        number = rows.number("dispatch")[lost[0]]
        example = f"{rows.where}: dispatch {number}, {names[codes[lost[0]]][:60]!r}"
    lost_events = int(counters.weight[lost].sum())
    issues.add(NO_KERNEL, lost_events, example)
    issues.add(COUNTER_ROW, int(counters.weight.sum()) - lost_events - new, rows.where)


def _add_values(nodes: NodeAdder, counters: DispatchCounters, node: Array) -> None:
    owner = node[counters.dispatch]
    codes = arrow.to_numpy(counters.name, -1)
    missing = np.isnan(counters.value)
    nodes.issues.add(NO_VALUE, np.count_nonzero(missing), counters.dispatches.where)
    kept = np.flatnonzero((owner >= 0) & (codes >= 0) & ~missing)
    first, _ = gather.distinct(owner[kept], codes[kept])
    nodes.issues.add(REPEATED, len(kept) - len(first), counters.dispatches.where)
    kept = kept[first]
    nodes.builder.counters(owner[kept], arrow.take(counters.name, kept), counters.value[kept])


_KEYS = ((("dispatch", "start"), True), (("dispatch",), True), (("correlation",), False))
"""Columns that identify a dispatch in addition to process and name, tried in order, and whether
they serve for kernels with dispatch ids: the times of a kernel trace may differ from those of the
counters, and ROCm 6.2.0 wrote no ids."""


def _kernel_nodes(counters: DispatchCounters, kernels: Sequence[AddedNodes]) -> Array:
    """Return the node of each dispatch's kernel, -1 if it was not traced."""
    rows = counters.dispatches
    node = np.full(rows.count, -1, np.int64)
    if not kernels:
        return node
    codes: dict[str, int] = {}
    dispatch_keys = [counters.process, _plain_name_codes(rows, codes)]
    kernel_keys = [
        np.concatenate([k.process for k in kernels]),
        np.concatenate([_plain_name_codes(k.rows, codes) for k in kernels]),
    ]
    kernel_node = np.concatenate([k.node for k in kernels])
    has_id = np.concatenate([k.rows.is_known("dispatch") for k in kernels])
    for columns, with_id in _KEYS:
        selected = np.flatnonzero(has_id == with_id)
        numbers = [np.concatenate([k.rows.number(c) for k in kernels]) for c in columns]
        unmatched = np.flatnonzero((node < 0) & (rows.number(columns[0]) >= 0))
        match = first_match(
            [column[selected] for column in (*kernel_keys, *numbers)],
            [column[unmatched] for column in (*dispatch_keys, *(rows.number(c) for c in columns))],
        )
        node[unmatched] = np.append(kernel_node[selected], -1)[match]
    return node


def _plain_name_codes(rows: TableRows, codes: dict[str, int]) -> Array:
    """Return a code for each row's kernel name, without the endings in which tools differ.

    `codes` holds the code of each name, and takes up new names.
    """
    return rows.per_text(
        "name", lambda name: codes.setdefault(join_passes.plain_name(name), len(codes)), -1
    )
