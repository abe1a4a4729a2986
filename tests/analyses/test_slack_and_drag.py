"""Slack and drag of random jobs, against what a change of one node does to the end of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from programs import families, kineto
from programs.simulation import simulate

import chopper_interop as ci
from chopper_interop.analyses.methods.timing import spans
from chopper_interop.annotate.stages import annotate
from chopper_interop.build import TraceBuilder
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.timing.model import timing_of

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.arrays import Array
    from chopper_interop.timing.model import Timing

Program: TypeAlias = list[tuple[str, int, int, int]]
Late: TypeAlias = list[list[int]]

operations = st.tuples(
    st.sampled_from(["kernel", "kernel", "all_reduce"]),
    st.integers(0, 1),  # the stream
    st.integers(0, 6),  # time before it
    st.integers(0, 12),  # its own time
)
programs = st.lists(operations, min_size=1, max_size=8)
long_operations = st.tuples(
    st.sampled_from(["kernel", "all_reduce"]),
    st.integers(0, 1),
    st.integers(0, 6),
    st.integers(0, 40),
)
delays = st.lists(st.integers(0, 9), min_size=12, max_size=12)


def job(program: Program, late: Late, second: int | None = None) -> ci.Trace:
    """Ranks that run one program, each later in its own way; collectives begin to transfer with their last member.

    With the number of the operation with which a second step begins, both steps are marked.
    """
    builder = TraceBuilder()
    everyone = range(len(late))
    group = builder.group("", list(everyone), "pg", "nccl")
    lane = {
        (rank, stream): builder.lane(rank, LaneKind.STREAM, stream, f"stream {stream}", 0)
        for rank in everyone
        for stream in (0, 1)
    }
    free = dict.fromkeys(lane, 0)
    launches, meetings, called = [], [], dict.fromkeys(everyone, 0)
    begun = dict.fromkeys(everyone, 0)

    def end_step(number: int) -> None:
        for rank in everyone:
            builder.nodes(
                kind=int(Kind.ANNOTATION), name=f"ProfilerStep#{number}", rank=rank,
                lane=builder.lane(rank, LaneKind.THREAD, 9, "thread"),
                ts=np.array([begun[rank]]), dur=called[rank] - begun[rank],
            )  # fmt: skip
        begun.update(called)

    for i, (what, stream, gap, dur) in enumerate(program):
        if i == second:
            end_step(1)
        start = {}
        for rank in everyone:
            thread = builder.lane(rank, LaneKind.THREAD, 9, "thread")
            begin = called[rank] + late[rank][-1 - i]
            call = builder.nodes(
                kind=int(Kind.RUNTIME),
                name="launch",
                rank=rank,
                lane=thread,
                ts=np.array([begin]),
                dur=1,
            )
            called[rank] = begin + 1
            start[rank] = max(free[rank, stream], begin + 1) + gap, call
        meets = max(ts for ts, _ in start.values())
        members = []
        for rank, (ts, call) in start.items():
            own = dur + late[rank][i]
            is_comm = what != "kernel"
            end = meets + own if is_comm else ts + own
            stated = {
                "collective": pa.array([what]),
                "group": group,
                "instance": pa.array([i], pa.int32()),
            }
            work = builder.nodes(
                kind=int(Kind.COMM if is_comm else Kind.KERNEL), name=f"{what} {i}", rank=rank,
                lane=lane[rank, stream], ts=np.array([ts]), dur=end - ts, **(stated if is_comm else {}),
            )  # fmt: skip
            free[rank, stream] = end
            launches.append((call, work))
            members.append((ts, work))
        last = max(members)[1]
        meetings += [(last, work) for _, work in members if what != "kernel" and work != last]
    if second is not None:
        end_step(2)
    for pairs, kind in ((launches, EdgeKind.LAUNCH), (meetings, EdgeKind.COMM)):
        src, dst = np.array(pairs, np.int32).reshape(-1, 2).T
        builder.edges(src, dst, int(kind))
    return builder.finish()


def times_of(timing: Timing, lag: Array) -> list[int]:
    """Time of each vertex with these lags: the longest path to it, vertex by vertex."""
    graph, time = timing.graph, timing.at_ns.tolist()
    entered: dict[int, list[int]] = {}
    for v in graph.order.tolist():
        if v in entered:
            time[v] = max(entered[v]) + int(timing.delay_ns[v])
        for e in range(int(graph.first[v]), int(graph.first[v + 1])):
            entered.setdefault(int(graph.after[e]), []).append(time[v] + int(lag[e]))
    return time


def end_of(timing: Timing, lag: Array) -> int:
    """End of the job with these lags."""
    time = times_of(timing, lag)
    connected = (timing.binding >= 0) | (np.diff(timing.graph.first) > 0)
    return max(time[v] for v in np.flatnonzero(connected).tolist())


def own_edges(timing: Timing, node: int) -> Array:
    """Mask of the edges along which a node's own time passes: of a member of a collective those of the whole transfer."""
    graph = timing.graph
    end = 2 * node + 1
    own = (graph.after == end) & ((graph.kind == EdgeKind.DURATION) | (graph.kind == EdgeKind.COMM))
    barriers = np.unique(graph.src[own & (graph.src >= timing.barriers.start)])
    return own | np.isin(graph.src, barriers)


