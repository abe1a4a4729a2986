"""Some training steps are read alone (``--steps``): the nodes that a whole trace has in them, and no others."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from issue_counts import uncounted_events
from kineto_files import call, kernel, span, write
from shared_data import each, real

import chopper_interop as ci
from chopper_interop.arrays import arrow
from chopper_interop.converters.kineto import reader
from chopper_interop.errors import UsageError
from chopper_interop.io import json_events
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.testing.equality import assert_trace_equal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OUTSIDE = ("outside-steps", "nodes-outside-steps")
INPUTS = (
    ("pytorch/rtx2080ti_pairs/linear_kineto.json.gz", "3,7-8"),
    ("pytorch/rtx2080ti_pairs", "0"),  # with its execution trace
    ("pytorch/torchrec_4rank_v100", "5"),
    ("pytorch/base_boundary_4rank_amd", "10-11"),
)

PROFILES = (
    "pytorch/misc/rank0.json.gz",
    "pytorch/base_boundary_4rank_amd/rank0.json.gz",
    "pytorch/rtx2080ti_pairs/linear_kineto.json.gz",
    "pytorch/v100_2021/worker0.1623143089861.pt.trace.json.gz",
)


def nodes(trace: ci.Trace, chosen: Any) -> Counter[Any]:
    """Nodes of some steps, without starts, which depend on how clocks of ranks are aligned, with parents by name."""
    names, lanes = trace.names(), trace.lanes.to_pylist()
    name, parent = trace.array("name"), trace.array("parent")
    columns = [trace.array(c).tolist() for c in ("rank", "kind", "dur", "correlation", "lane")]
    step = trace.integers("iteration").tolist()

    def around(row: int) -> str:
        is_there = parent[row] >= 0 and step[parent[row]] in chosen
        return names[name[parent[row]]] if is_there else ""

    rows = zip(range(len(step)), step, *columns, strict=True)
    return Counter(
        (*more, names[name[row]], lanes[lane]["name"], number, around(row))
        for row, number, *more, lane in rows
        if number in chosen
    )


def total(trace: ci.Trace, *codes: str) -> int:
    return sum(issue.count for issue in trace.meta.issues if issue.code in codes)


def numbers(text: str) -> set[int]:
    return {
        n
        for part in text.split(",")
        for n in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)
    }


@pytest.fixture(params=[0, 1 << 60], ids=["twice", "once"])
def read_twice_from(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Size from which on a file is read twice, and what is of other steps never kept."""
    monkeypatch.setattr(reader, "READ_TWICE", request.param)
    return request.param


@pytest.mark.usefixtures("read_twice_from")
@pytest.mark.parametrize(("name", "steps"), each(INPUTS))
def test_nodes_of_steps_are_those_of_the_whole(name: str, steps: str) -> None:
    whole, part = ci.read(real(name)), ci.read(real(name), steps=steps)
    chosen = numbers(steps)
    assert nodes(part, chosen) == nodes(whole, chosen)
    assert set(part.integers("iteration").tolist()) == chosen
    left_out = total(part, *OUTSIDE)
    arrows = total(whole, "flow-event") - total(part, "flow-event")
    assert left_out == whole.nodes.num_rows - part.nodes.num_rows + arrows
    if len(part.meta.sources) == 1:
        assert not uncounted_events(part)


def test_a_command_keeps_them(demo: Path, tmp_path: Path, run) -> None:
    trace = next(demo.rglob("*.pt.trace.json*"))
    step = max(ci.read(trace).integers("iteration").tolist())
    output = tmp_path / "a.parquet"
    status, _, text = run("convert", trace, "-o", output, "--steps", step)
    assert status == 0, text
    assert OUTSIDE[0] in text
    assert set(ci.read(output).integers("iteration").tolist()) == {step}
    assert ci.convert(trace, tmp_path / "b.parquet", steps=[step]).ranks == ci.read(output).ranks


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("4-6", "it has no training steps 4-6 (it has 0-2)"),
        ("2-4", "the job has no training steps 3-4 (it has 2)"),
        ("x", "steps=x: write numbers and ranges"),
        ("each", "steps=each: write numbers and ranges, as 0,4-7"),
        ("", "steps=: write numbers and ranges"),
        ([], "steps: there are none to read"),
    ],
)
def test_steps_that_are_not_there_are_refused(
    tmp_path: Path, steps: str | Sequence[int], message: str
) -> None:
    path = write(tmp_path / "a.json", job([(t, 2) for t in range(3)]))
    with pytest.raises(UsageError) as raised:
        ci.read(path, steps=steps)
    assert message in str(raised.value)
    assert "did you mean" not in str(raised.value)


