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
import errno
import os
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import types as numba_types

from chopper_interop.arrays import Array
from chopper_interop.errors import WriteError

try:
    from numpy._core import multiarray
except ImportError:  # numpy 1
    from numpy.core import multiarray  # type: ignore[no-redef]

_MOST_FILES = 1 << 13
"""Arrays in files at a time; others stay in memory. Chosen: an eighth of the mappings that a process may have."""
_UNUSED_PART = 8
"""Part of an array's size that its file may have more (chosen: files of freed arrays of nearly one size are used again, as
to make and touch a file takes 2 s a GB)."""
_MOST_SPARE = 1 << 30
"""Bytes of files that no array uses, which the next ones may. Chosen: most machines still have their pages in memory; of pages
that were written to disk the system reads what is overwritten then."""
_LONGEST_NAME = 1 << 12
"""Bytes of a name of a file, with its end (``PATH_MAX`` of Linux)."""
_PAGE = 1 << 12
"""Least size of pages, at multiples of which mappings begin."""
_SET_HANDLER = 304
"""Index of ``PyDataMem_SetHandler`` in numpy's table of functions (numpy/_core/code_generators/numpy_api.py)."""
_THREADS = 64
"""Threads that may make a file at a time (chosen)."""
_RAW = 0
"""``PYMEM_DOMAIN_RAW`` of CPython."""

# The state is words of 64 bits. A mutex of zeros is unlocked, and takes at most 64 bytes.
#
#     0 ... 7   8 ... 16                17 ...              17 + _MOST_FILES ...
#     mutex     as they are named here  addresses of files  their sizes, negative of those that no array uses
(
    _IS_ON,
    _LEAST,  # bytes of an array for which a file is made
    _COUNT,  # of files
    _SPARE,  # bytes of those that no array uses
    _REFUSED,  # bytes of the array for which there was no room, 0 if there was always
    _NAME,  # address of the name of the next file
    _PATTERN,  # address of the pattern of names
    _ITSELF,
    _PROCESS,  # which made the files
    _ADDRESS,
) = range(8, 18)
_SIZE = _ADDRESS + _MOST_FILES
_WORDS = _SIZE + _MOST_FILES

_njit: Any = numba.njit
_cfunc: Any = numba.cfunc
types: Any = numba_types
_word, _int = types.uint64, types.int32
_State = types.CPointer(types.int64)
_READ_WRITE, _SHARED, _DONTNEED = 3, 1, 4
"""``PROT_READ | PROT_WRITE``, ``MAP_SHARED`` and ``MADV_DONTNEED`` of Linux."""
_INTERRUPTED = int(errno.EINTR)
"""Status of a call during which a signal arrived, as that of a profiler's timer."""
_UNHEARD = getattr(os, "O_CLOEXEC", 0)
"""Flag of files that programs started by this one do not get."""


def _external(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the C library."""
    return types.ExternalFunction(name, result(*arguments))


_malloc = _external("malloc", _word, _word)
_calloc = _external("calloc", _word, _word, _word)
_realloc = _external("realloc", _word, _word, _word)
_free = _external("free", types.void, _word)
_make_file = _external("mkostemp", _int, _word, _int)
_unlink = _external("unlink", _int, _word)
_close = _external("close", _int, _int)
_fallocate = _external("posix_fallocate", _int, _int, types.int64, types.int64)
_mmap = _external("mmap", _word, _word, _word, _int, _int, _int, types.int64)
_munmap = _external("munmap", _int, _word, _word)
_madvise = _external("madvise", _int, _word, _word, _int)
_memcpy = _external("memcpy", _word, _word, _word, _word)
_memset = _external("memset", _word, _word, _int, _word)
_lock = _external("pthread_mutex_lock", _int, _word)
_unlock = _external("pthread_mutex_unlock", _int, _word)
_holds_lock = _external("PyGILState_Check", _int)


def _compiled(function: Callable[..., Any]) -> Any:
    """Compile a function that those here call."""
    return _njit(_nrt=False, error_model="numpy")(function)


def _called(*signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function of a signature that others call by its address."""
    return _cfunc(*signature)


class Files:
    """The allocator of this process: memory is taken of files between `start` and `stop`."""

    def __init__(self) -> None:
        self._state, self._handler = _installed()
        self._release, self._drop = (
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function.address)
            for function in (_release, _drop)
        )

    @property
    def can_start(self) -> bool:
        """True if no large arrays are made in files, and those that are there are no other process's, too."""
        return not self._state[_IS_ON] and self._state[_PROCESS] == os.getpid()

    def start(self, least_bytes: int) -> Any:
        """Make arrays of so many bytes and more in files from now on; return what `stop` needs."""
        before = _set_handler(self._handler)
        self._state[[_IS_ON, _LEAST, _REFUSED]] = 1, least_bytes, 0
        return before

    def stop(self, before: Any) -> None:
        """Make arrays as before `start`; those in files stay there."""
        self._state[_IS_ON] = 0
        _set_handler(before)
        self._drop(self._state.ctypes.data)

    @property
    def refused_bytes(self) -> int:
        """Bytes of an array for which there was no room on disk since `start`; 0 if there was always."""
        return int(self._state[_REFUSED])

    def release(self) -> None:
        """Unmap the pages of all files until they are needed again."""
        self._release(self._state.ctypes.data)


