"""Random programs of many kinds, as training jobs are.

`programs` gives the same ones for the same seeds.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from programs import program as p

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAIN, COMM, SIDE = 0, 1, 2
"""Streams: of compute, of collectives, and the first of others."""
KERNELS = ("gemm", "attention", "norm", "add", "gelu", "softmax", "embed", "copy_kernel")
FIRST_STEP = 10
LINK_BYTES_PER_US = 100_000
"""Bandwidth of links: 100 GB/s."""


def elements(kind: str, ranks: tuple[int, ...], us: float) -> int:
    """How many floats a rank gives to a message that takes some time in a ring, or from one to one."""
    count = len(ranks)
    per_byte = {
        "send": 1.0,
        "allreduce": 2 * (count - 1) / count,
        "_allgather_base": count - 1,
        "_reduce_scatter_base": count - 1,
    }[kind]
    return round(us * LINK_BYTES_PER_US / (4 * max(per_byte, 1)))


class _Job:
    """A program in the making."""

    def __init__(self, family: str, seed: int, ranks: int = 1) -> None:
        self.rng = random.Random(f"{family} {seed}")  # noqa: S311 # no secret
        self.vendor = self.rng.choice(["hip", "cuda"])
        self.name = f"{family}-{seed}-{self.vendor}"
        self.messages: list[p.Message] = []
        self.threads: list[list[list[p.Instruction]]] = [[] for _ in range(ranks)]
        self.first_step = FIRST_STEP
        self.events = 0
        self.depth = 1024
        self.kernel_us = {name: self.rng.uniform(0.3, 2.0) for name in KERNELS}
        self.latency_us = self.rng.uniform(4, 7)
        self.gap_us = self.rng.uniform(0.3, 2)
        self.wake_us = self.rng.uniform(0.5, 4)
        self.spread = self.rng.choice([0.05, 0.3])
        """By what share latencies of the GPU vary."""

    def thread(self, rank: int, speed: float = 1.0) -> _Thread:
        thread = _Thread(self, rank, speed)
        self.threads[rank].append(thread.instructions)
        return thread

    def event(self) -> int:
        self.events += 1
        return self.events

    def message(
        self, kind: str, ranks: tuple[int, ...], us: float, *, buffered: bool = False
    ) -> int:
        self.messages.append(
            p.Message(kind, ranks, round(us * 1000), elements(kind, ranks, us), buffered)
        )
        return len(self.messages) - 1

    def program(self) -> p.Program:
        waits_recorded = self.vendor == "cuda" and self.rng.random() < 0.5
        streams_named = self.vendor == "hip" and self.rng.random() < 0.5
        return p.Program(
            self.name + ("-waits" if waits_recorded else "-streams" if streams_named else ""),
            self.vendor,
            self.threads,
            self.messages,
            self.first_step,
            self.depth,
            gpu_clock_ns=self.rng.randint(-2_000, 2_000),
            waits_recorded=waits_recorded,
            streams_named=streams_named,
        )


class _Thread:
    """Instructions of a thread in the making."""

    def __init__(self, job: _Job, rank: int, speed: float) -> None:
        self.job, self.rank, self.speed, self.rng = job, rank, speed, job.rng
        self.instructions: list[p.Instruction] = []
        self.host_us = 6.0
        """Usual time of the host in an operator, without its calls."""

    def add(self, instruction: p.Instruction) -> None:
        self.instructions.append(instruction)

    def ns(self, us: float, spread: float = 0.2) -> int:
        return max(1, round(1000 * us * self.rng.uniform(1 - spread, 1 + spread)))

    def work(self, us: float) -> None:
        self.add(p.Work(self.ns(us)))

    @contextmanager
    def range(self, name: str, category: str = "cpu_op", message: int = -1) -> Iterator[None]:
        self.add(p.Begin(name, category, message=message))
        yield
        self.add(p.End())

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        self.add(p.Begin(f"ProfilerStep#{number}", "user_annotation", number))
        yield
        self.add(p.End())
        self.work(3)

    def kernel(self, us: float, stream: int = MAIN, name: str = "") -> None:
        """An operator that launches a kernel of some length."""
        name = name or self.rng.choice(KERNELS)
        with self.range(f"aten::{name}"):
            self.work(self.host_us / 2)
            self.add(self._launch(stream, name, us * self.speed * self.job.kernel_us[name]))
            self.work(self.host_us / 2)

    def _launch(self, stream: int, name: str, us: float) -> p.Launch:
        return p.Launch(stream, name, self.ns(us), self.ns(3), *self.latencies())

    def notify(self, flag: int, us: float, tail_us: float) -> int:
        """Launch DeepEP's kernel that writes a flag to memory some time before its end; no operator is around it."""
        launched = self._launch(COMM, NOTIFY, us + tail_us)
        self.add(replace(launched, flag=flag, tail_ns=self.ns(tail_us)))
        return flag

    def latencies(self) -> tuple[int, int]:
        """Of a launch: until it reaches the GPU, and behind the work before it."""
        return tuple(self.ns(us, self.job.spread) for us in (self.job.latency_us, self.job.gap_us))

    def wait_stream(self, waits: int, awaited: int) -> None:
        """Wait as ``torch.cuda.Stream.wait_stream`` does."""
        self.wait_event(waits, self.record(awaited))

    def record(self, stream: int) -> int:
        event = self.job.event()
        self.add(p.Record(stream, event, self.ns(1.2)))
        return event

    def wait_event(self, stream: int, event: int) -> None:
        wake = self.ns(self.job.wake_us, self.job.spread)
        self.add(p.StreamWait(stream, event, self.ns(1.2), wake))

    def event_sync(self, event: int) -> None:
        self.add(p.EventSync(event, self.ns(2), self.ns(8)))

    def item(self, stream: int = MAIN) -> None:
        """A value is fetched: a copy for which the host waits, on CUDA twice."""
        with self.range("aten::item"), self.range("aten::_local_scalar_dense"):
            self.work(2)
            is_hip = self.job.vendor == "hip"
            name = f"Memcpy DtoH (Device -> {'Host' if is_hip else 'Pageable'})"
            launched = p.Launch(stream, name, self.ns(2), self.ns(4), *self.latencies())
            more = {"category": "gpu_memcpy", "blocks": True, "return_ns": self.ns(8)}
            self.add(replace(launched, **more))
            if not is_hip:
                self.sync(stream)

    def copy(self, stream: int, us: float) -> None:
        """Data is copied to the GPU, for which nobody waits here."""
        with self.range("aten::copy_"):
            self.work(2)
            launched = self._launch(stream, "Memcpy HtoD (Pinned -> Device)", us)
            self.add(replace(launched, category="gpu_memcpy"))

    def sync(self, stream: int = -1) -> None:
        self.add(p.Sync(stream, self.ns(2), self.ns(8)))

    def communicate(self, message: int, stream: int = COMM, after: int | None = MAIN) -> int:
        """Do as PyTorch does for a collective: its stream waits for the one of compute.

        The event of its end is for ``work.wait()``, which makes a stream wait for it.
        """
        kind = self.job.messages[message].kind
        sends = kind == "send" and self.job.messages[message].ranks[0] == self.rank
        name = ("send" if sends else "recv_") if kind == "send" else f"{kind}_"
        with self.range(f"c10d::{name}"):
            self.work(4)
            with self.range("record_param_comms", message=message):
                self.work(2)
                if after is not None:
                    self.wait_stream(stream, after)
                self.add(p.Communicate(stream, message, self.ns(5), *self.latencies()))
                end = self.record(stream)
                self.work(1)
        return end


