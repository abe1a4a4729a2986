"""What TraceLens' NcclAnalyser says of collectives, by its definitions (git 171dd747).

Latency is the least duration of a member; a member waits from its start to the last start, however
short it is; skews are spreads of starts and of ends; sizes are what is put in, of an all-gather what
it gives; a GB is 2**30 byte. Only collectives that synchronise count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.columns import arrow, gather
from chopper_interop.communication.times import known
from chopper_interop.edges import collectives
from chopper_interop.errors import NoSuchDefinitionsError
from chopper_interop.schemas.kinds import Collective

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.communication.times import Times
    from chopper_interop.trace import Trace

_FACTORS = {
    Collective.ALL_REDUCE: 2,
    Collective.REDUCE_SCATTER: 1,
    Collective.ALL_GATHER: 1,
    Collective.ALL_TO_ALL: 1,
}
_CONVENTIONS = {
    "definitions": "TraceLens' NcclAnalyser (171dd747): latency is the least duration of a member, "
    "waiting is from a member's start to the last start, even if it ended before; GB/s of 2**30 "
    "byte, sizes put in (of an all-gather, got). Ours differ: transfer from the last start to the "
    "last end, 1e9 byte",
    "left out by definition": "what does not synchronise (broadcast, reduce, send, receive, barrier)",
    "matching": "by ours, not by the order in a group; TraceLens stops where ranks state different "
    "sizes",
    "uneven all-to-all": "has no bandwidth; TraceLens counts all_to_allv apart where it is named",
}
_GIB = 1 << 30
_BY = ("collective,group", "instance", "rank")


def of(
    trace: Trace, times: Times, member: Array, by: str
) -> tuple[pa.Table, dict[str, Any], dict[str, str]]:
    """Rows, summary and conventions.

    Parameters
    ----------
    trace, times, member
        As of `communication.tables.each`.
    by
        ``"instance"``: its table of implicitly synchronising collectives; ``"collective,group"``:
        its summary, by collective, element type and bytes put in; ``"rank"``: its stragglers.
    """
    if by not in _BY:
        raise NoSuchDefinitionsError(
            f"compat=tracelens has no by={by}", hint=f"there are {', '.join(_BY)}"
        )
    found = _each(trace, times, member)
    make = {"instance": _told, "rank": _stragglers}.get(by, _summary)
    rows = make(found)
    waits = found["wait"]
    summary = {
        "collectives": len(found["instance"]),
        "wait_ns": int(waits.sum()) if len(waits) else None,
        "by_rank": _stragglers(found).to_pylist(),
    }
    return rows, summary, _CONVENTIONS


def _each(trace: Trace, times: Times, member: Array) -> dict[str, Any]:
    """Columns by instance, and of their members (`of`, `rank`, `wait`, `dur`)."""
    them, kinds = times.instances, times.kinds
    used = gather.used(times.instance[member])
    codes = [kinds.index(kind) for kind in _FACTORS if kind in kinds]
    used = used[np.isin(them.kind[used], codes)]
    place = np.full(len(them) + 1, -1, np.int64)
    place[used] = np.arange(len(used))
    part = np.flatnonzero(place[times.instance] >= 0)
    part = part[np.argsort(place[times.instance[part]], kind="stable")]
    of_part = place[times.instance[part]]
    at = np.searchsorted(of_part, np.arange(len(used)))
    start, dur = times.start[part], times.dur[part]
    wait = them.last_start[used][of_part] - start
    latency, first_end, last_end = (
        _least(dur, at),
        _least(start + dur, at),
        -_least(-start - dur, at),
    )
    put = collectives.numbers(trace, "bytes", times.row[part])
    even = _least(put, at) == -_least(-put, at)
    return {
        "instance": them.number[used],
        "kind": them.kind[used],
        "kinds": kinds,
        "dtype": _dtypes(trace, times.row[them.last[used]]),
        "put": them.put[used],
        "latency": latency,
        "start_skew": (them.last_start - them.start)[used],
        "end_skew": last_end - first_end,
        "first": _first_ranks(times, part, of_part, len(used)),
        "mean_wait": np.bincount(of_part, wait, len(used)) / np.maximum(them.members[used], 1),
        **_speeds(times, used, latency, even),
        "of": of_part,
        "rank": times.rank[part],
        "wait": wait,
        "dur": dur,
        "last": times.rank[them.last[used]],
    }


def _least(values: Array, at: Array) -> Array:
    return np.minimum.reduceat(values, at) if len(at) else values[:0]


def _first_ranks(times: Times, part: Array, of_part: Array, count: int) -> Array:
    """Rank that started first; of equal ones the highest."""
    order = np.lexsort((times.rank[part], -times.start[part], of_part))
    first = np.full(count, -1, np.int64)
    first[of_part[order]] = times.rank[part][order]  # of a collective's the last is written last
    return first


def _speeds(times: Times, used: Array, latency: Array, even: Array) -> dict[str, Array]:
    them = times.instances
    gathers = [i for i, kind in enumerate(times.kinds) if kind == Collective.ALL_GATHER]
    to_all = [i for i, kind in enumerate(times.kinds) if kind == Collective.ALL_TO_ALL]
    kind, n = them.kind[used], them.group_size[used]
    size = np.where(np.isin(kind, gathers), them.got[used], them.put[used])
    factor = np.array([_FACTORS.get(k, 0) for k in times.kinds], np.float64)[kind]
    sound = (size >= 0) & (latency > 0) & (even | ~np.isin(kind, to_all))
    speed = np.full(len(used), np.nan)
    speed[sound] = size[sound] / _GIB / (latency[sound] * 1e-9)
    return {"algbw": speed, "busbw": speed * factor * (n - 1) / np.maximum(n, 1)}


def _dtypes(trace: Trace, row: Array) -> Any:
    if "dtype" not in trace.nodes.column_names:
        return pa.nulls(len(row), pa.string())
    return arrow.take(arrow.flat(trace.nodes["dtype"]), row).cast(pa.string())


def _told(found: dict[str, Any]) -> pa.Table:
    """Its table with a row a collective."""
    return pa.table(
        {
            "instance": arrow.array(found["instance"]),
            "collective": _kinds(found),
            "dtype": found["dtype"],
            "put_bytes": known(found["put"]),
            "latency_ns": arrow.array(found["latency"]),
            "start_skew_ns": arrow.array(found["start_skew"]),
            "earliest_rank": arrow.array(found["first"]),
            "wait_mean_ns": arrow.array(found["mean_wait"]),
            "end_skew_ns": arrow.array(found["end_skew"]),
            "algbw_gib_per_s": _reals(found["algbw"]),
            "busbw_gib_per_s": _reals(found["busbw"]),
        }
    )


def _summary(found: dict[str, Any]) -> pa.Table:
    """Its summary: means and standard deviations (of a sample) by collective, type and bytes."""
    whole = _told(found)
    kinds, types = (whole[c].combine_chunks().dictionary_encode() for c in ("collective", "dtype"))
    put = found["put"]
    first, code = gather.distinct(arrow.numbers(kinds, -1), arrow.numbers(types, -1), put)
    count = np.bincount(code, minlength=len(first))
    total = np.zeros(len(first), np.int64)
    np.add.at(total, code, found["latency"])
    keys = {c: arrow.take(whole[c], first) for c in ("collective", "dtype", "put_bytes")}
    spread = {
        f"{what}_{name}": made
        for what, name in (("latency", "ns"), ("start_skew", "ns"), ("end_skew", "ns"),
                           ("algbw", "gib_per_s"), ("busbw", "gib_per_s"))
        for what, made in zip((f"{what}_mean", f"{what}_std"),
                              _spread(code, found[what], len(first)), strict=True)
    }  # fmt: skip
    columns = {"collectives": arrow.array(count), "latency_ns": arrow.array(total), **spread}
    return arrow.take(pa.table({**keys, **columns}), np.argsort(-total, kind="stable"))


def _spread(code: Array, values: Array, groups: int) -> tuple[Any, Any]:
    """Mean and standard deviation over each group's known values; of one there is no deviation."""
    real = ~np.isnan(values)
    code, values = code[real], values[real]
    count = np.bincount(code, minlength=groups)
    mean = np.bincount(code, values, groups) / np.maximum(count, 1)
    square = np.bincount(code, (values - mean[code]) ** 2, groups)
    deviation = np.sqrt(square / np.maximum(count - 1, 1))
    return arrow.array(mean, mask=count == 0), arrow.array(deviation, mask=count < 2)  # noqa: PLR2004


def _stragglers(found: dict[str, Any]) -> pa.Table:
    """Its stragglers: ranks by how little they waited."""
    ranks = np.unique(found["rank"])
    each = np.searchsorted(ranks, found["rank"])
    total = np.zeros(len(ranks), np.int64)
    np.add.at(total, each, found["wait"])
    parts = np.bincount(each, minlength=len(ranks))
    last = np.searchsorted(ranks, found["last"])
    first = np.searchsorted(ranks, found["first"])
    count = len(found["instance"])
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


def _kinds(found: dict[str, Any]) -> Any:
    return arrow.dictionary(found["kind"], found["kinds"]).cast(pa.string())


def _reals(values: Array) -> Any:
    return arrow.array(values, mask=np.isnan(values))
