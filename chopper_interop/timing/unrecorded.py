"""Dependencies through ranks that do not record yet.

Recordings of ranks begin when their hosts come to a step, each at its own time. Of what a rank did until
then, others have recorded the messages that they exchanged with it. A rank works on messages in their order, so
its next answer follows the later of two: its answer before, and the message that it answers::

    rank 0    [ send 0 ]        [ receive 0   ]
                       1                      3    [ receive 1        ]
                                  [ send 1    ]                       4
    rank 1    not recorded                    2
              takes send 0, answers 0, takes send 1, answers 1, takes send 2 [ kernel ]
                                                                             5
    1 -> 3; 2 -> 4, 3 -> 4        lag: the measured time since the last of them
    4 -> 5                        the same, for work that was queued before its rank recorded, and
                                  to which no other edge leads

Messages that did not wait tell at what time the other rank was there at the latest: it is taken to be there
as soon as for others, if that is sooner. To the end of a message that waited and for which nothing else
was exchanged an edge leads from where its own rank began to record: what held it up stays as it was.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.arrays.statistics import NO_VALUE, lower_medians
from chopper_interop.edges.queues import group_pairs, queued_before
from chopper_interop.schemas.kinds import GPU_WORK, POINT_TO_POINT, Kind
from chopper_interop.trace import Trace

_WAITED_SHARE = 0.5
"""A message waited if it lasted longer than others of its size by this share. Chosen: transfers vary by less."""
_RECEIVE, _SEND = 0, 1
"""Ways of a pair: the last digit of `_Messages.way`, so that each other way is that of one bit."""


class _Messages(NamedTuple):
    """Messages of which the other end is not recorded, by pair of ranks and direction, in order of start.

    Parameters
    ----------
    row
        Row of `nodes`.
    pair
        Number of the rank and its peer.
    way
        2 x `pair`, and 1 for sends.
    nth
        How many of its way there were before.
    first
        Messages of way w are ``first[w]:first[w + 1]``.
    peer
        Rank of the other end, of each pair.
    """

    row: Array
    pair: Array
    way: Array
    nth: Array
    first: Array
    peer: Array

    def at(self, way: Array, nth: Array) -> Array:
        """Position of the nth message of a way; -1 if there is none."""
        position = self.first[way] + nth
        return np.where((nth >= 0) & (position < self.first[way + 1]), position, -1)


def links(trace: Trace, at: Array, own_ns: Array, is_entered: Array) -> tuple[Array, Array, Array]:
    """Edges of endpoints through ranks that do not record yet.

    Parameters
    ----------
    at
        Time of each endpoint.
    own_ns
        Usual time of nodes of their kind and size without waiting; `NO_VALUE` if unknown.
    is_entered
        Mask of endpoints to which edges lead.

    Returns
    -------
    src, dst, lag_ns
        Of edges.
    """
    messages = _unpaired(trace)
    if not messages.row.size:
        none = np.empty(0, np.int64)
        return none, none, none
    parts = (
        _answers(trace, at, own_ns, messages),
        _queued_work(trace, at, messages, is_entered),
    )
    src, dst, lag = (np.concatenate(column) for column in zip(*parts, strict=True))
    return src, dst, lag


def unpaired_rows(trace: Trace) -> Array:
    """Messages of which the other end is not recorded: without any there are no edges."""
    return _unpaired(trace).row


def _unpaired(trace: Trace) -> _Messages:
    """Sends and receives without their other end, before the first that has it."""
    row = np.flatnonzero(trace.array("kind") == Kind.COMM)
    sends, receives = (trace.is_text("collective", (kind,), row) for kind in POINT_TO_POINT)
    peer = trace.integers("peer", row)
    chosen = (sends | receives) & (peer >= 0)
    row, peer, sends = row[chosen], peer[chosen], sends[chosen]
    ts = trace.array("ts")[row]
    one, pair = gather.distinct(trace.array("rank")[row], peer)
    way = 2 * pair + sends
    first_paired = np.full(2 * len(one), np.iinfo(np.int64).min)
    paired = np.flatnonzero(trace.integers("instance", row) >= 0)
    first_paired[way[paired]] = np.iinfo(np.int64).max
    np.minimum.at(first_paired, way[paired], ts[paired])
    early = np.flatnonzero(ts < first_paired[way])
    order = early[np.lexsort((ts[early], way[early]))]
    way = way[order]
    bounds = np.searchsorted(way, np.arange(2 * len(one) + 1))
    return _Messages(
        row[order], pair[order], way, np.arange(len(way)) - bounds[way], bounds, peer[one]
    )


def _answers(trace: Trace, at: Array, own_ns: Array, m: _Messages) -> tuple[Array, Array, Array]:
    """Edges to ends of messages for which their rank waited, from those that were waited for in turn."""
    end, own = at[2 * m.row + 1], own_ns[m.row]
    known = own < NO_VALUE
    # when the other rank was there at the latest; before the end, so that no two ends lead to each other
    came = end - np.where(known, np.maximum(own, 1), 1)
    waited = known & (came - at[2 * m.row] > _WAITED_SHARE * own)
    is_send = m.way % 2 == _SEND
    # of the other way what had ended by then; and the nth answer is to no later than the nth send
    ended = _count_ended(m, end, m.way ^ 1, came)
    nth = np.where(is_send, ended - 1, np.minimum(ended - 1, m.nth))
    since, causes = _last_before(
        end, np.stack([m.at(m.way, m.nth - 1), m.at(m.way ^ 1, nth)]), came
    )
    answered = waited & (causes >= 0).any(axis=0)
    lag = end - since
    # for what did not wait, the other rank was there as soon as other times, at the latest
    usual = lower_medians(m.way[answered], lag[answered], len(m.first) - 1)[m.way]
    lag = np.where(waited, lag, np.minimum(lag, usual))
    leads = (causes >= 0) & known & (waited | (usual < NO_VALUE))
    which, to = np.nonzero(leads)
    alone = np.flatnonzero(waited & ~answered)
    begin = _first_nodes(trace)[np.searchsorted(trace.ranks, trace.array("rank")[m.row[alone]])]
    src = np.concatenate([2 * m.row[causes[which, to]] + 1, 2 * begin])
    dst = 2 * m.row[np.concatenate([to, alone])] + 1
    return src, dst, np.concatenate([lag[to], end[alone] - at[2 * begin]])


def _count_ended(m: _Messages, end: Array, way: Array, until: Array) -> Array:
    """Number of messages of a way that had ended by some time, for each way and time."""
    # both together in order of time: then counts of each way are differences of sums
    ways = np.concatenate([m.way, way])
    order = np.lexsort(
        (np.repeat([0, 1], [len(end), len(way)]), np.concatenate([end, until]), ways)
    )
    is_message = order < len(end)
    counted = np.cumsum(is_message)
    result = np.empty(len(way), np.int64)
    question = order[~is_message] - len(end)
    result[question] = counted[~is_message] - m.first[way[question]]
    return result


def _last_before(end: Array, causes: Array, until: Array) -> tuple[Array, Array]:
    """Time of the last of the causes of each column that had ended by then, and these; -1 for others."""
    causes = np.where((causes >= 0) & (end[causes] <= until), causes, -1)
    since = np.where(causes >= 0, end[causes], np.iinfo(np.int64).min)
    return since.max(axis=0), causes


def _first_nodes(trace: Trace) -> Array:
    """Node of each rank that starts first."""
    ts = trace.array("ts")
    rows = [np.arange(len(ts))[rows] for rows in trace.rank_rows.values()]
    return np.array([of_rank[ts[of_rank].argmin()] for of_rank in rows])


def _queued_work(
    trace: Trace, at: Array, m: _Messages, is_entered: Array
) -> tuple[Array, Array, Array]:
    """Edges to work that was queued before its rank recorded, from what that had to do with others."""
    work = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK) & ~is_entered[::2])
    work = work[queued_before(trace, work, trace.launch[work])[0]]
    row, pair = group_pairs(trace.array("rank")[work].astype(np.int64), m.peer)
    end = at[2 * m.row + 1]
    start = at[2 * work]
    # a rank that answered n times since does what is for the nth message
    answers, sends = 2 * pair + _RECEIVE, 2 * pair + _SEND
    answered = _count_ended(m, end, answers, start[row])
    causes = np.stack([m.at(answers, answered - 1), m.at(sends, answered)])
    since, causes = _last_before(end, causes, start[row])
    last = np.full(len(work), np.iinfo(np.int64).min)
    np.maximum.at(last, row, since)
    which, to = np.nonzero(causes >= 0)
    lag = start[row[to]] - last[row[to]]
    return 2 * m.row[causes[which, to]] + 1, 2 * work[row[to]], lag
