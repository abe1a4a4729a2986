"""Outputs that are complete or absent, whenever the writing ends.

A file is written into a workspace, a hidden entry of the same folder, and renamed. A folder is filled as a
workspace next to its place, and put there in a single step::

    place does not exist                 new ──rename──▶ place
    place has only earlier outputs       new ◀─exchange─▶ place, then the old ones are removed
    place has other entries, or can't    new ──rename──▶ place/.chopper-interop.unfinished, then entry by
    be exchanged (a mount point, the     entry into place. Readers refuse a place with that folder, and
    current folder, no such call)        the next writer completes it first

Contents are on the disk before they get their names (fsync: 4 ms a file, 0.2 of many, half a second a gigabyte), so that after a
power cut, too, a name stands for all of its content.

A workspace is locked by its writer. One without a lock was left behind by a process that was killed; the next
writer to the same folder removes it.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from chopper_interop.errors import ReadError, UsageError, WriteError
from chopper_interop.io.exchange import exchange
from chopper_interop.schemas.meta import ORDER

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

MARK = "chopper-interop"
"""Name of the writer in files of this program, near their beginning, where a format has room."""
_UNFINISHED = ".chopper-interop.unfinished"
"""Folder with the new entries of the folder that it is in, while they are moved there."""
_OUTDATED = ".outdated"
"""File in it that says which entries are to be removed, and of which folder."""
_OPEN_FILES = Path("/proc/self/fd")
"""Folder in which Linux has a link for each open file of a process."""
_MOST_LINKS = 40
"""Links behind each other that Linux follows (``MAXSYMLINKS``)."""
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems that cannot write at once: of some networks, for folders."""
_SYNCED_FILES = 8
"""Files that are synced at a time, where there are so many. Chosen: of a thousand small files on a busy
disk one takes 2.4 to 4.9 ms with one at a time, 0.2 with 8, and 0.1 to 0.2 with 16."""
_IS_FOLDER, _NAME_A_FILE = "it is a folder, and one file is written", "name a file in it"
_SEPARATORS = re.compile(r"[/\\\0]")
_NAMED_AS_FOLDER: ContextVar[Path | None] = ContextVar("named as a folder", default=None)
_spared: ContextVar[tuple[Path, ...]] = ContextVar("spared", default=())
_LOCKING_S = 1
"""Seconds between making a workspace and locking it, at most (chosen: two system calls in a row)."""


class _Replacement(msgspec.Struct):
    """Entries to remove of a folder, which is known by its inode: a folder that was copied has another."""

    inode: int
    outdated: list[bytes]


def require_times(trace: Trace, path: Path) -> None:
    """Raise `WriteError` for a trace without times, in a format that would take order for time."""
    if trace.meta.clock == ORDER:
        raise WriteError(
            "the trace has no times: its ts counts the nodes in order",
            path=path,
            hint="give the profiler's trace of the same ranks as well",
        )


def require_folder(path: Path) -> None:
    """Raise `WriteError` if neither a folder to write into nor the one that it is in exists.

    One folder is made; more than that is more likely mistyped than meant.
    """
    try:
        exists = path.is_dir() or path.parent.is_dir()
    except OSError as error:
        raise WriteError(f"cannot be opened: {error.strerror}", path=path) from error
    if not exists:
        raise WriteError("there is no such folder", path=path.parent, hint="make it first")


def require_writable(path: Path, *, is_folder: bool | None = None) -> None:
    """Raise `WriteError` if no output can be made at a path, as one that is not there yet shows.

    Parameters
    ----------
    path
        The file or folder.
    is_folder
        True for a folder, False for a file, None for one or the other.
    """
    try:
        if is_written_into(path):
            _require(_descriptor(path) is not None or _may_write(path), errno.EACCES)
            _require(not is_folder, errno.ENOTDIR)
            return
        target = real(path)
        parent = target.parent
        if target == parent:  # -o "$UNSET/"
            raise WriteError("it is the root of all folders", path=path, hint="name a folder in it")
        require_folder(parent)
        _require(parent.is_dir() or not parent.exists(), errno.ENOTDIR)
        if target.is_dir():
            if is_folder is False:
                raise WriteError(_IS_FOLDER, path=path, hint=_NAME_A_FILE)
            # it stays, and its entries are replaced
            if target.is_mount() or not _may_write(parent):
                parent = target
        else:
            _require(not (is_folder and target.exists()), errno.ENOTDIR)
        with workspace(parent if parent.is_dir() else parent.parent):
            pass
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror or error}", path=path) from error


