"""One meaning of a step in all analyses: on jobs by hand whose GPUs lag behind, and on real ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from read_once import read_once
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.arrays import arrow
from chopper_interop.build import TraceBuilder
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind

MS = 10**6


def lagging(
    steps: dict[int, tuple[int, int]],
    late_ms: tuple[int, ...] = (0,),
    first_ms: int | tuple[int, ...] = 1,
    sync_ns: int = 0,
    power_w: float = 0.0,
    lacks: tuple[int, int] = (-1, -1),
) -> ci.Trace:
    """Ranks whose hosts take 10 ms for a step, one after the other, and whose GPUs take longer and lag behind.

    `steps` has for each number when its range begins, and how long its one kernel takes; the first kernel
    begins `first_ms` behind its launch, of all ranks or each. Ranks begin `late_ms` later. A call of `sync_ns` waits for the GPU at the
    begin of the first. A GPU draws `power_w` all the time. A rank `lacks` a step.
    """
    builder, edges, row = TraceBuilder(), [], 0
    first = np.broadcast_to(first_ms, len(late_ms)).tolist()
    for rank, late in enumerate(late_ms):
        thread = builder.lane(rank, LaneKind.THREAD, 1, "t")
        stream = builder.lane(rank, LaneKind.STREAM, 7, "s", 0)
        free = 0
        if power_w:
            series = builder.series(rank, "socket power", "W", "smi", device=0)
            builder.samples(series, np.arange(0, 1000 * MS, MS), np.full(1000, power_w))
        if sync_ns:
            builder.nodes(
                kind=int(Kind.RUNTIME), name="hipDeviceSynchronize", rank=rank, lane=thread,
                ts=np.array([late * MS]), dur=sync_ns, iteration=np.array([min(steps)], np.int32),
            )  # fmt: skip
            row += 1
        for step, (at, kernel) in steps.items():
            if (rank, step) == lacks:
                continue
            start = at + late
            begin = max(free, start + 1 + (first[rank] if not free else 0))
            free = begin + kernel
            for kind, name, lane, ts, dur in (
                (Kind.ANNOTATION, f"ProfilerStep#{step}", thread, start, 10),
                (Kind.RUNTIME, "hipLaunchKernel", thread, start + 1, 1),
                (Kind.KERNEL, f"k{rank}", stream, begin, kernel),
            ):
                builder.nodes(
                    kind=int(kind), name=name, rank=rank, lane=lane, ts=np.array([ts * MS]),
                    dur=dur * MS, iteration=np.array([step], np.int32),
                )  # fmt: skip
            edges.append((row + 1, row + 2))
            row += 3
    src, dst = np.array(edges, np.int32).T
    builder.edges(src, dst, int(EdgeKind.LAUNCH))
    return builder.finish()


def times(steps: list[windows.Window]) -> list[tuple[int, int]]:
    """Starts and ends in milliseconds."""
    return [(w.start_ns // MS, w.end_ns // MS) for w in steps]


BEHIND = {3: (0, 30), 4: (10, 30), 5: (20, 30)}
"""Three steps of hosts of 10 ms, whose GPU takes 30 each and so ends them at 32, 62 and 92 ms."""


def test_steps_follow_each_other_where_gpus_lag_behind() -> None:
    trace = lagging(BEHIND, first_ms=0)
    assert times(windows.step_windows(trace)) == [(0, 31), (31, 61), (61, 91)]
    assert times(windows.job_windows(trace, "each")) == [(0, 31), (31, 61), (61, 91)]
    assert times(windows.job_windows(trace, "4-5")) == [(31, 61), (61, 91)]
    assert times(windows.marked_windows(trace)) == [(0, 10), (10, 20), (20, 30)]


def test_the_first_step_does_not_wait_for_work_of_before() -> None:
    """Its kernel begins 10 ms after it, 9 behind its launch: 9.9 and what a launch takes."""
    (first, *_) = windows.step_windows(lagging(BEHIND, first_ms=9))
    assert first.start_ns == 9_900_000
    assert windows.step_windows(lagging(BEHIND, first_ms=0))[0].start_ns == 0


def test_the_first_step_of_the_job_waits_as_long_as_all_ranks_do() -> None:
    trace = lagging(BEHIND, (0, 0, 0), (9, 0, 4))
    (first, *_) = windows.job_windows(trace, "each")
    assert first.start_ns == 0
    (first, *_) = windows.job_windows(trace, "each", "0,2")
    assert first.start_ns == 4_900_000


@pytest.mark.parametrize("late_ms", [(0,), (0, 0)])
def test_steps_take_as_long_where_the_recording_begins_with_them(late_ms: tuple[int, ...]) -> None:
    """The kernel of step 4 begins when that of step 3 has ended, 20 ms behind its launch."""
    trace = lagging(BEHIND, late_ms, first_ms=0)
    cut = lagging({step: BEHIND[step] for step in (4, 5)}, late_ms, first_ms=20)
    for by_rank in (windows.step_windows, lambda t: windows.job_windows(t, "each")):
        of_all = [w.end_ns - w.start_ns for w in by_rank(trace) if w.iteration > 3]
        of_cut = [w.end_ns - w.start_ns for w in by_rank(cut)]
        assert of_cut == pytest.approx(of_all, abs=0.1 * MS), "but for what a launch may take"


def test_a_job_as_a_whole_begins_with_its_first_range() -> None:
    """Work from before the recording is a part of it, which changes move as well."""
    trace = lagging(BEHIND, first_ms=9)
    assert ci.analyze(trace, "critical_path").summary["path_ns"] == 100 * MS
    (row,) = ci.analyze(trace, "what_if", change="scale=1").rows.to_pylist()[:1]
    assert row["before_ns"] == 100 * MS


def test_steps_without_launches_begin_with_their_ranges() -> None:
    """What lies between them is not known; with launches it is of the second."""
    trace = lagging({3: (0, 5), 4: (100, 5)}, first_ms=0)
    assert times(windows.step_windows(trace)) == [(0, 10), (10, 110)]
    trace = replace(trace, edges=trace.edges.slice(0, 0))
    assert times(windows.step_windows(trace)) == [(0, 10), (100, 110)]


def test_a_step_that_does_not_follow_begins_when_gpus_are_done() -> None:
    trace = lagging({3: (0, 90), 9: (50, 30)}, first_ms=0)
    assert times(windows.step_windows(trace)) == [(0, 91), (91, 121)]


def test_causes_of_idle_time_are_parts_of_it() -> None:
    """In step 4 of the job, from 51 on, the first rank works on step 5; its own step 4 had 14 ms of idle time."""
    trace = lagging({3: (0, 30), 4: (40, 5), 5: (50, 19)}, late_ms=(0, 20), first_ms=0)
    summary = ci.analyze(trace, "summary", steps="4").summary
    causes = {n: v for n, v in summary.items() if n.startswith("idle_") and n != "idle_share"}
    assert min(causes.values()) >= 0
    assert sum(causes.values()) == pytest.approx(summary["idle_share"])


def test_a_call_that_waits_for_an_idle_gpu_is_part_of_the_first_step() -> None:
    """On MI300X it took 37 µs before a step, and 37 again after it."""
    for sync_ns, start_ns in ((37_000, 0), (900_000, 900_000)):
        assert windows.step_windows(lagging(BEHIND, (0,), 0, sync_ns))[0].start_ns == start_ns


def test_a_step_of_the_job_ends_with_its_last_rank() -> None:
    trace = lagging(BEHIND, late_ms=(0, 5), first_ms=0)
    assert times(windows.step_windows(trace))[3:] == [(5, 36), (36, 66), (66, 96)]
    assert times(windows.job_windows(trace, "each")) == [(0, 36), (36, 66), (66, 96)]
    assert times(windows.job_windows(trace, "each", "1")) == [(5, 36), (36, 66), (66, 96)]
    assert times(windows.rank_windows(trace, "4", "1")) == [(36, 66)]


def test_clocks_of_ranks_may_be_decades_apart() -> None:
    """Of one rank times count from 1970, of the others from a boot: differences of all of them together do not fit 64 bits."""
    trace = lagging(BEHIND, late_ms=(1_700_000_000_000, *[0] * 7), first_ms=0)
    of_first, *of_others = np.reshape(times(windows.step_windows(trace)), (8, 3, 2))
    since = of_first - 1_700_000_000_000
    for of_rank in (since, *of_others):
        assert of_rank.tolist() == [[0, 31], [31, 61], [61, 91]]


def test_work_of_steps_that_no_range_marks_holds_nothing_up() -> None:
    """Without launches; the last kernel of rank 1 is of a step that is not marked."""
    trace = lagging(BEHIND, late_ms=(0, 0))
    step = trace.integers("iteration").copy()
    step[-1] = 9
    nodes = arrow.replace_column(trace.nodes, "iteration", step.astype(np.int32))
    trace = replace(trace, nodes=nodes, edges=trace.edges.slice(0, 0))
    assert ci.analyze(trace, "stragglers").summary["slow_rank"] == -1


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(
    ("sort", "call"), [(Kind.PYTHON, "wait"), (Kind.RUNTIME, "cudaEventQuery")]
)
def test_a_thread_that_only_waits_does_not_end_a_job_without_steps(
    *, alone: bool, sort: Kind, call: str
) -> None:
    # a thread that waits for the end of the profiler has its functions in the trace, and nothing else; NCCL's
    # watchdog has queries each 0.1 s: a trace of 820 ms that loads code for 508 could not save more than 18
    builder = TraceBuilder()
    waiting = builder.lane(0, LaneKind.THREAD, 2, "waits")
    kinds = [(waiting, sort, call, 0, 50 * MS)]
    if not alone:
        main = builder.lane(0, LaneKind.THREAD, 1, "main")
        kinds += [
            (main, Kind.PYTHON, "train", 5 * MS, 30 * MS),
            (main, Kind.RUNTIME, "hipMalloc", 10 * MS, 20 * MS),
        ]
    for lane, kind, name, ts, dur in kinds:
        builder.nodes(
            kind=int(kind), name=name, rank=0, lane=lane, ts=np.array([ts]), dur=np.array([dur])
        )
    trace = builder.finish()
    assert ci.analyze(trace, "critical_path").summary["path_ns"] == (50 * MS if alone else 30 * MS)
    if not alone:
        change = "scale=0 where kind == 'runtime'"
        assert (
            ci.analyze(trace, "what_if", change=change).rows.to_pylist()[-1]["gain_ns"] == 20 * MS
        )


def test_standard_changes_are_of_the_chosen_steps() -> None:
    """With a warm-up left out, communication that takes no time was to save less than one twice as fast.

    The warm-up gained more: so the steps behind it began sooner, and waited for their launches instead.
    """
    trace = lagging({0: (0, 100), 1: (10, 5), 2: (102, 22)}, first_ms=0)
    rows = ci.analyze(trace, "what_if", steps="2").rows.to_pylist()
    gain_ns = {row["change"]: row["gain_ns"] for row in rows}
    assert gain_ns["kernels 10 % faster"] == 2 * MS


def test_steps_that_were_not_recorded_count_in_none() -> None:
    steps = {3: (0, 30), 4: (10, 30), 9: (500, 30), 10: (510, 30)}
    trace = lagging(steps, first_ms=0, power_w=100.0)
    assert times(windows.step_windows(trace)) == [(0, 31), (31, 61), (500, 531), (531, 561)]
    (rated,) = ci.analyze(trace, "efficiency", samples=10).rows.to_pylist()
    (run,) = ci.analyze(trace, "sweep", samples=10).rows.to_pylist()
    assert rated["time_ns"] == run["window_ns"] == 122 * MS
    assert rated["samples_per_s"] == run["samples_per_s"] == pytest.approx(40 / 0.122)
    assert rated["energy_j"] == run["energy_j"] == pytest.approx(100 * 0.122)


def test_a_step_that_ends_before_the_one_before_takes_no_time() -> None:
    """A stream of each step: the kernel of the first ends behind all of the second."""
    trace = lagging({3: (0, 90), 4: (10, 30)}, first_ms=0)
    ts = trace.array("ts").copy()
    ts[-1] = 12 * MS
    trace = replace(trace, nodes=arrow.replace_column(trace.nodes, "ts", ts))
    assert times(windows.step_windows(trace)) == [(0, 91), (91, 91)]


def figures(trace: ci.Trace, steps: str = "", ranks: str = "") -> dict[str, float]:
    """Mean time of a step of the job as each analysis has it, in ns; those of ranks only where there is one."""

    def result(analysis: str, **options: object) -> ci.Result:
        return ci.analyze(trace, analysis, ranks=ranks, **options)

    def frame(analysis: str, **options: object):
        return result(analysis, **options).rows.to_pandas()

    each = steps or "each"
    kept = frame("replay", steps=steps).query("convention == 'gaps_kept'")
    unchanged = frame("what_if", steps=each, change="scale=1").query("change == 'as measured'")
    path = result("critical_path", steps=each)
    mean_ns = {
        "summary": result("summary", steps=steps).summary["step_ns"],
        "findings": result("findings", steps=steps).summary["step_ns"],
        "efficiency": frame("efficiency", steps=each)["step_ns"].mean(),
        "efficiency of the job": result("efficiency").summary["step_ns"] if not steps else None,
        "sweep": frame("sweep", steps=steps)["step_ns"][0],
        "compare": result("compare", against=trace, steps=steps).summary["step_ns"],
        "replay": kept["measured_ns"].mean(),
        "what_if": unchanged["before_ns"].mean(),
        "critical_path": path.summary["path_ns"] / path.rows["iteration"].to_pandas().nunique(),
    }
    if len(trace.ranks) == 1:
        mean_ns["temporal"] = frame("temporal", by="rank,iteration", steps=each)["span_ns"].mean()
    elif not ranks:
        mean_ns["stragglers"] = frame("stragglers", by="iteration", steps=steps)[
            "measured_ns"
        ].mean()
    return {name: value for name, value in mean_ns.items() if value is not None}


def test_analyses_agree_on_a_job_whose_gpus_lag_behind() -> None:
    for late in ((0,), (0, 5)):
        measured = figures(lagging(BEHIND, late_ms=late, first_ms=0))
        mean = (91 + late[-1]) / 3 * MS
        assert measured == pytest.approx(dict.fromkeys(measured, mean), abs=1), measured


def test_a_mean_is_rounded_the_same_way() -> None:
    """Two thirds of a nanosecond: the summary left them out."""
    trace = lagging(BEHIND, first_ms=0)
    dur = trace.array("dur").copy()
    dur[-1] += 1
    trace = replace(trace, nodes=arrow.replace_column(trace.nodes, "dur", dur))
    means = [ci.analyze(trace, name).summary["step_ns"] for name in ("summary", "efficiency")]
    assert means == [round((91 * MS + 1) / 3)] * 2 == [30_333_334] * 2


def test_analyses_agree_on_steps_of_some_ranks() -> None:
    """The first rank is 5 ms sooner; the summary had its begin and the last one's end with ``--ranks 1``, too."""
    trace = lagging(BEHIND, late_ms=(0, 5), first_ms=0)
    for ranks in ("0", "1"):
        measured = figures(trace, ranks=ranks)
        assert measured == pytest.approx(dict.fromkeys(measured, 91 / 3 * MS), abs=1), measured


