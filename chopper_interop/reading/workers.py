"""Workers that read sources: threads of this process, processes, a dask cluster, or any executor.

The unit of work is a source, or several small ones that are read in one pass, which any process can read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, replace
from os import cpu_count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from chopper_interop import chosen_steps, left_out_arguments, plugins, registry
from chopper_interop.arrays import spill
from chopper_interop.combined import Combined, NotTogetherError
from chopper_interop.edges import communication
from chopper_interop.errors import (
    ChopperError,
    InternalError,
    PluginError,
    ReadError,
    SchemaError,
    UsageError,
    drop_frames,
)
from chopper_interop.io import inputs, memory
from chopper_interop.schemas import hub
from chopper_interop.trace import Text, Trace

if TYPE_CHECKING:
    from chopper_interop.sources import SourceFiles

Failure: TypeAlias = ReadError | InternalError | PluginError | SchemaError
"""Why a source cannot be read: it is damaged, or its reader is, or what a plug-in's reader returned."""
FAILURES = ReadError, InternalError, PluginError, SchemaError
Outcome: TypeAlias = Trace | Combined | Failure
"""A source's trace, those of several sources, or why a source cannot be read."""
Workers: TypeAlias = int | str | Executor | None
"""Number of processes, address of a dask scheduler, an executor, or None for threads of this process."""
_MAX_PROCESSES = 1024
"""Processes that may be asked for (chosen: more than a machine has use for is a mistyped number)."""
_MEMORY_OF_ONE = 4
"""Part of the memory that may hold files that are being read. Chosen: a reader's columns, and what an
earlier one made, take a multiple of the file."""
_SMALL_BYTES = 1 << 18
"""Bytes up to which a source is small: measured, one thread reads 60 files of this size in as much time as
two, with a fifth less of the processors."""
_SCHEDULER_S = 10
"""Seconds in which a scheduler must answer (chosen: a loaded one of a large cluster takes a few)."""
_BATCH_BYTES = 1 << 22
"""Bytes of the sources that are read in one pass. Chosen: with 10 KB each, calls take a few µs of each source's
time, and columns are of some megabytes."""
_chosen: ContextVar[Workers] = ContextVar("_chosen", default=None)


@contextmanager
def reading_by(workers: Workers) -> Iterator[None]:
    """Set who reads sources within a block; None leaves it as it is.

    Raises
    ------
    UsageError
        It is neither a number of processes nor the address of a scheduler nor an executor.
    """
    if workers is None:
        yield
        return
    if isinstance(workers, int) and not 1 <= workers <= _MAX_PROCESSES:
        raise UsageError(f"jobs={workers}: give 1 to {_MAX_PROCESSES} processes")
    if not isinstance(workers, int | str | Executor):
        raise UsageError(f"workers={workers!r}: give a number, an address or an executor")
    before = _chosen.set(workers)
    try:
        yield
    finally:
        _chosen.reset(before)


class Pool:
    """Executor of tasks, with what its workers' deaths look like.

    Parameters
    ----------
    executor
        Where tasks run.
    deaths
        Exceptions by which it says that a worker ended before its result was there.
    in_files
        True if results lie in files as they are handed over.
    """

    def __init__(
        self,
        executor: Executor,
        deaths: tuple[type[Exception], ...] = (),
        *,
        in_files: bool = False,
    ) -> None:
        self.executor = executor
        self.deaths: tuple[type[Exception], ...] = (BrokenExecutor, *deaths)
        self._in_files = in_files

    def submit(self, batch: Batch) -> Future[list[Outcome]]:
        """Have a batch of sources read."""
        future = self.executor.submit(read_batch, batch)
        return _kept_when_done(future) if spill.is_on() and not self._in_files else future

    def shutdown(self, *, cancel: bool = False, wait: bool = True) -> None:
        """End its workers, and drop what they have not begun if it is cancelled."""
        self.executor.shutdown(wait, cancel_futures=cancel)


