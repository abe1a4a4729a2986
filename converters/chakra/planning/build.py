"""Plan the ETs of ranks, of many small ones at once.

A simulator such as ASTRA-sim has, for each rank, one slot for host operations, one for compute and one for
communication on the GPU. It knows no streams and no clock: a node starts when what it depends on has
ended and its slot is free. The plan is made of the timing model (`chopper_interop.timing.model`), whose
edges become dependencies, so that an ET reacts to changes as the model does:

* what a thread does itself is time (`host_chain`), what it waits for is a dependency;
* a call that launches work and waits for it is cut into issue, wait and return;
* GPU work depends on its stream, its launch, and what it waits for by events;
* of work that overlaps other work of its slot only a share counts (`slots`);
* what then is missing to the measured times (`schedule`) becomes nodes of its own, called unexplained.

Usual latencies of launches and streams have no slot. They are left out, and the return of the next wait
makes up for them; where more than `schedule` tolerates adds up on the GPU, that is a node as well.
"""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra import host_chain
from chopper_interop.converters.chakra.planning.assembly import assembled, in_order
from chopper_interop.converters.chakra.planning.clocks import on_one_clock
from chopper_interop.converters.chakra.planning.plan import Communication, Figures, Mode, Plan
from chopper_interop.io import memory
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.trace import Trace


def build_plan(trace: Trace, *, mode: Mode, origin_ns: int, comm: Communication) -> Plan:
    """Plan the ET of each rank of a trace.

    Parameters
    ----------
    trace
        Nodes of a single rank, or of several that have nothing to do with each other (`Trace.apart`), as
        `timing.model.timing_of_ranks` demands.
    mode
        How much of the host the plan holds.
    origin_ns
        When the job starts, on the trace's `ts` axis: before that nothing is simulated.
    comm
        Its communication; relays only of a single rank.
    """
    trace = on_one_clock(trace, origin_ns)
    gpu = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    columns, keep, pairs, figures = assembled(trace, gpu, mode, origin_ns, comm)
    memory.give_back(trace.nodes.nbytes)
    if mode is Mode.KERNELS:
        figures["span_ns"] = np.zeros_like(figures["span_ns"])
    ordered = in_order(columns, keep, pairs)
    first = np.searchsorted(ordered.pop("rank"), np.arange(len(figures["span_ns"]) + 1))
    of_ranks = zip(*(figures[name].tolist() for name in Figures._fields), strict=True)
    plan = Plan(**ordered, first=first, figures=list(map(Figures._make, of_ranks)))
    memory.give_back(trace.nodes.nbytes)
    return plan


def planned(trace: Trace, mode: Mode) -> Array:
    """Mask of the nodes of kinds that a plan holds."""
    kinds = GPU_WORK + (host_chain.OPERATIONS if mode is Mode.FULL else ())
    return is_any(trace.array("kind"), kinds)
