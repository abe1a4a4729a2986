"""Jobs that can be run in another way: with other gradient buckets, microbatches or stages.

The job is the same in each way: what an operation takes is drawn by what it is, not by its order.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

from programs import families
from programs import program as p

if TYPE_CHECKING:
    from collections.abc import Iterator

MB = 1_000_000
BUCKETS_MB = [(5, 20), (20, 5), (8, 3), (10, 1000)]
"""Sizes of buckets: as recorded, and as asked."""
PIPELINES = [
    ((4, 4), (4, 12)), ((4, 8), (4, 4)), ((2, 6), (2, 24)), ((4, 8), (2, 8)), ((2, 8), (4, 8)),
    ((3, 6), (6, 12)),
]  # fmt: skip
"""Stages and microbatches: as recorded, and as asked."""
_ENGINE = "autograd::engine::evaluate_function: "
_ACCUMULATE = "torch::autograd::AccumulateGrad"


class _Drawn:
    """Draws for a thread what belongs to one operation, however many came before."""

    def __init__(self, thread: families._Thread, seed: int, rank: int | None = None) -> None:
        self.thread, self.seed = thread, seed
        self.rank = thread.rank if rank is None else rank

    @contextmanager
    def of(self, *key: object) -> Iterator[None]:
        before = self.thread.rng
        self.thread.rng = random.Random(f"{self.seed} {self.rank} {key}")  # noqa: S311 # no secret
        yield
        self.thread.rng = before


def bucketed(seed: int, bucket_bytes: int, *, shapes: bool = True, steps: int = 3) -> p.Program:
    """Data-parallel training with gradients in buckets; ranks differ in speed."""
    job, ranks = families._sized("bucketed", seed)
    rng = job.rng
    layers = rng.randint(6, 14)
    gradients = [
        [rng.randint(1, 1_500) * 1_000 for _ in range(rng.randint(1, 3))] for _ in range(layers)
    ]
    mean, alpha_us, bytes_per_us = rng.uniform(15, 80), rng.uniform(10, 60), rng.uniform(1e4, 8e4)
    host_us, fetches = rng.uniform(3, 12), seed % 2
    speeds = [rng.uniform(0.9, 1.2) for _ in range(ranks)]
    listed = families._steps(job, steps)
    sizes = _buckets([4 * n for of_layer in gradients for n in of_layer], bucket_bytes)
    everyone = tuple(range(ranks))
    messages = []
    for _ in listed:
        messages.append([])
        for size in sizes:
            job.messages.append(
                p.Message(
                    "allreduce",
                    everyone,
                    round(1000 * (alpha_us + size / bytes_per_us) * rng.uniform(0.99, 1.01)),
                    size // 4,
                )
            )
            messages[-1].append(len(job.messages) - 1)
    for rank in everyone:
        main, autograd = job.thread(rank, speeds[rank]), job.thread(rank, speeds[rank])
        main.host_us = autograd.host_us = host_us
        for at, number in enumerate(listed):
            drawn = _Drawn(main, seed)
            with drawn.of("forward", number), main.step(number):
                families._layers(main, layers, mean)
                main.add(p.Notify(2 * at))
                main.add(p.Await(2 * at + 1, main.ns(40)))
                families._optimizer(main, layers)
                if fetches:
                    main.item()
                elif number < job.first_step:  # the recording begins with nothing left to do
                    main.sync()
            _backward(autograd, _Drawn(autograd, seed), (at, number), gradients, messages[at], mean, bucket_bytes, shapes)  # fmt: skip
        with drawn.of("end"):
            families._end(main)
    return job.program()


def _buckets(gradients: list[int], limit: int) -> list[int]:
    """Bytes of buckets, each closed by the gradient with which it reaches the limit."""
    sizes = [0]
    for size in gradients:
        sizes[-1] += size
        if sizes[-1] >= limit:
            sizes.append(0)
    return sizes if sizes[-1] else sizes[:-1]


def _backward(thread, drawn, step, gradients, messages, mean, limit, shapes) -> None:  # noqa: PLR0917 # a step
    at, number = step
    thread.add(p.Await(2 * at, thread.ns(40)))
    reduced, pending, left = [], 0, list(messages)
    count = sum(map(len, gradients))
    for layer, of_layer in enumerate(gradients):
        with drawn.of("backward", number, layer):
            for name in ("gelu", "gemm", "attention"):
                with thread.range(f"{_ENGINE}{name}Backward0"):
                    thread.work(2)
                    thread.kernel(1.5 * mean, name=name)
        for nth, elements in enumerate(of_layer):
            count -= 1
            with drawn.of("gradient", number, layer, nth), thread.range(_ENGINE + _ACCUMULATE):
                thread.add(p.Begin(_ACCUMULATE, shape=(elements,) if shapes else ()))
                thread.work(2)
                thread.add(p.End())
                thread.kernel(2, name="copy_kernel")
                pending += 4 * elements
                if pending >= limit or not count:
                    with drawn.of("reduce", number, layer, nth):
                        reduced.append(thread.communicate(left.pop(0)))
                    pending = 0
    for event in reduced:
        with drawn.of("wait", number):
            thread.wait_event(families.MAIN, event)
    thread.add(p.Notify(2 * at + 1))


LAYERS = 12
"""Layers of pipelined models: divided evenly by 2, 3, 4 and 6 stages."""


class _Pipelined:
    """A pipeline in the making."""

    def __init__(self, seed: int, stages: int, microbatches: int) -> None:
        self.seed, self.stages, self.microbatches = seed, stages, microbatches
        self.job = families._Job("pipelined", seed, stages)
        rng, self.buffered = self.job.rng, bool(seed % 2)
        self.mean, self.host_us = rng.uniform(15, 60), rng.uniform(2, 4)
        self.weights = [rng.uniform(0.95, 1.05) for _ in range(LAYERS)]
        self.transfer_us, self.longer = rng.uniform(20, 120), rng.uniform(1.5, 2.2)
        self.listed = families._steps(self.job, 2)
        last = stages - 1
        self.down = {rank: self._sends(rank, rank + 1) for rank in range(last)}
        self.up = {rank: self._sends(rank, rank - 1) for rank in range(1, stages)}
        self.start = self.job.message("allreduce", tuple(range(stages)), 20)

    def _sends(self, first: int, to: int) -> list[list[int]]:
        ends, us = (first, to), self.transfer_us
        return [
            [
                self.job.message("send", ends, us, buffered=self.buffered)
                for _ in range(self.microbatches)
            ]
            for _ in self.listed
        ]

    def pass_of(self, thread: families._Thread, at: int, what: str, batch: int) -> None:
        """A pass of a microbatch: forward with "F", backward with "B"."""
        rank, forward = thread.rank, what == "F"
        drawn, each = _Drawn(thread, self.seed), LAYERS // self.stages
        received, sent = (
            (self.down.get(rank - 1), self.down.get(rank))
            if forward
            else (self.up.get(rank + 1), self.up.get(rank))
        )
        own = range(rank * each, (rank + 1) * each)
        stream = families.SIDE + (0 if forward else 2)
        with thread.range(f"PP:{rank}{what}{batch}", "user_annotation"):
            if received:
                end = thread.communicate(received[at][batch], stream)
                thread.wait_event(families.MAIN, end)
            for layer in own if forward else reversed(own):
                factor = self.weights[layer] * (1.0 if forward else self.longer)
                with drawn.of(what, at, batch, layer):
                    for name in ("norm", "gemm", "attention", "gelu"):
                        thread.kernel(self.mean * factor, name=name)
            if sent:
                thread.communicate(sent[at][batch], stream + 1)


def pipelined(seed: int, stages: int, microbatches: int, *, first_all: bool = False) -> p.Program:
    """A pipeline whose stages have layers of their own; one forward and one backward pass in turns.

    Parameters
    ----------
    first_all
        All forward passes come first instead.
    """
    made = _Pipelined(seed, stages, microbatches)
    job = made.job
    for rank in range(stages):
        thread = job.thread(rank)
        thread.host_us = made.host_us
        for at, number in enumerate(made.listed):
            with _Drawn(thread, seed).of("step", number), thread.step(number):
                done = {"F": 0, "B": 0}
                ahead = microbatches if first_all else min(microbatches, stages - rank)
                for what in "F" * ahead + "BF" * (microbatches - ahead) + "B" * ahead:
                    made.pass_of(thread, at, what, done[what])
                    done[what] += 1
                families._optimizer(thread, 2 * LAYERS // stages)
                if number < job.first_step:  # the recording begins on all ranks at once
                    thread.communicate(made.start)
                    thread.sync()
                elif seed % 3 == 0 or (seed % 3 == 1 and rank == stages - 1):
                    thread.item()
        families._end(thread)
    return job.program()


EDITS = ("inserted", "removed", "fused")
"""Changes of a model's operations: one more before each product, one less, three in one."""
REPLICAS = [(2, 4), (4, 2), (2, 8)]
"""Data-parallel ranks: as recorded, and as asked."""
_CHAIN = ("norm", "softmax", "gelu")
"""Operations of a layer that one kernel can do."""
_FUSED = 0.6
"""Share of their time that it takes, as it reads and writes less. Chosen: well below 1."""


