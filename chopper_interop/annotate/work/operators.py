"""FLOPs and bytes of operators by their shapes, and of the GPU work that they launch.

Of nested operators, the innermost with a rule has the work (``linear`` calls ``addmm``), so that
sums count nothing twice; its kernels share it, and helpers among them have none (see
`work.kernels`). Work without a rule or without shapes is null. The rules and their sources:
`work.matrix`, `work.attention`, `work.elements`. Other tools count the same for products, convolutions
and attention: PyTorch's ``torch.utils.flop_counter`` and TraceLens' performance models.

Copies on the GPU move their bytes twice, out of one memory and into another; fills once. Bytes of a
collective are its size as nccl-tests defines it (doc/PERFORMANCE.md): the input of each rank for an
all-reduce, a broadcast, a reduce-scatter, an all-to-all or a send, and its output for an
all-gather.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop import arguments
from chopper_interop.annotate import provenance
from chopper_interop.annotate.work import attention, convolutions, elements, matrix
from chopper_interop.annotate.work import kernels as work_kernels
from chopper_interop.annotate.work.calls import (
    ELEMENTS,
    MATRIX,
    MOVES,
    UNKNOWN,
    Call,
    CallWork,
    parse_call,
)
from chopper_interop.arrays import Array, arrow, gather, nest
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.gather import is_any
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa


DIVIDED_BY_TIME = Fault.info(
    "work-divided-by-time",
    "Kernels that together do the work of one operator: its FLOPs and bytes "
    "by shapes were divided among them by their durations.",
)
UNKNOWN_WORK = Fault.info(
    "work-unknown",
    "Kernels that compute and whose FLOPs are unknown, for want of a rule or of shapes.",
)
INFERRED_SHAPE = Fault.info(
    "work-shape-inferred",
    "Convolutions whose stride, or the shape of whose weight, is not "
    "recorded: it was taken from calls of gradients with the same other shapes.",
)

_KEYS = ("Input Dims", "Input type", "Input Strides", "Output Dims", "Output type")
_OLD_DIMS = "Input dims"
"""Name of the key in Kineto of early 2021."""
_CONCRETE, _VALUES = "Concrete Inputs", "Input Values"
"""Keys of the values of arguments, in two formats; the second includes numbers of tensors, which differ each time."""

_MOVES = re.compile(
    r"aten::(fill_|zero_|(_foreach_)?copy_|_foreach_zero_|cat|_cat|stack|index_select|embedding"
    r"|gather|normal_|uniform_|bernoulli_|random_|exponential_|embedding_dense_backward)$"
)

_SHAPES_ALONE = (
    matrix.product,
    matrix.outer_product,
    matrix.linear,
    elements.elementwise,
    elements.real_function,
    elements.copy,
    elements.fill,
    elements.concatenate,
    elements.normalization,
    elements.gradient,
    elements.optimizer_step,
)
"""Rules that need shapes and types only, or values only where integers and scalars are mixed."""


class _OperatorWork(NamedTuple):
    """Work of each node by its own shapes; -1 where unknown."""

    flops: Array
    bytes: Array
    parts: Array
    priority: Array
    """Priority of the rule that gave it; 0 where none did."""


COLUMNS = ("flops", "mem_bytes")


def convolution_shapes(
    batches: Iterable[Trace], only: Collection[str] = COLUMNS
) -> convolutions.Shapes | None:
    """Return the shapes of convolutions of a job, some ranks of which a batch has; None if no work is asked for."""
    if not set(COLUMNS).intersection(only):
        return None
    shapes = convolutions.Shapes()
    for part in batches:
        is_gradient = np.array(
            [convolutions.is_gradient(n) and find_rule(n) is not None for n in part.names()], bool
        )
        nodes = np.flatnonzero(part.array("kind") == Kind.CPU_OP)
        nodes = nodes[np.append(is_gradient, False)[part.array("name")[nodes]]]
        nodes = nodes[part.array("args_len")[nodes] > 0]
        if nodes.size:
            names, arguments_, _ = _distinct_calls(part, nodes)
            shapes.add(names, [parse_call(one) for one in arguments_])
    return shapes


def columns(
    trace: Trace,
    issues: IssueLog,
    only: Collection[str] = COLUMNS,
    shapes: convolutions.Shapes | None = None,
) -> dict[str, pa.Array]:
    """Compute `flops` and `mem_bytes` of operators, and of the GPU work that they launch.

    Parameters
    ----------
    trace
        Any trace; columns in which all its ranks have values are not computed again.
    issues
        Log of what was assumed, and of how much work is unknown, which is no news where no FLOPs are known on any rank.
    only
        Nothing is computed unless one of the columns is among these.
    shapes
        Shapes of the convolutions of the job; None for those of these ranks.
    """
    missing = provenance.incomplete_columns(trace, COLUMNS)
    if not missing or not set(COLUMNS).intersection(only):
        return {}
    flops, size = _attribute_work(trace, _operator_work(trace, shapes))
    _fill_moves(trace, flops, size)
    values = {"flops": flops, "mem_bytes": size}
    arrays = {k: arrow.negative_to_null(v) for k in missing if ((v := values[k]) >= 0).any()}
    if "flops" in missing:
        is_new = ~provenance.stated_rows(trace, "flops")
        _note(provenance.fill_columns(trace, arrays), is_new, issues)
    return arrays


def _operator_work(trace: Trace, shapes: convolutions.Shapes | None) -> _OperatorWork:
    """Work of each operator by its own arguments, whatever is nested in it."""
    n = trace.nodes.num_rows
    operators = _OperatorWork(
        np.full(n, -1, np.int64),
        np.full(n, -1, np.int64),
        np.ones(n, np.int8),
        np.zeros(n, np.int8),
    )
    rules = [find_rule(name) for name in trace.names()]
    priorities = np.array([0 if r is None else r[0] for r in rules] or [0], np.int8)
    name = trace.array("name")
    has_rule = (trace.array("kind") == Kind.CPU_OP) & (priorities[name] > 0)
    nodes = np.flatnonzero(has_rule & (trace.array("args_len") > 0))
    if not nodes.size:
        return operators
    called, arguments_, code = _distinct_calls(trace, nodes)
    work = _work_of_calls(called, arguments_, shapes)
    for column, field in ((operators.flops, "flops"), (operators.bytes, "bytes")):
        values = [getattr(w, field) for w in work]
        column[nodes] = np.array([_int64(value) for value in values], np.int64)[code]
    operators.parts[nodes] = np.array([w.parts for w in work], np.int8)[code]
    known = (operators.flops[nodes] >= 0) | (operators.bytes[nodes] >= 0)
    operators.priority[nodes] = np.where(known, priorities[name[nodes]], 0)
    return operators


def _int64(value: int | None) -> int:
    """Return a count that int64 can hold, else -1."""
    return value if value is not None and 0 <= value < 1 << 63 else -1


def _distinct_calls(trace: Trace, nodes: Array) -> tuple[list[str], list[dict[str, Any]], Array]:
    """Find distinct calls: the name of each, its arguments, and the index of each node's call."""
    keys = (*_KEYS, _CONCRETE, _VALUES, _OLD_DIMS)
    spans = dict(zip(keys, arguments.find(trace, nodes, *keys), strict=True))
    dims, old = spans["Input Dims"], spans.pop(_OLD_DIMS)
    missing = dims.length == 0
    dims.at[missing], dims.length[missing] = old.at[missing], old.length[missing]
    needed = np.array([needs_values(name) for name in trace.names()], np.bool_)
    unused = ~needed[trace.array("name")[nodes]] | (spans[_CONCRETE].length > 0)
    spans[_VALUES].length[unused | (dims.length == 0)] = 0
    del dims, old, missing, unused
    # ranges are 16 bytes a node, codes four
    decoded = {key: arguments.values_at(trace.text, spans.pop(key)) for key in list(spans)}
    first, code = gather.distinct(
        trace.array("name")[nodes], *(codes for codes, _ in decoded.values())
    )
    calls = [
        {key: values[codes[row]] for key, (codes, values) in decoded.items() if codes[row] >= 0}
        for row in first.tolist()
    ]
    names, name = trace.names(), trace.array("name")
    return [names[name[nodes[row]]] for row in first.tolist()], calls, code


