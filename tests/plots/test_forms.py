"""Charts of tables with holes, of many rows, and of rows of one name."""

import json

import gpu_work
import pandas as pd
import pyarrow as pa
import pytest

import chopper_interop as ci
from chopper_interop import plots
from chopper_interop.plots import forms, style
from chopper_interop.plots.tables import labels, named
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind

pytest.importorskip("altair", reason="the extra report is not installed")


def values(chart: object) -> list[dict[str, object]]:
    specification = chart.to_dict()  # type: ignore[attr-defined]
    json.dumps(specification, allow_nan=False)
    return specification["datasets"][specification["data"]["name"]]


def path(**columns: list[object]) -> Result:
    return Result(
        "critical_path", pa.table({"class": ["compute", "host"], "dur_ns": [3, 1]} | columns)
    )


def test_work_without_an_operation_has_a_row() -> None:
    shown = values(plots.path_operations(path(operation=pa.array([None, "mm"], pa.string()))))
    assert {row["operation"] for row in shown} == {"(none)", "mm"}


def compared(**columns: list[object]) -> Result:
    """Work of two jobs, of two steps and of one, that is in each step as often; nothing says that it is noise."""
    count = len(columns["delta_ns"])
    rows = {
        "count": [4] * count,
        "count_against": [2] * count,
        "is_significant": pa.nulls(count, pa.bool_()),
    }
    return Result("compare", pa.table(rows | columns), {"units": 2, "units_against": 1})  # fmt: skip


def test_changed_work_is_named_with_its_place() -> None:
    """Ten bars were "aten::linear", "aten::linear #2", …"""
    result = compared(
        operation=["mm", "mm", None], phase=["forward", "backward", None],
        layer=pa.array([0, None, None], pa.int16()), delta_ns=[30, -20, 10],
    )  # fmt: skip
    shown = values(plots.changed_kernels(result))
    assert {row["work"] for row in shown} == {"mm · forward · layer 0", "mm · backward", "(none)"}


def test_work_that_differs_by_chance_is_not_drawn() -> None:
    """All 20 bars of two runs of the sample job were noise."""
    kernels = {"kernel": ["a", "b", "c", "d"], "delta_ns": [30, -20, 10, 5]}
    by_chance = {"is_significant": [False, True, False, None], "count": [4, 4, 8, 4]}
    shown = values(plots.changed_kernels(compared(**kernels, **by_chance)))
    assert {row["work"] for row in shown} == {"b", "c", "d"}  # c runs twice as often
    text = plots.changed_kernels(compared(kernel=["a"], delta_ns=[30], is_significant=[False]))
    assert text == "No work takes more or less time than in the other job by more than it varies."


def gains(*causes: str | None, slow_ranks: str | None = None) -> Result:
    count = len(causes)
    columns = dict.fromkeys(("gain_ns", "host_gain_ns", "delay_gain_ns"), [7_000_000] * count)
    rows = pa.table({"rank": range(count), "cause": pa.array(causes, pa.string())} | columns)
    return Result("stragglers", rows, {"slow_ranks": slow_ranks})


def test_only_ranks_that_are_slow_for_a_reason_cost_the_job_time() -> None:
    shown = values(plots.straggler_gains(gains(None, "host", None, "gpu")))
    drawn = {(row["rank"], row["part"]) for row in shown if row["value"]}
    assert drawn == {(1, "host"), (3, "GPU")}
    assert plots.straggler_gains(gains(None, None)).startswith("No rank holds up the others")
    assert "Ranks 0,1 hold up the others together" in plots.straggler_gains(
        gains(None, None, slow_ranks="0,1")
    )
    assert plots.straggler_gains(gains()) is None


def test_names_that_are_cut_show_where_they_differ() -> None:
    """Rows of all-gather and reduce-scatter of a layer were "c10d::…base_ · …" and the same with "#2"."""
    names = ["c10d::_allgather_base_", "c10d::_reduce_scatter_base_"]
    frame = pd.DataFrame({"operation": names, "phase": "communication", "kind": "reduce_scatter"})
    shown = named(frame, ["operation", "phase", "kind"])["name"]
    assert [text.split(" · ")[0] for text in shown] == ["_all…ase_", "_red…ase_"]
    assert shown.str.len().max() <= 34  # which a phone shows


def test_operations_are_ordered_by_their_time_in_all_classes() -> None:
    result = Result(
        "critical_path",
        pa.table({
            "class": ["compute", "compute", "host"], "dur_ns": [30, 20, 15],
            "operation": ["mm", "step", "step"],
        }),
    )  # fmt: skip
    shown = values(plots.path_operations(result))
    assert next(row["operation"] for row in sorted(shown, key=lambda row: row["row"])) == "step"


def test_points_without_a_group_are_drawn() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [1.0, float("nan")], "of": [None, "x"]})
    assert [row["of"] for row in values(forms.points(frame, ("a", "b"), "of", "text"))] == [
        "(none)"
    ]


