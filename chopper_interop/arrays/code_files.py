"""Files of machine code of loops, each called after what it was compiled from and for.

They lie in the user's cache folder. A wheel brings others along, so that the first run need not compile them: an archive
for each version of Python and kind of processor, compiled for a baseline that all but old processors fulfil, by
`tests/support/machine_code.py`. As names contain what the code was compiled from and for, no other code is ever loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import stat
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import EnumMeta
from functools import cache
from importlib import metadata
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import llvmlite.binding
import numpy as np

llvm: Any = llvmlite.binding
FOLDER = "chopper-interop"
"""Name of the folder in the user's cache; that of a temporary one has the user's number behind it."""
_MAX_AGE_S = 30 * 86_400
"""Age at which code that no run loaded is removed (chosen: a month unused)."""
_TOUCHED_S = 86_400
"""Age at which code that a run loads is marked as used (chosen: a day, so few files are touched)."""
_FORMAT = 2
"""Version of the content of a file: other versions of this package have files of their own."""
_VERSIONS = (
    str(_FORMAT), str(sys.implementation.cache_tag), getattr(sys, "abiflags", ""),
    *map(metadata.version, ("numba", "llvmlite")), ".".join(np.__version__.split(".")[:2]),
)  # fmt: skip
"""Versions that machine code depends on; that of Python's bytecode is in the second."""
_SCALARS = {bool: "bool", int: "int64", float: "float64"}
_SUM_BYTES = 4
"""Of the checksum that a file begins with: machine code of which bytes are missing or others would end the process."""


class Compilable:
    """A function to compile.

    Parameters
    ----------
    function
        The function.
    counts_references
        Whether it counts references to arrays.
    is_inlined
        Whether it becomes part of each function that calls it.
    """

    dispatcher: Any
    inner_dispatcher: Any

    def __init__(self, function: Any, *, counts_references: bool, is_inlined: bool = False) -> None:
        self.py_func: Any = function
        self.counts_references = counts_references
        self.is_inlined = is_inlined


class Written:
    """Function for loops to call, which another one writes in LLVM's language (numba's intrinsic).

    Parameters
    ----------
    writer
        Returns its types, and what writes it.
    """

    def __init__(self, writer: Callable[..., Any]) -> None:
        self.writer = writer
        self.__qualname__ = writer.__qualname__


def text_of(arguments: Iterable[Any]) -> str:
    """Text of types of arguments, in names of files."""
    return ",".join(map(_type_text, arguments))


def _type_text(value: Any) -> str:
    """Text of the type of an argument."""
    if isinstance(value, np.ndarray):
        flags, dtype = value.flags, value.dtype
        layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        is_aligned = dtype.names is None or dtype.isalignedstruct  # numba asks for no more
        return array_text(
            dtype, value.ndim, layout, is_mutable=flags.writeable, is_aligned=is_aligned
        )
    if isinstance(value, tuple):
        return tuple_text(type(value), map(_type_text, value))
    if isinstance(value, np.generic):
        return value.dtype.name
    return _SCALARS.get(type(value), "None")


def array_text(dtype: Any, ndim: int, layout: str, *, is_mutable: bool, is_aligned: bool) -> str:
    """Text of a type of arrays."""
    fields = dtype.str if dtype.names is None else f"{dict(dtype.fields)} {dtype.itemsize}"
    return f"[{fields} {ndim} {layout} {is_mutable} {is_aligned}]"


def tuple_text(kind: Any, items: Iterable[str]) -> str:
    """Text of a type of tuples; named tuples of other fields, or elsewhere, are of other types."""
    fields = getattr(kind, "_fields", "")
    return f"{kind.__module__}.{kind.__qualname__}{fields}({','.join(items)})"


def save(loop: Compilable, types: str, processor: tuple[str, ...], data: bytes) -> None:
    """Keep machine code."""
    keep(file_name(loop, types, processor), data)


def keep(name: str, data: bytes) -> None:
    """Keep data in a file; a disk that takes none, as a full one, only means making it again."""
    folder = code_folder()
    if folder is None:
        return
    _sweep(folder)
    path = folder / name
    # not the number of the process: those of several hosts share homes
    part = path.with_suffix(f".{os.urandom(8).hex()}.part")
    try:
        part.write_bytes(_sum(data) + data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)


def _sum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_SUM_BYTES, "little")


def stored(loop: Compilable, types: str, processor: tuple[str, ...]) -> Iterator[bytes]:
    """Yield what was saved here for this processor, then what came with the package, as far as it is whole."""
    yield from kept(file_name(loop, types, processor))
    base = usable_baseline()
    if base is not None:
        brought = shipped(file_name(loop, types, base.magic))
        yield from () if brought is None else _whole(brought)


def kept(name: str) -> Iterator[bytes]:
    """Yield what `keep` wrote into a file, if it is there and whole."""
    folder = code_folder()
    if folder is not None:
        path = folder / name
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            if path.stat().st_mtime < time.time() - _TOUCHED_S:
                os.utime(path)
            yield from _whole(content)


