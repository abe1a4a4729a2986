"""An executor of processes, each of which may die without harm to the others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from chopper_interop.reading import handover

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


class Processes(Executor):
    """Runs functions in processes, and takes their results over by files.

    A pool of `concurrent.futures` fails as a whole if one of its processes dies. So each process is a
    pool of its own here, and what dies with one is its task: `BrokenProcessPool`, and the next task of that
    place gets a new process.

    Parameters
    ----------
    count
        Number of processes.
    """

    def __init__(self, count: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="chopper-", ignore_cleanup_errors=True)
        self._threads = ThreadPoolExecutor(count)
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        self._places = [_Process() for _ in range(count)]
        for place in self._places:
            self._idle.put(place)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function, which can be pickled, in one of the processes."""
        if kwargs:
            raise TypeError("functions are called with arguments by position")
        return self._threads.submit(self._run, fn, *args)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """End all processes; with `cancel_futures` at once, whatever they do."""
        if cancel_futures:
            self._threads.shutdown(wait=False, cancel_futures=True)
            for place in self._places:
                place.kill()
        self._threads.shutdown(wait=wait)
        for place in self._places:
            place.end()
        self._folder.cleanup()

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        place = self._idle.get()
        try:
            stored = place.call(handover.store, Path(self._folder.name), function, *arguments)
        finally:
            self._idle.put(place)
        return stored.load()


class _Process:
    """A process, which is started when it is first needed, and again when it has died."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._pid = 0
        self._is_ended = False

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the process; raise `BrokenExecutor` if it dies of that."""
        try:
            return self._started().submit(function, *arguments).result()
        except BrokenExecutor:
            self.end()
            raise

    def kill(self) -> None:
        """End the process at once, for good."""
        self._is_ended = True
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def end(self) -> None:
        """End the process when it has nothing to do."""
        if self._pool is not None:
            self._pool.shutdown()
        self._pool, self._pid = None, 0

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # a fork would take over threads' locks in whatever state they are
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, _ignore_interrupts)
            self._pid = self._pool.submit(os.getpid).result()
        if self._is_ended:
            raise BrokenExecutor("the executor was shut down")
        return self._pool


def _ignore_interrupts() -> None:
    """Leave Ctrl-C, which reaches all processes of a terminal, to the one that waits for the results."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
