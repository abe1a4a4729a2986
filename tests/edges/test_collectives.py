"""Members of a collective are matched by sequence numbers, else by order, never by time."""

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import Member, instances, job, rows_of_instances, truth
from read_once import read_once
from slow import slow_from

import chopper_interop as ci
from chopper_interop.arrays import arrow
from chopper_interop.build import TraceBuilder
from chopper_interop.clocks import ranks as rank_clocks
from chopper_interop.edges import collectives
from chopper_interop.edges.collective_order import RankSequence, match_by_order
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.kinds import (
    EDGE_ENDPOINTS,
    Collective,
    EdgeKind,
    Endpoint,
    Kind,
    LaneKind,
)
from chopper_interop.schemas.meta import ClockFit
from chopper_interop.trace import empty

MS = 1_000_000
STEP = [Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.ALL_REDUCE, Collective.ALL_TO_ALL]
_RANDOM = st.randoms(use_true_random=True)


def line(rng: random.Random, count: int, ranks: int, *, stated: bool) -> list[Member]:
    """Collectives of all ranks, milliseconds apart, members of each ending within 10 us."""
    members = []
    now = 0
    for i in range(count):
        now += rng.randrange(2 * MS, 30 * MS)
        for rank in range(ranks):
            end = now + rng.randrange(10_000)
            kind = STEP[i % len(STEP)]
            size = rng.randrange(1, 9) if kind == Collective.ALL_TO_ALL else 64 * (i % len(STEP))
            start = end - rng.randrange(20_000, MS)
            seq = 100 + i if stated else None
            members.append(Member(i, rank, start, end, kind=kind, size=size, seq=seq))
    return members


def matched(trace: ci.Trace) -> tuple[ci.Trace, dict[str, int]]:
    issues = IssueLog("job")
    trace = collectives.match_collectives(trace, issues)
    return trace, {issue.code: issue.count for issue in issues}


@given(_RANDOM)
def test_sequence_numbers_match_whatever_is_missing(rng: random.Random) -> None:
    ranks = rng.randint(2, 5)
    members = line(rng, 12, ranks, stated=True)
    members = [m for m in members if rng.random() < 0.8 or m.truth in (0, 11)]
    clocks = {r: (rng.randrange(-4000, 4000) * 10**9, 0.0) for r in range(1, ranks)}
    trace, counts = matched(job(members, clocks))
    assert rows_of_instances(trace) == truth(trace)
    assert set(counts) <= {"collectives-alone"}


@given(_RANDOM)
def test_order_matches_windows_that_differ(rng: random.Random) -> None:
    """Steps repeat, so that their order fits at several offsets; ends decide which is right."""
    ranks, count = rng.randint(2, 4), 24
    windows = [(rng.randrange(6), count - rng.randrange(6)) for _ in range(ranks)]
    members = [
        m
        for m in line(rng, count, ranks, stated=False)
        if windows[m.rank][0] <= m.truth < windows[m.rank][1]
    ]
    clocks = {
        r: (rng.randrange(-4000, 4000) * 10**9, rng.uniform(-50, 50)) for r in range(1, ranks)
    }
    trace, counts = matched(job(members, clocks))
    assert rows_of_instances(trace) == truth(trace)
    assert counts["collectives-by-order"] == sum(map(len, truth(trace)))


@given(_RANDOM)
def test_order_matches_around_what_one_rank_lacks(rng: random.Random) -> None:
    members = line(rng, 24, 2, stated=False)
    lost = rng.randrange(1, 23)
    trace, _ = matched(
        job([m for m in members if (m.truth, m.rank) != (lost, 1)], {1: (5 * MS, 0)})
    )
    assert set(map(tuple, rows_of_instances(trace))) <= set(
        map(tuple, truth(trace))
    )  # never a wrong one
    assert len(rows_of_instances(trace)) >= 20


