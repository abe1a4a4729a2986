"""Rows of amd-smi's outputs as their readers collect them: read ones with their values, and the number of lost ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chopper_interop.converters.amd_smi.processes import ProcessSamples
from chopper_interop.converters.sampling.cells import CellColumn, ColumnBuilder, Rows, cell_of_text
from chopper_interop.converters.sampling.laid_columns import columns_of, keys_of_rows

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.templates import LaidRows
    from chopper_interop.issues import Fault, IssueLog


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
