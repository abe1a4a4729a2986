"""``chopper-analyze``: which analyses are asked of what, and where their answers go."""

from __future__ import annotations

import codecs
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop.commands import common
from chopper_interop.errors import ChopperError, UnknownFormatError, UsageError

if TYPE_CHECKING:
    import argparse

    from chopper_interop.commands.asking import Answers, Question
    from chopper_interop.commands.runs import Found
    from chopper_interop.registry import Converter
    from chopper_interop.sources import Inventory
    from chopper_interop.trace import Trace

ROWS = 20
"""So many rows of a table are shown unless --rows says otherwise."""

_EXAMPLES = (
    "examples:\n"
    "  chopper-analyze RUN/                              everything that can be told\n"
    "  chopper-analyze RUN/ temporal --by rank,stream    one analysis, finer\n"
    "  chopper-analyze RUN/ critical_path -o job.pftrace see it in Perfetto\n"
    "  chopper-analyze RUN/ compare --against OLD_RUN/   what got slower\n"
    "  chopper-analyze RUN/ sweep --against 'RUNS/*'     many runs in one table\n"
    "  chopper-analyze RUN/ --json > all.json            exact integer ns, for programs\n"
)
_SUGAR = {
    "by": "rows for each of these: job, rank, stream, iteration, phase, layer, operation, class, "
    "kernel, …, joined by commas (rank,phase)",
    "steps": "only these training steps: 10, 10-12, or each",
    "ranks": "only these ranks: 0,4-7",
    "compat": "the definitions of another tool: hta, tracelens, …",
}
"""Options that many analyses take, and what is said of them."""


def run(given: argparse.Namespace) -> int:
    """Run ``chopper-analyze``; its exit status."""
    from chopper_interop import pipeline
    from chopper_interop.commands import asking, console, console_results

    if given.list or given.schema:
        return _about(given)
    names, paths = _names_and_paths(given.analysis)
    if given.rows < 0:
        raise UsageError(f"--rows {given.rows}: it is a number of rows, 0 for all")
    options = common.options(given.option)
    sugar = {name: getattr(given, name) for name in _SUGAR if getattr(given, name) is not None}
    question = asking.question(names, options, sugar, against=bool(given.against))
    outputs = [common.output(text, given.to) for text in given.output]
    writers = [pipeline.writer(path, name) for path, name in outputs]
    quiet = given.quiet or given.json
    jobs, others = _jobs(given, paths, question)
    console.show_first_run(quiet=quiet)
    with console.progress_shown(quiet=quiet):
        _refuse_unknown(given, jobs, others, [*question.functions, *(w.writer for w in writers)])
        trace, against = _read(given, jobs, question)
        runs = [other.run(options, given.on_loss) for other in others]
        answers = asking.ask(trace, question, against, runs)
        written = [path for path, _ in outputs]
        tables = console_results.csv_paths(answers.results, given.csv) if given.csv else []
        read = [*jobs, *((other.name, other.inventory) for other in others)]
        pipeline.refuse_sources(_files(read, [trace, against]), [*written, *tables])
        _refuse_folders(read, written, writers)
    _show(given, answers, question)
    _write(given, answers.annotated(trace), written, writers)
    for name, error in answers.failed.items():
        print(f"chopper-analyze: error: {name}: {error}", file=sys.stderr)
    return next((error.exit_status for error in answers.failed.values()), 0)


def _names_and_paths(given: list[str]) -> tuple[list[str], list[Path]]:
    from chopper_interop import registry

    names = list(dict.fromkeys(n for n in given if n in registry.analyses()))
    paths = [Path(n) for n in given if n not in names]
    if not paths:
        raise UsageError("say what to read", hint="see --help")
    for path in paths:
        if not path.exists() and not any(sign in str(path) for sign in "/\\."):
            _say_what_it_may_be(str(path))
    return names, paths


