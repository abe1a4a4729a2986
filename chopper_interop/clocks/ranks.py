"""Alignment of ranks to one clock by the ends of collectives.

A synchronising collective ends at one time on all ranks: no member leaves before the last arrives.
The median difference of the ends on two ranks is the offset of their clocks, and the deviation from
it the uncertainty. Starts do not determine it (ranks arrive late by up to a second), nor do ends of
broadcasts and sends (the root leaves first). Ranks that share no group are related through others.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np

from chopper_interop import build, rank_batches
from chopper_interop.arrays import Array, arrow, spill
from chopper_interop.clocks import hosts as host_clocks
from chopper_interop.clocks import rank_fit, relations
from chopper_interop.clocks.hosts import ONE_HOST_NS, REFERENCE
from chopper_interop.clocks.rank_fit import MIN_PAIRS, Fit
from chopper_interop.clocks.relations import COLLECTIVE_ENDS, rank_label
from chopper_interop.edges import collectives
from chopper_interop.edges.collective_order import MAX_END_SCATTER_NS
from chopper_interop.grouping import grouped
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import POINT_TO_POINT, Collective
from chopper_interop.schemas.meta import BOOTTIME, REALTIME, ClockFit
from chopper_interop.trace import Trace

ALIGNED = Fault.info(
    "ranks-aligned",
    "Ranks whose clock differs were brought to the clock of the first one by the ends of their "
    "collectives. Durations are as they were.",
)
NOT_ALIGNED = Fault.info(
    "ranks-not-aligned",
    "Ranks whose clocks could not be compared by the ends of collectives keep the times that they "
    "recorded.",
)

_UNEVEN = (*POINT_TO_POINT, Collective.BROADCAST, Collective.REDUCE)
"""Communication in which members end at different times."""
_SET_BY_USER = "the user states this rank's clock"
_CONTRADICTED = "more communication would contradict its times than without it"
_MIN_SIGMAS = 3
"""A correction is applied from so many standard deviations of its own on. Chosen: below it does more harm
than good, as it moves times by the scatter of the ends from which it is estimated."""
_SIGMAS_OF_90_PERCENT = 1.645
"""90 % of normal deviations are within so many standard deviations."""


@dataclass(frozen=True)
class _Ends:
    """Ends of synchronising collectives, in order of communicator, rank and collective."""

    group: Array
    rank: Array
    instance: Array
    end: Array

    def rows_by_group(self) -> dict[int, dict[int, Array]]:
        """Communicator → rank → rows, of which each rank's are contiguous in the columns."""
        groups: dict[int, dict[int, Array]] = {}
        if not len(self.rank):
            return groups
        changes = np.flatnonzero((np.diff(self.group) != 0) | (np.diff(self.rank) != 0)) + 1
        for rows in np.split(np.arange(len(self.rank)), changes):
            groups.setdefault(int(self.group[rows[0]]), {})[int(self.rank[rows[0]])] = rows
        return groups


def align_ranks(trace: Trace, issues: IssueLog) -> Trace:
    """Bring all ranks to the clock of the first, with the relation of each in `meta.clocks`.

    Parameters
    ----------
    trace
        All ranks of a job, at least two, its collectives matched.
    issues
        Gets the ranks that were moved, and those that could not be compared.
    """
    done = any(c.method == COLLECTIVE_ENDS for c in trace.meta.clocks)
    if done or trace.meta.clock not in (REALTIME, BOOTTIME):
        return trace
    ends = _ends(trace)
    if ends is None:
        row = rank_batches.known_rows(trace, "collective")
        ranks = np.unique(trace.array("rank")[row[trace.is_text("collective", _UNEVEN, row)]])
        if len(ranks) > 1:
            issues.add(NOT_ALIGNED, len(ranks), "sends, receives and broadcasts end at other times")
        return trace
    fits = host_clocks.unify_hosts(_relate_ranks(trace, ends), trace)
    set_by_user = relations.ranks_set_by_user(trace.meta) & set(fits)
    fits |= {r: replace(fits[r], applied=False, reason=_SET_BY_USER) for r in set_by_user}
    fits = _without_contradictions(trace, fits)
    moved = [f for f in fits.values() if f.applied]
    refused = [f for f in fits.values() if not (f.applied or f.pairs or f.reason == REFERENCE)]
    if moved:
        largest = max(moved, key=lambda f: abs(f.offset_ns))
        issues.add(ALIGNED, len(moved), _correction_text(largest))
    if refused:
        issues.add(NOT_ALIGNED, len(refused), f"{refused[0].of}: {refused[0].reason}")
    trace = _shifted(trace, fits) if moved else trace
    return _with_fits(trace, fits)


