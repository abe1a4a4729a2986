"""One run recorded by PyTorch's profiler and by rocprof at once, and two separate runs."""

import json
from copy import copy
from pathlib import Path

import numpy as np
import pytest
import rocprof
from hypothesis import given
from hypothesis import strategies as st
from issue_counts import counts
from kineto_files import BASE, call, kernel, write
from read_once import read_once
from slow import slow_from

import chopper_interop as ci
from chopper_interop.build import TraceBuilder
from chopper_interop.clocks import match as clock_match
from chopper_interop.clocks import relations
from chopper_interop.clocks.line import Line, ProcessWork, nearest_pairs
from chopper_interop.clocks.pairs import pairs_by_correlation
from chopper_interop.errors import AmbiguousRunError, UsageError
from chopper_interop.joining.same_run import renumbered
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import BOOTTIME, ClockFit, Rank

BOOT = 123_456_789_012_345
"""Since boot, of the profile's base."""
NAMES = ("gemm", "relu", "softmax", "copy_kernel", "norm")


class Run:
    """Kernels of one process: names, starts since the base and durations, nanoseconds."""

    def __init__(self, seed: int, count: int = 60) -> None:
        random = np.random.default_rng(seed)
        self.names = [NAMES[k] for k in np.random.default_rng(1).integers(0, 5, count)]
        self.dur = random.integers(4_000, 90_000, count)
        gap = random.integers(1_000, 30_000, count)
        self.start = np.cumsum(self.dur + gap) - self.dur + 10_000

    def of_rank(self, random: np.random.Generator, share: float) -> "Run":
        """The same kernels on another rank: durations differ by `share`, starts by a microsecond."""
        other = copy(self)
        count = len(self.dur)
        other.dur = np.rint(self.dur * random.normal(1, share, count)).astype(np.int64)
        other.start = self.start + random.integers(-1000, 1001, count)
        return other

    def kineto(
        self, path: Path, *, ids: int = 1, pid: int = 100, rank: int = 0, ranks: int = 2
    ) -> Path:
        """As PyTorch's profiler writes it."""
        events = []
        for k, (name, start, dur) in enumerate(zip(self.names, self.start, self.dur, strict=True)):
            at = start / 1000
            events.append(call("hipLaunchKernel", at - 5, 2, k + ids, pid=pid))
            events.append(kernel(name, at, dur / 1000, k + ids))
        info = {"rank": rank, "world_size": ranks}
        return write(path, events, baseTimeNanoseconds=BASE, distributedInfo=info)

    def rocprof(
        self,
        folder: Path,
        *,
        ids: int = 5001,
        pid: int = 700,
        boot: int = BOOT,
        noise: int = 0,
        ppm: float = 0.0,
    ) -> Path:
        """As rocprofv3 writes it, with calls of HIP and HSA; two kernels more behind the rest."""
        random = np.random.default_rng(99)
        moved = self.start + np.rint(self.start * ppm / 1e6).astype(np.int64)
        moved = moved + boot + random.integers(-noise, noise + 1, len(moved))
        kernels, calls, counted = [], [], []
        late = [int(moved[-1] + 10**7 * k) for k in (1, 2)]
        starts = [*moved.tolist(), *late]
        for k, start in enumerate(starts):
            dur = int(self.dur[k % len(self.dur)])
            about = {
                "Kernel_Name": self.names[k % len(self.names)],
                "Correlation_Id": k + ids,
                "Dispatch_Id": k + 1,
                "Start_Timestamp": start,
                "End_Timestamp": start + dur,
                "Process_Id": pid,
                "Thread_Id": pid,
            }
            kernels.append(rocprof.row(rocprof.KERNELS, **about))
            value = float(1000 + k)
            counted.append(rocprof.row(rocprof.COUNTERS, **about, Counter_Value=value))
            for name, domain, before in (
                ("hipLaunchKernel", "HIP_RUNTIME_API_EXT", 5000),
                ("hsa_signal_store_screlease", "HSA_CORE_API", 3500),
            ):
                at = {"Start_Timestamp": start - before, "End_Timestamp": start - before + 900}
                calls.append(
                    rocprof.row(
                        rocprof.CALLS,
                        **{**about, **at, "Function": name, "Domain": domain},
                    )
                )
        rocprof.write(folder / f"{pid}_kernel_trace.csv", rocprof.KERNELS, *kernels)
        hip = [line for line in calls if "hipLaunch" in line]
        rocprof.write(folder / f"{pid}_hip_api_trace.csv", rocprof.CALLS, *hip)
        hsa = [line for line in calls if "hsa_signal" in line]
        rocprof.write(folder / f"{pid}_hsa_api_trace.csv", rocprof.CALLS, *hsa)
        rocprof.write(folder / f"{pid}_counter_collection.csv", rocprof.COUNTERS, *counted)
        return folder


