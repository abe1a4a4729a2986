"""Tables of rocprof v1's databases and traces: KERN, HIP, HSA, OPS, COPY, rocTX.

Databases and JSON name columns alike; releases differ in which they have. Until ROCm 5 ``pid`` was
the number of the section in the trace, and ``proc-id`` the process; later there is a column
``__section`` for the one and ``pid`` is the other (``bin/tblextr.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chopper_interop.annotate.counters import join_passes
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.arrow import dictionary
from chopper_interop.converters.rocm.dispatch_tables import DispatchTable, unquoted
from chopper_interop.converters.rocm.lanes import ANY_DIRECTION, copy_directions
from chopper_interop.converters.rocm.number_limits import without_impossible_numbers
from chopper_interop.converters.rocm.rows import TableRows, first_match
from chopper_interop.converters.rocm.tables import (
    CALLS,
    COPIES,
    DISPATCHES,
    EVENTS,
    KERNELS,
    TableFormat,
)
from chopper_interop.issues import Fault, IssueLog

SAME_KERNEL = Fault.info_of_events(
    "kernel-taken-once",
    "Kernels that were recorded as dispatches and as operations of HIP were taken once.",
)
OTHER_KERNELS = Fault.error(
    "kernels-of-two-tables",
    "Dispatches and operations of HIP are different kernels, or not all "
    "were recorded twice: both were kept, so that some work may be in the graph twice.",
)


@dataclass(frozen=True)
class Section:
    """A table of calls or operations.

    Parameters
    ----------
    name
        Its name in a database.
    form
        Format of its rows.
    domain
        Domain of calls.
    number
        Its ``pid`` in files where that is the number of the section.
    """

    name: str
    form: TableFormat
    domain: str = ""
    number: int = -1


SECTIONS = (
    Section("rocTX", CALLS, "MARKER_ROCTX", 0),
    Section("COPY", COPIES, number=1),
    Section("HIP", CALLS, "HIP_API", 2),
    Section("HSA", CALLS, "HSA_API", 3),
    Section("OPS", KERNELS),
)
KERN = "KERN"
"""The table of dispatches, which mirrors NAME.csv."""
NUMBERS: dict[str, str] = {
    "BeginNs": "start", "EndNs": "end", "DurationNs": "duration", "pid": "pid", "tid": "tid",
    "proc-id": "proc", "queue-id": "queue", "stream-id": "stream", "Index": "correlation",
}  # fmt: skip
"""Columns of integers → their names in `TableRows`, or ``pid``, ``tid`` and ``proc``."""
TEXTS: dict[str, str] = {"Name": "name", "args": "args", "roctx-range": "range", "Data": "data"}
DEVICE = "dev-id"
MARKED = "__section"
_HSA_IDS = 1 << 40
"""Added to the correlation ids of HSA in files that have those of HIP too: both count from 1."""
_ASYNC = "async-copy"
_COPY = re.compile(
    r"(?:hc)?(?:Memcpy|Copy)(?:Host|Device)To(?:Host|Device)|FillBuffer|Copy(?:Buffer|Image)\w*"
)
_SIZE = re.compile(r"\bsizeBytes[(=](\d{1,18})\b")
_BARRIER = re.compile(r"<barrier packet>|(?:hcCommand)?Marker|Barrier")


@dataclass(frozen=True)
class IntegerColumn:
    """Integers, and a mask of the known ones."""

    value: Array
    known: Array

    @classmethod
    def from_arrow(cls, column: Any) -> IntegerColumn:
        """Return an Arrow column, in which null is unknown."""
        array = arrow.single_chunk(column)
        return cls(arrow.to_numpy(array), arrow.is_valid(array))


def section_rows(
    section: Section,
    numbers: Mapping[str, IntegerColumn],
    texts: Mapping[str, Any],
    *,
    marked: bool,
    where: str,
    issues: IssueLog,
) -> TableRows:
    """Return the rows of a section.

    Parameters
    ----------
    section
        The section.
    numbers
        Columns of `NUMBERS` and `DEVICE` by the names in the file.
    texts
        Columns of `TEXTS`, dictionary-encoded; at least one.
    marked
        Whether the file has the section in a column of its own, so that ``pid`` is the process.
    where
        Name of the file in examples.
    issues
        Log of impossible numbers.
    """
    columns = {NUMBERS[name]: column for name, column in numbers.items() if name in NUMBERS}
    count = len(next(iter(texts.values())))
    columns = _resolve_ids(section, columns, marked=marked)
    named = {TEXTS[name]: column for name, column in texts.items()}
    named = {k: v for k, v in named.items() if any(v.dictionary.to_pylist())}
    if "name" in named:
        named["name"] = _with_plain_names(named["name"])
    if section.domain:
        named["domain"] = dictionary(np.zeros(count, np.int64), [section.domain])
    rows = TableRows(
        section.form,
        count,
        numbers={name: column.value for name, column in columns.items()},
        known={name: column.known for name, column in columns.items()},
        texts=named,
        where=f"{where}, {section.name}",
    )
    return without_impossible_numbers(_with_agents(rows, numbers.get(DEVICE)), issues)


def dispatch_rows(
    count: int,
    numbers: Mapping[str, IntegerColumn],
    texts: dict[str, Any],
    counters: dict[str, Array],
    where: str,
    issues: IssueLog,
) -> TableRows:
    """Return the rows of KERN, whose columns have the names of `COLUMNS`."""
    rows = TableRows(
        DISPATCHES,
        count,
        numbers={name: column.value for name, column in numbers.items()},
        known={name: column.known for name, column in numbers.items()},
        texts=texts,
        counters=counters,
        where=f"{where}, {KERN}",
    )
    return without_impossible_numbers(rows, issues)


def _resolve_ids(
    section: Section, columns: dict[str, IntegerColumn], *, marked: bool
) -> dict[str, IntegerColumn]:
    """Replace ``pid`` and ``tid`` by process, thread and stream, whose meanings differ by file."""
    pid, tid = columns.pop("pid", None), columns.pop("tid", None)
    process = columns.pop("proc", None)
    is_call = section.form is CALLS
    if process is None and pid is not None:
        numbers = np.unique(pid.value[pid.known])
        counts_sections = not marked and numbers.tolist() in ([], [section.number])
        process = None if counts_sections else pid
    elif tid is not None and not is_call:
        columns.setdefault("stream", tid)
        tid = None
    if process is not None:
        columns["process"] = process
    if tid is not None and (is_call or tid.known.any()):
        columns["thread"] = tid
    return columns


def _with_plain_names(names: Any) -> Any:
    codes = arrow.to_numpy(names, -1).astype(np.int64)
    return dictionary(codes, [unquoted(name or "") for name in names.dictionary.to_pylist()])


def _with_agents(rows: TableRows, device: IntegerColumn | None) -> TableRows:
    """Return rows with their device as the agent, of copies at the end that is not the host."""
    if device is None or rows.form is CALLS:
        return rows
    numbers, codes = np.unique(device.value, return_inverse=True)
    agent = dictionary(np.where(device.known, codes, -1), [str(number) for number in numbers])
    rows = replace(rows, texts={**rows.texts, "agent": agent})
    return _with_copy_ends(rows) if rows.form is COPIES else rows


def _with_copy_ends(rows: TableRows) -> TableRows:
    """Return copies with their device at the ends that are not the host."""
    codes, agents = rows.codes("agent")
    direction = copy_directions(rows)
    from_device = np.isin(direction, (1, 2)) | (direction == ANY_DIRECTION)
    to_device = np.isin(direction, (0, 2))
    ends = {
        "source_agent": dictionary(np.where(from_device, codes, -1), agents),
        "destination_agent": dictionary(np.where(to_device, codes, -1), agents),
    }
    texts = {name: column for name, column in rows.texts.items() if name != "agent"}
    return replace(rows, texts={**texts, **ends})


def split_operations(tables: dict[str, TableRows]) -> dict[str, TableRows]:
    """Split copies, and barriers as waits of their queue, from the kernels of OPS."""
    ops = tables.get("OPS")
    if ops is None:
        return tables
    is_copy = ops.per_text("name", lambda n: _COPY.fullmatch(n) is not None, absent=False)
    is_barrier = ops.per_text("name", lambda n: _BARRIER.fullmatch(n) is not None, absent=False)
    result = {**tables, "OPS": ops.select(~is_copy & ~is_barrier)}
    for name, mask, form in (("COPY", is_copy, COPIES), ("BARRIERS", is_barrier, EVENTS)):
        rows = replace(ops.select(mask), form=form)
        if rows.count:
            key = name if name not in result else f"{name} of OPS"
            result[key] = _with_copy_ends(rows) if form is COPIES else rows
    return {name: rows for name, rows in result.items() if rows.count}


def with_distinct_correlation(tables: dict[str, TableRows]) -> dict[str, TableRows]:
    """Move the correlation ids of HSA behind those of HIP, as both count from 1."""
    copies, hsa = tables.get("COPY"), tables.get("HSA")
    if "HIP" not in tables or hsa is None:
        return tables
    tables = {**tables, "HSA": _shifted(hsa)}
    if copies is not None and _ASYNC in copies.codes("name")[1]:
        tables["COPY"] = _shifted(copies)
    return tables


def with_copy_sizes(tables: dict[str, TableRows]) -> dict[str, TableRows]:
    """Set the bytes of copies by the arguments of the calls that launched them."""
    calls, copies = tables.get("HIP"), tables.get("COPY")
    if calls is None or copies is None or "args" not in calls.texts:
        return tables
    size = calls.per_text("args", _size_in, -1)
    sized = np.flatnonzero((size >= 0) & (calls.number("correlation", 0) > 0))
    call_process, copy_process = _processes(calls, copies)
    call = first_match(
        [call_process[sized], calls.number("correlation")[sized]],
        [copy_process, copies.number("correlation")],
    )
    numbers = {**copies.numbers, "size": np.append(size[sized], -1)[call]}
    return {**tables, "COPY": replace(copies, numbers=numbers)}


def _size_in(args: str) -> int:
    match = _SIZE.search(args)
    return int(match[1]) if match else -1


def _processes(a: TableRows, b: TableRows) -> tuple[Array, Array]:
    """Return the processes of two tables' rows, all as one where either table lacks them."""
    if a.is_known("process").all() and b.is_known("process").all():
        return a.number("process"), b.number("process")
    return np.zeros(a.count, np.int64), np.zeros(b.count, np.int64)


