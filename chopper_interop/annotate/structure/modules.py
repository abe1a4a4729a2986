"""The module and the layer of the model that each host node is in.

Modules are named by their path in the model (FSDP2's ranges, module hierarchies of scripts) or by
their class and a number in order of first occurrence (``nn.Module: LlamaDecoderLayer_3``). A layer is
one of a list of blocks of the model: ``layers.3``, or one of the outermost class of which one parent
calls several. Where a model has several such lists, their layers are numbered consecutively. Nodes of
the backward pass are in the modules and layers of the forward operators that they come from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop import arguments
from chopper_interop.annotate.structure.names import MODULE, Names, module_in_range
from chopper_interop.arrays import Array, gather, nest
from chopper_interop.arrays.compiled import jit
from chopper_interop.arrays.gather import is_any
from chopper_interop.grouping import grouped
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import RANGES, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.annotate.structure.autograd import Autograd
    from chopper_interop.arguments import ArgumentRanges


SEVERAL_LISTS = Fault.info(
    "layers-of-several-lists",
    "The model has several lists of blocks: their layers are numbered one list after the other.",
)
UNITS_COUNTED = Fault.info(
    "layers-by-fsdp-units",
    "The layers have no names: the FSDP units that the forward pass of the "
    "outermost unit calls were taken for them, in that order.",
)
_CALL = re.compile(r"(?:^|\.)([^.()]+)\(([^()]*)\)::")
_UNIT = "FullyShardedDataParallel.forward"
_NO_MODULE = ("TOP", "SELF", "INSTANCE_NAME_UNKNOWN")
_INSTANCE = re.compile(r"(.+)_(\d+)$")
_CONTAINERS = re.compile(
    r"Sequential|ModuleList|ModuleDict|\w*CheckpointWrapper|OffloadWrapper|OptimizedModule"
    r"|(?:Distributed|FullySharded|)DataParallel|FullyShardedDataParallel|Float16Module|\w*DDP"
)
"""Classes that only contain others."""
_MIN_BLOCKS = 3
"""Chosen: fewer modules of a class are not the list of blocks if there is a list within them, as in a
model of an encoder and a decoder."""
_MAX_LENGTH_RATIO = 4
"""Chosen: a class with less than this part of the blocks of the longest list is not a list."""
_RANGES, _CALLS, _HIERARCHIES = range(3)
"""Sources that state modules, the first that counts first."""
Callees = dict[str | None, list[str]]
"""Modules that each module calls; those of None have no caller."""


@dataclass(frozen=True)
class Modules:
    """Module and layer of each host node.

    Parameters
    ----------
    module
        Index of `texts`; -1 for none.
    layer
        Number of the layer; -1 for none.
    texts
        Names of modules.
    """

    module: Array
    layer: Array
    texts: list[str]


class StatedModules(NamedTuple):
    """Modules that some ranks state.

    Parameters
    ----------
    texts
        Names, each with the place that it has among those of all ranks: in ranges, in calls, in hierarchies.
    calls
        Modules that call others, None for no module, and those that they call, in order of the first calls.
    """

    texts: dict[str, tuple[int, int]]
    calls: list[tuple[str | None, str]]


def stated_modules(
    trace: Trace, names: Names, operators: Array, hierarchy: ArgumentRanges
) -> StatedModules:
    """Read which modules ranks state; parameters as of `read_modules`."""
    return _own_modules(trace, names, operators, hierarchy)[0]


class BlockLists(NamedTuple):
    """Lists of blocks of a job: layers of its modules by their paths and by their classes, and names of the lists."""

    by_path: dict[str, int]
    paths: list[str]
    by_class: dict[str, int]
    classes: list[str]

    @classmethod
    def of(cls, batches: Sequence[StatedModules]) -> BlockLists:
        """Find the lists of a job by the modules that the ranks of each batch state."""
        places: dict[str, tuple[int, ...]] = {}
        for number, stated in enumerate(batches):
            for text, (source, place) in stated.texts.items():
                key = source, number * (source == _HIERARCHIES), place
                places[text] = min(places.get(text, key), key)
        texts = sorted(places, key=places.__getitem__)
        calls = list(dict.fromkeys(call for stated in batches for call in stated.calls))
        by_path, paths = layers_of_paths(texts)
        by_class, classes = layers_of_classes(calls)
        return cls(dict(zip(texts, by_path, strict=True)), paths, by_class, classes)


def read_modules(  # what modules and layers follow from
    trace: Trace, names: Names, operators: Array, hierarchy: ArgumentRanges, issues: IssueLog,
    lists: BlockLists | None = None,
) -> Modules:  # fmt: skip
    """Read modules and layers from ranges, calls of modules and the `hierarchy` of operators.

    Lists of blocks are those of the job, or of all these ranks if None.
    """
    stated, module = _own_modules(trace, names, operators, hierarchy)
    texts = list(stated.texts)
    if not texts and not names.unit.any() and (names.layer < 0).all():  # none states any
        return Modules(module, module, texts)
    lists = BlockLists.of([stated]) if lists is None else lists
    layer = _own_layers(trace, names, module, texts, lists, issues)
    ranges = is_any(trace.array("kind"), RANGES)
    name = trace.array("name")
    opens, closes = names.opens[name] & ranges, names.closes[name] & ranges
    nodes = _Nested(*(trace.array(c) for c in ("parent", "lane", "ts", "dur")))
    around = _model_parents(nodes, opens, closes, len(trace.lanes))
    return Modules(nest.inherited(around, module), nest.inherited(around, layer), texts)


def _own_modules(
    trace: Trace, names: Names, operators: Array, hierarchy: ArgumentRanges
) -> tuple[StatedModules, Array]:
    """Modules that are stated, and the index of the one that each node states itself."""
    kind, name = trace.array("kind"), trace.array("name")
    all_names = trace.names()
    numbers: dict[str, int] = {}
    places: dict[str, tuple[int, int]] = {}
    ranges = is_any(kind, RANGES)
    of_name = np.full(len(all_names) + 1, -1, np.int32)
    for code in gather.unique_codes(name[ranges]).tolist():
        if text := module_in_range(all_names[code]):
            of_name[code] = numbers.setdefault(text, len(numbers))
            places.setdefault(text, (_RANGES, code))
    module = np.where(ranges, of_name[name], -1)
    calls = names.module[name] & (kind == Kind.PYTHON)
    for code in gather.unique_codes(name[calls]).tolist():
        text = all_names[code][len(MODULE) :]
        of_name[code] = numbers.setdefault(text, len(numbers))
        places.setdefault(text, (_CALLS, code))
    module = np.where(calls, of_name[name], module)
    code, hierarchies = arguments.values_at(trace.text, hierarchy)
    paths = [_path_of_hierarchy(value) for value in hierarchies]
    by_path = np.array([numbers.setdefault(p, len(numbers)) if p else -1 for p in paths] + [-1])
    for place, path in enumerate(filter(None, paths)):
        places.setdefault(path, (_HIERARCHIES, place))
    module[operators] = np.where(by_path[code] >= 0, by_path[code], module[operators])
    _name_calls_by_ranges(trace.array("parent"), calls, names.opens[name] & ranges, module)
    called = _called(trace.array("parent"), calls, module, list(numbers))
    return StatedModules(places, called), module.astype(np.int32, copy=False)


# Compiled: from each range, parents are followed up to the call of a module.
@jit
def _name_calls_by_ranges(parent: Array, calls: Array, opens: Array, module: Array) -> None:
    """Replace the module of each call by the path that FSDP's range in it states, in place."""
    for i in range(len(parent)):
        if opens[i] and module[i] >= 0:
            p = parent[i]
            while p >= 0 and not calls[p]:
                p = parent[p]
            if p >= 0:
                module[p] = module[i]


