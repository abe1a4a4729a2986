"""A run that two tools recorded at once: rocprof on the clock since boot and PyTorch's profiler.

Work that both recorded becomes one node: that of the profile on the trace's clock, with the counters
and arguments that the other tool has for it. Host calls that only the other tool records (HSA's,
ROCTX ranges) are added on lanes of their own. What it recorded outside the time of the profile is
counted and left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.annotate.counters import join_passes
from chopper_interop.arrays import Array, arrow
from chopper_interop.arrays.statistics import MAD_TO_SIGMA
from chopper_interop.clocks import relations
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.joining import host_et
from chopper_interop.joining.process_match import ProcessMatch, match_processes, work_rows
from chopper_interop.joining.source_clocks import NOT_CLOCKS, SourceClocks, related_fit
from chopper_interop.schemas.kinds import LaneKind
from chopper_interop.schemas.meta import ASSUMED, REALTIME, ClockFit, Device, DeviceMatch, Rank
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.clocks.match import Match
    from chopper_interop.joining.fragment import Fragment

BY_KERNELS = "the same kernels"
_ANOTHER_RUN = "its kernels do not match those of the trace: it was treated as another run"
NO_COUNTERS = "it has no counters, and its kernels did not run at the times of any of the profile's"
SAME_KERNELS = Fault.info_of_events(
    "same-kernels-twice",
    "GPU work that two tools recorded in one run was merged, with the counters and arguments of "
    "both.",
)
SAME_CALLS = Fault.info_of_events(
    "same-calls-twice",
    "Host calls by names that the profile records as well were kept once, as the profile has them.",
)
OUTSIDE = Fault.loss_of_events(
    "outside-profile",
    "Events of another tool from before or after the time of the profile of the same process were "
    "left out.",
)
ONLY_THERE = Fault.loss_of_events(
    "work-only-in-other-tool",
    "GPU work that one tool recorded within the time of the profile, and the profile did not, was "
    "left out.",
)
_UNKNOWN_DEVICE = -1


@dataclass
class JoinedRun:
    """Profiles of a run, after recordings of the same run were joined to them.

    Parameters
    ----------
    timing
        Profiles whose times become those of the trace.
    passes
        Counter passes, and what did no GPU work.
    others
        Other runs, which add nothing to the profiles.
    fits
        Relations of clocks.
    matches
        Devices of one tool matched with those of another.
    nodes_kept
        First file of each source that was joined → number of its nodes in the trace.
    hardware
        Devices as joined sources describe them, and their numbers → the profiles'.
    """

    timing: list[Fragment]
    passes: list[Fragment] = field(default_factory=list)
    others: list[Fragment] = field(default_factory=list)
    fits: list[ClockFit] = field(default_factory=list)
    matches: list[DeviceMatch] = field(default_factory=list)
    nodes_kept: dict[str, int] = field(default_factory=dict)
    hardware: list[tuple[tuple[Device, ...], dict[int, int]]] = field(default_factory=list)


def join_same_run(
    timing: list[Fragment], passes: list[Fragment], clocks: SourceClocks, issues: IssueLog
) -> JoinedRun:
    """Join what other tools recorded of the run, or of other ranks on one clock with it.

    Parameters
    ----------
    timing
        Profiles on the trace's clock.
    passes
        Others: of the same run, of ranks that are not among these, or of other runs.
    clocks
        Relations of the sources' clocks.
    issues
        Gets the numbers of events that were merged, or left out.
    """
    run = JoinedRun(list(timing))
    if not any(f.trace.meta.clock == REALTIME for f in timing):
        return replace(run, passes=passes)
    of_passes = match_processes(passes, timing, clocks.user_fits, issues)
    for fragment, matches in zip(passes, of_passes, strict=True):
        if matches:
            _join(fragment, matches, run, clocks, issues)
        elif fragment.trace.meta.clock in (REALTIME, *NOT_CLOCKS):
            _add_pass(fragment, run)
        else:
            _add_as_ranks_or_pass(fragment, run, clocks)
    return run


def _add_as_ranks_or_pass(fragment: Fragment, run: JoinedRun, clocks: SourceClocks) -> None:
    """Add a fragment as a profile of other ranks if its clock is known, else as a pass."""
    path = fragment.path
    fit = clocks.user_fits.get(path)
    relation = clocks.relation(fragment)
    ranks = fragment.trace.meta.ranks
    profiled = {r for f in run.timing for r in f.trace.ranks}
    are_others = all(r.known_by != ASSUMED and r.rank not in profiled for r in ranks)
    if fit is None and relation is not None:
        fit = related_fit(str(path), relation)
        offset_ns = fit.offset_ns
    else:
        offset_ns = 0  # the user's is applied already
    if fit is None or fragment.has_counters or not ranks or not are_others:
        _add_pass(fragment, run)
        if path in clocks.user_fits:
            run.fits.append(replace(clocks.user_fits[path], applied=False, reason=_ANOTHER_RUN))
        return
    trace = relations.shift_trace(fragment.trace, offset_ns, REALTIME)
    run.timing.append(replace(fragment, trace=trace))
    run.fits.append(fit)
    run.nodes_kept[str(path)] = trace.nodes.num_rows


def _add_pass(fragment: Fragment, run: JoinedRun) -> None:
    """Add a fragment of another run: GPU work without counters is no counter pass."""
    works = any(work_rows(fragment.trace, rank).size for rank in fragment.trace.ranks)
    (run.others if works and not fragment.has_counters else run.passes).append(fragment)


def _join(
    fragment: Fragment,
    matches: list[ProcessMatch],
    run: JoinedRun,
    clocks: SourceClocks,
    issues: IssueLog,
) -> None:
    """Add a fragment's data of matched work to profiles, and the rest as a fragment of its own."""
    path = fragment.path
    log = IssueLog(str(path))
    best = max(matches, key=lambda m: m.match.pairs)
    fit = _clock_fit(fragment, best.match, clocks)
    target = np.full(fragment.trace.nodes.num_rows, -1, np.int64)
    for m in matches:
        profile = run.timing[m.profile]
        at, to = m.rows[m.match.other_rows], m.profile_rows[m.match.reference_rows]
        target[at] = to
        trace = _with_arguments_and_counters(profile.trace, to, fragment.trace, at, log)
        run.timing[m.profile] = replace(profile, trace=trace)
        run.matches += _device_matches(fragment, profile, at, to, m.profile_rank)
    log.add(SAME_KERNELS, np.count_nonzero(target >= 0))
    moved = relations.apply_fit(fragment.trace, _unapplied_part(fit, fragment, clocks), REALTIME)
    keep = _rows_to_keep(moved, matches, run, target >= 0, log)
    ranks = {m.rank: run.timing[m.profile].rank_of(m.profile_rank) for m in matches}
    rest = renumbered(moved, keep, ranks, fragment.files.converter.name)
    if rest.nodes.num_rows or rest.samples.num_rows:
        run.timing.append(replace(fragment, trace=rest))
    run.fits.append(fit)
    run.nodes_kept[str(path)] = rest.nodes.num_rows
    mapping = {m.number: m.device for m in run.matches if m.source == str(path)}
    run.hardware.append((fragment.trace.meta.devices, mapping))
    issues.extend(log)


