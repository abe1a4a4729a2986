"""Hosts that keep GPUs waiting: launches, waits, the allocator, the data loader, other code."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from chopper_interop.analyses.methods.activity import counterparts, host_waits, windows
from chopper_interop.analyses.methods.findings.finding import LIKELY, MODELLED, Finding
from chopper_interop.analyses.methods.findings.job import ExaminedJob, FindingPlace, LagChanges
from chopper_interop.analyses.methods.timing import paths
from chopper_interop.arrays import Array, gather, intervals, name_stems
from chopper_interop.arrays.gather import is_any
from chopper_interop.edges import ordering_calls
from chopper_interop.schemas.kinds import CALLS, Kind
from chopper_interop.schemas.names import ONLY_WAITS, Role
from chopper_interop.trace import Trace

_ALLOCATES = re.compile(
    r"^(?:(hip|cuda)(Malloc|Free|MallocHost|HostMalloc|HostAlloc|FreeHost|HostFree|MallocManaged|"
    r"HostRegister|HostUnregister|MemCreate|MemRelease|MemMap|MemUnmap)(_v\d+)?|"
    r"cu(MemAlloc|MemFree|MemAllocHost|MemFreeHost|MemCreate|MemRelease|MemMap|MemUnmap)(_v\d+)?|"
    r"hsa_amd_memory_pool_(allocate|free))$"
)
_ONLY_ALLOCATES = re.compile(r"^aten::(new_)?empty\w*$")
_LOADS = re.compile(r"(?i)data_?loader")
_COMPILES = re.compile(r"\(dynamo_timed\)$")
_BEGINS_CAPTURE = re.compile(r"^(?:hip|cuda|cu)StreamBeginCapture")
_ENDS_CAPTURE = re.compile(r"^(?:hip|cuda|cu)StreamEndCapture")
_INSTANTIATES = re.compile(r"^(?:hip|cuda|cu)GraphInstantiate")
_FETCHES = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|equal)$|tensor\.item")
_COPIES = re.compile(r"^aten::(copy_|_?to|_to_copy|cpu|nonzero|masked_select|unique\w*|tolist)\b")
_SMALL_NS = 20_000
"""Median duration of kernels from which on they are not small, unless this host takes longer for each. Chosen: a
launch by a framework takes hosts about 5 to 20 µs, so that longer kernels keep a GPU busy while the next is launched."""
_SERIALISED_SHARE = 0.9
"""Share of launches that return behind the end of their kernel where launches are serialised. Chosen:
without it hardly any do, and with it all."""
_MIN_KERNEL_NS = 3_000
"""Kernels that end before their call could return, however launched, are shorter. Chosen: a call takes
a few microseconds."""
_LONG_NS = 100_000
"""Time of a host, and mean idle time of a GPU, from which on it is not that of launches. Chosen: operators
take hosts 10 to 50 µs."""
_COMPUTES_NS = 1_000_000
"""Own time of an operator for each kernel below it from which on it computes, though it launches as well. Chosen: of
libraries that choose an algorithm for each launch it is 0.1 to 0.3 ms."""
_USUAL_NS = 50_000
"""Time of operators for each kernel that they launch which is not long. Chosen: the highest of ordinary
recordings, which have 16 to 50 µs; hosts that record stacks and shapes take more."""
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
_STEP = re.compile(r"^ProfilerStep")
_LOCAL = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
"""Work that waits for no other rank."""
_AROUND = (Kind.PYTHON, Kind.ANNOTATION)
"""Code of the program that calls operators: a graph of what they launch replaces it too, but for what takes long."""
_NAMED_SHARE = 0.25
"""Share of the time that the GPU of the latest rank waited from which on a rank is named. Chosen: less hardly matters next to it."""
_MAX_NAMES = 4
"""Host operations that are re-timed each. Chosen: those that GPUs waited for most."""


def named_nodes(job: ExaminedJob, pattern: re.Pattern[str]) -> Array:
    """Mark the nodes of hosts in whose name the pattern occurs."""
    names = job.trace.names()
    matches = np.array([pattern.search(name) is not None for name in names], bool)
    return matches[job.trace.array("name")] & job.on_host if len(names) else job.on_host


def _with_callees(job: ExaminedJob, nodes: Array) -> Array:
    """Mark these nodes and all that they call."""
    return job.changer.within(nodes)


def small_launches(job: ExaminedJob) -> Iterator[Finding]:
    """Find hosts that cannot launch small kernels as fast as the GPU runs them."""
    trace = job.trace
    kernels = (trace.array("kind") == Kind.KERNEL) & job.inside & (trace.launch >= 0)
    if not kernels.any() or serialised_calls(job).any():
        return
    median = float(np.median(trace.array("dur")[kernels]))
    launching = _launching(job) & job.inside & ~_loading(job)
    each_ns = job.own_ns(launching) / np.count_nonzero(kernels)
    if median >= max(_SMALL_NS, each_ns):
        return
    count = int(np.count_nonzero(kernels)) // (job.steps * max(len(job.ranks), 1))
    around = _encloses(job, job.mask(trace.launch[kernels])) & is_any(trace.array("kind"), _AROUND)
    times, code, certainty = job.times().take_no_time(launching), "small-launches", MODELLED
    times.take_no_time(around & job.inside & ~_loading(job), below_ns=_LONG_NS)
    text = (
        f"The host launches kernels more slowly than they run: {count:,} {job.each}, half of "
        f"them shorter than {median / 1e3:,.1f} µs."
    )
    if each_ns >= _LONG_NS:
        times = job.times().take_no_time(launching, factor=_USUAL_NS / each_ns)
        code, certainty = "slow-operators", LIKELY
        text = (
            f"Operators of the host take {each_ns / 1e3:,.0f} µs for each kernel that they launch, more "
            f"than {_USUAL_NS / 1e3:,.0f} µs: recording may slow them down."
        )
    yield Finding.from_saving(
        code,
        job.saved(times),
        job.idlest(kernels, ("host_late", "launch"), _LONG_NS),
        f"{count:,} kernel{'s' * (count != 1)} {job.each}",
        certainty,
        text,
        job.command("launch --by operation"),
    )


def loading_calls(job: ExaminedJob) -> Array:
    """Mark calls that load code, or set up a library, rather than what they are named for."""
    calls = is_any(job.trace.array("kind"), CALLS)
    own = np.where(calls, job.trace.array("dur"), 0)
    own[host_waits.calls_that_waited(job.trace)] = 0
    long = _first_launches(job) & (own >= _LONG_NS)
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


def _loading(job: ExaminedJob) -> Array:
    """Mark calls that load code or set up a library, and what calls them, which sets up what was loaded."""
    calls = loading_calls(job)
    return calls | _callers(job, calls)


def _callers(job: ExaminedJob, nodes: Array) -> Array:
    """Mark what calls the marked nodes."""
    caller = job.trace.array("parent")[nodes]
    return job.mask(caller[caller >= 0])


def _first_launches(job: ExaminedJob) -> Array:
    """Mark the first launch of each kernel that takes far longer than its later ones.

    Of a kernel that is launched once, far longer than that call takes on that rank; the one launch of a rank, as there
    is none to compare it with.
    """
    trace = job.trace
    work = np.flatnonzero((trace.launch >= 0) & ~job.copies)
    call, kernel = trace.launch[work], trace.array("name")[work]
    order = np.lexsort((trace.array("ts")[call], kernel, trace.array("rank")[call]))
    call, kernel = call[order], kernel[order]
    rank, name, took = (trace.array(column)[call] for column in ("rank", "name", "dur"))
    _, by_kernel = gather.distinct(rank, kernel)
    is_first = np.diff(by_kernel, prepend=-1) != 0
    of_kernel, _ = counterparts.group_medians(took, by_kernel)
    _, by_call = gather.distinct(rank, name)
    of_call, _ = counterparts.group_medians(took, by_call)
    usual = np.where(np.bincount(by_kernel)[by_kernel] > 1, of_kernel, of_call)
    only = np.bincount(by_call)[by_call] == 1
    return job.mask(call[is_first & (only | (took >= _UNUSUAL * usual))])


def _behind_a_step(job: ExaminedJob) -> Array:
    """Mark what follows a training step of the program, in which its libraries were set up already."""
    iteration = job.trace.integers("iteration")
    # PyTorch's profiler numbers steps from 0, other programs from 0 or 1
    from_one = (iteration[iteration >= 0] > 0).all() and not named_nodes(job, _FROM_ZERO).any()
    return iteration > int(from_one)


def code_loading(job: ExaminedJob) -> Iterator[Finding]:
    """Find launches and other calls that take long once, as code is loaded when it is first used."""
    calls = loading_calls(job) & job.inside & ~serialised_calls(job)
    if not job.has_steps:  # a program begins by loading code
        calls &= job.trace.array("ts") > job.first_work_ns
    if calls.any():
        dur = job.trace.array("dur")[calls]
        names = " and ".join(job.names(calls))
        took = f"{dur.sum() / 1e6:,.1f} ms"
        if len(dur) > 1:
            took = f"up to {dur.max() / 1e6:,.1f} ms, and {took} in all"
        text = f"Code is loaded when it is first used: {names} took {took}."
        loaded = (
            job.on_gpu & (job.trace.launch >= 0) & calls[job.trace.launch]
        )  # starts when it is loaded
        operators = _callers(job, calls) & (job.trace.array("kind") == Kind.CPU_OP)
        own_ns = job.own_times_ns(operators)
        sets_up = own_ns >= _COMPUTES_NS
        if sets_up.any():
            setting_up = " and ".join(job.names(sets_up))
            text += (
                f" {setting_up} around them took {own_ns[sets_up].sum() / 1e6:,.1f} ms to set up."
            )
        times = job.times().take_no_time(calls | sets_up).without_delays(loaded)
        without = calls | sets_up | loaded
        yield _of_nodes(job, "code-loading", calls, names, text, times, without, LIKELY)


def _launching(job: ExaminedJob) -> Array:
    """Mark calls that launch kernels, and the operators around them but for those that compute for long."""
    trace = job.trace
    kernels = (trace.array("kind") == Kind.KERNEL) & (trace.launch >= 0)
    calls = job.mask(np.unique(trace.launch[kernels]))
    operators = job.on_host & is_any(trace.array("kind"), (Kind.CPU_OP, *CALLS))
    launches = _count_within(job, calls)
    operators &= ~calls & (launches > 0)
    own_ns = job.own_times_ns(operators) / np.maximum(launches, 1)
    usual_ns = float(np.median(own_ns[operators])) if operators.any() else 0.0
    return calls | (operators & (own_ns < max(_COMPUTES_NS, _UNUSUAL * usual_ns)))


def _encloses(job: ExaminedJob, inner: Array) -> Array:
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


def serialised_launches(job: ExaminedJob) -> Iterator[Finding]:
    """Find launches that return only when their kernel has ended."""
    calls = serialised_calls(job) & job.inside
    if not calls.any():
        return
    trace = job.trace
    work = np.flatnonzero((trace.launch >= 0) & job.on_gpu)
    took = np.zeros(trace.nodes.num_rows, np.int64)
    np.maximum.at(took, trace.launch[work], trace.array("dur")[work])
    times = job.times().return_without_waiting(calls).shorten(calls, took)
    saved, place = job.saved(times), job.place(calls)
    yield Finding.from_saving(
        "serialised-launches",
        saved,
        place,
        "launches of kernels",
        MODELLED,
        "Each launch waits until its kernel has ended, as with AMD_SERIALIZE_KERNEL, "
        "HIP_LAUNCH_BLOCKING or CUDA_LAUNCH_BLOCKING.",
        job.command("launch"),
    )


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


def waits(job: ExaminedJob) -> Iterator[Finding]:
    """Find waits of hosts for GPUs: values that are fetched, blocking copies, synchronisation, full queues."""
    trace = job.trace
    waiting = job.mask(host_waits.calls_that_waited(trace)) & job.inside & ~serialised_calls(job)
    if not job.has_steps:  # the first call of a program sets up its GPU
        waiting &= trace.array("ts") > job.first_work_ns
    if not waiting.any():
        return
    fetching = waiting & _with_callees(job, named_nodes(job, _FETCHES))
    role = ordering_calls.node_roles(trace)
    launching = job.mask(np.unique(trace.launch[(trace.launch >= 0) & ~job.copies]))
    only_waits = is_any(role, ONLY_WAITS)
    copying = waiting & ~fetching & ~launching
    copying &= ~only_waits | _with_callees(job, named_nodes(job, _COPIES))
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
    late = local & (starts >= _LONG_NS) & ~_first_work(job)
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
    first = first[job.timing.delay_ns[2 * first] >= _LONG_NS]
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


def allocator(job: ExaminedJob) -> Iterator[Finding]:
    """Find memory that is allocated or freed by the runtime within steps."""
    calls = allocating_calls(job) & job.inside
    if not job.has_steps:  # a program begins by setting up memory
        calls &= job.trace.array("ts") > job.first_work_ns
    if calls.any():
        names = ", ".join(job.names(calls))
        count = int(np.count_nonzero(calls))
        text = f"The runtime allocates or frees memory of the GPU in {count:,} call{'s' * (count != 1)} of {names}."
        times = job.times().return_without_waiting(calls).take_no_time(calls)
        waited = calls & job.mask(host_waits.calls_that_waited(job.trace))
        yield _of_nodes(job, "allocator", calls, names, text, times, calls & ~waited)


def data_loader(job: ExaminedJob) -> Iterator[Finding]:
    """Find steps that wait for their data."""
    loading = named_nodes(job, _LOADS) & job.inside
    if loading.any():
        name = job.names(loading)[0]
        under = _with_callees(job, loading)
        text = "Steps wait for the data loader."
        times = job.times().take_no_time(under)
        yield _of_nodes(job, "data-loader", loading, name, text, times, under)


def compilation(job: ExaminedJob) -> Iterator[Finding]:
    """Find steps in which torch.compile compiles, the first time or for new shapes."""
    compiling = named_nodes(job, _COMPILES) & job.inside
    if compiling.any():
        under, caller = _with_callees(job, compiling), job.trace.array("parent")
        outermost = compiling & ~((caller >= 0) & under[caller])
        name, count = job.names(outermost)[0], int(np.count_nonzero(outermost))
        often = "once" if count == 1 else f"{count:,} times"
        text = f"torch.compile compiles code {often}."
        times = job.times().take_no_time(under)
        yield _of_nodes(job, "compilation", outermost, name, text, times, under)


def graph_capture(job: ExaminedJob) -> Iterator[Finding]:
    """Find steps in which a thread captures work as a graph, instead of launching one that it has."""
    begins = named_nodes(job, _BEGINS_CAPTURE) & job.inside
    captured = captured_nodes(job)
    if (begins & captured).any():
        count = int(np.count_nonzero(begins & captured))
        often = "once" if count == 1 else f"{count:,} times"
        name = job.names(begins)[0]
        times = job.times().take_no_time(captured)
        text = f"Work is captured as a graph {often}."
        yield _of_nodes(job, "graph-capture", captured, name, text, times, captured)


def captured_nodes(job: ExaminedJob) -> Array:
    """Mark what threads do from the begin of a capture to its end, and calls that make graphs of what was captured."""
    trace = job.trace
    begins, ends = named_nodes(job, _BEGINS_CAPTURE), named_nodes(job, _ENDS_CAPTURE)
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


def allocating_calls(job: ExaminedJob) -> Array:
    """Mark calls that allocate or free memory of GPUs, or pinned memory."""
    calls = named_nodes(job, _ALLOCATES) & is_any(job.trace.array("kind"), CALLS)
    return calls & ~loading_calls(job)


def host_work(job: ExaminedJob) -> Iterator[Finding]:
    """Find other code of hosts for which GPUs wait long at a time, unlike for launches."""
    trace = job.trace
    of_others = allocating_calls(job) | loading_calls(job)
    of_others |= _with_callees(job, named_nodes(job, _LOADS) | named_nodes(job, _COMPILES))
    known = of_others | _loading(job) | captured_nodes(job)
    known |= _launching(job) | is_any(trace.array("kind"), CALLS)
    others = job.on_host & job.inside & ~known
    stems, _ = name_stems.split_numbers(trace.names())
    launches = job.mask(np.unique(trace.launch[trace.launch >= 0]))
    blamed = _blamed_stems(job)
    by_time = sorted(blamed, key=lambda stem: -sum(late_ns for late_ns, _ in blamed[stem].values()))
    works: dict[str, tuple[Array, Array]] = {}
    for stem in by_time[:_MAX_NAMES]:
        late_ns, gaps = _late(blamed[stem])
        same = np.array([text == stem for text in stems], bool)[trace.array("name")] & others
        if same.any() and late_ns >= _LONG_NS * gaps:
            alone = same & ~_encloses(job, launches)  # nothing below them reaches the GPU
            works[stem] = same, same | (_with_callees(job, alone) & ~of_others)
    for stem, (same, without) in works.items():
        if any((same <= caller).all() for name, (_, caller) in works.items() if name != stem):
            continue  # what its callers cost has it already
        late_ns, gaps = _late(blamed[stem])
        text = f"GPUs wait for the host in {stem}, {late_ns / gaps / 1e6:,.2f} ms at a time."
        if _STEP.match(stem):
            text = (
                f"GPUs wait for code of the host that no range names, {late_ns / gaps / 1e6:,.2f} ms "
                "at a time."
            )
        times = job.times().take_no_time(without)
        of_named = same & np.isin(trace.array("rank"), [*_latest_ranks(blamed[stem])])
        code, certainty = "host-work", MODELLED
        if _ONLY_ALLOCATES.match(stem):
            code, certainty = "allocator", LIKELY
            text = f"{text[:-1]}: it does nothing but allocate memory, by what was not recorded."
        yield _of_nodes(job, code, of_named, stem, text, times, without, certainty)


def unrecorded_host_work(job: ExaminedJob) -> Iterator[Finding]:
    """Find time between operations of hosts in which no range says what they do, while their GPUs are idle."""
    trace, graph = job.trace, job.timing.graph
    ts, dur, lane = (trace.array(column) for column in ("ts", "dur", "lane"))
    calls = trace.launch[job.on_gpu & (trace.launch >= 0)]
    last_call = np.full(trace.lanes.num_rows, np.iinfo(np.int64).min)
    np.maximum.at(last_call, lane[calls], ts[calls] + dur[calls])
    # time of a thread that no node owns, between two endpoints of nodes: barriers are numbered behind these
    edge = np.flatnonzero(
        is_any(graph.kind, paths.OWN_TIME_EDGES)
        & (job.changer.owner < 0)
        & (job.timing.lag_ns >= _LONG_NS)
        & (np.maximum(graph.src, graph.after) < 2 * len(ts))
    )
    begin, end = job.timing.at_ns[graph.src[edge]], job.timing.at_ns[graph.after[edge]]
    node = graph.after[edge] // 2
    is_late = job.inside[node] & (end <= last_call[lane[node]])
    is_late &= job.has_steps | (begin > job.first_work_ns)  # a program begins by setting up
    for rank, rows in trace.rank_rows.items():
        work = np.flatnonzero(job.on_gpu[rows]) + rows.start
        busy = intervals.union(ts[work], ts[work] + dur[work])
        of_rank = trace.array("rank")[node] == rank
        worked = intervals.covered_time(begin[of_rank], end[of_rank], busy)
        is_late[of_rank] &= 2 * worked < (end - begin)[of_rank]  # else a wait may be missing
    if is_late.any():
        longest = np.flatnonzero(is_late)[np.argmax((end - begin)[is_late])]
        longest_ms = (end - begin)[longest] / 1e6
        ranks = job.place(job.mask(node[is_late])).ranks
        yield Finding.from_saving(
            "host-work",
            job.saved(job.times().follow_without_gaps(edge[is_late])),
            FindingPlace(ranks, int(begin[longest]), int(end[longest])),
            f"before {trace.names()[trace.array('name')[node[longest]]]}",
            MODELLED,
            f"GPUs wait for code of the host that no range names, up to {longest_ms:,.2f} ms at a time.",
            job.command("idle --by blame"),
        )


def _late(blamed: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Time that the GPUs of the latest ranks waited, and how often."""
    named = _latest_ranks(blamed).values()
    return sum(late_ns for late_ns, _ in named), sum(gaps for _, gaps in named)