def _work_of_calls(
    names: list[str], arguments_: list[dict[str, Any]], shapes: convolutions.Shapes | None = None
) -> list[CallWork]:
    """Work of calls, by name of the operator and arguments."""
    calls = [parse_call(one) for one in arguments_]
    if any("convolution" in name for name in names):
        if shapes is None:
            shapes = convolutions.Shapes()
            shapes.add(names, calls)
        calls = [
            call and shapes.complete(name, call) for name, call in zip(names, calls, strict=True)
        ]
    return [
        UNKNOWN if call is None else _work_of_call(find_rule(name), call)
        for name, call in zip(names, calls, strict=True)
    ]


def _work_of_call(rule: Any, call: Call) -> CallWork:
    """Work of one call by its rule; unknown if its arguments are not as the rule expects."""
    try:
        work: CallWork = rule[1](call)
    except (IndexError, TypeError, ValueError, OverflowError, ZeroDivisionError, MemoryError):
        return UNKNOWN  # another version's arguments have other indexes
    return work


def _attribute_work(trace: Trace, operators: _OperatorWork) -> tuple[Array, Array]:
    """FLOPs and bytes of the innermost operators with a rule, and of their kernels."""
    parent, kind = trace.array("parent"), trace.array("kind")
    on_gpu = is_any(kind, GPU_WORK)
    around = nest.inherited(
        parent, np.where(operators.priority > 0, np.arange(len(parent), dtype=np.int32), -1)
    )
    launch = trace.launch
    owner = np.where(on_gpu & (launch >= 0), around[launch], -1)
    launches = np.zeros(len(parent), np.bool_)
    launches[owner[owner >= 0]] = True
    highest, busy = _nested(operators.priority, launches, parent)
    none = (operators.priority == 0) | (highest >= operators.priority) | (~launches & busy)
    flops, size = operators.flops, operators.bytes
    flops[none] = size[none] = -1
    kernels = np.flatnonzero((kind == Kind.KERNEL) & (owner >= 0) & ~none[owner])
    _share_with_kernels(trace, kernels, owner[kernels], operators, (flops, size))
    return flops, size


