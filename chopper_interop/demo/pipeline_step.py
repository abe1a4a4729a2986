"""The training step of one stage of a pipeline: 1F1B over microbatches, and data parallel.

Ranges are those of torch.distributed.pipelining (``PP:1RECV_F0``: stage 1 receives the activations
of microbatch 0). Sends and receives have one stream, in which each waits for its other end, in the
order of Megatron: activations for the next forward pass are asked for before a gradient is sent
back, as the stage before sends those before it asks for this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from chopper_interop.demo.comms import Communicator
from chopper_interop.demo.groups import ProcessGroup, world
from chopper_interop.demo.passes import LayerNodes, Passes
from chopper_interop.demo.program import AUTOGRAD, EXCHANGE, MAIN, Program
from chopper_interop.demo.tensors import LIST, bf16, scalar
from chopper_interop.demo.update import Update, foreach
from chopper_interop.demo.writer import Writer

if TYPE_CHECKING:
    from chopper_interop.demo.layers import LinearNodes
    from chopper_interop.demo.parameters import DemoParameters


def one_forward_one_backward(
    stage: int, stages: int, microbatches: int
) -> Iterator[tuple[str, int]]:
    """Order of a stage's passes, "F" or "B", and their microbatches."""
    ahead = min(stages - 1 - stage, microbatches)
    yield from (("F", i) for i in range(ahead))
    for i in range(microbatches):
        if ahead + i < microbatches:
            yield "F", ahead + i
        yield "B", i


