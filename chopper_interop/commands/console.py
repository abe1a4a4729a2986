"""Tables and progress on the terminal; everything but results goes to stderr."""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from chopper_interop import pipeline, progress, registry
from chopper_interop.clocks import hosts, relations
from chopper_interop.issues import Severity
from chopper_interop.schemas.kinds import OBSERVED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from chopper_interop.graph import Graph
    from chopper_interop.issues import Issue
    from chopper_interop.schemas.meta import ClockFit, DeviceMatch, Source
    from chopper_interop.sources import Inventory
    from chopper_interop.trace import Trace

_SHOWN_SKIPS = 20
_SHOWN_MATCHES = 32
_NO_TERMINAL = 120


def _errors() -> Console:
    return console_of(sys.stderr)


def console_of(stream: TextIO, width: int = _NO_TERMINAL) -> Console:
    """As wide as the terminal or, where there is none, as COLUMNS says; else this wide."""
    told = stream.isatty() or "COLUMNS" in os.environ
    return Console(file=stream, highlight=False, width=None if told else width)


def show_first_run(*, quiet: bool) -> None:
    """Why it takes longer this time."""
    from chopper_interop.columns import compiled

    if not quiet and compiled.is_first_run():
        told = "first run: loops are compiled once for this machine, which takes 20 to 60 seconds"
        _errors().print(f"[dim]{told}[/dim]")


def show_inventory(inventory: Inventory, *, quiet: bool) -> None:
    """What was recognised, as what, and what was skipped and why."""
    if quiet:
        return
    table = table_of("source", "what it is")
    near = _common_folder(
        [s.paths[0] for s in inventory.sources] + [p for p, _ in inventory.skipped]
    )
    for source in inventory.sources:
        table.add_row(escape(str(near(source.label))), source.converter.description)
    for path, why in inventory.skipped[:_SHOWN_SKIPS]:
        table.add_row(f"[dim]{escape(near(str(path)))}[/dim]", f"[dim]skipped: {escape(why)}[/dim]")
    more = len(inventory.skipped) - _SHOWN_SKIPS
    if more > 0:
        table.add_row("[dim]…[/dim]", f"[dim]{more} more files skipped[/dim]")
    _errors().print(table)


def show_kinds(inventory: Inventory, *, quiet: bool) -> None:
    """How many sources of which format there are, and how many files were skipped."""
    if quiet:
        return
    counts = Counter(source.converter.description for source in inventory.sources)
    told = [f"{n} of {what}" if n > 1 else what for what, n in counts.items()]
    told += [f"{len(inventory.skipped)} files skipped"] if inventory.skipped else []
    _errors().print(Text(f"read: {'; '.join(told)}", style="dim"))


def show_taken(trace: Trace, issues: Iterable[Issue], *, on_loss: str, quiet: bool) -> None:
    """What was lost or assumed in reading and writing; if quiet, what was lost in one line."""
    if quiet:
        show_lost(issues, on_loss=on_loss)
        return
    show_issues(issues, on_loss=on_loss)
    _show_devices(trace.meta.device_matches, trace.meta.sources)
    _show_clocks(trace.meta.clocks, trace.meta.sources)


def show_doubts(trace: Trace, *, on_loss: str, quiet: bool) -> None:
    """The same without what is sure: what was lost, and what was assumed or could not be done."""
    meta = trace.meta
    if quiet:
        show_lost(meta.issues, on_loss=on_loss)
        return
    sure = [issue for issue in meta.issues if issue.severity is Severity.INFO]
    show_issues([issue for issue in meta.issues if issue not in sure], on_loss=on_loss)
    assumed = [match for match in meta.device_matches if _is_assumed(match)]
    _show_devices(assumed, meta.sources)
    _show_clocks([fit for fit in meta.clocks if _is_doubtful(fit)], meta.sources)
    if sure:
        told = f"{len({issue.code for issue in sure})} kinds of remarks on what was read: chopper-convert"
        _errors().print(Text(f"{told} tells them", style="dim"))


def _is_doubtful(fit: ClockFit) -> bool:
    """Whether nobody vouches for it, or nothing related the clock to the others."""
    is_known = fit.applied or fit.pairs or fit.reason == hosts.REFERENCE
    return fit.method in relations.ASSUMED or not is_known


def _is_assumed(match: DeviceMatch) -> bool:
    return match.known_by.startswith("assumed")


def show_lost(issues: Iterable[Issue], *, on_loss: str) -> None:
    """What was lost, in one line; where losses are failures, their error says so."""
    lost = pipeline.lost(_that_count(issues, on_loss))
    if lost and on_loss != "error":
        print(lost, file=sys.stderr)


def show_issues(issues: Iterable[Issue], *, on_loss: str) -> None:
    """A line for each kind of fault."""
    counting = _that_count(issues, on_loss)
    if not counting:
        return
    table = table_of("", "count", "what", "for example")
    for code, same in _by_code(counting).items():
        first = same[0]
        style = _STYLES[first.severity]
        count = f"{sum(i.count for i in same):,}"
        example = next((i.example for i in same if i.example), "")
        table.add_row(f"[{style}]{first.severity.value}[/{style}]", count,
                      f"{escape(first.meaning)} [dim]({code})[/dim]", escape(example))  # fmt: skip
    _errors().print(table)


