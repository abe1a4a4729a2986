"""Ranks that are planned at once.

A call of numpy takes a microsecond or some for ten nodes as for a thousand, and a plan takes some thousand of them. Ranks
are put together that have nothing to do with each other in the model of one rank: most, as what they exchange with
recorded ranks becomes communication of simulators and no dependency.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.tables import merged_rows
from chopper_interop.timing import unrecorded
from chopper_interop.trace import Trace

_NODES = 1 << 14
"""Nodes of a trace that are planned at once, unless a rank has more. Chosen: what a call costs is some percent of what it
does for so many, and their plan takes ten megabytes."""
_NAMES = 1 << 20
"""Ranks times names of the trace, of which the model keeps tables. Chosen: some megabytes."""


def batches(trace: Trace) -> list[slice]:
    """Rows of the ranks of each batch."""
    ranks = list(trace.rank_rows.values())
    if len(merged_rows(ranks, _NODES)) == len(ranks):
        return ranks
    most, alone = max(_NAMES // max(len(trace.names()), 1), 1), _are_alone(trace)
    spans: list[slice] = []
    count, joinable = 0, False  # of the last batch
    for rows, is_alone in zip(ranks, alone.tolist(), strict=True):
        fits = joinable and count < most and rows.stop - spans[-1].start <= _NODES
        if fits and not is_alone:
            spans[-1], count = slice(spans[-1].start, rows.stop), count + 1
        else:
            spans.append(rows)
            count, joinable = 1, not is_alone
    return spans


def _are_alone(trace: Trace) -> Array:
    """Mask of the ranks whose messages are more than communication: with themselves, or with ranks that do not record.

    Relays are between these ranks and the others of such messages.
    """
    rank = trace.array("rank")
    src, dst, kind = (trace.array(name, "edges") for name in ("src", "dst", "kind"))
    among = np.flatnonzero(kind == EdgeKind.COMM)
    within = rank[src[among]] == rank[dst[among]]
    unpaired = unrecorded.unpaired_rows(trace)
    peers = trace.integers("peer", unpaired)
    alone = np.concatenate([rank[src[among][within]], rank[unpaired], peers])
    return np.isin(trace.ranks, alone)
