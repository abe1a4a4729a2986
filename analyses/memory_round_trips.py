"""Bytes that kernels read from memory right after the previous kernel wrote them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import grouping, round_trips, selected_work
from chopper_interop.arrays import arrow
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

__all__ = ["memory_round_trips"]

_CONVENTIONS = {
    "links": selected_work.LINKS,
    "memset": "fills, copies and communication are left out, and so are kernels right after one",
    "copies": "copies by kernels of the runtime (__amd_rocclr_*) count as kernels",
    "bytes": round_trips.CONVENTION,
}


def memory_round_trips(
    trace: Trace, *, by: str = "kernel", steps: str = "", ranks: str = ""
) -> Result:
    """Upper bound of bytes that a kernel wrote and the next on its stream read, and their time.

    Parameters
    ----------
    trace
        Any trace with counters of bytes read and written (FETCH_SIZE and WRITE_SIZE, or requests).
    by
        Columns that identify a row, of the reading kernel: names of `grouping.GRAINS` separated by
        commas.
    steps
        Training steps that count: "each", "10", "10-12"; "" for all of the trace.
    ranks
        Ranks that count: "0,4-7"; "" for all.

    Returns
    -------
    Result
        One row per group of kernels, the most bytes first: `count`, and of these `known_kernels`, for
        which both the kernel and the one before it have counters; their duration `total_ns`;
        `read_again_bytes` as an upper bound, `round_trip_ns`, the time of these bytes at the GPU's
        peak bandwidth (null where that is unknown), and `round_trip_share` of total_ns. The summary
        has sums.

    Notes
    -----
    An upper bound of the locality tax of arXiv 2511.02168; see `chopper_interop.analyses.methods.activity.round_trips`.
    """
    selected = selected_work.select_work(trace, steps, ranks)
    rows = selected.rows[trace.array("kind")[selected.rows] == Kind.KERNEL]
    groups = grouping.group_nodes(trace, rows, by)
    trips = round_trips.find_round_trips(trace)
    known, timed = trips.known[rows], trips.timed[rows]
    total = groups.sums(np.where(known, trace.array("dur")[rows], 0))
    size, ns = groups.sums(trips.bytes[rows]), groups.sums(trips.ns[rows])
    n_known = groups.sums(known.astype(np.int64))
    has_untimed = groups.sums((known & ~timed).astype(np.int64)) > 0
    time_unknown = (n_known == 0) | has_untimed
    share = np.where(time_unknown | (total == 0), np.nan, ns / np.maximum(total, 1))
    columns = {
        "count": arrow.array(np.bincount(groups.code, minlength=len(groups))),
        "known_kernels": arrow.array(n_known),
        "total_ns": arrow.array(total),
        "read_again_bytes": arrow.array(size, mask=n_known == 0),
        "round_trip_ns": arrow.array(ns, mask=time_unknown),
        "round_trip_share": arrow.nan_to_null(share),
    }
    table = pa.table({n: groups.keys[n] for n in groups.keys.column_names} | columns)
    any_known = bool(known.any())
    all_timed = any_known and not has_untimed.any()
    summary = {
        "count": len(rows),
        "known_kernels": int(n_known.sum()),
        "total_ns": int(total.sum()),
        "read_again_bytes": int(size.sum()) if any_known else None,
        "round_trip_ns": int(ns.sum()) if all_timed else None,
        "left_out": selected.left_out,
    }
    notes = {
        "window": selected_work.describe(steps),
        "left out": f"{selected.left_out} instances of GPU work outside the selected steps; "
        f"{len(rows) - int(known.sum())} kernels without counters, or after work without them",
    }
    order = np.argsort(-size, kind="stable")
    if not any_known:
        notes["no rows"] = "no two consecutive kernels have counters of bytes"
        order = order[:0]
    return Result(
        "memory_round_trips", arrow.take(table, order), summary, _CONVENTIONS, notes=notes
    )