def _shifted(rows: TableRows) -> TableRows:
    correlation = rows.number("correlation", 0)
    shifted = np.where(correlation > 0, correlation + _HSA_IDS, correlation)
    return replace(rows, numbers={**rows.numbers, "correlation": shifted})


def merge_kernels(
    tables: dict[str, TableRows], dispatches: list[DispatchTable], issues: IssueLog
) -> tuple[dict[str, TableRows], list[DispatchTable]]:
    """Merge the kernels of OPS with the same kernels of KERN.

    Both tables hold the same kernels if each process has as many of every name in both.
    """
    ops = tables.get("OPS")
    timed = [d for d in dispatches if d.timed]
    if ops is None or len(timed) != 1 or not ops.count:
        return tables, dispatches
    (kern,) = timed
    partner = _partners(kern.rows, ops)
    if partner is None:
        issues.add(OTHER_KERNELS, ops.count, ops.where)
        return tables, dispatches
    issues.add(SAME_KERNEL, ops.count, ops.where)
    merged = replace(kern, rows=_with_correlation(kern.rows, ops, partner))
    others = {name: rows for name, rows in tables.items() if name != "OPS"}
    copies = others.get("COPY")
    if copies is not None:
        others["COPY"] = _with_renumbered_agents(copies, _agent_map(kern.rows, ops, partner))
    return others, [merged if d is kern else d for d in dispatches]


