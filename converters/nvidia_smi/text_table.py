"""Rows of NVIDIA's tools as texts: the GPU of each, its timestamp, its cells by column.

Every format (CSV, ``dmon``, ``-q``, ``-x``, dcgmi) is read into a `Table` (`table_builder`); `timed_rows`
then gives its rows devices and times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.cells import CellColumn, Rows
from chopper_interop.converters.sampling.checks import note_clock_steps
from chopper_interop.converters.sampling.rows import (
    TimedRows,
    spread_over_ticks,
    times_from_options,
)
from chopper_interop.converters.sampling.ticks import ticks_of
from chopper_interop.converters.sampling.timestamps import (
    SECOND,
    nanoseconds,
    parse_timestamp,
    with_year_first,
)
from chopper_interop.converters.sampling.wall_clock import MIXED, RowTimes, times_of_rows
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.meta import LOCALTIME, REALTIME, Device

if TYPE_CHECKING:
    from chopper_interop.converters.nvidia_smi.table_builder import Table
    from chopper_interop.converters.sampling.time_options import TimeOptions

READING_NS = 10_000_000
"""Time that a tool takes to read a row's values around its stamp; taken to be as for amd-smi, where
6 ms a GPU were measured."""
LARGEST_INDEX = 1 << 16
"""Larger numbers are no index: no machine has as many GPUs."""


@dataclass(frozen=True)
class RowDevices:
    """Device of each row.

    Parameters
    ----------
    device
        Its number; -1 for what is no GPU.
    part
        Index into `part_names`; -1 for all of the device.
    part_names
        Names of what is no whole GPU, sorted.
    devices
        All of them.
    """

    device: Array
    part: Array
    part_names: tuple[str, ...]
    devices: tuple[Device, ...]


def owners_of(table: Table, source: str) -> RowDevices:
    """Number the devices of rows.

    A device has the tool's own index where every row says it and no two GPUs share one; else
    they are numbered in the order of their PCI addresses, as the tool does, or of appearance.
    """
    gpus = [i for i in table.gpus if not i.entity]
    index = [_index(i.number) for i in gpus]
    if any(n < 0 for n in index) or len(set(index)) < len(index):
        ordered = sorted(gpus, key=lambda i: i.pci) if all(i.pci for i in gpus) else gpus
        number = {i: n for n, i in enumerate(ordered)}
    else:
        number = dict(zip(gpus, index, strict=True))
    devices = [
        Device("", number[i], i.name, source, index=_index(i.number), pci=i.pci, uuid=i.uuid)
        for i in sorted(gpus, key=lambda i: number[i])
    ]
    part_names = sorted({i.entity for i in table.gpus if i.entity})
    part = {name: n for n, name in enumerate(part_names)}
    return RowDevices(
        np.array([number.get(i, -1) for i in table.gpus], np.int64)[table.gpu],
        np.array([part.get(i.entity, -1) for i in table.gpus], np.int64)[table.gpu],
        tuple(part_names),
        tuple(devices),
    )


def _index(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_INDEX))
    return int(text) if is_number and int(text) < LARGEST_INDEX else -1


def timed_rows(
    table: Table,
    no_gpu: Array,
    owners: RowDevices,
    tz: str | None,
    *,
    options: TimeOptions,
    path: Path,
) -> TimedRows:
    """Return the rows that have a time and a GPU.

    Parameters
    ----------
    table
        All rows.
    no_gpu
        Mask of rows whose GPU is unknown.
    owners
        Device of each row.
    tz
        Zone of timestamps without one.
    options
        Times from the user, for a file without any.
    path
        The file.
    """
    times = times_of_rows(table.stamp, tz, table.issues)
    lost = _counted_as_mixed(table, times)  # each row is counted once
    table.issues.add(faults.NO_GPU, np.count_nonzero(no_gpu & ~lost))
    lost |= no_gpu
    has_time = times.ns >= 0
    known = has_time & ~lost
    if not known.any() and len(table.gpu) and options:
        rows = _rows(table, owners, ~lost)
        return times_from_options(rows, ticks_of(rows.place), path, options, table.issues)
    _note_untimed(table, ~has_time & ~lost, path)
    return _at_stamps(_rows(table, owners, known), times, times.ns[known], table.issues)


def _at_stamps(rows: Rows, times: RowTimes, time: Array, issues: IssueLog) -> TimedRows:
    """Place rows at their stamps; whole seconds are spread over runs of ticks."""
    clock = LOCALTIME if times.local else REALTIME
    note_clock_steps(time, rows.place, issues)
    if times.resolution_ns < SECOND or not len(time):
        return TimedRows(rows, time, times.resolution_ns + READING_NS, clock)
    tick = ticks_of(rows.place)
    time, uncertainty_ns = spread_over_ticks(rows, time // SECOND, tick, issues)
    return TimedRows(rows, time, uncertainty_ns + READING_NS, clock)


def _rows(table: Table, owners: RowDevices, keep: Array) -> Rows:
    """Return some rows of a table, whose cells that hold an error are counted."""
    kept = np.flatnonzero(keep)
    new_row = np.full(len(table.gpu), -1, np.int64)
    new_row[kept] = np.arange(len(kept))
    return Rows(
        np.full(len(kept), -1, np.int64),
        owners.device[kept],
        owners.part[kept],
        list(_columns(table, new_row)),
        table.events,
        owners.part_names,
    )


def _columns(table: Table, new_row: Array) -> Iterator[CellColumn]:
    for column in table.columns.values():
        row = new_row[column.row]
        kept = row >= 0
        if not kept.any():
            continue
        column = column if kept.all() else column.select(kept)  # noqa: PLW2901
        uses = column.uses()
        for cell, count in zip(column.distinct, uses, strict=True):
            error = cell.items[0].error
            if count and error:
                table.issues.add(faults.VALUE_ERROR, count, f"{column.key}: {error}"[:80])
        yield replace(column, row=row[kept])


def _note_untimed(table: Table, untimed: Array, path: Path) -> None:
    """Count rows without a time, and those whose timestamp is not understood."""
    texts = table.stamp.distinct
    has_digit = np.array([any(c.isdigit() for c in text) for text in texts], bool)
    is_before = np.array([(nanoseconds(text.strip()) or 0) < 0 for text in texts], bool)
    without = np.count_nonzero(untimed)
    for fault, is_odd in (
        (faults.BEFORE_1970, is_before),
        (faults.STAMP_UNKNOWN, has_digit & ~is_before),
    ):
        odd = np.flatnonzero(untimed & is_odd[table.stamp.code])
        example = table.stamp.text(int(odd[0])).strip()[:80] if len(odd) else ""
        table.issues.add(fault, len(odd), example)
        without -= len(odd)
    table.issues.add(faults.NO_TIME, without, f"{len(untimed)} rows of {path.name}")


def _counted_as_mixed(table: Table, times: RowTimes) -> Array:
    """Mask of rows that `times_of_rows` counted, as they lack the zone that others have."""
    if not any(issue.code == MIXED.code for issue in table.issues):
        return np.zeros(len(times.ns), bool)
    parsed = map(parse_timestamp, with_year_first(table.stamp.distinct))
    return np.array([bool(p and not p.has_zone) for p in parsed], bool)[table.stamp.code]
