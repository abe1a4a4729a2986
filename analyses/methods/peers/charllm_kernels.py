"""Kernel time by the categories of CharLLM-PPT (dad5f278), which depend on names alone.

Its figures sum the durations of all events of the category "kernel" in Kineto's files, by kernel
and file, and classify names by rules. Copies and fills are not among them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.annotate.work import kernel_categories
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.errors import NoSuchDefinitionsError, UsageError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Collective, Kind
from chopper_interop.trace import Trace

CATEGORIES = (
    "Compute (MatMul)", "SendRecv", "AllGather", "ReduceScatter", "AllReduce",
    "Memory/Elementwise", "Layer Norm", "Other",
)  # fmt: skip
"""Its names, in its order."""

_MATMUL, _SEND, _GATHER, _REDUCE_SCATTER, _ALL_REDUCE, _MEMORY, _NORM, _OTHER = range(8)
_COMMUNICATES = ("nccl", "communication")
_TRITON = ("triton_",)
_RULES: tuple[tuple[int, tuple[str, ...], tuple[str, ...]], ...] = (
    (_ALL_REDUCE, _COMMUNICATES, ("allreduce",)),
    (_REDUCE_SCATTER, _COMMUNICATES, ("reducescatter",)),
    (_GATHER, _COMMUNICATES, ("allgather",)),
    (_SEND, _COMMUNICATES, ("sendrecv", "broadcast")),
    (_MEMORY, (), ("pushsend", "pushrecv", "buffer", "userbuffer")),
    (_MEMORY, _TRITON, ("sum", "add", "mul", "div")),
    (_MATMUL, _TRITON, ("gemm",)),
    (_MATMUL, (), ("gemm", "sdpa", "matmul")),
    (_MEMORY, (), ("elementwise", "kernel")),
    (_NORM, (), ("norm",)),
)
"""Category, texts of which a lower-case name must contain one (if there are any), and further texts
of which it must contain one; the first rule that matches applies."""

_CATEGORY_OF_NATIVE = {
    kernel_categories.MATMUL: _MATMUL,
    kernel_categories.CONVOLUTION: _MATMUL,
    kernel_categories.ATTENTION: _MATMUL,
    kernel_categories.ELEMENTWISE: _MEMORY,
    kernel_categories.NORMALIZATION: _NORM,
    Collective.ALL_REDUCE: _ALL_REDUCE,
    Collective.ALL_GATHER: _GATHER,
    Collective.REDUCE_SCATTER: _REDUCE_SCATTER,
    Collective.SEND: _SEND,
    Collective.RECV: _SEND,
    Collective.SEND_RECV: _SEND,
    Collective.BROADCAST: _SEND,
}
"""CharLLM-PPT's category for each category of `work.kernel_categories`; all others are in "Other"."""
_BY = ("rank", "category", "kernel")


def categories(names: pa.Array) -> Array:
    """Classify names of kernels; the result has indices into `CATEGORIES`."""
    import pyarrow.compute as pc

    lower = pc.utf8_lower(names)
    result = np.full(len(names), _OTHER)
    for category, required, texts in reversed(_RULES):
        matches = _contains_any(lower, texts)
        result[matches & _contains_any(lower, required) if required else matches] = category
    return result


