"""Pages of SQLite databases: whether reading all rows of a table would ever end.

A page that several others refer to is read once for each way that leads to it. SQLite does not notice: a file of
some kilobytes may hold a table whose rows never end, or rows that share the pages of a long cell, which are gone
through for each even if another cell is asked for. That is why tables are checked for being trees. Limits of SQLite
and handlers of its progress would end neither before much of it is done, and ADBC has no way to set them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from chopper_interop.arrays import Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.io import inputs

_HEADER = 100
"""Bytes of the file's header, before the first page's own."""
_INTERIOR_INDEX, _INTERIOR_TABLE, _LEAF_INDEX, _LEAF_TABLE = 2, 5, 10, 13
"""Types of pages with rows of a table, or that refer to such. Those of an index hold rows ``WITHOUT ROWID``."""
_INTERIOR = (bytes([_INTERIOR_TABLE]), bytes([_INTERIOR_INDEX]))
_MIN_USABLE = 480
"""Bytes of a page that are not reserved, at least, as SQLite's file format has it."""
_SCANNED = 1 << 24
"""Bytes that are read at a time to look for long cells (chosen: some thousand pages)."""
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
    with inputs.opened(path, buffering=0) as file:
        roots = list(roots)
        tree = _Pages(file)
        if any(tree.visits(root, 0) > _DAMAGE * tree.count for root in roots):
            return True
        if _continued_in_all(tree) <= _DAMAGE * tree.count:
            return False
        tree = _Pages(file, with_long_cells=True)
        return any(tree.visits(root, 0) > _DAMAGE * tree.count for root in roots)


def _continued_in_all(tree: _Pages) -> int:
    """Pages that cells of all pages of a file are continued on, also of pages that no table has."""
    step, total = max(_SCANNED // tree.page_bytes, 1), 0
    for first in range(0, tree.count, step):
        data = np.frombuffer(tree.read(step * tree.page_bytes, first * tree.page_bytes), np.uint8)
        total += _continued(data, tree.page_bytes, tree.usable, _HEADER if first == 0 else 0)
    return total


# cells of a page are no array, and there are as many as rows of the database
@jit_in_place
def _continued(data: Bytes, page_bytes: int, usable: int, header: int) -> int:
    """Count pages that cells of whole pages are continued on, each as often as a cell refers to it.

    Parameters
    ----------
    data
        Pages, one after the other.
    page_bytes, usable
        Bytes of a page, and those that are not reserved.
    header
        Bytes before the first page's own header.
    """
    total = 0
    for page in range(len(data) // page_bytes):
        start = page * page_bytes
        at = start + (header if page == 0 else 0)
        kind = data[at]
        if kind == _LEAF_TABLE:
            largest, cells, size_at = usable - 35, at + 8, 0
        elif kind == _LEAF_INDEX:
            largest, cells, size_at = (usable - 12) * 64 // 255 - 23, at + 8, 0
        elif kind == _INTERIOR_INDEX:
            largest, cells, size_at = (usable - 12) * 64 // 255 - 23, at + 12, 4
        else:
            continue
        stop = start + page_bytes
        count = min(256 * data[at + 3] + data[at + 4], (stop - cells) // 2)
        for k in range(count):
            cell = start + 256 * data[cells + 2 * k] + data[cells + 2 * k + 1] + size_at
            size, more = 0, True
            while more and cell < stop and size < 1 << 40:
                size = 128 * size + (data[cell] & 127)
                more = data[cell] & 128 > 0
                cell += 1
            if size > largest:
                total += size // (usable - 4)
    return total


class _Pages:
    """Pages of an open database, and how many pages are visited below each.

    With `with_long_cells` these include the pages on which long cells are continued.
    """

    def __init__(self, file: IO[bytes], *, with_long_cells: bool = False) -> None:
        self._file = file
        stated = self.read(5, 16)
        self.page_bytes = 1 << 16 if stated[:2] == b"\0\1" else int.from_bytes(stated[:2], "big")
        self.usable = max(self.page_bytes - stated[4], _MIN_USABLE)
        self.count = os.fstat(file.fileno()).st_size // max(self.page_bytes, 1)
        self._with_long_cells = with_long_cells
        self._visits: dict[tuple[int, int], int] = {}
        self._path: set[int] = set()

    def read(self, count: int, at: int) -> bytes:
        """Return bytes of the file."""
        self._file.seek(at)
        return self._file.read(count)

    def visits(self, page: int, depth: int) -> int:
        """Pages that are visited to read all rows below a page, which is at a depth."""
        if page in self._path or depth > _DEPTH:
            return 0  # SQLite ends with an error where a cycle is too deep
        at = page, depth  # what is below is counted up to a depth
        if at not in self._visits:
            self._path.add(page)
            below = sum(self.visits(child, depth + 1) for child in self._below(page))
            self._path.remove(page)
            self._visits[at] = 1 + self._continued(page) + below
        return self._visits[at]

    def _continued(self, page: int) -> int:
        """Pages that cells of a page are continued on, if they count."""
        if not self._with_long_cells or not 0 < page <= self.count:
            return 0
        data = np.frombuffer(self.read(self.page_bytes, (page - 1) * self.page_bytes), np.uint8)
        return int(_continued(data, self.page_bytes, self.usable, _HEADER if page == 1 else 0))

    def _below(self, page: int) -> Iterator[int]:
        """Pages that a page refers to."""
        if not 0 < page <= self.count:
            return
        start = (page - 1) * self.page_bytes
        at = _HEADER if page == 1 else 0
        if self.read(1, start + at) not in _INTERIOR:
            return
        data = self.read(self.page_bytes, start)
        cells = int.from_bytes(data[at + 3 : at + 5], "big")
        yield int.from_bytes(data[at + 8 : at + 12], "big")
        for cell in range(at + 12, min(at + 12 + 2 * cells, len(data)), 2):
            begin = int.from_bytes(data[cell : cell + 2], "big")
            yield int.from_bytes(data[begin : begin + 4], "big")
