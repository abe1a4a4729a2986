"""Ctrl-C and SIGTERM: the first ends the command by an exception, so that partial outputs are removed.

::

    first signal ──▶ KeyboardInterrupt ──▶ outputs are put back ──▶ one line, status 130
                         │ raised where Python has to ignore exceptions, as in finalizers and callbacks of C
                         └──▶ raised again a moment later, as where machine code would go on without what it called
    further ones within some seconds: the same is under way, nothing more happens
    further ones later: the process ends at once, as by a kill; the next command removes what it leaves
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + SIGINT, as shells report it."""
_PATIENCE_S = 2.0
"""Time for which further signals change nothing. Chosen: a key pressed twice, and time to remove outputs."""
_AGAIN_S = 0.01
"""Time after which an interrupt that was ignored is raised again. Chosen: its place has been left by then."""

_OF_MACHINE_CODE = frozenset({"_unpickled", "_numba_unpickle"})
"""Functions that machine code calls, of this package and of numba, without looking whether they raised: it then takes
what lies on the stack for the type of the array that it returns, and the process ends by a segmentation fault. A signal
that comes while a compiled loop runs is seen there, as they are the first Python that runs behind it."""
_since: float | None = None
"""When the first signal came, on the monotonic clock."""


def handle() -> None:
    """Handle signals from now on."""
    global _since  # noqa: PLW0603 # signals are of the process
    _since = None
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as for a background job
        signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _again)
    if sys.unraisablehook is sys.__unraisablehook__:  # tests have their own
        sys.unraisablehook = _ignored
    if threading.excepthook is threading.__excepthook__:  # of threads of plug-ins and libraries
        threading.excepthook = _ignored


def has_come() -> bool:
    """True if there was a signal."""
    return _since is not None


def end() -> None:
    """Let signals change nothing from now on: the process is about to end."""
    global _since  # noqa: PLW0603 # same
    _since = time.monotonic()


def _interrupt(_signal: int, frame: Any) -> None:
    global _since  # noqa: PLW0603 # same
    now = time.monotonic()
    if _since is None and _is_called_by_machine_code(frame) and _raise_later():
        return
    if _since is None:
        _since = now
        raise KeyboardInterrupt
    if now - _since > _PATIENCE_S:
        os._exit(INTERRUPTED)


_interrupt.waits_for_machine_code = True  # type: ignore[attr-defined] # arrays.loaded_code.WAITS


def _again(number: int, frame: Any) -> None:
    """Raise an interrupt that was ignored."""
    global _since  # noqa: PLW0603 # same
    _since = None
    _interrupt(number, frame)


def _is_called_by_machine_code(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_name in _OF_MACHINE_CODE:
            return True
        frame = frame.f_back
    return False


def _raise_later() -> bool:
    """Have an interrupt raised a moment later; False where the system has no timer for it."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        return True
    return False


def _ignored(event: Any) -> None:
    """Have an interrupt that Python ignores raised again; say in one line what else it ignores."""
    if event.exc_type is KeyboardInterrupt:
        _raise_later()
        return
    text = f"ignored: {event.exc_type.__name__}: {event.exc_value}"
    print("".join(c if c.isprintable() else " " for c in text), file=sys.stderr)
