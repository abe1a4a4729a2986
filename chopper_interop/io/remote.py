"""Inputs and outputs that a URL names: s3, gs, memory, zip and whatever else fsspec knows.

An input is copied to a private folder before it is read, under the path that it has there, and an output is written
there and then copied to its place. The folder is gone when the process ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from chopper_interop.errors import ChopperError, ReadError, UsageError, WriteError, first_line
from chopper_interop.io import temporary


def fetched(url: str) -> Path:
    """Copy a file, or a folder with all that it holds, and return the path of the copy.

    Raises
    ------
    UsageError
        fsspec, or what it needs for this protocol, is not installed, or there is no such protocol.
    ReadError
        There is no such file, or it cannot be read.
    """
    system, path = _opened(url)
    if _is_local(system):
        return Path(path)
    local = _emptied(_place(system, path, "read"))
    with _errors(ReadError, "it cannot be read", url):
        if not system.exists(path):
            raise FileNotFoundError("there is no such file or folder")
        if system.isdir(path):
            system.get(path.rstrip("/") + "/", f"{local}/", recursive=True)
        else:
            system.get_file(path, str(local))
    return local


def workplace(url: str) -> Path:
    """Return the path at which what a URL is to hold is written first; raise `UsageError` as `fetched` does."""
    system, path = _opened(url)
    return Path(path) if _is_local(system) else _emptied(_place(system, path, "written"))


def copy_of(url: str) -> Path:
    """Return the path of the copy that `fetched` makes of an input."""
    system, path = _opened(url)
    return Path(path) if _is_local(system) else _place(system, path, "read")


def put(local: Path, url: str) -> None:
    """Copy an output to its place; what `workplace` returned for a local file is in its place already.

    Raises
    ------
    WriteError
        It cannot be written, or it is a folder and one with files is there: a mixture of both would be no output.
    """
    system, path = _opened(url)
    if _is_local(system):
        return
    with _errors(WriteError, "it cannot be written", url):
        if not local.is_dir():
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            system.put_file(str(local), path)
            return
        if system.isdir(path) and system.ls(path, detail=False):
            raise FileExistsError("there is a folder with files already")
        system.put(f"{local}/", path.rstrip("/") + "/", recursive=True)


@contextmanager
def _errors(kind: type[ChopperError], action: str, url: str) -> Iterator[None]:
    """Raise an error of this kind for any of a file system's, each of which has its own."""
    try:
        yield
    except Exception as error:
        raise kind(f"{action}: {first_line(error)}", path=url) from error


def _opened(url: str) -> tuple[Any, str]:
    """File system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        hint = "pip install 'chopper-interop[remote]'"
        raise UsageError("URLs need fsspec, which is not installed", path=url, hint=hint) from error
    try:
        system, path = url_to_fs(url)
    except Exception as error:  # each protocol raises its own, of arguments that it lacks as well
        raise UsageError(first_line(error), path=url) from error
    if _is_local(system) and not url.partition("://")[2]:
        raise UsageError("it names no file and no folder", path=url)
    return system, path


def _is_local(system: Any) -> bool:
    return _protocol(system) == "file"


def _protocol(system: Any) -> str:
    protocol = system.protocol
    return protocol if isinstance(protocol, str) else protocol[0]


def _place(system: Any, path: str, purpose: str) -> Path:
    """A path of a private folder; its last folders are those of the URL."""
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", ".", "..")]
    if not parts:
        raise UsageError("it names no file and no folder", path=f"{_protocol(system)}://{path}")
    return Path(temporary.process_folder(), purpose, _protocol(system), *parts)


def _emptied(place: Path) -> Path:
    """The same path, with nothing there and a folder around it."""
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place
