"""The critical path as Holistic Trace Analysis has it: its own figures, and small cases by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peer_files import FILES
from read_once import read_once
from slow import slow_but_each

import chopper_interop as ci
from chopper_interop.analyses.critical_path import critical_path
from chopper_interop.errors import UsageError

WHY_NOT: dict[str, str] = {}
"""Figures are those of HTA 0.6.1."""
NAMES = {
    "cp_weight_us": "cp_weight_us",
    "nodes": "nodes",
    "edges": "edges",
    "cp_nodes": "cp_nodes",
    "first_ts": "first_ts_us",
    "last_ts": "last_ts_us",
}


def by(rows: list[dict], rank: int, key: str) -> dict[str, float]:
    result: dict[str, float] = {}
    for row in rows:
        if row["rank"] == rank:
            result[row[key]] = result.get(row[key], 0) + row["duration_us"]
    return result


def test_every_trace_with_figures_is_here(shared: Path) -> None:
    recorded = set()
    for path in (shared / "peer_figures").glob("*.json"):
        document = json.loads(path.read_text())
        versions = [document.get(name) or {} for name in ("hta_0.6.1", "hta_0.6.1_pandas2")]
        recorded |= {path.stem} if any("cp" in version for version in versions) else set()
    assert recorded == set(FILES)


@pytest.mark.parametrize("name", slow_but_each(FILES, 3))
def test_gives_the_figures_of_hta(shared: Path, name: str) -> None:
    document = json.loads((shared / "peer_figures" / f"{name}.json").read_text())
    # the version with the newest pandas does not load every file
    recorded = (document.get("hta_0.6.1_pandas2") or document["hta_0.6.1"])["cp"]
    result = critical_path(read_once(shared / FILES[name]), compat="hta")
    rows, by_rank = result.rows.to_pylist(), {r["rank"]: r for r in result.summary["by_rank"]}
    assert name not in WHY_NOT
    for figures in recorded:
        rank = figures["rank"]
        assert {t: by_rank[rank][o] for t, o in NAMES.items()} == {t: figures[t] for t in NAMES}
        assert by(rows, rank, "bound_by") == figures["breakdown_us"]
        assert by(rows, rank, "edge_type") == figures["by_edge_type_us"]
    assert result.summary["cp_weight_us"] == max(figures["cp_weight_us"] for figures in recorded)


def event(name: str, cat: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict:
    pid = 0 if "stream" in args else 99
    what = {"ph": "X", "cat": cat, "name": name, "args": args}
    return what | {"pid": pid, "tid": tid, "ts": ts, "dur": dur}


def op(name: str, ts: float, dur: float, tid: int = 1) -> dict:
    return event(name, "cpu_op", ts, dur, tid, **{"External id": 5})


def call(name: str, ts: float, dur: float, correlation: int, tid: int = 1) -> dict:
    return event(name, "cuda_runtime", ts, dur, tid, correlation=correlation)


def work(name: str, ts: float, dur: float, correlation: int, stream: int = 7, **args: Any) -> dict:
    cat = "cuda_sync" if "Sync" in name or "Wait" in name else "kernel"
    return event(
        name, cat, ts, dur, stream, device=0, stream=stream, correlation=correlation, **args
    )


def read(folder: Path, *events: dict) -> ci.Trace:
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
    return ci.read(path)


def path_length_and_bounds(trace: ci.Trace) -> tuple[float | None, dict[str, float]]:
    result = critical_path(trace, compat="hta")
    return result.summary["cp_weight_us"], by(result.rows.to_pylist(), trace.ranks[0], "bound_by")


def test_over_a_launch_to_the_end_of_its_kernel(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        op("aten::a", 0, 100),
        call("cudaLaunchKernel", 10, 10, 1),
        work("k", 30, 170, 1),
    )
    bounds = {"cpu_bound": 10, "gpu_kernel_launch_overhead": 20, "gpu_compute_bound": 170}
    assert path_length_and_bounds(trace) == (200, bounds)


@pytest.mark.parametrize(("gap", "length"), [(1499, 10 + 1499 + 30), (1500, 100)])
def test_work_of_a_stream_is_joined_below_a_gap(tmp_path: Path, gap: int, length: int) -> None:
    # nothing leads from the launch to the first: as it starts, the second is outstanding
    trace = read(
        tmp_path,
        op("aten::a", 0, 100),
        call("hipLaunchKernel", 5, 1, 1),
        call("hipLaunchKernel", 10, 1, 2),
        work("ncclDevKernel_Generic", 15, 10, 1),
        work("k", 25 + gap, 30, 2),
    )
    assert path_length_and_bounds(trace)[0] == length


def test_gaps_between_outermost_operators_cost_nothing(tmp_path: Path) -> None:
    assert path_length_and_bounds(read(tmp_path, op("a", 0, 100), op("b", 500, 100)))[0] == 200
    outer = op("o", 0, 700)
    assert (
        path_length_and_bounds(read(tmp_path, outer, op("a", 0, 100), op("b", 500, 100)))[0] == 700
    )


def test_a_recorded_wait_leads_back_to_the_host(tmp_path: Path) -> None:
    events = [
        op("aten::a", 0, 400),
        call("cudaLaunchKernel", 10, 5, 1),
        call("cudaDeviceSynchronize", 20, 280, 2),
        work("k", 30, 260, 1),
    ]
    wait = work("Context Sync", 30, 269, 2, stream=-1)
    assert path_length_and_bounds(read(tmp_path, *events, wait))[0] == 10 + 20 + 260 + 100
    # a call that waits is free, whether or not it is known for what
    assert path_length_and_bounds(read(tmp_path, *events))[0] == max(10 + 20 + 260, 20 + 100)


def test_a_stream_waits_for_an_event(tmp_path: Path) -> None:
    wait = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2}
    events = [
        call("cudaLaunchKernel", 0, 1, 1),
        call("cudaEventRecord", 2, 1, 2),
        call("cudaStreamWaitEvent", 4, 1, 3),
        call("cudaLaunchKernel", 6, 1, 4),
        work("a", 10, 90, 1),
        work("b", 120, 30, 4, stream=8),
    ]
    assert path_length_and_bounds(read(tmp_path, *events))[0] == 1 + 1 + 1 + 114 + 30
    synced = read(tmp_path, *events, work("Stream Wait Event", 20, 1, 3, stream=8, **wait))
    assert path_length_and_bounds(synced)[0] == 10 + 90 + 30


def test_calls_on_two_threads_hold_one_lock(tmp_path: Path) -> None:
    # the second begins while the first holds the lock: all that counts is that it ends behind it
    both = [call("cudaHostAlloc", 0, 50, 1), call("cudaLaunchKernel", 10, 100, 2, tid=2)]
    assert path_length_and_bounds(read(tmp_path, *both))[0] == 50
    after = [op("x", 60, 500, tid=1)]
    assert path_length_and_bounds(read(tmp_path, *both, *after))[0] == 550


def test_backward_runs_behind_forward(tmp_path: Path) -> None:
    threads = [op("forward", 0, 10), op("autograd::engine", 20, 15, tid=2)]
    assert path_length_and_bounds(read(tmp_path, *threads))[0] == 25
    threads = [op("first", 0, 10), op("autograd::engine", 20, 15, tid=2)]
    assert path_length_and_bounds(read(tmp_path, *threads))[0] == 15


def test_only_the_first_step_counts(tmp_path: Path) -> None:
    steps = [event(f"ProfilerStep#{n}", "user_annotation", 100 * n, 90) for n in (3, 4, 5)]
    ops = [op("a", 310, 10), op("b", 410, 40), op("c", 510, 20)]
    assert path_length_and_bounds(read(tmp_path, *steps, *ops))[0] == 10


def test_times_are_rounded_inwards(tmp_path: Path) -> None:
    assert path_length_and_bounds(read(tmp_path, op("a", 0.5, 100)))[0] == 99


def test_inputs_at_which_hta_fails_are_refused(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        call("cudaLaunchKernel", 0, 9, 1),
        call("cuLaunchKernel", 1, 2, 1),
        work("k", 30, 170, 1),
    )
    result = critical_path(trace, compat="hta")
    assert result.rows.num_rows == 0
    assert result.summary["cp_weight_us"] is None
    assert "AssertionError" in result.notes["failed"]


def test_other_options(tmp_path: Path) -> None:
    trace = read(tmp_path, op("a", 0, 100))
    with pytest.raises(UsageError, match="TraceLens has no critical path"):
        critical_path(trace, compat="tracelens")
    for other in ({"compat": "other"}, {"by": "piece"}, {"steps": "each"}, {"near_us": 1.0}):
        with pytest.raises(UsageError):
            critical_path(trace, **{"compat": "hta", **other})


def test_a_job_of_several_ranks(demo: Path) -> None:
    trace = read_once(demo)
    result = critical_path(trace, compat="hta")
    each = {row["rank"]: row["cp_weight_us"] for row in result.summary["by_rank"]}
    assert set(each) == set(trace.ranks)
    for rank, length in each.items():
        rows = [row for row in result.rows.to_pylist() if row["rank"] == rank]
        assert sum(row["duration_us"] for row in rows) == length
        assert sum(row["percent"] for row in rows) == pytest.approx(100)
    one = critical_path(trace, compat="hta", ranks="1").rows.to_pylist()
    assert one == [row for row in result.rows.to_pylist() if row["rank"] == 1]


def test_without_edges_there_is_no_path(tmp_path: Path) -> None:
    marks = [event("note", "user_annotation", 0, 5), work("k", 3, 4, 9)]
    result = critical_path(read(tmp_path, *marks), compat="hta")
    assert (result.rows.num_rows, result.summary["cp_weight_us"]) == (0, None)
    assert "no rows" in result.notes


SPANS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(1, 3), st.sampled_from("oeswk")),
    max_size=12,
)
CALLS = {
    "e": ("cudaEventSynchronize", "Event Sync"),
    "s": ("cudaStreamSynchronize", "Stream Sync"),
    "w": ("cudaStreamWaitEvent", "Stream Wait Event"),
    "k": ("cudaLaunchKernel", "k"),
}


@given(SPANS, st.integers(0, 10**6))
def test_any_overlap_gives_a_path_or_a_reason_at_any_time(
    tmp_path_factory: pytest.TempPathFactory, spans: list, later: int
) -> None:
    """Ranges that do not nest, waits for nothing: there is a path or a reason for none, at any time."""
    events = [op("first", 0, 1)]
    for n, (ts, dur, tid, what) in enumerate(spans, 1):
        if what == "o":
            events.append(op("aten::a", ts, dur, tid))
            continue
        name, on_gpu = CALLS[what]
        record = {"wait_on_stream": 1, "wait_on_cuda_event_record_corr_id": 100}
        events.append(call(name, ts, dur, n, tid))
        events.append(work(on_gpu, ts + dur, dur, n, tid, **(record if what in "ew" else {})))
    events.append(call("cudaEventRecord", 20, 1, 100))
    trace = read(tmp_path_factory.mktemp("any"), *events)
    result = critical_path(trace, compat="hta")
    length = result.summary["cp_weight_us"]
    assert (length is None) == ("failed" in result.notes)
    meta = replace(trace.meta, origin_ns=trace.meta.origin_ns + later * 1000)
    assert critical_path(replace(trace, meta=meta), compat="hta").rows == result.rows
