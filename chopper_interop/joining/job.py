"""Assembly of one job from many sources: ranks, devices, clocks, and the join of each kind.

A fragment is the trace of one source. The fragments of the timing run become the job's nodes.
Counter passes add their counters to them, programs without times the flow of their data, and
telemetry its series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.counters import join_passes
from chopper_interop.annotate.counters.dispatches import Dispatches, read_dispatches
from chopper_interop.arrays import arrow
from chopper_interop.build import concat
from chopper_interop.errors import ReadError, UsageError
from chopper_interop.gpus import devices
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.joining import (
    copies,
    groups,
    host_et,
    monitors,
    one_source,
    processes,
    rematch,
    same_run,
    source_clocks,
    telemetry_files,
)
from chopper_interop.joining.telemetry import TelemetryContext, with_telemetry
from chopper_interop.schemas.meta import (
    ORDER,
    REALTIME,
    WORLD_SIZE,
    ClockFit,
    Device,
    DeviceMatch,
    Meta,
)
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.clocks.rules import ClockRule
    from chopper_interop.gpus.devices import DeviceRule
    from chopper_interop.joining.fragment import Fragment

RANKS_BY_ORDER = Fault.info(
    "ranks-by-order",
    "Processes that do not state their rank were numbered by device, then by process id.",
)
DEVICES_BY_ORDER = Fault.info(
    "devices-by-order",
    "Sources number the GPUs differently; they were matched in ascending order. State another order "
    "with --map-device.",
)
RANKS_APART = Fault.error(
    "ranks-apart",
    "Ranks of the job do not overlap in time: their clocks differ, or they were not profiled "
    "together. They keep the times that they recorded.",
)
SIZES_DIFFER = Fault.error(
    "world-sizes-differ",
    "Ranks state different numbers of ranks of their job: they are of different jobs, or it was started again.",
)

_ROWS_OF_SAMPLES = "row-as-samples"
"""Code of the issue by which readers of telemetry count their rows."""
_NOT_AVAILABLE = "its rows hold no value: all are N/A, as where the driver shows none to this user"
_DESCRIBED = "it describes a machine: give it together with the profiles of a job"


def assemble(
    fragments: list[Fragment],
    name: str,
    rules: Sequence[DeviceRule] = (),
    clock_rules: Sequence[ClockRule] = (),
    chosen: int | str | None = None,
) -> Trace:
    """Assemble one trace of all fragments.

    Parameters
    ----------
    fragments
        Traces of the sources, in the order of their files.
    name
        Name of the job.
    rules
        Devices that the user states.
    clock_rules
        Offsets of clocks that the user states.
    chosen
        Which run it is of, if there are several; see `groups.choose`.

    Raises
    ------
    AmbiguousRunError
        The fragments are of more than one run, and none was chosen.
    ReadError
        They have no events and no samples.
    UsageError
        A rule applies to nothing.
    """
    run = groups.parsed(chosen)
    clocks, fragments = source_clocks.collect_clocks(fragments, clock_rules)
    assembled = partial(_assemble_chosen, fragments, clocks, name, rules, clock_rules)
    if not isinstance(run, int) or len(groups.split(_timing_of(fragments))) > 1:
        return assembled(run)
    # nothing contradicts that it is one run, which only shows when clocks are joined
    trace = assembled(1)
    if RANKS_APART.code in {issue.code for issue in trace.meta.issues}:
        return assembled(run, apart=True)
    if run != 1:
        groups.refuse_number(run, 1)
    return trace


def _assemble_chosen(  # noqa: PLR0913 # as of `assemble`
    fragments: list[Fragment],
    clocks: source_clocks.SourceClocks,
    name: str,
    rules: Sequence[DeviceRule],
    clock_rules: Sequence[ClockRule],
    chosen: int | str | None,
    *,
    apart: bool = False,
) -> Trace:
    """Assemble the trace of a run, of profiles that nothing ties each alone if they are `apart`."""
    issues = IssueLog("job")
    fragments = groups.choose(fragments, _timing_of(fragments), chosen, issues, apart=apart)
    fragments = rematch.drop_partial_matches(fragments, issues)
    timed, telemetry = _split_telemetry(fragments)
    timed, programs = host_et.split_programs(timed, issues)
    run, fits = _assemble_run(timed, fragments, clocks, issues)
    for fragment in run.others:
        groups.leave_out(fragment, run.timing, same_run.NO_COUNTERS, chosen, issues)
    fragments = [f for f in fragments if f not in run.others]
    ranks = [rank for f in run.timing for rank in f.trace.ranks]
    source_clocks.refuse_unused(clock_rules, fragments, ranks)
    _refuse_unused(rules, run, telemetry)
    described = {r.rank: r for f in run.timing for r in f.trace.meta.ranks}
    timing = [monitors.assign_by_rules(f, rules, described) for f in run.timing]
    run = replace(run, timing=timing)
    meta = one_source.meta_of(name, fragments, run.timing, fits, run.matches)
    meta = replace(meta, offsets=source_clocks.offsets_of_job(clocks))
    if run.timing:
        trace = _join_ranks(run, meta, issues)
    else:
        telemetry_files.refuse_other_machines(fragments)
        trace, telemetry = _job_of_telemetry(telemetry, meta, clocks)
    all_devices = [d for f in fragments for d in f.trace.meta.devices]
    dispatches = read_dispatches(trace) if run.passes else None
    carried = []
    for fragment in run.passes:
        log = IssueLog(str(fragment.path))
        joined, counters, doubt = _with_pass(trace, fragment, all_devices, rules, log, dispatches)
        if doubt and chosen != groups.ALL:
            groups.leave_out(fragment, run.timing, doubt, chosen, issues)
            fragments = [f for f in fragments if f is not fragment]
            all_devices = [d for f in fragments for d in f.trace.meta.devices]
            continue
        trace = joined
        carried.append(counters)
    trace = join_passes.carry_counters(trace, carried) if carried else trace
    for counters in carried:
        issues.extend(counters.issues)
    sizes = {f.trace.meta.facts.get(WORLD_SIZE, "") for f in run.timing} - {""}
    issues.add(SIZES_DIFFER, len(sizes) > 1, " and ".join(sorted(sizes, key=lambda n: (len(n), n))))
    trace = trace.with_meta(facts=one_source.facts_of(fragments))
    trace = host_et.join_programs(trace, [f.trace for f in programs], issues)
    folder = {r: f.path.parent for f in reversed(run.timing) for r in f.trace.ranks}
    context = TelemetryContext(trace, folder, all_devices, rules, issues, clocks)
    trace = with_telemetry(telemetry, context)
    trace = trace.with_meta(devices=devices.identified_devices(trace, all_devices))
    without_nodes = {id(f) for f in run.passes + programs}
    kept = {id(f): run.nodes_kept.get(str(f.path)) for f in fragments} | dict.fromkeys(
        without_nodes, 0
    )
    counted = [_with_nodes(f, kept[id(f)]) for f in fragments]
    return one_source.with_sources_and_issues(trace, counted, issues)


def _with_nodes(fragment: Fragment, kept: int | None) -> Fragment:
    """The fragment with how many of its nodes the trace has, counted once for its first source; None for all of them."""
    if kept is None:
        return fragment
    sources = enumerate(fragment.trace.meta.sources)
    counted = (replace(source, nodes=0 if k else kept) for k, source in sources)
    return replace(fragment, trace=fragment.trace.with_meta(sources=tuple(counted)))


def _timing_of(fragments: list[Fragment]) -> list[Fragment]:
    """Fragments whose times become those of the trace; execution traces without times only if no other has any."""
    nodes = [f for f in fragments if f.trace.nodes.num_rows]
    timed = [f for f in nodes if f.has_counters or f.trace.meta.clock != ORDER]
    return _split_passes(timed or nodes)[0]


def _split_telemetry(fragments: list[Fragment]) -> tuple[list[Fragment], list[Fragment]]:
    """Split fragments into those with nodes, and those with samples alone."""
    timed = [f for f in fragments if f.trace.nodes.num_rows]
    sampled = [f for f in fragments if not f.trace.nodes.num_rows and f.trace.samples.num_rows]
    if timed or sampled:
        return timed, sampled
    raise ReadError(
        "the input has no events and no samples",
        path=fragments[0].path if len(fragments) == 1 else None,
        hint=_losses(fragments) or _without_samples(fragments) or _left_out(fragments),
    )


def _without_samples(fragments: list[Fragment]) -> str | None:
    """Describe an input that has neither events nor samples, nor losses; None if nothing is known of it."""
    codes = {issue.code for f in fragments for issue in f.trace.meta.issues}
    if _ROWS_OF_SAMPLES in codes:
        return _NOT_AVAILABLE
    return _DESCRIBED if any(f.trace.meta.devices for f in fragments) else None


def _assemble_run(
    timed: list[Fragment],
    fragments: list[Fragment],
    clocks: source_clocks.SourceClocks,
    issues: IssueLog,
) -> tuple[same_run.JoinedRun, tuple[ClockFit, ...]]:
    """The timing run on one clock with its ranks numbered, its counter passes, and the fits."""
    timing, passes = _split_passes(timed)
    timing = copies.drop_copies(timing, issues)
    passes = copies.drop_pass_copies(timing, passes, issues)
    real = any(f.trace.meta.clock == REALTIME for f in fragments)
    timing, fits = source_clocks.on_one_clock(timing, clocks, real=real)
    timing = _number_ranks(timing, issues)
    timing, rank_fits = source_clocks.move_ranks_by_user(timing, clocks)
    run = same_run.join_same_run(timing, passes, clocks, issues)
    processes.note_unrelated_clocks(run.timing, issues, clocks.user_fits)
    return run, (*fits, *rank_fits, *run.fits)


def _join_ranks(run: same_run.JoinedRun, meta: Meta, issues: IssueLog) -> Trace:
    """Join all ranks in one trace, on one clock, with their collectives matched."""
    trace = concat([f.trace for f in run.timing], meta)
    for described, device_of in run.hardware:
        trace = devices.with_hardware(trace, described, device_of)
    trace = one_source.with_collectives(trace, issues)
    _note_ranks_apart(run.timing, trace, issues)
    return trace


def _job_of_telemetry(
    telemetry: list[Fragment], meta: Meta, clocks: source_clocks.SourceClocks
) -> tuple[Trace, list[Fragment]]:
    """Trace of the first telemetry of a job without profiles, and the rest to be joined to it.

    The first is one on real time, if there is any.
    """
    first = min(telemetry, key=lambda f: f.trace.meta.clock != REALTIME)
    rest = [f for f in telemetry if f is not first]
    trace, fits = source_clocks.reference_telemetry(first, clocks)
    all_fits = tuple(dict.fromkeys([*trace.meta.clocks, *fits]))
    sources = first.trace.meta.sources  # by which tasks of one log are known
    meta = replace(meta, clock=trace.meta.clock, clocks=all_fits, sources=sources)
    return concat([trace], meta), rest


def _with_pass(
    trace: Trace,
    fragment: Fragment,
    all_devices: Sequence[Device],
    rules: Sequence[DeviceRule],
    issues: IssueLog,
    timed: Dispatches | None,
) -> tuple[Trace, join_passes.PassCounters, str]:
    """The trace, of which these are the dispatches, with the matches and hardware of the devices of a counter pass.

    Also its counters, and why the pass may be of another program, empty if it is not.
    """
    matched = _devices_of_pass(trace, fragment, all_devices, rules)
    assumed = [number for number, (_, method) in matched.items() if method == devices.BY_ORDER]
    issues.add(DEVICES_BY_ORDER, len(assumed), f"{assumed} as {[matched[n][0] for n in assumed]}")
    path = str(fragment.path)
    matches = [DeviceMatch(path, n, device, -1, method) for n, (device, method) in matched.items()]
    device_of = {number: device for number, (device, _) in matched.items()}
    target, doubt = join_passes.match_pass(trace, fragment.trace, device_of, issues, timed)
    trace = devices.with_hardware(trace, fragment.trace.meta.devices, device_of)
    trace = trace.with_meta(device_matches=(*trace.meta.device_matches, *matches))
    return trace, join_passes.PassCounters(fragment.trace, target, issues), doubt


def _refuse_unused(
    rules: Sequence[DeviceRule], run: same_run.JoinedRun, telemetry: list[Fragment]
) -> None:
    """Raise `UsageError` for a rule of a device that is not joined to another."""
    joined = run.passes + telemetry if run.timing else []
    numbers_of = [(f, devices.device_numbers(f.trace)) for f in joined]
    numbers_of += [(f, monitors.unassigned_numbers(f.trace)) for f in run.timing]
    sources = [(f.files.converter.name, str(f.path), numbers) for f, numbers in numbers_of]
    for rule in rules:
        if not any(devices.rules_by_number([rule], *source) for source in sources):
            named = "" if rule.source == devices.ANY else f" {rule.source!r}"
            raise UsageError(
                f"--map-device {rule.text}: no telemetry and no counter pass{named} has such a GPU",
                hint="name a format or a pattern of files, and numbers that are in them",
            )


def _losses(fragments: list[Fragment]) -> str | None:
    """Losses of the input, for a job of which nothing is left; None if there were none."""
    issues = (issue for f in fragments for issue in f.trace.meta.issues)
    lost = [i.meaning.rstrip(".") for i in issues if i.severity is Severity.LOSS]
    return "; ".join(list(dict.fromkeys(lost))[:3]) or None


def _left_out(fragments: list[Fragment]) -> str | None:
    """Describe what most events of an input are that are neither nodes nor samples; None if it has none."""
    left_out = [i for f in fragments for i in f.trace.meta.issues if i.events]
    most = max(left_out, key=lambda issue: issue.count, default=None)
    if most is None:
        return None
    meaning = most.meaning.rstrip(".")
    return f"{meaning}: {most.example}" if most.example else meaning


def _split_passes(timed: list[Fragment]) -> tuple[list[Fragment], list[Fragment]]:
    """Split fragments into the run whose times become those of the trace, and counter passes.

    Without a run of its own for timing, the first counter pass is it.
    """
    if timed and all(f.has_counters and f.trace.meta.clock == ORDER for f in timed):
        raise ReadError(
            "these are counters of dispatches without times",
            path=timed[0].path,
            hint="give the run that was timed with them",
        )
    realtime = [f for f in timed if f.trace.meta.clock == REALTIME]
    if realtime:
        return realtime, _without(timed, realtime)
    plain = [f for f in timed if not f.has_counters]
    if plain:
        return plain, _without(timed, plain)
    with_times = [f for f in timed if f.trace.meta.clock != ORDER]
    first = min((f.trace.meta.run for f in with_times), default="")
    timing = [f for f in with_times if f.trace.meta.run == first]
    return timing, _without(timed, timing)


def _without(fragments: list[Fragment], left_out: list[Fragment]) -> list[Fragment]:
    known = set(left_out)
    return [f for f in fragments if f not in known]


def _number_ranks(timing: list[Fragment], issues: IssueLog) -> list[Fragment]:
    """Number the ranks of fragments that do not state theirs."""
    unnumbered = [f for f in timing if f.ranks_are_assumed]
    if len(timing) == 1 or not unnumbered:
        return timing
    used = {r for f in _without(timing, unnumbered) for r in f.trace.ranks}
    free = (n for n in count() if n not in used)
    order = sorted(unnumbered, key=_device_and_pid)
    numbers = {id(f): [next(free) for _ in _all_ranks(f.trace)] for f in order}
    issues.add(RANKS_BY_ORDER, len(unnumbered))
    return [
        replace(f, trace=_renumbered(f.trace, numbers[id(f)])) if id(f) in numbers else f
        for f in timing
    ]


def _note_ranks_apart(timing: list[Fragment], trace: Trace, issues: IssueLog) -> None:
    """Note fragments that begin after all before them have ended."""
    of_rank = {}
    for rank, rows in trace.rank_rows.items():
        ts = trace.array("ts")[rows]
        of_rank[rank] = int(ts[0]), int((ts + trace.array("dur")[rows]).max())
    windows = sorted(
        (
            min(of_rank[r][0] for r in f.trace.ranks),
            max(of_rank[r][1] for r in f.trace.ranks),
            f.files.label,
        )
        for f in timing
    )
    latest_end = windows[0][1] if windows else 0
    for start, stop, label in windows[1:]:
        if start > latest_end:
            issues.add(RANKS_APART, 1, f"{(start - latest_end) / 1e9:,.3f} s before {label}")
        latest_end = max(latest_end, stop)


def _device_and_pid(fragment: Fragment) -> tuple[int, int]:
    """Lowest device and lowest process id of a fragment's ranks; -1 of none."""
    ranks = fragment.trace.meta.ranks
    return min((r.device for r in ranks), default=-1), min((r.pid for r in ranks), default=-1)


