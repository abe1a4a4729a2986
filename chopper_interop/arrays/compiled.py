"""Compilation of loops over columns: once for each machine, to run without Python's lock."""

from __future__ import annotations

import functools
import itertools
import mmap
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np

from chopper_interop.arrays import code_files, loaded_code
from chopper_interop.arrays.code_files import Compilable

Function = TypeVar("Function")
_announce: list[Callable[[int], None]] = []
"""Function to call for each loop that this process compiles, from a few on, with their number."""
_misses = itertools.count(1)
FEW = 5
"""Compilations from which on it is called (chosen: they take more than a second)."""
_FEW_CALLS = 20_000
"""Calls of a loop after which numba finds its code. Chosen: Python takes 2 us longer for each, and to import numba takes
as long as 80,000 of them; conversions of jobs of 8 ranks make some hundred of a loop."""
_ROOM = 1 << 24
"""Bytes of addresses without which no loop gets machine code: LLVM ends the process where it finds no memory. Chosen: the
largest loops take a megabyte to link, so that other threads may take some of it meanwhile."""
_WORD = range(-(2**63), 2**63)
"""Integers of Python that numba takes as int64."""
_lock = threading.RLock()
"""Held while a loop gets code: threads may call it for the first time at once."""
_OF_TYPE = 0x403
"""Flags of an array by which numba tells types apart: contiguous in C's and in Fortran's order, writeable."""


def jit(function: Function) -> Function:
    """Compile a function with numba and keep the result on disk.

    Such a function must not call itself: the code that numba caches of it crashes. Arrays should
    be writable, contiguous and always of the same type: each other combination is compiled, too.
    """
    return cast("Function", Loop(function, counts_references=True))


def jit_in_place(function: Function) -> Function:
    """Compile a function, as `jit` does, that neither makes nor returns an array, nor calls one that does.

    References to its arrays are not counted, which takes a third of the time of small functions
    that are called for each event: the caller keeps the arrays. Views of them may be made.
    """
    return cast("Function", Loop(function, counts_references=False))


def jit_inlined(function: Function) -> Function:
    """Compile a function, as `jit_in_place` does, into each that calls it.

    For one that is called of each event and from few places: an array takes seven words to pass and a table of texts
    forty, which took a quarter of the time of a scan.
    """
    return cast("Function", Loop(function, counts_references=False, is_inlined=True))


class Loop(Compilable):
    """A function that runs as machine code: kept code, without numba where there is some, else what numba compiles.

    Importing numba takes longer than to convert a small file. A loop that is called often gets numba's dispatcher all
    the same, which finds the code for given arguments sooner than Python does. Parameters are those of `Compilable`.
    """

    def __init__(self, function: Any, *, counts_references: bool, is_inlined: bool = False) -> None:
        functools.update_wrapper(self, function)
        super().__init__(function, counts_references=counts_references, is_inlined=is_inlined)
        self._parameters: int = function.__code__.co_argcount
        self._entries: dict[Any, Any] = {}
        self._calls_left = _FEW_CALLS

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the machine code for arguments of these types."""
        if self._calls_left > 0 and len(arguments) == self._parameters and not named:
            self._calls_left -= 1
            return self._entry(arguments)(*arguments)
        return self._by_numba()(*arguments, **named)

    @cached_property
    def dispatcher(self) -> Any:
        """The function as numba compiles and calls it."""
        from chopper_interop.arrays import numba_code

        self._calls_left = 0
        return numba_code.dispatcher(self, _count_compilation)

    @cached_property
    def inner_dispatcher(self) -> Any:
        """The same for other loops, which call it without Python."""
        from chopper_interop.arrays import numba_code

        return numba_code.dispatcher(self, _count_compilation, is_inner=True)

    def _entry(self, arguments: tuple[Any, ...]) -> Any:
        """Entry point of machine code for arguments of these types; numba's dispatcher if none is kept."""
        try:
            kinds = tuple(map(_kind, arguments))
        except TypeError:
            return self._by_numba()
        entry = self._entries.get(kinds)
        if entry is None:
            with _lock:
                kept = loaded_code.uninterrupted(self._kept, arguments)
                if kept:
                    return functools.partial(self._first, kinds, kept)
                entry = self._entries[kinds] = self._by_numba()
        return entry

    def _kept(self, arguments: tuple[Any, ...]) -> Any:
        """Return kept code, if any. What a handler of a signal raised meanwhile would pass for a fault of the code."""
        _require_room()
        return loaded_code.function(self, code_files.text_of(arguments))

    def _by_numba(self) -> Any:
        """Return what calls the loop by numba; of one that returns arrays, for each of which it calls Python, uninterrupted."""
        if self.counts_references:
            return functools.partial(loaded_code.uninterrupted, self.dispatcher)
        return self.dispatcher

    def _first(self, kinds: Any, kept: Any, *arguments: Any) -> Any:
        """Call kept code that has not returned yet, in this thread or another."""
        if kinds in self._entries:
            return kept(*arguments)
        result = loaded_code.uninterrupted(kept, *arguments)
        self._entries[kinds] = kept
        return result


def entry(function: Function, *arguments: Any) -> Function:
    """Machine code of a loop for arguments of these types, which takes others of the same types only.

    To see of which types they are takes 0.5 us for each array (25 us for what Perfetto's encoder takes, which itself takes
    2 us for a few slices); what is called of each of many lanes gets its code once. Nothing looks at the types then.
    """
    return cast("Function", cast("Loop", function)._entry(arguments))  # noqa: SLF001 # of this module


def _require_room() -> None:
    """Raise `MemoryError` if there is none to make machine code in."""
    try:
        mmap.mmap(-1, _ROOM).close()
    except OSError as error:
        raise MemoryError from error


def announce_compilation(announce: Callable[[int], None]) -> None:
    """Have a function called with the number of loops compiled so far, each time from `FEW` on."""
    _announce[:] = [announce]


def _count_compilation() -> None:
    """Count a loop that this process compiles, and announce it if there were some."""
    count = next(_misses)
    if count >= FEW:
        for announce in _announce:
            announce(count)


def _kind(value: Any) -> Any:
    """The part of an argument that decides which machine code takes it.

    Raises
    ------
    TypeError
        Only numba knows.
    """
    kind = type(value)
    if kind is np.ndarray:
        dtype = value.dtype
        return dtype, dtype.isalignedstruct, value.ndim, value.flags.num & _OF_TYPE
    if kind is bool or kind is float or value is None:
        return kind
    if kind is int and value in _WORD:
        return kind
    if isinstance(value, tuple):
        return kind, *map(_kind, value)
    if isinstance(value, np.number | np.bool_):
        return value.dtype
    raise TypeError(kind)
