"""The forward and the backward pass of a Llama model, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chopper_interop.demo import catalogue
from chopper_interop.demo.layers import LinearNodes, Model, Ops
from chopper_interop.demo.memory import Memory
from chopper_interop.demo.tensors import NONE, bf16, f32, i64, many, numbers, scalar

if TYPE_CHECKING:
    from chopper_interop.demo.kernels import Kernel
    from chopper_interop.demo.parameters import DemoParameters
    from chopper_interop.demo.writer import Writer


@dataclass
class LayerNodes:
    """Autograd nodes of a layer in the order of the forward."""

    post_backward: int
    norm_1: int
    query: LinearNodes
    key: LinearNodes
    value: LinearNodes
    rotary: int
    attention: int
    output: LinearNodes
    residual_1: int
    norm_2: int
    gate: LinearNodes
    silu: int
    up: LinearNodes
    product: int
    down: LinearNodes
    residual_2: int


class Passes:
    """Writes the pieces of a model's passes; whoever trains it puts them together."""

    def __init__(self, parameters: DemoParameters, writer: Writer) -> None:
        self.w = writer
        self.m = Model(parameters.batch, parameters.sequence)
        self.memory = Memory(self.w)
        self.ops = Ops(self.w, self.memory, self.m)

    def data(self) -> None:
        """Load a batch and copy it to the GPU."""
        w, m = self.w, self.m
        with w.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            w.think(260_000)
            w.leaf("aten::stack", [many(*[i64(m.sequence + 1)] * m.batch), scalar(0)])
        tokens = i64(m.batch, m.sequence)
        for _ in ("inputs", "labels"):
            flags = [scalar(4), scalar(0), NONE, NONE, scalar("False"), scalar("False"), NONE]
            with (
                w.op("aten::to", [tokens, *flags]),
                w.op("aten::_to_copy", [tokens, *flags[:5], NONE]),
            ):
                shape = numbers(m.batch, m.sequence)
                with w.op("aten::empty_strided", [shape, numbers(m.sequence, 1), *flags[:4]]):
                    self.memory.alloc(8 * m.tokens)
                with w.op("aten::copy_", [tokens, tokens, scalar("False")]):
                    w.copy("hipMemcpyWithStream", "HtoD", 8 * m.tokens)

    def embedding(self) -> int:
        """Look the tokens up; the autograd node."""
        w, m, node = self.w, self.m, self.w.node()
        tokens, table = i64(m.batch, m.sequence), bf16(m.vocabulary, m.hidden)
        flags = [scalar(-1), scalar("False"), scalar("False")]
        with (
            w.op("aten::embedding", [table, tokens, *flags], node),
            w.op("aten::index_select", [table, scalar(0), i64(m.tokens)]),
        ):
            size = 2 * m.tokens * m.hidden
            self.memory.alloc(size)
            w.launch(_gather_rows((size + 8 * m.tokens, size)))
        return node

    def layer_operators(self, post_backward: int) -> LayerNodes:
        """Write the operators of a layer; their autograd nodes."""
        w, m, ops = self.w, self.m, self.ops
        norm_1 = ops.norm()
        query, key, value = (ops.linear(n, m.hidden) for n in (m.hidden, m.kv, m.kv))
        rotary, attention = ops.rotary(), ops.attention()
        output = ops.linear(m.hidden, m.hidden)
        ops.add(residual_1 := w.node())
        norm_2, gate = ops.norm(), ops.linear(m.ffn, m.hidden)
        ops.pointwise("aten::silu", catalogue.SILU, m.ffn, 1, silu := w.node())
        up = ops.linear(m.ffn, m.hidden)
        ops.pointwise("aten::mul", catalogue.MUL, m.ffn, 2, product := w.node())
        down = ops.linear(m.hidden, m.ffn)
        ops.add(residual_2 := w.node())
        before = (post_backward, norm_1, query, key, value, rotary, attention, output)
        return LayerNodes(*before, residual_1, norm_2, gate, silu, up, product, down, residual_2)

    def layer_backward(self, nodes: LayerNodes) -> None:
        """Write the backward of `layer_operators`."""
        w, m, ops = self.w, self.m, self.ops
        x = bf16(m.batch, m.sequence, m.hidden)
        with w.backward("AddBackward0", nodes.residual_2, [x]):
            pass
        ops.linear_backward(nodes.down)
        with w.backward("MulBackward0", nodes.product, [bf16(m.batch, m.sequence, m.ffn)]):
            ops.pointwise("aten::mul", catalogue.MUL, m.ffn, 2)
            ops.pointwise("aten::mul", catalogue.MUL, m.ffn, 2)
        ops.linear_backward(nodes.up)
        with w.backward("SiluBackward0", nodes.silu, [bf16(m.batch, m.sequence, m.ffn)]):
            ops.pointwise("aten::silu_backward", catalogue.SILU_BACKWARD, m.ffn, 2)
        ops.linear_backward(nodes.gate, after=ops.add)
        ops.norm_backward(nodes.norm_2, after=ops.add)
        with w.backward("AddBackward0", nodes.residual_1, [x]):
            pass
        self._attention_backward(nodes)

    def _attention_backward(self, n: LayerNodes) -> None:
        ops = self.ops
        ops.linear_backward(n.output)
        ops.attention_backward(n.attention)
        ops.rotary(node=n.rotary)
        ops.linear_backward(n.value)
        ops.linear_backward(n.key, after=ops.add)
        ops.linear_backward(n.query, after=ops.add)
        ops.norm_backward(n.norm_1, after=ops.add)

    def loss(self) -> tuple[int, int, int]:
        """Cross entropy of the logits; the autograd nodes."""
        w, m = self.w, self.m
        cast, softmax, nll = w.node(), w.node(), w.node()
        half, logits = (kind(m.tokens, m.vocabulary) for kind in (bf16, f32))
        elements = m.tokens * m.vocabulary
        with (
            w.op("aten::to", [half, scalar(6), scalar("False"), scalar("False"), NONE], cast),
            w.op("aten::_to_copy", [half, scalar(6)], cast),
            w.op("aten::copy_", [logits, half]),
        ):
            self.memory.alloc(4 * elements)
            w.launch(_cast(catalogue.TO_FLOAT, elements, (2, 4)))
        target = i64(m.tokens)
        options = [NONE, scalar(1), scalar(-100)]
        with w.op("aten::cross_entropy_loss", [logits, target, *options, scalar("0.")], softmax):
            with (
                w.op("aten::log_softmax", [logits, scalar(1), NONE], softmax),
                w.op("aten::_log_softmax", [logits, scalar(1), scalar("False")], softmax),
            ):
                self.memory.alloc(4 * elements)
                w.launch(_softmax("Forward", m, (4 * elements, 4 * elements)))
            with (
                w.op("aten::nll_loss_nd", [logits, target, *options], nll),
                w.op("aten::nll_loss_forward", [logits, target, *options], nll),
            ):
                w.launch(_nll("forward", (12 * m.tokens, 8)))
        return cast, softmax, nll

    def seed_gradient(self) -> None:
        """Write the gradient of the loss by itself."""
        w = self.w
        with (
            w.op("aten::ones_like", [f32(), *[NONE] * 3, scalar("False"), scalar(1)]),
            w.op("aten::fill_", [f32(), scalar("1.")]),
        ):
            w.launch(catalogue.pointwise(catalogue.FILL, 1, 0, size=4))

    def loss_backward(self, nodes: tuple[int, int, int]) -> None:
        """Write the backward of `loss`."""
        w, m = self.w, self.m
        half, logits = (kind(m.tokens, m.vocabulary) for kind in (bf16, f32))
        elements = m.tokens * m.vocabulary
        with (
            w.backward("NllLossBackward0", nodes[2], [f32()]),
            w.op("aten::nll_loss_backward", [f32(), logits, i64(m.tokens), NONE, scalar(1)]),
        ):
            with w.op("aten::zero_", [logits]):
                w.copy("hipMemsetAsync", "Device", 4 * elements)
            w.launch(_nll("backward", (12 * m.tokens, 4 * m.tokens)))
        with (
            w.backward("LogSoftmaxBackward0", nodes[1], [logits]),
            w.op("aten::_log_softmax_backward_data", [logits, logits, scalar(1), scalar(6)]),
        ):
            w.launch(_softmax("Backward", m, (8 * elements, 4 * elements)))
        with (
            w.backward("ToCopyBackward0", nodes[0], [logits]),
            w.op("aten::_to_copy", [logits, scalar(15)]),
            w.op("aten::copy_", [half, logits]),
        ):
            w.launch(_cast(catalogue.TO_BF16, elements, (4, 2)))

    def embedding_backward(self, node: int) -> None:
        """Write the backward of `embedding`."""
        w, m = self.w, self.m
        grad, size = bf16(m.batch, m.sequence, m.hidden), 2 * m.vocabulary * m.hidden
        with (
            w.backward("EmbeddingBackward0", node, [grad]),
            w.op("aten::embedding_dense_backward", [grad, i64(m.batch, m.sequence)]),
        ):
            with w.op("aten::zero_", [bf16(m.vocabulary, m.hidden)]):
                w.copy("hipMemsetAsync", "Device", size)
            w.launch(_scatter_rows(m.tokens * m.hidden, 2 * m.tokens * m.hidden))