def _share_with_kernels(
    trace: Trace, kernels: Array, owner: Array, work: _OperatorWork, columns: tuple[Array, Array]
) -> None:
    """Fill in the kernels' parts of their operators' work."""
    if not kernels.size:
        return
    operators, number = np.unique(owner, return_inverse=True)
    share = work_kernels.work_shares(
        number,
        work_kernels.roles(trace.names(), trace.array("name")[kernels]),
        work.priority[operators],
        work.parts[operators],
        trace.array("dur")[kernels].astype(np.float64),
    )
    for column in columns:
        column[kernels] = work_kernels.divide(number, share, column[operators])


@jit  # from the last node to the first: children, which come later, pass on what is nested in them
def _nested(priority: Array, launches: Array, parent: Array) -> tuple[Array, Array]:
    """Highest priority of the nodes nested in each node, and True if any launches work."""
    highest = np.zeros(len(priority), np.int8)
    busy = np.zeros(len(priority), np.bool_)
    for i in range(len(priority) - 1, -1, -1):
        p = parent[i]
        if p >= 0:
            highest[p] = max(highest[p], highest[i], priority[i])
            busy[p] |= busy[i] | launches[i]
    return highest, busy


def _fill_moves(trace: Trace, flops: Array, size: Array) -> None:
    """Fill in the bytes that copies, fills and collectives move."""
    kind = trace.array("kind")
    for moving_kind, times in ((Kind.MEMCPY, 2), (Kind.MEMSET, 1)):
        rows = np.flatnonzero(kind == moving_kind)
        flops[rows] = 0
        moved = trace.integers("bytes", rows)
        fits = moved <= np.iinfo(np.int64).max // times
        size[rows] = np.where((moved >= 0) & fits, moved * times, -1)
    comm = np.flatnonzero(kind == Kind.COMM)
    size[comm] = np.maximum(trace.integers("bytes", comm), trace.integers("out_bytes", comm))


