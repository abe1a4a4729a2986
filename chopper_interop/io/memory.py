"""Memory: what the machine has, what this process may still take of it, and errors where that is too little."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from threading import Condition

from chopper_interop import byte_sizes
from chopper_interop.errors import (
    READ_FEWER,
    READ_LESS,
    TooLargeError,
    TooLittleMemoryError,
    UsageError,
    is_beyond_columns,
    is_short_of_memory,
)

_MAPPINGS = Path("/proc/self/maps")
"""File in which Linux states what this process has mapped, a line for each mapping."""
_LINKER, _IS_CODE = "/libllvmlite.so", " r-xp "
"""Parts of a line of a mapping: of LLVM, and of code."""
_UNKNOWN = 1 << 34
"""Bytes that are assumed where the system does not say (chosen: a laptop's)."""
_MACHINE = Path("/proc/meminfo")
"""File in which Linux states the memory of the machine, a line for each quantity."""
_GROUPS = Path("/proc/self/cgroup")
"""File in which Linux states the control groups of this process, a line for each hierarchy."""
_CONTROL = Path("/sys/fs/cgroup")
_GROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Version 2 and 1 of Linux's control groups: files with the limit and what is taken, and the line of
``memory.stat`` with the part of it that is given back on demand."""
_MAX_GIGABYTES = 1e9
"""Gigabytes that an option may state; beyond it bytes are no 64-bit number."""
_MIN_GIVEN_BACK = 1 << 24
"""Bytes of work from which memory is given back (chosen: they take some tenths of a second, the call some milliseconds)."""
_MALLOC_ARENAS = -8
"""``M_ARENA_MAX`` of glibc's malloc.h: places where it keeps memory that was freed."""
_STATED: ContextVar[int | None] = ContextVar("_STATED", default=None)
"""Bytes that reading may take, as the user says; None for what is available."""


@cache
def physical_bytes() -> int:
    """Return the memory of the machine or, if that is less, of the container."""
    known = [_UNKNOWN]
    with suppress(AttributeError, OSError, ValueError):  # Windows has no sysconf
        known = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    return min(known + [limit for limit, _ in _group_limits()])


def available_bytes() -> int:
    """Return the memory that this process may still take.

    That is the least of the user's limit (`at_most`) or, without one, of what the machine has
    available, what the limits of the control groups of this process leave (a container's, a job's), and
    what its own limits leave (``ulimit -v`` and ``-d``).
    """
    stated = _STATED.get()
    if stated is not None:
        return stated
    left = [_available_of_machine()]
    left += [limit - used for limit, used in _group_limits()]
    return max(0, min([*left, *_process_limits().values()]))


def described(size: int) -> str:
    """Return `available_bytes` as words, with what states it."""
    amount = byte_sizes.described(size)
    return f"{amount} were available" if _STATED.get() is None else f"max-memory allows {amount}"


def _available_of_machine() -> int:
    """Return what the machine has available; of Linux without psutil, whose import takes 8 ms of a small job's half second."""
    with suppress(OSError, LookupError, ValueError):
        lines = _MACHINE.read_text().splitlines()
        stated = dict(line.split(":", 1) for line in lines)
        available, total = (int(stated[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
        # some kernels and containers state 0, or more than there is: psutil estimates it then
        if 0 < available <= total:
            return available << 10
    import psutil

    return int(psutil.virtual_memory().available)


def at_most(gigabytes: float | None) -> AbstractContextManager[None]:
    """Set how much memory reading may take, within a block; as `limit_set`."""
    return limit_set(_STATED, "max-memory", gigabytes)


@contextmanager
def limit_set(
    limit: ContextVar[int | None], option: str, gigabytes: float | None
) -> Iterator[None]:
    """Set a limit in bytes that an option states, within a block; None leaves it as it is.

    Raises
    ------
    UsageError
        It is no size.
    """
    if gigabytes is None:
        yield
        return
    if not 0 < gigabytes < _MAX_GIGABYTES:
        raise UsageError(f"{option}={gigabytes:g}: give gigabytes above 0")
    before = limit.set(round(gigabytes * 1e9))
    try:
        yield
    finally:
        limit.reset(before)


@contextmanager
def sufficing(subject: str, path: os.PathLike[str] | None = None) -> Iterator[None]:
    """Raise `TooLittleMemoryError` if memory does not suffice for a block, `TooLargeError` if a column does not.

    Parameters
    ----------
    subject
        What the block does, such as "reading kineto".
    path
        The file concerned.
    """
    try:
        yield
    except Exception as error:
        if is_beyond_columns(error):
            raise TooLargeError(
                f"{subject} takes more text than a column can hold", path=path, hint=READ_FEWER
            ) from error
        if not is_short_of_memory(error):
            raise
        raise TooLittleMemoryError(
            f"{subject} takes more memory than there is", path=path, hint=READ_LESS
        ) from error


def give_back(size: int) -> None:
    """Give the system what the C library keeps of memory that was freed, after work on so many bytes.

    glibc keeps a third of what reading a trace took, in pieces that what follows has no use for.
    """
    if size < _MIN_GIVEN_BACK:
        return
    if "pyarrow" in sys.modules:  # whose own pool keeps some ten megabytes
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    with suppress(
        AttributeError, OSError, TypeError
    ):  # other libraries, and Windows, which names none
        ctypes.CDLL(None).malloc_trim(0)
        _unmap_linker()


def _unmap_linker() -> None:
    """Unmap the code of LLVM until it is called again, which the system keeps in its cache of the file.

    Loading it maps 40 MB, of which linking loops takes three. Only its code: parts of its data were written to.
    """
    libc = ctypes.CDLL(None)
    for line in _MAPPINGS.read_text().splitlines():
        if _LINKER in line and _IS_CODE in line:
            begin, end = (int(address, 16) for address in line.split(None, 1)[0].split("-"))
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def share_between_threads() -> None:
    """Have threads use what others freed, for a process of this program alone.

    glibc keeps what a thread frees for that thread; of a large trace, which several work on, that was a twentieth.
    """
    with suppress(AttributeError, OSError, TypeError):  # as above
        ctypes.CDLL(None).mallopt(_MALLOC_ARENAS, 1)


def _group_limits() -> list[tuple[int, int]]:
    """Limit and use, in bytes, of the control groups that this process is in and that have a limit."""
    try:
        lines = _GROUPS.read_text().splitlines()
    except OSError:  # not Linux
        return []
    limits = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        for controller in set(controllers.split(",")) & _GROUP_FILES.keys():
            names = _GROUP_FILES[controller]
            for root in (_CONTROL / controller, _CONTROL / "unified"):
                limits += [_limit(folder, names) for folder in _with_parents(root, group)]
    return [limit for limit in limits if limit is not None]


def _with_parents(root: Path, group: str) -> list[Path]:
    """Folders of a control group and of those that it is in; within a container they may begin at `root`."""
    parts = Path(group.strip("/")).parts
    return [root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _limit(folder: Path, names: tuple[str, str, str]) -> tuple[int, int] | None:
    """Limit and use of a control group; None where it has no limit."""
    try:
        limit, used = (int((folder / name).read_text()) for name in names[:2])
        lines = (folder / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no such folder, or "max"
        return None
    state = dict(line.split(" ", 1) for line in lines if " " in line)
    return limit, used - int(state.get(names[2], 0))


def address_space_left() -> int | None:
    """Bytes of addresses that a limit (``ulimit -v``) leaves to this process; None without one."""
    return _process_limits().get("RLIMIT_AS")


def _process_limits() -> dict[str, int]:
    """Bytes that the limits of this process leave."""
    try:
        import resource
    except ImportError:  # Windows
        return {}
    names = "RLIMIT_AS", "RLIMIT_DATA"
    limits = {name: resource.getrlimit(getattr(resource, name))[0] for name in names}
    limits = {name: limit for name, limit in limits.items() if limit != resource.RLIM_INFINITY}
    if not limits:
        return {}
    import psutil

    taken = psutil.Process().memory_info()
    uses = {"RLIMIT_AS": taken.vms, "RLIMIT_DATA": getattr(taken, "data", taken.rss)}
    return {name: limit - uses[name] for name, limit in limits.items()}


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
