"""Bytes of an input file, whatever it is compressed with.

The first bytes determine the compression, never the name: gzip (several members, trailing bytes
behind the last), xz, bzip2, zstd or none; and text in UTF-8 or UTF-16, with a byte order mark or
without.
"""

from __future__ import annotations

import errno
import hashlib
import lzma
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from chopper_interop.arrays import Bytes, spill
from chopper_interop.errors import ReadError
from chopper_interop.io import memory
from chopper_interop.issues import Fault, IssueLog

HEAD_BYTES = 64 * 1024
"""Bytes of a file that a converter gets to see in `sniff`, after decompression (chosen: more
would slow down folders of many files, less would miss what stands behind a long header)."""
_PACKED_HEAD_BYTES = 1 << 21
"""Bytes on disk that are read for a head: a block of bzip2, the largest unit, has up to 900,000."""
_MAX_UNPACKED: ContextVar[int | None] = ContextVar("_MAX_UNPACKED", default=None)
"""Bytes that a compressed file may have when unpacked, as the user says; None for a multiple of its size."""
_BOUNDS: dict[Path, int] = {}
"""Bytes that compressed files of archives may have when unpacked."""
_DIGESTS: ContextVar[dict[Path, str] | None] = ContextVar("_DIGESTS", default=None)
"""SHA-256 of files that `blocks` read to their end; None where nobody will ask for it."""
_MAX_RATIO = 200
"""Ratio of sizes beyond which compressed data is taken for a bomb. Chosen: traces of each profiler shrink to a
tenth to a fortieth; gzip reaches 1,000 with one byte repeated."""
_PACKED_RATIO = 10
"""Ratio of sizes that is expected of traces, for the memory that reading them takes."""
_GZIP = b"\x1f\x8b"
_GZIP_CERTAIN = 1 << 26
"""Bytes of a gzip file up to which it states its unpacked size, modulo 4 GiB, without doubt (chosen)."""
_STATED_RATIO = 100
"""Ratio of sizes beyond which the last bytes are no size: the file was cut short (chosen: see `_MAX_RATIO`)."""
_ALWAYS_UNPACKED = 1 << 28
"""Bytes that are unpacked whatever the ratio (chosen: any machine has them)."""
_READ_BYTES = 1 << 20
"""Bytes of a file that are read at a time (chosen: they stay in the processor's cache until they are used)."""
BLOCK_BYTES = 1 << 16
"""Compressed bytes handed over at a time (chosen: the result then stays in the processor's cache)."""
_OPENING_S = 0.1
"""Time in which a file is open (chosen): what takes longer may be a pipe that is waited for."""
_UNPACKED_BLOCK_BYTES = 1 << 20
"""Bytes unpacked at a time of xz and bzip2, of which 3 kB may hold 4 GB. Chosen: some ten times what is handed over."""

