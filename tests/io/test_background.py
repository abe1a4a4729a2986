"""Work by threads: in order, one ahead, with errors where they belong."""

from __future__ import annotations

import io
import os
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from chopper_interop.io import background

if TYPE_CHECKING:
    from collections.abc import Iterator


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
def test_what_is_written_behind_is_in_order(sizes: list[int]) -> None:
    """Two arrays take turns, each filled again as soon as the next is given."""
    stream = io.BytesIO()
    arrays = [np.empty(1 << 20, np.uint8) for _ in range(2)]
    with background.writer_behind(stream) as writer:
        for number, size in enumerate(sizes):
            array = arrays[number % 2]
            array[:] = number
            writer.write(array[:size])
    assert stream.getvalue() == b"".join(bytes([n]) * size for n, size in enumerate(sizes))


def test_an_error_of_the_stream_is_raised_once_at_the_latest_at_the_end() -> None:
    """As of a full disk, on which the last piece has no room."""

    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(28, "No space left on device")

    def write_one() -> None:
        with background.writer_behind(Full()) as writer:
            writer.write(np.zeros(1 << 20, np.uint8))

    with pytest.raises(OSError, match="No space left"):
        write_one()


def test_both_return_what_each_returns() -> None:
    """One of them is called by another thread where there are several processors."""
    threads = background.both(threading.get_ident, threading.get_ident)
    assert threads[0] == threading.get_ident()
    assert (threads[0] == threads[1]) is (os.cpu_count() == 1)
