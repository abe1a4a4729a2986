"""The timeline: what ran in one step on every rank, few enough pieces, and none lost."""

import gpu_work
import numpy as np

import chopper_interop as ci
from chopper_interop.analyses.methods.timing import paths
from chopper_interop.annotate.work import kernel_categories
from chopper_interop.plots import style, timeline
from chopper_interop.schemas.kinds import Kind

TO_LMS = np.array(
    [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
)
TO_LAB = np.array(
    [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]
)


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


def test_the_path_and_the_gpus_have_legends_of_distinct_colours() -> None:
    trace = many(20)
    chart = timeline.step_timeline(ci.analyze(trace, "critical_path", by="piece"), trace)
    colours = [layer["encoding"]["color"] for layer in chart.to_dict()["layer"]]
    assert [colour["legend"]["title"] for colour in colours] == ["GPUs:", "critical path:"]
    assert set(colours[1]["scale"]["domain"]) <= set(paths.CLASSES)
    for names in (paths.CLASSES, kernel_categories.CATEGORIES):
        assert smallest_distance(style.colours(names)[1]) > 0.07


def test_no_colour_of_the_path_stands_for_other_work_below_it() -> None:
    both = {"copy", "comm", "communication"}  # the same on the path and on GPUs
    of_path = style.colours(name for name in paths.CLASSES if name not in both)[1]
    of_work = style.colours(name for name in kernel_categories.CATEGORIES if name not in both)[1]
    assert min(smallest_distance([one, other]) for one in of_path for other in of_work) > 0.06


def smallest_distance(colours: list[str]) -> float:
    """Smallest distance between two colours in OKLab, where 0.02 is just visible (Björn Ottosson, 2020)."""
    srgb = np.array([list(bytes.fromhex(colour[1:])) for colour in colours]) / 255
    linear = np.where(srgb > 0.04045, ((srgb + 0.055) / 1.055) ** 2.4, srgb / 12.92)
    lab = np.cbrt(linear @ TO_LMS.T) @ TO_LAB.T
    apart = np.linalg.norm(lab[:, None] - lab[None], axis=2)
    return float(apart[np.triu_indices(len(lab), 1)].min())


def test_a_trace_without_work_has_no_timeline() -> None:
    assert timeline.timeline_of(gpu_work.trace([])) is None