def fit(trace: ci.Trace) -> ClockFit:
    (result,) = trace.meta.clocks
    return result


def events_are_whole(trace: ci.Trace) -> None:
    for source in trace.meta.sources:
        numbers = {i.source: 0 for i in trace.meta.issues}
        for issue in trace.meta.issues:
            numbers[issue.source] += issue.count * issue.events
        assert source.events == source.nodes + numbers.get(source.path, 0)
    assert sum(s.nodes for s in trace.meta.sources) == trace.nodes.num_rows


@pytest.mark.parametrize("ids", [1, 5001])
def test_a_run_that_two_tools_recorded_is_merged(tmp_path: Path, ids: int) -> None:
    run = Run(5)
    run.kineto(tmp_path / "rank0.json")
    run.rocprof(tmp_path / "roc", ids=ids, noise=150)
    trace = ci.read(tmp_path)
    assert np.count_nonzero(trace.array("kind") == Kind.KERNEL) == 60
    relation = fit(trace)
    assert relation.method == (relations.CORRELATION_IDS if ids == 1 else relations.MATCHED_KERNELS)
    assert relation.clock == BOOTTIME
    assert abs(relation.offset_ns - (BASE - BOOT)) <= relation.uncertainty_ns <= 300
    assert relation.pairs == 60
    assert counts(trace)["same-kernels-twice"] == 60
    events_are_whole(trace)


def test_kernels_of_the_profile_get_counters_and_arguments(tmp_path: Path) -> None:
    run = Run(5)
    run.kineto(tmp_path / "rank0.json")
    run.rocprof(tmp_path / "roc", noise=150)
    trace = ci.read(tmp_path)
    kernels = np.flatnonzero(trace.array("kind") == Kind.KERNEL)
    assert trace.array("node", "counters").tolist() == kernels.tolist()
    assert trace.array("value", "counters").tolist() == [1000.0 + k for k in range(60)]
    args = trace.args(int(kernels[7]))
    assert args["stream"] == 0  # the profile's
    assert "Dispatch_Id" in args or "dispatch_id" in args


def test_calls_that_only_the_other_tool_has_are_added(tmp_path: Path) -> None:
    run = Run(5)
    run.kineto(tmp_path / "rank0.json")
    run.rocprof(tmp_path / "roc")
    trace = ci.read(tmp_path)
    frame = trace.to_pandas()
    calls = frame[frame["name"] == "hsa_signal_store_screlease"]
    assert len(calls) == 60
    assert set(calls["rank"]) == {0}
    assert (frame["name"] == "hipLaunchKernel").sum() == 60
    lanes = trace.lanes.to_pylist()
    assert {lanes[lane]["name"].rpartition(" ")[2] for lane in calls["lane"]} == {"(rocprofv3-csv)"}
    starts = calls["ts"].to_numpy() + trace.meta.origin_ns
    assert np.abs(np.sort(starts) - (BASE + run.start - 3500)).max() <= 1
    by_code = counts(trace)
    assert by_code["same-calls-twice"] == 60
    assert by_code["outside-profile"] == 2 * 3


