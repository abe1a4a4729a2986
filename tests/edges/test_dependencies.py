"""Inferred edges between streams, host and GPU, and threads: against known truth, and by hand."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
import pytest
from issue_counts import counts
from kineto_files import BASE, uploads, write
from read_once import read_once
from shared_data import SHARED, each
from slow import slow_but_each, slow_from

from chopper_interop import pipeline
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.edges import handover, inference, queues
from chopper_interop.edges.queues import MAX_AHEAD_NS
from chopper_interop.errors import ReadError
from chopper_interop.graph import endpoints
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.kinds import (
    EDGE_ENDPOINTS,
    GPU_LANES,
    GPU_WORK,
    EdgeKind,
    Endpoint,
    Kind,
    LaneKind,
)

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

ENDS = (Endpoint.END, Endpoint.START)
LARGEST = 900_000
"""Bytes of a file up to which a graph is made of it node by node."""
COPIES = ("odd", "host_et", "clock_skew_4rank_amd", "base_boundary_4rank_amd")
REAL = [
    path
    for folder in ("pytorch", "rocprof")
    for path in sorted((SHARED / folder).rglob("*"))
    if path.suffix in (".gz", ".json", ".rpd") and not set(COPIES) & set(path.parts)
    and path.stat().st_size < LARGEST
    and not any(word in path.name for word in ("truth", "worker1", "worker2", "worker3", "worker4",
                "worker5", "worker6", "worker7", "rank1", "rank2", "rank3", "4423", "44240"))
]  # fmt: skip


def edges(trace: Trace, kind: EdgeKind) -> set[tuple[int, int]]:
    chosen = trace.array("kind", "edges") == kind
    src, dst = (trace.array(c, "edges")[chosen].tolist() for c in ("src", "dst"))
    return set(zip(src, dst, strict=True))


class Program:
    """A trace made call by call; nodes go by the order in which they were added."""

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.rows: list[tuple[int, int]] = []
        self.launched: list[tuple[int, int]] = []

    def add(
        self, kind: Kind, name: str, lane: int, ts: int, dur: int, *, rank: int = 0, **args: Any
    ) -> int:
        text = json.dumps(args).encode() if args else b""
        at = self.builder.text(np.frombuffer(text or b" ", np.uint8).copy())
        first = self.builder.nodes(
            kind=int(kind), name=name, rank=rank, lane=lane, ts=np.array([ts]), dur=dur,
            correlation=args.pop("correlation", -1),
            args=(np.array([at]), np.array([len(text)])),
        )  # fmt: skip
        self.rows.append((ts, dur))
        return first

    def call(self, name: str, ts: int, dur: int = 10, thread: int = 1, **args: Any) -> int:
        lane = self.builder.lane(0, LaneKind.THREAD, thread, f"thread {thread}")
        return self.add(Kind.RUNTIME, name, lane, ts, dur, **args)

    def op(self, name: str, ts: int, dur: int, thread: int = 1) -> int:
        lane = self.builder.lane(0, LaneKind.THREAD, thread, f"thread {thread}")
        return self.add(Kind.CPU_OP, name, lane, ts, dur)

    def work(
        self,
        ts: int,
        dur: int,
        launch: int,
        on: int = 7,
        *,
        thread: int = 1,
        kind: Kind = Kind.KERNEL,
        call: str = "hipLaunchKernel",
        gpu: int = 0,
        took: int = 10,
        **args: Any,
    ) -> int:
        lane = self.builder.lane(0, LaneKind.STREAM, on, f"stream {on}", gpu)
        node = self.add(kind, "work", lane, ts, dur)
        self.launched.append((self.call(call, launch, took, thread, **args), node))
        return node

    def trace(self) -> tuple[Trace, list[int], IssueLog]:
        """The completed trace, the row of each node, and the issues."""
        if self.launched:
            src, dst = np.array(self.launched).T
            self.builder.edges(src, dst, int(EdgeKind.LAUNCH))
        made = self.builder.finish()
        key = {}
        ts, dur = made.array("ts") + made.meta.origin_ns, made.array("dur")
        for row, pair in enumerate(zip(ts.tolist(), dur.tolist(), strict=True)):
            assert pair not in key, "times of a made trace must differ"
            key[pair] = row
        issues = IssueLog("test")
        return inference.infer_edges(made, issues), [key[pair] for pair in self.rows], issues


def test_a_device_synchronise_depends_on_the_last_work_of_each_stream() -> None:
    m = Program()
    m.work(1_000, 500, 100)
    last = m.work(1_600, 401, 200)
    other = m.work(1_300, 500, 300, on=8)
    wait = m.call("hipDeviceSynchronize", 400, 2_000)
    m.work(2_700, 100, 2_600)
    trace, row, issues = m.trace()
    assert edges(trace, EdgeKind.SYNC) == {(row[last], row[wait]), (row[other], row[wait])}
    assert not list(issues)


def test_work_that_ends_after_the_call_is_no_dependency_and_is_counted() -> None:
    m = Program()
    before = m.work(1_000, 500, 100)
    m.work(1_600, 1_500, 200)
    wait = m.call("cudaDeviceSynchronize", 400, 2_000)
    trace, row, issues = m.trace()
    assert edges(trace, EdgeKind.SYNC) == {(row[before], row[wait])}
    assert [(i.code, i.count) for i in issues] == [("wait-contradicted", 1)]


def test_a_thread_that_changed_devices_waits_for_the_one_that_ended() -> None:
    made = Program()
    first = made.work(6_000, 94_000, launch=0)
    second = made.work(7_000, 193_000, launch=3_000, gpu=1)
    one = made.call("hipDeviceSynchronize", 10_000, 91_000)
    other = made.call("hipDeviceSynchronize", 102_000, 99_000)
    trace, row, issues = made.trace()
    assert edges(trace, EdgeKind.SYNC) == {(row[first], row[one]), (row[second], row[other])}
    assert not list(issues)


@pytest.mark.parametrize("form", ['"{}"', "{}", '"( stream({}) event({}))"'])
def test_handles_identify_stream_and_event(form: str) -> None:
    def args(stream: str, event: str = "") -> dict[str, Any]:
        if "(" in form:
            return {"args": f"( stream({stream}) event({event or '0x1'}))"}
        plain = {"stream": stream} | ({"event": event} if event else {})
        return plain if '"' in form else {k: int(v, 16) for k, v in plain.items()}

    m = Program()
    first = m.work(1_000, 5_000, 100, 7, **args("0xa0"))
    m.call("hipEventRecord", 200, 11, **args("0xa0", "0xe"))
    m.work(6_100, 5_000, 250, 7, **args("0xa0"))
    m.call("hipStreamWaitEvent", 300, 12, **args("0xb0", "0xe"))
    behind = m.work(6_050, 100, 350, 8, **args("0xb0"))
    wait = m.call("hipStreamSynchronize", 400, 6_000, **args("0xb0"))
    event = m.call("hipEventSynchronize", 6_500, 20, **args("0xc0", "0xe"))
    trace, row, issues = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[first], row[behind])}
    assert edges(trace, EdgeKind.SYNC) == {(row[behind], row[wait]), (row[first], row[event])}
    assert not list(issues)


def test_the_last_record_of_an_event_counts() -> None:
    m = Program()
    m.work(1_000, 500, 100, 7, stream="0xa")
    m.call("hipEventRecord", 150, stream="0xa", event="0xe")
    second = m.work(1_500, 500, 200, 7, stream="0xa")
    m.call("hipEventRecord", 250, 11, stream="0xa", event="0xe")
    m.call("hipStreamWaitEvent", 300, 12, stream="0xb", event="0xe")
    behind = m.work(2_100, 100, 350, 8, stream="0xb")
    m.call("hipEventRecord", 400, 13, stream="0xb", event="0xe")
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[second], row[behind])}


def test_a_stream_waits_for_what_the_awaited_one_waits_for() -> None:
    """Nothing is launched on the second stream between both waits."""
    m = Program()
    m.work(1_000, 100, 50, 8, stream="0xb")
    first = m.work(1_000, 5_000, 100, 7, stream="0xa")
    m.call("hipEventRecord", 150, stream="0xa", event="0xe1")
    m.call("hipStreamWaitEvent", 200, 11, stream="0xb", event="0xe1")
    m.call("hipEventRecord", 250, stream="0xb", event="0xe2")
    m.call("hipStreamWaitEvent", 300, 12, stream="0xc", event="0xe2")
    behind = m.work(6_100, 101, 350, 9, stream="0xc")
    later = m.work(6_200, 102, 400, 8, stream="0xb")
    trace, row, _ = m.trace()
    inferred = edges(trace, EdgeKind.EVENT)
    assert {(row[first], row[behind]), (row[first], row[later])} <= inferred


HIGH = {"stream": "0xffffffff00000007"}


@pytest.mark.parametrize(
    ("launch", "recorded", "outcome"),
    [
        (HIGH, True, []),  # a handle of 64 bits
        ({}, True, ["event-by-order"]),  # launches name none
        (HIGH, False, ["event-unresolved"]),  # the record came before the trace
    ],
)
def test_no_wait_that_names_its_stream_is_lost(
    launch: dict[str, str], *, recorded: bool, outcome: list[str]
) -> None:
    m = Program()
    before = m.work(10_000, 20_000, 100, 7, **launch)
    if recorded:
        m.call("hipEventRecord", 2_000, **HIGH, event="0x5")
    m.call("hipStreamWaitEvent", 4_000, 11, stream="0x8", event="0x5")
    behind = m.work(31_000, 5_000, 6_000, 8, **(launch and {"stream": "0x8"}))
    trace, row, issues = m.trace()
    expected = {(row[before], row[behind])} if recorded else set()
    assert edges(trace, EdgeKind.EVENT) == expected
    assert [i.code for i in issues] == outcome


def test_the_last_that_ended_is_found_before_any_amount_that_had_not() -> None:
    """Work of one queue ends in its order, but for neighbours that overlap, or long after it was submitted."""
    random = np.random.default_rng(1)
    submit = np.sort(random.integers(0, 500, 600))
    end = np.cumsum(random.integers(1, 4, 600)) + random.integers(0, 3, 600)
    end[random.random(600) < 0.3] += 10_000  # queued, and not ended whenever is asked
    zeros, none = np.zeros(600, np.int64), np.zeros(600, bool)
    queue = queues.Queues(
        node=np.arange(600), submit=submit, start=submit, end=end, call=zeros, communicates=none,
        queued_before=none, first=np.array([0, 600]), lane=zeros[:1], rank=zeros[:1],
        device=zeros[:1], handle=zeros[:1],
    )  # fmt: skip
    asked, ended = random.integers(-1, 501, 400), random.integers(0, 1300, 400)
    place, _ = queue.last_before(np.zeros(400, np.int64), asked, ended)
    for k in range(400):
        over = np.flatnonzero((submit <= asked[k]) & (end <= ended[k]))
        assert (place[k] >= 0) == bool(over.size)
        if over.size:
            assert end[place[k]] == end[over].max()


def test_a_recorded_wait_for_an_unknown_stream_is_counted() -> None:
    m = Program()
    m.work(10_000, 20_000, 100, 7)
    m.work(31_000, 5_000, 6_000, 8)
    lane = m.builder.lane(0, LaneKind.GPU_SYNC, 8, "waits", 0)
    m.add(Kind.GPU_SYNC, "Stream Wait Event", lane, 30_000, 0, stream=8, wait_on_stream=-1)
    trace, _, issues = m.trace()
    assert not edges(trace, EdgeKind.EVENT)
    assert [(i.code, i.count) for i in issues] == [("event-unresolved", 1)]


def test_a_recorded_wait_without_the_awaited_stream_is_of_the_stream_that_waits() -> None:
    """As CUPTI of CUDA 13 records it: neither the stream nor the call of the event's record."""
    m = Program()
    before = m.work(1_000, 5_000, 100, 7)
    m.call("cudaEventRecord", 150, 20)
    m.call("cudaStreamWaitEvent", 200, 12, correlation=11)
    other = m.work(6_020, 500, 300, 9)  # used next, but it does not wait
    behind = m.work(6_010, 3_000, 400, 8)
    lane = m.builder.lane(0, LaneKind.GPU_SYNC, 8, "waits", 0)
    m.add(
        Kind.GPU_SYNC, "Stream Wait Event", lane, 201, 0, correlation=11, stream=8,
        wait_on_stream=-1, wait_on_cuda_event_record_corr_id=-1,
    )  # fmt: skip
    trace, row, issues = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[before], row[behind])}
    assert row[other] not in {dst for _, dst in edges(trace, EdgeKind.EVENT)}
    assert [(i.code, i.count) for i in issues] == [("event-by-order", 1)]


