"""Which process of another tool is which rank: against a search of all pairings, and rule by rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from math import log1p
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_interop import registry
from chopper_interop.build import TraceBuilder
from chopper_interop.clocks import match as clock_match
from chopper_interop.clocks.line import Line, ProcessWork, nearest_pairs, resolution_ns
from chopper_interop.issues import IssueLog
from chopper_interop.joining.fragment import Fragment
from chopper_interop.joining.process_match import match_processes
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import (
    ASSUMED,
    BOOTTIME,
    COMPUTED,
    ORDER,
    REALTIME,
    Meta,
    Rank,
)
from chopper_interop.sources import SourceFiles

FILL, COPY = 4, 5
"""Codes of names of fills and copies; those below are of kernels."""
BASE, BOOT = 1_700_000_000_000_000_000, 5_000_000_000


@dataclass(frozen=True)
class Kernels:
    """Kernels of a process: codes of names, starts and durations, nanoseconds."""

    name: np.ndarray
    start: np.ndarray
    dur: np.ndarray

    @classmethod
    def of_seed(cls, seed: int, count: int) -> Kernels:
        random = np.random.default_rng(seed)
        dur, gap = random.integers(4_000, 90_000, count), random.integers(1_000, 30_000, count)
        return cls(random.integers(0, 6, count), np.cumsum(dur + gap) - dur, dur)

    def moved(self, start: np.ndarray | int = 0, dur: np.ndarray | int = 0) -> Kernels:
        """The same kernels, each so much later and longer."""
        return replace(self, start=self.start + start, dur=self.dur + dur)

    def some(self, kept: np.ndarray) -> Kernels:
        """Some of them."""
        return Kernels(self.name[kept], self.start[kept], self.dur[kept])


def alternating(count: int, distance: int) -> np.ndarray:
    """Distances whose median is 0 and whose mean distance is given."""
    return np.tile([distance, -distance], count)[:count]


def fragment(
    name: str,
    *works: Kernels,
    clock: str = BOOTTIME,
    pids: tuple[int, ...] = (),
    rank: int = 0,
    known_by: str = "",
) -> Fragment:
    """What a tool wrote of some processes, whose ranks only profiles (on `REALTIME`) state by default."""
    numbers = range(rank, rank + len(works))
    known_by = known_by or ("header" if clock == REALTIME else ASSUMED)
    of_ranks = zip(numbers, pids or (-1,) * len(works), strict=True)
    ranks = tuple(Rank(number, pid=pid, known_by=known_by) for number, pid in of_ranks)
    builder = TraceBuilder(Meta(clock=clock, ranks=ranks))
    for number, work in zip(numbers, works, strict=True):
        kinds = np.select(
            [work.name == COPY, work.name == FILL], [Kind.MEMCPY, Kind.MEMSET], Kind.KERNEL
        )
        # tools name kernels alike but for a suffix, copies and fills differently
        suffix = "" if clock == REALTIME else " [clone .kd]"
        names = [f"k{code}{suffix}" if code < FILL else f"{code} on {clock}" for code in work.name]
        builder.nodes(
            kind=kinds.astype(np.uint8), name=names, rank=number,
            lane=builder.lane(number, LaneKind.STREAM, 1, "s", number),
            ts=work.start + (BASE if clock == REALTIME else BOOT), dur=work.dur,
        )  # fmt: skip
    converter = registry.converters()["kineto" if clock == REALTIME else "rocprofv3-csv"]
    return Fragment(SourceFiles(converter, (Path(name),)), builder.finish())


def profile(rank: int, work: Kernels, pid: int = -1) -> Fragment:
    return fragment(f"rank{rank}", work, clock=REALTIME, pids=(pid,), rank=rank)


def chosen_ranks(
    processes: list[Fragment], profiles: list[Fragment], on_clock: tuple[Path, ...] = ()
) -> tuple[list[list[int]], dict[str, str]]:
    """Ranks of the processes of each fragment, and what is said of those that may be others."""
    issues = IssueLog("")
    matches = match_processes(processes, profiles, on_clock, issues)
    doubted = {i.source: i.example for i in issues if i.code == "process-ambiguous"}
    return [[m.profile_rank for m in of_fragment] for of_fragment in matches], doubted


@given(st.integers(0, 2**32 - 1))
def test_processes_are_the_ranks_that_a_search_of_all_pairings_finds(seed: int) -> None:
    """Data-parallel ranks, of which some have no profile and others no process; files are in any order."""
    random = np.random.default_rng(seed)
    ranks, count = int(random.integers(2, 6)), int(random.integers(30, 120))
    model = Kernels.of_seed(int(random.integers(2**32)), count)
    share, jitter = 10 ** random.uniform(-4, -2.5), int(10 ** random.uniform(1.5, 3.3))
    noise = int(random.integers(0, 200))
    own = [
        replace(
            model.moved(random.integers(-jitter, jitter + 1, count)),
            dur=np.rint(model.dur * random.normal(1, share, count)).astype(np.int64),
        )
        for _ in range(ranks)
    ]
    of_process = random.permutation(ranks)[random.random(ranks) < 0.85].tolist() or [0]
    profiled = sorted({*np.flatnonzero(random.random(ranks) < 0.85).tolist(), *of_process[:1]})
    recorded = [own[k].moved(random.integers(-noise, noise + 1, count)) for k in of_process]
    kept = random.random((len(recorded), count)) > 0.02

    def closeness(process: int, rank: int) -> float:
        both = kept[process]
        apart = (recorded[process].start - own[rank].start)[both]
        longer = (recorded[process].dur - own[rank].dur)[both]
        return log1p(np.abs(apart - np.median(apart)).mean()) + log1p(np.abs(longer).mean())

    table = {(p, r): closeness(p, r) for p in range(len(recorded)) for r in profiled}
    pairs = min(len(recorded), len(profiled))
    best = min(
        (
            list(zip(processes, of_ranks, strict=True))
            for processes in permutations(range(len(recorded)), pairs)
            for of_ranks in [profiled[:pairs]]
        )
        if len(profiled) <= len(recorded)
        else (
            list(zip(range(pairs), of_ranks, strict=True))
            for of_ranks in permutations(profiled, pairs)
        ),
        key=lambda pairing: sum(table[pair] for pair in pairing),
    )
    found, doubted = chosen_ranks(
        [fragment(f"{k}", work.some(kept[k])) for k, work in enumerate(recorded)],
        [profile(rank, own[rank]) for rank in profiled],
    )
    for process, of_rank in dict(best).items():
        if f"{process}" in doubted:
            continue
        if of_process[process] in profiled:
            assert found[process] == [of_rank] == [of_process[process]]
        else:  # it may be too far from what is left
            assert found[process] in ([], [of_rank])


@pytest.mark.xfail(strict=True, reason="how close two tools' times of one process are is not known")
def test_a_process_whose_rank_was_not_profiled_is_not_taken_for_another() -> None:
    """The other rank's process was not recorded, so that nothing is closer."""
    first, second = Kernels.of_seed(1, 60), Kernels.of_seed(1, 60).moved(alternating(60, 300))
    assert chosen_ranks([fragment("0", first)], [profile(1, second)])[0] == [[]]