@_compiled
def _taken(state: Any, size: Any) -> Any:
    """Address of so many bytes of a file: of one that no array uses any more, if its size is about that, else of a new one.

    0 if there is no room.
    """
    wanted = types.int64(size)
    _lock(_word(state[_ITSELF]))
    address = _word(0)
    for at in range(state[_COUNT] - 1, -1, -1):
        unused = -state[_SIZE + at]
        if wanted <= unused <= wanted + wanted // _UNUSED_PART:
            state[_SIZE + at] = unused
            state[_SPARE] -= unused
            address = _word(state[_ADDRESS + at])
            break
    if address == 0:
        address = _new_file(state, size)
        if address != 0:
            at = state[_COUNT]
            state[_ADDRESS + at], state[_SIZE + at] = types.int64(address), wanted
            state[_COUNT] = at + 1
    _unlock(_word(state[_ITSELF]))
    return address


@_compiled
def _new_file(state: Any, size: Any) -> Any:
    """Address of the pages of a new file, which are zeros; 0 if there is no room."""
    name = _word(state[_NAME])
    _memcpy(name, _word(state[_PATTERN]), _word(_LONGEST_NAME))
    file = _make_file(name, _int(_UNHEARD))
    if file < 0:
        state[_REFUSED] = types.int64(size)
        return _word(0)
    _unlink(name)
    address = ~_word(0)
    # a page without room on disk would end the process when it is written
    status = _int(_INTERRUPTED)
    while status == _INTERRUPTED:
        status = _fallocate(file, types.int64(0), types.int64(size))
    if status == 0:
        address = _mmap(_word(0), size, _int(_READ_WRITE), _int(_SHARED), file, types.int64(0))
    else:
        state[_REFUSED] = types.int64(size)
    _close(file)
    return _word(0) if address == ~_word(0) else address


@_compiled
def _place(state: Any, address: Any) -> Any:
    """Number of the used file whose pages begin at an address, -1 if there is none; for the thread that has the mutex."""
    for at in range(state[_COUNT] - 1, -1, -1):  # what was made last is mostly freed first
        if state[_ADDRESS + at] == types.int64(address) and state[_SIZE + at] > 0:
            return at
    return -1


@_compiled
def _size_of(state: Any, address: Any) -> Any:
    """Bytes of the file whose pages begin at an address; 0 if there is none."""
    if address % _PAGE != 0:  # so is what the C library gives, nearly always
        return _word(0)
    _lock(_word(state[_ITSELF]))
    at = _place(state, address)
    size = _word(state[_SIZE + at]) if at >= 0 else _word(0)
    _unlock(_word(state[_ITSELF]))
    return size


@_compiled
def _left(state: Any, address: Any) -> Any:
    """Leave a file, which is unmapped or kept for another array; False if none begins at the address."""
    if address % _PAGE != 0:
        return False
    _lock(_word(state[_ITSELF]))
    at = _place(state, address)
    if at >= 0:
        size = state[_SIZE + at]
        if state[_IS_ON] != 0 and state[_SPARE] + size <= _MOST_SPARE:
            state[_SIZE + at] = -size
            state[_SPARE] += size
        else:
            _remove(state, at)
    _unlock(_word(state[_ITSELF]))
    return at >= 0


@_compiled
def _remove(state: Any, at: Any) -> None:
    """Unmap a file; the last one gets its place. For the thread that has the mutex: another could release its pages."""
    _munmap(_word(state[_ADDRESS + at]), _word(abs(state[_SIZE + at])))
    last = state[_COUNT] - 1
    state[_ADDRESS + at], state[_SIZE + at] = state[_ADDRESS + last], state[_SIZE + last]
    state[_COUNT] = last


@_compiled
def _is_large(state: Any, size: Any) -> Any:
    """Return True if memory of so many bytes is taken of a file."""
    return (
        state[_IS_ON] != 0
        and size >= _word(state[_LEAST])
        and state[_COUNT] < _MOST_FILES - _THREADS
    )


