"""Members of tar and zip archives, one after the other, without trust in what headers say.

A tar is read from front to back, its headers by `tarfile.TarInfo.frombuf`; iteration of `tarfile` itself
follows negative offsets and keeps extended headers of any size. What is no plain file has a reason.
"""

from __future__ import annotations

import bz2
import lzma
import stat
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from isal import igzip, isal_zlib

from chopper_interop.errors import ReadError
from chopper_interop.io import inputs

MAX_MEMBERS = 1 << 16
"""Members of an archive. Chosen: several times the files of the largest job; reading headers takes seconds."""
_BLOCK = tarfile.BLOCKSIZE
_MAX_HEADER = 1 << 20
"""Bytes of an extended header of a tar. Chosen: names have at most 4,096, attributes 64 KiB."""
ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of a ZIP archive, and of an empty one."""
_LATEST_S = 1 << 32
"""Time of a change, seconds since 1970, up to which it is taken over."""
_ENCRYPTED_FLAG = 1
"""Bit 0 of a ZIP member's flags (APPNOTE 4.4.4)."""
ENCRYPTED = "it is encrypted"
_gzip_error: Any = isal_zlib.error  # an exception class, declared as an exception
DAMAGED: tuple[type[Exception], ...] = (
    OSError, EOFError, ValueError, OverflowError, struct.error, RuntimeError, MemoryError,
    tarfile.HeaderError, zipfile.BadZipFile, zlib.error, _gzip_error, lzma.LZMAError,
)  # fmt: skip
"""Exceptions of reading a damaged archive, or one with a method that Python does not know."""


class Readable(Protocol):
    """Bytes from front to back."""

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes; none at the end."""


@dataclass(frozen=True)
class Member:
    """An entry of an archive.

    Parameters
    ----------
    name
        Its name, which may say anything.
    size
        Bytes that it has, as the archive states.
    open
        Opens its content; it is read before the next member is asked for.
    changed_s
        When it was changed last, seconds since 1970; 0 if that is unknown.
    refusal
        Why it is not unpacked: it is a link, a device, …; "" for a plain file.
    is_folder
        True if it has no content.
    """

    name: str
    size: int
    open: Callable[[], Readable]
    changed_s: float = 0
    refusal: str = ""
    is_folder: bool = False


class TooLargeError(Exception):
    """More was unpacked than is allowed."""


class TooManyError(Exception):
    """More members came than are allowed."""


@dataclass
class Budget:
    """Bytes that may still be unpacked, and members that may still come."""

    bytes_left: int
    members_left: int = MAX_MEMBERS

    def take_bytes(self, count: int) -> None:
        """Count unpacked bytes; raise `TooLargeError` beyond the limit."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise TooLargeError

    def take_member(self) -> None:
        """Count a member; raise `TooManyError` beyond the limit."""
        self.members_left -= 1
        if self.members_left < 0:
            raise TooManyError


def members(path: Path, head: bytes, budget: Budget) -> Iterator[Member]:
    """Yield the members of an archive that begins with `head`, unpacked.

    Raises
    ------
    TooLargeError, TooManyError
        More was unpacked than the budget has.
    ReadError
        It is a zip archive within a compressed file.
    Exception
        One of `DAMAGED`.
    """
    with inputs.opened(path) as file:
        if head.startswith(ZIP_STARTS):
            if inputs.is_packed(path):
                reason = "it is a zip archive within a compressed file, which is not read"
                raise ReadError(reason, path=path, hint="unpack it once, such as by gunzip")
            yield from _zip_members(file, budget)
        else:
            yield from _tar_members(_Stream(_unpacking(file), budget), budget)


def _zip_members(file: IO[bytes], budget: Budget) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            budget.take_member()

            def opened(info: zipfile.ZipInfo = info) -> Readable:
                return _Stream(archive.open(info), budget)

            mode = info.external_attr >> 16
            refusal = _refusal_of_mode(mode)
            if info.flag_bits & _ENCRYPTED_FLAG:
                refusal = ENCRYPTED
            changed_s = _local_time_s(info.date_time)
            yield Member(info.filename, info.file_size, opened, changed_s, refusal, info.is_dir())