def data_parallel(ranks: int, seed: int) -> list[Kernels]:
    """Ranks whose kernels start within a microsecond of each other, and last as long but for a hundredth."""
    random, model = np.random.default_rng(seed), Kernels.of_seed(seed, 200)
    return [
        replace(
            model.moved(random.integers(-500, 501, 200)),
            dur=np.rint(model.dur * random.normal(1, 0.01, 200)).astype(np.int64),
        )
        for _ in range(ranks)
    ]


def test_processes_are_compared_with_as_many_ranks_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once to choose a rank, once for its match."""
    compared = []
    match_work = clock_match.match_work

    def counted(a: ProcessWork, b: ProcessWork, *, same_process: bool) -> clock_match.Match | None:
        compared.append(a)
        return match_work(a, b, same_process=same_process)

    monkeypatch.setattr(clock_match, "match_work", counted)
    works = data_parallel(20, 16)
    processes = [
        fragment(f"{k}", work.some(np.arange(200) % 40 != k)) for k, work in enumerate(works)
    ]
    profiles = [profile(rank, work) for rank, work in enumerate(works)]
    assert chosen_ranks(processes, profiles) == ([[rank] for rank in range(20)], {})
    assert len(compared) == 40


@pytest.mark.parametrize("share", [0.01, 0.0005])
def test_a_process_without_the_durations_of_a_rank_is_none_where_another_has_them(
    share: float,
) -> None:
    """Rank 1 was not profiled, and the process of rank 2 was not recorded; microseconds may be the same."""
    works = data_parallel(3, 17)
    works = [
        replace(w, dur=np.rint(works[0].dur + share * (w.dur - works[0].dur)).astype(np.int64) + k)
        for k, w in enumerate(works)
    ]
    processes = [fragment("0", works[0]), fragment("1", works[1])]
    assert chosen_ranks(processes, [profile(0, works[0]), profile(2, works[2])])[0] == [[0], []]


def test_a_process_of_one_rank_alone_may_have_coarser_durations_than_others() -> None:
    """Its host's clock was converted otherwise."""
    works = data_parallel(3, 18)
    coarser = works[1].moved(dur=np.arange(200) % 3 - 1)
    processes = [fragment("0", works[0]), fragment("1", coarser)]
    profiles = [profile(rank, work) for rank, work in enumerate(works)]
    assert chosen_ranks(processes, profiles) == ([[0], [1]], {})


