"""Parts of a program: instructions of host threads, and messages between ranks.

All times are nanoseconds. Whatever varies from one operation to the next is drawn when a program is
made, so that a second run differs from the first by what was changed only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class Work:
    """The host computes."""

    ns: int


@dataclass(frozen=True)
class Begin:
    """A range of the thread begins; `step` is the number of the training step that it marks."""

    name: str
    category: str = "cpu_op"
    step: int = -1
    message: int = -1
    """The message that the range is about, for what the profiler writes of it."""
    shape: tuple[int, ...] = ()
    """Shape of the tensor that an operator is given, if the profiler records it."""


@dataclass(frozen=True)
class End:
    """The innermost range of the thread ends."""


@dataclass(frozen=True)
class Launch:
    """A kernel, copy or fill is put on a stream; it reaches the GPU `latency_ns` later.

    It starts `gap_ns` after the work before it at the soonest.
    """

    stream: int
    name: str
    ns: int
    call_ns: int
    latency_ns: int
    gap_ns: int
    category: str = "kernel"
    blocks: bool = False
    """The call lasts until the work has ended, and `return_ns` more."""
    return_ns: int = 0
    flag: int = -1
    """A flag that the kernel writes to memory, for which a thread of its rank may wait; such kernels communicate."""
    tail_ns: int = 0
    """How long before its end it does."""


@dataclass(frozen=True)
class Communicate:
    """A kernel that takes part in a message is put on a stream."""

    stream: int
    message: int
    call_ns: int
    latency_ns: int
    gap_ns: int


@dataclass(frozen=True)
class Record:
    """An event is put on a stream; each is recorded once."""

    stream: int
    event: int
    call_ns: int


@dataclass(frozen=True)
class StreamWait:
    """A stream goes on when an event has happened that was recorded before, and `wake_ns` later.

    It takes no time if the event has happened already.
    """

    stream: int
    event: int
    call_ns: int
    wake_ns: int


@dataclass(frozen=True)
class EventSync:
    """The thread goes on when an event has happened."""

    event: int
    call_ns: int
    return_ns: int


@dataclass(frozen=True)
class Sync:
    """The thread goes on when all work that is now on a stream has ended; on all streams with -1."""

    stream: int
    call_ns: int
    return_ns: int


@dataclass(frozen=True)
class Notify:
    """Another thread of the rank may go on."""

    flag: int


@dataclass(frozen=True)
class Await:
    """The thread waits for a flag, and wakes up some time later."""

    flag: int
    wake_ns: int


Instruction = (
    Work
    | Begin
    | End
    | Launch
    | Communicate
    | Record
    | StreamWait
    | EventSync
    | Sync
    | Notify
    | Await
)


@dataclass(frozen=True)
class Message:
    """A collective, or a send with its receive.

    Parameters
    ----------
    kind
        As PyTorch names it: "allreduce", "_allgather_base", …; "send" for a send and its receive.
    ranks
        All members; of a send first who sends, then who receives.
    ns
        Time from the moment at which the last member has come to the common end.
    buffered
        Of a send: it lasts `ns` and waits for nobody; the receive ends then, or at once.
    """

    kind: str
    ranks: tuple[int, ...]
    ns: int
    elements: int
    buffered: bool = False


@dataclass
class Program:
    """A job.

    Parameters
    ----------
    vendor
        "hip" or "cuda": what calls and kernels are named, and what is recorded of waits.
    threads
        For each rank its host threads; the first one marks training steps.
    messages
        All messages, by number.
    first_step
        The recording begins when the first thread of each rank comes to this step.
    depth
        A launch waits while so many kernels of its stream have not begun.
    gpu_clock_ns
        By how much times of GPU work are recorded later than they are, as clocks of hosts and GPUs differ.
    waits_recorded
        The profiler records what each wait waited for (CUDA only).
    streams_named
        Calls name the stream that they launch on (HIP only, as until October 2024).
    """

    name: str
    vendor: str
    threads: list[list[list[Instruction]]]
    messages: list[Message]
    first_step: int = 0
    depth: int = 1024
    gpu_clock_ns: int = 0
    waits_recorded: bool = False
    streams_named: bool = False


class Place(NamedTuple):
    """Where an instruction stands: rank, thread, and position in it."""

    rank: int
    thread: int
    position: int


@dataclass(frozen=True)
class Change:
    """A change of times: a factor, and what it multiplies.

    Parameters
    ----------
    of
        "compute": all kernels; "kernel": those named `name`; "rank": those of one rank;
        "communication": transfers of messages; "host": what the host does within ranges, and calls.
    """

    of: str
    factor: float
    name: str = ""
    rank: int = -1

    def kernel_ns(self, work: Launch, rank: int) -> int:
        """How long a kernel lasts."""
        if work.flag >= 0:
            return round(work.ns * self.factor) if self.of == "communication" else work.ns
        changes = work.category == "kernel" and (
            self.of == "compute"
            or (self.of == "kernel" and work.name == self.name)
            or (self.of == "rank" and rank == self.rank)
        )
        return round(work.ns * self.factor) if changes else work.ns

    def transfer_ns(self, message: Message) -> int:
        """How long a transfer lasts."""
        return round(message.ns * self.factor) if self.of == "communication" else message.ns

    def host_ns(self, ns: int) -> int:
        """How long the host takes."""
        return round(ns * self.factor) if self.of == "host" else ns


NO_CHANGE = Change("", 1.0)


@dataclass
class Slice:
    """Something that a run did, on a host thread or on a stream.

    Parameters
    ----------
    place
        The instruction that did it, or that launched it.
    lane
        Number of the thread, or of the stream.
    category
        As Kineto has it: cpu_op, user_annotation, cuda_runtime, kernel, gpu_memcpy.
    correlation
        The same for a call and what it launched; 0 for ranges.
    external
        The number of the range itself, or of the innermost one around a call; 0 if there is none.
    """

    place: Place
    lane: int
    on_gpu: bool
    category: str
    name: str
    start_ns: int
    end_ns: int = -1
    correlation: int = 0
    external: int = 0
    facts: dict[str, int] = field(default_factory=dict)
