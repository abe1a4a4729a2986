"""Ranks are brought to one clock by the ends of collectives, where these determine it."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_files import BASE, call, kernel, write
from ranks import EPOCH, Member, clock, job
from read_once import read_once
from slow import slow_from

import chopper_interop as ci
from chopper_interop.build import TraceBuilder
from chopper_interop.clocks import rank_fit
from chopper_interop.clocks import ranks as rank_clocks
from chopper_interop.clocks import relations as clocks
from chopper_interop.edges import collectives
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.kinds import Collective, Kind
from chopper_interop.schemas.meta import COMPUTED, ClockFit

US, MS, S = 1_000, 1_000_000, 1_000_000_000
_RANDOM = st.randoms(use_true_random=True)
_PLACES = ((0, 1), (2, 3), (0, 2), (1, 3))


def members(
    rng: random.Random, groups: dict[str, list[int]], count: int, span: int, noise: int
) -> list[Member]:
    """Collectives spread over a time, ends of each within normal noise; late starters among them."""
    made = []
    for i in range(count):
        now = span * i // count + rng.randrange(span // count // 2)
        for g, (group, ranks) in enumerate(groups.items()):
            for rank in ranks:
                end = now + g * 2 * MS + 40 * MS + round(rng.gauss(0, noise))
                start = end - 10 * noise - rng.randrange(1, 30 * MS)
                made.append(Member(i * len(groups) + g, rank, start, end, group, seq=i))
    return made


def align(trace: ci.Trace) -> tuple[ci.Trace, dict[str, ClockFit], dict[str, int]]:
    issues = IssueLog("job")
    trace = rank_clocks.align_ranks(collectives.match_collectives(trace, issues), issues)
    return trace, {c.of: c for c in trace.meta.clocks}, {i.code: i.count for i in issues}


def error_ns(trace: ci.Trace, made: list[Member]) -> int:
    """Largest distance of a start from the true one, by the clock of the lowest rank."""
    true = {(m.truth, m.rank, m.kind): m.start for m in made}
    names, kind = trace.values("collective"), trace.array("kind")
    off = [
        abs(int(ts) + trace.meta.origin_ns - EPOCH - true[int(number), int(rank), names[i]])
        for i, (ts, number, rank) in enumerate(
            zip(trace.array("ts"), trace.array("correlation"), trace.array("rank"), strict=True)
        )
        if kind[i] == Kind.COMM
    ]
    return max(off)


@given(_RANDOM)
def test_offsets_and_drifts_are_recovered(rng: random.Random) -> None:
    ranks = list(range(rng.randint(2, 4)))
    clocks = {
        r: (rng.randrange(-4000 * S, 4000 * S), rng.choice([0, rng.uniform(-60, 60)]))
        for r in ranks[1:]
    }
    noise = rng.randrange(US, 10 * US)
    made = members(rng, {"0": ranks}, 60, 30 * S, noise)
    lost = [m for m in made if rng.random() > 0.1]
    trace, fits, counts = align(job(lost, clocks, {"0": ranks}))
    assert counts["ranks-aligned"] == len(ranks) - 1
    assert error_ns(trace, lost) < 3 * noise
    for rank, (offset, _) in clocks.items():
        fit = fits[f"rank {rank}"]
        assert fit.applied
        assert fit.uncertainty_ns < 4 * noise
        at = fit.pivot_ns - EPOCH
        assert (
            abs(rank_fit.corrections(np.array([at]), fit.offset_ns, 0, 0)[0] + offset)
            < 2000 * US + noise
        )


@pytest.mark.slow
@given(_RANDOM)
def test_groups_relate_ranks_in_a_chain(rng: random.Random) -> None:
    """Two by two, as tensor and data parallel ranks: no rank communicates with all others."""
    groups = {str(g): list(ranks) for g, ranks in enumerate(_PLACES)}
    clocks = {r: (rng.randrange(-50 * MS, 50 * MS), 0.0) for r in (1, 2, 3)}
    made = members(rng, groups, 12, S, 4 * US)
    trace, fits, _ = align(job(made, clocks, groups))
    assert error_ns(trace, made) < 40 * US
    assert all(fits[f"rank {r}"].applied for r in clocks)


def test_a_rank_without_a_chain_of_groups_keeps_its_times() -> None:
    rng = random.Random(2)  # noqa: S311 # not for secrets
    groups = {"0": [0, 1], "1": [2, 3]}
    made = members(rng, groups, 12, S, US)
    before = job(made, {3: (5 * MS, 0.0)}, groups)
    trace, fits, counts = align(before)
    assert counts == {"ranks-not-aligned": 2}
    assert "no collectives relate it to rank 0" in fits["rank 3"].reason
    assert trace.nodes["ts"].equals(before.nodes["ts"])


@pytest.mark.parametrize(
    ("count", "noise", "reason"),
    [(4, US, "4 synchronising collectives"), (40, 20 * MS, "differ by")],
)
def test_too_few_or_scattered_ends_are_refused(count: int, noise: int, reason: str) -> None:
    rng = random.Random(5)  # noqa: S311 # not for secrets
    made = members(rng, {"0": [0, 1]}, count, 10 * S, noise)
    before = job(made, {1: (7 * S, 0.0)}, {"0": [0, 1]})
    trace, fits, counts = align(before)
    assert counts == {"ranks-not-aligned": 1}
    assert reason in fits["rank 1"].reason
    assert not fits["rank 1"].applied
    assert trace.nodes["ts"].equals(before.nodes["ts"])


def test_a_correction_within_the_residual_is_not_applied() -> None:
    rng = random.Random(5)  # noqa: S311 # not for secrets
    made = members(rng, {"0": [0, 1]}, 40, S, 10 * US)
    trace, fits, counts = align(job(made, {1: (8 * US, 0.0)}, {"0": [0, 1]}))
    assert not counts
    assert "within the residual" in fits["rank 1"].reason
    assert fits["rank 1"].pairs == 40
    assert 0 < fits["rank 1"].uncertainty_ns < 25 * US
    again, *_ = align(trace)
    assert again is trace


def test_a_correction_below_three_standard_deviations_of_its_chain_is_not_applied() -> None:
    """Each group relates two ranks within 10 us, a chain of three within 17 us; 45 us are 2.6 of these."""
    rng = random.Random(3)  # noqa: S311 # not for secrets
    chain = {"0": [0, 1], "1": [1, 2], "2": [2, 3]}
    made = members(rng, chain, 60, 10 * S, 7 * US)
    _trace, fits, counts = align(job(made, {3: (45 * US, 0.0)}, chain))
    assert not counts
    assert 2 < 45 * US / fits["rank 3"].uncertainty_ns < 3
    assert "of its standard deviations" in fits["rank 3"].reason
    _, fits, counts = align(job(made, {3: (90 * US, 0.0)}, chain))
    assert counts == {"ranks-aligned": 1}
    assert fits["rank 3"].applied


def test_ends_that_often_scatter_make_a_correction_uncertain() -> None:
    """Each fifth end is late by 300 us, of which the median shows nothing."""
    rng = random.Random(5)  # noqa: S311 # not for secrets
    made = members(rng, {"0": [0, 1]}, 40, S, US)
    for member in made:
        member.end += 300 * US * (member.rank == 1 and member.truth % 5 == 0)
    for ahead, applied in ((400 * US, False), (900 * US, True)):
        _, fits, _ = align(job(made, {1: (ahead, 0.0)}, {"0": [0, 1]}))
        assert fits["rank 1"].applied == applied
        assert fits["rank 1"].uncertainty_ns == pytest.approx(300 * US / 1.645, rel=0.05)


def test_samples_of_a_rank_move_with_it() -> None:
    rng = random.Random(5)  # noqa: S311 # not for secrets
    before = job(members(rng, {"0": [0, 1]}, 40, S, US), {1: (5 * MS, 0.0)}, {"0": [0, 1]})
    builder = TraceBuilder()
    for rank in (0, 1):
        row = builder.series(rank, "socket power", "W", "x", device=0)
        builder.samples(row, np.array([S]), np.array([300.0]))
    sampled = builder.finish()
    before = replace(before, series=sampled.series, samples=sampled.samples)
    after, *_ = align(before)
    first, second = (
        trace.array("ts", "samples") + trace.meta.origin_ns for trace in (before, after)
    )
    assert (second - first).tolist() == [0, pytest.approx(-5 * MS, abs=10 * US)]


@pytest.mark.parametrize(
    ("count", "noise_ns", "ppb", "expected"),
    [
        (200, US, 20_000, 20_000),  # the last ends are late by 2 ms
        (10_000, 10 * US, 800, 0),  # certain, and less than the ends scatter by
    ],
)
def test_a_drift_is_that_of_most_ends_and_more_than_they_scatter_by(
    count: int, noise_ns: int, ppb: int, expected: int
) -> None:
    times = np.arange(count) * (10 * S // count)
    late = np.where(np.arange(count) >= count - 10, 2 * MS, 0)
    noise = np.random.default_rng(7).normal(0, noise_ns, count).astype(np.int64)
    fit = rank_fit.fit_clock(times, times + times * ppb // S + noise + late)
    assert fit.drift_ppb == pytest.approx(expected, abs=200)
    assert bool(fit.drift_ppb) == bool(expected)


@pytest.mark.parametrize("earlier", [0, 12 * MS])
def test_a_correction_that_messages_contradict_is_not_applied(earlier: int) -> None:
    """By the ends of collectives a clock is 9 ms ahead; without that messages arrive before they are sent."""
    rng = random.Random(3)  # noqa: S311 # not for secrets
    made = members(rng, {"0": [0, 1]}, 12, S, US)
    for i in range(40):
        at = 2 * S + i * 10 * MS
        got = at + 5 * MS - earlier
        made += [
            Member(100 + i, 0, at, at + MS, kind=Collective.SEND, seq=i, peer=1),
            Member(100 + i, 1, got, got + 2 * MS, kind=Collective.RECV, seq=i, peer=0),
        ]
    before = job(made, {1: (9 * MS, 0.0)}, {"0": [0, 1]})
    trace, fits, _ = align(before)
    assert fits["rank 1"].applied == (not earlier)
    if earlier:
        assert "contradict" in fits["rank 1"].reason
        assert trace.nodes["ts"].equals(before.nodes["ts"])


def test_one_host_has_one_clock() -> None:
    rng = random.Random(5)  # noqa: S311 # not for secrets
    made = members(rng, {"0": [0, 1, 2]}, 40, S, US)
    clocks = {1: (70 * US, 0.0), 2: (3 * MS, 0.0)}
    hosts = {0: "a", 1: "a", 2: "a"}
    _, fits, _ = align(job(made, clocks, {"0": [0, 1, 2]}, hosts))
    assert "one host" in fits["rank 1"].reason
    assert fits["rank 2"].applied  # 3 ms are no conversion of GPU times
    _, fits, _ = align(job(made, clocks, {"0": [0, 1, 2]}, hosts | {1: "b"}))
    assert fits["rank 1"].applied


@pytest.mark.parametrize(
    "kinds", [(Collective.BROADCAST, Collective.BROADCAST), (Collective.SEND, Collective.RECV)]
)
def test_broadcasts_and_sends_align_nothing_and_that_is_stated(kinds: tuple[str, str]) -> None:
    made = [
        Member(i, rank, 10 * MS * i, 10 * MS * i + MS, kind=kind, seq=i, peer=1 - rank)
        for i in range(20)
        for rank, kind in enumerate(kinds)
    ]
    trace, fits, counts = align(job(made, {1: (S, 0.0)}))
    assert not fits
    assert counts["ranks-not-aligned"] == 2
    assert trace.meta.origin_ns == EPOCH


def test_ranks_with_computed_times_are_not_aligned() -> None:
    rng = random.Random(5)  # noqa: S311 # not for secrets
    trace = job(members(rng, {"0": [0, 1]}, 40, S, US), {1: (S, 0.0)}).with_meta(clock=COMPUTED)
    assert not align(trace)[1]


@given(st.integers(-(2**62), 2**62), st.integers(-(10**6), 10**6), st.integers(-(10**14), 10**14))
def test_corrections_are_exact(offset: int, drift: int, away: int) -> None:
    t = 1_767_189_312_123_456_789
    (shift,) = rank_fit.corrections(np.array([t + away], np.int64), offset, drift, t).tolist()
    assert abs(shift - (offset + drift * away / 10**9)) <= 1 + abs(offset) * 2**-52
    expected = offset + drift * away // 10**9
    assert shift - expected in {0, -1}


def starts(trace: ci.Trace, rank: int) -> np.ndarray:
    own = trace.rank_rows[rank]
    return trace.array("ts")[own] + trace.meta.origin_ns


@pytest.mark.slow
def test_skewed_clocks_of_a_real_job_are_recovered(shared: Path) -> None:
    """Every event is back where it was, within what the ends of collectives scatter by."""
    folder = shared / "pytorch/clock_skew_4rank_amd"
    skewed = ci.read(folder)
    true = read_once(*sorted((shared / "pytorch/ddp_resnet_4rank_amd").glob("rank?.json.gz")))
    truth = json.loads((folder / "truth.json").read_text())
    fits = {c.of: c for c in skewed.meta.clocks}
    assert not {"ranks-apart", "ranks-not-aligned"} & {i.code for i in skewed.meta.issues}
    for rank in range(4):
        off = np.abs(np.sort(starts(skewed, rank)) - np.sort(starts(true, rank)))
        assert off.max() < 10 * US
        fit = fits[f"rank {rank}"]
        assert fit.applied == (rank > 0)
        added = truth[str(rank)]
        assert abs(fit.offset_ns + round(added["offset_us"] * 1000)) < 10 * US
    lines = [i.example for i in skewed.meta.issues if i.code == "ranks-aligned"]
    assert len(lines) == 1
    assert "rank 3 by -3,600,000," in lines[0]


@pytest.mark.parametrize(
    ("folder", "pattern", "residual_us"),
    slow_from(
        [
            ("dlrm_8rank_v100/kineto", "*.json", 3),
            ("torchrec_4rank_v100", "*.json", 40),
            ("ddp_resnet_4rank_amd", "rank?.json.gz", 9),
            ("base_boundary_4rank_amd", "rank?.json.gz", 9),
        ],
        1,
    ),
)
def test_ranks_of_one_host_keep_their_times(
    shared: Path, folder: str, pattern: str, residual_us: int
) -> None:
    trace = read_once(*sorted((shared / "pytorch" / folder).glob(pattern)))
    fits = [c for c in trace.meta.clocks if c.method == clocks.COLLECTIVE_ENDS]
    assert [c.of for c in fits] == [f"rank {r}" for r in trace.ranks]
    assert not any(c.applied for c in fits)
    assert all(c.reason for c in fits)
    assert all(0 < c.uncertainty_ns <= residual_us * US for c in fits[1:])


def test_different_bases_give_the_same_times(shared: Path) -> None:
    pattern = "rank?.json.gz"
    one, other = (
        read_once(*sorted((shared / "pytorch" / name).glob(pattern)))
        for name in ("ddp_resnet_4rank_amd", "base_boundary_4rank_amd")
    )
    for rank in range(4):
        shift = starts(other, rank) - starts(one, rank)
        assert np.ptp(shift) <= 8  # the file's decimals
        assert abs(int(shift[0]) - int((starts(other, 0) - starts(one, 0))[0])) <= 8


def test_the_clock_of_the_tests_is_an_offset_with_drift() -> None:
    assert clock(S, 5, 10) == S + 5 + 10_000


def test_ranks_of_another_host_have_one_correction() -> None:
    """Differences within a host are of its GPUs; a rank without collectives gets the host's too."""
    rng = random.Random(5)  # noqa: S311 # not for secrets
    ranks = [0, 1, 2, 3]
    made = members(rng, {"0": ranks}, 40, S, US)
    made += [Member(10**6, 4, 0, 5)]
    clocks = {2: (S + 5 * US, 0.0), 3: (S - 5 * US, 0.0), 4: (S, 0.0)}
    hosts = {0: "a", 1: "a", 2: "b", 3: "b", 4: "b"}
    trace, fits, counts = align(job(made, clocks, {"0": ranks}, hosts))
    assert counts["ranks-aligned"] == 3
    assert "ranks-not-aligned" not in counts
    assert len({fits[f"rank {r}"].offset_ns for r in (2, 3, 4)}) == 1
    assert error_ns(trace, made) < 15 * US


