"""Energy of GPUs: power integrated over time, and shared among the work that ran.

The power of a GPU is shared equally, at every time, among the work that runs on it; what it draws
while nothing runs is its idle energy. So the energies of all work and the idle energy add up to
what the GPU drew. Of several sources of its power the finest counts wherever it is known, and the
next one elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.telemetry import lines
from chopper_interop.annotate.telemetry.quantity_series import POWER
from chopper_interop.annotate.telemetry.samples import Samples, sample_statistics
from chopper_interop.arrays import Array, intervals
from chopper_interop.arrays.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.gpus import Gpu
    from chopper_interop.annotate.telemetry.source_reader import Source
    from chopper_interop.arrays.intervals import Intervals

_MAX_PERIOD_RATIO = 1.5
"""A counter counts as fine as power if its period is at most this many periods of power. Chosen:
between equal periods, with jitter, and every second sample."""
_MAX_TIME_ERROR = 0.1
"""A counter gives power only if its times are known to this share of its period: the error of a
rate is about as large."""
_MAX_ENERGY_RATIO = 1.5
"""A counter and power whose energies over all the time differ by more do not measure the same
thing. Chosen: far beyond the errors of sensors, and below the factor 2 of a module of two dies."""


@dataclass(frozen=True)
class EnergyShares:
    """Energy of a GPU over a window, joules.

    Parameters
    ----------
    of_each
        Energy of each node; NaN where power is not known for all of its time.
    total
        Energy that the GPU drew in the window while its power is known.
    idle
        Part of it while nothing ran.
    cut
        Part of it that belongs to each node with power known for some of its time only; else 0.
    covered_by_source
        Time for which each source of its power counts, nanoseconds.
    """

    of_each: Array
    total: float
    idle: float
    cut: Array
    covered_by_source: tuple[int, ...]

    @property
    def covered_ns(self) -> int:
        """Time for which its power is known."""
        return sum(self.covered_by_source)


def power_sources(gpu: Gpu) -> list[tuple[Source, Samples]]:
    """Sources of a GPU's power, the best first, each with the samples that no better one covers."""
    return _with_own_time(_sources(gpu))


def instantaneous_sources(gpu: Gpu) -> list[tuple[Source, Samples]]:
    """Sources that sample power itself, as of `power_sources` if there were no counters."""
    return _with_own_time([(s, part) for s, part in _sources(gpu) if s.pattern.is_instantaneous])


def _sources(gpu: Gpu) -> list[tuple[Source, Samples]]:
    return [(s, samples) for s in gpu.sources.get(POWER.name, ()) for _, samples in s.samples]


def _with_own_time(sources: list[tuple[Source, Samples]]) -> list[tuple[Source, Samples]]:
    parts = without_overlap(samples for _, samples in sources)
    return [(s, part) for (s, _), part in zip(sources, parts, strict=True) if part is not None]


def energy_sources(gpu: Gpu) -> list[tuple[Source, Samples]]:
    """Sources of a GPU's power for its energy, as of `power_sources`, with counters preferred.

    Sampled power is filtered and late, and is a mean of what was drawn before its sample; an
    energy counter has all of it. The counter counts wherever it is as fine as the samples of power
    of the same tool, its times are known well enough for a rate, and the two do not contradict
    each other.
    """
    sources_of_power = gpu.sources.get(POWER.name, ())
    sampled = {s.tool: s for s in reversed(sources_of_power) if s.pattern.is_instantaneous}
    sources = _sources(gpu)
    is_preferred = [
        s.pattern.is_counter and s.tool in sampled and _is_better(samples, sampled[s.tool])
        for s, samples in sources
    ]
    order = sorted(range(len(sources)), key=lambda i: not is_preferred[i])
    return _with_own_time([sources[i] for i in order])


def _is_better(counter: Samples, sampled: Source) -> bool:
    """True if a counter gives energy better than the power that the same tool samples."""
    power = sampled.samples[0][1]
    if counter.period_ns > _MAX_PERIOD_RATIO * power.period_ns:
        return False
    if 2 * counter.uncertainty_ns > _MAX_TIME_ERROR * counter.period_ns:
        return False
    window = np.array([counter.ts[:1], counter.ts[-1:]])
    (counter_joules,), (counter_ns,) = energy_drawn([counter], *window)
    (power_joules,), (power_ns,) = energy_drawn([power], *window)
    if not counter_ns or not power_ns or power_joules <= 0:
        return False
    ratio = (counter_joules / counter_ns) / (power_joules / power_ns)
    return bool(1 / _MAX_ENERGY_RATIO < ratio < _MAX_ENERGY_RATIO)


