"""Results of analyses as human-readable tables, JSON and CSV; the list of analyses; the schema."""

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
from chopper_interop.analyses.methods.activity import grouping
from chopper_interop.commands.console import console_for
from chopper_interop.errors import SchemaError
from chopper_interop.schemas import results

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from rich.console import Console

    from chopper_interop.result import Result

_PIPE_WIDTH = 10_000
"""Width where stdout is no terminal: no row is folded where a program may read it."""
_MAX_CELL = 48
"""Longest text in a cell on a terminal. Chosen: names of kernels stay apart, other columns fit."""
_GAP = 2
"""Spaces between two columns of a table, as rich draws them."""
_TIME_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))
_SUMMARY = "summary.json"
_NO_ROWS = "no rows"
"""Name of the note that says why a result has no rows."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def show(all_results: list[Result], *, max_rows: int | None, definitions: bool) -> None:
    """Print summary, rows and notes of each result on stdout.

    Parameters
    ----------
    all_results
        Results of the analyses.
    max_rows
        Rows to show of each; None for all.
    definitions
        True to print the definitions of the figures too.
    """
    console = console_for(sys.stdout, _PIPE_WIDTH)
    for index, result in enumerate(all_results):
        if index:
            console.print()
        console.print(f"[bold]{escape(result.analysis)}[/bold]")
        reasons = _no_row_reasons(result)
        for name, text in reasons.items():
            _print_line(console, name, text)
        _print_line(console, "summary", _summary_text(result, max_rows))
        if result.rows.num_rows:
            _print_table(console, result.rows, max_rows)
        for name, value in result.summary.items():
            if _is_table(value):
                console.print(f"{escape(result.analysis)}: {escape(name)}")
                _print_table(console, pa.Table.from_pylist(value), max_rows)
        for name, text in result.notes.items():
            _print_line(console, name, "" if name in reasons else text)
        for name, text in result.conventions.items() if definitions else ():
            _print_line(console, name, text, style="dim")


def _no_row_reasons(result: Result) -> Mapping[str, str]:
    """Notes that say why a result has no rows: the note `_NO_ROWS` or, without it, all notes."""
    if result.rows.num_rows:
        return {}
    return {n: text for n, text in result.notes.items() if n == _NO_ROWS} or result.notes


def _is_unfolded(console: Console) -> bool:
    """True if stdout is no terminal, so that each row must be one line."""
    return console.width >= _PIPE_WIDTH


def _is_table(value: Any) -> bool:
    """True if a value of a summary is a list of rows."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _print_table(console: Console, rows: pa.Table, max_rows: int | None) -> None:
    """Print the first rows, the names of hidden columns, and the number of further rows."""
    table, hidden = _result_table(rows, max_rows, None if _is_unfolded(console) else console.width)
    console.print(table)
    if hidden:
        console.print(f"[dim]columns that did not fit: {escape(', '.join(hidden))}[/dim]")
    if max_rows is not None and rows.num_rows > max_rows:
        console.print(f"[dim]… {rows.num_rows - max_rows:,} more[/dim]")


def _result_table(
    rows: pa.Table, max_rows: int | None, width: int | None
) -> tuple[Table, list[str]]:
    """Make a table of the first rows; also return the columns that a terminal has no room for."""
    columns = {n: _cells(n, rows[n].slice(0, max_rows).to_pylist()) for n in rows.column_names}
    hidden: list[str] = []
    if width is not None:
        room = width
        for name, cells in list(columns.items()):
            room -= _GAP + min(max(map(len, (name, *cells))), _MAX_CELL)
            if room < 0 and len(hidden) < len(columns) - 1:
                hidden.append(name)
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = {name: cells for name, cells in columns.items() if name not in hidden}
    for name in shown:
        kind = rows[name].type
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        table.add_column(
            name,
            justify="right" if is_number else "left",
            overflow="fold" if width is None else "ellipsis",
            no_wrap=width is not None,
            max_width=None if width is None else _MAX_CELL,
        )
    for row in zip(*shown.values(), strict=True):
        table.add_row(*(Text(_escape_control(cell)) for cell in row))
    return table, hidden