def _without_contradictions(trace: Trace, fits: dict[int, ClockFit]) -> dict[int, ClockFit]:
    """Refuse corrections by which a rank would lose edges: they contradict more than they explain."""
    fits = dict(fits)
    trace = _members(trace)
    before = collectives.connected_members(_with_fits(trace, fits))
    while any(fit.applied for fit in fits.values()):
        after = collectives.connected_members(_shifted(_with_fits(trace, fits), fits))
        lost = [r for r, f in fits.items() if f.applied and after.get(r, 0) < before.get(r, 0)]
        if not lost:
            break
        fits |= {r: replace(fits[r], applied=False, reason=_CONTRADICTED) for r in lost}
    return fits


def _members(trace: Trace) -> Trace:
    """The members of communication alone: few of the nodes."""
    nodes = rank_batches.nodes_at(trace, collectives.member_rows(trace))
    nodes = arrow.replace_column(nodes, "parent", np.full(nodes.num_rows, -1, np.int32))
    none = {name: getattr(trace, name).slice(0, 0) for name in ("edges", "counters", "samples")}
    return replace(trace, nodes=nodes, **none)


def _with_fits(trace: Trace, fits: dict[int, ClockFit]) -> Trace:
    return trace.with_meta(clocks=(*trace.meta.clocks, *(fits[r] for r in sorted(fits))))


def _correction_text(fit: ClockFit) -> str:
    drift = f", drift {fit.drift_ppb / 1000:+.3f} ppm" if fit.drift_ppb else ""
    return (
        f"{fit.of} by {fit.offset_ns / 1000:+,.3f} us{drift}, ± {fit.uncertainty_ns / 1000:,.3f} us, "
        f"{fit.pairs} collectives"
    )


def _ends(trace: Trace) -> _Ends | None:
    """Ends of matched synchronising collectives; None if there are no collectives."""
    if not trace.has("instance"):
        return None
    row = rank_batches.known_rows(trace, "collective")
    row = row[trace.is_text("collective", collectives.SYNCHRONIZING, row)]
    if not row.size:
        return None
    instance = trace.integers("instance", row)
    row, instance = row[instance >= 0], instance[instance >= 0]
    rank = trace.array("rank")[row].astype(np.int64)
    group = collectives.communicator_numbers(trace, trace.integers("group", row), rank)
    order = np.lexsort((instance, rank, group))
    end = trace.array("ts")[row] + trace.array("dur")[row]
    return _Ends(group[order], rank[order], instance[order], end[order])


