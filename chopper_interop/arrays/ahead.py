"""Compilation of loops before a command calls them, by a process of its own next to the command.

The types of what a loop is called with are known only when it is called. Here they are read from a list of the loops that the
sample job's report and conversions call, in their order, which `tests/support/loops.py` makes. The process compiles from the end of it
while the command comes from its beginning; claims (`claims.py`) keep each from compiling what the other one does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chopper_interop.arrays import claims, code_files
from chopper_interop.arrays.compiled import Loop

PATH = Path(__file__).with_name("loops.jsonl")
_ALLOCATIONS = 100_000
"""Objects made between two collections of garbage. Chosen: at Python's 700, collections took a tenth of compiling."""
_LAYOUTS = {"C": slice(None), "A": slice(None, None, 2)}
"""Parts of a contiguous array of which the memory has a layout."""


class ListedLoop(NamedTuple):
    """A loop, by its module and name, and the types of what it is called with."""

    module: str
    name: str
    types: list[Any]


def listed() -> list[ListedLoop]:
    """Return the loops of the list, in the order in which they are called first."""
    return [ListedLoop(*json.loads(line)) for line in PATH.read_text(encoding="utf-8").splitlines()]


def described(value: Any) -> Any:
    """Return the type of an argument as the list has it."""
    if isinstance(value, tuple):
        kind = type(value)
        return {f"{kind.__module__}:{kind.__qualname__}": [described(item) for item in value]}
    if not isinstance(value, np.ndarray):
        return None if value is None else np.asarray(value).dtype.str
    flags = value.flags
    layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
    return [_fields(value.dtype), value.ndim, layout, flags.writeable]


def _fields(dtype: Any) -> Any:
    """Return a type of items; one with fields as the arguments that numpy makes it of."""
    if dtype.names is None:
        return dtype.str
    types, offsets = zip(*(dtype.fields[name][:2] for name in dtype.names), strict=True)
    return [
        dtype.names,
        [_fields(t) for t in types],
        offsets,
        dtype.itemsize,
        dtype.isalignedstruct,
    ]


def sample(kind: Any) -> Any:
    """Return a value of a type of the list, the smallest that numba takes for that type."""
    if isinstance(kind, dict):
        ((name, items),) = kind.items()
        module, _, name = name.partition(":")
        values = map(sample, items)
        made = getattr(importlib.import_module(module), name)
        return made(*values) if hasattr(made, "_fields") else made(values)
    if not isinstance(kind, list):
        return None if kind is None else np.zeros(1, kind)[0]
    fields, ndim, layout, is_mutable = kind
    shape = (4,) * ndim  # of fewer items, any layout is contiguous
    array = np.zeros(shape, _dtype(fields))
    array = array.T.copy("F") if layout == "F" else array[(_LAYOUTS[layout],) * ndim]
    array.setflags(write=is_mutable)
    return array


def _dtype(fields: Any) -> Any:
    if isinstance(fields, str):
        return np.dtype(fields)
    names, formats, offsets, size, is_aligned = fields
    parts: Any = {
        "names": names,
        "formats": list(map(_dtype, formats)),
        "offsets": offsets,
        "itemsize": size,
    }
    return np.dtype(parts, align=is_aligned)


def loop_of(call: ListedLoop) -> Loop:
    """Return the loop of an entry of the list."""
    loop: Loop = getattr(importlib.import_module(call.module), call.name)
    return loop


def compile_listed(modules: Iterable[str]) -> None:
    """Compile the loops of the list, those of some modules first, each list from its end; leave out what another process compiles."""
    first = set(modules)
    # readers and writers are imported when they are chosen: a report needs none of the writers' loops
    calls = [
        call
        for call in listed()
        if call.module in first or not call.module.startswith("chopper_interop.converters.")
    ]
    calls.reverse()
    calls.sort(key=lambda call: call.module not in first)
    for call in calls:
        # what changed since the list was made, the command compiles when it calls it
        with contextlib.suppress(Exception):
            _compile(call)
        claims.release_all()


def _compile(call: ListedLoop) -> None:
    import numba

    loop = loop_of(call)
    arguments = [sample(kind) for kind in call.types]
    processor = loop.dispatcher.targetctx.codegen().magic_tuple()
    types = code_files.text_of(arguments)
    is_kept = next(code_files.stored(loop, types, processor), None) is not None
    if not is_kept and claims.take(code_files.file_name(loop, types, processor), wait_s=0):
        loop.dispatcher.compile(tuple(map(numba.typeof, arguments)))


def main() -> None:
    """Compile the listed loops, those of modules that the argument names first, until the input ends."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    gc.set_threshold(_ALLOCATIONS)
    compile_listed(sys.argv[1].split())


def _end_with_input() -> None:
    """End this process when the command ends, which holds the other end of the pipe."""
    sys.stdin.buffer.read()
    os._exit(0)