def _whole(content: bytes) -> Iterator[bytes]:
    data = content[_SUM_BYTES:]
    if content[:_SUM_BYTES] == _sum(data):
        yield data


def file_name(loop: Compilable, types: str, processor: tuple[str, ...]) -> str:
    """Return the file name of machine code, which is that of what it was compiled from and for.

    numba's own cache compiles again when the file of a function changes or lies elsewhere, and not
    when a function changes that it calls and whose code it contains. Here a file is called after
    what it was compiled from: the bytecode of the function and of all that it calls.
    """
    key = f"{_digest(loop)} {types} {processor}"
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    return f"{loop.py_func.__name__}-{name}.nbc"


def name_of_sources(label: str, sources: Iterable[bytes]) -> str:
    """Return the file name of machine code for this processor that is compiled of all of some modules."""
    processor = (llvm.get_process_triple(), llvm.get_host_cpu_name())
    features = llvm.get_host_cpu_features().flatten()
    digest = hashlib.sha256("\n".join((*_VERSIONS, *processor, features)).encode())
    for source in sources:
        digest.update(hashlib.sha256(source).digest())
    return f"{label}-{digest.hexdigest()[:24]}.nbc"


@cache
def _digest(loop: Compilable) -> str:
    """Hash all that machine code depends on: versions, bytecode, constants, functions called."""
    function = loop.py_func
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    parts = [
        *_VERSIONS,
        *(function.__module__, function.__qualname__, str(loop.counts_references)),
        *(["inlined"] if loop.is_inlined else []),
        *(["bounds checked"] if os.environ.get("NUMBA_BOUNDSCHECK", "0") != "0" else []),
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
    if isinstance(value, Compilable):
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
    is_written = isinstance(value, Written)
    codes = [code.co_code.hex() for code in _codes(value.writer.__code__)] if is_written else ""
    return f"{name} {getattr(value, '_fields', '')}{codes}"  # fields: of a class of named tuples


@cache
def code_folder() -> Path | None:
    """Return the folder of machine code, less what others could have put there."""
    base = cache_folder()
    if base is None:
        return None
    folder = base / "compiled"
    if not _is_own_folder(folder):
        shutil.rmtree(folder, ignore_errors=True)  # others could have written what is in it
        if not _is_own_folder(folder):
            return None
    return folder


@cache
def _sweep(folder: Path) -> None:
    """Remove code that no run loaded for long, once in a process that adds some: others would look at each file in vain."""
    with contextlib.suppress(OSError):
        oldest = time.time() - _MAX_AGE_S
        for path in folder.iterdir():
            if path.stat().st_mtime < oldest:
                path.unlink()


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
    candidates = [base / FOLDER for base in bases]
    if hasattr(os, "getuid"):  # Windows has no user numbers
        with contextlib.suppress(OSError):  # nothing at all can be written, as in some containers
            candidates.append(Path(tempfile.gettempdir()) / f"{FOLDER}-{os.getuid()}")
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


@dataclass(frozen=True)
class Baseline:
    """A processor to compile for: its name in LLVM, and the features that running it takes."""

    name: str
    features: frozenset[str] = frozenset()

    @property
    def magic(self) -> tuple[str, str, str]:
        """Identifier by which numba accepts code of a compiler."""
        return llvm.get_process_triple(), self.name, ""


# https://gitlab.com/x86-psABIs/x86-64-ABI: level 3, processors since 2013 (Intel) and 2015 (AMD)
_X86_64_V3 = (
    "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "sahf", "avx", "avx2", "bmi", "bmi2",
    "f16c", "fma", "lzcnt", "movbe",
)  # fmt: skip
_BASELINES = {
    "x86_64": Baseline("x86-64-v3", frozenset(_X86_64_V3)),
    "aarch64": Baseline("generic"),
}
"""By machine; others, and systems without wheels of llvmlite, compile at the first run."""


def baseline() -> Baseline | None:
    """Return the baseline of this kind of machine, None if there is none."""
    return _BASELINES.get(platform.machine())


def archive_path() -> Path:
    """Return the path of the archive for this Python and machine, whether or not it is there."""
    folder = Path(__file__).parents[1] / "machine_code"
    python = f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"
    return folder / f"{python}-{platform.machine()}.zip"


@cache
def usable_baseline() -> Baseline | None:
    """Return the baseline that shipped code was compiled for; None if it cannot be used here."""
    base = baseline()
    if base is None or "NUMBA_CPU_NAME" in os.environ or _archive() is None:
        return None
    features = llvm.get_host_cpu_features()
    return base if all(features.get(name, False) for name in base.features) else None


def shipped(name: str) -> bytes | None:
    """Return a file of the archive, None if there is none of this name."""
    archive = _archive()
    if archive is not None:
        with contextlib.suppress(KeyError, OSError, zipfile.BadZipFile):
            return archive.read(name)
    return None


@cache
def _archive() -> zipfile.ZipFile | None:
    with contextlib.suppress(OSError, zipfile.BadZipFile):
        return zipfile.ZipFile(archive_path())
    return None
