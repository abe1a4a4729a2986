"""Work of operators that go over elements: functions, reductions, norms, moves, updates.

Operations are those of the textbook's formula for one element: additions, multiplications and
divisions count one each, and so does a function such as exp; comparisons, selections, changes of
sign and of type count none, for no counter of floating-point operations counts them. Only
arithmetic on real floating-point numbers counts. Bytes are every operand, read once, and every
result, written once; what intermediate values and workspace take comes on top of that.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from chopper_interop.schemas import dtypes
from chopper_interop.work.calls import Tensor, dense
from chopper_interop.work.sizes import UNKNOWN, Work, broadcast, floating, like, moved, promoted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chopper_interop.work.calls import Call

_ADAM = 2
"""States of Adam; its variant AMSGrad has a third, and no rule here."""
_INDEX = "long"
"""Type of the indices that operators give."""


def mapped(
    call: Call, each: int | None, operands: int = 1, *, in_place: bool = False, truth: bool = False
) -> Work:
    """A function of corresponding elements.

    Parameters
    ----------
    call
        The call.
    each
        Operations for an element of the result, None if there is no agreed number.
    operands
        So many first arguments are operands; a tensor among the others is where results go.
    in_place
        Whether the first operand is where results go.
    truth
        Whether results are truth values.
    """
    first = call.tensors(0)
    if first:
        return _mapped_lists(call, each, operands, in_place=in_place)
    read = [t for t in map(call.tensor, range(operands)) if t is not None]
    shape = broadcast(t.shape for t in read)
    if shape is None or call.tensor(0) is None or () in call.inputs[:operands]:
        return UNKNOWN
    given = [t for t in map(call.tensor, range(operands, len(call.inputs))) if t is not None]
    kind = "bool" if truth else _result(call, read, operands)
    target = read[0] if in_place else next(iter(given), None) or _made(shape, kind)
    flops = _flops([*read, target], each, math.prod(shape))
    return Work(flops, None if target is None else moved(read, (target,)))


def _flops(tensors: Sequence[Tensor | None], each: int | None, elements: int) -> int | None:
    """Operations on these tensors, None of which stands for one that is not known."""
    known = [t for t in tensors if t is not None]
    if each == 0:
        return 0
    if any(t.item is None or t.category == dtypes.COMPLEX for t in known):
        return None
    if any(map(floating, known)):
        return None if each is None else each * elements
    return 0 if len(known) == len(tensors) else None


def _made(shape: Sequence[int], dtype: str | None) -> Tensor | None:
    return None if dtype is None else dense(tuple(shape), dtype)


def _result(call: Call, read: Sequence[Tensor], operands: int) -> str | None:
    """Type of the result; None if a scalar might change it."""
    dtype = promoted(read)
    if dtype is None or dtypes.category(dtype) >= dtypes.REAL:
        return dtype
    scalars = [call.value(i) for i in range(operands) if call.inputs[i : i + 1] == (None,)]
    whole = all(type(value) is int for value in scalars)
    return dtype if whole else None


def _mapped_lists(call: Call, each: int | None, operands: int, *, in_place: bool) -> Work:
    """The same for lists of tensors (``_foreach_add_``)."""
    lists = [found for found in map(call.tensors, range(operands)) if found]
    if () in call.inputs[:operands] or any(len(tensors) != len(lists[0]) for tensors in lists):
        return UNKNOWN
    read = [t for tensors in lists for t in tensors]
    scalars = [t for t in map(call.tensor, range(operands)) if t is not None]
    flops = _flops(lists[0], each, sum(t.size for t in lists[0] if floating(t)))
    out = lists[0] if in_place else [like(t) for t in lists[0]]
    return Work(flops, moved(read + scalars, out))


def functions(call: Call, each: int | None, operands: int = 1) -> Work:
    """A function that is of real numbers whatever goes in, as ``exp`` and ``div``."""
    work = mapped(call, each, operands)
    x = call.tensor(0)
    if x is None or x.category >= dtypes.REAL:
        return work
    read = [t for t in map(call.tensor, range(operands)) if t is not None]
    shape = broadcast(t.shape for t in read)
    if shape is None or each is None or any(t.category == dtypes.COMPLEX for t in read):
        return UNKNOWN
    dtype = promoted(read)
    if dtype is None:
        return UNKNOWN
    out = dense(shape, dtype if dtypes.category(dtype) == dtypes.REAL else "float")
    return Work(each * out.size, moved(read, (out,)))


def filled(call: Call) -> Work:
    """What is only written: ``fill_``, ``zero_``, random numbers."""
    tensors = call.tensors(0) or ((x,) if (x := call.tensor(0)) is not None else ())
    return Work(0, moved((), tensors)) if tensors else UNKNOWN


def copied(call: Call) -> Work:
    """``copy_(to, from)``, tensors or lists of them."""
    to, source = call.tensors(0), call.tensors(1)
    if not to or not source:
        one, other = call.tensor(0), call.tensor(1)
        if one is None or other is None:
            return UNKNOWN
        to, source = (one,), (other,)
    return Work(0, moved(source, to))


def joined(call: Call) -> Work:
    """``cat`` and ``stack``: all is read and written."""
    parts = call.tensors(0)
    dtype = promoted(parts)
    if dtype is None:
        return Work(0)
    return Work(0, moved(parts, (dense((sum(t.size for t in parts),), dtype),)))


def taken(call: Call, index: int) -> Work:
    """Rows by number, ``index_select`` and ``embedding``: the rows are read, not all of a table.

    A row counts each time that it is asked for.
    """
    table, rows = call.tensor(0), call.tensor(index)
    if table is None or rows is None or not table.shape:
        return UNKNOWN
    along = 0 if index == 1 else call.value(1)
    if not isinstance(along, int) or not -len(table.shape) <= along < len(table.shape):
        return UNKNOWN
    each = math.prod(n for i, n in enumerate(table.shape) if i != along % len(table.shape))
    out = dense((rows.size, each), table.dtype)
    return Work(0, moved((rows, out), (out,)))


def gathered(call: Call) -> Work:
    """``gather(table, dim, index)``: an element for each index."""
    table, index = call.tensor(0), call.tensor(2)
    if table is None or index is None:
        return UNKNOWN
    out = like(index, table.dtype)
    return Work(0, moved((index, out), (out,)))


def rows_gradient(call: Call) -> Work:
    """``embedding_dense_backward(gradient, indices, rows, …)``: rows of it are added up."""
    grad, index, rows = call.tensor(0), call.tensor(1), call.value(2)
    if grad is None or index is None or not isinstance(rows, int) or not grad.shape:
        return UNKNOWN
    table = dense((rows, grad.shape[-1]), grad.dtype)
    return Work(grad.size if floating(grad) else None, moved((grad, index), (table,)))


def reduced(call: Call, each: int, dtype: str = "", dims: int = 1, keepdim: int = 2) -> Work:
    """A reduction: some operations for each element that goes in.

    Parameters
    ----------
    call
        The call.
    each
        Operations for an element.
    dtype
        Type of the result if it is not that of what goes in.
    dims, keepdim
        Arguments that name the dimensions that vanish, and whether they stay with length 1.
    """
    x = call.tensor(0)
    if x is None:
        return UNKNOWN
    if not floating(x):
        each = 0
    out = _reduced_to(call, x, dims, keepdim)
    size = None
    if out is not None:
        whole = "long" if x.category < dtypes.REAL else x.dtype
        size = moved((x,), (dense((out,), dtype or whole),))
    return Work(each * x.size if x.category != dtypes.COMPLEX else None, size)


def _reduced_to(call: Call, x: Tensor, dims: int, keepdim: int) -> int | None:
    """Elements of a reduction's result, None if its dimensions are not told."""
    given = [t for t in map(call.tensor, range(1, len(call.inputs))) if t is not None]
    if given:
        return given[-1].size or None
    said = call.value(dims)
    if len(call.inputs) <= keepdim and not isinstance(said, list):
        return 1  # there is no place for dimensions: all of it
    if isinstance(said, int) and not isinstance(said, bool):
        said = [said]
    rank = len(x.shape)
    if not isinstance(said, list) or not all(type(d) is int and -rank <= d < rank for d in said):
        return None
    gone = {d % rank for d in said} if said else set(range(rank))
    return math.prod(n for i, n in enumerate(x.shape) if i not in gone)


