"""The plan of an ET: its nodes, their dependencies, and the time each holds its slot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.chakra.schedule import HOST

if TYPE_CHECKING:
    from chopper_interop.converters.chakra.relays import Relays


class Mode(Enum):
    """Part of the host that an ET holds."""

    FULL = "full"
    """Each operation of the host is a node."""
    GPU = "gpu"
    """A node stands for what the host does from one launch or wait to the next, as far as GPU work
    waits for it."""
    KERNELS = "kernels"
    """GPU work alone, as if hosts took no time: with it ASTRA-sim gives all its statistics."""


class Figures(NamedTuple):
    """Figures of the plan of a rank.

    Parameters
    ----------
    waits_as_time
        How many waits of the host are measured time and no dependency, because the work that they
        are for ends later in a simulator that has one slot for it and others.
    overlapped
        How many pieces of work have less than their duration, as they overlap others of their slot.
    unexplained_us, length_us
        Time without a known cause on the critical path of the plan, and the length of that path.
    span_ns
        Measured end of the last node, from the job's start; 0 if the plan does not keep it.
    """

    waits_as_time: int
    overlapped: int
    unexplained_us: int
    length_us: int
    span_ns: int


@dataclass(frozen=True)
class Plan:
    """Nodes of the ETs of ranks, rank after rank, as far as dependencies allow in order of start; these point to earlier rows.

    Parameters
    ----------
    first
        Nodes of the k-th rank are those from ``first[k]`` on and before ``first[k + 1]``.
    row
        Row of the trace's nodes; -1 for nodes that stand for none.
    owner
        For the latter, the row of the host operation that they are part of; else -1.
    thread
        Lane of host operations and of what a thread does in between; -1 of other nodes.
    cause
        A `Cause`.
    start_ns, duration_ns
        As measured, from the job's start.
    slot_us
        Microseconds for which the node holds its slot.
    own_ns
        Of returns the time that the host itself takes, which they last at least; -1 of other nodes.
    slot
        HOST, COMPUTE, COMM or NO_SLOT of `schedule`.
    late_us
        Microseconds from when work could begin until it began, of work that the NPU of a stream does.
    late_cause
        LATENCY, or UNEXPLAINED where that is longer than usual.
    relay
        Number of a message of the cause RELAYED among the rank's `Relays`; -1 of other nodes.
    dep_first, dep
        Dependencies of node i are ``dep[dep_first[i]:dep_first[i + 1]]``.
    figures
        Figures of each rank.
    """

    first: Array
    row: Array
    owner: Array
    thread: Array
    cause: Array
    start_ns: Array
    duration_ns: Array
    slot_us: Array
    own_ns: Array
    slot: Array
    late_us: Array
    late_cause: Array
    relay: Array
    dep_first: Array
    dep: Array
    figures: list[Figures]

    @property
    def on_host(self) -> Array:
        """Mask of host operations and gaps between them."""
        return self.slot == HOST

    @property
    def ids(self) -> Array:
        """Number of each node among those of its rank."""
        return np.arange(len(self.row)) - self.of_nodes(self.first[:-1])

    @property
    def rank(self) -> Array:
        """Number of each node's rank, among those that are planned."""
        return self.of_nodes(np.arange(len(self.first) - 1))

    def of_nodes(self, of_ranks: Array) -> Array:
        """One value a node, of one a rank."""
        if len(of_ranks) == 1:
            return np.broadcast_to(of_ranks, len(self.row))
        return np.repeat(of_ranks, np.diff(self.first))


class Communication(NamedTuple):
    """Communication as a plan needs it, a value for each node of the trace.

    Parameters
    ----------
    sends, receives
        Masks of the nodes that do so.
    synchronous
        Mask of sends that wait for their receive, and of these receives.
    sender_later_ns
        Of these receives by how much later than they their sends began; 0 of others.
    sends_end
        Mask of collectives whose members tell each other when they end.
    turn
        Turn among the collectives that simulators join, the same on all ranks; -1 of other nodes.
    npu
        NPU of the stream that does it, which is a receive here; -1 of what the rank's NPU does.
    relays
        Dependencies of the rank through others that do not record yet.
    """

    sends: Array
    receives: Array
    synchronous: Array
    sender_later_ns: Array
    sends_end: Array
    turn: Array
    npu: Array
    relays: Relays
