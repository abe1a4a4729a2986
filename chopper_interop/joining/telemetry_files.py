"""Telemetry of the same GPUs in several files: GPUs of each machine, and each time once.

A number of a GPU is the same GPU in all files unless they contradict each other: by its names, or
by values measured at the same time. Of the tasks of one log, which sampled alike, means decide that are much closer
than those of other files; labels that are names of hosts are different machines. Of one GPU, the file of a tool
with the shortest period is used for each time, the others where it has no samples; a copy adds nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop.annotate.telemetry.quantity_series import POWER, TEMPERATURE, WINDOW
from chopper_interop.annotate.telemetry.samples import GAP, usual_step
from chopper_interop.arrays import Array, arrow, gather, intervals
from chopper_interop.errors import AmbiguousRunError
from chopper_interop.grouping import grouped
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.gpus import find_gpu
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.quantity_series import SeriesPattern
    from chopper_interop.joining.fragment import Fragment
    from chopper_interop.schemas.meta import Device

    Points = tuple[Array, Array]
    """Times on the trace's clock, and values."""
    Key = tuple[Any, ...]
    """Rank, device, name, unit and source of a series."""
    Recorded = dict[Key, list["_Recording"]]

RECORDED_TWICE = Fault.info(
    "telemetry-recorded-twice",
    "Samples of a GPU for times that a finer file of the same tool covers, or a copy, were left out.",
)
MACHINES = Fault.info(
    "telemetry-of-several-machines",
    "GPUs of one number for which files have different values at one time, or which a log labels with "
    "other hosts, are of several machines: those of later ones were numbered on from those of the first.",
)
ASSUMED_SAME = Fault.loss(
    "telemetry-assumed-same-gpu",
    "Samples of GPUs of no rank at times that a finer file of the same tool covers were left out: "
    "nothing shows that the files are of several machines. Read these one by one if they are.",
)
_POWER_TOLERANCE = 0.1
"""Mean powers of two files that measured the same differ by less, as a share of the larger; chosen:
sampling at other times moves means by some percent, and other work by more."""
_POWER_ERRORS = 3
"""They also differ by less than so many standard errors of the mean: 99.7 % of normal ones do."""
_BLOCKS, _MIN_IN_BLOCK = 8, 3
"""Parts of equal length of what two tasks of a log recorded, and samples of each at least. Chosen: means of eight
parts show how much the mean differs by, whatever neighbouring samples have in common."""
_BLOCK_ERRORS = 8
"""Means differ by more standard errors of the eight: Student's t with 7 degrees of freedom exceeds it once in
10,000 pairs."""
_TASK_POWER_TOLERANCE = 0.002
"""Means of one sensor that two tasks read differ by less, as a share. Chosen: a twentieth of what is left to files of
other rates, and a third of what boards under one limit of power differ by at least (1 of 700 W, in steps of 0.5 W)."""
_TASK_TEMPERATURE_TOLERANCE_K = 0.5
"""The same for temperatures: half a step of whole degrees."""
_TEMPERATURE_TOLERANCE_K = 2.0
"""Temperatures of one GPU by two files differ by less: whole degrees, read at other times."""
_CLOCK_DIFFERENCE_NS = 10**9
"""Clocks of files on whole seconds differ by less."""
_MAX_PERIOD_RATIO = 2
"""Files whose periods differ by no more can be one series; chosen: a period of which the other file
misses every second sample."""
_MAX_POWER_RATIO = 2
"""No GPU draws so many times its board power; chosen: short excursions reach less."""
_TASK = re.compile(r"(.*)[\\/]task ([^\\/]+)")
"""Log and label of a task that `chopper_interop.io.task_logs` took from a log."""
_NUMBERED = re.compile(r"(?:(?:local[-_.]?)?rank|task|proc(?:ess)?|gpu)?[-_.]?\d+", re.IGNORECASE)
"""Labels that number tasks, of which several may run on one host; others are names of hosts."""
_MEASURED = tuple(t for q in (POWER, TEMPERATURE) for t in q.patterns if not t.is_window)


def refuse_other_machines(fragments: Sequence[Fragment]) -> None:
    """Refuse files of telemetry alone whose GPUs of one number cannot be the same.

    Raises
    ------
    AmbiguousRunError
        UUID, PCI address or product of a number differ, or it draws more than that product can.
    """
    named: dict[tuple[str, int], tuple[Device, Fragment]] = {}
    for fragment in fragments:
        for device in fragment.trace.meta.devices:
            key = (device.source, device.device)  # tools may count in other orders
            before, other = named.get(key, (device, fragment))
            if _contradict_by_name(before, device):
                _refuse(f"{_label(before)} by {other.files.label}", device, fragment)
            merged = _merged_names(before, device)
            named[key] = merged, other if merged == before else fragment
    for fragment in fragments:
        peaks = dict(_peak_powers(fragment.trace))
        for device, other in named.values():
            product = find_gpu(device.name, device.arch, device.cus)
            watts = peaks.get(device.device, 0.0)
            if product and product.power_w and watts > _MAX_POWER_RATIO * product.power_w:
                _refuse(f"drawing {watts:,.0f} W by {fragment.files.label}", device, other)


