"""Errors: one class and one exit status for each kind.

A message is one line: where (file, row or byte), what is wrong, what to do about it.
"""

from __future__ import annotations

import difflib
import errno
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os


READ_LESS = "give fewer files, or read less with --ranks, --steps or -O args=none"
"""Options that bound memory, where it is not known what was to be read."""
_NO_THREAD = "can't start new thread"
"""Python's words where the system starts none, for want of memory or by a limit."""
READ_FEWER = "read fewer ranks with --ranks, or fewer steps with --steps"
"""Options that bound how much text and how many numbers a column has."""
_BEYOND_COLUMNS = ("offset overflow while concatenating", "array cannot contain more than")
"""Arrow's words where columns are joined, and where dictionaries are."""
_SYNONYMS = {
    "gpu": "rank", "device": "rank", "process": "rank", "step": "iteration", "host": "node",
    "machine": "node", "op": "operation", "queue": "stream",
    "compute": "kernel", "communication": "comm", "collective": "comm", "nccl": "comm", "rccl": "comm",
    "copy": "memcpy", "fill": "memset", "operator": "cpu_op",
}  # fmt: skip
"""Words for groups of rows and kinds of nodes that users of other tools write, and the names that they have here. A
rank and its GPUs are one row; classes of work are kinds of nodes."""


def similar(name: str, known: Iterable[str]) -> str:
    """Hint for a name that is not known: the one that is similar, or all there are."""
    names = list(known)
    synonym = _SYNONYMS.get(name, "")
    near = [synonym] if synonym in names else difflib.get_close_matches(name, names, 1)
    listed = f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"
    return f"did you mean {near[0]!r}?" if near else listed


