"""The critical path, its slack and its drag: against what the sample job was built with, and by hand."""

from __future__ import annotations

import itertools
import json
import random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from programs import families, kineto
from programs.simulation import simulate
from read_once import read_once
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.methods.timing import critical, spans
from chopper_interop.arrays.gather import is_any
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.testing import check_analysis
from chopper_interop.timing.model import timing_of

if TYPE_CHECKING:
    from pathlib import Path

CLASS = {
    "kernel": "compute", "memset": "compute", "collective": "comm", "memcpy": "copy",
    "host": "host", "runtime": "runtime", "handover": "handover", "launch_latency": "launch",
    "event_latency": "event", "sync_latency": "sync",
}  # fmt: skip


def parameters(seed: int) -> dict:
    draw = random.Random(seed)  # noqa: S311 # no secret
    return {
        "ranks": draw.choice([1, 2, 3, 4, 8]),
        "layers": draw.choice([1, 2, 3]),
        "steps": draw.choice([1, 2, 3]),
        "seed": draw.randrange(2**31),
        "sequence": draw.choice([256, 512, 1024, 4096]),
        "batch": draw.choice([1, 2, 4]),
        "straggler": draw.choice([-1, 0, 1, 5]),
        "straggler_slowdown": draw.choice([1.0, 1.03, 1.1, 1.2]),
        "event_records": draw.random() < 0.5,
    }


@pytest.mark.parametrize("seed", slow_from(range(50), 1))
def test_the_path_is_the_one_that_the_sample_job_was_built_with(tmp_path: Path, seed: int) -> None:
    chosen = parameters(seed)
    make_demo(tmp_path / "job", telemetry=False, counter_steps=0, **chosen)
    trace = ci.read(tmp_path / "job" / "kineto")
    truth = json.loads((tmp_path / "job" / "truth.json").read_text())["critical_path"]
    pieces = ci.analyze(trace, "critical_path", by="piece").rows.to_pylist()
    assert merged_pieces(trace, pieces) == [*true_pieces(trace, truth["window"])]
    each = ci.analyze(trace, "critical_path", by="piece", steps="each").rows.to_pylist()
    for step, path in truth["steps"].items():
        assert merged_pieces(
            trace, [r for r in each if r["iteration"] == int(step)]
        ) == true_pieces(trace, path)


def merged_pieces(trace, rows):
    correlation = trace.array("correlation")
    merged = []
    for row in rows:
        key = row["class"], row["rank"]
        on_gpu = row["class"] in ("compute", "comm", "copy", "launch", "event")
        key += (int(correlation[row["node"]]) if on_gpu else None,)
        start, end = row["start_ns"], row["start_ns"] + row["dur_ns"]
        if merged and merged[-1][0] == key and not on_gpu:
            merged[-1] = key, merged[-1][1], end
        else:
            merged.append((key, start, end))
    return merged


def true_pieces(trace, path):
    names = ("kind", "rank", "correlation", "ts_ns", "dur_ns")
    rows = []
    for kind, rank, correlation, ts, dur in zip(*(path[n] for n in names), strict=True):
        start = ts - trace.meta.origin_ns
        on_gpu = CLASS[kind] in ("compute", "comm", "copy", "launch", "event")
        key = CLASS[kind], rank, correlation if on_gpu else None
        if rows and rows[-1][0] == key and not on_gpu:
            rows[-1] = key, rows[-1][1], start + dur
        else:
            rows.append((key, start, start + dur))
    return rows


def test_the_contract_of_analyses(demo: Path) -> None:
    from chopper_interop.analyses.critical_path import critical_path

    check_analysis(critical_path, read_once(demo))


@pytest.mark.parametrize("by", ["piece", "class", "rank", "class,operation", "layer", "job"])
@pytest.mark.parametrize("steps", ["", "each", "10-11"])
def test_pieces_tile_the_window_however_they_are_grouped(demo: Path, by: str, steps: str) -> None:
    result = ci.analyze(read_once(demo / "kineto"), "critical_path", by=by, steps=steps)
    frame = result.to_pandas()
    assert frame["dur_ns"].sum() == result.summary["path_ns"]
    if by == "piece":
        for _, path in frame.groupby("iteration", dropna=False):
            ends = path["start_ns"] + path["dur_ns"]
            assert (path["start_ns"].to_numpy()[1:] == ends.to_numpy()[:-1]).all()


