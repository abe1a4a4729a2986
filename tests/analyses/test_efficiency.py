"""Throughput and efficiency: tokens, time, energy and FLOPs against what is true of the demo."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from kineto_files import events_of
from read_once import read_once
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.efficiency import efficiency
from chopper_interop.analyses.methods.communication import job_layout
from chopper_interop.arrays import arrow
from chopper_interop.build import TraceBuilder
from chopper_interop.commands import console_tables
from chopper_interop.demo import make_demo
from chopper_interop.demo.clock import TICK_NS
from chopper_interop.demo.folder import simulate_job
from chopper_interop.demo.parameters import DemoParameters
from chopper_interop.errors import NoSuchDefinitionsError, ReadError, UsageError
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import ORDER
from chopper_interop.testing import check_analysis

JOBS = {
    "one": {"ranks": 1, "layers": 1, "steps": 2, "batch": 3, "sequence": 512},
    "pipeline alone": {
        "ranks": 2, "layers": 2, "steps": 2, "pipeline": 2, "microbatches": 2, "sequence": 1024,
    },
    "fsdp": {"ranks": 2, "layers": 2, "steps": 3, "batch": 1, "sequence": 2048},
    "pipeline": {"ranks": 4, "layers": 2, "steps": 2, "pipeline": 2, "microbatches": 3},
}  # fmt: skip


@pytest.fixture(scope="module", params=slow_from([*JOBS], 2))
def job(request, tmp_path_factory) -> tuple[ci.Trace, dict, DemoParameters]:
    facts = JOBS[request.param]
    folder = make_demo(tmp_path_factory.mktemp("job") / "demo", counter_steps=1, **facts)
    truth = json.loads((folder / "truth.json").read_text())
    return ci.read(folder), truth, DemoParameters(**facts)


def batch(p: DemoParameters) -> int:
    """Sequences of a step of the job."""
    return p.batch * (p.ranks // p.pipeline * p.microbatches if p.pipeline else p.ranks)


def test_tokens_samples_and_times_of_steps(job) -> None:
    trace, truth, p = job
    rows = ci.analyze(trace, "efficiency", by="iteration").rows.to_pylist()
    assert [row["step_ns"] for row in rows] == truth["measured_step_ns"]
    for row in rows:
        assert row["samples"] == batch(p)
        assert row["tokens"] == batch(p) * p.sequence
        assert row["tokens_per_s"] == pytest.approx(row["tokens"] / (row["time_ns"] * 1e-9))
        assert row["tokens_per_s_per_gpu"] == pytest.approx(row["tokens_per_s"] / p.ranks)
        assert row["samples_per_s"] == pytest.approx(row["samples"] / (row["time_ns"] * 1e-9))
        assert row["time_ns"] == row["step_ns"]
        assert row["gpus"] == p.ranks
    result = ci.analyze(trace, "efficiency")
    (job_row,) = result.rows.to_pylist()
    assert job_row["tokens"] == sum(row["tokens"] for row in rows)
    assert job_row["steps"] == len(rows) == p.steps
    clocks = truth["clocks"]
    assert job_row["time_ns"] == clocks["window_end_ns"] - clocks["window_start_ns"]
    assert result.summary["tokens_per_s"] == job_row["tokens_per_s"]
    assert "aten::embedding" in result.notes["tokens_from"]


def test_energy_and_its_rates(job) -> None:
    trace, _, p = job
    simulated = simulate_job(p)
    exact = simulated.clock
    (row,) = ci.analyze(trace, "efficiency").rows.to_pylist()
    if p.pipeline and row["gpus_without_power"]:
        assert row["energy_j"] is None
        return
    start, end = (simulated.timeline.mark_ns[:, i, j] for i, j in ((0, 0), (-1, -1)))
    joules = 0.0
    for gpu in range(p.ranks):
        total = np.append(0, np.cumsum(exact.power_w[gpu])) * TICK_NS * 1e-9
        ticks = exact.origin_ns[gpu] + np.arange(len(total)) * TICK_NS
        joules += np.interp(end.max(), ticks, total) - np.interp(start.min(), ticks, total)
    late = 10 * TICK_NS * 1e-9 * 800 * p.ranks  # shown power is filtered: some ticks late
    assert abs(row["energy_j"] - joules) < late
    seconds = row["time_ns"] * 1e-9
    assert row["power_w"] == pytest.approx(row["energy_j"] / seconds)
    assert row["j_per_token"] * row["tokens"] == pytest.approx(row["energy_j"])
    assert row["j_per_sample"] * row["samples"] == pytest.approx(row["energy_j"])
    assert row["tokens_per_j"] == pytest.approx(1 / row["j_per_token"])
    assert row["tokens_per_s_per_w"] == pytest.approx(row["tokens_per_j"])
    per_s = row["samples"] / seconds
    assert row["samples_per_s_per_mj"] == pytest.approx(per_s / (row["energy_j"] / 1e6))
    assert row["power_known_share"] == pytest.approx(1)


def products(p: DemoParameters) -> float:
    """FLOPs of a step's matrix products and attention, by the sizes of the model.

    Of attention a mask leaves the half: two products forwards, and five in its backward pass.
    """
    d, kv, ffn, words = 4096, 1024, 14336, 32000
    weights = p.layers * (2 * d * d + 2 * d * kv + 3 * d * ffn) + d * words
    attention = p.layers * (2 + 5) * p.sequence * d  # a token
    return batch(p) * p.sequence * (6 * weights + attention)


def test_flops_against_the_model(job) -> None:
    trace, _, p = job
    (row,) = ci.analyze(trace, "efficiency").rows.to_pylist()
    expected = products(p) * p.steps
    assert row["model_flops"] == pytest.approx(expected, rel=0.005)
    assert row["computed_flops"] == row["model_flops"]
    flops = trace.to_pandas().query("kind == 'kernel'")["flops"].sum()
    assert row["model_flops"] == pytest.approx(flops)
    rate = row["model_flops"] / (row["time_ns"] * 1e-9)
    assert row["mfu_share"] == pytest.approx(rate / (p.ranks * 1307.4432e12), rel=1e-6)
    assert row["hfu_share"] == row["mfu_share"]
    assert row["tflop_per_s_per_gpu"] == pytest.approx(rate / p.ranks / 1e12)
    (row,) = ci.analyze(trace, "efficiency", peak_tflops=500.0).rows.to_pylist()
    assert row["mfu_share"] == pytest.approx(rate / (p.ranks * 500e12))
    assert "1307.4" in ci.analyze(trace, "efficiency").notes["peak"]


def test_options_override_shapes(job) -> None:
    trace, _, p = job
    result = ci.analyze(trace, "efficiency", tokens=1000, samples=10, by="iteration")
    assert result.rows["tokens"].to_pylist() == [1000] * p.steps
    assert result.rows["samples"].to_pylist() == [10] * p.steps
    assert result.summary["tokens_from"] == "tokens=1000 of a step of the job"
    if p.ranks > 1:
        part = ci.analyze(trace, "efficiency", tokens=1000, ranks="0")
        assert part.rows["tokens"].to_pylist() == [round(1000 * p.steps / p.ranks)]
        assert f"1 of {p.ranks} ranks" in part.notes["ranks"]
        by_shapes = ci.analyze(trace, "efficiency", ranks="0").rows["tokens"].to_pylist()
        assert by_shapes == [batch(p) * p.sequence * p.steps // p.ranks]
    for bad in ({"tokens": -1}, {"samples": -5}, {"by": "rank"}, {"peak_tflops": -1.0}):
        with pytest.raises(UsageError):
            ci.analyze(trace, "efficiency", **bad)
    with pytest.raises(UsageError, match="no training step 99"):
        ci.analyze(trace, "efficiency", steps="99")
    with pytest.raises((UsageError, ReadError)):
        ci.analyze(trace, "efficiency", gpus="there is no such file.toml")
    with pytest.raises(NoSuchDefinitionsError):
        ci.analyze(trace, "efficiency", compat="hta")
    with pytest.raises(NoSuchDefinitionsError):
        ci.analyze(trace, "efficiency", compat="charllm", by="iteration")
    with pytest.raises(NoSuchDefinitionsError, match="run_samples"):  # samples are of a step
        ci.analyze(trace, "efficiency", compat="charllm", samples=8)
    with pytest.raises(UsageError, match="charllm"):
        ci.analyze(trace, "efficiency", run_samples=8)
    (row,) = ci.analyze(trace, "efficiency", compat="charllm", run_samples=256).rows.to_pylist()
    assert row["samples_per_s"] == pytest.approx(256e9 / row["execution_ns"])


def test_chosen_steps(job) -> None:
    trace, *_ = job
    each = ci.analyze(trace, "efficiency", by="iteration").rows.to_pylist()
    assert ci.analyze(trace, "efficiency", steps="each").rows.to_pylist() == each
    last = each[-1]["iteration"]
    (one,) = ci.analyze(trace, "efficiency", steps=str(last)).rows.to_pylist()
    assert one == each[-1]


def test_a_shift_in_time_changes_nothing(job) -> None:
    trace, *_ = job
    import pyarrow as pa

    def later(table, by):
        at = table.schema.get_field_index("ts")
        return table.set_column(at, table.schema.field(at), pa.array(trace_ts(table) + by))

    def trace_ts(table):
        return table["ts"].combine_chunks().to_numpy()

    from dataclasses import replace

    moved = replace(trace, nodes=later(trace.nodes, 10**12), samples=later(trace.samples, 10**12))
    here, there = (ci.analyze(t, "efficiency", by="iteration").to_pandas() for t in (trace, moved))
    numbers = here.select_dtypes("number").columns
    assert here[numbers].to_numpy() == pytest.approx(
        there[numbers].to_numpy(), rel=1e-9, nan_ok=True
    )


def small(kinds: str, *, clock: str = "") -> ci.Trace:
    """Two steps that launch their work late, with telemetry: the parts named by `kinds`."""
    builder = TraceBuilder()
    ms = 10**6
    for rank in range(2):
        if "h" in kinds:
            thread = builder.lane(rank, LaneKind.THREAD, 1, "t")
            builder.nodes(
                kind=int(Kind.ANNOTATION), name=["ProfilerStep#0", "ProfilerStep#1"], rank=rank,
                lane=thread, ts=np.array([0, 10]) * ms, dur=np.array([10, 10]) * ms,
            )  # fmt: skip
        if "g" in kinds:
            lane = builder.lane(rank, LaneKind.STREAM, 0, "s", rank)
            builder.nodes(
                kind=int(Kind.KERNEL), name="k", rank=rank, lane=lane,
                ts=np.array([5, 40]) * ms, dur=np.array([35, 35]) * ms,
            )  # fmt: skip
    if "p" in kinds:
        for gpu in range(2):
            series = builder.series(
                gpu if "g" in kinds else -1, "socket power", "W", "smi", device=gpu
            )
            builder.samples(series, np.arange(-5, 100) * ms, np.full(105, 100.0 * (gpu + 1)))
    trace = builder.finish()
    return trace.with_meta(clock=clock) if clock else trace


@pytest.mark.parametrize("kinds", ["", "h", "g", "p", "gp", "hg", "hgp", "hp"])
def test_any_combination_of_work_and_telemetry(kinds: str) -> None:
    trace = small(kinds)
    check_analysis(efficiency, trace)
    for by in ("job", "iteration"):
        result = ci.analyze(trace, "efficiency", by=by, tokens=1000)
        assert result.rows.num_rows == (1 if kinds else 0)
        for row in result.rows.to_pylist():
            assert row["tokens"] == 1000
            assert row["gpus"] == (2 if {"g", "p"} & set(kinds) else 0)
            watts = 300 if "p" in kinds else None
            assert row["power_w"] == (pytest.approx(watts) if watts else None)
            if watts:
                seconds = row["time_ns"] * 1e-9
                assert row["energy_j"] == pytest.approx(watts * seconds)
                assert row["tokens_per_j"] == pytest.approx(1000 / (watts * seconds))
    if kinds == "p":
        assert result.notes["window"].startswith("from telemetry alone")
        assert row["time_ns"] == 104 * 10**6


def test_a_program_without_a_clock_has_no_rates() -> None:
    result = ci.analyze(small("h", clock=ORDER), "efficiency", tokens=10)
    assert result.rows.num_rows == 0
    assert result.notes["window"].startswith("none")


def test_a_neighbour_that_neither_trace_nor_group_has_is_of_the_copy() -> None:
    builder = TraceBuilder()
    group = builder.group("0", [0])
    stream = builder.lane(0, LaneKind.STREAM, 7, "stream 7", 0)
    for kind, collective, ts in (
        (Kind.KERNEL, None, 0), (Kind.COMM, "send", 200), (Kind.COMM, "recv", 400),
    ):  # fmt: skip
        more = {"collective": collective, "peer": 1, "group": group} if collective else {}
        builder.nodes(
            kind=int(kind), name="k", rank=0, lane=stream, ts=np.array([ts]), dur=np.array([100]),
            **more,
        )  # fmt: skip
    trace = builder.finish()
    layout = job_layout.job_layout(trace)
    assert layout.replicas == (job_layout.Replica((0, 1), ((0,), (1,))),)
    assert layout.places([0, 1]).dp_rank.tolist() == [0, 0]
    assert "1 of 2 ranks" in ci.analyze(trace, "efficiency").notes["ranks"]


def test_a_step_whose_work_runs_late_does_not_count_the_time_of_the_one_before() -> None:
    trace = small("hgp")
    numbers = {"ProfilerStep#0": 0, "ProfilerStep#1": 1}
    steps = [numbers.get(name) for name in trace.nodes["name"].to_pylist()]
    late = np.flatnonzero(trace.array("kind") == Kind.KERNEL)
    for row in late:
        steps[row] = int(trace.array("ts")[row] >= 40 * 10**6)
    # a call in each step launches the kernel of that step
    trace = trace.with_columns(iteration=steps)
    calls = np.flatnonzero(trace.array("kind") == Kind.ANNOTATION)
    rank = trace.array("rank")
    pairs = [
        (call, row)
        for call in calls for row in late
        if rank[call] == rank[row] and steps[call] == steps[row]
    ]  # fmt: skip
    from chopper_interop.schemas.kinds import EdgeKind

    src, dst = np.array(pairs, np.int32).T
    trace = trace.with_edges(src, dst, EdgeKind.LAUNCH)
    rows = ci.analyze(trace, "efficiency", by="iteration", tokens=100).rows.to_pylist()
    ms = 10**6
    # the kernel of the first waited 5 ms behind its launch for work from before the recording, but for a launch's 0.1
    assert [row["step_ns"] for row in rows] == [35_100_000, 35 * ms]
    (job_row,) = ci.analyze(trace, "efficiency", tokens=100).rows.to_pylist()
    assert job_row["time_ns"] == 70_100_000
    assert job_row["step_ns"] == 35_050_000, "as many steps are in that time"
    assert job_row["energy_j"] == pytest.approx(sum(row["energy_j"] for row in rows))


def test_power_known_for_part_of_the_time() -> None:
    trace = small("hgp")
    ts = trace.array("ts", "samples")
    from dataclasses import replace

    from chopper_interop.arrays import arrow

    some = arrow.take(trace.samples, np.flatnonzero(ts >= 40 * 10**6))
    (row,) = ci.analyze(replace(trace, samples=some), "efficiency", tokens=100).rows.to_pylist()
    assert row["energy_j"] is None
    assert row["j_per_token"] is None
    assert row["power_w"] == pytest.approx(300)
    assert 0 < row["power_known_share"] < 1
    assert row["tokens_per_s_per_w"] == pytest.approx(row["tokens_per_s"] / 300)


REAL = {
    "h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (16 * 559, 16),
    "mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (16 * 559, 16),
    "h100/gaunernst_bert-small-uncased__1016001.json.gz": (141, 1),
    "h100/Falconsai_nsfw_image_detection__1016002.json.gz": (None, 4),
    "mi300x/resnet_act_checkpoint.json.gz": (None, 10),
    "ddp_resnet_4rank_amd/rank0.json.gz": (None, 256),
    "v100_2021/worker0.1623143089861.pt.trace.json.gz": (None, 32),
    "misc/rank0.json.gz": (None, None),  # several losses of one batch: not for shapes to tell
}
"""Tokens and samples of a step, by the shapes of embeddings and images in the files."""


class Shapes(msgspec.Struct, frozen=True, rename={"dims": "Input Dims"}):
    """Arguments of an operator."""

    dims: list | None = None


class Operator(msgspec.Struct):
    """An event, with what is compared of it."""

    name: str = ""
    args: Shapes = Shapes()


@pytest.mark.parametrize("name", slow_from([*REAL], 4))
def test_real_traces(name: str) -> None:
    path = real(f"pytorch/{name}")
    tokens, samples = REAL[name]
    result = ci.analyze(read_once(path), "efficiency", by="iteration")
    for row in result.rows.to_pylist():
        assert (row["tokens"], row["samples"]) == (tokens, samples)
        assert row["energy_j"] is None
        assert row["mfu_share"] is None or 0 < row["mfu_share"] < 1
    shapes = [e.args.dims for e in events_of(path, Operator) if e.name == "aten::embedding"]
    assert (tokens is not None) is any(shapes)


def test_recomputation_is_not_in_model_flops() -> None:
    path = real("pytorch/mi300x/resnet_act_checkpoint.json.gz")
    trace = read_once(path)
    (row,) = ci.analyze(trace, "efficiency").rows.to_pylist()
    kernels = trace.to_pandas().query("kind == 'kernel'")
    again = kernels[kernels["phase"] == "recompute"]["flops"].sum()
    assert row["computed_flops"] == pytest.approx(kernels["flops"].sum())
    assert row["computed_flops"] - row["model_flops"] == pytest.approx(again)
    assert row["hfu_share"] > row["mfu_share"] > 0
    assert 0.7 < row["matrix_flops_known_share"] < 0.8


def test_shares_of_the_peak_are_lower_bounds_where_flops_are_not_known(tmp_path: Path) -> None:
    trace = ci.read(make_demo(tmp_path / "demo", **JOBS["one"]))
    summary = ci.analyze(trace, "efficiency").summary
    flops = arrow.to_numpy(trace.nodes["flops"], -1)
    lacking = (trace.array("kind") == Kind.KERNEL) & (flops > 0.5 * flops.max())
    some = trace.with_columns(flops=arrow.array(flops, mask=lacking | (flops < 0)))
    result = ci.analyze(some, "efficiency")
    assert 0.5 < result.summary["matrix_flops_known_share"] < summary["matrix_flops_known_share"]
    assert result.summary["mfu_share"] < summary["mfu_share"]
    assert "lower bounds" in result.notes["mfu"]


def test_a_terminal_shows_the_main_columns(job) -> None:
    rows = ci.analyze(job[0], "efficiency").rows
    _, hidden = console_tables.make_table(rows, None, 120)
    assert hidden
    assert not {"tokens_per_s", "j_per_token", "tokens_per_s_per_w", "mfu_share"} & set(hidden)


def test_real_telemetry_alone() -> None:
    path = real("telemetry/nvidia_smi_real/8gpu_iso8601_0.24s.csv")
    (row,) = ci.analyze(read_once(path), "efficiency", tokens=10**6).rows.to_pylist()
    assert row["gpus"] == 8
    assert row["tokens_per_j"] == pytest.approx(1e6 / row["energy_j"])


def test_by_the_command(tmp_path: Path, run) -> None:
    facts = {"ranks": 1, "layers": 1, "steps": 2, "telemetry": False, "counter_steps": 0}
    folder = make_demo(tmp_path / "demo", **facts)
    status, out, _ = run("analyze", folder, "efficiency", "--json", "-O", "tokens=4096")
    assert status == 0
    assert json.loads(out)["efficiency"]["summary"]["tokens"] == 8192


def test_no_share_of_the_peak_where_most_matrix_time_is_unknown(shared: Path) -> None:
    result = ci.analyze(read_once(shared / "pytorch/misc/rank0.json.gz"), "efficiency")
    assert result.summary["mfu_share"] is None
    assert result.summary["hfu_share"] is None
    assert "are known" in result.notes["mfu"]


@pytest.mark.slow
def test_gpus_of_several_files_count_once(shared: Path) -> None:
    """Four loops of rocm-smi on the same GPUs, one within the other."""
    trace = read_once(shared / "telemetry/rocm_smi_real/sampled_loop_8xmi300x")
    charllm = ci.analyze(trace, "energy", compat="charllm").summary
    assert charllm["gpus"] == 8
    result = ci.analyze(trace, "efficiency", samples=10).summary
    assert result["gpus"] == 8
    assert charllm["energy_j"] == pytest.approx(result["energy_j"])
    assert result["energy_j"] < 4e6
