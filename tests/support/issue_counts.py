"""Counts of the issues of a trace, or of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import chopper_interop as ci

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.issues import Issue


def counts(of: ci.Trace | Iterable[Issue]) -> dict[str, int]:
    """Count of each fault."""
    return {issue.code: issue.count for issue in _issues(of)}


def uncounted_events(trace: ci.Trace) -> int:
    """Events of the only source that are neither nodes nor counted by an issue."""
    (source,) = trace.meta.sources
    counted = sum(issue.count for issue in trace.meta.issues if issue.events)
    return source.events - source.nodes - counted


def _issues(of: ci.Trace | Iterable[Issue]) -> Iterable[Issue]:
    return of.meta.issues if isinstance(of, ci.Trace) else of