@_called(_word(_State, _word))
def _allocate(state: Any, size: Any) -> Any:
    """Return memory whose values are not set, as ``malloc``."""
    return _taken(state, size) if _is_large(state, size) else _malloc(max(size, _word(1)))


@_called(_word(_State, _word))
def _allocate_unlocked(state: Any, size: Any) -> Any:
    """Return memory as `_allocate`, but to threads with Python's lock none of files."""
    if _is_large(state, size) and _holds_lock() == 0:
        return _taken(state, size)
    return _malloc(max(size, _word(1)))


@_called(_word(_State, _word, _word))
def _allocate_zeros(state: Any, count: Any, size: Any) -> Any:
    """Return memory of zeros, as ``calloc``."""
    # a product of more than 64 bits is left to the C library, which refuses it
    is_sound = size != 0 and count < _word(1 << 62) // size
    if is_sound and _is_large(state, count * size):
        address = _taken(state, count * size)
        return _memset(address, _int(0), count * size) if address != 0 else address
    return _calloc(max(count, _word(1)), max(size, _word(1)))


@_called(_word(_State, _word, _word))
def _zeros_in_memory(_: Any, count: Any, size: Any) -> Any:
    """Return memory of zeros, as ``calloc``, never of files: loops ask for none, they set zeros themselves."""
    return _calloc(max(count, _word(1)), max(size, _word(1)))


@_called(_word(_State, _word, _word))
def _resize(state: Any, address: Any, size: Any) -> Any:
    """Return memory of another size with the same values, as ``realloc``."""
    before = _size_of(state, address)
    if before == 0:
        return _realloc(address, max(size, _word(1)))
    new = _taken(state, size) if _is_large(state, size) else _malloc(max(size, _word(1)))
    if new != 0:
        _memcpy(new, address, min(before, size))
        _left(state, address)
    return new


@_called(types.void(_State, _word))
def _give_back(state: Any, address: Any) -> None:
    """Free memory, as ``free``; numpy states a size, too, which is not needed."""
    if not _left(state, address):
        _free(address)


@_called(types.void(_State))
def _release(state: Any) -> None:
    """Unmap the pages of all files until they are needed again."""
    _lock(_word(state[_ITSELF]))
    for at in range(state[_COUNT]):
        _madvise(_word(state[_ADDRESS + at]), _word(abs(state[_SIZE + at])), _int(_DONTNEED))
    _unlock(_word(state[_ITSELF]))


@_called(types.void(_State))
def _drop(state: Any) -> None:
    """Unmap the files that no array uses."""
    _lock(_word(state[_ITSELF]))
    for at in range(state[_COUNT] - 1, -1, -1):
        if state[_SIZE + at] < 0:
            _remove(state, at)
    state[_SPARE] = 0
    _unlock(_word(state[_ITSELF]))


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
    state = np.zeros(_WORDS, np.int64)
    pattern = os.fsencode(Path(tempfile.gettempdir(), "chopper-XXXXXX"))
    if len(pattern) >= _LONGEST_NAME:
        raise WriteError(
            f"TMPDIR: names of files in it would have {len(pattern):,} bytes, of which the system takes "
            f"{_LONGEST_NAME - 1:,}",
            hint="name another folder for files of a job that is larger than memory",
        )
    names = [ctypes.create_string_buffer(pattern, _LONGEST_NAME) for _ in range(2)]
    state[_NAME], state[_PATTERN] = map(ctypes.addressof, names)
    state[_ITSELF], state[_PROCESS] = state.ctypes.data, os.getpid()
    os.register_at_fork(after_in_child=partial(_after_fork, state))
    of_numpy = (_allocate, _allocate_zeros, _resize, _give_back)
    of_python = (_allocate_unlocked, _zeros_in_memory, _resize, _give_back)
    allocators = [
        _Allocator(state.ctypes.data, *(function.address for function in functions))
        for functions in (of_numpy, of_python)
    ]
    handler = _Handler(b"chopper_interop", 1, allocators[0])
    for kept in (state, names, of_numpy, of_python, allocators, handler):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    ctypes.pythonapi.PyMem_SetAllocator(_RAW, ctypes.byref(allocators[1]))
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return state, new_capsule(ctypes.addressof(handler), b"mem_handler", None)


def _after_fork(state: Array) -> None:
    """Have a forked process make arrays in memory: its parent reads what files have, and a thread of it may have had the mutex."""
    state[: _IS_ON + 1] = 0


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
