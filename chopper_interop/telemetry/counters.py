"""What counters tell: how fast each rose from one of its samples to the next, and where it was renewed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.telemetry.samples import usual_step

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.telemetry.samples import Samples


@dataclass(frozen=True)
class Rises:
    """What a counter rose by between its samples.

    Parameters
    ----------
    rates
        What it counted in a second, each until the next sample.
    wrapped, impossible
        Places of samples after which it began anew by itself, and after which it did what it cannot
        do: it was set back, or counted too fast.
    """

    rates: Samples
    wrapped: Array
    impossible: Array


def rises(
    counter: Samples,
    most: float,
    *,
    factor: float = 1.0,
    wraps_at: float = 0.0,
    slack_ns: int = 0,
) -> Rises:
    """How fast a counter rose from each of its samples to the next, over gaps as well.

    A fall is a wrap where what it means can have been counted; else the counter was set back, and
    what it counted meanwhile is not known. What was carried on beyond the wrap as it was read is
    brought back to it first, so that a reset that looked like a wrap is found.

    Parameters
    ----------
    counter
        Its samples.
    most
        It counts no more than this in a second, times `factor`.
    factor
        What 1 of it is.
    wraps_at
        Where it begins anew, times `factor`; 0 if nowhere.
    slack_ns
        A rise may be of so much more time than lies between its samples.
    """
    count = counter.value * factor
    if wraps_at:
        count = np.mod(count, wraps_at)
    rise, step = np.diff(count), np.diff(counter.ts)
    falls = rise < 0
    if wraps_at:
        rise = np.where(falls, rise + wraps_at, rise)
    possible = (rise >= 0) & (rise <= (step + slack_ns) * 1e-9 * most)
    rate = np.where(possible, rise / step * 1e9, 0.0)
    rates = counter.held(np.append(rate, 0.0), np.append(~possible, [True]))
    return Rises(rates, np.flatnonzero(falls & possible), np.flatnonzero(~possible))


def power(joules: Samples, most: float) -> Samples | None:
    """Power by an energy counter, watts, from renewal to renewal; None if it never tells any.

    Parameters
    ----------
    joules
        Its samples.
    most
        No GPU draws more.
    """
    known = renewed(joules)
    if known is None:
        return None
    rates = rises(known, most).rates
    unknown = rates.unknown | known.unknown  # a mean over a gap tells of no moment of it
    watts = np.where(unknown, 0.0, rates.value)
    return rates.held(watts, unknown) if watts.any() else None


def renewed(counter: Samples) -> Samples | None:
    """The samples at which a counter was renewed, of one that is renewed more rarely than sampled.

    Samples that repeat its value tell of no time: neither of that after its last renewal nor, as
    what it counts goes on, of that before a gap; nor does the first one, or the first after a gap,
    unless as long passes until the next renewal as passes usually between two.

    Parameters
    ----------
    counter
        Samples of something that never stands still, as energy.

    Returns
    -------
    Samples or None
        Nothing is known between renewals with a gap, or a fall, between them; None if it is not
        known when it was renewed twice.
    """
    ts, rise = counter.ts, np.diff(counter.value)
    known = ~counter.unknown[:-1]
    rises = np.append([False], known & (rise > 0))
    begins = np.append([True], ~known | (rise < 0))
    if (rises | begins).all():
        return counter
    renewals, first = np.flatnonzero(rises), np.flatnonzero(begins)
    usual = usual_step(ts[renewals])
    next_ = np.append(renewals, [len(ts)])[np.searchsorted(renewals, first)]
    is_within = next_ < np.append(first[1:], [len(ts)])
    width = ts[np.where(is_within, next_, first)] - ts[first]
    kept = rises.copy()
    kept[first[is_within & (usual > 0) & (width > usual - counter.period_ns)]] = True
    at = np.flatnonzero(kept)
    if len(at) < 2:  # noqa: PLR2004
        return None
    parted = np.append(np.diff(np.cumsum(begins)[at]) > 0, [True])
    return replace(
        counter,
        ts=ts[at],
        value=counter.value[at],
        unknown=parted,
        period_ns=usual or usual_step(ts[at]),
    )
