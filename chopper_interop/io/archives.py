"""Archives of profiles, unpacked into a temporary folder while their files are read.

Readers get paths in that folder; users see ``archive.zip/inner/path``, as if the archive were a folder.
Nothing is written outside of the temporary folder, which holds plain files and folders only.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from chopper_interop.errors import ChopperError, ReadError, WriteError
from chopper_interop.io import archive_members, inputs, outputs, temporary
from chopper_interop.io.archive_members import (
    DAMAGED,
    ENCRYPTED,
    ZIP_STARTS,
    Budget,
    Member,
    TooLargeError,
    TooManyError,
)

_LARGE = 1 << 24
"""Bytes from which a member is unpacked only if it looks like a profile. Chosen: what is smaller costs little."""
_HEAD = 1 << 21
"""Bytes of a large member by which that is decided."""
_COPIED = 1 << 20
_SEPARATORS = re.compile(r"[/\\]")
_FOLDERS: dict[Path, Path] = {}
"""Folder of each unpacked archive → path of the archive."""
_OPEN: set[Archives] = set()


def is_archive(head: bytes) -> bool:
    """True if the unpacked bytes with which a file begins are those of a zip or tar."""
    return head.startswith(ZIP_STARTS) or _is_tar(head)


def _is_tar(head: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def without_content(head: bytes) -> bytes:
    """Return what an archive begins with in front of its first file, which may be there as it is."""
    if not head.startswith(ZIP_STARTS):
        return head[: tarfile.BLOCKSIZE]
    # the first file's header has 30 bytes, the last four of which are how long its name and its extra fields are
    name, extra = (int.from_bytes(head[at : at + 2], "little") for at in (26, 28))
    return head[: 30 + name + extra]


@dataclass
class Unpacked:
    """Outcome of unpacking an archive.

    Parameters
    ----------
    folder
        Where its files are.
    left_out
        Names of members that were not unpacked, each with the reason.
    unreadable
        Those of them whose content is unknown.
    """

    folder: Path
    left_out: list[tuple[str, str]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def leave_out(self, name: str, reason: str, *, unreadable: bool = False) -> None:
        """Note a member that is not unpacked."""
        self.left_out.append((name, reason))
        if unreadable:
            self.unreadable.append(name)


class Archives:
    """Unpacked archives, on the disk until `close` is called or the process ends."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._folder: Path | None = None
        self.folders: dict[Path, Path] = {}
        """Folder of each unpacked archive → path of the archive."""

    def unpack(self, path: Path, head: bytes, is_known: Callable[[Path], bool]) -> Unpacked:
        """Unpack an archive, or a log with a label in front of every line.

        Parameters
        ----------
        path
            The archive.
        head
            Its first bytes, decompressed.
        is_known
            True if a file, of which only the beginning may be there, is worth unpacking if it is large.

        Raises
        ------
        ReadError
            It is damaged from its beginning on, larger than allowed, or there is no room for it.
        """
        folder = self._workspace(path) / str(len(self.folders)) / path.name
        folder.mkdir(parents=True)
        self.folders[folder] = _FOLDERS[folder] = path
        self._stack.callback(_FOLDERS.pop, folder, None)
        packed = inputs.size(path)
        limit = inputs.max_unpacked_to_disk(packed)
        unpacked = Unpacked(folder)
        try:
            _unpack_members(path, head, Budget(limit), unpacked, is_known)
        except BaseException as error:
            outputs.remove(folder)
            if isinstance(error, TooLargeError):
                raise inputs.too_large_unpacked(limit, packed, path) from error
            raise
        self._stack.callback(inputs.unbound_unpacked, _bound_inner(folder, packed))
        return unpacked

    def close(self) -> None:
        """Remove what was unpacked."""
        self._stack.close()
        _OPEN.discard(self)

    def _workspace(self, path: Path) -> Path:
        if self._folder is None:
            try:
                self._folder = self._stack.enter_context(temporary.folder())
            except (OSError, WriteError) as error:
                raise _no_room(path, error) from error
            _OPEN.add(self)
        return self._folder


def remove_all() -> None:
    """Remove all that this process unpacked."""
    for archives in list(_OPEN):
        archives.close()


atexit.register(remove_all)


def shown(path: Path) -> Path:
    """Return a path as users see it: within an archive for an unpacked file."""
    folder = _folder_of(path)
    return path if folder is None else shown(_FOLDERS[folder]) / path.relative_to(folder)


def shown_text(text: str) -> str:
    """Return a text in which paths of unpacked files are those within their archive."""
    for folder, archive in reversed(_FOLDERS.items()):  # a log in an archive before the archive
        text = text.replace(str(folder), str(archive))
    return text


def origin(path: Path) -> Path:
    """Return the archive that a file was unpacked from, else the file."""
    folder = _folder_of(path)
    return path if folder is None else origin(_FOLDERS[folder])


