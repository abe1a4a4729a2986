"""Collectives by the definitions of TraceLens' NcclAnalyser (git 171dd747).

Latency is the least duration of a member; a member waits from its start to the last start, however
short it is; skews are spreads of starts and of ends; sizes are what is put in, of an all-gather what
it gives; a GB is 2**30 byte. Only collectives that synchronise count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.errors import NoSuchDefinitionsError
from chopper_interop.schemas.kinds import Collective
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.communication.times import CommunicationTimes

_FACTORS = {
    Collective.ALL_REDUCE: 2,
    Collective.REDUCE_SCATTER: 1,
    Collective.ALL_GATHER: 1,
    Collective.ALL_TO_ALL: 1,
}
_CONVENTIONS = {
    "definitions": "TraceLens' NcclAnalyser (171dd747): latency is the least duration of a member, "
    "waiting is from a member's start to the last start, even if it ended before; GB/s of 2**30 "
    "byte, sizes put in (of an all-gather, got). Those of `collectives` without compat differ: transfer "
    "from the last start to the last end, 1e9 byte",
    "left out by definition": "what does not synchronise (broadcast, reduce, send, receive, barrier)",
    "matching": "as without compat, not by the order in a group; TraceLens stops where ranks state different "
    "sizes",
    "uneven all-to-all": "has no bandwidth; TraceLens counts all_to_allv apart where it is named",
}
_GIB = 1 << 30
_BY = ("collective,group", "instance", "rank")


def tracelens_tables(
    trace: Trace, times: CommunicationTimes, member: Array, by: str
) -> tuple[pa.Table, dict[str, Any], dict[str, str]]:
    """Rows, summary and conventions.

    Parameters
    ----------
    trace, times, member
        As of `communication.tables.instance_rows`.
    by
        ``"instance"``: its table of implicitly synchronising collectives; ``"collective,group"``:
        its summary, by collective, element type and bytes put in; ``"rank"``: its stragglers.
    """
    if by not in _BY:
        raise NoSuchDefinitionsError(
            f"compat=tracelens has no by={by}", hint=f"there are {', '.join(_BY)}"
        )
    columns = _columns(trace, times, member)
    build = {"instance": _instances, "rank": _stragglers}.get(by, _summary)
    rows = build(columns)
    waits = columns["wait"]
    summary = {
        "collectives": len(columns["instance"]),
        "wait_ns": int(waits.sum()) if len(waits) else None,
        "by_rank": _stragglers(columns).to_pylist(),
    }
    return rows, summary, _CONVENTIONS


def _columns(trace: Trace, times: CommunicationTimes, member: Array) -> dict[str, Any]:
    """Columns by instance, and of their members (`tracelens_tables`, `rank`, `wait`, `dur`)."""
    instances, kinds = times.instances, times.kinds
    used = gather.unique_codes(times.instance[member])
    codes = [kinds.index(kind) for kind in _FACTORS if kind in kinds]
    used = used[np.isin(instances.kind[used], codes)]
    # members of the used instances, by instance: those of k begin at at[k]
    position = np.full(len(instances) + 1, -1, np.int64)
    position[used] = np.arange(len(used))
    part = np.flatnonzero(position[times.instance] >= 0)
    part = part[np.argsort(position[times.instance[part]], kind="stable")]
    of_part = position[times.instance[part]]
    at = np.searchsorted(of_part, np.arange(len(used)))
    start, dur = times.start[part], times.dur[part]
    wait = instances.last_start[used][of_part] - start
    latency = np.minimum.reduceat(dur, at)
    first_end, last_end = (end.reduceat(start + dur, at) for end in (np.minimum, np.maximum))
    put = trace.integers("bytes", times.row[part])
    even = np.minimum.reduceat(put, at) == np.maximum.reduceat(put, at)
    return {
        "instance": instances.number[used],
        "kind": instances.kind[used],
        "kinds": kinds,
        "dtype": _dtypes(trace, times.row[instances.last[used]]),
        "put": instances.put[used],
        "latency": latency,
        "start_skew": (instances.last_start - instances.start)[used],
        "end_skew": last_end - first_end,
        "first": _first_ranks(times, part, of_part, len(used)),
        "mean_wait": np.bincount(of_part, wait, len(used)) / np.maximum(instances.members[used], 1),
        **_speeds(times, used, latency, even),
        "of": of_part,
        "rank": times.rank[part],
        "wait": wait,
        "dur": dur,
        "last": times.rank[instances.last[used]],
    }


def _first_ranks(times: CommunicationTimes, part: Array, of_part: Array, count: int) -> Array:
    """Rank that started first; of equal ones the highest."""
    order = np.lexsort((times.rank[part], -times.start[part], of_part))
    first = np.full(count, -1, np.int64)
    first[of_part[order]] = times.rank[part][order]  # the last of each is written last and stays
    return first


def _speeds(
    times: CommunicationTimes, used: Array, latency: Array, even: Array
) -> dict[str, Array]:
    """Algorithmic and bus bandwidth of each instance in GiB/s; NaN where unknown."""
    instances = times.instances
    gathers = [i for i, kind in enumerate(times.kinds) if kind == Collective.ALL_GATHER]
    to_all = [i for i, kind in enumerate(times.kinds) if kind == Collective.ALL_TO_ALL]
    kind, n = instances.kind[used], instances.group_size[used]
    size = np.where(np.isin(kind, gathers), instances.got[used], instances.put[used])
    factor = np.array([_FACTORS.get(k, 0) for k in times.kinds], np.float64)[kind]
    known = (size >= 0) & (latency > 0) & (even | ~np.isin(kind, to_all))
    speed = np.full(len(used), np.nan)
    speed[known] = size[known] / _GIB / (latency[known] * 1e-9)
    return {"algbw": speed, "busbw": speed * factor * (n - 1) / np.maximum(n, 1)}


def _dtypes(trace: Trace, row: Array) -> Any:
    if not trace.has("dtype"):
        return pa.nulls(len(row), pa.string())
    return arrow.take(arrow.single_chunk(trace.nodes["dtype"]), row).cast(pa.string())


def _instances(columns: dict[str, Any]) -> pa.Table:
    """Table of TraceLens with a row a collective."""
    return pa.table(
        {
            "instance": arrow.array(columns["instance"]),
            "collective": _kinds(columns),
            "dtype": columns["dtype"],
            "put_bytes": arrow.negative_to_null(columns["put"]),
            "latency_ns": arrow.array(columns["latency"]),
            "start_skew_ns": arrow.array(columns["start_skew"]),
            "earliest_rank": arrow.array(columns["first"]),
            "wait_mean_ns": arrow.array(columns["mean_wait"]),
            "end_skew_ns": arrow.array(columns["end_skew"]),
            "algbw_gib_per_s": arrow.nan_to_null(columns["algbw"]),
            "busbw_gib_per_s": arrow.nan_to_null(columns["busbw"]),
        }
    )


def _summary(columns: dict[str, Any]) -> pa.Table:
    """Summary of TraceLens: means and standard deviations (of a sample) by collective, type and bytes."""
    every = _instances(columns)
    kinds, types = (every[c].combine_chunks().dictionary_encode() for c in ("collective", "dtype"))
    put = columns["put"]
    first, code = gather.distinct(arrow.to_numpy(kinds, -1), arrow.to_numpy(types, -1), put)
    count = np.bincount(code, minlength=len(first))
    total = np.zeros(len(first), np.int64)
    np.add.at(total, code, columns["latency"])
    keys = {c: arrow.take(every[c], first) for c in ("collective", "dtype", "put_bytes")}
    spread = {
        f"{column}_{unit}": values
        for figure, unit in (("latency", "ns"), ("start_skew", "ns"), ("end_skew", "ns"),
                           ("algbw", "gib_per_s"), ("busbw", "gib_per_s"))
        for column, values in zip((f"{figure}_mean", f"{figure}_std"),
                              _spread(code, columns[figure], len(first)), strict=True)
    }  # fmt: skip
    figures = {"collectives": arrow.array(count), "latency_ns": arrow.array(total), **spread}
    return arrow.take(pa.table({**keys, **figures}), np.argsort(-total, kind="stable"))


def _spread(code: Array, values: Array, groups: int) -> tuple[Any, Any]:
    """Mean and standard deviation over each group's known values; of one there is no deviation."""
    known = ~np.isnan(values)
    code, values = code[known], values[known]
    count = np.bincount(code, minlength=groups)
    mean = np.bincount(code, values, groups) / np.maximum(count, 1)
    square = np.bincount(code, (values - mean[code]) ** 2, groups)
    deviation = np.sqrt(square / np.maximum(count - 1, 1))
    return arrow.array(mean, mask=count == 0), arrow.array(deviation, mask=count < 2)  # noqa: PLR2004


def _stragglers(columns: dict[str, Any]) -> pa.Table:
    """Stragglers of TraceLens: ranks, those that waited least first."""
    ranks = np.unique(columns["rank"])
    member = np.searchsorted(ranks, columns["rank"])
    total = np.zeros(len(ranks), np.int64)
    np.add.at(total, member, columns["wait"])
    parts = np.bincount(member, minlength=len(ranks))
    last = np.searchsorted(ranks, columns["last"])
    first = np.searchsorted(ranks, columns["first"])
    count = len(columns["instance"])
    often = np.bincount(last, minlength=len(ranks))
    table = pa.table(
        {
            "rank": arrow.array(ranks),
            "wait_ns": arrow.array(total),
            "wait_mean_ns": arrow.array(total / np.maximum(parts, 1)),
            "times_last": arrow.array(often),
            "times_first": arrow.array(np.bincount(first, minlength=len(ranks))),
            "late_share": arrow.array(often / max(count, 1)),
            "collectives": arrow.array(np.full(len(ranks), count)),
        }
    )
    return arrow.take(table, np.argsort(total, kind="stable"))


def _kinds(columns: dict[str, Any]) -> Any:
    return arrow.dictionary(columns["kind"], columns["kinds"]).cast(pa.string())
