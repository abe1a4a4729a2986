"""Memory for arrays of numpy and of compiled loops in private files, by functions of machine code that they call for memory.

numpy takes such functions for the arrays of a context (`data memory handlers <https://numpy.org/neps/nep-0049.html>`_),
Python for all that asks it for raw memory, as arrays of compiled loops do (``PyMem_SetAllocator``)::

    numpy.empty ───────────▶ handler ───────┐               ┌─ large ─▶ pages of a file
                                            ├─ _allocate ───┤
    a loop's numpy.empty ──▶ PyMem_RawMalloc┘               └─ else ──▶ malloc

Columns of a job, which are in files whatever their size, take memory by a handler of their own, at any time.

Objects of Python stay in memory: a process that is forked shares pages of files, and would count references in them. Both
ask for raw memory, objects from threads that hold Python's lock and arrays of loops from threads that do not.

A thread unmaps pages when many are resident. It is none of Python's, for whose lock it would wait as long as a call of
numpy takes. What it unmaps is of no other array meanwhile, as files are made and unmapped by these functions alone, one at
a time.

The functions are no functions of Python, in which handlers of signals may raise. Only Linux has what they call.
"""

from __future__ import annotations

import contextvars
import ctypes
import mmap
import os
import tempfile
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from chopper_interop.arrays import Array, Bytes, file_code
from chopper_interop.arrays.file_state import (
    COUNT,
    IS_ON,
    ITSELF,
    LEAST,
    LINE,
    LONGEST_LINE,
    LONGEST_NAME,
    LOOK_US,
    MOST_FILES,
    MOST_RESIDENT,
    NAME,
    PATTERN,
    PROCESS,
    REASON,
    REFUSED,
    STATM,
    WATCH,
    WORDS,
)
from chopper_interop.errors import WriteError

try:
    from numpy._core import multiarray
except ImportError:  # numpy 1
    from numpy.core import multiarray  # type: ignore[no-redef]

_SET_HANDLER = 304
"""Index of ``PyDataMem_SetHandler`` in numpy's table of functions (numpy/_core/code_generators/numpy_api.py)."""
_PROCESS: Any = ctypes.CDLL(None)
_create, _join = _PROCESS.pthread_create, _PROCESS.pthread_join
_create.argtypes = (ctypes.c_void_p,) * 4
_join.argtypes = (ctypes.c_ulong, ctypes.c_void_p)
_NO_FILE = -1
_RAW = 0
"""``PYMEM_DOMAIN_RAW`` of CPython."""
_OF_NUMPY = ("_allocate", "_allocate_zeros", "_resize", "_give_back")
_OF_PYTHON = ("_allocate_unlocked", "_zeros_in_memory", "_resize", "_give_back")
_OF_COLUMNS = ("_allocate_file", "_allocate_zeros", "_resize", "_give_back")
"""Functions for numpy, for Python, and for numpy's arrays that lie in files whatever their size, in the order of `_Allocator`."""