def test_regular_steps_are_matched_where_clocks_agree() -> None:
    """Only the clock decides which step is which when every step takes the same time."""
    members = [
        Member(i, rank, 30 * MS * i, 30 * MS * i + MS + rank) for i in range(13) for rank in (0, 1)
    ]
    for lost in (0, 12):
        trace, _ = matched(job([m for m in members if (m.truth, m.rank) != (lost, 1)]))
        assert rows_of_instances(trace) == truth(trace)


@given(_RANDOM)
def test_what_does_not_fit_is_not_matched(rng: random.Random) -> None:
    wrong = [
        Member(rank * 100 + i, rank, t := rng.randrange(10**9), t + MS)
        for rank in (0, 1)
        for i in range(20)
    ]
    trace, counts = matched(job(wrong))
    assert not rows_of_instances(trace)
    assert counts["collectives-unmatched"] == 20


def test_kernels_under_one_number_are_matched_by_their_order() -> None:
    members = [
        Member(2 * i + k, rank, 100 * MS * i + k * MS, 100 * MS * i + k * MS + 10, seq=i)
        for rank in (0, 1)
        for i in range(3)
        for k in range(2)
    ]
    trace, counts = matched(job(members))
    assert rows_of_instances(trace) == truth(trace)
    assert not counts
    trace, counts = matched(job(members[:-1]))
    assert counts == {"collectives-uneven": 3}
    assert len(rows_of_instances(trace)) == 4


def test_groups_have_numbers_of_their_own() -> None:
    groups = {"tp": [0, 1], "dp": [0, 2]}
    members = [
        Member(10 * g + i, rank, 10 * MS * i + g, 10 * MS * i + MS, name, seq=i)
        for g, (name, ranks) in enumerate(groups.items())
        for i in range(4)
        for rank in ranks
    ]
    trace, counts = matched(job(members, groups=groups))
    assert rows_of_instances(trace) == truth(trace)
    assert not counts


def test_a_group_that_each_rank_calls_by_its_own_name_is_one() -> None:
    groups = {"0": [0, 1], "1": [0, 1], "2": [0, 1]}
    members = [Member(i, r, i * MS, i * MS + 9, str(r), seq=i) for i in range(3) for r in (0, 1)]
    assert len(rows_of_instances(matched(job(members, groups=groups))[0])) == 3
    more = [Member(9, r, 9 * MS, 9 * MS + 9, "2", seq=1) for r in (0, 1)]
    two = [Member(m.truth, m.rank, m.start, m.end, "1", seq=m.seq) for m in members]
    trace, _ = matched(job(two + more, groups=groups))
    assert rows_of_instances(trace) == truth(trace)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 3)), max_size=20))
def test_sends_and_receives_are_paired_in_order(messages: list[tuple[int, int, int]]) -> None:
    members = [Member(99, rank, 10**9, 10**9 + 5) for rank in range(3)]
    for i, (src, dst, size) in enumerate(messages):
        if src != dst:
            send, recv = Collective.SEND, Collective.RECV
            members += [
                Member(i, src, i * MS, i * MS + 50, kind=send, size=size, peer=dst),
                Member(i, dst, i * MS, i * MS + 60, kind=recv, size=size, peer=src),
            ]
    trace, counts = matched(job(members))
    assert rows_of_instances(trace) == truth(trace)
    assert "sends-unpaired" not in counts


def test_sends_without_a_receive_are_logged() -> None:
    send, recv = Collective.SEND, Collective.RECV
    members = [
        Member(0, 0, 0, 50, kind=send, size=8, peer=1),
        Member(1, 0, MS, MS + 50, kind=send, size=9, peer=1),
        Member(2, 0, 2 * MS, 2 * MS + 50, kind=send, size=9, peer=5),
        Member(0, 1, 0, 60, kind=recv, size=8, peer=0),
    ]
    trace, counts = matched(job(members))
    assert rows_of_instances(trace) == truth(trace)
    assert counts == {"sends-unpaired": 2}


