"""The commands: ``chopper-convert``, ``chopper-analyze``, ``chopper-check``.

Nothing heavy is imported before the arguments are understood, so that help comes at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from chopper_interop import __version__
from chopper_interop.errors import ChopperError, UsageError
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chopper_interop.result import Result

INTERRUPTED = 130
"""Exit status after Ctrl-C, as of shells."""

_OPTION_HELP = "an option of a reader or writer; may be given several times"


def convert_command() -> NoReturn:
    """The process of ``chopper-convert``."""
    _leave(convert_main())


def analyze_command() -> NoReturn:
    """The process of ``chopper-analyze``."""
    _leave(analyze_main())


def check_command() -> NoReturn:
    """The process of ``chopper-check``."""
    _leave(check_main())


def _leave(status: int) -> NoReturn:
    """End at once: to take LLVM and Arrow down politely costs a fifth of a second."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError, ValueError):  # nobody listens, or it is closed
            stream.flush()
    os._exit(status)


def convert_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``chopper-convert``; its exit status."""
    return _guarded(_convert, _convert_parser(), arguments)


def analyze_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``chopper-analyze``; its exit status."""
    return _guarded(_analyze, _analyze_parser(), arguments)


def check_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``chopper-check``; its exit status."""
    return _guarded(_check, _check_parser(), arguments)


def _guarded(
    command: Callable[[argparse.Namespace], int],
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
) -> int:
    """Run a command; a fault is one line on stderr and an exit status, never a traceback."""
    given = parser.parse_intermixed_args(arguments)  # paths may stand among options
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return command(given)
    except ChopperError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        sys.stderr.close()
        return INTERRUPTED
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted, nothing half-written is left", file=sys.stderr)
        return INTERRUPTED


def _interrupt(_signal: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def _convert(given: argparse.Namespace) -> int:
    from chopper_interop import console, pipeline, sources

    options = _options(given.option)
    if given.formats:
        console.show_formats()
        return 0
    if given.demo:
        return _demo(given, options)
    if not given.source or not given.output:
        raise UsageError("say what to read and, with -o, what to write", hint="see --help")
    outputs = [_output(text, given.to) for text in given.output]
    writers = [pipeline.writer(path, name) for path, name in outputs]
    paths = [path for path, _ in outputs]
    inventory = sources.find([Path(p) for p in given.source], given.from_format)
    functions = [w.writer for w in writers]
    reading, writing = _split_options(options, inventory, functions)
    pipeline.refuse_sources([p for s in inventory.sources for p in s.paths], paths)
    console.show_inventory(inventory, quiet=given.quiet)
    console.show_first_run(quiet=given.quiet)
    with console.progress_shown(quiet=given.quiet):
        name = given.job or pipeline.job_name(Path(given.source[0]))
        trace = pipeline.read_inventory(
            inventory, name, reading, given.map_device, given.clock_offset
        )
        pipeline.refuse_losses(trace.meta.issues, given.on_loss)
        issues = IssueLog()
        issues.extend(trace.meta.issues)
        for path, writer in zip(paths, writers, strict=True):
            chosen = _options_for(writer.writer, writing)
            issues.extend(pipeline.write(trace, path, to_format=writer.name, **chosen))
    if not given.quiet:
        console.show_summary(trace, issues, paths, on_loss=given.on_loss)
    pipeline.refuse_losses(issues, given.on_loss)
    return 0


def _output(text: str, to_format: str | None) -> tuple[str, str | None]:
    """Path and format of an output, which may be told as FORMAT:PATH."""
    from chopper_interop import registry

    name, colon, path = text.partition(":")
    if not colon or not path or not re.fullmatch(r"[\w-]{2,}", name):  # or it is a drive
        return text, to_format
    if name not in registry.formats():
        raise UsageError(
            f"-o {text}: there is no format {name!r}",
            hint=f"--formats lists them; ./{text} is a path",
        )
    return path, name


def _demo(given: argparse.Namespace, options: dict[str, str]) -> int:
    from chopper_interop import registry
    from chopper_interop.demo import make_demo

    if given.source or given.output:
        raise UsageError("--demo makes a sample and converts nothing")
    for option in registry.unknown_options([make_demo], options):
        raise UsageError(f"the sample has no option {option!r}")
    made = make_demo(Path(given.demo), **registry.chosen_options(make_demo, options))
    if not given.quiet:
        print(
            f"A sample job lies in {made}. Next:\n"
            f"  chopper-convert {made} -o {made}/job.pftrace -o {made}/et/",
            file=sys.stderr,
        )
    return 0


def _analyze(given: argparse.Namespace) -> int:
    import json

    from chopper_interop import console, pipeline, registry, sources

    options = _options(given.option)
    names = [n for n in given.analysis if n in registry.analyses()]
    paths = [Path(n) for n in given.analysis if n not in names]
    if not paths:
        raise UsageError("say what to read", hint="see --help")
    for path in paths:
        if not path.exists():
            registry.analysis(str(path))  # says what there is, and what may have been meant
    functions = [registry.analysis(n) for n in names or registry.working_analyses()]
    inventory = sources.find(paths, given.from_format)
    reading, asking = _split_options(options, inventory, functions)
    console.show_inventory(inventory, quiet=given.quiet or given.json)
    console.show_first_run(quiet=given.quiet or given.json)
    with console.progress_shown(quiet=given.quiet or given.json):
        name = pipeline.job_name(paths[0])
        trace = pipeline.read_inventory(
            inventory, name, reading, given.map_device, given.clock_offset
        )
        pipeline.refuse_losses(trace.meta.issues, given.on_loss)
        results: list[Result] = [
            pipeline.analyze(trace, n, **_options_for(registry.analysis(n), asking))
            for n in names or registry.working_analyses()
        ]
    if given.csv:
        console.write_csv(results, Path(given.csv))
    if given.json:
        print(json.dumps({r.analysis: r.to_dict() for r in results}, indent=1))
    elif not given.csv:
        console.show_results(results)
    return 0


def _check(given: argparse.Namespace) -> int:
    from chopper_interop import console
    from chopper_interop.converters import chakra_check

    findings = chakra_check.check(Path(given.prefix))
    console.show_findings(findings, quiet=given.quiet)
    return 1 if any(finding.stops for finding in findings.found) else 0


def _options(given: list[str]) -> dict[str, str]:
    options = {}
    for option in given:
        name, equals, value = option.partition("=")
        if not equals:
            raise UsageError(f"-O {option}: write it as name=value")
        options[name.replace("-", "_")] = value
    return options


def _split_options(
    options: dict[str, str], inventory: Any, functions: list[Callable[..., Any]]
) -> tuple[dict[str, str], dict[str, str]]:
    """Options for readers and for the rest; one that nobody takes is refused."""
    from chopper_interop import registry

    readers = [s.converter.reader for s in inventory.sources]
    for option in registry.unknown_options([*readers, *functions], options):
        raise UsageError(f"-O {option}: neither the inputs nor the outputs have such an option")
    not_read = registry.unknown_options(readers, options)
    reading = {n: v for n, v in options.items() if n not in not_read}
    return reading, options


def _options_for(function: Any, options: dict[str, str]) -> dict[str, str]:
    from chopper_interop import registry

    return {n: v for n, v in options.items() if n in registry.options(function)}


def _parser(name: str, text: str, more: str = "") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=name,
        description=text,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"chopper-interop {__version__}")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    return parser


def _convert_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "chopper-convert",
        "Join the profiles of a GPU training job and write them for other tools.",
        "examples:\n"
        "  chopper-convert RUN/ -o job.pftrace            for ui.perfetto.dev\n"
        "  chopper-convert RUN/ -o et/ -O mode=gpu        Chakra ETs for a simulator\n"
        "  chopper-convert rank*.json.gz -o job.parquet   tables for your own analyses\n"
        "  chopper-convert --demo sample/                 a sample job to try it on\n",
    )
    parser.add_argument("source", nargs="*", help="files and folders; all of them are one job")
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="[FORMAT:]PATH",
        help="file or folder to write; repeatable",
    )
    parser.add_argument("--from", dest="from_format", help="format of all sources")
    parser.add_argument("--to", help="format of all outputs, over their endings")
    parser.add_argument("-O", dest="option", action="append", default=[], help=_OPTION_HELP)
    parser.add_argument("--job", help="name of the job, by default that of the first source")
    _add_reading(parser)
    parser.add_argument("--formats", action="store_true", help="list formats and their options")
    parser.add_argument("--demo", metavar="DIR", help="write a sample job's files into DIR")
    return parser


def _analyze_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "chopper-analyze",
        "Ask questions of the profiles of a job. Without the name of an analysis, all are run.",
        "examples:\n  chopper-analyze RUN/ temporal\n  chopper-analyze RUN/ --json > all.json\n",
    )
    parser.add_argument(
        "analysis", nargs="+", metavar="SOURCE|ANALYSIS", help="files, folders, analyses"
    )
    parser.add_argument("--from", dest="from_format", help="format of all sources")
    parser.add_argument("-O", dest="option", action="append", default=[], help=_OPTION_HELP)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--csv", metavar="DIR", help="a CSV file for each analysis")
    _add_reading(parser)
    return parser


def _check_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "chopper-check",
        "Tell whether a simulator will run these Chakra ETs to the end; exit status 0 if so.",
        "example:\n  chopper-check et/job      checks et/job.0.et, et/job.1.et, …\n",
    )
    parser.add_argument("prefix", help="path of the ETs without .RANK.et")
    return parser


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--map-device",
        action="append",
        default=[],
        metavar="[SOURCE:]N[-M]=DEVICE|rankR",
        help="what a source's GPU N is, where sources do not tell: a device of the trace, or that "
        "of a rank; SOURCE is a format or a pattern of files; repeatable",
    )
    parser.add_argument(
        "--clock-offset",
        action="append",
        default=[],
        metavar="[SOURCE:]SECONDS|...ns|...ms",
        help="what is added to a source's times to get those of the trace, over what is found; "
        "SOURCE is a format, a pattern of files or rankN, without it all telemetry; write "
        "--clock-offset=-500ms if it begins with a minus; repeatable",
    )
    parser.add_argument(
        "--on-loss",
        choices=("ignore", "warn", "error"),
        default="warn",
        help="what to do if something of the input is lost (default: warn)",
    )
