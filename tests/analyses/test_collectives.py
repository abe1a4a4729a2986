"""Transfer, waiting, bandwidth and lateness of collectives, against plain loops and the sample job."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_once import read_once
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.collectives import collectives
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import Collective, Kind, LaneKind
from chopper_interop.schemas.meta import ClockFit, Meta, Rank
from chopper_interop.testing import check_analysis

if TYPE_CHECKING:
    from pathlib import Path

TOGETHER = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
    Collective.BARRIER,
    None,
)
FROM_ROOT, TO_ROOT = (
    (Collective.BROADCAST, Collective.SCATTER),
    (Collective.REDUCE, Collective.GATHER),
)


@dataclass(frozen=True)
class Member:
    """A kernel that communicates, and what is stated of it."""

    rank: int
    start: int
    dur: int
    kind: str | None = Collective.ALL_REDUCE
    instance: int | None = 0
    root: int | None = None
    put: int | None = 64
    got: int | None = None

    @property
    def end(self) -> int:
        return self.start + self.dur


def job(members: list[Member], **meta: Any) -> ci.Trace:
    builder = TraceBuilder(Meta(**meta))
    for m in members:
        stated = {
            "collective": m.kind,
            "instance": m.instance,
            "root": m.root,
            "bytes": m.put,
            "out_bytes": m.got,
        }
        builder.nodes(
            kind=int(Kind.COMM),
            name="nccl",
            rank=m.rank,
            lane=builder.lane(m.rank, LaneKind.STREAM, 7, "stream 7", 0),
            ts=np.array([m.start], np.int64),
            dur=m.dur,
            **{name: value for name, value in stated.items() if value is not None},
        )
    return builder.finish()


def ask(members: list[Member], **options: Any) -> list[dict[str, Any]]:
    return collectives(job(members), **options).rows.to_pylist()


def expected(member: Member, parts: list[Member]) -> int | None:
    """Time that a member waited, counted nanosecond by nanosecond."""
    last = max(m.start for m in parts)
    root = next((m.start for m in parts if m.rank == member.root), None)
    peer = [m.start for m in parts if {m.kind, member.kind} == {Collective.SEND, Collective.RECV}]
    sends, until = False, None
    if member.kind in TOGETHER:
        until = last
    elif member.kind in (Collective.SEND, Collective.RECV):
        until, sends = (peer[-1] if peer else None), member.kind == Collective.SEND
    elif member.kind in (*FROM_ROOT, *TO_ROOT) and root is not None:
        is_root = member.rank == member.root
        until = last if is_root else root
        sends = is_root == (member.kind in FROM_ROOT)
    if until is None:
        return None
    if sends and member.end <= until:
        return 0
    return sum(t < until for t in range(member.start, member.end))


@st.composite
def jobs(draw: Any) -> list[Member]:
    """A few instances; every member of one has the same root, and one kernel a rank."""
    members = []
    for instance in range(draw(st.integers(0, 3))):
        pair = draw(st.booleans())
        kinds = (
            [Collective.SEND, Collective.RECV]
            if pair
            else [draw(st.sampled_from((*TOGETHER, *FROM_ROOT, *TO_ROOT)))]
        )
        root = draw(st.sampled_from((None, 0, 1)))
        ranks = draw(st.permutations(range(4)))[: 2 if pair else draw(st.integers(1, 4))]
        for i, rank in enumerate(ranks):
            start, dur = draw(st.integers(0, 12)), draw(st.integers(0, 9))
            stated = draw(st.sampled_from((instance, instance, instance, None)))
            size = draw(st.sampled_from((None, 0, 8, 24)))
            members.append(Member(rank, start, dur, kinds[i % len(kinds)], stated, root, size))
    return members


def instances_of(members: list[Member]) -> dict[int, list[Member]]:
    """Members by instance, of those that several ranks are in."""
    result: dict[int, list[Member]] = {}
    for m in members:
        if m.instance is not None:
            result.setdefault(m.instance, []).append(m)
    return {i: parts for i, parts in result.items() if len({m.rank for m in parts}) > 1}


@given(jobs())
def test_against_plain_loops(members: list[Member]) -> None:
    result = collectives(job(members), by="instance")
    rows = {r["instance"]: r for r in result.rows.to_pylist() if r["instance"] is not None}
    parts_of, origin = instances_of(members), min((m.start for m in members), default=0)
    assert set(rows) == set(parts_of)
    for instance, parts in parts_of.items():
        row, starts = rows[instance], sorted(m.start for m in parts)
        last = max(parts, key=lambda m: (m.start, -m.rank))
        waits = [w for m in parts if (w := expected(m, parts)) is not None]
        ends = sorted(m.end for m in parts)
        times = [row[f"{name}_ns"] + origin for name in ("start", "last_start", "end")]
        assert times == [starts[0], starts[-1], ends[-1]]
        late_by = starts[-1] - starts[-2]
        assert (row["late_rank"], row["late_by_ns"]) == (last.rank if late_by else None, late_by)
        assert row["skew_ns"] == starts[-1] - starts[0]
        assert row["transfer_ns"] == ends[-1] - starts[-1]
        assert row["transfer_min_ns"] == max(0, ends[0] - starts[-1])
        assert row["wait_ns"] == (sum(waits) if waits else None)
        assert row["wait_max_ns"] == (max(waits) if waits else None)
    assert result.summary["members"] == len(members)
    assert result.summary["unmatched"] == len(members) - sum(map(len, parts_of.values()))
    by_rank = result.summary["by_rank"]
    assert sum(r["caused_wait_ns"] for r in by_rank) == sum(r["wait_ns"] or 0 for r in by_rank)
    assert sum(r["times_last"] for r in by_rank) == sum(r["late_by_ns"] > 0 for r in rows.values())


@given(
    jobs(), st.sampled_from(("job", "rank", "collective", "instance,rank", "hosts,bytes", "kernel"))
)
def test_sums_are_the_same_at_every_granularity(members: list[Member], by: str) -> None:
    result = collectives(job(members), by=by)
    rows = result.rows.to_pylist()
    for name in ("members", "unmatched", "duration_ns", "wait_ns"):
        assert sum(r[name] or 0 for r in rows) == (result.summary[name] or 0)
    assert result.summary["duration_ns"] == sum(m.dur for m in members)


@given(jobs(), st.integers(-50, 10**15), st.permutations(range(4)), st.randoms())
def test_shifts_and_names_of_ranks_change_nothing(members, by, ranks, random) -> None:
    moved = [
        replace(m, start=m.start + by, rank=ranks[m.rank], root=None if m.root is None else ranks[m.root])
        for m in members
    ]  # fmt: skip
    random.shuffle(moved)
    same = ("skew_ns", "wait_ns", "wait_max_ns", "transfer_ns", "transfer_min_ns", "late_by_ns",
            "collective", "size_bytes", "busbw_gbps")  # fmt: skip

    def figures(chosen: list[Member]) -> list[Any]:
        rows = [r for r in ask(chosen, by="instance") if r["instance"] is not None]
        return sorted([r["instance"], *(r[name] for name in same)] for r in rows)

    assert figures(moved) == figures(members)


@given(jobs())
def test_waiting_and_transfer_make_up_the_duration(members: list[Member]) -> None:
    trace = job(members)
    result = collectives(trace)
    if not result.annotations:
        assert all(expected(m, p) is None for p in instances_of(members).values() for m in p)
        return
    done = result.annotate(trace)
    columns = zip(
        *(done.nodes[c].to_pylist() for c in ("wait_ns", "transfer_ns", "dur")), strict=True
    )
    for wait, transfer, dur in columns:
        assert (wait is None) == (transfer is None)
        assert wait is None or (wait >= 0 and transfer >= 0 and wait + transfer == dur)


SPEEDS = [
    (Collective.ALL_REDUCE, 64, 64, 64, 2 * 3 / 4),
    (Collective.ALL_GATHER, 16, 64, 64, 3 / 4),
    (Collective.REDUCE_SCATTER, 64, 16, 64, 3 / 4),
    (Collective.ALL_TO_ALL, 64, 64, 64, 3 / 4),
    (Collective.BROADCAST, 64, 64, 64, 1),
    (Collective.REDUCE, 64, 64, 64, 1),
    (Collective.GATHER, 16, 64, 64, 3 / 4),
    (Collective.SCATTER, 64, 16, 64, 3 / 4),
    (Collective.BARRIER, 4, 4, 4, None),
]


@pytest.mark.parametrize(("kind", "put", "got", "size", "factor"), SPEEDS)
def test_bandwidth_is_that_of_nccl_tests(kind, put, got, size, factor) -> None:
    members = [Member(r, 10 * r, 40 - 10 * r, kind, 5, 0, put, got) for r in range(4)]
    (row,) = ask(members, by="instance")
    assert (row["size_bytes"], row["transfer_ns"], row["group_size"]) == (size, 10, 4)
    assert row["algbw_gbps"] == (None if factor is None else size / 10)
    assert row["busbw_gbps"] == (None if factor is None else pytest.approx(size / 10 * factor))


def test_uneven_all_to_all_counts_what_ranks_put_in_on_average() -> None:
    members = [Member(r, 0, 10, Collective.ALL_TO_ALL, 0, None, 10 * r, 90) for r in range(4)]
    (row,) = ask(members, by="instance")
    assert (row["size_bytes"], row["put_bytes"], row["got_bytes"]) == (15, 30, 90)


def test_without_the_root_a_gather_has_no_size() -> None:
    (row,) = ask([Member(r, 0, 10, Collective.GATHER, 0, 3, 8, 0) for r in range(2)], by="instance")
    assert row["size_bytes"] is None
    assert row["algbw_gbps"] is None


def test_a_send_and_its_receive() -> None:
    eager = [Member(0, 0, 5, Collective.SEND), Member(1, 20, 10, Collective.RECV)]
    seen = [Member(0, 0, 30, Collective.SEND), Member(1, 20, 10, Collective.RECV)]
    before = [Member(0, 20, 10, Collective.SEND), Member(1, 0, 30, Collective.RECV)]
    for members, waits, cause in ((eager, [0, 0], 0), (seen, [20, 0], 1), (before, [0, 20], 0)):
        result = collectives(job(members), by="instance")
        (row,) = result.rows.to_pylist()
        assert (row["collective"], row["transfer_ns"], row["busbw_gbps"]) == (
            Collective.SEND_RECV,
            10,
            6.4,
        )
        assert result.annotations["wait_ns"].to_pylist() == waits
        blamed = {r["rank"]: r["caused_wait_ns"] for r in result.summary["by_rank"]}
        assert blamed[cause] == sum(waits)


def test_one_rank_has_durations_alone() -> None:
    result = collectives(job([Member(0, 0, 5, instance=None), Member(0, 9, 7, instance=None)]))
    (row,) = result.rows.to_pylist()
    assert (row["members"], row["unmatched"], row["duration_ns"], row["duration_p50_ns"]) == (
        2,
        2,
        12,
        5,
    )
    assert {row[n] for n in ("wait_ns", "transfer_ns", "busbw_gbps", "late_rank")} == {None}
    assert "one rank" in result.notes["blank"]
    assert not result.annotations


def test_without_communication_there_are_no_rows() -> None:
    builder = TraceBuilder()
    builder.nodes(kind=int(Kind.CPU_OP), name="op", rank=0, ts=np.array([1], np.int64), dur=3,
                  lane=builder.lane(0, LaneKind.THREAD, 1, "t", -1))  # fmt: skip
    for options in ({}, {"by": "instance"}, {"compat": "tracelens"}, {"by": "rank", "ranks": "0"}):
        result = collectives(builder.finish(), **options)
        assert result.rows.num_rows == 0
        assert "nothing communicates" in result.notes["no rows"]
        json.dumps(result.to_dict(), allow_nan=False)


def test_uncertainties_of_clocks_are_reported() -> None:
    fits = tuple(
        ClockFit(f"rank {r}", "realtime", "collective ends", 0, 0, 0, 30 * r, 9) for r in range(3)
    )
    members = [
        Member(0, 0, 50),
        Member(1, 40, 10),
        Member(2, 80, 5, instance=1),
        Member(0, 60, 9, instance=1),
    ]
    members += [Member(0, 90, 9, instance=2), Member(3, 90, 9, instance=2)]
    result = collectives(job(members, clocks=fits), by="instance")
    assert result.rows["uncertainty_ns"].to_pylist() == [30, 60, None]
    assert result.summary["uncertainty_ns"] == 60
    assert re.search("within 60 ns.*; nothing relates rank 3 to the others", result.notes["clocks"])
    assert [r["times_last_certain"] for r in result.summary["by_rank"]] == [0, 1, 0, 0]


def test_of_ranks_that_come_at_once_none_is_late() -> None:
    together = [Member(rank, 5, 10) for rank in range(4)]
    result = collectives(job(together), by="job", sizes=False)
    (row,) = result.rows.to_pylist()
    assert (row["late_rank"], row["late_share"]) == (None, None)
    assert [r["times_last"] for r in result.summary["by_rank"]] == [0, 0, 0, 0]
    then = [Member(rank, 50 + rank % 2, 10, instance=1) for rank in range(2)]
    (row,) = ask(together + then, by="job", sizes=False)
    assert (row["late_rank"], row["late_share"]) == (1, 0.5)


def test_within_and_across_hosts() -> None:
    hosts = tuple(Rank(r, host=h) for r, h in enumerate(("a", "a", "b", "")))
    members = [
        Member(r, 0, 5, instance=i)
        for i, ranks in enumerate(((0, 1), (0, 2), (0, 3)))
        for r in ranks
    ]
    result = collectives(job(members, ranks=hosts), by="instance")
    assert result.rows["hosts"].to_pylist() == [1, 2, None]
    assert (result.summary["within_a_host"], result.summary["across_hosts"]) == (1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "colour"}, "there is no 'colour'"),
        ({"ranks": "7"}, "no rank 7"),
        ({"steps": "1"}, "no training step"),
        ({"compat": "hta"}, "HTA has no analysis of collectives"),
        ({"compat": "x"}, "no such definitions"),
        ({"compat": "tracelens", "by": "layer"}, "has no by=layer"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        collectives(job([Member(0, 0, 1), Member(1, 0, 1)]), **options)


SETS = [
    {"ranks": 2, "layers": 1, "steps": 2, "seed": 5},
    {"ranks": 3, "layers": 3, "steps": 3, "seed": 9, "event_records": False},
    {
        "ranks": 3,
        "layers": 3,
        "steps": 1,
        "seed": 7,
        "pipeline": 3,
        "microbatches": 3,
        "straggler": 1,
    },
    {"ranks": 8, "layers": 2, "steps": 1, "seed": 1, "straggler": 3, "straggler_slowdown": 1.2},
    {"ranks": 5, "layers": 1, "steps": 2, "seed": 12, "peak_scale": 0.8},
    {"ranks": 4, "layers": 4, "steps": 2, "seed": 3, "pipeline": 2, "microbatches": 4},
]


@pytest.mark.parametrize("parameters", slow_from(SETS, 3))
def test_the_sample_job_is_as_it_was_built(parameters: dict[str, Any], tmp_path: Path) -> None:
    folder = make_demo(
        tmp_path / "job", sequence=512, telemetry=False, counter_steps=0, **parameters
    )
    truth = json.loads((folder / "truth.json").read_text())["collectives"]
    trace = ci.read(folder / "kineto")
    result = collectives(trace, by="instance")
    rows, origin = result.rows.to_pylist(), trace.meta.origin_ns
    rows.sort(key=lambda r: r["last_start_ns"])
    assert [r["transfer_ns"] for r in rows] == truth["transfer_ns"]
    assert [r["size_bytes"] for r in rows] == truth["bytes"]
    assert [r["put_bytes"] for r in rows] == truth["in_bytes"]
    assert [r["got_bytes"] for r in rows] == truth["out_bytes"]
    assert [r["last_start_ns"] + origin for r in rows] == truth["max_start_ns"]
    assert [r["end_ns"] + origin for r in rows] == truth["end_ns"]
    assert [r["iteration"] for r in rows] == truth["step"]
    members = collectives(trace, by="instance,rank").rows.to_pylist()
    waits = {(m["instance"], m["rank"]): m["wait_ns"] for m in members}
    ranks = truth.get("ranks", [list(range(parameters["ranks"]))] * len(rows))
    actual = [
        [waits[r["instance"], rank] for rank in of] for r, of in zip(rows, ranks, strict=True)
    ]
    assert actual == truth["waits_ns"]
    for row, of, starts in zip(rows, ranks, truth["starts_ns"], strict=True):
        latest = [rank for rank, at in zip(of, starts, strict=True) if at == max(starts)]
        assert row["late_rank"] == (latest[0] if len(latest) == 1 else None)
    for step in sorted(set(truth["step"])):
        (of_step,) = collectives(
            trace, steps=str(step), ranks="0", by="job", sizes=False
        ).rows.to_pylist()
        of_rank = [i for i, s in enumerate(truth["step"]) if s == step and 0 in ranks[i]]
        assert of_step["collectives"] == len(of_rank)
        assert of_step["transfer_ns"] == sum(truth["transfer_ns"][i] for i in of_rank)
        assert of_step["wait_ns"] == sum(truth["waits_ns"][i][ranks[i].index(0)] for i in of_rank)


def test_the_contract_of_analyses(demo: Path) -> None:
    check_analysis(collectives, read_once(demo / "kineto"))


def test_a_rank_of_the_sample_job_alone(demo: Path) -> None:
    trace = ci.read(next(iter(sorted((demo / "kineto").glob("*.gz")))))
    result = collectives(trace)
    assert result.summary["transfer_ns"] is None
    assert result.summary["unmatched"] == result.summary["members"] > 0


def test_tracelens_definitions(shared: Path) -> None:
    """Stragglers of TraceLens for this job (reference of 171dd747): rank 7 last in 5 of 8, rank 1 waits most.

    Ours say the same: no member ends before the last one starts, so that waits are equal.
    """
    trace = read_once(shared / "pytorch/dlrm_8rank_v100/kineto")
    rows = collectives(trace, compat="tracelens", by="rank").rows.to_pylist()
    assert (rows[0]["rank"], rows[0]["times_last"], rows[0]["collectives"]) == (7, 5, 8)
    assert (rows[-1]["rank"], round(rows[-1]["wait_ns"] / 1e6, 1)) == (1, 11.1)
    assert round(rows[0]["wait_ns"] / 1e6, 1) == 1.5
    by_rank = {r["rank"]: r for r in collectives(trace).summary["by_rank"]}
    assert {r["rank"]: (r["wait_ns"], r["times_last"]) for r in rows} == {
        rank: (r["wait_ns"], r["times_last"]) for rank, r in by_rank.items()
    }


def test_a_real_job_against_its_plain_files(shared: Path) -> None:
    parts = []
    for path in sorted((shared / "pytorch/dlrm_8rank_v100/kineto").glob("worker*.json")):
        events = json.loads(path.read_text())["traceEvents"]
        kernels = [e for e in events if e.get("ph") == "X" and e["name"].startswith("ncclKernel")]
        parts.append(sorted((e["ts"] * 1000, e["dur"] * 1000) for e in kernels))
    trace = read_once(shared / "pytorch/dlrm_8rank_v100/kineto")
    fits = {f.of: f.offset_ns for f in trace.meta.clocks if f.applied}
    assert not fits
    rows = collectives(trace, by="instance").rows.to_pylist()
    assert len(rows) == len(parts[0]) == 8
    for row, kernels in zip(rows, zip(*parts, strict=True), strict=True):
        last = max(ts for ts, _ in kernels)
        assert row["transfer_ns"] == max(ts + dur for ts, dur in kernels) - last
        assert row["wait_ns"] == sum(last - ts for ts, _ in kernels)


@pytest.mark.slow
def test_bandwidth_of_a_real_job_is_plausible(shared: Path) -> None:
    """All-reduces of 26 MB on four GPUs of gfx942; members transfer, all ranks wait for rank 3."""
    files = sorted((shared / "pytorch/ddp_resnet_4rank_amd").glob("rank*.json.gz"))
    result = collectives(ci.read(*files), steps="each")
    rows = result.rows.to_pylist()
    large = [r for r in rows if r["collective"] == Collective.ALL_REDUCE and r["bytes"] >= 1 << 24]
    assert len(large) == 3
    assert all(100 < r["busbw_gbps"] < 200 for r in large)
    assert {r["late_rank"] for r in rows} == {3}
    assert result.summary["ended_before_awaited"] == 0


@pytest.mark.slow
def test_ranks_with_other_clocks_give_nearly_the_same(shared: Path) -> None:
    """The same job whose clocks were off by up to an hour; the reader brought them together."""
    files = sorted((shared / "pytorch/ddp_resnet_4rank_amd").glob("rank*.json.gz"))
    plain = collectives(ci.read(*files)).summary
    skewed = collectives(read_once(shared / "pytorch/clock_skew_4rank_amd")).summary
    assert skewed["collectives"] == plain["collectives"] == 21
    max_difference = 21 * (plain["uncertainty_ns"] + skewed["uncertainty_ns"])
    assert abs(skewed["transfer_ns"] - plain["transfer_ns"]) <= max_difference
    assert skewed["by_rank"][3]["times_last"] == 21
