"""Dispatches and their counters in tables of tools before rocprofv3, and of rocprof-compute.

These have a row for each dispatch and a column for each counter, whose names differ between the
tools, see `tables.DISPATCHES`. Per-instance columns (``TCC_HIT[0]``) and the copies of columns that
merges of several passes leave (``GRBM_COUNT_13``) are summed or left out here. Where
rocprof-compute takes its counters from rocpd databases, there is a row for each counter, see
`tables.PASSES`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.arrow import dictionary
from chopper_interop.converters.rocm.dispatch_counters import DispatchCounters
from chopper_interop.converters.rocm.nodes import has_time
from chopper_interop.converters.rocm.tables import COUNTERS, KERNELS
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.converters.rocm.rows import TableRows

SUMMED = Fault.info(
    "instances-summed",
    "Counters of single channels (NAME[0], NAME[1], …) became their sum, NAME: "
    "the graph keeps one value for each counter of a dispatch.",
)
SEVERAL_PASSES = Fault.info(
    "counter-of-several-passes",
    "A counter was counted in several passes; what the first of them counted was taken.",
)
XCC_SUMMED = Fault.info_of_events(
    "xcc-summed", "Rows of the XCCs of a dispatch became one: its counters are their sums."
)
NO_DURATION = Fault.error(
    "dispatch-without-duration",
    "Dispatches end when they start: another program had rounded their "
    "times, so that neither their order nor their durations can be trusted.",
)
HEADER_AGAIN = Fault.info(
    "header-repeated", "Further headers between rows of the same table were skipped."
)

_INSTANCE = re.compile(r"(?P<name>.+)\[(?P<number>\d{1,6})\]")
_COPY = re.compile(r"(?P<name>.+)_\d+")
_NO_COPIES = re.compile(r"SQC_DCACHE_REQ_READ_\d+|SQ_WAVES_(?:EQ|LT)_\d+")
"""Counters whose own names end with a number."""
_ACCUMULATED = "SQ_ACCUM_PREV_HIRES"
"""Accumulates the counter in the column before it, over the clocks of the dispatch."""
_CYCLES = "GRBM_GUI_ACTIVE"
"""Counter from which clocks are derived, over the times of the pass that counted it."""
_TITLES = frozenset({"kernelname", "kernel_name"})


@dataclass(frozen=True)
class DispatchTable:
    """Dispatches of a table, and their counters.

    Parameters
    ----------
    rows
        A row for each dispatch; a table of kernels, or one of counters.
    weight
        Number of rows of the file for which each stands.
    timed
        Whether any row has a time.
    dispatch
        Index of the dispatch of each value.
    counter, value
        Counter of each value, and the value, NaN where there is none.
    """

    rows: TableRows
    weight: Array
    timed: bool
    dispatch: Array
    counter: pa.DictionaryArray
    value: Array


def dispatch_table(
    rows: TableRows, issues: IssueLog, *, merge_instances: bool = False
) -> DispatchTable:
    """Return the dispatches of a table of the format `DISPATCHES`.

    Parameters
    ----------
    rows
        The table.
    issues
        Log of what was summed or left out.
    merge_instances
        Whether the table has all channels of a counter, so that they may be summed.
    """
    rows = _without_repeated_headers(rows, issues)
    counters = _with_proper_names(rows.counters, rows.where, issues)
    if merge_instances:
        counters = _sum_instances(counters, rows.where, issues)
    rows = replace(_with_plain_texts(rows), counters={}, form=COUNTERS if counters else KERNELS)
    timed = has_time(rows)
    weight = np.ones(rows.count, np.int64)
    if "xcc" in rows.numbers:
        rows, weight, counters = _sum_xccs(rows, counters, issues)
        timed = has_time(rows)
    start, end = rows.number("start"), rows.number("end")
    no_duration = np.flatnonzero(timed & rows.is_known("end") & (start == end))
    example = f"{rows.where}: {start[no_duration[0]]}" if no_duration.size else ""
    issues.add(NO_DURATION, no_duration.size, example)
    names = list(counters)
    return DispatchTable(
        rows=rows,
        weight=weight,
        timed=bool(timed.any()),
        dispatch=np.tile(np.arange(rows.count), len(names)),
        counter=dictionary(np.repeat(np.arange(len(names)), rows.count), names),
        value=np.concatenate([*counters.values(), np.empty(0)]),
    )


def pass_table(rows: TableRows, issues: IssueLog) -> DispatchTable:
    """Return the dispatches of a table of the format `PASSES`.

    Each pass ran the program again, and numbered its dispatches alike: rows of one number, device
    and name are one dispatch, at the times at which its cycles were counted, if they were.

    Parameters
    ----------
    rows
        The table, of all passes.
    issues
        Log of what was summed or left out.
    """
    rows = replace(_with_plain_texts(rows), form=COUNTERS)
    is_cycles = rows.per_text("counter", _CYCLES.__eq__, absent=False)
    rows = rows.take(np.argsort(~is_cycles, kind="stable"))
    # rows without a number are of one dispatch if they have one start
    number = np.where(rows.is_known("dispatch"), rows.number("dispatch"), -2 - rows.number("start"))
    first, dispatch = gather.distinct(number, rows.codes("agent")[0], rows.codes("name")[0])
    codes, titles = rows.codes("counter")
    once, _ = gather.distinct(dispatch, codes)
    issues.add(SEVERAL_PASSES, rows.count - len(once), rows.where)
    channels = _channels(titles)
    issues.add(SUMMED, sum(len(numbers) for numbers in channels.values()), rows.where)
    names = [_counter(t) if _counter(t) in channels else t for t in titles]
    distinct = {name: i for i, name in enumerate(dict.fromkeys(names))}
    counter = np.array([*(distinct[name] for name in names), -1])[codes]
    values, group = gather.distinct(dispatch[once], counter[once])
    dispatches = rows.take(first)
    return DispatchTable(
        rows=dispatches,
        weight=np.bincount(dispatch, minlength=len(first)),
        timed=bool(has_time(dispatches).any()),
        dispatch=dispatch[once][values],
        counter=dictionary(counter[once][values], list(distinct)),
        value=np.bincount(group, rows.values[once], len(values)),
    )


def counters_of_dispatches(table: DispatchTable, process: Array, device: Array) -> DispatchCounters:
    """Return the counters of dispatches, with the process and the device of each."""
    return DispatchCounters(
        dispatches=table.rows,
        process=process,
        device=device,
        weight=table.weight,
        dispatch=table.dispatch,
        name=table.counter,
        value=table.value,
    )


def with_order_as_time(rows: TableRows) -> TableRows:
    """Set the times of rows to their positions from 1, for a clock that only counts."""
    position = np.arange(1, rows.count + 1)
    return rows.with_numbers(start=position, end=position.copy())


def _without_repeated_headers(rows: TableRows, issues: IssueLog) -> TableRows:
    has_title = rows.per_text("name", lambda name: name.lower() in _TITLES, absent=False)
    is_header = has_title & ~rows.is_known("start") & ~rows.is_known("grid")
    issues.add(HEADER_AGAIN, np.count_nonzero(is_header), rows.where)
    return rows.select(~is_header)


def _with_plain_texts(rows: TableRows) -> TableRows:
    """Take ``gpu-id`` for the agent, and remove the quotes that v1 stores around names."""
    texts = dict(rows.texts)
    texts["agent"] = texts.pop("gpu")
    codes, names = rows.codes("name")
    texts["name"] = dictionary(codes, [unquoted(name) for name in names])
    return replace(rows, texts=texts)


def unquoted(name: str) -> str:
    """Return a name without quotes around it."""
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name


def _with_proper_names(
    counters: dict[str, Array], where: str, issues: IssueLog
) -> dict[str, Array]:
    """Return counters by their proper names, each once."""
    proper: dict[str, Array] = {}
    before, copies, example = "", 0, ""
    for title, values in counters.items():
        copy = _COPY.fullmatch(title)
        is_copy = copy and not _NO_COPIES.fullmatch(title) and copy["name"] in counters
        name = copy["name"] if copy and is_copy else title
        if name == _ACCUMULATED and "LEVEL" in before:
            name = f"{before}_ACCUM"
        if name in proper:
            copies, example = copies + 1, example or f"{where}: {title}"
        else:
            proper[name] = values
        before = name
    issues.add(SEVERAL_PASSES, copies, example)
    return proper


def _sum_instances(counters: dict[str, Array], where: str, issues: IssueLog) -> dict[str, Array]:
    """Replace the channels of counters by their sum, where all are there."""
    channels = _channels(counters)
    summed = {title: v for title, v in counters.items() if _counter(title) not in channels}
    for name, numbers in channels.items():
        if name not in summed:
            summed[name] = np.sum([counters[f"{name}[{number}]"] for number in numbers], axis=0)
    issues.add(SUMMED, sum(len(numbers) for numbers in channels.values()), where)
    return summed


def _counter(title: str) -> str:
    """Return the counter of which a title names a channel, "" if it names none."""
    instance = _INSTANCE.fullmatch(title)
    return instance["name"] if instance else ""


def _channels(titles: Collection[str]) -> dict[str, list[str]]:
    """Return the channels of counters whose channels are numbered from 0 without gaps."""
    channels: dict[str, list[str]] = {}
    for title in titles:
        instance = _INSTANCE.fullmatch(title)
        if instance:
            channels.setdefault(instance["name"], []).append(instance["number"])
    return {
        name: numbers
        for name, numbers in channels.items()
        if len(numbers) > 1 and {int(number) for number in numbers} == set(range(len(numbers)))
    }


def _sum_xccs(
    rows: TableRows, counters: dict[str, Array], issues: IssueLog
) -> tuple[TableRows, Array, dict[str, Array]]:
    """Merge the rows of a dispatch's XCCs into one."""
    dispatch = np.where(rows.is_known("dispatch"), rows.number("dispatch"), -np.arange(rows.count))
    keys = (rows.number("process"), dispatch, rows.codes("name")[0], rows.number("start"))
    xcc = rows.number("xcc")
    first, code = gather.distinct(*keys)
    pairs, _ = gather.distinct(code, xcc)
    if len(pairs) < rows.count:  # an XCC twice: ids start again, so that rows are dispatches
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