@pytest.mark.parametrize("seed", slow_from(range(6, 12), 1))
@pytest.mark.parametrize("ids", [1, 5001])
def test_another_run_of_the_program_is_a_pass(tmp_path: Path, seed: int, ids: int) -> None:
    """Durations and gaps differ: counters are joined, times are not, and no clocks are related."""
    Run(5).kineto(tmp_path / "rank0.json")
    again = Run(5)
    random = np.random.default_rng(seed)
    again.dur = np.rint(again.dur * random.normal(1, 0.02, 60)).astype(np.int64)
    gap = np.maximum(random.normal(15_000, 5_000, 60), 500).astype(np.int64)
    again.start = np.cumsum(again.dur + gap) - again.dur
    again.rocprof(tmp_path / "roc", ids=ids)
    trace = ci.read(tmp_path)
    assert trace.meta.clocks == ()
    assert trace.nodes.num_rows == 120
    assert "same-kernels-twice" not in counts(trace)


def test_a_drift_is_fitted_where_it_is_more_than_the_spread(tmp_path: Path) -> None:
    run = Run(5, count=400)
    run.start = run.start * 100
    run.kineto(tmp_path / "rank0.json")
    run.rocprof(tmp_path / "roc", noise=200, ppm=-40)
    relation = fit(ci.read(tmp_path))
    assert abs(relation.drift_ppb - 40_000) < 1_000
    boot = relation.pivot_ns
    real = boot - BOOT + (boot - BOOT) * 40e-6 + BASE
    assert abs(boot + relation.offset_ns - real) < 2_000


def test_a_profile_of_part_of_the_run(tmp_path: Path) -> None:
    """PyTorch's profiler was on for a while; the steps of the program repeat."""
    run = Run(5, count=50)
    complete = Run(5, count=50)
    random = np.random.default_rng(4)
    complete.names = run.names * 6
    complete.dur = random.integers(4_000, 90_000, 300)
    complete.start = np.cumsum(complete.dur + random.integers(1_000, 30_000, 300)) - complete.dur
    run.dur, run.start = complete.dur[150:200], complete.start[150:200]
    run.kineto(tmp_path / "rank0.json")
    complete.rocprof(tmp_path / "roc", noise=100)
    trace = ci.read(tmp_path)
    relation = fit(trace)
    assert abs(relation.offset_ns - (BASE - BOOT)) <= 150
    assert counts(trace)["same-kernels-twice"] == 50
    assert trace.array("value", "counters").tolist() == [1000.0 + k for k in range(150, 200)]
    events_are_whole(trace)


def test_an_offset_of_the_user_takes_precedence_over_kernels(tmp_path: Path) -> None:
    run = Run(5)
    run.kineto(tmp_path / "rank0.json")
    run.rocprof(tmp_path / "roc")
    offset = BASE - BOOT + 2_000
    trace = ci.read(tmp_path, clock_offset=[f"rocprofv3-csv:{offset}ns"])
    relation = fit(trace)
    assert (relation.method, relation.offset_ns) == (relations.USER, offset)
    assert "-2 us" in relation.reason
    frame = trace.to_pandas()
    calls = frame[frame["name"] == "hsa_signal_store_screlease"]["ts"].to_numpy()
    assert np.abs(calls + trace.meta.origin_ns - (BASE + run.start - 1500)).max() <= 1


def test_few_kernels_are_matched_at_an_offset_of_the_user(tmp_path: Path) -> None:
    run = Run(5, count=8)
    run.kineto(tmp_path / "rank0.json")
    del run.names[3]
    run.start, run.dur = (np.delete(x, 3) for x in (run.start, run.dur))
    run.rocprof(tmp_path / "roc", noise=2_000)
    with pytest.raises(AmbiguousRunError, match="two runs"):  # too few to tell
        ci.read(tmp_path)
    trace = ci.read(tmp_path, clock_offset=[f"{BASE - BOOT}ns"])
    assert counts(trace)["same-kernels-twice"] == 7
    assert np.count_nonzero(trace.array("kind") == Kind.KERNEL) == 8
    events_are_whole(trace)


