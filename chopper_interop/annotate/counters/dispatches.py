"""Dispatches of kernels, described by what is the same in every run of a program.

Times, processes and identifiers of kernels differ between runs. A dispatch is identified by its
kernel's name, its number of work-items, the number of these in a workgroup, and by its position in
the order in which the host submitted the work of its device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from chopper_interop import arguments
from chopper_interop.arrays import Array
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

UNKNOWN = -1
_ENDINGS = re.compile(r"(?:\.kd| \[clone [^\[\]]*\]| \(\.kd\)){1,8}$")
_HELPER = re.compile(r"_*amd_rocclr_")
_IN_ITEMS = re.compile(r"ExtModuleLaunchKernel|ExtLaunch")
"""Calls whose grid is given in work-items; that of others is given in workgroups."""
_MAX_WORKGROUP = 1024
"""No workgroup has more work-items: the limit of CUDA and HIP."""
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
        Name of each, an index of `names`.
    names
        Names without suffixes that only some tools add.
    threads, workgroup
        Work-items of the whole grid and of a workgroup; `UNKNOWN` if not stated.
    number
        The number that the process gave it; `UNKNOWN` if not stated.
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
        """Mark the kernels by which the runtime copies and fills memory."""
        of_name = np.array([*(is_helper(name) for name in self.names), False])
        return of_name[self.name]


def plain_name(name: str) -> str:
    """Return a kernel's name without suffixes that only some tools add, such as `` [clone .kd]``."""
    return _ENDINGS.sub("", name).strip().strip('"')


def is_helper(name: str) -> bool:
    """Return true for the runtime's own kernels, which copy and fill memory."""
    return _HELPER.match(name) is not None


def base_name(name: str) -> str:
    """Return the function in a name, mangled or not: without scope, parameters and arguments."""
    if name.startswith("_Z"):
        return _base_of_mangled(name)
    text = name.replace(*_ANONYMOUS)
    text = re.split(r"[<(\[]", text, maxsplit=1)[0].strip()
    return text.rsplit(" ", 1)[-1].rsplit("::", 1)[-1] or name


def _base_of_mangled(name: str) -> str:
    """Return the last of the identifiers with which a mangled name begins."""
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


def read_dispatches(trace: Trace) -> Dispatches:
    """Read the dispatches of kernels that compute, ordered by device and submission.

    The order is that of the processes' numbers, else of correlation ids, else of start times.
    """
    node = np.flatnonzero(trace.array("kind") == Kind.KERNEL)
    lane = trace.array("lane")[node]
    device = trace.array("device", "lanes")[lane].astype(np.int64)
    number = _numbers(trace, node)
    correlation = trace.array("correlation")[node]
    all_numbered = bool((number >= 0).all())
    submitted = number if all_numbered else correlation
    ordered = bool(node.size) and bool((submitted > 0).all() or all_numbered)
    order = np.lexsort((trace.array("ts")[node], submitted if ordered else node * 0, device))
    plain = list(map(plain_name, trace.names()))
    names = list(dict.fromkeys(plain))
    index = {name: i for i, name in enumerate(names)}
    code = np.array([*(index[name] for name in plain), 0], np.int64)
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
    number, known = arguments.integers(trace, node, "dispatch_id")
    return np.where(known & (number >= 0), number, UNKNOWN)


def _shapes(trace: Trace, node: Array) -> tuple[Array, Array]:
    """Work-items of each grid and workgroup; `UNKNOWN` where they are not stated."""
    lists, sizes = arguments.find_with_integers(
        trace, node, ("grid", "workgroup", "block"), ("grid_size", "workgroup_size")
    )
    threads, workgroup = (
        np.where(size.known & (size.value > 0), size.value, UNKNOWN) for size in sizes
    )
    grids, groups, blocks = (_products(trace, located) for located in lists)
    threads = np.where((threads < 0) & (blocks < 0), grids, threads)
    workgroup = np.where(workgroup < 0, groups, workgroup)
    has_blocks = (grids > 0) & (blocks > 0)
    if not has_blocks.any():
        return threads, workgroup
    if (blocks > _MAX_WORKGROUP).any():  # grid and block are swapped, see converters.kineto_launch
        return np.where(has_blocks, blocks, threads), np.where(has_blocks, grids, workgroup)
    items = np.where(_grid_in_items(trace, node), grids, grids * blocks)
    return np.where(has_blocks, items, threads), np.where(has_blocks, blocks, workgroup)


def _grid_in_items(trace: Trace, node: Array) -> Array:
    """Mark the nodes that were launched by a call whose grid is given in work-items."""
    calls = np.array([*(_IN_ITEMS.search(n) is not None for n in trace.names()), False])
    launch = trace.launch[node]
    name = trace.array("name")[launch]
    return np.asarray((launch >= 0) & calls[name])


def _products(trace: Trace, located: arguments.ArgumentRanges) -> Array:
    """Product of the numbers of each list; `UNKNOWN` where there is no list of positive numbers."""
    code, lists = arguments.values_at(trace.text, located)
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
