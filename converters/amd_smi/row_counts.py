"""Counts of the rows of amd-smi's outputs: those that were read, and those that could not be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
class RowCount(LossCount):
    """Part of readers of pieces that have templates: it counts the rows that were read as well."""

    rows: int = field(default=0, init=False)

    def effects(self) -> int:
        """Count what came out of pieces so far, rows and issues."""
        return self.rows + self.lost + self.issues.total()