def depth(path: Path) -> int:
    """Return how many archives a file is in."""
    folder = _folder_of(path)
    return 0 if folder is None else 1 + depth(_FOLDERS[folder])


def _folder_of(path: Path) -> Path | None:
    if not _FOLDERS:
        return None
    return next((parent for parent in (path, *path.parents) if parent in _FOLDERS), None)


@contextlib.contextmanager
def names_shown() -> Iterator[None]:
    """Have errors of the block name files as users see them."""
    try:
        yield
    except ChopperError as error:
        if error.path is not None:
            error.path = shown_text(os.fspath(error.path))
        error.message = shown_text(error.message)
        error.args = (error.message,)
        raise


def _unpack_members(
    path: Path, head: bytes, budget: Budget, to: Unpacked, is_known: Callable[[Path], bool]
) -> None:
    """Unpack all members; of a damaged archive those before the damage."""
    from chopper_interop.io import task_logs

    is_log = not is_archive(head)
    members = (task_logs if is_log else archive_members).members
    is_begun = False
    try:
        for member in members(path, head, budget):
            is_begun = True
            _unpack_member(path, member, to, is_known)
    except TooManyError as error:
        what = "labels in front of its lines" if is_log else "members"
        hint = "give the lines of some labels" if is_log else "unpack it"
        reason = f"it has more than {archive_members.MAX_MEMBERS:,} {what}"
        raise ReadError(reason, path=path, hint=hint) from error
    except DAMAGED as error:
        reason = f"the archive is damaged: {_reason(error)}"
        if not is_begun:
            raise ReadError(reason, path=path) from error
        to.leave_out("", f"{reason}; what came before was read", unreadable=True)


def _unpack_member(
    path: Path, member: Member, to: Unpacked, is_known: Callable[[Path], bool]
) -> None:
    parts = _parts(member.name)
    if parts is None:
        to.leave_out(member.name, "its name leads out of the archive", unreadable=True)
    elif member.is_folder or any(part.startswith(".") for part in parts):
        return  # hidden files are left out of folders as well
    elif member.refusal:
        to.leave_out(member.name, member.refusal, unreadable=member.refusal == ENCRYPTED)
    else:
        _write(path, member, to.folder.joinpath(*parts), to, is_known)


def _parts(name: str) -> list[str] | None:
    """Parts of a relative path that leads to no other folder, none for the archive's own (``./``); None for other names."""
    parts = _SEPARATORS.split(name)
    is_absolute = parts[0] == "" or (os.name == "nt" and ":" in name)
    if is_absolute or ".." in parts or "\0" in name:
        return None
    return [part for part in name.split("/") if part not in ("", ".")]


def _write(
    path: Path, member: Member, target: Path, to: Unpacked, is_known: Callable[[Path], bool]
) -> None:
    """Write a member's content; of one that is damaged, what came before the damage."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_dir():  # as unpacking programs do it
            to.leave_out(member.name, "the archive holds it twice; the later one is read")
        file = target.open("wb")
    except (OSError, ValueError) as error:  # a file where a folder is needed, or a name too long
        to.leave_out(member.name, f"cannot be unpacked: {_reason(error)}", unreadable=True)
        return
    is_wanted = True
    with file:
        try:
            is_wanted = _copied(path, member, file, is_known)
        except DAMAGED as error:
            reason = f"it is damaged: {_reason(error)}; what came before was read"
            to.leave_out(member.name, reason, unreadable=True)
    if not is_wanted:
        target.unlink()
        to.leave_out(member.name, "no format that is known here")
    elif member.changed_s:
        os.utime(target, (member.changed_s, member.changed_s))


def _copied(path: Path, member: Member, file: IO[bytes], is_known: Callable[[Path], bool]) -> bool:
    """Copy a member's content; False if it is large and, by its beginning, no profile."""
    source, is_checked = member.open(), member.size < _LARGE
    while data := source.read(_COPIED):
        _store(data, file, path)
        if not is_checked and file.tell() >= _HEAD:
            is_checked = True
            if not is_known(Path(file.name)):
                return False
    return True


def _store(data: bytes, file: IO[bytes], path: Path) -> None:
    try:
        file.write(data)
        file.flush()
    except OSError as error:
        raise _no_room(path, error) from error


def _bound_inner(folder: Path, packed: int) -> list[Path]:
    """Have compressed files of an archive unpacked to no more, in sum, than the archive itself may be."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    is_packed = [inputs.is_packed(path) for path in files]
    for kind in (True, False):  # compressed files, and those that may have compressed parts
        alike = [path for path, other in zip(files, is_packed, strict=True) if other is kind]
        inputs.bound_unpacked(alike, packed)
    return files


def _no_room(path: Path, error: Exception) -> ReadError:
    reason = f"there is no room to unpack it: {_reason(error)}"
    return ReadError(reason, path=path, hint="TMPDIR names the folder that it is unpacked in")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
