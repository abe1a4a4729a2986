"""Atomic exchange of two folders, where the operating system has one."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

# Paths relative to the working folder, fcntl.h of Linux.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 1 << 1  # renameat2(2), Linux 3.15
_RENAME_SWAP = 1 << 1  # renamex_np(2), macOS 10.12
_NOT_SUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
"""Errors of kernels and file systems (NFS, some FUSE) without it."""


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two existing files or folders of one file system in a single step.

    Returns
    -------
    bool
        False if the system or the file system has no such call: nothing was changed.

    Raises
    ------
    OSError
        One of them is a mount point or in use, or permission is missing.
    """
    call = _exchange_call()
    if call is None:
        return False
    sys.audit("chopper_interop.exchange", str(one), str(other))
    if call(os.fsencode(one), os.fsencode(other)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_SUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(other))


@cache
def _exchange_call() -> Callable[[bytes, bytes], int] | None:
    """Return the system call; None where there is none."""
    if sys.platform == "win32":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        return lambda a, b: int(libc.renameat2(_AT_FDCWD, a, _AT_FDCWD, b, _RENAME_EXCHANGE))
    if hasattr(libc, "renamex_np"):
        return lambda a, b: int(libc.renamex_np(a, b, _RENAME_SWAP))
    return None
