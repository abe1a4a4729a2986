"""Time in which the clock of each GPU was held down, by cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.analyses.methods.series import figures as series_figures
from chopper_interop.analyses.methods.series import samples as series_samples
from chopper_interop.analyses.methods.series.averaging import RANK, By, Plan, by_of
from chopper_interop.analyses.methods.series.result_notes import conventions, notes
from chopper_interop.analyses.methods.series.rows import COUNT, INTEGER, REAL, TEXT, Rows
from chopper_interop.annotate.telemetry import throttle_causes
from chopper_interop.annotate.telemetry.quantity_series import GFXCLK
from chopper_interop.annotate.telemetry.throttle_causes import ANY, HOLDING, METHODS
from chopper_interop.arrays import Array
from chopper_interop.grouping import by_key, grouped
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.series.figures import CellFigures
    from chopper_interop.analyses.methods.series.samples import Series, SeriesPlace
    from chopper_interop.annotate.telemetry.samples import Samples

__all__ = ["throttling"]

_CONVENTIONS = {
    "shares": "residency: share of the firmware intervals between two samples in which the cause held; "
    "time: time counted by the driver by the time between samples; activity: value measured by the tool at "
    "a sample, until the next; status and reasons: state at a sample, until the next",
    "best": "where several series have one cause, the first of these methods, then the finest",
    "any": "at every time the cause with the largest share: the times of causes may or may not overlap, "
    "so that this is a lower bound. Settings of clocks and low utilization have rows "
    "and do not count in it",
    "dies": "the mean of several dies of a GPU",
    "several GPUs": "rows of nodes and of the job are shares of all GPUs' time together",
    "clock": "clock_mhz is the mean core clock over the same window, of all dies",
}
_COLUMNS = (
    {"cause": TEXT, "cause_class": TEXT, "throttled_share": REAL, "throttled_ns": COUNT}
    | {"peak_share": REAL, "clock_mhz": REAL}
    | dict.fromkeys(("window_ns", "covered_ns"), INTEGER)
    | dict.fromkeys(("method", "source"), TEXT)
    | dict.fromkeys(("samples", "resolution_ns"), INTEGER)
)


@dataclass(frozen=True, eq=False)
class _CauseSeries:
    """Samples of one cause on one GPU, by one tool and method; one part for each die."""

    place: SeriesPlace
    cause: str
    method: str
    source: str
    parts: tuple[Samples, ...]
    are_ended: tuple[bool, ...]

    @property
    def resolution_ns(self) -> int:
        """Longest resolution of its parts."""
        return max(s.resolution_ns for s in self.parts)


def throttling(
    trace: Trace, *, by: str = RANK, steps: str = "", ranks: str = "", window: str = ""
) -> Result:
    """Share of time in which the clock was held down, by cause, from any telemetry that records it.

    Parameters
    ----------
    trace
        Any trace with telemetry.
    by
        Owner of a row: ``rank`` (a GPU), ``node`` or ``job``; optionally the part of its work, by
        names of `grouping.GRAINS`: ``rank,iteration``, ``rank,phase``, …
    steps
        Training steps, each by itself: ``each``, ``10``, ``10-12``; all of the trace by default.
    ranks
        Ranks whose GPUs count: ``0,4-7``; all by default.
    window
        ``all``: all of the telemetry; by default from the first start to the last end of GPU work.

    Returns
    -------
    Result
        One row for each GPU and cause, and one of all causes together (`cause` any): `cause_class`
        (power, thermal, hardware; setting, idle), `throttled_share` of the known time
        (`covered_ns` of `window_ns`), the same as time (`throttled_ns`), the highest share between
        two samples (`peak_share`), the mean core clock (`clock_mhz`), and the origin: `method`,
        `source`, `resolution_ns`. The summary has the shares of the job's GPU time by class.

    Notes
    -----
    Residencies are from gpu_metrics 1.6 to 1.8 and ``amd-smi metric --throttle`` (ROCm 6.3 to 7.x),
    reasons from NVML's ``clocks_event_reasons``, times from DCGM's violation fields 240 to 245 and the
    counters of nvidia-smi since driver 555.
    """
    owner = by_of(by)
    selected = series_samples.read(trace, ranks, _is_cause_or_clock)
    all_causes, impossible = _cause_series(selected)
    best = _best(all_causes)
    clocks = _clocks(selected)
    plan = Plan(trace, owner, steps, window)
    rows = Rows(plan, owner, trace.meta.job, _columns(owner))
    for group in _grouped([*_any_cause(best), *best], owner):
        _add_rows(rows, plan, group, clocks)
    causes = [s for s in selected if throttle_causes.is_cause(s.name, s.unit)]
    texts = notes(trace, plan, causes, steps, "of causes")
    texts["left out"] += _left_out(len(all_causes) - len(best), impossible)
    if not causes:
        texts["no rows"] = "no telemetry in the trace records why a clock was held down"
    table = rows.table()
    summary = _summary(table, best)
    return Result("throttling", table, summary, conventions(plan) | _CONVENTIONS, notes=texts)


def _columns(owner: By) -> dict[str, str]:
    return _COLUMNS if owner.kind == RANK else {**_COLUMNS, "gpus": INTEGER}


def _is_cause_or_clock(series: dict[str, Any]) -> bool:
    name, unit = series["name"], series["unit"]
    return throttle_causes.is_cause(name, unit) or _is_clock(name, unit)


def _is_clock(name: str, unit: str) -> bool:
    return any(pattern.match(name) and unit in pattern.units for pattern in GFXCLK.patterns)


def _cause_series(selected: Sequence[Series]) -> tuple[list[_CauseSeries], int]:
    """Return the samples of each cause, location, method and source, and the number of impossible samples."""
    shares = [
        ((series.place, share.cause, share.method, series.source), (share, series.is_ended))
        for series in selected
        for share in throttle_causes.shares(series.name, series.unit, series.samples)
    ]
    all_causes = [
        _CauseSeries(*key, tuple(s.samples for s, _ in parts), tuple(ended for _, ended in parts))
        for key, parts in grouped(shares).items()
    ]
    return all_causes, sum(share.impossible for _, (share, _) in shares)


def _best(all_causes: Sequence[_CauseSeries]) -> list[_CauseSeries]:
    """For each cause at a location the series with the best method."""
    return [
        min(several, key=lambda s: throttle_causes.precision_key(s.method, s.parts))
        for several in by_key(all_causes, lambda s: (s.place, s.cause)).values()
    ]


def _any_cause(best: Sequence[_CauseSeries]) -> list[_CauseSeries]:
    """Combine all causes that hold a clock down, at each location."""
    holding = [series for series in best if throttle_causes.class_of(series.cause) in HOLDING]
    combined = []
    for place, several in by_key(holding, lambda s: s.place).items():
        samples = throttle_causes.combine_causes({one.cause: list(one.parts) for one in several})
        methods = ", ".join(m for m in METHODS if m in {one.method for one in several})
        source = ", ".join(sorted({one.source for one in several}))
        is_ended = any(any(one.are_ended) for one in several)
        combined.append(_CauseSeries(place, ANY, methods, source, (samples,), (is_ended,)))
    return combined


def _grouped(all_causes: Sequence[_CauseSeries], owner: By) -> list[list[_CauseSeries]]:
    """Group the series that share rows; by rank, those of a location follow each other."""
    if owner.kind == RANK:
        by_location = by_key(all_causes, lambda s: s.place)
        all_causes = [series for several in by_location.values() for series in several]
    return owner.groups(all_causes, lambda s: s.place, lambda s: s.cause)


def _clocks(selected: Sequence[Series]) -> dict[SeriesPlace, list[Samples]]:
    """Core clock at each location by the tool that samples it best; of a GPU with dies, of each."""
    by_tool: dict[SeriesPlace, dict[tuple[int, str], list[Samples]]] = {}
    for series in selected:
        order = [i for i, pattern in enumerate(GFXCLK.patterns) if pattern.match(series.name)]
        if order:
            tools = by_tool.setdefault(series.place, {})
            tools.setdefault((order[0], series.source), []).append(series.samples)
    return {
        place: tools[min(tools, key=lambda t: (min(s.resolution_ns for s in tools[t]), t))]
        for place, tools in by_tool.items()
    }


def _add_rows(
    rows: Rows, plan: Plan, group: Sequence[_CauseSeries], clocks: dict[SeriesPlace, list[Samples]]
) -> None:
    """Add the rows of one cause: one for each cell in which it is known."""
    n = plan.cells
    area, peak = np.zeros(n), np.full(n, np.nan)
    window, covered, samples = (np.zeros(n, np.int64) for _ in range(3))
    for one in group:
        dies = len(one.parts)
        parts = [(one.place, part) for part in one.parts]
        shares, length = _figures(plan, parts, one.are_ended)
        area += shares.area / dies
        window += length // dies
        covered += shares.covered // dies
        samples += shares.samples
        peak = np.fmax(peak, shares.maximum)
    parts = [(one.place, s) for one in group for s in clocks.get(one.place, [])]
    clock = _figures(plan, parts)[0].mean if parts else np.full(n, np.nan)
    cell = np.flatnonzero((covered > 0) | (samples > 0))
    known = covered[cell] > 0
    first = group[0]
    columns = {
        "cause": first.cause,
        "cause_class": throttle_causes.class_of(first.cause) if first.cause != ANY else ANY,
        "throttled_share": np.where(
            known, np.minimum(area[cell] / np.maximum(covered[cell], 1), 1.0), np.nan
        ),
        "throttled_ns": np.where(known, np.round(area[cell]), np.nan),
        "peak_share": peak[cell],
        "clock_mhz": clock[cell],
        "window_ns": window[cell],
        "covered_ns": covered[cell],
        "method": ", ".join(m for m in METHODS if any(m in one.method for one in group)),
        "source": ", ".join(sorted({one.source for one in group})),
        "samples": samples[cell],
        "resolution_ns": max(one.resolution_ns for one in group),
        "gpus": len(group),
    }
    rows.add(first.place, cell, columns)


def _figures(
    plan: Plan, parts: Sequence[tuple[SeriesPlace, Samples]], are_ended: Sequence[bool] = ()
) -> tuple[CellFigures, Array]:
    """Return the figures of samples at several locations together, and the length of their windows."""
    window = np.zeros(plan.cells, np.int64)
    pieces = []
    for (place, samples), is_ended in zip(parts, are_ended or (False,) * len(parts), strict=True):
        spans = plan.averaging_windows(place, int(samples.ts[0]), int(samples.ts[-1]))
        window += spans.length(plan.cells)
        pieces.append(series_figures.pieces(samples, spans, is_ended=is_ended))
    return series_figures.figures(pieces, plan.cells, has_medians=False), window


def _left_out(worse: int, impossible: int) -> str:
    text = f"; {worse} series of causes that a better series records" if worse else ""
    if impossible:
        text += f"; {impossible} samples of counters that fell or ran faster than time"
    return text


def _summary(table: Any, best: Sequence[_CauseSeries]) -> dict[str, Any]:
    """Shares of all GPUs' known time: of any cause, and the largest of each class of causes."""
    rows = table.select(["cause", "cause_class", "throttled_ns", "covered_ns"]).to_pylist()
    by_cause: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        total = by_cause.setdefault((row["cause_class"], row["cause"]), [0, 0])
        total[0] += row["throttled_ns"] or 0
        total[1] += row["covered_ns"]
    shares: dict[str, Any] = {"throttled_share": None}
    shares |= {f"{kind}_share": None for kind in sorted(HOLDING)}
    for (kind, _), (held, covered) in by_cause.items():
        name = "throttled_share" if kind == ANY else f"{kind}_share"
        if covered and name in shares:
            shares[name] = max(shares[name] or 0.0, held / covered)
    locations = {one.place for one in best}
    return shares | {"gpus": len(locations), "causes": len({one.cause for one in best})}
