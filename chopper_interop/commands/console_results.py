"""Results of analyses as people read them on a terminal; the list of analyses."""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from chopper_interop import registry
from chopper_interop.analyses.methods.activity import grouping
from chopper_interop.analyses.methods.findings import catalogue
from chopper_interop.arrays import arrow
from chopper_interop.commands import console_tables, result_files
from chopper_interop.commands.console import console_for
from chopper_interop.commands.console_tables import escape
from chopper_interop.errors import one_line
from chopper_interop.percents import percent
from chopper_interop.schemas import results

if TYPE_CHECKING:
    from rich.console import Console

    from chopper_interop.result import Result

_NO_ROWS = "no rows"
"""Name of the note that says why a result has no rows."""
_SOURCE = "RUN/"
"""Stands for the input in commands of findings."""
_WINDOW = "window"
"""Name of the note that says which time counts: a definition for who reads the table."""
_NO_NEWS = re.compile(r"(nothing|none)$|0 |(\d[\d,]*) of \2\b")
"""Notes that say that nothing is left out: "nothing", "0 of 84 …", "4 of 4"."""
_NAMES = re.compile(r"(^|_)(?<!without_)(rank|device|stage|iteration)$")
"""Figures of a summary that name something by its number; GPUs without a rank are counted."""
_LINES = ["topic", "text"]
"""Columns of rows that are lines of text."""
_FINDING = "finding"
_MAX_LINES, _MIN_FINDINGS = 15, 2
"""Lines of the summary, and findings that it has in any case. Fixed by its purpose: the answer at a glance."""
_MAX_SOURCE = 100
"""Longest text of the sources in a command of the summary; findings have them whole. Chosen: many files would take
the place of findings."""
_SUMS = {"dur_ns": "path_ns"}
"""Columns whose sum has another name in a summary."""
_SAME_SUM = 1e-9
"""Relative difference of sums that are the same but for rounding."""
_MAX_IN_LINE = 3
"""Figures of a summary that share a line. Chosen: more are read faster one below the other."""


def show(
    all_results: list[Result],
    *,
    max_rows: int | None,
    definitions: bool,
    compat: str = "",
    source: str = "RUN/",
    record: Mapping[str, str] | None = None,
) -> None:
    """Print rows, summary and notes of each result on stdout.

    Parameters
    ----------
    all_results
        Results of the analyses.
    max_rows
        Rows to show of each; None for all.
    definitions
        True to print the definitions of the figures too.
    compat
        The tool whose definitions were asked for: only its figures are printed, as it prints them.
    source
        The input, for commands to copy.
    record
        What to record for analyses that lack data.
    """
    console = console_for(sys.stdout, console_tables.PIPE_WIDTH)
    for index, result in enumerate(all_results):
        to_record = (record or {}).get(result.analysis, "")
        if index:
            console.print()
        if result.rows.column_names == _LINES:
            _print_lines(console, result, source)
        elif result.analysis == "findings":
            _print_findings(console, result, max_rows, source)
        elif compat:
            console.print(f"[bold]{escape(result.analysis)} --compat {escape(compat)}[/bold]")
            if not _is_explained(console, result, _no_row_reasons(result), to_record):
                console_tables.print_table(console, result.rows, max_rows, compat=compat)
        else:
            _print_result(console, result, max_rows, to_record)
        if definitions:
            _print_line(console, _WINDOW, result.notes.get(_WINDOW, ""))
        for name, text in result.conventions.items() if definitions else ():
            _print_line(console, name, text, style="dim")