def _all_ranks(trace: Trace) -> list[int]:
    """Ranks of a trace in ascending order, also those of which a plug-in's reader states nothing."""
    of_tables = np.concatenate([trace.array("rank", table) for table in ("lanes", "series")])
    return sorted({r.rank for r in trace.meta.ranks}.union(of_tables[of_tables >= 0].tolist()))


def _renumbered(trace: Trace, numbers: list[int]) -> Trace:
    """The trace with its ranks, in ascending order, under other numbers.

    Old numbers are sorted, so that bisection finds the position of each; -1 stays.
    """
    old, new = np.array(_all_ranks(trace), np.int32), np.array(numbers, np.int32)

    def renumbered(table: pa.Table) -> pa.Table:
        rank = arrow.to_numpy(table["rank"])
        values = np.where(rank < 0, rank, new[np.searchsorted(old, np.maximum(rank, 0))])
        return arrow.replace_column(table, "rank", values)

    renamed = dict(zip(old.tolist(), numbers, strict=True))
    ranks = tuple(replace(r, rank=renamed[r.rank]) for r in trace.meta.ranks)
    return replace(
        trace,
        nodes=renumbered(trace.nodes),
        lanes=renumbered(trace.lanes),
        series=renumbered(trace.series),
        meta=replace(trace.meta, ranks=ranks),
    )


def _devices_of_pass(
    trace: Trace, fragment: Fragment, all_devices: Sequence[Device], rules: Sequence[DeviceRule]
) -> dict[int, tuple[int, str]]:
    """Device of a counter pass → device of the timing run, and how it was matched."""
    numbers = devices.devices_with_work(fragment.trace)
    if numbers == [-1] == devices.devices_with_work(trace):  # unknown in both
        return {-1: (-1, devices.BY_COUNTING)}
    name, path = fragment.files.converter.name, str(fragment.path)
    device_rules = (r for r in rules if not r.is_rank)
    rule_of = devices.rules_by_number(device_rules, name, path, numbers)
    by_user = {n: (rule.target_of(n)[0], devices.BY_USER) for n, rule in rule_of.items()}
    known = [number for number in numbers if number >= 0]
    targets = devices.working_devices(trace, all_devices)
    guessed = devices.match_devices(known, fragment.trace.meta.devices, targets, all_devices)
    return devices.match_remaining(known, by_user, guessed) | by_user
