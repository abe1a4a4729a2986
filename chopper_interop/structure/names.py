"""What names say of a training step: passes, communication, steps, layers, modules.

One table for each question: how profilers, frameworks and models call things. Names that people
give (`record_function`, roctx) count only where the whole of a name says it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.members import is_any
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

FORWARD, BACKWARD, OPTIMIZER = range(3)
PARTS = ("forward", "backward", "optimizer")
"""Passes of a training step, by number."""

ENGINE = re.compile(r"autograd::engine::evaluate_function(: |$)")
"""The operator in which PyTorch's autograd runs one function of the backward pass."""
MODULE = "nn.Module: "
"""How PyTorch's profiler names the call of a module; its class and a number follow."""

_WHOLE = r"(?:[\w.]+\.)?(?:{})(?:[-_ ](?:step|compute|pass|propagation|model[ -_]chunk.*|\d+))?"
_FORWARD, _BACKWARD = _WHOLE.format("forward|fwd"), _WHOLE.format("backward|bwd")
_PARTS = (
    (
        BACKWARD,
        (
            r"autograd::engine::evaluate_function(?:: |$)|## backward ##|torch::autograd::(?:AccumulateGrad|CopyBackwards)\b"
            r"|FSDP::(?:pre_backward|post_backward|backward_prefetch|root_post_backward)"
            r"|FullyShardedDataParallel\._(?:pre|post)_backward"
        ),
        (
            rf"(?i:{_BACKWARD}|all-grads-sync|grads-(?:all-reduce|"
            r"reduce-scatter)|embedding-grads-all-reduce|backward-(?:send|recv)[-\w]*)"
            r"|\w+\([BW]\)|PP:\d+(?:[BIW]|BACKWARD\w*|(?:SEND|RECV)_B)\d*"
            r"|[\w.]+\.backward(?:\.\w+)*|\w+Backward\d*"
        ),
    ),
    (
        OPTIMIZER,
        r"Optimizer\.(?:step|zero_grad)#|## (?:optimizer|zero_grad) ##",
        (
            r"(?i:(?:[\w.]+\.)?(?:optim|optimizer)(?:[-_ .][-\w .]+)?|zero[-_ ]?grad|opt_\w+"
            r"|clip[-_ ]?grad(?:_norm_?|s|ients)?|grad(?:ient)?[-_ ]clip(?:ping)?"
            r"|DeepSpeedEngine\.(?:step|_take_model_step)|params-all-gather)"
        ),
    ),
    (
        FORWARD,
        (
            r"## forward ##|(?:Distributed|FullySharded)DataParallel\.(?:forward|_(?:pre|post)_forward)"
            r"|FSDP::(?:root_)?(?:pre|post)_forward|FSDP::(?:forward_prefetch|cast_forward_inputs)"
        ),
        (
            rf"(?i:{_FORWARD}|forward-(?:send|recv)[-\w]*)"
            r"|\w+\(F\)|PP:\d+(?:F|FORWARD|(?:SEND|RECV)_F)\d*|[\w.]+\.forward(?:\.\w+)*"
        ),
    ),
)
"""Pass: how names of it begin, and what may be the whole of one.

PyTorch: autograd's engine, optimizers, DDP, FSDP1, FSDP2, pipelining (``Forward 0``, ``PP:0F1``).
torchrec: ``## forward ##``. Megatron: its timers (``forward-compute``) and ranges of dotted
functions, which Transformer Engine has too. DeepSpeed: dotted. DeepSeek: ``attn(F)``, ``mlp(B)``.
"""

