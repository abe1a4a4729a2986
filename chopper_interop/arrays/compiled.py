"""Compilation of loops over columns: once for each machine, to run without Python's lock."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pickle
import shutil
import stat
import sys
import tempfile
import time
from enum import EnumMeta
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import llvmlite
import numba
import numpy as np
from numba.core import bytecode, runtime, serialize, types
from numba.core.dispatcher import Dispatcher

from chopper_interop.arrays import loaded_code, shipped_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Function = TypeVar("Function")
_dumps: Any = serialize.dumps
_unliteral: Any = types.unliteral
_dispatcher: Any = Dispatcher
_njit: Any = numba.njit
_config: Any = numba.config
_runtime: Any = runtime
_MAX_AGE_S = 30 * 86_400
"""Age at which code that no run loaded is removed (chosen: a month unused)."""
_TOUCHED_S = 86_400
"""Age at which code that a run loads is marked as used (chosen: a day, so few files are touched)."""
_VERSIONS = (
    str(sys.implementation.cache_tag), getattr(sys, "abiflags", ""),
    numba.__version__, llvmlite.__version__, ".".join(np.__version__.split(".")[:2]),
)  # fmt: skip
"""Versions that machine code depends on; that of Python's bytecode is in the first."""
# Names of symbols contain a running number. Were it to start at 1 in each process, as numba has it,
# different functions with one name could meet where code of several processes is loaded into one.
bytecode.FunctionIdentity._unique_ids = itertools.count(time.time_ns())  # noqa: SLF001
_announce: list[Callable[[int], None]] = []
"""Function to call for each loop that this process compiles, from a few on, with their number."""
_misses = itertools.count(1)
FEW = 5
"""Compilations from which on it is called (chosen: they take more than a second)."""


def jit(function: Function) -> Function:
    """Compile a function with numba and keep the result on disk.

    Such a function must not call itself: the code that numba caches of it crashes. Arrays should
    be writable, contiguous and always of the same type: each other combination is compiled, too.
    """
    return _compiled(function, counts_references=True)


def jit_in_place(function: Function) -> Function:
    """Compile a function, as `jit` does, that neither makes nor returns an array, nor calls one that does.

    References to its arrays are not counted, which takes a third of the time of small functions
    that are called for each event: the caller keeps the arrays. Views of them may be made.
    """
    return _compiled(function, counts_references=False)


def _compiled(function: Function, *, counts_references: bool) -> Function:
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    compiled: Any = _njit(**options, _nrt=counts_references)(function)
    if isinstance(compiled, _dispatcher):  # not with NUMBA_DISABLE_JIT
        compiled._cache = _CodeCache(compiled)  # noqa: SLF001 # numba has no hook for it
        compiled.get_call_template = _without_constants(compiled.get_call_template)
    return compiled


