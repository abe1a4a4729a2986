"""Columns for the part of a training step that each node is: iteration, pass, layer, operation.

Host nodes get them from the ranges, operators and modules around them, backward operators from their
forward operators. GPU work gets them from its launch, never from its time, because it lags behind the
host by milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import arguments, rank_batches, training_steps
from chopper_interop.annotate import provenance
from chopper_interop.annotate.structure.autograd import (
    HIERARCHY,
    Autograd,
    link_autograd,
    read_arguments,
)
from chopper_interop.annotate.structure.coverage import COLUMNS, coverage
from chopper_interop.annotate.structure.modules import (
    BlockLists,
    add_backward_modules,
    read_modules,
    stated_modules,
)
from chopper_interop.annotate.structure.names import BACKWARD, PARTS, Names, classify_names
from chopper_interop.annotate.structure.operations import find_operations
from chopper_interop.annotate.structure.phase import Passes, find_passes
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import GPU_WORK, RANGES, Kind
from chopper_interop.schemas.names import STEP_RANGE
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa


BY_NAMES = Fault.info(
    "iterations-by-names",
    "Ranges that are called a step or iteration with a number were taken as "
    "the training steps, as the profiler marks none.",
)
COUNTED = Fault.info(
    "iterations-counted",
    "Training steps are not numbered: they were counted from 0, each until its optimizer is done; "
    "what starts after the last of these is in none.",
)
EMPTY = Fault.info(
    "steps-without-work",
    "Ranges of steps that launch nothing, where others of their rank do, are no steps, as the one that a profiler begins when it stops.",
)
REPEATED = Fault.info(
    "steps-repeated",
    "Ranges of steps whose number their thread had before, as after a restart, are steps of their own: the second "
    "step 5 is 1005, the third 2005; from 999 on thousands are ten thousands, and so on.",
)
IN_PIECES = Fault.info(
    "steps-in-pieces",
    "Ranges with a number that others of their thread had before were taken as the same step.",
)
_EXACT = (STEP_RANGE, "Iteration")
"""The first of the kinds of names of steps, which can have no other meaning."""
NUMBERS_APART = Fault.error(
    "step-numbers-apart",
    "Most communication is of steps whose numbers differ between its ranks: steps of the job, which go by these "
    "numbers, have wrong times. Analyse one rank (--ranks).",
)

__all__ = ["COLUMNS", "columns", "coverage", "note_numbers_apart"]

RECOMPUTE, COMMUNICATION = "recompute", "communication"
_PHASES = (*PARTS, RECOMPUTE, COMMUNICATION)
BY_THREAD = Fault.info(
    "passes-by-thread",
    "Operators and calls that no name and no number ties to a pass were assigned "
    "to the pass of their thread: after the backward pass of a step to the optimizer, before it to "
    "the forward pass.",
)
NO_LAUNCH = Fault.info(
    "gpu-work-without-launch",
    "GPU work without a launch in the trace: its step, pass and layer are unknown.",
)
_FROM_LAUNCH = (*GPU_WORK, Kind.GPU_SYNC, Kind.GPU_ANNOTATION)


def block_lists(batches: Iterable[Trace], only: Collection[str] = COLUMNS) -> BlockLists | None:
    """Return the lists of blocks of the model of a job, some ranks of which a batch has; None if no layers are asked for."""
    if "layer" not in only:
        return None
    stated = []
    for part in batches:
        operators = np.flatnonzero(part.array("kind") == Kind.CPU_OP)
        (hierarchy,) = arguments.find(part, operators, HIERARCHY)
        stated.append(stated_modules(part, classify_names(part), operators, hierarchy))
    return BlockLists.of(stated)


def columns(
    trace: Trace,
    issues: IssueLog | None = None,
    only: Collection[str] = COLUMNS,
    lists: BlockLists | None = None,
) -> dict[str, pa.Array]:
    """Derive annotation columns that say which part of a training step each node is.

    Parameters
    ----------
    trace
        A trace with nodes; columns in which all its ranks have values are not made again.
    issues
        Log for what was assumed.
    only
        Names of the columns that are derived, as far as they are among these.
    lists
        Lists of blocks of the job; None for those of these ranks.
    """
    chosen = [name for name in COLUMNS if name in only]
    requested = provenance.incomplete_columns(trace, chosen)
    if not requested:
        return {}
    log = issues if issues is not None else IssueLog()
    result = _derive(trace, set(requested), log, lists)
    if result:
        _note_without_launch(trace, log)
    return result


def _derive(
    trace: Trace, requested: set[str], issues: IssueLog, lists: BlockLists | None
) -> dict[str, pa.Array]:
    quiet = IssueLog()  # for columns that were not requested
    of_host: dict[str, tuple[Array, Sequence[str] | None]] = {}
    names = classify_names(trace)
    iteration_issues = issues if "iteration" in requested else quiet
    iteration = read_iterations(trace, names, iteration_issues)
    of_host["iteration"] = (iteration, None)
    unnumbered = [rows for rows in trace.rank_rows.values() if not (iteration[rows] >= 0).any()]
    if unnumbered or requested != {"iteration"}:
        operators, sequence, thread, hierarchy = read_arguments(trace)
        autograd = link_autograd(trace, names, sequence, thread)
        del sequence, thread
        if unnumbered:
            counted = _counted_iterations(trace, names, autograd, unnumbered, iteration_issues)
            np.copyto(iteration, counted, where=iteration < 0)
            del counted
        passes = find_passes(trace, names, autograd, iteration)
        if requested & {"phase", "step_part"}:
            _note_assumed(trace, passes, issues)
        layer_issues = issues if "layer" in requested else quiet
        modules = read_modules(trace, names, operators, hierarchy, layer_issues, lists)
        del operators, hierarchy
        modules = add_backward_modules(trace, names, autograd, modules)
        of_host |= {"layer": (modules.layer, None), "module": (modules.module, modules.texts)}
        # most programs state none
        of_host = {c: values for c, values in of_host.items() if (values[0] >= 0).any()}
        del modules
        of_host |= {
            "phase": (_phases(passes), _PHASES),
            "step_part": (passes.part, PARTS),
            "operation": find_operations(trace, names, autograd, passes),
        }
        del autograd, passes
    origin = _origins(trace)
    elsewhere = np.flatnonzero(origin != _ITSELF)
    origin = origin[elsewhere]
    result = {}
    for column in (c for c in COLUMNS if c in requested and c in of_host):
        values, texts = of_host.pop(column)
        of_node = values.copy()
        of_node[elsewhere] = np.where(origin >= 0, values[np.maximum(origin, 0)], -1)
        if column == "phase":
            of_node[trace.array("kind") == Kind.COMM] = _PHASES.index(COMMUNICATION)
        if (of_node >= 0).any():
            result[column] = _column(of_node, texts)
    return result


def _column(values: Array, texts: Sequence[str] | None) -> pa.Array:
    """Numbers or, with texts, a dictionary column of those that occur; null where below 0."""
    if texts is None:
        return arrow.negative_to_null(values.astype(np.int32))
    used = gather.unique_codes(values)
    code = np.zeros(len(texts) + 1, np.int32)
    code[used] = np.arange(len(used))
    return arrow.dictionary(code[values], [texts[k] for k in used.tolist()], mask=values < 0)


def _phases(passes: Passes) -> Array:
    phase = np.where(passes.recompute, _PHASES.index(RECOMPUTE), passes.part)
    return np.where(passes.communication, _PHASES.index(COMMUNICATION), phase)


def _counted_iterations(
    trace: Trace, names: Names, autograd: Autograd, unnumbered: Sequence[slice], issues: IssueLog
) -> Array:
    """Counted steps, for the nodes of ranks whose steps have no numbers; -1 for all others."""
    name = trace.array("name")
    ranges = is_any(trace.array("kind"), (Kind.CPU_OP, Kind.ANNOTATION))
    part = np.where(ranges, names.part[name], -1)
    backward = autograd.backward | (part == BACKWARD)
    updates = ranges & names.update[name] & ~autograd.backward
    counted = np.zeros(len(name), np.bool_)
    for rows in unnumbered:
        counted[rows] = True
    return count_iterations(trace, backward, updates & counted, issues)


def note_numbers_apart(trace: Trace, issues: IssueLog) -> None:
    """Note that ranks number the same step differently, which shows where they communicate."""
    if not (trace.has("instance") and trace.has("iteration")):
        return
    members = rank_batches.known_rows(trace, "instance")
    iteration, instance = (trace.integers(name, members) for name in ("iteration", "instance"))
    is_numbered = (iteration >= 0) & (instance >= 0)
    iteration, instance = iteration[is_numbered], instance[is_numbered]
    _, code = gather.distinct(instance)
    low = np.full(int(code.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    high = np.full(len(low), -1)
    np.minimum.at(low, code, iteration)
    np.maximum.at(high, code, iteration)
    apart = np.flatnonzero(low < high)
    if 2 * apart.size > len(low):
        first = apart[0]
        issues.add(NUMBERS_APART, apart.size, f"steps {low[first]} and {high[first]}")


_ITSELF, _NO_ORIGIN = -1, -2


def _origins(trace: Trace) -> Array:
    """For each node the host node whose values it takes: -1 for itself, -2 if none is known."""
    kind = trace.array("kind")
    on_gpu = is_any(kind, _FROM_LAUNCH)
    origin = np.where(on_gpu, np.where(trace.launch >= 0, trace.launch, _NO_ORIGIN), _ITSELF)
    images = np.flatnonzero(kind == Kind.GPU_ANNOTATION)
    if images.size:
        origin[images] = _host_ranges(trace, images)
    return origin


def _host_ranges(trace: Trace, images: Array) -> Array:
    """The host range of which each GPU range is the image: of equal rank, name and id."""
    ranges = np.flatnonzero(trace.array("kind") == Kind.ANNOTATION)
    nodes = np.concatenate([ranges, images])
    number, known = arguments.integers(trace, nodes, "External id")
    _, code = gather.distinct(trace.array("rank")[nodes], trace.array("name")[nodes], number)
    range_of_code = np.full(len(nodes) + 1, _NO_ORIGIN, np.int64)
    range_code, image_code = code[: len(ranges)], code[len(ranges) :]
    has_id = known[: len(ranges)]
    range_of_code[range_code[has_id]] = ranges[has_id]
    return np.where(known[len(ranges) :], range_of_code[image_code], _NO_ORIGIN)


def _note_assumed(trace: Trace, passes: Passes, issues: IssueLog) -> None:
    assumed = np.flatnonzero(passes.assumed)
    if assumed.size:
        first = int(assumed[0])
        name = trace.names()[trace.array("name")[first]]
        issues.add(BY_THREAD, len(assumed), f"{name[:60]!r}: {PARTS[passes.part[first]]}")


def _note_without_launch(trace: Trace, issues: IssueLog) -> None:
    on_gpu = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    is_lost = trace.launch[on_gpu] < 0
    if not is_lost.any():
        return
    rank = trace.array("rank")[on_gpu]
    has_host = np.bincount(rank, ~is_lost) > 0  # if all lack one, the rank has no host
    lost = on_gpu[is_lost & has_host[rank]]
    if lost.size:
        name = trace.names()[trace.array("name")[lost[0]]]
        issues.add(NO_LAUNCH, len(lost), repr(name[:80]))


def read_iterations(trace: Trace, names: Names, issues: IssueLog) -> Array:
    """Number of the step that each host node is in, by ranges of steps; -1 where it is in none."""
    name, kind = trace.array("name"), trace.array("kind")
    step_kind = np.where(is_any(kind, RANGES), names.step_kind[name], -1)
    steps = np.flatnonzero(step_kind >= 0)
    if not steps.size:
        return np.full(len(name), -1, np.int32)
    # a rank's ranges of the first kind that it has
    first, rank = gather.distinct(trace.array("rank")[steps])
    kind_of_rank = np.full(len(first), step_kind.max())
    np.minimum.at(kind_of_rank, rank, step_kind[steps])
    chosen = step_kind[steps] == kind_of_rank[rank]
    steps, rank = steps[chosen], rank[chosen]
    exact = kind_of_rank[rank] < len(_EXACT)
    within = _range_of(trace, steps)
    number, _ = _numbered(trace, names, steps, exact)
    busy = np.bincount(within[_launches(trace) & (within >= 0)], minlength=len(steps))
    _, step = gather.distinct(rank, number)
    works = (np.bincount(step, busy) > 0)[step]
    works |= (np.bincount(rank, works) == 0)[rank]
    _note(issues, EMPTY, trace, steps[~works])
    known, in_pieces = _numbered(trace, names, steps[works], exact[works])
    number[:] = -1
    number[works] = known
    steps = steps[works]
    _note(issues, REPEATED, trace, steps[known != names.step[name[steps]]])
    _note(issues, IN_PIECES, trace, steps[in_pieces])
    _note(issues, BY_NAMES, trace, steps[step_kind[steps] == len(_EXACT)])
    return np.append(number, -1).astype(np.int32)[within]


def _note(issues: IssueLog, fault: Fault, trace: Trace, ranges: Array) -> None:
    """Note ranges, if there are any, with the name of the first."""
    if ranges.size:
        issues.add(fault, len(ranges), repr(trace.names()[trace.array("name")[ranges[0]]]))


def _launches(trace: Trace) -> Array:
    """Mark calls that launch GPU work, and GPU work whose launch is not known."""
    work = is_any(trace.array("kind"), GPU_WORK)
    result = work & (trace.launch < 0)
    result[trace.launch[work & (trace.launch >= 0)]] = True
    return result


def _range_of(trace: Trace, steps: Array) -> Array:
    """Position of the last range of a step to start before each node of its rank, if it starts in that; -1 for none."""
    rank, ts = trace.array("rank"), trace.array("ts")
    # nodes are in order of rank and start: a range counts from the first node that starts when it does
    starts = np.flatnonzero(np.append(True, (ts[1:] != ts[:-1]) | (rank[1:] != rank[:-1])))
    first = starts[np.searchsorted(starts, steps, "right") - 1]
    del starts
    order = np.arange(-1, len(steps), dtype=np.int32)
    index = np.repeat(order, np.diff(first, prepend=0, append=len(ts)))
    end = ts[steps] + trace.array("dur")[steps]
    inside = (index >= 0) & (rank == rank[steps][index]) & (ts < end[index])
    return np.where(inside, index, -1)


def _numbered(trace: Trace, names: Names, steps: Array, exact: Array) -> tuple[Array, Array]:
    """Number of the step of each range, another one where a thread counts again; and which continue a step.

    Ranges in a row with the same number are one step, such as its forward pass and its optimizer, unless they are
    `exact`: the profiler marks a step by one range. A thread counts again where the range that begins such a row
    had its name before.
    """
    name, rank = trace.array("name")[steps], trace.array("rank")[steps]
    number = names.step[name].astype(np.int64)
    continues = np.zeros(len(steps), bool)
    may_repeat = (np.diff(number) <= 0) & (np.diff(rank) == 0)
    # of few ranks, as nearly all count on
    for of_rank in gather.unique(rank[1:][may_repeat]).tolist():
        own = slice(*np.searchsorted(rank, [of_rank, of_rank + 1]).tolist())
        continues[own] = _count_on(trace, steps[own], number[own], exact=bool(exact[own][0]))
    return number, continues


def _count_on(trace: Trace, steps: Array, number: Array, *, exact: bool) -> Array:
    """Change numbers of a rank's ranges where a thread counts again, in place; mark those that continue a step."""
    ts, lane = trace.array("ts")[steps], trace.array("lane")[steps]
    end = ts + trace.array("dur")[steps]
    name = trace.array("name")[steps]
    # a power of ten above all numbers, and above the next, which would follow the last of them
    unit = max(training_steps.LEAST_UNIT, 10 ** len(str(int(number.max(initial=0)) + 1)))
    continues = np.zeros(len(steps), bool)
    for thread in gather.unique(lane).tolist():
        own = np.flatnonzero(lane == thread)
        latest = np.maximum.accumulate(end[own])
        apart = np.append(False, ts[own][1:] >= latest[:-1])
        begins = (np.diff(number[own], prepend=-1) != 0) | (apart & exact)
        nth = _times_before(name[own[begins]])[np.cumsum(begins) - 1]
        # 1005 and 2005 after 5; numbers that would not fit stay as they are
        again = number[own] + nth * unit
        number[own] = np.where(again <= np.iinfo(np.int32).max, again, number[own])
        continues[own] = apart & (_times_before(number[own]) > 0)
    return continues


