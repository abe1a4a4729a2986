"""Confidence of figures of series: by samples in their time, or by those around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.series.rules import How
from chopper_interop.arrays import Array, arrow, gather

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.analyses.methods.series.averaging import AveragingWindows
    from chopper_interop.analyses.methods.series.samples import Series

SAMPLES, STAMPS, BETWEEN, CHANGES = "samples", "uncertain stamps", "between samples", "changes"
WINDOWS = "windows"
"""Kinds of evidence for figures, as `CONVENTIONS` have it."""
_ORDER = {SAMPLES: 0, CHANGES: 0, WINDOWS: 0, STAMPS: 1, BETWEEN: 2}
_NEARLY_ALL = 0.9
"""Share of the longest covered time of a quantity that a row needs to be the best. Chosen: a finer tool that
started or stopped somewhat apart from the others still counts."""
CONVENTIONS = {
    "known by": f"{SAMPLES}: one at least lies in the window whatever the uncertainty of its stamp (half "
    f"a second each way of tools that print whole seconds); {STAMPS}: one may; {BETWEEN}: none does. Of these two "
    f"nothing is covered, and mean and others are of the samples around. {CHANGES}: recorded where it changes, "
    f"which needs none. {WINDOWS}: measured as a whole from the beginning to the end of windows",
    "mean_uncertainty": "standard deviation of the samples in the window and within a resolution around "
    "it, by the root of how many surely lie in it; null if none does, as nothing bounds what the value "
    "was between samples. What a tool averages over a time of its own it does not know",
    "best": "is_best: of several tools that sample the same of the same GPU, by name and unit, the one that is "
    "better known by; then that covers nine tenths of what any covers; then of the finer resolution. "
    "Take this row",
}


@dataclass(frozen=True)
class Known:
    """Confidence of the figures of each cell.

    Parameters
    ----------
    sure
        Number of samples that surely lie in it.
    uncertainty
        Uncertainty of the mean, in its unit; NaN if unknown, as where no sample surely lies.
    """

    sure: Array
    uncertainty: Array


def series_confidence(
    series: Series, windows: AveragingWindows, n: int, *, is_exact: bool
) -> Known:
    """Return the confidence of a series in each of `n` cells.

    Parameters
    ----------
    series
        The series.
    windows
        The cells' time.
    n
        Number of cells.
    is_exact
        True if the time is the samples' own, so that a delay common to all of them does not matter.
    """
    s = series.samples
    ts = s.ts[: series.count]
    late = 0 if is_exact else s.uncertainty_ns
    first = np.searchsorted(ts, windows.start + late, "left")
    last = np.searchsorted(ts, windows.end - late, "right")
    sure = gather.group_sums(windows.cell, np.maximum(last - first, 0), n)
    start = np.full(n, np.iinfo(np.int64).max)
    end = np.full(n, np.iinfo(np.int64).min)
    np.minimum.at(start, windows.cell, windows.start)
    np.maximum.at(end, windows.cell, windows.end)
    used = np.flatnonzero(end >= start)
    spread = np.full(n, np.nan)
    if series.rule.how in {How.STRAIGHT, How.HELD}:
        spread[used] = _spread(ts, s.value, start[used], end[used], s.resolution_ns)
    spread[sure == 0] = np.nan
    return Known(sure, spread / np.sqrt(np.maximum(sure, 1)))


def _spread(ts: Array, value: Array, start: Array, end: Array, around: int) -> Array:
    """Standard deviation of samples in and around intervals; NaN of fewer than two."""
    first = np.searchsorted(ts, start - around, "left")
    last = np.searchsorted(ts, end + around, "right")
    value = value[: len(ts)] - value[: len(ts)].mean()
    total, squares = (np.append([0.0], np.cumsum(v)) for v in (value, value**2))
    count = (last - first).astype(np.float64)
    count[count < 2] = np.nan  # noqa: PLR2004
    mean = (total[last] - total[first]) / count
    rest = (squares[last] - squares[first]) / count - mean**2
    return np.sqrt(np.maximum(rest, 0.0) * count / (count - 1))


def together(parts: list[Known], covered: list[Array]) -> Known:
    """Combine the confidence of series that make rows together, weighted by their covered time."""
    if len(parts) == 1:
        return parts[0]
    time = np.stack(covered).astype(np.float64)
    own = np.stack([part.uncertainty for part in parts])
    with np.errstate(invalid="ignore", divide="ignore"):
        both = np.sqrt((np.where(time > 0, own, 0.0) ** 2 * time**2).sum(axis=0)) / time.sum(axis=0)
    return Known(np.sum([part.sure for part in parts], axis=0), both)


def names(how: How, sure: Array, samples: Array) -> Array:
    """Name the evidence of each cell."""
    if how in {How.STEADY, How.LOGGED}:
        return np.full(len(sure), CHANGES, object)
    if how is How.WINDOW:
        return np.full(len(sure), WINDOWS, object)
    return np.where(sure > 0, SAMPLES, np.where(samples > 0, STAMPS, BETWEEN)).astype(object)


def with_best(table: pa.Table, keys: list[str]) -> pa.Table:
    """Append a column `is_best`, which marks the best known row of several of the same quantity."""
    if not table.num_rows:
        return table.append_column("is_best", arrow.array(np.zeros(0, np.bool_)))
    _, code = gather.distinct(*(arrow.to_numpy(arrow.encoded(table[key]), -1) for key in keys))
    worth = np.array([_ORDER[by] for by in table["known_by"].to_pylist()])
    covered, step = (table[name].to_numpy() for name in ("covered_ns", "resolution_ns"))
    longest = np.zeros(code.max() + 1, np.int64)
    np.maximum.at(longest, code, covered)
    order = np.lexsort((step, covered < _NEARLY_ALL * longest[code], worth, code))
    best = np.zeros(len(code), np.bool_)
    best[order[np.append([True], np.diff(code[order]) > 0)]] = True
    return table.append_column("is_best", arrow.array(best))
