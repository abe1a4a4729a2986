"""Memory for arrays of numpy and of compiled loops in private files, by functions of machine code that they call for memory.

numpy takes such functions for the arrays of a context (`data memory handlers <https://numpy.org/neps/nep-0049.html>`_),
Python for all that asks it for raw memory, as arrays of compiled loops do (``PyMem_SetAllocator``)::

    numpy.empty ───────────▶ handler ───────┐               ┌─ large ─▶ pages of a file
                                            ├─ _allocate ───┤
    a loop's numpy.empty ──▶ PyMem_RawMalloc┘               └─ else ──▶ malloc

Objects of Python stay in memory: a process that is forked shares pages of files, and would count references in them. Both
ask for raw memory, objects from threads that hold Python's lock and arrays of loops from threads that do not.

The functions are no functions of Python, in which handlers of signals may raise. Only Linux has what they call.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from chopper_interop.arrays import Array, file_code
from chopper_interop.arrays.file_state import (
    IS_ON,
    ITSELF,
    LEAST,
    LONGEST_NAME,
    NAME,
    PATTERN,
    PROCESS,
    REFUSED,
    WORDS,
)
from chopper_interop.errors import WriteError

try:
    from numpy._core import multiarray
except ImportError:  # numpy 1
    from numpy.core import multiarray  # type: ignore[no-redef]

_SET_HANDLER = 304
"""Index of ``PyDataMem_SetHandler`` in numpy's table of functions (numpy/_core/code_generators/numpy_api.py)."""
_RAW = 0
"""``PYMEM_DOMAIN_RAW`` of CPython."""
_OF_NUMPY = ("_allocate", "_allocate_zeros", "_resize", "_give_back")
_OF_PYTHON = ("_allocate_unlocked", "_zeros_in_memory", "_resize", "_give_back")
"""Functions for numpy and for Python, in the order of `_Allocator`."""


class Files:
    """The allocator of this process: memory is taken of files between `start` and `stop`."""

    def __init__(self) -> None:
        self._state, self._handler = _installed()
        self._release, self._drop = (
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(file_code.addresses()[name])
            for name in ("_release", "_drop")
        )

    @property
    def can_start(self) -> bool:
        """True if no large arrays are made in files, and those that are there are no other process's, too."""
        return not self._state[IS_ON] and self._state[PROCESS] == os.getpid()

    def start(self, least_bytes: int) -> Any:
        """Make arrays of so many bytes and more in files from now on; return what `stop` needs."""
        before = _set_handler(self._handler)
        self._state[[IS_ON, LEAST, REFUSED]] = 1, least_bytes, 0
        return before

    def stop(self, before: Any) -> None:
        """Make arrays as before `start`; those in files stay there."""
        self._state[IS_ON] = 0
        _set_handler(before)
        self._drop(self._state.ctypes.data)

    @property
    def refused_bytes(self) -> int:
        """Bytes of an array for which there was no room on disk since `start`; 0 if there was always."""
        return int(self._state[REFUSED])

    def release(self) -> None:
        """Unmap the pages of all files until they are needed again."""
        self._release(self._state.ctypes.data)


class _Allocator(ctypes.Structure):
    """``PyMemAllocatorEx`` of CPython, which numpy's is alike."""

    _fields_ = tuple((n, ctypes.c_void_p) for n in ("ctx", "malloc", "calloc", "realloc", "free"))


class _Handler(ctypes.Structure):
    """``PyDataMem_Handler`` of numpy."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("allocator", _Allocator),
    )


@cache
def _installed() -> tuple[Array, Any]:
    """Have Python ask these functions for memory; return their state and the handler for numpy.

    They stay until the process ends, and what they refer to does, too: arrays may be freed at any time.

    Raises
    ------
    WriteError
        The temporary folder has so long a name that no file in it can be named.
    """
    state = np.zeros(WORDS, np.int64)
    pattern = os.fsencode(Path(tempfile.gettempdir(), "chopper-XXXXXX"))
    if len(pattern) >= LONGEST_NAME:
        raise WriteError(
            f"TMPDIR: names of files in it would have {len(pattern):,} bytes, of which the system takes "
            f"{LONGEST_NAME - 1:,}",
            hint="name another folder for files of a job that is larger than memory",
        )
    names = [ctypes.create_string_buffer(pattern, LONGEST_NAME) for _ in range(2)]
    state[NAME], state[PATTERN] = map(ctypes.addressof, names)
    state[ITSELF], state[PROCESS] = state.ctypes.data, os.getpid()
    os.register_at_fork(after_in_child=partial(_after_fork, state))
    address = file_code.addresses()
    allocators = [
        _Allocator(state.ctypes.data, *(address[function] for function in functions))
        for functions in (_OF_NUMPY, _OF_PYTHON)
    ]
    handler = _Handler(b"chopper_interop", 1, allocators[0])
    for kept in (state, names, allocators, handler):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    ctypes.pythonapi.PyMem_SetAllocator(_RAW, ctypes.byref(allocators[1]))
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return state, new_capsule(ctypes.addressof(handler), b"mem_handler", None)


def _after_fork(state: Array) -> None:
    """Have a forked process make arrays in memory: its parent reads what files have, and a thread of it may have had the mutex."""
    state[: IS_ON + 1] = 0


def _set_handler(handler: Any) -> Any:
    """Have numpy take memory of a handler in this context; return the one before."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    functions = ctypes.cast(
        pointer(multiarray._ARRAY_API, None),  # noqa: SLF001 # as programs in C take it
        ctypes.POINTER(ctypes.c_void_p),
    )
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(functions[_SET_HANDLER])
    return set_handler(handler)
