"""Compilation of loops over columns: once for each machine, to run without Python's lock."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba

Function = TypeVar("Function")
_numba: Any = numba.config
_MAX_AGE_S = 30 * 86_400
"""Age at which code of other states of the package is removed (chosen: a month unused)."""


def jit(function: Function) -> Function:
    """Compile a function with numba and keep the result on disk.

    Such a function must not call itself: the code that numba caches of it crashes. Arrays should
    be writable, contiguous and always of the same type: each other combination is compiled, too.
    """
    before = _numba.CACHE_DIR
    _numba.CACHE_DIR = before or _folder()
    try:
        compiled: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # no folder for the cache can be written
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    finally:
        _numba.CACHE_DIR = before  # functions of other packages are cached where they were before
    _go_on_without_saving(compiled)
    return compiled


def _go_on_without_saving(compiled: Any) -> None:
    """Let a function be used where its code can't be saved, as on a full disk."""
    cached = compiled._cache  # noqa: SLF001 # numba has no hook for it
    save = cached.save_overload

    def save_if_possible(*arguments: Any) -> None:
        with contextlib.suppress(OSError):
            save(*arguments)

    cached.save_overload = save_if_possible


def is_first_run() -> bool:
    """Return True if nothing is compiled yet for this state of the package."""
    return not _numba.CACHE_DIR and not any(Path(_folder()).rglob("*.nbc"))


@cache
def _folder() -> str:
    """Return the user's cache folder for this state of the package.

    numba compiles again only when the file of a function changes, but its code contains that of
    the functions that it calls, in whatever file they are: so the folder changes when any file
    with compiled functions does.
    """
    digest = hashlib.sha256()
    package = Path(__file__).parent.parent
    for parent, folders, names in os.walk(package, followlinks=True):
        folders.sort()
        for path in (Path(parent, name) for name in sorted(names) if name.endswith(".py")):
            source = path.read_bytes()
            if b"import jit" in source:
                digest.update(str(path).encode() + source)
    folder = (cache_folder() or package) / f"numba-{digest.hexdigest()[:16]}"
    with contextlib.suppress(OSError):  # it is not there yet, or cannot be written
        _remove_old(folder)
    return str(folder)


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
    """Make a folder; return True if it can be written by this user alone.

    Whoever else could write there could have this process run any code.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        state = path.lstat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return os.access(path, os.W_OK)
    is_own = stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid()
    return is_own and not state.st_mode & 0o022 and os.access(path, os.W_OK)


def _remove_old(folder: Path) -> None:
    """Remove the folders of other states of the package that were not used for a month."""
    os.utime(folder)
    for other in folder.parent.glob("numba-*"):
        if other.stat().st_mtime < time.time() - _MAX_AGE_S:
            shutil.rmtree(other, ignore_errors=True)
