"""Telemetry of the same GPUs in several files: whose they are, and every moment once.

A number of a GPU is the same GPU in all files unless they contradict each other: by what they call
it, or by what they measured of it at the same time. Of one GPU, the finest file of a tool tells
each moment, and the others what it does not tell; a copy tells nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.columns import arrow, gather, intervals
from chopper_interop.errors import AmbiguousRunError
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.gpus import gpu
from chopper_interop.telemetry.names import POWER, TEMPERATURE, WINDOW
from chopper_interop.telemetry.samples import GAP, usual_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.joining.fragment import Fragment
    from chopper_interop.schemas.meta import Device
    from chopper_interop.trace import Trace

    Points = tuple[Array, Array]
    """Times on the trace's clock and values."""
    Key = tuple[Any, ...]
    Seen = dict[Key, list["_Part"]]

TOLD_TWICE = Fault(
    "telemetry-told-twice",
    Severity.INFO,
    "Samples of a GPU for times that a finer file of the same tool tells, or a copy, were left out.",
)
MACHINES = Fault(
    "telemetry-of-machines",
    Severity.INFO,
    "GPUs of one number of which files tell unlike values for one time are of several machines: those "
    "of later ones were numbered on from those of the first.",
)
TAKEN_FOR_ONE = Fault(
    "telemetry-taken-for-one",
    Severity.LOSS,
    "Samples of GPUs of no rank at times that a finer file of the same tool tells were left out: "
    "nothing shows that the files are of several machines. Read these one by one if they are.",
)
_ALIKE = 0.1
"""Mean powers of two files that measured the same differ by less, as a share of the larger."""
_SCATTER = 3
"""And by so many times the error of that mean."""
_ALIKE_K = 2.0
"""Temperatures of one GPU by two files: whole degrees, read at other moments."""
_CLOCKS_NS = 10**9
"""Clocks of files on whole seconds differ by less."""
_AS_OFTEN = 2
"""Files whose periods differ by no more can be one series."""
_MOST_DRAWN = 2
"""No GPU draws so many times its board power."""
_MEASURED = tuple(t for q in (POWER, TEMPERATURE) for t in q.told if not t.is_window)


def refuse_other_machines(fragments: Sequence[Fragment]) -> None:
    """Raise if files of telemetry alone call one GPU by names that cannot be of one.

    Raises
    ------
    AmbiguousRunError
        UUID, PCI address or product of a number differ, or it draws what that product cannot.
    """
    named: dict[tuple[str, int], tuple[Device, Fragment]] = {}
    for fragment in fragments:
        for device in fragment.trace.meta.devices:
            key = (device.source, device.device)  # tools may count in other orders
            before, other = named.get(key, (device, fragment))
            if _are_two(before, device):
                _refuse(f"{_called(before)} by {other.files.label}", device, fragment)
            whole = _joined(before, device)
            named[key] = whole, other if whole == before else fragment
    for fragment in fragments:
        peaks = dict(_peaks(fragment.trace))
        for device, other in named.values():
            product, watts = (
                gpu(device.name, device.arch, device.cus),
                peaks.get(device.device, 0.0),
            )
            if product and product.power_w and watts > _MOST_DRAWN * product.power_w:
                _refuse(f"drawing {watts:,.0f} W by {fragment.files.label}", device, other)


def _are_two(one: Device, other: Device) -> bool:
    products = (gpu(d.name, d.arch, d.cus) for d in (one, other))
    pairs = [tuple(p.name if p else "" for p in products)]
    pairs += [(getattr(one, f), getattr(other, f)) for f in ("uuid", "pci", "host")]
    return any(a and b and a != b for a, b in pairs)


def _joined(one: Device, other: Device) -> Device:
    """What both tell."""
    missing = [f for f in ("uuid", "pci", "host", "name", "arch") if not getattr(one, f)]
    return replace(one, **{f: getattr(other, f) for f in missing})


def _called(device: Device) -> str:
    return device.name or device.uuid or device.pci or device.host


def _refuse(first: str, device: Device, fragment: Fragment) -> None:
    raise AmbiguousRunError(
        f"GPU {device.device} is {first}, and {_called(device)} by {fragment.files.label}",
        hint="these are several machines or runs: give the files of one of them",
    )


