"""When GPUs draw more power than they may, how high and how long, and what runs then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import grouping, ran_during, windows
from chopper_interop.columns import arrow, intervals
from chopper_interop.errors import UsageError
from chopper_interop.fleet import places as gpu_places
from chopper_interop.power import excursions as power_excursions
from chopper_interop.result import Result
from chopper_interop.telemetry import lines
from chopper_interop.telemetry.names import POWER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.fleet.places import Place
    from chopper_interop.power.excursions import Part
    from chopper_interop.telemetry.lines import Above, Lines
    from chopper_interop.trace import Trace

__all__ = ["excursions"]

_BY = ("excursion", "rank", "node")
_MOST = 2.0
"""No GPU draws more times its limit: what is more was meant as watts."""
_CONVENTIONS = {
    "power": "goes straight from sample to sample, and crosses the limit where that line does; where "
    "it is the rise of an energy counter, it holds. Of several tools the finest counts wherever it "
    "tells power",
    "gaps": "between samples further apart than 6 median periods power is not known: no excursion "
    "reaches into a gap",
    "resolution": "what is shorter than resolution_ns is not seen, or lower than it was",
    "links": "all work on the GPU counts, whether its launch is recorded or not",
    "memset": "counts as work, of class compute",
    "copies": "count as work, of class copy",
    "nodes": "GPUs whose host is not told count as of one node",
}


_UNTOLD = (
    "of {}: no telemetry of it, no cap and no product whose board power is known. -O limit_w=WATTS says "
    "it, or power_w in -O gpus=FILE.toml; without one nothing is an excursion"
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
    """Stretches of time in which power is above a limit.

    Parameters
    ----------
    trace
        Any trace with telemetry of power; it need not have any GPU work.
    by
        What a row is of: ``excursion``; ``rank``, a GPU; ``node``, the summed power of its GPUs
        against the sum of their limits; or names out of `grouping.GRAINS` (``kernel``, ``class``,
        ``rank,operation``, …): what ran during excursions, against all of its time.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself.
    ranks
        These ranks, as ``0,4-7``; else all, and GPUs on which no rank is known to compute.
    limit_w
        The limit in watts. By default, of each GPU the first of these that is known: the limit that
        telemetry tells as it changes over time, the power cap of a source, and the board power of
        the product; what the file `gpus` states goes before these. A GPU of which none is known has
        no excursions.
    above
        Excursions are above this many times the limit, twice at most.
    window
        ``all``: all of the telemetry; else from the first start to the last end of the rank's GPU
        work (of all work, for a GPU without a rank; all of the telemetry if there is no work).
    gpus
        A file with GPUs of your own (TOML, ``[[gpu]]`` tables), for their board power.

    Returns
    -------
    Result
        By excursion: `rank`, `device`, `host`, `gpu_index` (its number in the node), `start_ns`,
        `duration_ns`, `limit_w`, `peak_w` and `peak_start_ns`, heights above the limit `peak_above_w`
        and `mean_above_w`, `above_j` (energy above the limit), `samples` above it, `pieces` of work
        that ran, and of these what ran longest: `kernel` and `kernel_ns` (of all its pieces,
        summed), `class`, `operation`, `phase`, `iteration`; `resolution_ns`. By GPU and node their
        number and sums; of nodes also `sum_of_peaks_w`, `coincidence_share` (peak of the sum by sum
        of the peaks), `most_at_once` and `together_ns` (two GPUs or more above their own limits). By
        what ran: `time_ns` of all pieces while power is known, `above_ns` of it in excursions,
        `above_share`, and `lift_ratio`: that share by the one of all time.

    Notes
    -----
    Peak-power excursions as CharLLM-PPT (arXiv 2509.10371) names them and does not measure; heights
    are those of what the tool sampled, which most tools average over a time that they do not tell.
    """
    names = _names(by)
    if not (np.isfinite(limit_w) and limit_w >= 0):
        raise UsageError(f"limit_w={limit_w}: it must be watts, 0 or more")
    if not (np.isfinite(above) and above > 0):
        raise UsageError(f"above={above}: it must be more than 0", hint="0.9 is 90 % of the limit")
    if above > _MOST:
        raise UsageError(
            f"above={above:g}: it is a factor of the limit, {_MOST:g} at most",
            hint=f"limit_w={above:g} is a limit in watts",
        )
    places = gpu_places.of(trace, (POWER,), steps=steps, ranks=ranks, window=window)
    parts, bare = power_excursions.of(trace, places, limit_w=limit_w, above=above, gpus=gpus)
    if names == ("excursion",):
        rows = _each(trace, parts)
    elif names == ("rank",):
        rows = _of_gpus(places, parts, is_stepped=bool(steps))
    elif names == ("node",):
        rows = _of_nodes(parts, is_stepped=bool(steps))
    else:
        rows = _of_work(trace, parts, by)
    return Result(
        "excursions",
        rows,
        _summary(places, parts, bare),
        _CONVENTIONS,
        notes=_notes(places, parts, bare, above, steps, window),
    )


def _names(by: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in by.split(",") if name.strip())
    if len(names) == 1 and names[0] in _BY:
        return names
    for name in names:
        if name in _BY and name not in grouping.GRAINS:
            raise UsageError(f"by={by}: {name} cannot be joined with others", hint=f"by={name}")
        if name not in grouping.GRAINS:
            known = ", ".join(dict.fromkeys((*_BY, *grouping.GRAINS)))
            raise UsageError(f"by={by}: there is no {name!r}", hint=f"there are {known}")
    return names


_EACH = {
    "rank": pa.int32(), "device": pa.int32(), "host": pa.string(), "gpu_index": pa.int32(),
    "start_ns": pa.int64(), "duration_ns": pa.int64(), "limit_w": pa.float64(),
    "peak_w": pa.float64(), "peak_start_ns": pa.int64(), "peak_above_w": pa.float64(),
    "mean_above_w": pa.float64(), "above_j": pa.float64(), "samples": pa.int64(),
}  # fmt: skip


_FIRST = (
    "rank", "device", "host", "gpu_index", "iteration", "start_ns", "duration_ns", "peak_w",
    "peak_above_w", "above_j", "phase", "operation", "kernel",
)  # fmt: skip


def _each(trace: Trace, parts: Sequence[Part]) -> pa.Table:
    """A row for each excursion."""
    count = sum(len(part.found) for part in parts)
    columns: dict[str, Any] = {name: [] for name in _EACH}
    ran, before = [], 0
    for part in parts:
        for name, values in _columns(part).items():
            columns[name].append(values)
        own = part.found
        mine = ran_during.shared(trace, part.place.gpu.rows, own.start, own.end)
        ran.append(mine.shifted(before))
        before += len(own)
    found = ran_during.joined(ran)
    table = {
        name: pa.chunked_array(columns[name], kind) if columns[name] else pa.nulls(0, kind)
        for name, kind in _EACH.items()
    }
    table["pieces"] = arrow.array(ran_during.pieces(found, count))
    table["kernel"], table["kernel_ns"] = ran_during.mostly(trace, found, "kernel", count)
    for grain in ("class", "operation", "phase", "iteration"):
        table[grain], _ = ran_during.mostly(trace, found, grain, count)
    if any(part.window.iteration != windows.WHOLE for part in parts):
        step = [np.full(len(p.found), p.window.iteration, np.int32) for p in parts]
        table["iteration"] = arrow.array(np.concatenate(step))
    coarse = [part.found.resolution for part in parts]
    table["resolution_ns"] = arrow.array(np.concatenate([np.zeros(0, np.int64), *coarse]))
    return pa.table({name: table[name] for name in dict.fromkeys((*_FIRST, *table))})


def _columns(part: Part) -> dict[str, pa.Array]:
    own, count = part.found, len(part.found)
    limit = part.limit.lines.at(own.peak_at)
    return {
        **{
            name: pa.array([value] * count, _EACH[name])
            for name, value in _place(part.place).items()
        },
        "start_ns": arrow.array(own.start),
        "duration_ns": arrow.array(own.end - own.start),
        "limit_w": arrow.array(limit),
        "peak_w": arrow.array(limit + own.peak),
        "peak_start_ns": arrow.array(own.peak_at),
        "peak_above_w": arrow.array(own.peak),
        "mean_above_w": arrow.array(own.area / (own.time * 1e-9)),
        "above_j": arrow.array(own.area),
        "samples": arrow.array(part.samples),
    }


def _place(place: Place) -> dict[str, Any]:
    """Where a GPU is; None for what is not known."""
    return {
        "rank": place.rank if place.rank >= 0 else None,
        "device": place.device if place.device >= 0 else None,
        "host": place.host or None,
        "gpu_index": place.index if place.index >= 0 else None,
    }


_SUMS = {
    "covered_ns": pa.int64(), "limit_w": pa.float64(), "limit_by": pa.string(),
    "mean_power_w": pa.float64(), "peak_power_w": pa.float64(), "peak_start_ns": pa.int64(),
    "excursions": pa.int64(), "above_ns": pa.int64(), "above_share": pa.float64(),
    "longest_ns": pa.int64(), "peak_above_w": pa.float64(), "mean_above_w": pa.float64(),
    "above_j": pa.float64(), "resolution_ns": pa.int64(), "source": pa.string(),
}  # fmt: skip


def _of_gpus(places: Sequence[Place], parts: Sequence[Part], *, is_stepped: bool) -> pa.Table:
    """A row for each GPU, and each step if there are some; null where its power is not known."""
    told: dict[int, list[dict[str, Any]]] = {}
    for part in parts:
        told.setdefault(id(part.place), []).append(_of_gpu(part))
    rows = [row for place in places for row in told.get(id(place), [_place(place)])]
    keys = {name: _EACH[name] for name in ("rank", "device", "host", "gpu_index")}
    return _table(rows, keys | ({"iteration": pa.int32()} if is_stepped else {}) | _SUMS)


def _of_gpu(part: Part) -> dict[str, Any]:
    told = {"limit_by": part.limit.by, "source": part.source}
    iteration = part.window.iteration
    step = {"iteration": None if iteration == windows.WHOLE else iteration}
    return (
        _place(part.place)
        | step
        | told
        | power_excursions.sums(part.power, part.limit.lines, part.found)
    )


def _table(rows: Sequence[dict[str, Any]], types: dict[str, pa.DataType]) -> pa.Table:
    return pa.table({c: pa.array([row.get(c) for row in rows], kind) for c, kind in types.items()})


_NODES = {
    "host": pa.string(), "gpus": pa.int64(), **_SUMS, "sum_of_peaks_w": pa.float64(),
    "coincidence_share": pa.float64(), "most_at_once": pa.int64(), "together_ns": pa.int64(),
}  # fmt: skip


def _of_nodes(parts: Sequence[Part], *, is_stepped: bool) -> pa.Table:
    """A row for each node, and each step if there are some."""
    rows = [_of_node(same) for same in power_excursions.by_node(parts)]
    step = {"iteration": pa.int32()} if is_stepped else {}
    return _table(rows, {"host": _NODES["host"], **step, **_NODES})


def _of_node(parts: Sequence[Part]) -> dict[str, Any]:
    power = lines.summed([part.power for part in parts])
    most, together = power_excursions.at_once(parts)
    told = {
        "host": parts[0].place.host or None,
        "iteration": parts[0].window.iteration,
        "gpus": len(parts),
        "limit_by": ", ".join(dict.fromkeys(part.limit.by for part in parts)),
        "source": ", ".join(dict.fromkeys(part.source for part in parts)),
        "most_at_once": most,
        "together_ns": together,
    }
    if not len(power):
        return told
    limit = lines.summed([part.limit.lines for part in parts])
    found = lines.above(lines.summed((power, limit), (1.0, -1.0)))
    sums = power_excursions.sums(power, limit, found)
    peaks = sum(float(max(p.power.first.max(), p.power.last.max())) for p in parts)
    share = sums["peak_power_w"] / peaks if peaks > 0 else None
    return told | sums | {"sum_of_peaks_w": peaks, "coincidence_share": share}


def _of_work(trace: Trace, parts: Sequence[Part], by: str) -> pa.Table:
    """What ran during excursions, against all of its time in which power is known."""
    row, known, high = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for part in parts:
        rows = part.place.gpu.rows
        start = trace.array("ts")[rows]
        end = start + trace.array("dur")[rows]
        of_power = intervals.covered(start, end, _union(part.power))
        seen = np.flatnonzero(of_power)
        row.append(rows[seen])
        known.append(of_power[seen])
        high.append(intervals.covered(start[seen], end[seen], _union(part.found)))
    rows, time, above = (np.concatenate(of) for of in (row, known, high))
    groups = grouping.of(trace, rows, by)
    total, at_limit = groups.sums(time), groups.sums(above)
    share = at_limit / np.maximum(total, 1)
    of_all = power_excursions.share(parts)
    table = {name: groups.keys[name] for name in groups.keys.column_names}
    table |= {
        "pieces": arrow.array(np.bincount(groups.code, minlength=len(groups)).astype(np.int64)),
        "time_ns": arrow.array(total),
        "above_ns": arrow.array(at_limit),
        "above_share": arrow.array(share),
        "lift_ratio": arrow.array(share / (of_all or 1.0), mask=np.full(len(share), not of_all)),
    }
    return arrow.take(pa.table(table), np.lexsort((-total, -at_limit)))


def _union(pieces: Lines | Above) -> tuple[Array, Array]:
    return intervals.union(pieces.start, pieces.end)


def _summary(
    places: Sequence[Place], parts: Sequence[Part], bare: Sequence[Place]
) -> dict[str, Any]:
    gpus = [_of_gpu(part) for part in parts]
    high = [gpu for gpu in gpus if gpu["excursions"]]
    highest = max(high, key=lambda gpu: gpu["peak_above_w"], default=None)
    at_once = [power_excursions.at_once(same) for same in power_excursions.by_node(parts)]
    return {
        "gpus": len(places),
        "gpus_known": len({id(part.place) for part in parts}) + len(bare),
        "gpus_without_limit": len(bare),
        "excursions": sum(gpu["excursions"] for gpu in gpus),
        "above_ns": sum(gpu["above_ns"] for gpu in gpus),
        "above_share": power_excursions.share(parts) if parts else None,
        "above_j": sum(gpu["above_j"] for gpu in gpus) if parts else None,
        "peak_power_w": max((gpu["peak_power_w"] for gpu in gpus), default=None),
        "peak_above_w": highest["peak_above_w"] if highest else None,
        "highest": {k: highest[k] for k in _HIGHEST} if highest else None,
        "most_at_once": max((most for most, _ in at_once), default=0),
        "together_ns": sum(together for _, together in at_once),
        "by_gpu": [{k: gpu[k] for k in _BY_GPU} for gpu in gpus],
    }


_HIGHEST = ("rank", "device", "host", "peak_start_ns", "peak_power_w", "limit_w", "peak_above_w")
_BY_GPU = (
    "rank", "device", "host", "iteration", "excursions", "above_ns", "above_share", "limit_w",
    "peak_power_w", "above_j",
)  # fmt: skip


def _notes(
    places: Sequence[Place],
    parts: Sequence[Part],
    bare: Sequence[Place],
    above: float,
    steps: str,
    window: str,
) -> dict[str, str]:
    whole = (
        "all of the telemetry"
        if window
        else "from the first start to the last end of the rank's GPU work (of all work, for GPUs of "
        "which no rank is known); all of the telemetry where nothing ran"
    )
    told: dict[str, str] = {}
    if bare:
        told["no limit is known"] = _UNTOLD.format(", ".join(place.name for place in bare))
    told["window"] = windows.described(steps, whole) + "; of that, when power is known"
    limits: dict[str, list[str]] = {}
    for part in parts:
        limits.setdefault(part.limit.by, []).append(part.place.name)
    factor = "" if above == 1 else f"{above:g} times "
    told["limit"] = "; ".join(
        f"{factor}{by} of {len(dict.fromkeys(names))} GPUs" for by, names in limits.items()
    ) or ("none is known" if bare else "none: no power is known")
    known = {id(part.place) for part in parts} | {id(place) for place in bare}
    left = [place.name for place in places if id(place) not in known]
    told["left out"] = f"GPUs of which no power is known: {', '.join(left) or 'none'}"
    if not parts and bare:
        told["no rows"] = "no limit is known: -O limit_w=WATTS says it"
    elif not parts:
        told["no rows"] = "telemetry tells no power of any GPU while it was asked about"
    elif not any(len(part.found) for part in parts):
        hint = ": above=0.9 asks for 90 % of it" if above == 1 else ""
        told["no rows"] = f"no GPU was ever above {factor}its limit{hint}"
    return told