class _Threads(Pool):
    """Threads of this process: the loops over events run without Python's lock.

    Each reads a source as soon as what others hold in memory leaves room for it. Of a job that is larger than
    memory, what was read is kept in files. All small sources are read by one thread: reading them is hardly
    more than Python, for whose lock several threads would wait and take turns.
    """

    def __init__(self) -> None:
        super().__init__(ThreadPoolExecutor(cpu_count()))
        self._of_small = ThreadPoolExecutor(1)
        shared = memory.physical_bytes() // _MEMORY_OF_ONE
        self._room = memory.Room(memory.available_bytes() if spill.is_on() else shared)

    def submit(self, batch: Batch) -> Future[list[Outcome]]:
        """Have a batch of sources read when there is room."""
        sizes = [source.size for source in batch]
        executor = self._of_small if max(sizes) <= _SMALL_BYTES else self.executor
        return executor.submit(copy_context().run, self._read, batch, sum(sizes))

    def shutdown(self, *, cancel: bool = False, wait: bool = True) -> None:
        """End the threads when they have read what they began, and what is queued unless that is cancelled."""
        for executor in (self.executor, self._of_small):
            executor.shutdown(wait, cancel_futures=cancel)

    def _read(self, batch: Batch, size: int) -> list[Outcome]:
        if not spill.is_on():
            with self._room.taken(size):
                return read_batch(batch)
        ratio = registry.converter(batch[0].converter).memory_ratio
        with self._room.taken(round(ratio * size)):
            outcomes = [_kept(outcome) for outcome in read_batch(batch)]
        spill.release()
        return outcomes


def _kept_when_done(future: Future[list[Outcome]]) -> Future[list[Outcome]]:
    """A future of the same outcomes with columns and texts in files, which what was sent here is copied to at once."""
    of_kept: Future[list[Outcome]] = Future()
    context = copy_context()  # that columns are kept in files is set in it

    def keep(done: Future[list[Outcome]]) -> None:
        try:
            outcomes = done.result()
            kept = [context.run(_kept, outcome) for outcome in outcomes]
        except BaseException as error:  # noqa: BLE001 # whoever asks for the result gets it
            of_kept.set_exception(error)
        else:
            outcomes.clear()  # of a future to which its executor may refer for longer
            of_kept.set_result(kept)

    future.add_done_callback(keep)
    return of_kept


def _kept(outcome: Outcome) -> Outcome:
    """The outcome with its columns and texts in files."""
    if isinstance(outcome, FAILURES):
        return outcome
    if isinstance(outcome, Combined):
        return replace(outcome, trace=_kept_trace(outcome.trace))
    return _kept_trace(outcome)


def _kept_trace(trace: Trace) -> Trace:
    tables = {name: spill.kept_table(getattr(trace, name)) for name in hub.TABLES}
    return replace(trace, **tables, text=Text(tuple(map(spill.kept, trace.text.buffers))))


@contextmanager
def opened() -> Iterator[Pool]:
    """Open the pool that was chosen by `reading_by`; what it has not begun when a block fails is dropped."""
    workers = _chosen.get()
    if isinstance(workers, Executor):  # its owner shuts it down
        yield Pool(workers)
    elif isinstance(workers, str):
        with _dask(workers) as pool:
            yield pool
    elif workers is None:
        with _shut_down(_Threads()) as pool:
            yield pool
    else:
        from chopper_interop.reading.processes import ProcessPool

        with _shut_down(Pool(ProcessPool(workers), in_files=True)) as pool:
            yield pool


@contextmanager
def _shut_down(pool: Pool) -> Iterator[Pool]:
    """Shut a pool down behind a block; an interrupt waits for nothing, as a thread may read a large file for seconds.

    It may come while that is done as well: processes that were not ended would stay when the program has ended.
    """
    try:
        yield pool
        pool.shutdown()
    except BaseException as error:
        pool.shutdown(cancel=True, wait=not isinstance(error, KeyboardInterrupt))
        raise


@contextmanager
def _dask(address: str) -> Iterator[Pool]:
    """Open a pool of the workers of a dask scheduler.

    A worker that dies costs a further attempt, by the scheduler, as often as its configuration says
    (``distributed.scheduler.allowed-failures``).

    Raises
    ------
    UsageError
        dask is not installed, or nothing answers at the address.
    """
    try:
        from distributed import Client, KilledWorker
    except ImportError as error:
        hint = "pip install 'chopper-interop[dask]'"
        raise UsageError(f"scheduler {address}: distributed is not installed", hint=hint) from error
    try:
        make: Any = Client  # it has no types
        client = make(address, timeout=_SCHEDULER_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"scheduler {address}: no dask scheduler answers there: {error}",
            hint="start one by dask scheduler, and workers by dask worker",
        ) from error
    with client:
        yield Pool(client.get_executor(pure=False), (KilledWorker,))