def normalised(call: Call, each: int | None, weights: Sequence[int] = ()) -> Work:
    """A norm or a running sum: what goes in, weights, and a result of the same shape."""
    data = call.tensor(0)
    if data is None:
        return UNKNOWN
    flops = _flops([data], each, data.size)
    return Work(flops, moved((data, *map(call.tensor, weights)), (like(data),)))


def batch_norm(call: Call) -> Work:
    """Batch normalisation; in evaluation mean and variance are at hand."""
    training = call.value(5)
    each = {True: 7, False: 4}.get(training) if isinstance(training, bool) else None
    return normalised(call, each, weights=(1, 2))


def softmax(call: Call) -> Work:
    """``_softmax(input, dim, half_to_float)``: subtract the greatest, exp, sum, divide."""
    data, widened = call.tensor(0), call.value(2)
    if data is None:
        return UNKNOWN
    if not isinstance(widened, bool):  # then half precision may or may not become single
        return normalised(call, 4) if data.dtype == "float" else Work(4 * data.size)
    out = like(data, "float" if widened else None)
    return Work(4 * data.size, moved((data,), (out,)))


def gradient(call: Call, each: int | None, read: Sequence[int], like_: int) -> Work:
    """A gradient of the shape of one operand, from several."""
    target = call.tensor(like_)
    operands = [call.tensor(i) for i in read]
    if target is None or operands[0] is None:
        return UNKNOWN
    flops = _flops([target], each, target.size)
    return Work(flops, moved(operands, (like(target),)))


