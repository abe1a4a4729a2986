"""Further processes that compile what a command will call, where there are processors and memory to spare."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from chopper_interop.arrays import claims, code_files
from chopper_interop.io import memory

VARIABLE = "CHOPPER_COMPILERS"
"""Environment variable with the number of processes; 0, or what is no number, for none."""
_MAX_PROCESSES = 2
"""Processes at most. Chosen: each compiles again what numba brings for its loops, a tenth of compiling them."""
_MIN_FREE = 2 << 30
"""Bytes that must be available (chosen: several times what such a process takes)."""
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""File in which Linux states the time of processors that a container may take, in each period."""
_started: list[subprocess.Popen[bytes]] = []
"""Processes, each of which ends when its pipe to this one is closed, as when this one ends."""


def start() -> None:
    """Start the processes, unless what they compile could not be kept or claimed, or a program embeds Python."""
    if code_files.cache_folder() is None or not claims.are_possible() or not sys.executable:
        return
    modules = " ".join(name for name in sys.modules if name.startswith("chopper_interop."))
    # modules are found where this process finds them, and not in the folder in which it runs
    code = f"import sys; sys.path[:] = {sys.path!r}; from chopper_interop.arrays import ahead; ahead.main()"
    for _ in range(_count()):
        with contextlib.suppress(OSError):  # the system has no room for it
            process = subprocess.Popen(  # noqa: S603 # Python
                [sys.executable, "-c", code, modules],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            _started.append(process)


def _count() -> int:
    """Return the number of processes to start: one for each further processor that nothing else uses."""
    stated = os.environ.get(VARIABLE)
    if stated:
        return int(stated) if stated.isdecimal() else 0
    processors = _processors()
    with contextlib.suppress(OSError):  # a system without /proc does not say what it has to spare
        is_busy = os.getloadavg()[0] >= processors
        if not is_busy and memory.available_bytes() >= _MIN_FREE:
            return min(processors - 1, _MAX_PROCESSES)
    return 0


def _processors() -> int:
    """Return the number of processors that this process may use."""
    known = [os.cpu_count() or 1]
    with contextlib.suppress(AttributeError):  # macOS has no such call
        known.append(len(os.sched_getaffinity(0)))
    with contextlib.suppress(OSError, ValueError):  # not Linux, or "max"
        quota, period = map(int, _QUOTA.read_text().split())
        known.append(quota // period)
    return min(known)
