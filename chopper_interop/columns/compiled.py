"""How loops over columns are compiled: once for each machine, and run without Python's lock."""

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
_KEPT_S = 30 * 86_400


def jit(function: Function) -> Function:
    """Compile a function with numba and keep the result on disk.

    Such a function must not call itself: numba's cached code of it crashes. Arrays must be
    writable, contiguous and always of the same type, or it is compiled once for each.
    """
    before = _numba.CACHE_DIR
    _numba.CACHE_DIR = before or _folder()
    try:
        compiled: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # nowhere to keep it
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    finally:
        _numba.CACHE_DIR = before  # other people's functions go where they always went
    return compiled


def is_first_run() -> bool:
    """Whether nothing is compiled yet for this state of the package."""
    return not any(Path(_folder()).rglob("*.nbc"))


@cache
def _folder() -> str:
    """A folder of the user's for this state of the package.

    numba looks only at the file of a function, but its code holds that of the functions that it
    calls, in whatever file: so the folder changes when any file with such functions does.
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
        _forget_others(folder)
    return str(folder)


def _forget_others(folder: Path) -> None:
    """Remove what states of the package left that nobody used for a month."""
    os.utime(folder)
    for other in folder.parent.glob("numba-*"):
        if other.stat().st_mtime < time.time() - _KEPT_S:
            shutil.rmtree(other, ignore_errors=True)
