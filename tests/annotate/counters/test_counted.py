"""Metrics by counters agree with their definitions, and are unknown where they must be."""

import csv
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from issue_counts import counts
from read_once import read_once
from shared_data import SHARED, each, real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.annotate.counters import counter_metrics
from chopper_interop.annotate.counters.clock import fit_overhead, mean_clocks_mhz
from chopper_interop.annotate.counters.join_passes import PassCounters, carry_counters
from chopper_interop.annotate.stages import annotate
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.issues import IssueLog
from chopper_interop.schemas import hub
from chopper_interop.schemas.derived import METRICS, canonical
from chopper_interop.schemas.gpus import GPUS, common_facts, find_gpu
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Device, Meta, Rank

MI300X = Device("", 0, "AMD Instinct MI300X", "t", arch="gfx942", xccs=8, cus=304, simds_per_cu=4,
                max_mhz=2100)  # fmt: skip
MI210 = Device("", 0, "AMD Instinct MI210", "t")


def trace_of(counters: dict[str, list[float]], device: Device, dur: int = 1_000_000) -> ci.Trace:
    """One kernel for each value of the counters, all on one device."""
    builder = TraceBuilder(meta=Meta(devices=(device,), ranks=(Rank(0),)))
    lane = builder.lane(0, LaneKind.STREAM, 0, "s", 0)
    count = len(next(iter(counters.values())))
    ts = np.arange(count) * (dur + 10)
    first = builder.nodes(kind=int(Kind.KERNEL), name="k", rank=0, lane=lane, ts=ts, dur=dur)
    for name, values in counters.items():
        builder.counters(first + np.arange(count), name, np.array(values, float))
    return builder.finish()


def metrics(counters: dict[str, float], device: Device) -> tuple[dict[str, float], dict[str, int]]:
    log = IssueLog()
    result = counter_metrics.columns(trace_of({k: [v] for k, v in counters.items()}, device), log)
    return {k: v[0].as_py() for k, v in result.items()}, counts(log)


ALL_VALU = {
    f"SQ_INSTS_VALU_{w}_{t}": 0.0
    for w in ("ADD", "MUL", "TRANS", "FMA")
    for t in ("F16", "F32", "F64")
}
ALL_MFMA = {f"SQ_INSTS_VALU_MFMA_MOPS_{t}": 0.0 for t in ("F16", "BF16", "F32", "F64")}


def test_matrix_operations_are_those_of_the_shapes() -> None:
    actual, _ = metrics({"SQ_INSTS_VALU_MFMA_MOPS_BF16": 4_194_304}, MI300X)
    assert actual["flops_counted"] == 2 * 128 * 128 * 512 * 128


def test_vector_operations_count_64_lanes_and_fma_twice() -> None:
    actual, noted = metrics(
        {**ALL_VALU, **ALL_MFMA, "SQ_INSTS_VALU_FMA_F32": 10, "SQ_INSTS_VALU_ADD_F64": 3}, MI210
    )
    assert actual["flops_counted"] == 64 * (2 * 10 + 3)
    assert "flops-of-some-types" not in noted


def test_no_operations_are_known_only_if_all_types_were_counted() -> None:
    assert metrics({**ALL_VALU, **ALL_MFMA}, MI210)[0]["flops_counted"] == 0
    assert "flops_counted" not in metrics({"SQ_INSTS_VALU_MFMA_MOPS_BF16": 0}, MI210)[0]
    assert "flops_counted" not in metrics({**ALL_VALU, **ALL_MFMA}, MI300X)[0]  # F8 was not counted
    _, noted = metrics({"SQ_INSTS_VALU_MFMA_MOPS_BF16": 5}, MI210)
    assert noted["flops-of-some-types"] == 1


def test_integer_operations_are_no_flops() -> None:
    assert "flops_counted" not in metrics({"SQ_INSTS_VALU_MFMA_MOPS_I8": 7}, MI300X)[0]


