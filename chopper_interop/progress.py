"""Progress of long tasks.

Readers and writers report by `start` and `advance`; a `Reporter` that is set with `reporting` shows
it. Without one nothing happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Reporter(Protocol):
    """Shows progress."""

    def start(self, task: str, total: int, unit: str) -> None:
        """Begin a task of `total` bytes, events, …"""

    def advance(self, task: str, amount: int) -> None:
        """Add to what is done of a task."""

    def count(self, task: str, done: int, unit: str) -> None:
        """Show how much is done of a task whose size is unknown."""


_reporter: ContextVar[Reporter | None] = ContextVar("reporter", default=None)


def start(task: str, total: int, unit: str) -> None:
    """Begin a task of `total` bytes, events, …"""
    reporter = _reporter.get()
    if reporter is not None:
        reporter.start(task, total, unit)


def advance(task: str, amount: int) -> None:
    """Add to what is done of a task."""
    reporter = _reporter.get()
    if reporter is not None:
        reporter.advance(task, amount)


def count(task: str, done: int, unit: str) -> None:
    """Say how much is done of a task whose size is unknown."""
    reporter = _reporter.get()
    if reporter is not None:
        reporter.count(task, done, unit)


@contextmanager
def reporting(reporter: Reporter) -> Iterator[None]:
    """Send the progress of the block to a reporter."""
    token = _reporter.set(reporter)
    try:
        yield
    finally:
        _reporter.reset(token)