def pooled_gradient(call: Call) -> Work:
    """``max_pool2d_with_indices_backward(gradient, input, …, indices)``."""
    grad, x, index = call.tensor(0), call.tensor(1), call.tensor(7)
    if grad is None or x is None or index is None:
        return UNKNOWN
    return Work(0, moved((grad, index), (like(x),)))


def pooled(call: Call) -> Work:
    """``max_pool2d_with_indices(input, kernel, stride, padding, dilation, ceil)``."""
    x, ceil = call.tensor(0), call.value(5)
    kernel, stride, padding, dilation = (call.whole(i, 2) for i in range(1, 5))
    stride = stride or (kernel if call.value(2) == [] else None)
    if x is None or kernel is None or stride is None or padding is None or dilation is None:
        return UNKNOWN
    if ceil is not False or 0 in stride or len(x.shape) < len(kernel):
        return Work(0)
    rows = zip(x.shape[-2:], kernel, stride, padding, dilation, strict=True)
    sizes = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in rows]
    out = dense((*x.shape[:-2], *sizes), x.dtype)
    return Work(0, moved((x,), (out, like(out, _INDEX)))) if min(sizes) > 0 else Work(0)


def updated(call: Call, each: int, states: int) -> Work:
    """A fused optimizer: parameters and `states` lists behind the gradients are renewed."""
    lists = [call.tensors(i) for i in range(2 + states)]
    greatest = states == _ADAM and call.tensors(2 + states)
    if greatest or not all(len(tensors) == len(lists[0]) > 0 for tensors in lists):
        return UNKNOWN
    renewed = [t for tensors in (lists[0], *lists[2:]) for t in tensors]
    flops = each * sum(t.size for t in lists[0])
    return Work(flops, moved((*lists[1], *renewed), renewed))


def descended(call: Call) -> Work:
    """``_fused_sgd_``: 2 operations an element, 2 more with momentum."""
    return updated(call, 4, 1) if call.tensors(2) else updated(call, 2, 0)


def unscaled(call: Call) -> Work:
    """``_amp_foreach_non_finite_check_and_unscale_``: gradients times a number, in place."""
    tensors = call.tensors(0)
    return Work(sum(t.size for t in tensors), moved(tensors, tensors)) if tensors else UNKNOWN


def dropped(call: Call) -> Work:
    """``native_dropout``: a result and a mask; a multiplication an element."""
    x = call.tensor(0)
    if x is None:
        return UNKNOWN
    return Work(x.size if floating(x) else None, moved((x,), (like(x), like(x, "bool"))))


_FREE_1 = "relu|relu6|hardtanh|neg|abs|sign|floor|ceil|round|trunc|tril|triu"
_FREE_2 = "clamp_min|clamp_max|maximum|minimum|fmax|fmin"
_FREE_3 = "clamp|masked_fill"
_TRUTHS_1 = "isnan|isinf|isfinite|logical_not|signbit"
_TRUTHS_2 = "eq|ne|lt|le|gt|ge|logical_and|logical_or|logical_xor"
_WHOLE = "bitwise_and|bitwise_or|bitwise_xor|__and__|__or__|__xor__"
_ONE_1 = (
    "sqrt|rsqrt|exp|exp2|expm1|log|log2|log10|log1p|sin|cos|tan|asin|acos|atan|sinh|cosh|tanh"
    "|erf|erfc|erfinv|sigmoid|reciprocal|lgamma|digamma"
)
_ONE_2 = "add|sub|rsub|mul"
_DIVISIONS = "div|true_divide|atan2"


def _each(
    names: str, each: int | None, operands: int, *, truth: bool = False
) -> list[tuple[str, Rule]]:
    """Rules of functions, of their in-place forms and of those over lists."""
    out = partial(mapped, each=each, operands=operands, truth=truth)
    same = partial(mapped, each=each, operands=operands, in_place=True)
    return [
        (rf"aten::({names})", out),
        (rf"aten::({names})_", same),
        (rf"aten::_foreach_({names})", out),
        (rf"aten::_foreach_({names})_", same),
    ]


if TYPE_CHECKING:
    Rule = Callable[[Call], Work]