def test_a_profile_without_steps_says_what_numbers_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [kernel("k", 1, 1, 1)])
    with pytest.raises(UsageError, match=r"no training step 1 \(ranges such as ProfilerStep#10"):
        ci.read(path, steps="1")


def job(steps: list[tuple[int, int]], late: float = 0) -> list[dict[str, Any]]:
    """Steps of 100 us with launches each; their kernels run so much later."""
    events = []
    for at, (number, launches) in enumerate(steps):
        begin = 100 * at
        events.append(span("user_annotation", f"ProfilerStep#{number}", begin, 90))
        events.append(span("cpu_op", "between", begin + 92, 3))
        for k in range(launches):
            correlation, ts = 10 * at + k + 1, begin + 20 * k + 1
            events.append(span("cpu_op", f"op{k}", ts, 10))
            events.append(call("cudaLaunchKernel", ts + 1, 2, correlation))
            events.append(kernel(f"k{at}.{k}", ts + 5 + late, 4, correlation))
    return events


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("read_twice_from")
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6),
    st.sampled_from([0, 95, 150, 250.5]),
    st.randoms(use_true_random=False),
    st.data(),
)
def test_any_steps_against_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int]],
    late: float,
    order: Any,
    data: Any,
) -> None:
    """Steps that repeat, that launch nothing, and whose kernels run in another, with events in any order."""
    folder = tmp_path_factory.mktemp("steps")
    events = job(steps, late)
    order.shuffle(events)
    path = write(folder / "a.json", events)
    whole = ci.read(path)
    present = sorted(set(whole.integers("iteration").tolist()) - {-1})
    chosen = data.draw(st.lists(st.sampled_from(present), min_size=1, unique=True))
    part = ci.read(path, steps=chosen)
    assert nodes(part, chosen) == nodes(whole, chosen)
    assert part.nodes.num_rows == sum(nodes(whole, chosen).values())
    assert not uncounted_events(part)


def test_work_is_of_the_step_of_its_launch_whenever_it_runs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", job([(7, 1), (8, 1)], late=150))
    trace = ci.read(path, steps=[7])
    work = np.isin(trace.array("kind"), [int(kind) for kind in GPU_WORK])
    assert [trace.names()[code] for code in trace.array("name")[work]] == ["k0.0"]