_KEPT_BUFFERS = 16
"""Buffers that are kept to be used again (chosen: more than threads use at a time); new ones cost page faults."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
"""The scheme of a URL has two letters or more: a single one is a drive."""
_ENDING = re.compile(
    r"\.(gz|xz|bz2|zst|json|jsonl|trace|pt|csv|txt|log|db|et|pftrace|perfetto-trace|parquet|graphml"
    r"|tmp|tar|tgz|txz|tbz2|tzst|zip)$",
    re.IGNORECASE,
)

TRUNCATED = Fault.loss(
    "compressed-data-cut-short",
    "The compressed file ends too early; what came before its end was read.",
)
TRAILING_BYTES = Fault.info(
    "bytes-behind-compressed-data", "Bytes behind the end of the compressed data were left out."
)
NOT_UTF16 = Fault.loss(
    "text-not-utf16", "Bytes of a text in UTF-16 that are none, or its cut end, were replaced."
)
_UTF16_BYTES = 32
"""Bytes from which UTF-16 without a byte order mark is recognized: every second one is zero."""
_MIN_ASCII = 14
"""Letters of the 16 in them that must be ASCII (chosen: binary data has fewer printable ones)."""
_ASCII = frozenset(b"\t\r\n") | frozenset(range(32, 127))


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...  # of xz and bzip2 alone
    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


def _gzip() -> _Decompressor:
    from isal import isal_zlib

    decompressor: Any = isal_zlib.decompressobj(wbits=31)  # has all but needs_input
    return decompressor


def _gzip_error() -> type[Exception]:
    from isal import isal_zlib

    error: Any = isal_zlib.error  # an exception class, declared as an exception
    return error


def _bzip2() -> _Decompressor:
    import bz2

    return bz2.BZ2Decompressor()


DECOMPRESSORS: dict[bytes, Callable[[], _Decompressor] | None] = {
    _GZIP: _gzip,
    b"\xfd7zXZ\x00": lzma.LZMADecompressor,
    b"BZh": _bzip2,
    b"\x28\xb5\x2f\xfd": None,  # zstd, which pyarrow unpacks as a stream
}
"""First bytes of compressed data → what makes a decompressor for it."""


def unpacking_at_most(gigabytes: float | None) -> AbstractContextManager[None]:
    """Set how large a compressed file may be when unpacked, within a block; as `memory.limit_set`."""
    return memory.limit_set(_MAX_UNPACKED, "max-unpacked", gigabytes)


def stated_max_unpacked() -> float | None:
    """Return the gigabytes that `unpacking_at_most` set; None if it set nothing."""
    stated = _MAX_UNPACKED.get()
    return None if stated is None else stated / 1e9


def max_unpacked(packed: int, path: Path) -> int:
    """Return how large compressed data of so many bytes, in this file, may be when unpacked.

    That is what the user says, else 200 times its size, and no more than the memory; for a file of an
    archive no more than its part of what the archive may have.
    """
    stated = _MAX_UNPACKED.get()
    if stated is not None:
        return stated
    allowed = _BOUNDS.get(path, max_unpacked_to_disk(packed))
    return min(allowed, max_unpacked_to_disk(packed), memory.physical_bytes())


def max_unpacked_to_disk(packed: int) -> int:
    """Return how large compressed data of so many bytes may be when unpacked into files."""
    stated = _MAX_UNPACKED.get()
    return max(_ALWAYS_UNPACKED, _MAX_RATIO * packed) if stated is None else stated


def bound_unpacked(paths: Sequence[Path], packed: int) -> None:
    """Bound what files of one archive of so many bytes may have when unpacked.

    In sum that is what the archive may have: archives of archives would grow by the product of ratios else.
    """
    sizes = [path.stat().st_size for path in paths]
    share = min(1.0, packed / max(sum(sizes), 1))
    for path, n_bytes in zip(paths, sizes, strict=True):
        _BOUNDS[path] = max(_ALWAYS_UNPACKED // len(paths), int(_MAX_RATIO * share * n_bytes))


def unpacked_bounds(paths: Iterable[Path]) -> dict[Path, int]:
    """Return the bounds of those of these files that `bound_unpacked` set some for, in bytes."""
    return {path: _BOUNDS[path] for path in paths if path in _BOUNDS}


def set_unpacked_bounds(bounds: dict[Path, int]) -> None:
    """Set bounds that `unpacked_bounds` returned in another process."""
    _BOUNDS.update(bounds)


def unbound_unpacked(paths: Iterable[Path]) -> None:
    """Forget the bounds of these files."""
    for path in paths:
        _BOUNDS.pop(path, None)


def too_large_unpacked(limit: int, packed: int, path: Path) -> ReadError:
    """Return the error for compressed data that has more bytes than allowed."""
    return ReadError(
        f"unpacked it has more than {limit:,} bytes, {limit // max(packed, 1):,} times its size",
        path=path,
        hint="--max-unpacked GIGABYTES allows more, if it is no mistake",
    )


def expected_bytes(path: Path) -> int:
    """Return about how many bytes a file has when unpacked: what gzip states, else a guess."""
    try:
        with opened(path) as file:
            magic, size = _packing(file.read(8)), os.fstat(file.fileno()).st_size
            if magic != _GZIP or size > _GZIP_CERTAIN:
                return size if magic is None else size * _PACKED_RATIO
            file.seek(max(size - 4, 0))
            stated = int.from_bytes(file.read(4), "little")
            return stated if size <= stated <= _STATED_RATIO * size else size * _PACKED_RATIO
    except OSError:  # reading it says what is wrong
        return 0


def is_url(text: str | os.PathLike[str]) -> bool:
    """Return True if a text is a URL and not the path of a file."""
    return _URL.match(os.fspath(text)) is not None


def read(path: Path, issues: IssueLog | None = None) -> Bytes:
    """Read all bytes of a file, decompressed and as UTF-8.

    Parameters
    ----------
    path
        The file.
    issues
        Where to note trailing bytes behind compressed data, its early end or text that is damaged.

    Raises
    ------
    ReadError
        It cannot be opened, or nothing of it can be decompressed.
    TooLittleMemoryError
        Memory does not suffice for it.
    """
    with memory.sufficing("reading all of it", path):
        raw = _on_disk(path)
        magic = _packing(bytes(raw[:8]))
        log = IssueLog() if issues is None else issues
        data = raw if magic is None else _decompressed(path, raw, magic, log)
        return _utf8(data, log)


def blocks(path: Path, issues: IssueLog) -> Iterator[Bytes]:
    """Yield the bytes of `read` from the first to the last; what is yielded is good until the next is asked for.

    A text in UTF-16 is one block. Errors are those of `read`.
    """
    no_bytes = np.empty(0, np.uint8)
    parts = _read_blocks(path)
    start = next(parts, no_bytes)
    magic = _packing(bytes(start[:8]))
    if magic is not None:
        parts = _bounded(path, _on_disk(path), magic, issues)
        start = next(parts, no_bytes)
    while len(start) < _UTF16_BYTES and (more := next(parts, None)) is not None:
        start = np.concatenate([start, more])
    if _utf16(bytes(start[:_UTF16_BYTES])) is not None:
        start = np.concatenate([start.copy(), *(part.copy() for part in parts)])
    yield _utf8(start, issues)
    yield from parts


class TextWindow:
    """Bytes of a text, of which those from `base` on are in memory.

    Parameters
    ----------
    blocks
        The text in pieces; each is needed only until the next is asked for.
    base
        Offset at which they begin.
    expected
        Bytes that they have together, about, for those who make room for what is found in them.
    """

    def __init__(self, blocks: Iterable[Bytes], base: int = 0, expected: int = 0) -> None:
        self._blocks = iter(blocks)
        self.expected = expected
        self._unused: list[Bytes] = []
        self.base = base
        """Offset of the window in the text."""
        self.bytes: Bytes = next(self._blocks, np.empty(0, np.uint8)).copy()
        """The window."""
        self._block: Bytes = self.bytes[:0]
        """Bytes behind the window that are read already."""
        self.complete = False
        """True if the window reaches to the end of the text."""
        self._error: Exception | None = None
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Read the next block if all of the last one is in the window; an error is raised again by each later call."""
        while not self._block.size and not self.complete:
            if self._error is not None:
                raise self._error
            try:
                block = next(self._blocks, None)
            except Exception as error:
                self._error = error
                raise
            self.complete = block is None
            self._block = self._block if block is None else block

    def extend(self) -> None:
        """Make the window twice as large, or as large as it can be."""
        self.move(0, max(len(self.bytes), len(self._block)))

    def move(self, count: int, size: int) -> None:
        """Let the window begin `count` bytes later, and end `size` bytes later or at the end of the text.

        What was the window stays valid until it is given to `reuse`.
        """
        kept = self.bytes[count:]
        buffer = self._buffer(len(kept) + size)
        buffer[: len(kept)] = kept
        used = len(kept)
        while used < len(kept) + size and not self.complete:
            taken = self._block[: len(kept) + size - used]
            buffer[used : used + len(taken)] = taken
            used += len(taken)
            self._block = self._block[len(taken) :]
            self._look_ahead()
        self.bytes, self.base = buffer[:used], self.base + count

    def put_back(self, parts: list[Bytes], start: int) -> None:
        """Let the window begin at an earlier offset of the text, of which these are the parts right before it."""
        before = self.base - sum(map(len, parts))
        window = np.concatenate([*parts, self.bytes]) if parts else self.bytes
        self.bytes, self.base = window[start - before :], start

    def finish(self) -> None:
        """Let the window reach to the end of the text."""
        while not self.complete:
            self.extend()

    def reuse(self, window: Bytes) -> None:
        """Take a window that is not used any more, for a later one; not the last one, of which the next has a part."""
        buffer = window.base
        if (
            isinstance(buffer, np.ndarray)
            and buffer is not self.bytes.base
            and len(self._unused) < _KEPT_BUFFERS
        ):
            self._unused.append(buffer)

    def _buffer(self, size: int) -> Bytes:
        while self._unused:
            buffer = self._unused.pop()
            if len(buffer) >= size:
                return buffer
        return np.empty(size, np.uint8)


