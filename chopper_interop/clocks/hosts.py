"""Clocks of hosts: what the ranks of one have in common, and its telemetry with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.clocks import rank_fit
from chopper_interop.clocks.relations import COLLECTIVE_ENDS, of_rank
from chopper_interop.columns import arrow

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.schemas.meta import ClockFit
    from chopper_interop.trace import Trace

REFERENCE = "it is the reference"

ONE_HOST_NS = 100_000
"""Ranks of one host read one clock. How their GPUs' times were brought to it differs by
microseconds, with CUPTI of 2023 by 61."""


def agreed(fits: dict[int, ClockFit], trace: Trace) -> dict[int, ClockFit]:
    """Relations of ranks, one for all ranks of a host that is not the reference's, if they agree.

    What they differ by is of their GPUs. A rank that no collectives relate has its host's.
    """
    hosts: dict[str, list[int]] = {}
    for known in trace.meta.ranks:
        if known.host and known.rank in fits:
            hosts.setdefault(known.host, []).append(known.rank)
    made = dict(fits)
    for ranks in hosts.values():
        told = [fits[r] for r in ranks if fits[r].pairs]
        if len(ranks) < 2 or not told or any(fits[r].reason == REFERENCE for r in ranks):  # noqa: PLR2004
            continue
        pivot = np.array([told[0].pivot_ns])
        at = [int(shifts(pivot, f)[0]) for f in told]
        if max(at) - min(at) > ONE_HOST_NS:
            continue
        middle = told[sorted(range(len(at)), key=at.__getitem__)[(len(at) - 1) // 2]]
        for r in ranks:
            own = fits[r].uncertainty_ns
            uncertainty = max(middle.uncertainty_ns, own)
            made[r] = replace(middle, of=of_rank(r), uncertainty_ns=uncertainty)
            if not fits[r].pairs:
                made[r] = replace(made[r], reason=middle.reason or "it is that of its host")
    return made


def of_host(telemetry: Trace, trace: Trace) -> Trace:
    """Telemetry of a host, on the trace's clock as the ranks of that host were brought to it.

    Parameters
    ----------
    telemetry
        Series of the ranks of one host, on its clock.
    trace
        The job, its ranks aligned.
    """
    host = {r.rank: r.host for r in trace.meta.ranks}
    fits = {c.of: c for c in trace.meta.clocks if c.method == COLLECTIVE_ENDS}
    owners = {int(r) for r in np.unique(telemetry.array("rank", "series")) if r >= 0}
    hosts = {host.get(r, "") for r in owners}
    ranks = [r for r, name in host.items() if name in hosts]
    found = [fits.get(of_rank(r)) for r in ranks]
    if len(hosts) != 1 or "" in hosts or not all(f is not None and f.applied for f in found):
        return telemetry
    if telemetry.meta.clock != trace.meta.clock:
        return telemetry
    alike = {(f.offset_ns, f.drift_ppb, f.pivot_ns) for f in found if f is not None}
    if len(alike) > 1:
        return telemetry
    origin = telemetry.meta.origin_ns
    ts = telemetry.array("ts", "samples") + origin
    moved = ts + rank_fit.shifts(ts, *alike.pop()) - origin
    return replace(telemetry, samples=arrow.replaced(telemetry.samples, "ts", moved))


def shifts(t: Array, fit: ClockFit) -> Array:
    """Nanoseconds to add to times of what `fit` is of."""
    return rank_fit.shifts(t, fit.offset_ns, fit.drift_ppb, fit.pivot_ns)
