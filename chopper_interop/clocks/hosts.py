"""Clocks of hosts: one correction for all ranks of a host, and for its telemetry with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, arrow
from chopper_interop.clocks import rank_fit
from chopper_interop.clocks.relations import COLLECTIVE_ENDS, rank_label
from chopper_interop.grouping import grouped
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.schemas.meta import ClockFit

REFERENCE = "it is the reference"

ONE_HOST_NS = 100_000
"""Ranks of one host read one clock. What profilers convert GPU times to it with differs by
microseconds, with CUPTI of 2023 by 61."""


def unify_hosts(fits: dict[int, ClockFit], trace: Trace) -> dict[int, ClockFit]:
    """Give all ranks of a host one correction if theirs agree within `ONE_HOST_NS`.

    Differences within a host are those of its GPUs' times. A rank that no collectives relate gets
    the correction of its host. The host of the reference is left as it is.

    Parameters
    ----------
    fits
        Correction of each rank.
    trace
        The job, of which the hosts of the ranks are read.
    """
    hosts = grouped((r.host, r.rank) for r in trace.meta.ranks if r.host and r.rank in fits)
    unified = dict(fits)
    for ranks in hosts.values():
        fitted = [fits[r] for r in ranks if fits[r].pairs]
        if len(ranks) < 2 or not fitted or any(fits[r].reason == REFERENCE for r in ranks):  # noqa: PLR2004
            continue
        pivot = np.array([fitted[0].pivot_ns])
        at_pivot = [int(corrections(pivot, fit)[0]) for fit in fitted]
        if max(at_pivot) - min(at_pivot) > ONE_HOST_NS:
            continue
        ascending = sorted(range(len(at_pivot)), key=at_pivot.__getitem__)
        middle = fitted[ascending[(len(ascending) - 1) // 2]]
        for r in ranks:
            uncertainty = max(middle.uncertainty_ns, fits[r].uncertainty_ns)
            unified[r] = replace(middle, of=rank_label(r), uncertainty_ns=uncertainty)
            if not fits[r].pairs:
                unified[r] = replace(unified[r], reason=middle.reason or "it is that of its host")
    return unified


def shift_with_host(telemetry: Trace, trace: Trace) -> Trace:
    """Shift telemetry of a host by the correction that the ranks of that host got.

    Parameters
    ----------
    telemetry
        Series of the ranks of one host, on its clock.
    trace
        The job, its ranks aligned.

    Returns
    -------
    Trace
        The telemetry, unchanged if it is not of one host or the ranks have no common correction.
    """
    host_of_rank = {r.rank: r.host for r in trace.meta.ranks}
    fit_of = {c.of: c for c in trace.meta.clocks if c.method == COLLECTIVE_ENDS}
    owners = {int(r) for r in np.unique(telemetry.array("rank", "series")) if r >= 0}
    hosts = {host_of_rank.get(r, "") for r in owners}
    ranks = [r for r, name in host_of_rank.items() if name in hosts]
    fits = [fit_of.get(rank_label(r)) for r in ranks]
    if len(hosts) != 1 or "" in hosts or not all(f is not None and f.applied for f in fits):
        return telemetry
    if telemetry.meta.clock != trace.meta.clock:
        return telemetry
    distinct = {(f.offset_ns, f.drift_ppb, f.pivot_ns) for f in fits if f is not None}
    if len(distinct) > 1:
        return telemetry
    origin = telemetry.meta.origin_ns
    ts = telemetry.array("ts", "samples") + origin
    moved = ts + rank_fit.corrections(ts, *distinct.pop()) - origin
    return replace(telemetry, samples=arrow.replace_column(telemetry.samples, "ts", moved))


def corrections(t: Array, fit: ClockFit) -> Array:
    """Nanoseconds to add to times of the rank or source that `fit` is of."""
    return rank_fit.corrections(t, fit.offset_ns, fit.drift_ppb, fit.pivot_ns)