def opened(path: Path, *, buffering: int = -1) -> Any:
    """Open a file to read; `OSError` for what is none: a pipe that took its place would be waited for."""
    return open(path, "rb", buffering, opener=_file_descriptor)


@contextmanager
def opened_by_name(path: Path) -> Iterator[None]:
    """Let a library open a file itself in a ``with`` block; `OSError` for what is none.

    A pipe that takes the file's place in this moment would be waited for, so that a thread then opens its other end.
    """
    _require_regular(path.stat(), os.fspath(path))
    is_open = threading.Event()
    threading.Thread(target=_end_waits, args=(path, is_open), daemon=True).start()
    try:
        yield
    finally:
        is_open.set()


def _end_waits(path: Path, is_open: threading.Event) -> None:
    """Open the other end of a pipe again and again until whoever waits for it has opened it."""
    while not is_open.wait(_OPENING_S):
        with suppress(OSError):
            if stat.S_ISFIFO(path.stat().st_mode):
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


def _file_descriptor(name: str, flags: int) -> int:
    descriptor = os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
    try:
        _require_regular(os.fstat(descriptor), name)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(state: os.stat_result, name: str) -> None:
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, no file", name)


def head(path: Path) -> bytes:
    """Read the first `HEAD_BYTES` bytes of a file, decompressed and as UTF-8.

    Raises
    ------
    ReadError
        It cannot be opened, or nothing of it can be decompressed.
    """
    raw = _on_disk(path, HEAD_BYTES)
    magic = _packing(bytes(raw[:8]))
    if magic is None:
        return bytes(_utf8(raw))
    raw = _on_disk(path, _PACKED_HEAD_BYTES)
    first, issues = bytearray(), IssueLog()
    for block in _blocks(path, raw, magic, issues, max_bytes=HEAD_BYTES):
        first += block
        if len(first) >= HEAD_BYTES:
            break
    if not first and any(issues):
        raise ReadError("nothing of its compressed data can be unpacked", path=path)
    return bytes(_utf8(np.frombuffer(first[:HEAD_BYTES], np.uint8)))