def test_receives_of_no_send_do_not_pair_with_each_other() -> None:
    send, recv = Collective.SEND, Collective.RECV
    members = [Member(0, 0, 0, 50, kind=send, size=8, peer=1)]
    sizes = (1, 2, 8, 3)
    members += [
        Member(0 if size == 8 else 9 + i, 1, i * MS, i * MS + 60, kind=recv, size=size, peer=0)
        for i, size in enumerate(sizes)
    ]
    trace, counts = matched(job(members))
    assert rows_of_instances(trace) == truth(trace)
    assert counts == {"sends-unpaired": 3}


def test_receives_do_not_end_before_their_sends_begin() -> None:
    """Ends of buffered sends say nothing: here they would agree if each receive had the next send."""
    delays = [0.2, 1.2, 0.2, 0.2, 1.2, 0.2, 0.2, 1.2]
    starts = [0, 1, 3, 5, 6, 8, 10, 11, 13]
    members = [
        Member(i, 0, at * MS, at * MS + 30_000, kind=Collective.SEND, size=8, peer=1)
        for i, at in enumerate(starts)
    ]
    for i, (at, delay) in enumerate(zip(starts[1:], delays, strict=True), 1):
        end = at * MS + 30_000 + int(delay * MS)
        members.append(Member(i, 1, end - 9_000, end, kind=Collective.RECV, size=8, peer=0))
    trace, _ = matched(job(members))
    assert rows_of_instances(trace) == truth(trace)


def _messages(numbers: dict[str, list[tuple[int, int]]]) -> list[Member]:
    """Sends of rank 0 and receives of rank 1, of each what message it is and its number."""
    return [
        Member(i, rank, i * MS, i * MS + 50 + rank, kind=kind, seq=seq, peer=1 - rank)
        for rank, kind in enumerate((Collective.SEND, Collective.RECV))
        for i, seq in numbers[kind]
    ]


@pytest.mark.parametrize(
    "received",
    [
        [(i, i) for i in range(4, 10)],  # its window begins and ends one earlier
        [(i, 2 * i - 3) for i in range(5, 11)],  # a number for each message with any rank
    ],
)
def test_numbers_pair_sends_with_receives_where_both_count_the_same(
    received: list[tuple[int, int]],
) -> None:
    trace, counts = matched(
        job(_messages({"send": [(i, i) for i in range(5, 11)], "recv": received}))
    )
    assert rows_of_instances(trace) == truth(trace)
    assert counts.get("sends-unpaired", 0) == 12 - 2 * len(truth(trace))


def test_numbers_of_messages_that_sizes_contradict_are_not_relied_on() -> None:
    """Each end counts from where its own recording begins: the receive of number 0 is of send 1."""
    members = [
        Member(i, rank, i * MS, i * MS + 50 + rank, kind=kind, size=8 << i, seq=i - rank, peer=1 - rank)
        for rank, kind in enumerate((Collective.SEND, Collective.RECV))
        for i in range(rank, 8 + rank)
    ]  # fmt: skip
    trace, counts = matched(job(members))
    assert rows_of_instances(trace) == truth(trace)
    assert counts == {"sends-unpaired": 2}


def endpoints_are_ordered(trace: ci.Trace) -> bool:
    """Return true if starts and ends, with all edges between them, have no cycle."""
    graph: nx.DiGraph = nx.DiGraph()
    for node in range(trace.nodes.num_rows):
        graph.add_edge((node, Endpoint.START), (node, Endpoint.END))
    lane = trace.array("lane")
    for number in np.unique(lane):
        selected = np.flatnonzero(lane == number).tolist()
        graph.add_edges_from(
            ((a, Endpoint.END), (b, Endpoint.START)) for a, b in pairwise(selected)
        )
    src, dst, kind = (trace.array(c, "edges").tolist() for c in ("src", "dst", "kind"))
    for a, b, k in zip(src, dst, kind, strict=True):
        out, into = EDGE_ENDPOINTS.get(EdgeKind(k), (Endpoint.END, Endpoint.START))
        graph.add_edge((a, out), (b, into))
    return nx.is_directed_acyclic_graph(graph)


