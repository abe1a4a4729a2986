"""The same run in several files: copies, parts, other formats of one tool."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow
from chopper_interop.columns.members import is_any
from chopper_interop.errors import AmbiguousRunError
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.joining import processes
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.schemas.meta import ASSUMED

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.joining.fragment import Fragment
    from chopper_interop.schemas.meta import Rank
    from chopper_interop.trace import Trace

SAME_EVENTS = Fault(
    "same-events-twice",
    Severity.INFO,
    "A file that holds the same events as others was left out.",
)


def left_out(timing: list[Fragment], issues: IssueLog) -> list[Fragment]:
    """Drop fragments whose events others hold too; refuse two different ones of one rank."""
    timing = _one_of_each_run(timing, issues)
    kept: list[Fragment] = []
    owner: dict[int, Fragment] = {}
    beside: dict[int, list[Rank]] = {}
    seen: set[bytes] = set()
    order = processes.children_last(timing)
    for fragment in sorted(order, key=lambda f: (f.is_silent, len(f.trace.ranks))):
        if fragment.is_silent:
            events = _where_and_when(fragment.trace)
            if events in seen:
                issues.add(SAME_EVENTS, 1, fragment.files.label)
                continue
            seen.add(events)
        known = [r for r in fragment.trace.meta.ranks if r.known_by != ASSUMED]
        clashes = [r.rank for r in known if r.rank in owner]
        whole = len(clashes) == len(fragment.trace.ranks)
        other = [r for r in clashes if not _same_events(fragment, owner[r], r)]
        if clashes and whole and not other:
            issues.add(SAME_EVENTS, 1, fragment.files.label)
            continue
        for rank in other or clashes:
            if not processes.share(owner[rank], fragment, rank):
                _refuse(owner[rank], fragment, rank)
            beside.setdefault(id(fragment), []).append(owner[rank].rank_of(rank))
        owner = {r.rank: fragment for r in known} | owner
        kept.append(fragment)
    issues.add(processes.OF_ONE_RANK, len(beside))
    return [
        processes.beside(f, beside[id(f)]) if id(f) in beside else f for f in timing if f in kept
    ]


def passes_once(timing: list[Fragment], passes: list[Fragment], issues: IssueLog) -> list[Fragment]:
    """Drop counter passes that are a copy of another one, or of what the times are from."""
    seen = {_counted(f.trace) for f in timing if f.counts}
    kept: list[Fragment] = []
    for fragment in passes:
        events = _counted(fragment.trace)
        if events in seen:
            issues.add(SAME_EVENTS, 1, fragment.files.label)
        else:
            seen.add(events)
            kept.append(fragment)
    return kept


def _counted(trace: Trace) -> tuple[object, ...]:
    """What two passes have in common only if one is a copy: their events and all counters."""
    counters = (trace.array(column, "counters") for column in ("node", "name", "value"))
    digest = hashlib.sha256(b"".join(c.tobytes() for c in counters)).digest()
    ranks = tuple((r.rank, r.host) for r in trace.meta.ranks)
    names = (*trace.names(), *arrow.flat(trace.counters["name"]).dictionary.to_pylist())
    return ranks, trace.meta.clock, names, _where_and_when(trace), digest


_MICROSECOND = 1000
_SHARE_OF_A_COPY = 0.9
"""Of a file's starts those that must be another's too: tools drop some from one format."""


def _one_of_each_run(timing: list[Fragment], issues: IssueLog) -> list[Fragment]:
    """Drop what a tool wrote in another format besides, which may hold less of the same run."""
    kept: list[Fragment] = []
    finest = sorted(timing, key=lambda f: (-f.trace.nodes.num_rows, _grain(_starts(f.trace))))
    for fragment in finest:
        if fragment.is_silent and any(_holds(other, fragment) for other in kept):
            issues.add(SAME_EVENTS, 1, fragment.files.label)
        else:
            kept.append(fragment)
    return [f for f in timing if f in kept]


def _holds(whole: Fragment, part: Fragment) -> bool:
    """Whether most GPU work of one format is in a file of another format as well."""
    if whole.files.converter is part.files.converter or not whole.is_silent:
        return False
    if whole.trace.meta.clock != part.trace.meta.clock:
        return False
    mine, theirs = _starts(part.trace), _starts(whole.trace)
    grain = max(_grain(mine), _grain(theirs))
    return bool(np.isin(mine // grain, theirs // grain).mean() >= _SHARE_OF_A_COPY)


def _grain(times: Array) -> int:
    """Nanoseconds to which times are cut: some formats of a tool have whole microseconds."""
    return _MICROSECOND if times.size and not (times % _MICROSECOND).any() else 1


def _starts(trace: Trace) -> Array:
    """When GPU work starts; if there is none, when anything does."""
    work = is_any(trace.array("kind"), GPU_WORK)
    starts: Array = trace.array("ts")[work if work.any() else ~work] + trace.meta.origin_ns
    return starts


def _same_events(a: Fragment, b: Fragment, rank: int) -> bool:
    """Whether both have the same GPU work, or without any the same nodes, for a rank."""
    return np.array_equal(_fingerprint(a.trace, rank), _fingerprint(b.trace, rank))


def _fingerprint(trace: Trace, rank: int) -> Array:
    rows = trace.rank_rows.get(rank, slice(0, 0))  # part of a job names ranks that it lacks
    work = is_any(trace.array("kind")[rows], GPU_WORK)
    which = work if work.any() else ~work
    ts = trace.array("ts")[rows][which] + trace.meta.origin_ns
    return np.stack([ts, trace.array("dur")[rows][which]])


def _where_and_when(trace: Trace) -> bytes:
    """What no two ranks have in common: processes, devices and streams, and all times."""
    lane = trace.array("lane")
    place = [trace.array(column, "lanes")[lane] for column in ("device", "number")]
    times = [trace.array("ts") + trace.meta.origin_ns, trace.array("dur")]
    pids = np.array(sorted(r.pid for r in trace.meta.ranks), np.int64)
    return hashlib.sha256(b"".join(c.tobytes() for c in (pids, *place, *times))).digest()


def _refuse(first: Fragment, second: Fragment, rank: int) -> None:
    raise AmbiguousRunError(
        f"both {first.files.label} and {second.files.label} hold rank {rank}, with other events",
        hint="these are two runs or two windows of one: give the files of one of them",
    )