def test_an_offset_of_the_user_is_not_applied_to_another_run(tmp_path: Path) -> None:
    Run(5).kineto(tmp_path / "rank0.json")
    Run(6).rocprof(tmp_path / "roc")
    trace = ci.read(tmp_path, clock_offset=[f"rocprofv3-csv:{BASE - BOOT + 10**9}ns"])
    relation = fit(trace)
    assert not relation.applied
    assert "another run" in relation.reason
    assert trace.nodes.num_rows == 120


def test_hosts_that_booted_at_different_times(tmp_path: Path) -> None:
    """Each process is matched with its rank, whatever its host's clock."""
    for rank, boot in enumerate((BOOT, 5_000_000_000)):
        run = Run(20 + rank)
        run.kineto(tmp_path / f"rank{rank}.json", rank=rank)
        run.rocprof(tmp_path / f"node{rank}" / "roc", pid=700 + rank, boot=boot, noise=100)
    trace = ci.read(tmp_path)
    actual = sorted(f.offset_ns for f in trace.meta.clocks)
    assert np.abs(np.array(actual) - [BASE - BOOT, BASE - 5_000_000_000]).max() <= 100
    assert np.count_nonzero(trace.array("kind") == Kind.KERNEL) == 120
    assert trace.rank(1).counters.num_rows == 60


def test_of_two_processes_of_a_file_the_one_with_more_kernels_relates_the_clocks(
    tmp_path: Path,
) -> None:
    for rank, count in enumerate((40, 60)):
        run = Run(20 + rank, count)
        run.kineto(tmp_path / f"rank{rank}.json", rank=rank, pid=700 + rank)
        run.rocprof(tmp_path / "roc", pid=700 + rank, noise=100)
    for path in (tmp_path / "roc").glob("701_*"):
        _, *lines = path.read_text().splitlines(keepends=True)
        with path.with_name(path.name.replace("701", "700")).open("a") as first:
            first.writelines(lines)
        path.unlink()
    trace = ci.read(tmp_path)
    assert fit(trace).pairs == 60
    assert counts(trace)["same-kernels-twice"] == 100


def ranks_of_sources(trace: ci.Trace) -> dict[str, int]:
    """Rank that each source of rocprof was joined to, by its folder."""
    matches = trace.meta.device_matches
    return {Path(m.source).parent.name: m.rank for m in matches if m.known_by == "the same kernels"}


@pytest.mark.parametrize(
    ("ranks", "share", "seed"), slow_from([(2, 3e-4, 1), (4, 1e-3, 2), (4, 3e-3, 3)], 1)
)
def test_processes_of_several_files_are_different_ranks(
    tmp_path: Path, ranks: int, share: float, seed: int
) -> None:
    """Data-parallel ranks run the same kernels in almost the same time, and files are in any order."""
    random = np.random.default_rng(seed)
    order = random.permutation(ranks)
    for rank in range(ranks):
        run = Run(seed).of_rank(random, share)
        run.kineto(tmp_path / f"rank{rank}.json", rank=rank, pid=100 + rank, ranks=ranks)
        run.rocprof(tmp_path / f"roc{order[rank]}", pid=700 - int(order[rank]), noise=150)
    trace = ci.read(tmp_path)
    assert ranks_of_sources(trace) == {f"roc{k}": rank for rank, k in enumerate(order)}
    counted = trace.array("rank")[trace.array("node", "counters")]
    assert np.bincount(counted).tolist() == [60] * ranks
    assert "process-ambiguous" not in counts(trace)


def test_processes_that_cannot_be_told_apart_are_reported(tmp_path: Path) -> None:
    for rank in range(2):
        Run(5).kineto(tmp_path / f"rank{rank}.json", rank=rank, pid=100 + rank)
        Run(5).rocprof(tmp_path / f"roc{rank}", pid=700 + rank, noise=150)
    trace = ci.read(tmp_path)
    doubted = {i.source for i in trace.meta.issues if i.code == "process-ambiguous"}
    assert len(doubted) == 2
    assert sorted(ranks_of_sources(trace).values()) == [0, 1]


