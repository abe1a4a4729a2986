"""Work of matrix products and convolutions.

A multiplication and an addition are two operations, as everywhere (`torch.utils.flop_counter`,
BLAS): a product of m x k and k x n matrices is 2 m n k, whatever is added to it and whatever
function follows. Bytes are all operands, each read once, and the result, written once.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from chopper_interop.schemas.dtypes import NUMBERED
from chopper_interop.work.calls import Tensor, dense
from chopper_interop.work.sizes import UNKNOWN, Work, broadcast, floating, like, moved

if TYPE_CHECKING:
    from collections.abc import Callable

    from chopper_interop.work.calls import Call, Shape

_MATRIX = 2
"""Dimensions of a matrix."""


def product(call: Call, first: int = 0, added: int | None = None) -> Work:
    """``mm``, ``bmm``, ``matmul``, ``mv``, ``dot`` and, with `added`, ``addmm`` and the like.

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
    flops = 2 * math.prod(shape) * _depth(a) if floating(a) else None
    return Work(flops, moved((a, b, bias), (out,)))


def _depth(a: Tensor) -> int:
    """Length of the sums; types that pack two numbers in a byte tell half of it."""
    return a.shape[-1] * (2 if a.dtype.lower().endswith("_x2") else 1)


def _product_shape(a: Shape, b: Shape) -> Shape | None:
    """Shape of the product of operands of any number of dimensions (``matmul``)."""
    if not a or not b or a[-1] != (b[-2] if len(b) > 1 else b[0]):
        return None
    batch = broadcast((a[:-2], b[:-2]))
    if batch is None:
        return None
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def summed_batches(call: Call) -> Work:
    """``addbmm``: the sum of the products of a batch."""
    work = product(call, 1)
    a, b = call.tensor(1), call.tensor(2)
    if a is None or b is None or work.flops is None:
        return UNKNOWN
    out = dense((a.shape[-2], b.shape[-1]), a.dtype)
    return Work(work.flops, moved((call.tensor(0), a, b), (out,)))


def outer(call: Call, first: int = 0, added: int | None = None) -> Work:
    """``outer`` and ``addr``: every product of an element of one with one of the other."""
    a, b = call.tensor(first), call.tensor(first + 1)
    if a is None or b is None:
        return UNKNOWN
    out = dense((a.size, b.size), a.dtype)
    bias = None if added is None else call.tensor(added)
    each = 1 if added is None else 2
    return Work(each * out.size if floating(a) else None, moved((a, b, bias), (out,)))


def linear(call: Call) -> Work:
    """``linear``: rows of the input by the transposed weight."""
    x, weight = call.tensor(0), call.tensor(1)
    if x is None or weight is None or not weight.shape or not x.shape:
        return UNKNOWN
    if x.shape[-1] != weight.shape[-1]:
        return UNKNOWN
    out = dense((*x.shape[:-1], *weight.shape[:-1]), x.dtype)
    flops = 2 * out.size * _depth(x) if floating(x) else None
    return Work(flops, moved((x, weight, call.tensor(2)), (out,)))


def by_rows(call: Call) -> Work:
    """Products with a weight that lies as n x k, of types and outputs that are not told."""
    x, weight = call.tensor(0), call.tensor(1)
    if x is None or weight is None or len(weight.shape) != _MATRIX or not x.shape:
        return UNKNOWN
    if x.shape[-1] != weight.shape[1] or not floating(x):
        return UNKNOWN
    return Work(2 * x.size * weight.shape[0])


def scaled(call: Call) -> Work:
    """``_scaled_mm``: its result is of a type of its own.

    The type's place: 3 until PyTorch 2.4, where the bias comes before scales, then 6.
    """
    work = product(call)
    a, b, third = (call.tensor(i) for i in range(3))
    if a is None or b is None:
        return UNKNOWN
    scales_first = third is not None and third.dtype == "float"
    said = call.value(6 if scales_first else 3)
    dtype = NUMBERED.get(said) if isinstance(said, int) else None
    bias = call.tensor(4 if scales_first else 2)
    if dtype is None:
        return Work(work.flops)
    out = dense((a.shape[0], b.shape[1]), dtype)
    return Work(work.flops, moved((a, b, bias), (out,)))


class Places(NamedTuple):
    """Which arguments of a convolution are what; -1 for what it has not."""

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


