"""Annotate a trace: derive columns of the nodes for ranks whose sources do not state them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from chopper_interop.annotate import provenance
from chopper_interop.annotate.counters import counter_metrics
from chopper_interop.annotate.structure import annotations as structure
from chopper_interop.annotate.telemetry import annotations as node_telemetry
from chopper_interop.annotate.telemetry import gpu_series
from chopper_interop.annotate.work import operators
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from chopper_interop.issues import Issue
    from chopper_interop.trace import Trace


class _Stage(NamedTuple):
    """Function that derives annotation columns by name and logs assumptions, and its condition."""

    columns: Callable[[Trace, IssueLog], dict[str, pa.Array]]
    has_data: Callable[[Trace], bool]


_STAGES = (
    _Stage(structure.columns, lambda trace: trace.nodes.num_rows > 0),
    _Stage(operators.columns, lambda trace: trace.nodes.num_rows > 0),
    _Stage(node_telemetry.columns, lambda trace: bool(gpu_series.series_locations(trace, ()))),
    _Stage(counter_metrics.columns, lambda trace: trace.counters.num_rows > 0),
)
"""Stages in their order: each sees the columns of those before."""


def annotate(trace: Trace) -> Trace:
    """Add every annotation that can be derived, where sources state none."""
    log = IssueLog("job")
    for stage in _STAGES:
        if stage.has_data(trace):
            trace = provenance.fill_columns(trace, stage.columns(trace, log))
    return trace.with_meta(issues=_merged(trace.meta.issues, log)) if tuple(log) else trace


def _merged(before: Iterable[Issue], new: Iterable[Issue]) -> tuple[Issue, ...]:
    """Merge issues, each once: those of ranks that were read back may occur in both."""
    known = {(issue.source, issue.code): issue for issue in before}
    for issue in new:
        key = (issue.source, issue.code)
        if key not in known or known[key].count < issue.count:
            known[key] = issue
    return tuple(known.values())
