"""What of the training step each node is part of: iteration, pass, layer, module, operation.

Host nodes are told by the ranges, operators and modules around them, backward operators by the
forward operators they come from; GPU work by what launched it and never by its time, for it lags
behind the host by milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import arguments, stated
from chopper_interop.columns import arrow, gather
from chopper_interop.columns.members import is_any
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.structure import arguments as structure_arguments
from chopper_interop.structure import autograd as structure_autograd
from chopper_interop.structure import layers, steps
from chopper_interop.structure import modules as structure_modules
from chopper_interop.structure import names as structure_names
from chopper_interop.structure import operations as structure_operations
from chopper_interop.structure import phase as structure_phase
from chopper_interop.structure.coverage import coverage
from chopper_interop.structure.names import BACKWARD, OPTIMIZER, PARTS

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.columns.types import Array
    from chopper_interop.structure.names import Names
    from chopper_interop.structure.phase import Passes
    from chopper_interop.trace import Trace

__all__ = ["COLUMNS", "columns", "coverage"]

COLUMNS = ("iteration", "phase", "step_part", "layer", "module", "operation")
RECOMPUTE, COMMUNICATION = "recompute", "communication"
_PHASES = (*PARTS, RECOMPUTE, COMMUNICATION)
BY_THREAD = Fault(
    "passes-by-thread",
    Severity.INFO,
    "Operators and calls that no name and no number ties to a pass were taken to serve the one of "
    "their thread: behind the backward pass of a step the optimizer, before it the forward pass.",
)
NO_LAUNCH = Fault(
    "gpu-work-unplaced",
    Severity.INFO,
    "GPU work of which the trace has no launch: of which step, pass and layer it is stays unknown.",
)
_FROM_LAUNCH = (*GPU_WORK, Kind.GPU_SYNC, Kind.GPU_ANNOTATION)


def columns(trace: Trace, issues: IssueLog | None = None) -> dict[str, pa.Array]:
    """Annotation columns that tell what each node is part of.

    Parameters
    ----------
    trace
        Any trace; columns in which all its ranks have values are not made again.
    issues
        Where to note what was assumed.
    """
    wanted = stated.lacking(trace, COLUMNS)
    if not wanted or not trace.nodes.num_rows:
        return {}
    log = issues if issues is not None else IssueLog()
    found = _found(trace, set(wanted), log)
    if found:
        _note_unplaced(trace, log)
    return found


def _found(trace: Trace, wanted: set[str], issues: IssueLog) -> dict[str, pa.Array]:
    quiet = IssueLog()
    names = structure_names.read(trace)
    told = structure_arguments.read(trace)
    autograd = structure_autograd.read(trace, names, told)
    iteration = steps.iterations(trace, names, issues if "iteration" in wanted else quiet)
    counted = _counted(
        trace, names, autograd.backward, iteration, issues if "iteration" in wanted else quiet
    )
    iteration = np.where(iteration >= 0, iteration, counted)
    passes = structure_phase.passes(trace, names, autograd, iteration)
    if wanted & {"phase", "step_part"}:
        _note_assumed(trace, passes, issues)
    modules = layers.completed(
        trace,
        names,
        autograd,
        structure_modules.read(trace, names, told, issues if "layer" in wanted else quiet),
    )
    operation, operations = structure_operations.operations(trace, names, autograd, passes)
    origin = _origin(trace)
    host = {
        "iteration": (iteration, None),
        "phase": (_phase(passes), _PHASES),
        "step_part": (passes.part, PARTS),
        "layer": (modules.layer, None),
        "module": (modules.module, modules.texts),
        "operation": (operation, operations),
    }
    made = {}
    for column in COLUMNS:
        values, texts = host[column]
        placed = np.where(origin >= 0, values[np.maximum(origin, 0)], -1)
        placed = np.where(origin == _ITSELF, values, placed)
        if column == "phase":
            placed[trace.array("kind") == Kind.COMM] = _PHASES.index(COMMUNICATION)
        if column in wanted and (placed >= 0).any():
            made[column] = _column(placed, texts)
    return made


def _column(values: Array, texts: Any) -> pa.Array:
    if texts is None:
        return arrow.array(values.astype(np.int32), mask=values < 0)
    used = gather.used(values)
    code = np.zeros(len(texts) + 1, np.int32)
    code[used] = np.arange(len(used))
    return arrow.dictionary(code[values], [texts[k] for k in used.tolist()], mask=values < 0)


def _phase(passes: Passes) -> Array:
    phase = np.where(passes.again, _PHASES.index(RECOMPUTE), passes.part)
    return np.where(passes.communication, _PHASES.index(COMMUNICATION), phase)


def _counted(
    trace: Trace, names: Names, backward: Array, iteration: Array, issues: IssueLog
) -> Array:
    """Steps counted, for ranks of which nothing numbers them."""
    name, kind = trace.array("name"), trace.array("kind")
    ranges = np.isin(kind, [int(Kind.CPU_OP), int(Kind.ANNOTATION)])
    part = np.where(ranges, names.part[name], -1)
    part = np.where(backward, BACKWARD, part)
    for mine in trace.rank_rows.values():
        if (iteration[mine] >= 0).any():
            part[mine] = -1
    updates = ranges & names.update[name] & (part == OPTIMIZER)
    return steps.counted(trace, part, updates, BACKWARD, issues)


_ITSELF, _NOWHERE = -1, -2


def _origin(trace: Trace) -> Array:
    """The host node that tells of each node: -1 if it does itself, -2 if none is known."""
    kind = trace.array("kind")
    on_gpu = is_any(kind, _FROM_LAUNCH)
    origin = np.where(on_gpu, np.where(trace.launch >= 0, trace.launch, _NOWHERE), _ITSELF)
    marks = np.flatnonzero(kind == Kind.GPU_ANNOTATION)
    if marks.size:
        origin[marks] = _range_of(trace, marks)
    return origin


def _range_of(trace: Trace, marks: Array) -> Array:
    """The host's range of which each GPU range is the image: equal name and id."""
    ranges = np.flatnonzero(trace.array("kind") == Kind.ANNOTATION)
    both = np.concatenate([ranges, marks])
    number, known = arguments.numbers(trace, both, "External id")
    _, code = gather.distinct(trace.array("rank")[both], trace.array("name")[both], number)
    node = np.full(len(both) + 1, _NOWHERE, np.int64)
    of_ranges, of_marks = code[: len(ranges)], code[len(ranges) :]
    has = known[: len(ranges)]
    node[of_ranges[has]] = ranges[has]
    return np.where(known[len(ranges) :], node[of_marks], _NOWHERE)


def _note_assumed(trace: Trace, passes: Passes, issues: IssueLog) -> None:
    assumed = np.flatnonzero(passes.assumed)
    if assumed.size:
        first = int(assumed[0])
        name = trace.names()[trace.array("name")[first]]
        issues.add(BY_THREAD, len(assumed), f"{name[:60]!r}: {PARTS[passes.part[first]]}")


def _note_unplaced(trace: Trace, issues: IssueLog) -> None:
    on_gpu = is_any(trace.array("kind"), GPU_WORK)
    lost = np.flatnonzero(on_gpu & (trace.launch < 0))
    if 0 < lost.size < np.count_nonzero(on_gpu):  # else nothing tells of the host
        name = trace.names()[trace.array("name")[lost[0]]]
        issues.add(NO_LAUNCH, len(lost), repr(name[:80]))