def _contradict_by_name(a: Device, b: Device) -> bool:
    """True if products, UUIDs, PCI addresses or hosts of two devices differ."""
    products = (find_gpu(d.name, d.arch, d.cus) for d in (a, b))
    pairs = [tuple(p.name if p else "" for p in products)]
    pairs += [(getattr(a, f), getattr(b, f)) for f in ("uuid", "pci", "host")]
    return any(left and right and left != right for left, right in pairs)


def _merged_names(device: Device, other: Device) -> Device:
    """The device with the names of the other where it lacks them."""
    missing = [f for f in ("uuid", "pci", "host", "name", "arch") if not getattr(device, f)]
    return replace(device, **{f: getattr(other, f) for f in missing})


def _label(device: Device) -> str:
    return device.name or device.uuid or device.pci or device.host


def _refuse(first: str, device: Device, fragment: Fragment) -> None:
    raise AmbiguousRunError(
        f"GPU {device.device} is {first}, and {_label(device)} by {fragment.files.label}",
        hint="these are several machines or runs: give the files of one of them",
    )


def _peak_powers(trace: Trace) -> Iterator[tuple[int, float]]:
    """Device and highest power in W of each series of power."""
    for _, series, (_, value) in _series(trace, lambda series: _kind_of_power(series) is not None):
        kind = _kind_of_power(series)
        valid = value[(value >= 0) & (value <= POWER.max_value)]
        if kind and valid.size and series["unit"] in kind.units:
            yield series["device"], float(valid.max()) * kind.units[series["unit"]]


def _kind_of_power(series: dict[str, Any]) -> SeriesPattern | None:
    return next((t for t in POWER.patterns if t.match(series["name"]) and t.is_instantaneous), None)


def _series(
    trace: Trace, wanted: Callable[[dict[str, Any]], bool] = lambda _: True
) -> Iterator[tuple[int, dict[str, Any], Points]]:
    """Row, description and samples of each series that is wanted.

    Samples sorted by series are contiguous for each, between bounds that bisection gives.
    """
    owner, ts, value = (trace.array(c, "samples") for c in ("series", "ts", "value"))
    if (owner[1:] < owner[:-1]).any():  # unlike what most readers make
        order = np.argsort(owner, kind="stable")
        owner, ts, value = owner[order], ts[order], value[order]
    bounds = np.searchsorted(owner, np.arange(trace.series.num_rows + 1, dtype=owner.dtype))
    for row, series in enumerate(trace.series.to_pylist()):
        if wanted(series):
            samples = slice(bounds[row], bounds[row + 1])
            yield row, series, (ts[samples] + trace.meta.origin_ns, value[samples])


class _Recording(NamedTuple):
    """Samples of one quantity of a GPU in one file, from the first to the last."""

    first: int
    last: int
    points: Points
    log: str = ""
    label: str = ""

    def is_other_task_than(self, other: _Recording) -> bool:
        """True if both are of tasks of one log."""
        return bool(self.log) and self.log == other.log and self.label != other.label


def count_contradictions(parts: Sequence[Trace]) -> int:
    """Number of series of a rank's GPU that contradict another file of the same tool."""
    count = 0
    earlier: Recorded = {}
    for part in parts:
        recordings = _recordings(part, lambda series: series["rank"] >= 0)
        count += _count_contradicting(recordings, earlier)
        earlier = _with_recordings(earlier, recordings)
    return count


def number_machines_apart(
    parts: Sequence[Trace], matched: Sequence[set[int]], issues: IssueLog
) -> list[Trace]:
    """Give the GPUs of no rank different numbers on each machine.

    Parameters
    ----------
    parts
        Telemetry on one clock.
    matched
        For each part the numbers of GPUs that are known to be those of ranks.
    issues
        Gets the GPUs that were given other numbers.
    """
    max_device = max(
        (int(part.array("device", "series").max(initial=-1)) for part in parts), default=-1
    )
    # that of the first file is the first, even if it contradicts itself
    machines: list[Recorded] = []
    hosts: list[dict[str, str]] = []  # of each machine: log → label
    numbered = []
    for part, devices_of_ranks in zip(parts, matched, strict=True):

        def is_free(series: dict[str, Any], known: set[int] = devices_of_ranks) -> bool:
            is_measured = any(t.match(series["name"]) for t in _MEASURED)
            is_numbered = series["device"] >= 0 and series["device"] not in known
            return is_measured and is_numbered and series["rank"] < 0

        task = _TASK.fullmatch(part.meta.sources[0].path) if part.meta.sources else None
        log, label = task.groups() if task else ("", "")
        host = label if not _NUMBERED.fullmatch(label) else ""
        recordings = [
            (key, recording._replace(log=log, label=label))
            for key, recording in _recordings(part, is_free)
        ]
        machine = next(
            (
                n
                for n, seen in enumerate(machines)
                if (not host or hosts[n].get(log, host) == host)
                and not _count_contradicting(recordings, seen)
            ),
            len(machines),
        )
        if machine == len(machines):
            machines.append({})
            hosts.append({})
        if host:
            hosts[machine][log] = host
        machines[machine] = _with_recordings(machines[machine], recordings)
        shift = machine * (max_device + 1)
        numbered.append(_renumbered(part, devices_of_ranks, shift, issues) if machine else part)
    return numbered