def _steps(job: _Job, recorded: int, before: int = 1) -> range:
    return range(job.first_step - before, job.first_step + recorded)


def _end(thread: _Thread) -> None:
    """The profiler waits for the GPU before it stops."""
    thread.work(10)
    thread.sync()


def streams(seed: int) -> p.Program:
    """One rank, several streams which wait for each other."""
    job = _Job("streams", seed)
    thread = job.thread(0)
    thread.host_us = 4.0
    count = job.rng.randint(2, 4)
    mean = job.rng.uniform(15, 60)
    listed = [MAIN, *range(SIDE, SIDE + count - 1)]
    for number in _steps(job, 3):
        with thread.step(number):
            for _ in range(job.rng.randint(12, 24)):
                stream, other = job.rng.sample(listed, 2)
                if job.rng.random() < 0.7:
                    thread.wait_stream(stream, other)
                for _ in range(job.rng.randint(1, 4)):
                    thread.kernel(mean, stream)
            for other in listed[1:]:
                thread.wait_stream(MAIN, other)
            thread.kernel(mean)
            if job.rng.random() < 0.7:
                thread.item()
    _end(thread)
    return job.program()


def forks(seed: int) -> p.Program:
    """Several streams as training programs use them: forked off, joined, chained, prefetched to.

    Each step does the same, as in a loop. Events are also recorded that nobody waits for, by timers and
    the allocator.
    """
    job = _Job("forks", seed)
    thread = job.thread(0)
    thread.host_us = job.rng.choice([3.0, 4.0, 12.0])
    sides = list(range(SIDE, SIDE + job.rng.randint(2, 3)))
    plan = [
        (
            job.rng.choice(_IDIOMS),
            job.rng.sample(sides, job.rng.randint(2, len(sides))),
            job.rng.random(),
        )
        for _ in range(job.rng.randint(3, 6))
    ]
    lengths = [job.rng.uniform(10, 80) for _ in plan]
    prefetches = job.rng.random() < 0.4
    timed = job.rng.random() < 0.5
    fetches = job.rng.random() < 0.5
    for number in _steps(job, job.rng.choice([3, 8])):
        with thread.step(number):
            if timed:
                thread.record(MAIN)
            if prefetches:
                thread.wait_stream(MAIN, PREFETCH)
            thread.kernel(20, name="embed")
            if prefetches:
                thread.copy(PREFETCH, 60)
                thread.record(PREFETCH)  # the allocator's, of a block that another stream uses
            for (idiom, used, share), mean in zip(plan, lengths, strict=True):
                idiom(_Forks(thread, mean, share), used)
                for _ in range(round(3 * share)):
                    thread.kernel(mean)
            if timed:
                thread.record(MAIN)
            if fetches:
                thread.item()
    _end(thread)
    return job.program()


