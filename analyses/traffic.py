"""What went over PCIe, xGMI, NVLink and InfiniBand, by link, direction, GPU, node and step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.result import Result
from chopper_interop.series import charllm as series_charllm
from chopper_interop.series import figures as series_figures
from chopper_interop.series import link_traffic
from chopper_interop.series.rows import COUNT, REAL, TEXT, WHOLE, Rows
from chopper_interop.series.stretches import JOB, NODE, RANK, Plan, by_of
from chopper_interop.series.told import conventions, notes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.series.figures import Figures
    from chopper_interop.series.link_traffic import Told
    from chopper_interop.series.stretches import By, Stretches
    from chopper_interop.trace import Trace

__all__ = ["traffic"]

_CONVENTIONS = {
    "counters": "what a counter rose by between two samples went evenly over that time, however long "
    "it is; where it fell, it began anew (wraps) if the link can have carried that much, and else was "
    "set back (resets), and what went meanwhile is not known",
    "rates": "where only a rate is sampled, it holds until the next sample (method rate), and is not "
    "known between samples further apart than 6 median periods",
    "best": "of several tools that tell a link the counter counts, then the finest",
    "directions": "sent and received are the GPU's or node's own: xGMI's written and read; both, "
    "where a tool adds them up",
    "rates of rows": "mean_gbps is bytes by the time that they are known of, summed over what makes the "
    "row; peak_gbps is the highest between two samples of one series",
    "units": "1 GB/s is 1e9 byte/s; KB and KiB of counters are 1024 bytes",
}
_COLUMNS = (
    dict.fromkeys(("link", "direction", "port"), TEXT)
    | {"bytes": COUNT, "mean_gbps": REAL, "peak_gbps": REAL}
    | dict.fromkeys(("window_ns", "covered_ns", "wraps", "resets"), WHOLE)
    | dict.fromkeys(("method", "source"), TEXT)
    | dict.fromkeys(("samples", "resolution_ns"), WHOLE)
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
    """Bytes over each link by telemetry's counters, or by rates where only these are sampled.

    Parameters
    ----------
    trace
        Any trace with telemetry.
    by
        Whose a row is: ``rank`` (a GPU, or the node that a rank sampled), ``node`` or ``job``, and
        what of the GPUs' work it is of: ``rank,iteration``, ``job,phase``, …
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself; else all of the trace.
    ranks
        What is of these ranks' GPUs and nodes, as ``0,4-7``; else all.
    window
        ``all``: all of the telemetry; else from the first start to the last end of GPU work.
    compat
        ``charllm``: the volumes of CharLLM-PPT's figures instead.

    Returns
    -------
    Result
        One row for each link (`link`: PCIe, xGMI, NVLink, InfiniBand), `direction` and, of ranks,
        `port`, with the `bytes` that went over it in the part of the window that is known
        (`covered_ns` of `window_ns`), their mean and peak rate, how often the counter began anew
        (`wraps`) or was set back (`resets`), and whether a ``counter`` or a sampled ``rate`` tells
        it. The summary has bytes of the job by link and direction.

    Notes
    -----
    NVML's counters of PCIe (B) and NVLink (KiB), as Zeus reads them, have 32 bits; those of
    gpu_metrics (xGMI, KB) and of InfiniBand 64. With `compat`, `calculate_average_metric` of
    CharLLM-PPT dad5f278, which is one count short at each wrap.
    """
    if compat:
        asked = {"by": by != RANK, "steps": bool(steps), "window": bool(window)}
        series_charllm.check(compat, asked)
        table = series_charllm.volumes(link_traffic.read(trace, ranks))
        told = dict(series_charllm.VOLUMES)
        return Result("traffic", table, {"links": table.num_rows}, told)
    who = by_of(by)
    found = [link_traffic.told(series) for series in link_traffic.read(trace, ranks)]
    best = link_traffic.best(found)
    plan = Plan(trace, who, steps, window)
    rows = Rows(plan, who, trace.meta.job, _columns(who))
    for group in _grouped(best, who):
        _add(rows, plan, group)
    told = notes(trace, plan, [t.series for t in best], steps, "of links")
    told["left out"] += _left_out(found, best)
    if any(t.flow.is_ambiguous for t in best):
        told["wraps unseen"] = (
            "counters of 32 bits were sampled so rarely that they may have begun anew more than once "
            "between two samples: more may have gone over these links"
        )
    whole = Plan(trace, by_of(JOB), steps, window)
    summary = _summary(best, whole)
    return Result("traffic", rows.table(), summary, conventions(plan) | _CONVENTIONS, notes=told)


def _columns(who: By) -> dict[str, str]:
    if who.whom == RANK:
        return _COLUMNS
    return {c: kind for c, kind in _COLUMNS.items() if c != "port"} | {"series": WHOLE}


def _grouped(best: Iterable[Told], who: By) -> list[list[Told]]:
    if who.whom == RANK:
        return [[one] for one in best]
    groups: dict[tuple[str, ...], list[Told]] = {}
    for one in best:
        host = one.series.place.host if who.whom == NODE else ""
        groups.setdefault((host, one.way.link.link, one.way.direction), []).append(one)
    return list(groups.values())


def _add(rows: Rows, plan: Plan, group: Sequence[Told]) -> None:
    """Rows of series that count together: one for each cell of which they know something."""
    n = plan.cells
    total = {c: np.zeros(n) for c in ("bytes", "mean")}
    whole = {c: np.zeros(n, np.int64) for c in ("window", "covered", "wraps", "resets", "samples")}
    peak = np.full(n, np.nan)
    for one in group:
        ts = one.flow.rates.ts
        stretches = plan.of(one.series.place, int(ts[0]), int(ts[-1]))
        figures = _figures(one, stretches, n)
        known = figures.covered > 0
        total["bytes"] += figures.area * 1e-9
        total["mean"] += np.where(known, figures.mean, 0.0)
        peak = np.fmax(peak, np.where(known, figures.most, np.nan))
        whole["window"] += stretches.length(n)
        whole["covered"] += figures.covered
        whole["wraps"] += _within(ts, one.flow.wrapped, stretches, n)
        whole["resets"] += _within(ts, one.flow.reset, stretches, n)
        whole["samples"] += figures.samples
    cell = np.flatnonzero((whole["covered"] > 0) | (whole["resets"] > 0))
    known = whole["covered"][cell] > 0
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
            "window_ns": whole["window"][cell],
            "covered_ns": whole["covered"][cell],
            "wraps": whole["wraps"][cell],
            "resets": whole["resets"][cell],
            "method": ", ".join(sorted({one.way.link.method for one in group})),
            "source": ", ".join(sorted({one.series.source for one in group})),
            "samples": whole["samples"][cell],
            "resolution_ns": max(one.series.samples.resolution_ns for one in group),
            "series": len(group),
        },
    )


def _figures(one: Told, stretches: Stretches, n: int) -> Figures:
    seen = series_figures.pieces(one.flow.rates, stretches)
    return series_figures.figures([seen], n, has_medians=False)


def _within(ts: Array, at: Array, stretches: Stretches, n: int) -> Array:
    """How many of some intervals between samples share time with the stretches of each cell."""
    begun = np.searchsorted(ts[at], stretches.end, "left")
    ended = np.searchsorted(ts[at + 1], stretches.start, "right")
    found: Array = np.bincount(stretches.cell, begun - ended, n).astype(np.int64)
    return found


def _left_out(found: Sequence[Told], best: Sequence[Told]) -> str:
    others = len(found) - len(best)
    return f"; {others} series of links that a better one tells" if others else ""


def _summary(best: Sequence[Told], plan: Plan) -> dict[str, Any]:
    """Bytes of the job by link and direction, in all steps that were asked for."""
    total: dict[str, float] = {}
    wraps = resets = 0
    for one in best:
        ts = one.flow.rates.ts
        stretches = plan.of(one.series.place, int(ts[0]), int(ts[-1]))
        figures = _figures(one, stretches, plan.cells)
        if figures.covered.any():
            name = f"{one.way.link.link.lower()}_{one.way.direction}_bytes"
            total[name] = total.get(name, 0.0) + float(figures.area.sum()) * 1e-9
        wraps += int(_within(ts, one.flow.wrapped, stretches, plan.cells).sum())
        resets += int(_within(ts, one.flow.reset, stretches, plan.cells).sum())
    known = {name: round(value) for name, value in sorted(total.items())}
    return known | {"series": len(best), "wraps": wraps, "resets": resets}
