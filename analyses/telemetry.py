"""Mean, median and extremes of every sampled series while GPUs worked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.analyses.methods.series import charllm as series_charllm
from chopper_interop.analyses.methods.series import figures as series_figures
from chopper_interop.analyses.methods.series import known as series_known
from chopper_interop.analyses.methods.series import samples as series_samples
from chopper_interop.analyses.methods.series.averaging import RANK, Plan, by_of
from chopper_interop.analyses.methods.series.result_notes import conventions, notes
from chopper_interop.analyses.methods.series.rows import INTEGER, REAL, TEXT, Rows
from chopper_interop.analyses.methods.series.rules import How
from chopper_interop.annotate.telemetry.quantity_series import (
    GFXCLK,
    POWER,
    THROTTLE,
    SeriesPattern,
)
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.analyses.methods.series.figures import CellFigures
    from chopper_interop.analyses.methods.series.samples import Series

__all__ = ["telemetry"]

_CONVENTIONS = {
    "between samples": "power, temperatures and counters are interpolated linearly from sample to sample; "
    "clocks and everything else hold until the next sample; limits, settings and counts of faults, which "
    "are recorded where they change, hold until sampling ends",
    "gaps": "between samples further apart than 6 median periods a value is unknown: that time is "
    "not covered",
    "mean and median": "weighted by the time in which values are known; where none is, the mean is null "
    "and the median is that of the samples",
    "several series": "rows of nodes and of the job are over all GPUs' time together: their mean is "
    "that of a GPU, not the sum, their peak that of the highest",
    "counters": "rise is the increase of the counter in the covered time, mean and the others are "
    "of its count; where it decreased it was reset, or is unknown, and that rise is left out",
}
_FIGURES = ("mean", "median", "min", "max")
_COLUMNS = (
    dict.fromkeys(("name", "unit", "source"), TEXT)
    | dict.fromkeys(("window_ns", "covered_ns"), INTEGER)
    | {"known_by": TEXT}
    | dict.fromkeys((*_FIGURES, "mean_uncertainty", "rise"), REAL)
    | dict.fromkeys(("samples", "resolution_ns"), INTEGER)
)
_ORDER = (
    "power, clock, temperature, utilization and memory, throttling, the rest, what is of one die of "
    "several; of one quantity the best known first; at the end what is not covered"
)
_DIE = re.compile(r".*\b(?:XCP|XCD|AID|HBM stack|VR|MCA) ?\d+.*")
_NAMED = (
    *(pattern for pattern in POWER.patterns if not pattern.is_counter),
    *GFXCLK.patterns,
    SeriesPattern(r"temperature (?:hotspot|GPU|edge|memory)", {}),
    SeriesPattern(r"GFX activity|(?:GPU|SM) (?:activity|utilization)", {}),
    SeriesPattern(
        r"memory (?:activity|utilization|used|free|allocated|reserved|clock)|VRAM .*", {}
    ),
    *THROTTLE.patterns,
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
    """Time-weighted mean, median, minimum and maximum of every sampled series.

    Parameters
    ----------
    trace
        Any trace with telemetry.
    by
        Owner of a row: ``rank`` (each series by itself), ``node`` or ``job`` (all its GPUs together);
        optionally the part of their work, by names of `grouping.GRAINS`: ``rank,iteration``,
        ``rank,phase``, ``node,iteration,phase``, …
    steps
        Training steps, each by itself: ``each``, ``10``, ``10-12``; all of the trace by default.
    ranks
        Ranks whose GPUs and nodes count: ``0,4-7``; all by default.
    names
        Series by name, as patterns like those of file names, separated by commas:
        ``socket power,*clock*``.
    window
        ``all``: all of the telemetry; by default from the first start to the last end of GPU work.
    compat
        ``charllm``: the definitions and units of CharLLM-PPT.

    Returns
    -------
    Result
        One row for each series, or for each name, unit and source on a node or in the job, and each
        group of work; power, clock and temperature first. `name`, `unit`, `source`; the owner (`rank`,
        `device`, `host`); the length of the window (`window_ns`; for groups by phase or the like, the
        union of the time in which the GPU ran work of the group), the part of it covered by samples
        (`covered_ns`) and how it is known (`known_by`); `mean`, `median`, `min` and `max` in `unit`;
        `rise` of counters; number of `samples` in the window; `resolution_ns`, the time between samples
        and the uncertainty of their time stamps; `mean_uncertainty` in `unit`; `is_best`, true for the
        row to use where several tools sample the same quantity. Counters that were reset are counted in
        the summary; GPUs on which no rank is known to compute (`rank` is null) are noted.

    Notes
    -----
    With `compat`, the averages and peaks of CharLLM-PPT dad5f278 (MICRO 2025,
    ``calculate_average_metric``): the sum of value times time to the next sample by the sum of
    times, over all samples, in GHz for MHz and GiB/s for KB/s.
    """
    if compat:
        options = {"by": by != RANK, "steps": bool(steps), "window": bool(window)}
        return _charllm_averages(trace, compat, ranks, names, options)
    owner = by_of(by)
    matches = series_samples.names_in(names)
    selected = series_samples.read(trace, ranks, lambda s: matches(s["name"]))
    plan = Plan(trace, owner, steps, window)
    columns = _COLUMNS if owner.kind == RANK else {**_COLUMNS, "series": INTEGER}
    builder = _RowBuilder(plan, Rows(plan, owner, trace.meta.job, columns))
    for group in owner.groups(selected, lambda s: s.place, lambda s: (s.name, s.unit, s.source)):
        builder.add(group)
    texts = conventions(plan) | _CONVENTIONS | series_known.CONVENTIONS
    texts["order"] = _ORDER
    summary = _summary(selected) | {"counters_reset": builder.counters_reset}
    table = builder.rows.table()
    keys = [name for name in table.column_names if name not in columns] + ["name", "unit"]
    table = _ordered(series_known.with_best(table, keys))
    return Result("telemetry", table, summary, texts, notes=notes(trace, plan, selected, steps))


def _charllm_averages(
    trace: Trace, compat: str, ranks: str, names: str, options: dict[str, bool]
) -> Result:
    series_charllm.check(compat, options)
    matches = series_samples.names_in(names)
    selected = series_samples.read(trace, ranks, lambda s: matches(s["name"]))
    table = series_charllm.averages(selected)
    summary = {"series": table.num_rows}
    return Result("telemetry", table, summary, dict(series_charllm.AVERAGES))


class _RowBuilder:
    """Builds the rows of groups of series."""

    def __init__(self, plan: Plan, rows: Rows) -> None:
        self._plan, self.rows = plan, rows
        self.counters_reset = 0

    def add(self, group: Sequence[Series]) -> None:
        """Add the rows of series that count together: one for each cell in which they have values."""
        plan, parts = self._plan, []
        window, rise = np.zeros(plan.cells, np.int64), np.zeros(plan.cells)
        known, time = [], []
        for series in group:
            spans = plan.averaging_windows(
                series.place, int(series.samples.ts[0]), int(series.samples.ts[-1])
            )
            pieces = series_figures.pieces(series.samples, spans, is_ended=series.is_ended)
            parts.append(pieces)
            window += spans.length(plan.cells)
            is_exact = plan.is_all or not series.place.rows.size
            known.append(
                series_known.series_confidence(series, spans, plan.cells, is_exact=is_exact)
            )
            time.append(gather.group_sums(pieces.cell, pieces.width, plan.cells))
            if series.rule.how is How.COUNTER:
                increase = pieces.last - pieces.first
                self.counters_reset += int(np.count_nonzero(increase < 0))
                rise += np.bincount(pieces.cell, np.maximum(increase, 0), plan.cells)
        figures = series_figures.figures(parts, plan.cells)
        cell = np.flatnonzero((figures.covered > 0) | (figures.samples > 0))
        how = group[0].rule.how
        has_rise = (figures.covered > 0) & (how is How.COUNTER)
        needs_samples = how not in {How.STEADY, How.LOGGED, How.WINDOW}
        covered = np.zeros(plan.cells, np.int64)
        for part, duration in zip(known, time, strict=True):
            covered += np.where((part.sure > 0) | (not needs_samples), duration, 0)
        combined = series_known.together(known, time)
        columns = {
            "window_ns": window, "covered_ns": covered, "mean_uncertainty": combined.uncertainty,
            "known_by": series_known.names(how, combined.sure, figures.samples),
            "rise": np.where(has_rise, rise, np.nan),
        }  # fmt: skip
        self._add_rows(
            group, cell, figures, {name: figure[cell] for name, figure in columns.items()}
        )

    def _add_rows(
        self, group: Sequence[Series], cell: Array, figures: CellFigures, known: dict[str, Array]
    ) -> None:
        first = group[0]
        values = (figures.mean, figures.median, figures.minimum, figures.maximum)
        columns: dict[str, Any] = {"name": first.name, "unit": first.unit, "source": first.source}
        columns |= {name: figure[cell] for name, figure in zip(_FIGURES, values, strict=True)}
        columns |= {"samples": figures.samples[cell], "series": len(group)} | known
        columns["resolution_ns"] = max(s.samples.resolution_ns for s in group)
        self.rows.add(first.place, cell, columns)


def _summary(selected: Sequence[Series]) -> dict[str, Any]:
    """Count series, GPUs and samples."""
    gpus = {(s.place.rank, s.place.device) for s in selected if s.place.device >= 0}
    owned = {(s.place.rank, s.place.device) for s in selected if s.place.is_owned}
    return {
        "series": len(selected),
        "gpus": len(gpus),
        "gpus_without_rank": len(gpus - owned),
        "samples": sum(s.count for s in selected),
        "left_out": sum(s.left_out for s in selected),
        "sources": ", ".join(sorted({s.source for s in selected})) or None,
    }


def _ordered(table: pa.Table) -> pa.Table:
    """Rows with `name`, `covered_ns` and `is_best`, in the order that `_ORDER` states."""
    names = arrow.single_chunk(table["name"]).dictionary_encode()
    texts = names.dictionary.to_pylist()
    code = names.indices.to_numpy(zero_copy_only=False)
    alphabet = np.argsort(np.argsort(np.array(texts, np.str_), kind="stable"))
    place = np.array([_place(text) for text in texts], np.int64)
    uncovered = arrow.to_numpy(table["covered_ns"]) == 0
    others = ~table["is_best"].to_numpy()
    return arrow.take(table, np.lexsort((others, alphabet[code], place[code], uncovered)))


def _place(name: str) -> int:
    """Position of a name's kind of quantity in the display order, from 0."""
    if _DIE.fullmatch(name):
        return len(_NAMED) + 1
    return next((n for n, kind in enumerate(_NAMED) if kind.match(name)), len(_NAMED))
