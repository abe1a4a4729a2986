"""Find excursions of GPUs' power above its limit: how high, how long, and what ran meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import concurrent_work, grouping, windows
from chopper_interop.analyses.methods.fleet import places as gpu_places
from chopper_interop.analyses.methods.power import excursions as power_excursions
from chopper_interop.annotate.telemetry import lines
from chopper_interop.annotate.telemetry.quantity_series import POWER
from chopper_interop.arrays import Array, arrow, intervals
from chopper_interop.errors import OptionError, UsageError, similar
from chopper_interop.grouping import grouped
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.fleet.places import GpuPlace
    from chopper_interop.analyses.methods.power.excursions import GpuWindow
    from chopper_interop.annotate.telemetry.lines import PiecewiseLinear, PositiveIntervals

__all__ = ["excursions"]

_BY = ("excursion", "rank", "node")
_MAX_FACTOR = 2.0
"""No GPU draws more than this many times its limit: a larger number was meant as watts."""
_CONVENTIONS = {
    "power": "is interpolated linearly between samples, and crosses the limit where that line does; "
    "where it is the rise of an energy counter, it is constant between samples. Of several tools the "
    "finest is used wherever it has power",
    "gaps": "between samples further apart than 6 median periods power is not known: no excursion "
    "extends into a gap",
    "resolution": "excursions shorter than resolution_ns are not seen, or appear lower than they were",
    "links": "all work on the GPU counts, whether its launch is recorded or not",
    "memset": "counts as work, of class compute",
    "copies": "count as work, of class copy",
    "nodes": "GPUs whose host is not known count as one node",
}


_NO_LIMIT = (
    "of {}: no telemetry of it, no cap and no product whose board power is known. -O limit_w=WATTS "
    "states it, or power_w in -O gpus=FILE.toml; without a limit there are no excursions"
)


def excursions(  # noqa: PLR0913 # what all analyses have, and the limit
    trace: Trace,
    *,
    by: str = "excursion",
    steps: str = "",
    ranks: str = "",
    limit_w: float = 0.0,
    above: float = 1.0,
    window: str = "",
    gpus: str = "",
) -> Result:
    """Find intervals in which power is above a limit.

    Parameters
    ----------
    trace
        A trace with telemetry of power; it need not have any GPU work.
    by
        Rows: ``excursion``; ``rank``, a GPU; ``node``, the summed power of its GPUs against the sum
        of their limits; or names out of `grouping.GRAINS` (``kernel``, ``class``,
        ``rank,operation``, …): work that ran during excursions, against all of its time.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself.
    ranks
        Ranks to include, as ``0,4-7``; if empty all, and GPUs on which no rank is known to compute.
    limit_w
        The limit in watts. By default the first of these that is known for each GPU: the limit in
        the file `gpus`, the limit in telemetry as it changes over time, the power cap of a source,
        and the board power of the product. A GPU without a known limit has no excursions.
    above
        Factor of the limit above which power counts as an excursion, 2 at most.
    window
        ``all``: all of the telemetry. If empty, from the first start to the last end of the rank's
        GPU work (of all work, for a GPU without a rank; all of the telemetry if there is no work).
    gpus
        File that describes further GPUs (TOML, ``[[gpu]]`` tables), for their board power.

    Returns
    -------
    Result
        By excursion:

        - `rank`, `device`, `host`, `gpu_index` (its number in the node)
        - `start_ns`, `duration_ns`, `limit_w`, `peak_w` and `peak_start_ns`
        - `peak_above_w` and `mean_above_w` above the limit, `above_j` (energy above it), `samples`
          above it, `resolution_ns`
        - `pieces` of work that ran, and what ran longest: `kernel` and `kernel_ns` (all its pieces,
          summed), `class`, `operation`, `phase`, `iteration`

        By GPU and node: number and sums of excursions. Nodes also have `sum_of_peaks_w`,
        `coincidence_share` (peak of the sum / sum of the peaks), `max_concurrent` GPUs above their
        own limits, and `together_ns`, in which two or more are.

        By work: `time_ns` of all pieces while power is known, `above_ns` of it in excursions,
        `above_share`, and `lift_ratio`: that share / the share of all time.

    Notes
    -----
    Peak-power excursions as CharLLM-PPT (arXiv 2509.10371) names but does not measure them. Heights
    are those of the samples, which most tools average over a time that they do not report.
    """
    row_grains = _parse_by(by)
    if not (np.isfinite(limit_w) and limit_w >= 0):
        raise UsageError(f"limit_w={limit_w}: it must be watts, 0 or more")
    if not (np.isfinite(above) and above > 0):
        raise UsageError(f"above={above}: it must be more than 0", hint="0.9 is 90 % of the limit")
    if above > _MAX_FACTOR:
        raise UsageError(
            f"above={above:g}: it is a factor of the limit, {_MAX_FACTOR:g} at most",
            hint=f"limit_w={above:g} would be a limit in watts",
        )
    all_gpus = gpu_places.find_places(trace, (POWER,), steps=steps, ranks=ranks, window=window)
    parts, without_limit = power_excursions.gpu_windows(
        trace, all_gpus, limit_w=limit_w, above=above, gpus=gpus
    )
    if row_grains == ("excursion",):
        rows = _excursion_rows(trace, parts)
    elif row_grains == ("rank",):
        rows = _gpu_rows(all_gpus, parts, is_stepped=bool(steps))
    elif row_grains == ("node",):
        rows = _node_rows(parts, is_stepped=bool(steps))
    else:
        rows = _work_rows(trace, parts, by)
    return Result(
        "excursions",
        rows,
        _summary(all_gpus, parts, without_limit),
        _CONVENTIONS,
        notes=_notes(all_gpus, parts, without_limit, above, steps, window),
    )


def _parse_by(by: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in by.split(",") if name.strip())
    if len(names) == 1 and names[0] in _BY:
        return names
    for name in names:
        if name in _BY and name not in grouping.GRAINS:
            raise OptionError(f"by={by}: {name} cannot be joined with others", hint=f"by={name}")
        if name not in grouping.GRAINS:
            known = dict.fromkeys((*_BY, *grouping.GRAINS))
            raise OptionError(f"by={by}: there is no {name!r}", hint=similar(name, known))
    return names


_EXCURSION_TYPES = {
    "rank": pa.int32(), "device": pa.int32(), "host": pa.string(), "gpu_index": pa.int32(),
    "start_ns": pa.int64(), "duration_ns": pa.int64(), "limit_w": pa.float64(),
    "peak_w": pa.float64(), "peak_start_ns": pa.int64(), "peak_above_w": pa.float64(),
    "mean_above_w": pa.float64(), "above_j": pa.float64(), "samples": pa.int64(),
}  # fmt: skip


_FIRST = (
    "rank", "device", "host", "gpu_index", "iteration", "start_ns", "duration_ns", "peak_w",
    "peak_above_w", "above_j", "phase", "operation", "kernel",
)  # fmt: skip


def _excursion_rows(trace: Trace, parts: Sequence[GpuWindow]) -> pa.Table:
    """Return a row for each excursion."""
    count = sum(len(part.excursions) for part in parts)
    columns: dict[str, Any] = {name: [] for name in _EXCURSION_TYPES}
    ran, offset = [], 0
    for part in parts:
        for name, values in _excursion_columns(part).items():
            columns[name].append(values)
        above_limit = part.excursions
        shared = concurrent_work.shared_time(
            trace, part.place.gpu.rows, above_limit.start, above_limit.end
        )
        ran.append(shared.shifted(offset))
        offset += len(above_limit)
    longest = concurrent_work.concatenated(ran)
    table = {
        name: pa.chunked_array(columns[name], kind) if columns[name] else pa.nulls(0, kind)
        for name, kind in _EXCURSION_TYPES.items()
    }
    table["pieces"] = arrow.array(concurrent_work.work_counts(longest, count))
    table["kernel"], table["kernel_ns"] = concurrent_work.longest_running(
        trace, longest, "kernel", count
    )
    for grain in ("class", "operation", "phase", "iteration"):
        table[grain], _ = concurrent_work.longest_running(trace, longest, grain, count)
    if any(part.window.iteration != windows.NO_STEP for part in parts):
        step = [np.full(len(p.excursions), p.window.iteration, np.int32) for p in parts]
        table["iteration"] = arrow.array(np.concatenate(step))
    resolutions = [part.excursions.resolution for part in parts]
    table["resolution_ns"] = arrow.array(np.concatenate([np.zeros(0, np.int64), *resolutions]))
    return pa.table({name: table[name] for name in dict.fromkeys((*_FIRST, *table))})


def _excursion_columns(part: GpuWindow) -> dict[str, pa.Array]:
    above_limit, count = part.excursions, len(part.excursions)
    limit = part.limit.lines.at(above_limit.peak_at)
    return {
        **{
            name: pa.array([value] * count, _EXCURSION_TYPES[name])
            for name, value in _location(part.place).items()
        },
        "start_ns": arrow.array(above_limit.start),
        "duration_ns": arrow.array(above_limit.end - above_limit.start),
        "limit_w": arrow.array(limit),
        "peak_w": arrow.array(limit + above_limit.peak),
        "peak_start_ns": arrow.array(above_limit.peak_at),
        "peak_above_w": arrow.array(above_limit.peak),
        "mean_above_w": arrow.array(above_limit.area / (above_limit.time * 1e-9)),
        "above_j": arrow.array(above_limit.area),
        "samples": arrow.array(part.samples),
    }


def _location(gpu: GpuPlace) -> dict[str, Any]:
    """Columns that say which GPU it is; None where not known."""
    return {
        "rank": gpu.rank if gpu.rank >= 0 else None,
        "device": gpu.device if gpu.device >= 0 else None,
        "host": gpu.host or None,
        "gpu_index": gpu.index if gpu.index >= 0 else None,
    }


_SUM_TYPES = {
    "covered_ns": pa.int64(), "limit_w": pa.float64(), "limit_by": pa.string(),
    "mean_power_w": pa.float64(), "peak_power_w": pa.float64(), "peak_start_ns": pa.int64(),
    "excursions": pa.int64(), "above_ns": pa.int64(), "above_share": pa.float64(),
    "longest_ns": pa.int64(), "peak_above_w": pa.float64(), "mean_above_w": pa.float64(),
    "above_j": pa.float64(), "resolution_ns": pa.int64(), "source": pa.string(),
}  # fmt: skip


def _gpu_rows(
    all_gpus: Sequence[GpuPlace], parts: Sequence[GpuWindow], *, is_stepped: bool
) -> pa.Table:
    """Return a row for each GPU, and step if there are any; null where its power is not known."""
    rows_of_gpu = grouped((id(part.place), _gpu_row(part)) for part in parts)
    rows = [row for gpu in all_gpus for row in rows_of_gpu.get(id(gpu), [_location(gpu)])]
    keys = {name: _EXCURSION_TYPES[name] for name in ("rank", "device", "host", "gpu_index")}
    return _table(rows, keys | ({"iteration": pa.int32()} if is_stepped else {}) | _SUM_TYPES)


def _gpu_row(part: GpuWindow) -> dict[str, Any]:
    origin = {"limit_by": part.limit.by, "source": part.source}
    iteration = part.window.iteration
    step = {"iteration": None if iteration == windows.NO_STEP else iteration}
    return (
        _location(part.place)
        | step
        | origin
        | power_excursions.figures(part.power, part.limit.lines, part.excursions)
    )


def _table(rows: Sequence[dict[str, Any]], types: dict[str, pa.DataType]) -> pa.Table:
    return pa.table({c: pa.array([row.get(c) for row in rows], kind) for c, kind in types.items()})


_NODE_TYPES = {
    "host": pa.string(), "gpus": pa.int64(), **_SUM_TYPES, "sum_of_peaks_w": pa.float64(),
    "coincidence_share": pa.float64(), "max_concurrent": pa.int64(), "together_ns": pa.int64(),
}  # fmt: skip


def _node_rows(parts: Sequence[GpuWindow], *, is_stepped: bool) -> pa.Table:
    """Return a row for each node, and step if there are any."""
    rows = [_node_row(same) for same in power_excursions.by_node(parts)]
    step = {"iteration": pa.int32()} if is_stepped else {}
    return _table(rows, {"host": _NODE_TYPES["host"], **step, **_NODE_TYPES})


def _node_row(parts: Sequence[GpuWindow]) -> dict[str, Any]:
    power = lines.weighted_sum([part.power for part in parts])
    max_concurrent, together = power_excursions.concurrency(parts)
    row = {
        "host": parts[0].place.host or None,
        "iteration": parts[0].window.iteration,
        "gpus": len(parts),
        "limit_by": ", ".join(dict.fromkeys(part.limit.by for part in parts)),
        "source": ", ".join(dict.fromkeys(part.source for part in parts)),
        "max_concurrent": max_concurrent,
        "together_ns": together,
    }
    if not len(power):
        return row
    limit = lines.weighted_sum([part.limit.lines for part in parts])
    above_limit = lines.positive_intervals(lines.weighted_sum((power, limit), (1.0, -1.0)))
    sums = power_excursions.figures(power, limit, above_limit)
    peaks = sum(float(max(p.power.first.max(), p.power.last.max())) for p in parts)
    share = sums["peak_power_w"] / peaks if peaks > 0 else None
    return row | sums | {"sum_of_peaks_w": peaks, "coincidence_share": share}


def _work_rows(trace: Trace, parts: Sequence[GpuWindow], by: str) -> pa.Table:
    """Return a row for each group of work: its time in excursions and while power is known."""
    empty = np.zeros(0, np.int64)
    rows_of_parts, known_times, above_times = [empty], [empty], [empty]
    for part in parts:
        rows = part.place.gpu.rows
        start = trace.array("ts")[rows]
        end = start + trace.array("dur")[rows]
        time_with_power = intervals.covered_time(start, end, _merged_intervals(part.power))
        has_power = np.flatnonzero(time_with_power)
        rows_of_parts.append(rows[has_power])
        known_times.append(time_with_power[has_power])
        above_times.append(
            intervals.covered_time(
                start[has_power], end[has_power], _merged_intervals(part.excursions)
            )
        )
    rows, time, above = (
        np.concatenate(parts_of) for parts_of in (rows_of_parts, known_times, above_times)
    )
    groups = grouping.group_nodes(trace, rows, by)
    total, above_ns = groups.sums(time), groups.sums(above)
    share = above_ns / np.maximum(total, 1)
    share_of_all_time = power_excursions.above_share(parts)
    table = groups.columns() | {
        "pieces": arrow.array(np.bincount(groups.code, minlength=len(groups)).astype(np.int64)),
        "time_ns": arrow.array(total),
        "above_ns": arrow.array(above_ns),
        "above_share": arrow.array(share),
        "lift_ratio": arrow.array(
            share / (share_of_all_time or 1.0), mask=np.full(len(share), not share_of_all_time)
        ),
    }
    return arrow.take(pa.table(table), np.lexsort((-total, -above_ns)))


def _merged_intervals(pieces: PiecewiseLinear | PositiveIntervals) -> tuple[Array, Array]:
    return intervals.union(pieces.start, pieces.end)


def _summary(
    all_gpus: Sequence[GpuPlace], parts: Sequence[GpuWindow], without_limit: Sequence[GpuPlace]
) -> dict[str, Any]:
    gpus = [_gpu_row(part) for part in parts]
    with_excursions = [gpu for gpu in gpus if gpu["excursions"]]
    highest = max(with_excursions, key=lambda gpu: gpu["peak_above_w"], default=None)
    concurrency = [power_excursions.concurrency(same) for same in power_excursions.by_node(parts)]
    return {
        "gpus": len(all_gpus),
        "gpus_known": len({id(part.place) for part in parts}) + len(without_limit),
        "gpus_without_limit": len(without_limit),
        "excursions": sum(gpu["excursions"] for gpu in gpus),
        "above_ns": sum(gpu["above_ns"] for gpu in gpus),
        "above_share": power_excursions.above_share(parts) if parts else None,
        "above_j": sum(gpu["above_j"] for gpu in gpus) if parts else None,
        "peak_power_w": max((gpu["peak_power_w"] for gpu in gpus), default=None),
        "peak_above_w": highest["peak_above_w"] if highest else None,
        "highest": {k: highest[k] for k in _HIGHEST} if highest else None,
        "max_concurrent": max((count for count, _ in concurrency), default=0),
        "together_ns": sum(together for _, together in concurrency),
        "by_gpu": [{k: gpu[k] for k in _BY_GPU} for gpu in gpus],
    }


_HIGHEST = ("rank", "device", "host", "peak_start_ns", "peak_power_w", "limit_w", "peak_above_w")
_BY_GPU = (
    "rank", "device", "host", "iteration", "excursions", "above_ns", "above_share", "limit_w",
    "peak_power_w", "above_j",
)  # fmt: skip


def _notes(
    all_gpus: Sequence[GpuPlace],
    parts: Sequence[GpuWindow],
    without_limit: Sequence[GpuPlace],
    above: float,
    steps: str,
    window: str,
) -> dict[str, str]:
    full_window = (
        "all of the telemetry"
        if window
        else "from the first start to the last end of the rank's GPU work (of all work, for GPUs "
        "without a known rank); all of the telemetry where nothing ran"
    )
    notes: dict[str, str] = {}
    if without_limit:
        notes["no limit is known"] = _NO_LIMIT.format(", ".join(gpu.name for gpu in without_limit))
    notes["window"] = windows.describe(steps, full_window) + "; of that, while power is known"
    limits = grouped((part.limit.by, part.place.name) for part in parts)
    factor = "" if above == 1 else f"{above:g} times "
    notes["limit"] = "; ".join(
        f"{factor}{by} of {len(dict.fromkeys(names))} GPUs" for by, names in limits.items()
    ) or ("none is known" if without_limit else "none: no power is known")
    known = {id(part.place) for part in parts} | {id(gpu) for gpu in without_limit}
    left_out = [gpu.name for gpu in all_gpus if id(gpu) not in known]
    notes["left out"] = f"GPUs without known power: {', '.join(left_out) or 'none'}"
    if not parts and without_limit:
        notes["no rows"] = "no limit is known: -O limit_w=WATTS states it"
    elif not parts:
        notes["no rows"] = "telemetry has no power of any GPU in the window"
    elif not any(len(part.excursions) for part in parts):
        hint = ": above=0.9 means 90 % of it" if above == 1 else ""
        notes["no rows"] = f"no GPU was ever above {factor}its limit{hint}"
    return notes
