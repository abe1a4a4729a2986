"""Traces of telemetry out of rows: when they were taken, what they mean, whose they are.

For every tool whose rows are one GPU at one tick (`amd_smi_cells.Rows`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import inputs
from chopper_interop.build import TraceBuilder
from chopper_interop.converters import (
    amd_smi_csv,
    amd_smi_lanes,
    amd_smi_tables,
    amd_smi_time,
    amd_smi_values,
)
from chopper_interop.converters import amd_smi_faults as faults
from chopper_interop.converters.amd_smi_cells import rows_where
from chopper_interop.errors import UsageError
from chopper_interop.schemas.meta import REALTIME, Device, Meta, Source

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from chopper_interop.converters.amd_smi_cells import Rows
    from chopper_interop.converters.amd_smi_tables import Lane
    from chopper_interop.issues import IssueLog
    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

MTIME = "mtime"
READING_NS = 10_000_000
"""A row's values are read this long around its stamp: 6 ms a GPU on eight MI355X."""
READING_VIOLATIONS_NS = 110_000_000
"""The same with violations, for which the library waits 100 ms (103.6 to 105.9 ms measured)."""
ONCE_NS = 1_000_000_000
"""How far the time of a single output may be off that was given from outside."""
_MILLISECOND = 1_000_000
_LONGEST_MS = 86_400_000


@dataclass(frozen=True)
class Given:
    """What the user says of times that the file does not hold.

    Parameters
    ----------
    at_ns
        When the last output was written, epoch nanoseconds.
    at
        ``"mtime"`` to take the time at which the file was last changed for that.
    period_ms
        How far the outputs of a loop are apart.

    Raises
    ------
    UsageError
        They are no times, or contradict each other.
    """

    at_ns: int | None = None
    at: str | None = None
    period_ms: float | None = None

    def __post_init__(self) -> None:
        if self.at not in (None, MTIME) or (self.at and self.at_ns is not None):
            raise UsageError(
                f"-O at={self.at}: say at={MTIME}, or at_ns=<epoch nanoseconds> instead"
            )
        if self.at_ns is not None and not 0 <= self.at_ns <= LATEST_NS:
            raise UsageError(f"-O at_ns={self.at_ns}: that is no time in nanoseconds since 1970")
        if self.period_ms is not None and not 0 < self.period_ms <= _LONGEST_MS:
            raise UsageError(f"-O period_ms={self.period_ms}: that is no period in milliseconds")
        if self.period_ms is not None and not self:
            raise UsageError("-O period_ms: say at_ns or at=mtime too: when the last output was")

    def __bool__(self) -> bool:
        return self.at_ns is not None or self.at is not None


LATEST_NS = amd_smi_csv.LATEST_S * amd_smi_time.SECOND


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


def decoded(data: Array) -> str:
    """Text in UTF-8, or else in Latin-1, in which Windows writes degrees."""
    raw = data.tobytes()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def by_stamps(rows: Rows, path: Path, given: Given, issues: IssueLog) -> Timed:
    """Rows with amd-smi's whole seconds, spread; without any, at the time that was given."""
    told = rows.stamp >= 0
    tick = amd_smi_time.ticks_of(rows.gpu, rows.xcp)
    if not told.any() and told.size and given:
        return by_gift(rows, tick, path, given, issues)
    issues.add(faults.NO_TIME, np.count_nonzero(~told), f"{len(told)} rows of {path.name}")
    timed = rows_where(rows, told)
    tick = np.unique(tick[told], return_inverse=True)[1]
    places = places_of(timed)
    time, half = amd_smi_time.placed(timed.stamp, tick, places)
    issues.add(faults.TICK_CUT, ticks_cut(tick, places))
    issues.add(faults.SPREAD, len(time), f"± {half / 1e9:.3f} s")
    return Timed(timed, time, half + _reading_ns(timed))


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


def _reading_ns(rows: Rows) -> int:
    waits = any(amd_smi_values.has_violations(c.distinct, c.key) for c in rows.columns)
    return READING_VIOLATIONS_NS if waits else READING_NS


def trace_of(
    timed: Timed,
    meta: Meta,
    source: str,
    issues: IssueLog,
    lanes_table: tuple[Lane, ...] = amd_smi_tables.LANES,
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
    groups = amd_smi_lanes.groups_of(rows.gpu, rows.xcp, time)
    lanes = amd_smi_lanes.Lanes(builder, groups, source, timed.uncertainty_ns, issues)
    lanes.add(_readings(rows, lanes_table, issues))
    issues.add(faults.ENERGY, lanes.samples["energy"])
    return builder.finish().with_meta(issues=tuple(issues))


def _readings(
    rows: Rows, lanes_table: tuple[Lane, ...], issues: IssueLog
) -> list[amd_smi_values.Reading]:
    count = len(rows.gpu)
    found = []
    for column in rows.columns:
        key = column.key
        name = amd_smi_tables.meaning(key, lanes_table) or amd_smi_tables.unknown(key)
        found += amd_smi_values.readings(column, name, count, issues)
    return amd_smi_lanes.ordered(found)


def meta_of(path: Path, rows: Rows, converter: str, tool: str, clock: str = REALTIME) -> Meta:
    """What a file of rows tells of itself."""
    gpus = [int(gpu) for gpu in np.unique(rows.gpu)]
    size = path.stat().st_size
    return Meta(
        job=inputs.plain_name(path),
        clock=clock,
        devices=tuple(Device("", gpu, "", tool, index=gpu) for gpu in gpus),
        sources=(Source(str(path), converter, tool, size=size, events=rows.events),),
    )
