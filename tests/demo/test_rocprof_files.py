"""Counter runs: headers as documented, counters by their formulas, order of the timing run."""

from __future__ import annotations

import csv
import itertools
import math

import pytest

from chopper_interop.demo.counter_runs import OVERHEAD_CYCLES, PASSES
from chopper_interop.demo.rocprof_files import AGENT_INFO, COUNTER_COLLECTION, KERNEL_TRACE

XCC = 8


def compute_order(rank):
    """Names and grids in work-items of a rank's kernels, copies and fills as Kineto has them."""
    result = []
    for launch in rank.launches:
        event = launch.event
        if event["name"].startswith("nccl"):
            continue
        if event["cat"] != "kernel":
            blit = "fillBufferAligned" if event["cat"] == "gpu_memset" else "copyBuffer"
            result.append((f"__amd_rocclr_{blit}", None))
            continue
        args = event["args"]
        items = launch.call["name"] == "hipExtModuleLaunchKernel"
        grid = [n * (1 if items else b) for n, b in zip(args["grid"], args["block"], strict=True)]
        result.append((event["name"], grid))
    return result


def dispatches(rows):
    """Counters by dispatch."""
    result = {}
    for row in rows:
        entry = result.setdefault(int(row["Dispatch_Id"]), dict(row, counters={}))
        entry["counters"][row["Counter_Name"]] = float(row["Counter_Value"])
    return result


@pytest.mark.parametrize("number", [1, 2])
def test_kernels_come_in_the_order_of_the_timing_run(demo, number):
    for rank in demo.ranks:
        rows = demo.counters(number, rank.rank, "kernel_trace")
        order = compute_order(rank)
        seen = [
            (
                row["Kernel_Name"],
                [int(row[f"Grid_Size_{axis}"]) for axis in "XYZ"],
            )
            for row in rows
        ]
        seen = [(n, None if n.startswith("__amd_rocclr_") else g) for n, g in seen]
        assert seen[3:] == order[: len(seen) - 3]
        assert len(seen) - 3 == len(order) // 2  # one of two steps
        assert all(name.startswith("__amd_rocclr_") for name, _ in seen[:3])
        ids = [int(row["Dispatch_Id"]) for row in rows]
        assert ids == sorted(set(ids))
        assert ids == [int(row["Correlation_Id"]) for row in rows]
        assert {row["Agent_Id"] for row in rows} == {f"Agent {rank.rank + 2}"}


def test_kernels_are_serialised_on_boottime(demo):
    offset = demo.truth["clocks"]["realtime_minus_boottime_ns"]
    for number in (1, 2):
        rows = demo.counters(number, 0, "kernel_trace")
        times = [(int(r["Start_Timestamp"]), int(r["End_Timestamp"])) for r in rows]
        assert all(a < b for a, b in times)
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(times))
        assert times[0][0] + offset > demo.truth["clocks"]["window_end_ns"]


def test_runs_are_separate_processes(demo):
    pids = [
        {row["Process_Id"] for row in demo.counters(number, rank.rank, "counter_collection")}
        for number in (1, 2)
        for rank in demo.ranks
    ]
    assert len(set.union(*pids)) == len(pids)
    assert not {str(rank.host[0]["pid"]) for rank in demo.ranks} & set.union(*pids)
    first, second = (
        {r["Kernel_Name"]: r["Kernel_Id"] for r in demo.counters(n, 0, "kernel_trace")}
        for n in (1, 2)
    )
    assert first.keys() == second.keys()
    assert first != second


@pytest.mark.parametrize("number", [1, 2])
def test_counters_of_the_passes(demo, number):
    actual = dispatches(demo.counters(number, 0, "counter_collection"))
    trace = {int(r["Dispatch_Id"]): r for r in demo.counters(number, 0, "kernel_trace")}
    assert actual.keys() == trace.keys()
    for dispatch, row in actual.items():
        assert tuple(row["counters"]) == PASSES[number - 1]
        for key in ("Start_Timestamp", "End_Timestamp", "Kernel_Id", "LDS_Block_Size"):
            assert row[key] == trace[dispatch][key]


