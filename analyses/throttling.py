"""How long the clock of each GPU was held down, and by what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.result import Result
from chopper_interop.series import figures as series_figures
from chopper_interop.series import samples as series_samples
from chopper_interop.series.rows import COUNT, REAL, TEXT, WHOLE, Rows
from chopper_interop.series.stretches import NODE, RANK, Plan, by_of
from chopper_interop.series.told import conventions, notes
from chopper_interop.telemetry import throttle_causes
from chopper_interop.telemetry.names import GFXCLK
from chopper_interop.telemetry.throttle_causes import ANY, HOLDING, METHODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.series.figures import Figures
    from chopper_interop.series.samples import Place, Series
    from chopper_interop.series.stretches import By
    from chopper_interop.telemetry.samples import Samples
    from chopper_interop.telemetry.throttle_causes import Share
    from chopper_interop.trace import Trace

__all__ = ["throttling"]

_CONVENTIONS = {
    "shares": "residency: firmware intervals in which it held by all between two samples; time: what "
    "the driver counted by the time between samples; activity: what the tool measured at a sample, "
    "until the next; status and reasons: whether it held at a sample, until the next",
    "best": "of several that tell one cause the first of these, then the finest",
    "any": "at every moment the cause with the largest share: their times may or may not overlap, so "
    "that the clock was held down for at least so long. Settings of clocks and low utilization are "
    "rows and do not count in it",
    "dies": "of several dies of a GPU the mean",
    "several GPUs": "rows of nodes and of the job are shares of all GPUs' time together",
    "clock": "clock_mhz is the mean core clock over the same window, of all dies",
}
_COLUMNS = (
    {"cause": TEXT, "cause_class": TEXT, "throttled_share": REAL, "throttled_ns": COUNT}
    | {"peak_share": REAL, "clock_mhz": REAL}
    | dict.fromkeys(("window_ns", "covered_ns"), WHOLE)
    | dict.fromkeys(("method", "source"), TEXT)
    | dict.fromkeys(("samples", "resolution_ns"), WHOLE)
)


@dataclass(frozen=True, eq=False)
class _Told:
    """What one tool tells of one cause on one GPU."""

    place: Place
    cause: str
    method: str
    source: str
    parts: tuple[Samples, ...]
    is_ended: bool

    @property
    def resolution_ns(self) -> int:
        """The longest of its series."""
        return max(s.resolution_ns for s in self.parts)


def throttling(
    trace: Trace, *, by: str = RANK, steps: str = "", ranks: str = "", window: str = ""
) -> Result:
    """Share of time in which the clock was held down, by cause, from whatever telemetry tells it.

    Parameters
    ----------
    trace
        Any trace with telemetry.
    by
        Whose a row is: ``rank`` (a GPU), ``node`` or ``job``, and what of its work it is of, names
        out of `grouping.GRAINS`: ``rank,iteration``, ``rank,phase``, …
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself; else all of the trace.
    ranks
        These ranks' GPUs, as ``0,4-7``; else all.
    window
        ``all``: all of the telemetry; else from the first start to the last end of GPU work.

    Returns
    -------
    Result
        One row for each GPU and cause, and one of all causes together (`cause` any): `cause_class`
        (power, thermal, hardware; setting, idle), `throttled_share` of the time that is known
        (`covered_ns` of `window_ns`), the same as time (`throttled_ns`), the highest share between
        two samples (`peak_share`); beside it the mean core clock (`clock_mhz`); and what tells it:
        `method`, `source`, `resolution_ns`. The summary has the shares of the job's GPU time by
        class.

    Notes
    -----
    Residencies are gpu_metrics 1.6 to 1.8 and ``amd-smi metric --throttle`` (ROCm 6.3 to 7.x), reasons
    NVML's ``clocks_event_reasons``, time DCGM's violation fields 240 to 245 and the counters of
    nvidia-smi since driver 555.
    """
    who = by_of(by)
    found = series_samples.read(trace, ranks, _is_wanted)
    every, impossible = _causes(found)
    best = _best(every)
    clocks = _clocks(found)
    plan = Plan(trace, who, steps, window)
    rows = Rows(plan, who, trace.meta.job, _columns(who))
    for group in _grouped([*_of_all(best), *best], who):
        _add(rows, plan, group, clocks)
    used = [s for s in found if throttle_causes.is_told(s.name, s.unit)]
    told = notes(trace, plan, used, steps, "of causes")
    told["left out"] += _left_out(len(every) - len(best), impossible)
    if not used:
        told["no rows"] = "no telemetry in the trace tells why a clock was held down"
    summary = _summary(rows.table(), best)
    return Result("throttling", rows.table(), summary, conventions(plan) | _CONVENTIONS, notes=told)


def _columns(who: By) -> dict[str, str]:
    return _COLUMNS if who.whom == RANK else {**_COLUMNS, "gpus": WHOLE}


def _is_wanted(series: dict[str, Any]) -> bool:
    name, unit = series["name"], series["unit"]
    return throttle_causes.is_told(name, unit) or _is_clock(name, unit)


def _is_clock(name: str, unit: str) -> bool:
    return any(told.match(name) and unit in told.units for told in GFXCLK.told)


def _causes(found: Sequence[Series]) -> tuple[list[_Told], int]:
    """What is told of each cause, and how many samples say what cannot be."""
    by_cause: dict[tuple[Any, ...], list[Share]] = {}
    ended: dict[tuple[Place, str, str, str], bool] = {}
    impossible = 0
    for series in found:
        for share in throttle_causes.shares(series.name, series.unit, series.samples):
            key = (series.place, share.cause, share.method, series.source)
            by_cause.setdefault(key, []).append(share)
            ended[series.place, series.source, share.cause, share.method] = series.is_ended
            impossible += share.impossible
    every = [
        _Told(
            place,
            cause,
            method,
            source,
            tuple(s.samples for s in parts),
            ended[place, source, cause, method],
        )
        for (place, cause, method, source), parts in by_cause.items()
    ]
    return every, impossible


def _best(every: Sequence[_Told]) -> list[_Told]:
    """For each cause of a place what tells it best."""
    by_cause: dict[tuple[Any, ...], list[_Told]] = {}
    for one in every:
        by_cause.setdefault((one.place, one.cause), []).append(one)
    return [
        min(several, key=lambda t: throttle_causes.rank(t.method, t.parts))
        for several in by_cause.values()
    ]


def _of_all(best: Sequence[_Told]) -> list[_Told]:
    """All causes that hold a clock down together, of each place."""
    places: dict[Place, list[_Told]] = {}
    for one in best:
        if throttle_causes.class_of(one.cause) in HOLDING:
            places.setdefault(one.place, []).append(one)
    made = []
    for place, several in places.items():
        samples = throttle_causes.together({one.cause: list(one.parts) for one in several})
        methods = ", ".join(m for m in METHODS if m in {one.method for one in several})
        source = ", ".join(sorted({one.source for one in several}))
        is_ended = any(one.is_ended for one in several)
        made.append(_Told(place, ANY, methods, source, (samples,), is_ended))
    return made


def _grouped(every: Sequence[_Told], who: By) -> list[list[_Told]]:
    if who.whom == RANK:
        order = {
            place: number for number, place in enumerate(dict.fromkeys(t.place for t in every))
        }
        return [[one] for one in sorted(every, key=lambda t: order[t.place])]
    groups: dict[tuple[str, str], list[_Told]] = {}
    for one in every:
        host = one.place.host if who.whom == NODE else ""
        groups.setdefault((host, one.cause), []).append(one)
    return list(groups.values())


def _clocks(found: Sequence[Series]) -> dict[Place, list[Samples]]:
    """Core clock of each place by the tool that samples it best; of a GPU with dies, each."""
    by_tool: dict[Place, dict[tuple[int, str], list[Samples]]] = {}
    for series in found:
        order = [i for i, told in enumerate(GFXCLK.told) if told.match(series.name)]
        if order:
            tools = by_tool.setdefault(series.place, {})
            tools.setdefault((order[0], series.source), []).append(series.samples)
    return {
        place: tools[min(tools, key=lambda t: (min(s.resolution_ns for s in tools[t]), t))]
        for place, tools in by_tool.items()
    }


def _add(
    rows: Rows, plan: Plan, group: Sequence[_Told], clocks: dict[Place, list[Samples]]
) -> None:
    """Rows of one cause: one for each cell of which something is known."""
    n = plan.cells
    area, peak = np.zeros(n), np.full(n, np.nan)
    window, covered, samples = (np.zeros(n, np.int64) for _ in range(3))
    for one in group:
        dies = len(one.parts)
        parts = [(one.place, part) for part in one.parts]
        shares, length = _figures(plan, parts, is_ended=one.is_ended)
        area += shares.area / dies
        window += length // dies
        covered += shares.covered // dies
        samples += shares.samples
        peak = np.fmax(peak, shares.most)
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
    plan: Plan, parts: Sequence[tuple[Place, Samples]], *, is_ended: bool = False
) -> tuple[Figures, Array]:
    """Figures of samples of places together, and how long their windows are."""
    window = np.zeros(plan.cells, np.int64)
    seen = []
    for place, samples in parts:
        stretches = plan.of(place, int(samples.ts[0]), int(samples.ts[-1]))
        window += stretches.length(plan.cells)
        seen.append(series_figures.pieces(samples, stretches, is_ended=is_ended))
    return series_figures.figures(seen, plan.cells, has_medians=False), window


def _left_out(worse: int, impossible: int) -> str:
    text = f"; {worse} series of causes that a better one tells" if worse else ""
    if impossible:
        text += f"; {impossible} samples of counters that fell or ran faster than time"
    return text


def _summary(table: Any, best: Sequence[_Told]) -> dict[str, Any]:
    """Shares of all GPUs' known time: of any cause, and of the largest cause of each class."""
    rows = table.select(["cause", "cause_class", "throttled_ns", "covered_ns"]).to_pylist()
    by_cause: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        total = by_cause.setdefault((row["cause_class"], row["cause"]), [0, 0])
        total[0] += row["throttled_ns"] or 0
        total[1] += row["covered_ns"]
    told: dict[str, Any] = {"throttled_share": None}
    told |= {f"{kind}_share": None for kind in sorted(HOLDING)}
    for (kind, _), (held, covered) in by_cause.items():
        name = "throttled_share" if kind == ANY else f"{kind}_share"
        if covered and name in told:
            told[name] = max(told[name] or 0.0, held / covered)
    places = {one.place for one in best}
    return told | {"gpus": len(places), "causes": len({one.cause for one in best})}
