"""Lanes of the trace out of values by row: names, steady values, shares of residencies."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters.telemetry_limits import note_impossible
from chopper_interop.converters.telemetry_names import SHARE, Kind, unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chopper_interop.build import TraceBuilder
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.telemetry_values import Reading
    from chopper_interop.issues import IssueLog

RESIDENCY = "throttle residency "
"""Begins the name of a residency that no share could be made of: fewer than two samples."""
_ROUNDING = 1
"""Intervals by which a residency may be ahead of its counter: both are rounded to whole ones."""
NODE = -1
"""`rank` of series that are the node's until a job says whose GPU it is."""


@dataclass(frozen=True)
class Group:
    """Rows of one GPU, or of one partition of it, in the order of time.

    Parameters
    ----------
    gpu
        Its index.
    suffix
        What to add to the names of lanes: the partition, if the GPU has several.
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
    """What one group has of a reading."""

    reading: Reading
    time: Array
    value: Array


@dataclass
class Lanes:
    """Makes series and samples of readings.

    Parameters
    ----------
    builder
        Where they go.
    groups
        Rows by GPU.
    source
        Tool that measured.
    uncertainty_ns
        How far the times may be off.
    issues
        Where residencies that went back are counted.
    """

    builder: TraceBuilder
    groups: list[Group]
    source: str
    uncertainty_ns: int
    issues: IssueLog
    samples: Counter[str] = field(default_factory=Counter)
    """Samples by name of lane."""
    _taken: set[tuple[int, str]] = field(default_factory=set)

    def add(self, readings: Iterable[Reading]) -> None:
        """Add all readings; those of one base name must come together."""
        counter: Reading | None = None
        for group_of_base in _by_base(readings):
            kind = group_of_base[0].name.lane.kind
            if kind is Kind.TICKS:
                counter = group_of_base[0]
            for group in self.groups:
                if kind is Kind.RESIDENCY:
                    self._add_residencies(group, group_of_base, counter)
                else:
                    self._add_values(group, group_of_base)

    def _add_values(self, group: Group, readings: list[Reading]) -> None:
        lanes = [lane for reading in readings if (lane := _known(group, reading)) is not None]
        instances: dict[str, list[_Lane]] = defaultdict(list)
        for lane in lanes:
            instances[lane.reading.name.lane.part].append(lane)
        for part in instances.values():
            for name, lane in self._named(group, part):
                time, value = lane.time, lane.value
                if lane.reading.name.lane.kind is Kind.STEADY:
                    changes = np.concatenate([[True], value[1:] != value[:-1]])
                    time, value = time[changes], value[changes]
                self._emit(group, name, lane.reading.unit, time, value)

    def _named(self, group: Group, lanes: list[_Lane]) -> Iterator[tuple[str, _Lane]]:
        """Names of a lane's instances: without the number if there is one, or all are equal."""
        first = lanes[0]
        base = first.reading.name.base
        if all(lane.reading.full == lane.reading.name.full for lane in lanes):
            free = (group.gpu, base + group.suffix) not in self._taken
            if free and (len(lanes) == 1 or _all_equal(lanes)):
                yield base, first
                return
        for lane in lanes:
            yield lane.reading.full, lane

    def _add_residencies(
        self, group: Group, readings: list[Reading], counter: Reading | None
    ) -> None:
        """Add the share of each interval, at the interval's beginning."""
        for reading in readings:
            lane = _known(group, reading)
            if lane is None:
                continue
            shares = None if counter is None else self._shares(group, reading, counter)
            if shares is None:
                name = RESIDENCY + reading.full.removeprefix(SHARE)
                self._emit(group, name, "", lane.time, lane.value)
            else:
                self._emit(group, reading.full, reading.unit, *shares)

    def _shares(
        self, group: Group, reading: Reading, counter: Reading
    ) -> tuple[Array, Array] | None:
        """100 % · Δresidency / Δcounter between samples; None for fewer than two of them."""
        residency, ticks = reading.value[group.row], counter.value[group.row]
        both = ~np.isnan(residency) & ~np.isnan(ticks)
        if np.count_nonzero(both) < 2:  # noqa: PLR2004 - a difference needs two
            return None
        with np.errstate(over="ignore"):  # garbled cells may hold any number
            held, all_ = np.diff(residency[both]), np.diff(ticks[both])
        good = np.isfinite(all_) & (all_ > 0) & (held >= 0) & (held <= all_ + _ROUNDING)
        same = (all_ == 0) & (held == 0)  # the firmware's table was read twice
        self.issues.add(faults.RESIDENCY, np.count_nonzero(~good & ~same), reading.key)
        with np.errstate(over="ignore"):
            shares = np.minimum(100.0 * held[good] / all_[good], 100.0)
        return group.time[both][:-1][good], shares

    def _emit(self, group: Group, name: str, unit: str, time: Array, value: Array) -> None:
        name += group.suffix
        self._taken.add((group.gpu, name))
        if time.size:
            note_impossible(name, unit, value, self.issues)
            series = self.builder.series(
                NODE,
                name,
                unit,
                self.source,
                device=group.gpu,
                uncertainty_ns=self.uncertainty_ns,
            )
            self.builder.samples(series, time, value)
            self.samples[name.removesuffix(group.suffix)] += len(time)


