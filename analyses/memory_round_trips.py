"""Bytes that kernels read from memory right after the previous kernel wrote them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import grouping, round_trips, selected_work, windows
from chopper_interop.analyses.methods.activity.totals import Totals
from chopper_interop.arrays import Array, arrow
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
    rank_windows = windows.rank_windows(trace, steps, ranks)
    totals, work = Totals(), 0
    for _, part, selected in selected_work.batches(trace, rank_windows, steps):
        work += len(selected)
        rows = selected[part.array("kind")[selected] == Kind.KERNEL]
        code, keys = grouping.code_nodes(part, rows, by)
        totals.add(totals.numbers(keys)[code], **_figures(part, rows))
    ordered, sums = totals.ordered()
    size, n_known, total = sums["bytes"], sums["known"], sums["known_ns"]
    has_untimed = sums["known"] > sums["timed"]
    time_unknown = (n_known == 0) | has_untimed
    share = np.where(time_unknown | (total == 0), np.nan, sums["ns"] / np.maximum(total, 1))
    columns = {
        "count": arrow.array(sums["count"]),
        "known_kernels": arrow.array(n_known),
        "total_ns": arrow.array(total),
        "read_again_bytes": arrow.array(size, mask=n_known == 0),
        "round_trip_ns": arrow.array(sums["ns"], mask=time_unknown),
        "round_trip_share": arrow.nan_to_null(share),
    }
    of_keys = ordered.table(trace)
    table = pa.table({n: of_keys[n] for n in of_keys.column_names} | columns)
    any_known = bool(n_known.any())
    all_timed = any_known and not has_untimed.any()
    left_out = windows.work_count(trace, ranks) - work
    count, known = int(sums["count"].sum()), int(n_known.sum())
    summary = {
        "count": count,
        "known_kernels": known,
        "total_ns": int(total.sum()),
        "read_again_bytes": int(size.sum()) if any_known else None,
        "round_trip_ns": int(sums["ns"].sum()) if all_timed else None,
        "left_out": left_out,
    }
    notes = {
        "window": selected_work.describe(steps),
        "left out": f"{left_out} instances of GPU work outside the selected steps; "
        f"{count - known} kernels without counters, or after work without them",
    }
    order = np.argsort(-size, kind="stable")
    if not any_known:
        notes["no rows"] = "no two consecutive kernels have counters of bytes"
        order = order[:0]
    return Result(
        "memory_round_trips", arrow.take(table, order), summary, _CONVENTIONS, notes=notes
    )


def _figures(trace: Trace, rows: Array) -> dict[str, Array]:
    """Figures of each of some kernels, which are added up by group."""
    trips = round_trips.find_round_trips(trace)
    known = trips.known[rows]
    return {
        "count": np.ones(len(rows), np.int64),
        "known": known.astype(np.int64),
        "timed": (known & trips.timed[rows]).astype(np.int64),
        "known_ns": np.where(known, trace.array("dur")[rows], 0),
        "bytes": trips.bytes[rows],
        "ns": trips.ns[rows],
    }
