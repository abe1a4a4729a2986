"""A warm-up counts the same way in all analyses, and each says what it does with it."""

from dataclasses import replace

import numpy as np
import pytest
from gpu_work import Work
from gpu_work import trace as gpu_trace
from read_once import read_once
from shared_data import real

import chopper_interop as ci
from chopper_interop.analyses.methods.activity import warm_up
from chopper_interop.plots.tables import summed
from chopper_interop.report import gather
from chopper_interop.schemas.kinds import Kind

STARTS = (0, 100_000, 101_000, 102_000)
WORK = [
    Work(Kind.KERNEL, start, 1000 if i else 100_000, iteration=i) for i, start in enumerate(STARTS)
]
STEPWISE = ("sweep", "compare", "efficiency", "summary", "findings")


def step_ns(analysis: str, steps: str = "") -> tuple[float, str]:
    trace = gpu_trace(WORK)
    against = {"sweep": [trace], "compare": trace}
    options = {"against": against[analysis]} if analysis in against else {}
    result = ci.analyze(trace, analysis, steps=steps, **options)
    figures = result.rows.to_pylist()[0] if analysis == "sweep" else result.summary
    return figures["step_ns"], result.notes.get(warm_up.NOTE, "")


@pytest.mark.parametrize("analysis", STEPWISE)
def test_what_rates_steps_leaves_out_the_same_steps_and_says_so(analysis: str) -> None:
    length, note = step_ns(analysis)
    assert length == 1000
    assert note.startswith("without step 0")
    assert step_ns(analysis, "each") == (25_750, "")


@pytest.mark.parametrize("analysis", ["critical_path", "stragglers", "idle", "launch", "temporal"])
def test_what_is_of_the_whole_recording_names_its_warm_up(analysis: str) -> None:
    trace = gpu_trace(WORK)
    note = "step 0 is a warm-up step: --steps 1-3 leaves it out"
    assert ci.analyze(trace, analysis).notes[warm_up.NOTE] == note
    assert warm_up.NOTE not in ci.analyze(trace, analysis, steps="1-3").notes
    assert warm_up.NOTE not in ci.analyze(gpu_trace(WORK[1:]), analysis).notes


@pytest.mark.parametrize(
    ("lengths", "first"),
    [([1300, 1000, 1000], [0]), ([1150, 1000, 1000], []), ([9000, 1000], []), ([900, 400, 100, 90], [0, 1]),
     ([300, 200, 100, 100], [0, 1]), ([1235, 468, 106, 154, 640, 327], []), ([542, 102, 440, 135], [])],
)  # fmt: skip
def test_first_steps_are_a_warm_up_if_they_exceed_others_by_more_than_these_vary(
    lengths, first
) -> None:
    ends = np.cumsum(lengths).tolist()
    work = [
        Work(Kind.KERNEL, end - length, length, iteration=step)
        for step, (end, length) in enumerate(zip(ends, lengths, strict=True))
    ]
    assert warm_up.steps(gpu_trace(work)) == first


def test_chosen_steps_count_whether_they_are_a_warm_up_or_not() -> None:
    rows = ci.analyze(gpu_trace(WORK), "findings", steps="0-3").rows.to_pylist()
    (row,) = (row for row in rows if row["code"] == "warm-up-steps")
    assert (
        "step 0 takes 100.0 times as long as the others, and counts in all other" in row["finding"]
    )
    lines = ci.analyze(gpu_trace(WORK), "summary", steps="0-3").rows.to_pylist()
    assert not any("(warm-up)" in line["text"] for line in lines)


def test_commands_of_findings_are_of_the_steps_that_count() -> None:
    trace = read_once(real("pytorch/torchrec_4rank_v100"))
    rows = ci.analyze(trace, "findings").rows.to_pylist()
    others = [row for row in rows if row["code"] != "warm-up-steps"]
    assert all(
        row["command"].endswith("--steps 5-6") or "5 <= iteration <= 6" in row["command"]
        for row in others
    )
    (late,) = (row for row in others if row["code"] == "late-rank-host")
    gain = ci.analyze(trace, "stragglers", steps="5-6").summary["rank_gain_ns"]
    assert late["saves_ns"] == pytest.approx(gain / 2, abs=1)