@pytest.mark.parametrize(
    ("counters", "device", "read", "written"),
    [
        ({"FETCH_SIZE": 3.5, "WRITE_SIZE": 2}, MI300X, 3584, 2048),
        (
            {"TCC_EA_RDREQ_sum": 10, "TCC_EA_RDREQ_32B_sum": 4, "TCC_EA_WRREQ_sum": 9,
             "TCC_EA_WRREQ_64B_sum": 5},
            MI210, 4 * 32 + 6 * 64, 4 * 32 + 5 * 64,
        ),
        (
            {"TCC_EA0_RDREQ": 10, "TCC_EA0_RDREQ_32B": 4, "TCC_BUBBLE": 3, "TCC_EA0_WRREQ": 9,
             "TCC_EA0_WRREQ_64B": 5},
            MI300X, 3 * 128 + 3 * 64 + 4 * 32, 4 * 32 + 5 * 64,
        ),
    ],
)  # fmt: skip
def test_bytes(counters: dict[str, float], device: Device, read: int, written: int) -> None:
    actual, _ = metrics(counters, device)
    assert actual["mem_bytes_counted"] == read + written


@pytest.mark.parametrize("cycles", [8 * 2e6, 8 * 6e6])
def test_cycles_are_divided_by_the_duration_over_which_they_were_counted(cycles: float) -> None:
    """A later pass counts cycles too, over another duration; those of the first are kept."""
    first = trace_of({"GRBM_GUI_ACTIVE": [8 * 2e6]}, MI300X, dur=1_000_000)
    later = trace_of({"GRBM_GUI_ACTIVE": [cycles]}, MI300X, dur=1_500_000)
    both = carry_counters(first, [PassCounters(later, np.array([0]), IssueLog())])
    clock = counter_metrics.columns(both, IssueLog())["gfxclk_counted_mhz"]
    assert clock.to_pylist() == [pytest.approx(2000)]


def test_reads_without_bubbles_are_not_known_where_there_are_such() -> None:
    counters = {"TCC_EA0_RDREQ": 10, "TCC_EA0_RDREQ_32B": 4, "WRITE_SIZE": 1.0}
    assert "mem_bytes_counted" not in metrics(counters, MI300X)[0]


def test_shares() -> None:
    cycles = 2_000_000.0
    actual, noted = metrics(
        {
            "GRBM_GUI_ACTIVE": 8 * cycles,
            "SQ_VALU_MFMA_BUSY_CYCLES": 0.25 * cycles * 304 * 4,
            "SQ_WAVE_CYCLES": 0.5 * cycles * 304 * 32 / 4,
        },
        MI300X,
    )
    assert actual["mfma_util"] == pytest.approx(25)
    assert actual["occupancy"] == pytest.approx(50)
    assert noted["counted-clock-not-fitted"] == 1
    assert actual["gfxclk_counted_mhz"] == pytest.approx(2000)


def test_impossible_metrics_are_unknown_and_counted() -> None:
    actual, noted = metrics(
        {"GRBM_GUI_ACTIVE": 8e6, "SQ_VALU_MFMA_BUSY_CYCLES": 2e6 * 304 * 4}, MI300X
    )
    assert "mfma_util" not in actual
    assert noted["metric-impossible"] == 1
    actual, noted = metrics({"GRBM_GUI_ACTIVE": 8 * 3e6}, MI300X)  # 3 GHz
    assert "gfxclk_counted_mhz" not in actual
    assert noted["counted-clock-impossible"] == 1


@pytest.mark.parametrize("value", [-1.0, 1e308, np.inf, -np.inf, np.nan])
def test_impossible_counters_are_unknown(value: float) -> None:
    counters = dict.fromkeys(("GRBM_GUI_ACTIVE", "FETCH_SIZE", "MfmaFlops"), value)
    actual, noted = metrics({**counters, "WRITE_SIZE": 1.0}, MI300X)
    assert actual == {}
    assert noted["metric-impossible"] == len(counters)


