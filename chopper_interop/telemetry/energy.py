"""Energy of GPUs: power integrated over time, and shared among what ran.

The power of a GPU is shared equally, at every moment, among the pieces of work that run on it; what
it draws while nothing runs is its idle energy. So the energies of all pieces and the idle energy
add up to what the GPU drew. Of several sources of its power the finest counts at every moment that
it tells, and the next one where it tells nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.telemetry import lines
from chopper_interop.telemetry.names import POWER
from chopper_interop.telemetry.samples import seen
from chopper_interop.telemetry.stretches import apart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.telemetry.gpus import Gpu, Source
    from chopper_interop.telemetry.samples import Samples


_AS_FINE = 1.5
"""A counter whose period is no longer than that many of power is as fine."""
_TIMED = 0.1
"""So well, by its period, the times of a counter must be known for its rise to be a power."""
_ALIKE = 1.5
"""Counter and power of all the time that are further apart do not mean the same."""


@dataclass(frozen=True)
class Shared:
    """Energy of a GPU over a window, joules.

    Parameters
    ----------
    of_each
        Energy of each piece of work; NaN of those for whose whole time power is not known.
    total
        What the GPU drew in the window while its power is known.
    idle
        What of it while nothing ran.
    cut
        What of it belongs to pieces of work for whose whole time power is not known; 0 of others.
    covered_of
        How long each source of its power counts, nanoseconds.
    """

    of_each: Array
    total: float
    idle: float
    cut: Array
    covered_of: tuple[int, ...]

    @property
    def covered_ns(self) -> int:
        """How long its power is known."""
        return sum(self.covered_of)


def powers_of(gpu: Gpu) -> list[tuple[Source, Samples]]:
    """Sources of a GPU's power, the best first, and what each tells that none before it does."""
    return _apart(_sources(gpu))


def shown_of(gpu: Gpu) -> list[tuple[Source, Samples]]:
    """The same of those that show power alone: what counters tell takes nothing from them."""
    return _apart([(s, samples) for s, samples in _sources(gpu) if s.told.is_shown])


def _sources(gpu: Gpu) -> list[tuple[Source, Samples]]:
    return [(s, samples) for s in gpu.told.get(POWER.name, ()) for _, samples in s.samples]


def _apart(sources: list[tuple[Source, Samples]]) -> list[tuple[Source, Samples]]:
    parts = apart(samples for _, samples in sources)
    return [(s, part) for (s, _), part in zip(sources, parts, strict=True) if part is not None]


def best_of(gpu: Gpu) -> list[tuple[Source, Samples]]:
    """Sources of a GPU's power for its energy, as of `powers_of`: counters before what is shown.

    Power as it is shown is filtered and late, and a mean of what was drawn before its sample; an
    energy counter has all of it. It counts wherever it is as fine as the samples of power of its
    tool, its times are known well enough for a rate, and the two do not contradict each other.
    """
    told = gpu.told.get(POWER.name, ())
    shown = {s.tool: s for s in reversed(told) if s.told.is_shown}
    sources = _sources(gpu)
    better = [
        s.told.is_counter and s.tool in shown and _is_better(samples, shown[s.tool])
        for s, samples in sources
    ]
    order = sorted(range(len(sources)), key=lambda i: not better[i])
    return _apart([sources[i] for i in order])


def _is_better(counter: Samples, shown: Source) -> bool:
    """Whether a counter tells energy better than the power that the same tool shows."""
    power = shown.samples[0][1]
    if counter.period_ns > _AS_FINE * power.period_ns:
        return False
    if 2 * counter.uncertainty_ns > _TIMED * counter.period_ns:
        return False
    moments = np.array([counter.ts[:1], counter.ts[-1:]])
    (counted,), (known,) = drawn([counter], *moments)
    (shows,), (seen_ns,) = drawn([power], *moments)
    if not known or not seen_ns or shows <= 0:
        return False
    return bool(1 / _ALIKE < (counted / known) / (shows / seen_ns) < _ALIKE)


def shared(
    powers: Sequence[Samples], start: Array, end: Array, window: tuple[int, int] | None = None
) -> Shared:
    """Share the energy of a GPU among what ran on it.

    Parameters
    ----------
    powers
        Samples of its power, watts, of stretches of time that do not overlap.
    start, end
        When work ran on it, nanoseconds.
    window
        From when to when to count; by default from the first start to the last end. The energy of
        work that reaches beyond it is not known as a whole.
    """
    if not len(start) and window is None:
        return Shared(np.zeros(0), 0.0, 0.0, np.zeros(0), (0,) * len(powers))
    start = np.array(start, np.int64)
    end = np.maximum(np.array(end, np.int64), start)
    low, high = window or (int(start.min()), int(end.max()))
    starts, ends = np.argsort(start, kind="stable"), np.argsort(end, kind="stable")
    of_each, covered = np.zeros(len(start)), np.zeros(len(start), np.int64)
    total, idle, known = 0.0, 0.0, []
    moment = end > start
    for power in powers:
        part, time = np.zeros(len(start)), np.full(len(start), -1, np.int64)
        sums = _share(
            power.ts, power.value, power.unknown, power.is_straight,
            start, end, starts, ends, np.int64(low), np.int64(high), part, time,
        )  # fmt: skip
        of_each += part
        covered += time  # stays below 0 of those beyond the window
        total, idle = total + sums[0], idle + sums[1]
        known.append(int(sums[2]))
        at = np.clip(np.searchsorted(power.ts, start, "right") - 1, 0, None)
        moment |= (start >= power.ts[0]) & ((start == power.ts[at]) | ~power.unknown[at])
    whole = (covered == end - start) & moment
    cut = np.where(whole, 0.0, of_each)
    of_each[~whole] = np.nan
    return Shared(of_each, total * 1e-9, idle * 1e-9, cut, tuple(known))