CONVOLUTION = Places(0, 1, 2, 3, 4, 5, 8, 6, 7)
"""``aten::convolution``, ``_convolution``, ``convolution_overrideable``."""
OF_USER = Places(0, 1, 2, 3, 4, 5, 6)
"""``conv1d`` to ``conv3d``, ``cudnn_convolution_relu``."""
TRANSPOSED_OF_USER = Places(0, 1, 2, 3, 4, 7, 6, output_padding=5, always_transposed=True)
"""``conv_transpose1d`` to ``conv_transpose3d``."""
OF_MIOPEN = Places(0, 1, 2, 4, 3, 5, 6)
"""``miopen_convolution``, ``mkldnn_convolution``, and cuDNN's until PyTorch 1.5."""
OF_CUDNN = Places(0, 1, -1, 3, 2, 4, 5)
"""``cudnn_convolution``."""
TRANSPOSED_OF_MIOPEN = Places(0, 1, 2, 5, 3, 6, 7, output_padding=4, always_transposed=True)
TRANSPOSED_OF_CUDNN = Places(0, 1, -1, 4, 2, 5, 6, output_padding=3, always_transposed=True)
WITH_SUM = Places(0, 1, 5, 6, 7, 8, 9)
"""``cudnn_convolution_add_relu``; what it adds is not counted in its bytes."""
BACKWARD = Places(1, 2, -1, 4, 5, 6, 9, 7, 8, grad=0, mask=10)
"""``convolution_backward``, since PyTorch 1.11."""
BACKWARD_OF_LIBRARY = Places(0, 2, -1, 4, 3, 5, 6, grad=1, mask=-2)
"""``cudnn_convolution_backward`` and ``miopen_convolution_backward`` before that."""