def is_packed(path: Path) -> bool:
    """True if a file is compressed."""
    return is_compressed(bytes(_on_disk(path, 8)))


def is_compressed(head: bytes) -> bool:
    """True if what begins so is compressed."""
    return _packing(head) is not None


def has_known_ending(path: Path) -> bool:
    """True if a file's name ends as those of profiles do."""
    return _ENDING.search(path.name) is not None


def plain_name(path: Path) -> str:
    """Return a file's name without endings of known file types; dots elsewhere are part of it."""
    name = path.name
    while _ENDING.search(name):
        name = _ENDING.sub("", name)
    return name


@contextmanager
def digesting() -> Iterator[None]:
    """Have `blocks`, in a ``with`` block, note the digests of what it reads, so that `sha256` need not read it again."""
    before = _DIGESTS.set({})
    try:
        yield
    finally:
        _DIGESTS.reset(before)


def note_digest(path: Path, data: bytes) -> None:
    """Note the digest of a file that was read as a whole, where `digesting` is asked for."""
    digests = _DIGESTS.get()
    if digests is not None:
        digests[path] = hashlib.sha256(data).hexdigest()


def sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file as it is on disk, in hexadecimal."""
    known = (_DIGESTS.get() or {}).get(path)
    if known is not None:
        return known
    try:
        with opened(path) as file:
            digest = hashlib.sha256()
            while block := file.read(16 * BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise ReadError(f"cannot be opened: {_reason(error)}", path=path) from error
    return digest.hexdigest()


@contextmanager
def that_may_go_away(paths: Iterable[Path]) -> Iterator[None]:
    """Raise `ReadError` where one of these files was there and cannot be opened any more."""
    try:
        yield
    except OSError as error:
        gone = next((path for path in paths if error.filename == os.fspath(path)), None)
        if gone is None:
            raise
        raise ReadError(f"cannot be opened: {_reason(error)}", path=gone) from error


def size(path: Path) -> int:
    """Return the bytes of a file on disk."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise ReadError(f"cannot be opened: {_reason(error)}", path=path) from error


