"""A window of a text has the bytes of the text, however it is read and wherever it moves."""

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_interop import errors
from chopper_interop.io import inputs
from chopper_interop.io.inputs import TextWindow
from chopper_interop.issues import IssueLog

TEXT = bytes(range(256)) * 3


def blocks(size: int) -> Iterator[np.ndarray]:
    """The text in one array again and again, as files are read."""
    shared = np.empty(size, np.uint8)
    for at in range(0, len(TEXT), size):
        part = shared[: len(TEXT) - at]
        part[:] = np.frombuffer(TEXT[at : at + size], np.uint8)
        yield part


MOVES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 90)), max_size=8)


@given(st.integers(1, 800), MOVES)
def test_a_window_has_what_is_there_in_the_text(size: int, moves: list[tuple[int, int]]) -> None:
    window, passed = TextWindow(blocks(size)), []
    for count, more in moves:
        before, count = window.bytes, min(count, len(window.bytes))  # noqa: PLW2901
        end = min(window.base + len(before) + more, len(TEXT))
        window.move(count, more)
        assert bytes(window.bytes) == TEXT[window.base : end]
        assert window.complete == (end == len(TEXT))
        passed.append(before[:count])
    window.put_back(passed, 1)
    window.finish()
    assert (window.base, bytes(window.bytes)) == (1, TEXT[1:])


@given(st.integers(1, 800), MOVES)
def test_memory_of_windows_is_used_again(size: int, moves: list[tuple[int, int]]) -> None:
    window = TextWindow(blocks(size))
    for count, more in moves:
        before = window.bytes
        window.move(min(count, len(before)), more)
        window.reuse(before)
        assert bytes(window.bytes) == TEXT[window.base : window.base + len(window.bytes)]


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("size", [0, 1, 20, 300_000])
def test_blocks_of_a_file_are_all_of_it(
    tmp_path: Path, codec: str, pack: Callable[[bytes], bytes], size: int
) -> None:
    data = ("[{}, " + "é" * size).encode(codec)
    path = tmp_path / "a.json"
    path.write_bytes(pack(data))
    log = IssueLog()
    parts = [part.copy() for part in inputs.blocks(path, log)]
    assert np.concatenate(parts).tobytes() == inputs.read(path).tobytes()
    assert not list(log)


def test_a_file_that_gets_shorter_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(bytes(4_000_000))
    parts = inputs.blocks(path, IssueLog())
    next(parts)
    path.write_bytes(bytes(1_200_000))
    with pytest.raises(errors.ReadError, match="cut short"):
        list(parts)
