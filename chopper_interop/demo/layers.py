"""Operators of one Llama layer, forward and backward, as eager PyTorch runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chopper_interop.demo import catalogue
from chopper_interop.demo.tensors import (
    NONE,
    Argument,
    bf16,
    f32,
    i64,
    numbers,
    scalar,
    swapped,
    transposed,
)

if TYPE_CHECKING:
    from chopper_interop.demo.kernels import Kernel
    from chopper_interop.demo.memory import Memory
    from chopper_interop.demo.writer import Writer


@dataclass(frozen=True)
class Model:
    """Shapes of the model and of a batch."""

    batch: int
    sequence: int
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    ffn: int = 14336
    vocabulary: int = 32000

    @property
    def tokens(self) -> int:
        """Tokens of a batch on one rank."""
        return self.batch * self.sequence

    @property
    def kv(self) -> int:
        """Width of the keys, and of the values."""
        return self.kv_heads * self.head_dim

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Elements of the parameters of a layer."""
        d, kv, ffn = self.hidden, self.kv, self.ffn
        return (d * d, d * kv, d * kv, d * d, d * ffn, ffn * d, d * ffn, d, d)

    @property
    def root_sizes(self) -> tuple[int, ...]:
        """Elements of embedding, last norm and output head."""
        return (self.vocabulary * self.hidden, self.hidden, self.vocabulary * self.hidden)


@dataclass(frozen=True)
class LinearNodes:
    """Autograd nodes of one linear layer with `out` x `inner` weights."""

    out: int
    inner: int
    transpose: int
    view: int
    product: int
    unsafe_view: int


