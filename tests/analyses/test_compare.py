"""Two jobs side by side against plain loops, the sample job and real jobs of two vendors."""

import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_once import read_once
from slow import slow_from

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.analyses.compare import compare
from chopper_interop.arrays import name_stems
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import GPU_WORK, Kind, LaneKind
from chopper_interop.testing import check_analysis

WORK = st.lists(
    st.tuples(
        st.sampled_from(GPU_WORK),
        st.sampled_from("abc"),
        st.integers(0, 1),
        st.integers(0, 40),
        st.integers(0, 9),
    ),
    max_size=16,
)


def job(work: list[tuple]) -> ci.Trace:
    builder = TraceBuilder()
    for name, rank in {w[1:3]: 0 for w in work}:
        work_of_rank = [w for w in work if w[1:3] == (name, rank)]
        builder.nodes(
            kind=np.array([int(w[0]) for w in work_of_rank], np.uint8),
            name=name,
            rank=rank,
            lane=builder.lane(rank, LaneKind.STREAM, 0, "s", 0),
            ts=np.array([w[3] for w in work_of_rank]),
            dur=np.array([w[4] for w in work_of_rank]),
        )
    return builder.finish()


def lower_median(values: list) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def error_of_median(values: list) -> float:
    middle = lower_median(values)
    mad = lower_median([abs(v - middle) for v in values])
    return math.sqrt(math.pi / 2) * 1.4826 * mad / math.sqrt(len(values))


@given(WORK, WORK)
def test_against_plain_loops(here: list, there: list) -> None:
    result = compare(job(here), against=job(there), by="kernel")
    rows = {row["kernel"]: row for row in result.rows.to_pylist()}
    assert sorted(rows) == sorted({w[1] for w in here + there})
    units = [max(len({w[2] for w in work}), 1) for work in (here, there)]
    for name, row in rows.items():
        a, b = ([w[4] for w in work if w[1] == name] for work in (here, there))
        assert row["status"] == ("both" if a and b else "new" if a else "gone")
        assert (row["count"], row["count_against"]) == (len(a), len(b))
        assert (row["total_ns"], row["total_against_ns"]) == (sum(a), sum(b))
        assert row["delta_ns"] == sum(a) / units[0] - sum(b) / units[1]
        ratio = (sum(a) / units[0]) / (sum(b) / units[1]) if a and sum(b) else None
        assert row["ratio"] == ratio
        assert row["median_ns"] == (lower_median(a) if a else None)
        assert row["median_against_ns"] == (lower_median(b) if b else None)
        by_unit = len(a) / units[0], len(b) / units[1]
        if min(len(a), len(b)) < 5 or abs(by_unit[0] - by_unit[1]) > 0.1 * by_unit[1]:
            assert (row["is_significant"], row["median_uncertainty_ns"]) == (None, None)
            continue
        resolution = sum(
            1000 if not any(w[4] % 1000 for w in work) else 1 for work in (here, there)
        )
        bound = 3 * math.hypot(error_of_median(a), error_of_median(b)) + resolution / 2
        assert row["median_uncertainty_ns"] == pytest.approx(bound)
        assert row["is_significant"] == (abs(lower_median(a) - lower_median(b)) > bound)
    closes(result)
    for work, suffix, n in ((here, "", units[0]), (there, "_against", units[1])):
        busy = {(w[2], m) for w in work for m in range(w[3], w[3] + w[4])}
        compute = {
            (w[2], m)
            for w in work
            if w[0] in (Kind.KERNEL, Kind.MEMSET)
            for m in range(w[3], w[3] + w[4])
        }
        comm = {(w[2], m) for w in work if w[0] == Kind.COMM for m in range(w[3], w[3] + w[4])}
        summary = result.summary
        assert summary[f"busy{suffix}_ns"] == (len(busy) / n if work else None)
        assert summary[f"exposed_comm{suffix}_ns"] == (len(comm - compute) / n if work else None)


