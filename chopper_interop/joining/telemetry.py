"""Telemetry joined to a job: its series under the ranks that compute on the GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop import number_ranges
from chopper_interop.arrays import arrow
from chopper_interop.build import concat
from chopper_interop.clocks import hosts as host_clocks
from chopper_interop.clocks import relations as clocks
from chopper_interop.gpus import devices
from chopper_interop.grouping import grouped
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.joining import source_clocks, telemetry_clocks, telemetry_files
from chopper_interop.joining.source_clocks import SourceClocks
from chopper_interop.schemas.meta import ClockFit, Device, DeviceMatch, Rank
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.arrays import Array
    from chopper_interop.gpus.devices import DeviceRule
    from chopper_interop.joining.fragment import Fragment

    Owner = tuple[int, int]
    """A rank, and its number of the device that it computes on."""

DEVICES_UNKNOWN = Fault.info(
    "telemetry-of-unknown-device",
    "Which rank computes on which GPU of the telemetry is not known: its lanes are separate from "
    "those of ranks. State it with --map-device.",
)
DEVICES_BY_RANK = Fault.info(
    "telemetry-by-rank",
    "Every rank gives its only GPU the same number; they were matched with the GPUs of the telemetry in "
    "ascending order.",
)
TELEMETRY_APART = Fault.error(
    "telemetry-apart",
    "Samples that do not overlap in time with the trace: they are of another run, or their clock "
    "or zone differs. They keep the times that they recorded.",
)
CONTRADICTS = Fault.error(
    "telemetry-contradicts",
    "Files of one tool have different values of a quantity of one rank's GPU at the same time: they "
    "are of several runs or machines. Results from them are a mixture.",
)
_CERTAIN = (devices.NAMES["uuid"], devices.NAMES["pci"])
"""Names that a device has in all processes, whichever devices they see."""
_NEAR_NS = 60 * 10**9
"""Samples this near are of the same run; chosen: slow tools stop a while before or after it."""


@dataclass(frozen=True)
class TelemetryContext:
    """Trace that telemetry is joined to, and what is known to join it.

    Parameters
    ----------
    trace
        All ranks of the job, or other telemetry.
    folder
        Folder of the files of each rank.
    devices
        Devices as all sources describe them.
    rules
        Devices that the user states.
    issues
        Gets what was assumed, and what could not be joined.
    clocks
        Relations of the clocks of all sources.
    """

    trace: Trace
    folder: dict[int, Path]
    devices: Sequence[Device]
    rules: Sequence[DeviceRule]
    issues: IssueLog = field(default_factory=IssueLog)
    clocks: SourceClocks = field(default_factory=SourceClocks)


def with_telemetry(telemetry: Sequence[Fragment], context: TelemetryContext) -> Trace:
    """Return the trace with the series and samples of telemetry.

    Parameters
    ----------
    telemetry
        Sources of samples alone, whose devices have the numbers of the tools that took them.
    context
        What they are joined to.
    """
    parts = []
    devices_of_ranks: list[set[int]] = []
    matches: list[DeviceMatch] = []
    fits: list[ClockFit] = []
    for fragment in telemetry:
        fits += fragment.trace.meta.clocks
        fit = telemetry_clocks.fit_telemetry(
            fragment,
            context.trace,
            context.clocks,
            context.issues,
            _owners_getter(fragment, context),
        )
        if fit is None:
            continue
        fits.append(fit)
        moved = telemetry_clocks.shift_telemetry(fragment.trace, fit, context.trace.meta.clock)
        owned, matches_of_source = _with_owners(replace(fragment, trace=moved), context)
        if fit.method not in clocks.DIRECT:
            owned = host_clocks.shift_with_host(owned, context.trace)
        _note_apart(owned, context)
        parts.append(owned)
        devices_of_ranks.append({match.device for match in matches_of_source})
        matches += matches_of_source
    context.issues.add(CONTRADICTS, telemetry_files.count_contradictions(parts))
    if context.trace.nodes.num_rows:
        numbered = telemetry_files.number_machines_apart(parts, devices_of_ranks, context.issues)
        parts = [context.trace, *numbered]
    else:  # the trace is telemetry as well
        parts = telemetry_files.number_machines_apart(
            [context.trace, *parts], [set(), *devices_of_ranks], context.issues
        )
    meta = context.trace.meta
    meta = replace(
        meta,
        device_matches=(*meta.device_matches, *matches),
        clocks=tuple(dict.fromkeys([*meta.clocks, *fits])),
    )
    return telemetry_files.drop_repeated_samples(concat(parts, meta), context.issues)


def _owners_getter(fragment: Fragment, context: TelemetryContext) -> Callable[[], Trace]:
    """Function that returns telemetry under its ranks, on its own clock; notes no issues."""
    return lambda: _with_owners(fragment, replace(context, issues=IssueLog()))[0]


def _note_apart(telemetry: Trace, context: TelemetryContext) -> None:
    """Note that samples do not overlap in time with the nodes that they are joined to."""
    (start, stop), (start_2, stop_2) = (
        telemetry_clocks.time_window(telemetry),
        telemetry_clocks.time_window(context.trace),
    )
    apart = max(start, start_2) - min(stop, stop_2)
    if apart > _NEAR_NS and context.trace.nodes.num_rows:
        where = "before" if stop < start_2 else "behind"
        path = telemetry.meta.sources[0].path
        example = f"{path}: {apart / 1e9:,.0f} s {where} the operations"
        context.issues.add(TELEMETRY_APART, telemetry.samples.num_rows, example)


def _with_owners(fragment: Fragment, context: TelemetryContext) -> tuple[Trace, list[DeviceMatch]]:
    """Assign series to the ranks that compute on their devices; series with a rank keep it."""
    telemetry = fragment.trace
    device, rank = (telemetry.array(c, "series").copy() for c in ("device", "rank"))
    free = (device >= 0) & (rank < 0)
    numbers = [int(d) for d in np.unique(device[free])]
    owners = _owners_by_user(fragment, numbers, context)
    if len(owners) < len(numbers):
        owners |= _remaining_owners(numbers, owners, fragment, context)
    for number, ((of_rank, of_device), _) in owners.items():
        of_number = free & (telemetry.array("device", "series") == number)
        rank[of_number], device[of_number] = of_rank, of_device
    series = arrow.replace_column(telemetry.series, "rank", rank)
    series = _with_ranks_of_host(series, (rank < 0) & (device < 0), fragment, context)
    matches = [
        DeviceMatch(str(fragment.path), number, of_device, of_rank, by)
        for number, ((of_rank, of_device), by) in owners.items()
    ]
    return replace(telemetry, series=arrow.replace_column(series, "device", device)), matches


def _with_ranks_of_host(
    series: pa.Table, of_host: Array, fragment: Fragment, context: TelemetryContext
) -> pa.Table:
    """Name the ranks on the host of its own series where there are several hosts, which would be taken for one."""
    on_host = [r.rank for r in _ranks_of_machine(fragment, context)]
    if len({r.host for r in context.trace.meta.ranks}) == 1 or not on_host or not of_host.any():
        return series
    label = f" ({number_ranges.named('rank', sorted(on_host))})"
    source = [
        tool + label * is_of_host
        for tool, is_of_host in zip(series["source"].to_pylist(), of_host.tolist(), strict=True)
    ]
    return arrow.replace_column(series, "source", pa.array(source, series["source"].type))


def _owners_by_user(
    fragment: Fragment, numbers: list[int], context: TelemetryContext
) -> dict[int, tuple[Owner, str]]:
    """Owners of the devices that the user states."""
    ranks = {r.rank: r for r in context.trace.meta.ranks}
    name, path = fragment.files.converter.name, str(fragment.path)
    return {
        number: (devices.owner_by_rule(rule, number, ranks), devices.BY_USER)
        for number, rule in devices.rules_by_number(context.rules, name, path, numbers).items()
    }


def _remaining_owners(
    numbers: list[int],
    by_user: dict[int, tuple[Owner, str]],
    fragment: Fragment,
    context: TelemetryContext,
) -> dict[int, tuple[Owner, str]]:
    """Owners of the devices that the user does not state; notes those that stay unknown."""
    guessed = (
        _matched_owners(numbers, len(by_user), fragment, context)
        if context.trace.meta.ranks
        else {}
    )
    matched = devices.match_remaining(numbers, by_user, guessed)
    unmatched = [n for n in numbers if n not in by_user and n not in matched]
    unknown = [n for n in unmatched if n in guessed or not matched]
    context.issues.add(DEVICES_UNKNOWN, len(unknown), fragment.trace.meta.sources[0].path)
    return matched


def _matched_owners(
    numbers: list[int], count_by_user: int, fragment: Fragment, context: TelemetryContext
) -> dict[int, tuple[Owner, str]]:
    """Number of a GPU in telemetry → its owner and how it was matched, without the user's rules."""
    ranks = _ranks_of_machine(fragment, context)
    owners = {r.device: (r.rank, r.device) for r in ranks}
    if len(owners) == len(ranks):
        host = next((r.host for r in ranks), "")
        bridges = [d for d in context.devices if d.host in ("", host) or not host]
        targets = [d for d in devices.working_devices(context.trace, bridges) if d.device in owners]
        matched = devices.match_devices(numbers, fragment.trace.meta.devices, targets, bridges)
        return {n: (owners[d], method) for n, (d, method) in matched.items()}
    if shared := _owners_of_shared_devices(numbers, fragment, context, ranks):
        return shared
    if len(owners) == 1 and len(numbers) == len(ranks):
        context.issues.add(DEVICES_BY_RANK, len(ranks) - count_by_user)
        ordered = sorted((r.rank, r.device) for r in ranks)
        return {n: (o, devices.BY_ORDER) for n, o in zip(numbers, ordered, strict=True)}
    return {}


