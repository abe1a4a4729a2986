"""Dispatches of kernels: what is the same in every run of a program.

Times, processes and identifiers of kernels differ between runs. A dispatch is known by its kernel's
name, how many work-items it has and how many of them a workgroup, and by its place in the order in
which the host submitted the work of its device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import arguments
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

UNKNOWN = -1
_ENDINGS = re.compile(r"(\.kd| \[clone .*\]| \(\.kd\))+$")
_HELPER = re.compile(r"_*amd_rocclr_")
_IN_ITEMS = re.compile(r"ExtModuleLaunchKernel|ExtLaunch")
"""Calls whose grid is of work-items; that of others is of workgroups."""
_MOST_THREADS = 1024
"""No workgroup has more."""
_MANGLED_PART = re.compile(r"\d+")
_ANONYMOUS = ("(anonymous namespace)", "_GLOBAL__N_1")


@dataclass(frozen=True)
class Dispatches:
    """Dispatches of a trace, by device in the order of their submission.

    Parameters
    ----------
    node
        Their nodes.
    device, lane
        Device of each, and number of its lane.
    name
        Name of each, a number of `names`.
    names
        Names without what only some tools put behind them.
    threads, workgroup
        Work-items of the whole grid and of a workgroup; -1 if unknown.
    number
        The number that the process gave it; -1 if unknown.
    """

    node: Array
    device: Array
    lane: Array
    name: Array
    names: list[str]
    threads: Array
    workgroup: Array
    number: Array

    @property
    def helper(self) -> Array:
        """Which are kernels by which the runtime copies and fills memory."""
        helps = np.array([*(is_helper(name) for name in self.names), False])
        found: Array = helps[self.name]
        return found


def plain_name(name: str) -> str:
    """A kernel's name without what only some tools put behind it."""
    return _ENDINGS.sub("", name).strip().strip('"')


def is_helper(name: str) -> bool:
    """Whether a kernel is one of the runtime's own, which copy and fill memory."""
    return _HELPER.match(name) is not None


def base_name(name: str) -> str:
    """The function that a name is of, mangled or not: without scope, parameters and arguments."""
    if name.startswith("_Z"):
        return _of_mangled(name)
    text = name.replace(*_ANONYMOUS)
    text = re.split(r"[<(\[]", text, maxsplit=1)[0].strip()
    return text.rsplit(" ", 1)[-1].rsplit("::", 1)[-1] or name


def _of_mangled(name: str) -> str:
    """The last of the identifiers that a mangled name begins with."""
    at, last = 2, name
    if name[at : at + 1] == "N":
        at += 1
        while name[at : at + 1] in ("K", "V", "r"):
            at += 1
    while length := _MANGLED_PART.match(name, at):
        begin = length.end()
        at = begin + int(length[0][:6])
        last = name[begin:at]
    return last


def dispatches(trace: Trace) -> Dispatches:
    """Dispatches of kernels that compute."""
    node = np.flatnonzero(trace.array("kind") == Kind.KERNEL)
    lane = trace.array("lane")[node]
    device = trace.array("device", "lanes")[lane].astype(np.int64)
    number = _numbers(trace, node)
    correlation = trace.array("correlation")[node]
    told = bool((number >= 0).all())
    submitted = number if told else correlation
    ordered = bool(node.size) and bool((submitted > 0).all() or told)
    order = np.lexsort((trace.array("ts")[node], submitted if ordered else node * 0, device))
    names = list(dict.fromkeys(plain_name(name) for name in trace.names()))
    place = {name: i for i, name in enumerate(names)}
    code = np.array([*(place[plain_name(name)] for name in trace.names()), 0], np.int64)
    threads, workgroup = _shapes(trace, node)
    return Dispatches(
        node=node[order],
        device=device[order],
        lane=trace.array("number", "lanes")[lane][order],
        name=code[trace.array("name")[node]][order],
        names=names,
        threads=threads[order],
        workgroup=workgroup[order],
        number=number[order],
    )


def _numbers(trace: Trace, node: Array) -> Array:
    number, known = arguments.numbers(trace, node, "dispatch_id")
    return np.where(known & (number >= 0), number, UNKNOWN)


def _shapes(trace: Trace, node: Array) -> tuple[Array, Array]:
    """Work-items of each grid and workgroup."""
    grid_size, group_size, grid, group, block = arguments.find(
        trace, node, "grid_size", "workgroup_size", "grid", "workgroup", "block"
    )
    threads, workgroup = (
        np.where(known & (value > 0), value, UNKNOWN)
        for value, known in (arguments.numbers_at(trace.text, f) for f in (grid_size, group_size))
    )
    whole, within, blocks = (_products(trace, found) for found in (grid, group, block))
    threads = np.where((threads < 0) & (blocks < 0), whole, threads)
    workgroup = np.where(workgroup < 0, within, workgroup)
    of_blocks = (whole > 0) & (blocks > 0)
    if not of_blocks.any():
        return threads, workgroup
    if (blocks > _MOST_THREADS).any():  # see converters.kineto_launch
        return np.where(of_blocks, blocks, threads), np.where(of_blocks, whole, workgroup)
    items = np.where(_in_items(trace, node), whole, whole * blocks)
    return np.where(of_blocks, items, threads), np.where(of_blocks, blocks, workgroup)


def _in_items(trace: Trace, node: Array) -> Array:
    """Which were launched by a call whose grid is of work-items."""
    calls = np.array([*(_IN_ITEMS.search(n) is not None for n in trace.names()), False])
    launch = trace.launch[node]
    name = trace.array("name")[launch]
    return np.asarray((launch >= 0) & calls[name])


def _products(trace: Trace, found: arguments.Found) -> Array:
    """Product of the numbers of a list; -1 where there is none."""
    code, lists = arguments.values_at(trace.text, found)
    products = [_product(value) for value in lists]
    return np.array([*products, UNKNOWN], np.int64)[code]


def _product(value: Any) -> int:
    if not isinstance(value, list) or not value:
        return UNKNOWN
    product = 1
    for size in value:
        if not isinstance(size, int) or not 0 < size < 1 << 32:
            return UNKNOWN
        product *= size
    return product if product < 1 << 62 else UNKNOWN
