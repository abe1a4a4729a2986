"""FLOPs and bytes that operators ask for by their shapes, and the GPU work that they launch.

Of operators that nest, the innermost with a rule has the work (``linear`` calls ``addmm``), so
that sums count nothing twice; its kernels share it, and helpers among them have none (see
`work.kernels`). What no rule covers or no shapes tell is null. The rules and their sources:
`work.matrix`, `work.attention`, `work.elements`. Peers count the same for products, convolutions
and attention: PyTorch's ``torch.utils.flop_counter`` and TraceLens' performance models.

Copies on the GPU move their bytes twice, out of one memory and into another; fills once. Of a
collective, bytes are its size as nccl-tests defines it (doc/PERFORMANCE.md): what each rank puts
into an all-reduce, a broadcast, a reduce-scatter, an all-to-all or a send, and what it gets of an
all-gather.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from chopper_interop import arguments, stated
from chopper_interop.columns import arrow, gather
from chopper_interop.columns.compiled import jit
from chopper_interop.columns.members import is_any
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.work import convolutions
from chopper_interop.work import kernels as work_kernels
from chopper_interop.work import rules as work_rules
from chopper_interop.work.calls import call
from chopper_interop.work.sizes import UNKNOWN, Work

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace
    from chopper_interop.work.calls import Call

DIVIDED = Fault(
    "work-divided-by-time",
    Severity.INFO,
    "Kernels that together do the work of one operator: its FLOPs and bytes by shapes were "
    "divided among them by their durations.",
)
UNTOLD = Fault(
    "work-unknown",
    Severity.INFO,
    "Kernels that compute and whose FLOPs no rule gives, or no shapes tell.",
)
INFERRED = Fault(
    "work-shape-inferred",
    Severity.INFO,
    "Convolutions whose stride, or the shape of whose weight, is not told: it was taken from calls "
    "of gradients with the same other shapes.",
)

_KEYS = ("Input Dims", "Input type", "Input Strides", "Output Dims", "Output type")
_OLD_DIMS = "Input dims"
"""As Kineto wrote it in early 2021."""
_CONCRETE, _VALUES = "Concrete Inputs", "Input Values"
"""The same in two formats; the second holds the numbers of tensors, which differ each time."""


class _Counted(NamedTuple):
    """What each node asks for by its own shapes; -1 where that is not known."""

    flops: Array
    bytes: Array
    parts: Array
    rank: Array
    """Rank of the rule that gave it; 0 where none did."""


def columns(trace: Trace, issues: IssueLog) -> dict[str, pa.Array]:
    """Columns `flops` and `mem_bytes` of operators, and of the GPU work that they launch.

    Parameters
    ----------
    trace
        Any trace; columns in which all its ranks have values are not made again.
    issues
        Where it is told what was assumed, and of how much nothing is known.
    """
    wanted = stated.lacking(trace, ("flops", "mem_bytes"))
    if not wanted:
        return {}
    flops, size = _owned(trace, _operators(trace))
    _moves(trace, flops, size)
    found = {"flops": flops, "mem_bytes": size}
    made = {k: arrow.array(v, mask=v < 0) for k in wanted if ((v := found[k]) >= 0).any()}
    if "flops" in made:
        _note(stated.filled(trace, made), issues)
    return made


def _operators(trace: Trace) -> _Counted:
    """Work of each operator by itself, whatever is within it."""
    n = trace.nodes.num_rows
    counted = _Counted(
        np.full(n, -1, np.int64),
        np.full(n, -1, np.int64),
        np.ones(n, np.int8),
        np.zeros(n, np.int8),
    )
    rules = [work_rules.rule(name) for name in trace.names()]
    ranks = np.array([0 if r is None else r[0] for r in rules] or [0], np.int8)
    name = trace.array("name")
    ruled = (trace.array("kind") == Kind.CPU_OP) & (ranks[name] > 0)
    nodes = np.flatnonzero(ruled & (trace.array("args_len") > 0))
    if not nodes.size:
        return counted
    first, code, told = _calls(trace, nodes)
    names = trace.names()
    work = _works([names[name[nodes[row]]] for row in first.tolist()], told)
    for column, field in ((counted.flops, "flops"), (counted.bytes, "bytes")):
        values = [getattr(w, field) for w in work]
        column[nodes] = np.array([_int64(value) for value in values], np.int64)[code]
    counted.parts[nodes] = np.array([w.parts for w in work], np.int8)[code]
    known = (counted.flops[nodes] >= 0) | (counted.bytes[nodes] >= 0)
    counted.rank[nodes] = np.where(known, ranks[name[nodes]], 0)
    return counted


def _int64(value: int | None) -> int:
    return value if value is not None and 0 <= value < 1 << 63 else -1


def _calls(trace: Trace, nodes: Array) -> tuple[Array, Array, list[dict[str, Any]]]:
    """Distinct calls among nodes: rows of their first, which of them each node is, arguments."""
    keys = (*_KEYS, _CONCRETE, _VALUES, _OLD_DIMS)
    found = dict(zip(keys, arguments.find(trace, nodes, *keys), strict=True))
    dims, old = found["Input Dims"], found.pop(_OLD_DIMS)
    missing = dims.length == 0
    dims.at[missing], dims.length[missing] = old.at[missing], old.length[missing]
    needed = np.array([work_rules.by_values(name) for name in trace.names()], np.bool_)
    unused = ~needed[trace.array("name")[nodes]] | (found[_CONCRETE].length > 0)
    found[_VALUES].length[unused | (dims.length == 0)] = 0
    decoded = {key: arguments.values_at(trace.text, place) for key, place in found.items()}
    first, code = gather.distinct(
        trace.array("name")[nodes], *(codes for codes, _ in decoded.values())
    )
    told = [
        {key: values[codes[row]] for key, (codes, values) in decoded.items() if codes[row] >= 0}
        for row in first.tolist()
    ]
    return first, code, told


def _works(names: list[str], told: list[dict[str, Any]]) -> list[Work]:
    """Work of calls, by operator and arguments."""
    calls = [call(arguments_) for arguments_ in told]
    shapes = convolutions.Shapes(zip(names, calls, strict=True))
    return [
        UNKNOWN if found is None else _work(work_rules.rule(name), shapes.completed(name, found))
        for name, found in zip(names, calls, strict=True)
    ]


def _work(rule: Any, found: Call) -> Work:
    """Work of one call by its rule; unknown if its arguments are not as the rule expects."""
    try:
        work: Work = rule[1](found)
    except (IndexError, TypeError, ValueError, OverflowError, ZeroDivisionError, MemoryError):
        return UNKNOWN  # another version's arguments stand in other places
    return work


def _owned(trace: Trace, counted: _Counted) -> tuple[Array, Array]:
    """Work of the operators that have it, and of their kernels."""
    parent, kind = trace.array("parent"), trace.array("kind")
    on_gpu = is_any(kind, GPU_WORK)
    around = _innermost(counted.rank, parent)
    launch = trace.launch
    owner = np.where(on_gpu & (launch >= 0), around[launch], -1)
    launches = np.zeros(len(parent), np.bool_)
    launches[owner[owner >= 0]] = True
    strongest, busy = _within(counted.rank, launches, parent)
    none = (counted.rank == 0) | (strongest >= counted.rank) | (~launches & busy)
    flops, size = (np.where(none, -1, column) for column in (counted.flops, counted.bytes))
    kernels = np.flatnonzero((kind == Kind.KERNEL) & (owner >= 0) & ~none[owner])
    _share_out(trace, kernels, owner[kernels], counted, (flops, size))
    return flops, size


def _share_out(
    trace: Trace, kernels: Array, owner: Array, counted: _Counted, columns: tuple[Array, Array]
) -> None:
    """Give kernels their parts of what their operators have."""
    if not kernels.size:
        return
    operators, number = np.unique(owner, return_inverse=True)
    share = work_kernels.shares(
        number,
        work_kernels.roles(trace.names(), trace.array("name")[kernels]),
        counted.rank[operators],
        counted.parts[operators],
        trace.array("dur")[kernels].astype(np.float64),
    )
    for column in columns:
        column[kernels] = work_kernels.divided(number, share, column[operators])


@jit
def _innermost(rank: Array, parent: Array) -> Array:
    """For each node itself or the innermost around it that has a rank; -1 if none."""
    around = np.full(len(rank), -1, np.int64)
    for i in range(len(rank)):  # parents come before what is in them
        if rank[i] > 0:
            around[i] = i
        elif parent[i] >= 0:
            around[i] = around[parent[i]]
    return around


@jit
def _within(rank: Array, launches: Array, parent: Array) -> tuple[Array, Array]:
    """Of what is within each node: the highest rank, and whether any of it launches work."""
    strongest = np.zeros(len(rank), np.int8)
    busy = np.zeros(len(rank), np.bool_)
    for i in range(len(rank) - 1, -1, -1):
        p = parent[i]
        if p >= 0:
            strongest[p] = max(strongest[p], strongest[i], rank[i])
            busy[p] |= busy[i] | launches[i]
    return strongest, busy


def _moves(trace: Trace, flops: Array, size: Array) -> None:
    """Fill in what copies, fills and collectives move."""
    kind = trace.array("kind")
    put, got = (_sizes(trace, column) for column in ("bytes", "out_bytes"))
    for which, times in ((Kind.MEMCPY, 2), (Kind.MEMSET, 1)):
        rows = np.flatnonzero(kind == which)
        flops[rows] = 0
        known = put[rows] <= np.iinfo(np.int64).max // times
        size[rows] = np.where((put[rows] >= 0) & known, put[rows] * times, -1)
    comm = kind == Kind.COMM
    size[comm] = np.maximum(put, got)[comm]


def _sizes(trace: Trace, column: str) -> Array:
    if column not in trace.nodes.column_names:
        return np.full(trace.nodes.num_rows, -1, np.int64)
    return arrow.numbers(trace.nodes[column], -1)


def _note(trace: Trace, issues: IssueLog) -> None:
    """Add what is assumed and what is not known in the column `flops`."""
    flops = _sizes(trace, "flops")
    kernels = np.flatnonzero(trace.array("kind") == Kind.KERNEL)
    if not kernels.size:
        return
    dur = trace.array("dur")
    untold = kernels[flops[kernels] < 0]
    share = dur[untold].sum() / max(int(dur[kernels].sum()), 1)
    issues.add(UNTOLD, untold.size, f"{share:.1%} of the time of such kernels")
    rows, owner = owners(trace)
    parts = np.bincount(owner, minlength=trace.nodes.num_rows)
    even = np.abs(flops[rows] - flops[owner] // np.maximum(parts[owner], 1)) <= parts[owner]
    by_time = rows[(parts[owner] > 1) & ~even]
    issues.add(DIVIDED, by_time.size, _name(trace, by_time))
    inferred = _inferred(trace, flops)
    issues.add(INFERRED, inferred.size, _name(trace, inferred))


def _inferred(trace: Trace, flops: Array) -> Array:
    """Convolutions that have FLOPs, but not all arguments that these go by."""
    which = (convolutions.FORWARD, convolutions.OF_WEIGHT)
    named = [any(pattern.fullmatch(name) for pattern in which) for name in trace.names()]
    rows = np.flatnonzero(np.array(named, np.bool_)[trace.array("name")] & (flops >= 0))
    told = arguments.find(trace, rows, _CONCRETE, _VALUES, "Output Dims")
    return rows[~np.any([found.length > 0 for found in told], axis=0)]


def _name(trace: Trace, rows: Array) -> str:
    return trace.names()[trace.array("name")[rows[0]]] if rows.size else ""


def owners(trace: Trace) -> tuple[Array, Array]:
    """Kernels with FLOPs, and the operators that they have them from."""
    flops, kind = _sizes(trace, "flops"), trace.array("kind")
    has = (flops >= 0) & (kind == Kind.CPU_OP)
    around = _innermost(has.astype(np.int8), trace.array("parent"))
    launch = trace.launch
    rows = np.flatnonzero((kind == Kind.KERNEL) & (flops >= 0) & (launch >= 0))
    owner = around[launch[rows]]
    return rows[owner >= 0], owner[owner >= 0]


def compared(trace: Trace) -> pa.Table:
    """FLOPs by shapes beside those by counters.

    Returns
    -------
    pyarrow.Table
        For each `operation` (the column of this name, else the operator, else the kernel): its
        kernels `n` of which both are known, `flops` by shapes, `flops_counted`, and their `ratio`,
        counted by shapes. One without FLOPs by shapes has a ratio of 1 if none were counted
        either, else infinity.
    """
    shaped = _sizes(trace, "flops")
    counted = (
        arrow.numbers(trace.nodes["flops_counted"], np.nan)
        if "flops_counted" in trace.nodes.column_names
        else np.full(len(shaped), np.nan)
    )
    rows = np.flatnonzero((trace.array("kind") == Kind.KERNEL) & (shaped >= 0) & ~np.isnan(counted))
    names = _operations(trace, rows)
    kinds, code = np.unique(names.astype(str), return_inverse=True)
    by_shapes = np.bincount(code, shaped[rows].astype(np.float64), len(kinds))
    by_counters = np.bincount(code, counted[rows], len(kinds))
    none = np.where(by_counters > 0, np.inf, 1.0)
    ratio = np.where(by_shapes > 0, by_counters / np.maximum(by_shapes, 1), none)
    return pa.table(
        {
            "operation": arrow.texts(kinds.tolist()),
            "n": arrow.array(np.bincount(code, minlength=len(kinds)).astype(np.int64)),
            "flops": arrow.array(by_shapes),
            "flops_counted": arrow.array(by_counters),
            "ratio": arrow.array(ratio),
        }
    )


def _operations(trace: Trace, rows: Array) -> Array:
    """What each of these kernels is part of, by name."""
    names = np.array([*trace.names(), ""], object)
    code = trace.array("name")
    found = names[code[rows]]
    kernels, owner = owners(trace)
    of = np.full(trace.nodes.num_rows, -1, np.int64)
    of[kernels] = owner
    found = np.where(of[rows] >= 0, names[code[of[rows]]], found)
    told = trace.annotated("operation")[rows]
    return np.where([text is not None for text in told], told, found)
