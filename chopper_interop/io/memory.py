"""Memory of the machine, shared by what is read at the same time."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNKNOWN = 1 << 34
"""Bytes that are assumed where the system does not say (chosen: a laptop's)."""
_GROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Files in which Linux states what a container may take, versions 2 and 1."""


@cache
def physical_bytes() -> int:
    """Return the memory of the machine or, if that is less, of the container."""
    known = [_UNKNOWN]
    with suppress(AttributeError, OSError, ValueError):  # Windows has no sysconf
        known = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _GROUP_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            known.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(known)


class Room:
    """Bytes that threads share: each waits until there is room for what it reads.

    Parameters
    ----------
    size
        Bytes in all. What is larger is read alone.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._changed = Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Wait for so many bytes, and keep them for the duration of a block."""
        size = min(size, self._size)
        with self._changed:
            self._changed.wait_for(lambda: self._used + size <= self._size)
            self._used += size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify_all()
