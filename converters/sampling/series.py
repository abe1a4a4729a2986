"""Series of the trace from values by row: names of lanes, changes alone, shares of residencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.checks import note_impossible_values
from chopper_interop.converters.sampling.lane_names import SHARE, Kind, name_by_key
from chopper_interop.grouping import by_key
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.sampling.values import LaneValues

RESIDENCY = "throttle residency "
"""Prefix of the lane of a residency with fewer than two samples, which have no share of time."""
_ROUNDING = 1
"""Intervals by which a residency may exceed its counter: both are rounded to whole ones."""
_MAX_EXCESS, _MAX_LATE = 2, 100
"""Times the counter, and intervals of about 1 ms, up to which a residency may be ahead of it. Chosen:
the driver reads the two one after the other, up to 100 ms apart; beyond, one of them was reset."""
NODE = -1
"""`rank` of series that belong to the node until the ranks of its GPUs are known."""


@dataclass(frozen=True)
class GpuRows:
    """Rows of one GPU, or of one part of it, in the order of time.

    Parameters
    ----------
    gpu
        Its index; -1 for what is no GPU.
    suffix
        Suffix of the names of its lanes: the part.
    row
        Its rows.
    time
        When they were taken, nanoseconds.
    """

    gpu: int
    suffix: str
    row: Array
    time: Array


@dataclass(frozen=True)
class _Lane:
    """Known values of one group in a reading."""

    reading: LaneValues
    time: Array
    value: Array
    row: Array | None = None
    """Which values of the reading these are, where they are all of the group."""


@dataclass
class LaneWriter:
    """Writes readings as series and samples.

    Parameters
    ----------
    builder
        Trace that gets them.
    groups
        Rows by GPU and part.
    source
        Tool that measured.
    uncertainty_ns
        Largest error of the times.
    issues
        Where unknown quantities and residencies that went back are counted.
    """

    builder: TraceBuilder
    groups: list[GpuRows]
    source: str
    uncertainty_ns: int
    issues: IssueLog
    samples: Counter[str] = field(default_factory=Counter)
    """Number of samples by name of lane."""
    _used_names: set[tuple[int, str]] = field(default_factory=set)

    def add(self, readings: Iterable[LaneValues]) -> None:
        """Add all readings; those of one base name must be adjacent."""
        counter: LaneValues | None = None
        for _, same_base in groupby(readings, key=lambda r: r.name.base):
            instances = list(same_base)
            kind = instances[0].name.lane.kind
            self._note_unknown_quantities(instances)
            if kind is Kind.TICKS:
                counter = instances[0]
            for group in self.groups:
                if kind is Kind.RESIDENCY:
                    self._add_residencies(group, instances, counter)
                else:
                    self._add_values(group, instances)

    def _note_unknown_quantities(self, readings: list[LaneValues]) -> None:
        for reading in readings:
            has_unit = reading.unit or reading.name.lane.unit is not None
            if not has_unit and not np.isnan(reading.value).all():
                self.issues.add(faults.QUANTITY, 1, reading.key)

    def _add_values(self, group: GpuRows, readings: list[LaneValues]) -> None:
        lanes = [
            lane for reading in readings if (lane := _known_values(group, reading)) is not None
        ]
        for same_part in by_key(lanes, lambda lane: lane.reading.name.lane.part).values():
            for name, lane in self._named(group, same_part):
                time, value, row = lane.time, lane.value, lane.row
                if lane.reading.name.lane.kind is Kind.STEADY:
                    changes = np.concatenate([[True], value[1:] != value[:-1]])
                    time, value, row = time[changes], value[changes], None
                self._emit(group, name, lane.reading, time, value, row)

    def _named(self, group: GpuRows, lanes: list[_Lane]) -> Iterator[tuple[str, _Lane]]:
        """Names of a lane's instances: without number if there is only one, or if all are equal."""
        first = lanes[0]
        base = first.reading.name.base
        if all(lane.reading.full == lane.reading.name.full for lane in lanes):
            is_free = (group.gpu, base + group.suffix) not in self._used_names
            if is_free and (len(lanes) == 1 or _all_equal(lanes)):
                yield base, first
                return
        for lane in lanes:
            yield lane.reading.full, lane

    def _add_residencies(
        self, group: GpuRows, readings: list[LaneValues], counter: LaneValues | None
    ) -> None:
        """Add the share of each interval between samples, at the interval's start."""
        for reading in readings:
            lane = _known_values(group, reading)
            if lane is None:
                continue
            shares = None if counter is None else self._shares(group, reading, counter)
            if shares is None:
                name = RESIDENCY + reading.full.removeprefix(SHARE)
                self._emit(group, name, replace(reading, unit=""), lane.time, lane.value)
            else:
                self._emit(group, reading.full, reading, *shares)

    def _shares(
        self, group: GpuRows, reading: LaneValues, counter: LaneValues
    ) -> tuple[Array, Array] | None:
        """Return 100 % · Δresidency / Δcounter between samples; None for fewer than two samples."""
        residency, ticks = reading.value[group.row], counter.value[group.row]
        both = ~np.isnan(residency) & ~np.isnan(ticks)
        if np.count_nonzero(both) < 2:  # noqa: PLR2004 - a difference needs two
            return None
        with np.errstate(over="ignore"):  # garbled cells may hold any number
            held, elapsed = np.diff(residency[both]), np.diff(ticks[both])
            limit = elapsed * _MAX_EXCESS + _MAX_LATE
        good = np.isfinite(elapsed) & (elapsed > 0) & (held >= 0) & (held <= limit)
        same = (elapsed == 0) & (held == 0)  # the firmware's table was read twice
        self.issues.add(faults.RESIDENCY, np.count_nonzero(~good & ~same), reading.key)
        above = np.count_nonzero(good & (held > elapsed + _ROUNDING))
        self.issues.add(faults.RESIDENCY_ABOVE, above, reading.key)
        with np.errstate(over="ignore", invalid="ignore"):
            held, elapsed = _within_counter(held[good], elapsed[good])
            shares = np.minimum(100.0 * held / elapsed, 100.0)
        return group.time[both][:-1][good], shares

    def _emit(  # columns of one table
        self, group: GpuRows, name: str, reading: LaneValues, time: Array, value: Array,
        row: Array | None = None,
    ) -> None:  # fmt: skip
        """Add samples; of values that are all those of rows of the reading, it is these that the builder keeps."""
        unit = reading.unit
        name += group.suffix
        self._used_names.add((group.gpu, name))
        if time.size:
            note_impossible_values(name, unit, value, self.issues)
            series = self.builder.series(
                NODE,
                name,
                unit,
                self.source,
                device=group.gpu,
                uncertainty_ns=self.uncertainty_ns,
            )
            values = value if row is None else reading.value
            self.builder.samples(series, time, values, row)
            self.samples[name.removesuffix(group.suffix)] += len(time)