def _that_count(issues: Iterable[Issue], on_loss: str) -> list[Issue]:
    """Issues by severity; where losses are to be ignored, errors alone."""
    found = sorted(issues, key=lambda i: (_SEVERITIES.index(i.severity), i.code))
    return [i for i in found if on_loss != "ignore" or i.severity is Severity.ERROR]


def show_written(trace: Trace, outputs: list[str]) -> None:
    """What was made."""
    console = _errors()
    _show_coverage(trace, console)
    ranks = len(trace.ranks)
    graph = trace.graph()
    console.print(
        f"{trace.nodes.num_rows:,} nodes, {len(graph.after):,} edges, "
        f"{trace.samples.num_rows:,} samples of {ranks} rank{'s' if ranks != 1 else ''} "
        f"→ {', '.join(outputs)}"
    )
    for what, kinds in _edges(graph).items():
        console.print(f"{what} edges: {kinds}")


def _edges(graph: Graph) -> dict[str, str]:
    """Edges by kind, dependencies apart from those that only the times of this run suggest."""
    seen = {kind.name.lower() for kind in OBSERVED}
    lists: dict[str, list[str]] = {"fixed": [], "observed": []}
    for kind, count in graph.counts().items():
        lists["observed" if kind in seen else "fixed"].append(f"{count:,} {kind}")
    if graph.left_out:
        lists["left out"] = [f"{graph.left_out:,}, that close circles or that nothing follows"]
    return {what: ", ".join(kinds) for what, kinds in lists.items() if kinds}


def _show_coverage(trace: Trace, console: Console) -> None:
    """Of what share of GPU time it is known what of the training step it is, mean of the ranks."""
    from chopper_interop.structure import coverage as structure_coverage

    shares: dict[str, list[float]] = {}
    for row in structure_coverage.coverage(trace).to_pylist():
        if row["gpu_time_share"] is not None:
            shares.setdefault(row["column"], []).append(row["gpu_time_share"])
    told = [f"{column} {sum(s) / len(s):.1%}" for column, s in shares.items() if any(s)]
    if told:
        console.print(f"GPU time that is known by: {', '.join(told)}")


def _show_devices(matches: Iterable[DeviceMatch], sources: Sequence[Source]) -> None:
    """Which GPU of one source was taken for which of the job, and what told it."""
    formats = _labels(sources)
    runs: list[list[DeviceMatch]] = []
    for match in sorted(matches, key=lambda m: (formats.get(m.source, ""), m.known_by, m.number)):
        if runs and _continues(runs[-1][-1], match, formats):
            runs[-1].append(match)
        else:
            runs.append([match])
    if not runs:
        return
    table = table_of("source", "its GPUs", "are devices", "of ranks", "known by")
    for run in runs[:_SHOWN_MATCHES]:
        first, last = run[0], run[-1]
        style = "[yellow]" if _is_assumed(first) else ""
        numbers = (
            (first.number, last.number),
            (first.device, last.device),
            (first.rank, last.rank),
        )
        shown = [str(a) if a == b else f"{a}-{b}" for a, b in numbers]
        ranks = shown[2] if first.rank >= 0 else ""
        what = formats.get(first.source, first.source)
        table.add_row(escape(what), shown[0], shown[1], ranks, style + first.known_by)
    if len(runs) > _SHOWN_MATCHES:
        table.add_row("[dim]…[/dim]", f"[dim]{len(runs) - _SHOWN_MATCHES} more[/dim]")
    _errors().print(table)


def _show_clocks(known: Iterable[ClockFit], sources: Sequence[Source]) -> None:
    """How clocks were brought together, but for those that needed nothing."""
    fits = [fit for fit in known if fit.method != relations.STATED]
    if not fits:
        return
    near = _common_folder([Path(source.path) for source in sources])
    table = table_of("clock of", "was on", "known by", "offset", "drift", "±", "pairs", "")
    runs = [list(same) for _, same in groupby(fits, _alike)]
    for run in runs[:_SHOWN_MATCHES]:
        fit = max(run, key=lambda one: one.uncertainty_ns)
        first, last = relations.rank_of(run[0]), relations.rank_of(run[-1])
        of = near(fit.of) if first < 0 else f"rank{'s' * (last > first)} {first}"
        style = "[yellow]" if fit.method in relations.ASSUMED else ""
        about = fit.reason if fit.applied else f"not applied: {fit.reason}"
        numbers = (
            relations.duration(fit.offset_ns),
            relations.drift(fit),
            relations.duration(fit.uncertainty_ns) if fit.uncertainty_ns else "",
            f"{fit.pairs:,}" if fit.pairs else "",
        )
        of += f"-{last}" if last > first else ""
        table.add_row(escape(of), fit.clock, style + fit.method, *numbers, escape(about))
    if len(runs) > _SHOWN_MATCHES:
        table.add_row("[dim]…[/dim]", f"[dim]{len(runs) - _SHOWN_MATCHES} more[/dim]")
    _errors().print(table)


