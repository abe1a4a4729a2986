"""Work of operators on elements: functions, reductions, norms, copies, optimizer steps.

Operations are those of the textbook formula for one element: additions, multiplications and
divisions count one each, and so does a function such as exp; comparisons, selections, changes of
sign and of type count none, as no counter of floating-point operations counts them. Only
arithmetic on real floating-point numbers counts. Bytes are every operand, read once, and every
result, written once; intermediate values and workspace are not included.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from chopper_interop.annotate.work.calls import (
    UNKNOWN,
    CallWork,
    Tensor,
    broadcast_shape,
    dense,
    is_floating,
    like,
    moved_bytes,
    promoted_dtype,
)
from chopper_interop.schemas import dtypes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chopper_interop.annotate.work.calls import Call

_ADAM_STATES = 2
"""States of Adam; its variant AMSGrad has a third, for which there is no rule."""
_INDEX = "long"
"""Type of the indices that operators return."""


def elementwise(
    call: Call, each: int | None, operands: int = 1, *, in_place: bool = False, truth: bool = False
) -> CallWork:
    """Work of a function of corresponding elements.

    Parameters
    ----------
    call
        The call.
    each
        Operations for an element of the result; None if there is no agreed number.
    operands
        Number of first arguments that are operands; a tensor after them receives the results.
    in_place
        True if the first operand receives the results.
    truth
        True if results are truth values.
    """
    if call.tensors(0):
        return _elementwise_lists(call, each, operands, in_place=in_place)
    read = [t for t in map(call.tensor, range(operands)) if t is not None]
    shape = broadcast_shape(t.shape for t in read)
    if shape is None or call.tensor(0) is None or () in call.inputs[:operands]:
        return UNKNOWN
    outputs = [t for t in map(call.tensor, range(operands, len(call.inputs))) if t is not None]
    dtype = "bool" if truth else _result_dtype(call, read, operands)
    target = read[0] if in_place else next(iter(outputs), None) or _dense(shape, dtype)
    flops = _flops([*read, target], each, math.prod(shape))
    return CallWork(flops, None if target is None else moved_bytes(read, (target,)))


def _flops(tensors: Sequence[Tensor | None], each: int | None, elements: int) -> int | None:
    """Operations on these tensors; None among them stands for one that is unknown."""
    known = [t for t in tensors if t is not None]
    if each == 0:
        return 0
    if any(t.item is None or t.category == dtypes.COMPLEX for t in known):
        return None
    if any(map(is_floating, known)):
        return None if each is None else each * elements
    return 0 if len(known) == len(tensors) else None


def _dense(shape: Sequence[int], dtype: str | None) -> Tensor | None:
    return None if dtype is None else dense(tuple(shape), dtype)


def _result_dtype(call: Call, read: Sequence[Tensor], operands: int) -> str | None:
    """Type of the result; None if a scalar may change it."""
    dtype = promoted_dtype(read)
    if dtype is None or dtypes.category(dtype) >= dtypes.REAL:
        return dtype
    scalars = [call.value(i) for i in range(operands) if call.inputs[i : i + 1] == (None,)]
    return dtype if all(type(value) is int for value in scalars) else None


def _elementwise_lists(call: Call, each: int | None, operands: int, *, in_place: bool) -> CallWork:
    """Work of an elementwise operator on lists of tensors (``_foreach_add_``)."""
    lists = [tensors for tensors in map(call.tensors, range(operands)) if tensors]
    if () in call.inputs[:operands] or any(len(tensors) != len(lists[0]) for tensors in lists):
        return UNKNOWN
    read = [t for tensors in lists for t in tensors]
    scalars = [t for t in map(call.tensor, range(operands)) if t is not None]
    flops = _flops(lists[0], each, sum(t.size for t in lists[0] if is_floating(t)))
    out = lists[0] if in_place else [like(t) for t in lists[0]]
    return CallWork(flops, moved_bytes(read + scalars, out))


def real_function(call: Call, each: int | None, operands: int = 1) -> CallWork:
    """Work of functions with real results for any input, such as ``exp`` and ``div``."""
    work = elementwise(call, each, operands)
    x = call.tensor(0)
    if x is None or x.category >= dtypes.REAL:
        return work
    read = [t for t in map(call.tensor, range(operands)) if t is not None]
    shape = broadcast_shape(t.shape for t in read)
    if shape is None or each is None or any(t.category == dtypes.COMPLEX for t in read):
        return UNKNOWN
    dtype = promoted_dtype(read)
    if dtype is None:
        return UNKNOWN
    out = dense(shape, dtype if dtypes.category(dtype) == dtypes.REAL else "float")
    return CallWork(each * out.size, moved_bytes(read, (out,)))


def fill(call: Call) -> CallWork:
    """Work of operators that only write: ``fill_``, ``zero_``, random numbers."""
    tensors = call.tensors(0) or ((x,) if (x := call.tensor(0)) is not None else ())
    return CallWork(0, moved_bytes((), tensors)) if tensors else UNKNOWN


def copy(call: Call) -> CallWork:
    """Work of ``copy_(to, from)``, of tensors or lists of them."""
    to, source = call.tensors(0), call.tensors(1)
    if not to or not source:
        to_tensor, from_tensor = call.tensor(0), call.tensor(1)
        if to_tensor is None or from_tensor is None:
            return UNKNOWN
        to, source = (to_tensor,), (from_tensor,)
    return CallWork(0, moved_bytes(source, to))


def concatenate(call: Call) -> CallWork:
    """Work of ``cat`` and ``stack``: all is read and written."""
    parts = call.tensors(0)
    dtype = promoted_dtype(parts)
    if dtype is None:
        return CallWork(0)
    return CallWork(0, moved_bytes(parts, (dense((sum(t.size for t in parts),), dtype),)))


def select_rows(call: Call, index: int) -> CallWork:
    """Work of ``index_select`` and ``embedding``: the selected rows are read, not all of a table.

    A row counts each time that it is selected.
    """
    table, rows = call.tensor(0), call.tensor(index)
    if table is None or rows is None or not table.shape:
        return UNKNOWN
    along = 0 if index == 1 else call.value(1)
    if not isinstance(along, int) or not -len(table.shape) <= along < len(table.shape):
        return UNKNOWN
    width = math.prod(n for i, n in enumerate(table.shape) if i != along % len(table.shape))
    out = dense((rows.size, width), table.dtype)
    return CallWork(0, moved_bytes((rows, out), (out,)))


def gather(call: Call) -> CallWork:
    """Work of ``gather(table, dim, index)``: an element for each index."""
    table, index = call.tensor(0), call.tensor(2)
    if table is None or index is None:
        return UNKNOWN
    out = like(index, table.dtype)
    return CallWork(0, moved_bytes((index, out), (out,)))


def embedding_gradient(call: Call) -> CallWork:
    """Work of ``embedding_dense_backward(gradient, indices, rows, …)``: rows are summed."""
    grad, index, rows = call.tensor(0), call.tensor(1), call.value(2)
    if grad is None or index is None or not isinstance(rows, int) or not grad.shape:
        return UNKNOWN
    table = dense((rows, grad.shape[-1]), grad.dtype)
    return CallWork(grad.size if is_floating(grad) else None, moved_bytes((grad, index), (table,)))


def reduction(call: Call, each: int, dtype: str = "", dims: int = 1, keepdim: int = 2) -> CallWork:
    """Work of a reduction: some operations for each input element.

    Parameters
    ----------
    call
        The call.
    each
        Operations for an element.
    dtype
        Type of the result if it is not that of the input.
    dims, keepdim
        Indexes of the arguments with the dimensions to reduce, and with the flag that keeps them.
    """
    x = call.tensor(0)
    if x is None:
        return UNKNOWN
    if not is_floating(x):
        each = 0
    out = _result_elements(call, x, dims, keepdim)
    size = None
    if out is not None:
        default = "long" if x.category < dtypes.REAL else x.dtype
        size = moved_bytes((x,), (dense((out,), dtype or default),))
    return CallWork(each * x.size if x.category != dtypes.COMPLEX else None, size)


def _result_elements(call: Call, x: Tensor, dims: int, keepdim: int) -> int | None:
    """Elements of a reduction's result; None if its dimensions are unknown."""
    outputs = [t for t in map(call.tensor, range(1, len(call.inputs))) if t is not None]
    if outputs:
        return outputs[-1].size or None
    reduced = call.value(dims)
    if len(call.inputs) <= keepdim and not isinstance(reduced, list):
        return 1  # there is no argument for dimensions: all are reduced
    if isinstance(reduced, int) and not isinstance(reduced, bool):
        reduced = [reduced]
    rank = len(x.shape)
    is_list = isinstance(reduced, list)
    if not is_list or not all(type(d) is int and -rank <= d < rank for d in reduced):
        return None
    dimensions = {d % rank for d in reduced} if reduced else set(range(rank))
    return math.prod(n for i, n in enumerate(x.shape) if i not in dimensions)