PREFETCH = 7
"""The stream to which the next step's data is copied."""


@dataclass
class _Forks:
    """Ways to use side streams; `share` draws what a program does each time in the same way."""

    thread: _Thread
    mean: float
    share: float

    def work(self, stream: int, count: int = 2) -> None:
        for at in range(count):
            name = KERNELS[(stream + at + round(10 * self.share)) % len(KERNELS)]
            self.thread.kernel(self.mean * (0.4 + self.share), stream, name)

    def join(self, used: list[int]) -> None:
        for side in used:
            self.thread.wait_stream(MAIN, side)
        self.work(MAIN, 1)

    def interleaved(self, used: list[int]) -> None:
        """All fork off first; then each gets a kernel in turn, the main stream as well."""
        for side in used:
            self.thread.wait_stream(side, MAIN)
        for _ in range(3):
            for stream in [*used, MAIN]:
                self.work(stream, 1)
        self.join(used)

    def one_by_one(self, used: list[int]) -> None:
        """Each forks off where its work is launched."""
        self.work(MAIN, 2)
        for side in used:
            self.thread.wait_stream(side, MAIN)
            self.work(side, 3)
        self.work(MAIN, 1)
        self.join(used)

    def chained(self, used: list[int]) -> None:
        """Each side stream waits for the one before it; the main one for the last."""
        for side, awaited in zip(used, [MAIN, *used], strict=False):
            self.thread.wait_stream(side, awaited)
            self.work(side, 2)
        self.work(MAIN, 2)
        self.join(used[-1:])

    def early_event(self, used: list[int]) -> None:
        """An event that is waited for after the main stream went on."""
        side = used[0]
        self.work(MAIN, 1)
        event = self.thread.record(MAIN)
        self.work(MAIN, 3)
        self.thread.wait_event(side, event)
        self.work(side, 3)
        end = self.thread.record(side)
        self.work(MAIN, 2)
        self.thread.wait_event(MAIN, end)
        self.work(MAIN, 1)

    def late_launch(self, used: list[int]) -> None:
        """A stream waits long before anything is launched on it; another one is waited for twice."""
        side, other = used[:2]
        self.thread.wait_stream(side, MAIN)
        self.work(MAIN, 4)
        self.thread.wait_stream(other, MAIN)
        self.work(other, 2)
        self.work(side, 2)
        self.join([other, other, side])

    def relayed(self, used: list[int]) -> None:
        """The main stream waits for one side stream, and the other for the main one, before any launch."""
        side, other = used[:2]
        self.thread.wait_stream(side, MAIN)
        self.work(side, 3)
        self.work(MAIN, 1)
        self.thread.wait_stream(MAIN, side)
        self.thread.wait_stream(other, MAIN)
        self.work(other, 2)
        self.join([other])

    def recorded(self, used: list[int]) -> None:
        """Side work whose memory the allocator gives back later: it records events on both streams."""
        side = used[0]
        self.thread.wait_stream(side, MAIN)
        self.work(side, 3)
        self.thread.record(side)
        self.thread.record(MAIN)
        self.work(MAIN, 2)
        self.join([side])