def test_a_process_whose_durations_are_further_than_those_of_others_is_none() -> None:
    """Tools differ by some nanoseconds, and on one host by more in starts; rank 3 was not profiled, process 2 not recorded."""
    works = data_parallel(5, 21)
    of_first = works[0].dur
    works = [
        replace(w, dur=of_first + np.rint(0.06 * (w.dur - of_first)).astype(np.int64))
        for w in works
    ]
    recorded = [
        work.moved(alternating(200, 10 if rank else 400), np.arange(200) % 11 - 5)
        for rank, work in enumerate(works)
    ]
    processes = [fragment(f"{rank}", recorded[rank]) for rank in (0, 1, 3, 4)]
    profiles = [profile(rank, works[rank]) for rank in (0, 1, 2, 4)]
    assert chosen_ranks(processes, profiles)[0] == [[0], [1], [], [4]]


@pytest.mark.parametrize("pids", [(-1, -1, -1, -1), (7, 8, 9, 10)])
def test_a_process_that_is_closest_to_its_rank_by_far_may_be_further_than_others(
    pids: tuple[int, ...],
) -> None:
    """Its host's clock was converted with another rate: by 24 ns of kernels of milliseconds, which differ by microseconds."""
    works = [replace(w, start=50 * w.start, dur=50 * w.dur) for w in data_parallel(4, 11)]
    last = replace(works[3], dur=np.rint(works[3].dur * (1 + 1e-5)).astype(np.int64))
    recorded = zip([*works[:3], last], pids, strict=True)
    processes = [fragment(f"{k}", work, pids=(pid,)) for k, (work, pid) in enumerate(recorded)]
    profiles = [profile(rank, works[rank], pid) for rank, pid in enumerate(pids)]
    assert chosen_ranks(processes, profiles) == ([[0], [1], [2], [3]], {})


def test_a_process_is_compared_with_all_ranks_where_its_durations_are_another_s() -> None:
    """Durations of the rank that is not it, at other times."""
    works = [Kernels.of_seed(seed, 200) for seed in (19, 19)]
    other = replace(works[1], start=Kernels.of_seed(20, 200).start)
    longer = works[0].moved(dur=np.arange(200) % 450)
    assert chosen_ranks([fragment("0", works[0])], [profile(0, other), profile(1, longer)])[0] == [
        [1]
    ]


