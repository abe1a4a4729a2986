"""What counters tell: how fast each rose from one of its samples to the next, and where it was renewed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.telemetry.samples import usual_step

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.telemetry.samples import Samples

    Array = npt.NDArray[Any]


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