@dataclass(frozen=True)
class SourceTask:
    """A source to read, in a form that can be sent to another process.

    Parameters
    ----------
    converter
        Name of the format.
    paths
        Its files, which the worker can open under these names.
    options
        Options that the format's reader takes.
    names
        Pattern of names that the user calls communication; see `communication.user_pattern`.
    max_unpacked
        Gigabytes that a compressed file may have when unpacked; None for a multiple of its size.
    bounds
        Bytes that files of an archive may have when unpacked.
    size
        Bytes of its files when they are unpacked, as far as that is known.
    digest
        True if the trace has the digest of the file.
    arguments
        False if the trace keeps only arguments that what follows looks for.
    steps
        The only training steps that the trace has; None for all.
    """

    converter: str
    paths: tuple[Path, ...]
    options: dict[str, Any] = field(default_factory=dict)
    names: str | None = None
    max_unpacked: float | None = None
    bounds: dict[Path, int] = field(default_factory=dict)
    size: int = 0
    digest: bool = True
    arguments: bool = True
    steps: tuple[int, ...] | None = None

    @classmethod
    def for_source(
        cls,
        source: SourceFiles,
        options: dict[str, Any],
        names: str | None,
        *,
        digest: bool = True,
        steps: tuple[int, ...] | None = None,
        arguments: bool = True,
    ) -> SourceTask:
        """Make the task of a source; raise `UsageError` for a value that its reader cannot take.

        Without `arguments` nobody misses them, and those of small sources are left to go when all are read.
        """
        chosen = registry.chosen_options(source.converter.reader, options)
        _refuse_rank(chosen.get("rank"))
        stated = inputs.stated_max_unpacked()
        bounds = inputs.unpacked_bounds(source.paths)
        return cls(
            source.converter.name,
            source.paths,
            chosen,
            names,
            stated,
            bounds,
            source.expected_bytes,
            digest,
            registry.keeps_arguments(options)
            and (arguments or source.expected_bytes <= _SMALL_BYTES),
            steps,
        )

    @property
    def keeps_all(self) -> bool:
        """True if the trace has all that its files have."""
        return self.arguments and self.steps is None


Batch: TypeAlias = tuple[SourceTask, ...]
"""Sources that one worker reads, in one pass if it can; all but the files are the same."""


def batches(tasks: Sequence[SourceTask]) -> list[Batch]:
    """Divide sources into batches, in their order: small ones of a format that reads several in one pass."""
    divided: list[list[SourceTask]] = []
    room = -1  # not even for a file that became empty, as one may be before the first
    for task in tasks:
        can = len(task.paths) == 1 and registry.converter(task.converter).read_together is not None
        small = can and task.size <= _SMALL_BYTES
        if small and task.size <= room and task.converter == divided[-1][0].converter:
            divided[-1].append(task)
            room -= task.size
        else:
            divided.append([task])
            room = _BATCH_BYTES - task.size if small else -1
    return [tuple(batch) for batch in divided]


def read_batch(batch: Batch) -> list[Outcome]:
    """Read the sources of a batch, in one pass if they can be.

    Those that the reader names as ones that it can't read with others are read alone. If it fails for another reason,
    halves are read, down to each alone: what is said of a source does not depend on the others.

    Returns
    -------
    list
        In the order of the sources: the trace of one, those of several that were read in one pass, or why one
        cannot be read.
    """
    if len(batch) == 1:
        try:
            return [read(batch[0])]
        except FAILURES as error:
            drop_frames(error)  # eight bombs in a folder kept 8 GB
            return [error]
    try:
        combined = _read_together(batch)
    except NotTogetherError as error:
        alone = [source.paths[0] in error.apart for source in batch]
    except ChopperError:
        half = len(batch) // 2
        return [*read_batch(batch[:half]), *read_batch(batch[half:])]
    else:
        if batch[0].keeps_all:
            return [combined]
        pairs = zip(combined.split(), batch, strict=True)
        return [_reduced(trace, source) for trace, source in pairs]
    others = tuple(source for source, apart in zip(batch, alone, strict=True) if not apart)
    rest = iter(split(read_batch(others)) if others else ())
    return [
        read_batch((source,))[0] if apart else next(rest)
        for source, apart in zip(batch, alone, strict=True)
    ]


