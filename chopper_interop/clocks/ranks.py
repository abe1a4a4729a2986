"""Ranks on one clock, by the ends of collectives: no member leaves before the last has come.

Of two ranks the median difference of ends is the offset of their clocks, and what deviates from it
its uncertainty. Starts tell nothing (ranks come late by up to a second), nor do ends of broadcasts
and sends (the root leaves first). Ranks that share no group are related through others.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import build
from chopper_interop.clocks import hosts as host_clocks
from chopper_interop.clocks import rank_fit, relations
from chopper_interop.clocks.hosts import ONE_HOST_NS, REFERENCE
from chopper_interop.clocks.rank_fit import FEWEST, Fit
from chopper_interop.clocks.relations import COLLECTIVE_ENDS, of_rank
from chopper_interop.columns import arrow
from chopper_interop.edges import collectives
from chopper_interop.edges.collective_order import SCATTER_NS
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas import hub
from chopper_interop.schemas.meta import BOOTTIME, REALTIME, ClockFit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

ALIGNED = Fault(
    "ranks-aligned",
    Severity.INFO,
    "Ranks whose clock differs were brought to the clock of the first one by the ends of their "
    "collectives. Durations are as they were.",
)
NOT_ALIGNED = Fault(
    "ranks-not-aligned",
    Severity.INFO,
    "Ranks whose clocks could not be compared by the ends of collectives stand where they say they "
    "were.",
)


TOLD = "the user tells of this rank's clock"


@dataclass(frozen=True)
class _Ends:
    """Ends of synchronising collectives, in order of communicator, rank and collective."""

    group: Array
    rank: Array
    instance: Array
    end: Array

    def parts(self) -> dict[int, dict[int, Array]]:
        """Communicator → rank → rows."""
        found: dict[int, dict[int, Array]] = {}
        if not len(self.rank):
            return found
        new = np.flatnonzero((np.diff(self.group) != 0) | (np.diff(self.rank) != 0)) + 1
        for rows in np.split(np.arange(len(self.rank)), new):
            found.setdefault(int(self.group[rows[0]]), {})[int(self.rank[rows[0]])] = rows
        return found


def aligned(trace: Trace, issues: IssueLog) -> Trace:
    """The trace with its ranks on the clock of the first; `meta.clocks` tells of each.

    Parameters
    ----------
    trace
        All ranks of a job, its collectives matched.
    issues
        Where it is noted what was moved, and what could not be compared.
    """
    done = any(c.method == COLLECTIVE_ENDS for c in trace.meta.clocks)
    if done or trace.meta.clock not in (REALTIME, BOOTTIME) or len(trace.ranks) < 2:  # noqa: PLR2004
        return trace
    ends = _ends(trace)
    if ends is None:
        return trace
    fits = host_clocks.agreed(_solved(trace, ends), trace)
    told = relations.told_by_user(trace.meta)
    fits |= {r: replace(fits[r], applied=False, reason=TOLD) for r in told & set(fits)}
    moved = [f for f in fits.values() if f.applied]
    refused = [f for f in fits.values() if not (f.applied or f.pairs or f.reason == REFERENCE)]
    if moved:
        most = max(moved, key=lambda f: abs(f.offset_ns))
        issues.add(ALIGNED, len(moved), _text(most))
    if refused:
        issues.add(NOT_ALIGNED, len(refused), f"{refused[0].of}: {refused[0].reason}")
    trace = _moved(trace, fits) if moved else trace
    return trace.with_meta(clocks=(*trace.meta.clocks, *(fits[r] for r in sorted(fits))))


def _text(fit: ClockFit) -> str:
    drift = f", drift {fit.drift_ppb / 1000:+.3f} ppm" if fit.drift_ppb else ""
    return (
        f"{fit.of} by {fit.offset_ns / 1000:+,.3f} us{drift}, ± {fit.uncertainty_ns / 1000:,.3f} us, "
        f"{fit.pairs} collectives"
    )


def _ends(trace: Trace) -> _Ends | None:
    """Ends of the collectives that are matched and synchronise; None if nothing communicates."""
    if not {"instance", "collective"} <= set(trace.nodes.column_names):
        return None
    names = arrow.flat(trace.nodes["collective"]).dictionary.to_pylist()
    chosen = np.array([name in collectives.TOGETHER for name in names] + [False])
    row = np.flatnonzero(chosen[arrow.numbers(trace.nodes["collective"], -1)])
    if not row.size:
        return None
    instance = collectives.numbers(trace, "instance", row)
    row, instance = row[instance >= 0], instance[instance >= 0]
    rank = trace.array("rank")[row].astype(np.int64)
    group = collectives.communicators(trace, collectives.numbers(trace, "group", row), rank)
    order = np.lexsort((instance, rank, group))
    end = (trace.array("ts") + trace.array("dur"))[row]
    return _Ends(group[order], rank[order], instance[order], end[order])


def _solved(trace: Trace, ends: _Ends) -> dict[int, ClockFit]:
    """Of each rank how it relates to the reference, through the least uncertain chain of groups."""
    parts = ends.parts()
    origin, clock = trace.meta.origin_ns, trace.meta.clock
    free = set(np.unique(ends.rank).tolist()) - relations.told_by_user(trace.meta)
    start = min(free or set(trace.ranks))
    hosts = {r.rank: r.host for r in trace.meta.ranks}
    found = _through_groups(parts, ends, start, hosts)
    fits = {start: ClockFit(of_rank(start), clock, COLLECTIVE_ENDS, 0, 0, origin, applied=False)}
    fits[start] = replace(fits[start], reason=REFERENCE)
    for rank in trace.ranks:
        if rank == start:
            continue
        outcome = found.get(rank, f"no collectives relate it to rank {start}")
        if isinstance(outcome, str):
            fits[rank] = ClockFit(
                of_rank(rank), clock, COLLECTIVE_ENDS, applied=False, reason=outcome
            )
            continue
        fit, variance = outcome
        reason = _needless(fit, same_host=_share(hosts, start, rank))
        fits[rank] = ClockFit(
            of=of_rank(rank),
            clock=clock,
            method=COLLECTIVE_ENDS,
            offset_ns=fit.offset_ns,
            drift_ppb=fit.drift_ppb,
            pivot_ns=fit.pivot_ns + origin,
            uncertainty_ns=round(variance**0.5),
            pairs=fit.pairs,
            applied=not reason,
            reason=reason,
        )
    return fits


def _share(hosts: dict[int, str], one: int, other: int) -> bool:
    """Whether two ranks are known to be of one host."""
    return bool(hosts.get(one)) and hosts.get(one) == hosts.get(other)


def _needless(fit: Fit, *, same_host: bool) -> str:
    """Why a correction is none; empty if it is one."""
    if not fit.is_needed:
        return f"it is within the residual of the ends, {fit.residual_ns / 1000:,.3f} us"
    if same_host and fit.largest_ns <= ONE_HOST_NS:
        return (
            f"one host has one clock; {fit.largest_ns / 1000:,.3f} us are of how times of its GPUs "
            "were brought to it"
        )
    return ""


def _through_groups(
    parts: dict[int, dict[int, Array]], ends: _Ends, start: int, hosts: dict[int, str]
) -> dict[int, tuple[Fit, float] | str]:
    """For each rank its fit and that's variance, or why there is none.

    Ranks are settled in order of variance, as in Dijkstra's paths. A group is opened by the first
    of its ranks that is settled, so that each end is looked at once.
    """
    end = ends.end.copy()  # of settled ranks as they will stand
    groups_of: dict[int, list[int]] = {}
    for group, ranks in parts.items():
        for rank in ranks:
            groups_of.setdefault(rank, []).append(group)
    found: dict[int, tuple[Fit, float] | str] = {}
    closed = set(parts)
    settled: set[int] = set()
    heap: list[tuple[float, int, int, Fit]] = [(0.0, start, 0, rank_fit.NONE)]
    pushed = 0  # tells ways apart that are as good
    while heap:
        variance, rank, _, fit = heapq.heappop(heap)
        if rank in settled:
            continue
        settled.add(rank)
        if rank != start:
            found[rank] = fit, variance
            if not _needless(fit, same_host=_share(hosts, start, rank)):
                for group in groups_of[rank]:
                    rows = parts[group][rank]
                    end[rows] += rank_fit.shifts(
                        end[rows], fit.offset_ns, fit.drift_ppb, fit.pivot_ns
                    )
        opened = [g for g in groups_of.get(rank, []) if g in closed]
        closed -= set(opened)
        others = sorted({r for g in opened for r in parts[g]} - settled)
        for other in others:
            shared = [g for g in opened if other in parts[g]]
            outcome = _compared([(parts[g][rank], parts[g][other]) for g in shared], ends, end)
            if isinstance(outcome, Fit):
                away = max(outcome.sigma_ns, outcome.widest_ns / 1.645)
                pushed += 1
                heapq.heappush(heap, (variance + away**2, other, pushed, outcome))
            else:
                found.setdefault(other, f"{outcome} (with rank {rank})")
    return found


def _compared(pairs: list[tuple[Array, Array]], ends: _Ends, end: Array) -> Fit | str:
    """How the second rank's ends relate to the first's, or why that cannot be told."""
    mine, theirs = [], []
    for one, other in pairs:
        _, i, j = np.intersect1d(
            ends.instance[one], ends.instance[other], assume_unique=True, return_indices=True
        )
        mine.append(end[one[i]])
        theirs.append(end[other[j]])
    first, second = np.concatenate(mine), np.concatenate(theirs)
    if len(first) < FEWEST:
        return f"{len(first)} synchronising collectives are matched, {FEWEST} are needed"
    fit = rank_fit.fit(second, first)
    if fit.sigma_ns > SCATTER_NS:
        return (
            f"ends of {fit.pairs} matched collectives differ by ± {fit.sigma_ns / 1e6:,.3f} ms, more "
            f"than {SCATTER_NS / 1e6:g} ms: they are not the same ones"
        )
    return fit


def _moved(trace: Trace, fits: dict[int, ClockFit]) -> Trace:
    """The trace with the starts of ranks, and what their own files sampled, on the trace's clock."""
    origin = trace.meta.origin_ns
    tables = {name: getattr(trace, name) for name in hub.TABLES}
    ts = trace.array("ts") + origin
    sampled = trace.array("ts", "samples") + origin
    owner = trace.array("rank", "series")[trace.array("series", "samples")]
    for rank, fit in fits.items():
        if fit.applied:
            rows = trace.rank_rows[rank]
            ts[rows] += host_clocks.shifts(ts[rows], fit)
            mine = owner == rank
            sampled[mine] += host_clocks.shifts(sampled[mine], fit)
    tables["nodes"] = arrow.replaced(trace.nodes, "ts", ts)
    tables["samples"] = arrow.replaced(trace.samples, "ts", sampled)
    return build.reordered(tables, trace.meta, trace.text)
