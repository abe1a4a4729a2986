"""Functions of machine code that take memory for large arrays of private files; see `file_allocator`.

numba compiles them when this module is imported, which takes more than a second.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import numba
from numba.core import types as numba_types

from chopper_interop.arrays.file_state import (
    ADDRESS,
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
    REASON,
    REFUSED,
    REST,
    SIZE,
    SPARE,
    STATM,
    USUAL,
)

_UNUSED_PART = 8
"""Part of an array's size that its file may have more (chosen: files of freed arrays of nearly one size are used again, as
to make and touch a file takes 2 s a GB)."""
_MOST_SPARE = 1 << 30
"""Bytes of files that no array uses, which the next ones may. Chosen: most machines still have their pages in memory; of pages
that were written to disk the system reads what is overwritten then."""
_PAGE = 1 << 12
"""Least size of pages, at multiples of which mappings begin."""

_njit: Any = numba.njit
_cfunc: Any = numba.cfunc
types: Any = numba_types
_word, _int = types.uint64, types.int32
_State = types.CPointer(types.int64)
_WORD_BYTES = 8
_RESIDENT_COLUMN = 3
"""Number in ``statm`` that is that of resident pages of files."""
_PAGES_A_US = 16
"""Pages that become resident in a microsecond at most: so many does the system map where one is read."""
_SOONER = 8
"""Part of the longest time between two looks that is the shortest (chosen: a fiftieth of one processor looks then)."""
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
_error = _external("__errno_location", types.CPointer(_int))
_sleep_us = _external("usleep", _int, types.uint32)
_read_at = _external("pread", types.int64, _int, _word, _word, types.int64)
_number = _external("strtol", types.int64, _word, _word, _int)


def _compiled(function: Callable[..., Any]) -> Any:
    """Compile a function that those here call."""
    return _njit(_nrt=False, error_model="numpy")(function)


def _called(*signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function of a signature that others call by its address."""
    return _cfunc(*signature)


@_compiled
def _unmap_all(state: Any) -> None:
    """Unmap the pages of all files until they are needed again. For the thread that has the mutex."""
    for at in range(state[COUNT]):
        _madvise(_word(state[ADDRESS + at]), _word(abs(state[SIZE + at])), _int(_DONTNEED))


@_compiled
def _resident(state: Any) -> Any:
    """Pages of files that are resident, which Linux's ``statm`` has; 0 if it cannot be read.

    For the thread that has the mutex.
    """
    state[REST] = state[LINE]
    if _read_at(_int(state[STATM]), _word(state[LINE]), _word(LONGEST_LINE), types.int64(0)) <= 0:
        return types.int64(0)
    pages = types.int64(0)
    for _ in range(_RESIDENT_COLUMN):
        pages = _number(_word(state[REST]), _word(state[ITSELF] + _WORD_BYTES * REST), _int(10))
    return pages


@_compiled
def _room(state: Any) -> Any:
    """Pages that may become resident; where there are none, all of these files are unmapped.

    What is resident after that says nothing: other threads map pages meanwhile.
    """
    _lock(_word(state[ITSELF]))
    room = state[USUAL] + state[MOST_RESIDENT] - _resident(state)
    if room < 0:
        _unmap_all(state)
    _unlock(_word(state[ITSELF]))
    return max(room, types.int64(0))


@_compiled
def _taken(state: Any, size: Any) -> Any:
    """Address of so many bytes of a file: of one that no array uses any more, if its size is about that, else of a new one.

    0 if there is no room.
    """
    _lock(_word(state[ITSELF]))
    address = _unused(state, size)
    if address == 0:
        address = _added(state, size)
    _unlock(_word(state[ITSELF]))
    return address


@_compiled
def _taken_zeros(state: Any, size: Any) -> Any:
    """Address of so many zeros of a file, as `_taken`; those of a new file are not touched."""
    _lock(_word(state[ITSELF]))
    used = _unused(state, size)
    address = _added(state, size) if used == 0 else used
    _unlock(_word(state[ITSELF]))
    return _memset(used, _int(0), size) if used != 0 else address


@_compiled
def _unused(state: Any, size: Any) -> Any:
    """Take a file that no array uses; 0 if none has about that size. For the thread that has the mutex."""
    wanted = types.int64(size)
    for at in range(state[COUNT] - 1, -1, -1):
        unused = -state[SIZE + at]
        if wanted <= unused <= wanted + wanted // _UNUSED_PART:
            state[SIZE + at] = unused
            state[SPARE] -= unused
            return _word(state[ADDRESS + at])
    return _word(0)


@_compiled
def _added(state: Any, size: Any) -> Any:
    """Take a new file, as `_new_file`. For the thread that has the mutex."""
    address = _new_file(state, size)
    if address != 0:
        at = state[COUNT]
        state[ADDRESS + at], state[SIZE + at] = types.int64(address), types.int64(size)
        state[COUNT] = at + 1
    return address


