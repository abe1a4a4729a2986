"""Outputs that are whole or not there: written under another name beside, then renamed."""

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
"""What our files say of who wrote them, near their beginning, where their format has a place."""


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
    """A file to write, gzipped if its name ends in ``.gz``; it appears when all went well.

    What is there and no regular file, such as a pipe or a device, is written into.

    Raises
    ------
    WriteError
        It cannot be written.
    """
    target = path.resolve() if path.is_symlink() else path
    special = target.exists() and not target.is_file()
    temporary = target if special else _beside(target)
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
            with suppress(OSError):  # what could not be made need not be removed
                temporary.unlink(missing_ok=True)


@contextmanager
def folder(path: Path, *, owns: Callable[[Path], bool]) -> Iterator[Path]:
    """A folder to fill; its files move to `path` when all went well.

    Parameters
    ----------
    path
        Where the files go. Other files there stay.
    owns
        Whether a file or folder that is already there was written by an earlier run: it is
        removed, so that no rank of that stays behind.

    Raises
    ------
    WriteError
        It cannot be written, or something that is not ours is in the way.
    """
    path = path.resolve()  # "." has no name
    temporary = _beside(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        path.mkdir(parents=True, exist_ok=True)
        made = sorted(temporary.iterdir())
        old = [there for there in path.iterdir() if there != temporary and owns(there)]
        _refuse_foreign(path, {m.name for m in made} - {o.name for o in old})
        for there in old:
            _remove(there)
        for new in made:
            new.replace(path / new.name)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror or error}", path=path) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_marked(path: Path) -> bool:
    """Whether a file begins as one that we wrote, if its format says so."""
    from chopper_interop.files import inputs

    try:
        return path.is_file() and has_mark(inputs.head(path))
    except ReadError:
        return False  # what is damaged is nobody's


def has_mark(head: bytes) -> bool:
    """Whether the first bytes of a file are those of one that we wrote."""
    return MARK.encode() in head[:4096]


def _refuse_foreign(folder: Path, names: set[str]) -> None:
    for name in sorted(names):
        if (folder / name).exists():
            raise WriteError(
                "it is there and was not written by this program",
                path=folder / name,
                hint="choose another folder, or remove it",
            )


def _beside(path: Path) -> Path:
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
