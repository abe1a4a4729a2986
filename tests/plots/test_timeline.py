"""The timeline: what ran in one step on every rank, few enough pieces, and none lost."""

import gpu_work
import numpy as np

import chopper_interop as ci
from chopper_interop.plots import timeline
from chopper_interop.schemas.kinds import Kind


def many(count: int) -> ci.Trace:
    return gpu_work.trace(
        [gpu_work.Work(Kind.KERNEL, 10 * i, 8, i % 2, name=f"k{i % 3}") for i in range(count)]
    )


def test_work_of_each_rank_is_in_its_row() -> None:
    work = [gpu_work.Work(Kind.KERNEL, 5, 10, 1, name="gemm"),
            gpu_work.Work(Kind.COMM, 8, 4, 0, collective="all_reduce")]  # fmt: skip
    shown = timeline.timeline_of(gpu_work.trace(work))
    rows = {shown.rows[row]: (start, dur) for row, start, dur in
            shown.slices[["row", "start_ns", "dur_ns"]].itertuples(index=False)}  # fmt: skip
    assert rows == {"rank 1 compute": (0, 10), "rank 0 communication": (3, 4)}


def test_short_neighbours_are_joined_and_counted() -> None:
    shown = timeline.timeline_of(many(500), limit=50)
    assert len(shown.slices) <= 50
    assert shown.merged == 500 - len(shown.slices)
    covered = shown.slices["dur_ns"].sum()
    assert covered >= 500 * 8
    starts = shown.slices["start_ns"].to_numpy()
    ends = starts + shown.slices["dur_ns"].to_numpy()
    assert (starts.min(), ends.max()) == (0, 4998)


def test_the_step_of_median_length_is_shown() -> None:
    work = [gpu_work.Work(Kind.KERNEL, 1000 * i, length, iteration=i, name="k")
            for i, length in enumerate((10, 500, 90))]  # fmt: skip
    assert timeline.timeline_of(gpu_work.trace(work)).title == "step 2"


def test_a_path_is_cut_to_the_step() -> None:
    trace = many(20)
    path = ci.analyze(trace, "critical_path", by="piece")
    shown = timeline.timeline_of(trace, path)
    first = shown.slices[shown.slices["row"] == 0]
    assert first["dur_ns"].sum() == shown.end_ns - shown.start_ns
    assert np.all(shown.slices["dur_ns"] >= 0)


def test_a_trace_without_work_has_no_timeline() -> None:
    assert timeline.timeline_of(gpu_work.trace([])) is None