@_compiled
def _new_file(state: Any, size: Any) -> Any:
    """Address of the pages of a new file, which are zeros; 0 if there is no room."""
    name = _word(state[NAME])
    _memcpy(name, _word(state[PATTERN]), _word(LONGEST_NAME))
    file = _make_file(name, _int(_UNHEARD))
    if file < 0:
        state[REFUSED], state[REASON] = types.int64(size), types.int64(_error()[0])
        return _word(0)
    _unlink(name)
    address = ~_word(0)
    # a page without room on disk would end the process when it is written
    status = _int(_INTERRUPTED)
    while status == _INTERRUPTED:
        status = _fallocate(file, types.int64(0), types.int64(size))
    if status == 0:
        address = _mmap(_word(0), size, _int(_READ_WRITE), _int(_SHARED), file, types.int64(0))
        if address == ~_word(0):
            status = _error()[0]
    _close(file)
    if address == ~_word(0):
        state[REFUSED], state[REASON] = types.int64(size), types.int64(status)
        return _word(0)
    return address


@_compiled
def _place(state: Any, address: Any) -> Any:
    """Number of the used file whose pages begin at an address, -1 if there is none; for the thread that has the mutex."""
    for at in range(state[COUNT] - 1, -1, -1):  # what was made last is mostly freed first
        if state[ADDRESS + at] == types.int64(address) and state[SIZE + at] > 0:
            return at
    return -1


@_compiled
def _size_of(state: Any, address: Any) -> Any:
    """Bytes of the file whose pages begin at an address; 0 if there is none."""
    if address % _PAGE != 0:  # so is what the C library gives, nearly always
        return _word(0)
    _lock(_word(state[ITSELF]))
    at = _place(state, address)
    size = _word(state[SIZE + at]) if at >= 0 else _word(0)
    _unlock(_word(state[ITSELF]))
    return size


@_compiled
def _left(state: Any, address: Any) -> Any:
    """Leave a file, which is unmapped or kept for another array; False if none begins at the address."""
    if address % _PAGE != 0:
        return False
    _lock(_word(state[ITSELF]))
    at = _place(state, address)
    if at >= 0:
        size = state[SIZE + at]
        if state[IS_ON] != 0 and state[SPARE] + size <= _MOST_SPARE:
            state[SIZE + at] = -size
            state[SPARE] += size
        else:
            _remove(state, at)
    _unlock(_word(state[ITSELF]))
    return at >= 0


@_compiled
def _remove(state: Any, at: Any) -> None:
    """Unmap a file; the last one gets its place. For the thread that has the mutex: another could release its pages."""
    _munmap(_word(state[ADDRESS + at]), _word(abs(state[SIZE + at])))
    last = state[COUNT] - 1
    state[ADDRESS + at], state[SIZE + at] = state[ADDRESS + last], state[SIZE + last]
    state[COUNT] = last


@_compiled
def _is_large(state: Any, size: Any) -> Any:
    """Return True if memory of so many bytes is taken of a file."""
    return state[IS_ON] != 0 and size >= _word(state[LEAST]) and state[COUNT] < MOST_FILES


@_called(_word(_State, _word))
def _allocate(state: Any, size: Any) -> Any:
    """Return memory whose values are not set, as ``malloc``.

    Who asks for much has mapped much: it need not wait for the thread that watches, which a busy system lets wait.
    """
    if not _is_large(state, size):
        return _malloc(max(size, _word(1)))
    _room(state)
    return _taken(state, size)


@_called(_word(_State, _word))
def _allocate_file(state: Any, size: Any) -> Any:
    """Return memory of a file, whether or not arrays of analyses are made in files."""
    return _taken(state, size)


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
        return _taken_zeros(state, count * size)
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
    _lock(_word(state[ITSELF]))
    _unmap_all(state)
    _unlock(_word(state[ITSELF]))


@_called(types.void(_State))
def _begin(state: Any) -> None:
    """Begin with what is resident when no page of these files is."""
    _lock(_word(state[ITSELF]))
    _unmap_all(state)
    state[USUAL] = _resident(state)
    _unlock(_word(state[ITSELF]))


@_called(_word(_State))
def _watch(state: Any) -> Any:
    """Unmap pages of files whenever too many are resident, as long as arrays are made in files.

    A thread calls it, which knows nothing of Python.
    """
    longest = state[LOOK_US]
    while state[IS_ON] != 0:
        room = _room(state)
        _sleep_us(types.uint32(min(max(room // _PAGES_A_US, longest // _SOONER), longest)))
    return _word(0)


@_called(types.void(_State))
def _drop(state: Any) -> None:
    """Unmap the files that no array uses."""
    _lock(_word(state[ITSELF]))
    for at in range(state[COUNT] - 1, -1, -1):
        if state[SIZE + at] < 0:
            _remove(state, at)
    state[SPARE] = 0
    _unlock(_word(state[ITSELF]))


FUNCTIONS = {
    function.__name__: function
    for function in (
        _allocate, _allocate_file, _allocate_unlocked, _allocate_zeros, _zeros_in_memory, _resize, _give_back,
        _release, _begin, _watch, _drop,
    )
}  # fmt: skip
"""Functions by their names, without which nothing calls the others."""