def test_the_ids_of_unknown_processes_are_not_the_same() -> None:
    """Few kernels, of which one tool lost some, are matched of one process alone."""
    work = Kernels.of_seed(2, 12)
    process = work.some(np.arange(12) != 5)
    for pid, ranks in ((-1, []), (7, [0])):
        recorded, profiled = fragment("0", process, pids=(pid,)), profile(0, work, pid)
        assert chosen_ranks([recorded], [profiled])[0] == [ranks]


def test_that_clocks_show_equal_times_proves_nothing_unless_the_user_says_so() -> None:
    work = Kernels.of_seed(3, 12)
    process = work.some(np.arange(12) != 5).moved(BASE - BOOT)
    processes, profiles = [fragment("0", process)], [profile(0, work)]
    assert chosen_ranks(processes, profiles)[0] == [[]]
    assert chosen_ranks(processes, profiles, (processes[0].path,))[0] == [[0]]


@pytest.mark.parametrize("what", ["a third of the kernels", "microseconds"])
def test_records_of_one_process_need_not_be_alike(what: str) -> None:
    work = Kernels.of_seed(4, 90)
    other = work.some(np.arange(90) % 3 == 0)
    if what == "microseconds":
        other = replace(work, start=work.start // 1000 * 1000, dur=work.dur // 1000 * 1000)
    processes = [fragment("0", work, pids=(7,)), fragment("1", other, pids=(7,))]
    assert chosen_ranks(processes, [profile(0, work)]) == ([[0], [0]], {})


def test_a_fragment_of_which_a_process_is_no_rank_takes_none() -> None:
    """It is of another run, or of more ranks; its other process was the closer one."""
    work = Kernels.of_seed(5, 60)
    two = fragment("0", work, Kernels.of_seed(6, 60))
    process = work.moved(alternating(60, 100))
    assert chosen_ranks([two, fragment("1", process)], [profile(0, work)]) == ([[], [0]], {})


def test_processes_of_one_fragment_are_different_ranks() -> None:
    """Times are equal and no id is known, as of two records of one process."""
    work = Kernels.of_seed(7, 60)
    found, doubted = chosen_ranks([fragment("0", work, work)], [profile(r, work) for r in range(2)])
    assert [sorted(ranks) for ranks in found] == [[0, 1]]
    assert doubted


def test_a_process_that_is_left_over_is_said_to_be_any_of_those_that_are_as_close() -> None:
    work = Kernels.of_seed(8, 60)
    processes = [fragment(f"{k}", work, pids=(70 + k,)) for k in range(3)]
    found, doubted = chosen_ranks(processes, [profile(r, work) for r in range(2)])
    assert sorted(map(len, found)) == [0, 1, 1]
    (left,) = (k for k, ranks in enumerate(found) if not ranks)
    assert doubted[f"{left}"] == "taken for none, may be rank 0, rank 1"
    assert len(doubted) == 3


def test_ranks_are_told_apart_by_the_process_that_shows_it() -> None:
    """One tool's times scatter so that its process may be either rank; the other process cannot be that one's."""
    ranks = [Kernels.of_seed(9, 200), Kernels.of_seed(9, 200).moved(alternating(200, 150))]
    scattered = np.repeat(alternating(100, 400), 2)  # as far from both
    processes = [fragment("0", ranks[0].moved(scattered)), fragment("1", ranks[1])]
    profiles = [profile(rank, work) for rank, work in enumerate(ranks)]
    assert chosen_ranks(processes, profiles) == ([[0], [1]], {})


@pytest.mark.parametrize(
    ("kernels", "distance", "doubts"),
    [(100, 250, 1), (100, 400, 0), (20_000, 113, 1), (20_000, 130, 0)],
)
def test_a_rank_is_evident_by_how_many_kernels_are_how_much_closer(
    kernels: int, distance: int, doubts: int
) -> None:
    """Of many kernels a tenth in both distances; of few what five deviations of chance are."""
    work = Kernels.of_seed(10, kernels)
    profiles = [
        profile(r, work.moved(alternating(kernels, d))) for r, d in ((0, 100), (1, distance))
    ]
    found, doubted = chosen_ranks([fragment("0", work)], profiles)
    assert found == [[0]]
    assert len(doubted) == doubts


@pytest.mark.parametrize(("known_by", "rank"), [("name", 1), (ASSUMED, 0)])
def test_a_stated_rank_is_believed(known_by: str, rank: int) -> None:
    """Another rank is closer; that one is taken where the number is assumed."""
    work = Kernels.of_seed(12, 60)
    process = fragment("rank1", work, rank=1, known_by=known_by)
    profiles = [profile(0, work), profile(1, work.moved(alternating(60, 300)))]
    assert chosen_ranks([process], profiles) == ([[rank]], {})


def test_a_fragment_whose_process_lost_its_rank_to_a_closer_one_is_none_of_the_run() -> None:
    works = [Kernels.of_seed(seed, 60) for seed in (13, 14)]
    two = fragment("0", works[0], works[1].moved(alternating(60, 300)))
    profiles = [profile(rank, work) for rank, work in enumerate(works)]
    assert chosen_ranks([two, fragment("1", works[1])], profiles)[0] == [[], [1]]


@pytest.mark.parametrize(("unit", "ranks"), [(1, [0]), (1000, [])])
def test_short_kernels_in_a_row_are_matched_by_their_nanoseconds_alone(
    unit: int, ranks: list[int]
) -> None:
    """Of whole microseconds one kernel looks like the next, so that any of them may be missing."""
    random = np.random.default_rng(15)
    dur, late = (random.integers(0, 400, (2, 60)) // unit) * unit
    work = Kernels(np.zeros(60, np.int64), np.arange(60) * 10_000 + late, 5_000 + dur)
    process = work.some(np.arange(60) > 0)
    assert chosen_ranks([fragment("0", process)], [profile(0, work)])[0] == [ranks]


def test_times_are_whole_microseconds_if_all_are() -> None:
    first = np.arange(100) * 1000
    assert resolution_ns(first) == 1000
    assert resolution_ns(np.append(first, 100_001)) == 1


@pytest.mark.parametrize("clock", [ORDER, COMPUTED, BOOTTIME, REALTIME])
@pytest.mark.parametrize("of", ["process", "profile"])
def test_times_are_of_clocks(clock: str, of: str) -> None:
    """Processes are matched whose clock is not the trace's, with profiles whose clock is."""
    work = Kernels.of_seed(11, 60)
    processes, profiles = [fragment("0", work)], [profile(0, work)]
    if of == "process":
        processes = [fragment("0", work, clock=clock)]
    else:
        profiles = [fragment("1", work, clock=clock)]
    fits = clock == (BOOTTIME if of == "process" else REALTIME)
    assert chosen_ranks(processes, profiles)[0] == [[0] if fits else []]


@given(st.data())
def test_pairs_are_each_others_nearest_of_their_name(data: st.DataObject) -> None:
    times = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=8)
    sides = []
    for _ in range(2):
        name, start = zip(*sorted(data.draw(times), key=lambda pair: pair[1]), strict=True)
        sides.append(ProcessWork(*(np.array(c) for c in (name, start, start, start))))
    a, b = sides
    offset, within = data.draw(st.integers(-70, 70)), data.draw(st.integers(0, 50))
    apart = np.abs(a.start[:, None] - (b.start + offset)[None, :])
    apart = np.where(a.name[:, None] == b.name[None, :], apart, 1 << 40)
    i, j = nearest_pairs(a, b, Line(offset), within)
    distances = apart[i, j]
    assert (distances <= within).all()
    assert (distances == apart[i].min(axis=1)).all()
    assert (distances == apart[:, j].min(axis=0)).all()
    assert len(set(i.tolist())) == len(i) == len(set(j.tolist()))
    rest = np.setdiff1d(np.arange(len(a.start)), i)
    # what is left has no nearest, or one that has another
    for row in rest.tolist():
        near = int(apart[row].argmin())
        assert apart[row, near] > within or apart[:, near].min() <= apart[row, near]
