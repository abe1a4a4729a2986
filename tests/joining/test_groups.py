"""Several runs or windows in one folder: listed, and the chosen one is what it is when read alone."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from kineto_files import BASE, call, kernel, span, write

import chopper_interop as ci
from chopper_interop.errors import AmbiguousRunError, UsageError
from chopper_interop.joining.groups import split
from chopper_interop.schemas.kinds import Kind
from chopper_interop.schemas.meta import REALTIME

MS = 1000
"""Microseconds, the unit of the files."""


def window(path: Path, at: float, *, steps: range, pid: int = 100, rank: int | None = 0) -> Path:
    """A file with steps of 10 ms from a time in microseconds on: three kernels each."""
    path.parent.mkdir(exist_ok=True)
    events = []
    for k, step in enumerate(steps):
        start = at + 10 * MS * k
        events.append(span("user_annotation", f"ProfilerStep#{step}", start, 9 * MS, pid=pid))
        for i in range(3):
            begin, number = start + 3 * MS * i + 10, 3 * step + i + 1
            device = {"device": rank or 0}
            events.append(call("hipLaunchKernel", begin, 5, number, pid=pid))
            events.append(kernel(f"k{i}", begin + 20, 1000 + step, number, **device))
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    return write(path, events, baseTimeNanoseconds=BASE, **info)


def power(path: Path, first_s: float, last_s: float) -> None:
    """Power of GPU 0 every 50 ms, from seconds after the base on, as Zeus records it."""
    times = BASE / 1e9 + np.arange(first_s, last_s, 0.05)
    path.write_text("time,gpu0\n" + "".join(f"{t:.3f},{300 + k}\n" for k, t in enumerate(times)))


def schedule(folder: Path) -> list[list[Path]]:
    """The profiler's schedule wrote three windows of two ranks."""
    return [
        [
            window(
                folder / f"node_{100 + rank}.17000000000{k}{rank}.pt.trace.json",
                k * 100 * MS + 100 * rank,
                steps=range(10 * k, 10 * k + 3),
                pid=100 + rank,
                rank=rank,
            )
            for rank in (0, 1)
        ]
        for k in (1, 2, 3)
    ]


def named_steps(folder: Path) -> list[list[Path]]:
    """One process that states no rank, a file for a step."""
    files = [
        window(folder / f"trace_step{k}.json", k * MS * 20, steps=range(k, k + 1), rank=None)
        for k in (10, 20)
    ]
    return [[path] for path in files]


def subfolders(folder: Path) -> list[list[Path]]:
    """Two executions of one job, with the same steps, in folders of their own."""
    return [
        [
            window(
                folder / name / f"rank{rank}.json",
                begin + 50 * rank,
                steps=range(5, 8),
                pid=pid + rank,
                rank=rank,
            )
            for rank in (0, 1)
        ]
        for name, begin, pid in (("monday", 0, 200), ("tuesday", 5000 * MS, 300))
    ]


def warm_up(folder: Path) -> list[list[Path]]:
    """A short window, and then the one that is meant."""
    return [
        [window(folder / "b.json", 0, steps=range(1))],
        [window(folder / "a.json", 500 * MS, steps=range(30, 40))],
    ]


def staggered(folder: Path) -> list[list[Path]]:
    """Two ranks without numbers: the second's first window ends after the first's second begins."""
    return [
        [
            window(
                folder / f"{pid}_{k}.json",
                k * 31 * MS + late,
                steps=range(10 * k, 10 * k + 3),
                pid=pid,
                rank=None,
            )
            for pid, late in ((100, 0), (200, 5 * MS))
        ]
        for k in (1, 2)
    ]


KINDS = [schedule, named_steps, subfolders, warm_up, staggered]


def content(trace: ci.Trace) -> tuple:
    """All that is recorded of the nodes, and how they depend on each other."""
    columns = [trace.array(c).tolist() for c in ("rank", "ts", "dur", "parent", "correlation")]
    names = trace.nodes["name"].to_pylist()
    edges = sorted(zip(*(trace.array(c, "edges").tolist() for c in ("src", "dst", "kind"))))  # noqa: B905
    return trace.meta.origin_ns, names, columns, edges, trace.lanes.to_pylist()


@pytest.mark.parametrize("make", KINDS)
def test_they_are_listed_in_one_line_and_each_can_be_chosen(tmp_path: Path, make, run) -> None:
    groups = make(tmp_path)
    status, _, output = run("convert", tmp_path, "-o", tmp_path / "x.parquet")
    assert status == AmbiguousRunError.exit_status
    (line,) = [line for line in output.splitlines() if "error" in line]
    assert f"there are {len(groups)} runs or windows: 1: " in line
    assert all(str(files[0].relative_to(tmp_path)) in line for files in groups)
    assert f"--run 1 to --run {len(groups)}" in line
    assert "in Python run=1" in line
    for k, files in enumerate(groups, 1):
        chosen = ci.read(tmp_path, run=k, keep_environment=True)
        assert content(chosen) == content(ci.read(*files, keep_environment=True))
        assert {Path(s.path) for s in chosen.meta.sources} == set(files)
        (left_out,) = [i for i in chosen.meta.issues if i.code == "runs-left-out"]
        assert left_out.count == sum(map(len, groups)) - len(files)


