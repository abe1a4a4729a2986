"""Match of another tool's processes with ranks of profiles of the same run.

Ranks of data-parallel jobs run the same kernels at almost the same times, so that a process may fit several. All
processes are matched together, each with a rank of its own, the closest pairs first. How close they are is the mean
distance of the starts of their kernels, and of the durations: of one process both are the noise of two tools, of two
processes also what their kernels differ by. Only ranks are compared that have kernels of the same durations in a row,
where there are such ranks (`clocks.fingerprints`); where a tool's processes are known by these, one that has none is
of no rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log, log1p, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.counters import join_passes
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.clocks import fingerprints
from chopper_interop.clocks import line as clock_line
from chopper_interop.clocks import match as clock_match
from chopper_interop.clocks.fingerprints import Fingerprints, Likely
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


_MAX_RATIO, _TICK_NS = 2, 10
"""Distance of a process's durations from its rank's, over what it is of the tool's other processes (the median), each and a
tick of the GPU; beyond, its rank is none of the profiles'. Starts are not compared, as hosts' clocks are converted
better or worse. Chosen: two tools take durations from the same times of the GPU, on every host."""
_DISTINCT = 4
"""Distance of durations from any other rank's, over that from the closest, which shows that this one is the process's. Chosen:
of ranks none of which is the process, one is by chance twice as close."""
_MIN_OTHERS = 2
"""Processes of a tool that show how far its times are from the profiles'; chosen: one alone may be the one that is wrong."""


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
    duration_ns
        Mean distance of durations.
    """

    profile: int
    about: Rank
    pairs: int
    closeness: float
    duration_ns: float


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
            candidate = _Candidate(
                profile, other, match.pairs, sum(map(log1p, distances)), distances[1]
            )
            self.candidates.setdefault(other.rank, candidate)

    @cached_property
    def tool(self) -> tuple[str, int]:
        """Tool that recorded it, and the resolution of its durations."""
        return self.fragment.files.converter.name, clock_line.resolution_ns(self.work.dur)

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
    ranks = _Ranks(timing, (p for group in of_fragment for p in group), codes)
    ranks.add_candidates([p for group in of_fragment for p in group[:1]])
    # if the first process is none of the ranks, the others are not looked at
    others = [p for group in of_fragment if group and group[0].candidates for p in group[1:]]
    ranks.add_candidates(others)
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
    of_tool: dict[tuple[str, int], list[_Candidate]] = defaultdict(list)
    for candidate, process in options:
        held = holders.get(candidate.about.rank, [])
        if process.chosen is not None or _is_taken_by_fragment(held, process):
            continue
        if _is_far(candidate, process, of_tool[process.tool]):
            continue
        if not held or process.is_another_record_of(held[0]):
            process.chosen = candidate
            of_tool[process.tool].append(candidate)
            holders.setdefault(candidate.about.rank, []).append(process)
    return holders


def _is_far(candidate: _Candidate, process: _Process, chosen: Sequence[_Candidate]) -> bool:
    """True if a process's durations are much further from a rank's than those of the tool's others from theirs.

    But not if they are much closer to it than to other ranks: the clock of its host was converted otherwise.
    """
    of_others = [c.duration_ns for c in process.candidates.values() if c is not candidate]
    if len(chosen) < _MIN_OTHERS or not of_others:
        return False
    if min(of_others) + _TICK_NS > _DISTINCT * (candidate.duration_ns + _TICK_NS):
        return False
    typical = sorted(chosen, key=lambda c: c.duration_ns)[len(chosen) // 2]
    further = log((candidate.duration_ns + _TICK_NS) / (typical.duration_ns + _TICK_NS))
    # the logarithm of the mean of n distances scatters by 1/sqrt(n)
    deviation = sqrt(1 / candidate.pairs + 1 / typical.pairs)
    return further > max(log(_MAX_RATIO), _MIN_DEVIATIONS * deviation)


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


class _Ranks:
    """Ranks of the profiles on the trace's clock, with which processes are compared."""

    def __init__(
        self, timing: Sequence[Fragment], processes: Iterable[_Process], codes: NameCodes
    ) -> None:
        self._codes = codes
        self._ranks = [
            (profile, f.trace, other)
            for profile, f in enumerate(timing)
            if f.trace.meta.clock == REALTIME
            for other in f.trace.meta.ranks
        ]
        self._likely = self._likely_by_durations(list(processes))
        self._units: dict[tuple[str, int], set[int]] = defaultdict(set)
        """Units of durations by which processes are known, of each tool and resolution."""
        for process, likely in self._likely.items():
            self._units[process.tool] |= {likely.unit} - {-1}

    def add_candidates(self, processes: list[_Process]) -> None:
        """Find the ranks that run what each process runs, at its times; the work of one rank at a time."""
        of_process = {p: self._likely_of(p) for p in processes}
        self._compare(of_process)
        # a tool may have other durations, for which those of another rank were taken
        everything = np.arange(len(self._ranks))
        self._compare(
            {
                p: np.setdiff1d(everything, self._likely_of(p))
                for p in of_process
                if p in self._likely and not p.candidates and not self._is_foreign(p)
            }
        )

    def _compare(self, ranks_of: dict[_Process, Array]) -> None:
        """Compare each process with some ranks."""
        likely: list[list[_Process]] = [[] for _ in self._ranks]
        for process, ranks in ranks_of.items():
            for k in ranks.tolist():
                likely[k].append(process)
        for (profile, trace, other), of_rank in zip(self._ranks, likely, strict=True):
            if of_rank:
                work = self._codes.work(trace, work_rows(trace, other.rank))
                for process in of_rank:
                    process.compare(profile, other, work)

    def _likely_of(self, process: _Process) -> Array:
        """Positions of the ranks with which a process is compared first."""
        stated = _stated_ranks(process.about, [other for *_, other in self._ranks])
        if stated or process not in self._likely:
            return np.array(stated, np.int64)
        if self._is_foreign(process):
            return np.zeros(0, np.int64)
        ranks = self._likely[process].ranks
        return np.arange(len(self._ranks)) if ranks is None else ranks

    def _is_foreign(self, process: _Process) -> bool:
        """True if others of the tool have the durations of ranks, to a finer unit than this one has any rank's."""
        own = self._likely[process]
        if own.is_distinct:
            return False
        finer = own.unit if own.unit >= 0 else len(own.shares)
        units = self._units[process.tool]
        return any(k < finer and own.shares[k] <= fingerprints.FOREIGN_SHARE for k in units)

    def _likely_by_durations(self, processes: list[_Process]) -> dict[_Process, Likely]:
        """Ranks by durations, of the processes that state neither an id nor a number of a rank."""
        ranks = [other for *_, other in self._ranks]
        unstated = [p for p in processes if not _stated_ranks(p.about, ranks)]
        if not unstated or not ranks:
            return {}
        rows = [work_rows(trace, other.rank) for _, trace, other in self._ranks]
        longest = max(map(len, [*rows, *(p.rows for p in unstated)]))
        works = (
            clock_match.in_order(self._codes.work(trace, own))[0]
            for (_, trace, _), own in zip(self._ranks, rows, strict=True)
        )
        table = Fingerprints(works, longest)
        return {p: table.likely(clock_match.in_order(p.work)[0]) for p in unstated}


def _stated_ranks(process: Rank, ranks: list[Rank]) -> list[int]:
    """Positions of the ranks with the id of a process, else of those with the number that it states; none if neither."""
    stated = [k for k, other in enumerate(ranks) if process.pid == other.pid >= 0]
    if not stated and process.known_by != ASSUMED:
        stated = [k for k, other in enumerate(ranks) if process.rank == other.rank]
    return stated


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