def test_a_wait_of_a_stream_that_names_its_record_is_for_the_work_before_it() -> None:
    """As MTIA records it: not for what the awaited stream did since, and whether or not a call asked for it."""
    m = Program()
    before = m.work(10_000, 20_000, 100, 7)
    m.work(30_200, 801, 200, 7)  # behind the record, and at its end before the wait's
    m.work(4_000, 500, 150, 8)
    behind = m.work(31_100, 5_000, 1_000, 8)
    waits = m.builder.lane(0, LaneKind.GPU_SYNC, 8, "waits of 8", 0)
    records = m.builder.lane(0, LaneKind.GPU_SYNC, 7, "waits of 7", 0)
    m.add(Kind.GPU_SYNC, "event_record", records, 9_900, 40, stream=7, seq_num=4)
    m.add(Kind.GPU_SYNC, "event_record", records, 30_100, 50, stream=7, seq_num=5)
    m.add(Kind.GPU_SYNC, "event_wait", waits, 5_000, 26_050, stream=8, wait_on_stream=7, seq_num=5)
    host = m.call("synchronizeStream", 2_000, 40_000, stream_id=8, device=0)
    trace, row, issues = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[before], row[behind])}
    assert edges(trace, EdgeKind.SYNC) == {(row[behind], row[host])}
    assert not list(issues)


@pytest.mark.parametrize("full", [True, False])
def test_a_queue_is_full_if_launches_return_behind_starts_of_work(*, full: bool) -> None:
    """Four pieces are queued at the end of each launch: for want of places, or as it launches four at once."""
    m = Program()
    lane = m.builder.lane(0, LaneKind.STREAM, 7, "stream 7", 0)
    for i in range(40):
        starts = [10_000 * i] if full else [100_000 * i + 8_000 * k for k in range(4)]
        call = m.call("launch", starts[0] - 49_900, 9_950 if full and i > 3 else 400)
        for start in starts:
            m.launched.append((call, m.add(Kind.KERNEL, "work", lane, start, 7_000)))
    _, _, issues = m.trace()
    assert [i.code for i in issues] == (["queue-full"] if full else [])


@pytest.mark.parametrize(
    "which", ["exclusive", "one overlaps", "launched late", "began later", "a GPU"]
)
def test_kernels_of_a_device_that_runs_one_at_a_time_wait_for_each_other(which: str) -> None:
    """GPUs run kernels of several streams at once, but those that fill them; MTIA's streams record their events."""
    m = Program()
    if which != "a GPU":
        records = m.builder.lane(0, LaneKind.GPU_SYNC, 7, "records of 7", 0)
        m.add(Kind.GPU_SYNC, "event_record", records, 1, 1, stream=7, seq_num=1)
    work = []
    for i in range(40):
        start, late = 100_000 * i, which == "launched late"
        starts_at = start + (60_000 if which == "began later" else 0)
        dur = 100_100 if which == "one overlaps" and i == 20 else 94_000
        dur -= 60_000 if which == "began later" else 0
        launch = start - 5_000 if late else start - 250_000
        work.append(m.work(starts_at, dur, launch, 7 + i % 3, thread=1 + i % 3))
    trace, row, issues = m.trace()
    every = {(row[a], row[b]) for a, b in pairwise(work)}
    assert edges(trace, EdgeKind.EVENT) == (every if which == "exclusive" else set())
    assert [i.code for i in issues if "at-a-time" in i.code] == (
        ["event-one-kernel-at-a-time"] if which == "exclusive" else []
    )


def graph_launch(m: Program, call: int, *work: tuple[int, int, int]) -> list[int]:
    """Work of one call: start, duration and stream of each piece."""
    nodes = []
    for ts, dur, on in work:
        lane = m.builder.lane(0, LaneKind.STREAM, on, f"stream {on}", 0)
        nodes.append(m.add(Kind.KERNEL, "work", lane, ts, dur))
        m.launched.append((call, nodes[-1]))
    return nodes


def test_a_graph_waits_for_its_stream_and_is_waited_for_whatever_streams_its_branches_run_on() -> (
    None
):
    m = Program()
    before = m.work(1_000, 50_000, 100)
    call = m.call("cudaGraphLaunch", 200, 20)
    times = (51_300, 30_000, 7), (52_000, 20_000, 174), (81_600, 9_000, 7)
    _, branch, _ = graph_launch(m, call, *times)
    behind = m.work(91_900, 5_000, 400)
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {
        (row[before], row[branch]),
        (row[branch], row[behind]),
    }


@pytest.mark.parametrize(
    ("behind_at", "waits"),
    [
        (91_900, True),
        (60_000, False),  # while the graph ran: it was not launched into that stream
    ],
)
def test_a_graph_captured_on_a_stream_of_its_own_is_in_the_stream_into_which_its_thread_launched(
    behind_at: int, *, waits: bool
) -> None:
    m = Program()
    before = m.work(1_000, 50_000, 100)
    call = m.call("cudaGraphLaunch", 200, 20)
    begins, ends = graph_launch(m, call, (51_300, 30_000, 164), (81_400, 9_000, 164))
    behind = m.work(behind_at, 5_000, 400)
    trace, row, _ = m.trace()
    around = {(row[before], row[begins]), (row[ends], row[behind])}
    assert edges(trace, EdgeKind.EVENT) == (around if waits else set())


def test_a_graph_that_is_all_that_its_thread_launched_waits_for_nothing_known() -> None:
    m = Program()
    call = m.call("cudaGraphLaunch", 200, 20)
    graph_launch(m, call, (51_300, 30_000, 164), (81_400, 9_000, 164))
    trace, _, _ = m.trace()
    assert edges(trace, EdgeKind.EVENT) == set()


@pytest.mark.parametrize(
    ("branch_ns", "joined_at"),
    [
        (60_000, 113_400),  # the branch ends last, and holds up what joins it
        (
            20_000,
            83_000,
        ),  # it ends sooner: what joins it starts later behind its own stream than others
    ],
)
def test_work_of_a_graph_that_joins_a_branch_depends_on_it(branch_ns: int, joined_at: int) -> None:
    m = Program()
    before = m.work(1_000, 50_000, 100)
    call = m.call("cudaGraphLaunch", 200, 20)
    _, branch, _, joins, _, _ = graph_launch(
        m, call, (51_300, 10_000, 7), (52_000, branch_ns, 174), (61_600, 20_000, 7),
        (joined_at, 9_000, 7), (joined_at + 9_300, 9_100, 7), (joined_at + 18_700, 9_200, 7),
    )  # fmt: skip
    behind = m.work(joined_at + 28_800, 5_000, 400)
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {
        (row[before], row[branch]),
        (row[branch], row[joins]),
        (row[branch], row[behind]),
    }


