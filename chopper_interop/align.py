"""Bringing runs and clocks together.

Counters come from runs of their own, in which kernels are serialised: their times mean nothing
beside the timing run. What can be carried over is which dispatch is which: the k-th of a kernel
on a device. That holds only if both runs made as many, or one a whole multiple of the other, so
nothing else is joined.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import arrow, gather
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

JOINED = Fault(
    "dispatch-joined",
    Severity.INFO,
    "Dispatches of a counter pass were joined to the same kernels of the timing run.",
    events=True,
)
REPEATED = Fault(
    "counters-of-last-repetition",
    Severity.INFO,
    "The timing run repeats several times what a counter pass counted once, as training steps do: "
    "the counters went to the last repetition.",
)
NOT_JOINED = Fault(
    "dispatch-not-joined",
    Severity.LOSS,
    "Dispatches of a counter pass have no sure counterpart in the timing run: it made another "
    "number of dispatches of that kernel.",
    events=True,
)
COUNTED_BEFORE = Fault(
    "counter-of-several-runs",
    Severity.INFO,
    "Counters that several passes counted, as clocks are; the first pass was taken.",
)
OTHER_RUN = Fault(
    "event-of-another-run",
    Severity.INFO,
    "Host calls and copies of a counter pass are not those of the timing run and were left out.",
    events=True,
)

_ENDINGS = re.compile(r"(\.kd| \[clone .*\]| \(\.kd\))+$")


def plain_name(name: str) -> str:
    """A kernel's name without what only some tools put behind it."""
    return _ENDINGS.sub("", name).strip().strip('"')


def join_counters(timing: Trace, run: Trace, devices: dict[int, int], issues: IssueLog) -> Trace:
    """Carry the counters of another run over to the kernels of the timing run.

    Parameters
    ----------
    timing
        The run whose times hold.
    run
        A run of the same program in which dispatches were counted.
    devices
        Device of `run` → device of `timing`.
    issues
        Where what could not be joined is counted.
    """
    ours, theirs = _dispatches(timing), _dispatches(run)
    their_device = _device(run, theirs)
    known = np.isin(their_device, list(devices))
    mapped = np.array([devices.get(int(d), -1) for d in their_device], np.int64)
    names, our_name, their_name = _common_names(timing, ours, run, theirs)
    our_key = _device(timing, ours) * len(names) + our_name
    their_key = np.where(known, mapped * len(names) + their_name, -1)
    partner, times = _kth_of_each(our_key, their_key)
    joined = partner >= 0
    issues.add(JOINED, np.count_nonzero(joined))
    if times > 1:
        issues.add(REPEATED, 1, f"{times} repetitions")
    lost = theirs[~joined]
    example = run.names()[run.array("name")[lost[0]]][:80] if lost.size else ""
    issues.add(NOT_JOINED, lost.size, example)
    issues.add(OTHER_RUN, run.nodes.num_rows - theirs.size)
    target = np.full(run.nodes.num_rows, -1, np.int32)
    target[theirs[joined]] = ours[partner[joined]]
    return _with_counters(timing, run, target, issues)


def _dispatches(trace: Trace) -> Array:
    return np.flatnonzero(trace.array("kind") == Kind.KERNEL)


def _device(trace: Trace, nodes: Array) -> Array:
    devices = trace.array("device", "lanes").astype(np.int64)
    return devices[trace.array("lane")[nodes]]


def _common_names(a: Trace, in_a: Array, b: Trace, in_b: Array) -> tuple[list[str], Array, Array]:
    """Plain names of both traces, and for each node which it has."""
    names: dict[str, int] = {}
    codes = []
    for trace, nodes in ((a, in_a), (b, in_b)):
        of_code = [names.setdefault(plain_name(n), len(names)) for n in trace.names()]
        codes.append(np.array(of_code or [0], np.int64)[trace.array("name")[nodes]])
    return list(names), codes[0], codes[1]


def _kth_of_each(ours: Array, theirs: Array) -> tuple[Array, int]:
    """For each of theirs, the position of ours that is the same, -1 where that is not sure.

    It is sure if both runs have as many of a key, or ours a whole multiple that is the same for
    most: then ours has that many repetitions, and theirs is the last of them.
    """
    partner = np.full(len(theirs), -1, np.int64)
    if not ours.size or not theirs.size:
        return partner, 1
    first, code = gather.distinct(np.concatenate([ours, theirs]))
    our_code, their_code = code[: len(ours)], code[len(ours) :]
    our_count, their_count = (np.bincount(c, minlength=len(first)) for c in (our_code, their_code))
    times = _repetitions(our_count, their_count)
    sure = (our_count == times * their_count)[their_code] & (theirs >= 0)
    our_order, their_order = (np.argsort(c, kind="stable") for c in (our_code, their_code))
    start_ours = np.concatenate([[0], np.cumsum(our_count)])[their_code[their_order]]
    start_theirs = np.concatenate([[0], np.cumsum(their_count)])[their_code[their_order]]
    nth = np.arange(len(theirs)) - start_theirs
    skipped = ((times - 1) * their_count)[their_code[their_order]]
    at = np.minimum(start_ours + skipped + nth, len(ours) - 1)
    partner[their_order] = our_order[at]
    return np.where(sure, partner, -1), times


def _repetitions(ours: Array, theirs: Array) -> int:
    """How many times ours repeats theirs: the multiple that holds for most dispatches."""
    both = (ours > 0) & (theirs > 0)
    whole = both & (ours % np.maximum(theirs, 1) == 0)
    if not whole.any():
        return 1
    return int(np.bincount((ours[whole] // theirs[whole]), weights=theirs[whole]).argmax())


def _with_counters(timing: Trace, run: Trace, target: Array, issues: IssueLog) -> Trace:
    node = target[run.array("node", "counters")]
    carried = arrow.take(run.counters, node >= 0)
    carried = arrow.replaced(carried, "node", node[node >= 0])
    both = pa.concat_tables([timing.counters, carried]).unify_dictionaries()
    nodes, names = arrow.numbers(both["node"]), arrow.numbers(both["name"].combine_chunks())
    first, _ = gather.distinct(nodes, names)
    issues.add(COUNTED_BEFORE, len(nodes) - len(first))
    order = first[np.argsort(nodes[first], kind="stable")]
    counters = arrow.take(both, order).combine_chunks().cast(hub.schema("counters"))
    return replace(timing, counters=counters)