_IDIOMS = (
    _Forks.interleaved, _Forks.one_by_one, _Forks.chained, _Forks.early_event, _Forks.late_launch,
    _Forks.recorded, _Forks.relayed,
)  # fmt: skip


def copies(seed: int) -> p.Program:
    """One rank whose host often waits for a value, or for an event."""
    job = _Job("copies", seed)
    thread = job.thread(0)
    mean, every = job.rng.uniform(8, 60), job.rng.randint(3, 10)
    for number in _steps(job, 3):
        with thread.step(number):
            for _ in range(8):
                for _ in range(every):
                    thread.kernel(mean)
                way = job.rng.random()
                if way < 0.6:
                    thread.item()
                elif way < 0.8:
                    event = thread.record(MAIN)
                    thread.kernel(mean)
                    thread.event_sync(event)
                else:
                    thread.sync(MAIN)
                thread.work(20)
    _end(thread)
    return job.program()


def host_bound(seed: int) -> p.Program:
    """GPUs wait for their hosts, of which one is slower than the others."""
    ranks = seed % 2 + 1
    job = _Job("host_bound", seed, ranks)
    mean = job.rng.uniform(3, 8)
    plan = [[job.rng.choice(KERNELS) for _ in range(30)] for _ in _steps(job, 3)]
    reduces = [
        job.message("allreduce", tuple(range(ranks)), job.rng.uniform(40, 200)) for _ in plan
    ]
    for rank in range(ranks):
        thread = job.thread(rank)
        thread.host_us = 14.0 * job.rng.uniform(0.9, 1.6)
        for number, names, reduce in zip(_steps(job, 3), plan, reduces, strict=True):
            with thread.step(number):
                for name in names:
                    thread.kernel(mean, name=name)
                if ranks > 1:
                    thread.wait_event(MAIN, thread.communicate(reduce))
                for _ in range(4):
                    thread.kernel(mean)
                if seed % 3:
                    thread.item()
        _end(thread)
    return job.program()


def gpu_bound(seed: int) -> p.Program:
    """The host is far ahead of the GPU, and waits for it at the end of each step."""
    job = _Job("gpu_bound", seed)
    thread = job.thread(0)
    mean = job.rng.uniform(40, 150)
    for number in _steps(job, 3):
        with thread.step(number):
            for _ in range(30):
                thread.kernel(mean)
            if seed % 2:
                thread.item()
            else:
                thread.sync()
    _end(thread)
    return job.program()