def _print_lines(console: Console, result: Result, source: str) -> None:
    """Print rows that are lines already, each topic once, in at most `_MAX_LINES` on a terminal."""
    topics, texts = (result.rows[name].to_pylist() for name in _LINES)
    width = max(map(len, topics), default=0) + 2
    room = None if console_tables.is_unfolded(console) else console.width - width
    source = "…" if room and len(source) > _MAX_SOURCE else source
    blocks = []
    for topic, text in zip(topics, texts, strict=True):
        shown = one_line(text.replace(_SOURCE, source))
        has_command = _SOURCE in text  # which the terminal folds, so that it can be copied
        folded = _folded(shown, None if has_command else room, is_cut=topic == _FINDING)
        blocks.append((topic, folded))
    if room is not None:
        _shorten(blocks, width, console.width)
    before = ""
    for topic, lines in blocks:
        for number, part in enumerate(lines):
            line = Text(f"{'' if number or topic == before else topic:<{width}}{part}")
            line.stylize("bold", 0, width)
            console.print(line, soft_wrap=True)
        before = topic


def _shorten(blocks: list[tuple[str, list[str]]], indent: int, width: int) -> None:
    """Leave out findings, then cut the last blocks to a line each, until all take `_MAX_LINES` of a terminal."""

    def is_too_long() -> bool:
        parts = (line for _, lines in blocks for line in lines)
        return sum(-(-(indent + cell_len(part)) // width) for part in parts) > _MAX_LINES

    of_findings = [k for k, (topic, _) in enumerate(blocks) if topic == _FINDING]
    while is_too_long() and len(of_findings) > _MIN_FINDINGS:
        del blocks[of_findings.pop()]
    for k, (topic, lines) in reversed([*enumerate(blocks)]):
        if len(lines) > 1 and is_too_long():
            blocks[k] = topic, [console_tables.cut_text(" ".join(lines), width - indent)]


def _folded(text: str, room: int | None, *, is_cut: bool) -> list[str]:
    """Lines of a text as wide as there is room; of one that is cut the first."""
    if is_cut and room is not None:
        return [console_tables.cut_text(text, room)]
    return console_tables.folded(text, room)


def _print_findings(console: Console, result: Result, max_rows: int | None, source: str) -> None:
    """Print findings one below the other, with where they are and the command that shows each."""
    console.print(f"[bold]{escape(result.analysis)}[/bold]")
    for name, text in _no_row_reasons(result).items():
        _print_line(console, name, text)
    indent = " " * 3
    room = None if console_tables.is_unfolded(console) else console.width - len(indent)
    of = " a step" if result.summary.get("steps", 1) else ""  # else of the whole job
    for number, row in enumerate(result.rows.slice(0, max_rows).to_pylist(), 1):
        times = [row["saves_ns"], row["saves_low_ns"], row["saves_high_ns"]]
        saves, low, high = console_tables.cells("saves_ns", times)
        interval = f" ({low} to {high})" if low and high else ""
        heading = f"{number}. {row['code']}: saves {saves}{interval}{of}, {percent(row['share'])}"
        entry = catalogue.CATALOGUE.get(row["code"])
        heading += f" of {entry.step}" if entry and entry.step else ""
        console.print(Text(one_line(heading), style="bold"))
        noun = "rank" if row["ranks"].isdecimal() else "ranks"
        where = f"{noun} {row['ranks']}: {row['where']}" if row["ranks"] else row["where"]
        seen = ", ".join(console_tables.cells("at_ns", [row["at_ns"]]))
        sure = f"{row['certainty']}; {where}; seen at {seen}"
        known = (f"saving: as if {entry.saving}", f"remedy: {entry.remedy}") if entry else ()
        for text in (row["finding"], sure, *known):
            for line in _folded(one_line(text), room, is_cut=False):
                console.print(Text(indent + line), soft_wrap=True)
        command = one_line(row["command"].replace(_SOURCE, source))
        console.print(Text(indent + command), soft_wrap=True)  # whole, to copy it
    if max_rows is not None and result.rows.num_rows > max_rows:
        console.print(f"[dim]… {result.rows.num_rows - max_rows:,} more[/dim]")


def _print_result(console: Console, result: Result, max_rows: int | None, record: str) -> None:
    """Print rows, summary and notes; of a result without figures why, and what to record if that is known."""
    console.print(f"[bold]{escape(result.analysis)}[/bold]")
    reasons = _no_row_reasons(result)
    if result.rows.num_rows and _is_empty(result):
        reasons = {"no figures": "; ".join(_without_window(result.notes)) or "no data"}
    if _is_explained(console, result, reasons, record):
        return
    total = _total(result)
    rows = _changed(result)
    if rows.num_rows:
        console_tables.print_table(console, rows, max_rows, analysis=result.analysis, total=total)
    _print_summary(console, result, total or {}, max_rows)
    for parts in _records(result.summary):
        console.print(f"{escape(result.analysis)}: {escape(', '.join(parts))}")
        console.print(console_tables.fields_table(parts))
    for name, value in result.summary.items():
        if _is_table(value) and not value[0].keys() <= set(result.rows.column_names):
            console.print(f"{escape(result.analysis)}: {escape(name)}")
            columns = {name: [row.get(name) for row in value] for name in value[0]}
            table = pa.table({name: arrow.column(cells) for name, cells in columns.items()})
            console_tables.print_table(console, table, max_rows, analysis=result.analysis)
    notes = {
        name: text
        for name, text in result.notes.items()
        if name not in reasons and _is_news(name, text) and result.summary.get(name) != text
    }
    for name, text in _together(notes).items():
        _print_line(console, name, text)


def _is_explained(
    console: Console, result: Result, reasons: Mapping[str, str], record: str
) -> bool:
    """Print why there are no figures, and what to record; True if that is all that there is to say."""
    for name, text in reasons.items():
        _print_line(console, name, text)
    if reasons:
        _print_line(console, "record", record)
    return bool(reasons) and bool(record or result.rows.num_rows)


def _is_news(name: str, text: str) -> bool:
    """True if a note says something of this result: something is left out, unknown or assumed."""
    return name != _WINDOW and _NO_NEWS.match(text) is None


def _together(notes: Mapping[str, str]) -> dict[str, str]:
    """Notes of one kind with one text as one: "kind: a; b" for "kind: a" and "kind: b"."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, text in notes.items():
        kind, _, subjects = name.partition(": ")
        names.setdefault((kind, text), []).append(subjects)
    return {
        f"{kind}: {'; '.join(subjects)}" if any(subjects) else kind: text
        for (kind, text), subjects in names.items()
    }


def _no_row_reasons(result: Result) -> Mapping[str, str]:
    """Notes that say why a result has no rows: the note `_NO_ROWS` or, without it, all notes."""
    if result.rows.num_rows:
        return {}
    others = {n: text for n, text in result.notes.items() if n != _WINDOW}
    return {n: text for n, text in others.items() if n == _NO_ROWS} or others


def _changed(result: Result) -> pa.Table:
    """Rows without those of no change, which a note counts."""
    names = results.CHANGES.get(result.analysis, ())
    if not result.rows.num_rows or not set(names) <= set(result.rows.column_names):
        return result.rows
    import pyarrow.compute as pc

    changes = [pc.fill_null(pc.not_equal(result.rows[name], 0), fill_value=True) for name in names]
    return result.rows.filter(functools.reduce(pc.or_, changes)) if changes else result.rows


def _total(result: Result) -> dict[str, Any] | None:
    """The sums over all rows that the summary has; None for less than two rows, or without any."""
    rows = result.rows
    if rows.num_rows < 2 or not _begins_with_key(result):  # noqa: PLR2004
        return None
    import pyarrow.compute as pc

    return {
        name: value
        for name in rows.column_names
        if not console_tables.is_text(rows[name].type)
        and isinstance(value := result.summary.get(_SUMS.get(name, name)), int | float)
        and math.isclose(value, pc.sum(rows[name]).as_py() or 0, rel_tol=_SAME_SUM)
    }


def _begins_with_key(result: Result) -> bool:
    """True if the first column says what a row is of, so that a total can be named there."""
    return console_tables.is_key(result.rows.column_names[0], result.analysis)


def _is_table(value: Any) -> bool:
    """True if a value of a summary is a list of rows."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _print_summary(
    console: Console, result: Result, total: dict[str, Any], max_items: int | None
) -> None:
    """Print the known figures of a summary but tables and sums: in a line, or many as a table."""
    in_rows = {*total, *(_SUMS.get(name, "") for name in total), *_in_rows(result)}
    names = list(result.summary)
    texts = {}
    for name, value in result.summary.items():
        if name not in in_rows and not _is_table(value) and not _is_record(value):
            shown = console_tables.header(name, names)
            # of a number that names something, as of rank 0, 0 is news; -1 of a job that no rank holds up is none
            is_none = value == (-1 if _NAMES.search(name) else 0)
            if text := _summary_value(name, shown, None if is_none else value, max_items):
                texts[name] = shown, text
    if len(texts) <= _MAX_IN_LINE:
        _print_line(console, "summary", " · ".join(f"{n} {text}" for n, text in texts.values()))
        return
    console_tables.print_pairs(console, dict(texts.values()))


def _in_rows(result: Result) -> set[str]:
    """Figures of a summary that the rows show: the only row's, or one that a row is named by."""
    rows = result.rows
    if rows.num_rows == 1:
        return set(rows.column_names)
    texts = [name for name in rows.column_names if console_tables.is_text(rows[name].type)]
    named = {f"{row[name]}_ns": row for name in texts[:1] for row in rows.to_pylist()}
    return {name for name, row in named.items() if result.summary.get(name) in row.values()}


def _is_record(value: Any) -> bool:
    """True if a value of a summary has more named figures than fit into a line."""
    return isinstance(value, dict) and len(value) > _MAX_IN_LINE


def _records(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records of a summary, those of the same fields together."""
    same: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, value in summary.items():
        if _is_record(value):
            same.setdefault(tuple(value), {})[name] = value
    return list(same.values())


def _print_line(console: Console, name: str, text: str, style: str = "") -> None:
    """Print "name: text", wrapped on a terminal, else as one line; nothing if the text is empty."""
    if text:
        line = Text(one_line(f"{name}: {text}"), style=style)
        console.print(line, soft_wrap=console_tables.is_unfolded(console))


def _summary_value(name: str, shown_as: str, value: Any, max_items: int | None) -> str:
    if isinstance(value, dict):
        texts = []
        for key, item in value.items():
            head = console_tables.header(key, list(value))
            unit = (key, head) if results.unit(key) else (name, shown_as)
            if text := _summary_value(unit[0], unit[1], item, max_items):
                texts.append(f"{head} {text}")
        return ", ".join(texts)
    if isinstance(value, list | tuple):
        shown = [_summary_value(name, shown_as, item, max_items) for item in value[:max_items]]
        more = len(value) - len(shown)
        return ", ".join([*shown, *([f"… {more:,} more"] if more else [])])
    if isinstance(value, bool) or not (value is None or isinstance(value, int | float)):
        return console_tables.value_text(value)
    return console_tables.headed_cells(name, shown_as, [value])[0]


def answered(all_results: list[Result]) -> tuple[list[Result], dict[str, str]]:
    """Separate results with figures from those without, with the reason of each of these."""
    empty = {r.analysis: r for r in all_results if _is_empty(r)}
    reasons = {
        name: "; ".join(_without_window(_no_row_reasons(result) or result.notes)) or "no data"
        for name, result in empty.items()
    }
    return [result for result in all_results if result.analysis not in empty], reasons


def _without_window(notes: Mapping[str, str]) -> list[str]:
    return [text for name, text in notes.items() if name != _WINDOW]


def _is_empty(result: Result) -> bool:
    """True if there are no rows, or no figure of any row is known."""
    rows = result.rows
    figures = [n for n in rows.column_names if not console_tables.is_key(n, result.analysis)]
    unknown = [rows[name].null_count == rows.num_rows for name in figures]
    return not rows.num_rows or (bool(unknown) and all(unknown))


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
        text = escape(_readable(result_files.first_line(function)))
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