def test_a_process_that_fits_two_ranks_is_reported(tmp_path: Path) -> None:
    """Of two equal ranks one was recorded by rocprof."""
    for rank in range(2):
        Run(5).kineto(tmp_path / f"rank{rank}.json", rank=rank, pid=100 + rank)
    Run(5).rocprof(tmp_path / "roc", noise=150)
    assert counts(ci.read(tmp_path))["process-ambiguous"] == 1


def test_a_rank_that_was_not_profiled_takes_no_other_ranks_place(tmp_path: Path) -> None:
    random = np.random.default_rng(9)
    runs = [Run(5).of_rank(random, 1e-3) for _ in range(2)]
    runs[1].kineto(tmp_path / "rank1.json", rank=1, pid=101)
    for rank, run in enumerate(runs):
        run.rocprof(tmp_path / f"roc{rank}", pid=700 + rank, noise=150)
    trace = ci.read(tmp_path)
    assert ranks_of_sources(trace) == {"roc1": 1}
    assert "process-ambiguous" not in counts(trace)


def test_two_records_of_one_process_are_joined_to_its_rank(tmp_path: Path) -> None:
    """One has the times of kernels, the other counters of the same execution."""
    Run(5).kineto(tmp_path / "rank0.json")
    first, second = Run(5).rocprof(tmp_path / "a"), Run(5).rocprof(tmp_path / "b")
    (second / "700_kernel_trace.csv").unlink()
    (first / "700_counter_collection.csv").unlink()
    trace = ci.read(tmp_path)
    assert ranks_of_sources(trace) == {"a": 0, "b": 0}
    assert "process-ambiguous" not in counts(trace)


def test_the_passes_of_the_sample_job_are_other_runs(demo: Path) -> None:
    trace = read_once(demo)
    truth = json.loads((demo / "truth.json").read_text())["clocks"]
    (offset,) = (o.offset_ns for o in trace.meta.offsets if o.clock == BOOTTIME)
    assert abs(offset - truth["realtime_minus_boottime_ns"]) < 1_000
    methods = {Path(f.of).name: f.method for f in trace.meta.clocks}
    assert methods["recorder.csv"] == relations.THREE_CLOCKS
    assert methods["amd-smi-watch.csv"] == relations.WHOLE_SECONDS
    assert "same-kernels-twice" not in counts(trace)


@given(st.integers(0, 2**32 - 1), st.integers(-(10**18), 10**18), st.integers(0, 400))
def test_any_offset_is_recovered(seed: int, offset: int, noise: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(40, 200))
    name = random.integers(0, 6, n)
    dur = random.integers(2_000, 100_000, n)
    start = np.cumsum(dur + random.integers(500, 40_000, n)) - dur
    order = random.permutation(n)
    reference = ProcessWork(name, start, dur, np.full(n, -1))
    recorded = random.random(n) < 0.97
    jitter = random.integers(-noise, noise + 1, n)
    other = [x[order][recorded[order]] for x in (name, start - offset + jitter, dur)]
    match = clock_match.match_work(reference, ProcessWork(*other, np.full(int(recorded.sum()), -1)))
    assert match is not None
    assert abs(match.line.offset_ns - offset) <= noise
    assert (order[recorded[order]][match.other_rows] == match.reference_rows).mean() > 0.98


