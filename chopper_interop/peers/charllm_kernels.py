"""Kernel time by the categories of CharLLM-PPT (dad5f278): by names alone.

Its figures add up the durations of all events of the category "kernel" in Kineto's files, by kernel
and file, and sort names by eight rules. Copies and fills are not among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chopper_interop.activity import windows
from chopper_interop.columns import arrow, gather
from chopper_interop.errors import NoSuchDefinitionsError, UsageError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Collective, Kind
from chopper_interop.work import kernel_categories

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
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
"""Category of a name in lower case that holds one of the first texts, if there are any, and one of
the second; the first that fits counts."""

_OURS = {
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
"""Which of its categories ours are in; all others are in "Other"."""
_BY = ("rank", "category", "kernel")


def categories(names: pa.Array) -> Array:
    """Category of each of these names of kernels: numbers into `CATEGORIES`."""
    lower = pc.utf8_lower(names)
    found = np.full(len(names), _OTHER)
    for category, needed, texts in reversed(_RULES):
        fits = _holds(lower, texts)
        found[fits & _holds(lower, needed) if needed else fits] = category
    return found


def kernels(trace: Trace, by: str, ranks: str, pp: int) -> Result:
    """Occurrences and time of kernels as CharLLM-PPT counts them, in microseconds.

    Parameters
    ----------
    trace
        Any trace.
    by
        "category" as its Figure 10, "rank,category" as its Figure 15, "kernel" or "rank,kernel" as
        the table that both are made of.
    ranks
        As of `windows.chosen_ranks`.
    pp
        Degree of pipeline parallelism, by which the totals of categories are divided in Figure 10.
    """
    names = [name.strip() for name in by.split(",") if name.strip()]
    if not names or not set(names) <= set(_BY) or names == ["rank"]:
        raise NoSuchDefinitionsError(
            f"compat=charllm has no by={by}", hint=f"there are {', '.join(_BY)}"
        )
    if "kernel" in names and "category" not in names:
        names.append("category")  # that of the kernel: rows stay the same
    if pp < 1:
        raise UsageError(f"pp={pp}: a degree of parallelism is a number from 1 on")
    rows = _counted(trace, ranks)
    code = trace.array("name")[rows]
    texts = arrow.texts(trace.names())
    category = categories(texts)[code] if len(rows) else np.zeros(0, np.int64)
    columns = {"rank": trace.array("rank")[rows], "category": category, "kernel": code}
    first, number = gather.distinct(*(columns[n].astype(np.int64) for n in names))
    total, count = np.zeros(len(first), np.int64), np.bincount(number, minlength=len(first))
    np.add.at(total, number, trace.array("dur")[rows])
    values = {
        "rank": lambda at: arrow.array(columns["rank"][at].astype(np.int32)),
        "category": lambda at: pa.array([CATEGORIES[c] for c in category[at]], pa.string()),
        "kernel": lambda at: texts.take(pa.array(code[at])),
    }
    made = pa.table(
        {name: values[name](first) for name in names}
        | {
            "occurrences": pa.array(count),
            "total_us": pa.array(total / 1000),
            "average_us": pa.array(total / np.maximum(count, 1) / 1000),
            "total_per_stage_us": pa.array(total / 1000 / pp),
        }
    )
    order = np.argsort(-total, kind="stable")
    summary, apart = _told_apart(trace, rows, category)
    notes = {} if len(rows) else {"no rows": "there are no kernels in what was asked about"}
    notes["differs"] = f"{apart / 1e6:.3f} ms of kernels are of another category here (by=category)"
    return Result("kernels", arrow.take(made, order), summary, _conventions(pp), notes=notes)


def _counted(trace: Trace, ranks: str) -> Array:
    """Rows of kernels, those that communicate among them."""
    which = np.isin(trace.array("kind"), [int(Kind.KERNEL), int(Kind.COMM)])
    chosen = np.zeros(len(which), np.bool_)
    for rank in windows.chosen_ranks(trace, ranks):
        chosen[trace.rank_rows[rank]] = True
    return np.flatnonzero(which & chosen)


def _told_apart(trace: Trace, rows: Array, category: Array) -> tuple[dict[str, Any], int]:
    """Sums, and how long kernels ran that we have in another category."""
    of_ours = [_OURS.get(name, _OTHER) for name in kernel_categories.CATEGORIES]
    ours = np.array(of_ours)[kernel_categories.of(trace, rows)]
    dur = trace.array("dur")[rows]
    apart, total = int(dur[ours != category].sum()), int(dur.sum())
    comm = trace.array("kind")[rows] == Kind.COMM
    told = np.isin(category, (_SEND, _GATHER, _REDUCE_SCATTER, _ALL_REDUCE))
    return {
        "occurrences": len(rows),
        "total_us": total / 1000,
        "differs_us": apart / 1000,
        "differs_share": apart / total if total else None,
        "communication_elsewhere_us": int(dur[comm & ~told].sum()) / 1000,
    }, apart


def _conventions(pp: int) -> dict[str, str]:
    return {
        "definition": "CharLLM-PPT (dad5f278): kernels sorted by their names in lower case, the "
        "first of its rules that fits; each kernel's duration counts, whatever runs beside it",
        "window": "all of the trace",
        "links": "all kernels count, whether their launch is recorded or not",
        "memset": "left out, as the tool counts kernels alone",
        "copies": "left out, as memset; copies by kernels of the runtime (__amd_rocclr_*) count",
        "stages": f"total_per_stage_us is total_us by pp={pp}: the tool profiles one rank of each "
        "stage of a pipeline",
        "differs": "kernels that are of another category here (by=category): "
        "collectives are told by what the framework says of them, as a kernel of NCCL or RCCL that "
        "runs all of them (ncclDevKernel_Generic) is under Memory/Elementwise by its name; rocBLAS's "
        "Cijk_* and convolutions are products of matrices, and the tool takes a kernel with "
        "'kernel' in its name to move memory before it asks for norm",
    }


def _holds(lower: pa.Array, texts: tuple[str, ...]) -> Array:
    found = np.zeros(len(lower), np.bool_)
    for text in texts:
        found |= np.asarray(pc.match_substring(lower, text))
    return found
