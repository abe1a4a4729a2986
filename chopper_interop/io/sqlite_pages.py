"""Pages of an SQLite database: whether its tables are trees.

A page that several others refer to is read once for each way that leads to it. SQLite does not notice: a file of
some kilobytes may hold a table whose rows never end.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import IO

_HEADER = 100
"""Bytes of the file's header, before the first page's own."""
_INTERIOR_TABLE = 5
"""Type of a page that refers to others with rows of a table."""
_DEPTH = 20
"""Levels of pages beyond which SQLite takes a table for damaged."""
_DAMAGE = 2
"""Visits to each page, on average, that are taken for damage of pages: what can be read of them is."""


def never_ends(path: Path, roots: Iterable[int]) -> bool:
    """Return True if reading all rows of some tables visits the pages of the file several times.

    Parameters
    ----------
    path
        A plain database.
    roots
        First pages of its tables, from 1 on.
    """
    with path.open("rb", buffering=0) as file:
        stated = int.from_bytes(_read(file, 2, 16), "big")
        size = os.fstat(file.fileno()).st_size
        tree = _Pages(file, 1 << 16 if stated == 1 else stated, size)
        return any(tree.visits(root, 0) > _DAMAGE * tree.count for root in roots)


def _read(file: IO[bytes], count: int, at: int) -> bytes:
    file.seek(at)
    return file.read(count)


class _Pages:
    """Pages of an open file, and how many pages are visited below each."""

    def __init__(self, file: IO[bytes], page_bytes: int, size: int) -> None:
        self._file = file
        self._page_bytes = page_bytes
        self.count = size // max(page_bytes, 1)
        self._visits: dict[tuple[int, int], int] = {}
        self._path: set[int] = set()

    def visits(self, page: int, depth: int) -> int:
        """Pages that are visited to read all rows below a page, which is at a depth."""
        if page in self._path or depth > _DEPTH:
            return 0  # SQLite ends with an error where a circle is too deep
        at = page, depth  # what is below is counted up to a depth
        if at not in self._visits:
            self._path.add(page)
            self._visits[at] = 1 + sum(self.visits(below, depth + 1) for below in self._below(page))
            self._path.remove(page)
        return self._visits[at]

    def _below(self, page: int) -> Iterator[int]:
        """Pages that a page refers to."""
        if not 0 < page <= self.count:
            return
        start = (page - 1) * self._page_bytes
        at = _HEADER if page == 1 else 0
        if _read(self._file, 1, start + at) != bytes([_INTERIOR_TABLE]):
            return
        data = _read(self._file, self._page_bytes, start)
        cells = int.from_bytes(data[at + 3 : at + 5], "big")
        yield int.from_bytes(data[at + 8 : at + 12], "big")
        for cell in range(at + 12, min(at + 12 + 2 * cells, len(data)), 2):
            begin = int.from_bytes(data[cell : cell + 2], "big")
            yield int.from_bytes(data[begin : begin + 4], "big")
