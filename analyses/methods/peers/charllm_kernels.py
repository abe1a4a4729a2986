"""Kernel time by the categories of CharLLM-PPT (dad5f278), which depend on names alone.

Its figures sum the durations of all events of the category "kernel" in Kineto's files, by kernel
and file, and classify names by rules. Copies and fills are not among them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop import rank_batches
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.activity.grouping import Keys
from chopper_interop.analyses.methods.activity.totals import Totals
from chopper_interop.annotate.work import kernel_categories
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.errors import NoSuchDefinitionsError, UsageError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Collective, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    texts = arrow.texts(trace.names())
    of_names = categories(texts)
    chosen = windows.chosen_ranks(trace, ranks)
    totals, sums = Totals(), Counter({"count": 0})
    for _, part in rank_batches.batches(trace):
        rows = _kernel_rows(part, chosen)
        code, dur = part.array("name")[rows].astype(np.int64), part.array("dur")[rows]
        category = of_names[code] if len(rows) else np.zeros(0, np.int64)
        columns = {"rank": part.array("rank")[rows].astype(np.int64), "category": category}
        columns["kernel"] = code
        first, number = gather.distinct(*(columns[n] for n in names))
        keys = Keys(tuple(names), tuple(columns[n][first] for n in names), len(first))
        totals.add(totals.numbers(keys)[number], ns=dur, count=np.ones(len(rows), np.int64))
        sums.update(_compare_categories(part, rows, category))
    of_groups = totals.figures()
    total, count = of_groups["ns"], of_groups["count"]
    values = {
        "rank": lambda codes: arrow.array(codes.astype(np.int32)),
        "category": lambda codes: pa.array([CATEGORIES[c] for c in codes], pa.string()),
        "kernel": lambda codes: texts.take(pa.array(codes)),
    }
    table = pa.table(
        {name: values[name](codes) for name, codes in zip(names, totals.keys.codes, strict=True)}
        | {
            "occurrences": pa.array(count),
            "total_us": pa.array(total / 1000),
            "average_us": pa.array(total / np.maximum(count, 1) / 1000),
            "total_per_stage_us": pa.array(total / 1000 / pp),
        }
    )
    order = np.argsort(-total, kind="stable")
    summary = {
        "occurrences": sums["count"],
        "total_us": sums["ns"] / 1000,
        "differs_us": sums["differing_ns"] / 1000,
        "differs_share": sums["differing_ns"] / sums["ns"] if sums["ns"] else None,
        "communication_elsewhere_us": sums["elsewhere_ns"] / 1000,
    }
    notes = {} if sums["count"] else {"no rows": "the chosen ranks have no kernels"}
    notes["differs"] = (
        f"{sums['differing_ns'] / 1e6:.3f} ms of kernels are of another category here (by=category)"
    )
    return Result("kernels", arrow.take(table, order), summary, _conventions(pp), notes=notes)


def _kernel_rows(trace: Trace, ranks: Sequence[int]) -> Array:
    """Return the nodes that are kernels of the ranks, including those that communicate."""
    is_kernel = gather.is_any(trace.array("kind"), (Kind.KERNEL, Kind.COMM))
    return np.flatnonzero(is_kernel & np.isin(trace.array("rank"), ranks))


def _compare_categories(trace: Trace, rows: Array, category: Array) -> dict[str, int]:
    """Return sums for the summary, with the time of kernels that `by=category` classifies differently."""
    by_native = [_CATEGORY_OF_NATIVE.get(name, _OTHER) for name in kernel_categories.CATEGORIES]
    native = np.array(by_native)[kernel_categories.node_categories(trace, rows)]
    dur = trace.array("dur")[rows]
    comm = trace.array("kind")[rows] == Kind.COMM
    is_communication = np.isin(category, (_SEND, _GATHER, _REDUCE_SCATTER, _ALL_REDUCE))
    return {
        "count": len(rows),
        "ns": int(dur.sum()),
        "differing_ns": int(dur[native != category].sum()),
        "elsewhere_ns": int(dur[comm & ~is_communication].sum()),
    }


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
