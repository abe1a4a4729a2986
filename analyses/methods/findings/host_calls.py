"""Calls of hosts that load code, allocate, launch or capture, and what is around them, as marks of nodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import counterparts, host_waits
from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import CALLS, Kind

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.findings.job import ExaminedJob

_ALLOCATES = re.compile(
    r"^(?:(hip|cuda)(Malloc|Free|MallocHost|HostMalloc|HostAlloc|FreeHost|HostFree|MallocManaged|"
    r"HostRegister|HostUnregister|MemCreate|MemRelease|MemMap|MemUnmap)(_v\d+)?|"
    r"cu(MemAlloc|MemFree|MemAllocHost|MemFreeHost|MemCreate|MemRelease|MemMap|MemUnmap)(_v\d+)?|"
    r"hsa_amd_memory_pool_(allocate|free))$"
)
BEGINS_CAPTURE = re.compile(r"^(?:hip|cuda|cu)StreamBeginCapture")
_ENDS_CAPTURE = re.compile(r"^(?:hip|cuda|cu)StreamEndCapture")
_INSTANTIATES = re.compile(r"^(?:hip|cuda|cu)GraphInstantiate")
_SERIALISED_SHARE = 0.9
"""Share of launches that return behind the end of their kernel where launches are serialised. Chosen:
without it hardly any do, and with it all."""
_MIN_KERNEL_NS = 3_000
"""Kernels that end before their call could return, however launched, are shorter. Chosen: a call takes
a few microseconds."""
LONG_NS = 100_000
"""Time of a host, and mean idle time of a GPU, from which on it is not that of launches. Chosen: operators
take hosts 10 to 50 µs."""
COMPUTES_NS = 1_000_000
"""Own time of an operator for each kernel below it from which on it computes, though it launches as well. Chosen: of
libraries that choose an algorithm for each launch it is 0.1 to 0.3 ms."""
_FROM_ZERO = re.compile(r"^ProfilerStep#\d")
_SETS_UP_NS = 50_000_000
"""Duration from which on calls that allocate or free memory set up a library. Chosen: allocations take a
few milliseconds, and initialisation some 100."""
_UNUSUAL = 10
"""By how many times a call that loads code or sets up a library, or an operator that computes, exceeds the median of
others. Chosen: launches vary by 2 or 3 times, and one that loads takes milliseconds."""
_LOADS_CODE = re.compile(
    r"^(?:hip|cu|cuda)(Module|Library)(Load\w*|GetFunction|GetKernel)|^cuLink|^hiprtc"
)


def _once(find: Callable[[ExaminedJob], Array]) -> Callable[[ExaminedJob], Array]:
    """Find marks once for a job: several findings ask for them, and none changes them."""

    @wraps(find)
    def found(job: ExaminedJob) -> Array:
        return job.marks(find)

    return found


def named_nodes(job: ExaminedJob, pattern: re.Pattern[str]) -> Array:
    """Mark the nodes of hosts in whose name the pattern occurs."""
    names = job.trace.names()
    matches = np.array([pattern.search(name) is not None for name in names], bool)
    return matches[job.trace.array("name")] & job.on_host if len(names) else job.on_host


@_once
def loading_calls(job: ExaminedJob) -> Array:
    """Mark calls that load code, or set up a library, rather than what they are named for."""
    calls = is_any(job.trace.array("kind"), CALLS)
    own = np.where(calls, job.trace.array("dur"), 0)
    own[host_waits.calls_that_waited(job.trace)] = 0
    long = _first_launches(job) & (own >= LONG_NS)
    long |= _unusual_allocations(job, own) & (own >= _SETS_UP_NS) & ~_behind_a_step(job)
    return long | (named_nodes(job, _LOADS_CODE) & calls)


def _unusual_allocations(job: ExaminedJob, took: Array) -> Array:
    """Mark calls that allocate or free memory and take far longer than others of their name on their rank.

    So does the one call of a name, as there is none to compare it with.
    """
    calls = np.flatnonzero(named_nodes(job, _ALLOCATES))
    _, by_name = gather.distinct(*(job.trace.array(column)[calls] for column in ("rank", "name")))
    usual, _ = counterparts.group_medians(took[calls], by_name)
    only = np.bincount(by_name)[by_name] == 1
    return job.mask(calls[only | (took[calls] >= _UNUSUAL * usual)])


@_once
def loading_and_callers(job: ExaminedJob) -> Array:
    """Mark calls that load code or set up a library, and what calls them, which sets up what was loaded."""
    calls = loading_calls(job)
    return calls | callers(job, calls)


def callers(job: ExaminedJob, nodes: Array) -> Array:
    """Mark what calls the marked nodes."""
    caller = job.trace.array("parent")[nodes]
    return job.mask(caller[caller >= 0])


def _first_launches(job: ExaminedJob) -> Array:
    """Mark the first launch of each kernel that takes far longer than its later ones by the same call.

    Of a kernel that a call launches once, far longer than that call takes on that rank; the one launch of a rank, as
    there is none to compare it with.
    """
    trace = job.trace
    work = np.flatnonzero((trace.launch >= 0) & ~job.copies)
    call, kernel = trace.launch[work], trace.array("name")[work]
    order = np.lexsort((trace.array("ts")[call], kernel, trace.array("rank")[call]))
    call, kernel = call[order], kernel[order]
    rank, name, took = (trace.array(column)[call] for column in ("rank", "name", "dur"))
    _, of_rank = gather.distinct(rank, kernel)
    is_first = np.diff(of_rank, prepend=-1) != 0
    _, by_kernel = gather.distinct(rank, name, kernel)
    of_kernel, _ = counterparts.group_medians(took, by_kernel)
    _, by_call = gather.distinct(rank, name)
    usual = np.where(np.bincount(by_kernel)[by_kernel] > 1, of_kernel, _of_calls(job)[call])
    only = np.bincount(by_call)[by_call] == 1
    return job.mask(call[is_first & (only | (took >= _UNUSUAL * usual))])


def _of_calls(job: ExaminedJob) -> Array:
    """Median duration of calls of each one's name on its rank, whether or not their kernels are known."""
    calls = np.flatnonzero(is_any(job.trace.array("kind"), CALLS))
    rank, name, took = (job.trace.array(column)[calls] for column in ("rank", "name", "dur"))
    usual = job.trace.array("dur").copy()
    usual[calls], _ = counterparts.group_medians(took, gather.distinct(rank, name)[1])
    return usual