def test_active_cycles_follow_the_clock(demo):
    for number in (1, 2):
        for row in dispatches(demo.counters(number, 0, "counter_collection")).values():
            time_ns = int(row["End_Timestamp"]) - int(row["Start_Timestamp"])
            active = row["counters"]["GRBM_GUI_ACTIVE"]
            assert active % XCC == 0
            mhz = 1000 * (active / XCC - OVERHEAD_CYCLES) / time_ns
            if time_ns > 100_000:
                assert 1900 < mhz <= 2100
                assert abs(mhz / 5 - round(mhz / 5)) < 0.01


def test_matrix_operations_are_those_of_the_shapes(demo):
    """FLOP of each GEMM from the input shapes that the operators recorded."""
    rank = demo.ranks[0]
    operators = {e["args"]["External id"]: e for e in rank.of("cpu_op")}
    launches = [x for x in rank.launches if not x.stream]
    actual = dispatches(demo.counters(1, 0, "counter_collection"))
    rows = [row for _, row in sorted(actual.items())][3:]
    gemms = 0
    for launch, row in zip(launches, rows, strict=False):
        counters = row["counters"]
        assert counters["SQ_VALU_MFMA_BUSY_CYCLES"] == counters["SQ_INSTS_VALU_MFMA_MOPS_BF16"]
        cycles = counters["GRBM_GUI_ACTIVE"] / XCC
        assert counters["SQ_VALU_MFMA_BUSY_CYCLES"] < 304 * 4 * cycles
        assert counters["SQ_WAVES"] == int(row["Grid_Size"]) / int(row["Workgroup_Size"]) * (
            math.ceil(int(row["Workgroup_Size"]) / 64)
        )
        if row["Kernel_Name"].startswith("Cijk_"):
            (m, k), (_, n) = operators[launch.event["args"]["External id"]]["args"]["Input Dims"]
            assert 512 * counters["SQ_INSTS_VALU_MFMA_MOPS_BF16"] == 2 * m * n * k
            gemms += 1
    assert gemms > 40


def test_traffic_is_that_of_the_shapes(demo):
    rank = demo.ranks[0]
    operators = {e["args"]["External id"]: e for e in rank.of("cpu_op")}
    actual = dispatches(demo.counters(2, 0, "counter_collection"))
    rows = [row for _, row in sorted(actual.items())][3:]
    for launch, row in zip([x for x in rank.launches if not x.stream], rows, strict=False):
        dims = operators[launch.event["args"]["External id"]]["args"].get("Input Dims")
        if row["Kernel_Name"].startswith("Cijk_"):
            (m, k), (_, n) = dims
            assert row["counters"]["FETCH_SIZE"] == 2 * (m * k + k * n) / 1024
            assert row["counters"]["WRITE_SIZE"] == 2 * m * n / 1024
        elif "CUDAFunctor_add<c10::BFloat16>" in row["Kernel_Name"]:
            size = 2 * math.prod(dims[0]) / 1024
            assert row["counters"]["FETCH_SIZE"] == 2 * size
            assert row["counters"]["WRITE_SIZE"] == size


def test_small_values_are_scientific(demo):
    values = {r["Counter_Value"] for r in demo.counters(2, 0, "counter_collection")}
    assert "0.00000000e+00" in values
    assert all(("e" in value) == (float(value) < 1) for value in values)


def test_agents(demo):
    (path,) = sorted((demo.path / "rocprof/pmc_1").glob("*/*_agent_info.csv"))[:1]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(AGENT_INFO.split(",")) == len(rows[0]) == 53
    assert [row["Agent_Type"] for row in rows] == ["CPU"] * 2 + ["GPU"] * 8
    assert {row["Num_Xcc"] for row in rows[2:]} == {"8"}
    assert {row["Max_Engine_Clk_Fcompute"] for row in rows[2:]} == {"2100"}
    assert None not in rows[0]
    assert all(value is not None for row in rows for value in row.values())


def test_headers_are_those_of_real_files(shared):
    folder = shared / "rocprof/v3_csv_docs_samples_rocm7"
    for name, columns in (
        ("kernel_trace", KERNEL_TRACE),
        ("counter_collection", COUNTER_COLLECTION),
    ):
        header = (folder / f"{name}.csv").read_text().splitlines()[0]
        assert header == ",".join(f'"{column}"' for column in columns.split(","))