def test_a_rank_without_steps_has_the_time_of_its_work() -> None:
    trace = lagging(BEHIND, late_ms=(0, 5), first_ms=0)
    iteration = np.where(trace.array("rank") == 0, trace.integers("iteration"), -1)
    trace = trace.with_columns(iteration=[i if i >= 0 else None for i in iteration.tolist()])
    assert ci.analyze(trace, "summary", ranks="1").summary["step_ns"] == 91 * MS
    assert ci.analyze(trace, "sweep", ranks="1").rows["window_ns"].to_pylist() == [91 * MS]
    for analysis in ("summary", "what_if", "sweep", "critical_path"):
        change = {"change": "scale=1"} if analysis == "what_if" else {}
        with pytest.raises(UsageError, match="has no training steps"):
            ci.analyze(trace, analysis, ranks="1", steps="4", **change)


def test_ranks_that_lack_a_step_are_not_idle_in_it() -> None:
    """Rank 1 was recorded in steps 3 and 4 alone: its GPU is busy but for 1 of 61 ms."""
    trace = lagging(BEHIND, late_ms=(0, 0), first_ms=0, lacks=(1, 5))
    idle = ci.analyze(trace, "summary").summary["idle_share"]
    assert idle == pytest.approx((1 + 1) / (91 + 61))
    assert ci.analyze(trace, "sweep").rows["busy_share"][0].as_py() == pytest.approx(1 - idle)


