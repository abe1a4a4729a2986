"""Reading, computing and writing at the same time: a thread makes the next item, or writes the last one.

Only what runs without Python's lock gains: reading and writing files, digests, compression, loops of numpy and `compiled`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from typing import IO, Any, TypeVar

from chopper_interop.io import outputs

Item = TypeVar("Item")
Made = TypeVar("Made")
_WORTH_A_THREAD = 1 << 18
"""Bytes that a thread writes (chosen: handing over takes some 30 us, in which a quarter of a megabyte is copied)."""
_SYNCED_BYTES = 1 << 26
"""Bytes that the disk gets at a time, so that little is left to wait for at the end, and no more memory holds what is on
its way to the disk (chosen: disks take some 0.1 s for them)."""


@cache
def threads() -> ThreadPoolExecutor:
    """Return the threads that all of a process share, one for each processor, for what waits for no other thread."""
    return ThreadPoolExecutor(os.cpu_count(), "chopper-interop")


if hasattr(os, "register_at_fork"):  # a process that is forked has none of the threads
    os.register_at_fork(after_in_child=threads.cache_clear)


def each(function: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
    """Call a function with each item, by threads if there are several; return what it returns, in the items' order."""
    given = list(items)
    if len(given) < 2:  # noqa: PLR2004
        return list(map(function, given))
    futures = [threads().submit(copy_context().run, function, item) for item in given]
    try:
        return [future.result() for future in futures]
    finally:  # no call goes on behind an error
        for future in futures:
            future.cancel()
        wait(futures)


def both(first: Callable[[], Item], second: Callable[[], Made]) -> tuple[Item, Made]:
    """Call two functions at the same time, if there is more than one processor, and return what they return.

    If one raises, the other has ended too; but an interrupt waits for nothing, as the second may take a minute.
    """
    if (os.cpu_count() or 1) == 1:
        return first(), second()
    thread = ThreadPoolExecutor(1, "chopper-second")
    is_interrupted = False
    try:
        future = thread.submit(copy_context().run, second)
        return first(), future.result()
    except KeyboardInterrupt:
        is_interrupted = True
        raise
    finally:
        thread.shutdown(wait=not is_interrupted)


def ahead(items: Iterator[Item]) -> Generator[Item]:
    """Yield items in their order, while a thread makes the one behind: two are in memory.

    ::

        thread    1 | 2 | 3 | 4
        caller        1 | 2 | 3 | 4
    """
    no_more = object()
    run = copy_context().run
    with ThreadPoolExecutor(1, "chopper-ahead") as thread:
        future: Future[Any] = thread.submit(lambda: run(next, items, no_more))
        while (item := future.result()) is not no_more:
            future = thread.submit(lambda: run(next, items, no_more))
            yield item


class WriterBehind:
    """Writes to a stream by a thread, while the caller makes what comes next.

    Only to a file: what reads a pipe may keep its writer waiting, and an interrupt ends the waiting of the caller alone.
    """

    def __init__(self, stream: IO[bytes], thread: ThreadPoolExecutor) -> None:
        self._stream = stream
        self._thread = thread
        self._is_file = _is_file(stream)
        self._last: Future[None] | None = None
        self._unsynced = 0

    def write(self, data: Any) -> None:
        """Write bytes or an array of them behind those of the last call, which are written when this returns.

        An array must stay as it is until the next call, or the end. Errors of the stream are raised by a later call.
        """
        self.finish()
        if not self._is_file or len(data) < _WORTH_A_THREAD:
            self._stream.write(data)
        else:
            self._last = self._thread.submit(self._write, memoryview(data))

    def _write(self, data: memoryview) -> None:
        self._stream.write(data)
        self._unsynced += len(data)
        if self._unsynced >= _SYNCED_BYTES:
            outputs.sync_descriptor(self._stream.fileno())
            outputs.release_cache(self._stream.fileno())
            self._unsynced = 0

    def finish(self) -> None:
        """Wait until all is written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()


def _is_file(stream: IO[bytes]) -> bool:
    """True for a file; not for a pipe, a device, or a stream in memory."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:  # no descriptor: in memory
        return False


@contextmanager
def writer_behind(stream: IO[bytes]) -> Iterator[WriterBehind]:
    """Open a `WriterBehind`; all is written at the end of the block, unless it raises."""
    with ThreadPoolExecutor(1, "chopper-writer") as thread:
        writer = WriterBehind(stream, thread)
        yield writer
        writer.finish()
