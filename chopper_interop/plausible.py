"""Times that cannot be true: they are told, and left as they were recorded.

A profiler writes down what drivers and GPUs report, and some of that is wrong: kernels that last
longer than their stream was theirs, starts that were never read, work that is there twice. Each
check here is over columns and looks at GPU work only, or at starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.members import is_any
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, EdgeKind, Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

FAR_OFF = Fault(
    "start-far-off",
    Severity.ERROR,
    "Events that start an hour or more apart from most others: their clock was not read, or what "
    "it showed is corrupt. Times are left as they are.",
)
BEFORE_LAUNCH = Fault(
    "kernel-before-launch",
    Severity.ERROR,
    "GPU work that starts before the call that launched it: the device's clock is off by that much "
    "or more. Times are left as they are.",
)
OVERFLOW = Fault(
    "kernel-overflows-next",
    Severity.ERROR,
    "Kernels that are said to run on for more than 20 us after the next one of their stream has "
    "started, or for a second where only the queue is known: no overlap that GPUs have. Their "
    "durations are too long, and left as they are.",
)
TOO_LONG = Fault(
    "duration-implausible",
    Severity.ERROR,
    "GPU work and calls that last an hour or more: their start or end was not read, or is corrupt. "
    "Times are left as they are.",
)
TWICE = Fault(
    "kernel-recorded-twice",
    Severity.ERROR,
    "GPU work that is there already, with the same name, stream, start, duration and correlation "
    "id. It is kept, and counts twice.",
)

FAR_NS = 3_600 * 10**9
"""No window of the profiler is as long as this gap. Warm-up work that old builds kept is found up
to 45 s before the window."""
TOLERATED_NS = 20_000
"""How long kernels of one stream really overlap: AMD's up to 2.4 us, NVIDIA's with dependent
launch up to 3.7 us, those of graphs up to 13 us; whole microseconds add one of rounding."""

TOLERATED_ON_QUEUE_NS = 10**9
"""No kernel of another stream of a queue is run beside for that long but by mistake."""


def check(trace: Trace, issues: IssueLog) -> None:
    """Note what cannot be true of starts, durations, launches and numbers of GPU work."""
    _starts(trace, issues)
    _durations(trace, issues)
    _launches(trace, issues)
    kind = trace.array("kind")
    works = np.zeros(256, bool)
    works[[int(k) for k in GPU_WORK]] = True
    work = np.flatnonzero(works[kind])
    if work.size:
        lane, ts, dur = (trace.array(c)[work] for c in ("lane", "ts", "dur"))
        work = work[np.lexsort((dur, ts, lane))]
        _twice(trace, work, issues)
        _overflows(trace, work, issues)


def _starts(trace: Trace, issues: IssueLog) -> None:
    """Starts apart from most others, by gaps in which nothing starts."""
    ts = trace.array("ts")
    if not ts.size or int(ts.max()) - int(ts.min()) < FAR_NS:
        return
    order = np.argsort(ts, kind="stable")
    first = np.flatnonzero(np.diff(ts[order], prepend=ts[order[0]]) >= FAR_NS)
    bounds = np.concatenate([[0], first, [len(ts)]])
    most = int(np.diff(bounds).argmax())
    apart = np.concatenate([order[: bounds[most]], order[bounds[most + 1] :]])
    if apart.size:
        issues.add(FAR_OFF, len(apart), _example(trace, int(apart[0])))


def _durations(trace: Trace, issues: IssueLog) -> None:
    long = np.flatnonzero(trace.array("dur") >= FAR_NS)
    wrong = long[is_any(trace.array("kind")[long], (*GPU_WORK, *CALLS))]
    if wrong.size:
        issues.add(TOO_LONG, len(wrong), _example(trace, int(wrong[0])))


def _launches(trace: Trace, issues: IssueLog) -> None:
    """GPU work before its launch."""
    launch = trace.array("kind", "edges") == EdgeKind.LAUNCH
    src, dst = (trace.array(c, "edges")[launch] for c in ("src", "dst"))
    ts = trace.array("ts")
    lead = ts[src] - ts[dst]
    early = np.count_nonzero(lead > 0)
    if early:
        worst = int(lead.argmax())
        text = f"{_example(trace, int(dst[worst]))}, {_us(int(lead[worst]))} before it"
        issues.add(BEFORE_LAUNCH, early, text)


def _twice(trace: Trace, work: Array, issues: IssueLog) -> None:
    """Work that is equal to the one before it; `work` is in order of lane, start, duration."""
    columns = [trace.array(c)[work] for c in ("lane", "ts", "dur")]
    close = np.flatnonzero(np.all([c[1:] == c[:-1] for c in columns], axis=0))
    if not close.size:
        return
    told = np.array([trace.array(c)[work] for c in ("name", "correlation")])
    order = np.lexsort((told[1], told[0], *columns[::-1]))
    rows = np.array([*columns, *told])[:, order]
    # of nothing known by an id or a length, two may be alike and still be two
    same = np.all(rows[:, 1:] == rows[:, :-1], axis=0) & (rows[2, 1:] > 0) & (rows[4, 1:] > 0)
    again = np.flatnonzero(same) + 1
    if again.size:
        issues.add(TWICE, len(again), _example(trace, int(work[order[again[0]]])))


def _overflows(trace: Trace, work: Array, issues: IssueLog) -> None:
    """Kernels that run on into the next of their stream; `work` is in order of lane and start.

    Kernels of one correlation id are those of one graph, which may run side by side, or copies.
    So may those of a hardware queue, on which there may be several streams, but not for long.
    """
    kind = trace.array("kind")[work]
    work = work[(kind == Kind.KERNEL) | (kind == Kind.COMM)]
    lane, ts, dur, correlation = (
        trace.array(c)[work] for c in ("lane", "ts", "dur", "correlation")
    )
    end = ts + dur
    if not work.size or not (end[:-1] - ts[1:] > TOLERATED_NS).any():
        return
    of_stream = trace.array("kind", "lanes")[lane] == LaneKind.STREAM
    tolerated = np.where(of_stream, TOLERATED_NS, TOLERATED_ON_QUEUE_NS)
    # where the next one is of the same id, the first of another id tells
    changes = np.ones(len(work), bool)
    changes[1:] = (lane[1:] != lane[:-1]) | (correlation[1:] != correlation[:-1])
    changes[1:] |= correlation[1:] <= 0
    starts = np.append(np.flatnonzero(changes), len(work))
    following = starts[np.cumsum(changes)]
    nearest = np.minimum(following, len(work) - 1)
    over = (following < len(work)) & (lane[nearest] == lane)
    beyond = np.where(over, end - ts[nearest], 0)
    found = np.flatnonzero(beyond > tolerated)
    if found.size:
        worst = int(found[beyond[found].argmax()])
        text = f"{_example(trace, int(work[worst]))}, by {_us(int(beyond[worst]))}"
        issues.add(OVERFLOW, len(found), text)


def _example(trace: Trace, node: int) -> str:
    code = int(trace.array("name")[node])
    name = trace.names()[code] if code >= 0 else ""
    return f"{name[:60]!r} of {_us(int(trace.array('dur')[node]))}"


def _us(ns: int) -> str:
    return f"{ns / 1000:,.3f} us"
