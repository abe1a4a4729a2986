"""A run that two tools recorded at once: rocprof on the clock since boot beside PyTorch's profiler.

What both saw is there once: the kernels of the profile whose clock is the trace's, with the
counters and arguments that the other tool has for them. Host calls that only the other tool
records (HSA's, ROCTX ranges) stay beside, on lanes of their own. What it saw outside the time of
the profile is counted and left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import trace_part
from chopper_interop.clocks import match as clock_match
from chopper_interop.clocks import relations
from chopper_interop.clocks.line import Work
from chopper_interop.columns.members import is_any
from chopper_interop.counters import align
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.joining import host_et
from chopper_interop.joining.source_clocks import NO_CLOCK, related_fit
from chopper_interop.schemas.kinds import GPU_WORK, Kind, LaneKind
from chopper_interop.schemas.meta import ASSUMED, REALTIME, ClockFit, DeviceMatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.clocks.match import Match
    from chopper_interop.columns.types import Array
    from chopper_interop.joining.fragment import Fragment
    from chopper_interop.joining.source_clocks import Clocks
    from chopper_interop.schemas.meta import Device, Rank
    from chopper_interop.trace import Trace

BY_KERNELS = "the same kernels"
ANOTHER_RUN = "its kernels do not fit those of the trace: it was taken for another run"
SAME_KERNELS = Fault(
    "same-kernels-twice",
    Severity.INFO,
    "GPU work that two tools recorded in one run is there once, with the counters and arguments "
    "of both.",
    events=True,
)
SAME_CALLS = Fault(
    "same-calls-twice",
    Severity.INFO,
    "Host calls by names that the profile records as well are there once, as the profile has them.",
    events=True,
)
OUTSIDE = Fault(
    "outside-profile",
    Severity.LOSS,
    "Events of another tool from before or after the time of the profile of the same process were "
    "left out.",
    events=True,
)
ONLY_THERE = Fault(
    "work-only-in-other-tool",
    Severity.LOSS,
    "GPU work that one tool recorded within the time of the profile, and the profile did not, was "
    "left out.",
    events=True,
)
_DEVICES_UNKNOWN = -1


@dataclass
class Joined:
    """Profiles after those of the same run were joined to them.

    Parameters
    ----------
    timing
        The profiles whose times hold.
    passes
        What is of another run.
    fits
        How clocks were brought together.
    matches
        Which device of one tool is which of the other's.
    kept
        First file of each source that was joined → how many nodes of it there are.
    hardware
        What such sources tell of their devices, and which of the profiles' these are.
    """

    timing: list[Fragment]
    passes: list[Fragment] = field(default_factory=list)
    fits: list[ClockFit] = field(default_factory=list)
    matches: list[DeviceMatch] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    hardware: list[tuple[tuple[Device, ...], dict[int, int]]] = field(default_factory=list)


@dataclass(frozen=True)
class _Pair:
    """A process in both: rows of its GPU work, and how they fit."""

    theirs: int
    ours: int
    place: int
    rows: Array
    rows_of_ours: Array
    match: Match


def joined(
    timing: list[Fragment], passes: list[Fragment], about: Clocks, issues: IssueLog
) -> Joined:
    """Join what other tools recorded of the run, or of other ranks, on one clock with it.

    Parameters
    ----------
    timing
        Profiles on the trace's clock.
    passes
        Others: of the same run, of ranks that are not among these, or of other runs.
    about
        What is known of clocks.
    issues
        Where it is counted what became of events.
    """
    found = Joined(list(timing))
    if not any(f.trace.meta.clock == REALTIME for f in timing):
        return replace(found, passes=passes)
    for fragment in passes:
        if fragment.trace.meta.clock in (REALTIME, *NO_CLOCK):
            found.passes.append(fragment)
            continue
        pairs = _pairs(fragment, timing, told=fragment.files.paths[0] in about.told)
        if pairs:
            _join(fragment, pairs, found, about, issues)
        else:
            _beside_or_pass(fragment, found, about)
    return found


def _beside_or_pass(fragment: Fragment, found: Joined, about: Clocks) -> None:
    """A profile of other ranks, if it is known what its clock is; else it is a pass."""
    path = fragment.files.paths[0]
    fit = about.told.get(path)
    relation = about.relation(fragment)
    ranks = fragment.trace.meta.ranks
    taken = {r for f in found.timing for r in f.trace.ranks}
    other = all(r.known_by != ASSUMED and r.rank not in taken for r in ranks) and bool(ranks)
    if fit is None and relation is not None:
        fit = related_fit(str(path), relation)
        offset_ns = fit.offset_ns
    else:
        offset_ns = 0  # it is applied already
    if fit is None or fragment.counts or not other:
        found.passes.append(fragment)
        if path in about.told:
            found.fits.append(replace(about.told[path], applied=False, reason=ANOTHER_RUN))
        return
    trace = relations.moved(fragment.trace, offset_ns, REALTIME)
    found.timing.append(replace(fragment, trace=trace))
    found.fits.append(fit)
    found.kept[str(path)] = trace.nodes.num_rows


def _pairs(fragment: Fragment, timing: list[Fragment], *, told: bool) -> list[_Pair]:
    """Each process of a fragment that did GPU work with the rank that it is; none if one is none.

    If the user `told` its clock, it is enough that kernels fit as they stand.
    """
    found: list[_Pair] = []
    for rank in fragment.trace.ranks:
        rows = _work_rows(fragment.trace, rank)
        if not rows.size:
            continue
        taken = {pair.ours for pair in found}
        pair = next(_fitting(fragment, rank, rows, timing, taken, told=told), None)
        if pair is None:
            return []
        found.append(pair)
    return found


def _fitting(
    fragment: Fragment,
    rank: int,
    rows: Array,
    timing: list[Fragment],
    taken: set[int],
    *,
    told: bool,
) -> Iterator[_Pair]:
    """Ranks whose GPU work is that of a process, those first that say so themselves."""
    about = fragment.rank_of(rank)
    places = [
        (place, other)
        for place, f in enumerate(timing)
        if f.trace.meta.clock == REALTIME
        for other in f.trace.meta.ranks
        if other.rank not in taken and other.rank in f.trace.rank_rows
    ]
    for place, other in _likely(about, places):
        ours = timing[place].trace
        mine = _work_rows(ours, other.rank)
        first, second = _works(ours, mine, fragment.trace, rows)
        same = about.pid == other.pid >= 0
        match = clock_match.match(first, second, same_process=same)
        if match is None and told:
            match = clock_match.as_told(first, second)
        if match is not None:
            yield _Pair(rank, other.rank, place, rows, mine, match)


def _likely(about: Rank, places: list[tuple[int, Rank]]) -> list[tuple[int, Rank]]:
    """Who may be a process: of its id, else of the rank that it says to be, else anyone."""
    same = [p for p in places if about.pid == p[1].pid >= 0]
    if not same and about.known_by != ASSUMED:
        same = [p for p in places if about.rank == p[1].rank]
    return same or places


def _work_rows(trace: Trace, rank: int) -> Array:
    rows = trace.rank_rows.get(rank, slice(0, 0))
    work = is_any(trace.array("kind")[rows], GPU_WORK)
    return np.flatnonzero(work) + rows.start


def _works(a: Trace, rows_a: Array, b: Trace, rows_b: Array) -> tuple[Work, Work]:
    """GPU work of two traces, with names by the same numbers; copies are of one name, so are fills.

    What copies are called differs between tools.
    """
    numbers = {"": 0}
    made = []
    for trace, rows in ((a, rows_a), (b, rows_b)):
        codes = [numbers.setdefault(align.plain_name(n), len(numbers)) for n in trace.names()]
        name = np.array(codes or [0], np.int64)[trace.array("name")[rows]]
        kind = trace.array("kind")[rows]
        name[kind == Kind.MEMCPY], name[kind == Kind.MEMSET] = -1, -2
        start = trace.array("ts")[rows] + trace.meta.origin_ns
        columns = (trace.array(c)[rows] for c in ("dur", "correlation"))
        made.append(Work(name + 2, start, *columns))
    return made[0], made[1]


def _join(
    fragment: Fragment, pairs: list[_Pair], found: Joined, about: Clocks, issues: IssueLog
) -> None:
    """Give what a fragment knows to the profiles of its processes, and keep the rest beside."""
    path = fragment.files.paths[0]
    log = IssueLog(str(path))
    best = max(pairs, key=lambda pair: pair.match.pairs)
    fit = _fit(fragment, best.match, about)
    target = np.full(fragment.trace.nodes.num_rows, -1, np.int64)
    for pair in pairs:
        ours = found.timing[pair.place]
        at, to = pair.rows[pair.match.theirs], pair.rows_of_ours[pair.match.ours]
        target[at] = to
        found.timing[pair.place] = replace(
            ours, trace=_with_what_is_known(ours.trace, to, fragment.trace, at, log)
        )
        found.matches += _devices(fragment, ours, at, to, pair)
    log.add(SAME_KERNELS, np.count_nonzero(target >= 0))
    moved = relations.fitted(fragment.trace, _remaining(fit, fragment, about), REALTIME)
    keep = _kept(moved, pairs, found, target >= 0, log)
    ranks = {pair.theirs: found.timing[pair.place].rank_of(pair.ours) for pair in pairs}
    rest = trace_part.renumbered(moved, keep, ranks, fragment.files.converter.name)
    if rest.nodes.num_rows or rest.samples.num_rows:
        found.timing.append(replace(fragment, trace=rest))
    found.fits.append(fit)
    found.kept[str(path)] = rest.nodes.num_rows
    mapping = {m.number: m.device for m in found.matches if m.source == str(path)}
    found.hardware.append((fragment.trace.meta.devices, mapping))
    issues.extend(log)


def _fit(fragment: Fragment, match: Match, about: Clocks) -> ClockFit:
    """How the fragment's clock relates to the trace's: as the user says, else as kernels do."""
    path, line = fragment.files.paths[0], match.line
    spread = f"median distance {relations.duration(line.spread_ns)}"
    told = about.told.get(path)
    if told is not None:
        reason = f"kernels say {relations.duration(line.offset_ns)} more, {spread}"
        return replace(told, pairs=match.pairs, reason=reason)
    return ClockFit(
        str(path),
        fragment.trace.meta.clock,
        match.method,
        line.offset_ns,
        line.drift_ppb,
        line.pivot_ns,
        round(1.4826 * line.spread_ns),
        match.pairs,
        reason=spread,
    )


def _remaining(fit: ClockFit, fragment: Fragment, about: Clocks) -> ClockFit:
    """What is still to be applied: the user's was, when it was read."""
    return replace(fit, offset_ns=0) if fragment.files.paths[0] in about.told else fit


