"""Edges from kernels that write what a host polls for in memory to what its thread does next.

No call of a runtime waits, so that nothing is recorded of it. That a host may poll for a kernel is known of the
kernel's library (`polled` of `schemas.communication.KERNELS`). That it did shows in times: its thread records nothing from the
launch until about the kernel's end, again and again::

    thread   [ launch ]   polls                [ next operation ]
    stream                 [ kernel      w   ]                        w: what is polled for is written

The host goes on before the kernel's end, if that has more to do: DeepEP's ranks meet once more, and hosts of
DeepSeek's published profile go on 25 to 67 µs before kernels of 1.4 to 3.6 ms end.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import preceding_rows
from chopper_interop.edges.handover import IDLE_NS
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.trace import Trace

POLLED = Fault.info(
    "poll-by-time",
    "Hosts polled memory for what kernels write there, which no call shows: it is inferred from the kernels' library, "
    "and from threads that went on about when these kernels ended.",
)

_SURE_RATIO = 4
"""A host surely polled if it had rested for so many times what it went on before or behind the kernel's end. Chosen:
hosts that do not poll go on within the time that Python takes, whenever the kernel ends."""
_MIN_SURE = 2
"""Kernels of a name for which a host surely polled. Chosen: one may end by chance when its host goes on."""


def poll_edges(trace: Trace, kernel: Array, issues: IssueLog) -> tuple[Array, Array]:
    """Find edges from kernels to the next operations of the threads that launched them and polled, as rows of `nodes`.

    Parameters
    ----------
    trace
        The trace.
    kernel
        Rows of kernels that hosts may poll for; see `communication.polled_kernels`.
    issues
        Log in which the edges are counted.
    """
    ts, lane = trace.array("ts"), trace.array("lane")
    end = ts + trace.array("dur")
    call = trace.launch[kernel]
    thread, returned = lane[call], end[call]
    node = np.flatnonzero(np.isin(lane, thread))
    endpoint, of = np.append(ts[node], end[node]), np.tile(lane[node], 2)
    before, after = _around(of, endpoint, thread, np.maximum(returned, ts[kernel]))
    rested, resumed = endpoint[before], endpoint[after]
    _, following = _around(lane[node], ts[node], thread, resumed - 1)
    waits = (after >= 0) & (following >= 0) & (rested - returned <= IDLE_NS)
    slept = resumed - rested
    sure = waits & (slept > IDLE_NS) & (slept >= _SURE_RATIO * np.abs(resumed - end[kernel]))
    _, group = gather.distinct(trace.array("rank")[kernel], trace.array("name")[kernel])
    seen = np.bincount(group, sure)
    polls = (seen >= _MIN_SURE) & (2 * seen > np.bincount(group))
    row = np.flatnonzero(waits & polls[group])
    src, dst = kernel[row], node[following[row]]
    if row.size:
        names = trace.names()
        ends = f"{names[trace.array('name')[src[0]]][:40]} ({issues.node(src[0])})"
        issues.add(POLLED, row.size, ends)
    return src.astype(np.int32), dst.astype(np.int32)


def _around(group: Array, time: Array, of_group: Array, at: Array) -> tuple[Array, Array]:
    """For each question the last row of its group that is not later, and the first that is; -1 if there is none."""
    order = np.lexsort((time, group))
    group, time = group[order], time[order]
    before = preceding_rows(group, time, of_group, at)
    after = np.where(before >= 0, before + 1, np.searchsorted(group, of_group))
    after[np.append(group, -1)[after] != of_group] = -1
    return np.append(order, -1)[before], np.append(order, -1)[after]
