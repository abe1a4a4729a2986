"""How long a job would take if something about it were different."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import windows
from chopper_interop.columns import arrow
from chopper_interop.dvfs import changes
from chopper_interop.errors import UsageError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind
from chopper_interop.timing import paths, spans
from chopper_interop.timing.model import timing_of

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.dvfs.changes import Change
    from chopper_interop.timing.model import Timing
    from chopper_interop.timing.spans import Spans
    from chopper_interop.trace import Trace

__all__ = ["what_if"]

_HOST = (Kind.CPU_OP, Kind.ANNOTATION, Kind.PYTHON, Kind.RUNTIME, Kind.DRIVER, Kind.API)
STANDARD = (
    changes.Change("scale", 1 / 1.1, kinds=(Kind.KERNEL,), text="kernels 10 % faster"),
    changes.Change("bandwidth", 2.0, options={"latency": 0}, text="communication twice as fast"),
    changes.Change("scale", 0.0, kinds=(Kind.COMM,), text="communication takes no time"),
    changes.Change("scale", 0.0, kinds=(Kind.MEMCPY, Kind.MEMSET), text="copies take no time"),
    changes.Change("launch", changes.Time(0, False), text="launches reach the GPU at once"),
    changes.Change("scale", 0.0, kinds=_HOST, text="operators and calls of hosts take no time"),
    changes.Change("delays", 0.0, text="nothing waits without a known reason"),
    changes.Change("median", "ranks", kinds=(Kind.KERNEL,), text="kernels even over ranks"),
)
"""What is asked if no change is given."""
MEASURED, TOGETHER = "as measured", "all together"
_BY = ("job", "rank", "class")

_CONVENTIONS = {
    "model": "the graph of starts and ends of all nodes and ranks, each as soon as what it waits for "
    "and the least time since allows, and its measured delay beyond; times that nothing precedes stay",
    "own time": "of GPU work its duration; of collectives the transfer, from the last member's start "
    "on; of host nodes the host's time in them and what they call, without waits for GPUs",
    "what stays": "the order of work on streams and of members in collectives, and which edges there "
    "are; kernels do not get slower or faster by what runs beside them",
    "steps": "the job is timed anew as one, and borders of steps move with it: what one step gains by "
    "beginning sooner the next may last longer; over all steps the gain is that of the job",
    "links": "all work counts; what has no recorded launch starts when it did, or behind its stream",
    "memset": "counts as compute",
    "copies": "copies by kernels of the runtime (__amd_rocclr_*) count as compute",
    "clock": "kernels follow it as what is known of each says (see dvfs); with beta given by "
    "beta x measured / new clock + 1 - beta; kernels without a known clock stay",
    "path": "path_*: time by class on what the end of the window waited for, see critical_path",
}


def what_if(
    trace: Trace,
    *,
    change: str = "",
    by: str = "job",
    steps: str = "",
    ranks: str = "",
) -> Result:
    """How long a job or a step would take if something were different.

    Parameters
    ----------
    trace
        Any trace.
    change
        What is different: ``"scale=0.5 where kind == 'kernel' and operation == 'aten::mm'"``.
        ``scale=F``, ``remove``, ``median=both|ranks|iterations``, ``launch=0|5us|+2us``,
        ``calls=0|5us|+2us``, ``bandwidth=F [latency=5us]``, ``clock=1900|0.9x|max1900 [beta=0..1]``, ``delays=F``,
        each with ``where`` and a query on the nodes' columns that at least one node must meet, or for
        all. Several are separated by ``;``: then each alone and all together. Without any, a list of
        usual ones, each alone.
    by
        Rows: ``"job"`` one a window, ``"rank"`` each rank's own, ``"class"`` the path of each window
        by what it consists of.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself; else all as one.
    ranks
        Ranks whose time is looked at (``"0,4-7"``); all ranks are timed anew.

    Returns
    -------
    Result
        Rows: `change`, `iteration`, (`rank`), `before_ns`, `after_ns`, `gain_ns` = before - after,
        `speedup_ratio` = before / after, and by job `path_CLASS_ns` of the critical path then; by
        class `class`, `before_ns`, `after_ns` and `gain_ns` of the path. By job and class the first
        ones are as measured. The summary has the sums over windows, and the change that gains most.

    Notes
    -----
    Changes to the dependency graph and a replay as Daydream (USENIX ATC 2020) and Lumos (MLSys 2025)
    do; the model is `chopper_interop.timing.model`. What changes are is told by `changes.VERBS`.
    """
    if by not in _BY:
        raise UsageError(f"by={by}: there is no {by!r}", hint=f"there are {', '.join(_BY)}")
    asked = changes.parsed(change)
    timing = timing_of(trace)
    found = spans.of(timing, steps, ranks, by_rank=by == "rank")
    notes = _notes(trace, steps, ranks)
    cases: list[tuple[str, list[Change]]] = [(one.text, [one]) for one in asked or STANDARD]
    if len(asked) > 1:
        cases.append((TOGETHER, asked))
    if not len(found):
        notes["no rows"] = "the trace has no operations"
        cases = []
    replay = _Replay(timing, found, with_paths=by != "rank")
    for text, parts in cases:
        notes |= replay.add(text, parts)
    rows = replay.by_class() if by == "class" else replay.rows()
    return Result("what_if", rows, replay.summary(), _CONVENTIONS, notes=notes)


def _notes(trace: Trace, steps: str, ranks: str) -> dict[str, str]:
    whole = "from the first start to the last end of all training steps, else of everything"
    mine = windows.chosen_ranks(trace, ranks)
    return {
        "window": windows.described(steps, whole)
        + "; work that a step's host launched prolongs it until that has ended",
        "ranks": f"{len(mine)} of {len(trace.ranks)}; all are timed anew",
    }


class _Replay:
    """Lengths of windows under one change after the other."""

    def __init__(self, timing: Timing, found: Spans, *, with_paths: bool) -> None:
        self._timing, self._spans = timing, found
        self._changer = changes.Changer(timing)
        self._paths = (
            paths.Paths(timing, self._changer.owner) if with_paths and len(found) else None
        )
        self._before = found.lengths(timing.at_ns)
        self._cases: list[str] = []
        self._after: list[Array] = []
        self._on_path: list[Array] = []
        if self._paths:
            self._note(MEASURED, timing.lag_ns, timing.at_ns)

    def add(self, text: str, parts: list[Change]) -> dict[str, str]:
        """Time anew under these changes; what is to say of it."""
        now = self._changer.applied(parts)
        self._note(text, now.lag_ns, self._timing.retimed(now.lag_ns, now.delay_ns))
        told = ", ".join(f"{count:,} {what}" for what, count in now.notes.items() if count)
        return {f"change: {text}": told or "nothing is chosen"}

    def _note(self, text: str, lag: Array, at: Array) -> None:
        found = self._spans
        whole = found.iteration == windows.WHOLE  # begins when it did
        begin = np.where(whole, found.starts(self._timing.at_ns), found.starts(at))
        self._cases.append(text)
        self._after.append(found.ends(at) - begin)
        if self._paths:
            ends = zip(found.last(at).tolist(), begin.tolist(), strict=True)
            table = [self._paths.by_class(lag, at, last, start) for last, start in ends]
            self._on_path.append(np.array(table, np.int64))

    def rows(self) -> pa.Table:
        cases, size = len(self._cases), len(self._spans)
        before, after = np.tile(self._before, cases), _joined(self._after)
        columns = self._keys()
        columns["before_ns"], columns["after_ns"] = arrow.array(before), arrow.array(after)
        columns["gain_ns"] = arrow.array(before - after)
        columns["speedup_ratio"] = _ratio(before, after)
        if self._paths:
            table = _joined(self._on_path).reshape(cases * size, len(paths.CLASSES))
            for number, name in enumerate(paths.CLASSES):
                columns[f"path_{name}_ns"] = arrow.array(np.ascontiguousarray(table[:, number]))
        return pa.table(columns)

    def _keys(self, times: int = 1) -> dict[str, Any]:
        """Change, step and rank of each row."""
        cases, found = len(self._cases), self._spans
        step = np.tile(np.repeat(found.iteration, times), cases)
        columns = {
            "change": pa.array(np.repeat(self._cases, len(found) * times).tolist(), pa.string()),
            "iteration": arrow.array(step, mask=step == windows.WHOLE),
        }
        if not self._paths and len(found):
            columns["rank"] = arrow.array(np.tile(found.rank, cases))
        return columns

    def by_class(self) -> pa.Table:
        classes = len(paths.CLASSES)
        after = _joined([table.ravel() for table in self._on_path])
        before = np.tile(self._on_path[0].ravel() if self._on_path else after, len(self._cases))
        columns = self._keys(classes)
        names = list(paths.CLASSES) * (len(self._cases) * len(self._spans))
        columns["class"] = pa.array(names, pa.string())
        columns["before_ns"], columns["after_ns"] = arrow.array(before), arrow.array(after)
        columns["gain_ns"] = arrow.array(before - after)
        table = pa.table(columns)
        return arrow.take(table, (before > 0) | (after > 0))

    def summary(self) -> dict[str, Any]:
        before = int(self._before.sum())
        gains = {
            text: before - int(after.sum())
            for text, after in zip(self._cases, self._after, strict=True)
            if text != MEASURED
        }
        single = [text for text in gains if text != TOGETHER]
        best = max(single, key=lambda text: gains[text], default="")
        helps = gains.get(best, 0) > 0
        return {
            "windows": len(self._spans),
            "before_ns": before,
            "changes": [
                {"change": text, "after_ns": before - gain, "gain_ns": gain}
                for text, gain in gains.items()
            ],
            "most_gained_by": best if helps else None,
            "most_gained_ns": gains[best] if helps else None,
        }


def _ratio(before: Array, after: Array) -> Any:
    return arrow.array(before / np.maximum(after, 1), mask=after <= 0)


def _joined(parts: list[Array]) -> Array:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
