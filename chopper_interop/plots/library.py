"""The plotting library, an extra: whoever lacks it gets one line that names it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop import byte_sizes
from chopper_interop.errors import TooLittleMemoryError, UsageError
from chopper_interop.io import memory

if TYPE_CHECKING:
    import types

HINT = "pip install 'chopper-interop[report]'"
_ADDRESSES = 70 * 10**9
"""Bytes of addresses that V8 needs. Measured: 68.8 GB, of vl-convert 1.9.0, nearly all of it reserved and never used."""
_FILES = 32
"""Files that the library has open at once. Measured: 14, of vl-convert 1.9.0 with two processors; twice that for machines
with more."""


def module(name: str) -> types.ModuleType:
    """Import a module of the extra.

    Raises
    ------
    UsageError
        It is not installed.
    """
    from importlib import import_module

    try:
        with _any_home():
            return import_module(name)
    except ImportError as error:
        raise UsageError(f"charts need {error.name or name}", hint=HINT) from error


@contextmanager
def _any_home() -> Iterator[None]:
    """Have a home folder while Altair is imported, which fails without one; it writes nothing there."""
    try:
        Path.home()
    except RuntimeError:  # neither HOME nor the list of users has one
        os.environ["HOME"] = os.curdir
        try:
            yield
        finally:
            del os.environ["HOME"]
    else:
        yield


def require() -> None:
    """Raise an error unless all of the extra is installed and can run.

    Raises
    ------
    UsageError
        Something is not installed.
    TooLittleMemoryError
        A limit leaves fewer addresses or open files than the library's V8 takes, which would end the process or fill
        the terminal.
    """
    for name in ("altair", "vl_convert"):
        module(name)
    left = memory.address_space_left()
    if left is not None and left < _ADDRESSES:
        raise TooLittleMemoryError(
            f"charts need {_ADDRESSES / 1e9:.0f} GB of addresses, though little memory, and a limit leaves "
            f"{byte_sizes.described(left)}",
            hint="ulimit -v unlimited; a limit of a container or of systemd (MemoryMax) is of memory alone",
        )
    _require_files()


def _require_files() -> None:
    """Raise an error unless so many files can be opened as the library does."""
    with ExitStack() as opened:
        try:
            for _ in range(_FILES):
                opened.enter_context(Path(os.devnull).open("rb"))
        except OSError as error:
            raise TooLittleMemoryError(
                f"charts need {_FILES} open files, and no more can be opened: {error.strerror}",
                hint="ulimit -n 256",
            ) from error


def unchecked() -> AbstractContextManager[None]:
    """Leave out Altair's check of each part of a chart against Vega-Lite's schema.

    It takes longer than making the charts; tests make every chart with it.
    """
    checks: AbstractContextManager[None] = module("altair.utils.schemapi").debug_mode(False)
    return checks


def bundle(code: str) -> str:
    """Code for a page with the scripts that draw its charts, as the library ships them.

    It is kept with the code of loops: to put it together took the library 3.9 of 28 s of a report's time.
    """
    from chopper_interop.arrays import code_files

    version = metadata.version("vl-convert-python")
    name = f"vega-{hashlib.sha256(f'{version} {code}'.encode()).hexdigest()[:24]}.js"
    kept = next(code_files.kept(name), None)
    if kept is not None:
        return kept.decode()
    made: str = module("vl_convert").javascript_bundle(code)
    code_files.keep(name, made.encode())
    return made


class _Altair:
    """Altair, imported when the first chart is made."""

    def __getattr__(self, name: str) -> Any:
        return getattr(module("altair"), name)


alt: Any = _Altair()
"""Stands for the module altair."""
