"""Removal of collective matches from parts of a job, so that they are matched again over all.

Parts that were written separately each number their collectives from 0 and have a reference clock
of their own; neither is valid for all parts together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import arrow
from chopper_interop.clocks import ranks as rank_clocks
from chopper_interop.clocks.relations import COLLECTIVE_ENDS
from chopper_interop.edges import collectives
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.joining.fragment import Fragment

REMATCHED = Fault.info(
    "collectives-rematched",
    "Sources that had each matched the collectives of its own ranks: they were matched again over "
    "all ranks. Ranks that a source had moved by the ends of its collectives keep these times.",
)

_ISSUES_OF_MATCHING = {
    fault.code
    for fault in (
        collectives.BY_ORDER,
        collectives.ALONE,
        collectives.NOT_MATCHED,
        collectives.UNEVEN,
        collectives.UNPAIRED,
        collectives.CONTRADICTED,
        collectives.ROOT_UNKNOWN,
        collectives.KIND_UNKNOWN,
        rank_clocks.NOT_ALIGNED,
    )
}
"""Codes of issues that a part noted of its own matches."""


def drop_partial_matches(fragments: list[Fragment], issues: IssueLog) -> list[Fragment]:
    """Remove matches of collectives from fragments, if several fragments have some.

    Parameters
    ----------
    fragments
        Traces of the sources.
    issues
        Gets the number of such fragments, and the ranks that a source had moved.
    """
    matched = [f for f in fragments if has_matches(f.trace)]
    if len(matched) < 2:  # noqa: PLR2004
        return fragments
    fits = (fit for f in matched for fit in f.trace.meta.clocks)
    moved = [
        f"{fit.of} by {fit.offset_ns / 1000:+,.3f} us"
        for fit in fits
        if fit.method == COLLECTIVE_ENDS and fit.applied
    ]
    issues.add(REMATCHED, len(matched), f"moved: {', '.join(moved[:3])}" if moved else "")
    return [
        replace(f, trace=without_matches(f.trace)) if has_matches(f.trace) else f for f in fragments
    ]


def has_matches(trace: Trace) -> bool:
    """True if collectives of the trace were matched."""
    return bool(trace.nodes.num_rows) and trace.has("instance")


def without_matches(trace: Trace) -> Trace:
    """The trace without instances, edges, clock relations and issues of its collectives."""
    meta = trace.meta
    other_edges = np.flatnonzero(trace.array("kind", "edges") != EdgeKind.COMM)
    return replace(
        trace,
        nodes=trace.nodes.drop_columns(["instance"]),
        edges=arrow.take(trace.edges, other_edges),
        meta=replace(
            meta,
            clocks=tuple(fit for fit in meta.clocks if fit.method != COLLECTIVE_ENDS),
            issues=tuple(issue for issue in meta.issues if issue.code not in _ISSUES_OF_MATCHING),
        ),
    )