def test_telemetry_moves_with_its_host(tmp_path: Path) -> None:
    """Telemetry of the other host's GPU, whose clock is 20 s ahead as that of its ranks."""
    for rank, host in ((0, "node-a"), (1, "node-b")):
        ahead = 20 * 10**6 * rank  # microseconds
        events = []
        for i in range(8):
            at = ahead + 500_000 * i + (200_000 if i % 3 else 100_000)
            args = {
                "Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8,
                "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
                "Seq": i, "device": 0,
            }  # fmt: skip
            events += [call("cudaLaunchKernelExC", at, 5, i + 1, pid=100 + rank)]
            events += [kernel("ncclDevKernel_AllReduce", at + 10, 50, i + 1, **args) | {"pid": 0}]
        info = {"distributedInfo": {"rank": rank, "world_size": 2}, "host_name": host}
        folder = tmp_path / host
        folder.mkdir()
        write(folder / f"rank{rank}.json", events, baseTimeNanoseconds=BASE, **info)
        rows = [f"{BASE // S + 20 * rank + second},0,{300 + second},1000" for second in range(4)]
        header = "timestamp,gpu,socket_power,gfx_0_clk"
        (folder / "watch.csv").write_text("\n".join([header, *rows]) + "\n")
    trace = ci.read(tmp_path)
    owner = trace.array("rank", "series")[trace.array("series", "samples")]
    ts = trace.array("ts", "samples") + trace.meta.origin_ns - BASE
    assert {int(r) for r in owner} == {0, 1}
    assert ts[owner == 0].max() == 3 * S + S // 2  # a whole second stands for its middle
    assert ts[owner == 1].tolist() == ts[owner == 0].tolist()
    assert not {"telemetry-apart", "ranks-apart"} & {i.code for i in trace.meta.issues}


def test_a_rank_with_an_offset_of_the_user_is_not_aligned() -> None:
    rng = random.Random(5)  # noqa: S311 # not for secrets
    made = members(rng, {"0": [0, 1, 2]}, 40, S, US)
    before = job(made, {1: (3 * MS, 0.0), 2: (S, 0.0)}, {"0": [0, 1, 2]})
    stated = ClockFit("rank 1", before.meta.clock, clocks.USER, offset_ns=MS)
    trace, _, counts = align(before.with_meta(clocks=(stated,)))
    assert counts == {"ranks-aligned": 1}
    assert [(c.of, c.method, c.applied) for c in trace.meta.clocks] == [
        ("rank 1", clocks.USER, True),
        ("rank 0", clocks.COLLECTIVE_ENDS, False),
        ("rank 1", clocks.COLLECTIVE_ENDS, False),
        ("rank 2", clocks.COLLECTIVE_ENDS, True),
    ]
    assert starts(trace, 1).tolist() == starts(before, 1).tolist()
