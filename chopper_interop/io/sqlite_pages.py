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
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        stated = int.from_bytes(os.pread(descriptor, 2, 16), "big")
        tree = _Pages(descriptor, 1 << 16 if stated == 1 else stated, os.fstat(descriptor).st_size)
        return any(tree.visits(root, 0) > _DAMAGE * tree.count for root in roots)
    finally:
        os.close(descriptor)


class _Pages:
    """Pages of an open file, and how many pages are visited below each."""

    def __init__(self, descriptor: int, page_bytes: int, size: int) -> None:
        self._descriptor = descriptor
        self._page_bytes = page_bytes
        self.count = size // max(page_bytes, 1)
        self._visits: dict[int, int] = {}

    def visits(self, page: int, depth: int) -> int:
        """Pages that are visited to read all rows below a page."""
        if page in self._visits or depth > _DEPTH:
            return self._visits.get(page, 0)
        self._visits[page] = 0  # of a circle: SQLite refuses it when it is too deep
        self._visits[page] = 1 + sum(self.visits(child, depth + 1) for child in self._below(page))
        return self._visits[page]

    def _below(self, page: int) -> Iterator[int]:
        """Pages that a page refers to."""
        if not 0 < page <= self.count:
            return
        start = (page - 1) * self._page_bytes
        at = _HEADER if page == 1 else 0
        if os.pread(self._descriptor, 1, start + at) != bytes([_INTERIOR_TABLE]):
            return
        data = os.pread(self._descriptor, self._page_bytes, start)
        cells = int.from_bytes(data[at + 3 : at + 5], "big")
        yield int.from_bytes(data[at + 8 : at + 12], "big")
        for cell in range(at + 12, min(at + 12 + 2 * cells, len(data)), 2):
            begin = int.from_bytes(data[cell : cell + 2], "big")
            yield int.from_bytes(data[begin : begin + 4], "big")
