"""How far a long task has come, for whoever wants to show it.

Readers and writers say what they have done by `advance`; who shows it, if anybody, sets a
`Reporter` with `reporting`. Without one nothing happens.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Reporter(Protocol):
    """Shows progress."""

    def start(self, task: str, total: int, unit: str) -> None:
        """Begin a task of so many bytes, events, …"""

    def advance(self, task: str, amount: int) -> None:
        """Note that so much more of it is done."""


_reporter: ContextVar[Reporter | None] = ContextVar("reporter", default=None)


def start(task: str, total: int, unit: str) -> None:
    """Begin a task of so many bytes, events, …"""
    reporter = _reporter.get()
    if reporter is not None:
        reporter.start(task, total, unit)


def advance(task: str, amount: int) -> None:
    """Note that so much more of a task is done."""
    reporter = _reporter.get()
    if reporter is not None:
        reporter.advance(task, amount)


@contextmanager
def reporting(reporter: Reporter) -> Iterator[None]:
    """Show the progress of what is done inside."""
    token = _reporter.set(reporter)
    try:
        yield
    finally:
        _reporter.reset(token)