def _partners(kern: TableRows, ops: TableRows) -> Array | None:
    """Return the same operation of each dispatch; None unless all have one.

    Both tables are sorted by process, name and start. If their sorted processes and names are
    equal, rows at the same position are the same kernel.
    """
    names: dict[str, int] = {}
    order, keys = [], []
    for rows, process in zip((kern, ops), _processes(kern, ops), strict=True):
        name = rows.per_text(
            "name", lambda text: names.setdefault(join_passes.plain_name(text), len(names)), -1
        )
        order.append(np.lexsort((rows.number("start"), name, process)))
        keys.append((process[order[-1]], name[order[-1]]))
    if kern.count != ops.count or not all(np.array_equal(a, b) for a, b in zip(*keys, strict=True)):
        return None
    partner = np.empty(kern.count, np.int64)
    partner[order[0]] = order[1]
    return partner


def _with_correlation(kern: TableRows, ops: TableRows, partner: Array) -> TableRows:
    """Return dispatches with the correlation ids and streams of their operations."""
    numbers, known = dict(kern.numbers), dict(kern.known)
    for name in ("correlation", "stream"):
        if name in ops.numbers:
            numbers[name] = ops.numbers[name][partner]
            known[name] = ops.is_known(name)[partner]
    return replace(kern, numbers=numbers, known=known)


def _agent_map(kern: TableRows, ops: TableRows, partner: Array) -> dict[str, str]:
    """Map the numbers of devices in OPS to those in KERN, by kernels that are in both."""
    kern_codes, kern_agents = kern.codes("agent")
    ops_codes, ops_agents = ops.codes("agent")
    first, _ = gather.distinct(ops_codes[partner], kern_codes)
    pairs = zip(ops_codes[partner][first].tolist(), kern_codes[first].tolist(), strict=True)
    return {ops_agents[a]: kern_agents[b] for a, b in pairs if a >= 0 and b >= 0}


def _with_renumbered_agents(rows: TableRows, agents: dict[str, str]) -> TableRows:
    texts = dict(rows.texts)
    for name in ("source_agent", "destination_agent"):
        if name in texts:
            codes, numbers = rows.codes(name)
            texts[name] = dictionary(codes, [agents.get(n, n) for n in numbers])
    return replace(rows, texts=texts)