class Files:
    """The allocator of this process: memory is taken of files between `start` and `stop`."""

    def __init__(self) -> None:
        self._state, self._handler, of_columns, self._of_python = _made()
        address = file_code.addresses()
        self._release, self._begin, self._drop = (
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address[name])
            for name in ("_release", "_begin", "_drop")
        )
        self._watch = address["_watch"]
        self._is_asked = False
        """True if Python asks these functions for memory."""
        self._context = contextvars.Context()
        """In which all arrays of numpy lie in files."""
        self._context.run(_set_handler, of_columns)
        self._folder = ""
        self._name_files()

    @property
    def is_own(self) -> bool:
        """True unless this process was forked: what frees a file here could have it used again where others read it."""
        return bool(self._state[PROCESS] == os.getpid())

    @property
    def can_start(self) -> bool:
        """True if no large arrays are made in files, and those that are there are no other process's, too."""
        return self.is_own and not self._state[IS_ON]

    @property
    def can_add(self) -> bool:
        """True if `new` has room for one more file."""
        return self.is_own and bool(self._state[COUNT] < MOST_FILES)

    def new(self, size: int) -> Bytes:
        """Return so many bytes of a file, also between `stop` and `start`.

        Raises
        ------
        OSError
            There is no room for it on disk.
        """
        self._name_files()
        made: Bytes
        try:
            made = self._context.copy().run(np.empty, size, np.uint8)
        except MemoryError as error:
            raise OSError(int(self._state[REASON]), self.reason) from error
        return made

    def start(self, least_bytes: int, most_resident_bytes: int, look_s: float) -> Any:
        """Make arrays of so many bytes and more in files from now on; return what `stop` needs.

        Of the pages of all files at most some `most_resident_bytes` are resident meanwhile, looked at every `look_s`. That
        takes a thread without Python's lock, which long calls of numpy keep.
        """
        self._name_files()
        if not self._is_asked:  # not before: what reads files in several threads asks meanwhile
            ctypes.pythonapi.PyMem_SetAllocator(_RAW, ctypes.byref(self._of_python))
            self._is_asked = True
        before = _set_handler(self._handler)
        pages = most_resident_bytes // mmap.PAGESIZE
        self._state[[MOST_RESIDENT, LOOK_US, REFUSED]] = pages, round(1e6 * look_s), 0
        self._begin(self._state.ctypes.data)
        self._state[[LEAST, IS_ON]] = least_bytes, 1
        thread = ctypes.c_ulong()
        if not _create(ctypes.byref(thread), None, self._watch, self._state.ctypes.data):
            self._state[WATCH] = thread.value
        return before

    def stop(self, before: Any) -> None:
        """Make arrays as before `start`; those in files stay there."""
        self._state[IS_ON] = 0
        _set_handler(before)
        if self.is_own and self._state[WATCH]:
            _join(int(self._state[WATCH]), None)
        self._state[WATCH] = 0
        self._drop(self._state.ctypes.data)

    def _name_files(self) -> None:
        """Name further files in the temporary folder, which a program may have changed."""
        folder = tempfile.gettempdir()
        if folder != self._folder:
            pattern = _pattern(folder)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(pattern))  # a thread may read it now
            self._state[PATTERN], self._folder = ctypes.addressof(pattern), folder

    @property
    def refused_bytes(self) -> int:
        """Bytes of an array for which there was no room on disk since `start`; 0 if there was always."""
        return int(self._state[REFUSED])

    @property
    def reason(self) -> str:
        """The system's reason why there was no room."""
        return os.strerror(int(self._state[REASON]))

    def release(self) -> None:
        """Unmap the pages of all files until they are needed again."""
        if self.is_own:
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
def files() -> Files:
    """Return the allocator, which is made when it is needed first; for one thread at a time."""
    return Files()


def _made() -> tuple[Array, Any, Any, _Allocator]:
    """Return the state of the functions, numpy's handlers of analyses and of columns, and what Python asks.

    They stay until the process ends, and what they refer to does, too: arrays may be freed at any time.
    """
    state = np.zeros(WORDS, np.int64)
    name, line = map(ctypes.create_string_buffer, (LONGEST_NAME, LONGEST_LINE + 1))
    state[NAME], state[LINE] = map(ctypes.addressof, (name, line))
    state[STATM] = _NO_FILE
    with suppress(OSError):  # some containers: nothing is unmapped but by `release`
        state[STATM] = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    state[ITSELF], state[PROCESS] = state.ctypes.data, os.getpid()
    os.register_at_fork(after_in_child=partial(_after_fork, state))
    address = file_code.addresses()
    allocators = [
        _Allocator(state.ctypes.data, *(address[function] for function in functions))
        for functions in (_OF_NUMPY, _OF_PYTHON, _OF_COLUMNS)
    ]
    of_numpy, of_python, of_columns = allocators
    handlers = [_Handler(b"chopper_interop", 1, each) for each in (of_numpy, of_columns)]
    for kept in (state, name, line, allocators, handlers):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    first, second = (new_capsule(ctypes.addressof(each), b"mem_handler", None) for each in handlers)
    return state, first, second, of_python


def _pattern(folder: str) -> Any:
    """Pattern of names of files in a folder, as text of C.

    Raises
    ------
    WriteError
        The folder has so long a name that no file in it can be named.
    """
    pattern = os.fsencode(Path(folder, "chopper-XXXXXX"))
    if len(pattern) >= LONGEST_NAME:
        raise WriteError(
            f"TMPDIR: names of files in it would have {len(pattern):,} bytes, of which the system takes "
            f"{LONGEST_NAME - 1:,}",
            hint="name another folder for files of a job that is larger than memory",
        )
    return ctypes.create_string_buffer(pattern, LONGEST_NAME)


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