def test_of_many_points_some_are_drawn_and_the_text_says_so() -> None:
    frame = pd.DataFrame({"a": range(5000), "b": range(5000), "of": "x"})
    chart = forms.points(frame, ("a", "b"), "of", "Points.")
    assert len(values(chart)) == forms.MAX_POINTS
    assert chart.description == "Points. 2,000 of 5,000 are drawn."


def test_nothing_to_draw_is_no_chart() -> None:
    empty = pd.DataFrame({"rank": [0], "idle": [0]})
    assert forms.stacked_bars(empty, "rank", {"idle": "idle"}, "ms", "") is None
    without_rows = Result("critical_path", pa.table({"class": pa.array([], pa.string())}))
    assert plots.path_operations(without_rows) is None
    assert plots.path_layers(without_rows) is None
    assert plots.idle_blame(Result("idle", pa.table({}), {"blame": []})) is None


def test_noise_is_not_drawn_in_all_colours() -> None:
    """Steps of 110.7 and 110.8 ms were dark blue and yellow; lines went from the bottom to the top."""
    frame = pd.DataFrame({"step": [0, 1], "rank": [0, 0], "ms": [110.7, 110.8], "of": "job"})
    colour = forms.heat_map(frame, ("step", "rank"), "ms", "").to_dict()["encoding"]["color"]
    height = forms.lines(frame, ("step", "ms"), "of", "", stepped=False).to_dict()["encoding"]["y"]
    for low, high in (colour["scale"]["domain"], height["scale"]["domain"]):
        assert (low + high) / 2 == pytest.approx(110.75)
        assert high - low == pytest.approx(0.05 * 110.8)
    apart = frame.assign(ms=[100.0, 150.0])
    colour = forms.heat_map(apart, ("step", "rank"), "ms", "").to_dict()["encoding"]["color"]
    assert colour["scale"]["domain"] == [100, 150]


def test_logarithmic_axes_have_a_line_for_each_power_of_ten() -> None:
    frame = pd.DataFrame({"a": [0.3, 200.0], "b": [1.0, 2.0], "of": "x"})
    encoding = forms.points(frame, ("a", "b"), "of", "", logarithmic=("a",)).to_dict()["encoding"]
    assert encoding["x"]["axis"]["values"] == [0.1, 1, 10, 100, 1000]
    assert "axis" not in encoding["y"]


def test_parts_of_the_time_end_at_100_percent() -> None:
    """The axis went on to 110, as parts that are rounded add up to 100.001."""
    row = {"rank": 0, "span_ns": 3, "compute_ns": 1, "overlap_ns": 0, "exposed_comm_ns": 1,
           "busy_ns": 2, "idle_ns": 1}  # fmt: skip
    result = Result("temporal", pa.table({name: [value] for name, value in row.items()}))
    assert plots.step_parts(result).to_dict()["encoding"]["x"]["scale"]["domain"] == [0, 100]


def test_shares_of_steps_are_not_added_up() -> None:
    """Without a warm-up a result has a row for each step: two steps throttled 50 % are not 100 %."""
    rows = {"rank": [0, 0], "iteration": [1, 2], "cause": ["PPT", "PPT"], "throttled_share": [0.4, 0.6]}  # fmt: skip
    assert [
        row["value"] for row in values(plots.throttle_causes(Result("throttling", pa.table(rows))))
    ] == [50]


def test_the_share_of_an_empty_queue_is_that_of_all_steps() -> None:
    """Bars of two steps were put end to end: 17 % for 9 %."""
    queues = [{"rank": 0, "empty_ns": ns, "span_ns": 100, "iteration": ns} for ns in (8, 10)]
    summary = {"queues": queues, "kernels": 2, "unlinked": 1}
    result = Result("launch", pa.table({"rank": [0]}), summary)
    assert [row["value"] for row in values(plots.empty_queues(result))] == [9]
    result = Result("launch", pa.table({"rank": [0]}), summary | {"unlinked": 2})
    assert (
        plots.empty_queues(result) is None
    )  # "the host is behind" was said of rocprof's kernels alone


def test_without_communication_there_is_no_chart_of_overlap() -> None:
    """A dot and a line at 0 % were a section of a job of one GPU."""
    columns = {"rank": [0, 0], "operation": ["mm", "add"], "overlap_share": [0.0, 0.0]}
    result = Result("overlap", pa.table(columns))
    assert plots.overlap_and_duration(result) is None
    assert plots.overlap_by_rank(result) is None


def test_gpus_of_no_rank_are_not_compared_as_one() -> None:
    """Telemetry alone had a map of one cell of the rank "null"."""
    columns = dict.fromkeys(("slowdown_factor", "gfxclk_ratio", "power_ratio"), (1.0, 1.1))
    rows = pa.table({"rank": pa.nulls(2, pa.int32())} | columns)
    assert plots.gpu_differences(Result("imbalance", rows)) is None