def test_dies_are_stated_by_the_device_or_assumed_by_its_name_or_unknown() -> None:
    counters = {"GRBM_GUI_ACTIVE": 8 * 2e6}
    partition = Device("", 0, "AMD Instinct MI300X", "t", cus=38)  # CPX: one die
    by_name = Device("", 0, "AMD Instinct MI300X", "t")
    assert metrics(counters, by_name)[0]["gfxclk_counted_mhz"] == pytest.approx(2000)
    assert metrics(counters, by_name)[1]["hardware-assumed"] > 0
    assert "hardware-assumed" not in metrics(counters, MI300X)[1]
    assert metrics({"GRBM_GUI_ACTIVE": 2e6}, partition)[0]["gfxclk_counted_mhz"] == 2000
    actual, noted = metrics(counters, Device("", 0, "", "t"))
    assert actual == {}
    assert noted["hardware-unknown"] == 1
    log = IssueLog()
    counter_metrics.columns(trace_of({k: [v] for k, v in counters.items()}, Device("", 0)), log)
    assert {i.code: i.example for i in log}["hardware-unknown"] == "device 0"
    one_die = Device("", 0, "", "t", arch="gfx1151")
    assert metrics({"GRBM_GUI_ACTIVE": 2e6}, one_die)[0]["gfxclk_counted_mhz"] == 2000


def test_columns_that_a_source_states_are_kept() -> None:
    trace = trace_of({"FETCH_SIZE": [1.0], "WRITE_SIZE": [1.0]}, MI300X)
    assert counter_metrics.columns(trace.with_columns(mem_bytes_counted=[7.0]), IssueLog()) == {}
    assert annotate(trace.with_columns(mem_bytes_counted=[7.0])).values("mem_bytes_counted") == [
        7.0
    ]


def test_metrics_of_a_further_pass_are_added() -> None:
    trace = trace_of({"FETCH_SIZE": [1.0], "WRITE_SIZE": [1.0]}, MI300X)
    again = annotate(trace.with_columns(flops_counted=[7.0]))
    assert again.values("flops_counted") == [7.0]
    assert again.values("mem_bytes_counted") == [2048.0]


def test_shapes_and_counters_are_compared() -> None:
    trace = trace_of({"SQ_INSTS_VALU_MFMA_MOPS_BF16": [1.0, 2.0, 3.0]}, MI300X)
    log = IssueLog()
    counter_metrics.columns(trace.with_columns(flops=np.array([512, 512, 0])), log)
    (issue,) = (i for i in log if i.code == "flops-compared")
    assert issue.count == 2
    assert "median 1.5" in issue.example
    assert "1 are equal" in issue.example


