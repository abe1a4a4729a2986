"""What of the training step each node is part of: iteration, phase, layer, operation.

Host nodes are told by the ranges and operators around them; GPU work by what launched it and
never by its time, for it lags behind the host by milliseconds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import arrow, gather
from chopper_interop.compiled import jit
from chopper_interop.schemas.kinds import GPU_WORK, Kind

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

ITERATION = re.compile(r"ProfilerStep#(\d+)$")
"""How PyTorch's profiler names a step."""

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
_PHASES = (FORWARD, BACKWARD, OPTIMIZER)
PHASES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"Optimizer\.(step|zero_grad)#|## optimizer ##"), OPTIMIZER),
    (
        re.compile(
            r"autograd::engine::evaluate_function|## backward ##"
            r"|FSDP::(pre_backward|post_backward|backward_prefetch|root_post_backward)"
            r"|FullyShardedDataParallel\._(pre|post)_backward"
        ),
        BACKWARD,
    ),
    (
        re.compile(r"## forward ##|(Distributed|FullySharded)DataParallel\.(forward|_pre_forward)"),
        FORWARD,
    ),
)
"""How a name begins → the phase of it and all within it."""
_NAMED = (Kind.CPU_OP, Kind.ANNOTATION, Kind.PYTHON)


def columns(trace: Trace) -> dict[str, pa.Array]:
    """Annotation columns that tell what each node is part of."""
    launch = trace.launch
    columns: dict[str, pa.Array] = {}
    iteration = _iterations(trace, launch)
    if (iteration >= 0).any():
        columns["iteration"] = arrow.array(iteration, pa.int32(), mask=iteration < 0)
    phase = _phases(trace, launch, iteration)
    if (phase >= 0).any():
        columns["phase"] = arrow.dictionary(phase, _PHASES, mask=phase < 0)
    return columns


def _number(digits: str) -> int:
    """Number of a step; -1 of one that no program reaches."""
    return int(digits) if len(digits) < len("2147483648") else -1


def _iterations(trace: Trace, launch: Array) -> Array:
    """Step of each node by the host's steps; -1 where it is in none."""
    result = np.full(trace.nodes.num_rows, -1, np.int32)
    numbers = [ITERATION.match(name) for name in trace.names()]
    of_name = np.array([_number(m.group(1)) if m else -1 for m in numbers], np.int32)
    if not (of_name >= 0).any():
        return result
    kind, ts, dur = (trace.array(c) for c in ("kind", "ts", "dur"))
    step = np.where(kind == Kind.ANNOTATION, of_name[trace.array("name")], -1)
    for mine in trace.rank_rows.values():
        steps = np.flatnonzero(step[mine] >= 0) + mine.start
        if steps.size:
            at = np.searchsorted(ts[steps], ts[mine], "right") - 1
            inside = (at >= 0) & (ts[mine] < (ts[steps] + dur[steps])[at])
            result[mine] = np.where(inside, step[steps[at]], -1)
    return _through_launch(trace, launch, result)


def _phases(trace: Trace, launch: Array, iteration: Array) -> Array:
    """Phase of each node as a number of `_PHASES`; -1 where unknown."""
    of_name = np.array([_phase_of(name) for name in trace.names()] or [-1], np.int8)
    kind = trace.array("kind")
    own = np.where(np.isin(kind, [int(k) for k in _NAMED]), of_name[trace.array("name")], -1)
    phase = _inherited(own.astype(np.int8), trace.array("parent"))
    trains = np.isin(phase, [_PHASES.index(BACKWARD), _PHASES.index(OPTIMIZER)]).any()
    if trains:  # then whatever else the host does within a step is of its thread's pass
        rest = (phase < 0) & (iteration >= 0)
        by_thread = _pass_of_thread(trace, phase)[trace.array("lane")]
        by_thread[_after_backward(trace, phase, iteration)] = _PHASES.index(OPTIMIZER)
        phase = np.where(rest, by_thread, phase)
    return _through_launch(trace, launch, phase.astype(np.int32))


def _pass_of_thread(trace: Trace, phase: Array) -> Array:
    """Of each lane, backward if that is all that is named there (autograd's), else forward."""
    lane, lanes = trace.array("lane"), len(trace.lanes)
    backward = np.bincount(lane[phase == _PHASES.index(BACKWARD)], minlength=lanes) > 0
    steps = np.array([ITERATION.match(name) is not None for name in trace.names()] or [False])
    main = np.bincount(lane[steps[trace.array("name")]], minlength=lanes) > 0
    only = backward & ~main
    return np.where(only, _PHASES.index(BACKWARD), _PHASES.index(FORWARD)).astype(np.int8)


def _after_backward(trace: Trace, phase: Array, iteration: Array) -> Array:
    """Which nodes start behind the last of the backward pass of their iteration.

    Clipping of gradients and reading the loss are named by nobody and belong to the update.
    """
    ts = trace.array("ts")
    _, step = gather.distinct(trace.array("rank"), iteration)
    backward = (phase == _PHASES.index(BACKWARD)) & (iteration >= 0)
    last = np.full(int(step.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    last[np.unique(step[backward])] = 0
    np.maximum.at(last, step[backward], (ts + trace.array("dur"))[backward])
    return ts >= last[step]


def _phase_of(name: str) -> int:
    return next((_PHASES.index(phase) for begin, phase in PHASES if begin.match(name)), -1)


def _through_launch(trace: Trace, launch: Array, host: Array) -> Array:
    """Give GPU work what its launch has."""
    on_gpu = np.isin(trace.array("kind"), [int(k) for k in GPU_WORK])
    return np.where(on_gpu, np.where(launch >= 0, host[launch], -1), host)


@jit
def _inherited(own: Array, parent: Array) -> Array:
    """Each node's own value, or that of the innermost node around it that has one."""
    result = own.copy()
    for i in range(len(own)):  # parents come before what is in them
        if result[i] < 0 and parent[i] >= 0:
            result[i] = result[parent[i]]
    return result
