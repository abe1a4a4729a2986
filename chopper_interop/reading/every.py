"""Reading of all sources of a job, once the memory that it takes is estimated.

What is read is held at once, with the columns that are made of it: a multiple of the unpacked files. Where that is
more than there is, sources are read a few at a time, and what was read of them is kept in files (`arrays.spill`). The
multiple is `Converter.memory_ratio`. It was measured as the peak of ``chopper-convert`` less the 270 MB of
a process that reads next to nothing, over the bytes of the unpacked files:

===================================================  =======  =============
input, and what was written                          MB       ratio
===================================================  =======  =============
Kineto, misc/rank0 8 times: Perfetto; Parquet;       208      2.2; 2.4; 2.0
four analyses
Kineto, mi300x/resnet_act_checkpoint 12 times:       203      2.5
Perfetto
Kineto, both, 1.04 GB each: Perfetto                 1,040    2.0 to 2.2
Kineto, ddp_resnet_4rank_amd, fused; in four files   140; 46  1.3; 2.9
rocprofv3 JSON, v3_json_mi350x: Perfetto             38       1.1
Perfetto, made of the first: Parquet                 90       7.7
===================================================  =======  =============
"""

from __future__ import annotations

import math
from concurrent.futures import Future
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from chopper_interop import progress
from chopper_interop.errors import ReadError, TooLittleMemoryError
from chopper_interop.io import archives, inputs, memory
from chopper_interop.joining.fragment import Fragment
from chopper_interop.reading import workers
from chopper_interop.reading.workers import SourceTask
from chopper_interop.sharing import texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.reading.workers import Pool
    from chopper_interop.sources import SourceFiles
    from chopper_interop.trace import Trace


TASK = "reading"
_ATTEMPTS = 3
"""Attempts at a source whose reading ends its worker (chosen: dask's number of them)."""
_FEWER = "chopper-convert --ranks 0-3 and read(ranks=...) read some ranks alone; "


def read_all(
    sources: Sequence[SourceFiles], options: dict[str, Any], names: str | None
) -> tuple[list[Fragment], list[ReadError]]:
    """Read all sources by the workers that were chosen.

    Parameters
    ----------
    sources
        The sources.
    options
        Options of readers; each goes to those that take it.
    names
        Pattern of names that the user calls communication.

    Returns
    -------
    fragments, failures
        In the order of the sources; why files of a folder could not be read. The error of a file that was
        given by name is raised.
    """
    progress.start(TASK, sum(map(_bytes, sources)), "bytes")
    tasks = [SourceTask.of(source, options, names) for source in sources]
    fragments: list[Fragment] = []
    failures: list[ReadError] = []
    with workers.opened() as pool:
        futures = [_first_attempt(pool, *pair) for pair in zip(tasks, sources, strict=True)]
        for source, task, future in zip(sources, tasks, futures, strict=True):
            result = _fragment(pool, source, task, future)
            if isinstance(result, Fragment):
                fragments.append(result)
            else:
                failures.append(result)
    if not fragments:
        raise failures[0]
    return fragments, failures


def _first_attempt(pool: Pool, task: SourceTask, source: SourceFiles) -> Future[Trace]:
    future = _submitted(pool, task)
    context = copy_context()  # the reporter of progress is set in it
    size = _bytes(source)
    future.add_done_callback(lambda _: context.run(progress.advance, TASK, size))
    return future


def _bytes(source: SourceFiles) -> int:
    """Bytes of a source on disk; 0 if it has gone away, of which its reader says."""
    try:
        return source.size
    except ReadError:
        return 0


def _submitted(pool: Pool, task: SourceTask) -> Future[Trace]:
    try:
        return pool.submit(task)
    except pool.deaths as error:  # of a pool that is broken as a whole
        failed: Future[Trace] = Future()
        failed.set_exception(error)
        return failed


def _fragment(
    pool: Pool, source: SourceFiles, task: SourceTask, future: Future[Trace]
) -> Fragment | ReadError:
    """The trace of a source, or why a file of a folder could not be read."""
    try:
        with archives.names_shown():
            trace = _result(pool, task, future, attempt=1)
    except ReadError as error:
        if source.named:
            raise
        return error
    if source.recorded != source.paths:
        meta = texts.change_meta(trace.meta, lambda _, text: archives.shown_text(text))
        trace = trace.with_meta(**vars(meta))
    return Fragment(source, trace)


def _result(pool: Pool, task: SourceTask, future: Future[Trace], attempt: int) -> Trace:
    """The trace of a source; one whose worker dies is read again, a few times.

    Raises
    ------
    ReadError
        Its workers die each time.
    """
    try:
        return future.result()
    except pool.deaths as error:
        if attempt == _ATTEMPTS:
            raise ReadError(
                f"each process that read it ended before it was done, {attempt} times",
                path=task.paths[0],
                hint="too little memory is the most frequent reason",
            ) from error
    return _result(pool, task, _submitted(pool, task), attempt + 1)


def needed_bytes(source: SourceFiles) -> float:
    """Estimate the memory that a source takes to be read and joined."""
    return source.converter.memory_ratio * sum(map(inputs.expected_bytes, source.paths))


def exceeds_memory(sources: Sequence[SourceFiles]) -> bool:
    """Return True if the sources together need more memory than is available, though not each alone.

    Raises
    ------
    TooLittleMemoryError
        One of them alone needs more than is available.
    """
    needed = [needed_bytes(source) for source in sources]
    available = memory.available_bytes()
    if sum(needed) <= available:
        return False
    largest = max(range(len(needed)), key=needed.__getitem__)
    if needed[largest] <= available:
        return True
    several = len(sources) > 1
    files = f"the largest of these {len(sources)} sources" if several else "it"
    tenths = math.ceil(needed[largest] / 1e8) / 10
    raise TooLittleMemoryError(
        f"reading {files} takes about {tenths:,.1f} GB of memory, and {available / 1e9:,.1f} GB are there",
        path=sources[largest].paths[0],
        hint=f"{_FEWER if several else ''}--max-memory {tenths} tries it all the same",
    )
