"""Launch shapes and call names that builds of PyTorch on rocprofiler-sdk wrote wrongly.

Since September 2025 such builds write a workgroup's threads as ``grid`` and the grid's threads as
``block``, on kernels and launches, and name some calls of HIP after others. What GPUs can do tells
the first: no workgroup has more than 1,024 threads. A call with a ``grid`` is a launch, which
tells the second for launches. Arguments and names stay as they were recorded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns.compiled import jit
from chopper_interop.files.jsontext import (
    COMMA,
    OPEN_LIST,
    QUOTE,
    blank,
    decimal,
    skip_string,
    skip_value,
)
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

    Bytes = npt.NDArray[np.uint8]

SWAPPED = Fault(
    "grid-block-swapped",
    Severity.ERROR,
    "Kernels with more than 1,024 threads in a block, which no GPU has: this build of the profiler "
    "writes as `grid` what is the block, and as `block` the threads of the whole grid, for all "
    "kernels of the file. Arguments are left as they are.",
)
MISNAMED = Fault(
    "api-name-wrong",
    Severity.ERROR,
    "Calls with a grid, which makes them launches, under names of other calls: this build of the "
    "profiler mixes names of calls up, others may be wrong too. Names are left as they are.",
)

_MOST_THREADS = 1024
_PROBED = 1000
_WRITER = "rocprofiler-sdk_version"
_OTHER_WRITERS = ("roctracer_version", "cupti_version")
_LAUNCH = re.compile(r"launch", re.IGNORECASE)


def check(trace: Trace, header: dict[str, Any], issues: IssueLog) -> None:
    """Note launch shapes and launches' names that cannot be."""
    if _WRITER not in header and any(writer in header for writer in _OTHER_WRITERS):
        return
    kind = trace.array("kind")
    kernels = np.flatnonzero((kind == Kind.KERNEL) | (kind == Kind.COMM))
    if _WRITER not in header and not _any_swapped(trace, kernels[:: len(kernels) // _PROBED + 1]):
        return
    threads = _products(trace, kernels, "block")
    swapped = np.flatnonzero(threads > _MOST_THREADS)
    if swapped.size:
        issues.add(SWAPPED, len(swapped), _shape(trace, int(kernels[swapped[0]])))
    _names(trace, issues)


def _any_swapped(trace: Trace, kernels: Array) -> bool:
    return bool((_products(trace, kernels, "block") > _MOST_THREADS).any())


def _names(trace: Trace, issues: IssueLog) -> None:
    launch = np.array([_LAUNCH.search(name) is not None for name in [*trace.names(), ""]])
    calls = np.flatnonzero((trace.array("kind") == Kind.RUNTIME) & ~launch[trace.array("name")])
    threads = _products(trace, calls, "grid")
    wrong = calls[threads > 0]
    if wrong.size:
        issues.add(MISNAMED, len(wrong), repr(trace.names()[trace.array("name")[wrong[0]]]))


def _shape(trace: Trace, node: int) -> str:
    """Recorded and right shape of a kernel."""
    args = trace.args(node)
    grid, block = args.get("grid"), args.get("block")
    name = trace.names()[trace.array("name")[node]]
    return (
        f"{name[:40]!r} says grid {grid}, block {block}: it ran {block} threads in blocks of {grid}"
    )


def _products(trace: Trace, nodes: Array, key: str) -> Array:
    """Product of the numbers in the list that an argument of each node is; 0 where it is none."""
    length = trace.array("args_len")[nodes].astype(np.int64)
    buffer, at = trace.text.block(trace.array("args_at")[nodes], length)
    wanted = np.frombuffer(key.encode(), np.uint8)
    return _multiplied(buffer, np.ascontiguousarray(at, np.int64), length, wanted)


@jit
def _multiplied(buffer: Bytes, at: Array, length: Array, wanted: Bytes) -> Array:
    found = np.zeros(len(at), np.int64)
    for row in range(len(at)):
        stop = at[row] + length[row]
        value = _value_of(buffer, at[row] + 1, stop, wanted)
        if value >= 0 and buffer[value] == OPEN_LIST:
            found[row] = _product(buffer, value + 1, stop)
    return found


@jit
def _value_of(buffer: Bytes, i: int, n: int, wanted: Bytes) -> int:
    """Offset of the value of a key in the object whose members begin at `i`; -1 if none."""
    i = blank(buffer, i, n)
    while i < n and buffer[i] == QUOTE:
        key = i + 1
        i = skip_string(buffer, i, n)
        if i < 0:
            return -1
        same = i - 1 - key == len(wanted) and bool(np.all(buffer[key : i - 1] == wanted))
        i = blank(buffer, blank(buffer, i, n) + 1, n)
        if i >= n or same:
            return i if i < n else -1
        i = skip_value(buffer, i, n)
        i = blank(buffer, i, n) if i >= 0 else n
        i = blank(buffer, i + 1, n) if i < n and buffer[i] == COMMA else n
    return -1


@jit
def _product(buffer: Bytes, i: int, n: int) -> int:
    """Product of the numbers up to the list's end, 0 if something else is there, or too much."""
    product = 1
    while i < n:
        i = blank(buffer, i, n)
        value, i, good = decimal(buffer, i, n, 0)
        if not good or value < 0 or value > 1 << 31 or product > 1 << 31:
            return 0
        product *= value
        i = blank(buffer, i, n)
        if i >= n or buffer[i] != COMMA:
            return product
        i += 1
    return 0