def full_queue(seed: int, places: int = 0, mean_us: float = 0.0) -> p.Program:
    """The host is so far ahead that its launches wait for places in the queue; by default any number, and any kernels."""
    job = _Job("full_queue", seed)
    job.depth = places or job.rng.choice([8, 16, 32, 64])
    thread = job.thread(0)
    thread.host_us = 1.0 if mean_us else 3.0
    mean = mean_us or job.rng.uniform(25, 80)
    for number in _steps(job, 3, before=2):
        with thread.step(number):
            for _ in range(50):
                thread.kernel(mean)
    _end(thread)
    return job.program()


def backlog(seed: int) -> p.Program:
    """When the recording begins, much work is queued, for which the host waits later."""
    job = _Job("backlog", seed)
    thread = job.thread(0)
    thread.host_us = 4.0
    mean = job.rng.uniform(30, 80)
    for number in _steps(job, 3, before=2):
        with thread.step(number):
            waits = (thread.sync, lambda: thread.sync(MAIN), thread.item)[seed % 3]
            if number == job.first_step and seed % 2:
                waits()
            for _ in range(25):
                thread.kernel(mean)
            if number == job.first_step and not seed % 2:
                waits()
            thread.work(40)
    _end(thread)
    return job.program()


def ddp(seed: int) -> p.Program:
    """Gradients are reduced while the backward pass goes on; ranks differ in speed."""
    job, ranks = _sized("ddp", seed)
    layers, mean = job.rng.randint(4, 8), job.rng.uniform(20, 60)
    listed = _steps(job, 3)
    buckets = [
        [
            job.message("allreduce", tuple(range(ranks)), job.rng.uniform(30, 250))
            for _ in range(layers)
        ]
        for _ in listed
    ]
    fetches = seed % 2
    for rank in range(ranks):
        thread = job.thread(rank, job.rng.uniform(0.9, 1.25))
        thread.host_us = 4.0
        for number, messages in zip(listed, buckets, strict=True):
            with thread.step(number):
                _layers(thread, layers, mean)
                _reduced_backward(thread, messages, mean)
                _optimizer(thread, layers)
                if fetches:
                    thread.item()
        _end(thread)
    return job.program()


def _sized(family: str, seed: int) -> tuple[_Job, int]:
    ranks = 2 + seed % 3
    return _Job(family, seed, ranks), ranks


def _layers(thread: _Thread, layers: int, mean: float) -> None:
    for _ in range(layers):
        for name in ("norm", "gemm", "attention", "gelu"):
            thread.kernel(mean, name=name)


def _reduced_backward(thread: _Thread, messages: list[int], mean: float) -> None:
    reduced = []
    for message in messages:
        for name in ("gelu", "gemm", "attention"):
            thread.kernel(1.5 * mean, name=name)
        reduced.append(thread.communicate(message))
    for event in reduced:
        thread.wait_event(MAIN, event)


def _optimizer(thread: _Thread, layers: int) -> None:
    with thread.range("Optimizer.step#Adam.step", "user_annotation"):
        for _ in range(layers):
            thread.kernel(8, name="add")


