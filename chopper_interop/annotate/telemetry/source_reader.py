"""Sources of each quantity of a GPU, read from its series and ordered by how precise they are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.annotate.telemetry import counter_rates, quantity_series, throttle_causes
from chopper_interop.annotate.telemetry.sampled_series import LARGEST, SampledSeries
from chopper_interop.annotate.telemetry.samples import (
    Samples,
    change_log_samples,
    periodic_samples,
    window_samples,
)
from chopper_interop.arrays import Array
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.quantity_series import Quantity, SeriesPattern

    SeriesRows = dict[int, dict[str, Any]]
    """Rows of `Trace.series` by their index."""

FINEST = Fault.info(
    "telemetry-finest",
    "Quantities of a GPU that several tools sampled are taken from the one whose samples are "
    "closest in time and have the smallest uncertainty, and from the next one where that has none.",
)
IMPOSSIBLE = Fault.loss(
    "telemetry-impossible",
    "Samples of values that no GPU can have were not used for what ran meanwhile.",
)


@dataclass(frozen=True)
class Source:
    """Samples of one quantity of a GPU by one tool.

    Parameters
    ----------
    tool
        Tool that took the samples.
    pattern
        Pattern of the names of the series.
    samples
        Die (-1 if dies are not distinguished), and its samples; several of one die are causes.
    """

    tool: str
    pattern: SeriesPattern
    samples: tuple[tuple[int, Samples], ...]

    @property
    def resolution_ns(self) -> int:
        """Resolution of its best series."""
        return min(s.resolution_ns for _, s in self.samples)


class SourceReader(SampledSeries):
    """Reads samples of series, and orders the sources of a quantity.

    Parameters
    ----------
    issues
        Log of what was chosen and left out.
    """

    def __init__(self, trace: Trace, issues: IssueLog) -> None:
        super().__init__(trace)
        self.issues = issues

    def sources(
        self, quantity: Quantity, table: SeriesRows, ranks: tuple[int, ...]
    ) -> tuple[Source, ...]:
        """Sources of a quantity, the finest resolution first; of equal ones the first pattern.

        Of a tool that samples dies as well as the whole GPU, the dies are taken.
        """
        if quantity is quantity_series.THROTTLE:
            return self._throttle_sources(table)
        candidates = []
        for order, pattern in enumerate(quantity.patterns):
            for tool, parts in self._samples_by_file(quantity, pattern, table):
                dies = [(die, samples) for die, samples in parts if die >= 0]
                source = Source(tool, pattern, tuple(dies or parts))
                candidates.append((source.resolution_ns, order, source))
        candidates.sort(key=lambda entry: entry[:2])
        tools = list(dict.fromkeys(source.tool for *_, source in candidates))
        if len(tools) > 1:
            self.issues.add(FINEST, 1, f"rank {ranks[0]}: {quantity.name} of {', '.join(tools)}")
        return tuple(source for *_, source in candidates)

    def energy_counters(self, table: SeriesRows) -> dict[str, tuple[Samples, ...]]:
        """Energy counters by tool, joules; one for each capture."""
        counters_: dict[str, tuple[Samples, ...]] = {}
        for row, series in table.items():
            if series["name"] == "energy" and series["unit"] == "J":
                counter = self._periodic(row, *self.points(row))
                if counter is not None:
                    tool = series["source"]
                    counters_[tool] = (*counters_.get(tool, ()), counter)
        return counters_

    def _samples_by_file(
        self, quantity: Quantity, pattern: SeriesPattern, table: SeriesRows
    ) -> list[tuple[str, list[tuple[int, Samples]]]]:
        """Tool, dies and samples of the series of a pattern, apart by file."""
        by_file: dict[tuple[Any, ...], list[tuple[int, Samples]]] = defaultdict(list)
        files: dict[tuple[Any, ...], int] = defaultdict(int)  # files with the same series
        for row, series in table.items():
            match = pattern.match(series["name"])
            if match is None or series["unit"] not in pattern.units:
                continue
            samples = self._samples(quantity, pattern, row, series)
            if samples is not None:
                die = match.groupdict().get("die")
                tool = (series["source"], series["uncertainty_ns"])
                same = (*tool, series["name"])
                files[same] += 1
                key = (*tool, files[same])
                by_file[key].append((-1 if die is None else int(die), samples))
        return [(tool, parts) for (tool, *_), parts in by_file.items()]

    def _throttle_sources(self, table: SeriesRows) -> tuple[Source, ...]:
        """Combine all causes that hold a clock down into one source, each by its best series."""
        shares, patterns = [], quantity_series.THROTTLE.patterns
        for row, series in table.items():
            pattern = next((one for one in patterns if one.match(series["name"])), None)
            if pattern is None or series["unit"] not in pattern.units:
                continue
            samples = self._cause_samples(pattern, row, series)
            if samples is not None:
                of_series = throttle_causes.shares(series["name"], series["unit"], samples)
                shares += [(series["source"], share) for share in of_series]
        for tool, share in shares:
            self.issues.add(IMPOSSIBLE, share.impossible, f"throttling by {share.cause} of {tool}")
        combined = throttle_causes.throttle_source(shares)
        return () if combined is None else (Source(combined[0], patterns[0], ((-1, combined[1]),)),)

    def _cause_samples(
        self, pattern: SeriesPattern, row: int, series: dict[str, Any]
    ) -> Samples | None:
        """Samples of a series of throttling in its own unit; those of counters are counts."""
        ts, value = self.points(row)
        if not pattern.is_counter and not pattern.is_status:
            share = value * pattern.units[series["unit"]]
            possible = self._possible(quantity_series.THROTTLE, share, series)
            ts, value = ts[possible], value[possible]
        ts, value = self.with_last_end(row, ts, value)
        return self._periodic(row, ts, value, is_linear=pattern.is_counter)

    def _samples(
        self, quantity: Quantity, pattern: SeriesPattern, row: int, series: dict[str, Any]
    ) -> Samples | None:
        """Samples of a series in the quantity's unit; None if it has none, or is of power 0."""
        ts, value = self.points(row)
        value *= pattern.units[series["unit"]]
        if pattern.is_counter:
            value *= quantity_series.ENERGY_UNITS.get(series["source"], 1.0)
            counter = self._periodic(row, ts, value)
            return (
                None
                if counter is None
                else counter_rates.power_of_counter(counter, quantity.max_value)
            )
        possible = self._possible(quantity, value, series)
        ts, value = ts[possible], value[possible]
        if quantity is quantity_series.POWER and not value.any():
            return None
        if pattern.is_window:
            return window_samples(ts, value, series["uncertainty_ns"]) if ts.size else None
        if pattern.is_logged:
            return change_log_samples(ts, value, series["uncertainty_ns"]) if ts.size else None
        return self._periodic(row, ts, value, is_linear=quantity.is_linear)

    def _possible(self, quantity: Quantity, value: Array, series: dict[str, Any]) -> Array:
        """Mark possible values, and count the others."""
        possible = (value >= quantity.min_value) & (value <= quantity.max_value)
        wrong = np.count_nonzero(~possible)
        self.issues.add(IMPOSSIBLE, wrong, f"{series['name']} of {series['source']}")
        return possible

    def _periodic(
        self, row: int, ts: Array, value: Array, *, is_linear: bool = True
    ) -> Samples | None:
        """Samples of a series; of few, the period is that of other GPUs' series."""
        if not ts.size:
            return None
        uncertainty = self.series[row]["uncertainty_ns"]
        period = self.period_of_few(row, len(ts))
        return periodic_samples(ts, value, uncertainty, is_linear=is_linear, period_ns=period)

    def points(self, row: int) -> tuple[Array, Array]:
        """Times and values, copied, of the samples of a series that are numbers."""
        ts, value = super().points(row)
        finite = np.abs(value) <= LARGEST
        return ts[finite], value[finite].copy()
