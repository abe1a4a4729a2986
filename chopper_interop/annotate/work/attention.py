"""Work of fused attention.

For each query head, every pair of a query and a key that it attends to takes 2 D operations for the
score and 2 Dv for its part of the result (Dao et al., FlashAttention-2, 2023, section 4.1; there a
causal mask counts as a half, here pairs are counted). The backward pass does five such products
instead of two, as it computes the scores again (``torch.utils.flop_counter.sdpa_backward_flop``).
Softmax, masks and dropout are not counted. Bytes are queries, keys, values and the result, and
the gradients of all four in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from chopper_interop.annotate.work.calls import (
    UNKNOWN,
    Call,
    CallWork,
    Tensor,
    dense,
    is_floating,
    like,
    moved_bytes,
)

TOP_LEFT, BOTTOM_RIGHT = 1, 2
"""Causal masks: query i attends to keys up to i; or the last query up to the last key."""
_PACKED, _BATCHED = 3, 4
"""Dimensions of operands: all sequences concatenated, or a batch of equally long ones."""


class Operands(NamedTuple):
    """Indexes of the arguments of an attention operator; -1 for those that it does not have."""

    q: int
    heads_first: bool
    """True if operands are batch x heads x length x width; else length comes before heads."""
    causal: int = -1
    corner: int = BOTTOM_RIGHT
    """Mask that its flag selects; 0 if the argument is the number of the mask itself."""
    lengths: int = -1
    """Cumulative lengths of the sequences of queries; those of keys follow."""
    windows: int = -1
    """Keys to the left that a query attends to; to the right follows. Negative is unlimited."""
    bias: int = -1
    out: int = -1
    """Result of the forward pass, of a backward pass; gradient and q, k, v come before it."""


def pairs(queries: int, keys: int, mask: int = 0, left: int = -1, right: int = -1) -> int:
    """Count the pairs of a query and a key that it attends to.

    Parameters
    ----------
    queries, keys
        Lengths of the two sequences.
    mask
        0 for none, TOP_LEFT or BOTTOM_RIGHT.
    left, right
        Keys before and after its own that a query attends to; negative is all.
    """
    if mask:
        right = 0
    shift = 0 if mask == TOP_LEFT else keys - queries
    upto = queries * keys if right < 0 else _clamped_sum(queries, keys, shift + right + 1)
    return upto - (0 if left < 0 else _clamped_sum(queries, keys, shift - left))


def _clamped_sum(count: int, upper: int, shift: int) -> int:
    """Sum of i + `shift` over i from 0 to `count` - 1, each clamped to between 0 and `upper`."""
    # terms below 0 add nothing, those between are an arithmetic series, the rest are `upper` each
    first, last = max(shift, 0), min(shift + count, upper) - 1
    between = (first + last) * (last - first + 1) // 2 if last >= first else 0
    return between + upper * max(shift + count - max(shift, upper), 0)


def attention(call: Call, operands: Operands) -> CallWork:
    """Work of a forward pass or, if it has the result of the forward one, a backward pass."""
    q, k, v = (call.tensor(operands.q + i) for i in range(3))
    if q is None or k is None or v is None or not is_floating(q):
        return UNKNOWN
    sizes, mask = _sizes(call, operands, q, k), _mask(call, operands)
    if sizes is None or mask is None:
        return UNKNOWN
    batch, heads, queries, keys = sizes
    left, right = (_window(call, operands, side) for side in range(2))
    attended = batch * heads * pairs(queries, keys, mask, left, right)
    width, width_v = q.shape[-1], v.shape[-1]
    bias = call.tensor(operands.bias) if operands.bias >= 0 else None
    out = dense((*q.shape[:-1], width_v), q.dtype)
    if operands.out < 0:
        return CallWork(2 * attended * (width + width_v), moved_bytes((q, k, v, bias), (out,)))
    read = (out, out, q, k, v, bias)
    return CallWork(
        2 * attended * (3 * width + 2 * width_v), moved_bytes(read, (like(q), like(k), like(v)))
    )


def _sizes(
    call: Call, operands: Operands, q: Tensor, k: Tensor
) -> tuple[int, int, int, int] | None:
    """Batch, heads, queries and keys of each sequence; None if they are unknown."""
    lengths = call.tensor(operands.lengths) if operands.lengths >= 0 else None
    if len(q.shape) != len(k.shape):
        return None
    if lengths is not None and lengths.size:
        # lengths are on the GPU; but a single sequence is as long as the tensor
        single = lengths.shape == (2,)
        if not single or len(q.shape) not in (_PACKED, _BATCHED):
            return None
        return 1, q.shape[-2], q.size // max(q.shape[-1] * q.shape[-2], 1), k.shape[-3]
    if len(q.shape) != _BATCHED:
        return None
    heads, length = (1, 2) if operands.heads_first else (2, 1)
    return q.shape[0], q.shape[heads], q.shape[length], k.shape[length]


def _mask(call: Call, operands: Operands) -> int | None:
    """Mask of a call; None if its flag is unknown."""
    if operands.causal < 0:
        return 0
    flag: Any = call.value(operands.causal)
    if operands.corner == 0:
        return flag if type(flag) is int and flag in (0, TOP_LEFT, BOTTOM_RIGHT) else None
    return (operands.corner if flag else 0) if isinstance(flag, bool) else None


def _window(call: Call, operands: Operands, side: int) -> int:
    """Keys that a query attends to on one side; -1, unlimited, where unknown."""
    size = call.value(operands.windows + side) if operands.windows >= 0 else None
    return size if isinstance(size, int) else -1


_OPERANDS: tuple[tuple[str, Operands], ...] = (
    (r"aten::scaled_dot_product_attention", Operands(0, True, 5, TOP_LEFT, bias=3)),
    (r"aten::_scaled_dot_product_flash_attention(_for_cpu)?", Operands(0, True, 4)),
    (r"aten::_scaled_dot_product_efficient_attention", Operands(0, True, 6, TOP_LEFT, bias=3)),
    (r"aten::_scaled_dot_product_cudnn_attention", Operands(0, True, 6, TOP_LEFT, bias=3)),
    (
        r"aten::_scaled_dot_product_fused_attention_overrideable",
        Operands(0, True, 5, TOP_LEFT, bias=3),
    ),
    (r"aten::_flash_attention_forward", Operands(0, False, 8, lengths=3, windows=11)),
    (r"aten::_efficient_attention_forward", Operands(0, False, 9, corner=0, lengths=4, bias=3)),
    (
        r"aten::_scaled_dot_product_flash_attention_backward",
        Operands(1, True, 11, out=4, lengths=6),
    ),
    (
        r"aten::_scaled_dot_product_efficient_attention_backward",
        Operands(1, True, 11, TOP_LEFT, bias=4, out=5),
    ),
    (
        r"aten::_scaled_dot_product_cudnn_attention_backward",
        Operands(1, True, 14, TOP_LEFT, bias=8, out=4, lengths=9),
    ),
    (r"aten::_flash_attention_backward", Operands(1, False, 11, out=4, lengths=6)),
    (
        r"aten::_efficient_attention_backward",
        Operands(1, False, 14, corner=0, lengths=6, bias=4, out=5),
    ),
    (r"flash_attn::_flash_attn_forward", Operands(0, False, 5, windows=6)),
    (r"flash_attn::_flash_attn_varlen_forward", Operands(0, False, 9, windows=10, lengths=3)),
    (r"flash_attn::_flash_attn_backward", Operands(1, False, 11, windows=12, out=4)),
    (
        r"flash_attn::_flash_attn_varlen_backward",
        Operands(1, False, 15, windows=16, out=4, lengths=9),
    ),
    (r"aiter::(mha_fwd|fmha_v3_fwd|_flash_attn_forward)", Operands(0, False, 5, windows=6)),
    (r"aiter::(mha_bwd|fmha_v3_bwd)", Operands(1, False, 8, windows=9, out=4)),
    (r"aiter::_flash_attn_backward", Operands(1, False, 12, windows=13, out=4)),
)

RULES: tuple[tuple[str, Callable[[Call], CallWork]], ...] = tuple(
    (names, partial(attention, operands=operands)) for names, operands in _OPERANDS
)
"""Pattern of an operator's full name → rule that gives its work."""
