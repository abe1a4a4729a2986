"""What was sampled while GPUs worked: mean, median and peak of every series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.result import Result
from chopper_interop.series import charllm as series_charllm
from chopper_interop.series import figures as series_figures
from chopper_interop.series import known as series_known
from chopper_interop.series import order as series_order
from chopper_interop.series import samples as series_samples
from chopper_interop.series.rows import REAL, TEXT, WHOLE, Rows
from chopper_interop.series.rules import How
from chopper_interop.series.stretches import NODE, RANK, Plan, by_of
from chopper_interop.series.told import conventions, notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.series.figures import Figures
    from chopper_interop.series.samples import Series
    from chopper_interop.series.stretches import By
    from chopper_interop.trace import Trace

__all__ = ["telemetry"]

_CONVENTIONS = {
    "between samples": "power and temperatures go straight from sample to sample, and so do counters; "
    "clocks and all else hold until the next sample; limits, settings and counts of faults, which "
    "are told where they change, hold until sampling ends",
    "gaps": "between samples further apart than 6 median periods a value is not known: that time is "
    "not covered",
    "mean and median": "weighted by the time in which values are known; where none is, the mean is null "
    "and the median is that of samples",
    "several series": "rows of nodes and of the job are of all GPUs' time together: their mean is "
    "that of a GPU, not the sum, their peak that of the highest",
    "counters": "rise is by how much the counter went up in the covered time, mean and others are "
    "of its count; where it went back it was set anew, or is not known, and that rise is left out",
}
_FIGURES = ("mean", "median", "least", "most")
_COLUMNS = (
    dict.fromkeys(("name", "unit", "source"), TEXT)
    | dict.fromkeys(("window_ns", "covered_ns"), WHOLE)
    | {"known_by": TEXT}
    | dict.fromkeys((*_FIGURES, "mean_uncertainty", "rise"), REAL)
    | dict.fromkeys(("samples", "resolution_ns"), WHOLE)
)


def telemetry(  # noqa: PLR0913 # options
    trace: Trace,
    *,
    by: str = RANK,
    steps: str = "",
    ranks: str = "",
    names: str = "",
    window: str = "",
    compat: str = "",
) -> Result:
    """Time-weighted mean, median, least and peak of every series that was sampled.

    Parameters
    ----------
    trace
        Any trace with telemetry.
    by
        Whose a row is: ``rank`` (each series by itself), ``node`` or ``job`` (all GPUs of it
        together), and what of their work it is of, names out of `grouping.GRAINS`:
        ``rank,iteration``, ``rank,phase``, ``node,iteration,phase``, …
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself; else all of the trace.
    ranks
        What is of these ranks' GPUs and nodes, as ``0,4-7``; else all.
    names
        Series by name, patterns as of file names separated by commas: ``socket power,*clock*``.
    window
        ``all``: all of the telemetry; else from the first start to the last end of GPU work.
    compat
        ``charllm``: the definitions and units of CharLLM-PPT instead.

    Returns
    -------
    Result
        One row for each series, or each name, unit and source on a node or in the job, and group of
        work, power, clock and temperature first: `name`, `unit`, `source`; whose it is (`rank`, `device`, `host`); how long the window
        is (`window_ns`; of groups by phase or the like, the union of the time in which the GPU ran
        work of the group), how much of it samples tell (`covered_ns`) and by what it is known
        (`known_by`); `mean`, `median`, `least`
        and `most` in `unit`; `rise` of counters; `samples` that were taken in it; `resolution_ns`, the time between
        samples and their own uncertainty; `mean_uncertainty` in `unit`; `is_best`, the row to take
        of several tools that sample the same. A counter that begins anew, or a GPU on which no rank is
        known to compute (`rank` is null), is told as such.

    Notes
    -----
    With `compat`, the averages and peaks of CharLLM-PPT dad5f278 (MICRO 2025,
    ``calculate_average_metric``): the sum of value times time to the next sample by the sum of
    times, over all samples, in GHz for MHz and GiB/s for KB/s.
    """
    if compat:
        asked = {"by": by != RANK, "steps": bool(steps), "window": bool(window)}
        return _as_charllm(trace, compat, ranks, names, asked)
    who = by_of(by)
    chosen = series_samples.names_in(names)
    found = series_samples.read(trace, ranks, lambda s: chosen(s["name"]))
    plan = Plan(trace, who, steps, window)
    columns = _COLUMNS if who.whom == RANK else {**_COLUMNS, "series": WHOLE}
    maker = _Maker(plan, Rows(plan, who, trace.meta.job, columns))
    for series in _grouped(found, who):
        maker.add(series)
    told = conventions(plan) | _CONVENTIONS | series_known.CONVENTIONS
    told["order"] = series_order.CONVENTION
    summary = _summary(found) | {"counters_set_back": maker.set_back}
    table = maker.rows.table()
    keys = [name for name in table.column_names if name not in columns] + ["name", "unit"]
    table = series_order.ordered(series_known.with_best(table, keys))
    return Result("telemetry", table, summary, told, notes=notes(trace, plan, found, steps))


def _as_charllm(
    trace: Trace, compat: str, ranks: str, names: str, asked: dict[str, bool]
) -> Result:
    series_charllm.check(compat, asked)
    chosen = series_samples.names_in(names)
    found = series_samples.read(trace, ranks, lambda s: chosen(s["name"]))
    table = series_charllm.averages(found)
    summary = {"series": table.num_rows}
    return Result("telemetry", table, summary, dict(series_charllm.AVERAGES))


def _grouped(found: Sequence[Series], who: By) -> list[list[Series]]:
    """Series that make rows together."""
    if who.whom == RANK:
        return [[series] for series in found]
    groups: dict[tuple[str, ...], list[Series]] = {}
    for series in found:
        host = series.place.host if who.whom == NODE else ""
        key = (host, series.name, series.unit, series.source)
        groups.setdefault(key, []).append(series)
    return list(groups.values())


class _Maker:
    """Makes rows of series."""

    def __init__(self, plan: Plan, rows: Rows) -> None:
        self._plan, self.rows = plan, rows
        self.set_back = 0

    def add(self, series: Sequence[Series]) -> None:
        """Rows of series that count together: one for each cell of which they know something."""
        plan, parts = self._plan, []
        window, rise = np.zeros(plan.cells, np.int64), np.zeros(plan.cells)
        known, time = [], []
        for one in series:
            stretches = plan.of(one.place, int(one.samples.ts[0]), int(one.samples.ts[-1]))
            pieces = series_figures.pieces(one.samples, stretches, is_ended=one.is_ended)
            parts.append(pieces)
            window += stretches.length(plan.cells)
            is_exact = plan.is_all or not one.place.rows.size
            known.append(series_known.of(one, stretches, plan.cells, is_exact=is_exact))
            time.append(gather.sums(pieces.cell, pieces.width, plan.cells))
            if one.rule.how is How.COUNTER:
                went = pieces.last - pieces.first
                self.set_back += int(np.count_nonzero(went < 0))
                rise += np.bincount(pieces.cell, np.maximum(went, 0), plan.cells)
        figures = series_figures.figures(parts, plan.cells)
        cell = np.flatnonzero((figures.covered > 0) | (figures.samples > 0))
        counts = (figures.covered > 0) & (series[0].rule.how is How.COUNTER)
        how = series[0].rule.how
        sampled = how not in {How.STEADY, How.LOGGED, How.WINDOW}
        covered = np.zeros(plan.cells, np.int64)
        for part, lasted in zip(known, time, strict=True):
            covered += np.where((part.sure > 0) | (not sampled), lasted, 0)
        whole = series_known.together(known, time)
        columns = {
            "window_ns": window, "covered_ns": covered, "mean_uncertainty": whole.uncertainty,
            "known_by": series_known.names(how, whole.sure, figures.samples),
            "rise": np.where(counts, rise, np.nan),
        }  # fmt: skip
        self._add(series, cell, figures, {name: of[cell] for name, of in columns.items()})

    def _add(
        self, series: Sequence[Series], cell: Array, figures: Figures, known: dict[str, Array]
    ) -> None:
        first = series[0]
        columns: dict[str, Any] = {"name": first.name, "unit": first.unit, "source": first.source}
        columns |= {name: getattr(figures, name)[cell] for name in (*_FIGURES, "samples")}
        columns |= known | {"series": len(series)}
        columns["resolution_ns"] = max(s.samples.resolution_ns for s in series)
        self.rows.add(first.place, cell, columns)


def _summary(found: Sequence[Series]) -> dict[str, Any]:
    """Counts of what there is."""
    gpus = {(s.place.rank, s.place.device) for s in found if s.place.device >= 0}
    owned = {(s.place.rank, s.place.device) for s in found if s.place.is_owned}
    return {
        "series": len(found),
        "gpus": len(gpus),
        "gpus_without_rank": len(gpus - owned),
        "samples": sum(s.count for s in found),
        "left_out": sum(s.left_out for s in found),
        "sources": ", ".join(sorted({s.source for s in found})) or None,
    }
