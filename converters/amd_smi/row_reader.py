"""Rows of amd-smi's outputs as their readers collect them: read ones with their values, and the number of lost ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chopper_interop.converters.amd_smi import faults as own_faults
from chopper_interop.converters.amd_smi.counters import LANES
from chopper_interop.converters.amd_smi.layout import LARGEST, ROW_KEYS
from chopper_interop.converters.sampling import lane_names
from chopper_interop.converters.sampling.cells import (
    Cell,
    CellColumn,
    ColumnBuilder,
    Rows,
    cell_of,
    cell_of_text,
    is_quantity,
)
from chopper_interop.converters.sampling.laid_columns import columns_of, keys_of_rows
from chopper_interop.converters.sampling.text import NO_NUMBER, whole_number
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.laid_rows import LaidRows

    Key = tuple[int, int]


_TIME = re.compile(r"-?\d")
"""Beginning of what is written as a time, not of N/A."""
UNREADABLE, BEFORE_1970 = -2, -3
"""In place of times that are written and are none; `NO_NUMBER` where none is."""


def no_time(text: str) -> int:
    """Return what stands in place of a time that could not be read, by how it is written."""
    if not _TIME.match(text):
        return NO_NUMBER
    return BEFORE_1970 if text.startswith("-") else UNREADABLE


def is_unreadable(time: str) -> bool:
    """True if a time is written that is none: such a row is read alone, which counts it by how it is written."""
    return whole_number(time, LARGEST[ROW_KEYS[0]]) == NO_NUMBER != no_time(time.strip())


@dataclass
class LossCount:
    """Part of readers: the number of rows that could not be read, each with its issue.

    Parameters
    ----------
    issues
        Where they are noted.
    """

    issues: IssueLog
    lost: int = field(default=0, init=False)

    def lose(self, fault: Fault, example: str) -> None:
        """Count a row that cannot be read."""
        self.lost += 1
        self.issues.add(fault, 1, example[:80])


@dataclass
class RowReader(LossCount):
    """Part of readers of pieces that have templates: it collects the rows that had no layout."""

    rows: int = field(default=0, init=False)
    row_keys: dict[int, tuple[int, ...]] = field(default_factory=dict, init=False)
    """Time, GPU and partition of each."""
    columns: dict[Any, ColumnBuilder] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.processes = ProcessSamples(self.issues)

    def effects(self) -> int:
        """Count what came out of pieces so far, rows and issues."""
        return self.rows + self.lost + self.issues.total()

    def finish(self, laid: LaidRows | None) -> Rows:
        """Return all rows, those that had a layout included."""
        columns = columns_of(laid, self.columns, lambda _, text: cell_of_text(text))
        stamp, gpu, part = keys_of_rows(laid, self.row_keys)
        values = [*self.in_order(columns), *self.processes.finish()]
        return Rows(stamp, gpu, part, values, self.rows + self.lost)

    def in_order(self, columns: dict[Any, CellColumn]) -> Iterable[CellColumn]:
        """Return the columns in the order in which they come."""
        return columns.values()


_DEEPEST = 8
"""Levels of brackets that are searched. Chosen: amd-smi nests half as deep; bounds the recursion."""


@dataclass
class ProcessSamples:
    """Collects the values of processes.

    Parameters
    ----------
    issues
        Where their rows are counted.
    """

    issues: IssueLog
    rows: dict[Key, int] = field(default_factory=dict)
    """Time and GPU → their last row."""
    columns: dict[str, ColumnBuilder] = field(default_factory=dict)

    def add(self, stamp: int, gpu: int, process: Any, at: str) -> None:
        """Add one process; without a number, or a row of its GPU and time, it is counted as lost.

        Parameters
        ----------
        stamp, gpu
            Time and GPU that are written with it.
        process
            Its values by name, nested or not.
        at
            Its location in the file.
        """
        values = dict(_leaves(process, 0)) if isinstance(process, dict) else {}
        pid = str(values.pop("pid", ""))
        row = self.rows.get((stamp, gpu))
        cells = {
            key: cell
            for name, value in values.items()
            if (key := f"process_{pid}_{name}") and lane_names.meaning(key, LANES)
            for cell in [cell_of(value)]
        }
        if row is None or not pid.isdecimal() or not self._are_new(row, cells):
            self.issues.add(own_faults.PROCESS, 1, at)  # not its name and command line
            return
        for key, cell in cells.items():
            self.columns.setdefault(key, ColumnBuilder(key)).add(row, cell)
        self.issues.add(own_faults.JOINED)

    def _are_new(self, row: int, cells: dict[str, Cell]) -> bool:
        """True if the row has no values of that process yet."""
        known = (self.columns[key] for key in cells if key in self.columns)
        return not any(column.rows[-1] == row for column in known)

    def finish(self) -> list[CellColumn]:
        """Return their columns."""
        return [column.finish() for column in self.columns.values()]


def _leaves(value: dict[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield values by the last part of their path."""
    for name, inner in value.items():
        if isinstance(inner, dict) and not is_quantity(inner):
            if depth < _DEEPEST:
                yield from _leaves(inner, depth + 1)
        else:
            yield str(name).lower(), inner
