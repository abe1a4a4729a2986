"""The tables of rocprof v1's databases and traces as rows: KERN, HIP, HSA, OPS, COPY, rocTX.

Databases and JSON name columns alike; releases differ in which they have. Until ROCm 5 ``pid`` was
the number of the section in the picture, and ``proc-id`` the process; later there is a column
``__section`` for the one and ``pid`` is the other (``bin/tblextr.py``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import arrow, gather
from chopper_interop.converters.rocprof_lanes import ANY_DIRECTION, directions
from chopper_interop.converters.rocprof_reach import within
from chopper_interop.converters.rocprof_rows import Rows
from chopper_interop.converters.rocprof_tables import CALLS, COPIES, EVENTS, KERNELS
from chopper_interop.converters.rocprof_v1_dispatches import plain
from chopper_interop.counters import align
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocprof_tables import Format
    from chopper_interop.converters.rocprof_v1_dispatches import Dispatches

SAME_KERNEL = Fault(
    "kernel-recorded-twice",
    Severity.INFO,
    "Kernels that were recorded as dispatches and as operations of HIP were taken once.",
    events=True,
)
OTHER_KERNELS = Fault(
    "kernels-of-two-tables",
    Severity.ERROR,
    "Dispatches and operations of HIP are different kernels, or not all were recorded twice: both "
    "were kept, so that some work may be there twice.",
)


@dataclass(frozen=True)
class Section:
    """One of the tables.

    Parameters
    ----------
    name
        Its name in a database.
    form
        What its rows are.
    domain
        Domain of calls.
    number
        What ``pid`` is in it where that numbers sections.
    """

    name: str
    form: Format
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
    "BeginNs": "start",
    "EndNs": "end",
    "DurationNs": "duration",
    "pid": "pid",
    "tid": "tid",
    "proc-id": "proc",
    "queue-id": "queue",
    "stream-id": "stream",
    "Index": "correlation",
}
"""Columns of whole numbers → their names here."""
TEXTS: dict[str, str] = {"Name": "name", "args": "args", "roctx-range": "range", "Data": "data"}
DEVICE = "dev-id"
MARKED = "__section"
_HSA_IDS = 1 << 40
"""Correlation ids of HSA begin behind this where those of HIP are there too: both count from 1."""
_ASYNC = "async-copy"
_COPY = re.compile(
    r"(?:hc)?(?:Memcpy|Copy)(?:Host|Device)To(?:Host|Device)|FillBuffer|Copy(?:Buffer|Image)\w*"
)
_SIZE = re.compile(r"\bsizeBytes[(=](\d{1,18})\b")
_BARRIER = re.compile(r"<barrier packet>|(?:hcCommand)?Marker|Barrier")


@dataclass(frozen=True)
class Column:
    """Whole numbers, and where they are known."""

    value: Array
    known: Array


def rows_of(
    section: Section,
    numbers: Mapping[str, Column],
    texts: Mapping[str, Any],
    *,
    marked: bool,
    where: str,
    issues: IssueLog,
) -> Rows:
    """Rows of a section.

    Parameters
    ----------
    section
        Which.
    numbers
        Columns of `NUMBERS` and `DEVICE` by the names in the file.
    texts
        Columns of `TEXTS`, dictionary-encoded; at least one.
    marked
        Whether the file says the section apart from the process.
    where
        What to call the file in examples.
    issues
        Where numbers that cannot be are counted.
    """
    found = {NUMBERS[name]: column for name, column in numbers.items() if name in NUMBERS}
    count = len(next(iter(texts.values())))
    found = _placed(section, found, marked=marked)
    named = {TEXTS[name]: column for name, column in texts.items()}
    named = {k: v for k, v in named.items() if any(v.dictionary.to_pylist())}
    if "name" in named:
        named["name"] = _unquoted(named["name"])
    if section.domain:
        named["domain"] = arrow.dictionary(np.zeros(count, np.int64), [section.domain])
    rows = Rows(
        section.form,
        count,
        numbers={name: column.value for name, column in found.items()},
        known={name: column.known for name, column in found.items()},
        texts=named,
        where=f"{where}, {section.name}",
    )
    return within(_on_device(rows, numbers.get(DEVICE)), issues)


def _placed(section: Section, found: dict[str, Column], *, marked: bool) -> dict[str, Column]:
    """Process, thread and stream by what ``pid`` and ``tid`` are in this file."""
    pid, tid = found.pop("pid", None), found.pop("tid", None)
    process = found.pop("proc", None)
    is_call = section.form is CALLS
    if process is None and pid is not None:
        numbers = np.unique(pid.value[pid.known])
        counts_sections = not marked and numbers.tolist() in ([], [section.number])
        process = None if counts_sections else pid
    elif tid is not None and not is_call:
        found.setdefault("stream", tid)
        tid = None
    if process is not None:
        found["process"] = process
    if tid is not None and (is_call or tid.known.any()):
        found["thread"] = tid
    return found


def _unquoted(names: Any) -> Any:
    codes = arrow.numbers(names, -1).astype(np.int64)
    texts = [plain(name or "") for name in names.dictionary.to_pylist()]
    return arrow.dictionary(codes, texts, mask=codes < 0)


def _on_device(rows: Rows, device: Column | None) -> Rows:
    """Rows with their device as the agent, of copies at the end that is not the host."""
    if device is None or rows.form is CALLS:
        return rows
    numbers, codes = np.unique(device.value, return_inverse=True)
    codes = np.where(device.known, codes, -1)
    texts = [str(number) for number in numbers]

    def where(which: Array) -> Any:
        kept = np.where(which, codes, -1)
        return arrow.dictionary(kept, texts, mask=kept < 0)

    placed = replace(rows, texts={**rows.texts, "agent": where(np.ones(rows.count, bool))})
    return _at_ends(placed) if rows.form is COPIES else placed


def _at_ends(rows: Rows) -> Rows:
    """Copies with their device at the ends that are not the host."""
    codes, agents = rows.codes("agent")
    direction = directions(rows)
    free = direction == ANY_DIRECTION

    def where(which: Array) -> Any:
        kept = np.where(which, codes, -1)
        return arrow.dictionary(kept, agents, mask=kept < 0)

    ends = {
        "source_agent": where(np.isin(direction, (1, 2)) | free),
        "destination_agent": where(np.isin(direction, (0, 2))),
    }
    texts = {name: column for name, column in rows.texts.items() if name != "agent"}
    return replace(rows, texts={**texts, **ends})


def apart(tables: dict[str, Rows]) -> dict[str, Rows]:
    """Tables with what is no kernel in OPS apart: copies, and barriers as waits of their queue."""
    ops = tables.get("OPS")
    if ops is None:
        return tables
    codes, names = ops.codes("name")
    copies = np.array([*(_COPY.fullmatch(n) is not None for n in names), False])[codes]
    barriers = np.array([*(_BARRIER.fullmatch(n) is not None for n in names), False])[codes]
    ended = {"COPY": (copies, COPIES), "BARRIERS": (barriers, EVENTS)}
    found = {**tables, "OPS": ops.take(np.flatnonzero(~copies & ~barriers))}
    for name, (which, form) in ended.items():
        rows = replace(ops.take(np.flatnonzero(which)), form=form)
        if rows.count:
            key = name if name not in found else f"{name} of OPS"
            found[key] = _at_ends(rows) if form is COPIES else rows
    return {name: rows for name, rows in found.items() if rows.count}


def tied(tables: dict[str, Rows]) -> dict[str, Rows]:
    """Tables whose correlation ids mean the same: those of HSA and of HIP are counted apart."""
    copies, hsa = tables.get("COPY"), tables.get("HSA")
    if "HIP" not in tables or hsa is None:
        return tables
    tables = {**tables, "HSA": _shifted(hsa)}
    if copies is not None and _ASYNC in copies.codes("name")[1]:
        tables["COPY"] = _shifted(copies)
    return tables


def sized(tables: dict[str, Rows]) -> dict[str, Rows]:
    """Tables whose copies have the bytes that the calls which made them were given."""
    calls, copies = tables.get("HIP"), tables.get("COPY")
    if calls is None or copies is None or "args" not in calls.texts:
        return tables
    codes, args = calls.codes("args")
    told = [_SIZE.search(text) for text in args]
    size = np.array([*(int(m[1]) if m else -1 for m in told), -1], np.int64)[codes]
    known = np.flatnonzero((size >= 0) & (calls.number("correlation", 0) > 0))
    ours, theirs = _processes(calls, copies)
    first, code = gather.distinct(
        np.concatenate([ours[known], theirs]),
        np.concatenate([calls.number("correlation")[known], copies.number("correlation")]),
    )
    found = np.concatenate([size[known], np.full(copies.count, -1)])[first][code[len(known) :]]
    numbers = {**copies.numbers, "size": found}
    return {**tables, "COPY": replace(copies, numbers=numbers)}


def _processes(a: Rows, b: Rows) -> tuple[Array, Array]:
    """Processes of the rows of two tables, as one where either table does not tell them."""
    if a.is_known("process").all() and b.is_known("process").all():
        return a.number("process"), b.number("process")
    return np.zeros(a.count, np.int64), np.zeros(b.count, np.int64)


def _shifted(rows: Rows) -> Rows:
    correlation = rows.number("correlation", 0)
    moved = np.where(correlation > 0, correlation + _HSA_IDS, correlation)
    return replace(rows, numbers={**rows.numbers, "correlation": moved})


def once(
    tables: dict[str, Rows], dispatches: list[Dispatches], issues: IssueLog
) -> tuple[dict[str, Rows], list[Dispatches]]:
    """Kernels of OPS that are dispatches too are taken once, with what either tells.

    Both tables hold the same kernels if each process has as many of every name in both.
    """
    ops = tables.get("OPS")
    timed = [d for d in dispatches if d.timed]
    if ops is None or len(timed) != 1 or not ops.count:
        return tables, dispatches
    (found,) = timed
    partner = _partners(found.rows, ops)
    if partner is None:
        issues.add(OTHER_KERNELS, ops.count, ops.where)
        return tables, dispatches
    issues.add(SAME_KERNEL, ops.count, ops.where)
    merged = replace(found, rows=_with_ties(found.rows, ops, partner))
    left = {name: rows for name, rows in tables.items() if name != "OPS"}
    copies = left.get("COPY")
    if copies is not None:
        left["COPY"] = _renumbered(copies, _agents(found.rows, ops, partner))
    return left, [merged if d is found else d for d in dispatches]


def _partners(kern: Rows, ops: Rows) -> Array | None:
    """For each dispatch the operation that is the same, in order of start; None if not all are."""
    names: dict[str, int] = {}
    order, keys = [], []
    for rows, process in zip((kern, ops), _processes(kern, ops), strict=True):
        codes, texts = rows.codes("name")
        numbers = [names.setdefault(align.plain_name(text), len(names)) for text in texts]
        name = np.array([*numbers, -1])[codes]
        order.append(np.lexsort((rows.number("start"), name, process)))
        keys.append((process[order[-1]], name[order[-1]]))
    if kern.count != ops.count or not all(np.array_equal(a, b) for a, b in zip(*keys, strict=True)):
        return None
    partner = np.empty(kern.count, np.int64)
    partner[order[0]] = order[1]
    return partner


def _with_ties(kern: Rows, ops: Rows, partner: Array) -> Rows:
    """Dispatches with the correlation ids and streams of the operations that they are."""
    numbers, known = dict(kern.numbers), dict(kern.known)
    for name in ("correlation", "stream"):
        if name in ops.numbers:
            numbers[name] = ops.numbers[name][partner]
            known[name] = ops.is_known(name)[partner]
    return replace(kern, numbers=numbers, known=known)


def _agents(kern: Rows, ops: Rows, partner: Array) -> dict[str, str]:
    """Number of a device in OPS → in KERN, as the same kernels tell."""
    ours, our_texts = kern.codes("agent")
    theirs, their_texts = ops.codes("agent")
    first, _ = gather.distinct(theirs[partner], ours)
    pairs = zip(theirs[partner][first].tolist(), ours[first].tolist(), strict=True)
    return {their_texts[a]: our_texts[b] for a, b in pairs if a >= 0 and b >= 0}


def _renumbered(rows: Rows, agents: dict[str, str]) -> Rows:
    texts = dict(rows.texts)
    for name in ("source_agent", "destination_agent"):
        if name in texts:
            codes, numbers = rows.codes(name)
            texts[name] = arrow.dictionary(
                codes, [agents.get(n, n) for n in numbers], mask=codes < 0
            )
    return replace(rows, texts=texts)