def drawn(powers: Sequence[Samples], start: Array, end: Array) -> tuple[Array, Array]:
    """What a GPU drew in each of some windows, whatever ran.

    Parameters
    ----------
    powers
        As of `shared`.
    start, end
        The windows, nanoseconds.

    Returns
    -------
    joules, covered_ns
        Energy while its power is known, and how long that is.
    """
    watt_ns, covered = lines.of_samples(powers).integrals(start, end)
    return watt_ns * 1e-9, covered


def peak(powers: Sequence[Samples], start: int, end: int) -> float:
    """The most power in a window, watts, as far as it is known; NaN where it is not."""
    moments = np.array([start, end])
    found = [power.value[(power.ts >= start) & (power.ts <= end)] for power in powers]
    found += [seen(power, moments, moments).most for power in powers]
    return float(np.fmax.reduce(np.concatenate(found)))


def counted(counters: Sequence[Samples], start: Array, end: Array) -> float | None:
    """What an energy counter rose by in all of some windows, joules; None if it does not tell.

    Parameters
    ----------
    counters
        Its samples, of one capture or several; the count goes straight between them.
    start, end
        The windows, nanoseconds.
    """
    count = lines.of_samples(part for part in apart(counters) if part is not None)
    count = count.where(count.last >= count.first)  # else set back
    rate = (count.last - count.first) / (count.end - count.start)
    risen, known = replace(count, first=rate, last=rate).integrals(start, end)
    return float(risen.sum()) if (known == end - start).all() else None


def around(counters: Sequence[Samples], moments: Array) -> float:
    """What a counter rose by around some moments, from one of its values to the next, joules.

    What was drawn up to a moment lies between these values: so far `counted` may be wrong. Of several
    captures the one that tells a moment best counts.
    """
    return float(np.min([_around(counter, moments) for counter in counters], axis=0).sum())


def _around(counter: Samples, moments: Array) -> Array:
    """The same of one capture, of each moment; infinite where it has none."""
    new = np.append([True], np.diff(counter.value) > 0)  # it was renewed
    ts, value = counter.ts[new], counter.value[new]
    last = max(len(ts) - 1, 0)
    before = np.clip(np.searchsorted(ts, moments, "left") - 1, 0, last)
    behind = np.clip(np.searchsorted(ts, moments, "right"), 0, last)
    is_in = (moments >= counter.ts[0]) & (moments <= counter.ts[-1])
    return np.where(is_in, value[behind] - value[before], np.inf)


@jit
def _share(  # noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917 # one sweep over columns
    ts: Array,
    value: Array,
    unknown: Array,
    straight: bool,  # noqa: FBT001
    start: Array,
    end: Array,
    starts: Array,
    ends: Array,
    low: int,
    high: int,
    of_each: Array,
    covered: Array,
) -> tuple[float, float, int]:
    """Sweep over starts, ends and samples.

    Each piece's energy is the difference of what one running piece has got so far, at its end and
    its start; that sum is kept with its rounding errors, as pieces are short against the window.
    """
    count, samples = len(start), len(ts)
    given, lost = 0.0, 0.0  # what a running piece has got so far, W ns: a sum and its error
    total, idle, known = 0.0, 0.0, np.int64(0)
    running, i, j = 0, 0, 0
    now = low
    k = np.searchsorted(ts, now, "right") - 1
    low_part = np.empty(count)
    while True:
        while i < count and start[starts[i]] <= now:
            row = starts[i]
            of_each[row], low_part[row], covered[row] = given, lost, known
            running += 1
            i += 1
        while j < i and j < count and end[ends[j]] <= now:
            row = ends[j]
            of_each[row] = ((given - of_each[row]) + (lost - low_part[row])) * 1e-9
            covered[row] = known - covered[row]
            running -= 1
            j += 1
        if now >= high:
            break
        then = high
        if i < count:
            then = min(then, start[starts[i]])
        if j < count:
            then = min(then, end[ends[j]])
        if k + 1 < samples:
            then = min(then, ts[k + 1])
        if k >= 0 and not unknown[k]:
            middle = value[k]
            if straight:
                width = ts[k + 1] - ts[k]
                middle += (value[k + 1] - value[k]) * (((now - ts[k]) + (then - ts[k])) / 2 / width)
            part = middle * (then - now)
            total += part
            known += then - now
            if running:
                part /= running
                new = given + part
                back = new - given
                lost += (given - (new - back)) + (part - back)
                given = new
            else:
                idle += part
        now = then
        if k + 1 < samples and ts[k + 1] <= now:
            k += 1
    for left in range(j, count):
        row = ends[left]
        if covered[row] >= 0:
            of_each[row] = ((given - of_each[row]) + (lost - low_part[row])) * 1e-9
            covered[row] = -1
    return total, idle, known