@pytest.mark.parametrize(
    ("gap_ns", "joins_ns"),
    [
        (0, 1_000),  # whole µs: 1 µs is as good as none
        (1_000, 3_000),
        (100, 400),  # four times as long, but within what starts vary by
    ],
)
def test_a_gap_that_times_do_not_resolve_is_no_join(gap_ns: int, joins_ns: int) -> None:
    m = Program()
    m.work(1_000, 50_000, 100)
    call = m.call("cudaGraphLaunch", 200, 20)
    at = np.cumsum([51_000, *[9_000 + gap_ns] * 4, 9_000 + joins_ns]).tolist()
    nodes = graph_launch(m, call, *((ts, 9_000, 7) for ts in at), (52_000, 30_000, 174))
    trace, row, _ = m.trace()
    inside = {row[node] for node in nodes}
    assert not any(src in inside and dst in inside for src, dst in edges(trace, EdgeKind.EVENT))


def test_a_branch_that_starts_by_chance_behind_other_work_does_not_fork_from_it() -> None:
    """It starts 100 ns behind the second kernel, but could have waited for anything or nothing."""
    m = Program()
    before = m.work(1_000, 50_000, 100)
    call = m.call("cudaGraphLaunch", 200, 20)
    main = ((51_300 + 9_400 * k, 9_000 + k, 7) for k in range(5))
    *_, branch = graph_launch(m, call, *main, (69_801, 5_000, 174))
    behind = m.work(99_000, 5_100, 400)
    trace, row, issues = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[before], row[branch]), (row[branch], row[behind])}
    assert [i.count for i in issues if i.code == "event-within-graph"] == [1]


def test_gaps_show_no_joins_in_a_graph_in_which_they_have_another_reason() -> None:
    """Behind copies, for example: of two longer gaps only one has a branch that could join there."""
    m = Program()
    m.work(1_000, 50_000, 100)
    call = m.call("cudaGraphLaunch", 200, 20)
    gaps = (0, 300, 300, 1_300, 300, 300, 1_300, 300)
    at = 51_300 + np.cumsum(gaps) + 9_000 * np.arange(len(gaps))
    main = ((int(ts), 9_000, 7) for ts in at)
    nodes = graph_launch(m, call, *main, (52_000, 20_000, 174))
    trace, row, _ = m.trace()
    inside = {row[node] for node in nodes}
    assert not any(src in inside and dst in inside for src, dst in edges(trace, EdgeKind.EVENT))


@pytest.mark.parametrize(
    ("name", "is_graph"),
    [("hipGraphLaunch", True), ("cuGraphLaunch_ptsz", True), ("cudaLaunchKernel", False)],
)
def test_work_of_one_call_is_a_graph_if_the_call_launches_one(name: str, *, is_graph: bool) -> None:
    m = Program()
    m.work(1_000, 50_000, 100)
    call = m.call(name, 200, 20)
    graph_launch(m, call, (51_300, 30_000, 7), (52_000, 20_000, 174))
    m.work(91_900, 5_000, 400)
    trace, _, _ = m.trace()
    assert bool(edges(trace, EdgeKind.EVENT)) == is_graph


@pytest.mark.parametrize(("work_ns", "known"), [(2_000, True), (20_000, False)])
def test_a_wait_for_an_event_whose_work_had_ended_would_have_waited_for_it(
    work_ns: int, *, known: bool
) -> None:
    """CUDA's calls name no event: it is of the stream used last before its record, unless that goes on."""
    m = Program()
    m.work(900, 1_000, 50)
    work = m.work(1_000, work_ns, 100, 8)
    m.call("cudaEventRecord", 150, 20)
    wait = m.call("cudaEventSynchronize", 9_000, 2_500)
    m.work(30_000, 500, 12_000)
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.SYNC) == ({(row[work], row[wait])} if known else set())


def test_communication_waits_for_what_its_thread_launched_before() -> None:
    m = Program()
    m.work(900, 5, 90, on=9)
    before = m.work(1_000, 5_000, 100)
    m.call("hipStreamWaitEvent", 200, 11)
    comm = m.work(6_010, 3_000, 300, 8, kind=Kind.COMM)
    m.call("hipStreamWaitEvent", 400, 12)
    behind = m.work(9_020, 3_000, 500)
    trace, row, issues = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[before], row[comm]), (row[comm], row[behind])}
    assert [(i.code, i.count) for i in issues] == [("event-by-order", 2)]


def test_the_wait_of_one_thread_holds_for_the_work_of_the_next() -> None:
    m = Program()
    m.work(1_000, 500, 100, thread=2)
    comm = m.work(1_600, 3_000, 300, 8, thread=2, kind=Kind.COMM)
    m.call("hipStreamWaitEvent", 400, 12, thread=2)
    behind = m.work(4_700, 300, 500, thread=1)
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[comm], row[behind])}


@pytest.mark.parametrize("of_library", [True, False])
def test_a_wait_within_the_librarys_call_behind_its_launch_is_for_its_own_streams(
    *, of_library: bool
) -> None:
    """NCCL's streams wait for its kernel there, which no compute does before the framework lets it."""
    m = Program()
    before = m.work(1_000, 5_000, 100)
    m.op("nccl:all_reduce" if of_library else "my_step", 195, 300)
    m.call("cudaStreamWaitEvent", 200, 11)
    comm = m.work(6_010, 3_000, 300, 8, kind=Kind.COMM)
    m.call("cudaStreamWaitEvent", 400, 12)
    beside = m.work(9_020, 3_000, 500)
    m.call("cudaStreamWaitEvent", 600, 13)
    behind = m.work(12_300, 3_001, 700)
    trace, row, issues = m.trace()
    waits = behind if of_library else beside
    assert edges(trace, EdgeKind.EVENT) >= {(row[before], row[comm]), (row[comm], row[waits])}
    assert ((row[comm], row[beside]) in edges(trace, EdgeKind.EVENT)) != of_library
    assert counts(issues).get("event-of-library", 0) == of_library


@pytest.mark.parametrize("case", ["of the next collective", "behind a copy", "outside"])
def test_other_waits_at_calls_of_a_library_are_for_compute(case: str) -> None:
    """Those before its launch, whatever the call before has launched; and those that no call of it encloses."""
    m = Program()
    if case != "outside":
        m.op("nccl:all_reduce", 195, 100)
    kind = Kind.MEMCPY if case == "behind a copy" else Kind.COMM
    before = m.work(1_000, 5_000, 200, 8, kind=kind)
    if case == "of the next collective":
        m.op("nccl:all_reduce", 395, 200)
    m.call("cudaStreamWaitEvent", 280 if case == "behind a copy" else 400, 12)
    behind = m.work(6_010, 3_000, 500)
    m.op("nccl:barrier", 20_000, 100)  # the last row
    trace, row, issues = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[before], row[behind])}
    assert "event-of-library" not in counts(issues)


def test_launches_that_take_long_before_work_begins_show_no_full_queue() -> None:
    """No work began during them, and their returns are no steadier with work that by another clock might have."""
    m = Program()
    for at in (0, 1_000_000, 2_000_000):
        for k in range(10):
            wait = max(k - 6, 0)
            ts = at + 2_000 * k + 4_000 * wait
            m.work(at + 40_000 + 20_000 * k, 20_000 - k, ts, took=5_000 if wait else 1_000)
    trace, _, issues = m.trace()
    assert not edges(trace, EdgeKind.SYNC)
    assert "queue-full" not in counts(issues)


def test_collectives_are_waited_for_in_launch_order() -> None:
    m = Program()
    m.work(1_000, 500, 100)
    comms = [m.work(2_000 + 200 * i, 190, 150 + 20 * i, 8, kind=Kind.COMM) for i in range(2)]
    comms += [m.work(2_700, 900_000, 195, 8, kind=Kind.COMM)]
    behind = []
    for i, ts in enumerate((500_000, 600_000, 910_000)):
        m.call("hipStreamWaitEvent", 300 + 30 * i, 12)
        behind.append(m.work(ts, 50 + i, 320 + 30 * i))
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {
        (row[a], row[b]) for a, b in zip(comms, behind, strict=True)
    }


def test_a_wait_that_shows_its_collective_is_for_all_before_it() -> None:
    m = Program()
    m.work(10_000, 5_000, 100)
    comms = [m.work(20_000 + 20_000 * i, 19_000, 150 + 20 * i, 8, kind=Kind.COMM) for i in range(3)]
    m.call("hipStreamWaitEvent", 300, 12)
    shows = m.work(59_500, 10, 320)  # while the third runs
    later = []
    for launch in (330, 360):  # for the third; then all have been waited for
        m.call("hipStreamWaitEvent", launch, 12)
        later.append(m.work(500_000 + launch, launch, launch + 15))
    trace, row, issues = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {
        (row[comms[1]], row[shows]),
        *((row[comms[2]], row[node]) for node in later),
    }
    assert {(i.code, i.count) for i in issues} == {("event-by-order", 3)}