def _with_what_is_known(trace: Trace, to: Array, other: Trace, at: Array, log: IssueLog) -> Trace:
    """A profile with the arguments and counters of the same GPU work in another trace."""
    trace = host_et.with_arguments(trace, to, other, at)
    target = np.full(other.nodes.num_rows, -1, np.int32)
    target[at] = to
    return align.with_counters(trace, other, target, log)


def _devices(
    fragment: Fragment, ours: Fragment, at: Array, to: Array, pair: _Pair
) -> list[DeviceMatch]:
    """Which device of the fragment is which of the profile's: the one that ran its kernels."""
    columns = [
        trace.array("device", "lanes")[trace.array("lane")[rows]]
        for trace, rows in ((fragment.trace, at), (ours.trace, to))
    ]
    both = np.unique(np.stack(columns), axis=1)
    path = str(fragment.files.paths[0])
    return [
        DeviceMatch(path, int(a), int(b), pair.ours, BY_KERNELS)
        for a, b in both.T.tolist()
        if a != _DEVICES_UNKNOWN
    ]


def _kept(trace: Trace, pairs: list[_Pair], found: Joined, known: Array, log: IssueLog) -> Array:
    """Which nodes stay: host calls in the time of the profile, of names that it does not have."""
    keep = np.zeros(trace.nodes.num_rows, np.bool_)
    start = trace.array("ts") + trace.meta.origin_ns
    on_host = trace.array("kind", "lanes")[trace.array("lane")] == LaneKind.THREAD
    inside = np.zeros(len(keep), np.bool_)
    same = np.zeros(len(keep), np.bool_)
    for pair in pairs:
        rows = trace.rank_rows[pair.theirs]
        ours = found.timing[pair.place].trace
        mine = ours.rank_rows[pair.ours]
        ts = ours.array("ts")[mine] + ours.meta.origin_ns
        end = int((ts + ours.array("dur")[mine]).max())
        inside[rows] = (start[rows] >= int(ts.min())) & (start[rows] <= end)
        known_names = _names_of(found.timing, pair.ours, trace)
        same[rows] = np.isin(trace.array("name")[rows], known_names)
    keep = inside & on_host & ~same & ~known
    log.add(SAME_CALLS, np.count_nonzero(inside & on_host & same & ~known))
    log.add(ONLY_THERE, np.count_nonzero(inside & ~on_host & ~known))
    log.add(OUTSIDE, np.count_nonzero(~inside & ~known))
    return keep


def _names_of(timing: list[Fragment], rank: int, trace: Trace) -> Array:
    """Codes of a trace's names that a rank has as well, whatever tool recorded them."""
    there: set[str] = set()
    for fragment in timing:
        names = fragment.trace.names()
        rows = fragment.trace.rank_rows.get(rank, slice(0, 0))
        there |= {names[code] for code in np.unique(fragment.trace.array("name")[rows]).tolist()}
    return np.array([k for k, name in enumerate(trace.names()) if name in there], np.int64)
