"""Tables and progress on the terminal. Only results go to stdout, all else to stderr."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from chopper_interop import pipeline, progress, registry
from chopper_interop.clocks import hosts, relations
from chopper_interop.commands.console_tables import escape
from chopper_interop.errors import PluginError, UnknownFormatError, one_line
from chopper_interop.grouping import by_key, grouped
from chopper_interop.issues import Issue, Severity
from chopper_interop.percents import percent
from chopper_interop.schemas.kinds import OBSERVED
from chopper_interop.tables import EDGES_APART

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from chopper_interop.graph import Graph
    from chopper_interop.pipeline import WriteTarget
    from chopper_interop.schemas.meta import ClockFit, DeviceMatch, Source
    from chopper_interop.sources import Inventory
    from chopper_interop.trace import Trace

_MAX_SKIPPED = 20
"""Skipped files shown. Chosen: the table still fits a terminal."""
_MAX_REASONS = 4
"""Reasons for skipping shown next to results. Chosen: what follows is the answer, and a summary has at most 15 lines."""
_MAX_ROWS = 32
"""Rows of GPUs and of clocks shown. Chosen: the table stays readable; GPUs in sequence share one."""
_MIN_WIDTH = 20
"""Narrower COLUMNS are none: containers without a terminal state 0."""
_HEIGHT = 25
"""Height where there is no terminal, which nothing here depends on. Chosen: that of Rich."""
_DEFAULT_WIDTH = 120
"""Width in characters where stderr is no terminal. Chosen: the tables fit, and logs stay readable."""


def _stderr() -> Console:
    return console_for(sys.stderr)


def console_for(stream: TextIO, width: int = _DEFAULT_WIDTH) -> Console:
    """Make a console as wide as the terminal or COLUMNS; without either, of this width."""
    from rich.console import Console  # takes 20 ms, and quiet commands print nothing

    columns = os.environ.get("COLUMNS", "")
    is_stated = columns.isdecimal() and int(columns) >= _MIN_WIDTH
    has_width = is_stated or (stream.isatty() and not columns)
    if has_width:
        return Console(file=stream, highlight=False)
    # with a height too, Rich does not look at COLUMNS again, which may be no number
    return Console(file=stream, highlight=False, width=width, height=_HEIGHT)


def _plain(text: str, style: str = "") -> Text:
    """Text in which nothing is markup."""
    from rich.text import Text

    return Text(text, style)


def _table(**look: Any) -> Table:
    from rich.table import Table

    return Table(box=None, **look)


def announce_compilation() -> None:
    """Print one line if loops must be compiled: that this happens once, and then how many were; start to compile others."""
    from chopper_interop.arrays import compiled

    def show(count: int) -> None:
        if count == compiled.FEW:
            from chopper_interop.commands import compilers

            _show_compilation()
            compilers.start()
        progress.count("compiling, once", count, "loops")

    compiled.announce_compilation(show)


def _show_compilation() -> None:
    from chopper_interop.arrays import code_files

    text = "compiling loops not used on this machine before: up to a minute, once"
    folder = code_files.cache_folder()
    if folder is None:
        text = "compiling loops, up to a minute at each run: no cache folder can be written (XDG_CACHE_HOME)"
    elif folder.name != code_files.FOLDER:
        text += f"; the result is kept in {folder}, as the home folder cannot be written"
    _stderr().print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)


def show_inventory(inventory: Inventory, *, quiet: bool) -> None:
    """Print the recognised files with their formats, and the skipped files with the reasons."""
    if quiet:
        return
    table = new_table("source", "format")
    shorten = _path_shortener(
        [s.first for s in inventory.sources] + [p for p, _ in inventory.skipped]
    )
    for source in inventory.sources:
        table.add_row(escape(str(shorten(source.label))), source.converter.description)
    for path, reason in inventory.skipped[:_MAX_SKIPPED]:
        name = escape(shorten(str(path)))
        table.add_row(f"[dim]{name}[/dim]", f"[dim]skipped: {escape(reason)}[/dim]")
    more = len(inventory.skipped) - _MAX_SKIPPED
    if more > 0:
        table.add_row("[dim]…[/dim]", f"[dim]{_counted(more, 'more file')} skipped[/dim]")
    _stderr().print(table)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def show_formats_read(inventory: Inventory, *, quiet: bool) -> None:
    """Print the number of sources of each format in one line, and a line for each reason why files were skipped."""
    if quiet:
        return
    counts = Counter(source.converter.description for source in inventory.sources)
    parts = [f"{n} x {name}" if n > 1 else name for name, n in counts.items()]
    lines = [f"reading: {'; '.join(parts) or 'no files'}"]
    by_reason = grouped((reason, one_line(path.name)) for path, reason in inventory.skipped)
    reasons = list(by_reason.items())
    for reason, names in reasons[:_MAX_REASONS]:
        more = f" and {_counted(len(names) - 1, 'more file')}" if len(names) > 1 else ""
        lines.append(f"skipped: {names[0]}{more}: {reason}")
    if others := sum(len(names) for _, names in reasons[_MAX_REASONS:]):
        lines.append(
            f"skipped: {_counted(others, 'more file')}, for other reasons (chopper-convert lists them)"
        )
    for line in lines:
        _stderr().print(_plain(line, "dim"))


def show_reading(trace: Trace, issues: Iterable[Issue], *, on_loss: str, quiet: bool) -> None:
    """Print what was lost or assumed in reading and writing; if quiet, one line on losses."""
    if quiet:
        show_losses(issues, on_loss=on_loss)
        return
    show_issues(issues, on_loss=on_loss)
    _show_devices(trace.meta.device_matches, trace.meta.sources)
    _show_clocks(trace.meta.clocks, trace.meta.sources)


def show_warnings(trace: Trace, *, on_loss: str, quiet: bool) -> None:
    """Print as `show_reading` does, but only losses, assumptions and failures."""
    meta = trace.meta
    if quiet:
        show_losses(meta.issues, on_loss=on_loss)
        return
    remarks = [issue for issue in meta.issues if issue.severity is Severity.INFO]
    show_issues([issue for issue in meta.issues if issue not in remarks], on_loss=on_loss)
    assumed = [match for match in meta.device_matches if _is_assumed(match)]
    _show_devices(assumed, meta.sources)
    _show_clocks([fit for fit in meta.clocks if _is_unverified(fit)], meta.sources)
    if remarks:  # not how many: analyses that look at few annotations have fewer
        text = "for remarks on how the input was read: chopper-analyze --json, without names of analyses"
        _stderr().print(_plain(text, "dim"))


def _is_unverified(fit: ClockFit) -> bool:
    """True if a clock's relation was assumed, or if there is none to the other clocks."""
    is_related = fit.applied or fit.pairs or fit.reason == hosts.REFERENCE
    return fit.method in relations.ASSUMED or not is_related


