"""Some training steps of a trace alone (``--steps 10-12``): what the host does in them, and the GPU work that it launches.

A node is of the step that its column `iteration` says: on hosts of the last range of a step (``ProfilerStep#10``) to start
before it, if it starts in that, and on GPUs of the step of its launch, whenever it runs. What has no step is left out.
Ranges of readers that cut early, while they read, are a superset, so that both ways have the same nodes.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import number_ranges, time_window
from chopper_interop.annotate import provenance
from chopper_interop.annotate.structure import annotations as structure
from chopper_interop.errors import UsageError
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from os import PathLike

OUTSIDE = Fault.info_of_events(
    "outside-steps", "Events outside of the training steps that were asked for were left out."
)
OF_JOB = Fault.info(
    "nodes-outside-steps",
    "Nodes outside of the training steps that were asked for were left out when all sources were joined.",
)
CHOSEN: ContextVar[tuple[int, ...] | None] = ContextVar("CHOSEN", default=None)
"""Steps of which a reader may leave out events as it reads; None for all."""
_COLUMN = "iteration"


@contextmanager
def reading(steps: tuple[int, ...]) -> Iterator[None]:
    """Have readers that can leave out events of other steps, within a block."""
    before = CHOSEN.set(steps)
    try:
        yield
    finally:
        CHOSEN.reset(before)


def of_source(trace: Trace, steps: Collection[int], path: PathLike[str]) -> Trace:
    """Return the trace of a source with the nodes of some steps; raise `UsageError` if it has none of them."""
    trace = _numbered(trace)
    present = _present(trace)
    if present.isdisjoint(steps):
        raise missing(steps, present, path)
    source, *others = trace.meta.sources
    issues = IssueLog(source.path)
    issues.extend(trace.meta.issues)
    trace = _restricted(trace, steps, OUTSIDE, issues)
    source = replace(source, nodes=trace.nodes.num_rows)
    return trace.with_meta(issues=tuple(issues), sources=(source, *others))


def of_job(trace: Trace, steps: Collection[int], issues: IssueLog) -> Trace:
    """Return a job's trace with the nodes of some steps; `issues` receives how many have gone.

    Raises
    ------
    UsageError
        The job lacks one of the steps.
    """
    trace = _numbered(trace)
    present = _present(trace)
    if not present.issuperset(steps):
        of_chosen = present.intersection(steps)
        raise missing(set(steps) - present, of_chosen or present)
    return _restricted(trace, steps, OF_JOB, issues)


def missing(
    steps: Iterable[int], present: Iterable[int], path: PathLike[str] | None = None
) -> UsageError:
    """Return the error for steps that a job, or a file of it, lacks."""
    known = sorted(present)
    hint = f"it has {number_ranges.describe(known)}"
    if not known:
        hint = "ranges such as ProfilerStep#10, which prof.step() makes, number them"
    subject = "the job has" if path is None else "it has"
    return UsageError(
        f"steps: {subject} no training {number_ranges.named('step', sorted(steps))}",
        path=path,
        hint=hint,
    )


def _numbered(trace: Trace) -> Trace:
    """Return the trace with the number of each node's step, by which it stays known when others are gone."""
    return provenance.fill_columns(trace, structure.columns(trace, IssueLog(), (_COLUMN,)))


def _present(trace: Trace) -> set[int]:
    return set(np.unique(trace.integers(_COLUMN)).tolist()) - {-1} if trace.has(_COLUMN) else set()


def _restricted(trace: Trace, steps: Collection[int], fault: Fault, issues: IssueLog) -> Trace:
    rows = np.flatnonzero(np.isin(trace.integers(_COLUMN), list(steps)))
    issues.add(fault, trace.nodes.num_rows - len(rows))
    times = (trace.array(column)[rows] for column in ("ts", "dur"))
    return time_window.with_nodes(trace, rows, *times)