def kernels(trace: Trace, by: str, ranks: str, pp: int) -> Result:
    """Count kernels and sum their time (microseconds) as CharLLM-PPT does.

    Parameters
    ----------
    by
        "category" as in its Figure 10, "rank,category" as in its Figure 15, "kernel" or
        "rank,kernel" as in the table behind both.
    ranks
        As in `windows.chosen_ranks`.
    pp
        Degree of pipeline parallelism, by which the totals of categories are divided in Figure 10.
    """
    names = [name.strip() for name in by.split(",") if name.strip()]
    if not names or not set(names) <= set(_BY) or names == ["rank"]:
        raise NoSuchDefinitionsError(
            f"compat=charllm has no by={by}", hint=f"there are {', '.join(_BY)}"
        )
    if "kernel" in names and "category" not in names:
        names.append("category")  # follows from the kernel: rows stay the same
    if pp < 1:
        raise UsageError(f"pp={pp}: a degree of parallelism is 1 or more")
    rows = _kernel_rows(trace, ranks)
    code = trace.array("name")[rows]
    texts = arrow.texts(trace.names())
    category = categories(texts)[code] if len(rows) else np.zeros(0, np.int64)
    columns = {"rank": trace.array("rank")[rows], "category": category, "kernel": code}
    first, number = gather.distinct(*(columns[n].astype(np.int64) for n in names))
    total, count = np.zeros(len(first), np.int64), np.bincount(number, minlength=len(first))
    np.add.at(total, number, trace.array("dur")[rows])
    values = {
        "rank": lambda index: arrow.array(columns["rank"][index].astype(np.int32)),
        "category": lambda index: pa.array([CATEGORIES[c] for c in category[index]], pa.string()),
        "kernel": lambda index: texts.take(pa.array(code[index])),
    }
    table = pa.table(
        {name: values[name](first) for name in names}
        | {
            "occurrences": pa.array(count),
            "total_us": pa.array(total / 1000),
            "average_us": pa.array(total / np.maximum(count, 1) / 1000),
            "total_per_stage_us": pa.array(total / 1000 / pp),
        }
    )
    order = np.argsort(-total, kind="stable")
    summary, differing_ns = _compare_categories(trace, rows, category)
    notes = {} if len(rows) else {"no rows": "the chosen ranks have no kernels"}
    notes["differs"] = (
        f"{differing_ns / 1e6:.3f} ms of kernels are of another category here (by=category)"
    )
    return Result("kernels", arrow.take(table, order), summary, _conventions(pp), notes=notes)


def _kernel_rows(trace: Trace, ranks: str) -> Array:
    """Return the nodes that are kernels of the ranks, including those that communicate."""
    is_kernel = gather.is_any(trace.array("kind"), (Kind.KERNEL, Kind.COMM))
    chosen = np.zeros(len(is_kernel), np.bool_)
    for rank in windows.chosen_ranks(trace, ranks):
        chosen[trace.rank_rows[rank]] = True
    return np.flatnonzero(is_kernel & chosen)


def _compare_categories(trace: Trace, rows: Array, category: Array) -> tuple[dict[str, Any], int]:
    """Return sums for the summary, and the time of kernels that `by=category` classifies differently."""
    by_native = [_CATEGORY_OF_NATIVE.get(name, _OTHER) for name in kernel_categories.CATEGORIES]
    native = np.array(by_native)[kernel_categories.node_categories(trace, rows)]
    dur = trace.array("dur")[rows]
    differing_ns, total = int(dur[native != category].sum()), int(dur.sum())
    comm = trace.array("kind")[rows] == Kind.COMM
    is_communication = np.isin(category, (_SEND, _GATHER, _REDUCE_SCATTER, _ALL_REDUCE))
    return {
        "occurrences": len(rows),
        "total_us": total / 1000,
        "differs_us": differing_ns / 1000,
        "differs_share": differing_ns / total if total else None,
        "communication_elsewhere_us": int(dur[comm & ~is_communication].sum()) / 1000,
    }, differing_ns


def _conventions(pp: int) -> dict[str, str]:
    return {
        "definition": "CharLLM-PPT (dad5f278): kernels classified by their names in lower case, by the "
        "first of its rules that matches; each kernel's duration counts, even if kernels overlap",
        "window": "all of the trace",
        "links": "all kernels count, whether their launch is recorded or not",
        "memset": "left out, as the tool counts kernels alone",
        "copies": "left out, as memset; copies by kernels of the runtime (__amd_rocclr_*) count",
        "stages": f"total_per_stage_us is total_us by pp={pp}: the tool profiles one rank of each "
        "stage of a pipeline",
        "differs": "kernels that have another category here (by=category): "
        "collectives are classified by the framework's records, as a kernel of NCCL or RCCL that "
        "runs all of them (ncclDevKernel_Generic) is Memory/Elementwise by its name; rocBLAS's "
        "Cijk_* and convolutions are matrix products; and the tool's rule for 'kernel' "
        "(Memory/Elementwise) precedes its rule for norm",
    }


def _contains_any(lower: pa.Array, texts: tuple[str, ...]) -> Array:
    import pyarrow.compute as pc

    result = np.zeros(len(lower), np.bool_)
    for text in texts:
        result |= np.asarray(pc.match_substring(lower, text))
    return result