def share_energy(
    powers: Sequence[Samples], start: Array, end: Array, window: tuple[int, int] | None = None
) -> EnergyShares:
    """Share the energy of a GPU among the nodes that ran on it.

    Parameters
    ----------
    powers
        Samples of its power, watts, of intervals of time that do not overlap.
    start, end
        Times of the nodes, nanoseconds.
    window
        Begin and end of the time that counts; by default from the first start to the last end.
        The energy of nodes that reach beyond it is unknown.
    """
    if not len(start) and window is None:
        return EnergyShares(np.zeros(0), 0.0, 0.0, np.zeros(0), (0,) * len(powers))
    start = np.array(start, np.int64)
    end = np.maximum(np.array(end, np.int64), start)
    low, high = window or (int(start.min()), int(end.max()))
    by_start, by_end = np.argsort(start, kind="stable"), np.argsort(end, kind="stable")
    of_each, covered = np.zeros(len(start)), np.zeros(len(start), np.int64)
    total, idle, known = 0.0, 0.0, []
    is_sampled = end > start  # or, of nodes without duration, power is known at their time
    for power in powers:
        part, time = np.zeros(len(start)), np.full(len(start), -1, np.int64)
        sums = _share_sweep(
            power.ts, power.value, power.unknown, power.is_linear, start, end, by_start, by_end,
            np.int64(low), np.int64(high), part, time,
        )  # fmt: skip
        of_each += part
        covered += time  # stays below 0 for nodes that reach beyond the window
        total, idle = total + sums[0], idle + sums[1]
        known.append(int(sums[2]))
        last = np.clip(np.searchsorted(power.ts, start, "right") - 1, 0, None)
        at_sample = start == power.ts[last]
        is_sampled |= (start >= power.ts[0]) & (at_sample | ~power.unknown[last])
    complete = (covered == end - start) & is_sampled
    cut = np.where(complete, 0.0, of_each)
    of_each[~complete] = np.nan
    return EnergyShares(of_each, total * 1e-9, idle * 1e-9, cut, tuple(known))


def energy_drawn(powers: Sequence[Samples], start: Array, end: Array) -> tuple[Array, Array]:
    """Energy that a GPU drew in each of some windows, whatever ran.

    Parameters
    ----------
    powers
        As of `share_energy`.
    start, end
        The windows, nanoseconds.

    Returns
    -------
    joules, covered_ns
        Energy while its power is known, and the length of that time.
    """
    watt_ns, covered = lines.from_samples(powers).integrals(start, end)
    return watt_ns * 1e-9, covered


def peak_power(powers: Sequence[Samples], start: int, end: int) -> float:
    """Highest known power in a window, watts; NaN if none is known."""
    edges = np.array([start, end])
    values = [power.value[(power.ts >= start) & (power.ts <= end)] for power in powers]
    values += [sample_statistics(power, edges, edges).max for power in powers]
    return float(np.fmax.reduce(np.concatenate(values)))


def counter_rise(counters: Sequence[Samples], start: Array, end: Array) -> float | None:
    """Rise of an energy counter in all of some windows, joules; None if it does not cover them.

    Parameters
    ----------
    counters
        Its samples, of one capture or several; the count changes linearly between them.
    start, end
        The windows, nanoseconds.
    """
    count = lines.from_samples(part for part in without_overlap(counters) if part is not None)
    count = count.where(count.last >= count.first)  # otherwise it was reset
    rate = (count.last - count.first) / (count.end - count.start)
    rise, known = replace(count, first=rate, last=rate).integrals(start, end)
    return float(rise.sum()) if (known == end - start).all() else None


def counter_step(counters: Sequence[Samples], times: Array) -> float:
    """Rise of a counter across some times, from one of its values to the next, joules.

    Where the energy up to a time lies between the two values is not known, so `counter_rise` may
    be wrong by as much. Of several captures the one with the smallest step counts.
    """
    steps = [_step_across(counter, times) for counter in counters]
    return float(np.min(steps, axis=0).sum())


def _step_across(counter: Samples, times: Array) -> Array:
    """Rise of one capture's counter across each time, joules; infinite at times that it does not cover."""
    new = np.append([True], np.diff(counter.value) > 0)  # it was updated
    ts, value = counter.ts[new], counter.value[new]
    last = max(len(ts) - 1, 0)
    before = np.clip(np.searchsorted(ts, times, "left") - 1, 0, last)
    after = np.clip(np.searchsorted(ts, times, "right"), 0, last)
    inside = (times >= counter.ts[0]) & (times <= counter.ts[-1])
    return np.where(inside, value[after] - value[before], np.inf)


