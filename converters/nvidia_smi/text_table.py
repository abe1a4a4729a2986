"""Rows of NVIDIA's tools as texts: the GPU of each, its timestamp, its cells by column.

Every format (CSV, ``dmon``, ``-q``, ``-x``, dcgmi) is read into a `Table`; `timed_rows` then gives
its rows devices and times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import arrow
from chopper_interop.converters.nvidia_smi.nvml import is_error, item_of
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.cells import Cell, Column, Rows
from chopper_interop.converters.sampling.checks import note_clock_steps
from chopper_interop.converters.sampling.rows import (
    TimedRows,
    positions_in_tick,
    spread_over_ticks,
    times_from_options,
)
from chopper_interop.converters.sampling.ticks import ticks_of
from chopper_interop.converters.sampling.timestamps import SECOND, parse_timestamp
from chopper_interop.converters.sampling.wall_clock import MIXED, times_of_rows
from chopper_interop.schemas.meta import LOCALTIME, REALTIME, Device

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from chopper_interop.arrays.types import Array
    from chopper_interop.converters.sampling.time_options import TimeOptions
    from chopper_interop.converters.sampling.wall_clock import Times
    from chopper_interop.issues import Fault, IssueLog

READING_NS = 10_000_000
"""Time that a tool takes to read a row's values around its stamp; taken to be as for amd-smi, where
6 ms a GPU were measured."""
LARGEST_INDEX = 1 << 16
"""Larger numbers are no index: no machine has as many GPUs."""


class Identity(NamedTuple):
    """Names of the GPU of a row; empty where the row does not say them.

    Parameters
    ----------
    number
        Index by the tool, as it is written.
    uuid, pci, name
        Its other names.
    entity
        Name of what is no whole GPU: ``GPU-I 3``, ``CPU 0``.
    """

    number: str = ""
    uuid: str = ""
    pci: str = ""
    name: str = ""
    entity: str = ""

    @property
    def is_known(self) -> bool:
        """True if it distinguishes GPUs, which their model does not."""
        return bool(self.number or self.uuid or self.pci or self.entity)


@dataclass
class Table:
    """Rows of a file, in its order.

    Parameters
    ----------
    stamp
        Timestamp of each row as it is written; empty if it has none.
    gpu
        GPU of each row.
    columns
        Rows and texts by key and unit.
    events
        Rows of the file, including those that could not be read.
    facts
        Facts of the whole file.
    """

    issues: IssueLog
    stamp: list[str] = field(default_factory=list)
    gpu: list[Identity] = field(default_factory=list)
    columns: dict[tuple[str, str], tuple[list[int], list[str]]] = field(default_factory=dict)
    events: int = 0
    facts: dict[str, str] = field(default_factory=dict)

    def add(self, stamp: str, gpu: Identity, cells: Iterable[tuple[tuple[str, str], str]]) -> None:
        """Add a row: its cells by key and unit of their column."""
        row = len(self.stamp)
        self.events += 1
        self.stamp.append(stamp)
        self.gpu.append(gpu)
        for key, text in cells:
            rows, texts = self.columns.setdefault(key, ([], []))
            rows.append(row)
            texts.append(text)

    def lose(self, fault: Fault, example: str = "", count: int = 1) -> None:
        """Count rows that could not be read."""
        self.events += count
        self.issues.add(fault, count, example[:80])

    def drop_last_cell_if_cut(self) -> None:
        """Drop the last cell of the last row, where a file ended, if it may lack digits.

        A file with several rows of a GPU was recorded in a loop, and may have been cut; one with a
        single row of each is complete.
        """
        row = len(self.stamp) - 1
        if self.gpu[row] not in self.gpu[:row]:
            return
        for rows, texts in reversed(self.columns.values()):
            if rows and rows[-1] == row:
                last = texts[-1].strip()[-1:]
                if last.isalnum() and not last.isalpha():
                    rows.pop()
                    texts.pop()
                    self.issues.add(faults.CELL_CUT)
                return


@dataclass(frozen=True)
class Owners:
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


def owners_of(identities: Sequence[Identity], source: str) -> Owners:
    """Number the devices of rows.

    A device has the tool's own index where every row says it and no two GPUs share one; else
    they are numbered in the order of their PCI addresses, as the tool does, or of appearance.
    """
    distinct = list(dict.fromkeys(identities))
    gpus = [i for i in distinct if not i.entity]
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
    part_names = sorted({i.entity for i in distinct if i.entity})
    part = {name: n for n, name in enumerate(part_names)}
    return Owners(
        np.array([number.get(i, -1) for i in identities], np.int64),
        np.array([part.get(i.entity, -1) for i in identities], np.int64),
        tuple(part_names),
        tuple(devices),
    )


def _index(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_INDEX))
    return int(text) if is_number and int(text) < LARGEST_INDEX else -1


def timed_rows(
    table: Table,
    no_gpu: Array,
    owners: Owners,
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
    table.issues.add(faults.NO_GPU, np.count_nonzero(no_gpu))
    has_time = times.ns >= 0
    known = has_time & ~no_gpu
    if not known.any() and len(table.stamp) and options:
        rows = _rows(table, owners, ~no_gpu)
        return times_from_options(rows, ticks_of(rows.gpu, rows.part), path, options, table.issues)
    _note_untimed(table, ~has_time & ~no_gpu & ~_counted_as_mixed(table, times), path)
    return _at_stamps(_rows(table, owners, known), times, times.ns[known], table.issues)


def _at_stamps(rows: Rows, times: Times, time: Array, issues: IssueLog) -> TimedRows:
    """Place rows at their stamps; whole seconds are spread over runs of ticks."""
    clock = LOCALTIME if times.local else REALTIME
    note_clock_steps(time, positions_in_tick(rows), issues)
    if times.resolution_ns < SECOND or not len(time):
        return TimedRows(rows, time, times.resolution_ns + READING_NS, clock)
    tick = ticks_of(rows.gpu, rows.part)
    time, uncertainty_ns = spread_over_ticks(rows, time // SECOND, tick, issues)
    return TimedRows(rows, time, uncertainty_ns + READING_NS, clock)


def _rows(table: Table, owners: Owners, keep: Array) -> Rows:
    """Return some rows of a table, whose cells that hold an error are counted."""
    kept = np.flatnonzero(keep)
    new_row = np.full(len(table.stamp), -1, np.int64)
    new_row[kept] = np.arange(len(kept))
    return Rows(
        np.full(len(kept), -1, np.int64),
        owners.device[kept],
        owners.part[kept],
        list(_columns(table, new_row)),
        table.events,
        owners.part_names,
    )


def _columns(table: Table, new_row: Array) -> Iterator[Column]:
    for (key, unit), (rows, texts) in table.columns.items():
        row = new_row[np.array(rows, np.int64)]
        keep = row >= 0
        encoded = arrow.texts(texts).dictionary_encode()
        code = arrow.to_numpy(encoded)[keep]
        if not len(code):
            continue
        distinct = encoded.dictionary.to_pylist()
        uses = np.bincount(code, minlength=len(distinct))
        for text, count in zip(distinct, uses, strict=True):
            if count and is_error(text):
                table.issues.add(faults.VALUE_ERROR, count, f"{key}: {text}"[:80])
        yield Column(key, row[keep], code, [Cell((item_of(text, unit),)) for text in distinct])


def _note_untimed(table: Table, untimed: Array, path: Path) -> None:
    """Count rows without a time, and those whose timestamp is not understood."""
    rows = np.flatnonzero(untimed).tolist()
    odd = [row for row in rows if any(c.isdigit() for c in table.stamp[row])]
    example = table.stamp[odd[0]].strip()[:80] if odd else ""
    table.issues.add(faults.STAMP_UNKNOWN, len(odd), example)
    table.issues.add(faults.NO_TIME, len(rows) - len(odd), f"{len(untimed)} rows of {path.name}")


def _counted_as_mixed(table: Table, times: Times) -> Array:
    """Mask of rows that `times_of_rows` counted, as they lack the zone that others have."""
    if not any(issue.code == MIXED.code for issue in table.issues):
        return np.zeros(len(times.ns), bool)
    stamps = {text: parse_timestamp(text) for text in set(table.stamp)}
    local = {text for text, stamp in stamps.items() if stamp and not stamp.has_zone}
    return np.array([text in local for text in table.stamp], bool)