def _cells(name: str, values: list[Any]) -> list[str]:
    """Format the values of a column; all times of a column in one unit, so that they align."""
    if name.endswith("_ns"):
        known = (v for v in values if isinstance(v, int | float) and math.isfinite(v))
        longest = max(map(abs, known), default=0)
        unit, symbol = next((u for u in _TIME_UNITS if longest >= u[0]), _TIME_UNITS[-1])
        return ["" if v is None else _time_text(v, unit, symbol) for v in values]
    if results.unit(name) == "1" and name.endswith("share"):
        return ["" if v is None else f"{v:,.1%}" for v in values]
    return [_value_text(value) for value in values]


def _time_text(value: float, unit: int, symbol: str) -> str:
    return f"{value:,.0f} ns" if unit == 1 else f"{value / unit:,.3f} {symbol}"


def _escape_control(text: str) -> str:
    """Escape control characters, which a terminal would obey."""
    return _CONTROL.sub(lambda match: repr(match.group())[1:-1], text)


def _value_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _print_line(console: Console, name: str, text: str, style: str = "") -> None:
    """Print "name: text", wrapped on a terminal, else as one line; nothing if the text is empty."""
    if text:
        line = Text(_escape_control(f"{name}: {text}"), style=style)
        console.print(line, soft_wrap=_is_unfolded(console))


def _summary_text(result: Result, max_items: int | None) -> str:
    """Format the known values of a summary, without its tables."""
    texts = {
        name: _summary_value(name, value, max_items)
        for name, value in result.summary.items()
        if not _is_table(value)
    }
    return " · ".join(f"{name} {text}" for name, text in texts.items() if text)


def _summary_value(name: str, value: Any, max_items: int | None) -> str:
    if isinstance(value, dict):
        texts = {
            key: _summary_value(key if results.unit(key) else name, item, max_items)
            for key, item in value.items()
        }
        return ", ".join(f"{key} {text}" for key, text in texts.items() if text)
    if isinstance(value, list | tuple):
        shown = [_summary_value(name, item, max_items) for item in value[:max_items]]
        more = len(value) - len(shown)
        return ", ".join([*shown, *([f"… {more:,} more"] if more else [])])
    single = not isinstance(value, bool) and (value is None or isinstance(value, int | float))
    return _cells(name, [value])[0] if single else _value_text(value)


def show_definitions_hint() -> None:
    """Mention ``--definitions``, on stderr."""
    console_for(sys.stderr).print(
        "[dim]add --definitions to see how these figures are defined[/dim]"
    )


def show_skipped(skipped: dict[str, str]) -> None:
    """Print the analyses that were skipped, with the reasons, on stderr."""
    console = console_for(sys.stderr)
    for name, reason in skipped.items():
        console.print(f"[dim]{escape(name)} was skipped: {escape(reason)}[/dim]")


def to_json(all_results: Iterable[Result], *, ascii_only: bool = False) -> str:
    """Encode all results as one JSON object, which `schema` describes.

    Parameters
    ----------
    all_results
        Results of the analyses.
    ascii_only
        True to escape all other characters.

    Raises
    ------
    SchemaError
        A result holds a value that JSON lacks, such as NaN.
    """
    return _encode_json(
        {result.analysis: result.to_dict() for result in all_results}, ascii_only=ascii_only
    )


def _encode_json(parts: dict[str, Any], *, ascii_only: bool = False) -> str:
    try:
        return json.dumps(parts, indent=1, allow_nan=False, ensure_ascii=ascii_only)
    except (ValueError, TypeError) as error:
        raise SchemaError(
            f"the result of {' or '.join(parts)} cannot be written as JSON: {error}"
        ) from error


