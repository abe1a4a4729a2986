"""The timing model of small traces: whose the measured time is, and what binds after a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from chopper_interop.build import TraceBuilder
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import COMPUTED, REALTIME, Meta
from chopper_interop.timing.model import Timing, is_buffered, timing_of

if TYPE_CHECKING:
    import chopper_interop as ci


def node(trace: ci.Trace, name: str) -> int:
    """Row of the only node of that name."""
    (row,) = np.flatnonzero(trace.array("name") == trace.names().index(name)).tolist()
    return row


def start_if(timing: Timing, name: str, shorter: str, lasts_ns: int) -> int:
    """When a node would start if another one lasted so long."""
    lag = timing.lag_ns.copy()
    lag[
        (timing.graph.kind == EdgeKind.DURATION)
        & (timing.graph.src == 2 * node(timing.trace, shorter))
    ] = lasts_ns
    return int(timing.retimed(lag)[2 * node(timing.trace, name)])


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
    builder = TraceBuilder(Meta(clock=clock))
    rows = {}
    for thread, name, ts, dur in ((1, "first", 0, 10), (2, "other", 0, 50), (1, "next", 50, 10)):
        rows[name] = builder.nodes(
            kind=int(Kind.CPU_OP), name=name, rank=0, ts=np.array([ts]), dur=dur,
            lane=builder.lane(0, LaneKind.THREAD, thread, f"thread {thread}"),
        )  # fmt: skip
    builder.edges(np.array([rows["other"]]), np.array([rows["next"]]), int(kind))
    assert start_if(timing_of(builder.finish()), "next", "other", lasts_ns=20) == start_ns


def test_what_a_member_lasts_behind_the_start_of_its_root_is_its_transfer() -> None:
    """It is no delay without a cause; what it waited before is not its own."""
    builder = TraceBuilder()
    rows = {}
    for rank, name, ts, dur in (
        (0, "kernel", 0, 900),
        (0, "root", 900, 100),
        (1, "member", 0, 1000),
    ):
        comm = {"collective": "broadcast", "instance": pa.array([0], pa.int32())}
        rows[name] = builder.nodes(
            kind=int(Kind.KERNEL if name == "kernel" else Kind.COMM), name=name, rank=rank,
            lane=builder.lane(rank, LaneKind.STREAM, 7, "stream 7", 0), ts=np.array([ts]), dur=dur,
            **({} if name == "kernel" else comm),
        )  # fmt: skip
    builder.edges(np.array([rows["root"]]), np.array([rows["member"]]), int(EdgeKind.COMM))
    timing = timing_of(builder.finish())
    end = 2 * node(timing.trace, "member") + 1
    assert timing.delay_ns[end] == 0
    lag = timing.lag_ns.copy()
    lag[timing.graph.src == 2 * node(timing.trace, "kernel")] = 0
    assert timing.retimed(lag)[end] == 100


def test_sends_wait_for_nobody_up_to_a_size() -> None:
    """The receive of the third is there within the time that a send takes; the fourth waited for its own."""
    send, end = np.array([[0, 50, 100, 200], [10, 60, 110, 270]])
    buffered = is_buffered(send, end, np.array([20, 70, 105, 260]), np.array([8, 8, 8, 64]))
    assert buffered.tolist() == [True, True, True, False]


def test_receives_of_buffered_sends_end_behind_these() -> None:
    """Two receives began when their messages were there; the third waited and ended 5 ns behind its send.

    A send without a receive waited for 990 of its 1,000 ns, as others of its size take 10.
    """
    builder = TraceBuilder()
    rows = []
    for rank, kind, starts, lasts in (
        (0, "send", (0, 100, 200, 300), (10, 10, 10, 1000)),
        (1, "recv", (20, 120, 150), (10, 10, 65)),
    ):
        lane = builder.lane(rank, LaneKind.STREAM, 7, "stream 7", 0)
        rows.append([
            builder.nodes(
                kind=int(Kind.COMM), name=f"{kind} {i}", rank=rank, lane=lane, ts=np.array([ts]),
                dur=dur, collective=kind, bytes=pa.array([8]), instance=pa.array([i if i < 3 else None], pa.int32()),
            )
            for i, (ts, dur) in enumerate(zip(starts, lasts, strict=True))
        ])  # fmt: skip
    sends, receives = (np.array(of_rank[:3]).ravel() for of_rank in rows)
    builder.edges(sends, receives, int(EdgeKind.COMM))
    timing = timing_of(builder.finish())

    def ends_if(send: str, later_ns: int, receive: str) -> int:
        delay = timing.delay_ns.copy()
        delay[2 * node(timing.trace, send)] += later_ns
        return int(timing.retimed(delay_ns=delay)[2 * node(timing.trace, receive) + 1])

    assert ends_if("send 2", -80, "recv 2") == 150 + 10
    assert ends_if("send 1", 40, "recv 1") == 150 + 5
    assert timing.delay_ns[2 * node(timing.trace, "send 3") + 1] == 990
