"""What ``amd-smi monitor -q`` says of processes: values of their GPU's row, under their number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chopper_interop.converters import amd_smi_faults as own_faults
from chopper_interop.converters import telemetry_names
from chopper_interop.converters.amd_smi_counted import LANES
from chopper_interop.converters.telemetry_cells import (
    Cell,
    ColumnBuilder,
    is_quantity,
    of_json,
    of_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.converters.telemetry_cells import Column
    from chopper_interop.issues import IssueLog

    Key = tuple[int, int]

_DEEPEST = 8


@dataclass
class Processes:
    """Collects the values of processes.

    Parameters
    ----------
    issues
        Where it is counted what became of their rows.
    """

    issues: IssueLog
    rows: dict[Key, int] = field(default_factory=dict)
    """Time and GPU → the last row that has them."""
    columns: dict[str, ColumnBuilder] = field(default_factory=dict)

    def add(self, stamp: int, gpu: int, process: Any, at: str) -> None:
        """Add one process; it is counted as lost if no row has its GPU and time, or it no number.

        Parameters
        ----------
        stamp, gpu
            Time and GPU that stand beside it.
        process
            Its values by name, nested or not.
        at
            Where it stands.
        """
        told = dict(_leaves(process, 0)) if isinstance(process, dict) else {}
        pid = str(told.pop("pid", ""))
        row = self.rows.get((stamp, gpu))
        cells = {
            key: cell
            for name, value in told.items()
            if (key := f"process_{pid}_{name}") and telemetry_names.meaning(key, LANES)
            for cell in [of_text(value) if isinstance(value, str) else of_json(value)]
        }
        if row is None or not pid.isdecimal() or not self._are_new(row, cells):
            self.issues.add(own_faults.PROCESS, 1, f"{at}: {process}"[:80])
            return
        for key, cell in cells.items():
            self.columns.setdefault(key, ColumnBuilder(key)).add(row, cell)
        self.issues.add(own_faults.JOINED)

    def _are_new(self, row: int, cells: dict[str, Cell]) -> bool:
        """Whether the row has nothing of that process yet."""
        known = (self.columns[key] for key in cells if key in self.columns)
        return not any(column.rows[-1] == row for column in known)

    def finish(self) -> list[Column]:
        """Their columns."""
        return [column.finish() for column in self.columns.values()]


def _leaves(value: dict[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    """Values by the last part of where they stand."""
    for name, inner in value.items():
        if isinstance(inner, dict) and not is_quantity(inner):
            if depth < _DEEPEST:
                yield from _leaves(inner, depth + 1)
        else:
            yield str(name).lower(), inner