def _clock_fit(fragment: Fragment, match: Match, clocks: SourceClocks) -> ClockFit:
    """Relation of the fragment's clock to the trace's: as the user states, else by kernels."""
    path, line = fragment.path, match.line
    spread = f"median distance {relations.duration_text(line.spread_ns)}"
    by_user = clocks.user_fits.get(path)
    if by_user is not None:
        reason = f"by kernels {relations.duration_text(line.offset_ns)} more, {spread}"
        return replace(by_user, pairs=match.pairs, reason=reason)
    return ClockFit(
        str(path),
        fragment.trace.meta.clock,
        match.method,
        line.offset_ns,
        line.drift_ppb,
        line.pivot_ns,
        round(MAD_TO_SIGMA * line.spread_ns),
        match.pairs,
        reason=spread,
    )


def _unapplied_part(fit: ClockFit, fragment: Fragment, clocks: SourceClocks) -> ClockFit:
    """The fit without an offset of the user, which was applied when the fragment was read."""
    return replace(fit, offset_ns=0) if fragment.path in clocks.user_fits else fit


def _with_arguments_and_counters(
    trace: Trace, to: Array, other: Trace, at: Array, log: IssueLog
) -> Trace:
    """A profile with the arguments and counters of the same GPU work in another trace."""
    trace = host_et.with_arguments(trace, to, other, at)
    target = np.full(other.nodes.num_rows, -1, np.int32)
    target[at] = to
    return join_passes.carry_counters(trace, [join_passes.PassCounters(other, target, log)])


def _device_matches(
    fragment: Fragment, profile: Fragment, at: Array, to: Array, profile_rank: int
) -> list[DeviceMatch]:
    """Match devices of a fragment with those of a profile by the work that both recorded."""
    columns = [
        trace.array("device", "lanes")[trace.array("lane")[rows]]
        for trace, rows in ((fragment.trace, at), (profile.trace, to))
    ]
    pairs = np.unique(np.stack(columns), axis=1)
    path = str(fragment.path)
    return [
        DeviceMatch(path, int(a), int(b), profile_rank, BY_KERNELS)
        for a, b in pairs.T.tolist()
        if a != _UNKNOWN_DEVICE
    ]


