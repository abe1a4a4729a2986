"""Shares of firmware intervals stand at their beginnings: until when the last of them holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chopper_interop.columns.types import Array

_OF_INTERVALS, _INTERVALS = "throttle share ", "accumulation counter"
"""Series of shares of the intervals between two readings of a counter, and that counter."""


def ticks(
    series: Sequence[dict[str, Any]], times: Callable[[int], Array]
) -> dict[tuple[Any, ...], Array]:
    """When counters were read whose intervals shares are of, by `beside`.

    Parameters
    ----------
    series
        Rows of `Trace.series`.
    times
        When samples of a row were taken.
    """
    rows = (row for row, one in enumerate(series) if one["name"] == _INTERVALS)
    return {beside(series[row]): times(row) for row in rows}


def ended(
    read: dict[tuple[Any, ...], Array], about: dict[str, Any], ts: Array, value: Array
) -> tuple[Array, Array]:
    """Samples of a series, to the end of the last interval if they are shares of intervals.

    Parameters
    ----------
    read
        As of `ticks`.
    about
        Row of `Trace.series`.
    ts, value
        Its samples.
    """
    counter = read.get(beside(about)) if about["name"].startswith(_OF_INTERVALS) else None
    if counter is None or not len(ts):
        return ts, value
    at = int(np.searchsorted(counter, ts[-1], "right"))
    if at == len(counter):
        return ts, value
    return np.append(ts, counter[at]), np.append(value, value[-1])


def beside(series: dict[str, Any]) -> tuple[Any, ...]:
    """What series have in common that one tool sampled of one place."""
    return tuple(series[c] for c in ("rank", "device", "source", "uncertainty_ns"))