def normalization(call: Call, each: int | None, weights: Sequence[int] = ()) -> CallWork:
    """Work of a norm or a running sum: input, weights, and a result of the same shape."""
    data = call.tensor(0)
    if data is None:
        return UNKNOWN
    flops = _flops([data], each, data.size)
    return CallWork(flops, moved_bytes((data, *map(call.tensor, weights)), (like(data),)))


def batch_norm(call: Call) -> CallWork:
    """Work of batch normalization; in evaluation mean and variance are inputs."""
    training = call.value(5)
    each = {True: 7, False: 4}.get(training) if isinstance(training, bool) else None
    return normalization(call, each, weights=(1, 2))


def softmax(call: Call) -> CallWork:
    """Work of ``_softmax(input, dim, half_to_float)``: subtract the maximum, exp, sum, divide."""
    data, half_to_float = call.tensor(0), call.value(2)
    if data is None:
        return UNKNOWN
    if not isinstance(half_to_float, bool):  # then half precision may or may not become single
        return normalization(call, 4) if data.dtype == "float" else CallWork(4 * data.size)
    out = like(data, "float" if half_to_float else None)
    return CallWork(4 * data.size, moved_bytes((data,), (out,)))


def gradient(call: Call, each: int | None, read: Sequence[int], like_: int) -> CallWork:
    """Work of a gradient that has the shape of one operand, from several operands."""
    target = call.tensor(like_)
    operands = [call.tensor(i) for i in read]
    if target is None or operands[0] is None:
        return UNKNOWN
    flops = _flops([target], each, target.size)
    return CallWork(flops, moved_bytes(operands, (like(target),)))