def fork_and_join(m: Program, starts: tuple[int, int]) -> list[int]:
    """Two streams fork off a third and join it; all waits stand before the launches."""
    before = m.work(10_000, 5_000, 100)
    for at in (200, 220):
        m.call("hipStreamWaitEvent", at, 12)
    sides = [m.work(start, 20_000, 300 + 20 * i, 8 + i) for i, start in enumerate(starts)]
    for at in (400, 420):
        m.call("hipStreamWaitEvent", at, 13)
    after = m.work(60_000, 5_001, 500)
    return [before, *sides, after]


@pytest.mark.parametrize("starts", [(15_001, 16_002), (16_002, 15_001)])
def test_waits_in_a_row_fork_streams_off_and_join_them(starts: tuple[int, int]) -> None:
    m = Program()
    nodes = fork_and_join(m, starts)
    trace, row, issues = m.trace()
    before, one, other, after = (row[node] for node in nodes)
    expected = {(before, one), (before, other), (one, after), (other, after)}
    assert edges(trace, EdgeKind.EVENT) == expected
    assert [(i.code, i.count) for i in issues] == [("event-by-order", 4)]


@pytest.mark.parametrize(
    ("vendor", "older_event"), [("cuda", False), ("cuda", True), ("hip", False)]
)
def test_streams_that_fork_off_one_by_one_are_all_joined(vendor: str, *, older_event: bool) -> None:
    """All waits of the fork are for one event, and nothing holds up any work, so that times say nothing."""
    m = Program()
    call, wait = f"{vendor}LaunchKernel", f"{vendor}StreamWaitEvent"

    def record(at: int) -> None:
        if vendor == "cuda":  # HIP's are not traced
            m.call("cudaEventRecord", at, 6)

    if older_event:  # that nobody waits for
        m.work(60, 4, 50, call=call)
        record(80)
    before = m.work(110, 5, 100, call=call)
    record(200)
    sides = []
    for at in range(3):
        m.call(wait, 250 + 100 * at, 7)
        sides.append(m.work(310 + 100 * at, 8, 300 + 100 * at, 8 + at, call=call))
    m.work(810, 11, 800, call=call)
    for at in range(3):
        record(900 + 20 * at)
        m.call(wait, 910 + 20 * at, 7)
    after = m.work(1_010, 12, 1_000, call=call)
    trace, row, _ = m.trace()
    forks = {(row[before], row[side]) for side in sides}
    assert edges(trace, EdgeKind.EVENT) == forks | {(row[side], row[after]) for side in sides}


def test_streams_that_fork_off_and_are_joined_in_each_step() -> None:
    """By HIP, with nothing held up: which waits are forks is shown by the join of each step, not of the first alone."""
    m = Program()
    call, wait, wanted = "hipLaunchKernel", "hipStreamWaitEvent", []
    for step, used in enumerate([(8, 9, 10), (10, 8), (9, 8, 10)]):
        t = 10_000 * step
        before = m.work(t + 110, 50 + step, t + 100, call=call)
        sides = []
        for at, stream in enumerate(used):
            m.call(wait, t + 250 + 100 * at, 7)
            sides.append(m.work(t + 310 + 100 * at, 8, t + 300 + 100 * at, stream, call=call))
        m.work(t + 810, 11, t + 800, call=call)
        for at in range(len(used)):
            m.call(wait, t + 910 + 20 * at, 7)
        after = m.work(t + 1_010, 12, t + 1_000, call=call)
        wanted += [(before, side) for side in sides] + [(side, after) for side in sides]
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[a], row[b]) for a, b in wanted}


def test_a_stream_does_not_wait_for_work_that_ended_after_its_own_began() -> None:
    m = Program()
    main = m.work(10_000, 5_000, 100)
    m.call("hipStreamWaitEvent", 200, 12)
    one = m.work(15_001, 90_000, 300, 8)
    m.call("hipStreamWaitEvent", 400, 13)
    other = m.work(15_002, 90_001, 500, 9)  # behind main, or else behind the long one
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[main], row[one]), (row[main], row[other])}


def test_a_wait_is_for_no_event_that_another_thread_records_later() -> None:
    """Threads are gone through one after the other: the second one waits before the first one records."""
    m = Program()
    m.call("cudaEventQuery", 5, 1, thread=1)
    m.work(1_000, 500, 20, thread=2, on=8)
    awaited = m.work(10_000, 5_000, 100, thread=2)
    m.call("cudaStreamWaitEvent", 200, 11, thread=2)
    behind = m.work(30_000, 20_000, 300, 8, thread=2)
    m.work(15_002, 50, 400, thread=1)
    m.call("cudaEventRecord", 500, 13, thread=1)
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[awaited], row[behind])}


def test_a_wait_right_behind_a_record_is_for_an_older_event_if_work_begins_behind_that() -> None:
    """Activations are offloaded: memory of two layers before is used again, each layer's copy is recorded before the wait."""
    m = Program()
    computed, copies, awaited = [], [], set()
    for layer in range(6):
        at = 1_000 * layer
        begins = (5_000, 14_000, 23_000, 35_101, 65_101, 95_101)[layer]
        computed.append(m.work(begins, 8_000, at + 100))
        m.call("cudaEventRecord", at + 200, 12)
        m.call("cudaStreamWaitEvent", at + 300, 13)
        copy_at = 14_000 + 30_000 * layer
        copies.append(m.work(copy_at, 21_000 + layer, at + 400, 8, kind=Kind.MEMCPY))
        m.call("cudaEventRecord", at + 500, 14)
        if layer >= 2:
            m.call("cudaStreamWaitEvent", at + 600, 15)
            awaited.add((copies[layer - 2], layer + 1))
    trace, row, _ = m.trace()
    held = {(row[c], row[computed[k]]) for c, k in awaited if k < len(computed)}
    of_layers = {(row[c], row[k]) for c, k in zip(copies, computed, strict=True)}
    found = edges(trace, EdgeKind.EVENT)
    assert held <= found
    assert found - held == {(k, c) for c, k in of_layers}


def test_a_wait_is_for_no_work_that_was_launched_behind_the_last_record() -> None:
    m = Program()
    m.work(100, 50, 20)
    copied = m.work(1_000, 500, 100, 9, kind=Kind.MEMCPY)
    m.call("cudaEventRecord", 200, 12)
    m.work(5_000, 10_000, 300)
    m.call("cudaStreamWaitEvent", 400, 13)
    behind = m.work(15_001, 5_000, 500, 8)
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[copied], row[behind])}


@pytest.mark.parametrize(
    ("batches", "records", "waits_at", "is_oldest"),
    [
        (8, True, 30_000, True),
        (6, True, 30_000, True),
        (6, False, 30_000, True),  # as the newest copy has not ended when the first use begins
        (6, False, 34_000, False),  # the newest may be awaited, as a program may ask for all that is queued
        (12, False, 30_000, False),  # two copies for each wait
    ],
)  # fmt: skip
def test_of_a_thread_that_loads_ahead_each_wait_is_for_the_oldest_event(
    batches: int, records: bool, waits_at: int, *, is_oldest: bool  # noqa: FBT001
) -> None:  # fmt: skip
    """As many events as waits, but for what is not used yet: each batch is waited for once, in turn."""
    m = Program()
    copies, used = [], []
    for batch in range(batches):
        at = 10_000 * batch
        copies.append(m.work(at + 5_000, 4_000, at + 50, 20, thread=2, kind=Kind.MEMCPY))
        if records:
            m.call("cudaEventRecord", at + 100, 13, thread=2)
    for batch in range(6):
        at = waits_at + 40_000 * batch
        m.call("cudaStreamWaitEvent", at + 200, 12)
        used.append(m.work(at + 6_000, 30_000 + batch, at + 300))
    trace, row, _ = m.trace()
    inferred = edges(trace, EdgeKind.EVENT)
    in_turn = {(row[c], row[u]) for c, u in zip(copies, used, strict=False)}
    assert (inferred == in_turn) == is_oldest


def test_that_another_thread_is_ahead_speaks_against_no_stream() -> None:
    """The second copy runs when what waited for the first begins: not for what its own thread had launched before."""
    m = Program()
    m.work(1_000, 500, 100, 9)
    awaited = m.work(5_000, 4_000, 150, 8, thread=2, kind=Kind.MEMCPY)
    m.work(9_100, 4_001, 170, 8, thread=2, kind=Kind.MEMCPY)
    m.call("hipStreamWaitEvent", 200, 12)
    used = m.work(9_001, 3_000, 300)
    for at in (13_000, 14_000, 15_000):  # so that it is the stream with the most work
        m.work(at, 900, at - 12_500)
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[awaited], row[used])}


def loaded(m: Program, batches: int) -> list[int]:
    """Copies of another thread on a stream of its own, each with an event behind it."""
    copies = []
    for at in range(0, 10_000 * batches, 10_000):
        copies.append(m.work(at + 5_000, 4_000, at + 50, 20, thread=2, kind=Kind.MEMCPY))
        m.call("cudaEventRecord", at + 100, 13, thread=2)
    return copies


def test_a_wait_that_shows_its_batch_is_for_none_before_it() -> None:
    """Two batches were dropped: what was held up until the third had been copied waited for that."""
    m = Program()
    copies = loaded(m, 8)
    m.call("cudaStreamWaitEvent", 20_200, 12)
    used = [m.work(29_001, 30_000, 20_300)]
    for batch in range(5):
        at = 70_000 + 40_000 * batch
        m.call("cudaStreamWaitEvent", at + 200, 12)
        used.append(m.work(at + 6_000, 30_001 + batch, at + 300))
    trace, row, _ = m.trace()
    expected = {(row[c], row[u]) for c, u in zip(copies[2:], used, strict=True) if u in used[:5]}
    assert edges(trace, EdgeKind.EVENT) >= expected