@pytest.mark.parametrize(
    ("name", "steps"),
    slow_from(
        [
            ("pytorch/dlrm_8rank_v100/kineto", ""),
            ("pytorch/v100_2021", ""),
            ("pytorch/torchrec_4rank_v100", "5-6"),  # the summary leaves step 4 out, a warm-up
            ("pytorch/mi300x/resnet_act_checkpoint.json.gz", ""),
            ("pytorch/misc/rank0.json.gz", "551-554"),
            ("pytorch/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", ""),
            # counted; set-up is in step 0
            ("pytorch/rtx2080ti_pairs/linear_kineto.json.gz", "1-39"),
        ],
        1,
    ),
)
def test_analyses_agree_on_the_time_of_a_step(name: str, steps: str) -> None:
    measured = figures(read_once(real(name)), steps)
    assert measured == pytest.approx(dict.fromkeys(measured, measured["summary"]), abs=1)


def test_times_of_ranks_are_those_of_temporal_and_replay() -> None:
    trace = read_once(real("pytorch/torchrec_4rank_v100"))
    spans = ci.analyze(trace, "temporal", by="rank,iteration", steps="each").rows.to_pandas()
    kept = ci.analyze(trace, "replay", by="rank").rows.to_pandas()
    kept = kept.query("convention == 'gaps_kept'").sort_values(["rank", "iteration"])
    assert spans["span_ns"].tolist() == kept["measured_ns"].tolist()
