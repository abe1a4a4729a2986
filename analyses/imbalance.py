"""Compare a job's GPUs: temperature, clock and power with kernel time, leads and lateness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods import options
from chopper_interop.analyses.methods.activity import selected_work, windows
from chopper_interop.analyses.methods.communication import instances as collective_instances
from chopper_interop.analyses.methods.fleet import compared, slowest
from chopper_interop.analyses.methods.fleet import means as gpu_means
from chopper_interop.analyses.methods.fleet import places as gpu_places
from chopper_interop.analyses.methods.fleet.compared import MEASURED, grouped, parted, values
from chopper_interop.arrays import Array, statistics
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.fleet.places import GpuPlace

    Row = dict[str, Any]

__all__ = ["imbalance"]

_BY = ("rank", "node", "job", "position", "correlation")
_SPREAD = (*MEASURED, "kernel_time_ns")
_COMPARED = (*_SPREAD, "lead_sum_ns", "late_share")
_CONVENTIONS = {
    "means": "over the time of the window in which samples of the quantity are known, idle time included; "
    "of the samples alone where they are isolated, with nothing known between. Of several tools the "
    "finest that covers nearly all of the time that the best of them covers. A clock is the mean of its "
    "dies; throttling is at every moment that of the cause with the highest value",
    "power": "as shown, which is filtered and late; mean power in energy, efficiency and sweep is that of "
    "the energy counter where it is more precise",
    "median": "of all requested GPUs in the same step, or in the whole window: differences and "
    "ratios are to that; slowdown_factor is by the median of the others that do the same work",
    "highest to lowest": "mean of the GPU with the highest by that of the GPU with the lowest, without a unit; "
    "temperature_spread_c is the difference, in °C",
    "kernels": "kernel_time_ns sums durations of kernels, without fills, copies and communication",
    "lead": "how much sooner a kernel starts than on the last of the ranks that do the same work (stages "
    "of a pipeline are compared separately), for kernels that all these have equally often in a step",
    "late": "share of its collectives in which a rank came last, alone; certain: by more than the "
    "uncertainty of clocks",
    "slowest": slowest.CONVENTION,
    "temperature": "of the hotspot on AMD and of the GPU on NVIDIA",
    "links": "all GPU work counts, whether its launch is recorded or not",
    "memset": "fills are not kernels",
    "copies": "are not kernels, except copies by kernels of the runtime (__amd_rocclr_*)",
    "correlation": "over GPUs (with steps, over deviations from the median of the step); null for fewer "
    "than three GPUs, and for quantities that are the same everywhere",
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
    """Compare temperature, clock, power and kernel time of GPUs, and find ranks that lead or lag.

    Parameters
    ----------
    trace
        A trace of several GPUs, or telemetry of them.
    by
        ``rank``: a row for each GPU; ``node``, ``job``: differences between its GPUs; ``position``:
        GPUs with the same number in their nodes together (front and rear of the chassis);
        ``correlation``: a row for each pair of quantities, over GPUs.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself.
    ranks
        Ranks to include, as ``0,4-7``; all if empty.
    window
        ``all``: means over all of the telemetry. If empty, from the first start to the last end of
        the rank's GPU work, or all of the telemetry where there is no work.
    gpus_per_node
        Number of GPUs in each node, in the order of ranks, where hosts are not known (CharLLM-PPT's
        scripts assume 8); 0 if unknown.

    Returns
    -------
    Result
        By rank, null where not known:

        - `rank`, `device`, `host`, `gpu_index` (number in its node)
        - means `gfxclk_mhz`, `temperature_c`, `memory_temperature_c`, `power_w`, `throttle_share`,
          each with its difference to the median of all GPUs and, except throttling, its ratio
        - `kernel_time_ns` and `slowdown_factor` (by the median of the others)
        - `lead_sum_ns`, `lead_median_ns` and `last_kernels`, out of the `lead_kernels` that all ranks
          have
        - `collectives`, `late_share` in which it came last, `times_last_certain`, and
          `caused_wait_ns`, which others spent waiting for it

        By node and job: mean, `_min_`, `_max_`, `_spread_` (max - min) and `_ratio` (max / min) of
        each quantity, with the GPUs of the minimum and maximum. By position: means over nodes, of
        quantities and of their differences to the median of the node.

    Notes
    -----
    Lead values by Lit Silicon (arXiv 2511.09861): lead[g, k] = max over GPUs of T[., k] - T[g, k],
    with T the start of kernel k, summed over k. Heat maps of GPUs by position as in figures 5
    and 17 of CharLLM-PPT (arXiv 2509.10371).
    """
    options.check_choice("by", by, _BY)
    options.check_at_least(0, gpus_per_node=gpus_per_node)
    all_gpus = gpu_places.find_places(
        trace, gpu_means.quantities(edge=True), steps=steps, ranks=ranks, window=window
    )
    compared_gpus = [p for p in all_gpus if p.gpu.ranks] or all_gpus
    rows = compared.gpu_rows(trace, compared_gpus, steps, ranks)
    _assign_nodes(rows, gpus_per_node)
    correlations = _correlations(rows)
    if by == "rank":
        table = _table(rows, _columns(stepped=bool(steps)))
    elif by == "position":
        table = _positions(rows)
    elif by == "correlation":
        table = _table(correlations, _PAIR_TYPES)
    else:
        table = _spreads(rows, by, is_stepped=bool(steps))
    notes = _notes(trace, all_gpus, compared_gpus, rows, steps, window)
    if "nodes" in notes and gpus_per_node:
        notes["nodes"] = (
            f"gpus_per_node={gpus_per_node}: GPUs whose host is not known are put into nodes 0, 1, … in "
            "order of rank, else of device"
        )
    summary = _summary(rows, correlations)
    return Result("imbalance", table, summary, _CONVENTIONS, notes=notes)


def _assign_nodes(rows: Iterable[Row], gpus_per_node: int) -> None:
    """Put GPUs whose host is not known into nodes of `gpus_per_node`."""
    for row in rows:
        number = row["device"] if row["rank"] is None else row["rank"]
        if gpus_per_node and not row["host"] and number is not None:
            row["host"], row["gpu_index"] = (
                f"node {number // gpus_per_node}",
                number % gpus_per_node,
            )


_GPU_TYPES = {
    "rank": pa.int32(), "device": pa.int32(), "host": pa.string(), "gpu_index": pa.int32(),
}  # fmt: skip
_STEP_TYPE = {"iteration": pa.int32()}
_WORK_TYPES = {
    "kernel_time_ns": pa.int64(), "slowdown_factor": pa.float64(), "lead_sum_ns": pa.int64(),
    "lead_median_ns": pa.int64(), "lead_kernels": pa.int64(), "last_kernels": pa.int64(),
    "collectives": pa.int64(), "late_share": pa.float64(), "times_last_certain": pa.int64(),
    "caused_wait_ns": pa.int64(),
}  # fmt: skip
_PAIR_TYPES = {
    "quantity": pa.string(), "with_quantity": pa.string(), "gpus": pa.int64(),
    "pearson_ratio": pa.float64(), "spearman_ratio": pa.float64(),
}  # fmt: skip


_FIRST = (
    "slowdown_factor", "late_share", "gfxclk_ratio", "temperature_difference_c", "power_ratio",
    "throttle_share", "lead_median_ns",
)  # fmt: skip
"""Columns that come first: they show which GPU is slow, and if temperature or clock differ with it."""


def _columns(*, stepped: bool) -> dict[str, pa.DataType]:
    columns: dict[str, pa.DataType] = {}
    for name in MEASURED:
        stem, unit = parted(name)
        columns |= {name: pa.float64(), f"{stem}_difference_{unit}": pa.float64()}
        columns |= {} if unit == "share" else {f"{stem}_ratio": pa.float64()}
    columns |= _WORK_TYPES | {"telemetry_ns": pa.int64(), "source": pa.string()}
    first = {name: columns[name] for name in _FIRST}
    return _GPU_TYPES | (_STEP_TYPE if stepped else {}) | first | columns


def _table(rows: Iterable[Row], types: dict[str, pa.DataType]) -> pa.Table:
    rows = list(rows)
    return pa.table({c: pa.array([row.get(c) for row in rows], kind) for c, kind in types.items()})


def _spreads(rows: Sequence[Row], by: str, *, is_stepped: bool) -> pa.Table:
    """Return a row of differences between the GPUs of each node, or of the job."""
    keys = ("host", "iteration") if by == "node" else ("iteration",)
    spreads = [
        {key: same[0].get(key) for key in keys} | _spread(same) for same in grouped(rows, *keys)
    ]
    types: dict[str, pa.DataType] = {"host": pa.string()} if by == "node" else {}
    types |= (_STEP_TYPE if is_stepped else {}) | {"gpus": pa.int64()}
    last_types: dict[str, pa.DataType] = {}
    for name in _SPREAD:
        stem, unit = parted(name)
        types |= dict.fromkeys((name, f"{stem}_spread_{unit}", f"{stem}_ratio"), pa.float64())
        types |= {f"{stem}_highest": pa.string()}
        last_types |= dict.fromkeys((f"{stem}_min_{unit}", f"{stem}_max_{unit}"), pa.float64())
        last_types |= {f"{stem}_lowest": pa.string()}
    types |= last_types
    return _table(spreads, types)


def _spread(rows: Sequence[Row]) -> Row:
    figures: Row = {"gpus": len(rows)}
    for name in _SPREAD:
        numbers = values(rows, name)
        if not np.isfinite(numbers).any():
            continue
        stem, unit = parted(name)
        low, high = int(np.nanargmin(numbers)), int(np.nanargmax(numbers))
        lowest, highest = float(numbers[low]), float(numbers[high])
        figures |= {
            name: float(np.nanmean(numbers)),
            f"{stem}_min_{unit}": lowest,
            f"{stem}_max_{unit}": highest,
            f"{stem}_spread_{unit}": highest - lowest,
            f"{stem}_ratio": highest / lowest if lowest > 0 else None,
            f"{stem}_lowest": rows[low]["name"],
            f"{stem}_highest": rows[high]["name"],
        }
    return figures


def _positions(rows: Sequence[Row]) -> pa.Table:
    """Average over GPUs with the same number in their node, and their differences to its median."""
    for same in grouped(rows, "host", "iteration"):
        for name in _SPREAD:
            middle = statistics.finite_median(values(same, name))
            for row in same:
                if row.get(name) is not None:
                    row[f"{name} in the node"] = row[name] - middle
    positions = []
    with_index = [row for row in rows if row["gpu_index"] is not None]
    for same in sorted(grouped(with_index, "gpu_index"), key=lambda group: group[0]["gpu_index"]):
        position: Row = {"gpu_index": same[0]["gpu_index"]}
        position["gpus"] = len({(row["host"], row["device"], row["rank"]) for row in same})
        for name in _SPREAD:
            stem, unit = parted(name)
            position[name] = _mean(values(same, name))
            position[f"{stem}_difference_{unit}"] = _mean(values(same, f"{name} in the node"))
        positions.append(position)
    types: dict[str, pa.DataType] = {"gpu_index": pa.int32(), "gpus": pa.int64()}
    for name in _SPREAD:
        stem, unit = parted(name)
        types |= {name: pa.float64(), f"{stem}_difference_{unit}": pa.float64()}
    return _table(positions, types)


def _mean(numbers: Array) -> float | None:
    known = numbers[np.isfinite(numbers)]
    return float(known.mean()) if known.size else None


def _correlations(rows: Sequence[Row]) -> list[Row]:
    """Correlate each two quantities over GPUs."""
    steps = [row["iteration"] for row in rows]
    columns = {name: statistics.less_group_median(values(rows, name), steps) for name in _COMPARED}
    pairs = []
    for a, b in combinations(_COMPARED, 2):
        both = np.isfinite(columns[a]) & np.isfinite(columns[b])
        if not both.any():
            continue
        gpus = {
            (rows[i]["rank"], rows[i]["device"], rows[i]["host"])
            for i in np.flatnonzero(both).tolist()
        }
        pairs.append(
            {
                "quantity": a, "with_quantity": b, "gpus": len(gpus),
                "pearson_ratio": statistics.finite_or_none(statistics.pearson(columns[a], columns[b])),
                "spearman_ratio": statistics.finite_or_none(statistics.spearman(columns[a], columns[b])),
            }
        )  # fmt: skip
    return pairs


_CORRELATED_WITH = ("kernel_time_ns", "lead_sum_ns")
_STRAGGLER = (
    "rank", "device", "host", "gpu_index", "iteration", "slowdown_factor", "late_share", "gfxclk_ratio",
    "gfxclk_difference_mhz", "temperature_difference_c", "power_difference_w", "throttle_share",
    "lead_sum_ns",
)  # fmt: skip


def _summary(rows: Sequence[Row], correlations: list[Row]) -> dict[str, Any]:
    with_slowdown = [row for row in rows if row.get("slowdown_factor")]
    with_lead = [row for row in rows if row.get("lead_sum_ns") is not None]
    with_lateness = [row for row in rows if row.get("late_share") is not None]
    straggler = max(with_slowdown, key=lambda row: row["slowdown_factor"], default=None)
    leader = max(with_lead, key=lambda row: row["lead_sum_ns"], default=None)
    last = max(with_lateness, key=lambda row: row["late_share"], default=None)
    job_spread = _spread(_means_over_steps(rows)) if rows else {}
    return {
        **slowest.summary(rows),
        "gpus": len({(row["rank"], row["device"], row["host"]) for row in rows}),
        "hosts": len({row["host"] for row in rows}),
        **{
            f"{parted(n)[0]}_highest_to_lowest_ratio": job_spread.get(f"{parted(n)[0]}_ratio")
            for n in _SPREAD
        },
        "temperature_spread_c": job_spread.get("temperature_spread_c"),
        "slowest": _straggler_columns(straggler),
        "ahead": _straggler_columns(leader),
        "most_often_last": _straggler_columns(last),
        "correlations": [c for c in correlations if c["with_quantity"] in _CORRELATED_WITH],
    }


def _means_over_steps(rows: Sequence[Row]) -> list[Row]:
    """Return each GPU once, with means over its steps."""
    return [
        {"name": same[0]["name"]} | {name: _mean(values(same, name)) for name in _SPREAD}
        for same in grouped(rows, "rank", "device", "host")
    ]


def _straggler_columns(row: Row | None) -> Row | None:
    return None if row is None else {name: row.get(name) for name in _STRAGGLER}


def _notes(
    trace: Trace,
    all_gpus: Sequence[GpuPlace],
    compared_gpus: Sequence[GpuPlace],
    rows: Sequence[Row],
    steps: str,
    window: str,
) -> dict[str, str]:
    full_window = (
        "all of the telemetry; of work all of it"
        if window
        else "from the first start to the last end of the rank's GPU work; all of the telemetry where "
        "nothing ran"
    )
    notes = {"window": windows.describe(steps, full_window), "work": selected_work.describe(steps)}
    if not gpu_means.has_hotspot(compared_gpus):
        notes |= {"temperature of": "the edge, as no other is known"}
    if not all(place.host for place in compared_gpus):
        notes["nodes"] = (
            "GPUs whose host is not known count as one node; -O gpus_per_node=8 states how many a node has"
        )
    no_telemetry = [row["name"] for row in rows if all(row.get(name) is None for name in MEASURED)]
    notes["left out"] = (
        f"{len(all_gpus) - len(compared_gpus)} GPUs on which no rank is known to compute; no telemetry of "
        f"{', '.join(dict.fromkeys(no_telemetry)) or 'none'}"
    )
    if not rows:
        notes["no rows"] = "the trace has neither GPU work nor telemetry of GPUs"
    return notes | collective_instances.clock_notes(trace, "leads and lateness")
