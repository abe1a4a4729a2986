"""Many runs in one table: against each run by itself, plain loops over files, and broken runs."""

import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from read_once import read_once

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop import run as runs
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.runs import names as run_names
from chopper_interop.analyses.methods.runs import parallelism
from chopper_interop.analyses.methods.runs import rates as run_rates
from chopper_interop.analyses.sweep import sweep
from chopper_interop.build import TraceBuilder
from chopper_interop.commands import analysis_plan
from chopper_interop.demo import make_demo
from chopper_interop.errors import LossError, ReadError, UsageError
from chopper_interop.schemas.kinds import GPU_WORK, Kind, LaneKind
from chopper_interop.testing import check_analysis

EPOCH = 1_700_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one sweep: a base, one at a lower clock, a pipeline, and three invalid ones."""
    parent = tmp_path_factory.mktemp("sweep") / "gpt3-175b"
    same = {"ranks": 2, "layers": 2, "steps": 3, "sequence": 256}
    make_demo(parent / "gpt3-175b_1_00000", recorder_hz=1000, **same)
    make_demo(parent / "gpt3-175b_1_10000", recorder_hz=1000, peak_scale=0.9, **same)
    make_demo(
        parent / "gpt3-175b_2_mbs4", pipeline=2, telemetry=False, counter_steps=0, microbatches=4, **same
    )  # fmt: skip
    (parent / "cut").mkdir()
    (parent / "cut" / "rank0.json").write_text('{"traceEvents": [')
    (parent / "empty").mkdir()
    (parent / "text").mkdir()
    (parent / "text" / "notes.txt").write_text("out of memory\n")
    return parent


def charllm(folder: Path, watts: float, count: int = 40, gpus: int = 2) -> Path:
    """Telemetry as CharLLM-PPT writes it: 20 Hz, a ramp of power."""
    folder.mkdir(parents=True)
    for gpu in range(gpus):
        metrics = {"gpu_power": watts + gpu, "gpu_thermal": 60 + gpu, "gpu_util": 90, "sm_clock": 1500,
                   "mem_power": 90}  # fmt: skip
        for metric, value in metrics.items():
            rows = [f"{EPOCH + 0.05 * k:.6f},{value + (k % 2)}" for k in range(count)]
            (folder / f"{metric}_{gpu}.csv").write_text("\n".join(rows) + "\n")
    return folder


def by_name(result) -> dict:
    return {row["run"]: row for row in result.rows.to_pylist()}


def test_each_run_has_the_figures_of_it_alone(folder: Path) -> None:
    names = ["gpt3-175b_1_00000", "gpt3-175b_1_10000", "gpt3-175b_2_mbs4"]
    traces = [read_once(folder / name) for name in names]
    result = sweep(traces[0], against=traces[1:])
    assert result.rows["run"].to_pylist() == names
    assert result.rows["status"].to_pylist() == ["whole"] * 3
    for name, trace, row in zip(names, traces, result.rows.to_pylist(), strict=True):
        assert row["ranks"] == len(trace.ranks) == 2
        assert row["steps"] == 3
        parts = ci.analyze(trace, "temporal", steps="each").summary
        assert row["busy_ns"] == pytest.approx(parts["busy_ns"] / 6, rel=1e-12)
        assert row["exposed_comm_ns"] == pytest.approx(parts["exposed_comm_ns"] / 6, rel=1e-12)
        total = 0
        ts, dur, kind = (trace.array(c) for c in ("ts", "dur", "kind"))
        for window in windows.rank_windows(trace, "each"):
            of_rank = np.isin(kind, [int(k) for k in GPU_WORK]) & (
                trace.array("rank") == window.rank
            )
            within = np.minimum(ts + dur, window.end_ns) - np.maximum(ts, window.start_ns)
            total += int(np.maximum(within[of_rank], 0).sum())
        assert row["idle_ns"] + row["busy_ns"] == pytest.approx(row["step_ns"], rel=1e-12)
        columns = [row[c] or 0 for c in row if c in CATEGORIES]
        assert sum(columns) == pytest.approx(total / 6, rel=1e-12)
        truth = json.loads((folder / name / "truth.json").read_text())
        assert row["step_median_ns"] == sorted(truth["measured_step_ns"])[1]
        assert row["step_ns"] == pytest.approx(truth["mean_measured_step_ns"], rel=1e-12)
    base = result.rows.to_pylist()[0]
    for row in result.rows.to_pylist():
        assert row["step_ratio"] == row["step_ns"] / base["step_ns"]
        assert row["step_min_ns"] <= row["step_median_ns"] <= row["step_max_ns"]
        assert 0.99 < row["window_ns"] / (3 * row["step_ns"]) <= 1.01
    again = sweep(traces[0], against=traces[1:], base=names[1])
    assert by_name(again)[names[1]]["step_ratio"] == 1.0
    assert again.summary["base"] == names[1]


CATEGORIES = {
    "attention_ns", "normalization_ns", "convolution_ns", "matmul_ns", "elementwise_ns", "other_ns",
    "copy_ns", "fill_ns", "all_reduce_ns", "all_gather_ns", "reduce_scatter_ns", "all_to_all_ns",
    "send_recv_ns", "other_comm_ns",
}  # fmt: skip


def test_power_and_energy(folder: Path) -> None:
    names = ["gpt3-175b_1_00000", "gpt3-175b_1_10000"]
    traces = [read_once(folder / name) for name in names]
    result = sweep(traces[0], against=traces[1], tokens=1000, samples=8)
    for trace, row in zip(traces, result.rows.to_pylist(), strict=True):
        by_gpu = ci.analyze(trace, "energy").rows.to_pylist()
        watts = statistics.fmean(one["energy_j"] / one["covered_ns"] * 1e9 for one in by_gpu)
        assert row["mean_power_w"] == pytest.approx(watts, rel=0.01)
        assert row["peak_power_w"] == pytest.approx(
            max(one["peak_power_w"] for one in by_gpu), rel=0.01
        )
        seconds = row["window_ns"] * 1e-9 / 3
        assert row["energy_per_step_j"] == pytest.approx(2 * row["mean_power_w"] * seconds)
        assert row["energy_j"] == pytest.approx(3 * row["energy_per_step_j"])
        assert row["tokens_per_s"] == pytest.approx(1000 / seconds)
        assert row["j_per_token"] * 1000 == pytest.approx(row["energy_per_step_j"])
        efficiency = 8 / seconds / (row["energy_j"] / 1e6)
        assert row["samples_per_s_per_mj"] == pytest.approx(efficiency)
        assert row["peak_temperature_c"] >= row["mean_temperature_c"] > 20
    best = max(result.rows.to_pylist(), key=lambda row: row["samples_per_s_per_mj"])
    assert best["efficiency_share"] == 1.0
    assert {word for row in result.rows.to_pylist() for word in (row["best"] or "").split(", ")} >= {
        "throughput", "energy",
    }  # fmt: skip


@pytest.mark.slow
def test_each_run_has_its_own_batch(tmp_path: Path) -> None:
    """The smallest job has the shortest steps, but another gets more done."""
    facts = {"layers": 1, "steps": 3, "sequence": 256, "recorder_hz": 500}
    sizes = {"r2": (2, 1), "r4": (4, 1), "b4": (2, 4)}
    for name, (ranks, batch) in sizes.items():
        make_demo(tmp_path / name, ranks=ranks, batch=batch, **facts)
    traces = {name: ci.read(tmp_path / name) for name in sizes}
    result = sweep(traces["r2"], against=[traces["r4"], traces["b4"]])
    rows = by_name(result)
    for name, trace in traces.items():
        alone = ci.analyze(trace, "efficiency").summary
        assert (rows[name]["samples"], rows[name]["tokens"]) == (alone["samples"], alone["tokens"])
        assert rows[name]["tokens_from"] == alone["tokens_from"]
        for column in ("j_per_sample", "j_per_token", "tokens_per_s_per_gpu", "samples_per_s"):
            assert rows[name][column] == pytest.approx(alone[column], rel=0.02)
    shortest = min(rows, key=lambda name: rows[name]["step_ns"])
    highest = max(rows, key=lambda name: rows[name]["tokens_per_s_per_gpu"])
    cheapest = min(rows, key=lambda name: rows[name]["j_per_token"])
    assert shortest != highest
    assert "throughput" in rows[highest]["best"]
    assert "energy" in rows[cheapest]["best"]
    by = {name: result.summary[f"best_{name}_by"] for name in ("throughput", "energy")}
    assert by == {"throughput": "tokens_per_s_per_gpu", "energy": "j_per_token"}
    overridden = sweep(traces["r2"], against=traces["b4"], tokens=100, samples=7)
    assert overridden.rows["tokens"].to_pylist() == [300, 300]
    assert overridden.rows["samples"].to_pylist() == [21, 21]


@pytest.mark.parametrize(("gpus", "by"), [(2, "step_ns"), (4, None)])
def test_steps_of_jobs_of_different_size_are_not_compared(gpus: int, by: str | None) -> None:
    rows = [{"gpus": 2, "step_ns": 9.0}, {"gpus": gpus, "step_ns": 5.0}]
    best = run_rates.best(rows)
    assert best == ({"throughput": (by, [1])} if by else {})


def test_times_are_those_of_efficiency(shared: Path) -> None:
    """GPU work ends long after its steps; both analyses measure the same time."""
    trace = read_once(shared / "pytorch/mi300x/resnet_act_checkpoint.json.gz")
    (row,) = sweep(trace, samples=10).rows.to_pylist()
    (efficiency,) = ci.analyze(trace, "efficiency").rows.to_pylist()
    each = ci.analyze(trace, "efficiency", steps="each").rows
    assert row["window_ns"] == efficiency["time_ns"]
    lengths = each["step_ns"].to_pylist()
    assert row["step_ns"] == pytest.approx(sum(lengths) / 3, abs=1) == efficiency["step_ns"]
    assert sorted(lengths)[1] == row["step_median_ns"]
    (by_samples,) = ci.analyze(trace, "efficiency", samples=10).rows.to_pylist()
    assert row["samples_per_s"] == pytest.approx(by_samples["samples_per_s"])
    (last,) = sweep(trace, samples=10, steps="16-17").rows.to_pylist()
    assert last["window_ns"] == sum(each["time_ns"].to_pylist()[1:])


def test_rows_of_gpus(folder: Path) -> None:
    traces = [read_once(folder / f"gpt3-175b_1_{bits}") for bits in ("00000", "10000")]
    rows = sweep(traces[0], against=[traces[1]], by="run,gpu").rows.to_pylist()
    assert [(row["run"], row["gpu"]) for row in rows] == [
        *(("gpt3-175b_1_00000", gpu) for gpu in range(2)),
        *(("gpt3-175b_1_10000", gpu) for gpu in range(2)),
        *(("mean of runs", gpu) for gpu in range(2)),
    ]
    for gpu in range(2):
        same = [row for row in rows if row["gpu"] == gpu]
        for column in ("mean_power_w", "mean_temperature_c", "busy_share"):
            assert same[2][column] == pytest.approx((same[0][column] + same[1][column]) / 2)
    per_run = sweep(traces[0]).rows.to_pylist()[0]
    assert per_run["mean_power_w"] == pytest.approx(
        statistics.fmean(row["mean_power_w"] for row in rows[:2])
    )


def test_figures_of_telemetry_alone_are_those_of_charllm(tmp_path: Path) -> None:
    """Execution time, energy and efficiency as vistools.py of CharLLM-PPT has them (dad5f278)."""
    folders = [
        charllm(tmp_path / "llama3-70b_2_00000", 500),
        charllm(tmp_path / "llama3-70b_3_11000", 600, count=60),
        charllm(tmp_path / "llama3-70b_4_mbs2", 400),
    ]
    result = ci.analyze(ci.read(folders[0]), "sweep", against=folders[1:], samples=128)
    efficiency = []
    for path, row in zip(folders, result.rows.to_pylist(), strict=True):
        energy, seconds = 0.0, 0.0
        for gpu in range(2):
            lines = (path / f"gpu_power_{gpu}.csv").read_text().split()
            points = np.array([[float(cell) for cell in line.split(",")] for line in lines])
            step = np.diff(points[:, 0])
            energy += float((step * (points[1:, 1] + points[:-1, 1]) / 2).sum())
            seconds = points[-1, 0] - points[0, 0]
        assert row["window_ns"] == pytest.approx(seconds * 1e9, rel=1e-6)
        assert row["energy_j"] == pytest.approx(energy, rel=1e-6)
        efficiency.append(128 / seconds / (energy / 1e6))
        assert row["samples_per_s_per_mj"] == pytest.approx(efficiency[-1], rel=1e-6)
        assert row["utilization_share"] == pytest.approx(0.905, abs=0.001)
        assert row["mean_temperature_c"] == pytest.approx(61, abs=0.1)
        assert (row["status"], row["gpus"], row["steps"]) == ("partial", 2, 0)
    shares = result.rows["efficiency_share"].to_pylist()
    assert shares == pytest.approx([value / max(efficiency) for value in efficiency])
    rows = result.rows.to_pylist()
    assert [row["strategy"] for row in rows] == ["TP4-PP4", "TP2-PP8", "TP1-PP16"]
    assert [row["optimisation"] for row in rows] == ["base", "cc+act", None]
    assert [row["micro_batch"] for row in rows] == [None, None, 2]
    assert [row["differs"] for row in rows] == ["2_00000", "3_11000", "4_mbs2"]


def run_sweep(run: Callable, *arguments: object) -> tuple[int, dict]:
    status, out, _ = run("analyze", *arguments, "sweep", "--json", "-q")
    return status, json.loads(out)["sweep"] if out else {}


def test_patterns_and_invalid_runs(folder: Path, run: Callable) -> None:
    base = folder / "gpt3-175b_1_00000"
    status, document = run_sweep(run, base, "--against", f"{folder}/*")
    rows = {row["run"]: row for row in document["rows"]}
    assert status == 0
    assert next(iter(rows)) == base.name  # and but once
    assert sorted(rows) == sorted(path.name for path in folder.iterdir())
    for name in ("cut", "empty", "text"):
        assert (rows[name]["status"], rows[name]["step_median_ns"]) == ("invalid", None)
        assert rows[name]["reason"]
    assert document["summary"]["invalid"] == 3
    assert (document["summary"]["whole"], document["summary"]["runs"]) == (3, 6)
    assert rows["gpt3-175b_2_mbs4"]["pp_size"] == 2
    # nothing of it depends on which is the first; a broken first one has a row too
    status, other = run_sweep(run, folder / "cut", "--against", base)
    assert (status, [row["status"] for row in other["rows"]]) == (0, ["invalid", "whole"])
    assert other["rows"][0]["reason"]
    assert other["rows"][1]["step_median_ns"] == rows[base.name]["step_median_ns"]
    for mistyped in (folder / "none", f"{folder}/none*"):  # before anything is read
        status, _, errors = run("analyze", base, "sweep", "--against", mistyped)
        assert (status, "none" in errors, "kineto" in errors) == (
            UsageError.exit_status,
            True,
            False,
        )
    with pytest.raises(UsageError, match="none"):
        ci.analyze(small(), "sweep", against=[folder / "none"])
    assert run("analyze", base, "sweep", "-q")[0] == UsageError.exit_status
    assert run("analyze", base, "sweep", "-q", "--against", folder / "cut", "-O", "base=x")[0] == 2
    assert run("analyze", folder / "cut", "-q", "temporal")[0] == ReadError.exit_status


def test_losses_are_refused_if_requested(folder: Path, run: Callable, tmp_path: Path) -> None:
    base = folder / "gpt3-175b_1_00000"
    damaged = tmp_path / "hurt"
    damaged.mkdir()
    intact = next(
        base.glob("kineto/*.json*") if (base / "kineto").is_dir() else base.rglob("*rank*0*.json*")
    )
    shutil.copy(intact, damaged / intact.name)
    (damaged / "cut.json").write_text("")
    status, document = run_sweep(run, base, "--against", damaged)
    assert (status, document["rows"][1]["losses"]) == (0, 1)
    asked_for = run("analyze", base, "sweep", "--against", damaged, "--on-loss", "error", "-q")
    assert asked_for[0] == LossError.exit_status


def test_compare_and_sweep_take_the_same_option(folder: Path, run: Callable) -> None:
    one, other = folder / "gpt3-175b_1_00000", folder / "gpt3-175b_1_10000"
    status, out, _ = run("analyze", one, "compare", "sweep", "--against", other, "--json", "-q")
    assert (status, sorted(json.loads(out))) == (0, ["compare", "sweep"])
    assert registry.takes_runs(registry.analysis("sweep"))
    assert not registry.takes_runs(registry.analysis("compare"))
    plan = analysis_plan.plan_analyses(["sweep"], {}, {}, against=True)
    assert (plan.compares_two, plan.compares_runs, plan.compares_only_runs) == (False, True, True)
    with pytest.raises(UsageError):
        sweep(read_once(one), against=str(other))


def test_runs_are_read_one_after_the_other() -> None:
    order = []

    def read(name: str) -> Callable[[], ci.Trace]:
        def reads() -> ci.Trace:
            order.append(name)
            return small()

        return reads

    several = [runs.Run(name, read(name)) for name in "ab"]
    assert order == []
    result = sweep(small(), against=several)
    assert order == ["a", "b"]
    assert result.rows["run"].to_pylist() == ["job", "a", "b"]
    assert "left out" not in result.notes


def small(**meta: object) -> ci.Trace:
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 0, "s", 0)
    builder.nodes(
        kind=np.array([int(Kind.KERNEL)] * 2, np.uint8), name="gemm", rank=0, lane=lane,
        ts=np.array([0, 100]), dur=np.array([40, 60]),
    )  # fmt: skip
    return builder.finish().with_meta(**meta) if meta else builder.finish()


def test_a_host_alone() -> None:
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.THREAD, 7, "main")
    builder.nodes(
        kind=np.array([int(Kind.CPU_OP)], np.uint8), name="aten::mm", rank=0, lane=lane,
        ts=np.array([5]), dur=np.array([9]),
    )  # fmt: skip
    row = sweep(builder.finish()).rows.to_pylist()[0]
    assert (row["status"], row["window_ns"], row["busy_share"]) == ("partial", 9, None)
    assert "no GPU work" in row["reason"]


def test_runs_without_steps_or_anything() -> None:
    empty = TraceBuilder().finish()
    result = sweep(small(), against=[empty])
    first, second = result.rows.to_pylist()
    assert (first["status"], first["window_ns"], first["busy_ns"]) == ("partial", 160, 100.0)
    assert first["matmul_ns"] == 100.0
    assert "no training steps" in first["reason"]
    assert (second["status"], second["window_ns"]) == ("invalid", None)
    assert result.notes["left out"].startswith("figures of 1 runs: ")
    alone = sweep(empty)
    assert "empty" in alone.notes
    assert alone.rows["status"].to_pylist() == ["invalid"]
    for options in ({"by": "gpu"}, {"tokens": -1}, {"samples": -8}, {"ranks": "7"},
                    {"steps": "1"}, {"base": "x"}):  # fmt: skip
        with pytest.raises(UsageError):
            sweep(small(), **options)


def test_names() -> None:
    assert run_names.differing(["a_1_x", "a_2_x", "a_13_x"]) == ["1", "2", "13"]
    assert run_names.differing(["same"]) == ["same"]
    assert run_names.differing(["a", "a_b"]) == ["a", "b"]
    paths = ["/x/one/profile", "/x/two/profile", ""]
    assert run_names.distinct(["profile", "profile", "other"], paths) == [
        "one/profile", "two/profile", "other",
    ]  # fmt: skip
    assert run_names.distinct(["a", "a"], ["", ""]) == ["a", "a (2)"]
    assert run_names.distinct(["a", "a"], [".", "x/a.json"]) == ["a", "x/a.json"]
    parsed = run_names.charllm("results/mixtral-8x22b/mixtral-8x22b_2_01000/77_kineto")
    assert parsed == {"model": "mixtral-8x22b", "strategy": "EP8-TP2-PP2", "ep": 8, "tp": 2, "pp": 2,
                    "optimisation": "act"}  # fmt: skip
    assert run_names.charllm("results/run_7") == {}
    assert run_names.charllm("llama3-70b_5_00000")["strategy"] == "TP8-FSDP"


@pytest.mark.parametrize(
    ("groups", "sizes"),
    [
        ({"mesh_tp": 4, "mesh_dp_shard": 8, "mesh_dp_replicate": 2}, {"tp": 4, "dp": 16}),
        ({"TENSOR_MODEL_PARALLEL_GROUP": 8, "PIPELINE_MODEL_PARALLEL_GROUP": 4,
          "DATA_PARALLEL_GROUP": 2, "TENSOR_AND_DATA_PARALLEL_GROUP": 16}, {"tp": 8, "pp": 4, "dp": 2}),
        ({"EXPERT_MODEL_PARALLEL_GROUP": 8, "CONTEXT_PARALLEL_GROUP": 2}, {"ep": 8, "cp": 2}),
        ({"default_pg": 64}, {}),
        ({}, {}),
    ],
)  # fmt: skip
def test_sizes_of_process_groups(groups: dict[str, int], sizes: dict[str, int]) -> None:
    builder = TraceBuilder()
    for number, (text, size) in enumerate(groups.items()):
        builder.group(str(number), range(size), text, "nccl")
    assert parallelism.sizes(builder.finish()) == sizes
    assert parallelism.completed({"tp": 4, "pp": 2}, 32)["dp"] == 4
    assert "dp" not in parallelism.completed({"tp": 4}, 32)


def test_the_origin_does_not_matter(folder: Path) -> None:
    trace = read_once(folder / "gpt3-175b_1_00000")
    later = trace.with_meta(origin_ns=trace.meta.origin_ns + 10**15)
    row, shifted = (sweep(t).rows.to_pylist() for t in (trace, later))
    assert row == shifted


def test_analysis_contract(folder: Path) -> None:
    check_analysis(sweep, read_once(folder / "gpt3-175b_1_00000"))
    check_analysis(sweep, small())


REAL = [
    "pytorch/mi350x", "pytorch/mi250", "pytorch/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "pytorch/odd", "telemetry/nvidia_smi_real", "telemetry/amd_smi_real_8xmi300x",
    "rocprof/v3_json_mi350x",
]  # fmt: skip


@pytest.mark.slow
def test_real_runs_side_by_side(shared: Path) -> None:
    paths = [shared / name for name in REAL]
    result = ci.analyze(ci.read(paths[0]), "sweep", against=paths[1:])
    assert result.rows.num_rows == len(REAL)
    for path, row in zip(paths, result.rows.to_pylist(), strict=True):
        if row["status"] == "invalid":
            assert row["reason"], path
            continue
        assert row["window_ns"] > 0, path
        assert 0 <= (row["busy_share"] or 0) <= 1, path
    assert json.dumps(result.to_dict(), allow_nan=False)


def test_means_are_those_of_imbalance(tmp_path: Path) -> None:
    """The recorder samples the whole clock finely, amd-smi that of dies rarely."""
    made = tmp_path / "demo"
    make_demo(made, ranks=2, layers=2, steps=2)
    trace = ci.read(made)
    ci.write(trace, tmp_path / "demo.pftrace")
    for one in (trace, ci.read(tmp_path / "demo.pftrace")):
        row = sweep(one).rows.to_pylist()[0]
        by_gpu = ci.analyze(one, "imbalance", steps="each").rows.to_pylist()
        mean = statistics.fmean(gpu["gfxclk_mhz"] for gpu in by_gpu)
        assert row["gfxclk_mhz"] == pytest.approx(mean, rel=1e-3)
        assert row["peak_gfxclk_mhz"] > mean
        throttled = statistics.fmean(gpu["throttle_share"] for gpu in by_gpu)
        assert row["throttle_share"] == pytest.approx(throttled, rel=1e-2)


@pytest.mark.parametrize(("seconds", "mhz"), [(50, 2000), (95, 1000)])
def test_a_clock_is_of_the_finest_tool_with_nearly_all_samples(seconds: int, mhz: float) -> None:
    builder = TraceBuilder()
    for tool, ts, value in (
        ("amd-smi", np.arange(101) * 10**9, 2000.0),
        ("recorder", np.arange(seconds * 10) * 10**8, 1000.0),
    ):
        series = builder.series(-1, "gfx clock", "MHz", tool, device=0)
        builder.samples(series, ts, np.full(len(ts), value))
    trace = builder.finish()
    assert sweep(trace).rows["gfxclk_mhz"].to_pylist() == [pytest.approx(mhz)]
    assert ci.analyze(trace, "imbalance").rows["gfxclk_mhz"].to_pylist() == [pytest.approx(mhz)]


def test_unsampled_time_has_no_energy() -> None:
    """Two GPUs at 100 W for 19 of 20 s, and for all of 20 s but a gap of 1 s."""
    builder = TraceBuilder()
    held = [k for k in range(191) if not 100 < k < 110]
    for device, ticks in enumerate((range(191), [*held, *range(191, 201)])):
        at = np.array(ticks, np.int64) * 100_000_000
        series = builder.series(-1, "socket power", "W", "amd-smi", device=device)
        builder.samples(series, at, np.full(len(at), 100.0))
    row = sweep(builder.finish()).rows.to_pylist()[0]
    assert row["window_ns"] == 19 * 10**9
    assert row["power_known_share"] == pytest.approx(18 / 19)
    assert row["energy_j"] == pytest.approx(100 * (19 + 18))
    assert row["mean_power_w"] == pytest.approx(100)


def test_bytes_over_links_are_those_of_traffic(tmp_path: Path) -> None:
    folder = charllm(tmp_path / "one", 400)
    for gpu in range(2):
        for metric, step in (("pcie_tx_bytes", 2**29), ("nvlink_rx_throughput", 2**20 + gpu)):
            rows = [f"{EPOCH + 0.05 * k:.6f},{step * k % 2**32}" for k in range(40)]
            (folder / f"{metric}_{gpu}.csv").write_text("\n".join(rows) + "\n")
    trace = ci.read(folder)
    rows = sweep(trace, by="run,gpu").rows.to_pylist()
    assert [row["pcie_bytes"] for row in rows] == pytest.approx([2**29 * 39] * 2)
    assert [row["nvlink_bytes"] for row in rows] == pytest.approx(
        [(2**20 + gpu) * 1024 * 39 for gpu in range(2)]
    )
    by_link = ci.analyze(trace, "traffic", by="job").rows.to_pylist()
    row = sweep(trace).rows.to_pylist()[0]
    assert {row["pcie_bytes"], row["nvlink_bytes"]} == {one["bytes"] for one in by_link}
    assert "xgmi_bytes" not in row
