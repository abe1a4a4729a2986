"""The commands: ``chopper-convert``, ``chopper-analyze``, ``chopper-check``.

Nothing heavy is imported before the arguments are understood, so that help comes at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from chopper_interop.commands import analyze as cli_analyze
from chopper_interop.commands import common as cli_common
from chopper_interop.commands.common import INTERRUPTED
from chopper_interop.errors import UsageError
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

__all__ = [
    "INTERRUPTED", "analyze_command", "analyze_main", "check_command", "check_main",
    "convert_command", "convert_main",
]  # fmt: skip


def convert_command() -> NoReturn:
    """The process of ``chopper-convert``."""
    cli_common.leave(convert_main())


def analyze_command() -> NoReturn:
    """The process of ``chopper-analyze``."""
    cli_common.leave(analyze_main())


def check_command() -> NoReturn:
    """The process of ``chopper-check``."""
    cli_common.leave(check_main())


def convert_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``chopper-convert``; its exit status."""
    return cli_common.guarded(_convert, _convert_parser(), arguments)


def analyze_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``chopper-analyze``; its exit status."""
    return cli_common.guarded(cli_analyze.run, cli_analyze.parser(), arguments)


def check_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``chopper-check``; its exit status."""
    return cli_common.guarded(_check, _check_parser(), arguments)


def _convert(given: argparse.Namespace) -> int:
    from chopper_interop import pipeline, sources
    from chopper_interop.commands import console

    options = cli_common.options(given.option)
    if given.formats:
        console.show_formats()
        return 0
    if given.demo:
        return _demo(given, options)
    if not given.source or not given.output:
        raise UsageError("say what to read and, with -o, what to write", hint="see --help")
    outputs = [cli_common.output(text, given.to) for text in given.output]
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
            chosen = cli_common.options_for(writer.writer, writing)
            issues.extend(pipeline.write(trace, path, to_format=writer.name, **chosen))
    console.show_taken(trace, issues, on_loss=given.on_loss, quiet=given.quiet)
    if not given.quiet:
        console.show_written(trace, paths)
    pipeline.refuse_losses(issues, given.on_loss)
    return 0


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


def _check(given: argparse.Namespace) -> int:
    from chopper_interop.commands import console
    from chopper_interop.converters import chakra_check

    findings = chakra_check.check(Path(given.prefix))
    console.show_findings(findings, quiet=given.quiet)
    return 1 if any(finding.stops for finding in findings.found) else 0


def _convert_parser() -> argparse.ArgumentParser:
    parser = cli_common.parser(
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
    parser.add_argument(
        "-O", dest="option", action="append", default=[], help=cli_common.OPTION_HELP
    )
    parser.add_argument("--job", help="name of the job, by default that of the first source")
    cli_common.add_reading(parser)
    parser.add_argument("--formats", action="store_true", help="list formats and their options")
    parser.add_argument("--demo", metavar="DIR", help="write a sample job's files into DIR")
    return parser


def _check_parser() -> argparse.ArgumentParser:
    parser = cli_common.parser(
        "chopper-check",
        "Tell whether a simulator will run these Chakra ETs to the end; exit status 0 if so.",
        "example:\n  chopper-check et/job      checks et/job.0.et, et/job.1.et, …\n",
    )
    parser.add_argument("prefix", help="path of the ETs without .RANK.et")
    return parser
