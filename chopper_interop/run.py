"""Several runs for one analysis: each is read when it is its turn, so that memory holds one at a time.

An analysis that compares with one other job declares ``against: Trace | None``; one that takes any
number declares ``against: Runs | None``. What it declares decides what it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from chopper_interop.errors import UsageError
from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Run:
    """A job that is read when it is asked for.

    Parameters
    ----------
    name
        What to call it.
    read
        Reads it; each call may read it again. Raises `ChopperError` where it cannot be read.
    path
        Where it lies, to tell runs of one name apart; empty if nowhere.
    """

    name: str
    read: Callable[[], Trace]
    path: str = ""


Runs: TypeAlias = Sequence[Run]
"""Argument of an analysis of several runs, in addition to the job that it is asked about."""


def as_runs(given: Any) -> tuple[Run, ...]:
    """Runs of whatever was given: a run or a trace, several of them, or None.

    Raises
    ------
    UsageError
        It is something else, as a path, which this does not read.
    """
    if given is None:
        return ()
    if isinstance(given, Run):
        return (given,)
    if isinstance(given, Trace):
        return (Run(given.meta.job, lambda: given),)
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return tuple(run for one in given for run in as_runs(one))
    raise UsageError(
        f"against={given!r}: it must be traces or runs",
        hint="chopper_interop.analyze takes paths too; on the command line: --against PATH",
    )
