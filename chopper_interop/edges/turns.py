"""Which collective a wait is for: they are waited for in the order in which they were launched.

The call that waits says nothing, but a program keeps its collectives in a list and goes through
it: each wait of a stream is for the first collective that the stream has not waited for yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.edges.queues import Queues


def in_turn(queues: Queues, target: Array, before: Array, sure: Array, at: Array) -> Array:
    """What each wait is for, where that is communication the first that is still due.

    Parameters
    ----------
    queues
        GPU work in its queues.
    target
        First work behind each wait, as a place in the queues; -1 if there is none.
    before
        The last work that each can be for, by the times; -1 if there is none.
    sure
        Whether the times show that it is for this very work, and so for all before it.
    at
        When each wait was called.

    Returns
    -------
    place
        As `before`; -1 also where a stream had waited for all communication already.
    """
    result = before.copy()
    asked = np.flatnonzero((before >= 0) & (target >= 0))
    asked = asked[queues.communicates[before[asked]]]
    asked = asked[np.argsort(at[asked], kind="stable")]
    queue = queues.queue
    source = queue[before[asked]]
    _, waits = gather.distinct(queues.lane[queue[target[asked]]], source)
    result[asked] = _first_due(
        queues.communicates, before[asked], queues.first[source], waits, sure[asked]
    )
    return result


@jit
def _first_due(
    communicates: Array, before: Array, first: Array, waits: Array, sure: Array
) -> Array:
    found = np.full(len(before), -1, np.int64)
    due = np.zeros(len(before), np.int64)  # of each pair of queues, of which there are fewer
    for i in range(len(before)):
        last, pair = before[i], waits[i]
        place = last if sure[i] else max(due[pair], first[i])
        while place < last and not communicates[place]:
            place += 1
        if place <= last:
            found[i] = place
            due[pair] = max(due[pair], place + 1)
    return found
