"""What analyses said: tables for people, JSON and CSV for programs, and what there is to ask."""

from __future__ import annotations

import csv
import inspect
import json
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from chopper_interop import registry
from chopper_interop.activity import grouping
from chopper_interop.commands.console import console_of
from chopper_interop.errors import SchemaError
from chopper_interop.schemas import results

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from rich.console import Console

    from chopper_interop.result import Result

_FOR_PROGRAMS = 10_000
"""So wide that no row of results is folded where a program may read them."""
_LONGEST = 48
"""Longest text in a cell of a terminal's table."""
_GAP = 2
"""Between two columns of a table."""
_TIMES = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))
_SUMMARY = "summary.json"
_NO_ROWS = "no rows"
"""The note that says why a result has none."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def show(found: list[Result], *, most: int | None, definitions: bool) -> None:
    """Summary and rows of each analysis on stdout, and what is to be known of them.

    Parameters
    ----------
    found
        What analyses said.
    most
        How many rows of each are shown; None for all.
    definitions
        Whether what figures mean is shown.
    """
    console = console_of(sys.stdout, _FOR_PROGRAMS)
    for number, result in enumerate(found):
        if number:
            console.print()
        console.print(f"[bold]{escape(result.analysis)}[/bold]")
        why = _why_empty(result)
        for name, text in why.items():
            _line(console, name, text)
        _line(console, "summary", _figures(result, most))
        if result.rows.num_rows:
            _table(console, result.rows, most)
        for name, value in result.summary.items():
            if _is_table(value):
                console.print(f"{escape(result.analysis)}: {escape(name)}")
                _table(console, pa.Table.from_pylist(value), most)
        for name, text in result.notes.items():
            _line(console, name, "" if name in why else text)
        for name, text in result.conventions.items() if definitions else ():
            _line(console, name, text, style="dim")


def _why_empty(result: Result) -> Mapping[str, str]:
    """The notes that say why there are no rows: the one of that name, else all."""
    if result.rows.num_rows:
        return {}
    return {n: text for n, text in result.notes.items() if n == _NO_ROWS} or result.notes


def _is_wide(console: Console) -> bool:
    """Whether programs read it, so that every row is one line, whole."""
    return console.width >= _FOR_PROGRAMS


def _is_table(value: Any) -> bool:
    """Whether a figure of a summary is a table of its own."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _table(console: Console, rows: pa.Table, most: int | None) -> None:
    """Rows, as many as are wanted, and what of them is not shown."""
    table, hidden = _rows(rows, most, None if _is_wide(console) else console.width)
    console.print(table)
    if hidden:
        console.print(f"[dim]not shown for want of room: {escape(', '.join(hidden))}[/dim]")
    if most is not None and rows.num_rows > most:
        console.print(f"[dim]… {rows.num_rows - most:,} more[/dim]")


def _rows(rows: pa.Table, most: int | None, width: int | None) -> tuple[Table, list[str]]:
    """The rows as a table, and the columns for which a terminal of that width has no room."""
    shown = {n: _cells(n, rows[n].slice(0, most).to_pylist()) for n in rows.column_names}
    hidden: list[str] = []
    if width is not None:
        room = width
        for name, cells in list(shown.items()):
            room -= _GAP + min(max(map(len, (name, *cells))), _LONGEST)
            if room < 0 and len(hidden) < len(shown) - 1:
                hidden.append(name)
    table = Table(box=None, pad_edge=False, header_style="bold")
    kept = {name: cells for name, cells in shown.items() if name not in hidden}
    for name in kept:
        column = rows[name]
        number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        table.add_column(
            name,
            justify="right" if number else "left",
            overflow="fold" if width is None else "ellipsis",
            no_wrap=width is not None,
            max_width=None if width is None else _LONGEST,
        )
    for row in zip(*kept.values(), strict=True):
        table.add_row(*(Text(_visible(cell)) for cell in row))
    return table, hidden


def _cells(name: str, values: list[Any]) -> list[str]:
    """A column's values for people; times of one column in one unit, so that they align."""
    if name.endswith("_ns"):
        known = (v for v in values if isinstance(v, int | float) and math.isfinite(v))
        longest = max(map(abs, known), default=0)
        unit, symbol = next((u for u in _TIMES if longest >= u[0]), _TIMES[-1])
        return ["" if v is None else _time(v, unit, symbol) for v in values]
    if results.unit(name) == "1" and name.endswith("share"):
        return ["" if v is None else f"{v:,.1%}" for v in values]
    return [_plain(value) for value in values]


def _time(value: float, unit: int, symbol: str) -> str:
    return f"{value:,.0f} ns" if unit == 1 else f"{value / unit:,.3f} {symbol}"


def _visible(text: str) -> str:
    """The text with control characters spelled out: terminals would obey them."""
    return _CONTROL.sub(lambda found: repr(found.group())[1:-1], text)


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _line(console: Console, name: str, text: str, style: str = "") -> None:
    """Something that is said: wrapped where people read, else one line; nothing of nothing."""
    if text:
        told = Text(_visible(f"{name}: {text}"), style=style)
        console.print(told, soft_wrap=_is_wide(console))


def _figures(result: Result, most: int | None) -> str:
    """The summary but for its tables and what is not known."""
    told = {
        name: _of_summary(name, value, most)
        for name, value in result.summary.items()
        if not _is_table(value)
    }
    return " · ".join(f"{name} {text}" for name, text in told.items() if text)