@pytest.mark.parametrize("by", ["layer", "phase", "class,operation", "rank,stream"])
def test_each_group_of_the_path_is_one_row(demo: Path, by: str) -> None:
    """Time before the first record has no node: it is in the group of nodes of which no key is known."""
    frame = ci.analyze(read_once(demo / "kineto"), "critical_path", by=by, steps="each").to_pandas()
    assert frame[by.split(",")].isna().any(axis=None), "there is a group of which no key is known"
    assert not frame.duplicated(["iteration", *by.split(",")]).any()


def test_drag_is_the_gain_without_a_node_and_slack_delays_nothing(demo: Path) -> None:
    """Drag is what the end gains if the node takes no time; with its slack more nothing changes."""
    trace = read_once(demo / "kineto")
    result = ci.analyze(trace, "critical_path")
    frame = result.annotate(trace).to_pandas(columns=["kind", "dur", "drag_ns", "slack_ns"])
    timing = timing_of(trace)
    graph = timing.graph
    own = (graph.kind == EdgeKind.DURATION) & (graph.src % 2 == 0)
    end = int(timing.at_ns[timing.binding >= 0].max())
    draw = np.random.default_rng(1)
    for node in draw.choice(frame.index[frame["drag_ns"].notna()], 25, replace=False):
        lag = timing.lag_ns.copy()
        barriers = np.flatnonzero(timing.is_barrier & (graph.node == node))
        lag[np.isin(graph.src, barriers) | (own & (graph.src == 2 * node))] = 0
        at = timing.retimed(lag)
        assert end - at[timing.binding >= 0].max() == frame["drag_ns"][node]
    kernels = frame.index[(frame["kind"] == "kernel") & (frame["slack_ns"] > 0)]
    for node in draw.choice(kernels, 10, replace=False):
        for more, moved in ((0, 0), (1, 1)):
            lag = timing.lag_ns.copy()
            lag[own & (graph.src == 2 * node)] += int(frame["slack_ns"][node]) + more
            at = timing.retimed(lag)
            assert at[timing.binding >= 0].max() == end + moved


def test_waits_for_other_ranks_are_unknown_in_one_rank_alone(demo: Path) -> None:
    trace = read_once(demo / "kineto")
    alone = ci.analyze(trace, "critical_path", by="piece", ranks="1")
    assert set(alone.rows["rank"].to_pylist()) == {1}
    names, name = trace.names(), trace.array("name")
    for row in alone.rows.to_pylist():
        if row["node"] is not None:
            assert row["name"] == names[name[row["node"]]]
            assert trace.array("rank")[row["node"]] == 1
    slack = alone.annotate(trace).to_pandas(columns=["rank", "slack_ns"])
    assert slack[slack["rank"] != 1]["slack_ns"].isna().all()


def test_invalid_options_are_refused(demo: Path) -> None:
    trace = read_once(demo / "kineto")
    for options in ({"by": "piece,rank"}, {"by": "nothing"}, {"ranks": "99"}, {"steps": "99"}):
        with pytest.raises(UsageError):
            ci.analyze(trace, "critical_path", **options)


@pytest.mark.parametrize(
    "name",
    slow_from(
        [
            "pytorch/torchrec_4rank_v100", "pytorch/mi210", "pytorch/cuda_sync_a100",
            "rocprof/v1_old_gfx906", "pytorch/ddp_resnet_4rank_amd/rank0.json.gz",
            "pytorch/v100_2021", "rocprof/v3_json_mi350x", "chakra",
        ],
        4,
    ),
)  # fmt: skip
def test_any_trace_has_a_path_that_tiles_its_window(name: str) -> None:
    path = real(name)
    read = 0
    for one in sorted(path.glob("*"))[:3] if path.is_dir() and "4rank" not in name else [path]:
        try:
            trace = read_once(one)
        except ci.ChopperError:
            continue
        read += 1
        result = ci.analyze(trace, "critical_path", by="piece")
        rows = result.rows.to_pylist()
        assert sum(r["dur_ns"] for r in rows) == result.summary["path_ns"]
        for a, b in itertools.pairwise(rows):
            assert a["start_ns"] + a["dur_ns"] == b["start_ns"]
    assert read


