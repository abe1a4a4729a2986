"""Work by threads: in order, one ahead, with errors where they belong."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from chopper_interop.io import background

if TYPE_CHECKING:
    from pathlib import Path


def test_each_returns_in_order_and_raises_what_is_raised() -> None:
    """Calls end in another order than they began."""
    second_is_done = threading.Event()

    def call(number: int) -> int:
        if number == 0 and (os.cpu_count() or 1) > 1:
            assert second_is_done.wait(10)
        second_is_done.set()
        if number == 7:
            raise ValueError(number)
        return 10 * number

    assert background.each(call, range(3)) == [0, 10, 20]
    with pytest.raises(ValueError, match="7"):
        background.each(call, [7, 1])


def test_no_call_goes_on_behind_an_error() -> None:
    """Calls that have not begun when one raises never do, and the others have ended."""
    running: set[int] = set()
    begun: list[int] = []

    def call(number: int) -> None:
        if number == 0:
            raise ValueError
        running.add(number)
        begun.append(number)
        time.sleep(0.05)
        running.remove(number)

    count = 20 * (os.cpu_count() or 1)
    with pytest.raises(ValueError):  # noqa: PT011
        background.each(call, range(count))
    assert not running
    assert len(begun) < count / 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows")
def test_a_process_that_is_forked_has_threads_of_its_own() -> None:
    """Those of the process before do not exist in it: it waited for them without an end."""
    code = (
        "import os, signal, threading\n"
        "from chopper_interop.io import background\n"
        "all_wait = threading.Barrier(os.cpu_count() or 1)\n"
        "waiting = [background.threads().submit(all_wait.wait) for _ in range(all_wait.parties)]\n"
        "assert sum(future.result() >= 0 for future in waiting) == all_wait.parties\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    signal.alarm(10)\n"
        "    os._exit(background.each(abs, range(2))[1])\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 1


VALUE: ContextVar[int] = ContextVar("value", default=0)


@pytest.mark.parametrize(
    "call",
    [
        lambda get: background.each(get, range(2)),
        lambda get: background.both(partial(get, 0), partial(get, 1)),
        lambda get: background.ahead(map(get, range(2))),
    ],
)
def test_threads_see_what_is_set_for_their_caller(call: Callable[..., Iterable[int]]) -> None:
    """Limits of memory, and who shows progress, are set for a block."""
    token = VALUE.set(7)
    try:
        assert list(call(lambda _: VALUE.get())) == [7, 7]
    finally:
        VALUE.reset(token)


def test_an_item_is_made_while_the_one_before_is_taken() -> None:
    """That is what the thread is for."""
    is_begun = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        is_begun.set()
        yield 1

    for number in background.ahead(items()):
        assert number == 1 or is_begun.wait(10)


def test_what_is_ahead_is_made_by_another_thread_and_no_more_than_that() -> None:
    """Two items are in memory; an error is raised where the item would be."""
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(5):
            made.append(number)
            yield number
        raise ValueError("behind the last")

    ahead = background.ahead(items())
    for number in range(5):
        assert next(ahead) == number
        assert len(made) <= number + 2
    with pytest.raises(ValueError, match="behind the last"):
        next(ahead)


def test_nothing_runs_on_behind_an_end_before_the_last_item() -> None:
    """The thread has ended when the generator is closed."""
    before = threading.active_count()
    items = background.ahead(iter(range(100)))
    assert next(items) == 0
    items.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("sizes", [[3, 1 << 20, 5, 1 << 20, 1 << 20], [1 << 20]])
@pytest.mark.parametrize("is_in_memory", [False, True])
def test_what_is_written_behind_is_in_order(
    tmp_path: Path, sizes: list[int], *, is_in_memory: bool
) -> None:
    """Two arrays take turns, each filled again as soon as the next is given."""
    arrays = [np.empty(1 << 20, np.uint8) for _ in range(2)]
    with (
        io.BytesIO() if is_in_memory else (tmp_path / "file").open("w+b") as stream,
        background.writer_behind(stream) as writer,
    ):
        for number, size in enumerate(sizes):
            array = arrays[number % 2]
            array[:] = number
            writer.write(array[:size])
        writer.finish()
        stream.seek(0)
        assert stream.read() == b"".join(bytes([n]) * size for n, size in enumerate(sizes))


class Late(io.FileIO):
    """A file that takes a while."""

    def write(self, data: Any) -> int:
        time.sleep(0.02)
        return super().write(data)


def test_what_was_given_may_change_when_more_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk gets it along the way."""
    synced: list[int] = []
    monkeypatch.setattr(background.outputs, "sync_descriptor", synced.append)
    monkeypatch.setattr(background.outputs, "release_cache", lambda d: synced.append(-d))
    monkeypatch.setattr(background, "_SYNCED_BYTES", 1 << 20)
    size = 1 << 19
    arrays = [np.empty(size, np.uint8) for _ in range(2)]
    with (
        Late(tmp_path / "file", "w") as stream,
        background.writer_behind(stream) as writer,  # type: ignore[arg-type]
    ):
        for number in range(5):
            arrays[number % 2][:] = number
            writer.write(arrays[number % 2])
        descriptor = stream.fileno()
    assert (tmp_path / "file").read_bytes() == b"".join(bytes([n]) * size for n in range(5))
    assert synced == [descriptor, -descriptor] * 2