def _within_counter(held: Array, elapsed: Array) -> tuple[Array, Array]:
    """Growths of a residency of which none exceeds that of its counter: what one has too much is of the next.

    A residency that is read later than its counter by changing times grows too much in one interval and too
    little in another. What is too much in all, at any time, is less than an interval then; else it is not of that
    kind, and stays where it is.
    """
    #   ahead     by how much the residency outgrew the counter since the first sample
    #   own + c   the largest sum that never outgrows the counter between two samples: of the counter and the least `ahead` so far
    ahead = np.cumsum(held - elapsed)
    least = np.minimum.accumulate(np.minimum(ahead, 0))
    if not ahead.size or (ahead - least).max() > elapsed.max():
        return held, elapsed
    return np.maximum(elapsed + np.diff(least, prepend=0.0), 0.0), elapsed  # sums are rounded


def groups_of(
    gpu: Array, part: Array, time: Array, part_names: Sequence[str] | None = None
) -> list[GpuRows]:
    """Group rows by GPU and part, what is no GPU last.

    Parameters
    ----------
    gpu
        GPU of each row; -1 for what is no GPU.
    part
        Part of the GPU; -1 for all of it.
    time
        When each row was taken, nanoseconds.
    part_names
        Names of parts. Without them parts are partitions, named where a GPU has several.
    """
    if part_names is None and (several := _with_several(gpu, part)).size:
        part = np.where(np.isin(gpu, several), part, -1)
    elif part_names is None:
        part = np.broadcast_to(-1, len(part))
    first, code = gather.distinct(gpu, part)
    place = np.empty(len(first), np.min_scalar_type(len(first)))
    place[np.lexsort((part[first], gpu[first], gpu[first] < 0))] = np.arange(len(first))
    place = place[code]
    order = np.argsort(place, kind="stable")  # of small numbers, without comparing them
    begins = np.cumsum(np.bincount(place))[:-1]
    rows = np.split(order, begins) if len(order) else []
    times = [time[row] for row in rows]
    if any((of_group[1:] < of_group[:-1]).any() for of_group in times):
        rows = np.split(np.lexsort((time, place)), begins)
        times = [time[row] for row in rows]
    groups = []
    for row, of_group in zip(rows, times, strict=True):
        number = int(part[row[0]])
        suffix = ""
        if number >= 0:
            suffix = f" XCP {number}" if part_names is None else f" {part_names[number]}"
        groups.append(GpuRows(int(gpu[row[0]]), suffix, row, of_group))
    return groups