def _refusal_of_mode(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return _LINK
    return "" if stat.S_IFMT(mode) in (0, stat.S_IFREG, stat.S_IFDIR) else _DEVICE


def _local_time_s(date: tuple[int, ...]) -> float:
    """Seconds since 1970 of a time of an archive, which states no zone: it is taken for this machine's."""
    try:
        return time.mktime((*date, 0, 0, -1))  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        return 0


_LINK = "it is a link, which is not followed"
_DEVICE = "it is a pipe or a device, no file"
_SPARSE = "it is a file with holes, of a kind that is not unpacked"
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_REFUSALS = {
    tarfile.LNKTYPE: _LINK, tarfile.SYMTYPE: _LINK,
    tarfile.CHRTYPE: _DEVICE, tarfile.BLKTYPE: _DEVICE, tarfile.FIFOTYPE: _DEVICE,
    tarfile.GNUTYPE_SPARSE: _SPARSE,
}  # fmt: skip
_NO_CONTENT = {*_REFUSALS, tarfile.DIRTYPE} - {tarfile.GNUTYPE_SPARSE}


def _tar_members(stream: _Stream, budget: Budget) -> Iterator[Member]:
    """Yield the members of a tar; names and sizes of extended headers hold for the next member."""
    stated: dict[str, str] = {}
    while any(block := stream.read_all(_BLOCK)):
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        budget.take_member()
        size = int(stated.get("size", info.size))
        if size < 0:
            raise ValueError("a member has a negative size")
        if info.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            stated |= _extended(_header(stream, size))
        elif info.type == tarfile.GNUTYPE_LONGNAME:
            stated["path"] = _text(_header(stream, size).rstrip(b"\0"))
        elif info.type in (tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE):
            stream.skip(size)
        else:
            content = _MemberContent(stream, 0 if info.type in _NO_CONTENT else size)
            yield _tar_member(info, stated, content)
            stream.skip(content.left)
            stated = {}
            size = content.size
        stream.skip(-size % _BLOCK)


def _tar_member(info: tarfile.TarInfo, stated: dict[str, str], content: _MemberContent) -> Member:
    refusal = _REFUSALS.get(info.type, "" if info.type in (*_FILES, tarfile.DIRTYPE) else _DEVICE)
    if any(key.startswith("GNU.sparse.") for key in stated):
        refusal = _SPARSE
    changed_s = float(stated.get("mtime", info.mtime))
    return Member(
        name=stated.get("path", info.name),
        size=content.size,
        open=lambda: content,
        changed_s=changed_s if 0 < changed_s < _LATEST_S else 0,
        refusal=refusal,
        is_folder=info.type == tarfile.DIRTYPE,
    )


def _header(stream: _Stream, size: int) -> bytes:
    if size > _MAX_HEADER:
        raise ValueError(f"a header of it has more than {_MAX_HEADER:,} bytes")
    return stream.read_all(size)


def _extended(data: bytes) -> dict[str, str]:
    """Parse records ``LENGTH KEY=VALUE`` of an extended header of POSIX."""
    records, at = {}, 0
    while at < len(data) and data[at]:
        space = data.index(b" ", at, at + 20)
        end = at + int(data[at:space])
        key, _, value = data[space + 1 : end - 1].partition(b"=")
        if end <= space:
            raise ValueError("a record of its headers has no length")
        records[_text(key)] = _text(value)
        at = end
    return records


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


class _Stream:
    """A file that is read from front to back, and whose bytes are counted."""

    def __init__(self, file: Readable, budget: Budget) -> None:
        self._file, self._budget = file, budget

    def read(self, size: int, /) -> bytes:
        data = self._file.read(size)
        self._budget.take_bytes(len(data))
        return data

    def read_all(self, size: int) -> bytes:
        """Read so many bytes, or raise `EOFError`."""
        parts = []
        while size and (part := self.read(min(size, inputs.BLOCK_BYTES))):
            parts.append(part)
            size -= len(part)
        if size:
            raise EOFError("it ends too early")
        return b"".join(parts)

    def skip(self, size: int) -> None:
        while size > 0:
            block = min(size, inputs.BLOCK_BYTES)
            self.read_all(block)
            size -= block


class _MemberContent:
    """Content of one member of a tar."""

    def __init__(self, stream: _Stream, size: int) -> None:
        self._stream, self.size, self.left = stream, size, size

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(min(size, self.left))
        self.left -= len(data)
        if self.left and size and not data:
            raise EOFError("it ends too early")
        return data


def _unpacking(file: IO[bytes]) -> Readable:
    """Return what unpacks a file as its first bytes say."""
    first = file.read(8)
    file.seek(0)
    opened: dict[bytes, Callable[[Any], Any]] = {
        b"\x1f\x8b": lambda file: igzip.IGzipFile(fileobj=file, mode="rb"),  # type: ignore[no-untyped-call]
        b"\xfd7zXZ\x00": lzma.open,
        b"BZh": bz2.open,
        b"\x28\xb5\x2f\xfd": _zstd,
    }
    wraps = next((wrap for magic, wrap in opened.items() if first.startswith(magic)), None)
    return file if wraps is None else wraps(file)


def _zstd(file: IO[bytes]) -> Readable:
    import pyarrow as pa

    stream: Readable = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
    return stream
