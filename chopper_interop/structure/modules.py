"""The module and the layer of the model that each host node is in.

Modules come with their place in the model (FSDP2's ranges, module hierarchies of scripts) or with
their class and a number in order of first sight (``nn.Module: LlamaDecoderLayer_3``). A layer is
one of a list of blocks of the model: ``layers.3``, or of the outermost class of which one parent
calls several. Where a model has several such lists, their layers are numbered through.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop import arguments
from chopper_interop.columns import gather
from chopper_interop.columns.compiled import jit
from chopper_interop.columns.members import is_any
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import Kind
from chopper_interop.structure import blocks
from chopper_interop.structure.names import MODULE, qualified

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.structure.arguments import Stated
    from chopper_interop.structure.names import Names
    from chopper_interop.trace import Trace

NUMBERED_THROUGH = Fault(
    "layers-numbered-through",
    Severity.INFO,
    "The model has several lists of blocks: their layers are numbered one list behind the other.",
)
UNITS_COUNTED = Fault(
    "layers-by-fsdp-units",
    Severity.INFO,
    "Nothing names the layers: the units of FSDP that the forward pass of the outermost one calls "
    "were taken for them, in that order.",
)
_CALL = re.compile(r"(?:^|\.)([^.()]+)\(([^()]*)\)::")
_UNIT = "FullyShardedDataParallel.forward"
_NO_MODULE = ("TOP", "SELF", "INSTANCE_NAME_UNKNOWN")
_RANGES = (Kind.CPU_OP, Kind.ANNOTATION)


@dataclass(frozen=True)
class Modules:
    """Module and layer of each host node, as far as the node and those around it tell.

    Parameters
    ----------
    module
        Number of a text of `texts`; -1 for none.
    layer
        Number of the layer; -1 for none.
    texts
        Names of modules.
    """

    module: Array
    layer: Array
    texts: list[str]


def read(trace: Trace, names: Names, stated: Stated, issues: IssueLog) -> Modules:
    """What ranges and calls of modules say."""
    texts, module = _own(trace, names, stated)
    layer = _layers_of(trace, names, module, texts, issues)
    opens, closes = _brackets(trace, names)
    nodes = _Nested(*(trace.array(c) for c in ("parent", "lane", "ts", "dur")))
    _passed_down(_around(nodes, opens, closes, len(trace.lanes)), module, layer)
    return Modules(module, layer, texts)


def _own(trace: Trace, names: Names, stated: Stated) -> tuple[list[str], Array]:
    """Texts of modules, and which of them each node states itself."""
    kind, name = trace.array("kind"), trace.array("name")
    all_names = trace.names()
    numbers: dict[str, int] = {}
    ranges = is_any(kind, _RANGES)
    of_name = np.full(len(all_names) + 1, -1, np.int32)
    for code in gather.used(name[ranges]).tolist():
        if text := qualified(all_names[code]):
            of_name[code] = numbers.setdefault(text, len(numbers))
    module = np.where(ranges, of_name[name], -1)
    calls = names.module[name] & (kind == Kind.PYTHON)
    for code in gather.used(name[calls]).tolist():
        text = all_names[code][len(MODULE) :]
        of_name[code] = numbers.setdefault(text, len(numbers))
    module = np.where(calls, of_name[name], module)
    code, hierarchies = arguments.values_at(trace.text, stated.hierarchy)
    paths = [_path(value) for value in hierarchies]
    told = np.array([numbers.setdefault(p, len(numbers)) if p else -1 for p in paths] + [-1])
    operators = stated.operators
    module[operators] = np.where(told[code] >= 0, told[code], module[operators])
    _to_calls(trace.array("parent"), calls, names.opens[name] & ranges, module)
    return list(numbers), module.astype(np.int32)


@jit
def _to_calls(parent: Array, calls: Array, opens: Array, module: Array) -> None:
    """Give the call of a module the place that FSDP's range in it states."""
    for i in range(len(parent)):
        if opens[i] and module[i] >= 0:
            p = parent[i]
            while p >= 0 and not calls[p]:
                p = parent[p]
            if p >= 0:
                module[p] = module[i]


