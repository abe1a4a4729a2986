"""Parts of a job that were each written as a whole: their collectives are matched again.

Each part numbers its own collectives from 0 and has its own reference clock, so that neither holds
of all parts together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.clocks import ranks as rank_clocks
from chopper_interop.clocks.relations import COLLECTIVE_ENDS
from chopper_interop.columns import arrow
from chopper_interop.edges import collectives
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import EdgeKind

if TYPE_CHECKING:
    from chopper_interop.joining.fragment import Fragment
    from chopper_interop.trace import Trace

AGAIN = Fault(
    "collectives-again",
    Severity.INFO,
    "Sources that had each matched the collectives of its own ranks: they were matched again, over "
    "all ranks. Ranks that a source had moved by the ends of its collectives stay where it put them.",
)

_STALE = {
    fault.code
    for fault in (
        collectives.BY_ORDER,
        collectives.ALONE,
        collectives.UNLIKE,
        collectives.UNEVEN,
        collectives.UNPAIRED,
        collectives.LATE,
        collectives.ROOT_UNKNOWN,
        rank_clocks.NOT_ALIGNED,
    )
}
"""What a part noted of its own matches."""


def parts_unmatched(fragments: list[Fragment], issues: IssueLog) -> list[Fragment]:
    """The fragments without the matches of their collectives, if several have some.

    Parameters
    ----------
    fragments
        Traces of the sources.
    issues
        Where it is noted, with the ranks that a source had moved.
    """
    stated = [f for f in fragments if _has_matches(f.trace)]
    if len(stated) < 2:  # noqa: PLR2004
        return fragments
    fits = (fit for f in stated for fit in f.trace.meta.clocks)
    moved = [
        f"{fit.of} by {fit.offset_ns / 1000:+,.3f} us"
        for fit in fits
        if fit.method == COLLECTIVE_ENDS and fit.applied
    ]
    issues.add(AGAIN, len(stated), f"moved: {', '.join(moved[:3])}" if moved else "")
    return [
        replace(f, trace=_unmatched(f.trace)) if _has_matches(f.trace) else f for f in fragments
    ]


def _has_matches(trace: Trace) -> bool:
    return bool(trace.nodes.num_rows) and "instance" in trace.nodes.column_names


def _unmatched(trace: Trace) -> Trace:
    meta = trace.meta
    kept = np.flatnonzero(trace.array("kind", "edges") != EdgeKind.COMM)
    return replace(
        trace,
        nodes=trace.nodes.drop_columns(["instance"]),
        edges=arrow.take(trace.edges, kept),
        meta=replace(
            meta,
            clocks=tuple(fit for fit in meta.clocks if fit.method != COLLECTIVE_ENDS),
            issues=tuple(issue for issue in meta.issues if issue.code not in _STALE),
        ),
    )
