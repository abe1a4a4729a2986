"""One step of a rank as a program: what the host does in order, and what it puts on the GPU.

The host's work is a chain of *marks*, the instants at which an operator or a runtime call begins
or ends; each mark costs time after the one before it. GPU operations hang on marks. As every
dependency is known while a program is written, the dependency graph of a step is a small template,
one for all ranks or one for each stage of a pipeline; times are what differs between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from chopper_interop.demo.groups import ProcessGroup
    from chopper_interop.demo.kernels import Kernel
    from chopper_interop.demo.tensors import Argument

# Threads of a rank.
MAIN: Final = 0
AUTOGRAD: Final = 1
# Streams by their number.
COMPUTE: Final = 0
COMM: Final = 1
EXCHANGE: Final = 2
STREAMS: Final = (COMPUTE, COMM, EXCHANGE)
"""Streams: computing, collectives, and in a pipeline sends and receives."""

# Effects of a mark, in addition to passing time.
NO_ACTION: Final = 0
LAUNCH: Final = 1
SYNC: Final = 2

# Kinds of a GPU operation.
KERNEL: Final = 0
COLLECTIVE: Final = 1
MEMCPY: Final = 2
MEMSET: Final = 3

HANDOVER_NS: Final = 9_000
"""From the end of one host thread's work until the thread that it wakes runs."""


@dataclass
class Event:
    """Something with a begin and an end on a host thread (instants have only a begin).

    Parameters
    ----------
    category
        "cpu_op", "user_annotation", "cuda_runtime" or "memory".
    begin, end
        Marks.
    parent, operator, annotation
        The innermost event, cpu_op and user_annotation around it on its thread, -1 for none.
    arguments
        Recorded inputs of an operator.
    sequence
        Number of the autograd node within the step, -1 for none.
    extra
        Further fields, in order: of a collective, of a runtime call, of an allocation.
    gpu
        GPU operation that a runtime call launches, -1 for none.
    """

    category: str
    name: str
    thread: int
    begin: int
    parent: int
    operator: int
    annotation: int
    end: int = -1
    arguments: Sequence[Argument] | None = None
    sequence: int = -1
    backward: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    gpu: int = -1


@dataclass
class GpuOp:
    """One operation on a stream of the GPU.

    Parameters
    ----------
    kind
        `KERNEL`, `COLLECTIVE`, `MEMCPY` or `MEMSET`.
    kernel
        Row of the program's kernels, -1 for copies and fills.
    mark
        Mark after which, plus the launch latency, it can start.
    previous
        Operation before it on its stream, -1 if that belongs to the step before.
    waits_for
        Operation of another stream that an event makes it wait for, -1 for none.
    call
        Event of the runtime call.
    fixed_ns
        Time of a copy or fill, nanoseconds.
    members
        Of what communicates, the global ranks that take part; the sender, then the receiver.
    exchange
        True if it is a send or a receive.
    """

    kind: int
    stream: int
    kernel: int
    mark: int
    previous: int
    waits_for: int
    call: int
    fixed_ns: float = 0.0
    bytes: int = 0
    copy: str = ""
    members: tuple[int, ...] = ()
    exchange: bool = False


@dataclass
class Mark:
    """An instant of the host: `cost_ns` after the mark before it, inside the event `span`."""

    thread: int
    cost_ns: int
    span: int
    action: int = NO_ACTION
    operand: int = -1
    handover: bool = False


@dataclass
class Program:
    """The step: marks, events and GPU operations in program order, and the kernels they use.

    Parameters
    ----------
    passes
        First and last GPU operation of each forward and backward pass of a pipeline.
    """

    marks: list[Mark] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    gpu: list[GpuOp] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    collectives: list[int] = field(default_factory=list)
    flows: list[tuple[int, int]] = field(default_factory=list)
    groups: list[ProcessGroup] = field(default_factory=list)
    passes: list[tuple[int, int]] = field(default_factory=list)
    sequences: int = 0

    @property
    def streams(self) -> int:
        """Number of streams that it uses."""
        return 1 + max(op.stream for op in self.gpu)


def distinct(programs: Sequence[Program]) -> list[Program]:
    """Return the programs of all ranks without those that ranks share, each where it is first."""
    return list({id(program): program for program in programs}.values())