def _path(hierarchy: Any) -> str:
    """Place of a module by the stack of calls of a script: ``TOP(A)::forward.b(B)::forward.``."""
    if not isinstance(hierarchy, str):
        return ""
    return ".".join(n for n, _ in _CALL.findall(hierarchy) if n not in _NO_MODULE)


def _layers_of(
    trace: Trace, names: Names, module: Array, texts: list[str], issues: IssueLog
) -> Array:
    """Layer that each node states: in words, or by its module."""
    kind, name = trace.array("kind"), trace.array("name")
    ranges = is_any(kind, _RANGES)
    words = np.where(ranges, names.layer[name], -1)
    placed, places = blocks.of_paths(texts)
    calls = names.module[name] & (kind == Kind.PYTHON)
    classes, lists = blocks.of_classes(trace, calls, module, texts)
    result = np.full(len(kind), -1, np.int32)
    by_place, by_class = np.append(placed, -1)[module], np.append(classes, -1)[module]
    units = blocks.of_units(trace, names.unit[name] & ranges)
    used: set[str] = set()
    for mine in trace.rank_rows.values():
        for numbers, source in ((words, []), (by_place, places), (by_class, lists), (units, [])):
            if (numbers[mine] >= 0).any():
                result[mine] = numbers[mine]
                used |= set(source)
                if numbers is units:
                    issues.add(UNITS_COUNTED, len(np.unique(units[mine])) - 1, _UNIT)
                break
    if len(used) > 1:
        issues.add(NUMBERED_THROUGH, len(used), ", ".join(sorted(used)[:4]))
    return result


def _brackets(trace: Trace, names: Names) -> tuple[Array, Array]:
    ranges = is_any(trace.array("kind"), _RANGES)
    name = trace.array("name")
    return names.opens[name] & ranges, names.closes[name] & ranges


_DEEPEST = 32
"""So many FSDP modules in one another at most."""


class _Nested(NamedTuple):
    """Columns that tell how nodes lie in one another."""

    parent: Array
    lane: Array
    ts: Array
    dur: Array


@jit
def _around(nodes: _Nested, opens: Array, closes: Array, lanes: int) -> Array:
    """What each node lies in, for the model: its parent, or the range that opened its module.

    FSDP2 states modules in ranges before and behind their forward pass. What lies between them, in
    the same node, is of that module.
    """
    around = nodes.parent.copy()
    opened = np.full((lanes, _DEEPEST), -1, np.int32)
    depth = np.zeros(lanes, np.int32)
    for i in range(len(around)):
        p, where = nodes.parent[i], nodes.lane[i]
        while depth[where] and _is_over(nodes, opened[where, depth[where] - 1], nodes.ts[i]):
            depth[where] -= 1
        top = opened[where, depth[where] - 1] if depth[where] else -1
        if top >= 0 and nodes.parent[top] == p:
            around[i] = top
        if opens[i] and depth[where] < _DEEPEST:
            opened[where, depth[where]] = i
            depth[where] += 1
        elif closes[i] and around[i] != p:
            depth[where] -= 1
    return around


@jit
def _is_over(nodes: _Nested, node: int, now: int) -> bool:
    """Whether what holds a node has ended."""
    p = nodes.parent[node]
    return p >= 0 and nodes.ts[p] + nodes.dur[p] <= now


@jit
def _passed_down(around: Array, module: Array, layer: Array) -> None:
    """Fill in what each node lies in."""
    for i in range(len(around)):
        p = around[i]
        if p >= 0:
            module[i] = module[p] if module[i] < 0 else module[i]
            layer[i] = layer[p] if layer[i] < 0 else layer[i]
