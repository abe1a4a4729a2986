"""Rows of a tool's output as texts: who each is of, when it was taken, its cells by column."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.issues import Fault, IssueLog


class Identity(NamedTuple):
    """What a row says of its GPU; empty where it does not.

    Parameters
    ----------
    number
        Index by the tool, as it is written.
    uuid, pci, name
        Its other names.
    entity
        What it is instead of a whole GPU: ``GPU-I 3``, ``CPU 0``.
    """

    number: str = ""
    uuid: str = ""
    pci: str = ""
    name: str = ""
    entity: str = ""

    @property
    def told(self) -> bool:
        """Whether it tells GPUs apart: their models do not."""
        return bool(self.number or self.uuid or self.pci or self.entity)


@dataclass
class Table:
    """Rows of a file, in its order.

    Parameters
    ----------
    stamp
        When each was taken, as it is written; empty if it does not say.
    gpu
        Whose it is.
    columns
        Rows and texts by key and unit.
    events
        Rows of the file, those included that could not be read.
    facts
        What the file says of the whole.
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

    def without_last_number(self, row: int) -> bool:
        """Take the last cell of a row away if it may lack digits; whether it did."""
        for rows, texts in reversed(self.columns.values()):
            if rows and rows[-1] == row:
                if not texts[-1].strip()[-1:].isalnum() or texts[-1].strip()[-1:].isalpha():
                    return False
                rows.pop()
                texts.pop()
                return True
        return False