def test_a_wait_more_than_there_are_events_is_for_the_last() -> None:
    m = Program()
    copies, used = loaded(m, 6), []
    for batch in range(7):
        at = 30_000 + 40_000 * batch
        m.call("cudaStreamWaitEvent", at + 200, 12)
        used.append(m.work(at + 6_000, 30_000 + batch, at + 300))
    trace, row, _ = m.trace()
    in_turn = {(row[c], row[u]) for c, u in zip([*copies, copies[-1]], used, strict=True)}
    assert edges(trace, EdgeKind.EVENT) <= in_turn
    assert len(edges(trace, EdgeKind.EVENT)) >= 6


def test_where_the_usual_stream_is_impossible_a_wait_is_for_the_other() -> None:
    """Three times it started right behind the work of one stream, and once before that had ended."""
    m = Program()
    others, usual, targets = [], [], []
    for step in range(4):
        at = 1_000_000 * step
        others.append(m.work(at + 5_000, 4_000 + step, at, 9))
        m.call("cudaEventRecord", at + 50, 11)
        usual.append(m.work(at + 10_000, 90_000 if step < 3 else 190_000, at + 100, 8))
        m.call("cudaEventRecord", at + 150, 13)
        m.work(at + 20_000, 5_000 + step, at + 200)
        m.call("cudaStreamWaitEvent", at + 300, 12)
        targets.append(m.work(at + 100_001, 30_000 + step, at + 400))
    trace, row, _ = m.trace()
    source = {dst: src for src, dst in edges(trace, EdgeKind.EVENT)}
    assert [source[row[t]] for t in targets[:3]] == [row[u] for u in usual[:3]]
    assert source[row[targets[3]]] in [row[o] for o in others]


def test_a_wait_right_behind_a_later_collective_is_for_the_first_that_is_pending() -> None:
    """The record is of the end of the second, which is launched before the first is waited for."""
    m = Program()
    m.work(1_000, 500, 50)
    first = m.work(2_000, 8_000, 100, 8, kind=Kind.COMM)
    m.call("cudaEventRecord", 150, 12)
    m.work(10_500, 90_000, 200, 8, kind=Kind.COMM)
    m.call("cudaEventRecord", 250, 13)
    m.call("cudaStreamWaitEvent", 300, 11)
    behind = m.work(10_001, 5_000, 400)
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[first], row[behind])}


def test_a_chain_is_known_by_its_times() -> None:
    m = Program()
    main = m.work(10_000, 5_000, 100)
    m.call("hipStreamWaitEvent", 200, 12)
    one = m.work(15_001, 90_000, 300, 8)
    m.call("hipStreamWaitEvent", 400, 13)
    other = m.work(105_003, 90_001, 500, 9)
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[main], row[one]), (row[one], row[other])}


def test_a_wait_is_for_the_stream_used_last_and_an_ambiguous_host_wait_for_none() -> None:
    m = Program()
    m.work(1_000, 500, 100, 8)
    last = m.work(1_000, 600, 120, 9)
    m.call("cudaStreamWaitEvent", 400, 12)
    target = m.work(90_000, 300, 500, 7)
    m.call("cudaStreamSynchronize", 600, 20)
    trace, row, issues = m.trace()
    assert edges(trace, EdgeKind.EVENT) == {(row[last], row[target])}
    assert not edges(trace, EdgeKind.SYNC)
    assert {(i.code, i.count) for i in issues} == {
        ("event-by-order", 1),
        ("event-ambiguous", 1),
        ("wait-unresolved", 1),
    }


def test_a_wait_is_for_no_busy_stream_only_because_its_work_ends_all_the_time() -> None:
    """Copies are a step ahead; what prepares them starts at once, while the stream used last is behind its launches."""
    m = Program()
    busy = []
    for step in range(4):
        at = 1_000_000 * step + step  # a made trace has no equal times
        m.work(at + 6_000, 5_000, at, 22, kind=Kind.MEMCPY)
        starts = (20_000 + 17_000 * (60 * step + k) for k in range(60))
        busy += [m.work(ts, 16_000, at + 10_000 + 3_000 * k) for k, ts in enumerate(starts)]
        m.call("cudaStreamWaitEvent", at + 200_000, 12)
        start = at + (209_000, 209_000, 214_900, 209_000)[step]
        for k in range(3):
            m.work(start + 20_000 * k, 8_000, at + 203_000 + 3_000 * k, 20)
    trace, row, _ = m.trace()
    assert not {row[w] for w in busy} & {src for src, _ in edges(trace, EdgeKind.EVENT)}


def test_blocking_copies_and_frees_depend_where_it_shows() -> None:
    m = Program()
    copy = m.work(1_000, 500, 100, kind=Kind.MEMCPY, call="hipMemcpyAsync")
    free = m.call("hipFree", 600, 10_000)
    m.call("hipFree", 10_700, 20_000)
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.SYNC) == {(row[copy], row[free])}


def test_inferred_edges_are_not_added_twice() -> None:
    m = Program()
    m.work(1_000, 500, 100)
    m.work(1_600, 401, 200)
    m.work(1_300, 500, 300, on=8)
    m.call("hipDeviceSynchronize", 400, 2_000)
    trace, _, _ = m.trace()
    issues = IssueLog("test")
    again = inference.infer_edges(trace, issues)
    assert again.edges.equals(trace.edges)


@pytest.mark.parametrize("has_comm_edges", slow_from([True, False], 1))
def test_one_stage_infers_edges_of_all_kinds(demo: Path, *, has_comm_edges: bool) -> None:
    """COMM edges first, unless the trace has them; a second call changes nothing."""
    complete = pipeline.read(demo / "kineto")
    kind = complete.array("kind", "edges")
    inferred = (*inference.DEPENDENCY_KINDS, *(() if has_comm_edges else (EdgeKind.COMM,)))
    recorded = complete.edges.filter(~np.isin(kind, [int(k) for k in inferred]))
    trace = inference.infer_edges(replace(complete, edges=recorded), IssueLog("test"))
    for k in (EdgeKind.COMM, *inference.DEPENDENCY_KINDS):
        if k is not EdgeKind.POLL:  # the sample job's hosts poll for nothing
            assert edges(complete, k), f"the sample job has no {k.name} edge"
        assert edges(trace, k) == edges(complete, k)
    assert inference.infer_edges(trace, IssueLog("test")).edges.equals(trace.edges)


def test_idle_threads_take_over_from_each_other() -> None:
    m = Program()
    asks = m.op("aten::ones_like", 1_000, 50_000)
    begins = m.op("evaluate_function", 60_000, 500_000, thread=2)
    m.op("evaluate_function", 561_000, 100_000, thread=2)
    ends = m.op("evaluate_function", 662_000, 1_000, thread=2)
    goes_on = m.op("aten::to", 900_000, 5_000)
    m.call("cudaEventQuery", 905_500, 200, thread=3)
    m.op("aten::to", 980_000, 5_100)
    trace, row, issues = m.trace()
    handed = {(row[asks], row[begins]), (row[ends], row[goes_on])}
    assert edges(trace, EdgeKind.HANDOVER) == handed
    assert [(i.code, i.count) for i in issues] == [("handover-by-time", 2)]


def test_a_thread_that_begins_with_a_range_follows_another() -> None:
    """Without the edge a backward pass that begins in a hook kept its time, whatever came before."""
    m = Program()
    asks = m.op("aten::ones_like", 1_000, 50_000)
    lane = m.builder.lane(0, LaneKind.THREAD, 2, "thread 2")
    begins = m.add(
        Kind.ANNOTATION, "FullyShardedDataParallel._pre_backward_hook", lane, 90_000, 40_000
    )
    m.op("aten::mm", 95_000, 20_000, thread=2)
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.HANDOVER) == {(row[asks], row[begins])}


@pytest.mark.parametrize("rest", ["aten::pin_memory", "aten::cat"])
def test_a_loaders_range_waits_for_the_thread_that_pins_memory_and_this_for_processes(
    rest: str,
) -> None:
    """The thread pins the next batch at once, and goes on when a process has one: not behind what the trainer does."""
    m = Program()
    m.op(rest, 1_000, 20_000, thread=2)
    m.op("aten::relu", 2_000, 3_000)
    lane = m.builder.lane(0, LaneKind.THREAD, 1, "thread 1")
    m.add(Kind.ANNOTATION, "enumerate(DataLoader)#_Iter.__next__", lane, 10_000, 590_000)
    pinned = m.op(rest, 400_000, 180_000, thread=2)
    m.op(rest, 581_000, 100_000, thread=2)
    takes = m.op("aten::to", 601_000, 5_000)
    ends = m.op("aten::linear", 607_000, 200_000)
    follows = m.op(rest, 850_000, 10_000, thread=2)
    trace, row, _ = m.trace()
    pins = rest == "aten::pin_memory"
    expected = {(row[pinned], row[takes])} if pins else {(row[ends], row[follows])}
    assert edges(trace, EdgeKind.HANDOVER) == expected