_FUNCTIONS: tuple[tuple[str, Rule], ...] = (
    *_each(_FREE_1, 0, 1),
    *_each(_FREE_2, 0, 2),
    *_each(_FREE_3, 0, 3),
    *_each(_TRUTHS_1, 0, 1, truth=True),
    *_each(_TRUTHS_2, 0, 2, truth=True),
    *_each(_WHOLE, 0, 2),
    *_each(_ONE_2, 1, 2),
    *_each("pow", 1, 2),
    *_each("lerp", 3, 3),
    *_each("addcmul|addcdiv", 3, 3),
    *_each("silu", 2, 1),
    *_each("gelu", 5, 1),
    *_each("remainder|fmod|floor_divide|bitwise_not", None, 2),
    (rf"aten::({_ONE_1})", partial(functions, each=1)),
    (rf"aten::({_ONE_1})_", partial(mapped, each=1, in_place=True)),
    (rf"aten::_foreach_({_ONE_1})", partial(mapped, each=1)),
    (rf"aten::_foreach_({_ONE_1})_", partial(mapped, each=1, in_place=True)),
    (rf"aten::({_DIVISIONS})", partial(functions, each=1, operands=2)),
    (rf"aten::(_foreach_)?({_DIVISIONS})_", partial(mapped, each=1, operands=2, in_place=True)),
    (rf"aten::_foreach_({_DIVISIONS})", partial(mapped, each=1, operands=2)),
    (r"aten::where", partial(mapped, each=0, operands=3)),
    (r"aten::threshold_backward", partial(mapped, each=0, operands=2)),
    (r"aten::(tanh|sigmoid)_backward", partial(mapped, each=3, operands=2)),
    (r"aten::(gelu|silu)_backward", partial(mapped, each=None, operands=2)),
    (r"aten::mse_loss_backward", partial(gradient, each=3, read=(1, 2), like_=1)),
)

RULES: tuple[tuple[str, Rule], ...] = (
    *_FUNCTIONS,
    (
        r"aten::(fill_|zero_|normal_|uniform_|bernoulli_|random_|exponential_|_foreach_zero_)",
        filled,
    ),
    (r"aten::(_foreach_)?copy_", copied),
    (r"aten::(cat|_cat|stack)", joined),
    (r"aten::index_select", partial(taken, index=2)),
    (r"aten::embedding", partial(taken, index=1)),
    (r"aten::gather", gathered),
    (r"aten::embedding_dense_backward", rows_gradient),
    (r"aten::(sum|nansum|mean|prod)", partial(reduced, each=1)),
    (r"aten::(amax|amin)", partial(reduced, each=0)),
    (r"aten::(argmax|argmin)", partial(reduced, each=0, dtype=_INDEX)),
    (r"aten::(all|any)", partial(reduced, each=0, dtype="bool")),
    (r"aten::(linalg_vector_norm|norm)", partial(reduced, each=2, dims=2, keepdim=3)),
    (r"aten::(cumsum|logcumsumexp|cumprod)_?", partial(normalised, each=1)),
    # mean 1, variance 3, to the mean and to the deviation 1, weight and bias 2
    (r"aten::(native_)?layer_norm", partial(normalised, each=7, weights=(2, 3))),
    (r"aten::native_group_norm", partial(normalised, each=7, weights=(1, 2))),
    (
        r"aten::((native|miopen|cudnn)_batch_norm|_native_batch_norm_legit|_batch_norm_with_update)",
        batch_norm,
    ),
    # square and sum 2, to the root mean square 1, weight 1
    (r"aten::(_fused_)?rms_norm", partial(normalised, each=4, weights=(2,))),
    # sums for bias 1 and weight 4 (normalised 2, product, sum), input 4
    (r"aten::native_batch_norm_backward", partial(gradient, each=9, read=(0, 1, 2), like_=1)),
    (
        r"aten::(miopen|cudnn)_batch_norm_backward",
        partial(gradient, each=9, read=(0, 1, 2), like_=0),
    ),
    (
        r"aten::native_layer_norm_backward",
        partial(gradient, each=9, read=(0, 1, 5), like_=1),
    ),
    # from the greatest, exp, sum, quotient or, of the logarithm, difference
    (r"aten::_(log_)?softmax", softmax),
    (
        r"aten::_(log_)?softmax_backward_data",
        partial(gradient, each=4, read=(0, 1), like_=1),
    ),
    (r"aten::max_pool2d_with_indices_backward", pooled_gradient),
    (r"aten::max_pool2d_with_indices", pooled),
    (r"aten::native_dropout", dropped),
    (r"aten::_amp_foreach_non_finite_check_and_unscale_", unscaled),
    # two means 7, root, quotient and difference 6; AdamW shrinks parameters by 2 more
    (r"aten::_fused_adam_", partial(updated, each=13, states=2)),
    (r"aten::_fused_adamw_", partial(updated, each=15, states=2)),
    (r"aten::_fused_adagrad_", partial(updated, each=7, states=1)),
    (r"aten::_fused_sgd_", descended),
)
"""Operator, the whole name → its work."""