class Ops:
    """Writes operators of a layer; each forward method gives the autograd nodes that it made."""

    def __init__(self, writer: Writer, memory: Memory, model: Model) -> None:
        self.w = writer
        self.memory = memory
        self.m = model

    def linear(self, out: int, inner: int) -> LinearNodes:
        """``aten::linear`` without bias."""
        w, m = self.w, self.m
        x, weight = bf16(m.batch, m.sequence, inner), bf16(out, inner)
        nodes = LinearNodes(out, inner, w.node(), w.node(), w.node(), w.node())
        with w.op("aten::linear", [x, weight, NONE], nodes.transpose):
            with w.op("aten::t", [weight], nodes.transpose):
                self._transpose(out, inner)
            with w.op("aten::matmul", [x, transposed(inner, out)], nodes.view):
                w.leaf("aten::view", [x, numbers(m.tokens, inner)], nodes.view)
                arguments = [bf16(m.tokens, inner), transposed(inner, out)]
                with w.op("aten::mm", arguments, nodes.product):
                    self.memory.alloc(2 * m.tokens * out)
                    self._gemm(out, m.tokens, inner, "TN")
                shape = numbers(m.batch, m.sequence, out)
                w.leaf("aten::_unsafe_view", [bf16(m.tokens, out), shape], nodes.unsafe_view)
        return nodes

    def linear_backward(self, nodes: LinearNodes, after: Callable[[], None] | None = None) -> None:
        """Write the five nodes behind `linear`; `after` adds to the gradient of the input."""
        w, m, out, inner = self.w, self.m, nodes.out, nodes.inner
        grad, flat = bf16(m.batch, m.sequence, out), bf16(m.tokens, out)
        with w.backward("UnsafeViewBackward0", nodes.unsafe_view, [grad]):
            w.leaf("aten::view", [grad, numbers(m.tokens, out)])
        with w.backward("MmBackward0", nodes.product, [flat]):
            with w.op("aten::t", [flat]):
                self._transpose(m.tokens, out)
            with w.op("aten::mm", [transposed(out, m.tokens), bf16(m.tokens, inner)]):
                self.memory.alloc(2 * out * inner)
                self._gemm(inner, out, m.tokens, "NT")
            with w.op("aten::mm", [flat, bf16(out, inner)]):
                self.memory.alloc(2 * m.tokens * inner)
                self._gemm(inner, m.tokens, out, "NN")
        with w.backward("ViewBackward0", nodes.view, [bf16(m.tokens, inner)]):
            w.leaf("aten::view", [bf16(m.tokens, inner), numbers(m.batch, m.sequence, inner)])
            if after:
                after()
        with (
            w.backward("TBackward0", nodes.transpose, [transposed(inner, out)]),
            w.op("aten::t", [transposed(inner, out)]),
        ):
            self._transpose(inner, out)
        accumulate = "torch::autograd::AccumulateGrad"
        with (
            w.op(f"autograd::engine::evaluate_function: {accumulate}"),
            w.op(accumulate, [bf16(out, inner)]),
        ):
            w.leaf("aten::detach", [bf16(out, inner)])

    def _transpose(self, rows: int, columns: int) -> None:
        with self.w.op("aten::transpose", [bf16(rows, columns), scalar(0), scalar(1)]):
            arguments = [numbers(columns, rows), numbers(1, columns), NONE]
            self.w.leaf("aten::as_strided", [bf16(rows, columns), *arguments])

    def _gemm(self, m: int, n: int, k: int, layout: str) -> None:
        self.w.call("hipGetDevicePropertiesR0600")
        self.w.call("hipGetDevicePropertiesR0600")
        self.w.launch(catalogue.gemm(m, n, k, layout))

    def pointwise(self, name: str, functor: str, width: int, reads: int, node: int = -1) -> None:
        """Write an element-wise operator over tokens x `width`, which allocates its output."""
        w, m = self.w, self.m
        x = bf16(m.batch, m.sequence, width)
        with w.op(name, [x] * reads + ([scalar(1)] if name == "aten::add" else []), node):
            self.memory.alloc(2 * m.tokens * width)
            w.launch(catalogue.pointwise(functor, m.tokens * width, reads))

    def add(self, node: int = -1) -> None:
        """Write a residual, or the sum of two gradients."""
        self.pointwise("aten::add", catalogue.ADD, self.m.hidden, 2, node)

    def norm(self) -> int:
        """RMS norm by a Triton kernel."""
        w, m, node = self.w, self.m, self.w.node()
        size = 2 * m.tokens * m.hidden
        with w.op("RMSNormFunction", [bf16(m.batch, m.sequence, m.hidden), bf16(m.hidden)], node):
            self.memory.alloc(size)
            w.launch(catalogue.triton("_rms_norm_fwd_kernel", "norm", m.tokens, (size, size)))
        return node

    def norm_backward(self, node: int, after: Callable[[], None] | None = None) -> None:
        """Gradients of input and weight."""
        w, m = self.w, self.m
        size = 2 * m.tokens * m.hidden
        name, rows = "_rms_norm_bwd_kernel", m.tokens
        with w.backward("RMSNormFunctionBackward", node, [bf16(m.batch, m.sequence, m.hidden)]):
            self.memory.alloc(size)
            w.launch(catalogue.triton(name, "norm", rows, (2 * size, size + 4 * 304 * m.hidden)))
            with w.op("aten::sum", [bf16(304, m.hidden), numbers(0), scalar("False"), NONE]):
                w.launch(column_sum(304, m.hidden))
            if after:
                after()

    def rotary(self, *, node: int = -1) -> int:
        """Rotary embedding of queries and keys by one Triton kernel, forward without a node."""
        w, m = self.w, self.m
        size = 2 * m.tokens * (m.hidden + m.kv)
        part = "fwd" if node < 0 else "bwd"
        kernel = catalogue.triton(f"_rope_{part}_kernel", "elementwise", m.tokens, (size, size))
        query = bf16(m.batch, m.sequence, m.heads, m.head_dim)
        key = bf16(m.batch, m.sequence, m.kv_heads, m.head_dim)
        if node < 0:
            node = w.node()
            with w.op("RotaryFunction", [query, key], node):
                w.launch(kernel)
        else:
            with w.backward("RotaryFunctionBackward", node, [query, key]):
                w.launch(kernel)
        return node

    def attention(self) -> int:
        """Causal flash attention."""
        w, m = self.w, self.m
        qkv, node = self._qkv(), w.node()
        options = [scalar("0."), scalar("True"), scalar("False"), scalar(m.head_dim**-0.5)]
        for tensor in qkv:
            w.leaf("aten::transpose", [tensor, scalar(1), scalar(2)])
        inner = [*(swapped(tensor) for tensor in qkv), *self._lengths(), *options]
        with w.op("aten::scaled_dot_product_attention", [*qkv, NONE, *options[:2]], node):
            w.call("hipStreamGetDevice")
            with (
                w.op("aten::_scaled_dot_product_flash_attention", [*qkv, *options], node),
                w.op("aten::_flash_attention_forward", [*inner, NONE, NONE, NONE, NONE]),
            ):
                self.memory.alloc(2 * m.tokens * m.hidden)
                self._attention("forward")
        return node

    def attention_backward(self, node: int) -> None:
        """Write the three kernels of the backward of flash attention."""
        w, m = self.w, self.m
        query, key, value = self._qkv()
        # the result, and its gradient, are like queries
        tensors = [query, query, key, value, query]
        sums = f32(m.batch, m.heads, m.sequence)
        options = [*self._lengths(), scalar("0."), scalar("True"), i64(), i64()]
        scale = scalar(m.head_dim**-0.5)
        inner = [*(swapped(tensor) for tensor in tensors), sums, *options, scale, NONE, NONE]
        name = "aten::_scaled_dot_product_flash_attention_backward"
        with (
            w.backward("ScaledDotProductFlashAttentionBackward0", node, [query]),
            w.op(name, [*tensors, sums, *options, scale]),
            w.op("aten::_flash_attention_backward", inner),
        ):
            self.memory.alloc(2 * m.tokens * (m.hidden + 2 * m.kv))
            for part in ("dot", "backward", "convert"):
                self._attention(part)

    def _qkv(self) -> list[Argument]:
        m = self.m
        heads = (m.heads, m.kv_heads, m.kv_heads)
        return [bf16(m.batch, number, m.sequence, m.head_dim) for number in heads]

    def _lengths(self) -> list[Argument]:
        """Lengths of sequences: none of each, as all are as long as the longest."""
        return [NONE, NONE, scalar(self.m.sequence), scalar(self.m.sequence)]

    def _attention(self, part: str) -> None:
        m = self.m
        shape = (m.batch, m.heads, m.kv_heads, m.sequence, m.head_dim)
        self.w.launch(catalogue.attention(part, *shape))


def column_sum(rows: int, columns: int) -> Kernel:
    """Sum over the rows of a matrix."""
    reduction = (
        "at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<c10::BFloat16, at::native::"
        "sum_functor<c10::BFloat16, float, c10::BFloat16>::operator()(at::TensorIterator&)::"
        "{lambda(float, float)#1}>, unsigned int, c10::BFloat16, 4, 4>"
    )
    return catalogue.stream(
        f"void at::native::reduce_kernel<128, 4, {reduction} >({reduction})",
        "reduction",
        (4 * rows * columns, 2 * columns),
        catalogue.spread(columns, 128),
        (32, 16, 1),
    )