def _note(trace: Trace, is_new: Array, issues: IssueLog) -> None:
    """Count what is assumed and what is unknown in the column `flops`, where it is derived."""
    kernels = np.flatnonzero((trace.array("kind") == Kind.KERNEL) & is_new)
    if not kernels.size:
        return
    unknown = kernels[trace.integers("flops", kernels) < 0]
    issues.add(UNKNOWN_WORK, unknown.size, _share_of_time(trace, kernels, unknown))
    rows, owner = kernel_operators(trace)
    flops = trace.integers("flops")  # behind what takes as much itself
    _, number, count = np.unique(owner, return_inverse=True, return_counts=True)
    parts = count[number]
    # parts that differ by more than rounding from equal ones were divided by time
    even = np.abs(flops[rows] - flops[owner] // parts) <= parts
    by_time = rows[(parts > 1) & ~even & is_new[rows]]
    issues.add(DIVIDED_BY_TIME, by_time.size, _name(trace, by_time))
    inferred = _inferred_shapes(trace, np.where(is_new, flops, -1))
    issues.add(INFERRED_SHAPE, inferred.size, _name(trace, inferred))


def _share_of_time(trace: Trace, kernels: Array, unknown: Array) -> str:
    """Share that unknown kernels have of the time of the first rank that has any."""
    if not unknown.size:
        return ""
    rank, dur = trace.array("rank"), trace.array("dur")
    first = rank[unknown[0]]
    of_rank = [dur[rows[rank[rows] == first]].sum() for rows in (unknown, kernels)]
    text = f"{of_rank[0] / max(int(of_rank[1]), 1):.1%} of the time of such kernels"
    return f"{text} of rank {first}" if len(trace.meta.ranks) > 1 else text


def _inferred_shapes(trace: Trace, flops: Array) -> Array:
    """Convolutions that have FLOPs, but not all arguments that determine them."""
    patterns = (convolutions.FORWARD, convolutions.WEIGHT_GRADIENT)
    named = [any(pattern.fullmatch(name) for pattern in patterns) for name in trace.names()]
    rows = np.flatnonzero(np.array(named, np.bool_)[trace.array("name")] & (flops >= 0))
    recorded = arguments.find(trace, rows, _CONCRETE, _VALUES, "Output Dims")
    return rows[~np.any([span.length > 0 for span in recorded], axis=0)]


def _name(trace: Trace, rows: Array) -> str:
    return trace.names()[trace.array("name")[rows[0]]] if rows.size else ""


def kernel_operators(trace: Trace) -> tuple[Array, Array]:
    """Rows of kernels with FLOPs by shapes, and of the operator that launched each."""
    flops, kind = trace.integers("flops"), trace.array("kind")
    has = (flops >= 0) & (kind == Kind.CPU_OP)
    around = nest.inherited(
        trace.array("parent"), np.where(has, np.arange(len(has), dtype=np.int32), -1)
    )
    launch = trace.launch
    rows = np.flatnonzero((kind == Kind.KERNEL) & (flops >= 0) & (launch >= 0))
    owner = around[launch[rows]]
    return rows[owner >= 0], owner[owner >= 0]


@cache
def _table() -> tuple[tuple[re.Pattern[str], int, Callable[[Call], CallWork]], ...]:
    rows = [
        *((names, MATRIX, rule) for names, rule in matrix.RULES),
        *((names, MATRIX, rule) for names, rule in attention.RULES),
        *((names, ELEMENTS, rule) for names, rule in elements.RULES),
    ]
    return tuple((re.compile(names), priority, rule) for names, priority, rule in rows)


@lru_cache(1 << 16)
def find_rule(name: str) -> tuple[int, Callable[[Call], CallWork]] | None:
    """Priority and rule of an operator; None if there is no rule."""
    if "::" not in name:
        return None
    for names, priority, rule in _table():
        if names.fullmatch(name):
            return (MOVES if _MOVES.match(name) else priority), rule
    return None


def needs_values(name: str) -> bool:
    """True if the rule of an operator needs values of its arguments as well."""
    rule = find_rule(name)
    return rule is not None and getattr(rule[1], "func", rule[1]) not in _SHAPES_ALONE