def max_pool_gradient(call: Call) -> CallWork:
    """Work of ``max_pool2d_with_indices_backward(gradient, input, …, indices)``."""
    grad, x, index = call.tensor(0), call.tensor(1), call.tensor(7)
    if grad is None or x is None or index is None:
        return UNKNOWN
    return CallWork(0, moved_bytes((grad, index), (like(x),)))


def max_pool(call: Call) -> CallWork:
    """Work of ``max_pool2d_with_indices(input, kernel, stride, padding, dilation, ceil)``."""
    x, ceil = call.tensor(0), call.value(5)
    kernel, stride, padding, dilation = (call.integers(i, 2) for i in range(1, 5))
    stride = stride or (kernel if call.value(2) == [] else None)
    if x is None or kernel is None or stride is None or padding is None or dilation is None:
        return UNKNOWN
    if ceil is not False or 0 in stride or len(x.shape) < len(kernel):
        return CallWork(0)
    rows = zip(x.shape[-2:], kernel, stride, padding, dilation, strict=True)
    sizes = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in rows]
    out = dense((*x.shape[:-2], *sizes), x.dtype)
    return (
        CallWork(0, moved_bytes((x,), (out, like(out, _INDEX)))) if min(sizes) > 0 else CallWork(0)
    )


def optimizer_step(call: Call, each: int, states: int) -> CallWork:
    """Work of a fused optimizer that updates parameters and `states` lists after the gradients."""
    lists = [call.tensors(i) for i in range(2 + states)]
    is_amsgrad = states == _ADAM_STATES and call.tensors(2 + states)
    if is_amsgrad or not all(len(tensors) == len(lists[0]) > 0 for tensors in lists):
        return UNKNOWN
    updated_tensors = [t for tensors in (lists[0], *lists[2:]) for t in tensors]
    flops = each * sum(t.size for t in lists[0])
    return CallWork(flops, moved_bytes((*lists[1], *updated_tensors), updated_tensors))


