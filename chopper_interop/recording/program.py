"""The program that is recorded: started as it would be without a recorder, and ended as it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from chopper_interop.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self

_PASSED_ON = (
    *("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXCPU", "SIGABRT"),
    *("SIGCONT", "SIGWINCH"),
)
_OF_TERMINAL = ("SIGINT", "SIGQUIT", "SIGTSTP")
"""Signals that a terminal sends to the program as well."""
_SIGNALLED = 128
"""Exit status of a program that a signal ended is this plus its number, as shells report it."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit statuses of shells for a program that is not there, or cannot be run."""


def require(name: str) -> None:
    """Raise `UsageError` for a program that is not there or cannot be run, before anything is started."""
    if shutil.which(name):
        return
    if not name:
        raise _failure("the name of the program is empty", NOT_FOUND)
    if os.sep in name and Path(name).is_dir():
        raise _failure(f"{name}: a folder is no program", NOT_EXECUTABLE)
    if shutil.which(name, mode=os.F_OK):
        raise _failure(f"{name}: the file is not executable", NOT_EXECUTABLE)
    raise _failure(f"{name}: the program was not found", NOT_FOUND)


class Program:
    """A program to run, to which this process passes its signals on while the block lasts.

    Signals before the program has started wait for it; once it has ended they change nothing, so that what there is of
    the recording is still written.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: list[int] = []
        self._has_terminal = _has_terminal()

    def __enter__(self) -> Self:
        """Handle all signals that are not ignored."""
        numbers = [getattr(signal, name, None) for name in (*_PASSED_ON, *_OF_TERMINAL)]
        wanted = [n for n in numbers if n is not None and signal.getsignal(n) != signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._handle) for number in wanted}
        return self

    def __exit__(self, *_: object) -> None:
        """Handle signals as before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        started: Callable[[int], None],
        stdout: int | None = None,
    ) -> int:
        """Run the program to its end.

        Parameters
        ----------
        command
            The program and its arguments.
        environment
            Its environment.
        started
            Called with its process id.
        stdout
            Descriptor of its stdout, by default that of this process.

        Returns
        -------
        int
            Its exit status, or 128 and the number of the signal that ended it.

        Raises
        ------
        UsageError
            It cannot be started.
        """
        with _wake_ups() as wait_for_signal:
            self._process = process = _started(command, environment, stdout)
            for number in self._waiting:
                _send(process, number)
            started(process.pid)
            while process.poll() is None:
                wait_for_signal()
            status = process.returncode
        return status if status >= 0 else _SIGNALLED - status

    def _handle(self, number: int, _: object) -> None:
        if self._process is None:
            self._waiting.append(number)
        elif not (self._has_terminal and signal.Signals(number).name in _OF_TERMINAL):
            _send(self._process, number)
        if number == getattr(signal, "SIGTSTP", None):
            self._stop_too()

    def _stop_too(self) -> None:
        """Stop this process as the program stops, until SIGCONT, by what the system does without a handler.

        SIGSTOP would stop it where there is no job control, as the system does not stop the program then.
        """
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)


@contextlib.contextmanager
def _wake_ups() -> Iterator[Callable[[], object]]:
    """Give a call that returns after each signal, that of an ended child included.

    A wait for the child itself would go on if another thread gets a signal, as where SIGCONT comes with SIGTERM, by which
    systemd and Slurm end programs. Were SIGCHLD ignored, nobody would know the child's status.
    """
    to_read, of_signals = socket.socketpair()
    with to_read, of_signals:
        of_signals.setblocking(False)
        handler = signal.signal(signal.SIGCHLD, lambda *_: None)
        wake_up = signal.set_wakeup_fd(of_signals.fileno(), warn_on_full_buffer=False)
        try:
            yield lambda: to_read.recv(1 << 12)
        finally:
            signal.set_wakeup_fd(wake_up)
            signal.signal(signal.SIGCHLD, handler)


def become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Run a program in place of this process; `UsageError` if it cannot be started."""
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606 # the user's own program
    except OSError as error:
        raise _not_started(command, error) from error


def _started(
    command: Sequence[str], environment: Mapping[str, str], stdout: int | None
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=environment, stdout=stdout)  # noqa: S603 # the user's own program
    except OSError as error:
        raise _not_started(command, error) from error


def _not_started(command: Sequence[str], error: OSError) -> UsageError:
    status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    return _failure(f"{command[0]}: {error.strerror}", status)


def _failure(message: str, status: int) -> UsageError:
    failure = UsageError(message)
    failure.exit_status = status
    return failure


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(PermissionError):  # a program of another user, as by sudo
        process.send_signal(number)


def _has_terminal() -> bool:
    """Return True if this process is in the foreground of a terminal, which signals the program too."""
    with contextlib.suppress(OSError, AttributeError):  # there is none; Windows
        terminal = os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False
