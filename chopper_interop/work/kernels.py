"""Which of an operator's kernels does its work, by their names and how many there are.

A library brings operands into the layout that it wants, fills workspace and adds up partial
results by kernels of their own: what shapes ask for is the work of none of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.work.rules import MATRIX

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

HELPERS = re.compile(
    r"elementwise|transpose|SubTensorOp|OpTensor|reduce_kernel|splitKreduce|PostGSU|[Rr]educ(e|tion)"
    r"|scalePackedTensor|scale_?[Tt]ensor|computeOffsets|computeBOffsets|computeWgrad\w*Offsets"
    r"|nchwToNhwc|nhwcToNchw|nchw_?2_?nhwc|generateWinogradTiles|winograd_nonfused|xform_|\b[Ii]m2[Cc]ol"
    r"|[Cc]ol2[Ii]m|[Mm]emset|(?<!re)[Ff]ill|(?<!oad)[Cc]ast|[Cc]opy|vectorized|convert_dq|dq_convert|ConvertQGrad|dot_do_o|OGradDotO|preprocess"
    r"|postprocess|tensor_reorder|convertTensor|kern_precompute|set_?zero|random|philox",
)
"""Names of kernels that prepare or finish the work of a product, convolution or attention."""

NAMED = re.compile(
    r"Cijk_|[Gg]emm|GEMM|[Gg]emv|cutlass|nvjet|xmma|wmma|[Cc]onv|igemm|[Ww]grad|[Dd]grad|[Ff]prop"
    r"|[Ww]inograd|[Aa]ttn|[Aa]ttention|[Ff]mha|[Ff]lash|dot_kernel|sgemm|Sp3|miopenSp|_mha|MatMul|matmul"
)
"""Names of kernels that do such work."""

_ENTRY = re.compile(r"(?:void )?ck_tile::kentry\w*<(?:\w+, ?)*(?=ck_tile::)")
"""What stands before the name of a kernel of Composable Kernel, which is a type of its entry."""
_MANGLED = 100
"""Characters of a mangled name within which a kernel's own name ends, and types begin."""
NONE, HELPER, UNNAMED, WORKER = range(4)


def roles(names: list[str], code: Array) -> Array:
    """Whether each kernel is a HELPER or a WORKER; UNNAMED if its name tells neither.

    Parameters
    ----------
    names
        Names.
    code
        Of each kernel, which of them is its own.
    """
    used = np.unique(code)
    role = np.full(len(names), NONE, np.int8)
    role[used] = [_role(names[number]) for number in used.tolist()]
    return role[code]


def _role(name: str) -> int:
    if _helps(name):
        return HELPER
    return WORKER if NAMED.search(name) else UNNAMED


def _helps(name: str) -> bool:
    """Whether a kernel helps; what is between ``<>`` are only types of it, and stands last."""
    own = name[:_MANGLED] if name.startswith("_Z") else _ENTRY.sub("", name).split("<", 1)[0]
    return HELPERS.search(own) is not None


def shares(owner: Array, role: Array, rank: Array, parts: Array, dur: Array) -> Array:
    """Share of its operator's work that each kernel does.

    Parameters
    ----------
    owner
        For each kernel its operator, as a number from 0; kernels of an operator need not be
        next to each other.
    role
        Of each kernel, see `roles`.
    rank, parts
        Of each operator: its rank of `work.rules`, and the equal parts that its work has.
    dur
        Of each kernel, in nanoseconds.

    Returns
    -------
    share
        Between 0 and 1, those of an operator sum up to 1; 0 for what only helps. Equal parts are
        a kernel's each; otherwise shares are by time.
    """
    count = len(rank)
    best = np.zeros(count, np.int8)
    np.maximum.at(best, owner, role)
    works = (role == best[owner]) | (rank[owner] < MATRIX)
    workers = np.bincount(owner[works], minlength=count)
    time = np.bincount(owner[works], dur[works], minlength=count)
    even = (workers == parts) | (time <= 0)
    by_time = dur / np.maximum(time, 1)[owner]
    share = np.where(even[owner], 1 / np.maximum(workers, 1)[owner], by_time)
    return np.where(works, share, 0.0)


def divided(owner: Array, share: Array, whole: Array) -> Array:
    """Whole numbers by kernel that sum up to what the operators have; -1 where that is unknown."""
    return _divided(
        np.ascontiguousarray(owner, np.int64),
        np.ascontiguousarray(share, np.float64),
        np.ascontiguousarray(whole, np.int64),
    )


@jit
def _divided(owner: Array, share: Array, whole: Array) -> Array:
    part = np.full(len(owner), -1, np.int64)
    given = np.zeros(len(whole), np.int64)
    reached = np.zeros(len(whole), np.float64)
    last = np.full(len(whole), -1, np.int64)
    for k in range(len(owner)):
        o = owner[k]
        if whole[o] >= 0 and share[k] > 0:
            reached[o] += share[k]
            upto = min(np.int64(whole[o] * min(reached[o], 1.0)), whole[o])
            part[k] = upto - given[o]
            given[o] = upto
            last[o] = k
    for o in range(len(whole)):
        if last[o] >= 0:
            part[last[o]] += whole[o] - given[o]
    return part