@given(_RANDOM)
def test_edges_lead_from_the_last_to_start_and_close_no_cycle(rng: random.Random) -> None:
    members = [
        Member(i, r, t := 20 * i + rng.randrange(12), t + rng.randrange(12), seq=i)
        for i in range(6)
        for r in range(3)
    ]
    issues = IssueLog()
    trace = collectives.add_collective_edges(matched(job(members))[0], issues)
    ts, end = trace.array("ts"), trace.array("ts") + trace.array("dur")
    src, dst = (trace.array(c, "edges") for c in ("src", "dst"))
    assert (ts[src] <= end[dst]).all()
    assert endpoints_are_ordered(trace)
    late = sum(issue.count for issue in issues if issue.code == "collectives-contradicted")
    assert len(src) + late == sum(len(rows) - 1 for rows in truth(trace))
    for rows in truth(trace):
        selected = np.isin(dst, rows)
        assert (ts[src[selected]] == ts[rows].max()).all()


def test_a_broadcast_waits_for_its_root_alone() -> None:
    members = [
        Member(i, r, i * MS, i * MS + 50, kind=Collective.BROADCAST, seq=i)
        for i in range(3)
        for r in (0, 1)
    ]
    trace = matched(job(members))[0]
    issues = IssueLog()
    assert not collectives.add_collective_edges(trace, issues).edges.num_rows
    assert [(i.code, i.count) for i in issues] == [("collectives-root-unknown", 6)]


@pytest.mark.parametrize("kind", [None, Collective.ALL_REDUCE])
def test_collectives_of_unknown_kind_wait_as_most_do(kind: str | None) -> None:
    """The path and the figures of `collectives` agree on who waits, whatever is known of the kind."""
    builder = TraceBuilder()
    for rank, dur in enumerate((100, 500)):
        lane = builder.lane(rank, LaneKind.STREAM, 7, "stream 7", 0)
        for k in range(6):
            of_all = {"name": "k", "rank": rank, "lane": lane}
            builder.nodes(kind=int(Kind.KERNEL), ts=np.array([600 * k]), dur=dur, **of_all)
            of_all |= {"collective": kind} if kind else {}
            builder.nodes(
                kind=int(Kind.COMM), ts=np.array([600 * k + dur]), dur=600 - dur, **of_all
            )
    trace, counts = matched(builder.finish())
    issues = IssueLog()
    trace = collectives.add_collective_edges(trace, issues)
    expected = {} if kind else {"collectives-kind-unknown": 12}
    assert {i.code: i.count for i in issues} == expected
    assert counts == {"collectives-by-order": 12}
    assert ci.analyze(trace, "collectives").summary["wait_ns"] == 6 * 400
    path = ci.analyze(trace, "critical_path").summary
    assert (path["compute_ns"], path["comm_ns"]) == (6 * 500, 6 * 100)


