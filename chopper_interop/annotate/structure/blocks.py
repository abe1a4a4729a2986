"""The repeated blocks of a model among its modules, and their numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import gather
from chopper_interop.arrays.compiled import jit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chopper_interop.arrays.types import Array
    from chopper_interop.trace import Trace

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


def layers_of_paths(texts: Sequence[str]) -> tuple[Array, list[str]]:
    """Layer of each module by its path, and the paths of the lists of blocks.

    The first number in a path decides: ``model.layers.3.mlp.experts.5`` is in layer 3.
    """
    positions = [_position_in_list(text) for text in texts]
    highest: dict[str, int] = {}
    for position in positions:
        if position:
            highest[position[0]] = max(highest.get(position[0], 0), position[1])
    first = dict(zip(highest, _first_numbers(highest.values()), strict=True))
    layers = [first[p[0]] + p[1] if p else -1 for p in positions]
    return np.array(layers, np.int32), list(highest)


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


def layers_of_classes(
    trace: Trace, calls: Array, module: Array, texts: Sequence[str]
) -> tuple[Array, list[str]]:
    """Layer of each module by its class and number, and the classes that are blocks."""
    layers = np.full(len(texts), -1, np.int32)
    matches = {
        m: _INSTANCE.fullmatch(texts[m]) for m in gather.unique_codes(module[calls]).tolist()
    }
    instances = {
        m: (match.group(1), match.group(2))
        for m, match in matches.items()
        if match and len(match.group(2)) < 9  # noqa: PLR2004 # fits into 32 bits
    }
    children = _children(trace.array("parent"), calls, module, instances)
    blocks = _find_blocks(children, instances)
    longest = max((len(members) for members in blocks.values()), default=0)
    lists = {c: m for c, m in blocks.items() if len(m) * _MAX_LENGTH_RATIO >= longest}
    numbers = {c: [int(instances[m][1]) for m in members] for c, members in lists.items()}
    first_numbers = _first_numbers(max(n) for n in numbers.values())
    for (cls, members), first in zip(lists.items(), first_numbers, strict=True):
        layers[members] = first + np.array(numbers[cls])
    return layers, list(lists)


def _children(
    parent: Array, calls: Array, module: Array, instances: dict[int, tuple[str, str]]
) -> dict[int, list[int]]:
    """Modules that each module calls, ordered by their numbers; those of -1 have no caller."""
    around = _callers(parent, calls)
    rows = np.flatnonzero(calls)
    callers = np.where(around[rows] >= 0, module[around[rows]], -1)
    first, _ = gather.distinct(callers, module[rows])
    pairs = np.stack([callers[first], module[rows][first]])
    order = np.argsort([_number_of(instances, int(m)) for m in pairs[1]], kind="stable")
    children: dict[int, list[int]] = {}
    for caller, called in pairs[:, order].T.astype(int).tolist():
        children.setdefault(caller, []).append(called)
    return children


def _number_of(instances: dict[int, tuple[str, str]], module: int) -> int:
    return int(instances[module][1]) if module in instances else -1


def layers_of_units(trace: Trace, units: Array) -> Array:
    """Number of each FSDP unit among those that the outermost unit calls; -1 for all other nodes."""
    result = np.full(len(units), -1, np.int32)
    if units.any():
        _count_units(units, _callers(trace.array("parent"), units), result)
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


# Compiled: the innermost call goes from parents to children, in the order of nodes.
@jit
def _callers(parent: Array, calls: Array) -> Array:
    """The innermost call of a module around each node, -1 for none."""
    around = np.full(len(parent), -1, np.int32)
    for i in range(len(parent)):
        p = parent[i]
        if p >= 0:
            around[i] = p if calls[p] else around[p]
    return around


def _find_blocks(
    children: dict[int, list[int]], instances: dict[int, tuple[str, str]]
) -> dict[str, list[int]]:
    """Modules of each class of blocks, the outermost that are enough."""
    blocks = _blocks_below([-1], children, instances)
    while 0 < sum(map(len, blocks.values())) < _MIN_BLOCKS:
        inner = _blocks_below(list(_modules(blocks)), children, instances)
        if not inner or set(_modules(inner)) & set(_modules(blocks)):
            break
        blocks = inner
    return blocks


def _modules(blocks: dict[str, list[int]]) -> Iterable[int]:
    return (m for members in blocks.values() for m in members)


def _blocks_below(
    front: list[int], children: dict[int, list[int]], instances: dict[int, tuple[str, str]]
) -> dict[str, list[int]]:
    """Outermost blocks that some modules contain: modules of a class of which one calls several."""
    blocks: dict[str, list[int]] = {}
    seen = set(front)
    while front:
        beneath: list[int] = []
        for caller in front:
            by_class: dict[str, list[int]] = {}
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
    caller: int, children: dict[int, list[int]], instances: dict[int, tuple[str, str]]
) -> list[int]:
    """Modules that a module calls, with containers replaced by what they call."""
    called: list[int] = []
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
