"""SQL that reads cells as values of their column's type: SQLite stores any type in any column."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

INTEGER, REAL, TEXT = "integer", "real", "text"
"""Types as which columns are read."""

_SEED = {INTEGER: "0", REAL: "0.0", TEXT: "''"}


def quote_name(name: str) -> str:
    """Return a name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def cast_cell(cell: str, kind: str) -> str:
    """Return SQL for a cell as a type, if it is of that type or can be without loss; else NULL."""
    if kind == TEXT:
        return f"CAST({cell} AS TEXT)"
    integral = f"WHEN CAST(CAST({cell} AS INTEGER) AS TEXT) = {cell} THEN CAST({cell} AS INTEGER)"
    if kind == INTEGER:
        return f"CASE WHEN typeof({cell}) = 'integer' THEN {cell} {integral} END"
    return (
        f"CASE WHEN typeof({cell}) IN ('integer', 'real') THEN CAST({cell} AS REAL) "
        f"WHEN CAST(CAST({cell} AS REAL) AS TEXT) = {cell} THEN CAST({cell} AS REAL) {integral} END"
    )


def mismatch(cell: str, kind: str) -> str:
    """Return SQL that is true for a cell of another type that cannot be converted without loss.

    An empty text in a column of numbers is not one: some tools write it for an absent number.
    """
    return f"({cell} IS NOT NULL AND {cell} <> '' AND {cast_cell(cell, kind)} IS NULL)"


def type_row(columns: Mapping[str, str]) -> str:
    """Return SQL of one row whose cells have the types of the columns."""
    cells = (f"{_SEED[kind]} AS {quote_name(name)}" for name, kind in columns.items())
    return f"SELECT {', '.join(cells)}"