def split(outcomes: Iterable[Outcome]) -> list[Trace | Failure]:
    """Return the trace of each source, also of those that were read in one pass, or why it cannot be read."""
    return [
        each
        for outcome in outcomes
        for each in (outcome.split() if isinstance(outcome, Combined) else [outcome])
    ]


def _read_together(batch: Batch) -> Combined:
    task, paths = batch[0], [source.paths[0] for source in batch]
    function = registry.converter(task.converter).joint_reader
    inputs.set_unpacked_bounds(
        {path: size for source in batch for path, size in source.bounds.items()}
    )
    with (
        inputs.digesting() if task.digest else nullcontext(),
        inputs.unpacking_at_most(task.max_unpacked),
        registry.as_errors("reading", task.converter, paths[0]),
        inputs.that_may_go_away(paths),
    ):
        combined = function(paths, **task.options)
        _refuse_unsound(combined, task.converter, Combined)
        combined = replace(combined, trace=communication.recognise(combined.trace, task.names))
        if task.digest:
            metas = tuple(
                replace(meta, sources=(replace(meta.sources[0], sha256=inputs.sha256(path)),))
                for meta, path in zip(combined.metas, paths, strict=True)
            )
            combined = replace(combined, metas=metas)
    return combined


def read(task: SourceTask) -> Trace:
    """Read a source.

    Raises
    ------
    ChopperError
        It cannot be read; the message names its first file.
    """
    function = registry.converter(task.converter).reader
    first = task.paths[0]
    inputs.set_unpacked_bounds(task.bounds)
    digesting = inputs.digesting() if task.digest else nullcontext()
    with inputs.unpacking_at_most(task.max_unpacked), digesting:
        with (
            registry.as_errors("reading", task.converter, first),
            inputs.that_may_go_away(task.paths),
            _reducing(task),
        ):
            trace = function(list(task.paths), **task.options)
            _refuse_unsound(trace, task.converter, Trace)
            trace = communication.recognise(trace, task.names)
            if not task.keeps_all:
                trace = _reduced(trace, task)
        memory.give_back(trace.nodes.nbytes)
        recorded = trace.meta.sources
        # a trace read back names files long gone
        if task.digest and len(task.paths) == 1 and len(recorded) == 1:
            recorded = (replace(recorded[0], sha256=inputs.sha256(first)),)
    return trace.with_meta(sources=recorded)


@contextmanager
def _reducing(task: SourceTask) -> Iterator[None]:
    """Have a reader leave out, as it reads, what `_reduced` would."""
    with (
        nullcontext() if task.arguments else left_out_arguments.scanning(),
        nullcontext() if task.steps is None else chosen_steps.reading(task.steps),
    ):
        yield


def _reduced(trace: Trace, task: SourceTask) -> Trace:
    """The trace of a source with the steps that are asked for and the arguments that what follows looks for."""
    if task.steps is not None:
        trace = chosen_steps.of_source(trace, task.steps, task.paths[0])
    return trace if task.arguments else left_out_arguments.of_source(trace)


def _refuse_unsound(made: Any, converter: str, kind: type[Trace | Combined]) -> None:
    """Raise `SchemaError` for what a plug-in's reader returned if nothing can be made of it."""
    if package := registry.brought_by(registry.CONVERTERS, converter):
        plugins.require_trace(made, converter, package, kind)


def _refuse_rank(rank: Any) -> None:
    """Raise `UsageError` for a number that cannot be a rank, whatever reader it is for."""
    if isinstance(rank, int) and not 0 <= rank <= hub.MAX_RANK:
        raise UsageError(f"option rank={rank}: a rank is a number from 0 to {hub.MAX_RANK}")