def _is_assumed(match: DeviceMatch) -> bool:
    return match.known_by.startswith("assumed")


def show_losses(issues: Iterable[Issue], *, on_loss: str) -> None:
    """Print one line on losses; none if losses are errors, as the error message has it."""
    losses = pipeline.loss_summary(_reported(issues, on_loss))
    if losses and on_loss != "error":
        print(losses, file=sys.stderr)


def show_issues(issues: Iterable[Issue], *, on_loss: str) -> None:
    """Print each kind of fault: errors and losses whole, notes in one line each."""
    reported = _reported(issues, on_loss)
    notes = [issue for issue in reported if issue.severity is Severity.INFO]
    _show_kinds([issue for issue in reported if issue not in notes], is_whole=True)
    _show_kinds(notes, is_whole=False)
    if notes:
        _stderr().print(_plain("chopper-analyze RUN/ --json has these notes whole", "dim"))


def _show_kinds(issues: list[Issue], *, is_whole: bool) -> None:
    """Print a row for each kind of fault, whole or in one line, which begins with its code."""
    if not issues:
        return
    table = new_table("", "count", "meaning", "example")
    table.expand = not is_whole
    for column, ratio in () if is_whole else zip(table.columns[2:], (2, 1), strict=True):
        column.no_wrap, column.overflow, column.ratio = True, "ellipsis", ratio
    for code, group in by_key(issues, lambda issue: issue.code).items():
        first = group[0]
        style = _STYLES[first.severity]
        count = f"{sum(i.count for i in group):,}"
        example = next((i.example for i in group if i.example), "")
        meaning = escape(first.meaning)
        text = f"{meaning} [dim]({code})[/dim]" if is_whole else f"{code}: [dim]{meaning}[/dim]"
        table.add_row(f"[{style}]{first.severity.value}[/{style}]", count, text, escape(example))
    _stderr().print(table)


