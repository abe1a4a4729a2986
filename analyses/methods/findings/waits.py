"""Waits: of hosts for GPUs, and of GPU work for what was not recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from chopper_interop.analyses.methods.activity import host_waits
from chopper_interop.analyses.methods.findings.finding import LIKELY, MODELLED, Finding
from chopper_interop.analyses.methods.findings.host_calls import (
    LONG_NS,
    allocating_calls,
    named_nodes,
    serialised_calls,
)
from chopper_interop.analyses.methods.findings.job import ExaminedJob, FindingPlace
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.edges import ordering_calls
from chopper_interop.schemas.kinds import Kind
from chopper_interop.schemas.names import ONLY_WAITS, Role
from chopper_interop.trace import Trace

_FETCHES = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|equal)$|tensor\.item")
_COPIES = re.compile(r"^aten::(copy_|_?to|_to_copy|cpu|nonzero|masked_select|unique\w*|tolist)\b")
_LOCAL = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
"""Work that waits for no other rank."""


def waits(job: ExaminedJob) -> Iterator[Finding]:
    """Find waits of hosts for GPUs: values that are fetched, blocking copies, synchronisation, full queues."""
    trace = job.trace
    waiting = job.mask(host_waits.calls_that_waited(trace)) & job.inside & ~serialised_calls(job)
    if not job.has_steps:  # the first call of a program sets up its GPU
        waiting &= trace.array("ts") > job.first_work_ns
    if not waiting.any():
        return
    fetching = waiting & job.changer.within(named_nodes(job, _FETCHES))
    role = ordering_calls.node_roles(trace)
    launching = job.mask(np.unique(trace.launch[(trace.launch >= 0) & ~job.copies]))
    only_waits = is_any(role, ONLY_WAITS)
    copying = waiting & ~fetching & ~launching
    copying &= ~only_waits | job.changer.within(named_nodes(job, _COPIES))
    kinds = {
        "item": (fetching, "The host fetches values from the GPU and waits for them: {names}."),
        "blocking-copy": (copying & ~allocating_calls(job), "The host waits for copies: {names}."),
        "host-sync": (
            waiting & only_waits & ~fetching & ~copying,
            "The host waits for the GPU in {names}.",
        ),
        "full-queue": (
            waiting & launching & ~fetching,
            "Launches wait for a full queue, which holds up other streams or ranks.",
        ),
    }
    for code, (calls, text) in kinds.items():
        if calls.any():
            yield _wait(job, code, calls, text)


def _wait(job: ExaminedJob, code: str, calls: Array, text: str) -> Finding:
    trace = job.trace
    waiting = host_waits.waiting_for_the_same(trace, calls)
    saved, place = job.saved(job.times().return_without_waiting(waiting)), job.place(calls)
    caller = trace.array("parent")
    by_operator = (caller >= 0) & (trace.array("kind")[caller] != Kind.ANNOTATION)
    at = job.mask(np.where(by_operator, caller, np.arange(len(caller)))[calls])
    names = job.names(at)
    return Finding.from_saving(
        code,
        saved,
        place,
        ", ".join(names),
        MODELLED,
        text.format(names=" and ".join(names)),
        job.without_waiting(waiting, at) or job.command("idle --by blame"),
    )


def unrecorded_waits(job: ExaminedJob) -> Iterator[Finding]:
    """Find GPU work that starts long after its launch on a queue that is free, for no recorded reason."""
    trace = job.trace
    local = is_any(trace.array("kind"), _LOCAL) & job.inside & (trace.launch >= 0)
    starts = job.timing.delay_ns[: 2 * len(local) : 2]
    # a program begins by setting up its GPU, a recording while it works on what was launched before
    late = local & (starts >= LONG_NS) & ~_first_work(job)
    if late.any():
        longest = int(np.argmax(starts * late))
        at, wait_ns = int(trace.array("ts")[longest]), int(starts[longest])
        name = trace.names()[trace.array("name")[longest]]
        yield Finding.from_saving(
            "unrecorded-wait",
            job.saved(job.times().without_delays(late)),
            FindingPlace(job.place(late).ranks, at - wait_ns, at),
            name,
            LIKELY,
            f"Work of the GPU starts up to {wait_ns / 1e6:,.2f} ms after its launch though its queue is free: it "
            f"waits for what was not recorded{_wait_before(trace, longest)}.",
            job.what_if("delays=0 where kind in ('kernel', 'memcpy', 'memset')"),
        )


def _wait_before(trace: Trace, work: int) -> str:
    """Say which call for a stream to wait stands right before the launch of this work."""
    ts, lane, call = trace.array("ts"), trace.array("lane"), trace.launch[work]
    is_before = (lane == lane[call]) & (ts < ts[call])
    launches = trace.launch[trace.launch >= 0]
    last = ts[launches[is_before[launches]]].max(initial=np.iinfo(np.int64).min)
    role = ordering_calls.node_roles(trace)
    waiting = np.flatnonzero(is_before & (ts >= last) & (role == Role.STREAM_WAIT))
    if not waiting.size:
        return ""
    name = trace.names()[trace.array("name")[waiting[-1]]]
    return f", perhaps for the event of {name} right before its launch"


def busy_at_start(job: ExaminedJob) -> Iterator[Finding]:
    """Find a recording without steps that begins while GPUs still work on what was launched before it.

    The first work of a rank starts long after its call has returned and more was launched behind it: a call that sets
    up the GPU does not return before.
    """
    trace = job.trace
    first = np.flatnonzero(_first_work(job) & job.inside & (trace.launch >= 0))
    first = first[job.timing.delay_ns[2 * first] >= LONG_NS]
    if job.has_steps or not first.size:
        return
    ts, rank = trace.array("ts"), trace.array("rank")
    launched = np.unique(trace.launch[job.on_gpu & (trace.launch >= 0)])
    begin = np.full(int(rank.max()) + 1, np.iinfo(np.int64).min)
    begin[rank[first]] = ts[first]
    earlier = rank[launched[ts[launched] < begin[rank[launched]]]]
    has_more = np.bincount(earlier, minlength=len(begin))[rank[first]] > 1
    call = trace.launch[first]
    waiting = job.mask(first[has_more & (ts[call] + trace.array("dur")[call] < ts[first])])
    if waiting.any():
        longest = first[np.argmax(job.timing.delay_ns[2 * first] * waiting[first])]
        at, wait_ns = int(ts[longest]), int(job.timing.delay_ns[2 * longest])
        yield Finding.from_saving(
            "busy-at-start",
            job.saved(job.times().without_delays(waiting)),
            FindingPlace(job.place(waiting).ranks, at - wait_ns, at),
            trace.names()[trace.array("name")[longest]],
            LIKELY,
            f"The first work of the GPU starts {wait_ns / 1e6:,.2f} ms after its launch, perhaps behind work from "
            "before the recording: that counts as idle time here.",
            job.command("critical_path"),
        )


def _first_work(job: ExaminedJob) -> Array:
    """Mark the first GPU work of each rank."""
    work = np.flatnonzero(job.on_gpu)
    rank, ts = (job.trace.array(column)[work] for column in ("rank", "ts"))
    order = np.lexsort((ts, rank))
    return job.mask(work[order[np.diff(rank[order], prepend=-1) != 0]])
