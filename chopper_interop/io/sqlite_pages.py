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

from chopper_interop.arrays import Array, Bytes
from chopper_interop.arrays.compiled import jit_in_place
from chopper_interop.io import inputs

_HEADER = 100
"""Bytes of the file's header, before the first page's own."""
_INTERIOR_INDEX, _INTERIOR_TABLE, _LEAF_INDEX, _LEAF_TABLE = 2, 5, 10, 13
"""Types of pages with rows of a table, or that refer to such. Those of an index hold rows ``WITHOUT ROWID``."""
_INTERIOR = (_INTERIOR_TABLE, _INTERIOR_INDEX)
_MIN_USABLE = 480
"""Bytes of a page that are not reserved, at least, as SQLite's file format has it."""
_SCANNED = 1 << 24
"""Bytes that are read at a time (chosen: some thousand pages)."""
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
    roots = list(roots)
    with inputs.opened(path, buffering=0) as file:
        pages = _Pages(file)
        most = _DAMAGE * len(pages.kind)
        if any(visits > most for visits in _Visits(pages).below(roots)):
            return True
        # of all pages, also of those that no table has
        if int(pages.continued.sum()) <= most:
            return False
        return any(visits > most for visits in _Visits(pages, with_long_cells=True).below(roots))


class _Pages:
    """Pages of an open database: the type of each, and how many pages its cells are continued on.

    Nearly all are leaves, of which no more is needed: the file is read once, without Python for each page.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        stated = self.read(5, 16)
        self.page_bytes = 1 << 16 if stated[:2] == b"\0\1" else int.from_bytes(stated[:2], "big")
        usable = max(self.page_bytes - stated[4], _MIN_USABLE)
        count = os.fstat(file.fileno()).st_size // max(self.page_bytes, 1)
        self.kind, self.continued = np.zeros(count, np.uint8), np.zeros(count, np.int64)
        step = max(_SCANNED // self.page_bytes, 1)
        for first in range(0, count, step):
            data = np.frombuffer(
                self.read(step * self.page_bytes, first * self.page_bytes), np.uint8
            )
            part = slice(first, first + step)
            header = 0 if first else _HEADER
            _look_at(data, self.page_bytes, usable, header, self.kind[part], self.continued[part])

    def read(self, count: int, at: int) -> bytes:
        """Return bytes of the file."""
        self._file.seek(at)
        return self._file.read(count)

    def below(self, page: int) -> Array:
        """Pages that an interior page refers to, from 1 on; 0 for a cell that does not end in the page."""
        data = np.frombuffer(self.read(self.page_bytes, (page - 1) * self.page_bytes), np.uint8)
        at = _HEADER if page == 1 else 0
        cells = data[at + 12 :][: 2 * int.from_bytes(data[at + 3 : at + 5], "big")]
        begins = cells[: len(cells) // 2 * 2].view(">u2")
        begin = np.append(begins.astype(np.int64), at + 8)  # the last page stands in the header
        inside = begin[begin <= len(data) - 4]
        children = data[inside[:, None] + np.arange(4)].astype(np.int64) @ (
            256 ** np.arange(4)[::-1]
        )
        return np.append(children, np.zeros(len(begin) - len(inside), np.int64))


# cells of a page are no array, and there are as many as rows of the database
@jit_in_place
def _look_at(
    data: Bytes, page_bytes: int, usable: int, header: int, kinds: Bytes, continued: Array
) -> None:
    """Set the types of whole pages, and count the pages that their cells are continued on, once for each that refers to one.

    Parameters
    ----------
    data
        Pages, one after the other.
    page_bytes, usable
        Bytes of a page, and those that are not reserved.
    header
        Bytes before the first page's own header.
    kinds, continued
        Where to write both of each page.
    """
    for page in range(len(data) // page_bytes):
        start = page * page_bytes
        at = start + (header if page == 0 else 0)
        kind = data[at]
        kinds[page] = kind
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
                continued[page] += size // (usable - 4)


class _Visits:
    """Number of pages that are visited to read all rows below a page.

    With `with_long_cells` these include the pages on which long cells are continued.
    """

    def __init__(self, pages: _Pages, *, with_long_cells: bool = False) -> None:
        self._pages = pages
        count = len(pages.kind)
        # place 0 and the one behind the last stand for pages that the file lacks: nothing is below these
        more = pages.continued if with_long_cells else np.zeros(count, np.int64)
        self._own = 1 + np.concatenate([[0], more, [0]])
        is_interior = np.isin(pages.kind, _INTERIOR)
        self._is_interior = np.concatenate([[False], is_interior, [False]])
        self._visits: dict[tuple[int, int], int] = {}
        self._path: set[int] = set()

    def below(self, roots: Iterable[int]) -> Iterator[int]:
        """Visits below each of some first pages of tables."""
        for root in roots:
            yield self._sum(np.array([root], np.int64), 0)

    def _sum(self, pages: Array, depth: int) -> int:
        """Visits below pages, which are at a depth."""
        if depth > _DEPTH:
            return 0  # SQLite ends with an error where a cycle is too deep
        place = np.clip(pages, 0, len(self._own) - 1)
        is_interior = self._is_interior[place]
        total = int(self._own[place[~is_interior]].sum())
        return total + sum(self._of_interior(page, depth) for page in place[is_interior].tolist())

    def _of_interior(self, page: int, depth: int) -> int:
        """Visits below an interior page."""
        if page in self._path:
            return 0
        at = page, depth  # what is below is counted up to a depth
        if at not in self._visits:
            self._path.add(page)
            self._visits[at] = int(self._own[page]) + self._sum(self._pages.below(page), depth + 1)
            self._path.remove(page)
        return self._visits[at]
