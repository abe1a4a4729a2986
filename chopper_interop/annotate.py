"""Annotations that follow from the trace itself, and that its source did not state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop import counted, node_telemetry, structure, work
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

_TOLD_BY = (structure, work, node_telemetry, counted)
"""Modules whose `columns(trace, issues)` gives annotation columns by name and notes what it assumed;
each sees the columns of the ones before."""


def annotate(trace: Trace) -> Trace:
    """Trace with the columns that anything in it tells and that its source did not state."""
    stated = set(trace.nodes.column_names)
    log = IssueLog("job")
    for module in _TOLD_BY:
        found = module.columns(trace, log)
        columns = {name: values for name, values in found.items() if name not in stated}
        trace = trace.annotate(**columns) if columns else trace
    issues = IssueLog()
    issues.extend(trace.meta.issues)
    known = {(issue.source, issue.code) for issue in issues}  # of a trace that was read back
    issues.extend(issue for issue in log if (issue.source, issue.code) not in known)
    return trace.with_meta(issues=tuple(issues)) if tuple(log) else trace