def _alike(fit: ClockFit) -> tuple[Any, ...]:
    """What ranks have in common that stand in one line: the same fate; others stand alone."""
    if relations.rank_of(fit) < 0 or (fit.applied and fit.offset_ns):
        return (fit.of,)
    return fit.clock, fit.method, fit.applied, fit.reason.partition(",")[0]


def _labels(sources: Sequence[Source]) -> dict[str, str]:
    """What to call each source: its format or, where that may be of several nodes, its path."""
    paths: dict[str, list[str]] = {}
    for source in sources:
        paths.setdefault(source.format, []).append(source.path)
    near = _common_folder([Path(source.path) for source in sources])
    return {
        path: what if len(same) == 1 or what.startswith("roc") else near(path)
        for what, same in paths.items()
        for path in same
    }


def _continues(before: DeviceMatch, match: DeviceMatch, formats: dict[str, str]) -> bool:
    """Whether a line of the table can show both: all that differs is the same or one higher."""
    if formats.get(before.source) != formats.get(match.source) or before.known_by != match.known_by:
        return False
    steps = {
        match.number - before.number,
        match.device - before.device,
        match.rank - before.rank if match.rank >= 0 else match.number - before.number,
    }
    return steps in ({0}, {1})


def _common_folder(paths: list[Path]) -> Callable[[str], str]:
    """What shortens paths by the folder that all of them lie in.

    One path has none in common, nor have full and relative paths together, or drives.
    """
    if len(paths) < 2 or len({path.anchor for path in paths}) > 1:  # noqa: PLR2004
        return str
    common = os.path.commonpath([path.parent for path in paths])
    return lambda text: text.removeprefix(common).lstrip("/\\") or text


_SEVERITIES = (Severity.ERROR, Severity.LOSS, Severity.INFO)
_STYLES = {Severity.ERROR: "bold red", Severity.LOSS: "yellow", Severity.INFO: "dim"}


def _by_code(issues: list[Issue]) -> dict[str, list[Issue]]:
    groups: dict[str, list[Issue]] = {}
    for issue in issues:
        groups.setdefault(issue.code, []).append(issue)
    return groups


def show_formats() -> None:
    """All formats: what they are, what is taken over, and their options, on stdout."""
    console = console_of(sys.stdout)
    for name, found in registry.converters().items():
        if isinstance(found, registry.Broken):
            console.print(f"[bold]{escape(name)}[/bold]  does not load: {escape(found.reason)}\n")
            continue
        console.print(f"[bold]{escape(name)}[/bold]  {escape(found.description)}")
        table = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
        table.add_column(min_width=20)
        for what, text in _about(found).items():
            table.add_row(what, escape(text))
        console.print(table)


def _about(found: registry.Converter) -> dict[str, str]:
    """What there is to say of a format, in order."""
    if found.read is None and found.write is None:
        return {"left out": found.not_read_because}
    ways = ["read"] if found.read else []
    ways += [f"written to {' '.join(found.suffixes)}"] if found.write else []
    about = {"is": ", ".join(ways), "versions": found.versions, "holds": found.carries}
    for function in (found.read, found.write):
        for option, text in registry.option_texts(function).items() if function else ():
            about[f"-O {option}"] = text
    return {what: text for what, text in about.items() if text}


def show_findings(findings: Any, *, quiet: bool) -> None:
    """What a check found, on stdout."""
    if quiet:
        return
    console = console_of(sys.stdout)
    for finding in findings.found:
        console.print(Text(f"{'stops' if finding.stops else 'note'}: {finding}"), soft_wrap=True)
    console.print(Text(findings.verdict), soft_wrap=True)


def table_of(*columns: str) -> Table:
    """A table without lines; numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column == "count" or column.endswith(("_ns", "_share", "_mhz"))
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    return table


@contextmanager
def progress_shown(*, quiet: bool) -> Iterator[None]:
    """Bars on stderr while what is inside runs; nothing if stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
        console=_errors(),
        transient=True,
    )
    with bars, progress.reporting(_Bars(bars)):
        yield


class _Bars:
    """Reports progress to rich."""

    def __init__(self, bars: Any) -> None:
        self.bars = bars
        self.tasks: dict[str, tuple[Any, str]] = {}

    def start(self, task: str, total: int, unit: str) -> None:
        """Begin a task."""
        self.tasks[task] = (self.bars.add_task(task, total=total, done=""), unit)

    def advance(self, task: str, amount: int) -> None:
        """Note what is done of it."""
        number, unit = self.tasks[task]
        self.bars.advance(number, amount)
        done = self.bars.tasks[number].completed
        told = f"{done / 1e6:,.1f} MB" if unit == "bytes" else f"{done:,.0f} {unit}"
        self.bars.update(number, done=told)
