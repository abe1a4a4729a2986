"""What kernels read again from memory right after another one wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.activity import grouping, instances, round_trips
from chopper_interop.columns import arrow
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

__all__ = ["memory_round_trips"]

_CONVENTIONS = {
    "links": instances.LINKS,
    "memset": "fills, copies and communication are left out, and so is what comes right behind one",
    "copies": "copies by kernels of the runtime (__amd_rocclr_*) count as kernels",
    "bytes": round_trips.CONVENTION,
}


def memory_round_trips(
    trace: Trace, *, by: str = "kernel", steps: str = "", ranks: str = ""
) -> Result:
    """Bytes that a kernel wrote and the next on its stream read again, at most, and their time.

    Parameters
    ----------
    trace
        Any trace with counters of bytes read and written (FETCH_SIZE and WRITE_SIZE, or requests).
    by
        What the rows are, of the kernel that reads: names of `grouping.GRAINS` separated by commas.
    steps
        Training steps that count, "" for all of the trace: "each", "10", "10-12".
    ranks
        Ranks that count, "" for all: "0,4-7".

    Returns
    -------
    Result
        One row a group of kernels, the most bytes first: `count`, of which `known` with counters of
        their own and of the kernel before; `total_ns` of these; `read_again_bytes`, at most, and
        `round_trip_ns`, their time at the GPU's peak bandwidth (null where that is not known), and
        `round_trip_share` of total_ns. The summary has sums.

    Notes
    -----
    The locality tax of arXiv 2511.02168 as a bound; see `chopper_interop.activity.round_trips`.
    """
    found = instances.chosen(trace, steps, ranks)
    rows = found.rows[trace.array("kind")[found.rows] == Kind.KERNEL]
    groups = grouping.of(trace, rows, by)
    trips = round_trips.of(trace)
    known, timed = trips.known[rows], trips.timed[rows]
    total = groups.sums(np.where(known, trace.array("dur")[rows], 0))
    size, ns = groups.sums(trips.bytes[rows]), groups.sums(trips.ns[rows])
    n_known = groups.sums(known.astype(np.int64))
    untimed = groups.sums((known & ~timed).astype(np.int64)) > 0
    without = (n_known == 0) | untimed
    share = np.where(without | (total == 0), np.nan, ns / np.maximum(total, 1))
    columns = {
        "count": arrow.array(np.bincount(groups.code, minlength=len(groups))),
        "known": arrow.array(n_known),
        "total_ns": arrow.array(total),
        "read_again_bytes": arrow.array(size, mask=n_known == 0),
        "round_trip_ns": arrow.array(ns, mask=without),
        "round_trip_share": arrow.array(share, mask=np.isnan(share)),
    }
    table = pa.table({**{n: groups.keys[n] for n in groups.keys.column_names}, **columns})
    some, whole = bool(known.any()), bool(known.any() and not untimed.any())
    summary = {
        "count": len(rows),
        "known": int(n_known.sum()),
        "total_ns": int(total.sum()),
        "read_again_bytes": int(size.sum()) if some else None,
        "round_trip_ns": int(ns.sum()) if whole else None,
        "left_out": found.left_out,
    }
    notes = {
        "window": instances.described(steps),
        "left out": f"{found.left_out} instances of GPU work outside of the chosen steps; "
        f"{len(rows) - int(known.sum())} kernels without counters, or behind what has none",
    }
    order = np.argsort(-size, kind="stable")
    if not some:
        notes["no rows"] = "no two kernels behind each other have counters of bytes"
        order = order[:0]
    return Result(
        "memory_round_trips", arrow.take(table, order), summary, _CONVENTIONS, notes=notes
    )