def _reported(issues: Iterable[Issue], on_loss: str) -> list[Issue]:
    """Sort issues by severity; where losses are to be ignored, keep only errors."""
    by_severity = sorted(issues, key=lambda i: (_SEVERITIES.index(i.severity), i.code))
    return [i for i in by_severity if on_loss != "ignore" or i.severity is Severity.ERROR]


def show_written(trace: Trace, targets: Iterable[WriteTarget]) -> None:
    """Print the size of the trace and the outputs written."""
    console = _stderr()
    _show_coverage(trace, console)
    ranks = len(trace.ranks)
    graph = trace.graph()
    console.print(
        f"{trace.nodes.num_rows:,} nodes, {len(graph.after):,} edges "
        f"({trace.edges.num_rows:,} {EDGES_APART}), "
        f"{trace.samples.num_rows:,} samples of {ranks} rank{'s' if ranks != 1 else ''} "
        f"→ {escape(', '.join(map(_place, targets)))}"
    )
    for group, counts in _edge_counts(graph).items():
        console.print(f"{group} edges: {counts}")
    for target in targets:
        usage = "" if target.url else _usage(trace, target)
        if usage:
            console.print(_plain(one_line(usage)), soft_wrap=True)


def _usage(trace: Trace, target: WriteTarget) -> str:
    """Say how others take an output, which is complete even if a plug-in fails to say that."""
    try:
        return target.converter.usage_of(trace, Path(target.path))
    except PluginError as error:
        return str(error)


def _place(target: WriteTarget) -> str:
    """Name of an output, and number of its files if it is a folder."""
    path = Path(target.path)
    if target.url or not path.is_dir():
        return target.shown
    return f"{target.shown.rstrip('/')}/ (a folder of {_counted(len([*path.iterdir()]), 'file')})"


def _edge_counts(graph: Graph) -> dict[str, str]:
    """Edges by kind, dependencies separate from edges that only the times of this run suggest."""
    observed = {kind.name.lower() for kind in OBSERVED}
    lists: dict[str, list[str]] = {"fixed": [], "observed": []}
    for kind, count in graph.counts().items():
        lists["observed" if kind in observed else "fixed"].append(f"{count:,} {kind}")
    if graph.left_out:
        lists["left out"] = [
            f"{graph.left_out:,} (they would close a cycle, or nothing follows them)"
        ]
    return {group: ", ".join(counts) for group, counts in lists.items() if counts}


def _show_coverage(trace: Trace, console: Console) -> None:
    """Print the share of GPU time whose layer, phase and so on are known, as mean over ranks."""
    from chopper_interop.annotate.structure import coverage as structure_coverage

    shares = structure_coverage.coverage(trace)
    means = [f"{column} {percent(s.mean())}" for column, s in shares.items() if s.any()]
    if means:
        console.print(f"share of GPU time with a known: {', '.join(means)}")