def _rows_to_keep(
    trace: Trace, matches: list[ProcessMatch], run: JoinedRun, known: Array, log: IssueLog
) -> Array:
    """Mask of host calls in the time of the profile whose names it does not have; `known` is not."""
    start = trace.array("ts") + trace.meta.origin_ns
    on_host = trace.array("kind", "lanes")[trace.array("lane")] == LaneKind.THREAD
    inside = np.zeros(len(known), np.bool_)
    same_name = np.zeros(len(known), np.bool_)
    for m in matches:
        rows = trace.rank_rows[m.rank]
        profile = run.timing[m.profile].trace
        profile_rows = profile.rank_rows[m.profile_rank]
        ts = profile.array("ts")[profile_rows] + profile.meta.origin_ns
        end = int((ts + profile.array("dur")[profile_rows]).max())
        inside[rows] = (start[rows] >= int(ts.min())) & (start[rows] <= end)
        names_of_rank = _codes_of_names(run.timing, m.profile_rank, trace)
        same_name[rows] = np.isin(trace.array("name")[rows], names_of_rank)
    log.add(SAME_CALLS, np.count_nonzero(inside & on_host & same_name & ~known))
    log.add(ONLY_THERE, np.count_nonzero(inside & ~on_host & ~known))
    log.add(OUTSIDE, np.count_nonzero(~inside & ~known))
    keep: Array = inside & on_host & ~same_name & ~known
    return keep


def _codes_of_names(timing: list[Fragment], rank: int, trace: Trace) -> Array:
    """Codes of a trace's names that a rank has as well, whatever tool recorded them."""
    names_of_rank: set[str] = set()
    for fragment in timing:
        names = fragment.trace.names()
        rows = fragment.trace.rank_rows.get(rank, slice(0, 0))
        names_of_rank |= {
            names[code] for code in np.unique(fragment.trace.array("name")[rows]).tolist()
        }
    return np.array([k for k, name in enumerate(trace.names()) if name in names_of_rank], np.int64)


def renumbered(trace: Trace, keep: Array, ranks: dict[int, Rank], tool: str) -> Trace:
    """Select nodes, name the tool in the names of their lanes, and renumber the ranks.

    Parameters
    ----------
    keep
        Mask of the nodes that stay; their parent becomes the nearest ancestor that stays.
    ranks
        New description of each rank that has such nodes, by its present number.
    tool
        Suffix of the lanes' names.
    """
    rows = np.flatnonzero(keep)
    new_row = np.full(len(keep) + 1, -1, np.int32)
    new_row[rows] = np.arange(len(rows), dtype=np.int32)
    used = np.unique(trace.array("lane")[rows])
    lane = np.zeros(trace.lanes.num_rows, np.int32)
    lane[used] = np.arange(len(used), dtype=np.int32)
    number = {old: rank.rank for old, rank in ranks.items()}
    nodes = arrow.take(trace.nodes, rows)
    nodes = arrow.replace_column(nodes, "parent", new_row[_kept_parents(trace, keep)[rows]])
    nodes = _with_ranks(
        arrow.replace_column(nodes, "lane", lane[arrow.to_numpy(nodes["lane"])]), number
    )
    order = np.argsort(arrow.to_numpy(nodes["rank"]), kind="stable")
    if not np.array_equal(order, np.arange(len(order))):  # ranks in another order than processes
        position = np.full(len(order) + 1, -1, np.int32)
        position[order] = np.arange(len(order), dtype=np.int32)
        nodes = arrow.take(nodes, order)
        nodes = arrow.replace_column(nodes, "parent", position[arrow.to_numpy(nodes["parent"])])
        new_row[rows] = position[: len(rows)]
    src, dst = (new_row[trace.array(c, "edges")] for c in ("src", "dst"))
    within = (src >= 0) & (dst >= 0)
    edges = arrow.take(trace.edges, within)
    edges = arrow.replace_column(
        arrow.replace_column(edges, "src", src[within]), "dst", dst[within]
    )
    lanes = _with_ranks(arrow.take(trace.lanes, used), number)
    names = [f"{name} ({tool})" for name in lanes["name"].to_pylist()]
    return replace(
        trace,
        nodes=nodes,
        edges=edges,
        lanes=arrow.replace_column(lanes, "name", pa.array(names, pa.string())),
        series=_with_ranks(trace.series, number),
        counters=trace.counters.slice(0, 0),
    ).with_meta(ranks=tuple(ranks.values()), devices=())


def _kept_parents(trace: Trace, keep: Array) -> Array:
    """Find the innermost ancestor of each node that stays; -1 if none does."""
    parent = trace.array("parent").astype(np.int64)
    while True:
        dropped = (parent >= 0) & ~keep[parent]
        if not dropped.any():
            return parent
        parent = np.where(dropped, parent[parent], parent)


def _with_ranks(table: pa.Table, number: dict[int, int]) -> pa.Table:
    rank = arrow.to_numpy(table["rank"])
    new = rank.copy()
    for old, to in number.items():
        new[rank == old] = to
    return arrow.replace_column(table, "rank", new)
