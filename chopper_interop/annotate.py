"""Annotations that follow from the trace itself, of ranks whose sources did not state them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop import stated
from chopper_interop.counters import counted
from chopper_interop.issues import IssueLog
from chopper_interop.structure import annotations as structure
from chopper_interop.telemetry import annotations as node_telemetry
from chopper_interop.work import operators

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.issues import Issue
    from chopper_interop.trace import Trace

_TOLD_BY = (structure, operators, node_telemetry, counted)
"""Modules whose `columns(trace, issues)` gives annotation columns by name and notes what it assumed;
each sees the columns of the ones before."""


def annotate(trace: Trace) -> Trace:
    """Trace with what anything in it tells in columns that its source did not state, by rank."""
    log = IssueLog("job")
    for module in _TOLD_BY:
        trace = stated.filled(trace, module.columns(trace, log))
    return trace.with_meta(issues=_together(trace.meta.issues, log)) if tuple(log) else trace


def _together(before: Iterable[Issue], found: Iterable[Issue]) -> tuple[Issue, ...]:
    """Issues, each once: of ranks that were read back, those found now are known in part."""
    known = {(issue.source, issue.code): issue for issue in before}
    for issue in found:
        key = (issue.source, issue.code)
        if key not in known or known[key].count < issue.count:
            known[key] = issue
    return tuple(known.values())