class StageStep(Passes):
    """Writes one step of one rank of a pipeline.

    Ranks of one stage follow each other, so that the k-th rank of a stage is in pipeline k.
    """

    def __init__(self, parameters: DemoParameters, rank: int) -> None:
        super().__init__(parameters, Writer())
        self.p = parameters
        self.copies = parameters.ranks // parameters.pipeline
        self.stage, copy = divmod(rank, self.copies)
        everyone = world(parameters.ranks)
        along = ProcessGroup(f"{1 + copy}", "mesh_pp", everyone.ranks[copy :: self.copies])
        first = self.stage * self.copies
        replica_ranks = everyone.ranks[first : first + self.copies]
        replicas = ProcessGroup(f"{1 + self.copies + self.stage}", "mesh_dp", replica_ranks)
        records = parameters.event_records
        self.world = Communicator(self.w, everyone, event_records=records)
        self.line = Communicator(self.w, along, self.stage, event_records=records)
        self.replicas = (
            Communicator(self.w, replicas, copy, event_records=records) if self.copies > 1 else None
        )
        shards = self._parameters()
        self.elements = sum(shards)
        self.update = Update(self.w, self.world, shards, self.layers)
        self.nodes: dict[int, _Nodes] = {}
        self.came: dict[tuple[str, int], int] = {}

    @property
    def is_first(self) -> bool:
        """True if it is the stage that has the embedding."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """True if it is the stage that has the loss."""
        return self.stage == self.p.pipeline - 1

    @property
    def layers(self) -> int:
        """Layers of this stage; the first ones have those that are left over."""
        each, more = divmod(self.p.layers, self.p.pipeline)
        return each + (self.stage < more)

    def _parameters(self) -> list[int]:
        """Elements of the groups of parameters of this stage."""
        m = self.m
        ends = [m.vocabulary * m.hidden] if self.is_first else []
        ends += [m.vocabulary * m.hidden + m.hidden] if self.is_last else []
        return [*ends, *[sum(m.layer_sizes)] * self.layers]

    def write(self) -> Program:
        """Return the program of the step."""
        w, p = self.w, self.p
        with w.annotation("ProfilerStep", gap_ns=20_000):
            if self.is_first or self.is_last:
                self.data()
            with w.annotation("Optimizer.zero_grad#AdamW.zero_grad", gap_ns=15_000):
                w.think(110_000)
            order = list(one_forward_one_backward(self.stage, p.pipeline, p.microbatches))
            following = [*order[1:], ("", -1)]
            for (part, microbatch), after in zip(order, following, strict=True):
                if part == "F":
                    self._forward(microbatch)
                else:
                    self._backward(microbatch, after[1] if after[0] == "F" else -1)
            self._finish()
            self.update.clip()
            self.update.optimizer()
            if self.is_last:
                self.update.item()
            self.memory.free_all()
            w.synchronize()
        return w.program

    @contextmanager
    def _pass(self, action: str, microbatch: int) -> Iterator[None]:
        program = self.w.program
        first = len(program.gpu)
        with self.w.annotation(self._range(action, microbatch)):
            yield
        program.passes.append((first, len(program.gpu) - 1))

    def _range(self, action: str, microbatch: int) -> str:
        return f"PP:{self.stage}{action}{microbatch}"

    def _receive(self, action: str, microbatch: int, peer: int) -> None:
        m = self.m
        with self.w.annotation(self._range(f"RECV_{action}", microbatch)):
            tensor = bf16(m.batch, m.sequence, m.hidden)
            self.came[action, microbatch] = self.line.receive(tensor, peer, EXCHANGE)

    def _send(self, action: str, microbatch: int, peer: int) -> None:
        m = self.m
        with self.w.annotation(self._range(f"SEND_{action}", microbatch)):
            self.line.send(bf16(m.batch, m.sequence, m.hidden), peer, EXCHANGE)

    def _forward(self, microbatch: int) -> None:
        w, m, ops = self.w, self.m, self.ops
        if not self.is_first and ("F", microbatch) not in self.came:
            self._receive("F", microbatch, self.stage - 1)
        with self._pass("F", microbatch):
            nodes = _Nodes()
            if self.is_first:
                nodes.embedding = self.embedding()
            else:
                self.line.wait(self.came.pop(("F", microbatch)))
            for _ in range(self.layers):
                x = bf16(m.batch, m.sequence, m.hidden)
                w.leaf("aten::view", [x], view := w.node())
                nodes.layers.append(self.layer_operators(view))
            if self.is_last:
                nodes.norm, nodes.head = ops.norm(), ops.linear(m.vocabulary, m.hidden)
                nodes.loss = self.loss()
            self.nodes[microbatch] = nodes
        if not self.is_last:
            self._send("F", microbatch, self.stage + 1)

    def _backward(self, microbatch: int, following: int) -> None:
        """Go back, and ask for the activations of the forward pass that follows, if one does."""
        w, ops, nodes = self.w, self.ops, self.nodes.pop(microbatch)
        if not self.is_last:
            self._receive("B", microbatch, self.stage + 1)
        with self._pass("B", microbatch):
            if self.is_last:
                self.seed_gradient()
            else:
                self.line.wait(self.came.pop(("B", microbatch)))
            w.hand_over(AUTOGRAD)
            if nodes.head is not None:
                self.loss_backward(nodes.loss)
                ops.linear_backward(nodes.head)
                ops.norm_backward(nodes.norm)
            for layer in reversed(nodes.layers):
                self.layer_backward(layer)
            if self.is_first:
                self.embedding_backward(nodes.embedding)
            w.hand_over(MAIN)
        if not self.is_first:
            if following >= 0:
                self._receive("F", following, self.stage - 1)
            self._send("B", microbatch, self.stage - 1)

    def _finish(self) -> None:
        """Wait for what was sent back, sum the gradients over replicas, and take the mean.

        What was sent forward has come, as its gradient has come back.
        """
        parts = 1 + (self.replicas is not None)
        if not self.is_first:
            self.line.wait(self.w.last[EXCHANGE])
        self._mean(parts)
        if self.replicas is not None:
            self.replicas.all_reduce(self.elements, channels=56)
            self._mean(parts)

    def _mean(self, parts: int) -> None:
        with self.w.op("aten::_foreach_div_", [LIST, scalar(self.p.microbatches)]):
            self.w.launch(foreach("1", _MEAN, "optimizer", self.elements // parts, 1, 1))


_MEAN = "BinaryOpScalarFunctor<float, 1, 1, 0>, std::divides<float>, float*, float"


class _Nodes:
    """Autograd nodes of one microbatch."""

    def __init__(self) -> None:
        self.embedding = -1
        self.layers: list[LayerNodes] = []
        self.norm = -1
        self.head: LinearNodes | None = None
        self.loss = (-1, -1, -1)