def _path_of_hierarchy(hierarchy: Any) -> str:
    """Path of a module in the stack of calls of a script: ``TOP(A)::forward.b(B)::forward.``."""
    if not isinstance(hierarchy, str):
        return ""
    return ".".join(n for n, _ in _CALL.findall(hierarchy) if n not in _NO_MODULE)


def _own_layers(
    trace: Trace, names: Names, module: Array, texts: list[str], lists: BlockLists, issues: IssueLog
) -> Array:
    """Layer that each node states: in words, by its module's path or class, or as an FSDP unit.

    On each rank the first of these that occurs counts.
    """
    kind, name = trace.array("kind"), trace.array("name")
    ranges = is_any(kind, RANGES)
    in_words = np.where(ranges, names.layer[name], -1)
    result = np.full(len(kind), -1, np.int32)
    by_path, by_class = (
        np.array([*(of.get(text, -1) for text in texts), -1]).astype(np.int32)[module]
        for of in (lists.by_path, lists.by_class)
    )
    units = layers_of_units(trace, names.unit[name] & ranges)
    none: list[str] = []
    sources = (
        (in_words, none), (by_path, lists.paths), (by_class, lists.classes), (units, none),
    )  # fmt: skip
    of_ranks = trace.rank_rows.values()
    starts = [rows.start for rows in of_ranks]
    occurs = [np.logical_or.reduceat(layers >= 0, starts).tolist() for layers, _ in sources]
    for rows, *present in zip(of_ranks, *occurs, strict=True):
        for (layers, used), is_present in zip(sources, present, strict=True):
            if is_present:
                result[rows] = layers[rows]
                if layers is units:
                    issues.add(UNITS_COUNTED, len(np.unique(units[rows])) - 1, _UNIT)
                if len(used) > 1:
                    issues.add(SEVERAL_LISTS, len(used), ", ".join(sorted(used)[:4]))
                break
    return result


