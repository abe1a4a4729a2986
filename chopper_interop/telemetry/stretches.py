"""Samples of several sources one after another: each for the time that no better one tells."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import intervals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.columns.intervals import Union
    from chopper_interop.telemetry.samples import Samples


def apart(sources: Iterable[Samples]) -> list[Samples | None]:
    """Cut samples to stretches of time that do not overlap.

    Parameters
    ----------
    sources
        Samples of one quantity by several sources, the best first.

    Returns
    -------
    list
        Of each source what it tells of the time of which none before it tells; None if nothing.
    """
    none = np.zeros(0, np.int64)
    taken = (none, none)
    found = []
    for samples in sources:
        part = _outside(samples, taken) if taken[0].size else samples
        found.append(part)
        if part is not None:
            known = np.flatnonzero(~part.unknown)
            start, end = part.ts[known], part.ts[known + 1]
            taken = intervals.union(*map(np.concatenate, ((taken[0], start), (taken[1], end))))
    return found


def _outside(samples: Samples, taken: Union) -> Samples | None:
    """What samples tell outside of intervals, with values where those begin and end."""
    start, end = taken
    own = samples.ts
    edges = np.concatenate(taken)
    ts = np.union1d(own, edges[(edges > own[0]) & (edges < own[-1])])
    at = np.searchsorted(own, ts, "right") - 1
    value = samples.value[at]
    if samples.is_straight:
        value = np.interp(ts - own[0], own - own[0], samples.value)
    last = np.searchsorted(start, ts, "right") - 1
    known = ~samples.unknown[at] & ((last < 0) | (ts >= end[last]))
    kept = known | np.append([False], known[:-1])
    if not kept.any():
        return None
    return replace(samples, ts=ts[kept], value=value[kept], unknown=~known[kept])