def sgd_step(call: Call) -> CallWork:
    """Work of ``_fused_sgd_``: 2 operations an element, 2 more with momentum."""
    return optimizer_step(call, 4, 1) if call.tensors(2) else optimizer_step(call, 2, 0)


def unscale_gradients(call: Call) -> CallWork:
    """Work of ``_amp_foreach_non_finite_check_and_unscale_``: gradients times a number, in place."""
    tensors = call.tensors(0)
    return (
        CallWork(sum(t.size for t in tensors), moved_bytes(tensors, tensors))
        if tensors
        else UNKNOWN
    )


def dropout(call: Call) -> CallWork:
    """Work of ``native_dropout``: a result and a mask; a multiplication an element."""
    x = call.tensor(0)
    if x is None:
        return UNKNOWN
    return CallWork(
        x.size if is_floating(x) else None, moved_bytes((x,), (like(x), like(x, "bool")))
    )


_UNCOUNTED_1 = "relu|relu6|hardtanh|neg|abs|sign|floor|ceil|round|trunc|tril|triu"
_UNCOUNTED_2 = "clamp_min|clamp_max|maximum|minimum|fmax|fmin"
_UNCOUNTED_3 = "clamp|masked_fill"
_TRUTHS_1 = "isnan|isinf|isfinite|logical_not|signbit"
_TRUTHS_2 = "eq|ne|lt|le|gt|ge|logical_and|logical_or|logical_xor"
_BITWISE = "bitwise_and|bitwise_or|bitwise_xor|__and__|__or__|__xor__"
_COUNTED_1 = (
    "sqrt|rsqrt|exp|exp2|expm1|log|log2|log10|log1p|sin|cos|tan|asin|acos|atan|sinh|cosh|tanh"
    "|erf|erfc|erfinv|sigmoid|reciprocal|lgamma|digamma"
)
_COUNTED_2 = "add|sub|rsub|mul"
_DIVISIONS = "div|true_divide|atan2"


def _rules_of(
    names: str, each: int | None, operands: int, *, truth: bool = False
) -> list[tuple[str, Rule]]:
    """Rules of functions, of their in-place forms and of their forms for lists."""
    out_of_place = partial(elementwise, each=each, operands=operands, truth=truth)
    in_place = partial(elementwise, each=each, operands=operands, in_place=True)
    return [
        (rf"aten::({names})", out_of_place),
        (rf"aten::({names})_", in_place),
        (rf"aten::_foreach_({names})", out_of_place),
        (rf"aten::_foreach_({names})_", in_place),
    ]


if TYPE_CHECKING:
    Rule = Callable[[Call], CallWork]

_FUNCTIONS: tuple[tuple[str, Rule], ...] = (
    *_rules_of(_UNCOUNTED_1, 0, 1),
    *_rules_of(_UNCOUNTED_2, 0, 2),
    *_rules_of(_UNCOUNTED_3, 0, 3),
    *_rules_of(_TRUTHS_1, 0, 1, truth=True),
    *_rules_of(_TRUTHS_2, 0, 2, truth=True),
    *_rules_of(_BITWISE, 0, 2),
    *_rules_of(_COUNTED_2, 1, 2),
    *_rules_of("pow", 1, 2),
    *_rules_of("lerp", 3, 3),
    *_rules_of("addcmul|addcdiv", 3, 3),
    *_rules_of("silu", 2, 1),
    *_rules_of("gelu", 5, 1),
    *_rules_of("remainder|fmod|floor_divide|bitwise_not", None, 2),
    (rf"aten::({_COUNTED_1})", partial(real_function, each=1)),
    (rf"aten::({_COUNTED_1})_", partial(elementwise, each=1, in_place=True)),
    (rf"aten::_foreach_({_COUNTED_1})", partial(elementwise, each=1)),
    (rf"aten::_foreach_({_COUNTED_1})_", partial(elementwise, each=1, in_place=True)),
    (rf"aten::({_DIVISIONS})", partial(real_function, each=1, operands=2)),
    (
        rf"aten::(_foreach_)?({_DIVISIONS})_",
        partial(elementwise, each=1, operands=2, in_place=True),
    ),
    (rf"aten::_foreach_({_DIVISIONS})", partial(elementwise, each=1, operands=2)),
    (r"aten::where", partial(elementwise, each=0, operands=3)),
    (r"aten::threshold_backward", partial(elementwise, each=0, operands=2)),
    (r"aten::(tanh|sigmoid)_backward", partial(elementwise, each=3, operands=2)),
    (r"aten::(gelu|silu)_backward", partial(elementwise, each=None, operands=2)),
    (r"aten::mse_loss_backward", partial(gradient, each=3, read=(1, 2), like_=1)),
)