@pytest.mark.parametrize(
    ("begun", "dur", "waits"),
    [
        (10_000, 590_000, True),
        (10_000, 5_000_000, False),
        (590_000, 10_000, False),
    ],
)
def test_a_loaders_range_waits_for_a_batch_if_it_ends_with_it(
    begun: int, dur: int, *, waits: bool
) -> None:
    """Not for one that was there long before, nor if the range is as short as if there were one."""
    m = Program()
    m.op("aten::relu", 2_000, 3_000)
    lane = m.builder.lane(0, LaneKind.THREAD, 1, "thread 1")
    m.add(Kind.ANNOTATION, "enumerate(DataLoader)#_Iter.__next__", lane, begun, dur)
    pinned = m.op("aten::pin_memory", 400_000, 180_000, thread=2)
    takes = m.op("aten::to", begun + dur + 1_000, 5_000)
    trace, row, _ = m.trace()
    assert ((row[pinned], row[takes]) in edges(trace, EdgeKind.HANDOVER)) == waits


@pytest.mark.parametrize(
    ("after_ns", "works", "follows"),
    [(60_000, True, True), (500_000, True, False), (60_000, False, False)],
)
def test_a_thread_that_begins_with_a_range_follows_what_ended_right_before(
    after_ns: int, *, works: bool, follows: bool
) -> None:
    """But a thread of marks alone, as rocprofv3's, does nothing that was handed over."""
    m = Program()
    ends = m.op("aten::relu", 1_000, 50_000)
    lane = m.builder.lane(0, LaneKind.THREAD, 2, "thread 2")
    m.add(Kind.ANNOTATION, "request", lane, 51_000 + after_ns, 40_000)
    if works:
        m.op("aten::mm", 52_000 + after_ns, 20_000, thread=2)
    m.op("aten::to", 20_000_000, 5_000)
    trace, row, _ = m.trace()
    assert (row[ends] in {source for source, _ in edges(trace, EdgeKind.HANDOVER)}) == follows


@pytest.mark.parametrize("call", ["cudaEventSynchronize", "aten::mul"])
def test_a_thread_that_goes_on_only_to_wait_may_be_followed(call: str) -> None:
    """As the engine of an inference server: it waits for the next tokens while another thread sends the last ones."""
    m = Program()
    m.op("aten::add", 1_000, 2_000, thread=2)
    m.work(2_000, 900_000, 1_500)
    ends = m.op("aten::copy_", 5_000, 95_000)
    (m.call if call.startswith("cuda") else m.op)(call, 130_000, 800_000)
    goes_on = m.op("aten::cat", 140_000, 5_000, thread=2)
    trace, row, _ = m.trace()
    waits = call.startswith("cuda")
    assert edges(trace, EdgeKind.HANDOVER) == ({(row[ends], row[goes_on])} if waits else set())


@pytest.mark.parametrize(
    ("name", "after_ns", "follows"),
    [
        ("autograd::engine::evaluate_function: MmBackward0", 2_300_000, True),
        ("autograd::engine::evaluate_function: MmBackward0", 12_000_000, False),
        ("MmBackward0", 2_300_000, False),
    ],
)
def test_the_thread_of_the_first_backward_pass_begins_later(
    name: str, after_ns: int, *, follows: bool
) -> None:
    """Autograd makes it then; without the edge all that came before seemed to hold up nothing."""
    m = Program()
    forward = m.op("aten::mse_loss", 1_000, 50_000)
    begins = m.op(name, 51_000 + after_ns, 40_000, thread=2)
    m.op("aten::to", 20_000_000, 5_000)
    trace, row, _ = m.trace()
    assert ((row[forward], row[begins]) in edges(trace, EdgeKind.HANDOVER)) == follows


@pytest.mark.parametrize(
    ("name", "waits"), [("collate", False), ("enumerate(DataLoader)#_Iter.__next__", True)]
)
def test_a_range_within_which_nothing_is_recorded_is_work_unless_a_loader_waits_in_it(
    name: str, *, waits: bool
) -> None:
    """Threads of a H200 program that launched by turns seemed to wait for each other in ranges that computed."""
    m = Program()
    m.call("cudaLaunchKernel", 1_000, 8_000)
    lane = m.builder.lane(0, LaneKind.THREAD, 1, "thread 1")
    m.add(Kind.ANNOTATION, name, lane, 10_000, 140_000)
    other = m.call("cudaLaunchKernel", 90_000, 7_000, thread=2)
    m.call("cudaLaunchKernel", 154_000, 8_100)
    m.call("cudaLaunchKernel", 300_000, 7_100, thread=2)
    trace, row, _ = m.trace()
    assert (row[other] in {src for src, _ in edges(trace, EdgeKind.HANDOVER)}) == waits


@pytest.mark.parametrize(
    ("rest_ns", "waits"),
    [
        ((100_000, 30_000, 50_000), True),  # ends right behind the other thread, each time
        ((100_000, 2_000_000, 3_000_000), False),  # once, by chance
    ],
)
def test_a_range_is_a_wait_if_most_of_its_name_end_right_behind_another_threads_work(
    rest_ns: tuple[int, ...], *, waits: bool
) -> None:
    """Backward by another thread, of gradients that were given: its thread records nothing within its range."""
    m = Program()
    lane = m.builder.lane(0, LaneKind.THREAD, 1, "thread 1")
    handed = []
    for i, rest in enumerate(rest_ns):
        ts = 20_000_000 * i
        m.op("aten::fwd", ts + 1_000, 5_000_000 + i)
        m.add(Kind.ANNOTATION, "## backward ##", lane, ts + 5_100_000, 10_000_000)
        m.op("MmBackward0", ts + 5_200_000, 4_000_000 + i, thread=2)
        ends = m.op("MmBackward1", ts + 9_201_000, 5_899_000 - rest, thread=2)
        handed.append((ends, m.op("aten::opt", ts + 15_130_000, 4_000_000 + i)))
    trace, row, _ = m.trace()
    first, then = handed[0]
    assert ((row[first], row[then]) in edges(trace, EdgeKind.HANDOVER)) == waits


@pytest.mark.parametrize(
    ("came_ns", "began_ns", "follows"),
    [
        # the second thread computes for 120 µs in each step, whenever the first one comes
        ((20_000, 90_000, 50_000, 70_000), (120_000, 120_000, 120_000, 121_000), False),
        # it begins 40 µs after the first one came, although that goes on at once
        ((90_000, 300_000, 150_000, 220_000), (130_000, 340_000, 190_000, 261_000), True),
    ],
)
def test_a_thread_follows_what_it_follows_in_every_step(
    came_ns: tuple[int, ...], began_ns: tuple[int, ...], *, follows: bool
) -> None:
    m = Program()
    lane = m.builder.lane(0, LaneKind.THREAD, 1, "thread 1")
    pairs = set()
    for step, (came, began) in enumerate(zip(came_ns, began_ns, strict=True)):
        ts = 1_000_000 * step
        m.add(Kind.ANNOTATION, f"ProfilerStep#{step}", lane, ts, 900_000)
        own = m.call("cudaLaunchKernel", ts + 1_000, 4_000, thread=2)
        cause = m.call("cudaLaunchKernel", ts + 1_000 + came, 4_000 + own % 2)
        goes_on = m.op("aten::add", ts + 5_500 + came, 500_000) if follows else cause
        pairs.add((cause, m.call("cudaMalloc", ts + 5_000 + began, 3_000 + goes_on % 2, thread=2)))
    trace, row, _ = m.trace()
    pairs = {(row[a], row[b]) for a, b in pairs}
    assert edges(trace, EdgeKind.HANDOVER) & pairs == (pairs if follows else set())


def test_a_thread_that_goes_on_at_the_end_of_a_long_rest_did_not_compute_for_as_long() -> None:
    """However alike its rests are: three steps may be so by chance (the sample job, whose backward passes are)."""
    m = Program()
    lane = m.builder.lane(0, LaneKind.THREAD, 1, "thread 1")
    pairs = []
    for step, wakes_ns in enumerate((50_000, 30_000, 40_000)):
        ts = 1_000_000 * step
        m.add(Kind.ANNOTATION, f"ProfilerStep#{step}", lane, ts, 900_000)
        m.call("cudaLaunchKernel", ts + 1_000, 4_000, thread=2)
        cause = m.call("cudaLaunchKernel", ts + 551_000 - wakes_ns, 4_000)
        pairs.append((cause, m.call("cudaMalloc", ts + 555_000, 3_000, thread=2)))
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.HANDOVER) >= {(row[a], row[b]) for a, b in pairs}


def test_operations_of_a_rank_without_steps_are_no_places_of_steps() -> None:
    """Their ordinals are above those of all rows in steps."""
    m = Program()
    lane = m.builder.lane(0, LaneKind.THREAD, 1, "thread 1")
    handed = set()
    for step, late in enumerate((0, 90_000, 30_000, 70_000)):
        ts = 10_000_000 * step + 10_000
        m.add(Kind.ANNOTATION, f"ProfilerStep#{step}", lane, ts, 9_000_000)
        m.op("aten::add", ts + 1_000, 1_000 + step)
        begins = m.op("aten::mul", ts + 5_000, 100_000 + late, thread=2)
        handed.add((begins, m.op("aten::sub", ts + 145_000 + late, 1_000 + step)))
        m.op("aten::neg", ts + 5_000_000, 1_000 + step)  # follows nothing
    other = m.builder.lane(1, LaneKind.THREAD, 9, "thread 9")
    for k in range(50):
        m.add(Kind.CPU_OP, "aten::empty", other, 1_000 + 100 * k, 50 + k, rank=1)
    trace, row, _ = m.trace()
    assert {(row[a], row[b]) for a, b in handed} <= edges(trace, EdgeKind.HANDOVER)