def one_line(text: str) -> str:
    """Escape characters that would break a line or control a terminal: names of files may hold any."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ChopperError(Exception):
    """An error that the user can act upon; the commands print it and exit with `exit_status`.

    Parameters
    ----------
    message
        The problem.
    path
        The file or folder concerned.
    at
        Position in it: "row 12", "byte 4096".
    hint
        Remedy.
    """

    exit_status = 1
    details = ""
    """Of an error that was not expected its traceback, as text: of another process, or kept, it has no other."""

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        at: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.at = at
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # errors of workers reach this process
        return _remade, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        location = ", ".join(str(part) for part in (self.path, self.at) if part is not None)
        line = f"{location}: {self.message}" if location else self.message
        return f"{line} ({self.hint})" if self.hint else line


class UsageError(ChopperError):
    """An option or argument that makes no sense."""

    exit_status = 2


class OptionError(UsageError):
    """A value of an option that no input makes right; the message begins with ``option=value``."""


class NoSuchDefinitionsError(OptionError):
    """The tool of `compat` defines no such figures, or not for such rows."""


class UnknownFormatError(ChopperError):
    """No converter knows the file, or no converter has that name."""

    exit_status = 3


class ReadError(ChopperError):
    """The input is of a known format but cannot be read."""

    exit_status = 4


class AmbiguousRunError(ChopperError):
    """The inputs hold more than one run, so that no single job can be made of them."""

    exit_status = 5


class WriteError(ChopperError):
    """The output cannot be written."""

    exit_status = 6


class LossError(ChopperError):
    """Something was lost and the user asked for that to be a failure (``--on-loss error``)."""

    exit_status = 7


class MissingDataError(ChopperError):
    """The input lacks what an analysis needs; the hint says what to record."""

    exit_status = 9


class SchemaError(ChopperError):
    """A table does not have the columns or types that the hub declares."""

    exit_status = 8


class ChangedTraceError(SchemaError):
    """A plug-in changed the trace that others are given, too: nothing more can be made of it."""


class TooLittleMemoryError(ChopperError):
    """The input needs more memory, or charts more open files, than there is. Nothing is left out to make it fit."""

    exit_status = 10


class TooLargeError(ChopperError):
    """The job has more rows than the tables can number, or more text than a column can hold, whatever memory there is."""

    exit_status = 11


class InternalError(ChopperError):
    """An error that no part of the program expected: a defect of it.

    Parameters
    ----------
    error
        What was raised.
    subject
        What was done when it was raised, such as "reading kineto".
    path
        The file or folder concerned.
    """

    exit_status = 70  # EX_SOFTWARE of sysexits.h

    def __init__(
        self, error: BaseException, subject: str, path: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(
            _failed(error, subject), path=path, hint=_REPORT.format("as SECURITY.md says")
        )
        self.details = "".join(traceback.format_exception(error))


class PluginError(ChopperError):
    """An error that a plug-in did not expect: a defect of the plug-in.

    Parameters
    ----------
    error, subject, path
        As of `InternalError`.
    package
        Name and version of the package that brings the plug-in.
    """

    exit_status = 12

    def __init__(
        self,
        error: BaseException,
        subject: str,
        path: str | os.PathLike[str] | None,
        package: str,
    ) -> None:
        super().__init__(
            _failed(error, subject), path=path, hint=_REPORT.format(f"to the authors of {package}")
        )
        self.details = "".join(traceback.format_exception(error))


def _failed(error: BaseException, subject: str) -> str:
    """Say in one line what failed by which error, and where that was raised."""
    reason = described(error).removesuffix(": ")[:_MAX_REASON]
    places = traceback.extract_tb(error.__traceback__)
    at = f" at {Path(places[-1].filename).name}:{places[-1].lineno}" if places else ""
    return f"{subject} failed: {reason}{at}"


def as_own_class(error: ChopperError) -> ChopperError | None:
    """Return an error as the class of this package that its own class, maybe a plug-in's, is derived from.

    A class of a plug-in may have any status and any constructor, and other processes may not know it. None for one that
    says no more than that it is an error.
    """
    own = next(kind for kind in type(error).__mro__ if kind.__module__.startswith(_OWN))
    if type(error) is own and own is not ChopperError:
        return error
    if own is ChopperError or "__init__" in vars(own):
        return None
    message = str(getattr(error, "message", text_of(error)))
    parts = {name: getattr(error, name, None) for name in ("path", "at", "hint")}
    made: ChopperError = own(message, **parts)
    return made


def is_short_of_memory(error: BaseException) -> bool:
    """True if the system refused memory, or a thread, whose stack takes some."""
    refused = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return refused or isinstance(error, MemoryError) or _NO_THREAD in text_of(error)


def is_beyond_columns(error: BaseException) -> bool:
    """True if Arrow refused a column or a dictionary whose texts or lists are more than offsets of int32 reach."""
    return type(error).__module__.startswith("pyarrow") and any(
        words in text_of(error) for words in _BEYOND_COLUMNS
    )


def first_line(error: BaseException) -> str:
    """The first line of the message of an error, or its class if it has none."""
    return (text_of(error).splitlines() or [type(error).__name__])[0]


def described(error: BaseException) -> str:
    """Class and message of an error."""
    return f"{type(error).__name__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """The message of an error, of which that of a plug-in's own class may fail in its turn."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 # of a plug-in
        return "its message fails"


def drop_frames(error: BaseException | None) -> None:
    """Let an error that is kept hold nothing of the calls in which it came, such as what they had read of a file."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def raise_interrupt(error: BaseException | None) -> None:
    """Raise `KeyboardInterrupt` if an error is due to one.

    A signal that comes as a compiled loop returns makes a ``SystemError`` of Python: a result with an exception set.
    """
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        error = error.__cause__


def _remade(
    kind: type[ChopperError], arguments: tuple[Any, ...], state: dict[str, Any]
) -> ChopperError:
    """Make an error as it was in another process, whatever arguments its class takes."""
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(state)
    return error


_OWN = "chopper_interop."
"""Beginning of the names of this package's modules."""
_REPORT = "please report it {}, with the input; --debug shows more"
_MAX_REASON = 300
"""Characters of an unexpected error that are shown (chosen: two lines of a terminal)."""
