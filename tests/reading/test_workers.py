"""Whoever reads the ranks, the outputs are the same; a worker that dies costs an attempt."""

from __future__ import annotations

import gzip
import os
import sys
import threading
import time
import weakref
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kineto_files import call, kernel, write

import chopper_interop as ci
from chopper_interop import registry, sources
from chopper_interop.arrays import spill
from chopper_interop.errors import (
    ChopperError,
    InternalError,
    PluginError,
    ReadError,
    UsageError,
    WriteError,
)
from chopper_interop.io import inputs
from chopper_interop.reading import processes, workers

if TYPE_CHECKING:
    from collections.abc import Iterator

PLUGIN = '''
import os, signal
from pathlib import Path

from chopper_interop.registry import Converter


def sniff(head):
    return head.startswith(b"deaths")


def read(paths):
    """Read the hidden Kineto file next to it, once so many processes have died of it; fail if that is no number."""
    from chopper_interop.converters.kineto.reader import read as read_kineto

    deaths = int(paths[0].read_text().split()[1])
    if deaths:
        paths[0].write_text(f"deaths {deaths - 1}")
        os.kill(os.getpid(), signal.SIGKILL)
    return read_kineto([paths[0].with_name(".hidden")])


DEADLY = Converter(name="deadly", description="a file that kills its reader", sniff=sniff, read=read)
'''


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A plug-in, which new processes load too, with a format that kills its reader."""
    folder = tmp_path / "plugin"
    (folder / "deadly-1.dist-info").mkdir(parents=True)
    (folder / "deadly.py").write_text(PLUGIN)
    (folder / "deadly-1.dist-info/METADATA").write_text("Name: deadly\nVersion: 1\n")
    points = "[chopper_interop.converters]\ndeadly = deadly:DEADLY\n"
    (folder / "deadly-1.dist-info/entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    forget()
    yield
    forget()
    sys.modules.pop("deadly", None)


def forget() -> None:
    """Have the registry look again for what is installed."""
    for known in (registry._points, registry.brought_by, registry.converters):
        known.cache_clear()


def job(folder: Path, deaths: int = 0, ranks: int = 3) -> Path:
    """A folder of ranks; reading the last of them kills so many processes first."""
    folder.mkdir()
    for rank in range(ranks):
        events = [call("cudaLaunchKernel", 1, 2, 1), kernel(f"k{rank}", 10 + rank, 5, 1)]
        write(folder / f"{rank}.json", events, distributedInfo={"backend": "nccl", "rank": rank})
    if deaths:
        (folder / f"{ranks - 1}.json").rename(folder / ".hidden")  # else it is a source
        (folder / f"{ranks - 1}.txt").write_text(f"deaths {deaths}")
    return folder


def tables(trace: ci.Trace) -> dict[str, Any]:
    return {name: getattr(trace, name) for name in ("nodes", "edges", "lanes", "groups")}


def assert_equal(trace: ci.Trace, expected: ci.Trace) -> None:
    for name, table in tables(expected).items():
        assert tables(trace)[name].equals(table), name
    assert trace.meta == expected.meta
    rows = range(expected.nodes.num_rows)
    assert [trace.args(k) for k in rows] == [expected.args(k) for k in rows]


class Backwards(Executor):
    """Runs what it was given last first, and only when a result is asked for."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Any]] = []

    def submit(self, fn, /, *args, **_kwargs) -> Future[Any]:
        outer = self

        class Late(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                while outer.waiting:
                    future, (function, arguments) = outer.waiting.pop()
                    try:
                        future.set_result(function(*arguments))
                    except ChopperError as error:
                        future.set_exception(error)
                return super().result(timeout)

        future = Late()
        self.waiting.append((future, (fn, args)))
        return future


@pytest.mark.parametrize("executor", [Backwards, ThreadPoolExecutor])
def test_any_executor_in_any_order_gives_the_same(tmp_path: Path, executor) -> None:
    folder = job(tmp_path / "job")
    with executor() as workers_:
        assert_equal(ci.read(folder, workers=workers_), ci.read(folder))


def test_a_file_that_is_refused_is_not_kept(tmp_path: Path, monkeypatch) -> None:
    """Eight bombs next to a trace took 8.7 GB: each error held the calls in which it came, and what they had unpacked."""
    unpacked = []

    def blocks(_path: Path, raw: Any, _magic: bytes, _issues: Any) -> Iterator[Any]:
        unpacked.append(weakref.ref(raw))
        yield raw
        raise ReadError("too large")

    monkeypatch.setattr(inputs, "_bounded", blocks)
    folder = job(tmp_path / "job", ranks=1)
    for number in range(3):
        (folder / f"{number + 1}.json.gz").write_bytes(
            gzip.compress((folder / "0.json").read_bytes())
        )
    tasks = [
        workers.SourceTask.for_source(source, {}, None)
        for source in sources.find([folder]).sources
        if source.first.suffix == ".gz"
    ]
    outcomes = [workers.read_batch((task,))[0] for task in tasks]
    assert [type(outcome) for outcome in outcomes] == [ReadError] * 3
    assert [kept() for kept in unpacked if kept() is not None] == []


def test_a_rank_that_fails_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    (folder / "1.json").write_bytes(b'{"schemaVersion": 1, "traceEvents": 7}')
    trace = ci.read(folder, workers=Backwards())
    assert trace.ranks == [0, 2]
    lost = {issue.code: issue for issue in trace.meta.issues}["file-unreadable"]
    assert "1.json" in lost.example
    with pytest.raises(ReadError, match=r"1\.json"):
        ci.read(*sorted(folder.iterdir()), workers=Backwards())


def not_read(trace: ci.Trace) -> list[str]:
    """What is said of each file that was not read."""
    return sorted(i.example for i in trace.meta.issues if i.code == "file-unreadable")


def with_failures(folder: Path) -> Path:
    """The job of a folder, with a damaged file and with one that its reader fails on."""
    (folder / "1.json").write_bytes(b'{"schemaVersion": 1, "traceEvents": 7}')
    (folder / "defect.txt").write_text("deaths soon")
    return folder


@pytest.mark.usefixtures("deadly")
@pytest.mark.parametrize("executor", [Backwards, None])
def test_a_rank_of_which_the_reader_fails_is_named_and_the_others_are_read(
    tmp_path: Path, run, executor
) -> None:
    folder = with_failures(job(tmp_path / "job"))
    trace = ci.read(folder, workers=executor and executor())
    assert trace.ranks == [0, 2]
    damaged, defect = not_read(trace)
    assert "1.json" in damaged
    assert "defect.txt: reading deadly failed: ValueError: invalid literal for int()" in defect
    assert "at deadly.py:" in defect
    assert "--debug shows more, given the file alone" in defect
    status, _, text = run("convert", folder / "defect.txt", "--debug", "-o", tmp_path / "a.pftrace")
    assert status == 12
    assert "deaths = int(" in text  # the line of the reader that raised
    options = "--on-loss", "error", "-o", tmp_path / "a.pftrace"
    assert run("convert", "-q", folder, *options)[0] == 7


def test_of_a_job_larger_than_memory_what_workers_send_is_kept_in_files(tmp_path: Path) -> None:
    """The process that asked dask for 8 ranks of 260 MB held all of them, 1.2 GB, with 0.6 GB allowed."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in range(2):
        events = [kernel(f"k{n % 7}", 10 * n, 5, n + 1) for n in range(5000)]
        write(folder / f"{rank}.json", events, distributedInfo={"backend": "nccl", "rank": rank})
    tasks = [
        (workers.SourceTask.for_source(source, {}, None),)
        for source in sources.find([folder]).sources
    ]
    with ThreadPoolExecutor(1) as executor, spill.when(wanted=True):
        pool = workers.Pool(executor)
        for future in [pool.submit(batch) for batch in tasks]:
            (trace,) = future.result()
            assert all(spill.holds(trace.array(name)) for name in ("ts", "dur", "args_at"))
            assert all(map(spill.holds, trace.text.buffers))


def test_of_a_job_larger_than_memory_an_error_of_a_worker_reaches_who_asked() -> None:
    class Dead(Executor):
        def submit(self, *_: Any) -> Future[Any]:  # type: ignore[override]
            failed: Future[Any] = Future()
            failed.set_exception(BrokenExecutor("it ended"))
            return failed

    with spill.when(wanted=True), pytest.raises(BrokenExecutor):
        workers.Pool(Dead()).submit(()).result(timeout=10)


@pytest.mark.slow
@pytest.mark.usefixtures("deadly")
def test_processes_give_the_same_and_one_that_dies_costs_an_attempt(tmp_path: Path, run) -> None:
    expected, output = tmp_path / "threads.pftrace", tmp_path / "processes.pftrace"
    assert run("convert", "-q", job(tmp_path / "job"), "--job", "a", "-o", expected)[0] == 0
    for jobs in (1, 2):
        assert (
            run("convert", "-q", tmp_path / "job", "--job", "a", "--jobs", jobs, "-o", output)[0]
            == 0
        )
        assert output.read_bytes() == expected.read_bytes()
    trace = ci.read(job(tmp_path / "dies", deaths=1), workers=2)
    assert trace.to_pandas()["name"].tolist().count("k2") == 1
    assert not [issue for issue in trace.meta.issues if issue.code == "file-unreadable"]
    trace = ci.read(job(tmp_path / "dies often", deaths=9), workers=2)
    assert trace.ranks == [0, 1]
    lost = {issue.code: issue for issue in trace.meta.issues}["file-unreadable"]
    assert "2.txt: each process that read it ended before it was done, 3 times" in lost.example


@pytest.mark.slow
@pytest.mark.usefixtures("deadly")
@pytest.mark.filterwarnings("default")
def test_dask_gives_the_same_and_a_killed_worker_costs_an_attempt(tmp_path: Path, run) -> None:
    distributed = pytest.importorskip("distributed")
    expected, output = tmp_path / "threads.pftrace", tmp_path / "dask.pftrace"
    assert run("convert", "-q", job(tmp_path / "job"), "--job", "a", "-o", expected)[0] == 0
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        options = ("--job", "a", "--scheduler", address, "-o", output)
        assert run("convert", "-q", tmp_path / "job", *options)[0] == 0
        assert output.read_bytes() == expected.read_bytes()
        trace = ci.read(job(tmp_path / "dies", deaths=1), workers=address)
        assert trace.to_pandas()["name"].tolist().count("k2") == 1
        assert not not_read(trace)
        failing = with_failures(tmp_path / "job")
        trace = ci.read(failing, workers=address)
        assert trace.ranks == [0, 2]
        assert_equal(trace, ci.read(failing))
        assert len(not_read(trace)) == 2
        cluster.scheduler.allowed_failures = 0  # else each attempt is four
        trace = ci.read(job(tmp_path / "dies always", deaths=99), workers=address)
        assert trace.ranks == [0, 1]
        assert "each process that read it ended before it was done, 3 times" in not_read(trace)[0]


def test_a_result_is_handed_over_by_a_file(tmp_path: Path) -> None:
    expected = ci.read(job(tmp_path / "job"))
    stored = processes.store(tmp_path, lambda: expected)
    assert_equal(stored.load(), expected)
    assert not stored.path.exists()
    assert processes.store(tmp_path, dict).load() == {}


ERRORS = [
    ReadError("no", path="a", at="byte 3", hint="do"),
    InternalError(KeyError("x"), "reading a", "b"),
    PluginError(KeyError("x"), "reading a", "b", "odd 1.0"),
]


@pytest.mark.parametrize("error", ERRORS)
def test_errors_of_workers_stay_what_they_are(tmp_path: Path, error: ChopperError) -> None:
    again = processes.store(tmp_path, lambda: error).load()
    assert (type(again), str(again), again.path) == (type(error), str(error), error.path)


@pytest.mark.parametrize("wrong", [0, -1, 10**6, 1.5])
def test_workers_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError), workers.reading_by(wrong):
        pass


def test_without_distributed_the_error_names_the_extra(tmp_path: Path, run, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    options = ("--scheduler", "tcp://127.0.0.1:1", "-o", tmp_path / "a.pftrace")
    status, _, text = run("convert", "-q", job(tmp_path / "job"), *options)
    assert status == 2
    assert "chopper-interop[dask]" in text


def test_an_interrupt_waits_for_no_reader() -> None:
    """Of a gigabyte, a thread reads for up to a quarter of a minute."""
    is_over = threading.Event()
    with pytest.raises(KeyboardInterrupt), workers.opened() as pool:  # noqa: PT012 # of the block's end
        reading = pool.executor.submit(is_over.wait, 10)
        raise KeyboardInterrupt
    waited = reading.done()
    is_over.set()
    assert not waited


def test_an_error_waits_for_readers() -> None:
    """Nothing is read on behind it."""
    is_over = threading.Event()
    with pytest.raises(ValueError, match="made"), workers.opened() as pool:  # noqa: PT012 # same
        reading = pool.executor.submit(is_over.wait, 0.05)
        raise ValueError("made")
    assert reading.done()


def test_a_process_is_ended_once_by_threads_that_end_it_at_the_same_time() -> None:
    """After Ctrl-C its pool was closed by two threads: status 70, a bad file descriptor."""
    ended, both = [], threading.Event()

    class Pool:
        def shutdown(self) -> None:
            ended.append(threading.get_ident())
            both.wait(0.2)

    place = processes._Process()
    place._pool = Pool()  # type: ignore[assignment]
    other = threading.Thread(target=place.end)
    other.start()
    place.end()
    both.set()
    other.join()
    assert len(ended) == 1


def test_a_process_has_ended_for_whoever_ends_it() -> None:
    """The command went on while a thread ended it, and Python warned of semaphores that were left: once in five Ctrl-C."""
    begun, done = threading.Event(), []

    class Pool:
        def shutdown(self) -> None:
            begun.set()
            time.sleep(0.1)
            done.append(True)

    place = processes._Process()
    place._pool = Pool()  # type: ignore[assignment]
    other = threading.Thread(target=place.end)
    other.start()
    begun.wait(10)
    place.end()
    assert done == [True]
    other.join()


def test_an_interrupt_while_processes_are_ended_leaves_none() -> None:
    """One stayed for good where Ctrl-C came as all was read."""
    executor = processes.ProcessPool(2)

    class Interrupted:
        def __init__(self, pool: Any) -> None:
            self.pool, self.times = pool, 0

        def shutdown(self) -> None:
            self.times += 1
            if self.times == 1:
                raise KeyboardInterrupt
            self.pool.shutdown()

    with pytest.raises(KeyboardInterrupt), workers._shut_down(workers.Pool(executor)):  # noqa: PT012 # of its end
        started = [threading.Thread(target=place._started) for place in executor._places]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join(60)
        numbers = [place._pid for place in executor._places]
        first = executor._places[0]
        first._pool = Interrupted(first._pool)  # type: ignore[assignment]
    assert 0 not in numbers
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux' device that is always full")
def test_a_full_disk_names_the_folder_of_what_was_read(tmp_path: Path, monkeypatch) -> None:
    """The line said that the standard output could not be written."""

    def full(**_: Any) -> Any:
        return Path("/dev/full").open("wb", buffering=0)

    monkeypatch.setattr(processes.tempfile, "NamedTemporaryFile", full)
    with pytest.raises(WriteError, match=r"cannot be written: No space left on device.*TMPDIR"):
        processes.store(tmp_path / "run", bytes, 3)
