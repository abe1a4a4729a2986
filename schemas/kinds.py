"""Kinds of nodes, edges and lanes."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """Kind of a node. The numbers are stored: append, never renumber."""

    CPU_OP = 1
    """An operator of the framework on a host thread (``aten::mm``)."""
    ANNOTATION = 2
    """A range named by the user on a host thread (``record_function``, roctx)."""
    PYTHON = 3
    """A Python function or an ``nn.Module`` call."""
    RUNTIME = 4
    """A call of the HIP or CUDA runtime."""
    DRIVER = 5
    """A call of the driver layer (CUDA driver, HSA)."""
    API = 6
    """A call of another library (RCCL, rocDecode, rocJPEG)."""
    KERNEL = 7
    """A kernel on a GPU that computes."""
    COMM = 8
    """A kernel on a GPU that communicates: a collective, a send or a receive."""
    MEMCPY = 9
    """A copy on a GPU queue or copy engine."""
    MEMSET = 10
    """A fill on a GPU queue."""
    GPU_ANNOTATION = 11
    """A user's range as it reached a GPU queue."""
    GPU_SYNC = 12
    """A wait of a queue, context or event that the profiler recorded."""
    ALLOCATION = 13
    """An allocation or release of memory, scratch included."""
    INSTANT = 14
    """An event without duration."""
    OVERHEAD = 15
    """Time of the profiler itself."""
    SPAN = 16
    """A profiler's own bracket around what it recorded."""
    HOST_GAP = 17
    """A wait that no record names, made explicit for replay."""
    OTHER = 18
    """Something of a category that the hub has no kind for."""


GPU_WORK = (Kind.KERNEL, Kind.COMM, Kind.MEMCPY, Kind.MEMSET)
"""Kinds that keep a GPU busy."""

CALLS = (Kind.RUNTIME, Kind.DRIVER)
"""Kinds that can launch GPU work."""

HOST_CALLS = (*CALLS, Kind.API)
"""Calls of a runtime or a driver, and those of which a profiler does not say which it is."""

RANGES = (Kind.CPU_OP, Kind.ANNOTATION)
"""Operators, and ranges that the program marks: what is named after a part of a training step."""

HOST_KINDS = (*RANGES, Kind.PYTHON, *HOST_CALLS)
"""Kinds that keep a host thread busy."""


class EdgeKind(IntEnum):
    """Kind of a dependency between two nodes. The numbers are stored: append, never renumber."""

    CALL = 1
    """Caller → callee on one thread (derived from `parent`)."""
    ORDER = 2
    """A thread's previous operation → the next (derived from lanes)."""
    LAUNCH = 3
    """Runtime call → the GPU work that it put on a queue."""
    STREAM = 4
    """A queue's previous work → the next (derived from lanes)."""
    EVENT = 5
    """Work before an event record → work behind the wait for it."""
    SYNC = 6
    """GPU work → the host call that waited for it."""
    FWDBWD = 7
    """Forward operator → its backward operator."""
    COMM = 8
    """Members of one collective, or send → receive."""
    DATA = 9
    """Producer of a tensor → its consumer."""
    DEPENDENCY = 10
    """A dependency of which the source does not say the kind."""
    HANDOVER = 11
    """A host thread's work → the next work of another, idle until then: observed, not recorded."""
    DURATION = 12
    """A node's start → its end; only in the endpoint graph."""
    POLL = 13
    """GPU work → what a host thread did next that polled memory for what the work writes there, or that copied for it."""


OBSERVED = (EdgeKind.HANDOVER,)
"""Edges that the times of this run suggest. All others hold whatever the times are: that a host polls for a kernel is
known of the kernel's library, of which times only show the thread."""

HOST_WAITS = (EdgeKind.SYNC, EdgeKind.POLL, EdgeKind.HANDOVER)
"""Edges to a host thread that waited: its time before their end is not its own."""

DERIVED = (EdgeKind.CALL, EdgeKind.ORDER, EdgeKind.STREAM)
"""Edges that follow from `parent` and lanes, and are stored in no table."""


class Endpoint(IntEnum):
    """Endpoint of a node that an edge leads from or to."""

    START = 0
    END = 1


EDGE_ENDPOINTS: dict[EdgeKind, tuple[Endpoint, Endpoint]] = {
    EdgeKind.CALL: (Endpoint.START, Endpoint.START),
    EdgeKind.LAUNCH: (Endpoint.START, Endpoint.START),
    EdgeKind.SYNC: (Endpoint.END, Endpoint.END),
    EdgeKind.COMM: (Endpoint.START, Endpoint.END),
    EdgeKind.POLL: (Endpoint.START, Endpoint.START),
}
"""Endpoints that an edge connects: that of `dst` comes no sooner than that of `src`.

Kinds that are not listed lead from end to start. A call's kernel may start before the call returns;
a host call that waits returns when the work has ended, and one that polls goes on while it runs; no member of a collective ends
before the last of them has started. A callee also ends before its caller does."""


class LaneKind(IntEnum):
    """Kind of a lane. The numbers are stored: append, never renumber."""

    THREAD = 1
    """A host thread; `number` is its id."""
    STREAM = 2
    """A stream of a device; `number` is its id or handle."""
    QUEUE = 3
    """A hardware queue of a device, where streams are not known."""
    COPY = 4
    """A copy engine or direction of a device."""
    GPU_ANNOTATION = 5
    """Users' ranges as they reached a stream."""
    GPU_SYNC = 6
    """Recorded waits of a stream or device."""
    MEMORY = 7
    """Allocations and releases of a device's memory."""
    PROFILER = 8
    """Records of the profiler about itself."""


NESTING = (LaneKind.THREAD, LaneKind.GPU_ANNOTATION)
"""Lanes on which a node inside another one in time was called from it."""

GPU_LANES = (LaneKind.STREAM, LaneKind.QUEUE, LaneKind.COPY)
"""Lanes on which `GPU_WORK` runs."""


TABLE_KINDS: dict[str, type[IntEnum]] = {"nodes": Kind, "edges": EdgeKind, "lanes": LaneKind}
"""Tables of the hub whose rows are of kinds."""


class Collective:
    """Canonical names of communication, as MPI and NCCL documents use them."""

    ALL_REDUCE = "all_reduce"
    REDUCE = "reduce"
    ALL_GATHER = "all_gather"
    GATHER = "gather"
    SCATTER = "scatter"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "all_to_all"
    REDUCE_SCATTER = "reduce_scatter"
    BARRIER = "barrier"
    SEND = "send"
    RECV = "recv"
    SEND_RECV = "send_recv"
    """Point-to-point of which the direction is not known (one kernel may do both)."""


POINT_TO_POINT = (Collective.SEND, Collective.RECV)
"""The two ends of a message."""
