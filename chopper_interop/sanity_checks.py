"""Sanity checks: times that cannot be true are reported and left as they were recorded.

A profiler writes what drivers and GPUs report, and some of that is wrong: kernels that end after
the next one of their stream has started, starts that were never read, work recorded twice. Each
check works on columns, of GPU work or of starts.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, EdgeKind, Kind, LaneKind
from chopper_interop.trace import Trace

FAR_OFF = Fault.error(
    "start-far-off",
    "Events that start an hour or more apart from most others: their clock was not "
    "read, or what it showed is corrupt. Times are left as they are.",
)
BEFORE_LAUNCH = Fault.error(
    "kernel-before-launch",
    "GPU work that starts before the call that launched it: the device's "
    "clock is off by that much or more. Times are left as they are.",
)
OVERFLOW = Fault.error(
    "kernel-overflows-next",
    "Kernels that last more than 20 us beyond the start of the next one of "
    "their stream, or a second where only the queue is known: GPUs do not overlap work so far. "
    "Their durations are too long, and left as they are.",
)
TOO_LONG = Fault.error(
    "duration-implausible",
    "GPU work and calls that last an hour or more: their start or end was "
    "not read, or is corrupt. Times are left as they are.",
)
TWICE = Fault.error(
    "kernel-recorded-twice",
    "GPU work that repeats another with the same name, stream, start, "
    "duration and correlation id. It is kept, and counts twice.",
)

FAR_NS = 3_600 * 10**9
"""Gap that no window of the profiler spans. Warm-up work that old builds of PyTorch record lies up
to 45 s before the window."""
MAX_OVERLAP_NS = 20_000
"""Longest real overlap of kernels of one stream: AMD's up to 2.4 us, NVIDIA's with dependent
launch up to 3.7 us, those of graphs up to 13 us; whole microseconds add one of rounding."""

MAX_QUEUE_OVERLAP_NS = 10**9
"""Longest overlap on a hardware queue, which several streams may share. Chosen: longer than any
kernel of a training step, shorter than the wrong durations that were seen."""


def check(trace: Trace, issues: IssueLog) -> None:
    """Report starts, durations, launches and repetitions of GPU work that cannot be true."""
    _starts(trace, 0, trace.nodes.num_rows, issues)
    _check_work(trace, issues)


def check_ranks(trace: Trace, issues: IssueLog) -> None:
    """Report what `check` reports of any rank alone, whose clock may be apart from those of others."""
    for rows in trace.rank_rows.values():
        _starts(trace, rows.start, rows.stop, issues)
    _check_work(trace, issues)


def _check_work(trace: Trace, issues: IssueLog) -> None:
    """Report durations, launches and repetitions of GPU work that cannot be true."""
    _durations(trace, issues)
    _launches(trace, issues)
    kind = trace.array("kind")
    work = np.flatnonzero(is_any(kind, GPU_WORK))
    if work.size:
        lane, ts, dur = (trace.array(c)[work] for c in ("lane", "ts", "dur"))
        work = work[np.lexsort((dur, ts, lane))]
        _repetitions(trace, work, issues)
        _overflows(trace, work, issues)


def _starts(trace: Trace, first_row: int, stop: int, issues: IssueLog) -> None:
    """Report starts, of some rows, that a gap of `FAR_NS` without any separates from the largest group."""
    ts = trace.array("ts")[first_row:stop]
    if not ts.size or int(ts.max()) - int(ts.min()) < FAR_NS:
        return
    order = np.argsort(ts, kind="stable")
    first = np.flatnonzero(np.diff(ts[order], prepend=ts[order[0]]) >= FAR_NS)
    bounds = np.concatenate([[0], first, [len(ts)]])
    largest = int(np.diff(bounds).argmax())  # group k is order[bounds[k]:bounds[k + 1]]
    apart = np.concatenate([order[: bounds[largest]], order[bounds[largest + 1] :]])
    if apart.size:
        issues.add(FAR_OFF, len(apart), _example(trace, first_row + int(apart[0])))


def _durations(trace: Trace, issues: IssueLog) -> None:
    long = np.flatnonzero(trace.array("dur") >= FAR_NS)
    wrong = long[is_any(trace.array("kind")[long], (*GPU_WORK, *CALLS))]
    if wrong.size:
        issues.add(TOO_LONG, len(wrong), _example(trace, int(wrong[0])))


def _launches(trace: Trace, issues: IssueLog) -> None:
    """Report GPU work that starts before its launch."""
    launch = trace.array("kind", "edges") == EdgeKind.LAUNCH
    src, dst = (trace.array(c, "edges")[launch] for c in ("src", "dst"))
    ts = trace.array("ts")
    lead = ts[src] - ts[dst]
    early = np.count_nonzero(lead > 0)
    if early:
        worst = int(lead.argmax())
        text = f"{_example(trace, int(dst[worst]))}, {_us(int(lead[worst]))} before it"
        issues.add(BEFORE_LAUNCH, early, text)


def _repetitions(trace: Trace, work: Array, issues: IssueLog) -> None:
    """Report work equal to the one before it; `work` is in order of lane, start, duration."""
    columns = [trace.array(c)[work] for c in ("lane", "ts", "dur")]
    close = np.flatnonzero(np.all([c[1:] == c[:-1] for c in columns], axis=0))
    if not close.size:
        return
    name, correlation = (trace.array(c)[work] for c in ("name", "correlation"))
    order = np.lexsort((correlation, name, *columns[::-1]))
    rows = np.array([*columns, name, correlation])[:, order]
    # work without a correlation id or a duration may be equal and still be distinct
    same = np.all(rows[:, 1:] == rows[:, :-1], axis=0) & (rows[2, 1:] > 0) & (rows[4, 1:] > 0)
    again = np.flatnonzero(same) + 1
    if again.size:
        issues.add(TWICE, len(again), _example(trace, int(work[order[again[0]]])))


def _overflows(trace: Trace, work: Array, issues: IssueLog) -> None:
    """Report kernels that last into the next one of their stream; `work` is by lane and start.

    Kernels of one correlation id belong to one graph launch, whose kernels may overlap. So may
    those of a hardware queue that several streams share, but not for long.
    """
    kind = trace.array("kind")[work]
    work = work[(kind == Kind.KERNEL) | (kind == Kind.COMM)]
    lane, ts, dur, correlation = (
        trace.array(c)[work] for c in ("lane", "ts", "dur", "correlation")
    )
    end = ts + dur
    if not work.size or not (end[:-1] - ts[1:] > MAX_OVERLAP_NS).any():
        return
    on_stream = trace.array("kind", "lanes")[lane] == LaneKind.STREAM
    allowed = np.where(on_stream, MAX_OVERLAP_NS, MAX_QUEUE_OVERLAP_NS)
    # runs of equal id: each kernel is compared with the first one behind its run
    changes = np.ones(len(work), bool)
    changes[1:] = (lane[1:] != lane[:-1]) | (correlation[1:] != correlation[:-1])
    changes[1:] |= correlation[1:] <= 0
    starts = np.append(np.flatnonzero(changes), len(work))
    following = starts[np.cumsum(changes)]
    nearest = np.minimum(following, len(work) - 1)
    over = (following < len(work)) & (lane[nearest] == lane)
    beyond = np.where(over, end - ts[nearest], 0)
    wrong = np.flatnonzero(beyond > allowed)
    if wrong.size:
        worst = int(wrong[beyond[wrong].argmax()])
        text = f"{_example(trace, int(work[worst]))}, by {_us(int(beyond[worst]))}"
        issues.add(OVERFLOW, len(wrong), text)


def _example(trace: Trace, node: int) -> str:
    code = int(trace.array("name")[node])
    name = trace.names()[code] if code >= 0 else ""
    return f"{name[:60]!r} of {_us(int(trace.array('dur')[node]))}"


def _us(ns: int) -> str:
    return f"{ns / 1000:,.3f} us"