def two_steps(first: tuple[int, int], second: tuple[int, int]) -> ci.Trace:
    """A host with two steps of one launch each, on a stream each; times are starts and durations."""
    builder = TraceBuilder()
    thread = builder.lane(0, LaneKind.THREAD, 1, "t")
    streams = [builder.lane(0, LaneKind.STREAM, k, f"s{k}", 0) for k in (0, 1)]
    nodes = (
        (Kind.ANNOTATION, "ProfilerStep#0", thread, 0, 10, 0),
        (Kind.RUNTIME, "hipLaunchKernel", thread, 3, 2, 0),
        (Kind.KERNEL, "k0", streams[0], *first, 0),
        (Kind.ANNOTATION, "ProfilerStep#1", thread, 10, 12, 1),
        (Kind.RUNTIME, "hipLaunchKernel", thread, 11, 1, 1),
        (Kind.KERNEL, "k1", streams[1], *second, 1),
    )
    for kind, name, lane, ts, dur, step in nodes:
        builder.nodes(
            kind=int(kind), name=name, rank=0, lane=lane, ts=np.array([ts]), dur=dur,
            iteration=pa.array([step]),
        )  # fmt: skip
    builder.edges(np.array([1, 4], np.int32), np.array([2, 5], np.int32), int(EdgeKind.LAUNCH))
    return builder.finish()


def test_a_step_ends_with_work_that_it_launched_and_not_with_that_of_another() -> None:
    trace = two_steps(first=(5, 95), second=(12, 18))
    result = ci.analyze(trace, "critical_path", steps="each", by="piece")
    paths = result.to_pandas().groupby("iteration")["dur_ns"].sum()
    assert paths.to_dict() == {0: 100}, "the second has ended before the first: it adds nothing"
    frame = result.annotate(trace).to_pandas().set_index("name")
    assert frame["critical_ns"]["k0"] == 95
    assert frame["drag_ns"]["k0"] == 90  # the range of the step ends at 10


def test_delays_of_nodes_are_those_of_all_their_pieces(tmp_path: Path) -> None:
    """Also of those that are latencies, of nodes whose own time is on the path, too."""
    trace = ci.read(*kineto.write(simulate(families.copies(6)), tmp_path))
    timing = timing_of(trace)
    (path,), columns = critical.critical_paths(timing, spans.spans_of_timing(timing, ""), 0)
    own = columns.column("critical_ns") > 0
    delays = np.zeros(trace.nodes.num_rows, np.int64)
    for node, delay in zip(path.node.tolist(), path.delay.tolist(), strict=True):
        if node >= 0:
            delays[node] += delay
    is_latency = is_any(path.class_code, critical._LATENCIES)
    assert (is_latency & (path.delay > 0) & own[path.node]).any()
    assert columns.column("critical_delay_ns")[own].tolist() == delays[own].tolist()


@pytest.mark.parametrize(
    "kinds", [("send", "recv"), ("broadcast", "broadcast"), ("reduce", "reduce")]
)
def test_a_late_member_of_communication_keeps_its_duration(kinds) -> None:
    """Rank 1 is the later one: its work bounds the end, and rank 0's does not."""
    builder = TraceBuilder()
    group = builder.group("", [0, 1], "pg", "nccl")
    lanes = [builder.lane(r, LaneKind.STREAM, 0, "s", 0) for r in (0, 1)]
    for rank, (work, own) in enumerate(((10, 10), (100, 5))):
        builder.nodes(
            kind=int(Kind.KERNEL), name=f"k{rank}", rank=rank, lane=lanes[rank],
            ts=np.array([0]), dur=work,
        )  # fmt: skip
        builder.nodes(
            kind=int(Kind.COMM), name="c", rank=rank, lane=lanes[rank], ts=np.array([work]),
            dur=own, collective=pa.array([kinds[rank]]), group=group,
        )  # fmt: skip
    builder.edges(np.array([1], np.int32), np.array([3], np.int32), int(EdgeKind.COMM))
    trace = builder.finish()
    frame = ci.analyze(trace, "critical_path").annotate(trace).to_pandas()
    assert frame["slack_ns"].tolist() == [85, 85, 0, 0]
    assert frame["drag_ns"].tolist()[2:] == [85, 5]
