"""What GPU work does: matrix products, attention, normalization, …, and each kind of communication.

Communication is told by what the framework says of it, not by a kernel's name: one kernel of RCCL
or NCCL runs all collectives (``ncclDevKernel_Generic``). Kernels that compute are told by their own
name, before the types in ``<>``; where that says nothing, by the whole name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chopper_interop.columns import arrow, gather
from chopper_interop.edges.collective_names import COLLECTIVES
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

MATMUL, CONVOLUTION, ATTENTION = "matmul", "convolution", "attention"
NORMALIZATION, ELEMENTWISE, OTHER = "normalization", "elementwise", "other"
COPY, FILL, COMMUNICATION = "copy", "fill", "communication"

_COMPUTE = (ATTENTION, NORMALIZATION, CONVOLUTION, MATMUL, ELEMENTWISE, OTHER)
_COLLECTIVES = tuple(dict.fromkeys(COLLECTIVES.values()))
CATEGORIES = (*_COMPUTE, COPY, FILL, COMMUNICATION, *_COLLECTIVES)
"""All of them; `COMMUNICATION` is that of which nothing says which it is."""

_HELPERS = (
    r"elementwise|multi_tensor|transpose|softmax|reduce_kernel|splitKreduce|PostGSU|embedding|"
    r"dropout|CatArray|SubTensorOp|OpTensor|scalePackedTensor|[nN]chw_?(?:[tT]o|2)_?[nN]hwc|"
    r"[nN]hwc_?(?:[tT]o|2)_?[nN]chw|rocclr_|Offsets?Kernel|rotary|distribution_|"
    r"[nN]ormal(?:$|[^i])|clip_grad|grad_norm|GradNorm"
)
_CONVOLVES = (
    r"(?i:igemm|convol|conv[0-9_]|[0-9]dconv|asmconv|winograd|[dw]grad|fprop|implicit_gemm|im2col|"
    r"col2im|scudnn|xdnn)|Conv(?:$|[^e])"
)
_MULTIPLIES = (
    r"Cijk_|(?i:gemm|gemv|matmul|nvjet|wmma|triton_(?:tem|mm)_)|\bdot_kernel|"
    r"(?i:(?:^|[^a-z])b?(?:add)?b?mm(?:$|[^a-z])|fused_moe_kernel|wvSplitK)"
)
_MOVES = (
    r"triton_|reduce|[kK]ernel|pool|scan|sort|index|[cC]opy|[fF]ill|cast|scatter|gather|permute|"
    r"[sS]wiglu|[gG]elu|[sS]ilu"
)
_OWN = (
    (ELEMENTWISE, _HELPERS),
    (ATTENTION, r"(?i:attn|attention|fmha|flash_?(?:fwd|bwd)|sdpa|_mha|paged_kv)"),
    (CONVOLUTION, _CONVOLVES),
    (NORMALIZATION, r"(?i:norm)|\bbn_(?:fw|bw)|::bn_"),
    (MATMUL, _MULTIPLIES),
    (ELEMENTWISE, _MOVES),
)
"""By a kernel's own name; the first that fits. The last one fits nearly all: what has no name of an
algorithm moves or changes elements."""
_WHOLE = (
    (ATTENTION, r"(?i:fmha|flash|attn|attention)"),
    (CONVOLUTION, r"(?i:[dw]grad|fprop|convol|implicit_?gemm)"),
    (MATMUL, r"(?i:gemm|gemv|matmul)"),
)
"""By the types of it, for kernels of which the own name is that of a library alone."""
_FRAME = r"(?i:cutlass|ck_tile|^void ck::|kentry|device_kernel|Kernel2)"
"""Own names of kernels that say what they do in their types alone."""
_OWN_PART = r"^(?P<own>_Z.{0,98}|[^<]*)"
_NOT_OWN = r"(?i:fbgemm(?:_gpu)?::)|\(anonymous namespace\)::|\(.*$"
"""Libraries named after what only some of their kernels do, and parameters."""


def of_names(names: pa.Array) -> Array:
    """Category of each of these names of kernels that compute: numbers into `CATEGORIES`.

    Parameters
    ----------
    names
        Texts.
    """
    own = pc.struct_field(pc.extract_regex(names, _OWN_PART), "own")
    own = pc.replace_substring_regex(own, _NOT_OWN, "")
    framed = np.asarray(pc.match_substring_regex(own, _FRAME))
    of_whole, of_own = _first_fit(names, _WHOLE), _first_fit(own, _OWN)
    other = CATEGORIES.index(OTHER)
    return np.where(framed & (of_whole != other), of_whole, of_own)


def of(trace: Trace, rows: Array) -> Array:
    """Category of each of these nodes, as a number into `CATEGORIES`; -1 of what is no GPU work.

    Parameters
    ----------
    trace
        Any trace.
    rows
        Rows of its nodes.
    """
    kind = trace.array("kind")[rows]
    found = np.full(len(rows), -1, np.int64)
    found[kind == Kind.MEMCPY] = CATEGORIES.index(COPY)
    found[kind == Kind.MEMSET] = CATEGORIES.index(FILL)
    computes = np.flatnonzero(kind == Kind.KERNEL)
    code, texts = trace.array("name")[rows[computes]], trace.names()
    used = gather.used(code)
    of_name = np.full(len(texts), -1)
    if used.size:
        of_name[used] = of_names(arrow.texts(texts[n] for n in used.tolist()))
        found[computes] = of_name[code]
    communicates = np.flatnonzero(kind == Kind.COMM)
    found[communicates] = _of_collectives(trace, rows[communicates])
    return found


def _of_collectives(trace: Trace, rows: Array) -> Array:
    """By the collective that is known of each node."""
    unknown = CATEGORIES.index(COMMUNICATION)
    if "collective" not in trace.nodes.column_names:
        return np.full(len(rows), unknown)
    column = arrow.flat(trace.nodes["collective"])
    told = column.dictionary.to_pylist()
    table = [CATEGORIES.index(name) if name in CATEGORIES else unknown for name in told]
    return np.array([*table, unknown])[arrow.numbers(column, -1)[rows]]


def _first_fit(names: pa.Array, rules: tuple[tuple[str, str], ...]) -> Array:
    found = np.full(len(names), CATEGORIES.index(OTHER))
    for category, pattern in reversed(rules):
        fits = np.asarray(pc.match_substring_regex(names, pattern))
        found[fits] = CATEGORIES.index(category)
    return found
