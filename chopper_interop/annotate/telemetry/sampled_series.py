"""Series of a trace with their samples, and what those that one tool sampled together say of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np

from chopper_interop.annotate.telemetry.samples import usual_step
from chopper_interop.arrays import Array
from chopper_interop.trace import Trace

LARGEST = 1e18
"""Larger than any value of a series; the comparison excludes NaN as well."""
_FEW = 8
"""A series of so few samples takes its period from those of other GPUs. Chosen: the median of seven
steps or more is a period even if some rows are missing."""
_SHARE_PREFIX, _COUNTER = "throttle share ", "accumulation counter"
"""Series of shares of the firmware's intervals between two readings of a counter, and that counter."""


class SampledSeries:
    """Series of a trace, by their rows in `Trace.series`.

    Attributes
    ----------
    series
        These rows.
    """

    def __init__(self, trace: Trace) -> None:
        self.series: list[dict[str, Any]] = trace.series.to_pylist()
        self._bounds = trace.sample_bounds
        self._ts, self._value = (trace.array(c, "samples") for c in ("ts", "value"))

    def points(self, row: int) -> tuple[Array, Array]:
        """Times and values of the samples of a series."""
        rows = slice(self._bounds[row], self._bounds[row + 1])
        return self._ts[rows], self._value[rows]

    def period_of_few(self, row: int, count: int) -> int | None:
        """Usual time between samples by other series of the quantity; None for a series of enough samples."""
        return self._periods.get(_quantity_key(self.series[row])) if count <= _FEW else None

    def with_last_end(self, row: int, ts: Array, value: Array) -> tuple[Array, Array]:
        """Return samples of a series with the end of the last interval added, if they are shares of the firmware's.

        Samples of these are stamped with the beginnings of their intervals.
        """
        is_share = self.series[row]["name"].startswith(_SHARE_PREFIX)
        counter = self._counter_readings.get(sampler_key(self.series[row])) if is_share else None
        if counter is None or not len(ts):
            return ts, value
        index = int(np.searchsorted(counter, ts[-1], "right"))
        if index == len(counter):
            return ts, value
        return np.append(ts, counter[index]), np.append(value, value[-1])

    def shortest_steps(
        self, key_of: Callable[[dict[str, Any]], tuple[Any, ...]], rows: Iterable[int]
    ) -> dict[tuple[Any, ...], int]:
        """Shortest usual step among the series of each key."""
        shortest: dict[tuple[Any, ...], int] = {}
        for row in rows:
            if step := usual_step(self.points(row)[0]):
                key = key_of(self.series[row])
                shortest[key] = min(step, shortest.get(key, step))
        return shortest

    @cached_property
    def _periods(self) -> dict[tuple[Any, ...], int]:
        return self.shortest_steps(_quantity_key, range(len(self.series)))

    @cached_property
    def _counter_readings(self) -> dict[tuple[Any, ...], Array]:
        """Times at which the counters of the firmware's intervals were read, by `sampler_key`."""
        rows = (row for row, one in enumerate(self.series) if one["name"] == _COUNTER)
        return {sampler_key(self.series[row]): self.points(row)[0] for row in rows}


def _quantity_key(series: dict[str, Any]) -> tuple[Any, ...]:
    """Key that series of one quantity have in common if one tool sampled them together, on all GPUs."""
    return series["name"], series["source"], series["uncertainty_ns"]


def sampler_key(series: dict[str, Any]) -> tuple[Any, ...]:
    """Key that series have in common if one tool sampled them at one GPU or node."""
    return tuple(series[c] for c in ("rank", "device", "source", "uncertainty_ns"))
