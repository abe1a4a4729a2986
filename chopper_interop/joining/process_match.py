"""Match of another tool's processes with ranks of profiles of the same run.

Ranks of data-parallel jobs run the same kernels at almost the same times, so that a process may fit several. All
processes are matched together, each with a rank of its own, the closest pairs first. How close they are is the mean
distance of the starts of their kernels, and of the durations: of one process both are the noise of two tools, of two
processes also what their kernels differ by.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from math import log, log1p, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.counters import join_passes
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.clocks import line as clock_line
from chopper_interop.clocks import match as clock_match
from chopper_interop.clocks.line import ProcessWork
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.joining.source_clocks import NOT_CLOCKS
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.schemas.meta import ASSUMED, REALTIME, Rank
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.clocks.match import Match
    from chopper_interop.joining.fragment import Fragment

AMBIGUOUS = Fault.error(
    "process-ambiguous",
    "Processes of another tool whose kernels are about as close to those of several ranks: which of "
    "these they are is assumed, and their counters may be another rank's. Give the ranks' numbers in the "
    "names of the files (rank0).",
)
_MIN_RATIO = 1.1
"""Distances of the next rank over those of the rank that is chosen. Chosen: distances of kernels in a row are
correlated, so that less may be chance of however many kernels."""
_MIN_DEVIATIONS = 5
"""Standard deviations by which the next rank has to be further. Chosen: 64 ranks have 2,016 pairs, of which chance
confuses one in 1,700 jobs then."""


@dataclass(frozen=True)
class ProcessMatch:
    """A process that a fragment and a profile both recorded.

    Parameters
    ----------
    rank, profile_rank
        Its rank in the fragment and in the profile.
    profile
        Position of the profile in the list of profiles.
    rows, profile_rows
        Rows of its GPU work in both.
    match
        Match of these rows.
    """

    rank: int
    profile_rank: int
    profile: int
    rows: Array
    profile_rows: Array
    match: Match


@dataclass(frozen=True)
class _Candidate:
    """A rank that a process may be.

    Parameters
    ----------
    profile, about
        Position of its profile, and the rank.
    pairs
        Number of pairs of kernels.
    closeness
        Sum of the logarithms of the mean distances of starts and of durations; less is closer.
    """

    profile: int
    about: Rank
    pairs: int
    closeness: float


@dataclass(eq=False)
class _Process:
    """A process of a fragment that did GPU work, with the ranks that it may be."""

    fragment: Fragment
    about: Rank
    rows: Array
    work: ProcessWork
    by_user: bool
    candidates: dict[int, _Candidate] = field(default_factory=dict)
    chosen: _Candidate | None = None

    def match(self, other: Rank, work: ProcessWork) -> Match | None:
        """Match with the work of a rank of a profile."""
        same_process = self.about.pid == other.pid >= 0
        match = clock_match.match_work(work, self.work, same_process=same_process)
        if match is None and self.by_user:
            match = clock_match.match_on_one_clock(work, self.work)
        return match

    def compare(self, profile: int, other: Rank, work: ProcessWork) -> None:
        """Add a rank of a profile to the candidates if its work matches."""
        match = self.match(other, work)
        if match is not None:
            distances = clock_match.mean_distances_ns(work, self.work, match)
            candidate = _Candidate(profile, other, match.pairs, sum(map(log1p, distances)))
            self.candidates.setdefault(other.rank, candidate)

    def is_another_record_of(self, other: _Process) -> bool:
        """True if both are records of one process: its id and most starts, to the nanosecond or microsecond, are equal."""
        if self.about.pid != other.about.pid:
            return False
        starts = (self.work.start, other.work.start)
        resolution = max(map(clock_line.resolution_ns, starts))
        own, others = (np.unique(s // resolution) for s in starts)
        return 2 * np.intersect1d(own, others).size > min(len(own), len(others))


def match_processes(
    fragments: Sequence[Fragment],
    timing: Sequence[Fragment],
    on_clock_by_user: Container[Path],
    issues: IssueLog,
) -> list[list[ProcessMatch]]:
    """Match processes of each fragment with ranks of profiles on the trace's clock.

    A fragment is matched if each of its processes that did GPU work is, and its times are of a clock of their own. If the
    user states that clock, it suffices that kernels match at that offset.
    """
    codes = NameCodes()
    of_fragment = [_processes(f, codes, by_user=f.path in on_clock_by_user) for f in fragments]
    _add_candidates([p for group in of_fragment for p in group[:1]], timing, codes)
    # if the first process is none of the ranks, the others are not looked at
    others = [p for group in of_fragment if group and group[0].candidates for p in group[1:]]
    _add_candidates(others, timing, codes)
    processes = [p for group in of_fragment if all(p.candidates for p in group) for p in group]
    holders = _choose_ranks(processes)
    for process in processes:
        doubted = _ambiguous_rank(process, holders)
        if doubted is not None:
            issue = IssueLog(str(process.fragment.path))
            issue.add(AMBIGUOUS, 1, doubted)
            issues.extend(issue)
    chosen = ([m for p in group if (m := _chosen_match(p, timing, codes))] for group in of_fragment)
    return [
        matches if len(matches) == len(group) else []
        for matches, group in zip(chosen, of_fragment, strict=True)
    ]


def _chosen_match(
    process: _Process, timing: Sequence[Fragment], codes: NameCodes
) -> ProcessMatch | None:
    """Match of a process with the rank chosen for it; again, as those with all candidates take too much memory."""
    chosen = process.chosen
    if chosen is None:
        return None
    trace, rank = timing[chosen.profile].trace, chosen.about.rank
    profile_rows = work_rows(trace, rank)
    match = process.match(chosen.about, codes.work(trace, profile_rows))
    if match is None:
        return None
    return ProcessMatch(process.about.rank, rank, chosen.profile, process.rows, profile_rows, match)


def _choose_ranks(processes: list[_Process]) -> dict[int, list[_Process]]:
    """Choose a rank of its own for each process, the closest first; other records of a process share its rank."""
    options = [(candidate, p) for p in processes for candidate in p.candidates.values()]
    options.sort(key=lambda option: option[0].closeness)
    holders: dict[int, list[_Process]] = {}
    for candidate, process in options:
        held = holders.get(candidate.about.rank, [])
        if process.chosen is not None or _is_taken_by_fragment(held, process):
            continue
        if not held or process.is_another_record_of(held[0]):
            process.chosen = candidate
            holders.setdefault(candidate.about.rank, []).append(process)
    return holders


def _is_taken_by_fragment(held: list[_Process], process: _Process) -> bool:
    return any(holder.fragment is process.fragment for holder in held)


def _ambiguous_rank(process: _Process, holders: dict[int, list[_Process]]) -> str | None:
    """Say which ranks a process may be besides the chosen one: free ones, and those of processes that may swap."""
    chosen = process.chosen
    others = []
    for rank, candidate in process.candidates.items():
        held = holders.get(rank, [])
        if chosen is not None and rank == chosen.about.rank:
            continue
        # (farther, closer) candidates of which one or the other holds
        if chosen is None:
            rivals = [(candidate, held[0].chosen)] if held else []
        elif not held:
            rivals = [(candidate, chosen)]
        elif chosen.about.rank in held[0].candidates:
            rivals = [(candidate, chosen), (held[0].candidates[chosen.about.rank], held[0].chosen)]
        else:
            rivals = []
        if rivals and not _is_evident([(a, b) for a, b in rivals if b is not None]):
            others.append(rank)
    if not others:
        return None
    was = "none" if chosen is None else f"rank {chosen.about.rank}"
    return f"taken for {was}, may be {', '.join(f'rank {rank}' for rank in sorted(others)[:3])}"


def _is_evident(rivals: list[tuple[_Candidate, _Candidate]]) -> bool:
    """True if the first of each pair of candidates are further apart, all together, than chance makes them."""
    kernels = [min(a.pairs, b.pairs) for a, b in rivals]
    further = sum(
        n * (a.closeness - b.closeness) for n, (a, b) in zip(kernels, rivals, strict=True)
    )
    # the logarithm of the mean of n distances scatters by 1/sqrt(n); there are four: two quantities, two matches
    deviation = sqrt(4 / sum(kernels))
    return further / sum(kernels) > max(2 * log(_MIN_RATIO), _MIN_DEVIATIONS * deviation)


def _processes(fragment: Fragment, codes: NameCodes, *, by_user: bool) -> list[_Process]:
    """Processes of a fragment that did GPU work."""
    if fragment.trace.meta.clock in (REALTIME, *NOT_CLOCKS):
        return []
    trace = fragment.trace
    of_rank = ((rank, work_rows(trace, rank)) for rank in trace.ranks)
    return [
        _Process(fragment, fragment.rank_of(rank), rows, codes.work(trace, rows), by_user)
        for rank, rows in of_rank
        if rows.size
    ]


def _add_candidates(
    processes: list[_Process], timing: Sequence[Fragment], codes: NameCodes
) -> None:
    """Find the ranks of profiles that run what each process runs, at its times; the work of one rank at a time."""
    ranks = [
        (profile, other)
        for profile, f in enumerate(timing)
        if f.trace.meta.clock == REALTIME
        for other in f.trace.meta.ranks
    ]
    likely: list[list[_Process]] = [[] for _ in ranks]
    for process in processes:
        for k in _likely_ranks(process.about, [other for _, other in ranks]):
            likely[k].append(process)
    for (profile, other), of_rank in zip(ranks, likely, strict=True):
        if of_rank:
            trace = timing[profile].trace
            work = codes.work(trace, work_rows(trace, other.rank))
            for process in of_rank:
                process.compare(profile, other, work)


def _likely_ranks(process: Rank, ranks: list[Rank]) -> list[int]:
    """Positions of the ranks with the id of a process, else of those with the number that it states, else of all."""
    likely = [k for k, other in enumerate(ranks) if process.pid == other.pid >= 0]
    if not likely and process.known_by != ASSUMED:
        likely = [k for k, other in enumerate(ranks) if process.rank == other.rank]
    return likely or list(range(len(ranks)))


def work_rows(trace: Trace, rank: int) -> Array:
    """Rows of the GPU work of a rank."""
    rows = trace.rank_rows.get(rank, slice(0, 0))
    work = is_any(trace.array("kind")[rows], GPU_WORK)
    return np.flatnonzero(work) + rows.start


class NameCodes:
    """Codes of names that several traces share, those of each trace made once."""

    def __init__(self) -> None:
        self._numbers = {"": 0}
        self._of_trace: dict[int, Array] = {}

    def work(self, trace: Trace, rows: Array) -> ProcessWork:
        """GPU work of a trace; all copies have one code and all fills another, as tools name them differently."""
        codes = self._of_trace.get(id(trace))
        if codes is None:
            numbers = self._numbers
            plain = map(join_passes.plain_name, trace.names())
            codes = np.array([numbers.setdefault(n, len(numbers)) for n in plain] or [0], np.int64)
            self._of_trace[id(trace)] = codes
        name = codes[trace.array("name")[rows]]
        kind = trace.array("kind")[rows]
        name[kind == Kind.MEMCPY], name[kind == Kind.MEMSET] = -1, -2
        start = trace.array("ts")[rows] + trace.meta.origin_ns
        return ProcessWork(name + 2, start, *(trace.array(c)[rows] for c in ("dur", "correlation")))
