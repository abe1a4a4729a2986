"""Tables with a row for each dispatch and a column for each counter: before rocprofv3.

rocprof v1, rocprofv2 and rocprof-compute write such; their columns have different names, see
`rocprof_tables.DISPATCHES`. Per-instance columns (``TCC_HIT[0]``) and the copies of columns that
merges of several passes leave (``GRBM_COUNT_13``) are put in order here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow, gather
from chopper_interop.converters.rocprof_agents import UNKNOWN, number_in
from chopper_interop.converters.rocprof_counters import Counts
from chopper_interop.converters.rocprof_nodes import has_time
from chopper_interop.converters.rocprof_tables import COUNTERS, DISPATCHES, KERNELS
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocprof_rows import Rows

SUMMED = Fault(
    "instances-summed",
    Severity.INFO,
    "Columns of single channels (NAME[0], NAME[1], …) became their sum, NAME: the graph keeps one "
    "value for each counter of a dispatch.",
)
SEVERAL_PASSES = Fault(
    "counter-of-several-passes",
    Severity.INFO,
    "A counter was counted in several passes; the first column of it was taken.",
)
XCC_SUMMED = Fault(
    "xcc-summed",
    Severity.INFO,
    "Rows of the single XCCs of a dispatch became one: its counters are their sums.",
    events=True,
)
NO_DURATION = Fault(
    "dispatch-without-duration",
    Severity.ERROR,
    "Dispatches end when they start: another program had rounded their times, so that neither "
    "their order nor their durations can be trusted.",
)
HEADER_AGAIN = Fault(
    "header-repeated", Severity.INFO, "Further headers between rows of the same table were skipped."
)

_INSTANCE = re.compile(r"(?P<name>.+)\[(?P<number>\d{1,6})\]")
_COPY = re.compile(r"(?P<name>.+)_\d+")
_NO_COPIES = re.compile(r"SQC_DCACHE_REQ_READ_\d+|SQ_WAVES_(?:EQ|LT)_\d+")
"""Counters whose own names end so."""
_ACCUMULATED = "SQ_ACCUM_PREV_HIRES"
"""Accumulates the counter that stands before it, over the clocks of the dispatch."""
_TITLES = frozenset({"kernelname", "kernel_name"})


@dataclass(frozen=True)
class Dispatches:
    """What a table holds.

    Parameters
    ----------
    rows
        A row for each dispatch; a table of kernels, or one of counters.
    weight
        Rows of the file that each stands for.
    counters
        Values by counter, not a number where there is none.
    timed
        Whether any row has a time.
    """

    rows: Rows
    weight: Array
    counters: dict[str, Array]
    timed: bool


def dispatches_of(rows: Rows, issues: IssueLog, *, merge_instances: bool = False) -> Dispatches:
    """Dispatches of a table of the form `DISPATCHES`.

    Parameters
    ----------
    rows
        The table.
    issues
        Where it is said what was summed or left out.
    merge_instances
        Whether all channels of a counter are there, so that they may be summed.
    """
    rows = _without_headers(rows, issues)
    counters = _named(rows.counters, rows.where, issues)
    if merge_instances:
        counters = _summed(counters, rows.where, issues)
    rows = replace(_with_agents(rows), counters={}, form=COUNTERS if counters else KERNELS)
    timed = has_time(rows)
    weight = np.ones(rows.count, np.int64)
    if "xcc" in rows.numbers:
        rows, weight, counters = _over_xccs(rows, counters, issues)
        timed = has_time(rows)
    start, end = rows.number("start"), rows.number("end")
    at_once = np.flatnonzero(timed & rows.is_known("end") & (start == end))
    example = f"{rows.where}: {start[at_once[0]]}" if at_once.size else ""
    issues.add(NO_DURATION, at_once.size, example)
    return Dispatches(rows, weight, counters, bool(timed.any()))


def counts_of(found: Dispatches, process: Array, device: Array) -> Counts:
    """The counters of dispatches in the form in which they go to nodes."""
    names = list(found.counters)
    count = found.rows.count
    return Counts(
        dispatches=found.rows,
        process=process,
        device=device,
        weight=found.weight,
        dispatch=np.tile(np.arange(count), len(names)),
        name=arrow.dictionary(np.repeat(np.arange(len(names)), count), names),
        value=np.concatenate([*found.counters.values(), np.empty(0)]),
    )


def in_order(rows: Rows) -> Rows:
    """Rows without times as the moments of their order, for the clock that only counts."""
    place = np.arange(1, rows.count + 1)
    numbers = {**rows.numbers, "start": place, "end": place.copy()}
    known = {k: v for k, v in rows.known.items() if k not in ("start", "end")}
    return replace(rows, numbers=numbers, known=known)


def _without_headers(rows: Rows, issues: IssueLog) -> Rows:
    codes, names = rows.codes("name")
    title = np.array([*(name.lower() in _TITLES for name in names), False])[codes]
    again = title & ~rows.is_known("start") & ~rows.is_known("grid")
    issues.add(HEADER_AGAIN, np.count_nonzero(again), rows.where)
    return rows.take(np.flatnonzero(~again))


def _with_agents(rows: Rows) -> Rows:
    """The table's ``gpu-id`` as the agent, names without the quotes that v1 stores with them."""
    texts = dict(rows.texts)
    texts["agent"] = texts.pop("gpu")
    codes, names = rows.codes("name")
    texts["name"] = arrow.dictionary(codes, [plain(n) for n in names], mask=codes < 0)
    return replace(rows, texts=texts)