def _with_several(gpu: Array, part: Array) -> Array:
    """GPUs of which rows name more than one part."""
    if not len(part) or (part == part[0]).all():
        return np.zeros(0, gpu.dtype)
    pairs = np.unique(np.stack([gpu, part]), axis=1)[0]
    gpus, parts = np.unique(pairs, return_counts=True)
    return np.asarray(gpus[parts > 1])


def with_preferred(
    readings: list[LaneValues], preferred: Mapping[str, Sequence[str]]
) -> list[LaneValues]:
    """Rename the best reading for each lane to it; lanes that are there already stay."""
    names = {r.full for r in readings}
    renamed = {
        best: lane
        for lane, order in preferred.items()
        if lane not in names
        for best in [name for name in order if name in names][:1]
    }
    return [
        replace(r, full=name, name=replace(r.name, base=name, full=name))
        if (name := renamed.get(r.full))
        else r
        for r in readings
    ]


def ordered(readings: list[LaneValues]) -> list[LaneValues]:
    """Sort readings: those of one base name are adjacent, counters precede shares of them.

    Two columns of the same lane become one; where both have a value, the second keeps the name of
    its column.
    """
    merged: dict[tuple[str, str], LaneValues] = {}
    for reading in readings:
        _merge(merged, reading)
    bases = by_key(merged.values(), lambda reading: reading.name.base)
    counters_first = sorted(bases.values(), key=lambda b: b[0].name.lane.kind is not Kind.TICKS)
    return [reading for base in counters_first for reading in base]


def _merge(merged: dict[tuple[str, str], LaneValues], reading: LaneValues) -> None:
    key = (reading.full, reading.unit)
    known = merged.get(key)
    if known is None:
        merged[key] = reading
        return
    clash = ~np.isnan(known.value) & ~np.isnan(reading.value)
    if clash.any():
        by_key = name_by_key(reading.key, reading.unit)
        full = by_key.full + reading.full.removeprefix(reading.name.full)
        merged[full, reading.unit] = replace(reading, name=by_key, full=full)
        return
    value = np.where(np.isnan(known.value), reading.value, known.value)
    merged[key] = replace(known, value=value)


def _known_values(group: GpuRows, reading: LaneValues) -> _Lane | None:
    value = reading.value[group.row]
    known = ~np.isnan(value)
    if known.all():
        return _Lane(reading, group.time, value, group.row)
    return _Lane(reading, group.time[known], value[known]) if known.any() else None


def _all_equal(lanes: list[_Lane]) -> bool:
    if lanes[0].reading.name.lane.kind is not Kind.STEADY:
        return False
    return all(
        np.array_equal(lane.time, lanes[0].time) and np.array_equal(lane.value, lanes[0].value)
        for lane in lanes[1:]
    )