def test_two_runs_of_different_ranks_are_refused_and_each_can_be_chosen(
    tmp_path: Path, run
) -> None:
    """Rank 0 of one and rank 1 of another had been one job with status 0."""
    runs = [
        window(tmp_path / day / f"rank{rank}.json", 9000 * MS * rank, steps=range(5), rank=rank)
        for rank, day in enumerate(("monday", "tuesday"))
    ]
    status, _, output = run("convert", tmp_path, "-o", tmp_path / "x.parquet")
    assert status == AmbiguousRunError.exit_status
    assert "ranks are of another run, or their clocks differ: 1 ranks-apart, " in output
    assert "tuesday/rank1.json; outputs were written with all ranks at the times" in output
    assert " that they recorded (--run 1 " in output
    assert run("analyze", tmp_path / "monday", tmp_path / "tuesday", "temporal")[0] == 5
    assert run("convert", tmp_path, "-o", tmp_path / "x.parquet", "--on-loss", "ignore")[0] == 0
    by = ("--clock-offset", "rank1:-9")
    assert run("convert", *runs, "-o", tmp_path / "y.parquet", *by)[0] == 0
    for k, file in enumerate(runs, 1):
        assert content(ci.read(*runs, run=k)) == content(ci.read(file))


def test_ranks_in_folders_of_their_own_are_one_run(tmp_path: Path) -> None:
    for rank in range(2):
        window(tmp_path / f"node{rank}" / "trace.json", 50 * rank, steps=range(5), rank=rank)
    assert ci.read(tmp_path, run=1).ranks == [0, 1]


def test_hosts_whose_clocks_collectives_align_are_one_run(tmp_path: Path) -> None:
    """--run 1 had left out rank 1, of which the clock is an hour ahead, with a note alone."""
    for rank in range(2):
        at = rank * 3600 * 1000 * MS
        ends = [(at + 10 * MS * i + 7, i + 1) for i in range(30)]
        reduce = {"Collective name": "allreduce", "Process Group Name": "0", "Group size": 2,
                  "Process Group Ranks": "[0, 1]", "In msg nelems": 1024, "dtype": "Float"}  # fmt: skip
        events = [
            event
            for start, n in ends
            for event in (
                call("cudaLaunchKernel", start - 5, 2, n),
                kernel("ncclDevKernel_AllReduce_Sum", start, 300, n, **reduce, Seq=n),
            )
        ]
        (tmp_path / f"node{rank}").mkdir()
        info = {"rank": rank, "world_size": 2, "backend": "nccl"}
        write(
            tmp_path / f"node{rank}" / "t.json",
            events,
            baseTimeNanoseconds=BASE,
            distributedInfo=info,
        )
    together = content(ci.read(tmp_path))
    assert content(ci.read(tmp_path, run=1)) == together
    assert ci.read(tmp_path, run=1).ranks == [0, 1]
    by = ["rank1:-3600"]
    assert content(ci.read(tmp_path, run=1, clock_offset=by)) == content(
        ci.read(tmp_path, clock_offset=by)
    )
    with pytest.raises(UsageError, match="--run 2: there is one run"):
        ci.read(tmp_path, run=2)


@pytest.mark.parametrize("make", [schedule, named_steps, warm_up])
def test_all_windows_of_a_run_are_one_job(tmp_path: Path, make) -> None:
    groups = make(tmp_path)
    trace = ci.read(tmp_path, run="all", keep_environment=True)
    alone = [ci.read(*files) for files in groups]
    assert trace.nodes.num_rows == sum(t.nodes.num_rows for t in alone)
    assert trace.lanes.num_rows == alone[0].lanes.num_rows
    starts = np.sort(np.concatenate([t.array("ts") + t.meta.origin_ns for t in alone]))
    assert (np.sort(trace.array("ts") + trace.meta.origin_ns) == starts).all()
    launched = (trace.launch >= 0).sum()
    assert launched == np.count_nonzero(trace.array("kind") == Kind.KERNEL)
    every = {s for t in alone for s in t.values("iteration") if s is not None}
    assert {s for s in trace.values("iteration") if s is not None} == every
    paths = {Path(s.path) for s in trace.meta.sources}
    assert paths == {p for files in groups for p in files}


def test_ids_that_begin_again_in_each_window_launch_their_own_kernels(tmp_path: Path) -> None:
    for name, at in (("a.json", 0), ("b.json", 500 * MS)):
        window(tmp_path / name, at, steps=range(2))
    trace = ci.read(tmp_path, run="all")
    kernels = np.flatnonzero(trace.array("kind") == Kind.KERNEL)
    after = trace.array("ts")[kernels] - trace.array("ts")[trace.launch[kernels]]
    assert (after == 20_000).all()


def test_two_executions_are_not_windows_of_one(tmp_path: Path) -> None:
    subfolders(tmp_path)
    with pytest.raises(AmbiguousRunError, match="not windows of the same processes"):
        ci.read(tmp_path, run="all")