def plain(name: str) -> str:
    """A name without quotes around it."""
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name


def _named(counters: dict[str, Array], where: str, issues: IssueLog) -> dict[str, Array]:
    """Counters by proper names, each once."""
    found: dict[str, Array] = {}
    before, copies, example = "", 0, ""
    for title, values in counters.items():
        copy = _COPY.fullmatch(title)
        is_copy = copy and not _NO_COPIES.fullmatch(title) and copy["name"] in counters
        name = copy["name"] if copy and is_copy else title
        if name == _ACCUMULATED and "LEVEL" in before:
            name = f"{before}_ACCUM"
        if name in found:
            copies, example = copies + 1, example or f"{where}: {title}"
        else:
            found[name] = values
        before = name
    issues.add(SEVERAL_PASSES, copies, example)
    return found


def _summed(counters: dict[str, Array], where: str, issues: IssueLog) -> dict[str, Array]:
    """Counters with the sums of all their instances, where these are numbered from 0 on."""
    parts: dict[str, dict[int, Array]] = {}
    for title, values in counters.items():
        instance = _INSTANCE.fullmatch(title)
        if instance:
            parts.setdefault(instance["name"], {})[int(instance["number"])] = values
    whole = {n for n, p in parts.items() if len(p) > 1 and set(p) == set(range(len(p)))}
    found: dict[str, Array] = {}
    for title, values in counters.items():
        instance = _INSTANCE.fullmatch(title)
        if instance is None or instance["name"] not in whole:
            found.setdefault(title, values)
    for name in whole - found.keys():
        found[name] = np.sum(list(parts[name].values()), axis=0)
    issues.add(SUMMED, sum(len(parts[name]) for name in whole), where)
    return found


def _over_xccs(
    rows: Rows, counters: dict[str, Array], issues: IssueLog
) -> tuple[Rows, Array, dict[str, Array]]:
    """One row for each dispatch of those for each of its XCCs."""
    dispatch = np.where(rows.is_known("dispatch"), rows.number("dispatch"), -np.arange(rows.count))
    keys = (rows.number("process"), dispatch, rows.codes("name")[0], rows.number("start"))
    xcc = rows.number("xcc")
    first, code = gather.distinct(*keys)
    seen, _ = gather.distinct(code, xcc)
    if len(seen) < rows.count:  # an XCC twice: ids start anew, so rows are dispatches
        return rows, np.ones(rows.count, np.int64), counters
    summed = {
        name: np.where(
            np.bincount(code, ~np.isnan(values), len(first)) > 0,
            np.bincount(code, np.nan_to_num(values), len(first)),
            np.nan,
        )
        for name, values in counters.items()
    }
    weight = np.bincount(code, minlength=len(first))
    merged = rows.take(first)
    merged = replace(merged, numbers={k: v for k, v in merged.numbers.items() if k != "xcc"})
    if not counters:
        issues.add(XCC_SUMMED, rows.count - len(first), rows.where)
    return merged, weight, summed


def agents_in(rows: Rows) -> list[int]:
    """Numbers of the agents that a table names."""
    return sorted({number_in(text) for text in rows.codes("agent")[1]} - {UNKNOWN})


__all__ = ["DISPATCHES", "Dispatches", "agents_in", "counts_of", "dispatches_of", "in_order"]
