"""Processes in ``amd-smi monitor -q``: their values join the row of their GPU, by their number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chopper_interop.converters.amd_smi import faults as own_faults
from chopper_interop.converters.amd_smi.counters import LANES
from chopper_interop.converters.sampling import lane_names
from chopper_interop.converters.sampling.cells import (
    Cell,
    CellColumn,
    ColumnBuilder,
    cell_of,
    is_quantity,
)

if TYPE_CHECKING:
    from chopper_interop.issues import IssueLog

    Key = tuple[int, int]

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