def _show_devices(matches: Iterable[DeviceMatch], sources: Sequence[Source]) -> None:
    """Print which GPU of each source is which device of the job, and how that is known."""
    labels = _source_labels(sources)
    runs: list[list[DeviceMatch]] = []
    for match in sorted(matches, key=lambda m: (labels.get(m.source, ""), m.known_by, m.number)):
        if runs and _continues(runs[-1][-1], match, labels):
            runs[-1].append(match)
        else:
            runs.append([match])
    if not runs:
        return
    table = new_table("source", "GPUs there", "devices", "ranks", "matched by")
    for run in runs[:_MAX_ROWS]:
        first, last = run[0], run[-1]
        style = "[yellow]" if _is_assumed(first) else ""
        numbers = (
            (first.number, last.number),
            (first.device, last.device),
            (first.rank, last.rank),
        )
        shown = [str(a) if a == b else f"{a}-{b}" for a, b in numbers]
        ranks = shown[2] if first.rank >= 0 else ""
        label = labels.get(first.source, first.source)
        table.add_row(escape(label), shown[0], shown[1], ranks, style + first.known_by)
    if len(runs) > _MAX_ROWS:
        table.add_row("[dim]…[/dim]", f"[dim]{len(runs) - _MAX_ROWS} more[/dim]")
    _stderr().print(table)


def _show_clocks(clocks: Iterable[ClockFit], sources: Sequence[Source]) -> None:
    """Print how clocks were aligned, except for those that needed no alignment."""
    fits = [fit for fit in clocks if fit.method != relations.STATED]
    if not fits:
        return
    shorten = _path_shortener([Path(source.path) for source in sources])
    table = new_table("clock of", "was on", "known by", "offset", "drift", "±", "pairs", "")
    runs = [list(group) for _, group in groupby(fits, _clock_row_key)]
    for run in runs[:_MAX_ROWS]:
        fit = max(run, key=lambda fit: fit.uncertainty_ns)
        first, last = relations.rank_of(run[0]), relations.rank_of(run[-1])
        label = shorten(fit.of) if first < 0 else f"rank{'s' * (last > first)} {first}"
        style = "[yellow]" if fit.method in relations.ASSUMED else ""
        reason = fit.reason if fit.applied else f"not applied: {fit.reason}"
        numbers = (
            relations.duration_text(fit.offset_ns),
            relations.drift_text(fit),
            relations.duration_text(fit.uncertainty_ns) if fit.uncertainty_ns else "",
            f"{fit.pairs:,}" if fit.pairs else "",
        )
        label += f"-{last}" if last > first else ""
        table.add_row(escape(label), fit.clock, style + fit.method, *numbers, escape(reason))
    if len(runs) > _MAX_ROWS:
        table.add_row("[dim]…[/dim]", f"[dim]{len(runs) - _MAX_ROWS} more[/dim]")
    _stderr().print(table)


def _clock_row_key(fit: ClockFit) -> tuple[Any, ...]:
    """Key that is equal for ranks shown in one line; any other clock has a line of its own."""
    if relations.rank_of(fit) < 0 or (fit.applied and fit.offset_ns):
        return (fit.of,)
    return fit.clock, fit.method, fit.applied, fit.reason.partition(",")[0]


def _source_labels(sources: Sequence[Source]) -> dict[str, str]:
    """Label of each source: its format, or its path where several sources share a format."""
    paths = grouped((source.format, source.path) for source in sources)
    shorten = _path_shortener([Path(source.path) for source in sources])
    return {
        path: name if len(group) == 1 or name.startswith("roc") else shorten(path)
        for name, group in paths.items()
        for path in group
    }


def _continues(before: DeviceMatch, match: DeviceMatch, labels: dict[str, str]) -> bool:
    """True if one row can show both: GPU, device and rank are the same, or all one higher."""
    if labels.get(before.source) != labels.get(match.source) or before.known_by != match.known_by:
        return False
    steps = {
        match.number - before.number,
        match.device - before.device,
        match.rank - before.rank if match.rank >= 0 else match.number - before.number,
    }
    return steps in ({0}, {1})


def _path_shortener(paths: list[Path]) -> Callable[[str], str]:
    """Return a function that removes the folder that all these paths lie in from a path.

    It removes nothing if there is one path only, or if paths are on several drives, or some of
    them are absolute and others relative.
    """
    if len(paths) < 2 or len({path.anchor for path in paths}) > 1:  # noqa: PLR2004
        return str
    common = os.path.commonpath([path.parent for path in paths])
    return lambda text: text.removeprefix(common).lstrip("/\\") or text