def csv_paths(all_results: Iterable[Result], folder: str | Path) -> list[Path]:
    """List the files that `write_csv` writes."""
    names = [f"{result.analysis}.csv" for result in all_results]
    return [Path(folder) / name for name in (*names, _SUMMARY)]


def write_csv(all_results: list[Result], folder: Path) -> None:
    """Write the rows of each result as a CSV file, and all summaries and notes as a JSON file."""
    from chopper_interop.io import outputs

    names = {path.name for path in csv_paths(all_results, folder)}
    facts = {r.analysis: r.to_dict() for r in all_results}
    for result_facts in facts.values():
        del result_facts["rows"]
    summaries = _encode_json(facts)
    with outputs.folder(
        folder, owns=lambda file: file.name in names and _is_written_here(file)
    ) as target:
        for result in all_results:
            path = target / f"{result.analysis}.csv"
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(result.rows.column_names)
                writer.writerows(row.values() for row in result.rows.to_pylist())
        (target / _SUMMARY).write_text(summaries, encoding="utf-8")


def _is_written_here(path: Path) -> bool:
    """True if `write_csv` wrote this file, by its first line."""
    if path.name == _SUMMARY or not path.is_file():
        return path.is_file()
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        header = next(csv.reader(file), [])
    return set(header) <= results.columns(path.stem).keys()


def show_analyses(names: Collection[str]) -> None:
    """Print analyses with their options, on stdout; all if there are no names."""
    console = console_for(sys.stdout)
    known = registry.analyses()
    for name in names or known:
        function = known[name]
        if isinstance(function, registry.Broken):
            reason = escape(function.reason)
            console.print(f"[bold]{escape(name)}[/bold]  does not load: {reason}")
            continue
        text = escape(_readable(_first_line(function)))
        console.print(f"[bold]{escape(name)}[/bold]  {text}")
        table = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
        table.add_column(min_width=20)
        for option, text in registry.option_texts(function).items():
            table.add_row(escape(f"-O {option}"), escape(_readable(text)))
        if table.row_count:
            console.print(table)
    console.print(f"groups that most analyses accept for --by: {', '.join(grouping.GRAINS)}")


def _readable(text: str) -> str:
    """Remove the markup of a docstring and names that mean something in Python only."""
    return text.replace("`grouping.GRAINS`", "the groups below").replace("`", "")


def _first_line(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]


def schema_json(*, ascii_only: bool = False) -> str:
    """Encode the JSON schema of the output of ``--json``."""
    return json.dumps(schema(), indent=1, ensure_ascii=ascii_only)


def schema() -> dict[str, Any]:
    """Make the JSON schema of the output of `to_json`, with all columns that are documented."""
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
        "title": "Results of chopper-analyze --json",
        "description": "Null stands for unknown values. Times are whole nanoseconds, in names that "
        "end in _ns; shares go from 0 to 1. x-unit is the unit of a column.",
        "type": "object",
        "properties": parts,
        "additionalProperties": {"$ref": "#/$defs/result"},
        "$defs": {
            "result": {
                "type": "object",
                "required": ["summary", "rows", "notes", "conventions"],
                "properties": {
                    "summary": {"type": "object", "description": "Figures of the job."},
                    "notes": {
                        "type": "object",
                        "description": "Remarks on this result: its window, and what was left "
                        "out, is unknown or was assumed; 'no rows' says why there are none.",
                        "additionalProperties": {"type": "string"},
                    },
                    "conventions": {
                        "type": "object",
                        "description": "Definitions of the figures, the same for any input.",
                        "additionalProperties": {"type": "string"},
                    },
                    "rows": {"type": "array", "items": {"type": "object"}},
                },
            }
        },
    }


def _columns(analysis: str) -> dict[str, Any]:
    units = {name: results.unit(name) for name in results.columns(analysis)}
    return {
        name: {"description": text} | ({"x-unit": units[name]} if units[name] else {})
        for name, text in results.columns(analysis).items()
    }
