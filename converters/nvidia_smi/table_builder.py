"""Rows of NVIDIA's tools as they are read: one by one, or many by the layouts of their templates."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.converters.nvidia_smi.nvml import in_lane_unit, item_of
from chopper_interop.converters.sampling import faults, stamps
from chopper_interop.converters.sampling.cells import Cell, CellColumn, ColumnBuilder, Item
from chopper_interop.converters.sampling.facts import pci_of
from chopper_interop.converters.sampling.laid_columns import columns_of
from chopper_interop.converters.sampling.layouts import ANY, Guard, Layout, probe_number, slots_in
from chopper_interop.converters.sampling.timestamps import split_leading_timestamp
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.laid_rows import LaidRows
    from chopper_interop.converters.sampling.stamps import RowTexts

ColumnKey = tuple[str, str]
"""Key and unit of a column."""
_FACT = "\0fact"
"""Key of columns of facts, whose unit is the fact's name."""


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


@dataclass(frozen=True)
class Table:
    """Rows of a file, in its order.

    Parameters
    ----------
    issues
        Where it is noted what could not be read.
    stamp
        Timestamp of each row as it is written; empty if it has none.
    gpu
        GPU of each row: index into `gpus`.
    gpus
        The different GPUs, in the order in which they come.
    columns
        Columns by key and unit.
    events
        Rows of the file, including those that could not be read.
    facts
        Facts of the whole file.
    """

    issues: IssueLog
    stamp: RowTexts
    gpu: Array
    gpus: list[Identity]
    columns: dict[ColumnKey, CellColumn]
    events: int
    facts: dict[str, str]


@dataclass
class TableBuilder:
    """Collects rows; those with layouts are known at the end only.

    Parameters
    ----------
    issues
        Where it is noted what could not be read.
    """

    issues: IssueLog
    rows: int = 0
    """Number of rows so far."""
    facts: dict[str, str] = field(default_factory=dict)
    _stamps: list[str] = field(default_factory=list)
    _gpus: list[Identity] = field(default_factory=list)
    _columns: dict[ColumnKey, ColumnBuilder] = field(default_factory=dict)
    _lost: int = 0
    _is_cut: bool = False

    def add(self, stamp: str, gpu: Identity, cells: Iterable[tuple[ColumnKey, str]]) -> None:
        """Add a row: its cells by key and unit of their column."""
        self._stamps.append(stamp)
        self._gpus.append(gpu)
        for place, (key, text) in enumerate(cells):
            builder = self._columns.setdefault(key, ColumnBuilder(key[0], place=place))
            builder.add(self.rows, text)
        self.rows += 1

    def lose(self, fault: Fault, example: str = "", count: int = 1) -> None:
        """Count rows that could not be read."""
        self._lost += count
        self.issues.add(fault, count, example[:80])

    def drop_last_cell_if_cut(self) -> None:
        """Drop the last cell of the last row, where a file ended, if it may lack digits.

        A file with several rows of a GPU was recorded in a loop, and may have been cut; one with a
        single row of each is complete.
        """
        self._is_cut = True

    def effects(self) -> int:
        """Count what came out of lines so far."""
        return self.rows + self._lost + self.issues.total()

    def finish(self, laid: LaidRows | None = None) -> Table:
        """Return the table, of the rows that were added and of those that were read by layouts."""
        row = np.zeros(0, np.int64) if laid is None else laid.row
        stamp = stamps.whole_texts(self._stamps)
        distinct = dict.fromkeys(self._gpus)
        number = {gpu: code for code, gpu in enumerate(distinct)}
        gpu = np.array([number[gpu] for gpu in self._gpus], np.int64)
        if laid is not None and len(row):
            date, time = stamps.texts_of(laid, 0), stamps.texts_of(laid, 1, of_times=True)
            stamp = stamps.merged(stamps.pasted(date, time), row, stamp)
            own, codes = _identities(laid)
            distinct |= dict.fromkeys(own)
            number = {gpu: code for code, gpu in enumerate(distinct)}
            every = np.empty(self.rows, np.int64)
            is_laid = np.zeros(self.rows, bool)
            is_laid[row] = True
            every[row] = np.array([number[gpu] for gpu in own])[codes]
            every[~is_laid] = gpu
            gpu = every
        first, gpu_code = gather.distinct(gpu)
        gpus = [list(distinct)[code] for code in gpu[first].tolist()]
        columns = columns_of(laid, self._columns, _parsed)
        if self._is_cut and gpu_code[-1] in gpu_code[:-1]:
            self._drop_last_cell(columns)
        events = self.rows + self._lost
        facts = self.facts | dict(_facts(columns))
        values = {
            key: replace(
                c,
                key=key[0],
                distinct=[Cell(tuple(map(in_lane_unit, cell.items))) for cell in c.distinct],
            )
            for key, c in columns.items()
            if key[0] != _FACT
        }
        return Table(self.issues, stamp, gpu_code, gpus, values, events, facts)

    def _drop_last_cell(self, columns: dict[ColumnKey, CellColumn]) -> None:
        for key, column in reversed(columns.items()):
            builder = self._columns.get(key)
            if key[0] != _FACT and builder is not None and builder.rows[-1] == self.rows - 1:
                last = str(list(builder.distinct)[builder.codes[-1]]).strip()[-1:]
                if last.isalnum() and not last.isalpha():
                    kept = np.arange(len(column.row)) < len(column.row) - 1
                    columns[key] = column.select(kept).in_order()
                    self.issues.add(faults.CELL_CUT)
                return


