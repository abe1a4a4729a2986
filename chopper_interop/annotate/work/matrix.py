"""Work of matrix products and convolutions.

A multiplication and an addition are two operations, as usual (``torch.utils.flop_counter``, BLAS): a
product of m x k and k x n matrices is 2 m n k, without operations on what is added to it or
functions that follow. Bytes are all operands, each read once, and the result, written once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from chopper_interop.annotate.work.calls import (
    UNKNOWN,
    Call,
    CallWork,
    Shape,
    Tensor,
    broadcast_shape,
    dense,
    is_floating,
    like,
    moved_bytes,
)
from chopper_interop.schemas.dtypes import SCALAR_TYPES

_MATRIX = 2
"""Dimensions of a matrix."""


def product(call: Call, first: int = 0, added: int | None = None) -> CallWork:
    """Work of ``mm``, ``bmm``, ``matmul``, ``mv``, ``dot`` and, with `added`, ``addmm`` and the like.

    Parameters
    ----------
    call
        The call.
    first
        Argument of the left operand; the right one follows.
    added
        Argument that is added to the product.
    """
    a, b = call.tensor(first), call.tensor(first + 1)
    if a is None or b is None:
        return UNKNOWN
    shape = _product_shape(a.shape, b.shape)
    if shape is None:
        return UNKNOWN
    bias = None if added is None else call.tensor(added)
    out = dense(shape, a.dtype)
    flops = 2 * math.prod(shape) * _depth(a) if is_floating(a) else None
    return CallWork(flops, moved_bytes((a, b, bias), (out,)))


def _depth(a: Tensor) -> int:
    """Length of the sums; shapes of types that pack two numbers in a byte have half of it."""
    return a.shape[-1] * (2 if a.dtype.lower().endswith("_x2") else 1)


def _product_shape(a: Shape, b: Shape) -> Shape | None:
    """Shape of the product of operands of any number of dimensions, as of ``matmul``."""
    if not a or not b or a[-1] != (b[-2] if len(b) > 1 else b[0]):
        return None
    batch = broadcast_shape((a[:-2], b[:-2]))
    if batch is None:
        return None
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def summed_batch_product(call: Call) -> CallWork:
    """Work of ``addbmm``: the sum of the products of a batch."""
    work = product(call, 1)
    a, b = call.tensor(1), call.tensor(2)
    if a is None or b is None or work.flops is None:
        return UNKNOWN
    out = dense((a.shape[-2], b.shape[-1]), a.dtype)
    return CallWork(work.flops, moved_bytes((call.tensor(0), a, b), (out,)))


def outer_product(call: Call, first: int = 0, added: int | None = None) -> CallWork:
    """Work of ``outer`` and ``addr``: all products of an element of one with one of the other."""
    a, b = call.tensor(first), call.tensor(first + 1)
    if a is None or b is None:
        return UNKNOWN
    out = dense((a.size, b.size), a.dtype)
    bias = None if added is None else call.tensor(added)
    each = 1 if added is None else 2
    return CallWork(each * out.size if is_floating(a) else None, moved_bytes((a, b, bias), (out,)))


def linear(call: Call) -> CallWork:
    """Work of ``linear``: rows of the input by the transposed weight."""
    x, weight = call.tensor(0), call.tensor(1)
    if x is None or weight is None or not weight.shape or not x.shape:
        return UNKNOWN
    if x.shape[-1] != weight.shape[-1]:
        return UNKNOWN
    out = dense((*x.shape[:-1], *weight.shape[:-1]), x.dtype)
    flops = 2 * out.size * _depth(x) if is_floating(x) else None
    return CallWork(flops, moved_bytes((x, weight, call.tensor(2)), (out,)))


def transposed_weight_product(call: Call) -> CallWork:
    """Work of products with a weight stored as n x k; the type of their results is unknown."""
    x, weight = call.tensor(0), call.tensor(1)
    if x is None or weight is None or len(weight.shape) != _MATRIX or not x.shape:
        return UNKNOWN
    if x.shape[-1] != weight.shape[1] or not is_floating(x):
        return UNKNOWN
    return CallWork(2 * x.size * weight.shape[0])


def scaled_product(call: Call) -> CallWork:
    """Work of ``_scaled_mm``, whose result has a type given by an argument.

    Index of that argument: 3 until PyTorch 2.4, where the bias comes before scales, then 6.
    """
    work = product(call)
    a, b, third = (call.tensor(i) for i in range(3))
    if a is None or b is None:
        return UNKNOWN
    scales_first = third is not None and third.dtype == "float"
    number = call.value(6 if scales_first else 3)
    dtype = SCALAR_TYPES.get(number) if isinstance(number, int) else None
    bias = call.tensor(4 if scales_first else 2)
    if dtype is None:
        return CallWork(work.flops)
    out = dense((a.shape[0], b.shape[1]), dtype)
    return CallWork(work.flops, moved_bytes((a, b, bias), (out,)))


class ConvolutionArguments(NamedTuple):
    """Indexes of the arguments of a convolution; -1 for those that it does not have."""

    x: int
    weight: int
    bias: int
    stride: int
    padding: int
    dilation: int
    groups: int
    transposed: int = -1
    output_padding: int = -1
    grad: int = -1
    mask: int = -1
    always_transposed: bool = False


CONVOLUTION = ConvolutionArguments(0, 1, 2, 3, 4, 5, 8, 6, 7)
"""``aten::convolution``, ``_convolution``, ``convolution_overrideable``."""
PUBLIC = ConvolutionArguments(0, 1, 2, 3, 4, 5, 6)
"""``conv1d`` to ``conv3d``, ``cudnn_convolution_relu``."""
PUBLIC_TRANSPOSED = ConvolutionArguments(
    0, 1, 2, 3, 4, 7, 6, output_padding=5, always_transposed=True
)
"""``conv_transpose1d`` to ``conv_transpose3d``."""
MIOPEN = ConvolutionArguments(0, 1, 2, 4, 3, 5, 6)
"""``miopen_convolution``, ``mkldnn_convolution``, and cuDNN's until PyTorch 1.5."""
CUDNN = ConvolutionArguments(0, 1, -1, 3, 2, 4, 5)
"""``cudnn_convolution``."""
MIOPEN_TRANSPOSED = ConvolutionArguments(
    0, 1, 2, 5, 3, 6, 7, output_padding=4, always_transposed=True
)
CUDNN_TRANSPOSED = ConvolutionArguments(
    0, 1, -1, 4, 2, 5, 6, output_padding=3, always_transposed=True
)
WITH_SUM = ConvolutionArguments(0, 1, 5, 6, 7, 8, 9)
"""``cudnn_convolution_add_relu``; the tensor that it adds is not counted in its bytes."""
BACKWARD = ConvolutionArguments(1, 2, -1, 4, 5, 6, 9, 7, 8, grad=0, mask=10)
"""``convolution_backward``, since PyTorch 1.11."""
LIBRARY_BACKWARD = ConvolutionArguments(0, 2, -1, 4, 3, 5, 6, grad=1, mask=-2)
"""``cudnn_convolution_backward`` and ``miopen_convolution_backward`` before that."""


