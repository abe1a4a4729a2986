"""The program that is recorded: started as it would be without a recorder, and ended as it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from chopper_interop.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
_OF_TERMINAL = ("SIGINT", "SIGQUIT")
"""Signals that a terminal sends to the program as well."""
_SIGNALLED = 128
"""Exit status of a program that a signal ended is this plus its number, as shells report it."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit statuses of shells for a program that is not there, or cannot be run."""


def run(
    command: Sequence[str], environment: Mapping[str, str], started: Callable[[int], None]
) -> int:
    """Run a program to its end and pass on the signals that come meanwhile.

    Parameters
    ----------
    command
        The program and its arguments.
    environment
        Its environment.
    started
        Called with its process id.

    Returns
    -------
    int
        Its exit status, or 128 and the number of the signal that ended it.

    Raises
    ------
    UsageError
        It cannot be started.
    """
    try:
        process = subprocess.Popen(command, env=environment)  # noqa: S603 # the user's own program
    except OSError as error:
        status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        failure = UsageError(f"{command[0]}: {error.strerror}", hint="name the program after --")
        failure.exit_status = status
        raise failure from error
    before = _pass_signals_to(process)
    try:
        started(process.pid)
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else _SIGNALLED - status


def _pass_signals_to(process: subprocess.Popen[bytes]) -> dict[int, Any]:
    """Pass signals on; return the handlers that were there before."""
    before: dict[int, Any] = {}
    for name in (*_PASSED_ON, *_OF_TERMINAL):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            is_terminal = name in _OF_TERMINAL and _has_terminal()
            handler = (lambda *_: None) if is_terminal else (lambda n, _: process.send_signal(n))
            before[number] = signal.signal(number, handler)
    return before


def _has_terminal() -> bool:
    """Return True if this process is in the foreground of a terminal, which signals the program too."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False