_MAX_DEPTH = 32
"""Chosen: FSDP modules in one another; more than any model has."""


class _Nested(NamedTuple):
    """Columns that say how nodes are nested."""

    parent: Array
    lane: Array
    ts: Array
    dur: Array


# Compiled: a stack of open modules for each lane, in the order of nodes.
#
#   parent  [ pre_forward (layers.0) ]  [ op ]  [ op ]  [ post_forward (layers.0) ]
#                                        └─ lie in layers.0 ─┘
@jit
def _model_parents(nodes: _Nested, opens: Array, closes: Array, lanes: int) -> Array:
    """For each node its parent, or the range that opened the module that it lies in.

    FSDP2 states modules in ranges before and after their forward pass. What lies between them, with
    the same parent, is part of that module.
    """
    around = nodes.parent.copy()
    opened = np.full((lanes, _MAX_DEPTH), -1, np.int32)
    depth = np.zeros(lanes, np.int32)
    for i in range(len(around)):
        p, lane = nodes.parent[i], nodes.lane[i]
        while depth[lane] and _has_ended(nodes, opened[lane, depth[lane] - 1], nodes.ts[i]):
            depth[lane] -= 1
        top = opened[lane, depth[lane] - 1] if depth[lane] else -1
        if top >= 0 and nodes.parent[top] == p:
            around[i] = top
        if opens[i] and depth[lane] < _MAX_DEPTH:
            opened[lane, depth[lane]] = i
            depth[lane] += 1
        elif closes[i] and around[i] != p:
            depth[lane] -= 1
    return around


@jit
def _has_ended(nodes: _Nested, node: int, now: int) -> bool:
    """Return true if the parent of a node has ended."""
    p = nodes.parent[node]
    return p >= 0 and nodes.ts[p] + nodes.dur[p] <= now


_ROUNDS = 4
"""Forward, backward, what is recomputed there, and its own backward pass."""