def test_threads_that_only_wait_for_data_follow_nothing_in_any_step() -> None:
    m = Program()
    lanes = [m.builder.lane(0, LaneKind.THREAD, n, f"thread {n}") for n in (1, 2)]
    for step in range(4):
        ts = 1_000_000 * step
        m.add(Kind.ANNOTATION, f"ProfilerStep#{step}", lanes[0], ts, 900_000)
        for k, lane in enumerate(lanes):
            m.add(
                Kind.ANNOTATION,
                "enumerate(DataLoader)#_Iter.__next__",
                lane,
                ts + 100_000 * (k + 1),
                9_000,
            )
    assert not edges(m.trace()[0], EdgeKind.HANDOVER)


def test_ranges_alone_are_followed_by_nothing() -> None:
    m = Program()
    lane = m.builder.lane(0, LaneKind.THREAD, 1, "thread 1")
    m.add(Kind.ANNOTATION, "collate", lane, 1_000, 90_000)
    m.add(Kind.ANNOTATION, "collate", lane, 100_000, 90_000)
    assert not edges(m.trace()[0], EdgeKind.HANDOVER)


def test_of_operations_that_end_together_that_of_the_first_thread_is_followed() -> None:
    m = Program()
    first = m.op("aten::add", 2_000, 49_000, thread=1)
    m.op("aten::add", 1_000, 50_000, thread=2)
    m.op("aten::add", 3_000, 48_000, thread=3)
    goes_on = m.op("aten::to", 60_000, 5_000, thread=4)
    trace, row, _ = m.trace()
    assert edges(trace, EdgeKind.HANDOVER) == {(row[first], row[goes_on])}


def test_threads_that_rest_take_no_time_of_each_other() -> None:
    """60,000 threads of an operation each were looked at for each other: 8 s, and 21 s for 10⁵ in a file of 9 MB."""
    for count in (2, 60_000):  # the first compiles
        builder = TraceBuilder()
        lanes = [builder.lane(0, LaneKind.THREAD, k, f"thread {k}") for k in range(count)]
        operation = {"kind": int(Kind.CPU_OP), "name": "aten::add", "dur": 1_000, "rank": 0}
        builder.nodes(lane=np.array(lanes), ts=2_000_000 * np.arange(count), **operation)
        trace = builder.finish()
        chosen, role = np.ones(count, bool), np.zeros(count, np.int8)
        started = time.process_time()
        src, _ = handover.handover_edges(trace, chosen, role, IssueLog("test"))
        took_s = time.process_time() - started
        assert not len(src)
    assert took_s < 2


@pytest.mark.parametrize(
    "second",
    [
        ("aten::to", 2_100_000, 5_000),  # a millisecond later: who knows why
        ("hipDeviceSynchronize", 60_000, 5_000),  # waits, but not for the other thread
        ("aten::to", 40_000, 5_000),  # the other runs still
    ],
)
def test_unrelated_operations_are_no_handover(second: tuple[str, int, int]) -> None:
    m = Program()
    m.op("aten::ones_like", 1_000, 50_000)
    add = m.call if second[0].startswith("hip") else m.op
    add(*second, thread=2)
    trace, _, _ = m.trace()
    assert not edges(trace, EdgeKind.HANDOVER)


def test_calls_that_order_no_work_neither_follow_other_threads_nor_are_followed() -> None:
    """NCCL's watchdog destroyed events between operators of a main thread, which then kept its measured time."""
    m = Program()
    m.op("aten::add", 1_000, 50_000)
    m.call("hipEventDestroy", 60_000, 2_000, thread=3)
    m.call("hipEventDestroy", 100_000, 2_100, thread=3)
    m.op("aten::mul", 130_000, 5_000)
    m.call("hipPointerGetAttributes", 160_000, 7_000, thread=3)
    m.op("aten::div", 190_000, 5_100)
    trace, _, _ = m.trace()
    assert not edges(trace, EdgeKind.HANDOVER)


def loader_behind_a_trainer(
    m: Program, batches: int, unbounded: tuple[int, ...], own_ns: int
) -> set[tuple[int, int]]:
    """A loader that is two batches ahead at most, but for some; what it waited for, and what it loaded then."""
    took, takes, waited = [], [], set()
    trains_at = loads_at = 0
    for batch in range(batches):
        room_at = took[batch - 3] + 6_000 if batch > 2 and batch not in unbounded else 0
        begins = max(loads_at + own_ns * (1 + batch * 7 % 5), room_at)
        load = m.op("load", begins, 60_000 + 9_001 * (batch * 5 % 4), thread=2)
        if room_at and begins == room_at:
            waited.add((takes[batch - 3], load))
        loads_at = sum(m.rows[load])
        take = m.op("take", max(trains_at, loads_at) + 2_000, 4_000)
        takes.append(take)
        took.append(sum(m.rows[take]))
        step = m.op("step", took[-1] + 1_000, 250_001 + 20_000 * (batch * 3 % 7))
        trains_at = sum(m.rows[step])
    return waited


@pytest.mark.parametrize(
    ("batches", "unbounded", "own_ns", "follows"),
    [
        (12, (), 3_000, True),
        (9, (), 3_000, True),
        (8, (), 3_000, False),  # three rests: the same may be by chance
        (12, (8,), 3_000, False),  # one load began before the take
        (12, (5, 6, 7, 8, 9, 10, 11), 3_000, False),  # the bound is for some alone
        (12, tuple(range(12)), 40_000, False),  # the loader computes while it seems to rest
    ],
)
def test_a_loader_waits_until_the_trainer_takes_a_batch(
    batches: int, unbounded: tuple[int, ...], own_ns: int, *, follows: bool
) -> None:
    """The trainer goes on at once, so that it does not rest for the loader."""
    m = Program()
    waited = loader_behind_a_trainer(m, batches, unbounded, own_ns)
    trace, row, _ = m.trace()
    expected = {(row[take], row[load]) for take, load in waited} if follows else set()
    name, names = trace.array("name"), trace.names()
    into_loads = {(a, b) for a, b in edges(trace, EdgeKind.HANDOVER) if names[name[b]] == "load"}
    assert into_loads == expected


def test_a_loader_that_computes_follows_no_trainer_that_spins_until_the_batch_is_there() -> None:
    """Both go in turn; but the time since the trainer's step varies as much as the loader's rest."""
    m = Program()
    at = 0
    for batch in range(12):
        m.op("take", at, 4_000)
        m.op("step", at + 5_000, 30_001)
        loads_at = at + 100_000 + 30_000 * (batch * 3 % 7)
        m.op("load", loads_at, 60_000, thread=2)
        m.op("spin", at + 36_000, loads_at + 62_000 - at - 36_000)
        at = loads_at + 63_000
    assert not edges(m.trace()[0], EdgeKind.HANDOVER)