def _latest_ranks(blamed: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Those of the ranks whose GPUs waited most, without ranks on which it hardly matters."""
    longest = max(late_ns for late_ns, _ in blamed.values())
    return {rank: one for rank, one in blamed.items() if one[0] >= _NAMED_SHARE * longest}


def _blamed_stems(job: ExaminedJob) -> dict[str, dict[int, tuple[int, int]]]:
    """Time that GPUs waited for operations of hosts, and how often, by names without numbers and by rank."""
    idle = job.result("idle", by="rank,blame")
    blamed: dict[str, dict[int, tuple[int, int]]] = {}

    def add(rank: int, name: str, late_ns: int, gaps: int) -> None:
        of_name = blamed.setdefault(name_stems.split_numbers([name])[0][0], {})
        before = of_name.get(rank, (0, 0))
        of_name[rank] = before[0] + late_ns, before[1] + gaps

    for row in idle.rows.to_pylist() if idle else []:
        if row["blame"] is not None:
            add(row["rank"], row["blame"], row["host_late_ns"], row["gaps"])
    names, name, rank = job.trace.names(), job.trace.array("name"), job.trace.array("rank")
    for node, gap_ns in _before_first_work(job):
        add(int(rank[node]), names[name[node]], gap_ns, 1)
    return blamed


def _before_first_work(job: ExaminedJob) -> Iterator[tuple[int, int]]:
    """The host operation that most of the time before the first GPU work of a step passes in, and that time.

    ::

        host  [=========== step ============]
              [== preprocess ==] [ forward ]      the longest that launches nothing and ends before the work
        GPU                       [ work ]
    """
    trace = job.trace
    ts, end = trace.array("ts"), trace.array("ts") + trace.array("dur")
    launches = job.mask(np.unique(trace.launch[trace.launch >= 0]))
    alone = job.on_host & job.inside & ~_encloses(job, launches) & (end - ts >= _LONG_NS // 2)
    by_rank = {}
    for rank in job.ranks if launches.any() else ():
        rows = np.arange(len(ts))[trace.rank_rows[rank]]
        work = rows[job.on_gpu[rows]]
        work = work[np.argsort(ts[work], kind="stable")]
        by_rank[rank] = rows[alone[rows]], ts[work], np.maximum.accumulate(end[work])
    for window in windows.marked_windows(trace) if windows.has_steps(trace) else ():
        if window.rank not in by_rank or window.iteration not in job.iterations:
            continue
        host, starts, ends = by_rank[window.rank]
        first = int(np.searchsorted(starts, window.start_ns))
        if first == len(starts) or starts[first] >= window.end_ns:
            continue
        begin = max(window.start_ns, int(ends[first - 1]) if first else window.start_ns)
        gap_ns = int(starts[first]) - begin
        within = np.minimum(end[host], starts[first]) - np.maximum(ts[host], begin)
        candidates = host[(2 * within >= gap_ns) & (end[host] <= starts[first])]
        if gap_ns >= _LONG_NS and candidates.size:
            yield int(candidates[np.argmax((end - ts)[candidates])]), gap_ns


def _of_nodes(  # noqa: PLR0913, PLR0917 # parts of a finding
    job: ExaminedJob,
    code: str,
    nodes: Array,
    where: str,
    text: str,
    times: LagChanges,
    without: Array,
    certainty: str = MODELLED,
) -> Finding:
    """Make a finding of nodes of hosts; `without` are those that take no time."""
    saved, place = job.saved(times), job.place(nodes)
    return Finding.from_saving(
        code,
        saved,
        place,
        where,
        certainty,
        text,
        job.without(without) or job.command("idle --by blame"),
    )