@jit  # how many nodes share the power changes at every start and end: one ordered sweep
def _share_sweep(  # noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917 # one sweep over columns
    ts: Array,
    value: Array,
    unknown: Array,
    linear: bool,  # noqa: FBT001
    start: Array,
    end: Array,
    by_start: Array,
    by_end: Array,
    low: int,
    high: int,
    of_each: Array,
    covered: Array,
) -> tuple[float, float, int]:
    """Sweep over starts, ends and samples; return total and idle W ns, and the known time.

    Each node's energy is the difference of the energy per running node so far, at its end and at
    its start. Kahan-style compensation carries the rounding error of that sum, as nodes are short
    against the window.

    ::

        running nodes    1     2     1        per_node grows by power * time / running
                      |-----|=====|-----|
    """
    count, samples = len(start), len(ts)
    per_node, error = 0.0, 0.0  # energy per running node so far, W ns: a sum and its error
    total, idle, known = 0.0, 0.0, np.int64(0)
    running, i, j = 0, 0, 0
    now = low
    k = np.searchsorted(ts, now, "right") - 1
    error_at_start = np.empty(count)
    while True:
        while i < count and start[by_start[i]] <= now:
            row = by_start[i]
            of_each[row], error_at_start[row], covered[row] = per_node, error, known
            running += 1
            i += 1
        while j < i and j < count and end[by_end[j]] <= now:
            row = by_end[j]
            of_each[row] = ((per_node - of_each[row]) + (error - error_at_start[row])) * 1e-9
            covered[row] = known - covered[row]
            running -= 1
            j += 1
        if now >= high:
            break
        then = high
        if i < count:
            then = min(then, start[by_start[i]])
        if j < count:
            then = min(then, end[by_end[j]])
        if k + 1 < samples:
            then = min(then, ts[k + 1])
        if k >= 0 and not unknown[k]:
            middle = value[k]
            if linear:
                width = ts[k + 1] - ts[k]
                middle += (value[k + 1] - value[k]) * (((now - ts[k]) + (then - ts[k])) / 2 / width)
            part = middle * (then - now)
            total += part
            known += then - now
            if running:
                part /= running
                new = per_node + part
                back = new - per_node
                error += (per_node - (new - back)) + (part - back)
                per_node = new
            else:
                idle += part
        now = then
        if k + 1 < samples and ts[k + 1] <= now:
            k += 1
    for rest in range(j, count):
        row = by_end[rest]
        if covered[row] >= 0:
            of_each[row] = ((per_node - of_each[row]) + (error - error_at_start[row])) * 1e-9
            covered[row] = -1
    return total, idle, known


def without_overlap(sources: Iterable[Samples]) -> list[Samples | None]:
    """Cut samples to intervals of time that do not overlap.

    Parameters
    ----------
    sources
        Samples of one quantity by several sources, the best first.

    Returns
    -------
    list
        For each source its samples of the time that no source before it covers; None if there
        are none.
    """
    empty = np.zeros(0, np.int64)
    covered = (empty, empty)
    parts = []
    for samples in sources:
        part = _outside(samples, covered) if covered[0].size else samples
        parts.append(part)
        if part is not None:
            known = np.flatnonzero(~part.unknown)
            start, end = part.ts[known], part.ts[known + 1]
            starts, ends = (covered[0], start), (covered[1], end)
            covered = intervals.union(np.concatenate(starts), np.concatenate(ends))
    return parts


def _outside(samples: Samples, covered: Intervals) -> Samples | None:
    """Samples outside of intervals, with additional ones where those begin and end."""
    start, end = covered
    sampled = samples.ts
    edges = np.concatenate(covered)
    within = edges[(edges > sampled[0]) & (edges < sampled[-1])]
    ts = np.sort(np.concatenate([sampled, within]), kind="stable")  # of runs, which are merged
    ts = ts[np.append(True, ts[1:] != ts[:-1])]
    index = np.searchsorted(sampled, ts, "right") - 1
    value = samples.value[index]
    if samples.is_linear:
        value = np.interp(ts - sampled[0], sampled - sampled[0], samples.value)
    # the interval that began last before each time covers it unless it has ended by then
    last = np.searchsorted(start, ts, "right") - 1
    known = ~samples.unknown[index] & ((last < 0) | (ts >= end[last]))
    selected = known | np.append([False], known[:-1])
    if not selected.any():
        return None
    return replace(samples, ts=ts[selected], value=value[selected], unknown=~known[selected])
