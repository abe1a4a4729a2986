"""Ends of firmware intervals: samples of shares over intervals are stamped with their beginnings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chopper_interop.arrays import Array

_SHARE_PREFIX, _COUNTER = "throttle share ", "accumulation counter"
"""Series of shares of the intervals between two readings of a counter, and that counter."""


def counter_readings(
    series: Sequence[dict[str, Any]], times: Callable[[int], Array]
) -> dict[tuple[Any, ...], Array]:
    """Times at which the counters of firmware intervals were read, by `sampler_key`.

    Parameters
    ----------
    series
        Rows of `Trace.series`.
    times
        Gives the times of the samples of a row.
    """
    rows = (row for row, one in enumerate(series) if one["name"] == _COUNTER)
    return {sampler_key(series[row]): times(row) for row in rows}


def with_last_end(
    readings: dict[tuple[Any, ...], Array], series: dict[str, Any], ts: Array, value: Array
) -> tuple[Array, Array]:
    """Return samples with the end of the last interval added, if they are shares of intervals.

    Parameters
    ----------
    readings
        As given by `counter_readings`.
    series
        Row of `Trace.series`.
    ts, value
        Its samples.
    """
    is_share = series["name"].startswith(_SHARE_PREFIX)
    counter = readings.get(sampler_key(series)) if is_share else None
    if counter is None or not len(ts):
        return ts, value
    index = int(np.searchsorted(counter, ts[-1], "right"))
    if index == len(counter):
        return ts, value
    return np.append(ts, counter[index]), np.append(value, value[-1])


def quantity_key(series: dict[str, Any]) -> tuple[Any, ...]:
    """Key that series of one quantity have in common if one tool sampled them together, on all GPUs."""
    return series["name"], series["source"], series["uncertainty_ns"]


def sampler_key(series: dict[str, Any]) -> tuple[Any, ...]:
    """Key that series have in common if one tool sampled them at one GPU or node."""
    return tuple(series[c] for c in ("rank", "device", "source", "uncertainty_ns"))
