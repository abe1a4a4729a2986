"""Pieces and delays that the writer made for simulators, put back into what was recorded.

In an ET of this project the rest of a host operation, its return from a wait, and time that passed on a
GPU or between operations are nodes, as simulators know neither streams nor calls. Read at the times that were
measured, they are in the times of what was recorded already::

    ET           call ──> rest of the call     work ──> latency ──> return of the call ──> call 2
    read back    call ──> call 2               work ──> end of the call

Where operations are not in the ET (mode gpu), pieces are all that is known of hosts, and stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra import slots
from chopper_interop.converters.chakra.values import integers
from chopper_interop.issues import Fault
from chopper_interop.schemas.chakra import Cause
from chopper_interop.schemas.kinds import GPU_WORK, Kind

if TYPE_CHECKING:
    from chopper_interop.converters.chakra.decode import EtFile

PIECES = Fault.info_of_events(
    "et-pieces",
    "Rests and returns of host operations, delays and messages of a few bytes that were made for simulators are "
    "no nodes here: their time is in that of the operations and the work that were recorded.",
)


class Whole(NamedTuple):
    """Nodes without pieces, and dependencies between these.

    Parameters
    ----------
    stays
        Mask of the nodes that are no piece of another and no delay.
    src, dst
        Dependencies, by positions among the nodes that stay.
    to_wait
        Mask of those for which `dst` waits at its end.
    is_return
        Of the nodes that stay, those that stand for a wait alone.
    """

    stays: Array
    src: Array
    dst: Array
    to_wait: Array
    is_return: Array


def put_together(
    et: EtFile, keep: Array, kind: Array, at: tuple[Array, Array], dependencies: tuple[Array, Array]
) -> Whole:
    """Put pieces back into what they are of.

    Parameters
    ----------
    et, keep
        The file and its rows that are nodes.
    kind, at
        Kind of each, and starts and durations.
    dependencies
        Positions of nodes of which the second depends on the first, without cycles.
    """
    (src, dst), (ts, dur) = dependencies, at
    n, cause = len(keep), _causes(et)[keep]
    derived = (kind == Kind.HOST_GAP) & (cause != Cause.WORK)
    on_host = (integers(et, "is_cpu_op", 0) != 0)[keep]
    is_return = derived & (cause == Cause.RETURN)
    operation = _operations(et, keep)
    is_operation = np.append(on_host & ~derived, False)
    of = np.where(derived & is_operation[operation], operation, np.arange(n))
    stays = ~derived
    if not is_operation.any():
        stays |= on_host & ((cause == Cause.HOST) | is_return)
    hidden = ~stays & (of == np.arange(n))
    src, dst = _around(hidden, on_host, ts, src, dst)
    to_wait, end = is_return[dst], ts + dur
    # what wakes a thread up while its operation goes on is a piece, of which nothing is left
    awake = to_wait & on_host[src] & (end[of[src]] > end[dst])
    src, dst = of[src[~awake]], of[dst[~awake]]
    to_wait = to_wait[~awake]
    chosen = np.flatnonzero(stays[src] & stays[dst] & (src != dst))
    # one number for each dependency, as pieces of one operation may wait for the same
    pairs = np.unique((src[chosen] * n + dst[chosen]) * 2 + to_wait[chosen])
    pairs, to_wait = np.divmod(pairs, 2)
    number = np.cumsum(stays) - 1
    src, dst = number[pairs // n], number[pairs % n]
    return Whole(stays, src, dst, to_wait == 1, is_return[stays])


def _causes(et: EtFile) -> Array:
    """Cause of each node; that of nodes that state none is work."""
    codes, texts = et.texts("cause")
    by_name = {cause.name.lower(): int(cause) for cause in Cause}
    return np.array([by_name.get(text, 0) for text in texts] + [0])[codes]


def _operations(et: EtFile, keep: Array) -> Array:
    """Position in `keep` of the operation that each node continues; len(keep) if it is none's piece."""
    order = np.argsort(et.id[keep], kind="stable")
    place = gather.find(et.id[keep][order], integers(et, "continues", -1)[keep])
    return np.append(order, len(keep))[place]


def _around(
    hidden: Array, on_host: Array, ts: Array, src: Array, dst: Array
) -> tuple[Array, Array]:
    """Dependencies around hidden nodes, to the last node on each side that they depend on."""
    n = len(hidden)
    order = gather.topological_order(*gather.group_values(src, dst, n))
    src, dst = slots.bypassed(order, hidden, on_host, ts, *gather.group_values(dst, src, n))
    return src, dst


def with_waits(
    whole: Whole, kind: Array, lane: Array, ts: Array, dur: Array
) -> tuple[Array, Array]:
    """Starts and durations with returns of waits as waits: for GPU work from what is before them on their lane on.

    What waited for another thread did nothing until its return; others begin when what is before them has ended,
    as starts of returns are rounded.
    """
    order = np.lexsort((np.arange(len(ts)), ts, lane))
    before = np.append(-1, order[:-1])
    before[np.diff(lane[order], prepend=-1) != 0] = -1
    previous = np.empty(len(ts), np.int64)
    previous[order] = before
    from_gpu = is_any(kind[whole.src], GPU_WORK)
    for_gpu, for_thread = np.zeros((2, len(ts)), bool)
    for_gpu[whole.dst[from_gpu]] = True
    for_thread[whole.dst[~from_gpu & (lane[whole.src] != lane[whole.dst])]] = True
    moved = np.flatnonzero(whole.is_return)
    begin, end = ts.copy(), ts + dur
    first_ns = ts.min(initial=np.iinfo(np.int64).max)  # there may be no node but pieces
    free_at = np.where(previous[moved] >= 0, end[previous[moved]], first_ns)
    of_others = np.where(for_thread[moved], end[moved], np.maximum(free_at, ts[moved]))
    begin[moved] = np.where(for_gpu[moved], free_at, of_others)
    begin = np.minimum(begin, end)
    return begin, end - begin