class TableReader:
    """Parts of readers of lines: a table, and the number of the heading below which a line stands."""

    def __init__(self, issues: IssueLog) -> None:
        self.table = TableBuilder(issues)
        self.state = 0

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        return self.table.rows

    @rows.setter
    def rows(self, count: int) -> None:
        self.table.rows = count

    def effects(self) -> int:
        """Count what came out of lines so far."""
        return self.table.effects()


def fact(name: str) -> ColumnKey:
    """Return the key of a column that holds a fact of the whole file."""
    return _FACT, name


def layout(
    stamp: tuple[str, str],
    gpu: Identity,
    cells: Iterable[tuple[ColumnKey, str]],
    guards: tuple[Guard, ...] = (),
) -> Layout | None:
    """Return the layout of a row of a probe; None if it must be read by itself.

    Parameters
    ----------
    stamp
        Its timestamp, in front of the time of day and from there on.
    gpu, cells
        As those of `TableBuilder.add`; the PCI address as it is written.
    guards
        Bounds of numbers.
    """
    values = tuple(cells)
    if len({key for key, _ in values}) < len(values):
        return None
    return Layout((), (*stamp, *gpu), values, guards)


def _identities(laid: LaidRows) -> tuple[list[Identity], Array]:
    """GPUs of rows that were read by layouts, and the number of each row's."""
    texts = [stamps.texts_of(laid, 2 + place) for place in range(len(Identity._fields))]
    first, code = gather.distinct(*(t.code for t in texts))
    rows = zip(*([t.distinct[c] for c in t.code[first].tolist()] for t in texts), strict=True)
    gpus = (Identity(*row) for row in rows)
    return [gpu._replace(pci=pci_of(gpu.pci)) for gpu in gpus], code


def _parsed(key: ColumnKey, text: str) -> Cell:
    return Cell((Item(text) if key[0] == _FACT else item_of(text, key[1]),))


def _facts(columns: dict[ColumnKey, CellColumn]) -> Iterable[tuple[str, str]]:
    """Facts that columns hold: the value of their last row."""
    for key, column in columns.items():
        if key[0] == _FACT:
            last = column.select(np.arange(len(column.row)) == len(column.row) - 1)
            last = last.without_slots()
            yield key[1], str(last.distinct[last.code[-1]].items[0].value)


_LOW, _HIGH = 1e9, 4e9 - 1
"""Times in seconds since 1970 that have ten digits and are not rejected."""
_EPOCH = re.compile(r"\d{10}(?:\.\d+)?")


def split_probe(probe: str, sample: str) -> tuple[str, str, tuple[Guard, ...]] | None:
    """Split a probe as `split_leading_timestamp` splits lines; None if lines must be looked at one by one.

    Parameters
    ----------
    probe, sample
        A line with other numbers, and a line as it is, stripped.

    Returns
    -------
    stamp
        Timestamp in front: a number of seconds; empty if there is none.
    rest
        What follows it.
    guards
        Bounds of numbers within which all such lines are split so.
    """
    stamp, _ = split_leading_timestamp(sample)
    word, _, rest = probe.partition(" ")
    slots = slots_in(word)
    if stamp:
        word = word.strip("[](),")
        is_plain = _EPOCH.fullmatch(stamp) and slots == [0] and word == str(probe_number(0))
        return (word, rest.strip(), (Guard(0, _LOW, _HIGH, ANY),)) if is_plain else None
    if not slots:
        return None if word[:1].isdigit() else ("", probe, ())
    return ("", probe, (Guard(0, 0, _LOW - 1),)) if word == str(probe_number(0)) else None
