"""Traces of telemetry out of rows: when they were taken, what they mean, whose they are.

For every tool whose rows are one GPU at one tick (`telemetry_cells.Rows`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.build import TraceBuilder
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters import (
    telemetry_names,
    telemetry_series,
    telemetry_values,
)
from chopper_interop.converters.telemetry_cells import rows_where
from chopper_interop.converters.telemetry_names import unknown
from chopper_interop.schemas.meta import REALTIME, Meta

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.telemetry_cells import Rows
    from chopper_interop.converters.telemetry_given import Given
    from chopper_interop.converters.telemetry_names import Lane
    from chopper_interop.issues import IssueLog
    from chopper_interop.trace import Trace

ONCE_NS = 1_000_000_000
"""How far the time of a single output may be off that was given from outside."""
_MILLISECOND = 1_000_000


@dataclass(frozen=True)
class Timed:
    """Rows that have a time.

    Parameters
    ----------
    rows
        The rows.
    time
        When each was taken, nanoseconds on `clock`.
    uncertainty_ns
        How far that may be off.
    clock
        See `schemas.meta`.
    """

    rows: Rows
    time: Array
    uncertainty_ns: int
    clock: str = REALTIME


def by_gift(rows: Rows, tick: Array, path: Path, given: Given, issues: IssueLog) -> Timed:
    """Rows of the last output at the time that was given, earlier ones by the period if told."""
    behind = tick[-1] - tick
    at_ns = given.at_ns
    if at_ns is None:
        at_ns = path.stat().st_mtime_ns
    period = int((given.period_ms or 0) * _MILLISECOND)
    kept = behind <= (at_ns // period if period else 0)
    issues.add(faults.EARLIER_RUN, np.count_nonzero(~kept))
    fault = faults.ASSUMED_TIME if given.at_ns is not None else faults.ASSUMED_MTIME
    issues.add(fault, np.count_nonzero(kept), f"{at_ns}")
    time = at_ns - behind[kept].astype(np.int64) * period
    return Timed(rows_where(rows, kept), time, ONCE_NS)


def ticks_cut(tick: Array, places: Array) -> int:
    """Ticks that lack GPUs which others have."""
    return int(np.count_nonzero(np.bincount(tick) < len(np.unique(places))))


def places_of(rows: Rows) -> Array:
    """Place of each row's GPU and partition within a tick: in the order of first appearance."""
    places: dict[tuple[int, int], int] = {}
    keys = zip(rows.gpu.tolist(), rows.xcp.tolist(), strict=True)
    return np.array([places.setdefault(key, len(places)) for key in keys], np.int64)


def trace_of(
    timed: Timed,
    meta: Meta,
    source: str,
    issues: IssueLog,
    lanes_table: tuple[Lane, ...],
) -> Trace:
    """The trace of rows.

    Parameters
    ----------
    timed
        Rows with times.
    meta
        What is known of them.
    source
        Tool that measured, for the series.
    issues
        Where it is counted what became of rows and cells.
    lanes_table
        What their columns mean.
    """
    builder = TraceBuilder(meta)
    rows, time = timed.rows, timed.time
    issues.add(faults.SAMPLED, len(time))
    groups = telemetry_series.groups_of(rows.gpu, rows.xcp, time)
    lanes = telemetry_series.Lanes(builder, groups, source, timed.uncertainty_ns, issues)
    lanes.add(_readings(rows, lanes_table, issues))
    issues.add(faults.ENERGY, lanes.samples["energy"])
    return builder.finish().with_meta(issues=tuple(issues))


def _readings(
    rows: Rows, lanes_table: tuple[Lane, ...], issues: IssueLog
) -> list[telemetry_values.Reading]:
    count = len(rows.gpu)
    found = []
    for column in rows.columns:
        key = column.key
        name = telemetry_names.meaning(key, lanes_table) or unknown(key)
        found += telemetry_values.readings(column, name, count, issues)
    return telemetry_series.ordered(found)