_COMMUNICATION = re.compile(
    r"c10d::|_?c10d_functional(?:_autograd)?::|record_param_comms|symm_mem::|fsdp::all_gather"
    r"|(?:nccl|rccl|gloo|mpi|ucc|xccl|hccl):|deep_ep::|_C_custom_ar::"
    r"|(?:vllm|sgl_kernel|aiter)::(?:\w+_)?(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)"
    r"|FSDP::(?:all_gather|all_reduce|post_backward_(?:reduce|rs_wait|all_reduce))"
    r"|## (?:all2all_data:(?!recat)|alltoall_|reduce_scatter|all_gather|all_?reduce|Request wait)"
    r"|(?:dispatch|combine)\([FB]\)$|PP:\d+(?:SEND|RECV)_|(?:forward|backward)-(?:send|recv)"
    r"|(?:all-grads-sync|grads-all-reduce|grads-reduce-scatter|params-all-gather"
    r"|embedding-grads-all-reduce)$"
)
_DATA = re.compile(
    r"enumerate\(DataLoader\)#|## (?:copy_batch_to_gpu|wait_for_batch|load_batch|next_batch) ##"
    r"|batch-generator$|(?i:(?:\w+\.)?(?:data[-_ ]?load(?:er|ing)?|load[-_ ]?data|get[-_ ]batch)$)"
)
_PYTHON = (
    (
        BACKWARD,
        re.compile(r".*torch/(?:_tensor|autograd/(?:__init__|graph))\.py\(\d+\): .*backward"),
    ),
    (OPTIMIZER, re.compile(r".*torch/optim/\w+\.py\(\d+\): (?:step|zero_grad)$")),
)
_AGAIN = re.compile(r".*torch/utils/checkpoint\.py\(\d+\): (?:unpack_hook|recompute_fn)$")
"""Functions of Python in which checkpointed activations are computed again."""
_AGAIN_RANGE = re.compile(r"(?i:(?:activation[-_ ])?(?:recompute|recomputation)(?:[-_ ]\w+)*)")
_CHECKPOINT = re.compile(r"\w*CheckpointFunctionBackward\d*$")

_STEPS = (
    re.compile(r"ProfilerStep#(\d+)"),
    re.compile(r"Iteration(\d+)"),
    re.compile(
        r"(?i:(?:training|train|global|optim|optimizer)?[-_ ]?(?:step|iter|iteration)[-_ #:=]*)(\d+)"
    ),
)
"""How steps are numbered: by PyTorch's profiler, for Chopper, by anybody."""
_LAYERS = (
    re.compile(r"Layer(\d+)"),
    re.compile(r"(?i:(?:decoder|encoder|transformer)?[-_ ]?(?:layer|block)[-_ #:=]*)(\d+)"),
)
_QUALIFIED = re.compile(r"FSDP::\w+(?: for (?P<plain>[\w.]+)| \((?P<braced>[\w.]+)\))$")
_BRACKETS = (re.compile(r"FSDP::pre_forward\b"), re.compile(r"FSDP::post_forward\b"))
_WRAPPERS = re.compile(
    r"\w*CheckpointFunction$|Torch-Compiled Region|CompiledFunction$|## Call CompiledFxGraph"
    r"|TorchDynamo|AOTDispatcher|Pregraph bytecode|PythonDispatchMode|ProfilerStep#|enumerate\("
    r"|(?:Distributed|FullySharded)DataParallel\.|RegisterPostBackwardFunction$"
)
"""Operators that only hold what the model calls, and are none of its own."""
_UPDATE = re.compile(
    r"Optimizer\.step#|## optimizer ##$|(?i:optim(?:izer)?(?:[-_ .]step)?|opt_step)$"
)
_NAMED = (Kind.CPU_OP, Kind.ANNOTATION)