def test_windows_that_overlap_are_said_to_not_follow_each_other(tmp_path: Path) -> None:
    for name, at in (("a.json", 0), ("b.json", 1 * MS)):
        window(tmp_path / name, at, steps=range(2))
    with pytest.raises(AmbiguousRunError, match="not windows of the same processes, one after the"):
        ci.read(tmp_path, run="all")


def test_both_commands_choose(tmp_path: Path, run) -> None:
    schedule(tmp_path)
    out = tmp_path / "x.parquet"
    assert run("convert", tmp_path, "--run", 2, "-o", out)[0] == 0
    assert ci.read(out).nodes.num_rows == 2 * 3 * 7
    assert run("analyze", tmp_path, "--run", "3", "temporal")[0] == 0
    assert run("analyze", tmp_path, "temporal")[0] == AmbiguousRunError.exit_status
    for wrong in ("4", "0", "-1", "both"):
        assert run("convert", tmp_path, f"--run={wrong}", "-o", out)[0] == UsageError.exit_status


def test_one_window_is_compared_with_another(tmp_path: Path, run) -> None:
    schedule(tmp_path)
    both = ("analyze", tmp_path, "--run", 1, "compare", "--against", tmp_path)
    status, _, message = run(*both)
    assert status == AmbiguousRunError.exit_status
    assert "--against-run 1 to" in message
    assert run(*both, "--against-run", 2)[0] == 0
    status, text, _ = run(
        "analyze",
        tmp_path,
        "--run",
        1,
        "sweep",
        "--json",
        "--against",
        tmp_path,
        "--against-run",
        2,
    )
    assert status == 0
    assert "windows" not in text


def test_one_run_is_the_first_and_all(tmp_path: Path) -> None:
    path = window(tmp_path / "a.json", 0, steps=range(2))
    assert content(ci.read(path, run=1)) == content(ci.read(path))
    assert content(ci.read(path, run="all")) == content(ci.read(path))
    for wrong in (0, 2):
        with pytest.raises(UsageError, match="there is one run"):
            ci.read(path, run=wrong)


def test_windows_on_hosts_whose_clocks_differ_are_tied_by_their_steps(tmp_path: Path) -> None:
    """The second host's clock is a window's distance late: times tie the wrong windows."""
    for k in (1, 2):
        for rank, late in ((0, 0), (1, 100 * MS)):
            steps = range(10 * k, 10 * k + 3)
            window(tmp_path / f"{k}{rank}.json", 100 * MS * k + late, steps=steps, rank=rank)
    trace = ci.read(tmp_path, run=1)
    assert {Path(s.path).name for s in trace.meta.sources} == {"10.json", "11.json"}


def test_telemetry_goes_with_the_window_that_it_covers(tmp_path: Path) -> None:
    """A recording that covers both, or lies next to both, goes with either; one that lies with one goes with it."""
    subfolders(tmp_path)
    power(tmp_path / "both.csv", -1, 7)
    power(tmp_path / "second.csv", 4.5, 6)
    power(tmp_path / "monday" / "first.csv", -1, 1)

    def files(number: int) -> set[str]:
        return {Path(s.path).name for s in ci.read(tmp_path, run=number).meta.sources}

    assert files(1) == {"rank0.json", "rank1.json", "both.csv", "first.csv"}
    assert files(2) == {"rank0.json", "rank1.json", "both.csv", "second.csv"}


@pytest.mark.slow
def test_two_recorded_runs_in_one_folder(shared: Path) -> None:
    folder = shared / "pytorch/torchrec_two_runs_v100"
    with pytest.raises(AmbiguousRunError, match=r"processes 24049-24052.*; 2: ranks 0-3"):
        ci.read(folder)
    files = [sorted(folder.glob(f"*internal_{pid}*")) for pid in ("240", "26[67]")]
    for k, of_run in enumerate(files, 1):
        assert content(ci.read(folder, run=k)) == content(ci.read(*of_run))


class Source:
    """Facts of a profile that groups need: its time, and that it states no rank."""

    ranks_are_assumed = True
    stated_ranks = frozenset()
    steps = frozenset()

    def __init__(self, number: int, comparisons: list[int]) -> None:
        self.window_ns = (number, number + 10_000)
        self.processes = frozenset({("", number)})
        self.hosts = frozenset({""})
        self.path = Path(f"{number}.json")
        self.files = SimpleNamespace(converter=None)
        rank = SimpleNamespace(host="", pid=number, parent=-1)
        self.trace = SimpleNamespace(meta=SimpleNamespace(ranks=[rank], clock=REALTIME))
        self.comparisons = comparisons

    def __eq__(self, other: object) -> bool:
        self.comparisons.append(1)
        return self is other

    __hash__ = object.__hash__


def test_a_thousand_windows_are_split_without_comparing_each_with_all_of_a_list() -> None:
    comparisons: list[int] = []
    groups = split([Source(k, comparisons) for k in range(1000)])
    assert len(groups) == 1
    assert not comparisons