@given(
    st.floats(0, 40_000), st.floats(800, 2100), st.floats(0, 0.05), st.integers(30, 300),
    st.integers(0, 9),
)  # fmt: skip
def test_overhead_is_found_despite_varying_clocks_and_outliers(
    cycles: float, mhz: float, spread: float, count: int, outliers: int
) -> None:
    draw = np.random.default_rng(count)
    time = np.exp(draw.uniform(np.log(4e3), np.log(1e6), count))
    clock = mhz / 1000 * (1 + spread * draw.uniform(-1, 1, count))
    seen = clock * time + cycles
    seen[: outliers * count // 100] *= 3
    actual = fit_overhead(seen, time)
    if actual is not None:
        assert abs(actual.cycles - cycles) < 6 * actual.error + 1


def test_short_dispatches_without_a_fit_have_no_clock() -> None:
    log = IssueLog()
    actual = mean_clocks_mhz(np.full(3, 41_600.0), np.full(3, 15_500.0), np.full(3, 1700.0), log)
    assert np.isnan(actual).all()
    assert counts(log)["counted-clock-too-short"] == 3


def test_the_table_of_metrics_is_complete() -> None:
    declared = {"flops_counted", "mem_bytes_counted", "intensity", "mfma_util", "occupancy"}
    assert declared <= {m.name for m in METRICS} & set(hub.ANNOTATION_TYPES)
    units = {c.name: c.unit for c in hub.ANNOTATIONS}
    assert all(units[m.name] == m.unit for m in METRICS if m.name in units)
    operands = {
        n for m in METRICS for f in m.formulas for _, t in f.terms for n in (*t, *f.divisors)
    }
    assert all(canonical(name) == name for name in operands)


@pytest.mark.parametrize(
    ("name", "arch", "cus", "product"),
    [
        ("AMD Instinct MI300X", "", -1, "MI300X"),
        ("MI300A_A1", "gfx942", 228, "MI300A"),
        ("AMD Instinct MI250X/MI250", "gfx90a", -1, None),
        ("AMD Instinct MI250X/MI250", "gfx90a", 104, "MI250"),
        ("AMD Instinct MI250X", "gfx90a", 104, None),
        ("AMD Instinct MI300X", "gfx942", 38, "MI300X"),  # a partition
        ("AMD Instinct MI300X", "gfx942", 228, None),
        ("NVIDIA GH200 480GB", "sm_90", 132, "GH200 480GB"),
        ("NVIDIA GB200", "", -1, "GB200"),
        ("NVIDIA H100 NVL", "sm_90", 132, "H100 NVL"),
        ("NVIDIA H100 80GB HBM2e", "", -1, None),
        ("NVIDIA H100 PCIe", "", 114, "H100 PCIe"),
        ("NVIDIA H200", "", -1, "H200"),
        ("AMD Instinct MI250", "", 104, "MI250"),
        ("AMD Radeon Graphics", "gfx942", 228, "MI300A"),
        ("AMD Radeon Graphics", "gfx942", 304, None),  # MI300X or MI325X
        ("NVIDIA A100-SXM4-80GB", "sm_80", 108, "A100-SXM4-80GB"),
        ("NVIDIA H100 80GB HBM3", "sm_90", 132, "H100 80GB HBM3"),
        ("AMD Instinct MI300X", "gfx90a", -1, None),
        ("", "", -1, None),
    ],
)
def test_products(name: str, arch: str, cus: int, product: str | None) -> None:
    actual = find_gpu(name, arch, cus)
    assert (actual.name if actual else None) == product


def test_facts_that_all_possible_products_share_are_known() -> None:
    actual = common_facts("", "gfx942", 304)
    assert (actual["xccs"], actual["cus"], actual["max_mhz"]) == (8, 304, 2100)
    assert "cus" not in common_facts("AMD Instinct MI250X/MI250")
    assert common_facts("AMD Instinct MI250X/MI250")["xccs"] == 1
    assert common_facts("", "gfx90a", 304) == common_facts("", "", 304) == {}
    nameless = Device("", 0, "", "t", arch="gfx942", cus=304)
    clock = metrics({"GRBM_GUI_ACTIVE": 8 * 2e6}, nameless)[0]["gfxclk_counted_mhz"]
    assert clock == pytest.approx(2000)


def test_another_hosts_gpu_is_not_taken() -> None:
    trace = trace_of({"GRBM_GUI_ACTIVE": [8 * 2e6]}, replace(MI300X, host="b"))
    assert "gfxclk_counted_mhz" in counter_metrics.columns(trace, IssueLog())
    trace = trace.with_meta(ranks=(Rank(0, host="a"),))
    assert counter_metrics.columns(trace, IssueLog()) == {}


@pytest.mark.parametrize(
    ("counters", "flops"),
    [
        ({"SQ_INSTS_VALU_MFMA_MOPS_F16": 10, "MfmaFlopsBF16": 1e12}, 5120 + 1e12),
        ({"SQ_INSTS_VALU_MFMA_MOPS_F16": 0, "MfmaFlops": 1e12}, 1e12),
        ({"SQ_INSTS_VALU_MFMA_MOPS_F16": 10, "MfmaFlopsF16": 5120}, 5120),
        ({"SQ_INSTS_VALU_MFMA_MOPS_F16": 10, "MfmaFlops": 100}, 5120),
    ],
)
def test_matrix_operations_by_either_counter(counters: dict[str, float], flops: float) -> None:
    assert metrics(counters, MI300X)[0]["flops_counted"] == flops


@pytest.mark.parametrize(
    ("name", "kind", "tflops"),
    [
        ("MI100", "f16", 184.6), ("MI210", "bf16", 181.0), ("MI300X", "bf16", 1307.4),
        ("MI300X", "f8", 2614.9), ("MI300X", "f32", 163.4), ("MI355X", "bf16", 2516.6),
        ("MI355X", "f8", 5033.2), ("A100", "bf16", 311.9),
        ("H100 80GB HBM3", "bf16", 989.4), ("H100 80GB HBM3", "f64", 66.9),
        ("H100 PCIe", "f64", 51.2), ("H200", "bf16", 989.4), ("H200", "f64", 66.9),
    ],
)  # fmt: skip
def test_rates_are_those_of_data_sheets(name: str, kind: str, tflops: float) -> None:
    product = next(g for g in GPUS if g.name == name)
    assert product.peak_tflops(kind) == pytest.approx(tflops, rel=2e-3)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo(
        tmp_path_factory.mktemp("demo") / "job", ranks=2, layers=2, steps=3, telemetry=False,
        truth_kernels=False,
    )  # fmt: skip


def dispatched(path: Path) -> list[tuple[str, int, dict[str, float]]]:
    """Name, duration and counters of the dispatches of a pass, helpers left out."""
    rows: dict[int, tuple[str, int]] = {}
    values: dict[int, dict[str, float]] = defaultdict(dict)
    for row in csv.DictReader(path.read_text().splitlines()):
        number = int(row["Dispatch_Id"])
        time = int(row["End_Timestamp"]) - int(row["Start_Timestamp"])
        rows[number] = (row["Kernel_Name"], time)
        values[number][row["Counter_Name"]] = float(row["Counter_Value"])
    return [(*rows[n], values[n]) for n in sorted(rows) if "amd_rocclr" not in rows[n][0]]


def test_counters_of_the_demo_job_go_to_its_kernels(demo: Path) -> None:
    trace = read_once(demo)
    table = trace.counters.to_pandas().pivot_table(index="node", columns="name", values="value")
    passes = sorted(demo.glob("rocprof/pmc_*/*/*counter_collection.csv"))
    ranks, correlation = trace.array("rank"), trace.array("correlation")
    names = [trace.names()[i] for i in trace.array("name")]
    clock = trace.values("gfxclk_counted_mhz").astype(float)
    with_clock = 0
    for number, path in enumerate(passes):
        rank, first_pass = number % 2, number < 2
        nodes = [n for n in table.index if ranks[n] == rank]
        nodes.sort(key=lambda n: correlation[n])
        expected = dispatched(path)
        assert [names[n] for n in nodes] == [name for name, _, _ in expected]
        for node, (_, time, values) in zip(nodes, expected, strict=True):
            for name, value in values.items():
                if first_pass or name != "GRBM_GUI_ACTIVE":
                    assert table.at[node, name] == pytest.approx(value)
            if first_pass and not np.isnan(clock[node]):
                with_clock += 1
                true = 1000 * (values["GRBM_GUI_ACTIVE"] / 8 - 15_200) / time
                assert clock[node] == pytest.approx(true, rel=0.02)
    assert with_clock > 0.9 * len(table)
    last = trace.values("iteration")[table.index.to_numpy()]
    assert set(last) == {max(trace.values("iteration")[ranks >= 0][trace.array("kind") == 7])}
    flops = trace.values("flops_counted").astype(float)[table.index.to_numpy()]
    some = flops > 0
    assert (flops == 512 * table["SQ_INSTS_VALU_MFMA_MOPS_BF16"].to_numpy())[some].all()
    traffic = trace.values("mem_bytes_counted").astype(float)[table.index.to_numpy()]
    kib = (table["FETCH_SIZE"] + table["WRITE_SIZE"]).to_numpy()
    assert traffic == pytest.approx(1024 * kib)


def test_a_pass_that_lost_its_first_kernels_shifts_none(demo: Path, tmp_path: Path) -> None:
    """Rows of the first dispatches of the first pass of rank 0, helpers too, are gone."""
    (path,) = sorted(demo.glob("rocprof/pmc_1/*/*counter_collection.csv"))[:1]
    sound = dispatched(path)
    lines = path.read_text().splitlines(keepends=True)
    numbers = sorted({int(line.split(",")[1].strip('"')) for line in lines[1:]})
    gone = set(numbers[:5]) | {numbers[40]}
    kept = [line for line in lines[1:] if int(line.split(",")[1].strip('"')) not in gone]
    folder = tmp_path / "pmc_1" / "demo-node-0"
    folder.mkdir(parents=True)
    (folder / path.name).write_text("".join([lines[0], *kept]))
    info = path.with_name(path.name.replace("counter_collection", "agent_info"))
    (folder / info.name).write_bytes(info.read_bytes())
    (kineto,) = demo.glob("kineto/rank0.*")
    trace = ci.read(kineto, tmp_path)
    node = np.unique(trace.array("node", "counters"))
    assert len(node) > len(sound) - 8
    complete = ci.read(kineto, info.parent)
    of_all = {
        (n, name): value
        for n, name, value in complete.counters.to_pandas().itertuples(index=False, name=None)
    }
    for n, name, value in trace.counters.to_pandas().itertuples(index=False, name=None):
        assert of_all[n, name] == value


def test_clocks_of_an_mi300a() -> None:
    trace = read_once(real("rocprof/rocprof_compute_pmc/omp_MI300A"))
    clock = trace.values("gfxclk_counted_mhz").astype(float)
    assert (clock.min(), clock.max()) == (pytest.approx(1706, abs=1), pytest.approx(2133, abs=1))
    (device,) = trace.meta.devices
    assert (device.arch, device.xccs, device.cus, device.simds_per_cu) == ("gfx942", 6, 228, 4)


@pytest.mark.parametrize("name", slow_from(["vcopy_MI200", "vcopy_MI300X_A1"], 1))
def test_short_kernels_have_no_clock(name: str) -> None:
    trace = read_once(real(f"rocprof/rocprof_compute_pmc/{name}"))
    assert "gfxclk_counted_mhz" not in trace.nodes.column_names
    lost = {i.code for i in trace.meta.issues}
    assert lost & {"counted-clock-too-short", "counted-clock-without-time"}


@pytest.mark.parametrize(
    "path",
    each(sorted(p for p in SHARED.glob("rocprof/v1_two_pass_mi250x/*") if p.is_dir())),
    ids=lambda path: path.name,
)
def test_both_passes_of_v1_are_of_the_same_dispatches(path: Path) -> None:
    trace = ci.read(path)
    rows = list(csv.DictReader((path / "data_movement.csv").read_text().splitlines()))
    assert len(np.unique(trace.array("node", "counters"))) == len(rows)
    order = np.argsort(trace.array("ts"), kind="stable")
    kernels = order[trace.array("kind")[order] == Kind.KERNEL]
    values = dict(
        zip(*(trace.array(c, "counters")[_named(trace, "FETCH_SIZE")] for c in ("node", "value")),
            strict=True)
    )  # fmt: skip
    title = next(c for c in rows[0] if c.strip('"').upper().startswith("FETCH"))
    assert [values[n] for n in kernels] == pytest.approx([float(r[title]) for r in rows])


def _named(trace: ci.Trace, name: str) -> np.ndarray:
    names = trace.counters["name"].combine_chunks()
    return np.array(names.dictionary.to_pylist())[names.indices.to_numpy()] == name
