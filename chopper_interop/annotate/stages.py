"""Annotate a trace: derive columns of the nodes for ranks whose sources do not state them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from chopper_interop import rank_batches
from chopper_interop.annotate import provenance
from chopper_interop.annotate.structure import annotations as structure
from chopper_interop.annotate.work import operators
from chopper_interop.arrays import arrow
from chopper_interop.io import memory
from chopper_interop.issues import Issue, IssueLog
from chopper_interop.schemas import hub
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa


class _Stage(NamedTuple):
    """Function that derives annotation columns by name and logs assumptions, and its condition.

    Of those that it derives of nodes and their arguments, it is given the names that are asked for.
    What it derives depends on nodes of the same rank alone or, with `by_host`, of the same host; with `at_once`
    its issues have figures of all nodes. What it logs counts if it derives the column `logs_of` for any rank.
    What it needs to know of all ranks `of_job` finds out where they are taken some at a time.
    """

    columns: Callable[..., dict[str, pa.Array]]
    has_data: Callable[[Trace], bool]
    of_job: Callable[[Iterator[Trace], Collection[str]], Any] | None = None
    by_host: bool = False
    at_once: bool = False
    logs_of: str = ""


def _has_gpu_series(trace: Trace) -> bool:
    """True if any series is of a quantity or of a partition, so that `gpu_series.series_locations` has rows."""
    if not trace.series.num_rows:  # no file of telemetry, nor what only it imports
        return False
    from chopper_interop.annotate.telemetry.quantity_series import PARTITION, QUANTITIES

    patterns = [one.name for quantity in QUANTITIES for one in quantity.patterns]
    names, ranks = (trace.series[column].to_pylist() for column in ("name", "rank"))
    return any(
        any(re.fullmatch(pattern, name) for pattern in patterns)
        or (rank >= 0 and PARTITION.fullmatch(name))
        for name, rank in zip(names, ranks, strict=True)
    )


def _telemetry(trace: Trace, log: IssueLog, *_: object) -> dict[str, pa.Array]:
    from chopper_interop.annotate.telemetry import annotations

    return annotations.columns(trace, log)


def _counters(trace: Trace, log: IssueLog, *_: object) -> dict[str, pa.Array]:
    from chopper_interop.annotate.counters import counter_metrics

    return counter_metrics.columns(trace, log)


_STAGES = (
    _Stage(structure.columns, lambda trace: trace.nodes.num_rows > 0, structure.block_lists),
    _Stage(
        operators.columns,
        lambda trace: trace.nodes.num_rows > 0,
        operators.convolution_shapes,
        logs_of="flops",
    ),
    _Stage(_telemetry, _has_gpu_series, by_host=True),
    _Stage(_counters, lambda trace: trace.counters.num_rows > 0, at_once=True),
)
"""Stages in their order: each sees the columns of those before."""
OF_NODES = (*structure.COLUMNS, *operators.COLUMNS)
"""Annotations that are derived of nodes and their arguments."""


def annotate(trace: Trace, only: Collection[str] = OF_NODES) -> Trace:
    """Add annotations that can be derived, where sources state none.

    Parameters
    ----------
    trace
        A job's trace.
    only
        Those of `OF_NODES` that are added; by default all of them.
    """
    log = IssueLog("job")
    for stage in _STAGES:
        if stage.has_data(trace):
            trace = _with_stage(trace, stage, log, only)
            memory.give_back(trace.nodes.nbytes)
    structure.note_numbers_apart(trace, log)
    new = sorted(log, key=attrgetter("code"))  # whichever batch of ranks has them first
    return trace.with_meta(issues=merged(trace.meta.issues, new)) if new else trace


def _with_stage(trace: Trace, stage: _Stage, log: IssueLog, only: Collection[str]) -> Trace:
    """Add the columns of a stage, of some ranks at a time where none depends on others."""
    of_stage, derived = IssueLog(log.source), set[str]()
    of_job = None
    if stage.of_job is not None and len(rank_batches.spans(trace)) > 1:
        of_job = stage.of_job((part for _, part in rank_batches.batches(trace)), only)

    def derive(part: Trace) -> dict[str, pa.Array]:
        columns = stage.columns(part, of_stage, only, of_job)
        derived.update(columns)
        columns = provenance.filled(part, columns)
        return {
            name: arrow.column(values, hub.ANNOTATION_TYPES.get(name))
            for name, values in columns.items()
        }

    if stage.at_once:
        trace = trace.with_columns(**derive(trace))
    else:
        trace = rank_batches.with_columns(trace, derive, by_host=stage.by_host)
    if not stage.logs_of or stage.logs_of in derived:
        log.extend(of_stage)
    return trace


def merged(before: Iterable[Issue], new: Iterable[Issue]) -> tuple[Issue, ...]:
    """Merge issues, each once: those of ranks that were read back may occur in both."""
    known = {(issue.source, issue.code): issue for issue in before}
    for issue in new:
        key = (issue.source, issue.code)
        if key not in known or known[key].count < issue.count:
            known[key] = issue
    return tuple(known.values())