def _on_disk(path: Path, at_most: int | None = None) -> Bytes:
    """Read a file as it is on disk, or its first bytes.

    It is read and not mapped: a file that another process cuts short would end this one by SIGBUS.
    """
    try:
        with opened(path) as file:
            expected = os.fstat(file.fileno()).st_size
            size = expected if at_most is None else min(expected, at_most)
            data = spill.empty(size, np.uint8)
            used = _fill(file, data)
    except (OSError, ValueError) as error:
        raise ReadError(f"cannot be opened: {_reason(error)}", path=path) from error
    if used < len(data):
        raise _cut_short(path, used, expected)
    return data


def _fill(file: Any, data: Bytes) -> int:
    """Read into all of an array; fewer bytes only at the end of a file."""
    view, used = data.data, 0
    while used < len(data) and (count := file.readinto(view[used:])):
        used += count
    return used


def _cut_short(path: Path, used: int, expected: int) -> ReadError:
    return ReadError(
        f"it was cut short while it was read: {used} of {expected} bytes",
        path=path,
        hint="wait until it is written, or copy it first",
    )


def _read_blocks(path: Path) -> Iterator[Bytes]:
    """Yield a file as it is on disk, up to where it ended when it was opened, in one array again and again."""
    digests = _DIGESTS.get()
    digest = None if digests is None else hashlib.sha256()
    try:
        with opened(path, buffering=0) as file:
            expected = os.fstat(file.fileno()).st_size
            data = np.empty(min(expected, _READ_BYTES), np.uint8)
            for at in range(0, expected, _READ_BYTES):
                part = data[: expected - at]
                used = _fill(file, part)
                if used < len(part):
                    raise _cut_short(path, at + used, expected)
                if digest is not None:
                    digest.update(part.data)
                yield part
        if digests is not None and digest is not None:
            digests[path] = digest.hexdigest()
    except (OSError, ValueError) as error:
        raise ReadError(f"cannot be opened: {_reason(error)}", path=path) from error


def _packing(first: bytes) -> bytes | None:
    """The key of `DECOMPRESSORS` with which a file begins; None for one that is not compressed."""
    return next((magic for magic in DECOMPRESSORS if first.startswith(magic)), None)


def _decompressed(path: Path, raw: Bytes, magic: bytes, issues: IssueLog) -> Bytes:
    """All decompressed bytes, in one buffer that grows as needed."""
    limit = max_unpacked(len(raw), path)
    out = spill.empty(min(_expected_size(raw, magic), limit), np.uint8)
    used = 0
    for block in _bounded(path, raw, magic, issues):
        if used + len(block) > len(out):
            grown = spill.empty(max(2 * len(out), used + len(block)), np.uint8)
            grown[:used] = out[:used]
            out = grown
        out[used : used + len(block)] = block
        used += len(block)
    return out[:used]


def _bounded(path: Path, raw: Bytes, magic: bytes, issues: IssueLog) -> Iterator[Bytes]:
    """Yield decompressed bytes, up to as many as are allowed."""
    limit, used = max_unpacked(len(raw), path), 0
    for block in _blocks(path, raw, magic, issues):
        used += len(block)
        if used > limit:
            raise too_large_unpacked(limit, len(raw), path)
        yield np.frombuffer(block, np.uint8)