def test_commands_of_findings_are_of_the_chosen_steps_and_ranks() -> None:
    trace = read_once(real("pytorch/torchrec_4rank_v100"))
    rows = ci.analyze(trace, "findings", steps="4,6", ranks="1-2").rows.to_pylist()
    assert {row["code"] for row in rows} >= {"allocator", "host-work", "warm-up-steps"}
    for row in rows:
        steps = "5-6" if row["code"] == "warm-up-steps" else "4,6"
        ranks = "" if " stragglers" in row["command"] else " --ranks 1-2"  # compares with all
        assert row["command"].endswith(f"--steps {steps}{ranks}")
    summary = ci.analyze(trace, "summary", steps="4,6", ranks="1-2").rows.to_pylist()
    (more,) = (row["text"] for row in summary if row["topic"] == "more")
    assert more.startswith("chopper-analyze RUN/ findings --steps 4,6 --ranks 1-2:")


def test_gains_of_commands_are_savings_where_steps_lie_between_the_chosen_ones() -> None:
    trace = read_once(real("pytorch/torchrec_4rank_v100"))
    rows = ci.analyze(trace, "findings", steps="4,6").rows.to_pylist()
    (row,) = (row for row in rows if row["code"] == "exposed-collective")
    change = row["command"].partition("change=")[2].rstrip('"')
    assert "what_if --steps 4,6 " in row["command"]
    gains = ci.analyze(trace, "what_if", steps="4,6", change=change).rows["gain_ns"].to_pylist()
    assert row["saves_ns"] == pytest.approx(sum(gains) / 2, rel=0.005)


def test_a_warm_up_of_ranks_that_lack_later_steps() -> None:
    """Rank 1 has the steps 0 and 1 alone; those that are no warm-up are 1 to 3."""
    trace = gpu_trace([*WORK, *(replace(work, rank=1) for work in WORK[:2])])
    for analysis in STEPWISE:
        options = {"against": trace} if analysis == "compare" else {}
        result = ci.analyze(trace, analysis, ranks="1", **options)
        figures = result.rows.to_pylist()[0] if analysis == "sweep" else result.summary
        assert figures["step_ns"] == 1000, analysis


def test_charts_of_a_report_are_of_the_steps_of_its_tiles() -> None:
    job = gather.JobResults(gpu_trace(WORK))
    assert set(job.result("temporal", by="rank").rows["iteration"].to_pylist()) == {1, 2, 3}
    each = job.result("temporal", by="rank,iteration", steps="each")
    assert set(each.rows["iteration"].to_pylist()) == {0, 1, 2, 3}
    chosen = gather.JobResults(gpu_trace(WORK), common={"steps": "0-1"})
    assert set(chosen.result("temporal", by="rank").rows["iteration"].to_pylist()) == {0, 1}


def test_parts_of_several_steps_add_up_to_the_time_of_a_rank() -> None:
    result = ci.analyze(gpu_trace(WORK), "temporal", by="rank", steps="1-3")
    assert result.rows.num_rows == 3
    (row,) = summed(result, "rank").to_dict("records")
    assert (row["rank"], row["span_ns"], row["busy_ns"]) == (0, 3000, 3000)


@pytest.mark.parametrize("analysis", ["temporal", "idle", "taxes"])
def test_a_window_that_is_not_of_steps_says_how_to_measure_these(analysis: str) -> None:
    assert "--steps each" in ci.analyze(gpu_trace(WORK), analysis).notes["steps"]
    assert "steps" not in ci.analyze(gpu_trace(WORK), analysis, steps="each").notes
    stepless = gpu_trace([Work(Kind.KERNEL, 0, 10)])
    assert "steps" not in ci.analyze(stepless, analysis).notes
