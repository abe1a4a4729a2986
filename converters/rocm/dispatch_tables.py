"""Tables with a row for each dispatch and a column for each counter, of tools before rocprofv3.

rocprof v1, rocprofv2 and rocprof-compute write such; their columns have different names, see
`tables.DISPATCHES`. Per-instance columns (``TCC_HIT[0]``) and the copies of columns that
merges of several passes leave (``GRBM_COUNT_13``) are summed or left out here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.arrow import dictionary
from chopper_interop.converters.rocm.dispatch_counters import DispatchCounters
from chopper_interop.converters.rocm.nodes import has_time
from chopper_interop.converters.rocm.tables import COUNTERS, KERNELS
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.rows import TableRows

SUMMED = Fault.info(
    "instances-summed",
    "Columns of single channels (NAME[0], NAME[1], …) became their sum, NAME: "
    "the graph keeps one value for each counter of a dispatch.",
)
SEVERAL_PASSES = Fault.info(
    "counter-of-several-passes",
    "A counter was counted in several passes; the first column of it was taken.",
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
    counters
        Values by counter, NaN where there is none.
    timed
        Whether any row has a time.
    """

    rows: TableRows
    weight: Array
    counters: dict[str, Array]
    timed: bool


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
    return DispatchTable(rows, weight, counters, bool(timed.any()))


def counters_of_dispatches(table: DispatchTable, process: Array, device: Array) -> DispatchCounters:
    """Return the counters of dispatches, one value after the other."""
    names = list(table.counters)
    count = table.rows.count
    return DispatchCounters(
        dispatches=table.rows,
        process=process,
        device=device,
        weight=table.weight,
        dispatch=np.tile(np.arange(count), len(names)),
        name=arrow.dictionary(np.repeat(np.arange(len(names)), count), names),
        value=np.concatenate([*table.counters.values(), np.empty(0)]),
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
    """Replace instances of counters by their sum, where they are numbered from 0 without gaps."""
    parts: dict[str, dict[int, Array]] = {}
    for title, values in counters.items():
        instance = _INSTANCE.fullmatch(title)
        if instance:
            parts.setdefault(instance["name"], {})[int(instance["number"])] = values
    complete = {n for n, p in parts.items() if len(p) > 1 and set(p) == set(range(len(p)))}
    summed: dict[str, Array] = {}
    for title, values in counters.items():
        instance = _INSTANCE.fullmatch(title)
        if instance is None or instance["name"] not in complete:
            summed.setdefault(title, values)
    for name, instances in parts.items():
        if name in complete and name not in summed:
            summed[name] = np.sum(list(instances.values()), axis=0)
    issues.add(SUMMED, sum(len(parts[name]) for name in complete), where)
    return summed


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
