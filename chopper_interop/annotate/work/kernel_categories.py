"""Categories of GPU work: matrix products, attention, normalization, …, and each collective.

The category of communication is that which the framework records, not by a kernel's name: one
kernel of RCCL or NCCL runs all collectives (``ncclDevKernel_Generic``). Kernels that compute are
categorized by their own name, before the types in ``<>``; if that is generic, by the full name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.edges.communication import COLLECTIVES
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa


MATMUL, CONVOLUTION, ATTENTION = "matmul", "convolution", "attention"
NORMALIZATION, ELEMENTWISE, OTHER = "normalization", "elementwise", "other"
COPY, FILL, COMMUNICATION = "copy", "fill", "communication"

_COMPUTE = (ATTENTION, NORMALIZATION, CONVOLUTION, MATMUL, ELEMENTWISE, OTHER)
_COLLECTIVES = tuple(dict.fromkeys(COLLECTIVES.values()))
CATEGORIES = (*_COMPUTE, COPY, FILL, COMMUNICATION, *_COLLECTIVES)
"""All categories; `COMMUNICATION` is that of an unknown collective."""

_HELPERS = (
    r"elementwise|multi_tensor|transpose|[sS]oft[mM]ax|reduce_kernel|splitKreduce|PostGSU|embedding|"
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
_OWN_NAME_RULES = (
    (ELEMENTWISE, _HELPERS),
    (ATTENTION, r"(?i:attn|attention|fmha|flash_?(?:fwd|bwd)|sage_fwd|sdpa|_mha|paged_kv)"),
    (CONVOLUTION, _CONVOLVES),
    (NORMALIZATION, r"(?i:norm)|\bbn_(?:fw|bw)|::bn_"),
    (MATMUL, _MULTIPLIES),
    (ELEMENTWISE, _MOVES),
)
"""Rules for a kernel's own name; the first match counts. The last one matches nearly all: kernels
without the name of an algorithm move or change elements."""
_FULL_NAME_RULES = (
    (ATTENTION, r"(?i:fmha|flash|attn|attention)"),
    (CONVOLUTION, r"(?i:[dw]grad|fprop|convol|implicit_?gemm)"),
    (MATMUL, r"(?i:gemm|gemv|matmul)"),
)
"""Rules for the full name, of kernels whose own name is that of a library alone."""
_GENERIC = r"(?i:cutlass|ck_tile|^void ck::|kentry|device_kernel|Kernel2)"
"""Own names of kernels that name their algorithm in their types only."""
_OWN_PART = r"^(?P<own>_Z.{0,98}|[^<]*)"
"""Own name: up to the types in ``<>``; of a mangled name, which has none, 100 characters."""
_RESULT = r"^std::enable_if<.*?>::type "
"""Type of a result that stands in front of a name and has types of its own."""
_NOT_OWN = r"(?i:fbgemm(?:_gpu)?::)|\(anonymous namespace\)::|\(.*$"
"""Libraries named after the work of only some of their kernels, and parameters of functions."""


def name_categories(names: pa.Array) -> Array:
    """Category of each of these names of kernels that compute: indexes into `CATEGORIES`."""
    import pyarrow.compute as pc

    names = pc.replace_substring_regex(names, _RESULT, "")
    own = pc.struct_field(pc.extract_regex(names, _OWN_PART), "own")
    own = pc.replace_substring_regex(own, _NOT_OWN, "")
    is_generic = np.asarray(pc.match_substring_regex(own, _GENERIC))
    by_full, by_own = _first_match(names, _FULL_NAME_RULES), _first_match(own, _OWN_NAME_RULES)
    other = CATEGORIES.index(OTHER)
    return np.where(is_generic & (by_full != other), by_full, by_own)


def node_categories(trace: Trace, rows: Array) -> Array:
    """Category of each of these nodes: indexes into `CATEGORIES`, -1 unless GPU work."""
    kind = trace.array("kind")[rows]
    category = np.full(len(rows), -1, np.int64)
    category[kind == Kind.MEMCPY] = CATEGORIES.index(COPY)
    category[kind == Kind.MEMSET] = CATEGORIES.index(FILL)
    computes = np.flatnonzero(kind == Kind.KERNEL)
    code, texts = trace.array("name")[rows[computes]], trace.names()
    used = gather.unique_codes(code)
    of_name = np.full(len(texts), -1)
    if used.size:
        of_name[used] = name_categories(arrow.texts(texts[n] for n in used.tolist()))
        category[computes] = of_name[code]
    communicates = np.flatnonzero(kind == Kind.COMM)
    category[communicates] = _collective_categories(trace, rows[communicates])
    return category


def _collective_categories(trace: Trace, rows: Array) -> Array:
    """Category of each node by its collective, `COMMUNICATION` where that is unknown."""
    unknown = CATEGORIES.index(COMMUNICATION)
    codes, names = trace.texts("collective", rows)
    table = [CATEGORIES.index(name) if name in CATEGORIES else unknown for name in names]
    return np.array([*table, unknown])[codes]


def _first_match(names: pa.Array, rules: tuple[tuple[str, str], ...]) -> Array:
    import pyarrow.compute as pc

    category = np.full(len(names), CATEGORIES.index(OTHER))
    for name, pattern in reversed(rules):  # the first rule is applied last, over all others
        matches = np.asarray(pc.match_substring_regex(names, pattern))
        category[matches] = CATEGORIES.index(name)
    return category
