"""Byte ranges of texts that lie in several pieces."""

from unittest import mock

import numpy as np
import pytest

from chopper_interop.arrays import gather


@pytest.mark.parametrize("at_once", [1, 3, 1 << 25])
def test_ranges_are_the_same_however_many_are_copied_at_once(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """An interrupt waits for the call of a loop: of a gigabyte, it was seconds."""
    monkeypatch.setattr(gather, "_COPIED_AT_ONCE", at_once)
    calls = mock.Mock(wraps=gather._copy)
    monkeypatch.setattr(gather, "_copy", calls)
    buffers = [np.frombuffer(text, np.uint8) for text in (b"0123456789", b"abcdefghij")]
    at, length = np.array([2, 15, 0, 4, 19, 11]), np.array([3, 2, 0, 6, 1, 1])
    out = gather.concatenate_ranges(buffers, np.array([0, 10]), at, length)
    assert out.tobytes() == b"234fg456789jb"
    assert calls.call_count == {1: 5, 3: 5, 1 << 25: 2}[at_once]
