"""Which part of a job is asked about: all of it or single training steps, some ranks or all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow, numbered
from chopper_interop.columns.members import is_any
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import GPU_WORK, Kind, LaneKind

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

WHOLE = -1
"""Iteration of a window that is not one step."""
EVERY_RANK = -1
"""Rank of a window of the whole job."""
_NUMBERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_RANGES = (Kind.ANNOTATION, Kind.CPU_OP)


@dataclass(frozen=True)
class Window:
    """A stretch of time of a rank, or of the whole job; times on the axis of `ts`.

    Parameters
    ----------
    rank
        Global rank, `EVERY_RANK` for all.
    iteration
        Training step, `WHOLE` where the window is not one step.
    start_ns, end_ns
        Where it begins and ends.
    """

    rank: int
    iteration: int
    start_ns: int
    end_ns: int

    @property
    def span_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.start_ns


def chosen_ranks(trace: Trace, ranks: str = "", also: Collection[int] = ()) -> list[int]:
    """Ranks by numbers and ranges, ``"0,4-7"``; all where the text is empty.

    Parameters
    ----------
    trace
        Any trace.
    ranks
        The text.
    also
        Ranks that are there beside those of nodes, as those of telemetry.

    Raises
    ------
    UsageError
        The text makes no sense, or the trace lacks one of them.
    """
    if not ranks:
        return trace.ranks
    wanted = _numbers("ranks", ranks)
    there = {*trace.ranks, *also}
    if missing := [r for r in wanted if r not in there]:
        raise UsageError(f"the trace has no rank {missing[0]}", hint=f"it has {sorted(there)}")
    return wanted


def of_ranks(trace: Trace, steps: str = "", ranks: str = "") -> list[Window]:
    """Windows of each rank, in order of rank and step.

    Parameters
    ----------
    trace
        Any trace.
    steps
        ``""``: from the first start to the last end of the rank's GPU work; ``"each"``: every
        training step by itself; ``"3"``, ``"3,5-7"``: these steps, each by itself. A step lasts as
        long as the range that marks it on its rank, else from the first start to the last end of
        what the host does in it, or where no host was recorded, of its GPU work.
    ranks
        As of `chosen_ranks`.

    Raises
    ------
    UsageError
        There are no training steps, or not these.
    """
    mine = chosen_ranks(trace, ranks)
    if not steps:
        return [w for w in (_whole(trace, rank) for rank in mine) if w is not None]
    return [w for w in _steps(trace, steps) if w.rank in mine]


def joined(found: Sequence[Window]) -> list[Window]:
    """One window of the job for each step of these windows of ranks."""
    by_step: dict[int, list[Window]] = {}
    for window in found:
        by_step.setdefault(window.iteration, []).append(window)
    return [
        Window(EVERY_RANK, step, min(w.start_ns for w in same), max(w.end_ns for w in same))
        for step, same in sorted(by_step.items())
    ]


def marked(trace: Trace) -> list[Window]:
    """Every training step of every rank, in order of rank and start."""
    if "iteration" not in trace.nodes.column_names:
        return []
    iteration = arrow.numbers(trace.nodes["iteration"], -1)
    host = trace.array("kind", "lanes")[trace.array("lane")] == LaneKind.THREAD
    gpu = is_any(trace.array("kind"), GPU_WORK)
    ranges = _ranges(trace, iteration, host)
    found: list[Window] = []
    for rank, rows in trace.rank_rows.items():
        for which in (ranges, host, gpu):
            mine = np.flatnonzero(which[rows] & (iteration[rows] >= 0)) + rows.start
            if mine.size:
                found += _extents(trace, rank, mine, iteration[mine])
                break
    return found


def described(steps: str, whole: str) -> str:
    """What a result says of its window.

    Parameters
    ----------
    steps
        The option.
    whole
        What it is if none are chosen.
    """
    if not steps:
        return whole
    which = "every training step" if steps == "each" else f"training steps {steps}"
    return f"{which} by itself, as long as the range that marks it; of work that reaches beyond, the part within"


def _whole(trace: Trace, rank: int) -> Window | None:
    rows = trace.rank_rows[rank]
    work = is_any(trace.array("kind")[rows], GPU_WORK)
    return _extent(trace, rank, np.flatnonzero(work) + rows.start) if work.any() else None


def _extent(trace: Trace, rank: int, rows: Array) -> Window:
    start = trace.array("ts")[rows]
    return Window(rank, WHOLE, int(start.min()), int((start + trace.array("dur")[rows]).max()))


def _extents(trace: Trace, rank: int, rows: Array, iteration: Array) -> list[Window]:
    order = np.argsort(iteration, kind="stable")
    rows, iteration = rows[order], iteration[order]
    first = np.flatnonzero(np.diff(iteration, prepend=iteration[0] - 1))
    ts = trace.array("ts")[rows]
    start = np.minimum.reduceat(ts, first).tolist()
    end = np.maximum.reduceat(ts + trace.array("dur")[rows], first).tolist()
    numbers = iteration[first].tolist()
    found = [Window(rank, *of) for of in zip(numbers, start, end, strict=True)]
    return sorted(found, key=lambda w: (w.start_ns, w.iteration))


def _ranges(trace: Trace, iteration: Array, host: Array) -> Array:
    """The ranges that mark steps: outermost ones of hosts that bear the number of their step."""
    number = np.append(numbered.split(trace.names())[1], numbered.NO_NUMBER)
    marks = host & is_any(trace.array("kind"), _RANGES)
    marks &= number[trace.array("name")] == iteration
    parent = trace.array("parent")
    return marks & ((parent < 0) | (iteration[parent] != iteration))


def _steps(trace: Trace, steps: str) -> list[Window]:
    found = marked(trace)
    if not found:
        raise UsageError(
            "the trace has no training steps", hint="leave steps out to ask about all of it"
        )
    if steps == "each":
        return found
    wanted = _numbers("steps", steps)
    there = sorted({w.iteration for w in found})
    if missing := [n for n in wanted if n not in there]:
        raise UsageError(f"the trace has no training step {missing[0]}", hint=f"it has {there}")
    return [w for w in found if w.iteration in wanted]


def _numbers(option: str, text: str) -> list[int]:
    """Numbers and ranges of numbers, ascending."""
    if not _NUMBERS.fullmatch(text):
        raise UsageError(f"{option}={text}: write numbers and ranges, as 0,4-7")
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        length = int(last or first) - int(first)
        if length < 0:
            hint = f"write {last}-{first}"
            raise UsageError(f"{option}={text}: {part} goes backwards", hint=hint)
        if length > _MOST:
            raise UsageError(f"{option}={text}: that is too many")
        found.update(range(int(first), int(last or first) + 1))
    return sorted(found)


_MOST = 1_000_000
