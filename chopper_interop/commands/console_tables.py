"""Rows of results as tables on a terminal: what answers the question first, and each unit once."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from chopper_interop.errors import one_line
from chopper_interop.grouping import grouped
from chopper_interop.percents import percent
from chopper_interop.schemas import results

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 10_000
"""Width where stdout is no terminal: no row is folded where a program may read it."""
_MAX_CELLS = (48, 36, 24)
"""Longest text in a cell on a terminal: the first with which the columns that answer the question fit. Chosen:
names of kernels stay apart."""
_MAX_PIPED = 200
"""Longest text in a cell where stdout is no terminal; JSON and CSV have all of it. Chosen: a few names of C++ kernels
have over 2,000 characters, to which all rows would be padded."""
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
_IN_CELLS = ("ns", "bytes", "flops", "gbps", "tflop_per_s", "gib_per_s", "mhz", "j", "w", "c")
"""Endings of names of columns that the cells have as a unit, so that headers have none."""
_PLAIN = ("share", "ratio", "factor")
"""Endings without a unit: headers leave them out unless another column has the name without."""
_ROUNDED_UP = 1.0005
"""Factor by which a number of four nines counts as the next power of ten, which it is as four figures."""
_SPREAD = 100
"""Ratio of the largest to the smallest value from which on numbers do not share their decimals. Chosen: the
smallest keeps two figures."""
_NEGLIGIBLE = 1000
"""Ratio of the largest to another value of a scaled column up to which the other has three figures. Chosen: what is
less than a thousandth of the largest does not matter next to it, and columns stay narrow."""
_NAMES_OF_FIGURES = ("quantity", "with_quantity")
"""Columns whose values are names of other columns."""
_PEERS = {
    "hta": (("_us", "(us)"), ("_percent", "_pctg")),
    "tracelens": (("_us", ""),),
    "charllm": (("_us", "(us)"),),
}
"""How other tools write the ends of names of columns."""
_NUMBERED = ("node", "instance", "start_ns", "change", "run")
_PLACES = ("job", "rank", "iteration", "device", "host", "name")
"""Columns that rows are in order of, and keys that are no groups of work; groups of work are sorted by time, in each step."""


def escape(text: str) -> str:
    """Escape characters that would control a terminal, and rich's markup."""
    from rich import markup

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
    wanted = results.FIRST.get(analysis, ())
    table, hidden = make_table(rows, max_rows, width, total=total, compat=compat, wanted=wanted)
    if rows.num_rows == 1 and hidden and not compat:
        hidden = []
        print_pairs(console, _only_row(rows))
    else:
        console.print(table)
    figures = [name for name in unknown if not is_key(name, analysis)]
    texts = {"columns that did not fit": hidden, "without a value": figures, "0 throughout": zero}
    for text, names in texts.items():
        if names:
            shown = (peer_header(n, compat) if compat else header(n, columns) for n in names)
            console.print(f"[dim]{text}: {escape(', '.join(shown))}[/dim]")
    if max_rows is not None and rows.num_rows > max_rows:
        console.print(f"[dim]… {rows.num_rows - max_rows:,} more[/dim]")


def _only_row(rows: pa.Table) -> dict[str, str]:
    """Headers and cells of the only row, without what is unknown."""
    names = [name for name in rows.column_names if rows[name].null_count == 0]
    shown = {n: header(n, names) for n in names}
    return {shown[n]: _column_cells(rows[n], n, shown[n], None)[0] for n in names}


def print_pairs(console: Console, texts: dict[str, str]) -> None:
    """Print names and texts in two columns, a long text on several lines."""
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    width = max(map(cell_len, texts), default=0) + _GAP
    room = None if is_unfolded(console) else console.width - width
    for name, text in texts.items():
        lines = folded(one_line(text), room)
        for first, part in zip([name, *[""] * len(lines)], lines, strict=False):
            console.print(Text(set_cell_size(first, width) + part), soft_wrap=True)


