"""Compilation of loops over columns: once for each machine, to run without Python's lock."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
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
    return compiled


def is_first_run() -> bool:
    """Return True if nothing is compiled yet for this state of the package."""
    return not any(Path(_folder()).rglob("*.nbc"))


@cache
def _folder() -> str:
    """Return the user's cache folder for this state of the package.

    numba compiles again only when the file of a function changes, but its code contains that of
    the functions that it calls, in whatever file they are: so the folder changes when any file
    with compiled functions does.
    """
    home = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(p for folder in (home, *home.iterdir()) for p in folder.glob("*.py")):
        source = path.read_bytes()
        if b"import jit" in source:
            digest.update(str(path).encode() + source)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chopper-interop"
    folder = base / f"numba-{digest.hexdigest()[:16]}"
    with contextlib.suppress(OSError):  # it is not there yet, or cannot be written
        _remove_old(folder)
    return str(folder)


def _remove_old(folder: Path) -> None:
    """Remove the folders of other states of the package that were not used for a month."""
    os.utime(folder)
    for other in folder.parent.glob("numba-*"):
        if other.stat().st_mtime < time.time() - _MAX_AGE_S:
            shutil.rmtree(other, ignore_errors=True)
