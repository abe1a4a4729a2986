"""rocprofv3's real files: what comes out is counted by the csv and json libraries."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from issue_counts import counts
from rocprof import assert_whole, counters, csv_rows, nodes
from slow import slow_from
from trace_processor import TraceProcessor

import chopper_interop as ci
from chopper_interop.arrays import intervals
from chopper_interop.converters.rocm import sniff
from chopper_interop.converters.rocm.file_names import group_by_process
from chopper_interop.converters.rocprof.v3 import csv_reader, json_reader
from chopper_interop.errors import AmbiguousRunError
from chopper_interop.io import inputs
from chopper_interop.schemas.kinds import Kind

FOLDERS = [
    "v3_csv_docs_samples_rocm6/amd-mainline",
    "v3_csv_docs_samples_rocm6/amd-staging",
    "v3_csv_docs_samples_rocm7",
    "v3_csv_two_counter_runs_gfx1151",
]
TEXT = ("Kernel_Name", "Function", "Direction", "Operation")
JSON = "v3_json_mi350x/908_results.json.gz"


def groups(folder: Path) -> list[list[Path]]:
    paths = [p for p in sorted(folder.glob("*.csv")) if sniff.is_v3_csv(inputs.head(p))]
    return group_by_process(paths)


def event(each: dict[str, str]) -> tuple[str, int, int]:
    name = next(each[column] for column in TEXT if column in each)
    start = int(each["Start_Timestamp"])
    return name, start, int(each["End_Timestamp"]) - start


def is_count(each: dict[str, str]) -> bool:
    return "Counter_Name" in each


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_row_is_there(shared: Path, folder: str) -> None:
    seen = 0
    for files in groups(shared / "rocprof" / folder):
        rows = [each for path in files for each in csv_rows(path)]
        trace = csv_reader.read(files)
        assert_whole(trace, len(rows))
        result = Counter((n["name"], n["ts"], n["dur"]) for n in nodes(trace))
        expected = Counter(event(each) for each in rows if not is_count(each))
        dispatches = {
            (each["Process_Id"], each["Dispatch_Id"]): event(each)
            for each in rows
            if is_count(each) and "Start_Timestamp" in each
        }
        assert result == expected + Counter(dispatches.values())
        seen += len(rows)
    assert seen > 40


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_counter_has_its_value(shared: Path, folder: str) -> None:
    for files in groups(shared / "rocprof" / folder):
        rows = [each for path in files for each in csv_rows(path) if is_count(each)]
        timed = {
            (int(each["Start_Timestamp"]), each["Counter_Name"]): float(each["Counter_Value"])
            for each in rows
            if "Start_Timestamp" in each
        }
        if len(timed) == len(rows):
            assert counters(csv_reader.read(files)) == timed


def test_counters_without_times_are_added_to_the_kernel_trace(shared: Path) -> None:
    folder = shared / "rocprof" / FOLDERS[0]
    start = {
        (each["Dispatch_Id"], each["Kernel_Name"]): int(each["Start_Timestamp"])
        for each in csv_rows(folder / "kernel_trace.csv")
    }
    expected = {
        (start[each["Dispatch_Id"], each["Kernel_Name"]], each["Counter_Name"]): float(
            each["Counter_Value"]
        )
        for each in csv_rows(folder / "counter_collection.csv")
    }
    (files,) = (g for g in groups(folder) if folder / "kernel_trace.csv" in g)
    assert counters(csv_reader.read(files)) == expected
    (alone,) = (g for g in groups(folder) if folder / "kernel_names.csv" in g)
    lost = csv_reader.read(alone)
    assert counts(lost)["dispatch-without-time"] == len(csv_rows(folder / "kernel_names.csv"))


@pytest.mark.slow
@pytest.mark.parametrize("run", slow_from(["prefill", "decode"], 1))
def test_a_run_with_two_counter_runs(shared: Path, tmp_path: Path, run: str) -> None:
    folder = shared / "rocprof" / FOLDERS[3]
    kernels = csv_rows(folder / f"{run}_kernel_trace.csv")
    calls = csv_rows(folder / f"{run}_hip_api_trace.csv")
    trace = ci.read(*sorted(folder.glob(f"{run}_*.csv")))
    assert trace.nodes.num_rows == len(kernels) + len(calls)
    ids = {each["Correlation_Id"] for each in calls}
    assert trace.edges.num_rows == sum(each["Correlation_Id"] in ids for each in kernels)
    joined = {trace.names()[trace.array("name")[n]] for n in trace.array("node", "counters")}
    counted = {
        each["Kernel_Name"] for each in csv_rows(folder / f"{run}_fetch_counter_collection.csv")
    }
    assert joined
    assert joined <= counted & {each["Kernel_Name"] for each in kernels}

    ci.write(trace, tmp_path / "job.pftrace")
    perfetto = TraceProcessor(tmp_path / "job.pftrace")
    assert perfetto.losses() == {}
    ((slices, total),) = perfetto.query(
        "select count(*), sum(dur) from slice where category != 'derived'"
    )
    assert slices == len(kernels) + len(calls)
    assert total == sum(event(each)[2] for each in kernels + calls)
    ((arrows,),) = perfetto.query("select count(*) from flow")
    assert arrows == trace.edges.num_rows


def test_samples_of_the_documentation(shared: Path, tmp_path: Path) -> None:
    folder = shared / "rocprof"
    trace = ci.read(folder / FOLDERS[0])
    ci.write(trace, tmp_path / "job.pftrace")
    perfetto = TraceProcessor(tmp_path / "job.pftrace")
    assert perfetto.losses() == {}
    rows = [
        event(each) for path in (folder / FOLDERS[0]).glob("*_trace.csv") for each in csv_rows(path)
    ]
    ((slices, total),) = perfetto.query(
        "select count(*), sum(dur) from slice where category != 'derived'"
    )
    assert (slices, total) == (len(rows), sum(dur for _, _, dur in rows))
    with pytest.raises(AmbiguousRunError):  # files of many runs, some under names of their own
        ci.read(folder / FOLDERS[2])


@pytest.fixture(scope="module")
def document(shared: Path) -> dict[str, Any]:
    with gzip.open(shared / "rocprof" / JSON) as file:
        (process,) = json.load(file)["rocprofiler-sdk-tool"]
    return process


@pytest.fixture(scope="module")
def mi350x(shared: Path) -> ci.Trace:
    return json_reader.read([shared / "rocprof" / JSON])


@pytest.mark.slow
def test_json_has_every_kernel(document: dict[str, Any], mi350x: ci.Trace) -> None:
    kernels = document["buffer_records"]["kernel_dispatch"]
    names = {s["kernel_id"]: s["formatted_kernel_name"] for s in document["kernel_symbols"]}
    assert_whole(mi350x, sum(len(r) for r in document["buffer_records"].values()))
    expected = sorted(
        (
            k["start_timestamp"],
            -(k["end_timestamp"] - k["start_timestamp"]),
            names[k["dispatch_info"]["kernel_id"]],
        )
        for k in kernels
    )
    ts = (mi350x.array("ts") + mi350x.meta.origin_ns).tolist()
    name = np.array(mi350x.names(), object)[mi350x.array("name")].tolist()
    assert sorted(zip(ts, (-mi350x.array("dur")).tolist(), name, strict=True)) == expected
    assert len(expected) == 43_915


def test_sums_are_those_of_the_reference_to_the_nanosecond(mi350x: ci.Trace) -> None:
    """Unions of intervals of another implementation, in nanoseconds."""
    (row,) = ci.analyze(mi350x, "temporal").rows.to_pylist()
    assert row["busy_ns"] == 4_233_112_334
    assert row["comm_ns"] == 4_158_756_678
    assert row["compute_ns"] == 281_681_933
    assert row["overlap_ns"] == 207_326_277
    assert row["exposed_comm_ns"] == 3_951_430_401


def test_json_keeps_fields_without_a_column_as_arguments(
    document: dict[str, Any], mi350x: ci.Trace
) -> None:
    of = {
        k["dispatch_info"]["dispatch_id"]: k for k in document["buffer_records"]["kernel_dispatch"]
    }
    agent = {a["id"]["handle"]: a for a in document["agents"]}
    for row in range(0, mi350x.nodes.num_rows, 997):
        args = mi350x.args(row)
        record = of[args["dispatch_id"]]
        info = record["dispatch_info"]
        assert args["grid"] == list(info["grid_size"].values())
        assert args["workgroup"] == list(info["workgroup_size"].values())
        assert args["stream"] == record["stream_id"]["handle"]
        assert args["queue"] == info["queue_id"]["handle"]
        number = agent[info["agent_id"]["handle"]]["logical_node_id"]
        assert args["agent"] == f"Agent {number}"
        lane = mi350x.lanes.slice(int(mi350x.array("lane")[row]), 1).to_pylist()[0]
        assert (lane["device"], lane["number"]) == (number, info["queue_id"]["handle"])
    assert [(d.device, d.ordinal, d.name) for d in mi350x.meta.devices] == [
        (a["logical_node_id"], a["logical_node_type_id"], a["product_name"])
        for a in document["agents"]
        if a["type"] == 2
    ]


def test_hundreds_of_streams_became_a_few_queues(
    document: dict[str, Any], mi350x: ci.Trace
) -> None:
    kernels = document["buffer_records"]["kernel_dispatch"]
    assert len({k["stream_id"]["handle"] for k in kernels}) > 500
    queues = {k["dispatch_info"]["queue_id"]["handle"] for k in kernels}
    assert mi350x.lanes.num_rows == len(queues)


def test_sums_in_nanoseconds(document: dict[str, Any], mi350x: ci.Trace) -> None:
    ts, dur, kind = (mi350x.array(c) for c in ("ts", "dur", "kind"))
    names = {s["kernel_id"]: s["formatted_kernel_name"] for s in document["kernel_symbols"]}
    rccl = sum(
        names[k["dispatch_info"]["kernel_id"]].startswith("nccl")
        for k in document["buffer_records"]["kernel_dispatch"]
    )
    assert np.count_nonzero(kind == Kind.COMM) == rccl == 1_310
    end = ts + dur
    comm, rest = kind == Kind.COMM, kind == Kind.KERNEL
    unions = [intervals.union(ts[which], end[which]) for which in (comm | rest, comm, rest)]
    assert [intervals.total_length(u) for u in unions] == [
        4_233_112_334,
        4_158_756_678,
        281_681_933,
    ]
    overlap = intervals.overlap_length(unions[1], unions[2])
    assert overlap == 207_326_277
    assert intervals.total_length(unions[1]) - overlap == 3_951_430_401


@pytest.mark.slow
def test_overlapping_kernels_are_all_written_to_perfetto(mi350x: ci.Trace, tmp_path: Path) -> None:
    ci.write(mi350x, tmp_path / "job.pftrace")
    perfetto = TraceProcessor(tmp_path / "job.pftrace")
    assert perfetto.losses() == {}
    ((slices, total, shortest),) = perfetto.query(
        "select count(*), sum(dur), min(dur) from slice where category != 'derived'"
    )
    dur = mi350x.array("dur")
    assert (slices, total, shortest) == (len(dur), int(dur.sum()), int(dur.min()))
