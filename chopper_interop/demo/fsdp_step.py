"""The training step under FSDP2: every rank runs the same program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.demo.fsdp import Fsdp, Shards
from chopper_interop.demo.passes import LayerNodes, Passes
from chopper_interop.demo.program import AUTOGRAD, MAIN, Program
from chopper_interop.demo.tensors import bf16
from chopper_interop.demo.update import Update
from chopper_interop.demo.writer import Writer

if TYPE_CHECKING:
    from chopper_interop.demo.groups import ProcessGroup
    from chopper_interop.demo.parameters import DemoParameters


class FsdpStep(Passes):
    """Writes one step of a model whose parameters all ranks share."""

    def __init__(self, parameters: DemoParameters, world: ProcessGroup) -> None:
        super().__init__(parameters, Writer())
        self.fsdp = Fsdp(self.w, self.memory, world, event_records=parameters.event_records)
        self.root = Shards("", self.m.root_sizes, parameters.ranks)
        sizes = self.m.layer_sizes
        self.layers = [
            Shards(f"layers.{k}", sizes, parameters.ranks) for k in range(parameters.layers)
        ]
        elements = [group.shard_elements for group in (self.root, *self.layers)]
        self.update = Update(self.w, self.fsdp.world, elements, parameters.layers)

    def write(self) -> Program:
        """Return the program of the step."""
        w = self.w
        with w.annotation("ProfilerStep", gap_ns=20_000):
            self.data()
            with w.annotation("Optimizer.zero_grad#AdamW.zero_grad", gap_ns=15_000):
                w.think(110_000)
            self._forward_and_backward()
            self.update.clip()
            self.update.optimizer()
            self.update.item()
            self.memory.free_all()
            w.synchronize()
        return w.program

    def _forward_and_backward(self) -> None:
        w, ops, fsdp, m = self.w, self.ops, self.fsdp, self.m
        with w.annotation("FSDP::root_pre_forward"):
            w.think(60_000)
        with w.annotation("FSDP::pre_forward"):
            fsdp.all_gather(self.root)
            self._prefetch("forward", self.layers[0])
            fsdp.copy_out(self.root)
            root_backward = w.node()
            w.leaf("RegisterPostBackwardFunction", [bf16(1)], root_backward)
        embedding = self.embedding()
        nodes = [self._sharded_forward(k) for k in range(len(self.layers))]
        norm = ops.norm()
        head = ops.linear(m.vocabulary, m.hidden)
        loss = self.loss()
        self.seed_gradient()
        w.hand_over(AUTOGRAD)
        self.loss_backward(loss)
        ops.linear_backward(head)
        ops.norm_backward(norm)
        for k in reversed(range(len(self.layers))):
            self._sharded_backward(k, nodes[k])
        self.embedding_backward(embedding)
        with w.backward("RegisterPostBackwardFunctionBackward", root_backward, [bf16(1)]):
            fsdp.reduce_scatter(self.root)
        fsdp.finish_backward()
        w.hand_over(MAIN)

    def _prefetch(self, direction: str, group: Shards) -> None:
        with self.w.annotation(f"FSDP::{direction}_prefetch for {group.name}"):
            self.fsdp.all_gather(group)

    def _sharded_forward(self, k: int) -> LayerNodes:
        w, m, group = self.w, self.m, self.layers[k]
        with w.annotation(f"FSDP::pre_forward{group.label}", gap_ns=9_000):
            self.fsdp.copy_out(group)
            post_backward = w.node()
            x = bf16(m.batch, m.sequence, m.hidden)
            w.leaf("RegisterPostBackwardFunction", [x], post_backward)
        if k + 1 < len(self.layers):
            self._prefetch("forward", self.layers[k + 1])
        with w.annotation(f"FSDP::cast_forward_inputs{group.label}"):
            pass
        nodes = self.layer_operators(post_backward)
        with w.annotation(f"FSDP::post_forward{group.label}"):
            w.think(4_000)
        return nodes

    def _sharded_backward(self, k: int, n: LayerNodes) -> None:
        w, m = self.w, self.m
        x = bf16(m.batch, m.sequence, m.hidden)
        with w.annotation(f"FSDP::pre_backward{self.layers[k].label}"):
            if k == len(self.layers) - 1:
                self.fsdp.all_gather(self.layers[k])
            self.fsdp.copy_out(self.layers[k])
            if k:
                self._prefetch("backward", self.layers[k - 1])
        self.layer_backward(n)
        with w.backward("RegisterPostBackwardFunctionBackward", n.post_backward, [x]):
            self.fsdp.reduce_scatter(self.layers[k])
