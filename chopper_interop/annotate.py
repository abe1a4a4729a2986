"""Annotations that follow from the trace itself, and that its source did not state."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING

from chopper_interop import counted, node_telemetry, structure, work
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

_TOLD_BY = (structure, work, node_telemetry, counted)
"""Modules whose `columns` gives annotation columns by name; each sees those of the ones before.

`note(trace, made, issues)` of a module that has one tells what was assumed for the columns `made`.
"""


def annotate(trace: Trace) -> Trace:
    """Trace with the columns that anything in it tells and that its source did not state."""
    stated = set(trace.nodes.column_names)
    issues = IssueLog()
    issues.extend(trace.meta.issues)
    log = IssueLog("job")
    for module in _TOLD_BY:
        noted = "issues" in signature(module.columns).parameters
        found = module.columns(trace, log) if noted else module.columns(trace)
        columns = {name: values for name, values in found.items() if name not in stated}
        trace = trace.annotate(**columns) if columns else trace
        if hasattr(module, "note"):
            module.note(trace, set(columns), log)
    known = {(issue.source, issue.code) for issue in issues}  # of a trace that was read back
    issues.extend(issue for issue in log if (issue.source, issue.code) not in known)
    return trace.with_meta(issues=tuple(issues)) if tuple(log) else trace