def _without_constants(template: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that others call once for all constants that they give it, not for each."""

    def general_template(arguments: Iterable[Any], keywords: Mapping[str, Any]) -> Any:
        general = {name: _unliteral(kind) for name, kind in keywords.items()}
        return template([_unliteral(kind) for kind in arguments], general)

    return general_template


def announce_compilation(announce: Callable[[int], None]) -> None:
    """Have a function called with the number of loops compiled so far, each time from `FEW` on."""
    _announce[:] = [announce]


class _CodeCache:
    """Machine code of one function on disk, a file for each signature and kind of processor.

    numba's own cache compiles again when the file of a function changes or lies elsewhere, and not
    when a function changes that it calls and whose code it contains. Here a file is called after
    what it was compiled from: the bytecode of the function and of all that it calls.
    """

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self.cache_path = None

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Load machine code; None if there is none and it must be compiled.

        Where numba's own cache refreshes the target, which imports all that numba can compile, this starts
        only what code needs to run: allocation. Compiling refreshes the target itself.
        """
        _runtime.rtsys.initialize(target)
        for data in self._stored(signature, target.codegen().magic_tuple()):
            with contextlib.suppress(EOFError, pickle.UnpicklingError):
                return loaded_code.rebuilt(target, loaded_code.loads(data))
        count = next(_misses)
        if count >= FEW:
            for announce in _announce:
                announce(count)
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Save machine code; a disk that takes none, as a full one, only means compiling again."""
        folder = _code_folder()
        if folder is None or result.lifted or result.library.has_dynamic_globals:
            return
        # numba's types of each line, for people, are half of it and contain paths of this machine
        data = _dumps(result._replace(type_annotation="")._reduce())  # noqa: SLF001
        path = folder / self._file_name(signature, result.codegen.magic_tuple())
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            part.write_bytes(data)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)

    def _stored(self, signature: Any, processor: tuple[str, ...]) -> Iterator[bytes]:
        """Yield what was saved here for this processor, then what came with the package."""
        folder = _code_folder()
        if folder is not None:
            path = folder / self._file_name(signature, processor)
            with contextlib.suppress(OSError):
                data = path.read_bytes()
                if path.stat().st_mtime < time.time() - _TOUCHED_S:
                    os.utime(path)
                yield data
        base = shipped_code.usable_baseline()
        if base is not None:
            shipped = shipped_code.load(self._file_name(signature, base.magic))
            yield from () if shipped is None else (shipped,)

    def _file_name(self, signature: Any, processor: tuple[str, ...]) -> str:
        # numba's name of a type of named tuples leaves out the names of their fields
        fields = [getattr(t, "fields", ()) for t in getattr(signature, "args", signature)]
        key = f"{_digest(self._compiled)} {signature} {fields} {processor}"
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        return f"{self._compiled.__name__}-{name}.nbc"


@cache
def _digest(compiled: Any) -> str:
    """Hash all that machine code depends on: versions, bytecode, constants, functions called."""
    function = compiled.py_func
    counts_references = compiled.targetoptions.get("_nrt", True)
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    parts = [
        *_VERSIONS,
        *(function.__module__, function.__qualname__, str(counts_references)),
        *(["bounds checked"] if _config.BOUNDSCHECK else []),
        *(repr(function.__defaults__), _description(cells, ())),
    ]
    for code in _codes(function.__code__):
        parts += [code.co_code.hex(), getattr(code, "co_exceptiontable", b"").hex()]
        parts += [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]
        parts += [repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))]
        for name in code.co_names:
            if name in function.__globals__:
                parts += [_description(function.__globals__[name], code.co_names)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the bytecode of a function and of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _description(value: Any, names: tuple[str, ...]) -> str:
    """Describe a value that machine code contains; of a module, its members of these names."""
    if isinstance(value, Dispatcher):
        return _digest(value)
    if isinstance(value, ModuleType):
        members = [getattr(value, name) for name in names if hasattr(value, name)]
        return f"{value.__name__} {[_description(m, ()) for m in members]}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, EnumMeta):
        return repr(list(value))
    if isinstance(value, tuple):
        return repr([_description(v, names) for v in value])
    name = getattr(value, "__qualname__", None) or repr(value)
    writer = getattr(value, "_defn", None)  # of what is written in LLVM's language
    codes = [code.co_code.hex() for code in _codes(writer.__code__)] if writer else ""
    return f"{name} {getattr(value, '_fields', '')}{codes}"  # fields: of a class of named tuples


@cache
def _code_folder() -> Path | None:
    """Return the folder of machine code, less what no run loaded for long, or what others could have put there."""
    base = cache_folder()
    if base is None:
        return None
    folder = base / "compiled"
    if not _is_own_folder(folder):
        shutil.rmtree(folder, ignore_errors=True)  # others could have written what is in it
        if not _is_own_folder(folder):
            return None
    with contextlib.suppress(OSError):
        oldest = time.time() - _MAX_AGE_S
        for path in folder.iterdir():
            if path.stat().st_mtime < oldest:
                path.unlink()
    return folder


@cache
def cache_folder() -> Path | None:
    """Return the folder for compiled code: the user's, or a temporary one that is the user's alone.

    Returns
    -------
    Path or None
        None if neither can be written: each process compiles for itself.
    """
    bases: list[Path] = []
    with contextlib.suppress(RuntimeError):  # no home
        bases.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"))
    name = "chopper-interop"
    candidates = [base / name for base in bases]
    if hasattr(os, "getuid"):  # Windows has no user numbers
        candidates.append(Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}")
    return next((path for path in candidates if _is_own_folder(path)), None)


def _is_own_folder(path: Path) -> bool:
    """Make a folder; return True if it can be written, or put in place of another, by this user alone.

    Whoever else could do so could have this process run any code. Who owns a folder above it is trusted, as is a
    group that may write there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        state = path.lstat()
        above = [parent.stat().st_mode for parent in path.resolve().parents]
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return os.access(path, os.W_OK)
    is_own = stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid()
    is_movable = any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in above)
    return is_own and not state.st_mode & 0o022 and not is_movable and os.access(path, os.W_OK)
