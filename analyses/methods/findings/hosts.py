"""Code of hosts that keeps GPUs waiting: loading and compiling code, the allocator, the data loader, and other code."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from chopper_interop.analyses.methods.activity import concurrent_work, host_waits, windows
from chopper_interop.analyses.methods.findings.finding import LIKELY, MODELLED, Finding
from chopper_interop.analyses.methods.findings.host_calls import (
    BEGINS_CAPTURE,
    COMPUTES_NS,
    LONG_NS,
    allocating_calls,
    callers,
    captured_nodes,
    encloses,
    launching_nodes,
    loading_and_callers,
    loading_calls,
    named_nodes,
    serialised_calls,
)
from chopper_interop.analyses.methods.findings.job import ExaminedJob, FindingPlace, LagChanges
from chopper_interop.analyses.methods.timing import paths
from chopper_interop.arrays import Array, name_stems
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.kinds import CALLS, Kind

_ONLY_ALLOCATES = re.compile(r"^aten::(new_)?empty\w*$")
_LOADS = re.compile(r"(?i)data_?loader")
_COMPILES = re.compile(r"\(dynamo_timed\)$")
_STEP = re.compile(r"^ProfilerStep")
_NAMED_SHARE = 0.25
"""Share of the time that the GPU of the latest rank waited from which on a rank is named. Chosen: less hardly matters next to it."""
_MAX_NAMES = 4
"""Host operations that are re-timed each. Chosen: those that GPUs waited for most."""


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
        operators = callers(job, calls) & (job.trace.array("kind") == Kind.CPU_OP)
        own_ns = job.own_times_ns(operators)
        sets_up = own_ns >= COMPUTES_NS
        if sets_up.any():
            setting_up = " and ".join(job.names(sets_up))
            text += (
                f" {setting_up} around them took {own_ns[sets_up].sum() / 1e6:,.1f} ms to set up."
            )
        times = job.times().take_no_time(calls | sets_up).without_delays(loaded)
        without = calls | sets_up | loaded
        yield _of_nodes(job, "code-loading", calls, names, text, times, without, LIKELY)


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
        under = job.changer.within(loading)
        text = "Steps wait for the data loader."
        times = job.times().take_no_time(under)
        yield _of_nodes(job, "data-loader", loading, name, text, times, under)


def compilation(job: ExaminedJob) -> Iterator[Finding]:
    """Find steps in which torch.compile compiles, the first time or for new shapes."""
    compiling = named_nodes(job, _COMPILES) & job.inside
    if compiling.any():
        under, caller = job.changer.within(compiling), job.trace.array("parent")
        outermost = compiling & ~((caller >= 0) & under[caller])
        name, count = job.names(outermost)[0], int(np.count_nonzero(outermost))
        often = "once" if count == 1 else f"{count:,} times"
        text = f"torch.compile compiles code {often}."
        times = job.times().take_no_time(under)
        yield _of_nodes(job, "compilation", outermost, name, text, times, under)


def graph_capture(job: ExaminedJob) -> Iterator[Finding]:
    """Find steps in which a thread captures work as a graph, instead of launching one that it has."""
    begins = named_nodes(job, BEGINS_CAPTURE) & job.inside
    captured = captured_nodes(job)
    if (begins & captured).any():
        count = int(np.count_nonzero(begins & captured))
        often = "once" if count == 1 else f"{count:,} times"
        name = job.names(begins)[0]
        times = job.times().take_no_time(captured)
        text = f"Work is captured as a graph {often}."
        yield _of_nodes(job, "graph-capture", captured, name, text, times, captured)


def host_work(job: ExaminedJob) -> Iterator[Finding]:
    """Find other code of hosts for which GPUs wait long at a time, unlike for launches."""
    trace = job.trace
    of_others = allocating_calls(job) | loading_calls(job)
    of_others |= job.changer.within(named_nodes(job, _LOADS) | named_nodes(job, _COMPILES))
    known = of_others | loading_and_callers(job) | captured_nodes(job)
    known |= launching_nodes(job) | is_any(trace.array("kind"), CALLS)
    others = job.on_host & job.inside & ~known
    stems, _ = name_stems.split_numbers(trace.names())
    launches = job.mask(np.unique(trace.launch[trace.launch >= 0]))
    blamed = _blamed_stems(job)
    by_time = sorted(blamed, key=lambda stem: -sum(late_ns for late_ns, _ in blamed[stem].values()))
    works: dict[str, tuple[Array, Array]] = {}
    for stem in by_time[:_MAX_NAMES]:
        late_ns, gaps = _late(blamed[stem])
        same = np.array([text == stem for text in stems], bool)[trace.array("name")] & others
        if same.any() and late_ns >= LONG_NS * gaps:
            alone = same & ~encloses(job, launches)  # nothing below them reaches the GPU
            works[stem] = same, same | (job.changer.within(alone) & ~of_others)
    for stem, (same, without) in works.items():
        if any((same <= caller).all() for name, (_, caller) in works.items() if name != stem):
            continue  # what its callers cost has it already
        late_ns, gaps = _late(blamed[stem])
        in_gaps = f"{'in gaps that average' if gaps > 1 else 'in a gap of'} {late_ns / gaps / 1e6:,.2f} ms"
        text = f"GPUs wait for the host in {stem}, {in_gaps}."
        if _STEP.match(stem):
            text = f"GPUs wait for code of the host that no range names, {in_gaps}."
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
        & (job.timing.lag_ns >= LONG_NS)
        & (np.maximum(graph.src, graph.after) < 2 * len(ts))
    )
    begin, end = job.timing.at_ns[graph.src[edge]], job.timing.at_ns[graph.after[edge]]
    node = graph.after[edge] // 2
    is_late = job.inside[node] & (end <= last_call[lane[node]])
    is_late &= job.has_steps | (begin > job.first_work_ns)  # a program begins by setting up
    work = np.flatnonzero(job.on_gpu)
    worked = concurrent_work.time_with_nodes(trace, work, trace.array("rank")[node], begin, end)
    is_late &= 2 * worked < end - begin  # else a wait may be missing
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
    alone = job.on_host & job.inside & ~encloses(job, launches) & (end - ts >= LONG_NS // 2)
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
        if gap_ns >= LONG_NS and candidates.size:
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