def _behind_a_step(job: ExaminedJob) -> Array:
    """Mark what follows a training step of the program, in which its libraries were set up already."""
    iteration = job.trace.integers("iteration")
    # PyTorch's profiler numbers steps from 0, other programs from 0 or 1
    from_one = (iteration[iteration >= 0] > 0).all() and not named_nodes(job, _FROM_ZERO).any()
    return iteration > int(from_one)


@_once
def launching_nodes(job: ExaminedJob) -> Array:
    """Mark calls that launch kernels, and the operators around them but for those that compute for long."""
    trace = job.trace
    kernels = (trace.array("kind") == Kind.KERNEL) & (trace.launch >= 0)
    calls = job.mask(np.unique(trace.launch[kernels]))
    operators = job.on_host & is_any(trace.array("kind"), (Kind.CPU_OP, *CALLS))
    launches = _count_within(job, calls)
    operators &= ~calls & (launches > 0)
    own_ns = job.own_times_ns(operators) / np.maximum(launches, 1)
    usual_ns = float(np.median(own_ns[operators])) if operators.any() else 0.0
    return calls | (operators & (own_ns < max(COMPUTES_NS, _UNUSUAL * usual_ns)))


def encloses(job: ExaminedJob, inner: Array) -> Array:
    """Mark the nodes that call one of these, at any depth."""
    return _count_within(job, inner) > 0


def _count_within(job: ExaminedJob, inner: Array) -> Array:
    """Number of these that each node calls, at any depth."""
    parent = job.trace.array("parent")
    count = np.zeros(len(parent), np.int64)
    level = parent[inner]
    while (level := level[level >= 0]).size:
        np.add.at(count, level, 1)
        level = parent[level]
    return count


@_once
def serialised_calls(job: ExaminedJob) -> Array:
    """Mark launches of ranks on which nearly all launches return behind the end of their kernel."""
    trace = job.trace
    ts, dur = trace.array("ts"), trace.array("dur")
    work = np.flatnonzero(
        (trace.array("kind") == Kind.KERNEL) & (trace.launch >= 0) & (dur >= _MIN_KERNEL_NS)
    )
    call = trace.launch[work]
    late = ts[call] + dur[call] >= ts[work] + dur[work]
    late &= ts[work] >= ts[call]  # else clocks are apart
    marked = np.zeros(len(ts), bool)
    for rank in job.ranks:
        of_rank = trace.array("rank")[work] == rank
        if of_rank.any() and late[of_rank].mean() >= _SERIALISED_SHARE:
            marked[call[of_rank & late]] = True
    return marked


@_once
def captured_nodes(job: ExaminedJob) -> Array:
    """Mark what threads do from the begin of a capture to its end, and calls that make graphs of what was captured."""
    trace = job.trace
    begins, ends = named_nodes(job, BEGINS_CAPTURE), named_nodes(job, _ENDS_CAPTURE)
    if not begins.any():
        return begins
    rows = np.flatnonzero(job.on_host)
    lane, ts = trace.array("lane")[rows], trace.array("ts")[rows]
    rows = rows[np.lexsort((ts, lane))]
    # ends of the same thread that no other capture begins before
    marks = rows[(begins | ends)[rows]]
    pairs = np.flatnonzero(begins[marks[:-1]] & ends[marks[1:]])
    pairs = pairs[trace.array("lane")[marks[pairs]] == trace.array("lane")[marks[pairs + 1]]]
    place = np.empty(len(begins), np.int64)
    place[rows] = np.arange(len(rows))
    change = np.zeros(len(rows) + 1, np.int64)
    change[place[marks[pairs]]] += 1
    change[place[marks[pairs + 1]] + 1] -= 1
    within = np.zeros(len(begins), bool)
    within[rows[np.cumsum(change)[:-1] > 0]] = True
    within |= named_nodes(job, _INSTANTIATES)
    return within & job.inside


@_once
def allocating_calls(job: ExaminedJob) -> Array:
    """Mark calls that allocate or free memory of GPUs, or pinned memory."""
    calls = named_nodes(job, _ALLOCATES) & is_any(job.trace.array("kind"), CALLS)
    return calls & ~loading_calls(job)
