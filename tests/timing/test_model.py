"""The timing model of small traces: whose the measured time is, and what binds after a change."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import gpu_work
import numpy as np
import pyarrow as pa
import pytest

from chopper_interop import rank_batches
from chopper_interop.build import TraceBuilder
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import COMPUTED, REALTIME, Meta
from chopper_interop.timing.model import Timing, is_buffered, timing_of

if TYPE_CHECKING:
    import chopper_interop as ci


class Operation(NamedTuple):
    """An operation: an operator on a thread, or GPU work on the only stream of its rank."""

    name: str
    ts: int
    dur: int
    rank: int = 0
    kind: Kind = Kind.COMM
    collective: str | None = None
    instance: int | None = 0
    thread: int = 1


def model(edge: EdgeKind, pairs: dict[str, str], *made: Operation, clock: str = REALTIME) -> Timing:
    """Timing model of these operations, with edges from some to others."""
    builder = TraceBuilder(Meta(clock=clock))
    number = {}
    for one in made:
        lane = (LaneKind.STREAM, 7, "stream 7", 0)
        if one.kind == Kind.CPU_OP:
            lane = (LaneKind.THREAD, one.thread, f"thread {one.thread}")
        stated = {"bytes": pa.array([8]), "instance": pa.array([one.instance], pa.int32())}
        stated |= {"collective": one.collective} if one.collective else {}
        number[one.name] = builder.nodes(
            kind=int(one.kind), name=one.name, rank=one.rank, lane=builder.lane(one.rank, *lane),
            ts=np.array([one.ts]), dur=one.dur, **(stated if one.kind == Kind.COMM else {}),
        )  # fmt: skip
    src, dst = (np.array([number[name] for name in side]) for side in (pairs, pairs.values()))
    builder.edges(src, dst, int(edge))
    return timing_of(builder.finish())


def row_of(trace: ci.Trace, name: str) -> int:
    """Row of the only node of that name."""
    (row,) = np.flatnonzero(trace.array("name") == trace.names().index(name)).tolist()
    return row


def times_if(timing: Timing, name: str, shorter: str, lasts_ns: int) -> tuple[int, int]:
    """When a node would start and end if another one lasted so long."""
    changed = 2 * row_of(timing.trace, shorter)
    lag, row = timing.lag_ns.copy(), row_of(timing.trace, name)
    lag[(timing.graph.kind == EdgeKind.DURATION) & (timing.graph.src == changed)] = lasts_ns
    start, end = timing.retimed(lag)[[2 * row, 2 * row + 1]].tolist()
    return start, end


@pytest.mark.parametrize(
    ("clock", "kind", "start_ns"),
    [
        (REALTIME, EdgeKind.HANDOVER, 20),
        (COMPUTED, EdgeKind.DEPENDENCY, 20),
        (REALTIME, EdgeKind.DEPENDENCY, 50),
    ],
)
def test_time_before_an_operation_that_waited_is_no_work_of_its_thread(
    clock: str, kind: EdgeKind, start_ns: int
) -> None:
    """A thread that was handed over to, or is simulated, goes on with what it waited for; others may have worked."""
    timing = model(
        kind, {"other": "next"},
        Operation("first", 0, 10, kind=Kind.CPU_OP), Operation("next", 50, 10, kind=Kind.CPU_OP),
        Operation("other", 0, 50, kind=Kind.CPU_OP, thread=2), clock=clock,
    )  # fmt: skip
    assert times_if(timing, "next", "other", lasts_ns=20) == (start_ns, start_ns + 10)


def test_what_a_member_lasts_behind_the_start_of_its_root_is_its_transfer() -> None:
    """It is no delay without a cause; what it waited before is not its own."""
    timing = model(
        EdgeKind.COMM, {"root": "member"}, Operation("kernel", 0, 900, kind=Kind.KERNEL),
        Operation("root", 900, 100, collective="broadcast"),
        Operation("member", 0, 1000, rank=1, collective="broadcast"),
    )  # fmt: skip
    assert timing.delay_ns[2 * row_of(timing.trace, "member") + 1] == 0
    assert times_if(timing, "member", "kernel", lasts_ns=0) == (0, 100)


def test_a_send_that_waits_ends_as_long_behind_the_start_of_its_receive() -> None:
    timing = model(
        EdgeKind.COMM, {"sent": "received"}, Operation("sent", 0, 100, collective="send"),
        Operation("kernel", 0, 60, rank=1, kind=Kind.KERNEL),
        Operation("received", 60, 40, rank=1, collective="recv"),
    )  # fmt: skip
    assert times_if(timing, "sent", "kernel", lasts_ns=20) == (0, 60)


@pytest.mark.parametrize(("instance", "end_ns"), [(0, 400), (None, 200)])
def test_communication_of_unknown_kind_waits_for_each_other_where_it_was_matched(
    instance: int | None, end_ns: int
) -> None:
    """Sources may connect anything, in one direction alone."""
    timing = model(
        EdgeKind.COMM, {"one": "other"}, Operation("one", 100, 100, instance=instance),
        Operation("kernel", 0, 50, rank=1, kind=Kind.KERNEL),
        Operation("other", 50, 150, rank=1, instance=instance),
    )  # fmt: skip
    assert times_if(timing, "one", "kernel", lasts_ns=300) == (100, end_ns)


def test_sends_wait_for_nobody_up_to_a_size() -> None:
    """Two receives are there within the time that a send takes, as by chance; the last send waited for its own."""
    send, end = np.array([[0, 50, 100, 150, 200], [10, 60, 110, 160, 270]])
    receive = np.array([20, 70, 105, 155, 260])
    buffered = is_buffered(send, end, receive, np.array([8, 8, 8, 8, 64]))
    assert buffered.tolist() == [True, True, True, True, False]


def test_receives_of_buffered_sends_end_behind_these() -> None:
    """Two receives began when their messages were there; the third waited and ended 5 ns behind its send.

    A send without a receive waited for 990 of its 1,000 ns, as others of its size take 10.
    """
    sends = [
        Operation(f"send {i}", 100 * i, 10 if i < 3 else 1000, 0, Kind.COMM, "send", i if i < 3 else None)
        for i in range(4)
    ]  # fmt: skip
    receives = [
        Operation(f"recv {i}", ts, dur, 1, Kind.COMM, "recv", i)
        for i, (ts, dur) in enumerate(((20, 10), (120, 10), (150, 65)))
    ]
    pairs = {f"send {i}": f"recv {i}" for i in range(3)}
    timing = model(EdgeKind.COMM, pairs, *sends, *receives)

    def end_if(send: str, later_ns: int, receive: str) -> int:
        delay = timing.delay_ns.copy()
        delay[2 * row_of(timing.trace, send)] += later_ns
        return int(timing.retimed(delay_ns=delay)[2 * row_of(timing.trace, receive) + 1])

    assert end_if("send 2", -80, "recv 2") == 150 + 10
    assert end_if("send 1", 40, "recv 1") == 150 + 5
    assert timing.delay_ns[2 * row_of(timing.trace, "send 3") + 1] == 990


def test_the_first_work_of_a_step_is_anchored_to_nothing() -> None:
    """Not to itself, which would be a cycle; other work of the step that waits for nothing follows it."""
    works = [gpu_work.Work(Kind.KERNEL, 10 * k, 5, stream=k, iteration=1) for k in range(3)]
    graph = timing_of(gpu_work.trace(works)).graph
    assert graph.left_out == 0
    anchored = graph.kind == EdgeKind.DEPENDENCY
    assert sorted(zip(graph.src[anchored], graph.after[anchored], strict=True)) == [(0, 2), (0, 4)]


def test_work_that_waits_for_nothing_is_anchored_in_its_own_rank_however_many_are_looked_at(
    monkeypatch,
):
    works = [
        gpu_work.Work(Kind.KERNEL, start=start, dur=3, rank=rank, stream=start, iteration=5)
        for rank in range(3)
        for start in (rank, rank + 9)
    ]
    anchored = []
    for at_once in (1 << 20, 1):
        monkeypatch.setattr(rank_batches, "MAX_NODES", at_once)
        edges = timing_of(gpu_work.trace(works)).graph
        chosen = edges.kind == EdgeKind.DEPENDENCY
        anchored.append((edges.src[chosen].tolist(), edges.after[chosen].tolist()))
    assert anchored == [([0, 4, 8], [2, 6, 10])] * 2


def test_work_of_any_kind_lasts_behind_the_start_of_what_it_waits_for():
    timing = model(
        EdgeKind.COMM, {"one": "other"}, Operation("one", 50, 20, kind=Kind.KERNEL),
        Operation("other", 10, 70, rank=1, kind=Kind.KERNEL),
    )  # fmt: skip
    end = timing.graph.after == 2 * row_of(timing.trace, "other") + 1
    assert timing.lag_ns[end].tolist() == [30, 30]
