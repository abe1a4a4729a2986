"""Checks for launch shapes and call names that builds of PyTorch on rocprofiler-sdk write wrongly.

Since September 2025 such builds write a workgroup's threads as ``grid`` and the grid's threads as
``block``, on kernels and launches, and name some calls of HIP after others. The first shows by what
GPUs can do: no workgroup has more than 1,024 threads. The second shows on launches, as a call with
a ``grid`` is a launch. Arguments and names stay as they were recorded.

Compiled: values are looked up in the text of every launch, without parsing the rest.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit
from chopper_interop.io import json_text
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

SWAPPED = Fault.error(
    "grid-block-swapped",
    "Kernels with more than 1,024 threads in a block, which no GPU has: this "
    "build of the profiler writes as `grid` what is the block, and as `block` the threads of the "
    "whole grid, for all kernels of the file. Arguments are left as they are.",
)
MISNAMED = Fault.error(
    "api-name-wrong",
    "Calls with a grid, which makes them launches, under names of other calls: "
    "this build of the profiler mixes up names of calls, so others may be wrong too. Names are "
    "left as they are.",
)

_MAX_THREADS = 1024
"""Threads of a workgroup: the limit of all GPUs of AMD and NVIDIA."""
_PROBES = 1000
"""Kernels that are probed in a file that does not state what wrote it; chosen: such builds swap all
shapes, and among 1,000 kernels one of more than 1,024 threads is all but certain."""
_MAX_PRODUCT = 1 << 31
"""Neither extents nor their product up to the last go beyond it, so that int64 holds it."""
_WRITER = "rocprofiler-sdk_version"
_OTHER_WRITERS = ("roctracer_version", "cupti_version")
_LAUNCH = re.compile(r"launch", re.IGNORECASE)


def check_launches(trace: Trace, header: dict[str, Any], issues: IssueLog) -> None:
    """Count launch shapes and names of launches that cannot be true."""
    if _WRITER not in header and any(writer in header for writer in _OTHER_WRITERS):
        return
    kind = trace.array("kind")
    kernels = np.flatnonzero((kind == Kind.KERNEL) | (kind == Kind.COMM))
    if _WRITER not in header and not _any_swapped(trace, kernels[:: len(kernels) // _PROBES + 1]):
        return
    check_all(trace, issues)


def check_all(trace: Trace, issues: IssueLog) -> None:
    """Count what `check_launches` counts where it cannot rule out that a writer is concerned."""
    kind = trace.array("kind")
    kernels = np.flatnonzero((kind == Kind.KERNEL) | (kind == Kind.COMM))
    threads = _list_products(trace, kernels, "block")
    swapped = np.flatnonzero(threads > _MAX_THREADS)
    if swapped.size:
        issues.add(SWAPPED, len(swapped), _describe_shape(trace, int(kernels[swapped[0]])))
    _check_names(trace, issues)


def _any_swapped(trace: Trace, kernels: Array) -> bool:
    return bool((_list_products(trace, kernels, "block") > _MAX_THREADS).any())


def _check_names(trace: Trace, issues: IssueLog) -> None:
    names = trace.names()
    is_launch_name = np.array([_LAUNCH.search(name) is not None for name in [*names, ""]])
    name = trace.array("name")
    calls = np.flatnonzero((trace.array("kind") == Kind.RUNTIME) & ~is_launch_name[name])
    threads = _list_products(trace, calls, "grid")
    misnamed = calls[threads > 0]
    if misnamed.size:
        issues.add(MISNAMED, len(misnamed), repr(names[name[misnamed[0]]]))


def _describe_shape(trace: Trace, node: int) -> str:
    """Describe the recorded and the true shape of a kernel."""
    args = trace.args(node)
    grid, block = args.get("grid"), args.get("block")
    name = trace.names()[trace.array("name")[node]]
    return (
        f"{name[:40]!r} says grid {grid}, block {block}: it ran {block} threads in blocks of {grid}"
    )


def _list_products(trace: Trace, nodes: Array, key: str) -> Array:
    """Product of the numbers in a list among each node's arguments; 0 where it is not one."""
    length = trace.array("args_len")[nodes].astype(np.int64)
    buffer, at = trace.text.block(trace.array("args_at")[nodes], length)
    key_bytes = np.frombuffer(key.encode(), np.uint8)
    return _products(buffer, np.ascontiguousarray(at, np.int64), length, key_bytes)


# Loops over bytes, as decoding the arguments of all kernels takes longer than reading the file.


# Compiled: the list of extents is read in each kernel's own text, without an object for it.
@jit
def _products(buffer: Bytes, at: Array, length: Array, key: Bytes) -> Array:
    products = np.zeros(len(at), np.int64)
    for row in range(len(at)):
        stop = at[row] + length[row]
        value = _value_of(buffer, at[row] + 1, stop, key)
        if value >= 0 and buffer[value] == json_text.OPEN_LIST:
            products[row] = _product(buffer, value + 1, stop)
    return products


@jit
def _value_of(buffer: Bytes, i: int, n: int, key: Bytes) -> int:
    """Return where the value of a key is in the object whose members begin at `i`; -1 if none."""
    i = json_text.skip_blank(buffer, i, n)
    while i < n and buffer[i] == json_text.QUOTE:
        start = i + 1
        i = json_text.skip_string(buffer, i, n)
        if i < 0:
            return -1
        same = i - 1 - start == len(key) and bool(np.all(buffer[start : i - 1] == key))
        i = json_text.skip_blank(buffer, json_text.skip_blank(buffer, i, n) + 1, n)
        if i >= n or same:
            return i if i < n else -1
        i = json_text.skip_value(buffer, i, n)
        i = json_text.skip_blank(buffer, i, n) if i >= 0 else n
        i = json_text.skip_blank(buffer, i + 1, n) if i < n and buffer[i] == json_text.COMMA else n
    return -1


@jit
def _product(buffer: Bytes, i: int, n: int) -> int:
    """Return the product of the numbers up to the list's end; 0 if not numbers, or too large."""
    product = 1
    while i < n:
        i = json_text.skip_blank(buffer, i, n)
        value, i, good = json_text.parse_decimal(buffer, i, n, 0)
        if not good or value < 0 or value > _MAX_PRODUCT or product > _MAX_PRODUCT:
            return 0
        product *= value
        i = json_text.skip_blank(buffer, i, n)
        if i >= n or buffer[i] != json_text.COMMA:
            return product
        i += 1
    return 0