_SEVERITIES = (Severity.ERROR, Severity.LOSS, Severity.INFO)
_STYLES = {Severity.ERROR: "bold red", Severity.LOSS: "yellow", Severity.INFO: "dim"}


def show_formats() -> None:
    """Print all formats with their contents and options, on stdout."""
    console = console_for(sys.stdout)
    for name, converter in registry.converters().items():
        if isinstance(converter, registry.Broken):
            reason = escape(converter.reason)
            console.print(f"[bold]{escape(name)}[/bold]  does not load: {reason}\n")
            continue
        console.print(f"[bold]{escape(name)}[/bold]  {escape(converter.description)}")
        table = _table(show_header=False, padding=(0, 0, 0, 2))
        table.add_column(min_width=20)
        for label, text in _format_details(converter).items():
            table.add_row(label, escape(text))
        console.print(table)
    console.print("[bold]reading any format[/bold]")
    for option, text in registry.READING_OPTIONS.items():
        console.print(f"-O {option}=…  {escape(text)}")


def _format_details(converter: registry.Converter) -> dict[str, str]:
    """Directions, versions, contents and options of a format, with their labels."""
    if converter.read is None and converter.write is None:
        return {"not read": converter.not_read_because}
    directions = ["read"] if converter.read else []
    directions += [f"written to {' '.join(converter.suffixes)}"] if converter.write else []
    details = {"is": ", ".join(directions), "versions": converter.versions}
    details["contents"] = converter.carries
    try:
        functions = [converter.reader] if converter.read else []
        functions += [converter.writer] if converter.write else []
    except UnknownFormatError as error:
        return {"does not work": str(error)}
    for function in functions:
        for option, text in registry.option_texts(function).items():
            details[f"-O {option}"] = text
    return {label: text for label, text in details.items() if text}


def show_findings(findings: Any, job: Path | None, *, quiet: bool) -> None:
    """Print the findings of ``chopper-check`` on stdout, under the path of the job if it is one of several."""
    if quiet:
        return
    console = console_for(sys.stdout)
    if job is not None:
        console.print(_plain(one_line(f"{job}:")), soft_wrap=True)
    for finding in findings.by_text:
        console.print(_plain(one_line(f"{finding.label}: {finding}")), soft_wrap=True)
    for line in findings.verdict.split("\n"):
        console.print(_plain(one_line(line)), soft_wrap=True)


def new_table(*columns: str) -> Table:
    """Make a table without lines, numbers aligned to the right."""
    table = _table(pad_edge=False, header_style="bold")
    for column in columns:
        right = column == "count" or column.endswith(("_ns", "_share", "_mhz"))
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    return table


@contextmanager
def show_progress(*, quiet: bool) -> Iterator[None]:
    """Show progress bars on stderr in a ``with`` block; nothing if stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
        console=_stderr(),
        transient=True,
    )
    with bars, progress.reporting(_ProgressBars(bars)):
        yield


class _ProgressBars:
    """Progress reports shown as bars of rich."""

    def __init__(self, bars: Any) -> None:
        self.bars = bars
        self.tasks: dict[str, tuple[Any, str]] = {}

    def start(self, task: str, total: int | None, unit: str) -> None:
        """Add the bar of a task."""
        self.tasks[task] = (self.bars.add_task(task, total=total, done=""), unit)

    def count(self, task: str, done: int, unit: str) -> None:
        """Show what is done of a task without a bar that ends."""
        if task not in self.tasks:
            self.start(task, None, unit)
        self.bars.update(self.tasks[task][0], completed=done, done=f"{done:,} {unit}")

    def advance(self, task: str, amount: int) -> None:
        """Advance the bar of a task."""
        number, unit = self.tasks[task]
        self.bars.advance(number, amount)
        done = self.bars.tasks[number].completed
        text = f"{done / 1e6:,.1f} MB" if unit == "bytes" else f"{done:,.0f} {unit}"
        self.bars.update(number, done=text)
