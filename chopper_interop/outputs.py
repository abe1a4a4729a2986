"""Outputs that are whole or not there: written under another name beside, then renamed."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from chopper_interop.errors import WriteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


@contextmanager
def file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, gzipped if its name ends in ``.gz``; it appears when all went well.

    Raises
    ------
    WriteError
        It cannot be written.
    """
    temporary = _beside(path)
    try:
        with _opened(path, temporary) as stream:
            yield stream
        temporary.replace(path)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror or error}", path=path) from error
    finally:
        with suppress(OSError):  # what could not be made need not be removed
            temporary.unlink(missing_ok=True)


@contextmanager
def folder(path: Path, *, owns: Iterable[str]) -> Iterator[Path]:
    """A folder to fill; its files move to `path` when all went well.

    Parameters
    ----------
    path
        Where the files go. Other files there stay.
    owns
        Patterns of the names of files that an earlier run may have left there: they are removed,
        so that no rank of it stays behind.
    """
    temporary = _beside(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        path.mkdir(parents=True, exist_ok=True)
        for old in [p for pattern in owns for p in path.glob(pattern)]:
            _remove(old)
        for made in sorted(temporary.iterdir()):
            target = path / made.name
            _remove(target)
            made.replace(target)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror or error}", path=path) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _opened(path: Path, temporary: Path) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith(".gz"):
        from isal import igzip

        return igzip.open(temporary, "wb", compresslevel=1)  # type: ignore[no-untyped-call]
    return temporary.open("wb")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
