"""How many edges of each kind a trace has, those that follow from nesting and lanes too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.schemas.kinds import GPU_LANES, GPU_WORK, OBSERVED, EdgeKind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.trace import Trace


def edge_counts(trace: Trace) -> dict[EdgeKind, int]:
    """Number of edges by kind, without kinds of which there are none.

    `CALL` are all nodes that lie within another of their thread, `ORDER` those that follow another
    within the same, `STREAM` GPU work behind other work of its lane.
    """
    stored = np.bincount(trace.array("kind", "edges"), minlength=256)
    counts = {kind: int(stored[kind]) for kind in EdgeKind}
    lane, parent = trace.array("lane").astype(np.int64), trace.array("parent").astype(np.int64)
    lane_kind = trace.array("kind", "lanes")[lane] if len(lane) else lane
    thread = lane_kind == LaneKind.THREAD
    counts[EdgeKind.CALL] += int(np.count_nonzero(thread & (parent >= 0)))
    outermost = thread & (parent < 0)
    callers = np.zeros(len(lane) + 1, bool)
    callers[parent[thread]] = True
    begins = int(np.count_nonzero(callers[:-1])) + len(np.unique(lane[outermost]))
    counts[EdgeKind.ORDER] += int(np.count_nonzero(thread)) - begins
    works = np.isin(trace.array("kind"), [int(k) for k in GPU_WORK])
    works &= np.isin(lane_kind, [int(k) for k in GPU_LANES])
    counts[EdgeKind.STREAM] += int(np.count_nonzero(works)) - len(np.unique(lane[works]))
    return {kind: count for kind, count in counts.items() if count}


def described(trace: Trace) -> str:
    """One line: fixed edges by kind, then those that only the times of this run suggest."""
    counts = edge_counts(trace)
    parts = [
        ", ".join(
            f"{count:,} {kind.name.lower()}"
            for kind, count in counts.items()
            if (kind in OBSERVED) == observed
        )
        for observed in (False, True)
    ]
    told = zip(("fixed", "observed"), parts, strict=True)
    return "; ".join(f"{what}: {part}" for what, part in told if part) or "none"
