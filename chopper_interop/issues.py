"""Faults as data: what a reader could not take over unchanged is recorded with the trace.

Each kind of fault is declared once, as a `Fault`, in the module that can raise it; its occurrence
in a file is an `Issue`. Faults with ``events=True`` count input events that did not become a
node of their own, so that for every source

    events in = nodes + sum of the counts of its issues with ``events``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import SupportsInt


class Severity(str, Enum):
    """Severity of a fault."""

    INFO = "info"
    """Nothing is lost: something was stored elsewhere, or assumed."""
    LOSS = "loss"
    """Something of the input is not in the trace."""
    ERROR = "error"
    """The trace is wrong in a way that the user must know."""


_DECLARED: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Parameters
    ----------
    code
        Stable name, lower case with hyphens.
    severity
        See `Severity`.
    meaning
        One sentence for the user.
    events
        True if its count is one of input events that did not become nodes.
    """

    code: str
    severity: Severity
    meaning: str
    events: bool = False

    def __post_init__(self) -> None:
        """Note that this text is of a program, and of no input."""
        _DECLARED.add((self.code, self.meaning))

    @classmethod
    def info(cls, code: str, meaning: str) -> Fault:
        """Return a fault of severity ``INFO``."""
        return cls(code, Severity.INFO, meaning)

    @classmethod
    def info_of_events(cls, code: str, meaning: str) -> Fault:
        """Return a fault of severity ``INFO`` whose count is one of input events."""
        return cls(code, Severity.INFO, meaning, events=True)

    @classmethod
    def loss(cls, code: str, meaning: str) -> Fault:
        """Return a fault of severity ``LOSS``."""
        return cls(code, Severity.LOSS, meaning)

    @classmethod
    def loss_of_events(cls, code: str, meaning: str) -> Fault:
        """Return a fault of severity ``LOSS`` whose count is one of input events."""
        return cls(code, Severity.LOSS, meaning, events=True)

    @classmethod
    def error(cls, code: str, meaning: str) -> Fault:
        """Return a fault of severity ``ERROR``."""
        return cls(code, Severity.ERROR, meaning)

    @classmethod
    def error_of_events(cls, code: str, meaning: str) -> Fault:
        """Return a fault of severity ``ERROR`` whose count is one of input events."""
        return cls(code, Severity.ERROR, meaning, events=True)


RANK_ASSUMED = Fault.info(
    "rank-assumed", "Neither the file nor its name says its rank, so 0 was assumed."
)
"""For readers of one rank a file."""


@dataclass(frozen=True)
class Issue:
    """A fault that was met, how often, and one example of it."""

    code: str
    severity: Severity
    meaning: str
    count: int
    example: str = ""
    events: bool = False
    source: str = ""

    def with_count(self, count: int) -> Issue:
        """Return the issue with another count; `dataclasses.replace` takes twice as long."""
        return Issue(
            self.code, self.severity, self.meaning, count, self.example, self.events, self.source
        )

    @property
    def is_declared(self) -> bool:
        """True if its code and meaning are of a `Fault` of this program, not words out of a file."""
        return (self.code, self.meaning) in _DECLARED


@dataclass
class IssueLog:
    """Collects issues while a source is read or written; equal codes of one source add up.

    Parameters
    ----------
    source
        What they are of.
    first_row
        Row in the job's trace of the first node of a trace of some ranks.
    """

    source: str = ""
    first_row: int = 0
    _issues: dict[tuple[str, str], Issue] = field(default_factory=dict)

    def add(self, fault: Fault, count: SupportsInt = 1, example: str = "") -> None:
        """Note `count` occurrences of `fault`; a count of 0 notes nothing."""
        if not int(count):
            return
        seen = self._issues.get((self.source, fault.code))
        if seen is not None:  # as in `extend`, without two objects for each of many lines of a log
            self._issues[self.source, fault.code] = seen.with_count(seen.count + int(count))
            return
        code, severity, meaning, events = fault.code, fault.severity, fault.meaning, fault.events
        self.extend([Issue(code, severity, meaning, int(count), example, events, self.source)])

    def node(self, row: SupportsInt) -> str:
        """Return the text for a node in an example, by its row in the job's trace."""
        return f"node {self.first_row + int(row)}"

    def extend(self, issues: Iterable[Issue]) -> None:
        """Take over issues from elsewhere."""
        for issue in issues:
            key = (issue.source, issue.code)
            seen = self._issues.get(key)
            self._issues[key] = issue if seen is None else seen.with_count(seen.count + issue.count)

    def __iter__(self) -> Iterator[Issue]:
        return iter(self._issues.values())

    def total(self) -> int:
        """Occurrences of all faults."""
        return sum(issue.count for issue in self)

    def events(self) -> int:
        """Input events that did not become nodes."""
        return sum(issue.count for issue in self if issue.events)