def threads(seed: int) -> p.Program:
    """The backward pass runs on a thread of its own, as autograd's does."""
    ranks = 1 + seed % 2
    job = _Job("threads", seed, ranks)
    layers, mean = job.rng.randint(3, 7), job.rng.uniform(8, 50)
    listed = _steps(job, 3)
    buckets = [
        [
            job.message("allreduce", tuple(range(ranks)), job.rng.uniform(30, 150))
            for _ in range(layers if ranks > 1 else 0)
        ]
        for _ in listed
    ]
    for rank in range(ranks):
        main, autograd = job.thread(rank), job.thread(rank)
        for at, (number, messages) in enumerate(zip(listed, buckets, strict=True)):
            with main.step(number):
                _layers(main, layers, mean)
                if seed % 3 == 1:
                    main.item()
                main.add(p.Notify(2 * at))
                main.add(p.Await(2 * at + 1, main.ns(40)))
                _optimizer(main, layers)
                if seed % 3 == 0:
                    main.item()
            autograd.add(p.Await(2 * at, autograd.ns(40)))
            reduced = []
            for layer in range(layers):
                for name in ("gelu", "gemm", "attention"):
                    with autograd.range(f"autograd::engine::evaluate_function: {name}Backward0"):
                        autograd.work(2)
                        autograd.kernel(1.5 * mean, name=name)
                if messages:
                    reduced.append(autograd.communicate(messages[layer]))
            for event in reduced:
                autograd.wait_event(MAIN, event)
            autograd.add(p.Notify(2 * at + 1))
        _end(main)
    return job.program()


def fsdp(seed: int) -> p.Program:
    """Parameters are gathered ahead, gradients scattered, and the host waits not to be too far ahead."""
    job, ranks = _sized("fsdp", seed)
    layers, mean = job.rng.randint(4, 7), job.rng.uniform(25, 80)
    gather, scatter = COMM, SIDE
    listed, everyone = _steps(job, 2), tuple(range(ranks))
    plan = [
        [
            [job.message(kind, everyone, job.rng.uniform(40, 200)) for _ in range(layers)]
            for kind in ("_allgather_base", "_allgather_base", "_reduce_scatter_base")
        ]
        for _ in listed
    ]
    for rank in range(ranks):
        thread = job.thread(rank, job.rng.uniform(0.95, 1.15))
        thread.host_us = 4.0
        for number, (forward, backward, scattered) in zip(listed, plan, strict=True):
            with thread.step(number):
                _gathered(thread, forward, [], mean, (gather, scatter))
                _gathered(thread, backward, scattered, 1.8 * mean, (gather, scatter))
                thread.wait_stream(MAIN, scatter)
                _optimizer(thread, layers)
                if seed % 2:
                    thread.item()
        _end(thread)
    return job.program()


def _gathered(
    thread: _Thread, gathers: list[int], scatters: list[int], mean: float, streams: tuple[int, int]
) -> None:
    """One pass through all layers; the next layer is gathered while one computes."""
    gather, scatter = streams
    gathered, used = [], []
    for layer in range(len(gathers)):
        for ahead in range(len(gathered), min(layer + 2, len(gathers))):
            if ahead >= 2:  # the memory of the layer before the last is used again
                thread.event_sync(used[ahead - 2])
            gathered.append(thread.communicate(gathers[ahead], gather, None if ahead else MAIN))
        thread.wait_event(MAIN, gathered[layer])
        for name in ("norm", "gemm", "attention", "gemm", "gelu"):
            thread.kernel(mean, name=name)
        used.append(thread.record(MAIN))
        if scatters:
            thread.communicate(scatters[layer], scatter)


def pipeline(seed: int) -> p.Program:
    """Stages of a pipeline, which pass micro-batches on to each other; one stage is slower."""
    job, ranks = _sized("pipeline", seed)
    batches, mean = job.rng.randint(3, 6), job.rng.uniform(40, 120)
    listed, buffered = _steps(job, 2), bool(seed % 2)
    sizes = job.rng.uniform(20, 120)

    def sends(first: int, to: int) -> list[list[int]]:
        return [
            [job.message("send", (first, to), sizes, buffered=buffered) for _ in range(batches)]
            for _ in listed
        ]

    down = {rank: sends(rank, rank + 1) for rank in range(ranks - 1)}
    up = {rank: sends(rank, rank - 1) for rank in range(1, ranks)}
    for rank in range(ranks):
        thread = job.thread(rank, job.rng.uniform(0.9, 1.2))
        thread.host_us = 3.0
        for at, number in enumerate(listed):
            with thread.step(number):
                stage = _Stage(thread, mean, at, down, up)
                ahead = min(batches, ranks - rank)  # one forward, one backward
                for batch in range(ahead):
                    stage.forward(batch)
                for batch in range(batches):
                    stage.backward(batch)
                    if ahead + batch < batches:
                        stage.forward(ahead + batch)
                _optimizer(thread, 4)
                if seed % 3 == 0 or (rank == ranks - 1 and seed % 3 == 1):
                    thread.item()
        _end(thread)
    return job.program()


