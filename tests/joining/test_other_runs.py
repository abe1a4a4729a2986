"""Two runs are one only where names and order of their kernels match better than chance explains."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import rocprof
from kineto_files import BASE, call, kernel, write
from slow import slow_from

import chopper_interop as ci
from chopper_interop.demo import make_demo
from chopper_interop.errors import AmbiguousRunError

LIBRARY = [f"void at::native::kernel_{k}<float>(int)" for k in range(12)]
"""Kernels of a library that all models use."""


def model(seed: int, steps: int, own: int = 3) -> list[str]:
    """Names of the kernels of a model: its steps are equal, of the library's kernels and some own."""
    random = np.random.default_rng(seed)
    kernels = [*LIBRARY, *(f"fused_{seed}_{k}" for k in range(own))]
    return [kernels[k] for k in random.integers(0, len(kernels), 80)] * steps


def profile(path: Path, names: Sequence[str], seed: int = 0) -> Path:
    """As PyTorch's profiler writes it."""
    random = np.random.default_rng(seed)
    events = []
    at = 100.0
    for k, name in enumerate(names, 1):
        dur = int(random.integers(5, 90))
        events += [call("hipLaunchKernel", at - 6, 2, k), kernel(name, at, dur, k)]
        at += dur + int(random.integers(1, 30))
    return write(path, events, baseTimeNanoseconds=BASE, distributedInfo={"rank": 0})


def rocprof_run(
    folder: Path, names: Sequence[str], seed: int = 1, *, counted: bool, ns: int = 10**15
) -> Path:
    """A run as rocprofv3 writes it, from a time since boot on; one that counts has counters."""
    random = np.random.default_rng(seed)
    rows = []
    for k, name in enumerate(names):
        dur = int(random.integers(5, 90)) * 1000
        ns += int(random.integers(1, 30)) * 1000
        about = {"Kernel_Name": name, "Correlation_Id": 9000 + k, "Dispatch_Id": k + 1}
        about |= {"Start_Timestamp": ns, "End_Timestamp": ns + dur, "Process_Id": 7}
        columns = rocprof.COUNTERS if counted else rocprof.KERNELS
        rows.append(rocprof.row(columns, **about, **({"Counter_Value": 1.0} if counted else {})))
        ns += dur
    what = "counter_collection" if counted else "kernel_trace"
    path = folder / f"7_{what}.csv"
    path.parent.mkdir(exist_ok=True)
    rocprof.write(path, columns, *rows)
    return path


@pytest.mark.parametrize("seed", slow_from(range(3), 1))
@pytest.mark.parametrize("counted", [False, True])
def test_a_run_of_another_model_is_refused(
    tmp_path: Path, seed: int, run, *, counted: bool
) -> None:
    """A long run of another model contains all kernels of a short one in order, by chance."""
    profile(tmp_path / "trace.json", model(100 + seed, 2, own=0))
    rocprof_run(tmp_path / "roc", model(seed, 60, own=0), counted=counted)
    status, _, output = run("convert", tmp_path, "-o", tmp_path / "x.parquet")
    assert status == AmbiguousRunError.exit_status
    (line,) = [line for line in output.splitlines() if "error" in line]
    assert "trace.json are of two runs" in line
    assert "7_" in line


def test_a_kernel_trace_of_another_execution_is_no_counter_pass(tmp_path: Path) -> None:
    names = model(5, 3)
    profile(tmp_path / "trace.json", names)
    other = rocprof_run(tmp_path / "roc", names, counted=False)
    with pytest.raises(AmbiguousRunError, match="no counters"):
        ci.read(tmp_path)
    trace = ci.read(tmp_path, run=1)
    assert trace.nodes.num_rows == 2 * len(names)
    (left_out,) = [i for i in trace.meta.issues if i.code == "runs-left-out"]
    assert str(other.relative_to(tmp_path)) in left_out.example
    assert [Path(s.path).name for s in trace.meta.sources] == ["trace.json"]


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_counter_pass_of_the_same_program_is_joined(tmp_path: Path, steps: int) -> None:
    names = model(6, 2)
    profile(tmp_path / "trace.json", names)
    rocprof_run(tmp_path / "roc", model(6, steps), counted=True)
    trace = ci.read(tmp_path)
    assert trace.counters.num_rows == min(len(names), len(model(6, steps)))


def test_too_few_kernels_to_tell_are_joined_if_the_user_says_so(tmp_path: Path) -> None:
    """Two of three kernels prove nothing; all of them in order are the same program."""
    profile(tmp_path / "trace.json", LIBRARY[:3])
    path = rocprof_run(tmp_path / "roc", LIBRARY[:2], counted=True)
    with pytest.raises(AmbiguousRunError, match="by chance"):
        ci.read(tmp_path)
    assert ci.read(tmp_path, run="all").counters.num_rows == 2
    chosen = ci.read(tmp_path, run=1)
    assert chosen.counters.num_rows == 0
    alone = ci.read(tmp_path / "trace.json")
    assert (chosen.meta.facts, chosen.meta.devices) == (alone.meta.facts, alone.meta.devices)
    path.unlink()
    rocprof_run(tmp_path / "roc", LIBRARY[:3], counted=True)
    assert ci.read(tmp_path).counters.num_rows == 3


PHASES = "rocprof/v3_csv_two_counter_runs_gfx1151"
RUNS = [
    ("pytorch/ddp_resnet_4rank_amd/rank0.json.gz", "rocprof/v3_json_mi350x/908_results.json.gz"),
    ("pytorch/mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz", "rocprof/rpd_schema2_mi300x/mytrace.rpd.gz"),
    (f"{PHASES}/decode_kernel_trace.csv", f"{PHASES}/prefill_fetch_counter_collection.csv"),
    (f"{PHASES}/prefill_kernel_trace.csv", f"{PHASES}/decode_stall_counter_collection.csv"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("names", RUNS)
def test_recorded_runs_of_other_programs(shared: Path, names: tuple[str, str]) -> None:
    with pytest.raises(AmbiguousRunError, match="two runs"):
        ci.read(*(shared / name for name in names))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_passes_of_sample_jobs_are_joined(tmp_path: Path, seed: int) -> None:
    folder = make_demo(tmp_path / "job", ranks=2, layers=2, steps=2, recorder_hz=100, seed=seed)
    trace = ci.read(folder)
    assert trace.counters.num_rows
    assert "runs-left-out" not in {issue.code for issue in trace.meta.issues}


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("what", ["fetch", "stall"])
def test_recorded_passes_of_one_program(shared: Path, phase: str, what: str) -> None:
    folder = shared / PHASES
    files = (f"{phase}_kernel_trace.csv", f"{phase}_{what}_counter_collection.csv")
    assert ci.read(*(folder / name for name in files)).counters.num_rows