RULES: tuple[tuple[str, Rule], ...] = (
    *_FUNCTIONS,
    (r"aten::(fill_|zero_|normal_|uniform_|bernoulli_|random_|exponential_|_foreach_zero_)", fill),
    (r"aten::(_foreach_)?copy_", copy),
    (r"aten::(cat|_cat|stack)", concatenate),
    (r"aten::index_select", partial(select_rows, index=2)),
    (r"aten::embedding", partial(select_rows, index=1)),
    (r"aten::gather", gather),
    (r"aten::embedding_dense_backward", embedding_gradient),
    (r"aten::(sum|nansum|mean|prod)", partial(reduction, each=1)),
    (r"aten::(amax|amin)", partial(reduction, each=0)),
    (r"aten::(argmax|argmin)", partial(reduction, each=0, dtype=_INDEX)),
    (r"aten::(all|any)", partial(reduction, each=0, dtype="bool")),
    (r"aten::(linalg_vector_norm|norm)", partial(reduction, each=2, dims=2, keepdim=3)),
    (r"aten::(cumsum|logcumsumexp|cumprod)_?", partial(normalization, each=1)),
    # mean 1, variance 3, to the mean and to the deviation 1, weight and bias 2
    (r"aten::(native_)?layer_norm", partial(normalization, each=7, weights=(2, 3))),
    (r"aten::native_group_norm", partial(normalization, each=7, weights=(1, 2))),
    (
        r"aten::((native|miopen|cudnn)_batch_norm|_native_batch_norm_legit|_batch_norm_with_update)",
        batch_norm,
    ),
    # square and sum 2, to the root mean square 1, weight 1
    (r"aten::(_fused_)?rms_norm", partial(normalization, each=4, weights=(2,))),
    # sums for bias 1 and weight 4 (normalised 2, product, sum), input 4
    (r"aten::native_batch_norm_backward", partial(gradient, each=9, read=(0, 1, 2), like_=1)),
    (
        r"aten::(miopen|cudnn)_batch_norm_backward",
        partial(gradient, each=9, read=(0, 1, 2), like_=0),
    ),
    (r"aten::native_layer_norm_backward", partial(gradient, each=9, read=(0, 1, 5), like_=1)),
    # difference to the maximum, exp, sum, quotient (of the logarithm: difference)
    (r"aten::_(log_)?softmax", softmax),
    (r"aten::_(log_)?softmax_backward_data", partial(gradient, each=4, read=(0, 1), like_=1)),
    (r"aten::max_pool2d_with_indices_backward", max_pool_gradient),
    (r"aten::max_pool2d_with_indices", max_pool),
    (r"aten::native_dropout", dropout),
    (r"aten::_amp_foreach_non_finite_check_and_unscale_", unscale_gradients),
    # two means 7, root, quotient and difference 6; AdamW shrinks parameters by 2 more
    (r"aten::_fused_adam_", partial(optimizer_step, each=13, states=2)),
    (r"aten::_fused_adamw_", partial(optimizer_step, each=15, states=2)),
    (r"aten::_fused_adagrad_", partial(optimizer_step, each=7, states=1)),
    (r"aten::_fused_sgd_", sgd_step),
)
"""Pattern of an operator's full name → rule that gives its work."""
