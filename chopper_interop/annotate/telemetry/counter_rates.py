"""Rates of counters from sample to sample, and the samples at which a counter was updated."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chopper_interop.annotate.telemetry.samples import Samples, usual_step
from chopper_interop.arrays import Array


@dataclass(frozen=True)
class CounterRates:
    """Rates of a counter between its samples.

    Parameters
    ----------
    rates
        Counts per second, each until the next sample.
    wrapped, impossible
        Indexes of samples after which the counter wrapped around, and after which it did what it
        cannot do by itself: it was reset, or counted too fast.
    """

    rates: Samples
    wrapped: Array
    impossible: Array


def counter_rates(
    counter: Samples,
    max_rate: float,
    *,
    factor: float = 1.0,
    wraps_at: float = 0.0,
    slack_ns: int = 0,
) -> CounterRates:
    """Compute the rate of a counter from each of its samples to the next, over gaps as well.

    A fall is a wrap-around if the resulting rise is possible in that time. Otherwise the counter
    was reset, and its rate is unknown until the next sample. Counters that a tool has unwrapped
    are wrapped again first, so that a reset that the tool took for a wrap-around is found.

    Parameters
    ----------
    counter
        Its samples.
    max_rate
        Highest possible rate per second, after `factor` is applied.
    factor
        Value of one count.
    wraps_at
        Value at which it wraps around, after `factor` is applied; 0 if it does not.
    slack_ns
        A rise may belong to so much more time than lies between its samples.
    """
    count = counter.value * factor
    if wraps_at:
        count = np.mod(count, wraps_at)
    rise, step = np.diff(count), np.diff(counter.ts)
    falls = rise < 0
    if wraps_at:
        rise = np.where(falls, rise + wraps_at, rise)
    possible = (rise >= 0) & (rise <= (step + slack_ns) * 1e-9 * max_rate)
    rate = np.where(possible, rise / step * 1e9, 0.0)
    rates = counter.as_steps(np.append(rate, 0.0), np.append(~possible, [True]))
    return CounterRates(rates, np.flatnonzero(falls & possible), np.flatnonzero(~possible))


def power_of_counter(joules: Samples, max_watts: float) -> Samples | None:
    """Compute power, watts, from an energy counter; None if it never gives any.

    Parameters
    ----------
    joules
        Its samples.
    max_watts
        No GPU draws more.
    """
    updates = counter_updates(joules)
    if updates is None:
        return None
    rates = counter_rates(updates, max_watts).rates
    unknown = rates.unknown | updates.unknown  # a mean over a gap holds at no time within it
    watts = np.where(unknown, 0.0, rates.value)
    return rates.as_steps(watts, unknown) if watts.any() else None


def counter_updates(counter: Samples) -> Samples | None:
    """Select the samples at which a counter was updated, if that is rarer than it was sampled.

    A sample that repeats the value says nothing of the time since the last update, nor, as the
    quantity goes on being counted, of the time before a gap. The first sample, or the first after
    a gap, counts as an update only if the time to the next update is as long as usual.

    Parameters
    ----------
    counter
        Samples of a quantity that never stands still, such as energy.

    Returns
    -------
    Samples or None
        Unknown between updates with a gap or a fall between them; None if fewer than two updates
        are known.
    """
    ts, rise = counter.ts, np.diff(counter.value)
    known = ~counter.unknown[:-1]
    rises = np.append([False], known & (rise > 0))
    begins = np.append([True], ~known | (rise < 0))
    if (rises | begins).all():
        return counter
    updates, first = np.flatnonzero(rises), np.flatnonzero(begins)
    usual = usual_step(ts[updates])
    # the first update after the first sample of each run without gaps, if it is in the same run
    next_ = np.append(updates, [len(ts)])[np.searchsorted(updates, first)]
    is_within = next_ < np.append(first[1:], [len(ts)])
    width = ts[np.where(is_within, next_, first)] - ts[first]
    selected = rises.copy()
    selected[first[is_within & (usual > 0) & (width > usual - counter.period_ns)]] = True
    index = np.flatnonzero(selected)
    if len(index) < 2:  # noqa: PLR2004
        return None
    has_gap = np.append(np.diff(np.cumsum(begins)[index]) > 0, [True])
    return replace(
        counter,
        ts=ts[index],
        value=counter.value[index],
        unknown=has_gap,
        period_ns=usual or usual_step(ts[index]),
    )
