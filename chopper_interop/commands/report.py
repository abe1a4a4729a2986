"""``--html`` and ``--figures`` of ``chopper-analyze``: a report, and pictures of its charts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop.commands.analysis_plan import COMPAT, DEFAULT, Outcome
from chopper_interop.errors import UsageError, one_line
from chopper_interop.io import outputs

if TYPE_CHECKING:
    import argparse

    from chopper_interop.run import Runs
    from chopper_interop.trace import Trace

_OF_ROWS = ("by", COMPAT)
"""Options that a report has values of its own for."""

_FILES = (".csv", ".json", ".png", ".svg", ".html")
"""Endings of files; a folder of such a name is more likely meant to be a file."""
_NAMED = 2
"""Charts without data that a line names. Chosen: the line fits a terminal; the page lists them all."""


def with_comparisons(args: argparse.Namespace, names: list[str]) -> list[str]:
    """Names of analyses, with those of several runs where a report is asked about runs and nothing else."""
    if not (args.html or args.figures) or not args.against or names != [DEFAULT]:
        return names
    is_one = len(args.against) == 1 and Path(args.against[0]).exists()
    return [*names, "sweep", *(["compare"] if is_one else [])]


def targets(args: argparse.Namespace) -> list[Path]:
    """Check what will be written besides the trace, before anything is read; return the paths of the report.

    Raises
    ------
    UsageError
        The plotting library is not installed, or a folder has the name of a file.
    WriteError
        An output cannot be written.
    """
    chosen = [Path(text).absolute() for text in (args.html, args.figures) if text]
    if chosen:
        from chopper_interop.plots import library

        library.require()
    for text, is_folder in ((args.html, False), (args.figures, True), (args.csv, True)):
        if text:
            if is_folder and text.lower().endswith(_FILES) and not Path(text).exists():
                raise UsageError(
                    f"{text}: name a folder, which gets a file for each table or chart"
                )
            outputs.require_writable(Path(text).absolute(), is_folder=is_folder)
    return chosen


def write(
    args: argparse.Namespace,
    trace: Trace,
    outcome: Outcome,
    *,
    against: Trace | None,
    runs: Runs,
    options: dict[str, Any],
) -> None:
    """Write what is wanted, print that on stderr, and add charts that failed to the outcome's failures."""
    from chopper_interop.analyses.methods.activity import warm_up
    from chopper_interop.report import figures, gather, page

    common = {name: value for name, value in options.items() if name not in _OF_ROWS}
    whole = warm_up.included(trace, options.get("ranks", "")).get(warm_up.NOTE)
    same = [r for r in outcome.results if not whole or r.notes.get(warm_up.NOTE) != whole]
    known = same if len(common) == len(options) else []
    job = gather.JobResults(trace, against, runs, common, {(r.analysis,): r for r in known})
    charts = gather.charts_of(job, for_page=not args.figures)
    if args.html:
        text = page.make_page(job, charts).encode()
        with outputs.file(Path(args.html)) as file:
            file.write(text)
        _say(args, f"report of {len(charts.drawn)} charts, {len(text) / 1e6:.1f} MB → {args.html}")
    if args.figures:
        count = figures.write(charts, Path(args.figures))
        _say(args, f"{count} charts as SVG and PNG → {args.figures}")
    outcome.failed |= charts.failed
    for needs, titles in charts.missing.items():
        others = len(titles) - _NAMED
        more = f" and {others} other charts" if others > 0 else ""
        _say(args, f"no data for {', '.join(titles[:_NAMED])}{more}: needs {needs}")


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.quiet and not args.json:
        print(one_line(text), file=sys.stderr)