@pytest.mark.parametrize("name", each(PROFILES))
def test_what_is_read_twice_is_as_what_is_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns, edges and arguments of a file of which other steps are never kept, and of one that is cut when all is read."""
    path = real(name)
    numbered = set(ci.read(path).integers("iteration").tolist()) - {-1}
    step = sorted(numbered)[len(numbered) // 2]
    monkeypatch.setattr(reader, "READ_TWICE", 0)
    twice = ci.read(path, steps=[step])
    monkeypatch.setattr(reader, "READ_TWICE", 1 << 60)
    once = ci.read(path, steps=[step])
    assert_trace_equal(with_used_lanes(twice), with_used_lanes(once))
    assert not uncounted_events(twice)


def with_used_lanes(trace: ci.Trace) -> ci.Trace:
    """The trace with lanes that have nodes, in order of these, and without issues, whose counts are of what was read."""
    used, first = np.unique(trace.array("lane"), return_index=True)
    used = used[np.argsort(first)]
    number = np.zeros(trace.lanes.num_rows, np.int32)
    number[used] = np.arange(len(used))
    nodes = arrow.replace_column(trace.nodes, "lane", number[trace.array("lane")])
    meta = {"issues": (), "sources": (), "devices": ()}
    return replace(trace, nodes=nodes, lanes=arrow.take(trace.lanes, used)).with_meta(**meta)


@pytest.mark.parametrize(
    "more",
    [
        [kernel("lost", 1, 1, 0)],
        [{"ph": "B", "name": "b", "ts": 120, "pid": 1, "tid": 1}, {"ph": "E", "ts": 130, "pid": 1, "tid": 1}],
        [{"ph": "s", "cat": "async_npu", "id": 1, "ts": 2, "pid": 1, "tid": 1, "name": "a"}],
        [span("new_category", "x", 120, 5)],
        [{"ph": "X", "name": "no time", "cat": "cpu_op", "pid": 1, "tid": 1}],
        [{"ph": "C", "name": "c", "ts": 400, "pid": 1, "tid": 1, "args": {"v": 1}}],
    ],
    ids=["no launch", "begins", "arrows", "category", "no time", "counter"],
)  # fmt: skip
def test_files_with_other_events_are_as_if_read_once(
    tmp_path: Path, more: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.json", [*job([(1, 2), (2, 2), (3, 1)]), *more])
    traces = []
    for size in (0, 1 << 60):
        monkeypatch.setattr(reader, "READ_TWICE", size)
        traces.append(ci.read(path, steps=[2]))
    assert_trace_equal(*map(with_used_lanes, traces))
    assert not uncounted_events(traces[0])


def test_memory_is_of_the_steps(tmp_path: Path) -> None:
    """What is held of a file that is read twice grows with the steps that are asked for, not with the file."""
    events = [
        span("user_annotation", "ProfilerStep#1", 0, 1000),
        span("user_annotation", "ProfilerStep#2", 2000, 1000),
        *(span("cpu_op", "op", 2000 + 0.001 * k, 0.001, note="x" * 40) for k in range(200_000)),
    ]
    path = write(tmp_path / "a.json", events)
    assert path.stat().st_size > reader.READ_TWICE
    held = {}
    for step in (1, 2):
        ci.read(path, steps=[step])  # modules and code are there then
        tracemalloc.start()
        ci.read(path, steps=[step])
        held[step] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert held[2] - held[1] > 200_000 * json_events.EVENT.itemsize


@pytest.mark.usefixtures("read_twice_from")
@pytest.mark.parametrize("fault", [{"cat": ""}, {"cat": "python_function"}, {"dur": None}])
def test_steps_whose_ranges_are_no_good_are_counted(tmp_path: Path, fault: dict[str, Any]) -> None:
    events = [span("user_annotation", "ProfilerStep#7", 0, 20) | fault]
    for number, at in ((1, 1), (2, 11)):
        events += [
            span("cpu_op", "aten::mm", at, 4),
            call("cudaLaunchKernel", at + 1, 1, number),
            kernel("gemm", at + 3, 2, number),
            span("cpu_op", "autograd::engine::evaluate_function: AddBackward0", at + 5, 1),
            span("cpu_op", "Optimizer.step#SGD.step", at + 7, 1),
        ]
    file = write(tmp_path / "rank0.json", events)
    whole = ci.read(file)
    numbers_there = set(whole.integers("iteration").tolist()) - {-1}
    assert numbers_there
    assert 7 not in numbers_there
    for step in numbers_there:
        assert nodes(ci.read(file, steps=[step]), {step}) == nodes(whole, {step})


@pytest.mark.usefixtures("read_twice_from")
def test_a_step_that_launches_nothing_is_none_however_large_the_file(tmp_path: Path) -> None:
    events = [span("user_annotation", f"ProfilerStep#{n}", 10 * n, 9) for n in range(3)]
    events += [span("cpu_op", "aten::mm", 10 * n + 1, 4) for n in range(3)]
    for n in range(2):
        events += [
            call("cudaLaunchKernel", 10 * n + 2, 1, n + 1),
            kernel("gemm", 10 * n + 4, 2, n + 1),
        ]
    file = write(tmp_path / "rank0.json", events)
    with pytest.raises(UsageError, match=r"no training step 2 \(it has 0-1\)"):
        ci.read(file, steps=[2])


@pytest.mark.parametrize("seed", range(12))
def test_ids_of_several_launches_are_as_in_a_small_file(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters that begin again: all work of an id is of its first launch, or a step is refused, whatever the size.

    Read twice, some steps were accepted whose work is of another step's launch, and others refused with fewer named.
    """
    chance = random.Random(seed)  # noqa: S311 # no secret
    pool = [chance.randint(1, 4) for _ in range(3)]
    events = []
    for step in range(4):
        begin = 1000 * step
        events.append(span("user_annotation", f"ProfilerStep#{step}", begin, 900))
        for k in range(chance.randint(0, 3)):
            unique = 10 + 10 * step + k
            correlation = chance.choice([*pool, unique, unique, unique])
            name = chance.choice(["cudaLaunchKernel", "cudaLaunchKernel", "cudaEventRecord"])
            events.append(call(name, begin + 100 + 20 * k, 5, correlation))
            events.append(kernel(f"k{step}.{k}", begin + 130 + 20 * k, 10, correlation))
    path = write(tmp_path / "a.json", events)
    for step in range(4):
        outcomes = []
        for size in (0, 1 << 60):
            monkeypatch.setattr(reader, "READ_TWICE", size)
            try:
                trace = ci.read(path, steps=[step])
            except UsageError as error:
                outcomes.append(str(error))
            else:
                outcomes.append((nodes(trace, {step}), trace.edges.num_rows))
        assert outcomes[0] == outcomes[1], step


