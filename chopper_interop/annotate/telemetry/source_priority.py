"""Samples of several sources by priority: each counts for the time that no better one covers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import intervals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.annotate.telemetry.samples import Samples
    from chopper_interop.arrays.intervals import Intervals


def without_overlap(sources: Iterable[Samples]) -> list[Samples | None]:
    """Cut samples to intervals of time that do not overlap.

    Parameters
    ----------
    sources
        Samples of one quantity by several sources, the best first.

    Returns
    -------
    list
        For each source its samples of the time that no source before it covers; None if there
        are none.
    """
    empty = np.zeros(0, np.int64)
    covered = (empty, empty)
    parts = []
    for samples in sources:
        part = _outside(samples, covered) if covered[0].size else samples
        parts.append(part)
        if part is not None:
            known = np.flatnonzero(~part.unknown)
            start, end = part.ts[known], part.ts[known + 1]
            starts, ends = (covered[0], start), (covered[1], end)
            covered = intervals.union(np.concatenate(starts), np.concatenate(ends))
    return parts


def _outside(samples: Samples, covered: Intervals) -> Samples | None:
    """Samples outside of intervals, with additional ones where those begin and end."""
    start, end = covered
    sampled = samples.ts
    edges = np.concatenate(covered)
    ts = np.union1d(sampled, edges[(edges > sampled[0]) & (edges < sampled[-1])])
    index = np.searchsorted(sampled, ts, "right") - 1
    value = samples.value[index]
    if samples.is_linear:
        value = np.interp(ts - sampled[0], sampled - sampled[0], samples.value)
    # the interval that began last before each time covers it unless it has ended by then
    last = np.searchsorted(start, ts, "right") - 1
    known = ~samples.unknown[index] & ((last < 0) | (ts >= end[last]))
    selected = known | np.append([False], known[:-1])
    if not selected.any():
        return None
    return replace(samples, ts=ts[selected], value=value[selected], unknown=~known[selected])
