"""The same run in several files: copies, parts, and other formats of one tool."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, arrow
from chopper_interop.arrays.gather import is_any
from chopper_interop.clocks.line import resolution_ns
from chopper_interop.grouping import by_key
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.joining import processes
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.schemas.meta import ASSUMED, COMPUTED, ORDER, Rank
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.joining.fragment import Fragment

SAME_EVENTS = Fault.info(
    "same-events-twice", "A file that holds the same events as others was left out."
)

COPIED_RANKS = Fault.error(
    "ranks-copied",
    "Files of several ranks have the same events at the same nanoseconds, as a file that was copied under another "
    "rank's name has: what is said of these ranks together is of one rank.",
)
_FEW_EVENTS = 100
"""Nodes of a rank from which no other has the same times by chance. Chosen: examples made by hand have fewer."""


def drop_copies(timing: list[Fragment], issues: IssueLog) -> list[Fragment]:
    """Drop fragments whose events others hold too; the others of one rank are processes of it."""
    timing, ranks_of_others = kept(timing, issues)
    issues.add(processes.OF_ONE_RANK, len(ranks_of_others))
    _note_copied_ranks(timing, issues)
    return [
        processes.name_lanes_by_process(f, ranks_of_others[f]) if f in ranks_of_others else f
        for f in timing
    ]


def _note_copied_ranks(timing: list[Fragment], issues: IssueLog) -> None:
    """Note files of different ranks that are copies of each other."""
    many = [
        f for f in timing if f.trace.nodes.num_rows >= _FEW_EVENTS and _has_measured_times(f.trace)
    ]
    # a digest of all times takes longer than their sums, which differ nearly always
    for alike in by_key(many, _sums_of_times).values():
        if len(alike) > 1:
            for same in by_key(alike, lambda f: _digest_of_events(f.trace)).values():
                labels = ", ".join(f.files.label for f in same[:3])
                issues.add(COPIED_RANKS, len(same) - 1, labels)


def _has_measured_times(trace: Trace) -> bool:
    """Return False for generated and host execution traces: ranks of one program have the same."""
    return bool(trace.meta.ranks) and trace.meta.clock not in {ORDER, COMPUTED}


def _sums_of_times(fragment: Fragment) -> tuple[int, int, int]:
    """Number of nodes, and sums of their starts and durations."""
    trace = fragment.trace
    starts = trace.array("ts") + trace.meta.origin_ns
    return trace.nodes.num_rows, int(starts.sum()), int(trace.array("dur").sum())


def kept(
    timing: list[Fragment], issues: IssueLog
) -> tuple[list[Fragment], dict[Fragment, list[Rank]]]:
    """Return the fragments that are no copies, and of which the ranks of other processes, if any."""
    timing = _drop_other_formats(timing, issues)
    originals: set[Fragment] = set()
    owner: dict[int, Fragment] = {}
    ranks_of_others: dict[Fragment, list[Rank]] = {}
    seen: set[bytes] = set()
    order = processes.children_last(timing)
    for fragment in sorted(order, key=lambda f: (f.ranks_are_assumed, len(f.trace.ranks))):
        if fragment.ranks_are_assumed:
            events = _digest_of_events(fragment.trace)
            if events in seen:
                issues.add(SAME_EVENTS, 1, fragment.files.label)
                continue
            seen.add(events)
        known = [r for r in fragment.trace.meta.ranks if r.known_by != ASSUMED]
        clashes = [r.rank for r in known if r.rank in owner]
        different = [r for r in clashes if not same_events(fragment, owner[r], r)]
        if clashes and len(clashes) == len(fragment.trace.ranks) and not different:
            issues.add(SAME_EVENTS, 1, fragment.files.label)
            continue
        for number in different or clashes:
            ranks_of_others.setdefault(fragment, []).append(owner[number].rank_of(number))
        for rank in known:
            owner.setdefault(rank.rank, fragment)
        originals.add(fragment)
    return [f for f in timing if f in originals], ranks_of_others


def drop_pass_copies(
    timing: list[Fragment], passes: list[Fragment], issues: IssueLog
) -> list[Fragment]:
    """Drop counter passes that are a copy of another one, or of the timing run."""
    seen = {_key_of_counters(f.trace) for f in timing if f.has_counters}
    kept: list[Fragment] = []
    for fragment in passes:
        events = _key_of_counters(fragment.trace)
        if events in seen:
            issues.add(SAME_EVENTS, 1, fragment.files.label)
        else:
            seen.add(events)
            kept.append(fragment)
    return kept


def _key_of_counters(trace: Trace) -> tuple[object, ...]:
    """Key that two passes share only if one is a copy: their events and all counters."""
    counters = (trace.array(column, "counters") for column in ("node", "name", "value"))
    digest = hashlib.sha256(b"".join(c.tobytes() for c in counters)).digest()
    ranks = tuple((r.rank, r.host) for r in trace.meta.ranks)
    names = (*trace.names(), *arrow.single_chunk(trace.counters["name"]).dictionary.to_pylist())
    return ranks, trace.meta.clock, names, _digest_of_events(trace), digest


_SHARE_OF_A_COPY = 0.9
"""Share of a file's starts that must be another's too; chosen: tools drop some from one format, and
two runs share none but by chance."""


def _drop_other_formats(timing: list[Fragment], issues: IssueLog) -> list[Fragment]:
    """Drop files of a run that another file holds in another format as well, with more of the run."""
    if all(f.files.converter is timing[0].files.converter for f in timing):
        return timing
    kept: dict[Fragment, None] = {}
    richest_first = sorted(timing, key=_richness, reverse=True)
    of_ranks: dict[tuple[int, ...], list[Fragment]] = {}
    for fragment in richest_first:
        if fragment.ranks_are_assumed:
            is_copy = any(contains(other, fragment) for other in kept)
        else:
            same_ranks = of_ranks.setdefault(tuple(fragment.trace.ranks), [])
            is_copy = any(_is_other_format(other, fragment) for other in same_ranks)
            same_ranks.append(fragment)
        if is_copy:
            issues.add(SAME_EVENTS, 1, fragment.files.label)
        else:
            kept[fragment] = None
    return [f for f in timing if f in kept]


def _richness(fragment: Fragment) -> tuple[int, bool, int, int]:
    """Amount that a file holds of a run: launches; operations as a whole, not in an ET's pieces; nodes; finer times."""
    trace = fragment.trace
    launches = int(np.count_nonzero(trace.launch >= 0))
    is_whole = not (trace.array("kind") == Kind.HOST_GAP).any()
    return launches, is_whole, trace.nodes.num_rows, -resolution_ns(_starts(trace))


