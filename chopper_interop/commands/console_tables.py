"""Rows of results as tables on a terminal: what answers the question first, and each unit once."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from rich import markup
from rich.table import Table
from rich.text import Text

from chopper_interop.commands.common import one_line
from chopper_interop.schemas import results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

PIPE_WIDTH = 10_000
"""Width where stdout is no terminal: no row is folded where a program may read it."""
_MAX_CELL = 48
"""Longest text in a cell on a terminal. Chosen: names of kernels stay apart, other columns fit."""
_BEFORE = 10
"""Characters that stay of what long texts have in common. Chosen: a library's name is recognised."""
_GAP = 2
"""Spaces between two columns of a table, as rich draws them."""
_SCALES = {
    "ns": ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns")),
    "B": ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B")),
    "FLOP": ((10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP"), (1, "FLOP")),
}
"""Units that are scaled: all values of a column by the same, the largest that its largest value has."""
NONE = "(none)"
"""Stands for a key that is not known."""
_TOTAL = "total"
_MUST_ADD_UP = 5
"""First figures of which one must add up for a row of totals. Chosen: else it would be empty where one looks."""
_ENDINGS = re.compile(r"_(ns|share|bytes|flops|ratio|factor|gbps|tflop_per_s|gib_per_s|mhz|j|w|c)$")
"""Endings of names of columns whose unit is in the cells."""
_PEERS = {
    "hta": (("_us", "(us)"), ("_percent", "_pctg")),
    "tracelens": (("_us", ""),),
    "charllm": (("_us", "(us)"),),
}
"""How other tools write the ends of names of columns."""
_NUMBERED = ("rank", "iteration", "node", "instance", "start_ns", "change", "run")
"""Keys that rows are in order of; rows of all other groups are sorted by time."""


def escape(text: str) -> str:
    """Escape characters that would control a terminal, and rich's markup."""
    return markup.escape(one_line(text))


def is_unfolded(console: Console) -> bool:
    """True if stdout is no terminal, so that each row must be one line."""
    return console.width >= PIPE_WIDTH


def print_table(  # what is shown, and how
    console: Console,
    rows: pa.Table,
    max_rows: int | None,
    *,
    analysis: str = "",
    total: dict[str, Any] | None = None,
    compat: str = "",
) -> None:
    """Print the first rows, the names of hidden columns, and the number of further rows.

    Parameters
    ----------
    analysis
        The analysis that the rows are of, which knows the columns that come first.
    total
        Sums over all rows, by column, for a last row.
    compat
        The tool whose figures these are: its names, and numbers as it writes them.
    """
    width = None if is_unfolded(console) else console.width
    unknown, zero = _empty_columns(rows.slice(0, 0) if compat else rows, analysis)
    columns = rows.column_names
    if not compat:
        rows = arranged(rows.drop_columns([*unknown, *zero]), analysis)
    table, hidden = make_table(rows, max_rows, width, total=total, compat=compat)
    console.print(table)
    figures = [name for name in unknown if not is_key(name, analysis)]
    texts = {"columns that did not fit": hidden, "not known": figures, "0 throughout": zero}
    for text, names in texts.items():
        if names:
            shown = (peer_header(n, compat) if compat else header(n, columns) for n in names)
            console.print(f"[dim]{text}: {escape(', '.join(shown))}[/dim]")
    if max_rows is not None and rows.num_rows > max_rows:
        console.print(f"[dim]… {rows.num_rows - max_rows:,} more[/dim]")


def _empty_columns(rows: pa.Table, analysis: str) -> tuple[list[str], list[str]]:
    """Columns of nothing but nulls, and times that are 0 throughout; never all columns."""
    if not rows.num_rows:
        return [], []
    unknown = [name for name in rows.column_names if rows[name].null_count == rows.num_rows]
    zero = [
        name
        for name in rows.column_names
        if name.endswith("_ns")
        and pa.types.is_integer(rows[name].type)
        and name not in (*unknown, *results.FIRST.get(analysis, ()))
        and pc.min_max(rows[name]).as_py() == {"min": 0, "max": 0}
    ]
    if len(unknown) + len(zero) == rows.num_columns:
        return [], []
    return unknown, zero


def arranged(rows: pa.Table, analysis: str) -> pa.Table:
    """Put keys and what answers the question first, and groups with most time on top."""
    keys = [name for name in rows.column_names if is_key(name, analysis)]
    first = [n for n in results.FIRST.get(analysis, ()) if n in rows.column_names and n not in keys]
    rest = [name for name in rows.column_names if name not in (*keys, *first)]
    rows = rows.select([*keys, *first, *rest])
    times = [n for n in (*first, *rest) if n.endswith("_ns") and not is_text(rows[n].type)]
    if times and keys and not any(name in _NUMBERED for name in rows.column_names):
        rows = rows.take(pc.sort_indices(rows, [(times[0], "descending")]))
    return rows


def is_key(name: str, analysis: str) -> bool:
    """True if a column says what a row is of."""
    return name in results.KEYS and name not in results.FIGURES.get(analysis, {})


def make_table(
    rows: pa.Table,
    max_rows: int | None,
    width: int | None,
    *,
    total: dict[str, Any] | None = None,
    compat: str = "",
) -> tuple[Table, list[str]]:
    """Make a table of the first rows; also return the columns that a terminal has no room for."""
    if total is not None and not _adds_up(rows, total):
        total = None
    columns = {
        name: _column_cells(
            rows[name].slice(0, max_rows), name, total, compat=compat, cut=bool(width)
        )
        for name in rows.column_names
    }
    if total is not None:
        columns[rows.column_names[0]][-1] = _TOTAL
    headers = {
        n: peer_header(n, compat) if compat else header(n, rows.column_names) for n in columns
    }
    hidden = _hidden(columns, headers, width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (shown := [name for name in columns if name not in hidden]):
        table.add_column(
            headers[name],
            justify="left" if is_text(rows[name].type) else "right",
            overflow="fold" if width is None else "ellipsis",
            no_wrap=width is not None,
        )
    last = rows.slice(0, max_rows).num_rows if total is not None else -1
    for k, row in enumerate(zip(*(columns[name] for name in shown), strict=True)):
        style = "bold" if k == last else ""
        table.add_row(*(Text(one_line(cell)) for cell in row), style=style)
    return table, hidden


def _adds_up(rows: pa.Table, total: dict[str, Any]) -> bool:
    """True if a sum is known of one of the first figures."""
    figures = [
        name
        for name in rows.column_names
        if name not in results.KEYS and not is_text(rows[name].type)
    ]
    return not total.keys().isdisjoint(figures[:_MUST_ADD_UP])


def _column_cells(
    column: pa.ChunkedArray, name: str, total: dict[str, Any] | None, *, compat: str, cut: bool
) -> list[str]:
    """Cells of a column, and of its sum if there is a row of totals; texts are cut for a terminal."""
    values = column.to_pylist()
    sums = [] if total is None else [total.get(name)]
    shown = peer_cells(values) if compat else cells(name, values, sums)
    if not is_text(column.type):
        return shown
    known = [cell or NONE for cell in shown[: len(values)]]
    return [*(shortened(known) if cut else known), *shown[len(values) :]]


def is_text(kind: pa.DataType) -> bool:
    """True unless values of a type are numbers."""
    return not (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _hidden(columns: dict[str, list[str]], headers: dict[str, str], width: int | None) -> list[str]:
    """Columns that a terminal has no room for."""
    hidden: list[str] = []
    room = width or 0
    for name, shown in columns.items() if width else ():
        needed = _GAP + max(map(len, (headers[name], *shown)))
        if needed > room and len(hidden) < len(columns) - 1:
            hidden.append(name)
        else:
            room -= needed
    return hidden


def shortened(texts: Sequence[str]) -> list[str]:
    """Texts no longer than a cell; those that would look alike show where they differ."""
    cut = [text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 1] + "…" for text in texts]
    alike: dict[str, list[str]] = {}
    for short, text in zip(cut, texts, strict=True):
        if text not in (same := alike.setdefault(short, [])):
            same.append(text)
    return [
        short if len(alike[short]) == 1 else _different(text, alike[short])
        for short, text in zip(cut, texts, strict=True)
    ]


def _different(text: str, alike: list[str]) -> str:
    """A text without what it has in common with others, and its number among these if that is not enough."""
    letters = enumerate(zip(*alike, strict=False))
    shared = next((k for k, at in letters if len(set(at)) > 1), min(map(len, alike)))
    start = max(shared - _BEFORE, _BEFORE)
    parts = [f"{other[:_BEFORE]}…{other[start : start + _MAX_CELL - 16]}" for other in alike]
    at = alike.index(text)
    return parts[at] if parts.count(parts[at]) == 1 else f"{parts[at]} #{at + 1}"


def header(name: str, names: Sequence[str]) -> str:
    """Name of a column without the unit that its cells have, unless two would be the same."""
    short = _ENDINGS.sub("", name)
    if name in results.KEYS or not short:
        return name
    alike = [other for other in names if _ENDINGS.sub("", other) == short]
    if len(alike) <= 1 or (name.endswith("_ns") and short not in names):
        return short
    return name


def peer_header(name: str, compat: str) -> str:
    """Name of a column as another tool writes it."""
    for ending, written in _PEERS.get(compat, ()):
        if name.endswith(ending):
            return name.removesuffix(ending) + written
    return name


def peer_cells(values: Sequence[Any]) -> list[str]:
    """Format values as data frames of other tools are printed: numbers alone."""
    return [
        "" if v is None else f"{v:.2f}".rstrip("0").rstrip(".") if isinstance(v, float) else str(v)
        for v in values
    ]


def cells(name: str, values: Sequence[Any], sums: Sequence[Any] = ()) -> list[str]:
    """Format the values of a column and sums of it, all in the unit and with the decimals of the values."""
    unit = results.unit(name)
    if unit in _SCALES:
        return _scaled(values, sums, _SCALES[unit])
    values = [*values, *sums]
    if unit == "1" and name.endswith("share"):
        return ["" if v is None else f"{v:,.1%}" for v in values]
    plain = "" if unit in ("", "1") else f" {unit}"
    return [f"{text}{plain}" if (text := value_text(v)) else "" for v in values]


def _scaled(
    values: Sequence[Any], sums: Sequence[Any], scale: Sequence[tuple[int, str]]
) -> list[str]:
    known = [v for v in values if isinstance(v, int | float) and math.isfinite(v)]
    longest = max(map(abs, known), default=0)
    unit, symbol = next((u for u in scale if longest >= u[0]), scale[-1])
    digits = 0 if unit == 1 else max(1, 3 - len(f"{longest / unit:.0f}"))
    return [_scaled_text(v, unit, digits, symbol) for v in (*values, *sums)]


def _scaled_text(value: float | None, unit: int, digits: int, symbol: str) -> str:
    if value is None:
        return ""
    text = f"{value / unit:,.{digits}f}"
    if value and not float(text.replace(",", "")):  # there is some, though little
        return f"<{10.0**-digits:.{digits}f} {symbol}" if value > 0 else f"0 {symbol}"
    return f"{text if value else '0'} {symbol}"


_WHOLE, _LONG = 9_999.5, 1e15
"""Decimals that are 1e4 when rounded, and larger ones, have no digits behind the point, and up to 1e15 no exponent.
Chosen: four digits would be an exponent; a double has fifteen."""


def value_text(value: Any) -> str:
    """Format a value without a unit."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if _WHOLE <= abs(value) < _LONG else f"{value:,.4g}"