def _times_before(code: Array) -> Array:
    """Count how often each value occurs before its place."""
    order = np.argsort(code, kind="stable")
    place = np.arange(len(code))
    starts = np.diff(code[order], prepend=-1) != 0
    result = np.empty(len(code), np.int64)
    result[order] = place - np.maximum.accumulate(np.where(starts, place, 0))
    return result


def count_iterations(trace: Trace, backward: Array, updates: Array, issues: IssueLog) -> Array:
    """Count steps by the optimizers that end them; -1 after the last of these and on ranks without any.

    Parameters
    ----------
    trace, issues
        The trace, and the log for the steps that were counted.
    backward
        Mask of nodes of the backward pass.
    updates
        Mask of nodes that are the outermost of an optimizer's step, on ranks whose steps have no numbers.
    """
    ts, end = trace.array("ts"), trace.array("ts") + trace.array("dur")
    result = np.full(len(ts), -1, np.int32)
    for rows in trace.rank_rows.values():
        ends = np.sort(end[rows][updates[rows]])
        backward_starts = np.sort(ts[rows][backward[rows]])
        if not ends.size or not backward_starts.size:
            continue
        # several optimizers one after the other, without a backward pass between, end one step
        before = np.searchsorted(backward_starts, ends)
        last = ends[np.append(before[1:] != before[:-1], True)]
        step = np.searchsorted(last, ts[rows], "right")
        result[rows] = np.where(step < len(last), step, -1)
        issues.add(COUNTED, len(last), f"rank {int(trace.array('rank')[rows.start])}")
    return result
