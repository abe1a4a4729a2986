"""Lanes of the places of which analyses speak: one for each kind, and one on each rank concerned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters.perfetto.write import events_encode as encode
from chopper_interop.converters.perfetto.write.named_slices import NamedSlices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chopper_interop.schemas.meta import Mark
    from chopper_interop.trace import Trace

_OF_RANK = "finding"
"""Name of the lane on a rank; not that of the group, by which the UI finds the group."""
_MAX_RANKS = 8
"""Ranks that a mark is drawn on. Chosen: one that speaks of more speaks of the job."""


def mark_lanes(trace: Trace) -> Iterator[tuple[int, str, int, NamedSlices]]:
    """Yield rank (-1 for the job), name and row of each lane, and its slices.

    Marks of one lane that overlap go to several rows.
    """
    marks = sorted(trace.meta.marks, key=lambda m: (m.start_ns, -m.end_ns))
    lanes: dict[tuple[int, str], list[Mark]] = {}
    for mark in marks:
        lanes.setdefault((-1, mark.kind.replace("_", " ")), []).append(mark)
        for rank in ranks_of(mark, trace.ranks):
            lanes.setdefault((rank, _OF_RANK), []).append(mark)
    for (rank, name), own in lanes.items():
        start, end = (np.array([getattr(m, f) for m in own]) for f in ("start_ns", "end_ns"))
        row = encode.rows_without_overlap(start, end - start, 1)
        for k in range(row.max() + 1):
            rows = np.flatnonzero(row == k)
            yield rank, name, k, _slices([own[i] for i in rows.tolist()])


def ranks_of(mark: Mark, present: Sequence[int]) -> list[int]:
    """Return the ranks that a mark is drawn on: those that it names, unless these are many."""
    named = set()
    for part in filter(None, mark.ranks.split(",")):
        first, _, last = part.partition("-")
        if first.strip().isdigit() and (not last or last.strip().isdigit()):
            named |= {r for r in present if int(first) <= r <= int(last or first)}
    return sorted(named) if len(named) <= _MAX_RANKS else []


def _slices(marks: list[Mark]) -> NamedSlices:
    start, end = (np.array([getattr(m, f) for m in marks]) for f in ("start_ns", "end_ns"))
    names = [mark.text for mark in marks]
    arguments = [mark.details.encode() for mark in marks]
    return NamedSlices(start, end - start, np.arange(len(marks)), names, arguments)
