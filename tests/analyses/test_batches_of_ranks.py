"""Analyses of some ranks at a time have the results of the whole trace: rows, summary, notes and annotations."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import gpu_work
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chopper_interop as ci
from chopper_interop import pipeline, rank_batches, tables, training_steps
from chopper_interop.analyses.methods.activity import host_waits
from chopper_interop.analyses.methods.activity.grouping import GRAINS
from chopper_interop.arrays import sorted_groups, spill
from chopper_interop.build import TraceBuilder
from chopper_interop.errors import ChopperError
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.testing import strategies

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from chopper_interop.trace import Trace

OWN_GRAINS: dict[str, tuple[str, ...]] = {
    "temporal": GRAINS,
    "overlap": (*GRAINS, "instance", "operation_instance"),
    "kernels": GRAINS,
    "idle": (*GRAINS, "device", "blame", "blame,device,phase"),
    "launch": GRAINS,
    "breakdown": GRAINS,
    "memory_round_trips": GRAINS,
    "efficiency": ("job", "iteration"),
}
"""Analyses that measure batches, with what their rows may be of."""
STEPS = ("", "each", "0", "0-1")


def _result(trace: Trace, name: str, options: dict[str, str]) -> Any:
    """What an analysis says of a trace, of which nothing is known yet; or its error."""
    try:
        result = ci.analyze(replace(trace), name, **options)
    except ChopperError as error:
        return str(error)
    columns = {name: (str(c.type), c.to_pylist()) for name, c in result.annotations.items()}
    return result.to_dict(), list(map(str, result.rows.schema)), columns


def _assert_equal(
    trace: Trace, name: str, options: dict[str, str], *, in_files: bool = False
) -> None:
    """Of a rank at a time there is what there is of all at once, which the repr shows to the last bit."""
    at_once = _result(trace, name, options)
    with pytest.MonkeyPatch.context() as patch, spill.when(in_files):
        patch.setattr(rank_batches, "MAX_NODES", 1)
        patch.setattr(training_steps, "_AT_ONCE", 1)
        patch.setattr(spill, "_MIN_BYTES", 8)
        assert len(rank_batches.spans(trace)) == len(trace.ranks)
        by_rank = _result(trace, name, options)
    assert repr(by_rank) == repr(at_once), (name, options)


@st.composite
def _options(draw: Any, trace: Trace, name: str) -> dict[str, str]:
    by = st.lists(st.sampled_from(GRAINS), min_size=1, max_size=3, unique=True).map(",".join)
    own = st.sampled_from(OWN_GRAINS[name])
    chosen = st.lists(st.sampled_from(trace.ranks or [0]), max_size=2, unique=True)
    ranks = ",".join(map(str, draw(chosen)))
    return {"by": draw(own | by), "steps": draw(st.sampled_from(STEPS)), "ranks": ranks}


@pytest.mark.parametrize("name", OWN_GRAINS)
@given(data=st.data())
def test_random_work(data: st.DataObject, name: str) -> None:
    trace = gpu_work.trace(data.draw(gpu_work.WORKS))
    _assert_equal(trace, name, data.draw(_options(trace, name)), in_files=data.draw(st.booleans()))


@pytest.mark.parametrize("name", OWN_GRAINS)
@given(data=st.data())
def test_random_jobs(data: st.DataObject, name: str) -> None:
    """They have hosts, launches, collectives, and edges between any nodes, of other ranks too."""
    trace = data.draw(strategies.traces(max_ranks=4))
    _assert_equal(trace, name, data.draw(_options(trace, name)), in_files=data.draw(st.booleans()))


@pytest.fixture(scope="module")
def job(demo: Path) -> Trace:
    """The sample job."""
    return pipeline.read(demo)


@pytest.mark.parametrize(
    ("name", "by"), [(name, by) for name, grains in OWN_GRAINS.items() for by in grains]
)
def test_the_sample_job(job: Trace, name: str, by: str) -> None:
    some = ",".join(map(str, job.ranks[1:3]))
    for steps, ranks in product(("", "each"), ("", some)):
        _assert_equal(job, name, {"by": by, "steps": steps, "ranks": ranks})


def test_terms_without_counters_and_clocks(demo: Path) -> None:
    """Of the whole sample job terms follow from all ranks at once; of its profiles alone from each rank."""
    trace = pipeline.read(demo / "kineto")
    assert ci.analyze(trace, "breakdown").summary["known_kernels"] > 0
    for by, steps in product(GRAINS, ("", "each")):
        _assert_equal(trace, "breakdown", {"by": by, "steps": steps})


DEFINITIONS: dict[tuple[str, str], tuple[str, ...]] = {
    ("overlap", "chopper"): ("steps",),
    ("launch", "chopper"): ("steps",),
    ("breakdown", "chopper"): ("steps",),
    ("temporal", "hta"): (),
    ("temporal", "tracelens"): (),
    ("overlap", "hta"): (),
    ("overlap", "tracelens"): (),
    ("kernels", "hta"): (),
    ("idle", "hta"): ("steps",),
    ("kernels", "charllm"): ("by",),
    ("critical_path", "hta"): (),
}
"""Definitions of other tools, with the options that they have besides ranks."""
_VALUES = {"steps": STEPS, "by": ("category", "rank,category", "kernel", "rank,kernel")}


def _of_definition(name: str, compat: str, ranks: str) -> Iterator[dict[str, str]]:
    """Yield options with each value of those that a definition has."""
    taken = DEFINITIONS[name, compat]
    for values in product(*(_VALUES[option] for option in taken)):
        yield {"compat": compat, "ranks": ranks, **dict(zip(taken, values, strict=True))}


@pytest.mark.parametrize(("name", "compat"), DEFINITIONS)
def test_definitions_of_others(job: Trace, name: str, compat: str) -> None:
    for ranks in ("", ",".join(map(str, job.ranks[1:3]))):
        for options in _of_definition(name, compat, ranks):
            _assert_equal(job, name, options)


@pytest.mark.parametrize(("name", "compat"), DEFINITIONS)
@given(data=st.data())
def test_definitions_of_others_on_random_jobs(data: st.DataObject, name: str, compat: str) -> None:
    trace = data.draw(strategies.traces(max_ranks=4))
    ranks = data.draw(st.sampled_from(["", *map(str, trace.ranks)]))
    options = data.draw(st.sampled_from([*_of_definition(name, compat, ranks)]))
    _assert_equal(trace, name, options, in_files=data.draw(st.booleans()))


def test_communication_of_unknown_instances_stays_apart() -> None:
    """Of two ranks both have row 0 in their batch."""
    works = [gpu_work.Work(Kind.COMM, 0, 5, rank=rank) for rank in (0, 1)]
    trace = gpu_work.trace(works)
    assert ci.analyze(trace, "overlap", by="instance").rows.num_rows == 2
    _assert_equal(trace, "overlap", {"by": "instance"})


def _launched(ranks: list[list[tuple[str, int, int, int, int]]]) -> Trace:
    """Kernels of ranks in order: the operation that launches each and its start, the call of 2 ns at its end, start and end."""
    builder, count = TraceBuilder(), 0
    for rank, kernels in enumerate(ranks):
        thread = builder.lane(rank, LaneKind.THREAD, 1, "thread")
        stream = builder.lane(rank, LaneKind.STREAM, 7, "stream 7", 0)
        for operation, since, called, start, end in kernels:
            builder.nodes(
                kind=np.array([int(Kind.CPU_OP), int(Kind.RUNTIME), int(Kind.KERNEL)]),
                name=[operation, "launch", "k"],
                rank=np.full(3, rank),
                lane=np.array([thread, thread, stream]),
                ts=np.array([since, called, start]),
                dur=np.array([called + 2 - since, 2, end - start]),
            )
            builder.edges(np.array([count + 1]), np.array([count + 2]), int(EdgeKind.LAUNCH))
            count += 3
    return builder.finish()


def test_of_equal_operations_to_blame_the_first_rank_has_the_first() -> None:
    first = ("first", 0, 0, 3, 10)
    late = [("x", 10, 108, 110, 120), ("b", 120, 168, 170, 180)]
    trace = _launched([[first, *late], [first, ("a", 10, 58, 60, 70)]])
    blame = ci.analyze(trace, "idle").summary["blame"]
    assert [(row["operation"], row["host_late_ns"]) for row in blame] == [
        ("x", 98), ("b", 48), ("a", 48)
    ]  # fmt: skip
    _assert_equal(trace, "idle", {})


def test_least_latencies_are_those_of_all_ranks() -> None:
    """A launch takes 38 ns at least on rank 0, and 3 on rank 1: one of rank 0 had arrived when its stream was free."""
    of_0 = [("op", 0, 0, 40, 50), ("op", 44, 44, 51, 100), ("op", 80, 80, 115, 120)]
    one, both = (_launched(ranks) for ranks in ([of_0], [of_0, [("op", 0, 0, 5, 10)]]))
    for trace, launch_ns, kernel_ns in ((one, 15, 1), (both, 0, 16)):
        row = ci.analyze(trace, "idle").rows.to_pylist()[0]
        assert (row["launch_ns"], row["kernel_to_kernel_ns"]) == (launch_ns, kernel_ns)
    _assert_equal(both, "idle", {})


STEP_NS, WORK, NODES = 1_000_000, 1000, 2002
"""Length of a step, pieces of GPU work of a rank, and its nodes: calls, kernels and two ranges of steps."""


def _job_in_files(ranks: int) -> Trace:
    """Ranks with two steps of calls, each of which launches a kernel that others wait for by events."""
    builder = TraceBuilder()
    at = np.arange(WORK)
    for rank in range(ranks):
        thread = builder.lane(rank, LaneKind.THREAD, 1, "thread")
        streams = [builder.lane(rank, LaneKind.STREAM, n, f"stream {n}", rank) for n in (7, 8)]
        ts = 2 * STEP_NS * at // WORK
        step = ts // STEP_NS
        kinds = np.repeat([int(Kind.RUNTIME), int(Kind.KERNEL)], WORK)
        kinds[WORK + 9 :: 10] = int(Kind.COMM)
        lane = np.concatenate([np.full(WORK, thread), np.take(streams, at % 2)])
        builder.nodes(
            kind=np.append(kinds, [int(Kind.ANNOTATION)] * 2),
            name=[
                *(["cudaLaunchKernel"] * WORK),
                *[f"k{n % 7}" for n in at.tolist()],
                "ProfilerStep#0",
                "ProfilerStep#1",
            ],
            rank=np.full(NODES, rank),
            lane=np.append(lane, [thread] * 2),
            ts=np.concatenate([ts, ts + 300 + at % 50, [0, STEP_NS]]),
            dur=np.concatenate([np.full(WORK, 90), 1500 + at % 900, [STEP_NS] * 2]),
            iteration=np.concatenate([step, step, [0, 1]]),
        )
        first = NODES * rank
        builder.edges(first + at, first + WORK + at, int(EdgeKind.LAUNCH))
        builder.edges(first + WORK + at[:-3:4], first + WORK + at[3::4], int(EdgeKind.EVENT))
    with spill.when(True):
        trace = builder.finish()
    assert spill.holds(trace.array("ts"))
    return trace


@pytest.mark.parametrize("name", [n for n in OWN_GRAINS if n != "efficiency"])  # steps are of all
def test_memory_does_not_grow_with_ranks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 ranks with 67,000 nodes each, idle took 156 MiB, overlap 134 and temporal 125; of 8 a quarter of that."""
    monkeypatch.setattr(spill, "_MIN_BYTES", 1 << 10)
    for module, constant in (
        (rank_batches, "MAX_NODES"),
        (training_steps, "_AT_ONCE"),
        (tables, "_EDGES_AT_ONCE"),
        (host_waits, "_EDGES_AT_ONCE"),
        (sorted_groups, "_BLOCK"),
    ):
        monkeypatch.setattr(module, constant, NODES)
    peaks = []
    for ranks in (2, 4, 16):  # the first compiles
        trace = _job_in_files(ranks)
        tracemalloc.start()
        try:
            result = ci.analyze(trace, name, by="kernel", steps="each")
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        # kernels by name, in both steps; of counters there are none
        assert result.rows.num_rows in ((0,) if name == "memory_round_trips" else (7, 14))
    assert peaks[2] < 1.5 * peaks[1], peaks
