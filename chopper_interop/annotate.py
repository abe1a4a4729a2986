"""Annotations that follow from the trace itself, and that its source did not state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop import node_telemetry, structure, work

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

_TOLD_BY = (structure, work, node_telemetry)
"""Modules whose `columns` gives annotation columns by name; each sees those of the ones before."""


def annotate(trace: Trace) -> Trace:
    """Trace with the columns that anything in it tells and that its source did not state."""
    stated = set(trace.nodes.column_names)
    for module in _TOLD_BY:
        found = module.columns(trace)
        columns = {name: values for name, values in found.items() if name not in stated}
        trace = trace.annotate(**columns) if columns else trace
        told = module.issues(trace) if columns and module is work else ()
        trace = trace.with_meta(issues=(*trace.meta.issues, *told)) if told else trace
    return trace