@dataclass(frozen=True)
class Names:
    """For each distinct name of a trace, what it says; -1 or False where nothing."""

    part: Array
    """Pass of operators and ranges of this name."""
    python_part: Array
    """Pass of functions of Python of this name."""
    engine: Array
    """Whether it is a function that autograd's engine runs."""
    communication: Array
    data: Array
    """Whether it loads data, which is of no pass."""
    again: Array
    """Whether it, as a function of Python or a range, computes activations again."""
    checkpoint: Array
    """Whether it, as an operator, computes activations again before it goes backward."""
    step: Array
    """Number of the step."""
    step_kind: Array
    """Which of the ways to number steps it is; -1 for none."""
    layer: Array
    """Number of a layer that it says in words."""
    chopper: Array
    """Whether it is a mark made for Chopper: ``Layer<n>``, ``Iteration<n>``."""
    module: Array
    """Whether it is the call of a module."""
    opens: Array
    """Whether it opens the forward pass of an FSDP module, which a `closes` ends."""
    closes: Array
    wrapper: Array
    """Whether it only holds what the model calls."""
    update: Array
    """Whether it is the step of an optimizer."""
    accumulates: Array
    """Whether it is the engine's call that adds up a gradient."""
    unit: Array
    """Whether it is the forward pass of a unit of FSDP1."""
    placed: Array
    """Whether it is a range of FSDP2, most of which end in the place of a module."""


def read(trace: Trace) -> Names:
    """What the names of a trace's host nodes say."""
    names = trace.names()
    kind, name = trace.array("kind"), trace.array("name")
    blank = np.full(len(names) + 1, -1, np.int32)
    told = Names(
        **{
            field: blank.copy() if field in _NUMBERS else np.zeros(len(names) + 1, np.bool_)
            for field in Names.__dataclass_fields__
        }
    )
    for code in gather.used(name[is_any(kind, _NAMED)]).tolist():
        _tell(told, code, names[code])
    for code in gather.used(name[kind == Kind.PYTHON]).tolist():
        _tell_python(told, code, names[code])
    return told


_NUMBERS = ("part", "python_part", "step", "step_kind", "layer")


def _tell(told: Names, code: int, name: str) -> None:
    if name.startswith("aten::"):  # most, and none of them tells anything
        return
    told.part[code] = next((p for p, begin, whole in _COMPILED if begin(name) or whole(name)), -1)
    told.engine[code] = ENGINE.match(name) is not None
    told.again[code] = _AGAIN_RANGE.fullmatch(name) is not None
    told.communication[code] = _COMMUNICATION.match(name) is not None
    told.data[code] = _DATA.match(name) is not None
    told.checkpoint[code] = _CHECKPOINT.match(name) is not None
    told.wrapper[code] = _WRAPPERS.match(name) is not None
    told.update[code] = _UPDATE.match(name) is not None
    told.accumulates[code] = name.endswith("torch::autograd::AccumulateGrad")
    told.unit[code] = name == "FullyShardedDataParallel.forward"
    told.placed[code] = name.startswith("FSDP::")
    told.opens[code], told.closes[code] = (b.match(name) is not None for b in _BRACKETS)
    for which, pattern in enumerate(_STEPS):
        if match := pattern.fullmatch(name):
            told.step[code] = _number(match.group(1))
            told.step_kind[code] = which if told.step[code] >= 0 else -1
            told.chopper[code] |= which == 1
            break
    for which, pattern in enumerate(_LAYERS):
        if match := pattern.fullmatch(name):
            told.layer[code] = _number(match.group(1))
            told.chopper[code] |= which == 0
            break


def _tell_python(told: Names, code: int, name: str) -> None:
    if name.startswith(MODULE):
        told.module[code], told.python_part[code] = True, FORWARD
    elif "torch/" in name:
        told.again[code] = _AGAIN.match(name) is not None
        told.python_part[code] = next((p for p, whole in _PYTHON if whole.match(name)), -1)


def qualified(name: str) -> str:
    """Name of a module that FSDP2 appends to a range; empty if none."""
    match = _QUALIFIED.match(name)
    return (match["plain"] or match["braced"]) if match else ""


def _number(digits: str) -> int:
    """A step's or layer's number; -1 of one that no program reaches."""
    return int(digits) if len(digits) < len("2147483648") else -1


def _compiled() -> list[tuple[int, Callable[[str], Any], Callable[[str], Any]]]:
    return [(p, re.compile(b).match, re.compile(w).fullmatch) for p, b, w in _PARTS]


_COMPILED = _compiled()
