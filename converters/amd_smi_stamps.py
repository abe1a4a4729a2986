"""When amd-smi's rows were taken, and how long that took."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters import amd_smi_faults as own_faults
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters import telemetry_ticks
from chopper_interop.converters.telemetry_cells import rows_where
from chopper_interop.converters.telemetry_clock import note_steps
from chopper_interop.converters.telemetry_numbers import SECOND
from chopper_interop.converters.telemetry_rows import Timed, by_gift, places_of, ticks_cut
from chopper_interop.converters.telemetry_units import ABSENT
from chopper_interop.files import inputs
from chopper_interop.schemas.meta import REALTIME, Device, Meta, Source

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.converters.telemetry_cells import Cell, Rows
    from chopper_interop.converters.telemetry_given import Given
    from chopper_interop.issues import IssueLog

READING_NS = 10_000_000
"""A row's values are read this long around its stamp: 6 ms a GPU on eight MI355X."""
READING_VIOLATIONS_NS = 110_000_000
"""The same with violations, for which the library waits 100 ms (103.6 to 105.9 ms measured)."""
VIOLATION_KEYS = re.compile(r".*_violation_(status|activity).*|.*_accumulated.*|.*viol")
"""Keys of values for which amd-smi waits 100 ms for each GPU."""


def by_stamps(rows: Rows, path: Path, given: Given, issues: IssueLog) -> Timed:
    """Rows with amd-smi's whole seconds, spread; without any, at the time that was given."""
    told = rows.stamp >= 0
    tick = telemetry_ticks.ticks_of(rows.gpu, rows.xcp)
    if not told.any() and told.size and given:
        return by_gift(rows, tick, path, given, issues)
    issues.add(own_faults.NO_TIME, np.count_nonzero(~told), f"{len(told)} rows of {path.name}")
    timed = rows_where(rows, told)
    tick = np.unique(tick[told], return_inverse=True)[1]
    places = places_of(timed)
    note_steps(timed.stamp * SECOND, places, issues)
    time, half = telemetry_ticks.placed(timed.stamp, tick, places)
    issues.add(faults.TICK_CUT, ticks_cut(tick, places))
    issues.add(faults.SPREAD, len(time), f"± {half / 1e9:.3f} s")
    return Timed(timed, time, half + _reading_ns(timed))


def _reading_ns(rows: Rows) -> int:
    waits = any(_has_violations(c.distinct, c.key) for c in rows.columns)
    return READING_VIOLATIONS_NS if waits else READING_NS


def _has_violations(cells: list[Cell], key: str) -> bool:
    """Whether a column holds violations, which amd-smi takes 100 ms a GPU to measure."""
    if not VIOLATION_KEYS.fullmatch(key):
        return False
    return any(
        not (isinstance(i.value, str) and ABSENT.fullmatch(i.value)) for c in cells for i in c.items
    )


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