def _owners_of_shared_devices(
    numbers: list[int], fragment: Fragment, context: TelemetryContext, ranks: list[Rank]
) -> dict[int, tuple[Owner, str]]:
    """Owners of GPUs on some of which several ranks compute, where names are unambiguous.

    A device of several ranks is owned by none: its series keep their number of the device.
    """
    named = grouped((d.device, (d.pci, d.uuid)) for d in context.trace.meta.devices)
    targets = [
        d
        for d in devices.working_devices(context.trace, context.devices)
        if len(set(named.get(d.device, ()))) == 1
    ]
    matched = devices.match_devices(numbers, fragment.trace.meta.devices, targets, context.devices)
    ranks_of = grouped((r.device, r.rank) for r in ranks)
    return {
        n: ((-1 if len(ranks_of[d]) > 1 else ranks_of[d][0], d), method)
        for n, (d, method) in matched.items()
        if method in _CERTAIN and d in ranks_of
    }


def _ranks_of_machine(fragment: Fragment, context: TelemetryContext) -> list[Rank]:
    """Ranks of the machine that the telemetry is of; none if that is not certain.

    By the host that its content names, else by one that its path names, else those whose files lie
    in the nearest folder around it that holds any.
    """
    ranks = [r for r in context.trace.meta.ranks if r.device >= 0]
    hosts = {d.host for d in fragment.trace.meta.devices} - {""}
    of_ranks = {r.host for r in ranks}
    path = fragment.path
    if len(of_ranks) > 1 and not hosts & of_ranks:
        hosts = {h for h in of_ranks if h and source_clocks.names_host(path, h)}
    if hosts & of_ranks:
        return [r for r in ranks if r.host in hosts]
    nearby = _ranks_nearby(path, ranks, context)
    return nearby if len({r.host for r in nearby}) == 1 else []


def _ranks_nearby(path: Path, ranks: list[Rank], context: TelemetryContext) -> list[Rank]:
    """Ranks with files in the nearest folder around a path that holds any; all if none does."""
    for folder in path.resolve().parents:
        inside = [r for r in ranks if _is_below(context.folder.get(r.rank), folder)]
        if inside:
            return inside
    return ranks


def _is_below(path: Path | None, folder: Path) -> bool:
    return path is not None and path.resolve().is_relative_to(folder)