def _say_what_it_may_be(name: str) -> None:
    """Raise `UnknownFormatError` for a name of nothing: a mistyped analysis, or file."""
    from chopper_interop import registry

    try:
        registry.analysis(name)
    except UnknownFormatError as error:
        what = f"there is neither a file or folder nor an analysis {name!r}"
        raise UnknownFormatError(what, hint=error.hint) from None


def _about(given: argparse.Namespace) -> int:
    from chopper_interop import registry
    from chopper_interop.commands import console_results

    if given.schema:
        print(console_results.schema_json(ascii_only=_ascii_only()))
        return 0
    for name in set(given.analysis) - registry.analyses().keys():
        registry.analysis(name)  # says what there is
    console_results.show_analyses(given.analysis)
    return 0


def _jobs(
    given: argparse.Namespace, paths: list[Path], question: Question
) -> tuple[list[tuple[str, Inventory]], list[Found]]:
    """Name and files of the job that is asked about and of the one it is compared with, if any.

    And the runs that it is compared with, if they are many.
    """
    from chopper_interop import pipeline, sources
    from chopper_interop.commands import runs as cli_runs

    other_paths = cli_runs.paths_of(given.against, paths)
    if question.of_runs_alone and len(paths) == 1:
        asked = cli_runs.find(paths[0], given.from_format).inventory
    else:
        asked = sources.find(paths, given.from_format)
    jobs = [(pipeline.job_name(paths[0]), asked)]
    if question.of_two and other_paths:
        found = sources.find(other_paths, given.from_format)
        jobs.append((pipeline.job_name(other_paths[0]), found))
    of_runs = other_paths if question.of_runs else []
    return jobs, [cli_runs.find(path, given.from_format) for path in of_runs]


def _files(jobs: list[tuple[str, Inventory]], traces: list[Trace | None]) -> list[Path]:
    """All files that were read; a trace that was written before tells of what it was made of."""
    read = [path for _, job in jobs for source in job.sources for path in source.paths]
    told = [Path(source.path) for trace in traces if trace for source in trace.meta.sources]
    return [*read, *told]


def _refuse_folders(
    jobs: list[tuple[str, Inventory]], written: list[str], writers: list[Converter]
) -> None:
    """Raise `UsageError` if a folder that is read would be replaced by one of the same format."""
    sources = [source for _, job in jobs for source in job.sources]
    for path, writer in zip(written, writers, strict=True):
        same = [p for s in sources if s.converter.name == writer.name for p in s.paths]
        if any(Path(path).resolve() in file.resolve().parents for file in same):
            raise UsageError("it would be overwritten by what is made of it", path=path)


def _refuse_unknown(
    given: argparse.Namespace,
    jobs: list[tuple[str, Inventory]],
    others: list[Found],
    functions: list[Any],
) -> None:
    """Raise `UsageError` for an option that nothing takes."""
    from chopper_interop import registry

    inventories = [job for _, job in jobs] + [other.inventory for other in others]
    readers = [s.converter.reader for job in inventories for s in job.sources]
    options = common.options(given.option)
    for option in registry.unknown_options([*readers, *functions], options):
        raise UsageError(f"-O {option}: neither inputs, analyses nor outputs have such an option")


def _read(
    given: argparse.Namespace, jobs: list[tuple[str, Inventory]], question: Question
) -> tuple[Trace, Trace | None]:
    """The job that is asked about, and the one that it is compared with if there is one."""
    from chopper_interop import pipeline, registry
    from chopper_interop.commands import console

    options = common.options(given.option)
    quiet = given.quiet or given.json
    traces: list[Trace] = []
    for name, inventory in jobs:
        console.show_kinds(inventory, quiet=quiet)
        mine = [s.converter.reader for s in inventory.sources]
        unknown = registry.unknown_options(mine, options)
        reading = {n: v for n, v in options.items() if n not in unknown}
        rules = (given.map_device, given.clock_offset) if not traces else ((), ())
        try:
            trace = pipeline.read_inventory(inventory, name, reading, *rules)
        except ChopperError as error:
            if not question.of_runs_alone or isinstance(error, UsageError):
                raise
            trace = pipeline.nothing_of(name, error)  # a row that says why
        traces.append(trace)
        pipeline.refuse_losses(trace.meta.issues, given.on_loss)
        console.show_doubts(trace, on_loss=given.on_loss, quiet=quiet)
    return traces[0], traces[1] if len(traces) > 1 else None