@pytest.mark.parametrize("ppm", [-20, 20])
def test_a_drift_is_recovered_from_short_kernels_in_a_row(ppm: int) -> None:
    """The drift moves kernels by more than they are apart: the nearest of a name is another one."""
    random = np.random.default_rng(7)
    name, dur = random.integers(0, 4, 5000), random.integers(2_000, 4_000, 5000)
    start = np.cumsum(dur + 500) - dur + np.arange(5000) // 50 * 10**7
    other = start + np.rint(start * (ppm / 1e6)).astype(np.int64) + random.integers(-300, 301, 5000)
    kept = random.random(5000) < 0.97
    ids = np.full(5000, -1)
    match = clock_match.match_work(
        ProcessWork(name, start, dur, ids),
        ProcessWork(name[kept], other[kept], dur[kept], ids[kept]),
    )
    assert match is not None
    assert abs(match.line.drift_ppb + 1000 * ppm) < 1000
    assert (np.flatnonzero(kept)[match.other_rows] == match.reference_rows).mean() > 0.99


def test_a_drift_is_recovered_where_most_work_is_at_one_time() -> None:
    random = np.random.default_rng(3)
    gap = np.full(200, 10_000)
    gap[:40] = 25_000_000  # a fifth of the kernels lie within a second, the rest behind each other
    start = np.cumsum(gap)
    other = start + np.rint(start * 20e-6).astype(np.int64) + random.integers(-300, 301, 200)
    name, dur, ids = np.arange(200) % 30, random.integers(2_000, 9_000, 200), np.full(200, -1)
    match = clock_match.match_work(
        ProcessWork(name[1:], start[1:], dur[1:], ids[1:]), ProcessWork(name, other, dur, ids)
    )
    assert match is not None
    assert match.reference_rows.size == 199
    assert abs(match.line.drift_ppb + 20_000) < 1_000


def test_work_is_paired_with_the_nearest_of_which_it_is_the_nearest() -> None:
    reference, other = (
        ProcessWork(
            np.zeros(len(start), np.int64), np.array(start), np.array(start), np.array(start)
        )
        for start in ([0, 100], [90])
    )
    i, j = nearest_pairs(reference, other, Line(0), 200)
    assert (i.tolist(), j.tolist()) == ([1], [0])


@pytest.mark.parametrize(("same", "pairs"), [(20, 20), (10, 0)])
def test_ids_that_names_contradict_pair_nothing(same: int, pairs: int) -> None:
    """Another run counts its kernels from 1, too."""
    ids = np.arange(1, 21)
    names = np.where(np.arange(20) < same, 0, 1)
    one, other = (ProcessWork(name, ids, ids, ids) for name in (np.zeros(20, np.int64), names))
    assert [len(rows) for rows in pairs_by_correlation(one, other)] == [pairs, pairs]


def test_the_parent_of_what_is_kept_is_the_nearest_ancestor_that_is() -> None:
    """A call in two others that the profile has, in one that it has not."""
    builder = TraceBuilder()
    for depth in range(4):
        builder.nodes(
            kind=int(Kind.RUNTIME), name=f"call {depth}", rank=0, ts=np.array([depth]), dur=10 - 2 * depth,
            lane=builder.lane(0, LaneKind.THREAD, 1, "main"), parent=np.array([depth - 1]),
        )  # fmt: skip
    kept = np.array([True, False, False, True])
    rest = renumbered(builder.finish(), kept, {0: Rank(3)}, "tool")
    assert rest.nodes["parent"].to_pylist() == [-1, 0]
    assert rest.nodes["rank"].to_pylist() == [3, 3]
    assert rest.lanes["name"].to_pylist() == ["main (tool)"]


def test_a_line_gives_times_to_the_nanosecond() -> None:
    line = Line(10**18, -1000, 5 * 10**17)
    ts = np.array([5 * 10**17, 5 * 10**17 + 10**9])
    assert line.apply(ts).tolist() == [15 * 10**17, 15 * 10**17 + 10**9 - 1000]


@pytest.mark.parametrize("rule", ["5 fortnights", "", "x:", "1e99", "nan", "rank0:"])
def test_invalid_offsets_are_refused(tmp_path: Path, rule: str) -> None:
    path = Run(5).kineto(tmp_path / "rank0.json")
    with pytest.raises(UsageError, match="clock-offset"):
        ci.read(path, clock_offset=[rule])