def _cast(functor: str, elements: int, sizes: tuple[int, int]) -> Kernel:
    name = f"void at::native::vectorized_elementwise_kernel<4, at::native::{functor}, "
    pointers = "std::array<char*, 2ul>"
    name += f"{pointers} >(int, at::native::{functor}, {pointers})"
    traffic = (sizes[0] * elements, sizes[1] * elements)
    return catalogue.stream(name, "elementwise", traffic, catalogue.spread(elements, 1024))


def _softmax(direction: str, model: Model, traffic: tuple[int, int]) -> Kernel:
    name = (
        f"void at::native::(anonymous namespace)::cunn_SoftMax{direction}<4, float, float, float, "
        f"at::native::(anonymous namespace)::LogSoftMax{direction}Epilogue>"
        "(float*, float const*, int)"
    )
    return catalogue.stream(name, "reduction", traffic, (model.tokens, 1, 1), (1024, 1, 1))


def _nll(direction: str, traffic: tuple[int, int]) -> Kernel:
    name = (
        f"void at::native::(anonymous namespace)::nll_loss_{direction}_reduce_cuda_kernel_2d<float, "
        "float, long>(float*, float*, float const*, long const*, float const*, bool, long, long, long)"
    )
    return catalogue.stream(name, "reduction", traffic, (1, 1, 1), (32, 1, 1))


def _gather_rows(traffic: tuple[int, int]) -> Kernel:
    info = "at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>"
    name = (
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned "
        f"int, 2, 2, -2, true>({info}, {info}, at::cuda::detail::TensorInfo<long const, unsigned int>"
        ", int, int, unsigned int, unsigned int, long)"
    )
    return catalogue.stream(name, "elementwise", traffic, (2432, 1, 1))


def _scatter_rows(elements: int, size: int) -> Kernel:
    name = (
        "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<c10::BFloat16, "
        "float, long>(long const*, c10::BFloat16 const*, c10::BFloat16*, int, long, int)"
    )
    return catalogue.stream(name, "reduction", (2 * size, size), catalogue.spread(elements))