def closes(result: ci.result.Result) -> None:
    """The rows' differences add up to that of all GPU time."""
    rows = result.rows.to_pylist()
    summary = result.summary
    assert sum(r["delta_ns"] for r in rows) == pytest.approx(summary["delta_ns"], abs=1e-3)
    for suffix in ("", "_against"):
        total = sum(r[f"unit{suffix}_ns"] for r in rows)
        assert total == pytest.approx(summary[f"gpu{suffix}_ns"])


def truth_by_kernel(folder: Path, trace: ci.Trace) -> dict[str, list[int]]:
    """Durations of each kernel in truth.json, with names of the trace by correlation."""
    frame = trace.to_pandas()
    gpu = frame[frame.kind.isin(["kernel", "comm"])]
    names = dict(zip(zip(gpu["rank"], gpu.correlation, strict=True), gpu.name, strict=True))
    result = defaultdict(list)
    truth = json.loads((folder / "truth.json").read_text())["kernels"]
    for rank, correlation, dur in zip(
        truth["rank"], truth["correlation"], truth["dur_ns"], strict=True
    ):
        result[names[rank, correlation]].append(dur)
    return result


OTHERS = (
    {"peak_scale": 0.9},
    {"seed": 7},
    {"straggler": 0, "straggler_slowdown": 1.2},
    {"ranks": 4, "steps": 3},
)


@pytest.mark.parametrize("changes", slow_from(OTHERS, 1), ids=str)
def test_the_sample_job_against_another(tmp_path: Path, changes: dict) -> None:
    same = {
        "ranks": 2, "layers": 2, "steps": 2, "seed": 3, "sequence": 512, "straggler": -1,
        "telemetry": False, "counter_steps": 0,
    }  # fmt: skip
    folders = [make_demo(tmp_path / "a", **same), make_demo(tmp_path / "b", **(same | changes))]
    base, changed = (ci.read(folder) for folder in folders)
    result = compare(changed, against=base, by="class,kernel")
    truths = [truth_by_kernel(f, t) for f, t in zip(folders, (base, changed), strict=True)]
    units = 4, changes.get("ranks", 2) * changes.get("steps", 2)
    rows = {r["kernel"]: r for r in result.rows.to_pylist() if r["kernel"][:3] != "Mem"}
    assert set(rows) == set(truths[0]) == set(truths[1])
    for name, row in rows.items():
        before, after = (truth[name] for truth in truths)
        assert row["delta_ns"] == sum(after) / units[1] - sum(before) / units[0]
        assert row["median_delta_ns"] == lower_median(after) - lower_median(before)
    closes(result)
    from_traces = compare(changed, against=base)
    closes(from_traces)
    assert from_traces.summary["delta_ns"] == pytest.approx(result.summary["delta_ns"])
    assert {r["status"] for r in from_traces.rows.to_pylist()} == {"both"}
    step = [
        np.mean(json.loads((f / "truth.json").read_text())["measured_step_ns"]) for f in folders
    ]
    assert from_traces.summary["step_against_ns"] == step[0]
    assert from_traces.summary["step_ns"] == step[1]
    if "peak_scale" in changes:
        gemms = [r for name, r in rows.items() if name.startswith("Cijk")]
        assert all(r["ratio"] > 1.03 for r in gemms)
        assert any(r["is_significant"] for r in gemms)


def test_a_job_against_itself(demo: Path) -> None:
    trace = read_once(demo)
    for by in ("phase,layer,operation,class", "kernel", "rank,iteration", "job", "stream"):
        result = compare(trace, against=trace, by=by)
        for row in result.rows.to_pylist():
            assert (row["status"], row["delta_ns"], row["median_delta_ns"]) == ("both", 0, 0)
            assert not row["is_significant"]
        summary = result.summary
        assert summary["matched_share"] == summary["matched_against_share"] == 1
        for name, figure in summary.items():
            if f"{name[:-3]}_against_ns" in summary:
                assert figure == summary[f"{name[:-3]}_against_ns"]


def test_the_contract_of_analyses(demo: Path) -> None:
    trace = read_once(demo)
    check_analysis(compare, trace)

    def with_itself(
        trace: ci.Trace, *, by: str = "phase,layer,operation,class"
    ) -> ci.result.Result:
        return compare(trace, against=trace, by=by)

    check_analysis(with_itself, trace)
    assert registry.chosen_options(compare, {"against": trace, "by": "kernel"})["against"] is trace