def add_backward_modules(
    trace: Trace, names: Names, autograd: Autograd, modules: Modules
) -> Modules:
    """Add modules and layers of the backward pass: those of the forward operators."""
    parent, lane = trace.array("parent"), trace.array("lane")
    name = trace.array("name")
    if not (modules.module >= 0).any() and not (modules.layer >= 0).any():
        return modules
    module, layer = modules.module.copy(), modules.layer.copy()
    for _ in range(_ROUNDS):
        if not _inherit_backward(parent, autograd.forward, module, layer):
            break
    calls = np.flatnonzero(names.engine[name] & (trace.array("kind") == Kind.CPU_OP))
    previous = _previous_on_lane(lane[calls], len(trace.lanes))
    _fill_accumulation(calls, previous, names.accumulates[name[calls]], module, layer)
    _inherit_backward(parent, autograd.forward, module, layer)
    return Modules(module, layer, modules.texts)


# Compiled: values go from forward operators and parents to each node, in the order of nodes.
@jit
def _inherit_backward(parent: Array, forward: Array, module: Array, layer: Array) -> bool:
    """Fill in values of forward operators and parents, in place; true if any was filled in."""
    changed = False
    for i in range(len(parent)):
        for source in (forward[i], parent[i]):
            if source >= 0:
                if module[i] < 0 and module[source] >= 0:
                    module[i] = module[source]
                    changed = True
                if layer[i] < 0 and layer[source] >= 0:
                    layer[i] = layer[source]
                    changed = True
    return changed


# Compiled: the last node of each lane is carried along.
@jit
def _previous_on_lane(lane: Array, lanes: int) -> Array:
    """For each of some nodes the index of the one before it on its lane, -1 for none."""
    last = np.full(lanes, -1, np.int32)
    previous = np.full(len(lane), -1, np.int32)
    for i in range(len(lane)):
        previous[i] = last[lane[i]]
        last[lane[i]] = i
    return previous


# Compiled: one accumulation may take its values from another that was filled in before.
@jit
def _fill_accumulation(
    calls: Array, previous: Array, accumulates: Array, module: Array, layer: Array
) -> None:
    """Copy values of the engine's call before it to each accumulation of a gradient, in place.

    An accumulation has no number, but is done as soon as the gradient is there.
    """
    for k in range(len(calls)):
        i = calls[k]
        if accumulates[k] and previous[k] >= 0 and layer[i] < 0:
            before = calls[previous[k]]
            layer[i] = layer[before]
            module[i] = module[before]


def layers_of_paths(texts: Sequence[str]) -> tuple[list[int], list[str]]:
    """Layer of each module by its path, and the paths of the lists of blocks.

    The first number in a path decides: ``model.layers.3.mlp.experts.5`` is in layer 3.
    """
    positions = [_position_in_list(text) for text in texts]
    highest: dict[str, int] = {}
    for position in positions:
        if position:
            highest[position[0]] = max(highest.get(position[0], 0), position[1])
    first = dict(zip(highest, _first_numbers(highest.values()), strict=True))
    return [first[p[0]] + p[1] if p else -1 for p in positions], list(highest)


def _position_in_list(text: str) -> tuple[str, int] | None:
    """Path of the list that a module is in, and its number there; None if it is in none."""
    parts = text.split(".")
    for i, part in enumerate(parts):
        if i and part.isdigit() and len(part) < 6:  # noqa: PLR2004 # no model has so many
            return ".".join(parts[:i]), int(part)
    return None


def _first_numbers(highest_numbers: Iterable[int]) -> list[int]:
    """First layer of each list if lists are numbered one after the other, from 0 on."""
    first_numbers, first = [], 0
    for highest in highest_numbers:
        first_numbers.append(first)
        first += highest + 1
    return first_numbers


def layers_of_classes(calls: Sequence[tuple[str | None, str]]) -> tuple[dict[str, int], list[str]]:
    """Layer of each module by its class and number, and the classes that are blocks; calls as of `StatedModules`."""
    layers: dict[str, int] = {}
    matches = {text: _INSTANCE.fullmatch(text) for _, text in calls}
    instances = {
        m: (match.group(1), match.group(2))
        for m, match in matches.items()
        if match and len(match.group(2)) < 9  # noqa: PLR2004 # fits into 32 bits
    }
    # modules that each module calls, ordered by their numbers
    children = grouped(sorted(calls, key=lambda call: _number_of(instances, call[1])))
    blocks = _find_blocks(children, instances)
    longest = max((len(members) for members in blocks.values()), default=0)
    lists = {c: m for c, m in blocks.items() if len(m) * _MAX_LENGTH_RATIO >= longest}
    numbers = {c: [int(instances[m][1]) for m in members] for c, members in lists.items()}
    first_numbers = _first_numbers(max(n) for n in numbers.values())
    for (cls, members), first in zip(lists.items(), first_numbers, strict=True):
        layers |= {
            member: first + number for member, number in zip(members, numbers[cls], strict=True)
        }
    return layers, list(lists)


