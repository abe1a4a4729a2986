"""How unlike a job's GPUs are: heat, clock and power beside who is slow, ahead, and last."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import instances, windows
from chopper_interop.columns import spread
from chopper_interop.communication import instances as collective_instances
from chopper_interop.errors import UsageError
from chopper_interop.fleet import compared, slowest
from chopper_interop.fleet import means as gpu_means
from chopper_interop.fleet import places as gpu_places
from chopper_interop.fleet.compared import MEASURED, grouped, parted, values
from chopper_interop.result import Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.fleet.places import Place
    from chopper_interop.trace import Trace

    Row = dict[str, Any]

__all__ = ["imbalance"]

_BY = ("rank", "node", "job", "position", "correlation")
_SPREAD = (*MEASURED, "kernel_time_ns")
_COMPARED = (*_SPREAD, "lead_ns", "late_share")
_CONVENTIONS = {
    "means": "over the time of the window in which samples tell the quantity, idle time included; where samples "
    "stand alone, with nothing known between, of these. Of "
    "several tools the finest that tells nearly all that the best of them tells; of a clock the mean "
    "of its dies, of throttling at every moment the cause that held most",
    "power": "as it is shown, which is filtered and late; mean power in energy, efficiency and sweep is by the "
    "energy counter where that tells it better",
    "median": "of all GPUs that are asked about in the same step, or in all of it: differences and "
    "ratios are to that; slowdown_factor is by the median of the others that do the same",
    "kernels": "kernel_time_ns sums durations of kernels, without fills, copies and communication",
    "lead": "how much sooner a kernel starts than on the last of the ranks that do the same (stages of "
    "a pipeline are compared within), of kernels that all these have equally often in a step",
    "late": "in which share of its collectives a rank came last, alone; certain: by more than clocks "
    "are uncertain",
    "slowest": slowest.CONVENTION,
    "temperature": "of the hotspot on AMD and of the GPU on NVIDIA",
    "links": "all GPU work counts, whether its launch is recorded or not",
    "memset": "fills are no kernels",
    "copies": "are no kernels, unless kernels of the runtime copy (__amd_rocclr_*)",
    "correlation": "over GPUs (of steps, over deviations from the median of the step); null of fewer than "
    "three, and of what is the same everywhere",
}


def imbalance(
    trace: Trace,
    *,
    by: str = "rank",
    steps: str = "",
    ranks: str = "",
    window: str = "",
    gpus_per_node: int = 0,
) -> Result:
    """Heat, clock, power and kernel time of each GPU against the others', and who leads or lags.

    Parameters
    ----------
    trace
        Any trace of several GPUs, or telemetry of them.
    by
        ``rank``: a row for each GPU; ``node``, ``job``: how far its GPUs are apart; ``position``:
        GPUs of equal number in their nodes together (front and rear of the chassis);
        ``correlation``: of each two quantities over GPUs.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself.
    ranks
        These ranks, as ``0,4-7``; else all.
    window
        ``all``: means over all of the telemetry; else from the first start to the last end of the
        rank's GPU work, or all of the telemetry where there is no work.
    gpus_per_node
        So many GPUs are in each node, ranks in its order, where hosts are not told: CharLLM-PPT's
        scripts take 8. 0 if that is not known.

    Returns
    -------
    Result
        By rank: `rank`, `device`, `host`, `gpu_index` (number in its node); means `gfxclk_mhz`,
        `temperature_c`, `memory_temperature_c`, `power_w`, `throttle_share`, each with its
        difference to the median of all GPUs and, but for throttling, its ratio; `kernel_time_ns` and
        `slowdown_factor` (by the median of the others'); `lead_ns`, `lead_median_ns` and
        `last_kernels` of `lead_kernels` that all ranks have; `collectives`, `late_share` in which it
        came last, `times_last_certain`, and `caused_wait_ns`, which others spent waiting for it. By
        node and job of each quantity mean, least, most, `_spread_` (most - least), `_ratio` (most by
        least) and which GPUs have these. By position means over nodes, and of differences to the
        median of the node. Null where telemetry or the trace tells nothing.

    Notes
    -----
    Lead values by Lit Silicon (arXiv 2511.09861): lead[g, k] = max over GPUs of T[., k] - T[g, k],
    with T the start of kernel k, summed over k. Heat maps of GPUs by their place as in figures 5
    and 17 of CharLLM-PPT (arXiv 2509.10371).
    """
    if by not in _BY:
        raise UsageError(f"by={by}: there is no {by!r}", hint=f"there are {', '.join(_BY)}")
    if gpus_per_node < 0:
        raise UsageError(f"gpus_per_node={gpus_per_node}: it must be a number from 0 on")
    found = gpu_places.of(
        trace, gpu_means.asked(edge=True), steps=steps, ranks=ranks, window=window
    )
    places = [p for p in found if p.gpu.ranks] or found
    rows = compared.rows(trace, places, steps, ranks)
    _divide(rows, gpus_per_node)
    correlations = _correlations(rows)
    if by == "rank":
        table = _table(rows, _columns(stepped=bool(steps)))
    elif by == "position":
        table = _positions(rows)
    elif by == "correlation":
        table = _table(correlations, _PAIRS)
    else:
        table = _spreads(rows, by, is_stepped=bool(steps))
    notes = _notes(trace, found, places, rows, steps, window)
    if "nodes" in notes and gpus_per_node:
        notes["nodes"] = (
            f"gpus_per_node={gpus_per_node}: GPUs whose host is not told are of nodes 0, 1, … in order "
            "of rank, else of device"
        )
    summary = _summary(rows, correlations)
    return Result("imbalance", table, summary, _CONVENTIONS, notes=notes)


def _divide(rows: Iterable[Row], of_node: int) -> None:
    """Put GPUs whose host is not told into nodes of so many."""
    for row in rows:
        number = row["device"] if row["rank"] is None else row["rank"]
        if of_node and not row["host"] and number is not None:
            row["host"], row["gpu_index"] = f"node {number // of_node}", number % of_node


_PLACE = {
    "rank": pa.int32(), "device": pa.int32(), "host": pa.string(), "gpu_index": pa.int32(),
}  # fmt: skip
_STEP = {"iteration": pa.int32()}
_OF_WORK = {
    "kernel_time_ns": pa.int64(), "slowdown_factor": pa.float64(), "lead_ns": pa.int64(),
    "lead_median_ns": pa.int64(), "lead_kernels": pa.int64(), "last_kernels": pa.int64(),
    "collectives": pa.int64(), "late_share": pa.float64(), "times_last_certain": pa.int64(),
    "caused_wait_ns": pa.int64(),
}  # fmt: skip
_PAIRS = {
    "quantity": pa.string(), "with_quantity": pa.string(), "gpus": pa.int64(),
    "pearson_ratio": pa.float64(), "spearman_ratio": pa.float64(),
}  # fmt: skip


_FIRST = (
    "slowdown_factor", "late_share", "gfxclk_ratio", "temperature_difference_c", "power_ratio",
    "throttle_share", "lead_median_ns",
)  # fmt: skip
"""What tells at a glance who is slow, and whether heat or clock come with it."""


def _columns(*, stepped: bool) -> dict[str, pa.DataType]:
    columns: dict[str, pa.DataType] = {}
    for name in MEASURED:
        stem, unit = parted(name)
        columns |= {name: pa.float64(), f"{stem}_difference_{unit}": pa.float64()}
        columns |= {} if unit == "share" else {f"{stem}_ratio": pa.float64()}
    columns |= _OF_WORK | {"telemetry_ns": pa.int64(), "source": pa.string()}
    first = {name: columns[name] for name in _FIRST}
    return _PLACE | (_STEP if stepped else {}) | first | columns


def _table(rows: Iterable[Row], types: dict[str, pa.DataType]) -> pa.Table:
    rows = list(rows)
    return pa.table({c: pa.array([row.get(c) for row in rows], kind) for c, kind in types.items()})


def _spreads(rows: Sequence[Row], by: str, *, is_stepped: bool) -> pa.Table:
    """How far the GPUs of each node, or of the job, are apart."""
    keys = ("host", "iteration") if by == "node" else ("iteration",)
    found = [
        {key: same[0].get(key) for key in keys} | _spread(same) for same in grouped(rows, *keys)
    ]
    types: dict[str, pa.DataType] = {"host": pa.string()} if by == "node" else {}
    types |= (_STEP if is_stepped else {}) | {"gpus": pa.int64()}
    rest: dict[str, pa.DataType] = {}
    for name in _SPREAD:
        stem, unit = parted(name)
        types |= dict.fromkeys((name, f"{stem}_spread_{unit}", f"{stem}_ratio"), pa.float64())
        types |= {f"{stem}_highest": pa.string()}
        rest |= dict.fromkeys((f"{stem}_least_{unit}", f"{stem}_most_{unit}"), pa.float64())
        rest |= {f"{stem}_lowest": pa.string()}
    types |= rest
    return _table(found, types)


def _spread(rows: Sequence[Row]) -> Row:
    told: Row = {"gpus": len(rows)}
    for name in _SPREAD:
        told_of = values(rows, name)
        if not np.isfinite(told_of).any():
            continue
        stem, unit = parted(name)
        low, high = int(np.nanargmin(told_of)), int(np.nanargmax(told_of))
        least, most = float(told_of[low]), float(told_of[high])
        told |= {
            name: float(np.nanmean(told_of)),
            f"{stem}_least_{unit}": least,
            f"{stem}_most_{unit}": most,
            f"{stem}_spread_{unit}": most - least,
            f"{stem}_ratio": most / least if least > 0 else None,
            f"{stem}_lowest": rows[low]["name"],
            f"{stem}_highest": rows[high]["name"],
        }
    return told


def _positions(rows: Sequence[Row]) -> pa.Table:
    """Means over GPUs of equal number, and of their differences to the median of their node."""
    for same in grouped(rows, "host", "iteration"):
        for name in _SPREAD:
            middle = spread.median(values(same, name))
            for row in same:
                if row.get(name) is not None:
                    row[f"{name} in the node"] = row[name] - middle
    found = []
    placed = [row for row in rows if row["gpu_index"] is not None]
    for same in sorted(grouped(placed, "gpu_index"), key=lambda of: of[0]["gpu_index"]):
        told: Row = {"gpu_index": same[0]["gpu_index"]}
        told["gpus"] = len({(row["host"], row["device"], row["rank"]) for row in same})
        for name in _SPREAD:
            stem, unit = parted(name)
            told[name] = _mean(values(same, name))
            told[f"{stem}_difference_{unit}"] = _mean(values(same, f"{name} in the node"))
        found.append(told)
    types: dict[str, pa.DataType] = {"gpu_index": pa.int32(), "gpus": pa.int64()}
    for name in _SPREAD:
        stem, unit = parted(name)
        types |= {name: pa.float64(), f"{stem}_difference_{unit}": pa.float64()}
    return _table(found, types)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _mean(numbers: Array) -> float | None:
    known = numbers[np.isfinite(numbers)]
    return float(known.mean()) if known.size else None


def _correlations(rows: Sequence[Row]) -> list[Row]:
    """Of each two quantities, over GPUs."""
    steps = [row["iteration"] for row in rows]
    columns = {name: spread.within(values(rows, name), steps) for name in _COMPARED}
    found = []
    for a, b in combinations(_COMPARED, 2):
        both = np.isfinite(columns[a]) & np.isfinite(columns[b])
        if not both.any():
            continue
        gpus = {
            (rows[i]["rank"], rows[i]["device"], rows[i]["host"])
            for i in np.flatnonzero(both).tolist()
        }
        found.append(
            {
                "quantity": a, "with_quantity": b, "gpus": len(gpus),
                "pearson_ratio": _finite(spread.pearson(columns[a], columns[b])),
                "spearman_ratio": _finite(spread.spearman(columns[a], columns[b])),
            }
        )  # fmt: skip
    return found


_OF_INTEREST = ("kernel_time_ns", "lead_ns")
_STRAGGLER = (
    "rank", "device", "host", "gpu_index", "iteration", "slowdown_factor", "late_share", "gfxclk_ratio",
    "gfxclk_difference_mhz", "temperature_difference_c", "power_difference_w", "throttle_share",
    "lead_ns",
)  # fmt: skip


def _summary(rows: Sequence[Row], correlations: list[Row]) -> dict[str, Any]:
    slow = [row for row in rows if row.get("slowdown_factor")]
    ahead = [row for row in rows if row.get("lead_ns") is not None]
    late = [row for row in rows if row.get("late_share") is not None]
    straggler = max(slow, key=lambda row: row["slowdown_factor"], default=None)
    leader = max(ahead, key=lambda row: row["lead_ns"], default=None)
    last = max(late, key=lambda row: row["late_share"], default=None)
    whole = _spread(_whole(rows)) if rows else {}
    return {
        **slowest.told(rows),
        "gpus": len({(row["rank"], row["device"], row["host"]) for row in rows}),
        "hosts": len({row["host"] for row in rows}),
        **{f"{parted(n)[0]}_ratio": whole.get(f"{parted(n)[0]}_ratio") for n in _SPREAD},
        "temperature_spread_c": whole.get("temperature_spread_c"),
        "slowest": _told(straggler),
        "ahead": _told(leader),
        "most_often_last": _told(last),
        "correlations": [c for c in correlations if c["with_quantity"] in _OF_INTEREST],
    }


def _whole(rows: Sequence[Row]) -> list[Row]:
    """Each GPU once: means over its steps."""
    return [
        {"name": same[0]["name"]} | {name: _mean(values(same, name)) for name in _SPREAD}
        for same in grouped(rows, "rank", "device", "host")
    ]


def _told(row: Row | None) -> Row | None:
    return None if row is None else {name: row.get(name) for name in _STRAGGLER}


def _notes(  # what is known of what was asked
    trace: Trace,
    found: Sequence[Place],
    places: Sequence[Place],
    rows: Sequence[Row],
    steps: str,
    window: str,
) -> dict[str, str]:
    whole = (
        "all of the telemetry; of work all of it"
        if window
        else "from the first start to the last end of the rank's GPU work; all of the telemetry where "
        "nothing ran"
    )
    told = {"window": windows.described(steps, whole), "work": instances.described(steps)}
    if not gpu_means.has_hotspot(places):
        told |= {"temperature of": "the edge, as nothing else is told"}
    if not all(place.host for place in places):
        told["nodes"] = (
            "GPUs whose host is not told count as of one node; -O gpus_per_node=8 says how many a node has"
        )
    without = [row["name"] for row in rows if all(row.get(name) is None for name in MEASURED)]
    told["left out"] = (
        f"{len(found) - len(places)} GPUs on which no rank is known to compute; no telemetry of "
        f"{', '.join(dict.fromkeys(without)) or 'none'}"
    )
    if not rows:
        told["no rows"] = "the trace has neither GPU work nor telemetry of GPUs"
    known = collective_instances.uncertainties(trace)
    if len(trace.ranks) > 1:
        told["clocks"] = (
            f"ranks' clocks are known to each other within {max(known.values())} ns (one standard "
            "deviation, the worst rank): leads and lateness below that mean nothing"
            if known
            else "nothing is told of how ranks' clocks relate: times count as they stand"
        )
    return told
