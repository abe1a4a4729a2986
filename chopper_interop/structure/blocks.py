"""Which modules are the repeated blocks of a model, and their numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.compiled import jit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

_INSTANCE = re.compile(r"(.+)_(\d+)$")
_CONTAINERS = re.compile(
    r"Sequential|ModuleList|ModuleDict|\w*CheckpointWrapper|OffloadWrapper|OptimizedModule"
    r"|(?:Distributed|FullySharded|)DataParallel|FullyShardedDataParallel|Float16Module|\w*DDP"
)
"""Classes that only hold others."""
_FEW = 3
"""Fewer modules of a class are no list of blocks where something in them is one."""
_SHARE = 4
"""A list with less than the longest's part of blocks is none."""


def of_paths(texts: Sequence[str]) -> tuple[Array, list[str]]:
    """Layer of each module by its place, and the lists that there are.

    The first number in a place tells: ``model.layers.3.mlp.experts.5`` is in layer 3.
    """
    found = [_place(text) for text in texts]
    most: dict[str, int] = {}
    for place in found:
        if place:
            most[place[0]] = max(most.get(place[0], 0), place[1])
    first = dict(zip(most, _starts(most.values()), strict=True))
    layers = [first[place[0]] + place[1] if place else -1 for place in found]
    return np.array(layers, np.int32), list(most)


def _place(text: str) -> tuple[str, int] | None:
    """List and number within it; None if it is in none."""
    parts = text.split(".")
    for i, part in enumerate(parts):
        if i and part.isdigit() and len(part) < 6:  # noqa: PLR2004 # no model has so many
            return ".".join(parts[:i]), int(part)
    return None


def _starts(most: Iterable[int]) -> list[int]:
    """First number of each list, from the highest within each."""
    starts, at = [], 0
    for highest in most:
        starts.append(at)
        at += highest + 1
    return starts


def of_classes(
    trace: Trace, calls: Array, module: Array, texts: Sequence[str]
) -> tuple[Array, list[str]]:
    """Layer of each module by its class and number, and the classes that are blocks."""
    layers = np.full(len(texts), -1, np.int32)
    found = {m: _INSTANCE.fullmatch(texts[m]) for m in gather.used(module[calls]).tolist()}
    instances = {m: (i.group(1), i.group(2)) for m, i in found.items() if i and len(i.group(2)) < 9}  # noqa: PLR2004
    children = _children(trace.array("parent"), calls, module, instances)
    blocks = _blocks(children, instances)
    longest = max((len(members) for members in blocks.values()), default=0)
    kept = {c: members for c, members in blocks.items() if len(members) * _SHARE >= longest}
    numbers = {c: [int(instances[m][1]) for m in members] for c, members in kept.items()}
    for (cls, members), start in zip(
        kept.items(), _starts(max(n) for n in numbers.values()), strict=True
    ):
        layers[members] = start + np.array(numbers[cls])
    return layers, list(kept)


def _children(
    parent: Array, calls: Array, module: Array, instances: dict[int, tuple[str, str]]
) -> dict[int, list[int]]:
    """Modules that each module calls, -1 for what nothing calls; containers left out."""
    around = _callers(parent, calls)
    rows = np.flatnonzero(calls)
    callers = np.where(around[rows] >= 0, module[around[rows]], -1)
    first, _ = gather.distinct(callers, module[rows])
    pairs = np.stack([callers[first], module[rows][first]])
    order = np.argsort([_number(instances, int(m)) for m in pairs[1]], kind="stable")
    held: dict[int, list[int]] = {}
    for caller, called in pairs[:, order].T.astype(int).tolist():
        held.setdefault(caller, []).append(called)
    return held


def _number(instances: dict[int, tuple[str, str]], module: int) -> int:
    return int(instances[module][1]) if module in instances else -1


def of_units(trace: Trace, units: Array) -> Array:
    """Number of each unit among those that the outermost one calls; -1 of all else."""
    result = np.full(len(units), -1, np.int32)
    if units.any():
        _count(units, _callers(trace.array("parent"), units), result)
    return result


@jit
def _count(units: Array, around: Array, result: Array) -> None:
    met = np.zeros(len(units), np.int32)
    for i in range(len(units)):
        outer = around[i]
        if units[i] and outer >= 0 and around[outer] < 0:
            result[i] = met[outer]
            met[outer] += 1


@jit
def _callers(parent: Array, calls: Array) -> Array:
    """The innermost call of a module around each node, -1 for none."""
    around = np.full(len(parent), -1, np.int32)
    for i in range(len(parent)):
        p = parent[i]
        if p >= 0:
            around[i] = p if calls[p] else around[p]
    return around


def _blocks(
    children: dict[int, list[int]], instances: dict[int, tuple[str, str]]
) -> dict[str, list[int]]:
    """Modules of each class of blocks, outermost."""
    found = _blocks_below([-1], children, instances)
    while 0 < sum(map(len, found.values())) < _FEW:
        inner = _blocks_below(list(_all(found)), children, instances)
        if not inner or set(_all(inner)) & set(_all(found)):
            break
        found = inner
    return found


def _all(found: dict[str, list[int]]) -> Iterable[int]:
    return (m for members in found.values() for m in members)


def _blocks_below(
    front: list[int], children: dict[int, list[int]], instances: dict[int, tuple[str, str]]
) -> dict[str, list[int]]:
    """Blocks that some modules hold, none within another."""
    found: dict[str, list[int]] = {}
    seen = set(front)
    while front:
        beneath: list[int] = []
        for caller in front:
            by_class: dict[str, list[int]] = {}
            for called in _held(caller, children, instances):
                if called not in seen:
                    seen.add(called)
                    cls = instances[called][0] if called in instances else ""
                    by_class.setdefault(cls, []).append(called)
            for cls, members in by_class.items():
                holding = [m for m in members if children.get(m)]
                if cls and len(holding) > 1:
                    found.setdefault(cls, []).extend(members)
                else:
                    beneath += holding
        front = beneath
    return found


def _held(
    caller: int, children: dict[int, list[int]], instances: dict[int, tuple[str, str]]
) -> list[int]:
    """What a module calls, through containers."""
    found: list[int] = []
    stack = list(reversed(children.get(caller, [])))
    met = set(stack)
    while stack:
        module = stack.pop()
        cls = instances[module][0] if module in instances else ""
        if not _CONTAINERS.fullmatch(cls):
            found.append(module)
            continue
        inner = [m for m in children.get(module, []) if m not in met]
        met |= set(inner)
        stack += reversed(inner)
    return found
