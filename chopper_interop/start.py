"""Entry points of the commands as processes.

Until a command handles an interrupt itself, one ends the process at once: while modules are imported, which
takes a tenth of a second, Python would print a traceback. Before that, nothing is imported: `signal` and `typing`
take some milliseconds each. While Python itself starts, an interrupt is still its own to report.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found] # the part of signal in C
import gc
import os

TYPE_CHECKING = False  # as typing's

if TYPE_CHECKING:
    from typing import NoReturn

_ALLOCATIONS = 300_000
"""Objects made between two searches for garbage. Chosen: what a command imports (200,000) and makes lives to its end; at
Python's 700 the searches took a tenth of the time in which a small job is converted, at 20,000 a fifteenth."""

_STACK = 1 << 15
"""Places on the stack of the frame in which a command runs. From 3.11 on, Python takes its stack from the system in pieces
of 16 KiB or, for such a frame, in one that holds twice its size (512 KiB), and gives back a piece as soon as a call in it
returns: a loop of calls at a border did so each time. Of a small conversion that was 16,000 times, and a tenth of its
time. Chosen: more than the depth of any command takes; memory that no call reaches is never touched."""
_OF_NUMBA = ("NUMBA_NUM_THREADS", "NUMBA_DISABLE_JIT")
"""Variables of numba that only other programs may have: loops here use one thread, and do not run as Python. A number
of threads below 1 would be an error when numba is imported."""
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""Variable of numpy's linear algebra: without it, a thread for each further processor starts when numpy is imported, and
looks for work for a while: a twentieth of the time in which a small job is converted. Matrices of analyses (`dvfs`,
`power`) are small, and by one thread their sums do not depend on the number of processors."""


def _begin(*, keeps_environment: bool = False) -> None:
    """Let an interrupt end the process, search it seldom for garbage, and compute by one thread, by compiled loops."""
    if not keeps_environment:
        for name in _OF_NUMBA:
            os.environ.pop(name, None)
        os.environ.setdefault(_BLAS_THREADS, "1")
    gc.set_threshold(_ALLOCATIONS)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run(name: str) -> NoReturn:
    """Run a command of `cli` and exit."""
    from chopper_interop import cli
    from chopper_interop.commands.common import exit_now

    exit_now(getattr(cli, name)())


_run.__code__ = _run.__code__.replace(co_stacksize=_STACK)


def convert() -> NoReturn:
    """Run ``chopper-convert`` and exit."""
    _begin()
    _run("convert_main")


def analyze() -> NoReturn:
    """Run ``chopper-analyze`` and exit."""
    _begin()
    _run("analyze_main")


def check() -> NoReturn:
    """Run ``chopper-check`` and exit."""
    _begin()
    _run("check_main")


def record() -> NoReturn:
    """Run ``chopper-record`` and exit."""
    _begin(keeps_environment=True)  # the program's is the user's
    _run("record_main")


def view() -> NoReturn:
    """Run ``chopper-view`` and exit."""
    _begin()
    _run("view_main")
