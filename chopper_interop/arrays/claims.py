"""Claims of loops by processes that compile them into the same folder: others wait for the result.

A claim is a lock on one byte of a file, at a place that follows from the name of the code. The system ends it with the process,
however that ends, so that no claim is left behind. Threads of one process share its claims; numba compiles in one at a time.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import cache
from typing import Any

from chopper_interop.arrays import code_files

fcntl: Any = None
with contextlib.suppress(ImportError):  # Windows: each process compiles for itself
    import fcntl

WAIT_S = 60.0
"""Time for which to wait for another process (chosen: ten times what the dearest loop takes on a busy machine)."""
_PAUSE_S = 0.01
"""Time between two looks (chosen: a hundredth of what a loop takes to compile)."""
_DIGITS = 15
"""Hexadecimal digits of a name of code that make a place: a file has places for no more."""
_in_vain: set[str] = set()
"""Names that another process kept for longer than this one waited."""


def are_possible() -> bool:
    """Return True if processes can see each other's claims."""
    return _file() is not None


def take(name: str, *, wait_s: float = WAIT_S) -> bool:
    """Claim the code of a name; return False if it is another process's, for as long as to wait for it.

    Without a folder or a file system with locks, no other process is in the way. Who waited in vain once waits no more: a
    process that hangs, as one that its user stopped, has claims of several loops.
    """
    end = time.monotonic() + (0 if _in_vain else wait_s)
    while not _take_now(name):
        if time.monotonic() >= end:
            if wait_s:
                _in_vain.add(name)
            return False
        time.sleep(_PAUSE_S)
    return True


def release(name: str) -> None:
    """Give up a claim."""
    _lock(fcntl and fcntl.LOCK_UN, 1, _place(name))


def release_all() -> None:
    """Give up all claims of this process, those of loops of which compiling failed among them."""
    _lock(fcntl and fcntl.LOCK_UN, 0, 0)


def _take_now(name: str) -> bool:
    return _lock(fcntl and fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(name))


def _lock(command: int, length: int, place: int) -> bool:
    file = _file()
    if file is not None:
        try:
            fcntl.lockf(file, command, length, place)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # a file system without locks
            return True
    return True


def _place(name: str) -> int:
    return int(name.rpartition("-")[2][:_DIGITS], 16)


@cache
def _file() -> int | None:
    """Open the file of claims, once: to close any opening of it would end all claims of the process."""
    folder = code_files.code_folder()
    if folder is None or fcntl is None:
        return None
    try:
        file = os.open(folder / "claims", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # else it is removed with code that no run used for long, and others open another one
        os.utime(file)
    except OSError:
        return None
    return file