@pytest.mark.parametrize(
    ("count", "code"), [(4, "collectives-unmatched"), (5, "collectives-by-order")]
)
def test_few_collectives_of_unknown_kind_are_not_matched(count: int, code: str) -> None:
    """Their ends may agree by chance."""
    starts = [i * MS + MS * i * i // 7 for i in range(count)]
    members = [
        Member(i, rank, at, at + MS // 2, kind=None, size=None)
        for i, at in enumerate(starts)
        for rank in (0, 1)
    ]
    trace, counts = matched(job(members))
    assert counts == {code: 2 * count}
    assert rows_of_instances(trace) == (truth(trace) if count > 4 else [])


@pytest.mark.parametrize("kind", ["broadcast", "scatter", "reduce", "gather"])
def test_a_stated_root_is_waited_for_or_waits(kind: str) -> None:
    """Three collectives: with a stated root, with one not in the trace, with two different ones."""
    roots = {0: (1, 1, None), 1: (7, 7, 7), 2: (0, 1, 1)}
    members = [
        Member(i, r, i * MS + r, i * MS + 50, kind=kind, seq=i, root=root)
        for i, stated in roots.items()
        for r, root in enumerate(stated)
    ]
    issues = IssueLog()
    trace = collectives.add_collective_edges(matched(job(members))[0], issues)
    src, dst = (trace.array("rank")[trace.array(c, "edges")].tolist() for c in ("src", "dst"))
    ends = (src, dst) if kind in ("broadcast", "scatter") else (dst, src)
    assert (ends[0], sorted(ends[1])) == ([1, 1], [0, 2])
    assert set(trace.array("correlation")[trace.array("src", "edges")].tolist()) == {0}
    assert [(i.code, i.count) for i in issues] == [("collectives-root-unknown", 6)]
    assert endpoints_are_ordered(trace)


def test_a_member_that_ends_before_the_root_starts_contradicts() -> None:
    kind = Collective.BROADCAST
    members = [Member(0, r, 60 * r, 60 * r + 50, kind=kind, seq=0, root=1) for r in (0, 1)]
    issues = IssueLog()
    assert not collectives.add_collective_edges(matched(job(members))[0], issues).edges.num_rows
    assert [(i.code, i.count) for i in issues] == [("collectives-contradicted", 1)]


@pytest.mark.parametrize(("late_by", "kept"), [(MS // 40, 1), (MS // 25, 0)])
def test_an_edge_that_contradicts_clocks_by_less_than_their_error_is_kept(
    late_by: int, kept: int
) -> None:
    """Clocks are known within 10 us each: 3 sigma of two are 42 us, of one 30."""
    members = [Member(0, 0, 0, MS, seq=0), Member(0, 1, MS + late_by, 2 * MS, seq=0)]
    trace = matched(job(members))[0]
    fit = ClockFit("rank 1", trace.meta.clock, "", uncertainty_ns=MS // 100, applied=False)
    issues = IssueLog()
    made = collectives.add_collective_edges(trace.with_meta(clocks=(fit,)), issues)
    assert made.edges.num_rows == kept
    assert [i.code for i in issues] == ["collectives-contradicted"] * (not kept)


def test_instances_are_stated_by_any_numbers() -> None:
    members = [Member(i, r, i * MS, i * MS + 50, seq=i) for i in range(3) for r in (0, 1)]
    trace = matched(job(members))[0]
    numbers = arrow.to_numpy(trace.nodes["instance"], -1)
    high = arrow.array((1 << 31) - 1 - numbers.astype(np.int64), mask=numbers < 0)
    edges = [
        collectives.add_collective_edges(t, IssueLog()).edges
        for t in (trace, trace.with_columns(instance=high))
    ]
    assert edges[0].num_rows == 3
    assert edges[1].equals(edges[0])


def test_a_member_that_ends_when_the_last_starts_contradicts() -> None:
    """At equal times ends come before starts, as for all dependencies."""
    members = [Member(0, 0, 0, 50, seq=0), Member(0, 1, 50, 90, seq=0)]
    for ranks in ((0, 1), (1, 0)):  # whichever row is the first
        issues = IssueLog()
        made = [replace(m, rank=ranks[m.rank]) for m in members]
        assert not collectives.add_collective_edges(matched(job(made))[0], issues).edges.num_rows
        assert [(i.code, i.count) for i in issues] == [("collectives-contradicted", 1)]


@given(_RANDOM)
@settings(max_examples=3)
def test_stated_instances_and_edges_stay(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    issues, tmp_path = IssueLog(), tmp_path_factory.mktemp("stated")
    trace = collectives.add_collective_edges(matched(job(line(rng, 9, 2, stated=True)))[0], issues)
    ci.write(trace, tmp_path / "job.parquet")
    again = ci.read(tmp_path / "job.parquet")
    assert instances(again) == instances(trace)
    assert again.edges.equals(trace.edges)
    assert collectives.match_collectives(again, issues) is again
    assert collectives.add_collective_edges(again, issues) is again


def test_issues_that_are_read_back_are_logged_once(tmp_path: Path) -> None:
    kind = Collective.BROADCAST
    members = [Member(0, r, 60 * r, 60 * r + 50, kind=kind, seq=0, root=1) for r in (0, 1)]
    members += [Member(1, r, MS, MS + 50, kind=kind, seq=1) for r in (0, 1)]
    issues = IssueLog("job")
    trace = collectives.add_collective_edges(matched(job(members))[0], issues)
    ci.write(trace.with_meta(issues=tuple(issues)), tmp_path / "job.parquet")
    again = ci.read(tmp_path / "job.parquet")
    counts = {i.code: i.count for i in again.meta.issues if i.code.startswith("collectives-")}
    assert counts == {"collectives-contradicted": 1, "collectives-root-unknown": 2}


def test_parts_that_were_written_each_as_a_whole_are_matched_again(tmp_path: Path) -> None:
    """Each numbers from 0 what only it has; in each a rank's clock is 5 s ahead."""
    members = []
    for i in range(24):
        now = i * i * MS
        members += [Member(2 * i, r, now + r, now + MS, seq=i) for r in range(4)]
        members += [
            Member(1000 * (r // 2 + 1) + i, r, now + 2 * MS, now + 3 * MS, f"pair {r // 2}", seq=i)
            for r in range(4)
        ]
    pairs = {"pair 0": [0, 1], "pair 1": [2, 3]}
    ahead = dict.fromkeys((1, 3), (5000 * MS, 0.0))
    for part in ((0, 1), (2, 3)):
        issues = IssueLog("job")
        trace = matched(job([m for m in members if m.rank in part], ahead, pairs))[0]
        trace = collectives.add_collective_edges(rank_clocks.align_ranks(trace, issues), issues)
        trace = trace.with_meta(issues=tuple(issues))
        ci.write(trace, tmp_path / f"part{part[0]}.parquet")
    again = ci.read(tmp_path / "part0.parquet", tmp_path / "part2.parquet")
    assert rows_of_instances(again) == truth(again)
    src, dst = (again.array(c, "edges") for c in ("src", "dst"))
    comm = again.array("kind", "edges") == EdgeKind.COMM
    assert np.count_nonzero(comm) == sum(len(rows) - 1 for rows in truth(again))
    number = again.array("correlation")
    assert (number[src[comm]] == number[dst[comm]]).all()
    by_code = {i.code: i for i in again.meta.issues}
    assert by_code["collectives-rematched"].count == 2
    assert "rank 1 by -5,000,000.000 us" in by_code["collectives-rematched"].example
    assert [fit.of for fit in again.meta.clocks] == [f"rank {r}" for r in range(4)]


@pytest.mark.parametrize(
    ("folder", "pattern", "counts"),
    slow_from(
        [
            ("pytorch/dlrm_8rank_v100/kineto", "*.json", (64, 64, 8, 56)),
            ("pytorch/torchrec_4rank_v100", "*.json", (120, 120, 30, 90)),
            ("pytorch/ddp_resnet_4rank_amd", "rank?.json.gz", (84, 84, 21, 63)),
            ("pytorch/ddp_resnet_4rank_amd", "merged*", (84, 84, 21, 63)),
        ],
        1,
    ),
)
def test_real_jobs(shared: Path, folder: str, pattern: str, counts: tuple[int, ...]) -> None:
    trace = read_once(*sorted((shared / folder).glob(pattern)))
    comm = np.count_nonzero(trace.array("kind") == Kind.COMM)
    rows = rows_of_instances(trace)
    drawn = np.count_nonzero(trace.array("kind", "edges") == EdgeKind.COMM)
    assert (comm, sum(map(len, rows)), len(rows), drawn) == counts
    ranks = trace.array("rank")
    assert all(sorted(ranks[r].tolist()) == trace.ranks for r in rows)


@pytest.mark.parametrize(
    ("folder", "pattern"),
    slow_from(
        [
            ("pytorch/dlrm_8rank_v100/kineto", "*.json"),
            ("pytorch/torchrec_4rank_v100", "*.json"),
            ("pytorch/ddp_resnet_4rank_amd", "rank?.json.gz"),
        ],
        2,
    ),
)
def test_what_ranks_lack_makes_no_match_wrong(shared: Path, folder: str, pattern: str) -> None:
    """Without sequence numbers, with clocks apart by minutes, and with any collectives gone."""
    complete = read_once(*sorted((shared / folder).glob(pattern)))
    rows = np.flatnonzero(complete.array("kind") == Kind.COMM)
    nodes = arrow.take(complete.nodes, rows).drop_columns(["instance"])
    nodes = nodes.drop_columns([c for c in ("seq",) if c in nodes.column_names])
    true, rank = np.array(instances(complete))[rows], complete.array("rank")[rows]
    rng = np.random.default_rng(7)
    missed = 0
    for _ in range(10):
        apart = rng.integers(-600, 600, len(complete.ranks)) * 10**9
        kept = rng.random(len(rows)) > 0.05 * (rank % 2)
        moved = arrow.replace_column(nodes, "ts", arrow.to_numpy(nodes["ts"]) + apart[rank])
        part = arrow.take(moved, kept)
        trace = replace(complete, nodes=part, edges=empty("edges"), counters=empty("counters"))
        of_rank: dict[int, set[int]] = {}
        for number, truth_of in zip(instances(matched(trace)[0]), true[kept].tolist(), strict=True):
            missed += number is None
            if number is not None:
                of_rank.setdefault(number, set()).add(truth_of)
        assert all(len(mixed) == 1 for mixed in of_rank.values())
    assert missed < 0.1 * 10 * len(rows)


@pytest.mark.parametrize(
    ("unlaunched", "late_ns"),
    [(set(), 60_000), ({(0, 0), (0, 1), (1, 0), (1, 1)}, 60_000), ({(0, 7)}, 0)],
)
def test_collectives_of_two_streams_are_matched_by_the_order_of_their_launches(
    unlaunched: set[tuple[int, int]], late_ns: int
) -> None:
    """A rank whose compute is late starts one stream's collectives behind the other's, launched before.

    The first ones may have been queued before the recording. If a launch between others is unknown, starts decide.
    """
    builder = TraceBuilder()
    launched = []
    for rank in (0, 1):
        thread = builder.lane(rank, LaneKind.THREAD, 1, "main")
        for i in range(12):
            gathers = i % 2 == 0
            late = late_ns if rank == 0 and i in (4, 8) else 0
            end = 1_000_000 + 500_000 * (i // 2) + (40_000 if gathers else 0)
            length = 120_000 if gathers else 60_000
            stream = builder.lane(rank, LaneKind.STREAM, 7 + i % 2, f"stream {7 + i % 2}", 0)
            kind = Collective.ALL_GATHER if gathers else Collective.REDUCE_SCATTER
            work = builder.nodes(
                kind=int(Kind.COMM), name="nccl", rank=rank, lane=stream, ts=np.array([end - length + late]),
                dur=length - late, correlation=i, collective=kind, bytes=64,
            )  # fmt: skip
            if (rank, i) not in unlaunched:
                call = builder.nodes(
                    kind=int(Kind.RUNTIME), name="hipLaunchKernel", rank=rank, lane=thread,
                    ts=np.array([1000 * i]), dur=500, correlation=i,
                )  # fmt: skip
                launched.append((call, work))
    src, dst = np.array(launched).reshape(-1, 2).T
    builder.edges(src, dst, int(EdgeKind.LAUNCH))
    trace, counts = matched(builder.finish())
    communicates = trace.array("kind") == Kind.COMM
    number, of_rank = trace.array("correlation")[communicates], trace.array("rank")[communicates]
    instance = trace.integers("instance")[communicates]
    assert set(counts) == {"collectives-by-order"}
    assert len(set(instance.tolist())) == 12
    for i in range(12):
        assert len(set(instance[number == i].tolist())) == 1, i
    assert (np.bincount(of_rank) == 12).all()


def test_ranks_that_began_later_are_each_matched_by_their_own_shift() -> None:
    """Where nothing ends together, only the order says which collective of the longest record is which."""
    code = np.arange(12)
    parts = [slice(0, 12), slice(0, 9), slice(3, 12)]
    ranks = [RankSequence(code[p], 100 * code[p], np.zeros(len(code[p]), bool)) for p in parts]
    matched = match_by_order(ranks)
    assert [position.tolist() for position in matched] == [code[p].tolist() for p in parts]
