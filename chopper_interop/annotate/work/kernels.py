"""Shares of an operator's work that its kernels do, by their names, number and durations.

A library converts operands to the layout that it needs, fills workspace and sums partial results
by kernels of their own: none of these does any of the work that shapes determine.
"""

from __future__ import annotations

import re

import numpy as np

from chopper_interop.annotate.work.calls import MATRIX
from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.compiled import jit

HELPERS = re.compile(
    r"elementwise|transpose|SubTensorOp|OpTensor|reduce_kernel|splitKreduce|PostGSU|[Rr]educ(e|tion)"
    r"|scalePackedTensor|scale_?[Tt]ensor|computeOffsets|computeBOffsets|computeWgrad\w{0,64}?Offsets"
    r"|nchwToNhwc|nhwcToNchw|nchw_?2_?nhwc|generateWinogradTiles|winograd_nonfused|xform_|\b[Ii]m2[Cc]ol"
    r"|[Cc]ol2[Ii]m|[Mm]emset|(?<!re)[Ff]ill|(?<!oad)[Cc]ast|[Cc]opy|vectorized|convert_dq|dq_convert|ConvertQGrad|dot_do_o|OGradDotO|preprocess"
    r"|postprocess|tensor_reorder|convertTensor|kern_precompute|set_?zero|random|philox"
)
"""Names of kernels that prepare or finish the work of a product, convolution or attention."""

NAMED = re.compile(
    r"Cijk_|[Gg]emm|GEMM|[Gg]emv|cutlass|nvjet|xmma|wmma|[Cc]onv|igemm|[Ww]grad|[Dd]grad|[Ff]prop"
    r"|[Ww]inograd|[Aa]ttn|[Aa]ttention|[Ff]mha|[Ff]lash|dot_kernel|sgemm|Sp3|miopenSp|_mha|MatMul|matmul"
)
"""Names of kernels that do such work."""

_ENTRY = re.compile(r"(?:void )?ck_tile::kentry\w*<(?:\w+, ?)*(?=ck_tile::)")
"""Prefix of kernels of Composable Kernel, whose own name is a type parameter of the entry."""
_MANGLED_CHARS = 100
"""Characters of a mangled name that are searched, as it has no ``<`` at which its types begin.
Chosen: long enough for namespaces and the kernel's own name, too short for most of its types."""
NONE, HELPER, UNNAMED, WORKER = range(4)


def roles(names: list[str], code: Array) -> Array:
    """Role of each kernel: HELPER or WORKER, or UNNAMED if its name determines neither.

    Parameters
    ----------
    names
        Names of nodes.
    code
        Index of the name of each kernel.
    """
    used = gather.unique_codes(code)
    role = np.full(len(names), NONE, np.int8)
    role[used] = [_role(names[number]) for number in used.tolist()]
    return role[code]


def _role(name: str) -> int:
    if _is_helper(name):
        return HELPER
    return WORKER if NAMED.search(name) else UNNAMED


def _is_helper(name: str) -> bool:
    """True if a kernel is a helper by its own name, without the types in ``<>`` at its end."""
    own = name[:_MANGLED_CHARS] if name.startswith("_Z") else _ENTRY.sub("", name).split("<", 1)[0]
    return HELPERS.search(own) is not None


def work_shares(owner: Array, role: Array, priority: Array, parts: Array, dur: Array) -> Array:
    """Compute the share of its operator's work that each kernel does.

    Parameters
    ----------
    owner
        Number, from 0, of each kernel's operator; kernels of an operator need not be adjacent.
    role
        Role of each kernel, see `roles`.
    priority, parts
        Priority of each operator (see `work.calls`), and the equal parts of its work.
    dur
        Duration of each kernel, nanoseconds.

    Returns
    -------
    share
        Between 0 and 1, and 1 in sum over an operator; 0 for helpers. If there are as many workers
        as equal parts, each does one; otherwise shares are by duration.
    """
    count = len(priority)
    # of each operator the kernels with its most specific role work: named ones before unnamed
    best = np.zeros(count, np.int8)
    np.maximum.at(best, owner, role)
    works = (role == best[owner]) | (priority[owner] < MATRIX)
    workers = np.bincount(owner[works], minlength=count)
    time = np.bincount(owner[works], dur[works], minlength=count)
    even = (workers == parts) | (time <= 0)
    by_time = dur / np.maximum(time, 1)[owner]
    share = np.where(even[owner], 1 / np.maximum(workers, 1)[owner], by_time)
    return np.where(works, share, 0.0)


def divide(owner: Array, share: Array, total: Array) -> Array:
    """Divide integers of operators into integers of kernels, exactly; -1 where unknown."""
    return _divide(
        np.ascontiguousarray(owner, np.int64),
        np.ascontiguousarray(share, np.float64),
        np.ascontiguousarray(total, np.int64),
    )


# Compiled: rounding depends on what the operator's kernels before have got; they are not adjacent.
#   total 10, shares  1/3  1/3  1/3
#   reached           3.3  6.7  10      rounded down  3 6 10      parts  3 3 4
@jit
def _divide(owner: Array, share: Array, total: Array) -> Array:
    part = np.full(len(owner), -1, np.int64)
    assigned = np.zeros(len(total), np.int64)
    reached = np.zeros(len(total), np.float64)
    last = np.full(len(total), -1, np.int64)
    for k in range(len(owner)):
        o = owner[k]
        if total[o] >= 0 and share[k] > 0:
            reached[o] += share[k]
            upto = min(np.int64(total[o] * min(reached[o], 1.0)), total[o])
            part[k] = upto - assigned[o]
            assigned[o] = upto
            last[o] = k
    for o in range(len(total)):
        if last[o] >= 0:
            part[last[o]] += total[o] - assigned[o]
    return part