def outcomes(path: Path, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Nodes with their times, edges and the origin of a file read twice, and once; or why it is refused."""
    results: list[Any] = []
    for size in (0, 1 << 60):
        monkeypatch.setattr(reader, "READ_TWICE", size)
        try:
            trace = with_used_lanes(ci.read(path, steps=steps))
        except UsageError as error:
            results.append(str(error))
            continue
        table = trace.nodes.drop_columns(["args_at", "args_len"])
        results.append((table.to_pylist(), trace.edges.to_pylist(), trace.meta.origin_ns))
    return results


def test_times_count_from_the_first_event_whether_it_is_kept_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large file with a step alone, times counted from the first range of any step."""
    events = [span("cpu_op", "before", -300, 10), *job([(1, 2), (2, 2)])]
    twice, once = outcomes(write(tmp_path / "a.json", events), [2], monkeypatch)
    assert twice == once
    assert twice[0][0]["ts"] == 400_000


def test_work_whose_launch_was_not_recorded_makes_a_range_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step in which alone such work runs was refused of a large file."""
    events = [*job([(0, 1), (1, 0)]), kernel("k", 150, 10, 99)]
    twice, once = outcomes(write(tmp_path / "a.json", events), [0, 1], monkeypatch)
    assert twice == once
    assert not isinstance(twice, str)


def test_ranges_between_repeated_numbers_are_steps_whether_they_are_asked_for_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step between two ranges of one number makes the second one another step, if it launches anything."""
    events = job([(5, 1), (6, 1), (5, 1)])
    for event in events:
        event["name"] = event["name"].replace("ProfilerStep#", "step ")
    path = write(tmp_path / "a.json", events)
    present = sorted(set(ci.read(path).integers("iteration").tolist()) - {-1})
    assert len(present) == 3
    for step in present:
        twice, once = outcomes(path, [step], monkeypatch)
        assert twice == once


@pytest.mark.parametrize("seed", range(130_000, 130_012))
def test_any_ranges_and_launches_are_as_in_a_small_file(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of several calls or of none, numbers that repeat, and work that runs in another step than its launch."""
    chance = random.Random(seed)  # noqa: S311 # no secret
    pool = [chance.randint(1, 4) for _ in range(3)]
    prefix = chance.choice(["ProfilerStep#", "Iteration", "step "])
    events = [span("cpu_op", "before", chance.choice([-300, 500]), 10)]
    for step in range(4):
        begin, number = 1000 * step, step if chance.random() < 0.8 else 0
        length = chance.choice([1000, 900, 400, 1500])
        events.append(span("user_annotation", f"{prefix}{number}", begin, length))
        for k in range(chance.randint(0, 3)):
            unique = 10 + 10 * step + k
            correlation = chance.choice([*pool, *4 * [unique]])
            at = begin + chance.choice([0, 100, 899]) + 20 * k
            name = chance.choice(["cudaLaunchKernel", "cudaEventRecord", "hipGraphLaunch"])
            if chance.random() < 0.9:
                events.append(call(name, at, chance.choice([0, 5, 300]), correlation))
            late = chance.choice([30, 700, 1500])
            events += [
                kernel(f"k{step}.{k}.{j}", at + late + 3 * j, 2, correlation)
                for j in range(chance.choice([0, 1, 1, 2]))
            ]
    path = write(tmp_path / "a.json", events)
    for steps in ([0], [1], [2], [3], [0, 1]):
        twice, once = outcomes(path, steps, monkeypatch)
        assert twice == once, steps
