"""One job out of many sources: which rank and device each belongs to, and what joins what.

A fragment is the trace of one source. The fragments of the timing run become the job's nodes;
those of counter passes give their counters to them, programs without times the flow of their
data; telemetry gives its series to their ranks.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count, pairwise
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.build import concat
from chopper_interop.clocks import ranks as rank_clocks
from chopper_interop.clocks import relations
from chopper_interop.columns import arrow
from chopper_interop.counters import align
from chopper_interop.edges import collectives
from chopper_interop.errors import AmbiguousRunError, ReadError, UsageError
from chopper_interop.gpus import devices
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.joining import (
    captures,
    copies,
    host_et,
    monitors,
    processes,
    rematch,
    same_run,
    source_clocks,
)
from chopper_interop.joining.telemetry import Surroundings, with_telemetry
from chopper_interop.schemas.meta import (
    ORDER,
    REALTIME,
    ClockFit,
    DeviceMatch,
    Meta,
    Rank,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from chopper_interop.clocks.rules import ClockRule
    from chopper_interop.gpus.devices import Rule
    from chopper_interop.joining.fragment import Fragment
    from chopper_interop.schemas.meta import Device
    from chopper_interop.trace import Trace

RANKS_BY_ORDER = Fault(
    "ranks-by-order",
    Severity.INFO,
    "Processes that do not say their rank were numbered by device, then by process id.",
)
DEVICES_BY_ORDER = Fault(
    "devices-by-order",
    Severity.INFO,
    "Sources number the GPUs differently; they were matched in ascending order. --map-device can "
    "tell otherwise.",
)
RANKS_APART = Fault(
    "ranks-apart",
    Severity.INFO,
    "Ranks of the job do not overlap in time: their clocks differ, or they were not profiled "
    "together. They stand where they say they were.",
)


_DESCRIBED = "it describes a machine: give it together with the profiles of a job"


def assemble(
    fragments: list[Fragment],
    name: str,
    rules: Sequence[Rule] = (),
    clock_rules: Sequence[ClockRule] = (),
) -> Trace:
    """One trace of all fragments.

    Parameters
    ----------
    fragments
        Traces of the sources, in the order in which they were found.
    name
        What to call the job.
    rules
        What the user says of devices.
    clock_rules
        What the user says of clocks.

    Raises
    ------
    AmbiguousRunError
        They are of more than one run.
    ReadError
        There is nothing in them.
    """
    issues = IssueLog("job")
    about, fragments = source_clocks.known(fragments, clock_rules)
    fragments = rematch.parts_unmatched(fragments, issues)
    timed, telemetry = _timed_and_sampled(fragments)
    timed, programs = host_et.apart(timed, issues)
    run, fits = _run(timed, fragments, about, issues)
    ranks = [rank for f in run.timing for rank in f.trace.ranks]
    source_clocks.refuse_unused(clock_rules, fragments, ranks)
    _refuse_unused(rules, run, telemetry)
    about_ranks = {r.rank: r for f in run.timing for r in f.trace.meta.ranks}
    run = replace(run, timing=[monitors.told(f, rules, about_ranks) for f in run.timing])
    meta = _meta(name, fragments, run, fits)
    meta = replace(meta, offsets=source_clocks.offsets(about))
    if run.timing:
        trace = _joined(run, meta, issues)
    else:
        captures.refuse_other_machines(fragments)
        trace, telemetry = _of_telemetry(telemetry, meta, about)
    known = [d for f in fragments for d in f.trace.meta.devices]
    for fragment in run.passes:
        log = IssueLog(str(fragment.files.paths[0]))
        trace = _with_counters(trace, fragment, known, rules, log)
        issues.extend(log)
    trace = host_et.join(trace, [f.trace for f in programs], issues)
    folder = {r: f.files.paths[0].parent for f in reversed(run.timing) for r in f.trace.ranks}
    around = Surroundings(trace, folder, known, rules, issues, about)
    trace = with_telemetry(telemetry, around)
    trace = trace.with_meta(devices=devices.named(trace, known))
    return _finished(trace, fragments, run.passes + programs, run.kept, issues)


def _timed_and_sampled(fragments: list[Fragment]) -> tuple[list[Fragment], list[Fragment]]:
    """What has nodes, and what has samples alone."""
    timed = [f for f in fragments if f.trace.nodes.num_rows]
    sampled = [f for f in fragments if not f.trace.nodes.num_rows and f.trace.samples.num_rows]
    if timed or sampled:
        return timed, sampled
    described = any(f.trace.meta.devices for f in fragments)
    raise ReadError(
        "there are no events and no samples in what was given",
        path=fragments[0].files.paths[0] if len(fragments) == 1 else None,
        hint=_losses(fragments) or (_DESCRIBED if described else None),
    )


def _run(
    timed: list[Fragment],
    fragments: list[Fragment],
    about: source_clocks.Clocks,
    issues: IssueLog,
) -> tuple[same_run.Joined, tuple[ClockFit, ...]]:
    """The timing run on one clock with its ranks numbered, the passes beside it, and the fits."""
    timing, passes = _timing_and_passes(timed)
    timing = copies.left_out(timing, issues)
    passes = copies.passes_once(timing, passes, issues)
    real = any(f.trace.meta.clock == REALTIME for f in fragments)
    timing, fits = source_clocks.on_one_clock(timing, about, real=real)
    timing = _with_ranks(timing, issues)
    timing, of_ranks = source_clocks.ranks_as_told(timing, about)
    run = same_run.joined(timing, passes, about, issues)
    processes.note_clocks(run.timing, issues, about.told)
    return run, (*fits, *of_ranks, *run.fits)


def _joined(run: same_run.Joined, meta: Meta, issues: IssueLog) -> Trace:
    """All ranks in one trace, on one clock, their collectives matched."""
    trace = collectives.named(concat([f.trace for f in run.timing], meta))
    for told, mapping in run.hardware:
        trace = devices.with_hardware(trace, told, mapping)
    trace = rank_clocks.aligned(collectives.matched(trace, issues), issues)
    trace = collectives.with_edges(trace, issues)
    _note_ranks_apart(run.timing, trace, issues)
    return trace


def _of_telemetry(
    telemetry: list[Fragment], meta: Meta, about: source_clocks.Clocks
) -> tuple[Trace, list[Fragment]]:
    """A job of telemetry alone: what is on real time first, to which the rest is brought."""
    first = min(telemetry, key=lambda f: f.trace.meta.clock != REALTIME)
    rest = [f for f in telemetry if f is not first]
    trace, fits = source_clocks.first_as_told(first, about)
    known = relations.distinct([*trace.meta.clocks, *fits])
    return concat([trace], replace(meta, clock=trace.meta.clock, clocks=known)), rest


def _with_counters(
    trace: Trace,
    fragment: Fragment,
    known: Sequence[Device],
    rules: Sequence[Rule],
    issues: IssueLog,
) -> Trace:
    """The trace with the counters of a pass, and what was found of its devices."""
    matched = _pass_devices(trace, fragment, known, rules)
    assumed = [number for number, (_, by) in matched.items() if by == devices.BY_ORDER]
    issues.add(DEVICES_BY_ORDER, len(assumed), f"{assumed} as {[matched[n][0] for n in assumed]}")
    path = str(fragment.files.paths[0])
    found = [DeviceMatch(path, n, device, -1, by) for n, (device, by) in matched.items()]
    mapping = {number: device for number, (device, _) in matched.items()}
    trace = align.join_counters(trace, fragment.trace, mapping, issues)
    trace = devices.with_hardware(trace, fragment.trace.meta.devices, mapping)
    return trace.with_meta(device_matches=(*trace.meta.device_matches, *found))


def _refuse_unused(rules: Sequence[Rule], run: same_run.Joined, sampled: list[Fragment]) -> None:
    """Raise `UsageError` for what the user says of a device that is not joined to another."""
    joined = run.passes + sampled if run.timing else []
    of_each = [(f, devices.numbers(f.trace)) for f in joined]
    of_each += [(f, monitors.numbers(f.trace)) for f in run.timing]
    numbers = [(f.files.converter.name, str(f.files.paths[0]), told) for f, told in of_each]
    for rule in rules:
        if not any(devices.told([rule], *source) for source in numbers):
            named = "" if rule.source == devices.ANY else f" {rule.source!r}"
            raise UsageError(
                f"--map-device {rule.text}: no telemetry and no counter pass{named} has such a GPU",
                hint="name a format or a pattern of files, and numbers that are in them",
            )


def _losses(fragments: list[Fragment]) -> str | None:
    """What became of the input, for a job in which nothing is left of it."""
    issues = (issue for f in fragments for issue in f.trace.meta.issues)
    lost = [i.meaning.rstrip(".") for i in issues if i.severity is Severity.LOSS]
    return "; ".join(list(dict.fromkeys(lost))[:3]) or None


def _finished(
    trace: Trace,
    fragments: list[Fragment],
    passes: list[Fragment],
    kept: dict[str, int],
    issues: IssueLog,
) -> Trace:
    """The trace with sources and issues of all fragments; no node came from a pass or program.

    Of what was joined to another source not all may have been `kept`.
    """
    joined = {id(fragment) for fragment in passes}
    collected = IssueLog()
    for fragment in fragments:
        collected.extend(fragment.trace.meta.issues)
    collected.extend(issues)
    sources = tuple(
        replace(s, nodes=0 if id(f) in joined or k else kept.get(str(f.files.paths[0]), s.nodes))
        if id(f) in joined or str(f.files.paths[0]) in kept
        else s
        for f in fragments
        for k, s in enumerate(f.trace.meta.sources)
    )
    return trace.with_meta(issues=tuple(collected), sources=sources)


def _timing_and_passes(timed: list[Fragment]) -> tuple[list[Fragment], list[Fragment]]:
    """The fragments whose times hold, and the counter passes beside them.

    Without a run of its own for timing, the first counter pass is it.
    """
    if timed and all(f.counts and f.trace.meta.clock == ORDER for f in timed):
        raise ReadError(
            "these are counters of dispatches without times",
            path=timed[0].files.paths[0],
            hint="give the run that was timed with them",
        )
    realtime = [f for f in timed if f.trace.meta.clock == REALTIME]
    if realtime:
        return realtime, [f for f in timed if f not in realtime]
    plain = [f for f in timed if not f.counts]
    if plain:
        return plain, [f for f in timed if f not in plain]
    with_times = [f for f in timed if f.trace.meta.clock != ORDER]
    first = min((f.trace.meta.run for f in with_times), default="")
    timing = [f for f in with_times if f.trace.meta.run == first]
    return timing, [f for f in timed if f not in timing]


def _with_ranks(timing: list[Fragment], issues: IssueLog) -> list[Fragment]:
    """Number the ranks of fragments that do not say theirs."""
    silent = [f for f in timing if f.is_silent]
    if len(timing) == 1 or not silent:
        return timing
    for earlier, later in pairwise(silent):
        (start, stop), (start_2, stop_2) = earlier.window_ns, later.window_ns
        if max(start, start_2) >= min(stop, stop_2):
            raise AmbiguousRunError(
                f"{earlier.files.label} and {later.files.label} do not overlap in time and neither "
                "says its rank",
                hint="these are two runs: give the files of one of them",
            )
    taken = {r for f in timing if f not in silent for r in f.trace.ranks}
    free = (n for n in count() if n not in taken)
    order = sorted(silent, key=lambda f: (_device_of(f), _pid_of(f)))
    numbers = {id(f): [next(free) for _ in f.trace.meta.ranks] for f in order}
    issues.add(RANKS_BY_ORDER, len(silent))
    return [
        replace(f, trace=_renumbered(f.trace, numbers[id(f)])) if id(f) in numbers else f
        for f in timing
    ]


def _note_ranks_apart(timing: list[Fragment], trace: Trace, issues: IssueLog) -> None:
    ts, end = trace.array("ts"), trace.array("ts") + trace.array("dur")
    rows = trace.rank_rows
    windows = sorted(
        (
            min(int(ts[rows[r]].min()) for r in f.trace.ranks),
            max(int(end[rows[r]].max()) for r in f.trace.ranks),
            f.files.label,
        )
        for f in timing
    )
    reached = windows[0][1] if windows else 0
    for start, stop, label in windows[1:]:
        if start > reached:
            issues.add(RANKS_APART, 1, f"{(start - reached) / 1e9:,.3f} s before {label}")
        reached = max(reached, stop)


def _device_of(fragment: Fragment) -> int:
    return min((r.device for r in fragment.trace.meta.ranks), default=-1)


def _pid_of(fragment: Fragment) -> int:
    return min((r.pid for r in fragment.trace.meta.ranks), default=-1)


def _renumbered(trace: Trace, numbers: list[int]) -> Trace:
    """The trace with its ranks, in ascending order, under other numbers."""
    old = np.array(sorted(r.rank for r in trace.meta.ranks), np.int32)
    new = np.array(numbers, np.int32)

    def renumbered(table: pa.Table) -> pa.Table:
        rank = arrow.numbers(table["rank"])
        values = np.where(rank < 0, rank, new[np.searchsorted(old, np.maximum(rank, 0))])
        return arrow.replaced(table, "rank", values)

    renamed = dict(zip(old.tolist(), numbers, strict=True))
    ranks = tuple(replace(r, rank=renamed[r.rank]) for r in trace.meta.ranks)
    return replace(
        trace,
        nodes=renumbered(trace.nodes),
        lanes=renumbered(trace.lanes),
        series=renumbered(trace.series),
        meta=replace(trace.meta, ranks=ranks),
    )


def _meta(
    name: str, fragments: list[Fragment], run: same_run.Joined, fits: Sequence[ClockFit]
) -> Meta:
    ranks: dict[int, Rank] = {}
    timing = run.timing
    for f in timing:
        ranks |= {r.rank: r for r in f.trace.meta.ranks}
    found = {d: None for f in timing for d in f.trace.meta.devices}
    facts: dict[str, str] = {}
    for f in fragments:
        facts |= f.trace.meta.facts
    names = {f.trace.meta.clock for f in timing}
    before = [fit for f in timing for fit in f.trace.meta.clocks]
    return Meta(
        job=name,
        clock=REALTIME if REALTIME in names else min(names, default=REALTIME),
        clocks=relations.distinct([*before, *fits]),
        ranks=tuple(ranks[r] for r in sorted(ranks)),
        devices=tuple(found),
        device_matches=(
            *(m for f in timing for m in f.trace.meta.device_matches),
            *run.matches,
        ),
        facts=facts,
        issues=tuple(issue for f in timing for issue in f.trace.meta.issues),
    )


def _pass_devices(
    trace: Trace, fragment: Fragment, known: Sequence[Device], rules: Sequence[Rule]
) -> dict[int, tuple[int, str]]:
    """Device of a counter pass → device of the timing run, and what tells it."""
    theirs = devices.used(fragment.trace)
    if theirs == [-1] == devices.used(trace):  # neither tells its device
        return {-1: (-1, devices.BY_COUNTING)}
    name, path = fragment.files.converter.name, str(fragment.files.paths[0])
    said = devices.told((r for r in rules if not r.is_rank), name, path, theirs)
    told = {n: (rule.target_of(n)[0], devices.BY_USER) for n, rule in said.items()}
    numbered = [number for number in theirs if number >= 0]
    ours = devices.of_trace(trace, known)
    guessed = devices.match(numbered, fragment.trace.meta.devices, ours, known)
    return devices.around_told(numbered, told, guessed) | told