def _peaks(trace: Trace) -> Iterator[tuple[int, float]]:
    """The most power that was sampled of each GPU."""
    for _, series, (_, value) in _series(trace):
        told = next((t for t in POWER.told if t.match(series["name"]) and t.is_shown), None)
        sound = value[(value >= 0) & (value <= POWER.most)]
        if told and sound.size and series["unit"] in told.units:
            yield series["device"], float(sound.max()) * told.units[series["unit"]]


def _series(trace: Trace) -> Iterator[tuple[int, dict[str, Any], Points]]:
    """Rows of series with their samples."""
    owner, ts, value = (trace.array(c, "samples") for c in ("series", "ts", "value"))
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(trace.series.num_rows + 1))
    for row, series in enumerate(trace.series.to_pylist()):
        mine = order[bounds[row] : bounds[row + 1]]
        yield row, series, (ts[mine] + trace.meta.origin_ns, value[mine])


class _Part(NamedTuple):
    """What a file says of one quantity of a GPU, from its first sample to its last."""

    first: int
    last: int
    points: Points


def contradictions(parts: Sequence[Trace]) -> int:
    """How many series of one tool say of a rank's GPU what another file denies."""
    seen: Seen = {}
    return sum(_denied(_told(part, lambda s: s["rank"] >= 0), seen) for part in parts)


def told_apart(
    parts: Sequence[Trace], matched: Sequence[set[int]], issues: IssueLog
) -> list[Trace]:
    """Telemetry whose GPUs of no rank have numbers of their own on each machine.

    Parameters
    ----------
    parts
        Telemetry on one clock.
    matched
        Of each the numbers of GPUs that are known to be those of ranks.
    issues
        Where it is told which GPUs have other numbers.
    """
    most = max((int(part.array("device", "series").max(initial=-1)) for part in parts), default=-1)
    machines: list[Seen] = [{}]
    made = []
    for part, known in zip(parts, matched, strict=True):

        def is_free(series: dict[str, Any], known: set[int] = known) -> bool:
            told = any(t.match(series["name"]) for t in _MEASURED)
            return told and series["rank"] < 0 <= series["device"] and series["device"] not in known

        told = _told(part, is_free)
        place = next(
            (n for n, seen in enumerate(machines) if not _denied(told, dict(seen))), len(machines)
        )
        if place == len(machines):
            machines.append({})
        _denied(told, machines[place])
        made.append(_shifted(part, known, place * (most + 1), issues) if place else part)
    return made


def _shifted(part: Trace, known: set[int], by: int, issues: IssueLog) -> Trace:
    rank, device = (part.array(c, "series") for c in ("rank", "device"))
    free = (rank < 0) & (device >= 0) & ~np.isin(device, list(known))
    issues.add(MACHINES, len(np.unique(device[free])), part.meta.sources[0].path)
    return replace(part, series=arrow.replaced(part.series, "device", device + free * by))


def _told(part: Trace, counts: Callable[[dict[str, Any]], bool]) -> list[tuple[Key, _Part]]:
    """What a file says by its series that count."""
    return [
        (
            tuple(series[c] for c in ("rank", "device", "name", "unit", "source")),
            _Part(int(points[0].min()), int(points[0].max()), points),
        )
        for _, series, points in _series(part)
        if counts(series) and points[0].size
    ]


def _denied(told: list[tuple[Key, _Part]], seen: Seen) -> int:
    """How many series deny what was seen, which is seen from now on."""
    found = 0
    for key, one in told:
        before = seen.get(key, [])
        beside = (o for o in before if o.first <= one.last and one.first <= o.last)
        found += any(_contradict(str(key[2]), one, other) for other in beside)
        seen[key] = [*before, one]
    return found


def _contradict(name: str, one: _Part, other: _Part) -> bool:
    """Whether what two files tell of the time that both have cannot be of one GPU."""
    ts, value = one.points
    inside = (ts >= other.first) & (ts <= other.last)
    if not inside.any():
        return False
    values = value[inside]
    between = np.interp(ts[inside], *other.points)
    apart = float(np.median(np.abs(values - between)))
    if any(t.match(name) for t in TEMPERATURE.told):
        return apart > _ALIKE_K
    if any(t.match(name) for t in POWER.told if t.is_counter):
        return apart > max(_rise(one.points), _rise(other.points))
    a, b = float(values.mean()), float(between.mean())
    scatter = (
        float(np.std(other.points[1])) if len(values) == 1 else float(np.std(values - between))
    )
    return abs(a - b) > _ALIKE * max(abs(a), abs(b)) + _SCATTER * scatter / len(values) ** 0.5


