"""Jobs with a known straggler, simulated event by event: a late host, a slow GPU or a slow link.

Each rank has a host thread, a compute stream and a communication stream. In each training step the host
launches the forward and backward kernels of all layers; gradients are reduced over all ranks behind each
backward kernel, activations go from each rank to the next on a ring; the optimizer's kernel waits for all
of that, and the host waits for the optimizer. Nothing here knows of graphs or of re-timing: times are
found going through the program.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.build import TraceBuilder
from chopper_interop.edges import inference
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.kinds import Collective, EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import Meta, Rank

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

_LAUNCH_NS, _CALL_NS, _RETURN_NS = 3_000, 2_000, 4_000
"""From a call to the start of its work, duration of a call, and from the end of work to a wait's return."""


_Key = tuple[int]
_Done = tuple[int, _Key]
"""End of a node, and the node."""


@dataclass(frozen=True)
class MadeJob:
    """A job.

    Parameters
    ----------
    host, gpu, link
        Factors of the times of hosts and kernels by rank, and of transfers from a rank to the next.
    host_ns, kernel_ns, transfer_ns
        Host's time before each launch, duration of kernels and of transfers, all before factors.
    polls
        How often each rank asks for an event before each launch, which takes no time.
    naps
        How long the host of each rank sleeps before each step. In the middle of the backward pass all
        hosts ask until a collective has ended, and nothing says what they waited for.
    chores
        How long the host of each rank is busy before each step with an operation that only those ranks have.
    begins_ns
        By how much later than others the host of each rank begins.
    jitter
        Standard deviation of all these, as a share.
    hosts
        False if the trace lacks the hosts.
    """

    ranks: int = 4
    steps: int = 3
    layers: int = 6
    host: dict[int, float] = field(default_factory=dict)
    gpu: dict[int, float] = field(default_factory=dict)
    link: dict[int, float] = field(default_factory=dict)
    host_ns: int = 20_000
    kernel_ns: int = 100_000
    transfer_ns: int = 30_000
    polls: dict[int, int] = field(default_factory=dict)
    naps: dict[int, int] = field(default_factory=dict)
    chores: dict[int, int] = field(default_factory=dict)
    begins_ns: dict[int, int] = field(default_factory=dict)
    jitter: float = 0.005
    seed: int = 1
    hosts: bool = True


@dataclass
class _Node:
    """A node of the trace; the key finds it again."""

    key: _Key
    kind: Kind
    name: str
    rank: int
    start: int
    end: int
    step: int
    more: dict[str, Any] = field(default_factory=dict)