def test_a_loader_follows_no_operations_that_end_all_the_time() -> None:
    m = Program()
    loads_at = 100_000
    for batch in range(12):
        m.op("load", loads_at, 60_000 + batch, thread=2)
        loads_at += 60_000 + 100_000 + 30_000 * (batch * 3 % 7)
    for k in range(loads_at // 10_000):
        m.op("aten::add", 10_000 * k, 9_000)
    assert not edges(m.trace()[0], EdgeKind.HANDOVER)


def test_a_loader_that_waited_loads_in_parts_for_a_trainer_that_takes_in_parts() -> None:
    """It wakes while the trainer goes on, whose short operations end before it has begun."""
    m = Program()
    expected = set()
    at = rests_at = 0
    for turn in range(12):
        at = max(at, rests_at + 200_000 + 50_000 * (turn * 5 % 7))
        for _ in range(3):
            take = m.op("take", at, 4_000)
            at += 5_000
        loads_at = at - 1_000 + 40_000 + 500 * (turn * 3 % 5)
        for _ in range(turn % 3):
            m.op("aten::add", at + 1_000, 9_001)
            at += 11_000
        m.op("step", at + 1_000, 300_001 + 30_000 * (turn * 3 % 7))
        at += 302_000 + 30_000 * (turn * 3 % 7)
        for part in range(1 + turn * 5 % 3):
            load = m.op("copy", loads_at, 20_000, thread=2)
            loads_at += 21_000
            if turn and not part:
                expected.add((take, load))
        m.op("pin", loads_at, 5_000, thread=2)
        rests_at = loads_at + 5_000
    trace, row, _ = m.trace()
    name, names = trace.array("name"), trace.names()
    found = {(a, b) for a, b in edges(trace, EdgeKind.HANDOVER) if names[name[b]] == "copy"}
    assert found == {(row[take], row[load]) for take, load in expected}


@pytest.mark.parametrize(
    ("behind_ns", "prepares_ns", "follows"),
    [
        (500_000, -400_000, True),
        (500_000, 20_000, False),  # the loader was at work when the batch was taken
        (1_500_000, -400_000, False),  # no thread takes that long to wake
    ],
)
def test_a_loader_follows_what_ended_while_it_rested_and_shortly_before(
    behind_ns: int, prepares_ns: int, *, follows: bool
) -> None:
    m = Program()
    m.op("step", 0, 3_000_001)
    expected = set()
    for turn in range(12):
        at = 10_000_000 + 10_000_000 * turn + 700_001 * (turn * 5 % 7)
        take = m.op("take", at, 4_000)
        m.op("aten::mm", at + 5_000, behind_ns - 100_000 + 10_000 * (turn * 3 % 7))
        m.op("step", at + behind_ns, 3_000_001)
        m.op("prepare", at + prepares_ns + 50_000 * (turn * 5 % 7), 30_000, thread=2)
        load = m.op("load", at + 4_000 + behind_ns, 60_000, thread=2)
        expected.add((take, load))
    trace, row, _ = m.trace()
    name, names = trace.array("name"), trace.names()
    found = {(a, b) for a, b in edges(trace, EdgeKind.HANDOVER) if names[name[b]] == "load"}
    assert found == ({(row[take], row[load]) for take, load in expected} if follows else set())


def memory_to_infer(threads: int) -> int:
    """Bytes to infer edges among 6,400 operations of threads that work all the time."""
    m = Program()
    draw = np.random.default_rng(45_100)
    for thread in range(threads):
        took, rest = draw.integers(1, (50_000, 200_000), (6_400 // threads, 2)).T
        lane = m.builder.lane(0, LaneKind.THREAD, thread, f"thread {thread}")
        ends = np.cumsum(took + rest)
        m.builder.nodes(
            kind=int(Kind.CPU_OP), name="op", rank=0, lane=lane, ts=ends - took, dur=took
        )
    made = m.builder.finish()
    tracemalloc.start()
    inference.infer_edges(made, IssueLog("test"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_many_threads_at_work_take_no_more_memory_than_few() -> None:
    assert memory_to_infer(64) < 2 * memory_to_infer(4)


@pytest.mark.parametrize("late", [(), (3, 7, 8, 15)])
def test_threads_that_timers_wake_do_not_wait_for_each_other(late: tuple[int, ...]) -> None:
    """Each sleeps until its next time; where its work took until then it does not rest."""
    m = Program()
    for turn in range(24):
        at = 10_000_000 * turn
        m.op("beat", at + turn * 7 % 5, 100_000 + turn * 11 % 7)
        m.op("work", at + 102_000, 5_000_000 + 50_001 * (turn * 5 % 9))
        took = 9_990_000 if turn in late else 3_000_000 + 70_001 * (turn * 5 % 13)
        m.op("poll", at + 300_000 + turn * 3 % 7, took, thread=2)
    trace, _, _ = m.trace()
    assert not edges(trace, EdgeKind.HANDOVER)


def test_of_operations_at_one_time_that_take_none_the_first_is_not_behind_the_other() -> None:
    m = Program()
    for turn in range(12):
        at = 2_000_000 * turn + 100_001 * (turn * 5 % 7)
        for thread in (1, 2):
            m.op(f"mark {thread}", at, 0, thread)
            m.op("work", at + 3_000, 300_000 + 10_001 * (turn * 3 % 5) + thread, thread)
    issues = IssueLog("test")
    inference.infer_edges(m.builder.finish(), issues)
    assert not counts(issues).get("dependency-backward-in-time")


@pytest.fixture(scope="module", params=[False, True], ids=["no records", "records"])
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo(
        tmp_path_factory.mktemp("demo") / "job", ranks=2, layers=3, steps=2, recorder_hz=0,
        counter_steps=0, telemetry=False, event_records=request.param,
    )  # fmt: skip


def test_every_wait_on_the_demo_jobs_critical_path_has_its_edge(demo: Path) -> None:
    trace = read_once(demo / "kineto")
    truth = json.loads((demo / "truth.json").read_text())
    start = trace.array("ts") + trace.meta.origin_ns
    end = start + trace.array("dur")
    rank, kind, correlation = (trace.array(c) for c in ("rank", "kind", "correlation"))
    on_gpu = np.isin(kind, [int(k) for k in GPU_WORK])
    row = {
        (int(rank[i]), int(correlation[i]), bool(on_gpu[i])): i
        for i in np.flatnonzero(correlation > 0)
    }
    actual = {
        (k, dst, int(end[src]))
        for k in (EdgeKind.EVENT, EdgeKind.SYNC)
        for src, dst in edges(trace, k)
    }
    met: Counter[str] = Counter()
    paths = truth["critical_path"]
    for path in (paths["window"], *paths["steps"].values()):
        pieces = zip(*(path[c] for c in ("kind", "rank", "correlation", "ts_ns")), strict=True)
        for what, of_rank, number, ts in pieces:
            if what in ("event_latency", "sync_latency"):
                on = what == "event_latency"
                edge = EdgeKind.EVENT if on else EdgeKind.SYNC
                at = row[of_rank, number, on]
                assert any((edge, at, ts + d) in actual for d in (-1, 0, 1)), (what, number)
                met[what] += 1
    assert min(met["event_latency"], met["sync_latency"]) > 3


def test_each_backward_pass_of_the_demo_job_is_handed_over_and_back(demo: Path) -> None:
    trace = read_once(demo / "kineto")
    lane, rank = trace.array("lane"), trace.array("rank")
    handed = edges(trace, EdgeKind.HANDOVER)
    assert Counter(int(rank[dst]) for _, dst in handed) == {0: 4, 1: 4}  # twice a step
    assert all(lane[src] != lane[dst] for src, dst in handed)


def test_edges_are_counted_by_kind() -> None:
    m = Program()
    m.op("outer", 1_000, 90_000)
    m.op("first", 2_000, 1_000)
    m.op("second", 4_000, 1_001)
    m.op("behind", 95_000, 1_000)
    m.op("alone", 97_000, 1_002, thread=2)
    m.work(6_000, 100, 5_000)
    m.work(11_200, 101, 5_100)
    trace, _, _ = m.trace()
    counts = trace.graph().counts()
    assert counts == {"call": 4, "order": 4, "launch": 2, "stream": 1, "handover": 1}


@pytest.mark.parametrize("name", slow_from(["job.parquet", "job.pftrace"], 1))
def test_the_edges_of_our_own_outputs_come_back(demo: Path, tmp_path: Path, name: str) -> None:
    trace = read_once(demo / "kineto")
    pipeline.write(trace, tmp_path / name)
    again = pipeline.read(tmp_path / name)
    for kind in inference.DEPENDENCY_KINDS:
        assert len(edges(again, kind)) == len(edges(trace, kind))


@pytest.mark.parametrize("path", each(slow_but_each(REAL, 8)), ids=lambda p: p.name[:40])
def test_edges_of_real_files_point_forward_and_make_no_cycle(path: Path) -> None:
    try:
        trace = read_once(path)
    except ReadError as error:
        pytest.skip(str(error))
    kind = trace.array("kind", "edges")
    src, dst = trace.array("src", "edges"), trace.array("dst", "edges")
    graph = structure_of(trace)
    for k in (EdgeKind.EVENT, EdgeKind.SYNC, EdgeKind.HANDOVER):
        these = np.flatnonzero(kind == k)
        backward = these[~endpoints.forward(trace, src[these], dst[these], k)]
        if k == EdgeKind.SYNC:  # by a GPU's clock that is ahead, which is counted
            end = trace.array("ts") + trace.array("dur")
            assert (end[src[backward]] <= end[dst[backward]] + MAX_AHEAD_NS).all()
            assert len(np.unique(dst[backward])) <= counts(trace.meta.issues).get(
                "wait-ends-early", 0
            )
        else:
            assert not backward.size
        first, last = EDGE_ENDPOINTS.get(k, ENDS)
        for a, b in zip(src[these].tolist(), dst[these].tolist(), strict=True):
            graph.add_edge(2 * a + first, 2 * b + last)
    assert nx.is_directed_acyclic_graph(graph)


def structure_of(trace: Trace) -> nx.DiGraph[int]:
    """Starts (2 i) and ends (2 i + 1) of nodes, nesting, and order on lanes where none overlap."""
    ts, dur, parent, lane = (trace.array(c) for c in ("ts", "dur", "parent", "lane"))
    end = ts + dur
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_edges_from((2 * i, 2 * i + 1) for i in range(len(ts)))
    for i in np.flatnonzero(parent >= 0).tolist():
        graph.add_edge(2 * int(parent[i]), 2 * i)
        graph.add_edge(2 * i + 1, 2 * int(parent[i]) + 1)
    kinds = trace.array("kind", "lanes")
    for on in np.unique(lane).tolist():
        if kinds[on] not in [int(k) for k in (*GPU_LANES, LaneKind.THREAD)]:
            continue
        selected = np.flatnonzero((lane == on) & (parent < 0)).tolist()
        graph.add_edges_from((2 * a + 1, 2 * b) for a, b in pairwise(selected) if end[a] <= ts[b])
    return graph


def test_a_rank_with_recorded_dependencies_gets_no_others_of_its_copies(tmp_path: Path) -> None:
    """Copies that hosts wait for are known by their names, on queues of all ranks."""
    for rank in (0, 1):
        info = {"rank": rank, "world_size": 2, "backend": "nccl"}
        path = tmp_path / f"rank{rank}.json"
        write(path, uploads("Pageable", 0), baseTimeNanoseconds=BASE, distributedInfo=info)
    complete = pipeline.read(tmp_path)
    found = np.isin(complete.array("kind", "edges"), [int(k) for k in inference.DEPENDENCY_KINDS])
    rank = complete.array("rank")[complete.array("dst", "edges")]
    assert np.bincount(rank[found])[0] > 1
    kept = ~found
    kept[np.flatnonzero(found & (rank == 0))[0]] = True
    trace = inference.infer_edges(
        replace(complete, edges=complete.edges.filter(kept)), IssueLog("test")
    )
    of_ranks = np.bincount(trace.array("rank")[trace.array("dst", "edges")])
    assert of_ranks.tolist() == [np.count_nonzero(kept & (rank == 0)), np.count_nonzero(rank == 1)]