def _require(condition: object, error_number: int) -> None:
    """Raise `OSError` of a number unless a condition holds."""
    if not condition:
        raise OSError(error_number, os.strerror(error_number))


def file_name(text: str) -> str:
    """Return a text as a part of a file's name, which leads to no other folder."""
    return _SEPARATORS.sub("_", text).strip(".") or "job"


@contextmanager
def file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write, gzipped if its name ends in ``.gz``; it appears when all went well.

    What exists and is no regular file is written into: a device, or a pipe, which waits for its reader. So is an
    open file (``/dev/stdout``), behind what was written to it before, whatever it is.

    Raises
    ------
    WriteError
        It cannot be written.
    """
    try:
        target = real(path) if path.is_symlink() else path
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))  # noqa: TRY301 # as opening it would
        special = is_written_into(path)
        if path.is_dir() or path == _NAMED_AS_FOLDER.get():
            raise WriteError(_IS_FOLDER, path=path, hint=_NAME_A_FILE)
        with ExitStack() as stack:
            destination = path if special else stack.enter_context(workspace(target.parent))
            with ExitStack() as content:
                yield _opened(destination, content, packed=path.name.endswith(".gz"))
            if not special:
                _sync(destination)
                destination.replace(target)
                _sync(target.parent)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror or error}", path=path) from error


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Yield a path of the same name in a workspace, for a writer that opens a path itself.

    What it has made there, and next to it, replaces what is at the path and next to that when all went well.
    """
    target = real(path)
    try:
        with workspace(target.parent, is_folder=True) as new:
            yield new / path.name
            _sync_below(new)
            for entry in sorted(new.iterdir()):
                entry.replace(target if entry.name == path.name else target.parent / entry.name)
            _sync(target.parent)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror or error}", path=path) from error


@contextmanager
def removed_after_failure(path: Path) -> Iterator[Path]:
    """Yield a path; a folder that was not there before is removed if the block fails."""
    existed = path.exists()
    try:
        yield path
    except BaseException:
        if not existed:
            remove(path)
        raise


@contextmanager
def as_named(path: Path, name: str) -> Iterator[None]:
    """Have formats of one file refuse a path whose name, maybe a URL, is that of a folder (``DIR/``)."""
    token = _NAMED_AS_FOLDER.set(path if name.endswith("/") else None)
    try:
        yield
    finally:
        _NAMED_AS_FOLDER.reset(token)


