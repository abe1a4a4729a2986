"""Arrays of a job that is larger than memory: pages of private files.

The kernel writes such pages to disk and drops them when memory is short, where it must keep those of other
arrays. What has a value for each node of all ranks, and what was read of each file, is allocated here, so that
the process itself needs memory for some ranks at a time. Files have no name, and are gone with their arrays.

What joins, analyses and writes such a job makes further arrays of that size. Within `scratch` all that are large lie in
files: those of numpy and of compiled loops, whose code knows nothing of it (`file_allocator`). Pages at which a process
has looked count as its memory until they are unmapped, though the kernel may drop them: a thread of machine code unmaps them
when they are many. Where there is no such allocator, as on other systems, columns lie in files that Python maps.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from chopper_interop import byte_sizes
from chopper_interop.arrays import Array, arrow
from chopper_interop.errors import TooLittleMemoryError, WriteError

if TYPE_CHECKING:
    from chopper_interop.arrays.file_allocator import Files

Part: TypeAlias = pa.Array | int
"""Values of a part; or only their number, if all are null."""

_MIN_BYTES = 1 << 14
"""Bytes from which an array lies in a file. Chosen: smaller ones take less memory than the objects of their rank."""
_SHARED_BYTES = 1 << 26
"""Bytes of a file that small arrays share, one behind the other. Chosen: a file and its mapping take some 50 us, and a
process has 65,530 mappings, which thousands of ranks with some fifteen columns each would use up."""
_OWN_BYTES = 1 << 23
"""Bytes from which an array has a file of its own, which is gone with it (chosen: an eighth of what may stay unused)."""
_ALIGNMENT = 64
"""Multiple of bytes at which an array begins, as Arrow recommends."""
_ZEROS = 1 << 24
"""Bytes that are written at once where the system cannot reserve room on disk (chosen: few calls)."""
_RELEASED = 1 << 28
"""Bytes after which pages are released. Chosen: a small part of any machine's memory; releasing takes a call for each
of perhaps thousands of arrays."""
_AROUND = 1 << 16
"""Bytes that are mapped where one of them is read: ``fault_around_bytes`` of Linux."""
_BITS_BLOCK = 1 << 20
"""Rows of which bits are packed at a time (chosen: a megabyte, and a multiple of 8)."""
_SCRATCH_PART = 64
"""Part of the memory there is from which an array of `scratch` lies in a file. Chosen: analyses have some twenty at a time."""
_SCRATCH_BYTES = 1 << 20, 1 << 25
"""Least and largest size from which it does. Chosen: to make a file takes as long as to touch a tenth of the first. Of the
second an array has eight bytes for each of four million nodes; those of one rank are mostly smaller, and files of all of
these were a hundred gigabytes that 64 ranks wrote."""
_FRESH_BYTES = 1 << 20
"""Bytes from which zeros are pages of their own. Chosen: the two calls that takes cost less than clearing as many bytes."""
_RESIDENT_BYTES = 3 << 27
"""Bytes of pages of files that may be resident. Chosen: a small part of any machine's memory. To unmap and map them again
takes 0.15 s a GB that is read and more that is written: a summary of 8 ranks took 41 s with half a gigabyte, 44 with a quarter."""
_LOOK_S = 0.005
"""Longest time between two looks at what is resident. Chosen: a look takes 20 us, and few pages are touched in a millisecond,
but what gathers values of all ranks maps some around each, tens of GB a second."""
_is_on: ContextVar[bool] = ContextVar("_is_on", default=False)
_Pages: TypeAlias = "Array | mmap.mmap"
"""Pages of a file: of the allocator, or as Python maps them."""
_mapped: dict[int, tuple[weakref.ref[_Pages], int]] = {}
"""Address of each mapping that is still used, with its size."""
_lock = threading.RLock()
_shared: tuple[weakref.ref[_Pages], int] | None = None
"""The file that small arrays share now, as long as any of its arrays is used, and how much of it is."""
_since_release = 0
"""Bytes that were copied since pages were last released; of the process, as mappings are."""


def _after_fork() -> None:
    """Have a forked process make files of its own: what it wrote to its parent's, the parent and its siblings would read."""
    global _lock, _shared  # as the mappings are of the process
    _lock, _shared = threading.RLock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def when(wanted: bool) -> Iterator[None]:  # noqa: FBT001 # it is read as a sentence
    """Allocate large arrays in files within a block, if that is wanted; else leave it as it is."""
    before = _is_on.set(_is_on.get() or wanted)
    try:
        yield
    finally:
        _is_on.reset(before)