class _Edited:
    """Data-parallel training of a model of which the operations, or the number of ranks, may be others."""

    def __init__(self, seed: int, edit: str, ranks: int, *, alike: bool) -> None:
        self.seed, self.edit, self.alike = seed, edit, alike
        self.job = families._Job("edited", seed, ranks)
        rng = self.job.rng
        self.layers, self.mean, self.host_us = (
            rng.randint(3, 7),
            rng.uniform(10, 60),
            rng.uniform(2, 14),
        )
        self.inserted_us = rng.uniform(5, 60)
        self.alpha_us, self.bytes_per_us = rng.uniform(2, 20), rng.uniform(1e4, 8e4)
        self.bytes = [rng.randint(200, 4_000) * 1_000 for _ in range(self.layers)]
        self.longer = [rng.uniform(0.99, 1.01) for _ in range(self.layers)]

    def drawn(self, thread: families._Thread) -> _Drawn:
        return _Drawn(thread, self.seed, thread.rank % 2 if self.alike else None)

    def reduce(self, layer: int) -> int:
        """The all-reduce of a layer's gradients, by a ring."""
        ranks = len(self.job.threads)
        us = 2 * (ranks - 1) * (self.alpha_us + self.bytes[layer] / ranks / self.bytes_per_us)
        ns = round(1000 * us * self.longer[layer])
        self.job.messages.append(
            p.Message("allreduce", tuple(range(ranks)), ns, self.bytes[layer] // 4)
        )
        return len(self.job.messages) - 1

    def operations(self, thread: families._Thread, key: tuple[object, ...], factor: float) -> None:
        """The operations of a layer."""
        drawn, mean = self.drawn(thread), self.mean * factor
        lengths = {}
        for name in _CHAIN:
            with drawn.of(*key, name, "length"):
                lengths[name] = thread.rng.uniform(0.8, 1.2) * mean * self.job.kernel_us[name]
        chain = {name: lengths[name] for name in _CHAIN if (self.edit, name) != ("removed", "gelu")}
        if self.edit == "fused":
            chain = {"norm": _FUSED * sum(chain.values())}
        for name, us in chain.items():
            with drawn.of(*key, name):
                self._operation(thread, name, us)
        for name in ("gemm", "attention"):
            if self.edit == "inserted" and name == "gemm":
                with drawn.of(*key, "inserted"):
                    self._operation(thread, "embed", self.inserted_us)
            with drawn.of(*key, name):
                thread.kernel(mean, name=name)

    def _operation(self, thread: families._Thread, name: str, us: float) -> None:
        with thread.range(f"aten::{name}"):
            thread.work(thread.host_us / 2)
            ns = round(1000 * us)
            thread.add(p.Launch(families.MAIN, name, ns, thread.ns(3), *thread.latencies()))
            thread.work(thread.host_us / 2)

    @property
    def change(self) -> str:
        """The edit as `what_if` takes it."""
        others = [f"aten::{name}" for name in _CHAIN[1:]]
        return {
            "inserted": f"insert={self.inserted_us:.3f}us where name == 'gemm'; "
            f"insert={self.host_us + 3:.3f}us where name == 'aten::gemm'",
            "removed": "remove where name in ['gelu', 'aten::gelu']",
            "fused": f"fuse={_FUSED} where name in {[*_CHAIN]}; remove where name in {others}",
        }[self.edit]


def edited(
    seed: int, edit: str = "", ranks: int = 2, *, alike: bool = False
) -> tuple[p.Program, str]:
    """Training with an edit of `EDITS`, and the change that asks for it; with "" as it is.

    Parameters
    ----------
    alike
        All ranks are as one of the first two, also in what varies from one operation to the next.
    """
    made = _Edited(seed, edit, ranks, alike=alike)
    job, listed = made.job, families._steps(made.job, 3)
    messages = [[made.reduce(layer) for layer in range(made.layers)] for _ in listed]
    for rank in range(ranks):
        thread = job.thread(rank, 1.0 + 0.1 * (rank % 2))
        thread.host_us, drawn = made.host_us, made.drawn(thread)
        for number, reduces in zip(listed, messages, strict=True):
            with thread.step(number):
                for layer in range(made.layers):
                    made.operations(thread, (number, layer, "forward"), 1.0)
                ends = []
                for layer in reversed(range(made.layers)):
                    made.operations(thread, (number, layer, "backward"), 1.8)
                    with drawn.of("reduce", number, layer):
                        ends.append(thread.communicate(reduces[layer]))
                with drawn.of("end", number):
                    for event in ends:
                        thread.wait_event(families.MAIN, event)
                    families._optimizer(thread, made.layers)
                    if seed % 2:
                        thread.item()
                    elif number < job.first_step:
                        thread.sync()
        with drawn.of("end"):
            families._end(thread)
    return job.program(), made.change if edit else ""
