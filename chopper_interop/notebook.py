"""HTML of traces, graphs and results for notebooks: a title and tables.

Texts of a trace are escaped and kept from a notebook's typesetting of formulas. There are no colours,
so that the theme of the notebook, light or dark, gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_ROWS = 20
"""Rows of a table; of more the first and the last half. Chosen: they fit on a screen."""
_MAX_COLUMNS = 30
_MAX_TEXT = 80
"""Characters of a text. Chosen: names of kernels stay apart."""
_ELLIPSIS = "…"


def page(title: str, *tables: pa.Table) -> str:
    """A title and tables; of long tables the first and the last rows, empty ones are left out."""
    heading = f"<p><strong>{escape(_cell(title))}</strong></p>"
    body = "".join(_table_html(table) for table in tables if table.num_rows)
    return f'<div class="tex2jax_ignore mathjax_ignore">{heading}{body}</div>'


def _table_html(table: pa.Table) -> str:
    shown = table.select(table.column_names[:_MAX_COLUMNS])
    rows = [[_cell(value) for value in row.values()] for row in _ends(shown)]
    sizes = []
    if table.num_rows > len(rows):
        rows.insert(len(rows) // 2, [_ELLIPSIS] * shown.num_columns)
        sizes.append(f"{_MAX_ROWS} of {table.num_rows:,} rows")
    if table.num_columns > shown.num_columns:
        sizes.append(f"{shown.num_columns} of {table.num_columns} columns")
    frame = pd.DataFrame(rows, columns=[_cell(name) for name in shown.column_names], dtype=object)
    with pd.option_context("display.max_colwidth", None, "display.html.use_mathjax", False):
        html = frame.to_html(index=False, escape=True, border=0)
    return html + "".join(f"<p>{size}</p>" for size in sizes)


def _ends(table: pa.Table) -> Sequence[dict[str, Any]]:
    """All rows, or the first and the last ones."""
    if table.num_rows <= _MAX_ROWS:
        return table.to_pylist()
    half = _MAX_ROWS // 2
    return [*table.slice(0, half).to_pylist(), *table.slice(table.num_rows - half).to_pylist()]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        text = f"{value:,}"
    elif isinstance(value, float):
        text = f"{value:,.6g}"
    else:
        text = str(value)
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + _ELLIPSIS