def is_on() -> bool:
    """Return True if large arrays are allocated in files."""
    return _is_on.get()


def in_use() -> bool:
    """Return True if any array lies in a file: what has a value for each of its nodes is better in one too."""
    return bool(_mapped)


def empty(count: int, dtype: Any) -> Array:
    """Return an array whose values are not set, in a file if that is wanted and it is large.

    Raises
    ------
    WriteError
        There is no room for it on disk.
    """
    dtype = np.dtype(dtype)
    size = count * dtype.itemsize
    if size < _MIN_BYTES or not _is_on.get():
        return np.empty(count, dtype)
    if size >= _OWN_BYTES:
        return np.frombuffer(_mapping(size), dtype, count)
    pages, offset = _part_of_shared(size)
    return np.frombuffer(pages, dtype, count, offset)


def _part_of_shared(size: int) -> tuple[_Pages, int]:
    """A mapping with room for so many bytes, and where these begin; a new one where the last is full or gone.

    ::

        | array | array | array ... | free      |
                                    ^ used
    """
    global _shared  # noqa: PLW0603 # as the mappings are of the process
    with _lock:
        pages, used = (None, 0) if _shared is None else (_shared[0](), _shared[1])
        if pages is None or used + size > len(pages):
            pages, used = _mapping(_SHARED_BYTES), 0
        _shared = weakref.ref(pages), used + -(-size // _ALIGNMENT) * _ALIGNMENT
    return pages, used


def _mapping(size: int) -> _Pages:
    """Map a new private file of so many bytes."""
    files = _allocator()
    try:
        pages = files.new(size) if files and files.can_add else _mapped_by_python(size)
    except OSError as error:
        raise no_room(size, error.strerror) from error
    address = np.frombuffer(pages, np.uint8).__array_interface__["data"][0]
    _mapped[address] = weakref.ref(pages, lambda _: _mapped.pop(address, None)), size
    return pages


def _mapped_by_python(size: int) -> mmap.mmap:
    """Map a new private file where there is no allocator."""
    with tempfile.TemporaryFile(prefix="chopper-") as file:
        _reserve(file, size)
        return mmap.mmap(file.fileno(), size)


def no_room(size: int, reason: str | None) -> WriteError:
    """Error of an array for which there is no room on disk."""
    because = f": {reason}" if reason else ""
    return WriteError(
        f"there is no room for {byte_sizes.described(size)} of a job that is larger than memory{because}",
        path=tempfile.tempdir,
        hint="name another folder for such files by TMPDIR",
    )


def full(count: int, value: float, dtype: Any) -> Array:
    """Return an array with one value; as `empty`."""
    if not value and not _is_on.get():
        return np.zeros(count, dtype) if in_use() else zeros_to_read(count, dtype)
    values = empty(count, dtype)
    values[:] = value
    return values


def zeros_to_read(count: int, dtype: Any) -> Array:
    """Return zeros in memory, of which pages that are only read take none.

    numpy's take all where the C library has memory that was freed: it is cleared.
    """
    dtype = np.dtype(dtype)
    size = count * dtype.itemsize
    if size < _FRESH_BYTES or not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return np.zeros(count, dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype, count)


def _reserve(file: IO[bytes], size: int) -> None:
    """Give a file room on disk: a write to a page without would end the process by SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    for at in range(0, size, _ZEROS):
        file.write(bytes(min(_ZEROS, size - at)))
    file.flush()


def holds(values: Array) -> bool:
    """Return True if an array lies in a file."""
    at = values.__array_interface__["data"][0]
    return any(address <= at < address + size for address, (_, size) in list(_mapped.items()))


def release() -> None:
    """Unmap the pages of all arrays until they are needed again, so that they count as memory of nobody."""
    global _since_release  # noqa: PLW0603 # how much is mapped is of the process
    _since_release = 0
    files = _allocator() if _mapped else None
    if files is not None:
        files.release()
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    for mapped, _ in list(_mapped.values()):
        pages = mapped()
        if isinstance(pages, mmap.mmap):
            with suppress(ValueError):  # closed by another thread
                pages.madvise(mmap.MADV_DONTNEED)


def copied(size: int) -> None:
    """Note that so many bytes of files were read or written; now and then `release` their pages."""
    global _since_release  # noqa: PLW0603 # how much is mapped is of the process
    _since_release += size
    if _since_release > _RELEASED:
        release()


def gathered(size: int, count: int) -> None:
    """Note that so many values were taken out of an array of so many bytes: each is mapped with pages around it."""
    copied(min(size, count * _AROUND))


def kept(values: Array) -> Array:
    """Return an array as it is or, if that is wanted, a copy of it in a file."""
    if not _is_on.get() or values.nbytes < _MIN_BYTES or holds(values):
        return values
    copy = empty(len(values), values.dtype)
    copy[:] = values
    copied(values.nbytes)
    return copy


def kept_table(table: pa.Table) -> pa.Table:
    """Return a table as it is or, if that is wanted, with copies of its columns of numbers in files."""
    if not _is_on.get():
        return table
    chunks = [[kept_column(chunk) for chunk in column.chunks] for column in table.columns]
    columns = [
        pa.chunked_array(pieces, type=column.type)
        for pieces, column in zip(chunks, table.columns, strict=True)
    ]
    return pa.table(columns, schema=table.schema)


def kept_column(column: pa.Array) -> pa.Array:
    """Return a column as it is or, if that is wanted and it has numbers or codes, a copy of it in files."""
    if not _is_on.get():
        return column
    if pa.types.is_dictionary(column.type):
        return pa.DictionaryArray.from_arrays(kept_column(column.indices), column.dictionary)
    if not pa.types.is_primitive(column.type):
        return column
    buffers = [None if part is None else _kept_buffer(part) for part in column.buffers()]
    return pa.Array.from_buffers(column.type, len(column), buffers, -1, column.offset)


def _kept_buffer(buffer: pa.Buffer) -> pa.Buffer:
    values = np.frombuffer(buffer, np.uint8)
    copy = kept(values)
    return buffer if copy is values else pa.py_buffer(copy)


def joined_column(parts: Iterable[Part], count: int, declared: pa.DataType) -> pa.Array:
    """Join the values of all parts, such as ranks, of `count` rows together, all of one type.

    Each part is copied to its place in the whole, so that not all of them need to be in memory. Codes of
    dictionaries become those of one dictionary, which has the texts of all parts in the order of the parts.

    Examples
    --------
    >>> import pyarrow as pa
    >>> joined_column([pa.array([1, None]), 1], 3, pa.int64()).to_pylist()
    [1, None, None]
    >>> parts = [pa.array(["a"]).dictionary_encode(), pa.array(["b", "a"]).dictionary_encode()]
    >>> joined_column(parts, 3, pa.dictionary(pa.int32(), pa.string())).to_pylist()
    ['a', 'b', 'a']
    """
    coded = pa.types.is_dictionary(declared)
    kind = declared.index_type if coded else declared
    if not pa.types.is_primitive(kind) or pa.types.is_boolean(kind):
        pieces = [pa.nulls(p, declared) if isinstance(p, int) else p for p in parts]
        return pa.concat_arrays(pieces) if pieces else pa.nulls(0, declared)
    values = empty(count, np.dtype(kind.to_pandas_dtype()))
    valid: Array | None = None
    texts: dict[str | None, int] = {}
    at = 0
    for part in parts:
        rows = slice(at, at + (part if isinstance(part, int) else len(part)))
        at = rows.stop
        has_null = isinstance(part, int) or part.null_count > 0
        if has_null and valid is None:
            valid = empty(count, np.bool_)
            valid[: rows.start] = True
        if isinstance(part, int):
            values[rows] = 0
        else:
            codes = arrow.to_numpy(part)
            values[rows] = _translated(codes, part.dictionary, texts) if coded else codes
        if valid is not None:
            valid[rows] = False if isinstance(part, int) else arrow.is_valid(part)
        copied(2 * values[rows].nbytes)
    bits = None if valid is None else pa.py_buffer(_packed(valid))
    built = pa.Array.from_buffers(kind, count, [bits, pa.py_buffer(values)])
    return pa.DictionaryArray.from_arrays(built, _texts_of(texts, declared)) if coded else built


def _translated(codes: Array, dictionary: pa.Array, texts: dict[str | None, int]) -> Array:
    """Codes by the numbers of `texts`, which gets those that it lacks."""
    new = [texts.setdefault(text, len(texts)) for text in dictionary.to_pylist()]
    if new == list(range(len(new))):  # also of a part without texts, where all is null
        return codes
    return np.array(new, codes.dtype)[codes]


def _texts_of(texts: dict[str | None, int], declared: pa.DataType) -> pa.Array:
    if pa.types.is_string(declared.value_type) and None not in texts:
        return arrow.texts(text for text in texts if text is not None)
    return pa.array(list(texts), declared.value_type)


def _packed(valid: Array) -> Array:
    """Truth values as bits, a block at a time."""
    bits = empty((len(valid) + 7) // 8, np.uint8)
    for at in range(0, len(valid), _BITS_BLOCK):
        block = np.packbits(valid[at : at + _BITS_BLOCK], bitorder="little")
        bits[at // 8 : at // 8 + len(block)] = block
    return bits


@contextmanager
def scratch(available: int) -> Iterator[None]:
    """Make large arrays in files within a block, if a job lies in files and the system can.

    Parameters
    ----------
    available
        Bytes of memory that the process may take.

    Raises
    ------
    WriteError
        There is no room on disk for one.
    """
    files = _allocator() if in_use() else None
    if files is None:
        yield
        return
    least, largest = _SCRATCH_BYTES
    size = min(max(available // _SCRATCH_PART, least), largest)
    with _lock:
        # not in a block within another, or while another thread is in one, nor in a process that was forked after one
        before = files.start(size, _RESIDENT_BYTES, _LOOK_S) if files.can_start else None
    if before is None:
        yield
        return
    try:
        yield
    except (MemoryError, TooLittleMemoryError) as error:
        if files.refused_bytes:
            raise no_room(files.refused_bytes, files.reason) from error
        raise
    finally:
        files.stop(before)


def _allocator() -> Files | None:
    """Return the allocator of this process; None where there cannot be one."""
    if not _has_allocator():
        return None
    from chopper_interop.arrays import file_allocator

    with _lock:
        return file_allocator.files()


def _has_allocator() -> bool:
    """Return True on Linux, unless Python's memory is not the C library's own, or would not stay that of the allocator.

    In development mode Python marks its memory to find faults; `tracemalloc` sets back what it replaced when it ends.
    """
    import tracemalloc

    is_checked = sys.flags.dev_mode or os.environ.get("PYTHONMALLOC", "").endswith("debug")
    return sys.platform == "linux" and not is_checked and not tracemalloc.is_tracing()