def test_a_grain_named_twice_counts_once(demo: Path) -> None:
    trace = read_once(demo / "kineto")
    twice = compare(trace, against=trace, by="class,class,operation", names="stem")
    assert twice.rows == compare(trace, against=trace, by="class,operation", names="stem").rows


def test_categories_follow_from_names(demo: Path) -> None:
    trace = read_once(demo)
    result = compare(trace, against=trace, by="category")
    assert {"matmul", "attention", "all_gather"} <= set(result.rows["category"].to_pylist())
    assert not any("category" in note for note in result.notes.values())


def test_without_a_second_job(demo: Path) -> None:
    result = compare(read_once(demo))
    assert result.rows.num_rows == 0
    assert "--against" in result.notes["no rows"]


def test_a_grain_that_is_left_out_says_who_has_no_values_of_it(demo: Path, shared: Path) -> None:
    trace = read_once(demo / "kineto")
    without = read_once(shared / "pytorch/cuda_sync_a100/event_sync_multi_stream.json.gz")
    assert "neither job" in compare(without, against=without, by="layer").notes["rows"]
    assert "compared with" in compare(trace, against=without, by="layer").notes["rows"]
    assert "this job" in compare(without, against=trace, by="layer").notes["rows"]


def test_unknown_words_are_refused(demo: Path) -> None:
    trace = read_once(demo)
    for options in ({"by": "color"}, {"names": "odd"}, {"steps": "99"}, {"against_steps": "99"},
                    {"ranks": "7"}, {"against": "other/"}):  # fmt: skip
        with pytest.raises(UsageError):
            compare(trace, **({"against": trace} | options))


def test_steps_of_both(demo: Path) -> None:
    trace = read_once(demo)
    result = compare(trace, against=trace, by="class", steps="11", against_steps="10")
    assert result.summary["units"] == result.summary["units_against"] == 2
    closes(result)


@pytest.mark.parametrize(
    "name", ["Qwen_Qwen1.5-0.5B-Chat__1016005", "gaunernst_bert-small-uncased__1016001", "Falconsai_nsfw_image_detection__1016002"]
)  # fmt: skip
def test_one_model_on_two_vendors(shared: Path, name: str) -> None:
    amd, nvidia = (
        read_once(shared / f"pytorch/{gpu}/{name}.json.gz") for gpu in ("mi300x", "h100")
    )
    result = compare(amd, against=nvidia)
    assert {"operation", "phase"} <= set(result.rows.column_names)
    assert min(result.summary["matched_share"], result.summary["matched_against_share"]) > 0.98
    closes(result)
    kernels = compare(amd, against=nvidia, by="kernel")
    assert kernels.summary["matched_share"] < 0.5  # libraries of vendors have kernels of their own
    closes(kernels)


def test_a_job_without_operations_is_matched_by_kernels(shared: Path) -> None:
    trace = read_once(shared / "rocprof/rocprof_compute_pmc/omp_MI300A")
    result = compare(trace, against=trace)
    assert "kernel" in result.rows.column_names
    assert "operation" not in result.rows.column_names
    assert "operation" in result.notes["rows"]


def test_stems() -> None:
    names = {
        "void at::native::vectorized_elementwise_kernel<4, F<float> >(int, F)": "at::native::vectorized_elementwise_kernel",
        "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI16x16x16x1_SN": "Cijk_Ailk_Bljk_BBS_BH",
        "triton_poi_fused_add_3": "triton_poi_fused_add",
        "(anonymous namespace)::f(int)": "anonymous::f",
        "Memcpy DtoD (Device -> Device)": "Memcpy DtoD",
        "<odd>": "<odd>",
        "matmul.kd": "matmul",
    }
    assert name_stems.kernel_stems(pa.array(names)).to_pylist() == list(names.values())
    assert name_stems.kernel_stems(pa.array([None, ""], pa.string())).to_pylist() == [None, ""]