def _relate_ranks(trace: Trace, ends: _Ends) -> dict[int, ClockFit]:
    """Relate each rank to the reference, through the least uncertain chain of groups."""
    groups = ends.rows_by_group()
    origin, clock = trace.meta.origin_ns, trace.meta.clock
    free = set(np.unique(ends.rank).tolist()) - relations.ranks_set_by_user(trace.meta)
    start = min(free or set(trace.ranks))
    hosts = {r.rank: r.host for r in trace.meta.ranks}
    outcomes = _fits_through_groups(groups, ends, start, hosts)
    fits = {start: ClockFit(rank_label(start), clock, COLLECTIVE_ENDS, 0, 0, origin, applied=False)}
    fits[start] = replace(fits[start], reason=REFERENCE)
    for rank in trace.ranks:
        if rank == start:
            continue
        outcome = outcomes.get(rank, f"no collectives relate it to rank {start}")
        if isinstance(outcome, str):
            fits[rank] = ClockFit(
                rank_label(rank), clock, COLLECTIVE_ENDS, applied=False, reason=outcome
            )
            continue
        fit, variance = outcome
        reason = _reason_not_applied(fit, variance, same_host=_on_one_host(hosts, start, rank))
        fits[rank] = ClockFit(
            of=rank_label(rank),
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


def _on_one_host(hosts: dict[int, str], a: int, b: int) -> bool:
    """True if two ranks are known to be of one host."""
    return bool(hosts.get(a)) and hosts.get(a) == hosts.get(b)


def _reason_not_applied(fit: Fit, variance: float, *, same_host: bool) -> str:
    """Reason not to apply a correction of this variance; empty if it is to be applied."""
    if not fit.is_needed:
        return f"it is within the residual of the ends, {fit.residual_ns / 1000:,.3f} us"
    sigma = variance**0.5
    if fit.typical_ns < _MIN_SIGMAS * sigma:
        return (
            f"it is {fit.typical_ns / sigma:.1f} of its standard deviations, {sigma / 1000:,.3f} us"
        )
    if same_host and fit.largest_ns <= ONE_HOST_NS:
        return (
            f"one host has one clock; {fit.largest_ns / 1000:,.3f} us are of how times of its GPUs "
            "were brought to it"
        )
    return ""


def _fits_through_groups(
    groups: dict[int, dict[int, Array]], ends: _Ends, start: int, hosts: dict[int, str]
) -> dict[int, tuple[Fit, float] | str]:
    """Fit of each rank with its variance, or the reason why there is none.

    Dijkstra's algorithm: ranks are settled in order of the variance summed along the chain to the
    reference. A group is opened by the first of its ranks that is settled, and fits all others to
    that one, so that each end is looked at once.
    """
    end = ends.end.copy()  # of settled ranks: corrected already
    groups_of = grouped((rank, group) for group, ranks in groups.items() for rank in ranks)
    outcomes: dict[int, tuple[Fit, float] | str] = {}
    closed = set(groups)
    settled: set[int] = set()
    heap: list[tuple[float, int, int, Fit]] = [(0.0, start, 0, rank_fit.IDENTITY)]
    pushed = 0  # orders chains of equal variance, as fits cannot be compared
    while heap:
        variance, rank, _, fit = heapq.heappop(heap)
        if rank in settled:
            continue
        settled.add(rank)
        if rank != start:
            outcomes[rank] = fit, variance
            same_host = _on_one_host(hosts, start, rank)
            if not _reason_not_applied(fit, variance, same_host=same_host):
                for group in groups_of[rank]:
                    rows = groups[group][rank]
                    end[rows] += rank_fit.corrections(
                        end[rows], fit.offset_ns, fit.drift_ppb, fit.pivot_ns
                    )
        opened = [g for g in groups_of.get(rank, []) if g in closed]
        closed -= set(opened)
        others = sorted({r for g in opened for r in groups[g]} - settled)
        for other in others:
            rows_of_both = [
                (groups[g][rank], groups[g][other]) for g in opened if other in groups[g]
            ]
            outcome = _fit_ends(rows_of_both, ends, end)
            if isinstance(outcome, Fit):
                sigma = max(outcome.sigma_ns, outcome.widest_ns / _SIGMAS_OF_90_PERCENT)
                pushed += 1
                heapq.heappush(heap, (variance + sigma**2, other, pushed, outcome))
            else:
                outcomes.setdefault(other, f"{outcome} (with rank {rank})")
    return outcomes


def _fit_ends(rows_of_both: list[tuple[Array, Array]], ends: _Ends, end: Array) -> Fit | str:
    """Fit the second rank's ends to the first's, or give the reason why they do not match."""
    reference_ends, other_ends = [], []
    for reference, other in rows_of_both:
        _, i, j = np.intersect1d(
            ends.instance[reference], ends.instance[other], assume_unique=True, return_indices=True
        )
        reference_ends.append(end[reference[i]])
        other_ends.append(end[other[j]])
    first, second = np.concatenate(reference_ends), np.concatenate(other_ends)
    if len(first) < MIN_PAIRS:
        return f"{len(first)} synchronising collectives are matched, {MIN_PAIRS} are needed"
    fit = rank_fit.fit_clock(second, first)
    if fit.sigma_ns > MAX_END_SCATTER_NS:
        return (
            f"ends of {fit.pairs} matched collectives differ by ± {fit.sigma_ns / 1e6:,.3f} ms, more "
            f"than {MAX_END_SCATTER_NS / 1e6:g} ms: they are not the same ones"
        )
    return fit


def _shifted(trace: Trace, fits: dict[int, ClockFit]) -> Trace:
    """Apply fits to the starts of ranks, and to the samples of their series."""
    origin = trace.meta.origin_ns
    tables = {name: getattr(trace, name) for name in hub.TABLES}
    ts = spill.empty(trace.nodes.num_rows, np.int64)
    sample_ts = trace.array("ts", "samples") + origin
    owner = trace.array("rank", "series")[trace.array("series", "samples")]
    for rank, rows in trace.rank_rows.items():
        ts[rows] = trace.array("ts")[rows] + origin
        fit = fits.get(rank)
        if fit is not None and fit.applied:
            ts[rows] += host_clocks.corrections(ts[rows], fit)
    for rank, fit in fits.items():
        if fit.applied:
            of_rank = owner == rank
            sample_ts[of_rank] += host_clocks.corrections(sample_ts[of_rank], fit)
    tables["nodes"] = arrow.replace_column(trace.nodes, "ts", ts)
    tables["samples"] = arrow.replace_column(trace.samples, "ts", sample_ts)
    return build.reordered(tables, trace.meta, trace.text)