def convolution(call: Call, arguments: ConvolutionArguments) -> CallWork:
    """Work of a forward convolution: 2 x elements of the result x elements that each sums over.

    A transposed one has the work of the convolution that it is the gradient of: 2 x elements of
    its input x elements of the weight for each.
    """
    x, weight = call.tensor(arguments.x), call.tensor(arguments.weight)
    if x is None or weight is None or len(x.shape) != len(weight.shape) or len(x.shape) <= _MATRIX:
        return UNKNOWN
    transposed = arguments.always_transposed
    if arguments.transposed >= 0:
        flag = call.value(arguments.transposed)
        if not isinstance(flag, bool):
            return UNKNOWN
        transposed = flag
    shape = call.outputs[0].shape if len(call.outputs) == 1 else None
    shape = shape or _result_shape(call, arguments, x.shape, weight.shape, transposed=transposed)
    out = None if shape is None else dense(shape, x.dtype)
    summed = x if transposed else out
    if summed is None or not is_floating(x) or not weight.shape[0]:
        return UNKNOWN
    flops = 2 * summed.size * (weight.size // weight.shape[0])
    bias = call.tensor(arguments.bias) if arguments.bias >= 0 else None
    return CallWork(flops, None if out is None else moved_bytes((x, weight, bias), (out,)))


def _result_shape(
    call: Call, arguments: ConvolutionArguments, x: Shape, weight: Shape, *, transposed: bool
) -> Shape | None:
    """Shape of a convolution's result; None if its stride, padding or dilation is unknown."""
    spatial = len(x) - 2
    stride, padding, dilation = (
        call.integers(at, spatial)
        for at in (arguments.stride, arguments.padding, arguments.dilation)
    )
    if stride is None or padding is None or dilation is None or 0 in stride:
        return None
    reach = [d * (k - 1) for d, k in zip(dilation, weight[2:], strict=True)]
    if not transposed:
        rows = zip(x[2:], padding, reach, stride, strict=True)
        sizes = [(n + 2 * p - r - 1) // s + 1 for n, p, r, s in rows]
        channels = weight[0]
    else:
        more, groups = (
            call.integers(arguments.output_padding, spatial),
            call.value(arguments.groups),
        )
        if more is None or not isinstance(groups, int):
            return None
        rows_t = zip(x[2:], padding, reach, stride, more, strict=True)
        sizes = [(n - 1) * s - 2 * p + r + m + 1 for n, p, r, s, m in rows_t]
        channels = weight[1] * groups
    return None if min(sizes) < 0 else (x[0], channels, *sizes)


def convolution_backward(call: Call, arguments: ConvolutionArguments) -> CallWork:
    """Work of gradients: each of input and weight takes as much as the convolution."""
    grad, x, weight = (call.tensor(at) for at in (arguments.grad, arguments.x, arguments.weight))
    mask = call.value(len(call.inputs) - 1 if arguments.mask < -1 else arguments.mask)
    if grad is None or x is None or weight is None or not isinstance(mask, list):
        return UNKNOWN
    transposed = arguments.transposed >= 0 and call.value(arguments.transposed)
    summed = x if transposed else grad
    if transposed is None or not is_floating(grad) or not weight.shape or not weight.shape[0]:
        return UNKNOWN
    each = 2 * summed.size * (weight.size // weight.shape[0])
    has_x, has_weight, has_bias = (bool(m) for m in (*mask, False, False, False)[:3])
    read = (grad, weight if has_x else None, x if has_weight else None)
    channels = weight.shape[0] if not transposed else grad.shape[1]
    bias = dense((channels,), grad.dtype) if has_bias else None
    written = (like(x) if has_x else None, like(weight) if has_weight else None, bias)
    parts = has_x + has_weight
    return CallWork(each * parts, moved_bytes(read, written), max(parts, 1))


def input_gradient(call: Call) -> CallWork:
    """Work of ``cudnn_convolution_backward_input(size, grad, weight, …)``; size may be unknown."""
    grad, weight = call.tensor(1), call.tensor(2)
    if grad is None or weight is None or not weight.shape or not is_floating(grad):
        return UNKNOWN
    if not weight.shape[0]:
        return UNKNOWN
    flops = 2 * grad.size * (weight.size // weight.shape[0])
    size = call.value(0)
    is_valid = isinstance(size, list) and all(type(n) is int for n in size)
    out = dense(tuple(size), grad.dtype) if is_valid and size else None
    return CallWork(flops, None if out is None else moved_bytes((grad, weight), (out,)))


def weight_gradient(call: Call) -> CallWork:
    """Work of ``cudnn_convolution_backward_weight(size, grad, input, …)``."""
    grad, x, size = call.tensor(1), call.tensor(2), call.value(0)
    is_valid = isinstance(size, list) and size and all(type(n) is int and n > 0 for n in size)
    if grad is None or x is None or not is_valid or not is_floating(grad):
        return UNKNOWN
    weight = dense(tuple(size), grad.dtype)
    flops = 2 * grad.size * (weight.size // weight.shape[0])
    return CallWork(flops, moved_bytes((grad, x), (weight,)))


_PRODUCTS: tuple[tuple[str, Callable[[Call], CallWork]], ...] = (
    (r"aten::(mm|bmm|matmul|mv|dot|vdot|inner|_grouped_mm_3d)", product),
    (r"aten::(addmm_?|addmv_?|baddbmm_?|_addmm_activation)", partial(product, first=1, added=0)),
    (r"aten::addbmm_?", summed_batch_product),
    (r"aten::(outer|ger)", outer_product),
    (r"aten::addr_?", partial(outer_product, first=1, added=0)),
    (r"aten::(linear|_addmm_linear)", linear),
    (r"aten::_scaled_mm(_v2)?", scaled_product),
    (
        r"aiter::(wrapper_)?gemm_a(8w8|16w16)\w*|_rocm_C::(wvSplitK\w*|LLMM1)",
        transposed_weight_product,
    ),
)

_CONVOLUTIONS: tuple[tuple[str, ConvolutionArguments], ...] = (
    (r"aten::(_?convolution|convolution_overrideable)", CONVOLUTION),
    (r"aten::(conv[123]d|(cudnn|miopen)_convolution_relu)", PUBLIC),
    (r"aten::conv_transpose[123]d", PUBLIC_TRANSPOSED),
    (r"aten::(miopen|mkldnn)_(depthwise_)?convolution", MIOPEN),
    (r"aten::cudnn_convolution", CUDNN),
    (r"aten::miopen_convolution_transpose", MIOPEN_TRANSPOSED),
    (r"aten::cudnn_convolution_transpose", CUDNN_TRANSPOSED),
    (r"aten::(cudnn|miopen)_convolution_add_relu", WITH_SUM),
    (
        r"aten::(thnn_conv2d|_?slow_conv[23]d(_forward)?)",
        ConvolutionArguments(0, 1, 3, 4, 5, -1, -1),
    ),
    (r"aten::(_conv_depthwise2d|conv_depthwise3d)", ConvolutionArguments(0, 1, 3, 4, 5, 6, -1)),
)

RULES: tuple[tuple[str, Callable[[Call], CallWork]], ...] = (
    *_PRODUCTS,
    *((names, partial(convolution, arguments=arguments)) for names, arguments in _CONVOLUTIONS),
    (
        r"aten::convolution_backward(_overrideable)?",
        partial(convolution_backward, arguments=BACKWARD),
    ),
    (
        r"aten::(cudnn|miopen|mkldnn)_convolution_backward",
        partial(convolution_backward, arguments=LIBRARY_BACKWARD),
    ),
    (r"aten::(cudnn|miopen)_convolution_backward_input", input_gradient),
    (r"aten::(cudnn|miopen)_convolution_backward_weight", weight_gradient),
)
"""Pattern of an operator's full name → rule that gives its work."""