def _called(
    parent: Array, calls: Array, module: Array, texts: list[str]
) -> list[tuple[str | None, str]]:
    """Modules that call others, None for no module, and those that they call, in order of the first calls."""
    around = nest.around(parent, calls)
    rows = np.flatnonzero(calls)
    callers = np.where(around[rows] >= 0, module[around[rows]], -1)
    first, _ = gather.distinct(callers, module[rows])
    pairs = zip(callers[first].tolist(), module[rows][first].tolist(), strict=True)
    return [(texts[a] if a >= 0 else None, texts[b]) for a, b in pairs]


def _number_of(instances: dict[str, tuple[str, str]], module: str) -> int:
    return int(instances[module][1]) if module in instances else -1


def layers_of_units(trace: Trace, units: Array) -> Array:
    """Number of each FSDP unit among those that the outermost unit calls; -1 for all other nodes."""
    result = np.full(len(units), -1, np.int32)
    if units.any():
        _count_units(units, nest.around(trace.array("parent"), units), result)
    return result


# Compiled: a counter for each outermost unit is carried along.
@jit
def _count_units(units: Array, around: Array, result: Array) -> None:
    count = np.zeros(len(units), np.int32)
    for i in range(len(units)):
        outer = around[i]
        if units[i] and outer >= 0 and around[outer] < 0:
            result[i] = count[outer]
            count[outer] += 1


def _find_blocks(children: Callees, instances: dict[str, tuple[str, str]]) -> dict[str, list[str]]:
    """Modules of each class of blocks, the outermost that are enough."""
    blocks = _blocks_below([None], children, instances)
    while 0 < sum(map(len, blocks.values())) < _MIN_BLOCKS:
        inner = _blocks_below(list(_modules(blocks)), children, instances)
        if not inner or set(_modules(inner)) & set(_modules(blocks)):
            break
        blocks = inner
    return blocks


def _modules(blocks: dict[str, list[str]]) -> Iterable[str]:
    return (m for members in blocks.values() for m in members)


def _blocks_below(
    front: Sequence[str | None], children: Callees, instances: dict[str, tuple[str, str]]
) -> dict[str, list[str]]:
    """Outermost blocks that some modules contain: modules of a class of which one calls several."""
    blocks: dict[str, list[str]] = {}
    seen = set(front)
    while front:
        beneath: list[str] = []
        for caller in front:
            by_class: dict[str, list[str]] = {}
            for called in _through_containers(caller, children, instances):
                if called not in seen:
                    seen.add(called)
                    cls = instances[called][0] if called in instances else ""
                    by_class.setdefault(cls, []).append(called)
            for cls, members in by_class.items():
                with_children = [m for m in members if children.get(m)]
                if cls and len(with_children) > 1:
                    blocks.setdefault(cls, []).extend(members)
                else:
                    beneath += with_children
        front = beneath
    return blocks


def _through_containers(
    caller: str | None, children: Callees, instances: dict[str, tuple[str, str]]
) -> list[str]:
    """Modules that a module calls, with containers replaced by what they call."""
    called: list[str] = []
    stack = list(reversed(children.get(caller, [])))
    seen = set(stack)
    while stack:
        module = stack.pop()
        cls = instances[module][0] if module in instances else ""
        if not _CONTAINERS.fullmatch(cls):
            called.append(module)
            continue
        inner = [m for m in children.get(module, []) if m not in seen]
        seen |= set(inner)
        stack += reversed(inner)
    return called
