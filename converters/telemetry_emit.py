"""Series of NVIDIA's tools out of tables of texts.

Every form (CSV, ``dmon``, ``-q``, ``-x``, dcgmi) is read into a `Table`; from there all is one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters import (
    telemetry_names,
    telemetry_series,
    telemetry_values,
)
from chopper_interop.converters import telemetry_nvml as nvml
from chopper_interop.converters.telemetry_cells import Cell, Column, Item
from chopper_interop.converters.telemetry_items import is_error, item_of
from chopper_interop.files import inputs
from chopper_interop.schemas.meta import Meta, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from chopper_interop.build import TraceBuilder
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.telemetry_names import Name
    from chopper_interop.converters.telemetry_owners import Owners
    from chopper_interop.converters.telemetry_table import Table


@dataclass(frozen=True)
class Timed:
    """Rows that have a time.

    Parameters
    ----------
    row
        Their numbers in the table.
    time
        Nanoseconds on the trace's clock.
    uncertainty_ns
        How far these may be off.
    """

    row: Array
    time: Array
    uncertainty_ns: int


def emit(
    builder: TraceBuilder,
    table: Table,
    owners: Owners,
    timed: Timed,
    source: str,
    meaning: Callable[[str], Name | None],
) -> None:
    """Make series and samples of the rows that have a time."""
    new = np.full(len(table.stamp), -1, np.int64)
    new[timed.row] = np.arange(len(timed.row))
    found: list[telemetry_values.Reading] = []
    for column, name in _meant(list(_columns(table, new)), meaning):
        found += telemetry_values.readings(column, name, len(timed.row), table.issues)
    lanes = telemetry_series.Lanes(
        builder, _groups(owners, timed), source, timed.uncertainty_ns, table.issues
    )
    lanes.add(telemetry_series.ordered(with_preferred(found, nvml.PREFERRED)))


def meta_of(path: Path, table: Table, owners: Owners, name: str, tool: str, clock: str) -> Meta:
    """What is known of a file as a whole."""
    source = Source(str(path), name, tool, size=path.stat().st_size, events=table.events)
    return Meta(
        job=inputs.plain_name(path),
        clock=clock,
        devices=owners.devices,
        sources=(source,),
        facts=dict(table.facts),
    )


def _meant(
    columns: list[Column], meaning: Callable[[str], Name | None]
) -> Iterator[tuple[Column, Name]]:
    """Columns and what they mean; a mask of reasons also as one column for each of them."""
    names = [meaning(column.key) for column in columns]
    single = any(name and name.full.startswith(telemetry_names.STATUS) for name in names)
    for column, name in zip(columns, names, strict=True):
        good = name is not None and _is_plausible(column, name)
        yield column, name if name and good else telemetry_names.unknown(column.key)
        if name and name.full == nvml.ACTIVE and not single:
            yield from _bits(column)


def _is_plausible(column: Column, name: Name) -> bool:
    """Whether values without any unit can be in that of the lane.

    Scripts name their columns like nvidia-smi and fill them with NVML's milliwatts and bytes;
    such a column keeps its own name. nvidia-smi itself says the unit of memory.
    """
    items = [cell.items[0] for cell in column.distinct]
    if any(item.unit for item in items):
        return True
    if name.lane.bare and not nvml.UNIT_IN_KEY.fullmatch(column.key):
        return False
    most = nvml.MOST.get(name.lane.unit or "", float("inf"))
    values = [telemetry_values.number(item, name.lane) for item in items]
    return all(abs(value) <= most for value in values if isinstance(value, float))


def with_preferred(
    readings: list[telemetry_values.Reading], preferred: Mapping[str, Sequence[str]]
) -> list[telemetry_values.Reading]:
    """Readings of which the best for a lane has its name."""
    there = {r.full for r in readings}
    chosen = {
        best: lane
        for lane, order in preferred.items()
        if lane not in there
        for best in [name for name in order if name in there][:1]
    }
    return [_renamed(r, chosen[r.full]) if r.full in chosen else r for r in readings]


def _renamed(reading: telemetry_values.Reading, name: str) -> telemetry_values.Reading:
    return replace(reading, full=name, name=replace(reading.name, base=name, full=name))


def _groups(owners: Owners, timed: Timed) -> list[telemetry_series.Group]:
    keys = [(int(owners.device[r]), owners.suffix[r]) for r in timed.row.tolist()]
    number: dict[tuple[int, str], int] = {}
    which = np.array([number.setdefault(key, len(number)) for key in keys], np.int64)
    order = np.lexsort((timed.time, which))
    begins = np.flatnonzero(np.diff(which[order])) + 1
    parts = np.split(order, begins) if len(order) else []
    groups = [
        telemetry_series.Group(gpu=keys[p[0]][0], suffix=keys[p[0]][1], row=p, time=timed.time[p])
        for p in parts
    ]
    return sorted(groups, key=lambda g: (g.gpu < 0, g.gpu, g.suffix))


def _columns(table: Table, new: Array) -> Iterator[Column]:
    """Columns of the rows that are kept."""
    for (key, unit), (rows, texts) in table.columns.items():
        row = new[np.array(rows, np.int64)]
        keep = row >= 0
        encoded = arrow.texts(texts).dictionary_encode()
        code = arrow.numbers(encoded)[keep]
        if not len(code):
            continue
        distinct = encoded.dictionary.to_pylist()
        uses = np.bincount(code, minlength=len(distinct))
        for text, count in zip(distinct, uses, strict=True):
            if count and is_error(text):
                table.issues.add(faults.VALUE_ERROR, count, f"{key}: {text}"[:80])
        yield Column(key, row[keep], code, [Cell((item_of(text, unit),)) for text in distinct])


def _bits(mask: Column) -> Iterator[tuple[Column, Name]]:
    """One column for each bit that is set anywhere."""
    values = [_mask(cell.items[0]) for cell in mask.distinct]
    for bit in nvml.REASONS:
        if any(v is not None and v & bit for v in values):
            cells = [Cell((Item("N/A" if v is None else int(bool(v & bit))),)) for v in values]
            name = nvml.status_of(bit)
            yield replace(mask, key=f"{mask.key}: {name.full}", distinct=cells), name


def _mask(item: Item) -> int | None:
    """A mask, hexadecimal or not; None if a cell holds none."""
    if isinstance(item.value, str) and item.value.isdecimal() and item.value.isascii():
        return int(item.value[:20])
    return item.value if isinstance(item.value, int) else None