def _renumbered(part: Trace, devices_of_ranks: set[int], shift: int, issues: IssueLog) -> Trace:
    """The part with the numbers of its GPUs of no rank so much higher."""
    rank, device = (part.array(c, "series") for c in ("rank", "device"))
    free = (rank < 0) & (device >= 0) & ~np.isin(device, list(devices_of_ranks))
    issues.add(MACHINES, len(np.unique(device[free])), part.meta.sources[0].path)
    return replace(part, series=arrow.replace_column(part.series, "device", device + free * shift))


def _recordings(
    part: Trace, is_selected: Callable[[dict[str, Any]], bool]
) -> list[tuple[Key, _Recording]]:
    """Samples of the selected series of a file."""
    return [
        (
            tuple(series[c] for c in ("rank", "device", "name", "unit", "source")),
            _Recording(int(points[0].min()), int(points[0].max()), points),
        )
        for _, series, points in _series(part, is_selected)
        if points[0].size
    ]


def _count_contradicting(recordings: list[tuple[Key, _Recording]], earlier: Recorded) -> int:
    """Number of recordings that contradict an earlier one of the same key, of any file."""
    count = 0
    seen = dict(earlier)
    for key, recording in recordings:
        before = seen.get(key, [])
        overlapping = (
            other
            for other in before
            if other.first <= recording.last and recording.first <= other.last
        )
        count += any(_contradict(str(key[2]), recording, other) for other in overlapping)
        seen[key] = [*before, recording]
    return count


def _with_recordings(earlier: Recorded, recordings: list[tuple[Key, _Recording]]) -> Recorded:
    """Earlier recordings and further ones, by key."""
    merged = dict(earlier)
    for key, recording in recordings:
        merged[key] = [*merged.get(key, []), recording]
    return merged


def _contradict(name: str, recording: _Recording, other: _Recording) -> bool:
    """True if values of two files in the time that both cover cannot be of one GPU."""
    ts, value = recording.points
    inside = (ts >= other.first) & (ts <= other.last)
    if not inside.any():
        return False
    values = value[inside]
    others = np.interp(ts[inside], *other.points)
    if recording.is_other_task_than(other) and _are_other_sensors(name, values, others):
        return True
    difference = float(np.median(np.abs(values - others)))
    if any(t.match(name) for t in TEMPERATURE.patterns):
        return difference > _TEMPERATURE_TOLERANCE_K
    if any(t.match(name) for t in POWER.patterns if t.is_counter):
        return difference > max(_max_rise(recording.points), _max_rise(other.points))
    a, b = float(values.mean()), float(others.mean())
    scatter = float(np.std(other.points[1])) if len(values) == 1 else float(np.std(values - others))
    tolerance = _POWER_TOLERANCE * max(abs(a), abs(b))
    return abs(a - b) > tolerance + _POWER_ERRORS * scatter / len(values) ** 0.5


def _are_other_sensors(name: str, values: Array, others: Array) -> bool:
    """True if values of two tasks of a log at the same times are not of one sensor."""
    if any(t.match(name) for t in POWER.patterns if t.is_counter):
        return False
    if len(values) < _BLOCKS * _MIN_IN_BLOCK:
        return False
    means = [float(block.mean()) for block in np.array_split(values - others, _BLOCKS)]
    error = float(np.std(means, ddof=1)) / _BLOCKS**0.5
    is_temperature = any(t.match(name) for t in TEMPERATURE.patterns)
    size = max(abs(float(values.mean())), abs(float(others.mean())))
    tolerance = _TASK_TEMPERATURE_TOLERANCE_K if is_temperature else _TASK_POWER_TOLERANCE * size
    return abs(float(np.mean(means))) > tolerance + _BLOCK_ERRORS * error


def _max_rise(counter: Points) -> float:
    """Largest rise of a counter between samples, and while clocks of files differ."""
    ts, value = counter
    if len(ts) == 1:
        return 0.0
    rises = np.abs(np.diff(value))
    return float(2 * rises.max() + np.median(rises / np.diff(ts).clip(1)) * _CLOCK_DIFFERENCE_NS)