class _Stage:
    """One step of one stage; each direction has its own stream."""

    def __init__(
        self,
        thread: _Thread,
        mean: float,
        at: int,
        down: dict[int, list[list[int]]],
        up: dict[int, list[list[int]]],
    ) -> None:
        self.thread, self.mean, self.at, self.down, self.up = thread, mean, at, down, up

    def forward(self, batch: int) -> None:
        rank = self.thread.rank
        self._pass(batch, self.down.get(rank - 1), self.down.get(rank), SIDE, 1.0)

    def backward(self, batch: int) -> None:
        rank = self.thread.rank
        self._pass(batch, self.up.get(rank + 1), self.up.get(rank), SIDE + 2, 1.8)

    def _pass(
        self,
        batch: int,
        received: list[list[int]] | None,
        sent: list[list[int]] | None,
        stream: int,
        longer: float,
    ) -> None:
        thread = self.thread
        if received:
            thread.wait_event(MAIN, thread.communicate(received[self.at][batch], stream))
        for name in ("norm", "gemm", "attention", "gelu"):
            thread.kernel(self.mean * longer, name=name)
        if sent:
            thread.communicate(sent[self.at][batch], stream + 1)


NOTIFY = (
    "void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int, int const*, int*, int, int)"
)
"""Kernel of DeepEP that counts the tokens that a rank gets, which its host waits for in memory."""


def polls(seed: int) -> p.Program:
    """Experts' tokens are exchanged by DeepEP: the host polls memory for how many there are, as no call of CUDA waits.

    Counts come when the other ranks are there, and shortly before the kernel's end, as ranks meet once more. Programs
    that give the most tokens that there may be do not wait.
    """
    job = _Job("polls", seed)
    waits = seed % 4 != 3
    thread = job.thread(0)
    thread.host_us = job.rng.choice([4.0, 9.0])
    layers, mean = job.rng.randint(2, 5), job.rng.uniform(10, 60)
    others_us, tail_us = job.rng.choice([30.0, 300.0]), job.rng.uniform(3, 25)
    flag = 0
    for number in _steps(job, 3):
        with thread.step(number):
            for _ in range(layers):
                for name in ("norm", "gemm", "attention", "softmax"):
                    thread.kernel(mean, name=name)
                thread.wait_stream(COMM, MAIN)
                with thread.range("dispatch", "user_annotation"):
                    flag += 1
                    counted = thread.notify(flag, job.rng.uniform(0.1, 2) * others_us, tail_us)
                    if waits:
                        thread.add(p.Await(counted, thread.ns(2)))
                    if seed % 2:  # else the range ends first
                        thread.work(3)
                        with thread.range("aten::empty"):
                            thread.work(3)
                thread.kernel(3 * mean, COMM, "copy_kernel")
                thread.wait_stream(MAIN, COMM)
                for name in ("gemm", "gelu", "gemm"):
                    thread.kernel(mean, name=name)
            _optimizer(thread, layers)
    _end(thread)
    return job.program()


FAMILIES: dict[str, Callable[[int], p.Program]] = {
    f.__name__: f
    for f in (
        streams, forks, copies, host_bound, gpu_bound, full_queue, backlog, ddp, threads, fsdp, pipeline,
        polls,
    )
}  # fmt: skip


def programs(seeds: range) -> Iterator[tuple[str, p.Program]]:
    """Programs of all families, one for each seed, with the name of the family."""
    for family, build in FAMILIES.items():
        for seed in seeds:
            yield family, build(seed)