def convolution(call: Call, places: Places) -> Work:
    """A forward convolution: 2 x elements of the result x elements that each is a sum over.

    A transposed one takes as much as the convolution that it is the gradient of: 2 x elements of
    its input x the weight's elements for each.
    """
    x, weight = call.tensor(places.x), call.tensor(places.weight)
    if x is None or weight is None or len(x.shape) != len(weight.shape) or len(x.shape) <= _MATRIX:
        return UNKNOWN
    transposed = places.always_transposed
    if places.transposed >= 0:
        said = call.value(places.transposed)
        if not isinstance(said, bool):
            return UNKNOWN
        transposed = said
    shape = call.outputs[0].shape if len(call.outputs) == 1 else None
    shape = shape or _result_shape(call, places, x.shape, weight.shape, transposed=transposed)
    out = None if shape is None else dense(shape, x.dtype)
    full = x if transposed else out
    if full is None or not floating(x) or not weight.shape[0]:
        return UNKNOWN
    flops = 2 * full.size * (weight.size // weight.shape[0])
    bias = call.tensor(places.bias) if places.bias >= 0 else None
    return Work(flops, None if out is None else moved((x, weight, bias), (out,)))


def _result_shape(
    call: Call, places: Places, x: Shape, weight: Shape, *, transposed: bool
) -> Shape | None:
    """Shape of a convolution's result, None if its stride, padding or dilation is not told."""
    spatial = len(x) - 2
    stride, padding, dilation = (
        call.whole(at, spatial) for at in (places.stride, places.padding, places.dilation)
    )
    if stride is None or padding is None or dilation is None or 0 in stride:
        return None
    reach = [d * (k - 1) for d, k in zip(dilation, weight[2:], strict=True)]
    if not transposed:
        rows = zip(x[2:], padding, reach, stride, strict=True)
        sizes = [(n + 2 * p - r - 1) // s + 1 for n, p, r, s in rows]
        channels = weight[0]
    else:
        more, groups = call.whole(places.output_padding, spatial), call.value(places.groups)
        if more is None or not isinstance(groups, int):
            return None
        rows_t = zip(x[2:], padding, reach, stride, more, strict=True)
        sizes = [(n - 1) * s - 2 * p + r + m + 1 for n, p, r, s, m in rows_t]
        channels = weight[1] * groups
    return None if min(sizes) < 0 else (x[0], channels, *sizes)


def convolution_backward(call: Call, places: Places) -> Work:
    """Gradients of a convolution: each of input and weight takes as much as the convolution."""
    grad, x, weight = (call.tensor(at) for at in (places.grad, places.x, places.weight))
    at = len(call.inputs) - 1 if places.mask < -1 else places.mask
    mask = call.value(at)
    if grad is None or x is None or weight is None or not isinstance(mask, list):
        return UNKNOWN
    transposed = places.transposed >= 0 and call.value(places.transposed)
    full = x if transposed else grad
    if transposed is None or not floating(grad) or not weight.shape or not weight.shape[0]:
        return UNKNOWN
    each = 2 * full.size * (weight.size // weight.shape[0])
    of_x, of_weight, of_bias = (bool(m) for m in (*mask, False, False, False)[:3])
    read = (grad, weight if of_x else None, x if of_weight else None)
    channels = weight.shape[0] if not transposed else grad.shape[1]
    bias = dense((channels,), grad.dtype) if of_bias else None
    written = (like(x) if of_x else None, like(weight) if of_weight else None, bias)
    parts = of_x + of_weight
    return Work(each * parts, moved(read, written), max(parts, 1))


def input_gradient(call: Call) -> Work:
    """``cudnn_convolution_backward_input(size, grad, weight, …)``: its size is not told."""
    grad, weight = call.tensor(1), call.tensor(2)
    if grad is None or weight is None or not weight.shape or not floating(grad):
        return UNKNOWN
    if not weight.shape[0]:
        return UNKNOWN
    flops = 2 * grad.size * (weight.size // weight.shape[0])
    size = call.value(0)
    proper = isinstance(size, list) and all(type(n) is int for n in size)
    out = dense(tuple(size), grad.dtype) if proper and size else None
    return Work(flops, None if out is None else moved((grad, weight), (out,)))


def weight_gradient(call: Call) -> Work:
    """``cudnn_convolution_backward_weight(size, grad, input, …)``."""
    grad, x, size = call.tensor(1), call.tensor(2), call.value(0)
    proper = isinstance(size, list) and size and all(type(n) is int and n > 0 for n in size)
    if grad is None or x is None or not proper or not floating(grad):
        return UNKNOWN
    weight = dense(tuple(size), grad.dtype)
    flops = 2 * grad.size * (weight.size // weight.shape[0])
    return Work(flops, moved((grad, x), (weight,)))


_PRODUCTS: tuple[tuple[str, Callable[[Call], Work]], ...] = (
    (r"aten::(mm|bmm|matmul|mv|dot|vdot|inner|_grouped_mm_3d)", product),
    (r"aten::(addmm_?|addmv_?|baddbmm_?|_addmm_activation)", partial(product, first=1, added=0)),
    (r"aten::addbmm_?", summed_batches),
    (r"aten::(outer|ger)", outer),
    (r"aten::addr_?", partial(outer, first=1, added=0)),
    (r"aten::(linear|_addmm_linear)", linear),
    (r"aten::_scaled_mm(_v2)?", scaled),
    (r"aiter::(wrapper_)?gemm_a(8w8|16w16)\w*|_rocm_C::(wvSplitK\w*|LLMM1)", by_rows),
)

_CONVOLUTIONS: tuple[tuple[str, Places], ...] = (
    (r"aten::(_?convolution|convolution_overrideable)", CONVOLUTION),
    (r"aten::(conv[123]d|(cudnn|miopen)_convolution_relu)", OF_USER),
    (r"aten::conv_transpose[123]d", TRANSPOSED_OF_USER),
    (r"aten::(miopen|mkldnn)_(depthwise_)?convolution", OF_MIOPEN),
    (r"aten::cudnn_convolution", OF_CUDNN),
    (r"aten::miopen_convolution_transpose", TRANSPOSED_OF_MIOPEN),
    (r"aten::cudnn_convolution_transpose", TRANSPOSED_OF_CUDNN),
    (r"aten::(cudnn|miopen)_convolution_add_relu", WITH_SUM),
    (r"aten::(thnn_conv2d|_?slow_conv[23]d(_forward)?)", Places(0, 1, 3, 4, 5, -1, -1)),
    (r"aten::(_conv_depthwise2d|conv_depthwise3d)", Places(0, 1, 3, 4, 5, 6, -1)),
)

RULES: tuple[tuple[str, Callable[[Call], Work]], ...] = (
    *_PRODUCTS,
    *((names, partial(convolution, places=places)) for names, places in _CONVOLUTIONS),
    (
        r"aten::convolution_backward(_overrideable)?",
        partial(convolution_backward, places=BACKWARD),
    ),
    (
        r"aten::(cudnn|miopen|mkldnn)_convolution_backward",
        partial(convolution_backward, places=BACKWARD_OF_LIBRARY),
    ),
    (r"aten::(cudnn|miopen)_convolution_backward_input", input_gradient),
    (r"aten::(cudnn|miopen)_convolution_backward_weight", weight_gradient),
)
"""Operator, the whole name → its work."""