def groups_of(gpu: Array, xcp: Array, time: Array) -> list[Group]:
    """Rows by GPU and, where a GPU has several, by partition.

    Parameters
    ----------
    gpu, xcp
        GPU and partition of each row; a partition of -1 if none is told.
    time
        When each was taken, nanoseconds.
    """
    part = np.where(np.isin(gpu, _with_several(gpu, xcp)), xcp, -1)
    order = np.lexsort((time, part, gpu))
    keys = np.stack([gpu[order], part[order]])
    begins = np.flatnonzero(np.diff(keys, axis=1).any(axis=0)) + 1
    found = []
    for row in np.split(order, begins) if len(order) else []:
        which = int(part[row[0]])
        suffix = f" XCP {which}" if which >= 0 else ""
        found.append(Group(int(gpu[row[0]]), suffix, row, time[row]))
    return found


def _with_several(gpu: Array, xcp: Array) -> Array:
    """GPUs of which rows name more than one partition."""
    if not len(xcp) or (xcp == xcp[0]).all():
        return np.zeros(0, gpu.dtype)
    pairs = np.unique(np.stack([gpu, xcp]), axis=1)[0]
    gpus, parts = np.unique(pairs, return_counts=True)
    return np.asarray(gpus[parts > 1])


def ordered(readings: list[Reading]) -> list[Reading]:
    """Readings of one base name together, counters before what is a share of them.

    Two columns that mean the same lane become one; where both have a value, the second keeps the
    name of its column.
    """
    merged: dict[tuple[str, str], Reading] = {}
    for reading in readings:
        _merge(merged, reading)
    bases: dict[str, list[Reading]] = defaultdict(list)
    for reading in merged.values():
        bases[reading.name.base].append(reading)
    counters_first = sorted(bases.values(), key=lambda b: b[0].name.lane.kind is not Kind.TICKS)
    return [reading for base in counters_first for reading in base]


def _merge(merged: dict[tuple[str, str], Reading], reading: Reading) -> None:
    key = (reading.full, reading.unit)
    known = merged.get(key)
    if known is None:
        merged[key] = reading
        return
    clash = ~np.isnan(known.value) & ~np.isnan(reading.value)
    if clash.any():
        own = unknown(reading.key)
        full = own.full + reading.full.removeprefix(reading.name.full)
        merged[full, reading.unit] = replace(reading, name=own, full=full)
        return
    value = np.where(np.isnan(known.value), reading.value, known.value)
    merged[key] = replace(known, value=value)


def _by_base(readings: Iterable[Reading]) -> Iterator[list[Reading]]:
    for _, together in groupby(readings, key=lambda r: r.name.base):
        yield list(together)


def _known(group: Group, reading: Reading) -> _Lane | None:
    value = reading.value[group.row]
    known = ~np.isnan(value)
    return _Lane(reading, group.time[known], value[known]) if known.any() else None


def _all_equal(lanes: list[_Lane]) -> bool:
    if lanes[0].reading.name.lane.kind is not Kind.STEADY:
        return False
    return all(
        np.array_equal(lane.time, lanes[0].time) and np.array_equal(lane.value, lanes[0].value)
        for lane in lanes[1:]
    )