def _of_summary(name: str, value: Any, most: int | None) -> str:
    if isinstance(value, dict):
        told = {
            key: _of_summary(key if results.unit(key) else name, one, most)
            for key, one in value.items()
        }
        return ", ".join(f"{key} {text}" for key, text in told.items() if text)
    if isinstance(value, list | tuple):
        shown = [_of_summary(name, one, most) for one in value[:most]]
        more = len(value) - len(shown)
        return ", ".join([*shown, *([f"… {more:,} more"] if more else [])])
    single = not isinstance(value, bool) and (value is None or isinstance(value, int | float))
    return _cells(name, [value])[0] if single else _plain(value)


def show_where_definitions_are() -> None:
    """That there is more to know, on stderr."""
    console_of(sys.stderr).print("[dim]--definitions tells what these figures mean[/dim]")


def show_left_out(left_out: dict[str, str]) -> None:
    """Analyses that were not asked though all were, on stderr."""
    console = console_of(sys.stderr)
    for name, why in left_out.items():
        console.print(f"[dim]{escape(name)} is left out: {escape(why)}[/dim]")


def as_json(found: Iterable[Result], *, ascii_only: bool = False) -> str:
    """One object of all results, in the form that `schema` describes.

    Parameters
    ----------
    found
        What analyses said.
    ascii_only
        Whether all other characters are escaped.

    Raises
    ------
    SchemaError
        A result holds what JSON has no word for, such as NaN.
    """
    return _dumped({result.analysis: result.to_dict() for result in found}, ascii_only=ascii_only)


def _dumped(parts: dict[str, Any], *, ascii_only: bool = False) -> str:
    try:
        return json.dumps(parts, indent=1, allow_nan=False, ensure_ascii=ascii_only)
    except (ValueError, TypeError) as error:
        raise SchemaError(
            f"what {' or '.join(parts)} gave does not go into JSON: {error}"
        ) from error


def csv_paths(found: Iterable[Result], folder: str | Path) -> list[Path]:
    """Files that `write_csv` makes."""
    return [Path(folder) / name for name in (*(f"{r.analysis}.csv" for r in found), _SUMMARY)]


def write_csv(found: list[Result], folder: Path) -> None:
    """A CSV file of the rows of each analysis, and all else that they say as JSON."""
    from chopper_interop.files import outputs

    names = {path.name for path in csv_paths(found, folder)}
    facts = {r.analysis: r.to_dict() for r in found}
    for of_one in facts.values():
        del of_one["rows"]
    told = _dumped(facts)
    with outputs.folder(
        folder, owns=lambda there: there.name in names and _is_ours(there)
    ) as where:
        for result in found:
            path = where / f"{result.analysis}.csv"
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(result.rows.column_names)
                writer.writerows(row.values() for row in result.rows.to_pylist())
        (where / _SUMMARY).write_text(told, encoding="utf-8")


def _is_ours(path: Path) -> bool:
    """Whether a file is one that `write_csv` wrote, by its first line."""
    if path.name == _SUMMARY or not path.is_file():
        return path.is_file()
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        header = next(csv.reader(file), [])
    return set(header) <= results.columns(path.stem).keys()


def show_analyses(names: Collection[str]) -> None:
    """Analyses with their options, on stdout; without names all."""
    console = console_of(sys.stdout)
    known = registry.analyses()
    for name, found in ((name, known[name]) for name in names or known):
        if isinstance(found, registry.Broken):
            console.print(f"[bold]{escape(name)}[/bold]  does not load: {escape(found.reason)}")
            continue
        console.print(f"[bold]{escape(name)}[/bold]  {escape(_for_people(_first_line(found)))}")
        table = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
        table.add_column(min_width=20)
        for option, text in registry.option_texts(found).items():
            table.add_row(escape(f"-O {option}"), escape(_for_people(text)))
        if table.row_count:
            console.print(table)
    console.print(f"groups by which most can be asked: {', '.join(grouping.GRAINS)}")


def _for_people(text: str) -> str:
    """What a docstring says, without names that only Python knows."""
    return text.replace("`grouping.GRAINS`", "the groups below").replace("`", "")


def _first_line(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]


def schema_json(*, ascii_only: bool = False) -> str:
    """The JSON schema of what ``--json`` prints, as text."""
    return json.dumps(schema(), indent=1, ensure_ascii=ascii_only)


def schema() -> dict[str, Any]:
    """The JSON schema of what `as_json` gives, with all columns that are known by name."""
    parts = {
        name: {
            "allOf": [{"$ref": "#/$defs/result"}],
            "description": _first_line(function),
            "properties": {"rows": {"items": {"properties": _columns(name)}}},
        }
        for name, function in registry.working_analyses().items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Answers of chopper-analyze --json",
        "description": "Null is what is not known. Times are whole nanoseconds, in names that "
        "end in _ns; shares go from 0 to 1. x-unit is the unit of a column.",
        "type": "object",
        "properties": parts,
        "additionalProperties": {"$ref": "#/$defs/result"},
        "$defs": {
            "result": {
                "type": "object",
                "required": ["summary", "rows", "notes", "conventions"],
                "properties": {
                    "summary": {"type": "object", "description": "Figures of the whole."},
                    "notes": {
                        "type": "object",
                        "description": "Of this answer: its window, and what was left out, is not "
                        "known or was assumed; of one without rows why, as 'no rows'.",
                        "additionalProperties": {"type": "string"},
                    },
                    "conventions": {
                        "type": "object",
                        "description": "What figures mean, the same whatever the input.",
                        "additionalProperties": {"type": "string"},
                    },
                    "rows": {"type": "array", "items": {"type": "object"}},
                },
            },
        },
    }


def _columns(analysis: str) -> dict[str, Any]:
    units = {name: results.unit(name) for name in results.columns(analysis)}
    return {
        name: {"description": text} | ({"x-unit": units[name]} if units[name] else {})
        for name, text in results.columns(analysis).items()
    }
