"""SQL that reads cells as what their column should be: SQLite stores anything in any column."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

INTEGER, REAL, TEXT = "integer", "real", "text"
"""Types that columns are read as."""

_SEED = {INTEGER: "0", REAL: "0.0", TEXT: "''"}


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def typed(cell: str, kind: str) -> str:
    """SQL that gives a cell where it is of that type, or can be without a loss; else NULL."""
    if kind == TEXT:
        return f"CAST({cell} AS TEXT)"
    whole = f"WHEN CAST(CAST({cell} AS INTEGER) AS TEXT) = {cell} THEN CAST({cell} AS INTEGER)"
    if kind == INTEGER:
        return f"CASE WHEN typeof({cell}) = 'integer' THEN {cell} {whole} END"
    return (
        f"CASE WHEN typeof({cell}) IN ('integer', 'real') THEN CAST({cell} AS REAL) "
        f"WHEN CAST(CAST({cell} AS REAL) AS TEXT) = {cell} THEN CAST({cell} AS REAL) {whole} END"
    )


def wrongly(cell: str, kind: str) -> str:
    """SQL that tells whether a cell is of another type, and cannot be made that type.

    An empty text in a column of numbers is how some tools write that there is none.
    """
    return f"({cell} IS NOT NULL AND {cell} <> '' AND {typed(cell, kind)} IS NULL)"


def stating(columns: Mapping[str, str]) -> str:
    """SQL of a row that states the types of columns."""
    cells = (f"{_SEED[kind]} AS {quoted(name)}" for name, kind in columns.items())
    return f"SELECT {', '.join(cells)}"