def drop_repeated_samples(trace: Trace, issues: IssueLog) -> Trace:
    """Merge the series of one quantity of a GPU that several files of one tool recorded.

    Files of which one samples much more often than the other keep series of their own.
    """
    count = Counter(tuple(series.values()) for series in trace.series.to_pylist())
    if not any(times > 1 for times in count.values()):
        return trace
    alike = grouped(
        (tuple(series.values()), (row, ts))
        for row, series, (ts, _) in _series(trace, lambda series: series["device"] >= 0)
        if ts.size
    )
    owner, rank = trace.array("series", "samples"), trace.array("rank", "series")
    new_owner, kept = owner.copy(), np.ones(len(owner), np.bool_)
    for key, series_times in alike.items():
        if len(series_times) > 1:
            is_window = any(WINDOW.fullmatch(str(part)) for part in key)
            merge = _merge_windows if is_window else _merge_samples
            for row, target, kept_of_row in merge(series_times):
                samples = slice(*np.searchsorted(owner, [row, row + 1]))
                new_owner[samples], kept[samples] = target, kept_of_row
    assumed = ~kept & (rank[owner] < 0)
    if assumed.any():
        assumed &= ~_is_copied(trace, new_owner, kept)
    issues.add(ASSUMED_SAME, np.count_nonzero(assumed))
    issues.add(RECORDED_TWICE, np.count_nonzero(~kept & ~assumed))
    if kept.all() and (new_owner == owner).all():
        return trace
    return _with_samples(trace, new_owner, kept)


def _is_copied(trace: Trace, owner: Array, kept: Array) -> Array:
    """Mark samples whose time and value another file has as well, among those kept."""
    ts, value = trace.array("ts", "samples"), trace.array("value", "samples")
    first, key = gather.distinct(owner, ts, value.view(np.int64))
    is_kept = np.zeros(len(first), np.bool_)
    is_kept[key[kept]] = True
    copied: Array = is_kept[key]
    return copied


def _merge_windows(series: list[tuple[int, Array]]) -> Iterator[tuple[int, int, Array]]:
    """Merge windows of measurements, of which those that begin at one time are the same.

    Yields for each series its row, the row that it becomes part of, and a mask of kept samples.
    """
    seen = np.zeros(0, np.int64)
    for row, ts in series:
        yield row, series[0][0], ~np.isin(ts, seen)
        seen = np.concatenate([seen, ts])


def _merge_samples(series: list[tuple[int, Array]]) -> Iterator[tuple[int, int, Array]]:
    """Merge sampled series: of each, from fine to coarse, the times that finer ones do not cover.

    `start` and `end` are the covered intervals: a sample covers the time to the next one, but for
    gaps. Yields as `_merge_windows`.
    """
    start = end = np.zeros(0, np.int64)
    period_of: dict[int, int] = {}  # row of a series that others may become part of → its period
    for row, ts in sorted(series, key=_fineness):
        period, step = usual_step(ts), np.append(np.diff(ts), 1)
        at = np.searchsorted(start, ts, "right") - 1
        kept = (at < 0) | (ts >= end[at]) if start.size else np.ones(len(ts), np.bool_)
        similar = (r for r, p in period_of.items() if 0 < period <= _MAX_PERIOD_RATIO * p)
        target = next(similar, row)
        if target == row and kept.any():  # a series of its own reaches up to where others begin
            adjacent = kept[1:] | kept[:-1]
            kept[1:] |= adjacent
            kept[:-1] |= adjacent
        period_of.setdefault(target, period)
        yield row, target, kept
        step[step > max(GAP * period, 1)] = 1
        start, end = intervals.union(np.append(start, ts), np.append(end, ts + step))


def _fineness(series: tuple[int, Array]) -> tuple[bool, int, int]:
    """Sorting key: shorter periods first, and longer series of equal ones; single samples last."""
    ts = series[1]
    return len(ts) == 1, usual_step(ts), -len(ts)


def _with_samples(trace: Trace, owner: Array, kept: Array) -> Trace:
    """The trace with the kept samples under other series, and without series that lost all."""
    emptied = np.setdiff1d(trace.array("series", "samples"), owner[kept])
    remaining = np.ones(trace.series.num_rows, np.bool_)
    remaining[emptied] = False
    new_row = np.cumsum(remaining) - 1
    samples = arrow.take(trace.samples, kept)
    samples = arrow.replace_column(samples, "series", new_row[owner[kept]].astype(np.int32))
    order = np.lexsort((arrow.to_numpy(samples["ts"]), arrow.to_numpy(samples["series"])))
    series = arrow.take(trace.series, remaining)
    return replace(trace, series=series, samples=arrow.take(samples, order))