def _ascii_only() -> bool:
    """Whether stdout takes less than JSON may hold."""
    return codecs.lookup(sys.stdout.encoding or "ascii").name != "utf-8"


def _show(given: argparse.Namespace, answers: Answers, question: Question) -> None:
    from chopper_interop.commands import console_results

    if given.csv:
        console_results.write_csv(answers.results, Path(given.csv))
    if given.json:
        print(console_results.as_json(answers.results, ascii_only=_ascii_only()))
    elif not given.csv:
        console_results.show(
            answers.results, most=given.rows or None, definitions=given.definitions
        )
        if answers.results and not (given.definitions or given.quiet):
            console_results.show_where_definitions_are()
    if not given.quiet and not given.json:
        console_results.show_left_out(question.left_out | answers.left_out)


def _write(
    given: argparse.Namespace, trace: Trace, paths: list[str], writers: list[Converter]
) -> None:
    from chopper_interop import pipeline
    from chopper_interop.commands import console
    from chopper_interop.issues import IssueLog

    if not paths:
        return
    options = common.options(given.option)
    issues = IssueLog()
    with console.progress_shown(quiet=given.quiet):
        for path, writer in zip(paths, writers, strict=True):
            chosen = common.options_for(writer.writer, options)
            issues.extend(pipeline.write(trace, path, to_format=writer.name, **chosen))
    if given.quiet:
        console.show_lost(issues, on_loss=given.on_loss)
    else:
        console.show_issues(issues, on_loss=given.on_loss)
        console.show_written(trace, paths)
    pipeline.refuse_losses(issues, given.on_loss)


def parser() -> argparse.ArgumentParser:
    """What ``chopper-analyze`` understands."""
    made = common.parser(
        "chopper-analyze",
        "Ask questions of the profiles of a job. Without the name of an analysis, all are run.",
        _EXAMPLES,
    )
    made.add_argument(
        "analysis",
        nargs="*",
        metavar="SOURCE|ANALYSIS",
        help="files and folders, all of them one job; analyses (--list tells which there are)",
    )
    made.add_argument(
        "--list", action="store_true", help="list analyses and their options, all or these"
    )
    made.add_argument("--schema", action="store_true", help="print the JSON schema of --json")
    for name, text in _SUGAR.items():
        made.add_argument(f"--{name}", help=text)
    made.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="SOURCE",
        help="another job to compare with, or a quoted pattern of such ('RUNS/*'); repeatable: to "
        "sweep each is a run of its own, to others all of them are one job",
    )
    made.add_argument("--json", action="store_true", help="one JSON object on stdout")
    made.add_argument("--csv", metavar="DIR", help="a CSV file for each analysis, and summary.json")
    made.add_argument(
        "--rows",
        type=int,
        default=ROWS,
        metavar="N",
        help=f"rows of a table shown, 0 for all ({ROWS})",
    )
    made.add_argument(
        "--definitions", action="store_true", help="what figures mean, below each table"
    )
    made.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="[FORMAT:]PATH",
        help="file or folder to write the trace to, with what was found out of each node; repeatable",
    )
    made.add_argument("--from", dest="from_format", help="format of all sources")
    made.add_argument("--to", help="format of all outputs, over their endings")
    made.add_argument(
        "-O",
        dest="option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of an analysis, reader or writer; may be given several times",
    )
    common.add_reading(made)
    return made
