"""Traces of rows: when each was taken, what its columns mean, of which GPU it is.

All tools share this: their readers make `Rows`, give them times, and `trace_of_rows` makes series
and samples of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.build import TraceBuilder
from chopper_interop.converters.sampling import faults, lane_names, series, ticks
from chopper_interop.converters.sampling.checks import note_clock_steps
from chopper_interop.converters.sampling.time_options import UNCERTAINTY_NS, TimeOptions
from chopper_interop.converters.sampling.values import readings
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.meta import REALTIME, Device, Meta, Source
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.cells import CellColumn, Rows
    from chopper_interop.converters.sampling.lane_names import LaneTable, Name

    NameColumns = Callable[[Sequence[CellColumn]], Iterable[tuple[CellColumn, Name]]]
    """Gives each column its meaning; may drop, replace and add columns."""


Item = TypeVar("Item")


@dataclass(frozen=True)
class TimedRows:
    """Rows that have a time.

    Parameters
    ----------
    rows
        The rows.
    time
        When each was taken, nanoseconds on `clock`.
    uncertainty_ns
        Largest error of these times.
    clock
        Name of the clock, see `schemas.meta`.
    """

    rows: Rows
    time: Array
    uncertainty_ns: int
    clock: str = REALTIME


@dataclass(frozen=True)
class LaneRules:
    """Rules that make lanes of a tool's columns.

    Parameters
    ----------
    name_columns
        Gives columns their meaning.
    preferred
        Lane → names of lanes that it is chosen from, the best first.
    faults
        Lane → fault that its samples are counted under.
    """

    name_columns: NameColumns
    preferred: Mapping[str, Sequence[str]] = field(default_factory=dict)
    faults: Mapping[str, Fault] = field(default_factory=dict)


def times_from_options(
    rows: Rows, tick: Array, path: Path, options: TimeOptions, issues: IssueLog
) -> TimedRows:
    """Put the last output of a file at the time of the options, earlier ones by their period.

    Parameters
    ----------
    rows
        Rows without times.
    tick
        Number of the output that each row is of, ascending.
    path
        The file.
    options
        A time, and perhaps a period.
    issues
        Where rows are counted whose time is unknown or assumed.
    """
    at_ns, period_ns = options.last_ns(path), options.period_ns
    behind = tick[-1:] - tick
    keep = behind <= (at_ns // period_ns if period_ns else 0)
    issues.add(faults.EARLIER_OUTPUT, np.count_nonzero(~keep))
    fault = faults.ASSUMED_TIME if options.at_ns is not None else faults.ASSUMED_MTIME
    issues.add(fault, np.count_nonzero(keep), f"{at_ns}")
    time = at_ns - behind[keep].astype(np.int64) * period_ns
    return TimedRows(rows.select(keep), time, UNCERTAINTY_NS)


def spread_over_ticks(
    rows: Rows, second: Array, tick: Array, issues: IssueLog
) -> tuple[Array, int]:
    """Place rows within their whole seconds, as the period of the tool's loop has it.

    Parameters
    ----------
    rows
        The rows.
    second
        Seconds since 1970 of each.
    tick
        Number of the tool's output that each is of, ascending from 0.
    issues
        Where they are counted.

    Returns
    -------
    time
        Nanoseconds since 1970.
    uncertainty_ns
        Largest error of these times.
    """
    time, half_ns = ticks.spread(second, tick, rows.place)
    issues.add(faults.SPREAD, len(time), f"± {half_ns / 1e9:.3f} s")
    return time, half_ns


def note_order(rows: Rows, time: Array, tick: Array, issues: IssueLog) -> None:
    """Count clocks that step back, and outputs, as each row's is numbered, that lack GPUs which others have."""
    position = rows.place
    note_clock_steps(time, position, issues)
    count = np.bincount(tick)
    lacking = (count > 0) & (count < position.max(initial=-1) + 1)
    issues.add(faults.TICK_CUT, np.count_nonzero(lacking))


def named_by(lanes: LaneTable) -> NameColumns:
    """Return a function that names columns by a table, and others by their own key."""

    def named(columns: Sequence[CellColumn]) -> Iterable[tuple[CellColumn, Name]]:
        for column in columns:
            name = lane_names.meaning(column.key, lanes)
            yield column, name or lane_names.name_by_key(column.key)

    return named


def trace_of_rows(
    timed: TimedRows,
    source: Source,
    devices: tuple[Device, ...],
    facts: dict[str, str],
    rules: LaneRules,
    issues: IssueLog,
) -> Trace:
    """Make a trace of the rows of a file.

    Parameters
    ----------
    timed
        Rows with times; their columns are taken out, as the text with its numbers takes as much memory as the samples.
    source
        The file, and the tool that measured.
    devices, facts
        The GPUs, and what else is known of them.
    rules
        Lanes of the columns.
    issues
        Where it is counted what became of rows and cells.
    """
    rows = timed.rows
    issues.add(faults.SAMPLED, len(timed.time))
    named = deque(rules.name_columns(rows.columns))
    rows.columns.clear()
    values = [
        reading
        for column, name in emptied(named)
        for reading in readings(column, name, len(rows.gpu), issues)
    ]
    job = inputs.plain_name(Path(source.path))
    meta = Meta(job, clock=timed.clock, devices=devices, sources=(source,), facts=facts)
    builder = TraceBuilder(meta)
    groups = series.groups_of(rows.gpu, rows.part, timed.time, rows.part_names)
    writer = series.LaneWriter(builder, groups, source.tool, timed.uncertainty_ns, issues)
    ordered = deque(series.ordered(series.with_preferred(values, rules.preferred)))
    values.clear()
    writer.add(emptied(ordered))
    for lane, fault in rules.faults.items():
        issues.add(fault, writer.samples[lane])
    return builder.finish(keep=False).with_meta(issues=tuple(issues))


def emptied(items: deque[Item]) -> Iterator[Item]:
    """Yield items in their order, each of which is dropped then: what follows needs its memory."""
    while items:
        yield items.popleft()


def source_of_file(path: Path, converter: str, tool: str, events: int) -> Source:
    """Return the source of a file: its converter, the tool that wrote it, its size and rows."""
    return Source(str(path), converter, tool, size=path.stat().st_size, events=events)


def devices_by_index(gpu: Array, tool: str) -> tuple[Device, ...]:
    """Return the devices of rows that say no more of a GPU than its index."""
    return tuple(Device("", int(index), "", tool, index=int(index)) for index in np.unique(gpu))
