"""Classification of names by what they say about a training step: pass, step, layer, module.

There is one table for each question: the names that profilers, frameworks and models use. Names that
people give (`record_function`, roctx) count only where the complete name matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.schemas.communication import OPERATORS
from chopper_interop.schemas.kinds import RANGES, Kind
from chopper_interop.schemas.names import STEPS
from chopper_interop.trace import Trace

FORWARD, BACKWARD, OPTIMIZER = range(3)
PARTS = ("forward", "backward", "optimizer")
"""Passes of a training step, by number."""

ENGINE = re.compile(r"autograd::engine::evaluate_function(: |$)")
"""The operator in which PyTorch's autograd runs one function of the backward pass."""
MODULE = "nn.Module: "
"""Prefix of module calls in PyTorch's profiler; the module's class and a number follow."""

_COMPLETE = r"(?:[\w.]+\.)?(?:{})(?:[-_ ](?:step|compute|pass|propagation|model[ -_]chunk.*|\d+))?"
_FORWARD, _BACKWARD = _COMPLETE.format("forward|fwd"), _COMPLETE.format("backward|bwd")
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
"""Pass, beginnings of its names, and patterns for complete names.

PyTorch: autograd's engine, optimizers, DDP, FSDP1, FSDP2, pipelining (``Forward 0``, ``PP:0F1``).
torchrec: ``## forward ##``. Megatron: its timers (``forward-compute``) and ranges of dotted
functions, which Transformer Engine has too. DeepSpeed: dotted. DeepSeek: ``attn(F)``, ``mlp(B)``.
"""

_COMMUNICATION = re.compile(
    OPERATORS + r"|symm_mem::|fsdp::all_gather"
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
_RECOMPUTE_PYTHON = re.compile(
    r".*torch/utils/checkpoint\.py\(\d+\): (?:unpack_hook|recompute_fn)$"
)
"""Python functions in which checkpointed activations are computed again."""
_RECOMPUTE_RANGE = re.compile(r"(?i:(?:activation[-_ ])?(?:recompute|recomputation)(?:[-_ ]\w+)*)")
_CHECKPOINT = re.compile(r"\w*CheckpointFunctionBackward\d*$")

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
"""Operators around those that the model calls, which are not the model's own."""
_UPDATE = re.compile(
    r"Optimizer\.step#|## optimizer ##$|(?i:optim(?:izer)?(?:[-_ .]step)?|opt_step)$"
)


@dataclass(frozen=True)
class Names:
    """For each distinct name of a trace, what it says; -1 or False if nothing."""

    part: Array
    """Pass of operators and ranges of this name."""
    python_part: Array
    """Pass of functions of Python of this name."""
    engine: Array
    """True for functions that autograd's engine runs."""
    communication: Array
    """True for communication."""
    data: Array
    """True for data loading, which belongs to no pass."""
    recompute: Array
    """True for Python functions and ranges that compute activations again."""
    checkpoint: Array
    """True for operators that compute activations again before they go backward."""
    step: Array
    """Number of the step."""
    step_kind: Array
    """Index of the naming of steps in `STEPS`; -1 for none."""
    layer: Array
    """Number of a layer that the name says in words."""
    chopper: Array
    """True for marks made for Chopper: ``Layer<n>``, ``Iteration<n>``."""
    module: Array
    """True for the call of a module."""
    opens: Array
    """True for a range before the forward pass of an FSDP2 module, which a `closes` ends."""
    closes: Array
    """True for a range after the forward pass of an FSDP2 module."""
    wrapper: Array
    """True for operators that are only around what the model calls."""
    update: Array
    """True for the step of an optimizer."""
    accumulates: Array
    """True for the engine's call that adds up a gradient."""
    unit: Array
    """True for the forward pass of a unit of FSDP1."""
    fsdp2: Array
    """True for a range of FSDP2, most of which end in the path of a module."""


def classify_names(trace: Trace) -> Names:
    """Classify the names of a trace's host nodes."""
    texts = trace.names()
    kind, name = trace.array("kind"), trace.array("name")
    names = Names(
        **{
            field: np.full(len(texts) + 1, -1, _NUMBERS[field])
            if field in _NUMBERS
            else np.zeros(len(texts) + 1, np.bool_)
            for field in Names.__dataclass_fields__
        }
    )
    for code in gather.unique_codes(name[is_any(kind, RANGES)]).tolist():
        _classify(names, code, texts[code])
    for code in gather.unique_codes(name[kind == Kind.PYTHON]).tolist():
        _classify_python(names, code, texts[code])
    return names


_NUMBERS = {
    "part": np.int8,
    "python_part": np.int8,
    "step": np.int32,
    "step_kind": np.int8,
    "layer": np.int32,
}
"""Fields that are numbers, with types that hold them: nodes by the million get values of these types."""


def _classify(names: Names, code: int, text: str) -> None:
    """Classify the name of an operator or range."""
    if text.startswith("aten::"):  # the most frequent, and none of them matches
        return
    names.part[code] = next((p for p, begin, full in _COMPILED if begin(text) or full(text)), -1)
    names.engine[code] = ENGINE.match(text) is not None
    names.recompute[code] = _RECOMPUTE_RANGE.fullmatch(text) is not None
    names.communication[code] = _COMMUNICATION.match(text) is not None
    names.data[code] = _DATA.match(text) is not None
    names.checkpoint[code] = _CHECKPOINT.match(text) is not None
    names.wrapper[code] = _WRAPPERS.match(text) is not None
    names.update[code] = _UPDATE.match(text) is not None
    names.accumulates[code] = text.endswith("torch::autograd::AccumulateGrad")
    names.unit[code] = text == "FullyShardedDataParallel.forward"
    names.fsdp2[code] = text.startswith("FSDP::")
    names.opens[code], names.closes[code] = (b.match(text) is not None for b in _BRACKETS)
    for kind, pattern in enumerate(STEPS):
        if match := pattern.fullmatch(text):
            names.step[code] = _number(match.group(1))
            names.step_kind[code] = kind if names.step[code] >= 0 else -1
            names.chopper[code] |= kind == 1
            break
    for kind, pattern in enumerate(_LAYERS):
        if match := pattern.fullmatch(text):
            names.layer[code] = _number(match.group(1))
            names.chopper[code] |= kind == 0
            break


def _classify_python(names: Names, code: int, text: str) -> None:
    """Classify the name of a Python function."""
    if text.startswith(MODULE):
        names.module[code], names.python_part[code] = True, FORWARD
    elif "torch/" in text:
        names.recompute[code] = _RECOMPUTE_PYTHON.match(text) is not None
        names.python_part[code] = next((p for p, begin in _PYTHON if begin.match(text)), -1)


def module_in_range(name: str) -> str:
    """Path of the module that FSDP2 appends to the name of a range; empty if there is none."""
    match = _QUALIFIED.match(name)
    return (match["plain"] or match["braced"]) if match else ""


def _number(digits: str) -> int:
    """Number of a step or layer; -1 if it is larger than any program reaches."""
    return int(digits) if len(digits) < len("2147483648") else -1


def _compiled() -> list[tuple[int, Callable[[str], Any], Callable[[str], Any]]]:
    return [(p, re.compile(b).match, re.compile(w).fullmatch) for p, b, w in _PARTS]


_COMPILED = _compiled()
