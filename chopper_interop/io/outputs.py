"""Outputs that are complete or absent: written under another name in the same folder, then renamed."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from chopper_interop.errors import ReadError, WriteError
from chopper_interop.schemas.meta import ORDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from chopper_interop.trace import Trace

MARK = "chopper-interop"
"""Name of the writer in files of this program, near their beginning, where a format has room."""


def require_times(trace: Trace, path: Path) -> None:
    """Raise `WriteError` for a trace without times, in a format that would take order for time."""
    if trace.meta.clock == ORDER:
        raise WriteError(
            "the trace has no times: its ts counts the nodes in order",
            path=path,
            hint="give the profiler's trace of the same ranks as well",
        )


@contextmanager
def file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write, gzipped if its name ends in ``.gz``; it appears when all went well.

    If `path` exists and is no regular file, such as a pipe or a device, it is written into.

    Raises
    ------
    WriteError
        It cannot be written.
    """
    target = path.resolve() if path.is_symlink() else path
    special = target.exists() and not target.is_file()
    temporary = target if special else _temporary(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            yield _opened(temporary, stack, packed=path.name.endswith(".gz"))
        if not special:
            temporary.replace(target)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror or error}", path=path) from error
    finally:
        if not special:
            with suppress(OSError):  # a file that could not be made need not be removed
                temporary.unlink(missing_ok=True)


@contextmanager
def folder(path: Path, *, owns: Callable[[Path], bool]) -> Iterator[Path]:
    """Make a folder to fill; its files move to `path` when all went well.

    Parameters
    ----------
    path
        Where the files go. Other files there stay.
    owns
        Returns True for a file or folder that an earlier run wrote: it is removed, so that no
        rank of that run stays behind.

    Raises
    ------
    WriteError
        It cannot be written, or a file of the same name was not written by this program.
    """
    path = path.resolve()  # "." has no name
    temporary = _temporary(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        path.mkdir(parents=True, exist_ok=True)
        written = sorted(temporary.iterdir())
        outdated = [entry for entry in path.iterdir() if entry != temporary and owns(entry)]
        _refuse_foreign(path, {w.name for w in written} - {o.name for o in outdated})
        for entry in outdated:
            _remove(entry)
        for entry in written:
            entry.replace(path / entry.name)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror or error}", path=path) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_marked(path: Path) -> bool:
    """Return True if a file begins as one that this program wrote, where its format says so."""
    from chopper_interop.io import inputs

    try:
        return path.is_file() and has_mark(inputs.head(path))
    except ReadError:
        return False  # a damaged file may be anybody's


def has_mark(head: bytes) -> bool:
    """Return True if the first bytes of a file are those of one that this program wrote."""
    return MARK.encode() in head[:4096]


def _refuse_foreign(folder: Path, names: set[str]) -> None:
    """Raise `WriteError` if a folder has a file of one of these names."""
    for name in sorted(names):
        if (folder / name).exists():
            raise WriteError(
                "it is there and was not written by this program",
                path=folder / name,
                hint="choose another folder, or remove it",
            )


def _temporary(path: Path) -> Path:
    """A name in the same folder, so that renaming moves no data; of this process alone."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _opened(path: Path, stack: ExitStack, *, packed: bool) -> Any:
    raw = stack.enter_context(path.open("wb"))
    if not packed:
        return raw
    from isal import igzip

    # without name and time in its header, the same content makes the same file
    return stack.enter_context(
        igzip.IGzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0)  # type: ignore[no-untyped-call]
    )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