def test_an_error_of_the_stream_is_raised_once_at_the_latest_at_the_end(tmp_path: Path) -> None:
    """As of a full disk, on which the last piece has no room."""

    class Full(io.FileIO):
        def write(self, _: object) -> int:
            raise OSError(28, "No space left on device")

    def write_one() -> None:
        with (
            Full(tmp_path / "file", "w") as stream,
            background.writer_behind(stream) as writer,  # type: ignore[arg-type]
        ):
            writer.write(np.zeros(1 << 20, np.uint8))

    with pytest.raises(OSError, match="No space left"):
        write_one()
    with (
        Full(tmp_path / "file", "w") as stream,
        background.writer_behind(stream) as writer,  # type: ignore[arg-type]
    ):
        writer.write(np.zeros(1 << 20, np.uint8))
        with pytest.raises(OSError, match="No space left"):
            writer.finish()


def test_a_pipe_is_written_by_the_caller(tmp_path: Path) -> None:
    """By a thread, an interrupt waited for the pipe's reader, which may never read."""
    writers = []

    class Noted(io.FileIO):
        def write(self, data: memoryview) -> int:
            writers.append(threading.get_ident())
            return len(data)

    reader, end = os.pipe()
    for target in (end, tmp_path / "file"):
        with (
            Noted(target, "w") as stream,
            background.writer_behind(stream) as writer,  # type: ignore[arg-type]
        ):
            writer.write(np.zeros(1 << 20, np.uint8))
    os.close(reader)
    of_pipe, of_file = writers
    assert of_pipe == threading.get_ident() != of_file


def test_an_interrupt_waits_for_no_other_thread() -> None:
    """Of a large trace, what the other thread does takes a minute."""
    is_over = threading.Event()

    def interrupted() -> None:
        raise KeyboardInterrupt

    def second() -> None:
        is_over.wait(10)
        is_over.set()

    with pytest.raises(KeyboardInterrupt):
        background.both(interrupted, second)
    waited = is_over.is_set()
    is_over.set()
    assert not waited or os.cpu_count() == 1


def test_an_error_of_one_of_both_waits_for_the_other() -> None:
    """Nothing runs on behind it."""
    is_over = threading.Event()

    def failing() -> None:
        raise ValueError

    def second() -> None:
        time.sleep(0.1)
        is_over.set()

    with pytest.raises(ValueError):  # noqa: PT011
        background.both(failing, second)
    assert is_over.is_set() or os.cpu_count() == 1


def test_both_return_what_each_returns() -> None:
    """One of them is called by another thread where there are several processors."""
    threads = background.both(threading.get_ident, threading.get_ident)
    assert threads[0] == threading.get_ident()
    assert (threads[0] == threads[1]) is (os.cpu_count() == 1)
