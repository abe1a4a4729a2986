"""Whose GPUs telemetry is of: its series under the ranks that compute on them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.build import concat
from chopper_interop.clocks import hosts as host_clocks
from chopper_interop.clocks import relations as clocks
from chopper_interop.columns import arrow
from chopper_interop.gpus import devices
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.joining import captures, source_clocks, telemetry_clocks
from chopper_interop.joining.source_clocks import Clocks
from chopper_interop.schemas.meta import (
    ClockFit,
    Device,
    DeviceMatch,
    Rank,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from chopper_interop.gpus.devices import Rule
    from chopper_interop.joining.fragment import Fragment
    from chopper_interop.trace import Trace

    Owner = tuple[int, int]
    """A rank, and its number of the device that it computes on."""

DEVICES_UNKNOWN = Fault(
    "telemetry-of-unknown-device",
    Severity.INFO,
    "Which rank computes on which GPU of the telemetry is not known: its lanes stand by "
    "themselves. --map-device can tell.",
)
DEVICES_BY_RANK = Fault(
    "telemetry-by-rank",
    Severity.INFO,
    "Every rank numbers its only GPU alike; they were matched with the GPUs of the telemetry in "
    "ascending order.",
)
TELEMETRY_APART = Fault(
    "telemetry-apart",
    Severity.ERROR,
    "Samples that do not overlap in time with the trace: they are of another run, or their clock "
    "or zone is another. They stand where they say they were.",
)
CONTRADICTS = Fault(
    "telemetry-contradicts",
    Severity.ERROR,
    "Files of one tool tell a quantity of one rank's GPU for the same time, and not alike: they are "
    "of several runs or machines. What is made of them is a mixture.",
)
_CERTAIN = (devices.NAMES["uuid"], devices.NAMES["pci"])
"""Names by which a device is the same for all processes, whichever of them they see."""
_NEAR_NS = 60 * 10**9
"""Samples this near are of the same run: slow tools stop a while before or after it."""


@dataclass(frozen=True)
class Surroundings:
    """What telemetry is joined to.

    Parameters
    ----------
    trace
        All ranks of the job, or other telemetry.
    folder
        Where the files of each rank lie.
    known
        What all sources tell of devices.
    rules
        What the user says of devices.
    issues
        Where it is noted what was assumed, and what could not be joined.
    clocks
        What is known of the clocks of all sources.
    """

    trace: Trace
    folder: dict[int, Path]
    known: Sequence[Device]
    rules: Sequence[Rule]
    issues: IssueLog = field(default_factory=IssueLog)
    clocks: Clocks = field(default_factory=Clocks)


def with_telemetry(telemetry: Sequence[Fragment], around: Surroundings) -> Trace:
    """The trace with the series and samples of telemetry.

    Parameters
    ----------
    telemetry
        Sources of samples alone, whose devices have the numbers of the tools that took them.
    around
        What they are joined to.
    """
    parts = []
    known: list[set[int]] = []
    matches: list[DeviceMatch] = []
    fits: list[ClockFit] = []
    for fragment in telemetry:
        fits += fragment.trace.meta.clocks
        fit = telemetry_clocks.fit(
            fragment, around.trace, around.clocks, around.issues, _owned(fragment, around)
        )
        if fit is None:
            continue
        fits.append(fit)
        moved = telemetry_clocks.moved(fragment.trace, fit, around.trace.meta.clock)
        owned, found = _with_owners(replace(fragment, trace=moved), around)
        if fit.method not in clocks.DIRECT:
            owned = host_clocks.of_host(owned, around.trace)
        _note_apart(owned, around)
        parts.append(owned)
        known.append({match.device for match in found})
        matches += found
    around.issues.add(CONTRADICTS, captures.contradictions(parts))
    if around.trace.nodes.num_rows:
        parts = [around.trace, *captures.told_apart(parts, known, around.issues)]
    else:
        parts = captures.told_apart([around.trace, *parts], [set(), *known], around.issues)
    meta = around.trace.meta
    told = replace(
        meta,
        device_matches=(*meta.device_matches, *matches),
        clocks=clocks.distinct([*meta.clocks, *fits]),
    )
    return captures.once(concat(parts, told), around.issues)


def _owned(fragment: Fragment, around: Surroundings) -> Callable[[], Trace]:
    """What gives telemetry under its ranks, whatever its clock; without a note of it."""
    return lambda: _with_owners(fragment, replace(around, issues=IssueLog()))[0]


def _note_apart(telemetry: Trace, around: Surroundings) -> None:
    """Say that samples and what they are joined to do not overlap in time."""
    (start, stop), (start_2, stop_2) = (
        telemetry_clocks.window(telemetry),
        telemetry_clocks.window(around.trace),
    )
    apart = max(start, start_2) - min(stop, stop_2)
    if apart > _NEAR_NS and around.trace.nodes.num_rows:
        example = f"{apart / 1e9:,.0f} s from {telemetry.meta.sources[0].path}"
        around.issues.add(TELEMETRY_APART, telemetry.samples.num_rows, example)


def _with_owners(fragment: Fragment, around: Surroundings) -> tuple[Trace, list[DeviceMatch]]:
    """Telemetry whose series belong to the ranks that compute on its devices.

    Series of which the source tells the rank keep it.
    """
    telemetry = fragment.trace
    device, rank = (telemetry.array(c, "series").copy() for c in ("device", "rank"))
    free = (device >= 0) & (rank < 0)
    theirs = [int(d) for d in np.unique(device[free])]
    owners = _told(fragment, theirs, around)
    if len(owners) < len(theirs):
        owners |= _untold(theirs, owners, fragment, around)
    for number, ((of_rank, of_device), _) in owners.items():
        mine = free & (telemetry.array("device", "series") == number)
        rank[mine], device[mine] = of_rank, of_device
    series = arrow.replaced(telemetry.series, "rank", rank)
    matches = [
        DeviceMatch(str(fragment.files.paths[0]), number, of_device, of_rank, by)
        for number, ((of_rank, of_device), by) in owners.items()
    ]
    return replace(telemetry, series=arrow.replaced(series, "device", device)), matches


def _told(
    fragment: Fragment, theirs: list[int], around: Surroundings
) -> dict[int, tuple[Owner, str]]:
    """Owners of the devices of which the user says what they are."""
    ranks = {r.rank: r for r in around.trace.meta.ranks}
    name, path = fragment.files.converter.name, str(fragment.files.paths[0])
    return {
        number: (devices.owner(rule, number, ranks), devices.BY_USER)
        for number, rule in devices.told(around.rules, name, path, theirs).items()
    }


def _untold(
    theirs: list[int],
    told: dict[int, tuple[Owner, str]],
    fragment: Fragment,
    around: Surroundings,
) -> dict[int, tuple[Owner, str]]:
    """Owners of the devices of which the user says nothing, and a note of those not known."""
    guessed = _owners(theirs, len(told), fragment, around) if around.trace.meta.ranks else {}
    found = devices.around_told(theirs, told, guessed)
    rest = [t for t in theirs if t not in told and t not in found]
    unknown = [t for t in rest if t in guessed or not found]
    around.issues.add(DEVICES_UNKNOWN, len(unknown), fragment.trace.meta.sources[0].path)
    return found


def _owners(
    theirs: list[int], n_told: int, fragment: Fragment, around: Surroundings
) -> dict[int, tuple[Owner, str]]:
    """Telemetry's number of a GPU → who computes on it and what tells that, but for the user."""
    ranks = _near(fragment, around)
    owners = {r.device: (r.rank, r.device) for r in ranks}
    if len(owners) == len(ranks):
        host = next((r.host for r in ranks), "")
        bridges = [d for d in around.known if d.host in ("", host) or not host]
        ours = [d for d in devices.of_trace(around.trace, bridges) if d.device in owners]
        matched = devices.match(theirs, fragment.trace.meta.devices, ours, bridges)
        return {t: (owners[d], by) for t, (d, by) in matched.items()}
    if shared := _of_several(theirs, fragment, around, ranks):
        return shared
    if len(owners) == 1 and len(theirs) == len(ranks):
        around.issues.add(DEVICES_BY_RANK, len(ranks) - n_told)
        ordered = sorted((r.rank, r.device) for r in ranks)
        return {t: (o, devices.BY_ORDER) for t, o in zip(theirs, ordered, strict=True)}
    return {}