def _rise(counter: Points) -> float:
    """By how much a counter rises between samples and while clocks of files differ, at most."""
    ts, value = counter
    if len(ts) == 1:
        return 0.0
    rises = np.abs(np.diff(value))
    return float(2 * rises.max() + np.median(rises / np.diff(ts).clip(1)) * _CLOCKS_NS)


def once(trace: Trace, issues: IssueLog) -> Trace:
    """The trace with one series of what several files of one tool tell of a GPU.

    Files of which one samples much more often than the other keep series of their own.
    """
    same: dict[tuple[Any, ...], list[tuple[int, Array]]] = defaultdict(list)
    for row, series, (ts, _) in _series(trace):
        if series["device"] >= 0 and ts.size:
            same[tuple(series.values())].append((row, ts))
    owner, rank = trace.array("series", "samples"), trace.array("rank", "series")
    now, kept = owner.copy(), np.ones(len(owner), np.bool_)
    for key, found in same.items():
        if len(found) > 1:
            is_window = any(WINDOW.fullmatch(str(part)) for part in key)
            for row, home, own in _windows(found) if is_window else _cut(found):
                mine = slice(*np.searchsorted(owner, [row, row + 1]))
                now[mine], kept[mine] = home, own
    guessed = ~kept & (rank[owner] < 0)
    if guessed.any():
        guessed &= ~_is_copied(trace, now, kept)
    issues.add(TAKEN_FOR_ONE, np.count_nonzero(guessed))
    issues.add(TOLD_TWICE, np.count_nonzero(~kept & ~guessed))
    return trace if kept.all() and (now == owner).all() else _with_samples(trace, now, kept)


def _is_copied(trace: Trace, owner: Array, kept: Array) -> Array:
    """Which samples are those of another file, moment and value."""
    ts, value = trace.array("ts", "samples"), trace.array("value", "samples")
    first, key = gather.distinct(owner, ts, value.view(np.int64))
    there = np.zeros(len(first), np.bool_)
    there[key[kept]] = True
    copied: Array = there[key]
    return copied


def _windows(found: list[tuple[int, Array]]) -> Iterator[tuple[int, int, Array]]:
    """Windows that begin at one moment are one: of each file what no other has."""
    seen = np.zeros(0, np.int64)
    for row, ts in found:
        yield row, found[0][0], ~np.isin(ts, seen)
        seen = np.concatenate([seen, ts])


def _cut(found: list[tuple[int, Array]]) -> Iterator[tuple[int, int, Array]]:
    """Of each series the one that it becomes part of, and which of its samples count."""
    start = end = np.zeros(0, np.int64)
    homes: dict[int, int] = {}
    for row, ts in sorted(found, key=_fineness):
        period, step = usual_step(ts), np.append(np.diff(ts), 1)
        at = np.searchsorted(start, ts, "right") - 1
        own = (at < 0) | (ts >= end[at]) if start.size else np.ones(len(ts), np.bool_)
        near = (h for h, p in homes.items() if 0 < period <= _AS_OFTEN * p)
        home = next(near, row)
        if home == row and own.any():  # up to where the others begin
            beside = own[1:] | own[:-1]
            own[1:] |= beside
            own[:-1] |= beside
        homes.setdefault(home, period)
        yield row, home, own
        step[step > max(GAP * period, 1)] = 1
        start, end = intervals.union(np.append(start, ts), np.append(end, ts + step))


def _fineness(one: tuple[int, Array]) -> tuple[bool, int, int]:
    """Files that sample more often first, and the longer of equal ones; single samples last."""
    ts = one[1]
    return len(ts) == 1, usual_step(ts), -len(ts)


def _with_samples(trace: Trace, owner: Array, kept: Array) -> Trace:
    """The trace with some of its samples, of other series, and series that have some."""
    lost = np.setdiff1d(trace.array("series", "samples"), owner[kept])
    there = np.ones(trace.series.num_rows, np.bool_)
    there[lost] = False
    place = np.cumsum(there) - 1
    samples = arrow.take(trace.samples, kept)
    samples = arrow.replaced(samples, "series", place[owner[kept]].astype(np.int32))
    order = np.lexsort((arrow.numbers(samples["ts"]), arrow.numbers(samples["series"])))
    series = arrow.take(trace.series, there)
    return replace(trace, series=series, samples=arrow.take(samples, order))