@settings(max_examples=60)
@given(programs, st.lists(delays, min_size=1, max_size=3))
def test_drag_is_what_the_job_gains_without_a_node(program: Program, late: Late) -> None:
    """Of a collective: without its transfer, which ends for all members at once."""
    trace = job(program, late)
    timing = timing_of(trace)
    drag = ci.analyze(trace, "critical_path").annotate(trace).to_pandas()["drag_ns"]
    as_measured = end_of(timing, timing.lag_ns)
    for node in np.flatnonzero(drag.notna()).tolist():
        lag = timing.lag_ns.copy()
        lag[own_edges(timing, node)] = 0
        assert as_measured - end_of(timing, lag) == drag[node], (node, trace.names())


@settings(max_examples=60)
@given(programs, st.lists(delays, min_size=1, max_size=3))
def test_a_node_may_end_later_by_its_slack_and_no_more(program: Program, late: Late) -> None:
    trace = job(program, late)
    timing = timing_of(trace)
    slack = ci.analyze(trace, "critical_path").annotate(trace).to_pandas()["slack_ns"]
    as_measured = end_of(timing, timing.lag_ns)
    for node in np.flatnonzero(slack.notna()).tolist():
        into = timing.graph.after == 2 * node + 1
        for more, moved in ((0, 0), (1, 1)):
            lag = timing.lag_ns + np.where(into, int(slack[node]) + more, 0)
            assert end_of(timing, lag) == as_measured + moved, (node, more)


FAMILIES = (
    "gpu_bound", "pipeline", "streams", "fsdp", "ddp", "host_bound", "threads", "forks", "polls", "copies", "backlog",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_drag_is_what_a_step_gains_whatever_runs_into_it(tmp_path: Path, family: str) -> None:
    """Work of the step before may still run, and gains what it takes within the step; what waits for it does not move."""
    trace = ci.read(*kineto.write(simulate(getattr(families, family)(14_100)), tmp_path))
    assert steps_judged(trace, every=3)


_ENTERED_BY_A_TRANSFER = (
    [("kernel", 1, 1, 7), ("all_reduce", 0, 5, 15), ("kernel", 0, 3, 24)],
    [
        [4, 8, 4, 7, 5, 1, 3, 5, 0, 0, 0, 4],
        [9, 5, 7, 6, 5, 6, 1, 1, 5, 9, 7, 1],
        [4, 3, 9, 8, 7, 5, 4, 2, 8, 3, 4, 3],
    ],
    1,
)
"""The path's first transfer begins before the step, and a second one ends in it later, of which a part is in the step."""


@settings(max_examples=60)
@example(*_ENTERED_BY_A_TRANSFER)
@given(
    st.lists(long_operations, min_size=2, max_size=6),
    st.lists(delays, min_size=2, max_size=3),
    st.integers(1, 7),
)
def test_drag_is_what_a_step_of_a_random_job_gains(
    program: Program, late: Late, second: int
) -> None:
    """Its path may begin with a transfer that began before the step, and ends for other ranks in it, too."""
    steps_judged(annotate(job(program, late, min(second, len(program) - 1))))


def steps_judged(trace: ci.Trace, every: int = 1) -> int:
    """Number of drags of all steps that were compared with what the step gains, of each so many nodes one."""
    timing, judged = timing_of(trace), 0
    steps = spans.spans_of_timing(timing, "each")
    start, end = steps.starts(timing.at_ns).tolist(), steps.ends(timing.at_ns).tolist()
    src, after = timing.graph.src, timing.graph.after
    for k, step in enumerate(steps.iteration.tolist()):
        result = ci.analyze(trace, "critical_path", steps=str(step))
        drag, ends = result.annotate(trace).to_pandas()["drag_ns"], steps.may_end_with(k)
        within_ns = timing.at_ns[after] - np.maximum(timing.at_ns[src], start[k])
        for node in np.flatnonzero(drag.notna()).tolist()[::every]:
            lag, own = timing.lag_ns.copy(), own_edges(timing, node)
            lag[own] -= np.minimum(lag, within_ns)[own]
            time = times_of(timing, lag)
            assert end[k] - max(time[v] for v in ends.tolist()) == drag[node], (step, node)
            judged += 1
    return judged
