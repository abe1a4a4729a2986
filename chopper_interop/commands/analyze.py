"""``chopper-analyze``: arguments, input, and output of results."""

from __future__ import annotations

import codecs
import difflib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop.commands import common
from chopper_interop.errors import (
    ChopperError,
    TooLittleMemoryError,
    UnknownFormatError,
    UsageError,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection

    from chopper_interop.commands.analysis_plan import AnalysisPlan, Outcome
    from chopper_interop.commands.runs import RunFiles
    from chopper_interop.pipeline import WriteTarget
    from chopper_interop.sharing.stage import Sharing
    from chopper_interop.sources import Inventory
    from chopper_interop.trace import Trace

ROWS = 20
"""Rows of a table that are shown by default. Chosen: a table and its notes fit a terminal."""

_EXAMPLES = (
    "examples:\n"
    "  chopper-analyze RUN/                              why steps take so long, in 15 lines\n"
    "  chopper-analyze RUN/ findings                     what would save time, where it is\n"
    "  chopper-analyze RUN/ all                          all analyses\n"
    "  chopper-analyze RUN/ temporal --by rank,stream    one, with finer rows\n"
    "  chopper-analyze RUN/ critical_path -o job.pftrace show it in Perfetto\n"
    "  chopper-analyze RUN/ --html report.html           charts in one file\n"
    "  chopper-analyze RUN/ compare --against OLD_RUN/   what became slower\n"
    "  chopper-analyze RUN/ sweep --against 'RUNS/*'     many runs in one table\n"
    "  chopper-analyze RUN/ all --json > all.json        for programs: integer ns\n"
)
_COMMON_OPTIONS = {
    "by": "one row for each of these: job, rank, stream, iteration, phase, layer, operation, class, "
    "kernel, …; combine with commas (rank,phase)",
    "steps": "only these training steps: 10, 10-12, or each",
    "ranks": "only these ranks: 0,4-7",
    "compat": "use the definitions of another tool: hta, tracelens, …",
}
"""Options that many analyses take, with their help texts."""


def run(args: argparse.Namespace) -> int:
    """Run ``chopper-analyze`` and return its exit status."""
    from chopper_interop import pipeline
    from chopper_interop.arrays import spill
    from chopper_interop.commands import analysis_plan, console, report, result_files
    from chopper_interop.io import memory

    if args.list or args.schema:
        return _show_analyses(args)
    names, paths = _names_and_paths(args.analysis)
    names = report.with_comparisons(args, names)
    if args.rows < 0:
        raise UsageError(f"--rows {args.rows}: give a number of rows, or 0 for all")
    if args.against_run is not None and not args.against:
        raise UsageError("--against-run: there is no --against whose run it could be")
    options = common.parse_options(args.option)
    values = {name: getattr(args, name) for name in _COMMON_OPTIONS}
    common_options = {name: value for name, value in values.items() if value is not None}
    plan = analysis_plan.plan_analyses(names, options, common_options, against=bool(args.against))
    if args.output and names == [analysis_plan.DEFAULT]:
        raise UsageError(
            "-o: a summary has no results of single operations",
            hint="name analyses, such as critical_path, or all",
        )
    analysis_plan.check_options(plan)
    targets = [common.parse_output(text, args.to) for text in args.output]
    writers = [target.converter.writer for target in targets]
    _refuse_unknown(args, None, [*plan.functions, *writers])
    pages = report.targets(args)
    quiet = args.quiet or args.json
    sharing = common.sharing(args)
    args.sources = [str(path) for path in paths]
    jobs, runs = _find_jobs(args, paths, plan)
    inventories = [job.inventory for job in (*jobs, *runs)]
    pipeline.refuse_targets(targets, (s for job in inventories for s in job.sources))
    pipeline.refuse_overwriting(_input_files(inventories, []), pages)
    console.announce_compilation()
    memory.share_between_threads()
    with console.show_progress(quiet=quiet):
        _refuse_unknown(args, inventories, [*plan.functions, *writers])
        only = None if targets or pages else plan.looks_at
        trace, against = _read_jobs(args, jobs, plan, sharing, only)
        others = [run.run(options, args.on_loss, sharing, args.against_run) for run in runs]
        available = memory.available_bytes()
        outcome = analysis_plan.run_analyses(trace, plan, against, others)
        tables = result_files.csv_paths(outcome.results, args.csv) if args.csv else []
        outputs = [*(target.path for target in targets), *tables]
        pipeline.refuse_overwriting(_input_files(inventories, [trace, against]), outputs)
    with spill.scratch(available):
        _show(args, trace, outcome, plan)
        _write(args, trace, outcome, targets)
        if pages:
            report.write(
                args, trace, outcome, against=against, runs=others, options=options | common_options
            )
    for name, failed in outcome.failed.items():
        error = _with_amounts(failed, inventories, options, available)
        common.show_error("chopper-analyze", error, subject=name, debug=args.debug)
    pipeline.refuse_other_runs(trace.meta.issues, args.on_loss, done="results were shown")
    return next((error.exit_status for error in outcome.failed.values()), 0)


def _with_amounts(
    error: ChopperError, inventories: list[Inventory], options: dict[str, Any], available: int
) -> ChopperError:
    """Return the error of an analysis; if it lacked memory, with what the jobs need and which options bound it."""
    from chopper_interop import job_reading

    if not isinstance(error, TooLittleMemoryError):
        return error
    read = [source for inventory in inventories for source in inventory.sources]
    return job_reading.with_amounts(error, read, job_reading.Reading("", options), available)


def _names_and_paths(texts: list[str]) -> tuple[list[str], list[Path]]:
    """Separate names of analyses, none for all of them, from paths.

    A text that is neither raises `UnknownFormatError`.
    """
    from chopper_interop import registry, sources
    from chopper_interop.commands.analysis_plan import ALL, DEFAULT

    known = registry.analysis_names()
    names = list(dict.fromkeys(n for n in texts if n in known))
    paths = {n: sources.to_path(n) for n in texts if n not in (*names, ALL)}
    if not paths:
        raise UsageError("name the profiles to read", hint="see --help")
    for text, path in paths.items():
        if not path.exists() and text != "-" and not any(sign in text for sign in "/\\."):
            _refuse_name(text)
    if not names and ALL not in texts and DEFAULT in known:
        names = [DEFAULT]
    return ([] if ALL in texts else names), list(paths.values())


def _refuse_name(name: str) -> None:
    """Raise `UnknownFormatError` for a mistyped analysis or file, with names that are similar."""
    from chopper_interop import registry

    try:
        registry.analysis(name)
    except UnknownFormatError as error:
        message = f"there is neither a file or folder nor an analysis {name!r}"
        raise UnknownFormatError(message, hint=error.hint) from None


def _show_analyses(args: argparse.Namespace) -> int:
    from chopper_interop import registry
    from chopper_interop.commands import console_results, result_files

    for name in set(args.analysis).difference(registry.analysis_names()):
        if not (args.schema and Path(name).exists()):
            registry.analysis(name)  # raises, with similar names
    if args.schema:
        print(result_files.schema_json(ascii_only=_ascii_only()))
        return 0
    console_results.show_analyses(args.analysis)
    return 0


def _find_jobs(
    args: argparse.Namespace, paths: list[Path], plan: AnalysisPlan
) -> tuple[list[RunFiles], list[RunFiles]]:
    """Find the files of the job, of the job it is compared with if any, and of runs to compare.

    Returns
    -------
    jobs
        The job to analyse and, for analyses that compare two, the other.
    runs
        One for each path of ``--against``, for analyses that compare runs.
    """
    from chopper_interop import pipeline, sources
    from chopper_interop.commands import runs

    def find_job(paths: list[Path]) -> RunFiles:
        inventory = sources.find(paths, args.from_format)
        return runs.RunFiles(pipeline.job_name(*paths), str(paths[0]), inventory)

    other_paths = runs.expand_paths(args.against, paths)
    if plan.compares_only_runs and len(paths) == 1:
        jobs = [runs.find_run(paths[0], args.from_format)]
    else:
        jobs = [find_job(paths)]
    if plan.compares_two and other_paths:
        jobs.append(find_job(other_paths))
    run_paths = other_paths if plan.compares_runs else []
    return jobs, [runs.find_run(path, args.from_format) for path in run_paths]


def _input_files(inventories: list[Inventory], traces: list[Trace | None]) -> list[Path]:
    """List all files read, and those that traces written earlier were made of."""
    from chopper_interop import pipeline

    read = [path for job in inventories for source in job.sources for path in source.recorded]
    earlier = [path for trace in traces if trace for path in pipeline.input_files(trace)]
    return [*read, *earlier]


def _refuse_unknown(
    args: argparse.Namespace, inventories: list[Inventory] | None, functions: list[Any]
) -> None:
    """Raise `UsageError` for an option that no reader of the sources, or of any, and none of the functions takes."""
    from chopper_interop import registry

    options = common.parse_options(args.option)
    unknown = {name: options[name] for name in registry.unknown_reading_options(functions, options)}
    if not unknown:
        return
    if inventories is None:
        readers = registry.readers()
    else:
        readers = [s.converter.reader for job in inventories for s in job.sources]
    for option in registry.unknown_reading_options(readers, unknown):
        known = {name for function in functions for name in registry.options(function)}
        near = difflib.get_close_matches(option, known, 1)
        raise UsageError(
            f"-O {option}: no input, analysis or output has such an option",
            hint=registry.reading_values(option) or (f"did you mean {near[0]}?" if near else None),
        )


def _read_jobs(
    args: argparse.Namespace,
    jobs: list[RunFiles],
    plan: AnalysisPlan,
    sharing: Sharing,
    only: Collection[str] | None,
) -> tuple[Trace, Trace | None]:
    """Read the job to analyse and, if there is one, the job that it is compared with; `only` is that of `Reading`."""
    from chopper_interop import job_reading, pipeline
    from chopper_interop.commands import console, runs

    options = common.parse_options(args.option)
    quiet = args.quiet or args.json
    traces: list[Trace] = []
    for job in jobs:
        console.show_formats_read(job.inventory, quiet=quiet)
        try:
            if traces:
                trace = job.read_compared(options, sharing, args.against_run)
            else:
                chosen = runs.reader_options(job.inventory, options)
                rules = (args.map_device, args.clock_offset, args.run)
                name = sharing.run_name(job.name)
                looked_at = only is None or plan.looks_at_arguments
                reading = job_reading.Reading(
                    name, chosen, *rules, sharing, only, arguments=looked_at
                )
                trace = job_reading.read_inventory(job.inventory, reading)
        except ChopperError as error:
            if not plan.compares_only_runs or isinstance(error, UsageError):
                raise
            reason = sharing.reason(error)  # its row of the result says why
            trace = job_reading.empty_trace(sharing.run_name(job.name), reason)
        traces.append(trace)
        pipeline.refuse_losses(trace.meta.issues, args.on_loss)
        console.show_warnings(trace, on_loss=args.on_loss, quiet=quiet)
    return traces[0], traces[1] if len(traces) > 1 else None


def _ascii_only() -> bool:
    """True if stdout cannot take every character of Unicode, so that JSON must escape them."""
    return codecs.lookup(sys.stdout.encoding or "ascii").name != "utf-8"


def _show(args: argparse.Namespace, trace: Trace, outcome: Outcome, plan: AnalysisPlan) -> None:
    from chopper_interop.analyses.methods.findings import missing
    from chopper_interop.commands import console_results, result_files
    from chopper_interop.commands.analysis_plan import DEFAULT

    if args.csv:
        result_files.write_csv(outcome.results, Path(args.csv))
    if args.json:
        print(result_files.to_json(outcome.results, ascii_only=_ascii_only()))
    elif not args.csv:
        shown = outcome.results
        if not plan.named:
            shown, empty = console_results.answered(shown)
            shown.sort(key=lambda result: result.analysis != DEFAULT)
            outcome.skipped |= empty
        console_results.show(
            shown,
            max_rows=min(args.rows, sys.maxsize) or None,
            definitions=args.definitions,
            compat=args.compat or "",
            source="RUN/" if common.anonymise(args) else _source_words(args),
            record=missing.by_analysis(trace),
        )
        if outcome.results and not (args.definitions or args.quiet):
            console_results.show_definitions_hint()
    if not args.quiet and not args.json:
        console_results.show_skipped(plan.skipped | outcome.skipped)


def _source_words(args: argparse.Namespace) -> str:
    """Words of a command that reads the same: sources, and the options without which they are another job."""
    words = list(args.sources)
    for option in ("from_format", "run", "map_device", "clock_offset"):
        given = getattr(args, option)
        name = "--" + option.removesuffix("_format").replace("_", "-")
        words += [
            f"{name}={value}" for value in ([given] if isinstance(given, str) else given or ())
        ]
    return shlex.join(words)


def _write(
    args: argparse.Namespace, trace: Trace, outcome: Outcome, targets: list[WriteTarget]
) -> None:
    from chopper_interop import pipeline
    from chopper_interop.commands import console
    from chopper_interop.issues import IssueLog

    if not targets:
        return
    issues = IssueLog()
    with console.show_progress(quiet=args.quiet):
        annotated = outcome.annotate(trace)
        issues.extend(pipeline.write_all(annotated, targets, common.parse_options(args.option)))
    if args.quiet:
        console.show_losses(issues, on_loss=args.on_loss)
    else:
        console.show_issues(issues, on_loss=args.on_loss)
        console.show_written(trace, targets)
    pipeline.refuse_losses(issues, args.on_loss)


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of ``chopper-analyze``."""
    parser = common.base_parser(
        "chopper-analyze",
        "Analyse the profiles of a job. Without the name of an analysis, print a summary.",
        _EXAMPLES,
    )
    parser.add_argument(
        "analysis",
        nargs="*",
        metavar="SOURCE|ANALYSIS",
        help="files and folders of one job; names of analyses (see --list), or all",
    )
    parser.add_argument(
        "--list", action="store_true", help="list all analyses, or those named, with their options"
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of --json")
    for name, text in _COMMON_OPTIONS.items():
        parser.add_argument(f"--{name}", help=text)
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="SOURCE",
        help="another job to compare with, or a quoted pattern of several ('RUNS/*'); repeatable: "
        "sweep takes each as a run of its own, other analyses take all of them as one job",
    )
    parser.add_argument(
        "--against-run",
        metavar="N|all",
        help="as --run, of each job that is compared with",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument(
        "--csv",
        metavar="DIR",
        help="write a CSV file for each analysis, and summary.json, in place of those of an earlier run",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write a report: one file with charts, that opens offline"
    )
    parser.add_argument(
        "--figures", metavar="DIR", help="write the charts of the report as SVG and PNG"
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=ROWS,
        metavar="N",
        help=f"show N rows of each table, 0 for all (default: {ROWS})",
    )
    parser.add_argument(
        "--definitions",
        action="store_true",
        help="print the definitions of the figures below each table",
    )
    common.add_conversion_options(
        parser,
        output="file or folder to write the trace to, with the results for each node; repeatable",
        option="an option of an analysis, reader or writer; repeatable",
    )
    return parser