def _expected_size(raw: Bytes, magic: bytes) -> int:
    """Bytes to make room for: what gzip states, else a guess.

    Gzip states the decompressed size, modulo 4 GiB, in its last four bytes. Traces shrink to a
    tenth or so (chosen: room for eight times; the buffer grows if that is too little).
    """
    if magic == _GZIP and len(raw) > len(b"size"):
        stated = int.from_bytes(bytes(raw[-4:]), "little")
        if len(raw) <= stated <= 1000 * len(raw):
            return stated
    return 8 * len(raw) + 64


def _blocks(
    path: Path, raw: Bytes, magic: bytes, issues: IssueLog, max_bytes: int | None = None
) -> Iterator[bytes]:
    """Decompressed bytes; with `max_bytes` no block is larger, and one as large is the last."""
    make = DECOMPRESSORS[magic]
    try:
        yield from _members(raw, magic, make, issues, max_bytes) if make else _zstd(raw, issues)
    except (OSError, EOFError, ValueError, lzma.LZMAError, _gzip_error()) as error:
        raise ReadError(
            f"its compressed data is damaged: {_reason(error)}",
            path=path,
            hint="unpack it with its own tool to see how much can be saved",
        ) from error


def _members(
    raw: Bytes,
    magic: bytes,
    make: Callable[[], _Decompressor],
    issues: IssueLog,
    max_bytes: int | None,
) -> Iterator[bytes]:
    """Blocks of all members of a file; between members, `at` is the offset of the next one."""
    at, n = 0, len(raw)
    while at < n:
        member = make()
        while not member.eof and at < n:
            packed = raw[at : at + BLOCK_BYTES].tobytes()
            at += len(packed)
            if max_bytes is not None:
                block = member.decompress(packed, max_bytes)
                yield block
                if len(block) >= max_bytes:
                    return  # a small file may hold any amount of data: only its head was asked for
            elif make is _gzip:
                yield member.decompress(packed)
            else:
                yield from _pieces(member, packed)
        if not member.eof:
            issues.add(TRUNCATED)
            return
        at -= len(member.unused_data)
        rest = raw[at:]
        if rest.size and bytes(rest[: len(magic)]) != magic:
            if rest.any():  # zeros are padding of tapes and file systems
                issues.add(TRAILING_BYTES, rest.size)
            return


def _pieces(member: _Decompressor, packed: bytes) -> Iterator[bytes]:
    """Decompressed bytes of xz or bzip2, in pieces of a bounded length."""
    yield member.decompress(packed, _UNPACKED_BLOCK_BYTES)
    while not (member.eof or member.needs_input):
        yield member.decompress(b"", _UNPACKED_BLOCK_BYTES)


def _zstd(raw: Bytes, issues: IssueLog) -> Iterator[bytes]:
    import pyarrow as pa

    stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(raw)), "zstd")
    while True:
        try:
            block = stream.read(BLOCK_BYTES)
        except OSError:
            issues.add(TRUNCATED)
            return
        if not block:
            return
        yield block


def _utf8(data: Bytes, issues: IssueLog | None = None) -> Bytes:
    """Text as UTF-8, without a byte order mark; a head (without `issues`) may end anywhere."""
    start = bytes(data[:_UTF16_BYTES])
    if start.startswith(b"\xef\xbb\xbf"):
        return data[3:]
    codec = _utf16(start)
    if codec is None:
        return data
    raw = data.tobytes()
    try:
        text = raw.decode(codec)
    except UnicodeDecodeError as error:
        text = raw.decode(codec, errors="ignore" if issues is None else "replace")
        if issues is not None:
            issues.add(NOT_UTF16, 1, f"byte {error.start}")
    return np.frombuffer(bytearray(text.encode("utf-8", "replace")), np.uint8)


def _utf16(start: bytes) -> str | None:
    """Name of the UTF-16 codec of a text that begins so; None if it is in another encoding."""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    if len(start) < _UTF16_BYTES:
        return None
    halves = {"utf-16-le": (start[::2], start[1::2]), "utf-16-be": (start[1::2], start[::2])}
    for codec, (letters, zeros) in halves.items():
        if not any(zeros) and all(letters) and sum(c in _ASCII for c in letters) >= _MIN_ASCII:
            return codec
    return None


def _reason(error: BaseException) -> Any:
    return getattr(error, "strerror", None) or error