@contextmanager
def folder(path: Path, *, owns: Callable[[Path], bool]) -> Iterator[Path]:
    """Make a folder to fill; what is in it replaces what `path` had when all went well.

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
    if is_written_into(path):
        raise WriteError(
            "it is a pipe, a device or an open file, and a folder is written",
            path=path,
            hint="name a folder, or write a format of one file",
        )
    path = real(path)  # "." has no name
    try:
        is_fixed = path.is_dir() and (path.is_mount() or not _may_write(path.parent))
        _finish(path)
        with workspace(path if is_fixed else path.parent, is_folder=True) as new:
            yield new
            _sync_below(new)
            with _one_at_a_time(path):
                _put_in_place(new, path, owns)
            _sync(path if is_fixed else path.parent)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror or error}", path=path) from error


def real(path: Path) -> Path:
    """Return a path without links; of links in a cycle one of them, which cannot be opened.

    Itself where a link goes away as it is followed, as those of a process that ends.
    """
    try:
        return Path(os.path.realpath(path))
    except OSError:
        return path.absolute()


def is_unfinished(path: Path) -> bool:
    """Return True for a folder whose writing was interrupted while its entries were replaced."""
    return os.access(path / _UNFINISHED, os.F_OK)


def require_finished(path: Path) -> None:
    """Raise `ReadError` for a folder whose writing was interrupted while its entries were replaced."""
    if is_unfinished(path):
        raise ReadError(
            "its writing was interrupted, and parts of it are old",
            path=path,
            hint="run the command that wrote it again",
        )


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


@contextmanager
def sparing(files: Iterable[Path]) -> Iterator[None]:
    """Refuse, in a ``with`` block, to remove these files from a folder, or folders that they are in."""
    before = _spared.set(tuple(files))
    try:
        yield
    finally:
        _spared.reset(before)


def _refuse_read(path: Path, outdated: set[str]) -> None:
    """Raise `UsageError` if entries of a folder that are to be removed are spared, or hold what is."""
    for file in map(real, _spared.get() if outdated else ()):
        if path in file.parents and file.relative_to(path).parts[0] in outdated:
            raise UsageError("it would be overwritten by what is made of it", path=path)


def _put_in_place(new: Path, path: Path, owns: Callable[[Path], bool]) -> None:
    """Replace what `path` has of this program by the entries of `new`, a workspace."""
    if not path.exists():
        new.rename(path)
        return
    written = {entry.name for entry in new.iterdir()}
    entries = [entry for entry in path.iterdir() if not _is_workspace(entry)]
    outdated = {entry.name for entry in entries if owns(entry)}
    _refuse_read(path, outdated)
    staying = [entry for entry in entries if entry.name not in outdated]
    _refuse_foreign(path, {entry.name for entry in staying} & written)
    if staying or not _exchanged(new, path):
        _replace_entries(new, path, outdated - written)
        return
    for entry in new.iterdir():  # what came into the old folder meanwhile
        if entry.name not in outdated:
            entry.rename(path / entry.name)


def _exchanged(new: Path, path: Path) -> bool:
    """Exchange two folders; False, and nothing is changed, where that is impossible or would be noticed.

    A process whose current folder it is would be left in the old one.
    """
    is_current = path in (Path.cwd(), *Path.cwd().parents)
    if new.parent == path or is_current or not _may_write(path):
        return False
    try:
        shutil.copymode(path, new)
        return exchange(new, path)
    except OSError:
        return False


def _replace_entries(new: Path, path: Path, outdated: set[str]) -> None:
    """Move the entries of `new` to `path` and remove the outdated; from the rename on, `_finish` can do it."""
    replacement = _Replacement(path.stat().st_ino, sorted(map(os.fsencode, outdated)))
    (new / _OUTDATED).write_bytes(msgspec.json.encode(replacement))
    try:
        with _locked(path):
            new.rename(path / _UNFINISHED)
        _finish(path)
    except KeyboardInterrupt:
        _finish(path)
        raise


def _finish(path: Path) -> None:
    """Complete a replacement entry by entry, if one is under way or was interrupted.

    Raises
    ------
    WriteError
        It did not begin in this folder: what others put there could have any file removed or moved.
    """
    unfinished = path / _UNFINISHED
    if not os.path.lexists(unfinished):
        return
    with _locked(path):
        if os.path.lexists(unfinished / _OUTDATED):
            for name in _names_outdated(path):
                remove(path / name)
            for entry in sorted(unfinished.iterdir()):
                if entry.name != _OUTDATED:
                    if entry.is_dir():
                        remove(path / entry.name)  # a folder replaces only an empty one
                    entry.replace(path / entry.name)
        shutil.rmtree(unfinished, ignore_errors=True)


def _names_outdated(path: Path) -> list[str]:
    """Names of entries that an interrupted replacement of a folder was to remove."""
    unfinished = path / _UNFINISHED
    try:
        is_plain = _is_plain(unfinished, stat.S_IFDIR) and _is_plain(unfinished / _OUTDATED)
        content = (unfinished / _OUTDATED).read_bytes() if is_plain else b""
        replacement = msgspec.json.decode(content, type=_Replacement)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeError):
        replacement = _Replacement(-1, [])
    names = [os.fsdecode(name) for name in replacement.outdated]
    leads_out = any(name in ("", ".", "..") or _SEPARATORS.search(name) for name in names)
    if replacement.inode != path.stat().st_ino or leads_out:
        raise WriteError(
            "this mark of a writing that was interrupted was not made in this folder",
            path=unfinished,
            hint="look at what is in it, and remove it",
        )
    return names


def _is_plain(path: Path, kind: int = stat.S_IFREG) -> bool:
    """True for an entry of a kind, not for a link to one."""
    return stat.S_IFMT(path.lstat().st_mode) == kind


def _refuse_foreign(folder: Path, names: set[str]) -> None:
    """Raise `WriteError` if there are names of files that this program did not write."""
    for name in sorted(names):
        raise WriteError(
            "it is there and was not written by this program",
            path=folder / name,
            hint="choose another folder, or remove it",
        )


@contextmanager
def workspace(parent: Path, *, is_folder: bool = False, mode: int = 0o777) -> Iterator[Path]:
    """Make a file or folder of a new name and lock it; it is removed at the end if it is still there."""
    require_folder(parent)
    path = parent / f".chopper-{secrets.token_hex(8)}.part"
    with ExitStack() as stack:
        if not parent.exists():
            parent.mkdir()
            stack.callback(_remove_if_empty, parent)
        _remove_abandoned(parent)
        stack.callback(remove, path)
        if is_folder:
            path.mkdir(mode)
        else:
            path.open("xb").close()
        stack.enter_context(_locked(path))
        yield path


def _remove_abandoned(parent: Path) -> None:
    """Remove workspaces that no process has locked.

    One that is a moment old may be about to be locked.
    """
    for path in filter(_is_workspace, parent.iterdir()):
        with suppress(OSError), _locked(path, wait=False):  # one in use, or of another user
            state = path.lstat()
            is_removable = stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)
            if is_removable and time.time() - state.st_mtime > _LOCKING_S:
                remove(path)


def _is_workspace(path: Path) -> bool:
    return path.name.startswith(".chopper-") and path.name.endswith(".part")


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file or folder; without `wait`, raise `OSError` if another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        if not wait:
            raise PermissionError from None
        yield
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # it may be a pipe
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if not wait:
                raise  # otherwise: a file system without locks, where workspaces stay
        yield
    finally:
        os.close(descriptor)


def _descriptor(path: Path) -> int | None:
    """Number of the open file of this process that a path names (``/dev/stdout``, ``/dev/fd/1``); None for others.

    A file that was opened by its name instead would be overwritten from its start, or replaced.
    """
    own = os.path.realpath(_OPEN_FILES)
    for _ in range(_MOST_LINKS):
        if path.name.isdigit() and os.path.realpath(path.parent) == own:
            return int(path.name)
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    return None


def is_written_into(path: Path) -> bool:
    """Return True for a pipe, a device or an open file, which nothing can be put in the place of."""
    is_other = path.exists() and not (path.is_file() or path.is_dir())
    return is_other or _descriptor(path) is not None


def _opened(path: Path, stack: ExitStack, *, packed: bool) -> Any:
    number = _descriptor(path)
    file = path if number is None else os.dup(number)
    raw = stack.enter_context(open(file, "wb"))  # noqa: PTH123, SIM115 # a descriptor; the stack closes it
    if not packed:
        return raw
    from isal import igzip

    # without name and time in its header, the same content makes the same file
    return stack.enter_context(
        igzip.IGzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0)  # type: ignore[no-untyped-call]
    )


def _one_at_a_time(path: Path) -> AbstractContextManager[None]:
    """Wait for other processes that put an output next to a path: what they replace looks like that of others.

    The root is in itself; it is locked when its entries are replaced.
    """
    parent = path.parent
    is_lockable = parent != path and os.access(parent, os.R_OK)
    return _locked(parent) if is_lockable else nullcontext()


def _may_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _sync_below(folder: Path) -> None:
    """Have all files and folders in a folder, and itself, written to the disk.

    Several files at a time: a disk has what all of them wait for written together.
    """
    folders, files = [], []
    for parent, _, names in os.walk(folder):
        folders.append(Path(parent))
        files += [Path(parent, name) for name in names]
    if len(files) < _SYNCED_FILES:
        for path in files:
            _sync(path)
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_SYNCED_FILES, "chopper-sync") as threads:
            for _ in threads.map(_sync, files):
                pass
    for path in folders:
        _sync(path)


def _sync(path: Path) -> None:
    """Have a file's content, or a folder's names, written to the disk."""
    is_windows, is_folder = os.name == "nt", path.is_dir()
    if is_folder and (is_windows or not os.access(path, os.R_OK)):
        return  # it can't be opened; its names reach the disk later
    descriptor = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def sync_descriptor(descriptor: int) -> None:
    """Have what was written to an open file written to the disk, where its file system can."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def release_cache(descriptor: int) -> None:
    """Let the system take back the memory that holds what of an open file is on the disk, where it can.

    What is written next gets that memory: new one takes most of the time of writing where a machine is a guest of another.
    """
    with suppress(AttributeError, OSError):  # not macOS, not Windows
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def remove(path: Path) -> None:
    """Remove a file or a folder with all in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