def test_one_cell_far_off_leaves_the_others_their_colours() -> None:
    frame = pd.DataFrame({"rank": range(20), "of": "mm", "%": [*range(-9, 10), 500]})
    chart = forms.heat_map(frame, ("rank", "of"), "%", "Slow.", middle=0.0)
    assert chart.to_dict()["encoding"]["color"]["scale"]["domain"] == pytest.approx(
        [-45.5, 0, 45.5], abs=5
    )
    assert chart.description.endswith("further off: 1.")


def test_a_part_without_a_legend_is_named_at_the_axis() -> None:
    """A green bar of what a rank costs did not say that it is its host."""
    axis = plots.straggler_gains(gains(None, "host")).to_dict()["encoding"]["x"]["title"]
    assert axis == "host: gain (ms)"


def test_categories_of_spreads_are_named_where_colours_do_not_tell_rows_apart() -> None:
    quantiles = (f"{q}_ns" for q in ("p5", "p25", "median", "p75", "p95"))
    columns = {name: [3, 2, 1] for name in ("total_ns", *quantiles)}
    names = {
        "operation": ["mm", "mm", "add"],
        "phase": ["forward"] * 3,
        "category": ["matmul", "fill", "elementwise"],
    }
    chart = plots.kernel_durations(Result("kernels", pa.table(names | columns))).to_dict()
    (shown,) = chart["datasets"].values()
    assert [row["operation"] for row in shown] == [
        "mm · forward · matmul",
        "mm · forward · fill",
        "add · forward",
    ]


def test_long_names_that_look_alike_stay_apart() -> None:
    names = ["k" * 50 + "a" * 50, "k" * 50 + "a" * 50 + "a"]
    assert named(pd.DataFrame({"kernel": names}), ["kernel"])["name"].nunique() == 2
    assert len(set(labels(pd.Series([*names, *names])))) == 2  # which were one row, or one colour


@pytest.mark.parametrize(("largest", "unit"), [(0, "ns"), (999, "ns"), (5e6, "ms"), (2e10, "s")])
def test_times_have_one_readable_unit(largest: float, unit: str) -> None:
    assert style.time_unit([0, largest])[1] == unit


def test_many_ranks_share_one_colour() -> None:
    assert style.are_many([f"rank {i}" for i in range(64)])
    assert not style.are_many([*style.COLOURS, "rank 0"])


def test_of_many_steps_evenly_spaced_ones_are_drawn() -> None:
    frame = pd.DataFrame({"step": range(20_000), "rank": 0, "ms": 1.0})
    chart = forms.heat_map(frame, ("step", "rank"), "ms", "Steps.")
    assert len(values(chart)) == forms.MAX_CELLS
    assert chart.description == "Steps. 6,000 of 20,000 are drawn (step)."


def test_values_left_of_a_logarithmic_axis_are_drawn_at_its_begin_and_told_as_they_are() -> None:
    """Short kernels next to collectives were said to take a thousandth of the longest, and their boxes were lines."""
    quantiles = {
        "p5": [0.001, 3],
        "p25": [0.003, 4],
        "median": [0.004, 5],
        "p75": [0.005, 6],
        "p95": [0.006, 9],
    }
    chart = forms.spreads(
        pd.DataFrame({"kernel": ["short", "long"]} | quantiles), "kernel", "{}", "ms", ""
    )
    specification = chart.to_dict()
    assert {row["p5"] for row in next(iter(specification["datasets"].values()))} == {0.001, 3}
    starts = {
        one["calculate"].rpartition(", ")[2] for one in specification["layer"][0]["transform"]
    }
    assert starts == {"0.003)"}, "the box begins where it does, the line to 5 % is cut"


def test_a_roofline_without_roofs_says_so() -> None:
    rates = {"kernel": ["mm"], "total_ns": [5], "class": ["compute"]} | {
        f"{name}{way}": [2.0]
        for name in ("intensity_flop_per_byte", "tflop_per_s")
        for way in ("", "_counted")
    }
    chart = plots.roofline(Result("kernels", pa.table(rates)))
    assert chart.description.endswith(
        "The roofs are not known, as no source names a GPU of known rates."
    )


def test_a_map_over_time_of_one_value_is_a_sentence() -> None:
    """The memory clock of the sample job was drawn in one colour."""
    frame = pd.DataFrame({"GPU": ["0", "1"], "from": [0.0, 0.0], "to": [1.0, 1.0], "MHz": 1300.0})
    assert forms.time_map(frame, "GPU", "MHz", "Clock.") == "Clock: 1,300 throughout."
    frame.loc[1, "MHz"] = 1200.0
    assert forms.time_map(frame, "GPU", "MHz", "Clock.").to_dict()["mark"]["type"] == "rect"


def test_a_job_without_training_steps_has_no_throughput_of_steps() -> None:
    trace = gpu_work.trace([gpu_work.Work(Kind.KERNEL, 0, 1_000)])
    result = ci.analyze(trace, "efficiency", by="iteration", tokens=1_000)
    assert result.rows["tokens_per_s"].to_pylist() == pytest.approx([1e9])
    assert plots.step_throughput(result) is None
