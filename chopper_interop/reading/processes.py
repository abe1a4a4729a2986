"""An executor of processes, each of which may die without harm to the others.

A result is handed over by a file: columns are mapped, neither sent nor copied.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

from chopper_interop.errors import WriteError
from chopper_interop.io import temporary

_ALIGNMENT = 64
"""Bytes to which columns are aligned, as Arrow recommends."""


class ProcessPool(Executor):
    """Runs functions in processes, and takes their results over by files.

    A pool of `concurrent.futures` fails as a whole if one of its processes dies. So each process is a
    pool of its own here, and what dies with one is its task: ``BrokenProcessPool``, and the next task of that
    place gets a new process.

    Parameters
    ----------
    count
        Number of processes.
    """

    def __init__(self, count: int) -> None:
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(temporary.folder())
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
        self._stack.close()

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        place = self._idle.get()
        try:
            stored = place.call(store, self._folder, function, *arguments)
        finally:
            self._idle.put(place)
        return stored.load()


class _Process:
    """A process, which is started when it is first needed, and again when it has died."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._pid = 0
        self._is_ended = False
        self._lock = Lock()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the process; raise `BrokenExecutor` if it dies of that."""
        try:
            return self._started().submit(function, *arguments).result()
        except BrokenExecutor:
            self.end()
            raise

    def kill(self) -> None:
        """End the process at once, for good."""
        with self._lock:  # or a thread would start one behind that
            self._is_ended = True
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def end(self) -> None:
        """End the process when it has nothing to do."""
        # a thread whose process dies and the one that shuts down: a second would close its files again, and must not go on
        # before the first is done, or the program ends while semaphores are there, of which Python warns
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown()  # an interrupt comes here; the next call waits on
                self._pool, self._pid = None, 0

    def _started(self) -> ProcessPoolExecutor:
        pid = None
        with self._lock:
            if self._pool is None and not self._is_ended:
                # a fork would take over threads' locks in whatever state they are
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(1, context, _ignore_interrupts)
                with _interrupts_blocked():
                    pid = self._pool.submit(os.getpid)
            pool = self._pool
        if pid is not None:
            number = pid.result()
            if self._pool is pool:  # else it has ended, and the number may be another's
                self._pid = number
        if pool is None or self._is_ended:
            raise BrokenExecutor("the executor was shut down")
        return pool


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: while they import, they would print a traceback each."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore_interrupts() -> None:
    """Leave Ctrl-C, which reaches all processes of a terminal, to the one that waits for the results."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@dataclass(frozen=True)
class Stored:
    """A result whose buffers lie in a file.

    Parameters
    ----------
    path
        The file.
    places
        Start and end of each buffer in it.
    content
        Everything else, pickled.
    """

    path: Path
    places: tuple[tuple[int, int], ...]
    content: bytes

    def load(self) -> Any:
        """Return the result, whose buffers are pages of the file, and remove the name of the file.

        Pages that are written to are copied. Those that are not can be dropped when memory is short, as the
        disk has them.
        """
        with self.path.open("rb") as file:
            pages = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        with suppress(PermissionError):  # Windows keeps it until nothing is mapped
            self.path.unlink()
        buffers = [pages[start:stop] for start, stop in self.places]
        return pickle.loads(self.content, buffers=buffers)  # noqa: S301 # made by `store`


def store(folder: Path, function: Callable[..., Any], *arguments: Any) -> Stored:
    """Call a function and store what it returns in a new file in a folder."""
    buffers: list[pickle.PickleBuffer] = []
    result = function(*arguments)
    content = pickle.dumps(result, protocol=5, buffer_callback=buffers.append)
    places = []
    try:
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            for buffer in buffers:
                file.write(bytes(-file.tell() % _ALIGNMENT))
                start = file.tell()
                file.write(buffer.raw())
                places.append((start, file.tell()))
            file.write(bytes(1))  # an empty file cannot be mapped
    except OSError as error:
        raise WriteError(
            f"what a process has read cannot be written: {error.strerror or error}",
            path=folder.parent,
            hint="name another folder for such files by TMPDIR",
        ) from error
    return Stored(Path(file.name), tuple(places), content)
