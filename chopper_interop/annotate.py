"""Annotations that follow from the trace itself, and that its source did not state."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING

from chopper_interop import counted, node_telemetry, structure
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

_TOLD_BY = (structure, node_telemetry, counted)
"""Modules whose `columns` gives annotation columns by name; each sees those of the ones before.

One that assumes anything takes an `IssueLog` as `issues` beside the trace.
"""


def annotate(trace: Trace) -> Trace:
    """Trace with the columns that anything in it tells and that its source did not state."""
    stated = set(trace.nodes.column_names)
    issues = IssueLog("job")
    issues.extend(trace.meta.issues)
    for module in _TOLD_BY:
        noted = "issues" in signature(module.columns).parameters
        found = module.columns(trace, issues) if noted else module.columns(trace)
        columns = {name: values for name, values in found.items() if name not in stated}
        trace = trace.annotate(**columns) if columns else trace
    return trace.with_meta(issues=tuple(issues))