def _of_several(
    theirs: list[int], fragment: Fragment, around: Surroundings, ranks: list[Rank]
) -> dict[int, tuple[Owner, str]]:
    """Owners of GPUs on some of which several ranks compute, where names leave no doubt.

    What is of several ranks stays the node's, under their number of the device.
    """
    named: dict[int, set[tuple[str, str]]] = {}
    for d in around.trace.meta.devices:
        named.setdefault(d.device, set()).add((d.pci, d.uuid))
    ours = [
        d for d in devices.of_trace(around.trace, around.known) if len(named.get(d.device, ())) == 1
    ]
    matched = devices.match(theirs, fragment.trace.meta.devices, ours, around.known)
    users: dict[int, list[int]] = {}
    for r in ranks:
        users.setdefault(r.device, []).append(r.rank)
    return {
        t: ((-1 if len(users[d]) > 1 else users[d][0], d), by)
        for t, (d, by) in matched.items()
        if by in _CERTAIN and d in users
    }


def _near(fragment: Fragment, around: Surroundings) -> list[Rank]:
    """Ranks of the machine that the telemetry is of, as far as can be told.

    By the host that its content names, else by one that its path names, else those whose files lie
    in the nearest folder around it that holds any.
    """
    ranks = [r for r in around.trace.meta.ranks if r.device >= 0]
    hosts = {d.host for d in fragment.trace.meta.devices} - {""}
    of_ranks = {r.host for r in ranks}
    path = fragment.files.paths[0]
    if len(of_ranks) > 1 and not hosts & of_ranks:
        hosts = {h for h in of_ranks if h and source_clocks.names_host(path, h)}
    if hosts & of_ranks:
        return [r for r in ranks if r.host in hosts]
    beside = _beside(path, ranks, around)
    return beside if len({r.host for r in beside}) == 1 else []


def _beside(path: Path, ranks: list[Rank], around: Surroundings) -> list[Rank]:
    for folder in path.resolve().parents:
        inside = [r for r in ranks if _is_below(around.folder.get(r.rank), folder)]
        if inside:
            return inside
    return ranks


def _is_below(path: Path | None, folder: Path) -> bool:
    return path is not None and path.resolve().is_relative_to(folder)