def folded(text: str, room: int | None) -> list[str]:
    """Lines of a text that take no more cells of a terminal than there is room for."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    if room is None or cell_len(text) <= room:
        return [text]
    return [line.plain.rstrip() for line in Text(text).wrap(Console(), max(room, 1))]


def cut_text(text: str, room: int) -> str:
    """A text that takes no more cells of a terminal than there is room for, with … where it ends early."""
    from rich.text import Text

    short = Text(text)
    short.truncate(room, overflow="ellipsis")
    return short.plain


def fields_table(parts: Mapping[str, Mapping[str, Any]]) -> Table:
    """A table with a row for each field that any of the parts knows, and a column for each part."""
    from rich.table import Table
    from rich.text import Text

    fields = list(next(iter(parts.values())))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in parts:
        table.add_column(name, justify="right")
    for field in fields:
        values = [part[field] for part in parts.values()]
        if any(value is not None for value in values):
            shown = header(field, fields)
            texts = headed_cells(field, shown, values)
            table.add_row(shown, *(Text(one_line(text)) for text in texts))
    return table


def _empty_columns(rows: pa.Table, analysis: str) -> tuple[list[str], list[str]]:
    """Columns of nothing but nulls, and times that are 0 throughout; never all columns."""
    if not rows.num_rows:
        return [], []
    import pyarrow.compute as pc

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
    if times and set(keys) - {*_PLACES} and not any(n in _NUMBERED for n in rows.column_names):
        import pyarrow.compute as pc

        steps = [("iteration", "ascending")] if "iteration" in keys else []
        rows = rows.take(pc.sort_indices(rows, [*steps, (times[0], "descending")]))
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
    wanted: Sequence[str] = (),
) -> tuple[Table, list[str]]:
    """Make a table of the first rows; also return the columns that a terminal has no room for.

    Texts are cut shorter where the columns that are wanted would not fit else.
    """
    if total is not None and not _adds_up(rows, total):
        total = None
    names = rows.column_names
    headers = {n: peer_header(n, compat) if compat else header(n, names) for n in names}
    for longest in _MAX_CELLS:
        columns = {
            name: _column_cells(
                rows[name].slice(0, max_rows), name, headers[name], total, compat=compat,
                longest=longest if width else _MAX_PIPED,
            )
            for name in names
        }  # fmt: skip
        hidden = _hidden(columns, headers, width)
        if set(hidden).isdisjoint(wanted):
            break
    if total is not None:
        columns[names[0]][-1] = _TOTAL
    from rich.table import Table
    from rich.text import Text

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


def _column_cells(  # what is shown, and how
    column: pa.ChunkedArray,
    name: str,
    shown_as: str,
    total: dict[str, Any] | None,
    *,
    compat: str = "",
    longest: int | None = None,
) -> list[str]:
    """Cells of a column, and of its sum if there is a row of totals; texts are cut for a terminal."""
    values = column.to_pylist()
    if compat:
        return peer_cells(values)
    sums = [] if total is None else [total.get(name)]
    shown = headed_cells(name, shown_as, values, sums)
    known = [cell or NONE for cell in shown[: len(values)]]
    if longest is not None and is_text(column.type):
        known = shortened(known, longest)
    return [*known, *shown[len(values) :]]


def is_text(kind: pa.DataType) -> bool:
    """True unless values of a type are numbers."""
    return not (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _hidden(columns: dict[str, list[str]], headers: dict[str, str], width: int | None) -> list[str]:
    """Columns that a terminal has no room for."""
    from rich.cells import cell_len

    hidden: list[str] = []
    room = width or 0
    for name, shown in columns.items() if width else ():
        needed = _GAP + max(map(cell_len, (headers[name], *shown)))
        if needed > room and len(hidden) < len(columns) - 1:
            hidden.append(name)
        else:
            room -= needed
    return hidden


def shortened(texts: Sequence[str], longest: int) -> list[str]:
    """Texts no longer than a cell; those that would look alike show where they differ."""
    cut = {text: cut_text(text, longest) for text in texts}
    for alike in grouped((short, text) for text, short in cut.items()).values():
        if len(alike) > 1:
            cut |= _differing(alike, longest)
    return [cut[text] for text in texts]


def _differing(alike: Sequence[str], longest: int) -> dict[str, str]:
    """Texts that begin alike, each without what it has in common with those that it would look like."""
    head = alike[0][: min(_BEFORE, longest // 3)]
    parts = _differing_parts(alike, longest - len(head) - 1)
    shown = {text: cut_text(f"{head}…{part}", longest) for text, part in parts.items()}
    for same in grouped((short, text) for text, short in shown.items()).values():
        numbers = {text: f" #{k}" for k, text in enumerate(same, 1)} if len(same) > 1 else {}
        shown |= {
            t: cut_text(shown[t], longest - len(number)) + number for t, number in numbers.items()
        }
    return shown


def _differing_parts(alike: Sequence[str], room: int) -> dict[str, str]:
    """The part of each text in which it first differs from the others.

    Texts whose parts are the same differ later, so that these are compared again: each time they have more
    in common.
    """
    shared = len(os.path.commonprefix(alike))  # noqa: RUF071 # of characters
    start = max(shared - room // 4, 0)  # a little of what they share, to recognise the place
    groups = grouped((text[start : start + room], text) for text in alike)
    return {
        text: part
        for short, same in groups.items()
        for text, part in (
            _differing_parts(same, room).items() if len(same) > 1 else [(same[0], short)]
        )
    }


def header(name: str, names: Sequence[str]) -> str:
    """Name of a column without the unit that its cells have, unless two would be the same."""
    short = _short(name)
    if name in results.KEYS or short == name:
        return name
    alike = [other for other in names if other != name and _short(other) == short]
    if results.ending(name) in _PLAIN:
        return name if alike else short
    if short in names or any(results.ending(other) in _IN_CELLS for other in alike):
        return f"{short}_time" if name.endswith("_ns") else name
    return short


def _short(name: str) -> str:
    """A name without its ending, if that is one that headers leave out."""
    ending = results.ending(name)
    return name.removesuffix(f"_{ending}") if ending in (*_IN_CELLS, *_PLAIN) else name


def headed_cells(
    name: str, shown_as: str, values: Sequence[Any], sums: Sequence[Any] = ()
) -> list[str]:
    """Format the values of a column below its header, with the unit where the header has none."""
    return cells(name, values, sums, with_unit=shown_as != name)


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


def cells(
    name: str, values: Sequence[Any], sums: Sequence[Any] = (), *, with_unit: bool = True
) -> list[str]:
    """Format the values of a column and sums of it, all in the unit and with the decimals of the values.

    Units that are scaled are written in any case. Names of figures read as in headers.
    """
    if name in _NAMES_OF_FIGURES:
        return [header(v, [v]) if v else "" for v in (*values, *sums)]
    unit = results.unit(name)
    if unit in _SCALES:
        return _scaled(values, sums, _SCALES[unit])
    digits = _decimals(values)
    values = [*values, *sums]
    if unit == "1" and name.endswith("share"):
        return ["" if v is None else percent(v) for v in values]
    plain = f" {unit}" if with_unit and unit not in ("", "1") else ""
    texts = [value_text(v) if v is None or digits is None else f"{v:,.{digits}f}" for v in values]
    return [f"{text}{plain}" if text else "" for text in texts]


def _decimals(values: Sequence[Any]) -> int | None:
    """Decimals by which the largest of several fractions has four figures; None if they should differ."""
    known = [abs(v) for v in values if isinstance(v, float) and v]
    if len(known) < 2 or not max(known) < _WHOLE or max(known) > _SPREAD * min(known):  # noqa: PLR2004
        return None
    return max(0, 3 - math.floor(math.log10(max(known) * _ROUNDED_UP)))  # 9,997 counts as 10,000


def _scaled(
    values: Sequence[Any], sums: Sequence[Any], scale: Sequence[tuple[int, str]]
) -> list[str]:
    known = [v for v in values if isinstance(v, int | float) and math.isfinite(v)]
    if not any(known):  # rows that are not shown add up to the sum
        known = [v for v in sums if isinstance(v, int | float) and math.isfinite(v)]
    longest = max(map(abs, known), default=0)
    unit, symbol = next((u for u in scale if longest >= u[0]), scale[-1])
    counted = [abs(v) for v in known if v and abs(v) * _NEGLIGIBLE >= longest]
    # decimals by which the smallest of them has three figures
    smallest = min(counted, default=unit) / unit
    digits = 0 if unit == 1 else max(1, 2 - math.floor(math.log10(smallest * _ROUNDED_UP)))
    room = len(f"{longest / unit:,.{digits}f}")
    return [
        f"{text} {symbol}" if (text := _scaled_text(v, unit, decimals, room)) else ""
        for numbers, decimals in ((values, digits), (sums, _of_sums(sums, unit, digits)))
        for v in numbers
    ]


def _of_sums(sums: Sequence[Any], unit: int, digits: int) -> int:
    """Decimals of sums of a column with so many; none where a sum has over four figures before the point."""
    return 0 if any(v and abs(v) >= _WHOLE * unit for v in sums) else digits


def _scaled_text(value: float | None, unit: int, digits: int, room: int) -> str:
    """A number with so many decimals, or with all for which there is room where it would read 0."""
    if value is None:
        return ""
    text = f"{value / unit:,.{digits}f}" if value else "0"
    if not value or float(text.replace(",", "")):
        return text
    digits = max(digits, room - len("<0."))
    if value < 0:
        return "0"
    text = f"{value / unit:.{digits}f}"
    return text if float(text) else f"<{10.0**-digits:.{digits}f}"  # there is some, though little


_WHOLE, _LONG = 9_999.5, 1e15
"""Decimals that are 1e4 when rounded, and larger ones, have no digits behind the point, and up to 1e15 no exponent.
Chosen: four digits would be an exponent; a double has fifteen."""
_TINY, _SMALL = 1e-5, 1e-4
"""Numbers below a ten-thousandth, down to a tenth of that, have no exponent either, but three figures. Chosen: of more
zeros one loses count."""


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
    if _TINY <= abs(value) < _SMALL:
        return f"{value:.7f}".rstrip("0")
    return f"{value:,.0f}" if _WHOLE <= abs(value) < _LONG else f"{value:,.4g}"