class _Simulation:
    """Times of all nodes, found rank by rank and operation by operation."""

    def __init__(self, job: MadeJob) -> None:
        self.job, self.random = job, random.Random(job.seed)  # noqa: S311 # not for secrets
        self.nodes: list[_Node] = []
        self.edges: list[tuple[_Key, _Key, EdgeKind]] = []
        zeros = [0] * job.ranks
        self.host = [job.begins_ns.get(rank, 0) for rank in range(job.ranks)]
        self.compute, self.comm = list(zeros), list(zeros)
        self.instance = self.call = 0
        self.ends: list[int] = []
        for step in range(job.steps):
            self._step(step)

    def _noisy(self, ns: float) -> int:
        return round(ns * max(1 + self.random.gauss(0, self.job.jitter), 0.1))

    def _add(
        self, kind: Kind, name: str, rank: int, start: int, end: int, step: int, **more: Any
    ) -> _Key:
        key = (len(self.nodes),)
        self.nodes.append(_Node(key, kind, name, rank, start, end, step, more))
        return key

    def _launched(self, rank: int, step: int, name: str) -> tuple[int, _Key, int]:
        """Let the host prepare and launch something; when it may start, the call, and its number."""
        job, now = self.job, self.host[rank]
        called = now + self._noisy(job.host_ns * job.host.get(rank, 1.0))
        for poll in range(job.polls.get(rank, 0)):
            self._add(
                Kind.RUNTIME, "hipEventQuery", rank, now + 10 * poll, now + 10 * poll + 5, step
            )
        self.call += 1
        op_end = called + _CALL_NS
        self._add(Kind.CPU_OP, name, rank, now, op_end, step)
        call = self._add(
            Kind.RUNTIME, "hipLaunchKernel", rank, called, op_end, step, correlation=self.call
        )
        self.host[rank] = op_end
        return called + _LAUNCH_NS, call, self.call

    def _kernel(self, rank: int, step: int, name: str, after: list[_Done]) -> _Done:
        job = self.job
        ready, call, number = self._launched(rank, step, name)
        start = max([ready, self.compute[rank], *(end + 1 for end, _ in after)])
        end = start + self._noisy(job.kernel_ns * job.gpu.get(rank, 1.0))
        node = self._add(Kind.KERNEL, f"{name}_kernel", rank, start, end, step, correlation=number)
        self.edges.append((call, node, EdgeKind.LAUNCH))
        self.edges += [(other, node, EdgeKind.EVENT) for _, other in after]
        self.compute[rank] = end
        return end, node

    def _together(
        self,
        ranks: list[int],
        step: int,
        names: list[str],
        ready: dict[int, _Done],
        transfer: int,
        group: str,
    ) -> dict[int, _Done]:
        """A communication of some ranks, each behind a kernel of its own."""
        starts, calls = {}, {}
        for rank in ranks:
            at, call, number = self._launched(rank, step, "communicate")
            end, _ = ready[rank]
            starts[rank], calls[rank] = max(at, self.comm[rank], end + 1), (call, number)
        last = max(starts.values())
        self.instance += 1
        result = {}
        for rank, name in zip(ranks, names, strict=True):
            call, number = calls[rank]
            end = last + transfer
            peer = (
                {"peer": ranks[1 - ranks.index(rank)]}
                if name in (Collective.SEND, Collective.RECV)
                else {}
            )
            node = self._add(
                Kind.COMM,
                f"nccl_{group}",
                rank,
                starts[rank],
                end,
                step,
                correlation=number,
                collective=name,
                instance=self.instance,
                **peer,
            )
            self.edges.append((call, node, EdgeKind.LAUNCH))
            self.edges.append((ready[rank][1], node, EdgeKind.EVENT))
            self.comm[rank] = end
            result[rank] = end, node
        return result

    def _step(self, step: int) -> None:
        job = self.job
        every = list(range(job.ranks))
        began = list(self.host)
        for rank, nap in job.naps.items():
            self.host[rank] += nap
        for rank, busy in job.chores.items():
            end = self.host[rank] + busy
            self._add(Kind.ANNOTATION, "chore", rank, self.host[rank], end, step)
            self.host[rank] = end
        last = {
            rank: self._kernel(rank, step, f"forward{layer}", [])
            for layer in range(job.layers)
            for rank in every
        }
        arrived: dict[int, list[_Done]] = {rank: [] for rank in every}
        for rank in every:  # a message from each rank to the next
            pair = [rank, (rank + 1) % job.ranks]
            transfer = self._noisy(job.transfer_ns * job.link.get(rank, 1.0))
            ends = [Collective.SEND, Collective.RECV]
            done = self._together(pair, step, ends, last, transfer, "send_recv")
            arrived[pair[1]] = [done[pair[1]]]
        reduced: dict[int, _Done] = {}
        for layer in range(job.layers):
            name, kinds = f"backward{layer}", [Collective.ALL_REDUCE] * job.ranks
            last = {r: self._kernel(r, step, name, [] if layer else arrived[r]) for r in every}
            transfer = self._noisy(job.transfer_ns)
            reduced = self._together(every, step, kinds, last, transfer, "all_reduce")
            if job.naps and layer == job.layers // 2:
                self._poll(step, reduced)
        for rank in every:
            end, node = self._kernel(rank, step, "optimizer", [reduced[rank]])
            begin = self.host[rank]
            self.host[rank] = max(begin + _CALL_NS, end + _RETURN_NS)
            wait = self._add(
                Kind.RUNTIME, "hipDeviceSynchronize", rank, begin, self.host[rank], step
            )
            self.edges.append((node, wait, EdgeKind.SYNC))
            self._add(Kind.ANNOTATION, f"step#{step}", rank, began[rank], self.host[rank], step)
        self.ends.append(max(self.host))

    def _poll(self, step: int, reduced: dict[int, _Done]) -> None:
        """Let all hosts ask until a collective has ended."""
        for rank, (end, _) in reduced.items():
            first, last = self.host[rank], max(self.host[rank] + 2 * _CALL_NS, end)
            for at in (first, last):
                self._add(Kind.RUNTIME, "hipEventElapsedTime", rank, at, at + _CALL_NS // 2, step)
            self.host[rank] = last + _CALL_NS


def length_ns(job: MadeJob) -> int:
    """Time from the start of the job to its end."""
    return _Simulation(job).ends[-1]


def meetings(host_ns: list[int], return_ns: list[int]) -> tuple[Trace, int]:
    """Ranks that meet in 20 collectives, for each of which their hosts wait; and how long that takes.

    Parameters
    ----------
    host_ns
        Time of each rank's host before each launch, and before it waits.
    return_ns
        Time from the end of a collective until each rank's host goes on, if it waited.
    """
    builder = TraceBuilder(Meta(ranks=tuple(Rank(r, device=0) for r in range(len(host_ns)))))
    now, waited, launched, end = [0] * len(host_ns), [], [], 0
    for nth in range(20):
        called = [at + busy for at, busy in zip(now, host_ns, strict=True)]
        end = max(max(called) + _LAUNCH_NS, end) + 50_000
        for rank, busy in enumerate(host_ns):
            thread = builder.lane(rank, LaneKind.THREAD, 1, "thread")
            stream = builder.lane(rank, LaneKind.STREAM, 7, "stream", 0)
            asked = called[rank] + _CALL_NS + busy
            back = max(asked + _CALL_NS, end + return_ns[rank])
            _, call, wait = (
                builder.nodes(
                    kind=int(kind), name=name, rank=rank, lane=thread, ts=np.array([start]), dur=stop - start, iteration=0
                )
                for kind, name, start, stop in (
                    (Kind.CPU_OP, "op", now[rank], called[rank] + _CALL_NS),
                    (Kind.RUNTIME, "cudaLaunchKernel", called[rank], called[rank] + _CALL_NS),
                    (Kind.RUNTIME, "cudaEventSynchronize", asked, back),
                )
            )  # fmt: skip
            begin = called[rank] + _LAUNCH_NS
            work = builder.nodes(
                kind=int(Kind.COMM), name="ncclAllReduce", rank=rank, lane=stream, ts=np.array([begin]), dur=end - begin,
                collective=Collective.ALL_REDUCE, instance=nth, iteration=0,
            )  # fmt: skip
            launched.append((call, work))
            if asked + _CALL_NS < end:
                waited.append((work, wait))
            now[rank] = back
    for kind, pairs in ((EdgeKind.LAUNCH, launched), (EdgeKind.SYNC, waited)):
        builder.edges(*np.array(pairs, np.int32).T, kind)
    return inference.infer_edges(builder.finish(), IssueLog("made")), max(now)


def trace_of(job: MadeJob) -> Trace:
    """The job as a trace, with all edges."""
    made = _Simulation(job)
    builder = TraceBuilder(
        Meta(ranks=tuple(Rank(r, device=0, known_by="header") for r in range(job.ranks)))
    )
    number = {}
    for node in made.nodes:
        on_gpu = node.kind in (Kind.KERNEL, Kind.COMM)
        if not (on_gpu or job.hosts):
            continue
        place = (
            (LaneKind.STREAM, 7 + (node.kind == Kind.COMM), 0)
            if on_gpu
            else (LaneKind.THREAD, 1, -1)
        )
        lane = builder.lane(node.rank, place[0], place[1], f"{place[0].name} {place[1]}", place[2])
        number[node.key] = builder.nodes(
            kind=int(node.kind), name=node.name, rank=node.rank, lane=lane,
            ts=np.array([node.start], np.int64), dur=node.end - node.start, iteration=node.step, **node.more,
        )  # fmt: skip
    for kind in EdgeKind:
        pairs = [
            (number[a], number[b])
            for a, b, k in made.edges
            if k is kind and a in number and b in number
        ]
        if pairs:
            builder.edges(*np.array(pairs, np.int32).T, kind)
    return inference.infer_edges(builder.finish(), IssueLog("made"))
