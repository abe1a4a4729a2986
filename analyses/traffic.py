"""Bytes over PCIe, xGMI, NVLink and InfiniBand, by link, direction, GPU, node and step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.analyses.methods.series import charllm as series_charllm
from chopper_interop.analyses.methods.series import figures as series_figures
from chopper_interop.analyses.methods.series import link_traffic
from chopper_interop.analyses.methods.series.averaging import (
    JOB,
    RANK,
    AveragingWindows,
    By,
    Plan,
    by_of,
)
from chopper_interop.analyses.methods.series.result_notes import conventions, notes
from chopper_interop.analyses.methods.series.rows import COUNT, INTEGER, REAL, TEXT, Rows
from chopper_interop.arrays import Array
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.series.figures import CellFigures
    from chopper_interop.analyses.methods.series.link_traffic import LinkTraffic

__all__ = ["traffic"]

_CONVENTIONS = {
    "counters": "the increase of a counter between two samples is spread evenly over that time, however "
    "long it is; where a counter fell, it wrapped around (wraps) if the link can have carried that much, "
    "and else was reset (resets), and the bytes in between are unknown",
    "rates": "where only a rate is sampled, it holds until the next sample (method rate), and is "
    "unknown between samples further apart than 6 median periods",
    "best": "where several tools sample a link, a counter is preferred, then the finest resolution",
    "directions": "sent and received are as seen by the GPU or node: xGMI's written and read; both, "
    "where a tool adds them up",
    "rates of rows": "mean_gbps is bytes by their known time, summed over the series of the "
    "row; peak_gbps is the highest between two samples of one series",
    "units": "1 GB/s is 1e9 byte/s; KB and KiB of counters are 1024 bytes",
}
_COLUMNS = (
    dict.fromkeys(("link", "direction", "port"), TEXT)
    | {"bytes": COUNT, "mean_gbps": REAL, "peak_gbps": REAL}
    | dict.fromkeys(("window_ns", "covered_ns", "wraps", "resets"), INTEGER)
    | dict.fromkeys(("method", "source"), TEXT)
    | dict.fromkeys(("samples", "resolution_ns"), INTEGER)
)


def traffic(
    trace: Trace,
    *,
    by: str = RANK,
    steps: str = "",
    ranks: str = "",
    window: str = "",
    compat: str = "",
) -> Result:
    """Bytes over each link, from telemetry counters, or from rates where only these are sampled.

    Parameters
    ----------
    trace
        Any trace with telemetry.
    by
        Owner of a row: ``rank`` (a GPU, or the node that a rank sampled), ``node`` or ``job``;
        optionally the part of the GPUs' work: ``rank,iteration``, ``job,phase``, …
    steps
        Training steps, each by itself: ``each``, ``10``, ``10-12``; all of the trace by default.
    ranks
        Ranks whose GPUs and nodes count: ``0,4-7``; all by default.
    window
        ``all``: all of the telemetry; by default from the first start to the last end of GPU work.
    compat
        ``charllm``: the volumes of CharLLM-PPT's figures.

    Returns
    -------
    Result
        One row for each link (`link`: PCIe, xGMI, NVLink, InfiniBand), `direction` and, by rank,
        `port`, with the `bytes` over it in the known part of the window (`covered_ns` of
        `window_ns`), their mean and peak rate, the number of times the counter wrapped around
        (`wraps`) or was reset (`resets`), and the `method`, ``counter`` or sampled ``rate``. The
        summary has the bytes of the job by link and direction.

    Notes
    -----
    NVML's counters of PCIe (B) and NVLink (KiB), as Zeus reads them, have 32 bits; those of
    gpu_metrics (xGMI, KB) and of InfiniBand 64. With `compat`, `calculate_average_metric` of
    CharLLM-PPT dad5f278, which is one count short at each wrap.
    """
    if compat:
        options = {"by": by != RANK, "steps": bool(steps), "window": bool(window)}
        series_charllm.check(compat, options)
        table = series_charllm.volumes(link_traffic.read(trace, ranks))
        return Result("traffic", table, {"links": table.num_rows}, dict(series_charllm.VOLUMES))
    owner = by_of(by)
    links = [link_traffic.resolve(series) for series in link_traffic.read(trace, ranks)]
    best = link_traffic.best(links)
    plan = Plan(trace, owner, steps, window)
    rows = Rows(plan, owner, trace.meta.job, _columns(owner))
    for group in owner.groups(
        best, lambda one: one.series.place, lambda one: (one.way.link.link, one.way.direction)
    ):
        _add_rows(rows, plan, group)
    texts = notes(trace, plan, [link.series for link in best], steps, "of links")
    texts["left out"] += _left_out(links, best)
    if any(link.flow.is_ambiguous for link in best):
        texts["wraps unseen"] = (
            "32-bit counters were sampled so rarely that they may have wrapped around more than once "
            "between two samples: the true number of bytes may be larger"
        )
    summary = _summary(best, Plan(trace, by_of(JOB), steps, window))
    return Result("traffic", rows.table(), summary, conventions(plan) | _CONVENTIONS, notes=texts)


def _columns(owner: By) -> dict[str, str]:
    if owner.kind == RANK:
        return _COLUMNS
    return {c: kind for c, kind in _COLUMNS.items() if c != "port"} | {"series": INTEGER}


def _add_rows(rows: Rows, plan: Plan, group: Sequence[LinkTraffic]) -> None:
    """Add the rows of series that count together: one for each cell in which they have values."""
    n = plan.cells
    total = {c: np.zeros(n) for c in ("bytes", "mean")}
    counts = {c: np.zeros(n, np.int64) for c in ("window", "covered", "wraps", "resets", "samples")}
    peak = np.full(n, np.nan)
    for one in group:
        ts = one.flow.rates.ts
        spans = plan.averaging_windows(one.series.place, int(ts[0]), int(ts[-1]))
        figures = _figures(one, spans, n)
        known = figures.covered > 0
        total["bytes"] += figures.area * 1e-9
        total["mean"] += np.where(known, figures.mean, 0.0)
        peak = np.fmax(peak, np.where(known, figures.maximum, np.nan))
        counts["window"] += spans.length(n)
        counts["covered"] += figures.covered
        counts["wraps"] += _count_within(ts, one.flow.wrapped, spans, n)
        counts["resets"] += _count_within(ts, one.flow.reset, spans, n)
        counts["samples"] += figures.samples
    cell = np.flatnonzero((counts["covered"] > 0) | (counts["resets"] > 0))
    known = counts["covered"][cell] > 0
    first = group[0]
    rows.add(
        first.series.place,
        cell,
        {
            "link": first.way.link.link,
            "direction": first.way.direction,
            "port": first.way.port,
            "bytes": np.where(known, np.round(total["bytes"][cell]), np.nan),
            "mean_gbps": np.where(known, total["mean"][cell] * 1e-9, np.nan),
            "peak_gbps": peak[cell] * 1e-9,
            "window_ns": counts["window"][cell],
            "covered_ns": counts["covered"][cell],
            "wraps": counts["wraps"][cell],
            "resets": counts["resets"][cell],
            "method": ", ".join(sorted({one.way.link.method for one in group})),
            "source": ", ".join(sorted({one.series.source for one in group})),
            "samples": counts["samples"][cell],
            "resolution_ns": max(one.series.samples.resolution_ns for one in group),
            "series": len(group),
        },
    )


def _figures(one: LinkTraffic, spans: AveragingWindows, n: int) -> CellFigures:
    pieces = series_figures.pieces(one.flow.rates, spans)
    return series_figures.figures([pieces], n, has_medians=False)


def _count_within(ts: Array, at: Array, spans: AveragingWindows, n: int) -> Array:
    """Number of the intervals ``ts[at]`` to ``ts[at + 1]`` that overlap the spans of each cell.

    Of intervals that do not overlap each other, those that begin before the span's end less those that
    end by its start.
    """
    begun = np.searchsorted(ts[at], spans.end, "left")
    ended = np.searchsorted(ts[at + 1], spans.start, "right")
    counts: Array = np.bincount(spans.cell, begun - ended, n).astype(np.int64)
    return counts


def _left_out(links: Sequence[LinkTraffic], best: Sequence[LinkTraffic]) -> str:
    others = len(links) - len(best)
    return f"; {others} series of links that a better series records" if others else ""


def _summary(best: Sequence[LinkTraffic], plan: Plan) -> dict[str, Any]:
    """Bytes of the job by link and direction, in all selected steps."""
    total: dict[str, float] = {}
    wraps = resets = 0
    for one in best:
        ts = one.flow.rates.ts
        spans = plan.averaging_windows(one.series.place, int(ts[0]), int(ts[-1]))
        figures = _figures(one, spans, plan.cells)
        if figures.covered.any():
            name = f"{one.way.link.link.lower()}_{one.way.direction}_bytes"
            total[name] = total.get(name, 0.0) + float(figures.area.sum()) * 1e-9
        wraps += int(_count_within(ts, one.flow.wrapped, spans, plan.cells).sum())
        resets += int(_count_within(ts, one.flow.reset, spans, plan.cells).sum())
    known = {name: round(value) for name, value in sorted(total.items())}
    return known | {"series": len(best), "wraps": wraps, "resets": resets}