def contains(container: Fragment, part: Fragment) -> bool:
    """True if most GPU work of `part` is in a file of another format as well."""
    if container.files.converter is part.files.converter or not container.ranks_are_assumed:
        return False
    if container.trace.meta.clock != part.trace.meta.clock:
        return False
    starts, all_starts = _starts(part.trace), _starts(container.trace)
    resolution = max(resolution_ns(starts), resolution_ns(all_starts))
    shared = np.isin(starts // resolution, all_starts // resolution)
    return bool(shared.mean() >= _SHARE_OF_A_COPY)


def _is_other_format(richer: Fragment, other: Fragment) -> bool:
    """True if two files of the same ranks, which are known, have the same events in other formats.

    Each has events: sources without nodes are telemetry, and only ranks with nodes are compared.
    """
    return richer.files.converter is not other.files.converter and all(
        same_events(richer, other, rank) for rank in other.trace.ranks
    )


def _starts(trace: Trace) -> Array:
    """Starts of GPU work; if there is none, of all nodes."""
    work = is_any(trace.array("kind"), GPU_WORK)
    starts: Array = trace.array("ts")[work if work.any() else ~work] + trace.meta.origin_ns
    return starts


def same_events(a: Fragment, b: Fragment, rank: int) -> bool:
    """True if both have the same GPU work for a rank, or the same nodes if there is none."""
    return np.array_equal(_times_of_rank(a.trace, rank), _times_of_rank(b.trace, rank))


def _times_of_rank(trace: Trace, rank: int) -> Array:
    """Starts and durations of a rank's GPU work, or of all its nodes if there is none."""
    rows = trace.rank_rows.get(rank, slice(0, 0))  # part of a job names ranks that it lacks
    work = is_any(trace.array("kind")[rows], GPU_WORK)
    mask = work if work.any() else ~work
    ts = trace.array("ts")[rows][mask] + trace.meta.origin_ns
    return np.stack([ts, trace.array("dur")[rows][mask]])


def _digest_of_events(trace: Trace) -> bytes:
    """Digest that no two ranks share: of processes, devices, streams and all times."""
    lane = trace.array("lane")
    queues = [trace.array(column, "lanes")[lane] for column in ("device", "number")]
    times = [trace.array("ts") + trace.meta.origin_ns, trace.array("dur")]
    pids = np.array(sorted(r.pid for r in trace.meta.ranks), np.int64)
    return hashlib.sha256(b"".join(c.tobytes() for c in (pids, *queues, *times))).digest()
